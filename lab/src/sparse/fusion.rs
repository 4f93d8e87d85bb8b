//! Block fusion, the design that sparse AllReduce is compared with (Fei et al., OmniReduce): d instances of a protocol
//! that sums up one block after the other, fused into common messages.
//!
//! Blocks of a shard are in d columns, block i in column i modulo d. A worker's message has at most one block of each
//! column, and with each block the worker's next one of that column that is not zero. The aggregator keeps what each
//! worker has announced, n numbers for each column, and the least of them is the column's next block. It asks for the
//! next blocks of all columns at once, and only workers that have one of them answer. Columns end at different times,
//! and messages get shorter then.
//!
//! A worker searches for blocks in one pass and copies those that it sends in another. What workers and aggregators
//! take for that are this model's choices: [`COMPARE_PS`], and the rates of cores.

use super::engine::run;
use super::params::SparseParams;
use super::report::{SparseError, SparseReport};
use super::world::{Job, Machines, What, World};
use crate::flow::time_ps;

/// An aggregator compares one number of a worker.
const COMPARE_PS: u64 = 1000;
/// A block's index, and the next one's.
const INDICES_BYTES: u64 = 8;
/// No block.
const NONE: u32 = u32::MAX;

/// A shard.
#[derive(Debug)]
struct Shard {
    blocks: u32,
    /// The block of each column that is summed up, by iteration. A worker that has none of them is not waited for, and
    /// may be behind.
    currents: Vec<Vec<u32>>,
    /// By worker: iterations whose answer it has taken.
    taken: Vec<usize>,
    /// By worker and column: the first block that is not zero and has not been sent.
    announced: Vec<Vec<u32>>,
    /// Messages that are missing.
    awaited: u32,
}

struct Fusion {
    shards: Vec<Shard>,
    /// By worker: shards of which something is missing.
    left: Vec<u32>,
}

/// Runs a sparse AllReduce by block fusion to its end.
///
/// # Errors
/// As [`simulate`](super::simulate).
pub fn fusion(params: &SparseParams) -> Result<SparseReport, SparseError> {
    run(params, |world| {
        let (columns, workers) = (world.parameters.blocks_per_message() as usize, world.params.workers as usize);
        let shard = |blocks| Shard {
            blocks,
            currents: vec![vec![NONE; columns]],
            taken: vec![0; workers],
            announced: vec![vec![NONE; columns]; workers],
            awaited: workers as u32,
        };
        let shards: Vec<Shard> = world.places.iter().map(|place| shard(place.shard.blocks())).collect();
        Ok(Fusion { left: vec![shards.len() as u32; workers], shards })
    })
}

/// The first block of a column from `from` on that is not zero at a worker.
fn next(world: &World<'_>, (worker, shard): (u32, u32), blocks: u32, columns: u32, from: u32) -> u32 {
    let mut at = from;
    while at < blocks {
        // The next of any column, unless it is of this one.
        match world.next(worker, shard, at..blocks) {
            None => return NONE,
            Some(block) if block == at => return block,
            Some(block) => at += (block - at).div_ceil(columns) * columns,
        }
    }
    NONE
}

impl Shard {
    fn columns(&self) -> u32 {
        self.currents[0].len() as u32
    }

    /// Columns of an iteration whose block a worker has.
    fn of(&self, worker: u32, iteration: usize) -> Vec<usize> {
        let (announced, current) = (&self.announced[worker as usize], &self.currents[iteration]);
        (0..announced.len())
            .filter(|column| current[*column] != NONE && announced[*column] == current[*column])
            .collect()
    }

    const fn last(&self) -> usize {
        self.currents.len() - 1
    }

    const fn payload(blocks: u64, block_bytes: u32) -> u64 {
        blocks * (block_bytes as u64 + INDICES_BYTES) + INDICES_BYTES
    }
}

impl Machines for Fusion {
    fn turn(&mut self, world: &mut World<'_>, job: Job, now_ps: u64) -> Result<u64, SparseError> {
        let Job { shard: number, worker, .. } = job;
        let (shard, place) = (&mut self.shards[number as usize], world.places[number as usize]);
        let node = world.nodes[worker as usize];
        let columns = shard.columns();
        let who = (worker, number);
        let (mut read, mut written, mut busy_ps) = (0, 0, node.message_ps);
        match job.what {
            What::Begin => {
                for column in 0..columns {
                    shard.announced[worker as usize][column as usize] = next(world, who, shard.blocks, columns, column);
                }
                // The whole shard is scanned before anything is sent.
                read += place.bytes_of(0, shard.blocks);
                world.counts.scanned_bytes += read;
                let payload = Shard::payload(0, 0) + INDICES_BYTES * u64::from(columns);
                world.counts.messages += 1;
                world.post(job, What::Message, worker, payload);
                busy_ps += node.post_ps;
            }
            What::Message | What::Answer => {
                // Of all columns: the sums of this answer. Those of the last come without a block.
                let stored =
                    job.payload.saturating_sub(INDICES_BYTES) / (u64::from(world.params.block_bytes) + INDICES_BYTES);
                written += stored * u64::from(world.params.block_bytes);
                world.counts.stored_bytes += written;
                shard.taken[worker as usize] += 1;
                let iteration = shard.taken[worker as usize];
                let own = shard.of(worker, iteration);
                if !own.is_empty() {
                    let blocks = own.len() as u64;
                    let copied: u64 = own
                        .iter()
                        .map(|column| shard.currents[iteration][*column])
                        .map(|block| place.bytes_of(block, block + 1))
                        .sum();
                    read += copied;
                    written += copied;
                    world.counts.messages += 1;
                    world.counts.blocks_sent += blocks;
                    world.post(job, What::Message, worker, Shard::payload(blocks, world.params.block_bytes));
                    busy_ps += node.post_ps;
                }
            }
        }
        let done_ps = world.stream(worker, (read + written, busy_ps), now_ps);
        let is_last = |current: &Vec<u32>| current.iter().all(|block| *block == NONE);
        if matches!(job.what, What::Answer) && is_last(&shard.currents[shard.taken[worker as usize]]) {
            self.left[worker as usize] -= 1;
            world.end_ps = world.end_ps.max(done_ps);
        }
        Ok(done_ps)
    }

    fn add(&mut self, world: &mut World<'_>, job: Job, now_ps: u64) -> Result<u64, SparseError> {
        let Job { shard: number, worker, payload, .. } = job;
        let (shard, place) = (&mut self.shards[number as usize], world.places[number as usize]);
        let node = world.nodes[place.node as usize];
        let (columns, workers, last) = (shard.columns(), world.params.workers, shard.last());
        for column in shard.of(worker, last) {
            let from = shard.currents[last][column] + columns;
            shard.announced[worker as usize][column] = next(world, (worker, number), shard.blocks, columns, from);
        }
        shard.awaited -= 1;
        let mut busy_ps = node.message_ps + time_ps(payload, node.core_add_bytes_per_s);
        let mut moved = 2 * payload;
        if shard.awaited == 0 {
            let sums = shard.currents[last].iter().filter(|block| **block != NONE).count() as u64;
            let least = |column: usize| shard.announced.iter().map(|announced| announced[column]).min().unwrap_or(NONE);
            let current = (0..columns as usize).map(least).collect();
            shard.currents.push(current);
            shard.awaited = (0..workers).filter(|worker| !shard.of(*worker, last + 1).is_empty()).count() as u32;
            world.counts.iterations += u64::from(sums > 0);
            busy_ps += COMPARE_PS * u64::from(columns) * u64::from(workers) + node.post_ps * u64::from(workers);
            let payload = Shard::payload(sums, world.params.block_bytes);
            moved += payload * u64::from(workers);
            world.counts.answers += u64::from(workers);
            world.counts.sums_sent += sums * u64::from(workers);
            for worker in 0..workers {
                world.post(job, What::Answer, worker, payload);
            }
        }
        Ok((now_ps + busy_ps).max(world.spots(place.node, moved, now_ps)))
    }

    fn unfinished(&self) -> Option<(u32, u32, u32)> {
        let worker = self.left.iter().position(|left| *left > 0)?;
        let shard = self.shards.iter().position(|shard| shard.taken[worker] < shard.last()).unwrap_or(0);
        Some((worker as u32, shard as u32, self.shards[shard].last() as u32))
    }
}
