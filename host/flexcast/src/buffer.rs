//! Memory that collectives send from and receive into.

use flexio::MemoryRegion;

use crate::error::Result;
use crate::user_memory::Shared;

/// Registered memory of the caller. An operation takes it over and gives it back when it is done, so that nobody can touch or free it
/// in between:
///
/// ```compile_fail,E0382
/// # fn f(mut communicator: flexcast::Communicator<'_>, send: flexcast::Buffer<'_>, receive: flexcast::Buffer<'_>) {
/// let request = communicator.allgather(send, receive);
/// drop(send); // moved: the card reads from it
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer<'c> {
    region: MemoryRegion<'c>,
    len: usize,
    /// What `region` is a view of, if it is one: dropped after it.
    shared: Option<Shared<'c>>,
}

impl<'c> Buffer<'c> {
    pub(crate) fn new(region: MemoryRegion<'c>, len: usize) -> Self {
        Self { region, len, shared: None }
    }

    pub(crate) fn of_user(region: MemoryRegion<'c>, len: usize, shared: Shared<'c>) -> Self {
        Self { region, len, shared: Some(shared) }
    }

    /// What it is a view of.
    pub(crate) fn shared(&self) -> Option<&Shared<'c>> {
        self.shared.as_ref()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets every byte.
    pub fn fill(&mut self, value: u8) {
        self.region.fill(value);
    }

    /// Copies bytes in at an offset.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`] when they leave the buffer.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.region.write(offset, bytes)?)
    }

    /// Copies bytes out from an offset.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`] when they leave the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        Ok(self.region.read(offset, out)?)
    }

    /// A copy of all bytes.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.region.read(0, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn into_region(self) -> (MemoryRegion<'c>, usize) {
        (self.region, self.len)
    }

    pub(crate) fn region(&self) -> &MemoryRegion<'c> {
        &self.region
    }
}
