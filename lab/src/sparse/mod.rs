//! Simulation of sparse AllReduce at the sizes of its publication, message by message.
//!
//! Workers and aggregators are the state machines of [`flexcast_proto::sparse`]. Arrays are patterns of zero and
//! non-zero blocks without data ([`Pattern`]). Around the machines there is a model (`engine`) of ports, of
//! processors with several shards each, and of memory: what a worker reads and writes of its array, and what an
//! aggregator's spots cost that do not stay in its cache (`world`). Arrays may lie in memory of a device
//! (`device`). Ring AllReduces run on the same ports ([`ring`]), and the design with fused blocks in the same world
//! ([`fusion`]).
//!
//! Times are virtual: they are as true as [`Machine`] is. Counts are exact.

mod bounds;
mod device;
mod engine;
mod fusion;
mod params;
mod pattern;
mod ports;
mod report;
mod ring;
#[cfg(test)]
mod tests;
mod world;

pub use bounds::Bounds;
pub use engine::simulate;
pub use fusion::fusion;
pub use params::{
    AggregatorKind, ArraysIn, DeviceParams, Host, Layout, Machine, NetworkParams, NodeParams, SparseParams,
};
pub(crate) use pattern::power_law_share;
pub use pattern::{Pattern, PatternName};
pub use report::{SparseCounts, SparseError, SparseReport};
pub use ring::{RingKind, RingReport, ring};
