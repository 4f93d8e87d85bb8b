//! The one event queue of the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use emu_nic::{CqEvent, Packet, Timer};

/// Something that happens at a point in virtual time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A card's engine is due.
    Nic(usize, Timer),
    /// A packet leaves a card's port.
    Departure(usize, Packet),
    /// A packet arrives at a card's port.
    Arrival(usize, Packet),
    /// What joins the cards has something to do.
    Fabric,
    /// A completion-queue event fires.
    Completion(usize, CqEvent),
}

#[derive(Debug)]
struct Entry {
    at_ps: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ps, self.sequence) == (other.at_ps, other.sequence)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ps, self.sequence).cmp(&(other.at_ps, other.sequence))
    }
}

/// Events in order of time; those of one instant in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl EventQueue {
    /// Schedules an event.
    pub(crate) fn push(&mut self, at_ps: u64, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at_ps, sequence: self.sequence, event }));
    }

    /// When the next event is due.
    #[must_use]
    pub(crate) fn next_at_ps(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.0.at_ps)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ps, entry.event))
    }
}
