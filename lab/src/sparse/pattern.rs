//! Patterns of zero blocks in the arrays of workers.

use std::ops::Range;

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

crate::options::named!(PatternName);

/// How the patterns of workers belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PatternName {
    /// The same blocks at all workers, as in the publication.
    #[default]
    Identical,
    /// Each worker's are drawn by themselves.
    Independent,
    /// Half of the blocks are the same at all workers, each other one is drawn by each worker.
    Overlapping,
    /// Each worker's are drawn by themselves, but some blocks are seldom zero: the probability that a block is not
    /// falls with its rank, as one to the power of -1. Ranks are dealt to blocks by a fixed permutation. So it is with
    /// rows of embeddings, of which batches hit few often and most seldom.
    Powerlaw,
}

/// Numerator of the power law: a block at the part `u` of all ranks, above 0 and up to 1, is not zero with the
/// probability min(1, share / u), and of all blocks `density` are not.
pub(crate) fn power_law_share(density: f64) -> f64 {
    // The mean of min(1, c / u) is c (1 + ln(1 / c)), which rises with c.
    let mean = |share: f64| if share > 0.0 { share * (1.0 - share.ln()) } else { 0.0 };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if mean(middle) < density { low = middle } else { high = middle }
    }
    if density >= 1.0 { 1.0 } else { low }
}

/// Seed of the permutation of [`PatternName::Powerlaw`].
const PERMUTATION: u64 = 1;

/// One bit per block and worker: set where it is not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    blocks: u64,
    /// Of workers with the same pattern there is one.
    maps: Vec<Vec<u64>>,
}

impl Pattern {
    /// Draws the patterns of so many workers: a block is zero with this probability.
    #[must_use]
    pub fn new(name: PatternName, workers: u32, blocks: u64, sparsity: f64, seed: u64) -> Self {
        let draw_by = |stream: u64, is_set: &dyn Fn(u64, f64) -> bool, map: &mut [u64]| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(stream);
            for block in 0..blocks {
                if is_set(block, random.random::<f64>()) {
                    map[(block / 64) as usize] |= 1 << (block % 64);
                }
            }
        };
        let draw = |stream: u64, wanted: &dyn Fn(u64) -> bool, map: &mut [u64]| {
            draw_by(stream, &|block, drawn| drawn >= sparsity && wanted(block), map);
        };
        let mut common = vec![0; blocks.div_ceil(64) as usize];
        let maps = match name {
            PatternName::Identical => {
                draw(0, &|_| true, &mut common);
                vec![common]
            }
            PatternName::Independent => (1..=u64::from(workers))
                .map(|stream| {
                    let mut map = common.clone();
                    draw(stream, &|_| true, &mut map);
                    map
                })
                .collect(),
            PatternName::Overlapping => {
                draw(0, &|block| block % 2 == 0, &mut common);
                (1..=u64::from(workers))
                    .map(|stream| {
                        let mut map = common.clone();
                        draw(stream, &|block| block % 2 == 1, &mut map);
                        map
                    })
                    .collect()
            }
            PatternName::Powerlaw => {
                let mut ranks: Vec<u64> = (0..blocks).collect();
                ranks.shuffle(&mut ChaCha8Rng::seed_from_u64(PERMUTATION));
                let share = power_law_share(1.0 - sparsity) * blocks as f64;
                let is_set = |block: u64, drawn: f64| drawn * (ranks[block as usize] as f64 + 0.5) < share;
                (1..=u64::from(workers))
                    .map(|stream| {
                        let mut map = common.clone();
                        draw_by(stream, &is_set, &mut map);
                        map
                    })
                    .collect()
            }
        };
        Self { blocks, maps }
    }

    /// Blocks of the array.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    fn map(&self, worker: u32) -> &[u64] {
        self.maps.get(worker as usize).or(self.maps.first()).map_or(&[], Vec::as_slice)
    }

    /// The first block of a worker's, in this range, that is not zero.
    #[must_use]
    pub fn next(&self, worker: u32, range: Range<u64>) -> Option<u64> {
        let map = self.map(worker);
        let mut at = range.start;
        while at < range.end {
            let rest = map.get((at / 64) as usize)? >> (at % 64);
            if rest != 0 {
                return Some(at + u64::from(rest.trailing_zeros())).filter(|block| *block < range.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// How many blocks of a worker's, in this range, are not zero.
    #[must_use]
    pub fn count(&self, worker: u32, range: Range<u64>) -> u64 {
        let map = self.map(worker);
        count(range, |word| map.get(word).copied().unwrap_or(0))
    }

    /// How many blocks in this range are not zero at some worker.
    #[must_use]
    pub fn union(&self, range: Range<u64>) -> u64 {
        count(range, |word| self.maps.iter().filter_map(|map| map.get(word)).fold(0, |all, bits| all | bits))
    }
}

/// Set bits of words in a range of bits.
fn count(range: Range<u64>, word: impl Fn(usize) -> u64) -> u64 {
    let mut sum = 0;
    let mut at = range.start;
    while at < range.end {
        let end = ((at / 64 + 1) * 64).min(range.end);
        let bits = word((at / 64) as usize) >> (at % 64);
        let kept = if end - at == 64 { bits } else { bits & ((1 << (end - at)) - 1) };
        sum += u64::from(kept.count_ones());
        at = end;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_and_counted_one_by_one() {
        for name in [PatternName::Identical, PatternName::Independent, PatternName::Overlapping, PatternName::Powerlaw]
        {
            let pattern = Pattern::new(name, 3, 1000, 0.9, 7);
            for range in [0..1000, 63..65, 64..128, 1..2, 130..777, 5..5] {
                let mut union = std::collections::BTreeSet::new();
                for worker in 0..3 {
                    let mut at = range.start;
                    let mut all = Vec::new();
                    while let Some(block) = pattern.next(worker, at..range.end) {
                        all.push(block);
                        at = block + 1;
                    }
                    let one = |block: &u64| pattern.count(worker, *block..*block + 1) == 1;
                    assert_eq!(all, range.clone().filter(one).collect::<Vec<_>>());
                    assert_eq!(all.len() as u64, pattern.count(worker, range.clone()));
                    union.extend(all);
                }
                assert_eq!(union.len() as u64, pattern.union(range));
            }
        }
    }

    #[test]
    fn a_power_law_has_the_share_that_is_asked_for_and_few_hot_blocks() {
        for sparsity in [0.0, 0.5, 0.9, 0.99, 1.0] {
            let pattern = Pattern::new(PatternName::Powerlaw, 4, 100_000, sparsity, 3);
            for worker in 0..4 {
                let share = pattern.count(worker, 0..100_000) as f64 / 100_000.0;
                assert!((share - (1.0 - sparsity)).abs() < 0.01, "{sparsity}: {share}");
            }
        }
        // Hot blocks are those of all workers: the union is far smaller than that of blocks drawn alike.
        let of = |name| Pattern::new(name, 6, 100_000, 0.9, 1).union(0..100_000) as f64 / 100_000.0;
        let (power_law, independent) = (of(PatternName::Powerlaw), of(PatternName::Independent));
        assert!((independent - 0.469).abs() < 0.01 && (0.2..0.4).contains(&power_law), "{power_law} {independent}");
    }

    #[test]
    fn shares_are_as_asked_for() {
        let share = |name, sparsity| {
            let pattern = Pattern::new(name, 6, 100_000, sparsity, 1);
            pattern.union(0..100_000) as f64 / 100_000.0
        };
        assert!((share(PatternName::Identical, 0.75) - 0.25).abs() < 0.01);
        assert!((share(PatternName::Independent, 0.75) - 0.822).abs() < 0.01);
        assert!((share(PatternName::Overlapping, 0.75) - 0.536).abs() < 0.01);
        assert_eq!((share(PatternName::Identical, 0.0), share(PatternName::Independent, 1.0)), (1.0, 0.0));
    }
}
