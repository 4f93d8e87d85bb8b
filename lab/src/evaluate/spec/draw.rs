//! Plots and tables of an experiment.

use serde::Deserialize;

use crate::reference::{Transport, transport};

/// Steps of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// From zero, in even steps.
    #[default]
    Linear,
    /// Doublings.
    Log2,
    /// Powers of ten, and what is between.
    Log10,
}

/// A plot of rows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Column of the horizontal axis; words make bars.
    pub x: String,
    /// What stands there, with the unit.
    pub x_label: String,
    /// Steps.
    #[serde(default)]
    pub x_scale: Scale,
    /// Column of the vertical axis.
    pub y: String,
    /// What stands there, with the unit.
    pub y_label: String,
    /// Steps.
    #[serde(default)]
    pub y_scale: Scale,
    /// Columns whose values distinguish series.
    #[serde(default)]
    pub series: Vec<String>,
    /// Columns of a range around each point.
    pub range: Option<[String; 2]>,
    /// What rows must have.
    #[serde(default, rename = "where")]
    pub filter: toml::Table,
    /// Bare bounds that are drawn with them.
    #[serde(default)]
    pub bound: Vec<Bound>,
}

/// What a pocket calculation says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Its name in the legend.
    pub label: String,
    /// Which.
    pub limit: Limit,
    /// Cycles of a completion (latency) or instructions (issue), as published.
    pub of: Option<f64>,
    /// Or those of the row with these values.
    pub of_row: Option<toml::Table>,
    /// Threads, where the horizontal axis is another.
    pub threads: Option<f64>,
    /// Bytes of a chunk, likewise.
    pub chunk_bytes: Option<u64>,
    /// Line rate.
    pub gbit_per_s: Option<f64>,
    /// Transport, for the headers on the link.
    #[serde(default, deserialize_with = "transport::optional")]
    pub transport: Option<Transport>,
}

/// Kinds of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Threads times the rate of one, as if they never waited for one another.
    Latency,
    /// Issue slots of the cores that the threads are on, 16 to a core.
    Issue,
    /// The link with its headers.
    Link,
    /// The chunk rate of a link without headers.
    Chunks,
}
