//! Engine: ranks with their scripts, what is under way, and what happens next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use flexcast_proto::service::{ContextId, Locality, SharedList, Topology, Work};
use serde::Serialize;

use super::error::FlowError;
use super::hosts::HostCall;
use super::network::{Network, Part, TransferId};
use super::params::FlowParams;
use super::program::{By, Operation, Step, Times};
use super::queue::Queue;
use super::service::{Job, Process};

/// Blocks that the shared list of a card has room for.
const LIST: u64 = 1 << 24;

/// What happens.
#[derive(Debug)]
pub(super) enum Happening {
    /// A rank's processor has done what it did.
    RankFree(u32),
    /// A rank's processor has taken a note, which takes effect.
    RankDo(u32, Note),
    /// A note comes to a rank.
    ToRank(u32, Note),
    /// A collective is over for a rank: its flag is there.
    Flag(u32, ContextId),
    /// A service process has done what it did.
    ProcessFree(u32),
    /// It has taken something, which takes effect.
    ProcessDo(u32, Job),
    /// Something comes to a service process.
    ToProcess(u32, Job),
    /// A rank or a process begins a transfer.
    Begin(Transfer),
    /// A service process begins a multicast.
    Multicast(Multicast),
    /// A part of a transfer comes to its next stage.
    Part(Part),
    /// The next part of a transfer may begin.
    Follow(TransferId),
    /// A transfer is over.
    Over(TransferEnd),
}

/// A transfer from memory to memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) from: super::network::Place,
    pub(super) to: super::network::Place,
    pub(super) bytes: u64,
    pub(super) end: TransferEnd,
}

/// A multicast of memory of a card to that of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multicast {
    pub(super) process: u32,
    pub(super) context: ContextId,
    pub(super) work: Work,
    pub(super) bytes: u64,
    pub(super) immediate: u32,
    /// What follows is of another multicast.
    pub(super) is_last: bool,
}

/// Who learns of the end of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum TransferEnd {
    /// A service process, of a Read.
    Process { process: u32, context: ContextId, source: u32, target: u32 },
    /// A rank, by a note.
    Rank(u32, Note),
    /// A service process, of a transfer of a staged collective.
    Staged { process: u32, context: ContextId, work: Work },
    /// A service process that receives a multicast.
    Chunks { process: u32, group: u32, immediate: u32, bytes: u64 },
}

/// What a rank's library learns, when it is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    /// A block to copy from another rank of the host, in a collective of a service process.
    Copy { context: ContextId, source: u32, bytes: u64 },
    /// What a staged collective has left in the shared segment of the host, to copy from there.
    Shared { context: ContextId, bytes: u64 },
    /// The other side of a step has data (rendezvous).
    Ready { context: ContextId, step: u32 },
    /// Data of a step has come with its message (eager); `copies`: to where it belongs.
    Data { context: ContextId, step: u32, bytes: u64 },
    /// A Read of a step is over.
    HasRead { context: ContextId, step: u32 },
    /// A processor of this host copies the data of a step from another one's memory.
    Copied { context: ContextId, step: u32, bytes: u64 },
    /// The other side has read what this one sends in a step.
    Taken { context: ContextId, step: u32 },
}

/// What a simulation has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCounts {
    /// Reads by service processes.
    pub reads: u64,
    /// Of them, those from another host.
    pub crossings: u64,
    /// Writes from memory of the cards to host memory.
    pub writes: u64,
    /// Multicasts of service processes.
    pub multicasts: u64,
    /// Messages between service processes.
    pub process_messages: u64,
    /// Messages from service processes to ranks.
    pub rank_messages: u64,
    /// Most Reads that a service process had under way.
    pub most_active_reads: u32,
    /// Announcements.
    pub announcements: u64,
    /// Of them, those that came before the rank that they were for had called: in an Allgatherv the rank of the host
    /// that has the place of the source.
    pub late: u64,
    /// Of those, the ones that came before any rank of the host had called.
    pub late_none_ready: u64,
    /// Copies between ranks of a host.
    pub copies: u64,
    /// Payload that has gone over ports of cards.
    pub port_bytes: u64,
    /// Payload that has gone to and from memory of Arm cores.
    pub arm_bytes: u64,
    /// Events.
    pub events: u64,
}

#[derive(Debug)]
enum Waits {
    Any,
    AnyOf(u32),
    All,
}

#[derive(Debug)]
pub(super) struct RankState {
    pub(super) host: u32,
    script: Vec<Step>,
    at: usize,
    is_busy: bool,
    waits: Option<(Waits, u64)>,
    inbox: VecDeque<Note>,
    /// Calls that no wait has taken yet, and their groups.
    open: BTreeMap<u32, u32>,
    /// Those of them that are over.
    done: BTreeSet<u32>,
    posted: u32,
    /// By call under way, its number here.
    numbers: BTreeMap<ContextId, u32>,
    marks: Vec<(u32, u64)>,
    times: Times,
}

/// Who counts the collectives of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Hosts,
    Service,
    Staged,
}

impl Carrier {
    const fn of(by: By) -> Self {
        match by {
            By::Hosts { .. } => Self::Hosts,
            By::Service(_) => Self::Service,
            By::Staged(_) => Self::Staged,
        }
    }
}

/// Ranks that call collectives together, which are all carried out by the same: hosts, service processes, or service
/// processes through memory of their cards. The same ranks may have several groups.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its ranks, by their numbers in the group.
    pub ranks: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) ranks: Vec<u32>,
    /// By rank of the machine: its number in the group.
    pub(super) number: BTreeMap<u32, u32>,
    pub(super) topology: Arc<Topology>,
    /// By service process of the group: its number in the machine.
    pub(super) processes: Vec<u32>,
    /// By number of a rank: its next collective.
    next: Vec<u32>,
    /// Who carries its collectives out: each counts them by itself.
    carrier: Option<Carrier>,
}

/// A collective under way.
#[derive(Debug)]
pub(super) struct Collective {
    pub(super) operation: Operation,
    /// By number in the group: who has called.
    pub(super) has_called: Vec<bool>,
    /// By number in the group: how far hosts are that carry it out themselves.
    pub(super) host_calls: Vec<Option<Box<HostCall>>>,
    /// By number in the group: flags of a staged collective that have come.
    pub(super) flags: Vec<u32>,
    left: u32,
}

/// A simulation.
#[derive(Debug)]
pub struct Flow {
    pub(super) params: FlowParams,
    pub(super) now_ps: u64,
    pub(super) queue: Queue<Happening>,
    pub(super) network: Network,
    pub(super) ends: BTreeMap<u32, TransferEnd>,
    pub(super) ranks: Vec<RankState>,
    pub(super) processes: Vec<Process>,
    pub(super) lists: Vec<SharedList>,
    pub(super) groups: Vec<GroupState>,
    pub(super) collectives: BTreeMap<ContextId, Collective>,
    pub(super) counts: FlowCounts,
}

impl Flow {
    /// Ranks with their scripts, in these groups.
    ///
    /// # Errors
    /// Parameters or groups that cannot be.
    pub fn new(params: FlowParams, groups: &[Group], scripts: Vec<Vec<Step>>) -> Result<Self, FlowError> {
        let at_least_one = [
            ("hosts", params.hosts),
            ("ranks of each host", params.ranks_per_host),
            ("service processes of each host", params.processes_per_host),
            ("Reads at once", params.active_reads),
        ];
        if let Some((what, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(FlowError::Parameter { what, value: 0, limit: "give at least 1" });
        }
        let most = flexcast_proto::MAX_RANKS;
        if u64::from(params.hosts) * u64::from(params.ranks_per_host) > u64::from(most) {
            let value = u64::from(params.hosts) * u64::from(params.ranks_per_host);
            return Err(FlowError::Parameter { what: "ranks", value, limit: "give no more than a group may have" });
        }
        let state = |(rank, script)| RankState {
            host: params.host_of(rank),
            script,
            at: 0,
            is_busy: false,
            waits: None,
            inbox: VecDeque::new(),
            open: BTreeMap::new(),
            done: BTreeSet::new(),
            posted: 0,
            numbers: BTreeMap::new(),
            marks: Vec::new(),
            times: Times::default(),
        };
        let ranks: Vec<RankState> = (0..params.ranks()).zip(scripts).map(state).collect();
        let mut processes = Vec::new();
        for _ in 0..params.hosts * params.processes_per_host {
            processes.push(Process::new(params.limits())?);
        }
        let mut flow = Self {
            params,
            now_ps: 0,
            queue: Queue::new(),
            network: Network::new(params.network, params.hosts),
            ends: BTreeMap::new(),
            ranks,
            processes,
            lists: (0..params.hosts).map(|_| SharedList::new(LIST)).collect(),
            groups: Vec::new(),
            collectives: BTreeMap::new(),
            counts: FlowCounts::default(),
        };
        groups.iter().try_for_each(|group| flow.add_group(group))?;
        Ok(flow)
    }

    fn add_group(&mut self, group: &Group) -> Result<(), FlowError> {
        // Hosts are numbered within the group, and each has as many of its processes in it as the fewest ranks allow.
        let hosts: BTreeSet<u32> = group.ranks.iter().map(|rank| self.params.host_of(*rank)).collect();
        let hosts: Vec<u32> = hosts.into_iter().collect();
        let place = |rank: &u32| hosts.binary_search(&self.params.host_of(*rank)).unwrap_or(0) as u32;
        let localities: Vec<Locality> =
            group.ranks.iter().map(|rank| Locality { host: place(rank), socket: 0 }).collect();
        let ranks_on = |host: u32| localities.iter().filter(|locality| locality.host == host).count() as u32;
        let fewest = (0..hosts.len() as u32).map(ranks_on).min().unwrap_or(0);
        let topology = Arc::new(Topology::new(&localities, self.params.processes_per_host.min(fewest.max(1)))?);
        let number = self.groups.len() as u32;
        let mut processes = Vec::new();
        for process in 0..topology.processes() {
            let host = topology.host_of_process(process).unwrap_or(0);
            let first = topology.processes_of(host).start;
            let on = hosts[host as usize];
            // Groups of a host begin with different processes of its card, so that small groups do not all have the
            // same.
            let index = (process - first + number) % self.params.processes_per_host;
            let global = on * self.params.processes_per_host + index;
            self.processes[global as usize].add_group(number, &topology, process, self.params.multicast_ahead_bytes)?;
            processes.push(global);
        }
        let ranks = group.ranks.clone();
        let numbers = ranks.iter().copied().zip(0..).collect();
        let next = vec![0; ranks.len()];
        self.groups.push(GroupState { ranks, number: numbers, topology, processes, next, carrier: None });
        Ok(())
    }

    /// Lets everything happen, until all scripts are through.
    ///
    /// # Errors
    /// A script that does not come to its end.
    pub fn run(&mut self) -> Result<(), FlowError> {
        for rank in 0..self.ranks.len() as u32 {
            self.queue.plan(0, Happening::RankFree(rank));
        }
        while let Some((now_ps, what)) = self.queue.next() {
            self.now_ps = now_ps;
            self.happen(what)?;
        }
        let traffic = self.network.traffic();
        self.counts.port_bytes = traffic.port_bytes;
        self.counts.arm_bytes = traffic.arm_bytes;
        self.counts.events = self.queue.planned();
        match (0..).zip(&self.ranks).find(|(_, state)| state.at < state.script.len() || state.waits.is_some()) {
            Some((rank, state)) => Err(FlowError::Stuck { rank, step: state.at, steps: state.script.len() }),
            None => Ok(()),
        }
    }

    fn happen(&mut self, what: Happening) -> Result<(), FlowError> {
        match what {
            Happening::RankFree(rank) => {
                self.ranks[rank as usize].is_busy = false;
                self.go_on(rank)?;
            }
            Happening::RankDo(rank, note) => {
                let extra_ps = self.take(rank, note);
                self.queue.plan(self.now_ps + extra_ps, Happening::RankFree(rank));
            }
            Happening::ToRank(rank, note) => {
                self.ranks[rank as usize].inbox.push_back(note);
                self.go_on(rank)?;
            }
            Happening::Flag(rank, context) => self.finish(rank, context)?,
            Happening::ProcessFree(process) => self.free_process(process),
            Happening::ProcessDo(process, job) => self.do_job(process, job)?,
            Happening::ToProcess(process, job) => self.bring(process, job),
            Happening::Begin(Transfer { from, to, bytes, end }) => {
                let part = self.network.begin(from, to, bytes, self.now_ps);
                self.ends.insert(part.transfer.number(), end);
                self.serve(part);
            }
            Happening::Multicast(multicast) => self.begin_multicast(&multicast),
            Happening::Part(part) => self.serve(part),
            Happening::Follow(transfer) => {
                let part = self.network.follow(transfer, self.now_ps);
                self.serve(part);
            }
            Happening::Over(TransferEnd::Rank(rank, note)) => self.happen(Happening::ToRank(rank, note))?,
            Happening::Over(TransferEnd::Staged { process, context, work }) => {
                self.bring(process, Job::staged_done(context, work));
            }
            Happening::Over(TransferEnd::Chunks { process, group, immediate, bytes }) => {
                self.bring(process, Job::Chunks { group, immediate, bytes });
            }
            Happening::Over(TransferEnd::Process { process, context, source, target }) => {
                self.bring(process, Job::read_done(context, source, target));
            }
        }
        Ok(())
    }

    pub(super) fn serve(&mut self, mut part: Part) {
        let served = self.network.serve(&mut part, self.now_ps);
        for (at_ps, part) in self.network.take_fanned() {
            self.queue.plan(at_ps, Happening::Part(part));
        }
        if let Some(at_ps) = served.following_ps {
            self.queue.plan(at_ps, Happening::Follow(part.transfer));
        }
        if let Some(at_ps) = served.next_ps {
            self.queue.plan(at_ps, Happening::Part(part));
        }
        if let Some(at_ps) = served.over_ps
            && let Some(end) = self.ends.remove(&part.transfer.number())
        {
            self.queue.plan(at_ps, Happening::Over(end));
        }
    }

    /// A rank's processor goes on with its script, or with what its library learns while it waits.
    fn go_on(&mut self, rank: u32) -> Result<(), FlowError> {
        loop {
            let now_ps = self.now_ps;
            let state = &mut self.ranks[rank as usize];
            if state.is_busy {
                return Ok(());
            }
            if let Some((waits, since_ps)) = &state.waits {
                let is_of = |wanted: u32, slot: &u32| state.open.get(slot) == Some(&wanted);
                let is_over = match waits {
                    Waits::Any => !state.done.is_empty() || state.open.is_empty(),
                    Waits::AnyOf(group) => {
                        state.done.iter().any(|slot| is_of(*group, slot))
                            || !state.open.values().any(|other| other == group)
                    }
                    Waits::All => state.done.len() == state.open.len(),
                };
                if !is_over {
                    if let Some(note) = state.inbox.pop_front() {
                        state.is_busy = true;
                        self.begin_note(rank, note);
                    }
                    return Ok(());
                }
                state.times.wait_ps += now_ps - since_ps;
                let taken = match waits {
                    Waits::Any => state.done.first().copied(),
                    Waits::AnyOf(group) => state.done.iter().find(|slot| is_of(*group, slot)).copied(),
                    Waits::All => None,
                };
                if matches!(waits, Waits::All) {
                    state.done.clear();
                    state.open.clear();
                } else if let Some(slot) = taken {
                    state.done.remove(&slot);
                    state.open.remove(&slot);
                }
                state.waits = None;
            }
            let Some(step) = state.script.get(state.at).copied() else { return Ok(()) };
            state.at += 1;
            match step {
                Step::Mark(number) => state.marks.push((number, now_ps)),
                Step::WaitAny => state.waits = Some((Waits::Any, now_ps)),
                Step::WaitAnyOf(group) => state.waits = Some((Waits::AnyOf(group), now_ps)),
                Step::WaitAll => state.waits = Some((Waits::All, now_ps)),
                Step::Compute(ps) => {
                    state.is_busy = true;
                    state.times.compute_ps += ps;
                    self.queue.plan(now_ps + ps, Happening::RankFree(rank));
                    return Ok(());
                }
                Step::Post(operation) => {
                    state.is_busy = true;
                    let ps = self.post(rank, operation)?;
                    self.ranks[rank as usize].times.call_ps += ps;
                    self.queue.plan(now_ps + ps, Happening::RankFree(rank));
                    return Ok(());
                }
            }
        }
    }

    /// A rank calls; the time that the call takes.
    fn post(&mut self, rank: u32, operation: Operation) -> Result<u64, FlowError> {
        let unknown = FlowError::Parameter {
            what: "group of a call",
            value: operation.group.into(),
            limit: "give one that the rank is in",
        };
        let group = self.groups.get_mut(operation.group as usize);
        let Some((group, own)) = group.and_then(|group| group.number.get(&rank).copied().map(|own| (group, own)))
        else {
            return Err(unknown);
        };
        if *group.carrier.get_or_insert(Carrier::of(operation.by)) != Carrier::of(operation.by) {
            let limit = "has calls that others carry out: give these a group of their own";
            return Err(FlowError::Parameter { what: "group of a call", value: operation.group.into(), limit });
        }
        let context = ContextId { group: operation.group, collective: group.next[own as usize] };
        group.next[own as usize] += 1;
        let members = group.ranks.len();
        let state = &mut self.ranks[rank as usize];
        let slot = state.posted;
        state.posted += 1;
        state.open.insert(slot, operation.group);
        state.numbers.insert(context, slot);
        let collective = self.collectives.entry(context).or_insert_with(|| Collective::new(operation, members));
        if collective.operation != operation {
            let ContextId { group, collective } = context;
            return Err(FlowError::Disagree { group, collective, rank });
        }
        collective.has_called[own as usize] = true;
        match operation.by {
            By::Service(_) => Ok(self.post_to_service(rank, context, members as u32)),
            By::Staged(_) => Ok(self.post_task(rank, context)),
            By::Hosts { .. } => Ok(self.post_to_hosts(rank, own, context)),
        }
    }

    /// A note is taken by a rank's processor: when it has, it takes effect.
    fn begin_note(&mut self, rank: u32, note: Note) {
        let host = self.ranks[rank as usize].host;
        let after_ps = self.now_ps + self.params.processors.rank_message_ps;
        let until_ps = match note {
            Note::Copy { bytes, .. }
            | Note::Shared { bytes, .. }
            | Note::Data { bytes, .. }
            | Note::Copied { bytes, .. } => {
                self.counts.copies += u64::from(bytes > 0);
                self.network.copy(host, bytes, after_ps)
            }
            Note::Ready { .. } | Note::HasRead { .. } | Note::Taken { .. } => after_ps,
        };
        self.queue.plan(until_ps, Happening::RankDo(rank, note));
    }

    /// A note takes effect; the time that what follows from it takes.
    fn take(&mut self, rank: u32, note: Note) -> u64 {
        match note {
            Note::Copy { context, source, .. } => self.report_copied(rank, context, source),
            Note::Shared { context, .. } => {
                self.queue.plan(self.now_ps, Happening::Flag(rank, context));
                0
            }
            other => self.take_of_hosts(rank, other),
        }
    }

    /// A collective is over for a rank.
    pub(super) fn finish(&mut self, rank: u32, context: ContextId) -> Result<(), FlowError> {
        let state = &mut self.ranks[rank as usize];
        if let Some(slot) = state.numbers.remove(&context) {
            state.done.insert(slot);
        }
        if let Some(collective) = self.collectives.get_mut(&context) {
            collective.left -= 1;
            if collective.left == 0 {
                self.collectives.remove(&context);
            }
        }
        self.go_on(rank)
    }

    /// The times that a rank has noted.
    #[must_use]
    pub fn marks(&self, rank: u32) -> &[(u32, u64)] {
        &self.ranks[rank as usize].marks
    }

    /// Where its time has gone.
    #[must_use]
    pub fn times(&self, rank: u32) -> Times {
        self.ranks[rank as usize].times
    }

    /// What has been counted.
    #[must_use]
    pub const fn counts(&self) -> FlowCounts {
        self.counts
    }

    /// Virtual time at the end.
    #[must_use]
    pub const fn now_ps(&self) -> u64 {
        self.now_ps
    }
}

impl Collective {
    fn new(operation: Operation, ranks: usize) -> Self {
        let host_calls = (0..ranks).map(|_| None).collect();
        Self { operation, has_called: vec![false; ranks], host_calls, flags: vec![0; ranks], left: ranks as u32 }
    }
}
