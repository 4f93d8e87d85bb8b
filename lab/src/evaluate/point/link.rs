//! Overhead of a link per payload.

use crate::reference::Transport;

/// The line rate of the cable between two emulated cards.
pub const CABLE_GBIT_PER_S: f64 = 200.0;

/// Bytes that a chunk takes of an Ethernet link, with all headers, preamble and gap, in packets of 4096 bytes of
/// payload.
#[must_use]
pub fn wire_bytes(transport: Transport, chunk_bytes: u64) -> u64 {
    let packets = chunk_bytes.div_ceil(4096).max(1);
    // Preamble and gap 20, Ethernet 14 and 4, IPv4 20, UDP 8, BTH 12, ICRC 4; the immediate 4, and RETH 16 or DETH 8.
    let once = match transport {
        Transport::Uc => 20,
        Transport::Ud => 12,
    };
    chunk_bytes + packets * 82 + once
}

/// Payload that the link carries at most, in Gbit/s.
#[must_use]
pub fn link_goodput(transport: Transport, chunk_bytes: u64, gbit_per_s: f64) -> f64 {
    gbit_per_s * chunk_bytes as f64 / wire_bytes(transport, chunk_bytes) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_wire() {
        assert_eq!((wire_bytes(Transport::Uc, 4096), wire_bytes(Transport::Ud, 4096)), (4198, 4190));
        assert_eq!((wire_bytes(Transport::Uc, 64), wire_bytes(Transport::Ud, 64)), (166, 158));
        assert_eq!(wire_bytes(Transport::Uc, 8192), 8192 + 2 * 82 + 20);
        let gib_s = link_goodput(Transport::Uc, 4096, 200.0) * 1e9 / 8.0 / f64::from(1 << 30);
        assert!((gib_s - 22.72).abs() < 0.01, "{gib_s}");
    }
}
