//! A service process with its sockets: it takes connections of ranks and of other processes, makes those that groups need, and sees their ends.
//!
//! One thread calls [`Server::turn`]; nothing in it blocks. What is half open is bounded in number and in time, and gives way to others.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flexcast_proto::service::wire::{self, Body, Endpoint, Heartbeat, Hello, Rejection, Role, Secret, Welcome};
use flexcast_proto::service::{ConnectionError, SharedList};
use flexio::ProtectionDomain;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::counts::{NetCounts, Reason};
use super::frames::{Filled, Frames};
use super::greeting::{GreetingError, Incoming, Outgoing, Step};
use super::life::Life;
use super::set_up::SetUp;
use super::{encoded, endpoint_of, nonce};
use crate::agent::{Agent, AgentLimits};
use crate::error::{Error, Result};
use crate::links::PeerId;

/// Between two looks at sockets while there is other work.
const LOOK: Duration = Duration::from_micros(200);
/// Between two looks at bounds of time.
const TIMERS: Duration = Duration::from_millis(2);
/// Reads of one connection before others have their turn.
const READS: u32 = 8;
/// Connections that are taken from the system at a time.
const ACCEPTS: u32 = 64;
/// What is half open gives way to others after this part of its time, if there are too many.
const GRACE: u32 = 10;

/// What a service process is told of its surroundings.
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
    /// Default bounds with a secret: greetings of 2 s, 64 at a time; 5 s for a connection to another process, 128 of them; heartbeats of 1 s.
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

#[derive(Debug)]
pub(super) enum Phase {
    /// The other side connects.
    In(Incoming),
    /// The system connects.
    Tcp,
    /// This side connects.
    Out(Outgoing),
    Live,
}

/// One TCP connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    frames: Frames,
    pub(super) phase: Phase,
    begun: Instant,
    /// Of its greeting.
    deadline: Instant,
    /// Its queue pair, once opened.
    peer: Option<PeerId>,
    /// The other process, if it is one and known.
    pub(super) endpoint: Option<Endpoint>,
    /// It has room among the peers.
    admitted: bool,
    life: Option<Life>,
    /// GOODBYE is to be sent once the card has taken what was said before.
    leaves: bool,
    /// Both have said goodbye.
    closes: bool,
    /// What it has just said is to be carried out before it is read again.
    pauses: bool,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// Its greeting fails, or what it says cannot be.
    Refused(GreetingError),
    /// The other side is gone.
    Gone,
    /// It has said goodbye.
    Goodbye,
    Silent,
    Deadline,
    Crowded,
}

/// Whether a connection goes on.
pub(super) type Kept = Result<(), Ended>;

impl Conn {
    pub(super) fn new(stream: TcpStream, phase: Phase, now: Instant, deadline: Instant) -> Self {
        let (frames, peer, endpoint, life) = Default::default();
        Self {
            stream,
            frames,
            phase,
            begun: now,
            deadline,
            peer,
            endpoint,
            admitted: false,
            life,
            leaves: false,
            closes: false,
            pauses: false,
        }
    }

    /// Sends a message at once. Messages here are few and short: a connection that does not take one is not read by the other side.
    pub(super) fn say(&mut self, body: Body<'_>) -> Kept {
        let Ok(bytes) = encoded(body) else { return Ok(()) };
        match self.stream.write(&bytes) {
            Ok(written) if written == bytes.len() => Ok(()),
            _ => Err(Ended::Gone),
        }
    }

    const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live)
    }

    const fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::In(_))
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
    pub(super) counts: NetCounts,
    next_look: Instant,
    next_timers: Instant,
    /// No new connections; until when collectives may end.
    stops: Option<Instant>,
    is_over: bool,
    /// A connection has gone, for which groups may wait.
    resumes: bool,
}

impl Server {
    /// A service process on the function of the card that `pd` is of, which others know by the address of `listener`. `list` is shared by the processes of the card.
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
        let (conns, set_ups, counts) = Default::default();
        Ok(Self {
            agent,
            listener,
            epoll,
            settings,
            endpoint,
            conns,
            next: 1,
            set_ups,
            counts,
            next_look: now,
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

    /// Other settings for connections from now on; limits of the process and of its connections stay as they are, but for that of keys.
    pub fn reload(&mut self, settings: ServerSettings) {
        let limits = AgentLimits { keys: settings.limits.keys, ..self.settings.limits };
        self.agent.set_keys(limits.keys);
        let (connections, epoch) = (self.settings.connections, self.settings.epoch);
        self.settings = ServerSettings { limits, connections, epoch, ..settings };
    }

    /// Takes no connections any more. Collectives may end until `until`; then everybody is told, and it is over.
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
        if now >= self.next_look {
            self.next_look = now + LOOK;
            any |= self.look(now, Duration::ZERO)?;
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
        self.look(Instant::now(), most)
    }

    fn look(&mut self, now: Instant, wait: Duration) -> Result<bool> {
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
    fn follow(&mut self, now: Instant) -> Result<()> {
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

    /// Ends the sockets of what the process has cut off, or whose queue pair is broken. Before another connection has the number of one of those.
    fn drop_parted(&mut self) {
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
            if self.half_open() >= self.settings.greetings as usize && !self.give_way(now)? {
                // The others wait in the system's queue.
                break;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
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
            let conn = Conn::new(stream, Phase::In(incoming), now, now + self.settings.greeting);
            self.add(conn, EpollFlags::EPOLLIN)?;
        }
        Ok(())
    }

    /// The oldest that is half open makes room, unless it has just begun.
    fn give_way(&mut self, now: Instant) -> Result<bool> {
        let grace = self.settings.greeting / GRACE;
        let half_open = self.conns.iter().filter(|(_, conn)| conn.is_half_open());
        let oldest =
            half_open.min_by_key(|(_, conn)| conn.begun).filter(|(_, conn)| now.duration_since(conn.begun) > grace);
        let Some(id) = oldest.map(|(id, _)| *id) else { return Ok(false) };
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

    fn read(&mut self, conn: &mut Conn, now: Instant) -> Result<Kept> {
        for _ in 0..READS {
            match conn.frames.fill(&mut conn.stream) {
                Ok(Filled::Some) => {}
                Ok(Filled::Nothing) => break,
                Ok(Filled::Ended) | Err(_) => return Ok(Err(Ended::Gone)),
            }
            loop {
                let bytes = match conn.frames.next() {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => break,
                    Err(error) => return Ok(Err(Ended::Refused(GreetingError::Format(error)))),
                };
                let kept = match wire::decode(&bytes) {
                    Ok(packet) => self.hear(conn, &packet.body, now)?,
                    Err(error) => Err(Ended::Refused(GreetingError::Format(error))),
                };
                // After a goodbye comes the end of the stream: what the goodbye asks for is done first.
                if kept.is_err() || std::mem::take(&mut conn.pauses) {
                    return Ok(kept);
                }
            }
        }
        Ok(Ok(()))
    }

    fn hear(&mut self, conn: &mut Conn, body: &Body<'_>, now: Instant) -> Result<Kept> {
        if let Some(life) = &mut conn.life {
            life.heard(if let Body::Heartbeat(heartbeat) = body { Some(heartbeat) } else { None }, now);
        }
        let far = if let Phase::In(incoming) = &conn.phase { incoming.far() } else { None };
        let step = match &mut conn.phase {
            Phase::Live => return self.hear_live(conn, body),
            Phase::Tcp => return Ok(Ok(())),
            Phase::In(_) if self.stops.is_some() => Err(GreetingError::Rejected(Rejection::Stopping)),
            Phase::In(incoming) => incoming.hear(body, &self.settings.secret),
            Phase::Out(outgoing) => outgoing.hear(body),
        };
        let is_own = matches!(conn.phase, Phase::Out(_));
        match step {
            Err(error) => Ok(Err(Ended::Refused(error))),
            Ok(Step::Say(body)) => Ok(conn.say(body)),
            Ok(Step::Decide(hello)) => self.decide(conn, &hello),
            Ok(Step::Open) => self.open(conn),
            Ok(Step::Far(_)) if !is_own => self.open(conn),
            Ok(Step::Far(far)) => {
                let Some(peer) = conn.peer else { return Ok(Err(Ended::Gone)) };
                if self.agent.link(peer, far.into()).is_err() {
                    return Ok(Err(Ended::Refused(GreetingError::Order {
                        expected: "a queue pair that can be reached",
                    })));
                }
                Ok(self.beat(conn, now))
            }
            Ok(Step::There) if is_own => self.begin(conn, true),
            Ok(Step::There) => {
                let (Some(peer), Some(far)) = (conn.peer, far) else { return Ok(Err(Ended::Gone)) };
                if self.agent.link(peer, far.into()).is_err() {
                    return Ok(Err(Ended::Refused(GreetingError::Order {
                        expected: "a queue pair that can be reached",
                    })));
                }
                let kept = self.beat(conn, now);
                if kept.is_err() { Ok(kept) } else { self.begin(conn, false) }
            }
        }
    }

    fn hear_live(&mut self, conn: &mut Conn, body: &Body<'_>) -> Result<Kept> {
        match (body, conn.endpoint) {
            (Body::Heartbeat(_), _) => Ok(Ok(())),
            // What was said before it has come by the queue pair.
            (Body::Goodbye, Some(endpoint)) => {
                self.agent.progress()?;
                self.agent.hears_goodbye(endpoint);
                conn.pauses = true;
                Ok(Ok(()))
            }
            (Body::Goodbye, None) => {
                self.agent.progress()?;
                Ok(Err(Ended::Goodbye))
            }
            _ => Ok(Err(Ended::Refused(GreetingError::Order { expected: "HEARTBEAT or GOODBYE" }))),
        }
    }

    /// Whether who knows the secret is taken.
    fn decide(&mut self, conn: &mut Conn, hello: &Hello) -> Result<Kept> {
        let refuse = |rejection| Ok(Err(Ended::Refused(GreetingError::Rejected(rejection))));
        let limit = self.settings.limits.peers;
        if self.conns.values().filter(|conn| conn.admitted).count() >= limit as usize {
            return refuse(Rejection::Connections { limit });
        }
        if let Role::Process { listens } = hello.role {
            if listens == self.endpoint {
                return refuse(Rejection::Format);
            }
            let mut accepted = self.agent.accept(listens);
            if accepted == Err(ConnectionError::Twice) {
                // It would not come again if it still had the first one.
                let old = self.conns.iter().find(|(_, conn)| conn.endpoint == Some(listens)).map(|(id, _)| *id);
                if let Some(old) = old.and_then(|id| self.conns.remove(&id)) {
                    self.end(old, Ended::Gone)?;
                }
                accepted = self.agent.accept(listens);
            }
            match accepted {
                Ok(()) => conn.endpoint = Some(listens),
                Err(ConnectionError::Full { limit }) => return refuse(Rejection::Connections { limit }),
                Err(_) => return refuse(Rejection::Crossing),
            }
        }
        conn.admitted = true;
        let limits = self.settings.limits.machine;
        let welcome = Welcome {
            epoch: self.settings.epoch,
            heartbeat_ms: u32::try_from(self.settings.heartbeat.as_millis()).unwrap_or(u32::MAX).max(1),
            groups: limits.groups,
            collectives: limits.collectives,
        };
        let Phase::In(incoming) = &mut conn.phase else { return Ok(Err(Ended::Gone)) };
        let welcome = incoming.welcome(welcome);
        Ok(conn.say(welcome))
    }

    /// Opens the own queue pair, and tells it.
    fn open(&mut self, conn: &mut Conn) -> Result<Kept> {
        self.drop_parted();
        let opened = match conn.endpoint {
            Some(endpoint) => self.agent.open_process(endpoint),
            None => self.agent.open_program(),
        };
        let (peer, end) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(%error, "there is no queue pair for a connection");
                let limit = self.conns.len() as u32;
                return Ok(Err(Ended::Refused(GreetingError::Rejected(Rejection::Connections { limit }))));
            }
        };
        conn.peer = Some(peer);
        conn.admitted = true;
        Ok(conn.say(Body::Link(end.into())))
    }

    /// The first heartbeat: this side's queue pair is connected.
    fn beat(&self, conn: &mut Conn, now: Instant) -> Kept {
        let mut every = self.settings.heartbeat;
        if let Phase::Out(outgoing) = &conn.phase
            && let Some(welcome) = outgoing.welcome()
        {
            every = Duration::from_millis(welcome.heartbeat_ms.into());
        }
        let mut life = Life::new(every, now);
        let heartbeat = life.due(now).unwrap_or(Heartbeat { number: 1, seen: 0 });
        conn.life = Some(life);
        conn.say(Body::Heartbeat(heartbeat))
    }

    /// Both queue pairs are connected.
    fn begin(&mut self, conn: &mut Conn, own: bool) -> Result<Kept> {
        conn.phase = Phase::Live;
        if own {
            self.counts.set_up += 1;
        } else {
            self.counts.taken += 1;
        }
        if let (Some(endpoint), Some(peer)) = (conn.endpoint, conn.peer) {
            self.set_ups.remove(&endpoint);
            self.agent.is_made(peer, own)?;
        }
        Ok(Ok(()))
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

    /// Tells everybody that it ends, once collectives are over or have had their time.
    fn finish(&mut self, now: Instant) {
        let Some(until) = self.stops.filter(|_| !self.is_over) else { return };
        if now < until && (self.agent.look().collectives > 0 || !self.agent.is_drained()) {
            return;
        }
        for conn in self.conns.values_mut().filter(|conn| conn.is_live()) {
            _ = conn.say(Body::Goodbye);
        }
        self.is_over = true;
    }

    /// A connection is over: the other side is told why if it was refused, and what takes part by it has died.
    pub(super) fn end(&mut self, mut conn: Conn, ended: Ended) -> Result<()> {
        let limit = self.settings.greetings;
        let (reason, rejection) = match ended {
            Ended::Refused(error) => {
                let (reason, rejection) = error.told();
                let own = if let GreetingError::Rejected(rejection) = error { Some(rejection) } else { rejection };
                (reason, own)
            }
            Ended::Crowded => (Reason::Crowded, Some(Rejection::Connections { limit })),
            Ended::Deadline => (Reason::Deadline, None),
            Ended::Gone | Ended::Goodbye | Ended::Silent => (Reason::Closed, None),
        };
        match &conn.phase {
            Phase::In(_) => {
                self.counts.refuse(reason);
                tracing::info!(from = ?conn.stream.peer_addr().ok(), reason = reason.name(), ?ended, "a connection is refused");
                if let Some(rejection) = rejection {
                    _ = conn.say(Body::Rejected(rejection));
                }
            }
            Phase::Live => match ended {
                Ended::Goodbye => self.counts.goodbyes += 1,
                _ => {
                    self.counts.deaths += 1;
                    tracing::warn!(from = ?conn.stream.peer_addr().ok(), ?ended, "a connection has ended without a goodbye");
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
