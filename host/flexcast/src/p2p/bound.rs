//! Operations of a communicator, bound to the buffers of a rank: which schedule, and where the blocks lie.

use flexcast_proto::p2p::{
    Allgather, Allreduce, Alltoall, Blocks, BlocksError, Broadcast, Operation, Reduce, ReduceScatter,
};
use flexcast_proto::{Algorithm, RankInfo};

use super::shape::{Kind, Shape};
use crate::error::{Error, Result};
use crate::op::collective::{Collective, Places};
use crate::plan::tuner;
use crate::plan::{Kind as Blocked, Plan};

pub(crate) fn refused(operation: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Argument { operation, reason: error.to_string() }
}

/// An operation, and the division of the buffers of one rank.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) operation: Operation,
    /// That of a reduction.
    pub(crate) shape: Option<Shape>,
    /// By the order of [`Memory`](flexcast_proto::p2p::Memory).
    pub(crate) places: [Places; 3],
}

impl Bound {
    /// One that reduces nothing.
    pub(crate) fn plain(operation: Operation, send: Places, receive: Places) -> Self {
        Self { operation, shape: None, places: [send, Places::default(), receive] }
    }

    /// A reduction.
    ///
    /// # Errors
    /// The buffers cannot be divided like this.
    pub(crate) fn reduction(shape: Shape, place: RankInfo) -> std::result::Result<Self, BlocksError> {
        let (operation, places) = (shape.operation(), shape.places(place)?);
        Ok(Self { operation, shape: Some(shape), places })
    }

    /// A Broadcast, an Allgather or an Allgatherv, whose own block is in its place. `cuts`: the blocks of ranks lie one
    /// behind the other, and are cut where the algorithm has segments.
    ///
    /// # Errors
    /// [`Error::Argument`]: the algorithm is for something else, or the lengths are beyond limits.
    pub(crate) fn of_plan(plan: &Plan, algorithm: Algorithm, cuts: bool) -> Result<Self> {
        let name = plan.kind.name();
        let impossible = || refused(name, format!("is not carried by the algorithm {algorithm}"));
        let wrong = |error| refused(name, error);
        let gather = || match tuner::schedule(algorithm) {
            Some(Allgather::PipelinedRing { .. }) if !cuts => Ok(Allgather::Ring),
            other => other.ok_or_else(impossible),
        };
        let (operation, receive) = match &plan.kind {
            Blocked::Broadcast { root, bytes } => {
                let tree = tuner::tree(algorithm).ok_or_else(impossible)?;
                let segment_bytes = tuner::segment_bytes(tree, *bytes);
                let blocks = tree.blocks(*bytes, segment_bytes, plan.ranks()).map_err(wrong)?;
                let operation = Operation::Broadcast { algorithm: tree, root: *root, blocks: blocks.count() };
                (operation, Places::Cut(blocks))
            }
            Blocked::Allgather { bytes } => {
                let with = gather()?;
                let blocks =
                    Blocks::equal(*bytes, plan.ranks()).and_then(|blocks| with.blocks(blocks)).map_err(wrong)?;
                (Operation::Allgather(with), Places::Cut(blocks))
            }
            Blocked::Allgatherv { bytes } => {
                let (with, lists, mut end) = (gather()?, bytes.pool(), 0);
                let ends = bytes.iter().map(|bytes| (end += bytes, end).1);
                let places = match cuts {
                    true => Places::cut_at(lists, ends, with.segments()).map_err(wrong)?,
                    false => {
                        let offsets = lists.list(plan.root_ranks().map(|root| plan.block(root).offset));
                        Places::Listed { bytes: bytes.clone(), offsets }
                    }
                };
                (Operation::Allgather(with), places)
            }
        };
        Ok(Self::plain(operation, Places::default(), receive))
    }

    /// Any other collective.
    ///
    /// # Errors
    /// [`Error::Argument`]: the algorithm is for something else, or the lengths are beyond limits.
    pub(crate) fn of_collective(collective: &Collective, place: RankInfo, algorithm: Algorithm) -> Result<Self> {
        let name = collective.kind().name();
        let (own, ranks) = (place.rank(), place.ranks());
        let impossible = || refused(name, format!("is not carried by the algorithm {algorithm}"));
        let at_root = |places: Places, root: u32| if root == own { places } else { Places::only(0, 0, ranks) };
        let (reduction, kind) = match collective {
            Collective::Allreduce { bytes, reduction } | Collective::SparseAllreduce { bytes, reduction, .. } => {
                let with = match algorithm {
                    Algorithm::Ring => Allreduce::Ring,
                    Algorithm::RecursiveDoubling => Allreduce::RecursiveDoubling,
                    Algorithm::Linear => Allreduce::Exchange,
                    Algorithm::Binomial => Allreduce::Tree { segments: segments(*bytes) },
                    _ => return Err(impossible()),
                };
                let elements = bytes / u64::from(reduction.element_bytes());
                (*reduction, Kind::Allreduce { algorithm: with, elements })
            }
            Collective::Reduce { root, bytes, reduction } => {
                let with = match algorithm {
                    Algorithm::Linear => Reduce::Exchange,
                    Algorithm::Binomial => Reduce::Tree { segments: segments(*bytes) },
                    _ => return Err(impossible()),
                };
                let elements = bytes / u64::from(reduction.element_bytes());
                (*reduction, Kind::Reduce { algorithm: with, root: *root, elements })
            }
            Collective::ReduceScatter { shares, reduction } => {
                let with = match algorithm {
                    Algorithm::Ring => ReduceScatter::Ring,
                    Algorithm::Linear => ReduceScatter::Exchange,
                    _ => return Err(impossible()),
                };
                let (element, mut end) = (u64::from(reduction.element_bytes()), 0);
                let ends = shares.iter().map(|bytes| (end += bytes / element, end).1);
                let shares = Places::cut_at(shares.pool(), ends, 1).map_err(|error| refused(name, error))?;
                (*reduction, Kind::ReduceScatter { algorithm: with, shares })
            }
            Collective::Barrier => {
                return Ok(Self::plain(Operation::Barrier, Places::equal(0, 1), Places::equal(0, 1)));
            }
            Collective::Alltoall { bytes } => {
                let all = Places::equal(*bytes, ranks);
                return Ok(Self::plain(Operation::Alltoall(alltoall(algorithm)), all.clone(), all));
            }
            Collective::Alltoallv { send, receive } => {
                let operation = Operation::Alltoall(alltoall(algorithm));
                return Ok(Self::plain(operation, send.clone(), receive.clone()));
            }
            Collective::Gather { root, bytes } => {
                let receive = at_root(Places::equal(*bytes, ranks), *root);
                return Ok(Self::plain(Operation::Gather { root: *root }, Places::equal(*bytes, 1), receive));
            }
            Collective::Gatherv { root, places } => {
                let send = Places::equal(places.bytes_of(own), 1);
                return Ok(Self::plain(Operation::Gather { root: *root }, send, at_root(places.clone(), *root)));
            }
            Collective::Scatter { root, bytes, in_place } => {
                let send = at_root(Places::equal(*bytes, ranks), *root);
                let receive = Places::equal(if *in_place { 0 } else { *bytes }, 1);
                return Ok(Self::plain(Operation::Scatter { root: *root }, send, receive));
            }
            Collective::Scatterv { root, places, in_place } => {
                let receive = Places::equal(if *in_place { 0 } else { places.bytes_of(own) }, 1);
                return Ok(Self::plain(Operation::Scatter { root: *root }, at_root(places.clone(), *root), receive));
            }
        };
        Self::reduction(Shape { reduction, kind }, place).map_err(|error| refused(name, error))
    }
}

/// Segments of a message up or down a tree of reductions.
fn segments(bytes: u64) -> u32 {
    bytes.div_ceil(tuner::segment_bytes(Broadcast::BINOMIAL, bytes)).max(1) as u32
}

const fn alltoall(algorithm: Algorithm) -> Alltoall {
    match algorithm {
        Algorithm::Pairwise => Alltoall::Pairwise,
        Algorithm::Ring => Alltoall::Ring,
        _ => Alltoall::Linear,
    }
}
