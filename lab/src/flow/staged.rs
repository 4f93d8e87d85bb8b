//! Staged Ibcast and Iallgather of the flow-level simulation: through memory of the cards, by the state machine of
//! `flexcast_proto`.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexcast_proto::service::{
    Between, Collective, ContextId, Delivery, Descriptor, FLAG_BYTES, Multicast, Part, Placed, Region, StagedAction,
    StagedEvent, StagedProcess, StagedRefusal, TASK_HEADER_BYTES, TASK_RANK_BYTES, Topology, Work, polled_rank, wire,
    writers,
};

use super::engine::{Flow, Happening, Multicast as Multicasting, Note, Transfer, TransferEnd};
use super::error::FlowError;
use super::network::Place;
use super::program::{By, Kind, Operation};
use super::service::Job;

/// What a service process may use of its card's memory for one group.
const STAGING: flexcast_proto::service::Staging = flexcast_proto::service::Staging {
    staging_bytes: 64 << 20,
    segments: 2,
    transfers: 16,
    collectives: 8,
    scatter_bytes: 64 << 10,
    reader: flexcast_proto::service::StagedReader::OfRoot,
    multicast: None,
};

/// Bytes of a multicast that go as one: 16 chunks of 4 KiB, which a process takes and copies together.
const RUN_BYTES: u32 = 16 * 4096;

/// The staged collectives of one group on one service process.
#[derive(Debug)]
pub(super) struct Staging {
    machine: StagedProcess,
    topology: Arc<Topology>,
    own: u32,
    /// By collective: ranks of this process that have called.
    called: BTreeMap<u32, u32>,
    /// By collective and target: Writes that are not over, and the flag that comes after them.
    writes: BTreeMap<(u32, u32), (u32, Option<u64>)>,
    /// Multicasts of segments that are not begun here: immediate and bytes.
    early: Vec<(u32, u64)>,
}

impl Staging {
    /// By multicast, with so many bytes still to come of those before, or by messages.
    pub(super) fn new(
        topology: Arc<Topology>,
        own: u32,
        multicast_ahead_bytes: Option<u64>,
    ) -> Result<Self, StagedRefusal> {
        // Nothing is lost here.
        let multicast = multicast_ahead_bytes.map(|ahead_bytes| Multicast { ahead_bytes, repair_ps: u64::MAX });
        let staging = flexcast_proto::service::Staging { multicast, ..STAGING };
        let mut machine = StagedProcess::new(Arc::clone(&topology), own, staging)?;
        machine.agree(multicast.map(|_| RUN_BYTES));
        Ok(Self { machine, topology, own, called: BTreeMap::new(), writes: BTreeMap::new(), early: Vec::new() })
    }
}

impl Job {
    pub(super) const fn staged_done(context: ContextId, work: Work) -> Self {
        let event = StagedEvent::Done { collective: context.collective, work, error: None };
        Self::Staged { group: context.group, event }
    }
}

fn descriptor(operation: &Operation) -> Descriptor {
    let collective =
        if operation.kind == Kind::Broadcast { Collective::Broadcast { root: 0 } } else { Collective::Allgather };
    let delivery = if let By::Staged(delivery) = operation.by { delivery } else { Delivery::Flat };
    Descriptor { collective, delivery, bytes: operation.bytes }
}

/// Bytes that a rank receives.
const fn received_bytes(operation: &Operation, ranks: u32) -> u64 {
    match operation.kind {
        Kind::Broadcast => operation.bytes,
        _ => operation.bytes * ranks as u64,
    }
}

fn part(operation: &Operation, topology: &Topology, rank: u32) -> Part {
    let region = |bytes| Region { address: 0, key: 0, bytes };
    let all = region(received_bytes(operation, topology.ranks()));
    let flags = region(FLAG_BYTES * u64::from(topology.processes()));
    Part { rank, send: region(operation.bytes), receive: all, flags, shared: all }
}

/// The call of a rank.
fn called(operation: &Operation, topology: &Topology, rank: u32, context: ContextId) -> StagedEvent {
    let (descriptor, part) = (descriptor(operation), part(operation, topology, rank));
    StagedEvent::Called { collective: context.collective, descriptor, part }
}

impl Flow {
    /// A rank hands its buffers to its service process; the time that this takes.
    pub(super) fn post_task(&mut self, rank: u32, context: ContextId) -> u64 {
        let ps = self.params.processors.rank_post_ps;
        if let Some(process) = self.server(rank, context.group) {
            let at_ps = self.now_ps + ps + self.params.network.local_ps;
            self.queue.plan(at_ps, Happening::ToProcess(process, Job::Task { context, rank }));
        }
        ps
    }

    /// A service process has the buffers of one of its ranks. With those of all it notifies the other processes.
    pub(super) fn take_task(&mut self, process: u32, context: ContextId, rank: u32) -> Result<(), FlowError> {
        let group = &self.groups[context.group as usize];
        let (number, targets) = (group.number[&rank], group.processes.clone());
        let Some(collective) = self.collectives.get(&context) else { return Ok(()) };
        let operation = collective.operation;
        let Some(staging) = self.processes[process as usize].staged.get_mut(&context.group) else { return Ok(()) };
        let so_far = staging.called.entry(context.collective).or_default();
        *so_far += 1;
        let served = staging.topology.served_by(staging.own).count() as u32;
        let is_whole = *so_far == served;
        if is_whole {
            staging.called.remove(&context.collective);
        }
        let (own, topology) = (staging.own, Arc::clone(&staging.topology));
        let mut at_ps = self.now_ps;
        if is_whole {
            let bytes = TASK_HEADER_BYTES + TASK_RANK_BYTES * u64::from(served);
            let messages = bytes.div_ceil(wire::MAX_BYTES as u64);
            for target in targets.into_iter().filter(|target| *target != process) {
                at_ps += messages * self.params.processors.process_post_ps;
                self.counts.process_messages += messages;
                let per_host = self.params.processes_per_host;
                let way_ps = self.network.message_ps(process / per_host, target / per_host);
                self.queue.plan(at_ps + way_ps, Happening::ToProcess(target, Job::Parts { context, from: own }));
            }
        }
        let event = called(&operation, &topology, number, context);
        self.staged_event(process, context.group, event, &mut at_ps)?;
        self.queue.plan(at_ps, Happening::ProcessFree(process));
        Ok(())
    }

    /// The buffers of the ranks of another process.
    pub(super) fn take_parts(&mut self, process: u32, context: ContextId, from: u32) -> Result<(), FlowError> {
        let Some(operation) = self.collectives.get(&context).map(|collective| collective.operation) else {
            return Ok(());
        };
        let topology = Arc::clone(&self.groups[context.group as usize].topology);
        let mut at_ps = self.now_ps;
        for number in topology.served_by(from) {
            let event = called(&operation, &topology, number, context);
            self.staged_event(process, context.group, event, &mut at_ps)?;
        }
        self.queue.plan(at_ps, Happening::ProcessFree(process));
        Ok(())
    }

    pub(super) fn do_staged(&mut self, process: u32, group: u32, event: StagedEvent) -> Result<(), FlowError> {
        let mut at_ps = self.now_ps;
        if let StagedEvent::Done { collective, work, .. } = event {
            let context = ContextId { group, collective };
            match work {
                Work::Deliver { target, .. } | Work::Copy { target, .. } => {
                    self.delivered(process, context, target, &mut at_ps)
                }
                Work::Flag { target } => self.flagged(context, target),
                Work::Gather { .. } | Work::Fetch { .. } | Work::Multicast { .. } | Work::Repair { .. } => {}
            }
        }
        self.staged_event(process, group, event, &mut at_ps)?;
        self.queue.plan(at_ps, Happening::ProcessFree(process));
        Ok(())
    }

    fn staged_event(&mut self, process: u32, group: u32, event: StagedEvent, at_ps: &mut u64) -> Result<(), FlowError> {
        let mut actions = Vec::new();
        if let Some(staging) = self.processes[process as usize].staged.get_mut(&group) {
            staging.machine.handle(event, &mut actions)?;
        }
        actions.into_iter().try_for_each(|action| self.act_staged(process, group, action, at_ps))?;
        let staging = self.processes[process as usize].staged.get_mut(&group);
        let early = staging.map(|staging| std::mem::take(&mut staging.early)).unwrap_or_default();
        early.into_iter().try_for_each(|(immediate, bytes)| self.place_chunks(process, group, immediate, bytes, at_ps))
    }

    /// A process has copied what has come by a multicast.
    pub(super) fn take_chunks(
        &mut self,
        process: u32,
        group: u32,
        immediate: u32,
        bytes: u64,
    ) -> Result<(), FlowError> {
        let mut at_ps = self.now_ps;
        self.place_chunks(process, group, immediate, bytes, &mut at_ps)?;
        self.queue.plan(at_ps, Happening::ProcessFree(process));
        Ok(())
    }

    fn place_chunks(
        &mut self,
        process: u32,
        group: u32,
        immediate: u32,
        bytes: u64,
        at_ps: &mut u64,
    ) -> Result<(), FlowError> {
        let Some(staging) = self.processes[process as usize].staged.get_mut(&group) else { return Ok(()) };
        let mut actions = Vec::new();
        match staging.machine.place(immediate, bytes) {
            Placed::At(_) => staging.machine.take(immediate, &mut actions),
            Placed::Early => staging.early.push((immediate, bytes)),
            Placed::Stale => {}
        }
        actions.into_iter().try_for_each(|action| self.act_staged(process, group, action, at_ps))
    }

    pub(super) fn begin_multicast(&mut self, multicast: &Multicasting) {
        let Multicasting { process, context, work, bytes, immediate, is_last } = *multicast;
        let per_host = self.params.processes_per_host;
        let group = &self.groups[context.group as usize];
        let to: Vec<u32> = group.processes.iter().copied().filter(|other| *other != process).collect();
        let hosts: Vec<u32> = to.iter().map(|process| process / per_host).collect();
        let (part, copies) = self.network.begin_multicast(process / per_host, &hosts, bytes, self.now_ps);
        // They leave one behind the other.
        if is_last {
            self.ends.insert(part.transfer.number(), TransferEnd::Staged { process, context, work });
        }
        for (process, copy) in to.into_iter().zip(copies) {
            let end = TransferEnd::Chunks { process, group: context.group, immediate, bytes };
            self.ends.insert(copy.number(), end);
        }
        self.serve(part);
    }

    fn act_staged(&mut self, process: u32, group: u32, action: StagedAction, at_ps: &mut u64) -> Result<(), FlowError> {
        let per_host = self.params.processes_per_host;
        let host = process / per_host;
        let of = |flow: &Self, rank: u32| flow.ranks[flow.groups[group as usize].ranks[rank as usize] as usize].host;
        match action {
            StagedAction::Send { to, collective, message } => {
                let target = self.groups[group as usize].processes[to as usize];
                let from = self.processes[process as usize].staged.get(&group).map_or(0, |staging| staging.own);
                *at_ps += self.params.processors.process_post_ps;
                self.counts.process_messages += 1;
                let event = StagedEvent::Arrived { from, collective, message };
                let way_ps = self.network.message_ps(host, target / per_host);
                self.queue.plan(*at_ps + way_ps, Happening::ToProcess(target, Job::Staged { group, event }));
            }
            StagedAction::Read { collective, work, from, .. } => {
                let Work::Gather { rank, .. } = work else { return Ok(()) };
                let source = Place::Host(of(self, rank));
                self.counts.reads += 1;
                self.begin_staged(
                    process,
                    ContextId { group, collective },
                    work,
                    (source, Place::Arm(host)),
                    from.bytes,
                    at_ps,
                );
            }
            StagedAction::Fetch { collective, work, from, ranges } => {
                let from = self.groups[group as usize].processes[from as usize] / per_host;
                let bytes = ranges.iter().map(|range| range.bytes).sum();
                let way = (Place::Arm(from), Place::Arm(host));
                self.begin_staged(process, ContextId { group, collective }, work, way, bytes, at_ps);
            }
            StagedAction::Write { collective, work, from, .. } => {
                let Work::Deliver { target, .. } = work else { return Ok(()) };
                let way = (Place::Arm(host), Place::Host(of(self, target)));
                if let Some(staging) = self.processes[process as usize].staged.get_mut(&group) {
                    staging.writes.entry((collective, target)).or_default().0 += 1;
                }
                self.counts.writes += 1;
                self.begin_staged(process, ContextId { group, collective }, work, way, from.bytes, at_ps);
            }
            StagedAction::Multicast { collective, work, from, chunk_bytes, immediate } => {
                self.counts.multicasts += 1;
                let context = ContextId { group, collective };
                let starts = (0..from.bytes).step_by(chunk_bytes as usize);
                for (immediate, start) in (immediate..).zip(starts) {
                    *at_ps += self.params.processors.process_post_ps;
                    let bytes = (from.bytes - start).min(chunk_bytes.into());
                    let is_last = start + bytes == from.bytes;
                    let multicast = Multicasting { process, context, work, bytes, immediate, is_last };
                    self.queue.plan(*at_ps, Happening::Multicast(multicast));
                }
            }
            StagedAction::Copy { collective, work, from, .. } => {
                let Work::Copy { source, target } = work else { return Ok(()) };
                let way = (Place::Host(of(self, source)), Place::Host(of(self, target)));
                if let Some(staging) = self.processes[process as usize].staged.get_mut(&group) {
                    staging.writes.entry((collective, target)).or_default().0 += 1;
                }
                self.counts.reads += 1;
                self.begin_staged(process, ContextId { group, collective }, work, way, from.bytes, at_ps);
            }
            StagedAction::WriteFlag { collective, work, value, .. } => {
                let Work::Flag { target } = work else { return Ok(()) };
                let staging = self.processes[process as usize].staged.get_mut(&group);
                let waits = staging.and_then(|staging| staging.writes.get_mut(&(collective, target)));
                match waits.filter(|(open, _)| *open > 0) {
                    // The same queue pair has its Writes first.
                    Some((_, flag)) => *flag = Some(value),
                    None => self.begin_flag(process, ContextId { group, collective }, target, at_ps),
                }
            }
            StagedAction::Fail { failure, .. } => return Err(FlowError::StagedFailed(failure)),
        }
        Ok(())
    }

    fn begin_staged(
        &mut self,
        process: u32,
        context: ContextId,
        work: Work,
        (from, to): (Place, Place),
        bytes: u64,
        at_ps: &mut u64,
    ) {
        *at_ps += self.params.processors.process_post_ps;
        let is_read = matches!(work, Work::Gather { .. } | Work::Fetch { .. } | Work::Copy { .. });
        let (source, target) = (from.host(), to.host());
        let way_ps = if is_read && source != target { self.network.message_ps(source, target) } else { 0 };
        let end = TransferEnd::Staged { process, context, work };
        self.queue.plan(*at_ps + way_ps, Happening::Begin(Transfer { from, to, bytes, end }));
    }

    /// A Write has come to its place: the flag that waits for the last one follows.
    fn delivered(&mut self, process: u32, context: ContextId, target: u32, at_ps: &mut u64) {
        let Some(staging) = self.processes[process as usize].staged.get_mut(&context.group) else { return };
        let key = (context.collective, target);
        let Some((open, flag)) = staging.writes.get_mut(&key) else { return };
        *open -= 1;
        if *open == 0 {
            let is_due = flag.is_some();
            staging.writes.remove(&key);
            if is_due {
                self.begin_flag(process, context, target, at_ps);
            }
        }
    }

    fn begin_flag(&mut self, process: u32, context: ContextId, target: u32, at_ps: &mut u64) {
        let host = process / self.params.processes_per_host;
        let rank = self.groups[context.group as usize].ranks[target as usize];
        let way = (Place::Arm(host), Place::Host(self.ranks[rank as usize].host));
        self.begin_staged(process, context, Work::Flag { target }, way, 0, at_ps);
    }

    /// A flag of one process is in a rank's memory: with those of all that write there, the collective is over for the
    /// ranks that poll there.
    fn flagged(&mut self, context: ContextId, target: u32) {
        let Some(collective) = self.collectives.get_mut(&context) else { return };
        let operation = collective.operation;
        let group = &self.groups[context.group as usize];
        let (topology, descriptor) = (&group.topology, descriptor(&operation));
        let staged =
            group.processes.first().and_then(|first| self.processes[*first as usize].staged.get(&context.group));
        let between = staged.map_or(Between::Messages, |staging| staging.machine.between());
        collective.flags[target as usize] += 1;
        if collective.flags[target as usize] < writers(topology, between, &descriptor, target).len() as u32 {
            return;
        }
        let Some(host) = topology.host_of(target) else { return };
        let polling =
            topology.ranks_of(host).iter().filter(|rank| polled_rank(topology, descriptor.delivery, **rank) == target);
        let polling: Vec<u32> = polling.map(|rank| group.ranks[*rank as usize]).collect();
        let bytes = received_bytes(&operation, topology.ranks());
        for rank in polling {
            let what = match descriptor.delivery {
                Delivery::Flat | Delivery::Direct => Happening::Flag(rank, context),
                Delivery::Hierarchical => Happening::ToRank(rank, Note::Shared { context, bytes }),
            };
            self.queue.plan(self.now_ps, what);
        }
    }
}
