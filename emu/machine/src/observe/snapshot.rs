//! The state of the machine at one moment, in the manner of the vendor's process and statistics tools: processes,
//! threads, and what each thread has executed. What has been destroyed is remembered, up to a limit.

use std::collections::VecDeque;

use emu_fabric::PortCounters;
use emu_nic::Counters;

use super::diagnosis::Diagnosis;
use super::race::RaceSnapshot;
use crate::dpa::heap::HeapInfo;
use crate::dpa::process::{Process, ProcessStatus};
use crate::dpa::statistics::ThreadStatistics;

/// Destroyed threads remembered by their process.
pub(crate) const GONE_THREADS: usize = 1024;
/// Destroyed processes remembered by their card.
pub(crate) const GONE_PROCESSES: usize = 64;

/// A process and its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Process id, unique on its card.
    pub id: u32,
    /// Name of the program, or nothing.
    pub label: String,
    /// Build id of its image, if it has one.
    pub build_id: Option<String>,
    /// Whether it runs, or how it ended.
    pub status: ProcessStatus,
    /// The host has destroyed it.
    pub destroyed: bool,
    /// Its heap.
    pub heap: HeapInfo,
    /// Its threads by id, destroyed ones included.
    pub threads: Vec<ThreadStatistics>,
    /// Destroyed threads that are not remembered any more.
    pub forgotten_threads: u64,
}

impl ProcessSnapshot {
    pub(crate) fn of(process: &Process, destroyed: bool) -> Self {
        let mut threads: Vec<_> = process.gone.iter().cloned().collect();
        threads.extend(process.threads.values().map(|thread| process.statistics(thread, destroyed)));
        threads.sort_by_key(|thread| thread.id);
        ProcessSnapshot {
            id: process.id,
            label: process.label.clone(),
            build_id: process.image.build_id(),
            status: process.status.clone(),
            destroyed,
            heap: process.heap.info(),
            threads,
            forgotten_threads: process.forgotten_threads,
        }
    }
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSnapshot {
    /// Index of the card.
    pub index: usize,
    /// Its processes by id, destroyed ones included.
    pub processes: Vec<ProcessSnapshot>,
    /// What its network side has counted.
    pub counters: Counters,
    /// What its port has seen.
    pub port: PortCounters,
}

/// The whole machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the model behind the times.
    pub model: String,
    /// Virtual time in picoseconds.
    pub now_ps: u64,
    /// Its cards.
    pub cards: Vec<CardSnapshot>,
    /// Why programs on the cards are stuck: the first [`Diagnosis`]es, at most 64.
    pub diagnoses: Vec<Diagnosis>,
    /// Races; `None` where nobody detects them.
    pub races: Option<RaceSnapshot>,
}

/// Appends to a queue of bounded length; returns whether the oldest had to go.
pub(crate) fn remember<T>(queue: &mut VecDeque<T>, limit: usize, item: T) -> bool {
    let full = queue.len() >= limit;
    if full {
        queue.pop_front();
    }
    queue.push_back(item);
    full
}
