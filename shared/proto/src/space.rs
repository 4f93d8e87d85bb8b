//! The receive space of one subgroup: which chunk of which rank a PSN means, and where it goes. PSNs count through the
//! ranks' blocks in rank order: PSN = chunks of lower ranks + chunk of this rank, of the subgroup's runs only.
//! Broadcast is a space of one contribution.

use thiserror::Error;

use crate::chunk::{Block, ChunkError, Chunking, Subgroup};

/// What a PSN means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The contributing rank: its index among the contributions.
    pub root: u32,
    /// Number of the chunk in that rank's contribution.
    pub chunk: u64,
    /// Offset of its first byte in the receive buffer.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u32,
}

/// Where one rank's part of a subgroup begins. Tables of these, one row per rank, describe unequal contributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RootRow {
    /// PSN of its first chunk in the subgroup.
    pub first_psn: u64,
    /// Offset of its contribution in the receive buffer.
    pub displacement: u64,
    /// Bytes of its contribution.
    pub bytes: u64,
}

/// What the ranks contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contributions<'a> {
    /// As many bytes each, one after another in the receive buffer.
    Equal { roots: u32, bytes: u64 },
    /// By a table, in rank order; `first_psn` ascends.
    Each(&'a [RootRow]),
}

/// The receive space of one subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveSpace<'a> {
    contributions: Contributions<'a>,
    chunk_bytes: u32,
    subgroup: Subgroup,
    chunks: u64,
}

/// No such space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpaceError {
    /// The cut into chunks or subgroups is not possible.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// The table is shorter than the list of contributions.
    #[error("a table of {rows} rows for {roots} contributions: one row each")]
    Rows {
        /// Rows.
        rows: usize,
        /// Contributions.
        roots: usize,
    },
    /// More bytes than a 64-bit offset reaches.
    #[error("the contributions of all ranks exceed 2^64 bytes")]
    TooLong,
}

impl<'a> ReceiveSpace<'a> {
    /// `roots` contributions of `bytes` each.
    ///
    /// # Errors
    /// An impossible cut, or more than 2^64 bytes.
    pub fn equal(roots: u32, bytes: u64, chunk_bytes: u32, subgroup: Subgroup) -> Result<Self, SpaceError> {
        let block = Chunking::new(bytes, chunk_bytes)?.block(subgroup)?;
        if bytes.checked_mul(u64::from(roots)).is_none() {
            return Err(SpaceError::TooLong);
        }
        let chunks = block.chunks * u64::from(roots);
        Ok(Self { contributions: Contributions::Equal { roots, bytes }, chunk_bytes, subgroup, chunks })
    }

    /// Contributions of `bytes[rank]` bytes, laid one after another in the receive buffer; `table` is filled for them
    /// and kept.
    ///
    /// # Errors
    /// An impossible cut, a table that is too short, or more than 2^64 bytes.
    pub fn each(
        bytes: impl ExactSizeIterator<Item = u64>,
        chunk_bytes: u32,
        subgroup: Subgroup,
        table: &'a mut [RootRow],
    ) -> Result<Self, SpaceError> {
        // What saturates does not fit behind where it begins.
        let mut end = 0u64;
        let follow = move |bytes: u64| {
            let start = end;
            end = end.saturating_add(bytes);
            (start, bytes)
        };
        Self::placed(bytes.map(follow), chunk_bytes, subgroup, table)
    }

    /// Contributions with their displacements in the receive buffer and their bytes, in rank order; `table` is filled
    /// for them and kept. Whether they overlap is not checked.
    ///
    /// # Errors
    /// As [`ReceiveSpace::each`].
    pub fn placed(
        contributions: impl ExactSizeIterator<Item = (u64, u64)>,
        chunk_bytes: u32,
        subgroup: Subgroup,
        table: &'a mut [RootRow],
    ) -> Result<Self, SpaceError> {
        let roots = contributions.len();
        let rows = table.len();
        let table = table.get_mut(..roots).ok_or(SpaceError::Rows { rows, roots })?;
        let mut chunks = 0u64;
        // Checks the cut for an empty list, too.
        Chunking::new(0, chunk_bytes)?.block(subgroup)?;
        for (row, (displacement, bytes)) in table.iter_mut().zip(contributions) {
            if displacement.checked_add(bytes).is_none() {
                return Err(SpaceError::TooLong);
            }
            *row = RootRow { first_psn: chunks, displacement, bytes };
            chunks += Chunking::new(bytes, chunk_bytes)?.block(subgroup)?.chunks;
        }
        Ok(Self { contributions: Contributions::Each(table), chunk_bytes, subgroup, chunks })
    }

    /// Chunks of all ranks: PSNs are below.
    #[must_use]
    pub const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Number of contributions.
    #[must_use]
    pub const fn roots(&self) -> u32 {
        match self.contributions {
            Contributions::Equal { roots, .. } => roots,
            Contributions::Each(table) => table.len() as u32,
        }
    }

    fn row(&self, root: u32) -> Option<RootRow> {
        match self.contributions {
            Contributions::Equal { roots, bytes } => (root < roots).then(|| RootRow {
                first_psn: u64::from(root) * self.run(bytes).chunks,
                displacement: u64::from(root) * bytes,
                bytes,
            }),
            Contributions::Each(table) => table.get(root as usize).copied(),
        }
    }

    /// The subgroup's run in a contribution of `bytes`. The cut was checked when the space was made.
    fn run(&self, bytes: u64) -> Block {
        const NOTHING: Block = Block { first_chunk: 0, chunks: 0, offset: 0, bytes: 0, last_chunk_bytes: 0 };
        match Chunking::new(bytes, self.chunk_bytes) {
            Ok(cut) => cut.block(self.subgroup).unwrap_or(NOTHING),
            Err(_) => NOTHING,
        }
    }

    /// The PSNs of a rank's chunks: the first, and how many.
    #[must_use]
    pub fn psns(&self, root: u32) -> Option<(u64, u64)> {
        let row = self.row(root)?;
        Some((row.first_psn, self.run(row.bytes).chunks))
    }

    /// Whether the last of a rank's chunks in the subgroup is shorter than the others; false if it has none.
    #[must_use]
    pub fn last_chunk_is_short(&self, root: u32) -> bool {
        self.row(root).is_some_and(|row| {
            let run = self.run(row.bytes);
            run.chunks != 0 && run.last_chunk_bytes != self.chunk_bytes
        })
    }

    /// What a PSN means; none beyond the last.
    #[must_use]
    pub fn place(&self, psn: u64) -> Option<Placement> {
        if psn >= self.chunks {
            return None;
        }
        let root = match self.contributions {
            Contributions::Equal { bytes, .. } => (psn / self.run(bytes).chunks) as u32,
            // Of several that begin at this PSN all but the last have no chunk in the subgroup.
            Contributions::Each(table) => (table.partition_point(|row| row.first_psn <= psn) - 1) as u32,
        };
        let row = self.row(root)?;
        let chunk = self.run(row.bytes).first_chunk + (psn - row.first_psn);
        let at = Chunking::new(row.bytes, self.chunk_bytes).ok()?.chunk(chunk)?;
        Some(Placement { root, chunk, offset: row.displacement + at.offset, bytes: at.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// Roots at most, and bytes of a chunk at least. Under Miri there are few chunks.
    const ROOTS: usize = if cfg!(miri) { 3 } else { 12 };
    const CHUNK_BYTES: u32 = if cfg!(miri) { 150 } else { 1 };

    #[test]
    fn published_example() {
        // 16 ranks of 8 MiB, 4 subgroups, chunks of 4 KiB: 512 chunks per rank and subgroup.
        let space = ReceiveSpace::equal(16, 8 << 20, 4096, Subgroup { index: 1, count: 4 }).unwrap();
        assert_eq!((space.chunks(), space.psns(3)), (8192, Some((1536, 512))));
        let place = space.place(1536).unwrap();
        assert_eq!((place.root, place.chunk, place.offset, place.bytes), (3, 512, (3 << 23) + (2 << 20), 4096));
        assert_eq!((space.place(8192), space.psns(16)), (None, None));
    }

    #[test]
    fn impossible_spaces_are_refused() {
        let subgroup = Subgroup { index: 0, count: 1 };
        assert_eq!(ReceiveSpace::equal(3, u64::MAX / 2, 4096, subgroup), Err(SpaceError::TooLong));
        let mut table = [RootRow::default(); 1];
        let two = [1u64, 2].into_iter();
        assert_eq!(ReceiveSpace::each(two, 8, subgroup, &mut table), Err(SpaceError::Rows { rows: 1, roots: 2 }));
        let none = [].into_iter();
        assert_eq!(ReceiveSpace::each(none, 0, subgroup, &mut table), Err(SpaceError::Chunk(ChunkError::ZeroChunk)));
        let mut table = [RootRow::default(); 2];
        let long = [u64::MAX, 1].into_iter();
        assert_eq!(ReceiveSpace::each(long, 1 << 31, subgroup, &mut table), Err(SpaceError::TooLong));
        let far = [(u64::MAX, 1)].into_iter();
        assert_eq!(ReceiveSpace::placed(far, 8, subgroup, &mut table), Err(SpaceError::TooLong));
        let beyond = Subgroup { index: 1, count: 1 };
        assert!(ReceiveSpace::equal(1, 1, 8, beyond).is_err());
    }

    #[test]
    fn displaced_contributions_keep_their_sequence_numbers() {
        let subgroup = Subgroup { index: 0, count: 1 };
        let mut table = [RootRow::default(); 3];
        let contributions = [(100, 10), (0, 0), (20, 16)].into_iter();
        let space = ReceiveSpace::placed(contributions, 8, subgroup, &mut table).unwrap();
        let places: Vec<_> = (0..space.chunks()).map(|psn| space.place(psn).unwrap()).collect();
        assert_eq!(
            places.iter().map(|at| (at.root, at.offset, at.bytes)).collect::<Vec<_>>(),
            [(0, 100, 8), (0, 108, 2), (2, 20, 8), (2, 28, 8)]
        );
    }

    proptest! {
        /// The PSNs of all subgroups tile the receive buffer, whatever the ranks contribute.
        #[test]
        fn subgroups_tile_the_receive_buffer(
            bytes in proptest::collection::vec(prop_oneof![Just(0u64), 1u64..50, 1u64..2000], 0..ROOTS),
            chunk_bytes in CHUNK_BYTES..200,
            count in 1u32..6,
        ) {
            let total: u64 = bytes.iter().sum();
            let mut covered = vec![0u8; total as usize];
            for index in 0..count {
                let mut table = vec![RootRow::default(); bytes.len()];
                let space = ReceiveSpace::each(bytes.iter().copied(), chunk_bytes, Subgroup { index, count }, &mut table).unwrap();
                let mut next = 0;
                for root in 0..bytes.len() as u32 {
                    let (first, chunks) = space.psns(root).unwrap();
                    prop_assert_eq!(first, next);
                    next += chunks;
                    for psn in first..next {
                        prop_assert_eq!(space.place(psn).unwrap().root, root);
                    }
                }
                prop_assert_eq!(next, space.chunks());
                for psn in 0..space.chunks() {
                    let place = space.place(psn).unwrap();
                    for at in place.offset..place.offset + u64::from(place.bytes) {
                        covered[at as usize] += 1;
                    }
                }
            }
            prop_assert!(covered.iter().all(|&times| times == 1));
        }

        #[test]
        fn equal_contributions_agree_with_a_table(roots in 0u32..9, bytes in 0u64..3000, chunk_bytes in CHUNK_BYTES..200, count in 1u32..5) {
            for index in 0..count {
                let subgroup = Subgroup { index, count };
                let equal = ReceiveSpace::equal(roots, bytes, chunk_bytes, subgroup).unwrap();
                let mut table = vec![RootRow::default(); roots as usize];
                let each = ReceiveSpace::each(vec![bytes; roots as usize].into_iter(), chunk_bytes, subgroup, &mut table).unwrap();
                prop_assert_eq!(equal.chunks(), each.chunks());
                let places = |space: &ReceiveSpace<'_>| (0..=space.chunks()).map(|psn| space.place(psn)).collect::<Vec<_>>();
                prop_assert_eq!(places(&equal), places(&each));
            }
        }
    }
}
