//! Event: what the protocol of a communicator is notified of.

use flexcast_proto::{Failure, PieceSet, Summary};

/// What has happened, on the connections or with the operation under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'e> {
    /// A message of a peer has come.
    Message { from: u32, bytes: &'e [u8] },
    /// All reads of a tag are over.
    Read { tag: u32 },
    /// The connection to a rank is broken: a work completion status.
    Broken { rank: u32, status: u32 },
    /// At the other end of the connection to a rank there is somebody else.
    Wrong { rank: u32, came: &'e str },
    /// The carrier can receive the operation: receives are posted.
    Armed,
    /// Multicast has brought all blocks.
    Received,
    /// The own block is whole in the user's buffer.
    OwnBlock,
    /// Multicast brings nothing more of these pieces, which are not whole. `last`: nor does it of others, which have
    /// come and may not be in the buffer yet.
    Lost { pieces: PieceSet, last: bool },
    /// These pieces of others are whole in the user's buffer.
    Placed { pieces: PieceSet },
    /// Multicast has stalled, and nothing more of it is taken: others' pieces are whole, but for these.
    CutOff { lost: PieceSet },
    /// Data of an exchange has come or gone, and the next is to come from this rank.
    Transferred { awaited: u32 },
    /// An exchange has all its bytes, and nobody waits for any of this rank.
    TransferredAll,
    /// The streams of the operation move, in or out.
    Progressed,
    /// The own multicast is over, or so nearly that the next root may begin.
    Sent,
    /// A rank has called something else.
    Disagrees { rank: u32, theirs: Summary, own: Summary },
    /// The operation cannot go on.
    Failed(Failure),
    /// The process on the card has died, and with it the protocol, if it ran there.
    Crashed(Failure),
    /// A deadline may have passed.
    Time,
}
