//! Segments of work queue entries, 16 bytes each (rdma-core `wqe.h`, `mlx5dv.h`). Entries are counted in basic blocks
//! of 64 bytes; an entry may wrap at the ring end.

use core::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Be16, Be32, Be64};

/// Completion always (`MLX5_WQE_CTRL_CQ_UPDATE`), value of [`ControlSegment::flags`].
pub const FLAG_SIGNALLED: u8 = 2 << 2;
/// Completion only on error.
pub const FLAG_ON_ERROR: u8 = 0;
/// Raise a solicited event at the receiver.
pub const FLAG_SOLICITED: u8 = 1 << 1;
/// Wait for earlier local operations of this queue (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
pub const FLAG_SMALL_FENCE: u8 = 1 << 5;
/// Wait for all earlier operations of this queue (`MLX5_WQE_CTRL_FENCE`).
pub const FLAG_FENCE: u8 = 4 << 5;
/// Bit 31 of [`DatagramSegment::destination_qpn`]: the 48-byte form with GRH and MAC follows.
pub const EXTENDED_ADDRESS: u32 = 1 << 31;
/// Bit 31 of an inline segment's length.
pub const INLINE_BIT: u32 = 1 << 31;

/// Opcode of a send queue entry (`MLX5_OPCODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WqeOpcode {
    /// Does nothing but complete.
    Nop = 0x00,
    /// RDMA Write.
    Write = 0x08,
    /// RDMA Write with immediate.
    WriteImmediate = 0x09,
    /// Send.
    Send = 0x0A,
    /// Send with immediate.
    SendImmediate = 0x0B,
    /// RDMA Read.
    Read = 0x10,
    /// Compare and swap.
    CompareSwap = 0x11,
    /// Fetch and add.
    FetchAdd = 0x12,
}

/// Control segment, first of every send queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct ControlSegment {
    /// Opcode modifier 31:24, entry index 23:8, opcode 7:0.
    pub index_opcode: Be32,
    /// QP number 31:8, size in 16-byte segments including this one 5:0.
    pub qpn_ds: Be32,
    /// Signature.
    pub signature: u8,
    /// Stream channel id (DCI), unused here.
    pub stream_channel: [u8; 2],
    /// Fence mode 7:5, completion mode 3:2, solicited 1.
    pub flags: u8,
    /// Immediate of send/write with immediate: copied unchanged to the peer's CQE.
    pub immediate: Be32,
}

impl ControlSegment {
    /// The first eight bytes as one big-endian number: opcode modifier 0, `index`, `opcode`, `qpn`, `segments`.
    #[inline(always)]
    pub const fn head(index: u16, opcode: WqeOpcode, qpn: u32, segments: u8) -> u64 {
        ((index as u64) << 40) | ((opcode as u64) << 32) | ((qpn as u64) << 8) | segments as u64
    }

    /// The last eight bytes as one big-endian number: no signature, no stream channel, `flags`, and an immediate that
    /// the peer reads as the big-endian number `immediate`.
    #[inline(always)]
    pub const fn tail(flags: u8, immediate: u32) -> u64 {
        ((flags as u64) << 32) | immediate as u64
    }

    /// A control segment with no immediate.
    pub const fn new(index: u16, opcode: WqeOpcode, qpn: u32, segments: u8, flags: u8) -> Self {
        let head = Self::head(index, opcode, qpn, segments);
        Self {
            index_opcode: Be32::new((head >> 32) as u32),
            qpn_ds: Be32::new(head as u32),
            signature: 0,
            stream_channel: [0; 2],
            flags,
            immediate: Be32::new(0),
        }
    }
}

/// Increment of [`ControlSegment::head`] that advances the entry index by one.
pub const HEAD_INDEX_STEP: u64 = 1 << 40;

/// Remote address segment of RDMA entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct RemoteAddressSegment {
    /// Virtual address at the remote side.
    pub address: Be64,
    /// Remote memory key.
    pub rkey: Be32,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// Data pointer segment: one gather or scatter element; also the whole of a receive queue entry with one element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct DataSegment {
    /// Length in bytes (bit 31 clear: pointer form).
    pub byte_count: Be32,
    /// Local memory key.
    pub lkey: Be32,
    /// Local virtual address.
    pub address: Be64,
}

impl DataSegment {
    /// A pointer to `byte_count` bytes at `address` under `lkey`.
    pub const fn new(byte_count: u32, lkey: u32, address: u64) -> Self {
        Self { byte_count: Be32::new(byte_count), lkey: Be32::new(lkey), address: Be64::new(address) }
    }

    /// The first eight bytes: length and key.
    pub const fn extent(byte_count: u32, lkey: u32) -> Be64 {
        Be64::new((byte_count as u64) << 32 | lkey as u64)
    }
}

/// Address vector of a UD send, extended 48-byte form (rdma-core `struct mlx5_wqe_datagram_seg`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4))]
pub struct DatagramSegment {
    /// Queue key.
    pub qkey: Be32,
    /// Reserved.
    pub reserved_04: [u8; 4],
    /// Destination QP number in bits 23:0, [`EXTENDED_ADDRESS`] in bit 31.
    pub destination_qpn: Be32,
    /// Static rate 7:4, service level 3:0.
    pub stat_rate_sl: u8,
    /// Force loopback bit 7, source path bits 6:0.
    pub fl_mlid: u8,
    /// Remote local identifier; on RoCE the UDP source port.
    pub rlid: Be16,
    /// Reserved.
    pub reserved_10: [u8; 4],
    /// Remote MAC.
    pub remote_mac: [u8; 6],
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// GRH present bit 30, source GID index 29:20, flow label 19:0.
    pub grh_gid_flow: Be32,
    /// Remote GID.
    pub remote_gid: [u8; 16],
}

impl DatagramSegment {
    /// The segment whose 48 bytes these six words hold, in memory order.
    #[must_use]
    pub fn from_words(words: [u64; 6]) -> Self {
        zerocopy::transmute!(words)
    }
}

/// A UD send of one gather element: control, address vector, data; five segments in two basic blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct DatagramWqe {
    /// Control segment with `ds` = [`DatagramWqe::SEGMENTS`].
    pub control: ControlSegment,
    /// Whom to send to.
    pub datagram: DatagramSegment,
    /// What to send.
    pub data: DataSegment,
    /// Rest of the second basic block, ignored by the hardware.
    pub padding: [u64; 6],
}

impl DatagramWqe {
    /// Number of segments (`ds`).
    pub const SEGMENTS: u8 = 5;
}

/// An RDMA Write of one gather element: control, remote address, data; three segments in one basic block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct WriteWqe {
    /// Control segment with `ds` = [`WriteWqe::SEGMENTS`].
    pub control: ControlSegment,
    /// Where to write.
    pub remote: RemoteAddressSegment,
    /// What to write.
    pub data: DataSegment,
    /// Rest of the basic block, ignored by the hardware.
    pub padding: [u8; 16],
}

impl WriteWqe {
    /// Number of segments (`ds`).
    pub const SEGMENTS: u8 = 3;
}

/// A send of one gather element on RC or UC: control, data; two segments in one basic block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct SendWqe {
    /// Control segment with `ds` = [`SendWqe::SEGMENTS`].
    pub control: ControlSegment,
    /// What to send.
    pub data: DataSegment,
    /// Rest of the basic block, ignored by the hardware.
    pub padding: [u8; 32],
}

impl SendWqe {
    /// Number of segments (`ds`).
    pub const SEGMENTS: u8 = 2;
}

const _: () = {
    assert!(size_of::<ControlSegment>() == 16);
    assert!(offset_of!(ControlSegment, flags) == 11);
    assert!(offset_of!(ControlSegment, immediate) == 12);
    assert!(size_of::<RemoteAddressSegment>() == 16);
    assert!(size_of::<DataSegment>() == 16);
    assert!(size_of::<DatagramSegment>() == 48);
    assert!(offset_of!(DatagramSegment, destination_qpn) == 8);
    assert!(offset_of!(DatagramSegment, remote_mac) == 20);
    assert!(offset_of!(DatagramSegment, grh_gid_flow) == 28);
    assert!(size_of::<DatagramWqe>() == 128);
    assert!(offset_of!(DatagramWqe, datagram) == 16);
    assert!(offset_of!(DatagramWqe, data) == 64);
    assert!(size_of::<WriteWqe>() == 64);
    assert!(offset_of!(WriteWqe, remote) == 16);
    assert!(offset_of!(WriteWqe, data) == 32);
    assert!(size_of::<SendWqe>() == 64);
    assert!(offset_of!(SendWqe, data) == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_segment_bytes() {
        let control = ControlSegment::new(0x1234, WqeOpcode::Write, 0x00AB_CDEF, 3, FLAG_SIGNALLED);
        assert_eq!(
            control.as_bytes(),
            [0, 0x12, 0x34, 0x08, 0xAB, 0xCD, 0xEF, 3, 0, 0, 0, 0x08, 0, 0, 0, 0],
            "opmod, index, opcode, qpn, ds, signature, channel, flags, immediate"
        );
    }

    #[test]
    fn tail_bytes() {
        let mut control = ControlSegment::new(1, WqeOpcode::SendImmediate, 2, 5, FLAG_SIGNALLED);
        control.immediate = Be32::new(0x1234_5678);
        assert_eq!(control.as_bytes()[8..], ControlSegment::tail(FLAG_SIGNALLED, 0x1234_5678).to_be_bytes());
    }

    #[test]
    fn an_address_vector_is_its_words() {
        let segment = DatagramSegment { qkey: Be32::new(0x0102_0304), remote_gid: [9; 16], ..Default::default() };
        let words: [u64; 6] = zerocopy::transmute!(segment);
        assert_eq!(DatagramSegment::from_words(words), segment);
        assert_eq!(words[0].to_le_bytes()[..4], [1, 2, 3, 4]);
    }

    #[test]
    fn head_step_advances_the_index_only() {
        let next = ControlSegment::head(7, WqeOpcode::Write, 5, 3) + HEAD_INDEX_STEP;
        assert_eq!(next, ControlSegment::head(8, WqeOpcode::Write, 5, 3));
    }
}
