//! Memory registrations that are kept for the next operation on the same buffer: registering pins pages and costs far
//! more than sending does.
//!
//! The cache does not see memory being freed. Whoever frees or unmaps memory that has been registered through it calls
//! [`RegistrationCache::invalidate`] first: otherwise a later buffer at the same address would be sent from pages that
//! are no longer its.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use flexio::Access;

/// Bytes of the own address space: at least one, and none beyond the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    address: u64,
    length: u64,
}

/// Bytes that cannot be registered.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// None.
    #[error("no bytes at {address:#x}: an empty buffer needs no registration")]
    Empty {
        /// Where.
        address: u64,
    },
    /// Beyond the end of the address space.
    #[error("{length} bytes at {address:#x} reach beyond the address space, by {} bytes", address.wrapping_add(*length))]
    Beyond {
        /// Where.
        address: u64,
        /// How many.
        length: u64,
    },
}

flexcast_error::debug_as_display!(RangeError);

impl Range {
    /// `length` bytes from `address` on.
    ///
    /// # Errors
    /// No bytes, or some beyond 2^64.
    pub const fn new(address: u64, length: u64) -> Result<Self, RangeError> {
        if length == 0 {
            return Err(RangeError::Empty { address });
        }
        match address.checked_add(length - 1) {
            Some(_) => Ok(Self { address, length }),
            None => Err(RangeError::Beyond { address, length }),
        }
    }

    /// Those of a slice; none if it is empty.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Self::new(bytes.as_ptr() as u64, bytes.len() as u64).ok()
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Number of bytes.
    #[must_use]
    pub const fn length(self) -> u64 {
        self.length
    }

    /// Address of the last byte.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.address + (self.length - 1)
    }

    /// Whether all of the other range is in this one.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.address <= other.address && other.last() <= self.last()
    }

    /// Whether the ranges have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.address <= other.last() && other.address <= self.last()
    }
}

/// How much a cache keeps. What is in use counts, but is never evicted: with more than this in use the limits are
/// exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Registrations.
    pub entries: usize,
    /// Bytes of them all.
    pub bytes: u64,
}

impl Default for Limits {
    /// 1024 registrations, without a limit on bytes.
    fn default() -> Self {
        Self { entries: 1024, bytes: u64::MAX }
    }
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Requests that a registration was there for.
    pub hits: u64,
    /// Requests that were registered, or failed to be.
    pub misses: u64,
    /// Registrations that made way for others.
    pub evictions: u64,
    /// Registrations that were invalidated.
    pub invalidations: u64,
    /// Registrations that are there.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// By address first: what contains a range begins at or before it.
type Key = (u64, u64, u32);

#[derive(Debug)]
struct Entry<R> {
    range: Range,
    rights: Access,
    object: R,
}

/// A registration in use. As long as it exists the registered object does, whatever becomes of the cache:
///
/// ```compile_fail,E0505
/// use flexcast::registration::{Limits, Range, RegistrationCache};
///
/// let mut cache = RegistrationCache::new(Limits::default());
/// let range = Range::new(4096, 64).unwrap();
/// let guard = cache.get(range, flexio::Access::LOCAL_WRITE, |_, _| Ok::<_, ()>("key 7".to_owned())).unwrap();
/// let object: &String = &guard;
/// drop(guard); // the object may be evicted from here on
/// println!("{object}");
/// ```
#[derive(Debug)]
pub struct Registration<R>(Arc<Entry<R>>);

impl<R> Registration<R> {
    /// What is registered: what was asked for, or more.
    #[must_use]
    pub fn range(&self) -> Range {
        self.0.range
    }

    /// What it allows: what was asked for, or more.
    #[must_use]
    pub fn rights(&self) -> Access {
        self.0.rights
    }
}

impl<R> Clone for Registration<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Deref for Registration<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.0.object
    }
}

#[derive(Debug)]
struct Slot<R> {
    entry: Arc<Entry<R>>,
    /// When it was used last, in requests.
    used: u64,
}

/// Registrations by address, length and rights; the least recently used make way for new ones.
///
/// ```
/// use flexcast::registration::{Limits, Range, RegistrationCache};
/// use flexio::Access;
///
/// let mut cache = RegistrationCache::new(Limits { entries: 64, bytes: 1 << 30 });
/// let register = |range: Range, _| Ok::<_, ()>(format!("key of {} bytes", range.length()));
/// let buffer = Range::new(0x1000, 4096).unwrap();
/// let first = cache.get(buffer, Access::LOCAL_WRITE | Access::REMOTE_READ, register).unwrap();
/// // Part of it, with fewer rights, is registered already.
/// let part = cache.get(Range::new(0x1800, 64).unwrap(), Access::REMOTE_READ, register).unwrap();
/// assert_eq!((first.as_str(), part.as_str()), ("key of 4096 bytes", "key of 4096 bytes"));
/// assert_eq!((cache.statistics().hits, cache.statistics().misses), (1, 1));
/// ```
#[derive(Debug)]
pub struct RegistrationCache<R> {
    limits: Limits,
    slots: BTreeMap<Key, Slot<R>>,
    /// Keys by the time of the last use.
    order: BTreeMap<u64, Key>,
    requests: u64,
    /// No registration has ever been longer.
    longest: u64,
    /// Of all registrations; ranges may overlap, so that it can exceed the address space.
    bytes: u128,
    statistics: CacheStatistics,
}

impl<R> RegistrationCache<R> {
    /// A cache without registrations.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: BTreeMap::new(),
            order: BTreeMap::new(),
            requests: 0,
            longest: 0,
            bytes: 0,
            statistics: CacheStatistics::default(),
        }
    }

    /// A registration of at least this range with at least these rights: one that is there, or a new one, made by
    /// `register`. Before that, registrations that are not in use are evicted as far as the limits ask for it, the
    /// least recently used first.
    ///
    /// # Errors
    /// That of `register`; then nothing is added.
    pub fn get<E>(
        &mut self,
        range: Range,
        rights: Access,
        register: impl FnOnce(Range, Access) -> Result<R, E>,
    ) -> Result<Registration<R>, E> {
        self.requests += 1;
        let key = (range.address, range.length, rights.bits());
        if let Some(key) = self.find(key, range, rights) {
            self.statistics.hits += 1;
            return Ok(self.take(key));
        }
        self.statistics.misses += 1;
        self.make_room(range.length);
        let entry = Arc::new(Entry { range, rights, object: register(range, rights)? });
        self.longest = self.longest.max(range.length);
        self.statistics.entries += 1;
        self.bytes += u128::from(range.length);
        self.slots.insert(key, Slot { entry: Arc::clone(&entry), used: self.requests });
        self.order.insert(self.requests, key);
        Ok(Registration(entry))
    }

    /// Memory in this range is about to be freed or unmapped: whatever covers a byte of it is not found any more, and
    /// gone if it is not in use. Gives the number of registrations that are still in use; they exist until their users
    /// let them go, and the memory must, too.
    pub fn invalidate(&mut self, range: Range) -> usize {
        // All that begin before its end; those that end before its beginning are left alone.
        let keys: Vec<Key> = self.slots.range(..=(range.last(), u64::MAX, u32::MAX)).map(|(key, _)| *key).collect();
        let mut in_use = 0;
        for key in keys {
            if self.slots.get(&key).is_some_and(|slot| slot.entry.range.overlaps(range)) {
                self.statistics.invalidations += 1;
                in_use += usize::from(self.remove(key).is_some_and(|entry| Arc::strong_count(&entry) > 1));
            }
        }
        in_use
    }

    /// Drops all registrations that are not in use, for instance because registering has failed for want of memory.
    /// Gives their number.
    pub fn trim(&mut self) -> usize {
        let unused: Vec<Key> = self.unused().collect();
        for key in &unused {
            self.remove(*key);
        }
        self.statistics.evictions += unused.len() as u64;
        unused.len()
    }

    /// What has been done, and what is there.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics { bytes: self.bytes.try_into().unwrap_or(u64::MAX), ..self.statistics }
    }

    /// The same registration, or one that covers what is asked for.
    fn find(&self, key: Key, range: Range, rights: Access) -> Option<Key> {
        if self.slots.contains_key(&key) {
            return Some(key);
        }
        self.slots
            .range(..=(range.address, u64::MAX, u32::MAX))
            .rev()
            // Further down even the longest would end too early.
            .take_while(|((address, ..), _)| address.saturating_add(self.longest - 1) >= range.last())
            .find(|(_, slot)| slot.entry.range.contains(range) && slot.entry.rights.contains(rights))
            .map(|(key, _)| *key)
    }

    /// A guard of a registration that is there, which is now the most recently used.
    fn take(&mut self, key: Key) -> Registration<R> {
        let slot = self.slots.get_mut(&key).expect("found just now");
        self.order.remove(&slot.used);
        slot.used = self.requests;
        self.order.insert(slot.used, key);
        Registration(Arc::clone(&slot.entry))
    }

    fn make_room(&mut self, bytes: u64) {
        while self.statistics.entries >= self.limits.entries
            || self.bytes + u128::from(bytes) > u128::from(self.limits.bytes)
        {
            let Some(oldest) = self.unused().next() else { return };
            self.remove(oldest);
            self.statistics.evictions += 1;
        }
    }

    /// Registrations that nobody holds, the least recently used first. Guards come from `&mut self` alone, or from
    /// other guards, so that none can appear for these.
    fn unused(&self) -> impl Iterator<Item = Key> + '_ {
        let free = |key: &&Key| self.slots.get(key).is_some_and(|slot| Arc::strong_count(&slot.entry) == 1);
        self.order.values().filter(free).copied()
    }

    fn remove(&mut self, key: Key) -> Option<Arc<Entry<R>>> {
        let slot = self.slots.remove(&key)?;
        self.order.remove(&slot.used);
        self.statistics.entries -= 1;
        self.bytes -= u128::from(slot.entry.range.length);
        Some(slot.entry)
    }
}

#[cfg(test)]
mod tests;
