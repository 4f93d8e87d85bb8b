//! Costs of a thread's accesses, and the simple model of them.

use emu_hart::Before;

use crate::config::{CostModel, DrivenFrom};
use crate::dpa::memory::ProcessMemory;
use crate::dpa::thread::L1;

/// Costs of one thread's accesses. Each method moves `cycles`, which shows the cycle at which the access begins, to the
/// one at which the thread goes on.
pub(crate) trait Costs {
    /// Whether atomic operations cost what a load and a store do; otherwise [`Costs::atomic`] gives their cost.
    const ATOMICS_ARE_ACCESSES: bool;
    /// Whether accesses are calls. A hart that runs by itself is faster so: its loop keeps more in registers.
    const ACCESSES_ARE_CALLS: bool;
    /// Whether accesses may be executed ahead of their issue.
    const MAY_LEAD: bool;

    /// A load; true if [`Costs::roll_back`] has to be called before memory is read. Likewise stores and atomic
    /// operations.
    #[must_use]
    fn load(&mut self, addr: u64, cycles: &mut u64) -> bool;
    #[must_use]
    fn store(&mut self, addr: u64, cycles: &mut u64) -> bool;
    #[must_use]
    fn atomic(&mut self, addr: u64, cycles: &mut u64) -> bool;
    /// Where the process memory that has just been accessed lies on the machine that runs the emulator.
    fn found(&mut self, _addr: u64, _at: *const u8) {}
    /// The atomic operation changed memory; a load-reserved does not, nor does a store-conditional that fails.
    fn stored(&mut self, _addr: u64) {}
    /// Rolls back what other threads have executed ahead at an address.
    fn roll_back(&mut self, _addr: u64, _memory: &mut ProcessMemory) {}
    /// Whether a load may be executed ahead; then [`Costs::loaded_ahead`] is called for it. Likewise a store, with the
    /// value that was there.
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

    #[inline]
    fn found(&mut self, addr: u64, at: *const u8) {
        self.l1.found(addr, at);
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
