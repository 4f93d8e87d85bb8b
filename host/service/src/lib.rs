//! Service processes: collectives that programs on a card's Arm cores carry out for the ranks of their host, while
//! those compute.
//!
//! [`Agent`] is a service process on the Arm function of a card, [`Client`] is a program of ranks on the host's
//! function of the same card. A rank lets its process use memory by alias keys ([`Client::share`]), joins groups, and
//! posts non-blocking Ialltoallv and Iallgatherv; the process says to others what can be read, has its card read it
//! from host memory to host memory, and writes a flag to the rank's memory. Ibcast and Iallgather go through staging
//! memory of the card where a process has some, to every rank or to a segment that the ranks of a host share. The
//! decisions are those of `flexcast_proto::service`, without IO; here they are carried out over verbs.
//!
//! [`Session`] connects a program to a service process over TCP, [`Server`] is a service process with its sockets,
//! [`Processes`] are those of a card in threads, and the module `daemon`, a feature of the same name, is the program
//! `flexcast-service` (docs/service.md).

mod agent;
#[cfg(feature = "daemon")]
pub mod daemon;
mod error;
mod keys;
mod links;
mod multicast;
mod net;
mod rank;
mod secret;
mod session;

pub use agent::{Agent, AgentCounts, AgentLimits, AgentStatus};
pub use error::{Error, Result};
pub use links::{LinkEnd, PeerId};
pub use net::counts::{NetCounts, Reason};
pub use net::greeting::GreetingError;
pub use net::life::MISSED;
pub use net::processes::{ConnectionStatus, Pace, ProcessStatus, Processes};
pub use net::server::{Server, ServerSettings};
pub use net::{address_of, endpoint_of, keyed_hash};
pub use rank::{Client, DEFAULT_BOUND_KEYS, LocalCopy, MemoryId, StagedCall};
pub use secret::{SecretError, read as read_secret};
pub use session::{End, Session, SessionError, SessionTiming};
