//! Runs of the throughput harness.

use emu_config::{Machine, Timing};
use serde::Serialize;

use super::{CABLE_GBIT_PER_S, link_goodput, text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::{TputSweep, amounts};
use crate::images::Images;
use crate::reference::Transport;
use crate::tput::plan::{Params, Plan};
use crate::tput::report::transport_name;
use crate::tput::run::{made_up_bytes, names, run as run_plan};

/// MTU of the emulated cards.
const MTU_BYTES: u32 = 4096;

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TputPoint {
    /// Transport.
    pub transport: Transport,
    /// Receive threads.
    pub threads: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Receives of each subgroup.
    pub slots: u32,
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
        for &transport in &sweep.transports {
            for &chunk_bytes in &sweep.chunk_bytes {
                for &slots in &sweep.slots {
                    for &threads in &sweep.threads {
                        for bytes in amounts(&sweep.bytes, &sweep.chunks_per_thread, threads, chunk_bytes) {
                            points.extend(sweep.seeds.iter().map(|&seed| {
                                Self { transport, threads, chunk_bytes, slots, bytes, seed, warm_up, iterations }
                                    .with_slots()
                            }));
                        }
                    }
                }
            }
        }
        points
    }

    /// The same with a number of slots where none is given: as many as a subgroup has chunks, if the cache has room for so many.
    #[must_use]
    pub fn with_slots(mut self) -> Self {
        if self.slots == 0 {
            let chunks = self.bytes.div_ceil(self.chunk_bytes.max(1)).div_ceil(u64::from(self.threads.max(1)));
            let fits = |slots: &u32| {
                let config = Self { slots: *slots, ..self.clone() }.params().config(self.bytes);
                let footprint = config.footprint(2, MTU_BYTES);
                footprint.is_ok_and(|footprint| footprint.hot_bytes() <= config.cache_bytes)
            };
            let most = chunks.next_power_of_two().clamp(128, flexcast::MAX_SLOTS.into()) as u32;
            self.slots = (6..=most.ilog2()).rev().map(|log| 1 << log).find(fits).unwrap_or(64);
        }
        self
    }

    fn params(&self) -> Params {
        let Self { transport, threads, chunk_bytes, slots, seed, warm_up, iterations, .. } = *self;
        let transport = match transport {
            Transport::Uc => flexcast::Transport::UcUnicast,
            Transport::Ud => flexcast::Transport::Ud,
        };
        let chunk_bytes = u32::try_from(chunk_bytes).unwrap_or(u32::MAX);
        let params = Params { transport, chunk_bytes, slots, seed, warm_up, iterations, ..Params::default() };
        Params { batch: params.batch.min(slots / 2).max(2), ..params }.with_threads(threads)
    }

    pub(super) fn weight(&self) -> u64 {
        let Self { chunk_bytes, bytes, warm_up, iterations, .. } = *self;
        3 * u64::from(warm_up + iterations) * (bytes / chunk_bytes.max(1) + bytes / 4096)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // Two cards, the bytes on both sides and once more to compare, staging slots.
        let staging = u64::from(self.threads) * u64::from(self.slots) * (self.chunk_bytes + 64);
        (128 << 20) + 5 * self.bytes + staging
    }

    pub(super) fn command(&self) -> String {
        let Self { threads, chunk_bytes, slots, bytes, seed, warm_up, iterations, .. } = self;
        let Params { transport, send_threads, batch, .. } = self.params();
        format!(
            "flexcast tput --transport {} --threads {threads} --send-threads {send_threads} --chunk {chunk_bytes} --slots {slots} \
             --batch {batch} --bytes {bytes} --seed {seed} --warm-up {warm_up} --iterations {iterations}",
            transport_name(transport)
        )
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str) -> Row {
        let Self { transport, threads, chunk_bytes, slots, bytes, seed, .. } = *self;
        let row = Row::new(Kind::Emulated, model)
            .with("image", "allgather")
            .with("transport", transport.name())
            .with("threads", threads)
            .with("chunk_bytes", chunk_bytes)
            .with("slots", slots)
            .with("bytes", bytes)
            .with("seed", seed);
        match transport {
            Transport::Uc => row,
            Transport::Ud => row.with("staging_kib", u64::from(threads) * u64::from(slots) * chunk_bytes / 1024),
        }
    }

    pub(super) fn asked(&self) -> Row {
        self.parameters("")
    }

    pub(super) fn run(&self, images: &Images, timing: &Timing) -> Result<Row, String> {
        let Self { transport, chunk_bytes, bytes, seed, .. } = *self;
        let plan = Plan::new(self.params(), bytes).map_err(text)?;
        let machine = Machine { seed: Some(seed), timing: timing.clone(), ..Machine::default() };
        let config = machine.config().map_err(text)?;
        let model = config.model_name().to_owned();
        let provider = emu_provider::emulated(config).map_err(text)?;
        let names = names(&provider, None, None).map_err(text)?;
        let file = images.read("allgather").map_err(text)?;
        plan.check_memory().map_err(text)?;
        let source = made_up_bytes(bytes, seed).map_err(text)?;
        let report = run_plan(&provider, &names, &file, &plan, &source, &model, &mut |_| {}).map_err(text)?;
        if !report.digest_ok {
            return Err("bytes differ from those sent".to_owned());
        }
        let gbit_per_s = |gib_s: f64| gib_s * f64::from(1 << 30) * 8.0 / 1e9;
        let (operation, data) = (gbit_per_s(report.goodput_gib_s), gbit_per_s(report.data_gib_s));
        let row = self
            .parameters(&model)
            .with("send_threads", report.send_threads)
            .with("operation_us", report.operation_us)
            .with("goodput_gib_s", report.goodput_gib_s)
            .with("goodput_gbit_s", operation)
            .with("link_percent", 100.0 * operation / link_goodput(transport, chunk_bytes, CABLE_GBIT_PER_S))
            .with("data_gbit_s", data)
            .with("chunks_m_s", operation * 1e3 / 8.0 / chunk_bytes as f64)
            .with("instructions_per_cqe", report.instructions_per_cqe)
            .with("cycles_per_cqe", report.cycles_per_cqe)
            .with("instructions_per_cycle", report.instructions_per_cqe / report.cycles_per_cqe)
            .with("send_instructions_per_chunk", report.send_instructions_per_chunk)
            .with("recovered_chunks", report.recovered_chunks)
            .with("cqes", report.device.cqes)
            .with("activations", report.device.activations)
            .with("duplicates", report.device.duplicates);
        Ok(with_accesses(row, report.accesses.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::point::Point;

    #[test]
    fn a_sweep_is_every_combination() {
        let sweep = TputSweep {
            transports: vec![Transport::Uc, Transport::Ud],
            threads: vec![1, 2, 4],
            chunk_bytes: vec![4096],
            bytes: vec![8 << 20],
            chunks_per_thread: vec![100],
            slots: vec![256],
            seeds: vec![1],
            warm_up: 1,
            iterations: 1,
        };
        let points = TputPoint::all(&sweep);
        assert_eq!(points.len(), 12);
        let model = Timing::of("m2");
        assert_eq!(
            Point::Tput(points[11].clone()).command(&model),
            "flexcast tput --transport ud --threads 4 --send-threads 2 --chunk 4096 --slots 256 --batch 64 --bytes 1638400 --seed 1 \
             --warm-up 1 --iterations 1 --model m2 --json"
        );
        let small = &TputPoint::all(&TputSweep { chunk_bytes: vec![64], ..sweep })[0];
        assert!(points[0].weight() < small.weight());
    }

    #[test]
    fn slots_are_as_many_as_chunks_and_fit_the_cache() {
        let point = |threads, bytes, transport| {
            let point = TputPoint {
                transport,
                threads,
                chunk_bytes: 4096,
                slots: 0,
                bytes,
                seed: 1,
                warm_up: 1,
                iterations: 1,
            };
            point.with_slots().slots
        };
        assert_eq!(point(1, 8 << 20, Transport::Ud), 2048);
        assert_eq!(point(4, 1 << 20, Transport::Ud), 128, "no fewer");
        let sixteen = point(16, 256 << 20, Transport::Ud);
        assert!((128..4096).contains(&sixteen), "{sixteen}");
    }
}
