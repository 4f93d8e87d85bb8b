//! Runs of collectives.

use clap::ValueEnum as _;
use emu_config::Timing;
use serde::Serialize;

use super::{text, with_accesses};
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::SimSweep;
use crate::evaluate::statistics::Statistics;
use crate::images::Images;
use crate::machine_args::NetworkArgs;
use crate::sim::algorithm::AlgorithmName;
use crate::sim::params::{Operation, SimParams};
use crate::sim::report::Report;
use crate::sim::run as sim;
use crate::sim::skew::PostSkew;
use crate::sim::spec::{AlgorithmArgs, CommunicatorArgs, SimSpec};

/// A run: what `flexcast sim` is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimPoint {
    /// How.
    pub algorithm: AlgorithmName,
    /// What.
    pub spec: SimSpec,
}

impl SimPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &SimSweep) -> Vec<Self> {
        let mut points = Vec::new();
        for &algorithm in &sweep.algorithms {
            for arguments in Self::arguments(sweep, algorithm) {
                for &ranks in &sweep.ranks {
                    for &bytes in &sweep.bytes {
                        for &loss in &sweep.loss_percent {
                            for &skew_us in &sweep.skew_us {
                                points.extend(sweep.seeds.iter().map(|&seed| {
                                    let seed = Some(seed);
                                    let base = Self::base(sweep, &arguments, loss);
                                    Self {
                                        algorithm,
                                        spec: SimSpec { ranks, bytes, skew: PostSkew::of_us(skew_us), seed, ..base },
                                    }
                                }));
                            }
                        }
                    }
                }
            }
        }
        points
    }

    /// An algorithm with each combination of those of a sweep's parameters that it has.
    fn arguments(sweep: &SimSweep, name: AlgorithmName) -> Vec<AlgorithmArgs> {
        use crate::sim::algorithm::{Algorithm, Parameters};
        let has = Algorithm::new(sweep.operation, Some(name), Parameters::default())
            .map_or_else(|_| Parameters::default(), Algorithm::parameters);
        // The radix of a binomial tree is in its name.
        let radix = has.radix.filter(|_| name == AlgorithmName::KNomial);
        let mut all = Vec::new();
        for radix in given(&sweep.radix, radix.is_some()) {
            for segment in given(&sweep.segment_bytes, has.segment_bytes.is_some()) {
                for segments in given(&sweep.segments, has.segments.is_some()) {
                    all.push(AlgorithmArgs { algorithm: Some(name), segments, radix, segment });
                }
            }
        }
        all
    }

    /// What runs of a sweep by an algorithm have in common.
    fn base(sweep: &SimSweep, algorithm: &AlgorithmArgs, loss_percent: f64) -> SimSpec {
        let SimSweep { operation, subgroups, chains, eager, warm_up, iterations, .. } = *sweep;
        let communicator = match algorithm.algorithm {
            Some(AlgorithmName::Multicast | AlgorithmName::Auto) => {
                CommunicatorArgs { subgroups, chains, eager: Some(eager), ..CommunicatorArgs::default() }
            }
            _ => CommunicatorArgs::default(),
        };
        let machine = NetworkArgs {
            topology: sweep.topology.clone(),
            loss: (loss_percent > 0.0).then_some(loss_percent),
            faults: sweep.faults.clone(),
            ..NetworkArgs::default()
        };
        SimSpec {
            op: operation,
            warm_up,
            iterations,
            algorithm: algorithm.clone(),
            communicator,
            machine,
            ..SimSpec::default()
        }
    }

    /// The same under a timing model.
    fn timed(&self, timing: &Timing) -> SimSpec {
        let mut spec = self.spec.clone();
        spec.machine.model.clone_from(&timing.model);
        spec.machine.set.clone_from(&timing.set);
        spec
    }

    fn multicasts(&self) -> bool {
        matches!(self.algorithm, AlgorithmName::Multicast | AlgorithmName::Auto)
    }

    /// What is declared to go wrong: the name of the fault script, losses, skew between posts; or `none`.
    fn noise(&self) -> String {
        let NetworkArgs { faults, loss, .. } = &self.spec.machine;
        let script = faults.as_ref().and_then(|path| path.file_stem()).map(|name| name.to_string_lossy().into_owned());
        let loss = loss.is_some().then(|| "loss".to_owned());
        let skew = (self.spec.skew.skew_us > 0).then(|| "skew".to_owned());
        let all: Vec<String> = script.into_iter().chain(loss).chain(skew).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(" and ") }
    }

    /// Ranks that multicast, or have a share of their own.
    fn senders(&self) -> u64 {
        if self.spec.op == Operation::Broadcast { 1 } else { self.spec.ranks.into() }
    }

    pub(super) fn weight(&self) -> u64 {
        let SimSpec { ranks, bytes, warm_up, iterations, .. } = self.spec;
        // With multicast firmware handles each chunk, and each card is set up; without, the card's network interface
        // does all.
        let (chunk, set_up) = if self.multicasts() { (16, 1024) } else { (2, 64) };
        let chunks = u64::from(warm_up + iterations) * u64::from(ranks) * self.senders() * (bytes / 4096 + 1);
        chunks * chunk + u64::from(ranks) * set_up
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // Of each rank its buffer, and with multicast a card's memory with code, staging and rings.
        let card = if self.multicasts() { 6 << 20 } else { 1 << 20 };
        u64::from(self.spec.ranks) * (card + self.senders() * self.spec.bytes)
    }

    pub(super) fn command(&self, timing: &Timing) -> String {
        self.timed(timing).command()
    }

    pub(super) fn run(&self, images: &Images, timing: &Timing) -> Result<Row, String> {
        let (params, machine) = self.timed(timing).resolve(None).map_err(text)?;
        let config = machine.config_of(params.cards()).map_err(text)?;
        let provider = emu_provider::emulated(config).map_err(text)?;
        let image = images.read("allgather").map_err(text)?;
        let source = sim::source(&params).map_err(text)?;
        let report = sim::run(&provider, Some(&image), &params, &source, &mut |_| {}).map_err(text)?;
        if !report.digest_ok {
            return Err(format!("{} ranks failed: {}", report.failures, report.errors.join("; ")));
        }
        self.row(&params, &report)
    }

    /// The columns that say what is run.
    fn parameters(&self, model: &str, topology: &str) -> Row {
        let SimSpec { op, ranks, bytes, skew: PostSkew { skew_us }, seed, warm_up, .. } = self.spec;
        let algorithm = self.algorithm.to_possible_value();
        let mut row = Row::new(Kind::Emulated, model)
            .with("operation", op.name())
            .with("algorithm", algorithm.as_ref().map_or("", |value| value.get_name()))
            .with("ranks", ranks)
            .with("bytes", bytes)
            .with("topology", topology)
            .with("loss_percent", self.spec.machine.loss.unwrap_or_default())
            .with("noise", self.noise().as_str());
        let AlgorithmArgs { segments, radix, segment, .. } = self.spec.algorithm;
        let parameters =
            [("radix", radix.map(u64::from)), ("segment_bytes", segment), ("segments", segments.map(u64::from))];
        for (column, value) in parameters {
            row = value.into_iter().fold(row, |row, value| row.with(column, value));
        }
        if skew_us > 0 {
            row = row.with("skew_us", skew_us);
        }
        if warm_up != 1 {
            row = row.with("warm_up", warm_up);
        }
        row.with("seed", seed.unwrap_or_default())
    }

    fn with_chains(&self, row: Row) -> Row {
        if self.multicasts() { row.with("chains", self.spec.communicator.chains) } else { row }
    }

    pub(super) fn asked(&self) -> Row {
        let SimSpec { ranks, machine, .. } = &self.spec;
        let topology = machine.topology.clone().unwrap_or_else(|| format!("switch-{}", (*ranks).max(2)));
        self.with_chains(self.parameters("", &topology))
    }

    fn row(&self, params: &SimParams, report: &Report) -> Result<Row, String> {
        let rates = rates(params, report);
        let spread = Statistics::of(&rates).ok_or("no rank reports its time")?;
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

/// The values that a sweep gives for a parameter; the default alone where it gives none, or the algorithm has no such
/// parameter.
fn given<T: Copy>(values: &[T], has: bool) -> Vec<Option<T>> {
    if has && !values.is_empty() { values.iter().copied().map(Some).collect() } else { vec![None] }
}

/// What each rank received of others in each operation, over its own time, in Gbit/s. The root of a Broadcast receives
/// nothing.
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
    // Of an operation without any there are no shares.
    let all = parts.iter().map(|(_, us)| us).sum::<f64>().max(f64::MIN_POSITIVE);
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
