//! The machine-mode control and status registers: a flat file with the few whose value is not just what was written.

use std::collections::BTreeMap;

use crate::bus::Fault;

const MSTATUS: u16 = 0x300;
const MISA: u16 = 0x301;
const MTVEC: u16 = 0x305;
const MEPC: u16 = 0x341;
const MCAUSE: u16 = 0x342;
const MTVAL: u16 = 0x343;
const MCYCLE: u16 = 0xb00;
const MINSTRET: u16 = 0xb02;

const MSTATUS_MIE: u64 = 1 << 3;
const MSTATUS_MPIE: u64 = 1 << 7;
const MSTATUS_MPP: u64 = 3 << 11;

/// 64 bits wide, with A, C, I, M and user mode. Zbb and Zbs have no letter of their own.
const MISA_VALUE: u64 = 2 << 62 | 1 << 20 | 1 << 12 | 1 << 8 | 1 << 2 | 1;

/// The privilege mode, numbered as in `mstatus.MPP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    User = 0,
    Machine = 3,
}

#[derive(Clone, Debug)]
pub(super) struct CsrFile {
    values: BTreeMap<u16, u64>,
    pub(super) mode: Mode,
    /// What to add to the hart's counters, after the program has written them.
    cycle_offset: u64,
    instret_offset: u64,
}

impl CsrFile {
    pub(super) fn new() -> Self {
        CsrFile { values: BTreeMap::new(), mode: Mode::Machine, cycle_offset: 0, instret_offset: 0 }
    }

    fn value(&self, csr: u16) -> u64 {
        self.values.get(&csr).copied().unwrap_or(0)
    }

    pub(super) fn read(&self, csr: u16, cycles: u64, instret: u64) -> u64 {
        match csr {
            MISA => MISA_VALUE,
            MCYCLE => cycles.wrapping_add(self.cycle_offset),
            MINSTRET => instret.wrapping_add(self.instret_offset),
            _ => self.value(csr),
        }
    }

    pub(super) fn write(&mut self, csr: u16, value: u64, cycles: u64, instret: u64) {
        let value = match csr {
            // Unsupported modes read back as the least one; only the fields of machine mode exist.
            MSTATUS => {
                let mpp = if value & MSTATUS_MPP == MSTATUS_MPP { MSTATUS_MPP } else { 0 };
                (value & !MSTATUS_MPP) | mpp
            }
            MISA => return,
            // Direct or vectored; exceptions go to the base in both.
            MTVEC => value & !2,
            MEPC => value & !1,
            MCYCLE => {
                // The write takes effect after the instruction, which counts itself no more.
                self.cycle_offset = value.wrapping_sub(cycles).wrapping_sub(1);
                return;
            }
            MINSTRET => {
                self.instret_offset = value.wrapping_sub(instret).wrapping_sub(1);
                return;
            }
            _ => value,
        };
        self.values.insert(csr, value);
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
        self.values.insert(MSTATUS, left);
        Some(self.value(MEPC))
    }
}
