//! Allgatherv on a service process: one Read per block and host, for whichever local rank is ready, and copies inside
//! the host, by the ranks themselves or by the card.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::error::Failure;
use super::message::{Action, Announcement, LocalCopies, Message, Read, Reader, Region};
use super::scope::{Scope, compare};

/// One Allgatherv, as the process of some of its ranks sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Allgatherv {
    /// Who copies inside the host; alike on all ranks.
    by: LocalCopies,
    /// Served ranks that have called it.
    members: BTreeMap<u32, Member>,
    /// Sources whose announcement has come past.
    announced: BTreeSet<u32>,
    /// Sources of other hosts whose block a served rank reads or has read.
    taken: BTreeSet<u32>,
    /// By source: blocks that lie in the memory of a rank of this host.
    held: BTreeMap<u32, Holding>,
    /// By source and rank: copies from ranks that this process serves.
    copies: BTreeSet<(u32, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    /// By source.
    receive: Vec<Region>,
    /// Blocks that were given to this rank to read.
    load: u32,
    /// Sources whose block is in its place.
    has: BTreeSet<u32>,
    /// Blocks that other local ranks copy from this one.
    holds: u32,
    /// How many copies of them are over.
    copied: u32,
    /// Hosts that have read the own block.
    read_by: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holding {
    holder: u32,
    region: Region,
}

impl Allgatherv {
    pub(super) const fn new(by: LocalCopies) -> Self {
        Self {
            by,
            members: BTreeMap::new(),
            announced: BTreeSet::new(),
            taken: BTreeSet::new(),
            held: BTreeMap::new(),
            copies: BTreeSet::new(),
        }
    }

    pub(super) const fn copies(&self) -> LocalCopies {
        self.by
    }

    /// A served rank calls it: its block is announced once per remote host, and to the other local ranks.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        send: Region,
        receive: Vec<Region>,
        scope: &mut Scope<'_>,
    ) -> Result<(), Failure> {
        compare(rank, rank, send, receive[rank as usize])?;
        let announcement = Announcement { source: rank, region: send };
        let entries: Vec<u32> =
            scope.topology.segments(rank).filter_map(|host| scope.topology.entry_of(rank, host)).collect();
        for to in entries {
            scope.send(to, Message::Block { announcement, forwards: 0, copies: self.by });
        }
        let to = receive[rank as usize];
        let member = Member { receive, load: 0, has: BTreeSet::new(), holds: 0, copied: 0, read_by: BTreeSet::new() };
        self.members.insert(rank, member);
        for (source, holding) in self.held.clone() {
            self.offer(rank, source, holding, scope)?;
        }
        self.hold(rank, rank, send, scope)?;
        if send.bytes == 0 || send == to {
            self.placed(rank, rank, scope);
        } else {
            scope.read(Read { source: rank, holder: rank, target: rank, from: send, to });
        }
        scope.actions.push(Action::Claim { context: scope.id });
        Ok(())
    }

    /// A block is announced by its source's process or passed on by a local one.
    pub(super) fn block(
        &mut self,
        announcement: Announcement,
        forwards: u32,
        scope: &mut Scope<'_>,
    ) -> Result<(), Failure> {
        if !self.announced.insert(announcement.source) {
            scope.ignored.duplicates += 1;
            return Ok(());
        }
        if !self.members.is_empty() {
            return self.serve(announcement, scope);
        }
        let local = scope.topology.processes_of(scope.own_host());
        if forwards + 1 < local.len() as u32 {
            let next = scope.topology.next_local(scope.own);
            scope.send(next, Message::Block { announcement, forwards: forwards + 1, copies: self.by });
            return Ok(());
        }
        scope.actions.push(Action::Put { context: scope.id, announcement });
        let own = scope.own;
        for to in local.filter(|to| *to != own) {
            scope.send(to, Message::Listed);
        }
        Ok(())
    }

    /// There is something on the shared list. A process without a rank checks it when the first enters.
    pub(super) fn listed(&self, scope: &mut Scope<'_>) {
        if !self.members.is_empty() {
            scope.actions.push(Action::Claim { context: scope.id });
        }
    }

    /// A block of the shared list is this process's. It checks the list again until there is none.
    pub(super) fn claimed(&mut self, announcement: Announcement, scope: &mut Scope<'_>) -> Result<(), Failure> {
        self.serve(announcement, scope)?;
        scope.actions.push(Action::Claim { context: scope.id });
        Ok(())
    }

    /// Has the least loaded of the ready ranks read a block.
    fn serve(&mut self, announcement: Announcement, scope: &mut Scope<'_>) -> Result<(), Failure> {
        let Announcement { source, region: from } = announcement;
        if self.held.contains_key(&source) || !self.taken.insert(source) {
            scope.ignored.duplicates += 1;
            return Ok(());
        }
        let least = self.members.iter_mut().min_by_key(|(rank, member)| (member.load, **rank));
        let Some((&target, member)) = least else { return Ok(()) };
        let to = member.receive[source as usize];
        compare(source, target, from, to)?;
        member.load += 1;
        if from.bytes == 0 {
            return self.has_come(source, target, to, scope);
        }
        scope.read(Read { source, holder: source, target, from, to });
        Ok(())
    }

    /// A Read is over: of a block from another host, of a rank's own block, or from another rank of the host.
    pub(super) fn read(&mut self, read: Read, scope: &mut Scope<'_>) -> Result<(), Failure> {
        let Read { source, holder, target, to, .. } = read;
        if source == target {
            self.placed(source, target, scope);
        } else if scope.topology.host_of(holder) == Some(scope.own_host()) {
            self.copied(target, source, scope);
        } else {
            return self.has_come(source, target, to, scope);
        }
        Ok(())
    }

    /// The block of a rank of another host is in the memory of a served rank.
    fn has_come(&mut self, source: u32, target: u32, to: Region, scope: &mut Scope<'_>) -> Result<(), Failure> {
        scope.send_to_server(source, Message::HasRead { source, reader: Reader::Host(scope.own_host()) });
        self.hold(source, target, to, scope)?;
        self.placed(source, target, scope);
        Ok(())
    }

    /// A rank that this process serves has a block for the other ranks of the host.
    fn hold(&mut self, source: u32, holder: u32, region: Region, scope: &mut Scope<'_>) -> Result<(), Failure> {
        if let Some(member) = self.members.get_mut(&holder) {
            member.holds += 1;
        }
        let own = scope.own;
        let local = scope.topology.processes_of(scope.own_host());
        for to in local.filter(|to| *to != own) {
            scope.send(to, Message::Held { source, holder, region, copies: self.by });
        }
        self.held_by(source, holder, region, scope)
    }

    /// Another process of the host says that one of its ranks has a block.
    pub(super) fn held_elsewhere(
        &mut self,
        source: u32,
        holder: u32,
        region: Region,
        scope: &mut Scope<'_>,
    ) -> Result<(), Failure> {
        // One that a rank here reads is not read into the same place again.
        if self.taken.contains(&source) {
            scope.ignored.duplicates += 1;
            return Ok(());
        }
        self.held_by(source, holder, region, scope)
    }

    /// A block lies in the memory of a local rank.
    fn held_by(&mut self, source: u32, holder: u32, region: Region, scope: &mut Scope<'_>) -> Result<(), Failure> {
        if self.held.contains_key(&source) {
            scope.ignored.duplicates += 1;
            return Ok(());
        }
        let holding = Holding { holder, region };
        self.held.insert(source, holding);
        let others: Vec<u32> = self.members.keys().copied().filter(|rank| *rank != holder).collect();
        for rank in others {
            self.offer(rank, source, holding, scope)?;
        }
        Ok(())
    }

    /// Notifies a rank that has called of where it finds a block, or has the card copy it.
    fn offer(&mut self, rank: u32, source: u32, holding: Holding, scope: &mut Scope<'_>) -> Result<(), Failure> {
        let Some(member) = self.members.get(&rank) else { return Ok(()) };
        let to = member.receive[source as usize];
        let Holding { holder, region } = holding;
        compare(source, rank, region, to)?;
        match self.by {
            LocalCopies::Host => {
                scope.actions.push(Action::Notify { rank, context: scope.id, source, holder, region });
            }
            LocalCopies::Card if region.bytes == 0 => self.copied(rank, source, scope),
            LocalCopies::Card => scope.read(Read { source, holder, target: rank, from: region, to }),
        }
        Ok(())
    }

    /// A served rank has copied a block from its holder, or the card has for it.
    pub(super) fn copied(&mut self, rank: u32, source: u32, scope: &mut Scope<'_>) {
        let holder = self.held.get(&source).map(|holding| holding.holder);
        let (Some(holder), Some(member)) = (holder.filter(|holder| *holder != rank), self.members.get(&rank)) else {
            scope.ignored.foreign += 1;
            return;
        };
        if member.has.contains(&source) {
            scope.ignored.duplicates += 1;
            return;
        }
        if scope.is_served(holder) {
            self.credit(source, holder, rank, scope);
        } else {
            scope.send_to_server(holder, Message::Copied { source, holder, by: rank });
        }
        self.placed(source, rank, scope);
    }

    /// A rank of the host has copied a block from a rank that this process serves.
    pub(super) fn credit(&mut self, source: u32, holder: u32, by: u32, scope: &mut Scope<'_>) {
        if self.held.get(&source).is_none_or(|holding| holding.holder != holder) || by == holder {
            scope.ignored.foreign += 1;
            return;
        }
        let Some(member) = self.members.get_mut(&holder) else {
            scope.ignored.foreign += 1;
            return;
        };
        if !self.copies.insert((source, by)) {
            scope.ignored.duplicates += 1;
            return;
        }
        member.copied += 1;
        self.check(holder, scope);
    }

    /// A host has read the block of a served rank.
    pub(super) fn has_read(&mut self, source: u32, host: u32, scope: &mut Scope<'_>) {
        match self.members.get_mut(&source) {
            Some(member) if host != scope.own_host() => {
                if member.read_by.insert(host) {
                    self.check(source, scope);
                } else {
                    scope.ignored.duplicates += 1;
                }
            }
            _ => scope.ignored.foreign += 1,
        }
    }

    /// A block is in its place in the buffer of a served rank.
    fn placed(&mut self, source: u32, rank: u32, scope: &mut Scope<'_>) {
        if let Some(member) = self.members.get_mut(&rank) {
            member.has.insert(source);
            self.check(rank, scope);
        }
    }

    /// A rank's part is over when it has all blocks, all hosts have its own, and all copies from its buffers are over.
    fn check(&self, rank: u32, scope: &mut Scope<'_>) {
        let topology = scope.topology;
        let Some(member) = self.members.get(&rank) else { return };
        let local = topology.ranks_of(scope.own_host()).len() as u32;
        if member.has.len() as u32 == topology.ranks()
            && member.read_by.len() as u32 == topology.hosts() - 1
            && member.copied == member.holds * (local - 1)
        {
            scope.complete(rank);
        }
    }

    /// Blocks that a served rank was given to read; none if it has not called.
    pub(super) fn load(&self, rank: u32) -> Option<u32> {
        self.members.get(&rank).map(|member| member.load)
    }
}
