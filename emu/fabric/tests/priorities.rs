//! Queues of their own for priorities: what overtakes what, who gets how much, and what stays as it is.

#![allow(missing_docs)]

use std::collections::BTreeMap;

use crate::common;
use common::{Arrival, Driver, HEADERS, Note};
use emu_fabric::{
    Destination, FatTree, FlowControl, Forwarding, LinkConfig, Network, Priorities, Rate, Routing, SwitchConfig,
    Topology, TopologyBuilder,
};
use proptest::prelude::*;

const LINK: LinkConfig = LinkConfig { rate: Rate::GBPS_200, latency_ps: 300_000 };
const FRAME: u64 = 4096;

fn star(hosts: usize, switching: SwitchConfig) -> Topology {
    Topology::one_switch(hosts, LINK).unwrap().with_switching(switching).unwrap()
}

fn with(priorities: Priorities) -> SwitchConfig {
    SwitchConfig { priorities, ..SwitchConfig::default() }
}

/// Sender, receiver, priority, payload bytes, time.
type Send = (usize, usize, u8, u64, u64);

fn run(topology: &Topology, sends: &[Send]) -> Driver {
    let hosts = topology.hosts().len();
    let mut network = Network::new(topology);
    for host in 0..hosts {
        network.join(1, host).unwrap();
    }
    let mut driver = Driver::new(network);
    for (id, &(from, to, priority, bytes, at_ps)) in sends.iter().enumerate() {
        // The first number that is no host is the group.
        let to = if to == hosts { Destination::Group(1) } else { Destination::Host(to) };
        driver.send(at_ps, Note { priority, ..Note::new(id as u64, from, to, bytes) });
    }
    driver.run();
    driver
}

/// Arrivals in an order that does not depend on which host of one instant was notified first.
fn arrivals(driver: &Driver) -> Vec<(u64, usize, u64)> {
    let mut arrivals: Vec<_> = driver.arrivals.iter().map(|a: &Arrival| (a.frame.id, a.host, a.at_ps)).collect();
    arrivals.sort_unstable();
    arrivals
}

#[test]
fn a_message_overtakes_data_that_waits_at_the_switch_and_in_the_host() {
    // Two hosts send 32 frames each to host 2; then host 0 has one short message for it.
    let mut sends: Vec<Send> = (0..64).map(|number| (number % 2, 2, 0, FRAME, 0)).collect();
    sends.push((0, 2, 3, 32, 1_000_000));
    // There is a second priority from the beginning.
    sends.insert(0, (1, 0, 3, 32, 0));
    let came = |priorities| {
        let driver = run(&star(3, with(priorities)), &sends);
        assert_eq!(driver.arrivals.len(), sends.len());
        driver.arrivals.iter().find(|arrival| arrival.frame.id == 65).unwrap().at_ps - 1_000_000
    };
    let frame_ps = LINK.rate.serialisation_ps(FRAME + HEADERS);
    // Alone it takes two links and a switch; at each port one frame is under way already.
    let alone_ps = 2 * LINK.latency_ps + SwitchConfig::default().latency_ps + 2 * LINK.rate.serialisation_ps(132);
    assert!(came(Priorities::Strict) <= alone_ps + 2 * frame_ps, "{}", came(Priorities::Strict));
    // With the others it is last: when all 64 frames are through.
    assert!(came(Priorities::Shared) > 55 * frame_ps, "{}", came(Priorities::Shared));
    assert!(came(Priorities::Weighted) <= alone_ps + 4 * frame_ps, "{}", came(Priorities::Weighted));
}

#[test]
fn control_with_a_bound_leaves_the_rest_to_data() {
    // Strict: messages that take a twentieth of the link cost data no more than that.
    let frames = 400;
    let data: Vec<Send> = (0..frames).map(|_| (0, 2, 0, FRAME, 0)).collect();
    let frame_ps = LINK.rate.serialisation_ps(FRAME + HEADERS);
    let last = |sends: &[Send]| {
        let driver = run(&star(3, with(Priorities::Strict)), sends);
        assert_eq!(driver.arrivals.len(), sends.len());
        driver.arrivals.iter().filter(|arrival| arrival.frame.priority == 0).map(|arrival| arrival.at_ps).max().unwrap()
    };
    let alone_ps = last(&data);
    let every_ps = 20 * LINK.rate.serialisation_ps(200 + HEADERS);
    let until_ps = frames as u64 * frame_ps * 2;
    let messages = (0..until_ps / every_ps).map(|number| (1, 2, 3, 200, number * every_ps));
    let both: Vec<Send> = data.iter().copied().chain(messages).collect();
    let both_ps = last(&both);
    assert!(both_ps > alone_ps, "the messages do take their part");
    assert!(both_ps * 100 < alone_ps * 106, "{both_ps} ps for data with a twentieth of messages, {alone_ps} alone");
}

#[test]
fn weights_divide_a_link_that_two_priorities_fill_and_strict_does_not() {
    let sends: Vec<Send> = (0..400).flat_map(|_| [(0, 2, 0, FRAME, 0), (1, 2, 3, FRAME, 0)]).collect();
    let first_200 = |switching| {
        let driver = run(&star(3, switching), &sends);
        assert_eq!(driver.arrivals.len(), sends.len(), "nobody starves for ever");
        driver.arrivals.iter().take(200).filter(|arrival| arrival.frame.priority == 3).count()
    };
    let weights = [1, 1, 1, 3, 1, 1, 1, 1];
    let weighted = first_200(SwitchConfig { weights, ..with(Priorities::Weighted) });
    assert!((145..=155).contains(&weighted), "{weighted} of 200 at three quarters");
    let strict = first_200(with(Priorities::Strict));
    assert!(strict > 195, "{strict} of 200");
}

#[test]
fn full_buffers_of_data_hold_no_message_back() {
    // Host 3 takes a tenth of what comes, so that data fills the switch's buffer and the hosts' ports; lossless.
    let mut builder = TopologyBuilder::new("slow");
    builder.switch("s", 8);
    for number in 0..4 {
        let rate = if number == 3 { Rate::from_gbps(20).unwrap() } else { LINK.rate };
        builder.host(format!("h{number}")).link(format!("h{number}"), "s", LinkConfig { rate, ..LINK });
    }
    let built = builder.build().unwrap();
    let mut sends: Vec<Send> = (0..300).map(|number| (number % 2, 3, 0, FRAME, 0)).collect();
    sends.push((0, 2, 3, 32, 20_000_000));
    let took = |priorities| {
        let topology =
            built.clone().with_switching(SwitchConfig { buffer_bytes: 32 << 10, ..with(priorities) }).unwrap();
        let driver = run(&topology, &sends);
        assert_eq!(driver.arrivals.len(), sends.len(), "lossless");
        driver.arrivals.iter().find(|arrival| arrival.frame.id == 300).unwrap().at_ps - 20_000_000
    };
    // It is for another host than the data: only the buffers are shared, and with priorities not even those.
    assert!(took(Priorities::Strict) < 2_000_000, "{}", took(Priorities::Strict));
    assert!(took(Priorities::Shared) > 50_000_000, "{}", took(Priorities::Shared));
}

/// A frame from a slow link has not come far enough for a faster one, while credit for those before it is back: no
/// reason to check for credit again at once, and again.
#[test]
fn credit_that_is_back_is_not_waited_for() {
    let mut builder = TopologyBuilder::new("two");
    builder.switch("s", 8).switch("t", 8).link("s", "t", LINK);
    for (number, (gbit_per_s, switch)) in [(25, "s"), (200, "s"), (200, "t"), (50, "t")].into_iter().enumerate() {
        let rate = Rate::from_gbps(gbit_per_s).unwrap();
        builder.host(format!("h{number}")).link(format!("h{number}"), switch, LinkConfig { rate, ..LINK });
    }
    let built = builder.build().unwrap();
    let sends: Vec<Send> = (0..400)
        .map(|number| (number % 2, 2 + number / 2 % 2, [0, 3, 0, 0, 5][number % 5], 64 + number as u64 * 61 % FRAME, 0))
        .collect();
    for priorities in [Priorities::Strict, Priorities::Weighted] {
        let topology =
            built.clone().with_switching(SwitchConfig { buffer_bytes: 16 << 10, ..with(priorities) }).unwrap();
        let driver = run(&topology, &sends);
        assert_eq!(driver.arrivals.len(), sends.len(), "lossless");
        assert!(driver.timers < 20 * sends.len() as u64, "{} timers", driver.timers);
    }
}

fn switchings() -> impl Strategy<Value = SwitchConfig> {
    let kinds = (any::<bool>(), any::<bool>(), 0..400_000_u64, 4400..40_000_u64, any::<u64>());
    let weights = prop::array::uniform8(1..=100_u32);
    (kinds, weights).prop_map(|((cut, lossless, latency_ps, buffer_bytes, hash_seed), weights)| SwitchConfig {
        forwarding: if cut { Forwarding::CutThrough } else { Forwarding::StoreAndForward },
        flow_control: if lossless { FlowControl::Lossless } else { FlowControl::TailDrop },
        routing: Routing::Ecmp,
        latency_ps,
        buffer_bytes,
        hash_seed,
        weights,
        ..SwitchConfig::default()
    })
}

fn trees() -> impl Strategy<Value = Topology> {
    let tree = (2..=3_u32, 2..=4_u32, 2..=20_usize, 0..500_000_u64);
    let other = prop::option::of((0..20_usize, prop::sample::select(&[10, 25, 200, 400][..])));
    (switchings(), tree, other).prop_filter_map(
        "no such tree",
        |(switching, (levels, half, hosts, latency_ps), other)| {
            let tree = FatTree { levels, radix: 2 * half, hosts, oversubscription: 1, leaves: None };
            let link = LinkConfig { rate: Rate::from_gbps(100).unwrap(), latency_ps };
            let built = tree.build("t", link).and_then(|topology| topology.with_switching(switching));
            match other {
                None => built.ok(),
                Some((host, gbit_per_s)) => {
                    let link = LinkConfig { rate: Rate::from_gbps(gbit_per_s).unwrap(), ..link };
                    built.and_then(|topology| topology.with_host_link(host % hosts, link)).ok()
                }
            }
        },
    )
}

fn as_it_is(topology: &Topology, priorities: Priorities) -> Topology {
    topology.clone().with_switching(SwitchConfig { priorities, ..topology.switching() }).unwrap()
}

/// Sends in order of time, among the hosts of a topology; one in six to the group.
fn sends() -> impl Strategy<Value = Vec<Send>> {
    let send = (0..1000_usize, 0..1200_usize, 0..8_u8, 1..=4096_u64, 0..3_000_000_u64);
    prop::collection::vec(send, 1..200).prop_map(|mut sends| {
        sends.sort_by_key(|send| send.4);
        sends
    })
}

fn among(hosts: usize, sends: &[Send]) -> Vec<Send> {
    let to = |to: usize| if to >= 1000 { hosts } else { to % hosts };
    sends.iter().map(|&(from, at, priority, bytes, ps)| (from % hosts, to(at), priority, bytes, ps)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn one_priority_alone_sees_no_difference(topology in trees(), sends in sends(), priority in 0..8_u8) {
        let sends: Vec<Send> = among(topology.hosts().len(), &sends).into_iter().map(|send| (send.0, send.1, priority, send.3, send.4)).collect();
        let shared = run(&as_it_is(&topology, Priorities::Shared), &sends);
        for priorities in [Priorities::Strict, Priorities::Weighted] {
            let other = run(&as_it_is(&topology, priorities), &sends);
            prop_assert_eq!(&shared.arrivals, &other.arrivals);
            prop_assert_eq!(shared.timers, other.timers, "nor more events");
        }
    }

    #[test]
    fn nothing_is_lost_doubled_or_stuck_and_a_flow_of_a_priority_stays_in_order(topology in trees(), sends in sends()) {
        let hosts = topology.hosts().len();
        let sends = among(hosts, &sends);
        for priorities in [Priorities::Strict, Priorities::Weighted] {
            let topology = as_it_is(&topology, priorities);
            let mut driver = run(&topology, &sends);
            prop_assert_eq!(driver.network.in_flight(), 0, "a deadlock");
            for host in 0..hosts {
                prop_assert_eq!(driver.network.backlog_bytes(u64::MAX, host), 0);
            }
            let mut last: BTreeMap<(usize, usize, bool, u8), u64> = BTreeMap::new();
            let mut seen = BTreeMap::new();
            for arrival in &driver.arrivals {
                let Note { id, from, to, priority, .. } = arrival.frame;
                prop_assert!(seen.insert((id, arrival.host), ()).is_none(), "a copy too many");
                let key = (from, arrival.host, matches!(to, Destination::Group(_)), priority);
                if let Some(before) = last.insert(key, id) {
                    prop_assert!(before < id, "{id} after {before}");
                }
            }
            if topology.switching().flow_control == FlowControl::Lossless {
                let receivers = |send: &Send| if send.1 == hosts { hosts - 1 } else { usize::from(send.0 != send.1) };
                prop_assert_eq!(seen.len(), sends.iter().map(receivers).sum::<usize>());
            }
        }
    }

    #[test]
    fn a_link_is_never_idle_while_something_waits_for_it(sends in sends(), weights in prop::array::uniform8(1..=100_u32)) {
        // Whatever the order, a link to which everything goes ends its work at the same time.
        let switching = SwitchConfig { forwarding: Forwarding::StoreAndForward, weights, buffer_bytes: 4 << 20, ..SwitchConfig::default() };
        let sends: Vec<Send> = sends.iter().enumerate().map(|(host, send)| (1 + host % 24, 0, send.2, send.3, send.4)).collect();
        // One frame of a host at a time, so that all orders begin with the same arrivals at the switch.
        let mut free_ps = [0; 25];
        let sends: Vec<Send> = sends.into_iter().map(|(from, to, priority, bytes, at_ps)| {
            let at_ps = at_ps.max(free_ps[from]);
            free_ps[from] = at_ps + LINK.rate.serialisation_ps(bytes + HEADERS);
            (from, to, priority, bytes, at_ps)
        }).collect();
        let ends = [Priorities::Shared, Priorities::Strict, Priorities::Weighted].map(|priorities| {
            let driver = run(&as_it_is(&star(25, switching), priorities), &sends);
            (driver.arrivals.len(), driver.arrivals.last().unwrap().at_ps)
        });
        prop_assert_eq!(ends[0], ends[1]);
        prop_assert_eq!(ends[0], ends[2]);
    }
}

#[test]
fn frames_of_a_second_priority_change_nothing_for_those_that_came_before() {
    // Two runs that differ in one short message long after all data has arrived.
    let data: Vec<Send> = (0..50).map(|number| (number % 3, 3, 0, FRAME, number as u64 * 1_000)).collect();
    let mut both = data.clone();
    both.push((0, 1, 5, 32, 1_000_000_000));
    let topology = star(4, with(Priorities::Strict));
    assert_eq!(arrivals(&run(&topology, &data)), arrivals(&run(&topology, &both))[..50]);
    // And in one in which it comes long before.
    let mut both: Vec<Send> = vec![(0, 1, 5, 32, 0)];
    both.extend(data.iter().map(|send| (send.0, send.1, send.2, send.3, send.4 + 1_000_000_000)));
    let late: Vec<_> = arrivals(&run(&topology, &both))[1..]
        .iter()
        .map(|(id, host, ps)| (id - 1, *host, ps - 1_000_000_000))
        .collect();
    assert_eq!(arrivals(&run(&topology, &data)), late);
}
