//! Roots told by the queue pair that a chunk comes from, so that PSNs count the chunks of one root only.
//!
//! An option: the immediate then needs bits for the largest contribution instead of all of them together, which leaves
//! more to the collective id, or reaches further. The price is a search in a table of P queue pair numbers per chunk,
//! ⌈log2 P⌉ + 1 comparisons at most. The bitmap stays as it is: one bit per chunk of all roots.

use thiserror::Error;

use crate::immediate::{ImmediateError, ImmediateLayout};
use crate::space::{Placement, ReceiveSpace};

/// Queue pair numbers have 24 bits.
const QPN_LIMIT: u32 = 1 << 24;

/// A queue pair that a root sends from, in one subgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Number of the queue pair, below 2^24, and unique together with whatever else tells cards apart (see
    /// [`Sources::new`]).
    pub qpn: u32,
    /// The root: its index among the contributions.
    pub root: u32,
}

/// A table that does not tell roots apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SourceError {
    /// Two roots send from queue pairs of one number: numbers belong to cards.
    #[error(
        "roots {first} and {second} send from queue pairs of number {qpn:#x}: count PSNs through all roots instead"
    )]
    Ambiguous {
        /// The number.
        qpn: u32,
        /// One root.
        first: u32,
        /// Another.
        second: u32,
    },
    /// More than 24 bits.
    #[error("queue pair {qpn:#x} of root {root}: numbers are below 2^24")]
    Number {
        /// What was given.
        qpn: u32,
        /// Whose it is.
        root: u32,
    },
}

/// The queue pairs of all roots in one subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources<'a> {
    table: &'a [Source],
}

impl<'a> Sources<'a> {
    /// Sorts the table and keeps it. A completion tells the number of the sender's queue pair and not its card, so that
    /// all numbers must differ: where cards have given out the same one, this mode is not possible.
    ///
    /// # Errors
    /// Two roots with one number, or a number beyond 24 bits.
    pub fn new(table: &'a mut [Source]) -> Result<Self, SourceError> {
        table.sort_unstable();
        if let Some(Source { qpn, root }) = table.last().copied().filter(|last| last.qpn >= QPN_LIMIT) {
            return Err(SourceError::Number { qpn, root });
        }
        for pair in table.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if first.qpn == second.qpn {
                return Err(SourceError::Ambiguous { qpn: first.qpn, first: first.root, second: second.root });
            }
        }
        Ok(Self { table })
    }

    /// Who sends from a queue pair; none for a stranger's.
    #[must_use]
    pub fn root(&self, qpn: u32) -> Option<u32> {
        let at = self.table.binary_search_by_key(&qpn, |source| source.qpn).ok()?;
        self.table.get(at).map(|source| source.root)
    }
}

impl ReceiveSpace<'_> {
    /// The PSN that counts through all roots, which is the chunk's bit, from a root and the number of the chunk in its
    /// run; none for a root that is not there or a number beyond its run.
    #[must_use]
    pub fn psn_of(&self, root: u32, number: u64) -> Option<u64> {
        let (first, chunks) = self.psns(root)?;
        (number < chunks).then(|| first + number)
    }

    /// What the number of a chunk in a root's run means; none as for [`ReceiveSpace::psn_of`].
    #[must_use]
    pub fn place_of(&self, root: u32, number: u64) -> Option<Placement> {
        self.place(self.psn_of(root, number)?)
    }

    /// Chunks of the root that has the most: what the immediate has to number in this mode.
    #[must_use]
    pub fn longest_run(&self) -> u64 {
        (0..self.roots()).filter_map(|root| self.psns(root)).map(|(_, chunks)| chunks).max().unwrap_or(0)
    }

    /// The layout with the fewest bits for the longest run.
    ///
    /// # Errors
    /// [`ImmediateError::TooManyChunks`].
    pub fn layout_by_source(&self) -> Result<ImmediateLayout, ImmediateError> {
        ImmediateLayout::for_chunks(self.longest_run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Subgroup;
    use crate::immediate::Immediate;
    use crate::space::RootRow;
    use proptest::prelude::*;
    use std::string::ToString as _;
    use std::vec;
    use std::vec::Vec;

    /// Roots at most, and bytes of a chunk at least. Under Miri there are few chunks.
    const ROOTS: usize = if cfg!(miri) { 3 } else { 12 };
    const CHUNK_BYTES: u32 = if cfg!(miri) { 150 } else { 1 };

    #[test]
    fn sixteen_ranks_need_9_bits_instead_of_13() {
        // 16 ranks of 8 MiB, 4 subgroups, chunks of 4 KiB.
        let space = ReceiveSpace::equal(16, 8 << 20, 4096, Subgroup { index: 1, count: 4 }).unwrap();
        let by_source = space.layout_by_source().unwrap();
        let through = ImmediateLayout::for_chunks(space.chunks()).unwrap();
        assert_eq!((by_source.psn_bits(), through.psn_bits()), (9, 13));
        assert_eq!(by_source.id_count(), 16 * through.id_count());
        // 31 bits reach 1024 times as far among 1024 ranks.
        let far = ReceiveSpace::equal(1024, 8 << 40, 4096, Subgroup { index: 0, count: 1 }).unwrap();
        assert!(ImmediateLayout::for_chunks(far.chunks()).is_err());
        assert_eq!(far.layout_by_source().unwrap().psn_bits(), 31);
    }

    #[test]
    fn tables_that_tell_nothing_apart_are_refused() {
        let source = |qpn, root| Source { qpn, root };
        let refused = |table: &mut [Source]| Sources::new(table).unwrap_err().to_string();
        assert!(refused(&mut [source(5, 0), source(9, 1), source(5, 2)]).contains("roots 0 and 2"));
        assert!(refused(&mut [source(1 << 24, 3), source(1, 0)]).contains("root 3"));
        let mut table = [source(0x101, 1), source(0x100, 0), source(0x90, 2)];
        let sources = Sources::new(&mut table).unwrap();
        assert_eq!(
            [0x90, 0x100, 0x101, 0x102, 0].map(|qpn| sources.root(qpn)),
            [Some(2), Some(0), Some(1), None, None]
        );
        assert_eq!(Sources::new(&mut []).unwrap().root(1), None);
    }

    proptest! {
        /// Both ways to number chunks mean the same chunks, and what is beyond a root's run is nobody's.
        #[test]
        fn both_numberings_mean_the_same_chunks(
            bytes in proptest::collection::vec(prop_oneof![Just(0u64), 1u64..50, 1u64..2000], 1..ROOTS),
            chunk_bytes in CHUNK_BYTES..200, count in 1u32..6, index in 0u32..6, shift in 1u32..1000,
        ) {
            let mut rows = vec![RootRow::default(); bytes.len()];
            let subgroup = Subgroup { index: index % count, count };
            let space = ReceiveSpace::each(bytes.iter().copied(), chunk_bytes, subgroup, &mut rows).unwrap();
            let mut table: Vec<Source> =
                (0..bytes.len() as u32).map(|root| Source { qpn: (root * 7919 + shift) % 8191, root }).collect();
            let numbers: Vec<u32> = table.iter().map(|source| source.qpn).collect();
            let sources = Sources::new(&mut table).unwrap();
            let layout = space.layout_by_source().unwrap();
            let mut seen = 0;
            for (root, qpn) in (0..).zip(numbers) {
                prop_assert_eq!(sources.root(qpn), Some(root));
                let (first, chunks) = space.psns(root).unwrap();
                for number in 0..chunks {
                    let immediate = Immediate { psn: number as u32, collective_id: 1 };
                    let decoded = layout.decode(layout.encode(immediate).unwrap());
                    let place = space.place_of(sources.root(qpn).unwrap(), decoded.psn.into()).unwrap();
                    prop_assert_eq!(Some(place), space.place(first + number));
                    prop_assert_eq!(place.root, root);
                    seen += 1;
                }
                prop_assert_eq!(space.place_of(root, chunks), None);
            }
            prop_assert_eq!(seen, space.chunks());
            prop_assert_eq!(space.psn_of(bytes.len() as u32, 0), None);
        }
    }
}
