//! Everything of the protocol that can be decided without touching hardware. The same source runs in the firmware, in
//! the host engines and in the model checker: no IO, no clock, no allocation. (`service`, which firmware does not have,
//! allocates.)
//!
//! One file per mechanism. Arithmetic: [`chunk`], [`space`], [`chains`], [`immediate`], [`bitmap`], [`cutoff`],
//! [`stall`], [`reuse`], [`missing`], [`pieces`], [`eager`]. State machines of one rank, which take events and the time
//! and give back what is to be done: [`barrier`], [`agreement`], [`sequencer`], [`recovery`], [`handshake`], and
//! [`collective`], which is all five in one operation; it ends well or in a [`failure`]. [`wire`] is what its messages
//! are as bytes. [`p2p`] has collectives of point-to-point messages. [`sparse`]: AllReduce of sparse arrays through
//! aggregators. [`session`]: handshake of a connection, and its keys. `service`: daemons next to the hosts, and their
//! messages.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(not(target_os = "none"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agreement;
pub mod barrier;
pub mod bitmap;
pub mod chains;
pub mod chunk;
pub mod collective;
pub mod cutoff;
pub mod eager;
pub mod failure;
pub mod gaps;
pub mod handshake;
pub mod immediate;
pub mod message;
pub mod missing;
pub mod p2p;
pub mod pieces;
pub mod ranks;
pub mod recovery;
pub mod reuse;
pub mod sequencer;
#[cfg(not(target_os = "none"))]
pub mod service;
pub mod session;
pub mod space;
pub mod sparse;
pub mod stall;
mod verdict;
pub mod wire;

pub use agreement::{Agreement, Algorithm, Difference, Disagreement, Kind, Summary, digest};
#[cfg(not(target_os = "none"))]
pub use agreement::{OPERATORS, TYPES};
pub use barrier::{Barrier, BarrierError, Signal};
pub use bitmap::{Bitmap, Mark, Run};
pub use chains::{ChainsError, chains_for, turn_in};
pub use chunk::{Block, Chunk, ChunkError, Chunking, Subgroup};
pub use collective::Participant;
pub use cutoff::{Alpha, Overheads};
pub use failure::{Cause, Failure, FailureCode, WaitedFor};
pub use gaps::GapWatch;
pub use handshake::{Handshake, HandshakeError};
pub use immediate::{Immediate, ImmediateError, ImmediateLayout};
pub use message::{Action, Body, Message, OperationDescriptor, ProtocolError};
pub use pieces::{PieceSet, Pieces};
pub use ranks::{MAX_RANKS, RankError, RankInfo, RankSet};
pub use recovery::{Recover, Recovery, RecoveryError};
pub use reuse::{CollectiveIds, IdInUse, ShareError};
pub use sequencer::{Schedule, ScheduleError, Sequence, SequenceError, Sequencer, Turn};
pub use space::{Placement, ReceiveSpace, RootRow, SpaceError};
pub use stall::{ProgressWatch, StallWindow};
pub use wire::{Availability, Codec, Control, Encoded, WireError};
