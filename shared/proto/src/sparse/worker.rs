//! State machine of a worker: one shard of one sparse AllReduce.

use thiserror::Error;

use super::displacement::{Displacement, Omitted};
use super::parameters::{MAX_BLOCKS, ParameterError, Parameters};
use super::ring::Slots;
use super::votes::{Votes, VotesError};

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Write a sum to the array. Its slot is used again after the next call of [`Worker::poll`].
    Store {
        /// The block of the shard.
        block: u32,
        /// Its place among the blocks of the answer.
        position: u32,
        /// The ring's slot that has received it.
        slot: u32,
    },
    /// Load blocks from the array, from this one on, until one is not zero, and report it by [`Worker::found`]. Each is
    /// loaded into the same slot: a zero block is overwritten by the next.
    Scan {
        /// The first block to scan.
        from: u32,
        /// The ring's slot.
        slot: u32,
    },
    /// Send [`Worker::message`], once. An answer may come from now on.
    Send,
    /// Nothing, until [`Worker::answer`].
    Wait,
    /// Nothing any more: all sums are in the array.
    Complete,
}

/// A message of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contribution {
    /// Its number; 0 is the one that only votes.
    pub iteration: u32,
    /// Which global blocks it holds: the immediate.
    pub displacement: Displacement,
    /// The ring's slots with these blocks, in the order of their indices.
    pub send: Slots,
    /// The indices behind the blocks: votes for the next iteration.
    pub votes: Votes,
    /// The ring's slots that receive the sums of the answer. Indices of the next iteration follow.
    pub receive: Slots,
}

/// What has become of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answered {
    /// It is the one that was awaited.
    New,
    /// One of an earlier iteration, a second time, which has changed nothing.
    Old,
}

/// An event that a worker refuses. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WorkerError {
    /// An answer before its message.
    #[error(
        "answer of iteration {iteration}, but this worker has sent no message of it and is at {current}: an aggregator \
         answers only what has come"
    )]
    Early {
        /// Iteration of the answer.
        iteration: u32,
        /// That of the worker.
        current: u32,
    },
    /// An answer of another number of blocks.
    #[error(
        "answer with {found} blocks, but the iteration has {expected}: give all ranks the same array and parameters"
    )]
    Sums {
        /// Blocks of the answer.
        found: u32,
        /// Global blocks of the iteration.
        expected: u32,
    },
    /// Global indices that cannot be.
    #[error(transparent)]
    Votes(#[from] VotesError),
    /// The next global indices have passed over a block that this worker has voted for.
    #[error(
        "the aggregator has passed over block {block}, for which this worker has voted: a message of it is lost or was \
         changed"
    )]
    Omitted {
        /// The block.
        block: u32,
    },
    /// A block was found that was not to be searched.
    #[error(
        "block {block} found, but blocks {from} to {blocks} (exclusive) are to be scanned, and only while a scan is \
         due"
    )]
    Found {
        /// The block.
        block: u32,
        /// The first one to scan.
        from: u32,
        /// Blocks of the shard.
        blocks: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Sums are to be written, the first ones are.
    Store(u32),
    Scan,
    Send,
    Wait,
    Complete,
}

/// One worker's part of a shard. It reads each block of the array once, in order, and never goes back: every non-zero
/// block that it has up to the last global index is one of its candidates, and the first ones of them are those it
/// sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    blocks: u32,
    /// The first block that was not scanned.
    next: u32,
    iteration: u32,
    phase: Phase,
    displacement: Displacement,
    send: Slots,
    candidates: Votes,
    /// Blocks whose sums the answer to the next message, or the message under way, brings.
    global: Votes,
    /// Of the answer that is being written to the array.
    sums: Votes,
    receive: Slots,
}

impl Worker {
    /// A worker before its first message, for a shard of `blocks` blocks.
    ///
    /// # Errors
    /// The shard has more than [`MAX_BLOCKS`](super::MAX_BLOCKS).
    pub const fn new(parameters: Parameters, blocks: u32) -> Result<Self, ParameterError> {
        if blocks as u64 > MAX_BLOCKS {
            return Err(ParameterError::Blocks { blocks: blocks as u64 });
        }
        let ring = 2 * parameters.blocks_per_message();
        let (none, nowhere) = (Votes::empty(parameters), Slots::new(0, 0, ring));
        Ok(Self {
            blocks,
            next: 0,
            iteration: 0,
            phase: Phase::Scan,
            displacement: Displacement::NOTHING,
            send: nowhere,
            candidates: none,
            global: none,
            sums: none,
            receive: nowhere,
        })
    }

    /// What is to be done next. Sums come before the scan that uses their slots again; everything that the caller does
    /// for one step is done before it asks for the next.
    #[inline]
    pub fn poll(&mut self) -> Step {
        loop {
            match self.phase {
                Phase::Store(position) => match self.sums.indices().get(position as usize) {
                    Some(&block) => {
                        self.phase = Phase::Store(position + 1);
                        return Step::Store { block, position, slot: self.receive.get(position) };
                    }
                    None if self.global.is_empty() => self.phase = Phase::Complete,
                    None => self.phase = Phase::Scan,
                },
                Phase::Scan if self.candidates.is_full() || self.next == self.blocks => self.phase = Phase::Send,
                Phase::Scan => {
                    return Step::Scan { from: self.next, slot: self.held().followed_by(1).get(0) };
                }
                Phase::Send => {
                    self.phase = Phase::Wait;
                    return Step::Send;
                }
                Phase::Wait => return Step::Wait,
                Phase::Complete => return Step::Complete,
            }
        }
    }

    /// The scan has ended at a block that is not zero, which is in the slot; or at the end of the shard.
    ///
    /// # Errors
    /// No scan is due, or the block is not one of those to scan.
    #[inline]
    pub fn found(&mut self, block: Option<u32>) -> Result<(), WorkerError> {
        let from = self.next;
        let place = block.unwrap_or(self.blocks);
        let due = matches!(self.phase, Phase::Scan) && !self.candidates.is_full() && from < self.blocks;
        if !due || place < from || (block.is_some() && place >= self.blocks) {
            return Err(WorkerError::Found { block: place, from, blocks: self.blocks });
        }
        match block {
            Some(block) => {
                self.candidates.push(block);
                self.next = block + 1;
            }
            None => self.next = self.blocks,
        }
        Ok(())
    }

    /// The slots of the candidates.
    #[inline]
    const fn held(&self) -> Slots {
        self.send.followed_by(self.candidates.len())
    }

    /// The message under way, the same until it is answered; none while there is none.
    #[must_use]
    pub fn message(&self) -> Option<Contribution> {
        matches!(self.phase, Phase::Wait).then(|| Contribution {
            iteration: self.iteration,
            displacement: self.displacement,
            send: self.send,
            votes: self.candidates,
            receive: self.held().followed_by(self.global.len()),
        })
    }

    /// An answer has come, whose `sums` blocks are in the slots that [`Contribution::receive`] names, with the global
    /// indices of the next iteration behind them. On a reliable connection its number is [`Worker::iteration`].
    ///
    /// # Errors
    /// It is not the answer to a message of this worker.
    pub fn answer(&mut self, iteration: u32, sums: u32, next: &Votes) -> Result<Answered, WorkerError> {
        if iteration < self.iteration {
            return Ok(Answered::Old);
        }
        let current = self.iteration;
        let Some(message) = self.message().filter(|_| iteration == current) else {
            return Err(WorkerError::Early { iteration, current });
        };
        if sums != self.global.len() {
            return Err(WorkerError::Sums { found: sums, expected: self.global.len() });
        }
        if next.width() != self.global.width() {
            return Err(VotesError::Count { found: next.width(), expected: self.global.width() }.into());
        }
        next.check_after(&self.global, self.blocks)?;
        let (displacement, sent) =
            Displacement::of(&self.candidates, next).map_err(|Omitted(block)| WorkerError::Omitted { block })?;
        self.displacement = displacement;
        self.send = self.send.followed_by(sent);
        self.receive = message.receive;
        self.candidates.drop_first(sent);
        self.sums = core::mem::replace(&mut self.global, *next);
        self.phase = Phase::Store(0);
        self.iteration += 1;
        Ok(Answered::New)
    }

    /// The global blocks of the message under way: its displacement is about them, and its answer brings their sums.
    #[must_use]
    pub const fn global(&self) -> &Votes {
        &self.global
    }

    /// Number of the message under way, or of the next one.
    #[must_use]
    pub const fn iteration(&self) -> u32 {
        self.iteration
    }

    /// Whether all sums are in the array.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Complete)
    }
}
