//! Service processes of several hosts together, messages and completions in any order: every byte, and the counts that
//! the requirements promise.

use std::collections::VecDeque;

use crate::support::service::{self as world, BY_CARD, BY_HOST, Dying, Group, Outcome, Plan, Step};
use flexcast_proto::service::{
    Action, Announcement, Call, Cause, ContextId, Event, FailedParty, Failure, Ignored, Limits, LocalCopies, Message,
    Operation, Read, ReadError, Reader, Refusal, Region, ServiceProcess,
};
use proptest::prelude::*;

const FIRST: ContextId = ContextId { group: 0, collective: 0 };

fn block_of(source: u32, region: Region) -> Message {
    Message::Block { announcement: Announcement { source, region }, forwards: 0, copies: LocalCopies::Host }
}

/// Rank r announces to r + 1, r + 2 and so on, to each of the others once.
#[test]
fn an_alltoallv_announces_round_the_ring() {
    let hosts: Vec<u32> = (0..12).map(|rank| rank % 3).collect();
    let plan = Plan::one(&hosts, 2, &[Operation::Alltoallv]);
    let mut world = plan.start();
    plan.run(&mut world);
    for rank in 0..12u32 {
        let expected: Vec<u32> = (1..12).map(|step| (rank + step) % 12).collect();
        assert_eq!(world.counts.announcements[&(FIRST, rank)], expected);
    }
    // 12 ranks read from 8 on other hosts each.
    assert_eq!(world.counts.crossings[&FIRST], 96);
}

/// 32 ranks on 4 hosts, by whomever the copies are made.
#[test]
fn blocks_of_an_allgatherv_cross_once_per_host_wherever_ranks_are() {
    let contiguous: Vec<u32> = (0..32).map(|rank| rank / 8).collect();
    let strided: Vec<u32> = (0..32).map(|rank| rank % 4).collect();
    let ways = [BY_HOST, BY_CARD].map(|operation| [(&contiguous, operation), (&strided, operation)]);
    for (hosts, operation) in ways.into_iter().flatten() {
        let plan = Plan::one(hosts, 2, &[operation]);
        let mut world = plan.start();
        plan.run(&mut world);
        assert_eq!(world.counts.crossings[&FIRST], 32 * 3);
        // 7 copies of each of 32 blocks on each of 4 hosts, no pair twice.
        assert_eq!(world.counts.copies.len(), 32 * 7 * 4);
        assert!(world.counts.copies.values().all(|count| *count == 1));
        assert!(world.counts.announcements.values().all(|notified| notified.len() == 3));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn alltoallv_in_any_order(
        raw in proptest::collection::vec(0u32..4, 1..10), per_host in 1u32..4, reads in 1u32..5, seed: u64,
    ) {
        let mut plan = Plan::one(&dense(&raw), per_host, &[Operation::Alltoallv; 3]);
        (plan.seed, plan.most_bytes, plan.limits.active_reads, plan.limits.collectives) = (seed, 4, reads, 2);
        let mut world = plan.start();
        plan.run(&mut world);
        prop_assert!(world.counts.most_active <= reads);
        prop_assert_eq!(world.counts.ignored.total(), 0);
        let most = raw.len() * raw.len() * 2;
        prop_assert!(world.counts.most_waiting <= most);
        for notified in world.counts.announcements.values() {
            prop_assert_eq!(notified.len(), raw.len() - 1);
        }
    }

    #[test]
    fn allgatherv_in_any_order(
        raw in proptest::collection::vec(0u32..4, 1..10), per_host in 1u32..4, reads in 1u32..5, seed: u64,
    ) {
        let mut plan = Plan::one(&dense(&raw), per_host, &[BY_HOST, BY_CARD, BY_CARD]);
        (plan.seed, plan.most_bytes, plan.limits.active_reads, plan.limits.collectives) = (seed, 1, reads, 2);
        let mut world = plan.start();
        plan.run(&mut world);
        let topology = &plan.groups[0].topology;
        for collective in 0..3 {
            let context = ContextId { group: 0, collective };
            let crossings = world.counts.crossings.get(&context).copied().unwrap_or(0);
            prop_assert_eq!(crossings, topology.ranks() * (topology.hosts() - 1));
        }
        for ((_, _, host), forwards) in &world.counts.forwards {
            prop_assert!(*forwards < topology.processes_of(*host).len() as u32);
        }
        prop_assert!(world.counts.most_active <= reads);
        let ignored = world.counts.ignored;
        prop_assert_eq!((ignored.duplicates, ignored.foreign), (0, 0));
    }
}

/// Where all ranks are ready before the first block is announced, the host's ranks differ by one block, for any number
/// of ranks and processes.
#[test]
fn ready_ranks_of_a_host_read_as_many_blocks() {
    for (local, processes, remote) in [(3, 2, 10), (4, 3, 7), (8, 4, 24), (5, 5, 3), (7, 2, 33)] {
        let hosts: Vec<u32> = (0..local + remote).map(|rank| if rank < local { 0 } else { 1 + rank % 3 }).collect();
        let plan = Plan::one(&dense(&hosts), processes, &[BY_HOST]);
        let mut world = plan.start();
        for rank in 0..local + remote {
            assert!(plan.step(&mut world, Step::Enter { group: 0, rank }));
        }
        plan.run(&mut world);
        let loads: Vec<u32> =
            (0..local).map(|rank| world.counts.loads.get(&(FIRST, rank)).copied().unwrap_or(0)).collect();
        assert_eq!(loads.iter().sum::<u32>(), remote);
        assert!(loads.iter().all(|load| *load == remote / local || *load == remote.div_ceil(local)), "{loads:?}");
    }
}

/// A rank that comes late gets blocks until it has as many as the others, and is given no more than one above them.
#[test]
fn a_late_rank_is_the_least_loaded() {
    let topology = world::topology(&[0, 0, 1, 1, 1, 1, 1, 1], 1);
    let mut machine = ServiceProcess::new(Limits { active_reads: 1, ..Limits::default() }).unwrap();
    machine.add_group(0, topology, 0).unwrap();
    let region = Region { address: 0, key: 0, bytes: 1 };
    let mut actions = Vec::new();
    let enter = |rank| Event::Entered {
        context: FIRST,
        rank,
        call: Call::Allgatherv { send: region, receive: vec![region; 8], copies: LocalCopies::Host },
    };
    let block = |source| Event::Arrived { from: 1, context: FIRST, message: block_of(source, region) };
    machine.handle(enter(0), &mut actions).unwrap();
    for source in 2..5 {
        machine.handle(block(source), &mut actions).unwrap();
    }
    machine.handle(enter(1), &mut actions).unwrap();
    assert_eq!((machine.load(FIRST, 0), machine.load(FIRST, 1)), (Some(3), Some(0)));
    for source in 5..8 {
        machine.handle(block(source), &mut actions).unwrap();
    }
    assert_eq!((machine.load(FIRST, 0), machine.load(FIRST, 1)), (Some(3), Some(3)));
    assert_eq!((machine.active_reads(), machine.waiting()), (1, 5));
}

#[derive(Clone, Copy, Debug)]
enum Noise {
    Again,
    Foreign,
}

/// What has come before, comes from elsewhere or is of a collective that is over is counted and changes nothing.
#[test]
fn duplicates_foreign_and_stale_messages_change_nothing() {
    let topology = world::topology(&[0, 1, 1], 1);
    let mut machine = ServiceProcess::new(Limits::default()).unwrap();
    machine.add_group(0, topology, 1).unwrap();
    let region = Region { address: 0, key: 0, bytes: 1 };
    let ready = |source, target| Message::Ready { source, target, region };
    let arrived = |from, context, message| Event::Arrived { from, context, message };
    let other = ContextId { group: 9, collective: 0 };
    let mut actions = Vec::new();
    machine.handle(arrived(0, FIRST, ready(0, 1)), &mut actions).unwrap();
    let before = machine.clone();
    let block = block_of(1, region);
    let read_by_host = Message::HasRead { source: 1, reader: Reader::Host(1) };
    for (kind, event) in [
        (Noise::Again, arrived(0, FIRST, ready(0, 1))),
        // Of a group that is not there, of ranks that are not, for ranks of others, from processes of others.
        (Noise::Foreign, arrived(0, other, ready(0, 1))),
        (Noise::Foreign, arrived(0, FIRST, ready(0, 7))),
        (Noise::Foreign, arrived(0, FIRST, ready(7, 1))),
        (Noise::Foreign, arrived(0, FIRST, ready(1, 0))),
        (Noise::Foreign, arrived(1, FIRST, ready(0, 1))),
        (Noise::Foreign, arrived(9, FIRST, ready(0, 1))),
        (Noise::Foreign, arrived(0, FIRST, block)),
        (Noise::Foreign, arrived(0, FIRST, Message::Listed)),
        (Noise::Foreign, arrived(0, FIRST, read_by_host)),
        (Noise::Foreign, arrived(0, FIRST, Message::HasRead { source: 1, reader: Reader::Rank(0) })),
        (Noise::Foreign, Event::ReadDone { context: FIRST, source: 0, target: 1, error: None }),
        (Noise::Foreign, Event::Copied { context: FIRST, rank: 0, source: 0 }),
        (Noise::Foreign, Event::RankDied { group: 0, rank: 3 }),
        (Noise::Foreign, Event::ProcessDied { group: 0, process: 1 }),
    ] {
        actions.clear();
        machine.handle(event.clone(), &mut actions).unwrap();
        let ignored = machine.take_ignored();
        let expected = match kind {
            Noise::Again => Ignored { duplicates: 1, ..Ignored::default() },
            Noise::Foreign => Ignored { foreign: 1, ..Ignored::default() },
        };
        assert_eq!((ignored, &actions[..]), (expected, &[][..]), "{event:?}");
        assert_eq!(machine, before, "{event:?}");
    }
}

/// The same for an Allgatherv under way, and for what is said about its blocks.
#[test]
fn what_is_said_again_of_an_allgatherv_changes_nothing() {
    let topology = world::topology(&[0, 0, 1], 1);
    let mut machine = ServiceProcess::new(Limits::default()).unwrap();
    machine.add_group(0, topology, 0).unwrap();
    let region = Region { address: 0, key: 0, bytes: 1 };
    let call = || Call::Allgatherv { send: region, receive: vec![region; 3], copies: LocalCopies::Host };
    let arrived = |message| Event::Arrived { from: 1, context: FIRST, message };
    let block = arrived(block_of(2, region));
    let read = Event::ReadDone { context: FIRST, source: 2, target: 0, error: None };
    let mut actions = Vec::new();
    for rank in [0, 1] {
        machine.handle(Event::Entered { context: FIRST, rank, call: call() }, &mut actions).unwrap();
    }
    for (event, counted) in [
        (block, Ignored { duplicates: 1, ..Ignored::default() }),
        (read, Ignored { foreign: 1, ..Ignored::default() }),
        (Event::Copied { context: FIRST, rank: 1, source: 2 }, Ignored { duplicates: 1, ..Ignored::default() }),
        (
            arrived(Message::HasRead { source: 0, reader: Reader::Host(1) }),
            Ignored { duplicates: 1, ..Ignored::default() },
        ),
    ] {
        machine.handle(event.clone(), &mut actions).unwrap();
        assert_eq!(machine.take_ignored(), Ignored::default(), "{event:?}");
        let before = machine.clone();
        actions.clear();
        machine.handle(event.clone(), &mut actions).unwrap();
        assert_eq!((machine.take_ignored(), actions.len()), (counted, 0), "{event:?}");
        assert_eq!(machine, before, "{event:?}");
    }
    // What the holder has itself, and what nobody has announced, is not copied.
    for (rank, source) in [(0, 2), (1, 1), (2, 0)] {
        machine.handle(Event::Copied { context: FIRST, rank, source }, &mut actions).unwrap();
        assert_eq!((machine.take_ignored().foreign, actions.len()), (1, 0));
    }
}

/// What comes after its collective is over is counted.
#[test]
fn a_lone_rank_is_complete_at_once_and_what_comes_later_is_stale() {
    let topology = world::topology(&[0], 1);
    let mut machine = ServiceProcess::new(Limits::default()).unwrap();
    machine.add_group(0, topology, 0).unwrap();
    let empty = Region { address: 0, key: 0, bytes: 0 };
    let call = Call::Alltoallv { send: vec![empty], receive: vec![empty] };
    let mut actions = Vec::new();
    // Nothing to read, nobody to announce to: complete at once.
    machine.handle(Event::Entered { context: FIRST, rank: 0, call: call.clone() }, &mut actions).unwrap();
    assert_eq!(actions, [Action::Complete { rank: 0, context: FIRST }]);
    assert_eq!(machine.under_way(0), Some(0));
    let again = machine.handle(Event::Entered { context: FIRST, rank: 0, call }, &mut actions);
    assert_eq!(again, Err(Refusal::CalledTwice { rank: 0, group: 0, collective: 0 }));
    machine
        .handle(
            Event::Arrived { from: 0, context: FIRST, message: Message::Unreadable { source: 0, code: 1 } },
            &mut actions,
        )
        .unwrap();
    assert_eq!((machine.ignored().stale, actions.len()), (1, 1));
}

/// Where a Read fails the process of the rank whose memory is at fault is notified, source or target.
#[test]
fn a_read_that_fails_names_the_rank_whose_memory_it_failed_on() {
    let region = |bytes| Region { address: 0, key: 0, bytes };
    for (code, rank) in [(4, 0), (10, 1), (11, 1)] {
        let mut machine = ServiceProcess::new(Limits::default()).unwrap();
        machine.add_group(0, world::topology(&[0, 1], 1), 0).unwrap();
        let call = Call::Alltoallv { send: vec![region(8); 2], receive: vec![region(8); 2] };
        let mut actions = Vec::new();
        machine.handle(Event::Entered { context: FIRST, rank: 0, call }, &mut actions).unwrap();
        let message = Message::Ready { source: 1, target: 0, region: region(8) };
        machine.handle(Event::Arrived { from: 1, context: FIRST, message }, &mut actions).unwrap();
        actions.clear();
        let error = Some(ReadError { code, rank });
        let done = Event::ReadDone { context: FIRST, source: 1, target: 0, error };
        machine.handle(done, &mut actions).unwrap();
        let message = Message::Unreadable { source: rank, code };
        let notice = Action::Send { to: rank, context: FIRST, message };
        assert!(actions.contains(&notice), "{code}: {actions:?}");
    }
}

#[test]
fn limits_are_named_with_their_values() {
    assert_eq!(
        ServiceProcess::new(Limits { active_reads: 0, ..Limits::default() }).unwrap_err().to_string(),
        "limit active_reads is 0: give at least 1"
    );
    let limits = Limits { groups: 1, collectives: 2, announcements: 18, active_reads: 1 };
    let mut machine = ServiceProcess::new(limits).unwrap();
    let three = world::topology(&[0, 0, 0], 1);
    // 4 ranks, 4 of them served, 2 collectives.
    assert_eq!(
        machine.add_group(0, world::topology(&[0; 4], 1), 0),
        Err(Refusal::Announcements { announcements: 32, limit: 18 })
    );
    assert_eq!(machine.add_group(0, three.clone(), 1), Err(Refusal::Process { process: 1, processes: 1 }));
    machine.add_group(0, three.clone(), 0).unwrap();
    assert_eq!(machine.add_group(0, three.clone(), 0), Err(Refusal::GroupTwice { group: 0 }));
    assert_eq!(machine.add_group(1, three, 0), Err(Refusal::Groups { groups: 2, limit: 1 }));
    let region = Region { address: 0, key: 0, bytes: 1 };
    let mut enter = |group, collective, rank, blocks| {
        let call = Call::Allgatherv { send: region, receive: vec![region; blocks], copies: LocalCopies::Host };
        machine.handle(Event::Entered { context: ContextId { group, collective }, rank, call }, &mut Vec::new())
    };
    assert_eq!(enter(7, 0, 0, 3), Err(Refusal::NoGroup { group: 7 }));
    assert_eq!(enter(0, 0, 3, 3), Err(Refusal::NotServed { rank: 3, process: 0 }));
    assert_eq!(enter(0, 0, 0, 2), Err(Refusal::Blocks { found: 2, ranks: 3 }));
    assert_eq!(enter(0, 2, 0, 3), Err(Refusal::Collectives { group: 0, collective: 2, oldest: 0, limit: 2 }));
    assert_eq!((enter(0, 0, 0, 3), enter(0, 1, 0, 3)), (Ok(()), Ok(())));
    assert_eq!(enter(0, 1, 0, 3), Err(Refusal::CalledTwice { rank: 0, group: 0, collective: 1 }));
    assert_eq!((machine.remove_group(0), machine.remove_group(0)), (true, false));
}

/// Both ranks learn who sends what the other does not expect, and what was called.
#[test]
fn ranks_that_differ_fail_by_name() {
    let topology = world::topology(&[0, 0], 1);
    let region = |bytes| Region { address: 0, key: 0, bytes };
    let alltoallv = |bytes| Call::Alltoallv { send: vec![region(bytes); 2], receive: vec![region(bytes); 2] };
    let allgatherv = Call::Allgatherv { send: region(8), receive: vec![region(8); 2], copies: LocalCopies::Host };
    let cause = Cause::Bytes { detecting_rank: 1, found: 8, expected: 4 };
    let mixed = Cause::Operation { found: BY_HOST, expected: Operation::Alltoallv };
    for (second, failed_rank, cause) in [(alltoallv(4), 0, cause), (allgatherv, 1, mixed)] {
        let mut machine = ServiceProcess::new(Limits::default()).unwrap();
        machine.add_group(0, topology.clone(), 0).unwrap();
        let mut failures = Vec::new();
        let mut events = VecDeque::from([
            Event::Entered { context: FIRST, rank: 0, call: alltoallv(8) },
            Event::Entered { context: FIRST, rank: 1, call: second },
        ]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            machine.handle(event, &mut actions).unwrap();
            for action in actions {
                match action {
                    Action::Send { to, context, message } => {
                        events.push_back(Event::Arrived { from: to, context, message });
                    }
                    Action::Read { context, read: Read { source, target, .. } } => {
                        assert!(failures.is_empty());
                        events.push_back(Event::ReadDone { context, source, target, error: None });
                    }
                    Action::Fail { rank, failure, .. } => failures.push((rank, failure)),
                    _ => {}
                }
            }
        }
        let failure = Failure { failed_rank: FailedParty::Rank(failed_rank), cause };
        assert_eq!(failures, [(0, failure), (1, failure)]);
        assert_eq!(machine.under_way(0), Some(0));
    }
}

/// Who copies inside a host is said alike by all ranks: by those of one process, of two of a host, and of two hosts.
#[test]
fn ranks_that_disagree_about_copies_inside_a_host_are_notified() {
    let region = Region { address: 0, key: 0, bytes: 1 };
    let call = |copies| Call::Allgatherv { send: region, receive: vec![region; 4], copies };
    let enter = |rank, copies| Event::Entered { context: FIRST, rank, call: call(copies) };
    let arrived = |from, message| Event::Arrived { from, context: FIRST, message };
    let copies = LocalCopies::Card;
    let held = Message::Held { source: 2, holder: 2, region, copies };
    let block = Message::Block { announcement: Announcement { source: 3, region }, forwards: 0, copies };
    // Ranks 0 and 1 have process 0, rank 2 of the same host process 1, rank 3 of another host process 2.
    for (event, failed_rank) in [(enter(1, copies), 1), (arrived(1, held), 2), (arrived(2, block), 3)] {
        let mut machine = ServiceProcess::new(Limits::default()).unwrap();
        machine.add_group(0, world::topology(&[0, 0, 0, 1], 2), 0).unwrap();
        let mut actions = Vec::new();
        machine.handle(enter(0, LocalCopies::Host), &mut actions).unwrap();
        // The own block is in its place, so that no Read is under way.
        actions.clear();
        machine.handle(event, &mut actions).unwrap();
        let cause = Cause::Operation { found: BY_CARD, expected: BY_HOST };
        let failure = Failure { failed_rank: FailedParty::Rank(failed_rank), cause };
        for to in [1, 2] {
            let notice = Action::Send { to, context: FIRST, message: Message::Failed(failure) };
            assert!(actions.contains(&notice), "{actions:?}");
        }
        assert!(actions.contains(&Action::Fail { rank: 0, context: FIRST, failure }), "{actions:?}");
        assert_eq!(
            failure.to_string(),
            format!(
                "rank {failed_rank} has called Allgatherv with copies by the cards, but a rank of another service \
                 process Allgatherv with copies by the hosts: call the same on all ranks"
            )
        );
    }
}

/// A block that is read, or held elsewhere, is not read again into the same place, whatever another process of the host
/// says.
#[test]
fn a_block_that_is_said_to_be_held_twice_is_read_once() {
    let region = Region { address: 0, key: 0, bytes: 1 };
    let call = || Call::Allgatherv { send: region, receive: vec![region; 5], copies: LocalCopies::Card };
    let arrived = |from, message| Event::Arrived { from, context: FIRST, message };
    let held = |source, holder| arrived(1, Message::Held { source, holder, region, copies: LocalCopies::Card });
    let announcement = Announcement { source: 4, region };
    let block = || arrived(2, Message::Block { announcement, forwards: 0, copies: LocalCopies::Card });
    let duplicate = Ignored { duplicates: 1, ..Ignored::default() };
    let foreign = Ignored { foreign: 1, ..Ignored::default() };
    // Ranks 0 and 1 here, ranks 2 and 3 at the other process of the host, rank 4 on another host.
    for (first, second, ignored) in [
        (block(), held(4, 2), duplicate),
        (held(4, 2), block(), duplicate),
        (held(4, 2), held(4, 3), duplicate),
        // Rank 2 has no block of another rank of the host.
        (held(2, 2), held(3, 2), foreign),
        (held(2, 2), held(0, 2), foreign),
    ] {
        let mut machine = ServiceProcess::new(Limits::default()).unwrap();
        machine.add_group(0, world::topology(&[0, 0, 0, 0, 1], 2), 0).unwrap();
        let mut actions = Vec::new();
        machine.handle(Event::Entered { context: FIRST, rank: 0, call: call() }, &mut actions).unwrap();
        machine.handle(first, &mut actions).unwrap();
        actions.clear();
        machine.handle(second, &mut actions).unwrap();
        assert_eq!((machine.take_ignored(), &actions[..]), (ignored, &[][..]));
    }
}

/// A copy by the card that fails names whose memory is at fault: the holder's, whose block it is not.
#[test]
fn a_copy_by_the_card_reads_from_the_holder_and_credits_it() {
    let region = |key| Region { address: 0, key, bytes: 1 };
    let start = || {
        let mut machine = ServiceProcess::new(Limits::default()).unwrap();
        machine.add_group(0, world::topology(&[0, 0, 1], 2), 0).unwrap();
        let call = Call::Allgatherv { send: region(7), receive: vec![region(7); 3], copies: LocalCopies::Card };
        let mut actions = Vec::new();
        machine.handle(Event::Entered { context: FIRST, rank: 0, call }, &mut actions).unwrap();
        actions.clear();
        // Rank 1 of the other process of the host has read the block of rank 2.
        let message = Message::Held { source: 2, holder: 1, region: region(9), copies: LocalCopies::Card };
        machine.handle(Event::Arrived { from: 1, context: FIRST, message }, &mut actions).unwrap();
        let read = Read { source: 2, holder: 1, target: 0, from: region(9), to: region(7) };
        assert_eq!(actions, [Action::Read { context: FIRST, read }]);
        actions.clear();
        (machine, actions)
    };
    for (error, message) in [
        (None, Message::Copied { source: 2, holder: 1, by: 0 }),
        (Some(ReadError { code: 10, rank: 1 }), Message::Unreadable { source: 1, code: 10 }),
    ] {
        let (mut machine, mut actions) = start();
        // A rank that says that it has copied was not instructed to.
        machine.handle(Event::Copied { context: FIRST, rank: 0, source: 2 }, &mut actions).unwrap();
        assert_eq!((machine.take_ignored().foreign, actions.len()), (1, 0));
        machine.handle(Event::ReadDone { context: FIRST, source: 2, target: 0, error }, &mut actions).unwrap();
        assert_eq!(actions, [Action::Send { to: 1, context: FIRST, message }]);
    }
}

/// Two communicators on the same computers, their ranks elsewhere in each. `dying`: a rank of the first, or a process,
/// which both have.
fn two_groups(seed: u64, dying: Option<Dying>) -> Plan {
    let operations = [Operation::Alltoallv, BY_CARD, Operation::Alltoallv, BY_HOST];
    let mut plan = Plan::one(&[0, 0, 0, 1, 1, 2, 2], 2, &operations);
    plan.groups.push(Group {
        topology: world::topology(&[0, 1, 0, 1, 0], 2),
        computers: vec![2, 0],
        collectives: operations[1..].to_vec(),
    });
    plan.limits.active_reads = 2;
    plan.limits.collectives = 2;
    Plan { seed, most_bytes: 3, dying, ..plan }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn groups_and_collectives_are_isolated(seed: u64) {
        let plan = two_groups(seed, None);
        let mut world = plan.start();
        plan.run(&mut world);
        prop_assert!(world.outcomes.values().all(|outcome| *outcome == Outcome::Complete));
    }

    #[test]
    fn a_dead_rank_fails_its_group_and_leaves_the_other_alone(seed: u64, rank in 0u32..7) {
        let plan = two_groups(seed, Some(Dying::Rank(rank)));
        let mut world = plan.start();
        plan.run(&mut world);
        let other = world.outcomes.iter().filter(|((context, _), _)| context.group == 1);
        prop_assert!(other.clone().count() == 15 && other.clone().all(|(_, outcome)| *outcome == Outcome::Complete));
    }

    #[test]
    fn a_dead_process_fails_its_groups_by_name(seed: u64, process in 0u32..6) {
        let plan = two_groups(seed, Some(Dying::Process(process)));
        let mut world = plan.start();
        plan.run(&mut world);
        let touches = |group: u32| plan.own(group as usize, plan.process(0, process)).is_some();
        for ((context, _), outcome) in &world.outcomes {
            prop_assert!(touches(context.group) || *outcome == Outcome::Complete);
        }
    }
}

/// Numbers without gaps.
fn dense(raw: &[u32]) -> Vec<u32> {
    let mut names = raw.to_vec();
    names.sort_unstable();
    names.dedup();
    raw.iter().map(|host| names.binary_search(host).unwrap() as u32).collect()
}
