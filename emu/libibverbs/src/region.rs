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
    /// Address of the first byte under the key.
    iova: u64,
    on_demand: bool,
}

impl Region {
    /// Registers memory, which its owner keeps mapped, and leaves to the card, until [`Region::deregister`].
    ///
    /// # Errors
    /// It is not the program's, or the card refuses it.
    pub fn register(id: FunctionId, pd: u32, addr: u64, len: u64, access: Access) -> Result<Self> {
        Self::register_at(id, pd, (addr, len), addr, (access, false))
    }

    /// The same, with another address of the first byte under the key, and memory that may be absent (`on_demand`): an
    /// access to a page that is not there fails.
    ///
    /// # Errors
    /// As [`Region::register`].
    pub fn register_at(
        id: FunctionId,
        pd: u32,
        (addr, len): (u64, u64),
        iova: u64,
        (access, on_demand): (Access, bool),
    ) -> Result<Self> {
        if addr == 0 || len == 0 || addr.checked_add(len).is_none() {
            return Err(Errno::invalid(format!("{len} bytes at {addr:#x} cannot be registered")));
        }
        if !on_demand {
            pinned::check(addr, len, access.contains(Access::LOCAL_WRITE))?;
        }
        begin_command(id)?;
        let key = card::call(id, Request::RegisterRegion { pd, addr, len, access, iova, on_demand })?.number()?;
        Ok(Self { id, key, addr, len, iova, on_demand })
    }

    /// Gives the key another domain and other rights, and another range (address and bytes) where one is given, whose
    /// first byte has its own address under the key.
    ///
    /// # Errors
    /// As [`Region::register`]; windows are bound to it. Then nothing has changed.
    pub(crate) fn change(&mut self, pd: u32, range: Option<(u64, u64)>, access: Access) -> Result<()> {
        if self.on_demand {
            return Err(Errno::unsupported("a region of pages on demand keeps what it has: register another one"));
        }
        let (addr, len) = range.unwrap_or((self.addr, self.len));
        let iova = range.map_or(self.iova, |(addr, _)| addr);
        pinned::check(addr, len, access.contains(Access::LOCAL_WRITE))?;
        begin_command(self.id)?;
        card::done(self.id, Request::ChangeRegion { key: self.key, pd, addr, len, access, iova })?;
        (self.addr, self.len, self.iova) = (addr, len, iova);
        Ok(())
    }

    /// Takes the memory from the card.
    ///
    /// # Errors
    /// There is no machine any more.
    pub fn deregister(&self) -> Result<()> {
        begin_command(self.id)?;
        card::done(self.id, Request::DeregisterRegion { key: self.key })
    }
}
