//! Notices to the protocol, and its steps.

use flexcast_proto::{Availability, Failure, PieceSet, Summary};

/// What the engine notifies a driver of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// The receive contexts have taken the operation over: receives are posted.
    Armed,
    /// Multicast has brought all blocks.
    Received,
    /// The own block is whole in the user's buffer, if the driver waits for it ([`Driver::takes_late_copies`]).
    OwnBlock,
    /// Multicast brings nothing more of these pieces, which are not whole. `last`: nor does it of others, which have
    /// come and may not be in their place yet.
    Lost { pieces: PieceSet, last: bool },
    /// These pieces of others are whole in the user's buffer.
    Placed { pieces: PieceSet },
    /// Multicast has stalled, and the receive contexts are closed: others' pieces are whole, but for these.
    CutOff { lost: PieceSet },
    /// Data of a direct operation has come or gone, and the next is to come from this rank.
    Transferred { awaited: u32 },
    /// A direct operation has all its bytes, and nobody waits for any of this rank.
    TransferredAll,
    /// The streams of the operation move, in or out.
    Progressed,
    /// The own multicast is over, or so nearly that the next root may begin.
    Sent,
    /// The connections of a direct operation have found that a rank called something else.
    Disagrees { rank: u32, theirs: Summary, own: Summary },
    /// The operation cannot go on.
    Failed(Failure),
    /// The process on the card has died: nothing there can tell the other ranks.
    Crashed(Failure),
    /// A deadline may have passed.
    Time,
}

/// What the engine has to do for the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// It is this rank's turn to multicast.
    Multicast,
    /// Read what is missing of pieces from a rank.
    Read {
        from: u32,
        pieces: PieceSet,
        /// Where that rank has them; none if it has not said so.
        at: Option<Availability>,
    },
    /// All ranks have what they need from this one, the own sends apart.
    Release,
    /// The card is done with the own sends, too.
    SendsFinished,
    /// The operation has failed on some rank, and the communicator with it.
    Fail(Failure),
}

/// What has happened on the connections.
#[derive(Debug)]
pub(crate) enum Event<'e> {
    /// A message has come.
    Message { from: u32, bytes: &'e [u8] },
    /// All reads of a tag are over.
    Read { tag: u32 },
    /// The connection to a rank is broken: a work completion status.
    Broken { rank: u32, status: u32 },
    /// At the other end of the connection to a rank there is somebody else.
    Wrong { rank: u32, came: String },
}
