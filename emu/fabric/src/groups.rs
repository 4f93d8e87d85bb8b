//! Multicast groups and their trees.
//!
//! A group's tree hangs from a root switch that the group's identifier chooses among those that reach every host by
//! going down. Its shape never depends on the members; they only decide which branches are used. A frame goes from its
//! sender up towards the root as far as there are members outside the part of the tree it came through, and down every
//! other branch with members.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::mix::{below, mix, mix2};
use crate::routes::Routes;

/// No port, no switch.
const NONE: u32 = u32::MAX;

/// A join or leave that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// No such host.
    #[error("there is no host {host}: the network has hosts 0 to {last}")]
    NoHost {
        /// The host.
        host: usize,
        /// The last there is.
        last: usize,
    },
    /// The host is not in the group.
    #[error("host {host} is not in group {group:#x}: join before leaving, and leave as often as joined")]
    NotMember {
        /// The host.
        host: usize,
        /// The group.
        group: u128,
    },
    /// The topology has no switch above all hosts.
    #[error(
        "no switch reaches all hosts by going down alone, so no multicast tree has a root: add such a switch or give \
         levels"
    )]
    NoRoot,
}

/// The way from a switch towards the root.
#[derive(Clone, Copy, Debug)]
struct Upward {
    port: u32,
    parent: u32,
    /// The parent's port of the same link.
    parent_port: u32,
}

#[derive(Clone, Debug)]
struct Group {
    /// Of each switch; ports `NONE` at the root and at switches outside the tree.
    upward: Vec<Upward>,
    /// Of each switch: its ports with members below, in order.
    branches: Vec<Vec<u32>>,
    /// Of each switch: members at it and below it.
    below: Vec<u32>,
    /// How often each member has joined.
    members: BTreeMap<usize, u32>,
}

/// All groups of a network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    numbers: BTreeMap<u128, u32>,
    groups: Vec<Group>,
}

impl Groups {
    /// Number of a group that somebody has joined at some time.
    #[inline]
    pub(crate) fn number(&self, group: u128) -> Option<u32> {
        self.numbers.get(&group).copied()
    }

    pub(crate) fn members(&self, group: u128) -> impl Iterator<Item = usize> + '_ {
        let number = self.number(group);
        number.into_iter().flat_map(|number| self.groups[number as usize].members.keys().copied())
    }

    pub(crate) fn join(&mut self, routes: &Routes, seed: u64, group: u128, host: usize) -> Result<(), GroupError> {
        let number = match self.number(group) {
            Some(number) => number,
            None => {
                let tree = Group::new(routes, mix2(seed, mix2(group as u64, (group >> 64) as u64)))?;
                let number = self.groups.len() as u32;
                self.groups.push(tree);
                self.numbers.insert(group, number);
                number
            }
        };
        let group = &mut self.groups[number as usize];
        let times = group.members.entry(host).or_default();
        *times += 1;
        if *times == 1 {
            group.add(routes, host);
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self, routes: &Routes, group: u128, host: usize) -> Result<(), GroupError> {
        let not_member = GroupError::NotMember { host, group };
        let Some(number) = self.number(group) else { return Err(not_member) };
        let group = &mut self.groups[number as usize];
        let Some(times) = group.members.get_mut(&host) else { return Err(not_member) };
        *times -= 1;
        if *times == 0 {
            group.members.remove(&host);
            group.remove(routes, host);
        }
        Ok(())
    }

    /// Appends the ports through which a switch passes on a frame that came in at `ingress`.
    #[inline]
    pub(crate) fn ways(&self, number: u32, switch: usize, ingress: u32, out: &mut Vec<u32>) {
        let group = &self.groups[number as usize];
        out.extend(group.branches[switch].iter().copied().filter(|&port| port != ingress));
        let up = group.upward[switch].port;
        let elsewhere = group.members.len() as u32 - group.below[switch];
        if up != NONE && up != ingress && elsewhere > 0 {
            out.push(up);
        }
    }
}

impl Groups {
    /// The port through which a switch passes on what goes to a member over the group's tree.
    pub(crate) fn towards(&self, routes: &Routes, number: u32, switch: usize, host: usize) -> Option<u32> {
        let group = &self.groups[number as usize];
        let (mut at, mut port) = routes.attachment(host).filter(|_| group.members.contains_key(&host))?;
        loop {
            if at == switch {
                return Some(port);
            }
            let upward = group.upward[at];
            if upward.port == NONE {
                break;
            }
            (at, port) = (upward.parent as usize, upward.parent_port);
        }
        Some(group.upward[switch].port).filter(|&up| up != NONE)
    }
}

impl Group {
    fn new(routes: &Routes, hash: u64) -> Result<Self, GroupError> {
        let switches = routes.switches();
        let mut upward = vec![Upward { port: NONE, parent: NONE, parent_port: NONE }; switches];
        if switches > 0 {
            let roots = routes.roots();
            if roots.is_empty() {
                return Err(GroupError::NoRoot);
            }
            let root = roots[below(mix(hash), roots.len())] as usize;
            hang(routes, root, hash, &mut upward);
        }
        Ok(Self { upward, branches: vec![Vec::new(); switches], below: vec![0; switches], members: BTreeMap::new() })
    }

    fn add(&mut self, routes: &Routes, host: usize) {
        let Some((mut switch, mut port)) = routes.attachment(host) else { return };
        loop {
            let branches = &mut self.branches[switch];
            if let Err(place) = branches.binary_search(&port) {
                branches.insert(place, port);
            }
            self.below[switch] += 1;
            let upward = self.upward[switch];
            if upward.port == NONE {
                return;
            }
            (switch, port) = (upward.parent as usize, upward.parent_port);
        }
    }

    fn remove(&mut self, routes: &Routes, host: usize) {
        let Some((mut switch, mut port)) = routes.attachment(host) else { return };
        let mut empty = true;
        loop {
            if empty {
                self.branches[switch].retain(|&branch| branch != port);
            }
            self.below[switch] -= 1;
            empty = self.below[switch] == 0;
            let upward = self.upward[switch];
            if upward.port == NONE {
                return;
            }
            (switch, port) = (upward.parent as usize, upward.parent_port);
        }
    }
}

/// Hangs every switch that the root reaches downwards below it, by a shortest way; the hash chooses among equals.
fn hang(routes: &Routes, root: usize, hash: u64, upward: &mut [Upward]) {
    let mut distance: Vec<Option<u32>> = vec![None; upward.len()];
    distance[root] = Some(0);
    let mut next = VecDeque::from([root]);
    let mut found = BTreeSet::new();
    while let Some(switch) = next.pop_front() {
        found.insert(switch);
        for neighbour in routes.neighbours(switch).iter().filter(|n| !n.up) {
            if distance[neighbour.switch].is_none() {
                distance[neighbour.switch] = distance[switch].map(|d| d + 1);
                next.push_back(neighbour.switch);
            }
        }
    }
    found.remove(&root);
    for switch in found {
        let closer =
            |n: &&crate::routes::Neighbour| n.up && distance[n.switch].is_some_and(|d| distance[switch] == Some(d + 1));
        let parents: Vec<_> = routes.neighbours(switch).iter().filter(closer).collect();
        let parent = parents[below(mix2(hash, switch as u64), parents.len())];
        upward[switch] = Upward { port: parent.port, parent: parent.switch as u32, parent_port: parent.their_port };
    }
}
