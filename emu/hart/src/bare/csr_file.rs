//! The control and status registers of a hart with machine mode and user mode (RISC-V privileged architecture 1.12):
//! those that such a hart must have. There is no supervisor mode, no interrupt, no memory protection and no event
//! counter; fields for these are zero.

use std::collections::BTreeMap;

use flexcast_isa::{Extension, Isa};

use crate::bus::Fault;

const MSTATUS: u16 = 0x300;
const MISA: u16 = 0x301;
const MIE: u16 = 0x304;
const MTVEC: u16 = 0x305;
const MCOUNTEREN: u16 = 0x306;
const MENVCFG: u16 = 0x30a;
const MCOUNTINHIBIT: u16 = 0x320;
/// `mhpmevent3` to `mhpmevent31`.
const MHPMEVENT: std::ops::RangeInclusive<u16> = 0x323..=0x33f;
const MSCRATCH: u16 = 0x340;
const MEPC: u16 = 0x341;
const MCAUSE: u16 = 0x342;
const MTVAL: u16 = 0x343;
const MIP: u16 = 0x344;
const MCYCLE: u16 = 0xb00;
const MINSTRET: u16 = 0xb02;
/// `mhpmcounter3` to `mhpmcounter31`.
const MHPMCOUNTER: std::ops::RangeInclusive<u16> = 0xb03..=0xb1f;
/// `mvendorid`, `marchid`, `mimpid`, `mhartid`, `mconfigptr`.
const MACHINE_INFORMATION: std::ops::RangeInclusive<u16> = 0xf11..=0xf15;

const MSTATUS_MIE: u64 = 1 << 3;
const MSTATUS_MPIE: u64 = 1 << 7;
const MSTATUS_MPP: u64 = 3 << 11;
const MSTATUS_MPRV: u64 = 1 << 17;
/// User mode is 64 bits wide.
const MSTATUS_UXL: u64 = 2 << 32;

/// `cycle`, `time` and `instret` are always readable from user mode.
const MCOUNTEREN_VALUE: u64 = 7;

/// `misa`: 64 bits wide, user mode, and the extensions with a letter.
fn misa(isa: Isa) -> u64 {
    let letter = |letter: u8, extension| if isa.has(extension) { 1_u64 << (letter - b'a') } else { 0 };
    let letters = letter(b'a', Extension::A)
        | letter(b'c', Extension::C)
        | letter(b'i', Extension::I)
        | letter(b'm', Extension::M);
    2 << 62 | 1 << (b'u' - b'a') | letters
}

/// The privilege mode, numbered as in `mstatus.MPP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    User = 0,
    Machine = 3,
}

#[derive(Clone, Debug)]
pub(super) struct CsrFile {
    values: BTreeMap<u16, u64>,
    misa: u64,
    pub(super) mode: Mode,
    /// What to add to the hart's counters, after the program has written them.
    cycle_offset: u64,
    instret_offset: u64,
}

impl CsrFile {
    pub(super) fn new(isa: Isa) -> Self {
        CsrFile { values: BTreeMap::new(), misa: misa(isa), mode: Mode::Machine, cycle_offset: 0, instret_offset: 0 }
    }

    fn value(&self, csr: u16) -> u64 {
        self.values.get(&csr).copied().unwrap_or(0)
    }

    /// Bits 9 and 8 of a register's number are the least mode that may access it.
    fn is_reachable(&self, csr: u16) -> bool {
        csr >> 8 & 3 <= self.mode as u16
    }

    /// What to add to the hart's counters of cycles and of instructions.
    pub(super) fn counter_offsets(&self) -> (u64, u64) {
        (self.cycle_offset, self.instret_offset)
    }

    /// The value of a register; `None` where there is none for this mode.
    pub(super) fn read(&self, csr: u16, cycles: u64, instret: u64) -> Option<u64> {
        if !self.is_reachable(csr) {
            return None;
        }
        Some(match csr {
            MISA => self.misa,
            MSTATUS => self.value(MSTATUS) | MSTATUS_UXL,
            MCOUNTEREN => MCOUNTEREN_VALUE,
            MCYCLE => cycles.wrapping_add(self.cycle_offset),
            MINSTRET => instret.wrapping_add(self.instret_offset),
            MIE | MTVEC | MSCRATCH | MEPC | MCAUSE | MTVAL => self.value(csr),
            MIP | MENVCFG | MCOUNTINHIBIT => 0,
            _ if MHPMEVENT.contains(&csr) || MHPMCOUNTER.contains(&csr) || MACHINE_INFORMATION.contains(&csr) => 0,
            _ => return None,
        })
    }

    /// Writes a register that [`CsrFile::read`] has; what a field cannot hold is left out.
    pub(super) fn write(&mut self, csr: u16, value: u64, cycles: u64, instret: u64) -> Option<()> {
        self.read(csr, cycles, instret)?;
        let value = match csr {
            // Unsupported modes read back as the least one.
            MSTATUS => {
                let mpp = if value & MSTATUS_MPP == MSTATUS_MPP { MSTATUS_MPP } else { 0 };
                value & (MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPRV) | mpp
            }
            // Direct or vectored; exceptions go to the base in both.
            MTVEC => value & !2,
            MEPC => value & !1,
            MIE | MSCRATCH | MCAUSE | MTVAL => value,
            MCYCLE => {
                // The write takes effect after the instruction, which counts itself no more.
                self.cycle_offset = value.wrapping_sub(cycles).wrapping_sub(1);
                return Some(());
            }
            MINSTRET => {
                self.instret_offset = value.wrapping_sub(instret).wrapping_sub(1);
                return Some(());
            }
            _ => return Some(()),
        };
        self.values.insert(csr, value);
        Some(())
    }

    /// Enters the trap handler; gives its address, or nothing if the program has not set one.
    pub(super) fn trap(&mut self, pc: u64, fault: Fault) -> Option<u64> {
        let handler = self.value(MTVEC) & !3;
        if handler == 0 {
            return None;
        }
        let status = self.value(MSTATUS);
        let mut entered = status & !(MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPP);
        if status & MSTATUS_MIE != 0 {
            entered |= MSTATUS_MPIE;
        }
        entered |= (self.mode as u64) << 11;
        self.values.insert(MSTATUS, entered);
        self.values.insert(MEPC, pc);
        self.values.insert(MCAUSE, fault.cause.code());
        self.values.insert(MTVAL, fault.tval);
        self.mode = Mode::Machine;
        Some(handler)
    }

    /// `mret`: back to the mode and address before the trap.
    pub(super) fn machine_return(&mut self) -> Option<u64> {
        if self.mode != Mode::Machine {
            return None;
        }
        let status = self.value(MSTATUS);
        self.mode = if status & MSTATUS_MPP == 0 { Mode::User } else { Mode::Machine };
        let mut left = (status & !(MSTATUS_MIE | MSTATUS_MPP)) | MSTATUS_MPIE;
        if status & MSTATUS_MPIE != 0 {
            left |= MSTATUS_MIE;
        }
        if self.mode != Mode::Machine {
            left &= !MSTATUS_MPRV;
        }
        self.values.insert(MSTATUS, left);
        Some(self.value(MEPC))
    }
}
