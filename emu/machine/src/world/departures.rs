//! Packets that leave the machine by its outer end.

use std::collections::VecDeque;

use emu_nic::Packet;

/// Packets that have come to the outer end, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    pub(super) waiting: VecDeque<(u64, Packet)>,
}

impl Departures {
    /// A packet comes to the outer end.
    pub(crate) fn arrive(&mut self, at_ps: u64, packet: Packet) {
        // One cable serialises all of them, so they come in order; a wrapper that delays may change that.
        let later = self.waiting.iter().rev().take_while(|(other_ps, _)| *other_ps > at_ps).count();
        self.waiting.insert(self.waiting.len() - later, (at_ps, packet));
    }
}
