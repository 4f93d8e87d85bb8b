//! The engine's side of connections: takes what peers say, ask for, and send.

use flexcast_mesh::aggregator::Report;
use flexcast_mesh::{Event, Head, Listener, Read};
use flexcast_proto::Summary;

use super::UdpOperations;
use super::exchange::Exchange;
use super::operation::Reading;
use flexcast_sparse::messages::Begun;

/// Takes what comes, and notes what is to be done about it.
pub(super) struct Inbox<'e> {
    ops: &'e mut UdpOperations,
    /// What aggregators say.
    pub(super) reports: Vec<(u32, Report)>,
    /// Part of a message between two ranks has come.
    pub(super) received_part: bool,
    /// What peers read here.
    pub(super) served: Vec<(u32, Read)>,
    /// A rank that does not keep to the protocol.
    pub(super) wrong: Option<u32>,
    /// A rank that has called something else: its call, and this rank's.
    pub(super) disagrees: Option<(u32, [Summary; 2])>,
}

impl<'e> Inbox<'e> {
    pub(super) const fn new(ops: &'e mut UdpOperations) -> Self {
        let reports = Vec::new();
        Self { ops, reports, received_part: false, served: Vec::new(), wrong: None, disagrees: None }
    }

    /// Whether a peer is an aggregator and no rank.
    const fn is_external(&self, peer: u32) -> bool {
        peer >= self.ops.core.place.ranks()
    }

    /// The operation that a fragment is of, if it is under way and has not failed.
    fn exchange(&mut self, head: &Head) -> Option<&mut Exchange> {
        let exchange = self.ops.exchange.as_mut()?;
        let is_open = exchange.state.is_active() && !exchange.work.disagrees;
        (exchange.number == head.operation && is_open).then_some(exchange)
    }
}

impl Listener for Inbox<'_> {
    fn is_due(&self, operation: u32, transfer: bool) -> bool {
        let participant = self.ops.protocol.participant();
        // While none is under way, the next is still to begin.
        let last = under_way(self.ops).unwrap_or(participant.operation().wrapping_sub(1));
        let latest = if transfer { last } else { participant.latest() };
        // After a failure no operation follows: what comes has no effect.
        self.ops.core.broken.is_some() || operation.wrapping_sub(latest) as i32 <= 0
    }

    fn take(&mut self, event: Event<'_>) {
        let ranks = self.ops.core.place.ranks();
        match event {
            Event::Message { from, bytes } if self.is_external(from) => match Report::decode(bytes, ranks) {
                Some(report) => self.reports.push((from, report)),
                None => self.wrong = Some(from),
            },
            Event::Request { from, .. } | Event::Data { from, .. } if self.is_external(from) => {
                self.wrong = Some(from);
            }
            Event::Message { from, bytes } => self.ops.protocol.receive(from, bytes),
            Event::Request { from, read } => {
                let operation = self.ops.current.as_ref().filter(|operation| operation.number == read.operation);
                let len = operation.map_or(0, |operation| operation.receive.len() as u64);
                match read.offset.checked_add(read.bytes) {
                    Some(end) if end <= len && read.bytes > 0 => self.served.push((from, read)),
                    _ => self.wrong = Some(from),
                }
            }
            Event::Data { from, operation: number, tag, offset, bytes } => {
                let operation = self.ops.current.as_mut().filter(|operation| operation.number == number);
                match operation.map(|operation| operation.take_read(from, tag, offset, bytes)) {
                    Some(Some(Reading::Under)) => self.ops.protocol.moved(),
                    Some(Some(Reading::Over { first })) => self.ops.protocol.read(first),
                    // One that has failed here is not waited for any more.
                    None if self.ops.current.is_none() => {}
                    _ => self.wrong = Some(from),
                }
            }
        }
    }

    fn begin(&mut self, from: u32, head: &Head) -> bool {
        let is_external = self.is_external(from);
        if let Some(exchange) = self.exchange(head) {
            let own = exchange.summary;
            let begun = exchange.begin(from, head);
            let calls = begun.calls(head.summary, own);
            if begun == Begun::Impossible || (calls.is_some() && is_external) {
                return false;
            }
            if let Some(calls) = calls {
                self.disagrees = Some((from, calls));
            }
        } else if !is_external && self.ops.current.as_ref().is_some_and(|operation| operation.number == head.operation)
        {
            // Here it has a barrier.
            self.disagrees = Some((from, [head.summary, self.ops.protocol.participant().summary()]));
        }
        true
    }

    fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8] {
        self.exchange(head).map_or(&mut [], |exchange| exchange.place(from, head, at))
    }

    fn end(&mut self, from: u32, head: &Head) {
        if let Some(exchange) = self.exchange(head) {
            if !exchange.came(from, head) {
                self.wrong = Some(from);
            }
            self.received_part = true;
        }
    }
}

/// Number of the operation under way.
pub(super) fn under_way(ops: &UdpOperations) -> Option<u32> {
    let of_blocks = ops.current.as_ref().map(|operation| operation.number);
    of_blocks.or(ops.exchange.as_ref().map(|exchange| exchange.number))
}
