//! Lists with an entry for each rank, and the pool that keeps their memory between operations.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of a communicator's lists. A clone is the same pool.
///
/// A list gives its memory back when it is dropped, however its operation has ended. So the pool never has more than
/// there were lists at once, and an operation allocates for its lists only while more are in use than ever before.
#[derive(Clone, Debug)]
pub(crate) struct ListPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Most entries of memory that is kept.
    ranks: usize,
    /// Memory that no list has.
    free: Mutex<Vec<Vec<u64>>>,
}

impl ListPool {
    /// A pool for lists of so many ranks.
    pub(crate) fn new(ranks: u32) -> Self {
        Self(Arc::new(Shared { ranks: ranks as usize, free: Mutex::default() }))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A list of these entries.
    pub(crate) fn list(&self, entries: impl IntoIterator<Item = u64>) -> List {
        // A statement of its own: new memory is allocated without the lock.
        let kept = self.free().pop();
        let mut list = kept.unwrap_or_else(|| Vec::with_capacity(self.0.ranks));
        list.extend(entries);
        List { entries: list, pool: self.clone() }
    }
}

/// A list, whose memory goes back to its pool.
pub(crate) struct List {
    entries: Vec<u64>,
    pool: ListPool,
}

impl List {
    /// The pool that it is of.
    pub(crate) const fn pool(&self) -> &ListPool {
        &self.pool
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.entries);
        memory.clear();
        // A caller may have given a list that is too long, which is refused.
        memory.shrink_to(self.pool.0.ranks);
        self.pool.free().push(memory);
    }
}

impl Clone for List {
    fn clone(&self) -> Self {
        self.pool.list(self.iter().copied())
    }
}

impl Deref for List {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.entries
    }
}

impl DerefMut for List {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.entries
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.fmt(f)
    }
}

impl PartialEq for List {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for List {}

#[cfg(test)]
impl From<Vec<u64>> for List {
    fn from(entries: Vec<u64>) -> Self {
        ListPool::new(entries.len() as u32).list(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_no_more_than_was_in_use_at_once() {
        let pool = ListPool::new(3);
        for _ in 0..5 {
            let first = pool.list([1, 2, 3]);
            let second = first.clone();
            assert_eq!((&*first, &second), (&[1, 2, 3][..], &first));
            assert!(pool.free().is_empty());
            drop(first);
            assert_eq!(&*pool.list([4]), [4], "nothing is left of the list before");
            drop(second);
            assert_eq!(pool.free().len(), 2);
        }
        let places: Vec<_> = pool.free().iter().map(|memory| memory.as_ptr()).collect();
        let lists = [pool.list([5; 3]), pool.list([6; 3])];
        assert!(lists.iter().all(|list| places.contains(&list.as_ptr())), "it is the same memory");
    }

    #[test]
    fn of_a_list_that_is_too_long_no_more_is_kept_than_ranks_need() {
        let pool = ListPool::new(3);
        drop(pool.list(0..1000));
        assert!(pool.free().iter().all(|memory| memory.capacity() == 3));
    }

    #[test]
    fn lists_outlive_who_has_made_them() {
        let list = List::from(vec![7, 8]);
        assert_eq!(list.pool().list(list.iter().map(|entry| entry + 1))[..], [8, 9]);
    }
}
