//! The parts of the `flexcast` tool that tests use: device logs, timelines and state of processes, gdb, what is printed.

pub mod gdb;
pub mod logs;
pub mod look;
pub mod options;
pub mod stdout;
pub mod tables;
