//! Runs of the throughput harness.

use std::path::Path;

use emu_config::{Machine, Timing};
use serde::Serialize;

use super::{CABLE_GBIT_PER_S, link_goodput, read_image, text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::TputSweep;
use crate::tput::plan::{Params, Plan, Transport};
use crate::tput::run::{Cards, made_up_bytes, run as run_plan};

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TputPoint {
    /// Image by name.
    pub image: String,
    /// Transport.
    pub transport: Transport,
    /// Receive workers.
    pub threads: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Receives that each worker has posted.
    pub ring: u32,
    /// Bytes to send.
    pub bytes: u64,
    /// Seed of the bytes.
    pub seed: u64,
    /// Repetitions that are not counted.
    pub warm_up: u32,
    /// Repetitions that are.
    pub iterations: u32,
}

impl TputPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &TputSweep) -> Vec<Self> {
        let TputSweep { warm_up, iterations, .. } = *sweep;
        let mut points = Vec::new();
        for image in &sweep.images {
            for &transport in &sweep.transports {
                for &bytes in &sweep.bytes {
                    for &chunk_bytes in &sweep.chunk_bytes {
                        for &ring in &sweep.ring {
                            for &threads in &sweep.threads {
                                points.extend(sweep.seeds.iter().map(|&seed| Self {
                                    image: image.clone(),
                                    transport,
                                    threads,
                                    chunk_bytes,
                                    ring,
                                    bytes,
                                    seed,
                                    warm_up,
                                    iterations,
                                }));
                            }
                        }
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
        let staging = u64::from(self.threads) * u64::from(self.ring) * (self.chunk_bytes + 64);
        (128 << 20) + 4 * self.bytes + staging
    }

    pub(super) fn command(&self) -> String {
        let Self { image, transport, threads, chunk_bytes, ring, bytes, seed, warm_up, iterations } = self;
        let ring = if *ring == Params::default().ring { String::new() } else { format!(" --ring {ring}") };
        format!(
            "flexcast tput --image target/device/emu/{image}.elf --transport {} --threads {threads} --chunk {chunk_bytes}{ring} \
             --bytes {bytes} --seed {seed} --warm-up {warm_up} --iterations {iterations}",
            transport.name()
        )
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str) -> Row {
        let Self { transport, threads, chunk_bytes, ring, bytes, seed, .. } = *self;
        Row::new(Kind::Emulated, model)
            .with("image", self.image.as_str())
            .with("transport", transport.name())
            .with("threads", threads)
            .with("chunk_bytes", chunk_bytes)
            .with("ring", ring)
            .with("bytes", bytes)
            .with("seed", seed)
    }

    fn with_staging(&self, row: Row) -> Row {
        match self.transport {
            Transport::Uc => row,
            Transport::Ud => {
                row.with("staging_kib", u64::from(self.threads) * u64::from(self.ring) * self.chunk_bytes / 1024)
            }
        }
    }

    pub(super) fn asked(&self) -> Row {
        self.with_staging(self.parameters(""))
    }

    pub(super) fn run(&self, images: &Path, timing: &Timing) -> Result<Row, String> {
        let Self { transport, threads, chunk_bytes, ring, bytes, seed, warm_up, iterations, .. } = *self;
        let params = Params { transport, threads, chunk_bytes, ring, iterations, warm_up, seed, ..Params::default() };
        let plan = Plan::new(params, bytes).map_err(text)?;
        let machine = Machine { seed: Some(seed), timing: timing.clone(), ..Machine::default() };
        let config = machine.config().map_err(text)?;
        let model = config.model_name().to_owned();
        let provider = emu_provider::emulated(config).map_err(text)?;
        let cards = Cards::open(&provider, None, None).map_err(text)?;
        let file = read_image(images, &self.image)?;
        plan.check_memory().map_err(text)?;
        let source = made_up_bytes(bytes, seed).map_err(text)?;
        let report = run_plan(&cards, &file, &plan, &source, &model, &mut |_| {}).map_err(text)?;
        if !report.digest_ok || report.missing > 0 {
            let (missing, equal) = (report.missing, report.digest_ok);
            return Err(format!("{missing} chunks are missing, bytes that arrived equal: {equal}"));
        }
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
            .with("cqes", report.device.cqes)
            .with("activations", report.device.activations)
            .with("duplicates", report.device.duplicates);
        Ok(with_accesses(self.with_staging(row), report.accesses.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::point::Point;

    #[test]
    fn a_sweep_is_every_combination() {
        let sweep = TputSweep {
            images: vec!["reference".to_owned(), "receive".to_owned()],
            transports: vec![Transport::Uc, Transport::Ud],
            threads: vec![1, 2, 4],
            chunk_bytes: vec![4096],
            ring: vec![256],
            bytes: vec![8 << 20],
            seeds: vec![1],
            warm_up: 1,
            iterations: 1,
        };
        let points = TputPoint::all(&sweep);
        assert_eq!(points.len(), 12);
        let model = Timing::of("m1");
        assert_eq!(
            Point::Tput(points[11].clone()).command(&model),
            "flexcast tput --image target/device/emu/receive.elf --transport ud --threads 4 --chunk 4096 --bytes 8388608 --seed 1 \
             --warm-up 1 --iterations 1 --model m1 --json"
        );
        let small = &TputPoint::all(&TputSweep { chunk_bytes: vec![64], ring: vec![1024], ..sweep })[0];
        assert!(points[0].weight() < small.weight());
        assert!(small.command().contains(" --chunk 64 --ring 1024 "), "{}", small.command());
    }
}
