//! Allgather and Reduce-Scatter at the same time, on the emulated fabric: two rings, and multicast with sums in the
//! network.
//!
//! The fabric only: hosts send whatever they may send at the rate of their links, as cards with enough threads do, and
//! what they have received is checked, every chunk. With rings each host passes on what it gets; with multicast and
//! sums all hosts keep one order: in turn `j` host `j` multicasts a chunk of its share and every other host sends its
//! part of `j`'s sum, so that each link carries one frame a turn in each direction.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use emu_machine::fabric::{
    Destination, Fabric as _, FabricEffects, FabricError, Frame, GroupError, Network, NetworkFrame, Topology,
};

/// Bytes of a RoCEv2 datagram besides its payload, on the wire: preamble, Ethernet, IPv4, UDP, transport headers with
/// immediate, two check sequences, gap.
const HEADER_BYTES: u64 = 94;
const GROUP: u128 = 0xff0e_0000_0000_0000_0000_0000_0000_0001;

/// What both ways took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Outcome {
    /// Hosts that took part.
    pub ranks: usize,
    /// Bytes that each gathers from each, and whose sum each gets.
    pub share_bytes: u64,
    /// Virtual time until the last frame of both operations has arrived, with two rings.
    pub rings_ps: u64,
    /// The same with multicast and sums in the network.
    pub offloaded_ps: u64,
    /// Payload bytes that one host's port sent with rings; each sends as much.
    pub rings_sent_bytes: u64,
    /// The same with multicast and sums.
    pub offloaded_sent_bytes: u64,
}

impl Outcome {
    /// How much sooner both are done than with rings. Expected: 2 - 2 / ranks.
    #[must_use]
    pub fn speedup(&self) -> f64 {
        self.rings_ps as f64 / self.offloaded_ps as f64
    }
}

/// A run that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ConcurrentError {
    /// Too few or too many hosts.
    #[error("{ranks} ranks on a topology of {hosts} hosts: 2 to {hosts} can take part")]
    Ranks {
        /// Asked for.
        ranks: usize,
        /// There are.
        hosts: usize,
    },
    /// A share of no chunk.
    #[error("a share of {share_bytes} bytes in chunks of {chunk_bytes}: it must be a multiple, and not 0")]
    Chunks {
        /// Bytes of a share.
        share_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The topology has no multicast.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A chunk is too long for the switches.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A host has not received what it should: a defect of the fabric.
    #[error("rank {rank} received {found} of {expected} results right")]
    Wrong {
        /// The rank.
        rank: usize,
        /// Right ones.
        found: usize,
        /// Those it should have.
        expected: usize,
    },
}

/// What a frame is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A chunk of a rank's share; `left`: hops of the ring still to go.
    Share { of: usize, left: usize },
    /// A partial sum for a rank.
    Sum { of: usize, left: usize, value: u64 },
}

#[derive(Clone, Debug)]
struct Chunk {
    to: Destination,
    part: Part,
    number: u64,
    bytes: u64,
}

impl Frame for Chunk {
    fn wire_bytes(&self) -> u64 {
        self.bytes + HEADER_BYTES
    }
}

impl NetworkFrame for Chunk {
    fn destination(&self) -> Destination {
        self.to
    }
    fn flow(&self) -> u64 {
        0
    }
    fn payload_bytes(&self) -> u64 {
        self.bytes
    }
    fn add(&mut self, other: &Self) {
        if let (Part::Sum { value, .. }, Part::Sum { value: more, .. }) = (&mut self.part, other.part) {
            *value += more;
        }
    }
    fn corrupt(&mut self, _: u64) {
        if let Part::Sum { value, .. } = &mut self.part {
            *value = u64::MAX;
        }
    }
}

/// What a rank contributes to chunk `number` of another's sum.
fn contribution(rank: usize, of: usize, number: u64) -> u64 {
    (rank as u64 + 1) * 1_000_003 + of as u64 * 7919 + number
}

struct Run {
    network: Network<Chunk>,
    ranks: usize,
    chunks: u64,
    bytes: u64,
    /// Right chunks of others' shares, and right sums, by rank.
    right: Vec<(usize, usize)>,
    last_ps: u64,
}

impl Run {
    fn new(topology: &Topology, ranks: usize, share_bytes: u64, chunk_bytes: u64) -> Result<Self, ConcurrentError> {
        let mut network = Network::new(topology);
        for host in 0..ranks {
            network.join(GROUP, host)?;
        }
        let (chunks, right) = (share_bytes / chunk_bytes, vec![(0, 0); ranks]);
        Ok(Run { network, ranks, chunks, bytes: chunk_bytes, right, last_ps: 0 })
    }

    fn total(&self, of: usize, number: u64) -> u64 {
        (0..self.ranks).map(|rank| contribution(rank, of, number)).sum()
    }

    /// Sends `first` and whatever follows from what arrives; returns when the last frame has arrived.
    fn run(
        &mut self,
        first: Vec<(usize, Chunk)>,
        mut then: impl FnMut(&mut Self, usize, &Chunk) -> Option<Chunk>,
    ) -> Result<u64, ConcurrentError> {
        let mut fx = FabricEffects::default();
        let mut due = BinaryHeap::new();
        let mut arrived: BTreeMap<u64, (usize, Chunk)> = BTreeMap::new();
        let mut sequence = 0;
        for (host, chunk) in first {
            self.network.transmit(0, host, chunk, &mut fx)?;
        }
        loop {
            for at_ps in fx.timers_ps.drain(..) {
                sequence += 1;
                due.push(Reverse((at_ps, sequence)));
            }
            for delivery in fx.deliveries.drain(..) {
                sequence += 1;
                due.push(Reverse((delivery.at_ps, sequence)));
                arrived.insert(sequence, (delivery.port, delivery.frame));
            }
            let Some(Reverse((now_ps, number))) = due.pop() else { break };
            let Some((host, chunk)) = arrived.remove(&number) else {
                self.network.handle_timer(now_ps, &mut fx);
                continue;
            };
            self.last_ps = self.last_ps.max(now_ps);
            if let Some(next) = then(self, host, &chunk) {
                self.network.transmit(now_ps, host, next, &mut fx)?;
            }
        }
        let expected = self.chunks as usize;
        for (rank, &(shares, sums)) in self.right.iter().enumerate() {
            if (shares, sums) != (expected * (self.ranks - 1), expected) {
                return Err(ConcurrentError::Wrong { rank, found: shares + sums, expected: expected * self.ranks });
            }
        }
        Ok(self.last_ps)
    }

    fn sent_bytes(&self) -> u64 {
        self.network.counters(0).tx_payload_bytes
    }

    fn rings(&mut self) -> Result<u64, ConcurrentError> {
        let (ranks, bytes) = (self.ranks, self.bytes);
        let after = |rank: usize| Destination::Host((rank + 1) % ranks);
        let mut first = Vec::new();
        for number in 0..self.chunks {
            for rank in 0..ranks {
                let share = Part::Share { of: rank, left: ranks - 2 };
                // The sum for the rank before goes all the way round to it.
                let of = (rank + ranks - 1) % ranks;
                let sum = Part::Sum { of, left: ranks - 2, value: contribution(rank, of, number) };
                for part in [share, sum] {
                    first.push((rank, Chunk { to: after(rank), part, number, bytes }));
                }
            }
        }
        self.run(first, |run, rank, chunk| {
            let number = chunk.number;
            let part = match chunk.part {
                Part::Share { of, left } => {
                    run.right[rank].0 += usize::from(of != rank);
                    Part::Share { of, left: left.checked_sub(1)? }
                }
                Part::Sum { of, left, value } => {
                    let value = value + contribution(rank, of, number);
                    match left.checked_sub(1) {
                        Some(left) => Part::Sum { of, left, value },
                        None => {
                            run.right[rank].1 += usize::from(of == rank && value == run.total(of, number));
                            return None;
                        }
                    }
                }
            };
            Some(Chunk { to: after(rank), part, number, bytes })
        })
    }

    fn offloaded(&mut self) -> Result<u64, ConcurrentError> {
        let (ranks, bytes) = (self.ranks, self.bytes);
        let mut first = Vec::new();
        for number in 0..self.chunks {
            for of in 0..ranks {
                for rank in 0..ranks {
                    let (to, part) = if rank == of {
                        (Destination::Group(GROUP), Part::Share { of, left: 0 })
                    } else {
                        let value = contribution(rank, of, number);
                        (Destination::Sum { group: GROUP, to: of, tag: number }, Part::Sum { of, left: 0, value })
                    };
                    first.push((rank, Chunk { to, part, number, bytes }));
                }
            }
        }
        self.run(first, |run, rank, chunk| {
            match chunk.part {
                Part::Share { of, .. } => run.right[rank].0 += usize::from(of != rank),
                Part::Sum { of, value, .. } => {
                    let value = value + contribution(rank, of, chunk.number);
                    run.right[rank].1 += usize::from(of == rank && value == run.total(of, chunk.number));
                }
            }
            None
        })
    }
}

/// Runs both operations at once among the first `ranks` hosts of a topology, by rings and offloaded.
///
/// # Errors
/// [`ConcurrentError`].
pub fn run(topology: &Topology, ranks: usize, share_bytes: u64, chunk_bytes: u64) -> Result<Outcome, ConcurrentError> {
    let hosts = topology.hosts().len();
    if !(2..=hosts).contains(&ranks) {
        return Err(ConcurrentError::Ranks { ranks, hosts });
    }
    if chunk_bytes == 0 || share_bytes == 0 || !share_bytes.is_multiple_of(chunk_bytes) {
        return Err(ConcurrentError::Chunks { share_bytes, chunk_bytes });
    }
    let mut rings = Run::new(topology, ranks, share_bytes, chunk_bytes)?;
    let rings_ps = rings.rings()?;
    let mut offloaded = Run::new(topology, ranks, share_bytes, chunk_bytes)?;
    let offloaded_ps = offloaded.offloaded()?;
    Ok(Outcome {
        ranks,
        share_bytes,
        rings_ps,
        offloaded_ps,
        rings_sent_bytes: rings.sent_bytes(),
        offloaded_sent_bytes: offloaded.sent_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speedup_is_two_less_two_over_the_ranks() {
        for (topology, ranks, chunks) in [
            ("switch-2", 2, 64),
            ("switch-4", 4, 64),
            ("switch-16", 16, 64),
            ("fat-tree-188", 36, 32),
            ("fat-tree-188", 188, 8),
        ] {
            let share = chunks * 4096;
            let outcome = run(&Topology::named(topology).unwrap(), ranks, share, 4096).unwrap();
            let (expected, found) = (2.0 - 2.0 / ranks as f64, outcome.speedup());
            assert!(
                (found / expected - 1.0).abs() < 0.01,
                "{ranks} ranks: {found:.3}, expected {expected:.3}: {outcome:?}"
            );
            assert_eq!(outcome.rings_sent_bytes, 2 * share * (ranks as u64 - 1));
            assert_eq!(outcome.offloaded_sent_bytes, share * ranks as u64);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let topology = Topology::named("switch-4").unwrap();
        for (ranks, share, chunk, words) in [
            (1, 4096, 4096, "2 to 4"),
            (5, 4096, 4096, "2 to 4"),
            (4, 0, 4096, "must be a multiple"),
            (4, 4096, 0, "must be a multiple"),
            (4, 5000, 4096, "must be a multiple"),
            (4, 1 << 30, 1 << 30, "does not fit a switch buffer"),
        ] {
            let error = run(&topology, ranks, share, chunk).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
