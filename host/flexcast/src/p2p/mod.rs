//! Point-to-point collectives: schedules of `flexcast_proto` ([`algorithm`]), one executor of them, and its link of
//! reliable connections.
//!
//! The executor (`executor`) binds a schedule to a rank's buffers. It decides what is sent when, matches what arrives,
//! and combines. A link moves the bytes: queue pairs ([`Group`]), the frames of connections over TCP and shared memory,
//! or copies within one process. The last two belong to their carriers, and have their buffers in memory of the process
//! (`local`).
//!
//! A [`Group`] is the link over an RDMA card, with its executor. Zero-copy rendezvous: at the start of an operation
//! each rank announces address and key of its receive buffer to those who will write to it (a Send of
//! [`ANNOUNCEMENT_BYTES`]). Data goes by RDMA Write to its final place. The last write of a message has an immediate
//! with the message's tag, and with whether a connection of any rank has stalled. Receives for those are posted
//! beforehand and again as they are used, so that no peer finds none; writes under way are bounded ([`Config`]).
//!
//! Set-up has two phases and neither blocks, so that many ranks may live in one thread: [`Connections::prepare`] makes
//! queue pairs, and returns how they are reached; when the ranks have exchanged that, [`Pending::connect`] makes a
//! [`Group`]. A group runs one operation at a time: [`Group::allgather`] and the like start it, [`Group::progress`]
//! drives it, and never waits.
//!
//! ```no_run
//! # use flexcast::p2p::{Buffer, Config, Connections, Error, algorithm};
//! # use flexcast_proto::{RankInfo, p2p::Blocks};
//! # use flexio::{CompletionQueue, Device, MemoryRegion, ProtectionDomain};
//! # fn exchange(_: Vec<u8>) -> Vec<Vec<u8>> { Vec::new() }
//! # fn run(device: &Device, pd: &ProtectionDomain, place: RankInfo, receive: &MemoryRegion) -> Result<(), Error> {
//! let ring = algorithm::Allgather::Ring;
//! let connections = Connections::new(place, &[algorithm::Operation::Allgather(ring)], Config::default())?;
//! let completions = CompletionQueue::new(device, connections.completions())?;
//! let (pending, info) = connections.prepare(pd, &completions)?;
//! let mut group = pending.connect(&exchange(info))?;
//! group.allgather(ring, Blocks::equal(65_536, place.ranks())?, None, Buffer { region: receive, offset: 0 })?;
//! while !group.is_complete() {
//!     group.progress()?;
//!     device.provider().relax().relax();
//! }
//! # Ok(())
//! # }
//! ```

mod announcement;
pub(crate) mod bound;
mod buffer;
mod collectives;
mod connect_info;
mod connection;
mod connections;
mod error;
pub(crate) mod executor;
mod group;
pub(crate) mod local;
mod posting;
mod queue_pairs;
mod shape;

pub mod sparse {
    //! Sparse AllReduce through aggregators, over reliable connections: `flexcast_sparse`.

    pub use flexcast_sparse::{
        Accelerator, Aggregator, Array, Arrays, Call, Config, Error, FixedPoint, FixedPointArray, FixedPointError,
        MAX_AGGREGATORS, MAX_SHARDS_OF_EACH, Order, Party, PendingAggregator, PendingWorker, Result, Ring, Settings,
        Staged, Statistics, Stretch, Worker,
    };
}

pub use announcement::ANNOUNCEMENT_BYTES;
pub use buffer::Buffer;
pub use collectives::reference;
pub(crate) use connect_info::connect_info_bytes;
pub use connections::{Connections, Pending};
pub use error::Error;
pub(crate) use error::Result;
pub use flexcast_proto::p2p as algorithm;
pub use group::{Group, Statistics};

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

/// What a queue pair carries. Two, so that data and control have different traffic classes and are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Data,
    Control,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_operations_are_as_patient_as_others() {
        let (Config { retry, bound, data_class, .. }, of_sparse) = (Config::default(), sparse::Config::default());
        assert_eq!((of_sparse.retry, of_sparse.bound, of_sparse.class), (retry, bound, data_class));
    }
}
