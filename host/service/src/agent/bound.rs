//! Keys that programs bind to their memory: no control operation for a registration, and no binding while anything uses
//! one.
//!
//! [`BoundKey`] has the state of a key. Users of a binding hold it: each transfer until it has completed, and each call
//! of Alltoallv or Allgatherv that names it until the machine says that it is complete, since peers read by its alias
//! until then.

use std::collections::{BTreeMap, BTreeSet};

use flexcast_proto::service::wire::{self, Body, KeyForm, KeyName, KeyRefusal, Refused, TaskPart};
use flexcast_proto::service::{
    BoundKey, Call, ContextId, LettingGo, LocalCopies, Message, Part, Refusal, Region, StagedRefusal,
};
use flexio::{AliasPool, AliasUse, BoundAlias, Grant, ProtectionDomain};

use super::{Agent, Role};
use crate::error::Result;
use crate::keys;
use crate::links::{Held, PeerId, Transfer};

/// A key of a program, and what it is bound to.
#[derive(Debug)]
struct Key {
    slot: u16,
    state: BoundKey,
    /// Number of its alias, and address at the host of the memory that it stands for or has stood for last.
    alias: u32,
    address: u64,
    /// The same of the alias that has given way last.
    replaced: Option<(u32, u64)>,
    /// Until the binding is let go of.
    bound: Option<BoundAlias>,
}

impl Key {
    /// Address at the host of the memory that an alias of it stands for, or has stood for.
    fn address_of(&self, alias: u32) -> u64 {
        self.replaced.filter(|(replaced, _)| *replaced == alias).map_or(self.address, |(_, address)| address)
    }
}

/// The pool of a program.
#[derive(Debug)]
pub(super) struct ProgramKeys {
    aliases: AliasPool,
    /// By the host's key.
    keys: BTreeMap<u32, Key>,
}

impl ProgramKeys {
    pub(super) fn new(pd: &ProtectionDomain) -> std::result::Result<Self, flexio::Error> {
        Ok(Self { aliases: AliasPool::new(pd, &[])?, keys: BTreeMap::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Makes an alias of a key that is not bound yet.
    fn add(&mut self, pd: &ProtectionDomain, export: &wire::KeyExport) -> Result<Result<u32, KeyRefusal>> {
        let key = export.region.key;
        if let Some(known) = self.keys.get(&key) {
            return Ok(Err(KeyRefusal::Generation { known: known.state.last() }));
        }
        let slot = match self.aliases.add(&keys::export(pd, export)?) {
            Ok(slot) => slot,
            Err(flexio::Error::Command { syndrome, .. }) => return Ok(Err(KeyRefusal::Card { syndrome })),
            Err(flexio::Error::OutOfRange { .. }) => {
                return Ok(Err(KeyRefusal::Keys { limit: self.keys.len() as u32 }));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(alias) = self.aliases.key(slot) else { return Ok(Err(KeyRefusal::NotInPool { key })) };
        let (state, address, replaced, bound) = (BoundKey::new(), 0, None, None);
        self.keys.insert(key, Key { slot, state, alias, address, replaced, bound });
        Ok(Ok(alias))
    }

    /// A key has been bound.
    fn bind(&mut self, export: &wire::KeyExport) -> Result<(), KeyRefusal> {
        let Region { address, key, bytes } = export.region;
        let known = self.keys.get_mut(&key).ok_or(KeyRefusal::NotInPool { key })?;
        let mut state = known.state;
        state.bind(export.generation)?;
        let grant = Grant::received(known.slot, export.generation.into(), bytes);
        // It has no alias any more, or the library knows a later binding.
        let bound = self.aliases.accept(grant).map_err(|_| KeyRefusal::NotInPool { key })?;
        (known.state, known.bound, known.address) = (state, Some(bound), address);
        Ok(())
    }

    fn doubt(&mut self, key: u32, generation: u32) {
        if let Some(key) = self.keys.get_mut(&key) {
            key.state.doubt(generation);
        }
    }
}

/// A region that a call names.
#[derive(Debug)]
struct Named {
    peer: PeerId,
    name: KeyName,
    alias: u32,
    /// Address of the memory at the host.
    address: u64,
    /// None of what is bound no more.
    _held: Option<AliasUse>,
}

/// Bound keys of all programs.
#[derive(Debug, Default)]
pub(super) struct BoundKeys {
    /// By alias, and by the one that has given way to it: whose it is.
    aliases: BTreeMap<u32, (PeerId, u32)>,
    /// By call: what it names.
    calls: BTreeMap<(ContextId, u32), Vec<Named>>,
    /// Taken back, and in use.
    leaving: BTreeSet<(PeerId, u32)>,
}

impl BoundKeys {
    /// A program is gone, and its aliases with it.
    pub(super) fn part_with(&mut self, peer: PeerId) {
        self.aliases.retain(|_, (of, _)| *of != peer);
        self.leaving.retain(|(of, _)| *of != peer);
        self.calls.retain(|_, named| {
            named.retain(|named| named.peer != peer);
            !named.is_empty()
        });
    }
}

/// Keys that no card has given out: their index is the last of 2^24. What goes by them fails. The lowest byte
/// distinguishes those of one call.
const NO_KEY: u32 = 0xFFFF_FF00;

fn regions_of(call: &mut Call) -> impl Iterator<Item = &mut Region> {
    let (send, receive) = match call {
        Call::Alltoallv { send, receive } => (send.as_mut_slice(), receive),
        Call::Allgatherv { send, receive, .. } => (std::slice::from_mut(send), receive),
    };
    send.iter_mut().chain(receive)
}

impl Agent {
    fn program_keys(&mut self, peer: PeerId) -> Option<&mut ProgramKeys> {
        match self.peers.get_mut(&peer) {
            Some(Role::Program(program)) => program.bound.as_mut(),
            _ => None,
        }
    }

    /// The binding that an alias stands for, and which key it is of.
    fn binding(&self, alias: u32) -> Option<(KeyName, &BoundAlias)> {
        let (key, state) = self.key_of(alias)?;
        let bound = state.bound.as_ref().filter(|_| state.alias == alias)?;
        Some((KeyName { key, generation: state.state.last() }, bound))
    }

    fn key_of(&self, alias: u32) -> Option<(u32, &Key)> {
        let (peer, key) = self.bound.aliases.get(&alias)?;
        let Some(Role::Program(program)) = self.peers.get(peer) else { return None };
        Some((*key, program.bound.as_ref()?.keys.get(key)?))
    }

    /// A program exports a key of its pool, or one that it has bound.
    pub(super) fn take_bound_key(&mut self, from: PeerId, context: ContextId, export: &wire::KeyExport) -> Result<()> {
        let name = KeyName { key: export.region.key, generation: export.generation };
        let Some(Role::Program(program)) = self.peers.get_mut(&from) else { return Ok(()) };
        if export.form == KeyForm::Bound {
            let unknown = Err(KeyRefusal::NotInPool { key: name.key });
            return match program.bound.as_mut().map_or(unknown, |keys| keys.bind(export)) {
                Ok(()) => {
                    self.counts.bindings += 1;
                    Ok(())
                }
                Err(refusal) => self.say(from, context, Body::KeyAnswer { name, answer: Err(refusal) }),
            };
        }
        let limit = self.limits.bound_keys;
        let answer = if program.bound_keys() >= limit as usize {
            Err(KeyRefusal::Keys { limit })
        } else {
            let keys = match &mut program.bound {
                Some(keys) => keys,
                none => none.insert(ProgramKeys::new(&self.pd)?),
            };
            keys.add(&self.pd, export)?
        };
        if let Ok(alias) = answer {
            self.bound.aliases.insert(alias, (from, name.key));
        }
        self.say(from, context, Body::KeyAnswer { name, answer })
    }

    /// A program takes a bound key back; false if it is none.
    pub(super) fn revoke_bound_key(
        &mut self,
        from: PeerId,
        context: ContextId,
        name: KeyName,
        is_idle: bool,
    ) -> Result<bool> {
        let Some(key) = self.program_keys(from).and_then(|keys| keys.keys.get_mut(&name.key)) else { return Ok(false) };
        let in_use = key.bound.as_ref().is_some_and(|bound| bound.in_flight() > 0);
        let how = key.state.revoke(name.generation, is_idle, in_use);
        if how == LettingGo::Unknown {
            self.say(from, context, Body::KeyRevoked(name))?;
        } else {
            self.let_key_go(from, name.key, how)?;
        }
        Ok(true)
    }

    fn let_key_go(&mut self, peer: PeerId, key: u32, how: LettingGo) -> Result<()> {
        let context = ContextId { group: 0, collective: 0 };
        if how == LettingGo::Waits {
            self.bound.leaving.insert((peer, key));
            return Ok(());
        }
        self.bound.leaving.remove(&(peer, key));
        let Some(keys) = self.program_keys(peer) else { return Ok(()) };
        let ProgramKeys { aliases, keys } = keys;
        let Some(state) = keys.get_mut(&key) else { return Ok(()) };
        let name = KeyName { key, generation: state.state.last() };
        let Some(bound) = state.bound.take() else { return Ok(()) };
        let released = match how {
            LettingGo::Now => bound.release(),
            _ => Err(bound),
        };
        if let Err(bound) = released {
            let (_, made) = aliases.replace(bound);
            let forgotten = state.replaced.replace((state.alias, state.address));
            if let Ok(alias) = &made {
                state.alias = *alias;
            }
            if let Some((forgotten, _)) = forgotten {
                self.bound.aliases.remove(&forgotten);
            }
            self.counts.aliases_replaced += 1;
            let answer = match made {
                Ok(alias) => {
                    self.bound.aliases.insert(alias, (peer, key));
                    Ok(alias)
                }
                Err(flexio::Error::Command { syndrome, .. }) => Err(KeyRefusal::Card { syndrome }),
                Err(_) => Err(KeyRefusal::NotInPool { key }),
            };
            self.say(peer, context, Body::KeyAnswer { name, answer })?;
        }
        self.say(peer, context, Body::KeyRevoked(name))
    }

    /// Lets go of keys that were taken back and that nothing uses by now.
    pub(super) fn settle_bound_keys(&mut self) -> Result<()> {
        if self.bound.leaving.is_empty() {
            return Ok(());
        }
        let leaving: Vec<(PeerId, u32)> = self.bound.leaving.iter().copied().collect();
        for (peer, key) in leaving {
            let Some(state) = self.program_keys(peer).and_then(|keys| keys.keys.get_mut(&key)) else { continue };
            let in_use = state.bound.as_ref().is_some_and(|bound| bound.in_flight() > 0);
            let how = state.state.settle(in_use);
            self.let_key_go(peer, key, how)?;
        }
        Ok(())
    }

    /// Holds what a call of a rank names by bound keys. What it names that is bound no more is to fail: another region
    /// may be there next.
    ///
    /// # Errors
    /// The call is refused: it names memory of another program; or the rank has called this before, and that call uses
    /// bound keys.
    pub(super) fn hold_call(
        &mut self,
        from: PeerId,
        context: ContextId,
        rank: u32,
        call: &mut Call,
    ) -> Result<(), Refused> {
        if self.bound.aliases.is_empty() {
            return Ok(());
        }
        if self.bound.calls.contains_key(&(context, rank)) {
            let ContextId { group, collective } = context;
            return Err(Refused::Process(Refusal::CalledTwice { rank, group, collective }));
        }
        let (mut named, mut dead): (Vec<Named>, Vec<(u32, u64)>) = Default::default();
        for region in regions_of(call) {
            let alias = region.key;
            if let Some(place) = dead.iter().position(|(dead, _)| *dead == alias) {
                region.key = NO_KEY | place as u32 & 0xFF;
                continue;
            }
            if named.iter().any(|named| named.alias == alias) {
                continue;
            }
            let address = self.key_of(alias).map_or(0, |(_, key)| key.address_of(alias));
            match (self.bound.aliases.get(&alias), self.binding_of(from, alias)) {
                (Some((peer, _)), _) if *peer != from => return Err(Refused::NotShared { key: alias }),
                (Some(_), Some((name, bound))) => {
                    named.push(Named { peer: from, name, alias, address, _held: Some(bound.hold()) });
                }
                (Some(_), None) => {
                    region.key = NO_KEY | dead.len() as u32 & 0xFF;
                    dead.push((alias, address));
                }
                (None, _) => {}
            }
        }
        named.extend((0..).zip(dead).map(|(place, (_, address))| {
            let name = KeyName { key: 0, generation: 0 };
            Named { peer: from, name, alias: NO_KEY | place & 0xFF, address, _held: None }
        }));
        if !named.is_empty() {
            self.bound.calls.insert((context, rank), named);
        }
        Ok(())
    }

    /// The same for a rank's part of a staged call, whose transfers hold what they use.
    pub(super) fn alive(&self, from: PeerId, mut part: Part) -> Part {
        for region in [&mut part.send, &mut part.receive, &mut part.flags, &mut part.shared] {
            if self.bound.aliases.contains_key(&region.key) && self.binding_of(from, region.key).is_none() {
                region.key = NO_KEY;
            }
        }
        part
    }

    /// The binding of a program that calls may name.
    fn binding_of(&self, from: PeerId, alias: u32) -> Option<(KeyName, &BoundAlias)> {
        let found = self.binding(alias)?;
        (!self.bound.leaving.contains(&(from, found.0.key))).then_some(found)
    }

    /// A call is over here: peers have read, if it has ended well.
    pub(super) fn end_call(&mut self, context: ContextId, rank: u32, is_well: bool) {
        for Named { peer, name, .. } in self.bound.calls.remove(&(context, rank)).into_iter().flatten() {
            if !is_well && let Some(keys) = self.program_keys(peer) {
                keys.doubt(name.key, name.generation);
            }
        }
    }

    /// A group is gone, whatever was under way.
    pub(super) fn end_calls_of(&mut self, group: u32) {
        let calls: Vec<(ContextId, u32)> =
            self.bound.calls.keys().filter(|(context, _)| context.group == group).copied().collect();
        calls.into_iter().for_each(|(context, rank)| self.end_call(context, rank, false));
    }

    /// Why a rank's part of a staged call cannot be: it names memory of another program.
    pub(super) fn not_shared(&self, from: PeerId, task: &TaskPart<'_>) -> Option<(u32, StagedRefusal)> {
        if self.bound.aliases.is_empty() {
            return None;
        }
        task.parts().find_map(|part| {
            let Part { rank, send, receive, flags, shared } = part;
            let named = [("send", send), ("receive", receive), ("flag", flags), ("shared", shared)];
            let is_wrong = |region: &Region| self.bound.aliases.get(&region.key).is_some_and(|(peer, _)| *peer != from);
            let (name, region) = named.into_iter().find(|(_, region)| is_wrong(region))?;
            Some((rank, StagedRefusal::Buffer { name, rank, found: 0, expected: region.bytes }))
        })
    }

    /// Holds the bindings that a transfer uses. A key of another card may have the number of an alias here: then one is
    /// held in vain, for a moment.
    pub(super) fn held(&self, transfer: &Transfer) -> Held {
        if self.bound.aliases.is_empty() {
            return Held::default();
        }
        let hold = |key: u32| self.binding(key).map(|(_, bound)| bound.hold());
        match *transfer {
            Transfer::Read { lkey, rkey, .. } | Transfer::Write { lkey, rkey, .. } => [hold(lkey), hold(rkey)],
            Transfer::Flag { rkey, .. } => [hold(rkey), None],
        }
    }

    /// Where a region of a rank lies at its host: a rank of the host copies from there.
    pub(super) fn at_host(&self, context: ContextId, holder: u32, region: Region) -> Region {
        let named = self.bound.calls.get(&(context, holder)).into_iter().flatten();
        let base = named.into_iter().find(|named| named.alias == region.key).map_or(0, |named| named.address);
        Region { address: region.address.wrapping_add(base), ..region }
    }

    /// The same in a message. Where the card copies it reads by the alias.
    pub(super) fn message_at_host(&self, context: ContextId, message: Message) -> Message {
        match message {
            Message::Held { source, holder, region, copies: copies @ LocalCopies::Host } => {
                Message::Held { source, holder, region: self.at_host(context, holder, region), copies }
            }
            other => other,
        }
    }
}
