//! Executors of the threads of a card.

use crate::dpa::layout::{EUS_PER_CORE, EXECUTION_UNITS};
use crate::dpa::thread::{Thread, ThreadState};
use crate::timed::Timed;

/// The cores of a card.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Running threads on each.
    pub(crate) running: [u64; EXECUTION_UNITS / EUS_PER_CORE],
    /// Who issues when, with a timing model.
    pub(crate) timed: Option<Box<Timed>>,
}

impl Cores {
    pub(crate) fn new(timed: Option<Timed>) -> Self {
        Cores { running: [0; EXECUTION_UNITS / EUS_PER_CORE], timed: timed.map(Box::new) }
    }

    /// A thread of a process begins to execute.
    pub(crate) fn enter(&mut self, process: u32, thread: &Thread) {
        self.running[thread.port.eu as usize / EUS_PER_CORE] += 1;
        if let Some(timed) = &mut self.timed {
            timed.begin(process, thread);
        }
    }

    /// Takes a thread off its core, if it runs.
    pub(crate) fn leave(&mut self, thread: &mut Thread, next: ThreadState) {
        if thread.state == ThreadState::Running {
            self.running[thread.port.eu as usize / EUS_PER_CORE] -= 1;
            thread.busy_cycles += thread.hart.cycles - thread.started_cycles;
            if let Some(timed) = &mut self.timed {
                timed.end(thread.port.eu);
            }
        }
        if thread.state != next {
            thread.since_cycles = thread.since_cycles.max(thread.hart.cycles);
        }
        thread.state = next;
    }
}
