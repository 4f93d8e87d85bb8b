//! Task of a staged collective: descriptor, and buffers of consecutive ranks (TASK).

use alloc::vec::Vec;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::{Fixed, HEADER_BYTES, MAX_BYTES, RawRegion, get_list, within};
use super::parts::Entry;
use crate::ranks::MAX_RANKS;
use crate::service::message::Region;
use crate::service::task::{Collective, Delivery, Descriptor, Part, TASK_HEADER_BYTES, TASK_RANK_BYTES};

const BROADCAST: u8 = 1;
const ALLGATHER: u8 = 2;

const FLAT: u8 = 1;
const HIERARCHICAL: u8 = 2;
const DIRECT: u8 = 3;

/// Ranks of a task that fit into a message.
pub const TASK_PARTS: usize = (MAX_BYTES - HEADER_BYTES - size_of::<RawTask>()) / size_of::<PartEntry>();

/// Buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PartEntry {
    send: RawRegion,
    receive: RawRegion,
    flags: RawRegion,
    shared_address: U64,
    shared_bytes: U64,
    shared_key: U32,
}

impl Entry for PartEntry {}

impl PartEntry {
    fn new(part: &Part) -> Result<Self, FormatError> {
        let regions = [part.send, part.receive, part.flags, part.shared].map(RawRegion::new);
        let [send, receive, flags, shared] = regions;
        let Region { address, key, bytes } = shared?.region();
        let (shared_address, shared_bytes, shared_key) = (address.into(), bytes.into(), key.into());
        Ok(Self { send: send?, receive: receive?, flags: flags?, shared_address, shared_bytes, shared_key })
    }

    /// What the rank of this number says of itself.
    #[must_use]
    pub const fn part(&self, rank: u32) -> Part {
        let Self { send, receive, flags, shared_address, shared_bytes, shared_key } = *self;
        let shared = Region { address: shared_address.get(), key: shared_key.get(), bytes: shared_bytes.get() };
        Part { rank, send: send.region(), receive: receive.region(), flags: flags.region(), shared }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawTask {
    collective: u8,
    delivery: u8,
    count: U16,
    root: U16,
    first: U16,
    bytes: U64,
}

const _: () = assert!(HEADER_BYTES + size_of::<RawTask>() == TASK_HEADER_BYTES as usize);
const _: () = assert!(size_of::<PartEntry>() == TASK_RANK_BYTES as usize && TASK_PARTS == 50);
const _: () = assert!(MAX_RANKS <= u16::MAX as u32);

/// Buffers of consecutive ranks in one message. Each message has the descriptor, and is of use without the others: what
/// belongs together meets in the machine, which takes one rank at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPart<'a> {
    descriptor: Descriptor,
    first: u32,
    entries: &'a [PartEntry],
}

impl<'a> TaskPart<'a> {
    pub(super) fn new(descriptor: Descriptor, first: u32, entries: &'a [PartEntry]) -> Result<Self, FormatError> {
        within("ranks of a task", entries.len() as u64, 1, TASK_PARTS as u64)?;
        within("first rank of a task", first.into(), 0, u64::from(MAX_RANKS) - entries.len() as u64)?;
        if let Collective::Broadcast { root } = descriptor.collective {
            within("root", root.into(), 0, u64::from(MAX_RANKS) - 1)?;
        }
        // Checks the regions.
        entries.iter().try_for_each(|entry| PartEntry::new(&entry.part(first)).map(drop))?;
        Ok(Self { descriptor, first, entries })
    }

    /// What all ranks say alike.
    #[must_use]
    pub const fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// What each rank says of itself, for [`StagedEvent::Called`](super::super::StagedEvent::Called).
    pub fn parts(&self) -> impl Iterator<Item = Part> + 'a {
        (self.first..).zip(self.entries).map(|(rank, entry)| entry.part(rank))
    }

    pub(super) const fn entries(&self) -> &'a [PartEntry] {
        self.entries
    }

    pub(super) fn put(&self, to: &mut Fixed) {
        let Descriptor { collective, delivery, bytes } = self.descriptor;
        let (collective, root) = match collective {
            Collective::Broadcast { root } => (BROADCAST, root),
            Collective::Allgather => (ALLGATHER, 0),
        };
        let delivery = match delivery {
            Delivery::Flat => FLAT,
            Delivery::Hierarchical => HIERARCHICAL,
            Delivery::Direct => DIRECT,
        };
        // In 16 bits by the checks of `new`.
        let [count, root, first] = [self.entries.len() as u32, root, self.first].map(|number| U16::new(number as u16));
        to.put(&RawTask { collective, delivery, count, root, first, bytes: bytes.into() });
    }
}

/// Reads a part of a task.
pub(super) fn get(rest: &[u8]) -> Result<TaskPart<'_>, FormatError> {
    let (raw, entries): (RawTask, &[PartEntry]) = get_list(rest)?;
    let RawTask { collective, delivery, root, first, bytes, .. } = raw;
    let collective = match collective {
        BROADCAST => Collective::Broadcast { root: root.get().into() },
        ALLGATHER => Collective::Allgather,
        found => return Err(FormatError::Code { field: "collective", found, last: ALLGATHER }),
    };
    let delivery = match delivery {
        FLAT => Delivery::Flat,
        HIERARCHICAL => Delivery::Hierarchical,
        DIRECT => Delivery::Direct,
        found => return Err(FormatError::Code { field: "delivery", found, last: DIRECT }),
    };
    TaskPart::new(Descriptor { collective, delivery, bytes: bytes.get() }, first.get().into(), entries)
}

/// A task as a host hands it over: of one rank, of those of a host, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskParts {
    descriptor: Descriptor,
    first: u32,
    entries: Vec<PartEntry>,
}

impl TaskParts {
    /// Of ranks that follow one another.
    ///
    /// # Errors
    /// They do not, there is none, or one of their regions ends beyond the address space.
    pub fn new(descriptor: Descriptor, parts: &[Part]) -> Result<Self, FormatError> {
        within("ranks of a task", parts.len() as u64, 1, MAX_RANKS.into())?;
        let first = parts.first().map_or(0, |part| part.rank);
        let entry = |(rank, part): (u64, &Part)| {
            within("rank of a task", part.rank.into(), rank, rank)?;
            PartEntry::new(part)
        };
        let entries = (u64::from(first)..).zip(parts).map(entry).collect::<Result<_, _>>()?;
        Ok(Self { descriptor, first, entries })
    }

    /// Cut for messages of [`TASK_PARTS`] ranks.
    ///
    /// # Errors
    /// A rank or a root that no group has.
    pub fn parts(&self) -> impl Iterator<Item = Result<TaskPart<'_>, FormatError>> {
        let firsts = (self.first..).step_by(TASK_PARTS);
        firsts
            .zip(self.entries.chunks(TASK_PARTS))
            .map(|(first, entries)| TaskPart::new(self.descriptor, first, entries))
    }
}
