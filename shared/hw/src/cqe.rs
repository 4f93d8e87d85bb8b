//! Completion queue entries, 64 bytes (rdma-core `struct mlx5_cqe64`, `struct mlx5_err_cqe`).

use core::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Be16, Be32, Be64, MASK_24};

/// Value of the owner and opcode byte that software writes into every entry of a fresh ring: opcode *invalid*, owner 1.
pub const OP_OWN_INITIAL: u8 = 0xF1;
/// Byte offset of the owner and opcode byte; the hardware writes it last.
pub const OP_OWN_OFFSET: usize = 0x3F;
/// Byte offset of the dword pair (user index, immediate).
pub const USER_INDEX_OFFSET: usize = 0x20;
/// Bit 1 of the owner and opcode byte: the sender asked for a solicited event.
pub const OP_OWN_SOLICITED: u8 = 1 << 1;

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Cqe {
    /// Reserved on InfiniBand and RoCE.
    pub reserved_00: [u8; 2],
    /// Work queue entry id (striding receive queues).
    pub wqe_id: Be16,
    /// Reserved on InfiniBand and RoCE.
    pub reserved_04: [u8; 13],
    /// Path bits of the source.
    pub ml_path: u8,
    /// Reserved.
    pub reserved_12: [u8; 2],
    /// Internet checksum.
    pub checksum: Be16,
    /// Source local identifier.
    pub slid: Be16,
    /// Source QP number in bits 23:0, service level 27:24, GRH indicator 29:28.
    pub flags_rqpn: Be32,
    /// Header split and IP extension bits.
    pub hds_ip_ext: u8,
    /// Layer 4 header type and other bits.
    pub l4_hdr_type_etc: u8,
    /// VLAN tag.
    pub vlan_info: Be16,
    /// User index of the queue pair, or number of the shared receive queue; 24 bits.
    pub user_index: Be32,
    /// The immediate, bytes exactly as the sender stored them; or an invalidated key.
    pub immediate: Be32,
    /// Offload application fields.
    pub app: [u8; 4],
    /// Received bytes; on UD this includes the 40 bytes of the GRH area.
    pub byte_count: Be32,
    /// Time stamp of the device.
    pub timestamp: Be64,
    /// Requester entries: opcode of the completed entry in bits 31:24; local QP number in bits 23:0.
    pub sop_qpn: Be32,
    /// Requester: index field of the completed entry. Responder: receive queue index of the consumed entry.
    pub wqe_counter: Be16,
    /// Signature, or validity iteration count with compressed entries.
    pub signature: u8,
    /// Opcode in bits 7:4, format 3:2, solicited 1, owner 0.
    pub op_own: u8,
}

const _: () = {
    assert!(size_of::<Cqe>() == 64);
    assert!(offset_of!(Cqe, ml_path) == 0x11);
    assert!(offset_of!(Cqe, checksum) == 0x14);
    assert!(offset_of!(Cqe, flags_rqpn) == 0x18);
    assert!(offset_of!(Cqe, user_index) == USER_INDEX_OFFSET);
    assert!(offset_of!(Cqe, immediate) == 0x24);
    assert!(offset_of!(Cqe, byte_count) == 0x2C);
    assert!(offset_of!(Cqe, timestamp) == 0x30);
    assert!(offset_of!(Cqe, sop_qpn) == 0x38);
    assert!(offset_of!(Cqe, wqe_counter) == 0x3C);
    assert!(offset_of!(Cqe, op_own) == OP_OWN_OFFSET);
};

impl Cqe {
    /// An entry as software leaves it in a fresh ring.
    pub const INITIAL: Self = Self {
        reserved_00: [0; 2],
        wqe_id: Be16::new(0),
        reserved_04: [0; 13],
        ml_path: 0,
        reserved_12: [0; 2],
        checksum: Be16::new(0),
        slid: Be16::new(0),
        flags_rqpn: Be32::new(0),
        hds_ip_ext: 0,
        l4_hdr_type_etc: 0,
        vlan_info: Be16::new(0),
        user_index: Be32::new(0),
        immediate: Be32::new(0),
        app: [0; 4],
        byte_count: Be32::new(0),
        timestamp: Be64::new(0),
        sop_qpn: Be32::new(0),
        wqe_counter: Be16::new(0),
        signature: 0,
        op_own: OP_OWN_INITIAL,
    };

    /// Opcode, or the raw nibble when it names none.
    pub const fn opcode(&self) -> Result<CqeOpcode, u8> {
        CqeOpcode::from_raw(self.op_own >> 4)
    }

    /// QP number of the sender (responder entries of UD).
    pub const fn source_qpn(&self) -> u32 {
        self.flags_rqpn.get() & MASK_24
    }

    /// Local QP number.
    pub const fn qpn(&self) -> u32 {
        self.sop_qpn.get() & MASK_24
    }
}

/// Owner and opcode byte of a plain entry: `opcode` in bits 7:4, `owner` (0 or 1) in bit 0, format and solicited bits
/// clear.
#[inline(always)]
pub const fn op_own(opcode: CqeOpcode, owner: u8) -> u8 {
    ((opcode as u8) << 4) | (owner & 1)
}

/// Owner bit that the hardware writes in the pass of the ring in which entry number `index` (counted from 0, never
/// wrapping) lies: 0 in the first pass, then alternating. An entry whose owner bit differs is still the hardware's.
#[inline(always)]
pub const fn owner_of_pass(index: u64, log_depth: u32) -> u8 {
    ((index >> log_depth) & 1) as u8
}

/// Opcode of a completion queue entry (`MLX5_CQE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CqeOpcode {
    /// A send queue entry completed.
    Requester = 0,
    /// RDMA Write with immediate arrived.
    WriteImmediate = 1,
    /// Send arrived.
    Send = 2,
    /// Send with immediate arrived.
    SendImmediate = 3,
    /// Send with invalidation arrived.
    SendInvalidate = 4,
    /// Completion queue was resized.
    Resize = 5,
    /// Entry generated without a packet.
    NoPacket = 6,
    /// Signature error.
    SignatureError = 12,
    /// Requester error; the entry has the layout of [`ErrorCqe`].
    RequesterError = 13,
    /// Responder error; the entry has the layout of [`ErrorCqe`].
    ResponderError = 14,
    /// Software's mark of an entry never written.
    Invalid = 15,
}

impl CqeOpcode {
    /// Every opcode.
    pub const ALL: [Self; 11] = [
        Self::Requester,
        Self::WriteImmediate,
        Self::Send,
        Self::SendImmediate,
        Self::SendInvalidate,
        Self::Resize,
        Self::NoPacket,
        Self::SignatureError,
        Self::RequesterError,
        Self::ResponderError,
        Self::Invalid,
    ];

    /// The opcode of a nibble; the nibble itself when it is not assigned.
    pub const fn from_raw(nibble: u8) -> Result<Self, u8> {
        Ok(match nibble {
            0 => Self::Requester,
            1 => Self::WriteImmediate,
            2 => Self::Send,
            3 => Self::SendImmediate,
            4 => Self::SendInvalidate,
            5 => Self::Resize,
            6 => Self::NoPacket,
            12 => Self::SignatureError,
            13 => Self::RequesterError,
            14 => Self::ResponderError,
            15 => Self::Invalid,
            other => return Err(other),
        })
    }
}

/// Layout of an error entry (opcodes requester error and responder error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct ErrorCqe {
    /// Reserved.
    pub reserved_00: [u8; 32],
    /// User index or shared receive queue number.
    pub user_index: Be32,
    /// Reserved.
    pub reserved_24: [u8; 16],
    /// Hardware error syndrome (FlexIO device headers).
    pub hw_error_syndrome: u8,
    /// Hardware syndrome type (FlexIO device headers).
    pub hw_syndrome_type: u8,
    /// Vendor error syndrome.
    pub vendor_error_syndrome: u8,
    /// Syndrome, see [`Syndrome`].
    pub syndrome: u8,
    /// Opcode of the failed entry in bits 31:24, QP number in bits 23:0.
    pub opcode_qpn: Be32,
    /// Index of the failed entry.
    pub wqe_counter: Be16,
    /// Signature.
    pub signature: u8,
    /// Opcode and owner, as in [`Cqe`].
    pub op_own: u8,
}

const _: () = {
    assert!(size_of::<ErrorCqe>() == 64);
    assert!(offset_of!(ErrorCqe, user_index) == 0x20);
    assert!(offset_of!(ErrorCqe, vendor_error_syndrome) == 0x36);
    assert!(offset_of!(ErrorCqe, syndrome) == 0x37);
    assert!(offset_of!(ErrorCqe, opcode_qpn) == 0x38);
    assert!(offset_of!(ErrorCqe, wqe_counter) == 0x3C);
    assert!(offset_of!(ErrorCqe, op_own) == OP_OWN_OFFSET);
};

/// Syndromes of an error entry (`MLX5_CQE_SYNDROME_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Syndrome {
    /// Message longer than the receive buffer.
    LocalLength = 0x01,
    /// Malformed work queue entry.
    LocalQpOperation = 0x02,
    /// Local memory key check failed.
    LocalProtection = 0x04,
    /// Flushed after the queue pair left the ready state.
    Flushed = 0x05,
    /// Memory window bind failed.
    WindowBind = 0x06,
    /// Unexpected response.
    BadResponse = 0x10,
    /// Local access error in the responder.
    LocalAccess = 0x11,
    /// Remote refused the request as invalid.
    RemoteInvalidRequest = 0x12,
    /// Remote memory key check failed.
    RemoteAccess = 0x13,
    /// Remote failed to execute.
    RemoteOperation = 0x14,
    /// Transport retries exhausted.
    TransportRetry = 0x15,
    /// Receiver-not-ready retries exhausted.
    RnrRetry = 0x16,
    /// Remote aborted.
    RemoteAborted = 0x22,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_round_trip_and_gaps_are_refused() {
        for opcode in CqeOpcode::ALL {
            assert_eq!(CqeOpcode::from_raw(opcode as u8), Ok(opcode));
        }
        for gap in [7u8, 8, 9, 10, 11, 16] {
            assert_eq!(CqeOpcode::from_raw(gap), Err(gap));
        }
    }

    #[test]
    fn a_fresh_entry_is_owned_by_hardware_in_the_first_pass() {
        assert_ne!(Cqe::INITIAL.op_own & 1, owner_of_pass(0, 4));
        assert_eq!(owner_of_pass(15, 4), 0);
        assert_eq!(owner_of_pass(16, 4), 1);
        assert_eq!(owner_of_pass(32, 4), 0);
        assert_eq!(op_own(CqeOpcode::SendImmediate, 1), 0x31);
    }
}
