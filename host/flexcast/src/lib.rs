//! Non-blocking collectives: Broadcast and Allgather over multicast, with the datapath on a card's DPA, over any RDMA
//! card or over a network interface, and a reliable ring for what was lost; barriers, reductions, Alltoall, Gather and
//! Scatter by messages between pairs of ranks.
//!
//! An [`Endpoint`] is opened once per process, with the firmware image `allgather` or, by [`Endpoint::verbs`] and
//! [`Endpoint::udp`], without any. Ranks find one another through a [`bootstrap::Exchange`] and become a
//! [`Communicator`]; operations take [`Buffer`]s over and give them back:
//!
//! ```no_run
//! # fn f(provider: &flexio::Provider, exchange: &mut dyn flexcast::bootstrap::Exchange, elf: &[u8]) -> flexcast::Result<()> {
//! use flexcast::{Communicator, Config, Endpoint, Firmware};
//!
//! let endpoint = Endpoint::open(provider, "mlx5_0", Firmware { name: "allgather", elf })?;
//! let communicator = Communicator::create(&endpoint, exchange, Config::for_endpoint(&endpoint))?;
//! let mut send = endpoint.buffer(1 << 20)?;
//! send.write(0, b"what this rank knows")?;
//! let receive = endpoint.buffer((1 << 20) * communicator.size() as usize)?;
//! let request = communicator.allgather(send, receive)?;
//! // Compute meanwhile, and call `communicator.progress()` now and then.
//! let gathered = request.wait()?.receive.to_vec()?;
//! # Ok(())
//! # }
//! ```
//!
//! Which algorithm carries the data of an operation is the library's choice, among multicast, the messages of its
//! barrier, and writes over reliable connections ([`Selection`], [`Report::decision`]).
//!
//! The cargo feature `service`, on by default, has [`Control::Service`]: operations that service processes carry out.
//! A build with `default-features = false` refuses that control, and has nothing of host/service.
//!
//! Inside, from the bottom up: `op` has operations as data, `plan` cuts one into blocks, subgroups and chunks and
//! chooses its algorithm. `p2p` has collectives of point-to-point messages between ranks, over reliable connections
//! (`flexcast_rc`) or over those of `flexcast_mesh`. `engine` has
//! operations under way and talks with the protocol's state machine (`flexcast_proto`). `carrier` moves the bytes: by
//! the DPA (`carrier/dpa`), by this process over an RDMA card (`carrier/verbs`), or over sockets (`carrier/udp`). `api`
//! is the face; nothing imports it.
#![deny(unsafe_code)]

/// The program on the first page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod first_page {}

mod api;
mod carrier;
mod engine;
mod error;
#[cfg(test)]
#[allow(dead_code, unreachable_pub)] // Tests of other packages have the rest.
#[path = "../../../tests/src/harness.rs"]
mod harness;
pub mod memory;
mod op;
pub mod p2p;
mod plan;
mod sync;

pub use flexcast_bootstrap as bootstrap;

pub use flexcast_reduce as reduce;

pub use api::call::{
    Allgather, Allreduce, Alltoall, Barrier, Blocks, Broadcast, Call, Gather, Reduce, ReduceScatter, Scatter,
};
pub use api::communicator::{Attendance, Communicator, Pending};
#[doc(hidden)]
pub use api::hostile;
pub use api::post::Shape;
pub use api::request::{Request, Test};
pub use api::user_memory::UserMemory;
pub use carrier::dpa::sparse::{
    AggregatorCard, AggregatorElement, AggregatorFailure, AggregatorOptions, AggregatorStanding, DpaAggregator,
    PreparedAggregator,
};
pub use carrier::endpoint::{DatapathKind, Endpoint, Firmware};
pub use carrier::udp::{DEFAULT_PORT, Interface, MulticastArrival, ReceiveBuffer, UdpOptions};
#[doc(hidden)]
pub use carrier::udp::{MakeTap, Tap};
pub use error::{Error, Result};
pub use flexcast_proto::Algorithm;
pub use flexcast_proto::sparse::{FixedPoint, FixedPointError};
pub use flexcast_sparse::SparseOptions;
pub use memory::registration;
pub use op::aggregation::Aggregation;
pub use op::buffer::Buffer;
pub use op::chain_mapping::ChainMapping;
pub use op::config::{
    Config, Control, MAX_CHUNK_BYTES, MAX_EAGER_BYTES, MAX_SLOTS, MAX_SUBGROUPS, Overheads, Setting, SettingError,
    SettingValue, ThreadOptions,
};
pub use op::decision::{Decision, LostMulticast};
pub use op::outcome::{Done, Failed, Outcome};
pub use op::report::{MessageCounts, Phases, PhasesPs, Report};
pub use op::selection::{MAX_LINEAR_RANKS, Selection};
pub use op::service_options::{ControlReport, ServiceDelivery, ServiceOptions};
pub use op::sparse_cost::SparseCost;
pub use op::stream::{MAX_STREAMS, Transport};
pub use op::tuning::{Choice, Tuning};
pub use op::units::{ThreadPlacement, UNITS, UNITS_PER_CORE, USABLE_UNITS};
pub use plan::footprint::Footprint;

/// What a `Result` of this crate is, for callers with another error in mind.
pub use flexcast_proto::{Cause, Disagreement, Failure, FailureCode, Kind, Summary, WaitedFor};
