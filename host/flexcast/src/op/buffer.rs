//! Memory that collectives send from and receive into.
#![allow(unsafe_code)] // A second registration of memory that the buffer itself keeps, and slices of it.

use std::ptr::NonNull;
#[cfg(feature = "service")]
use std::sync::Arc;

#[cfg(feature = "service")]
use flexcast_proto::service::MemoryId;
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

use crate::error::{Error, Result};
#[cfg(feature = "service")]
use crate::op::lease::DeferredFree;
use crate::op::lease::Lease;
use crate::op::region::Shared;

/// Memory of the caller that a card may use. An operation takes it over and gives it back when it is done, so that
/// nobody can touch or free it in between:
///
/// ```compile_fail,E0382
/// # fn f(mut communicator: flexcast::Communicator, send: flexcast::Buffer, receive: flexcast::Buffer) {
/// let request = communicator.allgather(send, receive);
/// drop(send); // moved: the card reads from it
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    /// Memory that RDMA cards may reach. In a box, as buffers are moved several times in each operation.
    Registered(Box<Registered>),
    /// Memory that only this process reaches.
    Host(HostMemory),
}

/// Registered memory.
#[derive(Debug)]
struct Registered {
    /// The same bytes once more, under a key that peers write by during one operation. Dropped before the region.
    exposed: Option<MemoryRegion>,
    region: MemoryRegion,
    /// Peers may have received its key.
    known: bool,
    /// What `region` is a view of, if it is one: dropped after it.
    shared: Option<Shared>,
    /// Service processes that may use it.
    leases: Vec<Lease>,
}

impl Registered {
    const fn new(region: MemoryRegion, shared: Option<Shared>) -> Self {
        Self { exposed: None, region, known: false, shared, leases: Vec::new() }
    }

    /// Ends what [`Buffer::expose`] began. A registration that the card does not end stays, so that nobody takes it for
    /// ended.
    fn end_exposure(&mut self) -> Result<()> {
        let Some(exposed) = self.exposed.take() else { return Ok(()) };
        exposed.end().map_err(|refused| {
            let (exposed, error) = refused.into_parts();
            self.exposed = Some(exposed);
            error.into()
        })
    }
}

/// Memory that no card reaches: its own, or somebody else's by its address.
#[derive(Debug)]
enum HostMemory {
    Owned(HostBuffer),
    User(NonNull<u8>),
    Nothing,
}

// SAFETY: whoever made a buffer of memory by its address has promised that nobody else accesses it as long as the
// buffer exists; nothing ties it to a thread.
unsafe impl Send for HostMemory {}

/// What cards may do with a buffer: the own one receives, peers write and read.
pub(crate) const REACHABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A buffer of another kind of endpoint than the communicator's.
fn foreign() -> Error {
    let reason = "a buffer of another kind of endpoint: make it by the endpoint of this communicator".to_owned();
    Error::Argument { operation: "buffer", reason }
}

impl Buffer {
    pub(crate) fn new(region: MemoryRegion, len: usize) -> Self {
        Self { memory: Memory::Registered(Box::new(Registered::new(region, None))), len }
    }

    pub(crate) fn of_user(region: MemoryRegion, len: usize, shared: Shared) -> Self {
        Self { memory: Memory::Registered(Box::new(Registered::new(region, Some(shared)))), len }
    }

    /// A buffer of `len` zeroed bytes, registered with a card.
    pub(crate) fn registered_with(pd: &ProtectionDomain, len: usize) -> Result<Self> {
        let memory = HostBuffer::zeroed(len.max(1))?;
        Ok(Self::new(MemoryRegion::register(pd, memory, REACHABLE)?, len))
    }

    /// Registers it anew: whoever still has its keys cannot reach it any more.
    pub(crate) fn renewed(mut self, pd: &ProtectionDomain) -> Result<Self> {
        if let Some(shared) = self.shared() {
            shared.expose();
            return Ok(self);
        }
        // The memory has to stay where a service process may use it.
        if let Some(registered) = self.registered().filter(|registered| !registered.leases.is_empty()) {
            registered.region.renew()?;
            (registered.exposed, registered.known) = (None, false);
            return Ok(self);
        }
        let (region, len) = self.into_region()?;
        let Some(memory) = region.into_buffer() else { return Self::registered_with(pd, len) };
        Ok(Self::new(MemoryRegion::register(pd, memory, REACHABLE)?, len))
    }

    /// A buffer of zeroed bytes that no card reaches.
    pub(crate) fn of_host(len: usize) -> Result<Self> {
        let memory = if len == 0 { HostMemory::Nothing } else { HostMemory::Owned(HostBuffer::zeroed(len)?) };
        Ok(Self { memory: Memory::Host(memory), len })
    }

    /// A buffer of memory by its address that no card reaches.
    ///
    /// # Safety
    /// All bytes are allocated, readable and, unless the buffer is only read, writable; until it is dropped nobody else
    /// accesses them, except for other buffers that are only read.
    pub(crate) unsafe fn of_address(start: NonNull<u8>, len: usize) -> Self {
        Self { memory: Memory::Host(HostMemory::User(start)), len }
    }

    fn registered(&mut self) -> Option<&mut Registered> {
        match &mut self.memory {
            Memory::Registered(registered) => Some(registered),
            Memory::Host(_) => None,
        }
    }

    /// What it is a view of.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        match &self.memory {
            Memory::Registered(registered) => registered.shared.as_ref(),
            Memory::Host(_) => None,
        }
    }

    /// Whether RDMA cards may reach it.
    pub(crate) const fn is_registered(&self) -> bool {
        matches!(self.memory, Memory::Registered(_))
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

    /// The bytes, to be read where they are. If peers know the key of the buffer, which they do after an operation has
    /// received into it, the memory is registered anew first: nobody can write to it while the slice exists.
    ///
    /// # Errors
    /// [`crate::Error::Leased`] when a service process may use it:
    /// [`Communicator::take_back`](crate::Communicator::take_back) comes before, or [`Buffer::read`] copies;
    /// [`crate::Error::Flexio`] when it cannot be registered; [`crate::Error::Argument`] for memory of a
    /// [`UserMemory`](crate::UserMemory), which its owner reads by its address.
    pub fn as_slice(&mut self) -> Result<&[u8]> {
        self.revoke()?;
        let len = self.len;
        match &self.memory {
            // SAFETY: no operation has the buffer, no service process has a key of it, and nobody else knows one: no
            // card writes to it. Its methods need the borrow that the slice holds.
            Memory::Registered(registered) => Ok(unsafe { &registered.region.as_slice()[..len] }),
            Memory::Host(_) => Ok(self.bytes()),
        }
    }

    /// The bytes, to be changed where they are; see [`Buffer::as_slice`].
    ///
    /// # Errors
    /// As [`Buffer::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.revoke()?;
        let len = self.len;
        match &mut self.memory {
            // SAFETY: as above; nor does a card read it.
            Memory::Registered(registered) => Ok(unsafe { &mut registered.region.as_mut_slice()[..len] }),
            Memory::Host(memory) => Ok(memory.bytes_mut(len)),
        }
    }

    /// Takes back what peers know.
    fn revoke(&mut self) -> Result<()> {
        if self.shared().is_some() || matches!(self.memory, Memory::Host(HostMemory::User(_))) {
            let reason =
                "memory by its address has no slices here: read it where it is, when its operation is over".to_owned();
            return Err(Error::Argument { operation: "slice of a buffer", reason });
        }
        self.check_not_leased()?;
        let Some(registered) = self.registered() else { return Ok(()) };
        registered.end_exposure()?;
        if registered.known {
            registered.region.renew()?;
            registered.known = false;
        }
        Ok(())
    }

    /// Refuses what no service process may see: leases of communicators that are gone have ended with their keys.
    ///
    /// # Errors
    /// [`Error::Leased`].
    pub(crate) fn check_not_leased(&mut self) -> Result<()> {
        let Some(registered) = self.registered() else { return Ok(()) };
        registered.leases.retain(|lease| lease.process().is_some());
        match registered.leases.first().and_then(Lease::process) {
            Some(process) => Err(Error::Leased { process }),
            None => Ok(()),
        }
    }

    /// Peers get the key: an operation receives into it.
    pub(crate) fn mark_known(&mut self) {
        if let Some(registered) = self.registered() {
            registered.known = true;
        }
    }

    /// The bytes of a buffer that no card reaches; none of another.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Registered(_) => &[],
            Memory::Host(memory) => memory.bytes(self.len),
        }
    }

    /// The same, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut self.memory {
            Memory::Registered(_) => &mut [],
            Memory::Host(memory) => memory.bytes_mut(len),
        }
    }

    /// Sets every byte.
    pub fn fill(&mut self, value: u8) {
        match &mut self.memory {
            Memory::Registered(registered) => registered.region.fill(value),
            Memory::Host(memory) => memory.bytes_mut(self.len).fill(value),
        }
    }

    /// Copies bytes in at an offset.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`] or [`crate::Error::Argument`] when they leave the buffer.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let len = self.len;
        match &mut self.memory {
            Memory::Registered(registered) => Ok(registered.region.write(offset, bytes)?),
            Memory::Host(memory) => {
                part(len, offset, bytes.len())?;
                memory.bytes_mut(len)[offset..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies bytes out from an offset.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`] or [`crate::Error::Argument`] when they leave the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match &self.memory {
            Memory::Registered(registered) => Ok(registered.region.read(offset, out)?),
            Memory::Host(memory) => {
                part(self.len, offset, out.len())?;
                out.copy_from_slice(&memory.bytes(self.len)[offset..][..out.len()]);
                Ok(())
            }
        }
    }

    /// Copies `len` bytes from offset `start` of another buffer to `offset`.
    pub(crate) fn copy_from(&mut self, offset: usize, from: &Self, start: usize, len: usize) -> Result<()> {
        match (&mut self.memory, &from.memory) {
            (Memory::Registered(to), Memory::Registered(from)) => {
                Ok(to.region.copy_from(offset, &from.region, start, len)?)
            }
            (Memory::Host(to), Memory::Host(memory)) => {
                part(self.len, offset, len)?;
                part(from.len, start, len)?;
                to.bytes_mut(self.len)[offset..][..len].copy_from_slice(&memory.bytes(from.len)[start..][..len]);
                Ok(())
            }
            _ => Err(foreign()),
        }
    }

    /// A copy of all bytes.
    ///
    /// # Errors
    /// [`crate::Error::Flexio`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = zeroes(self.len)?;
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Lets peers write to the buffer by a key that nobody has had before, until [`Buffer::hide`]: address of its first
    /// byte, and the key.
    pub(crate) fn expose(&mut self) -> Result<(u64, u32)> {
        let registered = self.registered().ok_or_else(foreign)?;
        registered.end_exposure()?;
        let region = &registered.region;
        let start = region.addr().get();
        let bytes = NonNull::new(std::ptr::with_exposed_provenance_mut(start as usize)).unwrap_or(NonNull::dangling());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the bytes are those of `region`, which is registered itself, so that they stay allocated as long as
        // it exists and are reached by raw pointers alone; the second registration is dropped before: with `hide`,
        // `into_region`, or by the order of fields.
        let exposed = unsafe { MemoryRegion::register_raw(region.pd(), bytes, region.len(), access) }?;
        let rkey = exposed.rkey();
        registered.exposed = Some(exposed);
        Ok((start, rkey))
    }

    /// Ends what [`Buffer::expose`] began: nothing reaches the buffer by that key any more.
    pub(crate) fn hide(&mut self) {
        if let Some(Err(error)) = self.registered().map(Registered::end_exposure) {
            tracing::warn!(%error, "peers may still write to a buffer by the key of an operation that is over");
        }
    }

    /// Its registration and length.
    ///
    /// # Errors
    /// [`crate::Error::Argument`]: it has none.
    fn into_region(mut self) -> Result<(MemoryRegion, usize)> {
        match std::mem::replace(&mut self.memory, Memory::Host(HostMemory::Nothing)) {
            Memory::Registered(registered) => Ok((registered.region, self.len)),
            Memory::Host(_) => Err(foreign()),
        }
    }

    /// Lets a service process use the memory, unless it may: `share` makes a key over it. It is taken back with
    /// [`Buffer::end_lease`], or by the owner of `deferred_free` once the buffer is dropped.
    ///
    /// # Errors
    /// The card refuses; what `share` gives.
    #[cfg(feature = "service")]
    pub(crate) fn lease(
        &mut self,
        deferred_free: &Arc<DeferredFree>,
        share: impl FnOnce(MemoryRegion) -> Result<MemoryId>,
    ) -> Result<MemoryId> {
        let registered = self.registered().ok_or_else(foreign)?;
        if let Some(memory) = registered.leases.iter().find_map(|lease| lease.of(deferred_free)) {
            return Ok(memory);
        }
        registered.leases.retain(|lease| lease.process().is_some());
        let region = &registered.region;
        let (start, access) = (region.addr().get(), region.access());
        let access = if access.contains(Access::LOCAL_WRITE) { REACHABLE } else { Access::REMOTE_READ };
        let bytes = NonNull::new(std::ptr::with_exposed_provenance_mut(start as usize)).unwrap_or(NonNull::dangling());
        // SAFETY: the bytes are those of `region`, reached by raw pointers alone. They stay allocated until the second
        // registration is gone: the owner of `deferred_free` drops that before it drops `deferred_free`, and until then
        // a buffer that is dropped leaves its memory there. `renewed` does not move memory that is leased; memory
        // of a `UserMemory` is leased for one operation, which has the buffer.
        let second = unsafe { MemoryRegion::register_raw(region.pd(), bytes, region.len(), access) }?;
        let memory = share(second)?;
        registered.leases.push(Lease::new(deferred_free, memory));
        Ok(memory)
    }

    /// Whether it is memory of a [`UserMemory`](crate::UserMemory), whose owner may free it once its operation is over.
    #[cfg(feature = "service")]
    pub(crate) fn is_of_user(&self) -> bool {
        self.shared().is_some()
    }

    /// What the service process of that communicator may use; none if the buffer is not leased to it.
    #[cfg(feature = "service")]
    pub(crate) fn lease_of(&mut self, deferred_free: &Arc<DeferredFree>) -> Option<MemoryId> {
        self.registered()?.leases.iter().find_map(|lease| lease.of(deferred_free))
    }

    /// Ends the lease of the buffer to the service process of that communicator, and gives its memory: the caller takes
    /// that back before the buffer goes anywhere else.
    #[cfg(feature = "service")]
    pub(crate) fn end_lease(&mut self, deferred_free: &Arc<DeferredFree>) -> Option<MemoryId> {
        let leases = &mut self.registered()?.leases;
        let at = leases.iter().position(|lease| lease.of(deferred_free).is_some())?;
        leases.swap_remove(at).of(deferred_free)
    }

    /// Its registration.
    ///
    /// # Errors
    /// [`crate::Error::Argument`]: it has none.
    pub(crate) fn region(&self) -> Result<&MemoryRegion> {
        match &self.memory {
            Memory::Registered(registered) => Ok(&registered.region),
            Memory::Host(_) => Err(foreign()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(registered) = self.registered() else { return };
        let leases = std::mem::take(&mut registered.leases);
        if !leases.is_empty() {
            Lease::defer_free(leases, std::mem::replace(&mut self.memory, Memory::Host(HostMemory::Nothing)));
        }
    }
}

impl HostMemory {
    fn bytes(&self, len: usize) -> &[u8] {
        match self {
            Self::Owned(memory) => memory.as_slice(),
            // SAFETY: the bytes are allocated, and nobody writes to them, as the caller of `of_address` has promised;
            // the borrow keeps this buffer from being written.
            Self::User(start) => unsafe { std::slice::from_raw_parts(start.as_ptr(), len) },
            Self::Nothing => &[],
        }
    }

    fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        match self {
            Self::Owned(memory) => memory.as_mut_slice(),
            // SAFETY: as above, and nobody else reads them: buffers of which several are alive are only read.
            Self::User(start) => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) },
            Self::Nothing => &mut [],
        }
    }
}

/// Checks that a part lies inside a buffer of `len` bytes.
fn part(len: usize, offset: usize, bytes: usize) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= len) {
        return Ok(());
    }
    let reason = format!("{bytes} bytes at {offset} leave a buffer of {len} bytes");
    Err(Error::Argument { operation: "copy", reason })
}

/// What a copy is in errors.
const COPY: &str = "length of a copy of a buffer";

/// So many zeroes, for a copy of a buffer.
pub(crate) fn zeroes(len: usize) -> std::result::Result<Vec<u8>, flexio::Error> {
    flexio::zeroes(COPY, len)
}

/// Makes room for so many more bytes.
pub(crate) fn reserve(bytes: &mut Vec<u8>, len: usize) -> std::result::Result<(), flexio::Error> {
    bytes.try_reserve_exact(len).map_err(|_| flexio::Error::no_memory(COPY, len as u64))
}
