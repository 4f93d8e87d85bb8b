//! The allocator of a process's DPA heap: first fit over a free list, 64-byte granules, deterministic.

use std::collections::BTreeMap;

use crate::dpa::layout::HEAP;
use crate::error::MachineError;

/// Every allocation starts on a cache line and fills whole lines, so that two of them never share one.
pub(crate) const GRANULE: u64 = 64;

/// The allocation state; the bytes live in [`crate::dpa::memory::ProcessMemory`].
#[derive(Debug)]
pub struct Heap {
    limit: u64,
    allocated: u64,
    requested: u64,
    free: BTreeMap<u64, u64>,
    live: BTreeMap<u64, (u64, u64)>,
    /// Given back, but of use to a queue still: nobody gets it.
    held: BTreeMap<u64, u64>,
}

/// What `flexio_process_mem_info_get` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapInfo {
    /// First device address of the heap.
    pub base: u64,
    /// Bytes in all.
    pub size: u64,
    /// Bytes asked for by live allocations.
    pub requested: u64,
    /// Bytes taken by live allocations, whole lines.
    pub allocated: u64,
}

impl Heap {
    /// An empty heap of `limit` bytes (rounded down to whole lines).
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let limit = limit / GRANULE * GRANULE;
        let free = if limit > 0 { BTreeMap::from([(HEAP, limit)]) } else { BTreeMap::new() };
        Heap { limit, allocated: 0, requested: 0, free, live: BTreeMap::new(), held: BTreeMap::new() }
    }

    /// Takes `bytes` (zero is one line, so that every allocation has an address of its own).
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, MachineError> {
        let full = MachineError::HeapFull { bytes, allocated: self.allocated, limit: self.limit };
        let Some(size) = bytes.max(1).checked_next_multiple_of(GRANULE) else { return Err(full) };
        let Some((addr, hole)) = self.free.iter().find(|&(_, &len)| len >= size).map(|(&a, &l)| (a, l)) else {
            return Err(full);
        };
        self.free.remove(&addr);
        if hole > size {
            self.free.insert(addr + size, hole - size);
        }
        self.live.insert(addr, (size, bytes));
        self.allocated += size;
        self.requested += bytes;
        Ok(addr)
    }

    /// Gives an allocation back and joins it with its free neighbours; gives the bytes that it took, whole lines.
    pub fn free(&mut self, addr: u64) -> Result<u64, MachineError> {
        let size = self.hold(addr)?;
        self.release(addr);
        Ok(size)
    }

    /// Ends an allocation as [`Heap::free`] does, but nobody gets its memory until it is released.
    pub(crate) fn hold(&mut self, addr: u64) -> Result<u64, MachineError> {
        let (size, bytes) = self.live.remove(&addr).ok_or(MachineError::NotAllocated { addr })?;
        self.allocated -= size;
        self.requested -= bytes;
        self.held.insert(addr, size);
        Ok(size)
    }

    /// First address and length of what is held.
    pub(crate) fn held(&self) -> Vec<(u64, u64)> {
        self.held.iter().map(|(&addr, &size)| (addr, size)).collect()
    }

    /// Bytes of an allocation, whole lines; 0 if there is none at the address.
    pub(crate) fn size_at(&self, addr: u64) -> u64 {
        self.live.get(&addr).map_or(0, |(size, _)| *size)
    }

    /// Lets go of memory that was held, and joins it with its free neighbours.
    pub(crate) fn release(&mut self, addr: u64) {
        let Some(mut size) = self.held.remove(&addr) else { return };
        let mut start = addr;
        if let Some(next) = self.free.remove(&(addr + size)) {
            size += next;
        }
        if let Some((&before, &len)) = self.free.range(..addr).next_back()
            && before + len == addr
        {
            self.free.remove(&before);
            start = before;
            size += len;
        }
        self.free.insert(start, size);
    }

    /// First address and length of each allocation, whole lines, by ascending address.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        self.live.iter().map(|(&addr, &(size, _))| (addr, size))
    }

    /// Totals.
    #[must_use]
    pub fn info(&self) -> HeapInfo {
        HeapInfo { base: HEAP, size: self.limit, requested: self.requested, allocated: self.allocated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_never_overlap_and_come_back() {
        let mut heap = Heap::new(1024);
        let a = heap.alloc(1).unwrap();
        let b = heap.alloc(65).unwrap();
        let c = heap.alloc(0).unwrap();
        assert_eq!((a, b, c), (HEAP, HEAP + 64, HEAP + 192));
        assert_eq!(heap.info(), HeapInfo { base: HEAP, size: 1024, requested: 66, allocated: 256 });
        assert!(matches!(heap.alloc(769), Err(MachineError::HeapFull { bytes: 769, .. })));
        assert!(matches!(heap.alloc(u64::MAX), Err(MachineError::HeapFull { .. })));
        heap.free(b).unwrap();
        assert!(matches!(heap.free(b), Err(MachineError::NotAllocated { .. })));
        assert_eq!(heap.alloc(128).unwrap(), b);
        assert_eq!((heap.hold(a).unwrap(), heap.size_at(a), heap.held()), (64, 0, vec![(a, 64)]));
        assert!(heap.alloc(1024 - 192).is_err() && heap.free(a).is_err(), "it is nobody's");
        heap.release(a);
        assert_eq!(heap.alloc(64).unwrap(), a);
        for addr in [a, b, c] {
            heap.free(addr).unwrap();
        }
        assert_eq!(heap.alloc(1024).unwrap(), HEAP);
    }
}
