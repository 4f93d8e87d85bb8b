//! Sparse AllReduce with the library's machines: workers and aggregators of all shards.

use flexcast_proto::sparse::{
    Aggregator, AggregatorLimits, Answer, Incoming, Order, Parameters, Received, Shards, Step, Worker,
};

use super::bounds::Bounds;
use super::params::{ArraysIn, SparseParams};
use super::pattern::Pattern;
use super::report::{SparseError, SparseReport};
use super::world::{Job, Machines, What, World};
use crate::flow::time_ps;

/// Nobody is lost here: the limits of aggregators do not matter.
const LIMITS: AggregatorLimits = AggregatorLimits { iteration_ps: u64::MAX, linger_ps: u64::MAX };

/// An aggregator's part of a shard.
#[derive(Debug)]
struct Sum {
    aggregator: Aggregator,
    answer: Option<Answer>,
}

struct Engine {
    sums: Vec<Sum>,
    /// Of each worker its shards, one behind the other.
    workers: Vec<Worker>,
}

/// Runs a sparse AllReduce of these patterns to its end.
///
/// # Errors
/// Parameters that cannot be.
pub fn simulate(params: &SparseParams) -> Result<SparseReport, SparseError> {
    run(params, Engine::new)
}

/// Runs the machines that `make` makes for a world.
pub(super) fn run<M: Machines>(
    params: &SparseParams,
    make: impl FnOnce(&World<'_>) -> Result<M, SparseError>,
) -> Result<SparseReport, SparseError> {
    let parameters = check(params)?;
    let aggregators = params.aggregators.len() as u32;
    let shards = Shards::new(params.bytes, parameters, aggregators, params.threads, params.coroutines)?;
    let pattern = Pattern::new(params.pattern, params.workers, shards.blocks(), params.sparsity, params.seed);
    let bounds = Bounds::of(params, &pattern, &shards);
    let mut world = World::new(params, parameters, &pattern, &shards)?;
    let mut machines = make(&world)?;
    let counts = world.run(&mut machines)?;
    Ok(SparseReport { time_ps: world.end_ps, bytes: params.bytes, bounds, counts })
}

fn check(params: &SparseParams) -> Result<Parameters, SparseError> {
    if !(0.0..=1.0).contains(&params.sparsity) {
        let value = params.sparsity.to_string();
        return Err(SparseError::Parameter { what: "sparsity", value, limit: "give a part from 0 to 1" });
    }
    if params.arrays != ArraysIn::Host && params.machine.device.is_none() {
        let (what, value) = ("where arrays are", params.arrays.to_string());
        return Err(SparseError::Parameter { what, value, limit: "these servers have no devices: give v100 or a100" });
    }
    const MOST: u64 = 1 << 34;
    if params.bytes > MOST {
        let value = params.bytes.to_string();
        return Err(SparseError::Parameter { what: "bytes of the array", value, limit: "give at most 16 GiB" });
    }
    Ok(Parameters::new(params.workers, params.block_bytes, params.blocks_per_message, 4)?)
}

impl Engine {
    fn new(world: &World<'_>) -> Result<Self, SparseError> {
        let mut sums = Vec::with_capacity(world.places.len());
        for place in &world.places {
            let aggregator = Aggregator::new(world.parameters, place.shard.blocks(), Order::Arrival, LIMITS, 0)?;
            sums.push(Sum { aggregator, answer: None });
        }
        let mut workers = Vec::with_capacity(sums.len() * world.params.workers as usize);
        for _ in 0..world.params.workers {
            for place in &world.places {
                workers.push(Worker::new(world.parameters, place.shard.blocks())?);
            }
        }
        Ok(Self { sums, workers })
    }

    const fn place(&self, job: Job) -> usize {
        job.worker as usize * self.sums.len() + job.shard as usize
    }
}

impl Machines for Engine {
    /// Sums to the array, the scan for the next votes, and the message.
    fn turn(&mut self, world: &mut World<'_>, job: Job, now_ps: u64) -> Result<u64, SparseError> {
        let at = self.place(job);
        let (machine, place) = (&mut self.workers[at], world.places[job.shard as usize]);
        let node = world.nodes[job.worker as usize];
        let mut busy_ps = 0;
        if let (What::Answer, Some(answer)) = (job.what, &self.sums[job.shard as usize].answer) {
            machine.answer(answer.iteration, answer.sums, &answer.next)?;
            busy_ps += node.message_ps;
        }
        let (mut stored, mut scanned) = (0, 0);
        loop {
            match machine.poll() {
                Step::Store { block, .. } => stored += place.bytes_of(block, block + 1),
                Step::Scan { from, .. } => {
                    let blocks = place.shard.blocks();
                    let found = world.next(job.worker, job.shard, from..blocks);
                    scanned += place.bytes_of(from, found.map_or(blocks, |block| block + 1));
                    machine.found(found)?;
                }
                Step::Send => {
                    busy_ps += node.post_ps;
                    let blocks = machine.message().map_or(0, |message| message.send.len());
                    let payload = u64::from(world.parameters.message_bytes(blocks));
                    world.counts.messages += 1;
                    world.counts.blocks_sent += u64::from(blocks);
                    world.post(job, What::Message, job.worker, payload);
                }
                Step::Wait | Step::Complete => break,
            }
        }
        world.counts.scanned_bytes += scanned;
        world.counts.stored_bytes += stored;
        let done_ps = world.stream(job.worker, (stored + scanned, busy_ps), now_ps);
        if machine.is_complete() {
            world.end_ps = world.end_ps.max(done_ps);
        }
        Ok(done_ps)
    }

    /// An aggregator adds a message, and answers all after the last one.
    fn add(&mut self, world: &mut World<'_>, job: Job, now_ps: u64) -> Result<u64, SparseError> {
        let at = self.place(job);
        let (sum, place) = (&mut self.sums[job.shard as usize], world.places[job.shard as usize]);
        let node = world.nodes[place.node as usize];
        let Some(message) = self.workers[at].message() else { return Ok(now_ps) };
        let blocks = message.send.len();
        let incoming = Incoming { displacement: message.displacement.bits(), blocks, votes: message.votes };
        let mut busy_ps = node.message_ps + time_ps(job.payload, node.core_add_bytes_per_s);
        // What is not in the cache is written by the card and read by a core, and read by the card for each answer.
        let mut moved = 2 * job.payload;
        if let Received::Added(added) = sum.aggregator.handle_reliable(job.worker, &incoming, now_ps)?
            && let Some(answer) = added.answer
        {
            let payload = u64::from(world.parameters.message_bytes(answer.sums));
            let workers = world.params.workers;
            busy_ps += node.post_ps * u64::from(workers);
            moved += payload * u64::from(workers);
            world.counts.iterations += u64::from(answer.sums > 0);
            world.counts.answers += u64::from(workers);
            world.counts.sums_sent += u64::from(answer.sums) * u64::from(workers);
            sum.answer = Some(answer);
            for worker in 0..workers {
                world.post(job, What::Answer, worker, payload);
            }
        }
        Ok((now_ps + busy_ps).max(world.spots(place.node, moved, now_ps)))
    }

    fn unfinished(&self) -> Option<(u32, u32, u32)> {
        let at = self.workers.iter().position(|worker| !worker.is_complete())?;
        let (worker, shard) = ((at / self.sums.len()) as u32, (at % self.sums.len()) as u32);
        Some((worker, shard, self.workers[at].iteration()))
    }
}
