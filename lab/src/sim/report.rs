//! Report of a simulation: one JSON object, or a few lines.

use std::collections::{BTreeMap, BTreeSet};

use emu_config::{DrivenFrom, Memory};
use emu_machine::{Executed, Race, RaceKind, Wiring, with_world};
use flexcast::DatapathKind;
use serde::Serialize;

use super::SimError;
use super::algorithm::{Algorithm, Parameters};
use super::baseline;
pub use super::counts::{Control, PhaseTime, PhaseTimes, Workers};
use super::params::{Operation, SimParams};
use super::settings::Settings;
use super::side::Side;
use super::skew::PostSkew;
pub use super::traffic::Traffic;
pub use super::work::Work;
use crate::accesses::Accesses;
use crate::overlap::Overlap;
use crate::tput::report::Kind;

/// One rank's end of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The rank was dead before it ended; the rest means nothing then.
    pub dead: bool,
    /// Whether it is of a communicator other than the first.
    pub is_further: bool,
    /// Whether its buffer is what was sent; `None` if the operation failed.
    pub equal: Option<bool>,
    /// Why it failed.
    pub error: Option<String>,
    /// Kind of that.
    pub kind: Option<&'static str>,
    /// What the library reports; nothing without multicast.
    pub report: Option<flexcast::Report>,
    /// Virtual time of its post.
    pub posted_ps: Option<u64>,
    /// Virtual time from its own post to its end, if it ended well.
    pub took_ps: Option<u64>,
}

/// What the library chose, as [`flexcast::Decision`] has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// What carried the data.
    pub algorithm: &'static str,
    /// Times that the cost model expected, in microseconds, by algorithm; of those alone that could be chosen.
    pub predicted_us: BTreeMap<&'static str, f64>,
}

impl Choice {
    fn of(decision: &flexcast::Decision) -> Self {
        let predicted = |algorithm: flexcast::Algorithm| {
            Some((algorithm.name(), decision.predicted(algorithm)?.as_secs_f64() * 1e6))
        };
        let predicted_us = flexcast::Algorithm::ALL.into_iter().filter_map(predicted).collect();
        Self { algorithm: decision.algorithm().name(), predicted_us }
    }
}

/// The emulated machine that it ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Name of the topology.
    pub topology: String,
    /// Cards.
    pub cards: usize,
    /// Entries of the fault script, losses in percent among them: one for each host's link.
    pub faults: usize,
    /// Seed of the faults.
    pub seed: u64,
    /// Where the process ran that drove the cards.
    pub driven_from: DrivenFrom,
    /// Memory model.
    pub memory: Memory,
    /// Races found so far; `None` if races were not detected.
    pub races: Option<u64>,
}

impl Machine {
    /// The calling thread's.
    ///
    /// # Errors
    /// [`SimError::Emulator`].
    pub fn now() -> Result<Self, SimError> {
        Ok(with_world(|world| {
            let config = world.config();
            let (topology, faults, seed) = match &config.wiring {
                Wiring::Network(network) => {
                    (network.topology.name().to_owned(), network.faults.faults.len(), network.faults.seed)
                }
                Wiring::Cable(cable) => ("cable".to_owned(), usize::from(cable.drop_ppm > 0), cable.seed),
            };
            let memory = config.memory.into();
            let races = config.detect_races.then(|| world.race_count());
            let driven_from = config.driven_from;
            Self { topology, cards: world.card_count(), faults, seed, driven_from, memory, races }
        })?)
    }
}

/// The high-water mark of the resident set, as Linux reports it.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// One operation of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Its end on each rank.
    pub(super) outcomes: Vec<Outcome>,
    /// What the network carried of it.
    pub(super) traffic: Traffic,
    /// Control messages of each rank.
    pub(super) control: Vec<Control>,
    /// What the DPA has executed for each rank that ended well, by phase.
    pub(super) work: Vec<[Executed; 5]>,
    /// Virtual time from the first post to the last end.
    pub(super) took_ps: u64,
    /// Wall time likewise.
    pub(super) wall_s: f64,
    /// Calls with work to do that all hosts made until the data was there.
    pub(super) host_calls: u64,
    /// Accesses of the DPA's threads before it.
    pub(super) accesses: Option<Accesses>,
}

impl Sample {
    /// Whether a rank failed or died.
    pub(super) fn is_broken(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.error.is_some() || outcome.dead)
    }
}

/// A simulation's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was done.
    pub op: Operation,
    /// How.
    pub algorithm: &'static str,
    /// What moved the data, where that was not the DPA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datapath: Option<&'static str>,
    /// Virtual time that a chunk took the processor which received it, in nanoseconds, where it took any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_ns: Option<u64>,
    /// Its parameters, where it has any.
    #[serde(flatten)]
    pub parameters: Parameters,
    /// What the library chose for the operations that are counted, and the times that it expected; with `auto` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
    /// How what moved the bytes was set.
    pub settings: Settings,
    /// Ranks.
    pub ranks: u32,
    /// Ranks that share a card.
    pub ranks_per_card: u32,
    /// Bytes that a rank contributes, their mean where they differ; the root's of a Broadcast, those for each rank of
    /// an Alltoall.
    pub bytes: u64,
    /// Bytes that every rank has in the end; a Reduce-Scatter gives the last ranks less if the elements do not divide.
    pub receive_bytes: u64,
    /// What all ranks have contributed to one operation of each communicator, in bytes.
    pub contributed_bytes: u64,
    /// Operations before those that are counted.
    pub warm_up: u32,
    /// Operations that are counted.
    pub iterations: u32,
    /// Payload on the network, over all operations.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// The skew that was asked for.
    #[serde(flatten)]
    pub skew: PostSkew,
    /// Communicators side by side and places of the bytes, where they are not as by default.
    #[serde(flatten)]
    pub side: Option<Side>,
    /// Virtual time from the first post to the last, mean of the operations.
    pub last_post_us: f64,
    /// Virtual time from the first post to the last release, mean of the operations.
    pub virtual_time_us: f64,
    /// How much goes on while the hosts compute; only where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// Virtual time of a rank, from its own post to its release.
    pub rank_time: PhaseTime,
    /// Bytes that a rank got from others per unit of that time, mean of the ranks, in Gbit/s; of reductions, whose
    /// bytes on the way depend on the algorithm, those that it contributed.
    pub goodput_gbit_s: f64,
    /// Whether every rank's buffer is, byte by byte, what was sent, in every operation.
    pub digest_ok: bool,
    /// Whether the buffers of the ranks that report success are right.
    #[serde(skip)]
    pub bytes_ok: bool,
    /// Operations of ranks that were alive at their end.
    #[serde(skip)]
    pub live: u64,
    /// Those of them that are of communicators other than the first.
    #[serde(skip)]
    pub live_concurrent: u64,
    /// Operations of those communicators that failed.
    #[serde(skip)]
    pub failures_concurrent: u64,
    /// Operations of ranks that failed, and the errors they gave, each once.
    pub failures: u64,
    /// The errors.
    pub errors: Vec<String>,
    /// Their kinds.
    #[serde(skip)]
    pub failure_kinds: BTreeSet<&'static str>,
    /// Chunks that multicast lost and a neighbour had, over all ranks.
    pub recovered_chunks: u64,
    /// Their bytes.
    pub recovered_bytes: u64,
    /// Reads that fetched them.
    pub recovery_reads: u64,
    /// Control messages of all ranks.
    pub control_messages: u64,
    /// Most of one rank in one operation.
    pub control_messages_most: u64,
    /// Those of each kind.
    pub control: Control,
    /// Where the time went; multicast alone has these phases.
    pub phases: Option<PhaseTimes>,
    /// What the DPA's threads have executed in each phase; multicast alone has any, and one rank to a card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpa_work: Option<Work>,
    /// What the workers on the DPA counted, operations of the warm-up included; multicast alone has any.
    pub workers: Option<Workers>,
    /// Which level of memory served accesses of the DPA's threads in the operations that are counted; not without a
    /// timing model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Accesses>,
    /// SHA-256 of the bytes in the buffer of the first rank that has ended well, after the last operation.
    pub sha256: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// Where the times come from.
    pub kind: Kind,
    /// Cost model behind them.
    pub model: String,
    /// Wall time of the operations in seconds, measured; says nothing of a card.
    pub wall_s: f64,
    /// Wall time of making cards and communicators in seconds, measured.
    pub set_up_s: f64,
    /// Most memory that this process has had resident so far, in bytes, measured; `None` where the system does not
    /// report it.
    pub peak_memory_bytes: Option<u64>,
    /// Virtual time of every operation that ended well, from its post to its end, and its rank: operation by operation.
    #[serde(skip)]
    pub rank_ps: Vec<(u32, u64)>,
    #[serde(skip)]
    took_ps: u64,
    #[serde(skip)]
    longest_ps: u64,
    #[serde(skip)]
    last_post_ps: u64,
}

impl Report {
    /// Whether a race is what the library promises: after an operation has failed its buffers get other keys, so that
    /// peers that do not know of the failure are refused.
    #[must_use]
    pub fn accounts_for(&self, race: &Race) -> bool {
        race.kind == RaceKind::RevokedKey && self.failures > 0
    }

    pub(super) fn new(params: &SimParams) -> Result<Self, SimError> {
        let ranks = u64::from(params.ranks.max(1));
        Ok(Self {
            op: params.operation,
            algorithm: params.algorithm.name(),
            datapath: Some(params.datapath).filter(|kind| *kind != DatapathKind::Dpa).map(DatapathKind::name),
            chunk_ns: u64::try_from(params.chunk_time.as_nanos()).ok().filter(|ns| *ns > 0),
            parameters: params.algorithm.parameters(),
            choice: None,
            settings: match params.algorithm {
                Algorithm::Multicast | Algorithm::Automatic => Settings::Communicator(params.config.clone()),
                _ => Settings::Baseline(baseline::config(params)),
            },
            ranks: params.ranks,
            ranks_per_card: params.ranks_per_card,
            bytes: params
                .total_bytes
                .filter(|_| params.operation != Operation::Broadcast)
                .map_or(params.bytes, |total| total / ranks),
            receive_bytes: params.receive_bytes(),
            contributed_bytes: params.source_bytes(),
            warm_up: params.warm_up,
            iterations: params.iterations,
            traffic: Traffic::default(),
            skew: params.skew,
            side: Some(params.side).filter(|side| *side != Side::default()),
            last_post_us: 0.0,
            virtual_time_us: 0.0,
            overlap: None,
            rank_time: PhaseTime::default(),
            goodput_gbit_s: 0.0,
            digest_ok: true,
            bytes_ok: true,
            live: 0,
            live_concurrent: 0,
            failures_concurrent: 0,
            failures: 0,
            errors: Vec::new(),
            failure_kinds: BTreeSet::new(),
            recovered_chunks: 0,
            recovered_bytes: 0,
            recovery_reads: 0,
            control_messages: 0,
            control_messages_most: 0,
            control: Control::default(),
            phases: None,
            dpa_work: None,
            workers: None,
            accesses: None,
            sha256: None,
            machine: Machine::now()?,
            kind: Kind::Emulated,
            model: with_world(|world| world.config().model_name().to_owned())?,
            wall_s: 0.0,
            set_up_s: 0.0,
            peak_memory_bytes: None,
            rank_ps: Vec::new(),
            took_ps: 0,
            longest_ps: 0,
            last_post_ps: 0,
        })
    }

    pub(super) fn add(&mut self, sample: &Sample) -> Result<(), SimError> {
        Accesses::add_since(&mut self.accesses, sample.accesses.as_ref())?;
        for control in &sample.control {
            self.control_messages += control.total();
            self.control_messages_most = self.control_messages_most.max(control.total());
            self.control += *control;
        }
        self.traffic += sample.traffic;
        self.took_ps += sample.took_ps;
        self.longest_ps = self.longest_ps.max(sample.took_ps);
        self.wall_s += sample.wall_s;
        let posts_ps = || sample.outcomes.iter().filter_map(|outcome| outcome.posted_ps);
        self.last_post_ps += posts_ps().max().unwrap_or_default() - posts_ps().min().unwrap_or_default();
        if !sample.work.is_empty() {
            self.dpa_work.get_or_insert_default().add(&sample.work);
        }
        for (rank, outcome) in (0..).zip(&sample.outcomes).filter(|(_, outcome)| !outcome.dead) {
            self.live += 1;
            self.live_concurrent += u64::from(outcome.is_further);
            self.rank_ps.extend(outcome.took_ps.map(|took_ps| (rank, took_ps)));
            self.rank_time.add(Some(0), outcome.took_ps);
            self.bytes_ok &= outcome.equal.unwrap_or(true);
            if let Some(error) = &outcome.error {
                self.failures += 1;
                self.failures_concurrent += u64::from(outcome.is_further);
                self.failure_kinds.extend(outcome.kind);
                if !self.errors.contains(error) {
                    self.errors.push(error.clone());
                }
            }
            if let Some(report) = &outcome.report {
                self.recovered_chunks += report.recovered_chunks;
                self.recovered_bytes += report.recovered_bytes;
                self.recovery_reads += report.reads;
                if self.algorithm == Algorithm::Automatic.name() {
                    self.choice = Some(Choice::of(&report.decision));
                }
                self.phases.get_or_insert_default().add(report.phases.in_ps());
            }
        }
        Ok(())
    }

    /// The longest of the operations so far.
    pub(super) const fn longest_ps(&self) -> u64 {
        self.longest_ps
    }

    /// Operations whose hosts computed first, at least one. To be called once the others are over.
    pub(super) fn add_overlap(&mut self, compute_ps: u64, samples: &[Sample]) {
        let is_right = |outcome: &Outcome| outcome.error.is_none() && outcome.equal.unwrap_or(false);
        self.digest_ok &= samples.iter().flat_map(|sample| &sample.outcomes).all(is_right);
        let took_ps: u64 = samples.iter().map(|sample| sample.took_ps).sum();
        let overall_us = took_ps as f64 / 1e6 / samples.len().max(1) as f64;
        let calls: u64 = samples.iter().map(|sample| sample.host_calls).sum();
        let host_calls = calls as f64 / samples.len().max(1) as f64 / f64::from(self.ranks.max(1));
        self.overlap = Some(Overlap::new(self.virtual_time_us, compute_ps as f64 / 1e6, overall_us, host_calls));
    }

    /// Ends it. `done`: operations counted, at least 1.
    pub(super) fn finish(&mut self, done: u32, set_up_s: f64) -> Result<(), SimError> {
        self.iterations = done;
        self.set_up_s = set_up_s;
        self.machine = Machine::now()?;
        self.peak_memory_bytes = peak_memory_bytes();
        self.digest_ok = self.bytes_ok && self.failures == 0;
        let took_s = self.took_ps as f64 / 1e12 / f64::from(self.iterations);
        self.virtual_time_us = took_s * 1e6;
        self.last_post_us = self.last_post_ps as f64 / 1e6 / f64::from(self.iterations);
        let foreign_bytes = match self.op {
            Operation::Broadcast if self.ranks > 1 => self.receive_bytes as f64,
            Operation::ReduceScatter | Operation::Allreduce => self.bytes as f64,
            _ => self.receive_bytes as f64 * (1.0 - 1.0 / f64::from(self.ranks)),
        };
        self.goodput_gbit_s = if took_s > 0.0 { foreign_bytes * 8.0 / took_s / 1e9 } else { 0.0 };
        Ok(())
    }
}
