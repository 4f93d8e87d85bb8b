//! Statistics of what threads have executed.

use flexcast_image::Image;

use super::thread::{Thread, ThreadKind, ThreadState};
use crate::time::cycles_to_ps;

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
    /// Where it executes, or where it stopped last; its entry where it has not executed.
    pub pc: u64,
    /// The function that holds `pc`, with the offset in it.
    pub symbol: Option<(String, u64)>,
    /// Virtual time since which it is in its state, in picoseconds.
    pub since_ps: u64,
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
    pub(crate) fn of(thread: &Thread) -> Self {
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
    /// Of a thread that executes from the symbol `entry`.
    pub(super) fn of(thread: &Thread, entry: String, image: &Image, destroyed: bool) -> Self {
        let pc = if thread.activations == 0 { thread.entry } else { thread.hart.pc };
        let Executed { instructions, cycles } = Executed::of(thread);
        ThreadStatistics {
            id: thread.id,
            kind: thread.kind,
            eu: thread.port.eu,
            entry,
            state: thread.state,
            pc,
            symbol: image.symbolize(pc),
            since_ps: cycles_to_ps(thread.since_cycles),
            destroyed,
            cycles,
            instructions,
            ticks: cycles_to_ps(cycles) / 1000,
            executions: thread.activations,
        }
    }
}

/// The name that the vendor's tools give a thread: `EH_p_t_t` with the ids of process and thread; calls and workers of
/// command queues, which those tools do not list, are `RPC_p_t_t` and `CMDQ_p_t_t`.
#[must_use]
pub fn thread_name(kind: ThreadKind, process: u32, thread: u32) -> String {
    let prefix = match kind {
        ThreadKind::EventHandler => "EH",
        ThreadKind::Rpc => "RPC",
        ThreadKind::Worker => "CMDQ",
    };
    format!("{prefix}_{process}_{thread}_{thread}")
}

/// A thread as sentences name it: id, handler and queues.
pub(crate) fn thread_in_words(thread: u32, entry: &str, queues: &[u32]) -> String {
    let entry = if entry.is_empty() { "no symbol" } else { entry };
    let queues: String = queues.iter().map(|cqn| format!(", CQ {cqn:#x}")).collect();
    format!("thread {thread} ({entry}{queues})")
}
