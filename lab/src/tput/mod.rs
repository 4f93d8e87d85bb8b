//! The throughput harness: a receiver on the DPA of one card, a sender on the host of the other.
//!
//! - [`plan`] checks parameters and cuts the buffer into shares and chunks;
//! - [`server`] loads the image and provisions its workers: threads, queues, keys, staging, window;
//! - [`client`] sends, never more than the workers have receives for;
//! - [`run`] puts both together, compares what arrived with what was sent, and makes the [`report`].

pub mod client;
pub mod error;
pub mod plan;
pub mod report;
pub mod run;
pub mod server;

pub use error::TputError;
