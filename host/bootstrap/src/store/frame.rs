//! Frames of the store's connections, little-endian. A rank begins with a [`Hello`] and its job id, whose form never
//! changes; all else are frames: a [`Head`], a name, a body. With a secret they are in records once both ends have the
//! keys of the [channel](super::channel).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::channel::HANDSHAKE_BYTES;
use super::config::MAX_JOB_BYTES;
use super::{Build, MAX_TAG_BYTES, VERSION};

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

/// Behind the job id: whether the connection is to be encrypted.
const CLEAR: u8 = 0;
const ENCRYPTED: u8 = 1;

/// Who a rank says it is, in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) build: Build,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) job: String,
    /// The first message of the handshake of a rank that has a secret. None, too, if it speaks another version.
    pub(super) handshake: Option<[u8; HANDSHAKE_BYTES]>,
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
    /// All but the handshake, which is bound to it.
    pub(super) fn prologue(&self, is_encrypted: bool) -> Vec<u8> {
        let raw = RawHello {
            magic: HELLO,
            version: self.build.version.into(),
            rank: self.rank.into(),
            size: self.size.into(),
            abi: self.build.abi.into(),
            job_bytes: (self.job.len() as u16).into(),
        };
        [raw.as_bytes(), self.job.as_bytes(), &[if is_encrypted { ENCRYPTED } else { CLEAR }]].concat()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.prologue(self.handshake.is_some());
        bytes.extend(self.handshake.iter().flatten());
        bytes
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
        let Some((job, rest)) = rest.split_at_checked(length) else { return Taken::Part };
        let job = String::from_utf8_lossy(job).into_owned();
        let build = Build { version: raw.version.get(), abi: raw.abi.get() };
        let mut bytes = size_of::<RawHello>() + length;
        let mut handshake = None;
        // What follows is this version's own.
        if build.version == VERSION {
            match rest.split_first() {
                None => return Taken::Part,
                Some((&CLEAR, _)) => bytes += 1,
                Some((&ENCRYPTED, rest)) => {
                    let Some(message) = rest.first_chunk() else { return Taken::Part };
                    handshake = Some(*message);
                    bytes += 1 + HANDSHAKE_BYTES;
                }
                Some((other, _)) => {
                    return Taken::Nonsense(format!("it asked for encryption {other}: 0 and 1 are known"));
                }
            }
        }
        stream.drain(..bytes);
        Taken::Whole(Self { build, rank: raw.rank.get(), size: raw.size.get(), job, handshake })
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
    /// The second message of the handshake.
    Answer = 6,
    /// The first record of a rank: it has the keys, and is who its hello says.
    Present = 7,
    /// Rank 0 turns the rank away without a reason that others could read: the body is a [`Turned`].
    Turned = 8,
    /// A rank cannot go on; the body is the reason.
    Refused = 9,
}

impl What {
    const ALL: [Self; 9] = [
        Self::Seated,
        Self::Welcome,
        Self::Contribution,
        Self::Collected,
        Self::Failed,
        Self::Answer,
        Self::Present,
        Self::Turned,
        Self::Refused,
    ];
}

/// Why rank 0 turns a rank away that it shares no keys with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Turned {
    /// Both have a secret, and not the same.
    OtherSecret = 1,
    /// Rank 0 has a secret, the rank has none.
    NoSecret = 2,
    /// The rank has a secret, rank 0 has none.
    SecretUnknown = 3,
    /// The ranks do not come together; those that have the secret learn why.
    Over = 4,
}

impl Turned {
    pub(super) fn frame(self) -> Frame {
        Frame { body: vec![self as u8], ..Frame::new(What::Turned) }
    }

    pub(super) fn of(frame: &Frame) -> Option<Self> {
        let all = [Self::OtherSecret, Self::NoSecret, Self::SecretUnknown, Self::Over];
        all.into_iter().find(|one| frame.what == What::Turned && frame.body == [*one as u8])
    }
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

/// Most bytes of a frame without its body.
pub(super) const MAX_OVERHEAD_BYTES: usize = size_of::<Head>() + MAX_TAG_BYTES;

/// Longest reason in words.
pub(super) const MAX_REASON_BYTES: usize = 4096;

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

    /// With a reason in words.
    pub(super) fn with_reason(what: What, reason: &str) -> Self {
        Self { body: reason.as_bytes()[..reason.len().min(MAX_REASON_BYTES)].to_vec(), ..Self::new(what) }
    }

    /// The reason in words, fit to be printed: a stranger may have sent it.
    pub(super) fn reason(&self) -> String {
        let bytes = &self.body[..self.body.len().min(MAX_REASON_BYTES)];
        String::from_utf8_lossy(bytes).chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
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
        let Some(what) = What::ALL.into_iter().find(|what| *what as u8 == head.what) else {
            return Taken::Nonsense(format!(
                "a frame of kind {}, but kinds run from 1 to {}",
                head.what,
                What::ALL.len()
            ));
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
