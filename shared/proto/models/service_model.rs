//! Every interleaving of service processes by a model checker: ranks that enter in any order, messages, Reads and
//! copies that take any time, and one death. All bytes are compared. Each block is read once per host, no block
//! starves, no buffer is given back while somebody reads from it or into it, and a failure names who has died.
//!
//! What a process does on one event is one step; `support/service.rs: handle` says why that leaves nothing out. Larger
//! ones are ignored: `cargo test -p flexcast-proto-models service_model:: -- --ignored`.

use std::collections::{BTreeMap, VecDeque};

use crate::support::check::check;
use crate::support::service::{self as world, BY_CARD, BY_HOST, Dying, Outcome, Plan, Step, World};
use flexcast_proto::service::Operation::{self, Alltoallv};
use flexcast_proto::service::{
    Action, Announcement, Call, ContextId, Event, Limits, LocalCopies, Message, Read, Region, ServiceProcess,
    SharedList, Topology,
};
use stateright::{Checker as _, Model, Property};

impl Model for Plan {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.steps(world, steps);
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        self.step(&mut world, step).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, world: &World| world.wrong.is_none()),
            Property::always("no deadlock", |plan: &Self, world: &World| {
                let mut steps = Vec::new();
                plan.steps(world, &mut steps);
                !steps.is_empty() || plan.is_over(world)
            }),
            Property::sometimes("all are complete", |plan: &Self, world: &World| {
                plan.is_over(world) && world.outcomes.values().all(|outcome| *outcome == Outcome::Complete)
            }),
            Property::sometimes("it fails where it may", |plan: &Self, world: &World| {
                plan.dying.is_none()
                    || (plan.is_over(world) && world.outcomes.values().any(|outcome| *outcome != Outcome::Complete))
            }),
        ]
    }
}

fn plan(hosts: &[u32], processes: u32, operation: Operation) -> Plan {
    Plan::one(hosts, processes, &[operation])
}

/// Who serves blocks of remote ranks on one host with 4 ranks. The remote hosts are left out: a block is announced at
/// any time, and nobody waits for what this host sends there. So are copies and what is said about them, which have no
/// part in it.
#[derive(Clone, Copy)]
struct Claiming {
    processes: u32,
    /// Remote ranks, each on a host of its own.
    sources: u32,
    /// Whether processes are notified of new blocks on the shared list. The published rule has them check when a rank
    /// enters, and no other time.
    notices: bool,
    /// Whether any of the 4 ranks may die.
    dying: bool,
}

const WAITS: &str = "a block is on the list only while no rank is ready";
const LOCAL: u32 = 4;
/// Who has put blocks on the list, where service processes do not die.
const NOBODY_DIES: flexcast_proto::service::wire::Endpoint =
    flexcast_proto::service::wire::Endpoint { address: std::net::Ipv6Addr::LOCALHOST, port: 1 };
const CONTEXT: ContextId = ContextId { group: 0, collective: 0 };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    processes: Vec<ServiceProcess>,
    list: SharedList,
    wires: BTreeMap<(u32, u32), VecDeque<Message>>,
    entered: Vec<bool>,
    announced: Vec<bool>,
    reads: Vec<(u32, Read)>,
    /// By source: Reads that were begun.
    begun: Vec<u8>,
    forwards: Vec<u8>,
    dead: Option<u32>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Claim {
    Announce(u32),
    Enter(u32),
    Deliver(u32, u32),
    EndRead(usize),
    Die(u32),
}

impl Claiming {
    fn topology(self) -> std::sync::Arc<Topology> {
        let hosts: Vec<u32> = (0..LOCAL + self.sources).map(|rank| (rank + 1).saturating_sub(LOCAL)).collect();
        world::topology(&hosts, self.processes)
    }

    fn handle(self, host: &mut Host, process: u32, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            host.processes[process as usize].handle(event, &mut actions).unwrap();
            for action in actions {
                match action {
                    Action::Send { to, message, .. } if to < self.processes => match message {
                        Message::Listed if !self.notices => {}
                        Message::Block { announcement, .. } => {
                            host.forwards[(announcement.source - LOCAL) as usize] += 1;
                            host.wires.entry((process, to)).or_default().push_back(message);
                        }
                        Message::Listed | Message::Failed(_) => {
                            host.wires.entry((process, to)).or_default().push_back(message);
                        }
                        _ => {}
                    },
                    Action::Read { read, .. } if read.source >= LOCAL => {
                        host.begun[(read.source - LOCAL) as usize] += 1;
                        host.reads.push((process, read));
                    }
                    Action::Put { announcement, .. } => {
                        let put = host.list.put(CONTEXT, announcement, NOBODY_DIES);
                        host.wrong = host.wrong.or(put.err().map(|_| "on the list twice"));
                    }
                    Action::Claim { context } => {
                        let announcement = host.list.claim(context);
                        events.push_back(Event::Claimed { context, announcement });
                    }
                    Action::Abandon { context } => host.list.remove(context),
                    _ => {}
                }
            }
            let ignored = host.processes[process as usize].take_ignored();
            if ignored.duplicates + ignored.foreign > 0 && host.dead.is_none() {
                host.wrong = Some("a message was not taken");
            }
        }
    }

    /// Whether nothing is left to do.
    fn is_still(self, host: &Host) -> bool {
        let mut steps = Vec::new();
        self.actions(host, &mut steps);
        steps.iter().all(|step| matches!(step, Claim::Die(_)))
    }
}

impl Model for Claiming {
    type State = Host;
    type Action = Claim;

    fn init_states(&self) -> Vec<Host> {
        let topology = self.topology();
        assert_eq!(topology.processes_of(0), 0..self.processes);
        let machine = |own| {
            let mut machine = ServiceProcess::new(Limits { active_reads: 2, ..Limits::default() }).unwrap();
            machine.add_group(0, topology.clone(), own).unwrap();
            machine
        };
        let sources = self.sources as usize;
        vec![Host {
            processes: (0..self.processes).map(machine).collect(),
            list: SharedList::new(sources as u64),
            wires: BTreeMap::new(),
            entered: vec![false; LOCAL as usize],
            announced: vec![false; sources],
            reads: Vec::new(),
            begun: vec![0; sources],
            forwards: vec![0; sources],
            dead: None,
            wrong: None,
        }]
    }

    fn actions(&self, host: &Host, steps: &mut Vec<Claim>) {
        let (announced, entered) = ((0..).zip(&host.announced), (0..).zip(&host.entered));
        steps.extend(announced.filter(|(_, done)| !**done).map(|(source, _)| Claim::Announce(source)));
        steps.extend(
            entered.filter(|(rank, done)| !**done && host.dead != Some(*rank)).map(|(rank, _)| Claim::Enter(rank)),
        );
        let wires = host.wires.iter().filter(|(_, wire)| !wire.is_empty());
        steps.extend(wires.map(|((from, to), _)| Claim::Deliver(*from, *to)));
        steps.extend((0..host.reads.len()).map(Claim::EndRead));
        if self.dying && host.dead.is_none() {
            steps.extend((0..LOCAL).map(Claim::Die));
        }
    }

    fn next_state(&self, before: &Host, step: Claim) -> Option<Host> {
        let mut host = before.clone();
        let topology = self.topology();
        let region = Region { address: 0, key: 0, bytes: 1 };
        match step {
            Claim::Announce(index) => {
                let source = LOCAL + index;
                host.announced[index as usize] = true;
                let announcement = Announcement { source, region };
                let message = Message::Block { announcement, forwards: 0, copies: LocalCopies::Host };
                let from = topology.process_of(source).unwrap();
                let entry = topology.entry_of(source, 0).unwrap();
                self.handle(&mut host, entry, Event::Arrived { from, context: CONTEXT, message });
            }
            Claim::Enter(rank) => {
                host.entered[rank as usize] = true;
                // In place, so that it reads nothing from itself.
                let receive = vec![region; topology.ranks() as usize];
                let call = Call::Allgatherv { send: region, receive, copies: LocalCopies::Host };
                let process = topology.process_of(rank).unwrap();
                self.handle(&mut host, process, Event::Entered { context: CONTEXT, rank, call });
            }
            Claim::Deliver(from, to) => {
                let wire = host.wires.get_mut(&(from, to)).unwrap();
                let message = wire.pop_front().unwrap();
                if wire.is_empty() {
                    host.wires.remove(&(from, to));
                }
                self.handle(&mut host, to, Event::Arrived { from, context: CONTEXT, message });
            }
            Claim::EndRead(index) => {
                let (process, Read { source, target, .. }) = host.reads.remove(index);
                if !host.entered[target as usize] {
                    host.wrong = Some("read for a rank that has not called");
                }
                self.handle(&mut host, process, Event::ReadDone { context: CONTEXT, source, target, error: None });
            }
            Claim::Die(rank) => {
                host.dead = Some(rank);
                let process = topology.process_of(rank).unwrap();
                self.handle(&mut host, process, Event::RankDied { group: 0, rank });
            }
        }
        Some(host)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, host: &Host| host.wrong.is_none()),
            Property::always("no block is read twice", |_, host: &Host| host.begun.iter().all(|begun| *begun <= 1)),
            Property::always("at most one forward less than processes", |model: &Self, host: &Host| {
                host.forwards.iter().all(|forwards| u32::from(*forwards) < model.processes)
            }),
            Property::always("no block starves", |model: &Self, host: &Host| {
                let served = host.dead.is_some() || host.begun.iter().all(|begun| *begun == 1);
                !model.is_still(host) || (served && host.list.is_empty())
            }),
            Property::always(WAITS, |_, host: &Host| {
                let in_flight = host.wires.values().any(|wire| !wire.is_empty());
                let ready = host.dead.is_none() && host.entered.contains(&true);
                in_flight || !ready || host.list.is_empty()
            }),
            Property::sometimes("a block is on the list", |model: &Self, host: &Host| {
                !host.list.is_empty() || model.processes == 0
            }),
        ]
    }
}

fn claim(model: Claiming) {
    check(&format!("{} processes, {} sources", model.processes, model.sources), model);
}

/// 4 ranks enter in all orders, messages take any time, Reads end at any time.
#[test]
fn every_block_is_read_once_for_whoever_is_ready() {
    for processes in 1..=3 {
        for sources in 1..=2 {
            claim(Claiming { processes, sources, notices: true, dying: false });
        }
    }
}

#[test]
fn a_rank_that_dies_leaves_no_block_on_the_list() {
    for (processes, sources) in [(2, 2), (3, 1)] {
        claim(Claiming { processes, sources, notices: true, dying: true });
    }
}

#[test]
#[ignore = "larger: cargo test -p flexcast-proto-models service_model:: -- --ignored"]
fn every_block_of_three_sources_is_read_once_and_with_a_death() {
    claim(Claiming { processes: 3, sources: 3, notices: true, dying: false });
    claim(Claiming { processes: 3, sources: 2, notices: true, dying: true });
}

/// Where processes check the list when a rank enters, and no other time, a block can wait for a rank of the process
/// that put it there although a rank of another one is ready.
#[test]
fn without_notices_a_block_waits_although_a_rank_is_ready() {
    let model = Claiming { processes: 2, sources: 1, notices: false, dying: false };
    let checker = model.checker().threads(2).spawn_bfs().join();
    let steps = checker.discovery(WAITS).expect("a block that waits").into_actions();
    // Past the first process, whose rank enters then, and on the list by the second.
    assert!(matches!(steps[..], [Claim::Announce(0), .., Claim::Deliver(0, 1)]), "{steps:?}");
}

/// Ranks that come late, data of other hosts and of the own one, buffers that are given back when nobody reads them.
#[test]
fn alltoallv_of_three_ranks() {
    for (hosts, processes) in [([0, 0, 1], 2), ([0, 1, 2], 1), ([0, 0, 0], 1)] {
        check("alltoallv", plan(&hosts, processes, Alltoallv));
    }
}

#[test]
fn allgatherv_of_three_ranks() {
    for (hosts, processes) in [([0, 0, 1], 2), ([0, 0, 1], 1), ([0, 0, 0], 2)] {
        check("allgatherv", plan(&hosts, processes, BY_HOST));
        check("allgatherv with copies by the card", plan(&hosts, processes, BY_CARD));
    }
}

/// Two collectives of two ranks under way at once.
#[test]
fn two_collectives_under_way_at_once() {
    check("two Alltoallv", Plan::one(&[0, 1], 1, &[Alltoallv; 2]));
    check("Allgatherv and Alltoallv", Plan::one(&[0, 1], 1, &[BY_HOST, Alltoallv]));
    check("Allgatherv both ways", Plan::one(&[0, 0], 1, &[BY_CARD, BY_HOST]));
}

/// One Read at a time, copies by the card included.
#[test]
fn one_read_at_a_time() {
    for operation in [Alltoallv, BY_CARD] {
        let mut one = plan(&[0, 0, 1], 1, operation);
        one.limits.active_reads = 1;
        check("one Read at a time", one);
    }
}

/// All that live and whose process lives end, complete or with the name of who has died.
#[test]
fn a_process_dies_in_any_state() {
    for operation in [Alltoallv, BY_HOST, BY_CARD] {
        for process in [0, 1] {
            check("a process dies", Plan { dying: Some(Dying::Process(process)), ..plan(&[0, 0, 1], 1, operation) });
        }
    }
}

#[test]
fn a_rank_dies_in_any_state_of_an_allgatherv() {
    for operation in [BY_HOST, BY_CARD] {
        for rank in [0, 2] {
            check("a rank dies", Plan { dying: Some(Dying::Rank(rank)), ..plan(&[0, 0, 1], 1, operation) });
        }
    }
}

#[test]
fn a_rank_dies_in_any_state_of_an_alltoallv() {
    check("a rank of two dies", Plan { dying: Some(Dying::Rank(0)), ..plan(&[0, 1], 1, Alltoallv) });
    check("a rank dies", Plan { dying: Some(Dying::Rank(0)), ..plan(&[0, 0, 1], 1, Alltoallv) });
}

#[test]
#[ignore = "larger, about 20 s: cargo test -p flexcast-proto-models service_model:: -- --ignored"]
fn a_death_in_larger_groups() {
    check("a rank dies", Plan { dying: Some(Dying::Rank(2)), ..plan(&[0, 0, 1], 1, Alltoallv) });
    for operation in [BY_HOST, BY_CARD] {
        check("one of three processes dies", Plan { dying: Some(Dying::Process(0)), ..plan(&[0, 0, 1], 2, operation) });
    }
}
