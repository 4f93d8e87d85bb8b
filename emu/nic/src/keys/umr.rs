//! UMR keys (user-mode memory registration): memory keys that work requests bind, without a command.
//!
//! A UMR key is made free, with room for a list of entries. A UMR work request gives it a range of addresses, rights,
//! and the list (KLM): consecutive parts of the range lie behind other keys. Local and remote invalidation free it
//! again.

use crate::access::Access;
use crate::cqe::vendor;
use crate::wqe::WqeFault;
use crate::wqe::umr::{ANY_QUEUE, KlmEntry, Umr};

/// A UMR key.
#[derive(Debug)]
pub(crate) struct UmrKey {
    pub(crate) pd: u32,
    pub(crate) max_entries: u32,
    pub(crate) free: bool,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) entries: Vec<KlmEntry>,
    /// It is a memory window: bound to regions that allow that.
    pub(crate) is_window: bool,
    /// The queue pair that alone may use it, of a window of type 2.
    pub(crate) queue: Option<u32>,
}

/// Bytes behind one entry.
pub(crate) struct Part {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl UmrKey {
    /// A free key with room for `max_entries` entries.
    pub(crate) fn new(pd: u32, max_entries: u32, is_window: bool) -> Self {
        Self {
            pd,
            max_entries,
            free: true,
            start: 0,
            len: 0,
            access: Access::empty(),
            entries: Vec::new(),
            is_window,
            queue: None,
        }
    }

    /// Changes what a UMR work request of protection domain `pd` changes; on an error nothing.
    pub(super) fn bind(&mut self, pd: u32, umr: &Umr) -> Result<(), WqeFault> {
        if self.pd != pd {
            return Err(WqeFault::operation(vendor::KEY_PD));
        }
        if umr.check_free && !self.free {
            return Err(WqeFault::operation(vendor::KEY_FREE));
        }
        let start = umr.start.unwrap_or(self.start);
        let len = umr.len.unwrap_or(self.len);
        let free = umr.free.unwrap_or(self.free);
        let entries = umr.entries.as_deref().unwrap_or(&self.entries);
        let listed: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
        let covered = len > 0 && listed >= len && start.checked_add(len - 1).is_some();
        let queue = umr.queue.map_or(self.queue, |queue| Some(queue).filter(|queue| *queue != ANY_QUEUE));
        if queue.is_some() && !self.is_window {
            return Err(WqeFault::operation(vendor::UMR));
        }
        if entries.len() > self.max_entries as usize || (!free && !covered) {
            return Err(WqeFault::operation(vendor::LENGTH));
        }
        self.access = (self.access - umr.changed) | (umr.granted & umr.changed);
        if let Some(entries) = &umr.entries {
            self.entries.clone_from(entries);
        }
        (self.start, self.len, self.free) = (start, len, free);
        self.queue = queue;
        Ok(())
    }

    /// Frees the key, for an invalidation by protection domain `pd`.
    pub(super) fn invalidate(&mut self, pd: u32) -> Result<(), WqeFault> {
        if self.pd != pd {
            return Err(WqeFault::operation(vendor::KEY_PD));
        }
        if self.free {
            return Err(WqeFault::operation(vendor::KEY_FREE));
        }
        self.free = true;
        Ok(())
    }

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
