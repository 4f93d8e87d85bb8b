//! Programs of ranks at a service process: what they put together, and the keys that they share.

use std::collections::BTreeMap;

use flexcast_proto::service::wire::{self, Assembler, GroupHead, KeyName, KeyRefusal, StartHead};
use flexio::{AliasKey, ProtectionDomain};

use super::bound::ProgramKeys;
use crate::error::Result;
use crate::keys;

/// The program of ranks at one connection.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) calls: Assembler<StartHead>,
    pub(super) groups: Assembler<GroupHead>,
    /// By the host's key: generation and alias.
    aliases: BTreeMap<u32, (u32, AliasKey)>,
    /// Keys that it binds to its memory, once it has exported one.
    pub(super) bound: Option<ProgramKeys>,
}

impl Program {
    /// One that has said nothing yet.
    pub(super) fn new() -> Self {
        let most_ranks = flexcast_proto::MAX_RANKS;
        Self {
            calls: Assembler::new(most_ranks),
            groups: Assembler::new(most_ranks),
            aliases: BTreeMap::new(),
            bound: None,
        }
    }

    /// Forgets which group it has described last.
    pub(super) fn forget_groups(&mut self) {
        self.groups = Assembler::new(flexcast_proto::MAX_RANKS);
    }

    /// Makes an alias of a key.
    pub(super) fn take_key(
        &mut self,
        pd: &ProtectionDomain,
        export: &wire::KeyExport,
        limit: u32,
    ) -> Result<std::result::Result<u32, KeyRefusal>> {
        let (key, generation) = (export.region.key, export.generation);
        if let Some((known, _)) = self.aliases.get(&key).filter(|(known, _)| *known >= generation) {
            return Ok(Err(KeyRefusal::Generation { known: *known }));
        }
        if !self.aliases.contains_key(&key) && self.keys() >= limit as usize {
            return Ok(Err(KeyRefusal::Keys { limit }));
        }
        let alias = match AliasKey::new(pd, &keys::export(pd, export)?) {
            Ok(alias) => alias,
            Err(flexio::Error::Command { syndrome, .. }) => return Ok(Err(KeyRefusal::Card { syndrome })),
            Err(error) => return Err(error.into()),
        };
        let number = alias.key();
        self.aliases.insert(key, (generation, alias));
        Ok(Ok(number))
    }

    /// Keys that it shares.
    pub(super) fn keys(&self) -> usize {
        self.aliases.len()
    }

    /// Keys that it binds to its memory.
    pub(super) fn bound_keys(&self) -> usize {
        self.bound.as_ref().map_or(0, ProgramKeys::len)
    }

    /// Lets go of an alias: what still goes by it fails.
    pub(super) fn drop_key(&mut self, name: KeyName) {
        if self.aliases.get(&name.key).is_some_and(|(generation, _)| *generation == name.generation) {
            self.aliases.remove(&name.key);
        }
    }
}
