//! Report of a throughput run: one JSON object, one line of a table.

use serde::{Deserialize, Serialize};

use flexcast::{Control, Transport};

use super::plan::Plan;
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Receive completions handled.
    pub cqes: u64,
    /// Instructions retired by the handlers, from entry to end.
    pub instructions: u64,
    /// Cycles spent in the handlers.
    pub cycles: u64,
    /// Receive completions handled in drain loops: from the first poll of an activation to the poll that finds the ring
    /// empty.
    pub loop_cqes: u64,
    /// Instructions retired in drain loops: polls, batches that an empty ring cut short and doorbells included; waking,
    /// arming and reports are not.
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
    /// Instructions per completion in drain loops. Only a run whose ring does not run empty shows the cost of the
    /// datapath: where workers wait for the link, batches are short and their doorbells weigh more.
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
    pub transport: &'static str,
    /// Receive threads, and as many subgroups.
    pub threads: u32,
    /// Send threads.
    pub send_threads: u32,
    /// Where the protocol ran.
    pub control: &'static str,
    /// Bytes of one chunk.
    pub chunk_bytes: u32,
    /// Bytes of the buffer, once.
    pub bytes: u64,
    /// Chunks of the buffer, once.
    pub chunks: u64,
    /// Chunks per doorbell of the receivers.
    pub batch: u32,
    /// Receives of each subgroup.
    pub slots: u32,
    /// Measured repetitions.
    pub iterations: u32,
    /// Fabric loss in percent.
    pub loss_percent: f64,
    /// Seed of bytes and loss.
    pub seed: u64,
    /// Chunks that did not arrive by themselves and were fetched, over all measured repetitions.
    pub recovered_chunks: u64,
    /// Whether every byte is the one sent, in every repetition.
    pub digest_ok: bool,
    /// SHA-256 of the bytes sent.
    pub sha256: String,
    /// Instructions of the receivers per completion, from the device's counters; see
    /// [`DeviceCounters::instructions_per_cqe`].
    pub instructions_per_cqe: f64,
    /// Cycles per completion, likewise.
    pub cycles_per_cqe: f64,
    /// Instructions of the senders per chunk, in their loops.
    pub send_instructions_per_chunk: f64,
    /// Mean [`Report::kind`] time of an operation, from the first post to the last release, in microseconds.
    pub operation_us: f64,
    /// Mean time of its data in microseconds: from the root's first chunk to the receiver's last byte.
    pub data_us: f64,
    /// Bytes received per second of the operation, in GiB/s.
    pub goodput_gib_s: f64,
    /// Bytes received per second of the data's time, in GiB/s.
    pub data_gib_s: f64,
    /// The receivers' counters.
    pub device: DeviceCounters,
    /// Which level of memory served accesses; not without a timing model.
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
    /// Chunks that were fetched.
    pub recovered_chunks: u64,
    /// Time of the operations in picoseconds.
    pub span_ps: u64,
    /// Time of their data.
    pub data_ps: u64,
    /// Whether every comparison held.
    pub digest_ok: bool,
    /// The receivers' counters.
    pub device: DeviceCounters,
    /// Chunks posted by the senders.
    pub sent_chunks: u64,
    /// Instructions of their loops.
    pub send_instructions: u64,
    /// Accesses of the DPA's threads; only a timing model counts them.
    pub accesses: Option<Accesses>,
}

impl Report {
    /// Puts the figures of a run together.
    #[must_use]
    pub fn new(plan: &Plan, totals: &Totals, sha256: String, kind: Kind, model: &str, wall_s: f64) -> Report {
        let params = &plan.params;
        let received_gib = (plan.bytes * u64::from(params.iterations)) as f64 / (1u64 << 30) as f64;
        let per_s = |ps: u64| if ps == 0 { 0.0 } else { received_gib / (ps as f64 * 1e-12) };
        let mean_us = |ps: u64| ps as f64 * 1e-6 / f64::from(params.iterations);
        Report {
            transport: transport_name(params.transport),
            threads: params.threads,
            send_threads: params.send_threads,
            control: if params.control == Control::Device { "device" } else { "host" },
            chunk_bytes: params.chunk_bytes,
            bytes: plan.bytes,
            chunks: plan.chunks,
            batch: params.batch,
            slots: params.slots,
            iterations: params.iterations,
            loss_percent: f64::from(params.loss_ppm) / 1e4,
            seed: params.seed,
            recovered_chunks: totals.recovered_chunks,
            digest_ok: totals.digest_ok,
            sha256,
            instructions_per_cqe: totals.device.instructions_per_cqe(),
            cycles_per_cqe: totals.device.cycles_per_cqe(),
            send_instructions_per_chunk: ratio(totals.send_instructions, totals.sent_chunks),
            operation_us: mean_us(totals.span_ps),
            data_us: mean_us(totals.data_ps),
            goodput_gib_s: per_s(totals.span_ps),
            data_gib_s: per_s(totals.data_ps),
            device: totals.device,
            accesses: totals.accesses.clone(),
            kind,
            model: model.to_owned(),
            machine: None,
            wall_s,
        }
    }
}

/// The name of a transport in reports and options.
#[must_use]
pub const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Ud => "ud",
        Transport::UcMulticast => "uc",
        Transport::UcUnicast => "uc-unicast",
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
        "fetched".to_owned(),
        "bytes".to_owned(),
        "instr/CQE".to_owned(),
        "cycles/CQE".to_owned(),
        format!("us ({time})"),
        "Gbit/s".to_owned(),
        "data alone".to_owned(),
        "wall s".to_owned(),
    ]);
    let gbit = |gib_s: f64| format!("{:.1}", gib_s * f64::from(1 << 30) * 8.0 / 1e9);
    for r in reports {
        table.add_row([
            r.transport.to_owned(),
            format!("{}, {} send", r.threads, r.send_threads),
            format!("{} %", r.loss_percent),
            (r.chunks * u64::from(r.iterations)).to_string(),
            r.recovered_chunks.to_string(),
            if r.digest_ok { "equal".to_owned() } else { "DIFFER".to_owned() },
            format!("{:.1}", r.instructions_per_cqe),
            format!("{:.0}", r.cycles_per_cqe),
            format!("{:.1}", r.operation_us),
            gbit(r.goodput_gib_s),
            gbit(r.data_gib_s),
            format!("{:.2}", r.wall_s),
        ]);
    }
    for column in [1, 2, 3, 4, 6, 7, 8, 9, 10, 11] {
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
            recovered_chunks: 3,
            span_ps: 1_000_000_000,
            data_ps: 500_000_000,
            digest_ok: true,
            device: DeviceCounters { cqes: 200, instructions: 4000, cycles: 90_000, ..Default::default() },
            sent_chunks: 256,
            send_instructions: 5120,
            accesses: None,
        };
        Report::new(&plan, &totals, "ab".to_owned(), Kind::Emulated, "uncalibrated-1", 0.5)
    }

    #[test]
    fn figures_follow_from_the_totals() {
        let r = report();
        assert_eq!((r.instructions_per_cqe, r.cycles_per_cqe, r.send_instructions_per_chunk), (20.0, 450.0, 20.0));
        let saturated = DeviceCounters { loop_cqes: 100, loop_instructions: 1500, loop_cycles: 40_000, ..r.device };
        assert_eq!((saturated.instructions_per_cqe(), saturated.cycles_per_cqe()), (15.0, 400.0));
        assert!((r.goodput_gib_s - 0.976_562_5).abs() < 1e-9, "1 MiB in 1 ms: {}", r.goodput_gib_s);
        assert_eq!((r.operation_us, r.data_us, r.data_gib_s / r.goodput_gib_s), (1000.0, 500.0, 2.0));
        assert_eq!(r.loss_percent, 1.0);
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(report()).unwrap();
        for key in [
            "transport",
            "threads",
            "send_threads",
            "chunk_bytes",
            "bytes",
            "chunks",
            "recovered_chunks",
            "digest_ok",
            "instructions_per_cqe",
            "cycles_per_cqe",
            "operation_us",
            "data_us",
            "goodput_gib_s",
            "kind",
            "model",
            "wall_s",
        ] {
            assert!(json.get(key).is_some(), "no {key}");
        }
        assert_eq!((&json["kind"], &json["transport"]), (&"emulated".into(), &"ud".into()));
    }

    #[test]
    fn a_run_without_completions_divides_by_nothing() {
        let plan = Plan::new(Params::default(), 1).unwrap();
        let r = Report::new(&plan, &Totals::default(), String::new(), Kind::Emulated, "m", 0.0);
        assert_eq!((r.instructions_per_cqe, r.goodput_gib_s), (0.0, 0.0));
        assert!(table(&[r]).to_string().contains("DIFFER"));
    }
}
