//! Commands for the port.

use emu_fabric::{PRIORITIES, Priorities};

use super::Nic;
use crate::effects::Effects;
use crate::error::NicError;

impl Nic {
    /// Sets an entry of the port's partition key table, which has the default key at index 0 alone at first. Queue
    /// pairs that name the entry use the new key from their next packet on.
    ///
    /// # Errors
    /// The index would leave a hole or pass 128 entries, or the key is that of no partition (bits 14:0 are zero).
    pub fn set_pkey(&mut self, index: usize, pkey: u16) -> Result<(), NicError> {
        self.datapath.port.identity.set_pkey(index, pkey)
    }

    /// The port's partition keys.
    #[must_use]
    pub fn pkeys(&self) -> &[u16] {
        self.datapath.port.identity.pkeys()
    }

    /// How the port's send engine chooses among queue pairs of different traffic class; see [`Priorities`], and
    /// [`SwitchConfig`](emu_fabric::SwitchConfig) for the weights. To be called before anything is sent. Default
    /// strict.
    pub fn set_priorities(&mut self, priorities: Priorities, weights: [u32; PRIORITIES]) {
        self.datapath.port.set_priorities(priorities, weights);
    }

    /// The port is full for some priorities (a bit each): its send engine begins no packet of theirs until
    /// [`release_port`](Self::release_port). Packets that are on their way through the engine still leave, and so do
    /// acknowledgements, which do not pass it.
    pub fn hold_port(&mut self, priorities: u8) {
        let news = self.datapath.port.pause(priorities);
        self.log.counters.port_holds += u64::from(news);
    }

    /// The port takes packets of these priorities again.
    pub fn release_port(&mut self, now_ps: u64, priorities: u8, fx: &mut Effects) {
        self.datapath.port.resume(now_ps, priorities, fx);
    }
}
