//! Server of aggregators: takes the connections of workers, and sums up for several jobs at once.
//!
//! [`Server`] takes the connections of workers at its listener; each job is served by one of its threads, which alone
//! touches the job's sums. What comes is summed up as in ranks that are aggregators themselves. Workers use it where
//! their `flexcast::Config` names it. The program `flexcast-aggregator` is one of these with a configuration and
//! a status (docs/aggregator.md).
//!
//! With a secret ([`Settings::secret`]) only workers that have the same one are taken, and what goes over a connection
//! counts only if its other end has sent it, in this order. Nothing is encrypted.
//!
//! Whatever workers or strangers say: memory is bounded by what [`Settings`] allow, and so is the time that one waits
//! for another.

mod budget;
mod cards;
mod job;
mod operation;
mod process;
mod registry;
mod status;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flexcast_bootstrap::Secret;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags};

pub use process::Server;
pub use status::{JobStatus, Status};

use crate::{AggregatorError, Result};

/// Bounds of a process of aggregators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Threads that sum up; each job has one of them.
    pub threads: u32,
    /// Memory for the sums of all jobs, in bytes. What does not fit is refused.
    pub memory_bytes: u64,
    /// Jobs at a time.
    pub jobs: u32,
    /// Workers at a time, of all jobs.
    pub connections: u32,
    /// Longest that an operation stands still before it fails. Longer than the workers' own bound (`barrier_timeout`),
    /// which knows better who is silent.
    pub timeout: Duration,
    /// Longest that one who connects may take to say who it is.
    pub greeting: Duration,
    /// Secret that workers share with the aggregators
    /// (`flexcast::Config::aggregator_secret`). Others are refused.
    pub secret: Option<Secret>,
}

impl Default for Settings {
    /// One thread, 256 MiB, 64 jobs, 4096 workers, 60 s, 2 s for a greeting, and no secret.
    fn default() -> Self {
        Self {
            threads: 1,
            memory_bytes: 256 << 20,
            jobs: 64,
            connections: 4096,
            timeout: Duration::from_secs(60),
            greeting: Duration::from_secs(2),
            secret: None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(errno: Errno) -> AggregatorError {
    AggregatorError::system("epoll", "; see the limit of open files (`ulimit -n`)")(errno.into())
}

fn epoll() -> Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)
}
