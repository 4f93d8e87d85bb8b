//! The published receive kernels (image `reference`): their host side, and what a run of them costs.
//!
//! One card receives on its DPA, the host of the other sends. Each worker has a thread, a queue pair and as many
//! receives as chunks, so that its sender need not wait for it. [`spec`] is what is asked for, [`plan`] checks
//! parameters, [`receiver`] and `sender` are the two sides, [`run`](fn@run) puts them together.

pub mod plan;
pub mod receiver;
mod sender;
pub mod spec;
pub mod transport;

use std::time::Instant;

use flexcast_abi::reference::ReferenceReport;
use flexio::{Device, Provider};
use serde::Serialize;

use crate::accesses::{self, Accesses};
use crate::calibrate::bounds::Published;
use crate::memory;
use crate::tput::TputError;
use crate::tput::report::Kind;
use crate::tput::run::{Cards, ImageFile, digest};
pub use flexcast_abi::Transport;
pub use plan::{Params, Plan};
use receiver::Receiver;
use sender::Sender;

/// What was published of a kernel on one thread, 8 MiB in chunks of 4 KiB (Khalilov et al., table I).
pub const PUBLISHED_UC: Published = Published { transport: Transport::Uc, instructions: 66.0, cycles: 598.0 };
/// The same of datagrams.
pub const PUBLISHED_UD: Published = Published { transport: Transport::Ud, instructions: 113.0, cycles: 1084.0 };

/// Longest time in which nothing moves, in picoseconds: what is missing then is lost, which these kernels do not
/// repair.
const QUIET_PS: u64 = 20_000_000_000;
/// Polls between two checks whether the process lives.
const IDLE_POLLS: u32 = 64;

/// Counts of the device, over all workers and iterations that are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Completions consumed.
    pub cqes: u64,
    /// Completions of copies consumed.
    pub copy_cqes: u64,
    /// Instructions from the first completion of an iteration to its end, polls of an empty queue among them.
    pub instructions: u64,
    /// Cycles, likewise.
    pub cycles: u64,
    /// Instructions of polls that found a completion, those of the counters among them; 0 unless counted.
    pub poll_instructions: u64,
    /// Cycles, likewise.
    pub poll_cycles: u64,
    /// Instructions of the loop's body; 0 unless counted.
    pub body_instructions: u64,
    /// Cycles, likewise.
    pub body_cycles: u64,
}

impl Counts {
    fn add(&mut self, report: &ReferenceReport) {
        self.cqes += report.cqes;
        self.copy_cqes += report.copy_cqes;
        self.instructions += report.instructions;
        self.cycles += report.cycles;
        self.poll_instructions += report.poll_instructions;
        self.poll_cycles += report.poll_cycles;
        self.body_instructions += report.body_instructions;
        self.body_cycles += report.body_cycles;
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Its parameters.
    #[serde(flatten)]
    pub params: Params,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Chunks of the buffer.
    pub chunks: u64,
    /// SHA-256 of the bytes, which have all arrived.
    pub sha256: String,
    /// Instructions from the first completion to the last over their number, those of the kernel's own counters among
    /// them.
    pub instructions_per_cqe: f64,
    /// Cycles per completion, likewise.
    pub cycles_per_cqe: f64,
    /// Bytes received per second from the first send posted to the completion flag, in GiB/s.
    pub goodput_gib_s: f64,
    /// The device's counts.
    pub device: Counts,
    /// Which level of memory served accesses; not without a timing model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Accesses>,
    /// Where the figures come from.
    pub kind: Kind,
    /// Cost model behind emulated figures.
    pub model: String,
    /// Wall time of the whole run in seconds, measured.
    pub wall_s: f64,
}

/// Sends `source` from card to card as the plan says.
///
/// # Errors
/// [`TputError`]: also where a chunk is lost, of which these kernels know no repair, and where bytes differ.
pub fn run(cards: &Cards, image: &ImageFile, plan: &Plan, source: &[u8], model: &str) -> Result<Report, TputError> {
    let started = Instant::now();
    let is_virtual = cards.server.provider().relax().is_virtual();
    let (device, span_ps, accesses) = receiver::serve(&cards.server, image, plan, |receiver| {
        sender::connect(&cards.client, plan, source, |sender| {
            receiver.connect(&sender.endpoints(&cards.client))?;
            sender.connect(&receiver.endpoints())?;
            if is_virtual {
                accesses::label(receiver.ranges())?;
            }
            repeat(cards.server.provider(), &cards.server, receiver, sender, plan, source)
        })
    })?;
    let (kind, model) = if is_virtual { (Kind::Emulated, model) } else { (Kind::Measured, "none") };
    let each = |total: u64| if device.cqes == 0 { 0.0 } else { total as f64 / device.cqes as f64 };
    let received_gib = (plan.bytes * u64::from(plan.params.iterations)) as f64 / (1u64 << 30) as f64;
    Ok(Report {
        params: plan.params,
        bytes: plan.bytes,
        chunks: plan.chunks,
        sha256: digest(source),
        instructions_per_cqe: each(device.instructions),
        cycles_per_cqe: each(device.cycles),
        goodput_gib_s: if span_ps == 0 { 0.0 } else { received_gib / (span_ps as f64 * 1e-12) },
        device,
        accesses,
        kind,
        model: model.to_owned(),
        wall_s: started.elapsed().as_secs_f64(),
    })
}

fn repeat(
    provider: &Provider,
    device: &Device,
    receiver: &mut Receiver,
    sender: &mut Sender,
    plan: &Plan,
    source: &[u8],
) -> Result<(Counts, u64, Option<Accesses>), TputError> {
    let clock = provider.relax();
    let is_virtual = clock.is_virtual();
    let (mut counts, mut span_ps, mut accesses) = (Counts::default(), 0, None);
    for iteration in 0..plan.params.warm_up + plan.params.iterations {
        let is_counted = iteration >= plan.params.warm_up;
        receiver.begin()?;
        sender.restart();
        let before = if is_virtual { Accesses::now()? } else { None };
        let begun_ps = clock.now_ps();
        transfer(provider, device, receiver, sender)?;
        let took_ps = clock.now_ps() - begun_ps;
        if is_counted {
            Accesses::add_since(&mut accesses, before.as_ref())?;
            span_ps += took_ps;
        }
        for report in receiver.reports()? {
            if is_counted {
                counts.add(&report);
            }
        }
        let mut received = memory::zeroes("what was received", plan.bytes)?;
        receiver.read_user(&mut received)?;
        if received != source {
            return Err(TputError::Differs { iteration });
        }
    }
    Ok((counts, span_ps, accesses))
}

/// Sends everything once, until the completion flag shows.
fn transfer(provider: &Provider, device: &Device, receiver: &Receiver, sender: &mut Sender) -> Result<(), TputError> {
    let clock = provider.relax();
    let endpoints = receiver.endpoints();
    let (mut moved_ps, mut idle) = (clock.now_ps(), 0_u32);
    while !receiver.is_complete()? {
        let mut moved = sender.reap()? != 0;
        for (worker, endpoint) in endpoints.iter().enumerate() {
            moved |= sender.post_batch(worker, endpoint)? != 0;
        }
        idle = if moved { 0 } else { idle.wrapping_add(1) };
        if idle % IDLE_POLLS == IDLE_POLLS - 1 {
            receiver.check()?;
            if let Some(event) = device.take_async_event()? {
                return Err(TputError::Card { event });
            }
        }
        if moved {
            moved_ps = clock.now_ps();
        } else if clock.now_ps() - moved_ps > QUIET_PS {
            return Err(TputError::Stalled { quiet_us: QUIET_PS / 1_000_000 });
        }
        clock.relax();
    }
    Ok(())
}

/// A table of runs that share kind and model.
#[must_use]
pub fn table(reports: &[Report]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    let time = if reports.iter().any(|report| report.kind == Kind::Measured) { "measured" } else { "emulated" };
    table.set_header([
        "kernel".to_owned(),
        "threads".to_owned(),
        "own counters".to_owned(),
        "chunks".to_owned(),
        "instr/CQE".to_owned(),
        "published".to_owned(),
        "cycles/CQE".to_owned(),
        "published".to_owned(),
        format!("goodput GiB/s ({time})"),
        "wall s".to_owned(),
    ]);
    for report in reports {
        let published = if report.params.transport == Transport::Uc { PUBLISHED_UC } else { PUBLISHED_UD };
        table.add_row([
            transport::name(report.params.transport).to_owned(),
            report.params.threads.to_string(),
            if report.params.counted { "yes" } else { "no" }.to_owned(),
            report.device.cqes.to_string(),
            format!("{:.1}", report.instructions_per_cqe),
            format!("{:.0}", published.instructions),
            format!("{:.0}", report.cycles_per_cqe),
            format!("{:.0}", published.cycles),
            format!("{:.2}", report.goodput_gib_s),
            format!("{:.2}", report.wall_s),
        ]);
    }
    for column in [1, 3, 4, 5, 6, 7, 8, 9] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    table
}
