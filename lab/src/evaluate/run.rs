//! All runs of all experiments, on several threads, each with a machine of its own. A run that several experiments want
//! is done once.

use std::cmp::Reverse;
use std::time::Duration;

use emu_config::Timing;

use super::bound;
use super::computed;
use super::expect::{self, Verdict};
use super::fastest;
use super::linear;
use super::point::Point;
use super::row::{Kind, Row};
use super::spec::Experiment;
use super::spread;
use crate::images::Images;
use crate::jobs::{Job, Pool};

/// What every run needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where device images are searched for.
    pub images: Images,
    /// Timing model.
    pub model: Timing,
    /// Runs at a time, at most.
    pub jobs: usize,
    /// Memory that they may take together, roughly; one that takes more runs alone.
    pub memory_bytes: u64,
}

/// An experiment with what came out of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The experiment.
    pub experiment: Experiment,
    /// Rows of all kinds: emulated, computed, published.
    pub rows: Vec<Row>,
    /// Points of the bounds of each plot.
    pub bounds: Vec<Vec<Row>>,
    /// What the expectations say.
    pub verdicts: Vec<Verdict>,
    /// Runs that failed, as commands, and why; no figure of them is shown.
    pub failures: Vec<(String, String)>,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Runs that have ended.
    pub ended: usize,
    /// Runs.
    pub all: usize,
    /// The one that has just ended, as a command, and the wall time that it took.
    pub run: Option<(String, Duration)>,
}

/// Runs the experiments. `report` is called at the beginning, and when a run has ended.
#[must_use]
pub fn run(
    experiments: Vec<Experiment>,
    options: &Options,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Vec<Outcome> {
    let wanted: Vec<Vec<Point>> = experiments.iter().map(Point::all).collect();
    let mut distinct: Vec<Point> = Vec::new();
    for point in wanted.iter().flatten() {
        if !distinct.contains(point) {
            distinct.push(point.clone());
        }
    }
    let done = run_all(&distinct, options, report);
    let outcomes = experiments.into_iter().zip(wanted).map(|(experiment, points)| {
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for point in points {
            let place = distinct.iter().position(|other| *other == point).unwrap_or_default();
            match &done[place] {
                Ok(row) => rows.push(row.clone()),
                Err(reason) => failures.push((point.command(&options.model), reason.clone())),
            }
        }
        for fastest in &experiment.fastest {
            fastest::add(fastest, &mut rows);
        }
        let spreads: Vec<Row> = experiment.spread.iter().flat_map(|spread| spread::rows(spread, &rows)).collect();
        rows.extend(spreads);
        let lines: Vec<Row> = experiment.linear.iter().flat_map(|linear| linear::rows(linear, &rows)).collect();
        rows.extend(lines);
        for form in &experiment.computed {
            match computed::rows(form) {
                Ok(computed) => rows.extend(computed),
                Err(reason) => failures.push((format!("{form:?}"), reason)),
            }
        }
        rows.extend(experiment.published.iter().map(published));
        let bounds = experiment.plot.iter().map(|plot| bound::points(plot, &rows)).collect();
        // What the whole sweep would have, of which this may be the reduced one.
        let whole = Point::all(experiment.whole.as_deref().unwrap_or(&experiment));
        let asked: Vec<Row> = whole.iter().map(Point::asked).collect();
        let verdicts = experiment.expect.iter().map(|expect| expect::judge(expect, &rows, &asked)).collect();
        Outcome { experiment, rows, bounds, verdicts, failures }
    });
    outcomes.collect()
}

fn published(point: &super::spec::Published) -> Row {
    point.values.iter().fold(Row::new(Kind::Published, &point.origin), |row, (column, value)| match value {
        toml::Value::Integer(number) if *number >= 0 => row.with(column, *number as u64),
        toml::Value::Integer(number) => row.with(column, *number as f64),
        toml::Value::Float(number) => row.with(column, *number),
        other => row.with(column, other.as_str().unwrap_or_default()),
    })
}

/// A run, for the worker pool.
struct Run<'p> {
    /// Its place among the points.
    place: usize,
    point: &'p Point,
    command: String,
}

impl Job for Run<'_> {
    fn name(&self) -> String {
        self.command.clone()
    }

    fn memory_bytes(&self) -> u64 {
        self.point.memory_bytes()
    }
}

/// The runs in the order in which they are begun: no thread is left with a long one at the end. Equal ones keep their
/// order.
fn longest_first<'p>(points: &'p [Point], model: &Timing) -> Vec<Run<'p>> {
    let run = |(place, point): (usize, &'p Point)| Run { place, point, command: point.command(model) };
    let mut runs: Vec<Run<'p>> = points.iter().enumerate().map(run).collect();
    runs.sort_by_key(|run| Reverse(run.point.weight()));
    runs
}

/// The rows of the points, in their order, or why there is none.
fn run_all(
    points: &[Point],
    options: &Options,
    report: &mut (dyn FnMut(&Progress) + Send),
) -> Vec<Result<Row, String>> {
    let all = points.len();
    let runs = longest_first(points, &options.model);
    let mut rows: Vec<Result<Row, String>> = points.iter().map(|_| Err("it has not been run".to_owned())).collect();
    let pool = Pool { threads: options.jobs, memory_bytes: options.memory_bytes, keep_going: true };
    report(&Progress { ended: 0, all, run: None });
    let work = |run: &Run<'_>| run.point.run(&options.images, &options.model);
    pool.each(runs.into_iter(), work, |ended| {
        rows[ended.job.place] = ended.result.map_err(|failure| failure.to_string());
        report(&Progress { ended: ended.ended, all, run: Some((ended.job.command, ended.took)) });
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::point::ConcurrentPoint;

    #[test]
    fn the_longest_run_is_the_first() {
        let point = |ranks| {
            Point::Concurrent(ConcurrentPoint { ranks, bytes: 65536, chunk_bytes: 4096, topology: String::new() })
        };
        let points = [4, 1000, 2, 188, 4].map(point);
        let runs = longest_first(&points, &Timing::default());
        assert_eq!(runs.iter().map(|run| run.place).collect::<Vec<_>>(), [1, 3, 0, 4, 2]);
        assert!(runs.iter().all(|run| run.memory_bytes() == points[run.place].memory_bytes()));
    }
}
