//! The same simulation by a collective without multicast: reliable connections of the hosts, on the same cards and
//! network.

use std::time::Instant;

use flexcast::p2p::algorithm::Blocks;
use flexcast::p2p::{Buffer, Config, Connections, Error, Group};
use flexcast_proto::RankInfo;
use flexio::{Access, Bound, CompletionQueue, HostBuffer, MemoryRegion, ProtectionDomain, Provider, Retry};

use super::SimError;
use super::algorithm::Algorithm;
use super::expected::Expected;
use super::failure;
use super::params::{Operation, REDUCTION, SimParams};
use super::polls::Polls;
use super::report::{Control, Outcome, Report, Sample};
use super::run::Tick;
use super::skew;
use super::traffic::Traffic;
use crate::memory;
use crate::tput::run::digest;

fn at(rank: u32) -> impl Fn(Error) -> SimError {
    move |source| SimError::Baseline { rank, source: Box::new(source) }
}

/// As a communicator of these parameters, where the two have the same.
pub(super) fn config(params: &SimParams) -> Config {
    let flexcast::Config { barrier_timeout, retry_exponent, data_class, control_class, .. } = params.config;
    let default = Config::default();
    Config {
        bound: Bound { span: barrier_timeout, ..default.bound },
        retry: Retry { timeout_exponent: retry_exponent, ..default.retry },
        data_class,
        control_class,
        ..default
    }
}

/// One error per rank, or all its values.
fn each<T>(ranks: u32, make: impl Fn(u32) -> Result<T, Error>) -> Result<Vec<T>, SimError> {
    (0..ranks).map(|rank| make(rank).map_err(at(rank))).collect()
}

/// Runs `params`, whose algorithm is none of multicast, on the calling thread's machine.
///
/// # Errors
/// [`SimError`]; operations that fail are part of the report instead.
pub(super) fn run(
    provider: &Provider,
    params: &SimParams,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, SimError> {
    let started = Instant::now();
    let Some(schedule) = params.algorithm.schedule(params.root, params.bytes, params.ranks)? else {
        return Err(SimError::Parameter { what: "--algorithm", reason: "multicast is no baseline".to_owned() });
    };
    let known = provider.devices().map_err(|error| at(0)(error.into()))?;
    if known.len() < params.cards() {
        let reason = format!("{} cards are needed, the machine has {}", params.cards(), known.len());
        return Err(SimError::Parameter { what: "--ranks", reason });
    }
    let cards = params.cards() as u32;
    let devices = each(cards, |card| Ok(provider.open(&known[card as usize].name)?))?;
    let domains = each(cards, |card| Ok(ProtectionDomain::new(&devices[card as usize])?))?;
    let (config, card_of) = (config(params), |rank: u32| params.card_of(rank));
    let place = |rank| {
        RankInfo::new(rank, params.ranks)
            .map_err(|error| SimError::Parameter { what: "--ranks", reason: error.to_string() })
    };
    let connections = (0..params.ranks)
        .map(|rank| Connections::new(place(rank)?, &[schedule], config).map_err(at(rank)))
        .collect::<Result<Vec<_>, SimError>>()?;
    let queues = each(params.ranks, |rank| {
        Ok(CompletionQueue::new(&devices[card_of(rank)], connections[rank as usize].completions())?)
    })?;
    let mut groups = connect(&connections, &queues, |rank| &domains[card_of(rank)])?;
    let buffers = each(params.ranks, |rank| Buffers::new(&domains[card_of(rank)], params, rank))?;
    tick(Tick::Ready);
    let greeted = greet(provider, &mut groups);
    let set_up_s = started.elapsed().as_secs_f64();
    let mut report = Report::new(params)?;
    if greeted.is_broken() {
        // A card or link that is down by then: the operation would have failed so.
        report.add(&greeted)?;
        report.finish(1, set_up_s)?;
        return Ok(report);
    }
    let expected = Expected::new(params, source);
    let mut counted = 0;
    for iteration in 0..params.warm_up + params.iterations {
        fill(&buffers, params, source)?;
        let (before, announced) = (Traffic::now()?, announcements(&groups));
        let (started, start_ps) = (Instant::now(), provider.relax().now_ps());
        let (delays_ps, on_end) =
            (skew::delays_ps(params, iteration), &mut |ranks| tick(Tick::Ended { iteration, ranks }));
        let mut outcomes = operate(provider, &mut groups, params, &delays_ps, &buffers, on_end)?;
        let took_ps = provider.relax().now_ps() - start_ps;
        let wall_s = started.elapsed().as_secs_f64();
        let traffic = Traffic::now()? - before;
        report.sha256 = compare(params, &groups, &buffers, &expected, &mut outcomes)?;
        let control = announcements(&groups).iter().zip(&announced).map(|(now, before)| *now - *before).collect();
        let sample = Sample { outcomes, traffic, control, work: Vec::new(), took_ps, wall_s, ..Sample::default() };
        if iteration >= params.warm_up || sample.is_broken() {
            report.add(&sample)?;
            counted += 1;
        }
        if sample.is_broken() {
            break;
        }
    }
    report.finish(counted, set_up_s)?;
    Ok(report)
}

/// Connects all ranks.
fn connect<'a>(
    connections: &[Connections],
    queues: &[CompletionQueue],
    domain: impl Fn(u32) -> &'a ProtectionDomain,
) -> Result<Vec<Group>, SimError> {
    let (mut pending, mut infos) = (Vec::new(), Vec::new());
    for ((rank, connections), queue) in (0..).zip(connections).zip(queues) {
        let (prepared, info) = connections.prepare(domain(rank), queue).map_err(at(rank))?;
        pending.push(prepared);
        infos.push(info);
    }
    (0..).zip(pending).map(|(rank, pending)| pending.connect(&infos).map_err(at(rank))).collect()
}

/// Has all ranks greet one another, for what is measured are operations. Each has greeted all its peers then, or has
/// failed.
fn greet(provider: &Provider, groups: &mut [Group]) -> Sample {
    let mut outcomes: Vec<Option<Outcome>> = groups.iter().map(|_| None).collect();
    // Each group gives up by itself after its bound.
    while outcomes.iter().any(Option::is_none) {
        let mut is_over = true;
        for (group, outcome) in groups.iter_mut().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
            match group.greet() {
                Ok(has_greeted) => is_over &= has_greeted,
                Err(error) => *outcome = Some(failed(&error)),
            }
        }
        if is_over {
            outcomes.iter_mut().for_each(|outcome| _ = outcome.get_or_insert_default());
        }
        provider.relax().relax();
    }
    Sample { outcomes: outcomes.into_iter().flatten().collect(), ..Sample::default() }
}

/// What is reported of a rank whose operation has failed.
fn failed(error: &Error) -> Outcome {
    Outcome { error: Some(error.to_string()), kind: Some(failure::baseline_kind(error)), ..Outcome::default() }
}

/// A rank's memory.
struct Buffers {
    /// What it contributes, but to a Broadcast.
    send: Option<MemoryRegion>,
    /// What it gets; of a reduction the group has that.
    receive: MemoryRegion,
}

impl Buffers {
    fn new(pd: &ProtectionDomain, params: &SimParams, rank: u32) -> Result<Self, Error> {
        let region = |bytes: u64, access| -> Result<MemoryRegion, Error> {
            Ok(MemoryRegion::register(pd, HostBuffer::zeroed(bytes.max(1) as usize)?, access)?)
        };
        let own = params.counts()[rank as usize];
        let gathers = params.operation != Operation::Broadcast;
        Ok(Self {
            send: gathers.then(|| region(own, Access::LOCAL_WRITE)).transpose()?,
            receive: region(params.receive_bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
        })
    }
}

/// Own bytes in the send buffers, nothing right in the receive buffers.
fn fill(buffers: &[Buffers], params: &SimParams, source: &[u8]) -> Result<(), SimError> {
    let mut wrong = memory::zeroes("what a buffer holds before", params.receive_bytes())?;
    wrong.fill(!source.first().copied().unwrap_or(0));
    let mut offset = 0;
    for ((rank, buffers), count) in (0..).zip(buffers).zip(params.counts()) {
        let write =
            |region: &MemoryRegion, bytes: &[u8]| region.write(0, bytes).map_err(|error| at(rank)(error.into()));
        let own = &source[offset..offset + count as usize];
        offset += count as usize;
        write(&buffers.receive, &wrong)?;
        match &buffers.send {
            Some(send) => write(send, own)?,
            None => write(&buffers.receive, own)?,
        }
    }
    Ok(())
}

/// Control messages that each rank has sent so far.
fn announcements(groups: &[Group]) -> Vec<Control> {
    let of = |group: &Group| Control { announcement: group.statistics().announcements, ..Control::default() };
    groups.iter().map(of).collect()
}

/// Starts an operation on a rank. `ends`: where each rank's contribution ends in all of them.
fn start(group: &mut Group, params: &SimParams, ends: &[u64], buffers: &Buffers) -> Result<(), Error> {
    let elements = params.bytes / u64::from(REDUCTION.element_bytes());
    let whole = |region| Buffer { region, offset: 0 };
    let own = buffers.send.as_ref().map(whole);
    let receive = whole(&buffers.receive);
    match (params.algorithm, params.operation) {
        (Algorithm::Allgather(algorithm), _) => group.allgather(algorithm, Blocks::unequal(ends)?, own, receive),
        (Algorithm::Broadcast { algorithm, segment_bytes }, _) => {
            group.broadcast(algorithm, params.root, params.bytes, segment_bytes, receive)
        }
        (Algorithm::Alltoall(algorithm), _) => {
            let blocks = Blocks::equal(params.bytes, params.ranks)?;
            group.alltoall(algorithm, (own.unwrap_or(receive), blocks), (receive, blocks))
        }
        (Algorithm::ReduceScatter(algorithm), _) => {
            let shares = Blocks::shares(elements, params.ranks)?;
            group.reduce_scatter(algorithm, REDUCTION, shares, own.unwrap_or(receive))
        }
        (Algorithm::Allreduce(algorithm), _) => group.allreduce(algorithm, REDUCTION, elements, own.unwrap_or(receive)),
        (Algorithm::Multicast | Algorithm::Automatic, _) => Ok(()),
    }
}

/// Starts an operation on all ranks, on each when its delay is over, and drives them until all have ended. A rank whose
/// host has not come to its start does not poll.
fn operate(
    provider: &Provider,
    groups: &mut [Group],
    params: &SimParams,
    delays_ps: &[u64],
    buffers: &[Buffers],
    ended: &mut dyn FnMut(u32),
) -> Result<Vec<Outcome>, SimError> {
    let ends: Vec<u64> = params
        .counts()
        .iter()
        .scan(0, |end, count| {
            *end += count;
            Some(*end)
        })
        .collect();
    let mut outcomes: Vec<Option<Outcome>> = groups.iter().map(|_| None).collect();
    let mut posts_ps: Vec<Option<u64>> = groups.iter().map(|_| None).collect();
    let (mut done, start_ps) = (0, provider.relax().now_ps());
    let mut polls = Polls::new((0..params.ranks).map(|rank| params.card_of(rank)));
    loop {
        let now_ps = provider.relax().now_ps();
        for (rank, group) in groups.iter_mut().enumerate() {
            if posts_ps[rank].is_none() && start_ps + delays_ps[rank] <= now_ps {
                start(group, params, &ends, &buffers[rank]).map_err(at(rank as u32))?;
                posts_ps[rank] = Some(now_ps);
            }
        }
        polls.refresh()?;
        for (rank, (group, outcome)) in groups.iter_mut().zip(&mut outcomes).enumerate() {
            let Some(posted_ps) = posts_ps[rank] else { continue };
            if outcome.is_some() || !polls.is_due(rank, now_ps) {
                continue;
            }
            // A poll that was due for news may leave some for the next.
            let news = polls.has_news(rank);
            let error = group.progress().err();
            polls.polled(rank, now_ps, news, group.deadline_ps());
            if error.is_some() || group.is_complete() {
                let took_ps = error.is_none().then_some(now_ps - posted_ps);
                let base = error.as_ref().map_or_else(Outcome::default, failed);
                *outcome = Some(Outcome { posted_ps: Some(posted_ps), took_ps, ..base });
                done += 1;
                ended(done);
            }
        }
        // Each group gives up by itself after its bound.
        if done as usize == groups.len() {
            return Ok(outcomes.into_iter().flatten().collect());
        }
        provider.relax().relax();
    }
}

/// Compares the results of ranks that have ended well; the digest of the first of them.
fn compare(
    params: &SimParams,
    groups: &[Group],
    buffers: &[Buffers],
    expected: &Expected<'_>,
    outcomes: &mut [Outcome],
) -> Result<Option<String>, SimError> {
    let mut sha256 = None;
    let mut bytes = memory::zeroes("a buffer to compare", params.receive_bytes())?;
    let ranks = (0..).zip(buffers).zip(groups).zip(outcomes);
    for (((rank, buffers), group), outcome) in ranks.filter(|(_, outcome)| outcome.error.is_none()) {
        if params.operation.reduces() {
            bytes = group.result().map_err(at(rank))?;
        } else {
            buffers.receive.read(0, &mut bytes).map_err(|error| at(rank)(error.into()))?;
        }
        outcome.equal = Some(bytes == *expected.of(rank));
        sha256.get_or_insert_with(|| digest(&bytes));
    }
    Ok(sha256)
}
