//! Command queues of a process: tasks that wait, and the workers that run them.

use std::collections::{BTreeMap, VecDeque};

/// A function of the firmware and its argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) function: u64,
    pub(crate) argument: u64,
}

/// A command queue of a process.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    pub(crate) workers: Vec<u32>,
    pub(crate) waiting: VecDeque<Task>,
    /// Tasks that run, by worker.
    pub(crate) running: BTreeMap<u32, Task>,
    /// Tasks are started.
    pub(crate) started: bool,
}
