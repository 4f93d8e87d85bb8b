//! Segments of WQEs: big-endian fields, and what is wrong with a malformed one.

use crate::cqe::{syndrome, vendor};

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// Why a WQE fails before anything is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WqeFault {
    pub(crate) syndrome: u8,
    pub(crate) vendor: u8,
}

impl WqeFault {
    pub(crate) const fn operation(vendor: u8) -> Self {
        Self { syndrome: syndrome::LOCAL_QP_OPERATION, vendor }
    }

    pub(crate) const fn length() -> Self {
        Self { syndrome: syndrome::LOCAL_LENGTH, vendor: vendor::LENGTH }
    }
}

pub(crate) const SIZE: WqeFault = WqeFault::operation(vendor::SIZE);

/// Takes the next segment, or as many bytes as asked for.
pub(crate) fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], WqeFault> {
    let (taken, left) = rest.split_at_checked(len).ok_or(SIZE)?;
    *rest = left;
    Ok(taken)
}
