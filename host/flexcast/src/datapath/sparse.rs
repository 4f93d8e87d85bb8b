//! Execution of a sparse AllReduce: the machines of its shards ([`Worker`], [`Aggregator`]) bound to a rank's buffers. Every rank is a worker of all shards, and the
//! aggregator of its own.
//!
//! A worker packs the blocks that it sends, so that a message is one piece of memory; sums go from the connection straight to their places in the receive buffer. A message
//! is: blocks, indices, and from a worker its displacement as a little-endian number of 4 bytes. Its tag is twice the shard's number, and one more for an answer.

mod options;
mod portion;
mod sum;

use std::collections::VecDeque;

use flexcast_proto::p2p::{Memory, Part, Span};
use flexcast_proto::sparse::{AggregatorLimits, Order, Parameters, Shards};
use flexcast_proto::{RankInfo, Summary};

pub use options::SparseOptions;
use portion::{Portion, Turn};
use sum::Sum;

use super::direct::Begun;
use crate::api::buffer::zeroes;
use crate::error::{Error, Result};
use crate::reduce::Reduction;

/// Name of the operation in errors.
pub(crate) const NAME: &str = "sparse_allreduce";

/// Bytes that a rank looks at before it serves its connections again.
const SCAN_BYTES: usize = 1 << 20;

/// Bytes of a displacement behind a worker's message.
const DISPLACEMENT_BYTES: usize = 4;

/// A rank's part in one operation.
#[derive(Debug)]
pub(crate) struct Sparse {
    summary: Summary,
    reduction: Reduction,
    parameters: Parameters,
    order: Order,
    own: u32,
    /// The worker's side, of all shards.
    portions: Vec<Portion>,
    /// The aggregator's side, of the own shards.
    sums: Vec<Sum>,
    /// Number of the first own shard.
    first: u32,
    outgoing: VecDeque<Outgoing>,
    /// Messages that are being sent.
    sending: u32,
    /// The portion whose turn it is.
    turn: usize,
    foreign_bytes: u64,
    /// More of the array can be looked at, whatever comes.
    busy: bool,
}

/// Memory of spots of operations that are over, for the next one.
#[derive(Debug, Default)]
pub(crate) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Room for one message of any length. What is in it does not matter.
    fn take(&mut self, parameters: Parameters) -> Result<Vec<u8>> {
        let bytes = parameters.spot_bytes() as usize + DISPLACEMENT_BYTES;
        match self.0.pop().filter(|spot| spot.capacity() >= bytes) {
            Some(mut spot) => {
                spot.resize(bytes, 0);
                Ok(spot)
            }
            None => Ok(zeroes(bytes)?),
        }
    }

    fn give(&mut self, spot: Vec<u8>) {
        self.0.push(spot);
    }

    /// What it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(Vec::capacity).sum()
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: u32,
    pub(crate) tag: u32,
    pub(crate) source: Part,
}

/// What a message is of.
#[derive(Clone, Copy)]
enum Tag {
    Contribution(u32),
    Answer(u32),
}

impl Tag {
    const fn of(tag: u32) -> Self {
        if tag & 1 == 0 { Self::Contribution(tag >> 1) } else { Self::Answer(tag >> 1) }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Contribution(shard) => shard << 1,
            Self::Answer(shard) => shard << 1 | 1,
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Argument { operation: NAME, reason: error.to_string() }
}

impl Sparse {
    /// # Errors
    /// [`Error::Argument`]; no memory for the spots.
    pub(crate) fn new(
        (bytes, reduction, options): (u64, Reduction, SparseOptions),
        place: RankInfo,
        (summary, reproducible): (Summary, bool),
        mut spare: Spare,
    ) -> Result<Self> {
        let (own, ranks) = (place.rank(), place.ranks());
        let parameters = options.parameters(ranks, reduction).map_err(refused)?;
        let each = options.shards_of_each(bytes, ranks);
        let shards = Shards::new(bytes, parameters, ranks, 1, each).map_err(refused)?;
        let order = if reproducible { Order::Rank } else { Order::Arrival };
        // The operation has its own bounds.
        let limits = AggregatorLimits { iteration_ps: u64::MAX, linger_ps: 0 };
        let (mut portions, mut sums) = (Vec::new(), Vec::new());
        if bytes > 0 {
            for (number, shard) in shards.iter().enumerate() {
                portions.push(Portion::new(parameters, shard, number as u32 / each, &mut spare)?);
                if number as u32 / each == own {
                    sums.push(Sum::new(parameters, shard.blocks(), order, limits, &mut spare)?);
                }
            }
        }
        Ok(Self {
            summary,
            reduction,
            parameters,
            order,
            own,
            portions,
            sums,
            first: own * each,
            outgoing: VecDeque::new(),
            sending: 0,
            turn: 0,
            foreign_bytes: 0,
            busy: true,
        })
    }

    pub(crate) const fn summary(&self) -> Summary {
        self.summary
    }

    /// Bytes that have come from other ranks.
    pub(crate) const fn foreign_bytes(&self) -> u64 {
        self.foreign_bytes
    }

    /// The aggregator's side of an own shard.
    fn sum(&mut self, shard: u32) -> Option<&mut Sum> {
        self.sums.get_mut(shard.checked_sub(self.first)? as usize)
    }

    /// Moves the own shards on as far as nothing of other ranks is needed, for a while. Returns whether anything moved.
    pub(crate) fn advance(&mut self, send: Option<&[u8]>, receive: &mut [u8]) -> bool {
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
    pub(crate) const fn is_busy(&self) -> bool {
        self.busy
    }

    /// The own message of an own shard goes to the aggregator without being sent.
    fn contribute(&mut self, shard: u32, receive: &mut [u8]) {
        let (own, reduction, parameters) = (self.own, self.reduction, self.parameters);
        let at = (shard - self.first) as usize;
        let message = std::mem::take(&mut self.portions[shard as usize].message);
        // It is this rank's own, and one of this iteration.
        let answered = self.sums[at].take(own, &message, self.order, (parameters, reduction));
        self.portions[shard as usize].message = message;
        if answered == Some(true) {
            self.answer(shard, receive);
        }
    }

    /// The sums of an own shard go to all workers.
    fn answer(&mut self, shard: u32, receive: &mut [u8]) {
        let at = (shard - self.first) as usize;
        let (spot, answer) = self.sums[at].answer();
        let source = Part { memory: Memory::Temporary, blocks: Span { first: at as u32, count: spot } };
        let tag = Tag::Answer(shard).number();
        let ranks = self.parameters.workers();
        self.outgoing.extend((0..ranks).filter(|rank| *rank != self.own).map(|to| Outgoing { to, tag, source }));
        let portion = &mut self.portions[shard as usize];
        portion.put(answer, receive);
        portion.took();
    }

    /// The next message to send.
    pub(crate) fn poll(&mut self) -> Option<Outgoing> {
        let next = self.outgoing.pop_front();
        self.sending += u32::from(next.is_some());
        next
    }

    /// Messages that were polled are sent.
    pub(crate) fn sent(&mut self, messages: u32) {
        self.sending = self.sending.saturating_sub(messages);
    }

    /// A message that is sent.
    pub(crate) fn source(&self, part: Part) -> &[u8] {
        let at = part.blocks.first as usize;
        match part.memory {
            Memory::Send => self.portions.get(at).map_or(&[], |portion| &portion.message),
            Memory::Temporary => self.sums.get(at).map_or(&[], |sum| sum.spot(part.blocks.count)),
            Memory::Receive => &[],
        }
    }

    /// A part of a message begins to come.
    pub(crate) fn begin(&mut self, from: u32, summary: Summary, (tag, total, offset): (u32, u64, u64)) -> Begun {
        if summary != self.summary {
            return Begun::Disagrees;
        }
        let parameters = self.parameters;
        let expected = match Tag::of(tag) {
            Tag::Contribution(shard) => self.sum(shard).and_then(|sum| sum.expects(from, total, parameters)),
            Tag::Answer(shard) => {
                let portion = self.portions.get(shard as usize);
                portion.and_then(|portion| portion.expects(from, total, parameters))
            }
        };
        if from != self.own && expected == Some(offset) { Begun::Fine } else { Begun::Impossible }
    }

    /// Where the bytes of a message from number `at` on belong, up to the next that belong somewhere else.
    pub(crate) fn place<'s>(&'s mut self, receive: &'s mut [u8], from: u32, tag: u32, at: u64) -> &'s mut [u8] {
        match Tag::of(tag) {
            Tag::Contribution(shard) => self.sum(shard).map_or(&mut [], |sum| sum.place(from, at)),
            Tag::Answer(shard) => {
                let portion = self.portions.get_mut(shard as usize);
                portion.map_or(&mut [], |portion| portion.place(receive, at as usize))
            }
        }
    }

    /// A part of a message has come, up to `end` of `total` bytes. False: it cannot be.
    pub(crate) fn came(&mut self, from: u32, tag: u32, (end, total): (u64, u64), receive: &mut [u8]) -> bool {
        let what = (self.parameters, self.reduction);
        match Tag::of(tag) {
            Tag::Contribution(shard) => {
                let Some(sum) = self.sum(shard) else { return false };
                sum.note(from, end);
                if end < total {
                    return true;
                }
                self.foreign_bytes += total;
                match self.sum(shard).and_then(|sum| sum.received(from, total, what)) {
                    None => return false,
                    Some(false) => {}
                    Some(true) => self.answer(shard, receive),
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
    pub(crate) fn into_spare(self) -> Spare {
        let mut spare = Spare::default();
        self.portions.into_iter().for_each(|portion| portion.give_back(&mut spare));
        self.sums.into_iter().for_each(|sum| sum.give_back(&mut spare));
        spare
    }

    /// Whether all sums are in the receive buffer, and what other ranks need is sent.
    pub(crate) fn is_complete(&self) -> bool {
        self.outgoing.is_empty()
            && self.sending == 0
            && self.portions.iter().all(Portion::is_complete)
            && self.sums.iter().all(Sum::is_complete)
    }

    /// Who owes the first message that is missing.
    pub(crate) fn awaited(&self) -> Option<u32> {
        let worker = self.sums.iter().filter(|sum| !sum.is_complete()).find_map(Sum::missing);
        let waits = |portion: &&Portion| !portion.is_complete() && portion.aggregator != self.own;
        worker.or_else(|| self.portions.iter().find(waits).map(|portion| portion.aggregator))
    }
}

#[cfg(test)]
mod tests;
