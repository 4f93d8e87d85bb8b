//! Groups of a service process: how they begin, who takes part, and how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flexcast_proto::service::wire::{Body, Group, GroupError, JoinRefused, Joined, Refused};
use flexcast_proto::service::{ContextId, Event, ReadError, Refusal, Topology};

use super::{Agent, Announced, GroupState, Member, Reading};
use crate::error::Result;
use crate::links::PeerId;

impl Agent {
    /// A rank describes its group.
    pub(super) fn create_group(&mut self, from: PeerId, given: Group) -> Result<()> {
        let (context, rank) = (given.context(), given.head().rank);
        let number = context.group;
        let Some(given) = self.once_reached(from, given)? else { return Ok(()) };
        let declined = if self.groups.contains_key(&number) {
            None
        } else {
            self.declined.notify(number, given.head().communicator, rank)
        };
        let refused = match self.groups.get(&number) {
            _ if declined.is_some() => declined,
            Some(group) => {
                let elsewhere = group.topology.process_of(rank) != Some(group.own);
                match group.given.agree(&given) {
                    // Another program may not take the place of a rank.
                    _ if group.members.contains_key(&rank) => {
                        Some(Refused::Process(Refusal::GroupTwice { group: number }))
                    }
                    Err(error) => Some(Refused::Group(error)),
                    Ok(()) if elsewhere => Some(self.elsewhere(&group.topology, rank)),
                    Ok(()) => None,
                }
            }
            None => self.begin_group(given)?.err(),
        };
        if let Some(refused) = refused {
            if !self.groups.contains_key(&number) {
                self.let_connections_go(number);
            }
            return self.say(from, context, Body::GroupRefused { rank, refused });
        }
        let Some(group) = self.groups.get_mut(&number) else { return Ok(()) };
        group.members.insert(rank, Member { peer: from, flags: None, leaves: false });
        let process = group.own;
        if group.is_whole() {
            let between = self.between(number);
            self.say(from, context, Body::GroupAccepted { rank, process, between })?;
        }
        Ok(())
    }

    fn elsewhere(&self, topology: &Topology, rank: u32) -> Refused {
        let process = topology.process_of(rank).unwrap_or(0);
        Refused::Group(GroupError::Elsewhere { rank, process })
    }

    /// The first rank describes a group: the other processes are notified that this one takes part, or why it does not.
    fn begin_group(&mut self, given: Group) -> Result<Result<(), Refused>> {
        let (context, head) = (given.context(), *given.head());
        let (topology, endpoints) = match given.topology() {
            Ok(known) => known,
            Err(refused) => return Ok(Err(refused)),
        };
        let own = endpoints.iter().position(|endpoint| *endpoint == self.endpoint).map(|own| own as u32);
        let Some(own) = own.filter(|own| topology.process_of(head.rank) == Some(*own)) else {
            return Ok(Err(self.elsewhere(&topology, head.rank)));
        };
        let others: Vec<(u32, Option<PeerId>)> = (0..)
            .zip(&endpoints)
            .filter(|(process, _)| *process != own)
            .map(|(process, endpoint)| (process, self.peer_at(endpoint)))
            .collect();
        let unreachable = others.iter().find(|(_, peer)| peer.is_none());
        let unreachable = unreachable.map(|(process, _)| Refused::Group(GroupError::Unreachable { process: *process }));
        let unreachable = unreachable.or_else(|| self.refused_before(context.group, head.communicator, &others));
        let topology = Arc::new(topology);
        let groups = self.groups.len() as u32;
        let mut staging = None;
        let added = match unreachable {
            Some(refused) => Err(refused),
            // As many groups of this size as there is room for.
            None if !self.links.has_lanes(endpoints.len()) => {
                Err(Refused::Process(Refusal::Groups { groups: groups + 1, limit: groups }))
            }
            None => {
                let added = self.machine.add_group(context.group, Arc::clone(&topology), own).map_err(Refused::Process);
                added.and_then(|()| {
                    let name = (head.communicator, context.group);
                    staging = self.open_staging(name, &topology, own).inspect_err(|_| {
                        self.machine.remove_group(context.group);
                    })?;
                    Ok(())
                })
            }
        };
        if let Err(refused) = added {
            let ranks = topology.served_by(own).count();
            let (notified, most) = ([head.rank].into_iter(), self.limits.machine.groups);
            self.declined.add(context.group, head.communicator, refused, ranks, notified, most);
            for (process, peer) in others {
                if let Some(peer) = peer {
                    self.announced.remove(&(peer, context.group));
                    let joined = Err(JoinRefused { communicator: head.communicator, refused });
                    self.say(peer, context, Body::Joined { from: own, to: process, joined })?;
                }
            }
            return Ok(Err(refused));
        }
        let mut lanes = Vec::with_capacity(endpoints.len());
        let mut pairs = Vec::with_capacity(endpoints.len());
        for process in 0..endpoints.len() as u32 {
            let (lane, qpn) = if process == own { (self.links.open_own_lane()?, 0) } else { self.links.open_lane()? };
            lanes.push(lane);
            pairs.push(qpn);
        }
        let (members, joined) = (BTreeMap::new(), BTreeSet::from([own]));
        let communicator = head.communicator;
        let mut peers = vec![None; endpoints.len()];
        others.iter().for_each(|(process, peer)| peers[*process as usize] = *peer);
        let state = GroupState { given, topology, own, endpoints, peers, members, lanes, joined };
        self.groups.insert(context.group, state);
        let joining = others.clone();
        for (process, peer) in others {
            let Some(peer) = peer else { continue };
            let joined = Joined { communicator, staging, queue_pair: pairs[process as usize] };
            self.say(peer, context, Body::Joined { from: own, to: process, joined: Ok(joined) })?;
        }
        for (process, peer) in joining {
            let Some(peer) = peer else { continue };
            if let Some((from, to, Ok(joined))) = self.announced.remove(&(peer, context.group)) {
                self.join(peer, context, (from, to), joined)?;
            }
            // One that has other settings.
            if !self.groups.contains_key(&context.group) {
                let refused = self.declined.notify(context.group, communicator, head.rank);
                return Ok(Err(refused.unwrap_or(Refused::Group(GroupError::Staging { process }))));
            }
        }
        Ok(Ok(()))
    }

    /// Why another process takes no part in a group that begins here, if one has said so already.
    fn refused_before(&mut self, group: u32, communicator: u64, others: &[(u32, Option<PeerId>)]) -> Option<Refused> {
        let peers: Vec<PeerId> = others.iter().filter_map(|(_, peer)| *peer).collect();
        // What was said of a communicator that had the number before counts no more.
        let is_stale = |said: &Result<_, JoinRefused>| said.is_err_and(|refused| refused.communicator != communicator);
        self.announced
            .retain(|(peer, number), (_, _, said)| *number != group || !peers.contains(peer) || !is_stale(said));
        let refused = |peer: &PeerId| self.announced.get(&(*peer, group)).and_then(|(_, _, joined)| joined.err());
        let refused = peers.iter().find_map(refused)?;
        peers.iter().for_each(|peer| _ = self.announced.remove(&(*peer, group)));
        Some(refused.refused)
    }

    /// Keeps what a process has said of a group that no rank here has described yet. What no group follows stays within
    /// what a process may have of groups.
    pub(super) fn announce(&mut self, peer: PeerId, group: u32, said: Announced) {
        let communicator = match said.2 {
            Ok(joined) => joined.communicator,
            Err(refused) => refused.communicator,
        };
        if self.declined.has(group, communicator) {
            return;
        }
        let of_peer = self.announced.range((peer, 0)..=(peer, u32::MAX)).count();
        if of_peer >= self.limits.machine.groups as usize {
            self.cut_off(peer, &"it takes part in more groups than there is room for");
        } else {
            self.announced.insert((peer, group), said);
        }
    }

    /// Another process takes part in a group.
    pub(super) fn join(
        &mut self,
        peer: PeerId,
        context: ContextId,
        (from, to): (u32, u32),
        joined: Joined,
    ) -> Result<()> {
        let is_of = |group: &&GroupState| group.given.head().communicator == joined.communicator;
        let Some(group) = self.groups.get(&context.group).filter(is_of) else {
            // Its ranks are ahead of those here, or it is late: of a communicator that had the number before and that
            // this process has declined.
            self.announce(peer, context.group, (from, to, Ok(joined)));
            return Ok(());
        };
        let is_it = self.process_peer(context.group, from) == Some(peer) && to == group.own;
        if !is_it {
            self.cut_off(peer, &"it takes part in a group of that number that is another one");
            return Ok(());
        }
        if group.joined.contains(&from) {
            self.cut_off(peer, &"it says twice that it takes part in a group");
            return Ok(());
        }
        if let Err(refused) = self.join_staging(context.group, from, joined.staging.as_ref()) {
            return self.refuse_group(context.group, refused);
        }
        let Some(group) = self.groups.get(&context.group) else { return Ok(()) };
        if let Err(error) = self.links.connect_lane(group.lanes[from as usize], peer, joined.queue_pair) {
            self.cut_off(peer, &error);
            return Ok(());
        }
        let Some(group) = self.groups.get_mut(&context.group) else { return Ok(()) };
        group.joined.insert(from);
        // What it has said before was of another communicator.
        self.announced.remove(&(peer, context.group));
        let Some(group) = self.groups.get(&context.group) else { return Ok(()) };
        if !group.is_whole() {
            return Ok(());
        }
        let process = group.own;
        let members: Vec<(u32, PeerId)> = group.members.iter().map(|(rank, member)| (*rank, member.peer)).collect();
        self.agree_on_multicast(context.group);
        let between = self.between(context.group);
        let accepted = |rank| Body::GroupAccepted { rank, process, between };
        members.into_iter().try_for_each(|(rank, peer)| self.say(peer, context, accepted(rank)))
    }

    pub(super) fn refuse_group(&mut self, number: u32, refused: Refused) -> Result<()> {
        let context = ContextId { group: number, collective: 0 };
        let Some(group) = self.groups.get(&number) else { return Ok(()) };
        let members: Vec<(u32, PeerId)> = group.members.iter().map(|(rank, member)| (*rank, member.peer)).collect();
        let (communicator, ranks) = (group.given.head().communicator, group.topology.served_by(group.own).count());
        let notified = members.iter().map(|(rank, _)| *rank);
        self.declined.add(number, communicator, refused, ranks, notified, self.limits.machine.groups);
        self.remove_group(number);
        members.into_iter().try_for_each(|(rank, peer)| self.say(peer, context, Body::GroupRefused { rank, refused }))
    }

    /// Ranks that leave a group are let go once nothing goes to their memory any more; and the group, with the last of
    /// them.
    pub(super) fn let_go(&mut self, number: u32) -> Result<()> {
        let context = ContextId { group: number, collective: 0 };
        let Some(group) = self.groups.get_mut(&number) else { return Ok(()) };
        let is_busy =
            |rank: u32| self.reads.values().any(|reading| reading.context.group == number && reading.target == rank);
        let gone: Vec<(u32, PeerId)> = group
            .members
            .iter()
            .filter(|(rank, member)| {
                member.leaves
                    && !is_busy(**rank)
                    && !self.calls.has(number, **rank)
                    && !self.staged.is_busy(number, **rank)
            })
            .map(|(rank, member)| (*rank, member.peer))
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        gone.iter().for_each(|(rank, _)| _ = group.members.remove(rank));
        if group.members.is_empty() {
            self.remove_group(number);
        }
        gone.into_iter().try_for_each(|(rank, peer)| self.say(peer, context, Body::GroupLeft { rank }))
    }

    pub(super) fn remove_group(&mut self, number: u32) {
        let Some(group) = self.groups.remove(&number) else { return };
        self.let_connections_go(number);
        group.lanes.into_iter().for_each(|lane| self.links.close_lane(lane));
        self.machine.remove_group(number);
        self.staged.remove(number);
        self.list().remove_group(number);
        self.held.retain(|(_, group), _| *group != number);
        self.flags.retain(|_, (context, _)| context.group != number);
        self.calls.remove(number);
        self.end_calls_of(number);
        self.unexplained.retain(|doubt| doubt.context.group != number);
        // Their lanes are gone, and with them their ends.
        let ended: Vec<u64> =
            self.reads.iter().filter(|(_, reading)| reading.context.group == number).map(|(token, _)| *token).collect();
        for token in ended {
            if let Some(Reading { context, source, target, .. }) = self.reads.remove(&token) {
                self.events.push_back(Event::ReadDone {
                    context,
                    source,
                    target,
                    error: Some(ReadError { code: 0, rank: source }),
                });
            }
        }
    }
}
