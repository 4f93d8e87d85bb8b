//! Runs of the throughput harness.

use emu_config::{Machine, Timing};
use serde::Serialize;

use super::{CABLE_GBIT_PER_S, link_goodput, text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::Pair;
use crate::images::Images;
use crate::reference::Transport;
use crate::tput::plan::{Params, Plan};
use crate::tput::run::{made_up_bytes, names, run as run_plan};
use crate::tput::spec::TputSpec;

/// MTU of the emulated cards.
const MTU_BYTES: u32 = 4096;

/// A run: what `flexcast tput` is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TputPoint {
    /// What.
    pub spec: TputSpec,
}

impl TputPoint {
    /// The run of a combination. Where no number of slots is given, there are as many as a subgroup has chunks, if the
    /// cache has room for so many.
    #[must_use]
    pub fn of(pair: Pair) -> Self {
        let Pair { transport, threads, chunk_bytes, slots, bytes, seed, warm_up, iterations } = pair;
        let transport = match transport {
            Transport::Uc => flexcast::Transport::UcUnicast,
            Transport::Ud => flexcast::Transport::Ud,
        };
        let params = Params::default().with_threads(threads);
        let (threads, send_threads) = (params.threads, params.send_threads);
        let (chunk, bytes, seed) = (u32::try_from(chunk_bytes).unwrap_or(u32::MAX), Some(bytes), Some(seed));
        let spec = TputSpec {
            transport,
            threads,
            send_threads,
            chunk,
            bytes,
            seed,
            warm_up,
            iterations,
            ..Default::default()
        };
        let slots = if slots == 0 { useful_slots(&spec) } else { slots };
        Self { spec: with_slots(&spec, slots) }
    }

    pub(super) fn weight(&self) -> u64 {
        let TputSpec { chunk, warm_up, iterations, .. } = self.spec;
        let bytes = self.spec.bytes();
        3 * u64::from(warm_up + iterations) * (bytes / u64::from(chunk.max(1)) + bytes / 4096)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let TputSpec { threads, slots, chunk, .. } = self.spec;
        // Two cards, the bytes on both sides and once more to compare, staging slots.
        let staging = u64::from(threads) * u64::from(slots) * (u64::from(chunk) + 64);
        (128 << 20) + 5 * self.spec.bytes() + staging
    }

    pub(super) fn command(&self) -> String {
        self.spec.command()
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str) -> Row {
        let TputSpec { transport, threads, chunk, slots, seed, .. } = self.spec;
        let row = Row::new(Kind::Emulated, model)
            .with("image", "allgather")
            .with("transport", if transport.is_zero_copy() { "uc" } else { "ud" })
            .with("threads", threads)
            .with("chunk_bytes", chunk)
            .with("slots", slots)
            .with("bytes", self.spec.bytes())
            .with("seed", seed.unwrap_or_default());
        if transport.is_zero_copy() {
            return row;
        }
        row.with("staging_kib", u64::from(threads) * u64::from(slots) * u64::from(chunk) / 1024)
    }

    pub(super) fn asked(&self) -> Row {
        self.parameters("")
    }

    pub(super) fn run(&self, images: &Images, timing: &Timing) -> Result<Row, String> {
        let (bytes, seed) = (self.spec.bytes(), self.spec.seed);
        let wire = if self.spec.transport.is_zero_copy() { Transport::Uc } else { Transport::Ud };
        let chunk_bytes = u64::from(self.spec.chunk);
        let machine = Machine { seed, timing: timing.clone(), ..Machine::default() };
        let seed = seed.unwrap_or_default();
        let plan = Plan::new(self.spec.params(seed, 0), bytes).map_err(text)?;
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
            .with("link_percent", 100.0 * operation / link_goodput(wire, chunk_bytes, CABLE_GBIT_PER_S))
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

/// The same with so many slots, and no larger batches than they allow.
fn with_slots(spec: &TputSpec, slots: u32) -> TputSpec {
    TputSpec { slots, batch: TputSpec::default().batch.min(slots / 2).max(2), ..spec.clone() }
}

/// As many slots as a subgroup has chunks, if the cache has room for so many.
fn useful_slots(spec: &TputSpec) -> u32 {
    let bytes = spec.bytes();
    let chunks = bytes.div_ceil(spec.chunk.max(1).into()).div_ceil(spec.threads.max(1).into());
    let fits = |slots: &u32| {
        let config = with_slots(spec, *slots).params(0, 0).config(bytes);
        let footprint = config.footprint(2, MTU_BYTES);
        footprint.is_ok_and(|footprint| footprint.hot_bytes() <= config.cache_bytes)
    };
    let most = chunks.next_power_of_two().clamp(128, flexcast::MAX_SLOTS.into()) as u32;
    (6..=most.ilog2()).rev().map(|log| 1 << log).find(fits).unwrap_or(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::point::Point;
    use crate::evaluate::spec::PairSweep;

    #[test]
    fn a_sweep_is_every_combination() {
        let sweep = PairSweep {
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
        let points = |sweep: &PairSweep| sweep.pairs().into_iter().map(TputPoint::of).collect::<Vec<_>>();
        let all = points(&sweep);
        assert_eq!(all.len(), 12);
        let model = Timing::of("m2");
        assert_eq!(
            Point::Tput(all[11].clone()).command(&model),
            "flexcast tput --send-threads 2 --bytes 1638400 --warm-up 1 --seed 1 --model m2 --json",
            "what is as by default is left out"
        );
        let small = &points(&PairSweep { chunk_bytes: vec![64], ..sweep })[0];
        assert!(all[0].weight() < small.weight());
    }

    #[test]
    fn slots_are_as_many_as_chunks_and_fit_the_cache() {
        let slots = |threads, bytes, transport| {
            let pair =
                Pair { transport, threads, chunk_bytes: 4096, slots: 0, bytes, seed: 1, warm_up: 1, iterations: 1 };
            TputPoint::of(pair).spec.slots
        };
        assert_eq!(slots(1, 8 << 20, Transport::Ud), 2048);
        assert_eq!(slots(4, 1 << 20, Transport::Ud), 128, "no fewer");
        let sixteen = slots(16, 256 << 20, Transport::Ud);
        assert!((128..4096).contains(&sixteen), "{sixteen}");
    }
}
