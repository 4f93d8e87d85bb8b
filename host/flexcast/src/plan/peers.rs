//! Peers of a rank.

use flexcast_proto::RankInfo;

use crate::op::chain_mapping::ChainMapping;

/// Ranks with which a rank exchanges control messages, ascending: its ring neighbours, its partners in the barrier, and
/// its neighbours in its chain.
pub(crate) fn peers(place: RankInfo, chains: &ChainMapping) -> Vec<u32> {
    let mut peers: Vec<u32> = chains.neighbours(place.rank()).collect();
    place.for_each_connected(|rank| peers.push(rank));
    peers.retain(|rank| *rank != place.rank());
    peers.sort_unstable();
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rank: u32, ranks: u32) -> Vec<u32> {
        peers(RankInfo::new(rank, ranks).unwrap(), &ChainMapping::Contiguous)
    }

    #[test]
    fn everybody_a_rank_talks_to_talks_to_it() {
        for ranks in 1..=70 {
            let all: Vec<Vec<u32>> = (0..ranks).map(|rank| of(rank, ranks)).collect();
            for (rank, of) in (0..ranks).zip(&all) {
                assert!(of.iter().all(|peer| all[*peer as usize].contains(&rank)));
                assert!(of.len() as u32 <= 2 * ranks.ilog2() + 2);
            }
        }
        assert_eq!(of(0, 8), [1, 2, 4, 6, 7]);
    }
}
