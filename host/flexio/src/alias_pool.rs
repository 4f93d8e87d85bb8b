//! Aliases of a pool's keys at the function that uses them, and the queue pair whose work requests do.
//!
//! [`binding`](crate::binding) says how both sides work together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::addr::HostAddr;
use crate::binding::{Grant, MAX_POOL_KEYS, Released};
use crate::connection::Connection;
use crate::device::ProtectionDomain;
use crate::error::{Error, Result};
use crate::exported::{AliasKey, KeyExport};
use crate::memory::Access;
use crate::posting::{LocalSlice, SendKind, SendRequest};
use crate::queue_pair::{QueueDepths, QueuePair, Transport};
use crate::verbs::{Completion, CompletionQueue};

#[derive(Debug)]
struct Slot {
    /// None once the card has refused another one in its place.
    alias: Option<AliasKey>,
    /// Number of the binding accepted last.
    number: u64,
}

/// Aliases of all keys of a [`BindingPool`](crate::BindingPool) of another function of the card, made once.
#[derive(Debug)]
pub struct AliasPool {
    pd: ProtectionDomain,
    slots: Mutex<Vec<Slot>>,
}

impl AliasPool {
    /// Makes an alias of each key in a protection domain: one control operation each, none later.
    ///
    /// # Errors
    /// As [`AliasKey::new`].
    pub fn new(pd: &ProtectionDomain, exports: &[KeyExport]) -> Result<Self> {
        let pool = Self { pd: pd.clone(), slots: Mutex::default() };
        exports.iter().try_for_each(|export| pool.add(export).map(drop))?;
        Ok(pool)
    }

    /// Makes an alias of one more key: one control operation. Its place in the pool.
    ///
    /// # Errors
    /// As [`AliasKey::new`]; [`Error::OutOfRange`] for more than [`MAX_POOL_KEYS`] keys.
    pub fn add(&self, export: &KeyExport) -> Result<u16> {
        let mut slots = self.slots();
        let slot = slots.len() as u16;
        if slot >= MAX_POOL_KEYS {
            let limit = format!("at most {MAX_POOL_KEYS}");
            return Err(Error::OutOfRange { what: "keys of a pool", value: u64::from(slot) + 1, limit });
        }
        slots.push(Slot { alias: Some(AliasKey::new(&self.pd, export)?), number: 0 });
        Ok(slot)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys of the pool.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.slots().len()
    }

    /// The alias at a place, as the owner of the key and its peers name it. What uses it is not known here: whoever
    /// lets others use it holds an [`AliasUse`] until they have said that they do not any more.
    #[must_use]
    pub fn key(&self, slot: u16) -> Option<u32> {
        self.slots().get(usize::from(slot))?.alias.as_ref().map(AliasKey::key)
    }

    /// Takes a bound key into use. No control operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a key that the pool does not have; [`Error::BindingMismatch`] for a binding that was
    /// accepted before, or is older than one that was.
    pub fn accept(&self, grant: Grant) -> Result<BoundAlias> {
        let mut slots = self.slots();
        let keys = slots.len();
        let known = slots.get_mut(usize::from(grant.slot)).map(|slot| (slot.alias.as_ref().map(AliasKey::key), slot));
        let Some((Some(key), known)) = known else {
            let limit = format!("below {keys}, the keys of the pool, and have an alias");
            return Err(Error::OutOfRange { what: "place of a key in its pool", value: grant.slot.into(), limit });
        };
        if grant.number <= known.number {
            return Err(Error::BindingMismatch {
                what: "accepting a binding",
                slot: grant.slot,
                found: grant.number,
                expected: known.number + 1,
            });
        }
        known.number = grant.number;
        Ok(BoundAlias(Arc::new(InUse { grant, key })))
    }

    /// Gives a binding back that work requests may still use, of this function or of peers: its alias is destroyed, so
    /// that these fail, and another one is made in its place, with another number. Two control operations.
    ///
    /// With the binding comes the number of the new alias, or why there is none: then the key cannot be used any
    /// more.
    pub fn replace(&self, bound: BoundAlias) -> (Released, Result<u32>) {
        let Grant { slot, number, .. } = bound.0.grant;
        let mut slots = self.slots();
        let replaced = match slots.get_mut(usize::from(slot)) {
            Some(Slot { alias, .. }) => {
                // Before the old one goes, so that the new one has another number.
                let old = alias.take();
                let made = old.as_ref().map(|old| AliasKey::new(&self.pd, old.export()));
                drop(old);
                match made {
                    Some(Ok(new)) => Ok(alias.insert(new).key()),
                    Some(Err(error)) => Err(error),
                    None => Err(no_alias(slot)),
                }
            }
            None => Err(no_alias(slot)),
        };
        (Released { slot, number }, replaced)
    }
}

fn no_alias(slot: u16) -> Error {
    Error::OutOfRange {
        what: "place of a key in its pool",
        value: slot.into(),
        limit: "one that has an alias".to_owned(),
    }
}

#[derive(Debug)]
struct InUse {
    grant: Grant,
    key: u32,
}

/// An alias that stands for a region of the other function, for work requests of an [`AliasQueue`], or of others that
/// hold an [`AliasUse`]. It cannot be copied: what uses it is known.
#[derive(Debug)]
pub struct BoundAlias(Arc<InUse>);

impl BoundAlias {
    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.grant.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.grant.len == 0
    }

    /// Place of the key in its pool.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.0.grant.slot
    }

    /// Marks the alias as used by one more work request, or by something that stands for several, such as peers that
    /// were sent it: the binding is not released before what this gives is dropped.
    #[must_use]
    pub fn hold(&self) -> AliasUse {
        AliasUse(Arc::clone(&self.0))
    }

    /// Uses of it that are not over: work requests that have not completed, and [`AliasUse`]s.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Gives the binding back, for its owner to take; the alias itself comes back while work requests use it.
    ///
    /// # Errors
    /// The alias, while [`BoundAlias::in_flight`] is not 0: poll the queue, or drop it.
    pub fn release(self) -> std::result::Result<Released, Self> {
        match Arc::try_unwrap(self.0) {
            Ok(InUse { grant: Grant { slot, number, .. }, .. }) => Ok(Released { slot, number }),
            Err(used) => Err(Self(used)),
        }
    }
}

/// One use of a bound alias, for work requests of any queue pair of its domain. Keep it until the work request has
/// completed, or its queue pair is destroyed: the binding is not released before.
#[derive(Debug)]
pub struct AliasUse(Arc<InUse>);

impl AliasUse {
    /// Number of the alias.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.0.key
    }

    /// `len` bytes at `offset` of the region as local memory of a work request.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn slice(&self, offset: u64, len: u32) -> Result<LocalSlice> {
        let region_len = self.0.grant.len;
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > region_len) {
            return Err(Error::RegionRange { offset, len: len.into(), region: HostAddr(0), region_len });
        }
        // A bound key is addressed from 0.
        Ok(LocalSlice { addr: HostAddr(offset), len, lkey: self.0.key })
    }
}

/// A reliable queue pair that posts one-sided requests and sends with bound aliases, and knows which aliases are in
/// use. It takes no receives: their completions could be mistaken for those of requests.
#[derive(Debug)]
pub struct AliasQueue {
    // Goes first: then nothing is in flight.
    queue_pair: QueuePair,
    cq: CompletionQueue,
    /// What requests use, by their ids, until they complete.
    used: Mutex<BTreeMap<u64, AliasUse>>,
}

impl AliasQueue {
    /// Makes a queue pair for up to `requests` requests at a time, with a completion queue of its own.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, requests: u32) -> Result<Self> {
        let cq = CompletionQueue::new(pd.device(), requests)?;
        let depths = QueueDepths { send: requests, receive: 1 };
        let queue_pair = QueuePair::builder(pd, Transport::Rc, depths).build(&cq, &cq)?;
        Ok(Self { queue_pair, cq, used: Mutex::default() })
    }

    /// Number of the queue pair, for its peer.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.queue_pair.qpn()
    }

    /// Connects it. The peer has the rights `access` on memory of this side, by keys that it gets from this side.
    ///
    /// # Errors
    /// As [`QueuePair::connect`].
    pub fn connect(&self, connection: &Connection, access: Access) -> Result<()> {
        self.queue_pair.init(access, 0)?;
        self.queue_pair.connect(connection)
    }

    /// Posts a request with `len` bytes at `offset` of a bound alias as its local memory. It completes visibly.
    ///
    /// # Errors
    /// [`Error::RegionRange`]; [`Error::OutOfRange`] for an id that a request in flight has; [`Error::Verbs`].
    pub fn post(&self, id: u64, kind: SendKind<'_>, alias: &BoundAlias, offset: u64, len: u32) -> Result<()> {
        let held = alias.hold();
        let local = Some(held.slice(offset, len)?);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.contains_key(&id) {
            let limit = "one that no request in flight has".to_owned();
            return Err(Error::OutOfRange { what: "id of a work request", value: id, limit });
        }
        self.queue_pair.post_send(&SendRequest { id, kind, local, immediate: None, signaled: true })?;
        used.insert(id, held);
        Ok(())
    }

    /// Takes what has completed, failures included: their aliases are not in use by them any more.
    ///
    /// # Errors
    /// [`Error::Verbs`] when the queue itself has failed.
    pub fn poll(&self) -> Result<Vec<Completion>> {
        // Nothing is posted between a completion and its removal, or the same id could be.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.cq.poll()?;
        for completion in &done {
            used.remove(&completion.id);
        }
        Ok(done)
    }

    /// An error for a completion that failed.
    ///
    /// # Errors
    /// [`Error::Completion`].
    pub fn check(&self, completion: &Completion, what: &str) -> Result<()> {
        self.cq.check(completion, what)
    }
}
