//! Status of a process of aggregators.

use serde::{Deserialize, Serialize};

/// A job at one of its aggregators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number, in hexadecimal.
    pub job: String,
    /// Number of this aggregator among those of the job.
    pub aggregator: u32,
    /// Aggregators of the job.
    pub aggregators: u32,
    /// What carries its blocks: `tcp` or `rdma`.
    pub carrier: String,
    /// Workers of the job.
    pub workers: u32,
    /// Those that are connected.
    pub connected: u32,
    /// Number of the operation under way.
    pub operation: Option<u32>,
    /// The lowest rank that owes a message.
    pub waits_for: Option<u32>,
    /// Operations that are over.
    pub operations: u64,
    /// Bytes of messages that have come.
    pub received_bytes: u64,
    /// Memory for its sums.
    pub reserved_bytes: u64,
}

/// A process of aggregators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Where it listens.
    pub address: String,
    /// The RDMA card, if there is one.
    pub device: Option<String>,
    /// Threads that sum up.
    pub threads: u32,
    /// Memory for sums of all jobs.
    pub memory_bytes: u64,
    /// How much of it is taken.
    pub reserved_bytes: u64,
    /// Workers that are connected, once for each aggregator of their job here.
    pub connected: u32,
    /// Connections that have been taken since the start.
    pub accepted: u64,
    /// Workers that have been refused since the start.
    pub refused: u64,
    /// Connections of others than workers since the start, or whose greeting did not come in time.
    pub strangers: u64,
    /// Jobs, by aggregator.
    pub jobs: Vec<JobStatus>,
}
