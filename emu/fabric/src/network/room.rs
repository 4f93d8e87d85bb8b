//! Back-pressure of a host's port on the host.

use super::Network;
use super::calendar::Due;
use super::port::{NEVER_PS, NONE};
use crate::NetworkFrame;
use crate::config::Priorities;
use crate::counters::PRIORITIES;
use crate::fabric::{FabricEffects, PortRoom};

/// A queue of a host's port is full when it was given more than this and has not sent it: an assumption.
pub const PORT_FULL_BYTES: u64 = 128 << 10;
/// It is free again at this many bytes, which keep a link of 200 Gbit/s busy for 3.9 us: longer than a host needs to
/// fetch more across PCIe.
pub const PORT_FREE_BYTES: u64 = 96 << 10;

impl<F: NetworkFrame> Network<F> {
    /// The priorities that a queue is for, a bit each.
    fn priorities_of(&self, class: usize) -> u8 {
        if self.switching.priorities == Priorities::Shared { u8::MAX } else { 1 << class }
    }

    /// A port was given a frame: notifies a host that gave too many.
    #[inline]
    pub(super) fn check_room(&mut self, now_ps: u64, port: u32, class: usize, fx: &mut FabricEffects<F>) {
        let priorities = self.priorities_of(class);
        let state = &mut self.ports[port as usize];
        if state.switch == NONE && state.full >> class & 1 == 0 && state.class_bytes[class] > PORT_FULL_BYTES {
            state.full |= 1 << class;
            fx.rooms.push((port as usize, priorities, PortRoom::Full));
            self.plan_room(now_ps, port);
        }
    }

    /// Plans the next check of a full port, unless too much of what it has waits for credit or its turn: then that
    /// plans it.
    #[inline]
    pub(super) fn plan_room(&mut self, now_ps: u64, port: u32) {
        let state = &mut self.ports[port as usize];
        if state.full == 0 {
            return;
        }
        let full = (0..PRIORITIES).filter(|class| state.full >> class & 1 == 1);
        if let Some(at_ps) = full.filter_map(|class| state.drained_ps(now_ps, class, PORT_FREE_BYTES)).min()
            && at_ps < state.room_ps
        {
            state.room_ps = at_ps;
            self.calendar.push(at_ps, port, Due::Room);
        }
    }

    /// Checks a port that was full for room.
    pub(super) fn check_for_room(&mut self, now_ps: u64, port: u32, fx: &mut FabricEffects<F>) {
        let state = &mut self.ports[port as usize];
        if now_ps >= state.room_ps {
            state.room_ps = NEVER_PS;
        }
        state.backlog_bytes(now_ps);
        for class in 0..PRIORITIES {
            let state = &mut self.ports[port as usize];
            if state.full >> class & 1 == 1 && state.class_bytes[class] <= PORT_FREE_BYTES {
                state.full &= !(1 << class);
                fx.rooms.push((port as usize, self.priorities_of(class), PortRoom::Free));
            }
        }
        self.plan_room(now_ps, port);
    }
}
