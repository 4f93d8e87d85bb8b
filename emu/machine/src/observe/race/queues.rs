//! Receives and sends posted to each queue pair, as far as memory and doorbells show.

use std::collections::VecDeque;

use emu_nic::{Nic, QpAttr, QpQuery, QpState, QueueMemory, Space};

use super::posted::{BLOCK, Posted, blocks, parse_receive, parse_send};
use super::reach::QueueId;
use super::{Access, Agent, Race, RaceKind, Races, Range};

/// Bytes of a completion entry.
const CQE_BYTES: usize = 64;

/// How the observer reads memory.
pub(crate) struct Eyes<'a> {
    pub(crate) card: usize,
    pub(crate) nic: &'a Nic,
    pub(crate) read: &'a dyn Fn(Space, u64, &mut [u8]) -> bool,
    pub(crate) at_ps: u64,
}

impl Eyes<'_> {
    /// The counter at an offset of a doorbell record.
    fn counter(&self, record: QueueMemory, offset: u64) -> Option<u16> {
        let mut word = [0; 4];
        (self.read)(record.space, record.addr + offset, &mut word).then(|| u32::from_be_bytes(word) as u16)
    }
}

/// Entries that were posted just now, with their queue pairs.
type News = Vec<(u32, Posted)>;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Queue {
    qpn: u32,
    attr: QpAttr,
    state: QpState,
    resets: u32,
    /// The receive word of the record has been read since the card may read it.
    is_record_read: bool,
    /// Rings of the completion queues: memory and bytes.
    rings: [Option<(QueueMemory, u64)>; 2],
    send: VecDeque<Posted>,
    send_producer: u16,
    receive: VecDeque<Posted>,
    receive_producer: u16,
    /// The firmware keeps the send word of its doorbell record.
    keeps_record: bool,
}

impl Queue {
    fn new(nic: &Nic, qpn: u32, QpQuery { attr, state, resets, .. }: QpQuery) -> Self {
        let ring = |cqn: u32| nic.query_cq(cqn).map(|cq| (cq.ring, (CQE_BYTES as u64) << cq.log_depth));
        Queue {
            qpn,
            rings: [ring(attr.send_cq), ring(attr.recv_cq)],
            attr,
            state,
            resets,
            is_record_read: false,
            send: VecDeque::new(),
            send_producer: 0,
            receive: VecDeque::new(),
            receive_producer: 0,
            keeps_record: false,
        }
    }

    fn clear(&mut self) {
        self.send.clear();
        self.receive.clear();
        self.is_record_read = false;
        (self.send_producer, self.receive_producer) = (0, 0);
    }

    pub(crate) fn uses(&self, space: Space) -> bool {
        self.attr.doorbell_record.space == space
    }

    /// Conflicts of a write with what is posted.
    pub(crate) fn conflicts(&self, qpn: u32, range: &Range, by_card: bool, hits: &mut Vec<(RaceKind, Access)>) {
        let over = |ranges: &[Range]| ranges.iter().find(|other| other.overlaps(range)).copied();
        let agent = |entry: u16| Agent::Card { qpn: Some(qpn), entry: Some(entry) };
        for posted in &self.send {
            if let Some(source) = over(&posted.reads) {
                let kind = if by_card { RaceKind::OverwrittenSource } else { RaceKind::OwnedByCard };
                hits.push((kind, source.access(agent(posted.index), "was posted to read", posted.at_ps)));
            }
            if by_card {
                continue;
            }
            if let Some(entry) = over(&posted.entry) {
                let first = entry.access(agent(posted.index), "was posted with its entry in", posted.at_ps);
                hits.push((RaceKind::OwnedByCard, first));
            }
            if let Some(target) = over(&posted.writes) {
                let first = target.access(agent(posted.index), "was posted to write", posted.at_ps);
                hits.push((RaceKind::OwnedByCard, first));
            }
        }
        if by_card {
            return;
        }
        for posted in &self.receive {
            for (ranges, action) in
                [(&posted.entry, "was posted with its entry in"), (&posted.writes, "was posted to receive into")]
            {
                if let Some(owned) = over(ranges) {
                    hits.push((RaceKind::OwnedByCard, owned.access(agent(posted.index), action, posted.at_ps)));
                }
            }
        }
    }

    /// Reads the receive word of the record, if the card may read it now.
    fn read_record(&mut self, eyes: &Eyes<'_>, news: &mut News) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts) {
            return;
        }
        if let Some(producer) = eyes.counter(self.attr.doorbell_record, 0) {
            self.is_record_read = true;
            self.post_receives(eyes, producer, news);
        }
    }

    /// The posted receive that a write goes into.
    pub(crate) fn receive_into(&self, range: &Range) -> Option<u16> {
        let into = |posted: &&Posted| posted.writes.iter().any(|target| target.overlaps(range));
        self.receive.iter().find(into).map(|posted| posted.index)
    }

    /// Entries up to a send counter are posted; they are added to `news`.
    fn post_sends(&mut self, eyes: &Eyes<'_>, producer: u16, news: &mut News) {
        let depth = 1_u32 << self.attr.log_sq_depth;
        let new = producer.wrapping_sub(self.send_producer);
        // A counter that went back, or further than the ring: the card refuses it. In ERR it fetches nothing more.
        if self.attr.no_sq || self.state == QpState::Err || new == 0 || u32::from(new) > depth {
            return;
        }
        while self.send_producer != producer {
            let block = |number: u16, bytes: &mut [u8]| {
                let addr = self.attr.sq.addr + u64::from(u32::from(number) & (depth - 1)) * BLOCK;
                let range = Range { card: eyes.card, space: self.attr.sq.space, addr, len: BLOCK };
                (eyes.read)(self.attr.sq.space, addr, bytes).then_some(range)
            };
            let mut bytes = vec![0; BLOCK as usize];
            let Some(first) = block(self.send_producer, &mut bytes) else { return };
            let count = blocks(&bytes).min(producer.wrapping_sub(self.send_producer));
            let mut posted = Posted { entry: vec![first], at_ps: eyes.at_ps, ..Posted::default() };
            for further in 1..count {
                let mut next = [0; BLOCK as usize];
                posted.entry.extend(block(self.send_producer.wrapping_add(further), &mut next));
                bytes.extend_from_slice(&next);
            }
            parse_send(eyes.card, eyes.nic, self.attr.transport, &bytes, &mut posted);
            news.push((self.qpn, posted.clone()));
            self.send.push_back(posted);
            self.send_producer = self.send_producer.wrapping_add(count);
        }
    }

    /// Entries up to a receive counter are posted; they are added to `news`.
    fn post_receives(&mut self, eyes: &Eyes<'_>, producer: u16, news: &mut News) {
        let depth = 1_u32 << self.attr.log_rq_depth;
        let new = producer.wrapping_sub(self.receive_producer);
        if self.attr.no_rq || self.state == QpState::Err || new == 0 || u32::from(new) > depth {
            return;
        }
        let stride = 1_u64 << self.attr.log_rq_stride;
        while self.receive_producer != producer {
            let slot = u32::from(self.receive_producer) & (depth - 1);
            let QueueMemory { space, addr } = self.attr.rq;
            let range = Range { card: eyes.card, space, addr: addr + u64::from(slot) * stride, len: stride };
            let mut bytes = vec![0; stride as usize];
            if !(eyes.read)(space, range.addr, &mut bytes) {
                return;
            }
            let mut posted =
                Posted { index: self.receive_producer, entry: vec![range], at_ps: eyes.at_ps, ..Posted::default() };
            parse_receive(eyes.card, eyes.nic, &bytes, &mut posted);
            news.push((self.qpn, posted.clone()));
            self.receive.push_back(posted);
            self.receive_producer = self.receive_producer.wrapping_add(1);
        }
    }
}

/// Gives entries back up to and with the one that a completion names.
fn complete(posted: &mut VecDeque<Posted>, index: u16) {
    if let Some(last) = posted.iter().position(|entry| entry.index == index) {
        posted.drain(..=last);
    }
}

impl Races {
    /// Learns of queue pairs that are new, and of those that are gone or reset. To be called before anything that
    /// concerns a card.
    pub(crate) fn refresh(&mut self, eyes: &Eyes<'_>) {
        let Eyes { card, nic, .. } = *eyes;
        let changes = nic.queue_pair_changes();
        if self.changes.insert(card, changes) == Some(changes) {
            return;
        }
        let next = self.next_qpn.entry(card).or_default();
        for qpn in nic.queue_pairs(*next) {
            if let Ok(query) = nic.query_qp(qpn) {
                self.records.add(card, query.attr.doorbell_record, qpn);
                self.queues.insert((card, qpn), Queue::new(nic, qpn, query));
            }
            *next = qpn + 1;
        }
        let (mut gone, mut news) = (Vec::new(), News::new());
        for (&(_, qpn), queue) in self.queues.range_mut((card, 0)..=(card, u32::MAX)) {
            let Ok(query) = nic.query_qp(qpn) else {
                gone.push((card, qpn));
                continue;
            };
            // One that has failed gives its entries back by their completions in error.
            if query.resets != queue.resets {
                queue.clear();
            }
            (queue.state, queue.resets) = (query.state, query.resets);
            if !queue.is_record_read {
                queue.read_record(eyes, &mut news);
            }
        }
        self.forget_queues(&gone);
        self.check_posted(eyes, &news);
    }

    /// Reads the records of a card's queue pairs that lie in host or Arm memory: programs store to them as to any
    /// other memory.
    pub(crate) fn read_host_records(&mut self, eyes: &Eyes<'_>) {
        let mut news = News::new();
        for (_, queue) in self.queues.range_mut((eyes.card, 0)..=(eyes.card, u32::MAX)) {
            if queue.uses(Space::Host) || queue.uses(Space::Arm) {
                queue.read_record(eyes, &mut news);
            }
        }
        self.check_posted(eyes, &news);
    }

    /// Queue pairs are gone.
    pub(super) fn forget_queues(&mut self, gone: &[QueueId]) {
        if gone.is_empty() {
            return;
        }
        for id in gone {
            self.queues.remove(id);
        }
        let queues = &self.queues;
        self.reach.retain(|id| queues.contains_key(id));
        self.records.retain(|id| queues.contains_key(id));
    }

    /// A send doorbell reaches the card.
    pub(crate) fn doorbell(&mut self, eyes: &Eyes<'_>, qpn: u32, producer: u16) {
        let Some(queue) = self.queues.get_mut(&(eyes.card, qpn)) else { return };
        let mut news = News::new();
        queue.post_sends(eyes, producer, &mut news);
        let keeps_record = queue.keeps_record;
        let QueueMemory { space, addr } = queue.attr.doorbell_record;
        self.check_posted(eyes, &news);
        let mut word = [0; 4];
        if !keeps_record || !(eyes.read)(space, addr + 4, &mut word) {
            return;
        }
        let recorded = u32::from_be_bytes(word) as u16;
        // A record that is ahead is as good.
        if (producer.wrapping_sub(recorded) as i16) > 0 {
            let agent = |entry: u16| Agent::Card { qpn: Some(qpn), entry: Some(entry) };
            let record = Range { card: eyes.card, space, addr: addr + 4, len: 4 };
            self.report(Race {
                kind: RaceKind::RecordBehindDoorbell,
                first: record.access(agent(recorded), "has the record", eyes.at_ps),
                second: record.access(agent(producer), "was rung for", eyes.at_ps),
            });
        }
    }

    /// A write of memory that holds doorbell records of the card's queue pairs has become visible, or the card has read
    /// them: entries are posted.
    pub(crate) fn recorded(&mut self, eyes: &Eyes<'_>, range: &Range) {
        let mut news = News::new();
        for (card, qpn) in self.records.touched_by(range) {
            let Some(queue) = self.queues.get_mut(&(card, qpn)).filter(|_| card == eyes.card) else { continue };
            let record = queue.attr.doorbell_record;
            let touched = |offset: u64| {
                let word = Range { card, space: record.space, addr: record.addr + offset, len: 4 };
                word.overlaps(range).then(|| eyes.counter(record, offset)).flatten()
            };
            if let Some(producer) = touched(0) {
                queue.post_receives(eyes, producer, &mut news);
            }
            if let Some(producer) = touched(4) {
                queue.keeps_record = true;
                queue.post_sends(eyes, producer, &mut news);
            }
        }
        self.check_posted(eyes, &news);
    }

    /// Entries have been posted: nothing may be read from where a receive goes.
    fn check_posted(&mut self, eyes: &Eyes<'_>, news: &News) {
        for (qpn, new) in news {
            self.reach.add((eyes.card, *qpn), new);
        }
        let mut hits = Vec::new();
        for (qpn, new) in news {
            let agent = |qpn: u32, entry: &Posted| Agent::Card { qpn: Some(qpn), entry: Some(entry.index) };
            let receives_into = new.reads.is_empty();
            for mine in if receives_into { &new.writes } else { &new.reads } {
                let near = self.reach.of(mine);
                for queue in near.iter().filter_map(|id| self.queues.get(id)) {
                    let others = if receives_into { &queue.send } else { &queue.receive };
                    for other in others {
                        let theirs = if receives_into { &other.reads } else { &other.writes };
                        let Some(theirs) = theirs.iter().find(|theirs| theirs.overlaps(mine)) else { continue };
                        let (reads, receives) = ("was posted to read", "was posted to receive into");
                        let (first, second) = if receives_into { (reads, receives) } else { (receives, reads) };
                        let first = theirs.access(agent(queue.qpn, other), first, other.at_ps);
                        hits.push((first, mine.access(agent(*qpn, new), second, eyes.at_ps)));
                    }
                }
            }
        }
        for (first, second) in hits {
            self.report(Race { kind: RaceKind::ReceiveOverSource, first, second });
        }
    }

    /// The card writes memory: perhaps a completion.
    pub(crate) fn card_wrote(&mut self, card: usize, space: Space, addr: u64, data: &[u8]) {
        let Ok(cqe) = <&[u8; CQE_BYTES]>::try_from(data) else { return };
        let number = u32::from_be_bytes([0, cqe[0x39], cqe[0x3A], cqe[0x3B]]);
        let index = u16::from_be_bytes([cqe[0x3C], cqe[0x3D]]);
        let Some(queue) = self.queues.get_mut(&(card, number)) else { return };
        let inside = |ring: &Option<(QueueMemory, u64)>| {
            ring.is_some_and(|(ring, bytes)| ring.space == space && addr.wrapping_sub(ring.addr) < bytes)
        };
        if !queue.rings.iter().any(inside) {
            return;
        }
        // Completion opcodes 0 (requester) and 13 (its error) end sends, all others receives.
        match cqe[0x3F] >> 4 {
            kind @ (0 | 13) => {
                complete(&mut queue.send, index);
                while kind == 13 && queue.send.front().is_some_and(|entry| entry.is_silent) {
                    queue.send.pop_front();
                }
            }
            _ => complete(&mut queue.receive, index),
        }
    }
}
