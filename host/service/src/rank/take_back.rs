//! Memory that a program takes back from its service process.

use flexcast_proto::service::ContextId;
use flexcast_proto::service::wire::{Body, KeyName};
use flexio::MemoryRegion;

use super::{Client, Memory, MemoryId};
use crate::error::{Error, Result};

/// How far memory has been taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The service process may use it.
    No,
    /// It has been notified not to.
    Revoked,
    /// The same, and nobody wants the memory.
    Dropped,
    /// Its alias is gone.
    Done,
}

impl Client {
    /// Takes memory back: the service process lets go of its alias, and what it still reads or writes by that fails.
    /// [`Client::taken_back`] gives the memory. A bound key whose calls have all ended well is let go of without a
    /// control operation.
    ///
    /// # Errors
    /// [`Error::Order`]: it has been taken back already. A service process that is gone is none: its alias is dead once
    /// the memory is given back.
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
        exported.back = Back::Revoked;
        let Some(name) = exported.name() else { return Ok(()) };
        let is_idle = self.is_bound(memory) && self.is_idle(memory);
        match self.say(ContextId { group: 0, collective: 0 }, Body::KeyRevoke { name, is_idle }) {
            Err(Error::Gone) => Ok(()),
            said => said,
        }
    }

    /// The memory that was taken back, once nobody can reach it by its key: the service process has let go of its
    /// alias, or is gone, and the key is destroyed. None until then, and where the card does not let go of the key:
    /// such memory is never used again.
    pub fn taken_back(&mut self, memory: MemoryId) -> Option<MemoryRegion> {
        let is_gone = self.is_gone;
        let slot = self.memory.get_mut(memory.0 as usize)?;
        slot.take_if(|exported| exported.back == Back::Done || is_gone)?.into_region()
    }

    /// Forgets a group that a rank has left: how its collectives have ended, and the memory of its flags, which the
    /// service process lets go of. A program that makes and leaves many groups would else use up its keys.
    ///
    /// # Errors
    /// [`Error::Order`]: the rank has not left yet.
    pub fn forget(&mut self, group: u32, rank: u32) -> Result<()> {
        let Some(membership) = self.members.get(&(group, rank)) else { return Ok(()) };
        if !membership.has_left && !self.is_gone {
            return Err(Error::Order {
                what: "a group is forgotten that has not been left",
                next: "wait for `has_left`",
            });
        }
        let flags = membership.flags;
        self.forget_calls_of(group, rank);
        self.members.remove(&(group, rank));
        let is_of = |context: &ContextId, whose: u32| context.group == group && whose == rank;
        self.ended.retain(|(context, whose), _| !is_of(context, *whose));
        self.refused.retain(|(context, whose), _| !is_of(context, *whose));
        self.take_back(flags)?;
        if self.is_gone {
            self.memory[flags.0 as usize] = None;
        } else if let Some(exported) = &mut self.memory[flags.0 as usize] {
            exported.back = Back::Dropped;
        }
        Ok(())
    }

    pub(super) fn is_revoked(&mut self, name: KeyName) {
        let is_it = |slot: &Option<Memory>| {
            let is_due = |memory: &Memory| matches!(memory.back, Back::Revoked | Back::Dropped);
            slot.as_ref().is_some_and(|memory| is_due(memory) && memory.name() == Some(name))
        };
        let Some(place) = self.memory.iter().position(is_it) else { return };
        let Some(memory) = self.memory[place].take() else { return };
        let (is_wanted, alias) = (memory.back == Back::Revoked, memory.alias);
        let way = self.freed(memory, name);
        if is_wanted {
            self.memory[place] = Some(Memory { way, alias, back: Back::Done, calls: Vec::new() });
        }
    }
}
