//! The service processes of one card: a thread each, with the list of blocks in common.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flexcast_proto::service::SharedList;
use flexcast_proto::service::wire::Endpoint;
use flexio::{Device, ProtectionDomain};
use serde::{Deserialize, Serialize};

use super::address_of;
use super::counts::NetCounts;
use super::server::{Server, ServerSettings};
use crate::agent::{AgentCounts, AgentStatus};
use crate::error::{Error, Result};

/// Between two checks of what others want of a thread, and two accounts of it.
const ACCOUNT: Duration = Duration::from_millis(10);
/// How long a thread sleeps that has had nothing to do.
const SLEEP: Duration = Duration::from_millis(1);

/// What a service process has and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Where it listens.
    pub address: String,
    /// What it has now.
    pub now: AgentStatus,
    /// Connections whose greeting is not over.
    pub half_open: u64,
    /// What it has done.
    pub counts: AgentCounts,
    /// What its connections have counted.
    pub net: NetCounts,
    /// Its connections to other processes.
    pub connections: ConnectionStatus,
}

/// What the cache of connections to other processes has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Uses that found a connection.
    pub hits: u64,
    /// Uses that had to wait for one.
    pub misses: u64,
    /// Set-ups of this process.
    pub set_ups: u64,
    /// Set-ups of others.
    pub accepted: u64,
    /// Connections that have given way to others.
    pub evictions: u64,
}

/// What is wanted of all threads.
#[derive(Debug)]
struct Wanted {
    /// Counted up with each change.
    version: AtomicU64,
    settings: Mutex<ServerSettings>,
    stops: Mutex<Option<Instant>>,
    ends: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the threads of a card's processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How long a process polls for work without a pause after it has had some. Then it polls once a millisecond.
    pub busy: Duration,
    /// Blocks of late ranks that the list of the card has room for.
    pub list: u64,
}

impl Default for Pace {
    /// 1 s, and 2^20 blocks.
    fn default() -> Self {
        Self { busy: Duration::from_secs(1), list: 1 << 20 }
    }
}

/// The service processes of one card. Dropped, they end at once, as if they had died.
#[derive(Debug)]
pub struct Processes {
    wanted: Arc<Wanted>,
    statuses: Vec<Arc<Mutex<ProcessStatus>>>,
    /// Accounts that each thread has given: one that hangs gives none.
    turns: Vec<Arc<AtomicU64>>,
    endpoints: Vec<Endpoint>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// That of a thread which has ended.
    failed: Option<Error>,
}

impl Processes {
    /// Starts a service process for each listening socket, on the function of a card's Arm cores.
    ///
    /// # Errors
    /// As [`Server::new`]; the system has no thread.
    pub fn start(device: &Device, listeners: Vec<TcpListener>, settings: ServerSettings, pace: Pace) -> Result<Self> {
        let list = Arc::new(Mutex::new(SharedList::new(pace.list)));
        let wanted = Arc::new(Wanted {
            version: AtomicU64::new(0),
            settings: Mutex::new(settings.clone()),
            stops: Mutex::new(None),
            ends: AtomicBool::new(false),
        });
        let (statuses, turns, endpoints, threads) = Default::default();
        let mut this = Self { wanted, statuses, turns, endpoints, threads, failed: None };
        for (number, listener) in listeners.into_iter().enumerate() {
            let pd = ProtectionDomain::new(device)?;
            let server = Server::new(&pd, listener, Arc::clone(&list), settings.clone())?;
            this.endpoints.push(server.endpoint());
            let status = Arc::new(Mutex::new(status_of(&server)));
            this.statuses.push(Arc::clone(&status));
            let turns = Arc::<AtomicU64>::default();
            this.turns.push(Arc::clone(&turns));
            let wanted = Arc::clone(&this.wanted);
            let run = move || run(server, &pd, &wanted, (&status, &turns), pace.busy);
            let thread = std::thread::Builder::new().name(format!("service-{number}")).spawn(run);
            this.threads.push(thread.map_err(Error::socket("clone"))?);
        }
        Ok(this)
    }

    /// Where they listen, as groups name them.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What they have and have done, at most some ten milliseconds ago.
    #[must_use]
    pub fn statuses(&self) -> Vec<ProcessStatus> {
        self.statuses.iter().map(|status| locked(status).clone()).collect()
    }

    /// How often each has given an account of itself: a number that does not grow for long is of one that hangs.
    #[must_use]
    pub fn turns(&self) -> Vec<u64> {
        self.turns.iter().map(|turns| turns.load(Ordering::Relaxed)).collect()
    }

    /// Other settings ([`Server::reload`]).
    pub fn reload(&self, settings: ServerSettings) {
        *locked(&self.wanted.settings) = settings;
        self.wanted.version.fetch_add(1, Ordering::Release);
    }

    /// Stops in order ([`Server::stop`]): collectives may end within so long.
    pub fn stop(&self, within: Duration) {
        locked(&self.wanted.stops).get_or_insert(Instant::now() + within);
        self.wanted.version.fetch_add(1, Ordering::Release);
    }

    /// Ends at once: a peer sees it by the end of its connection alone.
    pub fn end(&self) {
        self.wanted.ends.store(true, Ordering::Release);
    }

    /// Whether a process has ended, in order or by a failure.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Whether all have ended.
    #[must_use]
    pub fn are_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the end of all of them.
    ///
    /// # Errors
    /// The first failure of one.
    pub fn join(mut self) -> Result<()> {
        self.wait();
        self.failed.take().map_or(Ok(()), Err)
    }

    fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            let panicked = Error::Order { what: "a service process has panicked", next: "report its message" };
            if let Err(error) = thread.join().unwrap_or(Err(panicked)) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
        self.wait();
    }
}

fn status_of(server: &Server) -> ProcessStatus {
    let cache = server.agent().connection_counts().unwrap_or_default();
    ProcessStatus {
        address: address_of(server.endpoint()).to_string(),
        now: server.agent().status(),
        half_open: server.half_open() as u64,
        counts: server.agent().counts(),
        net: server.counts(),
        connections: ConnectionStatus {
            hits: cache.hits,
            misses: cache.misses,
            set_ups: cache.set_ups,
            accepted: cache.accepted,
            evictions: cache.evictions,
        },
    }
}

fn run(
    mut server: Server,
    pd: &ProtectionDomain,
    wanted: &Wanted,
    (status, turns): (&Mutex<ProcessStatus>, &AtomicU64),
    busy: Duration,
) -> Result<()> {
    let relax = pd.device().provider().relax();
    let mut known = 0;
    let mut active = Instant::now();
    let mut account = active;
    loop {
        let now = Instant::now();
        let any = server.turn(now)?;
        if now >= account || server.is_over() {
            account = now + ACCOUNT;
            *locked(status) = status_of(&server);
            turns.fetch_add(1, Ordering::Relaxed);
            let version = wanted.version.load(Ordering::Acquire);
            if std::mem::replace(&mut known, version) != version {
                server.reload(locked(&wanted.settings).clone());
                if let Some(until) = *locked(&wanted.stops) {
                    server.stop(until);
                }
            }
            if server.is_over() || wanted.ends.load(Ordering::Acquire) {
                return Ok(());
            }
        }
        if any {
            active = now;
            continue;
        }
        relax.relax();
        if now.duration_since(active) >= busy && server.rest(SLEEP)? {
            active = Instant::now();
        }
    }
}
