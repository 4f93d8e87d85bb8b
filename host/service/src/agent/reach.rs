//! Connections to other service processes, made when a group needs them: at most one per pair.
//!
//! A group holds the connections to all its processes while it is there. Its first rank's message waits until they are;
//! its owner makes them ([`Agent::next_connection`]), with a bound on the time, and says how that has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexcast_proto::service::wire::{Body, Endpoint, Group, GroupError, JoinRefused, Refused};
use flexcast_proto::service::{
    Access, ConnectionAction, ConnectionError, Connections, ContextId, Counts as ConnectionCounts, Refusal,
};

use super::{Agent, Role};
use crate::error::Result;
use crate::links::{LinkEnd, PeerId};

/// Connections, and groups that wait for some.
#[derive(Debug)]
pub(super) struct Reach {
    cache: Connections<Endpoint>,
    /// Connections that can be used.
    there: BTreeMap<Endpoint, PeerId>,
    /// For the owner, in order.
    actions: VecDeque<ConnectionAction<Endpoint>>,
    /// Ranks that have described groups which wait, in order.
    waiting: Vec<(PeerId, Group)>,
    /// By group: the connections that it holds or waits for, and whether the cache has granted them.
    held: BTreeMap<u32, BTreeMap<Endpoint, bool>>,
    /// Uses that nobody needs any more, to be given back once they are granted.
    owed: BTreeMap<Endpoint, u32>,
    /// Connections that have ended here, which their owner has to end too.
    parted: VecDeque<PeerId>,
}

impl Reach {
    pub(super) fn there(&self, endpoint: &Endpoint) -> Option<PeerId> {
        self.there.get(endpoint).copied()
    }

    /// Calls of the cache put their actions behind earlier ones.
    fn cached<R>(
        &mut self,
        call: impl FnOnce(&mut Connections<Endpoint>, &mut Vec<ConnectionAction<Endpoint>>) -> R,
    ) -> R {
        let mut actions = Vec::new();
        let result = call(&mut self.cache, &mut actions);
        self.actions.extend(actions);
        result
    }

    fn granted(&mut self, endpoint: Endpoint) {
        self.held.values_mut().for_each(|held| _ = held.get_mut(&endpoint).map(|granted| *granted = true));
        for _ in 0..self.owed.remove(&endpoint).unwrap_or(0) {
            self.cached(|cache, actions| cache.release(endpoint, actions));
        }
    }

    /// Nothing holds it any more, nor waits for it.
    fn gone(&mut self, endpoint: Endpoint) {
        self.there.remove(&endpoint);
        self.owed.remove(&endpoint);
        self.held.values_mut().for_each(|held| _ = held.remove(&endpoint));
    }

    fn let_go(&mut self, group: u32) {
        for (endpoint, granted) in self.held.remove(&group).unwrap_or_default() {
            if granted {
                self.cached(|cache, actions| cache.release(endpoint, actions));
            } else {
                *self.owed.entry(endpoint).or_default() += 1;
            }
        }
    }

    fn is_whole(&self, group: u32) -> bool {
        self.held
            .get(&group)
            .is_some_and(|held| held.iter().all(|(endpoint, granted)| *granted && self.there.contains_key(endpoint)))
    }
}

impl Agent {
    /// From now on groups wait for connections to processes that are not connected, and its owner carries out what
    /// [`Agent::next_connection`] says. `limit`: connections that this process has set up at a time, at least 1, and as
    /// many that others have.
    ///
    /// # Errors
    /// A limit of 0.
    pub fn connect_on_demand(&mut self, limit: u32) -> Result<(), ConnectionError> {
        let cache = Connections::new(self.endpoint, limit)?;
        let (there, actions, waiting, held, owed, parted) = Default::default();
        self.reach = Some(Reach { cache, there, actions, waiting, held, owed, parted });
        Ok(())
    }

    /// What its owner is to do next for connections to other service processes.
    pub fn next_connection(&mut self) -> Option<ConnectionAction<Endpoint>> {
        self.reach.as_mut()?.actions.pop_front()
    }

    /// A connection that this process has ended by itself, so that its owner ends what belongs to it. Its number may be
    /// given again afterwards.
    pub fn next_parted(&mut self) -> Option<PeerId> {
        self.reach.as_mut()?.parted.pop_front()
    }

    /// Hits, misses and evictions of connections to other processes, where they are made on demand.
    #[must_use]
    pub fn connection_counts(&self) -> Option<ConnectionCounts> {
        self.reach.as_ref().map(|reach| reach.cache.counts())
    }

    /// Connects a queue pair to the other end. Groups use it once [`Agent::is_made`] has been called.
    ///
    /// # Errors
    /// The card refuses.
    pub fn link(&mut self, peer: PeerId, far: LinkEnd) -> Result<()> {
        self.links.connect(peer, far)
    }

    /// Another process sets up a connection: whether it may.
    ///
    /// # Errors
    /// Its set-up is to be refused, for this reason.
    pub fn accept(&mut self, endpoint: Endpoint) -> Result<(), ConnectionError> {
        let Some(reach) = &mut self.reach else { return Ok(()) };
        reach.cached(|cache, actions| cache.accepted(endpoint, actions))?;
        reach.granted(endpoint);
        Ok(())
    }

    /// Both ends of a connection to another process are connected; `own`: this process has set it up.
    ///
    /// # Errors
    /// The card has failed.
    pub fn is_made(&mut self, peer: PeerId, own: bool) -> Result<()> {
        let Some(Role::Process(endpoint)) = self.peers.get(&peer) else { return Ok(()) };
        let endpoint = *endpoint;
        if let Some(reach) = &mut self.reach {
            reach.there.insert(endpoint, peer);
            if own {
                _ = reach.cache.connected(endpoint);
                reach.granted(endpoint);
            } else {
                reach.cached(|cache, actions| cache.release(endpoint, actions));
            }
        }
        self.resume()
    }

    /// The own set-up has been refused, as the other process's has precedence.
    pub fn has_crossed(&mut self, endpoint: Endpoint) {
        if let Some(reach) = &mut self.reach {
            reach.cache.crossed(endpoint);
        }
    }

    /// A connection to another process could not be made: groups that wait for it are refused.
    ///
    /// # Errors
    /// The card has failed.
    pub fn is_unreachable(&mut self, endpoint: Endpoint) -> Result<()> {
        let Some(reach) = &mut self.reach else { return Ok(()) };
        reach.cached(|cache, actions| cache.lost(endpoint, actions));
        let waits = |group: &u32| reach.waiting.iter().any(|(_, given)| given.context().group == *group);
        let of: Vec<u32> =
            reach.held.iter().filter(|(_, held)| held.contains_key(&endpoint)).map(|(group, _)| *group).collect();
        let of: Vec<u32> = of.into_iter().filter(waits).collect();
        reach.gone(endpoint);
        of.into_iter().try_for_each(|group| self.refuse_waiting(group, endpoint))
    }

    /// Processes for whose connections groups wait: also for those that must first give way to them.
    #[must_use]
    pub fn wanted(&self) -> BTreeSet<Endpoint> {
        let Some(reach) = &self.reach else { return BTreeSet::new() };
        let held = reach.waiting.iter().filter_map(|(_, given)| reach.held.get(&given.context().group)).flatten();
        let missing = held.filter(|(endpoint, granted)| !**granted || !reach.there.contains_key(endpoint));
        missing.map(|(endpoint, _)| *endpoint).collect()
    }

    /// Groups have waited for a connection for too long: they are refused. What the connection is doing goes on.
    ///
    /// # Errors
    /// The card has failed.
    pub fn give_up(&mut self, endpoint: Endpoint) -> Result<()> {
        let Some(reach) = &self.reach else { return Ok(()) };
        let waits = |number: &u32| reach.held.get(number).is_some_and(|held| held.contains_key(&endpoint));
        let groups: BTreeSet<u32> =
            reach.waiting.iter().map(|(_, given)| given.context().group).filter(waits).collect();
        groups.into_iter().try_for_each(|group| self.refuse_waiting(group, endpoint))
    }

    /// The other process sends nothing more.
    pub fn receives_goodbye(&mut self, endpoint: Endpoint) {
        if let Some(reach) = &mut self.reach {
            reach.cached(|cache, actions| cache.goodbye(endpoint, actions));
        }
    }

    /// Whether everything that was said to a peer is at its card.
    #[must_use]
    pub fn is_drained_to(&self, peer: PeerId) -> bool {
        self.links.is_drained_to(peer)
    }

    /// Frees a connection after both have said goodbye.
    ///
    /// # Errors
    /// The card has failed.
    pub fn close(&mut self, peer: PeerId) -> Result<()> {
        if let (Some(Role::Process(endpoint)), Some(reach)) = (self.peers.get(&peer), &mut self.reach)
            && reach.there.get(endpoint) == Some(&peer)
        {
            reach.there.remove(endpoint);
        }
        self.close_lost(peer)
    }

    /// The other end of a connection is gone: what takes part by it fails now, and not at the next progress.
    ///
    /// # Errors
    /// The card has failed.
    pub(crate) fn close_lost(&mut self, peer: PeerId) -> Result<()> {
        self.part_with(peer);
        // The caller knows.
        self.reach.iter_mut().for_each(|reach| reach.parted.retain(|parted| *parted != peer));
        self.carry_out()
    }

    /// Whether nothing is under way: no collective, no Read, no flag, and no message.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = |group: &u32| self.machine.under_way(*group).unwrap_or(0) == 0;
        self.groups.keys().all(quiet) && self.reads.is_empty() && self.flags.is_empty() && self.links.is_drained()
    }

    pub(crate) fn has(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Another limit of keys of each program, for keys from now on.
    pub const fn set_keys(&mut self, keys: u32, bound_keys: u32) {
        (self.limits.keys, self.limits.bound_keys) = (keys, bound_keys);
    }

    pub(super) fn waiting_groups(&self) -> usize {
        self.reach.as_ref().map_or(0, |reach| {
            let mut groups: Vec<u32> = reach.waiting.iter().map(|(_, given)| given.context().group).collect();
            groups.sort_unstable();
            groups.dedup();
            groups.len()
        })
    }

    /// A group as a rank has described it, if all its processes are connected; else it waits.
    pub(super) fn once_reached(&mut self, from: PeerId, given: Group) -> Result<Option<Group>> {
        let (own, limit) = (self.endpoint, self.limits.peers as usize);
        let Some(reach) = &mut self.reach else { return Ok(Some(given)) };
        let (context, rank) = (given.context(), given.head().rank);
        let number = context.group;
        if self.groups.contains_key(&number) {
            return Ok(Some(given));
        }
        if !reach.held.contains_key(&number) {
            // What is wrong with it is said where it begins.
            let Ok((_, endpoints)) = given.topology() else { return Ok(Some(given)) };
            if !endpoints.contains(&own) {
                return Ok(Some(given));
            }
            let mut held = BTreeMap::new();
            let mut full = None;
            for (process, endpoint) in (0..).zip(endpoints).filter(|(_, endpoint)| *endpoint != own) {
                match reach.cached(|cache, actions| cache.acquire(endpoint, actions)) {
                    Ok(access) => _ = held.insert(endpoint, access == Access::Ready),
                    Err(_) => full = Some(process),
                }
            }
            reach.held.insert(number, held);
            if let Some(process) = full {
                reach.let_go(number);
                let refused = Refused::Group(GroupError::Unreachable { process });
                self.say(from, context, Body::GroupRefused { rank, refused })?;
                return Ok(None);
            }
        }
        if reach.is_whole(number) {
            return Ok(Some(given));
        }
        if reach.waiting.len() >= limit {
            let limit = limit as u32;
            let refused = Refused::Process(Refusal::Groups { groups: limit.saturating_add(1), limit });
            self.say(from, context, Body::GroupRefused { rank, refused })?;
            return Ok(None);
        }
        reach.waiting.push((from, given));
        Ok(None)
    }

    /// Groups begin whose processes are all connected now, or of which one has been lost: those are refused.
    ///
    /// # Errors
    /// The card has failed.
    pub(crate) fn resume(&mut self) -> Result<()> {
        while let Some(reach) = &mut self.reach {
            let ready = reach.waiting.iter().position(|(_, given)| reach.is_whole(given.context().group));
            let Some(at) = ready else { break };
            let (from, given) = reach.waiting.remove(at);
            self.create_group(from, given)?;
        }
        self.carry_out()
    }

    fn refuse_waiting(&mut self, number: u32, endpoint: Endpoint) -> Result<()> {
        let context = ContextId { group: number, collective: 0 };
        let Some(reach) = &mut self.reach else { return Ok(()) };
        let (refused, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut reach.waiting).into_iter().partition(|(_, given)| given.context().group == number);
        reach.waiting = kept;
        let notified: Vec<u32> = refused.iter().map(|(_, given)| given.head().rank).collect();
        let mut notified_others = false;
        for (from, group) in refused {
            let Ok((topology, endpoints)) = group.topology() else { continue };
            let process = endpoints.iter().position(|other| *other == endpoint).unwrap_or(0) as u32;
            let why = Refused::Group(GroupError::Unreachable { process });
            let own = endpoints.iter().position(|other| *other == self.endpoint).unwrap_or(0) as u32;
            if !std::mem::replace(&mut notified_others, true) {
                let communicator = group.head().communicator;
                let (ranks, most) = (topology.served_by(own).count(), self.limits.machine.groups);
                self.declined.add(number, communicator, why, ranks, notified.iter().copied(), most);
                for (to, other) in (0..).zip(&endpoints) {
                    if let Some(peer) = self.peer_at(other) {
                        let joined = Err(JoinRefused { communicator, refused: why });
                        self.say(peer, context, Body::Joined { from: own, to, joined })?;
                    }
                }
            }
            self.say(from, context, Body::GroupRefused { rank: group.head().rank, refused: why })?;
        }
        self.let_connections_go(number);
        self.carry_out()
    }

    /// A group is no more, or will not be: others may have the room of its connections.
    pub(super) fn let_connections_go(&mut self, number: u32) {
        if let Some(reach) = &mut self.reach {
            reach.let_go(number);
        }
    }

    /// A connection is over.
    pub(super) fn forget(&mut self, peer: PeerId, role: &Role) {
        let Some(reach) = &mut self.reach else { return };
        reach.parted.push_back(peer);
        match role {
            Role::Program(_) => {
                reach.waiting.retain(|(from, _)| *from != peer);
                let waits = |group: u32| reach.waiting.iter().any(|(_, given)| given.context().group == group);
                let idle: Vec<u32> = reach
                    .held
                    .keys()
                    .copied()
                    .filter(|group| !self.groups.contains_key(group) && !waits(*group))
                    .collect();
                idle.into_iter().for_each(|group| reach.let_go(group));
            }
            Role::Process(endpoint) => {
                if reach.there.get(endpoint) == Some(&peer) {
                    let endpoint = *endpoint;
                    reach.cached(|cache, actions| cache.lost(endpoint, actions));
                    // A group that begins just now has no connection to wait for: it asks again.
                    reach.gone(endpoint);
                }
            }
        }
    }
}
