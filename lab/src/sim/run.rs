//! One simulation: make the group, run its operations, compare every buffer.

use std::time::Instant;

use emu_machine::with_world;
use flexcast::{Firmware, Selection};
use flexio::{HostWork, Provider};

use super::algorithm::Algorithm;
use super::buffers::Buffers;
use super::drive::{Ends, Operated, operate};
use super::group::{Opening, at};
use super::params::{HostFault, SimParams};
use super::party::{self, Party};
use super::report::{Control, Outcome, Report, Sample, Workers};
pub use super::traffic::Traffic;
use super::work::Meter;
use super::{SimError, baseline, failure, group};
use crate::accesses::Accesses;
use crate::tput::run::{ImageFile, digest, made_up_bytes};

/// What a simulation reports while it runs.
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

/// Runs what `params` say on the calling thread's emulated machine, which `provider` reaches. `image`: only multicast
/// by DPA threads needs one. `source`: see [`source`], or as many bytes of a file.
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
        (Algorithm::Multicast | Algorithm::Automatic, image) if image.is_some() || !params.needs_image() => {
            communicator(provider, image, params, source, tick)
        }
        (Algorithm::Multicast | Algorithm::Automatic, _) => {
            Err(SimError::Parameter { what: "--image", reason: "none: multicast needs the image allgather".to_owned() })
        }
        _ => baseline::run(provider, params, source, tick),
    }
}

fn communicator(
    provider: &Provider,
    image: Option<&ImageFile>,
    params: &SimParams,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, SimError> {
    let started = Instant::now();
    let until = params.wall_limit.map(|limit| started + limit);
    let mut params = params.clone();
    if params.algorithm == Algorithm::Multicast {
        params.config.algorithm = Selection::Multicast;
    }
    let cards = match image.filter(|_| params.needs_image()) {
        Some(ImageFile { name, elf }) => {
            let application = Firmware { name, elf }.load(provider).map_err(at(0))?;
            group::open_cards(provider, params.cards(), Opening::Firmware(&application))?
        }
        None => {
            let chunk_ps = params.chunk_ps();
            let work = move |_: &str, work| if work == HostWork::Datagram { chunk_ps } else { 0 };
            group::open_cards(&provider.with_work(work), params.cards(), Opening::Verbs)?
        }
    };
    let mut parties = party::parties(&cards, &params, source)?;
    with_world(|world| world.settle())?;
    tick(Tick::Ready);
    let set_up_s = started.elapsed().as_secs_f64();
    let mut report = Report::new(&params)?;
    report.contributed_bytes = parties.iter().map(|party| party.source.len() as u64).sum();
    // The counters of a card are those of all its ranks.
    let is_metered = parties.len() == 1 && params.ranks_per_card == 1 && params.needs_image();
    let metered = if is_metered { params.ranks as usize } else { 0 };
    let mut counted = 0;
    for iteration in 0..params.warm_up + params.iterations {
        let (sample, done) =
            turn(provider, &mut parties, &params, Turn { iteration, compute_ps: 0, metered, until }, tick)?;
        // One that fails counts, even in the warm-up: nothing comes after it. Nor after one that was cancelled so late
        // that all ranks had everything already: their communicators are of no use all the same.
        let cancelled = params.host_faults.iter().any(|fault| matches!(fault, HostFault::Cancel { .. }));
        let is_broken = sample.is_broken() || cancelled;
        let last = is_broken || iteration + 1 == params.warm_up + params.iterations;
        if iteration >= params.warm_up || last {
            report.add(&sample)?;
            counted += 1;
        }
        if last {
            report.sha256 = sha256(&done[0])?;
        }
        if last && (is_broken || !params.overlap) {
            break;
        }
        give_back(&mut parties, done);
        params.host_faults.clear();
    }
    report.workers = Some(Workers::of(parties.iter().flat_map(|party| &party.ranks))?);
    report.finish(counted, set_up_s)?;
    if params.overlap && report.failures == 0 {
        let compute_ps = report.longest_ps();
        let mut samples = Vec::new();
        for iteration in params.warm_up + params.iterations..params.warm_up + 2 * params.iterations {
            let turn_of = Turn { iteration, compute_ps, metered: 0, until };
            let (sample, done) = turn(provider, &mut parties, &params, turn_of, tick)?;
            give_back(&mut parties, done);
            samples.push(sample);
        }
        report.add_overlap(compute_ps, &samples);
    }
    Ok(report)
}

/// How one operation goes.
#[derive(Clone, Copy, Debug)]
struct Turn {
    iteration: u32,
    /// Virtual time that each host computes after its post.
    compute_ps: u64,
    /// Ranks whose work on the DPA is counted.
    metered: usize,
    until: Option<Instant>,
}

/// One operation of all communicators: what it was like, and what came of it.
fn turn(
    provider: &Provider,
    parties: &mut [Party<'_>],
    params: &SimParams,
    Turn { iteration, compute_ps, metered, until }: Turn,
    tick: &mut dyn FnMut(Tick),
) -> Result<(Sample, Ends), SimError> {
    parties.iter_mut().try_for_each(Party::fill)?;
    let (before, messages, accesses) = (Traffic::now()?, messages(parties), Accesses::now()?);
    let started = Instant::now();
    let start_ps = provider.relax().now_ps();
    let on_end = &mut |ranks| tick(Tick::Ended { iteration, ranks });
    let mut meter = Meter::new(metered);
    let Operated { done, host_calls } =
        operate(provider, parties, params, (iteration, compute_ps), &mut meter, until, on_end)?;
    let took_ps = provider.relax().now_ps() - start_ps;
    let wall_s = started.elapsed().as_secs_f64();
    let traffic = Traffic::now()? - before;
    let mut outcomes = Vec::new();
    for (number, (party, done)) in parties.iter().zip(&done).enumerate() {
        let expected = party.layout.expected(&party.source);
        for (rank, done) in (0..).zip(done) {
            outcomes.push(Outcome { is_further: number > 0, ..outcome(&expected, rank, done.as_ref())? });
        }
    }
    let control = self::messages(parties).iter().zip(&messages).map(|(now, before)| *now - *before).collect();
    let work = meter.by_phase(&done[0]);
    Ok((Sample { outcomes, traffic, control, work, took_ps, wall_s, host_calls, accesses }, done))
}

/// Puts the buffers of operations that have ended well back for the next ones.
fn give_back(parties: &mut [Party<'_>], done: Ends) {
    for (party, done) in parties.iter_mut().zip(done) {
        for (slot, done) in party.buffers.iter_mut().zip(done) {
            *slot = done.and_then(Result::ok).map(|done| Buffers { send: done.send, receive: done.receive });
        }
        party.params.host_faults.clear();
    }
}

/// Digest of the buffer of the first rank that has ended well.
fn sha256(done: &[Option<flexcast::Outcome>]) -> Result<Option<String>, SimError> {
    let well = |(rank, done): (u32, &Option<flexcast::Outcome>)| {
        let done = done.as_ref()?.as_ref().ok()?;
        Some(done.receive.to_vec().map_err(at(rank)).map(|bytes| digest(&bytes)))
    };
    (0..).zip(done).find_map(well).transpose()
}

/// Control messages that each rank has sent so far.
fn messages(parties: &[Party<'_>]) -> Vec<Control> {
    let ranks = parties.iter().flat_map(|party| &party.ranks);
    ranks.map(|rank| Control::of(&rank.messages())).collect()
}

/// Compares a rank's buffer with what must be in it; `None` for a dead rank's.
fn outcome(expected: &[u8], rank: u32, done: Option<&flexcast::Outcome>) -> Result<Outcome, SimError> {
    let Some(done) = done else { return Ok(Outcome { dead: true, ..Outcome::default() }) };
    let (equal, report) = match done {
        Ok(done) => {
            let got = done.receive.to_vec().map_err(|source| SimError::Rank { rank, source })?;
            (Some(got == expected), done.report)
        }
        Err(failed) => (None, failed.report),
    };
    let error = done.as_ref().err().map(ToString::to_string);
    let kind = done.as_ref().err().map(|failed| failure::kind(&failed.error));
    let phases = report.phases.in_ps();
    let took_ps = phases.released_ps.map(|released_ps| released_ps.saturating_sub(phases.posted_ps));
    let posted_ps = Some(phases.posted_ps);
    Ok(Outcome { dead: false, is_further: false, equal, error, kind, report: Some(report), posted_ps, took_ps })
}
