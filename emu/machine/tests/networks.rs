//! Cards in networks of switches.

use crate::support;
use emu_machine::fabric::{FatTree, LinkConfig as FabricLink, Rate, SwitchConfig, Topology};
use emu_machine::nic::{Gid, Transport};
use emu_machine::{Config, MAX_CARDS, MachineError, NetworkConfig, Wiring, World, address};
use support::wire::{Endpoint, To, pair, pattern, read, rest};

fn on(topology: Topology, cards: usize) -> Config {
    Config { cards, wiring: Wiring::network(topology), ..Config::default() }
}

fn named(name: &str, cards: usize) -> World {
    World::new(on(Topology::named(name).expect("a preset"), cards)).expect("a valid configuration")
}

fn datagram_ends(world: &mut World) -> Vec<Endpoint> {
    let (cards, first) = (world.card_count(), world.config().first_card);
    let mut ends: Vec<Endpoint> = (0..cards).map(|card| Endpoint::new(world, card, Transport::Ud)).collect();
    for end in &mut ends {
        end.connect(world, first, (end.card, 0));
        end.receive(world, 64);
    }
    ends
}

/// Every card sends every other a datagram of its own; gives the trace hash.
fn all_to_all(mut world: World) -> u64 {
    let mut ends = datagram_ends(&mut world);
    let (cards, first) = (ends.len(), world.config().first_card);
    let numbers: Vec<u32> = ends.iter().map(|end| end.qpn).collect();
    for (from, end) in ends.iter_mut().enumerate() {
        for (to, &qpn) in numbers.iter().enumerate().filter(|(to, _)| *to != from) {
            let offset = 512 * to as u64;
            end.source(&world, offset, &pattern(500, (from * cards + to) as u8));
            end.send(&mut world, first, Some(To::Peer(to, qpn)), (offset, 500));
        }
    }
    rest(&mut world);
    for (to, end) in ends.iter_mut().enumerate() {
        assert_eq!(end.arrived(&world).len(), cards - 1);
        assert!(end.sent(&world).iter().all(|done| done.opcode == 0));
        let mut got: Vec<_> = (0..cards as u64 - 1).map(|slot| end.received(&world, slot, 500)).collect();
        let mut expected: Vec<_> =
            (0..cards).filter(|&from| from != to).map(|from| pattern(500, (from * cards + to) as u8)).collect();
        got.sort();
        expected.sort();
        assert!(got == expected, "card {to} has other bytes than were sent to it");
        let counters = world.port_counters(to);
        assert_eq!((counters.rx_frames, counters.tx_frames), (cards as u64 - 1, cards as u64 - 1));
    }
    world.trace_hash()
}

#[test]
fn datagrams_reach_every_card_on_every_topology() {
    let pods = FatTree { levels: 3, radix: 4, hosts: 16, oversubscription: 1, leaves: None };
    let pods = pods.build("pods", FabricLink::default()).expect("a tree");
    for topology in [Topology::named("back-to-back"), Topology::named("switch-9"), Ok(pods)].map(Result::unwrap) {
        let cards = topology.hosts().len();
        let hash = all_to_all(World::new(on(topology.clone(), cards)).unwrap());
        assert_eq!(hash, all_to_all(World::new(on(topology, cards)).unwrap()), "the same again");
    }
}

#[test]
fn what_a_cable_takes_to_a_host_without_a_card_is_lost() {
    let mut world = named("back-to-back", 1);
    let mut ends = datagram_ends(&mut world);
    let first = world.config().first_card;
    ends[0].source(&world, 0, &pattern(500, 1));
    ends[0].send(&mut world, first, Some(To::Peer(1, 77)), (0, 500));
    rest(&mut world);
    assert!(ends[0].sent(&world).iter().all(|done| done.opcode == 0), "it is sent");
    let counters = world.port_counters(0);
    assert_eq!((counters.tx_frames, counters.rx_frames), (1, 0));
}

#[test]
fn numbers_of_cards_may_begin_elsewhere() {
    let config = Config { first_card: 300, ..on(Topology::named("switch-3").unwrap(), 3) };
    let mut world = World::new(config).unwrap();
    assert_eq!(world.card(2).unwrap().nic.address(), address(302));
    assert_eq!(world.card(2).unwrap().nic.address().gid.ipv4(), Some([198, 18, 1, 47]));
    all_to_all(world);
    let mut lone = World::new(Config { cards: 1, first_card: 1, ..Config::default() }).unwrap();
    let mut pair = World::new(Config::default()).unwrap();
    assert_eq!(lone.card(0).unwrap().nic.address(), pair.card(1).unwrap().nic.address());
}

#[test]
fn a_group_reaches_its_members_once_each_and_the_senders_own_inside_the_card() {
    let mut world = named("switch-5", 5);
    let mut ends = datagram_ends(&mut world);
    let group = Gid::from_ipv4([239, 1, 2, 3]);
    // Card 1 has two members, card 4 none; the sender on card 0 is a member itself.
    let mut second = Endpoint::new(&mut world, 1, Transport::Ud);
    second.connect(&mut world, 0, (1, 0));
    second.receive(&world, 4);
    for end in &ends[..4] {
        world.card(end.card).unwrap().nic.attach_multicast(end.qpn, group).unwrap();
    }
    world.card(1).unwrap().nic.attach_multicast(second.qpn, group).unwrap();
    let bytes = pattern(700, 9);
    ends[0].source(&world, 0, &bytes);
    let send = |world: &mut World, end: &mut Endpoint| {
        end.send(world, 0, Some(To::Group(group)), (0, 700));
        rest(world);
    };
    send(&mut world, &mut ends[0]);
    for (card, members) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 0)] {
        assert_eq!(ends[card].arrived(&world).len(), members, "card {card}");
        assert_eq!(world.port_counters(card).rx_frames, u64::from((1..4).contains(&card)), "one copy on each link");
    }
    assert_eq!(second.arrived(&world).len(), 1);
    assert_eq!(second.received(&world, 0, 700), bytes);
    assert_eq!(ends[0].received(&world, 0, 700), bytes);
    assert_eq!(world.card(0).unwrap().nic.counters().loopback_packets, 1);
    let switch = world.network().expect("a network").switch_counters(0);
    assert_eq!((switch.rx_frames, switch.tx_frames), (1, 3), "the switch copies, not the sender");

    // One leaves, one joins, one stays for its other member.
    world.card(2).unwrap().nic.detach_multicast(ends[2].qpn, group).unwrap();
    world.card(1).unwrap().nic.detach_multicast(second.qpn, group).unwrap();
    world.card(4).unwrap().nic.attach_multicast(ends[4].qpn, group).unwrap();
    send(&mut world, &mut ends[0]);
    let arrived: Vec<usize> = ends.iter_mut().map(|end| end.arrived(&world).len()).collect();
    assert_eq!(arrived, [1, 1, 0, 1, 1]);
    assert!(second.arrived(&world).is_empty());

    // A sender need not be a member.
    world.card(0).unwrap().nic.detach_multicast(ends[0].qpn, group).unwrap();
    send(&mut world, &mut ends[0]);
    let arrived: Vec<usize> = ends.iter_mut().map(|end| end.arrived(&world).len()).collect();
    assert_eq!(arrived, [0, 1, 0, 1, 1]);
    for card in [1, 3, 4] {
        world.card(card).unwrap().nic.detach_multicast(ends[card].qpn, group).unwrap();
    }
    send(&mut world, &mut ends[0]);
    assert_eq!(world.network().unwrap().switch_counters(0).drops.no_receiver, 1, "nobody is left");
}

#[test]
fn cards_are_at_the_hosts_they_are_given() {
    let topology = Topology::named("fat-tree-188").unwrap();
    let hops = |hosts: Vec<usize>| {
        let network = NetworkConfig { hosts, ..NetworkConfig::new(topology.clone()) };
        let config = Config { cards: 2, wiring: Wiring::Network(Box::new(network)), ..Config::default() };
        let mut world = World::new(config).unwrap();
        let (mut a, mut b) = pair(&mut world, Transport::Rc);
        b.receive(&world, 1);
        a.source(&world, 0, b"over there");
        a.send(&mut world, 0, None, (0, 10));
        rest(&mut world);
        assert_eq!(b.received(&world, 0, 10), b"over there");
        assert_eq!(a.sent(&world).len(), 1);
        let totals = world.network().unwrap().totals();
        // The message and its acknowledgement.
        assert_eq!((totals.hosts.tx_frames, totals.hosts.rx_frames), (2, 2));
        totals.switches.tx_frames / 2
    };
    assert_eq!(hops(vec![]), 1, "hosts 0 and 1 share a leaf");
    assert_eq!(hops(vec![3, 187]), 3, "leaf, spine, leaf");
}

#[test]
fn ports_run_at_the_rate_of_their_links() {
    let bytes = 400_000_u64;
    let rate = |gbit_per_s: u64, topology: fn(FabricLink) -> Topology| {
        let link = FabricLink { rate: Rate::from_gbps(gbit_per_s).unwrap(), latency_ps: 300_000 };
        let mut world = World::new(on(topology(link), 2)).unwrap();
        let (mut a, mut b) = pair(&mut world, Transport::Uc);
        b.receive(&world, 1);
        a.write(&mut world, b.target(), Some(1), (0, bytes as u32));
        rest(&mut world);
        assert_eq!(b.arrived(&world).len(), 1);
        assert!(read(&world, b.buffer, 16) == read(&world, a.buffer + support::wire::SOURCE, 16));
        let waited = world.port_counters(0).queue_high_water_bytes;
        assert!(waited < 3 * 1200, "the card sends no faster than its link, so {waited} bytes never wait");
        bytes * 8000 / world.now_ps()
    };
    for topology in [|link| Topology::one_switch(2, link).unwrap(), |link| Topology::back_to_back(link).unwrap()] {
        let (slow, fast): (u64, u64) = (rate(56, topology), rate(200, topology));
        assert!((45..56).contains(&slow), "{slow} Gbit/s of payload on 56");
        assert!((100..200).contains(&fast), "{fast} Gbit/s of payload on 200");
    }
}

/// Three cards write to one at once: its link is full, theirs have no credit, and their send engines wait.
#[test]
fn a_port_without_credit_stops_the_send_engine() {
    let run = || {
        let mut world = named("switch-4", 4);
        let mut ends: Vec<(Endpoint, Endpoint)> = Vec::new();
        for card in 1..4 {
            let from = Endpoint::new(&mut world, card, Transport::Uc);
            let mut to = Endpoint::new(&mut world, 0, Transport::Uc);
            from.connect(&mut world, 0, (0, to.qpn));
            to.connect(&mut world, 0, (card, from.qpn));
            to.receive(&world, 8);
            ends.push((from, to));
        }
        for (from, to) in &mut ends {
            from.source(&world, 0, &pattern(1 << 20, from.card as u8));
            for message in 0..8 {
                from.write(&mut world, to.target(), Some(message), (0, 1 << 20));
            }
        }
        rest(&mut world);
        for (from, to) in &mut ends {
            assert_eq!((from.sent(&world).len(), to.arrived(&world).len()), (8, 8));
            assert!(read(&world, to.buffer, 1 << 20) == pattern(1 << 20, from.card as u8));
            let (port, nic) = (world.port_counters(from.card), *world.card(from.card).unwrap().nic.counters());
            assert!(nic.port_holds > 10, "{} holds", nic.port_holds);
            // What the port may hold, and what the engine has begun before it knows.
            assert!(port.queue_high_water_bytes < 256 << 10, "{} of 8 MiB waited", port.queue_high_water_bytes);
            assert_eq!(port.drops.total(), 0);
        }
        let bytes = world.port_counters(0).rx_bytes;
        let least_ps = Rate::GBPS_200.serialisation_ps(bytes);
        assert!(world.now_ps() < least_ps + least_ps / 50, "the receiver's link is hardly ever idle");
        world.trace_hash()
    };
    assert_eq!(run(), run());
}

#[test]
fn what_cannot_be_built_says_why() {
    let refusal = |config: Config| World::new(config).unwrap_err().to_string();
    let switch = |name: &str| Topology::named(name).unwrap();
    assert!(refusal(on(switch("switch-8"), 0)).contains("0 cards"));
    assert!(refusal(on(switch("switch-2048"), 1025)).contains("up to 1024"));
    assert!(refusal(Config { cards: 3, ..Config::default() }).contains("a cable joins 1 or 2"));
    let text = refusal(on(switch("switch-8"), 9));
    assert!(text.contains("card 8") && text.contains("\"switch-8\"") && text.contains("hosts 0 to 7"), "{text}");
    let text = refusal(Config { first_card: 65_534, ..Config::default() });
    assert!(text.contains("65534") && text.contains("begin lower"), "{text}");
    let network = NetworkConfig { hosts: vec![1], ..NetworkConfig::new(switch("switch-8")) };
    let text = refusal(Config { wiring: Wiring::Network(Box::new(network)), ..Config::default() });
    assert!(text.contains("cards 0 and 1 are both to be at host 1"), "{text}");
    let small = SwitchConfig { buffer_bytes: 1000, ..SwitchConfig::default() };
    let config = on(switch("switch-8").with_switching(small).unwrap(), 2);
    assert!(matches!(World::new(config), Err(MachineError::SwitchBuffer { bytes: 1000, .. })));
}

#[test]
fn the_largest_machine_is_built_and_used() {
    let mut world = named("fat-tree-1024", MAX_CARDS);
    let mut from = Endpoint::new(&mut world, 0, Transport::Ud);
    let mut to = Endpoint::new(&mut world, 1023, Transport::Ud);
    from.connect(&mut world, 0, (0, 0));
    to.connect(&mut world, 0, (0, 0));
    to.receive(&world, 1);
    from.source(&world, 0, b"from end to end");
    from.send(&mut world, 0, Some(To::Peer(1023, to.qpn)), (0, 15));
    rest(&mut world);
    assert_eq!(to.arrived(&world).len(), 1);
    assert_eq!(to.received(&world, 0, 15), b"from end to end");
}
