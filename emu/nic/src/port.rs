//! The port's send engine, and what may stop it.

use crate::dataflow::PORT_LANE;
use crate::effects::{Effects, Work};
use crate::nic::Nic;

impl Nic {
    /// The port is full: its send engine begins no packet until [`release_port`](Self::release_port). Packets that
    /// are on their way through the engine still leave, and so do acknowledgements, which do not pass it.
    pub fn hold_port(&mut self) {
        let lane = &mut self.engines.lanes[PORT_LANE];
        self.counters.port_holds += u64::from(!lane.held);
        lane.held = true;
    }

    /// The port takes packets again.
    pub fn release_port(&mut self, now_ps: u64, fx: &mut Effects) {
        self.engines.lanes[PORT_LANE].held = false;
        self.start_lane(now_ps, PORT_LANE, fx);
    }

    /// Lets a send engine serve what waits for it, as soon as it is free.
    pub(crate) fn start_lane(&mut self, now_ps: u64, index: usize, fx: &mut Effects) {
        let lane = &mut self.engines.lanes[index];
        if !lane.waiting.is_empty() && !lane.timer && !lane.held {
            lane.timer = true;
            fx.timer(now_ps.max(lane.busy_until_ps), Work::Send { lane: index as u8 });
        }
    }
}
