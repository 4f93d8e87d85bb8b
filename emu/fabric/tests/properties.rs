//! Properties of any traffic on any fat tree.

#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use crate::common;
use common::{Driver, HEADERS, Note};
use emu_fabric::{
    Destination, Fabric, FatTree, Fault, FaultEvent, FaultScript, FlowControl, Forwarding, LinkConfig, Network, Rate,
    Routing, SwitchConfig, Topology,
};
use proptest::prelude::*;

fn trees() -> impl Strategy<Value = Topology> {
    let switching = (any::<bool>(), any::<bool>(), any::<bool>(), 0..400_000_u64, 4400..40_000_u64, any::<u64>());
    let tree = (2..=3_u32, 2..=4_u32, 2..=24_usize, 1..=2_u32, 0..500_000_u64);
    (switching, tree).prop_filter_map(
        "no such tree",
        |(switching, (levels, half, hosts, oversubscription, latency_ps))| {
            let (cut, lossless, adaptive, switch_latency_ps, buffer_bytes, hash_seed) = switching;
            let switching = SwitchConfig {
                forwarding: if cut { Forwarding::CutThrough } else { Forwarding::StoreAndForward },
                flow_control: if lossless { FlowControl::Lossless } else { FlowControl::TailDrop },
                routing: if adaptive { Routing::Adaptive } else { Routing::Ecmp },
                latency_ps: switch_latency_ps,
                buffer_bytes,
                hash_seed,
                ..SwitchConfig::default()
            };
            let tree = FatTree { levels, radix: 2 * half, hosts, oversubscription, leaves: None };
            let link = LinkConfig { rate: Rate::from_gbps(100).unwrap(), latency_ps };
            tree.build("t", link).and_then(|topology| topology.with_switching(switching)).ok()
        },
    )
}

/// Sender, receiver or group, payload bytes, time.
type Sends = Vec<(usize, usize, u64, u64)>;

fn sends() -> impl Strategy<Value = Sends> {
    prop::collection::vec((0..1000_usize, 0..1300_usize, 1..=4096_u64, 0..3_000_000_u64), 1..250)
}

/// Members of group g: hosts whose bit is set in a pattern.
fn members(hosts: usize, group: u128) -> BTreeSet<usize> {
    (0..hosts).filter(|host| (0x9E37_79B9_97F4_A7C1_u64 >> ((host + group as usize * 7) % 61)) & 1 == 1).collect()
}

/// Runs the sends; one in four is a multicast to one of three groups.
fn run(topology: &Topology, sends: &Sends, script: &FaultScript) -> (Driver, Vec<Note>) {
    let hosts = topology.hosts().len();
    let mut network = Network::with_faults(topology, script).unwrap();
    for group in 0..3 {
        for host in members(hosts, group) {
            network.join(group, host).unwrap();
        }
    }
    let mut driver = Driver::new(network);
    let mut notes = Vec::new();
    let mut last_ps = vec![0; hosts];
    for (id, &(from, to, bytes, at_ps)) in sends.iter().enumerate() {
        let from = from % hosts;
        let destination = if to < 1000 { Destination::Host(to % hosts) } else { Destination::Group(to as u128 % 3) };
        let note = Note::new(id as u64, from, destination, bytes);
        last_ps[from] = at_ps.max(last_ps[from]);
        driver.send(last_ps[from], note.clone());
        notes.push(note);
    }
    driver.run();
    (driver, notes)
}

fn receivers(hosts: usize, note: &Note) -> BTreeSet<usize> {
    let mut to = match note.to {
        Destination::Host(host) => BTreeSet::from([host]),
        Destination::Group(group) => members(hosts, group),
        Destination::Address(_) | Destination::Sum { .. } => BTreeSet::new(),
    };
    to.remove(&note.from);
    to
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_frame_arrives_once_at_each_receiver_or_is_counted(topology in trees(), sends in sends()) {
        let (mut driver, notes) = run(&topology, &sends, &FaultScript::default());
        let hosts = topology.hosts().len();
        prop_assert_eq!(driver.network.in_flight(), 0, "a deadlock");
        for host in 0..hosts {
            prop_assert_eq!(driver.network.backlog_bytes(u64::MAX, host), 0);
        }
        let mut seen: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for arrival in &driver.arrivals {
            seen.entry(arrival.frame.id).or_default().push(arrival.host);
        }
        let lossless = topology.switching().flow_control == FlowControl::Lossless;
        let (mut expected, mut missing, mut alone, mut multicast) = (0, 0, 0, false);
        for note in &notes {
            let receivers = receivers(hosts, note);
            let mut got = seen.remove(&note.id).unwrap_or_default();
            got.sort_unstable();
            let unique: BTreeSet<usize> = got.iter().copied().collect();
            prop_assert_eq!(unique.len(), got.len(), "a copy too many");
            prop_assert!(unique.is_subset(&receivers), "a stranger got it");
            if lossless {
                prop_assert_eq!(&unique, &receivers);
            }
            expected += receivers.len() as u64;
            let lost = (receivers.len() - unique.len()) as u64;
            missing += lost;
            multicast |= lost > 0 && matches!(note.to, Destination::Group(_));
            alone += u64::from(receivers.is_empty());
        }
        let totals = driver.network.totals();
        prop_assert_eq!(driver.arrivals.len() as u64 + missing, expected);
        prop_assert_eq!(totals.switches.drops.no_receiver, alone);
        // A multicast that is dropped high up is one drop and several missing copies.
        let dropped = totals.switches.drops.queue_full;
        prop_assert!(if multicast { (1..=missing).contains(&dropped) } else { dropped == missing }, "{} {}", dropped, missing);
        // Links lose nothing.
        prop_assert_eq!(totals.link_traversals(), totals.switches.rx_frames + totals.hosts.rx_frames);
    }

    #[test]
    fn flows_stay_in_order_without_adaptive_routing(topology in trees(), sends in sends()) {
        let hashed = SwitchConfig { routing: Routing::Ecmp, ..topology.switching() };
        let topology = topology.with_switching(hashed).unwrap();
        let (driver, notes) = run(&topology, &sends, &FaultScript::default());
        let mut order: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        // Sends of one host at one time leave in the order of the calls, which is that of their ids only per time.
        let mut sent: Vec<Vec<u64>> = vec![Vec::new(); topology.hosts().len()];
        for note in &notes {
            sent[note.from].push(note.id);
        }
        let rank: BTreeMap<u64, usize> =
            sent.iter().flat_map(|ids| ids.iter().enumerate().map(|(rank, id)| (*id, rank))).collect();
        for arrival in &driver.arrivals {
            // A multicast goes its own way: only frames to the same destination are of one flow.
            let Note { from, to, id, .. } = arrival.frame;
            let to = match to {
                Destination::Host(host) => host as u64,
                Destination::Group(group) => 10_000 + group as u64,
                Destination::Address(_) | Destination::Sum { .. } => 0,
            };
            let key = (from as u64, to << 32 | arrival.host as u64);
            let rank = rank[&id] as u64 + 1;
            if let Some(before) = order.insert(key, rank) {
                prop_assert!(before < rank, "frame {} overtook another", id);
            }
        }
    }

    #[test]
    fn no_link_carries_more_than_its_rate(topology in trees(), sends in sends()) {
        let (driver, _) = run(&topology, &sends, &FaultScript::default());
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        for arrival in &driver.arrivals {
            let length_ps = (arrival.frame.bytes + HEADERS) * 80;
            if let Some(before_ps) = last.insert(arrival.host, arrival.at_ps) {
                prop_assert!(before_ps + length_ps <= arrival.at_ps);
            }
        }
        // Inside: no port was busy for longer than the run took. What hosts send to themselves goes no further than the
        // switch.
        let end_ps = driver.end_ps;
        for cable in topology.cables() {
            for end in [cable.a, cable.b] {
                let counters = driver.network.port_counters(end);
                if topology.switching().flow_control == FlowControl::Lossless {
                    prop_assert!(counters.tx_bytes * 80 <= end_ps || counters.tx_frames <= 1);
                }
            }
        }
    }

    #[test]
    fn the_same_run_twice_is_the_same(topology in trees(), sends in sends(), seed in any::<u64>()) {
        let faults = [
            Fault::Drop { ppm: 50_000 },
            Fault::Duplicate { ppm: 50_000 },
            Fault::Reorder { ppm: 50_000, behind: 2 },
            Fault::Delay { extra_ps: 1000, jitter_ps: 100_000 },
            Fault::Corrupt { ppm: 50_000 },
            Fault::BitErrors { rate: 1e-7 },
        ];
        let mut faults: Vec<_> = faults.into_iter().map(FaultEvent::everywhere).collect();
        faults.push(FaultEvent::on("h0-leaf0", Fault::Down).during(1_000_000, 2_000_000));
        faults.push(FaultEvent::on("h1-leaf0", Fault::Pause).during(1_000_000, 2_000_000));
        let script = FaultScript { seed, faults };
        if script.check(&topology).is_err() {
            return Ok(());
        }
        let (first, _) = run(&topology, &sends, &script);
        let (second, _) = run(&topology, &sends, &script);
        prop_assert_eq!(&first.arrivals, &second.arrivals);
        prop_assert_eq!(first.network.totals(), second.network.totals());
        prop_assert_eq!(first.network.in_flight(), 0, "faults made a deadlock");
        let totals = first.network.totals();
        let mut all = totals.switches;
        all += totals.hosts;
        prop_assert_eq!(all.tx_frames + all.duplicated_frames, all.rx_frames + all.drops.on_the_wire());
        for host in 0..topology.hosts().len() {
            prop_assert!(first.network.counters(host).queue_high_water_bytes < 1 << 40);
        }
    }
}
