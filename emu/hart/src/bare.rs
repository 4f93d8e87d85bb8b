//! Runs a bare-metal program: one hart in machine mode, flat memory, an exit convention. This is how the official
//! RISC-V conformance tests and small freestanding programs run.
//!
//! - A program ends by `ecall` with the Linux number of `exit` (93) or `exit_group` (94) in `a7`, or by a store to
//!   `tohost`.
//! - `ecall` also serves `write` (64) to file descriptors 1 and 2, and `brk` (214); any other number returns `-ENOSYS`.
//! - As soon as the program has set `mtvec`, `ecall`, `ebreak` and faults go there instead.
//! - Machine mode and user mode, with the control and status registers that such a hart must have and no others: what
//!   is not there, is read-only or belongs to machine mode traps as the architecture has it.
//! - Every byte of the segments is readable, writable and executable; nothing is delegated, and no interrupt comes.
//!
//! Programs for QEMU's `virt` machine run too, as far as they use its memory, serial port and power switch
//! ([`Board::Virt`]).

mod board;
mod csr_file;
mod environment;
mod memory;

use std::io::{self, Write};

use flexcast_isa::Isa;

use crate::bus::Fault;
use crate::hart::Hart;

pub use environment::run;

/// A program in memory, as its loader has read it.
#[derive(Clone, Debug, Default)]
pub struct Program<'a> {
    /// Address, bytes, and length in memory of each segment; what the bytes do not cover is zero. Segments must not
    /// overlap.
    pub segments: Vec<(u64, &'a [u8], u64)>,
    /// Address of the first instruction.
    pub entry: u64,
    /// Address of the eight bytes (symbol `tohost`) by which the program reports its end.
    pub tohost: Option<u64>,
    /// Arguments, the program's name first. They are laid out on the stack as a Linux process finds them: `sp` points
    /// at their number, then the pointers to them, then zero pointers for the end, the environment and the auxiliary
    /// vector.
    pub arguments: Vec<String>,
    /// Address and length in bytes of what [`Report::dump`] is to hold.
    pub dump: Option<(u64, u64)>,
}

/// What is around the hart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Board {
    /// The program's segments, a heap and a stack.
    #[default]
    Flat,
    /// The part of QEMU's `virt` machine (hw/riscv/virt.c) that small programs use: 128 MiB of RAM from 0x8000_0000,
    /// the transmitter of the serial port at 0x1000_0000 (to [`Streams::out`]) and the SiFive test finisher at
    /// 0x10_0000, which ends the run. The program makes its own stack; arguments are not passed.
    Virt,
}

/// What a run may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is around the hart.
    pub board: Board,
    /// The most instructions to execute; a trap counts as one.
    pub instructions: u64,
    /// Size of the stack in bytes.
    pub stack_bytes: u64,
    /// Size in bytes of the heap that `brk` can reach. It follows the highest segment.
    pub heap_bytes: u64,
    /// Cycles that every instruction costs. Zero counts as one.
    pub gap_cycles: u64,
    /// What the hart executes.
    pub isa: Isa,
}

impl Default for Options {
    /// A billion instructions of one cycle, 1 MiB of stack, 16 MiB of heap, the instructions of the emulated DPA.
    fn default() -> Self {
        Options {
            board: Board::Flat,
            instructions: 1_000_000_000,
            stack_bytes: 1 << 20,
            heap_bytes: 16 << 20,
            gap_cycles: 1,
            isa: Isa::default(),
        }
    }
}

/// Where a program's output goes.
pub struct Streams<'a> {
    /// File descriptor 1.
    pub out: &'a mut dyn Write,
    /// File descriptor 2.
    pub err: &'a mut dyn Write,
    /// If set, one line for each instruction: address, bits, and the register written or why it did not retire. Slows
    /// the run down.
    pub trace: Option<&'a mut dyn Write>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended with this exit code; zero is success.
    Exit(u64),
    /// [`Options::instructions`] was reached.
    Limit,
    /// An exception for which the program has set no handler.
    Fault {
        /// Address of the instruction.
        pc: u64,
        /// The exception.
        fault: Fault,
    },
    /// The program stored an even value to `tohost`: a request to a host program that is not there.
    HostRequest(u64),
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Instructions retired.
    pub instret: u64,
    /// Cycles spent.
    pub cycles: u64,
    /// The hart as the program left it.
    pub hart: Hart,
    /// The bytes of [`Program::dump`] as the program left them; empty without.
    pub dump: Vec<u8>,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BareError {
    /// The program has no segment.
    #[error("the program has no segments; give at least the one that holds its entry {entry:#x}")]
    NoSegments {
        /// Address of the first instruction.
        entry: u64,
    },
    /// A segment holds more bytes than it has room for.
    #[error("the segment at {base:#x} has {bytes} bytes but only {len} in memory; its length must cover its bytes")]
    SegmentTooShort {
        /// Address of the segment.
        base: u64,
        /// Bytes given.
        bytes: u64,
        /// Length in memory.
        len: u64,
    },
    /// A segment ends beyond the address space.
    #[error("the segment at {base:#x} of {len} bytes passes the end of the address space")]
    SegmentWraps {
        /// Address of the segment.
        base: u64,
        /// Length in memory.
        len: u64,
    },
    /// Two segments share addresses.
    #[error("the segments at {first:#x} and {second:#x} overlap; link them to separate addresses")]
    SegmentsOverlap {
        /// Address of the lower segment.
        first: u64,
        /// Address of the higher segment.
        second: u64,
    },
    /// A segment lies outside the RAM of the machine.
    #[error(
        "the segment at {base:#x} of {len} bytes lies outside the machine's RAM, {ram_bytes} bytes from {ram:#x}; link \
         it there"
    )]
    OutsideRam {
        /// Address of the segment.
        base: u64,
        /// Length in memory.
        len: u64,
        /// First address of the RAM.
        ram: u64,
        /// Its length.
        ram_bytes: u64,
    },
    /// Segments, heap and stack together need too much memory.
    #[error("the program needs {needed} bytes of memory, more than the limit of {limit}; lower the stack or heap size")]
    TooLarge {
        /// Bytes needed.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// What is to be dumped is not memory of the program.
    #[error(
        "the {len} bytes at {base:#x} that are to be dumped are not all in the program's memory; place both ends in \
         one segment"
    )]
    DumpOutside {
        /// Address of the first byte.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// No gap of the address space is large enough for the stack.
    #[error("the stack of {bytes} bytes fits in no gap between the segments; lower its size")]
    NoRoomForStack {
        /// Size of the stack.
        bytes: u64,
    },
    /// The arguments do not fit on the stack.
    #[error("the arguments take {needed} bytes, the stack has {available}; raise its size")]
    ArgumentsTooLong {
        /// Bytes needed.
        needed: u64,
        /// Size of the stack.
        available: u64,
    },
    /// A stream could not be written.
    #[error("writing the program's {stream} failed: {error}")]
    Stream {
        /// Which: `output`, `error output` or `trace`.
        stream: &'static str,
        /// Why.
        error: io::Error,
    },
}
