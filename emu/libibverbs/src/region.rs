//! Protection domains and memory keys of other interfaces over the same cards.

use emu_machine::FunctionId;
use emu_machine::nic::Access;

use crate::card;
use crate::card::request::Request;
use crate::errno::{Errno, Result};
use crate::machine::begin_command;
use crate::pinned;

/// Allocates a protection domain of a function, and gives its number.
///
/// # Errors
/// There is no such function.
pub fn alloc_domain(id: FunctionId) -> Result<u32> {
    begin_command(id)?;
    card::call(id, Request::AllocPd)?.number()
}

/// Frees a protection domain.
///
/// # Errors
/// EBUSY while memory keys or queue pairs use it.
pub fn free_domain(id: FunctionId, pd: u32) -> Result<()> {
    begin_command(id)?;
    card::done(id, Request::DeallocPd { pd })
}

/// Memory of the program that a function's card reaches.
#[derive(Debug)]
pub struct Region {
    id: FunctionId,
    /// Its memory key.
    pub key: u32,
    addr: u64,
    len: u64,
}

impl Region {
    /// Registers memory, which its owner keeps mapped, and leaves to the card, until [`Region::deregister`].
    ///
    /// # Errors
    /// It is not the program's, or the card refuses it.
    pub fn register(id: FunctionId, pd: u32, addr: u64, len: u64, access: Access) -> Result<Self> {
        if addr == 0 || len == 0 || addr.checked_add(len).is_none() {
            return Err(Errno::invalid(format!("{len} bytes at {addr:#x} cannot be registered")));
        }
        pinned::check(addr, len, access.contains(Access::LOCAL_WRITE))?;
        begin_command(id)?;
        let key = card::call(id, Request::RegisterRegion { pd, addr, len, access })?.number()?;
        Ok(Self { id, key, addr, len })
    }

    /// Takes the memory from the card.
    ///
    /// # Errors
    /// There is no machine any more.
    pub fn deregister(&self) -> Result<()> {
        begin_command(self.id)?;
        card::done(self.id, Request::DeregisterRegion { key: self.key, addr: self.addr, len: self.len })
    }
}
