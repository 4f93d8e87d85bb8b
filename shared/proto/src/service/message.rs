//! Inputs and outputs of a service process: memory, calls, messages between processes, events, actions.

use alloc::vec::Vec;

use super::error::Failure;

/// One collective of one group: what isolates it from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId {
    /// Number of the group (communicator).
    pub group: u32,
    /// Number of the collective in the group, modulo 2^32. Each rank counts its collectives from 0.
    pub collective: u32,
}

/// Registered memory of a host, as the reader's card can use it: for Reads that a service process posts, `key` is an
/// alias key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// First byte, in the owner's address space.
    pub address: u64,
    /// Memory key.
    pub key: u32,
    /// Length in bytes; 0 for a block without data, which nobody reads.
    pub bytes: u64,
}

/// What a rank calls, with all that its service process must know (OP-START).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Non-blocking Alltoallv. [`alltoallv_call`](super::call::alltoallv_call) makes one from counts and displacements.
    Alltoallv {
        /// By destination: what it is sent.
        send: Vec<Region>,
        /// By source: where its data goes.
        receive: Vec<Region>,
    },
    /// Allgatherv. [`allgatherv_call`](super::call::allgatherv_call) makes one from counts and displacements.
    Allgatherv {
        /// The own block. In place: the own part of `receive`.
        send: Region,
        /// By source: where its block goes.
        receive: Vec<Region>,
        /// Who copies blocks inside a host. All ranks say the same.
        copies: LocalCopies,
    },
}

/// Who copies a block of an Allgatherv from the rank of a host that has it to the host's other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalCopies {
    /// Each rank for itself, once it is notified of where the block lies. A rank that computes does not copy, so that
    /// it has to call its library now and then.
    Host,
    /// The card, by a Read that the service process of the receiving rank posts. No rank does anything between call and
    /// flag. Each copy goes over the PCIe link of the host twice, out and in.
    Card,
}

/// The two collectives that read from host to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Every rank has data for every other.
    Alltoallv,
    /// Every rank has one block for all others.
    Allgatherv(LocalCopies),
}

impl core::fmt::Display for Operation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Alltoallv => "Alltoallv",
            Self::Allgatherv(LocalCopies::Host) => "Allgatherv with copies by the hosts",
            Self::Allgatherv(LocalCopies::Card) => "Allgatherv with copies by the cards",
        })
    }
}

impl Call {
    /// Which collective it is.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Alltoallv { .. } => Operation::Alltoallv,
            Self::Allgatherv { copies, .. } => Operation::Allgatherv(*copies),
        }
    }
}

/// A block of an Allgatherv that can be read (READY-TO-READ).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announcement {
    /// Whose block it is.
    pub source: u32,
    /// Where it lies.
    pub region: Region,
}

/// Who has read a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// Alltoallv: the rank that it is for.
    Rank(u32),
    /// Allgatherv: a rank of this host, for all of them.
    Host(u32),
}

/// What a service process says to another one, or to itself, about one context. Connections are reliable and keep the
/// order of the messages of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Alltoallv: data of `source` for `target` can be read (READY-TO-READ).
    Ready {
        /// Whose data it is.
        source: u32,
        /// For whom; the receiving process serves it.
        target: u32,
        /// Where it lies.
        region: Region,
    },
    /// Allgatherv: a block can be read by one rank of the receiver's host (READY-TO-READ). `forwards` is 0 from the
    /// source's process, and otherwise how often local processes have passed it on.
    Block {
        /// The block.
        announcement: Announcement,
        /// How often it was passed on, below the number of processes of the host.
        forwards: u32,
        /// Who copies blocks inside a host, as the source's call says.
        copies: LocalCopies,
    },
    /// Allgatherv: a block has been put on the shared list of the host. Without this a process whose rank has entered
    /// since it passed the block on would not check again, and the block would wait for another rank although one is
    /// ready.
    Listed,
    /// The data of `source` has been read.
    HasRead {
        /// Whose data it was.
        source: u32,
        /// By whom.
        reader: Reader,
    },
    /// Allgatherv: a block lies in the memory of a rank of the same host (LOCAL-DATA between processes).
    Held {
        /// Whose block it is.
        source: u32,
        /// Who has it.
        holder: u32,
        /// Where it lies.
        region: Region,
        /// Who copies it to the other ranks, as the holder's call says.
        copies: LocalCopies,
    },
    /// Allgatherv: a rank of the same host has copied a block from its holder, who waits for that before it gives its
    /// buffers back.
    Copied {
        /// Whose block it is.
        source: u32,
        /// From whom it was copied.
        holder: u32,
        /// Who has copied it.
        by: u32,
    },
    /// A Read has failed by the memory of a rank that the receiver serves. The receiver knows whether the rank has
    /// taken its memory back because the collective had failed before, and otherwise says that it fails now: so the
    /// first failure is the one that all name.
    Unreadable {
        /// Whose memory could not be read or written.
        source: u32,
        /// The code of the completion.
        code: u16,
    },
    /// The collective has failed, or the whole group where the cause is a death.
    Failed(Failure),
}

/// One Read, from host memory to host memory. Source, target and context name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    /// Whose data it is; the target itself for its own block, which crosses no network.
    pub source: u32,
    /// In whose memory it lies: the source's, or that of the rank of the target's host that has read it before
    /// ([`LocalCopies::Card`]).
    pub holder: u32,
    /// Into whose buffer it goes.
    pub target: u32,
    /// Where it lies.
    pub from: Region,
    /// Where it goes; as long as `from`.
    pub to: Region,
}

/// Why a Read has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadError {
    /// The code of the completion.
    pub code: u16,
    /// Whose memory is at fault: the holder's, the target's, or that of a rank whose Read has broken the connection of
    /// this one before.
    pub rank: u32,
}

/// What happens to a service process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A rank that this process serves has called a collective (OP-START).
    Entered {
        /// Which one.
        context: ContextId,
        /// The rank.
        rank: u32,
        /// What it calls.
        call: Call,
    },
    /// A message has come.
    Arrived {
        /// From which process of the group.
        from: u32,
        /// About what.
        context: ContextId,
        /// What it says.
        message: Message,
    },
    /// A Read is over, well or not.
    ReadDone {
        /// Of which collective.
        context: ContextId,
        /// Its source.
        source: u32,
        /// Its target.
        target: u32,
        /// Why it failed, if it did.
        error: Option<ReadError>,
    },
    /// The answer to [`Action::Claim`]: an entry of the shared list that is now this process's alone, or none.
    Claimed {
        /// Of which collective.
        context: ContextId,
        /// The entry.
        announcement: Option<Announcement>,
    },
    /// A local rank has copied the block of `source` as [`Action::Notify`] instructed it. A copy from a rank that has
    /// taken its memory back must fail on the host; the rank says nothing then, and is notified of the failure.
    Copied {
        /// Of which collective.
        context: ContextId,
        /// The rank.
        rank: u32,
        /// Whose block.
        source: u32,
    },
    /// A rank of a group has died. Its own process knows it from its connection, and notifies the others.
    RankDied {
        /// Of which group.
        group: u32,
        /// The rank.
        rank: u32,
    },
    /// Another service process of a group has died.
    ProcessDied {
        /// Of which group.
        group: u32,
        /// The process.
        process: u32,
    },
}

/// What a service process wants done. Actions are carried out in order, before the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a message: an announcement, a forward, a notice. `to` may be this process itself.
    Send {
        /// To which process of the group.
        to: u32,
        /// About what.
        context: ContextId,
        /// What.
        message: Message,
    },
    /// Read host memory into host memory, then bring [`Event::ReadDone`].
    Read {
        /// For which collective.
        context: ContextId,
        /// What.
        read: Read,
    },
    /// Put a block on the shared list of the host ([`SharedList::put`](super::SharedList::put)).
    Put {
        /// For which collective.
        context: ContextId,
        /// The block.
        announcement: Announcement,
    },
    /// Claim a block of this collective from the shared list ([`SharedList::claim`](super::SharedList::claim)), then
    /// bring [`Event::Claimed`].
    Claim {
        /// For which collective.
        context: ContextId,
    },
    /// Take the blocks of this collective off the shared list ([`SharedList::remove`](super::SharedList::remove)): it
    /// has failed.
    Abandon {
        /// Which collective.
        context: ContextId,
    },
    /// Notify a local rank of where to copy a block from (LOCAL-DATA); it answers by [`Event::Copied`].
    Notify {
        /// Whom.
        rank: u32,
        /// Of which collective.
        context: ContextId,
        /// Whose block.
        source: u32,
        /// Who has it.
        holder: u32,
        /// Where it lies.
        region: Region,
    },
    /// Notify a local rank that its part is over: everything is in its buffer, nobody reads from it any more (OP-DONE).
    /// Once per rank and collective.
    Complete {
        /// Whom.
        rank: u32,
        /// Which collective.
        context: ContextId,
    },
    /// Notify a local rank that the collective has failed (OP-DONE). No Read of this process goes into its buffers any
    /// more. Others may still read from them: the rank must invalidate its memory keys before it uses them again.
    Fail {
        /// Whom.
        rank: u32,
        /// Which collective.
        context: ContextId,
        /// Why.
        failure: Failure,
    },
}
