//! Eager data: small blocks that ride on the signals of the barrier.
//!
//! The signal of round k is sent once those of all rounds before have come, and with them the blocks of the 2^k ranks
//! up to the sender (Bruck's Allgather, in the direction of the barrier). It carries as many of these blocks as the
//! receiver lacks, the sender's first and then those of the ranks behind. A rank that has passed the barrier has all
//! blocks, and nobody reads its memory: the operation is over there.

use crate::ranks::RankInfo;

/// Ranks whose blocks the signal of a round carries that rank `from` sends, in the order of their bytes.
pub fn carried(place: RankInfo, from: u32, round: u8) -> impl Iterator<Item = u32> {
    let ranks = place.ranks();
    let held = 1u32 << round.min(31);
    let count = held.min(ranks.saturating_sub(held));
    (0..count).map(move |behind| (from + ranks - behind) % ranks)
}

/// Data of a signal where every rank has the blocks in a row: its own first, then those of the ranks behind it. What a
/// signal carries is the beginning of the sender's row, and belongs right behind what the receiver has by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carriage {
    /// Bytes from the beginning of the sender's row.
    pub bytes: u64,
    /// Offset in the receiver's row.
    pub offset: u64,
}

impl Carriage {
    /// Of the own signal of a round that the barrier has, of blocks with these lengths.
    pub fn new(place: RankInfo, round: u8, length: impl Fn(u32) -> u64) -> Self {
        let bytes = carried(place, place.rank(), round).map(&length).sum();
        let held = 1u32 << round.min(31);
        let (to, ranks) = (place.ahead(held), place.ranks());
        let offset = (0..held.min(ranks)).map(|behind| length((to + ranks - behind) % ranks)).sum();
        Self { bytes, offset }
    }
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

    /// Signals as copies of the beginning of one row into another.
    #[test]
    fn rows_are_whole_after_the_last_round_wherever_blocks_have_which_length() {
        for ranks in (1u32..=20).chain([188]) {
            let length = |rank: u32| u64::from((rank * 7 + ranks) % 5);
            let place = |rank| RankInfo::new(rank, ranks).expect("a rank");
            let block = |rank: u32| std::iter::repeat_n(rank, length(rank) as usize);
            let row = |rank: u32| -> Vec<u32> {
                (0..ranks).flat_map(|behind| block((rank + ranks - behind) % ranks)).collect()
            };
            let mut rows: Vec<Vec<u32>> = (0..ranks).map(|rank| block(rank).collect()).collect();
            for round in 0..(u32::BITS - (ranks - 1).leading_zeros()) as u8 {
                let before = rows.clone();
                for rank in 0..ranks {
                    let Carriage { bytes, offset } = Carriage::new(place(rank), round, length);
                    let to = place(rank).ahead(1 << round) as usize;
                    assert_eq!(offset, before[to].len() as u64, "{ranks} ranks, {rank}, round {round}");
                    rows[to].extend_from_slice(&before[rank as usize][..bytes as usize]);
                }
            }
            assert_eq!(rows, (0..ranks).map(row).collect::<Vec<_>>(), "{ranks} ranks");
        }
    }
}
