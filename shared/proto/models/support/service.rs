//! Cards, hosts and connections around service processes: carries out their actions on memory that is compared byte by
//! byte.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use flexcast_proto::service::wire::{Body, Endpoint};
use flexcast_proto::service::{
    Action, Call, Cause, ContextId, Event, FailedParty, Failure, Ignored, Limits, LocalCopies, Locality, Message,
    Operation, Read, ReadError, Refusal, Region, ServiceProcess, SharedList, Topology,
};

use super::packets;

/// An Allgatherv whose blocks ranks copy themselves.
pub(crate) const BY_HOST: Operation = Operation::Allgatherv(LocalCopies::Host);
/// An Allgatherv whose blocks cards copy.
pub(crate) const BY_CARD: Operation = Operation::Allgatherv(LocalCopies::Card);

/// Who has put blocks on the list, where service processes do not die.
const NOBODY_DIES: Endpoint = Endpoint { address: std::net::Ipv6Addr::LOCALHOST, port: 1 };

/// A communicator and what it does.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) topology: Arc<Topology>,
    /// By host of the group: which computer it is.
    pub(crate) computers: Vec<usize>,
    /// Its collectives, one after another.
    pub(crate) collectives: Vec<Operation>,
}

/// All that does not change.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) computers: usize,
    pub(crate) processes_per_host: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) limits: Limits,
    pub(crate) seed: u64,
    /// 1: all blocks have 1 byte. More: they have 0 to this many.
    pub(crate) most_bytes: u64,
    /// Who may die, at any time: a rank of group 0, or a process.
    pub(crate) dying: Option<Dying>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dying {
    Rank(u32),
    /// By its number in group 0.
    Process(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Complete,
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    Enter {
        group: usize,
        rank: u32,
    },
    Deliver {
        from: usize,
        to: usize,
        group: u32,
    },
    EndRead(usize),
    EndCopy(usize),
    Die,
    /// A process learns that another one has died.
    See {
        process: usize,
        group: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Copying {
    context: ContextId,
    rank: u32,
    source: u32,
    holder: u32,
    from: Region,
}

/// What is counted where somebody asks for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) announcements: BTreeMap<(ContextId, u32), Vec<u32>>,
    pub(crate) crossings: BTreeMap<ContextId, u32>,
    pub(crate) forwards: BTreeMap<(ContextId, u32, u32), u32>,
    pub(crate) copies: BTreeMap<(ContextId, u32, u32), u32>,
    pub(crate) most_active: u32,
    pub(crate) most_waiting: usize,
    pub(crate) refused: u32,
    pub(crate) listed: u32,
    /// Blocks that ranks were given to read.
    pub(crate) loads: BTreeMap<(ContextId, u32), u32>,
    pub(crate) ignored: Ignored,
}

/// All that does.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) processes: Vec<Option<ServiceProcess>>,
    lists: Vec<SharedList>,
    /// By sender, receiver and group: a message that is refused holds back those of its own group alone.
    wires: BTreeMap<(usize, usize, u32), VecDeque<(ContextId, Message)>>,
    reads: Vec<(usize, ContextId, Read)>,
    copies: Vec<Copying>,
    /// By group and rank: the next collective.
    next: Vec<Vec<u32>>,
    pub(crate) outcomes: BTreeMap<(ContextId, u32), Outcome>,
    memory: BTreeMap<u32, Vec<u8>>,
    dead_rank: Option<u32>,
    died: bool,
    unseen: BTreeSet<(usize, usize)>,
    pub(crate) wrong: Option<&'static str>,
    pub(crate) counts: Counts,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl World {
    /// Everything but the counts. Reads and copies under way are no sequence.
    fn key(&self) -> impl PartialEq + std::hash::Hash {
        let mut copies: Vec<_> =
            self.copies.iter().map(|copy| (copy.context, copy.rank, copy.source, copy.holder)).collect();
        let mut reads: Vec<_> =
            self.reads.iter().map(|(process, context, read)| (*process, *context, read.source, read.target)).collect();
        copies.sort_unstable();
        reads.sort_unstable();
        let wires: Vec<_> =
            self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(pair, wire)| (*pair, wire.clone())).collect();
        (
            (self.processes.clone(), self.lists.clone(), wires, reads, copies),
            (self.next.clone(), self.outcomes.clone(), self.memory.clone()),
            (self.dead_rank, self.died, self.unseen.clone(), self.wrong),
        )
    }
}

/// One number from several, without a pattern.
fn mix(seed: u64, parts: [u32; 4]) -> u64 {
    parts.iter().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |all, part| {
        let all = (all ^ u64::from(*part)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        all ^ all >> 29
    })
}

impl Plan {
    /// One group whose ranks are on these hosts.
    pub(crate) fn one(hosts: &[u32], processes_per_host: u32, collectives: &[Operation]) -> Self {
        let topology = topology(hosts, processes_per_host);
        let computers = topology.hosts() as usize;
        let group = Group { topology, computers: (0..computers).collect(), collectives: collectives.to_vec() };
        Self {
            computers,
            processes_per_host,
            groups: vec![group],
            limits: Limits::default(),
            seed: 0,
            most_bytes: 1,
            dying: None,
        }
    }

    /// Which process of the world is a process of a group.
    pub(crate) fn process(&self, group: usize, own: u32) -> usize {
        let Group { topology, computers, .. } = &self.groups[group];
        let host = topology.host_of_process(own).unwrap();
        let index = own - topology.processes_of(host).start;
        computers[host as usize] * self.processes_per_host as usize + index as usize
    }

    /// The number in a group of a process of the world.
    pub(crate) fn own(&self, group: usize, process: usize) -> Option<u32> {
        (0..self.groups[group].topology.processes()).find(|own| self.process(group, *own) == process)
    }

    fn bytes(&self, context: ContextId, source: u32, target: u32) -> u64 {
        let operation = self.groups[context.group as usize].collectives[context.collective as usize];
        let target = if operation == Operation::Alltoallv { target } else { 0 };
        if self.most_bytes == 1 {
            return 1;
        }
        mix(self.seed, [context.group, context.collective, source, target]) % (self.most_bytes + 1)
    }

    fn byte(&self, context: ContextId, source: u32, target: u32, offset: u64) -> u8 {
        let operation = self.groups[context.group as usize].collectives[context.collective as usize];
        let target = if operation == Operation::Alltoallv { target } else { 0 };
        (mix(!self.seed, [context.group, context.collective, source, target]).wrapping_add(offset) % 251 + 1) as u8
    }

    fn key(&self, context: ContextId, rank: u32, receive: bool) -> u32 {
        (context.group * 64 + context.collective) * 2048 + rank * 2 + u32::from(receive)
    }

    pub(crate) fn start(&self) -> World {
        let mut world = World {
            processes: Vec::new(),
            lists: vec![SharedList::new(1 << 20); self.computers],
            wires: BTreeMap::new(),
            reads: Vec::new(),
            copies: Vec::new(),
            next: self.groups.iter().map(|group| vec![0; group.topology.ranks() as usize]).collect(),
            outcomes: BTreeMap::new(),
            memory: BTreeMap::new(),
            dead_rank: None,
            died: false,
            unseen: BTreeSet::new(),
            wrong: None,
            counts: Counts::default(),
        };
        for process in 0..self.computers * self.processes_per_host as usize {
            let mut machine = ServiceProcess::new(self.limits).unwrap();
            for group in 0..self.groups.len() {
                if let Some(own) = self.own(group, process) {
                    machine.add_group(group as u32, self.groups[group].topology.clone(), own).unwrap();
                }
            }
            world.processes.push(Some(machine));
        }
        world
    }

    /// All that can happen next.
    pub(crate) fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        for (group, plan) in self.groups.iter().enumerate() {
            for rank in 0..plan.topology.ranks() {
                let served = world.processes[self.process(group, plan.topology.process_of(rank).unwrap())].is_some();
                let alive = served && !(group == 0 && world.dead_rank == Some(rank));
                if alive && (world.next[group][rank as usize] as usize) < plan.collectives.len() {
                    steps.push(Step::Enter { group, rank });
                }
            }
        }
        for (&(from, to, group), wire) in &world.wires {
            if !wire.is_empty() {
                steps.push(Step::Deliver { from, to, group });
            }
        }
        steps.extend((0..world.reads.len()).map(Step::EndRead));
        steps.extend((0..world.copies.len()).map(Step::EndCopy));
        if self.dying.is_some() && !world.died {
            steps.push(Step::Die);
        }
        steps.extend(world.unseen.iter().map(|&(process, group)| Step::See { process, group }));
    }

    /// Does a step. False if it was refused, and nothing has changed.
    pub(crate) fn step(&self, world: &mut World, step: Step) -> bool {
        match step {
            Step::Enter { group, rank } => {
                let context = ContextId { group: group as u32, collective: world.next[group][rank as usize] };
                let call = self.call(world, context, rank);
                let process = self.process(group, self.groups[group].topology.process_of(rank).unwrap());
                if !self.handle(world, process, Event::Entered { context, rank, call }) {
                    return false;
                }
                world.next[group][rank as usize] += 1;
            }
            Step::Deliver { from, to, group } => {
                let &(context, message) = world.wires[&(from, to, group)].front().unwrap();
                let from_own = self.own(context.group as usize, from).unwrap();
                if world.processes[to].is_some()
                    && !self.handle(world, to, Event::Arrived { from: from_own, context, message })
                {
                    return false;
                }
                world.wires.get_mut(&(from, to, group)).unwrap().pop_front();
            }
            Step::EndRead(index) => {
                let (process, context, read) = world.reads.remove(index);
                let Read { source, holder, target, from, to } = read;
                let error = (!self.is_readable(world, context, holder)).then_some(ReadError { code: 10, rank: holder });
                if error.is_none() {
                    self.copy(world, from, to);
                }
                if world.outcomes.contains_key(&(context, target)) {
                    world.wrong = Some("a read into a buffer that was given back");
                }
                assert!(self.handle(world, process, Event::ReadDone { context, source, target, error }));
            }
            Step::EndCopy(index) => {
                let Copying { context, rank, source, holder, from } = world.copies.remove(index);
                let is_over = world.outcomes.contains_key(&(context, rank));
                let group = context.group as usize;
                let process = self.process(group, self.groups[group].topology.process_of(rank).unwrap());
                let dead = world.processes[process].is_none() || (group == 0 && world.dead_rank == Some(rank));
                if self.is_readable(world, context, holder) && !is_over && !dead {
                    let to = self.receive(context, rank)[source as usize];
                    self.copy(world, from, to);
                    assert!(self.handle(world, process, Event::Copied { context, rank, source }));
                }
            }
            Step::Die => self.die(world),
            Step::See { process, group } => {
                world.unseen.remove(&(process, group));
                let Some(Dying::Process(dead)) = self.dying else { unreachable!() };
                let dead = self.own(group, self.process(0, dead)).unwrap();
                assert!(self.handle(world, process, Event::ProcessDied { group: group as u32, process: dead }));
            }
        }
        true
    }

    fn die(&self, world: &mut World) {
        world.died = true;
        match self.dying.unwrap() {
            Dying::Rank(rank) => {
                world.dead_rank = Some(rank);
                let process = self.process(0, self.groups[0].topology.process_of(rank).unwrap());
                assert!(self.handle(world, process, Event::RankDied { group: 0, rank }));
            }
            Dying::Process(own) => {
                let dead = self.process(0, own);
                world.processes[dead] = None;
                world.reads.retain(|(process, ..)| *process != dead);
                for group in 0..self.groups.len() {
                    if self.own(group, dead).is_some() {
                        let others = (0..world.processes.len())
                            .filter(|other| *other != dead && self.own(group, *other).is_some());
                        world.unseen.extend(others.map(|other| (other, group)));
                    }
                }
            }
        }
    }

    /// Whether the memory of a rank can still be read: it is alive and has not taken it back.
    fn is_readable(&self, world: &mut World, context: ContextId, rank: u32) -> bool {
        match world.outcomes.get(&(context, rank)) {
            Some(Outcome::Complete) => {
                world.wrong = Some("a read from a buffer that was given back");
                false
            }
            Some(Outcome::Failed(_)) => false,
            None => !(context.group == 0 && world.dead_rank == Some(rank)),
        }
    }

    fn copy(&self, world: &mut World, from: Region, to: Region) {
        let range = |region: Region| region.address as usize..(region.address + region.bytes) as usize;
        let bytes = world.memory[&from.key][range(from)].to_vec();
        world.memory.get_mut(&to.key).unwrap()[range(to)].copy_from_slice(&bytes);
    }

    /// Where the blocks of all sources go.
    fn receive(&self, context: ContextId, rank: u32) -> Vec<Region> {
        let ranks = self.groups[context.group as usize].topology.ranks();
        let key = self.key(context, rank, true);
        let mut address = 0;
        let place = |source| {
            let bytes = self.bytes(context, source, rank);
            let region = Region { address, key, bytes };
            address += bytes;
            region
        };
        (0..ranks).map(place).collect()
    }

    /// A rank's call, on memory that is made for it.
    fn call(&self, world: &mut World, context: ContextId, rank: u32) -> Call {
        let group = &self.groups[context.group as usize];
        let ranks = group.topology.ranks();
        let receive = self.receive(context, rank);
        let length = receive.last().map_or(0, |region| region.address + region.bytes);
        world.memory.entry(self.key(context, rank, true)).or_insert_with(|| vec![0; length as usize]);
        let key = self.key(context, rank, false);
        let targets = if group.collectives[context.collective as usize] == Operation::Alltoallv { ranks } else { 1 };
        let (mut bytes, mut send) = (Vec::new(), Vec::new());
        for target in 0..targets {
            let length = self.bytes(context, rank, target);
            send.push(Region { address: bytes.len() as u64, key, bytes: length });
            bytes.extend((0..length).map(|offset| self.byte(context, rank, target, offset)));
        }
        world.memory.insert(key, bytes);
        match group.collectives[context.collective as usize] {
            Operation::Alltoallv => Call::Alltoallv { send, receive },
            Operation::Allgatherv(copies) => Call::Allgatherv { send: send[0], receive, copies },
        }
    }

    /// Whether all blocks are in a rank's buffer.
    fn is_whole(&self, world: &World, context: ContextId, rank: u32) -> bool {
        let buffer = &world.memory[&self.key(context, rank, true)];
        (0..).zip(self.receive(context, rank)).all(|(source, region)| {
            (0..region.bytes)
                .all(|offset| buffer[(region.address + offset) as usize] == self.byte(context, source, rank, offset))
        })
    }

    /// Lets a process take an event, and does what it asks for. All of it is one step: a process is one thread, and of
    /// what others share with it there is only the list, each use of which could as well come at the beginning or at
    /// the end of the step.
    fn handle(&self, world: &mut World, process: usize, event: Event) -> bool {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(machine) = &mut world.processes[process] else { return true };
            let mut actions = Vec::new();
            match machine.handle(event, &mut actions) {
                Ok(()) => {}
                Err(Refusal::Collectives { .. }) => {
                    assert!(actions.is_empty());
                    world.counts.refused += 1;
                    return false;
                }
                Err(other) => panic!("{other}"),
            }
            let counts = &mut world.counts;
            counts.most_active = counts.most_active.max(machine.active_reads());
            counts.most_waiting = counts.most_waiting.max(machine.waiting());
            if machine.active_reads() > self.limits.active_reads {
                world.wrong = Some("too many reads");
            }
            // They change nothing, and would make states differ.
            let Ignored { duplicates, stale, foreign } = machine.take_ignored();
            world.counts.ignored.duplicates += duplicates;
            world.counts.ignored.stale += stale;
            world.counts.ignored.foreign += foreign;
            for action in actions {
                self.act(world, process, action, &mut events);
            }
        }
        true
    }

    fn act(&self, world: &mut World, process: usize, action: Action, events: &mut VecDeque<Event>) {
        let computer = process / self.processes_per_host as usize;
        match action {
            Action::Send { to, context, message } => {
                let group = context.group as usize;
                let from = self.own(group, process).unwrap();
                packets::check(context, Body::Process { from, to, message });
                match message {
                    Message::Ready { source, target, .. } => {
                        world.counts.announcements.entry((context, source)).or_default().push(target);
                    }
                    Message::Block { announcement, forwards: 0, .. } => {
                        let host = self.groups[group].topology.host_of_process(to).unwrap();
                        world.counts.announcements.entry((context, announcement.source)).or_default().push(host);
                    }
                    Message::Block { announcement, .. } => {
                        let key = (context, announcement.source, computer as u32);
                        *world.counts.forwards.entry(key).or_default() += 1;
                    }
                    _ => {}
                }
                let to = self.process(group, to);
                if world.processes[to].is_some() {
                    world.wires.entry((process, to, context.group)).or_default().push_back((context, message));
                }
            }
            Action::Read { context, read } => {
                let topology = &self.groups[context.group as usize].topology;
                let operation = self.groups[context.group as usize].collectives[context.collective as usize];
                if topology.host_of(read.holder) != topology.host_of(read.target) {
                    *world.counts.crossings.entry(context).or_default() += 1;
                    *world.counts.loads.entry((context, read.target)).or_default() += 1;
                } else if operation == BY_CARD && read.source != read.target {
                    *world.counts.copies.entry((context, read.source, read.target)).or_default() += 1;
                }
                let same = |(_, of, other): &(usize, ContextId, Read)| {
                    *of == context && (other.source, other.target) == (read.source, read.target)
                };
                if world.reads.iter().any(same) || world.outcomes.contains_key(&(context, read.target)) {
                    world.wrong = Some("read twice, or for a rank that is done");
                }
                world.reads.push((process, context, read));
            }
            Action::Put { context, announcement } => {
                world.counts.listed += 1;
                if world.lists[computer].put(context, announcement, NOBODY_DIES).is_err() {
                    world.wrong = Some("the list refused a block");
                }
            }
            Action::Claim { context } => {
                let announcement = world.lists[computer].claim(context);
                events.push_back(Event::Claimed { context, announcement });
            }
            Action::Abandon { context } => world.lists[computer].remove(context),
            Action::Notify { rank, context, source, holder, region } => {
                let operation = self.groups[context.group as usize].collectives[context.collective as usize];
                if operation != BY_HOST {
                    world.wrong = Some("a rank is instructed to copy what its card copies");
                }
                let key = (context, source, rank);
                *world.counts.copies.entry(key).or_default() += 1;
                packets::check(context, Body::LocalData { rank, source, holder, region });
                world.copies.push(Copying { context, rank, source, holder, from: region });
            }
            Action::Complete { rank, context } => {
                packets::check(context, Body::Done { rank });
                if !self.is_whole(world, context, rank) {
                    world.wrong = Some("complete without all bytes");
                }
                self.end(world, context, rank, Outcome::Complete);
            }
            Action::Fail { rank, context, failure } => {
                packets::check(context, Body::Failed { rank, failure });
                let fits = match (self.dying, failure.failed_rank) {
                    (Some(Dying::Rank(dead)), FailedParty::Rank(failed_rank)) => dead == failed_rank,
                    (Some(Dying::Process(dead)), FailedParty::Process(failed_rank)) => {
                        self.own(context.group as usize, self.process(0, dead)) == Some(failed_rank)
                            && failure.cause == Cause::Died
                    }
                    _ => false,
                };
                if !fits || !world.died {
                    world.wrong = Some("failed with another name");
                }
                self.end(world, context, rank, Outcome::Failed(failure));
            }
        }
    }

    fn end(&self, world: &mut World, context: ContextId, rank: u32, outcome: Outcome) {
        if world.outcomes.insert((context, rank), outcome).is_some() {
            world.wrong = Some("over twice");
        }
        let own = self.key(context, rank, false);
        let receive = self.key(context, rank, true);
        let into = |read: &Read| read.to.key == receive;
        let from = |read: &Read| read.from.key == own || read.from.key == receive;
        let may_be_read = matches!(outcome, Outcome::Failed(_));
        for (_, _, read) in &world.reads {
            if into(read) || (from(read) && !may_be_read) {
                world.wrong = Some("over while it is read");
            }
        }
        if !may_be_read && world.copies.iter().any(|copy| copy.context == context && copy.holder == rank) {
            world.wrong = Some("over while others copy from it");
        }
        if may_be_read {
            // It may write something else there.
            for key in [own, receive] {
                world.memory.entry(key).and_modify(|bytes| bytes.fill(0));
            }
        }
    }

    /// Whether all ranks that live, and whose process does, are through with all collectives.
    pub(crate) fn is_over(&self, world: &World) -> bool {
        self.groups.iter().enumerate().all(|(group, plan)| {
            (0..plan.topology.ranks()).all(|rank| {
                let process = self.process(group, plan.topology.process_of(rank).unwrap());
                let dead = world.processes[process].is_none() || (group == 0 && world.dead_rank == Some(rank));
                dead || (0..plan.collectives.len() as u32).all(|collective| {
                    let context = ContextId { group: group as u32, collective };
                    world.outcomes.contains_key(&(context, rank))
                })
            })
        })
    }

    /// Runs to the end, in an order drawn from the seed; panics where nothing can go on.
    pub(crate) fn run(&self, world: &mut World) {
        let mut random = self.seed;
        let mut refused = BTreeSet::new();
        loop {
            let mut steps = Vec::new();
            self.steps(world, &mut steps);
            steps.retain(|step| !refused.contains(step));
            if steps.is_empty() {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let step = steps[(random >> 33) as usize % steps.len()];
            if self.step(world, step) {
                refused.clear();
            } else {
                refused.insert(step);
            }
            assert_eq!(world.wrong, None, "seed {}", self.seed);
        }
        assert!(self.is_over(world), "stuck: seed {}, {refused:?}", self.seed);
        assert!(world.lists.iter().all(SharedList::is_empty));
        if !world.died {
            for machine in world.processes.iter().flatten() {
                for group in 0..self.groups.len() as u32 {
                    assert_eq!(machine.under_way(group).unwrap_or(0), 0, "seed {}", self.seed);
                }
            }
        }
    }
}

/// The topology of ranks on these hosts.
pub(crate) fn topology(hosts: &[u32], processes_per_host: u32) -> Arc<Topology> {
    let localities: Vec<Locality> = hosts.iter().map(|host| Locality { host: *host, socket: 0 }).collect();
    Arc::new(Topology::new(&localities, processes_per_host).unwrap())
}
