//! Topology of a group: ranks, their hosts and sockets, and the balanced static map from ranks to service processes.

use alloc::vec::Vec;

use thiserror::Error;

use crate::ranks::MAX_RANKS;

/// Most service processes per host.
pub const MAX_PROCESSES_PER_HOST: u32 = 64;

/// Where a rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Locality {
    /// Number of its host in the group, from 0 without gaps.
    pub host: u32,
    /// Number of its socket on the host.
    pub socket: u32,
}

/// Ranks, hosts and service processes of one group (communicator). All service processes of a group have the same.
///
/// Service processes are numbered through all hosts, those of a host one after another. A host uses no more of them
/// than it has ranks in the group, so that each serves at least one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    localities: Vec<Locality>,
    /// By rank: its service process.
    processes: Vec<u32>,
    /// By rank: its position among the ranks of its host.
    positions: Vec<u32>,
    hosts: Vec<Host>,
    /// By service process: its host.
    process_hosts: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    ranks: Vec<u32>,
    first_process: u32,
    processes: u32,
}

/// No such topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// Too few or too many ranks.
    #[error("{ranks} ranks in a group: a group has 1 to {MAX_RANKS}")]
    Ranks {
        /// What was given.
        ranks: usize,
    },
    /// Too few or too many service processes.
    #[error("{processes} service processes per host: give 1 to {MAX_PROCESSES_PER_HOST}")]
    Processes {
        /// What was given.
        processes: u32,
    },
    /// A host number beyond the ranks.
    #[error(
        "rank {rank} is on host {host}, but {ranks} ranks have at most {ranks} hosts: number the hosts from 0 without \
         gaps"
    )]
    Host {
        /// The rank.
        rank: u32,
        /// What was given.
        host: u32,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A host without ranks.
    #[error("host {host} of {hosts} has no rank: number the hosts from 0 without gaps")]
    NoRank {
        /// The host.
        host: u32,
        /// Hosts up to the largest number.
        hosts: u32,
    },
}

impl Topology {
    /// The topology of ranks at these places, in the order of the ranks. `processes_per_host`: service processes on
    /// each card, 1 to [`MAX_PROCESSES_PER_HOST`].
    ///
    /// # Errors
    /// No ranks, more than [`MAX_RANKS`], no service process, too many, or host numbers with gaps.
    pub fn new(localities: &[Locality], processes_per_host: u32) -> Result<Self, TopologyError> {
        let count = u32::try_from(localities.len()).unwrap_or(u32::MAX);
        if count == 0 || count > MAX_RANKS {
            return Err(TopologyError::Ranks { ranks: localities.len() });
        }
        if processes_per_host == 0 || processes_per_host > MAX_PROCESSES_PER_HOST {
            return Err(TopologyError::Processes { processes: processes_per_host });
        }
        let mut of_hosts: Vec<Vec<u32>> = Vec::new();
        let mut positions = Vec::with_capacity(localities.len());
        for (rank, locality) in (0..).zip(localities) {
            if locality.host >= count {
                return Err(TopologyError::Host { rank, host: locality.host, ranks: count });
            }
            let host = locality.host as usize;
            if of_hosts.len() <= host {
                of_hosts.resize(host + 1, Vec::new());
            }
            positions.push(of_hosts[host].len() as u32);
            of_hosts[host].push(rank);
        }
        if let Some(host) = of_hosts.iter().position(Vec::is_empty) {
            return Err(TopologyError::NoRank { host: host as u32, hosts: of_hosts.len() as u32 });
        }
        let mut hosts: Vec<Host> = Vec::with_capacity(of_hosts.len());
        let mut process_hosts = Vec::new();
        for ranks in of_hosts {
            let processes = processes_per_host.min(ranks.len() as u32);
            let first_process = process_hosts.len() as u32;
            let host = hosts.len() as u32;
            process_hosts.extend((0..processes).map(|_| host));
            hosts.push(Host { ranks, first_process, processes });
        }
        let process = |(locality, position): (&Locality, &u32)| {
            let host = &hosts[locality.host as usize];
            host.first_process + position * host.processes / host.ranks.len() as u32
        };
        let processes = localities.iter().zip(&positions).map(process).collect();
        Ok(Self { localities: localities.to_vec(), processes, positions, hosts, process_hosts })
    }

    /// Ranks of the group.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.localities.len() as u32
    }

    /// Hosts with ranks of the group.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Service processes of all hosts.
    #[must_use]
    pub fn processes(&self) -> u32 {
        self.process_hosts.len() as u32
    }

    /// Where a rank runs; none for a rank that the group does not have.
    #[must_use]
    pub fn locality(&self, rank: u32) -> Option<Locality> {
        self.localities.get(rank as usize).copied()
    }

    /// The host of a rank.
    #[must_use]
    pub fn host_of(&self, rank: u32) -> Option<u32> {
        self.locality(rank).map(|locality| locality.host)
    }

    /// The service process of a rank.
    #[must_use]
    pub fn process_of(&self, rank: u32) -> Option<u32> {
        self.processes.get(rank as usize).copied()
    }

    /// The host of a service process.
    #[must_use]
    pub fn host_of_process(&self, process: u32) -> Option<u32> {
        self.process_hosts.get(process as usize).copied()
    }

    /// The ranks of a host, in ascending order; none of a host that is not there.
    #[must_use]
    pub fn ranks_of(&self, host: u32) -> &[u32] {
        self.hosts.get(host as usize).map_or(&[], |host| &host.ranks)
    }

    /// The ranks of a host that share a socket.
    pub fn ranks_of_socket(&self, host: u32, socket: u32) -> impl Iterator<Item = u32> + '_ {
        let on_socket = move |rank: &u32| self.localities[*rank as usize].socket == socket;
        self.ranks_of(host).iter().copied().filter(on_socket)
    }

    /// The ranks that a service process serves, in ascending order.
    pub fn served_by(&self, process: u32) -> impl Iterator<Item = u32> + '_ {
        let ranks = self.host_of_process(process).map_or(&[][..], |host| self.ranks_of(host));
        ranks.iter().copied().filter(move |rank| self.process_of(*rank) == Some(process))
    }

    /// The service processes of a host, by their numbers.
    #[must_use]
    pub fn processes_of(&self, host: u32) -> core::ops::Range<u32> {
        self.hosts.get(host as usize).map_or(0..0, |host| host.first_process..host.first_process + host.processes)
    }

    /// The next service process on the ring of those of one host; itself where it is alone.
    #[must_use]
    pub fn next_local(&self, process: u32) -> u32 {
        let all = self.host_of_process(process).map_or(0..0, |host| self.processes_of(host));
        if process + 1 < all.end { process + 1 } else { all.start.min(process) }
    }

    /// The service process of `host` that is notified first of a remote rank's block; none for a rank of the host
    /// itself.
    ///
    /// The blocks of remote ranks are dealt to the ranks of the host in turn, and a block goes to the service process
    /// of the rank that it is dealt to. So a process gets blocks in proportion to its ranks, and while all ranks of a
    /// host are ready none reads more than one block more than another.
    #[must_use]
    pub fn entry_of(&self, source: u32, host: u32) -> Option<u32> {
        let home = self.host_of(source).filter(|home| *home != host)?;
        let _ = self.hosts.get(host as usize)?;
        // How many ranks before it are remote to the host: all that are smaller, but for those of the host.
        let local = self.ranks_of(host);
        let before = source as usize - local.partition_point(|rank| *rank < source);
        debug_assert_ne!(home, host);
        self.process_of(local[before % local.len()])
    }

    /// The hosts that a rank's block goes to, in the order in which they are notified: a ring of all service processes,
    /// cut into one segment per host; of each segment, beginning behind the own one, one process is notified.
    pub fn segments(&self, source: u32) -> impl Iterator<Item = u32> + '_ {
        let home = self.host_of(source);
        let hosts = self.hosts();
        (1..hosts).filter_map(move |step| home.map(|home| (home + step) % hosts))
    }
}

/// A topology does not change while states are compared: its size is enough.
impl core::hash::Hash for Topology {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.ranks(), self.hosts(), self.processes()).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;
    use std::vec;

    fn on_hosts(hosts: &[u32]) -> Vec<Locality> {
        hosts.iter().map(|host| Locality { host: *host, socket: 0 }).collect()
    }

    #[test]
    fn four_processes_serve_eight_of_32_ranks_each() {
        let hosts: Vec<u32> = (0..64).map(|rank| rank / 32).collect();
        let topology = Topology::new(&on_hosts(&hosts), 4).unwrap();
        assert_eq!((topology.ranks(), topology.hosts(), topology.processes()), (64, 2, 8));
        for process in 0..8 {
            assert_eq!(topology.served_by(process).count(), 8);
        }
        assert_eq!(
            (topology.process_of(0), topology.process_of(33), topology.process_of(64)),
            (Some(0), Some(4), None)
        );
    }

    #[test]
    fn sockets_and_hosts_of_strided_ranks() {
        let places: Vec<Locality> = (0..8).map(|rank| Locality { host: rank % 2, socket: rank / 4 }).collect();
        let topology = Topology::new(&places, 2).unwrap();
        assert_eq!(topology.ranks_of(1), [1, 3, 5, 7]);
        assert_eq!(topology.ranks_of_socket(1, 1).collect::<Vec<_>>(), [5, 7]);
        assert_eq!((topology.next_local(2), topology.next_local(3)), (3, 2));
        assert_eq!(topology.segments(3).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_host_uses_no_more_processes_than_it_has_ranks() {
        let topology = Topology::new(&on_hosts(&[0, 0, 1]), 4).unwrap();
        assert_eq!((topology.processes_of(0), topology.processes_of(1), topology.next_local(2)), (0..2, 2..3, 2));
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(Topology::new(&[], 1), Err(TopologyError::Ranks { ranks: 0 }));
        assert_eq!(
            Topology::new(&vec![Locality { host: 0, socket: 0 }; 1025], 1),
            Err(TopologyError::Ranks { ranks: 1025 })
        );
        assert_eq!(
            Topology::new(&on_hosts(&[0]), 65).unwrap_err().to_string(),
            "65 service processes per host: give 1 to 64"
        );
        assert_eq!(Topology::new(&on_hosts(&[0, 9]), 1), Err(TopologyError::Host { rank: 1, host: 9, ranks: 2 }));
        assert_eq!(Topology::new(&on_hosts(&[0, 2, 2]), 1), Err(TopologyError::NoRank { host: 1, hosts: 3 }));
    }

    proptest! {
        #[test]
        fn maps_are_balanced_for_any_placement(raw in proptest::collection::vec(0u32..6, 1..60), per_host in 1u32..9) {
            // Numbers without gaps.
            let mut names: Vec<u32> = raw.clone();
            names.sort_unstable();
            names.dedup();
            let hosts: Vec<u32> = raw.iter().map(|host| names.binary_search(host).unwrap() as u32).collect();
            let topology = Topology::new(&on_hosts(&hosts), per_host).unwrap();
            for host in 0..topology.hosts() {
                let counts: Vec<usize> =
                    topology.processes_of(host).map(|process| topology.served_by(process).count()).collect();
                let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
                prop_assert!(least >= 1 && most - least <= 1);
                prop_assert_eq!(counts.iter().sum::<usize>(), topology.ranks_of(host).len());
                // One turn round the ring meets every process of the host once.
                let first = topology.processes_of(host).start;
                let turn: Vec<u32> =
                    core::iter::successors(Some(first), |at| Some(topology.next_local(*at)).filter(|next| *next != first)).collect();
                prop_assert_eq!(turn, topology.processes_of(host).collect::<Vec<_>>());
                // Dealt blocks: in proportion to the ranks of each process.
                let remote: Vec<u32> = (0..topology.ranks()).filter(|rank| topology.host_of(*rank) != Some(host)).collect();
                for process in topology.processes_of(host) {
                    let dealt = remote.iter().filter(|source| topology.entry_of(**source, host) == Some(process)).count();
                    let (ranks, all) = (topology.served_by(process).count(), topology.ranks_of(host).len());
                    let rounds = remote.len() / all;
                    prop_assert!((rounds * ranks..=(rounds + 1) * ranks).contains(&dealt));
                }
            }
            for rank in 0..topology.ranks() {
                let mut notified: Vec<u32> = topology.segments(rank).collect();
                notified.sort_unstable();
                let others: Vec<u32> = (0..topology.hosts()).filter(|host| topology.host_of(rank) != Some(*host)).collect();
                prop_assert_eq!(notified, others);
            }
        }
    }
}
