//! Sums that switches keep on their way to one host: contents, bytes on the links, and what does not add up.

#![allow(missing_docs)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use emu_fabric::{
    Destination, Fabric, FabricEffects, FatTree, Forwarding, Frame, LinkConfig, Network, NetworkFrame, Rate,
    SwitchConfig, Topology,
};
use proptest::prelude::*;

const GROUP: u128 = 0xff0e_0000_0000_0000_0000_0000_0000_0001;
const N: u64 = 4096;

/// A contribution: a number, and who has added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    to: Destination,
    value: u64,
    from: Vec<usize>,
}

impl Frame for Part {
    fn wire_bytes(&self) -> u64 {
        N + 100
    }
}

impl NetworkFrame for Part {
    fn destination(&self) -> Destination {
        self.to
    }
    fn flow(&self) -> u64 {
        0
    }
    fn payload_bytes(&self) -> u64 {
        N
    }
    fn add(&mut self, other: &Self) {
        self.value += other.value;
        self.from.extend(&other.from);
    }
    fn corrupt(&mut self, _: u64) {
        self.value = 0;
    }
}

/// Sends each at its time and gives what arrived: time, host, frame.
fn run(network: &mut Network<Part>, sends: Vec<(u64, usize, Part)>) -> Vec<(u64, usize, Part)> {
    let mut queue = BinaryHeap::new();
    let mut parts = BTreeMap::new();
    for (number, (at_ps, host, part)) in sends.into_iter().enumerate() {
        queue.push(Reverse((at_ps, number)));
        parts.insert(number, (host, part));
    }
    let (mut fx, mut arrivals, mut timers) = (FabricEffects::default(), Vec::new(), usize::MAX / 2);
    while let Some(Reverse((now_ps, number))) = queue.pop() {
        match parts.remove(&number) {
            Some((host, part)) => network.transmit(now_ps, host, part, &mut fx).unwrap(),
            None => network.handle_timer(now_ps, &mut fx),
        }
        for at_ps in fx.timers_ps.drain(..) {
            timers += 1;
            queue.push(Reverse((at_ps, timers)));
        }
        arrivals.extend(fx.deliveries.drain(..).map(|delivery| (delivery.at_ps, delivery.port, delivery.frame)));
    }
    arrivals
}

fn part(from: usize, to: usize, tag: u64) -> Part {
    Part { to: Destination::Sum { group: GROUP, to, tag }, value: 1 << (from % 48), from: vec![from] }
}

fn joined(topology: &Topology, members: impl IntoIterator<Item = usize>) -> Network<Part> {
    let mut network = Network::new(topology);
    members.into_iter().for_each(|host| network.join(GROUP, host).unwrap());
    network
}

#[test]
fn a_sum_crosses_every_edge_of_the_tree_once_on_188_hosts() {
    let topology = Topology::named("fat-tree-188").unwrap();
    for to in [0, 17, 187] {
        let mut network = joined(&topology, 0..188);
        let others = || (0..188).filter(|host| *host != to);
        let arrived = run(&mut network, others().map(|from| (0, from, part(from, to, 7))).collect());
        let [(_, host, sum)] = arrived.as_slice() else { panic!("{} frames arrived", arrived.len()) };
        let mut from = sum.from.clone();
        from.sort_unstable();
        assert_eq!((*host, from), (to, others().collect::<Vec<_>>()), "everyone once");
        assert_eq!(sum.value, others().map(|from| 1 << (from % 48)).sum::<u64>());
        // As a multicast the other way: 200 links, 212 ports of switches.
        let totals = network.totals();
        assert_eq!((totals.switches.payload_bytes(), totals.link_traversals()), (212 * N, 200));
        assert_eq!((network.open_sums(), network.in_flight()), (0, 0));
    }
}

#[test]
fn concurrent_sums_stay_separate_and_may_be_reused() {
    let topology = Topology::named("switch-4").unwrap();
    let mut network = joined(&topology, 0..4);
    let mut sends = Vec::new();
    for round in 0..3 {
        for (to, tag) in [(0, 0), (0, 1), (3, 0)] {
            for from in (0..4).filter(|from| *from != to) {
                sends.push((round * 10_000_000, from, part(from, to, tag)));
            }
        }
    }
    let arrived = run(&mut network, sends);
    assert_eq!(arrived.len(), 9);
    assert!(arrived.iter().all(|(_, to, sum)| sum.from.len() == 3 && !sum.from.contains(to)));
}

#[test]
fn what_cannot_be_added_up_waits_or_is_dropped_and_counted() {
    let topology = Topology::named("switch-4").unwrap();
    let mut network = joined(&topology, 0..3);
    // One of two is missing.
    assert_eq!(run(&mut network, vec![(0, 1, part(1, 0, 5))]), []);
    assert_eq!((network.open_sums(), network.in_flight()), (1, 0));
    // From the host that gets it, and from one that is no member.
    for from in [0, 3] {
        let before = network.totals().switches.drops.no_receiver;
        assert_eq!(run(&mut network, vec![(1 << 39, from, part(from, 0, 6))]), []);
        assert_eq!(network.totals().switches.drops.no_receiver, before + 1, "from {from}");
    }
    // The result for a host that is no member, a host that there is not, a group that nobody joined.
    for to in [
        Destination::Sum { group: GROUP, to: 3, tag: 0 },
        Destination::Sum { group: GROUP, to: 99, tag: 0 },
        Destination::Sum { group: 1, to: 0, tag: 0 },
    ] {
        let before = network.totals().switches.drops.no_receiver;
        assert_eq!(run(&mut network, vec![(1 << 40, 1, Part { to, ..part(1, 0, 0) })]), []);
        assert_eq!(network.totals().switches.drops.no_receiver, before + 1, "{to:?}");
    }
    assert_eq!((network.open_sums(), network.in_flight()), (1, 0));
}

proptest! {
    /// Any members of any tree, in any order: one frame arrives, which has everybody once.
    #[test]
    fn everybody_is_added_once(
        (levels, half, hosts) in (2..=3u32, 2..=4u32, 2..=12usize),
        members in proptest::collection::btree_set(0usize..12, 2..12),
        order in any::<[u16; 12]>(),
        cut_through: bool,
        to in any::<prop::sample::Index>(),
    ) {
        let forwarding = if cut_through { Forwarding::CutThrough } else { Forwarding::StoreAndForward };
        let switching = SwitchConfig { forwarding, ..SwitchConfig::default() };
        let link = LinkConfig { rate: Rate::GBPS_200, latency_ps: 500_000 };
        let tree = FatTree { levels, radix: 2 * half, hosts, oversubscription: 1, leaves: None };
        let Ok(topology) = tree.build("small", link).and_then(|tree| tree.with_switching(switching)) else {
            return Err(TestCaseError::reject("no such tree"));
        };
        let members: Vec<usize> = members.into_iter().filter(|host| *host < hosts).collect();
        prop_assume!(members.len() > 1);
        let to = members[to.index(members.len())];
        let mut network = joined(&topology, members.iter().copied());
        let others = || members.iter().copied().filter(|host| *host != to);
        let sends = others().map(|from| (u64::from(order[from]) * 1000, from, part(from, to, 0))).collect();
        let arrived = run(&mut network, sends);
        prop_assert_eq!(arrived.len(), 1);
        let mut from = arrived[0].2.from.clone();
        from.sort_unstable();
        prop_assert_eq!((arrived[0].1, from), (to, others().collect::<Vec<_>>()));
        prop_assert_eq!((network.open_sums(), network.in_flight()), (0, 0));
    }
}
