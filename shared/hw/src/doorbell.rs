//! Doorbell records: 8 bytes in memory that the hardware reads (rdma-core `mlx5_alloc_dbrec`, `mlx5.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Be32, MASK_24};

/// Doorbell record of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct QpDoorbellRecord {
    /// Receive producer counter, 16 bits.
    pub receive: Be32,
    /// Send producer counter, 16 bits.
    pub send: Be32,
}

/// Doorbell record of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct CqDoorbellRecord {
    /// Consumer index, 24 bits.
    pub consumer: Be32,
    /// Arm word of host CQs; the DPA arms through its outbox and leaves it alone.
    pub arm: Be32,
}

/// Counter field of a queue pair doorbell record: the low 16 bits of a free-running counter.
#[inline(always)]
pub const fn queue_counter(index: u64) -> u32 {
    (index & 0xFFFF) as u32
}

/// Consumer field of a completion queue doorbell record: the low 24 bits of a free-running counter.
#[inline(always)]
pub const fn cq_counter(index: u64) -> u32 {
    index as u32 & MASK_24
}

const _: () = {
    assert!(core::mem::size_of::<QpDoorbellRecord>() == 8);
    assert!(core::mem::offset_of!(QpDoorbellRecord, send) == 4);
    assert!(core::mem::size_of::<CqDoorbellRecord>() == 8);
};
