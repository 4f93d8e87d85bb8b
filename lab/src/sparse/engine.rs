//! Engine: machines of all shards, the processors that they share, messages under way, and what happens next.

use std::collections::VecDeque;

use flexcast_proto::sparse::{
    Aggregator, AggregatorLimits, Answer, CacheBudget, Incoming, Order, Parameters, Received, Shard, Shards, Step,
    Worker,
};

use super::bounds::Bounds;
use super::params::{NodeParams, SparseParams};
use super::pattern::Pattern;
use super::ports::{Memories, Ports};
use super::report::{SparseCounts, SparseError, SparseReport};
use crate::flow::{Queue, time_ps};

/// Nobody is lost here: the limits of aggregators do not matter.
const LIMITS: AggregatorLimits = AggregatorLimits { iteration_ps: u64::MAX, linger_ps: u64::MAX };
/// Machines of workers, at most: a few hundred bytes each.
const MOST_MACHINES: u64 = 1 << 20;

/// What a thread takes from its inbox.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A worker begins.
    Begin,
    /// A message has come to the aggregator.
    Message,
    /// An answer has come to the worker.
    Answer,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    shard: u32,
    worker: u32,
    what: What,
    /// Of the message that it came with.
    payload: u64,
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

/// An aggregator's part of a shard.
#[derive(Debug)]
struct Sum {
    aggregator: Aggregator,
    place: u32,
    thread: u32,
    shard: Shard,
    first_block: u64,
    answer: Option<Answer>,
}

struct Engine<'a> {
    params: &'a SparseParams,
    parameters: Parameters,
    pattern: &'a Pattern,
    nodes: Vec<NodeParams>,
    threads: Vec<Thread>,
    sums: Vec<Sum>,
    /// Of each worker its shards, one behind the other.
    workers: Vec<Worker>,
    ports: Ports,
    memories: Memories,
    /// By node: the part of an aggregator's spots that does not stay in the cache.
    missing: Vec<f64>,
    queue: Queue<Event>,
    counts: SparseCounts,
    end_ps: u64,
}

/// Runs a sparse AllReduce of these patterns to its end.
///
/// # Errors
/// Parameters that cannot be.
pub fn simulate(params: &SparseParams) -> Result<SparseReport, SparseError> {
    let parameters = check(params)?;
    let aggregators = params.aggregators.len() as u32;
    let shards = Shards::new(params.bytes, parameters, aggregators, params.threads, params.coroutines)?;
    let machines = u64::from(shards.count()) * u64::from(params.workers);
    if machines > MOST_MACHINES {
        let limit = "at most 1048576 machines: use fewer coroutines or workers";
        return Err(SparseError::Parameter { what: "shards of all workers", value: machines.to_string(), limit });
    }
    let pattern = Pattern::new(params.pattern, params.workers, shards.blocks(), params.sparsity, params.seed);
    let bounds = Bounds::of(params, &pattern, &shards);
    let mut engine = Engine::new(params, parameters, &pattern, &shards)?;
    engine.run()?;
    let mut counts = engine.counts;
    counts.shards = shards.count().into();
    counts.union_blocks = pattern.union(0..pattern.blocks());
    counts.wire_bytes = engine.ports.wire_bytes();
    counts.events = engine.queue.planned();
    Ok(SparseReport { time_ps: engine.end_ps, bytes: params.bytes, bounds, counts })
}

fn check(params: &SparseParams) -> Result<Parameters, SparseError> {
    if !(0.0..=1.0).contains(&params.sparsity) {
        let value = params.sparsity.to_string();
        return Err(SparseError::Parameter { what: "sparsity", value, limit: "give a part from 0 to 1" });
    }
    const MOST: u64 = 1 << 34;
    if params.bytes > MOST {
        let value = params.bytes.to_string();
        return Err(SparseError::Parameter { what: "bytes of the array", value, limit: "give at most 16 GiB" });
    }
    Ok(Parameters::new(params.workers, params.block_bytes, params.blocks_per_message, 4)?)
}

impl<'a> Engine<'a> {
    fn new(
        params: &'a SparseParams,
        parameters: Parameters,
        pattern: &'a Pattern,
        shards: &Shards,
    ) -> Result<Self, SparseError> {
        let (nodes, places) = (params.nodes(), params.places());
        let mut sums = Vec::with_capacity(shards.count() as usize);
        for (number, shard) in (0..).zip(shards.iter()) {
            let of_all = number / params.coroutines;
            sums.push(Sum {
                aggregator: Aggregator::new(parameters, shard.blocks(), Order::Arrival, LIMITS, 0)?,
                place: places[(of_all / params.threads) as usize],
                thread: params.workers * params.threads + of_all,
                shard,
                first_block: shard.range().start.div_ceil(params.block_bytes.into()),
                answer: None,
            });
        }
        let mut workers = Vec::with_capacity(sums.len() * params.workers as usize);
        for _ in 0..params.workers {
            for sum in &sums {
                workers.push(Worker::new(parameters, sum.shard.blocks())?);
            }
        }
        let of_nodes = (0..params.workers).chain(places.iter().copied());
        let threads = of_nodes.flat_map(|node| (0..params.threads).map(move |_| node)).map(|node| Thread {
            node,
            is_busy: false,
            inbox: VecDeque::new(),
            posted: Vec::new(),
        });
        let mut engine = Self {
            params,
            parameters,
            pattern,
            threads: threads.collect(),
            sums,
            workers,
            ports: Ports::new(params.machine.network, nodes.len()),
            memories: Memories::new(&nodes),
            missing: vec![0.0; nodes.len()],
            nodes,
            queue: Queue::new(),
            counts: SparseCounts::default(),
            end_ps: 0,
        };
        for (place, node) in (0..).zip(&engine.nodes) {
            let instances =
                places.iter().filter(|other| **other == place).count() as u32 * params.threads * params.coroutines;
            let budget = CacheBudget { cache_bytes: node.cache_bytes, instances };
            engine.missing[place as usize] = missing(budget, parameters, params.dca);
        }
        Ok(engine)
    }

    fn run(&mut self) -> Result<(), SparseError> {
        for shard in 0..self.sums.len() as u32 {
            for worker in 0..self.params.workers {
                self.deliver(Job { shard, worker, what: What::Begin, payload: 0 }, 0)?;
            }
        }
        while let Some((now_ps, event)) = self.queue.next() {
            match event {
                Event::Free(thread) => self.free(thread, now_ps)?,
                Event::Head(job) => {
                    let to = self.threads[self.thread_of(job) as usize].node;
                    let whole_ps = self.ports.arrive(to, job.payload, now_ps);
                    self.queue.plan(whole_ps, Event::Whole(job));
                }
                Event::Whole(job) => self.deliver(job, now_ps)?,
            }
        }
        let shards = self.sums.len();
        match self.workers.iter().position(|worker| !worker.is_complete()) {
            None => Ok(()),
            Some(place) => Err(SparseError::Stuck {
                worker: (place / shards) as u32,
                shard: (place % shards) as u32,
                iteration: self.workers[place].iteration(),
            }),
        }
    }

    /// Who takes it: the same thread of a worker for the same threads of all aggregators.
    fn thread_of(&self, job: Job) -> u32 {
        let threads = self.params.threads;
        match job.what {
            What::Message => self.sums[job.shard as usize].thread,
            What::Begin | What::Answer => job.worker * threads + job.shard / self.params.coroutines % threads,
        }
    }

    fn deliver(&mut self, job: Job, now_ps: u64) -> Result<(), SparseError> {
        let number = self.thread_of(job);
        let thread = &mut self.threads[number as usize];
        thread.inbox.push_back(job);
        if thread.is_busy { Ok(()) } else { self.take(number, now_ps) }
    }

    fn free(&mut self, number: u32, now_ps: u64) -> Result<(), SparseError> {
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
                self.queue.plan(self.ports.leave(from, job.payload, now_ps), Event::Head(job));
            }
        }
        self.threads[number as usize].posted = posted;
        self.take(number, now_ps)
    }

    /// A thread takes the next of its jobs.
    fn take(&mut self, number: u32, now_ps: u64) -> Result<(), SparseError> {
        let thread = &mut self.threads[number as usize];
        let Some(job) = thread.inbox.pop_front() else { return Ok(()) };
        thread.is_busy = true;
        let done_ps = match job.what {
            What::Message => self.add(number, job, now_ps)?,
            What::Begin | What::Answer => self.turn(number, job, now_ps)?,
        };
        self.queue.plan(done_ps, Event::Free(number));
        Ok(())
    }

    /// A worker's turn: sums to the array, the scan for the next votes, and its message.
    fn turn(&mut self, number: u32, job: Job, now_ps: u64) -> Result<u64, SparseError> {
        let sum = &self.sums[job.shard as usize];
        let machine = &mut self.workers[job.worker as usize * self.sums.len() + job.shard as usize];
        let node = &self.nodes[job.worker as usize];
        let bytes_of = |first: u32, after: u32| {
            let (first, after) = (sum.shard.block(first).start, sum.shard.block(after).start);
            after - first
        };
        let mut busy_ps = 0;
        if let (What::Answer, Some(answer)) = (job.what, &sum.answer) {
            machine.answer(answer.iteration, answer.sums, &answer.next)?;
            busy_ps += node.message_ps;
        }
        let (mut stored, mut scanned) = (0, 0);
        loop {
            match machine.poll() {
                Step::Store { block, .. } => stored += bytes_of(block, block + 1),
                Step::Scan { from, .. } => {
                    let shard = sum.first_block..sum.first_block + u64::from(sum.shard.blocks());
                    let found = self.pattern.next(job.worker, shard.start + u64::from(from)..shard.end);
                    let found = found.map(|block| (block - shard.start) as u32);
                    scanned += bytes_of(from, found.map_or(sum.shard.blocks(), |block| block + 1));
                    machine.found(found)?;
                }
                Step::Send => {
                    busy_ps += node.post_ps;
                    let blocks = machine.message().map_or(0, |message| message.send.len());
                    let payload = u64::from(self.parameters.message_bytes(blocks));
                    self.counts.messages += 1;
                    self.counts.blocks_sent += u64::from(blocks);
                    self.threads[number as usize].posted.push(Job { what: What::Message, payload, ..job });
                }
                Step::Wait | Step::Complete => break,
            }
        }
        self.counts.scanned_bytes += scanned;
        self.counts.stored_bytes += stored;
        busy_ps += time_ps(stored + scanned, node.core_stream_bytes_per_s);
        let done_ps = (now_ps + busy_ps).max(self.memories.serve(job.worker, stored + scanned, now_ps));
        if machine.is_complete() {
            self.end_ps = self.end_ps.max(done_ps);
        }
        Ok(done_ps)
    }

    /// An aggregator adds a message, and answers all after the last one.
    fn add(&mut self, number: u32, job: Job, now_ps: u64) -> Result<u64, SparseError> {
        let sum = &mut self.sums[job.shard as usize];
        let worker = &self.workers
            [job.worker as usize * (self.workers.len() / self.params.workers as usize) + job.shard as usize];
        let node = &self.nodes[sum.place as usize];
        let Some(message) = worker.message() else { return Ok(now_ps) };
        let blocks = message.send.len();
        let incoming = Incoming { displacement: message.displacement.bits(), blocks, votes: message.votes };
        let mut busy_ps = node.message_ps + time_ps(job.payload, node.core_add_bytes_per_s);
        // What is not in the cache is written by the card and read by a core, and read by the card for each answer.
        let missing = self.missing[sum.place as usize];
        let mut traffic = 2 * job.payload;
        if let Received::Added(added) = sum.aggregator.handle_reliable(job.worker, &incoming, now_ps)?
            && let Some(answer) = added.answer
        {
            let payload = u64::from(self.parameters.message_bytes(answer.sums));
            let workers = u64::from(self.params.workers);
            busy_ps += node.post_ps * workers;
            traffic += payload * workers;
            self.counts.iterations += u64::from(answer.sums > 0);
            self.counts.answers += workers;
            self.counts.sums_sent += u64::from(answer.sums) * workers;
            sum.answer = Some(answer);
            let all = (0..self.params.workers).map(|worker| Job { worker, what: What::Answer, payload, ..job });
            self.threads[number as usize].posted.extend(all);
        }
        let traffic = (traffic as f64 * missing) as u64;
        self.counts.aggregator_memory_bytes += traffic;
        Ok((now_ps + busy_ps).max(self.memories.serve(sum.place, traffic, now_ps)))
    }
}

/// The part of all spots that has no room in the cache; everything without access of the card to it (SA-24).
fn missing(budget: CacheBudget, parameters: Parameters, dca: bool) -> f64 {
    let spots = parameters.aggregator_bytes() as f64 * f64::from(budget.instances);
    if !dca {
        return 1.0;
    }
    if budget.instances == 0 { 0.0 } else { (1.0 - budget.cache_bytes as f64 / spots).max(0.0) }
}
