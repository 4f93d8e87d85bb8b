//! PCIe, and the ways to Arm and DPA memory: when data that the card reads or writes is there.

use crate::keys::Touched;
use crate::memory::{QueueMemory, Space};
use crate::timing::NicTiming;

/// When each direction of PCIe is free again, and the memory of the Arm cores, which does one thing at a time.
#[derive(Debug)]
pub(crate) struct Pcie {
    timing: NicTiming,
    read_busy_ps: u64,
    write_busy_ps: u64,
    arm_busy_ps: u64,
    /// When the last write to it is over.
    arm_written_ps: u64,
}

impl Pcie {
    pub(crate) fn new(timing: NicTiming) -> Self {
        Self { timing, read_busy_ps: 0, write_busy_ps: 0, arm_busy_ps: 0, arm_written_ps: 0 }
    }

    /// How long data that the card starts to read now takes.
    pub(crate) fn read_latency(&mut self, now_ps: u64, touched: Touched) -> u64 {
        let timing = self.timing;
        let (mut host_ps, mut arm_ps) = (0, 0);
        if touched.host_bytes > 0 {
            let busy = &mut self.read_busy_ps;
            *busy = (*busy).max(now_ps) + timing.pcie_ps(touched.host_bytes);
            host_ps = *busy - now_ps + timing.pcie_latency_ps;
        }
        if touched.arm_bytes > 0 {
            // Nobody has published what the way to Arm memory takes: the time is that to the host's.
            arm_ps = self.occupy_arm(now_ps, touched.arm_bytes) - now_ps + timing.pcie_latency_ps;
        }
        let dpa_ps = if touched.dpa { timing.dpa_latency_ps } else { 0 };
        host_ps.max(arm_ps).max(dpa_ps)
    }

    /// When the memory of the Arm cores is done with so many bytes.
    fn occupy_arm(&mut self, now_ps: u64, bytes: u64) -> u64 {
        self.arm_busy_ps = self.arm_busy_ps.max(now_ps) + self.timing.arm_ps(bytes);
        self.arm_busy_ps
    }

    /// Data that the card starts to write now occupies PCIe, or the memory of the Arm cores.
    pub(crate) fn write_traffic(&mut self, now_ps: u64, touched: Touched) {
        if touched.host_bytes > 0 {
            let busy = &mut self.write_busy_ps;
            *busy = (*busy).max(now_ps) + self.timing.pcie_ps(touched.host_bytes);
        }
        if touched.arm_bytes > 0 {
            self.arm_written_ps = self.occupy_arm(now_ps, touched.arm_bytes);
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
        self.write_busy_ps.max(self.arm_written_ps)
    }

    /// When an engine may go on that runs ahead of what it writes by the latency of a completion, which it has anyway.
    pub(crate) fn ready_ps(&self) -> u64 {
        self.written_ps().saturating_sub(self.timing.completion_latency_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of the Arm cores is not behind PCIe, and its reads wait for its writes.
    #[test]
    fn each_memory_has_a_path_of_its_own() {
        let mut pcie = Pcie::new(NicTiming::default());
        let host = Touched { host_bytes: 28_000, ..Touched::default() };
        let arm = Touched { arm_bytes: 80_000, ..Touched::default() };
        let latency = NicTiming::default().pcie_latency_ps;
        assert_eq!(pcie.read_latency(0, host), 1_000_000 + latency);
        assert_eq!(pcie.read_latency(0, host), 2_000_000 + latency);
        assert_eq!(pcie.read_latency(0, arm), 1_000_000 + latency, "host memory does not hold it up");
        pcie.write_traffic(0, arm);
        assert_eq!(pcie.written_ps(), 2_000_000);
        pcie.write_traffic(0, host);
        assert_eq!(pcie.written_ps(), 2_000_000, "PCIe is done before");
        assert_eq!(pcie.read_latency(0, arm), 3_000_000 + latency);
    }
}
