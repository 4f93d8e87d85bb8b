//! The one event queue of the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use emu_nic::{CqEvent, Packet, Timer};

use crate::near;

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

impl Event {
    /// The card that it happens on. What happens in the fabric reaches a card as an arrival.
    fn card(&self) -> Option<usize> {
        match *self {
            Event::Nic(card, _) | Event::Departure(card, _) | Event::Arrival(card, _) | Event::Completion(card, _) => {
                Some(card)
            }
            Event::Fabric => None,
        }
    }
}

/// Events in order of time; those of one instant in the order in which they were scheduled.
///
/// Packets are long, and the heap moves what is in it often: it holds places only.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// Time and sequence number, the event's place and its card.
    heap: BinaryHeap<Reverse<(u128, u32, u32)>>,
    places: Vec<Option<Event>>,
    free: Vec<u32>,
    sequence: u64,
    /// When the events of each card are due.
    of_card: Vec<BinaryHeap<Reverse<u64>>>,
    /// The first of each, [`NEVER_PS`] without any: asked for at each turn of a thread, and of all cards in a few lines.
    first_ps: Vec<u64>,
}

/// The card of what happens in the fabric.
const NO_CARD: u32 = u32::MAX;
/// The time of no event.
const NEVER_PS: u64 = u64::MAX;

impl EventQueue {
    /// Schedules an event.
    pub(crate) fn push(&mut self, at_ps: u64, event: Event) {
        self.sequence += 1;
        let card = event.card();
        if let Some(card) = card {
            if card >= self.of_card.len() {
                self.of_card.resize_with(card + 1, BinaryHeap::new);
                self.first_ps.resize(card + 1, NEVER_PS);
            }
            self.of_card[card].push(Reverse(at_ps));
            self.first_ps[card] = self.first_ps[card].min(at_ps);
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        self.places[place as usize] = Some(event);
        let key = u128::from(at_ps) << 64 | u128::from(self.sequence);
        self.heap.push(Reverse((key, place, card.map_or(NO_CARD, |card| card as u32))));
    }

    /// When the next event is due.
    #[inline]
    #[must_use]
    pub(crate) fn next_at_ps(&self) -> Option<u64> {
        self.heap.peek().map(|entry| (entry.0.0 >> 64) as u64)
    }

    /// When the next event of a card is due.
    #[inline]
    #[must_use]
    pub(crate) fn next_of_ps(&self, card: usize) -> Option<u64> {
        self.first_ps.get(card).copied().filter(|&at_ps| at_ps != NEVER_PS)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((key, place, _)) = self.heap.pop()?;
        let event = self.places[place as usize].take()?;
        self.free.push(place);
        let at_ps = (key >> 64) as u64;
        if let Some(card) = event.card() {
            // The first event of all is the first of its card.
            let of_card = &mut self.of_card[card];
            let first = of_card.pop();
            debug_assert_eq!(first, Some(Reverse(at_ps)), "the events of card {card} are in order");
            self.first_ps[card] = of_card.peek().map_or(NEVER_PS, |at_ps| at_ps.0);
        }
        Some((at_ps, event))
    }

    /// Brings near the events that may be taken next, and gives the card of the first.
    #[inline]
    pub(crate) fn prefetch(&self) -> Option<usize> {
        let heap = self.heap.as_slice();
        for Reverse((_, place, _)) in heap.iter().take(3) {
            if let Some(event) = self.places.get(*place as usize) {
                near::object::<Option<Event>>(std::ptr::from_ref(event).addr());
            }
        }
        heap.first().map(|entry| entry.0.2).filter(|&card| card != NO_CARD).map(|card| card as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_scheduling() {
        let mut queue = EventQueue::default();
        for (at_ps, cqn) in [(30, 1), (10, 2), (30, 3), (20, 4)] {
            queue.push(at_ps, completion(usize::from(cqn == 4), cqn));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(at_ps, event)| (at_ps, number(&event))).collect();
        assert_eq!(order, [(10, 2), (20, 4), (30, 1), (30, 3)]);
    }

    #[test]
    fn a_card_is_told_of_its_own_next_event() {
        let mut queue = EventQueue::default();
        assert_eq!((queue.next_at_ps(), queue.next_of_ps(0)), (None, None));
        queue.push(5, Event::Fabric);
        queue.push(40, completion(1, 1));
        queue.push(20, completion(1, 2));
        queue.push(30, completion(0, 3));
        let due =
            |queue: &EventQueue| (queue.next_at_ps(), queue.next_of_ps(0), queue.next_of_ps(1), queue.next_of_ps(2));
        assert_eq!(due(&queue), (Some(5), Some(30), Some(20), None));
        queue.pop();
        queue.pop();
        assert_eq!(due(&queue), (Some(30), Some(30), Some(40), None));
        queue.pop();
        queue.pop();
        assert_eq!(due(&queue), (None, None, None, None));
    }

    fn completion(card: usize, cqn: u32) -> Event {
        Event::Completion(card, CqEvent { cqn, target: emu_nic::CqTarget::None })
    }

    fn number(event: &Event) -> u32 {
        match event {
            Event::Completion(_, event) => event.cqn,
            _ => 0,
        }
    }
}
