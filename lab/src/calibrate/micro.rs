//! Step 1: the published micro-benchmarks (Chen et al.) as kernels on the emulated card. What went into the model has
//! to come out; this checks the implementation, not the truth.

use emu_machine::DrivenFrom;
use emu_machine::timing::Parameters;
use flexcast_abi::calibration::Kernel;
use serde::Serialize;

use super::CalibrateError;
use super::fixture::{LINE_BYTES, Probe, measure, span_ns};
use crate::tput::run::ImageFile;

/// Largest error of a latency and of a bandwidth, in percent.
const LEVEL_PERCENT: f64 = 10.0;
const BANDWIDTH_PERCENT: f64 = 20.0;
/// What a latency read off a plot may be off besides: so exactly could it be read.
const PLOT_PERCENT: f64 = 3.0;

/// Threads of the runs on all of them.
const ALL: u32 = 190;

/// Cycles of the latencies when the far side's cache does not hold the line: the far ends of their ranges.
const DRAM: [(&str, u64); 3] = [("dpa_memory_cycles", 837), ("arm_window_cycles", 574), ("host_window_cycles", 1638)];

/// One micro-benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MicroRow {
    /// What is measured.
    pub what: String,
    /// `ns` for a load, `GB/s` for a flow.
    pub unit: &'static str,
    /// The published figure.
    pub published: f64,
    /// The emulated one.
    pub predicted: f64,
    /// How far that is off.
    pub error_percent: f64,
    /// How far it may be off.
    pub tolerance_percent: f64,
    /// Whether it is not.
    pub ok: bool,
}

/// A micro-benchmark to be run.
#[derive(Clone, Debug)]
pub(super) struct Micro {
    pub(super) what: String,
    published: f64,
    probe: Probe,
    dram: bool,
    tolerance_percent: f64,
}

/// Which memory, by a kernel and what its windows reach.
type Place = (Kernel, DrivenFrom);

/// All of them.
pub(super) fn list() -> Vec<Micro> {
    use DrivenFrom::{Arm, Host};
    let mut all = Vec::new();
    let mut chase = |what: &str, place: Place, set: u64, published: f64, dram: bool, of_plot: bool| {
        let loads = (set / LINE_BYTES).max(4096);
        let tolerance_percent = LEVEL_PERCENT + if of_plot { PLOT_PERCENT } else { 0.0 };
        all.push(Micro {
            what: what.to_owned(),
            published,
            probe: probe(place, 1, set, loads),
            dram,
            tolerance_percent,
        });
    };
    let (memory, arm, host) = ((Kernel::ChaseMemory, Host), (Kernel::ChaseHost, Arm), (Kernel::ChaseHost, Host));
    chase("chase in 1 KiB: L1", memory, 1 << 10, 12.8, false, true);
    chase("chase in 1 MiB: L2", memory, 1 << 20, 39.5, false, true);
    chase("chase in 2.9 MB: L3", memory, 2_900_000 / 64 * 64, 70.0, false, true);
    chase("chase in 16 MiB: DPA memory, mean of single loads", memory, 16 << 20, 400.0, false, false);
    chase("chase in 16 MiB: DPA memory, DRAM", memory, 16 << 20, 465.0, true, false);
    chase("chase in 4 MiB of the Arm cores: their cache", arm, 4 << 20, 230.0, false, true);
    chase("chase in 4 MiB of the Arm cores: DRAM", arm, 4 << 20, 319.0, true, false);
    chase("chase in 4 MiB of the host: its cache", host, 4 << 20, 719.0, false, true);
    chase("chase in 4 MiB of the host: DRAM", host, 4 << 20, 910.0, true, false);
    for (what, place, one, many) in [
        ("read DPA memory", (Kernel::ReadMemory, Host), 0.10, 9.8),
        ("write DPA memory", (Kernel::WriteMemory, Host), 0.42, 25.0),
        ("read Arm memory", (Kernel::ReadHost, Arm), 0.15, 20.0),
        ("write Arm memory", (Kernel::WriteHost, Arm), 0.44, 14.0),
        ("read host memory", (Kernel::ReadHost, Host), 0.068, 7.2),
        ("write host memory", (Kernel::WriteHost, Host), 0.44, 14.0),
    ] {
        let flow = |threads: u32, set: u64, published: f64| {
            let what = format!("{what}, {threads} thread{}", if threads == 1 { "" } else { "s" });
            let probe = probe(place, threads, set, 1);
            Micro { what, published, probe, dram: true, tolerance_percent: BANDWIDTH_PERCENT }
        };
        all.extend([flow(1, 5 << 20, one), flow(ALL, 32 << 10, many)]);
    }
    all
}

/// `set` bytes of each thread, in the memory that the kernel accesses.
fn probe((kernel, driven_from): Place, threads: u32, set: u64, count: u64) -> Probe {
    let through_window = matches!(kernel, Kernel::ChaseHost | Kernel::ReadHost | Kernel::WriteHost);
    let (memory_bytes, host_bytes) = if through_window { (LINE_BYTES, set) } else { (set, LINE_BYTES) };
    Probe { kernel, threads, first_unit: 1, driven_from, memory_bytes, host_bytes, count }
}

/// Runs one.
pub(super) fn run(image: &ImageFile, parameters: &Parameters, micro: &Micro) -> Result<MicroRow, CalibrateError> {
    let mut parameters = parameters.clone();
    if micro.dram {
        for (name, cycles) in DRAM {
            parameters = parameters.with("loads", name, cycles)?;
        }
    }
    let results = measure(image, &parameters, &micro.probe)?;
    let Probe { kernel, threads, memory_bytes, host_bytes, count, .. } = micro.probe;
    let (unit, predicted) = match kernel {
        Kernel::ChaseMemory | Kernel::ChaseHost => {
            let cycles = results.first().map_or(0, |result| result.cycles);
            ("ns", cycles as f64 / count as f64 / super::CYCLES_PER_NS)
        }
        _ => {
            let bytes = memory_bytes.max(host_bytes) * u64::from(threads) * count;
            ("GB/s", bytes as f64 / span_ns(&results) as f64)
        }
    };
    let error_percent = (predicted / micro.published - 1.0) * 100.0;
    Ok(MicroRow {
        what: micro.what.clone(),
        unit,
        published: micro.published,
        predicted,
        error_percent,
        tolerance_percent: micro.tolerance_percent,
        ok: error_percent.abs() <= micro.tolerance_percent,
    })
}
