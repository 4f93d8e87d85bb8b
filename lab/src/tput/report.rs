//! Report of a throughput run: one JSON object, one line of a table.

use serde::Serialize;

use super::plan::{Plan, Transport};
use crate::accesses::Accesses;
use crate::machine::MachineReport;

/// Where a figure comes from. The three kinds never share a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Virtual time of the emulated machine, under a named cost model.
    Emulated,
    /// Wall time of real hardware.
    Measured,
}

/// The device's own counters, summed over workers and measured repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounters {
    /// Receive completions handled.
    pub cqes: u64,
    /// Instructions retired by the handlers, from entry to end.
    pub instructions: u64,
    /// Cycles spent in the handlers.
    pub cycles: u64,
    /// Receive completions handled in drain loops: from the first poll of an activation to the poll that finds the ring empty.
    pub loop_cqes: u64,
    /// Instructions retired in drain loops: polls, batches that an empty ring cut short and doorbells included; waking, arming
    /// and reports are not.
    pub loop_instructions: u64,
    /// Cycles spent in drain loops.
    pub loop_cycles: u64,
    /// Chunks that had already arrived.
    pub duplicates: u64,
    /// Sequence numbers outside the worker's share.
    pub out_of_range: u64,
    /// Chunks of an unexpected length.
    pub wrong_length: u64,
    /// Chunks of another collective.
    pub wrong_id: u64,
    /// Error completions and opcodes that do not belong to the transport.
    pub errors: u64,
    /// Times a handler was started.
    pub activations: u64,
}

impl DeviceCounters {
    /// Instructions per completion in drain loops. Only a run whose ring does not run empty tells the cost of the datapath: where
    /// workers wait for the link, batches are short and their doorbells weigh more.
    #[must_use]
    pub fn instructions_per_cqe(&self) -> f64 {
        match self.loop_cqes {
            0 => ratio(self.instructions, self.cqes),
            cqes => ratio(self.loop_instructions, cqes),
        }
    }

    /// Cycles per completion, likewise.
    #[must_use]
    pub fn cycles_per_cqe(&self) -> f64 {
        match self.loop_cqes {
            0 => ratio(self.cycles, self.cqes),
            cqes => ratio(self.loop_cycles, cqes),
        }
    }
}

/// One run: every repetition of one parameter set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Transport of the data.
    pub transport: Transport,
    /// Receive workers asked for.
    pub threads: u32,
    /// Receive workers that had chunks to receive.
    pub workers: u32,
    /// Bytes of one chunk.
    pub chunk_bytes: u64,
    /// Bytes of the buffer, once.
    pub bytes: u64,
    /// Chunks of the buffer, once.
    pub chunks: u64,
    /// Chunks per doorbell.
    pub batch: u32,
    /// Posted receives per worker.
    pub ring: u32,
    /// Measured repetitions.
    pub iterations: u32,
    /// Fabric loss in percent.
    pub loss_percent: f64,
    /// Seed of the loss.
    pub seed: u64,
    /// Chunks that never arrived, over all measured repetitions.
    pub missing: u64,
    /// Whether every byte that arrived equals the byte sent, in every repetition.
    pub digest_ok: bool,
    /// SHA-256 of the bytes sent.
    pub sha256: String,
    /// Instructions per completion, from the device's counters; see [`DeviceCounters::instructions_per_cqe`].
    pub instructions_per_cqe: f64,
    /// Cycles per completion, likewise.
    pub cycles_per_cqe: f64,
    /// Bytes received per second of [`Report::kind`] time, from the first send posted to the completion flag, in GiB/s.
    pub goodput_gib_s: f64,
    /// The device's counters.
    pub device: DeviceCounters,
    /// Which level of memory served accesses, from first post to completion; not without a timing model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Accesses>,
    /// Where the figures come from.
    pub kind: Kind,
    /// Cost model behind the emulated figures.
    pub model: String,
    /// The emulated machine, where the caller knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineReport>,
    /// Wall time of the whole run in seconds, always measured and never compared with the figures above.
    pub wall_s: f64,
}

/// Sums over the measured repetitions, from which a [`Report`] is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Chunks that never arrived.
    pub missing: u64,
    /// Bytes that arrived.
    pub received_bytes: u64,
    /// Time from first post to completion (or last arrival, where chunks are missing) in picoseconds.
    pub span_ps: u64,
    /// Whether every comparison held.
    pub digest_ok: bool,
    /// Device counters.
    pub device: DeviceCounters,
    /// Accesses of the DPA's threads from first post to completion; only a timing model counts them.
    pub accesses: Option<Accesses>,
}

impl Report {
    /// Puts the figures of a run together.
    #[must_use]
    pub fn new(plan: &Plan, totals: &Totals, sha256: String, kind: Kind, model: &str, wall_s: f64) -> Report {
        let seconds = totals.span_ps as f64 * 1e-12;
        let gib = totals.received_bytes as f64 / (1u64 << 30) as f64;
        Report {
            transport: plan.params.transport,
            threads: plan.params.threads,
            workers: plan.shares.iter().filter(|share| share.chunks > 0).count() as u32,
            chunk_bytes: plan.params.chunk_bytes,
            bytes: plan.bytes,
            chunks: plan.chunks,
            batch: plan.params.batch,
            ring: plan.params.ring,
            iterations: plan.params.iterations,
            loss_percent: f64::from(plan.params.loss_ppm) / 1e4,
            seed: plan.params.seed,
            missing: totals.missing,
            digest_ok: totals.digest_ok,
            sha256,
            instructions_per_cqe: totals.device.instructions_per_cqe(),
            cycles_per_cqe: totals.device.cycles_per_cqe(),
            goodput_gib_s: if totals.span_ps == 0 { 0.0 } else { gib / seconds },
            device: totals.device,
            accesses: totals.accesses.clone(),
            kind,
            model: model.to_owned(),
            machine: None,
            wall_s,
        }
    }
}

fn ratio(value: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { value as f64 / count as f64 }
}

/// A table of runs that share kind and model, which stand in the header and not in the rows.
#[must_use]
pub fn table(reports: &[Report]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    let time = match reports.first().map(|r| r.kind) {
        Some(Kind::Measured) => "measured",
        _ => "emulated",
    };
    table.set_header([
        "transport".to_owned(),
        "threads".to_owned(),
        "loss".to_owned(),
        "chunks".to_owned(),
        "missing".to_owned(),
        "bytes".to_owned(),
        "instr/CQE".to_owned(),
        "cycles/CQE".to_owned(),
        format!("goodput GiB/s ({time})"),
        "wall s".to_owned(),
    ]);
    for r in reports {
        table.add_row([
            r.transport.name().to_owned(),
            r.threads.to_string(),
            format!("{} %", r.loss_percent),
            (r.chunks * u64::from(r.iterations)).to_string(),
            r.missing.to_string(),
            if r.digest_ok { "equal".to_owned() } else { "DIFFER".to_owned() },
            format!("{:.1}", r.instructions_per_cqe),
            format!("{:.0}", r.cycles_per_cqe),
            format!("{:.2}", r.goodput_gib_s),
            format!("{:.2}", r.wall_s),
        ]);
    }
    for column in [1, 2, 3, 4, 6, 7, 8, 9] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tput::plan::Params;

    fn report() -> Report {
        let plan = Plan::new(Params { loss_ppm: 10_000, ..Params::default() }, 1 << 20).unwrap();
        let totals = Totals {
            missing: 3,
            received_bytes: 1 << 20,
            span_ps: 1_000_000_000,
            digest_ok: true,
            device: DeviceCounters { cqes: 200, instructions: 4000, cycles: 90_000, ..Default::default() },
            accesses: None,
        };
        Report::new(&plan, &totals, "ab".to_owned(), Kind::Emulated, "uncalibrated-1", 0.5)
    }

    #[test]
    fn figures_follow_from_the_totals() {
        let r = report();
        assert_eq!(r.instructions_per_cqe, 20.0);
        assert_eq!(r.cycles_per_cqe, 450.0);
        let saturated = DeviceCounters { loop_cqes: 100, loop_instructions: 1500, loop_cycles: 40_000, ..r.device };
        assert_eq!((saturated.instructions_per_cqe(), saturated.cycles_per_cqe()), (15.0, 400.0));
        assert!((r.goodput_gib_s - 0.976_562_5).abs() < 1e-9, "1 MiB in 1 ms: {}", r.goodput_gib_s);
        assert_eq!(r.loss_percent, 1.0);
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(report()).unwrap();
        for key in [
            "transport",
            "threads",
            "chunk_bytes",
            "bytes",
            "chunks",
            "missing",
            "digest_ok",
            "instructions_per_cqe",
            "cycles_per_cqe",
            "goodput_gib_s",
            "kind",
            "model",
            "wall_s",
        ] {
            assert!(json.get(key).is_some(), "no {key}");
        }
        assert_eq!(json["kind"], "emulated");
        assert_eq!(json["transport"], "uc");
    }

    #[test]
    fn a_run_without_completions_divides_by_nothing() {
        let plan = Plan::new(Params::default(), 1).unwrap();
        let r = Report::new(&plan, &Totals::default(), String::new(), Kind::Emulated, "m", 0.0);
        assert_eq!((r.instructions_per_cqe, r.goodput_gib_s), (0.0, 0.0));
        assert!(table(&[r]).to_string().contains("DIFFER"));
    }
}
