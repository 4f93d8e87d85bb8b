//! Translation: from an access by a key to the memory behind it.

use super::{Keys, Kind};
use crate::access::{Access, KeyFault, MAX_DEPTH, MkeyAttr};
use crate::memory::Space;

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

/// Bytes as a key names them.
#[derive(Clone, Copy)]
struct Reach {
    key: u32,
    /// Protection domain of the user; `None` behind an alias: its target was shared, which stands for the protection
    /// domain.
    pd: Option<u32>,
    addr: u64,
    len: u64,
}

impl Reach {
    /// The bytes, by a key of these attributes: the protection domain must be the user's, the range inside, the right
    /// granted.
    fn check(
        self,
        owner: u32,
        (key_start, key_len): (u64, u64),
        granted: Access,
        needed: Access,
    ) -> Result<(), KeyFault> {
        let Self { key, addr, len, .. } = self;
        self.check_pd(owner)?;
        let inside = addr.checked_sub(key_start).is_some_and(|offset| offset <= key_len && len <= key_len - offset);
        if !inside {
            return Err(KeyFault::Range { key, addr, len, key_start, key_len });
        }
        if granted.contains(needed) { Ok(()) } else { Err(KeyFault::Rights { key, needed, granted }) }
    }

    fn check_pd(self, owner: u32) -> Result<(), KeyFault> {
        match self.pd {
            Some(pd) if pd != owner => Err(KeyFault::ProtectionDomain { key: self.key, owner, pd }),
            _ => Ok(()),
        }
    }

    fn direct(self, attr: &MkeyAttr, needed: Access) -> Result<Range, KeyFault> {
        self.check(attr.pd, (attr.start, attr.len), attr.access, needed)?;
        Ok(Range { space: attr.space, addr: self.addr.wrapping_add(attr.offset), len: self.len })
    }
}

impl Keys {
    /// Checks an access as the card does, and finds the memory behind it.
    pub(crate) fn translate(&self, key: u32, pd: u32, addr: u64, len: u64, needed: Access) -> Result<Ranges, KeyFault> {
        let reach = Reach { key, pd: Some(pd), addr, len };
        match self.kind(key).ok_or(KeyFault::Unknown { key })? {
            Kind::Memory(attr) => Ok(Ranges::One([reach.direct(attr, needed)?])),
            Kind::Umr(_) | Kind::Alias(_) => {
                let mut ranges = Vec::new();
                self.collect(reach, needed, 0, &mut ranges)?;
                Ok(Ranges::Many(ranges))
            }
        }
    }

    fn collect(&self, reach: Reach, needed: Access, depth: u32, ranges: &mut Vec<Range>) -> Result<(), KeyFault> {
        let key = reach.key;
        if depth > MAX_DEPTH {
            return Err(KeyFault::Depth { key });
        }
        match self.kind(key).ok_or(KeyFault::Unknown { key })? {
            Kind::Memory(attr) => ranges.push(reach.direct(attr, needed)?),
            Kind::Umr(umr) => {
                reach.check_pd(umr.pd)?;
                if umr.free {
                    return Err(KeyFault::Free { key });
                }
                reach.check(umr.pd, (umr.start, umr.len), umr.access, needed)?;
                // A window gives what its binding says; the region behind it must let its own program write.
                let changes = needed.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                let needed = match umr.is_window {
                    true if changes => Access::LOCAL_WRITE,
                    true => Access::empty(),
                    false => needed,
                };
                for part in umr.parts(reach.addr - umr.start, reach.len) {
                    let behind = Reach { key: part.key, pd: Some(umr.pd), addr: part.addr, len: part.len };
                    self.collect(behind, needed, depth + 1, ranges)?;
                }
            }
            Kind::Alias(alias) => {
                reach.check_pd(alias.pd)?;
                let target = alias.target;
                let slot = self.index(target).map(|index| &self.slots[index]).filter(|slot| slot.life == alias.life);
                let shared = slot.and_then(|slot| slot.shared);
                if shared != Some(alias.token) {
                    return Err(KeyFault::Revoked { key, target });
                }
                self.collect(Reach { key: target, pd: None, ..reach }, needed, depth + 1, ranges)?;
            }
        }
        Ok(())
    }

    /// The queue pair that a window of type 2 was bound for, which alone may use it.
    pub(crate) fn queue_of(&self, key: u32) -> Option<u32> {
        match self.kind(key)? {
            Kind::Umr(umr) => umr.queue,
            Kind::Memory(_) | Kind::Alias(_) => None,
        }
    }

    /// As [`translate`](Self::translate), for a caller that needs the bytes in one place and at the same address.
    pub(crate) fn check(&self, key: u32, pd: u32, addr: u64, len: u64, needed: Access) -> Result<Space, KeyFault> {
        match *self.translate(key, pd, addr, len, needed)? {
            [range] if range.addr == addr => Ok(range.space),
            _ => Err(KeyFault::Scattered { key, addr, len }),
        }
    }
}
