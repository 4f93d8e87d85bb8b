//! What the accesses of a thread cost it, by the simple model or by a timing model.

use emu_timing::{Memory, Space};

use crate::config::CostModel;
use crate::thread::L1;

/// Costs of one thread's accesses. Each method moves `cycles`, which shows the cycle at which the access begins, to the one at which the
/// thread goes on.
pub(crate) trait Costs {
    /// Whether atomic operations cost what a load and a store do; otherwise [`Costs::atomic`] tells.
    const ATOMICS_ARE_ACCESSES: bool;
    /// Whether accesses are calls. A hart that runs by itself is faster so: its loop keeps more in registers.
    const ACCESSES_ARE_CALLS: bool;

    fn load(&mut self, addr: u64, cycles: &mut u64);
    fn store(&mut self, addr: u64, cycles: &mut u64);
    /// `stores`: whether it changed memory; a load-reserved does not, nor does a store-conditional that fails.
    fn atomic(&mut self, addr: u64, stores: bool, cycles: &mut u64);
    /// With the predecessor set of the instruction.
    fn fence(&mut self, predecessor: u8, cycles: &mut u64);
    /// Through a window, at an address of the host.
    fn load_window(&mut self, host: u64, cycles: &mut u64);
    fn store_window(&mut self, host: u64, cycles: &mut u64);
    fn store_outbox(&mut self, cycles: &mut u64);
}

/// The simple model: a constant per kind of access, besides the gap between instructions.
pub(crate) struct Simple<'a> {
    pub(crate) model: &'a CostModel,
    pub(crate) l1: &'a mut L1,
}

impl Costs for Simple<'_> {
    const ATOMICS_ARE_ACCESSES: bool = true;
    const ACCESSES_ARE_CALLS: bool = true;

    #[inline]
    fn load(&mut self, addr: u64, cycles: &mut u64) {
        *cycles += if self.l1.touch(addr) { self.model.l1_load_cycles } else { self.model.l2_load_cycles };
    }

    #[inline]
    fn store(&mut self, addr: u64, cycles: &mut u64) {
        *cycles += if self.l1.touch(addr) { self.model.store_hit_cycles } else { self.model.store_new_line_cycles };
    }

    /// Of a bus that makes atomic operations itself: one load, and a store to what is then in L1.
    #[inline]
    fn atomic(&mut self, addr: u64, _stores: bool, cycles: &mut u64) {
        self.load(addr, cycles);
    }

    #[inline]
    fn fence(&mut self, _predecessor: u8, cycles: &mut u64) {
        *cycles += self.model.fence_cycles;
    }

    fn load_window(&mut self, _host: u64, cycles: &mut u64) {
        *cycles += self.model.window_load_cycles;
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
    /// Hardware thread, of the card.
    pub(crate) thread: usize,
    /// Makes the addresses of the thread's process different from those of others.
    pub(crate) tag: u64,
    /// Where the thread has stored last, for reservations of others.
    pub(crate) stored: Option<u64>,
}

/// Makes the addresses of a process different from those of others; no device address is as long.
pub(crate) const fn tag(process: u32) -> u64 {
    (process as u64) << 40
}

/// The same for the memory of the host, which no process is.
const HOST: u64 = 1 << 63;

impl Costs for Modelled<'_> {
    const ATOMICS_ARE_ACCESSES: bool = false;
    const ACCESSES_ARE_CALLS: bool = false;

    #[inline(always)]
    fn load(&mut self, addr: u64, cycles: &mut u64) {
        *cycles += self.memory.load(self.thread, Space::Dpa, self.tag | addr, *cycles);
    }

    #[inline]
    fn store(&mut self, addr: u64, cycles: &mut u64) {
        self.stored = Some(addr);
        *cycles += self.memory.store(self.thread, Space::Dpa, self.tag | addr, *cycles);
    }

    fn atomic(&mut self, addr: u64, stores: bool, cycles: &mut u64) {
        self.stored = stores.then_some(addr);
        *cycles += self.memory.atomic(self.thread, self.tag | addr, *cycles);
    }

    fn fence(&mut self, predecessor: u8, cycles: &mut u64) {
        *cycles += self.memory.fence(self.thread, predecessor, *cycles);
    }

    fn load_window(&mut self, host: u64, cycles: &mut u64) {
        *cycles += self.memory.load(self.thread, Space::Host, HOST | host, *cycles);
    }

    fn store_window(&mut self, host: u64, cycles: &mut u64) {
        *cycles += self.memory.store(self.thread, Space::Host, HOST | host, *cycles);
    }

    fn store_outbox(&mut self, cycles: &mut u64) {
        *cycles += self.memory.model().doorbell_cycles;
    }
}
