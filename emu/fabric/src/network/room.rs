//! Back-pressure of a host's port on the host.

use super::Network;
use super::calendar::Due;
use super::port::{NEVER_PS, NONE};
use crate::NetworkFrame;
use crate::fabric::{FabricEffects, PortRoom};

/// A host's port is full when it was given more than this and has not sent it: an assumption.
pub const PORT_FULL_BYTES: u64 = 128 << 10;
/// It is free again at this many bytes, which keep a link of 200 Gbit/s busy for 3.9 us: longer than a host needs to fetch more
/// across PCIe.
pub const PORT_FREE_BYTES: u64 = 96 << 10;

impl<F: NetworkFrame> Network<F> {
    /// A port was given a frame: a host that gave too many is told.
    #[inline]
    pub(super) fn check_room(&mut self, now_ps: u64, port: u32, fx: &mut FabricEffects<F>) {
        let state = &mut self.ports[port as usize];
        if state.switch == NONE && !state.full && state.queued_bytes > PORT_FULL_BYTES {
            state.full = true;
            fx.rooms.push((port as usize, PortRoom::Full));
            self.plan_room(now_ps, port);
        }
    }

    /// Plans the next look at a full port, unless too much of what it has waits for credit: then its return plans it.
    #[inline]
    pub(super) fn plan_room(&mut self, now_ps: u64, port: u32) {
        let state = &mut self.ports[port as usize];
        if !state.full {
            return;
        }
        if let Some(at_ps) = state.drained_ps(now_ps, PORT_FREE_BYTES)
            && at_ps < state.room_ps
        {
            state.room_ps = at_ps;
            self.calendar.push(at_ps, port, Due::Room);
        }
    }

    /// Looks at a port that was full.
    pub(super) fn look_for_room(&mut self, now_ps: u64, port: u32, fx: &mut FabricEffects<F>) {
        let state = &mut self.ports[port as usize];
        if now_ps >= state.room_ps {
            state.room_ps = NEVER_PS;
        }
        if state.full && state.backlog_bytes(now_ps) <= PORT_FREE_BYTES {
            state.full = false;
            fx.rooms.push((port as usize, PortRoom::Free));
        }
        self.plan_room(now_ps, port);
    }
}
