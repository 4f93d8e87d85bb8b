//! User-mode memory registration: memory keys that work requests bind, without a command.
//!
//! A UMR key is made free, with room for a list of entries. A UMR work request gives it a range of addresses, rights, and
//! the list (KLM): consecutive parts of the range lie behind other keys. Local and remote invalidation free it again.
//! Formats: `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg` and `mlx5_wqe_umr_klm_seg` of rdma-core's mlx5 provider.

use crate::cqe::vendor;
use crate::error::NicError;
use crate::mkey::{Access, Kind, Protection};
use crate::nic::Nic;
use crate::wqe::{SIZE, WqeFault, be16, be32, be64, take};

/// Entries a UMR key may have.
const MAX_ENTRIES: u32 = 1 << 16;
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

/// A UMR key.
#[derive(Debug)]
pub(crate) struct UmrKey {
    pub(crate) pd: u32,
    pub(crate) max_entries: u32,
    pub(crate) free: bool,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    entries: Vec<KlmEntry>,
}

/// Bytes behind one entry.
pub(crate) struct Part {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl UmrKey {
    /// What lies behind `len` bytes from `offset` on. A binding covers its range, so all of it is there.
    pub(crate) fn parts(&self, mut offset: u64, mut len: u64) -> impl Iterator<Item = Part> {
        self.entries.iter().filter_map(move |entry| {
            let entry_len = u64::from(entry.len);
            if offset >= entry_len {
                offset -= entry_len;
                return None;
            }
            let count = (entry_len - offset).min(len);
            let part = Part { key: entry.key, addr: entry.addr.wrapping_add(offset), len: count };
            offset = 0;
            len -= count;
            (count > 0).then_some(part)
        })
    }
}

/// A UMR work request: what changes in its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Umr {
    check_free: bool,
    mask: u64,
    /// The key becomes free, if the mask says so.
    free: bool,
    access: Access,
    tag: u8,
    start: u64,
    len: u64,
    /// `None` keeps the list.
    entries: Option<Vec<KlmEntry>>,
}

/// The request is not one that this card executes.
const UNSUPPORTED: WqeFault = WqeFault::operation(vendor::UMR);

impl Umr {
    /// Parses what follows the control segment.
    pub(crate) fn parse(rest: &mut &[u8]) -> Result<Self, WqeFault> {
        let control = take(rest, CONTROL_BYTES)?;
        let context = take(rest, CONTEXT_BYTES)?;
        let (flags, octowords, offset, mask) = (control[0], be16(control, 4), be16(control, 6), be64(control, 8));
        let known = flag::CHECK_QPN | flag::TRANSLATION_OFFSET | flag::CHECK_FREE | flag::INLINE;
        let bound_to_qp = mask & mask::QPN != 0 && be32(context, 4) >> 8 != 0xFF_FFFF;
        if flags & !known != 0 || mask & !mask::KNOWN != 0 || offset != 0 || bound_to_qp {
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
        let rights = [
            (1 << 3, Access::LOCAL_WRITE),
            (1 << 4, Access::REMOTE_READ),
            (1 << 5, Access::REMOTE_WRITE),
            (1 << 6, Access::REMOTE_ATOMIC),
        ];
        let granted = rights.iter().filter(|(bit, _)| context[2] & bit != 0).map(|(_, right)| *right);
        Ok(Self {
            check_free: flags & flag::CHECK_FREE != 0,
            mask,
            free: context[0] & 1 << 6 != 0,
            access: granted.collect(),
            tag: context[7],
            start: be64(context, 16),
            len: be64(context, 24),
            entries,
        })
    }
}

impl Protection {
    /// Executes a UMR work request on the key that `key` names, by its index alone: the request may set the tag.
    pub(crate) fn bind(&mut self, key: u32, pd: u32, umr: &Umr) -> Result<(), WqeFault> {
        let index = self.index_of_any_tag(key).ok_or(WqeFault::operation(vendor::KEY_UNKNOWN))?;
        let slot = &mut self.slots[index];
        let Some(Kind::Umr(bound)) = &mut slot.kind else { return Err(WqeFault::operation(vendor::KEY_RIGHTS)) };
        if bound.pd != pd {
            return Err(WqeFault::operation(vendor::KEY_PD));
        }
        let set = |bit: u64| umr.mask & bit != 0;
        if umr.check_free && !bound.free {
            return Err(WqeFault::operation(vendor::KEY_FREE));
        }
        let start = if set(mask::START) { umr.start } else { bound.start };
        let len = if set(mask::LEN) { umr.len } else { bound.len };
        let free = if set(mask::FREE) { umr.free } else { bound.free };
        let entries = umr.entries.as_deref().unwrap_or(&bound.entries);
        let listed: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
        let covered = len > 0 && listed >= len && start.checked_add(len - 1).is_some();
        if entries.len() > bound.max_entries as usize || (!free && !covered) {
            return Err(WqeFault::operation(vendor::LENGTH));
        }
        for (bit, right) in [
            (mask::LOCAL_WRITE, Access::LOCAL_WRITE),
            (mask::REMOTE_READ, Access::REMOTE_READ),
            (mask::REMOTE_WRITE, Access::REMOTE_WRITE),
            (mask::ATOMIC, Access::REMOTE_ATOMIC),
        ] {
            if set(bit) {
                bound.access.set(right, umr.access.contains(right));
            }
        }
        if let Some(entries) = &umr.entries {
            bound.entries.clone_from(entries);
        }
        (bound.start, bound.len, bound.free) = (start, len, free);
        if set(mask::TAG) {
            slot.tag = umr.tag;
        }
        Ok(())
    }

    /// Frees a bound UMR key. Ordinary keys and aliases are destroyed by command only.
    pub(crate) fn invalidate(&mut self, key: u32, pd: u32) -> Result<(), WqeFault> {
        let index = self.index(key).ok_or(WqeFault::operation(vendor::KEY_UNKNOWN))?;
        let Some(Kind::Umr(bound)) = &mut self.slots[index].kind else {
            return Err(WqeFault::operation(vendor::KEY_RIGHTS));
        };
        if bound.pd != pd {
            return Err(WqeFault::operation(vendor::KEY_PD));
        }
        if bound.free {
            return Err(WqeFault::operation(vendor::KEY_FREE));
        }
        bound.free = true;
        Ok(())
    }
}

impl Nic {
    /// Makes a UMR key with room for `max_entries` entries. It is free: every access is refused until a UMR work request
    /// binds it.
    ///
    /// # Errors
    /// No such protection domain, no or too many entries, or too many keys.
    pub fn create_umr_mkey(&mut self, pd: u32, max_entries: u32) -> Result<u32, NicError> {
        if max_entries == 0 || max_entries > MAX_ENTRIES {
            return Err(NicError::UmrEntries { entries: max_entries, limit: MAX_ENTRIES });
        }
        self.protection.insert(Kind::Umr(UmrKey {
            pd,
            max_entries,
            free: true,
            start: 0,
            len: 0,
            access: Access::empty(),
            entries: Vec::new(),
        }))
    }

    /// The list that a UMR key is bound to; `None` if it is free, or not a UMR key.
    #[must_use]
    pub fn query_umr_mkey(&self, key: u32) -> Option<&[KlmEntry]> {
        match self.protection.kind(key)? {
            Kind::Umr(umr) if !umr.free => Some(&umr.entries),
            _ => None,
        }
    }
}
