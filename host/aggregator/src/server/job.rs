//! A job at one of its aggregators: the connections of its workers, and the operation under way.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use flexcast_mesh::aggregator::{Report, Terms};
use flexcast_mesh::{END, Event, Head, Interest, Listener, MESSAGE, Peer, Source};
use flexcast_proto::Summary;
use flexcast_proto::p2p::Part;

use super::budget::Reservation;
use super::cards::Cards;
use super::operation::Operation;
use super::status::JobStatus;
use flexcast_sparse::messages::{Begun, Outgoing, Spare};

/// Between two reports of whom an operation waits for: workers know by it that the aggregator lives.
const NOTICE: Duration = Duration::from_millis(500);
/// Longest that workers have to receive the reason why they are not served any more, and to go.
const CLOSING: Duration = Duration::from_secs(2);
/// A worker that goes in the midst of an operation may have found something wrong, and notifies the others: that may
/// come first.
pub(super) const GRACE: Duration = Duration::from_millis(250);

/// A worker's connection.
#[derive(Debug)]
struct Seat {
    peer: Peer,
    token: u64,
    /// What is waited for on it.
    interest: Option<Interest>,
    /// Answers that are being sent to it.
    sending: u32,
}

/// A job, as one of its aggregators sees it.
#[derive(Debug)]
pub(super) struct Job {
    terms: Terms,
    timeout: Duration,
    /// By rank; none: it is not connected.
    seats: Vec<Option<Seat>>,
    /// Ranks that have left in good order: they do not come back.
    left: Vec<bool>,
    operation: Option<Operation>,
    /// Number of the last operation that has begun.
    latest: Option<u32>,
    spare: Spare,
    /// Where RDMA cards carry the blocks.
    cards: Option<Cards>,
    reservation: Reservation,
    /// When a message has last been added, or an answer sent.
    progressed: Instant,
    /// When workers have last been sent whom the operation waits for.
    noticed: Instant,
    /// When the operation fails because a rank has gone.
    leaving: Option<(Instant, u32)>,
    /// It has failed: when the connections that are left are closed.
    closes: Option<Instant>,
    /// Why, for a worker that was taken before that and whose connection comes after it.
    ended: Option<Report>,
    operations: u64,
    received_bytes: u64,
}

/// Takes what one worker sends.
struct Inbox<'j> {
    terms: &'j Terms,
    operation: &'j mut Option<Operation>,
    latest: &'j mut Option<u32>,
    spare: &'j mut Spare,
    cards: &'j mut Option<Cards>,
    reservation: &'j mut Reservation,
    /// The own queue pairs, for all workers.
    info: Option<Vec<u8>>,
    /// The job has failed: what comes goes nowhere.
    is_over: bool,
    begun: bool,
    /// A whole message has been added.
    progressed: bool,
    /// The worker does not keep to the protocol.
    wrong: bool,
    /// Why the job fails.
    end: Option<Report>,
    received_bytes: u64,
}

impl Inbox<'_> {
    fn open(&mut self) -> Option<&mut Operation> {
        if self.is_over || self.end.is_some() { None } else { self.operation.as_mut() }
    }
}

impl Listener for Inbox<'_> {
    fn is_due(&self, operation: u32, _: bool) -> bool {
        // Whoever is ahead waits until the answers of the operation before are with all others.
        let under_way = self.operation.as_ref().filter(|_| !self.is_over);
        under_way.is_none_or(|under_way| operation.wrapping_sub(under_way.number).cast_signed() <= 0)
    }

    fn take(&mut self, event: Event<'_>) {
        if self.is_over || self.end.is_some() {
            return;
        }
        let (Event::Message { from, bytes }, Some(cards)) = (event, self.cards.as_mut()) else {
            self.wrong = true;
            return;
        };
        match cards.offer(from, bytes, self.terms, self.reservation) {
            Ok(None) => {}
            Ok(info) => self.info = info,
            Err(reason) => self.end = Some(Report::Refused { reason }),
        }
    }

    fn begin(&mut self, from: u32, head: &Head) -> bool {
        if self.is_over || self.end.is_some() {
            return true;
        }
        if self.operation.is_none() {
            let is_old = |latest: &u32| head.operation.wrapping_sub(*latest).cast_signed() <= 0;
            if self.latest.as_ref().is_some_and(is_old) {
                return false;
            }
            let called = (head.operation, head.summary, from);
            match Operation::new(called, self.terms, self.reservation, std::mem::take(self.spare)) {
                Ok(operation) => {
                    if let Some((cards, call)) = self.cards.as_mut().zip(operation.call()) {
                        cards.call(call);
                    }
                    *self.operation = Some(operation);
                }
                Err(reason) => {
                    self.end = Some(Report::Refused { reason });
                    return true;
                }
            }
            (*self.latest, self.begun) = (Some(head.operation), true);
        }
        let Some(operation) = self.operation.as_mut().filter(|operation| operation.number == head.operation) else {
            return false;
        };
        match operation.begin(from, &head.summary, (head.tag, head.total, head.offset)) {
            Begun::Fine => true,
            Begun::Disagrees | Begun::Differs(_) => {
                self.end = Some(Report::Differs { rank: from, theirs: head.summary });
                true
            }
            Begun::Impossible => false,
        }
    }

    fn place(&mut self, from: u32, head: &Head, at: u64) -> &mut [u8] {
        self.open().map_or(&mut [], |operation| operation.place(from, head.tag, head.offset + at))
    }

    fn end(&mut self, from: u32, head: &Head) {
        let end = head.offset + head.bytes;
        let Some(came) = self.open().map(|operation| operation.came(from, head.tag, (end, head.total))) else { return };
        self.wrong |= !came;
        self.progressed |= end == head.total;
        self.received_bytes += head.bytes;
    }
}

impl Source for Operation {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        self.source(part).get(at as usize..).unwrap_or_default()
    }
}

/// Whoever waits for connections.
pub(super) trait Watcher {
    /// What is waited for on a connection changes.
    fn change(&mut self, connection: BorrowedFd<'_>, token: u64, before: Option<Interest>, now: Interest);

    /// A connection is closed: that of this rank.
    fn forget(&mut self, connection: BorrowedFd<'_>, token: u64, rank: u32);
}

impl Job {
    /// `cards`: what adds where RDMA cards carry the blocks.
    pub(super) fn new(
        terms: Terms,
        timeout: Duration,
        (reservation, cards): (Reservation, Option<Cards>),
        now: Instant,
    ) -> Self {
        Self {
            terms,
            timeout,
            seats: (0..terms.workers).map(|_| None).collect(),
            left: vec![false; terms.workers as usize],
            operation: None,
            latest: None,
            spare: Spare::default(),
            cards,
            reservation,
            progressed: now,
            noticed: now,
            leaving: None,
            closes: None,
            ended: None,
            operations: 0,
            received_bytes: 0,
        }
    }

    /// Takes the connection of a rank that has none.
    pub(super) fn join(&mut self, rank: u32, token: u64, mut peer: Peer) {
        if let Some(report) = &self.ended {
            peer.add(MESSAGE, self.latest.unwrap_or(0), [&report.encode(), &[]]);
            peer.add(END, 0, [&[], &[]]);
        }
        if let Some(seat) = self.seats.get_mut(rank as usize) {
            *seat = Some(Seat { peer, token, interest: None, sending: 0 });
            self.left[rank as usize] = false;
        }
    }

    /// Takes what has come from a worker.
    pub(super) fn receive(&mut self, rank: u32, room: &mut [u8], now: Instant) {
        self.listen(rank, now, |peer, inbox| {
            if peer.is_read() {
                peer.receive(room, inbox);
            }
        });
    }

    fn listen(&mut self, rank: u32, now: Instant, take: impl FnOnce(&mut Peer, &mut Inbox<'_>)) {
        let Self { terms, seats, operation, latest, spare, cards, reservation, closes, .. } = self;
        let Some(seat) = seats.get_mut(rank as usize).and_then(Option::as_mut) else { return };
        let mut inbox = Inbox {
            terms,
            operation,
            latest,
            spare,
            cards,
            reservation,
            info: None,
            is_over: closes.is_some(),
            begun: false,
            progressed: false,
            wrong: false,
            end: None,
            received_bytes: 0,
        };
        take(&mut seat.peer, &mut inbox);
        let Inbox { info, begun, progressed, wrong, end, received_bytes, .. } = inbox;
        if wrong {
            tracing::warn!(job = %format!("{:x}", self.terms.job), rank, "a worker does not keep to the protocol");
            seat.peer.distrust();
        }
        self.received_bytes += received_bytes;
        if begun || progressed || info.is_some() {
            self.progressed = now;
        }
        if let Some(bytes) = info {
            let (report, number) = (Report::ConnectInfo { bytes }.encode(), self.latest.unwrap_or(0));
            self.seats.iter_mut().flatten().for_each(|seat| seat.peer.add(MESSAGE, number, [&report, &[]]));
        }
        if begun {
            let gone = self.left.iter().position(|left| *left);
            (self.noticed, self.leaving) = (now, gone.map(|rank| (now + GRACE, rank as u32)));
        }
        if let Some(report) = end {
            self.fail(&report, now);
        }
    }

    /// Whether [`Job::poll`] is to be called again and again: a message that comes to a queue pair wakes nobody.
    pub(super) fn is_polling(&self) -> bool {
        self.operation.as_ref().is_some_and(Operation::is_polling)
    }

    /// Adds what has come over queue pairs. Returns whether there was anything.
    pub(super) fn poll(&mut self, now: Instant) -> bool {
        let Self { operation: Some(operation), cards: Some(cards), .. } = self else { return false };
        match cards.advance() {
            Ok(moved) => {
                operation.note(cards.is_complete(), cards.awaited());
                if moved {
                    self.progressed = now;
                }
                moved
            }
            Err(report) => {
                self.fail(&report, now);
                true
            }
        }
    }

    /// Sends what can be sent, ends what is over, and watches the time. Whoever is to be waited for is reported to
    /// `watcher`.
    pub(super) fn turn(&mut self, now: Instant, watcher: &mut dyn Watcher) {
        loop {
            self.send(now);
            let dismissed = self.dismiss(now, watcher);
            let resumed = self.release(now);
            if !dismissed && !resumed {
                break;
            }
        }
        self.check_time(now);
        self.send(now);
        self.dismiss(now, watcher);
        for seat in self.seats.iter_mut().flatten() {
            let interest = Interest { read: seat.peer.is_read(), write: seat.peer.is_waiting() };
            if seat.interest != Some(interest) {
                watcher.change(seat.peer.stream.as_fd(), seat.token, seat.interest, interest);
                seat.interest = Some(interest);
            }
        }
    }

    /// Gives answers, and whatever waits, to the system.
    fn send(&mut self, now: Instant) {
        let Self { seats, operation, .. } = self;
        let Some(operation) = operation else {
            seats.iter_mut().flatten().for_each(|seat| _ = seat.peer.flush(&()));
            return;
        };
        loop {
            let mut moved = false;
            while let Some(Outgoing { to, tag, source }) = operation.poll() {
                moved = true;
                match seats.get_mut(to as usize).and_then(Option::as_mut).filter(|seat| seat.peer.is_open()) {
                    Some(seat) => {
                        let (number, summary) = (operation.number, operation.summary);
                        let total = operation.source(source).len() as u64;
                        let head = Head { operation: number, tag, summary, total, offset: 0, bytes: 0 };
                        seat.peer.transfer(head, source, &*operation);
                        seat.sending += 1;
                    }
                    None => operation.sent(1),
                }
            }
            for seat in seats.iter_mut().flatten() {
                moved |= seat.peer.flush(&*operation);
                let finished = seat.peer.take_finished();
                if finished > 0 {
                    seat.sending = seat.sending.saturating_sub(finished);
                    operation.sent(finished);
                    self.progressed = now;
                }
            }
            if !moved {
                break;
            }
        }
    }

    /// Forgets the workers that are gone. Returns whether there was one.
    fn dismiss(&mut self, now: Instant, watcher: &mut dyn Watcher) -> bool {
        let mut any = false;
        for rank in 0..self.seats.len() {
            let Some(seat) = self.seats[rank].take_if(|seat| seat.peer.closed) else { continue };
            any = true;
            watcher.forget(seat.peer.stream.as_fd(), seat.token, rank as u32);
            let has_left = seat.peer.breaks.is_none();
            self.left[rank] = has_left;
            let Some(operation) = &mut self.operation else { continue };
            operation.sent(seat.sending);
            if operation.is_complete() {
                continue;
            }
            let rank = rank as u32;
            if let Some(why) = seat.peer.fault() {
                // It is not the rank that has done this: all learn on which connection it was.
                let reason = format!("its connection to rank {rank} at {} {why}", seat.peer.address());
                self.fail(&Report::Refused { reason }, now);
            } else {
                self.leaving.get_or_insert((now + GRACE, rank));
            }
        }
        any
    }

    /// Ends an operation that all workers are done with, and takes what has waited for that. Returns whether there was
    /// one.
    fn release(&mut self, now: Instant) -> bool {
        let Some(operation) = self.operation.take_if(|operation| operation.is_over()) else { return false };
        self.spare = operation.into_spare();
        self.operations += 1;
        self.leaving = None;
        for rank in 0..self.terms.workers {
            self.listen(rank, now, |peer, inbox| _ = peer.resume(inbox));
        }
        true
    }

    fn check_time(&mut self, now: Instant) {
        if let Some(at) = self.closes {
            if now >= at {
                self.seats.iter_mut().flatten().for_each(|seat| seat.peer.close(0));
            }
            return;
        }
        let Some(operation) = &self.operation else { return };
        let missing = operation.missing();
        if let Some((_, rank)) = self.leaving.filter(|(at, _)| now >= *at) {
            self.fail(&Report::Lost { rank }, now);
        } else if now >= self.progressed + self.timeout {
            let slow = |(_, seat): &(usize, &Option<Seat>)| seat.as_ref().is_some_and(|seat| seat.peer.is_waiting());
            let slow = || self.seats.iter().enumerate().find(slow).map(|(rank, _)| rank as u32);
            let rank = missing.or_else(slow).unwrap_or(0);
            self.fail(&Report::Silent { rank }, now);
        } else if now >= self.noticed + NOTICE {
            self.noticed = now;
            let (number, Some(rank)) = (operation.number, missing) else { return };
            let report = Report::Waiting { rank }.encode();
            for seat in self.seats.iter_mut().flatten().filter(|seat| !seat.peer.is_waiting()) {
                seat.peer.add(MESSAGE, number, [&report, &[]]);
            }
        }
    }

    /// When [`Job::turn`] has something to do although nothing comes.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.closes.is_some() {
            return self.closes;
        }
        self.operation.as_ref()?;
        let leaving = self.leaving.map(|(at, _)| at);
        [Some(self.progressed + self.timeout), Some(self.noticed + NOTICE), leaving].into_iter().flatten().min()
    }

    /// The operation under way, and with it the job, has failed: all workers are sent the reason, and are to go. Its
    /// memory is given back at once.
    pub(super) fn fail(&mut self, report: &Report, now: Instant) {
        if self.closes.is_some() {
            return;
        }
        let operation = self.operation.take();
        tracing::info!(job = %format!("{:x}", self.terms.job), ?report, "the job ends");
        let number = self.latest.unwrap_or(0);
        for seat in self.seats.iter_mut().flatten() {
            let rank = seat.peer.rank;
            match &operation {
                Some(operation) => seat.peer.abandon(operation),
                None => seat.peer.abandon(&()),
            }
            let report = match (report, &operation) {
                (Report::Differs { rank: differs, .. }, Some(operation)) if *differs == rank => {
                    let theirs: Summary = operation.summary;
                    Report::Differs { rank: operation.first, theirs }
                }
                _ => report.clone(),
            };
            seat.peer.add(MESSAGE, number, [&report.encode(), &[]]);
            seat.peer.add(END, 0, [&[], &[]]);
        }
        self.spare = Spare::default();
        self.received_bytes += self.cards.take().map_or(0, |cards| cards.received_bytes());
        self.reservation.give_back();
        (self.closes, self.ended) = (Some(now + CLOSING), Some(report.clone()));
    }

    /// Whether it has failed: nobody joins it any more.
    pub(super) const fn has_failed(&self) -> bool {
        self.closes.is_some()
    }

    /// Why it was refused, if that is why it has failed.
    pub(super) fn refusal(&self) -> Option<&str> {
        match &self.ended {
            Some(Report::Refused { reason }) => Some(reason),
            _ => None,
        }
    }

    /// Whether nobody is connected any more.
    pub(super) fn is_empty(&self) -> bool {
        self.seats.iter().all(Option::is_none)
    }

    pub(super) fn status(&self) -> JobStatus {
        JobStatus {
            job: format!("{:016x}", self.terms.job),
            aggregator: self.terms.aggregator,
            aggregators: self.terms.aggregators,
            workers: self.terms.workers,
            connected: self.seats.iter().flatten().count() as u32,
            operation: self.operation.as_ref().map(|operation| operation.number),
            waits_for: self.operation.as_ref().and_then(Operation::missing),
            operations: self.operations,
            received_bytes: self.received_bytes + self.cards.as_ref().map_or(0, Cards::received_bytes),
            carrier: self.terms.carrier.name().to_owned(),
            reserved_bytes: self.reservation.bytes(),
        }
    }
}
