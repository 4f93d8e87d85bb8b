//! UMR work requests: what follows their control segment.
//!
//! Formats: `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg` and `mlx5_wqe_umr_klm_seg` of rdma-core's mlx5
//! provider.

use emu_machine::nic::Access;
use verbs_sys::ibv_sge;

/// Entries come in groups of so many.
pub(crate) const GROUP: usize = 4;
const CONTROL_BYTES: usize = 48;
const CONTEXT_BYTES: usize = 64;
const ENTRY_BYTES: usize = 16;

/// Flags of the control segment.
const INLINE: u8 = 1 << 7;
const CHECK_FREE: u8 = 1 << 5;
/// Fields of the key that change.
const LEN: u64 = 1 << 0;
const START: u64 = 1 << 6;
const TAG: u64 = 1 << 13;
const QPN: u64 = 1 << 14;
const RIGHTS: u64 = 0b1111 << 18;
const FREE: u64 = 1 << 29;
/// A key for all queue pairs.
const ANY_QPN: u32 = 0xFF_FFFF;

/// A UMR work request: the key, and what follows the control segment.
pub(crate) struct Umr {
    pub(crate) key: u32,
    pub(crate) body: Vec<u8>,
}

/// What a memory window is bound to.
pub(crate) struct Binding {
    /// Bytes, 0 to invalidate it; the region's key, and the first byte under that.
    pub(crate) part: (u32, u32, u64),
    pub(crate) rights: Access,
    /// Address of the first byte under the window's key.
    pub(crate) start: u64,
    /// The queue pair that alone may use it; the window must be invalid before.
    pub(crate) queue: Option<u32>,
}

impl Umr {
    /// A key over other keys is bound to a list: length, rights, and whether it is free change.
    pub(crate) fn of_list(key: u32, access: Access, list: &[ibv_sge]) -> Self {
        let entries: Vec<_> = list.iter().map(|entry| (entry.length, entry.lkey, entry.addr)).collect();
        let len = list.iter().map(|entry| u64::from(entry.length)).sum();
        let mut umr = Self::new(key, LEN | RIGHTS | FREE, access, &entries);
        umr.set(4, &(ANY_QPN << 8 | key & 0xFF).to_be_bytes());
        umr.set(24, &u64::to_be_bytes(len));
        umr
    }

    /// A memory window is bound, under a key whose tag is its new one.
    pub(crate) fn of_window(key: u32, binding: &Binding) -> Self {
        let &Binding { part, rights, start, queue } = binding;
        let entries = if part.0 > 0 { &[part][..] } else { &[] };
        let mut umr = Self::new(key, LEN | START | TAG | QPN | RIGHTS | FREE, rights, entries);
        umr.body[0] |= if queue.is_some() { CHECK_FREE } else { 0 };
        umr.set(0, &[if part.0 == 0 { 1 << 6 } else { 0 }]);
        umr.set(4, &(queue.unwrap_or(ANY_QPN) << 8 | key & 0xFF).to_be_bytes());
        umr.set(16, &start.to_be_bytes());
        umr.set(24, &u64::from(part.0).to_be_bytes());
        umr
    }

    fn new(key: u32, mask: u64, access: Access, entries: &[(u32, u32, u64)]) -> Self {
        let octowords = entries.len().next_multiple_of(GROUP);
        let mut body = vec![0; CONTROL_BYTES + CONTEXT_BYTES + ENTRY_BYTES * octowords];
        body[0] = INLINE;
        body[4..6].copy_from_slice(&(octowords as u16).to_be_bytes());
        body[8..16].copy_from_slice(&mask.to_be_bytes());
        for (right, bit) in [
            (Access::LOCAL_WRITE, 1 << 3),
            (Access::REMOTE_READ, 1 << 4),
            (Access::REMOTE_WRITE, 1 << 5),
            (Access::REMOTE_ATOMIC, 1 << 6),
        ] {
            body[CONTROL_BYTES + 2] |= if access.contains(right) { bit } else { 0 };
        }
        let list = &mut body[CONTROL_BYTES + CONTEXT_BYTES..];
        for ((len, key, addr), out) in entries.iter().zip(list.chunks_exact_mut(ENTRY_BYTES)) {
            out[..4].copy_from_slice(&len.to_be_bytes());
            out[4..8].copy_from_slice(&key.to_be_bytes());
            out[8..].copy_from_slice(&addr.to_be_bytes());
        }
        Self { key, body }
    }

    /// Stores bytes into the key's context.
    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.body[CONTROL_BYTES + at..][..bytes.len()].copy_from_slice(bytes);
    }
}
