//! A hart that executes one instruction at a time, in each of the ways there are.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use emu_hart::{Before, Bus, Fault, Hart, Isa, Limits, Step, Stop, Text, Width};

use super::asm::*;
use super::bus::{CODE, TestBus};
use super::random::Random;

/// Where the instruction is; a no-op is before it.
pub const AT: u64 = CODE + 4;

/// Opcodes of instructions that only compute a value for `rd`.
pub const COMPUTING: [u32; 6] = [0x13, 0x17, 0x1b, 0x33, 0x37, 0x3b];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Run,
    Step,
    Ahead,
}

pub const MODES: [Mode; 3] = [Mode::Run, Mode::Step, Mode::Ahead];

/// Lets all accesses run ahead.
struct Willing<'a>(&'a mut TestBus);

impl Bus for Willing<'_> {
    fn load(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault> {
        self.0.load(addr, width, cycles)
    }

    fn store(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        self.0.store(addr, width, value, cycles)
    }

    fn load_ahead(&mut self, addr: u64, width: Width, _before: &Before<'_>) -> Option<u64> {
        self.0.load(addr, width, &mut 0).ok()
    }

    fn store_ahead(&mut self, addr: u64, width: Width, value: u64, _before: &Before<'_>) -> bool {
        self.0.store(addr, width, value, &mut 0).is_ok()
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        self.0.fetch16(addr)
    }

    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        self.0.csr_time(cycles_now)
    }

    fn csr_read(&mut self, csr: u16, cycles: u64, instret: u64) -> Option<u64> {
        self.0.csr_read(csr, cycles, instret)
    }

    fn csr_write(&mut self, csr: u16, value: u64, cycles: u64, instret: u64) -> Option<()> {
        self.0.csr_write(csr, value, cycles, instret)
    }

    fn custom(&mut self, insn: u32, x: &mut [u64; 32], cycles: &mut u64) -> Result<(), Fault> {
        self.0.custom(insn, x, cycles)
    }
}

pub struct Machine {
    pub text: Text,
    pub bus: TestBus,
    /// What is at [`AT`].
    bits: u32,
    /// Instructions that were executed ahead of their issue.
    pub ahead: u64,
}

impl Machine {
    pub fn new() -> Self {
        let bus = TestBus::new(&bytes(&[NOP, NOP]));
        Machine { text: Text::new(CODE, 8).with_isa(Isa::ALL), bus, bits: NOP, ahead: 0 }
    }

    /// Executes one instruction with these registers; gives the registers and the program counter after it, or why it
    /// did not retire.
    pub fn execute(&mut self, bits: u32, x: [u64; 32], mode: Mode) -> Result<([u64; 32], u64), Stop> {
        if self.bits != bits {
            let at = AT as usize;
            self.bus.memory[at..at + 4].copy_from_slice(&bits.to_le_bytes());
            self.text.invalidate(AT, 4);
            self.bits = bits;
        }
        self.bus.fences.clear();
        self.bus.customs.clear();
        let mut hart = Hart::new(AT);
        hart.x = x;
        let stop = match mode {
            Mode::Run => match hart.run(&mut self.text, &mut self.bus, &Limits::instructions(1)) {
                Stop::Instructions | Stop::Wfi => None,
                stop => Some(stop),
            },
            Mode::Step => stopped(hart.step(&mut self.text, &mut self.bus)),
            Mode::Ahead => {
                // Behind the no-op if it may be, which must have been decoded: the modes are taken in this order.
                hart.pc = CODE;
                let mut bus = Willing(&mut self.bus);
                let (step, ahead) = hart.burst(&mut self.text, &mut bus, 1, 64);
                assert_eq!(stopped(step), None, "the no-op");
                self.ahead += u64::from(ahead.count);
                if ahead.count == 1 { None } else { stopped(hart.burst(&mut self.text, &mut bus, 0, 64).0) }
            }
        };
        match stop {
            Some(stop) => {
                assert_eq!((hart.x, hart.pc), (x, AT), "{bits:#010x}: {mode:?} has changed what it did not retire");
                Err(stop)
            }
            None => Ok((hart.x, hart.pc)),
        }
    }
}

fn stopped(step: Step) -> Option<Stop> {
    match step {
        Step::Retired(_) | Step::Stopped(Stop::Wfi) => None,
        Step::Stopped(stop) => Some(stop),
    }
}

/// Every four-byte encoding with these fields, all immediates among them as far as opcode, `funct3` and the upper
/// twelve bits are them.
pub fn encodings(opcodes: impl Iterator<Item = u32>, rd: u32, rs1: u32) -> impl Iterator<Item = u32> {
    opcodes.flat_map(move |opcode| {
        (0..8 << 12).map(move |rest| (rest >> 3) << 20 | rs1 << 15 | (rest & 7) << 12 | rd << 7 | opcode)
    })
}

pub fn registers(random: &mut Random) -> [u64; 32] {
    let mut x = std::array::from_fn(|_| random.operand());
    x[0] = 0;
    x
}
