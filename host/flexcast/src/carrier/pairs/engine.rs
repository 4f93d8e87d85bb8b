//! Collectives between pairs of ranks in the engine of a carrier over an RDMA card: begin, progress and end.

use flexcast_proto::{Algorithm, Cause, FailureCode};

use super::setup::Connecting;
use super::sparse::Need;
use super::{News, Pairs, Refusal, SetupOperation, Way, Work};
use crate::engine::end::WIND_UP_PS;
use crate::engine::event::Event;
use crate::engine::operation::Purpose as _;
use crate::engine::{Carrier, Engine, Exchange, Operation, Operations, Posted, Protocol as _, State};
use crate::error::Result;
use crate::op::collective::Collective;
use crate::op::config::ps;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed};
use crate::op::sparse_cost::Densities;
use crate::op::tuning::Tuning;
use crate::plan::tuner::Conditions;

/// A carrier whose ranks have connections between them.
pub(crate) trait PairCarrier: Carrier<Purpose = Option<Box<SetupOperation>>, Work = Work> {
    fn pairs(&self) -> &Pairs;

    fn pairs_mut(&mut self) -> &mut Pairs;

    fn conditions(&self) -> &Conditions;
}

/// How a collective goes.
fn decide<C: PairCarrier>(engine: &Engine<C>, collective: &Collective) -> Decision {
    let (table, is_ordered) = (Tuning::between_pairs(), engine.ops.core.config.reproducible);
    engine.carrier.conditions().decide_collective(table, collective, is_ordered, &Densities::default())
}

/// Begins a collective, or what has to come before it.
///
/// # Errors
/// It cannot be carried: with its buffers.
pub(crate) fn begin_collective<C: PairCarrier>(
    engine: &mut Engine<C>,
    posted: Posted<Collective>,
    now_ps: u64,
) -> Result<(), Box<Failed>> {
    let decision = decide(engine, &posted.plan);
    let (pairs, config) = (engine.carrier.pairs(), &engine.ops.core.config);
    let is_barrier = posted.plan == Collective::Barrier;
    let need = pairs.need(&posted.plan, decision.algorithm(), config);
    if is_barrier || pairs.needs_connections(need.as_ref()) {
        let (posted, setup) = pairs.setup(posted, &decision, config)?;
        return begin_setup(engine, posted, setup, now_ps);
    }
    if need.is_some() && engine.carrier.conditions().ranks > 1 {
        // Its messages do not say what is called: the barrier does.
        let what = (posted.plan.kind().name(), posted.plan.summary(decision.algorithm()));
        let (posted, setup) = pairs.synchronization(posted, what, config)?;
        return begin_setup(engine, posted, setup, now_ps);
    }
    start_collective(engine, posted, now_ps)
}

/// Begins a setup operation.
fn begin_setup<C: PairCarrier>(
    engine: &mut Engine<C>,
    posted: Posted,
    setup: Box<SetupOperation>,
    now_ps: u64,
) -> Result<(), Box<Failed>> {
    let decision = match setup.is_barrier() {
        true => Decision::of(Algorithm::Eager),
        // Connections may be what it makes.
        false => engine.carrier.conditions().without_connections().decide(&posted.plan.shape(), true),
    };
    engine.begin_blocks(posted, decision, Some(setup), now_ps)
}

/// Begins a collective whose connections are there.
fn start_collective<C: PairCarrier>(
    engine: &mut Engine<C>,
    posted: Posted<Collective>,
    now_ps: u64,
) -> Result<(), Box<Failed>> {
    let decision = decide(engine, &posted.plan);
    let Engine { carrier, ops, .. } = engine;
    let need = carrier.pairs().need(&posted.plan, decision.algorithm(), &ops.core.config);
    let decision = decision.with_aggregation(need.as_ref().map(Need::aggregation));
    let decision = decision.with_fixed_point(need.as_ref().and_then(Need::fixed_point));
    let summary = posted.plan.summary(decision.algorithm());
    let (work, foreign_bytes) = match carrier.pairs_mut().bind(&posted.plan, summary, need) {
        Ok(bound) => bound,
        Err(error) => return Err(posted.refuse(error)),
    };
    let posted = posted.map(|collective| (collective.kind().name(), Work::new(collective, work)));
    let bound_ps = ps(ops.core.config.recovery_timeout);
    ops.begin_exchange(posted, (summary, decision), (bound_ps, foreign_bytes), now_ps);
    carrier.wake();
    // What has come early may differ: then nothing is sent.
    if let Err(error) = engine.carry_out(now_ps) {
        engine.ops.core.set_fault(error);
    }
    let Engine { carrier, ops, .. } = engine;
    if let Some(exchange) = ops.exchange.as_mut() {
        let news = carrier.pairs_mut().start(exchange, now_ps);
        take_news(ops, news, now_ps);
    }
    Ok(())
}

fn take_news<C: PairCarrier>(ops: &mut Operations<C>, news: News, now_ps: u64) -> bool {
    let any = news.iter().any(Option::is_some);
    news.into_iter().flatten().for_each(|event| ops.protocol.handle(now_ps, event));
    any
}

/// Moves the collective on that is under way. Returns whether anything has happened.
pub(crate) fn poll<C: PairCarrier>(engine: &mut Engine<C>, now_ps: u64) -> bool {
    let Engine { carrier, ops, .. } = engine;
    let Some(exchange) = ops.exchange.as_mut() else { return false };
    let deadline_ps = exchange.deadline_ps;
    let news = carrier.pairs_mut().poll(exchange, now_ps);
    let any = take_news(ops, news, now_ps);
    ops.protocol.handle(now_ps, Event::Time);
    any || now_ps >= deadline_ps
}

/// Whether the exchange under way, which is over or has failed, may end. `is_waiting`: messages wait for room in a
/// queue of the card. `is_quiet`: all that this rank has sent is acknowledged.
pub(crate) fn may_end<C: PairCarrier>(ops: &Operations<C>, (is_waiting, is_quiet): (bool, bool), now_ps: u64) -> bool {
    // The caller may stay away for long once it has ended.
    if ops.core.broken.is_none() && is_waiting {
        return false;
    }
    // Others must know why this rank goes before they see that it has gone.
    let is_late = |exchange: &Exchange<C>| now_ps.saturating_sub(exchange.ended_ps) > WIND_UP_PS;
    let may_end = |exchange: &Exchange<C>| exchange.state == State::Released || is_quiet || is_late(exchange);
    ops.exchange.as_ref().is_some_and(may_end)
}

/// Ends an operation of blocks that has gone well. What a setup operation was run for goes on, or is done.
pub(crate) fn finish<C: PairCarrier>(engine: &mut Engine<C>, operation: Operation<C>, now_ps: u64) {
    let Operation { request, send, receive, mut report, purpose, .. } = operation;
    let requests = engine.ops.core.requests.clone();
    let Some(setup) = purpose else {
        return requests.finish(request, Ok(Done { send, receive, report }));
    };
    // A failure that came together with the setup operation's end has found no collective that it could end: none
    // begins.
    if let Some(failure) = requests.broken()
        && !matches!(setup.way, Way::Barrier)
    {
        report.failure = Some(failure);
        let error = requests.failed(setup.name, failure, None);
        return requests.finish(request, Err(Some(setup).refuse(Failed { error, send: None, receive: None, report })));
    }
    let SetupOperation { name, summary, way } = *setup;
    let failed = match way {
        Way::Barrier => {
            report.decision = Decision::of(Algorithm::Dissemination);
            return requests.finish(request, Ok(Done { send, receive, report }));
        }
        Way::Synchronize(posted) => match start_collective(engine, *posted, now_ps) {
            Ok(()) => return,
            Err(failed) => failed,
        },
        Way::Connect(connecting) => {
            let Connecting { pending, need, posted } = *connecting;
            match engine.carrier.pairs_mut().connect(pending, &receive, need.as_ref()) {
                Ok(()) => {
                    let synchronization =
                        engine.carrier.pairs().synchronization(posted, (name, summary), &engine.ops.core.config);
                    match synchronization.and_then(|(posted, setup)| begin_setup(engine, posted, setup, now_ps)) {
                        Ok(()) => return,
                        Err(failed) => failed,
                    }
                }
                Err(Refusal::Everywhere(error)) => return requests.finish(request, Err(posted.refuse(error))),
                Err(Refusal::Here(error)) => posted.refuse(error),
            }
        }
    };
    requests.finish(request, Err(failed));
    engine.fail_here(Cause::Device(FailureCode::NotStarted));
}
