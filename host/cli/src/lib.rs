//! The parts of the `flexcast` tool that tests use: the throughput harness, simulations, device logs.

pub mod accesses;
pub mod calibrate;
pub mod capacity;
pub mod concurrent;
mod driven_from;
pub mod evaluate;
pub mod figures;
pub mod gdb;
pub mod logs;
pub mod look;
pub mod machine;
pub mod memory;
pub mod options;
pub mod pingpong;
pub mod sim;
pub mod stdout;
pub mod tables;
pub mod timing;
pub mod tput;
