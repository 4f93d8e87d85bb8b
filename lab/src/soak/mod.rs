//! Random soak runs: simulations drawn from seeds, each of which comes out right or fails as it should.

pub mod random;
pub mod seeds;
pub mod side;
mod wide;

use std::collections::BTreeMap;

use emu_machine::with_world;
use serde::Serialize;

use crate::sim::algorithm::Algorithm;
use crate::sim::report::{Report, Traffic};
use crate::sim::run;
use crate::tput::run::ImageFile;
use random::{Case, Expected};

/// What has come out of the cases so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Cases run.
    pub cases: u64,
    /// Of them, those in which every rank got every byte.
    pub right: u64,
    /// Those in which live ranks failed as they should, each with a typed error; any others have every byte.
    pub failed: u64,
    /// The latter by the kinds of error in them, which are joined where ranks gave several.
    pub failures: BTreeMap<String, u64>,
    /// Cases of collectives without multicast.
    pub baselines: u64,
    /// Chunks that were lost and fetched.
    pub recovered_chunks: u64,
    /// Frames that were lost.
    pub lost_frames: u64,
    /// Cases in which nothing was lost, late or stopped, so that nothing may have been fetched.
    pub lossless: u64,
    /// Chunks that were fetched although nothing was lost: where hosts, threads or frames were late, or other
    /// communicators had the cards as well. Any other such case is wrong.
    pub spurious_chunks: u64,
    /// Cases of several communicators side by side.
    pub several: u64,
    /// Cases under weak memory.
    pub weak: u64,
    /// Cases with race detection.
    pub raced: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.cases += other.cases;
        self.right += other.right;
        self.failed += other.failed;
        for (kind, cases) in other.failures {
            *self.failures.entry(kind).or_default() += cases;
        }
        self.baselines += other.baselines;
        self.recovered_chunks += other.recovered_chunks;
        self.lost_frames += other.lost_frames;
        self.lossless += other.lossless;
        self.spurious_chunks += other.spurious_chunks;
        self.several += other.several;
        self.weak += other.weak;
        self.raced += other.raced;
    }
}

/// A case that came out wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}: {reason}")]
pub struct Wrong {
    /// Its seed.
    pub seed: u64,
    /// What was wrong.
    pub reason: String,
}

/// Runs the case of a seed.
///
/// # Errors
/// [`Wrong`].
pub fn run_seed(seed: u64, image: &ImageFile) -> Result<Tally, Wrong> {
    run_case(&Case::new(seed), image)
}

/// Runs a case.
///
/// # Errors
/// [`Wrong`].
pub fn run_case(case: &Case, image: &ImageFile) -> Result<Tally, Wrong> {
    let wrong = |reason: String| Wrong { seed: case.seed, reason };
    let provider = emu_provider::emulated(case.machine.clone()).map_err(|error| wrong(error.to_string()))?;
    let source = run::source(&case.params).map_err(|error| wrong(error.to_string()))?;
    let report = run::run(&provider, Some(image), &case.params, &source, &mut |_| {});
    let mut races = with_world(|world| world.take_races()).map_err(|error| wrong(error.to_string()))?;
    races.retain(|race| !report.as_ref().is_ok_and(|report| report.accounts_for(race)));
    if let Some(race) = races.first() {
        return Err(wrong(format!("{} races for memory, the first: {race}", races.len())));
    }
    let report = report.map_err(|error| wrong(error.to_string()))?;
    let overruns = with_world(|world| {
        let mut overruns = 0;
        for card in 0..world.card_count() {
            overruns += world.card(card).map_or(0, |card| card.nic.counters().rx_buffer_drops);
        }
        overruns
    });
    let overruns = overruns.map_err(|error| wrong(error.to_string()))?;
    if !report.bytes_ok {
        return Err(wrong("a rank that reports success has wrong bytes".to_owned()));
    }
    let failed = report.failures > 0;
    let (further, live_further) = (report.failures_concurrent, report.live_concurrent);
    for (failures, live, expected, whose) in [
        (report.failures - further, report.live - live_further, case.expected, ""),
        (further, live_further, case.expected_further, " of further communicators"),
    ] {
        if failures > 0 && expected == Expected::Right {
            return Err(wrong(format!("{failures} ranks{whose} failed: {}", report.errors.join("; "))));
        }
        if failures < live && expected == Expected::Failed {
            return Err(wrong(format!("{} ranks{whose} report success where all must fail", live - failures)));
        }
    }
    let is_lossless = !failed && case.params.algorithm == Algorithm::Multicast && loses_nothing(&report, overruns);
    let spurious_chunks = if is_lossless { report.recovered_chunks } else { 0 };
    let is_orderly = case.is_orderly();
    if spurious_chunks > 0 && is_orderly {
        return Err(wrong(format!("{spurious_chunks} chunks were fetched although none was lost: a spurious fetch")));
    }
    let kinds: Vec<&str> = report.failure_kinds.into_iter().collect();
    Ok(Tally {
        cases: 1,
        right: u64::from(!failed),
        failed: u64::from(failed),
        failures: failed.then(|| (kinds.join(" + "), 1)).into_iter().collect(),
        baselines: u64::from(case.params.algorithm != Algorithm::Multicast),
        recovered_chunks: report.recovered_chunks,
        lost_frames: report.traffic.lost_frames,
        lossless: u64::from(is_lossless && is_orderly),
        spurious_chunks,
        several: u64::from(case.params.side.has_several()),
        weak: u64::from(case.machine.memory != emu_machine::MemoryModel::Strong),
        raced: u64::from(case.machine.detect_races),
    })
}

/// Whether neither links have lost anything, nor cards for want of a receive or of room (`overruns`). What cards and
/// workers refuse is no loss: they refuse what comes after it was given up, too.
fn loses_nothing(report: &Report, overruns: u64) -> bool {
    let Traffic { lost_frames, rnr_drops, .. } = report.traffic;
    [lost_frames, rnr_drops, overruns].iter().all(|count| *count == 0)
}
