//! A DPA thread: its hart, its view of memory-mapped registers, and where it is in its life.

use emu_hart::Hart;

/// What started a thread, which decides how it may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Started by completions; ends by reschedule, finish or retrigger.
    EventHandler,
    /// Started by the host; ends by returning.
    Rpc,
}

/// Where a thread is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Made, not yet released by `event_handler_run`.
    Created,
    /// Asleep until its next trigger.
    Waiting,
    /// Executing instructions.
    Running,
    /// Never runs again.
    Finished,
}

/// The 1 KiB direct-mapped L1 data cache of one thread, tags only.
#[derive(Clone, Debug)]
pub struct L1 {
    tags: [u64; Self::LINES],
}

impl L1 {
    const LINES: usize = 16;
    const LINE_SHIFT: u32 = 6;
    const EMPTY: u64 = u64::MAX;

    pub(crate) fn new() -> Self {
        L1 { tags: [Self::EMPTY; Self::LINES] }
    }

    /// Whether the line is present; it is afterwards.
    #[inline]
    pub(crate) fn touch(&mut self, addr: u64) -> bool {
        let line = addr >> Self::LINE_SHIFT;
        let tag = &mut self.tags[(line % Self::LINES as u64) as usize];
        std::mem::replace(tag, line) == line
    }

    /// Another agent wrote `[addr, addr + len)`: the thread's copies are gone.
    #[inline]
    pub(crate) fn invalidate(&mut self, addr: u64, len: u64) {
        let first = addr >> Self::LINE_SHIFT;
        let last = (addr + len.max(1) - 1) >> Self::LINE_SHIFT;
        if last - first < Self::LINES as u64 {
            for line in first..=last {
                let tag = &mut self.tags[(line % Self::LINES as u64) as usize];
                if *tag == line {
                    *tag = Self::EMPTY;
                }
            }
        } else {
            for tag in &mut self.tags {
                if (first..=last).contains(tag) {
                    *tag = Self::EMPTY;
                }
            }
        }
    }
}

/// The registers through which a thread reaches the network card and host memory.
#[derive(Clone, Debug)]
pub struct Port {
    /// Execution unit, and so the slot of the thread's block.
    pub eu: u32,
    /// Outbox selected by `outbox_config`.
    pub outbox: Option<u32>,
    /// Per entity: window id and memory key.
    pub windows: [Option<(u32, u32)>; 2],
}

/// One hardware thread with its software state.
#[derive(Debug)]
pub struct Thread {
    /// Thread id, unique on its card.
    pub id: u32,
    /// What started it.
    pub kind: ThreadKind,
    /// Entry function.
    pub entry: u64,
    /// Argument of every activation.
    pub arg: u64,
    /// Thread-local storage address given at creation.
    pub tls: u64,
    /// Where it is in its life.
    pub state: ThreadState,
    /// A trigger arrived while it could not start.
    pub pending: bool,
    /// Registers and counters.
    pub hart: Hart,
    /// Its MMIO view.
    pub port: Port,
    /// Tags of its data cache in the simple cost model.
    pub l1: L1,
    /// Cycle at which the present activation started, for the watchdog.
    pub started_cycles: u64,
    /// Cycles of the activations before the present one.
    pub busy_cycles: u64,
    /// Activations so far.
    pub activations: u64,
}
