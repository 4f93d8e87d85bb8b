//! Run-ahead of threads: instructions executed before the cycle of their issue, and the undo log that rolls them back.
//!
//! A burst ([`emu_hart::Hart::burst`]) executes plain instructions ahead, which nobody can notice, and accesses to lines that only its
//! thread has in L1. These are logged here until they are issued. Before anybody else touches such a line (the network card, or a thread
//! that brings it into its own L1), what has not been issued is rolled back: stores in the reverse order, then the thread is put to
//! where it was at the first such access, and executes again what has been issued with what it had loaded. So the card reads and writes
//! memory as if every instruction were executed at its issue. Between cores the order is looser: one may have issued some cycles
//! further than another, by a burst at most, and a load that hits L1 may miss a store of the other core by as much. Lines of code, and
//! lines of L2 and L3, are touched when an instruction is executed: which line has to go for another may be one burst off.

use emu_hart::{Before, Bus, Fault, Hart, Text, Width};
use emu_timing::cache::line_of;
use emu_timing::core::THREADS;
use emu_timing::{Core, Memory};

use super::tag::untagged;
use crate::dpa::layout::EXECUTION_UNITS;
use crate::dpa::memory::{ProcessMemory, set_word};

/// No line of code.
const NOWHERE: u64 = u64::MAX;

/// An instruction that may have to be rolled back. Two words: hundreds of threads have a dozen each.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// The address in the process, 40 bits; above it instructions of the burst before this one, 8 bits, what it is, 2 bits, and the
    /// logarithm of its bytes, 2 bits.
    head: u64,
    /// What has been loaded, what was there before the store, or the line of code before.
    value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Load,
    Store,
    /// The first instruction in another line of code.
    Code,
}

impl Undo {
    #[inline(always)]
    fn new(before: &Before<'_>, what: What, addr: u64, width: usize, value: u64) -> Self {
        let head = addr | u64::from(before.count) << 40 | (what as u64) << 48 | u64::from(width.trailing_zeros()) << 50;
        Undo { head, value }
    }

    fn what(self) -> What {
        match self.head >> 48 & 3 {
            0 => What::Load,
            1 => What::Store,
            _ => What::Code,
        }
    }

    /// Instructions of the burst that were executed ahead before it.
    fn before(self) -> u32 {
        (self.head >> 40 & 0xff) as u32
    }

    fn addr(self) -> u64 {
        untagged(self.head)
    }

    fn width(self) -> usize {
        1 << (self.head >> 50 & 3)
    }
}

/// One of 64 bits for a line: multiplicative hashing by the golden ratio.
#[inline(always)]
fn bit_of(line: u64) -> u64 {
    1 << (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// One hardware thread.
#[derive(Clone, Debug)]
struct Burst {
    /// The line of code that it has at hand.
    line: u64,
    /// Instructions of its burst that count as executed ahead, and those that its hart has executed: more, while that is stale.
    count: u32,
    executed: u32,
    /// In the order in which they were executed.
    log: Vec<Undo>,
    /// The thread before the first access among them, the instructions ahead by then, and the tag of its addresses.
    x: [u64; 32],
    pc: u64,
    first: u32,
    tag: u64,
}

/// All hardware threads of a card.
#[derive(Clone, Debug)]
pub(crate) struct RunAhead {
    of: Box<[Burst]>,
    /// Those with accesses in their log, one bit each.
    logged: [u64; EXECUTION_UNITS / 64],
    /// For each a bit for each line that may be in its log, see [`bit_of`]; 0 until the first.
    lines: Box<[u64; EXECUTION_UNITS]>,
    /// Those whose harts have to be put back.
    stale: Vec<usize>,
}

impl RunAhead {
    pub(crate) fn new() -> Self {
        let burst =
            Burst { line: NOWHERE, count: 0, executed: 0, log: Vec::new(), x: [0; 32], pc: 0, first: 0, tag: 0 };
        RunAhead {
            of: vec![burst; EXECUTION_UNITS].into(),
            logged: [0; EXECUTION_UNITS / 64],
            lines: Box::new([0; EXECUTION_UNITS]),
            stale: Vec::new(),
        }
    }

    /// An activation begins, or is over.
    pub(crate) fn forget(&mut self, unit: usize) {
        self.issued(unit);
        self.of[unit].line = NOWHERE;
        self.stale.retain(|stale| *stale != unit);
    }

    /// All that a thread had executed ahead has been issued.
    #[inline(always)]
    pub(crate) fn issued(&mut self, unit: usize) {
        self.of[unit].log.clear();
        if self.lines[unit] != 0 {
            self.lines[unit] = 0;
            self.logged[unit / 64] &= !(1 << (unit % 64));
        }
    }

    /// Whether a thread is in another line of code than before; it is in this one afterwards.
    #[inline(always)]
    pub(crate) fn enters(&mut self, unit: usize, line: u64) -> bool {
        std::mem::replace(&mut self.of[unit].line, line) != line
    }

    /// A burst has executed so many instructions ahead.
    #[inline(always)]
    pub(crate) fn executed(&mut self, unit: usize, count: u32) {
        (self.of[unit].count, self.of[unit].executed) = (count, count);
    }

    /// A thread has loaded ahead, from a tagged address.
    #[inline(always)]
    pub(crate) fn loaded(&mut self, unit: usize, before: &Before<'_>, addr: u64, value: u64) {
        self.accessed(unit, before, addr);
        self.of[unit].log.push(Undo::new(before, What::Load, untagged(addr), 1, value));
    }

    /// It has stored, where `old` was.
    #[inline(always)]
    pub(crate) fn stored(&mut self, unit: usize, before: &Before<'_>, addr: u64, width: usize, old: u64) {
        self.accessed(unit, before, addr);
        self.of[unit].log.push(Undo::new(before, What::Store, untagged(addr), width, old));
    }

    #[inline(always)]
    fn accessed(&mut self, unit: usize, before: &Before<'_>, addr: u64) {
        if self.lines[unit] == 0 {
            let burst = &mut self.of[unit];
            (burst.x, burst.pc, burst.first) = (*before.x, before.pc, before.count);
            burst.tag = addr - untagged(addr);
            self.logged[unit / 64] |= 1 << (unit % 64);
        }
        self.lines[unit] |= bit_of(line_of(addr));
    }

    /// It has gone on in another line of code.
    #[inline(always)]
    pub(crate) fn entered(&mut self, unit: usize, before: &Before<'_>, line: u64) {
        let burst = &mut self.of[unit];
        let from = std::mem::replace(&mut burst.line, line);
        burst.log.push(Undo::new(before, What::Code, 0, 1, from));
    }

    /// Somebody is about to touch the line of a (tagged) address: what others than `except` have executed ahead there is rolled back, as
    /// far as it has not been issued.
    #[cold]
    #[inline(never)]
    pub(crate) fn roll_back_line(
        &mut self,
        addr: u64,
        except: Option<usize>,
        cores: &mut [Core],
        caches: &mut Memory,
        memory: &mut ProcessMemory,
    ) {
        let line = line_of(addr);
        let bit = bit_of(line);
        for word in 0..self.logged.len() {
            let mut rest = self.logged[word];
            while rest != 0 {
                let unit = word * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if self.lines[unit] & bit == 0 || Some(unit) == except {
                    continue;
                }
                if self.has(unit, line, cores) {
                    self.roll_back(unit, cores, caches, memory);
                }
            }
        }
    }

    /// Whether a thread has accessed a line and the access has not been issued.
    fn has(&self, unit: usize, line: u64, cores: &[Core]) -> bool {
        let burst = &self.of[unit];
        let issued = burst.count - cores[unit / THREADS].left(unit % THREADS);
        let mut open = burst.log.iter().rev().take_while(|undo| undo.before() >= issued);
        open.any(|undo| undo.what() != What::Code && line_of(burst.tag | undo.addr()) == line)
    }

    /// Rolls back what a thread has executed and not issued, from the first access on. Its hart follows when [`RunAhead::restore`] is
    /// called.
    #[inline(never)]
    fn roll_back(&mut self, unit: usize, cores: &mut [Core], caches: &mut Memory, memory: &mut ProcessMemory) {
        let burst = &mut self.of[unit];
        let core = &mut cores[unit / THREADS];
        let issued = burst.count - core.left(unit % THREADS);
        let kept = issued.max(burst.first);
        while let Some(undo) = burst.log.pop_if(|undo| undo.before() >= kept) {
            match undo.what() {
                What::Load => caches.uncount_load(burst.tag | undo.addr()),
                What::Store => {
                    caches.uncount_store(burst.tag | undo.addr());
                    // It has been stored there.
                    if let Some(bytes) = memory.bytes_mut(undo.addr(), undo.width()) {
                        set_word(bytes, undo.width(), undo.value);
                    }
                }
                What::Code => burst.line = undo.value,
            }
        }
        core.cut(unit % THREADS, kept - issued);
        burst.count = kept;
        if !self.stale.contains(&unit) {
            self.stale.push(unit);
        }
    }

    /// Whether a hart has to be put back.
    #[inline(always)]
    pub(crate) fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// A thread whose hart has to be put back.
    pub(crate) fn stale(&mut self) -> Option<usize> {
        self.stale.pop()
    }

    /// Puts a hart back to where it is without what has been rolled back.
    pub(crate) fn restore(&mut self, unit: usize, hart: &mut Hart, text: &mut Text) {
        let burst = &mut self.of[unit];
        (hart.x, hart.pc) = (burst.x, burst.pc);
        hart.instret = hart.instret.wrapping_sub(u64::from(burst.executed - burst.first));
        let again = burst.count - burst.first;
        let mut log = Again { log: burst.log.iter() };
        if again > 0 {
            // Fewer only if code has been stored over since: the thread goes on from there.
            hart.replay(text, &mut log, again);
        }
        burst.executed = burst.count;
    }
}

/// What a thread that executes again finds.
struct Again<'a> {
    log: std::slice::Iter<'a, Undo>,
}

impl Bus for Again<'_> {
    fn load_ahead(&mut self, _addr: u64, _width: Width, _before: &Before<'_>) -> Option<u64> {
        self.log.find(|undo| undo.what() == What::Load).map(|undo| undo.value)
    }

    fn store_ahead(&mut self, _addr: u64, _width: Width, _value: u64, _before: &Before<'_>) -> bool {
        // It is in memory.
        true
    }

    // Nothing else is executed ahead.
    fn load(&mut self, addr: u64, _width: Width, _cycles: &mut u64) -> Result<u64, Fault> {
        Err(Fault::load_access(addr))
    }

    fn store(&mut self, addr: u64, _width: Width, _value: u64, _cycles: &mut u64) -> Result<(), Fault> {
        Err(Fault::store_access(addr))
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        Err(Fault::instruction_access(addr))
    }

    fn csr_time(&mut self, _cycles_now: u64) -> u64 {
        0
    }
}
