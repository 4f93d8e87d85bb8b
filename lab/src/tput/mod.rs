//! The throughput harness: a Broadcast from one card to the DPA of another, by the library as every program uses it.
//!
//! [`spec`] is what is asked for, [`plan`] checks parameters, [`run`] makes the communicator of two ranks and repeats
//! the operation, [`report`] is what comes out. [`two_hosts`] is the same between
//! two processes.

pub mod error;
pub mod plan;
pub mod report;
pub mod run;
pub mod spec;
pub mod two_hosts;

pub use error::TputError;
