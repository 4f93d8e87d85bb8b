//! Inputs and outputs of a [`Participant`](crate::Participant): descriptor, control messages, actions, refusals.

use thiserror::Error;

use crate::agreement::Summary;
use crate::barrier::BarrierError;
use crate::failure::Failure;
use crate::handshake::HandshakeError;
use crate::pieces::PieceSet;
use crate::ranks::RankSet;
use crate::recovery::RecoveryError;
use crate::sequencer::SequenceError;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Number of the operation, modulo 2^32.
    pub operation: u32,
    /// What it says.
    pub body: Body,
}

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// The sender and all before it in this round of the barrier can receive.
    Barrier {
        /// Round, from 0.
        round: u8,
        /// What the sender has called.
        summary: Summary,
    },
    /// It is the receiver's turn to multicast.
    Activate,
    /// The sender misses chunks of these pieces.
    Fetch {
        /// The pieces.
        pieces: PieceSet,
        /// Whether multicast is over for the sender: it asks for nothing more.
        last: bool,
    },
    /// Pieces that were asked for can be read from the sender.
    Acknowledge {
        /// The pieces.
        pieces: PieceSet,
    },
    /// The sender has everything and will not read any more.
    Final,
    /// The operation has failed for everybody.
    Failed {
        /// Who failed, who noticed, and why.
        failure: Failure,
        /// Of calls that differ: what the one and the other have called. None of other failures.
        calls: Option<[Summary; 2]>,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a control message.
    Send {
        /// To whom.
        to: u32,
        /// What.
        message: Message,
    },
    /// Multicast the own block, then call [`Participant::sent`](crate::Participant::sent).
    Multicast,
    /// Read the missing runs of pieces from a rank's user buffer, and call
    /// [`Participant::read`](crate::Participant::read) after each piece.
    Read {
        /// From whom.
        from: u32,
        /// The pieces.
        pieces: PieceSet,
    },
    /// The operation is over on this rank: its buffers are the user's. Comes once.
    Release,
    /// The operation has failed; nothing more happens, and no other operation can follow. Comes once.
    ///
    /// A neighbour that does not know of it may still read the buffers, and packets may still arrive: before they are
    /// the user's again their memory keys must be invalidated and the own worker and sends be over. A read that this
    /// makes fail is the neighbour's [`Cause::Connection`](crate::Cause::Connection), and never data.
    Fail(Failure),
}

/// What an operation is. Number, roots and summary are alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperationDescriptor {
    /// Number of the operation, modulo 2^32.
    pub operation: u32,
    /// Ranks that contribute a block; one for Broadcast.
    pub roots: RankSet,
    /// Pieces into which each block is cut for recovery, as [`Pieces::new`](crate::Pieces::new) takes them; alike on
    /// all ranks, as it follows from the rest.
    pub pieces: u32,
    /// What is compared with the other ranks. Its chains are those of the schedule.
    pub summary: Summary,
    /// How long the barrier may take, in picoseconds: ranks may post at very different times.
    pub barrier_timeout_ps: u64,
    /// Time from the end of the barrier to the latest cutoff while no data comes, in picoseconds.
    pub cutoff_ps: u64,
    /// Time from the end of the barrier, or from when data last came, after which the operation has failed, in
    /// picoseconds. More than the cutoff.
    pub bound_ps: u64,
}

/// A message that cannot be. The connection it came on is not to be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// Of an operation that is not at hand.
    #[error("message of operation {operation} from rank {from}, but this rank is at {current}")]
    Operation {
        /// Who sent it.
        from: u32,
        /// What it is for.
        operation: u32,
        /// What is current.
        current: u32,
    },
    /// Of the barrier.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// Of the sequencer.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Of recovery.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// Of the handshake.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}
