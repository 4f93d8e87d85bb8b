//! All other ranks: connect to rank 0, contribute, wait for what it has collected.

use std::net::TcpStream;
use std::time::Duration;

use super::address::Address;
use super::channel::Opening;
use super::error::SecretDifference;
use super::frame::{Frame, Hello, MAX_REASON_BYTES, Taken, Turned, What, contributions};
use super::link::{Link, Pause};
use super::{Build, GRACE, MAX_CONTRIBUTION_BYTES, StoreConfig, StoreError};
use crate::DescriptorsUsedUp;

/// Between attempts to connect: rank 0 may start later.
const RETRY: Duration = Duration::from_millis(50);
/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long a rank that cannot join tries to let rank 0 know.
const NOTICE: Duration = Duration::from_secs(2);

/// The end of a rank that is not 0.
pub(super) struct Client {
    link: Link,
    address: String,
    rank: u32,
    size: u32,
    timeout: Duration,
    exchanges: u32,
}

/// A connection that did not become one to rank 0.
enum Attempt {
    /// It ended without a word, and another one may do better: rank 0 drops the oldest of too many connections that it
    /// does not know.
    Dropped(String),
    Failed(StoreError),
}

impl From<StoreError> for Attempt {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl Client {
    /// Connects, and waits for all others.
    pub(super) fn join(config: &StoreConfig, build: Build) -> Result<Self, StoreError> {
        Self::introduce(config, build, GRACE)?.welcomed()
    }

    /// Joins over one connection, which is there, and waits for nothing.
    pub(super) fn attend(link: Link, config: &StoreConfig, build: Build) -> Result<Self, StoreError> {
        match Self::over(link, config, build, Duration::ZERO) {
            Ok(client) => client.welcomed(),
            Err(Attempt::Failed(error)) => Err(error),
            Err(Attempt::Dropped(reason)) => {
                let (address, times, waited) = (config.address.clone(), 1, Duration::ZERO);
                Err(StoreError::Dropped { address, times, waited, reason })
            }
        }
    }

    fn welcomed(mut self) -> Result<Self, StoreError> {
        self.expect(What::Welcome, "this rank waited for the others to join")?;
        Ok(self)
    }

    /// Lets rank 0 know of a rank that cannot be, or cannot go on, so that the others need not wait for it. Gives what
    /// rank 0 answers.
    pub(super) fn notify(config: &StoreConfig, build: Build, reason: Option<&str>) -> Result<(), StoreError> {
        let config = StoreConfig { timeout: config.timeout.min(NOTICE), ..config.clone() };
        let mut client = Self::introduce(&config, build, Duration::ZERO)?;
        if let Some(reason) = reason {
            client.refuse(reason);
        }
        Ok(())
    }

    /// Connects until rank 0 knows this rank. Waits `grace` longer for its answer than for a connection.
    fn introduce(config: &StoreConfig, build: Build, grace: Duration) -> Result<Self, StoreError> {
        let pause = Pause::until(config.timeout);
        let mut times = 0;
        loop {
            let stream = connect(config, &pause)?;
            let reason = match Self::say_hello(stream, config, build, pause.left().saturating_add(grace)) {
                Ok(client) => return Ok(client),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Dropped(reason)) => reason,
            };
            times += 1;
            if pause.is_over() {
                let (address, waited) = (config.address.clone(), pause.waited());
                return Err(StoreError::Dropped { address, times, waited, reason });
            }
            std::thread::sleep(RETRY.min(pause.left()));
        }
    }

    fn say_hello(stream: TcpStream, config: &StoreConfig, build: Build, wait: Duration) -> Result<Self, Attempt> {
        // Until rank 0 is known to be one, it sends a reason at most.
        Self::over(Link::new(stream, config.address.clone(), MAX_REASON_BYTES)?, config, build, wait)
    }

    fn over(link: Link, config: &StoreConfig, build: Build, wait: Duration) -> Result<Self, Attempt> {
        let (address, rank, size) = (config.address.clone(), config.rank, config.size);
        let mut client = Self { link, address, rank, size, timeout: config.timeout, exchanges: 0 };
        let mut hello = Hello { build, rank, size, job: config.job.clone(), handshake: None };
        let during = "this rank said who it is";
        match &config.secret {
            None => client.link.send(hello.encode()),
            Some(secret) => {
                let failed = |error: snow::Error| StoreError::Socket { reason: format!("encryption: {error}") };
                let (opening, message) = Opening::new(secret, &hello.prologue(true)).map_err(failed)?;
                hello.handshake = Some(message);
                client.link.send(hello.encode());
                let answer = client.first(What::Answer, during, wait)?;
                let channel = opening.finish(&answer.body).ok_or_else(|| client.differs(SecretDifference::Other))?;
                client.link.secure(channel);
                client.link.send(Frame::new(What::Present).encode());
            }
        }
        client.first(What::Seated, during, wait)?;
        client.link.set_limit((4 + MAX_CONTRIBUTION_BYTES) * size as usize);
        Ok(client)
    }

    /// A frame that comes before rank 0 knows this rank.
    fn first(&mut self, what: What, during: &str, wait: Duration) -> Result<Frame, Attempt> {
        self.expect_within(what, during, wait).map_err(|error| match error {
            StoreError::FirstLost { reason, .. } => Attempt::Dropped(reason),
            other => Attempt::Failed(other),
        })
    }

    /// Contributes, and waits for what all have contributed.
    pub(super) fn exchange(&mut self, tag: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.exchanges += 1;
        let number = self.exchanges;
        let frame = Frame { what: What::Contribution, number, tag: tag.to_owned(), body: own.to_vec() };
        self.link.send(frame.encode());
        let during = format!("exchange {tag:?} was under way");
        let frame = self.expect(What::Collected, &during)?;
        let all = contributions(&frame.body, self.size).filter(|_| frame.number == number && frame.tag == tag);
        all.ok_or_else(|| self.nonsense(&during, format!("an answer to exchange {} {:?}", frame.number, frame.tag)))
    }

    /// Ends the store for all ranks.
    pub(super) fn refuse(&mut self, reason: &str) {
        self.link.send(Frame::with_reason(What::Refused, reason).encode());
        let mut pause = Pause::until(NOTICE);
        while !self.link.is_flushed() && !pause.is_over() {
            let moved = self.link.pump();
            pause.wait(moved);
        }
    }

    /// Waits for a frame, so long that rank 0 can say for whom it has waited.
    fn expect(&mut self, what: What, during: &str) -> Result<Frame, StoreError> {
        self.expect_within(what, during, self.timeout.saturating_add(GRACE))
    }

    fn expect_within(&mut self, what: What, during: &str, wait: Duration) -> Result<Frame, StoreError> {
        let mut pause = Pause::until(wait);
        loop {
            let moved = self.link.pump();
            let beginning: Vec<u8> = self.link.incoming.iter().copied().take(8).collect();
            match self.link.take() {
                Taken::Whole(frame) if frame.what == what => return Ok(frame),
                Taken::Whole(frame) if frame.what == What::Failed => {
                    return Err(StoreError::Reported { what: frame.reason() });
                }
                Taken::Whole(frame) => {
                    let nonsense = || self.nonsense(during, format!("{:?}, which is not due", frame.what));
                    return Err(Turned::of(&frame).map_or_else(nonsense, |turned| self.turned(turned)));
                }
                Taken::Nonsense(_) if matches!(what, What::Seated | What::Answer) => {
                    return Err(StoreError::NotAStore { address: self.address.clone(), answer: beginning });
                }
                Taken::Nonsense(what) => return Err(self.nonsense(during, what)),
                Taken::Part => {}
            }
            let (address, during) = (|| self.address.clone(), || during.to_owned());
            if let Some(reason) = self.link.closed.clone() {
                return Err(StoreError::FirstLost { address: address(), during: during(), reason });
            }
            if pause.is_over() {
                return Err(StoreError::Unanswered { address: address(), waited: pause.waited(), during: during() });
            }
            pause.wait(moved);
        }
    }

    fn turned(&self, turned: Turned) -> StoreError {
        match turned {
            Turned::OtherSecret => self.differs(SecretDifference::Other),
            Turned::NoSecret => self.differs(SecretDifference::OwnMissing),
            Turned::SecretUnknown => self.differs(SecretDifference::TheirsMissing),
            Turned::Over => StoreError::FirstFailed { address: self.address.clone() },
        }
    }

    fn differs(&self, difference: SecretDifference) -> StoreError {
        StoreError::SecretDiffers { rank: 0, at: self.address.clone(), own: self.rank, difference }
    }

    fn nonsense(&self, during: &str, what: String) -> StoreError {
        StoreError::Nonsense { rank: 0, from: self.address.clone(), during: during.to_owned(), what }
    }
}

/// Tries until somebody listens.
fn connect(config: &StoreConfig, pause: &Pause) -> Result<TcpStream, StoreError> {
    let address = Address::parse(&config.address)?;
    loop {
        // Names, too, may only come into being when rank 0 starts.
        let mut reason = String::new();
        let used_up = |error: &std::io::Error| {
            let found = DescriptorsUsedUp::find(error)?;
            Some(StoreError::Descriptors { rank: config.rank, found })
        };
        match address.resolve() {
            Ok(addresses) => {
                for address in addresses {
                    match TcpStream::connect_timeout(&address, ATTEMPT.min(pause.left()).max(RETRY)) {
                        Ok(stream) if is_own(&stream) => {
                            reason = "a connection to itself, since nobody listens at the port".to_owned();
                        }
                        Ok(stream) => return Ok(stream),
                        Err(error) => match used_up(&error) {
                            Some(found) => return Err(found),
                            None => reason = error.to_string(),
                        },
                    }
                }
            }
            Err(error) => match used_up(&error) {
                Some(found) => return Err(found),
                None => reason = error.to_string(),
            },
        }
        if pause.is_over() {
            let (waited, is_loopback) = (pause.waited(), address.is_loopback());
            return Err(StoreError::Unreachable { address: config.address.clone(), waited, reason, is_loopback });
        }
        std::thread::sleep(RETRY.min(pause.left()));
    }
}

/// TCP may connect a socket to itself when it searches for a port of the own host from which connections are made, too.
fn is_own(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}
