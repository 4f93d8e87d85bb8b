//! Greetings of connections: the keyed hash, and a rank as one of their sides.

use flexcast_proto::session::greeting::{MOST_QUEUE_PAIRS, SIDE_NONCE_BYTES, Side};
use flexcast_proto::session::{Party, Secret, TAG_BYTES};
use flexio::Gid;

/// The keyed hash of handshakes and greetings: HMAC-SHA-256.
#[must_use]
pub fn keyed_hash(secret: &Secret, message: &[u8]) -> [u8; TAG_BYTES] {
    hmac_sha256::HMAC::mac(message, secret.bytes())
}

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
