//! Runs of image `reference`, the published receive kernels (Khalilov et al.): the fit's and the hold-outs'.

use emu_machine::timing::{Counts, Parameters};
use emu_machine::with_world;
use serde::Serialize;

use super::CalibrateError;
use super::fixture;
use crate::reference::{self, Params, Plan, Report, Transport};
use crate::tput::run::{Cards, ImageFile, made_up_bytes};

/// The published buffer and chunk size.
pub(super) const BUFFER_BYTES: u64 = 8 << 20;
/// The same of a chunk.
pub(super) const CHUNK_BYTES: u64 = 4096;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) transport: Transport,
    pub(super) threads: u32,
    pub(super) chunk_bytes: u64,
    pub(super) bytes: u64,
    /// Whether the kernel has its own counters in it.
    pub(super) counted: bool,
}

impl Run {
    /// The published buffer in chunks of 4 KiB, with the prototype's counters in the kernel: published cycles and
    /// throughput of one thread agree to 4 %, so both are of that build, and the curves by threads go through the same
    /// throughput.
    pub(super) fn published(transport: Transport, threads: u32) -> Self {
        Self { transport, threads, chunk_bytes: CHUNK_BYTES, bytes: BUFFER_BYTES, counted: true }
    }

    /// Carries it out on a new machine.
    pub(super) fn report(&self, image: &ImageFile, parameters: &Parameters) -> Result<Report, CalibrateError> {
        Ok(self.with_accesses(image, parameters)?.0)
    }

    /// The same, with the accesses of all threads from the machine's beginning on.
    pub(super) fn with_accesses(
        &self,
        image: &ImageFile,
        parameters: &Parameters,
    ) -> Result<(Report, Counts), CalibrateError> {
        let Self { transport, threads, chunk_bytes, bytes, counted } = *self;
        let first_unit = fixture::FIRST_UNIT;
        // The second buffer is counted: rings, copies and code are where they are in a run of many.
        let params = Params { transport, threads, chunk_bytes, counted, first_unit, warm_up: 1, ..Params::default() };
        let plan = Plan::new(params, bytes).map_err(crate::tput::TputError::from)?;
        let provider = fixture::provider(parameters, 2)?;
        let cards = Cards::open(&provider, None, None)?;
        let source = made_up_bytes(bytes, params.seed)?;
        let report = reference::run(&cards, image, &plan, &source, &parameters.name)?;
        let counts = with_world(|world| world.card(0).ok().and_then(|card| card.access_counts()))?
            .ok_or(CalibrateError::Untimed)?;
        Ok((report, counts))
    }
}

/// What the kernel executes for each completion, and what the published one did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    /// Transport.
    #[serde(serialize_with = "crate::reference::transport::serialize")]
    pub transport: Transport,
    /// Whether with the prototype's own counters.
    pub counted: bool,
    /// Instructions retired from the first completion to the last.
    pub instructions: f64,
    /// Published instructions.
    pub published_instructions: f64,
    /// Loads, and atomic operations.
    pub loads: f64,
    /// Stores.
    pub stores: f64,
    /// Cycles.
    pub cycles: f64,
    /// Published cycles.
    pub published_cycles: f64,
    /// Instructions of the loop's body alone, as the kernel counts them; 0 without its counters.
    pub body_instructions: f64,
    /// Cycles, likewise.
    pub body_cycles: f64,
    /// Lines of code fetched because the core's code cache had lost them, over the whole run.
    pub code_misses: u64,
}

/// Step 2: both kernels on one thread. Accesses are the difference between a run and one of half the chunks, so that
/// what happens once does not count.
pub(super) fn kernels(image: &ImageFile, parameters: &Parameters) -> Result<Vec<KernelRow>, CalibrateError> {
    let mut rows = Vec::new();
    for (published, counted) in
        [super::PUBLISHED_UC, super::PUBLISHED_UD].into_iter().flat_map(|kernel| [(kernel, true), (kernel, false)])
    {
        let run = Run { counted, ..Run::published(published.transport, 1) };
        let (report, counts) = run.with_accesses(image, parameters)?;
        let (half, before) = Run { bytes: run.bytes / 2, ..run }.with_accesses(image, parameters)?;
        let chunks = (report.device.cqes - half.device.cqes) as f64;
        let loads = |c: &Counts| c.l1 + c.l2 + c.l3 + c.dpa_memory + c.window - c.code_misses;
        let stores = |c: &Counts| c.store_hits + c.store_new_lines;
        let each = |of: &dyn Fn(&Counts) -> u64| (of(&counts) as f64 - of(&before) as f64) / chunks;
        rows.push(KernelRow {
            transport: published.transport,
            counted,
            instructions: report.instructions_per_cqe,
            published_instructions: published.instructions,
            loads: each(&loads),
            stores: each(&stores),
            cycles: report.cycles_per_cqe,
            published_cycles: published.cycles,
            body_instructions: report.device.body_instructions as f64 / report.device.cqes.max(1) as f64,
            body_cycles: report.device.body_cycles as f64 / report.device.cqes.max(1) as f64,
            code_misses: counts.code_misses,
        });
    }
    Ok(rows)
}
