//! Groups with staged collectives: memory of hosts and cards byte by byte, in any order that queue pairs, connections
//! and datagrams allow, and as a model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexcast_proto::service::wire::{Body, TaskParts};
use flexcast_proto::service::{
    Between, Collective, ContextId, Delivery, Descriptor, FLAG_BYTES, FailedParty, Ignored, Locality, Part, Placed,
    Region, StagedAction, StagedEvent, StagedFailure, StagedMessage, StagedProcess, StagedRefusal, Staging, Topology,
    Work, is_over, polled_rank, writers,
};
use stateright::{Model, Property};

use super::{check, packets};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) topology: Arc<Topology>,
    pub(crate) staging: Staging,
    /// One after another, each with the buffers of the one before.
    pub(crate) collectives: Vec<Descriptor>,
    /// Whether a rank polls the flags of all that write to it; or else those of its own process alone, as published.
    pub(crate) all_writers: bool,
    /// Whether flags stay behind the data.
    pub(crate) ordered_flags: bool,
    /// A process may die at any time.
    pub(crate) dying: Option<u32>,
    /// Bytes of a chunk, where segments are multicast.
    pub(crate) chunk_bytes: u32,
    /// Any chunk may be lost.
    pub(crate) loses: bool,
    /// No process stops waiting while chunks are on their way to it.
    pub(crate) is_patient: bool,
    pub(crate) seed: u64,
}

pub(crate) const DELIVERIES: [Delivery; 3] = [Delivery::Flat, Delivery::Hierarchical, Delivery::Direct];

pub(crate) const SEND: u32 = 0;
pub(crate) const RECEIVE: u32 = 1;
pub(crate) const FLAGS: u32 = 2;
pub(crate) const SHARED: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) processes: Vec<Option<StagedProcess>>,
    pub(crate) staging: Vec<Vec<u8>>,
    /// By rank and buffer.
    pub(crate) memory: BTreeMap<u32, Vec<u8>>,
    /// By rank: collectives that it has called, and that are over for it.
    pub(crate) called: Vec<u32>,
    pub(crate) over: Vec<u32>,
    pub(crate) failed: Vec<Option<StagedFailure>>,
    pub(crate) tasks: BTreeMap<(u32, u32), VecDeque<StagedEvent>>,
    pub(crate) wires: BTreeMap<(u32, u32), VecDeque<(u32, StagedMessage)>>,
    pub(crate) reads: Vec<(u32, StagedAction)>,
    /// Chunks on their way, by source, target and immediate.
    pub(crate) chunks: BTreeMap<(u32, u32, u32), Vec<u8>>,
    /// By process and target.
    pub(crate) writes: BTreeMap<(u32, u32), VecDeque<StagedAction>>,
    pub(crate) dead: Option<u32>,
    pub(crate) unseen: Vec<u32>,
    pub(crate) wrong: Option<&'static str>,
    /// By process: Reads from hosts, Writes, flags, Reads from other processes.
    pub(crate) counts: Vec<[u32; 4]>,
    /// By process: targets in the order of their first Write.
    pub(crate) order: Vec<Vec<u32>>,
    pub(crate) most_active: usize,
    /// By process: bytes that it has multicast.
    pub(crate) multicast_bytes: Vec<u64>,
    /// Bytes of chunks that were lost, and of Reads in their place.
    pub(crate) lost_bytes: u64,
    pub(crate) repaired_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    Call(u32),
    Task(u32, u32),
    Deliver(u32, u32),
    Read(usize),
    /// The first Write on a queue pair, or a later one where flags are not ordered.
    Write(u32, u32, usize),
    Poll(u32),
    /// A chunk comes, or never does.
    Chunk((u32, u32, u32)),
    Lose((u32, u32, u32)),
    /// A process has waited long enough for chunks.
    Expire(u32),
    Die,
    See(usize),
}

pub(crate) fn byte(collective: u32, rank: u32, offset: u64) -> u8 {
    ((u64::from(collective) * 31 + u64::from(rank) * 7 + offset) % 250 + 1) as u8
}

impl Plan {
    pub(crate) fn new(hosts: &[u32], processes: u32, collectives: &[Descriptor]) -> Self {
        let localities: Vec<Locality> = hosts.iter().map(|host| Locality { host: *host, socket: 0 }).collect();
        let topology = Arc::new(Topology::new(&localities, processes).unwrap());
        Self {
            topology,
            staging: Staging { staging_bytes: 1024, ..Staging::default() },
            collectives: collectives.to_vec(),
            all_writers: true,
            ordered_flags: true,
            dying: None,
            chunk_bytes: 2,
            loses: false,
            is_patient: false,
            seed: 0,
        }
    }

    pub(crate) fn between(&self) -> Between {
        let can = StagedProcess::can_multicast(&self.topology, &self.staging, self.chunk_bytes);
        if can { Between::Multicast } else { Between::Messages }
    }

    pub(crate) fn most(&self) -> u64 {
        self.collectives.iter().map(|descriptor| descriptor.bytes).max().unwrap_or(0)
    }

    pub(crate) fn start(&self) -> World {
        let (ranks, processes) = (self.topology.ranks(), self.topology.processes());
        let machine = |own| {
            let mut machine = StagedProcess::new(self.topology.clone(), own, self.staging).unwrap();
            machine.agree(Some(self.chunk_bytes));
            assert_eq!(machine.between(), self.between());
            Some(machine)
        };
        let mut memory = BTreeMap::new();
        for rank in 0..ranks {
            let all = (self.most() * u64::from(ranks)) as usize;
            for (buffer, length) in [(SEND, self.most() as usize), (RECEIVE, all), (SHARED, all)] {
                memory.insert(rank * 4 + buffer, vec![0; length]);
            }
            memory.insert(rank * 4 + FLAGS, vec![0; processes as usize * FLAG_BYTES as usize]);
        }
        World {
            processes: (0..processes).map(machine).collect(),
            staging: vec![vec![0; self.staging.staging_bytes as usize]; processes as usize],
            memory,
            called: vec![0; ranks as usize],
            over: vec![0; ranks as usize],
            failed: vec![None; ranks as usize],
            tasks: BTreeMap::new(),
            wires: BTreeMap::new(),
            reads: Vec::new(),
            chunks: BTreeMap::new(),
            writes: BTreeMap::new(),
            dead: None,
            unseen: Vec::new(),
            wrong: None,
            counts: vec![[0; 4]; processes as usize],
            order: vec![Vec::new(); processes as usize],
            most_active: 0,
            multicast_bytes: vec![0; processes as usize],
            lost_bytes: 0,
            repaired_bytes: 0,
        }
    }

    pub(crate) fn flags(&self, world: &World, rank: u32) -> Vec<u64> {
        let bytes = &world.memory[&(rank * 4 + FLAGS)];
        bytes.chunks_exact(8).map(|flag| u64::from_le_bytes(flag.try_into().unwrap())).collect()
    }

    pub(crate) fn is_over(&self, world: &World, rank: u32) -> bool {
        let collective = world.over[rank as usize];
        let descriptor = &self.collectives[collective as usize];
        let own = self.topology.process_of(rank).unwrap();
        let all =
            if self.all_writers { writers(&self.topology, self.between(), descriptor, rank) } else { own..own + 1 };
        is_over(all, &self.flags(world, polled_rank(&self.topology, descriptor.delivery, rank)), collective)
    }

    pub(crate) fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        for rank in 0..self.topology.ranks() {
            let (called, over) = (world.called[rank as usize], world.over[rank as usize]);
            let served = Some(self.topology.process_of(rank).unwrap()) != world.dead;
            if served
                && world.failed[rank as usize].is_none()
                && called == over
                && (called as usize) < self.collectives.len()
            {
                steps.push(Step::Call(rank));
            }
            if called > over && served && self.is_over(world, rank) {
                steps.push(Step::Poll(rank));
            }
        }
        steps.extend(world.tasks.keys().map(|(rank, to)| Step::Task(*rank, *to)));
        steps.extend(world.wires.keys().map(|(from, to)| Step::Deliver(*from, *to)));
        steps.extend((0..world.reads.len()).map(Step::Read));
        for (&(process, target), queue) in &world.writes {
            let last = if self.ordered_flags { 1 } else { queue.len() };
            steps.extend((0..last).map(|index| Step::Write(process, target, index)));
        }
        steps.extend(world.chunks.keys().map(|chunk| Step::Chunk(*chunk)));
        steps.extend(world.chunks.keys().filter(|_| self.loses).map(|chunk| Step::Lose(*chunk)));
        let waits = |(process, machine): &(u32, &Option<StagedProcess>)| {
            let is_coming = world.chunks.keys().any(|(_, to, _)| to == process);
            !(self.is_patient && is_coming) && machine.as_ref().is_some_and(|machine| machine.wake_ps().is_some())
        };
        steps.extend((0..).zip(&world.processes).filter(waits).map(|(process, _)| Step::Expire(process)));
        if self.dying.is_some() && world.dead.is_none() {
            steps.push(Step::Die);
        }
        steps.extend((0..world.unseen.len()).map(Step::See));
    }

    pub(crate) fn step(&self, world: &mut World, step: Step) -> bool {
        match step {
            Step::Call(rank) => self.call(world, rank),
            Step::Task(rank, to) => {
                let event = world.tasks[&(rank, to)][0];
                if !self.handle(world, to, event) {
                    return false;
                }
                pop(&mut world.tasks, (rank, to), 0);
            }
            Step::Deliver(from, to) => {
                let (collective, message) = world.wires[&(from, to)][0];
                if !self.handle(world, to, StagedEvent::Arrived { from, collective, message }) {
                    return false;
                }
                pop(&mut world.wires, (from, to), 0);
            }
            Step::Read(index) => {
                let (process, action) = world.reads.remove(index);
                self.read(world, process, action);
            }
            Step::Write(process, target, index) => {
                let action = pop(&mut world.writes, (process, target), index);
                self.write(world, process, action);
            }
            Step::Poll(rank) => self.poll(world, rank),
            Step::Chunk(chunk) => return self.chunk(world, chunk),
            Step::Lose(chunk) => {
                world.lost_bytes += world.chunks.remove(&chunk).map_or(0, |bytes| bytes.len() as u64);
            }
            Step::Expire(process) => {
                let wake_ps = world.processes[process as usize].as_ref().and_then(StagedProcess::wake_ps);
                assert!(self.handle(world, process, StagedEvent::Time(wake_ps.unwrap())));
            }
            Step::Die => {
                let dead = self.dying.unwrap();
                world.dead = Some(dead);
                world.processes[dead as usize] = None;
                world.reads.retain(|(process, _)| *process != dead);
                world.writes.retain(|(process, _), _| *process != dead);
                world.unseen = (0..self.topology.processes()).filter(|process| *process != dead).collect();
            }
            Step::See(index) => {
                let process = world.unseen.remove(index);
                assert!(self.handle(world, process, StagedEvent::Died(FailedParty::Process(world.dead.unwrap()))));
            }
        }
        true
    }

    pub(crate) fn call(&self, world: &mut World, rank: u32) {
        let collective = world.called[rank as usize];
        let descriptor = self.collectives[collective as usize];
        let all = match descriptor.collective {
            Collective::Allgather => descriptor.bytes * u64::from(self.topology.ranks()),
            Collective::Broadcast { .. } => descriptor.bytes,
        };
        let region = |buffer, bytes| Region { address: 0, key: rank * 4 + buffer, bytes };
        let flags = FLAG_BYTES * u64::from(self.topology.processes());
        let part = Part {
            rank,
            send: region(SEND, descriptor.bytes),
            receive: region(RECEIVE, all),
            flags: region(FLAGS, flags),
            shared: region(SHARED, all),
        };
        let send = world.memory.get_mut(&part.send.key).unwrap();
        for (offset, byte_of) in (0..).zip(send.iter_mut()) {
            *byte_of = byte(collective, rank, offset);
        }
        world.memory.get_mut(&part.receive.key).unwrap().fill(0);
        world.called[rank as usize] += 1;
        for to in 0..self.topology.processes() {
            let task = TaskParts::new(descriptor, &[part]).unwrap();
            for part in task.parts() {
                packets::check(ContextId { group: 1, collective }, Body::Task(part.unwrap()));
            }
            world.tasks.entry((rank, to)).or_default().push_back(StagedEvent::Called { collective, descriptor, part });
        }
    }

    /// The flags say that it is over: all bytes must be there, by a copy from the shared segment where that is used.
    pub(crate) fn poll(&self, world: &mut World, rank: u32) {
        let collective = world.over[rank as usize];
        let Descriptor { collective: kind, delivery, bytes } = self.collectives[collective as usize];
        let sources: Vec<u32> = match kind {
            Collective::Broadcast { root } => vec![root],
            Collective::Allgather => (0..self.topology.ranks()).collect(),
        };
        let from = polled_rank(&self.topology, delivery, rank) * 4
            + if delivery == Delivery::Hierarchical { SHARED } else { RECEIVE };
        let expected: Vec<u8> =
            sources.iter().flat_map(|source| (0..bytes).map(|offset| byte(collective, *source, offset))).collect();
        let is_root = kind == Collective::Broadcast { root: rank } && delivery != Delivery::Hierarchical;
        if !is_root && world.memory[&from][..expected.len()] != expected {
            world.wrong = Some("over before all bytes are there");
        }
        world.over[rank as usize] += 1;
    }

    pub(crate) fn chunk(&self, world: &mut World, chunk: (u32, u32, u32)) -> bool {
        let (from, to, immediate) = chunk;
        let source = world.processes[to as usize].as_ref().and_then(|machine| machine.source_of(immediate));
        assert!(source.is_none_or(|source| source == from));
        let bytes = world.chunks[&chunk].clone();
        let Some(machine) = &mut world.processes[to as usize] else { return world.chunks.remove(&chunk).is_some() };
        let mut actions = Vec::new();
        match machine.place(immediate, bytes.len() as u64) {
            Placed::At(offset) => {
                world.staging[to as usize][at(offset, bytes.len() as u64)].copy_from_slice(&bytes);
                machine.take(immediate, &mut actions);
            }
            // It waits until the process has begun, or is lost.
            Placed::Early => return false,
            Placed::Stale => {}
        }
        world.chunks.remove(&chunk);
        self.act(world, to, actions)
    }

    pub(crate) fn read(&self, world: &mut World, process: u32, action: StagedAction) {
        let (collective, work) = match action {
            StagedAction::Read { collective, work, from, to } => {
                let bytes = world.memory[&from.key][at(from.address, from.bytes)].to_vec();
                world.staging[process as usize][at(to.offset, to.bytes)].copy_from_slice(&bytes);
                (collective, work)
            }
            StagedAction::Fetch { collective, work, from, ranges } => {
                if world.dead != Some(from) {
                    for range in ranges {
                        let bytes = world.staging[from as usize][at(range.offset, range.bytes)].to_vec();
                        world.staging[process as usize][at(range.offset, range.bytes)].copy_from_slice(&bytes);
                    }
                }
                (collective, work)
            }
            StagedAction::Multicast { collective, work, .. } => (collective, work),
            StagedAction::Copy { collective, work, from, to } => {
                let bytes = world.memory[&from.key][at(from.address, from.bytes)].to_vec();
                world.memory.get_mut(&to.key).unwrap()[at(to.address, to.bytes)].copy_from_slice(&bytes);
                let Work::Copy { source, target } = work else { panic!("{work:?}") };
                if [source, target].into_iter().any(|rank| world.over[rank as usize] > collective) {
                    world.wrong = Some("a Read of buffers that were given back");
                }
                (collective, work)
            }
            _ => unreachable!(),
        };
        let dead = matches!(action, StagedAction::Fetch { from, .. } if world.dead == Some(from));
        assert!(self.handle(world, process, StagedEvent::Done { collective, work, error: dead.then_some(10) }));
    }

    pub(crate) fn write(&self, world: &mut World, process: u32, action: StagedAction) {
        let (collective, work, to) = match action {
            StagedAction::Write { collective, work, from, to } => {
                let bytes = world.staging[process as usize][at(from.offset, from.bytes)].to_vec();
                world.memory.get_mut(&to.key).unwrap()[at(to.address, to.bytes)].copy_from_slice(&bytes);
                (collective, work, to)
            }
            StagedAction::WriteFlag { collective, work, value, to } => {
                let flags = world.memory.get_mut(&to.key).unwrap();
                flags[at(to.address, to.bytes)].copy_from_slice(&value.to_le_bytes());
                (collective, work, to)
            }
            _ => unreachable!(),
        };
        let rank = to.key / 4;
        if world.over[rank as usize] > collective && self.all_writers && self.ordered_flags {
            world.wrong = Some("a write into a buffer that was given back");
        }
        assert!(self.handle(world, process, StagedEvent::Done { collective, work, error: None }));
    }

    pub(crate) fn handle(&self, world: &mut World, process: u32, event: StagedEvent) -> bool {
        let Some(machine) = &mut world.processes[process as usize] else { return true };
        let mut actions = Vec::new();
        match machine.handle(event, &mut actions) {
            Ok(()) => {}
            Err(StagedRefusal::Collectives { .. }) => return false,
            Err(other) => panic!("{other}"),
        }
        world.most_active = world.most_active.max(machine.active());
        if machine.active() > self.staging.transfers as usize {
            world.wrong = Some("too many transfers");
        }
        if machine.ignored() != Ignored::default() && self.dying.is_none() {
            world.wrong = Some("something was ignored");
        }
        self.act(world, process, actions)
    }

    pub(crate) fn act(&self, world: &mut World, process: u32, actions: Vec<StagedAction>) -> bool {
        for action in actions {
            let counts = &mut world.counts[process as usize];
            match action {
                StagedAction::Read { to, .. } => {
                    assert!(to.offset + to.bytes <= self.staging.staging_bytes);
                    counts[0] += 1;
                    world.reads.push((process, action));
                }
                StagedAction::Fetch { ranges, .. } => {
                    assert!(ranges.iter().all(|range| range.offset + range.bytes <= self.staging.staging_bytes));
                    counts[3] += 1;
                    world.repaired_bytes += ranges.iter().map(|range| range.bytes).sum::<u64>();
                    world.reads.push((process, action));
                }
                StagedAction::Copy { .. } => world.reads.push((process, action)),
                StagedAction::Multicast { from, chunk_bytes, immediate, .. } => {
                    assert!(from.offset + from.bytes <= self.staging.staging_bytes);
                    world.multicast_bytes[process as usize] += from.bytes;
                    let bytes = world.staging[process as usize][at(from.offset, from.bytes)].to_vec();
                    for (immediate, chunk) in (immediate..).zip(bytes.chunks(chunk_bytes as usize)) {
                        for to in (0..self.topology.processes()).filter(|to| *to != process) {
                            world.chunks.insert((process, to, immediate), chunk.to_vec());
                        }
                    }
                    world.reads.push((process, action));
                }
                StagedAction::Write { to, .. } => {
                    counts[1] += 1;
                    let order = &mut world.order[process as usize];
                    if !order.contains(&(to.key / 4)) {
                        order.push(to.key / 4);
                    }
                    world.writes.entry((process, to.key / 4)).or_default().push_back(action);
                }
                StagedAction::WriteFlag { to, .. } => {
                    counts[2] += 1;
                    world.writes.entry((process, to.key / 4)).or_default().push_back(action);
                }
                StagedAction::Send { to, collective, message } => {
                    let body = Body::Staged { from: process, to, message };
                    packets::check(ContextId { group: 1, collective }, body);
                    if world.dead != Some(to) {
                        world.wires.entry((process, to)).or_default().push_back((collective, message));
                    }
                }
                StagedAction::Fail { rank, failure } => {
                    packets::check(ContextId { group: 1, collective: 0 }, Body::GroupFailed { rank, failure });
                    let Some(dead) = world.dead else {
                        world.wrong = Some("failed for no reason");
                        return true;
                    };
                    if failure.failed_rank != FailedParty::Process(dead) {
                        world.wrong = Some("failed with another name");
                    }
                    world.failed[rank as usize] = Some(failure);
                }
            }
        }
        true
    }

    /// Whether all ranks that have a process are through, well or notified of the failure.
    pub(crate) fn is_through(&self, world: &World) -> bool {
        (0..self.topology.ranks()).all(|rank| {
            let index = rank as usize;
            self.topology.process_of(rank) == world.dead
                || world.failed[index].is_some()
                || world.over[index] as usize == self.collectives.len()
        })
    }

    pub(crate) fn run(&self) -> World {
        let (mut world, mut random) = (self.start(), self.seed);
        let mut refused = Vec::new();
        loop {
            let mut steps = Vec::new();
            self.steps(&world, &mut steps);
            steps.retain(|step| !refused.contains(step));
            if steps.is_empty() {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let step = steps[(random >> 33) as usize % steps.len()];
            if self.step(&mut world, step) {
                refused.clear();
            } else {
                refused.push(step);
            }
            assert_eq!(world.wrong, None, "seed {}", self.seed);
        }
        assert!(self.is_through(&world), "stuck, seed {}", self.seed);
        world
    }
}

pub(crate) fn at(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    offset as usize..(offset + bytes) as usize
}

pub(crate) fn pop<T>(queues: &mut BTreeMap<(u32, u32), VecDeque<T>>, key: (u32, u32), index: usize) -> T {
    let queue = queues.get_mut(&key).unwrap();
    let first = queue.remove(index).unwrap();
    if queue.is_empty() {
        queues.remove(&key);
    }
    first
}

pub(crate) fn allgather(delivery: Delivery, bytes: u64) -> Descriptor {
    Descriptor { collective: Collective::Allgather, delivery, bytes }
}

pub(crate) fn broadcast(root: u32, delivery: Delivery, bytes: u64) -> Descriptor {
    Descriptor { collective: Collective::Broadcast { root }, delivery, bytes }
}

pub(crate) const NOTHING_WRONG: &str = "nothing goes wrong";

impl Model for Plan {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.steps(world, steps);
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        let done = self.step(&mut world, step);
        // They follow from the path, and states would differ by them.
        world.counts.fill([0; 4]);
        world.order.iter_mut().for_each(Vec::clear);
        world.most_active = 0;
        world.multicast_bytes.fill(0);
        (world.lost_bytes, world.repaired_bytes) = (0, 0);
        done.then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOTHING_WRONG, |_, world: &World| world.wrong.is_none()),
            Property::always("no deadlock", |plan: &Self, world: &World| {
                let mut steps = Vec::new();
                plan.steps(world, &mut steps);
                !steps.is_empty() || plan.is_through(world)
            }),
            Property::sometimes("all is over", |plan: &Self, world: &World| {
                world.over.iter().all(|over| *over as usize == plan.collectives.len())
            }),
        ]
    }
}

pub(crate) fn check(name: &str, mut plan: Plan) {
    // Less memory makes smaller states.
    plan.staging.staging_bytes = plan.staging.staging_bytes.min(8);
    check::check(name, plan);
}
