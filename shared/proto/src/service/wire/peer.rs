//! Messages between service processes (READY-TO-READ, LOCAL-DATA between processes, staged transfers, failures).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::{Fixed, RawRegion, get, number, within};
use super::group::{MAX_QUEUE_PAIR, RawStaging, StagingMemory};
use super::kind::{
    BLOCK, COPIED, FAILED, HAS_READ, HELD, JOIN_REFUSED, JOINED, LISTED, OFFER, READY, STAGED_FAILED, TAKEN, UNREADABLE,
};
use super::refusal::{RawFailure, RawRefused, RawStagedFailure, Refused};
use crate::service::message::{Announcement, LocalCopies, Message, Reader};
use crate::service::staged::message::StagedMessage;
use crate::service::topology::MAX_PROCESSES_PER_HOST;

/// Service processes of the group: who sends, and for whom it is.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawWay {
    from: U32,
    to: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBlock {
    way: RawWay,
    source: U32,
    other: U32,
    region: RawRegion,
}

/// A block of an Allgatherv.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawShared {
    block: RawBlock,
    copies: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHasRead {
    way: RawWay,
    source: U32,
    reader: U32,
    kind: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCopied {
    way: RawWay,
    source: U32,
    holder: U32,
    by: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawUnreadable {
    way: RawWay,
    source: U32,
    code: U16,
    reserved: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTransfer {
    way: RawWay,
    segment: U32,
    tag: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct With<T> {
    way: RawWay,
    what: T,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawJoinRefused {
    way: RawWay,
    communicator: U64,
    refused: RawRefused,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawJoined {
    way: RawWay,
    communicator: U64,
    staging: RawStaging,
    queue_pair: U32,
}

/// A service process takes part in a group, and takes messages of it from now on: no other sends it any before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Joined {
    /// Number of the communicator that the group is of.
    pub communicator: u64,
    /// Its memory for staged collectives; none without.
    pub staging: Option<StagingMemory>,
    /// Number of its queue pair for transfers of this group between the two, below 2^24; 0: none. Each group has its
    /// own, so that the error that ends one of them leaves other groups alone.
    pub queue_pair: u32,
}

/// Why a service process takes no part in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinRefused {
    /// Number of the communicator that the group is of: the number of a group may be used again by another one.
    pub communicator: u64,
    /// Why.
    pub refused: Refused,
}

const RANK: u8 = 1;
const HOST: u8 = 2;
const BY_HOST: u8 = 1;
const BY_CARD: u8 = 2;

impl RawShared {
    const fn new(block: RawBlock, copies: LocalCopies) -> Self {
        let copies = match copies {
            LocalCopies::Host => BY_HOST,
            LocalCopies::Card => BY_CARD,
        };
        Self { block, copies, reserved: [0; 3] }
    }

    const fn copies(self) -> Result<LocalCopies, FormatError> {
        match self.copies {
            BY_HOST => Ok(LocalCopies::Host),
            BY_CARD => Ok(LocalCopies::Card),
            found => Err(FormatError::Code { field: "copies inside a host", found, last: BY_CARD }),
        }
    }
}

impl RawWay {
    fn new(from: u32, to: u32) -> Result<Self, FormatError> {
        Ok(Self { from: number("service process", from)?, to: number("service process", to)? })
    }

    const fn ends(self) -> (u32, u32) {
        (self.from.get(), self.to.get())
    }
}

/// Writes that a process takes part, or why one cannot; its kind.
pub(super) fn put_joined(
    (from, to): (u32, u32),
    joined: &Result<Joined, JoinRefused>,
    into: &mut Fixed,
) -> Result<u8, FormatError> {
    let way = RawWay::new(from, to)?;
    Ok(match *joined {
        Ok(Joined { communicator, staging, queue_pair }) => {
            let staging = staging.as_ref().map_or(Ok(RawStaging::NONE), RawStaging::new)?;
            within("queue pair", queue_pair.into(), 0, MAX_QUEUE_PAIR.into())?;
            let (communicator, queue_pair) = (communicator.into(), queue_pair.into());
            into.put(&RawJoined { way, communicator, staging, queue_pair });
            JOINED
        }
        Err(JoinRefused { communicator, refused }) => {
            into.put(&RawJoinRefused { way, communicator: communicator.into(), refused: RawRefused::new(refused)? });
            JOIN_REFUSED
        }
    })
}

/// Writes a message of Alltoallv and Allgatherv; its kind.
pub(super) fn put((from, to): (u32, u32), message: &Message, into: &mut Fixed) -> Result<u8, FormatError> {
    let (way, rank) = (RawWay::new(from, to)?, |rank| number("rank", rank));
    Ok(match *message {
        Message::Ready { source, target, region } => {
            let (source, other, region) = (rank(source)?, rank(target)?, RawRegion::new(region)?);
            into.put(&RawBlock { way, source, other, region });
            READY
        }
        Message::Block { announcement: Announcement { source, region }, forwards, copies } => {
            within("forwards", forwards.into(), 0, u64::from(MAX_PROCESSES_PER_HOST) - 1)?;
            let (source, other, region) = (rank(source)?, forwards.into(), RawRegion::new(region)?);
            into.put(&RawShared::new(RawBlock { way, source, other, region }, copies));
            BLOCK
        }
        Message::Listed => {
            into.put(&way);
            LISTED
        }
        Message::HasRead { source, reader } => {
            let (kind, reader) = match reader {
                Reader::Rank(reader) => (RANK, rank(reader)?),
                Reader::Host(host) => (HOST, number("host", host)?),
            };
            into.put(&RawHasRead { way, source: rank(source)?, reader, kind, reserved: [0; 3] });
            HAS_READ
        }
        Message::Held { source, holder, region, copies } => {
            let (source, other, region) = (rank(source)?, rank(holder)?, RawRegion::new(region)?);
            into.put(&RawShared::new(RawBlock { way, source, other, region }, copies));
            HELD
        }
        Message::Copied { source, holder, by } => {
            into.put(&RawCopied { way, source: rank(source)?, holder: rank(holder)?, by: rank(by)? });
            COPIED
        }
        Message::Unreadable { source, code } => {
            into.put(&RawUnreadable { way, source: rank(source)?, code: code.into(), reserved: U16::ZERO });
            UNREADABLE
        }
        Message::Failed(failure) => {
            into.put(&With { way, what: RawFailure::new(failure)? });
            FAILED
        }
    })
}

/// Writes a message of staged collectives; its kind.
pub(super) fn put_staged((from, to): (u32, u32), message: &StagedMessage, into: &mut Fixed) -> Result<u8, FormatError> {
    let way = RawWay::new(from, to)?;
    Ok(match *message {
        StagedMessage::Offer { segment, tag } => {
            into.put(&RawTransfer { way, segment: segment.into(), tag: tag.into() });
            OFFER
        }
        StagedMessage::Taken { segment, tag } => {
            into.put(&RawTransfer { way, segment: segment.into(), tag: tag.into() });
            TAKEN
        }
        StagedMessage::Failed(failure) => {
            into.put(&With { way, what: RawStagedFailure::new(failure)? });
            STAGED_FAILED
        }
    })
}

/// Reads that a process takes part.
pub(super) fn read_joined(rest: &[u8]) -> Result<((u32, u32), Joined), FormatError> {
    let RawJoined { way, communicator, staging, queue_pair } = get(rest)?;
    let (communicator, queue_pair) = (communicator.get(), queue_pair.get());
    Ok((way.ends(), Joined { communicator, staging: staging.memory()?, queue_pair }))
}

/// Reads why a process cannot take part.
pub(super) fn read_join_refused(rest: &[u8]) -> Result<((u32, u32), JoinRefused), FormatError> {
    let RawJoinRefused { way, communicator, refused } = get(rest)?;
    Ok((way.ends(), JoinRefused { communicator: communicator.get(), refused: refused.refused()? }))
}

/// Reads a message of Alltoallv and Allgatherv of this kind, [`READY`] to [`FAILED`].
pub(super) fn read(kind: u8, rest: &[u8]) -> Result<((u32, u32), Message), FormatError> {
    let (way, message) = match kind {
        READY => {
            let RawBlock { way, source, other, region } = get(rest)?;
            (way, Message::Ready { source: source.get(), target: other.get(), region: region.region() })
        }
        BLOCK => {
            let shared: RawShared = get(rest)?;
            let RawBlock { way, source, other, region } = shared.block;
            let announcement = Announcement { source: source.get(), region: region.region() };
            (way, Message::Block { announcement, forwards: other.get(), copies: shared.copies()? })
        }
        LISTED => (get(rest)?, Message::Listed),
        HAS_READ => {
            let RawHasRead { way, source, reader, kind, .. } = get(rest)?;
            let reader = match kind {
                RANK => Reader::Rank(reader.get()),
                HOST => Reader::Host(reader.get()),
                found => return Err(FormatError::Code { field: "reader", found, last: HOST }),
            };
            (way, Message::HasRead { source: source.get(), reader })
        }
        HELD => {
            let shared: RawShared = get(rest)?;
            let RawBlock { way, source, other, region } = shared.block;
            let (source, holder, copies) = (source.get(), other.get(), shared.copies()?);
            (way, Message::Held { source, holder, region: region.region(), copies })
        }
        COPIED => {
            let RawCopied { way, source, holder, by } = get(rest)?;
            (way, Message::Copied { source: source.get(), holder: holder.get(), by: by.get() })
        }
        UNREADABLE => {
            let RawUnreadable { way, source, code, .. } = get(rest)?;
            (way, Message::Unreadable { source: source.get(), code: code.get() })
        }
        _ => {
            let With { way, what } = get::<With<RawFailure>>(rest)?;
            (way, Message::Failed(what.failure()?))
        }
    };
    Ok((way.ends(), message))
}

/// Reads a message of staged collectives of this kind, [`OFFER`] to [`STAGED_FAILED`].
pub(super) fn read_staged(kind: u8, rest: &[u8]) -> Result<((u32, u32), StagedMessage), FormatError> {
    let (way, message) = match kind {
        OFFER | TAKEN => {
            let RawTransfer { way, segment, tag } = get(rest)?;
            let (segment, tag) = (segment.get(), tag.get());
            let offer = kind == OFFER;
            (way, if offer { StagedMessage::Offer { segment, tag } } else { StagedMessage::Taken { segment, tag } })
        }
        _ => {
            let With { way, what } = get::<With<RawStagedFailure>>(rest)?;
            (way, StagedMessage::Failed(what.failure()?))
        }
    };
    Ok((way.ends(), message))
}
