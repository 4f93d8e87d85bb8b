//! Costs of a thread's accesses, by the simple model or by a timing model.

use emu_hart::Before;
use emu_timing::cache::line_of;
use emu_timing::core::THREADS;
use emu_timing::memory::CORES;
use emu_timing::{Core, Memory, Space};

use crate::config::{CostModel, DrivenFrom};
use crate::memory::ProcessMemory;
use crate::thread::L1;
use crate::timed::ahead::Aheads;

/// Costs of one thread's accesses. Each method moves `cycles`, which shows the cycle at which the access begins, to the one at which the
/// thread goes on.
pub(crate) trait Costs {
    /// Whether atomic operations cost what a load and a store do; otherwise [`Costs::atomic`] tells.
    const ATOMICS_ARE_ACCESSES: bool;
    /// Whether accesses are calls. A hart that runs by itself is faster so: its loop keeps more in registers.
    const ACCESSES_ARE_CALLS: bool;
    /// Whether accesses may be executed ahead of their issue.
    const MAY_LEAD: bool;

    /// A load; true if [`Costs::settle`] has to be called before memory is looked at. Likewise stores and atomic operations.
    #[must_use]
    fn load(&mut self, addr: u64, cycles: &mut u64) -> bool;
    #[must_use]
    fn store(&mut self, addr: u64, cycles: &mut u64) -> bool;
    #[must_use]
    fn atomic(&mut self, addr: u64, cycles: &mut u64) -> bool;
    /// The atomic operation changed memory; a load-reserved does not, nor does a store-conditional that fails.
    fn stored(&mut self, _addr: u64) {}
    /// Takes back what other threads have executed ahead at an address.
    fn settle(&mut self, _addr: u64, _memory: &mut ProcessMemory) {}
    /// Whether a load may be executed ahead; then [`Costs::loaded_ahead`] tells of it. Likewise a store, with the value that was there.
    fn load_ahead(&mut self, _addr: u64) -> bool {
        false
    }
    fn loaded_ahead(&mut self, _before: &Before<'_>, _addr: u64, _value: u64) {}
    fn store_ahead(&mut self, _addr: u64) -> bool {
        false
    }
    fn stored_ahead(&mut self, _before: &Before<'_>, _addr: u64, _width: usize, _old: u64) {}
    /// Whether the thread may go on in another line of code ahead; it does.
    fn enter_ahead(&mut self, _before: &Before<'_>) -> bool {
        false
    }
    /// With the predecessor set of the instruction.
    fn fence(&mut self, predecessor: u8, cycles: &mut u64);
    /// Through a window, at an address of whoever drives the card.
    fn load_window(&mut self, host: u64, cycles: &mut u64);
    fn store_window(&mut self, host: u64, cycles: &mut u64);
    fn store_outbox(&mut self, cycles: &mut u64);
}

/// The simple model: a constant per kind of access, besides the gap between instructions.
pub(crate) struct Simple<'a> {
    pub(crate) model: &'a CostModel,
    /// Whose memory the windows reach.
    pub(crate) driven_from: DrivenFrom,
    pub(crate) l1: &'a mut L1,
}

impl Costs for Simple<'_> {
    const ATOMICS_ARE_ACCESSES: bool = true;
    const ACCESSES_ARE_CALLS: bool = true;
    const MAY_LEAD: bool = false;

    #[inline]
    fn load(&mut self, addr: u64, cycles: &mut u64) -> bool {
        *cycles += if self.l1.touch(addr) { self.model.l1_load_cycles } else { self.model.l2_load_cycles };
        false
    }

    #[inline]
    fn store(&mut self, addr: u64, cycles: &mut u64) -> bool {
        *cycles += if self.l1.touch(addr) { self.model.store_hit_cycles } else { self.model.store_new_line_cycles };
        false
    }

    /// Of a bus that makes atomic operations itself: one load, and a store to what is then in L1.
    #[inline]
    fn atomic(&mut self, addr: u64, cycles: &mut u64) -> bool {
        self.load(addr, cycles)
    }

    #[inline]
    fn fence(&mut self, _predecessor: u8, cycles: &mut u64) {
        *cycles += self.model.fence_cycles;
    }

    fn load_window(&mut self, _host: u64, cycles: &mut u64) {
        *cycles += match self.driven_from {
            DrivenFrom::Host => self.model.window_load_cycles,
            DrivenFrom::Arm => self.model.arm_window_load_cycles,
        };
    }

    fn store_window(&mut self, _host: u64, cycles: &mut u64) {
        *cycles += self.model.window_store_cycles;
    }

    fn store_outbox(&mut self, cycles: &mut u64) {
        *cycles += self.model.outbox_store_cycles;
    }
}

/// A timing model: caches, store buffers and shared paths of the card.
pub(crate) struct Modelled<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) cores: &'a mut [Core; CORES],
    pub(crate) aheads: &'a mut Aheads,
    /// Hardware thread, of the card.
    pub(crate) thread: usize,
    /// Makes the addresses of the thread's process different from those of others.
    pub(crate) tag: u64,
    /// The cycle of the first instruction of the burst.
    pub(crate) at: u64,
    /// Whether a thread has reserved memory, so that all stores must be told of.
    pub(crate) reserved: bool,
    /// Where the thread has stored last, for reservations of others.
    pub(crate) stored: Option<u64>,
}

/// Makes the addresses of a process different from those of others; no device address is as long.
pub(crate) const fn tag(process: u32) -> u64 {
    (process as u64) << 40
}

/// The address in its process.
pub(crate) const fn untagged(addr: u64) -> u64 {
    addr & (tag(1) - 1)
}

/// The same for the memory behind the windows, which no process is.
const HOST: u64 = 1 << 63;

impl Costs for Modelled<'_> {
    const ATOMICS_ARE_ACCESSES: bool = false;
    const ACCESSES_ARE_CALLS: bool = false;
    const MAY_LEAD: bool = true;

    #[inline(always)]
    fn load(&mut self, addr: u64, cycles: &mut u64) -> bool {
        *cycles += self.memory.load(self.thread, Space::Dpa, self.tag | addr, *cycles);
        self.memory.take_met()
    }

    #[inline]
    fn store(&mut self, addr: u64, cycles: &mut u64) -> bool {
        self.stored = Some(addr);
        *cycles += self.memory.store(self.thread, Space::Dpa, self.tag | addr, *cycles);
        self.memory.take_met()
    }

    fn atomic(&mut self, addr: u64, cycles: &mut u64) -> bool {
        *cycles += self.memory.atomic(self.thread, self.tag | addr, *cycles);
        self.memory.take_met()
    }

    fn stored(&mut self, addr: u64) {
        self.stored = Some(addr);
    }

    fn settle(&mut self, addr: u64, memory: &mut ProcessMemory) {
        self.aheads.settle(self.tag | addr, Some(self.thread), self.cores, self.memory, memory);
    }

    #[inline(always)]
    fn load_ahead(&mut self, addr: u64) -> bool {
        self.memory.load_ahead(self.thread, self.tag | addr)
    }

    #[inline(always)]
    fn loaded_ahead(&mut self, before: &Before<'_>, addr: u64, value: u64) {
        self.aheads.loaded(self.thread, before, self.tag | addr, value);
    }

    #[inline(always)]
    fn store_ahead(&mut self, addr: u64) -> bool {
        !self.reserved && self.memory.store_ahead(self.thread, self.tag | addr, self.at)
    }

    #[inline(always)]
    fn stored_ahead(&mut self, before: &Before<'_>, addr: u64, width: usize, old: u64) {
        self.aheads.stored(self.thread, before, self.tag | addr, width, old);
    }

    #[inline(always)]
    fn enter_ahead(&mut self, before: &Before<'_>) -> bool {
        let may = self.memory.fetch_ahead(self.thread / THREADS, self.tag | before.pc);
        if may {
            self.aheads.entered(self.thread, before, line_of(self.tag | before.pc));
        }
        may
    }

    fn fence(&mut self, predecessor: u8, cycles: &mut u64) {
        *cycles += self.memory.fence(self.thread, predecessor, *cycles);
    }

    fn load_window(&mut self, host: u64, cycles: &mut u64) {
        *cycles += self.memory.load(self.thread, self.memory.window(), HOST | host, *cycles);
    }

    fn store_window(&mut self, host: u64, cycles: &mut u64) {
        *cycles += self.memory.store(self.thread, self.memory.window(), HOST | host, *cycles);
    }

    fn store_outbox(&mut self, cycles: &mut u64) {
        *cycles += self.memory.model().doorbell_cycles;
    }
}
