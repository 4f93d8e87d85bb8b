//! Staged Ibcast and Iallgather of whole groups: memory of hosts and cards byte by byte, in any order that queue pairs and connections allow,
//! and every interleaving of small ones.

#[path = "support/check.rs"]
mod checked;
#[path = "support/packets.rs"]
mod packets;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexcast_proto::service::wire::{Body, TaskParts};
use flexcast_proto::service::{
    Collective, ContextId, Culprit, Delivery, Descriptor, FLAG_BYTES, Ignored, Locality, Part, Region, StagedAction,
    StagedCause, StagedEvent, StagedFailure, StagedMessage, StagedProcess, StagedReader, StagedRefusal, Staging,
    Topology, Work, is_over, looks_at, writers,
};
use proptest::prelude::*;
use stateright::{Checker as _, Model, Property};

#[derive(Clone, Debug)]
struct Plan {
    topology: Arc<Topology>,
    staging: Staging,
    /// One after another, each with the buffers of the one before.
    collectives: Vec<Descriptor>,
    /// Whether a rank looks at the flags of all that write to it; or else at its own process's alone, as published.
    all_writers: bool,
    /// Whether flags stay behind the data.
    ordered_flags: bool,
    /// A process may die at any time.
    dying: Option<u32>,
    seed: u64,
}

const DELIVERIES: [Delivery; 3] = [Delivery::Flat, Delivery::Hierarchical, Delivery::Direct];

const SEND: u32 = 0;
const RECEIVE: u32 = 1;
const FLAGS: u32 = 2;
const SHARED: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    processes: Vec<Option<StagedProcess>>,
    staging: Vec<Vec<u8>>,
    /// By rank and buffer.
    memory: BTreeMap<u32, Vec<u8>>,
    /// By rank: collectives that it has called, and that are over for it.
    called: Vec<u32>,
    over: Vec<u32>,
    failed: Vec<Option<StagedFailure>>,
    tasks: BTreeMap<(u32, u32), VecDeque<StagedEvent>>,
    wires: BTreeMap<(u32, u32), VecDeque<(u32, StagedMessage)>>,
    reads: Vec<(u32, StagedAction)>,
    /// By process and target.
    writes: BTreeMap<(u32, u32), VecDeque<StagedAction>>,
    dead: Option<u32>,
    unseen: Vec<u32>,
    wrong: Option<&'static str>,
    /// By process: Reads from hosts, Writes, flags, Reads from other processes.
    counts: Vec<[u32; 4]>,
    /// By process: targets in the order of their first Write.
    order: Vec<Vec<u32>>,
    most_active: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Step {
    Call(u32),
    Task(u32, u32),
    Deliver(u32, u32),
    Read(usize),
    /// The first Write on a queue pair, or a later one where flags are not ordered.
    Write(u32, u32, usize),
    Poll(u32),
    Die,
    See(usize),
}

fn byte(collective: u32, rank: u32, offset: u64) -> u8 {
    ((u64::from(collective) * 31 + u64::from(rank) * 7 + offset) % 250 + 1) as u8
}

impl Plan {
    fn new(hosts: &[u32], processes: u32, collectives: &[Descriptor]) -> Self {
        let localities: Vec<Locality> = hosts.iter().map(|host| Locality { host: *host, socket: 0 }).collect();
        let topology = Arc::new(Topology::new(&localities, processes).unwrap());
        Self {
            topology,
            staging: Staging { staging_bytes: 1024, ..Staging::default() },
            collectives: collectives.to_vec(),
            all_writers: true,
            ordered_flags: true,
            dying: None,
            seed: 0,
        }
    }

    fn most(&self) -> u64 {
        self.collectives.iter().map(|descriptor| descriptor.bytes).max().unwrap_or(0)
    }

    fn start(&self) -> World {
        let (ranks, processes) = (self.topology.ranks(), self.topology.processes());
        let machine = |own| Some(StagedProcess::new(self.topology.clone(), own, self.staging).unwrap());
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
            writes: BTreeMap::new(),
            dead: None,
            unseen: Vec::new(),
            wrong: None,
            counts: vec![[0; 4]; processes as usize],
            order: vec![Vec::new(); processes as usize],
            most_active: 0,
        }
    }

    fn flags(&self, world: &World, rank: u32) -> Vec<u64> {
        let bytes = &world.memory[&(rank * 4 + FLAGS)];
        bytes.chunks_exact(8).map(|flag| u64::from_le_bytes(flag.try_into().unwrap())).collect()
    }

    fn is_over(&self, world: &World, rank: u32) -> bool {
        let collective = world.over[rank as usize];
        let descriptor = &self.collectives[collective as usize];
        let own = self.topology.process_of(rank).unwrap();
        let all = if self.all_writers { writers(&self.topology, descriptor, rank) } else { own..own + 1 };
        is_over(all, &self.flags(world, looks_at(&self.topology, descriptor.delivery, rank)), collective)
    }

    fn steps(&self, world: &World, steps: &mut Vec<Step>) {
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
        if self.dying.is_some() && world.dead.is_none() {
            steps.push(Step::Die);
        }
        steps.extend((0..world.unseen.len()).map(Step::See));
    }

    fn step(&self, world: &mut World, step: Step) -> bool {
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
                assert!(self.handle(world, process, StagedEvent::Died(Culprit::Process(world.dead.unwrap()))));
            }
        }
        true
    }

    fn call(&self, world: &mut World, rank: u32) {
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
    fn poll(&self, world: &mut World, rank: u32) {
        let collective = world.over[rank as usize];
        let Descriptor { collective: kind, delivery, bytes } = self.collectives[collective as usize];
        let sources: Vec<u32> = match kind {
            Collective::Broadcast { root } => vec![root],
            Collective::Allgather => (0..self.topology.ranks()).collect(),
        };
        let from = looks_at(&self.topology, delivery, rank) * 4
            + if delivery == Delivery::Hierarchical { SHARED } else { RECEIVE };
        let expected: Vec<u8> =
            sources.iter().flat_map(|source| (0..bytes).map(|offset| byte(collective, *source, offset))).collect();
        let is_root = kind == Collective::Broadcast { root: rank } && delivery != Delivery::Hierarchical;
        if !is_root && world.memory[&from][..expected.len()] != expected {
            world.wrong = Some("over before all bytes are there");
        }
        world.over[rank as usize] += 1;
    }

    fn read(&self, world: &mut World, process: u32, action: StagedAction) {
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

    fn write(&self, world: &mut World, process: u32, action: StagedAction) {
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

    fn handle(&self, world: &mut World, process: u32, event: StagedEvent) -> bool {
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
                    world.reads.push((process, action));
                }
                StagedAction::Copy { .. } => world.reads.push((process, action)),
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
                    if failure.culprit != Culprit::Process(dead) {
                        world.wrong = Some("failed with another name");
                    }
                    world.failed[rank as usize] = Some(failure);
                }
            }
        }
        true
    }

    /// Whether all ranks that have a process are through, well or told of the failure.
    fn is_through(&self, world: &World) -> bool {
        (0..self.topology.ranks()).all(|rank| {
            let index = rank as usize;
            self.topology.process_of(rank) == world.dead
                || world.failed[index].is_some()
                || world.over[index] as usize == self.collectives.len()
        })
    }

    fn run(&self) -> World {
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

fn at(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    offset as usize..(offset + bytes) as usize
}

fn pop<T>(queues: &mut BTreeMap<(u32, u32), VecDeque<T>>, key: (u32, u32), index: usize) -> T {
    let queue = queues.get_mut(&key).unwrap();
    let first = queue.remove(index).unwrap();
    if queue.is_empty() {
        queues.remove(&key);
    }
    first
}

fn allgather(delivery: Delivery, bytes: u64) -> Descriptor {
    Descriptor { collective: Collective::Allgather, delivery, bytes }
}

fn broadcast(root: u32, delivery: Delivery, bytes: u64) -> Descriptor {
    Descriptor { collective: Collective::Broadcast { root }, delivery, bytes }
}

/// SO-07, SO-08, SO-09 with values: 4 hosts of 4 ranks, one process each.
#[test]
fn an_allgather_reads_once_per_local_rank_and_writes_once_per_rank_or_host() {
    let contiguous: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
    let strided: Vec<u32> = (0..16).map(|rank| rank % 4).collect();
    for (hosts, delivery, writes, flags) in [
        (&contiguous, Delivery::Flat, 16, 16),
        (&contiguous, Delivery::Hierarchical, 4, 4),
        // 4 runs of one rank (SO-16).
        (&strided, Delivery::Flat, 64, 16),
        (&strided, Delivery::Hierarchical, 16, 4),
    ] {
        let world = Plan::new(hosts, 1, &[allgather(delivery, 8)]).run();
        assert_eq!(world.counts, [[4, writes, flags, 0]; 4]);
        let firsts: Vec<u32> = world.order.iter().map(|order| hosts[order[0] as usize]).collect();
        assert_eq!(firsts, [0, 1, 2, 3]);
    }
}

/// SO-03, SO-04, SO-06 with values: one Read from the root, one Read per other process, one Write per rank (but the root) or host.
#[test]
fn a_broadcast_reads_the_root_once_and_goes_between_processes() {
    let hosts: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
    for (delivery, writes, flags) in [(Delivery::Flat, [4, 3, 4, 4], 4), (Delivery::Hierarchical, [1; 4], 1)] {
        for reader in [StagedReader::OfRoot, StagedReader::First] {
            let mut plan = Plan::new(&hosts, 1, &[broadcast(6, delivery, 8)]);
            plan.staging.reader = reader;
            let world = plan.run();
            let source = if reader == StagedReader::OfRoot { 1 } else { 0 };
            for (process, writes) in writes.into_iter().enumerate() {
                let reads = u32::from(process == source);
                assert_eq!(world.counts[process], [reads, writes, flags, 1 - reads]);
            }
        }
    }
}

/// SO-13: 100 bytes of each of two ranks through 16 bytes of staging, in 25 segments of 4.
#[test]
fn a_message_longer_than_the_staging_memory_goes_in_segments() {
    let mut plan = Plan::new(&[0, 0, 1, 1], 1, &[allgather(Delivery::Flat, 100)]);
    plan.staging.staging_bytes = 16;
    assert_eq!(plan.run().counts, [[50, 25 * 2 * 4, 4, 0]; 2]);
    let refused = |staging_bytes| {
        let staging = Staging { staging_bytes, ..plan.staging };
        StagedProcess::new(plan.topology.clone(), 0, staging).unwrap_err().to_string()
    };
    assert_eq!(refused(3), "limit staging_bytes is 3: give at least 4");
}

#[test]
fn what_is_called_wrongly_is_refused_or_fails_by_name() {
    let plan = Plan::new(&[0, 0], 1, &[allgather(Delivery::Flat, 8)]);
    let mut machine = StagedProcess::new(plan.topology.clone(), 0, plan.staging).unwrap();
    let region = |bytes| Region { address: 0, key: 0, bytes };
    let part = |rank| Part { rank, send: region(8), receive: region(16), flags: region(8), shared: region(0) };
    let mut actions = Vec::new();
    let descriptor = plan.collectives[0];
    let mut call = |collective, descriptor, part| {
        machine.handle(StagedEvent::Called { collective, descriptor, part }, &mut actions)
    };
    assert_eq!(call(0, descriptor, part(2)), Err(StagedRefusal::Rank { rank: 2, ranks: 2 }));
    let short = Part { receive: region(8), ..part(0) };
    let refusal = StagedRefusal::Buffer { name: "receive", rank: 0, found: 8, expected: 16 };
    assert_eq!(call(0, descriptor, short), Err(refusal));
    assert_eq!(call(8, descriptor, part(0)), Err(StagedRefusal::Collectives { collective: 8, oldest: 0, limit: 8 }));
    call(0, descriptor, part(0)).unwrap();
    call(0, descriptor, part(0)).unwrap();
    call(0, broadcast(0, Delivery::Flat, 16), Part { send: region(16), ..part(1) }).unwrap();
    assert_eq!(machine.ignored().duplicates, 1);
    let failure = StagedFailure { culprit: Culprit::Rank(1), cause: StagedCause::Disagrees };
    assert_eq!(actions, [0, 1].map(|rank| StagedAction::Fail { rank, failure }));
}

/// Duplicates and messages from elsewhere are counted and change nothing.
#[test]
fn messages_that_come_again_change_nothing() {
    let plan = Plan::new(&[0, 1], 1, &[broadcast(0, Delivery::Flat, 8)]);
    let mut machine = StagedProcess::new(plan.topology.clone(), 1, plan.staging).unwrap();
    let mut actions = Vec::new();
    let offer = |from, segment, tag| StagedEvent::Arrived {
        from,
        collective: 0,
        message: StagedMessage::Offer { segment, tag },
    };
    machine.handle(offer(0, 0, 0), &mut actions).unwrap();
    for event in [offer(0, 0, 0), offer(0, 2, 0), offer(0, 0, 2), offer(1, 0, 0), offer(7, 0, 0)] {
        let before = machine.ignored().total();
        machine.handle(event, &mut actions).unwrap();
        assert_eq!((machine.ignored().total(), actions.len()), (before + 1, 0));
    }
    let region = |bytes| Region { address: 0, key: 0, bytes };
    for rank in [0, 1] {
        let part = Part { rank, send: region(8), receive: region(8), flags: region(16), shared: region(0) };
        let event = StagedEvent::Called { collective: 0, descriptor: plan.collectives[0], part };
        machine.handle(event, &mut actions).unwrap();
    }
    let work = Work::Fetch { segment: 0, tag: 0 };
    assert!(matches!(actions[..], [StagedAction::Fetch { work: same, from: 0, .. }] if same == work));
    let taken = StagedEvent::Arrived { from: 0, collective: 0, message: StagedMessage::Taken { segment: 0, tag: 0 } };
    for event in
        [offer(0, 0, 0), taken, StagedEvent::Done { collective: 0, work: Work::Flag { target: 1 }, error: None }]
    {
        let before = machine.ignored().total();
        machine.handle(event, &mut actions).unwrap();
        assert_eq!((machine.ignored().total(), actions.len()), (before + 1, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, ..ProptestConfig::default() })]

    #[test]
    fn any_collectives_in_any_order(
        raw in proptest::collection::vec(0u32..3, 1..8), per_host in 1u32..3, kinds in proptest::collection::vec((0u32..9, 0u64..40, 0usize..3), 1..4),
        staging_bytes in 16u64..80, segments in 1u32..4, transfers in 1u32..6, scatter_bytes in 0u64..20, first: bool, seed: u64,
    ) {
        let mut names = raw.clone();
        names.sort_unstable();
        names.dedup();
        let hosts: Vec<u32> = raw.iter().map(|host| names.binary_search(host).unwrap() as u32).collect();
        let collectives: Vec<Descriptor> = kinds.iter().map(|&(root, bytes, delivery)| {
            let delivery = DELIVERIES[delivery];
            let is_root = (root as usize) < hosts.len();
            if is_root { broadcast(root, delivery, bytes) } else { allgather(delivery, bytes) }
        }).collect();
        let mut plan = Plan::new(&hosts, per_host, &collectives);
        let reader = if first { StagedReader::First } else { StagedReader::OfRoot };
        plan.staging = Staging { staging_bytes: staging_bytes.max(8 * u64::from(segments)), segments, transfers, scatter_bytes, reader, collectives: 2 };
        plan.seed = seed;
        let world = plan.run();
        prop_assert!(world.most_active <= transfers as usize);
        for machine in world.processes.iter().flatten() {
            prop_assert_eq!(machine.oldest() as usize, collectives.len());
        }
    }

    #[test]
    fn a_process_that_dies_is_named(seed: u64, dying in 0u32..4, delivery in 0usize..3) {
        let delivery = DELIVERIES[delivery];
        let collectives = [allgather(delivery, 5), broadcast(1, delivery, 9)];
        let mut plan = Plan::new(&[0, 0, 1, 1, 1], 2, &collectives);
        (plan.dying, plan.seed, plan.staging.staging_bytes) = (Some(dying), seed, 16);
        plan.run();
    }
}

const NOTHING_WRONG: &str = "nothing goes wrong";

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

fn check(name: &str, mut plan: Plan) {
    // Less memory makes smaller states.
    plan.staging.staging_bytes = plan.staging.staging_bytes.min(8);
    checked::check(name, plan);
}

/// SO-10, SO-14: each process, each queue pair and each message takes any time, and buffers and flags are used again without a reset.
#[test]
fn no_rank_is_through_before_all_processes_have_written() {
    for delivery in DELIVERIES {
        check("two Allgathers of two ranks", Plan::new(&[0, 1], 1, &[allgather(delivery, 1); 2]));
        check("Allgather of three ranks", Plan::new(&[0, 0, 1], 1, &[allgather(delivery, 1)]));
        check("Allgather of three hosts", Plan::new(&[0, 1, 2], 1, &[allgather(delivery, 1)]));
        // Two segments of a byte in two slots.
        let mut segments = Plan::new(&[0, 1], 1, &[allgather(delivery, 2)]);
        segments.staging.staging_bytes = 2;
        check("Allgather in segments", segments);
    }
}

#[test]
fn broadcasts_end_with_all_bytes() {
    for delivery in DELIVERIES {
        check(
            "two Broadcasts to two ranks",
            Plan::new(&[0, 1], 1, &[broadcast(0, delivery, 1), broadcast(1, delivery, 1)]),
        );
        let mut scatter = Plan::new(&[0, 1, 2], 1, &[broadcast(1, delivery, 3)]);
        (scatter.staging.scatter_bytes, scatter.staging.staging_bytes, scatter.staging.segments) = (0, 3, 1);
        check("Broadcast to three hosts by scatter", scatter);
        let mut segments = Plan::new(&[0, 1], 1, &[broadcast(0, delivery, 3)]);
        segments.staging.staging_bytes = 2;
        check("Broadcast in segments", segments);
    }
}

#[test]
fn a_process_dies_in_any_state() {
    let direct = broadcast(0, Delivery::Direct, 1);
    for (dying, descriptor) in [(0, allgather(Delivery::Flat, 1)), (1, broadcast(0, Delivery::Flat, 1)), (1, direct)] {
        check("a process dies", Plan { dying: Some(dying), ..Plan::new(&[0, 1], 1, &[descriptor]) });
    }
}

/// The published rule, by which each process tells its own ranks, lets a rank go before other processes have written (SO-14); and so does a flag
/// that overtakes data (SO-10).
#[test]
fn weaker_rules_let_ranks_go_too_early() {
    let plan = || Plan::new(&[0, 1], 1, &[allgather(Delivery::Flat, 1)]);
    for weak in [Plan { all_writers: false, ..plan() }, Plan { ordered_flags: false, ..plan() }] {
        let checker = weak.checker().threads(2).spawn_bfs().join();
        let state = checker.discovery(NOTHING_WRONG).expect("a rank that goes too early").into_states().pop().unwrap();
        assert_eq!(state.wrong, Some("over before all bytes are there"));
    }
    // A root from whose memory all read straight: the flag of its own process alone does not say that they have (SO-18).
    let direct = Plan::new(&[0, 1], 1, &[broadcast(0, Delivery::Direct, 1)]);
    let checker = Plan { all_writers: false, ..direct }.checker().threads(2).spawn_bfs().join();
    let state = checker.discovery(NOTHING_WRONG).expect("a root that goes too early").into_states().pop().unwrap();
    assert_eq!(state.wrong, Some("a Read of buffers that were given back"));
}

/// Four ranks, three processes on two hosts, three collectives.
#[test]
fn larger_groups_and_more_collectives() {
    for delivery in DELIVERIES {
        check("Allgather of four ranks", Plan::new(&[0, 0, 1, 1], 1, &[allgather(delivery, 1)]));
        check("Allgather of three processes", Plan::new(&[0, 1, 0], 2, &[allgather(delivery, 1)]));
        check("three Allgathers", Plan::new(&[0, 0, 1], 1, &[allgather(delivery, 1); 3]));
    }
}
