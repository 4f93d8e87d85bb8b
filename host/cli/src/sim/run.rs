//! One simulation: make the group, run its operations, compare every buffer.

use std::time::Instant;

use flexcast::{Buffer, Card, Communicator, Done, Request, Test};
use flexio::Provider;

use super::params::{Operation, SimParams};
use super::report::{Outcome, Report};
use super::{SimError, group};
use crate::tput::run::{ImageFile, made_up_bytes};

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
#[must_use]
pub fn source(params: &SimParams) -> Vec<u8> {
    made_up_bytes(params.receive_bytes(), params.seed)
}

/// Runs what `params` say on the calling thread's emulated machine, which `provider` reaches. `source`: see [`source`].
///
/// # Errors
/// [`SimError`]; operations that fail are part of the report instead.
pub fn run(
    provider: &Provider,
    image: &ImageFile,
    params: &SimParams,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, SimError> {
    params.check()?;
    let started = Instant::now();
    let cards = group::open_cards(provider, params.cards(), image)?;
    let mut ranks = group::communicators(&cards, params.ranks, params.ranks_per_card, &params.config)?;
    tick(Tick::Ready);
    let set_up_s = started.elapsed().as_secs_f64();
    let mut report = Report::new(params, &ranks);
    for iteration in 0..params.iterations {
        let before = Traffic::now(provider)?;
        let started = Instant::now();
        let start_ps = provider.relax().now_ps();
        let done =
            operate(provider, &cards, &mut ranks, params, source, &mut |ranks| tick(Tick::Ended { iteration, ranks }))?;
        let took_ps = provider.relax().now_ps() - start_ps;
        let traffic = Traffic::now(provider)?.since(&before);
        let outcomes = done.iter().zip(0..).map(|(done, rank)| outcome(params, source, rank, done));
        let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
        report.add(&outcomes, &traffic, start_ps, took_ps, started.elapsed().as_secs_f64());
    }
    report.finish(&ranks, set_up_s)?;
    Ok(report)
}

pub use super::report::Traffic;

/// Posts one operation on all ranks and drives them until all have ended.
fn operate<'c>(
    provider: &Provider,
    cards: &'c [Card<'c>],
    ranks: &mut [Communicator<'c>],
    params: &SimParams,
    source: &[u8],
    ended: &mut dyn FnMut(u32),
) -> Result<Vec<Box<Done<'c>>>, SimError> {
    let counts = params.counts();
    let total = params.receive_bytes() as usize;
    let at = |rank: u32| move |source: flexcast::Error| SimError::Rank { rank, source };
    let mut requests: Vec<Option<Request>> = Vec::with_capacity(ranks.len());
    let mut offset = 0;
    for (rank, communicator) in (0u32..).zip(ranks.iter_mut()) {
        let card = &cards[(rank / params.ranks_per_card) as usize];
        let count = counts[rank as usize] as usize;
        let own = &source[offset..offset + count];
        offset += count;
        let filled = |bytes: &[u8]| -> flexcast::Result<Buffer<'c>> {
            let mut buffer = card.buffer(bytes.len())?;
            buffer.write(0, bytes)?;
            Ok(buffer)
        };
        let request = match params.operation {
            Operation::Broadcast => {
                let buffer = if rank == params.root { filled(own) } else { card.buffer(total) }.map_err(at(rank))?;
                communicator.broadcast(buffer, params.root)
            }
            Operation::Allgather | Operation::Allgatherv => {
                let send = filled(own).map_err(at(rank))?;
                let receive = card.buffer(total).map_err(at(rank))?;
                match params.operation {
                    Operation::Allgatherv => communicator.allgatherv(send, receive, &counts),
                    _ => communicator.allgather(send, receive),
                }
            }
        };
        requests.push(Some(request.map_err(|refused| at(rank)(refused.error))?));
    }
    let mut done: Vec<Option<Box<Done<'c>>>> = ranks.iter().map(|_| None).collect();
    let mut left = ranks.len();
    let begun_ps = provider.relax().now_ps();
    let bound_ps = params.config.patience_ps.saturating_mul(4).saturating_add(100_000_000_000_000);
    while left > 0 {
        for (rank, communicator) in ranks.iter_mut().enumerate() {
            let Some(request) = requests[rank].take() else {
                // Neighbours may still need it.
                communicator.progress().map_err(at(rank as u32))?;
                continue;
            };
            match communicator.test(request).map_err(at(rank as u32))? {
                Test::Pending(request) => requests[rank] = Some(request),
                Test::Done(finished) => {
                    done[rank] = Some(finished);
                    left -= 1;
                    ended((ranks_done(&done)) as u32);
                }
            }
        }
        if left > 0 && provider.relax().now_ps() - begun_ps > bound_ps {
            let rank = requests.iter().position(Option::is_some).unwrap_or(0) as u32;
            return Err(SimError::Hang { rank, operation: params.operation.name(), bound_us: bound_ps / 1_000_000 });
        }
        provider.relax().relax();
    }
    Ok(done.into_iter().flatten().collect())
}

fn ranks_done(done: &[Option<Box<Done<'_>>>]) -> usize {
    done.iter().flatten().count()
}

/// Compares a rank's buffer with what was sent.
fn outcome(params: &SimParams, source: &[u8], rank: u32, done: &Done<'_>) -> Result<Outcome, SimError> {
    let _ = params;
    let equal = match (&done.result, &done.receive) {
        (Ok(()), Some(buffer)) => Some(buffer.to_vec().map_err(|source| SimError::Rank { rank, source })? == source),
        _ => None,
    };
    let error = done.result.as_ref().err().map(ToString::to_string);
    Ok(Outcome { equal, error, report: done.report })
}
