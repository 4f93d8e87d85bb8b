//! Sum of one shard at the aggregator: votes merged and blocks added as messages come. Nothing here depends on the
//! number of workers in size: who has sent what is the business of [`Aggregator`](super::Aggregator).

use thiserror::Error;

use super::displacement::{Displacement, DisplacementError, lowest};
use super::parameters::{MAX_BLOCKS, ParameterError, Parameters};
use super::votes::{Votes, VotesError};

/// The numeric part, which the caller has: blocks of a message are added to those of a transmit slot.
pub trait PartialSums {
    /// Overwrites block `place` of the transmit slot with packed block `packed` of the message.
    fn copy(&mut self, slot: u32, place: u32, packed: u32);

    /// Adds packed block `packed` of the message to block `place` of the transmit slot.
    fn add(&mut self, slot: u32, place: u32, packed: u32);

    /// Fills block `place` of the transmit slot with zeros.
    fn clear(&mut self, slot: u32, place: u32);
}

/// A message of a worker, without the blocks themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incoming {
    /// Which global blocks it leaves out, as its immediate or its header says.
    pub displacement: u32,
    /// Blocks that it holds.
    pub blocks: u32,
    /// Its indices.
    pub votes: Votes,
}

/// What one message does to a transmit slot. Bit j is block j of the slot; the blocks of the message follow one another
/// in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Additions {
    /// The transmit slot, 0 or 1.
    pub slot: u32,
    /// Blocks of which this message is the first to have one: they are copied, over what the slot held before.
    pub copied: u32,
    /// Blocks that are added.
    pub added: u32,
    /// Blocks that no message has had, after the last one: a worker that votes for a block and then calls it zero. They
    /// are zero.
    pub cleared: u32,
}

/// What an aggregator sends to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Number of the messages that it answers.
    pub iteration: u32,
    /// The transmit slot with the sums.
    pub slot: u32,
    /// Blocks in the slot; the indices of `next` follow them.
    pub sums: u32,
    /// Global indices of the next iteration. If there is none the shard is complete.
    pub next: Votes,
}

/// What a message has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Added {
    /// To be carried out before the message's memory is used again, and before the answer is sent.
    pub additions: Additions,
    /// The answer, after the message that was the last one.
    pub answer: Option<Answer>,
}

/// A message that cannot be added. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SummationError {
    /// All is summed.
    #[error("message after the last iteration of the shard: begin the next operation with a machine of its own")]
    Complete,
    /// Votes that cannot be.
    #[error(transparent)]
    Votes(#[from] VotesError),
    /// Blocks that cannot be.
    #[error(transparent)]
    Displacement(#[from] DisplacementError),
    /// More or fewer blocks than the displacement says.
    #[error("message with {found} blocks, but its displacement says {expected}: give all ranks the same parameters")]
    Blocks {
        /// Blocks that it holds.
        found: u32,
        /// Blocks that it does not leave out.
        expected: u32,
    },
}

/// Running sum of a shard: the global indices, the d best votes for the next ones, and a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summation {
    workers: u32,
    blocks: u32,
    iteration: u32,
    arrived: u32,
    /// Bit j: block j of the transmit slot belongs to this iteration.
    summed: u32,
    complete: bool,
    /// Blocks of the answer before.
    answered: u8,
    global: Votes,
    top: Votes,
}

impl Additions {
    /// Carries the additions out, each block once.
    #[inline]
    pub fn apply(&self, sums: &mut impl PartialSums) {
        let (mut rest, mut packed) = (self.copied | self.added, 0);
        while rest != 0 {
            let place = rest.trailing_zeros();
            if self.copied >> place & 1 == 1 {
                sums.copy(self.slot, place, packed);
            } else {
                sums.add(self.slot, place, packed);
            }
            rest &= rest - 1;
            packed += 1;
        }
        let mut cleared = self.cleared;
        while cleared != 0 {
            sums.clear(self.slot, cleared.trailing_zeros());
            cleared &= cleared - 1;
        }
    }

    /// Number of blocks of the message.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        (self.copied | self.added).count_ones()
    }
}

impl Answer {
    /// Whether the shard is complete with it.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.next.is_empty()
    }
}

impl Summation {
    /// The sum of a shard of `blocks` blocks, before its first message.
    ///
    /// # Errors
    /// The shard has more than [`MAX_BLOCKS`].
    pub const fn new(parameters: Parameters, blocks: u32) -> Result<Self, ParameterError> {
        if blocks as u64 > MAX_BLOCKS {
            return Err(ParameterError::Blocks { blocks: blocks as u64 });
        }
        let none = Votes::empty(parameters);
        Ok(Self {
            workers: parameters.workers(),
            blocks,
            iteration: 0,
            arrived: 0,
            summed: 0,
            complete: false,
            answered: 0,
            global: none,
            top: none,
        })
    }

    /// How many blocks a message of the current iteration with this immediate holds: what [`split`](super::split) asks
    /// for.
    ///
    /// # Errors
    /// It leaves out blocks that the iteration does not have.
    #[inline]
    pub const fn blocks_of(&self, displacement: u32) -> Result<u32, DisplacementError> {
        match Displacement::read(displacement, &self.global) {
            Ok(displacement) => Ok(displacement.present(&self.global).count_ones()),
            Err(error) => Err(error),
        }
    }

    /// Checks a message of the current iteration.
    ///
    /// # Errors
    /// [`Summation::add`] would refuse it.
    #[inline]
    pub fn check(&self, message: &Incoming) -> Result<Displacement, SummationError> {
        let Incoming { displacement, blocks, votes } = message;
        if self.complete {
            return Err(SummationError::Complete);
        }
        if votes.width() != self.global.width() {
            return Err(VotesError::Count { found: votes.width(), expected: self.global.width() }.into());
        }
        votes.check_after(&self.global, self.blocks)?;
        let displacement = Displacement::read(*displacement, &self.global)?;
        let expected = displacement.present(&self.global).count_ones();
        if *blocks != expected {
            return Err(SummationError::Blocks { found: *blocks, expected });
        }
        Ok(displacement)
    }

    /// Takes in a message of the current iteration: time and memory of the order of d, whatever the number of workers.
    /// Each worker has one; the caller sees to that.
    ///
    /// # Errors
    /// The message cannot be one of this iteration.
    #[inline]
    pub fn add(&mut self, message: &Incoming) -> Result<Added, SummationError> {
        let present = self.check(message)?.present(&self.global);
        self.top.merge(&message.votes);
        let mut additions = Additions {
            slot: self.iteration & 1,
            copied: present & !self.summed,
            added: present & self.summed,
            cleared: 0,
        };
        self.summed |= present;
        self.arrived += 1;
        if self.arrived < self.workers {
            return Ok(Added { additions, answer: None });
        }
        additions.cleared = lowest(self.global.len()) & !self.summed;
        self.answered = self.global.len() as u8;
        self.global = self.top;
        self.top.clear();
        self.complete = self.global.is_empty();
        (self.iteration, self.arrived, self.summed) = (self.iteration + 1, 0, 0);
        Ok(Added { additions, answer: self.answer() })
    }

    /// The latest answer, of the iteration before the current one. Its transmit slot keeps it until the current one is
    /// answered as well and a message of the next has come.
    #[must_use]
    pub const fn answer(&self) -> Option<Answer> {
        let Some(iteration) = self.iteration.checked_sub(1) else { return None };
        Some(Answer { iteration, slot: iteration & 1, sums: self.answered as u32, next: self.global })
    }

    /// Number of the current iteration: of the messages that are awaited.
    #[must_use]
    pub const fn iteration(&self) -> u32 {
        self.iteration
    }

    /// Blocks that are summed in the current iteration.
    #[must_use]
    pub const fn global(&self) -> &Votes {
        &self.global
    }

    /// Whether the last answer is given.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }
}
