//! Worker pool of the laboratory: independent jobs on some threads, each of which emulates machines of its own.
//!
//! Jobs are begun in the order of their iterator, which is asked for the next one only when a thread is free: there may
//! be any number of them. A bound on memory lets later jobs overtake one that does not fit yet.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::memory;

/// What the pool has to know of a job.
pub trait Job: Send {
    /// Its name, for progress and failures.
    fn name(&self) -> String;

    /// Memory that it takes, roughly, in bytes.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// How jobs are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Jobs at a time, at most; 0 is taken for 1.
    pub threads: usize,
    /// Memory that jobs under way may take together, in bytes. A job that takes more than that runs alone.
    pub memory_bytes: u64,
    /// Whether jobs are begun after one has failed.
    pub keep_going: bool,
}

/// A job that has ended.
#[derive(Debug)]
pub struct Ended<J, T, E> {
    /// The job.
    pub job: J,
    /// Its place among all jobs, from 0.
    pub index: usize,
    /// Jobs that have ended, this one among them.
    pub ended: usize,
    /// Wall time that it took.
    pub took: Duration,
    /// What came of it.
    pub result: Result<T, Failure<E>>,
}

/// Why a job has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure<E> {
    /// It says so itself.
    #[error("{0}")]
    Failed(E),
    /// It panicked: a bug of this program.
    #[error("{job} panicked: {message}; please report it with the command that was run")]
    Panicked {
        /// Name of the job.
        job: String,
        /// What it said.
        message: String,
    },
}

impl Pool {
    /// So many jobs at a time, without a bound on memory, until one fails.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { threads, memory_bytes: u64::MAX, keep_going: false }
    }

    /// Runs `work` for each job and calls `ended` for each one that has ended, one at a time. Returns when all jobs
    /// that were begun have ended. The order in which jobs end is nobody's to choose: see [`Ended::index`].
    pub fn each<J: Job, T, E>(
        self,
        jobs: impl Iterator<Item = J> + Send,
        work: impl Fn(&J) -> Result<T, E> + Sync,
        ended: impl FnMut(Ended<J, T, E>) + Send,
    ) {
        let threads = self.threads.clamp(1, jobs.size_hint().1.unwrap_or(usize::MAX).max(1));
        let queue = Queue::new(jobs, self);
        let ended = Mutex::new((0, ended));
        let serve = || {
            while let Some(turn) = queue.begin() {
                let begun = Instant::now();
                let result = attempt(&turn.job, &work);
                let took = begun.elapsed();
                let (index, job) = (turn.index, queue.end(turn, result.is_err()));
                let mut ended = lock(&ended);
                ended.0 += 1;
                let count = ended.0;
                (ended.1)(Ended { job, index, ended: count, took, result });
            }
        };
        std::thread::scope(|scope| {
            let spawned = (0..threads).take_while(|_| std::thread::Builder::new().spawn_scoped(scope, serve).is_ok());
            // Where the system grants no further thread, those that run take all jobs.
            if spawned.count() == 0 {
                serve();
            }
        });
    }

    /// Runs all jobs; results in the order of the jobs. `progress` is called for each job that has ended.
    ///
    /// # Errors
    /// The first failure, by the order of the jobs.
    pub fn all<J: Job, T: Send, E: Send>(
        self,
        jobs: Vec<J>,
        work: impl Fn(&J) -> Result<T, E> + Sync,
        mut progress: impl FnMut(&Ended<J, T, E>) + Send,
    ) -> Result<Vec<T>, Failure<E>> {
        let mut results: Vec<Option<Result<T, Failure<E>>>> = jobs.iter().map(|_| None).collect();
        self.each(jobs.into_iter(), work, |ended| {
            progress(&ended);
            results[ended.index] = Some(ended.result);
        });
        // A job has no result only if another has failed.
        results.into_iter().flatten().collect()
    }
}

/// Memory that jobs may take together: half of what this process can get now.
#[must_use]
pub fn memory_limit_bytes() -> u64 {
    memory::available().bytes / 2
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job. What it leaves half done when it panics is its machine, which the thread's next job replaces.
fn attempt<J: Job, T, E>(job: &J, work: impl Fn(&J) -> Result<T, E>) -> Result<T, Failure<E>> {
    match catch_unwind(AssertUnwindSafe(|| work(job))) {
        Ok(result) => result.map_err(Failure::Failed),
        Err(payload) => Err(Failure::Panicked { job: job.name(), message: message(payload.as_ref()) }),
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "without a message".to_owned())
}

/// Jobs that wait for their turn.
struct Queue<I: Iterator> {
    state: Mutex<State<I>>,
    ended: Condvar,
    pool: Pool,
}

struct State<I: Iterator> {
    jobs: std::iter::Enumerate<I>,
    /// Jobs that did not fit when they would have been next.
    passed_over: VecDeque<(usize, I::Item)>,
    used_bytes: u64,
    running: usize,
    stopped: bool,
}

/// A job under way.
struct Turn<J> {
    index: usize,
    job: J,
    bytes: u64,
}

impl<J: Job, I: Iterator<Item = J>> State<I> {
    /// The first job that takes no more than this.
    fn first_that_fits(&mut self, room: u64) -> Option<(usize, J)> {
        if let Some(place) = self.passed_over.iter().position(|(_, job)| job.memory_bytes() <= room) {
            return self.passed_over.remove(place);
        }
        loop {
            let (index, job) = self.jobs.next()?;
            if job.memory_bytes() <= room {
                return Some((index, job));
            }
            self.passed_over.push_back((index, job));
        }
    }
}

impl<J: Job, I: Iterator<Item = J>> Queue<I> {
    fn new(jobs: I, pool: Pool) -> Self {
        let state =
            State { jobs: jobs.enumerate(), passed_over: VecDeque::new(), used_bytes: 0, running: 0, stopped: false };
        Self { state: Mutex::new(state), ended: Condvar::new(), pool }
    }

    /// The next job that fits in addition to those under way. Waits for one of them to end if none fits; `None` when
    /// all have begun, or none is to begin any more.
    fn begin(&self) -> Option<Turn<J>> {
        let mut state = lock(&self.state);
        loop {
            if state.stopped {
                return None;
            }
            let room = self.pool.memory_bytes.saturating_sub(state.used_bytes);
            let alone = state.running == 0;
            let next = state.first_that_fits(room);
            let next = next.or_else(|| if alone { state.passed_over.pop_front() } else { None });
            if let Some((index, job)) = next {
                let bytes = job.memory_bytes();
                state.used_bytes = state.used_bytes.saturating_add(bytes);
                state.running += 1;
                return Some(Turn { index, job, bytes });
            }
            if state.passed_over.is_empty() {
                return None;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, turn: Turn<J>, failed: bool) -> J {
        let mut state = lock(&self.state);
        state.used_bytes = state.used_bytes.saturating_sub(turn.bytes);
        state.running -= 1;
        state.stopped |= failed && !self.pool.keep_going;
        self.ended.notify_all();
        turn.job
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A job that takes so many bytes.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Bytes(u64);

    impl Job for Bytes {
        fn name(&self) -> String {
            format!("job of {} bytes", self.0)
        }

        fn memory_bytes(&self) -> u64 {
            self.0
        }
    }

    fn pool(threads: usize, memory_bytes: u64) -> Pool {
        Pool { memory_bytes, ..Pool::new(threads) }
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<Bytes> = (0..20).map(Bytes).collect();
        let counts = Mutex::new(Vec::new());
        let results = pool(3, 1000).all(jobs, |job| Ok::<_, String>(job.0), |ended| lock(&counts).push(ended.ended));
        assert_eq!(results.unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!(*lock(&counts), (1..=20).collect::<Vec<_>>());
    }

    #[test]
    fn no_job_begins_after_a_failure_unless_it_is_to_go_on() {
        for (keep_going, expected) in [(false, 3), (true, 20)] {
            let begun = AtomicUsize::new(0);
            let work = |job: &Bytes| {
                begun.fetch_add(1, Ordering::Relaxed);
                if job.0 == 2 { Err("two") } else { Ok(()) }
            };
            let pool = Pool { keep_going, ..pool(1, 1000) };
            let result = pool.all((0..20).map(Bytes).collect(), work, |_| ());
            assert_eq!(result, Err(Failure::Failed("two")));
            assert_eq!(begun.load(Ordering::Relaxed), expected);
        }
    }

    #[test]
    fn a_panic_is_a_failure_with_the_name_of_its_job() {
        let work =
            |job: &Bytes| -> Result<(), String> { if job.0 == 1 { panic!("no {} today", job.0) } else { Ok(()) } };
        let mut results = Vec::new();
        let pool = Pool { keep_going: true, ..pool(1, 1000) };
        pool.each((0..3).map(Bytes), work, |ended| results.push(ended.result));
        assert_eq!(results[0], Ok(()));
        let text = results[1].as_ref().unwrap_err().to_string();
        assert!(text.starts_with("job of 1 bytes panicked: no 1 today"), "{text}");
        assert_eq!(results[2], Ok(()), "the thread takes further jobs");
    }

    #[test]
    fn the_first_that_fits_is_next() {
        let queue = Queue::new([100, 20, 30, 1].map(Bytes).into_iter(), pool(1, 101));
        let first = queue.begin().unwrap();
        assert_eq!((first.index, first.job), (0, Bytes(100)));
        // Neither 20 nor 30, but something, so that no core is idle.
        let second = queue.begin().unwrap();
        assert_eq!(second.index, 3);
        queue.end(first, false);
        assert_eq!(queue.begin().map(|turn| turn.index), Some(1));
        assert_eq!(queue.begin().map(|turn| turn.index), Some(2));
        assert!(queue.begin().is_none());
    }

    #[test]
    fn a_job_that_fits_nowhere_runs_alone() {
        let (order, busy) = (Mutex::new(Vec::new()), Mutex::new(()));
        let work = |job: &Bytes| -> Result<(), String> {
            let _alone = busy.try_lock().expect("no other job is under way");
            lock(&order).push(job.0);
            Ok(())
        };
        pool(3, 1).all([4, 1000, 5].map(Bytes).to_vec(), work, |_| ()).unwrap();
        assert_eq!(*lock(&order), [4, 1000, 5]);
        assert!(memory_limit_bytes() > 0);
    }

    #[test]
    fn jobs_are_asked_for_one_by_one() {
        let asked = AtomicUsize::new(0);
        let jobs = (0..).map(|number| {
            asked.fetch_add(1, Ordering::Relaxed);
            Bytes(number)
        });
        let mut ended = 0;
        let work = |job: &Bytes| if job.0 == 9 { Err(()) } else { Ok(()) };
        pool(1, u64::MAX).each(jobs, work, |_| ended += 1);
        assert_eq!((asked.load(Ordering::Relaxed), ended), (10, 10));
    }
}
