//! Protection domains and memory keys.

use std::collections::{BTreeMap, VecDeque};

use crate::alias::{Alias, Token};
use crate::error::NicError;
use crate::memory::Space;
use crate::umr::UmrKey;

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
    /// The key is a UMR key that no UMR has bound, or one that was invalidated.
    #[error("memory key {key:#x} is free: bind it with a UMR work request first")]
    Free {
        /// The key.
        key: u32,
    },
    /// The key is an alias, and its target has been destroyed or is no longer shared with the token of the alias.
    #[error(
        "memory key {key:#x} is an alias of {target:#x}, which is not shared any more: share it and make a new alias"
    )]
    Revoked {
        /// The alias.
        key: u32,
        /// What it stood for.
        target: u32,
    },
    /// Keys refer to keys too often.
    #[error("memory key {key:#x} is behind more than {MAX_DEPTH} other keys: bind keys to ordinary ones")]
    Depth {
        /// The key.
        key: u32,
    },
    /// The bytes lie in more than one place, and the caller can only use one.
    #[error(
        "{len} bytes at {addr:#x} of memory key {key:#x} are not one range of memory: use a key made by registration"
    )]
    Scattered {
        /// The key.
        key: u32,
        /// First byte of the access.
        addr: u64,
        /// Bytes of the access.
        len: u64,
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
            Self::Free { .. } => vendor::KEY_FREE,
            Self::Revoked { .. } => vendor::KEY_REVOKED,
            Self::Depth { .. } | Self::Scattered { .. } => vendor::KEY_DEPTH,
        }
    }
}

/// Key indices start here: index 1 with tag 0 is 0x100, the key that ends a short list of receive segments.
const FIRST_INDEX: u32 = 2;
/// 24-bit key index.
const MAX_KEYS: usize = (1 << 24) - FIRST_INDEX as usize;

/// How many keys an access may pass through on its way to memory.
pub(crate) const MAX_DEPTH: u32 = 4;

/// A stretch of memory behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) space: Space,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// The memory behind an access.
#[derive(Clone, Debug)]
pub(crate) enum Ranges {
    /// Behind an ordinary key: no allocation.
    One([Range; 1]),
    Many(Vec<Range>),
}

impl std::ops::Deref for Ranges {
    type Target = [Range];
    fn deref(&self) -> &[Range] {
        match self {
            Self::One(range) => range,
            Self::Many(ranges) => ranges,
        }
    }
}

/// What a key stands for.
#[derive(Debug)]
pub(crate) enum Kind {
    Memory(MkeyAttr),
    Umr(UmrKey),
    Alias(Alias),
}

impl Kind {
    pub(crate) fn pd(&self) -> u32 {
        match self {
            Self::Memory(attr) => attr.pd,
            Self::Umr(umr) => umr.pd,
            Self::Alias(alias) => alias.pd,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) tag: u8,
    pub(crate) kind: Option<Kind>,
    /// Other virtual HCAs may make aliases that know this token.
    pub(crate) shared: Option<Token>,
}

/// A protection domain.
#[derive(Clone, Copy, Debug)]
struct Domain {
    /// Keys and queue pairs.
    users: u32,
    vhca: u16,
}

/// All protection domains and memory keys of a card.
#[derive(Debug)]
pub(crate) struct Protection {
    next_pd: u32,
    pds: BTreeMap<u32, Domain>,
    pub(crate) slots: Vec<Slot>,
    /// Oldest first, so that a tag returns to a slot as late as possible.
    free: VecDeque<usize>,
    first_tag: u8,
}

impl Protection {
    pub(crate) fn new(first_tag: u8) -> Self {
        Self { next_pd: 1, pds: BTreeMap::new(), slots: Vec::new(), free: VecDeque::new(), first_tag }
    }

    pub(crate) fn alloc_pd(&mut self, vhca: u16) -> u32 {
        let pd = self.next_pd;
        self.next_pd += 1;
        self.pds.insert(pd, Domain { users: 0, vhca });
        pd
    }

    pub(crate) fn dealloc_pd(&mut self, pd: u32) -> Result<(), NicError> {
        match self.pds.get(&pd) {
            None => Err(NicError::UnknownPd { pd }),
            Some(&Domain { users, .. }) if users > 0 => Err(NicError::PdInUse { pd, users }),
            Some(_) => {
                self.pds.remove(&pd);
                Ok(())
            }
        }
    }

    /// The virtual HCA of a protection domain.
    pub(crate) fn vhca(&self, pd: u32) -> Result<u16, NicError> {
        self.pds.get(&pd).map(|domain| domain.vhca).ok_or(NicError::UnknownPd { pd })
    }

    pub(crate) fn use_pd(&mut self, pd: u32) -> Result<(), NicError> {
        self.pds.get_mut(&pd).ok_or(NicError::UnknownPd { pd })?.users += 1;
        Ok(())
    }

    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(domain) = self.pds.get_mut(&pd) {
            domain.users = domain.users.saturating_sub(1);
        }
    }

    pub(crate) fn create(&mut self, attr: MkeyAttr) -> Result<u32, NicError> {
        // The end may be 2^64 itself, so the last byte is what must exist.
        if attr.len == 0 || attr.start.checked_add(attr.len - 1).is_none() {
            return Err(NicError::MkeyRange { start: attr.start, len: attr.len });
        }
        self.insert(Kind::Memory(attr))
    }

    pub(crate) fn insert(&mut self, kind: Kind) -> Result<u32, NicError> {
        let pd = kind.pd();
        if !self.pds.contains_key(&pd) {
            return Err(NicError::UnknownPd { pd });
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() >= MAX_KEYS => return Err(NicError::TooManyKeys { limit: MAX_KEYS }),
            None => {
                self.slots.push(Slot { tag: self.first_tag, kind: None, shared: None });
                self.slots.len() - 1
            }
        };
        self.use_pd(pd)?;
        let slot = &mut self.slots[index];
        slot.kind = Some(kind);
        Ok(((index as u32 + FIRST_INDEX) << 8) | u32::from(slot.tag))
    }

    pub(crate) fn destroy(&mut self, key: u32) -> Result<(), NicError> {
        let index = self.index(key).ok_or(NicError::UnknownMkey { key })?;
        let slot = &mut self.slots[index];
        slot.tag = slot.tag.wrapping_add(1);
        slot.shared = None;
        if let Some(kind) = slot.kind.take() {
            self.release_pd(kind.pd());
        }
        self.free.push_back(index);
        Ok(())
    }

    /// The slot that a key's index names, whatever its tag.
    pub(crate) fn index_of_any_tag(&self, key: u32) -> Option<usize> {
        let index = (key >> 8).checked_sub(FIRST_INDEX)? as usize;
        self.slots.get(index)?.kind.is_some().then_some(index)
    }

    pub(crate) fn index(&self, key: u32) -> Option<usize> {
        self.index_of_any_tag(key).filter(|&index| u32::from(self.slots[index].tag) == key & 0xFF)
    }

    pub(crate) fn kind(&self, key: u32) -> Option<&Kind> {
        self.slots[self.index(key)?].kind.as_ref()
    }

    pub(crate) fn attr(&self, key: u32) -> Option<&MkeyAttr> {
        match self.kind(key)? {
            Kind::Memory(attr) => Some(attr),
            Kind::Umr(_) | Kind::Alias(_) => None,
        }
    }

    /// Checks an access as the card does, and finds the memory behind it.
    pub(crate) fn translate(&self, key: u32, pd: u32, addr: u64, len: u64, needed: Access) -> Result<Ranges, KeyFault> {
        match self.kind(key).ok_or(KeyFault::Unknown { key })? {
            Kind::Memory(attr) => Ok(Ranges::One([direct(key, attr, Some(pd), addr, len, needed)?])),
            Kind::Umr(_) | Kind::Alias(_) => {
                let mut ranges = Vec::new();
                self.collect(key, Some(pd), addr, len, needed, 0, &mut ranges)?;
                Ok(Ranges::Many(ranges))
            }
        }
    }

    /// `pd` is `None` behind an alias: its target was shared, which stands for the protection domain.
    #[allow(clippy::too_many_arguments, reason = "an access, and how far its translation has come")]
    fn collect(
        &self,
        key: u32,
        pd: Option<u32>,
        addr: u64,
        len: u64,
        needed: Access,
        depth: u32,
        ranges: &mut Vec<Range>,
    ) -> Result<(), KeyFault> {
        if depth > MAX_DEPTH {
            return Err(KeyFault::Depth { key });
        }
        match self.kind(key).ok_or(KeyFault::Unknown { key })? {
            Kind::Memory(attr) => ranges.push(direct(key, attr, pd, addr, len, needed)?),
            Kind::Umr(umr) => {
                check_pd(key, umr.pd, pd)?;
                if umr.free {
                    return Err(KeyFault::Free { key });
                }
                check_range(key, (umr.start, umr.len), addr, len)?;
                check_rights(key, umr.access, needed)?;
                for part in umr.parts(addr - umr.start, len) {
                    self.collect(part.key, Some(umr.pd), part.addr, part.len, needed, depth + 1, ranges)?;
                }
            }
            Kind::Alias(alias) => {
                check_pd(key, alias.pd, pd)?;
                let target = alias.target;
                let shared = self.index(target).and_then(|index| self.slots[index].shared);
                if shared != Some(alias.token) {
                    return Err(KeyFault::Revoked { key, target });
                }
                self.collect(target, None, addr, len, needed, depth + 1, ranges)?;
            }
        }
        Ok(())
    }

    /// As [`translate`](Self::translate), for a caller that needs the bytes in one place and at the same address.
    pub(crate) fn check(&self, key: u32, pd: u32, addr: u64, len: u64, needed: Access) -> Result<Space, KeyFault> {
        match *self.translate(key, pd, addr, len, needed)? {
            [range] if range.addr == addr => Ok(range.space),
            _ => Err(KeyFault::Scattered { key, addr, len }),
        }
    }
}

fn check_pd(key: u32, owner: u32, pd: Option<u32>) -> Result<(), KeyFault> {
    match pd {
        Some(pd) if pd != owner => Err(KeyFault::ProtectionDomain { key, owner, pd }),
        _ => Ok(()),
    }
}

fn check_range(key: u32, (key_start, key_len): (u64, u64), addr: u64, len: u64) -> Result<(), KeyFault> {
    let inside = addr.checked_sub(key_start).is_some_and(|offset| offset <= key_len && len <= key_len - offset);
    if inside { Ok(()) } else { Err(KeyFault::Range { key, addr, len, key_start, key_len }) }
}

fn check_rights(key: u32, granted: Access, needed: Access) -> Result<(), KeyFault> {
    if granted.contains(needed) { Ok(()) } else { Err(KeyFault::Rights { key, needed, granted }) }
}

fn direct(key: u32, attr: &MkeyAttr, pd: Option<u32>, addr: u64, len: u64, needed: Access) -> Result<Range, KeyFault> {
    check_pd(key, attr.pd, pd)?;
    check_range(key, (attr.start, attr.len), addr, len)?;
    check_rights(key, attr.access, needed)?;
    Ok(Range { space: attr.space, addr, len })
}
