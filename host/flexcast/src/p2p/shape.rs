//! Shape of a reduction: enough to tell the buffers of every rank.

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Allreduce, Layout, Operation, Reduce, ReduceScatter};

use super::Error;
use super::operation::Pieces;

/// A reduction's algorithm and lengths, which all ranks give alike.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) kind: Kind,
    /// Bytes of an element.
    pub(super) element_bytes: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Allreduce {
        algorithm: Allreduce,
        elements: u64,
    },
    Reduce {
        algorithm: Reduce,
        root: u32,
        elements: u64,
    },
    /// Shares of the ranks, in elements.
    ReduceScatter {
        algorithm: ReduceScatter,
        shares: Pieces,
    },
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
    pub(super) fn layout(&self, place: RankInfo) -> Result<Layout<'_>, Error> {
        Ok(match &self.kind {
            Kind::Allreduce { algorithm, elements } => algorithm.layout(*elements, self.element_bytes, place)?,
            Kind::Reduce { algorithm, root, elements } => {
                algorithm.layout(*elements, self.element_bytes, *root, place)?
            }
            Kind::ReduceScatter { algorithm, shares } => {
                algorithm.layout(shares.blocks()?.in_units(self.element_bytes)?, place)?
            }
        })
    }
}
