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
    /// Time and sequence number, and the event's place.
    heap: BinaryHeap<Reverse<(u128, u32)>>,
    places: Vec<Option<Event>>,
    free: Vec<u32>,
    sequence: u64,
    /// When the events of each card are due.
    of_card: Vec<BinaryHeap<Reverse<u64>>>,
}

impl EventQueue {
    /// Schedules an event.
    pub(crate) fn push(&mut self, at_ps: u64, event: Event) {
        self.sequence += 1;
        if let Some(card) = event.card() {
            if card >= self.of_card.len() {
                self.of_card.resize_with(card + 1, BinaryHeap::new);
            }
            self.of_card[card].push(Reverse(at_ps));
        }
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

    /// When the next event of a card is due.
    #[inline]
    #[must_use]
    pub(crate) fn next_of_ps(&self, card: usize) -> Option<u64> {
        self.of_card.get(card)?.peek().map(|at_ps| at_ps.0)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((key, place)) = self.heap.pop()?;
        let event = self.places[place as usize].take()?;
        self.free.push(place);
        let at_ps = (key >> 64) as u64;
        if let Some(card) = event.card() {
            // The first event of all is the first of its card.
            let first = self.of_card[card].pop();
            debug_assert_eq!(first, Some(Reverse(at_ps)), "the events of card {card} are in order");
        }
        Some((at_ps, event))
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
