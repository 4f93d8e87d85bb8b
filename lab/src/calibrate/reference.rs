//! Runs of image `reference`, the published receive kernels (Khalilov et al.): the fit's and the hold-outs'.

use emu_machine::timing::{Counts, Parameters};
use emu_machine::with_world;
use serde::Serialize;

use super::CalibrateError;
use super::rig;
use crate::tput::plan::{Params, Plan, Transport};
use crate::tput::report::Report;
use crate::tput::run::{Cards, ImageFile, made_up_bytes, run as run_plan};

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
    pub(super) ring: u32,
}

impl Run {
    /// The published buffer in chunks of 4 KiB.
    pub(super) fn published(transport: Transport, threads: u32) -> Self {
        Self { transport, threads, chunk_bytes: CHUNK_BYTES, bytes: BUFFER_BYTES, ring: Params::default().ring }
    }

    /// Carries it out on a new machine.
    pub(super) fn report(&self, image: &ImageFile, parameters: &Parameters) -> Result<Report, CalibrateError> {
        Ok(self.counted(image, parameters)?.0)
    }

    /// The same, with the accesses of all threads from the machine's beginning on.
    pub(super) fn counted(
        &self,
        image: &ImageFile,
        parameters: &Parameters,
    ) -> Result<(Report, Counts), CalibrateError> {
        let Self { transport, threads, chunk_bytes, bytes, ring } = *self;
        let first_unit = rig::FIRST_UNIT;
        let params = Params { transport, threads, chunk_bytes, ring, first_unit, ..Params::default() };
        let plan = Plan::new(params, bytes)?;
        let provider = rig::provider(parameters, 2)?;
        let cards = Cards::open(&provider, None, None)?;
        let source = made_up_bytes(bytes, params.seed)?;
        let report = run_plan(&cards, image, &plan, &source, &parameters.name, &mut |_| {})?;
        if report.missing > 0 || !report.digest_ok {
            let what = format!("reference, {} x{threads}", transport.name());
            return Err(CalibrateError::Data { what, missing: report.missing, equal: report.digest_ok });
        }
        let counts = with_world(|world| world.card(0).ok().and_then(|card| card.access_counts()))?
            .ok_or(CalibrateError::Untimed)?;
        Ok((report, counts))
    }
}

/// What the kernel executes for each completion, beside what the published one did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    /// Transport.
    pub transport: Transport,
    /// Instructions retired in the drain loop.
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
    /// Lines of code fetched because the core's code cache had lost them, over the whole run.
    pub code_misses: u64,
}

/// Step 2: both kernels on one thread. Accesses are the difference between a run and one of half the chunks, so that what happens once
/// does not count.
pub(super) fn kernels(image: &ImageFile, parameters: &Parameters) -> Result<Vec<KernelRow>, CalibrateError> {
    let mut rows = Vec::new();
    for published in [super::PUBLISHED_UC, super::PUBLISHED_UD] {
        let run = Run::published(published.transport, 1);
        let (report, counts) = run.counted(image, parameters)?;
        let (half, before) = Run { bytes: run.bytes / 2, ..run }.counted(image, parameters)?;
        let chunks = (report.device.cqes - half.device.cqes) as f64;
        let loads = |c: &Counts| c.l1 + c.l2 + c.l3 + c.dpa_memory + c.window - c.code_misses;
        let stores = |c: &Counts| c.store_hits + c.store_new_lines;
        let each = |of: &dyn Fn(&Counts) -> u64| (of(&counts) as f64 - of(&before) as f64) / chunks;
        rows.push(KernelRow {
            transport: published.transport,
            instructions: report.instructions_per_cqe,
            published_instructions: published.instructions,
            loads: each(&loads),
            stores: each(&stores),
            cycles: report.cycles_per_cqe,
            published_cycles: published.cycles,
            code_misses: counts.code_misses,
        });
    }
    Ok(rows)
}
