//! One run on an emulated machine of its own, and its row. Bytes are compared before a time is told.

use std::path::Path;

use clap::ValueEnum as _;
use serde::Serialize;

use super::row::{Kind, Row};
use super::spec::{SimSweep, TputSweep};
use super::statistics::Statistics;
use crate::machine::MachineParams;
use crate::provider;
use crate::sim::algorithm::{Algorithm, AlgorithmName, Parameters};
use crate::sim::params::{Operation, SimParams};
use crate::sim::run as sim;
use crate::timing::TimingParams;
use crate::tput::plan::{Params, Plan, Transport};
use crate::tput::run::{Cards, ImageFile, made_up_bytes, run as run_plan};

/// The line rate of the cable between two emulated cards.
pub const CABLE_GBIT_PER_S: f64 = 200.0;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Point {
    /// Of the throughput harness.
    Tput {
        /// Image by name.
        image: String,
        /// Transport.
        transport: Transport,
        /// Receive workers.
        threads: u32,
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Bytes to send.
        bytes: u64,
        /// Seed of the bytes.
        seed: u64,
        /// Repetitions that are not counted.
        warm_up: u32,
        /// Repetitions that are.
        iterations: u32,
    },
    /// Of a collective.
    Sim {
        /// What the ranks do.
        operation: Operation,
        /// How.
        algorithm: String,
        /// Ranks.
        ranks: u32,
        /// Bytes of each, or of the root.
        bytes: u64,
        /// Topology.
        topology: Option<String>,
        /// Subgroups and receive threads.
        subgroups: u32,
        /// Roots at a time.
        chains: u32,
        /// Frames lost, in percent.
        loss_percent: f64,
        /// Seed.
        seed: u64,
        /// Operations that are not counted.
        warm_up: u32,
        /// Operations that are.
        iterations: u32,
    },
}

/// All runs of a sweep.
#[must_use]
pub fn tput_points(sweep: &TputSweep) -> Vec<Point> {
    let TputSweep { warm_up, iterations, .. } = *sweep;
    let mut points = Vec::new();
    for image in &sweep.images {
        for &transport in &sweep.transports {
            for &bytes in &sweep.bytes {
                for &chunk_bytes in &sweep.chunk_bytes {
                    for &threads in &sweep.threads {
                        for &seed in &sweep.seeds {
                            let image = image.clone();
                            let rest = (threads, chunk_bytes, bytes, seed);
                            let (threads, chunk_bytes, bytes, seed) = rest;
                            points.push(Point::Tput {
                                image,
                                transport,
                                threads,
                                chunk_bytes,
                                bytes,
                                seed,
                                warm_up,
                                iterations,
                            });
                        }
                    }
                }
            }
        }
    }
    points
}

/// All runs of a sweep.
#[must_use]
pub fn sim_points(sweep: &SimSweep) -> Vec<Point> {
    let SimSweep { operation, subgroups, chains, warm_up, iterations, .. } = *sweep;
    let mut points = Vec::new();
    for algorithm in &sweep.algorithms {
        for &ranks in &sweep.ranks {
            for &bytes in &sweep.bytes {
                for &loss_percent in &sweep.loss_percent {
                    for &seed in &sweep.seeds {
                        points.push(Point::Sim {
                            operation,
                            algorithm: algorithm.clone(),
                            ranks,
                            bytes,
                            topology: sweep.topology.clone(),
                            subgroups,
                            chains,
                            loss_percent,
                            seed,
                            warm_up,
                            iterations,
                        });
                    }
                }
            }
        }
    }
    points
}

/// Bytes that a chunk takes of an Ethernet link, with all headers, preamble and gap, in packets of 4096 bytes of payload.
#[must_use]
pub fn wire_bytes(transport: Transport, chunk_bytes: u64) -> u64 {
    let packets = chunk_bytes.div_ceil(4096).max(1);
    // Preamble and gap 20, Ethernet 14 and 4, IPv4 20, UDP 8, BTH 12, ICRC 4; the immediate 4, and RETH 16 or DETH 8.
    let once = match transport {
        Transport::Uc => 20,
        Transport::Ud => 12,
    };
    chunk_bytes + packets * 82 + once
}

/// Payload that the link carries at most, in Gbit/s.
#[must_use]
pub fn link_goodput(transport: Transport, chunk_bytes: u64, gbit_per_s: f64) -> f64 {
    gbit_per_s * chunk_bytes as f64 / wire_bytes(transport, chunk_bytes) as f64
}

impl Point {
    /// How large it is beside others: the largest are begun first.
    #[must_use]
    pub fn weight(&self) -> u64 {
        match *self {
            Self::Tput { chunk_bytes, bytes, warm_up, iterations, .. } => {
                u64::from(warm_up + iterations) * (bytes / chunk_bytes.max(1) + bytes / 4096)
            }
            Self::Sim { operation, ranks, bytes, warm_up, iterations, .. } => {
                let senders = if operation == Operation::Broadcast { 1 } else { u64::from(ranks) };
                u64::from(warm_up + iterations) * u64::from(ranks) * senders * (bytes / 4096 + 1) * 8
            }
        }
    }

    /// The command that does the same.
    #[must_use]
    pub fn command(&self, model: &TimingParams) -> String {
        let mut text = match self {
            Self::Tput { image, transport, threads, chunk_bytes, bytes, seed, warm_up, iterations } => format!(
                "flexcast tput --image target/device/emu/{image}.elf --transport {} --threads {threads} --chunk {chunk_bytes} \
                 --bytes {bytes} --seed {seed} --warm-up {warm_up} --iterations {iterations}",
                transport.name()
            ),
            Self::Sim {
                operation, algorithm, ranks, bytes, topology, subgroups, chains, loss_percent, seed, ..
            } => {
                let Self::Sim { warm_up, iterations, .. } = self else { return String::new() };
                let topology = topology.as_ref().map_or_else(String::new, |name| format!(" --topology {name}"));
                let loss = if *loss_percent > 0.0 { format!(" --loss {loss_percent}") } else { String::new() };
                let multicast = if algorithm == "multicast" {
                    format!(" --subgroups {subgroups} --chains {chains}")
                } else {
                    String::new()
                };
                format!(
                    "flexcast sim --op {} --algorithm {algorithm} --ranks {ranks} --bytes {bytes}{multicast}{topology}{loss} \
                     --seed {seed} --warm-up {warm_up} --iterations {iterations}",
                    operation.name()
                )
            }
        };
        if let Some(model) = &model.model {
            text.push_str(&format!(" --model {model}"));
        }
        for change in &model.changes {
            text.push_str(&format!(" --set {change}"));
        }
        text + " --json"
    }

    /// Runs it on a machine of the calling thread's.
    ///
    /// # Errors
    /// Why it could not be run, or that its bytes are wrong.
    pub fn run(&self, images: &Path, model: &TimingParams) -> Result<Row, String> {
        match self {
            Self::Tput { .. } => self.tput(images, model),
            Self::Sim { .. } => self.sim(images, model),
        }
    }

    fn tput(&self, images: &Path, timing: &TimingParams) -> Result<Row, String> {
        let Self::Tput { image, transport, threads, chunk_bytes, bytes, seed, warm_up, iterations } = self else {
            return Err("no run of the throughput harness".to_owned());
        };
        let (transport, chunk_bytes) = (*transport, *chunk_bytes);
        let params = Params {
            transport,
            threads: *threads,
            chunk_bytes,
            iterations: *iterations,
            warm_up: *warm_up,
            seed: *seed,
            ..Params::default()
        };
        let plan = Plan::new(params, *bytes).map_err(text)?;
        let machine = MachineParams { seed: *seed, timing: timing.clone(), ..MachineParams::default() };
        let config = machine.config().map_err(text)?;
        let model = config.model_name().to_owned();
        let provider = provider::emulated(config).map_err(text)?;
        let cards = Cards::open(&provider, None, None).map_err(text)?;
        let file = read_image(images, image)?;
        let report =
            run_plan(&cards, &file, &plan, &made_up_bytes(*bytes, *seed), &model, &mut |_| {}).map_err(text)?;
        if !report.digest_ok || report.missing > 0 {
            return Err(format!(
                "{} chunks are missing, bytes that arrived equal: {}",
                report.missing, report.digest_ok
            ));
        }
        let gbit_per_s = report.goodput_gib_s * f64::from(1 << 30) * 8.0 / 1e9;
        Ok(Row::new(Kind::Emulated, &model)
            .with("image", image.as_str())
            .with("transport", transport.name())
            .with("threads", *threads)
            .with("chunk_bytes", chunk_bytes)
            .with("bytes", *bytes)
            .with("seed", *seed)
            .with("goodput_gib_s", report.goodput_gib_s)
            .with("goodput_gbit_s", gbit_per_s)
            .with("link_percent", 100.0 * gbit_per_s / link_goodput(transport, chunk_bytes, CABLE_GBIT_PER_S))
            .with("chunks_m_s", gbit_per_s * 1e3 / 8.0 / chunk_bytes as f64)
            .with("instructions_per_cqe", report.instructions_per_cqe)
            .with("cycles_per_cqe", report.cycles_per_cqe)
            .with("instructions_per_cycle", report.instructions_per_cqe / report.cycles_per_cqe))
    }

    fn sim(&self, images: &Path, timing: &TimingParams) -> Result<Row, String> {
        let Self::Sim { operation, algorithm, ranks, bytes, topology, subgroups, chains, loss_percent, .. } = self
        else {
            return Err("no run of a collective".to_owned());
        };
        let Self::Sim { seed, warm_up, iterations, .. } = self else { return Err("no run of a collective".to_owned()) };
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
            config: flexcast::Config::default(),
            trouble: Vec::new(),
        };
        params.check().map_err(text)?;
        let slots = 1024 / subgroups.clamp(&1, &64).next_power_of_two();
        let config = flexcast::Config {
            chains: *chains,
            slots,
            receive_batch: 64.min(slots / 2),
            max_receive_bytes: params.receive_bytes().max(1),
            ..flexcast::Config::default().with_subgroups(*subgroups)
        };
        let params = SimParams { config, ..params };
        let machine = MachineParams {
            topology: topology.clone(),
            loss_ppm: (loss_percent * 1e4).round() as u32,
            seed: *seed,
            timing: timing.clone(),
            ..MachineParams::default()
        };
        let config = machine.config_of(params.cards()).map_err(text)?;
        let provider = provider::emulated(config).map_err(text)?;
        let image = read_image(images, "allgather")?;
        let report = sim::run(&provider, Some(&image), &params, &sim::source(&params), &mut |_| {}).map_err(text)?;
        if !report.digest_ok {
            return Err(format!("{} ranks failed: {}", report.failures, report.errors.join("; ")));
        }
        let ranks_f = f64::from(*ranks);
        let foreign_bits = match operation {
            Operation::Broadcast => 8.0 * report.receive_bytes as f64,
            _ => 8.0 * report.receive_bytes as f64 * (1.0 - 1.0 / ranks_f),
        };
        // The root of a Broadcast receives nothing.
        let receives = |rank: u32| *operation != Operation::Broadcast || rank != params.root || *ranks == 1;
        let rates = |from: &[(u32, u64)]| -> Vec<f64> {
            from.iter()
                .filter(|(rank, _)| receives(*rank))
                .map(|(_, ps)| foreign_bits / (*ps).max(1) as f64 * 1e3)
                .collect()
        };
        let spread = Statistics::of(&rates(&report.rank_ps)).ok_or("no rank tells its time")?;
        let operations = f64::from(report.iterations);
        let mut row = Row::new(Kind::Emulated, &report.model)
            .with("operation", operation.name())
            .with("algorithm", algorithm.as_str())
            .with("ranks", *ranks)
            .with("bytes", *bytes)
            .with("topology", report.machine.topology.as_str())
            .with("loss_percent", *loss_percent)
            .with("seed", *seed)
            .with("time_us", report.virtual_time_us)
            .with("goodput_gbit_s", report.goodput_gbit_s);
        if algorithm == "multicast" {
            row = row.with("chains", *chains);
        }
        for (column, value) in [
            ("rank_gbit_s_median", spread.median),
            ("rank_gbit_s_mean", spread.mean),
            ("rank_gbit_s_min", spread.min),
            ("rank_gbit_s_max", spread.max),
            ("rank_gbit_s_p1", spread.p1),
            ("rank_gbit_s_p5", spread.p5),
            ("rank_gbit_s_p95", spread.p95),
            ("rank_gbit_s_p99", spread.p99),
            ("rank_variation", spread.variation),
            ("rank_gbit_s_median_from", spread.median_from),
            ("rank_gbit_s_median_to", spread.median_to),
        ] {
            row = row.with(column, value);
        }
        row = row
            .with("samples", spread.samples as u64)
            .with("switch_bytes", report.traffic.switch_bytes_total as f64 / operations)
            .with("host_tx_bytes", report.traffic.host_tx_bytes as f64 / operations)
            .with("recovered_chunks", report.recovered_chunks);
        let Some(phases) = &report.phases else { return Ok(row) };
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
        Ok(row)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn read_image(images: &Path, name: &str) -> Result<ImageFile, String> {
    let path = images.join(name).with_extension("elf");
    let elf = std::fs::read(&path).map_err(|error| {
        format!("image `{}` cannot be read ({error}); build the images with `cargo xtask build`", path.display())
    })?;
    Ok(ImageFile { name: name.to_owned(), elf })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_wire() {
        assert_eq!((wire_bytes(Transport::Uc, 4096), wire_bytes(Transport::Ud, 4096)), (4198, 4190));
        assert_eq!((wire_bytes(Transport::Uc, 64), wire_bytes(Transport::Ud, 64)), (166, 158));
        assert_eq!(wire_bytes(Transport::Uc, 8192), 8192 + 2 * 82 + 20);
        let gib_s = link_goodput(Transport::Uc, 4096, 200.0) * 1e9 / 8.0 / f64::from(1 << 30);
        assert!((gib_s - 22.72).abs() < 0.01, "{gib_s}");
    }

    #[test]
    fn a_sweep_is_every_combination() {
        let sweep = TputSweep {
            images: vec!["reference".to_owned(), "receive".to_owned()],
            transports: vec![Transport::Uc, Transport::Ud],
            threads: vec![1, 2, 4],
            chunk_bytes: vec![4096],
            bytes: vec![8 << 20],
            seeds: vec![1],
            warm_up: 1,
            iterations: 1,
        };
        let points = tput_points(&sweep);
        assert_eq!(points.len(), 12);
        let model = TimingParams { model: Some("m1".to_owned()), changes: Vec::new() };
        assert_eq!(
            points[11].command(&model),
            "flexcast tput --image target/device/emu/receive.elf --transport ud --threads 4 --chunk 4096 --bytes 8388608 --seed 1 \
             --warm-up 1 --iterations 1 --model m1 --json"
        );
        assert!(points[0].weight() < Point::weight(&tput_points(&TputSweep { chunk_bytes: vec![64], ..sweep })[0]));
    }
}
