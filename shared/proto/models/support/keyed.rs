//! Keyed hash of tests.

use flexcast_proto::session::Secret;

/// A keyed hash for tests: every bit of secret and message changes the tag. It keeps no secret.
pub(crate) fn hash(secret: &Secret, message: &[u8]) -> [u8; 32] {
    let mut state: [u64; 4] = core::array::from_fn(|at| at as u64 + 1);
    for byte in secret.bytes().iter().chain(message) {
        for at in 0..4 {
            let mixed = state[at] ^ state[(at + 1) % 4].rotate_left(23) ^ u64::from(*byte);
            state[at] = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    let mut tag = [0; 32];
    tag.chunks_exact_mut(8).zip(state).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    tag
}
