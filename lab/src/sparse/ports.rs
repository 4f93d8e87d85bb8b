//! Ports and memories: each serves one thing after the other at its rate.

use super::params::{NetworkParams, NodeParams};
use crate::flow::time_ps;

/// Ports of all nodes.
#[derive(Debug)]
pub(super) struct Ports {
    params: NetworkParams,
    out_ps: Vec<u64>,
    in_ps: Vec<u64>,
    wire_bytes: u64,
}

impl Ports {
    pub(super) fn new(params: NetworkParams, nodes: usize) -> Self {
        Self { params, out_ps: vec![0; nodes], in_ps: vec![0; nodes], wire_bytes: 0 }
    }

    /// Bytes that a message occupies of a link.
    const fn wire(&self, payload: u64) -> u64 {
        let packets = payload.div_ceil(self.params.mtu as u64);
        payload + (if packets == 0 { 1 } else { packets }) * self.params.packet_overhead_bytes as u64
    }

    /// A message is posted: when its first byte comes to the other port.
    pub(super) fn leave(&mut self, from: u32, payload: u64, now_ps: u64) -> u64 {
        let wire = self.wire(payload);
        let service_ps = time_ps(wire, self.params.port_bytes_per_s);
        self.wire_bytes += wire;
        let free_ps = &mut self.out_ps[from as usize];
        let start_ps = now_ps.max(*free_ps);
        *free_ps = start_ps + service_ps;
        start_ps + self.params.latency_ps
    }

    /// The first byte has come: when the whole message is there. Both ports have the same rate, so it comes no later.
    pub(super) fn arrive(&mut self, to: u32, payload: u64, now_ps: u64) -> u64 {
        let service_ps = time_ps(self.wire(payload), self.params.port_bytes_per_s);
        let free_ps = &mut self.in_ps[to as usize];
        *free_ps = now_ps.max(*free_ps) + service_ps;
        *free_ps
    }

    pub(super) const fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }
}

/// A memory of each node, or the way to one.
#[derive(Debug)]
pub(super) struct Lines {
    rates: Vec<u64>,
    free_ps: Vec<u64>,
}

impl Lines {
    pub(super) fn new(rates: Vec<u64>) -> Self {
        Self { free_ps: vec![0; rates.len()], rates }
    }

    pub(super) fn memories(nodes: &[NodeParams]) -> Self {
        Self::new(nodes.iter().map(|node| node.sustained_bytes_per_s).collect())
    }

    /// When so many bytes are read or written.
    pub(super) fn serve(&mut self, node: u32, bytes: u64, now_ps: u64) -> u64 {
        if bytes == 0 {
            return now_ps;
        }
        let free_ps = &mut self.free_ps[node as usize];
        *free_ps = now_ps.max(*free_ps) + time_ps(bytes, self.rates[node as usize]);
        *free_ps
    }
}
