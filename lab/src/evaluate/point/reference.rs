//! Runs of the published kernels.

use emu_config::{Machine, Timing};
use serde::Serialize;

use super::{CABLE_GBIT_PER_S, link_goodput, text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::{ReferenceSweep, amounts};
use crate::images::Images;
use crate::reference::{self, Params, Plan, Transport};
use crate::tput::run::{Cards, made_up_bytes};

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReferencePoint {
    /// Transport.
    pub transport: Transport,
    /// Receive workers.
    pub threads: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes to send.
    pub bytes: u64,
    /// Seed of the bytes.
    pub seed: u64,
    /// Iterations that are not counted.
    pub warm_up: u32,
    /// Iterations that are.
    pub iterations: u32,
}

impl ReferencePoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &ReferenceSweep) -> Vec<Self> {
        let ReferenceSweep { warm_up, iterations, .. } = *sweep;
        let mut points = Vec::new();
        for &transport in &sweep.transports {
            for &chunk_bytes in &sweep.chunk_bytes {
                for &threads in &sweep.threads {
                    for bytes in amounts(&sweep.bytes, &sweep.chunks_per_thread, threads, chunk_bytes) {
                        let point = |&seed| Self { transport, threads, chunk_bytes, bytes, seed, warm_up, iterations };
                        points.extend(sweep.seeds.iter().map(point));
                    }
                }
            }
        }
        points
    }

    pub(super) fn weight(&self) -> u64 {
        let Self { chunk_bytes, bytes, warm_up, iterations, .. } = *self;
        2 * u64::from(warm_up + iterations) * (bytes / chunk_bytes.max(1) + bytes / 4096)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // Two cards, the bytes on both sides and once more to compare, staging slots.
        (128 << 20) + 6 * self.bytes
    }

    pub(super) fn command(&self) -> String {
        let Self { transport, threads, chunk_bytes, bytes, seed, warm_up, iterations } = self;
        format!(
            "flexcast reference --transport {} --threads {threads} --chunk {chunk_bytes} --bytes {bytes} --seed {seed} --warm-up {warm_up} \
             --iterations {iterations}",
            transport.name()
        )
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str) -> Row {
        let Self { transport, threads, chunk_bytes, bytes, seed, .. } = *self;
        Row::new(Kind::Emulated, model)
            .with("image", "reference")
            .with("transport", transport.name())
            .with("threads", threads)
            .with("chunk_bytes", chunk_bytes)
            .with("bytes", bytes)
            .with("seed", seed)
    }

    pub(super) fn asked(&self) -> Row {
        self.parameters("")
    }

    pub(super) fn run(&self, images: &Images, timing: &Timing) -> Result<Row, String> {
        let Self { transport, threads, chunk_bytes, bytes, seed, warm_up, iterations } = *self;
        let params = Params { transport, threads, chunk_bytes, iterations, warm_up, seed, ..Params::default() };
        let plan = Plan::new(params, bytes).map_err(text)?;
        let machine = Machine { seed: Some(seed), timing: timing.clone(), ..Machine::default() };
        let config = machine.config().map_err(text)?;
        let model = config.model_name().to_owned();
        let provider = emu_provider::emulated(config).map_err(text)?;
        let cards = Cards::open(&provider, None, None).map_err(text)?;
        let image = images.read("reference").map_err(text)?;
        plan.check_memory().map_err(text)?;
        let source = made_up_bytes(bytes, seed).map_err(text)?;
        let report = reference::run(&cards, &image, &plan, &source, &model).map_err(text)?;
        let gbit_per_s = report.goodput_gib_s * f64::from(1 << 30) * 8.0 / 1e9;
        let row = self
            .parameters(&model)
            .with("goodput_gib_s", report.goodput_gib_s)
            .with("goodput_gbit_s", gbit_per_s)
            .with("link_percent", 100.0 * gbit_per_s / link_goodput(transport, chunk_bytes, CABLE_GBIT_PER_S))
            .with("chunks_m_s", gbit_per_s * 1e3 / 8.0 / chunk_bytes as f64)
            .with("instructions_per_cqe", report.instructions_per_cqe)
            .with("cycles_per_cqe", report.cycles_per_cqe)
            .with("instructions_per_cycle", report.instructions_per_cqe / report.cycles_per_cqe)
            .with("cqes", report.device.cqes);
        Ok(with_accesses(row, report.accesses.as_ref()))
    }
}
