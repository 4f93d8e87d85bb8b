//! Protection domains and memory keys.

use std::collections::{BTreeMap, VecDeque};

use crate::error::NicError;
use crate::memory::Space;

bitflags::bitflags! {
    /// What a memory key, or a queue pair as responder, allows. Values of `enum ibv_access_flags`. Local reads are always
    /// allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The card may scatter receives and read responses into the memory.
        const LOCAL_WRITE = 1;
        /// A peer may write.
        const REMOTE_WRITE = 2;
        /// A peer may read.
        const REMOTE_READ = 4;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 8;
    }
}

/// What a memory key gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkeyAttr {
    /// Protection domain that may use the key.
    pub pd: u32,
    /// The memory.
    pub space: Space,
    /// First byte.
    pub start: u64,
    /// Bytes; `start + len` must not exceed 2^64.
    pub len: u64,
    /// Rights.
    pub access: Access,
}

/// Why a memory key does not allow an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// No such key, or it has been destroyed.
    #[error("memory key {key:#x} does not exist: it was never created, or destroyed since")]
    Unknown {
        /// The key.
        key: u32,
    },
    /// The key belongs to another protection domain.
    #[error("memory key {key:#x} belongs to protection domain {owner}, not {pd}: create key and queue in the same one")]
    ProtectionDomain {
        /// The key.
        key: u32,
        /// Its protection domain.
        owner: u32,
        /// That of the queue pair or window.
        pd: u32,
    },
    /// The range is not inside the key's.
    #[error("{len} bytes at {addr:#x} are outside memory key {key:#x}, which covers {key_len} bytes at {key_start:#x}")]
    Range {
        /// The key.
        key: u32,
        /// First byte of the access.
        addr: u64,
        /// Bytes of the access.
        len: u64,
        /// First byte of the key.
        key_start: u64,
        /// Bytes of the key.
        key_len: u64,
    },
    /// The key lacks a right.
    #[error("memory key {key:#x} does not allow {needed:?}, only {granted:?}: create it with that right")]
    Rights {
        /// The key.
        key: u32,
        /// What the access needs.
        needed: Access,
        /// What the key grants.
        granted: Access,
    },
}

impl KeyFault {
    /// Vendor syndrome of an error CQE caused by this.
    pub(crate) fn vendor_syndrome(self) -> u8 {
        use crate::cqe::vendor;
        match self {
            Self::Unknown { .. } => vendor::KEY_UNKNOWN,
            Self::ProtectionDomain { .. } => vendor::KEY_PD,
            Self::Range { .. } => vendor::KEY_RANGE,
            Self::Rights { .. } => vendor::KEY_RIGHTS,
        }
    }
}

/// Key indices start here: index 1 with tag 0 is 0x100, the key that ends a short list of receive segments.
const FIRST_INDEX: u32 = 2;
/// 24-bit key index.
const MAX_KEYS: usize = (1 << 24) - FIRST_INDEX as usize;

#[derive(Debug)]
struct Slot {
    tag: u8,
    attr: Option<MkeyAttr>,
}

/// All protection domains and memory keys of a card.
#[derive(Debug)]
pub(crate) struct Protection {
    next_pd: u32,
    /// Protection domain to its number of users (keys and queue pairs).
    pds: BTreeMap<u32, u32>,
    slots: Vec<Slot>,
    /// Oldest first, so that a tag returns to a slot as late as possible.
    free: VecDeque<usize>,
    first_tag: u8,
}

impl Protection {
    pub(crate) fn new(first_tag: u8) -> Self {
        Self { next_pd: 1, pds: BTreeMap::new(), slots: Vec::new(), free: VecDeque::new(), first_tag }
    }

    pub(crate) fn alloc_pd(&mut self) -> u32 {
        let pd = self.next_pd;
        self.next_pd += 1;
        self.pds.insert(pd, 0);
        pd
    }

    pub(crate) fn dealloc_pd(&mut self, pd: u32) -> Result<(), NicError> {
        match self.pds.get(&pd) {
            None => Err(NicError::UnknownPd { pd }),
            Some(&users) if users > 0 => Err(NicError::PdInUse { pd, users }),
            Some(_) => {
                self.pds.remove(&pd);
                Ok(())
            }
        }
    }

    pub(crate) fn use_pd(&mut self, pd: u32) -> Result<(), NicError> {
        let users = self.pds.get_mut(&pd).ok_or(NicError::UnknownPd { pd })?;
        *users += 1;
        Ok(())
    }

    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(users) = self.pds.get_mut(&pd) {
            *users = users.saturating_sub(1);
        }
    }

    pub(crate) fn create(&mut self, attr: MkeyAttr) -> Result<u32, NicError> {
        // The end may be 2^64 itself, so the last byte is what must exist.
        if attr.len == 0 || attr.start.checked_add(attr.len - 1).is_none() {
            return Err(NicError::MkeyRange { start: attr.start, len: attr.len });
        }
        if !self.pds.contains_key(&attr.pd) {
            return Err(NicError::UnknownPd { pd: attr.pd });
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() >= MAX_KEYS => return Err(NicError::TooManyKeys { limit: MAX_KEYS }),
            None => {
                self.slots.push(Slot { tag: self.first_tag, attr: None });
                self.slots.len() - 1
            }
        };
        self.use_pd(attr.pd)?;
        let slot = &mut self.slots[index];
        slot.attr = Some(attr);
        Ok(((index as u32 + FIRST_INDEX) << 8) | u32::from(slot.tag))
    }

    pub(crate) fn destroy(&mut self, key: u32) -> Result<(), NicError> {
        let index = self.index(key).ok_or(NicError::UnknownMkey { key })?;
        let slot = &mut self.slots[index];
        slot.tag = slot.tag.wrapping_add(1);
        if let Some(attr) = slot.attr.take() {
            self.release_pd(attr.pd);
        }
        self.free.push_back(index);
        Ok(())
    }

    fn index(&self, key: u32) -> Option<usize> {
        let index = (key >> 8).checked_sub(FIRST_INDEX)? as usize;
        let slot = self.slots.get(index)?;
        (slot.attr.is_some() && u32::from(slot.tag) == key & 0xFF).then_some(index)
    }

    pub(crate) fn attr(&self, key: u32) -> Option<&MkeyAttr> {
        self.slots[self.index(key)?].attr.as_ref()
    }

    pub(crate) fn check(&self, key: u32, pd: u32, addr: u64, len: u64, needed: Access) -> Result<Space, KeyFault> {
        let attr = self.attr(key).ok_or(KeyFault::Unknown { key })?;
        if attr.pd != pd {
            return Err(KeyFault::ProtectionDomain { key, owner: attr.pd, pd });
        }
        let inside = addr.checked_sub(attr.start).is_some_and(|offset| offset <= attr.len && len <= attr.len - offset);
        if !inside {
            return Err(KeyFault::Range { key, addr, len, key_start: attr.start, key_len: attr.len });
        }
        if !attr.access.contains(needed) {
            return Err(KeyFault::Rights { key, needed, granted: attr.access });
        }
        Ok(attr.space)
    }
}
