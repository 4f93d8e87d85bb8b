//! Costs of a thread's accesses by a timing model.

use emu_hart::Before;
use emu_timing::cache::line_of;
use emu_timing::core::THREADS;
use emu_timing::memory::CORES;
use emu_timing::{Core, Memory, Space};

use super::run_ahead::RunAhead;
use crate::bus::costs::Costs;
use crate::dpa::memory::ProcessMemory;

/// A timing model: caches, store buffers and shared paths of the card.
pub(crate) struct Modelled<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) cores: &'a mut [Core; CORES],
    pub(crate) run_ahead: &'a mut RunAhead,
    /// Hardware thread, of the card.
    pub(crate) thread: usize,
    /// Makes the addresses of the thread's process different from those of others.
    pub(crate) tag: u64,
    /// The cycle of the first instruction of the burst.
    pub(crate) at: u64,
    /// Whether a thread has reserved memory, so that all stores must be reported.
    pub(crate) reserved: bool,
    /// Where the thread has stored last, for reservations of others.
    pub(crate) stored: Option<u64>,
}

/// Makes addresses different from those of all processes, for the memory behind the windows.
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

    fn roll_back(&mut self, addr: u64, memory: &mut ProcessMemory) {
        self.run_ahead.roll_back_line(self.tag | addr, Some(self.thread), self.cores, self.memory, memory);
    }

    #[inline(always)]
    fn load_ahead(&mut self, addr: u64) -> bool {
        self.memory.load_ahead(self.thread, self.tag | addr)
    }

    #[inline(always)]
    fn loaded_ahead(&mut self, before: &Before<'_>, addr: u64, value: u64) {
        self.run_ahead.loaded(self.thread, before, self.tag | addr, value);
    }

    #[inline(always)]
    fn store_ahead(&mut self, addr: u64) -> bool {
        !self.reserved && self.memory.store_ahead(self.thread, self.tag | addr, self.at)
    }

    #[inline(always)]
    fn stored_ahead(&mut self, before: &Before<'_>, addr: u64, width: usize, old: u64) {
        self.run_ahead.stored(self.thread, before, self.tag | addr, width, old);
    }

    #[inline(always)]
    fn enter_ahead(&mut self, before: &Before<'_>) -> bool {
        let may = self.memory.fetch_ahead(self.thread / THREADS, self.tag | before.pc);
        if may {
            self.run_ahead.entered(self.thread, before, line_of(self.tag | before.pc));
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
