//! Caches, store buffers and shared paths of one card's DPA: what an access costs its thread.
//!
//! L1 is private to a thread, the code cache to a core, L2 and L3 are the card's. Windows to Arm and host memory are
//! held in L1 only. Latency is that of the first level that holds the line, plus the wait for every shared path on the
//! way. Data written by the card lands in L2 and is gone from the L1s.
//!
//! Accesses that cost the same whenever they are issued may be executed before: [`Memory::load_ahead`] and others.

use std::collections::VecDeque;

use crate::cache::{Cache, LINE_BYTES, Touch, line_of};
use crate::core::THREADS;
use crate::labels::Labels;
use crate::model::Model;
use crate::server::Server;
use crate::snoop_filter::{SnoopFilter, WINDOW_LINE};
use crate::unit::{of_cycles, to_cycles};

mod ahead;

/// Cores of a card.
pub const CORES: usize = 16;

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The DPA's own memory.
    Dpa,
    /// Arm memory, through a window.
    Arm,
    /// Host memory, through a window.
    Host,
}

/// Accesses by the level that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads that hit L1.
    pub l1: u64,
    /// Loads, and atomic operations, that hit L2.
    pub l2: u64,
    /// The same that hit L3.
    pub l3: u64,
    /// The same from the DPA's memory.
    pub dpa_memory: u64,
    /// Loads through windows.
    pub window: u64,
    /// Stores to lines in L1.
    pub store_hits: u64,
    /// Stores to other lines.
    pub store_new_lines: u64,
    /// Lines that left a store buffer and were not in L2.
    pub stores_beyond_l2: u64,
    /// Lines of code that were not in their core's code cache.
    pub code_misses: u64,
    /// Units of time that threads waited for shared paths.
    pub waited: u64,
}

/// A thread's lines on their way out, oldest first, each with the time at which its path takes it.
#[derive(Clone, Debug, Default)]
struct StoreBuffer {
    lines: VecDeque<(u64, u64)>,
}

impl StoreBuffer {
    fn settle(&mut self, now: u64) {
        while self.lines.front().is_some_and(|(_, taken_at)| *taken_at <= now) {
            self.lines.pop_front();
        }
    }
}

#[derive(Clone, Debug)]
struct Thread {
    l1: Cache,
    stores: StoreBuffer,
    /// It has stored through a window since it last waited for that.
    window_stored: bool,
}

#[derive(Clone, Copy, Debug)]
struct Paths {
    l2: Server,
    l3: Server,
    dpa_memory_read: Server,
    dpa_memory_write: Server,
    arm_window_read: Server,
    arm_window_write: Server,
    host_window_read: Server,
    host_window_write: Server,
}

/// The memory of one card as its threads feel it. Addresses of different processes must differ; those of one space do.
/// Calls must come in the order of their times.
#[derive(Clone, Debug)]
pub struct Memory {
    model: Model,
    threads: Vec<Thread>,
    snoop_filter: SnoopFilter,
    /// The last access brought a line to its thread that another L1 may hold, or was atomic on one.
    met: bool,
    /// Threads in an activation, one bit each.
    active: [u64; CORES * THREADS / 64],
    code: Vec<Cache>,
    l2: Cache,
    l3: Cache,
    paths: Paths,
    window: Space,
    counts: Counts,
    labels: Labels,
}

impl Memory {
    /// Empty caches and idle paths; windows reach host memory.
    #[must_use]
    pub fn new(model: Model) -> Self {
        let cache = |(bytes, ways): (u64, usize)| Cache::new(bytes, ways);
        let thread = Thread { l1: cache(model.l1), stores: StoreBuffer::default(), window_stored: false };
        let service = model.service;
        Memory {
            threads: vec![thread; CORES * THREADS],
            snoop_filter: SnoopFilter::new(),
            met: false,
            active: [0; CORES * THREADS / 64],
            code: vec![cache(model.code); CORES],
            l2: cache(model.l2),
            l3: cache(model.l3),
            paths: Paths {
                l2: Server::new(service.l2),
                l3: Server::new(service.l3),
                dpa_memory_read: Server::new(service.dpa_memory_read),
                dpa_memory_write: Server::new(service.dpa_memory_write),
                arm_window_read: Server::new(service.arm_window_read),
                arm_window_write: Server::new(service.arm_window_write),
                host_window_read: Server::new(service.host_window_read),
                host_window_write: Server::new(service.host_window_write),
            },
            window: Space::Host,
            counts: Counts::default(),
            labels: Labels::default(),
            model,
        }
    }

    /// The same of a card that is driven from its own Arm cores: windows reach their memory.
    #[must_use]
    pub fn driven_from_arm(model: Model) -> Self {
        Memory { window: Space::Arm, ..Memory::new(model) }
    }

    /// What lies behind the windows.
    #[must_use]
    pub fn window(&self) -> Space {
        self.window
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What has been counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts accesses to `len` bytes at `addr` under a name, too; several ranges may have one. False, and nothing
    /// changes, for an empty range and one that shares addresses with another.
    pub fn label(&mut self, addr: u64, len: u64, name: &str) -> bool {
        self.labels.add(addr, len, name)
    }

    /// What has been counted for each name.
    pub fn labelled(&self) -> impl Iterator<Item = (&str, Counts)> {
        self.labels.counts()
    }

    /// Adds to a count, in all and for the range that the address is in.
    #[inline]
    fn count(&mut self, addr: u64, add: impl Fn(&mut Counts)) {
        add(&mut self.counts);
        if let Some(counts) = self.labels.at(addr) {
            add(counts);
        }
    }

    /// An activation of thread `thread` (of the card, 0 to 255) begins: its L1 is empty.
    pub fn begin(&mut self, thread: usize) {
        self.empty_l1(thread);
        self.threads[thread].window_stored = false;
        self.active[thread / 64] |= 1 << (thread % 64);
    }

    /// The activation is over.
    pub fn end(&mut self, thread: usize) {
        self.empty_l1(thread);
        self.active[thread / 64] &= !(1 << (thread % 64));
    }

    fn empty_l1(&mut self, thread: usize) {
        for line in self.threads[thread].l1.lines() {
            self.snoop_filter.remove(line);
        }
        self.threads[thread].l1.clear();
    }

    /// Whether the thread's L1 holds `line`; it does afterwards.
    #[inline]
    fn touch_l1(&mut self, thread: usize, line: u64) -> bool {
        match self.threads[thread].l1.touch_evicting(line) {
            Touch::Hit => true,
            Touch::Miss { gone } => {
                if let Some(gone) = gone {
                    self.snoop_filter.remove(gone);
                }
                self.met = self.snoop_filter.add(line);
                false
            }
        }
    }

    fn drop_from_l1(&mut self, thread: usize, line: u64) {
        if self.threads[thread].l1.remove(line) {
            self.snoop_filter.remove(line);
        }
    }

    /// Cycles from a load at cycle `at` until its thread goes on.
    #[inline(always)]
    pub fn load(&mut self, thread: usize, space: Space, addr: u64, at: u64) -> u64 {
        // Most loads.
        if self.threads[thread].l1.is_newest(line_in(space, addr)) && self.labels.is_empty() {
            self.counts.l1 += 1;
            return self.model.l1_cycles;
        }
        self.load_of_any(thread, space, addr, at)
    }

    #[inline(never)]
    fn load_of_any(&mut self, thread: usize, space: Space, addr: u64, at: u64) -> u64 {
        let line = line_in(space, addr);
        if self.touch_l1(thread, line) {
            self.count(addr, |counts| counts.l1 += 1);
            return self.model.l1_cycles;
        }
        self.beyond_l1(space, addr, at)
    }

    fn beyond_l1(&mut self, space: Space, addr: u64, at: u64) -> u64 {
        let arrives = of_cycles(at);
        let (cycles, reached) = match space {
            Space::Dpa => self.shared_levels(addr, arrives),
            Space::Arm => {
                self.count(addr, |counts| counts.window += 1);
                (self.model.arm_window_cycles, self.paths.arm_window_read.enter(arrives))
            }
            Space::Host => {
                self.count(addr, |counts| counts.window += 1);
                (self.model.host_window_cycles, self.paths.host_window_read.enter(arrives))
            }
        };
        self.count(addr, |counts| counts.waited += reached - arrives);
        cycles + to_cycles(reached - arrives)
    }

    /// Latency without waiting, and when the last path on the way let it through.
    fn shared_levels(&mut self, addr: u64, arrives: u64) -> (u64, u64) {
        let line = line_of(addr);
        let reached = self.paths.l2.enter(arrives);
        let (in_l2, in_l3) = (self.l2.touch(line), self.l3.touch(line));
        if in_l2 {
            self.count(addr, |counts| counts.l2 += 1);
            return (self.model.l2_cycles, reached);
        }
        let reached = self.paths.l3.enter(reached);
        if in_l3 {
            self.count(addr, |counts| counts.l3 += 1);
            return (self.model.l3_cycles, reached);
        }
        self.count(addr, |counts| counts.dpa_memory += 1);
        (self.model.dpa_memory_cycles, self.paths.dpa_memory_read.enter(reached))
    }

    /// Cycles that a store at cycle `at` costs its thread. It is posted: the line leaves by itself.
    pub fn store(&mut self, thread: usize, space: Space, addr: u64, at: u64) -> u64 {
        let line = line_in(space, addr);
        let hit = self.touch_l1(thread, line);
        let cycles = if hit {
            self.count(addr, |counts| counts.store_hits += 1);
            self.model.store_hit_cycles
        } else {
            self.count(addr, |counts| counts.store_new_lines += 1);
            self.model.store_new_line_cycles
        };
        let Memory { threads, model, counts, .. } = self;
        let own = &mut threads[thread];
        own.window_stored |= space != Space::Dpa;
        let mut now = of_cycles(at);
        own.stores.settle(now);
        if own.stores.lines.back().is_some_and(|(newest, _)| *newest == line) {
            return cycles;
        }
        if own.stores.lines.len() >= model.buffer_lines
            && let Some((_, taken_at)) = own.stores.lines.pop_front()
        {
            counts.waited += taken_at - now;
            now = taken_at;
        }
        let waited = to_cycles(now - of_cycles(at));
        let after = own.stores.lines.back().map_or(now, |(_, taken_at)| now.max(*taken_at));
        let taken_at = self.take_store(space, line, after);
        self.threads[thread].stores.lines.push_back((line, taken_at));
        cycles + waited
    }

    /// When the path of a stored line takes it.
    fn take_store(&mut self, space: Space, line: u64, at: u64) -> u64 {
        match space {
            Space::Arm => self.paths.arm_window_write.enter(at),
            Space::Host => self.paths.host_window_write.enter(at),
            Space::Dpa => {
                let reached = self.paths.l2.enter(at);
                let (in_l2, in_l3) = (self.l2.touch(line), self.l3.touch(line));
                if in_l2 {
                    return reached;
                }
                self.count(line * LINE_BYTES, |counts| counts.stores_beyond_l2 += 1);
                let reached = self.paths.l3.enter(reached);
                if in_l3 { reached } else { self.paths.dpa_memory_write.enter(reached) }
            }
        }
    }

    /// Cycles of an atomic operation at cycle `at`: done in L2, behind the thread's own stores.
    pub fn atomic(&mut self, thread: usize, addr: u64, at: u64) -> u64 {
        let line = line_of(addr);
        self.drop_from_l1(thread, line);
        self.met = self.snoop_filter.at(line) > 0;
        self.beyond_l1(Space::Dpa, addr, at) + self.model.store_hit_cycles
    }

    /// Cycles of a fence at cycle `at`, with the predecessor set that the instruction names (bit 3 device input, 2
    /// device output, 1 reads, 0 writes): until the thread's stores that it orders are on their way, and one trip to
    /// where they go. Device output behind stores through a window is a writeback of the window; loads have returned
    /// anyway.
    pub fn fence(&mut self, thread: usize, predecessor: u8, at: u64) -> u64 {
        const OUTPUT: u8 = 4;
        const WRITES: u8 = 1;
        if predecessor & (OUTPUT | WRITES) == 0 {
            return self.model.fence_cycles;
        }
        let waited = self.drained(thread, at);
        let stored = &mut self.threads[thread].window_stored;
        if predecessor & OUTPUT != 0 && std::mem::take(stored) {
            return waited + self.model.window_writeback_cycles;
        }
        waited + self.model.fence_cycles
    }

    fn drained(&mut self, thread: usize, at: u64) -> u64 {
        let stores = &mut self.threads[thread].stores;
        let last = stores.lines.back().map_or(0, |(_, taken_at)| *taken_at);
        stores.lines.clear();
        to_cycles(last.saturating_sub(of_cycles(at)))
    }

    /// Cycles by which an instruction comes later because its line of code was not in its core's code cache.
    #[inline]
    pub fn fetch(&mut self, core: usize, addr: u64, at: u64) -> u64 {
        if self.code[core].touch(line_of(addr)) {
            return 0;
        }
        self.count(addr, |counts| counts.code_misses += 1);
        self.beyond_l1(Space::Dpa, addr, at)
    }

    /// The card has written `len` bytes at `addr`.
    pub fn written_by_card(&mut self, addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        for line in line_of(addr)..=line_of(addr + len - 1) {
            self.l2.touch(line);
            if self.snoop_filter.at(line) > 0 {
                self.drop_everywhere(line);
            }
        }
    }

    fn drop_everywhere(&mut self, line: u64) {
        for word in 0..self.active.len() {
            let mut rest = self.active[word];
            while rest != 0 {
                self.drop_from_l1(word * 64 + rest.trailing_zeros() as usize, line);
                rest &= rest - 1;
            }
        }
    }
}

/// The line of an address in L1: one behind a window is marked, for others have nothing to do with it.
#[inline(always)]
const fn line_in(space: Space, addr: u64) -> u64 {
    match space {
        Space::Dpa => line_of(addr),
        Space::Arm | Space::Host => line_of(addr) | WINDOW_LINE,
    }
}

/// Lines that `len` bytes at `addr` touch.
#[must_use]
pub const fn lines(addr: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { (addr + len - 1) / LINE_BYTES - addr / LINE_BYTES + 1 }
}
