//! Datagrams: their header and their tag.
//!
//! All numbers are big-endian, on every computer.
//!
//! | Offset | Bytes | Field |
//! |---:|---:|---|
//! | 0 | 1 | [`VERSION`] |
//! | 1 | 1 | low half: kind, 1 data, 2 end, 3 acknowledgement, 4 acknowledgement of a receiver that has had no room, 5 to 9 probing of paths; high half: end: subgroup, otherwise 0 |
//! | 2 | 2 | rank that has sent it |
//! | 4 | 4 | low half of the communicator's number |
//! | 8 | 4 | operation; of question and value: round |
//! | 12 | 4 | data: sequence number (PSN) of the chunk; end: chunks of the sender's block; acknowledgement: chunks of the receiver's block; probe and answer: bytes of the probe's IP packet; value: value |
//! | 16 | 8 | tag |
//! | 24 | | data: the chunk; probe: zeros |
//!
//! The tag is the HighwayHash of header and chunk under the communicator's key, which bootstrap has distributed: what
//! somebody without the key has made or changed is not delivered. What has been sent before is of an operation that is
//! over, or a chunk that is there already.

use flexcast_proto::session::Secret as SessionSecret;
use highway::{HighwayHash as _, HighwayHasher, Key};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::op::tuning::MOST_SUBGROUPS;

/// Bits of a chunk's number.
pub(crate) const PSN_BITS: u32 = 31;
/// Most chunks of an operation: what their numbers reach.
pub(crate) const MOST_CHUNKS: u64 = (1 << PSN_BITS) - 1;
/// Version of this format.
pub(crate) const VERSION: u8 = 1;
/// Bytes in front of a chunk.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();
const TAGGED_BYTES: usize = HEADER_BYTES - size_of::<U64>();

const DATA: u8 = 1;
const END: u8 = 2;
const ACKNOWLEDGEMENT: u8 = 3;
const OVERFLOWED: u8 = 4;
const PROBE: u8 = 5;
const ANSWER: u8 = 6;
const ASK: u8 = 7;
const VALUE: u8 = 8;
const DONE: u8 = 9;
/// Bits of a kind; those above have the subgroup of an end.
const KIND_BITS: u32 = 4;
// A header has numbers for all subgroups.
const _: () = assert!(MOST_SUBGROUPS == 1 << (u8::BITS - KIND_BITS));

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version: u8,
    kind: u8,
    rank: U16,
    communicator: U32,
    operation: U32,
    number: U32,
    tag: U64,
}

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A chunk, by its sequence number.
    Data { psn: u32 },
    /// The sender has multicast its block, of so many chunks: what of it goes to this subgroup, less than
    /// [`MOST_SUBGROUPS`].
    End { subgroup: u8, chunks: u32 },
    /// The sender has seen the receiver's block up to this chunk. Its socket buffer may have had no room since the
    /// operation began.
    Acknowledgement { chunks: u32, overflowed: bool },
    /// Before ranks connect.
    Path(PathMessage),
}

/// A message by which ranks find the longest packet that all paths carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathMessage {
    /// An IP packet of so many bytes.
    Probe { bytes: u32 },
    /// One of so many bytes has come.
    Answer { bytes: u32 },
    /// Asks for the value of a round.
    Ask,
    /// The value of a round.
    Value { value: u32 },
    /// The sender asks for nothing more.
    Done,
}

/// What a datagram says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) rank: u32,
    pub(crate) operation: u32,
    pub(crate) kind: Kind,
    tag: u64,
}

/// A datagram that is what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'d> {
    pub(crate) rank: u32,
    pub(crate) operation: u32,
    pub(crate) kind: Kind,
    pub(crate) chunk: &'d [u8],
}

/// Why a datagram is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too short, of another version or kind, or of another communicator.
    Foreign,
    /// Its tag is not that of its bytes.
    Forged,
}

/// The key of a communicator's tags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) [u64; 4]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret of handshakes that follows from it.
    pub(crate) fn of_handshakes(&self) -> SessionSecret {
        let key = self.0.map(u64::to_le_bytes).concat();
        SessionSecret::new(hmac_sha256::HMAC::mac(b"flexcast handshakes", key))
    }

    /// What all workers of a communicator send alike to aggregators: only its ranks can make it.
    pub(crate) fn proof(&self, communicator: u64) -> u64 {
        self.tag([b"worker of an aggregator", &communicator.to_le_bytes()])
    }

    /// The tag of some bytes.
    pub(crate) fn tag(&self, parts: [&[u8]; 2]) -> u64 {
        let mut hasher = HighwayHasher::new(Key(self.0));
        parts.into_iter().for_each(|part| hasher.append(part));
        hasher.finalize64()
    }
}

/// Makes and checks the datagrams of a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    communicator: u32,
    rank: u32,
    /// None: datagrams have no tags.
    secret: Option<Secret>,
}

impl Codec {
    pub(crate) const fn new(communicator: u64, rank: u32, secret: Option<Secret>) -> Self {
        Self { communicator: communicator as u32, rank, secret }
    }

    /// The rank whose datagrams it makes.
    pub(crate) const fn rank(&self) -> u32 {
        self.rank
    }

    /// The header of a datagram, without tag.
    fn header(&self, operation: u32, kind: Kind) -> Header {
        let (kind, number) = match kind {
            Kind::Data { psn } => (DATA, psn),
            Kind::End { subgroup, chunks } => (END | subgroup << KIND_BITS, chunks),
            Kind::Acknowledgement { chunks, overflowed: false } => (ACKNOWLEDGEMENT, chunks),
            Kind::Acknowledgement { chunks, overflowed: true } => (OVERFLOWED, chunks),
            Kind::Path(PathMessage::Probe { bytes }) => (PROBE, bytes),
            Kind::Path(PathMessage::Answer { bytes }) => (ANSWER, bytes),
            Kind::Path(PathMessage::Ask) => (ASK, 0),
            Kind::Path(PathMessage::Value { value }) => (VALUE, value),
            Kind::Path(PathMessage::Done) => (DONE, 0),
        };
        Header {
            version: VERSION,
            kind,
            rank: U16::new(self.rank as u16),
            communicator: self.communicator.into(),
            operation: operation.into(),
            number: number.into(),
            tag: U64::ZERO,
        }
    }

    /// The header of a datagram for ranks that need no tag.
    pub(crate) fn untagged(&self, operation: u32, kind: Kind) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(self.header(operation, kind))
    }

    /// Writes a datagram to the beginning of `to`, which has room for it; gives its length.
    pub(crate) fn encode(&self, operation: u32, kind: Kind, chunk: &[u8], to: &mut [u8]) -> usize {
        let mut header = self.header(operation, kind);
        header.tag = self.tag([&header.as_bytes()[..TAGGED_BYTES], chunk]);
        let len = HEADER_BYTES + chunk.len();
        let (start, rest) = to[..len].split_at_mut(HEADER_BYTES);
        start.copy_from_slice(header.as_bytes());
        rest.copy_from_slice(chunk);
        len
    }

    fn tag(&self, parts: [&[u8]; 2]) -> U64 {
        self.secret.as_ref().map_or(U64::ZERO, |secret| secret.tag(parts).into())
    }

    /// Gives a datagram its tag.
    pub(crate) fn seal(&self, datagram: &mut [u8]) {
        let Ok((header, chunk)) = Header::mut_from_prefix(datagram) else { return };
        header.tag = self.tag([&header.as_bytes()[..TAGGED_BYTES], chunk]);
    }

    /// Reads a datagram.
    pub(crate) fn decode<'d>(&self, bytes: &'d [u8]) -> Result<Datagram<'d>, Refused> {
        let (header, chunk) = bytes.split_at_checked(HEADER_BYTES).ok_or(Refused::Foreign)?;
        self.decode_parts(header, chunk)
    }

    /// Reads a datagram whose header and chunk lie in two places.
    pub(crate) fn decode_parts<'d>(&self, bytes: &[u8], chunk: &'d [u8]) -> Result<Datagram<'d>, Refused> {
        let head = self.decode_head(bytes, chunk.len())?;
        if let Some(secret) = &self.secret
            && secret.tag([&bytes[..TAGGED_BYTES], chunk]) != head.tag
        {
            return Err(Refused::Forged);
        }
        Ok(Datagram { rank: head.rank, operation: head.operation, kind: head.kind, chunk })
    }

    /// Reads the header of a datagram with so many bytes behind it. Its tag is not checked.
    pub(crate) fn decode_head(&self, bytes: &[u8], chunk_bytes: usize) -> Result<Head, Refused> {
        let (header, _) = Header::ref_from_prefix(bytes).map_err(|_| Refused::Foreign)?;
        if header.version != VERSION || header.communicator.get() != self.communicator {
            return Err(Refused::Foreign);
        }
        let number = header.number.get();
        let (kind, subgroup) = (header.kind & ((1 << KIND_BITS) - 1), header.kind >> KIND_BITS);
        let kind = match kind {
            DATA if subgroup == 0 => Kind::Data { psn: number },
            END if chunk_bytes == 0 => Kind::End { subgroup, chunks: number },
            ACKNOWLEDGEMENT | OVERFLOWED if subgroup == 0 && chunk_bytes == 0 => {
                Kind::Acknowledgement { chunks: number, overflowed: kind == OVERFLOWED }
            }
            PROBE if subgroup == 0 => Kind::Path(PathMessage::Probe { bytes: number }),
            ANSWER if subgroup == 0 && chunk_bytes == 0 => Kind::Path(PathMessage::Answer { bytes: number }),
            ASK if subgroup == 0 && chunk_bytes == 0 && number == 0 => Kind::Path(PathMessage::Ask),
            VALUE if subgroup == 0 && chunk_bytes == 0 => Kind::Path(PathMessage::Value { value: number }),
            DONE if subgroup == 0 && chunk_bytes == 0 && number == 0 => Kind::Path(PathMessage::Done),
            _ => return Err(Refused::Foreign),
        };
        let (rank, operation) = (header.rank.get().into(), header.operation.get());
        Ok(Head { rank, operation, kind, tag: header.tag.get() })
    }

    /// The operation and sequence number of a datagram by its header, unchecked; none if it has no data, or is this
    /// rank's own.
    pub(crate) fn peek(&self, header: &[u8]) -> Option<(u32, u32)> {
        let (header, _) = Header::ref_from_prefix(header).ok()?;
        let is_data = header.kind == DATA && u32::from(header.rank.get()) != self.rank;
        is_data.then(|| (header.operation.get(), header.number.get()))
    }

    /// Whether a datagram is this rank's own, which came back. Unchecked: it is dropped in any case.
    pub(crate) fn is_own(&self, bytes: &[u8]) -> bool {
        Header::ref_from_prefix(bytes).is_ok_and(|(header, _)| u32::from(header.rank.get()) == self.rank)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: Secret = Secret([1, 2, 3, 4]);

    fn codec(rank: u32, secret: Option<Secret>) -> Codec {
        Codec::new(0x77_0000_1234, rank, secret)
    }

    #[test]
    fn the_layout_is_big_endian() {
        let mut bytes = [0; 64];
        let len = codec(0x0102, None).encode(0x0304_0506, Kind::Data { psn: 0x0708_090A }, b"chunk", &mut bytes);
        let expected = b"\x01\x01\x01\x02\x00\x00\x12\x34\x03\x04\x05\x06\x07\x08\x09\x0a\0\0\0\0\0\0\0\0chunk";
        assert_eq!(&bytes[..len], expected);
    }

    #[test]
    fn other_keys_communicators_and_versions_are_refused() {
        let mut bytes = [0; 64];
        let len = codec(3, Some(SECRET)).encode(9, Kind::End { subgroup: 0, chunks: 7 }, &[], &mut bytes);
        let whole = &bytes[..len];
        let other = codec(1, Some(Secret([1, 2, 3, 5])));
        assert_eq!(other.decode(whole), Err(Refused::Forged));
        assert_eq!(Codec::new(5, 1, Some(SECRET)).decode(whole), Err(Refused::Foreign));
        let mut changed = whole.to_vec();
        changed[0] = 2;
        assert_eq!(codec(1, Some(SECRET)).decode(&changed), Err(Refused::Foreign));
        assert!(codec(3, None).is_own(whole) && !codec(4, None).is_own(whole));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_and_any_changed_bit_is_found(
            rank in 0u32..1024, operation: u32, number: u32, kind in 0..9, chunk in proptest::collection::vec(any::<u8>(), 0..100),
            bit: proptest::sample::Index,
        ) {
            let (kind, chunk) = match kind {
                0 => (Kind::Data { psn: number }, chunk),
                1 => (Kind::End { subgroup: (number % MOST_SUBGROUPS) as u8, chunks: number }, vec![]),
                4 => (Kind::Path(PathMessage::Probe { bytes: number }), chunk),
                5 => (Kind::Path(PathMessage::Answer { bytes: number }), vec![]),
                6 => (Kind::Path(PathMessage::Ask), vec![]),
                7 => (Kind::Path(PathMessage::Value { value: number }), vec![]),
                8 => (Kind::Path(PathMessage::Done), vec![]),
                kind => (Kind::Acknowledgement { chunks: number, overflowed: kind == 3 }, vec![]),
            };
            let mut bytes = vec![0; HEADER_BYTES + chunk.len()];
            let len = codec(rank, Some(SECRET)).encode(operation, kind, &chunk, &mut bytes);
            prop_assert_eq!(len, bytes.len());
            let mut sealed = [&codec(rank, Some(SECRET)).untagged(operation, kind)[..], &chunk].concat();
            codec(rank, Some(SECRET)).seal(&mut sealed);
            prop_assert_eq!(&sealed, &bytes);
            let receiver = codec(1, Some(SECRET));
            prop_assert_eq!(receiver.decode(&bytes), Ok(Datagram { rank, operation, kind, chunk: &chunk }));
            let bit = bit.index(8 * len);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(receiver.decode(&bytes).is_err());
        }

        #[test]
        fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(codec(1, Some(SECRET)).decode(&bytes).is_err());
        }
    }
}
