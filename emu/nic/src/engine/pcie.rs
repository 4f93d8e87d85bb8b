//! PCIe, and the way to DPA memory: when data that the card reads or writes is there.

use crate::keys::Touched;
use crate::memory::{QueueMemory, Space};
use crate::timing::NicTiming;

/// When each direction of PCIe is free again.
#[derive(Debug)]
pub(crate) struct Pcie {
    timing: NicTiming,
    read_busy_ps: u64,
    write_busy_ps: u64,
}

impl Pcie {
    pub(crate) fn new(timing: NicTiming) -> Self {
        Self { timing, read_busy_ps: 0, write_busy_ps: 0 }
    }

    /// How long data that the card starts to read now takes.
    pub(crate) fn read_latency(&mut self, now_ps: u64, touched: Touched) -> u64 {
        let timing = &self.timing;
        if touched.host_bytes > 0 {
            let busy = &mut self.read_busy_ps;
            *busy = (*busy).max(now_ps) + timing.pcie_ps(touched.host_bytes);
            *busy - now_ps + timing.pcie_latency_ps
        } else if touched.dpa {
            timing.dpa_latency_ps
        } else {
            0
        }
    }

    /// Data that the card starts to write now occupies PCIe.
    pub(crate) fn write_traffic(&mut self, now_ps: u64, touched: Touched) {
        if touched.host_bytes > 0 {
            let busy = &mut self.write_busy_ps;
            *busy = (*busy).max(now_ps) + self.timing.pcie_ps(touched.host_bytes);
        }
    }

    /// Latency of a WQE's fetch.
    pub(crate) fn fetch_latency(&self, ring: QueueMemory) -> u64 {
        match ring.space {
            // Nobody has published what the way to Arm memory takes: the time is that to the host's.
            Space::Host | Space::HostProcess(_) | Space::Arm => self.timing.pcie_latency_ps,
            Space::Dpa(_) => self.timing.dpa_latency_ps,
        }
    }

    /// When all that has been written is in memory.
    pub(crate) fn written_ps(&self) -> u64 {
        self.write_busy_ps
    }

    /// When an engine may go on that runs ahead of what it writes by the latency of a completion, which it has anyway.
    pub(crate) fn ready_ps(&self) -> u64 {
        self.write_busy_ps.saturating_sub(self.timing.completion_latency_ps)
    }
}
