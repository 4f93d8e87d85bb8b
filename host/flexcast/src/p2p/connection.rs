//! One peer: a connection for data and one for control in each direction, and what is under way on them.

use std::collections::VecDeque;

use flexcast_proto::p2p::Transfer;
use flexcast_proto::session::greeting::{Acquaintance, GREETING_BYTES, Greeting};
use flexcast_proto::session::keyed_hash;
use flexio::{
    Access, CompletionQueue, HostAddr, LocalSlice, MemoryRegion, Path, ProtectionDomain, QueueDepths, QueuePair,
    RemoteQp, Transport,
};
use zerocopy::{FromBytes, IntoBytes};

use super::announcement::{ANNOUNCEMENT_BYTES, Announcement};
use super::executor::Executor;
use super::posting::Posting;
use super::{Config, Error, Traffic};
use flexcast_rc::requester::{Outcome, PROBES, Request, Requester, Wire};

/// Receives for announcements, and for the greeting before the first. A peer announces its next operation with this
/// rank when the last one is complete, and to complete that it needs data that this rank sends after it has seen the
/// announcement of it; the second covers the time until the first is posted again.
pub(super) const CONTROL_DEPTH: u32 = 2;
/// Distance of two slots for announcements: a line each.
const SLOT_BYTES: u64 = 64;
const _: () = assert!(ANNOUNCEMENT_BYTES as u64 <= SLOT_BYTES && GREETING_BYTES as u64 <= SLOT_BYTES);
const SLOTS_PER_PEER: u64 = CONTROL_DEPTH as u64;

/// A connection's number, peer, and number of receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) index: u32,
    pub(super) peer: u32,
    pub(super) accepts: u32,
}

impl Slots {
    /// Bytes of the region for so many peers. Its first slot is for receives that only take an immediate.
    pub(super) const fn bytes(peers: usize) -> usize {
        (SLOT_BYTES * (1 + SLOTS_PER_PEER * peers as u64)) as usize
    }

    /// Offset of a slot in the region.
    const fn offset(self, slot: u32) -> u64 {
        SLOT_BYTES * (1 + SLOTS_PER_PEER * self.index as u64 + slot as u64)
    }
}

/// What a completion is of: comes back in its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A write; whether it ends a message.
    Write { last: bool },
    /// The own announcement.
    Announce,
    /// The own greeting.
    Greet,
    /// A message of the peer.
    Message,
    /// An announcement of the peer, in this slot.
    Announcement { slot: u32 },
    /// A probe of the peer.
    Probe(Traffic),
}

impl Work {
    fn id(self, connection: u32) -> u64 {
        let code: u64 = match self {
            Self::Write { last } => u64::from(last),
            Self::Announce => 2,
            Self::Message => 3,
            Self::Probe(Traffic::Data) => 4,
            Self::Probe(Traffic::Control) => 5,
            Self::Greet => 6,
            Self::Announcement { slot } => 7 + u64::from(slot),
        };
        code << 32 | u64::from(connection)
    }

    /// What an id says: connection and work.
    pub(super) fn of(id: u64) -> (usize, Self) {
        let work = match id >> 32 {
            code @ 0..=1 => Self::Write { last: code == 1 },
            2 => Self::Announce,
            3 => Self::Message,
            4 => Self::Probe(Traffic::Data),
            5 => Self::Probe(Traffic::Control),
            6 => Self::Greet,
            code => Self::Announcement { slot: (code - 7) as u32 },
        };
        (id as u32 as usize, work)
    }
}

/// What comes with the last write of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Immediate {
    /// The message's number among those that the receiver gets, below 2^31.
    pub(super) tag: u32,
    /// See [`Group::report_stall`](super::Group::report_stall).
    pub(super) has_stalled: bool,
}

impl Immediate {
    const STALLED: u32 = 1 << 31;

    const fn encode(self) -> u32 {
        self.tag | if self.has_stalled { Self::STALLED } else { 0 }
    }

    pub(super) const fn decode(immediate: u32) -> Self {
        Self { tag: immediate & !Self::STALLED, has_stalled: immediate & Self::STALLED != 0 }
    }
}

/// A message that is being written.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    transfer: Transfer,
    /// Bytes posted of it.
    done: u64,
}

/// What a call to [`Connection::write`] has posted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Posted {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    slots: Slots,
    data: Pair,
    control: Pair,
    /// None until it is connected.
    acquaintance: Option<Acquaintance>,
    /// Most messages of one operation that the peer has receives for.
    peer_accepts: u32,
    config: Config,
    /// What the peer has announced and this rank has not finished, in order: its current operation, and the peer's next
    /// one with this rank, which it may be at when only acknowledgements of the current one are still on their way.
    announced: [Option<Announcement>; 2],
    /// The own announcement is to be sent; one is under way.
    announce: bool,
    announcing: bool,
    outgoing: VecDeque<Outgoing>,
    writes: u32,
    /// Receives of messages are posted with this.
    nothing: LocalSlice,
    /// When the peer's last message or announcement came.
    received_ps: Option<u64>,
}

impl Connection {
    pub(super) fn new(
        pd: &ProtectionDomain,
        completions: &CompletionQueue,
        slots: Slots,
        config: Config,
    ) -> Result<Self, Error> {
        let data = QueueDepths { send: config.writes + PROBES, receive: slots.accepts.max(1) };
        let control = QueueDepths { send: CONTROL_DEPTH + PROBES, receive: CONTROL_DEPTH };
        Ok(Self {
            slots,
            data: Pair::new(pd, completions, data, Traffic::Data, config.restarts)?,
            control: Pair::new(pd, completions, control, Traffic::Control, config.restarts)?,
            acquaintance: None,
            peer_accepts: 0,
            config,
            announced: [None; 2],
            announce: false,
            announcing: false,
            outgoing: VecDeque::with_capacity(config.writes as usize),
            writes: 0,
            nothing: LocalSlice { addr: HostAddr(0), len: 0, lkey: 0 },
            received_ps: None,
        })
    }

    pub(super) fn peer(&self) -> u32 {
        self.slots.peer
    }

    /// Messages of the peer in one operation for which there are receives.
    pub(super) fn accepts(&self) -> u32 {
        self.slots.accepts
    }

    /// The same the other way.
    pub(super) fn peer_accepts(&self) -> u32 {
        self.peer_accepts
    }

    /// Numbers of the queue pairs for data and for control: each time the one that asks, and the one that answers.
    pub(super) fn numbers(&self) -> [[u32; 2]; 2] {
        [&self.data, &self.control].map(|pair| [pair.requester.qpn(), pair.answerer.qpn()])
    }

    /// Posts the receives and connects. Of the peer: the queue pairs for data and for control, as
    /// [`Connection::numbers`] has them.
    pub(super) fn connect(
        &mut self,
        [data, control]: [[RemoteQp; 2]; 2],
        greeting: Greeting,
        peer_accepts: u32,
        region: &MemoryRegion,
    ) -> Result<(), Error> {
        self.acquaintance = Some(Acquaintance::new(greeting));
        self.peer_accepts = peer_accepts;
        self.nothing = region.slice(0, SLOT_BYTES as u32)?;
        for _ in 0..self.slots.accepts {
            self.receive_message()?;
        }
        for slot in 0..CONTROL_DEPTH {
            self.receive_announcement(slot, region)?;
        }
        self.data.connect(&data, Traffic::Data, &self.config)?;
        self.control.connect(&control, Traffic::Control, &self.config)
    }

    /// Something of the peer has come.
    pub(super) const fn note_received(&mut self, now_ps: u64) {
        self.received_ps = Some(now_ps);
    }

    /// When the peer's last message or announcement came; none if nothing has.
    pub(super) const fn received_ps(&self) -> Option<u64> {
        self.received_ps
    }

    /// What answers the peer's requests, data and control.
    pub(super) fn into_answerers(self) -> [QueuePair; 2] {
        [self.data.answerer, self.control.answerer]
    }

    /// Posts the receive of a message again.
    pub(super) fn receive_message(&self) -> Result<(), Error> {
        Ok(self.data.answerer.post_receive(Work::Message.id(self.slots.index), self.nothing)?)
    }

    fn receive_announcement(&self, slot: u32, region: &MemoryRegion) -> Result<(), Error> {
        let id = Work::Announcement { slot }.id(self.slots.index);
        Ok(self.control.answerer.post_receive(id, region.slice(self.slots.offset(slot), SLOT_BYTES as u32)?)?)
    }

    /// The peer will write here in the operation that begins, or is to know of it.
    pub(super) fn expect_messages(&mut self) {
        self.announce = true;
    }

    /// Sends the own announcement if it is due and the last one has been sent; before the first of all the greeting.
    /// The peer writes nothing before it has checked that, and with it that its connection for data ends here.
    /// Returns whether it did.
    pub(super) fn announce(&mut self, posting: &Posting, executor: &Executor, now_ps: u64) -> Result<bool, Error> {
        if !self.announce || self.announcing {
            return Ok(false);
        }
        self.greet(now_ps)?;
        // With the entry itself: the card need not fetch it from memory, which is most of a short message's time.
        let announcement = posting.announcement(executor, self.slots.peer);
        self.control.requester.send_short(Work::Announce.id(self.slots.index), announcement.as_bytes(), now_ps)?;
        (self.announce, self.announcing) = (false, true);
        Ok(true)
    }

    /// Sends the own greeting, unless it has been sent.
    pub(super) fn greet(&mut self, now_ps: u64) -> Result<(), Error> {
        if let Some(greeting) = self.acquaintance.as_mut().and_then(|one| one.say(&keyed_hash)) {
            self.control.requester.send_short(Work::Greet.id(self.slots.index), &greeting, now_ps)?;
        }
        Ok(())
    }

    /// Whether both greetings have arrived.
    pub(super) fn has_greeted(&self) -> bool {
        self.acquaintance.is_none_or(|one| one.is_over()) && self.control.requester.is_idle()
    }

    /// Takes the completion of what this rank has asked. [`Outcome::Done`]: a write or the own announcement is at the
    /// peer.
    pub(super) fn complete(&mut self, work: Work, status: u32, now_ps: u64) -> Result<Outcome, Error> {
        let (pair, control) = match work {
            Work::Announce | Work::Greet | Work::Probe(Traffic::Control) => (&mut self.control, true),
            _ => (&mut self.data, false),
        };
        let outcome = pair.requester.complete(status, now_ps)?;
        match outcome {
            Outcome::Done if work == Work::Greet => {}
            Outcome::Done if control => self.announcing = false,
            Outcome::Done => self.writes = self.writes.saturating_sub(1),
            _ => {}
        }
        Ok(outcome)
    }

    /// An announcement of the peer has come, or its greeting before that. An announcement of an operation before number
    /// `at` is of no use any more: its messages had come before.
    pub(super) fn handle_announcement(
        &mut self,
        slot: u32,
        byte_len: u32,
        at: u32,
        region: &MemoryRegion,
    ) -> Result<(), Error> {
        let peer = self.slots.peer;
        let refused = |reason| Error::Protocol { peer, reason };
        let mut bytes = [0; SLOT_BYTES as usize];
        region.read(self.slots.offset(slot) as usize, &mut bytes)?;
        let bytes = &bytes[..bytes.len().min(byte_len as usize)];
        let received = self.acquaintance.as_mut().map_or(Ok(false), |one| one.receive(bytes, &keyed_hash));
        if received.map_err(|stranger| Error::WrongPeer { peer, came: stranger.to_string() })? {
            return self.receive_announcement(slot, region);
        }
        if byte_len != ANNOUNCEMENT_BYTES {
            return Err(refused(format!("an announcement of {byte_len} bytes: it has {ANNOUNCEMENT_BYTES}")));
        }
        let announcement = Announcement::read_from_bytes(bytes).map_err(|_| refused("no announcement".to_owned()))?;
        let is_over = announcement.descriptor.operation.get().wrapping_sub(at).cast_signed() < 0;
        match &mut self.announced {
            _ if is_over => {}
            [free @ None, _] | [Some(_), free @ None] => *free = Some(announcement),
            [Some(_), Some(before)] => {
                return Err(refused(format!(
                    "announced {} before {} was over",
                    announcement.descriptor, before.descriptor
                )));
            }
        }
        self.receive_announcement(slot, region)
    }

    /// Checks what the peer has announced, if it has, against the operation that this rank is at. The peer may be at a
    /// later one, if it gets nothing more from this rank in this one.
    pub(super) fn check(&self, posting: &Posting, executor: &Executor) -> Result<(), Error> {
        let Some(first) = &self.announced[0] else { return Ok(()) };
        let (expected, ranks) = (posting.expected(executor, self.slots.peer), executor.schedule().place().ranks());
        match first {
            Announcement { descriptor, .. }
                if *descriptor != expected
                    && (descriptor.operation == posting.descriptor.operation || !self.outgoing.is_empty()) =>
            {
                let (theirs, own) = (descriptor.to_string(), expected.to_string());
                let (peer_blocks, peer_call) = (descriptor.blocks(ranks), descriptor.call());
                let bytes = [descriptor.bytes(), expected.bytes()];
                Err(Error::Mismatch { peer: self.slots.peer, theirs, own, peer_blocks, peer_call, bytes })
            }
            _ => Ok(()),
        }
    }

    /// Takes a message to be written, unless as many wait already as may be under way.
    pub(super) fn take(&mut self, transfer: Transfer) -> bool {
        let room = self.outgoing.len() < self.config.writes as usize;
        if room {
            self.outgoing.push_back(Outgoing { transfer, done: 0 });
        }
        room
    }

    /// Posts as many writes as may be under way. `has_stalled`: what their immediates carry in addition to tags.
    pub(super) fn write(
        &mut self,
        posting: &Posting,
        executor: &Executor,
        has_stalled: bool,
        now_ps: u64,
    ) -> Result<Posted, Error> {
        let mut posted = Posted::default();
        let Some(announcement) = self.announced[0] else { return Ok(posted) };
        while self.writes < self.config.writes
            && let Some(outgoing) = self.outgoing.front_mut()
        {
            let transfer = outgoing.transfer;
            let piece = posting.piece(executor, &transfer, outgoing.done, self.config.write_bytes)?;
            let last = piece.behind == 0;
            let request = Request::Write {
                local: piece.local,
                remote_addr: announcement.addr.get().wrapping_add(piece.remote),
                rkey: announcement.rkey.get(),
                immediate: last.then(|| Immediate { tag: transfer.tag, has_stalled }.encode()),
            };
            self.data.requester.post(Work::Write { last }.id(self.slots.index), request, now_ps)?;
            self.writes += 1;
            posted.bytes += piece.len;
            if last {
                posted.messages += 1;
                self.outgoing.pop_front();
            } else {
                outgoing.done += piece.len;
            }
        }
        Ok(posted)
    }

    /// Probes or restarts the connections of a peer that has not acknowledged anything for long.
    pub(super) fn poll_silence(&mut self, wire: &mut Wire, now_ps: u64) -> Result<(), Error> {
        let id = |traffic| Work::Probe(traffic).id(self.slots.index);
        self.data.requester.poll_silence(id(Traffic::Data), wire, now_ps)?;
        Ok(self.control.requester.poll_silence(id(Traffic::Control), wire, now_ps)?)
    }

    /// Probes a peer for which this rank has waited since `since_ps`, if its connection for control has been still for
    /// long.
    pub(super) fn keep_alive(&mut self, since_ps: u64, now_ps: u64) -> Result<(), Error> {
        let id = Work::Probe(Traffic::Control).id(self.slots.index);
        Ok(self.control.requester.keep_alive(id, since_ps, now_ps)?)
    }

    /// When [`Connection::keep_alive`] has something to do, in picoseconds.
    pub(super) fn keep_alive_ps(&self, since_ps: u64) -> Option<u64> {
        self.control.requester.keep_alive_ps(since_ps)
    }

    /// The longest time without an acknowledgement since this was last asked for, in picoseconds.
    pub(super) fn take_silence_ps(&mut self) -> u64 {
        self.data.requester.take_silence_ps().max(self.control.requester.take_silence_ps())
    }

    /// How often its connections have restarted since this was last asked for.
    pub(super) const fn take_restarts(&mut self) -> u32 {
        self.data.requester.take_restarts() + self.control.requester.take_restarts()
    }

    /// When [`Connection::poll_silence`] has something to do, in picoseconds.
    pub(super) fn silence_ps(&self, wire: &Wire) -> Option<u64> {
        [&self.data, &self.control].into_iter().filter_map(|pair| pair.requester.silence_ps(wire)).min()
    }

    /// The operation is over: the peer's announcement of it is used up.
    pub(super) fn finish(&mut self, posting: &Posting) {
        if self.announced[0]
            .is_some_and(|announcement| announcement.descriptor.operation == posting.descriptor.operation)
        {
            self.announced = [self.announced[1], None];
        }
    }

    /// What the peer owes before this rank's messages to it are through.
    pub(super) fn owes(&self) -> Option<&'static str> {
        match (self.outgoing.is_empty(), self.announced[0].is_some()) {
            (false, false) => Some("the buffer address"),
            (true, _) if self.writes == 0 => None,
            _ => Some("acknowledgements"),
        }
    }
}

/// Queue pairs for one kind of traffic: each takes requests in one direction.
#[derive(Debug)]
struct Pair {
    requester: Requester,
    answerer: QueuePair,
}

impl Pair {
    fn new(
        pd: &ProtectionDomain,
        completions: &CompletionQueue,
        depths: QueueDepths,
        traffic: Traffic,
        may_restart: bool,
    ) -> Result<Self, Error> {
        // Peers may write from the beginning: if this rank received a greeting of theirs before it announces, each
        // first operation would take another round trip. A peer writes only after it has checked this rank's greeting,
        // and with it where its connection for data ends.
        let (inline_bytes, access) = match traffic {
            // Probes are Reads of nothing.
            Traffic::Data => (0, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ),
            Traffic::Control => {
                (ANNOUNCEMENT_BYTES.max(GREETING_BYTES as u32), Access::LOCAL_WRITE | Access::REMOTE_READ)
            }
        };
        let asking = QueueDepths { receive: 0, ..depths };
        // A queue has one entry at least.
        let answering = QueueDepths { send: 1, ..depths };
        let asking =
            QueuePair::builder(pd, Transport::Rc, asking).inline(inline_bytes).build(completions, completions)?;
        let answerer = QueuePair::builder(pd, Transport::Rc, answering).build(completions, completions)?;
        answerer.init(access, 0)?;
        Ok(Self { requester: Requester::new(asking, pd.device().port().mtu_bytes(), may_restart)?, answerer })
    }

    /// The one place where queue pairs are given a path, and so the one where data and control get their traffic
    /// classes.
    fn connect(&mut self, [asks, answers]: &[RemoteQp; 2], traffic: Traffic, config: &Config) -> Result<(), Error> {
        let class = match traffic {
            Traffic::Data => config.data_class,
            Traffic::Control => config.control_class,
        };
        let path = Path::of_class(class);
        self.answerer.connect(&flexio::Connection::to(*asks).path(path).retry(config.retry))?;
        Ok(self.requester.connect(answers, path, config.retry)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_say_what_they_carry() {
        for (tag, has_stalled) in [(0, false), (0, true), (Immediate::STALLED - 1, true), (77, false)] {
            let immediate = Immediate { tag, has_stalled };
            assert_eq!(Immediate::decode(immediate.encode()), immediate);
        }
    }

    #[test]
    fn ids_say_what_they_are_of() {
        let kinds = [
            Work::Write { last: false },
            Work::Write { last: true },
            Work::Announce,
            Work::Greet,
            Work::Message,
            Work::Announcement { slot: 2 },
            Work::Probe(Traffic::Data),
            Work::Probe(Traffic::Control),
        ];
        for (work, index) in kinds.into_iter().zip([0, 1, 1023, 5, u32::MAX, 7, 0, 1023]) {
            assert_eq!(Work::of(work.id(index)), (index as usize, work));
        }
    }
}
