//! Memory that a program lets its service process use: by a key of its own, or by a key of a pool whose alias the
//! process has made before.

use std::collections::BTreeMap;

use flexcast_proto::service::wire::{Body, KeyName, KeyRefusal};
use flexcast_proto::service::{ContextId, Region};
use flexio::{AccessKey, Binding, BindingPool, Bound, ExportedRegion, KeyExport, MemoryRegion, Released};

use super::{Client, MemoryId, StagedCall, take_back};
use crate::error::{Error, Result};
use crate::keys;

/// A card binds or frees a key within microseconds.
const BOUND: Bound = Bound::millis(50).with_polls(1_000_000);
/// Calls that are remembered of memory before those that have ended are searched for.
const MANY_CALLS: usize = 64;

const NOTHING: ContextId = ContextId { group: 0, collective: 0 };

/// How the service process reaches memory.
#[derive(Debug)]
pub(super) enum Way {
    /// By a key over it, which the process has an alias of.
    Exported(ExportedRegion),
    /// By a key of the pool.
    Bound { binding: Binding, key: u32, generation: u32 },
    /// Not any more.
    Free(Option<MemoryRegion>),
}

/// A call that names memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Alias(ContextId, u32),
    Staged(StagedCall),
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) way: Way,
    pub(super) alias: Option<std::result::Result<u32, KeyRefusal>>,
    pub(super) back: take_back::Back,
    /// Of a bound key: calls that name it and have not ended well, as far as is known.
    pub(super) calls: Vec<Named>,
}

impl Memory {
    /// Key and generation as messages have them.
    pub(super) fn name(&self) -> Option<KeyName> {
        match &self.way {
            Way::Exported(region) => Some(KeyName { key: region.export().key, generation: 1 }),
            Way::Bound { key, generation, .. } => Some(KeyName { key: *key, generation: *generation }),
            Way::Free(_) => None,
        }
    }

    /// First address of the memory, as calls name it, and its length.
    pub(super) fn range(&self) -> (u64, u64) {
        match &self.way {
            Way::Exported(region) => (region.export().addr, region.export().len),
            Way::Bound { binding, .. } => (0, binding.region().len() as u64),
            Way::Free(region) => (0, region.as_ref().map_or(0, |region| region.len() as u64)),
        }
    }

    pub(super) fn region(&self) -> Option<&MemoryRegion> {
        match &self.way {
            Way::Exported(region) => Some(region.region()),
            Way::Bound { binding, .. } => Some(binding.region()),
            Way::Free(region) => region.as_ref(),
        }
    }

    /// Ends every way to the memory, now that the service process is gone; none where the card does not.
    pub(super) fn into_region(self) -> Option<MemoryRegion> {
        match self.way {
            Way::Exported(region) => region.into_region(),
            Way::Bound { binding, .. } => end(binding),
            Way::Free(region) => region,
        }
    }
}

/// Ends a binding whose key is not to be bound again.
fn end(binding: Binding) -> Option<MemoryRegion> {
    let slot = binding.slot();
    let ended = binding.end(BOUND);
    ended.map_err(|refused| tracing::warn!(error = %refused.error(), slot, "a bound key could not be freed")).ok()
}

/// Keys that are bound to memory, and their aliases.
#[derive(Debug)]
pub(super) struct Pool {
    keys: BindingPool,
    exports: Vec<KeyExport>,
    /// By place: what the process has answered.
    aliases: Vec<Option<std::result::Result<u32, KeyRefusal>>>,
    /// Memory that aliases stand for.
    bound: BTreeMap<u32, MemoryId>,
    /// The card binds none.
    is_useless: bool,
}

impl Pool {
    fn slot(&self, key: u32) -> Option<usize> {
        self.exports.iter().position(|export| export.key == key)
    }

    /// Whether all aliases are there that will be.
    fn is_ready(&self) -> bool {
        !self.is_useless && self.aliases.iter().all(Option::is_some)
    }
}

impl Client {
    /// Gives the service process a pool of keys, whose aliases it makes once. From then on [`Client::share`] binds one
    /// of them by a work request of the host, and costs the process no control operation; where none is free, or the
    /// card binds none, memory gets a key of its own, as without a pool. Call it once the connection is there. A second
    /// call changes nothing.
    ///
    /// # Errors
    /// There are no random numbers; [`Error::Gone`]. That the card binds no keys is none.
    pub fn offer_keys(&mut self, keys: u16) -> Result<()> {
        if keys == 0 || self.pool.is_some() {
            return Ok(());
        }
        let (pool, exports) = match BindingPool::new(&self.pd, keys, AccessKey::random()?) {
            Ok(made) => made,
            Err(error) => {
                tracing::debug!(%error, "no keys to bind: all memory gets keys of its own");
                return Ok(());
            }
        };
        for export in &exports {
            self.say(NOTHING, Body::KeyExport(keys::pooled(export)))?;
        }
        let aliases = vec![None; exports.len()];
        self.pool = Some(Pool { keys: pool, exports, aliases, bound: BTreeMap::new(), is_useless: false });
        Ok(())
    }

    /// Whether the service process has not yet said of all keys of the pool whether it has aliases of them. Without a
    /// pool there is nothing to wait for.
    #[must_use]
    pub fn awaits_keys(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| !pool.is_useless && !pool.is_ready())
    }

    /// Keys of the pool that could be bound now. 0 before the service process has made the aliases.
    #[must_use]
    pub fn free_keys(&self) -> usize {
        self.pool.as_ref().filter(|pool| pool.is_ready()).map_or(0, |pool| pool.keys.free())
    }

    /// Whether memory is reached by a bound key; false once it is taken back.
    #[must_use]
    pub fn is_bound(&self, memory: MemoryId) -> bool {
        let memory = self.memory.get(memory.0 as usize).and_then(Option::as_ref);
        memory.is_some_and(|memory| matches!(memory.way, Way::Bound { .. }))
    }

    /// The host's key by which messages name memory, and its generation: of a bound key the number of its binding.
    #[must_use]
    pub fn key_name(&self, memory: MemoryId) -> Option<KeyName> {
        self.memory.get(memory.0 as usize)?.as_ref()?.name()
    }

    /// Lets the service process use memory: [`Client::key`] says when it can. By a free key of the pool that is at
    /// once: a work request of the host is all that it takes.
    ///
    /// # Errors
    /// The card refuses, or there are no random numbers; [`Error::Gone`].
    pub fn share(&mut self, region: MemoryRegion) -> Result<MemoryId> {
        match self.bind(region)? {
            Ok(memory) => Ok(memory),
            Err(region) => self.share_by_own_key(region),
        }
    }

    /// The same by a key of its own in any case, of which the process makes an alias: for memory that stays.
    ///
    /// # Errors
    /// As [`Client::share`].
    pub fn share_by_own_key(&mut self, region: MemoryRegion) -> Result<MemoryId> {
        let region = ExportedRegion::new(region, AccessKey::random()?)?;
        let announced = keys::announced(&region.export(), 1);
        self.keep(Memory { way: Way::Exported(region), alias: None, back: take_back::Back::No, calls: Vec::new() });
        self.announce_last(Body::KeyExport(announced))
    }

    fn keep(&mut self, memory: Memory) {
        self.memory.push(Some(memory));
    }

    fn announce_last(&mut self, body: Body<'_>) -> Result<MemoryId> {
        if let Err(error) = self.say(NOTHING, body) {
            // The caller has no number to take it back by, and may free what it is of.
            self.memory.pop();
            return Err(error);
        }
        Ok(MemoryId(self.memory.len() as u32 - 1))
    }

    /// Binds a key of the pool. The memory comes back where there is none for it.
    fn bind(&mut self, region: MemoryRegion) -> Result<std::result::Result<MemoryId, MemoryRegion>> {
        let Some(pool) = self.pool.as_mut().filter(|pool| pool.is_ready() && pool.keys.free() > 0) else {
            return Ok(Err(region));
        };
        // A length of 0 stands for 2 GiB in a list of keys.
        if region.is_empty() || self.is_gone {
            return Ok(Err(region));
        }
        let address = region.addr().get();
        let (binding, grant) = match pool.keys.bind(region, BOUND) {
            Ok(bound) => bound,
            Err(refused) => {
                let (region, error) = refused.into_parts();
                pool.is_useless |= !matches!(
                    error,
                    flexio::Error::NoFreeKey { .. } | flexio::Error::Foreign { .. } | flexio::Error::OutOfRange { .. }
                );
                tracing::debug!(%error, "a key is not bound: the memory gets one of its own");
                return Ok(Err(region));
            }
        };
        let slot = usize::from(grant.slot());
        let (Ok(generation), Some(Some(Ok(alias)))) = (u32::try_from(grant.number()), pool.aliases.get(slot).copied())
        else {
            // Messages count no further.
            return end(binding).map(Err).ok_or(Error::Order {
                what: "a key that has been bound as often as can be counted is not freed",
                next: "make a new connection",
            });
        };
        let key = pool.exports[slot].key;
        let announced = keys::bound(binding.region(), (key, generation), pool.exports[slot].vhca, address);
        pool.bound.insert(alias, MemoryId(self.memory.len() as u32));
        let (way, back) = (Way::Bound { binding, key, generation }, take_back::Back::No);
        self.keep(Memory { way, alias: Some(Ok(alias)), back, calls: Vec::new() });
        let announced = self.announce_last(Body::KeyExport(announced));
        if let (Err(_), Some(pool)) = (&announced, &mut self.pool) {
            pool.bound.remove(&alias);
        }
        announced.map(Ok)
    }

    /// Memory that is there.
    pub(super) fn exported(&self, memory: MemoryId) -> &Memory {
        let Some(exported) = &self.memory[memory.0 as usize] else { panic!("{memory:?} has been taken back") };
        exported
    }

    /// The memory, to be read and written while no collective uses it.
    ///
    /// # Panics
    /// It is another connection's, or has been taken back.
    #[must_use]
    pub fn region(&self, memory: MemoryId) -> &MemoryRegion {
        let Some(region) = self.exported(memory).region() else { panic!("{memory:?} has been taken back") };
        region
    }

    /// What calls name: address, length and key of all of it, once the service process can use it. Memory of a bound
    /// key has addresses from 0 on.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn key(&self, memory: MemoryId) -> Result<Option<Region>> {
        let exported = self.exported(memory);
        let Some(answer) = exported.alias else { return Ok(None) };
        let (address, bytes) = exported.range();
        Ok(Some(Region { address, key: answer.map_err(Error::Key)?, bytes }))
    }

    /// The service process has answered a key.
    pub(super) fn is_answered(&mut self, name: KeyName, answer: std::result::Result<u32, KeyRefusal>) {
        let slot = self.pool.as_ref().and_then(|pool| pool.slot(name.key));
        let (Some(pool), Some(slot)) = (&mut self.pool, slot) else {
            let is_it = |exported: &&mut Memory| exported.name() == Some(name) && exported.alias.is_none();
            if let Some(exported) = self.memory.iter_mut().flatten().find(is_it) {
                exported.alias = Some(answer);
            }
            return;
        };
        let is_it = |exported: &&mut Memory| exported.name() == Some(name);
        match self.memory.iter_mut().flatten().find(is_it) {
            // The binding is refused.
            Some(memory) if memory.back == take_back::Back::No => {
                if let Some(Ok(alias)) = memory.alias {
                    pool.bound.remove(&alias);
                }
                memory.alias = Some(answer);
            }
            Some(_) => pool.aliases[slot] = Some(answer),
            None if name.generation == 0 => {
                pool.aliases[slot] = Some(answer);
                if let Err(refusal) = answer {
                    tracing::debug!(%refusal, slot, "a key of the pool has no alias");
                    pool.keys.retire(slot as u16);
                }
            }
            None => {}
        }
    }

    /// Memory that a call names; only of bound keys it matters who does.
    pub(super) fn is_named(&mut self, keys: &[u32], call: Named) {
        let Some(pool) = &self.pool else { return };
        let found: Vec<MemoryId> = keys.iter().filter_map(|key| pool.bound.get(key).copied()).collect();
        for memory in found {
            self.is_named_by(memory, call);
        }
    }

    pub(super) fn is_named_by(&mut self, memory: MemoryId, call: Named) {
        let Some(state) = self.memory.get_mut(memory.0 as usize).and_then(Option::as_mut) else { return };
        if !matches!(state.way, Way::Bound { .. }) || state.calls.contains(&call) {
            return;
        }
        state.calls.push(call);
        if state.calls.len() >= MANY_CALLS {
            self.forget_calls(memory, |_| true);
        }
    }

    /// Forgets those calls of memory that have ended well, of those that concern.
    fn forget_calls(&mut self, memory: MemoryId, concerns: impl Fn(&Named) -> bool) {
        let Some(state) = self.memory.get(memory.0 as usize).and_then(Option::as_ref) else { return };
        let left = state.calls.iter().filter(|call| !concerns(call) || !self.has_ended_well(call));
        let left: Vec<Named> = left.copied().collect();
        if let Some(state) = self.memory.get_mut(memory.0 as usize).and_then(Option::as_mut) {
            state.calls = left;
        }
    }

    /// A group is to be forgotten: how its calls have ended cannot be found out afterwards.
    pub(super) fn forget_calls_of(&mut self, group: u32, rank: u32) {
        let is_of = |call: &Named| match call {
            Named::Alias(context, of) => (context.group, *of) == (group, rank),
            Named::Staged(call) => (call.context.group, call.rank) == (group, rank),
        };
        let all = (0..self.memory.len() as u32).map(MemoryId);
        all.for_each(|memory| self.forget_calls(memory, is_of));
    }

    /// Whether nobody reads or writes for a call any more, as far as this program can know.
    fn has_ended_well(&self, call: &Named) -> bool {
        match call {
            Named::Alias(context, rank) => match self.ended.get(&(*context, *rank)) {
                Some(ended) => ended.is_ok(),
                None => {
                    self.refused.contains_key(&(*context, *rank)) || self.is_flagged(*context, *rank).unwrap_or(false)
                }
            },
            Named::Staged(call) => !self.staged.is_posted(call) || self.is_staged_flagged(*call, None).unwrap_or(false),
        }
    }

    /// Whether all calls that name memory have ended well.
    pub(super) fn is_idle(&mut self, memory: MemoryId) -> bool {
        self.forget_calls(memory, |_| true);
        self.exported(memory).calls.is_empty()
    }

    /// The service process has let go of memory, by this name: what is left of it here.
    pub(super) fn freed(&mut self, memory: Memory, name: KeyName) -> Way {
        match memory.way {
            Way::Bound { binding, .. } => {
                let slot = binding.slot();
                let Some(pool) = &mut self.pool else { return Way::Free(end(binding)) };
                let was_taken = matches!(memory.alias, Some(Ok(_)));
                if let Some(Ok(alias)) = memory.alias {
                    pool.bound.remove(&alias);
                }
                let has_alias = matches!(pool.aliases.get(usize::from(slot)), Some(Some(Ok(_))));
                if !was_taken || !has_alias {
                    return Way::Free(end(binding));
                }
                let released = Released::received(slot, name.generation.into());
                match binding.release(released, BOUND) {
                    Ok(region) => Way::Free(Some(region)),
                    Err(refused) => {
                        tracing::warn!(error = %refused.error(), slot, "a bound key could not be freed");
                        Way::Free(None)
                    }
                }
            }
            way => way,
        }
    }
}
