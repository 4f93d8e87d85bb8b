//! A station at the outer end of the machine: it sends frames to the card and takes those that the card sends, in
//! virtual time.

use std::fmt;

use emu_nic::Packet;

use crate::error::MachineError;
use crate::world::World;
use crate::world::queue::Event;

/// What is at the outer end in place of another machine, such as a packet generator. All times are virtual, in
/// picoseconds.
pub trait Station: fmt::Debug + Send {
    /// When it acts next; `None`: not before a frame comes, or the card's steering changes.
    fn due_ps(&self) -> Option<u64>;

    /// Its time has come: a frame that it sends now. It is asked again until it has none.
    fn send(&mut self, now_ps: u64) -> Option<Packet>;

    /// A frame of the card's has arrived.
    fn arrive(&mut self, now_ps: u64, packet: Packet);

    /// Whether steering of the card leads frames to a receive queue from now on.
    fn steered(&mut self, now_ps: u64, to_queue: bool);
}

/// The station of a machine, and its turns.
#[derive(Debug)]
pub(crate) struct Outer {
    station: Box<dyn Station>,
    /// The earliest turn that is scheduled.
    turn_ps: Option<u64>,
    to_queue: bool,
}

impl World {
    /// Puts a station at the outer end, which is opened.
    ///
    /// # Errors
    /// As [`World::open_outside`].
    pub fn attach_station(&mut self, station: Box<dyn Station>) -> Result<(), MachineError> {
        self.open_outside()?;
        self.outer = Some(Outer { station, turn_ps: None, to_queue: false });
        self.plan_station();
        Ok(())
    }

    /// The card's steering rules have changed.
    pub fn steering_changed(&mut self, card: usize) {
        let now_ps = self.now_ps;
        let to_queue = self.cards.get(card).is_some_and(|card| card.nic.steers_to_queue());
        let Some(outer) = self.outer.as_mut().filter(|outer| outer.to_queue != to_queue) else { return };
        outer.to_queue = to_queue;
        outer.station.steered(now_ps, to_queue);
        self.plan_station();
    }

    fn plan_station(&mut self) {
        let now_ps = self.now_ps;
        let Some(outer) = &mut self.outer else { return };
        let Some(due_ps) = outer.station.due_ps().map(|due_ps| due_ps.max(now_ps)) else { return };
        if outer.turn_ps.is_none_or(|turn_ps| turn_ps > due_ps) {
            outer.turn_ps = Some(due_ps);
            self.queue.push(due_ps, Event::Station(None));
        }
    }

    /// The station's turn, or a frame for it.
    pub(crate) fn station_event(&mut self, at_ps: u64, arrived: Option<Packet>) {
        let Some(outer) = &mut self.outer else { return };
        if let Some(packet) = arrived {
            outer.station.arrive(at_ps, packet);
        } else {
            // A turn that an earlier one has replaced finds nothing due.
            outer.turn_ps = outer.turn_ps.filter(|turn_ps| *turn_ps != at_ps);
        }
        while let Some(outer) = &mut self.outer
            && outer.station.due_ps().is_some_and(|due_ps| due_ps <= at_ps)
            && let Some(packet) = outer.station.send(at_ps)
        {
            let port = self.cards.len();
            self.wires.transmit(at_ps, port, packet);
            self.carry_frames(at_ps);
        }
        self.plan_station();
    }
}
