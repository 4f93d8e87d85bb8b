//! Surroundings of one collective on a service process: what it may use of the rest.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::error::{Cause, FailedParty, Failure, Ignored};
use super::message::{Action, ContextId, Message, Read, Region};
use super::reads::Reads;
use super::topology::Topology;

pub(super) struct Scope<'a> {
    pub(super) topology: &'a Topology,
    /// This process.
    pub(super) own: u32,
    pub(super) id: ContextId,
    pub(super) reads: &'a mut Reads,
    pub(super) ignored: &'a mut Ignored,
    /// Ranks that have been notified that it is over.
    pub(super) over: &'a mut BTreeSet<u32>,
    pub(super) actions: &'a mut Vec<Action>,
}

impl Scope<'_> {
    pub(super) fn send(&mut self, to: u32, message: Message) {
        self.actions.push(Action::Send { to, context: self.id, message });
    }

    /// Sends to the process that serves a rank.
    pub(super) fn send_to_server(&mut self, rank: u32, message: Message) {
        if let Some(to) = self.topology.process_of(rank) {
            self.send(to, message);
        }
    }

    pub(super) fn read(&mut self, read: Read) {
        self.reads.ask(self.id, read, self.actions);
    }

    pub(super) fn complete(&mut self, rank: u32) {
        if self.over.insert(rank) {
            self.actions.push(Action::Complete { rank, context: self.id });
        }
    }

    pub(super) fn is_served(&self, rank: u32) -> bool {
        self.topology.process_of(rank) == Some(self.own)
    }

    pub(super) fn own_host(&self) -> u32 {
        self.topology.host_of_process(self.own).unwrap_or(0)
    }
}

/// Whether what a source sends fits what a rank expects of it.
pub(super) fn compare(source: u32, detecting_rank: u32, from: Region, to: Region) -> Result<(), Failure> {
    if from.bytes == to.bytes {
        return Ok(());
    }
    let cause = Cause::Bytes { detecting_rank, found: from.bytes, expected: to.bytes };
    Err(Failure { failed_rank: FailedParty::Rank(source), cause })
}
