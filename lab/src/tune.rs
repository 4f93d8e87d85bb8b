//! Tuning of a network: which algorithm is fastest, by operation and length, and how what is multicast goes fastest,
//! measured among the ranks of a job.
//!
//! Each algorithm has a communicator of its own. Lengths are measured in rounds, each algorithm once in every round, so
//! that what disturbs the network for a while disturbs all of them. An algorithm takes the place of the one that the
//! library takes by itself only if it was faster beyond the noise ([`is_faster`]).

mod sparse;

use flexcast::bootstrap::Exchange;
use flexcast::{Algorithm, Choice, Communicator, Config, Endpoint, Kind, Tuning};
use serde::Serialize;

use crate::agreement::Options;
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

impl TuneSpec {
    /// The options of `flexcast tune` that say what is measured.
    #[must_use]
    pub fn options(&self) -> Options {
        let Self { ops, sizes, rounds, repetitions } = self;
        [
            ("--ops", ops.iter().map(Op::to_string).collect::<Vec<_>>().join(",")),
            ("--sizes", sizes.to_string()),
            ("--rounds", rounds.to_string()),
            ("--repetitions", repetitions.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
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
    /// The middle one of the rounds' medians, in microseconds.
    pub median_us: f64,
    /// The least of them.
    pub low_us: f64,
    /// The greatest.
    pub high_us: f64,
    /// Its median is the least of this length.
    pub fastest: bool,
    /// It is what the library takes without a table.
    pub usual: bool,
    /// It is what the table names: the usual one, unless another is faster beyond the noise.
    pub chosen: bool,
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
    /// The middle one of the rounds' medians, in microseconds.
    pub median_us: f64,
    /// The least of them.
    pub low_us: f64,
    /// The greatest.
    pub high_us: f64,
}

/// What has been measured, and the table that follows.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// All figures of algorithms.
    pub figures: Vec<Figure>,
    /// Those of ways for what is multicast.
    pub ways: Vec<WayFigure>,
    /// The fastest way for what is multicast, if it is faster than the usual one beyond the noise ([`fastest_way`]);
    /// the algorithms with it.
    pub tuning: Tuning,
}

/// Part of the usual time, on average, that another way may take at most to be chosen.
const WORTH: f64 = 0.95;
/// What a length is to go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfLength {
    /// The length: bytes of a block.
    pub bytes: u64,
    /// What it goes by.
    pub algorithm: Algorithm,
    /// The library takes it by itself, too.
    pub is_usual: bool,
}

/// The value in the middle; of an even number the lower of the two.
fn middle(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::INFINITY)
}

fn least(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn greatest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// Whether something is faster than something else beyond the noise, by the medians of at least two rounds each: all
/// of its own are shorter than all of the other's, and the one in the middle is at least 5 % shorter.
#[must_use]
pub fn is_faster(own: &[f64], other: &[f64]) -> bool {
    own.len() >= 2 && other.len() >= 2 && greatest(own) < least(other) && middle(own) <= WORTH * middle(other)
}

/// Shortest operation of which ways are measured: shorter ones are a few datagrams.
const LEAST_WAY_BYTES: u64 = 64 << 10;

/// The ways that are measured where datagrams carry so many bytes; the first is the usual one.
#[must_use]
pub fn ways(chunk_bytes: u32) -> [Way; 4] {
    let whole = |subgroups| Way { subgroups, chunk_bytes };
    [whole(1), whole(2), whole(4), Way { subgroups: 1, chunk_bytes: (chunk_bytes / 2).max(64) }]
}

/// The way that takes the shortest part of the usual one's time, on average over all operations and lengths; none if
/// that is not at least 5 % less, or if not most of them were faster in all rounds than in any by the usual way.
#[must_use]
pub fn fastest_way(usual: Way, figures: &[WayFigure]) -> Option<Way> {
    struct Part {
        way: Way,
        sum: f64,
        count: u32,
        faster: u32,
    }
    let by_usual = |op: Op, bytes: u64| {
        let is_it = |figure: &&WayFigure| (figure.op, figure.bytes, figure.way) == (op, bytes, usual);
        figures.iter().find(is_it)
    };
    let mut parts: Vec<Part> = Vec::new();
    for figure in figures.iter().filter(|figure| figure.way != usual) {
        let Some(usual) = by_usual(figure.op, figure.bytes) else { continue };
        let sum = (figure.median_us / usual.median_us).ln();
        let faster = u32::from(figure.high_us < usual.low_us);
        match parts.iter_mut().find(|part| part.way == figure.way) {
            Some(part) => {
                (part.sum, part.count, part.faster) = (part.sum + sum, part.count + 1, part.faster + faster);
            }
            None => parts.push(Part { way: figure.way, sum, count: 1, faster }),
        }
    }
    let mean = |part: &Part| (part.sum / f64::from(part.count)).exp();
    let is_worth_it = |part: &&Part| mean(part) <= WORTH && 2 * part.faster > part.count;
    let shortest = parts.iter().filter(is_worth_it).min_by(|left, right| mean(left).total_cmp(&mean(right)));
    shortest.map(|part| part.way)
}

/// The kind of a measured operation; none of those that have only one algorithm, nor of those of which the data
/// decides.
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

/// The table of one operation: each algorithm up to the middle, on a logarithmic scale, between its last length and
/// the next. What lies beyond the measured lengths is left to the library: the table ends at the last length, or
/// before those that go by what is usual, and shorter blocks than the first go by `below`, what the library takes for
/// them. Without a length that goes by something else there is no table.
#[must_use]
pub fn table(operation: Kind, ranks: u32, measured: &[OfLength], below: Option<Algorithm>) -> Vec<Choice> {
    let Some(last) = measured.iter().rposition(|of| !of.is_usual) else { return Vec::new() };
    let mut choices: Vec<Choice> = Vec::new();
    let first = measured.first().map_or(0, |of| of.bytes);
    if let Some(algorithm) = below.filter(|_| first > 0) {
        choices.push(Choice { operation, ranks, bytes: first - 1, algorithm });
    }
    for (at, OfLength { bytes, algorithm, .. }) in measured.iter().enumerate().take(last + 1) {
        let most = match measured.get(at + 1) {
            Some(next) => ((*bytes as f64).max(1.0) * (next.bytes as f64)).sqrt() as u64,
            None => *bytes,
        };
        match choices.last_mut().filter(|last| last.algorithm == *algorithm) {
            Some(last) => last.bytes = most,
            None => choices.push(Choice { operation, ranks, bytes: most, algorithm: *algorithm }),
        }
    }
    choices
}

/// Measures on all ranks of an exchange, with communicators of this configuration; `show` is called with each
/// operation and length. The result is the same on all ranks.
///
/// # Errors
/// [`PerfError`]: the same on all ranks, or another one's failure.
pub fn run(
    endpoint: &Endpoint,
    base: &Config,
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    mut show: impl FnMut(&str),
) -> Result<Tuned, PerfError> {
    let (mut figures, mut choices, ranks) = (Vec::new(), Vec::new(), exchange.size());
    let ways = measure_ways((endpoint, base), exchange, spec, &mut show)?;
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
            let config = base.clone().tuning(tuning);
            measured.push((algorithm, Communicator::create(endpoint, exchange, config)?));
        }
        let usual = Communicator::create(endpoint, exchange, base.clone().tuning(Some(chosen(Tuning::default())?)))?;
        let mut lengths: Vec<OfLength> = Vec::new();
        for bytes in spec.sizes.iter().copied() {
            let of = Spec { op, ..Spec::default() };
            let medians =
                round_medians(&measured, exchange, spec, (bytes, &of), |algorithm, name| name == algorithm.name())?;
            let usual = algorithm_of(&usual, exchange, op, bytes)?;
            let of_usual = measured.iter().zip(&medians).find(|((algorithm, _), _)| Some(*algorithm) == usual);
            let faster = |(_, times): &(&(Algorithm, Communicator), &Vec<f64>)| {
                of_usual.is_some_and(|(_, usual)| is_faster(times, usual))
            };
            let shortest = |left: &(&(Algorithm, Communicator), &Vec<f64>),
                            right: &(&(Algorithm, Communicator), &Vec<f64>)| {
                middle(left.1).total_cmp(&middle(right.1))
            };
            let better =
                measured.iter().zip(&medians).filter(faster).min_by(shortest).map(|((algorithm, _), _)| *algorithm);
            let taken = better.or(usual);
            let least = medians.iter().map(|times| middle(times)).fold(f64::INFINITY, f64::min);
            let of_length = measured.iter().zip(&medians).filter(|(_, times)| !times.is_empty());
            for ((algorithm, _), times) in of_length {
                let median_us = middle(times);
                let figure = Figure {
                    op,
                    bytes,
                    algorithm: algorithm.name().to_owned(),
                    median_us,
                    low_us: self::least(times),
                    high_us: greatest(times),
                    fastest: median_us <= least,
                    usual: Some(*algorithm) == usual,
                    chosen: Some(*algorithm) == taken,
                };
                show(&format!("{op} of {bytes} bytes by {}: {median_us:.1} us", figure.algorithm));
                figures.push(figure);
            }
            let bytes = block_bytes(op, bytes, ranks);
            if let Some(algorithm) = taken
                && lengths.last().is_none_or(|last| last.bytes != bytes)
            {
                lengths.push(OfLength { bytes, algorithm, is_usual: better.is_none() });
            }
        }
        // One byte a rank less than the shortest length.
        let shorter = spec.sizes.iter().min().and_then(|bytes| bytes.checked_sub(u64::from(ranks)));
        let below = shorter.map(|bytes| algorithm_of(&usual, exchange, op, bytes)).transpose()?.flatten();
        choices.extend(table(operation, ranks, &lengths, below));
        if operation == Kind::ReduceScatter {
            choices.extend(table(Kind::ReduceScatterv, ranks, &lengths, below));
        }
        if operation == Kind::Allgather {
            choices.extend(table(Kind::Allgatherv, ranks, &lengths, below));
        }
    }
    let mut tuning = chosen(Tuning::new(choices)?)?;
    // Last: it is compared with an AllReduce by what was the fastest.
    if spec.ops.contains(&Op::SparseAllreduce) {
        let (measured, costs) = sparse::measure((endpoint, base), exchange, spec, tuning.clone(), show)?;
        figures.extend(measured);
        tuning = tuning.with_sparse_costs(costs)?;
    }
    Ok(Tuned { figures, ways, tuning })
}

/// What the library takes for an operation of a length, by one operation; none if it has a name that is not known.
fn algorithm_of(
    communicator: &Communicator,
    exchange: &mut dyn Exchange,
    op: Op,
    bytes: u64,
) -> Result<Option<Algorithm>, PerfError> {
    let one = Spec { op, sizes: Sizes::one(bytes), repetitions: 1, warm_up: 0, ..Spec::default() };
    let rows = perf::run(communicator, exchange, &one, |_| {})?;
    let name = rows.first().map(|row| row.algorithm.as_str()).unwrap_or_default();
    Ok(Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name))
}

/// The rounds' medians of each communicator for one length, in microseconds; without those in which `is_it` does not
/// have the name of what carried the data: something else may, such as of what is too long for the barrier. All have
/// their turn in every round.
fn round_medians<T>(
    measured: &[(T, Communicator)],
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    (bytes, of): (u64, &Spec),
    is_it: impl Fn(&T, &str) -> bool,
) -> Result<Vec<Vec<f64>>, PerfError> {
    let mut medians = vec![Vec::new(); measured.len()];
    let one = Spec { sizes: Sizes::one(bytes), repetitions: spec.repetitions, ..of.clone() };
    for _ in 0..spec.rounds {
        for ((way, communicator), medians) in measured.iter().zip(&mut medians) {
            for row in perf::run(communicator, exchange, &one, |_| {})? {
                if is_it(way, &row.algorithm) {
                    medians.push(row.median_us);
                }
            }
        }
    }
    Ok(medians)
}

/// The least of [`round_medians`]; infinite where there is none.
fn least_medians<T>(
    measured: &[(T, Communicator)],
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    of: (u64, &Spec),
    is_it: impl Fn(&T, &str) -> bool,
) -> Result<Vec<f64>, PerfError> {
    Ok(round_medians(measured, exchange, spec, of, is_it)?.iter().map(|times| least(times)).collect())
}

/// Measures the ways for what is multicast, of operations that can be.
fn measure_ways(
    (endpoint, base): (&Endpoint, &Config),
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    mut show: impl FnMut(&str),
) -> Result<Vec<WayFigure>, PerfError> {
    let Some(interface) = endpoint.interface() else { return Ok(Vec::new()) };
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
            let config = base.clone().tuning(Some(tuning));
            measured.push((way, Communicator::create(endpoint, exchange, config)?));
        }
        for bytes in spec.sizes.iter().copied().filter(|bytes| *bytes >= LEAST_WAY_BYTES) {
            let of = Spec { op, ..Spec::default() };
            let medians =
                round_medians(&measured, exchange, spec, (bytes, &of), |_, name| name == Algorithm::Multicast.name())?;
            for ((way, _), times) in measured.iter().zip(medians) {
                let Way { subgroups, chunk_bytes } = *way;
                let median_us = middle(&times);
                show(&format!(
                    "{op} of {bytes} bytes by multicast, {subgroups} subgroups, {chunk_bytes} bytes a datagram: \
                     {median_us:.1} us"
                ));
                let (low_us, high_us) = (least(&times), greatest(&times));
                all.push(WayFigure { op, bytes, way: *way, median_us, low_us, high_us });
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_line_for_each_change_and_end_where_nothing_was_measured() {
        use Algorithm::{Binomial, Chain, Eager, Multicast};
        let of = |bytes, algorithm, is_usual| OfLength { bytes, algorithm, is_usual };
        let lengths = [
            of(64, Binomial, true),
            of(1024, Binomial, false),
            of(16 << 10, Chain, false),
            of(1 << 20, Multicast, false),
        ];
        let choice = |bytes, algorithm| Choice { operation: Kind::Broadcast, ranks: 8, bytes, algorithm };
        let lines = [choice(4096, Binomial), choice(128 << 10, Chain), choice(1 << 20, Multicast)];
        assert_eq!(table(Kind::Broadcast, 8, &lengths, None), lines);
        // What is shorter goes on as it does.
        let with_shorter = table(Kind::Broadcast, 8, &lengths, Some(Eager));
        assert_eq!((with_shorter[0], &with_shorter[1..]), (choice(63, Eager), &lines[..]));
        assert_eq!(table(Kind::Broadcast, 8, &lengths, Some(Binomial)), lines);
        // Behind the last length that goes by something else there is no line.
        let lengths = [of(1024, Chain, false), of(4096, Multicast, true), of(16 << 10, Multicast, true)];
        assert_eq!(table(Kind::Broadcast, 8, &lengths, None), [choice(2048, Chain)]);
        assert_eq!(table(Kind::Broadcast, 8, &lengths[1..], Some(Eager)), []);
        assert_eq!(table(Kind::Reduce, 8, &[], None), []);
    }

    #[test]
    fn what_is_within_the_noise_is_not_faster() {
        assert!(is_faster(&[90.0, 94.0, 91.0], &[100.0, 120.0, 99.0]));
        // They overlap, or lie within 5 %.
        assert!(!is_faster(&[19.8, 20.3, 19.9], &[20.2, 25.0, 26.0]));
        assert!(!is_faster(&[96.0, 96.5, 97.0], &[100.0, 101.0, 99.0]));
        // One round says nothing of noise, and nothing is not faster than anything.
        assert!(!is_faster(&[1.0], &[100.0]) && !is_faster(&[], &[1.0, 2.0]) && !is_faster(&[1.0, 1.0], &[]));
        assert_eq!((middle(&[3.0, 1.0, 2.0]), middle(&[4.0, 1.0]), middle(&[])), (2.0, 1.0, f64::INFINITY));
    }

    #[test]
    fn another_way_is_taken_if_it_is_faster_on_average() {
        let [usual, two, four, short] = ways(8944);
        assert_eq!((usual.subgroups, two.subgroups, four.subgroups, short.chunk_bytes), (1, 2, 4, 4472));
        let figure = |bytes, way, median_us| {
            let (low_us, high_us) = (median_us, median_us);
            WayFigure { op: Op::Broadcast, bytes, way, median_us, low_us, high_us }
        };
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
        // Rounds that overlap say nothing: another run would come out otherwise.
        let noisy = |way, median_us| WayFigure { low_us: 100.0, high_us: 30_000.0, ..figure(1, way, median_us) };
        assert_eq!(fastest_way(usual, &[noisy(usual, 24_000.0), noisy(two, 174.0)]), None);
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
