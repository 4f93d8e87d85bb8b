//! Frames of the store's connections, little-endian. A rank begins with a [`Hello`] and its job id, whose form never
//! changes; all else are frames: a [`Head`], a name, a body.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::config::MAX_JOB_BYTES;
use super::{Build, MAX_TAG_BYTES};

const HELLO: [u8; 8] = *b"FXCSTORE";
const FRAME: [u8; 4] = *b"FXCF";

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 8],
    version: U32,
    rank: U32,
    size: U32,
    abi: U64,
    job_bytes: U16,
}

/// Who a rank is, as it tells rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) build: Build,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) job: String,
}

/// What the beginning of a stream is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken<T> {
    /// Not enough yet.
    Part,
    /// All of it; gone from the stream.
    Whole(T),
    /// Something else.
    Nonsense(String),
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let raw = RawHello {
            magic: HELLO,
            version: self.build.version.into(),
            rank: self.rank.into(),
            size: self.size.into(),
            abi: self.build.abi.into(),
            job_bytes: (self.job.len() as u16).into(),
        };
        [raw.as_bytes(), self.job.as_bytes()].concat()
    }

    /// Takes a hello from the beginning of a stream.
    pub(super) fn take(stream: &mut Vec<u8>) -> Taken<Self> {
        let begun = stream.len().min(HELLO.len());
        if stream[..begun] != HELLO[..begun] {
            return Taken::Nonsense(format!("it said {:02x?}", &stream[..begun]));
        }
        let Ok((raw, rest)) = RawHello::read_from_prefix(stream) else { return Taken::Part };
        let length = usize::from(raw.job_bytes.get());
        if length > MAX_JOB_BYTES {
            return Taken::Nonsense(format!("its job id has {length} bytes, but {MAX_JOB_BYTES} are the limit"));
        }
        let Some(job) = rest.get(..length) else { return Taken::Part };
        let job = String::from_utf8_lossy(job).into_owned();
        stream.drain(..size_of::<RawHello>() + length);
        let build = Build { version: raw.version.get(), abi: raw.abi.get() };
        Taken::Whole(Self { build, rank: raw.rank.get(), size: raw.size.get(), job })
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    /// Rank 0 takes the rank for one of its own; others may be missing.
    Seated = 1,
    /// All are there.
    Welcome = 2,
    /// A contribution to an exchange.
    Contribution = 3,
    /// All contributions: for each rank its length, 4 bytes, and then itself.
    Collected = 4,
    /// It has all failed; the body is the reason.
    Failed = 5,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    what: u8,
    tag_bytes: u8,
    reserved: U16,
    number: U32,
    body_bytes: U32,
}

/// Bytes of a frame beside its body, at most.
pub(super) const MAX_OVERHEAD_BYTES: usize = size_of::<Head>() + MAX_TAG_BYTES;

/// A message after the hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) what: What,
    /// Number of the exchange, from 1; 0 before the first.
    pub(super) number: u32,
    /// Name of the exchange, at most [`MAX_TAG_BYTES`] long.
    pub(super) tag: String,
    pub(super) body: Vec<u8>,
}

impl Frame {
    pub(super) fn new(what: What) -> Self {
        Self { what, number: 0, tag: String::new(), body: Vec::new() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let head = Head {
            magic: FRAME,
            what: self.what as u8,
            tag_bytes: self.tag.len() as u8,
            reserved: U16::ZERO,
            number: self.number.into(),
            body_bytes: (self.body.len() as u32).into(),
        };
        [head.as_bytes(), self.tag.as_bytes(), &self.body].concat()
    }

    /// Takes a frame from the beginning of a stream, with a body of at most `limit` bytes.
    pub(super) fn take(stream: &mut Vec<u8>, limit: usize) -> Taken<Self> {
        let begun = stream.len().min(FRAME.len());
        if stream[..begun] != FRAME[..begun] {
            return Taken::Nonsense(format!("{:02x?} instead of a frame", &stream[..stream.len().min(8)]));
        }
        let Ok((head, rest)) = Head::read_from_prefix(stream) else { return Taken::Part };
        let known = [What::Seated, What::Welcome, What::Contribution, What::Collected, What::Failed];
        let Some(what) = known.into_iter().find(|what| *what as u8 == head.what) else {
            return Taken::Nonsense(format!("a frame of kind {}, but kinds run from 1 to 5", head.what));
        };
        let (tag, body) = (usize::from(head.tag_bytes), head.body_bytes.get() as usize);
        if body > limit {
            return Taken::Nonsense(format!("a frame of {body} bytes, but {limit} are the limit"));
        }
        let Some(text) = rest.get(..tag + body) else { return Taken::Part };
        let frame = Self {
            what,
            number: head.number.get(),
            tag: String::from_utf8_lossy(&text[..tag]).into_owned(),
            body: text[tag..].to_vec(),
        };
        stream.drain(..size_of::<Head>() + tag + body);
        Taken::Whole(frame)
    }
}

/// The body of [`What::Collected`].
pub(super) fn collected(contributions: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::with_capacity(contributions.iter().map(|one| 4 + one.len()).sum());
    for contribution in contributions {
        body.extend((contribution.len() as u32).to_le_bytes());
        body.extend(contribution);
    }
    body
}

/// The contributions of so many ranks in such a body; none if it is something else.
pub(super) fn contributions(mut body: &[u8], ranks: u32) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for _ in 0..ranks {
        let (length, rest) = body.split_first_chunk()?;
        let (contribution, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        all.push(contribution.to_vec());
        body = rest;
    }
    body.is_empty().then_some(all)
}
