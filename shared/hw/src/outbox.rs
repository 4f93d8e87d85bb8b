//! Registers of the outbox page, 4 KiB of device MMIO; 64-bit little-endian stores (libsnap-rdma
//! `flexio_dev_dpa_arch.h`, register map version 9).

use crate::MASK_24;

/// Bytes of an outbox page.
pub const PAGE_BYTES: u64 = 0x1000;
/// Completion queue doorbell: stores a consumer index and arms.
pub const CQ_DOORBELL: u64 = 0x100;
/// Event queue doorbell with re-arm.
pub const EQ_DOORBELL_REARM: u64 = 0x140;
/// Event queue doorbell without re-arm.
pub const EQ_DOORBELL: u64 = 0x180;
/// Send queue doorbell.
pub const SQ_DOORBELL: u64 = 0x1C0;
/// Posts an empty completion to a CQ.
pub const RXT_DOORBELL: u64 = 0x280;
/// Congestion control doorbell.
pub const CC_DOORBELL: u64 = 0x340;

/// Value of [`CQ_DOORBELL`]: number in bits 23:0, consumer index in bits 55:32.
#[inline(always)]
pub const fn cq_arm_value(cqn: u32, consumer: u32) -> u64 {
    (((consumer & MASK_24) as u64) << 32) | (cqn & MASK_24) as u64
}

/// Value of [`SQ_DOORBELL`]: producer counter in bits 15:0, QP number in bits 55:32.
#[inline(always)]
pub const fn sq_doorbell_value(qpn: u32, producer: u16) -> u64 {
    (((qpn & MASK_24) as u64) << 32) | producer as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_register_map_says() {
        assert_eq!(cq_arm_value(0x12_3456, 0x0189_ABCD), 0x0089_ABCD_0012_3456);
        assert_eq!(sq_doorbell_value(0xFF12_3456, 0xBEEF), 0x0012_3456_0000_BEEF);
    }
}
