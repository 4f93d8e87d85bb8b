//! A small memory for the tests, with a latency per access and every hook under control.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use emu_hart::{Bus, Fault, Hart, Limits, Stop, Text, Width};

pub const CODE: u64 = 0x1000;
pub const DATA: u64 = 0x8000;
pub const SIZE: usize = 0x1_0000;
/// Loads here work, stores fault.
pub const READ_ONLY: u64 = 0xf000;
/// A store here asks the hart to stop.
pub const DOORBELL: u64 = 0xe000;
/// The one control and status register, of those left to custom use.
pub const REGISTER: u16 = 0x8c0;

#[derive(Clone, Debug)]
pub struct TestBus {
    pub memory: Vec<u8>,
    pub load_cycles: u64,
    pub store_cycles: u64,
    pub stop: bool,
    pub fences: Vec<(u8, u8)>,
    pub customs: Vec<u32>,
    pub register: u64,
}

impl TestBus {
    pub fn new(code: &[u8]) -> Self {
        let mut memory = vec![0; SIZE];
        memory[CODE as usize..CODE as usize + code.len()].copy_from_slice(code);
        TestBus { memory, load_cycles: 0, store_cycles: 0, stop: false, fences: vec![], customs: vec![], register: 0 }
    }

    pub fn word(&self, addr: u64) -> u64 {
        let at = addr as usize;
        u64::from_le_bytes(self.memory[at..at + 8].try_into().unwrap())
    }

    pub fn set_word(&mut self, addr: u64, value: u64) {
        let at = addr as usize;
        self.memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn at(&self, addr: u64, width: Width) -> Option<std::ops::Range<usize>> {
        assert_eq!(addr % width.bytes(), 0, "a misaligned access reached the bus");
        let end = addr.checked_add(width.bytes())?;
        (end <= SIZE as u64).then_some(addr as usize..end as usize)
    }
}

impl Bus for TestBus {
    fn load(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault> {
        let range = self.at(addr, width).ok_or(Fault::load_access(addr))?;
        let mut value = [0; 8];
        value[..range.len()].copy_from_slice(&self.memory[range]);
        *cycles += self.load_cycles;
        Ok(u64::from_le_bytes(value))
    }

    fn store(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        let range = self.at(addr, width).ok_or(Fault::store_access(addr))?;
        if addr >= READ_ONLY {
            return Err(Fault::store_access(addr));
        }
        let len = range.len();
        self.memory[range].copy_from_slice(&value.to_le_bytes()[..len]);
        *cycles += self.store_cycles;
        self.stop |= addr == DOORBELL;
        Ok(())
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        let range = self.at(addr, Width::B2).ok_or(Fault::instruction_access(addr))?;
        Ok(u16::from_le_bytes([self.memory[range.start], self.memory[range.start + 1]]))
    }

    fn fence(&mut self, predecessor: u8, successor: u8, cycles: &mut u64) {
        self.fences.push((predecessor, successor));
        *cycles += 7;
    }

    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        cycles_now * 1000
    }

    fn csr_read(&mut self, csr: u16, _cycles: u64, _instret: u64) -> Option<u64> {
        (csr == REGISTER).then_some(self.register)
    }

    fn csr_write(&mut self, csr: u16, value: u64, _cycles: u64, _instret: u64) -> Option<()> {
        (csr == REGISTER).then(|| self.register = value)
    }

    fn should_stop(&self) -> bool {
        self.stop
    }

    fn custom(&mut self, insn: u32, x: &mut [u64; 32], cycles: &mut u64) -> Result<(), Fault> {
        if insn & 0x7f == 0x7b {
            return Err(Fault::illegal_instruction(insn));
        }
        self.customs.push(insn);
        x[(insn >> 7 & 31) as usize] = 0xc0de;
        *cycles += 11;
        Ok(())
    }
}

/// A hart at the start of `code`, its text and its memory.
pub struct Fixture {
    pub hart: Hart,
    pub text: Text,
    pub bus: TestBus,
}

impl Fixture {
    pub fn new(code: &[u32]) -> Self {
        Self::of_bytes(&super::asm::bytes(code))
    }

    pub fn of_bytes(code: &[u8]) -> Self {
        Fixture { hart: Hart::new(CODE), text: Text::new(CODE, code.len() as u64), bus: TestBus::new(code) }
    }

    pub fn run(&mut self, limits: &Limits) -> Stop {
        self.hart.run(&mut self.text, &mut self.bus, limits)
    }

    /// Runs until something other than the generous limit ends it.
    pub fn go(&mut self) -> Stop {
        let stop = self.run(&Limits::instructions(100_000));
        assert_ne!(stop, Stop::Instructions, "the program did not end");
        stop
    }
}
