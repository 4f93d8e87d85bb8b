//! Flow-level simulation of collectives by service processes and by hosts, at the sizes of the papers.
//!
//! The service processes are the state machines of `flexcast_proto::service` that run on a card; messages and transfers
//! go through a model of the network (`network`) that knows rates, latencies and queues and no packets. So 1,024
//! ranks with 128 service processes take seconds, where emulated cards take minutes ([`crate::service`]). Processors
//! take time for each message and each post. Hosts carry the same collectives out by the algorithms of MPI libraries,
//! which go on in calls of the library only.
//!
//! Times are virtual: they are as true as the parameters of a [`Preset`] are.

mod engine;
mod error;
mod hosts;
mod network;
mod params;
mod program;
mod proxy;
mod queue;
mod report;
mod service;
mod skew;
mod staged;
#[cfg(test)]
mod tests;

pub use engine::{Flow, FlowCounts, Group};
pub use error::FlowError;
pub(crate) use network::time_ps;
pub use params::{FlowParams, NetworkParams, Placement, Preset, ProcessorParams};
pub use program::{By, Kind, Operation, Step, Times, barrier};
pub use proxy::{FftProxy, Octopus, ProxyReport, Variant};
pub(crate) use queue::Queue;
pub use report::{Bench, FlowReport, bench};
pub use skew::{Skew, SkewError};
