//! A fat tree, as far as the length of paths and the links of a multicast tree go.

/// How ranks are assigned to hosts. Hosts are numbered leaf by leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Rank i on host i: neighbours share a leaf, but for one at each end.
    Contiguous,
    /// Dealt out over the leaves in turn, while they have room: neighbours never share a leaf, if there are two.
    Strided,
}

/// Ranks on a tree of switches, one on each host, spread evenly in order: host i at leaf ⌊i·leaves / ranks⌋, leaf l in
/// pod ⌊l·pods / leaves⌋. One leaf is one switch; one pod is a tree of two levels (leaves and spines); more are three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    ranks: u32,
    leaves: u32,
    pods: u32,
}

/// No such tree.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ranks} ranks on {leaves} leaf switches in {pods} pods: there is at least one of each, and no leaf or pod is empty"
)]
pub struct ShapeError {
    /// Ranks.
    pub ranks: u32,
    /// Leaf switches.
    pub leaves: u32,
    /// Pods.
    pub pods: u32,
}

flexcast_error::debug_as_display!(ShapeError);

impl FatTree {
    /// A tree with so many ranks, leaves and pods.
    ///
    /// # Errors
    /// A leaf without rank, a pod without leaf, or nothing at all.
    pub const fn new(ranks: u32, leaves: u32, pods: u32) -> Result<Self, ShapeError> {
        if pods == 0 || pods > leaves || leaves > ranks {
            return Err(ShapeError { ranks, leaves, pods });
        }
        Ok(Self { ranks, leaves, pods })
    }

    /// The smallest tree of switches with `radix` ports that holds `ranks` at full bisection: `radix` / 2 to a leaf, at
    /// most `radix` leaves below spines, otherwise pods of `radix` / 2 leaves. 1024 ranks on 32 ports need three
    /// levels: two hold 512.
    ///
    /// # Errors
    /// No ranks, or a radix below 2.
    pub const fn smallest(radix: u32, ranks: u32) -> Result<Self, ShapeError> {
        if radix < 2 || ranks == 0 {
            return Err(ShapeError { ranks, leaves: 0, pods: 0 });
        }
        let down = radix / 2;
        let leaves = ranks.div_ceil(down);
        let pods = if leaves <= radix { 1 } else { leaves.div_ceil(down) };
        Self::new(ranks, leaves, pods)
    }

    /// Ranks.
    #[must_use]
    pub const fn ranks(self) -> u32 {
        self.ranks
    }

    /// Leaf switches.
    #[must_use]
    pub const fn leaves(self) -> u32 {
        self.leaves
    }

    /// Pods; 1 for a tree of two levels.
    #[must_use]
    pub const fn pods(self) -> u32 {
        self.pods
    }

    /// The leaf of a host.
    #[must_use]
    pub const fn leaf(self, host: u32) -> u32 {
        (host as u64 * self.leaves as u64 / self.ranks as u64) as u32
    }

    /// The pod of a leaf.
    #[must_use]
    pub const fn pod(self, leaf: u32) -> u32 {
        (leaf as u64 * self.pods as u64 / self.leaves as u64) as u32
    }

    /// The host of each rank.
    #[must_use]
    pub fn hosts(self, placement: Placement) -> Vec<u32> {
        let mut hosts: Vec<u32> = (0..self.ranks).collect();
        if placement == Placement::Strided {
            // Number of the host at its leaf, then the leaf.
            let first = |leaf: u32| (u64::from(leaf) * u64::from(self.ranks)).div_ceil(u64::from(self.leaves)) as u32;
            hosts.sort_by_key(|&host| (host - first(self.leaf(host)), host));
        }
        hosts
    }

    /// Links between two hosts: 2 below one leaf, 4 in one pod, otherwise 6; 0 for the same host.
    #[must_use]
    pub const fn links(self, from: u32, to: u32) -> u64 {
        let (from_leaf, to_leaf) = (self.leaf(from), self.leaf(to));
        if from == to {
            0
        } else if from_leaf == to_leaf {
            2
        } else if self.pod(from_leaf) == self.pod(to_leaf) {
            4
        } else {
            6
        }
    }

    /// Links of a multicast from one rank to all others: its link up, one down to each other rank, and the tree between
    /// the switches. P + L on two levels with L leaves, P + L + Q on three with Q pods.
    #[must_use]
    pub const fn multicast_links(self) -> u64 {
        if self.ranks < 2 {
            return 0;
        }
        self.ranks as u64 + self.switch_links()
    }

    const fn switch_links(self) -> u64 {
        let leaves = if self.leaves > 1 { self.leaves } else { 0 };
        let pods = if self.pods > 1 { self.pods } else { 0 };
        leaves as u64 + pods as u64
    }

    /// What a path over so many links, two of them hosts', adds to the counters of switch ports, received and sent: a
    /// host's link has one such port, one between switches two.
    #[must_use]
    pub const fn port_counts(links: u64) -> u64 {
        (2 * links).saturating_sub(2)
    }

    /// The same for a multicast to all others: 212 for 188 ranks on 12 leaves.
    #[must_use]
    pub const fn multicast_port_counts(self) -> u64 {
        if self.ranks < 2 { 0 } else { self.ranks as u64 + 2 * self.switch_links() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_multicast() {
        assert_eq!(FatTree::new(188, 12, 1).unwrap().multicast_links(), 200);
        let large = FatTree::smallest(32, 1024).unwrap();
        assert_eq!((large.leaves(), large.pods(), large.multicast_links()), (64, 4, 1092));
        assert_eq!(FatTree::smallest(32, 512).unwrap().pods(), 1, "two levels hold 512");
        assert_eq!(FatTree::new(16, 1, 1).unwrap().multicast_links(), 16);
        assert_eq!(FatTree::new(1, 1, 1).unwrap().multicast_links(), 0);
        assert_eq!(FatTree::new(188, 12, 1).unwrap().multicast_port_counts(), 212);
    }

    #[test]
    fn paths_are_of_2_4_or_6_links() {
        let tree = FatTree::smallest(32, 1024).unwrap();
        let count = |links| (1..1024).filter(|&to| tree.links(0, to) == links).count();
        assert_eq!((count(2), count(4), count(6)), (15, 240, 768));
        assert_eq!([2, 4, 6].map(FatTree::port_counts), [2, 6, 10]);
        assert_eq!(tree.links(5, 5), 0);
    }

    #[test]
    fn strided_neighbours_share_no_leaf() {
        for (ranks, leaves) in [(188, 12), (7, 3), (5, 5), (16, 2)] {
            let tree = FatTree::new(ranks, leaves, 1).unwrap();
            let mut hosts = tree.hosts(Placement::Strided);
            assert!(hosts.windows(2).all(|pair| tree.leaf(pair[0]) != tree.leaf(pair[1])), "{hosts:?}");
            hosts.sort_unstable();
            assert_eq!(hosts, tree.hosts(Placement::Contiguous));
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        for (ranks, leaves, pods) in [(0, 0, 0), (5, 0, 0), (5, 6, 1), (5, 2, 3), (5, 2, 0)] {
            assert_eq!(FatTree::new(ranks, leaves, pods), Err(ShapeError { ranks, leaves, pods }));
        }
        assert!(FatTree::smallest(1, 5).is_err() && FatTree::smallest(32, 0).is_err());
    }
}
