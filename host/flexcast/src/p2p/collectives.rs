//! Starting collectives: their arguments, and the schedules and buffers that follow from them.

use flexcast_proto::p2p::{Allgather, Allreduce, Alltoall, Blocks, Broadcast, Operation, Reduce, ReduceScatter, Span};

use super::bound::Bound;
use super::buffer::Buffer;
use super::shape::{Kind, Shape};
use super::{Error, Group};
use crate::op::collective::Places;
use flexcast_reduce::Reduction;

/// The reduction of contributions of one length by one core, in the order of ranks: what the others are compared with.
#[must_use]
pub fn reference(reduction: Reduction, contributions: &[Vec<u8>]) -> Vec<u8> {
    let mut ranks = contributions.iter();
    let mut sum = ranks.next().cloned().unwrap_or_default();
    ranks.for_each(|contribution| reduction.combine(&mut sum, contribution));
    sum
}

impl Group {
    /// Starts an Allgather: rank r's contribution comes to be block r of `blocks` in every rank's `receive`. Without a
    /// `contribution` the own one is there already; otherwise it is copied first.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Flexio`] for buffers that are too short,
    /// [`Error::OutOfRange`] unless there is a block for each rank.
    pub fn allgather(
        &mut self,
        algorithm: Allgather,
        blocks: Blocks<'_>,
        contribution: Option<Buffer<'_>>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        self.check_count("the number of contributions", &blocks)?;
        let segments = algorithm.segments();
        let sending = match contribution {
            Some(_) => {
                let own = blocks.bytes(Span::of(self.place().rank()));
                Places::Cut(Blocks::equal(own, 1)?.split(segments)?)
            }
            None => Places::default(),
        };
        let receiving = match blocks.even() {
            Some(even) => Places::Cut(even.split(segments)?),
            None => Places::cut_at(&self.lists, (0..blocks.count()).map(|block| blocks.block(block).end), segments)?,
        };
        let bound = Bound::plain(Operation::Allgather(algorithm), sending, receiving);
        self.start(bound, Some([contribution.unwrap_or(receive), receive]), contribution.is_some())
    }

    /// Starts a Broadcast of the root's `bytes` bytes at `buffer` to the same place of all others. On trees they go in
    /// segments of `segment_bytes`.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Schedule`] for a root or radix that cannot
    /// be, [`Error::Blocks`] for empty segments or too many, [`Error::Flexio`] for a buffer that is too short.
    pub fn broadcast(
        &mut self,
        algorithm: Broadcast,
        root: u32,
        bytes: u64,
        segment_bytes: u64,
        buffer: Buffer<'_>,
    ) -> Result<(), Error> {
        let blocks = algorithm.blocks(bytes, segment_bytes, self.place().ranks())?;
        let operation = Operation::Broadcast { algorithm, root, blocks: blocks.count() };
        self.start(Bound::plain(operation, Places::default(), Places::Cut(blocks)), Some([buffer; 2]), false)
    }

    /// Starts a Barrier: it is complete on no rank before all have called this. Nothing is written to any buffer.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        let bound = Bound::plain(Operation::Barrier, Places::default(), Places::Cut(Blocks::EMPTY));
        self.start(bound, None, false)
    }

    /// Starts an Alltoall: block b of rank a's `send` comes to be block a of rank b's `receive`. The buffers do not
    /// overlap. What a rank has for another is as long as that expects.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Flexio`] for buffers that are too short,
    /// [`Error::OutOfRange`] unless there is a block for each rank or the own block has two lengths. Lengths that
    /// differ between two ranks are found when they meet: [`Error::Mismatch`].
    pub fn alltoall(
        &mut self,
        algorithm: Alltoall,
        send: (Buffer<'_>, Blocks<'_>),
        receive: (Buffer<'_>, Blocks<'_>),
    ) -> Result<(), Error> {
        self.check_count("the number of blocks", &send.1)?;
        self.check_count("the number of blocks", &receive.1)?;
        self.exchange(Operation::Alltoall(algorithm), send, receive)
    }

    /// Starts a Gather: rank r's contribution comes to be block r of the root's receive buffer; this rank's has
    /// `own_bytes`. The others need no receive buffer.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Schedule`] for a root that is no rank,
    /// [`Error::Flexio`] for buffers that are too short, [`Error::OutOfRange`] if there is not a block for each rank,
    /// no receive buffer at the root, or the own block has two lengths. Lengths that differ between two ranks are found
    /// when they meet: [`Error::Mismatch`].
    pub fn gather(
        &mut self,
        root: u32,
        own_bytes: u64,
        contribution: Buffer<'_>,
        receive: Option<(Buffer<'_>, Blocks<'_>)>,
    ) -> Result<(), Error> {
        // Where there is no receive buffer, nobody writes.
        let receive = self.at_root(root, receive, "receive")?.unwrap_or((contribution, Blocks::EMPTY));
        self.exchange(Operation::Gather { root }, (contribution, Blocks::equal(own_bytes, 1)?), receive)
    }

    /// Starts a Scatter: block r of the root's send buffer comes to rank r's `receive`; this rank's has `own_bytes`.
    /// The others need no send buffer.
    ///
    /// # Errors
    /// As [`Group::gather`].
    pub fn scatter(
        &mut self,
        root: u32,
        send: Option<(Buffer<'_>, Blocks<'_>)>,
        own_bytes: u64,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let send = self.at_root(root, send, "send")?.unwrap_or((receive, Blocks::EMPTY));
        self.exchange(Operation::Scatter { root }, send, (receive, Blocks::equal(own_bytes, 1)?))
    }

    /// Refuses a division without a block for each rank.
    fn check_count(&self, what: &'static str, blocks: &Blocks<'_>) -> Result<(), Error> {
        let (ranks, count) = (self.place().ranks(), blocks.count());
        if count != ranks {
            return Err(Error::OutOfRange { what, value: count.into(), limit: format!("{ranks}, one for each rank") });
        }
        Ok(())
    }

    /// The buffer of all blocks, if this is the root.
    fn at_root<'b>(
        &self,
        root: u32,
        buffer: Option<(Buffer<'b>, Blocks<'b>)>,
        which: &str,
    ) -> Result<Option<(Buffer<'b>, Blocks<'b>)>, Error> {
        if root != self.place().rank() {
            return Ok(None);
        }
        let Some((_, blocks)) = &buffer else {
            let limit = format!("1: the root has a {which} buffer");
            return Err(Error::OutOfRange { what: "the number of buffers", value: 0, limit });
        };
        self.check_count("the number of blocks", blocks)?;
        Ok(buffer)
    }

    /// Starts an operation from the blocks of one buffer to those of another.
    fn exchange(
        &mut self,
        operation: Operation,
        (send, sending): (Buffer<'_>, Blocks<'_>),
        (receive, receiving): (Buffer<'_>, Blocks<'_>),
    ) -> Result<(), Error> {
        let [sending, receiving] = [sending, receiving].map(|blocks| Places::divided(&self.lists, &blocks));
        self.start(Bound::plain(operation, sending, receiving), Some([send, receive]), true)
    }

    /// Starts a Reduce-Scatter: of the sum of all ranks' elements at `contribution` rank r gets block r of `shares`,
    /// which are divided in elements; see [`Group::result`]. The contribution is not needed after the call.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Blocks`] for more than 2^64 bytes or
    /// unless there is a share for each rank, [`Error::Flexio`] for a buffer that is too short.
    pub fn reduce_scatter(
        &mut self,
        algorithm: ReduceScatter,
        reduction: Reduction,
        shares: Blocks<'_>,
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        let shares = Places::divided(&self.lists, &shares);
        self.start_reduction(reduction, Kind::ReduceScatter { algorithm, shares }, contribution)
    }

    /// Starts an AllReduce: every rank gets the reduction of all ranks' `elements` elements; see [`Group::result`]. The
    /// contribution is not needed after the call.
    ///
    /// # Errors
    /// As [`Group::reduce_scatter`], and [`Error::Schedule`] or [`Error::Blocks`] for no segments or too many.
    pub fn allreduce(
        &mut self,
        algorithm: Allreduce,
        reduction: Reduction,
        elements: u64,
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        self.start_reduction(reduction, Kind::Allreduce { algorithm, elements }, contribution)
    }

    /// Starts a Reduce: the root gets the sum of all ranks' `elements` elements, the others nothing; see
    /// [`Group::result`]. The contribution is not needed after the call.
    ///
    /// # Errors
    /// As [`Group::allreduce`], and [`Error::Schedule`] for a root that is no rank.
    pub fn reduce(
        &mut self,
        algorithm: Reduce,
        root: u32,
        reduction: Reduction,
        elements: u64,
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        self.start_reduction(reduction, Kind::Reduce { algorithm, root, elements }, contribution)
    }

    fn start_reduction(&mut self, reduction: Reduction, kind: Kind, contribution: Buffer<'_>) -> Result<(), Error> {
        let bound = Bound::reduction(Shape { reduction, kind }, self.place())?;
        self.start(bound, Some([contribution; 2]), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexcast_reduce::{DataType, Operator};

    #[test]
    fn the_reference_adds_in_the_order_of_ranks() {
        let sum = |data_type| Reduction::new(Operator::Sum, data_type).expect("sums of numbers");
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        let all = [bytes(&[1.0, 1e30]), bytes(&[2.5, 1.0]), bytes(&[-0.5, -1e30])];
        assert_eq!(reference(sum(DataType::F32), &all), bytes(&[3.0, 0.0]));
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        assert_eq!(reference(sum(DataType::I32), &[bytes(&[i32::MAX, 7]), bytes(&[1, -8])]), bytes(&[i32::MIN, -1]));
        assert!(reference(sum(DataType::I32), &[]).is_empty());
    }
}
