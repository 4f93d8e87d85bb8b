//! Layouts that the hardware defines: completion entries, work queue entry segments, doorbell records, the outbox
//! register page and the thread context of the DPA, as a driver reads and writes them.
//!
//! Sources, named at each item: *rdma-core* (`providers/mlx5`: `mlx5dv.h`, `wqe.h`, `cq.c`, `qp.c`), the *FlexIO
//! device headers* (`flexio_dev_queue_types.h`, `flexio_dev_queue_access.h`) and *libsnap-rdma*
//! (`flexio_dev_dpa_arch.h`, register map version 9). Sizes and offsets are asserted at compile time.
#![no_std]
#![forbid(unsafe_code)]

mod be;
pub mod cqe;
pub mod doorbell;
pub mod outbox;
pub mod thread;
pub mod wqe;

pub use be::{Be16, Be32, Be64};
pub use cqe::{Cqe, CqeOpcode, ErrorCqe, Syndrome};
pub use doorbell::{CqDoorbellRecord, QpDoorbellRecord};
pub use thread::ThreadContext;
pub use wqe::{ControlSegment, DataSegment, DatagramSegment, DatagramWqe, RemoteAddressSegment, WqeOpcode, WriteWqe};

/// Bytes of a cache line, of a CQE and of a work queue entry basic block (WQEBB).
pub const LINE_BYTES: usize = 64;

/// Bytes that a UD receive buffer reserves for the global routing header before the payload (InfiniBand specification).
pub const GRH_BYTES: u32 = 40;

/// The memory key that addresses nothing: it ends a short scatter list (rdma-core `MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

/// Largest value of a 24-bit object number or counter (queue numbers, CQ consumer index).
pub const MASK_24: u32 = 0x00FF_FFFF;
