//! The throughput harness: a Broadcast from one card to the DPA of another, by the library as every program uses it.
//!
//! [`spec`] is what is asked for, [`plan`] checks parameters, [`run`] makes the communicator of two ranks and repeats
//! the operation, [`report`] is what comes out.

pub mod error;
pub mod plan;
pub mod report;
pub mod run;
pub mod spec;

pub use error::TputError;
