//! Arithmetic of an aggregator: blocks of a message go straight from its receive slot to a transmit slot.

use flexcast_proto::sparse::{Aggregator, Incoming, Parameters, PartialSums, split};

use flexcast_reduce::Reduction;

/// A message, and the transmit slots to which its blocks are added.
pub(crate) struct Adder<'b> {
    pub(crate) slots: [&'b mut [u8]; 2],
    pub(crate) message: &'b [u8],
    pub(crate) block_bytes: usize,
    pub(crate) reduction: Reduction,
}

impl Adder<'_> {
    fn block(&mut self, slot: u32, place: u32) -> &mut [u8] {
        &mut self.slots[slot as usize & 1][place as usize * self.block_bytes..][..self.block_bytes]
    }

    const fn start(&self, packed: u32) -> usize {
        packed as usize * self.block_bytes
    }
}

impl PartialSums for Adder<'_> {
    fn copy(&mut self, slot: u32, place: u32, packed: u32) {
        let (message, start) = (self.message, self.start(packed));
        let len = self.block_bytes;
        self.block(slot, place).copy_from_slice(&message[start..start + len]);
    }

    fn add(&mut self, slot: u32, place: u32, packed: u32) {
        let (message, start, reduction) = (self.message, self.start(packed), self.reduction);
        let len = self.block_bytes;
        reduction.combine(self.block(slot, place), &message[start..start + len]);
    }

    fn clear(&mut self, slot: u32, place: u32) {
        self.block(slot, place).fill(0);
    }
}

/// What a message of the current iteration says: blocks and indices; none if it cannot be one.
pub(crate) fn incoming(
    aggregator: &Aggregator,
    payload: &[u8],
    displacement: u32,
    parameters: Parameters,
) -> Option<Incoming> {
    let blocks = aggregator.summation().blocks_of(displacement).ok()?;
    let (_, votes) = split(parameters, payload, blocks).ok()?;
    Some(Incoming { displacement, blocks, votes })
}
