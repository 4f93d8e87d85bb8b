//! The state of the machine at one moment, in the manner of the vendor's process and statistics tools: processes, threads,
//! and what each thread has executed. What has been destroyed is remembered, up to a limit.

use std::collections::VecDeque;

use emu_fabric::PortCounters;
use emu_nic::Counters;

use crate::heap::HeapInfo;
use crate::process::{Process, ProcessStatus};
use crate::race::{Race, Races};
use crate::thread::{Thread, ThreadKind, ThreadState};
use crate::time::cycles_to_ps;
use crate::world::World;

/// Destroyed threads remembered by their process.
pub(crate) const GONE_THREADS: usize = 1024;
/// Destroyed processes remembered by their card.
pub(crate) const GONE_PROCESSES: usize = 64;

/// What a thread has executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStatistics {
    /// Thread id, unique on its card.
    pub id: u32,
    /// What starts it.
    pub kind: ThreadKind,
    /// Execution unit.
    pub eu: u32,
    /// Symbol of its entry function, or of the function called last; empty where the image has none.
    pub entry: String,
    /// Where it is in its life.
    pub state: ThreadState,
    /// The host has destroyed it.
    pub destroyed: bool,
    /// Cycles in which it was executing, waits for memory included.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// The same span as `cycles` in ticks of the time counter: nanoseconds.
    pub ticks: u64,
    /// Activations or calls begun.
    pub executions: u64,
}

/// What threads have executed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Instructions retired.
    pub instructions: u64,
    /// Cycles in which they were executing, waits for memory included; two threads at the same time count twice.
    pub cycles: u64,
}

impl Executed {
    fn of(thread: &Thread) -> Self {
        let running = thread.state == ThreadState::Running;
        let cycles = thread.busy_cycles + if running { thread.hart.cycles - thread.started_cycles } else { 0 };
        Executed { instructions: thread.hart.instret, cycles }
    }

    /// What was executed since these counters were `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Executed {
            instructions: self.instructions.saturating_sub(earlier.instructions),
            cycles: self.cycles.saturating_sub(earlier.cycles),
        }
    }
}

impl ThreadStatistics {
    pub(crate) fn of(process: &Process, thread: &Thread, destroyed: bool) -> Self {
        let Executed { instructions, cycles } = Executed::of(thread);
        ThreadStatistics {
            id: thread.id,
            kind: thread.kind,
            eu: thread.port.eu,
            entry: process.entry_symbol(thread),
            state: thread.state,
            destroyed,
            cycles,
            instructions,
            ticks: cycles_to_ps(cycles) / 1000,
            executions: thread.activations,
        }
    }
}

/// The name that the vendor's tools give a thread: `EH_p_t_t` with the ids of process and thread; calls, which those tools do
/// not list, are `RPC_p_t_t`.
#[must_use]
pub fn thread_name(kind: ThreadKind, process: u32, thread: u32) -> String {
    let prefix = match kind {
        ThreadKind::EventHandler => "EH",
        ThreadKind::Rpc => "RPC",
    };
    format!("{prefix}_{process}_{thread}_{thread}")
}

/// A process and its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Process id, unique on its card.
    pub id: u32,
    /// Name of the program, or nothing.
    pub label: String,
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
        threads.extend(process.threads.values().map(|thread| ThreadStatistics::of(process, thread, destroyed)));
        threads.sort_by_key(|thread| thread.id);
        ProcessSnapshot {
            id: process.id,
            label: process.label.clone(),
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

/// Races for memory, where the machine looks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaceSnapshot {
    /// How many there have been, repetitions included.
    pub count: u64,
    /// The first that are unlike one another and have not been taken ([`World::take_races`]), each with both accesses.
    pub reports: Vec<Race>,
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
    /// Races; `None` where nobody looks for them.
    pub races: Option<RaceSnapshot>,
}

/// Appends to a queue of bounded length; tells whether the oldest had to go.
pub(crate) fn remember<T>(queue: &mut VecDeque<T>, limit: usize, item: T) -> bool {
    let full = queue.len() >= limit;
    if full {
        queue.pop_front();
    }
    queue.push_back(item);
    full
}

impl World {
    /// What the threads of a card have executed, calls of the host included, those that were destroyed excluded; nothing where there is no
    /// such card. A thread that runs is counted as far as it has come, up to 512 cycles ahead of [`World::now_ps`].
    #[must_use]
    pub fn executed(&self, card: usize) -> Executed {
        let processes = self.cards.get(card).into_iter().flat_map(|card| card.processes.values());
        let threads = processes.flat_map(|process| process.threads.values());
        threads.map(Executed::of).fold(Executed::default(), |all, one| Executed {
            instructions: all.instructions + one.instructions,
            cycles: all.cycles + one.cycles,
        })
    }

    /// The state now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let card = |index: usize| {
            let card = &self.cards[index];
            let mut processes: Vec<_> = card.gone.iter().cloned().collect();
            processes.extend(card.processes.values().map(|process| ProcessSnapshot::of(process, false)));
            processes.sort_by_key(|process| process.id);
            CardSnapshot { index, processes, counters: *card.nic.counters(), port: self.port_counters(index) }
        };
        Snapshot {
            model: self.config.model_name().to_owned(),
            now_ps: self.now_ps,
            cards: (0..self.cards.len()).map(card).collect(),
            races: self.watch.as_ref().and_then(|watch| watch.races.as_ref()).map(Races::snapshot),
        }
    }
}
