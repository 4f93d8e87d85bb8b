//! The format of an experiment's file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::EvaluateError;
use crate::sim::params::Operation;
use crate::tput::plan::Transport;

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
    /// Runs of the throughput harness.
    #[serde(default)]
    pub tput: Vec<TputSweep>,
    /// Runs of collectives.
    #[serde(default)]
    pub sim: Vec<SimSweep>,
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
}

fn one<T: From<u8>>() -> Vec<T> {
    vec![T::from(1)]
}

fn mtu() -> Vec<u64> {
    vec![4096]
}

const fn once() -> u32 {
    1
}

/// Every combination of some parameters of `flexcast tput`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TputSweep {
    /// Images by name: `reference` is the published algorithm, `receive` ours.
    pub images: Vec<String>,
    /// Transports.
    pub transports: Vec<Transport>,
    /// Receive workers.
    pub threads: Vec<u32>,
    /// Bytes of a chunk.
    #[serde(default = "mtu")]
    pub chunk_bytes: Vec<u64>,
    /// Bytes to send.
    pub bytes: Vec<u64>,
    /// Seeds of the bytes; of each one run.
    #[serde(default = "one")]
    pub seeds: Vec<u64>,
    /// Repetitions that are not counted.
    #[serde(default = "once")]
    pub warm_up: u32,
    /// Repetitions that are.
    #[serde(default = "once")]
    pub iterations: u32,
}

fn none() -> Vec<f64> {
    vec![0.0]
}

/// Every combination of some parameters of `flexcast sim`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSweep {
    /// What the ranks do.
    pub operation: Operation,
    /// How, by the names of `--algorithm`.
    pub algorithms: Vec<String>,
    /// Ranks.
    pub ranks: Vec<u32>,
    /// Bytes that each contributes, or the root's.
    pub bytes: Vec<u64>,
    /// Topology by name; a switch as large as needed if there is none.
    #[serde(default)]
    pub topology: Option<String>,
    /// Subgroups, and as many receive threads.
    #[serde(default = "once")]
    pub subgroups: u32,
    /// Roots that multicast at the same time.
    #[serde(default = "once")]
    pub chains: u32,
    /// Frames lost on the way to each card, in percent.
    #[serde(default = "none")]
    pub loss_percent: Vec<f64>,
    /// Seeds of bytes and losses; of each one run.
    #[serde(default = "one")]
    pub seeds: Vec<u64>,
    /// Operations that are not counted.
    #[serde(default = "once")]
    pub warm_up: u32,
    /// Operations that are.
    #[serde(default = "once")]
    pub iterations: u32,
}

/// A closed form and what it is evaluated for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "form", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Computed {
    /// Bytes over links of an Allgather, over those of multicast, in the smallest tree of such switches.
    AllgatherTraffic {
        /// Ranks.
        ranks: Vec<u32>,
        /// Ports of a switch.
        radix: u32,
    },
    /// Bytes at switch ports of operations of ranks on a tree, over those of one multicast from each root.
    PortTraffic {
        /// Ranks.
        ranks: u32,
        /// Leaf switches.
        leaves: u32,
        /// Bytes that each rank contributes.
        bytes: u64,
        /// Algorithms, by the names of `--algorithm`.
        algorithms: Vec<String>,
    },
    /// Allgather and Reduce-Scatter at the same time.
    Concurrent {
        /// Ranks.
        ranks: Vec<u32>,
        /// Bytes of each rank's share.
        bytes: u64,
        /// Line rate.
        gbit_per_s: u64,
    },
    /// What sequence numbers of so many bits allow.
    Bitmap {
        /// Bits.
        psn_bits: Vec<u32>,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// Threads that a link needs, by what one thread takes for a completion.
    ThreadsForLink {
        /// Line rates.
        gbit_per_s: Vec<u32>,
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Handlers: name, cycles and instructions of a completion.
        handlers: Vec<Handler>,
    },
}

/// A handler by its published costs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    /// Transport.
    pub transport: String,
    /// Cycles of a completion.
    pub cycles: f64,
    /// Instructions of it.
    pub instructions: f64,
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

/// Steps of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// From zero, in even steps.
    #[default]
    Linear,
    /// Doublings.
    Log2,
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
    /// Columns whose values tell series apart.
    #[serde(default)]
    pub series: Vec<String>,
    /// Columns of a range around each point.
    #[serde(default)]
    pub range: Option<[String; 2]>,
    /// What rows must have.
    #[serde(default, rename = "where")]
    pub filter: toml::Table,
    /// Bare bounds beside them.
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
    #[serde(default)]
    pub of: Option<f64>,
    /// Or those of the row with these values.
    #[serde(default)]
    pub of_row: Option<toml::Table>,
    /// Threads, where the horizontal axis is another.
    #[serde(default)]
    pub threads: Option<f64>,
    /// Bytes of a chunk, likewise.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
    /// Line rate.
    #[serde(default)]
    pub gbit_per_s: Option<f64>,
    /// Transport, for the headers on the link.
    #[serde(default)]
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

/// Whose expectation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Published; to be reproduced.
    Paper,
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
    /// The value is divided by that of this row.
    #[serde(default)]
    pub over: Option<toml::Table>,
    /// The value is the least of this column among rows whose `column` is at least `reach`.
    #[serde(default)]
    pub first: Option<String>,
    /// See `first`.
    #[serde(default)]
    pub reach: Option<f64>,
    /// Least value that will do.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// Largest.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// What was published, as it stands there.
    #[serde(default)]
    pub published: Option<String>,
}

/// Reads all experiments of a folder, in their order.
///
/// # Errors
/// [`EvaluateError`] for a file that cannot be read or is none.
pub fn read_folder(folder: &Path, reduced: bool) -> Result<Vec<Experiment>, EvaluateError> {
    let what = "folder of experiments";
    let unreadable = |source| EvaluateError::File { what, path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut experiments = paths.iter().map(|path| read(path, reduced)).collect::<Result<Vec<_>, _>>()?;
    experiments.sort_by_key(|experiment| experiment.order);
    if experiments.is_empty() {
        let reason = "no file ends in .toml; the experiments are in experiments/ of the repository".to_owned();
        return Err(EvaluateError::Format { what, path: folder.to_owned(), reason });
    }
    Ok(experiments)
}

fn read(path: &Path, reduced: bool) -> Result<Experiment, EvaluateError> {
    let what = "experiment";
    let text =
        std::fs::read_to_string(path).map_err(|source| EvaluateError::File { what, path: path.to_owned(), source })?;
    let wrong = |reason: String| EvaluateError::Format { what, path: path.to_owned(), reason };
    let experiment = parse(&text, reduced).map_err(wrong)?;
    if Some(experiment.id.as_str()) != path.file_stem().and_then(|stem| stem.to_str()) {
        return Err(wrong(format!("its id is {:?}: call it as the file", experiment.id)));
    }
    Ok(experiment)
}

/// An experiment from the text of its file.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str, reduced: bool) -> Result<Experiment, String> {
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    for group in ["tput", "sim"] {
        let Some(toml::Value::Array(sweeps)) = table.get_mut(group) else { continue };
        for sweep in sweeps.iter_mut().filter_map(toml::Value::as_table_mut) {
            // What is different in the reduced form.
            let changes = sweep.remove("reduced");
            if let (true, Some(toml::Value::Table(changes))) = (reduced, changes) {
                sweep.extend(changes);
            }
        }
    }
    let experiment: Experiment = table.try_into().map_err(|error: toml::de::Error| error.to_string())?;
    let id = &experiment.id;
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        return Err(format!("id {id:?}: it names files: small letters, digits and hyphens"));
    }
    for expect in &experiment.expect {
        if expect.at_least.is_none() && expect.at_most.is_none() {
            return Err(format!("expectation {:?}: give at_least, at_most or both", expect.what));
        }
        if expect.first.is_some() != expect.reach.is_some() {
            return Err(format!("expectation {:?}: first and reach go together", expect.what));
        }
    }
    for bound in experiment.plot.iter().flat_map(|plot| &plot.bound) {
        let needs_cost = matches!(bound.limit, Limit::Latency | Limit::Issue);
        if needs_cost == (bound.of.is_none() && bound.of_row.is_none()) {
            return Err(format!(
                "bound {:?}: latency and issue need of or of_row, the others have neither",
                bound.label
            ));
        }
        if !needs_cost && bound.gbit_per_s.is_none() {
            return Err(format!("bound {:?}: link and chunks need gbit_per_s", bound.label));
        }
    }
    Ok(experiment)
}

/// The experiments whose ids are asked for; all if none is.
///
/// # Errors
/// [`EvaluateError::Unknown`].
pub fn choose(experiments: Vec<Experiment>, only: &[String]) -> Result<Vec<Experiment>, EvaluateError> {
    for asked in only {
        if !experiments.iter().any(|experiment| experiment.id == *asked) {
            let known: Vec<&str> = experiments.iter().map(|experiment| experiment.id.as_str()).collect();
            return Err(EvaluateError::Unknown { asked: asked.clone(), known: known.join(", ") });
        }
    }
    Ok(experiments.into_iter().filter(|experiment| only.is_empty() || only.contains(&experiment.id)).collect())
}

/// The folder of experiments where nothing else is said.
#[must_use]
pub fn default_folder() -> PathBuf {
    PathBuf::from("experiments")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        id = "a-1"
        order = 1
        title = "t"
        question = "q"
        paper = "p"
        columns = ["threads"]
        expect = [{ what = "w", class = "goal", column = "c", where = { threads = 1 }, at_most = 2.0 }]
        [[tput]]
        images = ["receive"]
        transports = ["uc"]
        threads = [1, 2, 4]
        bytes = [8388608]
        reduced = { threads = [1], bytes = [4096] }
    "#;

    #[test]
    fn reduced_sweeps_are_smaller() {
        let threads = |reduced| parse(TEXT, reduced).unwrap().tput[0].threads.clone();
        assert_eq!((threads(false), threads(true)), (vec![1, 2, 4], vec![1]));
        assert_eq!(parse(TEXT, true).unwrap().tput[0].chunk_bytes, [4096]);
    }

    #[test]
    fn what_is_no_experiment_is_refused() {
        for (from, to, word) in [
            ("order = 1", "", "order"),
            ("a-1", "../x", "names files"),
            (", at_most = 2.0", "", "at_least"),
            ("at_most = 2.0", "at_most = 2.0, first = \"threads\"", "reach"),
            ("threads = [1, 2, 4]", "threads = [-1]", "invalid value"),
            ("images =", "imagse =", "imagse"),
            ("\"uc\"", "\"rc\"", "rc"),
        ] {
            let error = parse(&TEXT.replace(from, to), false).unwrap_err();
            assert!(error.contains(word), "{error} lacks {word}");
        }
    }

    #[test]
    fn unknown_ids_are_told_with_those_there_are() {
        let one = vec![parse(TEXT, false).unwrap()];
        let error = choose(one.clone(), &["b".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--only b") && error.contains("a-1"), "{error}");
        assert_eq!(choose(one, &[]).unwrap().len(), 1);
    }
}
