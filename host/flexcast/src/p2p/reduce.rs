//! Reduce-Scatter and AllReduce: the host combines what the cards bring. The work buffer, to which peers write, is the group's.

use flexcast_proto::p2p::{self, Allreduce, Blocks, Operation, Schedule, Start};
use flexio::{Access, HostBuffer, MemoryRegion};

use super::announcement::OperationDescriptor;
use super::operation::{Buffer, Division, Pieces, Running};
use super::{Error, Group};
use crate::api::buffer::zeroes;
use crate::reduce::Reduction;

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
    /// The last one is in use. Shorter ones from before are kept, at most as much again: what a peer repeats, because an answer was lost, goes
    /// to where it went.
    work: Vec<MemoryRegion>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    reduction: Reduction,
    contribution: Vec<u8>,
    /// Division of the work buffer.
    work: Blocks<'static>,
    /// Where the result is.
    result: std::ops::Range<u64>,
    /// What is added, and to what.
    scratch: [Vec<u8>; 2],
}

impl Reducing {
    /// Does what is to be done with a message that has arrived.
    pub(super) fn arrived(&mut self, schedule: &Schedule, tag: u32) -> Result<(), Error> {
        let Some(step) = schedule.reduction(tag) else { return Ok(()) };
        let (Some(region), Some(current)) = (self.work.last(), &mut self.current) else { return Ok(()) };
        let Some(arrival) = schedule.receive(tag) else { return Ok(()) };
        // Blocks of reductions never wrap round.
        let [from, _] = current.work.ranges(arrival.blocks);
        let [added, sum] = &mut current.scratch;
        let to = match step {
            p2p::Reduction::AddOwn => {
                added.clear();
                added.extend_from_slice(&current.contribution[from.start as usize..from.end as usize]);
                from
            }
            p2p::Reduction::AddTo(span) => {
                added.resize((from.end - from.start) as usize, 0);
                region.read(from.start as usize, added)?;
                current.work.ranges(span)[0].clone()
            }
        };
        sum.resize(added.len(), 0);
        region.read(to.start as usize, sum)?;
        current.reduction.combine(sum, added);
        Ok(region.write(to.start as usize, sum)?)
    }
}

impl Group {
    /// Starts a Reduce-Scatter around the ring: of the reduction of all ranks' `elements` elements at `contribution` each rank gets a share of ⌈`elements` /
    /// P⌉, the last ones less; see [`Group::result`]. The contribution is not needed after the call.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Blocks`] for more than 2^64 bytes, [`Error::Flexio`] for a
    /// buffer that is too short.
    pub fn reduce_scatter(
        &mut self,
        reduction: Reduction,
        elements: u64,
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        let blocks = Allreduce::Ring.contribution(elements, reduction.element_bytes(), self.place().ranks())?;
        let result = blocks.block(self.place().rank());
        self.reduce(Operation::ReduceScatter, reduction, (blocks, blocks), result, contribution)
    }

    /// Starts an AllReduce: every rank gets the reduction of all ranks' `elements` elements; see [`Group::result`]. The contribution is not
    /// needed after the call.
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
        let (bytes, ranks) = (reduction.element_bytes(), self.place().ranks());
        let blocks = algorithm.contribution(elements, bytes, ranks)?;
        let work = algorithm.work(elements, bytes, ranks)?;
        let result = work.total_bytes() - blocks.total_bytes()..work.total_bytes();
        self.reduce(Operation::Allreduce(algorithm), reduction, (blocks, work), result, contribution)
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

    fn reduce(
        &mut self,
        operation: Operation,
        reduction: Reduction,
        (blocks, work): (Blocks<'static>, Blocks<'static>),
        result: std::ops::Range<u64>,
        contribution: Buffer<'_>,
    ) -> Result<(), Error> {
        let schedule = self.schedule(operation)?;
        contribution.check(blocks.total_bytes())?;
        let mut own = zeroes(blocks.total_bytes() as usize)?;
        contribution.region.read(contribution.offset as usize, &mut own)?;
        let len = (work.total_bytes() as usize).max(1);
        let had = self.reducing.work.last().map_or(0, MemoryRegion::len);
        if had < len {
            let memory = HostBuffer::zeroed(len.max(had.saturating_mul(2)))?;
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            self.reducing.work.push(MemoryRegion::register(&self.pd, memory, access)?);
        }
        let Some(region) = self.reducing.work.last() else { return Ok(()) };
        for Start { from, to } in schedule.starts() {
            let ([from, _], [to, _]) = (blocks.ranges(from), work.ranges(to));
            region.write(to.start as usize, &own[from.start as usize..from.end as usize])?;
        }
        let buffer = Buffer { region, offset: 0 };
        let descriptor = OperationDescriptor::new(self.next(), operation, Some(reduction), &work);
        let running = Running::new(schedule, descriptor, &buffer);
        let scratch = [Vec::new(), Vec::new()];
        self.reducing.current = Some(Current { reduction, contribution: own, work, result, scratch });
        self.begin(running, Division { pieces: Pieces::Even(work), segments: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::{DataType, Operator};

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
