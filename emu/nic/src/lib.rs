//! An emulated RDMA card: queue pairs, completion queues, memory keys and RoCEv2 packets.
//!
//! The card does no IO of its own. Inputs are a time, a doorbell, a packet or a timer, and the memory it may access;
//! what follows is put into [`Effects`]. The caller keeps the clock, hands timers back when they are due, and carries
//! packets. Queues lie in the caller's memory in the byte formats of mlx5, so drivers for the real card work unchanged.
//!
//! Times are picoseconds of virtual time. The same calls in the same order give the same effects.

mod address;
mod alias;
mod answers;
mod atomic;
mod counters;
mod cq;
mod cqe;
mod dataflow;
mod effects;
mod error;
mod failure;
mod frame;
mod grh;
mod icrc;
mod ingress;
mod memory;
mod mkey;
mod multicast;
mod nic;
mod note;
mod pacing;
mod packet;
mod partition;
mod port;
mod qp;
mod queue_pair;
mod reliability;
mod repeat;
mod requester;
mod responder;
mod table;
mod timing;
mod uc_multicast;
mod umr;
pub mod wire;
mod wqe;

pub use address::{Address, Gid, MULTICAST_QPN};
pub use alias::{AliasAttr, Token};
pub use counters::Counters;
pub use cq::{CqAttr, CqTarget};
pub use cqe::{opcode as cqe_opcode, syndrome, vendor};
pub use effects::{AsyncEvent, CqEvent, Effects, FailureCause, Timer};
pub use error::NicError;
pub use icrc::icrc;
pub use memory::{Dma, DmaFault, QueueMemory, Space};
pub use mkey::{Access, KeyFault, MkeyAttr};
pub use nic::{Nic, NicConfig, PUSHED_BYTES};
pub use note::{CqeNote, Note, PacketNote};
pub use packet::{Acknowledgement, DEFAULT_PKEY, Extension, Network, Operation, Packet};
pub use qp::{MAX_RD_ATOMIC, Mtu, QpAttr, QpModify, QpPath, QpQuery, QpState, Transport};
pub use timing::NicTiming;
pub use uc_multicast::GroupKey;
pub use umr::KlmEntry;
pub use wqe::opcode as wqe_opcode;
