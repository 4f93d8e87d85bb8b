//! Proxies of applications: what two programs of the publication compute and call, without their data.

use std::collections::BTreeMap;
use std::time::Instant;

use flexcast_proto::service::LocalCopies;
use serde::{Deserialize, Serialize};

use super::engine::{Flow, FlowCounts, Group};
use super::error::FlowError;
use super::params::FlowParams;
use super::program::{By, Kind, Operation, Step, barrier};
use super::skew::Skew;

crate::options::named!(Variant);

/// How an application's collectives are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// By the hosts, in blocking calls.
    Blocking,
    /// By the hosts, in non-blocking calls that go on while the program waits.
    NonBlocking,
    /// By service processes; of Octopus the Allgatherv alone, as published.
    Service,
}

impl Variant {
    const fn by(self, ranks: u32) -> By {
        match self {
            Self::Blocking => By::Hosts { window: 1 },
            Self::NonBlocking => By::Hosts { window: ranks },
            Self::Service => By::Service(LocalCopies::Host),
        }
    }
}

/// P3DFFT++: transforms of several variables on a grid in three dimensions, which is cut in two; while one variable
/// computes another is exchanged.
///
/// Ranks of a host are the columns, those with the same place on all hosts the rows, so that a message of a row has the
/// published length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FftProxy {
    /// Points in each dimension.
    pub grid: u64,
    /// Bytes of each.
    pub element_bytes: u64,
    /// Variables.
    pub variables: u32,
    /// Transforms forward and back.
    pub repetitions: u32,
    /// What one rank computes, in operations of floating point a second.
    pub flop_per_s: f64,
}

impl Default for FftProxy {
    /// A grid of 1024 points a side of 8 bytes, four variables, ten repetitions, as published; 2 GFlop/s a rank is
    /// chosen.
    fn default() -> Self {
        Self { grid: 1024, element_bytes: 8, variables: 4, repetitions: 10, flop_per_s: 2e9 }
    }
}

/// Octopus: time steps with three Allgatherv, an Alltoall, an exchange with neighbours that is waited for, and an
/// Allreduce, between computations that take each rank another time.
#[derive(Clone, Debug, PartialEq)]
pub struct Octopus {
    /// Time steps.
    pub steps: u32,
    /// Bytes of each block of an Allgatherv. Not published: chosen so that the hosts' calls take about as long as
    /// published.
    pub gather_bytes: u64,
    /// Bytes of each block of the Alltoall. Not published.
    pub exchange_bytes: u64,
    /// Computation between two calls, in microseconds.
    pub compute_us: u64,
    /// What it varies by: ranks are 30 to 100 ms late in the publication.
    pub skew: Skew,
    /// Seed of that.
    pub seed: u64,
}

impl Default for Octopus {
    /// 100 steps, blocks of 4 MiB and 1 MiB, computations of 50 ms and as much again for the mean of the ranks.
    fn default() -> Self {
        Self {
            steps: 100,
            gather_bytes: 4 << 20,
            exchange_bytes: 1 << 20,
            compute_us: 50_000,
            skew: Skew::Exponential(20_000.0),
            seed: 1,
        }
    }
}

/// Where the time of an application has gone: means over ranks, in seconds of virtual time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProxyReport {
    /// The application.
    pub application: &'static str,
    /// How its collectives were carried out.
    pub variant: Variant,
    /// Ranks.
    pub ranks: u32,
    /// Hosts.
    pub hosts: u32,
    /// From the first step to the last.
    pub total_s: f64,
    /// Computation.
    pub compute_s: f64,
    /// Calls that post.
    pub call_s: f64,
    /// Waits.
    pub wait_s: f64,
    /// By kind of call, with the waits for it: of Octopus.
    pub parts_s: BTreeMap<&'static str, f64>,
    /// Counts.
    pub counts: FlowCounts,
    /// Time that the simulation has taken, in seconds (measured).
    pub wall_s: f64,
}

const PARTS: [&str; 4] = ["allgatherv", "alltoall", "wait", "allreduce"];

fn report(
    flow: &Flow,
    params: &FlowParams,
    application: &'static str,
    variant: Variant,
    begun: Instant,
) -> ProxyReport {
    let ranks = params.ranks();
    let mean = |of: &dyn Fn(u32) -> u64| (0..ranks).map(of).sum::<u64>() as f64 / f64::from(ranks) / 1e12;
    let part = |number: u32, rank: u32| -> u64 {
        let marks = flow.marks(rank).windows(2);
        let own = marks.filter(|pair| pair[0].0 == 2 * number && pair[1].0 == 2 * number + 1);
        own.map(|pair| pair[1].1 - pair[0].1).sum()
    };
    let parts = (0..).zip(PARTS).map(|(number, name)| (name, mean(&|rank| part(number, rank))));
    ProxyReport {
        application,
        variant,
        ranks,
        hosts: params.hosts,
        total_s: flow.now_ps() as f64 / 1e12,
        compute_s: mean(&|rank| flow.times(rank).compute_ps),
        call_s: mean(&|rank| flow.times(rank).call_ps),
        wait_s: mean(&|rank| flow.times(rank).wait_ps),
        parts_s: parts.filter(|(_, s)| *s > 0.0).collect(),
        counts: flow.counts(),
        wall_s: begun.elapsed().as_secs_f64(),
    }
}

impl FftProxy {
    /// Bytes of a message of a row, and of a column.
    #[must_use]
    pub const fn message_bytes(&self, params: &FlowParams) -> (u64, u64) {
        let own = self.grid * self.grid * self.grid * self.element_bytes / params.ranks() as u64;
        (own / params.hosts as u64, own / params.ranks_per_host as u64)
    }

    /// Runs it.
    ///
    /// # Errors
    /// Parameters that cannot be.
    pub fn run(&self, params: FlowParams, variant: Variant) -> Result<ProxyReport, FlowError> {
        let begun = Instant::now();
        let FlowParams { hosts, ranks_per_host, .. } = params;
        let on_host = |host: u32| (0..ranks_per_host).map(move |place| host * ranks_per_host + place);
        let rows = (0..ranks_per_host)
            .map(|place| Group { ranks: (0..hosts).map(|host| host * ranks_per_host + place).collect() });
        let columns = (0..hosts).map(|host| Group { ranks: on_host(host).collect() });
        let groups: Vec<Group> = rows.chain(columns).collect();
        let scripts = (0..params.ranks()).map(|rank| self.script(&params, variant, rank)).collect();
        let mut flow = Flow::new(params, &groups, scripts)?;
        flow.run()?;
        Ok(report(&flow, &params, "p3dfft", variant, begun))
    }

    fn script(&self, params: &FlowParams, variant: Variant, rank: u32) -> Vec<Step> {
        let FlowParams { hosts, ranks_per_host, .. } = *params;
        let (row_bytes, column_bytes) = self.message_bytes(params);
        let post = |group, bytes, ranks| Operation { group, kind: Kind::Alltoallv, bytes, by: variant.by(ranks) };
        let row = post(rank % ranks_per_host, row_bytes, hosts);
        let column = post(ranks_per_host + rank / ranks_per_host, column_bytes, ranks_per_host);
        // One dimension of a real transform: 2.5 N log2 N operations for each line of N points.
        let points = (self.grid * self.grid * self.grid) as f64;
        let flop = 2.5 * points * (self.grid as f64).log2() / f64::from(params.ranks());
        let stage = Step::Compute((flop / self.flop_per_s * 1e12) as u64);
        let mut steps = Vec::new();
        for _ in 0..self.repetitions {
            for (first, second) in [(row, column), (column, row)] {
                let all = 0..self.variables;
                if variant == Variant::Blocking {
                    for _ in all {
                        steps.extend([stage, Step::Post(first), Step::WaitAll]);
                        steps.extend([stage, Step::Post(second), Step::WaitAll, stage]);
                    }
                    continue;
                }
                all.clone().for_each(|_| steps.extend([stage, Step::Post(first)]));
                all.clone().for_each(|_| steps.extend([Step::WaitAnyOf(first.group), stage, Step::Post(second)]));
                all.for_each(|_| steps.extend([Step::WaitAnyOf(second.group), stage]));
            }
        }
        steps
    }
}

impl Octopus {
    /// Runs it.
    ///
    /// # Errors
    /// Parameters that cannot be.
    pub fn run(&self, params: FlowParams, variant: Variant) -> Result<ProxyReport, FlowError> {
        let begun = Instant::now();
        let all = Group { ranks: (0..params.ranks()).collect() };
        let scripts = (0..params.ranks()).map(|rank| self.script(&params, variant, rank)).collect();
        let mut flow = Flow::new(params, &[all.clone(), all], scripts)?;
        flow.run()?;
        Ok(report(&flow, &params, "octopus", variant, begun))
    }

    fn script(&self, params: &FlowParams, variant: Variant, rank: u32) -> Vec<Step> {
        let ranks = params.ranks();
        let by = variant.by(ranks);
        let gather = Operation { group: 0, kind: Kind::Allgatherv, bytes: self.gather_bytes, by };
        // The publication offloads the Allgatherv alone.
        let exchange =
            Operation { group: 1, kind: Kind::Alltoallv, bytes: self.exchange_bytes, by: By::Hosts { window: ranks } };
        // In a ring each step needs the one before.
        let gather =
            if variant == Variant::Service { gather } else { Operation { by: By::Hosts { window: 1 }, ..gather } };
        let reduce = Operation { bytes: 8192, ..barrier(1) };
        let mut steps = Vec::new();
        let mut place = 0;
        for _ in 0..self.steps {
            let mut compute = || {
                place += 1;
                Step::Compute(self.compute_us * 1_000_000 + self.skew.offset_ps(self.seed, ranks, rank, place))
            };
            let call = |number: u32, operation| {
                [Step::Mark(2 * number), Step::Post(operation), Step::WaitAll, Step::Mark(2 * number + 1)]
            };
            steps.push(compute());
            steps.extend(call(0, gather));
            steps.extend(call(1, exchange));
            steps.push(compute());
            // Neighbours are waited for: who is late keeps all.
            steps.extend(call(2, barrier(1)));
            steps.push(compute());
            steps.extend(call(0, gather));
            steps.extend(call(3, reduce));
            steps.push(compute());
            steps.extend(call(0, gather));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::Preset;
    use super::*;

    fn params(hosts: u32, ranks_per_host: u32) -> FlowParams {
        FlowParams { hosts, ranks_per_host, processes_per_host: 4.min(ranks_per_host), ..Preset::Graham.params() }
    }

    #[test]
    fn messages_are_as_long_as_published() {
        let fft = FftProxy::default();
        // 16 MiB in rows of 4, 256 KiB at 32 hosts of 32 ranks.
        assert_eq!(fft.message_bytes(&params(4, 32)).0, 16 << 20);
        assert_eq!(fft.message_bytes(&params(32, 32)), (256 << 10, 256 << 10));
    }

    #[test]
    fn exchanges_hide_behind_the_computation_of_other_variables() {
        let fft = FftProxy { grid: 64, repetitions: 2, flop_per_s: 2e8, ..FftProxy::default() };
        let machine = params(4, 4);
        let run = |variant| fft.run(machine, variant).unwrap();
        let [blocking, non_blocking, service] = [Variant::Blocking, Variant::NonBlocking, Variant::Service].map(run);
        assert!(blocking.total_s > non_blocking.total_s && non_blocking.total_s > service.total_s);
        assert!((blocking.compute_s / service.compute_s - 1.0).abs() < 1e-9);
        let (row, column) = fft.message_bytes(&machine);
        // Every exchange of a row crosses between hosts: two for each variable and repetition.
        let crossings = 2 * 2 * 4 * (4 * 4 * 3);
        assert_eq!((service.counts.crossings, service.counts.port_bytes), (crossings, crossings * row));
        assert!(column > 0 && non_blocking.counts.port_bytes == service.counts.port_bytes);
    }

    #[test]
    fn late_ranks_cost_service_processes_less_than_a_ring() {
        let octopus = Octopus { steps: 3, gather_bytes: 256 << 10, exchange_bytes: 4096, ..Octopus::default() };
        let machine = params(4, 4);
        let run = |octopus: &Octopus, variant| octopus.run(machine, variant).unwrap();
        let skewed = |variant| run(&octopus, variant).parts_s["allgatherv"];
        assert!(skewed(Variant::Service) < skewed(Variant::NonBlocking));
        assert_eq!(run(&octopus, Variant::Service).parts_s.len(), 4);
    }
}
