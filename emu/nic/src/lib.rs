//! An emulated RDMA card: queue pairs, completion queues, memory keys, RoCEv2 packets and raw Ethernet frames.
//!
//! The card does no IO of its own. Inputs are a time, a doorbell, a packet or a timer, and the memory it may access;
//! what follows is put into [`Effects`]. The caller keeps the clock, hands timers back when they are due, and carries
//! packets. Queues lie in the caller's memory in the byte formats of mlx5, so drivers for the real card work unchanged.
//!
//! Imports point one way:
//!
//! - formats: `packet`, `ethernet`, [`wire`], `wqe`, `cqe`, and the attributes of objects;
//! - tables and state: `queue_pair`, `cq`, `shared_receives`, `keys`, `groups`, `steering`, `identity`;
//! - engines, types with state of their own: `engine::{requester, responder, port, pcie, completions, ingress}`; a step
//!   of one works with a `Cx`, the bundle of time, memory, effects and log;
//! - [`Nic`], the public interface, which owns them.
//!
//! Times are picoseconds of virtual time. The same calls in the same order give the same effects.

mod access;
mod address;
mod counters;
mod cq;
mod cqe;
mod cx;
mod effects;
mod engine;
mod error;
mod ethernet;
mod frame;
mod grh;
mod groups;
mod icrc;
mod identity;
mod keys;
mod log;
mod memory;
mod mix;
mod nic;
mod note;
mod pacing;
mod packet;
mod progress;
mod psn;
mod qp;
mod queue_pair;
mod shared_receives;
mod steering;
mod table;
mod timing;
mod transport;
pub mod wire;
mod wqe;

pub use access::{Access, KeyFault, MkeyAttr};
pub use address::{Address, GSI_QPN, Gid, GidEntry, MULTICAST_QPN, RoceVersion};
pub use counters::Counters;
pub use cq::{CqAttr, CqProgress, CqTarget, Moderation};
pub use cqe::{opcode as cqe_opcode, syndrome, vendor};
pub use effects::{AsyncEvent, CqEvent, Effects, FailureCause, Timer};
pub use engine::responder::GroupKey;
pub use error::NicError;
pub use ethernet::{MATCH_BYTES, MAX_FRAME_BYTES, MatchFields};
pub use icrc::icrc;
pub use identity::PortAddresses;
pub use keys::alias::{AliasAttr, Token};
pub use memory::{Dma, DmaFault, QueueMemory, Space};
pub use nic::users::{PostedEntry, QueuePart};
pub use nic::{Nic, NicConfig, PUSHED_BYTES};
pub use note::{CqeNote, Note, PacketNote};
pub use packet::{
    Acknowledgement, DEFAULT_PKEY, Extension, FCS_BYTES, Network, Operation, PREAMBLE_AND_GAP_BYTES, Packet,
};
pub use progress::{NotReady, RefusedEntry};
pub use qp::{MAX_RD_ATOMIC, Mtu, QpAttr, QpModify, QpPath, QpQuery, QpState};
pub use shared_receives::{ReceiveOrder, SrqAttr, SrqProgress};
pub use steering::{FlowAction, FlowDirection, FlowMatch};
pub use timing::NicTiming;
pub use transport::Transport;
pub use wqe::opcode as wqe_opcode;
pub use wqe::umr::KlmEntry;
