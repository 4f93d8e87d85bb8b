//! Benchmarks on the flow-level simulation: latency and overlap of one collective, as the OSU benchmarks measure them.

use std::fmt;
use std::time::Instant;

use flexcast_proto::service::{Delivery, LocalCopies};
use serde::Serialize;

use super::engine::{Flow, FlowCounts, Group};
use super::error::FlowError;
use super::params::{FlowParams, Placement};
use super::program::{By, Kind, Operation, Step, barrier};
use super::skew::Skew;
use crate::overlap;

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Bench {
    /// The collective.
    pub kind: Kind,
    /// Bytes of each block.
    pub bytes: u64,
    /// Who carries it out.
    pub by: By,
    /// Calls before those that are counted, and those that are.
    pub turns: (u32, u32),
    /// How much later than the first each rank calls.
    pub skew: Skew,
    /// Seed of the skew.
    pub seed: u64,
    /// Whether overlap is measured as well, by a second run.
    pub overlap: bool,
}

/// What was found. Times are virtual, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowReport {
    /// The collective.
    pub op: Kind,
    /// Who carried it out.
    pub by: &'static str,
    /// Ranks.
    pub ranks: u32,
    /// Hosts.
    pub hosts: u32,
    /// Service processes of each card.
    pub service_processes: u32,
    /// Where ranks are.
    pub placement: Placement,
    /// Bytes of each block.
    pub bytes: u64,
    /// Calls that are counted.
    pub iterations: u32,
    /// From a rank's own call to its end: mean over ranks and calls.
    pub latency_us: f64,
    /// The shortest and the longest call, each as the mean over ranks.
    pub min_us: f64,
    /// See `min_us`.
    pub max_us: f64,
    /// From a rank's own call to its end where each computes meanwhile as long as its call has taken: mean over ranks
    /// and calls.
    pub overall_us: Option<f64>,
    /// 100 - (overall - compute) / pure x 100, at least 0: overall where all compute as long as the pure latency.
    pub overlap_percent: Option<f64>,
    /// Time in the call that posts, mean over ranks.
    pub post_us: f64,
    /// Announcements that came before their rank had called, of a hundred.
    pub late_percent: f64,
    /// Those of them before any rank of the host.
    pub late_none_ready_percent: f64,
    /// Of late announcements those that another rank of the host took, of a hundred.
    pub rescued_percent: f64,
    /// Counts of all calls, those before the counted ones as well.
    pub counts: FlowCounts,
    /// Time that the simulation has taken, in seconds (measured).
    pub wall_s: f64,
}

fn script(bench: &Bench, ranks: u32, rank: u32, compute_ps: Option<u64>) -> Vec<Step> {
    let Bench { kind, bytes, by, turns: (warm_up, iterations), ref skew, seed, .. } = *bench;
    let mut steps = Vec::new();
    for turn in 0..warm_up + iterations {
        steps.extend([Step::Post(barrier(1)), Step::WaitAll]);
        let offset_ps = skew.offset_ps(seed, ranks, rank, turn);
        if offset_ps > 0 {
            steps.push(Step::Compute(offset_ps));
        }
        let mark = |number| turn.checked_sub(warm_up).map(|turn| Step::Mark(2 * turn + number));
        steps.extend(mark(0));
        steps.push(Step::Post(Operation { group: 0, kind, bytes, by }));
        steps.extend(compute_ps.map(Step::Compute));
        steps.push(Step::WaitAll);
        steps.extend(mark(1));
    }
    steps
}

/// Mean over ranks of each call, in microseconds.
fn latencies(flow: &Flow, ranks: u32, iterations: u32) -> Vec<f64> {
    let mut sums = vec![0_u64; iterations as usize];
    for rank in 0..ranks {
        let marks = flow.marks(rank);
        for (sum, pair) in sums.iter_mut().zip(marks.chunks_exact(2)) {
            *sum += pair[1].1 - pair[0].1;
        }
    }
    sums.into_iter().map(|sum| sum as f64 / f64::from(ranks) / 1e6).collect()
}

/// Mean of a rank's own calls.
fn own_latency_ps(flow: &Flow, rank: u32, iterations: u32) -> u64 {
    let calls = flow.marks(rank).chunks_exact(2).map(|pair| pair[1].1 - pair[0].1);
    calls.sum::<u64>() / u64::from(iterations)
}

/// Measures.
///
/// # Errors
/// Parameters that cannot be.
pub fn bench(params: FlowParams, bench: &Bench) -> Result<FlowReport, FlowError> {
    let begun = Instant::now();
    let ranks = params.ranks();
    let iterations = bench.turns.1;
    if iterations == 0 {
        return Err(FlowError::Parameter { what: "iterations", value: 0, limit: "give at least 1" });
    }
    let all = Group { ranks: (0..ranks).collect() };
    let groups = [all.clone(), all];
    // Each rank computes as long as its own calls have taken, as in the OSU benchmarks.
    let run = |compute_ps: &dyn Fn(u32) -> Option<u64>| -> Result<Flow, FlowError> {
        let scripts = (0..ranks).map(|rank| script(bench, ranks, rank, compute_ps(rank))).collect();
        let mut flow = Flow::new(params, &groups, scripts)?;
        flow.run()?;
        Ok(flow)
    };
    let flow = run(&|_| None)?;
    let all = latencies(&flow, ranks, iterations);
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let latency_us = mean(&all);
    let overall_us = if bench.overlap {
        let computing = run(&|rank| Some(own_latency_ps(&flow, rank, iterations)))?;
        Some(mean(&latencies(&computing, ranks, iterations)))
    } else {
        None
    };
    let overlap = |overall_us: f64| overlap::percent(latency_us, latency_us, overall_us);
    let counts = flow.counts();
    let percent = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 * 100.0 };
    let call_ps: u64 = (0..ranks).map(|rank| flow.times(rank).call_ps).sum();
    Ok(FlowReport {
        op: bench.kind,
        by: match bench.by {
            By::Service(LocalCopies::Card) if bench.kind == Kind::Allgatherv => "service, copies by the card",
            By::Service(_) => "service",
            By::Staged(Delivery::Flat) => "service, staged, flat",
            By::Staged(Delivery::Direct) => "service, direct",
            By::Staged(Delivery::Hierarchical) => "service, staged, hierarchical",
            By::Hosts { .. } => "hosts",
        },
        ranks,
        hosts: params.hosts,
        service_processes: params.processes_per_host,
        placement: params.placement,
        bytes: bench.bytes,
        iterations,
        latency_us,
        min_us: all.iter().copied().fold(f64::INFINITY, f64::min),
        max_us: all.iter().copied().fold(0.0, f64::max),
        overall_us,
        overlap_percent: overall_us.map(overlap),
        post_us: call_ps as f64 / f64::from(ranks) / f64::from(bench.turns.0 + iterations) / 1e6,
        late_percent: percent(counts.late, counts.announcements),
        late_none_ready_percent: percent(counts.late_none_ready, counts.announcements),
        rescued_percent: percent(counts.late - counts.late_none_ready, counts.late),
        counts,
        wall_s: begun.elapsed().as_secs_f64(),
    })
}

impl fmt::Display for FlowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, by, ranks, hosts, service_processes, placement, bytes, iterations, latency_us, .. } = self;
        writeln!(f, "{op} of {bytes} bytes a block among {ranks} ranks on {hosts} hosts ({placement}), by {by}")?;
        if *by != "hosts" {
            writeln!(
                f,
                "{service_processes} service processes a card, at most {} Reads at once",
                self.counts.most_active_reads
            )?;
        }
        writeln!(
            f,
            "latency {latency_us:.1} us ({:.1} to {:.1}), mean over ranks of {iterations} calls",
            self.min_us, self.max_us
        )?;
        if let Some(overlap) = self.overlap_percent {
            writeln!(f, "overlap {overlap:.1} %, where each rank computes as long as its call takes")?;
        }
        if self.counts.announcements > 0 {
            writeln!(
                f,
                "announcements: {:.2} % late, {:.2} % with no rank of the host ready, {:.1} % of the late ones rescued",
                self.late_percent, self.late_none_ready_percent, self.rescued_percent
            )?;
        }
        write!(f, "times emulated at flow level; {:.1} s (measured), {} events", self.wall_s, self.counts.events)
    }
}
