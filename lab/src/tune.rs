//! Tuning of a network: which algorithm is fastest, by operation and length, and how what is multicast goes fastest, measured among the ranks of a job.
//!
//! Each algorithm has a communicator of its own. Lengths are measured in rounds, each algorithm once in every round, so that what disturbs the
//! network for a while disturbs all of them; of the medians of the rounds the least counts.

mod sparse;

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

/// How what is multicast goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Sockets, and workers, side by side.
    pub subgroups: u32,
    /// Bytes of data in a datagram, at most.
    pub chunk_bytes: u32,
}

/// A figure of what is multicast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WayFigure {
    /// The operation.
    pub op: Op,
    /// The length in bytes, as `flexcast perf` has it.
    pub bytes: u64,
    /// How it went.
    #[serde(flatten)]
    pub way: Way,
    /// The least of the rounds' medians, in microseconds.
    pub median_us: f64,
}

/// What has been measured, and the table that follows.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// All figures of algorithms.
    pub figures: Vec<Figure>,
    /// Those of ways for what is multicast.
    pub ways: Vec<WayFigure>,
    /// The fastest way for what is multicast, if it is at least 5 % faster than the usual one on average; the fastest algorithms with it.
    pub tuning: Tuning,
}

/// Part of the usual time, on average, that another way may take at most to be chosen.
const WORTH: f64 = 0.95;
/// Shortest operation of which ways are measured: shorter ones are a few datagrams.
const LEAST_WAY_BYTES: u64 = 64 << 10;

/// The ways that are measured where datagrams carry so many bytes; the first is the usual one.
#[must_use]
pub fn ways(chunk_bytes: u32) -> [Way; 4] {
    let whole = |subgroups| Way { subgroups, chunk_bytes };
    [whole(1), whole(2), whole(4), Way { subgroups: 1, chunk_bytes: (chunk_bytes / 2).max(64) }]
}

/// The way that takes the shortest part of the usual one's time, on average over all operations and lengths; none if it is not worth it.
#[must_use]
pub fn fastest_way(usual: Way, figures: &[WayFigure]) -> Option<Way> {
    let usual_us = |op: Op, bytes: u64| {
        let is_it = |figure: &&WayFigure| (figure.op, figure.bytes, figure.way) == (op, bytes, usual);
        figures.iter().find(is_it).map(|figure| figure.median_us)
    };
    let mut parts: Vec<(Way, f64, u32)> = Vec::new();
    for figure in figures.iter().filter(|figure| figure.way != usual) {
        let Some(usual_us) = usual_us(figure.op, figure.bytes) else { continue };
        let part = (figure.median_us / usual_us).ln();
        match parts.iter_mut().find(|(way, ..)| *way == figure.way) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + part, *count + 1),
            None => parts.push((figure.way, part, 1)),
        }
    }
    let means = parts.into_iter().map(|(way, sum, count)| (way, (sum / f64::from(count)).exp()));
    means.min_by(|(_, left), (_, right)| left.total_cmp(right)).filter(|(_, part)| *part <= WORTH).map(|(way, _)| way)
}

/// The kind of a measured operation; none of those that have only one algorithm, nor of those of which the data decides.
#[must_use]
pub const fn kind(op: Op) -> Option<Kind> {
    match op {
        Op::Allgather => Some(Kind::Allgather),
        Op::Broadcast => Some(Kind::Broadcast),
        Op::Reduce => Some(Kind::Reduce),
        Op::Allreduce => Some(Kind::Allreduce),
        Op::ReduceScatter => Some(Kind::ReduceScatter),
        Op::Alltoall => Some(Kind::Alltoall),
        Op::SparseAllreduce | Op::Gather | Op::Scatter | Op::Barrier => None,
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
        Op::SparseAllreduce | Op::Gather | Op::Scatter | Op::Barrier => &[],
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
    mut show: impl FnMut(&str),
) -> Result<Tuned, PerfError> {
    let (mut figures, mut choices, ranks) = (Vec::new(), Vec::new(), exchange.size());
    let ways = measure_ways(card, exchange, spec, &mut show)?;
    let usual = ways.first().map(|figure| figure.way);
    let way = usual.and_then(|usual| fastest_way(usual, &ways));
    let chosen = |tuning: Tuning| match way {
        Some(way) if usual.is_some_and(|usual| usual.chunk_bytes == way.chunk_bytes) => {
            tuning.with_subgroups(way.subgroups)
        }
        Some(way) => tuning.with_subgroups(way.subgroups)?.with_chunk_bytes(way.chunk_bytes),
        None => Ok(tuning),
    };
    for op in spec.ops.iter().copied() {
        let Some(operation) = kind(op) else { continue };
        let mut measured: Vec<(Algorithm, Communicator)> = Vec::new();
        for algorithm in candidates(op, ranks) {
            let tuning = Some(chosen(Tuning::always(operation, algorithm))?);
            let config = Config::for_card(card).tuning(tuning);
            measured.push((algorithm, Communicator::create(card, exchange, config)?));
        }
        let mut fastest: Vec<(u64, Algorithm)> = Vec::new();
        for bytes in spec.sizes.iter().copied() {
            let of = Spec { op, ..Spec::default() };
            let medians =
                least_medians(&measured, exchange, spec, (bytes, &of), |algorithm, name| name == algorithm.name())?;
            let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
            let of_length = measured.iter().zip(&medians).filter(|(_, median)| median.is_finite());
            for ((algorithm, _), median_us) in of_length {
                let is_fastest = *median_us <= least;
                let algorithm_name = algorithm.name().to_owned();
                let figure =
                    Figure { op, bytes, algorithm: algorithm_name, median_us: *median_us, fastest: is_fastest };
                show(&format!("{op} of {bytes} bytes by {}: {median_us:.1} us", figure.algorithm));
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
    let mut tuning = chosen(Tuning::new(choices)?)?;
    // Last: it is compared with an AllReduce by what was the fastest.
    if spec.ops.contains(&Op::SparseAllreduce) {
        let (measured, costs) = sparse::measure(card, exchange, spec, tuning.clone(), show)?;
        figures.extend(measured);
        tuning = tuning.with_sparse_costs(costs)?;
    }
    Ok(Tuned { figures, ways, tuning })
}

/// The least of the rounds' medians of each communicator for one length, in microseconds; infinite where `is_it` does not have the name of what carried the data:
/// something else may, such as of what is too long for the barrier. All have their turn in every round.
fn least_medians<T>(
    measured: &[(T, Communicator)],
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    (bytes, of): (u64, &Spec),
    is_it: impl Fn(&T, &str) -> bool,
) -> Result<Vec<f64>, PerfError> {
    let mut medians = vec![f64::INFINITY; measured.len()];
    let one = Spec { sizes: Sizes::one(bytes), repetitions: spec.repetitions, ..of.clone() };
    for _ in 0..spec.rounds {
        for ((way, communicator), median) in measured.iter().zip(&mut medians) {
            for row in perf::run(communicator, exchange, &one, |_| {})? {
                if is_it(way, &row.algorithm) {
                    *median = median.min(row.median_us);
                }
            }
        }
    }
    Ok(medians)
}

/// Measures the ways for what is multicast, of operations that can be.
fn measure_ways(
    card: &Card,
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    mut show: impl FnMut(&str),
) -> Result<Vec<WayFigure>, PerfError> {
    let Some(interface) = card.interface() else { return Ok(Vec::new()) };
    let ways = ways(interface.datagram_bytes());
    let mut all = Vec::new();
    for op in spec.ops.iter().copied() {
        if !candidates(op, exchange.size()).contains(&Algorithm::Multicast) {
            continue;
        }
        let Some(operation) = kind(op) else { continue };
        let mut measured = Vec::new();
        for way in ways {
            let tuning = Tuning::always(operation, Algorithm::Multicast);
            let tuning = tuning.with_subgroups(way.subgroups)?.with_chunk_bytes(way.chunk_bytes)?;
            let config = Config::for_card(card).tuning(Some(tuning));
            measured.push((way, Communicator::create(card, exchange, config)?));
        }
        for bytes in spec.sizes.iter().copied().filter(|bytes| *bytes >= LEAST_WAY_BYTES) {
            let of = Spec { op, ..Spec::default() };
            let medians =
                least_medians(&measured, exchange, spec, (bytes, &of), |_, name| name == Algorithm::Multicast.name())?;
            for ((way, _), median_us) in measured.iter().zip(medians) {
                let Way { subgroups, chunk_bytes } = *way;
                show(&format!(
                    "{op} of {bytes} bytes by multicast, {subgroups} subgroups, {chunk_bytes} bytes a datagram: {median_us:.1} us"
                ));
                all.push(WayFigure { op, bytes, way: *way, median_us });
            }
        }
    }
    Ok(all)
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
    fn another_way_is_taken_if_it_is_faster_on_average() {
        let [usual, two, four, short] = ways(8944);
        assert_eq!((usual.subgroups, two.subgroups, four.subgroups, short.chunk_bytes), (1, 2, 4, 4472));
        let figure = |bytes, way, median_us| WayFigure { op: Op::Broadcast, bytes, way, median_us };
        let of = |two_us: [f64; 2], four_us: [f64; 2]| {
            let figures = [
                figure(1, usual, 100.0),
                figure(2, usual, 1000.0),
                figure(1, two, two_us[0]),
                figure(2, two, two_us[1]),
                figure(1, four, four_us[0]),
                figure(2, four, four_us[1]),
            ];
            fastest_way(usual, &figures)
        };
        assert_eq!(of([90.0, 900.0], [95.0, 870.0]), Some(two));
        assert_eq!(of([90.0, 900.0], [95.0, 700.0]), Some(four));
        // A little faster is not worth a thread.
        assert_eq!(of([96.0, 960.0], [200.0, 500.0]), None);
        assert_eq!(fastest_way(usual, &[]), None);
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
