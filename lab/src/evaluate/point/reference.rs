//! Runs of the published kernels.

use emu_config::{Machine, Timing};
use serde::Serialize;

use super::{CABLE_GBIT_PER_S, link_goodput, text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::Pair;
use crate::images::Images;
use crate::reference::spec::ReferenceSpec;
use crate::reference::{self, Plan, transport};
use crate::tput::run::{Cards, made_up_bytes};

/// A run: what `flexcast reference` is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReferencePoint {
    /// What.
    pub spec: ReferenceSpec,
}

impl ReferencePoint {
    /// The run of a combination.
    #[must_use]
    pub fn of(pair: Pair) -> Self {
        let Pair { transport, threads, chunk_bytes: chunk, bytes, seed, warm_up, iterations, .. } = pair;
        let seed = Some(seed);
        Self {
            spec: ReferenceSpec { transport, threads, chunk, bytes, seed, warm_up, iterations, ..Default::default() },
        }
    }

    pub(super) fn weight(&self) -> u64 {
        let ReferenceSpec { chunk, bytes, warm_up, iterations, .. } = self.spec;
        2 * u64::from(warm_up + iterations) * (bytes / chunk.max(1) + bytes / 4096)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // Two cards, the bytes on both sides and once more to compare, staging slots.
        (128 << 20) + 6 * self.spec.bytes
    }

    pub(super) fn command(&self) -> String {
        self.spec.command()
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str) -> Row {
        let ReferenceSpec { transport, threads, chunk, bytes, seed, .. } = self.spec;
        Row::new(Kind::Emulated, model)
            .with("image", "reference")
            .with("transport", transport::name(transport))
            .with("threads", threads)
            .with("chunk_bytes", chunk)
            .with("bytes", bytes)
            .with("seed", seed.unwrap_or_default())
    }

    pub(super) fn asked(&self) -> Row {
        self.parameters("")
    }

    pub(super) fn run(&self, images: &Images, timing: &Timing) -> Result<Row, String> {
        let ReferenceSpec { transport, chunk: chunk_bytes, bytes, seed, .. } = self.spec;
        let machine = Machine { seed, timing: timing.clone(), ..Machine::default() };
        let seed = seed.unwrap_or_default();
        let plan = Plan::new(self.spec.params(seed), bytes).map_err(text)?;
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
