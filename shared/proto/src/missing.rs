//! Missing chunks of a receive context of image `allgather`, from the words that it copies to host memory
//! (`abi::ReceiveContext`): bitmap and *tail bitmap*.
//!
//! A set bit says that the PSN's chunk is there, or is not expected because it is the own rank's. The last PSN of a run
//! whose last chunk is shorter than the others always has its bit set; whether that chunk is there shows in the run's
//! bit of the tail bitmap.

use core::ops::Range;

use crate::bitmap::Run;
use crate::space::ReceiveSpace;

/// The runs of missing PSNs, root by root and ascending, each with the root whose chunks they are. Runs of different
/// roots are not merged: recovery goes by root. `words` are the bitmap's and `tails` those behind them, least
/// significant bit first; words that are not there count as clear.
pub fn missing<'a>(
    space: &'a ReceiveSpace<'a>,
    words: &'a [u64],
    tails: &'a [u64],
) -> impl Iterator<Item = (u32, Run)> + 'a {
    (0..space.roots()).flat_map(move |root| {
        let (first, chunks) = space.psns(root).unwrap_or((0, 0));
        let end = first + chunks;
        let short = space.last_chunk_is_short(root);
        // The bitmap is right about those before this one.
        let regular = if short { end - 1 } else { end };
        let lacks_last = short && !is_set(tails, u64::from(root));
        let mut at = first;
        core::iter::from_fn(move || {
            let from = find(|index| word(words, index), at, regular, false);
            if from == regular && !(lacks_last && at < end) {
                return None;
            }
            let to = find(|index| word(words, index), from, regular, true);
            at = if to == regular && lacks_last { end } else { to };
            Some((root, Run { first: from, count: at - from }))
        })
    })
}

/// Number of missing PSNs: what [`missing`] lists, in all.
#[must_use]
pub fn missing_chunks(space: &ReceiveSpace<'_>, words: &[u64], tails: &[u64]) -> u64 {
    missing(space, words, tails).map(|(_, run)| run.count).sum()
}

/// Whether a later chunk of the same root has come than those of a run that [`missing`] lists. Each root's chunks come
/// in the order of their PSNs: those that have been overtaken are lost, the others may still come.
#[must_use]
pub fn is_overtaken(space: &ReceiveSpace<'_>, root: u32, run: Run) -> bool {
    let (first, chunks) = space.psns(root).unwrap_or((0, 0));
    run.first + run.count < first + chunks
}

/// One root's chunks in a receive context, and the pieces of its block to which they belong: what [`missing`] knows
/// from a [`ReceiveSpace`], as whoever has no table of all roots gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRun {
    /// PSN of its first chunk.
    pub first_psn: u64,
    /// Its chunks.
    pub chunks: u64,
    /// Number of the first chunk within the root's block.
    pub first_chunk: u64,
    /// Chunks of each piece of that block; 0 counts as 1.
    pub piece_chunks: u64,
    /// The last chunk is shorter than the others, so that its bit of the bitmap is always set.
    pub is_short: bool,
}

impl RootRun {
    const fn end(&self) -> u64 {
        self.first_psn.saturating_add(self.chunks)
    }

    const fn piece_chunks(&self) -> u64 {
        if self.piece_chunks == 0 { 1 } else { self.piece_chunks }
    }

    /// The PSNs of all its chunks.
    #[must_use]
    pub const fn all(&self) -> Range<u64> {
        self.first_psn..self.end()
    }

    /// The PSNs of a piece of the block; none if it has no chunks here.
    #[must_use]
    pub fn psns(&self, piece: u64) -> Range<u64> {
        let first = piece.saturating_mul(self.piece_chunks());
        let psn = |chunk: u64| self.first_psn.saturating_add(chunk.saturating_sub(self.first_chunk)).min(self.end());
        psn(first)..psn(first.saturating_add(self.piece_chunks()))
    }

    /// The piece of the block to which the chunk with this PSN belongs.
    #[must_use]
    pub const fn piece(&self, psn: u64) -> u64 {
        let chunk = self.first_chunk.saturating_add(psn.saturating_sub(self.first_psn));
        // Firmware cannot prove that nobody divides by zero otherwise.
        match chunk.checked_div(self.piece_chunks()) {
            Some(piece) => piece,
            None => 0,
        }
    }

    /// The first run of missing PSNs within these, which are of this run. `word`: the words of the bitmap; `has_last`:
    /// the run's bit of the tail bitmap.
    #[must_use]
    pub fn missing(&self, psns: Range<u64>, word: impl Fn(u64) -> u64, has_last: bool) -> Option<Run> {
        let Range { start, end } = psns;
        let last = self.end().saturating_sub(1);
        let lacks_last = self.is_short && !has_last && start <= last && last < end;
        let regular = if self.is_short { end.min(last) } else { end };
        let first = find(&word, start, regular, false).min(regular);
        if first >= regular && !lacks_last {
            return None;
        }
        let to = find(&word, first, regular, true);
        let to = if to >= regular && lacks_last { end } else { to };
        Some(Run { first, count: to.saturating_sub(first) })
    }
}

fn word(words: &[u64], index: u64) -> u64 {
    usize::try_from(index).ok().and_then(|index| words.get(index)).copied().unwrap_or(0)
}

fn is_set(words: &[u64], bit: u64) -> bool {
    word(words, bit / 64) >> (bit % 64) & 1 == 1
}

/// First bit from `from` on whose value is `set`; `end` if there is none before it.
fn find(word: impl Fn(u64) -> u64, from: u64, end: u64, set: bool) -> u64 {
    let mut bit = from;
    while bit < end {
        let word = word(bit / 64);
        let wanted = if set { word } else { !word } >> (bit % 64);
        if wanted != 0 {
            return (bit + u64::from(wanted.trailing_zeros())).min(end);
        }
        bit = (bit | 63) + 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Subgroup;
    use crate::space::RootRow;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// Roots at most, and bytes of a chunk at least. Under Miri there are few chunks.
    const ROOTS: usize = if cfg!(miri) { 3 } else { 12 };
    const CHUNK_BYTES: u32 = if cfg!(miri) { 9 } else { 1 };

    /// Words of the bitmap: more than all chunks of all roots.
    const WORDS: usize = if cfg!(miri) { 30 } else { 900 };

    /// What the definition above says, PSN by PSN.
    fn lacks(space: &ReceiveSpace<'_>, chunk_bytes: u32, words: &[u64], tails: &[u64], psn: u64) -> bool {
        let place = space.place(psn).unwrap();
        let (first, chunks) = space.psns(place.root).unwrap();
        let is_last = psn + 1 == first + chunks;
        let edge = is_last && place.bytes != chunk_bytes && !is_set(tails, u64::from(place.root));
        !is_set(words, psn) || edge
    }

    fn check(space: &ReceiveSpace<'_>, chunk_bytes: u32, words: &[u64], tails: &[u64]) -> Result<(), TestCaseError> {
        let mut words = words.to_vec();
        // A receive context sets the bits of short chunks beforehand.
        for root in 0..space.roots() {
            let (first, chunks) = space.psns(root).unwrap();
            if space.last_chunk_is_short(root) {
                let last = first + chunks - 1;
                words[last as usize / 64] |= 1 << (last % 64);
            }
        }
        let mut listed = vec![];
        let mut before = None;
        for (root, run) in missing(space, &words, tails) {
            prop_assert!(run.count > 0);
            prop_assert!(
                before.is_none_or(|(last, end)| last < root || end < run.first),
                "ascending, adjacent ones merged"
            );
            before = Some((root, run.first + run.count));
            for psn in run.first..run.first + run.count {
                prop_assert_eq!(space.place(psn).unwrap().root, root);
                listed.push(psn);
            }
        }
        let expected: Vec<u64> =
            (0..space.chunks()).filter(|&psn| lacks(space, chunk_bytes, &words, tails, psn)).collect();
        prop_assert_eq!(missing_chunks(space, &words, tails), expected.len() as u64);
        prop_assert_eq!(listed, expected);
        Ok(())
    }

    #[test]
    fn an_edge_joins_the_run_before_it() {
        // 2 roots of 3 chunks, the last one short.
        let space = ReceiveSpace::equal(2, 20, 8, Subgroup { index: 0, count: 1 }).unwrap();
        let runs = |words: u64, tails: u64| missing(&space, &[words], &[tails]).collect::<Vec<_>>();
        let short = 0b100_100;
        assert_eq!(runs(short, 0b00), [(0, Run { first: 0, count: 3 }), (1, Run { first: 3, count: 3 })]);
        assert_eq!(runs(short | 0b11, 0b00), [(0, Run { first: 2, count: 1 }), (1, Run { first: 3, count: 3 })]);
        assert_eq!(runs(short | 0b11_011, 0b10), [(0, Run { first: 2, count: 1 })]);
        assert_eq!(runs(short | 0b11_011, 0b11), []);
        assert_eq!(missing_chunks(&space, &[], &[]), 6, "no words, no chunk");
    }

    #[test]
    fn what_a_later_chunk_has_overtaken_is_lost() {
        // 2 roots of 3 chunks, the last one short.
        let space = ReceiveSpace::equal(2, 20, 8, Subgroup { index: 0, count: 1 }).unwrap();
        let found = |words: u64, tails: u64| {
            let (words, tails) = ([words | 0b100_100], [tails]);
            let of = |(root, run)| (is_overtaken(&space, root, run), run.count);
            missing(&space, &words, &tails).map(of).collect::<Vec<_>>()
        };
        assert_eq!(found(0, 0), [(false, 3), (false, 3)]);
        assert_eq!(found(0b001_010, 0b00), [(true, 1), (false, 1), (false, 2)]);
        assert_eq!(found(0b001_010, 0b11), [(true, 1), (true, 1)]);
        assert_eq!(found(0b011_011, 0b11), []);
    }

    /// The runs that a root's run lists, piece by piece.
    fn by_pieces(run: RootRun, words: &[u64], has_last: bool) -> Vec<Run> {
        let word = |index: u64| super::word(words, index);
        let mut listed = vec![];
        for piece in 0..run.piece(run.all().end) + 1 {
            let mut psns = run.psns(piece);
            while let Some(found) = run.missing(psns.clone(), word, has_last) {
                assert!(psns.start <= found.first && found.count > 0 && found.first + found.count <= psns.end);
                assert_eq!((run.piece(found.first), run.piece(found.first + found.count - 1)), (piece, piece));
                listed.push(found);
                psns.start = found.first + found.count;
            }
        }
        listed
    }

    #[test]
    fn a_run_of_nothing_and_pieces_beyond_it_miss_nothing() {
        let empty = RootRun { first_psn: 9, chunks: 0, first_chunk: 0, piece_chunks: 0, is_short: true };
        assert_eq!((empty.psns(0), empty.psns(7)), (9..9, 9..9));
        assert_eq!(empty.missing(empty.all(), |_| 0, false), None);
        let run = RootRun { first_psn: 9, chunks: 4, first_chunk: 6, piece_chunks: 4, is_short: true };
        assert_eq!([0, 1, 2, 3, u64::MAX].map(|piece| run.psns(piece)), [9..9, 9..11, 11..13, 13..13, 13..13]);
        let of = |psns, has_last| run.missing(psns, |_| 1 << 12, has_last);
        assert_eq!(of(11..13, false), Some(Run { first: 11, count: 2 }));
        assert_eq!(of(11..13, true), Some(Run { first: 11, count: 1 }));
        assert_eq!(of(12..13, true), None);
        assert_eq!(of(12..13, false), Some(Run { first: 12, count: 1 }));
    }

    proptest! {
        /// What roots' runs list, joined where pieces meet, is what the whole space lists.
        #[test]
        fn runs_of_single_roots_list_the_same(
            bytes in proptest::collection::vec(prop_oneof![Just(0u64), 1u64..60, 1u64..900], 1..ROOTS),
            chunk_bytes in CHUNK_BYTES..12, count in 1u32..4, index in 0u32..4, piece_chunks in 1u64..20,
            words in proptest::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], WORDS),
            tails in any::<u64>(),
        ) {
            let subgroup = Subgroup { index: index % count, count };
            let mut table = vec![RootRow::default(); bytes.len()];
            let space = ReceiveSpace::each(bytes.iter().copied(), chunk_bytes, subgroup, &mut table).unwrap();
            let mut words = words;
            let mut runs: Vec<(u32, Run)> = vec![];
            let mut of_roots = vec![];
            for root in 0..space.roots() {
                let (first_psn, chunks) = space.psns(root).unwrap();
                let is_short = space.last_chunk_is_short(root);
                if is_short {
                    let last = first_psn + chunks - 1;
                    words[last as usize / 64] |= 1 << (last % 64);
                }
                let first_chunk = if chunks == 0 { 0 } else { space.place(first_psn).unwrap().chunk };
                of_roots.push(RootRun { first_psn, chunks, first_chunk, piece_chunks, is_short });
            }
            for (root, run) in (0..).zip(of_roots) {
                for found in by_pieces(run, &words, is_set(&[tails], u64::from(root))) {
                    match runs.last_mut() {
                        Some((of, last)) if *of == root && last.first + last.count == found.first => {
                            last.count += found.count;
                        }
                        _ => runs.push((root, found)),
                    }
                }
            }
            prop_assert_eq!(runs, missing(&space, &words, &[tails]).collect::<Vec<_>>());
        }

        #[test]
        fn agrees_with_the_definition(
            bytes in proptest::collection::vec(prop_oneof![Just(0u64), 1u64..60, 1u64..900], 0..ROOTS),
            chunk_bytes in CHUNK_BYTES..12, count in 1u32..4, index in 0u32..4,
            words in proptest::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], WORDS),
            tails in any::<u64>(),
        ) {
            let subgroup = Subgroup { index: index % count, count };
            let mut table = vec![RootRow::default(); bytes.len()];
            let space = ReceiveSpace::each(bytes.iter().copied(), chunk_bytes, subgroup, &mut table).unwrap();
            check(&space, chunk_bytes, &words, &[tails])?;
            let roots = bytes.len() as u32;
            let space = ReceiveSpace::equal(roots, bytes.first().copied().unwrap_or(0), chunk_bytes, subgroup).unwrap();
            check(&space, chunk_bytes, &words, &[tails])?;
        }
    }
}
