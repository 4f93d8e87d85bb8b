//! Point-to-point collectives: the blocks that each rank sends and gets.

use flexcast_proto::p2p::{Blocks, BlocksError, Span};
use flexcast_proto::{Kind, Summary, digest};

use crate::op::displs;
use crate::op::lists::{List, ListPool};
use flexcast_proto::Algorithm;
use flexcast_reduce::Reduction;
use flexcast_sparse::SparseOptions;

/// Where the blocks of ranks lie in a buffer. Only lists that a caller has given take memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// Blocks of one length, one behind the other.
    Equal { bytes: u64, count: u32 },
    /// One block alone, at the beginning.
    Only { rank: u32, bytes: u64, count: u32 },
    /// A buffer cut into pieces.
    Cut(Blocks<'static>),
    /// A buffer cut at any bytes, where pieces end, and each piece into so many parts.
    CutAt { ends: List, parts: u32 },
    /// Bytes and offset of each.
    Listed { bytes: List, offsets: List },
}

impl Default for Places {
    /// No blocks.
    fn default() -> Self {
        Self::equal(0, 0)
    }
}

impl Places {
    /// Blocks of one length, one behind the other.
    pub(crate) const fn equal(bytes: u64, count: u32) -> Self {
        Self::Equal { bytes, count }
    }

    /// One rank's block alone, at the beginning.
    pub(crate) const fn only(rank: u32, bytes: u64, count: u32) -> Self {
        Self::Only { rank, bytes, count }
    }

    /// The blocks of a division. A list, if it needs one, is of a pool.
    pub(crate) fn divided(lists: &ListPool, blocks: &Blocks<'_>) -> Self {
        let ends = || lists.list((0..blocks.count()).map(|block| blocks.block(block).end));
        blocks.even().map_or_else(|| Self::CutAt { ends: ends(), parts: 1 }, Self::Cut)
    }

    /// Blocks that end at `ends`, one behind the other, each cut into `parts`.
    ///
    /// # Errors
    /// No block, ends that go back, no part, or more blocks than can be counted.
    pub(crate) fn cut_at(
        lists: &ListPool,
        ends: impl IntoIterator<Item = u64>,
        parts: u32,
    ) -> std::result::Result<Self, BlocksError> {
        let ends = lists.list(ends);
        Blocks::unequal(&ends)?.split(parts)?;
        Ok(Self::CutAt { ends, parts })
    }

    /// The blocks as a division of the buffer; none unless they lie one behind the other.
    pub(crate) fn cut(&self) -> Option<Blocks<'_>> {
        match self {
            Self::Equal { .. } | Self::Only { .. } | Self::Listed { .. } => None,
            Self::Cut(blocks) => Some(*blocks),
            Self::CutAt { ends, parts } => Blocks::unequal(ends).and_then(|blocks| blocks.split(*parts)).ok(),
        }
    }

    /// The bytes of a span, if the blocks lie one behind the other: one range, or two where it goes on at the
    /// beginning. Ends are not checked again.
    fn ranges(&self, span: Span) -> Option<[std::ops::Range<u64>; 2]> {
        let (ends, parts) = match self {
            Self::Cut(blocks) => return Some(blocks.ranges(span)),
            Self::CutAt { ends, parts } => (ends, *parts),
            Self::Equal { .. } | Self::Only { .. } | Self::Listed { .. } => return None,
        };
        let end_of = |pieces: u32| pieces.checked_sub(1).map_or(0, |last| ends[(last as usize).min(ends.len() - 1)]);
        let end = |blocks: u32| {
            let (start, rest) = (end_of(blocks / parts), u64::from(blocks % parts));
            let len = end_of(blocks / parts + 1) - start;
            start + (len.div_ceil(parts.into()) * rest).min(len)
        };
        let behind = u64::from(span.first) + u64::from(span.count);
        let wrapped = behind.saturating_sub(self.count().into()) as u32;
        let upto = span.first.saturating_add(span.count - wrapped.min(span.count));
        Some([end(span.first)..end(upto), 0..end(wrapped)])
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::Equal { count, .. } | Self::Only { count, .. } => *count,
            Self::Cut(blocks) => blocks.count(),
            Self::CutAt { ends, parts } => ends.len() as u32 * parts,
            Self::Listed { bytes, .. } => bytes.len() as u32,
        }
    }

    /// A block's bytes in the buffer; empty for one that is not there.
    fn block(&self, block: u32) -> std::ops::Range<u64> {
        match self {
            Self::Equal { bytes, count } if block < *count => u64::from(block) * bytes..(u64::from(block) + 1) * bytes,
            Self::Only { rank, bytes, .. } if block == *rank => 0..*bytes,
            Self::Equal { .. } | Self::Only { .. } => 0..0,
            Self::Cut(blocks) => blocks.block(block),
            Self::CutAt { .. } => {
                let [range, _] = self.ranges(Span::of(block)).filter(|_| block < self.count()).unwrap_or_default();
                range
            }
            Self::Listed { bytes, offsets } => match (offsets.get(block as usize), bytes.get(block as usize)) {
                (Some(offset), Some(bytes)) => *offset..offset + bytes,
                _ => 0..0,
            },
        }
    }

    /// Where a block begins, and its bytes; both are 0 for one that is not there.
    pub(crate) fn place(&self, block: u32) -> (u64, u64) {
        let block = self.block(block);
        (block.start, block.end - block.start)
    }

    /// Bytes of a block.
    pub(crate) fn bytes_of(&self, block: u32) -> u64 {
        self.place(block).1
    }

    /// Blocks at offsets, in a buffer of `len` bytes. They may overlap where they are only read (`reads`).
    pub(crate) fn new(
        lists: &ListPool,
        bytes: &[u64],
        offsets: &[u64],
        (ranks, len): (u32, u64),
        reads: bool,
    ) -> std::result::Result<Self, String> {
        for list in [bytes, offsets] {
            if list.len() != ranks as usize {
                return Err(format!("{} lengths or offsets for {ranks} ranks: give one per rank", list.len()));
            }
        }
        for (rank, (bytes, offset)) in bytes.iter().zip(offsets).enumerate() {
            if offset.checked_add(*bytes).is_none_or(|end| end > len) {
                return Err(format!(
                    "the block of rank {rank}, {bytes} bytes at {offset}, ends beyond the buffer of {len} bytes"
                ));
            }
        }
        if !reads && let Some((first, second)) = displs::overlapping(lists, bytes, offsets) {
            return Err(format!(
                "the blocks of ranks {first} and {second} overlap at {}: give each its own place",
                offsets[second]
            ));
        }
        let list = |entries: &[u64]| lists.list(entries.iter().copied());
        Ok(Self::Listed { bytes: list(bytes), offsets: list(offsets) })
    }

    /// The blocks of a span, in its order.
    fn blocks(&self, span: Span) -> impl Iterator<Item = std::ops::Range<u64>> {
        let count = self.count();
        span.iter(count.max(1)).filter(move |block| *block < count).map(|block| self.block(block))
    }

    /// Bytes of a span.
    pub(crate) fn total(&self, span: Span) -> u64 {
        if let Some(ranges) = self.ranges(span) {
            return ranges.iter().map(|range| range.end - range.start).sum();
        }
        self.blocks(span).map(|block| block.end - block.start).sum()
    }

    /// Where the bytes of a span from number `at` on lie, as far as they lie one behind the other. Empty behind the
    /// last.
    pub(crate) fn run(&self, span: Span, mut at: u64) -> std::ops::Range<usize> {
        if let Some([first, second]) = self.ranges(span) {
            let len = first.end - first.start;
            let (range, at) = if at < len || second.is_empty() { (first, at) } else { (second, at - len) };
            return (range.start + at).min(range.end) as usize..range.end as usize;
        }
        let mut run: Option<std::ops::Range<u64>> = None;
        for block in self.blocks(span).filter(|block| !block.is_empty()) {
            match &mut run {
                None if at >= block.end - block.start => at -= block.end - block.start,
                None => run = Some(block.start + at..block.end),
                Some(run) if run.end == block.start => run.end = block.end,
                Some(_) => break,
            }
        }
        run.map_or(0..0, |run| run.start as usize..run.end as usize)
    }

    /// The end of the last block.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Cut(blocks) => return blocks.total_bytes(),
            Self::CutAt { ends, .. } => return ends.last().copied().unwrap_or(0),
            _ => {}
        }
        (0..self.count()).map(|block| self.block(block).end).max().unwrap_or(0)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    Barrier,
    Reduce {
        root: u32,
        bytes: u64,
        reduction: Reduction,
    },
    Allreduce {
        bytes: u64,
        reduction: Reduction,
    },
    /// Through aggregators, without the blocks that are zero.
    SparseAllreduce {
        bytes: u64,
        reduction: Reduction,
        options: SparseOptions,
    },
    /// A share for each rank.
    ReduceScatter {
        shares: List,
        reduction: Reduction,
    },
    Alltoall {
        bytes: u64,
    },
    Alltoallv {
        send: Places,
        receive: Places,
    },
    /// Where the root has all blocks; elsewhere the own one alone.
    Gather {
        root: u32,
        bytes: u64,
    },
    Gatherv {
        root: u32,
        places: Places,
    },
    /// In place: the root's own block stays where it is.
    Scatter {
        root: u32,
        bytes: u64,
        in_place: bool,
    },
    Scatterv {
        root: u32,
        places: Places,
        in_place: bool,
    },
}

impl Collective {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Barrier => Kind::Barrier,
            Self::Reduce { .. } => Kind::Reduce,
            Self::Allreduce { .. } | Self::SparseAllreduce { .. } => Kind::Allreduce,
            Self::ReduceScatter { shares, .. } if shares.iter().all(|bytes| Some(bytes) == shares.first()) => {
                Kind::ReduceScatter
            }
            Self::ReduceScatter { .. } => Kind::ReduceScatterv,
            Self::Alltoall { .. } => Kind::Alltoall,
            Self::Alltoallv { .. } => Kind::Alltoallv,
            Self::Gather { .. } => Kind::Gather,
            Self::Gatherv { .. } => Kind::Gatherv,
            Self::Scatter { .. } => Kind::Scatter,
            Self::Scatterv { .. } => Kind::Scatterv,
        }
    }

    pub(crate) const fn root(&self) -> Option<u32> {
        match self {
            Self::Reduce { root, .. }
            | Self::Gather { root, .. }
            | Self::Gatherv { root, .. }
            | Self::Scatter { root, .. }
            | Self::Scatterv { root, .. } => Some(*root),
            _ => None,
        }
    }

    pub(crate) const fn reduction(&self) -> Option<Reduction> {
        match self {
            Self::Reduce { reduction, .. }
            | Self::Allreduce { reduction, .. }
            | Self::SparseAllreduce { reduction, .. }
            | Self::ReduceScatter { reduction, .. } => Some(*reduction),
            _ => None,
        }
    }

    /// What is compared with the other ranks.
    pub(crate) fn summary(&self, algorithm: Algorithm) -> Summary {
        let amount = match self {
            Self::Reduce { bytes, .. }
            | Self::Allreduce { bytes, .. }
            | Self::SparseAllreduce { bytes, .. }
            | Self::Alltoall { bytes }
            | Self::Gather { bytes, .. }
            | Self::Scatter { bytes, .. } => *bytes,
            Self::ReduceScatter { shares, .. } if self.kind() == Kind::ReduceScatter => {
                shares.first().copied().unwrap_or(0)
            }
            Self::ReduceScatter { shares, .. } => digest(shares.iter().copied()),
            Self::Barrier | Self::Alltoallv { .. } | Self::Gatherv { .. } | Self::Scatterv { .. } => 0,
        };
        let reduction = self.reduction().map_or(0, Reduction::code);
        match self {
            Self::SparseAllreduce { bytes, reduction, options } if algorithm == Algorithm::Sparse => {
                options.summary(*bytes, *reduction)
            }
            _ => Summary::between_pairs(self.kind(), self.root().unwrap_or(0), amount, reduction, algorithm),
        }
    }

    /// Bytes of the send and the receive buffer of a rank; none where any length will do.
    pub(crate) fn buffers(&self, own: u32, ranks: u32) -> [Option<u64>; 2] {
        let all = |bytes: u64| bytes.saturating_mul(ranks.into());
        let is_root = self.root() == Some(own);
        let at_root = |bytes: u64| is_root.then_some(bytes);
        match self {
            Self::Barrier => [Some(0), Some(0)],
            Self::Reduce { bytes, .. } => [Some(*bytes), at_root(*bytes)],
            Self::Allreduce { bytes, .. } | Self::SparseAllreduce { bytes, .. } => [Some(*bytes); 2],
            Self::ReduceScatter { shares, .. } => [Some(shares.iter().sum()), Some(shares[own as usize])],
            Self::Alltoall { bytes } => [Some(all(*bytes)); 2],
            Self::Alltoallv { .. } => [None; 2],
            Self::Gather { bytes, .. } => [Some(*bytes), at_root(all(*bytes))],
            Self::Gatherv { places, .. } => [Some(places.bytes_of(own)), None],
            Self::Scatter { bytes, in_place, .. } => [at_root(all(*bytes)), Some(if *in_place { 0 } else { *bytes })],
            Self::Scatterv { places, in_place, .. } => [None, Some(if *in_place { 0 } else { places.bytes_of(own) })],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_span_are_as_long_as_they_lie_together() {
        let places = Places::Listed { bytes: vec![4, 0, 3, 5].into(), offsets: vec![10, 0, 14, 0].into() };
        let runs = |first, count| {
            let (span, mut at, mut all) = (Span { first, count }, 0, Vec::new());
            loop {
                let run = places.run(span, at);
                if run.is_empty() {
                    assert_eq!(at, places.total(span));
                    return all;
                }
                at += run.len() as u64;
                all.push(run);
            }
        };
        assert_eq!(runs(0, 4), [10..17, 0..5]);
        assert_eq!(runs(2, 3), [14..17, 0..5, 10..14]);
        assert!(runs(1, 1).is_empty());
        assert_eq!(places.run(Span { first: 0, count: 3 }, 5), 15..17);
        assert_eq!(places.end(), 17);
        assert_eq!(Places::default().run(Span::of(0), 0), 0..0);
    }

    #[test]
    fn runs_of_a_buffer_that_is_cut_go_on_at_its_beginning() {
        let places = Places::cut_at(&ListPool::new(4), [4, 10, 10, 17], 1).unwrap();
        let run = |first, count, at| places.run(Span { first, count }, at);
        assert_eq!([run(1, 3, 0), run(1, 3, 5), run(1, 3, 13)], [4..17, 9..17, 17..17]);
        assert_eq!([run(3, 2, 0), run(3, 2, 6), run(3, 2, 7), run(3, 2, 9)], [10..17, 16..17, 0..4, 2..4]);
        assert_eq!([run(2, 1, 0), run(2, 3, 0)], [10..10, 10..17]);
        assert_eq!((places.count(), places.end(), places.total(Span { first: 3, count: 2 })), (4, 17, 11));
        let halves = Places::cut_at(&ListPool::new(2), [4, 10], 2).unwrap();
        assert_eq!((halves.count(), halves.place(3), halves.run(Span { first: 1, count: 2 }, 1)), (4, (7, 3), 3..7));
        assert!(Places::cut_at(&ListPool::new(2), [4, 3], 1).is_err());
        for (ends, parts) in [(&[4, 10, 10, 17][..], 1), (&[4, 10, 10, 17], 3), (&[0, 5], 4), (&[0], 2)] {
            let places = Places::cut_at(&ListPool::new(4), ends.iter().copied(), parts).unwrap();
            let blocks = places.cut().unwrap();
            for span in
                (0..places.count()).flat_map(|first| (0..=places.count()).map(move |count| Span { first, count }))
            {
                assert_eq!(places.ranges(span), Some(blocks.ranges(span)), "{span:?} of {ends:?} in {parts}");
            }
            assert_eq!((places.end(), places.place(places.count())), (blocks.total_bytes(), (0, 0)));
        }
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        let lists = ListPool::new(3);
        let places = |bytes: &[u64], offsets: &[u64], reads| Places::new(&lists, bytes, offsets, (3, 10), reads);
        assert!(places(&[4, 0, 2], &[0, 2, 8], false).is_ok(), "a block without bytes is nowhere");
        let text = |bytes: &[u64], offsets: &[u64]| places(bytes, offsets, false).unwrap_err();
        assert!(text(&[1, 1], &[0, 1, 2]).contains("2 lengths"));
        assert!(text(&[1, 1, 1], &[0, 1]).contains("for 3 ranks"));
        assert!(text(&[4, 4, 3], &[0, 4, 8]).contains("rank 2, 3 bytes at 8, ends beyond"));
        assert!(text(&[4, 4, 2], &[0, u64::MAX, 8]).contains("rank 1"));
        assert!(text(&[4, 4, 2], &[0, 3, 8]).contains("ranks 0 and 1 overlap at 3"));
        assert!(places(&[4, 4, 2], &[0, 3, 8], true).is_ok(), "what is only read may be read twice");
    }
}
