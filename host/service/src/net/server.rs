//! A service process with its sockets: it takes connections of ranks and of other processes, makes those that groups
//! need, and sees their ends.
//!
//! One thread calls [`Server::turn`]; nothing in it blocks. What is half open is bounded in number and in time, and
//! gives way to others: first connections of the address that has most of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flexcast_proto::service::SharedList;
use flexcast_proto::service::wire::{Body, Endpoint, Rejection, Secret};
use flexcast_proto::session::origin;
use flexio::ProtectionDomain;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::conn::{Conn, Ended, Phase};
use super::counts::{NetCounts, Reason};
use super::greeting::{GreetingError, Incoming};
use super::set_up::SetUp;
use super::{endpoint_of, nonce};
use crate::agent::{Agent, AgentLimits};
use crate::error::{Error, Result};

/// Between two polls of sockets while there is other work.
const SOCKETS: Duration = Duration::from_micros(200);
/// Between two checks of bounds of time.
const TIMERS: Duration = Duration::from_millis(2);
/// Connections that are taken from the system at a time.
const ACCEPTS: u32 = 64;
/// What is half open gives way to others of its address after this part of its time, if there are too many.
const GRACE: u32 = 10;

/// What a service process is given of its surroundings.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Bounds of the process.
    pub limits: AgentLimits,
    /// Connections to other processes that this one has set up at a time, and as many that others have; at least 1.
    pub connections: u32,
    /// What ranks and other processes must know.
    pub secret: Secret,
    /// Longest time that a greeting takes.
    pub greeting: Duration,
    /// Greetings under way at a time, at least 1.
    pub greetings: u32,
    /// Longest time that a connection to another process takes, after which its group is refused.
    pub connect: Duration,
    /// Longest time between two heartbeats, at least 1 ms.
    pub heartbeat: Duration,
    /// Drawn when the daemon has started: a restarted one is another.
    pub epoch: u64,
}

impl ServerSettings {
    /// Default bounds with a secret: greetings of 2 s, 64 at a time; 5 s for a connection to another process, 128 of
    /// them; heartbeats of 1 s.
    #[must_use]
    pub fn new(secret: Secret, epoch: u64) -> Self {
        Self {
            limits: AgentLimits::default(),
            connections: 128,
            secret,
            greeting: Duration::from_secs(2),
            greetings: 64,
            connect: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            epoch,
        }
    }
}

/// A service process with its sockets.
#[derive(Debug)]
pub struct Server {
    pub(super) agent: Agent,
    listener: TcpListener,
    pub(super) epoll: Epoll,
    pub(super) settings: ServerSettings,
    pub(super) endpoint: Endpoint,
    /// By the number of its events; 0 is the listener.
    pub(super) conns: BTreeMap<u64, Conn>,
    next: u64,
    pub(super) set_ups: BTreeMap<Endpoint, SetUp>,
    /// Until when groups wait for a connection.
    pub(super) wanted: BTreeMap<Endpoint, Instant>,
    pub(super) counts: NetCounts,
    next_sockets: Instant,
    next_timers: Instant,
    /// No new connections; until when collectives may end.
    pub(super) stops: Option<Instant>,
    is_over: bool,
    /// A connection has gone, for which groups may wait.
    resumes: bool,
}

impl Server {
    /// A service process on the function of the card that `pd` is of, which others know by the address of `listener`.
    /// `list` is shared by the processes of the card.
    ///
    /// # Errors
    /// The card or the system refuses; the address is of no interface, or a limit is 0.
    pub fn new(
        pd: &ProtectionDomain,
        listener: TcpListener,
        list: Arc<Mutex<SharedList>>,
        settings: ServerSettings,
    ) -> Result<Self> {
        let address = listener.local_addr().map_err(Error::socket("local_addr"))?;
        if address.ip().is_unspecified() {
            return Err(Error::Order {
                what: "a service process that listens on all addresses",
                next: "give the one by which groups name it",
            });
        }
        listener.set_nonblocking(true).map_err(Error::socket("set_nonblocking"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(Error::socket_errno("epoll_create"))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(Error::socket_errno("epoll_ctl"))?;
        let endpoint = endpoint_of(address);
        let mut agent = Agent::new(pd, endpoint, list, settings.limits)?;
        let zero = |_| Error::Order { what: "a limit of 0 connections to other processes", next: "give at least 1" };
        agent.connect_on_demand(settings.connections).map_err(zero)?;
        let now = Instant::now();
        let (conns, set_ups, wanted, counts) = Default::default();
        Ok(Self {
            agent,
            listener,
            epoll,
            settings,
            endpoint,
            conns,
            next: 1,
            set_ups,
            wanted,
            counts,
            next_sockets: now,
            next_timers: now,
            stops: None,
            is_over: false,
            resumes: false,
        })
    }

    /// Where it listens, as groups name it.
    #[must_use]
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// What its connections have counted.
    #[must_use]
    pub const fn counts(&self) -> NetCounts {
        self.counts
    }

    /// The process behind its sockets.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Connections whose greeting is not over, of others.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.conns.values().filter(|conn| conn.is_half_open()).count()
    }

    /// Other settings for connections from now on; limits of the process and of its connections stay as they are, but
    /// for those of keys.
    pub fn reload(&mut self, settings: ServerSettings) {
        let AgentLimits { keys, bound_keys, .. } = settings.limits;
        let limits = AgentLimits { keys, bound_keys, ..self.settings.limits };
        self.agent.set_keys(keys, bound_keys);
        let (connections, epoch) = (self.settings.connections, self.settings.epoch);
        self.settings = ServerSettings { limits, connections, epoch, ..settings };
    }

    /// Takes no connections any more. Collectives may end until `until`; then everybody is notified, and it is over.
    pub const fn stop(&mut self, until: Instant) {
        if self.stops.is_none() {
            self.stops = Some(until);
        }
    }

    /// Whether it has stopped.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Does what can be done now; returns whether anything has happened. Never blocks.
    ///
    /// # Errors
    /// The card has failed, or the system. What others do wrong is no error here.
    pub fn turn(&mut self, now: Instant) -> Result<bool> {
        let mut any = self.agent.progress()?;
        if any {
            self.follow(now)?;
        }
        if now >= self.next_sockets {
            self.next_sockets = now + SOCKETS;
            any |= self.poll_sockets(now, Duration::ZERO)?;
        }
        if now >= self.next_timers {
            self.next_timers = now + TIMERS;
            self.timers(now)?;
            self.follow(now)?;
        }
        Ok(any)
    }

    /// Waits for something on a socket, at most so long. For processes that have had nothing to do for a while.
    ///
    /// # Errors
    /// As [`Server::turn`].
    pub fn rest(&mut self, most: Duration) -> Result<bool> {
        self.poll_sockets(Instant::now(), most)
    }

    fn poll_sockets(&mut self, now: Instant, wait: Duration) -> Result<bool> {
        let mut events = [EpollEvent::empty(); 64];
        let wait = u16::try_from(wait.as_millis()).unwrap_or(u16::MAX);
        let found = match self.epoll.wait(&mut events, wait) {
            Ok(found) => found,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(errno) => return Err(Error::socket_errno("epoll_wait")(errno)),
        };
        for event in &events[..found] {
            match event.data() {
                0 => self.accept(now)?,
                id => self.serve(id, now)?,
            }
        }
        if found > 0 {
            self.follow(now)?;
        }
        Ok(found > 0)
    }

    /// Carries out what the process wants of its connections.
    pub(super) fn follow(&mut self, now: Instant) -> Result<()> {
        loop {
            self.drop_parted();
            if let Some(action) = self.agent.next_connection() {
                self.act(action, now)?;
            } else if std::mem::take(&mut self.resumes) {
                self.agent.resume()?;
            } else {
                break;
            }
        }
        self.leave()
    }

    /// Ends the sockets of what the process has cut off, or whose queue pair is broken. Before another connection has
    /// the number of one of those.
    pub(super) fn drop_parted(&mut self) {
        while let Some(peer) = self.agent.next_parted() {
            self.resumes = true;
            let id = self.conns.iter().find(|(_, conn)| conn.peer == Some(peer)).map(|(id, _)| *id);
            if id.and_then(|id| self.conns.remove(&id)).is_some() {
                self.counts.deaths += 1;
            }
        }
    }

    /// Says goodbye where everything else has been taken, and ends what both sides have said goodbye on.
    fn leave(&mut self) -> Result<()> {
        let leaving: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.leaves || conn.closes).map(|(id, _)| *id).collect();
        for id in leaving {
            let Some(mut conn) = self.conns.remove(&id) else { continue };
            if conn.leaves && conn.peer.is_none_or(|peer| self.agent.is_drained_to(peer)) {
                conn.leaves = false;
                // One that has said goodbye itself may have gone already.
                if conn.say(Body::Goodbye).is_err() && !conn.closes {
                    self.end(conn, Ended::Gone)?;
                    continue;
                }
            }
            if conn.closes && !conn.leaves {
                self.counts.goodbyes += 1;
                if let Some(peer) = conn.peer {
                    self.agent.close(peer)?;
                }
                continue;
            }
            self.conns.insert(id, conn);
        }
        Ok(())
    }

    /// The connection with another process that groups use.
    pub(super) fn live(&mut self, endpoint: Endpoint) -> Option<&mut Conn> {
        self.conns.values_mut().find(|conn| conn.is_live() && conn.endpoint == Some(endpoint))
    }

    pub(super) fn say_goodbye(&mut self, endpoint: Endpoint) {
        if let Some(conn) = self.live(endpoint) {
            conn.leaves = true;
        }
    }

    pub(super) fn close(&mut self, endpoint: Endpoint) {
        if let Some(conn) = self.live(endpoint) {
            conn.closes = true;
        }
    }

    /// A new connection with its events.
    pub(super) fn add(&mut self, conn: Conn, on: EpollFlags) -> Result<u64> {
        let id = self.next;
        self.next += 1;
        self.epoll.add(&conn.stream, EpollEvent::new(on, id)).map_err(Error::socket_errno("epoll_ctl"))?;
        self.conns.insert(id, conn);
        Ok(id)
    }

    fn accept(&mut self, now: Instant) -> Result<()> {
        for _ in 0..ACCEPTS {
            let (stream, address) = match self.listener.accept() {
                Ok((stream, address)) => (stream, address.ip()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be taken");
                    break;
                }
            };
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            let incoming = Incoming::new(nonce().map_err(Error::socket("getrandom"))?);
            let conn = Conn::new(stream, address, Phase::In(incoming), now, now + self.settings.greeting);
            if self.half_open() >= self.settings.greetings as usize && !self.give_way(address, now)? {
                // Whoever means it tries again.
                self.end(conn, Ended::Crowded)?;
                continue;
            }
            self.add(conn, EpollFlags::EPOLLIN)?;
        }
        Ok(())
    }

    /// Makes room for a connection of `address`, if there is any to make. A stranger gives way, never one that has
    /// proven who it is: the oldest of the address that has most of them, at once if `address` has fewer, otherwise
    /// after a while.
    fn give_way(&mut self, address: IpAddr, now: Instant) -> Result<bool> {
        let grace = self.settings.greeting / GRACE;
        // By address: how many there are, and the oldest, which has the least id.
        let mut strangers: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
        for (id, conn) in self.conns.iter().filter(|(_, conn)| conn.is_stranger()) {
            strangers.entry(origin(conn.from)).or_insert((0, *id)).0 += 1;
        }
        let own = strangers.get(&origin(address)).map_or(0, |(number, _)| *number);
        let Some((most, id)) = strangers.into_values().max_by_key(|(number, _)| *number) else { return Ok(false) };
        let has_had_time = self.conns.get(&id).is_some_and(|conn| now.duration_since(conn.begun) > grace);
        if most <= own + 1 && !has_had_time {
            return Ok(false);
        }
        let Some(conn) = self.conns.remove(&id) else { return Ok(false) };
        self.end(conn, Ended::Crowded)?;
        Ok(true)
    }

    /// Takes what has come on a connection.
    fn serve(&mut self, id: u64, now: Instant) -> Result<()> {
        let Some(mut conn) = self.conns.remove(&id) else { return Ok(()) };
        let kept = if matches!(conn.phase, Phase::Tcp) {
            self.is_connected(id, &mut conn)?
        } else {
            self.read(&mut conn, now)?
        };
        match kept {
            // The process has ended it meanwhile.
            Ok(()) if conn.peer.is_some_and(|peer| !self.agent.has(peer)) => self.counts.deaths += 1,
            Ok(()) => _ = self.conns.insert(id, conn),
            Err(ended) => self.end(conn, ended)?,
        }
        Ok(())
    }

    fn timers(&mut self, now: Instant) -> Result<()> {
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let mut ended = (!conn.is_live() && now >= conn.deadline).then_some(Ended::Deadline);
            if let Some(life) = conn.life.as_mut().filter(|_| matches!(conn.phase, Phase::Live)) {
                self.counts.heartbeats_missed += life.newly_missed(now);
                if life.is_silent(now) {
                    ended = Some(Ended::Silent);
                } else if let Some(heartbeat) = life.due(now)
                    && let Err(gone) = conn.say(Body::Heartbeat(heartbeat))
                {
                    ended = Some(gone);
                }
            }
            if let Some(ended) = ended
                && let Some(conn) = self.conns.remove(&id)
            {
                self.end(conn, ended)?;
            }
        }
        self.hurry(now)?;
        self.finish(now);
        Ok(())
    }

    /// Notifies everybody that it ends, once collectives are over or have had their time.
    fn finish(&mut self, now: Instant) {
        let Some(until) = self.stops.filter(|_| !self.is_over) else { return };
        if now < until && !self.agent.is_quiet() {
            return;
        }
        for conn in self.conns.values_mut().filter(|conn| conn.is_live()) {
            _ = conn.say(Body::Goodbye);
        }
        self.is_over = true;
    }

    /// A connection is over: the other side is sent the reason if it was refused, and what takes part by it has died.
    pub(super) fn end(&mut self, mut conn: Conn, ended: Ended) -> Result<()> {
        let limit = self.settings.greetings;
        let (reason, rejection) = match ended {
            Ended::Refused(error) => {
                let (reason, rejection) = error.reason_and_answer();
                let own = if let GreetingError::Rejected(rejection) = error { Some(rejection) } else { rejection };
                (reason, own)
            }
            Ended::Crowded => (Reason::Crowded, Some(Rejection::Crowded { limit })),
            Ended::Deadline => (Reason::Deadline, None),
            Ended::Gone | Ended::Goodbye | Ended::Silent => (Reason::Closed, None),
        };
        match &conn.phase {
            Phase::In(_) => {
                self.counts.refuse(reason);
                tracing::info!(from = %conn.from, reason = reason.name(), ?ended, "a connection is refused");
                if let Some(rejection) = rejection {
                    _ = conn.say(Body::Rejected(rejection));
                }
            }
            Phase::Live => match ended {
                Ended::Goodbye => self.counts.goodbyes += 1,
                _ => {
                    self.counts.deaths += 1;
                    tracing::warn!(from = %conn.from, ?ended, "a connection has ended without a goodbye");
                }
            },
            Phase::Tcp | Phase::Out(_) => return self.has_failed(conn, ended),
        }
        // What it has said before its end counts.
        if conn.is_live() {
            self.agent.progress()?;
        }
        if let Some(peer) = conn.peer {
            self.agent.close_lost(peer)?;
        }
        if let (Phase::In(_), Some(endpoint)) = (&conn.phase, conn.endpoint) {
            self.agent.is_unreachable(endpoint)?;
        }
        Ok(())
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system refuses.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(Error::socket("local_addr"))
    }

    /// The queue pair of a connection that was not made is freed.
    pub(super) fn free(&mut self, conn: &Conn) -> Result<()> {
        conn.peer.map_or(Ok(()), |peer| self.agent.close_lost(peer))
    }
}
