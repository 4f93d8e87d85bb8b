//! Choice between a sparse AllReduce and one of the whole array: the times that were measured on a network, and how
//! full arrays have been.

use crate::error::{Error, Result};
use flexcast_reduce::Reduction;

/// Most points: what ranks send one another stays short.
const MOST_COSTS: usize = 256;
/// Arrays that are remembered.
const MOST_ARRAYS: usize = 64;
/// Of so many AllReduces of one array that is too full, one searches for zeros again.
const SEARCH_EVERY: u32 = 16;
const MILLION: u32 = 1_000_000;
/// The density of [`SparseCost::tenth_us`].
const TENTH: u32 = MILLION / 10;
const PS_PER_US: u64 = 1_000_000;

/// A point of a [`Tuning`](crate::Tuning): how long an AllReduce of one length takes that sends everything, and a
/// sparse one of a full array and of one that is nearly empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct SparseCost {
    /// Most ranks of a communicator to which it applies. Of all points, those count that have the least such number; of
    /// more ranks those that have the most.
    pub ranks: u32,
    /// Bytes of the array. Between two points times are interpolated, beyond the longest they grow in proportion.
    pub bytes: u64,
    /// Microseconds of the fastest AllReduce that sends everything.
    pub dense_us: u32,
    /// Microseconds of a sparse AllReduce in whose arrays nothing is zero.
    pub full_us: u32,
    /// Microseconds of one in whose arrays nine of ten blocks are zero, the same on all ranks. Emptier arrays are taken
    /// to be no faster: of a short one a round trip is most.
    pub tenth_us: u32,
}

/// What an array is expected to take, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) dense_ps: u64,
    full_ps: u64,
    tenth_ps: u64,
}

/// All points of a table, by number of ranks and then by length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SparseCosts(Vec<SparseCost>);

/// How many blocks of an array were not zero on some rank, as the last sparse AllReduce of such an array found it. All
/// ranks call and find the same, so that this is alike on all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Densities(Vec<Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    bytes: u64,
    reduction: Reduction,
    /// Of a million blocks.
    density_ppm: u32,
    /// AllReduces since then that have sent everything.
    dense: u32,
}

impl Times {
    /// By a sparse AllReduce.
    pub(crate) fn sparse_ps(&self, density_ppm: u32) -> u64 {
        let beyond = density_ppm.min(MILLION).saturating_sub(TENTH);
        let more_ps = self.full_ps.saturating_sub(self.tenth_ps);
        self.tenth_ps + (u128::from(more_ps) * u128::from(beyond) / u128::from(MILLION - TENTH)) as u64
    }

    /// Whether zeros are to be searched for, if that is what is known.
    pub(crate) fn favour_sparse(&self, known: Option<u32>) -> bool {
        // Before the first search arrays are taken for nearly empty.
        self.sparse_ps(known.unwrap_or(0)) < self.dense_ps
    }
}

impl SparseCosts {
    /// # Errors
    /// [`Error::Argument`]: too many points, or one that cannot be.
    pub(crate) fn new(mut costs: Vec<SparseCost>) -> Result<Self> {
        let wrong = |reason: String| Err(Error::Argument { operation: "tuning", reason });
        if costs.len() > MOST_COSTS {
            return wrong(format!("{} points of sparse AllReduces: at most {MOST_COSTS}", costs.len()));
        }
        for SparseCost { bytes, full_us, tenth_us, .. } in &costs {
            if tenth_us > full_us {
                return wrong(format!(
                    "a sparse AllReduce of {bytes} bytes takes {tenth_us} us with a tenth of its blocks, and {full_us} \
                     us with all: tenth_us is at most full_us"
                ));
            }
        }
        costs.sort_by_key(|cost| (cost.ranks, cost.bytes));
        costs.dedup_by_key(|cost| (cost.ranks, cost.bytes));
        Ok(Self(costs))
    }

    pub(crate) fn points(&self) -> &[SparseCost] {
        &self.0
    }

    /// These, or others if there are none.
    pub(crate) fn or(self, other: Self) -> Self {
        if self.0.is_empty() { other } else { self }
    }

    /// What an array takes among so many ranks; none if nothing is known.
    pub(crate) fn times(&self, ranks: u32, bytes: u64) -> Option<Times> {
        let all = &self.0;
        let most =
            all.iter().map(|cost| cost.ranks).find(|most| *most >= ranks).or(all.last().map(|cost| cost.ranks))?;
        let points = &all[all.partition_point(|cost| cost.ranks < most)..];
        let points = &points[..points.partition_point(|cost| cost.ranks == most)];
        let behind = points.partition_point(|cost| cost.bytes < bytes);
        let (before, after) = (behind.checked_sub(1).and_then(|at| points.get(at)), points.get(behind));
        let of = |us: fn(&SparseCost) -> u32| {
            let ps = |cost: &SparseCost| u64::from(us(cost)) * PS_PER_US;
            match (before, after) {
                // Shorter than all that was measured.
                (None, Some(first)) => ps(first),
                (Some(last), None) => {
                    let scaled = u128::from(ps(last)) * u128::from(bytes) / u128::from(last.bytes.max(1));
                    u64::try_from(scaled).unwrap_or(u64::MAX / 2)
                }
                (Some(left), Some(right)) => {
                    let (from, to) = (i128::from(ps(left)), i128::from(ps(right)));
                    let (part, whole) = (bytes - left.bytes, right.bytes - left.bytes);
                    (from + (to - from) * i128::from(part) / i128::from(whole)) as u64
                }
                (None, None) => 0,
            }
        };
        Some(Times {
            dense_ps: of(|cost| cost.dense_us),
            full_ps: of(|cost| cost.full_us),
            tenth_ps: of(|cost| cost.tenth_us),
        })
    }
}

impl Densities {
    /// Blocks of a million of such an array that are expected not to be zero; none if none was searched, or not for
    /// long.
    pub(crate) fn known(&self, bytes: u64, reduction: Reduction) -> Option<u32> {
        let seen = self.0.iter().find(|seen| (seen.bytes, seen.reduction) == (bytes, reduction))?;
        (seen.dense + 1 < SEARCH_EVERY).then_some(seen.density_ppm)
    }

    /// An AllReduce of such an array is over: a sparse one has summed up so many of all its blocks, another one (none)
    /// has not searched for zeros.
    pub(crate) fn note(&mut self, bytes: u64, reduction: Reduction, found: Option<(u64, u64)>) {
        let at = self.0.iter().position(|seen| (seen.bytes, seen.reduction) == (bytes, reduction));
        let last = at.map(|at| self.0.remove(at));
        let next = match (found, last) {
            (Some((summed, blocks)), _) => {
                let ppm = u128::from(summed) * u128::from(MILLION) / u128::from(blocks.max(1));
                Some(Seen { bytes, reduction, density_ppm: ppm.min(MILLION.into()) as u32, dense: 0 })
            }
            (None, Some(seen)) => Some(Seen { dense: seen.dense.saturating_add(1), ..seen }),
            (None, None) => None,
        };
        if next.is_some() && self.0.len() >= MOST_ARRAYS {
            self.0.remove(0);
        }
        self.0.extend(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexcast_reduce::{DataType, Operator};

    fn sum() -> Reduction {
        Reduction::of(Operator::Sum, DataType::F32).unwrap()
    }

    fn cost(ranks: u32, bytes: u64, [dense_us, full_us, tenth_us]: [u32; 3]) -> SparseCost {
        SparseCost { ranks, bytes, dense_us, full_us, tenth_us }
    }

    #[test]
    fn times_lie_between_those_of_two_points() {
        let points = vec![cost(8, 300, [30, 60, 20]), cost(8, 100, [10, 40, 10]), cost(4, 100, [1, 2, 1])];
        let costs = SparseCosts::new(points).unwrap();
        let us = |ranks, bytes| {
            let times = costs.times(ranks, bytes).unwrap();
            [times.dense_ps, times.full_ps, times.tenth_ps].map(|ps| ps / PS_PER_US)
        };
        assert_eq!(us(5, 200), [20, 50, 15]);
        assert_eq!(us(5, 100), [10, 40, 10]);
        assert_eq!(us(5, 7), [10, 40, 10], "as the shortest");
        assert_eq!(us(8, 3000), [300, 600, 200], "in proportion to the longest");
        assert_eq!(us(2, 200), [2, 4, 2], "the points of the fewest ranks that are enough");
        assert_eq!(us(9, 100), [10, 40, 10], "of more ranks those of the most");
        assert_eq!(SparseCosts::default().times(4, 100), None);
        // No overflow: bytes are whatever somebody calls with.
        assert!(costs.times(4, u64::MAX).unwrap().dense_ps > 0);
    }

    #[test]
    fn points_that_cannot_be_are_refused() {
        let error = SparseCosts::new(vec![cost(4, 64, [5, 1, 2])]).unwrap_err().to_string();
        assert!(error.contains("2 us") && error.contains("64 bytes"), "{error}");
        let error = SparseCosts::new((0..257).map(|bytes| cost(4, bytes, [1; 3])).collect()).unwrap_err().to_string();
        assert!(error.contains("257") && error.contains("256"), "{error}");
    }

    #[test]
    fn the_fuller_an_array_the_longer_it_takes() {
        let costs = SparseCosts::new(vec![cost(8, 100, [30, 65, 20])]).unwrap();
        let times = costs.times(8, 100).unwrap();
        let us = |ppm| times.sparse_ps(ppm) / PS_PER_US;
        assert_eq!([0, 1, 100_000, 300_000, MILLION, u32::MAX].map(us), [20, 20, 20, 30, 65, 65]);
        assert!(times.favour_sparse(None));
        assert!(times.favour_sparse(Some(299_000)));
        assert!(!times.favour_sparse(Some(300_000)));
    }

    #[test]
    fn a_full_array_is_searched_again_after_a_while() {
        let mut densities = Densities::default();
        assert_eq!(densities.known(8, sum()), None);
        densities.note(8, sum(), None);
        assert_eq!(densities.known(8, sum()), None, "none was searched");
        densities.note(8, sum(), Some((3, 4)));
        for _ in 1..SEARCH_EVERY {
            assert_eq!(densities.known(8, sum()), Some(750_000));
            densities.note(8, sum(), None);
        }
        assert_eq!(densities.known(8, sum()), None, "it is time to search again");
        densities.note(8, sum(), Some((0, 4)));
        assert_eq!(densities.known(8, sum()), Some(0));
        assert_eq!(densities.known(12, sum()), None, "an array of another length");
        // Not more memory than for so many arrays; those not used for longest go.
        for bytes in 0..1000 {
            densities.note(bytes * 4 + 100, sum(), Some((1, 1)));
            densities.note(8, sum(), None);
        }
        assert_eq!(densities.0.len(), MOST_ARRAYS);
        assert!(densities.0.iter().any(|seen| seen.bytes == 8));
    }
}
