//! Call of an Alltoallv or Allgatherv as a rank announces it to its service process (OP-START).

use alloc::vec::Vec;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::{Fixed, HEADER_BYTES, MAX_BYTES, RawRegion, get_list};
use super::parts::{Entry, Head, Part, Whole, fits};
use crate::ranks::MAX_RANKS;
use crate::service::call::{Blocks, CallError, Datatype, allgatherv_call, alltoallv_call};
use crate::service::message::{Call, ContextId, LocalCopies, Region};

const ALLTOALLV: u8 = 1;
const ALLGATHERV: u8 = 2;
const ALLGATHERV_IN_PLACE: u8 = 3;
const ALLGATHERV_BY_CARD: u8 = 4;
const ALLGATHERV_BY_CARD_IN_PLACE: u8 = 5;

/// A buffer of blocks without their counts and displacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// First byte.
    pub address: u64,
    /// Memory key.
    pub key: u32,
    /// Its elements.
    pub datatype: Datatype,
}

/// The buffers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffers {
    /// Alltoallv.
    Alltoallv {
        /// By destination: what it is sent.
        send: Buffer,
        /// By source: where its data goes.
        receive: Buffer,
    },
    /// Allgatherv.
    Allgatherv {
        /// The own block; none in place.
        send: Option<Region>,
        /// By source: where its block goes.
        receive: Buffer,
        /// Who copies blocks inside a host.
        copies: LocalCopies,
    },
}

/// What a rank says of a call except counts and displacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StartHead {
    /// The rank.
    pub rank: u32,
    /// Ranks of the group.
    pub ranks: u32,
    /// What it calls.
    pub buffers: Buffers,
}

/// Count and displacement of a block, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockEntry {
    count: U64,
    displ: U64,
}

impl BlockEntry {
    /// Elements of the block.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count.get()
    }

    /// First element, from the address of the buffer.
    #[must_use]
    pub const fn displ(&self) -> u64 {
        self.displ.get()
    }
}

impl Entry for BlockEntry {}

/// A call with counts and displacements of all blocks: of an Alltoallv those of the send buffer by destination, and
/// then in all cases those of the receive buffer by source.
pub type OpStart = Whole<StartHead>;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawBuffer {
    address: U64,
    size_bytes: U64,
    extent_bytes: U64,
    key: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawStart {
    operation: u8,
    reserved: u8,
    index: U16,
    rank: U32,
    ranks: U32,
    receive: RawBuffer,
    /// Of an Allgatherv the block: its length in the place of the size of an element, or all zeros in place.
    send: RawBuffer,
}

const FIXED_BYTES: usize = HEADER_BYTES + size_of::<RawStart>();
const NO_BUFFER: Buffer = Buffer { address: 0, key: 0, datatype: Datatype { size_bytes: 0, extent_bytes: 0 } };

const _: () = assert!(
    size_of::<RawStart>() == 68
        && StartHead::PART_ENTRIES == 250
        && fits(2 * MAX_RANKS as usize, StartHead::PART_ENTRIES)
);

impl Head for StartHead {
    type Entry = BlockEntry;
    const PART_ENTRIES: usize = (MAX_BYTES - FIXED_BYTES) / size_of::<BlockEntry>();

    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn entries(&self) -> usize {
        let lists = if let Buffers::Alltoallv { .. } = self.buffers { 2 } else { 1 };
        lists * self.ranks as usize
    }
}

impl RawBuffer {
    fn new(buffer: Buffer) -> Self {
        let Buffer { address, key, datatype: Datatype { size_bytes, extent_bytes } } = buffer;
        let [address, size_bytes, extent_bytes] = [address, size_bytes, extent_bytes].map(Into::into);
        Self { address, size_bytes, extent_bytes, key: key.into() }
    }

    const fn buffer(self) -> Buffer {
        let datatype = Datatype { size_bytes: self.size_bytes.get(), extent_bytes: self.extent_bytes.get() };
        Buffer { address: self.address.get(), key: self.key.get(), datatype }
    }
}

impl Part<'_, StartHead> {
    pub(super) fn put(&self, to: &mut Fixed) -> Result<(), FormatError> {
        let StartHead { rank, ranks, buffers } = *self.head();
        let (operation, send, receive) = match buffers {
            Buffers::Alltoallv { send, receive } => (ALLTOALLV, send, receive),
            Buffers::Allgatherv { send, receive, copies } => {
                let operation = match (copies, send.is_some()) {
                    (LocalCopies::Host, true) => ALLGATHERV,
                    (LocalCopies::Host, false) => ALLGATHERV_IN_PLACE,
                    (LocalCopies::Card, true) => ALLGATHERV_BY_CARD,
                    (LocalCopies::Card, false) => ALLGATHERV_BY_CARD_IN_PLACE,
                };
                let send = send.map_or(Ok(NO_BUFFER), |region| {
                    // For the check of its end.
                    RawRegion::new(region)?;
                    let Region { address, key, bytes } = region;
                    Ok(Buffer { address, key, datatype: Datatype { size_bytes: bytes, extent_bytes: 0 } })
                })?;
                (operation, send, receive)
            }
        };
        to.put(&RawStart {
            operation,
            reserved: 0,
            index: self.index().into(),
            rank: rank.into(),
            ranks: ranks.into(),
            receive: RawBuffer::new(receive),
            send: RawBuffer::new(send),
        });
        Ok(())
    }
}

/// Reads a part of a call.
pub(super) fn get(rest: &[u8]) -> Result<Part<'_, StartHead>, FormatError> {
    let (raw, entries): (RawStart, &[BlockEntry]) = get_list(rest)?;
    let RawStart { operation, index, rank, ranks, receive, send, .. } = raw;
    let (send, receive) = (send.buffer(), receive.buffer());
    let buffers = match operation {
        ALLTOALLV => Buffers::Alltoallv { send, receive },
        ALLGATHERV..=ALLGATHERV_BY_CARD_IN_PLACE => {
            let Buffer { address, key, datatype: Datatype { size_bytes, .. } } = send;
            let in_place = matches!(operation, ALLGATHERV_IN_PLACE | ALLGATHERV_BY_CARD_IN_PLACE);
            let send = (!in_place).then_some(Region { address, key, bytes: size_bytes });
            let copies = if operation < ALLGATHERV_BY_CARD { LocalCopies::Host } else { LocalCopies::Card };
            Buffers::Allgatherv { send, receive, copies }
        }
        found => return Err(FormatError::Code { field: "operation", found, last: ALLGATHERV_BY_CARD_IN_PLACE }),
    };
    Part::new(StartHead { rank: rank.get(), ranks: ranks.get(), buffers }, index.get(), entries)
}

impl OpStart {
    /// An Alltoallv of `rank`, one of `ranks`.
    ///
    /// # Errors
    /// Arrays of another length than `ranks`, elements with gaps, a block beyond the address space, or no such rank.
    pub fn alltoallv(
        context: ContextId,
        (rank, ranks): (u32, u32),
        send: &Blocks<'_>,
        receive: &Blocks<'_>,
    ) -> Result<Self, CallError> {
        alltoallv_call(ranks, Some(send), receive)?;
        if rank >= ranks {
            return Err(CallError::Rank { rank, ranks });
        }
        let buffers = Buffers::Alltoallv { send: buffer(send), receive: buffer(receive) };
        let entries = entries(send).chain(entries(receive)).collect();
        Ok(Self { context, head: StartHead { rank, ranks, buffers }, entries })
    }

    /// An Allgatherv of `rank`, one of `ranks`. `send`: none in place. `copies`: who copies blocks inside a host, the
    /// same on all ranks.
    ///
    /// # Errors
    /// Arrays of another length than `ranks`, elements with gaps, a block beyond the address space, or no such rank.
    pub fn allgatherv(
        context: ContextId,
        (rank, ranks): (u32, u32),
        send: Option<Region>,
        receive: &Blocks<'_>,
        copies: LocalCopies,
    ) -> Result<Self, CallError> {
        allgatherv_call((rank, ranks), send, receive, copies)?;
        let buffers = Buffers::Allgatherv { send, receive: buffer(receive), copies };
        Ok(Self { context, head: StartHead { rank, ranks, buffers }, entries: entries(receive).collect() })
    }

    /// The call, for [`Event::Entered`](super::super::Event::Entered).
    ///
    /// # Errors
    /// Elements with gaps, or a block beyond the address space.
    pub fn call(&self) -> Result<Call, CallError> {
        let StartHead { rank, ranks, buffers } = self.head;
        let counts: Vec<u64> = self.entries.iter().map(BlockEntry::count).collect();
        let displs: Vec<u64> = self.entries.iter().map(BlockEntry::displ).collect();
        let blocks = |buffer: Buffer, counts, displs| {
            let Buffer { address, key, datatype } = buffer;
            Blocks { address, key, datatype, counts, displs }
        };
        match buffers {
            Buffers::Alltoallv { send, receive } => {
                let half = ranks as usize;
                let ((first, second), (before, behind)) = (halves(&counts, half), halves(&displs, half));
                alltoallv_call(ranks, Some(&blocks(send, first, before)), &blocks(receive, second, behind))
            }
            Buffers::Allgatherv { send, receive, copies } => {
                allgatherv_call((rank, ranks), send, &blocks(receive, &counts, &displs), copies)
            }
        }
    }
}

fn halves(all: &[u64], at: usize) -> (&[u64], &[u64]) {
    all.split_at_checked(at).unwrap_or((all, &[]))
}

const fn buffer(blocks: &Blocks<'_>) -> Buffer {
    Buffer { address: blocks.address, key: blocks.key, datatype: blocks.datatype }
}

fn entries(blocks: &Blocks<'_>) -> impl Iterator<Item = BlockEntry> {
    let pairs = blocks.counts.iter().zip(blocks.displs);
    pairs.map(|(count, displ)| BlockEntry { count: (*count).into(), displ: (*displ).into() })
}
