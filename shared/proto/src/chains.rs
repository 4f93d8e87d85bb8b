//! Number and members of chains: contiguous ranks ([`Schedule`]), racks, or a table.
//!
//! A table says for each rank the number of its chain; the ranks of a chain multicast in ascending order. All ranks of
//! a communicator must have the same table: compare a [`digest`](crate::digest) of it when the communicator is made.

use thiserror::Error;

use crate::cutoff::transfer_ps;
use crate::ranks::MAX_RANKS;
use crate::sequencer::{Schedule, ScheduleError, Turn};

/// A table that says nothing useful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChainsError {
    /// No ranks, too many, or no chain.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A table for another number of ranks.
    #[error("table of {table} chains for {ranks} ranks: it has one entry for each rank")]
    Length {
        /// Entries of the table.
        table: usize,
        /// Ranks, or entries of the table of racks.
        ranks: usize,
    },
    /// A chain beyond the last.
    #[error("rank {rank} is in chain {chain}, but there are {chains}: chains run from 0")]
    Chain {
        /// The rank.
        rank: u32,
        /// Its chain.
        chain: u32,
        /// Number of chains.
        chains: u32,
    },
}

/// Up to so many ranks, all multicast side by side. With fewer chains the links carry P blocks one after another, and
/// each receiver needs P - 1 of them: while a rank multicasts, its own link brings it less. From 34 ranks on that costs
/// less than 3 %.
const SIDE_BY_SIDE: u32 = 33;

/// The fewest chains that keep the receivers' links busy, from 1 to `most` and to the number of ranks: one for each of
/// up to 33 ranks, for more of them 1 + ⌈t·B/N⌉.
///
/// A chain pauses for the activation time t between two blocks of N bytes. The links, of B bit/s, stay busy if the
/// blocks of the other M - 1 chains last that long: (M - 1)·N/B ≥ t. What of t is hidden by activating before the
/// block's end does not count. `most` is what the network carries at once, for instance multicast streams through one
/// switch. *Computed*, not measured.
#[must_use]
pub const fn chains_for(block_bytes: u64, link_gbit_per_s: u64, activation_ps: u64, ranks: u32, most: u32) -> u32 {
    let limit = if ranks < most { ranks } else { most };
    let block_ps = transfer_ps(block_bytes, link_gbit_per_s);
    let chains = match block_ps {
        // Blocks without bytes: all activations side by side.
        0 => limit as u64,
        _ if ranks <= SIDE_BY_SIDE => ranks as u64,
        _ => activation_ps.div_ceil(block_ps).saturating_add(1),
    };
    match (limit, chains) {
        (0, _) => 1,
        (limit, chains) if chains < limit as u64 => chains as u32,
        (limit, _) => limit,
    }
}

/// Fills a table with contiguous chains, as [`Schedule`] has them.
///
/// # Errors
/// No ranks, too many, or no chain.
pub fn contiguous(table: &mut [u32], chains: u32) -> Result<(), ChainsError> {
    let schedule = Schedule::new(u32::try_from(table.len()).unwrap_or(u32::MAX), chains)?;
    for (rank, chain) in (0..).zip(table) {
        *chain = schedule.turn(rank).map_or(0, |turn| turn.chain);
    }
    Ok(())
}

/// Fills a table so that at any time at most one rank of each rack multicasts: all ranks of a rack are in one chain.
/// `racks` is the rack of each rank, any number. Gives the number of chains: at most `chains`, and at most one for each
/// rack. Racks go, in the order of their first ranks, to the chain that is the shortest by then.
///
/// # Errors
/// Tables of different lengths, no ranks, too many, or no chain.
pub fn per_rack(table: &mut [u32], racks: &[u32], chains: u32) -> Result<u32, ChainsError> {
    if table.len() != racks.len() {
        return Err(ChainsError::Length { table: table.len(), ranks: racks.len() });
    }
    let chains = Schedule::new(u32::try_from(racks.len()).unwrap_or(u32::MAX), chains)?.chains();
    let mut lengths = [0u32; MAX_RANKS as usize];
    let mut used = 0;
    for (first, rack) in racks.iter().enumerate() {
        if let Some(before) = racks[..first].iter().position(|other| other == rack) {
            table[first] = table[before];
            continue;
        }
        let shortest = (0..chains).min_by_key(|chain| lengths[*chain as usize]).unwrap_or(0);
        table[first] = shortest;
        lengths[shortest as usize] += racks.iter().filter(|other| *other == rack).count() as u32;
        used = used.max(shortest + 1);
    }
    Ok(used)
}

/// A rank's turn in the chains of a table; none for a rank that the table does not have. For
/// [`Participant::post_with`].
///
/// [`Participant::post_with`]: crate::Participant::post_with
#[must_use]
pub fn turn_in(table: &[u32], rank: u32) -> Option<Turn> {
    let (before, rest) = table.split_at_checked(rank as usize)?;
    let (&chain, after) = rest.split_first()?;
    let same = |other: &u32| *other == chain;
    Some(Turn {
        chain,
        step: before.iter().filter(|other| same(other)).count() as u32,
        predecessor: before.iter().rposition(same).map(|rank| rank as u32),
        successor: after.iter().position(same).map(|distance| rank + 1 + distance as u32),
    })
}

/// Whether a table of the user's can be used: as many entries as ranks, and chains below `chains`. A chain without
/// ranks does no harm.
///
/// # Errors
/// It cannot.
pub fn check(table: &[u32], ranks: u32, chains: u32) -> Result<(), ChainsError> {
    Schedule::new(ranks, chains)?;
    if table.len() != ranks as usize {
        return Err(ChainsError::Length { table: table.len(), ranks: ranks as usize });
    }
    match (0..).zip(table).find(|(_, chain)| **chain >= chains) {
        Some((rank, &chain)) => Err(ChainsError::Chain { rank, chain, chains }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;
    use std::vec;
    use std::vec::Vec;

    /// Every rank has one turn, and the turns of a chain hang together.
    fn hangs_together(table: &[u32], chains: u32) {
        let turns: Vec<Turn> = (0..table.len() as u32).map(|rank| turn_in(table, rank).unwrap()).collect();
        let mut heads = vec![0; chains as usize];
        for (rank, turn) in (0..).zip(&turns) {
            assert_eq!(turn.chain, table[rank as usize]);
            assert_eq!(turn.step == 0, turn.predecessor.is_none());
            heads[turn.chain as usize] += usize::from(turn.step == 0);
            assert!(
                turn.predecessor.is_none_or(|before| before < rank && turns[before as usize].successor == Some(rank))
            );
            if let Some(next) = turn.successor {
                let after = turns[next as usize];
                assert!(next > rank && after.predecessor == Some(rank));
                assert_eq!((after.chain, after.step), (turn.chain, turn.step + 1));
            }
        }
        assert!(heads.iter().all(|heads| *heads <= 1), "a chain has one head");
    }

    #[test]
    fn contiguous_tables_are_schedules_up_to_256_ranks_in_any_number_of_chains() {
        let mut table = [0; 256];
        for ranks in 1..=if cfg!(miri) { 7u32 } else { 256 } {
            let table = &mut table[..ranks as usize];
            for chains in 1..=ranks {
                contiguous(table, chains).unwrap();
                let schedule = Schedule::new(ranks, chains).unwrap();
                // All of them where there are few; elsewhere first, last and some between.
                for rank in (0..ranks).step_by(1 + ranks as usize / 16).chain([ranks - 1]) {
                    assert_eq!(turn_in(table, rank), schedule.turn(rank), "rank {rank} of {ranks} in {chains} chains");
                }
                assert_eq!(turn_in(table, ranks), None);
            }
        }
        assert_eq!(contiguous(&mut [], 1), Err(ScheduleError::Ranks { ranks: 0 }.into()));
        assert_eq!(contiguous(&mut [0; 1025], 1), Err(ScheduleError::Ranks { ranks: 1025 }.into()));
        assert_eq!(contiguous(&mut [0], 0), Err(ScheduleError::NoChain.into()));
    }

    #[test]
    fn racks_up_to_256_ranks_in_any_number_of_chains() {
        for ranks in (1..=if cfg!(miri) { 11usize } else { 256 }).step_by(5) {
            for (racks, size) in [
                (Vec::from_iter((0..ranks).map(|rank| rank as u32 / 36)), 36),
                (Vec::from_iter((0..ranks).map(|rank| 7 * (rank as u32 % 12))), ranks.div_ceil(12)),
            ] {
                let mut distinct = racks.clone();
                distinct.sort_unstable();
                distinct.dedup();
                for chains in 1..=ranks as u32 {
                    let mut table = vec![0; ranks];
                    let used = per_rack(&mut table, &racks, chains).unwrap();
                    assert_eq!(used as usize, distinct.len().min(chains as usize));
                    check(&table, ranks as u32, used).unwrap();
                    for (rank, rack) in racks.iter().enumerate() {
                        let first = racks.iter().position(|other| other == rack).unwrap();
                        assert_eq!(table[rank], table[first], "one rank of a rack at a time");
                    }
                    let lengths: Vec<usize> =
                        (0..used).map(|chain| table.iter().filter(|other| **other == chain).count()).collect();
                    // No rule that keeps racks whole can promise less than one rack of difference.
                    let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
                    assert!(most - least <= size, "{lengths:?}");
                }
            }
        }
        assert_eq!(per_rack(&mut [0; 2], &[1], 1), Err(ChainsError::Length { table: 2, ranks: 1 }));
    }

    #[test]
    fn tables_of_the_user_are_checked() {
        assert_eq!(check(&[0, 2, 2], 3, 3), Ok(()));
        assert_eq!(
            check(&[0, 1], 3, 3).unwrap_err().to_string(),
            "table of 2 chains for 3 ranks: it has one entry for each rank"
        );
        let beyond = check(&[0, 1, 3], 3, 3).unwrap_err();
        assert_eq!(beyond.to_string(), "rank 2 is in chain 3, but there are 3: chains run from 0");
    }

    #[test]
    fn numbers_of_chains() {
        // t·B/N: 64 KiB at 200 Gbit/s last 2.62 µs, 4 KiB 0.16 µs.
        assert_eq!(chains_for(64 << 10, 200, 2_000_000, 188, 188), 2);
        assert_eq!(chains_for(4 << 10, 200, 2_000_000, 188, 188), 14);
        assert_eq!(chains_for(8 << 20, 200, 2_000_000, 188, 188), 2);
        assert_eq!(chains_for(8 << 20, 200, 0, 188, 188), 1);
        assert_eq!(chains_for(4 << 10, 200, 2_000_000, 188, 8), 8);
        assert_eq!(chains_for(0, 200, 2_000_000, 6, 8), 6);
        assert_eq!((chains_for(8 << 20, 200, 0, 33, 99), chains_for(8 << 20, 200, 0, 34, 99)), (33, 1));
        assert_eq!((chains_for(1, 200, u64::MAX, 6, 0), chains_for(u64::MAX, 0, 1, 0, 9)), (1, 1));
    }

    proptest! {
        #[test]
        fn any_table_hangs_together(table in proptest::collection::vec(0u32..20, 1..300)) {
            hangs_together(&table, 20);
        }

        /// Enough, and one less would not be.
        #[test]
        fn the_fewest_chains_that_keep_links_busy(
            bytes in 1u64..1 << 24, gbit in 1u64..1600, activation_ps in 0u64..50_000_000, ranks in 1u32..1024, most in 1u32..1024,
        ) {
            let chains = chains_for(bytes, gbit, activation_ps, ranks, most);
            let covers = |chains: u64| (chains - 1) * transfer_ps(bytes, gbit) >= activation_ps;
            prop_assert!((1..=ranks.min(most)).contains(&chains));
            if ranks <= SIDE_BY_SIDE {
                prop_assert_eq!(chains, ranks.min(most));
                return Ok(());
            }
            prop_assert!(covers(chains.into()) || chains == ranks.min(most));
            prop_assert!(chains == 1 || !covers(u64::from(chains) - 1));
        }
    }
}
