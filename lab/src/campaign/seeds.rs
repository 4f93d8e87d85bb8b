//! The seeds of a campaign, run by several threads, each with a machine of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Tally, Wrong, run_seed};
use crate::tput::run::ImageFile;

/// How many of the slowest seeds are told.
const SLOWEST: usize = 5;

/// What has come out so far.
#[derive(Debug, Default)]
pub struct State {
    /// Cases that came out as they should.
    pub tally: Tally,
    /// The others, by seed.
    pub wrong: Vec<Wrong>,
    /// Those of them that the user has not been told of.
    pub untold: Vec<Wrong>,
    /// Seeds under way, since when.
    pub running: BTreeMap<u64, Instant>,
    /// The slowest seeds, with the time that each took; the slowest first.
    pub slowest: Vec<(Duration, u64)>,
    /// Threads that still take seeds.
    pub threads: u64,
}

impl State {
    /// Seeds that have run.
    pub fn ended(&self) -> u64 {
        self.tally.cases + self.wrong.len() as u64
    }

    fn end(&mut self, seed: u64, result: Result<Tally, Wrong>) {
        let took = self.running.remove(&seed).map_or(Duration::ZERO, |since| since.elapsed());
        self.slowest.push((took, seed));
        self.slowest.sort_unstable_by(|a, b| b.cmp(a));
        self.slowest.truncate(SLOWEST);
        match result {
            Ok(tally) => self.tally += tally,
            Err(wrong) => {
                self.untold.push(wrong.clone());
                self.wrong.push(wrong);
                self.wrong.sort_by_key(|wrong| wrong.seed);
            }
        }
    }
}

/// A range of seeds that threads take from.
#[derive(Debug)]
pub struct Seeds {
    first: u64,
    count: u64,
    keep_going: bool,
    next: AtomicU64,
    stopped: AtomicBool,
    /// Set by a signal.
    pub interrupted: Arc<AtomicBool>,
    state: Mutex<State>,
}

impl Seeds {
    /// Seeds from `first` on. `keep_going`: also after a wrong one.
    pub fn new(first: u64, count: u64, keep_going: bool) -> Arc<Self> {
        Arc::new(Seeds {
            first,
            count,
            keep_going,
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            interrupted: Arc::default(),
            state: Mutex::default(),
        })
    }

    /// Starts threads that run them.
    pub fn start(self: &Arc<Self>, threads: u64, image: &ImageFile) {
        self.lock().threads = threads;
        for _ in 0..threads {
            let (seeds, image) = (Arc::clone(self), image.clone());
            std::thread::spawn(move || {
                // Counted down even when a case panics, which is told as a wrong one.
                let _guard = Ending(&seeds);
                while let Some(seed) = seeds.take_seed() {
                    let result = std::panic::catch_unwind(|| run_seed(seed, &image));
                    let result = result.unwrap_or_else(|_| Err(Wrong { seed, reason: "it panicked".to_owned() }));
                    seeds.lock().end(seed, result);
                }
            });
        }
    }

    fn take_seed(&self) -> Option<u64> {
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.lock();
        if !self.keep_going && !state.wrong.is_empty() {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let seed = self.first.saturating_add(number);
        (number < self.count).then(|| {
            state.running.insert(seed, Instant::now());
            seed
        })
    }

    /// No further seed is begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether a signal has come.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Looks at the state.
    pub fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.lock())
    }

    /// Takes the state; what comes out from here on is lost.
    pub fn take(&self) -> State {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that ends.
struct Ending<'s>(&'s Seeds);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.threads = state.threads.saturating_sub(1);
    }
}
