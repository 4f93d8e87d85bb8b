//! Collectives without multicast, over reliable connections of the host, on the same cards and fabric: what multicast
//! is compared with.
//!
//! The algorithms are schedules of `flexcast_proto` ([`algorithm`]); here they are carried out. Zero-copy rendezvous:
//! at the start of an operation each rank announces address and key of its receive buffer to those who will write to it
//! (a Send of [`ANNOUNCEMENT_BYTES`]); data goes by RDMA Write to its final place, the last write of a message with an
//! immediate that carries the message's tag and whether a connection of any rank has stalled. Receives for those are
//! posted beforehand and again as they are used, so that no peer finds none; writes under way are bounded ([`Config`]).
//!
//! Set-up has two phases and neither blocks, so that many ranks may live in one thread: [`Connections::prepare`] makes
//! queue pairs and tells how they are reached; when the ranks have exchanged that, [`Pending::connect`] makes a
//! [`Group`]. A group runs one operation at a time: [`Group::allgather`] and the like start it, [`Group::progress`]
//! drives it, and never waits.
//!
//! ```no_run
//! # use flexcast::p2p::{Buffer, Config, Connections, Error, algorithm};
//! # use flexcast_proto::RankInfo;
//! # use flexio::{CompletionQueue, Device, MemoryRegion, ProtectionDomain};
//! # fn exchange(_: Vec<u8>) -> Vec<Vec<u8>> { Vec::new() }
//! # fn run(device: &Device, pd: &ProtectionDomain, place: RankInfo, receive: &MemoryRegion) -> Result<(), Error> {
//! let ring = algorithm::Allgather::Ring;
//! let connections = Connections::new(place, &[algorithm::Operation::Allgather(ring)], Config::default())?;
//! let completions = CompletionQueue::new(device, connections.completions())?;
//! let (pending, endpoint) = connections.prepare(pd, &completions)?;
//! let mut group = pending.connect(&exchange(endpoint))?;
//! group.allgather(ring, 65_536, None, Buffer { region: receive, offset: 0 })?;
//! while !group.is_complete() {
//!     group.progress()?;
//!     device.provider().relax().relax();
//! }
//! # Ok(())
//! # }
//! ```

mod announcement;
mod call;
mod collect;
mod connection;
mod connections;
mod endpoint;
mod error;
mod exchange;
mod group;
mod linger;
pub(crate) mod messages;
mod operation;
mod reduce;
mod rooted;
mod shape;
pub mod sparse;

pub use announcement::ANNOUNCEMENT_BYTES;
pub(crate) use call::{Exchange, Reduced};
pub use connections::{Connections, Pending};
pub(crate) use endpoint::endpoint_bytes;
pub use error::Error;
pub use flexcast_proto::p2p as algorithm;
pub use group::{Group, Statistics};
pub(crate) use linger::Lingering;
pub use operation::Buffer;
pub use reduce::reference;

use flexio::{Bound, Retry};

/// How much is under way at once, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Writes under way on one connection, 1 to 4096. Default 16.
    pub writes: u32,
    /// Longest write in bytes, 1 to 2^30; longer messages go as several. Default 2^20.
    pub write_bytes: u32,
    /// Longest time without any progress. Default 10 s: longer than a card needs to give a dead peer up.
    pub bound: Bound,
    /// Patience of the connections with a silent peer. Default: that of a communicator's control connections, 8.4 ms, 7
    /// times.
    pub retry: Retry,
    /// See [`Config::restarts`](crate::Config::restarts). Default true.
    pub restarts: bool,
    /// Traffic class of data; bits 7 to 5 are the priority. Default 0, as a communicator's.
    pub data_class: u8,
    /// Traffic class of announcements. Default 0x60, as a communicator's.
    pub control_class: u8,
}

impl Default for Config {
    fn default() -> Self {
        // One source for both, so that they stay comparable.
        let crate::Config { retry_exponent, restarts, data_class, control_class, .. } = crate::Config::default();
        Self {
            writes: 16,
            write_bytes: 1 << 20,
            bound: Bound::millis(10_000),
            retry: Retry { timeout_exponent: retry_exponent, count: 7 },
            restarts,
            data_class,
            control_class,
        }
    }
}

/// What a queue pair carries. Two, so that data and control have different traffic classes and are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Data,
    Control,
}
