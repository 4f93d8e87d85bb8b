//! Ialltoallv on a service process: announcements round the ring, Reads by the receiver's process.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::error::Failure;
use super::message::{Message, Read, Reader, Region};
use super::scope::{Scope, compare};

/// One Alltoallv, as the process of some of its ranks sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Alltoallv {
    /// Served ranks that have called it.
    members: BTreeMap<u32, Member>,
    /// Announcements for served ranks that have not, by target and source.
    held: BTreeMap<(u32, u32), Region>,
    /// Targets and sources of all announcements so far.
    announced: BTreeSet<(u32, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    /// By source.
    receive: Vec<Region>,
    /// Blocks that are in place, the own one included.
    received: u32,
    /// Ranks that have what this one sends.
    read_by: BTreeSet<u32>,
}

impl Alltoallv {
    /// A served rank calls it: announces to rank + 1, rank + 2 and so on, and takes what has been announced to it.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        send: &[Region],
        receive: Vec<Region>,
        scope: &mut Scope<'_>,
    ) -> Result<(), Failure> {
        let ranks = scope.topology.ranks();
        for step in 1..ranks {
            let target = (rank + step) % ranks;
            scope.send_to_server(target, Message::Ready { source: rank, target, region: send[target as usize] });
        }
        self.members.insert(rank, Member { receive, received: 0, read_by: BTreeSet::new() });
        self.take(rank, rank, send[rank as usize], scope)?;
        let late: Vec<(u32, u32)> = self.held.range((rank, 0)..=(rank, u32::MAX)).map(|(pair, _)| *pair).collect();
        for pair in late {
            if let Some(region) = self.held.remove(&pair) {
                self.take(pair.1, rank, region, scope)?;
            }
        }
        Ok(())
    }

    pub(super) fn ready(
        &mut self,
        source: u32,
        target: u32,
        region: Region,
        scope: &mut Scope<'_>,
    ) -> Result<(), Failure> {
        if !self.announced.insert((target, source)) {
            scope.ignored.duplicates += 1;
            return Ok(());
        }
        if self.members.contains_key(&target) {
            return self.take(source, target, region, scope);
        }
        self.held.insert((target, source), region);
        Ok(())
    }

    /// Takes a block for a rank that has called: by a Read, unless it is empty.
    fn take(&mut self, source: u32, target: u32, from: Region, scope: &mut Scope<'_>) -> Result<(), Failure> {
        let Some(member) = self.members.get(&target) else { return Ok(()) };
        let to = member.receive[source as usize];
        compare(source, target, from, to)?;
        if from.bytes == 0 {
            self.received(source, target, scope);
        } else {
            scope.read(Read { source, holder: source, target, from, to });
        }
        Ok(())
    }

    /// A block is in its place.
    pub(super) fn received(&mut self, source: u32, target: u32, scope: &mut Scope<'_>) {
        if source != target {
            scope.send_to_server(source, Message::HasRead { source, reader: Reader::Rank(target) });
        }
        if let Some(member) = self.members.get_mut(&target) {
            member.received += 1;
            self.check(target, scope);
        }
    }

    /// A rank has what `source` sends to it.
    pub(super) fn has_read(&mut self, source: u32, reader: u32, scope: &mut Scope<'_>) {
        match self.members.get_mut(&source) {
            Some(member) if reader != source => {
                if member.read_by.insert(reader) {
                    self.check(source, scope);
                } else {
                    scope.ignored.duplicates += 1;
                }
            }
            _ => scope.ignored.foreign += 1,
        }
    }

    fn check(&self, rank: u32, scope: &mut Scope<'_>) {
        let ranks = scope.topology.ranks();
        let Some(member) = self.members.get(&rank) else { return };
        if member.received == ranks && member.read_by.len() as u32 == ranks - 1 {
            scope.complete(rank);
        }
    }

    /// Announcements that wait for their rank.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }
}
