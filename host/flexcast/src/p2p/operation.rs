//! The operation that a group is at.

use std::ops::Range;

use flexcast_proto::p2p::{Blocks, Schedule, Span};
use flexio::{HostAddr, LocalSlice, MemoryRegion};

use super::Error;
use super::announcement::{Announcement, OperationDescriptor};

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

impl Division {
    pub(super) fn pieces(&self) -> Result<Blocks<'_>, Error> {
        match &self.pieces {
            Pieces::Even(blocks) => Ok(*blocks),
            Pieces::Ends(ends) => Ok(Blocks::unequal(ends)?),
        }
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
    /// Where the blocks lie in this rank's memory.
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
    /// Another buffer, with a block of each peer that ends there; each is told of its own.
    Exchange { addr: u64, rkey: u32, ends: Vec<u64> },
}

fn address(buffer: &Buffer<'_>) -> u64 {
    buffer.region.addr().offset(buffer.offset).get()
}

impl Running {
    pub(super) fn new(schedule: Schedule, descriptor: OperationDescriptor, buffer: &Buffer<'_>) -> Self {
        let target = Target::Same { rkey: buffer.region.rkey() };
        Self { schedule, descriptor, addr: address(buffer), lkey: buffer.region.lkey(), target }
    }

    /// From the blocks of one buffer to those of another, which end at `ends`.
    pub(super) fn exchange(
        schedule: Schedule,
        descriptor: OperationDescriptor,
        send: &Buffer<'_>,
        receive: &Buffer<'_>,
        ends: Vec<u64>,
    ) -> Self {
        let target = Target::Exchange { addr: address(receive), rkey: receive.region.rkey(), ends };
        Self { schedule, descriptor, addr: address(send), lkey: send.region.lkey(), target }
    }

    /// Number of the operation.
    pub(super) fn number(&self) -> u32 {
        self.descriptor.operation.get()
    }

    pub(super) fn announcement(&self, peer: u32) -> Announcement {
        match &self.target {
            Target::Same { rkey } => {
                Announcement { descriptor: self.descriptor, rkey: (*rkey).into(), addr: self.addr.into() }
            }
            Target::Exchange { addr, rkey, ends } => {
                let end = ends[peer as usize];
                let start = peer.checked_sub(1).map_or(0, |before| ends[before as usize]);
                let descriptor = self.descriptor.of_pair(end - start);
                Announcement { descriptor, rkey: (*rkey).into(), addr: (addr + start).into() }
            }
        }
    }

    /// What a peer must have announced.
    pub(super) fn expected(&self, peer: u32, blocks: &Blocks<'_>) -> OperationDescriptor {
        match &self.target {
            Target::Same { .. } => self.descriptor,
            Target::Exchange { .. } => self.descriptor.of_pair(blocks.bytes(Span::of(peer))),
        }
    }

    /// From which byte of the own buffer on a peer's announced memory goes for a transfer.
    pub(super) fn base(&self, span: Span, blocks: &Blocks<'_>) -> u64 {
        match &self.target {
            Target::Same { .. } => 0,
            Target::Exchange { .. } => blocks.block(span.first).start,
        }
    }

    /// A piece of the own buffer for a write; none for an empty one.
    pub(super) fn local(&self, piece: &Range<u64>) -> Option<LocalSlice> {
        let len = (piece.end - piece.start) as u32;
        (len != 0).then_some(LocalSlice { addr: HostAddr(self.addr + piece.start), len, lkey: self.lkey })
    }
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
