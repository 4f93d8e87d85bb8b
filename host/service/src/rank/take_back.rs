//! Memory that a program takes back from its service process.

use flexcast_proto::service::ContextId;
use flexcast_proto::service::wire::{Body, KeyName};
use flexio::MemoryRegion;

use super::{Client, MemoryId};
use crate::error::{Error, Result};
use crate::keys;

/// How far memory has been taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The service process may use it.
    No,
    /// It has been told not to.
    Told,
    /// Its alias is gone.
    Done,
}

impl Client {
    /// Takes memory back: the service process lets go of its alias, and what it still reads or writes by that fails. [`Client::taken_back`] gives the memory.
    ///
    /// # Errors
    /// [`Error::Order`]: it has been taken back already. A service process that is gone is none: its alias is dead once the memory is given back.
    pub fn take_back(&mut self, memory: MemoryId) -> Result<()> {
        let exported = self.memory.get_mut(memory.0 as usize).and_then(Option::as_mut);
        let again = Error::Order {
            what: "memory is taken back that is not there",
            next: "take back what `share` has given, once",
        };
        let exported = exported.ok_or(again)?;
        if exported.back != Back::No || self.is_gone {
            return Ok(());
        }
        exported.back = Back::Told;
        let told = keys::told(&exported.region.export(), 1);
        let name = KeyName { key: told.region.key, generation: told.generation };
        match self.say(ContextId { group: 0, collective: 0 }, Body::KeyRevoke(name)) {
            Err(Error::Gone) => Ok(()),
            said => said,
        }
    }

    /// The memory that was taken back, once nobody can reach it by its key: the service process has let go of its alias, or is gone, and the key is
    /// destroyed. None until then, and where the card does not let go of the key: such memory is never used again.
    pub fn taken_back(&mut self, memory: MemoryId) -> Option<MemoryRegion> {
        let is_gone = self.is_gone;
        let slot = self.memory.get_mut(memory.0 as usize)?;
        slot.take_if(|exported| exported.back == Back::Done || is_gone)?.region.into_region()
    }

    pub(super) fn is_revoked(&mut self, name: KeyName) {
        let is_it =
            |exported: &&mut super::Exported| exported.back == Back::Told && exported.region.export().key == name.key;
        if let Some(exported) = self.memory.iter_mut().flatten().find(is_it) {
            exported.back = Back::Done;
        }
    }
}
