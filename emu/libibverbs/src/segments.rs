//! Segments of work queue entries, in the card's byte format.

use core::ffi::c_int;

use verbs_sys::ibv_sge;

use crate::errno::{Errno, Result};

pub(crate) const BLOCK_BYTES: usize = 64;
pub(crate) const SEGMENT_BYTES: usize = 16;
/// Ends a receive entry that has fewer segments than room.
const END_OF_LIST_KEY: u32 = 0x100;

/// The scatter/gather list of a request.
///
/// # Safety
/// If `num_sge` is positive, `list` must point at as many initialised entries.
pub(crate) unsafe fn segments<'a>(list: *const ibv_sge, num_sge: c_int, limit: u32) -> Result<&'a [ibv_sge]> {
    let count = usize::try_from(num_sge).ok().filter(|&count| count <= limit as usize);
    let count = count.ok_or_else(|| Errno::invalid(format!("{num_sge} scatter/gather entries: 0 to {limit} are")))?;
    match count {
        0 => Ok(&[]),
        _ if list.is_null() => Err(Errno::invalid("sg_list is null")),
        // SAFETY: not null; the caller vouches for the entries.
        _ => Ok(unsafe { core::slice::from_raw_parts(list, count) }),
    }
}

/// Appends a data segment.
pub(crate) fn data_segment(entry: &mut Vec<u8>, length: u32, lkey: u32, addr: u64) {
    entry.extend_from_slice(&length.to_be_bytes());
    entry.extend_from_slice(&lkey.to_be_bytes());
    entry.extend_from_slice(&addr.to_be_bytes());
}

/// The segments of a receive that has room for `bytes` of them.
pub(crate) fn receive_entry(scatter: &[ibv_sge], bytes: usize) -> Vec<u8> {
    let mut entry = Vec::with_capacity(bytes);
    for segment in scatter.iter().filter(|segment| segment.length > 0) {
        data_segment(&mut entry, segment.length, segment.lkey, segment.addr);
    }
    if entry.len() < bytes {
        data_segment(&mut entry, 0, END_OF_LIST_KEY, 0);
    }
    entry
}
