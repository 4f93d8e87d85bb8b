//! Bytes: what ranks send and receive, what links and switch ports carry. By closed form, and by following each message
//! of a schedule along its path.

use flexcast_proto::p2p::{Blocks, Operation, Schedule, ScheduleError};
use flexcast_proto::{RankError, RankInfo};

use super::fabric::{FatTree, Placement};

/// Bytes that at least one rank sends in any Allgather of point-to-point messages: N(P - 1).
#[must_use]
pub const fn point_to_point_sent_bytes(block_bytes: u64, ranks: u32) -> u64 {
    block_bytes.saturating_mul(ranks.saturating_sub(1) as u64)
}

/// Bytes that each rank sends in an Allgather by multicast: its own contribution, whatever P.
#[must_use]
pub const fn multicast_sent_bytes(block_bytes: u64) -> u64 {
    block_bytes
}

/// Bytes that each rank receives in any Allgather without repetition: N(P - 1).
#[must_use]
pub const fn received_bytes(block_bytes: u64, ranks: u32) -> u64 {
    point_to_point_sent_bytes(block_bytes, ranks)
}

/// Ring Allgather on a fat tree of any height, ranks in order: times a byte of a contribution crosses a link, over all
/// ranks. Each of the P - 1 steps moves a block along every edge of the ring: 2(P + L + Q) links.
#[must_use]
pub const fn ring_links(tree: FatTree) -> u64 {
    2 * tree.multicast_links() * (tree.ranks() as u64).saturating_sub(1)
}

/// Multicast Allgather likewise: every rank's multicast once.
#[must_use]
pub const fn multicast_allgather_links(tree: FatTree) -> u64 {
    tree.multicast_links() * tree.ranks() as u64
}

/// How much more a ring Allgather loads the links, or the ports, of a fat tree than multicast does: 2 - 2/P, for ranks
/// in order.
#[must_use]
pub fn ring_ratio(ranks: u32) -> f64 {
    2.0 - 2.0 / f64::from(ranks.max(1))
}

/// What the network carries of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent by ranks.
    pub sent_bytes: u64,
    /// Bytes over links: each as often as links carry it.
    pub link_bytes: u64,
    /// Bytes received and sent by ports of switches: a link of a host counts once, one between switches twice.
    pub port_bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: u64, links: u64) {
        for (sum, times) in [
            (&mut self.sent_bytes, 1),
            (&mut self.link_bytes, links),
            (&mut self.port_bytes, FatTree::port_counts(links)),
        ] {
            *sum = sum.saturating_add(bytes.saturating_mul(times));
        }
    }
}

/// A model that cannot be evaluated.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// More ranks than a communicator has.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The operation is none.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

flexcast_error::debug_as_display!(TrafficError);

/// One multicast of `bytes` to all other ranks.
#[must_use]
pub const fn multicast(tree: FatTree, bytes: u64) -> Traffic {
    Traffic {
        sent_bytes: bytes,
        link_bytes: bytes.saturating_mul(tree.multicast_links()),
        port_bytes: bytes.saturating_mul(tree.multicast_port_counts()),
    }
}

/// An operation without multicast: every message of its schedule along its path.
///
/// # Errors
/// [`TrafficError`].
pub fn point_to_point(
    tree: FatTree,
    placement: Placement,
    operation: Operation,
    blocks: &Blocks<'_>,
) -> Result<Traffic, TrafficError> {
    let hosts = tree.hosts(placement);
    let mut traffic = Traffic::default();
    for (rank, &host) in (0..).zip(&hosts) {
        for transfer in Schedule::new(operation, RankInfo::new(rank, tree.ranks())?)?.sends() {
            let links = tree.links(host, hosts[transfer.to as usize]);
            traffic.add(blocks.bytes(transfer.source.blocks), links);
        }
    }
    Ok(traffic)
}

/// What [`flexcast::p2p`] adds to an operation by announcing buffers: a message of `bytes` from each rank to each
/// that writes to it.
///
/// # Errors
/// [`TrafficError`].
pub fn announcements(
    tree: FatTree,
    placement: Placement,
    operation: Operation,
    bytes: u64,
) -> Result<Traffic, TrafficError> {
    let hosts = tree.hosts(placement);
    let mut traffic = Traffic::default();
    for (rank, &host) in (0..).zip(&hosts) {
        for source in Schedule::new(operation, RankInfo::new(rank, tree.ranks())?)?.sources().iter() {
            traffic.add(bytes, tree.links(host, hosts[source as usize]));
        }
    }
    Ok(traffic)
}

#[cfg(test)]
mod tests {
    use flexcast_proto::p2p::{Allgather, Broadcast};

    use super::*;
    use crate::model::near;

    const MIB: u64 = 1 << 20;

    fn nodes_188() -> FatTree {
        FatTree::new(188, 12, 1).unwrap()
    }

    fn allgather(tree: FatTree, placement: Placement, algorithm: Allgather) -> Traffic {
        let blocks = Blocks::equal(1, tree.ranks()).unwrap();
        point_to_point(tree, placement, Operation::Allgather(algorithm), &blocks).unwrap()
    }

    #[test]
    fn sixteen_ranks_send_120_mib_or_8() {
        assert_eq!(point_to_point_sent_bytes(8 * MIB, 16), 120 * MIB);
        assert_eq!((multicast_sent_bytes(8 * MIB), received_bytes(8 * MIB, 16)), (8 * MIB, 120 * MIB));
        for algorithm in Allgather::ALL {
            let tree = FatTree::new(16, 1, 1).unwrap();
            assert_eq!(allgather(tree, Placement::Contiguous, algorithm).sent_bytes, 16 * 15);
        }
        assert_eq!(point_to_point_sent_bytes(1, 0), 0);
    }

    /// Against messages followed along their paths, too.
    #[test]
    fn the_ring_carries_twice_the_multicast_less_its_share() {
        let large = FatTree::smallest(32, 1024).unwrap();
        assert_eq!((ring_links(large), multicast_allgather_links(large)), (2_234_232, 1_118_208));
        near(ring_ratio(188), 1.989, 0.0005);
        near(ring_ratio(1024), 1.998, 0.0005);
        for tree in [nodes_188(), large, FatTree::new(7, 3, 2).unwrap(), FatTree::new(5, 5, 1).unwrap()] {
            assert_eq!(
                allgather(tree, Placement::Contiguous, Allgather::Ring).link_bytes,
                ring_links(tree),
                "{tree:?}"
            );
            let ratio = ring_links(tree) as f64 / multicast_allgather_links(tree) as f64;
            near(ratio, ring_ratio(tree.ranks()), 1e-12);
        }
    }

    /// 1024 nodes on switches of 32 ports.
    #[test]
    fn direct_messages_cost_5598_links_per_rank() {
        let tree = FatTree::smallest(32, 1024).unwrap();
        for algorithm in [Allgather::Linear, Allgather::RecursiveDoubling] {
            let links = allgather(tree, Placement::Contiguous, algorithm).link_bytes;
            assert_eq!(links, 1024 * 5598, "{algorithm:?}");
            near(links as f64 / multicast_allgather_links(tree) as f64, 5.126, 0.0005);
        }
        // Who talks to everybody does not care where they are; a ring does.
        let strided = |algorithm| allgather(tree, Placement::Strided, algorithm).link_bytes as f64 / 1_118_208.0;
        near(strided(Allgather::Linear), 5.126, 0.0005);
        assert!(strided(Allgather::Ring) > 3.5, "{}", strided(Allgather::Ring));
    }

    /// The sweep of the publication's figure: the ratios rise with P, and multicast is the least of all. Ranks dealt
    /// out over the leaves make a ring dearer and recursive doubling, whose large messages go far in order, cheaper;
    /// direct messages go everywhere.
    #[test]
    fn ratios_rise_with_the_number_of_ranks() {
        let mut before = [0.0; 4];
        for ranks in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            let tree = FatTree::smallest(32, ranks).unwrap();
            let multicast = multicast_allgather_links(tree) as f64;
            let ratios = |placement| {
                Allgather::ALL.map(|algorithm| allgather(tree, placement, algorithm).link_bytes as f64 / multicast)
            };
            let contiguous = ratios(Placement::Contiguous);
            assert!(contiguous.iter().all(|&ratio| ratio >= 1.0), "{ranks} ranks: {contiguous:?}");
            assert!(contiguous.iter().zip(before).all(|(now, before)| *now >= before), "{ranks} ranks: {contiguous:?}");
            let [ring, linear, doubling, _] = ratios(Placement::Strided);
            assert!(ring >= contiguous[0] && doubling <= contiguous[2], "{ranks} ranks");
            near(linear, contiguous[1], 1e-12);
            near(contiguous[2], contiguous[1], 1e-12);
            before = contiguous;
        }
    }

    /// Counters of the switches' ports, of the 188 ranks on 12 leaves, against multicast's 212 per root. All
    /// Broadcasts are from rank 0; segments do not matter; the in-order tree is NCCL's; the scatter-Allgather's ring is
    /// the plain one.
    #[test]
    fn port_counters_of_188_ranks() {
        let tree = nodes_188();
        let broadcast = |algorithm: Broadcast, segment: u64| {
            // So many bytes that shares are equal.
            let bytes = 188 * 64;
            let blocks = algorithm.blocks(bytes, segment, 188).unwrap();
            let operation = Operation::Broadcast { algorithm, root: 0, blocks: blocks.count() };
            let traffic = point_to_point(tree, Placement::Contiguous, operation, &blocks).unwrap();
            traffic.port_bytes as f64 / multicast(tree, bytes).port_bytes as f64
        };
        for (algorithm, published) in [
            (Broadcast::Chain, 1.97),
            (Broadcast::ScatterAllgather, 2.06),
            (Broadcast::BINOMIAL, 2.20),
            (Broadcast::Knomial { radix: 4 }, 2.31),
            (Broadcast::InOrder, 2.31),
            (Broadcast::Heap, 5.01),
        ] {
            for segment in [64, 1000, 1 << 20] {
                near(broadcast(algorithm, segment), published, 0.005);
            }
        }
        let ring = |placement| {
            allgather(tree, placement, Allgather::Ring).port_bytes as f64 / (188 * multicast(tree, 1).port_bytes) as f64
        };
        near(ring(Placement::Contiguous), 1.989, 0.0005);
        near(ring(Placement::Strided), 5.29, 0.005);
    }

    #[test]
    fn operations_that_cannot_be_are_refused() {
        let blocks = Blocks::segments(1, 1).unwrap();
        let operation = Operation::Broadcast { algorithm: Broadcast::Chain, root: 200, blocks: 1 };
        let refused = point_to_point(nodes_188(), Placement::Contiguous, operation, &blocks);
        assert!(matches!(refused, Err(TrafficError::Schedule(_))));
        let tree = FatTree::smallest(32, 2000).unwrap();
        assert!(matches!(
            announcements(tree, Placement::Contiguous, Operation::Allgather(Allgather::Ring), 1),
            Err(TrafficError::Rank(_))
        ));
    }
}
