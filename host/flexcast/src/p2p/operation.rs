//! The operation that a group is at.

use std::ops::Range;

use flexcast_proto::p2p::{Blocks, Layout, Memory, Part, Schedule, Span, Transfer};
use flexcast_proto::{RankInfo, RankSet};
use flexio::{HostAddr, LocalSlice, MemoryRegion};

use super::Error;
use super::announcement::{Announcement, OperationDescriptor};
use super::shape::Shape;
use crate::op::collective::Places;

/// Registered memory from an offset on. It must stay registered until the operation is complete: otherwise the cards'
/// key checks make it fail.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'r> {
    /// The region; a receive buffer's must allow local and remote writes.
    pub region: &'r MemoryRegion,
    /// Where the buffer begins in it, in bytes.
    pub offset: u64,
}

impl Buffer<'_> {
    /// Checks that `len` bytes fit.
    pub(super) fn check(&self, len: u64) -> Result<(), Error> {
        let region_len = self.region.len() as u64;
        if self.offset.checked_add(len).is_none_or(|end| end > region_len) {
            let region = self.region.addr();
            return Err(flexio::Error::RegionRange { offset: self.offset, len, region, region_len }.into());
        }
        Ok(())
    }

    /// Copies `len` bytes from `from` of this buffer to `to` of another one.
    pub(super) fn copy(
        &self,
        from: u64,
        len: u64,
        other: &Buffer<'_>,
        to: u64,
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < len {
            let size = (len - done).min(scratch.len() as u64) as usize;
            let piece = &mut scratch[..size];
            self.region.read((self.offset + from + done) as usize, piece)?;
            other.region.write((other.offset + to + done) as usize, piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }
}

/// How the buffer is divided, kept.
#[derive(Clone, Debug)]
pub(super) struct Division {
    pub(super) pieces: Pieces,
    /// Blocks of each piece.
    pub(super) segments: u32,
}

/// Contributions, or blocks of a message.
#[derive(Clone, Debug)]
pub(super) enum Pieces {
    Even(Blocks<'static>),
    Ends(Vec<u64>),
}

impl Pieces {
    pub(super) fn blocks(&self) -> Result<Blocks<'_>, Error> {
        match self {
            Self::Even(blocks) => Ok(*blocks),
            Self::Ends(ends) => Ok(Blocks::unequal(ends)?),
        }
    }
}

impl Division {
    pub(super) fn pieces(&self) -> Result<Blocks<'_>, Error> {
        self.pieces.blocks()
    }

    pub(super) fn blocks(&self) -> Result<Blocks<'_>, Error> {
        Ok(self.pieces()?.split(self.segments)?)
    }
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) schedule: Schedule,
    pub(super) descriptor: OperationDescriptor,
    /// Who sends to this rank, and whom it sends to.
    pub(super) sources: RankSet,
    pub(super) targets: RankSet,
    /// Where what is sent lies in this rank's memory.
    addr: u64,
    lkey: u32,
    /// Where peers write.
    target: Target,
}

/// What peers are told of.
#[derive(Debug)]
enum Target {
    /// The same memory, each block to its own place.
    Same { rkey: u32 },
    /// Another buffer, with a block of each peer, or a single one; each is told of its own. And where the blocks lie
    /// that are sent.
    Exchange { addr: u64, rkey: u32, places: Places, sent: Places },
    /// The same memory, where contribution, temporary memory and result lie one behind the other; peers are told of the
    /// second.
    Reduction { rkey: u32, shape: Shape },
}

/// The next write of a message.
#[derive(Debug)]
pub(super) struct Piece {
    /// What is written; none if it is empty.
    pub(super) local: Option<LocalSlice>,
    /// Its length in bytes.
    pub(super) len: u64,
    /// Where it goes, from what the peer has announced on.
    pub(super) remote: u64,
    /// Bytes of the message behind it.
    pub(super) behind: u64,
}

fn address(buffer: &Buffer<'_>) -> u64 {
    buffer.region.addr().offset(buffer.offset).get()
}

/// The block of a buffer that is a peer's, where it begins and its length: buffers of ranks that have only one peer
/// have only one block. Nothing if no message goes that way.
fn block_at(places: &Places, peer: u32, is_message: bool) -> (u64, u64) {
    let at = if places.count() == 1 { 0 } else { peer };
    if is_message { places.place(at) } else { (0, 0) }
}

/// A buffer, and where its blocks lie.
#[derive(Debug)]
pub(crate) struct Placed<'p> {
    pub(crate) buffer: Buffer<'p>,
    pub(crate) places: Places,
}

impl<'p> Placed<'p> {
    /// Blocks one behind the other, each up to where the next begins.
    pub(super) fn of_ends(buffer: Buffer<'p>, ends: &[u64]) -> Result<Self, Error> {
        let blocks = Blocks::unequal(ends)?;
        Ok(Self { buffer, places: Places::divided(&blocks) })
    }

    /// A block: where it begins, and its length.
    pub(super) fn block(&self, block: u32) -> (u64, u64) {
        self.places.place(block)
    }
}

impl Running {
    fn with(schedule: Schedule, descriptor: OperationDescriptor, from: &Buffer<'_>, target: Target) -> Self {
        let (sources, targets) = (schedule.sources(), schedule.targets());
        let (addr, lkey) = (address(from), from.region.lkey());
        Self { schedule, descriptor, sources, targets, addr, lkey, target }
    }

    pub(super) fn new(schedule: Schedule, descriptor: OperationDescriptor, buffer: &Buffer<'_>) -> Self {
        Self::with(schedule, descriptor, buffer, Target::Same { rkey: buffer.region.rkey() })
    }

    /// From the blocks of one buffer to those of another: one for each rank, or one for the only peer.
    pub(super) fn exchange(
        schedule: Schedule,
        descriptor: OperationDescriptor,
        send: Placed<'_>,
        receive: Placed<'_>,
    ) -> Self {
        let (addr, rkey) = (address(&receive.buffer), receive.buffer.region.rkey());
        let target = Target::Exchange { addr, rkey, places: receive.places, sent: send.places };
        Self::with(schedule, descriptor, &send.buffer, target)
    }

    /// In a buffer that holds the contribution, temporary memory and the result.
    pub(super) fn reduction(
        schedule: Schedule,
        descriptor: OperationDescriptor,
        buffer: &Buffer<'_>,
        shape: Shape,
    ) -> Self {
        Self::with(schedule, descriptor, buffer, Target::Reduction { rkey: buffer.region.rkey(), shape })
    }

    /// Whether a peer is to hear of the operation: one that writes here, and of a communicator's call also one that is
    /// written to, which may be at another, in which it expects nothing.
    pub(super) fn announces_to(&self, peer: u32) -> bool {
        self.sources.contains(peer) || (self.descriptor.is_call() && self.targets.contains(peer))
    }

    /// Number of the operation.
    pub(super) fn number(&self) -> u32 {
        self.descriptor.operation.get()
    }

    /// What a reduction reduces; none of something else.
    pub(super) const fn shape(&self) -> Option<&Shape> {
        match &self.target {
            Target::Reduction { shape, .. } => Some(shape),
            Target::Same { .. } | Target::Exchange { .. } => None,
        }
    }

    pub(super) fn announcement(&self, peer: u32) -> Result<Announcement, Error> {
        Ok(match &self.target {
            Target::Same { rkey } => {
                Announcement { descriptor: self.descriptor, rkey: (*rkey).into(), addr: self.addr.into() }
            }
            Target::Exchange { addr, rkey, places, .. } => {
                let (start, bytes) = block_at(places, peer, self.sources.contains(peer));
                let descriptor = self.descriptor.of_pair(bytes);
                Announcement { descriptor, rkey: (*rkey).into(), addr: (addr + start).into() }
            }
            Target::Reduction { rkey, shape } => {
                let addr = self.addr + shape.layout(self.schedule.place())?.send.total_bytes();
                Announcement { descriptor: self.descriptor, rkey: (*rkey).into(), addr: addr.into() }
            }
        })
    }

    /// What a peer must have announced.
    pub(super) fn expected(&self, peer: u32) -> OperationDescriptor {
        match &self.target {
            Target::Same { .. } | Target::Reduction { .. } => self.descriptor,
            Target::Exchange { sent, .. } => {
                let (_, bytes) = block_at(sent, peer, self.targets.contains(peer));
                self.descriptor.of_pair(bytes)
            }
        }
    }

    /// The next bytes of a message to write, `done` bytes in: at most `most`. `blocks`: those of the buffer, where all
    /// messages go from it to the same place of another.
    pub(super) fn piece(&self, transfer: &Transfer, blocks: &Blocks<'_>, done: u64, most: u32) -> Result<Piece, Error> {
        let of = |blocks: &Blocks<'_>| piece(blocks, transfer.source.blocks, done, most);
        let (start, len, remote, behind) = match &self.target {
            Target::Same { .. } => {
                let (range, behind) = of(blocks);
                (range.start, range.end - range.start, range.start, behind)
            }
            Target::Exchange { sent, .. } => {
                let (start, bytes) = block_at(sent, transfer.to, true);
                let left = bytes.saturating_sub(done);
                let len = left.min(most.into());
                (start + done, len, done, left - len)
            }
            Target::Reduction { shape, .. } => {
                let own = shape.layout(self.schedule.place())?;
                let theirs = shape.layout(RankInfo::new(transfer.to, self.schedule.place().ranks())?)?;
                let blocks = own.blocks(transfer.source.memory).unwrap_or(Blocks::EMPTY);
                let (range, behind) = of(&blocks);
                let start = offset(&own, transfer.source.memory) + range.start;
                let remote = place(&theirs, transfer.target).start - theirs.send.total_bytes() + done;
                (start, range.end - range.start, remote, behind)
            }
        };
        let local =
            (len != 0).then_some(LocalSlice { addr: HostAddr(self.addr + start), len: len as u32, lkey: self.lkey });
        Ok(Piece { local, len, remote, behind })
    }
}

/// Where a buffer begins in a region that holds all three, in bytes.
pub(super) fn offset(layout: &Layout<'_>, memory: Memory) -> u64 {
    match memory {
        Memory::Send => 0,
        Memory::Temporary => layout.send.total_bytes(),
        Memory::Receive => layout.send.total_bytes() + layout.temporary_bytes(),
    }
}

/// Where a part lies in such a region, in bytes. Those of reductions do not go on at the beginning.
pub(super) fn place(layout: &Layout<'_>, part: Part) -> Range<u64> {
    let (start, [range, _]) = (offset(layout, part.memory), layout.ranges(part));
    start + range.start..start + range.end
}

/// The next bytes of a span to write, `done` bytes in: at most `most`, and no further than the end of a range. With the
/// number of bytes behind them.
pub(super) fn piece(blocks: &Blocks<'_>, span: Span, done: u64, most: u32) -> (Range<u64>, u64) {
    let [first, second] = blocks.ranges(span);
    let length = |range: &Range<u64>| range.end - range.start;
    let total = length(&first) + length(&second);
    let (range, skip) = if done < length(&first) || length(&second) == 0 {
        (first.clone(), done)
    } else {
        (second, done - length(&first))
    };
    let start = range.start + skip;
    let end = range.end.min(start + u64::from(most));
    (start..end, total - done - (end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_span_and_the_last_has_nothing_behind() {
        let blocks = Blocks::unequal(&[4, 10, 10, 17]).unwrap();
        let pieces = |first, count, most| {
            let (mut done, mut all) = (0, Vec::new());
            loop {
                let (piece, behind) = piece(&blocks, Span { first, count }, done, most);
                done += piece.end - piece.start;
                all.push((piece.start, piece.end));
                if behind == 0 {
                    return all;
                }
            }
        };
        assert_eq!(pieces(1, 3, 100), [(4, 17)]);
        assert_eq!(pieces(1, 3, 5), [(4, 9), (9, 14), (14, 17)]);
        assert_eq!(pieces(3, 2, 100), [(10, 17), (0, 4)]);
        assert_eq!(pieces(3, 3, 6), [(10, 16), (16, 17), (0, 6), (6, 10)]);
        assert_eq!(pieces(2, 1, 100), [(10, 10)]);
        assert_eq!(pieces(2, 3, 100), [(10, 17), (0, 4)]);
    }
}
