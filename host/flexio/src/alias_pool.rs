//! Aliases of a pool's keys at the function that uses them, and the queue pair whose work requests do.
//!
//! [`binding`](crate::binding) says how both sides work together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::addr::HostAddr;
use crate::binding::{Grant, Released};
use crate::device::ProtectionDomain;
use crate::dpa_qp::RemoteQp;
use crate::error::{Error, Result};
use crate::exported::{AliasKey, KeyExport};
use crate::memory::Access;
use crate::posting::{LocalSlice, SendKind, SendRequest};
use crate::queue_pair::{QueueDepths, QueuePair, Transport};
use crate::verbs::{Completion, CompletionQueue};

#[derive(Debug)]
struct Slot {
    alias: AliasKey,
    /// Number of the binding accepted last.
    number: u64,
}

/// Aliases of all keys of a [`BindingPool`](crate::BindingPool) of another function of the card, made once.
#[derive(Debug)]
pub struct AliasPool {
    slots: Mutex<Vec<Slot>>,
}

impl AliasPool {
    /// Makes an alias of each key in a protection domain: one control operation each, none later.
    ///
    /// # Errors
    /// As [`AliasKey::new`].
    pub fn new(pd: &ProtectionDomain, exports: &[KeyExport]) -> Result<Self> {
        let slot = |export: &KeyExport| Ok(Slot { alias: AliasKey::new(pd, export)?, number: 0 });
        Ok(Self { slots: Mutex::new(exports.iter().map(slot).collect::<Result<_>>()?) })
    }

    /// Takes a bound key into use. No control operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a key that the pool does not have; [`Error::BindingMismatch`] for a binding that was accepted before, or is older than one
    /// that was.
    pub fn accept(&self, grant: Grant) -> Result<BoundAlias> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = slots.len();
        let Some(known) = slots.get_mut(usize::from(grant.slot)) else {
            let limit = format!("below {keys}, the keys of the pool");
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
        let key = known.alias.key();
        Ok(BoundAlias(Arc::new(InUse { grant, key })))
    }
}

#[derive(Debug)]
struct InUse {
    grant: Grant,
    key: u32,
}

/// An alias that stands for a region of the other function, for work requests of an [`AliasQueue`]. It cannot be copied, and its key cannot be read: what uses
/// it is known.
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

    /// Work requests that use it and have not completed.
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

/// A reliable queue pair that posts one-sided requests and sends with bound aliases, and knows which aliases are in use. It takes no receives: their completions
/// could be mistaken for those of requests.
#[derive(Debug)]
pub struct AliasQueue {
    // Goes first: then nothing is in flight.
    queue_pair: QueuePair,
    cq: CompletionQueue,
    /// What requests use, by their ids, until they complete.
    used: Mutex<BTreeMap<u64, Arc<InUse>>>,
}

impl AliasQueue {
    /// Makes a queue pair for up to `requests` requests at a time, with a completion queue of its own.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, requests: u32) -> Result<Self> {
        let cq = CompletionQueue::new(pd.device(), requests)?;
        let depths = QueueDepths { send: requests, receive: 1 };
        let queue_pair = QueuePair::new(pd, Transport::Rc, &cq, &cq, depths)?;
        Ok(Self { queue_pair, cq, used: Mutex::default() })
    }

    /// Number of the queue pair, for its peer.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.queue_pair.qpn()
    }

    /// Connects it. Own packets are numbered from `first_psn`; the peer has the rights `access` on memory of this side, by keys that it is told.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn connect(&self, remote: &RemoteQp, first_psn: u32, access: Access) -> Result<()> {
        self.queue_pair.init(access, 0)?;
        self.queue_pair.connect(remote, first_psn)
    }

    /// Posts a request with `len` bytes at `offset` of a bound alias as its local memory. It completes visibly.
    ///
    /// # Errors
    /// [`Error::RegionRange`]; [`Error::OutOfRange`] for an id that a request in flight has; [`Error::Verbs`].
    pub fn post(&self, id: u64, kind: SendKind<'_>, alias: &BoundAlias, offset: u64, len: u32) -> Result<()> {
        let region_len = alias.len();
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > region_len) {
            return Err(Error::RegionRange { offset, len: len.into(), region: HostAddr(0), region_len });
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.contains_key(&id) {
            let limit = "one that no request in flight has".to_owned();
            return Err(Error::OutOfRange { what: "id of a work request", value: id, limit });
        }
        // A bound key is addressed from 0.
        let local = Some(LocalSlice { addr: HostAddr(offset), len, lkey: alias.0.key });
        self.queue_pair.post_send(&SendRequest { id, kind, local, immediate: None, signaled: true })?;
        used.insert(id, Arc::clone(&alias.0));
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
