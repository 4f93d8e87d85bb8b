//! State of a service process at a time, to be shown.

use serde::{Deserialize, Serialize};

use super::{Agent, Role};

/// What a service process has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Programs of ranks that are connected.
    pub programs: u64,
    /// Service processes that are connected.
    pub processes: u64,
    /// Groups that it serves.
    pub groups: u64,
    /// Groups whose staged segments go between service processes by multicast.
    pub multicast_groups: u64,
    /// Groups that wait for connections to other service processes.
    pub waiting_groups: u64,
    /// Collectives that are not over.
    pub collectives: u64,
    /// Reads under way.
    pub active_reads: u64,
    /// Announcements and Reads that wait.
    pub waiting_reads: u64,
    /// Aliases of memory keys of ranks.
    pub keys: u64,
    /// Aliases of keys that programs bind to their memory.
    pub bound_keys: u64,
    /// Queue pairs of connections and of groups.
    pub queue_pairs: u64,
}

impl Agent {
    /// What it has now.
    #[must_use]
    pub fn status(&self) -> AgentStatus {
        let mut status = AgentStatus {
            groups: self.groups.len() as u64,
            waiting_groups: self.waiting_groups() as u64,
            collectives: self.groups.keys().filter_map(|group| self.machine.under_way(*group)).sum::<usize>() as u64,
            active_reads: self.machine.active_reads().into(),
            waiting_reads: self.machine.waiting() as u64,
            queue_pairs: self.links.pairs() as u64 + self.multicast_held().0,
            multicast_groups: self.staged.multicast_groups(),
            ..AgentStatus::default()
        };
        for role in self.peers.values() {
            match role {
                Role::Program(program) => {
                    status.programs += 1;
                    status.keys += program.keys() as u64;
                    status.bound_keys += program.bound_keys() as u64;
                }
                Role::Process(_) => status.processes += 1,
            }
        }
        status
    }
}
