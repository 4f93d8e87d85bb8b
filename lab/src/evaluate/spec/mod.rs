//! The format of an experiment's file: what is asked, what is run (`sweep`), what is computed (`closed`), what was
//! published, what is drawn (`draw`), what should come out.

mod closed;
mod draw;
mod flow;
mod held;
mod read;
mod sparse;
mod sweep;

use serde::{Deserialize, Serialize};

pub use closed::{Computed, Handler};
pub use draw::{Bound, Limit, Plot, Scale};
pub use flow::{Application, ApplicationSweep, Carrier, FlowSweep};
pub use held::{held, write_scripts};
pub use read::{FOLDER, choose, parse, read_folder};
pub use sparse::{DpaSumsSweep, SparseSweep, SumsBy};
pub use sweep::{ConcurrentSweep, Fastest, IncastSweep, Linear, Pair, PairSweep, SimSweep, Spread};

/// An experiment: what is asked, what is run, what was published, what is expected.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name, that of the file.
    pub id: String,
    /// Place in the report, from 1.
    pub order: u32,
    /// Headline.
    pub title: String,
    /// What it is to answer.
    pub question: String,
    /// Which table or figure of which publication it follows.
    pub paper: String,
    /// What a reader has to know to judge it.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Runs of the published kernels.
    #[serde(default)]
    pub reference: Vec<PairSweep>,
    /// Runs of the throughput harness.
    #[serde(default)]
    pub tput: Vec<PairSweep>,
    /// Runs of collectives.
    #[serde(default)]
    pub sim: Vec<SimSweep>,
    /// Runs of concurrent Allgather and Reduce-Scatter.
    #[serde(default)]
    pub concurrent: Vec<ConcurrentSweep>,
    /// Runs of many sources with blocks for one host.
    #[serde(default)]
    pub incast: Vec<IncastSweep>,
    /// Runs of collectives at flow level.
    #[serde(default)]
    pub flow: Vec<FlowSweep>,
    /// Runs of applications at flow level.
    #[serde(default)]
    pub application: Vec<ApplicationSweep>,
    /// Runs of simulated sparse AllReduces.
    #[serde(default)]
    pub sparse: Vec<SparseSweep>,
    /// Runs of sparse AllReduces whose aggregators are DPAs.
    #[serde(default)]
    pub dpa_sums: Vec<DpaSumsSweep>,
    /// Statistics over runs that differ in their seed.
    #[serde(default)]
    pub spread: Vec<Spread>,
    /// Columns that should grow linearly.
    #[serde(default)]
    pub linear: Vec<Linear>,
    /// Times compared with the fastest ones.
    #[serde(default)]
    pub fastest: Vec<Fastest>,
    /// Closed forms.
    #[serde(default)]
    pub computed: Vec<Computed>,
    /// What was published.
    #[serde(default)]
    pub published: Vec<Published>,
    /// Columns of the table, in order; those that no row has are left out. Everything else is in the CSV file.
    pub columns: Vec<String>,
    /// What is drawn.
    #[serde(default)]
    pub plot: Vec<Plot>,
    /// What should come out.
    pub expect: Vec<Expect>,
    /// The experiment with its whole sweeps, where these are the reduced ones.
    #[serde(skip)]
    pub whole: Option<Box<Experiment>>,
}

/// A published point.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Where it was published, and how it was read.
    pub origin: String,
    /// Columns and values.
    pub values: toml::Table,
}

/// Whose expectation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Published; to be reproduced. The limits are a band around what was published: both sides. Where only a direction
    /// was published ("smaller"), the far side has no source: it is chosen, wide, so that a baseline that is far too
    /// weak does not pass.
    Paper,
    /// What the model was given comes out again: a check of the model, and no evidence for the publication.
    Model,
    /// Set for our own handlers.
    Goal,
    /// Must hold exactly, or something is broken.
    Exact,
}

/// One expectation of the rows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// In words.
    pub what: String,
    /// Whose.
    pub class: Class,
    /// Column of the value.
    pub column: String,
    /// Which row, or rows with `first`.
    #[serde(rename = "where")]
    pub filter: toml::Table,
    /// A second row, where the publication leaves open which of both it ran. The value is then the range between both,
    /// and it passes if the range and the limits have a value in common.
    pub or: Option<toml::Table>,
    /// The value is divided by that of this row.
    pub over: Option<toml::Table>,
    /// The value is the least of this column among rows whose `column` is at least `reach`.
    pub first: Option<String>,
    /// See `first`.
    pub reach: Option<f64>,
    /// The value is the largest of the rows.
    #[serde(default)]
    pub largest: bool,
    /// Least value that will do.
    pub at_least: Option<f64>,
    /// Largest.
    pub at_most: Option<f64>,
    /// What was published, as it stands there.
    pub published: Option<String>,
}
