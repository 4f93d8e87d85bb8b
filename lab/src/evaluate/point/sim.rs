//! Runs of collectives.

use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use serde::Serialize;

use super::{read_image, text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::SimSweep;
use crate::evaluate::statistics::Statistics;
use crate::machine::MachineParams;
use crate::sim::algorithm::{Algorithm, AlgorithmName, Parameters};
use crate::sim::params::{Operation, SimParams};
use crate::sim::report::Report;
use crate::sim::run as sim;
use crate::timing::TimingParams;

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimPoint {
    /// What the ranks do.
    pub operation: Operation,
    /// How.
    pub algorithm: String,
    /// Ranks.
    pub ranks: u32,
    /// Bytes of each, or of the root.
    pub bytes: u64,
    /// Topology.
    pub topology: Option<String>,
    /// Subgroups and receive threads.
    pub subgroups: u32,
    /// Roots at a time.
    pub chains: u32,
    /// Frames lost, in percent.
    pub loss_percent: f64,
    /// Fault script.
    pub faults: Option<PathBuf>,
    /// Ranks post within so many microseconds.
    pub skew_us: u64,
    /// Seed.
    pub seed: u64,
    /// Operations that are not counted.
    pub warm_up: u32,
    /// Operations that are.
    pub iterations: u32,
}

impl SimPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &SimSweep) -> Vec<Self> {
        let SimSweep { operation, subgroups, chains, warm_up, iterations, .. } = *sweep;
        let mut points = Vec::new();
        for algorithm in &sweep.algorithms {
            for &ranks in &sweep.ranks {
                for &bytes in &sweep.bytes {
                    for (&loss_percent, &skew_us) in
                        sweep.loss_percent.iter().flat_map(|loss| sweep.skew_us.iter().map(move |skew| (loss, skew)))
                    {
                        points.extend(sweep.seeds.iter().map(|&seed| Self {
                            operation,
                            algorithm: algorithm.clone(),
                            ranks,
                            bytes,
                            topology: sweep.topology.clone(),
                            subgroups,
                            chains,
                            loss_percent,
                            faults: sweep.faults.clone(),
                            skew_us,
                            seed,
                            warm_up,
                            iterations,
                        }));
                    }
                }
            }
        }
        points
    }

    fn multicasts(&self) -> bool {
        self.algorithm == "multicast"
    }

    /// What is declared to go wrong: the name of the fault script, losses, skew between posts.
    fn noise(&self) -> Option<String> {
        let script =
            self.faults.as_ref().and_then(|path| path.file_stem()).map(|name| name.to_string_lossy().into_owned());
        let loss = (self.loss_percent > 0.0).then(|| "loss".to_owned());
        let skew = (self.skew_us > 0).then(|| "skew".to_owned());
        let all: Vec<String> = script.into_iter().chain(loss).chain(skew).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }

    /// Ranks that multicast, or have a share of their own.
    fn senders(&self) -> u64 {
        if self.operation == Operation::Broadcast { 1 } else { self.ranks.into() }
    }

    pub(super) fn weight(&self) -> u64 {
        let Self { ranks, bytes, warm_up, iterations, .. } = *self;
        // With multicast firmware handles each chunk, and each card is set up; without, the card's network interface does all.
        let (chunk, set_up) = if self.multicasts() { (16, 1024) } else { (2, 64) };
        let chunks = u64::from(warm_up + iterations) * u64::from(ranks) * self.senders() * (bytes / 4096 + 1);
        chunks * chunk + u64::from(ranks) * set_up
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // Of each rank its buffer, and with multicast a card's memory with code, staging and rings.
        let card = if self.multicasts() { 6 << 20 } else { 1 << 20 };
        u64::from(self.ranks) * (card + self.senders() * self.bytes)
    }

    pub(super) fn command(&self) -> String {
        let Self { operation, algorithm, ranks, bytes, subgroups, chains, loss_percent, seed, .. } = self;
        let Self { warm_up, iterations, .. } = self;
        let mut options = String::new();
        if self.multicasts() {
            options.push_str(&format!(" --subgroups {subgroups} --chains {chains}"));
        }
        if let Some(topology) = &self.topology {
            options.push_str(&format!(" --topology {topology}"));
        }
        if *loss_percent > 0.0 {
            options.push_str(&format!(" --loss {loss_percent}"));
        }
        if let Some(faults) = &self.faults {
            options.push_str(&format!(" --faults {}", faults.display()));
        }
        if self.skew_us > 0 {
            options.push_str(&format!(" --skew-us {}", self.skew_us));
        }
        format!(
            "flexcast sim --op {} --algorithm {algorithm} --ranks {ranks} --bytes {bytes}{options} --seed {seed} --warm-up {warm_up} \
             --iterations {iterations}",
            operation.name()
        )
    }

    fn params(&self) -> Result<SimParams, String> {
        let Self { operation, algorithm, ranks, bytes, subgroups, chains, seed, skew_us, warm_up, iterations, .. } =
            self;
        let name =
            AlgorithmName::from_str(algorithm, false).map_err(|_| format!("no algorithm is called {algorithm:?}"))?;
        let params = SimParams {
            ranks: *ranks,
            ranks_per_card: 1,
            operation: *operation,
            algorithm: Algorithm::new(*operation, Some(name), Parameters::default()).map_err(text)?,
            bytes: *bytes,
            total_bytes: None,
            root: 0,
            warm_up: *warm_up,
            iterations: *iterations,
            seed: *seed,
            skew_us: *skew_us,
            config: flexcast::Config::default(),
            trouble: Vec::new(),
        };
        params.check().map_err(text)?;
        let slots = 1024 / subgroups.clamp(&1, &64).next_power_of_two();
        let config = flexcast::Config::default()
            .with_subgroups(*subgroups)
            .chains(*chains)
            .slots(slots)
            .receive_batch(64.min(slots / 2))
            .max_receive_bytes(params.receive_bytes().max(1));
        Ok(SimParams { config, ..params })
    }

    pub(super) fn run(&self, images: &Path, timing: &TimingParams) -> Result<Row, String> {
        let params = self.params()?;
        let machine = MachineParams {
            topology: self.topology.clone(),
            faults: self.faults.clone(),
            loss_ppm: (self.loss_percent * 1e4).round() as u32,
            seed: self.seed,
            timing: timing.clone(),
            ..MachineParams::default()
        };
        let config = machine.config_of(params.cards()).map_err(text)?;
        let provider = emu_provider::emulated(config).map_err(text)?;
        let image = read_image(images, "allgather")?;
        let source = sim::source(&params).map_err(text)?;
        let report = sim::run(&provider, Some(&image), &params, &source, &mut |_| {}).map_err(text)?;
        if !report.digest_ok {
            return Err(format!("{} ranks failed: {}", report.failures, report.errors.join("; ")));
        }
        self.row(&params, &report)
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str, topology: &str) -> Row {
        let mut row = Row::new(Kind::Emulated, model)
            .with("operation", self.operation.name())
            .with("algorithm", self.algorithm.as_str())
            .with("ranks", self.ranks)
            .with("bytes", self.bytes)
            .with("topology", topology)
            .with("loss_percent", self.loss_percent);
        if let Some(noise) = self.noise() {
            row = row.with("noise", noise.as_str());
        }
        if self.skew_us > 0 {
            row = row.with("skew_us", self.skew_us);
        }
        row.with("seed", self.seed)
    }

    fn with_chains(&self, row: Row) -> Row {
        if self.multicasts() { row.with("chains", self.chains) } else { row }
    }

    pub(super) fn asked(&self) -> Row {
        let topology = self.topology.clone().unwrap_or_else(|| format!("switch-{}", self.ranks.max(2)));
        self.with_chains(self.parameters("", &topology))
    }

    fn row(&self, params: &SimParams, report: &Report) -> Result<Row, String> {
        let rates = rates(params, report);
        let spread = Statistics::of(&rates).ok_or("no rank tells its time")?;
        let operations = f64::from(report.iterations);
        let row = self
            .parameters(&report.model, &report.machine.topology)
            .with("time_us", report.virtual_time_us)
            .with("goodput_gbit_s", report.goodput_gbit_s);
        let mut row = spread
            .columns(self.with_chains(row), "rank_gbit_s_")
            .with("samples", spread.samples as u64)
            .with("switch_bytes", report.traffic.switch_bytes_total as f64 / operations)
            .with("host_tx_bytes", report.traffic.host_tx_bytes as f64 / operations)
            .with("recovered_chunks", report.recovered_chunks);
        row.samples = rates;
        Ok(with_accesses(with_counters(with_work(with_phases(row, report), report), report), report.accesses.as_ref()))
    }
}

/// What each rank received of others in each operation, over its own time, in Gbit/s. The root of a Broadcast receives nothing.
fn rates(params: &SimParams, report: &Report) -> Vec<f64> {
    let is_broadcast = params.operation == Operation::Broadcast;
    let share = if is_broadcast { 1.0 } else { 1.0 - 1.0 / f64::from(params.ranks) };
    let foreign_bits = 8.0 * report.receive_bytes as f64 * share;
    let receives = |rank: u32| !is_broadcast || rank != params.root || params.ranks == 1;
    let of = |(_, ps): &(u32, u64)| foreign_bits / (*ps).max(1) as f64 * 1e3;
    report.rank_ps.iter().filter(|(rank, _)| receives(*rank)).map(of).collect()
}

/// Where the time went.
fn with_phases(mut row: Row, report: &Report) -> Row {
    let Some(phases) = &report.phases else { return row };
    // The root's turn, the first, is right after the barrier.
    let barrier_us = phases.waiting.least_us;
    let parts = [
        ("arming", phases.arming.mean_us),
        ("barrier", barrier_us),
        ("data", (phases.receiving.mean_us - barrier_us).max(0.0)),
        ("recovery", phases.recovering.mean_us),
        ("closing", phases.closing.mean_us),
    ];
    let all: f64 = parts.iter().map(|(_, us)| us).sum();
    for (phase, us) in parts {
        row = row.with(&format!("{phase}_us"), us).with(&format!("{phase}_percent"), 100.0 * us / all);
    }
    row
}

/// What the DPA of a rank executed in each phase, mean of ranks and operations.
fn with_work(mut row: Row, report: &Report) -> Row {
    for (phase, work) in report.dpa_work.iter().flat_map(|work| work.phases()) {
        row = row
            .with(&format!("{phase}_dpa_instructions"), work.instructions.mean)
            .with(&format!("{phase}_dpa_cycles"), work.cycles.mean);
    }
    row
}

/// What the DPA's workers and the ranks counted; of workers, operations of the warm-up are included.
fn with_counters(mut row: Row, report: &Report) -> Row {
    let Some(workers) = &report.workers else { return row };
    let costs = [
        ("receive_instructions_per_cqe", workers.instructions_per_cqe()),
        ("send_instructions_per_chunk", workers.instructions_per_post()),
    ];
    for (column, cost) in costs {
        if let Some(cost) = cost {
            row = row.with(column, cost);
        }
    }
    row.with("cqes", workers.cqes)
        .with("doorbells", workers.doorbells)
        .with("duplicates", workers.duplicates)
        .with("wrong_id", workers.wrong_id)
        .with("discarded", workers.discarded)
        .with("control_messages", report.control_messages)
        .with("recovery_reads", report.recovery_reads)
        .with("recovered_bytes", report.recovered_bytes)
}
