//! Shortest ways up and then down, computed once.
//!
//! Each link between two switches has an upper end: the switch of the higher level, or of the lower number if both have
//! the same. A way goes up any number of links, then down any number, and never up again: then no circle of full
//! buffers can wait for one another (up*/down* routing, Schroeder et al., *Autonet*, 1991). A switch that can reach a
//! destination by going down alone always does.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::mix::{below, mix2};
use crate::topology::{Cable, Node, Switch, TopologyError, port_id};

/// Not to be reached.
const NEVER: u32 = u32::MAX;

/// A link as one of its switches sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) switch: usize,
    /// Number of our port among all ports.
    pub(crate) port: u32,
    /// Number of the neighbour's port.
    pub(crate) their_port: u32,
    /// The neighbour is the upper end.
    pub(crate) up: bool,
}

/// Routes between the switches that hosts are joined with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routes {
    /// Of each host: its switch and that switch's port; `None` if it is joined with a host.
    hosts: Vec<Option<(u32, u32)>>,
    /// Of each switch.
    neighbours: Vec<Vec<Neighbour>>,
    /// Number of each switch among those with hosts.
    leaf_of: Vec<Option<u32>>,
    /// Begin and end in `ports`, for each leaf and each switch.
    spans: Vec<(u32, u32)>,
    ports: Vec<u32>,
    /// Switches from which all those with hosts are reached by going down.
    roots: Vec<u32>,
}

impl Routes {
    pub(crate) fn new(
        host_names: &[String],
        switches: &[Switch],
        cables: &[Cable],
        bases: &[u32],
    ) -> Result<Self, TopologyError> {
        let mut hosts = vec![None; host_names.len()];
        let mut neighbours = vec![Vec::new(); switches.len()];
        let mut pairs = Vec::new();
        for cable in cables {
            let (a, b) = (port_id(bases, cable.a), port_id(bases, cable.b));
            match (cable.a.node, cable.b.node) {
                (Node::Host(host), Node::Switch(switch)) => hosts[host] = Some((switch as u32, b)),
                (Node::Switch(switch), Node::Host(host)) => hosts[host] = Some((switch as u32, a)),
                (Node::Switch(from), Node::Switch(to)) => pairs.push((from, a, to, b)),
                (Node::Host(_), Node::Host(_)) => {}
            }
        }
        for &(from, port, to, their_port) in &pairs {
            neighbours[from].push(Neighbour { switch: to, port, their_port, up: false });
            neighbours[to].push(Neighbour { switch: from, port: their_port, their_port: port, up: false });
        }
        let heights = heights(switches, &hosts, &neighbours);
        for (switch, list) in neighbours.iter_mut().enumerate() {
            for neighbour in list {
                neighbour.up = heights[neighbour.switch] > heights[switch];
            }
        }

        let mut routes = Self {
            hosts,
            neighbours,
            leaf_of: vec![None; switches.len()],
            spans: Vec::new(),
            ports: Vec::new(),
            roots: Vec::new(),
        };
        routes.fill(&heights);
        routes.check(host_names, cables)?;
        routes.find_roots();
        Ok(routes)
    }

    /// The ways to each switch with hosts, from every switch.
    fn fill(&mut self, heights: &[(u32, Reverse<usize>)]) {
        let mut downwards: Vec<usize> = (0..self.neighbours.len()).collect();
        downwards.sort_by_key(|&switch| Reverse(heights[switch]));
        let mut leaves = 0;
        for &(switch, _) in self.hosts.iter().flatten() {
            let leaf = &mut self.leaf_of[switch as usize];
            if leaf.is_none() {
                *leaf = Some(leaves);
                leaves += 1;
            }
        }
        let mut by_leaf = vec![0; leaves as usize];
        for (switch, leaf) in self.leaf_of.iter().enumerate() {
            if let Some(leaf) = leaf {
                by_leaf[*leaf as usize] = switch;
            }
        }
        for leaf in by_leaf {
            let down = self.distances_down(leaf);
            let mut total = down.clone();
            for &switch in &downwards {
                if down[switch] == NEVER {
                    let above = self.neighbours[switch].iter().filter(|n| n.up).map(|n| total[n.switch]);
                    total[switch] = above.min().unwrap_or(NEVER).saturating_add(1);
                }
            }
            for switch in 0..self.neighbours.len() {
                let begin = self.ports.len() as u32;
                let (distance, goes_up) = if down[switch] == NEVER { (&total, true) } else { (&down, false) };
                if distance[switch] != NEVER && distance[switch] != 0 {
                    let closer = |n: &&Neighbour| n.up == goes_up && distance[n.switch] == distance[switch] - 1;
                    self.ports.extend(self.neighbours[switch].iter().filter(closer).map(|n| n.port));
                }
                self.spans.push((begin, self.ports.len() as u32));
            }
        }
    }

    /// Links from each switch down to this one.
    fn distances_down(&self, to: usize) -> Vec<u32> {
        let mut distance = vec![NEVER; self.neighbours.len()];
        distance[to] = 0;
        let mut next = VecDeque::from([to]);
        while let Some(switch) = next.pop_front() {
            for neighbour in self.neighbours[switch].iter().filter(|n| n.up) {
                if distance[neighbour.switch] == NEVER {
                    distance[neighbour.switch] = distance[switch] + 1;
                    next.push_back(neighbour.switch);
                }
            }
        }
        distance
    }

    /// Every host reaches every other.
    fn check(&self, host_names: &[String], cables: &[Cable]) -> Result<(), TopologyError> {
        let no_route = |from: usize, to: usize| TopologyError::NoRoute {
            from: host_names[from].clone(),
            to: host_names[to].clone(),
        };
        // The first host of each leaf stands for all of them.
        let mut first_hosts = Vec::new();
        let mut seen = vec![false; self.leaf_of.len()];
        for (host, at) in self.hosts.iter().enumerate() {
            match at {
                Some((switch, _)) if !seen[*switch as usize] => {
                    seen[*switch as usize] = true;
                    first_hosts.push((host, *switch as usize));
                }
                Some(_) => {}
                // A cable between two hosts is a network of its own.
                None => {
                    let stranger = (0..host_names.len()).find(|&other| other != host && !joined(cables, host, other));
                    if let Some(other) = stranger {
                        return Err(no_route(host, other));
                    }
                }
            }
        }
        for &(from, from_switch) in &first_hosts {
            for &(to, to_switch) in &first_hosts {
                if from_switch != to_switch && self.ways(from_switch, to).is_empty() {
                    return Err(no_route(from, to));
                }
            }
        }
        Ok(())
    }

    fn find_roots(&mut self) {
        let leaves: Vec<usize> = (0..self.leaf_of.len()).filter(|&switch| self.leaf_of[switch].is_some()).collect();
        let mut reached = vec![0; self.leaf_of.len()];
        for &leaf in &leaves {
            for (switch, distance) in self.distances_down(leaf).into_iter().enumerate() {
                reached[switch] += usize::from(distance != NEVER);
            }
        }
        let all = |&switch: &u32| !leaves.is_empty() && reached[switch as usize] == leaves.len();
        self.roots = (0..self.leaf_of.len() as u32).filter(all).collect();
    }

    /// A host's switch and that switch's port.
    pub(crate) fn attachment(&self, host: usize) -> Option<(usize, u32)> {
        self.hosts.get(host).copied().flatten().map(|(switch, port)| (switch as usize, port))
    }

    /// Ports of a switch that are on a shortest way to a host; none if the host is joined with this switch.
    #[inline]
    pub(crate) fn ways(&self, switch: usize, host: usize) -> &[u32] {
        let Some((to, _)) = self.hosts[host] else { return &[] };
        let Some(leaf) = self.leaf_of[to as usize] else { return &[] };
        let (begin, end) = self.spans[leaf as usize * self.neighbours.len() + switch];
        &self.ports[begin as usize..end as usize]
    }

    /// The port that a flow's hash takes.
    #[inline]
    pub(crate) fn hashed(ways: &[u32], switch: usize, flow: u64, seed: u64) -> usize {
        if ways.len() == 1 { 0 } else { below(mix2(flow ^ seed, switch as u64), ways.len()) }
    }

    pub(crate) fn switches(&self) -> usize {
        self.neighbours.len()
    }

    /// Switches from which all those with hosts are reached by going down.
    pub(crate) fn roots(&self) -> &[u32] {
        &self.roots
    }

    /// The links of a switch to others.
    pub(crate) fn neighbours(&self, switch: usize) -> &[Neighbour] {
        &self.neighbours[switch]
    }
}

fn joined(cables: &[Cable], a: usize, b: usize) -> bool {
    let (a, b) = (Node::Host(a), Node::Host(b));
    cables.iter().any(|c| (c.a.node, c.b.node) == (a, b) || (c.a.node, c.b.node) == (b, a))
}

/// The order of the switches from low to high.
fn heights(
    switches: &[Switch],
    hosts: &[Option<(u32, u32)>],
    neighbours: &[Vec<Neighbour>],
) -> Vec<(u32, Reverse<usize>)> {
    let mut distance = vec![NEVER; switches.len()];
    let mut next = VecDeque::new();
    for &(switch, _) in hosts.iter().flatten() {
        if distance[switch as usize] == NEVER {
            distance[switch as usize] = 1;
            next.push_back(switch as usize);
        }
    }
    while let Some(switch) = next.pop_front() {
        for neighbour in &neighbours[switch] {
            if distance[neighbour.switch] == NEVER {
                distance[neighbour.switch] = distance[switch] + 1;
                next.push_back(neighbour.switch);
            }
        }
    }
    let level = |(index, switch): (usize, &Switch)| (switch.level.unwrap_or(distance[index]), Reverse(index));
    switches.iter().enumerate().map(level).collect()
}
