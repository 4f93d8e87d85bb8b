//! Step 1: the published micro-benchmarks (Chen et al.) as kernels on the emulated card. What went into the model has to come out;
//! this checks the implementation, not the truth.

use emu_machine::timing::Parameters;
use flexcast_abi::calibration::Kernel;
use serde::Serialize;

use super::CalibrateError;
use super::rig::{LINE_BYTES, Probe, measure, span_ns};
use crate::tput::run::ImageFile;

/// Why flows to Arm memory are not measured.
pub const ARM_NOT_RUN: &str = "Arm memory (chase 230 and 319 ns, 0.15/0.44 and 20/14 GB/s): not run, the emulated card's windows reach host \
                               memory only";

/// Largest error of a latency and of a bandwidth, in percent.
const LEVEL_PERCENT: f64 = 10.0;
const BANDWIDTH_PERCENT: f64 = 20.0;
/// What a latency read off a plot may be off besides: so exactly could it be read.
const PLOT_PERCENT: f64 = 3.0;

/// Threads of the runs on all of them.
const ALL: u32 = 190;

/// Cycles of the latencies when the far side's cache does not hold the line: the far ends of their ranges.
const DRAM: [(&str, u64); 2] = [("dpa_memory_cycles", 837), ("host_window_cycles", 1638)];

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

/// All of them.
pub(super) fn list() -> Vec<Micro> {
    let mut all = Vec::new();
    let mut chase = |what: &str, kernel: Kernel, set: u64, published: f64, dram: bool, of_plot: bool| {
        let loads = (set / LINE_BYTES).max(4096);
        let tolerance_percent = LEVEL_PERCENT + if of_plot { PLOT_PERCENT } else { 0.0 };
        all.push(Micro {
            what: what.to_owned(),
            published,
            probe: probe(kernel, 1, set, loads),
            dram,
            tolerance_percent,
        });
    };
    chase("chase in 1 KiB: L1", Kernel::ChaseMemory, 1 << 10, 12.8, false, true);
    chase("chase in 1 MiB: L2", Kernel::ChaseMemory, 1 << 20, 39.5, false, true);
    chase("chase in 2.9 MB: L3", Kernel::ChaseMemory, 2_900_000 / 64 * 64, 70.0, false, true);
    chase("chase in 16 MiB: DPA memory, mean of single loads", Kernel::ChaseMemory, 16 << 20, 400.0, false, false);
    chase("chase in 16 MiB: DPA memory, DRAM", Kernel::ChaseMemory, 16 << 20, 465.0, true, false);
    chase("chase in 4 MiB of the host: its cache", Kernel::ChaseHost, 4 << 20, 719.0, false, true);
    chase("chase in 4 MiB of the host: DRAM", Kernel::ChaseHost, 4 << 20, 910.0, true, false);
    for (what, kernel, one, many) in [
        ("read DPA memory", Kernel::ReadMemory, 0.10, 9.8),
        ("write DPA memory", Kernel::WriteMemory, 0.42, 25.0),
        ("read host memory", Kernel::ReadHost, 0.068, 7.2),
        ("write host memory", Kernel::WriteHost, 0.44, 14.0),
    ] {
        let flow = |threads: u32, set: u64, published: f64| {
            let what = format!("{what}, {threads} thread{}", if threads == 1 { "" } else { "s" });
            Micro {
                what,
                published,
                probe: probe(kernel, threads, set, 1),
                dram: true,
                tolerance_percent: BANDWIDTH_PERCENT,
            }
        };
        all.extend([flow(1, 5 << 20, one), flow(ALL, 32 << 10, many)]);
    }
    all
}

/// `set` bytes of each thread, in the memory that the kernel looks at.
fn probe(kernel: Kernel, threads: u32, set: u64, count: u64) -> Probe {
    let at_host = matches!(kernel, Kernel::ChaseHost | Kernel::ReadHost | Kernel::WriteHost);
    let (memory_bytes, host_bytes) = if at_host { (LINE_BYTES, set) } else { (set, LINE_BYTES) };
    Probe { kernel, threads, first_unit: 1, memory_bytes, host_bytes, count }
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
