//! Buffers in the memory of this process: of connections over which messages come in fragments, and of ranks of one
//! process.

use std::ops::Range;

use flexcast_proto::p2p::{Memory, Operation, Part, Span};
use flexcast_proto::{RankInfo, Summary};
use flexcast_sparse::messages::Begun;

use super::bound::{Bound, refused};
use super::executor::{Buffers, Executor, Extent, Link};
use crate::error::Result;
use crate::p2p;
use flexcast_reduce::Reduction;

/// Memory of an operation that is over, for the next one.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    memory: OwnMemory,
    partial: Vec<(u32, u64)>,
}

impl Spare {
    /// What it takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.memory.temporary.capacity() + self.memory.kept.capacity()
    }
}

/// What a rank needs in addition to the user's buffers.
#[derive(Debug, Default)]
struct OwnMemory {
    temporary: Vec<u8>,
    /// Of a contribution in the receive buffer, which is written over while it is needed: a copy of that part.
    kept: Vec<u8>,
    /// Where the copied part is in the contribution. The rest of it, if there is a rest, is in the receive buffer.
    /// None: the contribution is in the send buffer.
    kept_at: Option<Range<usize>>,
}

impl OwnMemory {
    /// Where bytes are: of a contribution in place, in the copy or in the receive buffer.
    fn locate(&self, (memory, range): Extent) -> Extent {
        match &self.kept_at {
            Some(kept) if memory == Memory::Send => match kept.start <= range.start && range.end <= kept.end {
                true => (memory, range.start - kept.start..range.end - kept.start),
                false => (Memory::Receive, range),
            },
            _ => (memory, range),
        }
    }

    /// The contribution: in the send buffer, or what is kept of it.
    fn contribution<'s>(&'s self, send: &'s [u8]) -> &'s [u8] {
        if self.kept_at.is_some() { &self.kept } else { send }
    }

    fn bytes<'s>(&'s self, send: &'s [u8], receive: &'s [u8], extent: Extent) -> &'s [u8] {
        let (memory, range) = self.locate(extent);
        let memory = match memory {
            Memory::Send => self.contribution(send),
            Memory::Temporary => &self.temporary,
            Memory::Receive => receive,
        };
        memory.get(range).unwrap_or_default()
    }
}

/// The buffers of a rank, as an executor sees them.
#[derive(Debug)]
pub(crate) struct Slices<'b> {
    own: &'b mut OwnMemory,
    send: &'b [u8],
    receive: &'b mut [u8],
}

impl Slices<'_> {
    /// Bytes that are sent.
    pub(crate) fn bytes(&self, extent: Extent) -> &[u8] {
        self.own.bytes(self.send, self.receive, extent)
    }

    /// All bytes of a message.
    pub(crate) fn message(&self, executor: &Executor, part: Part) -> Vec<u8> {
        let total = executor.bytes(part) as usize;
        let mut bytes = Vec::with_capacity(total);
        while bytes.len() < total {
            bytes.extend_from_slice(self.bytes(executor.run(part, bytes.len() as u64)));
        }
        bytes
    }
}

impl Buffers for Slices<'_> {
    fn copy(&mut self, from: Extent, (_, to): Extent) -> p2p::Result<()> {
        match self.own.locate(from) {
            (Memory::Receive, from) => self.receive.copy_within(from, to.start),
            (_, from) => self.receive[to].copy_from_slice(&self.own.contribution(self.send)[from]),
        }
        Ok(())
    }

    fn combine(&mut self, with: Reduction, to: Extent, [left, right]: [Extent; 2]) -> p2p::Result<()> {
        let [to, left, right] = [to, left, right].map(|extent| self.own.locate(extent));
        let OwnMemory { temporary, kept, kept_at, .. } = &mut *self.own;
        let send = if kept_at.is_some() { kept } else { self.send };
        combine(with, [to, left, right], send, temporary, self.receive);
        Ok(())
    }
}

/// Combines parts of the buffers, of one length each: `to` = `left` ∘ `right`.
fn combine(with: Reduction, [to, left, right]: [Extent; 3], send: &[u8], temporary: &mut [u8], receive: &mut [u8]) {
    let (written, other) = match to.0 {
        Memory::Temporary => (temporary, &*receive),
        Memory::Send | Memory::Receive => (receive, &*temporary),
    };
    let Some((before, rest)) = written.split_at_mut_checked(to.1.start) else { return };
    let Some((target, behind)) = rest.split_at_mut_checked(to.1.len()) else { return };
    let operand = |(memory, range): &Extent| -> Option<&[u8]> {
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

/// A rank's part in one operation, whose messages come in fragments.
#[derive(Debug)]
pub(crate) struct Local {
    executor: Executor,
    summary: Summary,
    own: OwnMemory,
    /// Messages of which some has come, and how much.
    partial: Vec<(u32, u64)>,
}

impl Local {
    /// `spare`: memory of an operation before it ([`Local::into_spare`]), which need not be fetched again.
    ///
    /// # Errors
    /// There is no such operation, or no memory.
    pub(crate) fn new(
        bound: Bound,
        place: RankInfo,
        (name, summary): (&'static str, Summary),
        Spare { memory: mut own, mut partial }: Spare,
    ) -> Result<Self> {
        own.kept.clear();
        own.kept_at = None;
        partial.clear();
        let executor = Executor::new(bound, place).map_err(|error| refused(name, error))?;
        let needed = usize::try_from(executor.places(Memory::Temporary).end()).unwrap_or(usize::MAX);
        if own.temporary.len() < needed {
            own.temporary = crate::op::buffer::zeroes(needed)?;
        }
        Ok(Self { executor, summary, own, partial })
    }

    /// Its memory, for the next one.
    pub(crate) fn into_spare(self) -> Spare {
        Spare { memory: self.own, partial: self.partial }
    }

    /// What is compared with the other ranks.
    pub(crate) const fn summary(&self) -> Summary {
        self.summary
    }

    pub(crate) const fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Begins. Without a send buffer the contribution is in the receive buffer (`MPI_IN_PLACE`).
    ///
    /// # Errors
    /// No memory for a copy of the contribution.
    pub(crate) fn start(&mut self, send: Option<&[u8]>, receive: &mut [u8]) -> Result<()> {
        let Bound { operation, shape, .. } = self.executor.bound();
        let (operation, reduces) = (*operation, shape.is_some());
        if send.is_none() && (reduces || matches!(operation, Operation::Alltoall(_))) {
            let place = self.executor.schedule().place();
            let all = 0..receive.len();
            let own_share = || self.executor.run(Part::send(Span::of(place.rank())), 0).1;
            let range = if operation.overwrites_own_share_alone() { own_share() } else { all };
            let part = receive.get(range.clone()).unwrap_or_default();
            crate::op::buffer::reserve(&mut self.own.kept, part.len())?;
            self.own.kept.extend_from_slice(part);
            self.own.kept_at = Some(range);
        }
        let copies = send.is_some() || self.own.kept_at.is_some();
        let mut slices = Slices { own: &mut self.own, send: send.unwrap_or_default(), receive };
        // Memory of this process is always there.
        let begun = if copies { self.executor.copy_own(&mut slices) } else { Ok(()) };
        begun.and_then(|()| self.executor.reduce(&mut slices)).map_err(|error| refused("a collective", error))
    }

    /// Takes what the link reports, and sends what may be sent. Returns whether there was anything.
    ///
    /// # Errors
    /// Those of the link.
    pub(crate) fn advance<L>(&mut self, link: &mut L, send: &[u8], receive: &mut [u8]) -> p2p::Result<bool>
    where
        L: for<'b> Link<Slices<'b>>,
    {
        let mut slices = Slices { own: &mut self.own, send, receive };
        let reported = self.executor.poll(link, &mut slices)?;
        Ok(self.executor.drive(link, &mut slices)? || reported)
    }

    /// The bytes of a message from number `at` on, up to the next that lie somewhere else.
    pub(crate) fn source<'s>(&'s self, send: &'s [u8], receive: &'s [u8], part: Part, at: u64) -> &'s [u8] {
        self.own.bytes(send, receive, self.executor.run(part, at))
    }

    /// A part of a message begins to come.
    pub(crate) fn begin(&self, from: u32, summary: Summary, (tag, total, offset): (u32, u64, u64)) -> Begun {
        if summary != self.summary {
            return Begun::Disagrees;
        }
        let Some(target) = self.executor.expected(from, tag) else { return Begun::Impossible };
        let expected = self.executor.bytes(target);
        if total != expected {
            return Begun::Differs([total, expected]);
        }
        let come = self.partial.iter().find(|(other, _)| *other == tag).map_or(0, |(_, come)| *come);
        if come == offset { Begun::Fine } else { Begun::Impossible }
    }

    /// Where the bytes of a message from number `at` on belong, up to the next that belong somewhere else.
    pub(crate) fn place<'s>(&'s mut self, receive: &'s mut [u8], from: u32, tag: u32, at: u64) -> &'s mut [u8] {
        let Some(target) = self.executor.expected(from, tag) else { return &mut [] };
        let (memory, range) = self.executor.run(target, at);
        let memory = match memory {
            Memory::Temporary => &mut self.own.temporary,
            Memory::Receive => receive,
            Memory::Send => return &mut [],
        };
        memory.get_mut(range).unwrap_or_default()
    }

    /// A part of a message has come, up to `end` of `total` bytes. False: it cannot be.
    pub(crate) fn came(
        &mut self,
        (from, tag): (u32, u32),
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
        let mut slices = Slices { own: &mut self.own, send, receive };
        self.executor.arrived(from, tag).is_ok() && self.executor.reduce(&mut slices).is_ok()
    }

    /// A whole message has come, all at once. False: it cannot be.
    pub(crate) fn deliver(&mut self, (from, tag): (u32, u32), bytes: &[u8], send: &[u8], receive: &mut [u8]) -> bool {
        let (total, mut rest) = (bytes.len() as u64, bytes);
        while !rest.is_empty() {
            let place = self.place(receive, from, tag, total - rest.len() as u64);
            if place.is_empty() {
                return false;
            }
            let (now, later) = rest.split_at(place.len().min(rest.len()));
            place[..now.len()].copy_from_slice(now);
            rest = later;
        }
        self.came((from, tag), (total, total), send, receive)
    }
}

#[cfg(test)]
mod tests;
