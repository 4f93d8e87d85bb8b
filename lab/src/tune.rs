//! Tuning of a network: which algorithm is fastest, by operation and length, measured among the ranks of a job.
//!
//! Each algorithm has a communicator of its own. Lengths are measured in rounds, each algorithm once in every round, so that what disturbs the
//! network for a while disturbs all of them; of the medians of the rounds the least counts.

use flexcast::bootstrap::Exchange;
use flexcast::{Algorithm, Card, Choice, Communicator, Config, Kind, Tuning};
use serde::Serialize;

use crate::perf::op::Op;
use crate::perf::spec::{Sizes, Spec};
use crate::perf::{self, PerfError};

/// What is measured.
#[derive(Clone, Debug)]
pub struct TuneSpec {
    /// The operations.
    pub ops: Vec<Op>,
    /// The lengths, ascending, as those of [`Spec`].
    pub sizes: Sizes,
    /// Rounds.
    pub rounds: u32,
    /// Timed operations of each algorithm and length in a round.
    pub repetitions: u32,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The operation.
    pub op: Op,
    /// The length in bytes, as `flexcast perf` has it.
    pub bytes: u64,
    /// The algorithm.
    pub algorithm: String,
    /// The least of the rounds' medians, in microseconds.
    pub median_us: f64,
    /// It is the fastest of this length.
    pub fastest: bool,
}

/// What has been measured, and the table that follows.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// All figures.
    pub figures: Vec<Figure>,
    /// The fastest algorithms.
    pub tuning: Tuning,
}

/// The kind of a measured operation; none of those that have only one algorithm.
#[must_use]
pub const fn kind(op: Op) -> Option<Kind> {
    match op {
        Op::Allgather => Some(Kind::Allgather),
        Op::Broadcast => Some(Kind::Broadcast),
        Op::Reduce => Some(Kind::Reduce),
        Op::Allreduce => Some(Kind::Allreduce),
        Op::ReduceScatter => Some(Kind::ReduceScatter),
        Op::Alltoall => Some(Kind::Alltoall),
        Op::Gather | Op::Scatter | Op::Barrier => None,
    }
}

/// The algorithms of an operation among so many ranks.
#[must_use]
pub fn candidates(op: Op, ranks: u32) -> Vec<Algorithm> {
    use Algorithm::{Binomial, Bruck, Chain, Eager, Linear, Multicast, Pairwise, RecursiveDoubling, Ring};
    let all: &[Algorithm] = match op {
        Op::Allgather => &[Eager, Multicast, Linear, RecursiveDoubling, Bruck, Ring],
        Op::Broadcast => &[Eager, Multicast, Binomial, Chain],
        Op::Reduce => &[Binomial, Linear],
        Op::Allreduce => &[RecursiveDoubling, Linear, Ring, Binomial],
        Op::ReduceScatter => &[Linear, Ring],
        Op::Alltoall => &[Linear, Pairwise, Ring],
        Op::Gather | Op::Scatter | Op::Barrier => &[],
    };
    // Of other numbers of ranks it takes more messages than the algorithm of Bruck.
    let fits =
        |algorithm: &&Algorithm| **algorithm != RecursiveDoubling || op != Op::Allgather || ranks.is_power_of_two();
    all.iter().filter(fits).copied().collect()
}

/// Bytes of a rank's block in an operation of a measured length: what a [`Choice`] counts.
#[must_use]
pub const fn block_bytes(op: Op, bytes: u64, ranks: u32) -> u64 {
    match op {
        Op::Alltoall | Op::ReduceScatter => bytes / ranks as u64,
        _ => bytes,
    }
}

/// The table of one operation: each algorithm up to the middle, on a logarithmic scale, between its last length and the next; the last without an end.
#[must_use]
pub fn table(operation: Kind, ranks: u32, fastest: &[(u64, Algorithm)]) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for (at, (bytes, algorithm)) in fastest.iter().enumerate() {
        let most = match fastest.get(at + 1) {
            Some((next, _)) => ((*bytes as f64).max(1.0) * (*next as f64)).sqrt() as u64,
            None => i64::MAX as u64,
        };
        match choices.last_mut().filter(|last| last.algorithm == *algorithm) {
            Some(last) => last.bytes = most,
            None => choices.push(Choice { operation, ranks, bytes: most, algorithm: *algorithm }),
        }
    }
    choices
}

/// Measures on all ranks of an exchange; `show` is called with each operation and length. The result is alike on all ranks.
///
/// # Errors
/// [`PerfError`]: the same on all ranks, or another one's failure.
pub fn run(
    card: &Card,
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    mut show: impl FnMut(&Figure),
) -> Result<Tuned, PerfError> {
    let (mut figures, mut choices, ranks) = (Vec::new(), Vec::new(), exchange.size());
    for op in spec.ops.iter().copied() {
        let Some(operation) = kind(op) else { continue };
        let mut measured: Vec<(Algorithm, Communicator)> = Vec::new();
        for algorithm in candidates(op, ranks) {
            let tuning = Some(Tuning::always(operation, algorithm));
            let config = Config::for_card(card).tuning(tuning);
            measured.push((algorithm, Communicator::create(card, exchange, config)?));
        }
        let mut fastest: Vec<(u64, Algorithm)> = Vec::new();
        for bytes in spec.sizes.iter().copied() {
            let mut medians = vec![f64::INFINITY; measured.len()];
            for _ in 0..spec.rounds {
                for ((algorithm, communicator), median) in measured.iter().zip(&mut medians) {
                    let spec = Spec { op, sizes: Sizes::one(bytes), repetitions: spec.repetitions, ..Spec::default() };
                    for row in perf::run(communicator, exchange, &spec, |_| {})? {
                        // What is too long for the barrier goes another way.
                        if row.algorithm == algorithm.name() {
                            *median = median.min(row.median_us);
                        }
                    }
                }
            }
            let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
            let of_length = measured.iter().zip(&medians).filter(|(_, median)| median.is_finite());
            for ((algorithm, _), median_us) in of_length {
                let is_fastest = *median_us <= least;
                let algorithm_name = algorithm.name().to_owned();
                let figure =
                    Figure { op, bytes, algorithm: algorithm_name, median_us: *median_us, fastest: is_fastest };
                show(&figure);
                figures.push(figure);
                if is_fastest && fastest.last().is_none_or(|(last, _)| *last != block_bytes(op, bytes, ranks)) {
                    fastest.push((block_bytes(op, bytes, ranks), *algorithm));
                }
            }
        }
        choices.extend(table(operation, ranks, &fastest));
        if operation == Kind::ReduceScatter {
            choices.extend(table(Kind::ReduceScatterv, ranks, &fastest));
        }
        if operation == Kind::Allgather {
            choices.extend(table(Kind::Allgatherv, ranks, &fastest));
        }
    }
    Ok(Tuned { figures, tuning: Tuning::new(choices)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_line_for_each_change_of_the_fastest() {
        let fastest = [
            (64, Algorithm::Binomial),
            (1024, Algorithm::Binomial),
            (16 << 10, Algorithm::Chain),
            (1 << 20, Algorithm::Multicast),
        ];
        let choice = |bytes, algorithm| Choice { operation: Kind::Broadcast, ranks: 8, bytes, algorithm };
        assert_eq!(
            table(Kind::Broadcast, 8, &fastest),
            [
                choice(4096, Algorithm::Binomial),
                choice(128 << 10, Algorithm::Chain),
                choice(i64::MAX as u64, Algorithm::Multicast)
            ]
        );
        assert_eq!(table(Kind::Reduce, 8, &[]), []);
    }

    #[test]
    fn every_operation_with_a_choice_has_candidates_and_the_others_none() {
        for op in <Op as clap::ValueEnum>::value_variants() {
            assert_eq!(kind(*op).is_some(), candidates(*op, 8).len() > 1, "{op}");
        }
        assert!(!candidates(Op::Allgather, 6).contains(&Algorithm::RecursiveDoubling));
        assert_eq!(block_bytes(Op::Alltoall, 800, 8), 100);
    }
}
