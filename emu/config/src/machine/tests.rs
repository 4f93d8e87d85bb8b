use std::path::Path;

use emu_machine::{Config, DrivenFrom, LinkConfig, MemoryModel, Wiring};

use super::*;
use crate::{GeneratorTable, Memory, Priorities, ReflectorTable, ReplayTable, TapTable};

fn read(text: &str) -> Machine {
    Machine::parse(text).unwrap()
}

fn refused(machine: &Machine) -> String {
    machine.config().unwrap_err().to_string()
}

fn network(config: &Config) -> &emu_machine::NetworkConfig {
    let Wiring::Network(network) = &config.wiring else { panic!("a cable: {config:?}") };
    network
}

#[test]
fn a_file_says_what_the_machine_is() {
    let text = "cards = 1\nfirst_card = 7\ndetect_races = true\n\
                [link]\ngbit_per_s = 400\nlatency_ps = 1\ndrop_ppm = 2\nseed = 3\n[memory]\nmodel = \"weak\"\nseed = \
        4\n";
    let config = read(text).config().unwrap();
    assert_eq!((config.cards, config.first_card, config.detect_races), (1, 7, true));
    let link = LinkConfig { gbit_per_s: 400, latency_ps: 1, drop_ppm: 2, seed: 3 };
    assert_eq!(config.wiring, Wiring::Cable(link));
    assert_eq!(config.memory, MemoryModel::weak(4));
    assert_eq!(read("").config().unwrap(), Config::default());
    assert_eq!(read("command_ps = 5000").config().unwrap().command_ps, 5000);
    assert!(read("command_ps = 1000000000000").config().is_ok());
    for command_ps in [1_000_000_000_001, i64::MAX as u64] {
        let refused = read(&format!("command_ps = {command_ps}")).config();
        assert!(matches!(refused, Err(ConfigError::CommandTooLong { command_ps: reported }) if reported == command_ps));
    }
    assert_eq!(read("stuck_ms = 20").config().unwrap().stuck_ps, 20_000_000_000);
    for stuck_ms in [0, 100_001, i64::MAX as u64] {
        let refused = read(&format!("stuck_ms = {stuck_ms}")).config();
        assert!(matches!(refused, Err(ConfigError::Stuck { stuck_ms: reported }) if reported == stuck_ms));
    }
    let joined = read("command_ps = 5000\n[bridge]\nlisten = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"");
    assert!(matches!(joined.config(), Err(ConfigError::CommandTime { command_ps: 5000 })));
    assert!(read("arm_functions = true").config().unwrap().arm_functions);
    let on_arm = read("driven_from = \"arm\"").config().unwrap();
    assert_eq!(on_arm, Config { driven_from: DrivenFrom::Arm, ..Config::default() });
    let timed = read("[timing]\nmodel = \"m2\"\nset = [\"loads.l3_cycles=115\"]").config().unwrap();
    assert!(timed.model_name().contains("with loads.l3_cycles = 115"), "{}", timed.model_name());
}

/// Every field, with a value that is not its default.
fn full() -> Machine {
    Machine {
        cards: Some(3),
        first_card: Some(4),
        seed: Some(5),
        loss_ppm: Some(6),
        detect_races: true,
        uc_multicast: true,
        arm_functions: true,
        command_ps: Some(12),
        heap_mib: Some(14),
        dpa_units: Some([17, 18]),
        generator: Some(GeneratorTable { frames: 15, ..GeneratorTable::default() }),
        reflector: Some(ReflectorTable { delay_ns: 16 }),
        replay: Some(ReplayTable { capture: "z.pcapng".into() }),
        tap: Some(TapTable { interface: "fc0".to_owned() }),
        stuck_ms: Some(13),
        driven_from: DrivenFrom::Arm,
        capture: Some("x.pcapng".into()),
        link: LinkTable { gbit_per_s: Some(7), latency_ps: Some(8), drop_ppm: Some(9), seed: Some(10) },
        network: Some(NetworkTable {
            topology: Some("switch-8".to_owned()),
            faults: Some("y.toml".into()),
            priorities: Some(Priorities::Weighted),
            hosts: vec!["0".to_owned(), "h5".to_owned()],
        }),
        memory: MemoryTable { model: Memory::Weak, seed: Some(11) },
        timing: Timing { model: Some("m2".to_owned()), set: vec!["loads.l3_cycles=115".to_owned()] },
        bridge: Some(BridgeTable::on_this_computer(1, 3, 2, 7471)),
        share: Some(ShareTable { socket: "card.sock".into(), clients: 3 }),
        attach: Some(AttachTable { socket: "other.sock".into(), timeout_ms: Some(13) }),
        job: Some(JobTable { first_port: 14, peer_timeout_ms: Some(15) }),
    }
}

#[test]
fn a_description_is_the_same_when_its_file_is_read() {
    for machine in [Machine::default(), full(), read("driven_from = \"arm\"")] {
        let text = toml::to_string(&machine).unwrap();
        assert_eq!(read(&text), machine, "{text}");
    }
}

#[test]
fn seed_and_loss_of_the_machine_reach_all_that_has_none_of_its_own() {
    let machine = Machine { seed: Some(9), loss_ppm: Some(20), memory: Memory::Weak.into(), ..Machine::default() };
    let config = machine.config().unwrap();
    assert_eq!(config.wiring, Wiring::Cable(LinkConfig { drop_ppm: 20, seed: 9, ..LinkConfig::default() }));
    assert_eq!(config.memory, MemoryModel::weak(9));
    let config = machine.config_of(4).unwrap();
    let faults = &network(&config).faults;
    // One on the way to each host.
    assert_eq!((faults.seed, faults.faults.len()), (9, 4));
    let own = "seed = 9\nloss_ppm = 20\n[link]\ndrop_ppm = 1\nseed = 2\n[memory]\nmodel = \"weak\"\nseed = 3";
    let config = read(own).config().unwrap();
    assert_eq!(config.wiring, Wiring::Cable(LinkConfig { drop_ppm: 1, seed: 2, ..LinkConfig::default() }));
    assert_eq!(config.memory, MemoryModel::weak(3));
}

#[test]
fn a_network_brings_as_many_cards_as_it_has_hosts() {
    let file = read("[network]\ntopology = \"switch-5\"");
    assert_eq!(file.config().unwrap().cards, 5);
    assert_eq!(Machine { cards: Some(3), ..file.clone() }.config().unwrap().cards, 3);
    assert_eq!(file.config_of_pair().unwrap().cards, 2);
    assert_eq!(file.config_of(4).unwrap().cards, 4);
    assert_eq!(Machine { cards: Some(5), ..file.clone() }.config_of(4).unwrap().cards, 5, "as many as it says");
    let bridge = Some(BridgeTable::on_this_computer(0, 2, 1, 7471));
    assert_eq!(Machine { bridge: bridge.clone(), ..file }.config().unwrap().cards, 4, "the last host is the others'");
    assert_eq!(Machine { bridge, ..Machine::default() }.config().unwrap().cards, 1);
}

#[test]
fn cards_are_at_the_hosts_that_are_named() {
    let machine = read("[network]\ntopology = \"switch-8\"\nhosts = [\"6\", \"h2\"]");
    let config = machine.config().unwrap();
    assert_eq!((config.cards, &network(&config).hosts[..]), (2, &[6, 2][..]));
    let text = Machine { cards: Some(3), ..machine }.config().unwrap_err().to_string();
    assert!(text.contains("2 hosts are named for 3 cards"), "{text}");
}

#[test]
fn faults_and_queues_happen_to_a_cable_too() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("faults.toml");
    std::fs::write(&script, "[[fault]]\nlink = \"*\"\nfault = { drop = { ppm = 3000 } }\n").unwrap();
    let mut machine = read("seed = 7\n[link]\ngbit_per_s = 100");
    machine.network_mut().faults = Some(script);
    machine.network_mut().priorities = Some(Priorities::Shared);
    let config = machine.config().unwrap();
    let network = network(&config);
    assert_eq!((config.cards, network.topology.name()), (2, "back-to-back"));
    assert_eq!((network.faults.faults.len(), network.faults.seed), (1, 7));
    assert_eq!(network.topology.switching().priorities, Priorities::Shared);
    assert_eq!(network.topology.cables()[0].config.rate.gbit_per_s(), 100);
}

#[test]
fn what_is_no_file_is_refused_by_key() {
    for (text, named) in [
        ("crads = 1", vec!["crads", "cards"]),
        ("[link]\nrate = 1", vec!["rate", "gbit_per_s"]),
        ("cards = \"two\"", vec!["cards", "two"]),
        ("driven_from = \"dpu\"", vec!["dpu", "host", "arm"]),
        ("[bridge]\npeer = \"127.0.0.1:0\"", vec!["listen"]),
        ("[memory]\nmodel = \"odd\"", vec!["odd", "strong", "weak"]),
        ("[memory]\nseed = 1", vec!["model"]),
        ("[network]\npriorities = \"odd\"", vec!["odd", "shared", "strict", "weighted"]),
        ("[timing]\nchange = 1", vec!["change", "set"]),
    ] {
        let error = Machine::parse(text).unwrap_err().to_string();
        assert!(named.iter().all(|name| error.contains(name)), "{text:?}: {error}");
    }
    assert!(Machine::read(Path::new("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
}

#[test]
fn what_cannot_be_is_named_with_the_limit_and_what_would_do() {
    for (text, named) in [
        ("[link]\ngbit_per_s = 0\n[network]\npriorities = \"strict\"", vec!["0 Gbit/s"]),
        ("[network]\ntopology = \"ring-4\"", vec!["topology ring-4", "switch-N", "description file"]),
        ("[network]\ntopology = \"/no/such/net.toml\"", vec!["topology `/no/such/net.toml` cannot be read"]),
        ("[network]\nfaults = \"/no/such.toml\"", vec!["fault script `/no/such.toml` cannot be read"]),
        ("[network]\ntopology = \"switch-4\"\n[link]\nseed = 1", vec!["exclude one another"]),
        (
            "cards = 5\n[network]\ntopology = \"switch-4\"",
            vec!["5 cards", "\"switch-4\"", "4 hosts", "larger topology"],
        ),
        ("[network]\nhosts = [\"0\", \"1\"]", vec!["hosts 0,1", "name a topology"]),
        ("[network]\ntopology = \"switch-4\"\nhosts = [\"0\", \"4\"]", vec!["no host \"4\"", "0 to 3", "\"h3\""]),
        ("[timing]\nmodel = \"m9\"", vec!["model m9", "m2"]),
        ("loss_ppm = 1010000", vec!["101 %", "0 to 100"]),
    ] {
        let error = refused(&read(text));
        assert!(named.iter().all(|name| error.contains(name)), "{text:?}: {error}");
    }
    let few = Machine { cards: Some(2), ..Machine::default() }.config_of(4).unwrap_err().to_string();
    assert!(few.contains("2 cards") && few.contains("4 are needed"), "{few}");
    let cable = read("[link]\ngbit_per_s = 100").config_of(4).unwrap_err().to_string();
    assert!(cable.contains("[link] is the cable of two cards"), "{cable}");
    let joined = read("[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"");
    assert!(joined.config_of_pair().unwrap_err().to_string().contains("leave it out"));
}

#[test]
fn values_have_the_same_name_everywhere() {
    let key = |value: Result<toml::Value, toml::ser::Error>| value.unwrap().as_str().map(str::to_owned);
    for memory in Memory::ALL {
        assert_eq!(key(toml::Value::try_from(memory)).as_deref(), Some(memory.name()));
    }
    for driven_from in DrivenFrom::ALL {
        assert_eq!(key(toml::Value::try_from(driven_from)).as_deref(), Some(driven_from.name()));
    }
    for priorities in Priorities::ALL {
        assert_eq!(key(toml::Value::try_from(priorities)).as_deref(), Some(priorities.name()));
    }
}
