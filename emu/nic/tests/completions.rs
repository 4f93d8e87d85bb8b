//! Completion queues: owner bits, arming, overrun.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::NOP;
use emu_nic::*;

/// One queue pair whose NOPs complete into a queue of `1 << log` CQEs.
fn nops(world: &mut World, log: u8, change: impl FnOnce(&mut CqAttr)) -> (Qp, Cq) {
    let pd = world.nics[0].alloc_pd().unwrap();
    let cq = world.cq_with(0, DPA, log, change);
    let setup = Setup { space: DPA, ..Setup::new(Transport::Uc) };
    let qp = world.qp(0, pd, &cq, &cq, &setup);
    world.connect(&qp, (1, 7), &QpModify::default());
    (qp, cq)
}

fn complete(world: &mut World, qp: &mut Qp) {
    world.post(qp, &Wqe::new(NOP));
    world.run();
}

fn raw_owner_bits(world: &mut World, cq: &Cq) -> Vec<u8> {
    (0..1_u64 << cq.log).map(|i| world.mem[0].get(DPA, cq.ring + i * 64 + 63, 1)[0] & 1).collect()
}

#[test]
fn owner_bits_toggle_each_lap() {
    let mut world = World::new();
    let (mut qp, mut cq) = nops(&mut world, 2, |_| {});
    assert_eq!(raw_owner_bits(&mut world, &cq), [1; 4]);
    for lap in 0..3_u8 {
        for i in 0..4_usize {
            complete(&mut world, &mut qp);
            let mut expected = [(lap + 1) % 2; 4];
            expected[..=i].fill(lap % 2);
            assert_eq!(raw_owner_bits(&mut world, &cq), expected, "lap {lap} entry {i}");
            assert!(world.poll(&mut cq).is_some(), "software sees the CQE");
            assert!(world.poll(&mut cq).is_none(), "and no other");
        }
    }
}

#[test]
fn an_arm_gives_one_event() {
    let mut world = World::new();
    let (mut qp, mut cq) = nops(&mut world, 4, |_| {});
    complete(&mut world, &mut qp);
    assert_eq!(world.cq_events, [], "not armed, no event");
    world.poll_all(&mut cq);
    world.arm(&cq);
    world.run();
    assert_eq!(world.cq_events, [], "nothing new since the consumer index");
    complete(&mut world, &mut qp);
    complete(&mut world, &mut qp);
    assert_eq!(world.cq_events.len(), 1, "two CQEs, one event");
    let (_, node, event) = world.cq_events[0];
    assert_eq!((node, event), (0, CqEvent { cqn: cq.cqn, target: CqTarget::Channel(9) }));
}

#[test]
fn arming_behind_the_producer_fires_at_once() {
    let mut world = World::new();
    let (mut qp, mut cq) = nops(&mut world, 4, |_| {});
    complete(&mut world, &mut qp);
    world.arm(&cq);
    let armed_ps = world.now_ps;
    world.run();
    assert_eq!(world.cq_events.len(), 1, "the CQE was there before");
    assert_eq!(world.cq_events[0].0, armed_ps + NicTiming::default().doorbell_visible_ps);
    complete(&mut world, &mut qp);
    assert_eq!(world.cq_events.len(), 1, "the event used up the arm");
    world.poll_all(&mut cq);
    world.arm(&cq);
    complete(&mut world, &mut qp);
    assert_eq!(world.cq_events.len(), 2);
}

#[test]
fn a_cqe_that_races_with_the_arm_is_not_lost() {
    // Whatever the time between CQE and arm, exactly one event comes.
    for offset_ps in (0..900_000).step_by(50_000) {
        let mut world = World::new();
        let (mut qp, cq) = nops(&mut world, 4, |_| {});
        world.post(&mut qp, &Wqe::new(NOP));
        world.run_until(offset_ps);
        world.arm(&cq);
        world.run();
        assert_eq!(world.cq_events.len(), 1, "armed at {offset_ps} ps");
    }
}

#[test]
fn arming_attributes() {
    let mut world = World::new();
    let (mut qp, _) = nops(&mut world, 4, |attr| attr.always_armed = true);
    complete(&mut world, &mut qp);
    complete(&mut world, &mut qp);
    assert_eq!(world.cq_events.len(), 2, "always armed");

    let mut world = World::new();
    let (mut qp, _) = nops(&mut world, 4, |attr| attr.armed_at_creation = true);
    complete(&mut world, &mut qp);
    complete(&mut world, &mut qp);
    assert_eq!(world.cq_events.len(), 1, "armed at creation");
}

#[test]
fn a_solicited_arm_waits_for_a_solicited_cqe() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Uc));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    let cqn = b.rcq.cqn;
    world.act(1, |nic, _, now, fx| nic.arm_cq_solicited(now, cqn, 0, fx));
    for flags in [0x08, 0x0A] {
        world.receive(&mut b.qp, &[(target, 64, key)]);
        let mut wqe = Wqe::new(wqe_opcode::SEND).inline(&[1]);
        wqe.flags = flags;
        world.post(&mut a.qp, &wqe);
        world.run();
        assert_eq!(world.cq_events.len(), usize::from(flags == 0x0A), "flags {flags:#x}");
    }
    let cqes = world.poll_all(&mut b.rcq);
    assert_eq!(cqes.iter().map(|cqe| cqe.solicited).collect::<Vec<_>>(), [false, true]);
}

/// Sends that are solicited or not arrive one by one; between them the queue is armed as `arms` says (index, solicited
/// only). Gives after how many arrivals events came.
fn events_of(solicited: &[bool], arms: impl Fn(usize) -> &'static [(u32, bool)]) -> Vec<usize> {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Uc));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    let cqn = b.rcq.cqn;
    let mut events = Vec::new();
    for arrived in 0..=solicited.len() {
        for &(index, solicited_only) in arms(arrived) {
            world.act(1, |nic, _, now, fx| match solicited_only {
                true => nic.arm_cq_solicited(now, cqn, index, fx),
                false => nic.arm_cq(now, cqn, index, fx),
            });
            world.run();
        }
        events.extend(world.cq_events.drain(..).map(|_| arrived));
        if let Some(&solicited) = solicited.get(arrived) {
            world.receive(&mut b.qp, &[(target, 64, key)]);
            let flags = if solicited { 0x0A } else { 0x08 };
            world.post(&mut a.qp, &Wqe::new(wqe_opcode::SEND).inline(&[1]).flags(flags));
            world.run();
            events.extend(world.cq_events.drain(..).map(|_| arrived + 1));
        }
    }
    events
}

#[test]
fn a_solicited_arm_overlooks_unsolicited_entries_that_are_there() {
    // Armed behind two entries that nobody has consumed.
    let late = |arrived| if arrived == 2 { &[(0, true)][..] } else { &[] };
    assert_eq!(events_of(&[false, false, false], late), [], "neither they nor a third count");
    assert_eq!(events_of(&[false, false, true], late), [3], "the one that was waited for");
    assert_eq!(events_of(&[true, false, false], late), [2], "one that is there already");
    assert_eq!(events_of(&[false, true, false], late), [2]);
    let consumed = |arrived| if arrived == 2 { &[(1, true)][..] } else { &[] };
    assert_eq!(events_of(&[true, false, false], consumed), [], "one that has been consumed");
    assert_eq!(events_of(&[true, false, true], consumed), [3]);
    let any = |arrived| if arrived == 2 { &[(0, false)][..] } else { &[] };
    assert_eq!(events_of(&[false, false, false], any), [2], "any entry");
}

#[test]
fn of_two_arms_the_one_for_any_entry_holds() {
    for arms in [&[(0, false), (0, true)][..], &[(0, true), (0, false)]] {
        let both = move |arrived| if arrived == 0 { arms } else { &[] };
        assert_eq!(events_of(&[false, true], both), [1], "{arms:?}");
    }
    let twice = |arrived| if arrived == 0 { &[(0, true), (0, true)][..] } else { &[] };
    assert_eq!(events_of(&[false, true, true], twice), [2]);
}

#[test]
fn an_error_that_is_there_counts_as_solicited() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair(&Setup::new(Transport::Rc));
    let (target, key) = world.buffer(1, b.qp.pd, Space::Host, 64);
    world.receive(&mut b.qp, &[(target, 4, key)]);
    world.post(&mut a.qp, &Wqe::new(wqe_opcode::SEND).inline(&[1; 8]));
    world.run();
    let (sender, receiver) = (a.scq.cqn, b.rcq.cqn);
    for (node, cqn) in [(0, sender), (1, receiver)] {
        world.act(node, |nic, _, now, fx| nic.arm_cq_solicited(now, cqn, 0, fx));
    }
    world.run();
    assert_eq!(
        world.cq_events.iter().map(|(_, node, event)| (*node, event.cqn)).collect::<Vec<_>>(),
        [(0, sender), (1, receiver)]
    );
    assert_ne!((world.poll_all(&mut a.scq)[0].syndrome, world.poll_all(&mut b.rcq)[0].syndrome), (0, 0));
}

/// Times in microseconds of the events that a queue raises with one arming; its completions are 10 us from one another.
fn moderated(count: u16, period_us: u16, completions: usize) -> Vec<u64> {
    let mut world = World::new();
    let (mut qp, cq) = nops(&mut world, 6, |_| {});
    let cqn = cq.cqn;
    world.nics[0].moderate_cq(cqn, Moderation { count, period_us }).expect("it is there");
    world.act(0, |nic, _, now, fx| nic.arm_cq(now, cqn, 0, fx));
    world.run_until(1_000_000);
    for _ in 0..completions {
        world.post(&mut qp, &Wqe::new(NOP));
        let next_us = world.now_ps / 1_000_000 + 10;
        world.run_until(next_us * 1_000_000);
    }
    world.run();
    world.cq_events.iter().map(|(at_ps, ..)| at_ps / 1_000_000).collect()
}

#[test]
fn a_moderated_queue_raises_its_event_after_a_count_or_a_period() {
    let at_once = moderated(0, 0, 5);
    let [first_us] = at_once[..] else { panic!("{at_once:?}: one arming is one event") };
    assert_eq!(moderated(1, 500, 5), at_once, "the first is enough");
    let fourth = moderated(4, 0, 5);
    assert!(fourth.len() == 1 && fourth[0] >= first_us + 30, "{fourth:?}");
    assert_eq!(moderated(9, 0, 5), [], "too few, and no period");
    for count in [0, 9] {
        assert_eq!(moderated(count, 25, 5), [first_us + 25], "count {count}");
    }
    assert_eq!(moderated(4, 500, 5), fourth, "the count comes first");
    assert_eq!(moderated(0, 500, 1), [first_us + 500]);
    let mut world = World::new();
    assert!(world.nics[0].moderate_cq(5, Moderation::default()).is_err());
}

/// A completion with an event of its own begins the period like any other.
#[test]
fn an_entry_that_asks_for_an_event_does_not_end_moderation() {
    let mut world = World::new();
    let (mut qp, cq) = nops(&mut world, 6, |_| {});
    let cqn = cq.cqn;
    world.nics[0].moderate_cq(cqn, Moderation { count: 0, period_us: 25 }).expect("it is there");
    world.act(0, |nic, _, now, fx| nic.arm_cq(now, cqn, 0, fx));
    world.run_until(1_000_000);
    world.post(&mut qp, &Wqe::new(NOP).flags(0x0C));
    world.run();
    let times: Vec<u64> = world.cq_events.iter().map(|(at_ps, ..)| *at_ps).collect();
    assert!(times.len() == 2 && times[1] == times[0] + 25_000_000, "{times:?}");
}

#[test]
fn an_overrun_fails_the_queue_and_its_queue_pairs() {
    let mut world = World::new();
    let (mut qp, mut cq) = nops(&mut world, 2, |_| {});
    for _ in 0..4 {
        complete(&mut world, &mut qp);
    }
    assert_eq!(world.async_events, [], "a full ring is not an overrun");
    complete(&mut world, &mut qp);
    let cqn = cq.cqn;
    assert_eq!(
        world.async_events,
        [
            (0, AsyncEvent::CqError { cqn, cause: FailureCause::Overrun { consumer_index: 0, depth: 4 } }),
            (0, AsyncEvent::QpFatal { qpn: qp.qpn, cause: FailureCause::CompletionQueue { cqn } }),
        ]
    );
    assert_eq!(world.state(&qp), QpState::Err);
    assert_eq!(world.nics[0].counters().cq_overruns, 1);
    assert_eq!(world.nics[0].cq_failed(cqn), Ok(true));
    assert_eq!(world.poll_all(&mut cq).len(), 4, "what was written stays as it was");
}

#[test]
fn the_doorbell_record_makes_room() {
    let mut world = World::new();
    let (mut qp, mut cq) = nops(&mut world, 2, |_| {});
    for _ in 0..40 {
        complete(&mut world, &mut qp);
        assert!(world.poll(&mut cq).is_some());
    }
    assert_eq!(world.async_events, []);
}

#[test]
fn overrun_can_be_ignored() {
    let mut world = World::new();
    let (mut qp, cq) = nops(&mut world, 2, |attr| attr.overrun_ignore = true);
    for _ in 0..6 {
        complete(&mut world, &mut qp);
    }
    assert_eq!(world.async_events, []);
    assert_eq!(raw_owner_bits(&mut world, &cq), [1, 1, 0, 0], "the second lap has begun");
}

#[test]
fn unreachable_rings_fail_their_queue() {
    let mut world = World::new();
    let (mut qp, cq) = nops(&mut world, 2, |attr| attr.ring.addr = 0x40);
    complete(&mut world, &mut qp);
    let cause = FailureCause::QueueMemory { addr: 0x40 };
    assert_eq!(world.async_events[0], (0, AsyncEvent::CqError { cqn: cq.cqn, cause }));
    assert_eq!(world.state(&qp), QpState::Err);
}

#[test]
fn doorbells_of_unknown_queues_are_reported() {
    let mut world = World::new();
    world.act(0, |nic, _, now, fx| {
        nic.arm_cq(now, 5, 0, fx);
        nic.ring_sq(now, 6, 0, fx);
    });
    let unknown = |number| (0, AsyncEvent::UnknownQueue { number });
    assert_eq!(world.async_events, [unknown(5), unknown(6)]);
    assert_eq!(world.nics[0].counters().bad_doorbells, 2);
}
