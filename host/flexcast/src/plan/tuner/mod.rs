//! Tuner: the choice of an operation's algorithm, as a function of what is alike on all ranks.
//!
//! Ranks exchange the rates of their links and the numbers of their threads when they connect. Each rank computes its
//! choice from the lowest of all ([`Conditions`]). A wrong rate makes operations slower; ranks agree all the same.

mod backoff;
mod cost;
mod delivery;
mod losses;

use flexcast_proto::p2p::{Allgather, Allreduce, Alltoall, Broadcast, Operation, Reduce, ReduceScatter, Schedule};
use flexcast_proto::{Algorithm, Kind, RankInfo, RankSet};

use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::op::decision::{Decision, LostMulticast};
use crate::op::selection::Selection;
use crate::op::sparse_cost::Densities;
use crate::op::tuning::Tuning;

pub(crate) use backoff::{Backoff, Slowness};
pub(crate) use delivery::{Delivery, Note};
pub(crate) use losses::Losses;

/// Multicast is taken where it is no slower than this part of the fastest: it loads the network less, and what is lost
/// costs it less.
const MULTICAST_PERCENT: u128 = 103;

/// Most segments of a Broadcast down a binomial tree, in which each rank may be anybody's parent, and along a chain;
/// least bytes of each but the last. A rank passes segments on while others come.
const TREE_SEGMENTS: u64 = 16;
const CHAIN_SEGMENTS: u64 = 128;
const LEAST_SEGMENT_BYTES: u64 = 16 << 10;
/// Longest block of a Broadcast down a binomial tree, and of an Allgather in a logarithmic number of rounds, where
/// multicast does not arrive. Longer ones go along a chain and around the ring.
const SHORT_BROADCAST_BYTES: u64 = 64 << 10;
const SHORT_GATHER_BYTES: u64 = 128 << 10;

/// Peers of a rank in the algorithms for which it has connections.
pub(crate) fn peers(selection: Selection, place: RankInfo) -> u32 {
    let of = |algorithm| Schedule::new(Operation::Allgather(schedule(algorithm)?), place).ok();
    let all = selection.connected(place.ranks()).filter_map(of);
    all.fold(RankSet::EMPTY, |all, schedule| all.or(&schedule.targets()).or(&schedule.sources())).len()
}

/// The schedule of an algorithm over connections.
pub(crate) const fn schedule(algorithm: Algorithm) -> Option<Allgather> {
    match algorithm {
        Algorithm::Multicast
        | Algorithm::Eager
        | Algorithm::Binomial
        | Algorithm::Chain
        | Algorithm::Dissemination
        | Algorithm::Pairwise
        | Algorithm::Sparse => None,
        Algorithm::Ring => Some(Allgather::PipelinedRing { segments: cost::RING_SEGMENTS }),
        Algorithm::Linear => Some(Allgather::Linear),
        Algorithm::RecursiveDoubling => Some(Allgather::RecursiveDoubling),
        Algorithm::Bruck => Some(Allgather::Bruck),
    }
}

/// The tree of a Broadcast over connections.
pub(crate) const fn tree(algorithm: Algorithm) -> Option<Broadcast> {
    match algorithm {
        Algorithm::Binomial => Some(Broadcast::BINOMIAL),
        Algorithm::Chain => Some(Broadcast::Chain),
        _ => None,
    }
}

/// What a communicator makes connections for.
pub(crate) fn operations(selection: Selection, ranks: u32) -> Vec<Operation> {
    let gathers = selection.connected(ranks).filter_map(schedule).map(Operation::Allgather);
    let broadcasts = selection.broadcasts(ranks).filter_map(tree).flat_map(|algorithm| {
        let blocks = most_segments(algorithm) as u32;
        (0..ranks).map(move |root| Operation::Broadcast { algorithm, root, blocks })
    });
    gathers.chain(broadcasts).collect()
}

/// What a communicator makes connections for before its first collective between pairs of ranks, whatever may be chosen
/// for one of them.
pub(crate) fn collectives(ranks: u32) -> Vec<Operation> {
    let segments = TREE_SEGMENTS as u32;
    let all = [
        Operation::Alltoall(Alltoall::Linear),
        Operation::Allreduce(Allreduce::Ring),
        Operation::Allreduce(Allreduce::Tree { segments }),
        Operation::Allreduce(Allreduce::RecursiveDoubling),
        Operation::Allreduce(Allreduce::Exchange),
        Operation::ReduceScatter(ReduceScatter::Ring),
        Operation::ReduceScatter(ReduceScatter::Exchange),
    ];
    let rooted = [Reduce::Tree { segments }, Reduce::Exchange]
        .map(|algorithm| (0..ranks).map(move |root| Operation::Reduce { algorithm, root }));
    all.into_iter().chain(rooted.into_iter().flatten()).collect()
}

/// Most segments of a Broadcast over connections.
const fn most_segments(tree: Broadcast) -> u64 {
    if matches!(tree, Broadcast::Chain) { CHAIN_SEGMENTS } else { TREE_SEGMENTS }
}

/// Bytes of a Broadcast's segments, so that there are few and none is short.
pub(crate) const fn segment_bytes(tree: Broadcast, bytes: u64) -> u64 {
    let even = bytes.div_ceil(most_segments(tree));
    if even < LEAST_SEGMENT_BYTES { LEAST_SEGMENT_BYTES } else { even.next_multiple_of(LEAST_SEGMENT_BYTES) }
}

/// What decides in addition to the operation; alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) selection: Selection,
    pub(crate) ranks: u32,
    /// The slowest link.
    pub(crate) link_gbit_per_s: u64,
    /// The fewest threads of any rank.
    pub(crate) receive_threads: u32,
    pub(crate) chunk_bytes: u32,
    pub(crate) mtu_bytes: u32,
    /// Chunks are staged and copied.
    pub(crate) staged: bool,
    /// Most bytes of all blocks of an eager operation.
    pub(crate) eager_bytes: u64,
    /// Every rank has the connections of [`Selection::connected`].
    pub(crate) direct: bool,
}

/// What decides of an operation; alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Every rank contributes.
    pub(crate) gathers: bool,
    /// Blocks lie one behind the other in the receive buffer.
    pub(crate) contiguous: bool,
    pub(crate) largest_bytes: u64,
    pub(crate) total_bytes: u64,
    /// Most bytes on one message of the barrier.
    pub(crate) eager_message_bytes: u64,
}

impl Conditions {
    /// Of a communicator with this configuration, whose carrier has one thread, stages nothing and has no connections.
    pub(crate) fn new(config: &Config, ranks: u32, mtu_bytes: u32, eager_bytes: u64) -> Self {
        Self {
            selection: config.selection(),
            ranks,
            link_gbit_per_s: config.link_gbit_per_s,
            receive_threads: 1,
            chunk_bytes: config.chunk_bytes,
            mtu_bytes,
            staged: false,
            eager_bytes,
            direct: false,
        }
    }

    /// The same of a communicator that has no connections for operations.
    pub(crate) const fn without_connections(self) -> Self {
        Self { selection: Selection::Multicast, direct: false, ..self }
    }

    /// Whether the blocks of an operation have room on the messages of the barrier.
    const fn takes_eager(&self, shape: &Shape) -> bool {
        let limit = self.eager_bytes;
        limit > 0 && shape.total_bytes <= limit && shape.eager_message_bytes <= limit / 2
    }

    /// Chooses the algorithm of an operation. `avoids`: not one over connections, unless the user has named it.
    pub(crate) fn decide(&self, shape: &Shape, avoids: bool) -> Decision {
        let eager = self.takes_eager(shape);
        let direct = self.direct && shape.contiguous;
        let named = self.selection.direct().filter(|_| shape.gathers);
        let open = direct && (named.is_some() || (self.selection == Selection::Automatic && !avoids));
        let gathers = self.selection.connected(self.ranks).filter(|_| open && shape.gathers);
        let broadcasts = self.selection.broadcasts(self.ranks).filter(|_| open && !shape.gathers);
        let without = [Some(Algorithm::Multicast), eager.then_some(Algorithm::Eager)];
        let mut decision = Decision::default();
        for algorithm in without.into_iter().flatten().chain(gathers).chain(broadcasts) {
            decision.predicted_ps[algorithm as usize] = Some(cost::predict_ps(algorithm, self, shape));
        }
        decision.algorithm = match named {
            Some(algorithm) if direct && self.ranks > 1 => algorithm,
            None if open => fastest(&decision),
            _ if eager => Algorithm::Eager,
            _ => Algorithm::Multicast,
        };
        decision
    }
}

impl Conditions {
    /// Chooses the algorithm of a Broadcast or Allgather by a table. `lost`: multicast that does not arrive, so that
    /// another algorithm is taken unless the user has named multicast.
    pub(crate) fn decide_by(&self, table: &Tuning, kind: Kind, shape: &Shape, lost: Option<LostMulticast>) -> Decision {
        let named = self.selection.direct().filter(|_| shape.gathers);
        let eager = self.takes_eager(shape);
        let without = if eager { Algorithm::Eager } else { Algorithm::Multicast };
        let carries = |algorithm: &Algorithm| match algorithm {
            Algorithm::Multicast => true,
            Algorithm::Eager => eager,
            direct => self.direct && if shape.gathers { schedule(*direct).is_some() } else { tree(*direct).is_some() },
        };
        let chosen = match (named, self.selection) {
            (Some(algorithm), _) => Some(algorithm),
            (None, Selection::Automatic) => table.choose(kind, self.ranks, shape.largest_bytes),
            (None, _) => None,
        };
        // Of other numbers of ranks it takes more messages than the algorithm of Bruck.
        let chosen = match chosen {
            Some(Algorithm::RecursiveDoubling) if !self.ranks.is_power_of_two() => Some(Algorithm::Bruck),
            other => other,
        };
        let algorithm = chosen.filter(carries).unwrap_or(without);
        let is_open = self.selection == Selection::Automatic && self.direct && !table.insists_on_multicast(kind);
        if algorithm == Algorithm::Multicast && is_open && lost.is_some() {
            return Decision { lost_multicast: lost, ..Decision::of(self.without_multicast(shape)) };
        }
        Decision::of(algorithm)
    }

    /// What carries an operation that would go by multicast if that arrived.
    const fn without_multicast(&self, shape: &Shape) -> Algorithm {
        match shape.gathers {
            _ if self.takes_eager(shape) => Algorithm::Eager,
            true if shape.largest_bytes > SHORT_GATHER_BYTES => Algorithm::Ring,
            // Of other numbers of ranks recursive doubling takes more messages than the algorithm of Bruck.
            true if self.ranks.is_power_of_two() => Algorithm::RecursiveDoubling,
            true => Algorithm::Bruck,
            false if shape.largest_bytes > SHORT_BROADCAST_BYTES => Algorithm::Chain,
            false => Algorithm::Binomial,
        }
    }

    /// Chooses the algorithm of another collective by a table. `reproducible`: reductions are made in the order of
    /// ranks. `densities`: what has been found in arrays of sparse AllReduces.
    pub(crate) fn decide_collective(
        &self,
        table: &Tuning,
        collective: &Collective,
        reproducible: bool,
        densities: &Densities,
    ) -> Decision {
        let kind = collective.kind();
        let bytes = match collective {
            Collective::Reduce { bytes, .. }
            | Collective::Allreduce { bytes, .. }
            | Collective::SparseAllreduce { bytes, .. }
            | Collective::Alltoall { bytes }
            | Collective::Gather { bytes, .. }
            | Collective::Scatter { bytes, .. } => *bytes,
            Collective::ReduceScatter { shares, .. } => shares.iter().copied().max().unwrap_or(0),
            // No rank knows them all.
            Collective::Barrier
            | Collective::Alltoallv { .. }
            | Collective::Gatherv { .. }
            | Collective::Scatterv { .. } => 0,
        };
        if kind == Kind::Barrier {
            return Decision::of(Algorithm::Dissemination);
        }
        let (mut expected, mut dense_ps) = (Decision::default(), None);
        if let Collective::SparseAllreduce { bytes, reduction, .. } = collective {
            // With the order of ranks the bits do not depend on what the tuner knows.
            let is_open = !reproducible && crate::SparseOptions::is_dense_too(*reduction);
            let times = table.sparse_times(self.ranks, *bytes).filter(|_| is_open);
            expected.density_ppm = times.and_then(|_| densities.known(*bytes, *reduction));
            let is_sparse = match (table.sparse_from_bytes(), &times) {
                (Some(least), _) => *bytes >= least.into(),
                (None, Some(times)) => times.favour_sparse(expected.density_ppm),
                (None, None) => true,
            };
            if let Some(times) = &times {
                let of_sparse = times.sparse_ps(expected.density_ppm.unwrap_or(0));
                expected.predicted_ps[Algorithm::Sparse as usize] = Some(of_sparse);
            }
            if is_sparse || !is_open {
                return Decision { algorithm: Algorithm::Sparse, ..expected };
            }
            dense_ps = times.map(|times| times.dense_ps);
        }
        let carries = |algorithm: &Algorithm| match collective {
            Collective::Allreduce { .. } | Collective::SparseAllreduce { .. } => matches!(
                algorithm,
                Algorithm::Ring | Algorithm::RecursiveDoubling | Algorithm::Linear | Algorithm::Binomial
            ),
            Collective::Reduce { .. } => matches!(algorithm, Algorithm::Linear | Algorithm::Binomial),
            Collective::ReduceScatter { .. } => matches!(algorithm, Algorithm::Linear | Algorithm::Ring),
            Collective::Alltoall { .. } => {
                matches!(algorithm, Algorithm::Linear | Algorithm::Ring | Algorithm::Pairwise)
            }
            _ => *algorithm == Algorithm::Linear,
        };
        let ordered = reproducible && kind.reduces();
        let chosen = self.selection.direct().or_else(|| table.choose(kind, self.ranks, bytes));
        let chosen = chosen.filter(|algorithm| !ordered && carries(algorithm));
        let algorithm = chosen.unwrap_or(Algorithm::Linear);
        expected.predicted_ps[algorithm as usize] = dense_ps;
        Decision { algorithm, ..expected }
    }
}

/// The algorithm that is expected to be fastest.
fn fastest(decision: &Decision) -> Algorithm {
    // Of equals the one named first.
    const ORDER: [Algorithm; 8] = [
        Algorithm::Eager,
        Algorithm::Linear,
        Algorithm::Bruck,
        Algorithm::RecursiveDoubling,
        Algorithm::Ring,
        Algorithm::Binomial,
        Algorithm::Chain,
        Algorithm::Multicast,
    ];
    let predicted = |algorithm: Algorithm| Some((decision.predicted_ps[algorithm as usize]?, algorithm));
    let fastest = ORDER.into_iter().filter_map(predicted).min_by_key(|(ps, _)| *ps);
    let Some((least_ps, algorithm)) = fastest else { return Algorithm::Multicast };
    let multicast_ps = decision.predicted_ps[Algorithm::Multicast as usize].unwrap_or(u64::MAX);
    let near = u128::from(multicast_ps) * 100 <= u128::from(least_ps) * MULTICAST_PERCENT;
    if algorithm.is_direct() && near { Algorithm::Multicast } else { algorithm }
}

#[cfg(test)]
mod tests;
