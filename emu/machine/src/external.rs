//! A port that ends outside the machine.
//!
//! A cable with one card has a free end. What arrives there is not delivered but kept, with the virtual time of its
//! arrival, until the caller takes it; what the caller injects starts there. So the cable's rate, delay, loss, counters and
//! capture count for both directions. There is no wall clock here and no socket: who joins two machines decides how far each
//! may run ([`World::advance`]).

use std::collections::VecDeque;

use emu_nic::Packet;

use crate::error::MachineError;
use crate::world::World;

/// Packets that have come to the outer end, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    waiting: VecDeque<(u64, Packet)>,
}

impl Outside {
    /// A packet comes to the outer end.
    pub(crate) fn arrive(&mut self, at_ps: u64, packet: Packet) {
        // One cable serialises all of them, so they come in order; a wrapper that delays may change that.
        let later = self.waiting.iter().rev().take_while(|(other_ps, _)| *other_ps > at_ps).count();
        self.waiting.insert(self.waiting.len() - later, (at_ps, packet));
    }
}

impl World {
    /// Opens the outer end of the card's cable.
    ///
    /// # Errors
    /// There are two cards, or a network: every end has its card.
    pub fn open_outside(&mut self) -> Result<(), MachineError> {
        if self.outside.is_none() {
            if !self.wires.plug() {
                return Err(MachineError::NoOutsidePort { cards: self.cards.len() });
            }
            self.outside = Some(Outside::default());
        }
        Ok(())
    }

    /// Whether the machine has an outer end.
    #[must_use]
    pub fn has_outside(&self) -> bool {
        self.outside.is_some()
    }

    /// The next packet that has left the machine by now, with the time in picoseconds at which its last bit did.
    pub fn take_departure(&mut self) -> Option<(u64, Packet)> {
        let waiting = &mut self.outside.as_mut()?.waiting;
        waiting.pop_front_if(|(at_ps, _)| *at_ps <= self.now_ps)
    }

    /// Packets that leave or will leave.
    #[must_use]
    pub fn departures(&self) -> usize {
        self.outside.as_ref().map_or(0, |outside| outside.waiting.len())
    }

    /// A packet starts at the outer end, now. Without an outer end it is lost.
    pub fn inject(&mut self, packet: Packet) {
        if self.outside.is_some() {
            let (now_ps, port) = (self.now_ps, self.cards.len());
            self.wires.transmit(now_ps, port, packet);
            self.carry_frames(now_ps);
        }
    }

    /// When the next thing is due, in picoseconds, a packet's leaving included; `None` if nothing is until somebody acts.
    #[must_use]
    pub fn next_due_ps(&self) -> Option<u64> {
        let leaving_ps = self.outside.as_ref().and_then(|outside| outside.waiting.front()).map(|(at_ps, _)| *at_ps);
        [self.due_ps(), leaving_ps].into_iter().flatten().min()
    }

    /// Lets everything happen that is due up to `to_ps`, then sets the clock to it; at most `steps` steps. Tells whether the
    /// clock got there. A time that has passed already does nothing.
    pub fn advance(&mut self, to_ps: u64, steps: u64) -> bool {
        for _ in 0..steps {
            if self.due_ps().is_none_or(|due_ps| due_ps > to_ps) {
                self.now_ps = self.now_ps.max(to_ps);
                return true;
            }
            self.step();
        }
        false
    }

    /// Whether the host has events to take: [`World::take_channel_event`], [`World::take_async_event`].
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.channel_events.is_empty() || !self.async_events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use emu_fabric::Frame as _;
    use emu_nic::{DEFAULT_PKEY, Extension, Network, Operation, Transport};

    use super::*;
    use crate::config::{Config, LinkConfig};
    use crate::numbering::address;
    use crate::queue::Event;
    use crate::wiring::Wiring;

    fn datagram(from: usize, to: usize) -> Packet {
        Packet {
            source: address(from),
            destination: address(to),
            network: Network::default(),
            pkey: DEFAULT_PKEY,
            transport: Transport::Ud,
            operation: Operation::Send,
            first: true,
            last: true,
            solicited: false,
            ack_request: false,
            destination_qpn: 3,
            psn: 4,
            immediate: None,
            invalidate: None,
            message_number: 0,
            extension: Extension::Datagram { qkey: 5, source_qpn: 6 },
            payload: Arc::from([7; 100].as_slice()),
            damage: None,
        }
    }

    fn world(first_card: usize) -> World {
        let link = LinkConfig { latency_ps: 500, ..LinkConfig::default() };
        let mut world =
            World::new(Config { cards: 1, first_card, wiring: Wiring::Cable(link), ..Config::default() }).unwrap();
        world.open_outside().unwrap();
        world
    }

    #[test]
    fn what_leaves_one_machine_arrives_in_another() {
        let (mut here, mut there) = (world(1), world(2));
        here.queue.push(1_000, Event::Departure(0, datagram(1, 2)));
        assert_eq!(here.next_due_ps(), Some(1_000));
        assert!(here.advance(1_000, 10));
        let at_ps = here.next_due_ps().unwrap();
        assert_eq!(at_ps, 1_000 + 40 * datagram(1, 2).wire_bytes() + 500);
        assert!(here.advance(at_ps - 1, 10) && here.take_departure().is_none() && here.departures() == 1);
        assert!(here.advance(at_ps, 10));
        let (left_ps, packet) = here.take_departure().unwrap();
        assert_eq!((left_ps, here.now_ps(), here.next_due_ps()), (at_ps, at_ps, None));
        assert_eq!(here.port_counters(0).tx_frames, 1);

        there.advance(7_000_000, 1);
        there.inject(packet);
        assert_eq!(there.next_due_ps(), Some(7_000_000 + at_ps - 1_000), "the same cable again");
        assert!(there.advance(u64::MAX / 2, 10));
        assert_eq!(there.cards[0].nic.counters().qp_drops, 1, "it reached the card, which has no such queue pair");
    }

    #[test]
    fn steps_bound_an_advance() {
        let mut world = world(1);
        for at_ps in 1..=5 {
            world.queue.push(at_ps, Event::Departure(0, datagram(1, 2)));
        }
        assert!(!world.advance(10, 3));
        assert_eq!(world.now_ps(), 3);
        assert!(world.advance(10, 3));
        assert_eq!(world.now_ps(), 10);
        assert!(world.advance(9, 1) && world.now_ps() == 10, "time never goes back");
    }

    #[test]
    fn a_machine_whose_ports_are_taken_has_no_outside() {
        let mut world = World::new(Config::default()).unwrap();
        assert!(world.open_outside().unwrap_err().to_string().contains("2 cards"));
        world.inject(datagram(3, 1));
        assert_eq!((world.next_due_ps(), world.has_outside(), world.departures()), (None, false, 0));
    }
}
