//! Statistics of what threads have executed.

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
    pub(super) fn of(thread: &Thread, entry: String, destroyed: bool) -> Self {
        let Executed { instructions, cycles } = Executed::of(thread);
        ThreadStatistics {
            id: thread.id,
            kind: thread.kind,
            eu: thread.port.eu,
            entry,
            state: thread.state,
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
