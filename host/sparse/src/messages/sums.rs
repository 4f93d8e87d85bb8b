//! An aggregator's side of an operation: its own shards, whoever it is (a rank, or an external process).

use flexcast_proto::sparse::{AggregatorLimits, Order};

use super::sum::{Sum, With};
use super::{Result, Spare};
use crate::options::Split;

/// The shards that one aggregator sums up.
#[derive(Debug)]
pub struct Sums {
    sums: Vec<Sum>,
    /// Number of the first one.
    first: u32,
    order: Order,
    with: With,
    spare: Spare,
}

impl Sums {
    /// The shards of aggregator number `own`; none if there is no such one, or nothing to sum up.
    ///
    /// # Errors
    /// No memory for the slots.
    pub fn new(split: &Split, own: Option<u32>, order: Order, mut spare: Spare) -> Result<Self> {
        // Whoever drives the operation has bounds of its own.
        let limits = AggregatorLimits { iteration_ps: u64::MAX, linger_ps: 0 };
        let with = (split.parameters, split.reduction);
        let mut sums = Vec::new();
        for (_, shard) in split.of(own) {
            sums.push(Sum::new(split.parameters, shard.blocks(), order, limits, &mut spare)?);
        }
        Ok(Self { sums, first: own.unwrap_or(0) * split.each, order, with, spare })
    }

    fn sum(&mut self, shard: u32) -> Option<&mut Sum> {
        let at = self.place_of(shard)?;
        self.sums.get_mut(at)
    }

    fn place_of(&self, shard: u32) -> Option<usize> {
        shard.checked_sub(self.first).map(|at| at as usize)
    }

    /// A part of a message for a shard begins to come. How much of it has come before; none if there cannot be such a
    /// message.
    pub fn begin(&mut self, from: u32, shard: u32, total: u64) -> Option<u64> {
        let at = self.place_of(shard)?;
        let (parameters, Self { sums, spare, .. }) = (self.with.0, self);
        let sum = sums.get_mut(at)?;
        let come = sum.expects(from, total, parameters)?;
        sum.open(from, parameters, spare).then_some(come)
    }

    /// Where the bytes of a message from number `at` on belong.
    pub fn place(&mut self, from: u32, shard: u32, at: u64) -> &mut [u8] {
        self.sum(shard).map_or(&mut [], |sum| sum.place(from, at))
    }

    /// A part of a message has come, up to `end` of `total` bytes. `Some(true)`: there is an answer; none: it cannot
    /// be.
    pub fn came(&mut self, from: u32, shard: u32, (end, total): (u64, u64)) -> Option<bool> {
        let at = self.place_of(shard)?;
        let Self { sums, spare, with, .. } = self;
        let sum = sums.get_mut(at)?;
        sum.note(from, end);
        if end < total { Some(false) } else { sum.received(from, total, *with, spare) }
    }

    /// The message of the aggregator's own worker, which lies in that one's memory.
    pub(crate) fn take(&mut self, own: u32, shard: u32, message: &[u8]) -> Option<bool> {
        let at = self.place_of(shard)?;
        let Self { sums, spare, with, order, .. } = self;
        sums.get_mut(at)?.take(own, message, *order, *with, spare)
    }

    /// The last answer of a shard, and its place: the number of the own shard, and of the transmit slot.
    pub fn answer(&self, shard: u32) -> Option<((u32, u32), &[u8])> {
        let at = self.place_of(shard)?;
        let (slot, answer) = self.sums.get(at)?.answer();
        Some(((at as u32, slot), answer))
    }

    /// The answer at such a place.
    pub fn at(&self, (at, slot): (u32, u32)) -> &[u8] {
        self.sums.get(at as usize).map_or(&[], |sum| sum.slot(slot))
    }

    /// The lowest rank that owes a message of a shard that is not complete.
    pub fn missing(&self) -> Option<u32> {
        self.sums.iter().filter(|sum| !sum.is_complete()).find_map(Sum::missing)
    }

    /// Whether all is summed up.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sums.iter().all(Sum::is_complete)
    }

    /// Its memory.
    pub fn into_spare(self) -> Spare {
        let mut spare = self.spare;
        self.sums.into_iter().for_each(|sum| sum.give_back(&mut spare));
        spare
    }
}
