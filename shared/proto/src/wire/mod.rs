//! Control messages as bytes, little-endian.
//!
//! | Offset | Bytes | Field |
//! |---:|---:|---|
//! | 0 | 4 | `FXCM` |
//! | 4 | 1 | [`VERSION`] |
//! | 5 | 1 | kind: 1 barrier, 2 activate, 3 last fetch, 4 acknowledge, 5 final, 6 failed, 7 fetch before the last |
//! | 6 | 2 | zero |
//! | 8 | 8 | communicator |
//! | 16 | 4 | operation |
//! | 20 | 28 | of the kind, then zeros |
//!
//! A barrier signal may be followed by eager data, to the end of the message ([`split_eager`]).
//!
//! What has failed because two ranks called different things goes on with these two calls, of 24 bytes each: to 80
//! bytes.
//!
//! A fetch goes on with the number of words of its set and the words instead, without the zero words at the end: 24 to
//! 152 bytes. So does an acknowledgement, behind a key of 4 bytes, 4 of zero and an address of 8: 40 to 168 bytes. Each
//! message has one encoding only: what [`Codec::decode`] accepts is what [`Codec::encode`] makes of the result.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::agreement::{Algorithm, Kind, Summary};
use crate::failure::{Cause, Failure, FailureCode, WaitedFor};
use crate::message::{Body, Message};
use crate::pieces::PieceSet;
use crate::ranks::MAX_RANKS;

mod error;

pub use error::WireError;

/// Words of a message of [`FIXED_BYTES`].
pub const FIXED_WORDS: usize = FIXED_BYTES / size_of::<u64>();

/// Version of this format. Any change of it is another version, and ranks of different versions refuse each other's
/// messages: they run the same release anyway, since their firmware does.
pub const VERSION: u8 = 4;
/// Bytes of every message but a fetch, an acknowledgement and a failure with the calls that differ.
pub const FIXED_BYTES: usize = 48;
/// Bytes of the longest message, an acknowledgement.
pub const MAX_BYTES: usize = acknowledge_bytes(MAX_RANKS as usize / 64);

const HEADER_BYTES: usize = size_of::<Header>();
const MAGIC: [u8; 4] = *b"FXCM";

const BARRIER: u8 = 1;
const ACTIVATE: u8 = 2;
const FETCH: u8 = 3;
const ACKNOWLEDGE: u8 = 4;
const FINAL: u8 = 5;
const FAILED: u8 = 6;
const FETCH_MORE: u8 = 7;

const SILENT: u8 = 1;
const CANCELLED: u8 = 2;
const DISAGREES: u8 = 3;
const DEVICE: u8 = 4;
const CONNECTION: u8 = 5;
#[cfg(feature = "aggregators")]
const AGGREGATOR: u8 = 6;
#[cfg(feature = "aggregators")]
const CONTRIBUTION: u8 = 7;
#[cfg(feature = "aggregators")]
const LAST_CAUSE: u8 = CONTRIBUTION;
#[cfg(not(feature = "aggregators"))]
const LAST_CAUSE: u8 = CONNECTION;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    reserved: U16,
    communicator: U64,
    operation: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BarrierBody {
    round: u8,
    kind: u8,
    algorithm: u8,
    reserved: u8,
    root: U32,
    amount: U64,
    chunk_bytes: U32,
    chains: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AcknowledgeBody {
    rkey: U32,
    reserved: U32,
    address: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FailedBody {
    failed_rank: U32,
    detecting_rank: U32,
    cause: u8,
    waited_for: u8,
    code: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CallBody {
    kind: u8,
    algorithm: u8,
    reserved: U16,
    root: U32,
    amount: U64,
    chunk_bytes: U32,
    chains: U32,
}

/// Bytes of a failure with the two calls that differ.
const DIFFERING_BYTES: usize = HEADER_BYTES + size_of::<FailedBody>() + 2 * size_of::<CallBody>();

const _: () = assert!(DIFFERING_BYTES == 80);
const _: () = assert!(HEADER_BYTES == 20 && size_of::<BarrierBody>() <= FIXED_BYTES - HEADER_BYTES && MAX_BYTES == 168);
// Firmware stores messages in words of eight bytes.
const _: () = assert!(
    fetch_bytes(0).is_multiple_of(8)
        && acknowledge_bytes(0).is_multiple_of(8)
        && FIXED_BYTES.is_multiple_of(8)
        && DIFFERING_BYTES.is_multiple_of(8)
);

/// Where the sender of an acknowledgement can be read: its receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Availability {
    /// Address of the first byte of the buffer.
    pub address: u64,
    /// Remote key of the buffer.
    pub rkey: u32,
}

/// A control message as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// What [`Participant::handle`](crate::Participant::handle) wants.
    pub message: Message,
    /// Where its sender can be read, if it is an acknowledgement.
    pub availability: Option<Availability>,
}

/// An encoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Encoded {
    bytes: [u8; MAX_BYTES],
    length: usize,
}

impl Encoded {
    /// The bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

/// The communicator that bytes are meant for, where a connection serves several. The rest is not read.
///
/// # Errors
/// They are too short, of another version or nothing of this library.
pub fn communicator_of(bytes: &[u8]) -> Result<u64, WireError> {
    Ok(header(bytes)?.0.communicator.get())
}

/// Puts the number of another communicator into a message. Bytes that are none stay as they are.
pub fn address(bytes: &mut [u8], communicator: u64) {
    if let Ok((header, _)) = Header::mut_from_prefix(bytes)
        && header.magic == MAGIC
    {
        header.communicator = communicator.into();
    }
}

/// A message and the eager data behind it: what is left of a barrier signal beyond its [`FIXED_BYTES`].
#[must_use]
pub fn split_eager(bytes: &[u8]) -> (&[u8], &[u8]) {
    let is_signal = matches!(header(bytes), Ok((Header { kind: BARRIER, .. }, _)));
    bytes.split_at_checked(FIXED_BYTES).filter(|_| is_signal).unwrap_or((bytes, &[]))
}

fn header(bytes: &[u8]) -> Result<(Header, &[u8]), WireError> {
    let too_short = WireError::Length { found: bytes.len(), expected: HEADER_BYTES };
    let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| too_short)?;
    if header.magic != MAGIC {
        return Err(WireError::Magic { found: header.magic });
    }
    if header.version != VERSION {
        return Err(WireError::Version { found: header.version });
    }
    Ok((header, rest))
}

/// Encodes and decodes the messages of one communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    communicator: u64,
    ranks: u32,
}

impl Codec {
    /// Of the communicator with this number, which all its ranks have agreed on, and with so many ranks, 1 to
    /// [`MAX_RANKS`].
    #[must_use]
    pub const fn new(communicator: u64, ranks: u32) -> Self {
        Self { communicator, ranks }
    }

    /// A message as bytes. `here` is where the own receive buffer can be read; only an acknowledgement carries it.
    #[must_use]
    pub fn encode(&self, message: &Message, here: Availability) -> Encoded {
        let mut bytes = [0; MAX_BYTES];
        let body = &mut bytes[HEADER_BYTES..];
        let mut length = FIXED_BYTES;
        let kind = match message.body {
            Body::Barrier { round, summary } => {
                let Summary { kind, root, amount, chunk_bytes, chains, algorithm } = summary;
                put(
                    body,
                    &BarrierBody {
                        round,
                        kind: kind as u8,
                        algorithm: algorithm as u8,
                        reserved: 0,
                        root: root.into(),
                        amount: amount.into(),
                        chunk_bytes: chunk_bytes.into(),
                        chains: chains.into(),
                    },
                );
                BARRIER
            }
            Body::Activate => ACTIVATE,
            Body::Fetch { pieces, last } => {
                length = fetch_bytes(put_set(body, &pieces));
                if last { FETCH } else { FETCH_MORE }
            }
            Body::Acknowledge { pieces } => {
                let Availability { address, rkey } = here;
                put(body, &AcknowledgeBody { rkey: rkey.into(), reserved: U32::ZERO, address: address.into() });
                length = acknowledge_bytes(put_set(&mut body[size_of::<AcknowledgeBody>()..], &pieces));
                ACKNOWLEDGE
            }
            Body::Final => FINAL,
            Body::Failed { failure: Failure { failed_rank, detecting_rank, cause }, calls } => {
                let (cause, waited_for, code) = match cause {
                    Cause::Silent(waited_for) => (SILENT, waited_for as u8, 0),
                    Cause::Cancelled => (CANCELLED, 0, 0),
                    Cause::Disagrees => (DISAGREES, 0, 0),
                    Cause::Device(code) => (DEVICE, 0, code.to_raw()),
                    Cause::Connection(code) => (CONNECTION, 0, code.to_raw()),
                    #[cfg(feature = "aggregators")]
                    Cause::Aggregator(number) => (AGGREGATOR, 0, number),
                    #[cfg(feature = "aggregators")]
                    Cause::Contribution => (CONTRIBUTION, 0, 0),
                };
                let (failed_rank, detecting_rank) = (failed_rank.into(), detecting_rank.into());
                put(body, &FailedBody { failed_rank, detecting_rank, cause, waited_for, code: code.into() });
                if let Some(calls) = calls {
                    put_calls(&mut body[size_of::<FailedBody>()..], &calls);
                    length = DIFFERING_BYTES;
                }
                FAILED
            }
        };
        put(
            &mut bytes,
            &Header {
                magic: MAGIC,
                version: VERSION,
                kind,
                reserved: U16::ZERO,
                communicator: self.communicator.into(),
                operation: message.operation.into(),
            },
        );
        Encoded { bytes, length }
    }

    /// [`Codec::encode`] as words, little-endian, of a barrier signal, an activation or a final message, which firmware
    /// sends in every operation; none for the others.
    #[must_use]
    #[inline]
    pub fn encode_short(&self, message: &Message) -> Option<[u64; FIXED_WORDS]> {
        let mut body = [0; 4];
        let kind = match &message.body {
            Body::Barrier { round, summary } => {
                let Summary { kind, root, amount, chunk_bytes, chains, algorithm } = *summary;
                body = [
                    u64::from(*round) << 32 | (kind as u64) << 40 | (algorithm as u64) << 48,
                    u64::from(root) | amount << 32,
                    amount >> 32 | u64::from(chunk_bytes) << 32,
                    u64::from(chains),
                ];
                BARRIER
            }
            Body::Activate => ACTIVATE,
            Body::Final => FINAL,
            Body::Fetch { .. } | Body::Acknowledge { .. } | Body::Failed { .. } => return None,
        };
        let [first, second, third, fourth] = body;
        let words =
            [short_header(kind), self.communicator, u64::from(message.operation) | first, second, third, fourth];
        Some(words.map(u64::to_le))
    }

    /// [`Codec::decode`] of a message of [`FIXED_BYTES`] as words, little-endian; none if it is refused, or neither a
    /// barrier signal nor an activation nor a final message.
    #[must_use]
    #[inline]
    pub fn decode_short(&self, words: &[u64; FIXED_WORDS]) -> Option<Message> {
        let [header, communicator, first, second, third, fourth] = words.map(u64::from_le);
        if communicator != self.communicator {
            return None;
        }
        let operation = first as u32;
        if header == short_header(BARRIER) {
            let (round, kind, algorithm) = ((first >> 32) as u8, (first >> 40) as u8, (first >> 48) as u8);
            let (root, chunk_bytes, chains) = (second as u32, (third >> 32) as u32, fourth as u32);
            let (kind, algorithm) = (Kind::from_raw(kind).ok()?, Algorithm::from_raw(algorithm).ok()?);
            let strays = first >> 56 | fourth >> 32;
            if strays != 0 || root >= self.ranks || round >= self.rounds() {
                return None;
            }
            let amount = second >> 32 | third << 32;
            let summary = Summary { kind, root, amount, chunk_bytes, chains, algorithm };
            return Some(Message { operation, body: Body::Barrier { round, summary } });
        }
        let body = if header == short_header(FINAL) {
            Body::Final
        } else if header == short_header(ACTIVATE) {
            Body::Activate
        } else {
            return None;
        };
        (first >> 32 | second | third | fourth == 0).then_some(Message { operation, body })
    }

    /// [`Codec::decode`] of a message of `bytes` bytes as words, little-endian, of a fetch or an acknowledgement, with
    /// which firmware repairs what multicast has lost; none if it is refused, or another one.
    #[must_use]
    pub fn decode_set(&self, words: &[u64], bytes: usize) -> Option<Control> {
        let [header, communicator, first, rest @ ..] = words else { return None };
        let (header, first) = (u64::from_le(*header), u64::from_le(*first));
        if u64::from_le(*communicator) != self.communicator {
            return None;
        }
        let (last, more) = (header == short_header(FETCH), header == short_header(FETCH_MORE));
        let high = (first >> 32) as u32;
        let (count, set, availability) = if last || more {
            (high, rest, None)
        } else if header == short_header(ACKNOWLEDGE) {
            let [second, third, set @ ..] = rest else { return None };
            let (second, third) = (u64::from_le(*second), u64::from_le(*third));
            if second as u32 != 0 {
                return None;
            }
            ((third >> 32) as u32, set, Some(Availability { address: second >> 32 | third << 32, rkey: high }))
        } else {
            return None;
        };
        let count = count as usize;
        let set = set.get(..count).filter(|set| set.len() <= MAX_RANKS as usize / 64 && set.last() != Some(&0))?;
        let expected = if availability.is_some() { acknowledge_bytes(count) } else { fetch_bytes(count) };
        if bytes != expected {
            return None;
        }
        let pieces = PieceSet::from_words(set.iter().map(|word| u64::from_le(*word)));
        let body = if availability.is_some() { Body::Acknowledge { pieces } } else { Body::Fetch { pieces, last } };
        Some(Control { message: Message { operation: first as u32, body }, availability })
    }

    /// Rounds of the barrier.
    const fn rounds(&self) -> u8 {
        (u32::BITS - self.ranks.saturating_sub(1).leading_zeros()) as u8
    }

    /// The message that bytes stand for: all of them, no more.
    ///
    /// # Errors
    /// They are not what [`Codec::encode`] makes of any message of this communicator. The connection they came on is
    /// not to be trusted any more.
    pub fn decode(&self, bytes: &[u8]) -> Result<Control, WireError> {
        let (header, rest) = header(bytes)?;
        let communicator = header.communicator.get();
        if communicator != self.communicator {
            return Err(WireError::Communicator { found: communicator, expected: self.communicator });
        }
        if !(BARRIER..=FETCH_MORE).contains(&header.kind) {
            return Err(WireError::Code { field: "kind", found: header.kind, last: FETCH_MORE });
        }
        let differing = header.kind == FAILED && bytes.len() == DIFFERING_BYTES;
        if !matches!(header.kind, FETCH | FETCH_MORE | ACKNOWLEDGE) && bytes.len() != FIXED_BYTES && !differing {
            return Err(WireError::Length { found: bytes.len(), expected: FIXED_BYTES });
        }
        let mut availability = None;
        let body = match header.kind {
            BARRIER => self.barrier(get(rest)?)?,
            ACTIVATE => Body::Activate,
            FETCH | FETCH_MORE => Body::Fetch { pieces: set(bytes.len(), rest)?, last: header.kind == FETCH },
            ACKNOWLEDGE => {
                let too_short = WireError::Length { found: bytes.len(), expected: acknowledge_bytes(0) };
                let (body, rest) = AcknowledgeBody::read_from_prefix(rest).map_err(|_| too_short)?;
                availability = Some(Availability { address: body.address.get(), rkey: body.rkey.get() });
                Body::Acknowledge { pieces: set(bytes.len(), rest)? }
            }
            FINAL => Body::Final,
            _ => {
                let calls = rest.get(size_of::<FailedBody>()..).filter(|_| differing).map(calls).transpose()?;
                Body::Failed { failure: self.failure(get(rest)?)?, calls }
            }
        };
        let message = Message { operation: header.operation.get(), body };
        let same = self.encode(&message, availability.unwrap_or_default());
        let mut pairs = bytes.iter().zip(same.as_bytes()).enumerate();
        if let Some((offset, (&found, &expected))) = pairs.find(|(_, (found, expected))| found != expected) {
            return Err(WireError::Stray { offset, found, expected });
        }
        Ok(Control { message, availability })
    }

    fn barrier(&self, body: BarrierBody) -> Result<Body, WireError> {
        let BarrierBody { round, kind, algorithm, root, amount, chunk_bytes, chains, .. } = body;
        let rounds = self.rounds();
        if round >= rounds {
            return Err(WireError::Round { found: round, ranks: self.ranks, rounds });
        }
        let last = Kind::Allgatherv as u8;
        let kind = Kind::from_raw(kind).map_err(|found| WireError::Code { field: "operation", found, last })?;
        let last = Algorithm::Chain as u8;
        let algorithm =
            Algorithm::from_raw(algorithm).map_err(|found| WireError::Code { field: "algorithm", found, last })?;
        let root = self.rank("root", root)?;
        let (amount, chunk_bytes, chains) = (amount.get(), chunk_bytes.get(), chains.get());
        Ok(Body::Barrier { round, summary: Summary { kind, root, amount, chunk_bytes, chains, algorithm } })
    }

    fn failure(&self, body: FailedBody) -> Result<Failure, WireError> {
        let FailedBody { failed_rank, detecting_rank, cause, waited_for, code } = body;
        let known = || FailureCode::from_raw(code.get()).map_err(|found| WireError::Failure { found });
        let cause = match cause {
            SILENT => {
                let last = WaitedFor::Final as u8;
                let refused = |found| WireError::Code { field: "what was waited for,", found, last };
                Cause::Silent(WaitedFor::from_raw(waited_for).map_err(refused)?)
            }
            CANCELLED => Cause::Cancelled,
            DISAGREES => Cause::Disagrees,
            DEVICE => Cause::Device(known()?),
            CONNECTION => Cause::Connection(known()?),
            #[cfg(feature = "aggregators")]
            AGGREGATOR => Cause::Aggregator(code.get()),
            #[cfg(feature = "aggregators")]
            CONTRIBUTION => Cause::Contribution,
            found => return Err(WireError::Code { field: "cause", found, last: LAST_CAUSE }),
        };
        Ok(Failure {
            failed_rank: self.rank("failed_rank", failed_rank)?,
            detecting_rank: self.rank("detecting_rank", detecting_rank)?,
            cause,
        })
    }

    fn rank(&self, field: &'static str, rank: U32) -> Result<u32, WireError> {
        let (found, ranks) = (rank.get(), self.ranks);
        if found < ranks { Ok(found) } else { Err(WireError::Rank { field, found, ranks }) }
    }
}

const fn fetch_bytes(words: usize) -> usize {
    HEADER_BYTES + size_of::<U32>() + size_of::<U64>() * words
}

const fn acknowledge_bytes(words: usize) -> usize {
    size_of::<AcknowledgeBody>() + fetch_bytes(words)
}

/// Writes a set, as the number of its words and the words; how many there are.
fn put_set(to: &mut [u8], pieces: &PieceSet) -> usize {
    let words = pieces.words();
    put(to, &U32::new(words.len() as u32));
    for (to, word) in to[size_of::<U32>()..].chunks_exact_mut(size_of::<U64>()).zip(words) {
        put(to, &U64::new(*word));
    }
    words.len()
}

/// Writes two calls.
fn put_calls(to: &mut [u8], calls: &[Summary; 2]) {
    for (to, call) in to.chunks_exact_mut(size_of::<CallBody>()).zip(calls) {
        let Summary { kind, root, amount, chunk_bytes, chains, algorithm } = *call;
        let (kind, algorithm) = (kind as u8, algorithm as u8);
        let (root, amount) = (root.into(), amount.into());
        let (chunk_bytes, chains) = (chunk_bytes.into(), chains.into());
        put(to, &CallBody { kind, algorithm, reserved: U16::ZERO, root, amount, chunk_bytes, chains });
    }
}

/// Reads two calls.
fn calls(from: &[u8]) -> Result<[Summary; 2], WireError> {
    let (first, second) = from.split_at_checked(size_of::<CallBody>()).unwrap_or((from, &[]));
    Ok([call(get(first)?)?, call(get(second)?)?])
}

/// A call of any kind: collectives without a barrier differ, too.
fn call(body: CallBody) -> Result<Summary, WireError> {
    let CallBody { kind, algorithm, root, amount, chunk_bytes, chains, .. } = body;
    let refused = |field, found, last| WireError::Code { field, found, last };
    let kind = any_kind(kind).ok_or_else(|| refused("operation", kind, LAST_KIND))?;
    let algorithm = any_algorithm(algorithm).ok_or_else(|| refused("algorithm", algorithm, LAST_ALGORITHM))?;
    let (root, amount) = (root.get(), amount.get());
    Ok(Summary { kind, root, amount, chunk_bytes: chunk_bytes.get(), chains: chains.get(), algorithm })
}

/// The kind of a code. Firmware knows those that have a barrier.
#[cfg(not(target_os = "none"))]
fn any_kind(code: u8) -> Option<Kind> {
    Kind::of_code(code)
}

#[cfg(target_os = "none")]
fn any_kind(code: u8) -> Option<Kind> {
    Kind::from_raw(code).ok()
}

/// The algorithm of a code, likewise.
#[cfg(not(target_os = "none"))]
fn any_algorithm(code: u8) -> Option<Algorithm> {
    Algorithm::of_code(code)
}

#[cfg(target_os = "none")]
fn any_algorithm(code: u8) -> Option<Algorithm> {
    Algorithm::from_raw(code).ok()
}

#[cfg(not(target_os = "none"))]
const LAST_KIND: u8 = Kind::Scatterv as u8;
#[cfg(target_os = "none")]
const LAST_KIND: u8 = Kind::Allgatherv as u8;
#[cfg(not(target_os = "none"))]
const LAST_ALGORITHM: u8 = Algorithm::Sparse as u8;
#[cfg(target_os = "none")]
const LAST_ALGORITHM: u8 = Algorithm::Chain as u8;

/// Reads a set that takes the rest of a message of `length` bytes.
fn set(length: usize, rest: &[u8]) -> Result<PieceSet, WireError> {
    let too_short = WireError::Length { found: length, expected: length - rest.len() + size_of::<U32>() };
    let (count, rest) = U32::read_from_prefix(rest).map_err(|_| too_short)?;
    let (count, most) = (count.get(), MAX_RANKS.div_ceil(64));
    if count > most {
        return Err(WireError::Words { found: count, most });
    }
    let expected = length - rest.len() + size_of::<U64>() * count as usize;
    if length != expected {
        return Err(WireError::Length { found: length, expected });
    }
    let words = rest.chunks_exact(size_of::<U64>()).map(|word| U64::read_from_bytes(word).map_or(0, U64::get));
    Ok(PieceSet::from_words(words))
}

/// The first word of a message of a kind.
const fn short_header(kind: u8) -> u64 {
    u32::from_le_bytes(MAGIC) as u64 | (VERSION as u64) << 32 | (kind as u64) << 40
}

/// Writes a structure to the beginning of a buffer that is long enough by construction.
fn put<T: IntoBytes + Immutable>(to: &mut [u8], from: &T) {
    let fits = from.write_to_prefix(to);
    debug_assert!(fits.is_ok(), "{} bytes into {}", size_of::<T>(), to.len());
}

/// Reads a structure from the beginning of a body, whose length has been checked.
fn get<T: FromBytes>(from: &[u8]) -> Result<T, WireError> {
    let length = HEADER_BYTES + from.len();
    let (body, _) =
        T::read_from_prefix(from).map_err(|_| WireError::Length { found: length, expected: FIXED_BYTES })?;
    Ok(body)
}
