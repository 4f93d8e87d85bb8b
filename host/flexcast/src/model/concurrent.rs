//! Allgather and Reduce-Scatter at the same time, as in sharded data-parallel training (CM-05). Full-duplex cards of
//! one rate B.
//!
//! Two rings share both directions of each card. Multicast sends little and receives much, an in-network reduction
//! sends much and receives little: together they fill both directions.

/// Bytes through a card in each direction with two rings: 2N(P - 1).
#[must_use]
pub const fn ring_card_bytes(block_bytes: u64, ranks: u32) -> u64 {
    block_bytes.saturating_mul(2 * ranks.saturating_sub(1) as u64)
}

/// The same with multicast and in-network reduction: N·P.
#[must_use]
pub const fn offloaded_card_bytes(block_bytes: u64, ranks: u32) -> u64 {
    block_bytes.saturating_mul(ranks as u64)
}

/// The rates at which an Allgather by multicast sends and receives beside a Reduce-Scatter, as parts of B: 1/P and 1 -
/// 1/P. Those of the Reduce-Scatter are the same the other way round.
#[must_use]
pub fn multicast_shares(ranks: u32) -> (f64, f64) {
    let send = 1.0 / f64::from(ranks.max(1));
    (send, 1.0 - send)
}

/// How much sooner both are done than with rings: 2 - 2/P.
#[must_use]
pub fn speedup(ranks: u32) -> f64 {
    2.0 - 2.0 / f64::from(ranks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::near;

    #[test]
    fn published_speedups() {
        for (ranks, published) in [(2, 1.0), (4, 1.5), (16, 1.875), (188, 1.989), (1024, 1.998)] {
            near(speedup(ranks), published, 0.0005);
            let bytes = 3 << 20;
            let ratio = ring_card_bytes(bytes, ranks) as f64 / offloaded_card_bytes(bytes, ranks) as f64;
            near(ratio, speedup(ranks), 1e-12);
            let (send, receive) = multicast_shares(ranks);
            // Both directions are full: the Allgather's and the mirrored Reduce-Scatter's.
            near(send + receive, 1.0, 1e-12);
            // N bytes at the send rate and N(P - 1) at the receive rate take the same time.
            near(receive / send, f64::from(ranks - 1), 1e-9);
        }
    }
}
