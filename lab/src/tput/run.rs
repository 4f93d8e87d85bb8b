//! One run: provision both sides, send the buffer as often as asked, compare, report.

use std::time::Instant;

use flexcast_abi::Statistics;
use flexio::{Device, Provider};
use sha2::{Digest as _, Sha256};

use super::TputError;
use super::client::{self, Client};
use super::plan::Plan;
use super::report::{DeviceCounters, Kind, Report, Totals};
use super::server::{self, Server, WorkerEndpoint};
use crate::accesses::{self, Accesses};
use crate::memory::{self, MemoryError};

/// A device image as read from a file.
#[derive(Clone, Debug)]
pub struct ImageFile {
    /// Name for messages.
    pub name: String,
    /// The ELF.
    pub elf: Vec<u8>,
}

/// Who takes part.
#[derive(Debug)]
pub struct Cards {
    /// Receives on its DPA.
    pub server: Device,
    /// Sends from its host.
    pub client: Device,
}

impl Cards {
    /// Opens both cards: by name, or the first as receiver and the second (where there is one) as sender.
    ///
    /// # Errors
    /// [`flexio::Error::UnknownDevice`] and whatever opening a card can give.
    pub fn open(provider: &Provider, server: Option<&str>, client: Option<&str>) -> Result<Self, TputError> {
        let devices = provider.devices()?;
        let nth = |index: usize| devices.get(index).or(devices.last()).map_or("mlx5_0", |device| device.name.as_str());
        Ok(Self {
            server: provider.open(server.unwrap_or_else(|| nth(0)))?,
            client: provider.open(client.unwrap_or_else(|| nth(1)))?,
        })
    }
}

/// What a run tells while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Repetition, counted from 0, warm-up included.
    pub repetition: u32,
    /// Repetitions in all.
    pub repetitions: u32,
    /// Chunks posted in this repetition.
    pub posted: u64,
    /// Chunks of a repetition.
    pub chunks: u64,
}

/// Sends `source` from card to card as the plan says.
///
/// # Errors
/// [`TputError`]; missing chunks are part of the report instead.
pub fn run(
    cards: &Cards,
    image: &ImageFile,
    plan: &Plan,
    source: &[u8],
    model: &str,
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, TputError> {
    let started = Instant::now();
    let is_virtual = cards.server.provider().relax().is_virtual();
    let totals = server::serve(&cards.server, &image.name, &image.elf, plan, |server| {
        client::connect(&cards.client, plan, source, |client| {
            server.connect(&client.endpoints(&cards.client))?;
            client.connect(&server.endpoints())?;
            if is_virtual {
                accesses::label(server.ranges())?;
            }
            repeat(server, client, plan, source, tick)
        })
    })?;
    let (kind, model) = if is_virtual { (Kind::Emulated, model) } else { (Kind::Measured, "none") };
    let sha256 = digest(source);
    Ok(Report::new(plan, &totals, sha256, kind, model, started.elapsed().as_secs_f64()))
}

fn repeat(
    server: &mut Server<'_>,
    client: &mut Client<'_>,
    plan: &Plan,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Totals, TputError> {
    let is_virtual = server.provider().relax().is_virtual();
    let mut totals = Totals { digest_ok: true, ..Totals::default() };
    let mut counted = vec![Statistics::default(); plan.shares.len()];
    for repetition in 0..plan.runs() {
        // Ids are not reused within a run: the plan has checked that there are enough.
        let collective_id = repetition;
        server.arm(collective_id)?;
        client.restart();
        let accesses = if is_virtual { Accesses::now()? } else { None };
        let start_ps = server.provider().relax().now_ps();
        let mut span_ps = transfer(server, client, collective_id, &mut |posted| {
            tick(Tick { repetition, repetitions: plan.runs(), posted, chunks: plan.chunks });
        })?;
        let measured = repetition >= plan.params.warm_up;
        if measured {
            Accesses::add_since(&mut totals.accesses, accesses.as_ref())?;
        }
        let mut complete = server.completed()?;
        let reports = server.report()?;
        if !complete && all_received(plan, &reports) {
            // Nothing was lost: given up too early. The flag follows the last copies.
            server.wait_for_flag()?;
            complete = true;
            span_ps = server.provider().relax().now_ps() - start_ps;
        }
        let arrival = compare(server, plan, source, &reports, complete)?;
        for ((statistics, _), before) in reports.iter().zip(&mut counted) {
            if measured {
                add(&mut totals.device, statistics, before);
            }
            *before = *statistics;
        }
        totals.digest_ok &= arrival.equal;
        if measured {
            totals.missing += arrival.missing;
            totals.received_bytes += arrival.bytes;
            totals.span_ps += span_ps;
        }
    }
    Ok(totals)
}

/// How long nothing may move before what is in flight counts as lost.
struct Patience {
    /// Longest pause seen between two signs of progress.
    longest_ps: u64,
    /// What a round of chunks takes the wire.
    round_ps: u64,
}

impl Patience {
    const LEAST_PS: u64 = 50_000_000;
    /// A pause this many times as long as any before is no pause.
    const FACTOR: u64 = 4;
    /// Longest that a slow worker takes for a completion; one that tells its progress only when its ring is empty may do so for
    /// all that is in flight before anyone sees a sign of it.
    const PER_COMPLETION_PS: u64 = 5_000_000;
    /// The same before anything has shown how slow these are.
    const PER_UNSEEN_COMPLETION_PS: u64 = 50_000_000;

    fn new(plan: &Plan) -> Self {
        const PER_BYTE_PS: u64 = 160;
        let round_bytes = plan.params.chunk_bytes * plan.shares.len() as u64;
        Self { longest_ps: 0, round_ps: PER_BYTE_PS * round_bytes }
    }

    fn pause(&mut self, ps: u64) {
        self.longest_ps = self.longest_ps.max(ps);
    }

    /// Whether nothing will move any more; `in_flight`: chunks that the slowest worker may be busy with.
    fn is_over(&self, quiet_ps: u64, in_flight: u64) -> bool {
        let per_ps = if self.longest_ps == 0 { Self::PER_UNSEEN_COMPLETION_PS } else { Self::PER_COMPLETION_PS };
        let busy_ps = Self::LEAST_PS + per_ps * in_flight + self.round_ps;
        quiet_ps > busy_ps.max(Self::FACTOR * self.longest_ps)
    }
}

/// Looks at nothing new between two checks whether the process lives.
const IDLE_LOOKS: u32 = 64;

/// Sends everything once; returns the time from the first post to the completion flag, or to the last sign of life where
/// chunks are missing. Ends for certain: either something moves, or after a quiet time what is in flight is given up, and
/// there is only so much to send.
fn transfer(
    server: &Server<'_>,
    client: &mut Client<'_>,
    collective_id: u32,
    posted: &mut dyn FnMut(u64),
) -> Result<u64, TputError> {
    let clock = server.provider().relax();
    let endpoints: Vec<WorkerEndpoint> = server.endpoints();
    let mut patience = Patience::new(server.plan());
    let start_ps = clock.now_ps();
    let mut moved_ps = start_ps;
    let credit_of = |worker| Ok::<_, TputError>(server.progress(worker)?.receives_posted);
    let mut credits = (0..endpoints.len()).map(credit_of).collect::<Result<Vec<_>, _>>()?;
    let mut idle = 0_u32;
    loop {
        let mut moved = client.reap()? != 0;
        let mut received = false;
        for (worker, endpoint) in endpoints.iter().enumerate() {
            let credit = credit_of(worker)?;
            received |= std::mem::replace(&mut credits[worker], credit) != credit;
            moved |= client.post_batch(worker, endpoint, collective_id, credit)? != 0;
        }
        let now_ps = clock.now_ps();
        if server.completed()? {
            posted(client.chunks_posted());
            return Ok(now_ps - start_ps);
        }
        if received {
            patience.pause(now_ps - moved_ps);
        }
        idle = if moved || received { 0 } else { idle.wrapping_add(1) };
        if idle % IDLE_LOOKS == IDLE_LOOKS - 1 {
            // A process that has died moves nothing any more: no need to wait until patience is over.
            server.check()?;
        }
        if moved || received {
            moved_ps = now_ps;
            posted(client.chunks_posted());
        } else if patience.is_over(now_ps - moved_ps, most_in_flight(client, &credits)) {
            server.check()?;
            if client.all_posted() {
                return Ok(moved_ps - start_ps);
            }
            for (worker, &credit) in credits.iter().enumerate() {
                client.give_up_in_flight(worker, credit);
            }
            moved_ps = now_ps;
        }
        clock.relax();
    }
}

/// Chunks in flight to the worker that has most of them.
fn most_in_flight(client: &Client<'_>, credits: &[u64]) -> u64 {
    credits.iter().enumerate().map(|(worker, &credit)| client.in_flight(worker, credit)).max().unwrap_or(0)
}

fn all_received(plan: &Plan, reports: &[(Statistics, Vec<u64>)]) -> bool {
    let set = |bitmap: &[u64]| bitmap.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
    plan.shares.iter().zip(reports).all(|(share, (_, bitmap))| set(bitmap) == share.chunks)
}

struct Arrival {
    missing: u64,
    bytes: u64,
    equal: bool,
}

/// Compares what the bitmaps say has arrived with what was sent, by SHA-256 over exactly those chunks.
fn compare(
    server: &Server<'_>,
    plan: &Plan,
    source: &[u8],
    reports: &[(Statistics, Vec<u64>)],
    complete: bool,
) -> Result<Arrival, TputError> {
    let (mut sent, mut received) = (Sha256::new(), Sha256::new());
    let mut arrival = Arrival { missing: 0, bytes: 0, equal: false };
    let mut chunk = memory::zeroes("a chunk to compare", plan.params.chunk_bytes)?;
    for (share, (_, bitmap)) in plan.shares.iter().zip(reports) {
        for psn in 0..share.chunks {
            if bitmap[psn as usize / 64] >> (psn % 64) & 1 == 0 {
                arrival.missing += 1;
                continue;
            }
            let offset = share.offset + psn * plan.params.chunk_bytes;
            let chunk = &mut chunk[..share.chunk_len(psn, plan.params.chunk_bytes) as usize];
            server.read_user(offset, chunk)?;
            received.update(&*chunk);
            sent.update(&source[offset as usize..offset as usize + chunk.len()]);
            arrival.bytes += chunk.len() as u64;
        }
    }
    // A completion flag promises every chunk: one that lies is as bad as wrong bytes.
    arrival.equal = sent.finalize() == received.finalize() && complete == (arrival.missing == 0);
    Ok(arrival)
}

/// Adds what a worker has counted since `before`.
fn add(sum: &mut DeviceCounters, now: &Statistics, before: &Statistics) {
    sum.cqes += now.cqes - before.cqes;
    sum.instructions += now.instructions - before.instructions;
    sum.cycles += now.cycles - before.cycles;
    sum.loop_cqes += now.loop_cqes - before.loop_cqes;
    sum.loop_instructions += now.loop_instructions - before.loop_instructions;
    sum.loop_cycles += now.loop_cycles - before.loop_cycles;
    sum.duplicates += now.duplicates - before.duplicates;
    sum.out_of_range += now.out_of_range - before.out_of_range;
    sum.wrong_length += now.wrong_length - before.wrong_length;
    sum.wrong_id += now.wrong_id - before.wrong_id;
    sum.errors += now.error_cqes + now.unexpected_opcode - before.error_cqes - before.unexpected_opcode;
    sum.activations += now.activations - before.activations;
}

/// SHA-256 in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `bytes` bytes that depend on `seed` and nothing else, and in which no two chunks are alike (SplitMix64).
///
/// # Errors
/// [`MemoryError::Refused`] where there is no memory for so many.
pub fn made_up_bytes(bytes: u64, seed: u64) -> Result<Vec<u8>, MemoryError> {
    let words = bytes.div_ceil(8);
    let mut out = memory::room("made-up bytes", words.saturating_mul(8))?;
    let mut state = seed;
    for _ in 0..words {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        out.extend_from_slice(&(word ^ word >> 31).to_le_bytes());
    }
    out.truncate(bytes as usize);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_bytes_depend_on_the_seed_only() {
        let made_up = |bytes, seed| made_up_bytes(bytes, seed).unwrap();
        assert_eq!(made_up(13, 1), made_up(13, 1));
        assert_eq!(made_up(13, 1)[..8], made_up(8, 1)[..]);
        assert_ne!(made_up(64, 1), made_up(64, 2));
        assert!(made_up(0, 1).is_empty());
        assert!(made_up_bytes(u64::MAX, 1).is_err() && made_up_bytes(1 << 62, 1).is_err());
        assert_eq!(hex(&[0, 0xAB]), "00ab");
    }
}
