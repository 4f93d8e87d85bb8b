//! Timing of the card's parts. Every part is a server: it works on one thing at a time, and later work queues.

use emu_fabric::Rate;

/// Service times and latencies, in picoseconds. Marks: P = published figure, A = assumption without a published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicTiming {
    /// From a doorbell write to the card's acting on it (A; 100 ns to 1 us are plausible).
    pub doorbell_visible_ps: u64,
    /// Service time of the send engine per packet: 75 M/s (P, derived from published echo rates; low grade). The port
    /// and the loopback path each have an engine of this rate.
    pub send_service_ps: u64,
    /// Service time of the receive engine per packet from the port: 92 M/s (P, a lower bound).
    pub receive_service_ps: u64,
    /// From the receive engine's start on a packet, or from the moment a send is done, to its CQE being in memory (A).
    pub completion_latency_ps: u64,
    /// One DMA access across PCIe: a read of a WQE or payload in host memory, or a loopback transfer (P: 1 to 3 us).
    pub pcie_latency_ps: u64,
    /// One read of a WQE or payload in DPA memory, which the card holds itself (A: inside the service times).
    pub dpa_latency_ps: u64,
    /// Payload rate of PCIe, each direction, and of the loopback path: this many bytes take `pcie_interval_ps`
    /// (derived: 28 GB/s).
    pub pcie_interval_bytes: u64,
    /// See `pcie_interval_bytes`.
    pub pcie_interval_ps: u64,
    /// Rate of the memory of the card's Arm cores, reads and writes together: this many bytes take `arm_interval_ps`
    /// (P: 80 GB/s).
    pub arm_interval_bytes: u64,
    /// See `arm_interval_bytes`.
    pub arm_interval_ps: u64,
    /// Rate at which the port sends. Should equal the link's.
    pub port_rate: Rate,
    /// Packets that may wait for the receive engine; more are dropped and counted (A).
    pub receive_buffer_packets: usize,
}

impl Default for NicTiming {
    fn default() -> Self {
        Self {
            doorbell_visible_ps: 200_000,
            send_service_ps: 13_333,
            receive_service_ps: 10_869,
            completion_latency_ps: 500_000,
            pcie_latency_ps: 1_500_000,
            dpa_latency_ps: 0,
            pcie_interval_bytes: 28,
            pcie_interval_ps: 1_000,
            arm_interval_bytes: 80,
            arm_interval_ps: 1_000,
            port_rate: Rate::GBPS_200,
            receive_buffer_packets: 16_384,
        }
    }
}

impl NicTiming {
    /// Time that `bytes` of payload occupy PCIe, rounded up.
    pub(crate) fn pcie_ps(&self, bytes: u64) -> u64 {
        (bytes * self.pcie_interval_ps).div_ceil(self.pcie_interval_bytes.max(1))
    }

    /// Time that `bytes` of payload occupy the memory of the Arm cores, rounded up.
    pub(crate) fn arm_ps(&self, bytes: u64) -> u64 {
        (bytes * self.arm_interval_ps).div_ceil(self.arm_interval_bytes.max(1))
    }
}

/// How long an RC requester waits for an answer; `None` is for ever.
pub(crate) fn response_timeout_ps(code: u8) -> Option<u64> {
    const UNIT_PS: u64 = 4_096_000;
    (code > 0).then(|| UNIT_PS << code.min(31))
}

/// How long a requester must wait after an RNR NAK (InfiniBand specification, RNR NAK timer encodings).
pub(crate) fn receiver_not_ready_ps(code: u8) -> u64 {
    const TEN_US: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
        4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    TEN_US[usize::from(code & 31)] * 10_000_000
}
