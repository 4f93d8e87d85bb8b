//! Pieces of blocks: what recovery asks for, acknowledges and reads one by one. A rank that lacks a few chunks of a
//! block can pass on the rest of it at once, so that the repair of one rank does not wait for that of its neighbour.
//!
//! All ranks cut alike. There are as many pieces as a [`RankSet`] has room for, at most: piece `p` of the root with
//! position `i` has number `i * pieces + p`.

use core::ops::Range;

use crate::ranks::{MAX_RANKS, RankSet};

/// A set of pieces, by their numbers.
pub type PieceSet = RankSet;

/// The cut of an operation's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pieces {
    roots: RankSet,
    each: u32,
}

impl Pieces {
    /// Blocks of these roots in `each` pieces; as many as there is room for if that is less, and at least one.
    #[must_use]
    pub fn new(roots: RankSet, each: u32) -> Self {
        Self { roots, each: Self::room(&roots, each) }
    }

    /// Whether [`Pieces::new`] of these would be the same.
    #[must_use]
    pub(crate) fn are_of(&self, roots: &RankSet, each: u32) -> bool {
        self.roots == *roots && self.each == Self::room(roots, each)
    }

    fn room(roots: &RankSet, each: u32) -> u32 {
        // No `clamp`, which can panic.
        each.min(MAX_RANKS / roots.len().max(1)).max(1)
    }

    /// As many pieces as the longest block has chunks, as far as there is room.
    #[must_use]
    pub fn of_chunks(roots: RankSet, most_chunks: u64) -> Self {
        Self::new(roots, u32::try_from(most_chunks).unwrap_or(u32::MAX))
    }

    /// The ranks that contribute a block.
    #[must_use]
    pub const fn roots(&self) -> &RankSet {
        &self.roots
    }

    /// Pieces of each block.
    #[must_use]
    pub const fn each(&self) -> u32 {
        self.each
    }

    /// All pieces.
    #[must_use]
    pub fn all(&self) -> PieceSet {
        PieceSet::below(self.roots.len() * self.each)
    }

    /// The pieces of a rank's block; none if it contributes none.
    #[must_use]
    pub fn of(&self, rank: u32) -> PieceSet {
        let mut pieces = PieceSet::EMPTY;
        pieces.insert_range(self.range(rank));
        pieces
    }

    /// The numbers of the pieces of a rank's block; none if it contributes none.
    #[must_use]
    pub fn range(&self, rank: u32) -> Range<u32> {
        let first = self.roots.position(rank).map(|position| position * self.each);
        first.map_or(0..0, |first| first..first + self.each)
    }

    /// The rank whose block a piece is of, and its number within that block.
    #[must_use]
    pub fn place(&self, piece: u32) -> Option<(u32, u32)> {
        Some((self.roots.nth(piece / self.each)?, piece % self.each))
    }

    /// Chunks of a piece, of a block of so many: the last piece that has any may have fewer.
    #[must_use]
    pub const fn chunks(&self, block_chunks: u64) -> u64 {
        let chunks = block_chunks.div_ceil(self.each as u64);
        if chunks == 0 { 1 } else { chunks }
    }

    /// The piece of a rank's block, of so many chunks, to which a chunk belongs.
    #[must_use]
    pub fn of_chunk(&self, rank: u32, block_chunks: u64, chunk: u64) -> Option<u32> {
        let piece = u32::try_from(chunk / self.chunks(block_chunks)).ok().filter(|piece| *piece < self.each)?;
        Some(self.roots.position(rank)? * self.each + piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_block_without_chunks_and_a_rank_without_block_have_no_piece() {
        let pieces = Pieces::new(RankSet::of(3), 4);
        assert_eq!((pieces.of(2), pieces.of_chunk(2, 8, 0)), (PieceSet::EMPTY, None));
        assert_eq!((pieces.of_chunk(3, 8, 8), pieces.chunks(0)), (None, 1));
        assert_eq!((pieces.place(3), pieces.place(4)), (Some((3, 3)), None));
        assert_eq!(Pieces::new(RankSet::EMPTY, 5).all(), PieceSet::EMPTY);
    }

    proptest! {
        #[test]
        fn every_chunk_is_in_one_piece_of_its_own_block(
            roots in proptest::collection::btree_set(0u32..MAX_RANKS, 1..40), each in 0u32..2000, chunks in 0u64..3000,
        ) {
            let pieces = Pieces::new(roots.iter().copied().collect(), each);
            prop_assert!(pieces.all().len() == pieces.each() * roots.len() as u32);
            for rank in roots {
                let own = pieces.of(rank);
                prop_assert_eq!(own.len(), pieces.each());
                let mut before = None;
                // Miri takes a minute for what a processor does in a millisecond.
                for chunk in (0..chunks).step_by(if cfg!(miri) { 331 } else { 1 }) {
                    let piece = pieces.of_chunk(rank, chunks, chunk).unwrap();
                    let within = pieces.place(piece).unwrap();
                    prop_assert!(own.contains(piece) && before.is_none_or(|before| before <= piece));
                    prop_assert_eq!(within, (rank, (chunk / pieces.chunks(chunks)) as u32));
                    before = Some(piece);
                }
            }
        }
    }
}
