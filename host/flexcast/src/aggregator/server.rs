//! A process of aggregators: takes the connections of workers, and gives them to its threads.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flexio::ProtectionDomain;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{SockRef, TcpKeepalive};
use zerocopy::IntoBytes as _;

use super::budget::Budget;
use super::registry::Registry;
use super::status::Status;
use super::thread::{Command, Looks, Shared, Thread};
use super::wire::{GREETING_BYTES, Greeting, Report, Unheard};
use super::{Settings, failed, lock};
use crate::api::card::{Card, Kind};
use crate::datapath::udp::mesh::{Frame, MESSAGE};
use crate::error::{Error, Result};
use crate::memory::nodes::{self, Nodes};

/// Most connections that have not said who they are, or are refused.
const MOST_GUESTS: usize = 64;
/// One of so many guests gives way to another after this time.
const GRACE: Duration = Duration::from_millis(200);
/// Longest that one who is refused has to hear why.
const FAREWELL: Duration = Duration::from_secs(2);
/// Most bytes of one who is refused that are read, so that it hears why.
const FAREWELL_BYTES: usize = 4 << 20;
/// How long nobody is taken where there is no room: the others wait in the system's queue. So it is when the system refuses a connection, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

const BELL: u64 = u64::MAX;
const DOOR: u64 = u64::MAX - 1;

/// A process of aggregators. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    settings: Settings,
    shared: Arc<Shared>,
    counts: Arc<Counts>,
    looks: Vec<Looks>,
    links: Arc<Vec<Link>>,
    bell: Arc<EventFd>,
    stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    refused: AtomicU64,
    strangers: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The way to a thread.
#[derive(Debug)]
struct Link {
    commands: Mutex<Sender<Command>>,
    bell: Arc<EventFd>,
}

impl Link {
    fn tell(&self, command: Command) {
        // It fails where the thread has ended.
        let _ = lock(&self.commands).send(command);
        let _ = self.bell.write(1);
    }
}

fn bell() -> Result<Arc<EventFd>> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new).map_err(failed)
}

fn no_thread(source: std::io::Error) -> Error {
    Error::Socket { what: "thread".to_owned(), source, next: "see the limit of processes (`ulimit -u`)" }
}

impl Server {
    /// Starts to serve those who connect to `listener`, and send blocks by that connection.
    ///
    /// # Errors
    /// The system refuses threads or sockets.
    pub fn start(listener: TcpListener, settings: Settings) -> Result<Self> {
        Self::start_with(listener, settings, None)
    }

    /// The same, and ranks with RDMA cards send blocks to this one.
    ///
    /// # Errors
    /// As [`Server::start`]; [`Error::Argument`]: the card is a network interface.
    pub fn with_card(listener: TcpListener, settings: Settings, card: &Card) -> Result<Self> {
        let pd = match card.kind() {
            Kind::Verbs(card) => card.pd(),
            Kind::Dpa(card) => card.pd(),
            Kind::Udp(_) => {
                let reason = "a network interface is no RDMA card: start without one, and ranks send by TCP".to_owned();
                return Err(Error::Argument { operation: "aggregators", reason });
            }
        };
        Self::start_with(listener, settings, Some(pd.clone()))
    }

    fn start_with(listener: TcpListener, settings: Settings, pd: Option<ProtectionDomain>) -> Result<Self> {
        let of_socket = |source| Error::Socket { what: "TCP socket".to_owned(), source, next: "try again" };
        let address = listener.local_addr().map_err(of_socket)?;
        listener.set_nonblocking(true).map_err(of_socket)?;
        let shared = Arc::new(Shared {
            registry: Mutex::new(Registry::new(settings, pd.is_some())),
            budget: Budget::new(settings.memory_bytes),
            timeout: settings.timeout,
            pd,
        });
        let (mut links, mut looks, mut sides) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..settings.threads.max(1) {
            let (commands, of_thread) = channel();
            let (bell, look) = (bell()?, Looks::default());
            sides.push(Thread::new(Arc::clone(&bell), of_thread, Arc::clone(&shared), Arc::clone(&look))?);
            links.push(Link { commands: Mutex::new(commands), bell });
            looks.push(look);
        }
        let epoll = super::epoll()?;
        let mut server = Self {
            address,
            settings,
            shared,
            counts: Arc::default(),
            looks,
            links: Arc::new(links),
            bell: bell()?,
            stops: Arc::default(),
            threads: Vec::new(),
        };
        epoll.add(&*server.bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL)).map_err(failed)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, DOOR)).map_err(failed)?;
        let nodes = Arc::new(Nodes::of_this_thread());
        let device = server.shared.pd.as_ref().and_then(|pd| nodes::of_device(&pd.device().info().name));
        let near = device.or_else(|| nodes::of_address(address.ip()));
        for (number, side) in sides.into_iter().enumerate() {
            let nodes = Arc::clone(&nodes);
            let run = move || {
                // It makes the spots of its jobs: they are then on its node.
                if let Some(node) = nodes.bind_this_thread(number, near) {
                    tracing::info!(number, node, "a thread of aggregators is bound to a node");
                }
                if let Err(error) = side.run() {
                    tracing::error!(%error, "a thread of aggregators has failed");
                }
            };
            let thread = std::thread::Builder::new().name(format!("aggregator-{number}")).spawn(run);
            server.threads.push(thread.map_err(no_thread)?);
        }
        let door = Door {
            epoll,
            listener,
            bell: Arc::clone(&server.bell),
            stops: Arc::clone(&server.stops),
            shared: Arc::clone(&server.shared),
            counts: Arc::clone(&server.counts),
            links: Arc::clone(&server.links),
            greeting: settings.greeting,
            guests: Vec::new(),
            next: 0,
            pauses: None,
        };
        let run = move || {
            if let Err(error) = door.run() {
                tracing::error!(%error, "no connections are taken any more");
            }
        };
        let thread = std::thread::Builder::new().name("aggregator-door".to_owned()).spawn(run);
        server.threads.push(thread.map_err(no_thread)?);
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is doing; of jobs, as it was a moment ago.
    #[must_use]
    pub fn status(&self) -> Status {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Status {
            address: self.address.to_string(),
            device: self.shared.pd.as_ref().map(|pd| pd.device().info().name.clone()),
            threads: self.settings.threads.max(1),
            memory_bytes: self.settings.memory_bytes,
            reserved_bytes: self.shared.budget.taken(),
            connected: lock(&self.shared.registry).connections(),
            accepted: count(&self.counts.accepted),
            refused: count(&self.counts.refused),
            strangers: count(&self.counts.strangers),
            jobs: self.looks.iter().flat_map(|looks| lock(looks).clone()).collect(),
        }
    }

    /// Whether all of its threads run.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Takes nobody any more, tells all workers, and waits until they are gone, at most two seconds.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stops.store(true, Ordering::Release);
        let _ = self.bell.write(1);
        self.links.iter().for_each(|link| link.tell(Command::Stop));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Somebody who has connected and is none of a thread's: it has not said who it is, or is refused.
#[derive(Debug)]
struct Guest {
    stream: TcpStream,
    token: u64,
    since: Instant,
    until: Instant,
    bytes: [u8; GREETING_BYTES],
    come: usize,
    /// It is refused: how much of it may still be read.
    farewell: Option<usize>,
}

/// What is to become of a guest.
enum Fate {
    Stays,
    Goes,
    /// Its greeting is whole.
    Greets,
}

impl Guest {
    /// Takes what has come of the greeting, and nothing behind it.
    fn listen(&mut self) -> Fate {
        while self.come < GREETING_BYTES {
            match self.stream.read(&mut self.bytes[self.come..]) {
                Ok(0) => return Fate::Goes,
                Ok(bytes) => self.come += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Stays,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Fate::Goes,
            }
            if !Greeting::may_begin(&self.bytes[..self.come]) {
                return Fate::Goes;
            }
        }
        Fate::Greets
    }

    /// Forgets what comes: a system that closes a connection with something unread takes back what has not arrived yet at the other side.
    fn discard(&mut self, left: usize, room: &mut [u8]) -> Fate {
        let mut left = left;
        while left > 0 {
            match self.stream.read(room) {
                Ok(0) => return Fate::Goes,
                Ok(bytes) => left = left.saturating_sub(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.farewell = Some(left);
                    return Fate::Stays;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Fate::Goes,
            }
        }
        Fate::Goes
    }

    /// Tells it why it is refused.
    fn refuse(&mut self, reason: String) {
        let report = Report::Refused { reason }.encode();
        let frame = Frame::new(MESSAGE, 0, report.len());
        // A new connection has room for so little.
        let told = self.stream.write_all(&[frame.as_bytes(), &report].concat());
        let _ = told.and_then(|()| self.stream.shutdown(std::net::Shutdown::Write));
        self.until = Instant::now() + FAREWELL;
        self.farewell = Some(FAREWELL_BYTES);
    }
}

/// Where workers connect.
struct Door {
    epoll: Epoll,
    listener: TcpListener,
    bell: Arc<EventFd>,
    stops: Arc<AtomicBool>,
    shared: Arc<Shared>,
    counts: Arc<Counts>,
    links: Arc<Vec<Link>>,
    greeting: Duration,
    guests: Vec<Guest>,
    next: u64,
    /// Nobody is taken until then.
    pauses: Option<Instant>,
}

impl Door {
    fn run(mut self) -> Result<()> {
        let mut room = vec![0; 16 << 10];
        while !self.stops.load(Ordering::Acquire) {
            let mut events = [EpollEvent::empty(); 64];
            let next = self.guests.iter().map(|guest| guest.until).chain(self.pauses).min();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000));
            let timeout = left.map_or(EpollTimeout::NONE, |left| u16::try_from(left).unwrap_or(u16::MAX).into());
            let found = match self.epoll.wait(&mut events, timeout) {
                Ok(found) => found,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(failed(errno)),
            };
            for event in &events[..found] {
                match event.data() {
                    BELL => _ = self.bell.read(),
                    DOOR => self.accept()?,
                    token => self.hear(token, &mut room),
                }
            }
            let now = Instant::now();
            let late = self.guests.iter().filter(|guest| now >= guest.until && guest.farewell.is_none()).count();
            self.counts.strangers.fetch_add(late as u64, Ordering::Relaxed);
            self.guests.retain(|guest| now < guest.until);
            if self.pauses.is_some_and(|until| now >= until) {
                self.pauses = None;
                self.epoll.add(&self.listener, EpollEvent::new(EpollFlags::EPOLLIN, DOOR)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Nobody is taken for a moment.
    fn pause(&mut self) -> Result<()> {
        if self.pauses.is_none() {
            self.epoll.delete(&self.listener).map_err(failed)?;
        }
        self.pauses = Some(Instant::now() + PAUSE);
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            if self.guests.len() >= MOST_GUESTS && !self.give_way() {
                return self.pause();
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be taken");
                    return self.pause();
                }
            };
            // Of a computer that is gone the system learns only by asking.
            let keepalive =
                TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let ready = ready.and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive));
            self.next += 1;
            let token = self.next;
            if ready.is_err() || self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token)).is_err() {
                continue;
            }
            Counts::add(&self.counts.accepted);
            let since = Instant::now();
            let (until, bytes, come) = (since + self.greeting, [0; GREETING_BYTES], 0);
            self.guests.push(Guest { stream, token, since, until, bytes, come, farewell: None });
        }
    }

    /// The guest that has been there for longest goes, unless it has just come.
    fn give_way(&mut self) -> bool {
        let oldest = (0..self.guests.len()).min_by_key(|at| self.guests[*at].since);
        let Some(oldest) = oldest.filter(|at| self.guests[*at].since.elapsed() >= GRACE) else { return false };
        if self.guests.swap_remove(oldest).farewell.is_none() {
            Counts::add(&self.counts.strangers);
        }
        true
    }

    fn hear(&mut self, token: u64, room: &mut [u8]) {
        let Some(at) = self.guests.iter().position(|guest| guest.token == token) else { return };
        let guest = &mut self.guests[at];
        let fate = match guest.farewell {
            Some(left) => guest.discard(left, room),
            None => guest.listen(),
        };
        match fate {
            Fate::Stays => {}
            Fate::Goes => {
                if guest.farewell.is_none() {
                    Counts::add(&self.counts.strangers);
                }
                self.guests.swap_remove(at);
            }
            Fate::Greets => self.greet(at),
        }
    }

    fn greet(&mut self, at: usize) {
        let greeting = Greeting::decode(&self.guests[at].bytes);
        let joined = greeting.and_then(|greeting| {
            let thread = lock(&self.shared.registry).join(&greeting);
            thread.map(|thread| (greeting, thread)).map_err(Unheard::Refused)
        });
        match joined {
            Ok((greeting, thread)) => {
                let guest = self.guests.swap_remove(at);
                // The thread waits for it with events of its own.
                let _ = self.epoll.delete(&guest.stream);
                self.links[thread].tell(Command::Join(greeting, guest.stream));
            }
            Err(Unheard::Refused(reason)) => {
                tracing::info!(reason, "a worker is refused");
                Counts::add(&self.counts.refused);
                self.guests[at].refuse(reason);
            }
            Err(Unheard::Stranger) => {
                Counts::add(&self.counts.strangers);
                self.guests.swap_remove(at);
            }
        }
    }
}
