//! Bounds of a service process in addition to those of its state machine.

use flexcast_proto::service::{Limits, Staging, Topology};

/// Bounds of a service process in addition to those of its state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLimits {
    /// Groups, collectives and Reads.
    pub machine: Limits,
    /// Connections of ranks and of other service processes, together.
    pub peers: u32,
    /// Memory keys of each rank's program at a time.
    pub keys: u32,
    /// Keys that each program binds to its memory, in addition; 0: none are taken, and all memory has keys of its own.
    pub bound_keys: u32,
    /// Queue pairs for transfers: one for each service process of each group.
    pub lanes: u32,
    /// What the staged collectives of each group may use; none: there are none. All processes of a group must have the
    /// same.
    pub staging: Option<Staging>,
    /// Staging memory of all groups together, in bytes: a group for which there is no room is refused.
    pub staging_bytes: u64,
    /// Receives for the multicast of each group that has one, at least 2. Their memory, of a packet each, comes in
    /// addition to `staging_bytes`.
    pub multicast_receives: u32,
}

impl AgentLimits {
    /// Messages of a group's staged collectives that another process can have said before they can be taken: for each
    /// collective that this process keeps, and as many that the other one is ahead, the calls of all ranks and what is
    /// offered and taken of the segments under way.
    pub(super) fn most_staged(&self, topology: &Topology) -> usize {
        let Some(Staging { segments, collectives, .. }) = self.staging else { return 0 };
        let each = u64::from(topology.ranks()) + 2 * u64::from(segments) * u64::from(topology.processes());
        usize::try_from(2 * u64::from(collectives) * each).unwrap_or(usize::MAX)
    }
}

impl Default for AgentLimits {
    /// 1,152 connections: 1,024 ranks and 128 processes. 1,024 keys of each program, and 64 that it binds. 8,192 queue
    /// pairs: as many groups as there may be by default, with 128 processes each. No staged collectives; 1 GiB of
    /// staging memory once `staging` is given. 512 receives for a multicast: 2 MiB of chunks of 4 KiB, which come in 84
    /// us at 200 Gbit/s.
    fn default() -> Self {
        let (staging, staging_bytes) = (None, 1 << 30);
        let (peers, keys, bound_keys, lanes) = (1152, 1024, 64, 1 << 13);
        Self {
            machine: Limits::default(),
            peers,
            keys,
            bound_keys,
            lanes,
            staging,
            staging_bytes,
            multicast_receives: 512,
        }
    }
}
