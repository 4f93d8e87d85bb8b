//! Allgather and Reduce-Scatter at the same time, as in sharded data-parallel training. Full-duplex cards of
//! one rate B.
//!
//! Two rings share both directions of each card. Multicast sends little and receives much, an in-network reduction
//! sends much and receives little: together they fill both directions.

use flexcast_proto::cutoff::transfer_ps;

use super::fabric::FatTree;
use super::traffic::Traffic;

/// Bytes through a card, of one operation among P ranks with shares of N bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardBytes {
    /// To the network.
    pub sent: u64,
    /// From it.
    pub received: u64,
}

impl CardBytes {
    const fn new(sent_shares: u32, received_shares: u32, share_bytes: u64) -> Self {
        Self {
            sent: share_bytes.saturating_mul(sent_shares as u64),
            received: share_bytes.saturating_mul(received_shares as u64),
        }
    }

    /// Of both operations.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { sent: self.sent.saturating_add(other.sent), received: self.received.saturating_add(other.received) }
    }

    /// How long a card of this rate needs, both directions at once.
    #[must_use]
    pub const fn time_ps(self, gbit_per_s: u64) -> u64 {
        transfer_ps(if self.sent > self.received { self.sent } else { self.received }, gbit_per_s)
    }
}

/// Allgather or Reduce-Scatter around the ring: N(P - 1) each way.
#[must_use]
pub const fn ring(share_bytes: u64, ranks: u32) -> CardBytes {
    let others = ranks.saturating_sub(1);
    CardBytes::new(others, others, share_bytes)
}

/// Allgather by multicast: N out, N(P - 1) in.
#[must_use]
pub const fn multicast_allgather(share_bytes: u64, ranks: u32) -> CardBytes {
    CardBytes::new(if ranks > 1 { 1 } else { 0 }, ranks.saturating_sub(1), share_bytes)
}

/// Reduce-Scatter computed in the network: switches add what comes up their ports, so that N(P - 1) go out, the shares
/// of the others, and N come in, the own share complete. The mirror image of the Allgather.
#[must_use]
pub const fn in_network_reduce_scatter(share_bytes: u64, ranks: u32) -> CardBytes {
    let CardBytes { sent, received } = multicast_allgather(share_bytes, ranks);
    CardBytes { sent: received, received: sent }
}

/// What the network carries of one share's reduction: one partial sum per link of the tree, from the others to its
/// rank, where a multicast has one copy per link the other way.
#[must_use]
pub const fn in_network_reduction(tree: FatTree, share_bytes: u64) -> Traffic {
    let others = tree.ranks().saturating_sub(1) as u64;
    Traffic {
        sent_bytes: share_bytes.saturating_mul(others),
        link_bytes: share_bytes.saturating_mul(tree.multicast_links()),
        port_bytes: share_bytes.saturating_mul(tree.multicast_port_counts()),
    }
}

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

/// The rates at which an Allgather by multicast sends and receives during a Reduce-Scatter, as parts of B: 1/P and 1 -
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
    use flexcast_proto::RankInfo;
    use flexcast_proto::p2p::{Allgather, Allreduce, Operation, ReduceScatter, Schedule};

    use super::*;
    use crate::model::near;

    #[test]
    fn in_network_computing_fills_the_direction_that_multicast_leaves() {
        let share = 8 << 20;
        for ranks in [1, 2, 4, 16, 188, 1024] {
            let rings = ring(share, ranks).and(ring(share, ranks));
            let network = multicast_allgather(share, ranks).and(in_network_reduce_scatter(share, ranks));
            assert_eq!(rings, CardBytes { sent: ring_card_bytes(share, ranks), received: rings.sent });
            if ranks > 1 {
                assert_eq!(network, CardBytes { sent: offloaded_card_bytes(share, ranks), received: network.sent });
                let ratio = rings.time_ps(200) as f64 / network.time_ps(200) as f64;
                near(ratio, speedup(ranks), 1e-6);
            }
            // T = 2N(P - 1)/B, and N·P/B.
            assert_eq!(rings.time_ps(200), transfer_ps(2 * share * u64::from(ranks - 1), 200));
        }
        // Alone, a reduction in the network is no faster than a ring: what it sends is the same.
        assert_eq!(in_network_reduce_scatter(share, 16).time_ps(200), ring(share, 16).time_ps(200));
        let tree = FatTree::new(188, 12, 1).unwrap();
        let one = in_network_reduction(tree, 1);
        assert_eq!((one.sent_bytes, one.link_bytes, one.port_bytes), (187, 200, 212));
    }

    #[test]
    fn rings_send_what_their_schedules_do() {
        let ranks = 16;
        let place = RankInfo::new(3, ranks).unwrap();
        let sends = |operation| Schedule::new(operation, place).unwrap().sends().count() as u64;
        for operation in [Operation::ReduceScatter(ReduceScatter::Ring), Operation::Allgather(Allgather::Ring)] {
            assert_eq!(sends(operation) * 1000, ring(1000, ranks).sent);
        }
        assert_eq!(sends(Operation::Allreduce(Allreduce::Ring)) * 1000, ring_card_bytes(1000, ranks));
    }

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
