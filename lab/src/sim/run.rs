//! One simulation: make the group, run its operations, compare every buffer.

use std::time::Instant;

use emu_machine::with_world;
use flexcast::{Buffer, Card, Communicator, Firmware, Request, Test};
use flexio::Provider;

use super::algorithm::Algorithm;
use super::looks::Looks;
use super::params::{HostFault, Operation, SimParams};
use super::report::{Control, Outcome, Report, Sample, Workers};
pub use super::traffic::Traffic;
use super::work::Meter;
use super::{SimError, baseline, failure, group, skew};
use crate::accesses::Accesses;
use crate::tput::run::{ImageFile, digest, made_up_bytes};

/// What a simulation tells while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Cards opened and communicators made.
    Ready,
    /// Ranks that have ended an operation.
    Ended {
        /// Operation, from 0.
        iteration: u32,
        /// Ranks.
        ranks: u32,
    },
}

/// The bytes of all ranks, one rank's after another's.
///
/// # Errors
/// [`SimError::Memory`] where there is no memory for so many.
pub fn source(params: &SimParams) -> Result<Vec<u8>, SimError> {
    Ok(made_up_bytes(params.source_bytes(), params.seed)?)
}

/// Runs what `params` say on the calling thread's emulated machine, which `provider` reaches. `image`: only multicast needs one.
/// `source`: see [`source`], or as many bytes of a file.
///
/// # Errors
/// [`SimError`]; operations that fail are part of the report instead.
pub fn run(
    provider: &Provider,
    image: Option<&ImageFile>,
    params: &SimParams,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, SimError> {
    params.check()?;
    let expected = params.source_bytes();
    if source.len() as u64 != expected {
        let reason = format!("{} bytes for {expected} of all ranks", source.len());
        return Err(SimError::Parameter { what: "the bytes to send", reason });
    }
    match (params.algorithm, image) {
        (Algorithm::Multicast, Some(image)) => multicast(provider, image, params, source, tick),
        (Algorithm::Multicast, None) => {
            Err(SimError::Parameter { what: "--image", reason: "none: multicast needs the image allgather".to_owned() })
        }
        _ => baseline::run(provider, params, source, tick),
    }
}

fn multicast(
    provider: &Provider,
    image: &ImageFile,
    params: &SimParams,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, SimError> {
    let started = Instant::now();
    let mut params = params.clone();
    let firmware = Firmware { name: &image.name, elf: &image.elf };
    let application = firmware.load(provider).map_err(at(0))?;
    let cards = group::open_cards(provider, params.cards(), &application)?;
    let mut ranks = group::communicators(&cards, params.ranks, params.ranks_per_card, &params.config)?;
    tick(Tick::Ready);
    let set_up_s = started.elapsed().as_secs_f64();
    let mut report = Report::new(&params)?;
    let mut buffers: Vec<Option<Buffers>> = (0..params.ranks).map(|_| None).collect();
    let mut counted = 0;
    for iteration in 0..params.warm_up + params.iterations {
        fill(&cards, &params, source, &mut buffers)?;
        let (before, messages, accesses) = (Traffic::now()?, messages(&ranks), Accesses::now()?);
        let started = Instant::now();
        let start_ps = provider.relax().now_ps();
        let tell = &mut |ranks| tick(Tick::Ended { iteration, ranks });
        let delays_ps = skew::delays_ps(&params, iteration);
        let mut meter = Meter::new(ranks.len(), params.ranks_per_card);
        let mut done = operate(provider, &mut ranks, &params, &delays_ps, &mut buffers, &mut meter, tell)?;
        let took_ps = provider.relax().now_ps() - start_ps;
        let wall_s = started.elapsed().as_secs_f64();
        let traffic = Traffic::now()? - before;
        let outcomes = done.iter().zip(0..).map(|(done, rank)| outcome(source, rank, done.as_ref()));
        let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
        let control = self::messages(&ranks).iter().zip(&messages).map(|(now, before)| *now - *before).collect();
        let work = meter.by_phase(&done);
        let sample = Sample { outcomes, traffic, control, work, took_ps, wall_s, accesses };
        // One that fails counts, even in the warm-up: nothing comes after it. Nor after one that was cancelled so late that all ranks had
        // everything already: their communicators are of no use all the same.
        let cancelled = params.host_faults.iter().any(|fault| matches!(fault, HostFault::Cancel { .. }));
        let last = sample.is_broken() || cancelled || iteration + 1 == params.warm_up + params.iterations;
        if iteration >= params.warm_up || last {
            report.add(&sample)?;
            counted += 1;
        }
        if last {
            report.sha256 = sha256(&done)?;
            break;
        }
        for (slot, done) in buffers.iter_mut().zip(&mut done) {
            *slot = done.take().and_then(Result::ok).map(|done| Buffers { send: done.send, receive: done.receive });
        }
        params.host_faults.clear();
    }
    report.workers = Some(Workers::of(&ranks)?);
    report.finish(counted, set_up_s)?;
    Ok(report)
}

/// Digest of the buffer of the first rank that has ended well.
fn sha256(done: &[Option<flexcast::Outcome>]) -> Result<Option<String>, SimError> {
    let well = |(rank, done): (u32, &Option<flexcast::Outcome>)| {
        let done = done.as_ref()?.as_ref().ok()?;
        Some(done.receive.to_vec().map_err(at(rank)).map(|bytes| digest(&bytes)))
    };
    (0..).zip(done).find_map(well).transpose()
}

/// A rank's buffers between operations.
struct Buffers {
    send: Option<Buffer>,
    receive: Buffer,
}

fn at(rank: u32) -> impl Fn(flexcast::Error) -> SimError {
    move |source| SimError::Rank { rank, source }
}

/// Control messages that each rank has sent so far.
fn messages(ranks: &[Communicator]) -> Vec<Control> {
    ranks.iter().map(|rank| Control::of(&rank.messages())).collect()
}

/// Makes the buffers of an operation, or takes those of the last: own bytes in the send buffer, nothing right in the receive buffer.
fn fill(cards: &[Card], params: &SimParams, source: &[u8], buffers: &mut [Option<Buffers>]) -> Result<(), SimError> {
    let counts = params.counts();
    let mut offset = 0;
    for (rank, slot) in (0u32..).zip(buffers) {
        let card = &cards[(rank / params.ranks_per_card) as usize];
        let count = counts[rank as usize] as usize;
        let own = &source[offset..offset + count];
        offset += count;
        let gathers = params.operation != Operation::Broadcast;
        let disagrees = params.host_faults.contains(&HostFault::Disagree { rank });
        let mut made = match slot.take() {
            Some(made) => made,
            None => Buffers {
                send: gathers.then(|| card.buffer(count)).transpose().map_err(at(rank))?,
                receive: card.buffer(source.len() + usize::from(disagrees && !gathers)).map_err(at(rank))?,
            },
        };
        made.receive.fill(!source.first().copied().unwrap_or(0));
        match &mut made.send {
            Some(send) => send.write(0, own).map_err(at(rank))?,
            None if rank == params.root => made.receive.write(0, own).map_err(at(rank))?,
            None => {}
        }
        *slot = Some(made);
    }
    Ok(())
}

/// Posts one operation on a rank.
fn post(rank: u32, communicator: &mut Communicator, params: &SimParams, buffers: Buffers) -> Result<Request, SimError> {
    let disagrees = params.host_faults.contains(&HostFault::Disagree { rank });
    match buffers {
        Buffers { send: Some(send), .. } if disagrees => communicator.broadcast(send, 0),
        Buffers { send: Some(send), receive } => match params.operation {
            Operation::Allgatherv => communicator.allgatherv(send, receive, &params.counts()),
            _ => communicator.allgather(send, receive),
        },
        Buffers { send: None, receive } => communicator.broadcast(receive, params.root),
    }
    .map_err(|refused| at(rank)(refused.error))
}

/// Posts the operation on ranks that have not and that are due.
fn post_due(
    provider: &Provider,
    is_due: impl Fn(usize) -> bool,
    params: &SimParams,
    ranks: &mut [Communicator],
    buffers: &mut [Option<Buffers>],
    meter: &mut Meter,
    requests: &mut [Option<Request>],
) -> Result<(), SimError> {
    for (rank, slot) in buffers.iter_mut().enumerate().filter(|(rank, _)| is_due(*rank)) {
        if let Some(buffers) = slot.take() {
            meter.note(rank, provider.relax().now_ps(), meter.read(rank)?);
            requests[rank] = Some(post(rank as u32, &mut ranks[rank], params, buffers)?);
        }
    }
    Ok(())
}

/// Posts one operation on all ranks, on each when its delay is over, and drives them until all have ended. A rank whose host has not come
/// to its post looks at nothing.
fn operate(
    provider: &Provider,
    ranks: &mut [Communicator],
    params: &SimParams,
    delays_ps: &[u64],
    buffers: &mut [Option<Buffers>],
    meter: &mut Meter,
    ended: &mut dyn FnMut(u32),
) -> Result<Vec<Option<flexcast::Outcome>>, SimError> {
    let mut requests: Vec<Option<Request>> = ranks.iter().map(|_| None).collect();
    let start_ps = provider.relax().now_ps();
    post_due(provider, |rank| delays_ps[rank] == 0, params, ranks, buffers, meter, &mut requests)?;
    let mut done: Vec<Option<flexcast::Outcome>> = ranks.iter().map(|_| None).collect();
    let mut faults = FaultInjector::new(params, provider.relax().now_ps());
    // Twice the bound of any operation with a worker that must be waited for: nothing that works takes as long.
    let barrier_ps = u64::try_from(params.config.barrier_timeout.as_nanos() * 1000).unwrap_or(u64::MAX);
    let bound_ps = barrier_ps.saturating_mul(2).saturating_add(20_000_000_000_000);
    let mut looks = Looks::new(ranks.len(), params.ranks_per_card);
    loop {
        let now_ps = provider.relax().now_ps();
        if faults.inject(now_ps, ranks)? {
            looks = Looks::new(ranks.len(), params.ranks_per_card);
            // Dead before they came to their post.
            faults.dead.iter().for_each(|rank| buffers[*rank as usize] = None);
        }
        let is_due = |rank: usize| start_ps + delays_ps[rank] <= now_ps;
        post_due(provider, is_due, params, ranks, buffers, meter, &mut requests)?;
        looks.refresh()?;
        for (rank, communicator) in ranks.iter_mut().enumerate() {
            if faults.is_dead(rank as u32) || buffers[rank].is_some() || !looks.is_due(rank, now_ps) {
                continue;
            }
            let (begun_ps, executed) = (provider.relax().now_ps(), meter.read(rank)?);
            let moved = communicator.progress().map_err(at(rank as u32))?;
            if moved {
                meter.note(rank, begun_ps, executed);
            }
            looks.looked(rank, now_ps, moved, communicator.deadline_ps());
            // Without a request of its own its neighbours may still need it.
            let over = |request: &mut Request| communicator.is_done(request);
            let Some(request) = requests[rank].take_if(over) else { continue };
            let outcome = match communicator.test(request) {
                Ok(Test::Pending(request)) => {
                    requests[rank] = Some(request);
                    continue;
                }
                Ok(Test::Done(done)) => Ok(done),
                // Not the operation has failed, but the library.
                Err(failed) if failed.report.failure.is_none() => return Err(at(rank as u32)(failed.error)),
                Err(failed) => Err(failed),
            };
            meter.note(rank, begun_ps, executed);
            done[rank] = Some(outcome);
            ended(ranks_done(&done) as u32);
        }
        let is_open = |rank: &u32| requests[*rank as usize].is_some() || buffers[*rank as usize].is_some();
        let waiting = (0..params.ranks).find(|rank| is_open(rank) && !faults.is_dead(*rank));
        let Some(rank) = waiting else { return Ok(done) };
        if provider.relax().now_ps() - faults.begun_ps > bound_ps {
            return Err(SimError::Hang { rank, operation: params.operation.name(), bound_us: bound_ps / 1_000_000 });
        }
        provider.relax().relax();
    }
}

/// What is still to happen.
struct FaultInjector<'p> {
    params: &'p SimParams,
    left: Vec<HostFault>,
    dead: Vec<u32>,
    begun_ps: u64,
}

impl<'p> FaultInjector<'p> {
    fn new(params: &'p SimParams, begun_ps: u64) -> Self {
        Self { params, left: params.host_faults.clone(), dead: Vec::new(), begun_ps }
    }

    fn is_dead(&self, rank: u32) -> bool {
        self.dead.contains(&rank)
    }

    /// Lets happen what is due; tells whether anything was.
    fn inject(&mut self, now_ps: u64, ranks: &mut [Communicator]) -> Result<bool, SimError> {
        let since_ps = now_ps - self.begun_ps;
        let due = |fault: &mut HostFault| match *fault {
            HostFault::Dead { after_ps, .. }
            | HostFault::Cancel { after_ps, .. }
            | HostFault::Stall { after_ps, .. } => since_ps >= after_ps,
            HostFault::Disagree { .. } => true,
        };
        let due: Vec<_> = self.left.extract_if(.., due).collect();
        let any = !due.is_empty();
        for fault in due {
            match fault {
                HostFault::Dead { rank, .. } => self.dead.push(rank),
                HostFault::Cancel { rank, .. } => {
                    if let Some(communicator) =
                        ranks.get_mut(rank as usize).filter(|communicator| !communicator.is_idle())
                    {
                        communicator.cancel();
                    }
                }
                HostFault::Stall { rank, unit, for_ps, .. } => {
                    let card = (rank / self.params.ranks_per_card) as usize;
                    with_world(|world| world.stall_unit(card, unit, now_ps + for_ps))??;
                }
                HostFault::Disagree { .. } => {}
            }
        }
        Ok(any)
    }
}

fn ranks_done(done: &[Option<flexcast::Outcome>]) -> usize {
    done.iter().flatten().count()
}

/// Compares a rank's buffer with what was sent; `None` for a dead rank's.
fn outcome(source: &[u8], rank: u32, done: Option<&flexcast::Outcome>) -> Result<Outcome, SimError> {
    let Some(done) = done else { return Ok(Outcome { dead: true, ..Outcome::default() }) };
    let (equal, report) = match done {
        Ok(done) => {
            let got = done.receive.to_vec().map_err(|source| SimError::Rank { rank, source })?;
            (Some(got == source), done.report)
        }
        Err(failed) => (None, failed.report),
    };
    let error = done.as_ref().err().map(ToString::to_string);
    let kind = done.as_ref().err().map(|failed| failure::kind(&failed.error));
    let phases = report.phases.in_ps();
    let took_ps = phases.released_ps.map(|released_ps| released_ps.saturating_sub(phases.posted_ps));
    let posted_ps = Some(phases.posted_ps);
    Ok(Outcome { dead: false, equal, error, kind, report: Some(report), posted_ps, took_ps })
}
