//! Sparse AllReduce on emulated cards: workers, and aggregators on the same cards or on cards of their own.

mod options;
mod report;
mod run;

pub use options::{Aggregators, AggregatorsText, SparseArgs, SparseSim};
pub use report::SparseSimReport;
pub use run::run;
