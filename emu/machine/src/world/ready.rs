//! Threads that are ready to run, in order of their clocks.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::dpa::process::Process;
use crate::dpa::thread::Thread;
use crate::near;

/// A thread's clock in cycles, its card and its number: threads run in this order.
pub(crate) type Turn = (u64, usize, u32);

/// Threads that are ready, the earliest first.
///
/// Hundreds of cards run threads side by side, and what happens on any of them ends the slices of all: a slice is a few
/// instructions long, so that finding the next thread must cost less than they do. A thread that runs leaves its place
/// open, and takes it again when it goes on, as nearly all do.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    heap: BinaryHeap<Entry>,
    /// The first in the heap runs, and is not ready.
    open: bool,
}

/// Where the state of a thread lies in the memory of the machine that runs the emulator: addresses to prefetch, which
/// nothing else depends on. The default is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Near {
    thread: usize,
    process: usize,
}

impl Near {
    pub(crate) fn new(thread: &Thread, process: *const Process) -> Self {
        Self { thread: std::ptr::from_ref(thread).addr(), process: process.addr() }
    }

    /// Brings it nearer.
    #[inline]
    pub(crate) fn prefetch(self) {
        near::object::<Thread>(self.thread);
        Process::prefetch(self.process);
    }
}

/// A thread and its turn; the greatest is the one that runs first.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u128,
    near: Near,
}

impl Ord for Entry {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Entry {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

fn pack((cycles, card, id): Turn) -> u128 {
    debug_assert!(u32::try_from(card).is_ok(), "no machine has as many cards");
    u128::from(cycles) << 64 | (card as u128) << 32 | u128::from(id)
}

fn unpack(key: u128) -> Turn {
    ((key >> 64) as u64, (key >> 32) as u32 as usize, key as u32)
}

impl Ready {
    /// Puts a thread where it belongs. It must not be there.
    #[inline]
    pub(crate) fn insert(&mut self, turn: Turn, near: Near) {
        let entry = Entry { key: pack(turn), near };
        if std::mem::take(&mut self.open)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = entry;
            return;
        }
        self.heap.push(entry);
    }

    /// The thread that runs next. To be called when none runs.
    #[inline]
    pub(crate) fn first(&self) -> Option<Turn> {
        debug_assert!(!self.open, "a thread runs");
        self.heap.peek().map(|entry| unpack(entry.key))
    }

    /// While a thread runs: the two of which one follows, if no thread is woken before it; their cards, and where they
    /// are.
    #[inline]
    pub(crate) fn followers(&self) -> impl Iterator<Item = (usize, Near)> {
        let heap = self.heap.as_slice();
        heap.iter().skip(1).take(2).map(|entry| (unpack(entry.key).1, entry.near))
    }

    /// The thread runs: it is not ready until it is inserted again. Its place stays open for it until
    /// [`close`](Self::close).
    #[inline]
    pub(crate) fn run(&mut self, turn: Turn) {
        let is_first = !self.open && self.heap.peek().is_some_and(|first| first.key == pack(turn));
        if is_first {
            self.open = true;
        } else {
            self.remove(turn);
        }
    }

    /// The thread that ran has gone back to its place or needs none.
    #[inline]
    pub(crate) fn close(&mut self) {
        if std::mem::take(&mut self.open)
            && let Some(first) = self.heap.peek_mut()
        {
            PeekMut::pop(first);
        }
    }

    /// Takes a thread out; returns whether it was ready.
    pub(crate) fn remove(&mut self, turn: Turn) -> bool {
        self.close();
        let before = self.heap.len();
        let key = pack(turn);
        self.heap.retain(|other| other.key != key);
        self.heap.len() < before
    }

    /// Whether a thread is ready.
    pub(crate) fn contains(&self, turn: Turn) -> bool {
        let key = pack(turn);
        let is_first = self.heap.peek().is_some_and(|first| first.key == key);
        self.heap.iter().any(|other| other.key == key) && !(self.open && is_first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn threads_come_in_the_order_of_a_sorted_set() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let (mut ready, mut set) = (Ready::default(), BTreeSet::new());
        for _ in 0..20_000 {
            assert_eq!(ready.first(), set.first().copied());
            let turn = (random.random_range(0..50), random.random_range(0..9), random.random_range(0..9));
            match (random.random_range(0..4), set.first().copied()) {
                (0, _) => {
                    if set.insert(turn) {
                        ready.insert(turn, Near::default());
                    }
                }
                (1, _) => assert_eq!(ready.remove(turn), set.remove(&turn)),
                (2, Some(first)) => {
                    ready.run(first);
                    set.remove(&first);
                    assert!(!ready.contains(first));
                    // What runs may wake others, go on, or end.
                    for _ in 0..random.random_range(0..3) {
                        let turn = (random.random_range(0..50), random.random_range(0..9), random.random_range(0..9));
                        if set.insert(turn) {
                            ready.insert(turn, Near::default());
                        }
                    }
                    ready.close();
                }
                _ => assert_eq!(ready.contains(turn), set.contains(&turn)),
            }
        }
    }
}
