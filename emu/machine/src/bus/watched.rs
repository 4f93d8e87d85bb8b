//! The bus of a thread whose memory is weak or checked for races.

use emu_hart::{Atomic, Fault, Hart, Limits, Stop, Text};

use crate::bus::ThreadBus;
use crate::bus::costs::Costs;
use crate::dpa::layout::{THREAD_BLOCK, THREADS};
use crate::observe::sample::Sample;
use crate::observe::watch::{Place, Watch, fetch_line};
use crate::time::cycles_to_ps;
use crate::weak::{Pending, UpTo};

impl<C: Costs, const WATCHED: bool> ThreadBus<'_, C, WATCHED> {
    /// The thread's stack and context. They are exempt: no key or queue can be made over them, and the thread sees its
    /// own stores whatever their order.
    fn is_own_block(&self, addr: u64) -> bool {
        addr.wrapping_sub(THREADS + u64::from(self.port.eu) * THREAD_BLOCK) < THREAD_BLOCK
    }

    fn watched(&mut self) -> Option<(&mut Watch, Place<'_>)> {
        let watch = self.watch.as_deref_mut()?;
        let (memory, host, nic) = (&mut *self.memory, self.host, self.nic);
        Some((watch, Place { card: self.card, process: self.process, thread: self.thread, memory, host, nic }))
    }

    pub(crate) fn load_watched(&mut self, addr: u64, width: usize, cycles: &mut u64) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        match self.memory.bytes(addr, width) {
            Some(held) => bytes[..width].copy_from_slice(held),
            None => return self.load_elsewhere(addr, width, cycles),
        }
        let by = (self.pc, cycles_to_ps(*cycles));
        let _ = self.costs.load(addr, cycles);
        if !self.is_own_block(addr)
            && let Some((watch, place)) = self.watched()
        {
            if let Some(weak) = &mut watch.weak {
                weak.order(place.key(), place.process).load(addr, &mut bytes[..width]);
            }
            if let Some(races) = &mut watch.races {
                races.accessed(place.whose(), false, (addr, width as u64), by);
            }
        }
        let value = u64::from_le_bytes(bytes);
        self.sample(|sample, whose| sample.load(whose, addr, value), addr);
        Ok(value)
    }

    /// Notes an access for an observer of threads that do not end, if there is one.
    fn sample(&mut self, note: impl FnOnce(&mut Sample, (usize, u32, u32)), addr: u64) {
        let own = self.is_own_block(addr);
        let whose = (self.card, self.process, self.thread);
        if let Some(sample) = self.watch.as_deref_mut().and_then(|watch| watch.sample.as_mut()).filter(|_| !own) {
            note(sample, whose);
        }
    }

    pub(crate) fn store_watched(&mut self, addr: u64, width: usize, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        let own = self.is_own_block(addr);
        let Some(bytes) = self.memory.bytes_mut(addr, width) else {
            return self.store_elsewhere(addr, width, value, cycles);
        };
        let now_cycles = *cycles;
        if own {
            bytes.copy_from_slice(&value.to_le_bytes()[..width]);
        } else {
            let pc = self.pc;
            if let Some((watch, mut place)) = self.watched() {
                let at_ps = cycles_to_ps(now_cycles);
                if let Some(races) = &mut watch.races {
                    races.accessed(place.whose(), true, (addr, width as u64), (pc, at_ps));
                }
                match &mut watch.weak {
                    Some(weak) => {
                        let order = weak.order(place.key(), place.process);
                        let full = order.store(addr, width as u8, value, now_cycles, pc);
                        // Most stores leave at once.
                        let due = order.take_due(now_cycles);
                        weak.quiet_until_cycles = weak.quiet_until_cycles.min(now_cycles);
                        for store in due {
                            watch.publish(&mut place, &store, at_ps);
                        }
                        if let Some(oldest) = full {
                            watch.publish_up_to(&mut place, UpTo::stores(oldest), at_ps);
                        }
                    }
                    None => {
                        let (width, due_cycles) = (width as u8, now_cycles);
                        let store = Pending { addr, width, value, due_cycles, sequence: 0, pc };
                        watch.publish(&mut place, &store, at_ps);
                    }
                }
            }
        }
        let _ = self.costs.store(addr, cycles);
        Ok(())
    }

    pub(crate) fn fence_watched(&mut self, predecessor: u8, successor: u8, now_cycles: u64) {
        let Some((watch, mut place)) = self.watched() else { return };
        if let Some(races) = &mut watch.races {
            races.fenced(place.whose(), predecessor, successor);
        }
        let Some(weak) = &mut watch.weak else { return };
        let order = weak.order(place.key(), place.process);
        let before_loads = order.fence(predecessor, successor, now_cycles);
        weak.quiet_until_cycles = weak.quiet_until_cycles.min(now_cycles);
        if before_loads != UpTo::default() {
            watch.publish_up_to(&mut place, before_loads, cycles_to_ps(now_cycles));
        }
    }

    /// Atomics act on memory itself, after the stores that the `rl` bit, an earlier fence or the address orders before
    /// them.
    pub(crate) fn atomic_watched(
        &mut self,
        access: Atomic,
        cycles: &mut u64,
        update: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, Fault> {
        let Atomic { addr, width, acquire, release } = access;
        let len = width.bytes() as usize;
        if self.memory.bytes_mut(addr, len).is_none() {
            // Not memory that can be written: whatever a load and a store say of it.
            let old = self.load_watched(addr, len, cycles)?;
            if let Some(new) = update(old) {
                self.store_watched(addr, len, new, cycles)?;
            }
            return Ok(old);
        }
        let at_ps = cycles_to_ps(*cycles);
        if let Some((watch, mut place)) = self.watched()
            && let Some(weak) = &mut watch.weak
        {
            let before = weak.order(place.key(), place.process).atomic(addr, width.bytes(), acquire, release);
            watch.publish_up_to(&mut place, before, at_ps);
        }
        let mut bytes = [0; 8];
        if let Some(held) = self.memory.bytes(addr, len) {
            bytes[..len].copy_from_slice(held);
        }
        let _ = self.costs.atomic(addr, cycles);
        let old = u64::from_le_bytes(bytes);
        self.sample(|sample, whose| sample.atomic(whose, addr, old), addr);
        let new = update(old);
        let (own, pc) = (self.is_own_block(addr), self.pc);
        if !own
            && let Some((watch, place)) = self.watched()
            && let Some(races) = &mut watch.races
        {
            let how = (acquire, release, new.is_some());
            races.accessed_atomically(place.whose(), how, (addr, len as u64), (pc, at_ps));
        }
        if let Some(value) = new {
            let (due_cycles, pc) = (*cycles, self.pc);
            if let Some((watch, mut place)) = self.watched() {
                let store = Pending { addr, width: len as u8, value, due_cycles, sequence: 0, pc };
                watch.publish(&mut place, &store, at_ps);
            }
            let _ = self.costs.store(addr, cycles);
        }
        Ok(old)
    }

    /// A store through a window, if it is to be gathered.
    #[cold]
    pub(crate) fn gather(&mut self, host: u64, data: &[u8], now_cycles: u64) -> bool {
        let (memory, pc) = (self.host, self.pc);
        let mut registered = [0; 8];
        if memory.read(host, &mut registered[..data.len()]).is_err() {
            // The caller finds the same and says so.
            return false;
        }
        let Some((watch, place)) = self.watched() else { return false };
        if let Some(races) = &mut watch.races {
            races.gave(place.whose());
        }
        let Some(weak) = &mut watch.weak else { return false };
        let order = weak.order(place.key(), place.process);
        order.store_window(host, data, now_cycles, pc, |line| fetch_line(memory, line));
        weak.quiet_until_cycles = weak.quiet_until_cycles.min(now_cycles);
        true
    }

    /// A store through a window that goes to the host at once.
    #[cold]
    pub(crate) fn before_window_store(&mut self, host: u64, len: u64, now_cycles: u64) {
        let pc = self.pc;
        if let Some((watch, place)) = self.watched() {
            watch.will_write_host(&place, (host, len), pc, cycles_to_ps(now_cycles));
        }
    }

    /// A load through a window, if its line can be copied.
    #[cold]
    pub(crate) fn load_gathered(&mut self, host: u64, out: &mut [u8]) -> bool {
        let memory = self.host;
        let Some((watch, place)) = self.watched() else { return false };
        let Some(weak) = &mut watch.weak else { return false };
        let order = weak.order(place.key(), place.process);
        if order.load_window(host, out, |line| fetch_line(memory, line)) {
            return true;
        }
        if memory.read(host, out).is_err() {
            return false;
        }
        order.forward_window(host, out);
        true
    }

    /// A store to the outbox is seen at once; what was fenced before it is seen first.
    #[cold]
    pub(crate) fn before_outbox(&mut self, now_cycles: u64) {
        if let Some((watch, place)) = self.watched()
            && let Some(races) = &mut watch.races
        {
            races.gave(place.whose());
        }
        if let Some((watch, mut place)) = self.watched()
            && let Some(weak) = &mut watch.weak
        {
            let before = weak.order(place.key(), place.process).before_device();
            watch.publish_up_to(&mut place, before, cycles_to_ps(now_cycles));
        }
    }
}

/// Runs instruction by instruction, so that every access has its program counter.
/// Outside the plain run, whose code layout it would otherwise disturb.
#[cold]
#[inline(never)]
pub(crate) fn run_watched<C: Costs>(
    hart: &mut Hart,
    text: &mut Text,
    bus: &mut ThreadBus<'_, C, true>,
    limits: &Limits,
) -> Stop {
    loop {
        bus.pc = hart.pc;
        match hart.run(text, bus, &Limits { instructions: 1, ..*limits }) {
            Stop::Instructions if hart.cycles < limits.cycles => {}
            Stop::Instructions => return Stop::Cycles,
            stop => return stop,
        }
    }
}
