//! Runs that do not depend on one another, on some threads: an emulated machine belongs to the thread that made it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::CalibrateError;

/// A run.
pub(super) struct Job<'a, T> {
    name: String,
    run: Box<dyn Fn() -> Result<T, CalibrateError> + Send + Sync + 'a>,
}

impl<'a, T> Job<'a, T> {
    pub(super) fn new(name: impl Into<String>, run: impl Fn() -> Result<T, CalibrateError> + Send + Sync + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// Tells of a job that has ended: its name, the number of those that have, of all, and the seconds it took.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize, f64) + Sync);

/// Carries all out, `threads` at a time; results in the order of the jobs. After a failure none is begun any more.
///
/// # Errors
/// The first failure, by the order of the jobs.
pub(super) fn run<T: Send>(
    jobs: &[Job<'_, T>],
    threads: usize,
    progress: Progress<'_>,
) -> Result<Vec<T>, CalibrateError> {
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<Mutex<Option<Result<T, CalibrateError>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < jobs.len()) {
                    let started = Instant::now();
                    let result = (jobs[index].run)();
                    if result.is_err() {
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    if let Ok(mut slot) = results[index].lock() {
                        *slot = Some(result);
                    }
                    let ended = ended.fetch_add(1, Ordering::Relaxed) + 1;
                    progress(&jobs[index].name, ended, jobs.len(), started.elapsed().as_secs_f64());
                }
            });
        }
    });
    // A job has no result only if another has failed.
    results.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_the_first_failure_ends_it() {
        let jobs: Vec<Job<'_, usize>> =
            (0..20).map(|number| Job::new(number.to_string(), move || Ok(number))).collect();
        assert_eq!(run(&jobs, 3, &|_, _, _, _| ()).unwrap(), (0..20).collect::<Vec<_>>());
        let begun = AtomicUsize::new(0);
        let jobs: Vec<Job<'_, ()>> = (0..20)
            .map(|number| {
                let begun = &begun;
                Job::new("", move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    if number == 2 { Err(CalibrateError::Untimed) } else { Ok(()) }
                })
            })
            .collect();
        assert!(matches!(run(&jobs, 1, &|_, _, _, _| ()), Err(CalibrateError::Untimed)));
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }
}
