//! The one event queue of the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use emu_nic::{CqEvent, Packet, Timer};

use crate::near;
use crate::world::firsts::{Firsts, Key, NEVER};

/// Something that happens at a point in virtual time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A card's engine is due.
    Nic(usize, Timer),
    /// A packet leaves a card's port.
    Departure(usize, Packet),
    /// A packet arrives at a card's port.
    Arrival(usize, Packet),
    /// A frame arrives at the station at the outer end, or it is the station's turn.
    Station(Option<Packet>),
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
            Event::Fabric | Event::Station(_) => None,
        }
    }
}

/// Lanes have numbers of so many bits.
const LANE_BITS: u32 = 20;

/// When an event is due, and, to distinguish events of one instant, how many were scheduled before; then its lane.
fn key(at_ps: u64, sequence: u64, lane: usize) -> Key {
    Key::from(at_ps) << 64 | Key::from(sequence << LANE_BITS | lane as u64)
}

fn lane_of(key: Key) -> usize {
    (key & ((1 << LANE_BITS) - 1)) as usize
}

fn at_ps(key: Key) -> u64 {
    (key >> 64) as u64
}

/// Events in order of time; those of one instant in the order in which they were scheduled.
///
/// Each card has a lane of its own, and so has the fabric: what is scheduled for a card moves a few entries, and is
/// near when the card is. Packets are long, and lanes move what is in them often: they hold places only.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// Keys and places, by lane.
    lanes: Vec<BinaryHeap<Reverse<(Key, u32)>>>,
    firsts: Firsts,
    /// The place of the first event of each lane, if it has any: lanes themselves are far away while their cards have
    /// nothing to do.
    first_places: Vec<u32>,
    places: Vec<Option<Event>>,
    free: Vec<u32>,
    sequence: u64,
}

/// The lane of what happens in the fabric; that of card n is n + 1.
const FABRIC: usize = 0;

fn lane(card: Option<usize>) -> usize {
    card.map_or(FABRIC, |card| card + 1)
}

impl EventQueue {
    /// Schedules an event.
    pub(crate) fn push(&mut self, at_ps: u64, event: Event) {
        self.sequence += 1;
        let lane = lane(event.card());
        if lane >= self.lanes.len() {
            self.lanes.resize_with(lane + 1, BinaryHeap::new);
            self.firsts.widen(lane + 1);
            self.first_places.resize(lane + 1, 0);
        }
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(event);
                place
            }
            None => {
                self.places.push(Some(event));
                (self.places.len() - 1) as u32
            }
        };
        let key = key(at_ps, self.sequence, lane);
        self.lanes[lane].push(Reverse((key, place)));
        if key < self.firsts.of(lane) {
            self.firsts.set(lane, key);
            self.first_places[lane] = place;
        }
    }

    /// When the next event is due.
    #[inline]
    #[must_use]
    pub(crate) fn next_at_ps(&self) -> Option<u64> {
        let key = self.firsts.first();
        (key != NEVER).then(|| at_ps(key))
    }

    /// When the next event of a card is due.
    #[inline]
    #[must_use]
    pub(crate) fn next_of_ps(&self, card: usize) -> Option<u64> {
        let key = self.firsts.of(lane(Some(card)));
        (key != NEVER).then(|| at_ps(key))
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let lane = lane_of(self.firsts.first());
        let heap = self.lanes.get_mut(lane)?;
        let Reverse((key, place)) = heap.pop()?;
        let (next, next_place) = heap.peek().map_or((NEVER, 0), |next| next.0);
        self.firsts.set(lane, next);
        self.first_places[lane] = next_place;
        let event = self.places[place as usize].take()?;
        self.free.push(place);
        Some((at_ps(key), event))
    }

    /// Brings near the event that is next, and gives its card.
    #[inline]
    pub(crate) fn prefetch(&self) -> Option<usize> {
        let lane = lane_of(self.firsts.first());
        let place = *self.first_places.get(lane)?;
        if let Some(event) = self.places.get(place as usize) {
            near::object::<Option<Event>>(std::ptr::from_ref(event).addr());
        }
        near::line(self.lanes[lane].as_slice().as_ptr().addr());
        lane.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_scheduling() {
        let mut queue = EventQueue::default();
        for (at_ps, cqn) in [(30, 1), (10, 2), (30, 3), (20, 4)] {
            queue.push(at_ps, completion(usize::from(cqn == 4), cqn));
        }
        let order: Vec<_> =
            std::iter::from_fn(|| queue.pop()).map(|(at_ps, event)| (at_ps, number_of(&event))).collect();
        assert_eq!(order, [(10, 2), (20, 4), (30, 1), (30, 3)]);
    }

    #[test]
    fn a_card_is_given_its_own_next_event() {
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

    #[test]
    fn lanes_together_are_one_queue() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let (mut queue, mut expected) = (EventQueue::default(), BTreeMap::new());
        for number in 0..30_000_u32 {
            assert_eq!(queue.next_at_ps(), expected.first_key_value().map(|((at_ps, _), _)| *at_ps));
            if random.random_range(0..100) < 52 {
                // Ever more cards, and few times: many events are of one instant.
                let (card, at_ps) = (random.random_range(0..number as usize / 100 + 1), random.random_range(0..40));
                queue.push(at_ps, completion(card, number));
                expected.insert((at_ps, number), card);
            } else {
                let taken = queue.pop().map(|(at_ps, event)| ((at_ps, number_of(&event)), event.card()));
                assert_eq!(taken, expected.pop_first().map(|(key, card)| (key, Some(card))));
            }
            let card = random.random_range(0..number as usize / 100 + 2);
            let of_card = expected.iter().find(|(_, other)| **other == card).map(|((at_ps, _), _)| *at_ps);
            assert_eq!(queue.next_of_ps(card), of_card);
        }
    }

    fn completion(card: usize, cqn: u32) -> Event {
        Event::Completion(card, CqEvent { cqn, target: emu_nic::CqTarget::None })
    }

    fn number_of(event: &Event) -> u32 {
        match event {
            Event::Completion(_, event) => event.cqn,
            _ => 0,
        }
    }
}
