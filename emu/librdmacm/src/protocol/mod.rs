//! Connection management as a protocol: messages, and the state machine that takes and gives them.

pub mod agent;
pub mod mad;
pub mod service;
pub mod times;

#[cfg(test)]
mod tests;
