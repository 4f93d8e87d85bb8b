//! Connections of a rank to aggregators that are no ranks: by TCP, for all but the blocks.

use std::net::SocketAddr;
use std::time::Duration;

use flexcast_mesh::aggregator::{Key, Report, Terms};
use flexcast_mesh::external::{self, KnownAggregators};
use flexcast_mesh::{END, Event, Head, Listener, MESSAGE, MOST_FRAME_BYTES, NONSENSE, Peer, dial_aggregator};
use flexcast_proto::p2p::{Memory, Part, Span};
use flexcast_proto::{Cause, FailureCode, Summary, WaitedFor};
use nix::libc;

use super::Fault;

/// The connection to an aggregator.
#[derive(Debug, Default)]
struct Contact {
    /// None before it is made, and when it has ended.
    peer: Option<Peer>,
    /// Its queue pairs.
    info: Option<Vec<u8>>,
}

/// The connections to all aggregators.
#[derive(Debug)]
pub(super) struct Contacts {
    own: u32,
    /// Of the first aggregator; the others' differ in its number.
    terms: Terms,
    addresses: Vec<SocketAddr>,
    /// Of the handshakes.
    key: Key,
    /// How long an aggregator may be silent.
    bound: Duration,
    /// By aggregator.
    all: Vec<Contact>,
    known: KnownAggregators,
    room: Vec<u8>,
    /// Operations that have been called.
    calls: u32,
}

/// Takes what an aggregator says.
struct Inbox<'r> {
    workers: u32,
    reports: &'r mut Vec<Report>,
    /// Something that it cannot say.
    wrong: bool,
}

impl Listener for Inbox<'_> {
    fn is_due(&self, _: u32, _: bool) -> bool {
        true
    }

    fn take(&mut self, event: Event<'_>) {
        let report = match event {
            Event::Message { bytes, .. } => Report::decode(bytes, self.workers),
            Event::Request { .. } | Event::Data { .. } => None,
        };
        self.wrong |= report.is_none();
        self.reports.extend(report);
    }

    fn begin(&mut self, _: u32, _: &Head) -> bool {
        false
    }

    fn place(&mut self, _: u32, _: &Head, _: u64) -> &mut [u8] {
        &mut []
    }

    fn end(&mut self, _: u32, _: &Head) {}
}

impl Contact {
    /// Sends what waits, and takes what has come. Returns why a connection has broken.
    fn move_on(&mut self, room: &mut [u8], workers: u32, reports: &mut Vec<Report>) -> Option<String> {
        let peer = self.peer.as_mut()?;
        peer.flush(&());
        let mut inbox = Inbox { workers, reports, wrong: false };
        if peer.is_read() {
            peer.receive(room, &mut inbox);
        }
        if inbox.wrong {
            peer.distrust();
        }
        if !peer.closed {
            return None;
        }
        let code = peer.breaks.take().unwrap_or(0);
        let why = peer.fault().map_or_else(|| external::broken(code), str::to_owned);
        (self.peer, self.info) = (None, None);
        Some(why)
    }
}

impl Contacts {
    pub(super) fn new(own: u32, terms: Terms, addresses: Vec<SocketAddr>, (key, bound): (Key, Duration)) -> Self {
        let known = KnownAggregators::new(addresses.len());
        let all = addresses.iter().map(|_| Contact::default()).collect();
        Self { own, terms, addresses, key, bound, all, known, room: vec![0; MOST_FRAME_BYTES], calls: 0 }
    }

    /// Whether all aggregators are there, as far as that is known while no operation is under way. Who has ended, or
    /// says that it will, is forgotten.
    pub(super) fn are_there(&mut self) -> bool {
        let Self { all, room, terms, .. } = self;
        let mut reports = Vec::new();
        for contact in all.iter_mut() {
            reports.clear();
            contact.move_on(room, terms.workers, &mut reports);
            if reports.iter().any(|report| !matches!(report, Report::Waiting { .. })) {
                (contact.peer, contact.info) = (None, None);
            }
        }
        all.iter().all(|contact| contact.peer.is_some())
    }

    /// Connects to aggregators to which there is no connection, without waiting, and sends all of them the connection
    /// information of new queue pairs.
    pub(super) fn offer(&mut self, info: &[u8]) -> Result<(), Fault> {
        for number in 0..self.all.len() {
            let Some(contact) = self.all.get_mut(number) else { continue };
            contact.info = None;
            if contact.peer.is_none() {
                let terms = Terms { aggregator: number as u32, ..self.terms };
                let address = self.addresses[number];
                match dial_aggregator((self.own, terms), number as u32, address, &self.key, self.bound) {
                    Ok(peer) => contact.peer = Some(peer),
                    Err(error) => {
                        let code = error.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
                        return Err(blame(number as u32, external::broken(code as u16)));
                    }
                }
            }
            // Before the call of the operation.
            let operation = self.calls.wrapping_add(1);
            self.all[number].peer.iter_mut().for_each(|peer| peer.add(MESSAGE, operation, [info, &[]]));
        }
        Ok(())
    }

    /// Sends the call of an operation to all aggregators.
    pub(super) fn call(&mut self, summary: Summary, now_ps: u64) {
        self.known.begin(now_ps);
        self.calls = self.calls.wrapping_add(1);
        let head = Head { operation: self.calls, tag: 0, summary, total: 0, offset: 0, bytes: 0 };
        let nothing = Part { memory: Memory::Temporary, blocks: Span { first: 0, count: 0 } };
        for peer in self.all.iter_mut().filter_map(|contact| contact.peer.as_mut()) {
            peer.transfer(head, nothing, &());
            peer.take_finished();
            peer.flush(&());
        }
    }

    /// Sends what waits, and takes what aggregators report. Returns whether one has sent its queue pairs.
    ///
    /// # Errors
    /// One has gone, or says why the operation fails.
    pub(super) fn advance(&mut self, now_ps: u64) -> Result<bool, Fault> {
        let mut has_info = false;
        for number in 0..self.all.len() as u32 {
            let Self { all, room, terms, .. } = self;
            let mut reports = Vec::new();
            let broken = all[number as usize].move_on(room, terms.workers, &mut reports);
            if !reports.is_empty() {
                self.known.received(number, now_ps);
            }
            for report in reports {
                has_info |= matches!(report, Report::ConnectInfo { .. });
                self.take_report(number, report)?;
            }
            if let Some(why) = broken {
                return Err(blame(number, why));
            }
        }
        Ok(has_info)
    }

    fn take_report(&mut self, number: u32, report: Report) -> Result<(), Fault> {
        match report {
            Report::Waiting { rank } => {
                if let Some(known) = self.known.get_mut(number) {
                    known.waits_for = Some(rank);
                }
                Ok(())
            }
            Report::ConnectInfo { bytes } => {
                self.all[number as usize].info = Some(bytes);
                Ok(())
            }
            Report::Lost { rank } if rank == self.own => Err(blame(number, external::lost())),
            Report::Lost { rank } => {
                Err(Fault::Reported { rank, cause: Cause::Connection(FailureCode::ConnectionReset) })
            }
            Report::Silent { rank } => Err(Fault::Reported { rank, cause: Cause::Silent(WaitedFor::Block) }),
            Report::Differs { rank, .. } => Err(Fault::Reported { rank, cause: Cause::Disagrees }),
            Report::Refused { reason } => Err(blame(number, external::refusal(&reason))),
        }
    }

    /// The queue pairs of all aggregators, once they are known.
    pub(super) fn infos(&self) -> Option<Vec<&[u8]>> {
        self.all.iter().map(|contact| contact.info.as_deref()).collect()
    }

    /// The first aggregator that has not sent its queue pairs.
    pub(super) fn without_info(&self) -> Option<u32> {
        self.all.iter().position(|contact| contact.info.is_none()).map(|number| number as u32)
    }

    /// What is known of aggregators.
    pub(super) const fn known(&self) -> &KnownAggregators {
        &self.known
    }
}

impl Drop for Contacts {
    /// Says that this rank leaves. What an aggregator has not taken by then it does without.
    fn drop(&mut self) {
        for peer in self.all.iter_mut().filter_map(|contact| contact.peer.as_mut()) {
            peer.add(END, 0, [&[], &[]]);
            peer.flush(&());
            peer.discard(&mut self.room);
        }
    }
}

/// An aggregator has failed.
pub(super) const fn blame(number: u32, reason: String) -> Fault {
    Fault::Aggregator { number: number as u16, reason }
}

/// That an aggregator does not keep to the protocol.
pub(super) fn nonsense(reason: &str) -> String {
    format!("{}: {reason}", external::broken(NONSENSE))
}
