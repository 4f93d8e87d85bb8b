//! The order in which runs are begun, and how many at a time: the longest first, and no more than fit the memory there is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::point::Point;
use crate::memory;

/// Runs that wait for their turn.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    ended: Condvar,
    limit_bytes: u64,
}

#[derive(Debug)]
struct State {
    /// Numbers of runs and the memory of each, the next to begin at the end.
    waiting: Vec<(usize, u64)>,
    used_bytes: u64,
    running: usize,
}

impl Queue {
    /// All these runs. `limit_bytes`: what those under way may take together; one that takes more runs alone.
    #[must_use]
    pub fn new(points: &[Point], limit_bytes: u64) -> Self {
        let mut waiting: Vec<(usize, u64)> = points.iter().map(Point::memory_bytes).enumerate().collect();
        // The longest first, so that no thread is left with one at the end; equal ones in their order.
        waiting.sort_by_key(|&(index, _)| (points[index].weight(), std::cmp::Reverse(index)));
        let state = Mutex::new(State { waiting, used_bytes: 0, running: 0 });
        Self { state, ended: Condvar::new(), limit_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next run that fits beside those under way: the longest that does. Waits for one of them to end if none fits; `None` when all
    /// have begun.
    #[must_use]
    pub fn begin(&self) -> Option<Turn<'_>> {
        let mut state = self.lock();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            let room = self.limit_bytes.saturating_sub(state.used_bytes);
            let fits = |&(_, bytes): &(usize, u64)| bytes <= room;
            let place = state.waiting.iter().rposition(fits).or((state.running == 0).then(|| state.waiting.len() - 1));
            if let Some(place) = place {
                let (index, bytes) = state.waiting.remove(place);
                state.used_bytes += bytes;
                state.running += 1;
                return Some(Turn { queue: self, index, bytes });
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A run under way; dropping it ends it.
#[derive(Debug)]
pub struct Turn<'q> {
    queue: &'q Queue,
    /// Number of the run.
    pub index: usize,
    bytes: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.used_bytes -= self.bytes;
        state.running -= 1;
        self.queue.ended.notify_all();
    }
}

/// Memory that runs may take together: half of what this process can get now.
#[must_use]
pub fn memory_limit_bytes() -> u64 {
    memory::available().bytes / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::point::ConcurrentPoint;

    /// Long ones are large.
    fn point(ranks: u32) -> Point {
        Point::Concurrent(ConcurrentPoint { ranks, bytes: 65536, chunk_bytes: 4096, topology: String::new() })
    }

    #[test]
    fn the_longest_that_fits_is_next() {
        let points = [4, 1000, 2, 188].map(point);
        let bytes = |index: usize| points[index].memory_bytes();
        let queue = Queue::new(&points, bytes(1) + bytes(0));
        let first = queue.begin().unwrap();
        assert_eq!(first.index, 1);
        // Not 188 ranks, but something, so that no core is idle.
        let second = queue.begin().unwrap();
        assert_eq!(second.index, 0);
        drop(first);
        assert_eq!(queue.begin().map(|turn| turn.index), Some(3));
        assert_eq!(queue.begin().map(|turn| turn.index), Some(2));
        assert!(queue.begin().is_none());
    }

    #[test]
    fn what_fits_nowhere_runs_alone() {
        let points = [4, 1000, 4].map(point);
        let queue = Queue::new(&points, 1);
        let (mut order, busy) = (Mutex::new(Vec::new()), Mutex::new(()));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(turn) = queue.begin() {
                        let alone = busy.try_lock().expect("no other run is under way");
                        order.lock().unwrap().push(turn.index);
                        drop(alone);
                    }
                });
            }
        });
        assert_eq!(*order.get_mut().unwrap(), [1, 0, 2]);
        assert!(memory_limit_bytes() > 0);
    }
}
