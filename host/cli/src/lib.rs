//! The parts of the `flexcast` tool that other programs and tests use: providers, the throughput harness, device logs.

pub mod logs;
pub mod machine;
pub mod pingpong;
pub mod provider;
pub mod tput;
