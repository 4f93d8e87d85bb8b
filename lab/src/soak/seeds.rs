//! Seeds of a soak run on the worker pool, watched while they run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Tally, Wrong, run_seed};
use crate::jobs::{Ended, Failure, Job, Pool};
use crate::shard::Shard;
use crate::tput::run::ImageFile;

/// How many of the slowest seeds are reported.
const SLOWEST: usize = 5;

/// What has come out so far.
#[derive(Debug, Default)]
pub struct State {
    /// Cases that came out as they should.
    pub tally: Tally,
    /// The others, by seed.
    pub wrong: Vec<Wrong>,
    /// Those of them that have not been reported to the user.
    pub unreported: Vec<Wrong>,
    /// Seeds under way, since when.
    pub running: BTreeMap<u64, Instant>,
    /// The slowest seeds, with the time that each took; the slowest first.
    pub slowest: Vec<(Duration, u64)>,
    /// Whether no seed is under way and none will be begun.
    pub is_over: bool,
}

impl State {
    /// Seeds that have run.
    pub fn ended(&self) -> u64 {
        self.tally.cases + self.wrong.len() as u64
    }

    fn end(&mut self, Ended { job: Seed(seed), took, result, .. }: Ended<Seed, Tally, Wrong>) {
        self.running.remove(&seed);
        self.slowest.push((took, seed));
        self.slowest.sort_unstable_by(|a, b| b.cmp(a));
        self.slowest.truncate(SLOWEST);
        match result {
            Ok(tally) => self.tally += tally,
            Err(failure) => {
                let wrong = match failure {
                    Failure::Failed(wrong) => wrong,
                    Failure::Panicked { message, .. } => Wrong { seed, reason: format!("it panicked: {message}") },
                };
                self.unreported.push(wrong.clone());
                self.wrong.push(wrong);
                self.wrong.sort_by_key(|wrong| wrong.seed);
            }
        }
    }
}

/// A case, for the worker pool.
#[derive(Clone, Copy, Debug)]
struct Seed(u64);

impl Job for Seed {
    fn name(&self) -> String {
        format!("seed {}", self.0)
    }
}

/// A range of seeds that are run.
#[derive(Debug)]
pub struct Seeds {
    first: u64,
    shard: Shard,
    count: u64,
    keep_going: bool,
    stopped: AtomicBool,
    /// Set by a signal.
    pub interrupted: Arc<AtomicBool>,
    state: Mutex<State>,
}

impl Seeds {
    /// So many seeds of a shard of those from `first` on, the last of which has a number, too. `keep_going`: also after
    /// a wrong one.
    pub fn new(first: u64, shard: Shard, count: u64, keep_going: bool) -> Arc<Self> {
        Arc::new(Seeds {
            first,
            shard,
            count,
            keep_going,
            stopped: AtomicBool::new(false),
            interrupted: Arc::default(),
            state: Mutex::default(),
        })
    }

    /// Begins to run them, on so many threads of their own.
    pub fn start(self: &Arc<Self>, threads: usize, image: &ImageFile) {
        let (seeds, image) = (Arc::clone(self), image.clone());
        // The caller watches, and may leave seeds that do not end to the end of the process.
        std::thread::spawn(move || {
            let pool = Pool { keep_going: seeds.keep_going, ..Pool::new(threads) };
            let seed = |number| Seed(seeds.first.saturating_add(seeds.shard.position(number)));
            let numbers = (0..seeds.count).take_while(|_| !seeds.stopped.load(Ordering::Relaxed));
            let work = |seed: &Seed| {
                seeds.lock().running.insert(seed.0, Instant::now());
                run_seed(seed.0, &image)
            };
            pool.each(numbers.map(seed), work, |ended| seeds.lock().end(ended));
            seeds.lock().is_over = true;
        });
    }

    /// No further seed is begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether a signal has come.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Lets a function read and change the state.
    pub fn with<R>(&self, inspect: impl FnOnce(&mut State) -> R) -> R {
        inspect(&mut self.lock())
    }

    /// Takes the state; what comes out from here on is lost.
    pub fn take(&self) -> State {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
