//! Failed party of a transfer that has failed.
//!
//! A transfer that fails ends its lane, and with it all others of the lane, at both ends. The first one knows whose
//! memory is at fault; what follows at the same end names the same. The far end sees its own transfers flushed, or
//! without an answer, and does not know why: it says which one could not be read, and the end that knows the fault
//! names the failed rank in its place. So all name the first one.

use flexcast_proto::service::wire::Body;
use flexcast_proto::service::{ContextId, FailedParty, Message, ReadError, StagedEvent};

use super::Agent;
use crate::error::Result;
use crate::links::{Fault, PeerId};

/// Another process says that memory of a rank of this one could not be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    pub(super) from: PeerId,
    pub(super) process: u32,
    pub(super) context: ContextId,
    pub(super) source: u32,
    pub(super) code: u16,
}

/// The queue pair had failed before; there was no answer.
const WITHOUT_A_CAUSE: [u16; 2] = [5, 12];

/// What a Read from the memory of `holder` says that has failed.
pub(super) fn read_error(fault: Fault, holder: u32) -> ReadError {
    let rank = match fault.failed_rank {
        Some(FailedParty::Rank(rank)) => rank,
        // The far end knows, which serves the holder.
        Some(FailedParty::Process(_)) | None => holder,
    };
    ReadError { code: fault.code(), rank }
}

impl Agent {
    /// A lane has failed: the staged collectives of its group need all of them.
    pub(super) fn check_lanes(&mut self) {
        for (number, group) in &self.groups {
            for lane in &group.lanes {
                if let Ok(Some(fault)) = self.links.fault(*lane)
                    && let Some(failed_rank) = fault.failed_rank
                {
                    self.staged.happen(*number, StagedEvent::Broken { failed_rank, code: fault.code() });
                }
            }
        }
    }

    /// Passes on that a Read has failed, with the true failed rank where this process knows it.
    pub(super) fn explain(&mut self, doubt: Doubt) -> Result<()> {
        let Doubt { from, process, context, source, code } = doubt;
        let Some(group) = self.groups.get(&context.group) else { return Ok(()) };
        let (own, Some(lane)) = (group.own, group.lanes.get(process as usize).copied()) else { return Ok(()) };
        let fault = match self.links.fault(lane) {
            _ if !WITHOUT_A_CAUSE.contains(&code) => None,
            // What is under way ends soon, and then it is known.
            Err(()) => {
                self.unexplained.push(doubt);
                return Ok(());
            }
            Ok(fault) => fault,
        };
        let found = fault.and_then(|fault| Some((fault.failed_rank?, fault.code())));
        let (rank, code) = match found {
            Some((FailedParty::Rank(rank), code)) => (rank, code),
            _ => (source, code),
        };
        let message = Message::Unreadable { source: rank, code };
        if self.groups[&context.group].topology.process_of(rank) == Some(own) {
            self.arrive((from, context.group), (process, context, message));
            return Ok(());
        }
        self.say(from, context, Body::Process { from: own, to: process, message })
    }

    /// Tries again to explain what could not be explained before.
    pub(super) fn explain_all(&mut self) -> Result<()> {
        std::mem::take(&mut self.unexplained).into_iter().try_for_each(|doubt| self.explain(doubt))
    }
}
