//! The datapath: receive threads, which serve one or several *receive contexts* of UC or UD (module `receive`), and
//! send workers (module `send`). The work on one receive context is in module `receiver`; what the progress thread sees
//! of it in module `view`.
//!
//! One activation drains the completion queue in *segments* of one batch. Inside a segment runs the hot loop (module
//! `hot`), which accepts only what is entirely ordinary; the first completion that is not (none there, error, other
//! opcode, id, range, length, duplicate) ends it and goes to `irregular`, which decides from scratch. At a segment's
//! end `flush` returns the consumed entries and, on UD, hands the copies to the hardware.
//!
//! UD: staging slot, receive entry and copy entry of a completion share its number. A discarded chunk's copy entry
//! becomes a NOP, so the numbers stay in step. The last copy of every segment is signalled; its completion, and nothing
//! else, posts the receives again.
//!
//! Next to them, and sharing nothing with them but queues, is the aggregator of sparse AllReduce (module `sparse`), the
//! library of image `sparse`.
#![cfg_attr(target_arch = "riscv64", no_std)]
#![forbid(unsafe_code)]

mod control;
mod finish;
mod hot;
mod irregular;
mod operation;
mod placement;
mod posting;
mod prepare;
mod receive;
mod receiver;
mod send;
mod sparse;
mod view;

pub use control::{Control, ControlEvents};
pub use prepare::check_queue;
pub use receive::{prepare_receive, receive, resources};
pub use send::{prepare_send, send_blocks};
pub use sparse::{aggregate, prepare_sparse};
pub use view::{ClosedContext, Span};
