//! Task of a staged collective: buffers of all ranks, order and runs of its Writes, flags that say when it is over.

use alloc::vec::Vec;
use core::ops::Range;

use super::message::Region;
use super::staged::message::Between;
use super::topology::Topology;

/// Bytes of a task object without its ranks: operation, root, algorithm, lengths, generation.
pub const TASK_HEADER_BYTES: u64 = 32;
/// Bytes of a task object per rank: four regions of address (8), length (8) and key (4).
pub const TASK_RANK_BYTES: u64 = 4 * 20;
/// Bytes of a completion flag.
pub const FLAG_BYTES: u64 = 8;

/// The two collectives that go through memory of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// The root's message to everybody.
    Broadcast {
        /// Who has it.
        root: u32,
    },
    /// A block of each rank to everybody, all of one length.
    Allgather,
}

/// Where the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Into the receive buffer of every rank: no host does anything until it is there.
    Flat,
    /// Into one shared segment per host, that of its first rank; ranks copy from there as they wait.
    Hierarchical,
    /// Straight from the memory of who has it into the receive buffer of every rank, by alias keys: nothing goes
    /// through memory of the card.
    Direct,
}

/// What all ranks say alike of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Which collective.
    pub collective: Collective,
    /// Where the data goes.
    pub delivery: Delivery,
    /// Bytes of the message or of each block.
    pub bytes: u64,
}

/// What a rank says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The rank.
    pub rank: u32,
    /// What it sends: its block of an Allgather; of a Broadcast the root's message.
    pub send: Region,
    /// Where everything goes that it receives, in the order of the ranks.
    pub receive: Region,
    /// Its flags, [`FLAG_BYTES`] for each service process of the group.
    pub flags: Region,
    /// The shared segment of its host, as long as `receive`; used of the first rank of each host.
    pub shared: Region,
}

/// Measured limits between flat and hierarchical delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thresholds {
    /// Hierarchical from so many ranks on a host on.
    pub ranks_per_host: u32,
    /// Flat below so many bytes of the message or of each block, whatever the ranks.
    pub bytes: u64,
}

impl Default for Thresholds {
    /// 4 ranks on a host, and no limit by bytes: at flow level hierarchical delivery is faster from there on among 16
    /// hosts, at 1, 32 and 256 KiB (docs/service.md). It lies between the two points that are published, flat at 1 rank
    /// per host and hierarchical at 16.
    fn default() -> Self {
        Self { ranks_per_host: 4, bytes: 0 }
    }
}

impl Thresholds {
    /// The delivery for a group and a length. Alike on all ranks, since the largest host of the group decides.
    #[must_use]
    pub fn delivery(self, topology: &Topology, bytes: u64) -> Delivery {
        let most = (0..topology.hosts()).map(|host| topology.ranks_of(host).len()).max().unwrap_or(0);
        let hierarchical = most >= self.ranks_per_host as usize && bytes >= self.bytes;
        if hierarchical { Delivery::Hierarchical } else { Delivery::Flat }
    }
}

/// A staged collective with the buffers of those ranks that have called it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    pub(super) descriptor: Descriptor,
    parts: Vec<Option<Part>>,
    missing: u32,
}

impl Task {
    /// A task of a group that nobody has called yet.
    #[must_use]
    pub fn new(descriptor: Descriptor, topology: &Topology) -> Self {
        let missing = topology.ranks();
        Self { descriptor, parts: (0..missing).map(|_| None).collect(), missing }
    }

    /// Takes a rank's part. False if it is there already, or the group has no such rank.
    pub fn add(&mut self, part: Part) -> bool {
        let Some(place @ None) = self.parts.get_mut(part.rank as usize) else { return false };
        *place = Some(part);
        self.missing -= 1;
        true
    }

    /// The part of a rank that has called.
    #[must_use]
    pub fn part(&self, rank: u32) -> Option<&Part> {
        self.parts.get(rank as usize)?.as_ref()
    }

    /// Whether all ranks have called: only then may their buffers be written to.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Size of the task object that a host hands to each service process, in bytes: it grows with the ranks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        TASK_HEADER_BYTES + TASK_RANK_BYTES * self.parts.len() as u64
    }
}

/// Ranks whose data a service process writes to, in order: from its own first rank on, round the ring of all ranks
/// sorted by host. Where a host has one process, no two processes begin with the same target. Hierarchical: the first
/// rank of each host, from the own one on.
#[must_use]
pub fn targets(topology: &Topology, process: u32, delivery: Delivery) -> Vec<u32> {
    let Some(own) = topology.host_of_process(process) else { return Vec::new() };
    let hosts = (0..topology.hosts()).map(|step| (own + step) % topology.hosts());
    match delivery {
        Delivery::Hierarchical => hosts.filter_map(|host| topology.ranks_of(host).first().copied()).collect(),
        Delivery::Flat | Delivery::Direct => {
            let mut all: Vec<u32> = hosts.flat_map(|host| topology.ranks_of(host)).copied().collect();
            let first = topology.served_by(process).next();
            let at = all.iter().position(|rank| Some(*rank) == first).unwrap_or(0);
            all.rotate_left(at);
            all
        }
    }
}

/// Runs of consecutive ranks among those that a service process serves: what it has gathered is written run by run.
#[must_use]
pub fn runs(topology: &Topology, process: u32) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for rank in topology.served_by(process) {
        match runs.last_mut().filter(|run| run.end == rank) {
            Some(run) => run.end += 1,
            None => runs.push(rank..rank + 1),
        }
    }
    runs
}

/// The service processes that write to a rank's buffer (or to the segment that it copies from, or that read from its
/// buffer until the end), each of which writes a flag of its own: the operation is over for the rank when all of them
/// have. Where data goes between processes by multicast, only those of the rank's host write to it.
#[must_use]
pub fn writers(topology: &Topology, between: Between, descriptor: &Descriptor, rank: u32) -> Range<u32> {
    match (descriptor.collective, descriptor.delivery) {
        (Collective::Allgather, Delivery::Direct) => 0..topology.processes(),
        (Collective::Allgather, _) if between == Between::Messages => 0..topology.processes(),
        // Its buffer is read from until all have what it sends.
        (Collective::Broadcast { root }, Delivery::Direct) if rank == root => 0..topology.processes(),
        (_, Delivery::Flat | Delivery::Direct) => {
            topology.process_of(rank).map_or(0..0, |process| process..process + 1)
        }
        (_, Delivery::Hierarchical) => {
            let host = topology.host_of(rank).map_or(0..0, |host| topology.processes_of(host));
            host.start..host.end.min(host.start + 1)
        }
    }
}

/// The rank whose flags and segment a rank reads: itself, or with hierarchical delivery the first of its host.
#[must_use]
pub fn polled_rank(topology: &Topology, delivery: Delivery, rank: u32) -> u32 {
    let first = topology.host_of(rank).and_then(|host| topology.ranks_of(host).first().copied());
    match delivery {
        Delivery::Flat | Delivery::Direct => rank,
        Delivery::Hierarchical => first.unwrap_or(rank),
    }
}

/// Whether an operation is over for a rank. `flags`: by service process, as they lie in memory. A flag holds the
/// generation (the number of the collective plus 1, so that memory of zeros is no flag) and need not be reset between
/// operations.
#[must_use]
pub fn is_over(writers: Range<u32>, flags: &[u64], collective: u32) -> bool {
    writers.into_iter().all(|process| flags.get(process as usize).is_some_and(|seen| has_passed(*seen, collective)))
}

/// Whether a flag is that of a collective, or of a later one that has taken its place: processes carry collectives out
/// one after another. Numbers of collectives go round.
#[must_use]
pub const fn has_passed(seen: u64, collective: u32) -> bool {
    seen != 0 && (seen.wrapping_sub(flag(collective)) as u32 as i32) >= 0
}

/// The flag of a collective: its number plus 1.
#[must_use]
pub const fn flag(collective: u32) -> u64 {
    collective as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::topology::Locality;

    fn topology(hosts: &[u32], processes: u32) -> Topology {
        let localities: Vec<Locality> = hosts.iter().map(|host| Locality { host: *host, socket: 0 }).collect();
        Topology::new(&localities, processes).unwrap()
    }

    #[test]
    fn flat_at_one_rank_per_host_and_hierarchical_at_sixteen() {
        let one = topology(&(0..32).collect::<Vec<_>>(), 1);
        let sixteen = topology(&(0..512).map(|rank| rank / 16).collect::<Vec<_>>(), 1);
        let thresholds = Thresholds::default();
        assert_eq!(thresholds.delivery(&one, 1 << 20), Delivery::Flat);
        assert_eq!(thresholds.delivery(&sixteen, 1 << 20), Delivery::Hierarchical);
        assert_eq!(Thresholds { bytes: 4096, ..thresholds }.delivery(&sixteen, 4095), Delivery::Flat);
    }

    #[test]
    fn a_task_grows_with_the_ranks() {
        let descriptor = Descriptor { collective: Collective::Allgather, delivery: Delivery::Flat, bytes: 8 };
        for ranks in [1, 32, 1024] {
            let mut task = Task::new(descriptor, &topology(&std::vec![0; ranks], 1));
            assert_eq!(task.bytes(), 32 + 80 * ranks as u64);
            let region = Region { address: 0, key: 0, bytes: 8 };
            let part = |rank| Part { rank, send: region, receive: region, flags: region, shared: region };
            assert!(!task.add(part(ranks as u32)) && !task.is_whole());
            assert!((0..ranks as u32).all(|rank| task.add(part(rank)) && !task.add(part(rank))));
            assert!(task.is_whole());
        }
    }

    #[test]
    fn no_two_processes_begin_with_the_same_target() {
        for (hosts, processes) in [([0, 1, 0, 1, 2, 2], 1), ([0, 0, 1, 1, 2, 2], 2)] {
            let topology = topology(&hosts, processes);
            let mut firsts: Vec<u32> = Vec::new();
            for process in 0..topology.processes() {
                let mut all = targets(&topology, process, Delivery::Flat);
                firsts.push(all[0]);
                all.sort_unstable();
                assert_eq!(all, (0..6).collect::<Vec<_>>());
            }
            firsts.sort_unstable();
            firsts.dedup();
            assert_eq!(firsts.len() as u32, topology.processes());
        }
        let three = topology(&[0, 1, 0, 1, 2, 2], 1);
        assert_eq!(targets(&three, 1, Delivery::Flat), [1, 3, 4, 5, 0, 2]);
        assert_eq!(targets(&three, 1, Delivery::Hierarchical), [1, 4, 0]);
    }

    #[test]
    fn runs_follow_the_placement() {
        assert_eq!(runs(&topology(&[0, 0, 0, 0, 1, 1], 1), 0), core::slice::from_ref(&(0..4)));
        assert_eq!(runs(&topology(&[0, 0, 1, 0, 1, 0], 1), 0), [0..2, 3..4, 5..6]);
        assert_eq!(runs(&topology(&[0, 0, 0, 0], 2), 1), core::slice::from_ref(&(2..4)));
    }

    #[test]
    fn all_writers_must_have_written_the_generation() {
        assert!(!is_over(0..2, &[0, 0], 0) && !is_over(0..2, &[1, 0], 0) && is_over(0..2, &[1, 1], 0));
        assert!(!is_over(0..2, &[2, 1], 1) && !is_over(0..3, &[2, 2], 1));
        // A rank that reads late finds the flags of later ones, also where their numbers begin anew.
        assert!(is_over(0..2, &[3, 2], 1) && is_over(0..1, &[1], u32::MAX) && !is_over(0..1, &[flag(u32::MAX)], 0));
        let flat = Descriptor { collective: Collective::Broadcast { root: 0 }, delivery: Delivery::Flat, bytes: 1 };
        let hierarchical = Descriptor { delivery: Delivery::Hierarchical, ..flat };
        let topology = topology(&[0, 0, 1, 1], 2);
        let by = Between::Messages;
        assert_eq!((writers(&topology, by, &flat, 3), writers(&topology, by, &hierarchical, 3)), (3..4, 2..3));
        let gather = |delivery| Descriptor { collective: Collective::Allgather, delivery, bytes: 1 };
        for (delivery, messages, multicast) in
            [(Delivery::Flat, 0..4, 3..4), (Delivery::Hierarchical, 0..4, 2..3), (Delivery::Direct, 0..4, 0..4)]
        {
            assert_eq!(writers(&topology, Between::Messages, &gather(delivery), 3), messages);
            assert_eq!(writers(&topology, Between::Multicast, &gather(delivery), 3), multicast);
        }
        assert_eq!(
            (polled_rank(&topology, Delivery::Flat, 3), polled_rank(&topology, Delivery::Hierarchical, 3)),
            (3, 2)
        );
    }
}
