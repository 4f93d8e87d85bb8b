//! A meeting point over TCP: rank 0 listens, the others connect to it, and every exchange goes through it.
//!
//! Meant for setting up: a star of P - 1 connections, one round trip per exchange. Every wait has a bound, and rank 0
//! reports to all others what it finds wrong, so that all ranks fail for the same reason and at once. What is no rank
//! of the job (a port scanner, another job) is turned away and does no harm.
//!
//! With a [`Secret`] only ranks that have it come together, and what they exchange is encrypted. Without one there is
//! neither encryption nor authentication: whoever can reach the port has to be trusted.

mod address;
mod channel;
mod client;
mod config;
mod error;
mod frame;
#[doc(hidden)]
pub mod hostile;
mod launcher;
mod link;
mod secret;
mod server;
mod strangers;

use std::net::TcpListener;
use std::sync::Once;
use std::time::Duration;

pub use config::StoreConfig;
pub use error::{SecretDifference, StoreError};
pub use secret::{SECRET, SECRET_FILE, Secret, SecretError};

use self::address::Address;
use self::client::Client;
use self::server::Server;
use super::{DescriptorsUsedUp, Exchange, ExchangeError, MAX_CONTRIBUTION_BYTES, MAX_TAG_BYTES};

/// Version of what is said on the connections. The first message keeps its form in all versions.
const VERSION: u32 = 2;
/// How much longer than rank 0 the others wait, so that rank 0 can report for whom it has waited.
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
    Other(Box<Client>),
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
    /// The configuration is wrong, the address cannot be used, ranks are missing, come twice or differ in size, job,
    /// secret or release. The other ranks learn of it where they can be reached.
    pub fn join(config: StoreConfig) -> Result<Self, StoreError> {
        if let Err(error) = config.check() {
            // A rank that there is not says so to rank 0, which the address may name all the same.
            if matches!(error, StoreError::Rank(_)) {
                let _ = Client::notify(&config, Build::OWN, None);
            }
            return Err(error);
        }
        let side = match (config.rank, config.size) {
            (_, 1) => Side::Alone,
            (0, _) => Side::First(admit(listen(&config)?, &config)?),
            _ => Side::Other(Box::new(Client::join(&config, Build::OWN)?)),
        };
        Ok(Self { config, side, broken: None })
    }

    /// Joins as [`StoreConfig::from_env`] says.
    ///
    /// # Errors
    /// A variable is missing or wrong, and as [`TcpStore::join`].
    pub fn from_env() -> Result<Self, StoreError> {
        let (config, secret) = StoreConfig::from_variables(|name| std::env::var_os(name))?;
        match secret {
            Ok(secret) => Self::join(config.secret(secret)).map_err(StoreError::of_variables),
            Err(error) => {
                // Rank 0 takes a rank without a secret as far as it takes one at all.
                if config.check().is_ok() && config.size > 1 && config.rank != 0 {
                    let _ = Client::notify(&config, Build::OWN, Some(&error.to_string()));
                }
                Err(error)
            }
        }
    }

    /// Ends the store for all ranks: this one cannot go on. The others' exchange, the one under way or the next, fails
    /// with this rank and `reason`. It blocks for a few seconds at most, and the store cannot be used any more.
    pub fn refuse(&mut self, reason: &str) {
        match &mut self.side {
            Side::Alone => {}
            Side::First(server) => server.refuse(reason),
            Side::Other(client) => client.refuse(reason),
        }
        self.broken.get_or_insert(StoreError::Refused { rank: self.config.rank, reason: reason.to_owned() });
        self.side = Side::Alone;
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
            _ => Side::First(admit(listener, &config)?),
        };
        Ok(Self { config, side, broken: None })
    }

    /// [`Exchange::exchange`] with the cause of an error as a type.
    ///
    /// # Errors
    /// A rank is missing, has died, is at an exchange of another name or talks nonsense; name or contribution are too
    /// long; or the store has failed before. After an error it cannot be used any more, and its connections are closed.
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

    fn refuse(&mut self, reason: &str) {
        Self::refuse(self, reason);
    }
}

/// The socket of rank 0.
fn listen(config: &StoreConfig) -> Result<TcpListener, StoreError> {
    let bound = Address::parse(&config.address)?.resolve().and_then(|all| TcpListener::bind(&all[..]));
    bound.map_err(|error| {
        let address = config.address.clone();
        if let Some(found) = DescriptorsUsedUp::find(&error) {
            return StoreError::Descriptors { rank: 0, found };
        }
        if error.kind() != std::io::ErrorKind::AddrInUse {
            return StoreError::Listen { address, reason: error.to_string() };
        }
        // Another rank 0, if it is one, answers at once, and reports to its ranks that there are two.
        match Client::notify(config, Build::OWN, None) {
            Err(found @ (StoreError::Reported { .. } | StoreError::SecretDiffers { .. })) => found,
            _ => StoreError::InUse { address },
        }
    })
}

/// Waits for all other ranks.
fn admit(listener: TcpListener, config: &StoreConfig) -> Result<Server, StoreError> {
    static REPORTED: Once = Once::new();
    let server = Server::admit(listener, config, Build::OWN)?;
    if config.secret.is_none() && !server.is_local() {
        REPORTED.call_once(|| {
            tracing::warn!(
                "ranks of several computers exchange the key of their communicator in clear: who reads along can forge \
                 data; set {SECRET_FILE} on all ranks to encrypt it"
            );
        });
    }
    Ok(server)
}

#[cfg(test)]
mod tests;
