//! Simulation of service processes: collectives that the Arm cores of emulated cards carry out while hosts compute.

pub mod campaign;
pub mod processes;
mod staged;
mod world;

use std::fmt;
use std::time::Instant;

use emu_machine::{Config, MachineError};
use emu_provider::Emulated;
use flexcast_proto::service::wire::FormatError;
use flexcast_proto::service::{Delivery, Limits, LocalCopies, TopologyError};
use serde::Serialize;
use thiserror::Error;

use crate::overlap;

pub use staged::{Call, Expected, StagedPlan, StagedReport};
pub use world::{Load, Rank, ServiceOp, Shape, World};

/// What can go wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// A service process, or a rank's side of it.
    #[error(transparent)]
    Service(#[from] flexcast_service::Error),
    /// A card.
    #[error(transparent)]
    Card(#[from] flexio::Error),
    /// The machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A group that cannot be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Ranks and hosts that cannot be.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Something does not come.
    #[error("{what}: nothing has happened for {polls} polls")]
    Hangs {
        /// What was waited for.
        what: &'static str,
        /// Polls in vain.
        polls: u32,
    },
    /// A rank is to copy from where nothing is.
    #[error("rank {holder} has no buffer at {address:#x}, from where another one is to copy")]
    Elsewhere {
        /// The rank.
        holder: u32,
        /// The address.
        address: u64,
    },
    /// Ranks that do not fill cards.
    #[error("{ranks} ranks, {ranks_per_card} on a card: give a multiple of it")]
    Ranks {
        /// Ranks.
        ranks: u32,
        /// On each card.
        ranks_per_card: u32,
    },
    /// A machine's description.
    #[error(transparent)]
    Description(#[from] emu_config::ConfigError),
    /// An option that service processes do not have.
    #[error("{what} {reason}")]
    Option {
        /// The option.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

crate::options::named!(CopiesName);

/// Who copies blocks of an allgatherv from one rank of a host to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CopiesName {
    /// The ranks themselves, in calls of the library.
    #[default]
    Host,
    /// The card, while the ranks compute.
    Card,
}

impl From<CopiesName> for LocalCopies {
    fn from(name: CopiesName) -> Self {
        match name {
            CopiesName::Host => Self::Host,
            CopiesName::Card => Self::Card,
        }
    }
}

/// What is to be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceParams {
    /// What ranks call.
    pub op: ServiceOp,
    /// Ranks and service processes.
    pub shape: Shape,
    /// What they exchange.
    pub load: Load,
    /// How staged collectives are carried out.
    pub staged: StagedPlan,
    /// Who copies blocks of an Allgatherv inside a host.
    pub local_copies: CopiesName,
    /// Operations before those that are counted, and those that are.
    pub turns: (u32, u32),
}

/// What a simulation has given. Times are virtual; what processors execute takes none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceReport {
    /// What was called.
    pub op: ServiceOp,
    /// Ranks.
    pub ranks: u32,
    /// Hosts.
    pub hosts: u32,
    /// Ranks on each card.
    pub ranks_per_card: u32,
    /// Service processes on each card.
    pub service_processes: u32,
    /// Bytes of a block.
    pub bytes: u64,
    /// Who copies blocks inside a host; none where that is not asked.
    pub local_copies: Option<CopiesName>,
    /// Operations that are counted.
    pub iterations: u32,
    /// Whether every rank had every byte each time.
    pub digest_ok: bool,
    /// Mean time from the first call to the last flag, in microseconds, where hosts poll all the time.
    pub pure_us: f64,
    /// The same where they compute as long as that first.
    pub overall_us: f64,
    /// See [`overlap::percent`].
    pub overlap_percent: f64,
    /// Calls of the hosts into the library between the last call of a collective and its last flag, while they compute.
    pub host_calls_between_post_and_flag: u64,
    /// Reads from host memory to host memory, of one operation.
    pub reads: f64,
    /// Of them, those from another host.
    pub crossings: f64,
    /// What closed forms give for these: Allgatherv ranks x (hosts - 1), Alltoallv pairs of ranks on two hosts, staged
    /// collectives none.
    pub crossings_expected: u64,
    /// Of all Reads, those from another rank of the same host.
    pub local_reads: f64,
    /// What closed forms give for these: Allgatherv with copies by the card, of each block on each host as many as
    /// there are other ranks; Alltoallv pairs of ranks of a host.
    pub local_reads_expected: u64,
    /// Bytes that were read, of one operation.
    pub read_bytes: f64,
    /// Messages between service processes, of one operation.
    pub process_messages: f64,
    /// Messages to ranks, of one operation.
    pub rank_messages: f64,
    /// Most Reads that a service process had under way.
    pub most_active_reads: u32,
    /// Their limit.
    pub active_reads_limit: u32,
    /// What staged collectives have given besides.
    pub staged: Option<StagedReport>,
    /// Bytes that cards have moved to and from the memory of Arm cores, of one operation: messages, and payload of
    /// staged collectives alone.
    pub arm_bytes: f64,
    /// The model of times.
    pub model: String,
    /// Time that the simulation has taken, in seconds (measured).
    pub wall_s: f64,
}

impl ServiceParams {
    /// Crossings between hosts of one operation.
    #[must_use]
    pub fn crossings(&self) -> u64 {
        let Shape { hosts, ranks_per_host, .. } = self.shape;
        let ranks = u64::from(self.shape.ranks());
        match self.op {
            ServiceOp::Allgatherv => ranks * u64::from(hosts - 1),
            ServiceOp::Alltoallv => ranks * (ranks - u64::from(ranks_per_host)),
            ServiceOp::Broadcast | ServiceOp::Allgather if self.staged.delivery != Some(Delivery::Direct) => 0,
            ServiceOp::Broadcast => ranks - u64::from(ranks_per_host),
            ServiceOp::Allgather => ranks * (ranks - u64::from(ranks_per_host)),
        }
    }

    /// Reads from one rank of a host to another of one operation.
    #[must_use]
    pub fn local_reads(&self) -> u64 {
        let Shape { hosts, ranks_per_host, .. } = self.shape;
        let (ranks, others) = (u64::from(self.shape.ranks()), u64::from(ranks_per_host - 1));
        match self.op {
            ServiceOp::Allgatherv if self.local_copies == CopiesName::Card => ranks * u64::from(hosts) * others,
            ServiceOp::Alltoallv => ranks * others,
            ServiceOp::Broadcast if self.staged.delivery == Some(Delivery::Direct) => others,
            ServiceOp::Allgather if self.staged.delivery == Some(Delivery::Direct) => ranks * others,
            ServiceOp::Allgatherv | ServiceOp::Broadcast | ServiceOp::Allgather => 0,
        }
    }
}

/// Runs a simulation on a machine of this configuration, which has a card for each host; `show` is called with how many
/// operations are over.
///
/// # Errors
/// [`ServiceError`].
pub fn run(config: Config, params: &ServiceParams, show: &mut dyn FnMut(u32)) -> Result<ServiceReport, ServiceError> {
    let begun = Instant::now();
    let config = Config { arm_functions: true, ..config };
    let model = config.model_name().to_owned();
    let limits = Limits::default();
    let plan = params.op.is_staged().then_some(params.staged);
    let mut world = World::with(Emulated::new(config)?, params.shape, params.load, limits, plan)?;
    world.local_copies = params.local_copies.into();
    if params.op == ServiceOp::Allgatherv && params.local_copies == CopiesName::Host {
        world.let_hosts_poll_always();
    }
    let (warm_up, iterations) = params.turns;
    let all_right = |world: &World, turn: u32| -> Result<bool, ServiceError> {
        let of = |rank| world.is_right(params.op, rank, turn);
        (0..params.shape.ranks()).try_fold(true, |all, rank| Ok(all && of(rank)?))
    };
    let mut turn = 0;
    let mut digest_ok = true;
    for _ in 0..warm_up {
        let calls = post(&mut world, params.op, turn)?;
        world.end_calls(&calls)?;
        digest_ok &= all_right(&world, turn)?;
        turn += 1;
        show(turn);
    }
    let (before, arm_before) = (world.counts(), world.arm_bytes()?);
    let (copies_before, sent_before) = (world.host_copies(), world.sent_bytes()?);
    let mut pure_ps = 0;
    for _ in 0..iterations {
        let since_ps = world.now_ps();
        let calls = post(&mut world, params.op, turn)?;
        world.end_calls(&calls)?;
        pure_ps += world.now_ps() - since_ps;
        digest_ok &= all_right(&world, turn)?;
        turn += 1;
        show(turn);
    }
    let (after, arm_after) = (world.counts(), world.arm_bytes()?);
    let (copies, sent) = (world.host_copies(), world.sent_bytes()?);
    let staged = if params.op.is_staged() {
        let (first, last) = ((before, copies_before, sent_before), (after, copies, sent));
        Some(StagedReport::new(&world, params.op, first, last, iterations)?)
    } else {
        None
    };
    let compute_ps = pure_ps / u64::from(iterations.max(1));
    let (mut overall_ps, mut said) = (0, 0);
    for _ in 0..iterations {
        let since_ps = world.now_ps();
        let calls = post(&mut world, params.op, turn)?;
        let said_before = world.host_calls();
        // The hosts compute; then they poll.
        while world.now_ps() < since_ps + compute_ps {
            world.let_pass()?;
        }
        let are_flagged = world.are_all_flagged(&calls)?;
        said += world.host_calls() - said_before;
        // Ranks that share a segment copy from it now.
        if !are_flagged || !world.have_ended(&calls)? {
            world.end_calls(&calls)?;
        }
        overall_ps += world.now_ps() - since_ps;
        digest_ok &= all_right(&world, turn)?;
        turn += 1;
        show(turn);
    }
    let each = |total: u64| total as f64 / f64::from(iterations.max(1));
    let us = |ps: u64| each(ps) / 1e6;
    let (pure_us, overall_us) = (us(pure_ps), us(overall_ps));
    let overlap_percent = overlap::percent(pure_us, compute_ps as f64 / 1e6, overall_us);
    let Shape { hosts, ranks_per_host, processes_per_host } = params.shape;
    Ok(ServiceReport {
        op: params.op,
        ranks: params.shape.ranks(),
        hosts,
        ranks_per_card: ranks_per_host,
        service_processes: processes_per_host,
        bytes: params.load.bytes,
        local_copies: (params.op == ServiceOp::Allgatherv).then_some(params.local_copies),
        iterations,
        digest_ok,
        pure_us,
        overall_us,
        overlap_percent,
        host_calls_between_post_and_flag: said,
        reads: each(after.reads - before.reads),
        crossings: each(after.crossings - before.crossings),
        crossings_expected: params.crossings(),
        local_reads: each(after.local_reads - before.local_reads),
        local_reads_expected: params.local_reads(),
        read_bytes: each(after.read_bytes - before.read_bytes),
        process_messages: each(after.process_messages - before.process_messages),
        rank_messages: each(after.rank_messages - before.rank_messages),
        most_active_reads: world.most_active_reads(),
        active_reads_limit: limits.active_reads,
        staged,
        arm_bytes: each(arm_after - arm_before),
        model,
        wall_s: begun.elapsed().as_secs_f64(),
    })
}

/// All ranks call, one after the other, at the same virtual time.
fn post(world: &mut World, op: ServiceOp, turn: u32) -> Result<Vec<Call>, ServiceError> {
    (0..world.ranks.len() as u32).map(|rank| world.post(op, rank, turn)).collect()
}

impl ServiceReport {
    fn write_end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iterations, model, wall_s, .. } = self;
        write!(
            f,
            "of one operation, mean of {iterations}; times emulated, model {model}, processors take none; {wall_s:.1} \
             s (measured)"
        )
    }
}

impl fmt::Display for ServiceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op;
        let Self { ranks, hosts, service_processes, bytes, pure_us, overall_us, overlap_percent, .. } = self;
        writeln!(
            f,
            "{op} of {bytes} bytes a block among {ranks} ranks on {hosts} hosts, {service_processes} service processes \
             a card{}: {}",
            self.local_copies.map_or_else(String::new, |by| format!(", copies inside a host by the {by}")),
            if self.digest_ok { "every byte on every rank" } else { "WRONG BYTES" }
        )?;
        writeln!(
            f,
            "{pure_us:.1} us where hosts poll all the time, {overall_us:.1} us where they compute {pure_us:.1} us \
             meanwhile: {overlap_percent:.1} % overlap"
        )?;
        if let Some(staged) = &self.staged {
            writeln!(
                f,
                "calls of the hosts between post and flag: {}; Reads from host memory to host memory: {:.0}, of which \
                 {:.0} cross to another host ({})",
                self.host_calls_between_post_and_flag, self.reads, self.crossings, self.crossings_expected
            )?;
            staged.write(f)?;
            return self.write_end(f);
        }
        writeln!(
            f,
            "calls of the hosts between post and flag: {}; Reads: {:.0}, of which {:.0} cross to another host ({} by \
             the closed form), {:.0} copy from another rank of the host ({}), at most {} of {} at a time",
            self.host_calls_between_post_and_flag,
            self.reads,
            self.crossings,
            self.crossings_expected,
            self.local_reads,
            self.local_reads_expected,
            self.most_active_reads,
            self.active_reads_limit
        )?;
        writeln!(
            f,
            "read: {:.0} bytes; messages between service processes: {:.0}, to ranks: {:.0}; to and from memory of Arm \
             cores: {:.0} bytes",
            self.read_bytes, self.process_messages, self.rank_messages, self.arm_bytes
        )?;
        self.write_end(f)
    }
}
