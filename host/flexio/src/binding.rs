//! Keys that work requests bind to memory: a pool of them at the host, whose aliases the Arm cores make once.
//!
//! Exporting a region key by key costs control operations of both functions for each registration (see
//! [`ExportedRegion`](crate::ExportedRegion)). Here they are paid once per key of the pool: each is a key over other
//! keys, made empty and marked accessible, and the other function makes its alias. From then on a region is registered
//! at the host alone, as always, and one work request of the host binds a key of the pool to the region's key. The
//! alias stands for the region at once, without a control operation of the other function.
//!
//! A key has one binding at a time, and the other function may have posted work requests that use it. So a key is not
//! bound again before the other function has given the binding back, and it gives back only what no work request of it
//! uses any more:
//!
//! ```text
//! host                                        Arm cores
//! BindingPool::new ─ exports (once) ────────▶ AliasPool::new
//! BindingPool::bind ─▶ Binding + Grant ─────▶ AliasPool::accept ─▶ BoundAlias
//!                                             AliasQueue::post(BoundAlias) … AliasQueue::poll
//! Binding::release ◀──────────── Released ─── BoundAlias::release, refused while requests are in flight
//! ```
//!
//! [`Grant`] and [`Released`] cannot be copied, and whoever takes one uses it up. Between processes they travel as
//! bytes ([`Grant::encode`]), or as fields of other messages ([`Grant::received`], [`Released::received`]). Those can
//! be sent twice, or made up: they have the number of the binding, and an old or repeated one is refused. A made-up one
//! never opens memory that the owner has not bound: the card checks each access against the binding that there is. It
//! can make work requests of the other function fail, or meet the region that a key is bound to next.
//!
//! Where work requests of other queue pairs than an [`AliasQueue`](crate::AliasQueue) use the alias, each holds an
//! [`AliasUse`](crate::AliasUse) until it has completed.
//!
//! Source: rdma-core's manual pages mlx5dv_create_mkey(3) and mlx5dv_wr_mr_list(3), and its mlx5 provider: a bound key
//! is addressed from 0.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs_sys as sys;

use crate::connection::{Connection, RemoteQp};
use crate::device::{Device, ProtectionDomain, non_null, verbs_ok, warn_unless_ok};
use crate::error::{Error, Refused, Result};
use crate::exported::{AccessKey, KeyExport, allow};
use crate::memory::{Access, MemoryRegion};
use crate::queue_pair::QueuePair;
use crate::raw::Raw;
use crate::verbs::CompletionQueue;
use crate::wait::Bound;

/// Bytes of an encoded [`Grant`] or [`Released`].
pub const GRANT_BYTES: usize = 32;
/// First bytes of an encoded [`Grant`]: its kind, and version 1.
const GRANT: u32 = u32::from_le_bytes(*b"FKG\x01");
/// The same of a [`Released`].
const RELEASED: u32 = u32::from_le_bytes(*b"FKR\x01");
/// Most keys of a pool.
pub const MAX_POOL_KEYS: u16 = 4096;

/// A key that is bound, as its owner announces it to the function that has its alias. Used up by
/// [`AliasPool::accept`](crate::AliasPool::accept).
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    pub(crate) slot: u16,
    pub(crate) number: u64,
    pub(crate) len: u64,
}

/// A binding that the other function uses no more. Used up by [`Binding::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct Released {
    pub(crate) slot: u16,
    pub(crate) number: u64,
}

fn encode(magic: u32, slot: u16, number: u64, len: u64) -> [u8; GRANT_BYTES] {
    let mut out = [0; GRANT_BYTES];
    out[..4].copy_from_slice(&magic.to_le_bytes());
    out[4..6].copy_from_slice(&slot.to_le_bytes());
    out[8..16].copy_from_slice(&number.to_le_bytes());
    out[16..24].copy_from_slice(&len.to_le_bytes());
    out
}

/// Slot, number of the binding, and length.
fn decode(magic: u32, bytes: &[u8]) -> Result<(u16, u64, u64)> {
    let bad = |what, found, limit: String| Err(Error::BadDescription { what, found, limit });
    let Ok(bytes) = <&[u8; GRANT_BYTES]>::try_from(bytes) else {
        return bad("length", bytes.len() as u64, format!("{GRANT_BYTES} bytes"));
    };
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    if word(0) as u32 != magic {
        return bad("kind and version", u64::from(word(0) as u32), format!("{magic:#x}"));
    }
    if word(0) >> 48 != 0 || word(24) != 0 {
        return bad("reserved bytes", word(0) >> 48 | word(24), "0".to_owned());
    }
    Ok(((word(0) >> 32) as u16, word(8), word(16)))
}

impl Grant {
    /// A grant that has come in a message of another format. [`AliasPool::accept`](crate::AliasPool::accept) refuses a
    /// key that its pool does not have, and a number that is not above those accepted before; the card refuses accesses
    /// beyond the region that is bound.
    #[must_use]
    pub fn received(slot: u16, number: u64, len: u64) -> Self {
        Self { slot, number, len }
    }

    /// Place of the key in its pool.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Number of the binding; the first of a key is 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of the region. Under the alias they have addresses from 0 on.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always `false`; present because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The grant in bytes, little-endian, for another process: kind and version (4), place (2), 2 of zero, number of
    /// the binding (8), length (8), 8 of zero.
    #[must_use]
    pub fn encode(self) -> [u8; GRANT_BYTES] {
        encode(GRANT, self.slot, self.number, self.len)
    }

    /// What bytes of [`Grant::encode`] say.
    ///
    /// # Errors
    /// [`Error::BadDescription`] names the field.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (slot, number, len) = decode(GRANT, bytes)?;
        Ok(Self { slot, number, len })
    }
}

impl Released {
    /// A release that has come in a message of another format. [`Binding::release`] refuses one of another key or
    /// binding, and frees the key at the card: work requests that use it all the same fail from then on, or meet the
    /// region that the key is bound to next.
    #[must_use]
    pub fn received(slot: u16, number: u64) -> Self {
        Self { slot, number }
    }

    /// The same in bytes, as [`Grant::encode`], with a length of 0.
    #[must_use]
    pub fn encode(self) -> [u8; GRANT_BYTES] {
        encode(RELEASED, self.slot, self.number, 0)
    }

    /// What bytes of [`Released::encode`] say.
    ///
    /// # Errors
    /// [`Error::BadDescription`] names the field.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (slot, number, _) = decode(RELEASED, bytes)?;
        Ok(Self { slot, number })
    }
}

/// A key over other keys, until this is dropped.
#[derive(Debug)]
struct IndirectKey {
    device: Device,
    raw: Raw<sys::mlx5dv_mkey>,
}

impl IndirectKey {
    fn new(pd: &ProtectionDomain) -> Result<Self> {
        let mut attr = sys::mlx5dv_mkey_init_attr {
            pd: pd.raw(),
            create_flags: sys::MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT,
            max_entries: 1,
        };
        // SAFETY: the structure is initialised, with a live domain.
        let raw = unsafe { (pd.device().provider().verbs().mlx5dv_create_mkey)(&raw mut attr) };
        let raw = non_null("mlx5dv_create_mkey", raw, || "a key over one other key".to_owned())?;
        Ok(Self { device: pd.device().clone(), raw })
    }

    fn key(&self) -> u32 {
        // SAFETY: the key is live; the library filled the field and never changes it.
        unsafe { (*self.raw.as_ptr()).lkey }
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed only here.
        let errno = unsafe { (self.device.provider().verbs().mlx5dv_destroy_mkey)(self.raw.as_ptr()) };
        warn_unless_ok("mlx5dv_destroy_mkey", errno);
    }
}

#[derive(Debug)]
struct Slot {
    key: IndirectKey,
    /// Number of its latest binding; the first is 1.
    number: u64,
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Keys that are not bound again, because nobody knows whether they are in use.
    retired: usize,
    /// Of the work request posted last.
    next_id: u64,
}

#[derive(Debug)]
struct Shared {
    // The queue pair goes before the keys.
    queue_pair: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    state: Mutex<State>,
}

/// Keys of a function that work requests bind to its memory, one region each. A clone is the same pool.
#[derive(Clone, Debug)]
pub struct BindingPool(Arc<Shared>);

/// A region that a key of a pool is bound to. The region cannot be used otherwise until the binding is given back.
///
/// Dropping it instead frees the key at the card, so that later accesses by the alias fail, and ends the region's
/// registration; the key is not bound again, since work requests of the other function may still name it.
#[derive(Debug)]
pub struct Binding {
    // Goes first: the key stands for the region as long as it is bound.
    held: HeldKey,
    region: MemoryRegion,
}

/// A key that is bound, until it is freed.
#[derive(Debug)]
struct HeldKey {
    pool: BindingPool,
    slot: u16,
    number: u64,
    freed: bool,
}

impl BindingPool {
    /// Makes `keys` empty keys, marks each accessible to whoever knows the access key, and connects a queue pair with
    /// itself to bind them. Two control operations for each key, and some for the queue pair; none later.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a pool of no key or of more than [`MAX_POOL_KEYS`]; [`Error::Verbs`],
    /// [`Error::Command`].
    pub fn new(pd: &ProtectionDomain, keys: u16, access_key: AccessKey) -> Result<(Self, Vec<KeyExport>)> {
        if !(1..=MAX_POOL_KEYS).contains(&keys) {
            let limit = format!("1 to {MAX_POOL_KEYS}");
            return Err(Error::OutOfRange { what: "keys of a pool", value: keys.into(), limit });
        }
        let device = pd.device();
        // One at a time is bound or freed.
        let cq = CompletionQueue::new(device, 4)?;
        let queue_pair = QueuePair::that_binds(pd, &cq, 2)?;
        queue_pair.init(Access::empty(), 0)?;
        let (gid, mac) = (device.port().gid, device.info().mac);
        queue_pair.connect(&Connection::to(RemoteQp { qpn: queue_pair.qpn(), gid, mac, first_psn: 0 }))?;
        let (card, vhca) = (device.system_image_guid()?, device.vhca_id()?);
        let (mut slots, mut exports) = (Vec::new(), Vec::new());
        for _ in 0..keys {
            let key = IndirectKey::new(pd)?;
            allow(device, key.key(), &access_key)?;
            let access = Access::empty();
            exports.push(KeyExport { card, vhca, key: key.key(), addr: 0, len: 0, access, access_key });
            slots.push(Slot { key, number: 0 });
        }
        let state = State { slots, free: (0..keys).rev().collect(), retired: 0, next_id: 0 };
        let shared = Shared { queue_pair, cq, pd: pd.clone(), state: Mutex::new(state) };
        Ok((Self(Arc::new(shared)), exports))
    }

    /// Keys of the pool.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.state().slots.len()
    }

    /// Keys that are not bound and may be.
    #[must_use]
    pub fn free(&self) -> usize {
        self.state().free.len()
    }

    /// Takes a key that is not bound out of the pool: one that the other function has no alias of. It is not bound
    /// again. False if it is bound, or was taken out before.
    pub fn retire(&self, slot: u16) -> bool {
        let mut state = self.state();
        let before = state.free.len();
        state.free.retain(|free| *free != slot);
        let taken = before - state.free.len();
        state.retired += taken;
        taken > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a key to a region, with the region's rights, by one work request, and waits until the card has carried it
    /// out: other bindings wait meanwhile. No control operation.
    ///
    /// # Errors
    /// The region comes back with [`Error::NoFreeKey`]; [`Error::Foreign`] for a region of another protection domain;
    /// [`Error::OutOfRange`] for one of 4 GiB and more; [`Error::Verbs`], [`Error::Completion`] and [`Error::Timeout`],
    /// after which the key is not used again.
    pub fn bind(
        &self,
        region: MemoryRegion,
        bound: Bound,
    ) -> std::result::Result<(Binding, Grant), Refused<MemoryRegion>> {
        match self.bind_to(&region, bound) {
            Ok(grant) => {
                let Grant { slot, number, .. } = grant;
                let held = HeldKey { pool: self.clone(), slot, number, freed: false };
                Ok((Binding { held, region }, grant))
            }
            Err(error) => Err(Refused::new(region, error)),
        }
    }

    fn bind_to(&self, region: &MemoryRegion, bound: Bound) -> Result<Grant> {
        if !region.pd().is_same(&self.0.pd) {
            return Err(Error::Foreign { what: "memory region", parent: "protection domain" });
        }
        let len = region.len() as u64;
        let Ok(length) = u32::try_from(len) else {
            let limit = format!("at most {} for one entry of a key's list: bind parts of it", u32::MAX);
            return Err(Error::OutOfRange { what: "length of a memory region", value: len, limit });
        };
        let mut state = self.state();
        let State { slots, free, retired, .. } = &mut *state;
        let Some(slot) = free.pop() else {
            return Err(Error::NoFreeKey { keys: slots.len(), retired: *retired });
        };
        let raw = slots[usize::from(slot)].key.raw;
        let mut entry = sys::ibv_sge { addr: region.addr().get(), length, lkey: region.lkey() };
        let add = |extended: *mut sys::ibv_qp_ex| {
            // SAFETY: the extended interface of a live queue pair.
            let direct = unsafe { (self.0.pd.device().provider().verbs().mlx5dv_qp_ex_from_ibv_qp_ex)(extended) };
            // SAFETY: if not null, the interface of the same queue pair; the key is live, and the list has one entry.
            !direct.is_null()
                && unsafe { sys::inline::wr_mr_list(direct, raw.as_ptr(), region.access().bits(), &raw mut entry, 1) }
        };
        let carried_out = self.carry_out(&mut state, add, "binding of a key", bound);
        if carried_out.is_err() {
            // The card may carry it out later.
            state.retired += 1;
        }
        carried_out?;
        let number = &mut state.slots[usize::from(slot)].number;
        *number += 1;
        Ok(Grant { slot, number: *number, len })
    }

    /// Frees a bound key: every access through its alias is refused from now on.
    fn unbind(&self, state: &mut State, slot: u16, bound: Bound) -> Result<()> {
        let key = state.slots[usize::from(slot)].key.key();
        // SAFETY: the extended interface of a live queue pair with a batch that this thread has begun.
        let add = |extended: *mut sys::ibv_qp_ex| unsafe { sys::inline::wr_local_inv(extended, key) };
        self.carry_out(state, add, "freeing of a key", bound)
    }

    /// Posts one request, and waits until it has completed.
    fn carry_out(
        &self,
        state: &mut State,
        add: impl FnOnce(*mut sys::ibv_qp_ex) -> bool,
        what: &str,
        bound: Bound,
    ) -> Result<()> {
        let Shared { queue_pair, cq, pd, .. } = &*self.0;
        state.next_id += 1;
        let id = state.next_id;
        let provider = pd.device().provider();
        {
            let verbs = provider.verbs();
            // SAFETY: the queue pair is live.
            let extended = NonNull::new(unsafe { (verbs.ibv_qp_to_qp_ex)(queue_pair.raw()) });
            let unsupported = || {
                let detail = "the library has no call that binds keys: rdma-core 28 or later has".to_owned();
                let errno = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
                Error::Verbs { call: "mlx5dv_wr_mr_list", errno, detail }
            };
            let extended = extended.ok_or_else(unsupported)?.as_ptr();
            // SAFETY: the extended interface of a live queue pair. Nobody else posts: the caller holds the state's
            // lock.
            unsafe {
                if !sys::inline::wr_start(extended) {
                    return Err(unsupported());
                }
                (*extended).wr_id = id;
                (*extended).wr_flags = sys::IBV_SEND_INLINE | sys::IBV_SEND_SIGNALED;
                if !add(extended) {
                    sys::inline::wr_abort(extended);
                    return Err(unsupported());
                }
                let errno = sys::inline::wr_complete(extended);
                verbs_ok("ibv_wr_complete", errno, || what.to_owned())?;
            }
        }
        provider.wait(bound, what, || {
            let done = cq.poll()?;
            // Requests that timed out before may complete as well.
            let own = done.iter().find(|completion| completion.id == id);
            own.map(|completion| cq.check(completion, what)).transpose()
        })
    }
}

impl Binding {
    /// The region, whose bytes the other function's work requests may read and write at any time.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Place of the key in its pool.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.held.slot
    }

    /// Number of the binding.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.held.number
    }

    /// Ends the binding without the other function's word, such as when that is gone: the key is freed by one work
    /// request, and every later access through its alias fails. The key is not bound again, since work requests may
    /// still name it.
    ///
    /// # Errors
    /// The binding comes back with [`Error::Verbs`], [`Error::Completion`] or [`Error::Timeout`] if the card does not
    /// free the key.
    pub fn end(self, bound: Bound) -> std::result::Result<MemoryRegion, Refused<Self>> {
        let Self { mut held, region } = self;
        match held.free(bound) {
            Ok(()) => Ok(region),
            Err(error) => Err(Refused::new(Self { held, region }, error)),
        }
    }

    /// Takes the binding back that the other function has released: the key is freed by one work request, and may be
    /// bound again; the region is the caller's. No control operation.
    ///
    /// # Errors
    /// The binding comes back with [`Error::BindingMismatch`] if `released` is of another binding, and with
    /// [`Error::Verbs`], [`Error::Completion`] or [`Error::Timeout`] if the card does not free the key.
    pub fn release(self, released: Released, bound: Bound) -> std::result::Result<MemoryRegion, Refused<Self>> {
        let Self { mut held, region } = self;
        match held.release(&released, bound) {
            Ok(()) => Ok(region),
            Err(error) => Err(Refused::new(Self { held, region }, error)),
        }
    }
}

impl HeldKey {
    fn release(&mut self, released: &Released, bound: Bound) -> Result<()> {
        let Released { slot, number } = *released;
        if (slot, number) != (self.slot, self.number) {
            return Err(Error::BindingMismatch {
                what: "releasing a binding",
                slot,
                found: number,
                expected: self.number,
            });
        }
        let mut state = self.pool.state();
        self.pool.unbind(&mut state, self.slot, bound)?;
        state.free.push(self.slot);
        self.freed = true;
        Ok(())
    }
}

impl HeldKey {
    fn free(&mut self, bound: Bound) -> Result<()> {
        let mut state = self.pool.state();
        self.pool.unbind(&mut state, self.slot, bound)?;
        state.retired += 1;
        self.freed = true;
        Ok(())
    }
}

impl Drop for HeldKey {
    fn drop(&mut self) {
        /// A card frees a key within microseconds.
        const DROP_BOUND: Bound = Bound::millis(10).with_polls(1_000_000);
        if self.freed {
            return;
        }
        let mut state = self.pool.state();
        state.retired += 1;
        if let Err(error) = self.pool.unbind(&mut state, self.slot, DROP_BOUND) {
            tracing::warn!(%error, slot = self.slot, "a bound key could not be freed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_and_releases_go_there_and_back() {
        let bytes = Grant { slot: 0x102, number: 7, len: 0x3000 }.encode();
        assert_eq!(bytes[..12], [b'F', b'K', b'G', 1, 2, 1, 0, 0, 7, 0, 0, 0]);
        assert_eq!(Grant::decode(&bytes).expect("as encoded"), Grant { slot: 0x102, number: 7, len: 0x3000 });
        let bytes = Released { slot: 3, number: 9 }.encode();
        assert_eq!(Released::decode(&bytes).expect("as encoded"), Released { slot: 3, number: 9 });
        assert!(Grant::decode(&bytes).expect_err("another kind").to_string().starts_with("kind and version 0x1524b46"));
        let mut bytes = Grant { slot: 0, number: 1, len: 1 }.encode();
        bytes[31] = 1;
        assert!(Grant::decode(&bytes).expect_err("reserved").to_string().starts_with("reserved bytes"));
        assert!(Released::decode(&bytes[..31]).expect_err("short").to_string().starts_with("length 0x1f"));
    }
}
