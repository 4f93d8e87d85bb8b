//! One operation of a job, at one of its aggregators: what comes is summed up, and answers go to all workers. It has no IO.

use std::collections::VecDeque;

use flexcast_proto::p2p::{Memory, Part, Span};
use flexcast_proto::{Algorithm, Kind, Summary};

use super::budget::Reservation;
use super::wire::Terms;
use crate::datapath::direct::Begun;
use crate::datapath::sparse::{Outgoing, Spare, SparseOptions, Split, Sums, Tag};
use crate::reduce::Reduction;

/// An aggregator's part in one operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) number: u32,
    pub(super) summary: Summary,
    /// Who has said first what is called.
    pub(super) first: u32,
    sums: Sums,
    workers: u32,
    outgoing: VecDeque<Outgoing>,
    /// Answers that are being sent.
    sending: u32,
}

/// What workers have called, as far as it is a sparse AllReduce.
fn split(summary: &Summary, terms: &Terms) -> Result<Split, String> {
    if (summary.kind, summary.algorithm) != (Kind::Allreduce, Algorithm::Sparse) {
        return Err(format!("it sums up sparse AllReduce alone, not {} by {}", summary.kind.name(), summary.algorithm));
    }
    let unknown = |code| format!("there is no reduction {code:#x}: install one release on all computers");
    let reduction = Reduction::from_code(summary.chunk_bytes).map_err(unknown)?;
    if summary.amount == 0 || !summary.amount.is_multiple_of(reduction.element_bytes().into()) {
        return Err(format!("{} bytes are no whole elements of {}", summary.amount, reduction.data_type()));
    }
    SparseOptions::of_code(summary.root).split((summary.amount, reduction), terms.workers, terms.aggregators)
}

impl Operation {
    /// Begins what `rank` calls.
    ///
    /// # Errors
    /// It cannot be, or has no room: why.
    pub(super) fn new(
        (number, summary, rank): (u32, Summary, u32),
        terms: &Terms,
        reservation: &mut Reservation,
        spare: Spare,
    ) -> Result<Self, String> {
        let split = split(&summary, terms)?;
        reservation.raise(split.parameters, split.each)?;
        let sums = Sums::new(&split, Some(terms.aggregator), terms.order, spare);
        let sums = sums.map_err(|error| error.to_string())?;
        let (workers, outgoing) = (terms.workers, VecDeque::new());
        Ok(Self { number, summary, first: rank, sums, workers, outgoing, sending: 0 })
    }

    /// A part of a message begins to come.
    pub(super) fn begin(&mut self, from: u32, summary: &Summary, (tag, total, offset): (u32, u64, u64)) -> Begun {
        if *summary != self.summary {
            return Begun::Disagrees;
        }
        let Tag::Contribution(shard) = Tag::of(tag) else { return Begun::Impossible };
        if self.sums.begin(from, shard, total) == Some(offset) { Begun::Fine } else { Begun::Impossible }
    }

    /// Where the bytes of a message from number `at` on belong.
    pub(super) fn place(&mut self, from: u32, tag: u32, at: u64) -> &mut [u8] {
        match Tag::of(tag) {
            Tag::Contribution(shard) => self.sums.place(from, shard, at),
            Tag::Answer(_) => &mut [],
        }
    }

    /// A part of a message has come, up to `end` of `total` bytes. False: it cannot be.
    pub(super) fn came(&mut self, from: u32, tag: u32, come: (u64, u64)) -> bool {
        let Tag::Contribution(shard) = Tag::of(tag) else { return false };
        let Some(answered) = self.sums.came(from, shard, come) else { return false };
        if answered && let Some(((at, spot), _)) = self.sums.answer(shard) {
            let source = Part { memory: Memory::Temporary, blocks: Span { first: at, count: spot } };
            let tag = Tag::Answer(shard).number();
            self.outgoing.extend((0..self.workers).map(|to| Outgoing { to, tag, source }));
        }
        true
    }

    /// The next answer to send.
    pub(super) fn poll(&mut self) -> Option<Outgoing> {
        let next = self.outgoing.pop_front();
        self.sending += u32::from(next.is_some());
        next
    }

    /// Answers that were polled are sent, or will not be.
    pub(super) fn sent(&mut self, answers: u32) {
        self.sending = self.sending.saturating_sub(answers);
    }

    /// An answer that is sent.
    pub(super) fn source(&self, part: Part) -> &[u8] {
        self.sums.at((part.blocks.first, part.blocks.count))
    }

    /// Whether all is summed up.
    pub(super) fn is_complete(&self) -> bool {
        self.sums.is_complete()
    }

    /// Whether all is summed up and sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_complete() && self.outgoing.is_empty() && self.sending == 0
    }

    /// The lowest rank that owes a message.
    pub(super) fn missing(&self) -> Option<u32> {
        self.sums.missing()
    }

    /// Its memory.
    pub(super) fn into_spare(self) -> Spare {
        self.sums.into_spare()
    }
}
