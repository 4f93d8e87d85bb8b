//! Tags of the frames of a connection: keyed hashes under the keys that its handshake has given.
//!
//! A frame has two: one of its header, its number in this direction and the tag of its contents, and that one. So a
//! header is known to be right before its length is believed, and the bytes of a fragment are hashed as they come,
//! where they are. Numbers are counted on both sides and not sent: what is inserted, repeated, left out or in another
//! order has the number of another frame. The two have keys of their own: the contents may be whatever a user sends,
//! and their tag must not serve for a header.
//!
//! The hash is HighwayHash with 64 bits, as that of datagrams. One try to forge a frame succeeds with a probability of
//! 2^-64, and ends the connection otherwise.

use flexcast_proto::session::{Key, Session};
use highway::{HighwayHash as _, HighwayHasher};

use crate::frame::Frame;

/// Tags of one direction.
#[derive(Debug)]
pub(super) struct Tags {
    header: highway::Key,
    contents: highway::Key,
    /// The number of the next frame.
    next: u64,
}

/// The tags of both directions.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) send: Tags,
    pub(super) receive: Tags,
}

impl Pair {
    pub(super) fn new(session: &Session) -> Self {
        Self { send: Tags::new(&session.send), receive: Tags::new(&session.receive) }
    }
}

/// The hash of contents that come bit by bit.
pub(super) struct Contents(HighwayHasher);

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contents")
    }
}

impl Contents {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.append(bytes);
    }

    pub(super) fn tag(self) -> u64 {
        self.0.finalize64()
    }
}

/// One of the two keys of a direction.
fn derived(key: &Key, label: &[u8]) -> highway::Key {
    let bytes = hmac_sha256::HMAC::mac(label, key);
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    highway::Key(std::array::from_fn(|_| words.next().unwrap_or_default()))
}

impl Tags {
    pub(super) fn new(key: &Key) -> Self {
        Self { header: derived(key, b"flexcast headers"), contents: derived(key, b"flexcast contents"), next: 0 }
    }

    /// Number of the next frame: as many have been sent or taken.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// The frame with that number has been sent or taken.
    pub(super) const fn count(&mut self) {
        self.next += 1;
    }

    pub(super) fn contents(&self) -> Contents {
        Contents(HighwayHasher::new(self.contents))
    }

    /// The tag of contents that are there as a whole.
    pub(super) fn of_contents(&self, bytes: &[u8]) -> u64 {
        let mut contents = self.contents();
        contents.add(bytes);
        contents.tag()
    }

    /// The tag of a header. `detail`: what counts as part of it though it stands behind it.
    pub(super) fn of_header(&self, number: u64, frame: &Frame, detail: &[u8]) -> u64 {
        let mut hasher = HighwayHasher::new(self.header);
        hasher.append(&number.to_le_bytes());
        hasher.append(frame.tagged());
        hasher.append(detail);
        hasher.finalize64()
    }
}
