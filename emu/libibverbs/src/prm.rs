//! Command layouts of the device's programming interface (mlx5 PRM, as rdma-core and the Linux driver use them).
//!
//! A field is a byte offset of a big-endian dword, its first bit (0 = most significant) and its width.

/// A field of a mailbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field(pub(crate) usize, pub(crate) u32, pub(crate) u32);

/// A command, or a structure in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The structure embedded at an offset.
    pub(crate) fn at(self, offset: usize) -> Input<'a> {
        Input(self.0.get(offset..).unwrap_or(&[]))
    }

    fn dword(self, offset: usize) -> u32 {
        self.0.get(offset..offset + 4).and_then(|d| d.try_into().ok()).map_or(0, u32::from_be_bytes)
    }

    pub(crate) fn get(self, Field(offset, bit, width): Field) -> u32 {
        let value = self.dword(offset) >> (32 - bit - width);
        if width == 32 { value } else { value & ((1 << width) - 1) }
    }

    /// A field of at most eight bits.
    pub(crate) fn get8(self, field: Field) -> u8 {
        debug_assert!(field.2 <= 8, "{field:?} fits in a byte");
        self.get(field) as u8
    }

    pub(crate) fn flag(self, offset: usize, bit: u32) -> bool {
        self.get(Field(offset, bit, 1)) != 0
    }

    pub(crate) fn u64(self, offset: usize) -> u64 {
        u64::from(self.dword(offset)) << 32 | u64::from(self.dword(offset + 4))
    }

    pub(crate) fn bytes<const N: usize>(self, offset: usize) -> [u8; N] {
        self.0.get(offset..offset + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }
}

/// Stores a field of an answer, if the answer is long enough.
pub(crate) fn put(out: &mut [u8], Field(offset, bit, width): Field, value: u32) {
    let Some(dword) = out.get_mut(offset..offset + 4) else { return };
    let shift = 32 - bit - width;
    let mask = if width == 32 { u32::MAX } else { ((1 << width) - 1) << shift };
    let old = dword.iter().fold(0, |value, &byte| value << 8 | u32::from(byte));
    dword.copy_from_slice(&(old & !mask | value << shift & mask).to_be_bytes());
}

/// Commands by opcode.
pub(crate) mod command {
    pub(crate) const QUERY_HCA_CAP: u32 = 0x100;
    pub(crate) const CREATE_MKEY: u32 = 0x200;
    pub(crate) const QUERY_MKEY: u32 = 0x201;
    pub(crate) const CREATE_CQ: u32 = 0x400;
    pub(crate) const QUERY_CQ: u32 = 0x402;
    pub(crate) const CREATE_QP: u32 = 0x500;
    pub(crate) const RST2INIT_QP: u32 = 0x502;
    pub(crate) const INIT2RTR_QP: u32 = 0x503;
    pub(crate) const RTR2RTS_QP: u32 = 0x504;
    pub(crate) const RTS2RTS_QP: u32 = 0x505;
    pub(crate) const TO_ERROR_QP: u32 = 0x507;
    pub(crate) const TO_RESET_QP: u32 = 0x50A;
    pub(crate) const QUERY_QP: u32 = 0x50B;
    pub(crate) const ALLOC_PD: u32 = 0x800;
    pub(crate) const ATTACH_TO_MCG: u32 = 0x806;
    pub(crate) const DETACH_FROM_MCG: u32 = 0x807;
    pub(crate) const CREATE_GENERAL_OBJECT: u32 = 0xA00;
    pub(crate) const QUERY_GENERAL_OBJECT: u32 = 0xA02;
    pub(crate) const ALLOW_OTHER_VHCA_ACCESS: u32 = 0xB16;
}

/// Bytes of the commands that carry a queue-pair, completion-queue or key context.
pub(crate) const CONTEXT_COMMAND_BYTES: usize = 272;
/// Bytes of the shortest command and of every answer without a context.
pub(crate) const SHORT_BYTES: usize = 16;

pub(crate) const OPCODE: Field = Field(0x0, 0, 16);
/// Variant of a command: which capabilities a query asks for.
pub(crate) const OP_MOD: Field = Field(0x4, 16, 16);
pub(crate) const OUT_STATUS: Field = Field(0x0, 0, 8);
pub(crate) const OUT_SYNDROME: Field = Field(0x4, 0, 32);
/// Number of the created object, and of the object a command is about.
pub(crate) const NUMBER: Field = Field(0x8, 8, 24);

/// CREATE_CQ.
pub(crate) mod cq {
    use super::Field;
    pub(crate) const CONTEXT: usize = 0x10;
    pub(crate) const CONTEXT_BYTES: usize = 0x40;
    pub(crate) const UMEM_OFFSET: usize = 0x50;
    pub(crate) const UMEM_ID: Field = Field(0x58, 0, 32);
    pub(crate) const UMEM_VALID: (usize, u32) = (0x5C, 0);
    // In the context:
    pub(crate) const STATUS: Field = Field(0x0, 0, 4);
    pub(crate) const DBR_UMEM_VALID: (usize, u32) = (0x0, 6);
    pub(crate) const EXT_ELEMENT: (usize, u32) = (0x0, 7);
    pub(crate) const CQE_SIZE: Field = Field(0x0, 8, 3);
    pub(crate) const COLLAPSED: (usize, u32) = (0x0, 11);
    pub(crate) const OVERRUN_IGNORE: (usize, u32) = (0x0, 14);
    pub(crate) const COMPRESSION: (usize, u32) = (0x0, 17);
    pub(crate) const ALWAYS_ARMED: (usize, u32) = (0x0, 24);
    pub(crate) const EXT_ELEMENT_TYPE: Field = Field(0x0, 25, 3);
    pub(crate) const DBR_UMEM_ID: Field = Field(0x4, 0, 32);
    pub(crate) const LOG_SIZE: Field = Field(0xC, 3, 5);
    pub(crate) const UAR_PAGE: Field = Field(0xC, 8, 24);
    pub(crate) const PERIOD: Field = Field(0x10, 4, 12);
    pub(crate) const MAX_COUNT: Field = Field(0x10, 16, 16);
    pub(crate) const ELEMENT: Field = Field(0x14, 0, 32);
    pub(crate) const DBR_ADDR: usize = 0x38;
}

/// CREATE_QP and the transitions.
pub(crate) mod qp {
    use super::Field;
    /// Which attributes RTS2RTS changes.
    pub(crate) const OPTIONAL: Field = Field(0x10, 0, 32);
    pub(crate) const CONTEXT: usize = 0x18;
    pub(crate) const CONTEXT_BYTES: usize = 0xE8;
    pub(crate) const UMEM_OFFSET: usize = 0x100;
    pub(crate) const UMEM_ID: Field = Field(0x108, 0, 32);
    pub(crate) const UMEM_VALID: (usize, u32) = (0x10C, 0);
    // In the context:
    pub(crate) const STATE: Field = Field(0x0, 0, 4);
    pub(crate) const SERVICE: Field = Field(0x0, 8, 8);
    pub(crate) const PATH_MIGRATION: Field = Field(0x0, 19, 2);
    pub(crate) const BLOCK_MULTICAST_LOOPBACK: (usize, u32) = (0x4, 1);
    pub(crate) const PD: Field = Field(0x4, 8, 24);
    pub(crate) const MTU: Field = Field(0x8, 0, 3);
    pub(crate) const LOG_RQ_SIZE: Field = Field(0x8, 9, 4);
    pub(crate) const LOG_RQ_STRIDE: Field = Field(0x8, 13, 3);
    pub(crate) const NO_SQ: (usize, u32) = (0x8, 16);
    pub(crate) const LOG_SQ_SIZE: Field = Field(0x8, 17, 4);
    pub(crate) const UAR_PAGE: Field = Field(0xC, 8, 24);
    pub(crate) const USER_INDEX: Field = Field(0x10, 8, 24);
    pub(crate) const REMOTE_QPN: Field = Field(0x14, 8, 24);
    pub(crate) const PATH: usize = 0x18;
    pub(crate) const LOG_SRA_MAX: Field = Field(0x70, 8, 3);
    pub(crate) const RETRY_COUNT: Field = Field(0x70, 13, 3);
    pub(crate) const RNR_RETRY: Field = Field(0x70, 16, 3);
    pub(crate) const NEXT_SEND_PSN: Field = Field(0x78, 8, 24);
    pub(crate) const CQN_SND: Field = Field(0x7C, 8, 24);
    pub(crate) const LOG_RRA_MAX: Field = Field(0x90, 8, 3);
    pub(crate) const REMOTE_READ: (usize, u32) = (0x90, 16);
    pub(crate) const REMOTE_WRITE: (usize, u32) = (0x90, 17);
    pub(crate) const REMOTE_ATOMIC: (usize, u32) = (0x90, 18);
    pub(crate) const MIN_RNR_NAK: Field = Field(0x94, 3, 5);
    pub(crate) const NEXT_RCV_PSN: Field = Field(0x94, 8, 24);
    pub(crate) const CQN_RCV: Field = Field(0x9C, 8, 24);
    pub(crate) const DBR_ADDR: usize = 0xA0;
    pub(crate) const Q_KEY: Field = Field(0xA8, 0, 32);
    pub(crate) const RQ_TYPE: Field = Field(0xAC, 5, 3);
    pub(crate) const DBR_UMEM_VALID: (usize, u32) = (0xD0, 3);
    pub(crate) const DBR_UMEM_ID: Field = Field(0xE4, 0, 32);
}

/// The primary path in a queue-pair context.
pub(crate) mod path {
    use super::Field;
    pub(crate) const FORCE_LOOPBACK: (usize, u32) = (0x0, 0);
    pub(crate) const PKEY_INDEX: Field = Field(0x0, 16, 16);
    pub(crate) const ACK_TIMEOUT: Field = Field(0x8, 0, 5);
    pub(crate) const SOURCE_INDEX: Field = Field(0x8, 8, 8);
    pub(crate) const HOP_LIMIT: Field = Field(0x8, 24, 8);
    pub(crate) const TRAFFIC_CLASS: Field = Field(0xC, 4, 8);
    pub(crate) const FLOW_LABEL: Field = Field(0xC, 12, 20);
    pub(crate) const RGID: usize = 0x10;
    pub(crate) const UDP_SPORT: Field = Field(0x20, 16, 16);
    pub(crate) const PORT: Field = Field(0x24, 8, 8);
    pub(crate) const RMAC: usize = 0x26;
}

/// CREATE_MKEY.
pub(crate) mod mkey {
    use super::Field;
    pub(crate) const UMEM_VALID: (usize, u32) = (0xC, 1);
    pub(crate) const CONTEXT: usize = 0x10;
    pub(crate) const CONTEXT_BYTES: usize = 0x40;
    pub(crate) const UMEM_ID: Field = Field(0x64, 0, 32);
    pub(crate) const UMEM_OFFSET: usize = 0x68;
    // In the context:
    pub(crate) const FREE: (usize, u32) = (0x0, 1);
    pub(crate) const UMR: (usize, u32) = (0x0, 16);
    pub(crate) const ATOMIC: (usize, u32) = (0x0, 17);
    pub(crate) const REMOTE_WRITE: (usize, u32) = (0x0, 18);
    pub(crate) const REMOTE_READ: (usize, u32) = (0x0, 19);
    pub(crate) const LOCAL_WRITE: (usize, u32) = (0x0, 20);
    /// 1 = pages (MTT), 2 = a list behind other keys (KLM).
    pub(crate) const ACCESS_MODE: Field = Field(0x0, 22, 2);
    pub(crate) const QPN: Field = Field(0x4, 0, 24);
    pub(crate) const TAG: Field = Field(0x4, 24, 8);
    pub(crate) const PD: Field = Field(0xC, 8, 24);
    pub(crate) const START: usize = 0x10;
    pub(crate) const LENGTH: usize = 0x18;
    /// Room for entries, in units of 16 bytes.
    pub(crate) const TRANSLATIONS: Field = Field(0x34, 0, 32);
}

/// CREATE_GENERAL_OBJECT, its header and the context of an alias (Linux `mlx5_ifc.h`); the object's number is
/// [`NUMBER`]'s dword.
pub(crate) mod object {
    use super::Field;
    pub(crate) const TYPE: Field = Field(0x4, 16, 16);
    pub(crate) const ID: Field = Field(0x8, 0, 32);
    pub(crate) const ALIAS: (usize, u32) = (0xC, 0);
    pub(crate) const CONTEXT: usize = 0x10;
    // In the context of an alias:
    pub(crate) const VHCA: Field = Field(0x0, 0, 16);
    pub(crate) const TARGET: Field = Field(0x4, 0, 32);
    pub(crate) const ACCESS_KEY: usize = 0x10;
    /// First dword of the metadata: the protection domain of an alias key.
    pub(crate) const PD: Field = Field(0x30, 0, 32);
    pub(crate) const BYTES: usize = 0x50;
    /// Type of memory keys, as objects that may be shared.
    pub(crate) const MKEY: u32 = 0xFF01;
}

/// CREATE_GENERAL_OBJECT of a group key: an extension of this emulator, for its hypothetical multicast of UC. Behind
/// the header of every general object (see [`object`]):
///
/// | Bytes | Content |
/// |---|---|
/// | 0x10..0x14 | number of the queue pair, 24 bits |
/// | 0x14..0x18 | group key, as packets carry it |
/// | 0x18..0x1C | memory key that it stands for |
/// | 0x20..0x28 | address of offset 0 under that key |
///
/// It stands for the memory until the object is destroyed.
pub(crate) mod group_key {
    use super::Field;
    pub(crate) const TYPE: u32 = 0xFC01;
    pub(crate) const QPN: Field = Field(0x10, 8, 24);
    pub(crate) const KEY: Field = Field(0x14, 0, 32);
    pub(crate) const LOCAL_KEY: Field = Field(0x18, 0, 32);
    pub(crate) const BASE: usize = 0x20;
    pub(crate) const BYTES: usize = 0x28;
}

/// ALLOW_OTHER_VHCA_ACCESS.
pub(crate) mod allow {
    use super::Field;
    pub(crate) const TYPE: Field = Field(0x10, 16, 16);
    pub(crate) const ID: Field = Field(0x14, 0, 32);
    pub(crate) const ACCESS_KEY: usize = 0x20;
    pub(crate) const BYTES: usize = 0x40;
}

/// QUERY_HCA_CAP: capabilities follow the head of the answer.
pub(crate) mod caps {
    use super::Field;
    pub(crate) const STRUCTURE: usize = 0x10;
    /// Bytes of the shortest answer that programs have room for: the structures are this long, or twice as long with
    /// what is reserved.
    pub(crate) const LEAST_BYTES: usize = 0x800;
    /// Of the device: op_mod without its lowest bit, which chooses current or greatest values.
    pub(crate) const GENERAL: u32 = 0x0;
    /// Of the device, continued.
    pub(crate) const GENERAL_2: u32 = 0x20;
    /// Of its DPA.
    pub(crate) const DPA: u32 = 0x24;
    // Of the device:
    pub(crate) const HCA_CAP_2: Field = Field(0x4, 0, 1);
    pub(crate) const VHCA_ID: Field = Field(0x4, 16, 16);
    pub(crate) const LOG_MAX_QP_SIZE: Field = Field(0x10, 8, 8);
    pub(crate) const LOG_MAX_QP: Field = Field(0x10, 27, 5);
    pub(crate) const LOG_MAX_CQ_SIZE: Field = Field(0x18, 8, 8);
    pub(crate) const LOG_MAX_CQ: Field = Field(0x18, 27, 5);
    pub(crate) const LOG_MAX_MKEY: Field = Field(0x1C, 10, 6);
    pub(crate) const LOG_MAX_RA_REQ_QP: Field = Field(0x28, 10, 6);
    pub(crate) const LOG_MAX_RA_RES_QP: Field = Field(0x28, 26, 6);
    pub(crate) const LOCAL_CA_ACK_DELAY: Field = Field(0x34, 11, 5);
    /// 0 is InfiniBand.
    pub(crate) const PORT_TYPE: Field = Field(0x34, 22, 2);
    pub(crate) const PORT_TYPE_ETHERNET: u32 = 1;
    pub(crate) const NUM_PORTS: Field = Field(0x34, 24, 8);
    pub(crate) const LOG_MAX_MSG: Field = Field(0x38, 3, 5);
    pub(crate) const CQE_VERSION: Field = Field(0x3C, 28, 4);
    pub(crate) const CQ_OVERRUN_IGNORE: Field = Field(0x44, 0, 1);
    pub(crate) const BLOCK_LB_MC: Field = Field(0x44, 8, 1);
    /// Transport services: UD, UC, RC.
    pub(crate) const SERVICES: Field = Field(0x44, 29, 3);
    // Continued:
    pub(crate) const CROSS_VHCA: Field = Field(0x1C, 0, 32);
    /// Bit of [`CROSS_VHCA`]: a local key may stand for a remote one.
    pub(crate) const CROSS_VHCA_MKEY: u32 = 0x100;
    // Of the DPA:
    pub(crate) const SINGLE_HART: Field = Field(0x0, 0, 1);
    pub(crate) const LOG_MAX_MEMORY_BLOCKS: Field = Field(0x0, 3, 5);
    pub(crate) const LOG_MAX_MEMORY: Field = Field(0x0, 11, 5);
    pub(crate) const LOG_MAX_THREADS_PER_PROCESS: Field = Field(0x0, 19, 5);
    pub(crate) const LOG_MAX_PROCESSES: Field = Field(0x0, 27, 5);
    pub(crate) const MEMORY_BLOCK_BYTES: Field = Field(0x4, 0, 32);
    pub(crate) const LOG_MAX_THREADS: Field = Field(0x8, 3, 5);
    pub(crate) const LOG_MAX_OUTBOXES: Field = Field(0x8, 11, 5);
    pub(crate) const LOG_MAX_WINDOWS: Field = Field(0xC, 3, 5);
}

/// ATTACH_TO_MCG and DETACH_FROM_MCG; the queue pair is [`NUMBER`].
pub(crate) mod group {
    pub(crate) const GID: usize = 0x10;
    pub(crate) const BYTES: usize = 0x20;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_written_at_their_bits() {
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0];
        let input = Input(&bytes);
        assert_eq!(input.get(Field(0, 0, 32)), 0x1234_5678);
        assert_eq!(input.get(Field(0, 8, 24)), 0x34_5678);
        assert_eq!(input.get8(Field(4, 3, 5)), 0x1A);
        assert!(input.flag(4, 0) && !input.flag(4, 1));
        assert_eq!(input.u64(0), 0x1234_5678_9ABC_DEF0);
        assert_eq!(input.at(4).get(Field(0, 16, 16)), 0xDEF0);
        assert_eq!(input.at(6).get(Field(0, 0, 32)), 0, "past the end reads as zero");
        let mut out = [0xFF; 4];
        put(&mut out, Field(0, 8, 24), 0x01_0203);
        assert_eq!(out, [0xFF, 1, 2, 3]);
        put(&mut out, Field(0, 0, 8), 0);
        assert_eq!(out, [0, 1, 2, 3]);
        put(&mut out, Field(4, 0, 8), 1);
        assert_eq!(out, [0, 1, 2, 3], "past the end nothing is written");
    }
}
