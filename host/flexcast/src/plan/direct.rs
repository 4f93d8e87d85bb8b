//! Point-to-point collectives: the blocks that each rank sends and gets.

use flexcast_proto::p2p::Span;
use flexcast_proto::{Kind, Summary, digest};

use crate::reduce::Reduction;
use crate::tuner::Algorithm;

/// Where the blocks of ranks lie in a buffer: bytes and offset of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) bytes: Vec<u64>,
    pub(crate) offsets: Vec<u64>,
}

impl Places {
    /// Blocks of one length, one behind the other.
    pub(crate) fn equal(bytes: u64, ranks: u32) -> Self {
        let offsets = (0..u64::from(ranks)).map(|rank| rank * bytes).collect();
        Self { bytes: vec![bytes; ranks as usize], offsets }
    }

    /// One rank's block alone, at the beginning.
    pub(crate) fn only(rank: u32, bytes: u64, ranks: u32) -> Self {
        let mut places = Self { bytes: vec![0; ranks as usize], offsets: vec![0; ranks as usize] };
        places.bytes[rank as usize] = bytes;
        places
    }

    /// Blocks at offsets, in a buffer of `len` bytes. They may overlap where they are only read (`reads`).
    pub(crate) fn new(
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
        let mut ends = Vec::with_capacity(bytes.len());
        for (rank, (bytes, offset)) in bytes.iter().zip(offsets).enumerate() {
            match offset.checked_add(*bytes) {
                Some(end) if end <= len => ends.push((*offset, end, rank)),
                _ => {
                    return Err(format!(
                        "the block of rank {rank}, {bytes} bytes at {offset}, ends beyond the buffer of {len} bytes"
                    ));
                }
            }
        }
        if !reads {
            ends.retain(|(start, end, _)| start < end);
            ends.sort_unstable();
            if let Some(pair) = ends.windows(2).find(|pair| pair[0].1 > pair[1].0) {
                return Err(format!(
                    "the blocks of ranks {} and {} overlap at {}: give each its own place",
                    pair[0].2, pair[1].2, pair[1].0
                ));
            }
        }
        Ok(Self { bytes: bytes.to_vec(), offsets: offsets.to_vec() })
    }

    /// The blocks of a span, in its order.
    fn blocks(&self, span: Span) -> impl Iterator<Item = std::ops::Range<u64>> {
        let count = self.bytes.len() as u32;
        span.iter(count.max(1)).filter(move |block| *block < count).map(|block| {
            let at = self.offsets[block as usize];
            at..at + self.bytes[block as usize]
        })
    }

    /// Bytes of a span.
    pub(crate) fn total(&self, span: Span) -> u64 {
        self.blocks(span).map(|block| block.end - block.start).sum()
    }

    /// Where the bytes of a span from number `at` on lie, as far as they lie one behind the other. Empty behind the last.
    pub(crate) fn run(&self, span: Span, mut at: u64) -> std::ops::Range<usize> {
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
        self.offsets.iter().zip(&self.bytes).map(|(offset, bytes)| offset + bytes).max().unwrap_or(0)
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
    /// A share for each rank.
    ReduceScatter {
        shares: Vec<u64>,
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
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Barrier => Kind::Barrier,
            Self::Reduce { .. } => Kind::Reduce,
            Self::Allreduce { .. } => Kind::Allreduce,
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
            | Self::ReduceScatter { reduction, .. } => Some(*reduction),
            _ => None,
        }
    }

    /// What is compared with the other ranks.
    pub(crate) fn summary(&self, algorithm: Algorithm) -> Summary {
        let amount = match self {
            Self::Reduce { bytes, .. }
            | Self::Allreduce { bytes, .. }
            | Self::Alltoall { bytes }
            | Self::Gather { bytes, .. }
            | Self::Scatter { bytes, .. } => *bytes,
            Self::ReduceScatter { shares, .. } => digest(shares.iter().copied()),
            Self::Barrier | Self::Alltoallv { .. } | Self::Gatherv { .. } | Self::Scatterv { .. } => 0,
        };
        let reduction = self.reduction().map_or(0, Reduction::code);
        Summary::between_pairs(self.kind(), self.root().unwrap_or(0), amount, reduction, algorithm)
    }

    /// Bytes of the send and the receive buffer of a rank; none where any length will do.
    pub(crate) fn buffers(&self, own: u32, ranks: u32) -> [Option<u64>; 2] {
        let all = |bytes: u64| bytes.saturating_mul(ranks.into());
        let is_root = self.root() == Some(own);
        let at_root = |bytes: u64| is_root.then_some(bytes);
        match self {
            Self::Barrier => [Some(0), Some(0)],
            Self::Reduce { bytes, .. } => [Some(*bytes), at_root(*bytes)],
            Self::Allreduce { bytes, .. } => [Some(*bytes); 2],
            Self::ReduceScatter { shares, .. } => [Some(shares.iter().sum()), Some(shares[own as usize])],
            Self::Alltoall { bytes } => [Some(all(*bytes)); 2],
            Self::Alltoallv { .. } => [None; 2],
            Self::Gather { bytes, .. } => [Some(*bytes), at_root(all(*bytes))],
            Self::Gatherv { places, .. } => [Some(places.bytes[own as usize]), None],
            Self::Scatter { bytes, in_place, .. } => [at_root(all(*bytes)), Some(if *in_place { 0 } else { *bytes })],
            Self::Scatterv { places, in_place, .. } => {
                [None, Some(if *in_place { 0 } else { places.bytes[own as usize] })]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_span_are_as_long_as_they_lie_together() {
        let places = Places { bytes: vec![4, 0, 3, 5], offsets: vec![10, 0, 14, 0] };
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
        assert_eq!(runs(1, 1), []);
        assert_eq!(places.run(Span { first: 0, count: 3 }, 5), 15..17);
        assert_eq!(places.end(), 17);
        assert_eq!(Places::default().run(Span::of(0), 0), 0..0);
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        let places = |bytes: &[u64], offsets: &[u64], reads| Places::new(bytes, offsets, (3, 10), reads);
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
