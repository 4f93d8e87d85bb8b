//! Segments that go between the processes of a group by multicast, in place of OFFER and Reads.
//!
//! A source multicasts what it has of a segment into the staging memory of all others, and then offers it to each of
//! them by a reliable message. Who misses chunks a while after that reads them from the source's staging memory. A
//! segment's place is used again once all others have taken it and have written all of it to their ranks. Each segment
//! has a number of its own in the immediates of its chunks, so that chunks that come late are not taken for others.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use super::message::{Between, Multicast, Staged, StagedAction, StagedMessage, Staging, Work};
use super::{Slot, StagedProcess};
use crate::bitmap::{Bitmap, Mark, Run as Missing, words_for};
use crate::immediate::{Immediate, ImmediateLayout};
use crate::service::message::Region;
use crate::service::task::{Collective, Delivery, Descriptor, runs};
use crate::service::topology::Topology;

/// Least bits for numbers of segments in immediates: a chunk that comes after so many further segments may be taken for
/// one of them.
const LEAST_NUMBER_BITS: u32 = 12;

/// After how many chunks a process that waits for its turn checks again.
const TURN_CHUNKS: u64 = 8;

/// What a group has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Agreed {
    settings: Multicast,
    chunk_bytes: u32,
    /// Most chunks of a source in a segment: numbers of the chunks of a source begin with its number times this.
    source_chunks: u32,
    /// Bits of a chunk's number; those above it are the segment's.
    chunk_bits: u32,
}

/// What an immediate says: a chunk of a source, and the segment by its number modulo 2 to the power of its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    source: u32,
    chunk: u32,
    segment: u32,
}

/// A segment that is multicast.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shares {
    own: Own,
    /// Writes of the own part are queued.
    own_delivered: bool,
    /// By source, without this process.
    arrivals: BTreeMap<u32, Arrival>,
    /// Sources whose Writes are queued.
    delivered: u32,
}

/// What this process sends of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Own {
    /// It is no source.
    Nothing,
    Waits,
    UnderWay,
    /// All chunks have been sent, and the others have been notified.
    Offered,
}

/// What another process sends of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Arrival {
    /// A bit for each chunk that is here.
    words: Vec<u64>,
    chunks: u64,
    /// Chunks that are not.
    missing: u64,
    /// The source has said that all are sent.
    offered: bool,
    /// When missing chunks are read.
    due_ps: Option<u64>,
    /// Reads of them that are not over: first chunk, and how many.
    repairs: BTreeMap<u32, u64>,
    /// Its Writes are queued.
    delivered: bool,
    /// The source has been notified that it is taken.
    taken: bool,
}

/// What becomes of a chunk that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It belongs to this offset of the staging memory: copy it there, then say [`StagedProcess::take`].
    At(u64),
    /// It is of a segment that this process has not begun: check again later, or drop it, then it is read.
    Early,
    /// It has come before, or too late, or cannot be: drop it.
    Stale,
}

impl Arrival {
    fn new(chunks: u64) -> Self {
        let words = (0..words_for(chunks)).map(|_| 0).collect();
        let (offered, due_ps) = (false, None);
        Self {
            words,
            chunks,
            missing: chunks,
            offered,
            due_ps,
            repairs: BTreeMap::new(),
            delivered: false,
            taken: false,
        }
    }

    fn bitmap(&mut self) -> Option<Bitmap<'_>> {
        Bitmap::adopt(&mut self.words, self.chunks)
    }

    fn has(&self, chunk: u64) -> bool {
        self.words.get((chunk >> 6) as usize).is_some_and(|word| word >> (chunk & 63) & 1 == 1)
    }

    fn mark(&mut self, first: u64, count: u64) -> bool {
        let Some(mut bitmap) = self.bitmap() else { return false };
        let new = (first..first + count).filter(|chunk| bitmap.mark(*chunk) == Mark::First).count();
        self.missing = bitmap.remaining();
        new > 0
    }

    const fn is_whole(&self) -> bool {
        self.missing == 0
    }

    fn missing(&mut self) -> Vec<Missing> {
        self.bitmap().map(|bitmap| bitmap.missing().collect()).unwrap_or_default()
    }
}

impl StagedProcess {
    /// Whether a group of these settings can go by multicast in chunks of so many bytes. Alike on all processes.
    #[must_use]
    pub fn can_multicast(topology: &Topology, staging: &Staging, chunk_bytes: u32) -> bool {
        agreed(topology, staging, chunk_bytes).is_some()
    }

    /// All processes of the group have said whether they can multicast: the bytes of a chunk, which all have said
    /// alike, or none. Without settings of multicast there is nothing to agree on. Before this no collective begins.
    pub fn agree(&mut self, chunk_bytes: Option<u32>) {
        self.agreed = chunk_bytes.and_then(|bytes| agreed(&self.topology, &self.staging, bytes));
        self.is_agreed = true;
    }

    /// How data goes between the processes.
    #[must_use]
    pub const fn between(&self) -> Between {
        if self.agreed.is_some() { Between::Multicast } else { Between::Messages }
    }

    /// When it is to be given the time at the latest ([`StagedEvent::Time`](super::message::StagedEvent::Time)), in
    /// picoseconds.
    #[must_use]
    pub fn wake_ps(&self) -> Option<u64> {
        let shares = self.run.iter().flat_map(|run| run.slots.values()).filter_map(|slot| slot.shares.as_ref());
        shares.flat_map(|shares| shares.arrivals.values()).filter_map(|arrival| arrival.due_ps).min()
    }

    /// The process that has sent a chunk with this immediate.
    #[must_use]
    pub fn source_of(&self, immediate: u32) -> Option<u32> {
        self.named(immediate).map(|named| named.source)
    }

    /// Where a chunk belongs that has come with this immediate and length.
    #[must_use]
    pub fn place(&self, immediate: u32, bytes: u64) -> Placed {
        let Some((agreed, Named { source, chunk, segment })) = self.agreed.zip(self.named(immediate)) else {
            return Placed::Stale;
        };
        let next = self.run.as_ref().map_or(0, |run| run.next);
        let ahead = next.saturating_add(self.staging.segments.saturating_mul(2));
        if self.failed.is_some() || source == self.own || source >= self.topology.processes() || segment >= ahead {
            return Placed::Stale;
        }
        if segment >= next {
            return Placed::Early;
        }
        let Some(arrival) = self.arrival(segment, source) else { return Placed::Stale };
        let (at, chunk_bytes) = (u64::from(chunk) * u64::from(agreed.chunk_bytes), u64::from(agreed.chunk_bytes));
        let Staged { offset, bytes: all } = self.area(segment, source);
        if u64::from(chunk) >= arrival.chunks || arrival.has(chunk.into()) || bytes != (all - at).min(chunk_bytes) {
            return Placed::Stale;
        }
        Placed::At(offset + at)
    }

    /// A chunk is in its place.
    pub fn take(&mut self, immediate: u32, actions: &mut Vec<StagedAction>) {
        let Some(Named { source, chunk, segment }) = self.named(immediate) else { return };
        let Some(arrival) = self.arrival_mut(segment, source) else { return };
        if !arrival.mark(chunk.into(), 1) {
            return;
        }
        let missing = arrival.missing;
        if missing == 0 {
            arrival.due_ps = None;
        }
        // Others than the last one change only whose turn it is.
        if missing == 0 || missing.is_multiple_of(TURN_CHUNKS) && self.waits_for_its_turn() {
            self.go_on(actions);
        }
    }

    fn named(&self, immediate: u32) -> Option<Named> {
        let (agreed, layout) = self.layout()?;
        let Immediate { psn, collective_id } = layout.decode(immediate);
        let segment = collective_id.wrapping_sub(self.round) & (layout.id_count() - 1) as u32;
        Some(Named { source: psn / agreed.source_chunks, chunk: psn % agreed.source_chunks, segment })
    }

    fn layout(&self) -> Option<(Agreed, ImmediateLayout)> {
        let agreed = self.agreed?;
        Some((agreed, ImmediateLayout::new(agreed.chunk_bits).ok()?))
    }

    fn arrival(&self, segment: u32, source: u32) -> Option<&Arrival> {
        self.run.as_ref()?.slots.get(&segment)?.shares.as_ref()?.arrivals.get(&source)
    }

    fn arrival_mut(&mut self, segment: u32, source: u32) -> Option<&mut Arrival> {
        self.run.as_mut()?.slots.get_mut(&segment)?.shares.as_mut()?.arrivals.get_mut(&source)
    }

    /// The processes that send in the current collective.
    fn sources(&self) -> Range<u32> {
        match self.tasks.get(&self.oldest).map(|task| task.descriptor.collective) {
            Some(Collective::Broadcast { root }) => {
                let reader = self.reader(root);
                reader..reader + 1
            }
            Some(Collective::Allgather) => 0..self.topology.processes(),
            None => 0..0,
        }
    }

    /// Where in staging memory a source's part of a segment lies: parts follow one another in the order of the
    /// processes.
    pub(super) fn area(&self, segment: u32, source: u32) -> Staged {
        let (offset, (_, bytes)) = (self.slot_offset(segment), self.extent(segment));
        let is_allgather =
            self.tasks.get(&self.oldest).is_some_and(|task| task.descriptor.collective == Collective::Allgather);
        if !is_allgather {
            return Staged { offset, bytes };
        }
        let before = |process: u32| self.served_before.get(process as usize).map_or(0, |before| u64::from(*before));
        let (first, end) = (before(source), before(source + 1));
        Staged { offset: offset + first * bytes, bytes: (end - first) * bytes }
    }

    /// What is to come and to go of a segment that begins.
    pub(super) fn shares(&self, segment: u32) -> Option<Shares> {
        let chunk_bytes = u64::from(self.agreed?.chunk_bytes);
        let sources = self.sources();
        let own = if sources.contains(&self.own) { Own::Waits } else { Own::Nothing };
        let others = sources.filter(|source| *source != self.own);
        let arrivals = others
            .map(|source| (source, Arrival::new(self.area(segment, source).bytes.div_ceil(chunk_bytes))))
            .collect();
        Some(Shares { own, own_delivered: false, arrivals, delivered: 0 })
    }

    fn waits_for_its_turn(&self) -> bool {
        let shares = self.run.iter().flat_map(|run| run.slots.values()).filter_map(|slot| slot.shares.as_ref());
        shares.into_iter().any(|shares| shares.own == Own::Waits)
    }

    /// Whether it is this process's turn to multicast a segment: little is still to come of the segments before it, and
    /// of this one from the processes before it. What is lost does not come; its source has said that it was sent.
    fn is_turn(&self, segment: u32, agreed: &Agreed) -> bool {
        let Some(run) = &self.run else { return false };
        let mut chunks = 0;
        for (number, slot) in run.slots.range(..=segment) {
            let arrivals = slot.shares.iter().flat_map(|shares| &shares.arrivals);
            let before = arrivals.filter(|(source, _)| *number < segment || **source < self.own);
            chunks += before.filter(|(_, arrival)| !arrival.offered).map(|(_, arrival)| arrival.missing).sum::<u64>();
        }
        chunks.saturating_mul(agreed.chunk_bytes.into()) <= agreed.settings.ahead_bytes
    }

    /// A step of a segment between the processes; false if none can be made.
    pub(super) fn exchange_by_multicast(&mut self, segment: u32, actions: &mut Vec<StagedAction>) -> bool {
        let Some((agreed, layout)) = self.layout() else { return false };
        let (collective, now_ps) = (self.oldest, self.now_ps);
        let mut due = self.offers.range((collective, segment, 0)..=(collective, segment, u32::MAX));
        if let Some((&(.., tag), &from)) = due.next() {
            self.offers.remove(&(collective, segment, tag));
            match self.arrival_mut(segment, from).filter(|arrival| tag == from && !arrival.offered) {
                Some(arrival) => {
                    arrival.offered = true;
                    arrival.due_ps = (!arrival.is_whole()).then(|| now_ps.saturating_add(agreed.settings.repair_ps));
                    if let Some(slot) = self.run.as_mut().and_then(|run| run.slots.get_mut(&segment)) {
                        slot.fetched.insert(tag);
                    }
                }
                None => self.ignored.foreign += 1,
            }
            return true;
        }
        let Some(slot) = self.run.as_ref().and_then(|run| run.slots.get(&segment)) else { return false };
        let Some(shares) = &slot.shares else { return false };
        if shares.own == Own::Waits && slot.gathering == 0 && self.is_turn(segment, &agreed) {
            let collective_id = self.round.wrapping_add(segment) & (layout.id_count() - 1) as u32;
            let psn = self.own * agreed.source_chunks;
            let immediate = layout.encode(Immediate { psn, collective_id }).unwrap_or(0);
            self.waiting.push_back(StagedAction::Multicast {
                collective,
                work: Work::Multicast { segment },
                from: self.area(segment, self.own),
                chunk_bytes: agreed.chunk_bytes,
                immediate,
            });
            self.set_own(segment, Own::UnderWay);
            return true;
        }
        let is_late = |arrival: &Arrival| arrival.due_ps.is_some_and(|due_ps| due_ps <= now_ps);
        if let Some(source) = shares.arrivals.iter().find(|(_, arrival)| is_late(arrival)).map(|(source, _)| *source) {
            self.repair(segment, source, agreed.chunk_bytes.into());
            return true;
        }
        // Once everything is written there is room for a further segment.
        let is_written = slot.writing == Some(0) && shares.delivered == self.sources().len() as u32;
        let unannounced = |arrival: &Arrival| arrival.offered && arrival.repairs.is_empty() && !arrival.taken;
        let source = shares.arrivals.iter().find(|(_, arrival)| is_written && unannounced(arrival));
        let Some(source) = source.map(|(source, _)| *source) else { return false };
        if let Some(arrival) = self.arrival_mut(segment, source) {
            arrival.taken = true;
        }
        let message = StagedMessage::Taken { segment, tag: source };
        actions.push(StagedAction::Send { to: source, collective, message });
        true
    }

    fn set_own(&mut self, segment: u32, own: Own) {
        let slot = self.run.as_mut().and_then(|run| run.slots.get_mut(&segment));
        if let Some(shares) = slot.and_then(|slot| slot.shares.as_mut()) {
            shares.own = own;
        }
    }

    /// Reads what has not come.
    fn repair(&mut self, segment: u32, source: u32, chunk_bytes: u64) {
        let (collective, area) = (self.oldest, self.area(segment, source));
        let Some(arrival) = self.arrival_mut(segment, source) else { return };
        arrival.due_ps = None;
        let missing = arrival.missing();
        arrival.repairs = missing.iter().map(|run| (run.first as u32, run.count)).collect();
        let reads = missing.into_iter().map(|Missing { first, count }| {
            let (start, end) = (first * chunk_bytes, ((first + count) * chunk_bytes).min(area.bytes));
            let range = Staged { offset: area.offset + start, bytes: end - start };
            let work = Work::Repair { segment, source, chunk: first as u32 };
            let ranges = [range, Staged { offset: area.offset, bytes: 0 }];
            StagedAction::Fetch { collective, work, from: source, ranges }
        });
        self.waiting.extend(reads);
    }

    /// All chunks of a segment have been sent, or cannot be: the others are notified, by reliable messages.
    pub(super) fn has_multicast(&mut self, segment: u32, actions: &mut Vec<StagedAction>) {
        let (collective, own) = (self.oldest, self.own);
        let others: Vec<u32> = (0..self.topology.processes()).filter(|process| *process != own).collect();
        self.set_own(segment, Own::Offered);
        let Some(slot) = self.run.as_mut().and_then(|run| run.slots.get_mut(&segment)) else { return };
        for to in others {
            slot.offered.insert((to, own));
            let message = StagedMessage::Offer { segment, tag: own };
            actions.push(StagedAction::Send { to, collective, message });
        }
    }

    /// A Read of missing chunks is over.
    pub(super) fn has_repaired(&mut self, segment: u32, source: u32, chunk: u32) {
        let Some(arrival) = self.arrival_mut(segment, source) else { return };
        if let Some(count) = arrival.repairs.remove(&chunk) {
            arrival.mark(chunk.into(), count);
        }
    }

    /// Queues the Writes of what has come of a segment; after the last segment the flags.
    pub(super) fn deliver_by_multicast(&mut self, segment: u32) -> bool {
        let Some((task, run)) = self.tasks.get(&self.oldest).zip(self.run.as_ref()) else { return false };
        let Some(slot) = run.slots.get(&segment) else { return false };
        let Some(shares) = &slot.shares else { return false };
        let sources = self.sources();
        let is_own_due = shares.own != Own::Nothing && slot.gathering == 0 && !shares.own_delivered;
        let is_due = |arrival: &Arrival| arrival.is_whole() && arrival.repairs.is_empty() && !arrival.delivered;
        let arrived = shares.arrivals.iter().find(|(_, arrival)| is_due(arrival));
        let source = if is_own_due { Some(self.own) } else { arrived.map(|(source, _)| *source) };
        let Some(source) = source else { return false };
        let Descriptor { collective, delivery, bytes: block } = task.descriptor;
        let ((offset, bytes), area) = (self.extent(segment), self.area(segment, source));
        let mut writes = Vec::new();
        for target in self.receivers(delivery) {
            let Some(part) = task.part(target) else { continue };
            let buffer = if delivery == Delivery::Hierarchical { part.shared } else { part.receive };
            let mut write = |first: u32, from: Staged, at: u64| {
                let to = Region { address: buffer.address + at, bytes: from.bytes, ..buffer };
                let work = Work::Deliver { segment, target, first };
                writes.push(StagedAction::Write { collective: self.oldest, work, from, to });
            };
            match collective {
                Collective::Broadcast { root } if delivery != Delivery::Hierarchical && target == root => {}
                Collective::Broadcast { root } => write(root, area, offset),
                Collective::Allgather => {
                    let whole: Vec<Range<u32>> = if run.segments == 1 {
                        runs(&self.topology, source)
                    } else {
                        self.topology.served_by(source).map(|rank| rank..rank + 1).collect()
                    };
                    let mut at = area.offset;
                    for run in whole {
                        let bytes = bytes * u64::from(run.end - run.start);
                        write(run.start, Staged { offset: at, bytes }, u64::from(run.start) * block + offset);
                        at += bytes;
                    }
                }
            }
        }
        let count = writes.len() as u32;
        self.waiting.extend(writes);
        let Some(run) = &mut self.run else { return true };
        run.open += count;
        let Some(Slot { writing, shares: Some(shares), .. }) = run.slots.get_mut(&segment) else { return true };
        *writing = Some(writing.unwrap_or(0) + count);
        shares.delivered += 1;
        match shares.arrivals.get_mut(&source) {
            Some(arrival) => arrival.delivered = true,
            None => shares.own_delivered = true,
        }
        if shares.delivered == sources.len() as u32 {
            run.delivered += 1;
            if run.delivered == run.segments {
                self.queue_flags();
            }
        }
        true
    }
}

impl Slot {
    /// Whether nothing of a segment that is multicast is needed any more.
    pub(super) fn is_shared_out(&self) -> bool {
        let Some(shares) = &self.shares else { return true };
        let sources = shares.arrivals.len() as u32 + u32::from(shares.own != Own::Nothing);
        matches!(shares.own, Own::Nothing | Own::Offered)
            && self.offered.is_empty()
            && shares.delivered == sources
            && shares.arrivals.values().all(|arrival| arrival.taken)
    }
}

fn agreed(topology: &Topology, staging: &Staging, chunk_bytes: u32) -> Option<Agreed> {
    let settings = staging.multicast?;
    let slot_bytes = staging.staging_bytes / u64::from(staging.segments.max(1));
    // A segment of an Allgather has bytes of all ranks at each process.
    if topology.processes() < 2 || chunk_bytes == 0 || slot_bytes < u64::from(topology.ranks()) {
        return None;
    }
    let source_chunks = u32::try_from(slot_bytes.div_ceil(chunk_bytes.into())).ok()?;
    let layout = ImmediateLayout::for_chunks(u64::from(source_chunks) * u64::from(topology.processes())).ok()?;
    let has_room = layout.id_bits() >= LEAST_NUMBER_BITS;
    has_room.then(|| Agreed { settings, chunk_bytes, source_chunks, chunk_bits: layout.psn_bits() })
}
