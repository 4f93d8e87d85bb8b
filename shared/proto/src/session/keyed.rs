//! Keyed hash, and the secret that is its key.

/// Bytes of a tag, and of a secret.
pub const TAG_BYTES: usize = 32;

/// A keyed hash with a key and tags of 256 bits, such as HMAC-SHA-256 or keyed BLAKE3: who does not know the key cannot
/// make the tag of a message that was never tagged.
pub trait KeyedHash {
    /// The tag of a message.
    fn tag(&self, secret: &Secret, message: &[u8]) -> [u8; TAG_BYTES];
}

impl<F: Fn(&Secret, &[u8]) -> [u8; TAG_BYTES]> KeyedHash for F {
    fn tag(&self, secret: &Secret, message: &[u8]) -> [u8; TAG_BYTES] {
        self(secret, message)
    }
}

/// Secret that the parties to a session share. Its `Debug` shows none of it.
#[derive(Clone)]
pub struct Secret([u8; TAG_BYTES]);

impl Secret {
    /// A secret of 256 random bits.
    #[must_use]
    pub const fn new(bytes: [u8; TAG_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for a [`KeyedHash`].
    #[must_use]
    pub const fn bytes(&self) -> &[u8; TAG_BYTES] {
        &self.0
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The keyed hash that handshakes and greetings of this release have: HMAC-SHA-256.
#[cfg(feature = "keyed-hash")]
#[must_use]
pub fn keyed_hash(secret: &Secret, message: &[u8]) -> [u8; TAG_BYTES] {
    hmac_sha256::HMAC::mac(message, secret.bytes())
}

/// Whether two tags are the same, in a time that does not show where they differ.
pub(crate) fn is_same(a: &[u8; TAG_BYTES], b: &[u8; TAG_BYTES]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b));
    core::hint::black_box(difference) == 0
}
