//! All other ranks: connect to rank 0, contribute, wait for what it has collected.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use super::frame::{Frame, Hello, Taken, What, contributions};
use super::link::{Link, Pause};
use super::{Build, GRACE, MAX_CONTRIBUTION_BYTES, StoreConfig, StoreError};

/// Between attempts to connect: rank 0 may start later.
const RETRY: Duration = Duration::from_millis(50);
/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_secs(3);

/// The end of a rank that is not 0.
pub(super) struct Client {
    link: Link,
    address: String,
    size: u32,
    timeout: Duration,
    exchanges: u32,
}

impl Client {
    /// Connects, and waits for all others.
    pub(super) fn join(config: &StoreConfig, build: Build) -> Result<Self, StoreError> {
        let stream = connect(config)?;
        let limit = (4 + MAX_CONTRIBUTION_BYTES) * config.size as usize;
        let link = Link::new(stream, config.address.clone(), limit)?;
        let (address, timeout) = (config.address.clone(), config.timeout);
        let mut client = Self { link, address, size: config.size, timeout, exchanges: 0 };
        let hello = Hello { build, rank: config.rank, size: config.size, job: config.job.clone() };
        client.link.send(hello.encode());
        client.expect(What::Seated, "this rank told it who it is")?;
        client.expect(What::Welcome, "this rank waited for the others to join")?;
        Ok(client)
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

    fn expect(&mut self, what: What, during: &str) -> Result<Frame, StoreError> {
        let mut pause = Pause::until(self.timeout + GRACE);
        loop {
            let moved = self.link.pump();
            let beginning: Vec<u8> = self.link.incoming.iter().copied().take(8).collect();
            match self.link.take() {
                Taken::Whole(frame) if frame.what == what => return Ok(frame),
                Taken::Whole(frame) if frame.what == What::Failed => {
                    return Err(StoreError::Told { what: String::from_utf8_lossy(&frame.body).into_owned() });
                }
                Taken::Whole(frame) => {
                    return Err(self.nonsense(during, format!("{:?}, which is not due", frame.what)));
                }
                Taken::Nonsense(_) if what == What::Seated => {
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

    fn nonsense(&self, during: &str, what: String) -> StoreError {
        StoreError::Nonsense { rank: 0, from: self.address.clone(), during: during.to_owned(), what }
    }
}

/// Tries until somebody listens.
fn connect(config: &StoreConfig) -> Result<TcpStream, StoreError> {
    let pause = Pause::until(config.timeout);
    loop {
        let mut reason = "the name has no address".to_owned();
        // Names, too, may only come into being when rank 0 starts.
        match config.address.to_socket_addrs() {
            Ok(addresses) => {
                for address in addresses {
                    match TcpStream::connect_timeout(&address, ATTEMPT.min(pause.left()).max(RETRY)) {
                        Ok(stream) if is_own(&stream) => {
                            reason = "a connection to itself, since nobody listens at the port".to_owned();
                        }
                        Ok(stream) => return Ok(stream),
                        Err(error) => reason = error.to_string(),
                    }
                }
            }
            Err(error) => reason = error.to_string(),
        }
        if pause.is_over() {
            let (address, waited) = (config.address.clone(), pause.waited());
            return Err(StoreError::Unreachable { address, waited, reason });
        }
        std::thread::sleep(RETRY.min(pause.left()));
    }
}

/// TCP may connect a socket to itself when it looks for a port of the own host from which connections are made, too.
fn is_own(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}
