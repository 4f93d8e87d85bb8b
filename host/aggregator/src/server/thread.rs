//! A thread of aggregators: it alone touches the sums of its jobs.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flexcast_mesh::aggregator::{Carrier, Greeting, Report};
use flexcast_mesh::{Interest, MOST_FRAME_BYTES, Peer};
use flexio::ProtectionDomain;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;

use super::budget::{Budget, Reservation};
use super::cards::Cards;
use super::job::{Job, Watcher};
use super::lock;
use super::registry::{Key, Registry};
use super::status::JobStatus;
use crate::Result;

/// Token of the wake-up.
const WAKE_UP: u64 = u64::MAX;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Between two updates of what others see of the jobs.
const SHOWS: Duration = Duration::from_millis(100);

/// What a thread is to do.
#[derive(Debug)]
pub(super) enum Command {
    /// A worker has been taken.
    Join(Greeting, Box<Peer>),
    /// Workers are notified that the aggregator ends, and it does.
    Stop,
}

/// What threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) registry: Mutex<Registry>,
    pub(super) budget: Arc<Budget>,
    pub(super) timeout: Duration,
    /// Of the RDMA card, if there is one.
    pub(super) pd: Option<ProtectionDomain>,
}

/// A thread's jobs as others see them.
pub(super) type JobStatuses = Arc<Mutex<Vec<JobStatus>>>;

/// Who waits for connections.
struct Poller<'t> {
    epoll: &'t Epoll,
    tokens: &'t mut HashMap<u64, (Key, u32)>,
    registry: &'t Mutex<Registry>,
    key: Key,
}

fn flags(interest: Interest) -> EpollFlags {
    let part = |wanted, flag| if wanted { flag } else { EpollFlags::empty() };
    part(interest.read, EpollFlags::EPOLLIN) | part(interest.write, EpollFlags::EPOLLOUT)
}

impl Watcher for Poller<'_> {
    fn change(&mut self, connection: BorrowedFd<'_>, token: u64, before: Option<Interest>, now: Interest) {
        let (before, now) = (before.map_or(EpollFlags::empty(), flags), flags(now));
        let mut event = EpollEvent::new(now, token);
        // Of one in which nothing is of interest the system would report all the time that it has broken.
        let changed = match (before.is_empty(), now.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => self.epoll.add(connection, event),
            (false, true) => self.epoll.delete(connection),
            (false, false) => self.epoll.modify(connection, &mut event),
        };
        if let Err(error) = changed {
            tracing::error!(%error, "a connection cannot be waited for");
        }
    }

    fn forget(&mut self, connection: BorrowedFd<'_>, token: u64, rank: u32) {
        // One in which nothing was of interest is not there.
        let _ = self.epoll.delete(connection);
        self.tokens.remove(&token);
        lock(self.registry).leave(self.key, rank);
    }
}

/// A thread of aggregators.
#[derive(Debug)]
pub(super) struct Thread {
    epoll: Epoll,
    wake_up: Arc<EventFd>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    statuses: JobStatuses,
    jobs: BTreeMap<Key, Job>,
    tokens: HashMap<u64, (Key, u32)>,
    next: u64,
    room: Vec<u8>,
    stops: bool,
    /// When others have last been shown the jobs, and whether something has happened since.
    shown: Instant,
    changed: bool,
}

impl Thread {
    pub(super) fn new(
        wake_up: Arc<EventFd>,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
        statuses: JobStatuses,
    ) -> Result<Self> {
        let epoll = super::epoll()?;
        epoll.add(&*wake_up, EpollEvent::new(EpollFlags::EPOLLIN, WAKE_UP)).map_err(super::failed)?;
        Ok(Self {
            epoll,
            wake_up,
            commands,
            shared,
            statuses,
            jobs: BTreeMap::new(),
            tokens: HashMap::new(),
            next: 0,
            room: vec![0; MOST_FRAME_BYTES],
            stops: false,
            shown: Instant::now(),
            changed: false,
        })
    }

    /// Serves until it is asked to stop, and all workers have gone or had their time.
    pub(super) fn run(mut self) -> Result<()> {
        while !(self.stops && self.jobs.is_empty()) {
            let mut events = [EpollEvent::empty(); EVENTS];
            let polling = self.jobs.values().any(Job::is_polling);
            let timeout = if polling { EpollTimeout::ZERO } else { self.timeout(Instant::now()) };
            let found = match self.epoll.wait(&mut events, timeout) {
                Ok(found) => found,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(super::failed(errno)),
            };
            let now = Instant::now();
            let mut touched: Vec<Key> = Vec::new();
            for event in &events[..found] {
                if event.data() == WAKE_UP {
                    let _ = self.wake_up.read();
                    self.obey(now, &mut touched);
                } else if let Some((key, rank)) = self.tokens.get(&event.data()).copied() {
                    // That there is room for answers is no event of its own: whoever has some tries.
                    if event.events() != EpollFlags::EPOLLOUT
                        && let Some(job) = self.jobs.get_mut(&key)
                    {
                        job.receive(rank, &mut self.room, now);
                    }
                    touched.push(key);
                }
            }
            let polled = |(key, job): (&Key, &mut Job)| (job.is_polling() && job.poll(now)).then_some(*key);
            touched.extend(self.jobs.iter_mut().filter_map(polled));
            let due = |(_, job): &(&Key, &Job)| job.deadline().is_some_and(|deadline| deadline <= now);
            touched.extend(self.jobs.iter().filter(due).map(|(key, _)| *key));
            touched.sort_unstable();
            touched.dedup();
            self.changed |= !touched.is_empty();
            touched.into_iter().for_each(|key| self.turn(key, now));
            self.show(now);
        }
        Ok(())
    }

    fn timeout(&self, now: Instant) -> EpollTimeout {
        let next = self.jobs.values().filter_map(Job::deadline).min();
        let show = self.changed.then(|| self.shown + SHOWS);
        let Some(next) = next.into_iter().chain(show).min() else { return EpollTimeout::NONE };
        // Whole milliseconds, upwards: rather late than a loop.
        let left = next.saturating_duration_since(now).as_nanos().div_ceil(1_000_000);
        EpollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
    }

    /// Carries out the commands that have come.
    fn obey(&mut self, now: Instant, touched: &mut Vec<Key>) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Join(greeting, peer) => {
                    let Greeting { rank, terms, .. } = greeting;
                    let key = (terms.job, terms.aggregator);
                    let new = || {
                        let reservation = Reservation::new(Arc::clone(&self.shared.budget));
                        let pd = self.shared.pd.clone().filter(|_| terms.carrier != Carrier::Connection);
                        let cards = pd.map(|pd| Cards::new(pd, terms.workers));
                        Job::new(terms, self.shared.timeout, (reservation, cards), now)
                    };
                    let job = self.jobs.entry(key).or_insert_with(new);
                    self.next += 1;
                    self.tokens.insert(self.next, (key, rank));
                    job.join(rank, self.next, *peer);
                    if self.stops || job.has_failed() {
                        job.fail(&stopping(), now);
                    }
                    touched.push(key);
                }
                Command::Stop => {
                    self.stops = true;
                    self.jobs.values_mut().for_each(|job| job.fail(&stopping(), now));
                    touched.extend(self.jobs.keys());
                }
            }
        }
    }

    fn turn(&mut self, key: Key, now: Instant) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let registry = &self.shared.registry;
        job.turn(now, &mut Poller { epoll: &self.epoll, tokens: &mut self.tokens, registry, key });
        if job.has_failed() {
            lock(registry).end(key, job.refusal());
        }
        if job.is_empty() {
            self.jobs.remove(&key);
        }
    }

    fn show(&mut self, now: Instant) {
        if self.changed && (now >= self.shown + SHOWS || self.jobs.is_empty()) {
            *lock(&self.statuses) = self.jobs.values().map(Job::status).collect();
            (self.shown, self.changed) = (now, false);
        }
    }
}

fn stopping() -> Report {
    Report::Refused { reason: "it was asked to stop".to_owned() }
}
