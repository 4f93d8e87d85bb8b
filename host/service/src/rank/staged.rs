//! Ibcast and Iallgather that go through memory of the card: calls of a rank, their flags, and the copies of ranks that
//! share a segment.
//!
//! Flat, everything goes to the rank's own buffer, and between the call and the flags the program does nothing.
//! Hierarchical, it goes to a segment that the ranks of a host share, and each rank copies it from there as it waits:
//! that is work of the host.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexcast_proto::service::wire::{Body, Group, Refused, TaskParts};
use flexcast_proto::service::{
    Between, Collective, ContextId, Delivery, Descriptor, FLAG_BYTES, Part, Region, StagedFailure, StagedRefusal,
    Thresholds, Topology, is_over, polled_rank, writers,
};
use flexio::MemoryRegion;

use super::{Client, FLAGS, Membership, MemoryId, Named};
use crate::error::{Error, Result};

/// Data of a segment begins at a multiple of so many bytes: a cache line, separate from flags.
const DATA_ALIGN_BYTES: u64 = 64;

const NOTHING: Region = Region { address: 0, key: 0, bytes: 0 };

/// A staged collective that a rank has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StagedCall {
    /// Which one: staged collectives of a group are counted separately from others.
    pub context: ContextId,
    /// Whose call.
    pub rank: u32,
    /// Whether the data goes to the segment that the ranks of the host share.
    pub is_shared: bool,
}

/// A rank of a group, as far as staged collectives go.
#[derive(Debug)]
pub(super) struct StagedMember {
    /// None of a group that its process refuses.
    topology: Option<Arc<Topology>>,
    /// How data goes between the processes, as the own one says.
    between: Between,
    next: u32,
    failure: Option<StagedFailure>,
}

/// Calls that have not ended.
#[derive(Debug, Default)]
pub(super) struct StagedCalls {
    posted: BTreeMap<StagedCall, Posted>,
    refused: BTreeMap<(ContextId, u32), StagedRefusal>,
    copies: u64,
    copied_bytes: u64,
}

#[derive(Debug)]
struct Posted {
    descriptor: Descriptor,
    /// The own segment, of the first rank of a host.
    segment: Option<MemoryId>,
    /// Where data goes from the segment: memory, offset, length.
    copy: Option<(MemoryId, u64, u64)>,
}

impl StagedMember {
    pub(super) fn new(group: &Group) -> Self {
        let topology = group.topology().ok().map(|(topology, _)| Arc::new(topology));
        Self { topology, between: Between::Messages, next: 0, failure: None }
    }

    pub(super) const fn accept(&mut self, between: Between) {
        self.between = between;
    }

    pub(super) fn flag_bytes(&self) -> u64 {
        FLAG_BYTES * self.topology.as_ref().map_or(0, |topology| u64::from(topology.processes()))
    }

    pub(super) fn fail(&mut self, failure: StagedFailure) {
        self.failure.get_or_insert(failure);
    }
}

impl StagedCalls {
    /// Whether a call has neither ended nor been refused.
    pub(super) fn is_posted(&self, call: &StagedCall) -> bool {
        self.posted.contains_key(call)
    }

    pub(super) fn refuse(&mut self, context: ContextId, rank: u32, refusal: StagedRefusal) {
        self.posted.retain(|call, _| (call.context, call.rank) != (context, rank));
        self.refused.insert((context, rank), refusal);
    }
}

/// Where the data of a segment begins, behind its flags.
fn data_offset(topology: &Topology) -> u64 {
    (FLAG_BYTES * u64::from(topology.processes())).next_multiple_of(DATA_ALIGN_BYTES)
}

impl Client {
    fn staged_member(&self, group: u32, rank: u32) -> Result<(&Membership, &Arc<Topology>)> {
        let membership = self.members.get(&(group, rank)).filter(|membership| membership.flags_sent);
        let order =
            Error::Order { what: "a collective of a group that has not been joined", next: "wait for `has_joined`" };
        membership.and_then(|membership| Some((membership, membership.staged.topology.as_ref()?))).ok_or(order)
    }

    fn map_of(&self, group: u32, rank: u32) -> Result<&Topology> {
        let order = Error::Order { what: "a question about a group that is not known", next: "`join` it" };
        let membership = self.members.get(&(group, rank));
        membership.and_then(|membership| membership.staged.topology.as_deref()).ok_or(order)
    }

    /// Length of a segment that the ranks of a host share, for up to so many bytes of data: its flags come first, zeros
    /// at the beginning.
    ///
    /// # Errors
    /// [`Error::Order`]: [`Client::join`] was not called.
    pub fn segment_bytes(&self, group: u32, rank: u32, data_bytes: u64) -> Result<u64> {
        Ok(data_offset(self.map_of(group, rank)?).saturating_add(data_bytes))
    }

    /// The rank whose segment is that of this one's host.
    ///
    /// # Errors
    /// As [`Client::segment_bytes`].
    pub fn segment_owner(&self, group: u32, rank: u32) -> Result<u32> {
        Ok(polled_rank(self.map_of(group, rank)?, Delivery::Hierarchical, rank))
    }

    /// The delivery that thresholds give for a message or a block of so many bytes, alike on all ranks of a group.
    ///
    /// # Errors
    /// As [`Client::segment_bytes`].
    pub fn delivery(&self, group: u32, rank: u32, thresholds: Thresholds, bytes: u64) -> Result<Delivery> {
        Ok(thresholds.delivery(self.map_of(group, rank)?, bytes))
    }

    /// Calls a non-blocking Broadcast of all of `buffer`: the message of `root`, and where it goes on the others. The
    /// buffer is the service processes' until [`Client::end_staged`] reports the end. With hierarchical delivery the
    /// first rank of each host gives `segment`, memory of [`Client::segment_bytes`] that all ranks of its host can
    /// read, until each of them has ended the collective.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Refused`], [`Error::Key`], [`Error::Format`], [`Error::Gone`].
    pub fn broadcast(
        &mut self,
        (group, rank): (u32, u32),
        root: u32,
        delivery: Delivery,
        buffer: Region,
        segment: Option<MemoryId>,
    ) -> Result<StagedCall> {
        let descriptor = Descriptor { collective: Collective::Broadcast { root }, delivery, bytes: buffer.bytes };
        let send = if rank == root { buffer } else { NOTHING };
        self.post_staged((group, rank), descriptor, send, buffer, segment)
    }

    /// Calls a non-blocking Allgather: of each rank as many bytes as of the others, which go to `receive` in the order
    /// of the ranks. See [`Client::broadcast`].
    ///
    /// # Errors
    /// As [`Client::broadcast`].
    pub fn allgather(
        &mut self,
        (group, rank): (u32, u32),
        delivery: Delivery,
        send: Region,
        receive: Region,
        segment: Option<MemoryId>,
    ) -> Result<StagedCall> {
        let descriptor = Descriptor { collective: Collective::Allgather, delivery, bytes: send.bytes };
        self.post_staged((group, rank), descriptor, send, receive, segment)
    }

    fn post_staged(
        &mut self,
        (group, rank): (u32, u32),
        descriptor: Descriptor,
        send: Region,
        receive: Region,
        segment: Option<MemoryId>,
    ) -> Result<StagedCall> {
        if self.is_gone {
            return Err(Error::Gone);
        }
        let (membership, topology) = self.staged_member(group, rank)?;
        let collective = membership.staged.next;
        let mut part = Part { rank, send, receive, flags: NOTHING, shared: NOTHING };
        let mut posted = Posted { descriptor, segment: None, copy: None };
        let is_shared = descriptor.delivery == Delivery::Hierarchical;
        let (ranks, refused) = (topology.ranks(), |refusal| Err(Error::Refused(Refused::Staged(refusal))));
        // What the process would refuse, too: here the call has not been counted yet.
        let bytes = match descriptor.collective {
            Collective::Allgather => descriptor.bytes.saturating_mul(ranks.into()),
            Collective::Broadcast { root } if root >= ranks => {
                return refused(StagedRefusal::Rank { rank: root, ranks });
            }
            Collective::Broadcast { .. } => descriptor.bytes,
        };
        if receive.bytes != bytes {
            let (found, expected) = (receive.bytes, bytes);
            return refused(StagedRefusal::Buffer { name: "receive", rank, found, expected });
        }
        if is_shared {
            let flags = Region { bytes: membership.staged.flag_bytes(), ..NOTHING };
            (part.receive, part.flags, part.shared) = (NOTHING, flags, Region { bytes, ..NOTHING });
            let of_rank = |call: &StagedCall| (call.context.group, call.rank, call.is_shared) == (group, rank, true);
            if self.staged.posted.keys().any(of_rank) {
                // Others may write to the segment once all ranks have called the next: then this one must have copied.
                return Err(Error::Order {
                    what: "a hierarchical collective before the one before it has ended",
                    next: "wait for its end, so that its segment is free",
                });
            }
            let is_root = matches!(descriptor.collective, Collective::Broadcast { root } if root == rank);
            if !is_root && bytes > 0 {
                posted.copy = Some(self.memory_of(receive, bytes, rank)?);
            }
            if polled_rank(topology, descriptor.delivery, rank) == rank {
                posted.segment = segment;
                (part.flags, part.shared) = self.own_segment(topology, segment, bytes, rank)?;
            }
        } else if let Some(memory) = self.key(membership.flags)? {
            let (address, bytes) = (memory.address + FLAGS * FLAG_BYTES, membership.staged.flag_bytes());
            part.flags = Region { address, bytes, ..memory };
        }
        let context = ContextId { group, collective };
        let call = StagedCall { context, rank, is_shared };
        for part in TaskParts::new(descriptor, &[part])?.parts() {
            self.say(context, Body::Task(part?))?;
        }
        if let Some(membership) = self.members.get_mut(&(group, rank)) {
            membership.staged.next = collective.wrapping_add(1);
        }
        let segment = posted.segment;
        self.staged.posted.insert(call, posted);
        self.is_named(&[send.key, receive.key], Named::Staged(call));
        if let Some(segment) = segment {
            self.is_named_by(segment, Named::Staged(call));
        }
        Ok(call)
    }

    /// Flags and data of the segment of a host's first rank.
    fn own_segment(
        &self,
        topology: &Topology,
        segment: Option<MemoryId>,
        bytes: u64,
        rank: u32,
    ) -> Result<(Region, Region)> {
        let order = Error::Order {
            what: "a hierarchical collective without a segment, on the first rank of a host",
            next: "share memory of `segment_bytes` and wait for its key",
        };
        let memory = segment.map(|segment| self.key(segment)).transpose()?.flatten().ok_or(order)?;
        let start = data_offset(topology);
        let (found, expected) = (memory.bytes, start.saturating_add(bytes));
        if found < expected {
            let refusal = StagedRefusal::Buffer { name: "shared", rank, found, expected };
            return Err(Error::Refused(Refused::Staged(refusal)));
        }
        let flags = Region { bytes: FLAG_BYTES * u64::from(topology.processes()), ..memory };
        Ok((flags, Region { address: memory.address + start, bytes, ..memory }))
    }

    /// The memory of this program that a region of a call is in: which one, offset, and length.
    fn memory_of(&self, region: Region, bytes: u64, rank: u32) -> Result<(MemoryId, u64, u64)> {
        let refused = || {
            let refusal = StagedRefusal::Buffer { name: "receive", rank, found: 0, expected: bytes };
            Error::Refused(Refused::Staged(refusal))
        };
        let offset = |exported: &Option<super::Memory>| {
            let exported = exported.as_ref()?;
            let (start, len) = exported.range();
            let offset = region.address.checked_sub(start)?;
            let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= len);
            (exported.alias == Some(Ok(region.key)) && is_inside).then_some(offset)
        };
        let found = (0..).zip(&self.memory).find_map(|(number, memory)| Some((MemoryId(number), offset(memory)?)));
        found.map(|(memory, offset)| (memory, offset, bytes)).ok_or_else(refused)
    }

    /// Whether the flags of all service processes that write to a rank say that a collective has ended well: it reads
    /// memory alone. `segment` is the segment of the host as this program sees it; only ranks other than the first of a
    /// host need it, and only where the delivery is hierarchical.
    ///
    /// # Errors
    /// [`Error::Order`]: no segment, although there must be one. [`Error::Card`]: it is too short.
    pub fn is_staged_flagged(&self, call: StagedCall, segment: Option<&MemoryRegion>) -> Result<bool> {
        let Some(posted) = self.staged.posted.get(&call) else { return self.has_ended(call) };
        let (membership, topology) = self.staged_member(call.context.group, call.rank)?;
        let (memory, start) = if call.is_shared {
            (self.segment_of(posted, segment)?, 0)
        } else {
            (self.region(membership.flags), FLAGS * FLAG_BYTES)
        };
        let flag = |process: u32| memory.read_u64((start + u64::from(process) * FLAG_BYTES) as usize);
        let flags = (0..topology.processes()).map(flag).collect::<Result<Vec<u64>, _>>()?;
        let writers = writers(topology, membership.staged.between, &posted.descriptor, call.rank);
        Ok(is_over(writers, &flags, call.context.collective))
    }

    fn segment_of<'m>(&'m self, posted: &Posted, given: Option<&'m MemoryRegion>) -> Result<&'m MemoryRegion> {
        let order = Error::Order {
            what: "a check of a hierarchical collective without the segment of the host",
            next: "give the segment of the host's first rank",
        };
        posted.segment.map(|segment| self.region(segment)).or(given).ok_or(order)
    }

    /// Whether a call that is not among those under way has been one of them.
    fn has_ended(&self, call: StagedCall) -> Result<bool> {
        let (membership, _) = self.staged_member(call.context.group, call.rank)?;
        let ahead = call.context.collective.wrapping_sub(membership.staged.next) as i32;
        let order = Error::Order { what: "the end of a collective that was not called", next: "call it" };
        if ahead < 0 { Ok(true) } else { Err(order) }
    }

    /// How a staged collective has ended, if it has; see [`Client::is_staged_flagged`]. Where ranks share a segment
    /// this copies from there, once.
    ///
    /// # Errors
    /// [`Error::StagedFailed`], [`Error::Refused`], [`Error::Order`], [`Error::Gone`].
    pub fn end_staged(&mut self, call: StagedCall, segment: Option<&MemoryRegion>) -> Result<bool> {
        if let Some(refusal) = self.staged.refused.get(&(call.context, call.rank)) {
            return Err(Error::Refused(Refused::Staged(*refusal)));
        }
        if self.is_staged_flagged(call, segment)? {
            let Some(posted) = self.staged.posted.get(&call) else { return Ok(true) };
            if let Some((memory, to, bytes)) = posted.copy {
                let (_, topology) = self.staged_member(call.context.group, call.rank)?;
                let from = self.segment_of(posted, segment)?;
                self.region(memory).copy_from(to as usize, from, data_offset(topology) as usize, bytes as usize)?;
                self.staged.copies += 1;
                self.staged.copied_bytes += bytes;
            }
            self.staged.posted.remove(&call);
            return Ok(true);
        }
        let membership = self.members.get(&(call.context.group, call.rank));
        match membership.and_then(|membership| membership.staged.failure) {
            Some(failure) => Err(Error::StagedFailed(failure)),
            None if self.is_gone => Err(Error::Gone),
            None => Ok(false),
        }
    }

    /// Copies from segments that ranks of a host share, and their bytes: the host's work in hierarchical collectives.
    #[must_use]
    pub const fn host_copies(&self) -> (u64, u64) {
        (self.staged.copies, self.staged.copied_bytes)
    }
}
