//! Scan of a shard by its worker: each block of the array is scanned once, in order, a part at a time.

use std::ops::Range;

use flexcast_proto::sparse::{ParameterError, Parameters, Shard, Step, Worker};

/// What a turn has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// An answer is waited for, or nothing any more.
    Idle,
    Moved,
    /// A message is ready.
    Send,
}

/// What the steps of a worker do with memory.
pub(crate) trait Places {
    type Error;

    /// Writes a sum from its slot to a block of the array.
    fn store(&mut self, block: Range<u64>, slot: u32) -> Result<(), Self::Error>;

    /// Loads a block of the array into a slot. Returns whether any bit of it is set.
    fn load(&mut self, block: Range<u64>, slot: u32) -> Result<bool, Self::Error>;

    /// These bytes of the array are zero, as far as this worker has them: unless another one has some, nothing else
    /// comes for them.
    fn skip(&mut self, zeros: Range<u64>) -> Result<(), Self::Error>;

    /// The block that was loaded last is sent.
    fn found(&mut self, block: u32);
}

/// A worker and the part of its shard that it has scanned.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) worker: Worker,
    pub(crate) shard: Shard,
    /// Blocks before this one have been scanned.
    scanned: u32,
}

impl Scan {
    /// # Errors
    /// The shard has too many blocks.
    pub(crate) fn new(parameters: Parameters, shard: Shard) -> Result<Self, ParameterError> {
        Ok(Self { worker: Worker::new(parameters, shard.blocks())?, shard, scanned: 0 })
    }

    /// Goes on until a message is ready, an answer is needed, or `left` bytes have been scanned.
    ///
    /// # Errors
    /// That of the memory.
    pub(crate) fn turn<P: Places>(&mut self, places: &mut P, left: &mut usize) -> Result<Turn, P::Error> {
        let mut moved = false;
        while *left > 0 {
            match self.worker.poll() {
                Step::Store { block, slot, .. } => {
                    places.store(self.shard.block(block), slot)?;
                    moved = true;
                }
                Step::Scan { from, slot } => {
                    self.scan(from.max(self.scanned), slot, places, left)?;
                    moved = true;
                }
                Step::Send => return Ok(Turn::Send),
                Step::Wait | Step::Complete => break,
            }
        }
        Ok(if moved { Turn::Moved } else { Turn::Idle })
    }

    /// Scans blocks from `first` on until one is not zero.
    fn scan<P: Places>(&mut self, first: u32, slot: u32, places: &mut P, left: &mut usize) -> Result<(), P::Error> {
        let blocks = self.shard.blocks();
        let (mut block, mut is_found) = (first, false);
        while block < blocks && *left > 0 {
            let range = self.shard.block(block);
            *left = left.saturating_sub((range.end - range.start) as usize);
            is_found = places.load(range, slot)?;
            if is_found {
                break;
            }
            block += 1;
        }
        places.skip(self.shard.block(first).start..self.shard.block(block).start)?;
        self.scanned = block;
        if is_found {
            places.found(block);
        }
        if is_found || block == blocks {
            // One of the blocks that were to be scanned.
            let _ = self.worker.found(is_found.then_some(block));
        }
        Ok(())
    }
}
