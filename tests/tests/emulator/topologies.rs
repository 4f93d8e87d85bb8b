//! Whole runs over switches and fat trees, with faults: the bytes of the sender and the same run every time.

use std::path::PathBuf;

use emu_config::{Machine, Memory, NetworkTable};
use emu_machine::with_world;
use emu_provider::emulated;
use flexcast::{Endpoint, Firmware, Transport};
use flexcast_lab::machine::{MachineReport, report};
use flexcast_lab::tput::plan::Params;
use flexcast_tests::image_bytes;
use flexcast_tests::run::{Outcome, tput, tput_on};

const BYTES: u64 = 1_000_003;

fn params(transport: Transport) -> Params {
    Params { transport, ..Params::default() }
}

fn on(machine: &Machine, transport: Transport) -> (Outcome, MachineReport) {
    let config = machine.config_of_pair().expect("a valid machine");
    let outcome = tput_on(config, params(transport), BYTES).expect("the run succeeds");
    let (seen, races) = report(machine).expect("this thread's machine");
    assert!(races.is_empty(), "{}", races[0]);
    assert!(outcome.report.digest_ok, "{:?}", outcome.report);
    (outcome, seen)
}

fn network(topology: &str, cards: &[&str]) -> Machine {
    let hosts = cards.iter().map(ToString::to_string).collect();
    let network = NetworkTable { hosts, ..NetworkTable::of(topology) };
    Machine { network: Some(network), seed: Some(1), ..Machine::default() }
}

/// A file of the test's own.
fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a folder of our own");
    path
}

#[test]
fn every_topology_brings_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let racks = "name = \"racks\"\n[links]\ngbit_per_s = 100\n[[switch]]\nname = \"a\"\nports = 4\n[[switch]]\nname \
        = \"b\"\nports = 4\n\
                 [[host]]\nname = \"x\"\nto = \"a\"\n[[host]]\nname = \"y\"\nto = \"b\"\n[[link]]\na = \"a\"\nb \
        = \"b\"\n";
    let racks = file(&folder, "racks.toml", racks);
    for transport in [Transport::UcUnicast, Transport::Ud] {
        let plain = tput(params(transport), BYTES).expect("the run succeeds");
        let machines = [
            network("back-to-back", &[]),
            network("switch-8", &["0", "5"]),
            network("fat-tree-188", &["3", "h187"]),
            network(&racks.to_string_lossy(), &["y", "x"]),
        ];
        for machine in machines {
            let (outcome, seen) = on(&machine, transport);
            assert_eq!(outcome.report.sha256, plain.report.sha256, "{seen}");
            assert_eq!((outcome.report.recovered_chunks, seen.lost_frames), (0, 0), "{seen}");
            let words = [&outcome.report.device.cqes, &plain.report.device.cqes];
            assert_eq!(words[0], words[1], "{seen}");
            assert_eq!(on(&machine, transport), (outcome, seen), "the same again");
        }
    }
    let (_, seen) = on(&network(&racks.to_string_lossy(), &["y", "x"]), Transport::UcUnicast);
    assert_eq!(seen.topology, "racks");
    assert_eq!(seen.cards, ["y", "x"]);
}

/// What a script breaks is fetched, and every byte is right.
#[test]
fn faults_cost_chunks_and_never_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let everything = "seed = 7\n[[fault]]\nlink = \"*\"\nfault = { drop = { ppm = 3000 } }\n[[fault]]\nlink = \"*\"\n\
                      fault = { corrupt = { ppm = 5000 } }\n[[fault]]\nnode = \"h1\"\nfault = { duplicate = { ppm = \
        20000 } }\n\
                      [[fault]]\nlink = \"h0-switch\"\nat_ps = 20000000\nuntil_ps = 30000000\nfault = \"pause\"\n\
                      [[fault]]\nlink = \"*\"\nfault = { reorder = { ppm = 2000, behind = 3 } }\n";
    let script = file(&folder, "everything.toml", everything);
    for transport in [Transport::UcUnicast, Transport::Ud] {
        let mut machine = network("switch-4", &[]);
        machine.network_mut().faults = Some(script.clone());
        let (outcome, seen) = on(&machine, transport);
        assert!(outcome.report.recovered_chunks > 0, "{seen}");
        assert!(seen.lost_frames > 0 && seen.corrupted_frames > 0 && seen.duplicated_frames > 0, "{seen}");
        let dropped = with_world(|world| world.card(0).map(|card| card.nic.counters().icrc_drops)).expect("a machine");
        assert!(dropped.expect("card 0") > 0, "corrupt packets reach the card and go no further");
        assert_eq!((seen.faults, seen.seed), (5, 7), "{seen}");
        assert_eq!(on(&machine, transport), (outcome.clone(), seen), "the same again");

        // A script with a seed keeps it; one without takes the run's.
        let mut other = Machine { seed: Some(2), ..machine };
        assert_eq!(on(&other, transport).0.trace_hash, outcome.trace_hash);
        let unseeded = file(&folder, "unseeded.toml", &everything.replace("seed = 7\n", ""));
        other.network_mut().faults = Some(unseeded);
        let (again, seen) = on(&other, transport);
        assert_eq!(seen.seed, 2);
        assert_ne!(again.trace_hash, outcome.trace_hash);
    }
}

/// Losses in percent are of the whole way, over whatever topology.
#[test]
fn losses_do_not_add_up_over_links() {
    for topology in [None, Some("back-to-back"), Some("switch-8"), Some("fat-tree-188")] {
        let network = topology.map(NetworkTable::of);
        let machine = Machine { network, loss_ppm: Some(20_000), seed: Some(3), ..Machine::default() };
        let (_, seen) = on(&machine, Transport::UcUnicast);
        assert_eq!(seen.faults, 0);
        let lost = seen.lost_frames;
        assert!((1..=12).contains(&lost), "2 % of 245 chunks, but {lost} frames are lost on {topology:?}");
    }
}

#[test]
fn weak_memory_and_the_race_detector_are_asked_for_by_name() {
    for transport in [Transport::UcUnicast, Transport::Ud] {
        let watched = Machine { memory: Memory::Weak.into(), detect_races: true, ..network("switch-4", &[]) };
        let (weak, seen) = on(&watched, transport);
        assert_eq!((seen.memory, seen.races), (Memory::Weak, Some(0)));
        let text = seen.to_string();
        assert!(
            text.contains("switch-4") && text.contains("weak memory, seed 1") && text.contains("no races"),
            "{text}"
        );
        let (strong, seen) = on(&network("switch-4", &[]), transport);
        assert_eq!(seen.races, None);
        assert_eq!(strong.report.sha256, weak.report.sha256);
        assert_ne!(strong.trace_hash, weak.trace_hash);
    }
}

#[test]
fn cards_report_the_rate_of_their_links() {
    let folder = tempfile::tempdir().expect("a folder");
    let slow = "name = \"slow\"\n[links]\ngbit_per_s = 30\n[[switch]]\nname = \"a\"\nports = 4\n\
                [[host]]\nname = \"x\"\nto = \"a\"\n[[host]]\nname = \"y\"\nto = \"a\"\n";
    let slow = file(&folder, "slow.toml", slow);
    let elf = image_bytes("allgather");
    // 30 Gbit/s has no code: what is reported is not above it.
    for (topology, rate) in [("back-to-back", 200), ("fat-tree-188", 56), (&slow.to_string_lossy(), 25)] {
        let provider = emulated(network(topology, &[]).config_of_pair().expect("a valid machine")).expect("a machine");
        let card =
            Endpoint::open(&provider, "mlx5_0", Firmware { name: "allgather", elf: &elf }).expect("the card opens");
        assert_eq!(card.device().expect("an RDMA device").port().link_gbit_per_s, rate, "{topology}");
    }
}
