//! One operation of a job, at one of its aggregators: what comes is summed up, and answers go to all workers. It has no
//! IO.

use std::collections::VecDeque;

use flexcast_mesh::aggregator::{Carrier, Terms};
use flexcast_proto::Summary;
use flexcast_proto::p2p::{Memory, Part, Span};
use flexcast_sparse::messages::{Begun, Outgoing, Spare, Sums, Tag};
use flexcast_sparse::{Call, Split};

use super::budget::Reservation;

/// An aggregator's part in one operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) number: u32,
    pub(super) summary: Summary,
    /// Who has said first what is called.
    pub(super) first: u32,
    by: By,
    workers: u32,
    outgoing: VecDeque<Outgoing>,
    /// Answers that are being sent.
    sending: u32,
}

/// What adds.
#[derive(Debug)]
enum By {
    /// This operation, what comes by the workers' connections.
    Sums(Sums),
    /// The job's queue pairs.
    Cards(Called),
}

/// An operation over queue pairs, as far as connections report it.
#[derive(Debug)]
struct Called {
    call: Call,
    /// By rank: whether it has called the operation.
    by: Vec<bool>,
    /// All sums are with all workers.
    is_added: bool,
    /// Whose message is waited for.
    awaited: Option<u32>,
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
        let split = Split::of_summary(&summary, terms.workers, terms.aggregators)?;
        let by = match terms.carrier {
            Carrier::Connection => {
                reservation.raise(split.parameters, split.each)?;
                let sums = Sums::new(&split, Some(terms.aggregator), terms.order, spare);
                By::Sums(sums.map_err(|error| error.to_string())?)
            }
            Carrier::Cards { .. } => {
                let (bytes, reduction) = (summary.amount, split.reduction);
                let call = Call { bytes, shards_of_each: split.each, reduction, order: terms.order };
                let by = vec![false; terms.workers as usize];
                By::Cards(Called { call, by, is_added: false, awaited: None })
            }
        };
        let (workers, outgoing) = (terms.workers, VecDeque::new());
        Ok(Self { number, summary, first: rank, by, workers, outgoing, sending: 0 })
    }

    /// A part of a message begins to come.
    pub(super) fn begin(&mut self, from: u32, summary: &Summary, (tag, total, offset): (u32, u64, u64)) -> Begun {
        if *summary != self.summary {
            return Begun::Disagrees;
        }
        let Tag::Contribution(shard) = Tag::of(tag) else { return Begun::Impossible };
        let is_sound = match &mut self.by {
            By::Sums(sums) => sums.begin(from, shard, total) == Some(offset),
            By::Cards(called) => (shard, total) == (0, 0) && called.by.get(from as usize) == Some(&false),
        };
        if is_sound { Begun::Fine } else { Begun::Impossible }
    }

    /// Where the bytes of a message from number `at` on belong.
    pub(super) fn place(&mut self, from: u32, tag: u32, at: u64) -> &mut [u8] {
        match (Tag::of(tag), &mut self.by) {
            (Tag::Contribution(shard), By::Sums(sums)) => sums.place(from, shard, at),
            _ => &mut [],
        }
    }

    /// A part of a message has come, up to `end` of `total` bytes. False: it cannot be.
    pub(super) fn came(&mut self, from: u32, tag: u32, come: (u64, u64)) -> bool {
        let Tag::Contribution(shard) = Tag::of(tag) else { return false };
        let sums = match &mut self.by {
            By::Sums(sums) => sums,
            By::Cards(called) => {
                return called.by.get_mut(from as usize).is_some_and(|has_called| !std::mem::replace(has_called, true));
            }
        };
        let Some(answered) = sums.came(from, shard, come) else { return false };
        if answered && let Some(((first, count), _)) = sums.answer(shard) {
            let source = Part { memory: Memory::Temporary, blocks: Span { first, count } };
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
        match &self.by {
            By::Sums(sums) => sums.at((part.blocks.first, part.blocks.count)),
            By::Cards(_) => &[],
        }
    }

    /// Whether all is summed up.
    pub(super) fn is_complete(&self) -> bool {
        match &self.by {
            By::Sums(sums) => sums.is_complete(),
            By::Cards(called) => called.is_added && !called.by.contains(&false),
        }
    }

    /// Whether all is summed up and sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_complete() && self.outgoing.is_empty() && self.sending == 0
    }

    /// The lowest rank that owes a message.
    pub(super) fn missing(&self) -> Option<u32> {
        match &self.by {
            By::Sums(sums) => sums.missing(),
            By::Cards(called) => called.by.iter().position(|called| !called).map(|rank| rank as u32).or(called.awaited),
        }
    }

    /// What queue pairs are to add, if they do.
    pub(super) const fn call(&self) -> Option<Call> {
        match &self.by {
            By::Sums(_) => None,
            By::Cards(called) => Some(called.call),
        }
    }

    /// Whether queue pairs are to be polled: before all workers have called the operation it cannot end, and what
    /// comes before waits there.
    pub(super) fn is_polling(&self) -> bool {
        matches!(&self.by, By::Cards(called) if !called.is_added && !called.by.contains(&false))
    }

    /// How far queue pairs are.
    pub(super) const fn note(&mut self, is_added: bool, awaited: Option<u32>) {
        if let By::Cards(called) = &mut self.by {
            (called.is_added, called.awaited) = (is_added, awaited);
        }
    }

    /// Its memory.
    pub(super) fn into_spare(self) -> Spare {
        match self.by {
            By::Sums(sums) => sums.into_spare(),
            By::Cards(_) => Spare::default(),
        }
    }
}
