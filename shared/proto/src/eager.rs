//! Eager data: small blocks that ride on the signals of the barrier.
//!
//! The signal of round k is sent once those of all rounds before have come, and with them the blocks of the 2^k ranks up to the sender (Bruck's
//! Allgather, in the direction of the barrier). It carries as many of these blocks as the receiver lacks, the sender's first and then those of
//! the ranks behind. A rank that has passed the barrier has all blocks, and nobody reads its memory: the operation is over there.

use crate::ranks::RankInfo;

/// Ranks whose blocks the signal of a round carries that rank `from` sends, in the order of their bytes.
pub fn carried(place: RankInfo, from: u32, round: u8) -> impl Iterator<Item = u32> {
    let ranks = place.ranks();
    let held = 1u32 << round.min(31);
    let count = held.min(ranks.saturating_sub(held));
    (0..count).map(move |behind| (from + ranks - behind) % ranks)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_rank_has_every_block_once_after_the_last_round() {
        for ranks in (1..=40).chain([188, 1024]) {
            let place = RankInfo::new(0, ranks).expect("a rank");
            let rounds = (u32::BITS - (ranks - 1).leading_zeros()) as u8;
            // Blocks of each rank, in the order in which they came; all ranks stand in the same place of a circle.
            let mut held: Vec<u32> = std::vec![0];
            for round in 0..rounds {
                let from = ranks - (1 << round);
                let sent: Vec<u32> = carried(place, from, round).collect();
                for block in &sent {
                    let behind = (from + ranks - block) % ranks;
                    assert!(
                        held.contains(&behind),
                        "{ranks} ranks: rank {from} has not got block {block} in round {round}"
                    );
                }
                held.extend(sent.iter().map(|block| (ranks - block) % ranks));
            }
            held.sort_unstable();
            assert_eq!(held, (0..ranks).collect::<Vec<_>>(), "{ranks} ranks");
        }
    }
}
