//! Reduce-Scatter, AllReduce and Reduce: the host adds what the cards bring. The memory to which peers write is the
//! group's.

use std::ops::Range;

use flexcast_proto::Summary;
use flexcast_proto::p2p::{Allreduce, Blocks, Memory, Part, Reduce, ReduceScatter, Start};
use flexio::{Access, HostBuffer, MemoryRegion};

use super::announcement::OperationDescriptor;
use super::group::sized;
use super::operation::{Buffer, Division, Pieces, Running, offset, place};
use super::shape::{Kind, Shape};
use super::{Error, Group};
use crate::op::buffer::zeroes;
use crate::op::reduce::Reduction;

/// The reduction of contributions of one length by one core, in the order of ranks: what the others are compared with.
#[must_use]
pub fn reference(reduction: Reduction, contributions: &[Vec<u8>]) -> Vec<u8> {
    let mut ranks = contributions.iter();
    let mut sum = ranks.next().cloned().unwrap_or_default();
    ranks.for_each(|contribution| reduction.combine(&mut sum, contribution));
    sum
}

/// What a group needs for reductions.
#[derive(Debug, Default)]
pub(super) struct Reducing {
    /// The last one is in use: contribution, temporary memory, result. Shorter ones from before are kept, at most as
    /// much again: what a peer repeats, because an answer was lost, goes to where it went.
    work: Vec<MemoryRegion>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    reduction: Reduction,
    /// Where the result is.
    result: Range<u64>,
    /// The two operands.
    scratch: [Vec<u8>; 2],
}

impl Reducing {
    /// Combines what has come.
    pub(super) fn combine(&mut self, running: &mut Running) -> Result<(), Error> {
        let (Some(region), Some(current)) = (self.work.last(), &mut self.current) else { return Ok(()) };
        while let Some(step) = running.schedule.reduce() {
            let Some(shape) = running.shape() else { return Ok(()) };
            let layout = shape.layout(running.schedule.place())?;
            for (operand, part) in current.scratch.iter_mut().zip([step.left, step.right]) {
                let range = place(&layout, part);
                operand.resize((range.end - range.start) as usize, 0);
                region.read(range.start as usize, operand)?;
            }
            let [left, right] = &mut current.scratch;
            current.reduction.combine(left, right);
            region.write(place(&layout, step.to).start as usize, left)?;
        }
        Ok(())
    }
}

impl Group {
    /// Starts a Reduce-Scatter: of the sum of all ranks' `elements` elements at `contribution` each rank gets a share
    /// of ⌈`elements` / P⌉, the last ones less; see [`Group::result`]. The contribution is not needed after the call.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Blocks`] for more than 2^64 bytes,
    /// [`Error::Flexio`] for a buffer that is too short.
    pub fn reduce_scatter(
        &mut self,
        algorithm: ReduceScatter,
        reduction: Reduction,
        elements: u64,
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        let shares = Pieces::Even(Blocks::shares(elements, self.place().ranks())?);
        self.start_reduction(Kind::ReduceScatter { algorithm, shares }, (reduction, None), contribution)
    }

    /// The same for shares of any length: that of rank r ends at element `ends[r]` of the contribution, where the next
    /// begins.
    ///
    /// # Errors
    /// As [`Group::reduce_scatter`], and [`Error::Blocks`] for ends that go back or unless there is one for each rank.
    pub fn reduce_scatterv(
        &mut self,
        algorithm: ReduceScatter,
        reduction: Reduction,
        ends: &[u64],
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        let shares = Pieces::Ends(ends.to_vec());
        self.start_reduction(Kind::ReduceScatter { algorithm, shares }, (reduction, None), contribution)
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
        self.start_reduction(Kind::Allreduce { algorithm, elements }, (reduction, None), contribution)
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
        self.start_reduction(Kind::Reduce { algorithm, root, elements }, (reduction, None), contribution)
    }

    /// What the last reduction has given this rank; nothing before the first one, or while one is under way.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn result(&self) -> Result<Vec<u8>, Error> {
        let (Some(region), Some(current), true) =
            (self.reducing.work.last(), &self.reducing.current, self.is_complete())
        else {
            return Ok(Vec::new());
        };
        let mut bytes = zeroes((current.result.end - current.result.start) as usize)?;
        region.read(current.result.start as usize, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies what the last reduction has given this rank to the beginning of a buffer; nothing as with
    /// [`Group::result`].
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub(crate) fn copy_result(&mut self, to: &Buffer<'_>) -> Result<(), Error> {
        let Self { reducing, scratch, .. } = self;
        let (Some(region), Some(current)) = (reducing.work.last(), &reducing.current) else { return Ok(()) };
        let Range { start, end } = current.result;
        Buffer { region, offset: 0 }.copy(start, end - start, to, 0, sized(scratch))
    }

    /// Starts a reduction; of a communicator's call with what is compared of it.
    pub(super) fn start_reduction(
        &mut self,
        kind: Kind,
        (reduction, call): (Reduction, Option<&Summary>),
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        let shape = Shape { kind, element_bytes: reduction.element_bytes() };
        let operation = shape.operation();
        let schedule = self.schedule(operation)?;
        let layout = shape.layout(self.place())?;
        let own = layout.send.total_bytes();
        contribution.check(own)?;
        let result = offset(&layout, Memory::Receive);
        let result = result..result.saturating_add(layout.receive.total_bytes());
        let len = (result.end as usize).max(1);
        let had = self.reducing.work.last().map_or(0, MemoryRegion::len);
        if had < len {
            let memory = HostBuffer::zeroed(len.max(had.saturating_mul(2)))?;
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            self.reducing.work.push(MemoryRegion::register(&self.pd, memory, access)?);
        }
        let Some(region) = self.reducing.work.last() else { return Ok(()) };
        let (buffer, scratch) = (Buffer { region, offset: 0 }, sized(&mut self.scratch));
        contribution.copy(0, own, &buffer, 0, scratch)?;
        if let Some(Start { from, to }) = schedule.start() {
            let [from, to] = [Part::send(from), Part::receive(to)].map(|part| place(&layout, part));
            buffer.copy(from.start, from.end - from.start, &buffer, to.start, scratch)?;
        }
        let descriptor = call.map_or_else(
            || OperationDescriptor::new(self.next(), operation, Some(reduction), &layout.send),
            |summary| OperationDescriptor::of_call(self.next(), summary),
        );
        self.reducing.current = Some(Current { reduction, result, scratch: [Vec::new(), Vec::new()] });
        let running = Running::reduction(schedule, descriptor, &buffer, shape);
        self.begin(running, Division { pieces: Pieces::Even(Blocks::EMPTY), segments: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::reduce::{DataType, Operator};

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
