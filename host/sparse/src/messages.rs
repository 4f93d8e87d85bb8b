//! Execution of a sparse AllReduce: the machines of its shards ([`Worker`], [`Aggregator`]) bound to a rank's buffers.
//! Every rank is a worker of all shards, and the aggregator of its own.
//!
//! A worker packs the blocks that it sends, so that a message is one piece of memory; sums go from the connection
//! straight to their places in the receive buffer. A message is: blocks, indices, and from a worker its displacement as
//! a little-endian number of 4 bytes. Its tag is twice the shard's number, and one more for an answer.

mod begun;
mod portion;
mod sum;
mod sums;

use std::collections::VecDeque;

use flexcast_proto::p2p::{Memory, Part, Span};
use flexcast_proto::sparse::{Order, Parameters};
use flexcast_proto::{RankInfo, Summary};
use flexio::zeroes;

use crate::options::SparseOptions;
pub use begun::Begun;
use portion::Portion;
pub use sums::Sums;

use crate::scan::Turn;
use flexcast_reduce::Reduction;

/// Bytes that a rank polls at before it serves its connections again.
const SCAN_BYTES: usize = 1 << 20;

/// What messages' memory is in errors.
const MESSAGE: &str = "length of a message";

/// Bytes of a displacement behind a worker's message.
const DISPLACEMENT_BYTES: usize = 4;

/// A rank's part in one operation.
#[derive(Debug)]
pub struct Sparse {
    summary: Summary,
    parameters: Parameters,
    own: u32,
    /// The worker's side, of all shards.
    portions: Vec<Portion>,
    /// The aggregator's side, of the own shards.
    sums: Sums,
    outgoing: VecDeque<Outgoing>,
    /// Messages that are being sent.
    sending: u32,
    /// The portion whose turn it is.
    turn: usize,
    foreign_bytes: u64,
    /// More of the array can be scanned, whatever comes.
    busy: bool,
}

/// Memory of slots of operations that are over, for the next one.
#[derive(Debug, Default)]
pub struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Room for one message of any length. What is in it does not matter.
    fn take(&mut self, parameters: Parameters) -> Result<Vec<u8>> {
        let bytes = parameters.slot_bytes() as usize + DISPLACEMENT_BYTES;
        match self.0.pop().filter(|slot| slot.capacity() >= bytes) {
            Some(mut slot) => {
                slot.resize(bytes, 0);
                Ok(slot)
            }
            None => Ok(zeroes(MESSAGE, bytes)?),
        }
    }

    fn give(&mut self, slot: Vec<u8>) {
        self.0.push(slot);
    }

    /// What it takes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Vec::capacity).sum()
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The rank, or the number of an aggregator behind those of the ranks.
    pub to: u32,
    /// Its [`Tag`].
    pub tag: u32,
    /// Where its bytes are.
    pub source: Part,
}

/// What a message is of.
#[derive(Clone, Copy)]
pub enum Tag {
    /// What a worker sends, of the shard with this number.
    Contribution(u32),
    /// What its aggregator answers.
    Answer(u32),
}

impl Tag {
    /// Of the number in a message.
    #[must_use]
    pub const fn of(tag: u32) -> Self {
        if tag & 1 == 0 { Self::Contribution(tag >> 1) } else { Self::Answer(tag >> 1) }
    }

    /// The number in a message.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Contribution(shard) => shard << 1,
            Self::Answer(shard) => shard << 1 | 1,
        }
    }
}

/// Why an operation cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its arguments cannot be: value, limit and next step.
    #[error("{0}")]
    Argument(String),
    /// There is not so much memory.
    #[error(transparent)]
    Memory(#[from] flexio::Error),
}

/// A result with that.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

fn refused(error: impl std::fmt::Display) -> Refusal {
    Refusal::Argument(error.to_string())
}

/// Who sums up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregators {
    /// Every rank its own shards.
    Ranks,
    /// So many separate processes, which have numbers behind those of the ranks.
    External(u32),
}

impl Sparse {
    /// # Errors
    /// The operation cannot be; no memory for the slots.
    pub fn new(
        (bytes, reduction, options): (u64, Reduction, SparseOptions),
        place: RankInfo,
        aggregators: Aggregators,
        (summary, reproducible): (Summary, bool),
        mut spare: Spare,
    ) -> Result<Self> {
        let (own, ranks) = (place.rank(), place.ranks());
        let (count, first, summed) = match aggregators {
            Aggregators::Ranks => (ranks, 0, Some(own)),
            Aggregators::External(count) => (count, ranks, None),
        };
        let split = options.split((bytes, reduction), ranks, count).map_err(refused)?;
        let order = if reproducible { Order::Rank } else { Order::Arrival };
        let mut portions = Vec::new();
        for (aggregator, shard) in split.iter() {
            portions.push(Portion::new(split.parameters, shard, first + aggregator, &mut spare)?);
        }
        let sums = Sums::new(&split, summed, order, spare)?;
        Ok(Self {
            summary,
            parameters: split.parameters,
            own,
            portions,
            sums,
            outgoing: VecDeque::new(),
            sending: 0,
            turn: 0,
            foreign_bytes: 0,
            busy: true,
        })
    }

    /// What is compared with the other ranks.
    pub const fn summary(&self) -> Summary {
        self.summary
    }

    /// Bytes that have come from other ranks.
    pub const fn foreign_bytes(&self) -> u64 {
        self.foreign_bytes
    }

    /// Messages of this rank's that have been answered.
    pub fn messages(&self) -> u64 {
        self.portions.iter().map(Portion::messages).sum()
    }

    /// Blocks that are not zero on some rank, and all blocks. When the operation is complete, both are alike on all
    /// ranks.
    pub fn found(&self) -> (u64, u64) {
        let all = self.portions.iter().map(Portion::found);
        all.fold((0, 0), |(summed, blocks), [more, of]| (summed + more, blocks + of))
    }

    /// Moves the own shards on as far as nothing of other ranks is needed, for a while. Returns whether anything moved.
    pub fn advance(&mut self, send: Option<&[u8]>, receive: &mut [u8]) -> bool {
        let (mut moved, mut left, mut idle) = (false, SCAN_BYTES, 0);
        while left > 0 && idle < self.portions.len() {
            let at = self.turn;
            self.turn = (self.turn + 1) % self.portions.len();
            let portion = &mut self.portions[at];
            match portion.turn(send, receive, &mut left) {
                Turn::Idle => idle += 1,
                Turn::Moved => (moved, idle) = (true, 0),
                Turn::Send => {
                    (moved, idle) = (true, 0);
                    let to = portion.aggregator;
                    if to == self.own {
                        self.contribute(at as u32, receive);
                    } else {
                        let source = Part { memory: Memory::Send, blocks: Span::of(at as u32) };
                        let tag = Tag::Contribution(at as u32).number();
                        self.outgoing.push_back(Outgoing { to, tag, source });
                    }
                }
            }
        }
        self.busy = left == 0;
        moved
    }

    /// Whether [`Sparse::advance`] has something to do although nothing comes.
    pub const fn is_busy(&self) -> bool {
        self.busy
    }

    /// The own message of an own shard goes to the aggregator without being sent.
    fn contribute(&mut self, shard: u32, receive: &mut [u8]) {
        let message = std::mem::take(&mut self.portions[shard as usize].message);
        // It is this rank's own, and one of this iteration.
        let answered = self.sums.take(self.own, shard, &message);
        self.portions[shard as usize].message = message;
        if answered == Some(true) {
            self.answer(shard, receive);
        }
    }

    /// The sums of an own shard go to all workers.
    fn answer(&mut self, shard: u32, receive: &mut [u8]) {
        let Some(((at, slot), answer)) = self.sums.answer(shard) else { return };
        let source = Part { memory: Memory::Temporary, blocks: Span { first: at, count: slot } };
        let tag = Tag::Answer(shard).number();
        let ranks = self.parameters.workers();
        self.outgoing.extend((0..ranks).filter(|rank| *rank != self.own).map(|to| Outgoing { to, tag, source }));
        let portion = &mut self.portions[shard as usize];
        portion.put(answer, receive);
        portion.took();
    }

    /// The next message to send.
    pub fn poll(&mut self) -> Option<Outgoing> {
        let next = self.outgoing.pop_front();
        self.sending += u32::from(next.is_some());
        next
    }

    /// Messages that were polled are sent.
    pub fn sent(&mut self, messages: u32) {
        self.sending = self.sending.saturating_sub(messages);
    }

    /// A message that is sent.
    pub fn source(&self, part: Part) -> &[u8] {
        let at = part.blocks.first as usize;
        match part.memory {
            Memory::Send => self.portions.get(at).map_or(&[], |portion| &portion.message),
            Memory::Temporary => self.sums.at((part.blocks.first, part.blocks.count)),
            Memory::Receive => &[],
        }
    }

    /// A part of a message begins to come.
    pub fn begin(&mut self, from: u32, summary: Summary, (tag, total, offset): (u32, u64, u64)) -> Begun {
        if summary != self.summary {
            return Begun::Disagrees;
        }
        let parameters = self.parameters;
        let expected = match Tag::of(tag) {
            Tag::Contribution(shard) => self.sums.begin(from, shard, total),
            Tag::Answer(shard) => {
                let portion = self.portions.get(shard as usize);
                portion.and_then(|portion| portion.expects(from, total, parameters))
            }
        };
        if from != self.own && expected == Some(offset) { Begun::Fine } else { Begun::Impossible }
    }

    /// Where the bytes of a message from number `at` on belong, up to the next that belong somewhere else.
    pub fn place<'s>(&'s mut self, receive: &'s mut [u8], from: u32, tag: u32, at: u64) -> &'s mut [u8] {
        match Tag::of(tag) {
            Tag::Contribution(shard) => self.sums.place(from, shard, at),
            Tag::Answer(shard) => {
                let portion = self.portions.get_mut(shard as usize);
                portion.map_or(&mut [], |portion| portion.place(receive, at as usize))
            }
        }
    }

    /// A part of a message has come, up to `end` of `total` bytes. False: it cannot be.
    pub fn came(&mut self, from: u32, tag: u32, (end, total): (u64, u64), receive: &mut [u8]) -> bool {
        match Tag::of(tag) {
            Tag::Contribution(shard) => {
                let Some(answered) = self.sums.came(from, shard, (end, total)) else { return false };
                self.foreign_bytes += if end == total { total } else { 0 };
                if answered {
                    self.answer(shard, receive);
                }
                true
            }
            Tag::Answer(shard) => {
                let Some(portion) = self.portions.get_mut(shard as usize) else { return false };
                portion.note(end);
                if end < total {
                    return true;
                }
                self.foreign_bytes += total;
                portion.took()
            }
        }
    }

    /// Its memory.
    pub fn into_spare(self) -> Spare {
        let mut spare = self.sums.into_spare();
        self.portions.into_iter().for_each(|portion| portion.give_back(&mut spare));
        spare
    }

    /// Whether all sums are in the receive buffer, and what other ranks need is sent.
    pub fn is_complete(&self) -> bool {
        self.outgoing.is_empty()
            && self.sending == 0
            && self.portions.iter().all(Portion::is_complete)
            && self.sums.is_complete()
    }

    /// Whether an aggregator that is no rank, by its number behind the ranks', owes this one something.
    pub fn waits_for(&self, aggregator: u32) -> bool {
        self.portions.iter().any(|portion| portion.aggregator == aggregator && !portion.is_complete())
    }

    /// Who owes the first message that is missing: a rank, or an aggregator by its number behind the ranks'.
    pub fn awaited(&self) -> Option<u32> {
        let waits = |portion: &&Portion| !portion.is_complete() && portion.aggregator != self.own;
        self.sums.missing().or_else(|| self.portions.iter().find(waits).map(|portion| portion.aggregator))
    }
}

#[cfg(test)]
mod tests;
