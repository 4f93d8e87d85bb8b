//! A port that ends outside the machine.
//!
//! A cable with one card has a free end, and a network may have a host without a card. What arrives there is not
//! delivered but kept, with the virtual time of its arrival, until the caller takes it; what the caller injects starts
//! there. So the link's rate, delay, loss, counters and capture count for both directions. There is no wall clock here
//! and no socket: who joins two machines decides how far each may run ([`World::advance`]).

use emu_nic::Packet;

use super::departures::Departures;
use crate::config::wiring::Wiring;
use crate::error::MachineError;
use crate::world::World;

impl World {
    /// Opens the outer end: that of the card's cable, or the host of the network at which one more card would be. What
    /// a card of a network sends to a group leaves there, too; the ports outside have to be stated
    /// ([`World::place_outside`]).
    ///
    /// # Errors
    /// There are two cards on a cable, or no host is left: every end has its card.
    pub fn open_outside(&mut self) -> Result<(), MachineError> {
        if self.outside.is_none() {
            let cards = self.cards.len();
            let host = match &self.config.wiring {
                Wiring::Network(network) => network.host(cards),
                Wiring::Cable(_) => cards,
            };
            if !self.wires.plug(host) {
                return Err(MachineError::NoOutsidePort { cards: self.cards.len() });
            }
            self.outside = Some(Departures::default());
        }
        Ok(())
    }

    /// The card of this number, counted over all machines that are joined, is to be reached by the outer end. A cable
    /// leads everything there; without an outer end nothing happens.
    pub fn place_outside(&mut self, card: usize) {
        self.wires.place_outside(card);
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

    /// When the next thing is due, in picoseconds, a packet's leaving included; `None` if nothing is until somebody
    /// acts.
    #[must_use]
    pub fn next_due_ps(&self) -> Option<u64> {
        let leaving_ps = self.outside.as_ref().and_then(|outside| outside.waiting.front()).map(|(at_ps, _)| *at_ps);
        [self.due_ps(), leaving_ps].into_iter().flatten().min()
    }

    /// Lets everything happen that is due up to `to_ps`, then sets the clock to it; at most `steps` steps. Returns
    /// whether the clock got there. A time that has passed already does nothing.
    pub fn advance(&mut self, to_ps: u64, steps: u64) -> bool {
        for _ in 0..steps {
            if self.due_ps().is_none_or(|due_ps| due_ps > to_ps) {
                self.now_ps = self.now_ps.max(to_ps);
                if self.now_ps >= self.probes.due_ps {
                    self.serve_probes();
                }
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

    use emu_fabric::{Frame as _, Topology};
    use emu_nic::{Address, DEFAULT_PKEY, Extension, Gid, MULTICAST_QPN, Network, Operation, Transport};

    use super::*;
    use crate::config::Config;
    use crate::config::wiring::LinkConfig;
    use crate::numbering::address;
    use crate::world::queue::Event;

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

    /// Two cards and the outer end at a switch: unicast and multicast, both ways.
    #[test]
    fn queues_are_checked_while_nothing_happens() {
        let config = Config { stuck_ps: 1_000_000, ..Config::default() };
        let mut world = World::new(config).unwrap();
        for to_ps in [0, 2_000_000, 4_000_000] {
            assert!(world.advance(to_ps, 1));
            assert_eq!(world.probes.check_due_ps, to_ps + 125_000);
        }
    }

    #[test]
    fn a_network_has_its_outer_end_at_a_host() {
        let topology = Topology::named("switch-3").unwrap();
        let wiring = Wiring::network(topology);
        let mut world = World::new(Config { cards: 2, first_card: 4, wiring, ..Config::default() }).unwrap();
        world.open_outside().unwrap();
        world.place_outside(9);
        let group = Address { mac: [0; 6], gid: Gid::from_ipv4([239, 1, 1, 1]) };
        let to_group = |from| Packet { destination: group, destination_qpn: MULTICAST_QPN, ..datagram(from, 0) };
        let rest = |world: &mut World| assert!(world.advance(world.now_ps() + 1_000_000_000, 100_000));
        let leaves = |world: &mut World, packet: Packet| {
            let now_ps = world.now_ps();
            world.queue.push(now_ps, Event::Departure(0, packet));
            rest(world);
            std::iter::from_fn(|| world.take_departure()).count()
        };
        assert_eq!(leaves(&mut world, datagram(4, 9)), 1, "to a card outside");
        assert_eq!(leaves(&mut world, datagram(4, 5)), 0, "to a card inside");
        assert_eq!(leaves(&mut world, datagram(4, 8)), 0, "to nobody");
        assert_eq!((leaves(&mut world, to_group(4)), leaves(&mut world, to_group(4))), (1, 1));
        let before = world.port_counters(1).rx_frames;
        world.inject(datagram(9, 5));
        world.inject(to_group(9));
        rest(&mut world);
        assert_eq!(world.port_counters(1).rx_frames, before + 1, "nobody there is in the group");
        assert_eq!(world.departures(), 0, "nothing comes back");
        // A burst fills the outer end's port, which no card is held by.
        for _ in 0..200 {
            world.inject(datagram(9, 4));
        }
        rest(&mut world);
        assert_eq!(world.port_counters(0).rx_frames, 200);

        let full = Wiring::network(Topology::named("switch-2").unwrap());
        let mut full = World::new(Config { cards: 2, wiring: full, ..Config::default() }).unwrap();
        assert!(full.open_outside().unwrap_err().to_string().contains("2 cards"));
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
