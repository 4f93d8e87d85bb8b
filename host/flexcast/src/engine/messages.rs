//! Operations whose messages go between buffers in the memory of processes: over connections, or within one process.

use flexcast_proto::{Algorithm, Cause, FailureCode, RankInfo};

use super::descriptor::direct_summary;
use super::{Carrier, Operations, Posted, Task};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::p2p;
use crate::p2p::bound::Bound;
use crate::p2p::local::{Local, Spare};

impl Posted<Task> {
    /// The schedule of an operation, bound to its buffers. The own part of the data is in its place then. `spare`:
    /// memory of an operation before it.
    ///
    /// # Errors
    /// The algorithm is for something else, lengths do not fit, or there is no memory.
    pub(crate) fn bind(&mut self, place: RankInfo, algorithm: Algorithm, spare: Spare) -> Result<Local> {
        let Self { plan: task, send, receive, .. } = self;
        let name = task.name();
        let (bound, summary, send) = match task {
            Task::Blocks(plan) => {
                if let Some(send) = send {
                    receive.copy_from(plan.block(place.rank()).offset as usize, send, 0, send.len())?;
                }
                (Bound::of_plan(plan, algorithm, false)?, direct_summary(plan, algorithm), None)
            }
            Task::Collective(collective) => {
                let bound = Bound::of_collective(collective, place, algorithm)?;
                (bound, collective.summary(algorithm), send.as_ref().map(Buffer::bytes))
            }
        };
        let mut local = Local::new(bound, place, (name, summary), spare)?;
        local.start(send, receive.bytes_mut())?;
        Ok(local)
    }
}

impl<C: Carrier> Operations<C> {
    /// What carries the messages of the exchange under way has reported what cannot be.
    pub(crate) fn fail_link(&mut self, error: &p2p::Error, now_ps: u64) {
        tracing::error!(%error, "a collective between pairs of ranks failed");
        self.fail_here(now_ps, Cause::Device(FailureCode::ProtocolViolation));
    }
}
