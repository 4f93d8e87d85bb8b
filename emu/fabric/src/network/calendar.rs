//! Calendar of the network's own events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something due at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A frame, by its place, can be passed on by the switch that this port belongs to.
    Arrival(u32),
    /// Credit has come back.
    Credit,
    /// A host's full port may have room again.
    Room,
    /// The port is free for what waits for its turn.
    Serve,
}

/// Events in order of time, those of one instant in the order in which they were scheduled.
#[derive(Clone, Debug, Default)]
pub(super) struct Calendar {
    heap: BinaryHeap<Reverse<(u64, u64, u32, Due)>>,
    sequence: u64,
}

impl Calendar {
    pub(super) fn push(&mut self, at_ps: u64, port: u32, due: Due) {
        self.sequence += 1;
        self.heap.push(Reverse((at_ps, self.sequence, port, due)));
    }

    #[inline]
    pub(super) fn next_ps(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.0.0)
    }

    /// The next event that is due by then.
    #[inline]
    pub(super) fn pop_by(&mut self, at_ps: u64) -> Option<(u64, u32, Due)> {
        if self.next_ps()? > at_ps {
            return None;
        }
        self.heap.pop().map(|Reverse((at_ps, _, port, due))| (at_ps, port, due))
    }
}
