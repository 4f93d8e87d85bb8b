//! A process of aggregators: takes the connections of workers, and gives them to its threads.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSliceMut};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flexcast_bootstrap::store::SECRET_FILE;
use flexcast_mesh::aggregator::{Greeting, Key, Report};
use flexcast_mesh::nodes::{self, Nodes};
use flexcast_mesh::{Arrival, Host, MESSAGE, Peer, Reached, Strangers, Stream, Watch};
use flexio::ProtectionDomain;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{SockRef, TcpKeepalive};

use super::budget::Budget;
use super::registry::Registry;
use super::status::Status;
use super::thread::{Command, JobStatuses, Shared, Thread};
use super::{Settings, failed, lock};
use crate::{AggregatorError, Result};

/// Most that are refused and have not gone. The oldest goes first.
const MOST_FAREWELLS: usize = 64;
/// Longest that one who is refused has to receive the reason.
const FAREWELL: Duration = Duration::from_secs(2);
/// Most bytes of one who is refused that are read, so that it receives the reason.
const FAREWELL_BYTES: usize = 4 << 20;
/// How long nobody is taken where there is no room: the others wait in the system's queue. So it is when the system
/// refuses a connection, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Tokens of what wakes the acceptor: whatever it is, all are checked.
const WAKE_UP: u64 = 0;
const GUEST: u64 = 1;

/// A process of aggregators. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    settings: Settings,
    shared: Arc<Shared>,
    counts: Arc<Counts>,
    statuses: Vec<JobStatuses>,
    links: Arc<Vec<Link>>,
    wake_up: Arc<EventFd>,
    stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    refused: AtomicU64,
    strangers: AtomicU64,
}

/// The way to a thread.
#[derive(Debug)]
struct Link {
    commands: Mutex<Sender<Command>>,
    wake_up: Arc<EventFd>,
}

impl Link {
    fn send(&self, command: Command) {
        // It fails where the thread has ended.
        let _ = lock(&self.commands).send(command);
        let _ = self.wake_up.write(1);
    }
}

fn wake_up() -> Result<Arc<EventFd>> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new).map_err(failed)
}

fn no_thread(source: std::io::Error) -> AggregatorError {
    AggregatorError::system("thread", "; see the limit of processes (`ulimit -u`)")(source)
}

impl Server {
    /// Starts to serve those who connect to `listener`, and send blocks by that connection.
    ///
    /// # Errors
    /// The system refuses threads or sockets.
    pub fn start(listener: TcpListener, settings: Settings) -> Result<Self> {
        Self::start_with(listener, settings, None)
    }

    /// The same, and ranks with RDMA cards send blocks to the card of this protection domain.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn with_card(listener: TcpListener, settings: Settings, pd: &ProtectionDomain) -> Result<Self> {
        Self::start_with(listener, settings, Some(pd.clone()))
    }

    fn start_with(listener: TcpListener, settings: Settings, pd: Option<ProtectionDomain>) -> Result<Self> {
        let of_socket = |source| AggregatorError::system("TCP socket", "; try again")(source);
        let address = listener.local_addr().map_err(of_socket)?;
        listener.set_nonblocking(true).map_err(of_socket)?;
        if settings.secret.is_none() && !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "whoever reads along on the network can take a rank's place, and whoever can change packets can change \
                 sums; set {SECRET_FILE} for the daemon \
                 and all ranks to prevent it"
            );
        }
        let shared = Arc::new(Shared {
            registry: Mutex::new(Registry::new(&settings, pd.is_some())),
            budget: Budget::new(settings.memory_bytes),
            timeout: settings.timeout,
            pd,
        });
        let (mut links, mut statuses, mut sides) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..settings.threads.max(1) {
            let (commands, of_thread) = channel();
            let (wake_up, status) = (wake_up()?, JobStatuses::default());
            sides.push(Thread::new(Arc::clone(&wake_up), of_thread, Arc::clone(&shared), Arc::clone(&status))?);
            links.push(Link { commands: Mutex::new(commands), wake_up });
            statuses.push(status);
        }
        let epoll = super::epoll()?;
        let mut server = Self {
            address,
            settings: settings.clone(),
            shared,
            counts: Arc::default(),
            statuses,
            links: Arc::new(links),
            wake_up: wake_up()?,
            stops: Arc::default(),
            threads: Vec::new(),
        };
        epoll.add(&*server.wake_up, EpollEvent::new(EpollFlags::EPOLLIN, WAKE_UP)).map_err(failed)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, GUEST)).map_err(failed)?;
        let nodes = Arc::new(Nodes::of_this_thread());
        let device = server.shared.pd.as_ref().and_then(|pd| nodes::of_device(&pd.device().info().name));
        let near = device.or_else(|| nodes::of_address(address.ip()));
        for (number, side) in sides.into_iter().enumerate() {
            let nodes = Arc::clone(&nodes);
            let run = move || {
                // It makes the slots of its jobs: they are then on its node.
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
        let acceptor = Acceptor {
            epoll,
            listener,
            wake_up: Arc::clone(&server.wake_up),
            stops: Arc::clone(&server.stops),
            shared: Arc::clone(&server.shared),
            counts: Arc::clone(&server.counts),
            links: Arc::clone(&server.links),
            key: Key::of(settings.secret.as_ref()),
            greeting: settings.greeting,
            strangers: Strangers::default(),
            farewells: VecDeque::new(),
            pauses: None,
        };
        let run = move || {
            if let Err(error) = acceptor.run() {
                tracing::error!(%error, "no connections are taken any more");
            }
        };
        let thread = std::thread::Builder::new().name("aggregator-conn".to_owned()).spawn(run);
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
            jobs: self.statuses.iter().flat_map(|statuses| lock(statuses).clone()).collect(),
        }
    }

    /// Whether all of its threads run.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Takes nobody any more, notifies all workers, and waits until they are gone, at most two seconds.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stops.store(true, Ordering::Release);
        let _ = self.wake_up.write(1);
        self.links.iter().for_each(|link| link.send(Command::Stop));
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

/// One that is not taken, and has been sent the reason. Until it has gone what it sends is read and forgotten: a system
/// that closes a connection with something unread takes back what has not arrived yet at the other side.
#[derive(Debug)]
struct Farewell {
    stream: Stream,
    /// How much of it may still be read.
    left: usize,
    until: Instant,
}

impl Farewell {
    /// Reads what has come. Returns whether it is over.
    fn discard(&mut self, room: &mut [u8]) -> bool {
        while self.left > 0 {
            match self.stream.read_vectored(&mut [IoSliceMut::new(room)]) {
                Ok(0) => return true,
                Ok(bytes) => self.left = self.left.saturating_sub(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
        true
    }
}

/// Waits for strangers to say something.
struct Polled<'e>(&'e Epoll);

impl Watch for Polled<'_> {
    fn watch(&mut self, stream: BorrowedFd<'_>) {
        // One that is not waited for has until its time is over.
        let _ = self.0.add(stream, EpollEvent::new(EpollFlags::EPOLLIN, GUEST));
    }

    fn forget(&mut self, stream: BorrowedFd<'_>) {
        let _ = self.0.delete(stream);
    }
}

/// Where workers connect.
struct Acceptor {
    epoll: Epoll,
    listener: TcpListener,
    wake_up: Arc<EventFd>,
    stops: Arc<AtomicBool>,
    shared: Arc<Shared>,
    counts: Arc<Counts>,
    links: Arc<Vec<Link>>,
    key: Key,
    greeting: Duration,
    strangers: Strangers,
    /// The oldest first.
    farewells: VecDeque<Farewell>,
    /// Nobody is waited for until then.
    pauses: Option<Instant>,
}

impl Acceptor {
    fn run(mut self) -> Result<()> {
        let mut room = vec![0; 16 << 10];
        while !self.stops.load(Ordering::Acquire) {
            let mut events = [EpollEvent::empty(); 64];
            let farewell = self.farewells.iter().map(|one| one.until).min();
            let next = [farewell, self.strangers.deadline(), self.pauses].into_iter().flatten().min();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()).as_nanos().div_ceil(1_000_000));
            let timeout = left.map_or(EpollTimeout::NONE, |left| u16::try_from(left).unwrap_or(u16::MAX).into());
            match self.epoll.wait(&mut events, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let _ = self.wake_up.read();
            self.admit();
            let now = Instant::now();
            self.farewells.retain_mut(|farewell| now < farewell.until && !farewell.discard(&mut room));
            self.pause(now)?;
        }
        Ok(())
    }

    /// Takes who has connected, and what strangers have said.
    fn admit(&mut self) {
        let (listener, silence) = (&self.listener, self.greeting);
        let host = Host { listener, shared: None, reached: Reached::Aggregators(&self.key), silence };
        let arrivals = self.strangers.poll(&host, &mut Polled(&self.epoll));
        let turned = self.strangers.take_turned();
        let [accepted, closed] = self.strangers.counts();
        self.counts.accepted.store(accepted, Ordering::Relaxed);
        self.counts.strangers.store(closed, Ordering::Relaxed);
        for one in turned {
            let report = self.refusal(one.reason.clone());
            self.part(one.answer(&report));
        }
        arrivals.into_iter().for_each(|arrival| self.greet(arrival));
    }

    /// A worker has proven who it is.
    fn greet(&mut self, arrival: Arrival) {
        let (address, Some(greeting)) = (arrival.address, arrival.greeting) else { return };
        let Greeting { rank, terms, .. } = greeting;
        let joined = lock(&self.shared.registry).join(&greeting);
        let (stream, session) = match arrival.accept(self.key.secret()) {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::info!(rank, %address, %error, "a connection breaks as it is taken");
                if joined.is_ok() {
                    lock(&self.shared.registry).leave((terms.job, terms.aggregator), rank);
                }
                return;
            }
        };
        let mut peer = Peer::accepted(rank, stream, address, &session, self.key.is_shared());
        match joined {
            Ok(thread) => {
                // Of a computer that is gone the system learns only by asking.
                let keepalive =
                    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
                let _ = SockRef::from(&peer.stream).set_tcp_keepalive(&keepalive);
                self.links[thread].send(Command::Join(greeting, Box::new(peer)));
            }
            Err(reason) => {
                peer.add(MESSAGE, 0, [&self.refusal(reason), &[]]);
                peer.flush(&());
                self.part(peer.stream);
            }
        }
    }

    /// What one receives that is not taken.
    fn refusal(&self, reason: String) -> Vec<u8> {
        tracing::info!(reason, "a worker is refused");
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        Report::Refused { reason }.encode()
    }

    /// Lets one go that has been sent the reason why it is not taken.
    fn part(&mut self, stream: Stream) {
        let _ = SockRef::from(&stream).shutdown(std::net::Shutdown::Write);
        if self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, GUEST)).is_err() {
            return;
        }
        if self.farewells.len() >= MOST_FAREWELLS {
            self.farewells.pop_front();
        }
        self.farewells.push_back(Farewell { stream, left: FAREWELL_BYTES, until: Instant::now() + FAREWELL });
    }

    /// Waits for nobody who connects for a moment, or waits for them again.
    fn pause(&mut self, now: Instant) -> Result<()> {
        let is_over = self.pauses.is_some_and(|until| now >= until);
        match (self.strangers.is_stuck(), self.pauses) {
            (true, pauses) => {
                if pauses.is_none() {
                    self.epoll.delete(&self.listener).map_err(failed)?;
                }
                self.pauses = Some(now + PAUSE);
            }
            (false, Some(_)) if is_over => {
                self.pauses = None;
                self.epoll.add(&self.listener, EpollEvent::new(EpollFlags::EPOLLIN, GUEST)).map_err(failed)?;
            }
            (false, _) => {}
        }
        Ok(())
    }
}
