//! All runs of all experiments, on several threads, each with a machine of its own. A run that several experiments want is done once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bound;
use super::computed;
use super::expect::{self, Verdict};
use super::point::{self, Point};
use super::row::{Kind, Row};
use super::spec::Experiment;
use crate::timing::TimingParams;

/// What every run needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the device images.
    pub images: PathBuf,
    /// Timing model.
    pub model: TimingParams,
    /// Runs at a time.
    pub jobs: usize,
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

/// Runs the experiments. `tell`: how many runs are done, of how many.
#[must_use]
pub fn run(experiments: Vec<Experiment>, options: &Options, tell: &(dyn Fn(usize, usize) + Sync)) -> Vec<Outcome> {
    let wanted: Vec<Vec<Point>> = experiments.iter().map(points).collect();
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
        for form in &experiment.computed {
            match computed::rows(form) {
                Ok(computed) => rows.extend(computed),
                Err(reason) => failures.push((format!("{form:?}"), reason)),
            }
        }
        rows.extend(experiment.published.iter().map(published));
        let bounds = experiment.plot.iter().map(|plot| bound::points(plot, &rows)).collect();
        let verdicts = experiment.expect.iter().map(|expect| expect::judge(expect, &rows)).collect();
        Outcome { experiment, rows, bounds, verdicts, failures }
    });
    outcomes.collect()
}

/// The runs of an experiment, in the order of its file.
#[must_use]
pub fn points(experiment: &Experiment) -> Vec<Point> {
    let tput = experiment.tput.iter().flat_map(point::tput_points);
    tput.chain(experiment.sim.iter().flat_map(point::sim_points)).collect()
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
    tell: &(dyn Fn(usize, usize) + Sync),
) -> BTreeMap<usize, Result<Row, String>> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    // The longest first, so that no thread is left with one at the end.
    order.sort_by_key(|&index| std::cmp::Reverse(points[index].weight()));
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let lock = || done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    tell(0, points.len());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = points[index].run(&options.images, &options.model);
                    let mut done = lock();
                    done.insert(index, row);
                    tell(done.len(), points.len());
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
