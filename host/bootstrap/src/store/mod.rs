//! A meeting point over TCP: rank 0 listens, the others connect to it, and every exchange goes through it.
//!
//! Meant for setting up: a star of P - 1 connections, one round trip per exchange. Every wait has a bound, and what
//! rank 0 finds wrong it tells all others, so that all ranks fail for the same reason and at once. There is no
//! encryption and no authentication: use it where whoever can reach the port is trusted. What is no rank of the job (a
//! port scanner, another job) is turned away and does no harm.

mod client;
mod config;
mod error;
mod frame;
mod launcher;
mod link;
mod server;

use std::net::TcpListener;
use std::time::Duration;

pub use config::StoreConfig;
pub use error::StoreError;

use self::client::Client;
use self::server::Server;
use super::{Exchange, ExchangeError, MAX_CONTRIBUTION_BYTES, MAX_TAG_BYTES};

/// Version of what is said on the connections. The first message keeps its form in all versions.
const VERSION: u32 = 1;
/// How much longer than rank 0 the others wait, so that rank 0 can tell them whom it has waited for.
const GRACE: Duration = Duration::from_secs(5);

/// What must be the same build on all ranks: version of the store, and the layouts that host and card share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Build {
    version: u32,
    abi: u64,
}

impl Build {
    const OWN: Self = Self { version: VERSION, abi: flexcast_abi::ABI_HASH ^ flexcast_proto::wire::VERSION as u64 };
}

enum Side {
    Alone,
    First(Server),
    Other(Client),
}

/// One rank's end of the meeting point.
pub struct TcpStore {
    config: StoreConfig,
    side: Side,
    /// Why it cannot be used any more.
    broken: Option<StoreError>,
}

impl TcpStore {
    /// Joins: rank 0 listens at the address and waits for all others, the others connect and wait for all. Blocks for
    /// [`StoreConfig::timeout`] and a few seconds at most.
    ///
    /// # Errors
    /// The configuration is wrong, the address cannot be used, ranks are missing, come twice or differ in size, job or release.
    pub fn join(config: StoreConfig) -> Result<Self, StoreError> {
        config.check()?;
        let side = match (config.rank, config.size) {
            (_, 1) => Side::Alone,
            (0, _) => {
                let listener = TcpListener::bind(&config.address).map_err(|error| StoreError::Listen {
                    address: config.address.clone(),
                    reason: error.to_string(),
                })?;
                Side::First(Server::admit(listener, &config, Build::OWN)?)
            }
            _ => Side::Other(Client::join(&config, Build::OWN)?),
        };
        Ok(Self { config, side, broken: None })
    }

    /// Joins as [`StoreConfig::from_env`] says.
    ///
    /// # Errors
    /// A variable is missing or wrong, and as [`TcpStore::join`].
    pub fn from_env() -> Result<Self, StoreError> {
        Self::join(StoreConfig::from_env()?)
    }

    /// Joins as rank 0 on a socket that listens already: its port is known before the other ranks are started. The
    /// address of the configuration is not used.
    ///
    /// # Errors
    /// As [`TcpStore::join`]; the rank is not 0.
    pub fn with_listener(listener: TcpListener, config: StoreConfig) -> Result<Self, StoreError> {
        let address = listener.local_addr().map_err(|error| StoreError::Socket { reason: error.to_string() })?;
        let config = StoreConfig { address: address.to_string(), ..config };
        config.check()?;
        if config.rank != 0 {
            return Err(StoreError::NotFirst { rank: config.rank });
        }
        let side = match config.size {
            1 => Side::Alone,
            _ => Side::First(Server::admit(listener, &config, Build::OWN)?),
        };
        Ok(Self { config, side, broken: None })
    }

    /// [`Exchange::exchange`] with the cause of an error as a type.
    ///
    /// # Errors
    /// A rank is missing, has died, is at an exchange of another name or talks nonsense; name or contribution are too long; or the
    /// store has failed before. After an error it cannot be used any more, and its connections are closed.
    pub fn try_exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        if let Some(earlier) = &self.broken {
            return Err(StoreError::Broken { earlier: Box::new(earlier.clone()) });
        }
        let result = self.run(tag, contribution);
        if let Err(error) = &result {
            self.broken = Some(error.clone());
            self.side = Side::Alone;
        }
        result
    }

    fn run(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        let found = contribution.len();
        if found > MAX_CONTRIBUTION_BYTES {
            return Err(StoreError::TooLong { what: "contribution", found, limit: MAX_CONTRIBUTION_BYTES });
        }
        if tag.len() > MAX_TAG_BYTES {
            return Err(StoreError::TooLong { what: "name of an exchange", found: tag.len(), limit: MAX_TAG_BYTES });
        }
        match &mut self.side {
            Side::Alone => Ok(vec![contribution.to_vec()]),
            Side::First(server) => server.exchange(tag, contribution),
            Side::Other(client) => client.exchange(tag, contribution),
        }
    }
}

impl Exchange for TcpStore {
    fn rank(&self) -> u32 {
        self.config.rank
    }

    fn size(&self) -> u32 {
        self.config.size
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.try_exchange(tag, contribution).map_err(|error| ExchangeError::new(tag, error))
    }
}

/// Takes bytes as what comes on the store's connections, and checks what is made of them; for the fuzz target `ethernet`.
///
/// # Panics
/// The store has a fault.
#[doc(hidden)]
pub fn hear(data: &[u8]) {
    use frame::{Frame, Hello, Taken, collected, contributions};
    const LIMIT: usize = 1 << 16;
    let mut stream = data.to_vec();
    if let Taken::Whole(hello) = Hello::take(&mut stream) {
        let again = Hello::take(&mut hello.encode());
        // Text that is no UTF-8 is told as well as it goes.
        assert!(again == Taken::Whole(hello.clone()) || hello.job.contains('\u{FFFD}'), "{hello:?}");
    }
    loop {
        let before = stream.len();
        let Taken::Whole(frame) = Frame::take(&mut stream, LIMIT) else { break };
        assert!(stream.len() < before && frame.body.len() <= LIMIT, "a frame takes what it has");
        let again = Frame::take(&mut frame.encode(), LIMIT);
        assert!(again == Taken::Whole(frame.clone()) || frame.tag.contains('\u{FFFD}'), "{frame:?}");
    }
    for ranks in [1, 3] {
        if let Some(all) = contributions(data, ranks) {
            assert!(collected(&all) == data, "contributions are what was collected");
        }
    }
}

#[cfg(test)]
mod tests;
