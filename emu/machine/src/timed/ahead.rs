//! What threads have executed before the cycles of their issue, and how it is taken back.
//!
//! A burst ([`emu_hart::Hart::burst`]) executes plain instructions ahead, which nobody can notice, and accesses to lines that only its
//! thread has in L1. These are noted here until they are issued. Before anybody else touches such a line (the network card, or a thread
//! that brings it into its own L1), what has not been issued is taken back: stores in the reverse order, then the thread is put to
//! where it was at the first note, and executes again what has been issued with what it had loaded. So the card reads and writes
//! memory as if every instruction were executed at its issue. Between cores the order is looser: one may have issued some cycles
//! further than another, by a burst at most, and a load that hits L1 may miss a store of the other core by as much. Lines of code, and
//! lines of L2 and L3, are touched when an instruction is executed: which line has to go for another may be one burst off.

use emu_hart::{Before, Bus, Fault, Hart, Text, Width};
use emu_timing::cache::line_of;
use emu_timing::core::THREADS;
use emu_timing::{Core, Memory};

use crate::costs::untagged;
use crate::layout::EXECUTION_UNITS;
use crate::memory::{ProcessMemory, set_word};

/// No line of code.
const NOWHERE: u64 = u64::MAX;

/// An instruction that may have to be taken back.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Instructions of the burst that were executed ahead before it.
    before: u32,
    what: What,
}

/// Addresses are tagged with their process.
#[derive(Clone, Copy, Debug)]
enum What {
    Load {
        addr: u64,
        value: u64,
    },
    Store {
        addr: u64,
        width: u8,
        old: u64,
    },
    /// The first instruction in another line of code than this one.
    Code {
        from: u64,
    },
}

impl What {
    /// The line that it accesses.
    fn line(self) -> Option<u64> {
        match self {
            What::Load { addr, .. } | What::Store { addr, .. } => Some(line_of(addr)),
            What::Code { .. } => None,
        }
    }
}

/// One of 64 bits for a line: multiplicative hashing by the golden ratio.
#[inline(always)]
fn bit_of(line: u64) -> u64 {
    1 << (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// One hardware thread.
#[derive(Clone, Debug)]
struct Ahead {
    /// The line of code that it has at hand.
    line: u64,
    /// Instructions of its burst that count as executed ahead, and those that its hart has executed: more, while that is stale.
    count: u32,
    executed: u32,
    /// In the order in which they were executed.
    notes: Vec<Note>,
    /// The thread before the first of them, and the instructions ahead by then.
    x: [u64; 32],
    pc: u64,
    first: u32,
}

/// All hardware threads of a card.
#[derive(Clone, Debug)]
pub(crate) struct Aheads {
    of: Box<[Ahead]>,
    /// Those with notes, one bit each.
    noted: [u64; EXECUTION_UNITS / 64],
    /// For each a bit for each line that may be in its notes, see [`bit_of`].
    lines: Box<[u64; EXECUTION_UNITS]>,
    /// Those whose harts have to be put back.
    stale: Vec<usize>,
}

impl Aheads {
    pub(crate) fn new() -> Self {
        let ahead = Ahead { line: NOWHERE, count: 0, executed: 0, notes: Vec::new(), x: [0; 32], pc: 0, first: 0 };
        Aheads {
            of: vec![ahead; EXECUTION_UNITS].into(),
            noted: [0; EXECUTION_UNITS / 64],
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
        let ahead = &mut self.of[unit];
        if !ahead.notes.is_empty() {
            ahead.notes.clear();
            self.lines[unit] = 0;
            self.noted[unit / 64] &= !(1 << (unit % 64));
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

    #[inline(always)]
    pub(crate) fn loaded(&mut self, unit: usize, before: &Before<'_>, addr: u64, value: u64) {
        self.note(unit, before, What::Load { addr, value });
    }

    #[inline(always)]
    pub(crate) fn stored(&mut self, unit: usize, before: &Before<'_>, addr: u64, width: usize, old: u64) {
        self.note(unit, before, What::Store { addr, width: width as u8, old });
    }

    #[inline(always)]
    pub(crate) fn entered(&mut self, unit: usize, before: &Before<'_>, line: u64) {
        let from = std::mem::replace(&mut self.of[unit].line, line);
        self.note(unit, before, What::Code { from });
    }

    #[inline(always)]
    fn note(&mut self, unit: usize, before: &Before<'_>, what: What) {
        let ahead = &mut self.of[unit];
        if ahead.notes.is_empty() {
            (ahead.x, ahead.pc, ahead.first) = (*before.x, before.pc, before.count);
            self.noted[unit / 64] |= 1 << (unit % 64);
        }
        self.lines[unit] |= what.line().map_or(0, bit_of);
        ahead.notes.push(Note { before: before.count, what });
    }

    /// Somebody is about to touch the line of a (tagged) address: what others than `except` have executed ahead there is taken back, as
    /// far as it has not been issued.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(
        &mut self,
        addr: u64,
        except: Option<usize>,
        cores: &mut [Core],
        caches: &mut Memory,
        memory: &mut ProcessMemory,
    ) {
        let line = line_of(addr);
        let bit = bit_of(line);
        for word in 0..self.noted.len() {
            let mut rest = self.noted[word];
            while rest != 0 {
                let unit = word * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if self.lines[unit] & bit == 0 || Some(unit) == except {
                    continue;
                }
                if self.has(unit, line, cores) {
                    self.take_back(unit, cores, caches, memory);
                }
            }
        }
    }

    /// Whether a thread has accessed a line and the access has not been issued.
    fn has(&self, unit: usize, line: u64, cores: &[Core]) -> bool {
        let ahead = &self.of[unit];
        let issued = ahead.count - cores[unit / THREADS].left(unit % THREADS);
        ahead.notes.iter().rev().take_while(|note| note.before >= issued).any(|note| note.what.line() == Some(line))
    }

    /// Takes back what a thread has executed and not issued. Its hart follows when [`Aheads::put_back`] is called.
    #[inline(never)]
    pub(crate) fn take_back(
        &mut self,
        unit: usize,
        cores: &mut [Core],
        caches: &mut Memory,
        memory: &mut ProcessMemory,
    ) {
        let ahead = &mut self.of[unit];
        let core = &mut cores[unit / THREADS];
        let issued = ahead.count - core.left(unit % THREADS);
        while let Some(Note { what, .. }) = ahead.notes.pop_if(|note| note.before >= issued) {
            match what {
                What::Load { addr, .. } => caches.uncount_load(addr),
                What::Store { addr, width, old } => {
                    caches.uncount_store(addr);
                    // It has been stored there.
                    if let Some(bytes) = memory.bytes_mut(untagged(addr), usize::from(width)) {
                        set_word(bytes, usize::from(width), old);
                    }
                }
                What::Code { from } => ahead.line = from,
            }
        }
        if ahead.notes.is_empty() {
            self.noted[unit / 64] &= !(1 << (unit % 64));
        }
        // Plain ones before the first note stay.
        let kept = issued.max(ahead.first);
        core.cut(unit % THREADS, kept - issued);
        ahead.count = kept;
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

    /// Puts a hart back to where it is without what has been taken back.
    pub(crate) fn put_back(&mut self, unit: usize, hart: &mut Hart, text: &mut Text) {
        let ahead = &mut self.of[unit];
        (hart.x, hart.pc) = (ahead.x, ahead.pc);
        hart.instret = hart.instret.wrapping_sub(u64::from(ahead.executed - ahead.first));
        let again = ahead.count - ahead.first;
        let mut notes = Again { notes: ahead.notes.iter() };
        if again > 0 {
            let done = hart.replay(text, &mut notes, again);
            debug_assert!(done == again, "{done} of {again} instructions executed again");
        }
        ahead.executed = ahead.count;
    }
}

/// What a thread that executes again finds.
struct Again<'a> {
    notes: std::slice::Iter<'a, Note>,
}

impl Bus for Again<'_> {
    fn load_ahead(&mut self, _addr: u64, _width: Width, _before: &Before<'_>) -> Option<u64> {
        self.notes.find_map(|note| match note.what {
            What::Load { value, .. } => Some(value),
            What::Store { .. } | What::Code { .. } => None,
        })
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
