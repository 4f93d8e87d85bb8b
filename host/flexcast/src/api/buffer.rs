//! Memory that collectives send from and receive into.
#![allow(unsafe_code)] // A second registration of memory that the buffer itself keeps, and slices of it.

use std::ptr::NonNull;

use flexio::{Access, MemoryRegion};

use crate::api::user_memory::Shared;
use crate::error::{Error, Result};

/// Registered memory of the caller. An operation takes it over and gives it back when it is done, so that nobody can touch or free it
/// in between:
///
/// ```compile_fail,E0382
/// # fn f(mut communicator: flexcast::Communicator, send: flexcast::Buffer, receive: flexcast::Buffer) {
/// let request = communicator.allgather(send, receive);
/// drop(send); // moved: the card reads from it
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    /// The same bytes once more, under a key that peers write by during one operation. Dropped before the region.
    exposed: Option<MemoryRegion>,
    region: MemoryRegion,
    len: usize,
    /// Peers may have been told its key.
    known: bool,
    /// What `region` is a view of, if it is one: dropped after it.
    shared: Option<Shared>,
}

impl Buffer {
    pub(crate) fn new(region: MemoryRegion, len: usize) -> Self {
        Self { exposed: None, region, len, known: false, shared: None }
    }

    pub(crate) fn of_user(region: MemoryRegion, len: usize, shared: Shared) -> Self {
        Self { exposed: None, region, len, known: false, shared: Some(shared) }
    }

    /// What it is a view of.
    pub(crate) fn shared(&self) -> Option<&Shared> {
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

    /// The bytes, to be read where they are. If peers know the key of the buffer, which they do after an operation has received into it, the
    /// memory is registered anew first: nobody can write to it while the slice exists.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`] when it cannot be registered; [`crate::Error::Argument`] for memory of a [`UserMemory`](crate::UserMemory), which
    /// its owner reads by its address.
    pub fn as_slice(&mut self) -> Result<&[u8]> {
        self.revoke()?;
        // SAFETY: no operation has the buffer, and nobody knows its key: no card writes to it. Its methods need the borrow that the slice holds.
        Ok(unsafe { &self.region.as_slice()[..self.len] })
    }

    /// The bytes, to be changed where they are; see [`Buffer::as_slice`].
    ///
    /// # Errors
    /// As [`Buffer::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.revoke()?;
        let len = self.len;
        // SAFETY: as above; nor does a card read it.
        Ok(unsafe { &mut self.region.as_mut_slice()[..len] })
    }

    /// Takes back what peers know.
    fn revoke(&mut self) -> Result<()> {
        if self.shared.is_some() {
            let reason =
                "memory by its address has no slices here: read it where it is, when its operation is over".to_owned();
            return Err(Error::Argument { operation: "slice of a buffer", reason });
        }
        self.hide();
        if self.known {
            self.region.renew()?;
            self.known = false;
        }
        Ok(())
    }

    /// Peers are told the key: an operation receives into it.
    pub(crate) fn tell(&mut self) {
        self.known = true;
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

    /// Copies `len` bytes from offset `start` of another buffer to `offset`.
    pub(crate) fn copy_from(&mut self, offset: usize, from: &Self, start: usize, len: usize) -> Result<()> {
        Ok(self.region.copy_from(offset, &from.region, start, len)?)
    }

    /// A copy of all bytes.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = zeroes(self.len)?;
        self.region.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Lets peers write to the buffer by a key that nobody has had before, until [`Buffer::hide`]: address of its first byte, and the key.
    pub(crate) fn expose(&mut self) -> Result<(u64, u32)> {
        self.hide();
        let start = self.region.addr().get();
        let bytes = NonNull::new(std::ptr::with_exposed_provenance_mut(start as usize)).unwrap_or(NonNull::dangling());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the bytes are those of `region`, which is registered itself, so that they stay allocated as long as it exists and are
        // reached by raw pointers alone; the second registration is dropped before: with `hide`, `into_region`, or by the order of fields.
        let exposed = unsafe { MemoryRegion::register_raw(self.region.pd(), bytes, self.region.len(), access) }?;
        let rkey = exposed.rkey();
        self.exposed = Some(exposed);
        Ok((start, rkey))
    }

    /// Ends what [`Buffer::expose`] began: nothing reaches the buffer by that key any more.
    pub(crate) fn hide(&mut self) {
        self.exposed = None;
    }

    pub(crate) fn into_region(self) -> (MemoryRegion, usize) {
        (self.region, self.len)
    }

    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }
}

/// So many zeroes, for a copy of a buffer.
pub(crate) fn zeroes(len: usize) -> std::result::Result<Vec<u8>, flexio::Error> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| flexio::Error::no_memory("length of a copy of a buffer", len as u64))?;
    bytes.resize(len, 0);
    Ok(bytes)
}
