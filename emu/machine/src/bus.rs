//! Address space of a DPA hart: process memory with its costs, windows, outbox and window words.

pub(crate) mod costs;
pub(crate) mod watched;

use std::collections::BTreeMap;

use emu_hart::{Atomic, Before, Bus, Cause, Fault, Width};
use emu_nic::{Access, Nic, Space};

use crate::dpa::layout::{
    EXECUTION_UNITS, OUTBOXES, PAGE, STACK_BYTES, STACK_OFFSET, THREAD_BACKED, THREAD_BLOCK, THREADS, WINDOW_0,
    WINDOW_1, WINDOW_CONFIG, outbox,
};
use crate::dpa::memory::{ProcessMemory, number, set_number, set_word, word};
use crate::dpa::thread::Port;
use crate::host_memory::HostMemory;
use crate::observe::watch::Watch;
use crate::time::cycles_to_ps;
use costs::Costs;

/// A store to the outbox page, to be carried out by the world when the hart has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutboxStore {
    pub(crate) offset: u64,
    pub(crate) value: u64,
}

/// One slice's view of the machine from one thread. `WATCHED`: memory is weak or checked for races (module
/// `bus_watched`); decided at compile time, so that the plain machine pays nothing for it.
pub(crate) struct ThreadBus<'a, C, const WATCHED: bool> {
    pub(crate) memory: &'a mut ProcessMemory,
    pub(crate) host: &'a HostMemory,
    pub(crate) nic: &'a Nic,
    /// Window id to protection domain.
    pub(crate) windows: &'a BTreeMap<u32, u32>,
    pub(crate) port: &'a mut Port,
    pub(crate) costs: C,
    pub(crate) outbox_store: Option<OutboxStore>,
    /// In words, why the last access faulted.
    pub(crate) detail: Option<String>,
    /// There if and only if `WATCHED`.
    pub(crate) watch: Option<&'a mut Watch>,
    pub(crate) card: usize,
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// The instruction being executed; kept only if `WATCHED`.
    pub(crate) pc: u64,
}

impl<C: Costs, const WATCHED: bool> ThreadBus<'_, C, WATCHED> {
    pub(crate) fn fault<T>(&mut self, cause: Cause, addr: u64, detail: impl Into<String>) -> Result<T, Fault> {
        self.detail = Some(detail.into());
        Err(Fault { cause, tval: addr })
    }

    /// Checks a window access and gives the host address.
    pub(crate) fn window(&mut self, addr: u64, len: u64, write: bool, cause: Cause) -> Result<u64, Fault> {
        let (entity, host) = if addr >= WINDOW_1 { (1, addr - WINDOW_1) } else { (0, addr - WINDOW_0) };
        let Some((window, key)) = self.port.windows[entity] else {
            return self.fault(
                cause,
                addr,
                format!("window entity {entity} has no memory key: call window_config first"),
            );
        };
        let Some(&pd) = self.windows.get(&window) else {
            return self.fault(cause, addr, format!("window {window} has been destroyed"));
        };
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        match self.nic.check_access(key, pd, host, len, access) {
            Ok(Space::Host) => Ok(host),
            Ok(Space::HostProcess(_) | Space::Arm | Space::Dpa(_)) => {
                self.fault(cause, addr, format!("memory key {key:#x} of window {window} is not host memory"))
            }
            Err(error) => self.fault(cause, addr, format!("window {window}: {error}")),
        }
    }

    #[inline(always)]
    fn load_here<const W: usize>(&mut self, addr: u64, cycles: &mut u64) -> Result<u64, Fault> {
        let Some(bytes) = self.memory.word::<W>(addr) else { return self.load_elsewhere(addr, W, cycles) };
        if self.costs.load(addr, cycles) {
            return Ok(self.load_settled(addr, W));
        }
        self.costs.found(addr, bytes.as_ptr());
        Ok(number(bytes))
    }

    #[inline(never)]
    fn load_called<const W: usize>(&mut self, addr: u64, cycles: &mut u64) -> Result<u64, Fault> {
        self.load_here::<W>(addr, cycles)
    }

    #[inline(always)]
    fn load_word<const W: usize>(&mut self, addr: u64, cycles: &mut u64) -> Result<u64, Fault> {
        if C::ACCESSES_ARE_CALLS { self.load_called::<W>(addr, cycles) } else { self.load_here::<W>(addr, cycles) }
    }

    #[inline(always)]
    fn store_here<const W: usize>(&mut self, addr: u64, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        let Some(bytes) = self.memory.word_mut::<W>(addr) else {
            return self.store_elsewhere(addr, W, value, cycles);
        };
        if self.costs.store(addr, cycles) {
            self.costs.roll_back(addr, self.memory);
            return self.store_settled(addr, W, value);
        }
        self.costs.found(addr, bytes.as_ptr());
        set_number(bytes, value);
        Ok(())
    }

    /// After what others had executed ahead there has been taken back.
    #[cold]
    fn load_settled(&mut self, addr: u64, width: usize) -> u64 {
        self.costs.roll_back(addr, self.memory);
        self.memory.bytes(addr, width).map_or(0, |bytes| word(bytes, width))
    }

    #[cold]
    fn store_settled(&mut self, addr: u64, width: usize, value: u64) -> Result<(), Fault> {
        if let Some(bytes) = self.memory.bytes_mut(addr, width) {
            set_word(bytes, width, value);
        }
        Ok(())
    }

    #[inline(never)]
    fn store_called<const W: usize>(&mut self, addr: u64, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        self.store_here::<W>(addr, value, cycles)
    }

    #[inline(always)]
    fn store_word<const W: usize>(&mut self, addr: u64, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        if C::ACCESSES_ARE_CALLS {
            self.store_called::<W>(addr, value, cycles)
        } else {
            self.store_here::<W>(addr, value, cycles)
        }
    }

    #[cold]
    pub(crate) fn load_elsewhere(&mut self, addr: u64, width: usize, cycles: &mut u64) -> Result<u64, Fault> {
        if addr >= WINDOW_0 {
            let host = self.window(addr, width as u64, false, Cause::LoadAccess)?;
            self.costs.load_window(host, cycles);
            let mut bytes = [0; 8];
            if WATCHED && self.load_gathered(host, &mut bytes[..width]) {
                return Ok(u64::from_le_bytes(bytes));
            }
            if self.host.read(host, &mut bytes[..width]).is_err() {
                return self.fault(Cause::LoadAccess, addr, "the memory behind the key is no longer registered");
            }
            return Ok(u64::from_le_bytes(bytes));
        }
        let words = WINDOW_CONFIG + u64::from(self.port.eu) * PAGE;
        for entity in 0..2 {
            if addr == words + 8 * entity as u64 && width == 4 {
                return Ok(self.port.windows[entity].map_or(0, |(_, key)| u64::from(key)));
            }
        }
        if let Some(offset) = self.outbox_offset(addr) {
            if offset == outbox::UCTL {
                return Ok(0);
            }
            return self.fault(Cause::LoadAccess, addr, format!("outbox offset {offset:#x} cannot be read here"));
        }
        let detail = self.nowhere(addr);
        self.fault(Cause::LoadAccess, addr, detail)
    }

    #[cold]
    pub(crate) fn store_elsewhere(
        &mut self,
        addr: u64,
        width: usize,
        value: u64,
        cycles: &mut u64,
    ) -> Result<(), Fault> {
        if addr >= WINDOW_0 {
            let host = self.window(addr, width as u64, true, Cause::StoreAccess)?;
            self.costs.store_window(host, cycles);
            if WATCHED && self.gather(host, &value.to_le_bytes()[..width], *cycles) {
                return Ok(());
            }
            if WATCHED {
                self.before_window_store(host, width as u64, *cycles);
            }
            if self.host.write_by(self.card, host, &value.to_le_bytes()[..width]).is_err() {
                return self.fault(Cause::StoreAccess, addr, "the memory behind the key is no longer registered");
            }
            return Ok(());
        }
        if let Some(offset) = self.outbox_offset(addr) {
            if width != 8 {
                return self.fault(Cause::StoreAccess, addr, format!("the outbox takes 8-byte stores, not {width}"));
            }
            self.costs.store_outbox(cycles);
            if WATCHED {
                self.before_outbox(*cycles);
            }
            self.outbox_store = Some(OutboxStore { offset, value });
            return Ok(());
        }
        let words = WINDOW_CONFIG + u64::from(self.port.eu) * PAGE;
        for entity in 0..2 {
            if addr == words + 8 * entity as u64 && width == 4 {
                let window = self.port.windows[entity].map_or(u32::MAX, |(window, _)| window);
                self.port.windows[entity] = Some((window, value as u32));
                return Ok(());
            }
        }
        if self.memory.bytes(addr, width).is_some() {
            return self.fault(Cause::StoreAccess, addr, "this memory is read-only");
        }
        let detail = self.nowhere(addr);
        self.fault(Cause::StoreAccess, addr, detail)
    }

    /// Why there is nothing at an address.
    fn nowhere(&self, addr: u64) -> String {
        let stack = THREADS + u64::from(self.port.eu) * THREAD_BLOCK + STACK_OFFSET;
        let room = stack - (THREAD_BLOCK - THREAD_BACKED) - STACK_OFFSET..stack;
        if room.contains(&addr) {
            return format!(
                "stack overflow: {} bytes below the {STACK_BYTES} that a thread's stack has; recurse less, or move \
                 large variables to the heap (`cargo xtask verify` shows what functions need)",
                stack - addr
            );
        }
        let page = |outbox: u64| OUTBOXES + outbox * PAGE;
        match (self.port.outbox, addr) {
            (None, 0..PAGE) if outbox::is_register(addr) => format!(
                "no memory at this address: it would be outbox register {} if the thread had an outbox; call \
                 flexio_dev_outbox_config before the first doorbell",
                outbox::name(addr)
            ),
            (selected, _) if (page(0)..WINDOW_CONFIG).contains(&addr) => {
                let outbox = (addr - OUTBOXES) / PAGE;
                let selected = selected.map_or_else(|| "none".to_owned(), |selected| format!("outbox {selected}"));
                format!(
                    "the address is that of outbox {outbox}, and the thread has selected {selected}; select it by \
                     flexio_dev_outbox_config"
                )
            }
            _ => "no memory at this address".to_owned(),
        }
    }

    /// Whether an access that is not aligned is carried out: in memory and windows, not at the card's registers. The
    /// first one of a process is reported.
    fn takes_misaligned(&mut self, addr: u64, width: Width) -> bool {
        let len = width.bytes() as usize;
        let takes = addr >= WINDOW_0 || self.memory.bytes(addr, len).is_some();
        if takes && self.memory.first_misaligned() {
            tracing::warn!(
                process = self.process,
                thread = self.thread,
                "a misaligned access of {len} bytes at {addr:#x}: cards carry such out, at a cost that is not \
                 published; \
                 further ones are not reported"
            );
        }
        takes
    }

    /// Why an access that is not aligned is not carried out: `misaligned` at the card's registers, else `access`, at
    /// the first byte without memory.
    fn refuse_misaligned<T>(&mut self, addr: u64, width: Width, misaligned: Cause, access: Cause) -> Result<T, Fault> {
        let len = width.bytes();
        let registers = OUTBOXES..WINDOW_CONFIG + EXECUTION_UNITS as u64 * PAGE;
        let missing = (0..len).map(|at| addr.wrapping_add(at)).find(|byte| self.memory.bytes(*byte, 1).is_none());
        match missing.filter(|byte| !registers.contains(byte)) {
            Some(byte) => {
                let detail = format!("{} (a misaligned access of {len} bytes at {addr:#x})", self.nowhere(byte));
                self.fault(access, byte, detail)
            }
            None => Err(Fault::new(misaligned, addr)),
        }
    }

    /// Offset in the selected outbox page; other pages are not the thread's.
    fn outbox_offset(&self, addr: u64) -> Option<u64> {
        let base = OUTBOXES + u64::from(self.port.outbox?) * PAGE;
        (base..base + PAGE).contains(&addr).then(|| addr - base)
    }
}

impl<C: Costs, const WATCHED: bool> Bus for ThreadBus<'_, C, WATCHED> {
    #[inline(always)]
    fn load(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault> {
        if WATCHED {
            return self.load_watched(addr, width.bytes() as usize, cycles);
        }
        // The width is a constant where this is called.
        match width {
            Width::B1 => self.load_word::<1>(addr, cycles),
            Width::B2 => self.load_word::<2>(addr, cycles),
            Width::B4 => self.load_word::<4>(addr, cycles),
            Width::B8 => self.load_word::<8>(addr, cycles),
        }
    }

    #[inline(always)]
    fn store(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        if WATCHED {
            return self.store_watched(addr, width.bytes() as usize, value, cycles);
        }
        match width {
            Width::B1 => self.store_word::<1>(addr, value, cycles),
            Width::B2 => self.store_word::<2>(addr, value, cycles),
            Width::B4 => self.store_word::<4>(addr, value, cycles),
            Width::B8 => self.store_word::<8>(addr, value, cycles),
        }
    }

    /// Public programs read and write so on cards; what it costs there is not published. Here it takes what an access
    /// to each of the aligned words does in which bytes lie.
    #[cold]
    fn load_misaligned(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault> {
        if !self.takes_misaligned(addr, width) {
            return self.refuse_misaligned(addr, width, Cause::LoadMisaligned, Cause::LoadAccess);
        }
        let mut value = 0;
        for at in 0..width.bytes() {
            let byte = addr.wrapping_add(at);
            let mut free = *cycles;
            let counts = at == 0 || byte & (width.bytes() - 1) == 0;
            let cycles = if counts { &mut *cycles } else { &mut free };
            value |= self.load(byte, Width::B1, cycles)? << (8 * at);
        }
        Ok(value)
    }

    /// As [`load_misaligned`](Self::load_misaligned).
    #[cold]
    fn store_misaligned(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        if !self.takes_misaligned(addr, width) {
            return self.refuse_misaligned(addr, width, Cause::StoreMisaligned, Cause::StoreAccess);
        }
        for at in 0..width.bytes() {
            let byte = addr.wrapping_add(at);
            let mut free = *cycles;
            let counts = at == 0 || byte & (width.bytes() - 1) == 0;
            let cycles = if counts { &mut *cycles } else { &mut free };
            self.store(byte, Width::B1, value >> (8 * at), cycles)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn load_ahead(&mut self, addr: u64, width: Width, before: &Before<'_>) -> Option<u64> {
        let width = width.bytes() as usize;
        if WATCHED || !C::MAY_LEAD {
            return None;
        }
        let bytes = self.memory.bytes(addr, width)?;
        if !self.costs.load_ahead(addr) {
            return None;
        }
        let value = word(bytes, width);
        self.costs.loaded_ahead(before, addr, value);
        Some(value)
    }

    #[inline(always)]
    fn store_ahead(&mut self, addr: u64, width: Width, value: u64, before: &Before<'_>) -> bool {
        let width = width.bytes() as usize;
        if WATCHED || !C::MAY_LEAD {
            return false;
        }
        let Some(bytes) = self.memory.bytes_mut(addr, width) else { return false };
        if !self.costs.store_ahead(addr) {
            return false;
        }
        self.costs.stored_ahead(before, addr, width, word(bytes, width));
        set_word(bytes, width, value);
        true
    }

    #[inline(always)]
    fn enter_ahead(&mut self, before: &Before<'_>) -> bool {
        !WATCHED && C::MAY_LEAD && self.costs.enter_ahead(before)
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        match self.memory.fetch16(addr) {
            Some(half) => Ok(half),
            None => self.fault(Cause::InstructionAccess, addr, "no executable memory at this address"),
        }
    }

    #[inline]
    fn fence(&mut self, predecessor: u8, successor: u8, cycles: &mut u64) {
        self.costs.fence(predecessor, cycles);
        if WATCHED {
            self.fence_watched(predecessor, successor, *cycles);
        }
    }

    #[inline]
    fn atomic(
        &mut self,
        access: Atomic,
        cycles: &mut u64,
        update: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, Fault> {
        if WATCHED {
            return self.atomic_watched(access, cycles, update);
        }
        let width = access.width.bytes() as usize;
        if !C::ATOMICS_ARE_ACCESSES && self.memory.bytes_mut(access.addr, width).is_some() {
            if self.costs.atomic(access.addr, cycles) {
                self.costs.roll_back(access.addr, self.memory);
            }
            if let Some(bytes) = self.memory.bytes_mut(access.addr, width) {
                let old = word(bytes, width);
                if let Some(new) = update(old) {
                    set_word(bytes, width, new);
                    self.costs.stored(access.addr);
                }
                return Ok(old);
            }
        }
        let old = self.load(access.addr, access.width, cycles)?;
        if let Some(new) = update(old) {
            self.store(access.addr, access.width, new, cycles)?;
        }
        Ok(old)
    }

    /// Nanoseconds of virtual time.
    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        cycles_to_ps(cycles_now) / 1000
    }

    #[inline]
    fn should_stop(&self) -> bool {
        self.outbox_store.is_some()
    }
}
