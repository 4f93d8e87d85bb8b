//! Weak memory: what one hart has done and others do not see yet.
//!
//! Process memory holds what everybody agrees on. In addition each thread has an [`Order`]:
//!
//! - **stores** that have retired and are not visible to other threads, the card or the host. Each becomes visible
//!   after a seeded delay, so that stores to different addresses pass one another; stores to the same bytes keep their
//!   order. The thread itself sees its own stores (forwarding).
//! - **stale bytes**: what memory held at the thread's last read fence, for bytes that others have changed since. A
//!   load may give either, as if it had been performed early; a byte once seen new stays new (coherence).
//! - **gathered window lines**: stores through a window collect in 64-byte lines, which set out for the host at a
//!   writeback only (or, for some lines, at a seeded moment before, as a cache evicts what it likes). Lines of one
//!   writeback arrive in any order, but before anything that was stored after it. A writeback writes whole lines.
//! - **window copies**: lines read through a window stay as they were read until they are invalidated.
//!
//! Fences act as in the RISC-V memory model (RVWMO, unprivileged specification): `r` and `w` are process memory, `i`
//! and `o` window and outbox (the DPA intrinsics lower MEMORY to r/w, MMIO to i/o, SYSTEM to all four). Store order
//! that a fence asks for is kept by the moments at which stores become visible; a fence that orders stores before later
//! loads makes them visible at once. Nothing but a fence, a releasing atomic or time makes a store visible: neither the
//! end of an activation nor a runtime call is one.
//!
//! Stronger than the architecture: a load never takes its value later than it retires, so a store cannot overtake an
//! earlier load. Weaker: dependencies between loads are not tracked, so a load through a loaded pointer may be stale.

mod window;

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::trace::Trace;
pub(crate) use window::Gathered;

/// Bits of a fence's sets.
pub(crate) mod bits {
    /// Device input: loads through windows.
    pub(crate) const I: u8 = 8;
    /// Device output: stores to windows and the outbox.
    pub(crate) const O: u8 = 4;
    /// Loads from process memory.
    pub(crate) const R: u8 = 2;
    /// Stores to process memory.
    pub(crate) const W: u8 = 1;
}

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;
/// Stores that a thread can have pending; one more makes the oldest visible.
const MAX_PENDING: usize = 64;
/// Delays that are not long stay below this.
const SHORT_CYCLES: u64 = 200;
/// Card and thread.
pub(crate) type ThreadKey = (usize, u32);

/// A store that others do not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) addr: u64,
    pub(crate) width: u8,
    pub(crate) value: u64,
    /// Cycle at which it becomes visible at the latest.
    pub(crate) due_cycles: u64,
    /// Place in program order.
    pub(crate) sequence: u64,
    pub(crate) pc: u64,
}

impl Pending {
    fn touches(&self, addr: u64, width: u64) -> bool {
        self.addr < addr + width && addr < self.addr + u64::from(self.width)
    }

    /// Puts the stored bytes over `out`, the bytes at `addr`.
    fn overlay(&self, addr: u64, out: &mut [u8]) {
        for (offset, byte) in (0..u64::from(self.width)).zip(self.value.to_le_bytes()) {
            let at = (self.addr + offset).wrapping_sub(addr);
            if let Some(slot) = usize::try_from(at).ok().and_then(|at| out.get_mut(at)) {
                *slot = byte;
            }
        }
    }
}

#[derive(Clone, Debug)]
struct StaleLine {
    bytes: [u8; LINE as usize],
    /// Bytes that differ in time from memory.
    valid: u64,
}

/// Places in program order up to which things must be visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpTo {
    /// Stores to memory.
    pub(crate) stores: u64,
    /// Lines written back.
    pub(crate) lines: u64,
}

impl UpTo {
    pub(crate) const fn stores(stores: u64) -> Self {
        UpTo { stores, lines: 0 }
    }
}

/// What one thread has done and others do not see yet.
#[derive(Debug)]
pub(crate) struct Order {
    rng: ChaCha8Rng,
    longest_delay_cycles: u64,
    /// In program order.
    stores: Vec<Pending>,
    sequence: u64,
    /// Later stores to memory become visible no earlier.
    floor_cycles: u64,
    /// Ordered before later stores to memory.
    before_memory: UpTo,
    /// Ordered before later stores to windows and the outbox.
    before_device: UpTo,
    stale: BTreeMap<u64, StaleLine>,
    window_copies: BTreeMap<u64, [u8; LINE as usize]>,
    gathered: Vec<Gathered>,
    /// Between activations a thread loads nothing.
    active: bool,
}

impl Order {
    pub(crate) fn new(seed: u64, key: ThreadKey, longest_delay_cycles: u64) -> Self {
        let mut bytes = [0; 32];
        for (slot, word) in bytes.chunks_exact_mut(8).zip([seed, key.0 as u64, u64::from(key.1), 0]) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        Order {
            rng: ChaCha8Rng::from_seed(bytes),
            longest_delay_cycles,
            stores: Vec::new(),
            sequence: 0,
            floor_cycles: 0,
            before_memory: UpTo::default(),
            before_device: UpTo::default(),
            stale: BTreeMap::new(),
            window_copies: BTreeMap::new(),
            gathered: Vec::new(),
            active: true,
        }
    }

    /// Half of the stores leave at once, a quarter soon, the rest when the other side has long acted.
    fn delay_cycles(&mut self) -> u64 {
        let longest = match self.rng.next_u32() % 16 {
            0..8 => return 0,
            8..12 => SHORT_CYCLES,
            12..15 => self.longest_delay_cycles / 10,
            _ => self.longest_delay_cycles,
        };
        self.rng.next_u64() % (longest + 1)
    }

    /// A store to memory retires. Gives the place in program order up to which stores must become visible now for lack
    /// of room.
    pub(crate) fn store(&mut self, addr: u64, width: u8, value: u64, now_cycles: u64, pc: u64) -> Option<u64> {
        // Nothing older than one's own store can be read again.
        self.fresh(addr, u64::from(width));
        let same = self.stores.iter().filter(|s| s.touches(addr, u64::from(width))).map(|s| s.due_cycles).max();
        let due_cycles = (now_cycles + self.delay_cycles()).max(self.floor_cycles).max(same.unwrap_or(0));
        self.sequence += 1;
        self.stores.push(Pending { addr, width, value, due_cycles, sequence: self.sequence, pc });
        (self.stores.len() > MAX_PENDING).then(|| self.stores[0].sequence)
    }

    /// A fence retires. Gives what must become visible now, because later loads wait for it.
    pub(crate) fn fence(&mut self, predecessor: u8, successor: u8, now_cycles: u64) -> UpTo {
        let stores = predecessor & bits::W != 0;
        let windows = predecessor & bits::O != 0 && successor != 0;
        if windows {
            self.write_back(now_cycles);
        }
        if successor & bits::W != 0 {
            let memory = self.stores.iter().filter(|_| stores).map(|store| store.due_cycles);
            let lines = self.gathered.iter().filter(|line| windows && line.sequence.is_some());
            let last = memory.chain(lines.filter_map(|line| line.arrives_cycles)).max();
            self.floor_cycles = self.floor_cycles.max(last.unwrap_or(0));
        }
        for (bit, before) in [(bits::W, &mut self.before_memory), (bits::O, &mut self.before_device)] {
            if successor & bit != 0 && stores {
                before.stores = self.sequence;
            }
            if successor & bit != 0 && windows {
                before.lines = self.sequence;
            }
        }
        if successor & bits::R != 0 && predecessor != 0 {
            self.stale.clear();
        }
        if successor & bits::I != 0 && predecessor != 0 {
            self.window_copies.clear();
        }
        let loads_wait = successor & (bits::R | bits::I) != 0;
        UpTo {
            stores: if loads_wait && stores { u64::MAX } else { 0 },
            lines: if loads_wait && windows { u64::MAX } else { 0 },
        }
    }

    /// An atomic access: up to where stores must be visible before it.
    pub(crate) fn atomic(&mut self, addr: u64, width: u64, acquire: bool, release: bool) -> UpTo {
        let same = self.stores.iter().rev().find(|s| s.touches(addr, width)).map_or(0, |s| s.sequence);
        self.fresh(addr, width);
        if acquire {
            self.stale.clear();
        }
        let UpTo { stores, lines } = self.before_memory;
        UpTo { stores: if release { self.sequence } else { stores.max(same) }, lines }
    }

    /// Up to where stores must be visible before a store to the outbox.
    pub(crate) fn before_device(&self) -> UpTo {
        self.before_device
    }

    /// What a load of the bytes at `addr` gives, where memory holds `bytes`: perhaps older ones, and the thread's own
    /// stores.
    pub(crate) fn load(&mut self, addr: u64, bytes: &mut [u8]) {
        if let Some(line) = self.stale.get_mut(&(addr / LINE)) {
            let first = (addr % LINE) as usize;
            let wanted = mask(first, bytes.len());
            if line.valid & wanted != 0 {
                if self.rng.next_u32() & 1 == 0 {
                    for (at, byte) in (first..).zip(bytes.iter_mut()) {
                        if line.valid >> at & 1 == 1 {
                            *byte = line.bytes[at];
                        }
                    }
                } else {
                    line.valid &= !wanted;
                }
            }
        }
        self.forward(addr, bytes);
    }

    /// Puts the thread's own stores over the bytes at `addr`.
    pub(crate) fn forward(&self, addr: u64, bytes: &mut [u8]) {
        for store in &self.stores {
            if store.touches(addr, bytes.len() as u64) {
                store.overlay(addr, bytes);
            }
        }
    }

    /// From now on the bytes are read as memory holds them.
    fn fresh(&mut self, addr: u64, width: u64) {
        if let Some(line) = self.stale.get_mut(&(addr / LINE)) {
            line.valid &= !mask((addr % LINE) as usize, width as usize);
        }
    }

    /// Another agent is about to change bytes that now hold `old`.
    pub(crate) fn remember(&mut self, addr: u64, old: &[u8]) {
        if !self.active {
            return;
        }
        for (addr, &byte) in (addr..).zip(old) {
            let line = self.stale.entry(addr / LINE).or_insert(StaleLine { bytes: [0; LINE as usize], valid: 0 });
            let at = (addr % LINE) as usize;
            if line.valid >> at & 1 == 0 {
                line.valid |= 1 << at;
                line.bytes[at] = byte;
            }
        }
    }

    /// An activation begins: the runtime has started it after everything that led to it.
    pub(crate) fn begin(&mut self) {
        self.stale.clear();
        self.active = true;
    }

    /// An activation has ended. What it stored stays as visible as it was.
    pub(crate) fn end(&mut self) {
        self.stale.clear();
        self.active = false;
    }

    /// Takes the stores into a range.
    pub(crate) fn take_within(&mut self, addr: u64, len: u64) -> Vec<Pending> {
        self.stores.extract_if(.., |store| store.touches(addr, len)).collect()
    }

    /// Takes the stores that are due, in the order in which they become visible.
    pub(crate) fn take_due(&mut self, now_cycles: u64) -> Vec<Pending> {
        let mut due: Vec<Pending> = self.stores.extract_if(.., |store| store.due_cycles <= now_cycles).collect();
        due.sort_by_key(|store| (store.due_cycles, store.sequence));
        due
    }

    /// Takes the stores up to a place in program order.
    pub(crate) fn take_up_to(&mut self, sequence: u64) -> Vec<Pending> {
        self.stores.extract_if(.., |store| store.sequence <= sequence).collect()
    }

    /// When something becomes visible by itself.
    pub(crate) fn next_cycles(&self) -> Option<u64> {
        let stores = self.stores.iter().map(|store| store.due_cycles);
        stores.chain(self.gathered.iter().filter_map(|line| line.arrives_cycles)).min()
    }
}

/// Bits `first..first + len`, as far as they lie in a line.
pub(crate) fn mask(first: usize, len: usize) -> u64 {
    let len = len.min(LINE as usize - first);
    if len == LINE as usize { u64::MAX } else { ((1 << len) - 1) << first }
}

/// The order of every thread.
#[derive(Debug)]
pub(crate) struct Weak {
    seed: u64,
    longest_delay_cycles: u64,
    pub(crate) threads: BTreeMap<ThreadKey, (u32, Order)>,
    /// What became visible when, for the machine's trace.
    pub(crate) trace: Trace,
    /// No pending thing is due before.
    pub(crate) quiet_until_cycles: u64,
}

impl Weak {
    pub(crate) fn new(seed: u64, longest_delay_cycles: u64) -> Self {
        let threads = BTreeMap::new();
        Weak { seed, longest_delay_cycles, threads, trace: Trace::default(), quiet_until_cycles: u64::MAX }
    }

    /// The order of a thread of a process.
    pub(crate) fn order(&mut self, key: ThreadKey, process: u32) -> &mut Order {
        let (seed, longest) = (self.seed, self.longest_delay_cycles);
        &mut self.threads.entry(key).or_insert_with(|| (process, Order::new(seed, key, longest))).1
    }

    /// When the next thing becomes visible by itself.
    pub(crate) fn next_cycles(&self) -> Option<u64> {
        self.threads.values().filter_map(|(_, order)| order.next_cycles()).min()
    }

    /// Bytes of a process are about to change; its other threads may go on reading the old ones.
    pub(crate) fn remember(&mut self, card: usize, process: u32, writer: Option<u32>, addr: u64, old: &[u8]) {
        for (&(_, thread), (owner, order)) in self.threads.range_mut((card, 0)..=(card, u32::MAX)) {
            if *owner == process && Some(thread) != writer {
                order.remember(addr, old);
            }
        }
    }

    /// A process has gone.
    pub(crate) fn forget(&mut self, card: usize, process: u32) {
        self.threads.retain(|&(on, _), (owner, _)| on != card || *owner != process);
    }
}

#[cfg(test)]
mod tests;
