//! State machine of an aggregator: one shard of one sparse AllReduce. A [`Summation`], whose size does not depend on
//! the number of workers, and with it what does: one bit for each worker that says whether its message has come, as
//! fixed room for [`MAX_RANKS`](crate::MAX_RANKS).

use thiserror::Error;

use super::parameters::{ParameterError, Parameters};
use super::summation::{Added, Answer, Incoming, Summation, SummationError};
use crate::ranks::RankSet;

/// In which order blocks of different workers are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// As they come. Sums of floating-point numbers depend on it in their last bits.
    Arrival,
    /// By rank: the same bits from the same arrays. A message waits in its receive slot until those of all lower ranks
    /// have been added. That takes no slot more, but the 32-bit immediates of the waiting messages are kept as well,
    /// and up to n - 1 messages are added after the last has come, where it is one otherwise. Over datagrams, receive
    /// slots are needed for this alone.
    Rank,
}

/// How long an aggregator waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AggregatorLimits {
    /// From one answer until all messages of the next iteration are there, in picoseconds, and from the beginning to
    /// the first. It covers the longest scan of a shard, and all tries of a worker.
    pub iteration_ps: u64,
    /// From the last answer, or the last time that it was asked for again, until the transmit slots are given up, in
    /// picoseconds. A worker that has lost the answer asks within this time: all tries of a worker fit in it.
    pub linger_ps: u64,
}

/// What has become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// Carry the additions out, and send the answer to all workers if there is one.
    Added(Added),
    /// Keep the message in its receive slot: lower ranks come first. [`Aggregator::next_rank`] says when it is its
    /// turn.
    Held,
    /// It had come before, and its iteration is not complete. Notify its worker that this rank is waited for.
    Waiting {
        /// The lowest rank whose message has not come, or the one to be added if all have.
        for_rank: u32,
    },
    /// It had come before and was answered: send the answer again, to its worker alone, from the transmit slot.
    Again(Answer),
    /// An old one, whose worker has the answer. Nothing is to be done.
    Old,
}

/// A worker whose message cannot be waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error(
    "worker {rank} is lost in iteration {iteration}: nothing has come in time, or its connection has ended; check \
     its process and its network, or raise the limit"
)]
pub struct LostWorker {
    /// Its rank.
    pub rank: u32,
    /// Whose message is missing.
    pub iteration: u32,
}

/// A message that an aggregator refuses. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AggregatorError {
    /// There is no such worker.
    #[error("message of worker {rank}, but workers run from 0 to {last}: give all ranks the same group", last = workers - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// Workers there are.
        workers: u32,
    },
    /// A message of an iteration that has not begun.
    #[error(
        "message of iteration {iteration} from worker {rank}, but the aggregator is at {current}: a worker waits for \
         the answer first"
    )]
    Future {
        /// Whose message.
        rank: u32,
        /// Its iteration.
        iteration: u32,
        /// The current one.
        current: u32,
    },
    /// On a reliable connection: a second message before the answer.
    #[error(
        "second message from worker {rank} before iteration {iteration} is answered: a worker waits for the answer \
         first"
    )]
    Repeated {
        /// Whose message.
        rank: u32,
        /// The current iteration.
        iteration: u32,
    },
    /// A message of a worker whose turn has not come.
    #[error("message of worker {rank} to be added, but it is not its turn: ask for `next_rank`")]
    Turn {
        /// Whose message.
        rank: u32,
    },
    /// The operation has failed before.
    #[error("message of worker {rank} after the failure of the operation: {failure}")]
    Failed {
        /// Whose message.
        rank: u32,
        /// Why it failed. Report it to the worker.
        failure: LostWorker,
    },
    /// What it holds cannot be.
    #[error("message of worker {rank} in iteration {iteration}: {error}")]
    Content {
        /// Whose message.
        rank: u32,
        /// The current iteration.
        iteration: u32,
        /// What is wrong.
        error: SummationError,
    },
}

/// An aggregator's part of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aggregator {
    summation: Summation,
    workers: u32,
    order: Order,
    limits: AggregatorLimits,
    /// Whose message of the current iteration has come.
    arrived: RankSet,
    /// By rank: how many have been added.
    added: u32,
    /// Of the last answer, or of the last repeat of it after the end.
    since_ps: u64,
    failed: Option<LostWorker>,
}

impl Aggregator {
    /// An aggregator that waits for its first messages from `now_ps` on, for a shard of `blocks` blocks.
    ///
    /// # Errors
    /// The shard has too many blocks.
    pub const fn new(
        parameters: Parameters,
        blocks: u32,
        order: Order,
        limits: AggregatorLimits,
        now_ps: u64,
    ) -> Result<Self, ParameterError> {
        let summation = match Summation::new(parameters, blocks) {
            Ok(summation) => summation,
            Err(error) => return Err(error),
        };
        Ok(Self {
            summation,
            workers: parameters.workers(),
            order,
            limits,
            arrived: RankSet::EMPTY,
            added: 0,
            since_ps: now_ps,
            failed: None,
        })
    }

    /// A message has come over a connection that keeps order and repeats nothing: it is one of the current iteration.
    ///
    /// # Errors
    /// It cannot be: the worker has sent one already, or the content is not of this iteration.
    #[inline]
    pub fn handle_reliable(&mut self, rank: u32, message: &Incoming, now_ps: u64) -> Result<Received, AggregatorError> {
        let iteration = self.summation.iteration();
        if self.arrived.contains(rank) {
            return Err(AggregatorError::Repeated { rank, iteration });
        }
        self.handle(rank, iteration, message, now_ps)
    }

    /// A message has come as a datagram, which may be a repeated or an old one.
    ///
    /// # Errors
    /// It cannot be a message of this shard, or the operation has failed.
    #[inline]
    pub fn handle(
        &mut self,
        rank: u32,
        iteration: u32,
        message: &Incoming,
        now_ps: u64,
    ) -> Result<Received, AggregatorError> {
        let (workers, current) = (self.workers, self.summation.iteration());
        if rank >= workers {
            return Err(AggregatorError::Rank { rank, workers });
        }
        if let Some(failure) = self.failed {
            return Err(AggregatorError::Failed { rank, failure });
        }
        if iteration != current {
            return self.other(rank, iteration, now_ps);
        }
        if self.arrived.contains(rank) {
            return Ok(Received::Waiting { for_rank: self.missing().unwrap_or(self.added) });
        }
        let checked = self.summation.check(message);
        checked.map_err(|error| AggregatorError::Content { rank, iteration, error })?;
        self.arrived.insert(rank);
        match self.order {
            Order::Arrival => self.add(rank, message, now_ps).map(Received::Added),
            Order::Rank => Ok(Received::Held),
        }
    }

    /// A message of another iteration than the current one.
    fn other(&mut self, rank: u32, iteration: u32, now_ps: u64) -> Result<Received, AggregatorError> {
        let current = self.summation.iteration();
        match self.summation.answer() {
            _ if iteration > current => Err(AggregatorError::Future { rank, iteration, current }),
            // Who has sent a message of the current iteration has the answer before it.
            Some(answer) if iteration == answer.iteration && !self.arrived.contains(rank) => {
                if self.is_complete() {
                    self.since_ps = self.since_ps.max(now_ps);
                }
                Ok(Received::Again(answer))
            }
            _ => Ok(Received::Old),
        }
    }

    fn add(&mut self, rank: u32, message: &Incoming, now_ps: u64) -> Result<Added, AggregatorError> {
        let iteration = self.summation.iteration();
        let added = self.summation.add(message);
        let added = added.map_err(|error| AggregatorError::Content { rank, iteration, error })?;
        if added.answer.is_some() {
            self.arrived.clear();
            self.added = 0;
            self.since_ps = now_ps;
        }
        Ok(added)
    }

    /// With [`Order::Rank`]: whose message is to be added now, by [`Aggregator::add_held`]; none if it has not come.
    #[must_use]
    #[inline]
    pub fn next_rank(&self) -> Option<u32> {
        (self.order == Order::Rank && self.failed.is_none() && self.arrived.contains(self.added)).then_some(self.added)
    }

    /// Adds the message that waits in the receive slot of the rank whose turn it is.
    ///
    /// # Errors
    /// It is not its turn, or its content has changed since it came.
    #[inline]
    pub fn add_held(&mut self, rank: u32, message: &Incoming, now_ps: u64) -> Result<Added, AggregatorError> {
        if self.next_rank() != Some(rank) {
            return Err(AggregatorError::Turn { rank });
        }
        self.added += 1;
        self.add(rank, message, now_ps).inspect_err(|_| self.added -= 1)
    }

    /// Whether a worker's message of the current iteration has come.
    #[must_use]
    pub fn has_arrived(&self, rank: u32) -> bool {
        self.arrived.contains(rank)
    }

    /// The lowest rank whose message of the current iteration has not come.
    #[must_use]
    pub fn missing(&self) -> Option<u32> {
        (0..self.workers).find(|rank| !self.arrived.contains(*rank))
    }

    /// When [`Aggregator::poll`] has something to say unless messages come before; none after the end.
    #[must_use]
    pub const fn deadline_ps(&self) -> Option<u64> {
        if self.failed.is_some() || self.is_complete() {
            return None;
        }
        Some(self.since_ps.saturating_add(self.limits.iteration_ps))
    }

    /// The connection to a worker has ended, or it says that it has failed. Notify all other workers, as after
    /// [`Aggregator::poll`]; nobody if nothing is awaited any more, or somebody was lost before.
    pub fn lose(&mut self, rank: u32) -> Option<LostWorker> {
        if rank >= self.workers || self.deadline_ps().is_none() {
            return None;
        }
        self.failed = Some(LostWorker { rank, iteration: self.summation.iteration() });
        self.failed
    }

    /// A worker that has been silent for too long, once; the operation has failed then. Notify all other workers, now
    /// and whenever a message of one is refused because of it.
    pub fn poll(&mut self, now_ps: u64) -> Option<LostWorker> {
        if self.deadline_ps().is_none_or(|deadline_ps| now_ps < deadline_ps) {
            return None;
        }
        self.missing().and_then(|rank| self.lose(rank))
    }

    /// Why the operation has failed, if it has.
    #[must_use]
    pub const fn failure(&self) -> Option<LostWorker> {
        self.failed
    }

    /// Whether the last answer is given. Over datagrams somebody may still ask for it.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.summation.is_complete()
    }

    /// When nobody asks for the last answer again, so that the transmit slots may be used for something else; none
    /// before it is given. (A worker that begins the next operation has the answer as well.)
    #[must_use]
    pub const fn free_ps(&self) -> Option<u64> {
        if self.is_complete() { Some(self.since_ps.saturating_add(self.limits.linger_ps)) } else { None }
    }

    /// What is summed now.
    #[must_use]
    pub const fn summation(&self) -> &Summation {
        &self.summation
    }
}
