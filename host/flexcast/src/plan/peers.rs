//! Peers of a rank.

use flexcast_proto::RankInfo;

/// Ranks with which a rank exchanges control messages, ascending: its ring neighbours and its partners in the barrier.
pub(crate) fn peers(place: RankInfo) -> Vec<u32> {
    let mut peers = Vec::new();
    place.for_each_connected(|rank| peers.push(rank));
    peers.retain(|rank| *rank != place.rank());
    peers.sort_unstable();
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_a_rank_talks_to_talks_to_it() {
        for ranks in 1..=70 {
            let all: Vec<Vec<u32>> = (0..ranks).map(|rank| peers(RankInfo::new(rank, ranks).unwrap())).collect();
            for (rank, of) in (0..ranks).zip(&all) {
                assert!(of.iter().all(|peer| all[*peer as usize].contains(&rank)));
                assert!(of.len() as u32 <= 2 * ranks.ilog2() + 2);
            }
        }
        assert_eq!(peers(RankInfo::new(0, 8).unwrap()), [1, 2, 4, 6, 7]);
    }
}
