//! The evaluation: experiments as files, run on emulated cards or computed, compared with what was published, and shown
//! as one page.
//!
//! - [`spec`] is the format of a file of `lab/experiments/`: question, sweeps, published points, bounds, expectations;
//! - [`point`] is one run of the throughput harness or of a collective, and what it reports; [`computed`] are closed
//!   forms;
//! - [`run`] does all runs on the worker pool ([`jobs`](crate::jobs)), the same run once, the longest first, and
//!   reports its [`Progress`](run::Progress);
//! - [`statistics`], [`spread`], [`linear`], [`fastest`], [`bound`] and [`expect`] are what is made of rows: spreads,
//!   fits of lines, quotients with the fastest, bare bounds, verdicts;
//! - [`output`] writes CSV and JSON, [`page`] the page with its [`plot`]s, [`summary`] the short form for the
//!   documentation.

pub mod axis;
pub mod bound;
pub mod calibration;
pub mod computed;
pub mod expect;
pub mod fastest;
pub mod linear;
pub mod output;
pub mod page;
pub mod plot;
pub mod point;
pub mod row;
pub mod run;
pub mod spec;
pub mod spread;
pub mod statistics;
pub mod summary;

use std::path::PathBuf;

/// An evaluation that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// A file or folder cannot be read or written.
    #[error("{what} `{}`: {source}", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file does not have the format.
    #[error("{what} `{}`: {reason}", path.display())]
    Format {
        /// What it is.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What is wrong, and what would do.
        reason: String,
    },
    /// No such experiment.
    #[error("--only {asked}: no experiment has this id; there are {known}")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// The ids.
        known: String,
    },
    /// A run has failed, or its bytes are wrong: no time of it is reported.
    #[error("experiment {experiment}, {run}: {reason}")]
    Run {
        /// The experiment.
        experiment: String,
        /// The run, as a command.
        run: String,
        /// Why.
        reason: String,
    },
}
