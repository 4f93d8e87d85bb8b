//! Times of multicast collectives, and what losses cost.

use flexcast_proto::cutoff::transfer_ps;

/// Times that do not depend on the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// One round of the barrier, in picoseconds.
    pub round_ps: u64,
    /// One activation in a chain of senders, in picoseconds.
    pub activation_ps: u64,
    /// How much of an activation is hidden by sending it before the last chunks, in picoseconds.
    pub lookahead_ps: u64,
    /// The final handshake, in picoseconds.
    pub last_ps: u64,
}

/// Rounds of the barrier: ⌈log2 P⌉.
#[must_use]
pub const fn barrier_rounds(ranks: u32) -> u32 {
    if ranks < 2 { 0 } else { u32::BITS - (ranks - 1).leading_zeros() }
}

/// Steps of an Allgather with M of P ranks sending at a time: ⌈P / M⌉; 0 chains count as one.
#[must_use]
pub const fn steps(ranks: u32, chains: u32) -> u32 {
    ranks.div_ceil(if chains == 0 { 1 } else { chains })
}

/// A multicast Broadcast: barrier, data, handshake. But for the barrier it does not depend on P.
#[must_use]
pub const fn broadcast_ps(bytes: u64, ranks: u32, gbit_per_s: u64, latencies: Latencies) -> u64 {
    let barrier_ps = latencies.round_ps.saturating_mul(barrier_rounds(ranks) as u64);
    barrier_ps.saturating_add(transfer_ps(bytes, gbit_per_s)).saturating_add(latencies.last_ps)
}

/// A multicast Allgather: the same with the data of P - 1 others, and each activation but the first as far as it is not
/// hidden.
#[must_use]
pub const fn allgather_ps(block_bytes: u64, ranks: u32, chains: u32, gbit_per_s: u64, latencies: Latencies) -> u64 {
    let bytes = block_bytes.saturating_mul(ranks.saturating_sub(1) as u64);
    let activations = steps(ranks, chains).saturating_sub(1) as u64;
    let exposed_ps = latencies.activation_ps.saturating_sub(latencies.lookahead_ps);
    broadcast_ps(bytes, ranks, gbit_per_s, latencies).saturating_add(exposed_ps.saturating_mul(activations))
}

/// Expected losses of one receiver: chunks × links × bits of a chunk × bit error rate, for rates so small that two
/// errors in a chunk do not happen.
#[must_use]
pub fn expected_losses(bytes: u64, chunk_bytes: u64, links: u32, bit_error_rate: f64) -> f64 {
    let chunks = bytes.div_ceil(chunk_bytes.max(1));
    chunks as f64 * f64::from(links) * 8.0 * chunk_bytes as f64 * bit_error_rate
}

/// Time to fetch what is missing over so many neighbours: its transfer, and a message for each hop.
#[must_use]
pub const fn recovery_ps(missing_bytes: u64, gbit_per_s: u64, hops: u32, message_ps: u64) -> u64 {
    transfer_ps(missing_bytes, gbit_per_s).saturating_add(message_ps.saturating_mul(hops as u64))
}

#[cfg(test)]
mod tests {
    use flexcast_proto::Schedule;

    use super::*;
    use crate::model::near;

    const NONE: Latencies = Latencies { round_ps: 0, activation_ps: 0, lookahead_ps: 0, last_ps: 0 };

    #[test]
    fn only_the_barrier_of_a_broadcast_depends_on_the_number_of_ranks() {
        let latencies = Latencies { round_ps: 1_500_000, last_ps: 2_000_000, ..NONE };
        let time = |ranks| broadcast_ps(8 << 20, ranks, 200, latencies);
        near(broadcast_ps(8 << 20, 188, 200, NONE) as f64, 335.5e6, 0.1e6);
        assert_eq!(time(188) - time(2), 7 * 1_500_000);
        assert_eq!(time(256), time(188));
        assert_eq!([1, 2, 3, 188, 257].map(barrier_rounds), [0, 1, 2, 8, 9]);
    }

    #[test]
    fn activations_of_an_allgather() {
        near(allgather_ps(64 << 10, 188, 1, 56, NONE) as f64, 1.75e9, 0.005e9);
        near(allgather_ps(8 << 20, 16, 1, 200, NONE) as f64, 5.03e9, 0.005e9);
        // One chain, blocks of 64 KiB, hops of 2 us: 76 % more at 200 Gbit/s, 21 % at 56.
        let latencies = Latencies { activation_ps: 2_000_000, ..NONE };
        for (gbit_per_s, share) in [(200, 0.76), (56, 0.21)] {
            let time = |latencies| allgather_ps(64 << 10, 1000, 1, gbit_per_s, latencies) as f64;
            near(time(latencies) / time(NONE) - 1.0, share, 0.005);
            assert_eq!(time(Latencies { lookahead_ps: 2_000_000, ..latencies }).to_bits(), time(NONE).to_bits());
        }
    }

    #[test]
    fn steps_are_those_of_the_sequencer() {
        for (ranks, chains) in [(6, 2), (7, 3), (10, 4), (188, 1), (188, 188), (5, 9)] {
            assert_eq!(steps(ranks, chains), Schedule::new(ranks, chains).unwrap().steps());
        }
        assert_eq!(steps(5, 0), 5);
    }

    #[test]
    fn losses_are_rare() {
        near(expected_losses(187 * (8 << 20), 4096, 1, 1e-12), 0.0125, 0.0001);
        assert_eq!(recovery_ps(0, 200, 3, 1_000_000), 3_000_000);
        near(recovery_ps(4096, 200, 187, 3_000_000) as f64, 0.56e9, 0.005e9);
    }
}
