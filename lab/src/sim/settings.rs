//! Settings of a simulation in its report: enough to run it again elsewhere.

use flexcast::{ThreadPlacement, p2p};
use serde::Serialize;

/// Parameters of what moved the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Settings {
    /// Of a communicator, for multicast.
    Communicator {
        /// Bytes of a chunk.
        chunk_bytes: u32,
        /// Multicast groups.
        subgroups: u32,
        /// DPA threads that receive.
        receive_threads: u32,
        /// DPA threads that send.
        send_threads: u32,
        /// Whether threads are taken core by core, or one of each core.
        spread: bool,
        /// Staging slots of each subgroup.
        slots: u32,
        /// Completions per doorbell of a receive worker.
        receive_batch: u32,
        /// Sends per doorbell.
        send_batch: u32,
        /// Sends in flight per subgroup, at most.
        send_depth: u32,
        /// Chains asked for; 0: as few as keep links busy.
        chains: u32,
        /// Chunks before the end of a block at which the next root is activated.
        lead_chunks: Option<u32>,
    },
    /// Of collectives without multicast: zero-copy rendezvous over reliable connections.
    Baseline {
        /// Writes under way on one connection.
        writes: u32,
        /// Longest write in bytes.
        write_bytes: u32,
        /// Traffic class of data.
        data_class: u8,
        /// Traffic class of announcements.
        control_class: u8,
        /// An unanswered packet is sent again after 4.096 us times 2 to this power.
        retry_exponent: u8,
        /// So many times.
        retry_count: u8,
    },
}

impl From<&flexcast::Config> for Settings {
    fn from(config: &flexcast::Config) -> Self {
        Self::Communicator {
            chunk_bytes: config.chunk_bytes,
            subgroups: config.subgroups,
            receive_threads: config.receive_threads,
            send_threads: config.send_threads,
            spread: config.placement == ThreadPlacement::Spread,
            slots: config.slots,
            receive_batch: config.receive_batch,
            send_batch: config.send_batch,
            send_depth: config.send_depth,
            chains: config.chains,
            lead_chunks: config.lead_chunks,
        }
    }
}

impl From<&p2p::Config> for Settings {
    fn from(config: &p2p::Config) -> Self {
        Self::Baseline {
            writes: config.writes,
            write_bytes: config.write_bytes,
            data_class: config.data_class,
            control_class: config.control_class,
            retry_exponent: config.retry.timeout_exponent,
            retry_count: config.retry.count,
        }
    }
}
