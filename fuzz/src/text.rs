//! Arbitrary text as the files that people write: topologies, fault scripts, machine files, ISA strings.
//!
//! A line of `%%` ends the topology and begins its fault script. Checked: what is refused is refused with a sentence; a
//! topology that is accepted can be printed and is the same when it is read again; and on a network of it, with its
//! faults, a message of a reliable connection ends in one completion, and has arrived if that says so.

use emu_config::Machine;
use emu_fabric::{FaultScript, Topology};
use emu_machine::nic::{Transport, cqe_opcode, wqe_opcode};
use emu_machine::{Config, NetworkConfig, Wiring, World};
use flexcast_isa::{Isa, names};

use crate::fixture::{Fixture, send};

/// Larger networks take longer to build and say no more.
const MOST_HOSTS: usize = 64;
/// Steps of three messages with all their repetitions on a network that holds back, doubles and destroys.
const MAX_STEPS: usize = 100_000;
const SEPARATOR: &str = "\n%%\n";

/// Handles one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Isa::parse(text) {
        Ok(isa) => {
            assert!(names(text).is_ok_and(|mut names| names.all(|name| isa.runs(name))), "it runs what it was made of");
            assert_eq!(Isa::parse(&isa.to_string()), Ok(isa));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Machine::parse(text) {
        Ok(file) => machine(&file),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let (topology, faults) = text.split_once(SEPARATOR).unwrap_or((text, ""));
    let topology = Topology::from_toml(topology);
    let faults = FaultScript::from_toml(faults);
    if let Err(error) = &topology {
        assert!(!error.to_string().is_empty());
    }
    if let Err(error) = &faults {
        assert!(!error.to_string().is_empty());
    }
    if let Ok(topology) = topology {
        let printed = topology.to_toml();
        let again = Topology::from_toml(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(topology, again, "{printed}");
        if let Ok(faults) = faults {
            network(topology, faults);
        }
    }
}

/// A machine of a file that names no other file and no address.
fn machine(file: &Machine) {
    let is_self_contained = file.bridge.is_none() && file.capture.is_none() && file.network.is_none();
    let is_self_contained = is_self_contained && file.timing.model.is_none();
    if !is_self_contained || file.cards.is_some_and(|cards| cards > MOST_HOSTS) {
        return;
    }
    match emu_bridge::make(file) {
        Ok(mut shared) if shared.world.card_count() >= 2 => messages(&mut shared.world),
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A network with its faults.
fn network(topology: Topology, faults: FaultScript) {
    let checked = faults.check(&topology);
    let hosts = topology.hosts().len();
    if !(2..=MOST_HOSTS).contains(&hosts) {
        return;
    }
    let wiring = Wiring::Network(Box::new(NetworkConfig { topology, faults, hosts: Vec::new() }));
    let world = World::new(Config { cards: 2, heap_bytes: 4096, wiring, ..Config::default() });
    let mut world = match world {
        Ok(world) => world,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(checked.is_ok(), "a machine takes only what the check accepts");
    messages(&mut world);
}

/// Messages from card 0 to card 1.
fn messages(world: &mut World) {
    let mut fixture = Fixture::new(world);
    let [mut from, mut to] = fixture.pair(Transport::Rc, 3);
    let source = fixture.buffer(0, from.qp.pd, 1024);
    fixture.write(source.addr, &[0x5A; 1024]);
    for index in 0..3 {
        let target = fixture.buffer(1, to.qp.pd, 1024);
        fixture.receive(&mut to.qp, target);
        for block in send(&from.qp, index, wqe_opcode::SEND, None, (source.addr, 1024, source.key)) {
            fixture.put(&from.qp, index, &block);
        }
        fixture.ring(&from.qp, index + 1);
        fixture.settle(MAX_STEPS);
        let sent = fixture.drain(&mut from.sends);
        assert_eq!(sent.len(), 1, "a message ends in one completion: {sent:?}");
        if sent[0].opcode != cqe_opcode::REQUESTER {
            // What is flushed with it has been seen; a failed connection sends no more.
            return;
        }
        let arrived = fixture.drain(&mut to.receives);
        assert!(matches!(arrived[..], [cqe] if cqe.opcode == cqe_opcode::RESPONDER_SEND), "{arrived:?}");
        assert_eq!(fixture.read::<1024>(target.addr), [0x5A; 1024]);
    }
}

/// A file of each kind, and the faults.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    const RACKS: &str = r#"name = "racks"
[links]
gbit_per_s = 200
latency_ps = 300000
[switching]
forwarding = "cut-through"
flow_control = "lossless"
routing = "ecmp"
[[switch]]
name = "rack0"
ports = 4
[[switch]]
name = "rack1"
ports = 4
[[switch]]
name = "top"
ports = 8
level = 2
[[host]]
name = "a"
count = 2
to = "rack0"
[[host]]
name = "b"
[[link]]
a = "b"
b = "rack1:3"
gbit_per_s = 100
[[link]]
a = "rack0"
b = "top"
count = 2
[[link]]
name = "long"
a = "rack1"
b = "top"
latency_ps = 1
"#;
    let faults = |fault: &str| format!("preset = \"switch-2\"{SEPARATOR}seed = 7\n[[fault]]\nlink = \"*\"\n{fault}\n");
    let text = |text: &str| text.as_bytes().to_vec();
    let fault = |fault: &str| faults(fault).into_bytes();
    vec![
        ("racks", text(RACKS)),
        ("preset", text("preset = \"back-to-back\"\n")),
        ("fat-tree", text("[fat_tree]\nlevels = 2\nradix = 4\nhosts = 4\noversubscription = 1\n")),
        (
            "store",
            text(
                "preset = \"switch-3\"\n[switching]\nforwarding = \"store-and-forward\"\nflow_control \
                 = \"tail-drop\"\nrouting = \"adaptive\"\n",
            ),
        ),
        ("drop", fault("fault = { drop = { ppm = 100000 } }")),
        ("burst", fault("fault = { burst = { ppm = 100000, frames = 3 } }")),
        ("duplicate", fault("fault = { duplicate = { ppm = 500000 } }")),
        ("reorder", fault("fault = { reorder = { ppm = 500000, behind = 3 } }")),
        ("delay", fault("fault = { delay = { extra_ps = 1000000, jitter_ps = 1000000 } }")),
        ("corrupt", fault("direction = \"backward\"\nfault = { corrupt = { ppm = 200000 } }")),
        ("bit-errors", fault("fault = { bit-errors = { rate = 1e-5 } }")),
        ("pause", fault("at_ps = 1\nuntil_ps = 2000000\nfault = \"pause\"")),
        ("down", fault("fault = \"down\"\n[[fault]]\nlink = \"*\"\nat_ps = 9000000\nfault = \"up\"")),
        (
            "machine",
            text(
                "cards = 1\nfirst_card = 1\ndetect_races = true\ncapture = \"x\"\n[link]\ngbit_per_s = \
                 200\n[memory]\nmodel = \"weak\"\nseed = 1\n[bridge]\nlisten = \"127.0.0.1:1\"\npeer \
                 = \"127.0.0.1:2\"\n",
            ),
        ),
        ("cable", text("first_card = 7\n[link]\ngbit_per_s = 1\nlatency_ps = 1000000\ndrop_ppm = 100000\nseed = 3\n")),
        ("isa", text("rv64imac_zbb_zbs")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_accepted() {
        for (name, bytes) in seeds() {
            let text = std::str::from_utf8(&bytes).expect("text");
            match name {
                "isa" => drop(Isa::parse(text).expect(name)),
                "machine" | "cable" => drop(Machine::parse(text).expect(name)),
                _ => {
                    let (topology, faults) = text.split_once(SEPARATOR).unwrap_or((text, ""));
                    let topology = Topology::from_toml(topology).expect(name);
                    FaultScript::from_toml(faults).expect(name).check(&topology).expect(name);
                }
            }
        }
    }
}
