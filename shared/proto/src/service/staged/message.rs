//! Inputs and outputs of staged collectives: settings, transfers, actions, messages, failures, refusals.

use thiserror::Error;

use crate::service::error::{FailedParty, of_completion};
use crate::service::message::Region;
use crate::service::task::{Descriptor, Part};

/// What a group's staged collectives may use on a service process. `staging_bytes`, `segments`, `scatter_bytes` and
/// `reader` must be the same on all processes of the group. `multicast` may differ: where one process has none the
/// group goes without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Staging {
    /// Memory of the card for this group, in bytes.
    pub staging_bytes: u64,
    /// Segments under way at once, at least 1: while one is written the next is read.
    pub segments: u32,
    /// Reads and Writes under way at once, at least 1.
    pub transfers: u32,
    /// Collectives whose calls are kept, the current one included, at least 1.
    pub collectives: u32,
    /// Segments of a Broadcast from so many bytes on go between the processes by scatter and Allgather, shorter ones
    /// down a binomial tree.
    pub scatter_bytes: u64,
    /// Who reads a Broadcast's message.
    pub reader: Reader,
    /// Segments go between the processes by multicast, if all of the group can; none: by messages and Reads.
    pub multicast: Option<Multicast>,
}

/// How segments go between processes by multicast. What is lost is read from the process that has sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multicast {
    /// How long missing chunks may still come once their source has said that all are sent, in picoseconds. Then they
    /// are read.
    pub repair_ps: u64,
    /// In an Allgather processes send in turn: each once no more than so many bytes of those before it are still to
    /// come.
    pub ahead_bytes: u64,
}

impl Default for Multicast {
    /// 50 us: what the queue of a switch with 1.25 MB holds up a chunk at 200 Gbit/s. 256 KiB: what a link of 200
    /// Gbit/s carries in 10 us, while the next process learns that it is its turn and its first chunk comes.
    fn default() -> Self {
        Self { repair_ps: 50_000_000, ahead_bytes: 256 << 10 }
    }
}

/// How staged data goes between the processes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Between {
    /// A Broadcast by OFFER messages and Reads of each other's staging memory; in an Allgather each process writes to
    /// the ranks of all hosts.
    #[default]
    Messages,
    /// By multicast into the staging memory of all, each of which writes to its own ranks.
    Multicast,
}

impl Default for Staging {
    /// 8 MiB of staging, 2 segments, 16 transfers, 8 collectives, scatter from 64 KiB on, the root's process reads, no
    /// multicast.
    fn default() -> Self {
        Self {
            staging_bytes: 8 << 20,
            segments: 2,
            transfers: 16,
            collectives: 8,
            scatter_bytes: 64 << 10,
            reader: Reader::OfRoot,
            multicast: None,
        }
    }
}

/// Which process reads the message of a Broadcast from host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// The root's own.
    OfRoot,
    /// Process 0, as published.
    First,
}

/// Bytes of the staging memory, or of that of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Staged {
    /// From the begin of the group's staging memory.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// One transfer. Its collective and this name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Read a segment of a rank's send buffer into staging.
    Gather {
        /// Which segment.
        segment: u32,
        /// Whose.
        rank: u32,
    },
    /// Read from the staging memory of another process.
    Fetch {
        /// Which segment.
        segment: u32,
        /// Number of the message in the processes' schedule.
        tag: u32,
    },
    /// Multicast what this process has of a segment.
    Multicast {
        /// Which segment.
        segment: u32,
    },
    /// Read chunks of a segment that a multicast has not brought from the staging memory of their source.
    Repair {
        /// Which segment.
        segment: u32,
        /// The process that has multicast it.
        source: u32,
        /// The first of the chunks.
        chunk: u32,
    },
    /// Write into a receive buffer or shared segment.
    Deliver {
        /// Which segment.
        segment: u32,
        /// Whose.
        target: u32,
        /// First rank whose data it is.
        first: u32,
    },
    /// Read host memory into host memory.
    Copy {
        /// Whose.
        source: u32,
        /// For whom.
        target: u32,
    },
    /// Write the flag of this process.
    Flag {
        /// Whose.
        target: u32,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StagedAction {
    /// Read host memory into staging memory, then bring [`StagedEvent::Done`].
    Read {
        /// Of which collective.
        collective: u32,
        /// Which transfer.
        work: Work,
        /// From where.
        from: Region,
        /// To where.
        to: Staged,
    },
    /// Read staging memory of a process into the same places of the own, then bring [`StagedEvent::Done`], once for
    /// both ranges.
    Fetch {
        /// Of which collective.
        collective: u32,
        /// Which transfer.
        work: Work,
        /// From which process.
        from: u32,
        /// What; the second range is mostly empty.
        ranges: [Staged; 2],
    },
    /// Multicast staging memory to the group in chunks, the last of which may be shorter, then bring
    /// [`StagedEvent::Done`] once none is read any more. Where they cannot be sent the others read them: that is no
    /// error.
    Multicast {
        /// Of which collective.
        collective: u32,
        /// Which transfer.
        work: Work,
        /// What.
        from: Staged,
        /// Bytes of a chunk.
        chunk_bytes: u32,
        /// Immediate of the first chunk; that of each other is one more.
        immediate: u32,
    },
    /// Read host memory of a rank into that of a rank of this process, then bring [`StagedEvent::Done`].
    Copy {
        /// Of which collective.
        collective: u32,
        /// Which transfer.
        work: Work,
        /// From where.
        from: Region,
        /// To where.
        to: Region,
    },
    /// Write staging memory into host memory, then bring [`StagedEvent::Done`]. Writes to one rank go over one reliable
    /// queue pair, in order.
    Write {
        /// Of which collective.
        collective: u32,
        /// Which transfer.
        work: Work,
        /// From where.
        from: Staged,
        /// To where.
        to: Region,
    },
    /// Write a flag, on the queue pair that has taken all Writes to this rank, so that it comes after them; then bring
    /// [`StagedEvent::Done`].
    WriteFlag {
        /// Of which collective.
        collective: u32,
        /// Which transfer.
        work: Work,
        /// Its value.
        value: u64,
        /// To where.
        to: Region,
    },
    /// Send a message to another process of the group.
    Send {
        /// To which.
        to: u32,
        /// Of which collective.
        collective: u32,
        /// What.
        message: StagedMessage,
    },
    /// Notify a local rank that the group has failed: each of its collectives that is not over by its flags. Its memory
    /// keys must be invalidated before it uses the buffers again, since processes may still write.
    Fail {
        /// Whom.
        rank: u32,
        /// Why.
        failure: StagedFailure,
    },
}

/// What a process says to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StagedMessage {
    /// Data for the receiver lies in the sender's staging memory. It has been multicast where the group does that.
    Offer {
        /// Which segment.
        segment: u32,
        /// Number of the message among those that the receiver gets; of a multicast the source.
        tag: u32,
    },
    /// What was offered has been read; of a multicast the receiver has written all of the segment to its ranks, too,
    /// and so has room for a further one.
    Taken {
        /// Which segment.
        segment: u32,
        /// Number of the message; of a multicast the source.
        tag: u32,
    },
    /// The group's collectives have failed.
    Failed(StagedFailure),
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StagedEvent {
    /// A rank of the group, of any host, has called a collective (TASK).
    Called {
        /// Its number in the group.
        collective: u32,
        /// What is called.
        descriptor: Descriptor,
        /// The rank and its buffers.
        part: Part,
    },
    /// A message has come.
    Arrived {
        /// From which process.
        from: u32,
        /// Of which collective.
        collective: u32,
        /// What.
        message: StagedMessage,
    },
    /// A transfer is over, well or not.
    Done {
        /// Of which collective.
        collective: u32,
        /// Which one.
        work: Work,
        /// The code of the completion where it failed.
        error: Option<u16>,
    },
    /// The time, in picoseconds, by a clock that never goes back.
    Time(u64),
    /// A rank or another process of the group has died.
    Died(FailedParty),
    /// A connection between processes is broken, which all transfers over it fail with: by a transfer of memory of the
    /// failed rank, of this or of another kind of collectives of the group.
    Broken {
        /// Whose memory is at fault.
        failed_rank: FailedParty,
        /// The code of the completion.
        code: u16,
    },
}

/// Why the group's staged collectives have failed. None can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{failed_rank} {cause}")]
pub struct StagedFailure {
    /// Who is at fault.
    pub failed_rank: FailedParty,
    /// What happened.
    pub cause: StagedCause,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum StagedCause {
    /// The failed rank is gone.
    #[error("has died: make a new communicator without it")]
    Died,
    /// A transfer from or to memory of the failed rank failed. The code is that of the completion.
    #[error("has memory that a transfer failed on ({}, completion code {code}): check its memory keys and its network", of_completion(*.0), code = .0)]
    Transfer(u16),
    /// The failed rank has called something else than another rank.
    #[error("has called another collective or other lengths than the rank before: call the same on all ranks")]
    Disagrees,
}

/// An event or a group that is refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StagedRefusal {
    /// A limit that cannot work.
    #[error("limit {name} is {value}: give at least {least}")]
    Limit {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: u64,
        /// The least that works.
        least: u64,
    },
    /// A process that the group does not have.
    #[error("service process {process} of {processes}: a group's processes are numbered from 0")]
    Process {
        /// What was given.
        process: u32,
        /// Processes of the group.
        processes: u32,
    },
    /// A collective too far ahead.
    #[error(
        "collective {collective}, but {oldest} is not over and {limit} are kept: offer it again later, or raise \
         `collectives`"
    )]
    Collectives {
        /// What was called.
        collective: u32,
        /// The oldest that is not over.
        oldest: u32,
        /// How many are kept.
        limit: u32,
    },
    /// A rank or root that the group does not have.
    #[error("rank {rank} of {ranks}: ranks are numbered from 0")]
    Rank {
        /// What was given.
        rank: u32,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A buffer of another length.
    #[error("the {name} buffer of rank {rank} has {found} bytes, but the collective needs {expected}: give as many")]
    Buffer {
        /// Which buffer.
        name: &'static str,
        /// Whose.
        rank: u32,
        /// What was given.
        found: u64,
        /// What is needed.
        expected: u64,
    },
    /// A group for which there is no staging memory left.
    #[error(
        "staging exhausted: the group asks for {asked} bytes, {held} of {limit} are in use: end a group, lower \
         `staging_bytes` of a group, or raise that of the service process"
    )]
    Exhausted {
        /// What the group asks for.
        asked: u64,
        /// What other groups have.
        held: u64,
        /// What all groups together may have.
        limit: u64,
    },
    /// A group that has no staging memory here, or whose rank this is not.
    #[error(
        "group {group} takes no staged collectives of this rank: join it first, and give its service processes staging \
         memory"
    )]
    NoStaging {
        /// The group.
        group: u32,
    },
}
