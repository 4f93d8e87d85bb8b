//! Arrays of workers: memory that no card knows of, to and from which blocks of a ring are copied.

use std::ops::Range;

use flexio::MemoryRegion;

use super::Result;

/// A worker's array: what it contributes, and what gets the sums. Both may be the same.
pub trait Array {
    /// Bytes that both have.
    fn bytes(&self) -> u64;

    /// Copies bytes of the contribution to registered memory, and returns whether any bit of them is set: one pass over
    /// them.
    ///
    /// # Errors
    /// They are none of the array, or of the memory.
    fn load(&mut self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> Result<bool>;

    /// Copies registered memory to bytes of the result.
    ///
    /// # Errors
    /// As [`Array::load`].
    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> Result<()>;

    /// Sets bytes of the result to zero, unless it is the contribution, whose bytes here are.
    ///
    /// # Errors
    /// As [`Array::load`].
    fn clear(&mut self, range: Range<usize>) -> Result<()>;
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

fn part(array: &mut [u8], range: Range<usize>) -> flexio::Result<&mut [u8]> {
    let len = array.len();
    array.get_mut(range.clone()).ok_or_else(|| beyond(&range, len))
}

fn load(array: &[u8], range: Range<usize>, to: &MemoryRegion, offset: usize) -> flexio::Result<bool> {
    to.load(offset, array.get(range.clone()).ok_or_else(|| beyond(&range, array.len()))?)
}

impl Array for Arrays<'_> {
    fn bytes(&self) -> u64 {
        self.send.map_or(self.receive.len(), |send| send.len().min(self.receive.len())) as u64
    }

    fn load(&mut self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> Result<bool> {
        Ok(load(self.send.unwrap_or(self.receive), range, to, offset)?)
    }

    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> Result<()> {
        Ok(from.read(offset, part(self.receive, range)?)?)
    }

    fn clear(&mut self, range: Range<usize>) -> Result<()> {
        if self.send.is_some() {
            part(self.receive, range)?.fill(0);
        }
        Ok(())
    }
}
