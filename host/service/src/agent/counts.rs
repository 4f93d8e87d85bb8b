//! Counters of a service process.

/// What a service process has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AgentCounts {
    /// Messages sent to other service processes.
    pub process_messages: u64,
    /// Messages sent to ranks.
    pub rank_messages: u64,
    /// Flags written to ranks' memory.
    pub flags: u64,
    /// Reads from host memory to host memory.
    pub reads: u64,
    /// Of them, those from another host.
    pub crossings: u64,
    /// Of them, those from another rank of the same host.
    pub local_reads: u64,
    /// Bytes of all Reads.
    pub read_bytes: u64,
    /// Staged collectives: Reads from host memory to staging memory.
    pub gathers: u64,
    /// Their bytes.
    pub gathered_bytes: u64,
    /// Segments that were multicast.
    pub multicasts: u64,
    /// Their bytes.
    pub multicast_bytes: u64,
    /// Chunks of multicasts that have come to their place.
    pub chunks: u64,
    /// Chunks that have come for nothing: late, twice, or of others.
    pub chunks_dropped: u64,
    /// Reads between staging memories; where segments are multicast, of what was lost.
    pub fetches: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Writes from staging memory to host memory, without flags.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Bytes of TASK messages that have come from ranks and other processes.
    pub task_bytes: u64,
    /// Regions that programs have bound keys to, each without a control operation here.
    pub bindings: u64,
    /// Aliases of bound keys that gave way to others, as something might still have used them.
    pub aliases_replaced: u64,
    /// Messages that could not be, of peers that are trusted no more.
    pub wrong: u64,
}

impl std::ops::Add for AgentCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            process_messages: self.process_messages + other.process_messages,
            rank_messages: self.rank_messages + other.rank_messages,
            flags: self.flags + other.flags,
            reads: self.reads + other.reads,
            crossings: self.crossings + other.crossings,
            local_reads: self.local_reads + other.local_reads,
            read_bytes: self.read_bytes + other.read_bytes,
            gathers: self.gathers + other.gathers,
            gathered_bytes: self.gathered_bytes + other.gathered_bytes,
            multicasts: self.multicasts + other.multicasts,
            multicast_bytes: self.multicast_bytes + other.multicast_bytes,
            chunks: self.chunks + other.chunks,
            chunks_dropped: self.chunks_dropped + other.chunks_dropped,
            fetches: self.fetches + other.fetches,
            fetched_bytes: self.fetched_bytes + other.fetched_bytes,
            writes: self.writes + other.writes,
            written_bytes: self.written_bytes + other.written_bytes,
            task_bytes: self.task_bytes + other.task_bytes,
            bindings: self.bindings + other.bindings,
            aliases_replaced: self.aliases_replaced + other.aliases_replaced,
            wrong: self.wrong + other.wrong,
        }
    }
}
