//! Full ports: when a host has to stop, and when it may go on.

#![allow(missing_docs)]

use crate::common;
use common::{HEADERS, Note};
use emu_fabric::{
    Destination, Direction, Fabric, FabricEffects, Fault, FaultEvent, FaultScript, FlowControl, LinkConfig, Network,
    PORT_FREE_BYTES, PORT_FULL_BYTES, PortRoom, Rate, SwitchConfig, Topology,
};

const FRAME: u64 = 4000;

/// A host that always has something to send, and stops when the network reports its port full.
struct Eager {
    network: Network<Note>,
    fx: FabricEffects<Note>,
    now_ps: u64,
    arrived: u64,
    last_ps: u64,
    full: Vec<bool>,
    turns: Vec<(u64, usize, PortRoom)>,
    timers: std::collections::BTreeSet<u64>,
}

impl Eager {
    fn new(network: Network<Note>) -> Self {
        let full = vec![false; Fabric::<Note>::ports(&network)];
        let (fx, timers) = (FabricEffects::default(), Default::default());
        Self { network, fx, now_ps: 0, arrived: 0, last_ps: 0, full, turns: Vec::new(), timers }
    }

    fn carry_out(&mut self) {
        for delivery in self.fx.deliveries.drain(..) {
            self.arrived += 1;
            self.last_ps = self.last_ps.max(delivery.at_ps);
        }
        self.timers.extend(self.fx.timers_ps.drain(..));
        for (port, _, room) in self.fx.rooms.drain(..) {
            let full = room == PortRoom::Full;
            assert_ne!(self.full[port], full, "full and free take turns");
            self.full[port] = full;
            self.turns.push((self.now_ps, port, room));
        }
    }

    /// Fills the port until it is full.
    fn fill(&mut self, port: usize, to: usize) -> u64 {
        let mut sent = 0;
        while !self.full[port] {
            let note = Note::new(sent, port, Destination::Host(to), FRAME - HEADERS);
            self.network.transmit(self.now_ps, port, note, &mut self.fx).expect("a frame that fits");
            sent += 1;
            self.carry_out();
        }
        sent
    }

    /// Lets time pass until something is due; `false` when nothing is.
    fn pass(&mut self) -> bool {
        let Some(at_ps) = self.timers.pop_first() else { return false };
        self.now_ps = at_ps;
        self.network.handle_timer(at_ps, &mut self.fx);
        self.carry_out();
        true
    }
}

/// Hosts 0 and 1 send to host 2 until `until_ps`, then everything comes to rest.
fn incast(topology: &Topology, script: &FaultScript, until_ps: u64) -> Eager {
    let mut eager = Eager::new(Network::with_faults(topology, script).expect("a valid script"));
    let mut sent = 0;
    loop {
        for port in [0, 1] {
            sent += if eager.now_ps < until_ps { eager.fill(port, 2) } else { 0 };
        }
        if !eager.pass() {
            break;
        }
    }
    assert!(eager.full.iter().all(|full| !full), "every full port is free in the end");
    for port in [0, 1] {
        let most = eager.network.counters(port).queue_high_water_bytes;
        assert!(most > PORT_FULL_BYTES && most <= PORT_FULL_BYTES + FRAME, "{most} bytes waited");
    }
    assert_eq!(eager.arrived, sent, "nothing is lost");
    eager
}

fn switch(flow_control: FlowControl) -> Topology {
    let switching = SwitchConfig { flow_control, ..SwitchConfig::default() };
    Topology::one_switch(3, LinkConfig::default()).expect("a switch").with_switching(switching).expect("valid")
}

#[test]
fn a_host_is_stopped_before_its_queue_grows_and_the_link_stays_busy() {
    let until_ps = 100_000_000;
    let eager = incast(&switch(FlowControl::Lossless), &FaultScript::default(), until_ps);
    let bytes = eager.network.counters(2).rx_bytes;
    let least_ps = Rate::GBPS_200.serialisation_ps(bytes);
    assert!(bytes > 2 << 20 && eager.last_ps - least_ps < 3_000_000, "{bytes} bytes took {} ps", eager.last_ps);
    // Each turn makes room for 32 KiB.
    let turns = eager.turns.len() as u64;
    let expected = 2 * bytes / (PORT_FULL_BYTES - PORT_FREE_BYTES);
    assert!(turns.abs_diff(expected) < 40, "{turns} turns, not about {expected}");
}

#[test]
fn a_paused_link_stops_the_host_with_and_without_credits() {
    let pause = FaultEvent::on("h0-switch", Fault::Pause).during(1_000_000, 50_000_000);
    let pause = FaultEvent { direction: Direction::Forward, ..pause };
    let script = FaultScript { seed: 1, faults: vec![pause] };
    for flow_control in [FlowControl::Lossless, FlowControl::TailDrop] {
        let topology = switch(flow_control);
        let mut eager = Eager::new(Network::with_faults(&topology, &script).expect("a valid script"));
        let mut sent = 0;
        loop {
            sent += if eager.now_ps < 60_000_000 { eager.fill(0, 2) } else { 0 };
            if !eager.pass() {
                break;
            }
        }
        let most = eager.network.counters(0).queue_high_water_bytes;
        assert!(most <= PORT_FULL_BYTES + FRAME, "{flow_control:?}: {most} bytes waited");
        let free_during = eager.turns.iter().filter(|turn| (7_000_000..50_000_000).contains(&turn.0)).count();
        assert_eq!(free_during, 0, "{flow_control:?}: no room in the pause");
        assert_eq!(eager.arrived, sent, "{flow_control:?}");
    }
}

#[test]
fn a_host_that_does_not_hurry_is_never_stopped() {
    let mut eager = Eager::new(Network::new(&switch(FlowControl::Lossless)));
    for n in 0..1000 {
        let note = Note::new(n, 0, Destination::Host(2), FRAME - HEADERS);
        eager.now_ps = n * FRAME * 40;
        eager.network.transmit(eager.now_ps, 0, note, &mut eager.fx).expect("a frame that fits");
        eager.carry_out();
    }
    while eager.pass() {}
    assert_eq!((eager.arrived, eager.turns.len()), (1000, 0));
}
