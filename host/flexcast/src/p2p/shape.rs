//! Shape of a reduction: what the buffers of every rank follow from.

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Allreduce, Blocks, BlocksError, Layout, Operation, Reduce, ReduceScatter};

use crate::op::collective::Places;
use crate::op::lists::ListPool;
use flexcast_reduce::Reduction;

/// A reduction's algorithm and lengths, which all ranks give alike.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(super) reduction: Reduction,
    pub(super) kind: Kind,
}

/// Lengths are in elements.
#[derive(Debug)]
pub(super) enum Kind {
    Allreduce { algorithm: Allreduce, elements: u64 },
    Reduce { algorithm: Reduce, root: u32, elements: u64 },
    ReduceScatter { algorithm: ReduceScatter, shares: Places },
}

impl Shape {
    pub(super) const fn operation(&self) -> Operation {
        match &self.kind {
            Kind::Allreduce { algorithm, .. } => Operation::Allreduce(*algorithm),
            Kind::Reduce { algorithm, root, .. } => Operation::Reduce { algorithm: *algorithm, root: *root },
            Kind::ReduceScatter { algorithm, .. } => Operation::ReduceScatter(*algorithm),
        }
    }

    /// The buffers of a rank.
    pub(super) fn layout(&self, place: RankInfo) -> Result<Layout<'_>, BlocksError> {
        let element_bytes = self.reduction.element_bytes();
        match &self.kind {
            Kind::Allreduce { algorithm, elements } => algorithm.layout(*elements, element_bytes, place),
            Kind::Reduce { algorithm, root, elements } => algorithm.layout(*elements, element_bytes, *root, place),
            Kind::ReduceScatter { algorithm, shares } => {
                algorithm.layout(shares.cut().unwrap_or(Blocks::EMPTY).in_units(element_bytes)?, place)
            }
        }
    }

    /// The same as places. Lists, if they need any, are of the pool that the shares have theirs of.
    pub(super) fn places(&self, place: RankInfo) -> Result<[Places; 3], BlocksError> {
        let Layout { send, temporary, receive } = self.layout(place)?;
        let divided = |blocks: Blocks<'_>| match (blocks.even(), &self.kind) {
            (Some(even), _) => Places::Cut(even),
            (None, Kind::ReduceScatter { shares: Places::CutAt { ends, .. }, .. }) => {
                Places::divided(ends.pool(), &blocks)
            }
            (None, _) => Places::divided(&ListPool::new(place.ranks()), &blocks),
        };
        Ok([divided(send), temporary.map_or_else(Places::default, divided), divided(receive)])
    }
}
