//! The parts of the `flexcast` tool that tests use: timelines and state of processes, gdb, what is printed.

pub mod observe;
pub mod options;
pub mod stdout;
pub mod tables;
