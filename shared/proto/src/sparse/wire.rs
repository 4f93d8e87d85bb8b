//! Messages of sparse AllReduce as bytes, little-endian.
//!
//! A message is its blocks, packed in the order of their indices, and d indices of 4 bytes behind them. On a reliable
//! connection that is all: the immediate is the displacement of a worker's message, and 0 with an answer ([`split`]). A
//! datagram has a header before it:
//!
//! | Offset | Bytes | Field |
//! |---:|---:|---|
//! | 0 | 4 | `FXSA` |
//! | 4 | 1 | [`VERSION`] |
//! | 5 | 1 | kind: 1 contribution, 2 answer, 3 waiting, 4 failed |
//! | 6 | 1 | blocks that follow |
//! | 7 | 1 | indices that follow: d, or 0 with kinds 3 and 4 |
//! | 8 | 8 | job: one operation of one group |
//! | 16 | 4 | shard |
//! | 20 | 4 | iteration |
//! | 24 | 4 | rank: of the worker, or with kinds 3 and 4 who is waited for or has failed |
//! | 28 | 4 | displacement of a contribution, zero otherwise |
//!
//! The iteration is whole, not modulo a few bits: a datagram may be delayed for any time, and a shard has fewer than
//! 2^32 iterations. Over channels that keep order one bit would do (`tests/sparse_model.rs` shows both).

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::parameters::{ParameterError, Parameters};
use super::votes::{Votes, VotesError};

/// Version of this format. Any change of it is another version, and ranks of different versions refuse each other's
/// messages.
pub const VERSION: u8 = 1;
/// Bytes of a datagram's header.
pub const HEADER_BYTES: usize = 32;
/// Most bytes of a datagram: what UDP over IPv4 carries.
pub const MAX_DATAGRAM_BYTES: u32 = 65_507;

const MAGIC: [u8; 4] = *b"FXSA";
const CONTRIBUTION: u8 = 1;
const ANSWER: u8 = 2;
const WAITING: u8 = 3;
const FAILED: u8 = 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    blocks: u8,
    indices: u8,
    job: U64,
    shard: U32,
    iteration: U32,
    rank: U32,
    displacement: U32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// What a datagram says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A worker's message.
    Contribution {
        /// The worker.
        rank: u32,
        /// Which global blocks it leaves out.
        displacement: u32,
        /// Blocks that follow.
        blocks: u32,
    },
    /// Sums, and the next global indices.
    Answer {
        /// Blocks that follow.
        blocks: u32,
    },
    /// The aggregator has the worker's message, and waits for this rank.
    Waiting {
        /// Who is waited for.
        rank: u32,
    },
    /// The operation has failed because this worker is silent.
    Failed {
        /// Whose fault it is.
        rank: u32,
    },
}

/// A datagram as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram<'a> {
    /// What it says.
    pub kind: Kind,
    /// Of which iteration.
    pub iteration: u32,
    /// The blocks, packed.
    pub blocks: &'a [u8],
    /// The indices; none with [`Kind::Waiting`] and [`Kind::Failed`].
    pub votes: Votes,
}

/// Bytes that are no message of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SparseWireError {
    /// Too short or too long.
    #[error("message of {found} bytes, but it should have {expected}: give all ranks the same parameters")]
    Length {
        /// Bytes that came.
        found: usize,
        /// Bytes of such a message; at least, if its header is not known yet.
        expected: usize,
    },
    /// Something else altogether.
    #[error("datagram begins with {found:02x?} instead of {MAGIC:02x?}: whatever sent it is no rank of this library")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another version.
    #[error("datagram of version {found}, but this rank speaks version {VERSION}: run the same release on all ranks")]
    Version {
        /// What came.
        found: u8,
    },
    /// No such kind.
    #[error("kind {found} of a datagram: kinds run from 1 to {FAILED}")]
    Kind {
        /// What came.
        found: u8,
    },
    /// Of another operation: late, or of another group.
    #[error("datagram of job {found:#x}, but this is job {expected:#x}: late ones of former jobs are to be dropped")]
    Job {
        /// What came.
        found: u64,
        /// The own job.
        expected: u64,
    },
    /// Of another shard.
    #[error("datagram of shard {found}, but this is shard {expected}: each has a peer of its own")]
    Shard {
        /// What came.
        found: u32,
        /// The own shard.
        expected: u32,
    },
    /// No such worker.
    #[error("datagram of worker {found}, but the group has {workers}: give all ranks the same group")]
    Rank {
        /// What came.
        found: u32,
        /// Workers there are.
        workers: u32,
    },
    /// A number that does not belong to the rest of the header.
    #[error(
        "{field} {found} in a datagram, but {expected} goes with its other fields: give all ranks the same parameters"
    )]
    Field {
        /// Which field.
        field: &'static str,
        /// What came.
        found: u32,
        /// What goes with the others; at most, if it is of blocks.
        expected: u32,
    },
    /// Indices that cannot be.
    #[error(transparent)]
    Votes(#[from] VotesError),
}

/// Writes and reads the datagrams of one shard of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseCodec {
    parameters: Parameters,
    job: u64,
    shard: u32,
}

impl SparseCodec {
    /// The codec of a shard.
    ///
    /// # Errors
    /// The longest message does not fit a datagram.
    pub const fn new(parameters: Parameters, job: u64, shard: u32) -> Result<Self, ParameterError> {
        match parameters.check_datagram(HEADER_BYTES as u32, MAX_DATAGRAM_BYTES) {
            Ok(()) => Ok(Self { parameters, job, shard }),
            Err(error) => Err(error),
        }
    }

    /// The header of a datagram. Behind it there are the blocks and then the first [`Parameters::index_bytes`] of
    /// [`Votes::to_bytes`], if it has any.
    #[must_use]
    pub fn header(&self, kind: Kind, iteration: u32) -> [u8; HEADER_BYTES] {
        let d = self.parameters.blocks_per_message() as u8;
        let (code, rank, displacement, blocks, indices) = match kind {
            Kind::Contribution { rank, displacement, blocks } => (CONTRIBUTION, rank, displacement, blocks, d),
            Kind::Answer { blocks } => (ANSWER, 0, 0, blocks, d),
            Kind::Waiting { rank } => (WAITING, rank, 0, 0, 0),
            Kind::Failed { rank } => (FAILED, rank, 0, 0, 0),
        };
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            kind: code,
            blocks: blocks as u8,
            indices,
            job: self.job.into(),
            shard: self.shard.into(),
            iteration: iteration.into(),
            rank: rank.into(),
            displacement: displacement.into(),
        };
        zerocopy::transmute!(header)
    }

    /// A datagram of this shard. Whether its iteration and displacement are right is for the machines to say.
    ///
    /// # Errors
    /// The bytes are not one, or of another job or shard.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Datagram<'a>, SparseWireError> {
        let short = SparseWireError::Length { found: bytes.len(), expected: HEADER_BYTES };
        let (header, payload) = Header::ref_from_prefix(bytes).map_err(|_| short)?;
        if header.magic != MAGIC {
            return Err(SparseWireError::Magic { found: header.magic });
        }
        if header.version != VERSION {
            return Err(SparseWireError::Version { found: header.version });
        }
        if header.job.get() != self.job {
            return Err(SparseWireError::Job { found: header.job.get(), expected: self.job });
        }
        if header.shard.get() != self.shard {
            return Err(SparseWireError::Shard { found: header.shard.get(), expected: self.shard });
        }
        let (rank, displacement, blocks) = (header.rank.get(), header.displacement.get(), u32::from(header.blocks));
        let kind = match header.kind {
            CONTRIBUTION => Kind::Contribution { rank, displacement, blocks },
            ANSWER => Kind::Answer { blocks },
            WAITING => Kind::Waiting { rank },
            FAILED => Kind::Failed { rank },
            found => return Err(SparseWireError::Kind { found }),
        };
        self.check(&kind, header)?;
        let iteration = header.iteration.get();
        let (blocks, votes) = if header.indices == 0 {
            if !payload.is_empty() {
                return Err(SparseWireError::Length { found: bytes.len(), expected: HEADER_BYTES });
            }
            (payload, Votes::empty(self.parameters))
        } else {
            split(self.parameters, payload, blocks)?
        };
        Ok(Datagram { kind, iteration, blocks, votes })
    }

    /// Checks that the fields of a header are of one another.
    fn check(&self, kind: &Kind, header: &Header) -> Result<(), SparseWireError> {
        let field = |field, found: u32, expected: u32| match found == expected {
            true => Ok(()),
            false => Err(SparseWireError::Field { field, found, expected }),
        };
        let (workers, most) = (self.parameters.workers(), self.parameters.blocks_per_message());
        let (rank, blocks) = (header.rank.get(), u32::from(header.blocks));
        let has_votes = matches!(kind, Kind::Contribution { .. } | Kind::Answer { .. });
        field("number of indices", header.indices.into(), if has_votes { most } else { 0 })?;
        field("number of blocks", blocks, blocks.min(if has_votes { most } else { 0 }))?;
        match kind {
            Kind::Answer { .. } => field("rank", rank, 0)?,
            _ if rank >= workers => return Err(SparseWireError::Rank { found: rank, workers }),
            _ => {}
        }
        match kind {
            Kind::Contribution { .. } => Ok(()),
            _ => field("displacement", header.displacement.get(), 0),
        }
    }
}

/// The blocks and the indices of a message without a header, which has `blocks` blocks: as many as
/// [`Displacement::present`](super::Displacement::present) or [`Additions::blocks`](super::Additions::blocks) has bits,
/// or an iteration has global indices.
///
/// # Errors
/// The message has another length, or its indices cannot be.
pub fn split(parameters: Parameters, payload: &[u8], blocks: u32) -> Result<(&[u8], Votes), SparseWireError> {
    let expected = parameters.message_bytes(blocks) as usize;
    let length = SparseWireError::Length { found: payload.len(), expected };
    if payload.len() != expected {
        return Err(length);
    }
    let at = expected - parameters.index_bytes() as usize;
    let (blocks, indices) = payload.split_at_checked(at).ok_or(length)?;
    Ok((blocks, Votes::from_bytes(parameters, indices)?))
}
