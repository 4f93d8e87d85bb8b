//! Staged collectives of a service process: Ibcast and Iallgather through memory of the card.
//!
//! Each group has staging memory of its own, which the other processes of the group may read. A rank names its buffers
//! by the alias keys of its own service process, which passes them to the others: a remote process writes by them over
//! its lane to the rank's process, whose protection domain they are of. Data and flag of a rank go over that one queue
//! pair, so that the flag comes last.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexcast_proto::service::wire::{Body, GroupError, Refused, StagingMemory, TaskPart, TaskParts};
use flexcast_proto::service::{
    Between, ContextId, Descriptor, FailedParty, Part, Region, Staged, StagedAction, StagedEvent, StagedMessage,
    StagedProcess, StagedRefusal, Topology, Work,
};
use flexio::{Access, HostBuffer, MemoryRegion};

use super::multicast::{self, Member};
use super::{Agent, MOST_READ_BYTES};
use crate::error::Result;
use crate::links::{Ends, Fault, Lane, PeerId, Transfer};

/// Calls of a rank that wait because they are too far ahead. Flags have room for no more at a time either.
const MOST_CALLS_AHEAD: usize = 64;

/// All staged collectives of a process.
#[derive(Debug, Default)]
pub(super) struct StagedGroups {
    pub(super) groups: BTreeMap<u32, StagedGroup>,
    /// Staging memory of all groups.
    bytes: u64,
    transfers: BTreeMap<u64, StagedTransfer>,
    pub(super) events: VecDeque<(u32, StagedEvent)>,
    /// What the machines take after something else is over.
    held: BTreeMap<Origin, VecDeque<Early>>,
}

#[derive(Debug)]
pub(super) struct StagedGroup {
    pub(super) machine: StagedProcess,
    /// Ends before the memory that it sends.
    pub(super) multicast: Member,
    pub(super) memory: MemoryRegion,
    /// By service process: its staging memory, once it takes part.
    theirs: Vec<Option<Region>>,
    /// By collective: what ranks of this process have called, until all of them have and the others are notified.
    called: BTreeMap<u32, (Descriptor, BTreeMap<u32, Part>)>,
    /// The rank that the last collective was first written to.
    first_target: Option<u32>,
    writing: Option<u32>,
}

/// A transfer in as many requests as it takes.
#[derive(Clone, Copy, Debug)]
struct StagedTransfer {
    group: u32,
    collective: u32,
    work: Work,
    parts: u32,
    error: Option<Fault>,
}

/// Whose messages keep their order: connection, group, and the rank, or none of a service process.
type Origin = (PeerId, u32, Option<u32>);

/// Something that has come before its time.
#[derive(Debug)]
enum Early {
    Task { collective: u32, descriptor: Descriptor, parts: VecDeque<Part> },
    Message { from: u32, collective: u32, message: StagedMessage },
}

impl StagedGroups {
    /// Something has died.
    pub(super) fn died(&mut self, group: u32, failed_rank: FailedParty) {
        if self.groups.contains_key(&group) {
            self.events.push_back((group, StagedEvent::Died(failed_rank)));
        }
    }

    /// Something has happened to a group that may have staged collectives, and has not failed yet.
    pub(super) fn happen(&mut self, group: u32, event: StagedEvent) {
        if self.groups.get(&group).is_some_and(|group| group.machine.failure().is_none()) {
            self.events.push_back((group, event));
        }
    }

    pub(super) fn multicast_groups(&self) -> u64 {
        self.groups.values().filter(|group| group.machine.between() == Between::Multicast).count() as u64
    }

    pub(super) fn part_with(&mut self, peer: PeerId) {
        self.held.retain(|(of, ..), _| *of != peer);
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether a group still has something to do for its ranks, or something is on its way from or to the memory of
    /// this one.
    pub(super) fn is_busy(&self, group: u32, rank: u32) -> bool {
        let Some(state) = self.groups.get(&group) else { return false };
        let concerns = |transfer: &StagedTransfer| match transfer.work {
            Work::Gather { rank: of, .. } => of == rank,
            Work::Deliver { target, .. } | Work::Flag { target } => target == rank,
            Work::Copy { source, target } => source == rank || target == rank,
            Work::Fetch { .. } | Work::Repair { .. } | Work::Multicast { .. } => false,
        };
        let is_held = |origin: &Origin| (origin.1, origin.2) == (group, Some(rank));
        !state.machine.is_idle()
            || self.transfers.values().any(|transfer| transfer.group == group && concerns(transfer))
            || (state.machine.failure().is_none() && self.held.keys().any(is_held))
    }

    /// Forgets a group, whose lanes are closed.
    pub(super) fn remove(&mut self, group: u32) {
        if let Some(state) = self.groups.remove(&group) {
            self.bytes -= state.memory.len() as u64;
        }
        self.transfers.retain(|_, transfer| transfer.group != group);
        self.held.retain(|(_, of, _), _| *of != group);
        self.events.retain(|(of, _)| *of != group);
    }
}

impl Agent {
    /// Bytes of staging memory that its groups have.
    #[must_use]
    pub const fn staging_bytes(&self) -> u64 {
        self.staged.bytes
    }

    /// Most transfers between staging memory and others that a group has under way now.
    #[must_use]
    pub fn active_transfers(&self) -> usize {
        self.staged.groups.values().map(|group| group.machine.active()).max().unwrap_or(0)
    }

    /// The rank that the last staged collective of a group was first written to by this process.
    #[must_use]
    pub fn first_target(&self, group: u32) -> Option<u32> {
        self.staged.groups.get(&group)?.first_target
    }

    /// Memory for staged collectives of a group; none where this process has none for any.
    pub(super) fn open_staging(
        &mut self,
        (communicator, number): (u64, u32),
        topology: &Arc<Topology>,
        own: u32,
    ) -> Result<Option<StagingMemory>, Refused> {
        let Some(staging) = self.limits.staging else { return Ok(None) };
        let (asked, held, limit) = (staging.staging_bytes, self.staged.bytes, self.limits.staging_bytes);
        let exhausted = Refused::Staged(StagedRefusal::Exhausted { asked, held, limit });
        if held.checked_add(asked).is_none_or(|sum| sum > limit) {
            return Err(exhausted);
        }
        let mut machine = StagedProcess::new(Arc::clone(topology), own, staging).map_err(Refused::Staged)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = HostBuffer::zeroed(asked as usize)
            .and_then(|buffer| MemoryRegion::register(&self.pd, buffer, access))
            .map_err(|error| {
                tracing::warn!(%error, asked, "no staging memory");
                exhausted
            })?;
        let region = Region { address: memory.addr().get(), key: memory.rkey(), bytes: asked };
        let theirs = vec![None; topology.processes() as usize];
        let called = BTreeMap::new();
        let receives = self.limits.multicast_receives;
        let multicast = multicast::open(&self.pd, (communicator, number), topology, own, &staging, receives);
        if topology.processes() == 1 {
            machine.agree(None);
        }
        self.staged.bytes += asked;
        let end = multicast.end(&self.pd);
        let group = StagedGroup { machine, multicast, memory, theirs, called, first_target: None, writing: None };
        self.staged.groups.insert(number, group);
        let (segments, scatter_bytes, reader) = (staging.segments, staging.scatter_bytes, staging.reader);
        Ok(Some(StagingMemory { region, segments, scatter_bytes, reader, multicast: end }))
    }

    /// Another process has announced its memory: whether the two have the same settings.
    pub(super) fn join_staging(
        &mut self,
        number: u32,
        process: u32,
        theirs: Option<&StagingMemory>,
    ) -> Result<(), Refused> {
        let differs = Refused::Group(GroupError::Staging { process });
        match (self.limits.staging.zip(self.staged.groups.get_mut(&number)), theirs) {
            (None, None) => Ok(()),
            (Some((staging, group)), Some(memory)) if memory.agrees(&staging) => {
                group.theirs[process as usize] = Some(memory.region);
                group.multicast.receive_end(process, memory.multicast);
                Ok(())
            }
            _ => Err(differs),
        }
    }

    /// A rank of this process calls.
    pub(super) fn take_task(&mut self, from: PeerId, context: ContextId, task: &TaskPart<'_>) -> Result<()> {
        let (ContextId { group, collective }, descriptor) = (context, task.descriptor());
        for part in task.parts() {
            let rank = part.rank;
            let is_member = self.member(from, group, rank).is_some_and(|member| !member.leaves);
            if !is_member || !self.staged.groups.contains_key(&group) {
                let refused = Refused::Staged(StagedRefusal::NoStaging { group });
                self.say(from, context, Body::CallRefused { rank, refused })?;
                continue;
            }
            let part = self.alive(from, part);
            let early = Early::Task { collective, descriptor, parts: VecDeque::from([part]) };
            self.offer((from, group, Some(rank)), early)?;
        }
        Ok(())
    }

    /// Another process reports what ranks of its own have called.
    pub(super) fn receive_task(&mut self, from: PeerId, context: ContextId, task: &TaskPart<'_>) -> Result<()> {
        let ContextId { group, collective } = context;
        // One that has ended here.
        let Some(state) = self.groups.get(&group) else { return Ok(()) };
        let process = state.peers.iter().position(|peer| *peer == Some(from)).map(|process| process as u32);
        // Of a group that had the number before.
        if process.is_some_and(|process| !state.joined.contains(&process)) {
            return Ok(());
        }
        let parts: VecDeque<Part> = task.parts().collect();
        let serves = |part: &Part| process.is_some() && state.topology.process_of(part.rank) == process;
        if !parts.iter().all(serves) || !self.staged.groups.contains_key(&group) {
            self.cut_off(from, &"it speaks for ranks of another service process, or of no staging memory");
            return Ok(());
        }
        self.offer((from, group, None), Early::Task { collective, descriptor: task.descriptor(), parts })
    }

    /// A message of another process.
    pub(super) fn receive_staged(
        &mut self,
        from: PeerId,
        context: ContextId,
        (process, to): (u32, u32),
        message: StagedMessage,
    ) -> Result<()> {
        let ContextId { group, collective } = context;
        let Some(state) = self.groups.get(&group) else { return Ok(()) };
        let is_it = state.own == to && self.process_peer(group, process) == Some(from);
        if !is_it || !self.staged.groups.contains_key(&group) {
            self.cut_off(from, &"it speaks for another service process, or of no staging memory");
            return Ok(());
        }
        // Of a group that had the number before.
        if !state.joined.contains(&process) {
            return Ok(());
        }
        self.offer((from, group, None), Early::Message { from: process, collective, message })
    }

    /// Offers something to a machine, behind what waits already.
    fn offer(&mut self, origin: Origin, early: Early) -> Result<()> {
        let (peer, group, rank) = origin;
        // A failure does not wait for what comes before it.
        let overtakes = matches!(early, Early::Message { message: StagedMessage::Failed(_), .. });
        let Some(held) = self.staged.held.get_mut(&origin).filter(|_| !overtakes) else {
            return self.take_early(origin, early);
        };
        let most = match rank {
            Some(_) => MOST_CALLS_AHEAD,
            None => self.limits.most_staged(&self.groups[&group].topology),
        };
        if held.len() < most {
            held.push_back(early);
            return Ok(());
        }
        match (early, rank) {
            (Early::Task { collective, .. }, Some(rank)) => {
                let oldest = self.staged.groups.get(&group).map_or(0, |group| group.machine.oldest());
                let refusal = StagedRefusal::Collectives { collective, oldest, limit: most as u32 };
                let refused = Refused::Staged(refusal);
                self.say(peer, ContextId { group, collective }, Body::CallRefused { rank, refused })
            }
            // More than a process can owe.
            _ => {
                self.cut_off(peer, &"it sends more of a group's staged collectives than there is room for");
                Ok(())
            }
        }
    }

    /// Gives something to a machine; what is too far ahead waits.
    fn take_early(&mut self, origin: Origin, early: Early) -> Result<()> {
        let (peer, group, rank) = origin;
        match early {
            Early::Message { from, collective, message } => {
                if matches!(message, StagedMessage::Offer { .. }) && self.between(group) == Between::Multicast {
                    let now_ps = self.now_ps();
                    _ = self.handle_staged(group, StagedEvent::Time(now_ps))?;
                }
                match self.handle_staged(group, StagedEvent::Arrived { from, collective, message })? {
                    Ok(()) => {}
                    Err(StagedRefusal::Collectives { .. }) => {
                        let early = Early::Message { from, collective, message };
                        self.staged.held.entry(origin).or_default().push_front(early);
                    }
                    Err(refusal) => self.cut_off(peer, &refusal),
                }
            }
            Early::Task { collective, descriptor, mut parts } => {
                while let Some(part) = parts.pop_front() {
                    let oldest = self.staged.groups.get(&group).map_or(0, |group| group.machine.oldest());
                    match (self.handle_staged(group, StagedEvent::Called { collective, descriptor, part })?, rank) {
                        (Ok(()), Some(_)) => self.has_called(group, (collective, oldest), descriptor, part)?,
                        (Ok(()), None) => {}
                        (Err(StagedRefusal::Collectives { .. }), _) => {
                            parts.push_front(part);
                            let early = Early::Task { collective, descriptor, parts };
                            self.staged.held.entry(origin).or_default().push_front(early);
                            break;
                        }
                        (Err(refusal), Some(rank)) => {
                            let (context, refused) = (ContextId { group, collective }, Refused::Staged(refusal));
                            self.say(peer, context, Body::CallRefused { rank, refused })?;
                        }
                        (Err(refusal), None) => {
                            self.cut_off(peer, &refusal);
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A call of a rank of this process is taken: once all of them have called, the other processes are notified, also
    /// where the machine has ended the collective with this call because it has nothing to write. `oldest` is the one
    /// that was under way before.
    fn has_called(
        &mut self,
        number: u32,
        (collective, oldest): (u32, u32),
        descriptor: Descriptor,
        part: Part,
    ) -> Result<()> {
        let Some((state, staged)) = self.groups.get(&number).zip(self.staged.groups.get_mut(&number)) else {
            return Ok(());
        };
        let is_over = |collective: u32| (collective.wrapping_sub(oldest) as i32) < 0;
        staged.called.retain(|collective, _| !is_over(*collective));
        let (own, alone) = (state.own, state.topology.processes() == 1);
        if alone || staged.machine.failure().is_some() || is_over(collective) {
            return Ok(());
        }
        let (_, parts) = staged.called.entry(collective).or_insert_with(|| (descriptor, BTreeMap::new()));
        parts.entry(part.rank).or_insert(part);
        if parts.len() < state.topology.served_by(own).count() {
            return Ok(());
        }
        let parts: Vec<Part> = std::mem::take(parts).into_values().collect();
        staged.called.remove(&collective);
        let context = ContextId { group: number, collective };
        let others: Vec<PeerId> = state.peers.iter().flatten().copied().collect();
        for run in parts.chunk_by(|one, next| one.rank + 1 == next.rank) {
            let task = TaskParts::new(descriptor, run)?;
            for part in task.parts() {
                let part = part?;
                others.iter().try_for_each(|peer| self.say(*peer, context, Body::Task(part)))?;
            }
        }
        Ok(())
    }

    fn handle_staged(&mut self, number: u32, event: StagedEvent) -> Result<Result<(), StagedRefusal>> {
        let Some(group) = self.staged.groups.get_mut(&number) else { return Ok(Ok(())) };
        let mut actions = Vec::new();
        let taken = group.machine.handle(event, &mut actions);
        group.multicast.has_moved = true;
        actions.into_iter().try_for_each(|action| self.act_staged(number, action))?;
        Ok(taken)
    }

    /// Does what the machines of staged collectives want, until they want nothing more.
    pub(super) fn carry_out_staged(&mut self) -> Result<()> {
        loop {
            while let Some((group, event)) = self.staged.events.pop_front() {
                if let Err(refusal) = self.handle_staged(group, event)? {
                    tracing::warn!(%refusal, "an event of this process is not taken");
                }
            }
            if self.staged.held.is_empty() {
                return Ok(());
            }
            let mut any = false;
            let origins: Vec<Origin> = self.staged.held.keys().copied().collect();
            for origin in origins {
                let mut queue = self.staged.held.remove(&origin).unwrap_or_default();
                let before = queue.len();
                while let Some(early) = queue.pop_front() {
                    if !self.peers.contains_key(&origin.0) {
                        break;
                    }
                    self.take_early(origin, early)?;
                    if let Some(held) = self.staged.held.get_mut(&origin) {
                        any |= held.len() + queue.len() < before;
                        held.append(&mut queue);
                    } else {
                        any = true;
                    }
                }
            }
            if !any && self.staged.events.is_empty() {
                return Ok(());
            }
        }
    }

    pub(super) fn act_staged(&mut self, number: u32, action: StagedAction) -> Result<()> {
        let Some((state, staged)) = self.groups.get(&number).zip(self.staged.groups.get_mut(&number)) else {
            return Ok(());
        };
        // Where something lies in the own staging memory.
        let (start, lkey) = (staged.memory.addr().get(), staged.memory.lkey());
        let lane_of = |rank: u32| {
            let process = state.topology.process_of(rank)?;
            state.lanes.get(process as usize).copied()
        };
        match action {
            StagedAction::Read { collective, work, from, to } => {
                let Work::Gather { rank, .. } = work else { return Ok(()) };
                let Some(lane) = lane_of(rank) else { return Ok(()) };
                self.counts.gathers += 1;
                self.counts.gathered_bytes += to.bytes;
                let read = read_into(start + to.offset, lkey, from);
                self.transfer_staged(number, collective, work, lane, read.collect())
            }
            StagedAction::Fetch { collective, work, from, ranges } => {
                let way = state.lanes.get(from as usize).zip(staged.theirs.get(from as usize).copied().flatten());
                let Some((lane, theirs)) = way.map(|(lane, theirs)| (*lane, theirs)) else { return Ok(()) };
                self.counts.fetches += 1;
                self.counts.fetched_bytes += ranges.iter().map(|range| range.bytes).sum::<u64>();
                let reads = ranges.into_iter().flat_map(|Staged { offset, bytes }| {
                    read_into(start + offset, lkey, Region { address: theirs.address + offset, bytes, ..theirs })
                });
                self.transfer_staged(number, collective, work, lane, reads.collect())
            }
            StagedAction::Write { collective, work, from, to } => {
                let Work::Deliver { target, .. } = work else { return Ok(()) };
                let Some(lane) = lane_of(target) else { return Ok(()) };
                if staged.writing != Some(collective) {
                    (staged.writing, staged.first_target) = (Some(collective), Some(target));
                }
                self.counts.writes += 1;
                self.counts.written_bytes += from.bytes;
                let start = start + from.offset;
                let part = |(offset, bytes)| {
                    let (from, to, rkey) = (start + offset, to.address + offset, to.key);
                    Transfer::Write { from, lkey, to, rkey, bytes }
                };
                self.transfer_staged(number, collective, work, lane, parts(from.bytes).map(part).collect())
            }
            StagedAction::Multicast { collective, work, from, immediate, .. } => {
                self.multicast(number, (collective, work), from, immediate)
            }
            StagedAction::Copy { collective, work, from, to } => {
                let Work::Copy { source, target } = work else { return Ok(()) };
                let Some(lane) = lane_of(source) else { return Ok(()) };
                self.counts.reads += 1;
                let crosses = state.topology.host_of(source) != state.topology.host_of(target);
                self.counts.crossings += u64::from(crosses);
                self.counts.local_reads += u64::from(!crosses && source != target);
                self.counts.read_bytes += from.bytes;
                self.transfer_staged(number, collective, work, lane, read_into(to.address, to.key, from).collect())
            }
            StagedAction::WriteFlag { collective, work, value, to } => {
                let Work::Flag { target } = work else { return Ok(()) };
                let Some(lane) = lane_of(target) else { return Ok(()) };
                self.counts.flags += 1;
                let flag = Transfer::Flag { value, to: to.address, rkey: to.key };
                self.transfer_staged(number, collective, work, lane, vec![flag])
            }
            StagedAction::Send { to, collective, message } => {
                let from = state.own;
                let Some(peer) = self.process_peer(number, to) else { return Ok(()) };
                let context = ContextId { group: number, collective };
                self.say(peer, context, Body::Staged { from, to, message })
            }
            StagedAction::Fail { rank, failure } => {
                self.say_to_rank(rank, ContextId { group: number, collective: 0 }, Body::GroupFailed { rank, failure })
            }
        }
    }

    fn transfer_staged(
        &mut self,
        group: u32,
        collective: u32,
        work: Work,
        lane: Lane,
        requests: Vec<Transfer>,
    ) -> Result<()> {
        if requests.is_empty() {
            self.staged.events.push_back((group, StagedEvent::Done { collective, work, error: None }));
            return Ok(());
        }
        let token = self.token();
        let own = self.groups.get(&group).map_or(0, |group| group.own);
        let (near, far) = match work {
            Work::Gather { rank, .. } => (FailedParty::Process(own), FailedParty::Rank(rank)),
            Work::Deliver { target, .. } | Work::Flag { target } => {
                (FailedParty::Process(own), FailedParty::Rank(target))
            }
            Work::Copy { source, target } => (FailedParty::Rank(target), FailedParty::Rank(source)),
            // From the memory of the process at the other end.
            Work::Fetch { .. } | Work::Repair { .. } | Work::Multicast { .. } => {
                let lanes =
                    self.groups.get(&group).and_then(|group| group.lanes.iter().position(|other| *other == lane));
                (FailedParty::Process(own), FailedParty::Process(lanes.map_or(own, |process| process as u32)))
            }
        };
        let ends = Ends { near, far };
        let transfer = StagedTransfer { group, collective, work, parts: requests.len() as u32, error: None };
        self.staged.transfers.insert(token, transfer);
        requests.into_iter().try_for_each(|request| self.transfer(lane, token, ends, request))
    }

    /// A request is over; whether it was one of a staged collective.
    pub(super) fn transferred_staged(&mut self, token: u64, error: Option<Fault>) -> bool {
        let Some(transfer) = self.staged.transfers.get_mut(&token) else { return false };
        transfer.parts -= 1;
        transfer.error = transfer.error.or(error);
        if transfer.parts == 0 {
            let StagedTransfer { group, collective, work, error, .. } = *transfer;
            self.staged.transfers.remove(&token);
            match error {
                // The far end knows why, and reports it.
                Some(Fault { failed_rank: None, .. }) => {}
                error => {
                    // Where it has failed `Broken` has come before it, with the failed rank.
                    let error = error.map(Fault::code);
                    self.staged.events.push_back((group, StagedEvent::Done { collective, work, error }));
                }
            }
        }
        true
    }
}

/// Parts that one request each can carry: offset and length.
fn parts(bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    let part = move |offset: u64| (offset, (bytes - offset).min(MOST_READ_BYTES) as u32);
    (0..bytes).step_by(MOST_READ_BYTES as usize).map(part)
}

fn read_into(start: u64, lkey: u32, from: Region) -> impl Iterator<Item = Transfer> {
    parts(from.bytes).map(move |(offset, bytes)| {
        let (to, from, rkey) = (start + offset, from.address + offset, from.key);
        Transfer::Read { to, lkey, from, rkey, bytes }
    })
}
