//! Arrays of workers: memory that no card knows of, to and from which blocks of a ring are copied.

use std::ops::Range;

use flexio::MemoryRegion;

use crate::api::buffer::Buffer;

/// A worker's array: what it contributes, and what gets the sums. Both may be the same.
pub trait Array {
    /// Bytes that both have.
    fn bytes(&self) -> u64;

    /// Copies bytes of the contribution to registered memory, and tells whether any bit of them is set: one pass over them.
    ///
    /// # Errors
    /// They are none of the array, or of the memory.
    fn load(&self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> flexio::Result<bool>;

    /// Copies registered memory to bytes of the result.
    ///
    /// # Errors
    /// As [`Array::load`].
    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> flexio::Result<()>;

    /// Sets bytes of the result to zero, unless it is the contribution, whose bytes here are.
    ///
    /// # Errors
    /// As [`Array::load`].
    fn clear(&mut self, range: Range<usize>) -> flexio::Result<()>;
}

/// An array of this process.
#[derive(Debug)]
pub struct Arrays<'a> {
    /// The contribution; none if it is in `receive`.
    pub send: Option<&'a [u8]>,
    /// Gets the sums.
    pub receive: &'a mut [u8],
}

fn beyond(range: &Range<usize>, len: usize) -> flexio::Error {
    let limit = format!("at most {len}, the array's length");
    flexio::Error::OutOfRange { what: "the end of a block", value: range.end as u64, limit }
}

impl Array for Arrays<'_> {
    fn bytes(&self) -> u64 {
        self.send.map_or(self.receive.len(), |send| send.len().min(self.receive.len())) as u64
    }

    fn load(&self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> flexio::Result<bool> {
        let array = self.send.unwrap_or(self.receive);
        to.load(offset, array.get(range.clone()).ok_or_else(|| beyond(&range, array.len()))?)
    }

    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> flexio::Result<()> {
        let len = self.receive.len();
        from.read(offset, self.receive.get_mut(range.clone()).ok_or_else(|| beyond(&range, len))?)
    }

    fn clear(&mut self, range: Range<usize>) -> flexio::Result<()> {
        let len = self.receive.len();
        if self.send.is_some() {
            self.receive.get_mut(range.clone()).ok_or_else(|| beyond(&range, len))?.fill(0);
        }
        Ok(())
    }
}

/// Buffers of a communicator's caller, which cards may know.
#[derive(Debug)]
pub(crate) struct Buffers<'a> {
    /// The contribution; none if it is in `receive`.
    pub(crate) send: Option<&'a Buffer>,
    pub(crate) receive: &'a mut Buffer,
}

impl Buffers<'_> {
    fn region(buffer: &Buffer) -> flexio::Result<&MemoryRegion> {
        let limit = "1: make buffers by the communicator's card".to_owned();
        let none = flexio::Error::OutOfRange { what: "number of registrations of a buffer", value: 0, limit };
        buffer.region().map_err(|_| none)
    }
}

impl Array for Buffers<'_> {
    fn bytes(&self) -> u64 {
        self.send.map_or(self.receive.len(), |send| send.len().min(self.receive.len())) as u64
    }

    fn load(&self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> flexio::Result<bool> {
        let array = Self::region(self.send.unwrap_or(self.receive))?;
        to.load_from(offset, array, range.start, range.len())
    }

    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> flexio::Result<()> {
        Self::region(self.receive)?.copy_from(range.start, from, offset, range.len())
    }

    fn clear(&mut self, range: Range<usize>) -> flexio::Result<()> {
        match self.send {
            Some(_) => Self::region(self.receive)?.clear(range.start, range.len()),
            None => Ok(()),
        }
    }
}
