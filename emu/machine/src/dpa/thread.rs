//! A DPA thread: its hart, its view of memory-mapped registers, and where it is in its life.

use emu_hart::Hart;

use crate::near;

/// What started a thread, which decides how it may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Started by completions; ends by reschedule, finish or retrigger.
    EventHandler,
    /// Started by the host; ends by returning.
    Rpc,
    /// Runs tasks of a command queue, each of which ends by returning.
    Worker,
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
    /// Where the lines accessed last lie in the memory of the machine that runs the emulator: addresses to prefetch,
    /// which nothing else depends on. They outlive what they name.
    places: [usize; Self::LINES],
}

impl L1 {
    const LINES: usize = 16;
    const LINE_SHIFT: u32 = 6;
    const EMPTY: u64 = u64::MAX;

    pub(crate) fn new() -> Self {
        L1 { tags: [Self::EMPTY; Self::LINES], places: [0; Self::LINES] }
    }

    /// Nothing is present any more.
    pub(crate) fn clear(&mut self) {
        self.tags = [Self::EMPTY; Self::LINES];
    }

    /// Takes note of where an access was.
    #[inline]
    pub(crate) fn found(&mut self, addr: u64, at: *const u8) {
        self.places[(addr >> Self::LINE_SHIFT) as usize % Self::LINES] = at.addr();
    }

    /// Brings near what was accessed last: most of it is accessed again.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for &place in &self.places {
            near::line(place);
        }
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

/// How far an activation that does not end has been examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Attention {
    /// It has not run for long.
    #[default]
    None,
    /// Its accesses are watched.
    Sampled,
    /// It has been reported.
    Reported,
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
    /// A yield suspends it; in any other thread a yield has no effect.
    pub continuable: bool,
    /// Waiting behind a yield: the next trigger lets it go on there, in place of starting it from the top.
    pub suspended: bool,
    /// Registers and counters.
    pub hart: Hart,
    /// Its MMIO view.
    pub port: Port,
    /// Tags of its data cache in the simple cost model.
    pub l1: L1,
    /// Cycle at which the present activation started, for the watchdog.
    pub started_cycles: u64,
    /// Cycle at which it has to be examined, if it still runs then.
    pub(crate) due_cycles: u64,
    pub(crate) attention: Attention,
    /// Another thread has activated it, and may again.
    pub(crate) is_woken_by_threads: bool,
    /// Cycle since which it is in its state.
    pub since_cycles: u64,
    /// Cycles of the activations before the present one.
    pub busy_cycles: u64,
    /// Activations so far.
    pub activations: u64,
}

/// The threads of a process by their ids.
///
/// Ids are given in ascending order and searched for all the time, so they lie in one row; a place in it is good until
/// a thread is destroyed, which the id there shows.
#[derive(Debug, Default)]
pub struct Threads {
    row: Vec<(u32, Box<Thread>)>,
}

impl Threads {
    /// The thread with an id.
    #[must_use]
    pub fn get(&self, id: &u32) -> Option<&Thread> {
        let place = self.place(*id).ok()?;
        self.row.get(place).map(|(_, thread)| &**thread)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, id: &u32) -> Option<&mut Thread> {
        let place = self.place(*id).ok()?;
        self.row.get_mut(place).map(|(_, thread)| &mut **thread)
    }

    /// The same, searched for at the place where it was; `place` is where it is afterwards.
    #[inline(always)]
    pub(crate) fn get_near(&mut self, place: &mut usize, id: u32) -> Option<&mut Thread> {
        if self.row.get(*place).is_none_or(|(other, _)| *other != id) {
            *place = self.place(id).ok()?;
        }
        self.row.get_mut(*place).map(|(_, thread)| &mut **thread)
    }

    fn place(&self, id: u32) -> Result<usize, usize> {
        self.row.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub(crate) fn insert(&mut self, thread: Thread) {
        match self.place(thread.id) {
            Ok(place) => *self.row[place].1 = thread,
            Err(place) => self.row.insert(place, (thread.id, Box::new(thread))),
        }
    }

    pub(crate) fn remove(&mut self, id: &u32) -> Option<Thread> {
        self.place(*id).ok().map(|place| *self.row.remove(place).1)
    }

    /// Ids in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &u32> {
        self.row.iter().map(|(id, _)| id)
    }

    /// Threads in the order of their ids.
    pub fn values(&self) -> impl Iterator<Item = &Thread> {
        self.row.iter().map(|(_, thread)| &**thread)
    }

    /// The same, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.row.iter_mut().map(|(_, thread)| &mut **thread)
    }
}

impl std::ops::Index<&u32> for Threads {
    type Output = Thread;

    fn index(&self, id: &u32) -> &Thread {
        self.get(id).expect("a thread of the process")
    }
}
