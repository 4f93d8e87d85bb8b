//! Protection domains, memory keys and virtual HCAs.

pub(crate) mod alias;
mod data;
mod translate;
mod umr;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use data::{Touched, read_ranges, write_ranges};
pub(crate) use translate::Ranges;

use crate::access::{Access, MkeyAttr};
use crate::cqe::{syndrome, vendor};
use crate::error::NicError;
use crate::wqe::WqeFault;
use crate::wqe::umr::{KlmEntry, Umr};
use alias::{Alias, AliasAttr, Token};
use umr::UmrKey;

/// Entries a UMR key may have.
const MAX_ENTRIES: u32 = 1 << 16;
/// Key indices start here: index 1 with tag 0 is 0x100, the key that ends a short list of receive segments.
const FIRST_INDEX: u32 = 2;
/// 24-bit key index.
const MAX_KEYS: usize = (1 << 24) - FIRST_INDEX as usize;

/// What a key stands for.
#[derive(Debug)]
enum Kind {
    Memory(MkeyAttr),
    Umr(UmrKey),
    Alias(Alias),
}

impl Kind {
    fn pd(&self) -> u32 {
        match self {
            Self::Memory(attr) => attr.pd,
            Self::Umr(umr) => umr.pd,
            Self::Alias(alias) => alias.pd,
        }
    }
}

#[derive(Debug)]
struct Slot {
    tag: u8,
    /// Keys that were here and are gone: distinguishes an alias's target from a later key of the same number.
    life: u64,
    kind: Option<Kind>,
    /// Other virtual HCAs may make aliases that know this token.
    shared: Option<Token>,
}

/// A protection domain.
#[derive(Clone, Copy, Debug)]
struct Domain {
    /// Keys and queue pairs.
    users: u32,
    vhca: u16,
}

/// All protection domains and memory keys of a card, and the virtual HCAs that they belong to.
#[derive(Debug)]
pub(crate) struct Keys {
    next_pd: u32,
    pds: BTreeMap<u32, Domain>,
    slots: Vec<Slot>,
    /// Oldest first, so that a tag returns to a slot as late as possible.
    free: VecDeque<usize>,
    first_tag: u8,
    first_vhca: u16,
    vhcas: u16,
    /// Keys that are memory windows.
    windows: usize,
}

fn check_range(attr: &MkeyAttr) -> Result<(), NicError> {
    // The end may be 2^64 itself, so the last byte is what must exist.
    if attr.len == 0 || attr.start.checked_add(attr.len - 1).is_none() {
        return Err(NicError::MkeyRange { start: attr.start, len: attr.len });
    }
    Ok(())
}

impl Keys {
    /// None, and one virtual HCA. The first key of each index has the tag `first_tag`.
    pub(crate) fn new(first_tag: u8, first_vhca: u16) -> Self {
        Self {
            next_pd: 1,
            pds: BTreeMap::new(),
            slots: Vec::new(),
            free: VecDeque::new(),
            first_tag,
            first_vhca,
            vhcas: 1,
            windows: 0,
        }
    }

    /// The virtual HCA that every card has.
    pub(crate) fn first_vhca(&self) -> u16 {
        self.first_vhca
    }

    pub(crate) fn create_vhca(&mut self) -> Result<u16, NicError> {
        const LIMIT: u16 = 256;
        if self.vhcas >= LIMIT {
            return Err(NicError::TooManyVhcas { limit: LIMIT });
        }
        let id = self.first_vhca + self.vhcas;
        self.vhcas += 1;
        Ok(id)
    }

    /// Index of a virtual HCA, counted from the card's first one.
    pub(crate) fn index_of_vhca(&self, vhca: u16) -> Result<u16, NicError> {
        self.check_vhca(vhca)?;
        Ok(vhca - self.first_vhca)
    }

    fn check_vhca(&self, vhca: u16) -> Result<(), NicError> {
        let known = vhca.checked_sub(self.first_vhca).is_some_and(|index| index < self.vhcas);
        if known { Ok(()) } else { Err(NicError::UnknownVhca { vhca }) }
    }

    /// Makes a protection domain of a virtual HCA.
    pub(crate) fn alloc_pd(&mut self, vhca: u16) -> Result<u32, NicError> {
        self.check_vhca(vhca)?;
        let pd = self.next_pd;
        self.next_pd += 1;
        self.pds.insert(pd, Domain { users: 0, vhca });
        Ok(pd)
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
        check_range(&attr)?;
        self.insert(Kind::Memory(attr))
    }

    fn insert(&mut self, kind: Kind) -> Result<u32, NicError> {
        let pd = kind.pd();
        if !self.pds.contains_key(&pd) {
            return Err(NicError::UnknownPd { pd });
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() >= MAX_KEYS => return Err(NicError::TooManyKeys { limit: MAX_KEYS }),
            None => {
                self.slots.push(Slot { tag: self.first_tag, life: 0, kind: None, shared: None });
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
        self.check_unbound(key)?;
        let slot = &mut self.slots[index];
        slot.tag = slot.tag.wrapping_add(1);
        slot.life += 1;
        slot.shared = None;
        if let Some(kind) = slot.kind.take() {
            self.release_pd(kind.pd());
            self.windows -= usize::from(matches!(&kind, Kind::Umr(umr) if umr.is_window));
        }
        self.free.push_back(index);
        Ok(())
    }

    /// The slot that a key's index names, whatever its tag.
    fn index_of_any_tag(&self, key: u32) -> Option<usize> {
        let index = (key >> 8).checked_sub(FIRST_INDEX)? as usize;
        self.slots.get(index)?.kind.is_some().then_some(index)
    }

    fn index(&self, key: u32) -> Option<usize> {
        self.index_of_any_tag(key).filter(|&index| u32::from(self.slots[index].tag) == key & 0xFF)
    }

    fn kind(&self, key: u32) -> Option<&Kind> {
        self.slots[self.index(key)?].kind.as_ref()
    }

    pub(crate) fn attr(&self, key: u32) -> Option<&MkeyAttr> {
        match self.kind(key)? {
            Kind::Memory(attr) => Some(attr),
            Kind::Umr(_) | Kind::Alias(_) => None,
        }
    }

    /// Gives a key of a range of memory another range, protection domain or rights.
    pub(crate) fn change(&mut self, key: u32, attr: MkeyAttr) -> Result<(), NicError> {
        let index = self.index(key).ok_or(NicError::UnknownMkey { key })?;
        check_range(&attr)?;
        let vhca = self.vhca(attr.pd)?;
        let old = match &self.slots[index].kind {
            Some(Kind::Memory(old)) if self.vhca(old.pd) == Ok(vhca) => old.pd,
            _ => return Err(NicError::UnknownMkey { key }),
        };
        self.check_unbound(key)?;
        self.use_pd(attr.pd)?;
        self.release_pd(old);
        self.slots[index].kind = Some(Kind::Memory(attr));
        Ok(())
    }

    /// Windows that are bound to a region keep it.
    fn check_unbound(&self, key: u32) -> Result<(), NicError> {
        let bound = |slot: &&Slot| match &slot.kind {
            Some(Kind::Umr(umr)) => umr.is_window && !umr.free && umr.entries.iter().any(|entry| entry.key == key),
            _ => false,
        };
        // Most cards have no window.
        match if self.windows == 0 { 0 } else { self.slots.iter().filter(bound).count() } {
            0 => Ok(()),
            windows => Err(NicError::MkeyBound { key, windows }),
        }
    }

    pub(crate) fn create_umr(&mut self, pd: u32, max_entries: u32, is_window: bool) -> Result<u32, NicError> {
        if max_entries == 0 || max_entries > MAX_ENTRIES {
            return Err(NicError::UmrEntries { entries: max_entries, limit: MAX_ENTRIES });
        }
        let key = self.insert(Kind::Umr(UmrKey::new(pd, max_entries, is_window)))?;
        self.windows += usize::from(is_window);
        Ok(key)
    }

    /// The list that a UMR key is bound to; `None` if it is free, or not a UMR key.
    pub(crate) fn umr_entries(&self, key: u32) -> Option<&[KlmEntry]> {
        match self.kind(key)? {
            Kind::Umr(umr) if !umr.free => Some(&umr.entries),
            _ => None,
        }
    }

    /// Executes a UMR work request on the key that `key` names, by its index alone: the request may set the tag.
    pub(crate) fn bind(&mut self, key: u32, pd: u32, umr: &Umr) -> Result<(), WqeFault> {
        let index = self.index_of_any_tag(key).ok_or(WqeFault::operation(vendor::KEY_UNKNOWN))?;
        self.check_binding(index, umr)?;
        let slot = &mut self.slots[index];
        let Some(Kind::Umr(bound)) = &mut slot.kind else { return Err(WqeFault::operation(vendor::KEY_RIGHTS)) };
        bound.bind(pd, umr)?;
        slot.tag = umr.tag.unwrap_or(slot.tag);
        Ok(())
    }

    /// A window is bound to parts of regions of its protection domain that allow it, and that their own program may
    /// write if peers may.
    fn check_binding(&self, index: usize, umr: &Umr) -> Result<(), WqeFault> {
        let (Some(Kind::Umr(window)), Some(entries)) = (&self.slots[index].kind, &umr.entries) else { return Ok(()) };
        let changes = umr.granted.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let needed = Access::WINDOW_BIND | if changes { Access::LOCAL_WRITE } else { Access::empty() };
        let allowed = |entry: &KlmEntry| {
            self.attr(entry.key).is_some()
                && self.translate(entry.key, window.pd, entry.addr, entry.len.into(), needed).is_ok()
        };
        if window.is_window && !entries.iter().all(allowed) {
            return Err(WqeFault { syndrome: syndrome::WINDOW_BIND, vendor: vendor::KEY_RIGHTS });
        }
        Ok(())
    }

    /// Frees a bound UMR key. Ordinary keys and aliases are destroyed by command only.
    pub(crate) fn invalidate(&mut self, key: u32, pd: u32) -> Result<(), WqeFault> {
        let index = self.index(key).ok_or(WqeFault::operation(vendor::KEY_UNKNOWN))?;
        let Some(Kind::Umr(bound)) = &mut self.slots[index].kind else {
            return Err(WqeFault::operation(vendor::KEY_RIGHTS));
        };
        bound.invalidate(pd)
    }

    /// The key of this index with the tag that it has at present.
    pub(crate) fn key_of_index(&self, index: u32) -> Option<u32> {
        let key = index.checked_mul(1 << 8)?;
        let slot = self.index_of_any_tag(key)?;
        Some(key | u32::from(self.slots[slot].tag))
    }

    /// The same, if the key is one of this virtual HCA.
    pub(crate) fn key_of_index_on(&self, vhca: u16, index: u32) -> Option<u32> {
        let key = self.key_of_index(index)?;
        let pd = self.kind(key)?.pd();
        (self.vhca(pd) == Ok(vhca)).then_some(key)
    }

    pub(crate) fn share(&mut self, key: u32, token: Token) -> Result<(), NicError> {
        let index = self.index(key).ok_or(NicError::UnknownMkey { key })?;
        let slot = &mut self.slots[index];
        if matches!(slot.kind, Some(Kind::Alias(_))) {
            return Err(NicError::AliasOfAlias { key });
        }
        slot.shared = Some(token);
        Ok(())
    }

    pub(crate) fn revoke(&mut self, key: u32) -> Result<(), NicError> {
        let index = self.index(key).ok_or(NicError::UnknownMkey { key })?;
        self.slots[index].shared = None;
        Ok(())
    }

    pub(crate) fn create_alias(&mut self, attr: AliasAttr) -> Result<u32, NicError> {
        let AliasAttr { pd, target_vhca, target, token } = attr;
        let vhca = self.vhca(pd)?;
        self.check_vhca(target_vhca)?;
        if vhca == target_vhca {
            return Err(NicError::AliasOfOwn { key: target, vhca });
        }
        let index = self.index(target).ok_or(NicError::UnknownMkey { key: target })?;
        let slot = &self.slots[index];
        let owner = slot.kind.as_ref().map(Kind::pd).ok_or(NicError::UnknownMkey { key: target })?;
        if self.vhca(owner)? != target_vhca {
            return Err(NicError::UnknownMkey { key: target });
        }
        if slot.shared != Some(token) {
            return Err(NicError::NotShared { key: target, vhca: target_vhca });
        }
        let life = slot.life;
        self.insert(Kind::Alias(Alias { pd, target, life, token }))
    }
}
