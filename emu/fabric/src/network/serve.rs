//! Turns of the queues of a port, when there is more than one priority.
//!
//! With one priority a frame's departure time is fixed when the frame joins a queue. With several it is fixed when the
//! frame leaves the queue, since frames of another priority may come first.

use super::Network;
use super::calendar::Due;
use super::port::{NEVER_PS, Waiting};
use crate::NetworkFrame;
use crate::fabric::FabricEffects;

impl<F: NetworkFrame> Network<F> {
    /// Sends what can leave a port now and plans when to serve it next.
    ///
    /// Of frames that could leave at an instant, the arbiter's choice does, so the port is idle only when no queue has
    /// a first frame that has come far enough and has credit. Queues do not wait for each other: credit is theirs
    /// alone.
    pub(super) fn serve(&mut self, now_ps: u64, egress: u32, fx: &mut FabricEffects<F>) {
        let port = &mut self.ports[egress as usize];
        if port.serve_ps <= now_ps {
            port.serve_ps = NEVER_PS;
        }
        port.backlog_bytes(now_ps);
        loop {
            let port = &mut self.ports[egress as usize];
            if port.busy_until_ps > now_ps {
                break;
            }
            let Some(class) = port.choose(now_ps) else { break };
            let Some(Waiting { slot, hold, bytes, .. }) = port.waiting[class].pop_front() else { break };
            port.take_credit(now_ps, class, bytes);
            port.arbiter.served(class, bytes);
            self.send(now_ps, egress, (slot, hold), now_ps, fx);
        }
        let port = &mut self.ports[egress as usize];
        if let Some(at_ps) = port.plan_serve(now_ps) {
            self.calendar.push(at_ps, egress, Due::Serve);
        }
        // A busy port checks its credit when it is free.
        if port.busy_until_ps <= now_ps
            && let Some(at_ps) = port.plan_wake(now_ps)
        {
            self.calendar.push(at_ps, egress, Due::Credit);
        }
        self.plan_room(now_ps, egress);
    }
}
