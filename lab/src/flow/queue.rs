//! Event queue: what happens when, in the order of time and, at the same time, in the order in which it was planned.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Entry<T> {
    at_ps: u64,
    number: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// The heap gives its greatest entry first: the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ps, other.number).cmp(&(self.at_ps, self.number))
    }
}

/// What is planned.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    planned: u64,
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }

    pub(crate) fn plan(&mut self, at_ps: u64, what: T) {
        self.planned += 1;
        self.heap.push(Entry { at_ps, number: self.planned, what });
    }

    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        self.heap.pop().map(|entry| (entry.at_ps, entry.what))
    }

    /// Events planned so far.
    pub(crate) const fn planned(&self) -> u64 {
        self.planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equals_in_their_order() {
        let mut queue = Queue::new();
        for (at_ps, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.plan(at_ps, what);
        }
        let all: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!((all, queue.planned()), (vec![(1, 'a'), (1, 'b'), (5, 'c'), (5, 'd')], 4));
    }
}
