//! Arithmetic bounds of the published kernels: threads that never wait for one another, and cores that never wait at
//! all.

use crate::reference::Transport;

/// Hardware threads of a core.
const THREADS_PER_CORE: u32 = 16;
/// Cycles per microsecond.
const CYCLES_PER_US: f64 = 1800.0;

/// A published kernel on one thread (Khalilov et al., table I).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Transport.
    pub transport: Transport,
    /// Instructions for each completion.
    pub instructions: f64,
    /// Cycles for each completion.
    pub cycles: f64,
}

impl Published {
    /// Completions per microsecond of `threads` threads that only wait for memory.
    #[must_use]
    pub fn latency_bound(&self, threads: u32) -> f64 {
        f64::from(threads) * CYCLES_PER_US / self.cycles
    }

    /// The same of the cores that they fill, at one instruction per cycle.
    #[must_use]
    pub fn issue_bound(&self, threads: u32) -> f64 {
        f64::from(threads.div_ceil(THREADS_PER_CORE)) * CYCLES_PER_US / self.instructions
    }
}

/// Bytes on the wire besides the payload of a message of one packet, as RoCE v2 carries it: preamble, gap and check
/// sequence included.
#[must_use]
pub fn overhead_bytes(transport: Transport) -> u64 {
    match transport {
        // Ethernet 38, IPv4 20, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4.
        Transport::Uc => 102,
        // The same with DETH 8 in place of RETH.
        Transport::Ud => 94,
    }
}

/// Most packets of `payload` bytes that 200 Gbit/s carry in a microsecond.
#[must_use]
pub fn link_per_us(transport: Transport, payload: u64) -> f64 {
    200e3 / (8 * (payload + overhead_bytes(transport))) as f64
}

/// Million chunks per second to GiB/s.
#[must_use]
pub fn gib_per_s(per_us: f64, chunk_bytes: u64) -> f64 {
    per_us * 1e6 * chunk_bytes as f64 / (1u64 << 30) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{PUBLISHED_UC, PUBLISHED_UD};

    fn near(value: f64, printed: f64) {
        assert!((value - printed).abs() <= printed.abs() * 1e-3, "{value}, printed {printed}");
    }

    #[test]
    fn the_bounds_are_those_of_the_published_arithmetic() {
        near(PUBLISHED_UC.latency_bound(1), 3.010);
        near(PUBLISHED_UD.latency_bound(1), 1.661);
        near(gib_per_s(PUBLISHED_UC.latency_bound(1), 4096), 11.48);
        near(gib_per_s(PUBLISHED_UD.latency_bound(1), 4096), 6.33);
        near(PUBLISHED_UC.issue_bound(16), 27.27);
        near(gib_per_s(PUBLISHED_UD.issue_bound(1), 4096), 60.8);
        near(PUBLISHED_UC.latency_bound(128), 385.3);
        near(PUBLISHED_UD.issue_bound(128), 127.4);
    }

    #[test]
    fn wire_goodput_is_that_of_the_published_arithmetic() {
        near(link_per_us(Transport::Uc, 4096), 5.955);
        near(link_per_us(Transport::Ud, 4096), 5.967);
        near(gib_per_s(link_per_us(Transport::Uc, 4096), 4096), 22.72);
        near(link_per_us(Transport::Uc, 64), 150.6);
        near(link_per_us(Transport::Ud, 64), 158.2);
    }
}
