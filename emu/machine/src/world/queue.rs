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

/// Events in order of time; those of one instant in the order in which they were scheduled.
///
/// Packets are long, and the heap moves what is in it often: it holds places only.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// Time and sequence number, and the event's place.
    heap: BinaryHeap<Reverse<(u128, u32)>>,
    places: Vec<Option<Event>>,
    free: Vec<u32>,
    sequence: u64,
}

impl EventQueue {
    /// Schedules an event.
    pub(crate) fn push(&mut self, at_ps: u64, event: Event) {
        self.sequence += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        self.places[place as usize] = Some(event);
        self.heap.push(Reverse((u128::from(at_ps) << 64 | u128::from(self.sequence), place)));
    }

    /// When the next event is due.
    #[inline]
    #[must_use]
    pub(crate) fn next_at_ps(&self) -> Option<u64> {
        self.heap.peek().map(|entry| (entry.0.0 >> 64) as u64)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((key, place)) = self.heap.pop()?;
        let event = self.places[place as usize].take()?;
        self.free.push(place);
        Some(((key >> 64) as u64, event))
    }
}
