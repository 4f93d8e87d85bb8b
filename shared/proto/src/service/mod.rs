//! State machines of service processes: daemons on a card's Arm cores that carry out non-blocking collectives for the
//! ranks of their host.
//!
//! [`Topology`] says who serves whom. [`ServiceProcess`] takes calls, messages and completions, and says what is to be
//! sent, read and announced; it has Ialltoallv and Allgatherv of several groups concurrently. [`SharedList`] is what
//! the processes of one card share.
//!
//! [`StagedProcess`] has Ibcast and Iallgather of one group that go through memory of the card, for cards without alias
//! keys; [`Task`] is what a host hands to it. [`wire`] is what all that goes between processes, and between a rank and
//! its process, is as bytes. [`Connections`] is the cache of a process's connections to other ones, [`BoundKey`] a key
//! that hosts bind to one region after another.
//!
//! Without staging everything is in host memory: a process posts Reads from host memory to host memory and sees no
//! payload. Unlike the rest of this crate the module allocates, since it runs in daemons; firmware does not have it.

mod allgatherv;
mod alltoallv;
mod bound;
mod call;
mod connections;
mod error;
mod list;
mod memory;
mod message;
mod process;
mod reads;
mod scope;
mod staged;
mod task;
mod topology;
pub mod wire;

pub use bound::{BoundKey, LettingGo};
pub use call::{Blocks, CallError, Datatype, allgatherv_call, alltoallv_call};
pub use connections::{Access, ConnectionAction, ConnectionError, Connections, Counts};
pub use error::{Cause, FailedParty, Failure, Ignored, Refusal};
pub use list::{ListError, SharedList};
pub use memory::{DEFAULT_BOUND_KEYS, MemoryId};
pub use message::{
    Action, Announcement, Call, ContextId, Event, LocalCopies, Message, Operation, Read, ReadError, Reader, Region,
};
pub use process::{Limits, ServiceProcess};
pub use staged::message::{
    Between, Multicast, Reader as StagedReader, Staged, StagedAction, StagedCause, StagedEvent, StagedFailure,
    StagedMessage, StagedRefusal, Staging, Work,
};
pub use staged::{Placed, StagedProcess};
pub use task::{
    Collective, Delivery, Descriptor, FLAG_BYTES, Part, TASK_HEADER_BYTES, TASK_RANK_BYTES, Task, Thresholds, flag,
    has_passed, is_over, polled_rank, runs, targets, writers,
};
pub use topology::{Locality, MAX_PROCESSES_PER_HOST, Topology, TopologyError};
