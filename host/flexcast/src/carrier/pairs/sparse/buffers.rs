//! Buffers of a communicator's caller as the array of a worker.

use std::ops::Range;

use flexcast_sparse::{Array, Arrays, Result};
use flexio::MemoryRegion;

use crate::op::buffer::Buffer;

/// Buffers of a communicator's caller, whether cards know them or not.
#[derive(Debug)]
pub(crate) struct Buffers<'a> {
    /// The contribution; none if it is in `receive`.
    pub(crate) send: Option<&'a Buffer>,
    pub(crate) receive: &'a mut Buffer,
}

impl Array for Buffers<'_> {
    fn bytes(&self) -> u64 {
        self.send.map_or(self.receive.len(), |send| send.len().min(self.receive.len())) as u64
    }

    fn load(&mut self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> Result<bool> {
        let array = self.send.unwrap_or(self.receive);
        match array.region() {
            Ok(array) => Ok(to.load_from(offset, array, range.start, range.len())?),
            Err(_) => Arrays { send: Some(array.bytes()), receive: &mut [] }.load(range, to, offset),
        }
    }

    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> Result<()> {
        match self.receive.region() {
            Ok(array) => Ok(array.copy_from(range.start, from, offset, range.len())?),
            Err(_) => Arrays { send: None, receive: self.receive.bytes_mut() }.store(range, from, offset),
        }
    }

    fn clear(&mut self, range: Range<usize>) -> Result<()> {
        match (self.send, self.receive.region()) {
            (None, _) => Ok(()),
            (Some(_), Ok(array)) => Ok(array.clear(range.start, range.len())?),
            (Some(_), Err(_)) => Arrays { send: Some(&[]), receive: self.receive.bytes_mut() }.clear(range),
        }
    }
}
