//! Shared world of all engines: threads of workers and aggregators and the processors that they run on, ports,
//! memories, messages under way, and what happens next.

use std::collections::VecDeque;

use flexcast_proto::sparse::{CacheBudget, Parameters, Shard, Shards};

use super::device::Devices;
use super::params::{NodeParams, SparseParams};
use super::pattern::Pattern;
use super::ports::{Lines, Ports};
use super::report::{SparseCounts, SparseError};
use crate::flow::{Queue, time_ps};

/// Machines of workers, at most: a few hundred bytes each.
const MOST_MACHINES: u64 = 1 << 20;

/// What a thread takes from its inbox.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// A worker begins.
    Begin,
    /// A message has come to the aggregator.
    Message,
    /// An answer has come to the worker.
    Answer,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) shard: u32,
    pub(super) worker: u32,
    pub(super) what: What,
    /// Of the message that it came with.
    pub(super) payload: u64,
}

#[derive(Debug)]
enum Event {
    /// A thread has done what it did; what it has posted leaves.
    Free(u32),
    /// The first byte of a message comes to the other port.
    Head(Job),
    /// All of it is there.
    Whole(Job),
}

#[derive(Debug)]
struct Thread {
    node: u32,
    is_busy: bool,
    inbox: VecDeque<Job>,
    posted: Vec<Job>,
}

/// A shard, and who sums it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) node: u32,
    thread: u32,
    pub(super) shard: Shard,
    first_block: u64,
}

impl Place {
    /// Bytes of the array that blocks are.
    pub(super) fn bytes_of(&self, first: u32, after: u32) -> u64 {
        self.shard.block(after).start - self.shard.block(first).start
    }
}

/// Machines of all shards.
pub(super) trait Machines {
    /// A worker's turn, when it begins or an answer has come: when it is done, after what it has posted to
    /// [`World::post`].
    fn turn(&mut self, world: &mut World<'_>, job: Job, now_ps: u64) -> Result<u64, SparseError>;

    /// A message has come to an aggregator: when it is done.
    fn add(&mut self, world: &mut World<'_>, job: Job, now_ps: u64) -> Result<u64, SparseError>;

    /// A worker that has not got all, its shard and its iteration.
    fn unfinished(&self) -> Option<(u32, u32, u32)>;
}

pub(super) struct World<'a> {
    pub(super) params: &'a SparseParams,
    pub(super) parameters: Parameters,
    pattern: &'a Pattern,
    pub(super) nodes: Vec<NodeParams>,
    pub(super) places: Vec<Place>,
    pub(super) memories: Lines,
    /// With arrays in memory of devices.
    devices: Option<Devices>,
    pub(super) counts: SparseCounts,
    pub(super) end_ps: u64,
    threads: Vec<Thread>,
    ports: Ports,
    /// By node: the part of an aggregator's spots that does not stay in the cache.
    missing: Vec<f64>,
    queue: Queue<Event>,
}

impl<'a> World<'a> {
    pub(super) fn new(
        params: &'a SparseParams,
        parameters: Parameters,
        pattern: &'a Pattern,
        shards: &Shards,
    ) -> Result<Self, SparseError> {
        let machines = u64::from(shards.count()) * u64::from(params.workers);
        if machines > MOST_MACHINES {
            let limit = "at most 1048576 machines: use fewer coroutines or workers";
            return Err(SparseError::Parameter { what: "shards of all workers", value: machines.to_string(), limit });
        }
        let (nodes, aggregators) = (params.nodes(), params.places());
        let place = |(number, shard): (u32, Shard)| {
            let of_all = number / params.coroutines;
            let first_block = shard.range().start.div_ceil(params.block_bytes.into());
            let node = aggregators[(of_all / params.threads) as usize];
            Place { node, thread: params.workers * params.threads + of_all, shard, first_block }
        };
        let of_nodes = (0..params.workers).chain(aggregators.iter().copied());
        let threads = of_nodes.flat_map(|node| (0..params.threads).map(move |_| node)).map(|node| Thread {
            node,
            is_busy: false,
            inbox: VecDeque::new(),
            posted: Vec::new(),
        });
        let of_node = |(number, node): (u32, &NodeParams)| {
            let count = aggregators.iter().filter(|place| **place == number).count() as u32;
            let budget =
                CacheBudget { cache_bytes: node.cache_bytes, instances: count * params.threads * params.coroutines };
            missing(budget, parameters, params.dca)
        };
        Ok(Self {
            params,
            parameters,
            pattern,
            places: (0..).zip(shards.iter()).map(place).collect(),
            threads: threads.collect(),
            ports: Ports::new(params.machine.network, nodes.len()),
            memories: Lines::memories(&nodes),
            devices: Devices::new(params.arrays, params.machine.device, params.workers),
            missing: (0..).zip(&nodes).map(of_node).collect(),
            nodes,
            queue: Queue::new(),
            counts: SparseCounts::default(),
            end_ps: 0,
        })
    }

    /// Lets all workers begin, and goes on until nothing happens any more.
    pub(super) fn run(&mut self, machines: &mut impl Machines) -> Result<SparseCounts, SparseError> {
        for shard in 0..self.places.len() as u32 {
            for worker in 0..self.params.workers {
                let begin_ps = self.begin_ps(worker);
                self.deliver(machines, Job { shard, worker, what: What::Begin, payload: 0 }, begin_ps)?;
            }
        }
        while let Some((now_ps, event)) = self.queue.next() {
            match event {
                Event::Free(thread) => self.free(machines, thread, now_ps)?,
                Event::Head(job) => {
                    let to = self.threads[self.thread_of(job) as usize].node;
                    let mut whole_ps = self.ports.arrive(to, job.payload, now_ps);
                    if let Some(devices) = self.direct().filter(|_| matches!(job.what, What::Answer)) {
                        whole_ps = devices.scatter(to, job.payload, whole_ps);
                    }
                    self.queue.plan(whole_ps, Event::Whole(job));
                }
                Event::Whole(job) => self.deliver(machines, job, now_ps)?,
            }
        }
        if let Some((worker, shard, iteration)) = machines.unfinished() {
            return Err(SparseError::Stuck { worker, shard, iteration });
        }
        self.end_ps += self.after_ps();
        Ok(SparseCounts {
            shards: self.places.len() as u64,
            union_blocks: self.pattern.union(0..self.pattern.blocks()),
            wire_bytes: self.ports.wire_bytes(),
            events: self.queue.planned(),
            ..self.counts
        })
    }

    /// Who takes it: the same thread of a worker for the same threads of all aggregators.
    fn thread_of(&self, job: Job) -> u32 {
        let threads = self.params.threads;
        match job.what {
            What::Message => self.places[job.shard as usize].thread,
            What::Begin | What::Answer => job.worker * threads + job.shard / self.params.coroutines % threads,
        }
    }

    fn deliver(&mut self, machines: &mut impl Machines, job: Job, now_ps: u64) -> Result<(), SparseError> {
        let number = self.thread_of(job);
        let thread = &mut self.threads[number as usize];
        thread.inbox.push_back(job);
        if thread.is_busy { Ok(()) } else { self.take(machines, number, now_ps) }
    }

    fn free(&mut self, machines: &mut impl Machines, number: u32, now_ps: u64) -> Result<(), SparseError> {
        let thread = &mut self.threads[number as usize];
        let from = thread.node;
        thread.is_busy = false;
        let mut posted = std::mem::take(&mut thread.posted);
        for job in posted.drain(..) {
            let to = self.threads[self.thread_of(job) as usize].node;
            if to == from {
                self.queue.plan(now_ps + self.params.machine.network.local_ps, Event::Whole(job));
            } else {
                self.counts.payload_bytes += job.payload;
                let mut ready_ps = now_ps;
                if let Some(devices) = self.direct().filter(|_| matches!(job.what, What::Message)) {
                    ready_ps = devices.gather(from, job.payload, now_ps);
                }
                self.queue.plan(self.ports.leave(from, job.payload, ready_ps), Event::Head(job));
            }
        }
        self.threads[number as usize].posted = posted;
        self.take(machines, number, now_ps)
    }

    /// A thread takes the next of its jobs.
    fn take(&mut self, machines: &mut impl Machines, number: u32, now_ps: u64) -> Result<(), SparseError> {
        let thread = &mut self.threads[number as usize];
        let Some(job) = thread.inbox.pop_front() else { return Ok(()) };
        thread.is_busy = true;
        let done_ps = match job.what {
            What::Message => machines.add(self, job, now_ps)?,
            What::Begin | What::Answer => machines.turn(self, job, now_ps)?,
        };
        self.queue.plan(done_ps, Event::Free(number));
        Ok(())
    }

    /// Whoever did `done` sends this when its turn is over: a message to the aggregator, or an answer to a worker.
    pub(super) fn post(&mut self, done: Job, what: What, worker: u32, payload: u64) {
        let number = self.thread_of(done);
        self.threads[number as usize].posted.push(Job { what, worker, payload, ..done });
    }

    /// The first block of a worker's, in this part of a shard, that is not zero.
    pub(super) fn next(&self, worker: u32, shard: u32, range: std::ops::Range<u32>) -> Option<u32> {
        let first = self.places[shard as usize].first_block;
        let range = first + u64::from(range.start)..first + u64::from(range.end);
        self.pattern.next(worker, range).map(|block| (block - first) as u32)
    }

    /// Devices whose memory cards reach.
    fn direct(&mut self) -> Option<&mut Devices> {
        self.devices.as_mut().filter(|devices| devices.is_direct())
    }

    /// When a worker can send something of its array.
    fn begin_ps(&self, worker: u32) -> u64 {
        let used = self.pattern.count(worker, 0..self.pattern.blocks()) * u64::from(self.params.block_bytes);
        let bytes = self.params.bytes;
        self.devices.as_ref().map_or(0, |devices| devices.before_ps(bytes, used.min(bytes)))
    }

    /// From the last sum until the array has all of them.
    fn after_ps(&self) -> u64 {
        let Some(devices) = &self.devices else { return 0 };
        let sums = self.pattern.union(0..self.pattern.blocks()) * u64::from(self.params.block_bytes);
        let bytes = self.params.bytes;
        devices.after_ps(if devices.is_direct() { sums.min(bytes) } else { bytes })
    }

    /// A worker's core takes `busy_ps`, and reads and writes so many bytes of an array, unless that is in a device's
    /// memory, where nothing is left to be done: when both are done.
    pub(super) fn stream(&mut self, worker: u32, (bytes, busy_ps): (u64, u64), now_ps: u64) -> u64 {
        if self.direct().is_some() {
            return now_ps + busy_ps;
        }
        let core_ps = time_ps(bytes, self.nodes[worker as usize].core_stream_bytes_per_s);
        (now_ps + busy_ps + core_ps).max(self.memories.serve(worker, bytes, now_ps))
    }

    /// Cards and cores have moved so many bytes from and to spots of an aggregator; those that are not in its cache, in
    /// memory: when that is done.
    pub(super) fn spots(&mut self, node: u32, bytes: u64, now_ps: u64) -> u64 {
        let traffic = (bytes as f64 * self.missing[node as usize]) as u64;
        self.counts.aggregator_memory_bytes += traffic;
        self.memories.serve(node, traffic, now_ps)
    }
}

/// The part of all spots that has no room in the cache; everything without access of the card to it.
fn missing(budget: CacheBudget, parameters: Parameters, dca: bool) -> f64 {
    let spots = parameters.aggregator_bytes() as f64 * f64::from(budget.instances);
    if !dca {
        return 1.0;
    }
    if budget.instances == 0 { 0.0 } else { (1.0 - budget.cache_bytes as f64 / spots).max(0.0) }
}
