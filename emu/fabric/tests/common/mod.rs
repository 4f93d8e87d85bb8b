//! A caller of a fabric: one event queue, one clock.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use emu_fabric::{Destination, Fabric, FabricEffects, Frame, Network, NetworkFrame};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub id: u64,
    pub from: usize,
    pub to: Destination,
    pub flow: u64,
    pub bytes: u64,
    pub priority: u8,
    pub corrupted: Option<u64>,
}

impl Note {
    pub fn new(id: u64, from: usize, to: Destination, bytes: u64) -> Self {
        Self { id, from, to, flow: from as u64, bytes, priority: 0, corrupted: None }
    }
}

/// Every frame has 100 bytes of headers.
pub const HEADERS: u64 = 100;

impl Frame for Note {
    fn wire_bytes(&self) -> u64 {
        self.bytes + HEADERS
    }
}

impl NetworkFrame for Note {
    fn destination(&self) -> Destination {
        self.to
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn payload_bytes(&self) -> u64 {
        self.bytes
    }
    fn priority(&self) -> u8 {
        self.priority
    }
    fn corrupt(&mut self, seed: u64) {
        self.corrupted = Some(seed);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub at_ps: u64,
    pub host: usize,
    pub frame: Note,
}

pub struct Driver {
    pub network: Network<Note>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    sends: BTreeMap<u64, (usize, Note)>,
    sequence: u64,
    pub timers: u64,
    pub arrivals: Vec<Arrival>,
    /// When the last thing happened, arrivals included.
    pub end_ps: u64,
}

impl Driver {
    pub fn new(network: Network<Note>) -> Self {
        let (queue, sends) = (BinaryHeap::new(), BTreeMap::new());
        Self { network, queue, sends, sequence: 0, timers: 0, arrivals: Vec::new(), end_ps: 0 }
    }

    pub fn send(&mut self, at_ps: u64, frame: Note) {
        self.sequence += 1;
        self.queue.push(Reverse((at_ps, self.sequence)));
        self.sends.insert(self.sequence, (frame.from, frame));
    }

    /// Runs until nothing is left to do; arrivals are then in order of time.
    pub fn run(&mut self) {
        let mut fx = FabricEffects::default();
        while let Some(Reverse((now_ps, sequence))) = self.queue.pop() {
            self.end_ps = self.end_ps.max(now_ps);
            match self.sends.remove(&sequence) {
                Some((host, frame)) => self.network.transmit(now_ps, host, frame, &mut fx).expect("a port"),
                None => {
                    self.timers += 1;
                    self.network.handle_timer(now_ps, &mut fx);
                }
            }
            for at_ps in fx.timers_ps.drain(..) {
                assert!(at_ps >= now_ps, "a timer in the past");
                self.sequence += 1;
                self.queue.push(Reverse((at_ps, self.sequence)));
            }
            for delivery in fx.deliveries.drain(..) {
                assert!(delivery.at_ps >= now_ps, "a delivery in the past");
                self.end_ps = self.end_ps.max(delivery.at_ps);
                self.arrivals.push(Arrival { at_ps: delivery.at_ps, host: delivery.port, frame: delivery.frame });
            }
        }
        self.arrivals.sort_by_key(|arrival| arrival.at_ps);
    }
}
