//! Frames per second of wall time through one switch, and through the fat tree of 188 hosts.
//!
//! `cargo bench -p emu-fabric --bench switch -- [--json] [--quick]`. Each figure is the best of several runs, for the
//! disturbances of a shared machine only ever slow a run down. The caller's event queue is part of what is measured,
//! its handling of deliveries is not: they are counted and dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use emu_fabric::{
    Destination, Fabric, FabricEffects, FlowControl, Frame, LinkConfig, Network, NetworkFrame, SwitchConfig, Topology,
};

/// As large as a packet of the emulated card, and sharing its payload like one.
#[derive(Clone)]
struct Packet {
    to: Destination,
    flow: u64,
    _headers: [u8; 96],
    payload: Arc<[u8]>,
}

impl Frame for Packet {
    fn wire_bytes(&self) -> u64 {
        self.payload.len() as u64 + 94
    }
}

impl NetworkFrame for Packet {
    fn destination(&self) -> Destination {
        self.to
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn payload_bytes(&self) -> u64 {
        self.payload.len() as u64
    }
    fn corrupt(&mut self, _seed: u64) {}
}

const GROUP: u128 = 1;

#[derive(Clone, Copy, PartialEq)]
enum Cast {
    Unicast,
    Multicast,
}

struct Figure {
    topology: String,
    flow_control: &'static str,
    cast: &'static str,
    ports: usize,
    frames_per_s: f64,
    copies_per_frame: f64,
    ns_per_frame: f64,
    ns_per_copy: f64,
}

/// Wall seconds for `frames` frames, and copies delivered.
fn run(topology: &Topology, cast: Cast, frames: u64) -> (f64, u64) {
    let hosts = topology.hosts().len();
    let mut network = Network::new(topology);
    for host in 0..hosts {
        network.join(GROUP, host).expect("a root above all hosts");
    }
    let payload: Arc<[u8]> = vec![0; 4096].into();
    let frame = |from: usize| {
        let to = match cast {
            Cast::Unicast => Destination::Host((from + 1) % hosts),
            Cast::Multicast => Destination::Group(GROUP),
        };
        Packet { to, flow: from as u64, _headers: [0; 96], payload: Arc::clone(&payload) }
    };
    let interval_ps = topology.host_link(0).expect("a host").rate.serialisation_ps(frame(0).wire_bytes());
    // All hosts send at once, or one after the other: each link is busy all the time.
    let at_once = if cast == Cast::Unicast { hosts as u64 } else { 1 };

    let mut fx = FabricEffects::default();
    let mut timers: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut copies = 0;
    let begin = Instant::now();
    let mut now_ps = 0;
    let mut sent = 0;
    loop {
        let more = sent < frames;
        while let Some(&Reverse(at_ps)) = timers.peek() {
            if more && at_ps >= now_ps {
                break;
            }
            timers.pop();
            network.handle_timer(at_ps, &mut fx);
            timers.extend(fx.timers_ps.drain(..).map(Reverse));
            copies += fx.deliveries.drain(..).count() as u64;
        }
        if !more {
            break;
        }
        for _ in 0..at_once {
            let from = (sent % hosts as u64) as usize;
            network.transmit(now_ps, from, frame(from), &mut fx).expect("a port");
            sent += 1;
        }
        timers.extend(fx.timers_ps.drain(..).map(Reverse));
        copies += fx.deliveries.drain(..).count() as u64;
        now_ps += interval_ps;
    }
    let wall_s = begin.elapsed().as_secs_f64();
    assert_eq!(network.in_flight(), 0);
    let expected = if cast == Cast::Unicast { sent } else { sent * (hosts as u64 - 1) };
    assert_eq!(copies, expected, "every copy arrives");
    (wall_s / sent as f64, copies / sent)
}

fn main() -> ExitCode {
    let mut json = false;
    let mut work = 4_000_000;
    let mut repeats = 5;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            "--quick" => (work, repeats) = (200_000, 2),
            // What cargo passes to every benchmark.
            "--bench" => {}
            other => {
                eprintln!("unknown argument {other}; known are --json and --quick");
                return ExitCode::from(2);
            }
        }
    }

    let mut figures = Vec::new();
    for (flow_control, label) in [(FlowControl::Lossless, "lossless"), (FlowControl::TailDrop, "tail-drop")] {
        for name in ["switch-2", "switch-32", "switch-188", "fat-tree-188"] {
            let switching = SwitchConfig { flow_control, ..SwitchConfig::default() };
            let topology = Topology::named(name)
                .and_then(|topology| topology.with_links(LinkConfig::default()))
                .and_then(|topology| topology.with_switching(switching))
                .expect("a preset");
            let ports = topology.hosts().len();
            for (cast, cast_label) in [(Cast::Unicast, "unicast"), (Cast::Multicast, "multicast")] {
                let frames = if cast == Cast::Unicast { work } else { work / (ports as u64 - 1).max(1) };
                let mut best = f64::INFINITY;
                let mut copies = 0;
                for _ in 0..repeats {
                    let (s_per_frame, delivered) = run(&topology, cast, frames);
                    (best, copies) = (best.min(s_per_frame), delivered);
                }
                figures.push(Figure {
                    topology: name.to_owned(),
                    flow_control: label,
                    cast: cast_label,
                    ports,
                    frames_per_s: 1.0 / best,
                    copies_per_frame: copies as f64,
                    ns_per_frame: best * 1e9,
                    ns_per_copy: best * 1e9 / copies as f64,
                });
            }
        }
    }

    if json {
        let row = |f: &Figure| {
            format!(
                "  {{\"kind\": \"measured\", \"topology\": \"{}\", \"ports\": \
                 {}, \"flow_control\": \"{}\", \"cast\": \"{}\", \"frames_per_wall_s\": {:.0}, \"copies_per_frame\": \
                 {}, \"ns_per_frame\": {:.1}, \"ns_per_copy\": {:.1}}}",
                f.topology,
                f.ports,
                f.flow_control,
                f.cast,
                f.frames_per_s,
                f.copies_per_frame,
                f.ns_per_frame,
                f.ns_per_copy
            )
        };
        println!("[\n{}\n]", figures.iter().map(row).collect::<Vec<_>>().join(",\n"));
        return ExitCode::SUCCESS;
    }
    println!("measured: frames of 4 KiB per second of wall time, one thread, best of {repeats}");
    println!(
        "{:<13} {:<10} {:<10} {:>12} {:>8} {:>10} {:>9}",
        "topology", "queues", "cast", "frames/s", "copies", "ns/frame", "ns/copy"
    );
    for f in &figures {
        println!(
            "{:<13} {:<10} {:<10} {:>12.0} {:>8} {:>10.1} {:>9.1}",
            f.topology, f.flow_control, f.cast, f.frames_per_s, f.copies_per_frame, f.ns_per_frame, f.ns_per_copy
        );
    }
    for label in ["lossless", "tail-drop"] {
        let cost = |name: &str| {
            let found = figures.iter().find(|f| f.topology == name && f.flow_control == label && f.cast == "multicast");
            found.map_or(f64::NAN, |f| f.ns_per_copy)
        };
        let ratio = cost("switch-188") / cost("switch-2");
        println!(
            "{label}: a copy costs {ratio:.2} times as much with 187 copies of a frame as with one: {}",
            if ratio <= 1.0 {
                "no worse than with the number of copies"
            } else {
                "worse than with the number of copies"
            }
        );
    }
    ExitCode::SUCCESS
}
