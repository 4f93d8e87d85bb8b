//! Tags of the messages of a session.

use alloc::vec::Vec;

use super::{HandshakeError, Key, KeyedHash, Secret, TAG_BYTES, is_same};

/// Tags of the messages that go in one direction. They are counted on both sides and their numbers are not sent: what
/// is changed, inserted, repeated, left out or in another order has the tag of no message that is due.
///
/// For messages that are few and short: each is hashed as a whole.
#[derive(Clone, Debug)]
pub struct MessageTags {
    key: Secret,
    next: u64,
}

impl MessageTags {
    /// Of a direction that has this key.
    #[must_use]
    pub const fn new(key: &Key) -> Self {
        Self { key: Secret::new(*key), next: 0 }
    }

    /// The tag of the message that is sent next.
    #[must_use]
    pub fn next(&mut self, message: &[u8], hash: &impl KeyedHash) -> [u8; TAG_BYTES] {
        let mut numbered = Vec::with_capacity(size_of::<u64>() + message.len());
        numbered.extend_from_slice(&self.next.to_le_bytes());
        numbered.extend_from_slice(message);
        self.next += 1;
        hash.tag(&self.key, &numbered)
    }

    /// Checks the tag of a message that has come. After an error nothing that comes counts.
    ///
    /// # Errors
    /// The other side has not sent it, or not in this place.
    pub fn check(
        &mut self,
        message: &[u8],
        tag: &[u8; TAG_BYTES],
        hash: &impl KeyedHash,
    ) -> Result<(), HandshakeError> {
        if is_same(&self.next(message, hash), tag) { Ok(()) } else { Err(HandshakeError::Tag) }
    }
}
