//! One hardware thread: its registers, its counters and the limits it runs under.

use crate::bus::{Bus, Fault, Width};
use crate::text::Text;

/// A RISC-V hardware thread in user mode. What it executes is of its [`Text`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hart {
    /// The integer registers. `x[0]` is set to zero when [`Hart::run`] begins and stays so.
    pub x: [u64; 32],
    /// The address of the next instruction. After a fault, `ecall` or `ebreak`: of that instruction.
    pub pc: u64,
    /// Cycles spent so far, latencies included.
    pub cycles: u64,
    /// Instructions retired so far.
    pub instret: u64,
    pub(crate) reservation: Option<Reservation>,
}

/// The bytes that a load-reserved has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) addr: u64,
    pub(crate) width: Width,
}

impl Hart {
    /// A hart with all registers and counters zero that begins at `pc`.
    #[must_use]
    pub fn new(pc: u64) -> Self {
        Hart { pc, ..Hart::default() }
    }

    /// Executes instructions until a limit is reached or something needs the caller.
    ///
    /// The state is exact whenever this returns: an instruction has either retired completely or, for a fault, `ecall`
    /// or `ebreak`, not changed anything.
    pub fn run<B: Bus>(&mut self, text: &mut Text, bus: &mut B, limits: &Limits) -> Stop {
        crate::exec::run(self, text, bus, limits)
    }

    /// Executes one instruction, for a caller that decides itself when the next one is issued: [`Hart::cycles`] moves
    /// by what the bus adds to it and nothing else. [`Bus::should_stop`](Bus::should_stop) is for the caller to ask.
    ///
    /// The state is exact whenever this returns, as with [`Hart::run`].
    #[inline]
    pub fn step<B: Bus>(&mut self, text: &mut Text, bus: &mut B) -> Step {
        crate::exec::burst(self, text, bus, 0, 64).0
    }

    /// Executes one instruction as [`Hart::step`] does, and then up to `most_ahead` (not more than [`RunAhead::MOST`])
    /// that follow it ahead of their issue: those that touch registers and the program counter only, so that nothing
    /// shows when they are executed, and loads and stores that the bus takes ([`Bus::load_ahead`],
    /// [`Bus::store_ahead`]). It ends before any other instruction, and before one in another block of `block_bytes` (a
    /// power of two, at least 2) of code unless the bus lets it enter ([`Bus::enter_ahead`]). The caller issues them
    /// afterwards, one by one, as if each were executed only then. Returns what became of the first, and what followed;
    /// after one that stopped nothing does.
    ///
    /// What has not been issued yet can be taken back with [`Hart::replay`].
    ///
    /// This makes a stepped hart faster: few instructions have to be executed at the right moment.
    #[inline(always)]
    pub fn burst<B: Bus>(
        &mut self,
        text: &mut Text,
        bus: &mut B,
        most_ahead: u32,
        block_bytes: u64,
    ) -> (Step, RunAhead) {
        crate::exec::burst(self, text, bus, most_ahead, block_bytes)
    }

    /// Executes `count` instructions of a burst again, from the state that the bus was given
    /// ([`Before`](crate::Before)); all accesses go to [`Bus::load_ahead`] and [`Bus::store_ahead`], which must answer
    /// as they did. Returns how many have been executed: `count`, if the bus did.
    pub fn replay<B: Bus>(&mut self, text: &mut Text, bus: &mut B, count: u32) -> u32 {
        crate::exec::replay(self, text, bus, count)
    }

    /// Ends this hart's reservation if the `len` bytes at `addr` touch it. To be called when another hart, or a device,
    /// has stored there; the next store-conditional then fails.
    #[inline]
    pub fn break_reservation(&mut self, addr: u64, len: u64) {
        if let Some(Reservation { addr: reserved, width }) = self.reservation
            && len != 0
            && (addr.wrapping_sub(reserved) < width.bytes() || reserved.wrapping_sub(addr) < len)
        {
            self.reservation = None;
        }
    }

    /// Ends this hart's reservation wherever it is, as a context switch does.
    #[inline]
    pub fn clear_reservation(&mut self) {
        self.reservation = None;
    }

    /// The address and length of the bytes that this hart has reserved, so that a machine with many harts can check
    /// cheaply which of them a store concerns.
    #[must_use]
    #[inline]
    pub fn reservation(&self) -> Option<(u64, u64)> {
        self.reservation.map(|r| (r.addr, r.width.bytes()))
    }

    /// Completes the `ecall` at `pc` after the caller has served it: counts it, adds `cycles`, and moves past it.
    #[inline]
    pub fn complete_ecall(&mut self, cycles: u64) {
        self.pc = self.pc.wrapping_add(4);
        self.instret += 1;
        self.cycles += cycles;
    }
}

/// Instructions that a burst has executed ahead of their issue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunAhead {
    /// How many.
    pub count: u32,
    /// What each is, two bits each, the first in the lowest: 0 an ordinary one, [`RunAhead::LOAD`] or
    /// [`RunAhead::STORE`].
    pub accesses: u64,
}

impl RunAhead {
    /// The most of one burst.
    pub const MOST: u32 = 32;
    /// A load.
    pub const LOAD: u64 = 1;
    /// A store.
    pub const STORE: u64 = 2;
}

/// When [`Hart::run`] has to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most instructions to retire in this call.
    pub instructions: u64,
    /// The value of [`Hart::cycles`] at which to stop. The instruction that reaches it is completed first.
    pub cycles: u64,
    /// Cycles that every instruction costs besides the latency of its accesses. Zero counts as one: time has to pass.
    pub gap_cycles: u64,
}

impl Limits {
    /// At most `instructions` instructions of one cycle each, and no limit on cycles.
    #[must_use]
    pub const fn instructions(instructions: u64) -> Self {
        Limits { instructions, cycles: u64::MAX, gap_cycles: 1 }
    }
}

/// What became of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has retired.
    Retired(Class),
    /// It has not, except `wfi`; see the reason. Never a limit.
    Stopped(Stop),
}

/// Instructions by what executing them costs, except accesses, which the bus sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A multiplication.
    Multiply,
    /// A division or remainder.
    Divide,
    /// Any other.
    Other,
}

/// Why [`Hart::run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// [`Limits::instructions`] instructions have retired.
    Instructions,
    /// [`Hart::cycles`] has reached [`Limits::cycles`].
    Cycles,
    /// [`Bus::should_stop`] answered true after the instruction just retired.
    Requested,
    /// `ecall`, not counted as retired; `pc` is at it. See [`Hart::complete_ecall`].
    Ecall,
    /// `ebreak` or `c.ebreak`, not counted as retired; `pc` is at it.
    Ebreak,
    /// The instruction at `pc` raised an exception and changed nothing.
    Fault(Fault),
    /// `wfi`, retired; `pc` is after it.
    Wfi,
}
