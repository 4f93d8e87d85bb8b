//! Staged Ibcast and Iallgather of one group on a service process: host memory to memory of the card to host memory, in
//! segments.

pub(super) mod message;
mod multicast;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::error::{FailedParty, Ignored};
use super::message::Region;
use super::task::{Collective, Delivery, Descriptor, FLAG_BYTES, Part, Task, flag, runs, targets};
use super::topology::Topology;
use crate::p2p;
use crate::ranks::RankInfo;
pub use multicast::Placed;
use multicast::{Agreed, Shares};

use message::{
    Between, Reader, Staged, StagedAction, StagedCause, StagedEvent, StagedFailure, StagedMessage, StagedRefusal,
    Staging, Work,
};

/// Completion code of a request whose memory on the side that posts it cannot be used (`IBV_WC_LOC_PROT_ERR`): of a
/// Read from host memory to host memory the target's.
const LOCAL_PROTECTION_ERROR: u16 = 4;

/// The staged collectives of one group on one service process, one after another. Groups have a machine each, and
/// memory of their own, so that none waits for another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StagedProcess {
    topology: Arc<Topology>,
    own: u32,
    staging: Staging,
    /// The current collective, or the next.
    oldest: u32,
    tasks: BTreeMap<u32, Task>,
    run: Option<Run>,
    /// Offers by collective, segment and tag, with who made them, until they are due.
    offers: BTreeMap<(u32, u32, u32), u32>,
    waiting: VecDeque<StagedAction>,
    active: BTreeSet<(u32, Work)>,
    failed: Option<StagedFailure>,
    ignored: Ignored,
    /// What the processes have agreed on, if they go by multicast; no collective begins before they have.
    agreed: Option<Agreed>,
    is_agreed: bool,
    /// Number of the first segment of the current collective among those that go by multicast.
    round: u32,
    now_ps: u64,
    /// By process: ranks that the processes before it serve; behind the last one all.
    served_before: Arc<[u32]>,
}

/// The current collective.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    segment_bytes: u64,
    segments: u32,
    next: u32,
    slots: BTreeMap<u32, Slot>,
    /// Segments whose Writes are queued.
    delivered: u32,
    /// Writes and flags that are not over.
    open: u32,
    /// Reads from host memory to host memory that are not over.
    copying: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    /// Reads from local ranks that are not over.
    gathering: u32,
    /// Between processes, in a Broadcast by messages.
    schedule: Option<p2p::Schedule>,
    /// Between processes, by multicast.
    shares: Option<Shares>,
    /// Messages between processes that have been offered and not been taken, by receiver and tag.
    offered: BTreeSet<(u32, u32)>,
    /// Messages from other processes that have been fetched, or are, by tag.
    fetched: BTreeSet<u32>,
    /// Writes that are not over; none before they are queued.
    writing: Option<u32>,
}

impl StagedProcess {
    /// Process number `own` of a group.
    ///
    /// # Errors
    /// A limit that is too small, or no such process. Staging must have room for a byte of each served rank in each
    /// segment.
    pub fn new(topology: Arc<Topology>, own: u32, staging: Staging) -> Result<Self, StagedRefusal> {
        let Staging { segments, transfers, collectives, .. } = staging;
        for (name, value) in [("segments", segments), ("transfers", transfers), ("collectives", collectives)] {
            if value == 0 {
                return Err(StagedRefusal::Limit { name, value: 0, least: 1 });
            }
        }
        let processes = topology.processes();
        if own >= processes {
            return Err(StagedRefusal::Process { process: own, processes });
        }
        let least = topology.served_by(own).count() as u64 * u64::from(segments);
        if staging.staging_bytes < least {
            return Err(StagedRefusal::Limit { name: "staging_bytes", value: staging.staging_bytes, least });
        }
        let mut served_before = Vec::from([0]);
        let mut before = 0;
        for process in 0..processes {
            before += topology.served_by(process).count() as u32;
            served_before.push(before);
        }
        let is_agreed = staging.multicast.is_none();
        Ok(Self {
            topology,
            own,
            staging,
            oldest: 0,
            tasks: BTreeMap::new(),
            run: None,
            offers: BTreeMap::new(),
            waiting: VecDeque::new(),
            active: BTreeSet::new(),
            failed: None,
            ignored: Ignored::default(),
            agreed: None,
            is_agreed,
            round: 0,
            now_ps: 0,
            served_before: served_before.into(),
        })
    }

    /// Takes an event, and adds what is to be done to `actions`, in order.
    ///
    /// # Errors
    /// A call or a message of a collective too far ahead, which can be offered again later, or a call that cannot be.
    /// Nothing has changed.
    pub fn handle(&mut self, event: StagedEvent, actions: &mut Vec<StagedAction>) -> Result<(), StagedRefusal> {
        match event {
            StagedEvent::Called { collective, descriptor, part } => self.call(collective, descriptor, part, actions)?,
            StagedEvent::Arrived { from, collective, message } => self.arrive(from, collective, message, actions)?,
            StagedEvent::Done { collective, work, error } => self.done(collective, work, error, actions),
            StagedEvent::Time(now_ps) => self.now_ps = self.now_ps.max(now_ps),
            StagedEvent::Died(failed_rank) => {
                let is_own = failed_rank == FailedParty::Process(self.own);
                self.fail_by(failed_rank, StagedCause::Died, !is_own, actions);
            }
            StagedEvent::Broken { failed_rank, code } => {
                self.fail_by(failed_rank, StagedCause::Transfer(code), true, actions);
            }
        }
        self.go_on(actions);
        Ok(())
    }

    /// Whether a collective is over here. An error if it is too far ahead.
    fn is_over(&self, collective: u32) -> Result<bool, StagedRefusal> {
        let ahead = collective.wrapping_sub(self.oldest);
        if (ahead as i32) < 0 {
            return Ok(true);
        }
        let limit = self.staging.collectives;
        if ahead >= limit {
            return Err(StagedRefusal::Collectives { collective, oldest: self.oldest, limit });
        }
        Ok(false)
    }

    fn call(
        &mut self,
        collective: u32,
        descriptor: Descriptor,
        part: Part,
        actions: &mut Vec<StagedAction>,
    ) -> Result<(), StagedRefusal> {
        let (rank, ranks) = (part.rank, self.topology.ranks());
        let root = if let Collective::Broadcast { root } = descriptor.collective { root } else { 0 };
        if let Some(rank) = [rank, root].into_iter().find(|rank| *rank >= ranks) {
            return Err(StagedRefusal::Rank { rank, ranks });
        }
        self.check(&descriptor, &part)?;
        if let Some(failure) = self.failed {
            if self.topology.process_of(rank) == Some(self.own) {
                actions.push(StagedAction::Fail { rank, failure });
            }
            return Ok(());
        }
        if self.is_over(collective)? {
            self.ignored.stale += 1;
            return Ok(());
        }
        let topology = &self.topology;
        let task = self.tasks.entry(collective).or_insert_with(|| Task::new(descriptor, topology));
        let fits = task.descriptor == descriptor;
        if !task.add(part) {
            self.ignored.duplicates += 1;
        } else if !fits {
            self.fail(
                StagedFailure { failed_rank: FailedParty::Rank(rank), cause: StagedCause::Disagrees },
                true,
                actions,
            );
        }
        Ok(())
    }

    fn check(&self, descriptor: &Descriptor, part: &Part) -> Result<(), StagedRefusal> {
        let Descriptor { collective, delivery, bytes } = *descriptor;
        let rank = part.rank;
        let blocks = if collective == Collective::Allgather { u64::from(self.topology.ranks()) } else { 1 };
        let sends = match collective {
            Collective::Broadcast { root } => rank == root,
            Collective::Allgather => true,
        };
        let all = bytes.saturating_mul(blocks);
        let slot_bytes = self.staging.staging_bytes / u64::from(self.staging.segments);
        if bytes.div_ceil(slot_bytes / self.topology.served_by(self.own).count() as u64) > u64::from(u32::MAX) {
            let (name, value) = ("staging_bytes", self.staging.staging_bytes);
            return Err(StagedRefusal::Limit { name, value, least: bytes >> 16 });
        }
        let flags = FLAG_BYTES * u64::from(self.topology.processes());
        let shared = if delivery == Delivery::Hierarchical { all } else { part.shared.bytes };
        let receive = if delivery == Delivery::Hierarchical { part.receive.bytes } else { all };
        let send = if sends { bytes } else { part.send.bytes };
        for (name, found, expected) in [
            ("send", part.send.bytes, send),
            ("receive", part.receive.bytes, receive),
            ("flag", part.flags.bytes, flags),
            ("shared", part.shared.bytes, shared),
        ] {
            if found != expected {
                return Err(StagedRefusal::Buffer { name, rank, found, expected });
            }
        }
        Ok(())
    }

    fn arrive(
        &mut self,
        from: u32,
        collective: u32,
        message: StagedMessage,
        actions: &mut Vec<StagedAction>,
    ) -> Result<(), StagedRefusal> {
        if from >= self.topology.processes() || from == self.own {
            self.ignored.foreign += 1;
            return Ok(());
        }
        if let StagedMessage::Failed(failure) = message {
            self.fail(failure, false, actions);
            return Ok(());
        }
        if self.failed.is_some() || self.is_over(collective)? {
            self.ignored.stale += 1;
            return Ok(());
        }
        match message {
            StagedMessage::Offer { segment, tag } => {
                // No process gets more messages of one segment than there are processes, and none is more than the
                // segments under way ahead.
                let run = self.run.as_ref().filter(|_| collective == self.oldest);
                let next = run.map_or(0, |run| run.next);
                let slot = run.and_then(|run| run.slots.get(&segment));
                if tag >= self.topology.processes() || segment >= next.saturating_add(self.staging.segments) {
                    self.ignored.foreign += 1;
                } else if segment < next && slot.is_none() {
                    self.ignored.stale += 1;
                } else if slot.is_some_and(|slot| slot.fetched.contains(&tag))
                    || self.offers.contains_key(&(collective, segment, tag))
                {
                    self.ignored.duplicates += 1;
                } else {
                    self.offers.insert((collective, segment, tag), from);
                }
            }
            StagedMessage::Taken { segment, tag } => {
                let run = self.run.as_mut().filter(|_| collective == self.oldest);
                let slot = run.and_then(|run| run.slots.get_mut(&segment));
                let is_due = |slot: &mut Slot| {
                    slot.shares.is_some() || slot.schedule.as_mut().is_some_and(|schedule| schedule.sent().is_ok())
                };
                let taken = slot.filter(|slot| slot.offered.contains(&(from, tag)));
                let was_due = taken.is_some_and(|slot| is_due(slot) && slot.offered.remove(&(from, tag)));
                self.ignored.duplicates += u64::from(!was_due);
            }
            StagedMessage::Failed(_) => {}
        }
        Ok(())
    }

    fn done(&mut self, collective: u32, work: Work, error: Option<u16>, actions: &mut Vec<StagedAction>) {
        if !self.active.remove(&(collective, work)) {
            self.ignored.foreign += 1;
            return;
        }
        if self.failed.is_some() || collective != self.oldest {
            return;
        }
        let Some(run) = &mut self.run else { return };
        // What cannot be multicast is read by the others.
        if let Some(code) = error.filter(|_| !matches!(work, Work::Multicast { .. })) {
            let failed_rank = match work {
                Work::Copy { target, .. } if code == LOCAL_PROTECTION_ERROR => FailedParty::Rank(target),
                Work::Gather { rank, .. } | Work::Copy { source: rank, .. } => FailedParty::Rank(rank),
                Work::Deliver { target, .. } | Work::Flag { target } => FailedParty::Rank(target),
                Work::Multicast { .. } => FailedParty::Process(self.own),
                Work::Repair { source, .. } => FailedParty::Process(source),
                Work::Fetch { segment, tag } => {
                    let schedule = run.slots.get(&segment).and_then(|slot| slot.schedule.as_ref());
                    let from = schedule.and_then(|schedule| schedule.receive(tag)).map(|arrival| arrival.from);
                    FailedParty::Process(from.unwrap_or(self.own))
                }
            };
            self.fail(StagedFailure { failed_rank, cause: StagedCause::Transfer(code) }, true, actions);
            return;
        }
        match work {
            Work::Gather { segment, .. } => {
                if let Some(slot) = run.slots.get_mut(&segment) {
                    slot.gathering -= 1;
                }
            }
            Work::Fetch { segment, tag } => {
                let schedule = run.slots.get_mut(&segment).and_then(|slot| slot.schedule.as_mut());
                if let Some(schedule) = schedule
                    && let Some(arrival) = schedule.receive(tag)
                    && schedule.arrived(arrival.from, tag).is_ok()
                {
                    let message = StagedMessage::Taken { segment, tag };
                    actions.push(StagedAction::Send { to: arrival.from, collective, message });
                }
            }
            Work::Multicast { segment } => self.has_multicast(segment, actions),
            Work::Repair { segment, source, chunk } => self.has_repaired(segment, source, chunk),
            Work::Deliver { segment, .. } => {
                run.open -= 1;
                if let Some(slot) = run.slots.get_mut(&segment) {
                    slot.writing = slot.writing.map(|left| left - 1);
                }
            }
            Work::Copy { .. } => {
                run.copying -= 1;
                if run.copying == 0 {
                    self.queue_flags();
                }
            }
            Work::Flag { .. } => run.open -= 1,
        }
    }

    /// Fails where the group has such a failed rank, and it can be one.
    fn fail_by(&mut self, failed_rank: FailedParty, cause: StagedCause, can_be: bool, actions: &mut Vec<StagedAction>) {
        let exists = match failed_rank {
            FailedParty::Rank(rank) => rank < self.topology.ranks(),
            FailedParty::Process(process) => process < self.topology.processes(),
        };
        if exists && can_be {
            self.fail(StagedFailure { failed_rank, cause }, true, actions);
        } else {
            self.ignored.foreign += 1;
        }
    }

    /// Ends everything: buffers of all collectives under way are lost.
    fn fail(&mut self, failure: StagedFailure, announces: bool, actions: &mut Vec<StagedAction>) {
        if self.failed.is_some() {
            self.ignored.duplicates += 1;
            return;
        }
        self.failed = Some(failure);
        self.waiting.clear();
        self.offers.clear();
        self.run = None;
        if announces {
            let dead = if let FailedParty::Process(process) = failure.failed_rank { Some(process) } else { None };
            for to in (0..self.topology.processes()).filter(|to| *to != self.own && Some(*to) != dead) {
                let message = StagedMessage::Failed(failure);
                actions.push(StagedAction::Send { to, collective: self.oldest, message });
            }
        }
        self.tasks.clear();
        // Also those whose collectives are over here: they may wait for the flags of other processes.
        for rank in self.topology.served_by(self.own) {
            if failure.failed_rank != FailedParty::Rank(rank) || failure.cause != StagedCause::Died {
                actions.push(StagedAction::Fail { rank, failure });
            }
        }
    }

    /// Does what can be done until nothing can.
    fn go_on(&mut self, actions: &mut Vec<StagedAction>) {
        while self.failed.is_none() && (self.begin() || self.advance(actions)) {}
        while (self.active.len() as u64) < u64::from(self.staging.transfers)
            && let Some(action) = self.waiting.pop_front()
        {
            if let StagedAction::Read { collective, work, .. }
            | StagedAction::Fetch { collective, work, .. }
            | StagedAction::Copy { collective, work, .. }
            | StagedAction::Multicast { collective, work, .. }
            | StagedAction::Write { collective, work, .. }
            | StagedAction::WriteFlag { collective, work, .. } = action
            {
                self.active.insert((collective, work));
            }
            actions.push(action);
        }
    }

    /// Begins the next collective, once all ranks have called it: then all buffers may be written to.
    fn begin(&mut self) -> bool {
        if self.run.is_some() || !self.is_agreed {
            return false;
        }
        let Some(task) = self.tasks.get(&self.oldest).filter(|task| task.is_whole()) else { return false };
        let Descriptor { collective, delivery, bytes } = task.descriptor;
        let slot_bytes = self.staging.staging_bytes / u64::from(self.staging.segments);
        let shares = match (collective, self.between()) {
            (Collective::Broadcast { .. }, _) => 1,
            (Collective::Allgather, Between::Messages) => self.topology.served_by(self.own).count() as u64,
            // Staging memory has what all processes send.
            (Collective::Allgather, Between::Multicast) => u64::from(self.topology.ranks()),
        };
        let segment_bytes = (slot_bytes / shares).clamp(1, bytes.max(1));
        let is_direct = delivery == Delivery::Direct;
        let segments = if is_direct { 0 } else { bytes.div_ceil(segment_bytes) };
        let segments = u32::try_from(segments).unwrap_or(u32::MAX);
        let copies = if is_direct && bytes > 0 { self.copies(task) } else { Vec::new() };
        let (slots, copying) = (BTreeMap::new(), copies.len() as u32);
        self.waiting.extend(copies);
        self.run = Some(Run { segment_bytes, segments, next: 0, slots, delivered: 0, open: 0, copying });
        if segments == 0 && copying == 0 {
            self.queue_flags();
        }
        true
    }

    /// Reads from the memory of those that have something into that of the ranks of this process, each beginning with
    /// another source.
    fn copies(&self, task: &Task) -> Vec<StagedAction> {
        let Descriptor { collective, bytes, .. } = task.descriptor;
        let ranks = self.topology.ranks();
        let mut copies = Vec::new();
        for target in self.topology.served_by(self.own) {
            let sources: Vec<(u32, u64)> = match collective {
                Collective::Broadcast { root } if root == target => Vec::new(),
                Collective::Broadcast { root } => [(root, 0)].into(),
                Collective::Allgather => {
                    let all = (0..ranks).map(|step| (target + step) % ranks);
                    all.map(|source| (source, u64::from(source) * bytes)).collect()
                }
            };
            for (source, offset) in sources {
                let Some((from, to)) = task.part(source).zip(task.part(target)) else { continue };
                let to = to.receive;
                copies.push(StagedAction::Copy {
                    collective: self.oldest,
                    work: Work::Copy { source, target },
                    from: from.send,
                    to: Region { address: to.address + offset, bytes, ..to },
                });
            }
        }
        copies
    }

    /// One step of the current collective; false if none can be made.
    fn advance(&mut self, actions: &mut Vec<StagedAction>) -> bool {
        let Some(run) = &mut self.run else { return false };
        let collective = self.oldest;
        if run.delivered == run.segments && (run.open, run.copying) == (0, 0) && run.slots.is_empty() {
            self.round = self.round.wrapping_add(run.segments);
            self.run = None;
            self.tasks.remove(&collective);
            self.offers.retain(|(of, ..), _| *of != collective);
            self.oldest = collective.wrapping_add(1);
            return true;
        }
        let is_passed_on = |slot: &Slot| slot.schedule.as_ref().is_none_or(p2p::Schedule::is_complete);
        let done = |slot: &Slot| slot.writing == Some(0) && is_passed_on(slot) && slot.is_shared_out();
        if let Some(segment) = run.slots.iter().find(|(_, slot)| done(slot)).map(|(segment, _)| *segment) {
            run.slots.remove(&segment);
            return true;
        }
        // A slot of staging memory is the segment's number modulo the slots.
        let oldest = run.slots.keys().next().copied().unwrap_or(run.next);
        if run.next < run.segments && run.next - oldest < self.staging.segments {
            self.start_segment();
            return true;
        }
        let segments: Vec<u32> = run.slots.keys().copied().collect();
        let is_multicast = self.between() == Between::Multicast;
        segments.into_iter().any(|segment| {
            if is_multicast {
                self.exchange_by_multicast(segment, actions) || self.deliver_by_multicast(segment)
            } else {
                self.exchange(segment, actions) || self.deliver(segment)
            }
        })
    }

    fn reader(&self, root: u32) -> u32 {
        match self.staging.reader {
            Reader::OfRoot => self.topology.process_of(root).unwrap_or(0),
            Reader::First => 0,
        }
    }

    /// Where a segment of the blocks lies: offset in a block and length.
    fn extent(&self, segment: u32) -> (u64, u64) {
        let bytes = self.tasks.get(&self.oldest).map_or(0, |task| task.descriptor.bytes);
        let segment_bytes = self.run.as_ref().map_or(0, |run| run.segment_bytes);
        let offset = u64::from(segment) * segment_bytes;
        (offset, segment_bytes.min(bytes - offset))
    }

    /// Where a segment begins in staging memory.
    fn slot_offset(&self, segment: u32) -> u64 {
        let segments = self.staging.segments;
        u64::from(segment % segments) * (self.staging.staging_bytes / u64::from(segments))
    }

    fn start_segment(&mut self) {
        let Some((task, run)) = self.tasks.get(&self.oldest).zip(self.run.as_ref()) else { return };
        let (segment, descriptor) = (run.next, task.descriptor);
        let (offset, bytes) = self.extent(segment);
        let sources: Vec<u32> = match descriptor.collective {
            Collective::Allgather => self.topology.served_by(self.own).collect(),
            Collective::Broadcast { root } if self.reader(root) == self.own => [root].into(),
            Collective::Broadcast { .. } => Vec::new(),
        };
        let shares = self.shares(segment);
        let schedule = match descriptor.collective {
            Collective::Broadcast { root } if shares.is_none() => self.schedule(self.reader(root), bytes),
            _ => None,
        };
        let start = if shares.is_some() { self.area(segment, self.own).offset } else { self.slot_offset(segment) };
        let mut reads = Vec::new();
        for (position, rank) in (0u64..).zip(&sources) {
            let Some(part) = task.part(*rank) else { return };
            reads.push(StagedAction::Read {
                collective: self.oldest,
                work: Work::Gather { segment, rank: *rank },
                from: Region { address: part.send.address + offset, bytes, ..part.send },
                to: Staged { offset: start + position * bytes, bytes },
            });
        }
        self.waiting.extend(reads);
        if let Some(run) = &mut self.run {
            run.next += 1;
            let (offered, fetched) = (BTreeSet::new(), BTreeSet::new());
            let gathering = sources.len() as u32;
            run.slots.insert(segment, Slot { gathering, schedule, shares, offered, fetched, writing: None });
        }
    }

    fn algorithm(&self, bytes: u64) -> p2p::Broadcast {
        if bytes >= self.staging.scatter_bytes { p2p::Broadcast::ScatterAllgather } else { p2p::Broadcast::BINOMIAL }
    }

    fn division(&self, bytes: u64) -> Option<p2p::Blocks<'static>> {
        self.algorithm(bytes).blocks(bytes, bytes, self.topology.processes()).ok()
    }

    fn schedule(&self, root: u32, bytes: u64) -> Option<p2p::Schedule> {
        let (algorithm, blocks) = (self.algorithm(bytes), self.division(bytes)?.count());
        let place = RankInfo::new(self.own, self.topology.processes()).ok()?;
        p2p::Schedule::new(p2p::Operation::Broadcast { algorithm, root, blocks }, place).ok()
    }

    /// A segment's part in the Broadcast among processes. Who has data offers it; who needs it reads it when it has
    /// room.
    fn exchange(&mut self, segment: u32, actions: &mut Vec<StagedAction>) -> bool {
        let (collective, base, (_, bytes)) = (self.oldest, self.slot_offset(segment), self.extent(segment));
        let division = self.division(bytes);
        let Some(slot) = self.run.as_mut().and_then(|run| run.slots.get_mut(&segment)) else { return false };
        let (Some(schedule), Some(division), 0) = (&mut slot.schedule, division, slot.gathering) else { return false };
        if let Some(transfer) = schedule.poll() {
            slot.offered.insert((transfer.to, transfer.tag));
            let message = StagedMessage::Offer { segment, tag: transfer.tag };
            actions.push(StagedAction::Send { to: transfer.to, collective, message });
            return true;
        }
        let mut due = self.offers.range((collective, segment, 0)..=(collective, segment, u32::MAX));
        let Some((&(.., tag), &from)) = due.next() else { return false };
        self.offers.remove(&(collective, segment, tag));
        let Some(arrival) = schedule.receive(tag).filter(|arrival| arrival.from == from) else {
            self.ignored.foreign += 1;
            return true;
        };
        slot.fetched.insert(tag);
        let range =
            |range: core::ops::Range<u64>| Staged { offset: base + range.start, bytes: range.end - range.start };
        let ranges = division.ranges(arrival.target.blocks).map(range);
        self.waiting.push_back(StagedAction::Fetch { collective, work: Work::Fetch { segment, tag }, from, ranges });
        true
    }

    /// Queues the Writes of a segment whose data is here, and after the last segment the flags.
    fn deliver(&mut self, segment: u32) -> bool {
        let Some((task, run)) = self.tasks.get(&self.oldest).zip(self.run.as_ref()) else { return false };
        let Some(slot) = run.slots.get(&segment) else { return false };
        // Everything has arrived; what others still take from here does not matter.
        let whole = slot.schedule.as_ref().is_none_or(|schedule| schedule.waiting_for().is_none());
        if slot.gathering > 0 || slot.writing.is_some() || !whole {
            return false;
        }
        let Descriptor { collective, delivery, bytes: block } = task.descriptor;
        let ((offset, bytes), base) = (self.extent(segment), self.slot_offset(segment));
        let mut writes = Vec::new();
        let mut write = |target: u32, first: u32, from: Staged, at: u64| {
            let Some(part) = task.part(target) else { return };
            let buffer = if delivery == Delivery::Hierarchical { part.shared } else { part.receive };
            let to = Region { address: buffer.address + at, bytes: from.bytes, ..buffer };
            let work = Work::Deliver { segment, target, first };
            writes.push(StagedAction::Write { collective: self.oldest, work, from, to });
        };
        match collective {
            Collective::Broadcast { root } => {
                for target in
                    self.receivers(delivery).filter(|target| delivery == Delivery::Hierarchical || *target != root)
                {
                    write(target, root, Staged { offset: base, bytes }, offset);
                }
            }
            Collective::Allgather => {
                let runs: Vec<_> = if run.segments == 1 {
                    runs(&self.topology, self.own)
                } else {
                    // A part of each block: they are not contiguous in the receive buffer.
                    self.topology.served_by(self.own).map(|rank| rank..rank + 1).collect()
                };
                for target in targets(&self.topology, self.own, delivery) {
                    let mut at = base;
                    for run in &runs {
                        let bytes = bytes * u64::from(run.end - run.start);
                        let from = Staged { offset: at, bytes };
                        write(target, run.start, from, u64::from(run.start) * block + offset);
                        at += bytes;
                    }
                }
            }
        }
        let count = writes.len() as u32;
        self.waiting.extend(writes);
        if let Some(run) = &mut self.run {
            (run.delivered, run.open) = (run.delivered + 1, run.open + count);
            if let Some(slot) = run.slots.get_mut(&segment) {
                slot.writing = Some(count);
            }
            if run.delivered == run.segments {
                self.queue_flags();
            }
        }
        true
    }

    /// The ranks that this process writes a Broadcast to: its own, or the first of the host where it is the first
    /// process there.
    fn receivers(&self, delivery: Delivery) -> impl Iterator<Item = u32> {
        let host = self.topology.host_of_process(self.own).unwrap_or(0);
        let first = self.topology.processes_of(host).start == self.own;
        let count = match delivery {
            Delivery::Flat | Delivery::Direct => usize::MAX,
            Delivery::Hierarchical => usize::from(first),
        };
        self.topology.served_by(self.own).take(count)
    }

    /// All Writes are queued: each target's flag comes after them, on the same queue pair.
    fn queue_flags(&mut self) {
        let Some(task) = self.tasks.get(&self.oldest) else { return };
        let delivery = task.descriptor.delivery;
        let is_multicast = self.between() == Between::Multicast && delivery != Delivery::Direct;
        let all: Vec<u32> = match task.descriptor.collective {
            Collective::Allgather if is_multicast => self.receivers(delivery).collect(),
            Collective::Allgather => targets(&self.topology, self.own, delivery),
            Collective::Broadcast { root } => {
                let reads_from = Some(root)
                    .filter(|root| delivery == Delivery::Direct && self.topology.process_of(*root) != Some(self.own));
                self.receivers(delivery).chain(reads_from).collect()
            }
        };
        let write = |target: u32| {
            let flags = task.part(target)?.flags;
            let address = flags.address + FLAG_BYTES * u64::from(self.own);
            let to = Region { address, bytes: FLAG_BYTES, ..flags };
            let (collective, work) = (self.oldest, Work::Flag { target });
            Some(StagedAction::WriteFlag { collective, work, value: flag(collective), to })
        };
        let writes: Vec<StagedAction> = all.into_iter().filter_map(write).collect();
        if let Some(run) = &mut self.run {
            run.open += writes.len() as u32;
        }
        self.waiting.extend(writes);
    }

    /// The collective that is under way, or the next: all before it are over here.
    #[must_use]
    pub const fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Why the group's staged collectives have failed, if they have.
    #[must_use]
    pub const fn failure(&self) -> Option<StagedFailure> {
        self.failed
    }

    /// Whether nothing is under way and nothing has been called that is not over; so it is after a failure.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.run.is_none() && self.tasks.is_empty()
    }

    /// Transfers under way: at most [`Staging::transfers`](super::Staging).
    #[must_use]
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// What was ignored so far.
    #[must_use]
    pub const fn ignored(&self) -> Ignored {
        self.ignored
    }
}
