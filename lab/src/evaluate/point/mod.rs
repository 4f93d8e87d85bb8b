//! One run on an emulated machine of its own, and its row. Bytes are compared before a time is reported.

mod concurrent;
mod dpa_sums;
mod flow;
mod incast;
mod link;
mod reference;
mod sim;
mod sparse;
mod tput;

use emu_config::Timing;
use serde::Serialize;

pub use concurrent::ConcurrentPoint;
pub use dpa_sums::DpaSumsPoint;
pub use flow::{ApplicationPoint, FlowPoint};
pub use incast::IncastPoint;
pub use link::{CABLE_GBIT_PER_S, link_goodput, wire_bytes};
pub use reference::ReferencePoint;
pub use sim::SimPoint;
pub use sparse::SparsePoint;
pub use tput::TputPoint;

use super::row::Row;
use super::spec::{Experiment, PairSweep};
use crate::accesses::Accesses;
use crate::images::Images;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Point {
    /// Of a published kernel.
    Reference(ReferencePoint),
    /// Of the throughput harness.
    Tput(TputPoint),
    /// Of a collective.
    Sim(Box<SimPoint>),
    /// Of two collectives at the same time, on the fabric alone.
    Concurrent(ConcurrentPoint),
    /// Of many sources with blocks for one host.
    Incast(IncastPoint),
    /// Of a collective at flow level.
    Flow(FlowPoint),
    /// Of an application at flow level.
    Application(ApplicationPoint),
    /// Of a simulated sparse AllReduce.
    Sparse(SparsePoint),
    /// Of a sparse AllReduce by DPAs.
    DpaSums(Box<DpaSumsPoint>),
}

impl Point {
    /// The runs of an experiment, in the order of its file.
    #[must_use]
    pub fn all(experiment: &Experiment) -> Vec<Self> {
        let reference = experiment
            .reference
            .iter()
            .flat_map(PairSweep::pairs)
            .map(|pair| Self::Reference(ReferencePoint::of(pair)));
        let tput = experiment.tput.iter().flat_map(PairSweep::pairs).map(|pair| Self::Tput(TputPoint::of(pair)));
        let sim = experiment.sim.iter().flat_map(SimPoint::all).map(|point| Self::Sim(Box::new(point)));
        let dpa_sums =
            experiment.dpa_sums.iter().flat_map(DpaSumsPoint::all).map(|point| Self::DpaSums(Box::new(point)));
        reference
            .chain(tput)
            .chain(sim)
            .chain(experiment.concurrent.iter().flat_map(ConcurrentPoint::all).map(Self::Concurrent))
            .chain(experiment.incast.iter().flat_map(IncastPoint::all).map(Self::Incast))
            .chain(experiment.flow.iter().flat_map(FlowPoint::all).map(Self::Flow))
            .chain(experiment.application.iter().flat_map(ApplicationPoint::all).map(Self::Application))
            .chain(experiment.sparse.iter().flat_map(SparsePoint::all).map(Self::Sparse))
            .chain(dpa_sums)
            .collect()
    }

    /// How long it takes compared with others, roughly: the longest are begun first.
    #[must_use]
    pub fn weight(&self) -> u64 {
        match self {
            Self::Reference(point) => point.weight(),
            Self::Tput(point) => point.weight(),
            Self::Sim(point) => point.weight(),
            Self::Concurrent(point) => point.weight(),
            Self::Incast(point) => point.weight(),
            Self::Flow(point) => point.weight(),
            Self::Application(point) => point.weight(),
            Self::Sparse(point) => point.weight(),
            Self::DpaSums(point) => point.weight(),
        }
    }

    /// Memory that it takes, roughly.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Reference(point) => point.memory_bytes(),
            Self::Tput(point) => point.memory_bytes(),
            Self::Sim(point) => point.memory_bytes(),
            Self::Concurrent(point) => point.memory_bytes(),
            Self::Incast(point) => point.memory_bytes(),
            Self::Flow(point) => point.memory_bytes(),
            Self::Application(point) => point.memory_bytes(),
            Self::Sparse(point) => point.memory_bytes(),
            Self::DpaSums(point) => point.memory_bytes(),
        }
    }

    /// The columns of its row that are known before it is run.
    #[must_use]
    pub fn asked(&self) -> Row {
        match self {
            Self::Reference(point) => point.asked(),
            Self::Tput(point) => point.asked(),
            Self::Sim(point) => point.asked(),
            Self::Concurrent(point) => point.asked(),
            Self::Incast(point) => point.asked(),
            Self::Flow(point) => point.asked(),
            Self::Application(point) => point.asked(),
            Self::Sparse(point) => point.asked(),
            Self::DpaSums(point) => point.asked(),
        }
    }

    /// The command that does the same.
    #[must_use]
    pub fn command(&self, model: &Timing) -> String {
        let mut text = match self {
            Self::Reference(point) => point.command(),
            Self::Tput(point) => point.command(),
            Self::Sim(point) => return point.command(model) + " --json",
            // No firmware, no timing model.
            Self::Concurrent(point) => return point.command(),
            Self::Incast(point) => return point.command(),
            Self::Flow(point) => return point.command(),
            Self::Application(point) => return point.command(),
            Self::Sparse(point) => return point.command(),
            Self::DpaSums(point) => return point.command(model) + " --json",
        };
        if let Some(model) = &model.model {
            text.push_str(&format!(" --model {model}"));
        }
        for change in &model.set {
            text.push_str(&format!(" --set {change}"));
        }
        text + " --json"
    }

    /// Runs it on a machine of the calling thread's.
    ///
    /// # Errors
    /// Why it could not be run, or that its bytes are wrong.
    pub fn run(&self, images: &Images, model: &Timing) -> Result<Row, String> {
        match self {
            Self::Reference(point) => point.run(images, model),
            Self::Tput(point) => point.run(images, model),
            Self::Sim(point) => point.run(images, model),
            Self::Concurrent(point) => point.run(),
            Self::Incast(point) => point.run(),
            Self::Flow(point) => point.run(),
            Self::Application(point) => point.run(),
            Self::Sparse(point) => point.run(),
            Self::DpaSums(point) => point.run(images, model),
        }
    }
}

/// Adds which share of the accesses beyond L1 the last-level cache had, of all and of those to rings.
fn with_accesses(mut row: Row, accesses: Option<&Accesses>) -> Row {
    let Some(accesses) = accesses else { return row };
    let rings = accesses.by.get("rings").and_then(crate::accesses::Levels::llc_hit_rate);
    for (column, rate) in [("llc_percent", accesses.all.llc_hit_rate()), ("rings_llc_percent", rings)] {
        if let Some(rate) = rate {
            row = row.with(column, 100.0 * rate);
        }
    }
    row
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
