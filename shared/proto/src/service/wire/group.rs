//! Groups in messages of service processes: map of ranks to hosts and service processes, completion flags, staging
//! memory.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::connection::{Endpoint, RawEndpoint};
use super::error::FormatError;
use super::fields::{Fixed, HEADER_BYTES, MAX_BYTES, RawRegion, get_list, number, within};
use super::parts::{Entry, Head, Part, Whole, fits};
use super::refusal::Refused;
use crate::ranks::MAX_RANKS;
use crate::service::message::{ContextId, Region};
use crate::service::staged::message::{Reader, Staging};
use crate::service::task::FLAG_BYTES;
use crate::service::topology::{Locality, MAX_PROCESSES_PER_HOST, Topology};

/// Core of a rank that is bound to none.
pub const NO_CORE: u32 = u32::MAX;

/// What a rank says of its group except the places of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupHead {
    /// Number of the communicator, which all its ranks have agreed on. The number of the group in the header of
    /// messages is shorter, and a service process may have given it to another communicator: then it refuses, and the
    /// ranks take another number.
    pub communicator: u64,
    /// The rank that says it.
    pub rank: u32,
    /// Ranks of the group, 1 to [`MAX_RANKS`].
    pub ranks: u32,
    /// Service processes on each card, 1 to [`MAX_PROCESSES_PER_HOST`].
    pub processes_per_host: u32,
}

/// Place of a rank, and its service process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Host and socket.
    pub locality: Locality,
    /// Number of the core that it is bound to, or [`NO_CORE`].
    pub core: u32,
    /// Where its service process listens. Ranks of one process give the same.
    pub process: Endpoint,
}

/// A [`Place`] in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PlaceEntry {
    host: U32,
    socket: U32,
    core: U32,
    process: RawEndpoint,
    reserved: U16,
}

impl Entry for PlaceEntry {}

impl PlaceEntry {
    fn new(place: Place) -> Result<Self, FormatError> {
        let Place { locality: Locality { host, socket }, core, process } = place;
        let [socket, core] = [socket, core].map(U32::new);
        Ok(Self { host: number("host", host)?, socket, core, process: RawEndpoint::new(process)?, reserved: U16::ZERO })
    }

    /// The place.
    #[must_use]
    pub const fn place(&self) -> Place {
        let locality = Locality { host: self.host.get(), socket: self.socket.get() };
        Place { locality, core: self.core.get(), process: self.process.endpoint() }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawGroup {
    communicator: U64,
    rank: U32,
    ranks: U32,
    processes_per_host: U32,
    index: U16,
    reserved: U16,
}

const FIXED_BYTES: usize = HEADER_BYTES + size_of::<RawGroup>();

const _: () = assert!(size_of::<RawGroup>() == 24 && size_of::<PlaceEntry>() == 32 && GroupHead::PART_ENTRIES == 126);
const _: () = assert!(fits(MAX_RANKS as usize, GroupHead::PART_ENTRIES));

impl Head for GroupHead {
    type Entry = PlaceEntry;
    const PART_ENTRIES: usize = (MAX_BYTES - FIXED_BYTES) / size_of::<PlaceEntry>();

    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn entries(&self) -> usize {
        self.ranks as usize
    }
}

impl Part<'_, GroupHead> {
    pub(super) fn put(&self, to: &mut Fixed) -> Result<(), FormatError> {
        let GroupHead { communicator, rank, ranks, processes_per_host } = *self.head();
        within("processes_per_host", processes_per_host.into(), 1, MAX_PROCESSES_PER_HOST.into())?;
        let [rank, ranks, processes_per_host] = [rank, ranks, processes_per_host].map(U32::new);
        let (communicator, index) = (communicator.into(), self.index().into());
        to.put(&RawGroup { communicator, rank, ranks, processes_per_host, index, reserved: U16::ZERO });
        Ok(())
    }
}

/// Reads a part of a group.
pub(super) fn get(rest: &[u8]) -> Result<Part<'_, GroupHead>, FormatError> {
    let (raw, entries): (RawGroup, &[PlaceEntry]) = get_list(rest)?;
    for (number, entry) in entries.iter().enumerate() {
        PlaceEntry::new(entry.place())?;
        let stray = entry.reserved.to_bytes().into_iter().enumerate().find(|(_, byte)| *byte != 0);
        if let Some((byte, found)) = stray {
            let offset = FIXED_BYTES + (number + 1) * size_of::<PlaceEntry>() - size_of::<U16>() + byte;
            return Err(FormatError::Stray { offset, found, expected: 0 });
        }
    }
    let RawGroup { communicator, rank, ranks, processes_per_host, index, .. } = raw;
    let [rank, ranks, processes_per_host] = [rank, ranks, processes_per_host].map(U32::get);
    let head = GroupHead { communicator: communicator.get(), rank, ranks, processes_per_host };
    Part::new(head, index.get(), entries)
}

/// A group as one of its ranks announces it to its service process. Its collectives are counted from 0.
pub type Group = Whole<GroupHead>;

/// Ranks or service processes of a group that do not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GroupError {
    /// A rank announces something else than the ranks before.
    #[error(
        "rank {rank} gives another map of the group than the ranks before: give all ranks what bootstrap has collected"
    )]
    Differs {
        /// The rank.
        rank: u32,
    },
    /// A rank names another service process than the map of the group does.
    #[error(
        "rank {rank} names an address of its own for service process {process}: ranks of one service process connect \
         to the same"
    )]
    Endpoint {
        /// The rank.
        rank: u32,
        /// The process that serves it.
        process: u32,
    },
    /// Two service processes with one address.
    #[error("service processes {process} and {other} have the same address: give each its own")]
    SameEndpoint {
        /// The first.
        process: u32,
        /// The second.
        other: u32,
    },
    /// A rank has connected to a service process that does not serve it.
    #[error("rank {rank} is served by service process {process}, at another address: connect to that")]
    Elsewhere {
        /// The rank.
        rank: u32,
        /// Who serves it.
        process: u32,
    },
    /// Service processes with different settings of staged collectives.
    #[error("service process {process} has other settings of staging: give all service processes of a group the same")]
    Staging {
        /// Whose settings differ.
        process: u32,
    },
    /// A service process that another one cannot reach.
    #[error("service process {process} cannot be reached: start it, and check its address and the network")]
    Unreachable {
        /// Who cannot be reached.
        process: u32,
    },
}

impl Group {
    /// The group of these places, as `rank` announces it, under a number that its ranks have agreed on.
    ///
    /// # Errors
    /// A host that no group has, or a process with port 0.
    pub fn new(
        group: u32,
        communicator: u64,
        rank: u32,
        processes_per_host: u32,
        places: &[Place],
    ) -> Result<Self, FormatError> {
        within("ranks", places.len() as u64, 1, MAX_RANKS.into())?;
        let head = GroupHead { communicator, rank, ranks: places.len() as u32, processes_per_host };
        let entries = places.iter().map(|place| PlaceEntry::new(*place)).collect::<Result<_, _>>()?;
        Ok(Self { context: ContextId { group, collective: 0 }, head, entries })
    }

    /// Who serves whom, for [`ServiceProcess::add_group`](super::super::ServiceProcess::add_group), and where each
    /// service process listens.
    ///
    /// # Errors
    /// Host numbers with gaps, ranks of one process with different addresses, or processes with the same.
    pub fn topology(&self) -> Result<(Topology, Vec<Endpoint>), Refused> {
        let localities: Vec<Locality> = self.entries.iter().map(|entry| entry.place().locality).collect();
        let topology = Topology::new(&localities, self.head.processes_per_host).map_err(Refused::Topology)?;
        let mut endpoints: Vec<Option<Endpoint>> = (0..topology.processes()).map(|_| None).collect();
        for (rank, entry) in (0..).zip(&self.entries) {
            let process = topology.process_of(rank).unwrap_or(0);
            if let Some(known) = endpoints.get_mut(process as usize)
                && *known.get_or_insert(entry.place().process) != entry.place().process
            {
                return Err(Refused::Group(GroupError::Endpoint { rank, process }));
            }
        }
        let endpoints: Vec<Endpoint> = endpoints.into_iter().flatten().collect();
        let mut of = BTreeMap::new();
        for (other, endpoint) in (0..).zip(&endpoints) {
            if let Some(process) = of.insert(endpoint, other) {
                return Err(Refused::Group(GroupError::SameEndpoint { process, other }));
            }
        }
        Ok((topology, endpoints))
    }

    /// Whether another rank announces the same.
    ///
    /// # Errors
    /// It announces something else.
    pub fn agree(&self, other: &Self) -> Result<(), GroupError> {
        let head = GroupHead { rank: self.head.rank, ..other.head };
        let same = (self.context, self.head, &self.entries) == (other.context, head, &other.entries);
        if same { Ok(()) } else { Err(GroupError::Differs { rank: other.head.rank }) }
    }
}

/// Completion flags of a rank, in its memory. The service process writes [`flag`](super::super::flag) of a collective
/// that has ended well to the place that [`Flags::place`] says, so that the rank polls its own memory only. Failures
/// are messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags {
    region: Region,
}

impl Flags {
    /// Flags that lie in `region`: [`FLAG_BYTES`] times a power of two up to 2^31, at least as many as collectives may
    /// be under way, all zero.
    ///
    /// # Errors
    /// Another length, or a region that ends beyond the address space.
    pub fn new(region: Region) -> Result<Self, FormatError> {
        RawRegion::new(region)?;
        let flags = region.bytes / FLAG_BYTES;
        // A power of two: so the flags of collectives that follow one another are distinct where their numbers begin
        // again at 0.
        if !region.bytes.is_multiple_of(FLAG_BYTES) || !flags.is_power_of_two() || flags > 1 << 31 {
            return Err(FormatError::Flags { bytes: region.bytes });
        }
        Ok(Self { region })
    }

    /// The memory of all flags.
    #[must_use]
    pub const fn region(&self) -> Region {
        self.region
    }

    /// Where the flag of a collective lies.
    #[must_use]
    pub const fn place(&self, collective: u32) -> Region {
        let Region { address, key, bytes } = self.region;
        let place = FLAG_BYTES * (collective as u64 % (bytes / FLAG_BYTES));
        Region { address: address + place, key, bytes: FLAG_BYTES }
    }
}

/// Memory of a service process that the others of the group read staged segments from, and the settings that all of
/// them must have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StagingMemory {
    /// The memory; its length is [`Staging::staging_bytes`].
    pub region: Region,
    /// [`Staging::segments`], at least 1.
    pub segments: u32,
    /// [`Staging::scatter_bytes`].
    pub scatter_bytes: u64,
    /// [`Staging::reader`].
    pub reader: Reader,
    /// How its owner multicasts; none: it cannot, or is not to.
    pub multicast: Option<MulticastEnd>,
}

/// The end of a service process in the multicast group of its group. All must have chunks of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastEnd {
    /// Number of the queue pair that it sends from, below 2^24.
    pub queue_pair: u32,
    /// Bytes of a chunk, at least 1.
    pub chunk_bytes: u32,
}

impl StagingMemory {
    /// Whether its owner has the settings that this process has.
    #[must_use]
    pub fn agrees(&self, staging: &Staging) -> bool {
        let Staging { staging_bytes, segments, scatter_bytes, reader, .. } = *staging;
        (self.region.bytes, self.segments, self.scatter_bytes, self.reader)
            == (staging_bytes, segments, scatter_bytes, reader)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawFlags {
    rank: U32,
    region: RawRegion,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawStaging {
    scatter_bytes: U64,
    region: RawRegion,
    segments: U32,
    reader: u8,
    reserved: [u8; 3],
    sender: U32,
    chunk_bytes: U32,
}

impl RawFlags {
    pub(super) fn new(rank: u32, flags: Flags) -> Result<Self, FormatError> {
        Ok(Self { rank: number("rank", rank)?, region: RawRegion::new(flags.region)? })
    }

    pub(super) fn flags(self) -> Result<(u32, Flags), FormatError> {
        Ok((self.rank.get(), Flags::new(self.region.region())?))
    }
}

/// Queue pairs have numbers of 24 bits.
pub(super) const MAX_QUEUE_PAIR: u32 = (1 << 24) - 1;
const NO_MEMORY: u8 = 0;
const OF_ROOT: u8 = 1;
const FIRST: u8 = 2;

impl RawStaging {
    pub(super) const NONE: Self = Self {
        scatter_bytes: U64::ZERO,
        region: RawRegion::NONE,
        segments: U32::ZERO,
        reader: NO_MEMORY,
        reserved: [0; 3],
        sender: U32::ZERO,
        chunk_bytes: U32::ZERO,
    };

    pub(super) fn new(memory: &StagingMemory) -> Result<Self, FormatError> {
        let StagingMemory { region, segments, scatter_bytes, reader, multicast } = *memory;
        let MulticastEnd { queue_pair, chunk_bytes } =
            multicast.unwrap_or(MulticastEnd { queue_pair: 0, chunk_bytes: 0 });
        if multicast.is_some() {
            within("chunk_bytes", chunk_bytes.into(), 1, u32::MAX.into())?;
            within("queue pair", queue_pair.into(), 0, MAX_QUEUE_PAIR.into())?;
        }
        within("segments", segments.into(), 1, u32::MAX.into())?;
        let reader = match reader {
            Reader::OfRoot => OF_ROOT,
            Reader::First => FIRST,
        };
        let (region, scatter_bytes, segments) = (RawRegion::new(region)?, scatter_bytes.into(), segments.into());
        let (sender, chunk_bytes) = (queue_pair.into(), chunk_bytes.into());
        Ok(Self { scatter_bytes, region, segments, reader, reserved: [0; 3], sender, chunk_bytes })
    }

    pub(super) const fn memory(self) -> Result<Option<StagingMemory>, FormatError> {
        let Self { scatter_bytes, region, segments, reader, sender, chunk_bytes, .. } = self;
        let reader = match reader {
            NO_MEMORY => return Ok(None),
            OF_ROOT => Reader::OfRoot,
            FIRST => Reader::First,
            found => return Err(FormatError::Code { field: "reader", found, last: FIRST }),
        };
        let (region, scatter_bytes, segments) = (region.region(), scatter_bytes.get(), segments.get());
        let multicast = match chunk_bytes.get() {
            0 => None,
            chunk_bytes => Some(MulticastEnd { queue_pair: sender.get(), chunk_bytes }),
        };
        Ok(Some(StagingMemory { region, segments, scatter_bytes, reader, multicast }))
    }
}
