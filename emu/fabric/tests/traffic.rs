//! Traffic of collective operations, counted at the ports of fat trees, against closed forms.

#![allow(missing_docs)]

use crate::common;
use common::{Driver, Note};
use emu_fabric::{
    Destination, End, Fabric, FabricEffects, FatTree, FlowControl, Forwarding, LinkConfig, Network, Node, PortCounters,
    Rate, Routing, SwitchConfig, Topology, TopologyBuilder,
};

const N: u64 = 4096;
const GROUP: u128 = 0xff0e_0000_0000_0000_0000_0000_0000_0001;

fn driver(topology: &Topology) -> Driver {
    let mut network = Network::new(topology);
    for host in 0..topology.hosts().len() {
        network.join(GROUP, host).unwrap();
    }
    Driver::new(network)
}

/// Sends each pair's bytes at once and gives what the switches' ports counted, and the times a link was crossed.
fn unicast(topology: &Topology, pairs: &[(usize, usize, u64)]) -> (u64, u64) {
    let mut driver = driver(topology);
    for (id, &(from, to, bytes)) in pairs.iter().enumerate() {
        driver.send(0, Note::new(id as u64, from, Destination::Host(to), bytes));
    }
    driver.run();
    assert_eq!(driver.arrivals.len(), pairs.len());
    let totals = driver.network.totals();
    (totals.switches.payload_bytes(), totals.link_traversals())
}

fn multicast(topology: &Topology, root: usize) -> (u64, u64) {
    let mut driver = driver(topology);
    driver.send(0, Note::new(0, root, Destination::Group(GROUP), N));
    driver.run();
    let mut hosts: Vec<usize> = driver.arrivals.iter().map(|arrival| arrival.host).collect();
    hosts.sort_unstable();
    let others: Vec<usize> = (0..topology.hosts().len()).filter(|&host| host != root).collect();
    assert_eq!(hosts, others, "one copy for every host but the sender");
    let totals = driver.network.totals();
    (totals.switches.payload_bytes(), totals.link_traversals())
}

fn ring_step(ranks: usize, host_of: impl Fn(usize) -> usize) -> Vec<(usize, usize, u64)> {
    (0..ranks).map(|rank| (host_of(rank), host_of((rank + 1) % ranks), N)).collect()
}

#[test]
fn a_multicast_crosses_every_edge_of_its_tree_once_on_188_hosts() {
    let topology = Topology::named("fat-tree-188").unwrap();
    assert_eq!((topology.hosts().len(), topology.switches().len()), (188, 18));
    assert!(topology.switches().iter().all(|switch| switch.ports == 36));
    for root in 0..188 {
        // P + L links, or P + 2 L ports of switches.
        assert_eq!(multicast(&topology, root), (212 * N, 200), "root {root}");
    }
}

/// Whatever else crosses the network, in another priority: the bytes of each are counted separately, on every port.
#[test]
fn priorities_are_counted_separately() {
    let topology = Topology::named("fat-tree-188").unwrap();
    let mut driver = driver(&topology);
    driver.send(0, Note::new(0, 17, Destination::Group(GROUP), N));
    for (id, (from, to, _)) in ring_step(188, |rank| rank).into_iter().enumerate() {
        driver.send(7 * id as u64, Note { priority: 5, ..Note::new(1 + id as u64, from, Destination::Host(to), 64) });
        // Priorities have three bits.
        driver.send(9 * id as u64, Note { priority: 8 + 3, ..Note::new(200, from, Destination::Host(to), 10) });
    }
    driver.run();
    let totals = driver.network.totals();
    let of = |counters: PortCounters| [0, 3, 5].map(|priority| counters.priority_payload_bytes(priority));
    assert_eq!(of(totals.switches), [212 * N, 424 * 10, 424 * 64]);
    assert_eq!(of(totals.hosts), [188 * N, 2 * 188 * 10, 2 * 188 * 64]);
    assert_eq!(totals.switches.payload_bytes(), 212 * N + 424 * 74, "and together");
    assert_eq!(totals.switches.priority_payload_bytes(8), 0, "there is none");
    for host in 0..188 {
        let port = driver.network.counters(host);
        assert_eq!(port.tx_priority_payload_bytes.iter().sum::<u64>(), port.tx_payload_bytes);
        assert_eq!(port.rx_priority_payload_bytes.iter().sum::<u64>(), port.rx_payload_bytes);
        assert_eq!(port.rx_priority_payload_bytes, [if host == 17 { 0 } else { N }, 0, 0, 10, 0, 64, 0, 0]);
    }
}

#[test]
fn a_ring_allgather_takes_twice_the_multicast_less_one_part_in_p_half() {
    let topology = Topology::named("fat-tree-188").unwrap();
    let (step, traversals) = unicast(&topology, &ring_step(188, |rank| rank));
    assert_eq!((step, traversals), (424 * N, 400));
    // P - 1 steps of the ring against P multicasts: exactly 2 - 2/P.
    let (ring, multicast) = (187 * step, 188 * 212 * N);
    assert_eq!(ring * 188, multicast * (2 * 188 - 2));
    assert_eq!(format!("{:.3}", ring as f64 / multicast as f64), "1.989");

    // Neighbours at different leaves: rank r on the (r / 12)-th host of leaf r mod 12.
    let mut by_leaf: Vec<(usize, usize)> = (0..188).map(|host| (topology.switch_of(host).unwrap(), host)).collect();
    by_leaf.sort_unstable();
    let mut strided = Vec::new();
    for position in 0..16 {
        for leaf in 0..12 {
            let here = by_leaf.iter().filter(|(switch, _)| *switch == leaf);
            strided.extend(here.map(|(_, host)| *host).nth(position));
        }
    }
    assert_eq!(strided.len(), 188);
    let (step, _) = unicast(&topology, &ring_step(188, |rank| strided[rank]));
    assert_eq!(format!("{:.2}", 187.0 * step as f64 / multicast as f64), "5.29");
}

/// Edges of the k-nomial tree with root 0.
fn knomial(ranks: usize, k: usize) -> Vec<(usize, usize, u64)> {
    let parent = |rank: usize| {
        let mut weight = 1;
        while (rank / weight).is_multiple_of(k) {
            weight *= k;
        }
        rank - rank / weight % k * weight
    };
    (1..ranks).map(|rank| (parent(rank), rank, N)).collect()
}

#[test]
fn broadcast_trees_have_the_published_ratios_to_multicast() {
    let topology = Topology::named("fat-tree-188").unwrap();
    let ratio = |pairs: &[(usize, usize, u64)]| {
        assert_eq!(pairs.len(), 187);
        format!("{:.2}", unicast(&topology, pairs).0 as f64 / (212 * N) as f64)
    };
    let chain: Vec<_> = (1..188).map(|rank| (rank - 1, rank, N)).collect();
    let heap: Vec<_> = (1..188).map(|rank| ((rank - 1) / 2, rank, N)).collect();
    assert_eq!(ratio(&chain), "1.97");
    assert_eq!(ratio(&knomial(188, 2)), "2.20");
    assert_eq!(ratio(&knomial(188, 4)), "2.31");
    assert_eq!(ratio(&heap), "5.01");

    // Binomial scatter of 188 parts, then a ring of them; a part is 64 bytes.
    let part = 64;
    let low = |rank: usize| 1 << rank.trailing_zeros();
    let scatter: Vec<_> =
        (1..188).map(|rank| (rank - low(rank), rank, part * low(rank).min(188 - rank) as u64)).collect();
    let ring: Vec<_> = ring_step(188, |rank| rank).into_iter().map(|(from, to, _)| (from, to, part)).collect();
    let bytes = unicast(&topology, &scatter).0 + 187 * unicast(&topology, &ring).0;
    assert_eq!(format!("{:.2}", bytes as f64 / (212 * 188 * part) as f64), "2.06");
}

#[test]
fn three_levels_of_1024_hosts_have_the_published_link_traversals() {
    let topology = Topology::named("fat-tree-1024").unwrap();
    let count = |prefix: &str| topology.switches().iter().filter(|switch| switch.name.starts_with(prefix)).count();
    assert_eq!((count("leaf"), count("agg"), count("core")), (64, 64, 32));
    for root in [0, 511, 1023] {
        // P + E + Q.
        assert_eq!(multicast(&topology, root).1, 1092);
    }
    let (_, traversals) = unicast(&topology, &ring_step(1024, |rank| rank));
    assert_eq!((traversals, 1023 * traversals, 1024 * 1092), (2184, 2_234_232, 1_118_208));
    // One to all: 2, 4 and 6 links to the same leaf, pod and tree.
    let linear: Vec<_> = (1..1024).map(|to| (0, to, N)).collect();
    assert_eq!(unicast(&topology, &linear).1, 5598);
    let doubling: Vec<_> = (0..10).map(|bit| (0, 1 << bit, N << bit)).collect();
    let big = SwitchConfig { buffer_bytes: 4 << 20, ..SwitchConfig::default() };
    let topology = topology.with_switching(big).unwrap();
    let mut driver = Driver::new(Network::new(&topology));
    for &(from, to, bytes) in &doubling {
        driver.send(0, Note::new(0, from, Destination::Host(to), bytes));
    }
    driver.run();
    let totals = driver.network.totals();
    assert_eq!(totals.switches.tx_payload_bytes + totals.hosts.tx_payload_bytes, 5598 * N);
}

#[test]
fn a_multicast_climbs_no_further_than_its_members() {
    let topology = Topology::named("fat-tree-1024").unwrap();
    let mut network = Network::new(&topology);
    // A leaf has 16 hosts, a pod 256.
    for (group, members) in [(1, vec![0, 1, 15]), (2, vec![0, 16, 255]), (3, vec![0, 256])] {
        for member in members {
            network.join(group, member).unwrap();
        }
    }
    let mut driver = Driver::new(network);
    let mut traversals = Vec::new();
    for group in 1..=3 {
        let before = driver.network.totals().link_traversals();
        driver.send(u64::from(group as u32) * 1_000_000_000, Note::new(0, 0, Destination::Group(group), N));
        driver.run();
        traversals.push(driver.network.totals().link_traversals() - before);
    }
    assert_eq!(traversals, [3, 1 + 1 + 2 + 2, 6]);
}

#[test]
fn a_sender_outside_the_group_and_changes_of_membership() {
    let topology = FatTree::NODES_188.build("t", LinkConfig::default()).unwrap();
    let mut network = Network::new(&topology);
    for host in [3, 40, 41, 187] {
        network.join(7, host).unwrap();
    }
    network.join(7, 40).unwrap();
    network.leave(7, 41).unwrap();
    network.leave(7, 40).unwrap();
    assert_eq!(network.members(7).collect::<Vec<_>>(), [3, 40, 187], "40 joined twice and left once");
    let mut driver = Driver::new(network);
    driver.send(0, Note::new(0, 100, Destination::Group(7), N));
    driver.run();
    let mut hosts: Vec<usize> = driver.arrivals.drain(..).map(|arrival| arrival.host).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [3, 40, 187]);

    for host in [3, 40] {
        driver.network.leave(7, host).unwrap();
    }
    driver.send(1_000_000_000, Note::new(0, 187, Destination::Group(7), N));
    driver.send(1_000_000_000, Note::new(0, 1, Destination::Group(8), N));
    driver.send(1_000_000_000, Note::new(0, 2, Destination::Address(5), N));
    driver.run();
    assert!(driver.arrivals.is_empty());
    assert_eq!(driver.network.totals().switches.drops.no_receiver, 3);
    assert_eq!(
        driver.network.leave(7, 3).unwrap_err().to_string(),
        "host 3 is not in group 0x7: join before leaving, and leave as often as joined"
    );
    assert_eq!(
        driver.network.join(7, 188).unwrap_err().to_string(),
        "there is no host 188: the network has hosts 0 to 187"
    );
}

#[test]
fn an_idle_switch_takes_its_latency_and_its_way_of_forwarding() {
    let latency_ps = |forwarding, bytes| {
        let link = LinkConfig { latency_ps: 1_000, ..LinkConfig::default() };
        let switching = SwitchConfig { forwarding, latency_ps: 7_000, ..SwitchConfig::default() };
        let topology = Topology::one_switch(3, link).unwrap().with_switching(switching).unwrap();
        let mut driver = Driver::new(Network::new(&topology));
        driver.send(500, Note::new(0, 0, Destination::Host(2), bytes - common::HEADERS));
        driver.run();
        driver.arrivals[0].at_ps - 500
    };
    assert_eq!(latency_ps(Forwarding::StoreAndForward, 1_000), 2 * 40_000 + 2 * 1_000 + 7_000);
    assert_eq!(latency_ps(Forwarding::CutThrough, 1_000), 64 * 40 + 40_000 + 2 * 1_000 + 7_000);
}

#[test]
fn a_faster_link_waits_for_the_whole_frame() {
    let mut builder = TopologyBuilder::new("two-rates");
    let (slow, fast) =
        (LinkConfig { rate: Rate::from_gbps(100).unwrap(), latency_ps: 0 }, Rate::from_gbps(400).unwrap());
    builder.host("a").host("b").switch("s", 2).link("a", "s", slow).link("b", "s", LinkConfig { rate: fast, ..slow });
    builder.switching(SwitchConfig { latency_ps: 7, ..SwitchConfig::default() });
    let topology = builder.build().unwrap();
    for (from, expected_ps) in [(0, 80_000 + 7 + 20_000), (1, 64 * 20 + 7 + 80_000)] {
        let mut driver = Driver::new(Network::new(&topology));
        driver.send(0, Note::new(0, from, Destination::Host(1 - from), 900));
        driver.run();
        assert_eq!(driver.arrivals[0].at_ps, expected_ps);
    }
}

#[test]
fn flows_and_groups_spread_over_all_ways_and_addresses_lead_to_hosts() {
    let topology = Topology::named("fat-tree-188").unwrap();
    let mut network = Network::new(&topology);
    for group in 0..100 {
        network.join(group, 0).unwrap();
        network.join(group, 187).unwrap();
    }
    network.set_address(0x0200_0000_00bb, 187).unwrap();
    assert!(network.set_address(1, 188).is_err());
    let mut driver = Driver::new(network);
    for id in 0..500 {
        let to = if id < 400 { Destination::Address(0x0200_0000_00bb) } else { Destination::Group((id - 400).into()) };
        driver.send(id * 1_000_000, Note { flow: id, ..Note::new(id, 0, to, 100) });
    }
    driver.run();
    assert!(driver.arrivals.iter().all(|arrival| arrival.host == 187));
    assert_eq!(driver.arrivals.len(), 500);
    let leaf = topology.switch_of(0).unwrap();
    let uplinks: Vec<u64> =
        (0..36).map(|port| driver.network.port_counters(End { node: Node::Switch(leaf), port }).tx_frames).collect();
    assert_eq!(uplinks.iter().filter(|frames| **frames > 0).count(), 18, "{uplinks:?}");
    assert!(uplinks.iter().all(|frames| *frames < 60), "{uplinks:?}");
}

#[test]
fn timers_are_no_more_than_events() {
    // Room for all of them: nobody waits for credit, and the host's port is not full.
    let switching = SwitchConfig { buffer_bytes: 1 << 20, ..SwitchConfig::default() };
    let topology = Topology::named("switch-2").unwrap().with_switching(switching).unwrap();
    let mut driver = Driver::new(Network::new(&topology));
    for id in 0..100 {
        driver.send(0, Note::new(id, 0, Destination::Host(1), N / 4));
    }
    driver.run();
    assert!(driver.timers <= 100, "{} timers for 100 frames through one switch", driver.timers);
}

#[test]
fn a_caller_that_is_late_changes_nothing() {
    let topology = Topology::named("switch-2").unwrap();
    let run = |late: bool| {
        let mut network = Network::new(&topology);
        let mut fx = FabricEffects::default();
        network.transmit(0, 0, Note::new(0, 0, Destination::Host(1), N), &mut fx).unwrap();
        if !late {
            network.handle_timer(fx.timers_ps[0], &mut fx);
        }
        network.transmit(50_000_000, 0, Note::new(1, 0, Destination::Host(1), N), &mut fx).unwrap();
        assert_eq!(fx.deliveries.len(), 1, "the first frame is through when the second leaves");
        network.handle_timer(100_000_000, &mut fx);
        network.handle_timer(100_000_000, &mut fx);
        fx.deliveries
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn frames_that_fit_no_buffer_and_ports_that_are_not_there_are_errors() {
    let switching = SwitchConfig { buffer_bytes: 1000, ..SwitchConfig::default() };
    let topology = Topology::named("switch-2").unwrap().with_switching(switching).unwrap();
    let mut network = Network::new(&topology);
    let mut fx = FabricEffects::default();
    let mut send = |port, bytes| network.transmit(0, port, Note::new(0, 0, Destination::Host(1), bytes), &mut fx);
    assert_eq!(
        send(0, 901).unwrap_err().to_string(),
        "a frame of 1001 bytes does not fit a switch buffer of 1000: raise buffer_bytes"
    );
    assert_eq!(send(2, 1).unwrap_err().to_string(), "there is no port 2: the link has ports 0 to 1");
    assert_eq!(send(0, 900), Ok(()));
    assert_eq!(network.port_counters(End { node: Node::Switch(0), port: 9 }), PortCounters::default());
    assert_eq!(network.switch_counters(1), PortCounters::default());
}

#[test]
fn adaptive_routing_uses_every_uplink_and_hashing_one_a_flow() {
    let used = |routing| {
        let tree = FatTree { levels: 2, radix: 8, hosts: 16, oversubscription: 1, leaves: None };
        let switching = SwitchConfig { routing, ..SwitchConfig::default() };
        let topology = tree.build("t", LinkConfig::default()).unwrap().with_switching(switching).unwrap();
        let mut driver = Driver::new(Network::new(&topology));
        // Four hosts of one leaf send to the four of another, all in one flow.
        for id in 0..200 {
            let from = (id % 4) as usize;
            driver.send(0, Note { flow: 9, ..Note::new(id, from, Destination::Host(4 + from), N) });
        }
        driver.run();
        assert_eq!(driver.arrivals.len(), 200);
        let spines = topology.switches().iter().enumerate().filter(|(_, switch)| switch.name.starts_with("spine"));
        let frames: Vec<u64> = spines.map(|(at, _)| driver.network.switch_counters(at).rx_frames).collect();
        (frames, driver.arrivals.last().unwrap().at_ps)
    };
    let (adaptive, fast) = used(Routing::Adaptive);
    let (hashed, slow) = used(Routing::Ecmp);
    assert!(adaptive.iter().all(|frames| *frames > 0), "{adaptive:?}");
    assert_eq!(hashed.iter().filter(|frames| **frames > 0).count(), 1, "{hashed:?}");
    assert!(slow > 3 * fast, "four flows' worth on one link: {slow} against {fast}");
}

#[test]
fn incast_drops_at_a_full_queue_or_holds_back_the_senders() {
    let run = |flow_control| {
        let switching = SwitchConfig { flow_control, buffer_bytes: 10 * (N + 100), ..SwitchConfig::default() };
        let topology = Topology::named("switch-9").unwrap().with_switching(switching).unwrap();
        let mut driver = Driver::new(Network::new(&topology));
        for id in 0..800 {
            driver.send(0, Note::new(id, 1 + (id % 8) as usize, Destination::Host(0), N));
        }
        driver.run();
        assert_eq!(driver.network.in_flight(), 0);
        assert!(driver.timers <= 2 * 800, "{} timers: one at most for a frame and one for its credit", driver.timers);
        (driver.arrivals.len() as u64, driver.network.totals().switches)
    };
    let (arrived, switches) = run(FlowControl::Lossless);
    assert_eq!((arrived, switches.drops.total()), (800, 0));
    let (arrived, switches) = run(FlowControl::TailDrop);
    assert_eq!(arrived + switches.drops.queue_full, 800);
    assert!(switches.drops.queue_full > 600, "{}", switches.drops.queue_full);
    assert_eq!(switches.queue_high_water_bytes, 10 * (N + 100));
}
