//! Service processes of the flow-level simulation: the state machines of `flexcast_proto`, with a processor that takes
//! one thing after the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexcast_proto::service::{
    Action, Call, ContextId, Event, Limits, LocalCopies, Message, Refusal, Region, ServiceProcess, StagedEvent,
    Topology, wire,
};

use super::engine::{Flow, Happening, Note, Transfer, TransferEnd};
use super::error::FlowError;
use super::network::{Place, time_ps};
use super::program::{By, Kind, Operation};
use super::staged::Staging;

/// Blocks of a call that one message has room for.
const BLOCKS_PER_MESSAGE: u32 = 250;
/// Who has put blocks on the list, where service processes do not die.
const NOBODY_DIES: wire::Endpoint = wire::Endpoint { address: std::net::Ipv6Addr::LOCALHOST, port: 1 };

/// What a service process is to take.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// A rank's call.
    Start { context: ContextId, rank: u32 },
    /// Something for its state machine.
    Event(Event),
    /// A rank's call of a staged collective.
    Task { context: ContextId, rank: u32 },
    /// The buffers of the ranks of another process, for a staged collective.
    Parts { context: ContextId, from: u32 },
    /// Chunks of a multicast, to be copied from where the card has put them.
    Chunks { group: u32, immediate: u32, bytes: u64 },
    /// Something for the machine of a group's staged collectives.
    Staged { group: u32, event: StagedEvent },
}

impl Job {
    pub(super) const fn read_done(context: ContextId, source: u32, target: u32) -> Self {
        Self::Event(Event::ReadDone { context, source, target, error: None })
    }
}

/// A service process.
#[derive(Debug)]
pub(super) struct Process {
    machine: ServiceProcess,
    jobs: VecDeque<Job>,
    is_busy: bool,
    /// What its machine takes after a completion, by sender and group.
    held: BTreeMap<(u32, u32), VecDeque<Event>>,
    /// By group: its staged collectives.
    pub(super) staged: BTreeMap<u32, Staging>,
}

impl Process {
    pub(super) fn new(limits: Limits) -> Result<Self, FlowError> {
        let machine = ServiceProcess::new(limits)?;
        let (held, staged) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { machine, jobs: VecDeque::new(), is_busy: false, held, staged })
    }

    pub(super) fn add_group(
        &mut self,
        group: u32,
        topology: &Arc<Topology>,
        own: u32,
        multicast_ahead_bytes: Option<u64>,
    ) -> Result<(), FlowError> {
        self.machine.add_group(group, Arc::clone(topology), own)?;
        self.staged.insert(group, Staging::new(Arc::clone(topology), own, multicast_ahead_bytes)?);
        Ok(())
    }
}

const fn region(bytes: u64) -> Region {
    Region { address: 0, key: 0, bytes }
}

/// The call of one rank: blocks of the same length with every one.
fn call(operation: &Operation, ranks: usize) -> Call {
    let blocks = vec![region(operation.bytes); ranks];
    match operation.kind {
        Kind::Alltoallv => Call::Alltoallv { send: blocks.clone(), receive: blocks },
        // Not in place: the own block is copied as well.
        _ => {
            let copies = if let By::Service(copies) = operation.by { copies } else { LocalCopies::Host };
            let send = Region { address: 1 << 40, ..region(operation.bytes) };
            Call::Allgatherv { send, receive: blocks, copies }
        }
    }
}

/// Messages that a call with a list of so many blocks takes.
const fn messages(blocks: u32) -> u64 {
    (blocks.div_ceil(BLOCKS_PER_MESSAGE)) as u64
}

const _: () = assert!(wire::MAX_BYTES == 4096);

impl Flow {
    /// A rank hands its call to its service process; the time that this takes.
    pub(super) fn post_to_service(&mut self, rank: u32, context: ContextId, ranks: u32) -> u64 {
        let ps = self.params.processors.rank_post_ps * messages(ranks);
        let Some(process) = self.server(rank, context.group) else { return ps };
        let at_ps = self.now_ps + ps + self.params.network.local_ps;
        self.queue.plan(at_ps, Happening::ToProcess(process, Job::Start { context, rank }));
        ps
    }

    pub(super) fn server(&self, rank: u32, group: u32) -> Option<u32> {
        let group = self.groups.get(group as usize)?;
        let process = group.topology.process_of(*group.number.get(&rank)?)?;
        group.processes.get(process as usize).copied()
    }

    /// Something comes to a service process.
    pub(super) fn bring(&mut self, process: u32, job: Job) {
        self.count_late(process, &job);
        let state = &mut self.processes[process as usize];
        state.jobs.push_back(job);
        if !state.is_busy {
            self.next_job(process);
        }
    }

    /// An announcement comes: has the rank called that it is for?
    fn count_late(&mut self, process: u32, job: &Job) {
        let Job::Event(Event::Arrived { context, message, .. }) = job else { return };
        let Some(group) = self.groups.get(context.group as usize) else { return };
        let collective = self.collectives.get(context);
        let has_called = |rank: u32| collective.is_some_and(|collective| collective.has_called[rank as usize]);
        let topology = &group.topology;
        let (is_late, is_none_ready) = match *message {
            Message::Ready { target, .. } => (!has_called(target), !has_called(target)),
            Message::Block { announcement, forwards: 0, .. } => {
                let own = group.processes.iter().position(|other| *other == process).unwrap_or(0) as u32;
                let hosts = topology.host_of_process(own).zip(topology.host_of(announcement.source));
                let Some((host, home)) = hosts else { return };
                let place = topology.ranks_of(home).iter().position(|rank| *rank == announcement.source).unwrap_or(0);
                let ranks = topology.ranks_of(host);
                let partner = ranks[place % ranks.len()];
                (!has_called(partner), !ranks.iter().any(|rank| has_called(*rank)))
            }
            _ => return,
        };
        self.counts.announcements += 1;
        self.counts.late += u64::from(is_late);
        self.counts.late_none_ready += u64::from(is_late && is_none_ready);
    }

    pub(super) fn free_process(&mut self, process: u32) {
        self.processes[process as usize].is_busy = false;
        self.next_job(process);
    }

    fn next_job(&mut self, process: u32) {
        let state = &mut self.processes[process as usize];
        let Some(job) = state.jobs.pop_front() else { return };
        state.is_busy = true;
        let (messages, copied_bytes) = match &job {
            Job::Start { context, .. } => (messages(self.groups[context.group as usize].ranks.len() as u32), 0),
            Job::Chunks { bytes, .. } => (1, *bytes),
            _ => (1, 0),
        };
        let copy_ps = time_ps(copied_bytes, self.params.network.copy_bytes_per_s);
        let at_ps = self.now_ps + messages * self.params.processors.process_message_ps + copy_ps;
        self.queue.plan(at_ps, Happening::ProcessDo(process, job));
    }

    /// A service process has taken something: what its machine wants goes out one after the other.
    pub(super) fn do_job(&mut self, process: u32, job: Job) -> Result<(), FlowError> {
        let event = match job {
            Job::Start { context, rank } => {
                let Some(collective) = self.collectives.get(&context) else { return Ok(()) };
                let group = &self.groups[context.group as usize];
                let number = group.number[&rank];
                let call = call(&collective.operation, group.ranks.len());
                Event::Entered { context, rank: number, call }
            }
            Job::Event(event) => event,
            Job::Task { context, rank } => return self.take_task(process, context, rank),
            Job::Parts { context, from } => return self.take_parts(process, context, from),
            Job::Staged { group, event } => return self.do_staged(process, group, event),
            Job::Chunks { group, immediate, bytes } => return self.take_chunks(process, group, immediate, bytes),
        };
        let mut at_ps = self.now_ps;
        let mut events = VecDeque::from([event]);
        let mut actions = Vec::new();
        while let Some(event) = events.pop_front() {
            self.offer(process, event, &mut actions)?;
            for action in actions.drain(..) {
                self.act(process, action, &mut at_ps, &mut events)?;
            }
        }
        let state = &self.processes[process as usize];
        self.counts.most_active_reads = self.counts.most_active_reads.max(state.machine.active_reads());
        self.queue.plan(at_ps, Happening::ProcessFree(process));
        Ok(())
    }

    /// Gives an event to a machine. A message of a collective too far ahead waits, and what follows it from its sender.
    fn offer(&mut self, process: u32, event: Event, actions: &mut Vec<Action>) -> Result<(), FlowError> {
        let state = &mut self.processes[process as usize];
        let key = if let Event::Arrived { from, context, .. } = &event { Some((*from, context.group)) } else { None };
        if let Some(held) = key.and_then(|key| state.held.get_mut(&key)) {
            held.push_back(event);
            return Ok(());
        }
        match (state.machine.handle(event.clone(), actions), key) {
            (Ok(()), _) => {}
            (Err(Refusal::Collectives { .. }), Some(key)) => state.held.entry(key).or_default().push_back(event),
            (Err(refusal), _) => return Err(refusal.into()),
        }
        if !actions.iter().any(|action| matches!(action, Action::Complete { .. })) {
            return Ok(());
        }
        // Something is over: what waits may be due.
        for (key, mut held) in std::mem::take(&mut state.held) {
            while let Some(event) = held.pop_front() {
                match state.machine.handle(event.clone(), actions) {
                    Ok(()) => {}
                    Err(Refusal::Collectives { .. }) => {
                        held.push_front(event);
                        break;
                    }
                    Err(refusal) => return Err(refusal.into()),
                }
            }
            if !held.is_empty() {
                state.held.insert(key, held);
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        process: u32,
        action: Action,
        at_ps: &mut u64,
        events: &mut VecDeque<Event>,
    ) -> Result<(), FlowError> {
        let host = process / self.params.processes_per_host;
        let post_ps = self.params.processors.process_post_ps;
        match action {
            Action::Send { to, context, message } => {
                let group = &self.groups[context.group as usize];
                let target = group.processes[to as usize];
                let from = group.processes.iter().position(|other| *other == process).unwrap_or(0) as u32;
                let event = Event::Arrived { from, context, message };
                if target == process {
                    // It says it to itself: no message.
                    self.count_late(process, &Job::Event(event.clone()));
                    events.push_back(event);
                    return Ok(());
                }
                *at_ps += post_ps;
                self.counts.process_messages += 1;
                let way_ps = self.network.message_ps(host, target / self.params.processes_per_host);
                self.queue.plan(*at_ps + way_ps, Happening::ToProcess(target, Job::Event(event)));
            }
            Action::Read { context, read } => {
                *at_ps += post_ps;
                let group = &self.groups[context.group as usize];
                let of = |rank: u32| self.ranks[group.ranks[rank as usize] as usize].host;
                let (source, target) = (of(read.holder), of(read.target));
                self.counts.reads += 1;
                self.counts.crossings += u64::from(source != target);
                // The request goes to the source first.
                let way_ps = if source == target { 0 } else { self.network.message_ps(source, target) };
                let end = TransferEnd::Process { process, context, source: read.source, target: read.target };
                let (from, to) = (Place::Host(source), Place::Host(target));
                let transfer = Transfer { from, to, bytes: read.from.bytes, end };
                self.queue.plan(*at_ps + way_ps, Happening::Begin(transfer));
            }
            Action::Put { context, announcement } => {
                self.lists[host as usize].put(context, announcement, NOBODY_DIES)?
            }
            Action::Claim { context } => {
                let announcement = self.lists[host as usize].claim(context);
                events.push_back(Event::Claimed { context, announcement });
            }
            Action::Abandon { context } => self.lists[host as usize].remove(context),
            Action::Notify { rank, context, source, region, .. } => {
                *at_ps += post_ps;
                self.counts.rank_messages += 1;
                let note = Note::Copy { context, source, bytes: region.bytes };
                let rank = self.groups[context.group as usize].ranks[rank as usize];
                self.queue.plan(*at_ps + self.params.network.local_ps, Happening::ToRank(rank, note));
            }
            Action::Complete { rank, context } => {
                *at_ps += post_ps;
                let rank = self.groups[context.group as usize].ranks[rank as usize];
                self.queue.plan(*at_ps + self.params.network.local_ps, Happening::Flag(rank, context));
            }
            Action::Fail { failure, .. } => return Err(FlowError::Failed(failure)),
        }
        Ok(())
    }

    /// A rank has copied a block: it notifies its service process. The time that this takes.
    pub(super) fn report_copied(&mut self, rank: u32, context: ContextId, source: u32) -> u64 {
        let ps = self.params.processors.rank_post_ps;
        if let (Some(process), Some(number)) =
            (self.server(rank, context.group), self.groups[context.group as usize].number.get(&rank))
        {
            let event = Event::Copied { context, rank: *number, source };
            let at_ps = self.now_ps + ps + self.params.network.local_ps;
            self.queue.plan(at_ps, Happening::ToProcess(process, Job::Event(event)));
        }
        ps
    }
}
