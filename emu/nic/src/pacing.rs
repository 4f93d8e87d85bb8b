//! Rates of queue pairs: the static rate of a datagram's address vector.
//!
//! A packet of a limited rate is followed by a gap, in which the port serves others; the queue pair joins the send
//! engine's queue again after as long as the packet would take at its rate (InfiniBand specification, static rate
//! control: inter-packet delay).

/// What the codes of the InfiniBand specification stand for, in units of 500 Mbit/s; those that a field of four bits
/// holds.
const HALF_GBPS: [u64; 16] = [0, 0, 5, 20, 60, 10, 40, 80, 120, 160, 240, 28, 112, 224, 336, 50];

/// From one packet of `bytes` on the wire to the next; `None` without a limit.
pub(crate) fn interval_ps(static_rate: u8, bytes: u64) -> Option<u64> {
    let rate = HALF_GBPS[usize::from(static_rate & 15)];
    (rate > 0).then(|| (bytes * 16_000).div_ceil(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_as_long_as_at_its_rate() {
        // Codes of 2.5, 10, 25 and 168 Gbit/s; 0 is the port's own and 1 is not given.
        let ps = [2, 3, 15, 14, 0, 1].map(|code| interval_ps(code, 1000));
        assert_eq!(ps, [Some(3_200_000), Some(800_000), Some(320_000), Some(47_620), None, None]);
    }
}
