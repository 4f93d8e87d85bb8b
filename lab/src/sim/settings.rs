//! Settings of a simulation in its report: enough to run it again elsewhere.

use flexcast::{ThreadPlacement, p2p};
use serde::Serialize;

/// Parameters of what moved the bytes, of which a report has those that a user sets.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "there is one for each report")]
pub enum Settings {
    /// Of a communicator, for multicast.
    Communicator(#[serde(serialize_with = "Communicator::serialize")] flexcast::Config),
    /// Of collectives without multicast: zero-copy rendezvous over reliable connections.
    Baseline(#[serde(serialize_with = "Baseline::serialize")] p2p::Config),
}

/// What a report has of [`flexcast::Config`].
#[derive(Serialize)]
#[serde(remote = "flexcast::Config")]
struct Communicator {
    chunk_bytes: u32,
    subgroups: u32,
    receive_threads: u32,
    send_threads: u32,
    /// Whether threads are taken one of each core in turn, not core by core.
    #[serde(getter = "is_spread")]
    spread: bool,
    slots: u32,
    receive_batch: u32,
    send_batch: u32,
    send_depth: u32,
    eager_bytes: u32,
    chains: u32,
    lookahead_chunks: Option<u32>,
}

fn is_spread(config: &flexcast::Config) -> bool {
    config.placement == ThreadPlacement::Spread
}

/// What a report has of [`p2p::Config`].
#[derive(Serialize)]
#[serde(remote = "p2p::Config")]
struct Baseline {
    writes: u32,
    write_bytes: u32,
    data_class: u8,
    control_class: u8,
    #[serde(getter = "retry_exponent")]
    retry_exponent: u8,
    #[serde(getter = "retry_count")]
    retry_count: u8,
}

fn retry_exponent(config: &p2p::Config) -> u8 {
    config.retry.timeout_exponent
}

fn retry_count(config: &p2p::Config) -> u8 {
    config.retry.count
}
