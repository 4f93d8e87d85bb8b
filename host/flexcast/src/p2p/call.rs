//! Calls of a communicator's users: collectives in their buffers, wherever the blocks lie there.

use flexcast_proto::Summary;
use flexcast_proto::p2p::Operation;

use super::announcement::OperationDescriptor;
use super::operation::{Buffer, Pieces, Placed};
use super::shape::Kind;
use super::{Error, Group};
use crate::op::collective::Places;
use crate::op::reduce::Reduction;

/// A collective without a reduction.
pub(crate) struct Exchange<'e> {
    pub(crate) operation: Operation,
    pub(crate) summary: &'e Summary,
    pub(crate) send: (Buffer<'e>, Places),
    pub(crate) receive: (Buffer<'e>, Places),
    /// The own block is not in its place.
    pub(crate) copies: bool,
}

/// A collective with a reduction.
pub(crate) struct Reduced<'e> {
    pub(crate) operation: Operation,
    pub(crate) summary: &'e Summary,
    pub(crate) reduction: Reduction,
    /// Bytes of a contribution.
    pub(crate) bytes: u64,
    /// Where the shares of a Reduce-Scatter end, in bytes.
    pub(crate) ends: Vec<u64>,
    pub(crate) contribution: Buffer<'e>,
}

impl Group {
    /// Starts an exchange of blocks.
    ///
    /// # Errors
    /// As [`Group::alltoallv`].
    pub(crate) fn call(&mut self, exchange: Exchange<'_>) -> Result<(), Error> {
        let Exchange { operation, summary, send, receive, copies } = exchange;
        let schedule = self.schedule(operation)?;
        let descriptor = OperationDescriptor::of_call(self.next(), summary);
        let [send, receive] = [send, receive].map(|(buffer, places)| Placed { buffer, places });
        self.exchange(schedule, descriptor, send, receive, copies)
    }

    /// Starts a reduction. The contribution is not needed after the call.
    ///
    /// # Errors
    /// As [`Group::reduce_scatterv`].
    pub(crate) fn call_reduction(&mut self, reduced: Reduced<'_>) -> Result<(), Error> {
        let Reduced { operation, summary, reduction, bytes, mut ends, contribution } = reduced;
        let element = u64::from(reduction.element_bytes());
        let elements = bytes / element;
        let kind = match operation {
            Operation::Allreduce(algorithm) => Kind::Allreduce { algorithm, elements },
            Operation::Reduce { algorithm, root } => Kind::Reduce { algorithm, root, elements },
            Operation::ReduceScatter(algorithm) => {
                ends.iter_mut().for_each(|end| *end /= element);
                Kind::ReduceScatter { algorithm, shares: Pieces::Ends(ends) }
            }
            other => {
                let reason = format!("{other:?} reduces nothing");
                return Err(Error::Protocol { peer: self.place().rank(), reason });
            }
        };
        self.start_reduction(kind, (reduction, Some(summary)), contribution)
    }
}
