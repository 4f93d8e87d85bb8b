//! Arrays in DPA memory that a context names: of contexts, which one thread owns, and of rows, which the host writes.

use core::marker::PhantomData;

use zerocopy::FromBytes;

use crate::abi::{ContextMemory, Layout, TableMemory};

/// An array of contexts that belong to the running thread alone, borrowed by way of the field that names it.
#[derive(Debug)]
pub struct ContextArray<'c, T> {
    base: *mut T,
    count: usize,
    owner: PhantomData<&'c mut T>,
}

impl<'c, T: Layout> ContextArray<'c, T> {
    /// The contexts that `memory` names; none if it names none, or its address is misaligned. As long as the array is
    /// in use, `memory`, which firmware cannot copy, leads nowhere else: contexts are borrowed exclusively.
    #[inline]
    #[must_use]
    pub fn attach(memory: &'c mut ContextMemory<T>) -> Self {
        let base = memory.address() as *mut T;
        let count = if base.is_null() || !base.is_aligned() { 0 } else { memory.count() as usize };
        Self { base, count, owner: PhantomData }
    }

    /// Number of contexts.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Context number `index`.
    #[inline(always)]
    #[must_use]
    pub fn get(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.count {
            return None;
        }
        // SAFETY: inside the array that the host allocated for the owner of the borrowed field, aligned, with values of
        // `T`, whose layout is in the hash that the host compared; the borrow of `self` keeps it the only reference.
        // Nobody else writes it while the thread runs: what the host rewrites is behind `HostLine`s.
        Some(unsafe { &mut *self.base.add(index) })
    }

    /// All contexts, one after the other.
    #[inline(always)]
    pub fn iter_mut(&mut self) -> core::slice::IterMut<'_, T> {
        if self.count == 0 {
            return [].iter_mut();
        }
        // SAFETY: as in `get`, for all of them.
        unsafe { core::slice::from_raw_parts_mut(self.base, self.count) }.iter_mut()
    }
}

/// A table that the host wrote, read row by row. Rows are plain bytes: whatever the host has written by now is one.
#[derive(Clone, Copy, Debug)]
pub struct Table<T> {
    base: *const T,
    rows: u32,
}

impl<T: FromBytes + Copy> Table<T> {
    /// The rows that `memory` names; none if it names none, or its address is misaligned.
    #[inline]
    #[must_use]
    pub fn attach(memory: &TableMemory<T>) -> Self {
        let base = memory.address() as *const T;
        let rows = if base.is_null() || !base.is_aligned() { 0 } else { memory.count() };
        Self { base, rows }
    }

    /// The first `rows` rows; fewer if there are not so many.
    #[inline]
    #[must_use]
    pub fn first(self, rows: u32) -> Self {
        Self { rows: self.rows.min(rows), ..self }
    }

    /// Number of rows.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.rows
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// A copy of row number `index`, loaded now.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<T> {
        // SAFETY: inside the table that the host allocated, aligned; volatile, because the host writes it.
        (index < self.rows).then(|| unsafe { self.base.add(index as usize).read_volatile() })
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    #[test]
    fn contexts_are_reached_one_at_a_time_and_none_beyond_the_end() {
        let mut memory = [1u64, 2, 3, 4];
        let mut named = ContextMemory::new(DeviceAddress::new(memory.as_mut_ptr() as u64), 3);
        let mut array = ContextArray::<u64>::attach(&mut named);
        *array.get(1).unwrap() += 10;
        assert!(array.get(3).is_none());
        assert_eq!(array.iter_mut().map(|word| *word).sum::<u64>(), 1 + 12 + 3);
        assert_eq!((array.len(), array.is_empty()), (3, false));
        assert_eq!(memory, [1, 12, 3, 4]);
    }

    #[test]
    fn null_and_misaligned_addresses_name_nothing() {
        for bad in [0u64, 4] {
            let address = DeviceAddress::new(bad);
            assert!(Table::<u64>::attach(&TableMemory::new(address, 5)).is_empty());
            let mut named = ContextMemory::new(address, 5);
            let mut array = ContextArray::<u64>::attach(&mut named);
            assert!(array.get(0).is_none() && array.is_empty() && array.iter_mut().next().is_none());
        }
    }

    #[test]
    fn rows_are_copies_and_end_where_the_memory_does() {
        let memory = [7u64, 8];
        let table = Table::<u64>::attach(&TableMemory::new(DeviceAddress::new(memory.as_ptr() as u64), 2));
        assert_eq!((table.get(0), table.get(1), table.get(2), table.len()), (Some(7), Some(8), None, 2));
        assert_eq!((table.first(1).get(1), table.first(u32::MAX).get(2), table.first(9).len()), (None, None, 2));
    }
}
