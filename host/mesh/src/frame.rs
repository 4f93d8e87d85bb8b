//! Frames on a connection between two ranks.
//!
//! | Frame | Contents behind the 28 bytes of its header, little-endian |
//! |---|---|
//! | message | a control message, and eager data behind it |
//! | request | tag, offset and bytes of a range of the receiver's buffer |
//! | data | tag, offset, and bytes of the sender's buffer from there on |
//! | transfer | a [`Head`], and the bytes of its fragment |
//! | end | nothing: the sender leaves, and has nothing left to say |
//!
//! | Offset | Bytes | Field of a header |
//! |---:|---:|---|
//! | 0 | 4 | length of the contents |
//! | 4 | 1 | kind |
//! | 5 | 3 | zeros |
//! | 8 | 4 | operation |
//! | 12 | 8 | tag of the contents, in a transfer frame of those behind its [`Head`]; 0 without any |
//! | 20 | 8 | tag of the frame's number and of the header, with its [`Head`] |
//!
//! Both tags are 0 in shared memory, on connections to aggregators without a secret, and where nothing is authenticated
//! (`tags` has more).

use flexcast_proto::{Algorithm, Kind, Summary};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::tags::Tags;

/// Kind of a frame with a control message, and eager data behind it.
pub const MESSAGE: u8 = 1;
pub(crate) const REQUEST: u8 = 2;
pub(crate) const DATA: u8 = 3;
/// Kind of a frame without contents: the sender leaves.
pub const END: u8 = 4;
pub(crate) const TRANSFER: u8 = 5;

/// Bytes of a buffer in one data frame.
pub(crate) const DATA_BYTES: usize = 64 << 10;
/// Longest contents of a frame that is taken as a whole: an eager message, or data.
pub const MOST_FRAME_BYTES: usize = DATA_BYTES + 64;
/// Most bytes of a message in one transfer frame: what a control message may have to wait for.
pub(crate) const FRAGMENT_BYTES: u64 = 256 << 10;

/// The beginning of a frame: its header.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Frame {
    /// Length of the contents in bytes.
    pub len: U32,
    /// Kind of the frame.
    pub kind: u8,
    /// Zeros.
    pub zero: [u8; 3],
    /// Number of the operation.
    pub operation: U32,
    /// Tag of the contents; 0 without tags.
    pub contents_tag: U64,
    /// Tag of the frame's number and of this header; 0 without tags.
    pub tag: U64,
}

/// Bytes of a header.
pub const FRAME_BYTES: usize = size_of::<Frame>();

impl Frame {
    /// A header without tags. Its contents of `len` bytes follow.
    #[must_use]
    pub fn new(kind: u8, operation: u32, len: usize) -> Self {
        let (contents_tag, tag) = (U64::ZERO, U64::ZERO);
        Self { len: (len as u32).into(), kind, zero: [0; 3], operation: operation.into(), contents_tag, tag }
    }

    /// What its tag covers of it.
    pub(super) fn tagged(&self) -> &[u8] {
        &self.as_bytes()[..FRAME_BYTES - size_of::<U64>()]
    }

    /// Tags a frame of which all bytes are there.
    pub(super) fn seal(frame: &mut [u8], tags: &mut Tags) {
        let Ok((header, rest)) = Self::mut_from_prefix(frame) else { return };
        let detail_bytes = if header.kind == TRANSFER { HEAD_BYTES } else { 0 };
        let (detail, contents) = rest.split_at(detail_bytes.min(rest.len()));
        let contents_tag = if contents.is_empty() { 0 } else { tags.of_contents(contents) };
        header.seal_with(contents_tag, detail, tags);
    }

    /// The same with the tag of the contents. `detail`: the bytes of its [`Head`], if it has one.
    pub(super) fn seal_with(&mut self, contents_tag: u64, detail: &[u8], tags: &mut Tags) {
        self.contents_tag = contents_tag.into();
        self.tag = tags.of_header(tags.next(), self, detail).into();
        tags.count();
    }

    /// Whether it is frame number `number` of whoever has the other end.
    pub(super) fn is_genuine(&self, number: u64, detail: &[u8], tags: &Tags) -> bool {
        self.tag.get() == tags.of_header(number, self, detail)
    }

    /// Whether a frame may begin so.
    pub(crate) fn is_sound(&self) -> bool {
        let len = self.len.get() as usize;
        let limit = match self.kind {
            MESSAGE | DATA => MOST_FRAME_BYTES,
            REQUEST => size_of::<RequestBody>(),
            TRANSFER => HEAD_BYTES + FRAGMENT_BYTES as usize,
            END => 0,
            _ => return false,
        };
        len <= limit && self.zero == [0; 3]
    }
}

/// A range of a peer's buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RequestBody {
    pub(crate) tag: U32,
    pub(crate) offset: U64,
    pub(crate) bytes: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DataBody {
    pub(crate) tag: U32,
    pub(crate) offset: U64,
}

/// What a transfer frame begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct HeadBody {
    tag: U32,
    kind: u8,
    algorithm: u8,
    zero: [u8; 2],
    root: U32,
    unit: U32,
    amount: U64,
    total: U64,
    offset: U64,
}

/// Bytes of the beginning of a transfer frame's contents.
pub const HEAD_BYTES: usize = size_of::<HeadBody>();

/// A part of a message between two ranks, and what the sender has called: the receiver compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the operation.
    pub operation: u32,
    /// The message's number among those that the receiver gets.
    pub tag: u32,
    /// What the sender has called.
    pub summary: Summary,
    /// Bytes of the message.
    pub total: u64,
    /// Where the fragment begins in it.
    pub offset: u64,
    /// Bytes of the fragment.
    pub bytes: u64,
}

impl Head {
    /// The header of its frame, and its own bytes; those of the fragment follow.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_BYTES + HEAD_BYTES] {
        let Summary { kind, root, amount, chunk_bytes, algorithm, .. } = self.summary;
        let body = HeadBody {
            tag: self.tag.into(),
            kind: kind as u8,
            algorithm: algorithm as u8,
            zero: [0; 2],
            root: root.into(),
            unit: chunk_bytes.into(),
            amount: amount.into(),
            total: self.total.into(),
            offset: self.offset.into(),
        };
        let mut bytes = [0; FRAME_BYTES + HEAD_BYTES];
        let (frame, rest) = bytes.split_at_mut(FRAME_BYTES);
        let len = HEAD_BYTES + self.bytes as usize;
        frame.copy_from_slice(Frame::new(TRANSFER, self.operation, len).as_bytes());
        rest.copy_from_slice(body.as_bytes());
        bytes
    }

    /// What a frame of this header begins with; none if it cannot be.
    pub(crate) fn decode(frame: &Frame, body: &HeadBody) -> Option<Self> {
        let bytes = u64::from(frame.len.get()).checked_sub(HEAD_BYTES as u64)?;
        let (total, offset) = (body.total.get(), body.offset.get());
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= total);
        // Only a message without bytes has an empty fragment: others would never end.
        if !is_inside || (bytes == 0 && total > 0) || body.zero != [0; 2] {
            return None;
        }
        let summary = Summary {
            kind: Kind::of_code(body.kind)?,
            root: body.root.get(),
            amount: body.amount.get(),
            chunk_bytes: body.unit.get(),
            chains: 1,
            algorithm: Algorithm::of_code(body.algorithm)?,
        };
        Some(Self { operation: frame.operation.get(), tag: body.tag.get(), summary, total, offset, bytes })
    }
}

/// Whether a control message says why its sender fails: by its kind ([`flexcast_proto::wire`]).
pub(crate) fn is_failure(message: &[u8]) -> bool {
    const KIND_AT: usize = 5;
    const FAILED: u8 = 6;
    message.get(KIND_AT) == Some(&FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_distinguished_from_other_messages() {
        use flexcast_proto::wire::{Availability, Codec};
        use flexcast_proto::{Body, Cause, Failure, Message};
        let failure = Failure { failed_rank: 1, detecting_rank: 0, cause: Cause::Cancelled };
        let encoded = |body| Codec::new(7, 4).encode(&Message { operation: 1, body }, Availability::default());
        assert!(is_failure(encoded(Body::Failed { failure, calls: None }).as_bytes()));
        assert!(!is_failure(encoded(Body::Final).as_bytes()) && !is_failure(b"FXCM"));
    }

    #[test]
    fn heads_are_what_was_encoded_and_impossible_ones_are_refused() {
        let summary = Summary::broadcast(3, 1 << 40, 7).by(Algorithm::Chain);
        let head = Head { operation: 9, tag: 5, summary, total: 1 << 20, offset: 4096, bytes: 512 };
        let decode = |bytes: &[u8]| {
            let (frame, rest) = Frame::read_from_prefix(bytes).unwrap();
            let (body, _) = HeadBody::read_from_prefix(rest).unwrap();
            frame.is_sound().then(|| Head::decode(&frame, &body)).flatten()
        };
        assert_eq!(decode(&head.encode()), Some(head));
        let empty = Head { total: 0, offset: 0, bytes: 0, ..head };
        assert_eq!(decode(&empty.encode()), Some(empty));
        for wrong in [
            Head { offset: 1 << 20, ..head },
            Head { offset: u64::MAX, ..head },
            Head { bytes: 0, ..head },
            Head { bytes: FRAGMENT_BYTES + 1, ..head },
        ] {
            assert_eq!(decode(&wrong.encode()), None, "{wrong:?}");
        }
        for (at, value) in [(4, 9), (5, 1), (32, 200), (33, 200), (34, 1)] {
            let mut bytes = head.encode();
            bytes[at] = value;
            assert_eq!(decode(&bytes), None, "byte {at}");
        }
    }
}
