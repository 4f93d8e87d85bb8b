//! All runs of all experiments, on several threads, each with a machine of its own. A run that several experiments want is done once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::bound;
use super::computed;
use super::expect::{self, Verdict};
use super::point::Point;
use super::queue::Queue;
use super::row::{Kind, Row};
use super::spec::Experiment;
use super::spread;
use crate::timing::TimingParams;

/// What every run needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the device images.
    pub images: PathBuf,
    /// Timing model.
    pub model: TimingParams,
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
    /// Runs that failed, as commands, and why; of them no figure is told.
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

/// Runs the experiments. `tell` is called at the beginning, and when a run has ended.
#[must_use]
pub fn run(experiments: Vec<Experiment>, options: &Options, tell: &(dyn Fn(&Progress) + Sync)) -> Vec<Outcome> {
    let wanted: Vec<Vec<Point>> = experiments.iter().map(Point::all).collect();
    let mut distinct: Vec<Point> = Vec::new();
    for point in wanted.iter().flatten() {
        if !distinct.contains(point) {
            distinct.push(point.clone());
        }
    }
    let done = run_all(&distinct, options, tell);
    let outcomes = experiments.into_iter().zip(wanted).map(|(experiment, points)| {
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for point in points {
            let place = distinct.iter().position(|other| *other == point).unwrap_or_default();
            match done.get(&place) {
                Some(Ok(row)) => rows.push(row.clone()),
                Some(Err(reason)) => failures.push((point.command(&options.model), reason.clone())),
                None => failures.push((point.command(&options.model), "it has not been run".to_owned())),
            }
        }
        let spreads: Vec<Row> = experiment.spread.iter().flat_map(|spread| spread::rows(spread, &rows)).collect();
        rows.extend(spreads);
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

fn run_all(
    points: &[Point],
    options: &Options,
    tell: &(dyn Fn(&Progress) + Sync),
) -> BTreeMap<usize, Result<Row, String>> {
    let queue = Queue::new(points, options.memory_bytes);
    let done = Mutex::new(BTreeMap::new());
    let all = points.len();
    tell(&Progress { ended: 0, all, run: None });
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                while let Some(turn) = queue.begin() {
                    let point = &points[turn.index];
                    let begun = Instant::now();
                    let row = point.run(&options.images, &options.model);
                    let run = Some((point.command(&options.model), begun.elapsed()));
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.insert(turn.index, row);
                    tell(&Progress { ended: done.len(), all, run });
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
