//! Operations as data: buffers, reductions, what is called, settings and reports. Nothing here knows who carries an
//! operation out.

pub(crate) mod aggregation;
pub(crate) mod buffer;
pub(crate) mod chain_mapping;
pub(crate) mod collective;
pub(crate) mod config;
pub(crate) mod decision;
pub(crate) mod displs;
pub(crate) mod lease;
pub(crate) mod lists;
pub(crate) mod outcome;
pub(crate) mod region;
pub(crate) mod report;
pub(crate) mod selection;
pub(crate) mod service_options;
pub(crate) mod sparse_cost;
pub(crate) mod stream;
pub(crate) mod tuning;
pub(crate) mod units;
pub(crate) mod variable;
