//! The side of a rank's program: a connection to the service process of its card, with signs of life.

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flexcast_proto::service::wire::{self, Body, Endpoint, FormatError, HelloError, Rejection, Role, Secret, Welcome};
use flexcast_proto::session::MessageTags;
use flexio::ProtectionDomain;
use thiserror::Error;

use crate::error::Result;
use crate::net::frames::{Filled, Frames};
use crate::net::greeting::{GreetingError, Outgoing, Step};
use crate::net::life::Life;
use crate::net::{address_of, nonce, tagged};
use crate::rank::{Client, DEFAULT_BOUND_KEYS};

/// How long a program waits for a service process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTiming {
    /// Until the system has connected.
    pub connect: Duration,
    /// Until the greeting is over, from then on.
    pub greeting: Duration,
}

impl Default for SessionTiming {
    /// 2 s each.
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), greeting: Duration::from_secs(2) }
    }
}

/// Why there is no connection to a service process. A program can go on without, by control of its host.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Nobody listens there, or the computer is not reached.
    #[error("no service process listens on {address} ({source}): start flexcast-service there, or go on without")]
    Absent {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// It does not answer.
    #[error("the service process on {address} has not answered within {} ms: is it flexcast-service that listens there?", waited.as_millis())]
    Silent {
        /// Where.
        address: SocketAddr,
        /// The bound.
        waited: Duration,
    },
    /// It has ended the connection without a word.
    #[error("the service process on {address} has ended the connection in the greeting: its log says why")]
    Closed {
        /// Where.
        address: SocketAddr,
    },
    /// The secrets differ.
    #[error("the service process on {address} has another secret: give both the same")]
    Secret {
        /// Where.
        address: SocketAddr,
    },
    /// It speaks another version.
    #[error(
        "the service process on {address} speaks version {found} of the messages, this program {}: run the same \
         release of both",
        wire::VERSION
    )]
    Version {
        /// Where.
        address: SocketAddr,
        /// Its version.
        found: u8,
    },
    /// It refuses.
    #[error("{address}: {rejection}")]
    Rejected {
        /// Where.
        address: SocketAddr,
        /// Why.
        rejection: Rejection,
    },
    /// What it says is nothing that a service process says.
    #[error("{address}: {error}")]
    Greeting {
        /// Where.
        address: SocketAddr,
        /// What is wrong.
        error: GreetingError,
    },
    /// The card of this program refuses, or the system.
    #[error(transparent)]
    Own(#[from] crate::Error),
}

impl SessionError {
    fn of(address: SocketAddr, error: GreetingError) -> Self {
        match error {
            GreetingError::Hello(HelloError::Tag) | GreetingError::Rejected(Rejection::Secret) => {
                Self::Secret { address }
            }
            GreetingError::Rejected(rejection) => Self::Rejected { address, rejection },
            GreetingError::Format(FormatError::Version { found }) => Self::Version { address, found },
            error => Self::Greeting { address, error },
        }
    }

    /// Whether it helps to try again in a moment: too many others were about to connect, or the connection was ended
    /// for them.
    const fn is_for_a_moment(&self) -> bool {
        matches!(self, Self::Closed { .. } | Self::Rejected { rejection: Rejection::Crowded { .. }, .. })
    }
}

/// How a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The service process has died: its connection has ended without a goodbye, or with something that is no message.
    Died,
    /// It has said nothing for too long: its computer is gone, or it hangs.
    Silent,
    /// It has stopped in order.
    Stopped,
}

/// What is sent on a connection.
#[derive(Debug)]
struct Sender {
    stream: TcpStream,
    /// Once both sides have proven who they are.
    tags: Option<MessageTags>,
}

impl Sender {
    fn say(&mut self, body: Body<'_>) -> std::io::Result<()> {
        let bytes = tagged(body, self.tags.as_mut()).map_err(std::io::Error::other)?;
        self.stream.write_all(&bytes)
    }
}

#[derive(Debug)]
struct Shared {
    /// The program says goodbye.
    leaves: AtomicBool,
    end: Mutex<Option<End>>,
    /// The thread of signs of life and the program send in the order of their tags.
    sender: Mutex<Sender>,
}

impl Shared {
    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program's connection to its service process.
///
/// A thread answers heartbeats while the program computes: it sleeps in between, and wakes four times in the time that
/// the service process says. The program calls [`Session::progress`] when it has time; between a call and its flag it
/// need not.
#[derive(Debug)]
pub struct Session {
    client: Client,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    welcome: Welcome,
    address: SocketAddr,
}

impl Session {
    /// Connects to the service process at `endpoint`, on the host's function of its card, and offers it
    /// [`DEFAULT_BOUND_KEYS`] keys to bind ([`Client::offer_keys`]). Blocks no longer than `timing` says, and as long
    /// as the card takes to make the keys. Within that time it tries again where others crowd it out.
    ///
    /// # Errors
    /// [`SessionError`]: with [`SessionError::Absent`] at once where nobody listens.
    pub fn connect(
        pd: &ProtectionDomain,
        endpoint: Endpoint,
        secret: &Secret,
        timing: SessionTiming,
    ) -> Result<Self, SessionError> {
        Self::connect_with_keys(pd, endpoint, secret, timing, DEFAULT_BOUND_KEYS)
    }

    /// The same with another number of keys to bind; 0: none.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect_with_keys(
        pd: &ProtectionDomain,
        endpoint: Endpoint,
        secret: &Secret,
        timing: SessionTiming,
        keys: u16,
    ) -> Result<Self, SessionError> {
        let until = Instant::now() + timing.connect + timing.greeting;
        loop {
            match Self::try_connect(pd, address_of(endpoint), secret, (timing, until), keys) {
                Err(error) if error.is_for_a_moment() && Instant::now() + AGAIN < until => std::thread::sleep(AGAIN),
                tried => return tried,
            }
        }
    }

    fn try_connect(
        pd: &ProtectionDomain,
        address: SocketAddr,
        secret: &Secret,
        (timing, last): (SessionTiming, Instant),
        keys: u16,
    ) -> Result<Self, SessionError> {
        // A later try has what is left. No time at all is no bound that the system takes.
        let left = last.saturating_duration_since(Instant::now());
        let connect = timing.connect.min(left).max(Duration::from_millis(1));
        let absent = |source| SessionError::Absent { address, source };
        let mut stream = TcpStream::connect_timeout(&address, connect).map_err(absent)?;
        stream.set_nodelay(true).map_err(crate::Error::socket("TCP_NODELAY"))?;
        // Messages are short: one that does not go is not read by the other side.
        stream
            .set_write_timeout(Some(timing.greeting.max(Duration::from_millis(1))))
            .map_err(crate::Error::socket("SO_SNDTIMEO"))?;
        let until = (Instant::now() + timing.greeting).min(last);
        let (mut client, end) = Client::open(pd)?;
        let fresh = |what| move |error| SessionError::Own(crate::Error::socket(what)(error));
        let epoch = u64::from_le_bytes(nonce().map_err(fresh("getrandom"))?[..8].try_into().unwrap_or_default());
        let (mut outgoing, hello) = Outgoing::new(secret, Role::Rank, epoch, nonce().map_err(fresh("getrandom"))?);
        let closed = |_| SessionError::Closed { address };
        let mut sender = Sender { stream: stream.try_clone().map_err(fresh("dup"))?, tags: None };
        sender.say(hello).map_err(closed)?;
        let mut frames = Frames::default();
        let mut life = None;
        loop {
            let bytes = next(&mut stream, &mut frames, until).map_err(|stopped| match stopped {
                Stopped::Late => SessionError::Silent { address, waited: timing.greeting },
                Stopped::Ended => SessionError::Closed { address },
                Stopped::Wrong(error) => SessionError::of(address, error),
            })?;
            let body =
                wire::decode(&bytes).map_err(|error| SessionError::of(address, GreetingError::Format(error)))?.body;
            match outgoing.receive(&body) {
                Ok(Step::Say(body)) => sender.say(body).map_err(closed)?,
                Ok(Step::Establish(session)) => {
                    sender.tags = Some(MessageTags::new(&session.send));
                    frames.expect(MessageTags::new(&session.receive));
                }
                Ok(Step::Open) => sender.say(Body::Link(end.into())).map_err(closed)?,
                Ok(Step::Far(far)) => {
                    client.connect(far.into())?;
                    let every = outgoing.welcome().map_or(1, |welcome| welcome.heartbeat_ms);
                    let mut beats = Life::new(Duration::from_millis(every.into()), Instant::now());
                    if let Some(heartbeat) = beats.due(Instant::now()) {
                        sender.say(Body::Heartbeat(heartbeat)).map_err(closed)?;
                    }
                    life = Some(beats);
                }
                Ok(Step::There) => break,
                Ok(Step::Decide(_)) => {}
                Err(error) => {
                    if error == GreetingError::Hello(HelloError::Tag) {
                        // So that the service process counts it.
                        sender.say(Body::Rejected(Rejection::Secret)).map_err(closed)?;
                    }
                    return Err(SessionError::of(address, error));
                }
            }
        }
        let (Some(mut life), Some(welcome)) = (life, outgoing.welcome()) else {
            return Err(SessionError::Closed { address });
        };
        client.offer_keys(keys)?;
        life.received(None, Instant::now());
        let shared = Arc::new(Shared { leaves: false.into(), end: None.into(), sender: sender.into() });
        let watched = Arc::clone(&shared);
        let watch = move || {
            let end = watch(stream, frames, life, &watched);
            *watched.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        };
        let thread =
            std::thread::Builder::new().name("flexcast-life".to_owned()).spawn(watch).map_err(fresh("clone"))?;
        Ok(Self { client, shared, thread: Some(thread), welcome, address })
    }

    /// Calls and memory. Once the session has ended all of its calls say [`Error::Gone`](crate::Error::Gone).
    pub const fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The same to read flags alone.
    #[must_use]
    pub const fn client_ref(&self) -> &Client {
        &self.client
    }

    /// What the service process has said of itself.
    #[must_use]
    pub const fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How the session has ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        *self.shared.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the service process has said; returns whether there was anything. Where the session has ended what
    /// came before still counts. Never blocks while the card works; where it fails, this waits up to 250 ms for the end
    /// of the connection, which says more.
    ///
    /// # Errors
    /// As [`Client::progress`]; a card that fails once the session has ended is none.
    pub fn progress(&mut self) -> Result<bool> {
        let had_ended = self.end().is_some();
        let any = match self.client.progress() {
            // A card may be gone together with the daemon on it: then calls fail as those of a daemon that is gone.
            Err(crate::Error::Card(_)) if self.ends_within(CARD_FAILS) => {
                self.client.lose();
                return Ok(true);
            }
            progressed => progressed?,
        };
        if had_ended {
            self.client.lose();
        }
        Ok(any)
    }

    fn ends_within(&self, bound: Duration) -> bool {
        let begun = Instant::now();
        while self.end().is_none() {
            if begun.elapsed() > bound {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Session {
    /// Says goodbye, and waits a moment until the service process has received it: ranks that have left their groups
    /// are missed by nobody. Those that have not count as dead.
    fn drop(&mut self) {
        self.shared.leaves.store(true, Ordering::Release);
        let mut sender = self.shared.sender();
        if self.end().is_none() {
            _ = sender.say(Body::Goodbye);
        }
        _ = sender.stream.shutdown(Shutdown::Write);
        drop(sender);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Until a service process that has no room for a greeting is asked again.
const AGAIN: Duration = Duration::from_millis(20);
/// Longest that a session waits for the end of its connection when the card has failed.
const CARD_FAILS: Duration = Duration::from_millis(250);
/// Longest that a session waits for the end of its connection after its goodbye.
const FAREWELL: Duration = Duration::from_millis(500);

/// Answers heartbeats until the connection ends.
fn watch(mut stream: TcpStream, mut frames: Frames, mut life: Life, shared: &Shared) -> End {
    // Signals are the program's business. A thread without a mask of its own may take them from it.
    _ = nix::sys::signal::SigSet::all().thread_block();
    let mut left = None;
    loop {
        loop {
            let bytes = match frames.next() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(_) => return End::Died,
            };
            let now = Instant::now();
            match wire::decode(&bytes).map(|packet| packet.body) {
                Ok(Body::Heartbeat(heartbeat)) => life.received(Some(&heartbeat), now),
                Ok(Body::Goodbye) => return End::Stopped,
                _ => return End::Died,
            }
        }
        let now = Instant::now();
        let leaves = shared.leaves.load(Ordering::Acquire);
        let farewell = *left.get_or_insert(now + FAREWELL);
        if !leaves {
            left = None;
            if let Some(heartbeat) = life.due(now)
                && shared.sender().say(Body::Heartbeat(heartbeat)).is_err()
            {
                return End::Died;
            }
        }
        let until = if leaves { farewell } else { life.wakes() };
        let wait = until.saturating_duration_since(now).max(Duration::from_millis(1));
        if stream.set_read_timeout(Some(wait)).is_err() {
            return End::Died;
        }
        match frames.fill(&mut stream) {
            Ok(Filled::Some) => {}
            Ok(Filled::Nothing) if leaves && Instant::now() >= farewell => return End::Silent,
            // Judged after a poll of what has come, so that a program that was halted does not take its own sleep for
            // the other's.
            Ok(Filled::Nothing) if life.is_silent(Instant::now()) => return End::Silent,
            Ok(Filled::Nothing) => {}
            Ok(Filled::Ended) | Err(_) => return End::Died,
        }
    }
}

enum Stopped {
    Late,
    Ended,
    Wrong(GreetingError),
}

/// The next message, in a bounded time.
fn next(stream: &mut TcpStream, frames: &mut Frames, until: Instant) -> Result<Vec<u8>, Stopped> {
    loop {
        if let Some(bytes) = frames.next().map_err(Stopped::Wrong)? {
            return Ok(bytes);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(Stopped::Late);
        }
        match frames.fill(stream) {
            Ok(Filled::Ended) | Err(_) => return Err(Stopped::Ended),
            Ok(Filled::Some | Filled::Nothing) => {}
        }
    }
}
