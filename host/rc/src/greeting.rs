//! A rank as one side of the greeting of a connection.

use flexcast_proto::session::Party;
use flexcast_proto::session::greeting::{MOST_QUEUE_PAIRS, SIDE_NONCE_BYTES, Side};
use flexio::Gid;

/// A rank, with its queue pairs for another one.
#[must_use]
pub const fn side(
    rank: u32,
    nonce: [u8; SIDE_NONCE_BYTES],
    Gid(address): Gid,
    queue_pairs: [u32; MOST_QUEUE_PAIRS],
) -> Side {
    Side { party: Party::rank(rank), nonce, address, queue_pairs }
}
