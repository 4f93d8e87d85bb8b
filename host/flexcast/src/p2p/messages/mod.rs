//! Execution of point-to-point collectives: schedules ([`Schedule`]) bound to a rank's buffers.
//!
//! Whatever connects the ranks asks what is to be sent ([`Direct::poll`]) and where it lies, and says what has come;
//! reductions are made here.

pub(crate) mod sparse;

use std::ops::Range;

use flexcast_proto::p2p::{
    Allgather, Allreduce, Alltoall, Blocks, Broadcast, Layout, Memory, Operation, Part, Reduce, ReduceScatter,
    Schedule, Span, Transfer,
};
use flexcast_proto::{Algorithm, RankInfo, Summary};

use crate::error::{Error, Result};
use crate::op::collective::{Collective, Places};
use crate::op::reduce::Reduction;
use crate::plan::tuner;
use crate::plan::{Kind, Plan};

/// What a message of a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Expected.
    Fine,
    /// Of a rank that has called something else.
    Disagrees,
    /// Of a rank that has called the same, but with another length of the block between the two: by its call, and by
    /// this rank's.
    Differs([u64; 2]),
    /// None that a rank sends which keeps to the protocol.
    Impossible,
}

/// Memory of an operation that is over, for the next one.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    temporary: Vec<u8>,
    kept: Vec<u8>,
    partial: Vec<(u32, u64)>,
}

impl Spare {
    /// What it takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.temporary.capacity() + self.kept.capacity()
    }
}

/// A rank's part in one operation.
#[derive(Debug)]
pub(crate) struct Direct {
    schedule: Schedule,
    summary: Summary,
    reduction: Option<Reduction>,
    /// Division of the buffers, by the order of [`Memory`].
    places: [Places; 3],
    temporary: Vec<u8>,
    /// Of the contribution, where the receive buffer has it and is written to while it is needed: a copy of that part.
    kept: Vec<u8>,
    /// The contribution is in the receive buffer, and is written over.
    overwritten: bool,
    /// Where the copied part is in the contribution. The rest of it, if there is a rest, is in the receive buffer.
    kept_range: Range<usize>,
    /// The own share, if nothing else is written while it is needed.
    own_share: Option<Part>,
    /// Messages of which some has come, and how much.
    partial: Vec<(u32, u64)>,
}

fn refused(operation: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Argument { operation, reason: error.to_string() }
}

/// An operation, and the division of the buffers of one rank, by the order of [`Memory`].
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) operation: Operation,
    pub(crate) summary: Summary,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) places: [Places; 3],
}

impl Bound {
    /// A reduction, whose buffers are divided by `divide`.
    fn of_layout(
        operation: Operation,
        (summary, reduction): (Summary, Reduction),
        layout: &Layout<'_>,
        divide: impl Fn(&Blocks<'_>) -> Places,
    ) -> Self {
        let divided = [Memory::Send, Memory::Temporary, Memory::Receive]
            .map(|memory| layout.blocks(memory).map_or_else(Places::default, |blocks| divide(&blocks)));
        Self { operation, summary, reduction: Some(reduction), places: divided }
    }

    /// A Broadcast or an Allgather, whose own block is in its place.
    fn of_plan(plan: &Plan, summary: Summary) -> Result<Self> {
        let name = plan.kind.name();
        let algorithm = summary.algorithm;
        let impossible = || refused(name, format!("is not carried by the algorithm {algorithm}"));
        let gather = || match tuner::schedule(algorithm) {
            // Blocks at any places are not cut.
            Some(Allgather::PipelinedRing { .. }) => Ok(Operation::Allgather(Allgather::Ring)),
            Some(other) => Ok(Operation::Allgather(other)),
            None => Err(impossible()),
        };
        let (operation, receive) = match &plan.kind {
            Kind::Broadcast { root, bytes } => {
                let tree = tuner::tree(algorithm).ok_or_else(impossible)?;
                let segment_bytes = tuner::segment_bytes(tree, *bytes);
                let blocks = tree.blocks(*bytes, segment_bytes, plan.ranks()).map_err(|error| refused(name, error))?;
                let operation = Operation::Broadcast { algorithm: tree, root: *root, blocks: blocks.count() };
                (operation, Places::divided(&blocks))
            }
            Kind::Allgather { bytes } => (gather()?, Places::equal(*bytes, plan.ranks())),
            Kind::Allgatherv { bytes } => {
                let offsets = bytes.pool().list(plan.root_ranks().map(|root| plan.block(root).offset));
                (gather()?, Places::Listed { bytes: bytes.clone(), offsets })
            }
        };
        Ok(Self { operation, summary, reduction: None, places: [Places::default(), Places::default(), receive] })
    }

    /// Any other collective, by the algorithm of its summary.
    pub(crate) fn of_collective(collective: &Collective, place: RankInfo, summary: Summary) -> Result<Self> {
        let name = collective.kind().name();
        let (own, ranks) = (place.rank(), place.ranks());
        let algorithm = summary.algorithm;
        let impossible = || refused(name, format!("is not carried by the algorithm {algorithm}"));
        let wrong = |error| refused(name, error);
        let plain = |operation, send, receive| Self {
            operation,
            summary,
            reduction: None,
            places: [send, Places::default(), receive],
        };
        let at_root = |places: Places, root: u32| if root == own { places } else { Places::only(0, 0, ranks) };
        Ok(match collective {
            Collective::Barrier => plain(Operation::Barrier, Places::equal(0, 1), Places::equal(0, 1)),
            Collective::Allreduce { bytes, reduction } | Collective::SparseAllreduce { bytes, reduction, .. } => {
                let element = reduction.element_bytes();
                let with = match algorithm {
                    Algorithm::Ring => Allreduce::Ring,
                    Algorithm::RecursiveDoubling => Allreduce::RecursiveDoubling,
                    Algorithm::Linear => Allreduce::Exchange,
                    Algorithm::Binomial => Allreduce::Tree { segments: segments(*bytes) },
                    _ => return Err(impossible()),
                };
                let layout = with.layout(bytes / u64::from(element), element, place).map_err(wrong)?;
                Self::of_layout(Operation::Allreduce(with), (summary, *reduction), &layout, Places::divided)
            }
            Collective::Reduce { root, bytes, reduction } => {
                let element = reduction.element_bytes();
                let with = match algorithm {
                    Algorithm::Linear => Reduce::Exchange,
                    Algorithm::Binomial => Reduce::Tree { segments: segments(*bytes) },
                    _ => return Err(impossible()),
                };
                let layout = with.layout(bytes / u64::from(element), element, *root, place).map_err(wrong)?;
                let operation = Operation::Reduce { algorithm: with, root: *root };
                Self::of_layout(operation, (summary, *reduction), &layout, Places::divided)
            }
            Collective::ReduceScatter { shares, reduction } => {
                let with = match algorithm {
                    Algorithm::Ring => ReduceScatter::Ring,
                    Algorithm::Linear => ReduceScatter::Exchange,
                    _ => return Err(impossible()),
                };
                let mut end = 0;
                let lists = shares.pool();
                let ends = lists.list(shares.iter().map(|bytes| (end += bytes, end).1));
                let shares = Blocks::unequal(&ends).map_err(|error| refused(name, error))?;
                let layout = with.layout(shares, place).map_err(|error| refused(name, error))?;
                let divide = |blocks: &Blocks<'_>| Places::divided_in(lists, blocks);
                Self::of_layout(Operation::ReduceScatter(with), (summary, *reduction), &layout, divide)
            }
            Collective::Alltoall { bytes } => {
                let all = Places::equal(*bytes, ranks);
                plain(Operation::Alltoall(alltoall(algorithm)), all.clone(), all)
            }
            Collective::Alltoallv { send, receive } => {
                plain(Operation::Alltoall(alltoall(algorithm)), send.clone(), receive.clone())
            }
            Collective::Gather { root, bytes } => {
                let receive = at_root(Places::equal(*bytes, ranks), *root);
                plain(Operation::Gather { root: *root }, Places::equal(*bytes, 1), receive)
            }
            Collective::Gatherv { root, places } => {
                let send = Places::equal(places.bytes_of(own), 1);
                plain(Operation::Gather { root: *root }, send, at_root(places.clone(), *root))
            }
            Collective::Scatter { root, bytes, in_place } => {
                let send = at_root(Places::equal(*bytes, ranks), *root);
                let receive = Places::equal(if *in_place { 0 } else { *bytes }, 1);
                plain(Operation::Scatter { root: *root }, send, receive)
            }
            Collective::Scatterv { root, places, in_place } => {
                let receive = Places::equal(if *in_place { 0 } else { places.bytes_of(own) }, 1);
                plain(Operation::Scatter { root: *root }, at_root(places.clone(), *root), receive)
            }
        })
    }
}

/// Segments of a message up or down a tree of reductions.
fn segments(bytes: u64) -> u32 {
    bytes.div_ceil(tuner::segment_bytes(Broadcast::BINOMIAL, bytes)).max(1) as u32
}

const fn alltoall(algorithm: Algorithm) -> Alltoall {
    match algorithm {
        Algorithm::Pairwise => Alltoall::Pairwise,
        Algorithm::Ring => Alltoall::Ring,
        _ => Alltoall::Linear,
    }
}

impl Direct {
    /// A Broadcast, an Allgather or an Allgatherv by an algorithm.
    /// `spare`: memory of an operation before it ([`Direct::into_spare`]), which need not be fetched again.
    pub(crate) fn of_plan(plan: &Plan, place: RankInfo, summary: Summary, spare: Spare) -> Result<Self> {
        Self::new(Bound::of_plan(plan, summary)?, place, plan.kind.name(), spare)
    }

    /// Any other collective.
    pub(crate) fn of_collective(
        collective: &Collective,
        place: RankInfo,
        summary: Summary,
        spare: Spare,
    ) -> Result<Self> {
        Self::new(Bound::of_collective(collective, place, summary)?, place, collective.kind().name(), spare)
    }

    /// Its memory, for the next one.
    pub(crate) fn into_spare(self) -> Spare {
        let Self { temporary, kept, partial, .. } = self;
        Spare { temporary, kept, partial }
    }

    fn new(bound: Bound, place: RankInfo, name: &'static str, spare: Spare) -> Result<Self> {
        let Spare { mut temporary, mut kept, mut partial } = spare;
        kept.clear();
        partial.clear();
        let Bound { operation, summary, reduction, places } = bound;
        let schedule = Schedule::new(operation, place).map_err(|error| refused(name, error))?;
        let bytes = places[Memory::Temporary as usize].end();
        let needed = usize::try_from(bytes).unwrap_or(usize::MAX);
        if temporary.len() < needed {
            temporary = crate::op::buffer::zeroes(needed)?;
        }
        let own_share = operation.overwrites_own_share_alone().then(|| Part::send(Span::of(place.rank())));
        Ok(Self {
            schedule,
            summary,
            reduction,
            places,
            temporary,
            kept,
            overwritten: false,
            kept_range: 0..0,
            own_share,
            partial,
        })
    }

    /// What is compared with the other ranks.
    pub(crate) const fn summary(&self) -> Summary {
        self.summary
    }

    /// Bytes that come from other ranks.
    pub(crate) fn foreign_bytes(&self) -> u64 {
        self.schedule.receives().map(|arrival| self.bytes(arrival.target)).sum()
    }

    /// Begins. Without a send buffer the contribution is in the receive buffer (`MPI_IN_PLACE`). `placed`: it is in its
    /// place there.
    ///
    /// # Errors
    /// No memory for a copy of the contribution.
    pub(crate) fn start(&mut self, send: Option<&[u8]>, receive: &mut [u8], placed: bool) -> Result<()> {
        if placed {
            return Ok(());
        }
        let kind = self.summary.kind;
        let overwrites =
            kind.reduces() || matches!(kind, flexcast_proto::Kind::Alltoall | flexcast_proto::Kind::Alltoallv);
        if send.is_none() && overwrites {
            self.overwritten = true;
            self.kept_range = self.own_share.map_or(0..receive.len(), |share| self.range(share, 0));
            let part = receive.get(self.kept_range.clone()).unwrap_or_default();
            crate::op::buffer::reserve(&mut self.kept, part.len())?;
            self.kept.extend_from_slice(part);
        }
        if let Some(start) = self.schedule.start()
            && (send.is_some() || overwrites)
        {
            let mut at = 0;
            loop {
                let from = self.range(Part::send(start.from), at);
                let to = self.range(Part::receive(start.to), at);
                let len = from.len().min(to.len());
                if len == 0 {
                    break;
                }
                let from = &send.unwrap_or(&self.kept)[from.start..from.start + len];
                receive[to.start..to.start + len].copy_from_slice(from);
                at += len as u64;
            }
        }
        self.reduce(send.unwrap_or_default(), receive);
        Ok(())
    }

    /// The bytes of a part from number `at` on, up to the next that lie somewhere else.
    fn range(&self, part: Part, at: u64) -> Range<usize> {
        self.places[part.memory as usize].run(part.blocks, at)
    }

    /// Bytes of a part.
    pub(crate) fn bytes(&self, part: Part) -> u64 {
        self.places[part.memory as usize].total(part.blocks)
    }

    /// The next message to send.
    pub(crate) fn poll(&mut self) -> Option<Transfer> {
        self.schedule.poll()
    }

    /// Messages that were polled are sent: their bytes may change.
    pub(crate) fn sent(&mut self, messages: u32) {
        for _ in 0..messages {
            // No more than were polled: they are counted where they were.
            let _ = self.schedule.sent();
        }
    }

    /// The bytes of a message from number `at` on, up to the next that lie somewhere else.
    pub(crate) fn source<'s>(&'s self, send: &'s [u8], receive: &'s [u8], part: Part, at: u64) -> &'s [u8] {
        let (memory, range) = self.contribution((part.memory, self.range(part, at)));
        let memory = match memory {
            Memory::Send if self.overwritten => &self.kept,
            Memory::Send => send,
            Memory::Temporary => &self.temporary,
            Memory::Receive => receive,
        };
        memory.get(range).unwrap_or_default()
    }

    /// Where an operand is: of a contribution in place, in the copy or in the receive buffer.
    fn contribution(&self, (memory, range): Operand) -> Operand {
        if memory != Memory::Send || !self.overwritten {
            return (memory, range);
        }
        let Range { start, end } = self.kept_range;
        if start <= range.start && range.end <= end {
            (memory, range.start - start..range.end - start)
        } else {
            (Memory::Receive, range)
        }
    }

    /// A part of a message begins to come.
    pub(crate) fn begin(&mut self, from: u32, summary: Summary, (tag, total, offset): (u32, u64, u64)) -> Begun {
        if summary != self.summary {
            return Begun::Disagrees;
        }
        let Some(arrival) = self.schedule.receive(tag) else { return Begun::Impossible };
        if arrival.from != from {
            return Begun::Impossible;
        }
        let expected = self.bytes(arrival.target);
        if total != expected {
            return Begun::Differs([total, expected]);
        }
        let come = self.partial.iter().find(|(other, _)| *other == tag).map_or(0, |(_, come)| *come);
        if come == offset { Begun::Fine } else { Begun::Impossible }
    }

    /// Where the bytes of a message from number `at` on belong, up to the next that belong somewhere else.
    pub(crate) fn place<'s>(&'s mut self, receive: &'s mut [u8], tag: u32, at: u64) -> &'s mut [u8] {
        let Some(arrival) = self.schedule.receive(tag) else { return &mut [] };
        let range = self.range(arrival.target, at);
        let memory = match arrival.target.memory {
            Memory::Temporary => &mut self.temporary,
            Memory::Receive => receive,
            Memory::Send => return &mut [],
        };
        memory.get_mut(range).unwrap_or_default()
    }

    /// A part of a message has come, up to `end` of `total` bytes. False: it cannot be.
    pub(crate) fn came(
        &mut self,
        from: u32,
        tag: u32,
        (end, total): (u64, u64),
        send: &[u8],
        receive: &mut [u8],
    ) -> bool {
        let at = self.partial.iter().position(|(other, _)| *other == tag);
        if end < total {
            match at {
                Some(at) => self.partial[at].1 = end,
                None => self.partial.push((tag, end)),
            }
            return true;
        }
        if let Some(at) = at {
            self.partial.swap_remove(at);
        }
        if self.schedule.arrived(from, tag).is_err() {
            return false;
        }
        self.reduce(send, receive);
        true
    }

    /// Makes the reductions whose operands have come.
    fn reduce(&mut self, send: &[u8], receive: &mut [u8]) {
        while let Some(step) = self.schedule.reduce() {
            let Some(with) = self.reduction else { return };
            let operand = |part: Part| self.contribution((part.memory, self.range(part, 0)));
            let [to, left, right] = [step.to, step.left, step.right].map(operand);
            let send = if self.overwritten { &self.kept } else { send };
            combine(with, [to, left, right], send, &mut self.temporary, receive);
        }
    }

    /// Whether everything has come and is sent.
    pub(crate) fn is_complete(&self) -> bool {
        self.schedule.is_complete()
    }

    /// Who owes the first message that is missing.
    pub(crate) fn awaited(&self) -> Option<u32> {
        self.schedule.waiting_for()
    }
}

/// A part of a buffer.
type Operand = (Memory, Range<usize>);

/// Combines parts of the buffers, of one length each: `to` = `left` ∘ `right`.
fn combine(with: Reduction, [to, left, right]: [Operand; 3], send: &[u8], temporary: &mut [u8], receive: &mut [u8]) {
    let (written, other) = match to.0 {
        Memory::Temporary => (temporary, &*receive),
        Memory::Send | Memory::Receive => (receive, &*temporary),
    };
    let Some((before, rest)) = written.split_at_mut_checked(to.1.start) else { return };
    let Some((target, behind)) = rest.split_at_mut_checked(to.1.len()) else { return };
    let operand = |(memory, range): &Operand| -> Option<&[u8]> {
        let range = range.clone();
        let bytes = match memory {
            Memory::Send => send.get(range),
            same if *same != to.0 => other.get(range),
            _ if range == to.1 => return None,
            _ if range.end <= to.1.start => before.get(range),
            _ => behind.get(range.start.saturating_sub(to.1.end)..range.end.saturating_sub(to.1.end)),
        };
        Some(bytes.unwrap_or_default())
    };
    match (operand(&left), operand(&right)) {
        (Some(left), Some(right)) => with.combine_into(target, left, right),
        (None, Some(right)) => with.combine(target, right),
        // Every operator of this library is commutative, bit by bit.
        (Some(left), None) => with.combine(target, left),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests;
