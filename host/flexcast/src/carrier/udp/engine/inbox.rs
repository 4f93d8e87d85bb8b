//! The engine's side of connections: takes what peers say, ask for, and send.

use flexcast_proto::Summary;

use super::direct::Exchanging;
use super::operation::{Reading, Running};
use crate::engine::conversation::Conversation;
use crate::mesh::aggregator::Report;
use crate::mesh::{Event, Head, Listener, Read};
use crate::p2p::messages::Begun;

/// Takes what comes, and notes what is to be done about it.
pub(super) struct Inbox<'e> {
    conversation: &'e mut Conversation,
    current: Option<&'e mut Running>,
    exchanging: Option<&'e mut Exchanging>,
    /// No operation follows: what comes has no effect.
    is_broken: bool,
    /// Whoever has a number from there on is an aggregator and no rank.
    ranks: u32,
    /// What aggregators say.
    pub(super) reports: Vec<(u32, Report)>,
    /// Part of a message between two ranks has come.
    pub(super) heard: bool,
    /// What peers read here.
    pub(super) served: Vec<(u32, Read)>,
    /// A rank that does not keep to the protocol.
    pub(super) wrong: Option<u32>,
    /// A rank that has called something else: its call, and this rank's.
    pub(super) disagrees: Option<(u32, [Summary; 2])>,
}

impl<'e> Inbox<'e> {
    pub(super) fn new(
        conversation: &'e mut Conversation,
        current: Option<&'e mut Running>,
        exchanging: Option<&'e mut Exchanging>,
        is_broken: bool,
        ranks: u32,
    ) -> Self {
        let reports = Vec::new();
        let (heard, served, wrong, disagrees) = (false, Vec::new(), None, None);
        Self { conversation, current, exchanging, is_broken, ranks, reports, heard, served, wrong, disagrees }
    }

    /// The operation that a fragment is of, if it is under way and has not failed.
    fn exchanging(&mut self, head: &Head) -> Option<&mut Exchanging> {
        let exchanging = self.exchanging.as_deref_mut()?;
        let is_open = exchanging.state.is_active() && !exchanging.disagrees;
        (exchanging.operation == head.operation && is_open).then_some(exchanging)
    }
}

impl Listener for Inbox<'_> {
    fn is_due(&self, operation: u32, transfer: bool) -> bool {
        let participant = self.conversation.participant();
        let under_way = self.current.as_ref().map(|running| running.operation);
        let under_way = under_way.or(self.exchanging.as_ref().map(|exchanging| exchanging.operation));
        // While none is under way, the next is still to begin.
        let last = under_way.unwrap_or(participant.operation().wrapping_sub(1));
        let latest = if transfer { last } else { participant.latest() };
        self.is_broken || operation.wrapping_sub(latest) as i32 <= 0
    }

    fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Message { from, bytes } if from >= self.ranks => match Report::decode(bytes, self.ranks) {
                Some(report) => self.reports.push((from, report)),
                None => self.wrong = Some(from),
            },
            Event::Request { from, .. } | Event::Data { from, .. } if from >= self.ranks => self.wrong = Some(from),
            Event::Message { from, bytes } => self.conversation.hear(from, bytes),
            Event::Request { from, read } => {
                let running = self.current.as_ref().filter(|running| running.operation == read.operation);
                let len = running.map_or(0, |running| running.receive.len() as u64);
                match read.offset.checked_add(read.bytes) {
                    Some(end) if end <= len && read.bytes > 0 => self.served.push((from, read)),
                    _ => self.wrong = Some(from),
                }
            }
            Event::Data { from, operation, tag, offset, bytes } => {
                let running = self.current.as_mut().filter(|running| running.operation == operation);
                match running.map(|running| running.take_read(from, tag, offset, bytes)) {
                    Some(Some(Reading::Under)) => self.conversation.moved(),
                    Some(Some(Reading::Over { first })) => self.conversation.read(first),
                    // One that has failed here is not waited for any more.
                    None if self.current.is_none() => {}
                    _ => self.wrong = Some(from),
                }
            }
        }
    }

    fn begin(&mut self, from: u32, head: &Head) -> bool {
        let is_apart = from >= self.ranks;
        if let Some(exchanging) = self.exchanging(head) {
            let own = exchanging.summary();
            match exchanging.begin(from, head) {
                Begun::Fine => {}
                Begun::Disagrees | Begun::Differs(_) if is_apart => return false,
                Begun::Disagrees => self.disagrees = Some((from, [head.summary, own])),
                Begun::Differs(lengths) => {
                    let call = |amount| Summary { amount, ..own };
                    self.disagrees = Some((from, lengths.map(call)));
                }
                Begun::Impossible => return false,
            }
        } else if !is_apart && self.current.as_ref().is_some_and(|running| running.operation == head.operation) {
            // Here it has a barrier.
            self.disagrees = Some((from, [head.summary, self.conversation.participant().summary()]));
        }
        true
    }

    fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8] {
        self.exchanging(head).map_or(&mut [], |exchanging| exchanging.place(from, head, at))
    }

    fn end(&mut self, from: u32, head: &Head) {
        if let Some(exchanging) = self.exchanging(head) {
            if !exchanging.came(from, head) {
                self.wrong = Some(from);
            }
            self.heard = true;
        }
    }
}
