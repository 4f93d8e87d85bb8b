//! Missing chunks of a receive context of image `allgather`, from the words that it copies to host memory
//! (`abi::ReceiveContext`): bitmap and *tail bitmap*.
//!
//! A set bit says that the PSN's chunk is there, or is not expected because it is the own rank's. The last PSN of a run whose last chunk is
//! shorter than the others always has its bit set; whether that chunk is there shows in the run's bit of the tail bitmap.

use crate::bitmap::Run;
use crate::space::ReceiveSpace;

/// The runs of missing PSNs, root by root and ascending, each with the root whose chunks they are. Runs of different roots are not merged:
/// recovery goes by root. `words` are the bitmap's and `tails` those behind them, least significant bit first; words that are not there
/// count as clear.
pub fn missing<'a>(
    space: &'a ReceiveSpace<'a>,
    words: &'a [u64],
    tails: &'a [u64],
) -> impl Iterator<Item = (u32, Run)> + 'a {
    (0..space.roots()).flat_map(move |root| {
        let (first, chunks) = space.psns(root).unwrap_or((0, 0));
        let end = first + chunks;
        let short = space.last_chunk_is_short(root);
        // The bitmap tells the truth about those before this one.
        let regular = if short { end - 1 } else { end };
        let lacks_last = short && !is_set(tails, u64::from(root));
        let mut at = first;
        core::iter::from_fn(move || {
            let from = find(words, at, regular, false);
            if from == regular && !(lacks_last && at < end) {
                return None;
            }
            let to = find(words, from, regular, true);
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

/// Whether a later chunk of the same root has come than those of a run that [`missing`] lists. Each root's chunks come in the order of their PSNs: those
/// that have been overtaken are lost, the others may still come.
#[must_use]
pub fn is_overtaken(space: &ReceiveSpace<'_>, root: u32, run: Run) -> bool {
    let (first, chunks) = space.psns(root).unwrap_or((0, 0));
    run.first + run.count < first + chunks
}

fn word(words: &[u64], index: u64) -> u64 {
    usize::try_from(index).ok().and_then(|index| words.get(index)).copied().unwrap_or(0)
}

fn is_set(words: &[u64], bit: u64) -> bool {
    word(words, bit / 64) >> (bit % 64) & 1 == 1
}

/// First bit from `from` on whose value is `set`; `end` if there is none before it.
fn find(words: &[u64], from: u64, end: u64, set: bool) -> u64 {
    let mut bit = from;
    while bit < end {
        let word = word(words, bit / 64);
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
        let look = |words: u64, tails: u64| {
            let (words, tails) = ([words | 0b100_100], [tails]);
            let of = |(root, run)| (is_overtaken(&space, root, run), run.count);
            missing(&space, &words, &tails).map(of).collect::<Vec<_>>()
        };
        assert_eq!(look(0, 0), [(false, 3), (false, 3)]);
        assert_eq!(look(0b001_010, 0b00), [(true, 1), (false, 1), (false, 2)]);
        assert_eq!(look(0b001_010, 0b11), [(true, 1), (true, 1)]);
        assert_eq!(look(0b011_011, 0b11), []);
    }

    proptest! {
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
