//! An aggregator's side of a shard.

use flexcast_proto::sparse::{Added, Aggregator, AggregatorLimits, Incoming, Order, Parameters, Received};

use super::{DISPLACEMENT_BYTES, Result, Spare, refused};
use crate::sums::{Adder, incoming};
use flexcast_reduce::Reduction;

/// One shard, as its aggregator sees it.
#[derive(Debug)]
pub(super) struct Sum {
    aggregator: Aggregator,
    sums: Transmit,
    /// By rank.
    receives: Vec<Receive>,
}

/// Transmit slots, which take turns.
#[derive(Debug)]
struct Transmit {
    slots: [Vec<u8>; 2],
    /// Bytes of the answer in each.
    lengths: [usize; 2],
    /// The one with the last answer.
    answered: u32,
}

/// A worker's receive slot. It is there from the first byte of a message until the message is added.
#[derive(Debug, Default)]
struct Receive {
    /// Empty: none.
    slot: Vec<u8>,
    /// Bytes of a message that have come.
    come: u64,
    /// Bytes of the last whole one.
    bytes: usize,
}

impl Receive {
    fn message(&self) -> &[u8] {
        &self.slot[..self.bytes]
    }
}

/// What blocks are added by.
pub(super) type With = (Parameters, Reduction);

impl Transmit {
    /// Carries out what a message does; whether there is an answer.
    fn add(&mut self, added: &Added, message: &[u8], (parameters, reduction): With) -> bool {
        let block_bytes = parameters.block_bytes() as usize;
        let [even, odd] = &mut self.slots;
        added.additions.apply(&mut Adder { slots: [even, odd], message, block_bytes, reduction });
        let Some(answer) = &added.answer else { return false };
        let (slot, sums) = (answer.slot as usize & 1, answer.sums as usize * block_bytes);
        let indices = parameters.index_bytes() as usize;
        self.slots[slot][sums..sums + indices].copy_from_slice(&answer.next.to_bytes()[..indices]);
        (self.lengths[slot], self.answered) = (sums + indices, answer.slot);
        true
    }
}

impl Sum {
    pub(super) fn new(
        parameters: Parameters,
        blocks: u32,
        order: Order,
        limits: AggregatorLimits,
        spare: &mut Spare,
    ) -> Result<Self> {
        let slots = [spare.take(parameters)?, spare.take(parameters)?];
        Ok(Self {
            aggregator: Aggregator::new(parameters, blocks, order, limits, 0).map_err(refused)?,
            sums: Transmit { slots, lengths: [0; 2], answered: 0 },
            receives: (0..parameters.workers()).map(|_| Receive::default()).collect(),
        })
    }

    /// Makes room for a message of a rank; false if there is no memory.
    pub(super) fn open(&mut self, from: u32, parameters: Parameters, spare: &mut Spare) -> bool {
        let Some(own) = self.receives.get_mut(from as usize) else { return false };
        if own.slot.is_empty() {
            match spare.take(parameters) {
                Ok(slot) => own.slot = slot,
                Err(error) => {
                    tracing::error!(from, %error, "no room for its message");
                    return false;
                }
            }
        }
        true
    }

    /// How much of a message of so many bytes from a rank has come; none if there cannot be one.
    pub(super) fn expects(&self, from: u32, total: u64, parameters: Parameters) -> Option<u64> {
        let (least, block) =
            (u64::from(parameters.index_bytes()) + DISPLACEMENT_BYTES as u64, u64::from(parameters.block_bytes()));
        let blocks = total.checked_sub(least)?;
        let fits =
            blocks.is_multiple_of(block) && blocks <= block * u64::from(self.aggregator.summation().global().len());
        let come = self.receives.get(from as usize)?.come;
        (fits && !self.aggregator.is_complete() && !self.aggregator.has_arrived(from)).then_some(come)
    }

    pub(super) fn place(&mut self, from: u32, at: u64) -> &mut [u8] {
        let own = self.receives.get_mut(from as usize);
        own.and_then(|own| own.slot.get_mut(at as usize..)).unwrap_or_default()
    }

    pub(super) fn note(&mut self, from: u32, end: u64) {
        if let Some(own) = self.receives.get_mut(from as usize) {
            own.come = end;
        }
    }

    /// The message in a rank's receive slot is whole. `Some(true)`: there is an answer; none: it cannot be.
    pub(super) fn received(&mut self, from: u32, total: u64, with: With, spare: &mut Spare) -> Option<bool> {
        let Self { aggregator, sums, receives } = self;
        let own = receives.get_mut(from as usize)?;
        (own.come, own.bytes) = (0, total as usize);
        let incoming = read(aggregator, own.message(), with.0)?;
        match aggregator.handle_reliable(from, &incoming, 0).ok()? {
            Received::Added(added) => {
                let answered = sums.add(&added, own.message(), with);
                spare.give(std::mem::take(&mut own.slot));
                Some(answered)
            }
            // With the order of ranks it waits for those below.
            Received::Held => {
                let mut answered = false;
                while let Some(rank) = aggregator.next_rank() {
                    let held = receives.get_mut(rank as usize)?;
                    let incoming = read(aggregator, held.message(), with.0)?;
                    let added = aggregator.add_held(rank, &incoming, 0).ok()?;
                    answered |= sums.add(&added, held.message(), with);
                    spare.give(std::mem::take(&mut held.slot));
                }
                Some(answered)
            }
            Received::Waiting { .. } | Received::Again(_) | Received::Old => None,
        }
    }

    /// The message of this rank's own worker, which lies in that one's memory.
    pub(super) fn take(
        &mut self,
        own: u32,
        message: &[u8],
        order: Order,
        with: With,
        spare: &mut Spare,
    ) -> Option<bool> {
        if order == Order::Rank {
            // It may have to wait.
            if !self.open(own, with.0, spare) {
                return None;
            }
            self.place(own, 0).get_mut(..message.len())?.copy_from_slice(message);
            return self.received(own, message.len() as u64, with, spare);
        }
        let incoming = read(&self.aggregator, message, with.0)?;
        match self.aggregator.handle_reliable(own, &incoming, 0).ok()? {
            Received::Added(added) => Some(self.sums.add(&added, message, with)),
            _ => None,
        }
    }

    /// The number of the transmit slot with the last answer, and the answer.
    pub(super) fn answer(&self) -> (u32, &[u8]) {
        (self.sums.answered, self.slot(self.sums.answered))
    }

    /// The answer in a transmit slot.
    pub(super) fn slot(&self, number: u32) -> &[u8] {
        let at = number as usize & 1;
        &self.sums.slots[at][..self.sums.lengths[at]]
    }

    /// The lowest rank of which something is missing.
    pub(super) fn missing(&self) -> Option<u32> {
        self.aggregator.missing()
    }

    pub(super) fn give_back(self, spare: &mut Spare) {
        self.sums
            .slots
            .into_iter()
            .chain(self.receives.into_iter().map(|own| own.slot))
            .filter(|slot| !slot.is_empty())
            .for_each(|slot| spare.give(slot));
    }

    pub(super) fn is_complete(&self) -> bool {
        self.aggregator.is_complete()
    }
}

/// What a message of the current iteration says; none if it cannot be one.
fn read(aggregator: &Aggregator, message: &[u8], parameters: Parameters) -> Option<Incoming> {
    let (payload, displacement) = message.split_last_chunk::<DISPLACEMENT_BYTES>()?;
    incoming(aggregator, payload, u32::from_le_bytes(*displacement), parameters)
}
