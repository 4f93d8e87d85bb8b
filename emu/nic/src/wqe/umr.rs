//! UMR work requests: their segments, and what they change in a memory key.
//!
//! Formats: `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg` and `mlx5_wqe_umr_klm_seg` of rdma-core's mlx5
//! provider.

use super::segment::{SIZE, WqeFault, be16, be32, be64, take};
use crate::access::Access;
use crate::cqe::vendor;

const CONTROL_BYTES: usize = 48;
const CONTEXT_BYTES: usize = 64;
const KLM_BYTES: usize = 16;

/// UMR control segment, flags.
mod flag {
    pub(super) const CHECK_QPN: u8 = 1 << 3;
    pub(super) const TRANSLATION_OFFSET: u8 = 1 << 4;
    pub(super) const CHECK_FREE: u8 = 1 << 5;
    pub(super) const INLINE: u8 = 1 << 7;
}

/// UMR control segment, mask: which fields of the key change.
mod mask {
    pub(super) const LEN: u64 = 1 << 0;
    pub(super) const START: u64 = 1 << 6;
    pub(super) const TAG: u64 = 1 << 13;
    pub(super) const QPN: u64 = 1 << 14;
    pub(super) const LOCAL_WRITE: u64 = 1 << 18;
    pub(super) const REMOTE_READ: u64 = 1 << 19;
    pub(super) const REMOTE_WRITE: u64 = 1 << 20;
    pub(super) const ATOMIC: u64 = 1 << 21;
    pub(super) const FREE: u64 = 1 << 29;
    pub(super) const KNOWN: u64 = LEN | START | TAG | QPN | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ATOMIC | FREE;
}

/// A key that every queue pair may use.
pub(crate) const ANY_QUEUE: u32 = 0xFF_FFFF;

/// Part of a UMR key's range: bytes behind another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KlmEntry {
    /// Bytes.
    pub len: u32,
    /// Memory key, of the UMR key's protection domain.
    pub key: u32,
    /// First byte, as an address of that key.
    pub addr: u64,
}

/// A UMR work request: what changes in its key; `None` keeps what is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Umr {
    /// The key must be free before.
    pub(crate) check_free: bool,
    /// The key becomes free, or bound.
    pub(crate) free: Option<bool>,
    /// Rights that change.
    pub(crate) changed: Access,
    /// Those of them that the key has afterwards.
    pub(crate) granted: Access,
    pub(crate) tag: Option<u8>,
    pub(crate) start: Option<u64>,
    pub(crate) len: Option<u64>,
    pub(crate) entries: Option<Vec<KlmEntry>>,
    /// The queue pair that alone may use the key, a window's, or [`ANY_QUEUE`].
    pub(crate) queue: Option<u32>,
}

/// Rights by their bits in the mask and in the key's context.
const RIGHTS: [(u64, u8, Access); 4] = [
    (mask::LOCAL_WRITE, 1 << 3, Access::LOCAL_WRITE),
    (mask::REMOTE_READ, 1 << 4, Access::REMOTE_READ),
    (mask::REMOTE_WRITE, 1 << 5, Access::REMOTE_WRITE),
    (mask::ATOMIC, 1 << 6, Access::REMOTE_ATOMIC),
];

/// The request is not one that this card executes.
const UNSUPPORTED: WqeFault = WqeFault::operation(vendor::UMR);

impl Umr {
    /// Parses what follows the control segment.
    pub(crate) fn parse(rest: &mut &[u8]) -> Result<Self, WqeFault> {
        let control = take(rest, CONTROL_BYTES)?;
        let context = take(rest, CONTEXT_BYTES)?;
        let (flags, octowords, offset, mask) = (control[0], be16(control, 4), be16(control, 6), be64(control, 8));
        let known = flag::CHECK_QPN | flag::TRANSLATION_OFFSET | flag::CHECK_FREE | flag::INLINE;
        let queue = (mask & mask::QPN != 0).then(|| be32(context, 4) >> 8);
        if flags & !known != 0 || mask & !mask::KNOWN != 0 || offset != 0 {
            return Err(UNSUPPORTED);
        }
        let entries = match usize::from(octowords) {
            0 => None,
            // A list elsewhere in memory.
            _ if flags & flag::INLINE == 0 => return Err(UNSUPPORTED),
            count => {
                let list = take(rest, count * KLM_BYTES).map_err(|_| SIZE)?;
                let entry = |bytes: &[u8]| KlmEntry { len: be32(bytes, 0), key: be32(bytes, 4), addr: be64(bytes, 8) };
                // The list is padded to 64 bytes with entries of nothing.
                Some(list.chunks_exact(KLM_BYTES).map(entry).filter(|entry| entry.len > 0).collect())
            }
        };
        let set = |bit: u64| mask & bit != 0;
        let changed = RIGHTS.iter().filter(|(bit, ..)| set(*bit)).map(|(.., right)| *right).collect();
        let granted = RIGHTS.iter().filter(|(_, bit, _)| context[2] & bit != 0).map(|(.., right)| *right).collect();
        Ok(Self {
            check_free: flags & flag::CHECK_FREE != 0,
            free: set(mask::FREE).then_some(context[0] & 1 << 6 != 0),
            changed,
            granted,
            tag: set(mask::TAG).then_some(context[7]),
            start: set(mask::START).then(|| be64(context, 16)),
            len: set(mask::LEN).then(|| be64(context, 24)),
            entries,
            queue,
        })
    }
}
