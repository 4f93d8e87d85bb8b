//! Buffers in registered memory, which queue pairs read from and write to.

use std::ops::Range;

use flexcast_proto::p2p::{Layout, Memory, Part};
use flexio::MemoryRegion;

use super::Error;
use super::executor::{Buffers, Extent};
use flexcast_reduce::Reduction;

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

    /// Copies `len` bytes from `from` of another buffer, or of this one, to `to`.
    pub(super) fn copy_from(&self, to: usize, other: &Self, from: usize, len: usize) -> Result<(), Error> {
        Ok(self.region.copy_from(self.offset as usize + to, other.region, other.offset as usize + from, len)?)
    }

    pub(super) fn address(&self) -> u64 {
        self.region.addr().offset(self.offset).get()
    }
}

/// Room for the two operands of a reduction.
pub(super) type Operands = [Vec<u8>; 2];

/// The buffers of a rank by the order of [`Memory`], while bytes are copied or combined there: an operation that is
/// under way and reduces nothing has none.
#[derive(Debug)]
pub(super) struct Regions<'r> {
    pub(super) buffers: Option<[Buffer<'r>; 3]>,
    pub(super) operands: &'r mut Operands,
}

/// A reduction without memory.
pub(super) fn no_buffers() -> Error {
    Error::OutOfRange { what: "the number of buffers of a reduction", value: 0, limit: "3".to_owned() }
}

impl<'r> Regions<'r> {
    fn at(&self, memory: Memory) -> Result<Buffer<'r>, Error> {
        Ok(self.buffers.ok_or_else(no_buffers)?[memory as usize])
    }
}

impl Buffers for Regions<'_> {
    fn copy(&mut self, (from, source): Extent, (to, target): Extent) -> Result<(), Error> {
        self.at(to)?.copy_from(target.start, &self.at(from)?, source.start, source.len())
    }

    fn combine(&mut self, with: Reduction, (to, target): Extent, operands: [Extent; 2]) -> Result<(), Error> {
        let buffers = [self.at(operands[0].0)?, self.at(operands[1].0)?, self.at(to)?];
        for ((operand, buffer), (_, range)) in self.operands.iter_mut().zip(buffers).zip(operands) {
            operand.resize(range.len(), 0);
            buffer.region.read(buffer.offset as usize + range.start, operand)?;
        }
        let [left, right] = &mut *self.operands;
        with.combine(left, right);
        Ok(buffers[2].region.write(buffers[2].offset as usize + target.start, left)?)
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
