//! Byte ranges of blocks in a buffer. Schedules speak of blocks alone; the bytes are asked for here.

use core::ops::Range;

use thiserror::Error;

/// Blocks in a row, going on at block 0 behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first, below the number of blocks.
    pub first: u32,
    /// How many; at most the number of blocks.
    pub count: u32,
}

impl Span {
    /// No block.
    pub const NONE: Self = Self { first: 0, count: 0 };

    /// One block.
    #[must_use]
    pub const fn of(block: u32) -> Self {
        Self { first: block, count: 1 }
    }

    /// The blocks, where there are `blocks` in all.
    pub fn iter(self, blocks: u32) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |index| ((u64::from(self.first) + u64::from(index)) % u64::from(blocks)) as u32)
    }
}

/// How a buffer is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    division: Division<'a>,
    /// Each piece of the division is cut into so many blocks.
    parts: u32,
    /// Bytes of what the division counts.
    unit_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division<'a> {
    /// Pieces of one length, the last ones short or empty.
    Even { total_bytes: u64, piece_bytes: u64, count: u32 },
    /// Where each block ends; the first begins at 0.
    Ends(&'a [u64]),
}

/// No such division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BlocksError {
    /// Nothing to divide into.
    #[error("0 blocks: a buffer has at least one")]
    None,
    /// Pieces of no length.
    #[error("segments of 0 bytes: give at least 1")]
    EmptySegments,
    /// More than can be counted.
    #[error("{bytes} bytes in segments of {segment_bytes} are more than 2^32 - 1 segments: give longer segments")]
    TooMany {
        /// Length of the message.
        bytes: u64,
        /// Length of a segment.
        segment_bytes: u64,
    },
    /// More than can be counted.
    #[error("{blocks} blocks in {parts} parts each are more than 2^32 - 1: give fewer parts")]
    Parts {
        /// Number of blocks.
        blocks: u32,
        /// Parts of each.
        parts: u32,
    },
    /// A buffer beyond the address space.
    #[error("{count} blocks of {bytes} bytes are more than 2^64 - 1 bytes")]
    TooLong {
        /// Length of a block.
        bytes: u64,
        /// Number of blocks.
        count: u32,
    },
    /// Shares for another number of ranks.
    #[error("{blocks} shares among {ranks} ranks: give one for each")]
    Shares {
        /// What was given.
        blocks: u32,
        /// How many there should be.
        ranks: u32,
    },
    /// A block that ends before it begins.
    #[error("block {block} ends at {end}, before its beginning at {start}")]
    Order {
        /// The block.
        block: u32,
        /// Its first byte.
        start: u64,
        /// Its end.
        end: u64,
    },
}

impl<'a> Blocks<'a> {
    /// One block of no bytes: a buffer that is not used.
    pub const EMPTY: Self = Self::new(Division::Even { total_bytes: 0, piece_bytes: 0, count: 1 });

    const fn new(division: Division<'a>) -> Self {
        Self { division, parts: 1, unit_bytes: 1 }
    }

    /// `count` blocks of `bytes` each: an Allgather of equal contributions.
    ///
    /// # Errors
    /// No block, or more than 2^64 - 1 bytes in all.
    pub const fn equal(bytes: u64, count: u32) -> Result<Self, BlocksError> {
        if count == 0 {
            return Err(BlocksError::None);
        }
        let Some(total_bytes) = bytes.checked_mul(count as u64) else {
            return Err(BlocksError::TooLong { bytes, count });
        };
        Ok(Self::new(Division::Even { total_bytes, piece_bytes: bytes, count }))
    }

    /// Blocks one behind the other that end at `ends`: an Allgather of unequal contributions.
    ///
    /// # Errors
    /// No block, or ends that go back.
    pub fn unequal(ends: &'a [u64]) -> Result<Self, BlocksError> {
        if ends.is_empty() || u32::try_from(ends.len()).is_err() {
            return Err(BlocksError::None);
        }
        let mut start = 0;
        for (block, &end) in ends.iter().enumerate() {
            if end < start {
                return Err(BlocksError::Order { block: block as u32, start, end });
            }
            start = end;
        }
        Ok(Self::new(Division::Ends(ends)))
    }

    /// A message in segments, the last one short; one empty segment for an empty message.
    ///
    /// # Errors
    /// Segments of no length, or too many of them.
    pub fn segments(bytes: u64, segment_bytes: u64) -> Result<Self, BlocksError> {
        if segment_bytes == 0 {
            return Err(BlocksError::EmptySegments);
        }
        let Ok(count) = u32::try_from(bytes.div_ceil(segment_bytes).max(1)) else {
            return Err(BlocksError::TooMany { bytes, segment_bytes });
        };
        Ok(Self::new(Division::Even { total_bytes: bytes, piece_bytes: segment_bytes, count }))
    }

    /// A message in `count` shares of ⌈bytes / count⌉; the last ones may be short or empty.
    ///
    /// # Errors
    /// No share.
    pub fn shares(bytes: u64, count: u32) -> Result<Self, BlocksError> {
        if count == 0 {
            return Err(BlocksError::None);
        }
        let piece_bytes = bytes.div_ceil(u64::from(count));
        Ok(Self::new(Division::Even { total_bytes: bytes, piece_bytes, count }))
    }

    /// Each block cut into `parts` equal ones, the last of them short or empty: block b becomes those from b * `parts`
    /// on.
    ///
    /// # Errors
    /// No part, or more blocks than can be counted.
    pub fn split(self, parts: u32) -> Result<Self, BlocksError> {
        if parts == 0 {
            return Err(BlocksError::None);
        }
        let blocks = self.count();
        if blocks.checked_mul(parts).is_none() {
            return Err(BlocksError::Parts { blocks, parts });
        }
        Ok(Self { parts: self.parts * parts, ..self })
    }

    /// The same division of elements of `unit_bytes` bytes, none of which is cut.
    ///
    /// # Errors
    /// Elements of no bytes, or more than 2^64 - 1 bytes in all.
    pub fn in_units(self, unit_bytes: u32) -> Result<Self, BlocksError> {
        if unit_bytes == 0 {
            return Err(BlocksError::None);
        }
        let units = self.total_bytes();
        if units.checked_mul(u64::from(unit_bytes)).is_none() {
            return Err(BlocksError::TooLong { bytes: units, count: unit_bytes });
        }
        Ok(Self { unit_bytes, ..self })
    }

    /// Number of blocks, at least 1.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.pieces() * self.parts
    }

    const fn pieces(&self) -> u32 {
        match self.division {
            Division::Even { count, .. } => count,
            Division::Ends(ends) => ends.len() as u32,
        }
    }

    /// Bytes of all blocks.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.end(self.count())
    }

    /// End of the first `count` blocks, in bytes.
    fn end(&self, count: u32) -> u64 {
        self.end_in_units(count).saturating_mul(u64::from(self.unit_bytes))
    }

    fn end_in_units(&self, count: u32) -> u64 {
        let (whole, parts) = (count / self.parts, count % self.parts);
        let start = self.end_of_pieces(whole);
        if parts == 0 {
            return start;
        }
        let len = self.end_of_pieces(whole.saturating_add(1)) - start;
        start + (len.div_ceil(u64::from(self.parts)).saturating_mul(u64::from(parts))).min(len)
    }

    /// End of the first `count` pieces of the division.
    fn end_of_pieces(&self, count: u32) -> u64 {
        match self.division {
            Division::Even { total_bytes, piece_bytes, .. } => {
                piece_bytes.saturating_mul(u64::from(count)).min(total_bytes)
            }
            Division::Ends(ends) => {
                let last = (count as usize).min(ends.len());
                last.checked_sub(1).map_or(0, |last| ends[last])
            }
        }
    }

    /// The same, if its blocks follow from their number: it needs no list then.
    #[must_use]
    pub const fn even(&self) -> Option<Blocks<'static>> {
        let Self { division, parts, unit_bytes } = *self;
        match division {
            Division::Even { total_bytes, piece_bytes, count } => {
                let division = Division::Even { total_bytes, piece_bytes, count };
                Some(Blocks { division, parts, unit_bytes })
            }
            Division::Ends(_) => None,
        }
    }

    /// Bytes of one block; empty for one that is not there.
    #[must_use]
    pub fn block(&self, block: u32) -> Range<u64> {
        self.end(block)..self.end(block.saturating_add(1))
    }

    /// Bytes of a span, in the order of its blocks: one range, or two where it goes on at the beginning; the second may
    /// be empty.
    #[must_use]
    pub fn ranges(&self, span: Span) -> [Range<u64>; 2] {
        let wrapped = (u64::from(span.first) + u64::from(span.count)).saturating_sub(u64::from(self.count())) as u32;
        let upto = span.first.saturating_add(span.count - wrapped.min(span.count));
        [self.end(span.first)..self.end(upto), 0..self.end(wrapped)]
    }

    /// Number of bytes of a span.
    #[must_use]
    pub fn bytes(&self, span: Span) -> u64 {
        self.ranges(span).iter().map(|range| range.end - range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_cover_the_buffer_once() {
        for (blocks, count, last) in [
            (Blocks::equal(7, 3).unwrap(), 3, 14..21),
            (Blocks::unequal(&[4, 4, 21]).unwrap(), 3, 4..21),
            (Blocks::segments(21, 8).unwrap(), 3, 16..21),
            (Blocks::shares(21, 4).unwrap(), 4, 18..21),
            (Blocks::shares(5, 4).unwrap(), 4, 5..5),
            (Blocks::segments(0, 8).unwrap(), 1, 0..0),
            (Blocks::segments(8, 8).unwrap(), 1, 0..8),
            (Blocks::equal(7, 3).unwrap().split(3).unwrap(), 9, 20..21),
            (Blocks::unequal(&[4, 4, 5]).unwrap().split(2).unwrap(), 6, 5..5),
            (Blocks::shares(21, 4).unwrap().in_units(4).unwrap(), 4, 72..84),
            (Blocks::equal(5, 2).unwrap().split(2).unwrap().in_units(8).unwrap(), 4, 64..80),
        ] {
            assert_eq!((blocks.count(), blocks.block(count - 1)), (count, last), "{blocks:?}");
            let mut end = 0;
            for block in 0..count {
                let range = blocks.block(block);
                assert_eq!(range.start, end);
                end = range.end;
            }
            assert_eq!(end, blocks.total_bytes());
            for first in 0..count {
                for length in 0..=count {
                    let span = Span { first, count: length };
                    let each: u64 = span.iter(count).map(|block| blocks.bytes(Span::of(block))).sum();
                    assert_eq!(blocks.bytes(span), each, "{blocks:?} {span:?}");
                }
            }
        }
        let halves = Blocks::unequal(&[4, 9]).unwrap().split(2).unwrap();
        assert_eq!([0, 1, 2, 3].map(|block| halves.block(block)), [0..2, 2..4, 4..7, 7..9]);
        assert_eq!(Blocks::equal(10, 4).unwrap().ranges(Span { first: 3, count: 3 }), [30..40, 0..20]);
    }

    #[test]
    fn divisions_that_cannot_be_are_refused() {
        assert_eq!(Blocks::equal(1, 0), Err(BlocksError::None));
        assert_eq!(Blocks::unequal(&[]), Err(BlocksError::None));
        assert_eq!(Blocks::shares(1, 0), Err(BlocksError::None));
        assert_eq!(Blocks::unequal(&[3, 2]), Err(BlocksError::Order { block: 1, start: 3, end: 2 }));
        assert_eq!(Blocks::segments(1, 0), Err(BlocksError::EmptySegments));
        assert_eq!(Blocks::equal(1, 4).unwrap().split(0), Err(BlocksError::None));
        assert_eq!(Blocks::equal(1, 4).unwrap().split(1 << 30), Err(BlocksError::Parts { blocks: 4, parts: 1 << 30 }));
        assert_eq!(Blocks::equal(1, 4).unwrap().in_units(0), Err(BlocksError::None));
        let huge = Blocks::segments(1 << 62, 1 << 40).unwrap();
        assert_eq!(huge.in_units(4), Err(BlocksError::TooLong { bytes: 1 << 62, count: 4 }));
        let bytes = 1 << 32;
        assert_eq!(Blocks::segments(bytes, 1), Err(BlocksError::TooMany { bytes, segment_bytes: 1 }));
        assert_eq!(Blocks::equal(u64::MAX, 2), Err(BlocksError::TooLong { bytes: u64::MAX, count: 2 }));
    }
}
