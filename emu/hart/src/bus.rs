//! Interface of a hart to the world outside it: memory, counters, fences, and the ways an access can fail.

use core::fmt;

/// Width of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
}

impl Width {
    /// The width in bytes: 1, 2, 4 or 8.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(self) -> u64 {
        match self {
            Width::B1 => 1,
            Width::B2 => 2,
            Width::B4 => 4,
            Width::B8 => 8,
        }
    }
}

/// The cause of an exception, numbered as in the `mcause` register (RISC-V privileged architecture, table "mcause").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// The next instruction's address is not a multiple of the instruction alignment. Cannot happen with compressed
    /// instructions; listed so that a [`Bus`] can report every code.
    InstructionMisaligned = 0,
    /// No instruction can be fetched at the address.
    InstructionAccess = 1,
    /// The bits are not an instruction of this hart; the trap value holds them.
    IllegalInstruction = 2,
    /// `ebreak`.
    Breakpoint = 3,
    /// A load's address is not a multiple of its width.
    LoadMisaligned = 4,
    /// No load is possible at the address.
    LoadAccess = 5,
    /// A store's or atomic operation's address is not a multiple of its width.
    StoreMisaligned = 6,
    /// No store or atomic operation is possible at the address.
    StoreAccess = 7,
    /// `ecall` in user mode.
    EcallUser = 8,
    /// `ecall` in supervisor mode.
    EcallSupervisor = 9,
    /// `ecall` in machine mode.
    EcallMachine = 11,
    /// Translation of an instruction's address failed.
    InstructionPage = 12,
    /// Translation of a load's address failed.
    LoadPage = 13,
    /// Translation of a store's or atomic operation's address failed.
    StorePage = 15,
}

impl Cause {
    /// The exception code as `mcause` shows it.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::InstructionMisaligned => "instruction address misaligned",
            Cause::InstructionAccess => "instruction access fault",
            Cause::IllegalInstruction => "illegal instruction",
            Cause::Breakpoint => "breakpoint",
            Cause::LoadMisaligned => "load address misaligned",
            Cause::LoadAccess => "load access fault",
            Cause::StoreMisaligned => "store or atomic address misaligned",
            Cause::StoreAccess => "store or atomic access fault",
            Cause::EcallUser => "environment call from user mode",
            Cause::EcallSupervisor => "environment call from supervisor mode",
            Cause::EcallMachine => "environment call from machine mode",
            Cause::InstructionPage => "instruction page fault",
            Cause::LoadPage => "load page fault",
            Cause::StorePage => "store or atomic page fault",
        })
    }
}

/// An exception raised by an instruction. The instruction has changed nothing: no register, no memory, no counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{cause} (trap value {tval:#x})")]
pub struct Fault {
    /// Why.
    pub cause: Cause,
    /// The trap value: the faulting address, or the bits of an illegal instruction.
    pub tval: u64,
}

impl Fault {
    /// A fault of this cause with this trap value.
    #[must_use]
    pub const fn new(cause: Cause, tval: u64) -> Self {
        Fault { cause, tval }
    }

    /// No load is possible at `addr`.
    #[must_use]
    pub const fn load_access(addr: u64) -> Self {
        Fault::new(Cause::LoadAccess, addr)
    }

    /// No store is possible at `addr`.
    #[must_use]
    pub const fn store_access(addr: u64) -> Self {
        Fault::new(Cause::StoreAccess, addr)
    }

    /// No instruction can be fetched at `addr`.
    #[must_use]
    pub const fn instruction_access(addr: u64) -> Self {
        Fault::new(Cause::InstructionAccess, addr)
    }

    /// `bits` are not an instruction.
    #[must_use]
    pub const fn illegal_instruction(bits: u32) -> Self {
        Fault::new(Cause::IllegalInstruction, bits as u64)
    }
}

/// An atomic access: load-reserved, store-conditional or atomic memory operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The address, a multiple of the width.
    pub addr: u64,
    /// [`Width::B4`] or [`Width::B8`].
    pub width: Width,
    /// The `aq` bit: no later memory access of this hart is seen before this one.
    pub acquire: bool,
    /// The `rl` bit: every earlier memory access of this hart is seen before this one.
    pub release: bool,
}

/// A hart as it is before an instruction that a burst executes ahead of its issue; see
/// [`Hart::burst`](crate::Hart::burst).
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// Its integer registers.
    pub x: &'a [u64; 32],
    /// The instruction's address.
    pub pc: u64,
    /// Instructions that the burst has executed ahead of their issue before this one.
    pub count: u32,
}

/// The outside world of a hart. Statically dispatched, so that a small `load` or `store` is inlined into the
/// interpreter.
///
/// In every method `cycles` holds the hart's cycle counter when the instruction began; the bus adds the latency of the
/// access to it. A method that returns a fault must have changed nothing; what it added to `cycles` is dropped.
///
/// Addresses arrive aligned to the width, except at [`Bus::load_misaligned`] and [`Bus::store_misaligned`].
pub trait Bus {
    /// Loads `width` bytes, little-endian, zero-extended.
    ///
    /// # Errors
    /// A fault, usually [`Cause::LoadAccess`] with the address as trap value.
    fn load(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault>;

    /// Stores the low `width` bytes of `value`, little-endian. The bits above the width are undefined.
    ///
    /// # Errors
    /// A fault, usually [`Cause::StoreAccess`] with the address as trap value.
    fn store(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault>;

    /// A load that is not aligned to its width.
    ///
    /// # Errors
    /// A fault; by default [`Cause::LoadMisaligned`].
    #[cold]
    fn load_misaligned(&mut self, addr: u64, _width: Width, _cycles: &mut u64) -> Result<u64, Fault> {
        Err(Fault::new(Cause::LoadMisaligned, addr))
    }

    /// A store that is not aligned to its width.
    ///
    /// # Errors
    /// A fault; by default [`Cause::StoreMisaligned`].
    #[cold]
    fn store_misaligned(&mut self, addr: u64, _width: Width, _value: u64, _cycles: &mut u64) -> Result<(), Fault> {
        Err(Fault::new(Cause::StoreMisaligned, addr))
    }

    /// A load that a burst meets before the load's issue. `Some` is the zero-extended value and executes it: the bus
    /// must then be able to take back all that the burst executes from here on, for which it is given the hart's state.
    /// `None`, also for a load that would fault, ends the burst before it.
    #[inline(always)]
    fn load_ahead(&mut self, _addr: u64, _width: Width, _before: &Before<'_>) -> Option<u64> {
        None
    }

    /// The same for a store, of the low `width` bytes of `value`: true if it has been executed.
    #[inline(always)]
    fn store_ahead(&mut self, _addr: u64, _width: Width, _value: u64, _before: &Before<'_>) -> bool {
        false
    }

    /// Whether a burst may go on in the block of code that holds `before.pc`, another than before; the bus must be able
    /// to take it back.
    #[inline(always)]
    fn enter_ahead(&mut self, _before: &Before<'_>) -> bool {
        false
    }

    /// Two instruction bytes at `addr`, a multiple of two. Called by the decoder only, once per instruction until the
    /// text is invalidated.
    ///
    /// # Errors
    /// A fault, usually [`Cause::InstructionAccess`] with the address as trap value.
    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault>;

    /// A `fence` with its predecessor and successor sets: bit 3 device input, 2 device output, 1 reads, 0 writes.
    fn fence(&mut self, _predecessor: u8, _successor: u8, _cycles: &mut u64) {}

    /// The `time` counter of a hart whose cycle counter shows `cycles_now`.
    fn csr_time(&mut self, cycles_now: u64) -> u64;

    /// Asked after each instruction that touched the bus: true ends [`Hart::run`](crate::Hart::run) with
    /// [`Stop::Requested`](crate::Stop::Requested) once the instruction has retired. The bus clears its own flag.
    #[inline(always)]
    fn should_stop(&self) -> bool {
        false
    }

    /// An instruction of the opcodes custom-0 to custom-3. `x[0]` may be written; the hart sets it to zero again.
    ///
    /// # Errors
    /// A fault; by default [`Cause::IllegalInstruction`].
    fn custom(&mut self, insn: u32, _x: &mut [u64; 32], _cycles: &mut u64) -> Result<(), Fault> {
        Err(Fault::illegal_instruction(insn))
    }

    /// Reads the old value at an address and, where `update` returns one, stores the new value, with no other hart's
    /// access between the two. `update` is called exactly once, with the zero-extended old value.
    ///
    /// The default is one load and, for an update, one store. A bus that delays or reorders stores overrides it, for
    /// otherwise two harts could both update the same old value. The hart turns load faults of a store-conditional or
    /// an atomic memory operation into the store faults that the architecture asks for.
    ///
    /// # Errors
    /// A fault of the load or the store.
    #[inline]
    fn atomic(
        &mut self,
        access: Atomic,
        cycles: &mut u64,
        update: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, Fault> {
        let old = self.load(access.addr, access.width, cycles)?;
        if let Some(new) = update(old) {
            self.store(access.addr, access.width, new, cycles)?;
        }
        Ok(old)
    }

    /// What `cycle` and `instret` show besides the hart's own counters: what has been written to the machine's counters
    /// that they shadow.
    fn counter_offsets(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Reads a control and status register that the hart lacks itself (it has `cycle`, `time` and `instret`). `None`
    /// makes the instruction illegal. `cycles` and `instret` are the hart's counters.
    fn csr_read(&mut self, _csr: u16, _cycles: u64, _instret: u64) -> Option<u64> {
        None
    }

    /// Writes such a register; called after [`Bus::csr_read`] has accepted it. `None` makes the instruction illegal.
    fn csr_write(&mut self, _csr: u16, _value: u64, _cycles: u64, _instret: u64) -> Option<()> {
        None
    }

    /// `mret`: the address to go on at. `None` makes the instruction illegal, as for a hart that has user mode only.
    fn machine_return(&mut self) -> Option<u64> {
        None
    }
}
