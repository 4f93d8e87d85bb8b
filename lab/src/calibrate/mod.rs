//! Calibration of a timing model, and how well it predicts what it was not fitted to.
//!
//! - [`micro`]: micro-benchmarks as kernels on the emulated card; what went into the model has to come out;
//! - [`reference`](mod@reference): the published receive kernels and what they execute; [`fit`]: the one fitted number;
//! - [`holdouts`]: every published point that the model was not fitted to ([`holdout`]), by runs of `reference`, of
//!   SDR-RDMA's receive workers (`packets`), of DPA-Store's chain of loads and its echo (`echo`), and the bare
//!   [`bounds`];
//! - [`sensitivity`]: what of that depends on numbers that nobody has published;
//! - [`report`]: the result, as JSON and as tables.
//!
//! Kernels are image `calibration`'s, written from the papers' words; nothing is changed after the hold-outs are known.

pub mod bounds;
mod echo;
mod error;
pub mod fit;
mod fixture;
pub mod holdout;
pub mod holdouts;
pub mod micro;
mod packets;
pub mod reference;
pub mod report;
pub mod sensitivity;

use emu_machine::timing::Parameters;

pub use error::CalibrateError;
pub use holdouts::Sizes;
pub use report::Calibration;

use crate::jobs::{self, Ended, Failure, Pool};
use crate::tput::run::ImageFile;

/// Cycles of the DPA in a nanosecond.
const CYCLES_PER_NS: f64 = 1.8;

pub use crate::reference::{PUBLISHED_UC, PUBLISHED_UD};

/// The images that are run.
#[derive(Clone, Debug)]
pub struct Images {
    /// Image `reference`.
    pub reference: ImageFile,
    /// Image `calibration`.
    pub calibration: ImageFile,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether assumptions are swept.
    pub sweep: bool,
    /// Machines that are emulated at a time.
    pub threads: usize,
}

/// What a job does.
type Work<'a, T> = Box<dyn Fn() -> Result<T, CalibrateError> + Send + 'a>;

/// A run that does not depend on the others, for the worker pool.
struct Job<'a, T> {
    name: String,
    run: Work<'a, T>,
}

impl<'a, T> Job<'a, T> {
    fn new(name: impl Into<String>, run: impl Fn() -> Result<T, CalibrateError> + Send + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

impl<T> jobs::Job for Job<'_, T> {
    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Reports a job that has ended: its name, the number of those that have, of all, and the seconds it took.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize, f64) + Sync);

/// Carries all out, `threads` at a time; results in the order of the jobs. After a failure none is begun any more.
fn run_all<T: Send>(jobs: Vec<Job<'_, T>>, threads: usize, progress: Progress<'_>) -> Result<Vec<T>, CalibrateError> {
    let all = jobs.len();
    let report = |ended: &Ended<Job<'_, T>, T, CalibrateError>| {
        progress(&ended.job.name, ended.ended, all, ended.took.as_secs_f64());
    };
    Pool::new(threads).all(jobs, |job| (job.run)(), report).map_err(|failure| match failure {
        Failure::Failed(error) => error,
        Failure::Panicked { job, message } => CalibrateError::Panicked { job, message },
    })
}

/// Step 1.
///
/// # Errors
/// A run fails.
pub fn micro_benchmarks(
    images: &Images,
    parameters: &Parameters,
    threads: usize,
    progress: Progress<'_>,
) -> Result<Vec<micro::MicroRow>, CalibrateError> {
    let list = micro::list();
    let jobs: Vec<Job<'_, micro::MicroRow>> = list
        .iter()
        .map(|one| Job::new(one.what.clone(), move || micro::run(&images.calibration, parameters, one)))
        .collect();
    run_all(jobs, threads, progress)
}

/// Step 4: every hold-out, in the order of their numbers.
///
/// # Errors
/// A run fails. Predictions that are wrong are part of the result instead.
pub fn hold_outs(
    images: &Images,
    parameters: &Parameters,
    sizes: Sizes,
    threads: usize,
    progress: Progress<'_>,
) -> Result<Vec<holdout::HoldOut>, CalibrateError> {
    Ok(run_all(holdouts::jobs(images, parameters, sizes), threads, progress)?.concat())
}

/// All steps. A model whose fit is rejected is not examined any further.
///
/// # Errors
/// A run fails. Predictions that are wrong are part of the result instead.
pub fn calibrate(
    images: &Images,
    parameters: &Parameters,
    options: Options,
    progress: Progress<'_>,
) -> Result<Calibration, CalibrateError> {
    let micro = micro_benchmarks(images, parameters, options.threads, progress)?;
    let kernels = reference::kernels(&images.reference, parameters)?;
    let fit = fit::fit(&images.reference, parameters)?;
    let (mut holdouts, mut sensitivity) = (Vec::new(), None);
    if fit.gap_millicycles.is_some() {
        holdouts = hold_outs(images, parameters, Sizes::FULL, options.threads, progress)?;
        if options.sweep {
            sensitivity = Some(sensitivity::sweep(images, parameters, options.threads, progress)?);
        }
    }
    Ok(Calibration::new(parameters, micro, kernels, fit, holdouts, sensitivity))
}
