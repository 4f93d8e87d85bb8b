//! Laboratory: simulation of collectives, calibration of the timing model, the evaluation, random soak runs, cost
//! models, and the comparison with other collective libraries.
//!
//! It uses the product and the emulated card; neither knows it.

pub mod accesses;
pub mod agreement;
pub mod calibrate;
pub mod capacity;
pub mod compare;
pub mod concurrent;
pub mod evaluate;
pub mod figures;
pub mod flow;
#[cfg(test)]
#[allow(dead_code, unreachable_pub)] // Tests of other packages have the rest.
#[path = "../../tests/src/harness.rs"]
mod harness;
pub mod images;
pub mod incast;
pub mod jobs;
pub mod machine;
pub mod machine_args;
pub mod memory;
pub mod model;
pub mod options;
pub mod overlap;
pub mod perf;
pub mod pingpong;
pub mod probe;
pub mod reference;
pub mod service;
pub mod shard;
pub mod sim;
pub mod soak;
pub mod sparse;
pub mod tput;
pub mod tune;
