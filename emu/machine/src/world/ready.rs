//! Threads that are ready to run, in order of their clocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// A thread's clock in cycles, its card and its number: threads run in this order.
pub(crate) type Turn = (u64, usize, u32);

/// Threads that are ready, the earliest first.
///
/// Hundreds of cards run threads side by side, and what happens on any of them ends the slices of all: a slice is a few instructions
/// long, so that finding the next thread must cost less than they do. A thread that runs leaves its place open, and takes it again when
/// it goes on, as nearly all do.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    heap: BinaryHeap<Reverse<u128>>,
    /// The first in the heap runs, and is not ready.
    open: bool,
}

fn pack((cycles, card, id): Turn) -> Reverse<u128> {
    debug_assert!(u32::try_from(card).is_ok(), "no machine has as many cards");
    Reverse(u128::from(cycles) << 64 | (card as u128) << 32 | u128::from(id))
}

fn unpack(Reverse(key): Reverse<u128>) -> Turn {
    ((key >> 64) as u64, (key >> 32) as u32 as usize, key as u32)
}

impl Ready {
    /// Puts a thread where it belongs. It must not be there.
    #[inline]
    pub(crate) fn insert(&mut self, turn: Turn) {
        let key = pack(turn);
        if std::mem::take(&mut self.open)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = key;
            return;
        }
        self.heap.push(key);
    }

    /// The thread that runs next. To be called when none runs.
    #[inline]
    pub(crate) fn first(&self) -> Option<Turn> {
        debug_assert!(!self.open, "a thread runs");
        self.heap.peek().copied().map(unpack)
    }

    /// The thread runs: it is not ready until it is inserted again. Its place stays open for it until [`close`](Self::close).
    #[inline]
    pub(crate) fn run(&mut self, turn: Turn) {
        let is_first = !self.open && self.heap.peek() == Some(&pack(turn));
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

    /// Takes a thread out; tells whether it was ready.
    pub(crate) fn remove(&mut self, turn: Turn) -> bool {
        self.close();
        let before = self.heap.len();
        let key = pack(turn);
        self.heap.retain(|other| *other != key);
        self.heap.len() < before
    }

    /// Whether a thread is ready.
    pub(crate) fn contains(&self, turn: Turn) -> bool {
        let key = pack(turn);
        self.heap.iter().any(|other| *other == key) && !(self.open && self.heap.peek() == Some(&key))
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
                        ready.insert(turn);
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
                            ready.insert(turn);
                        }
                    }
                    ready.close();
                }
                _ => assert_eq!(ready.contains(turn), set.contains(&turn)),
            }
        }
    }
}
