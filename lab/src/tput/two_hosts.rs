//! The same run between two processes, each with a card of its own: on two computers whose cards are joined, or on
//! emulated cards that share an emulated network. What a process cannot see of the other comes over TCP.

use std::time::{Duration, Instant};

use flexcast::bootstrap::{Exchange as _, TcpStore};
use flexcast::{Buffer, Communicator, Done, Endpoint, Firmware, Test};
use flexio::{CardKind, Provider};
use serde::{Deserialize, Serialize};

use super::TputError;
use super::plan::Plan;
use super::report::{DeviceCounters, Kind, Report, Totals};
use super::run::{ImageFile, RECEIVER, ROOT, Tick, digest};
use crate::agreement::{AgreementError, Options, agree};

/// Longest wait for the card's counters after an operation; if they are not complete by then, they are taken as they
/// are.
const COUNTERS_BOUND: Duration = Duration::from_secs(1);

/// What one process has counted over the measured repetitions, as it sends it to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Half {
    recovered_chunks: u64,
    span_ps: u64,
    data_ps: u64,
    digest_ok: bool,
    device: DeviceCounters,
    sent_chunks: u64,
    send_instructions: u64,
}

/// Options that both processes must have alike, each with its value, and what is sent and run.
#[must_use]
pub fn options(plan: &Plan, image: &ImageFile, source: &[u8], kind: CardKind) -> Options {
    let params = &plan.params;
    [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("kind of card", if kind == CardKind::Emulated { "emulated" } else { "real" }.to_owned()),
        ("--image (SHA-256)", digest(&image.elf)),
        ("--transport", params.transport.name().to_owned()),
        ("--threads", params.threads.to_string()),
        ("--send-threads", params.send_threads.to_string()),
        ("--chunk", params.chunk_bytes.to_string()),
        ("--bytes", plan.bytes.to_string()),
        ("--batch", params.batch.to_string()),
        ("--slots", params.slots.to_string()),
        ("--control", params.control.name().to_owned()),
        ("--iterations", params.iterations.to_string()),
        ("--warm-up", params.warm_up.to_string()),
        ("bytes to send (SHA-256)", digest(source)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Runs this process's half: rank 0 of `store` receives, rank 1 sends. Both get the same report, with times by the
/// receiving process's clock.
///
/// # Errors
/// [`TputError`]: the other process is missing, has other options, refuses or ends; or as for a run in one process.
pub fn run(
    provider: &Provider,
    device: &str,
    image: &ImageFile,
    plan: &Plan,
    source: &[u8],
    store: &mut TcpStore,
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, TputError> {
    let started = Instant::now();
    agree(store, &options(plan, image, source, provider.kind()))?;
    // A process that has no card, or too few threads free, lets the other know.
    let opened = Endpoint::open(provider, device, Firmware { name: &image.name, elf: &image.elf });
    let endpoint = opened.inspect_err(|error| store.refuse(&error.to_string()))?;
    let communicator = Communicator::create(&endpoint, store, plan.params.config(plan.bytes))?;
    let outcome = repeat(provider, &endpoint, &communicator, plan, source, store, tick);
    let own = outcome.inspect_err(|error| store.refuse(&error.to_string()))?;
    let text = serde_json::to_vec(&own).unwrap_or_default();
    let halves = meet(provider, &communicator, store, "flexcast tput figures", &text)?;
    let read = |rank: u32| {
        let bytes = halves.get(rank as usize).map_or(&[][..], Vec::as_slice);
        serde_json::from_slice::<Half>(bytes).map_err(|_| TputError::Figures { rank })
    };
    let (receiver, root) = (read(RECEIVER)?, read(ROOT)?);
    let totals = Totals {
        recovered_chunks: receiver.recovered_chunks,
        span_ps: receiver.span_ps,
        data_ps: receiver.data_ps,
        digest_ok: receiver.digest_ok,
        device: receiver.device,
        sent_chunks: root.sent_chunks,
        send_instructions: root.send_instructions,
        accesses: None,
    };
    let model = if provider.kind() == CardKind::Emulated { "wall clock of the emulator" } else { "none" };
    Ok(Report::new(plan, &totals, digest(source), Kind::Measured, model, started.elapsed().as_secs_f64()))
}

fn repeat(
    provider: &Provider,
    endpoint: &Endpoint,
    communicator: &Communicator,
    plan: &Plan,
    source: &[u8],
    store: &mut TcpStore,
    tick: &mut dyn FnMut(Tick),
) -> Result<Half, TputError> {
    let receives = communicator.rank() == RECEIVER;
    let mut half = Half { digest_ok: true, ..Half::default() };
    let mut buffer = endpoint.buffer(source.len())?;
    for repetition in 0..plan.runs() {
        if receives {
            buffer.fill(!source.first().copied().unwrap_or(0));
        } else {
            buffer.write(0, source)?;
        }
        // Both begin together, so that the time of an operation has no wait for the other's preparation in it.
        meet(provider, communicator, store, &format!("flexcast tput {repetition}"), &[])?;
        let before = communicator.receive_statistics()?;
        let posts = communicator.send_statistics()?;
        let done = operate(provider, communicator, buffer)?;
        if receives {
            half.digest_ok &= done.receive.to_vec()? == source;
        }
        if repetition >= plan.params.warm_up {
            let phases = done.report.phases.in_ps();
            let over_ps = phases.released_ps.unwrap_or(phases.posted_ps);
            half.span_ps += over_ps.saturating_sub(phases.posted_ps);
            half.data_ps += phases.complete_ps.zip(phases.ready_ps).map_or(0, |(end, begin)| end.saturating_sub(begin));
            half.recovered_chunks += done.report.recovered_chunks;
            if receives {
                // What an operation has counted is there a moment after its end.
                let (own, started) = (plan.chunks.saturating_sub(done.report.recovered_chunks), Instant::now());
                while communicator.receive_statistics()?.cqes < before.cqes + own && started.elapsed() < COUNTERS_BOUND
                {
                    communicator.progress()?;
                    provider.relax().relax();
                }
            }
            half.device.add(&before, &communicator.receive_statistics()?);
            let now = communicator.send_statistics()?;
            half.sent_chunks += now.posted - posts.posted;
            half.send_instructions += now.loop_instructions - posts.loop_instructions;
        }
        buffer = done.receive;
        tick(Tick { ended: repetition + 1, repetitions: plan.runs() });
    }
    Ok(half)
}

/// Posts and polls until this rank's part has ended, which the library bounds.
fn operate(provider: &Provider, communicator: &Communicator, buffer: Buffer) -> Result<Done, TputError> {
    let mut request = communicator.broadcast(buffer, ROOT).map_err(|refused| refused.error)?;
    loop {
        match request.test().map_err(|failed| failed.error)? {
            Test::Done(done) => return Ok(done),
            Test::Pending(pending) => request = pending,
        }
        provider.relax().relax();
    }
}

/// Exchanges over TCP, within the store's bound, and meanwhile goes on with what the other rank may still need of this
/// one.
fn meet(
    provider: &Provider,
    communicator: &Communicator,
    store: &mut TcpStore,
    tag: &str,
    own: &[u8],
) -> Result<Vec<Vec<u8>>, TputError> {
    std::thread::scope(|scope| {
        let exchange = scope.spawn(move || store.exchange(tag, own));
        while !exchange.is_finished() {
            communicator.progress()?;
            provider.relax().relax();
            std::thread::yield_now();
        }
        let ended = exchange.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended.map_err(|error| TputError::Peer(AgreementError::Exchange(error)))
    })
}
