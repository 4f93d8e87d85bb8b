//! Instructions per second of wall time: this hart with a latency table by region, and ckb-vm 0.24 on the same code.
//!
//! `cargo bench -p emu-hart --bench speed -- [--json] [--quick]`. Each figure is the best of several runs, for the
//! disturbances of a shared machine only ever slow a run down.

use std::process::ExitCode;
use std::time::Instant;

use ckb_vm::machine::VERSION2;
use ckb_vm::{
    Bytes, CoreMachine, DefaultCoreMachine, DefaultMachine, DefaultMachineBuilder, DefaultMachineRunner, FlatMemory,
    ISA_A, ISA_B, ISA_IMC, Memory, RISCV_MAX_MEMORY, SupportMachine, TraceMachine,
};
use emu_hart::{Bus, Fault, Hart, Limits, Step, Stop, Text, Width};

#[path = "../tests/common/mod.rs"]
mod asm;
use asm::*;

const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;
const MEMORY_BYTES: usize = 0x40_0000;

/// Memory in which each 64 KiB region has a load and a store latency of its own.
struct RegionBus {
    memory: Vec<u8>,
    load_cycles: [u32; MEMORY_BYTES >> 16],
    store_cycles: [u32; MEMORY_BYTES >> 16],
}

impl RegionBus {
    fn new(code: &[u8]) -> Self {
        let mut memory = vec![0; MEMORY_BYTES];
        memory[CODE as usize..CODE as usize + code.len()].copy_from_slice(code);
        let mut bus = RegionBus { memory, load_cycles: [3; _], store_cycles: [1; _] };
        bus.load_cycles[(DATA >> 16) as usize] = 11;
        bus
    }
}

impl Bus for RegionBus {
    #[inline(always)]
    fn load(&mut self, addr: u64, width: Width, cycles: &mut u64) -> Result<u64, Fault> {
        let at = addr as usize;
        let value = match width {
            Width::B1 => self.memory.get(at).map(|&byte| u64::from(byte)),
            Width::B2 => read(&self.memory, at).map(|b| u64::from(u16::from_le_bytes(b))),
            Width::B4 => read(&self.memory, at).map(|b| u64::from(u32::from_le_bytes(b))),
            Width::B8 => read(&self.memory, at).map(u64::from_le_bytes),
        };
        let value = value.ok_or(Fault::load_access(addr))?;
        *cycles += u64::from(self.load_cycles[(at >> 16) % self.load_cycles.len()]);
        Ok(value)
    }

    #[inline(always)]
    fn store(&mut self, addr: u64, width: Width, value: u64, cycles: &mut u64) -> Result<(), Fault> {
        let at = addr as usize;
        let len = width.bytes() as usize;
        let target =
            at.checked_add(len).and_then(|end| self.memory.get_mut(at..end)).ok_or(Fault::store_access(addr))?;
        target.copy_from_slice(&value.to_le_bytes()[..len]);
        *cycles += u64::from(self.store_cycles[(at >> 16) % self.store_cycles.len()]);
        Ok(())
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        read(&self.memory, addr as usize).map(u16::from_le_bytes).ok_or(Fault::instruction_access(addr))
    }

    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        cycles_now
    }
}

#[inline(always)]
fn read<const N: usize>(memory: &[u8], at: usize) -> Option<[u8; N]> {
    memory.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A program that repeats a loop `rounds` times and then makes an `exit` call.
struct Program {
    name: &'static str,
    code: Vec<u32>,
    instructions: u64,
}

impl Program {
    fn new(name: &'static str, rounds: u32, body: &[u32]) -> Self {
        let mut code = Vec::new();
        code.extend(li32(S0, rounds as i32));
        code.extend(li32(A0, DATA as i32));
        code.extend(li32(A5, 0x1234_5678));
        code.extend_from_slice(body);
        code.push(addi(S0, S0, -1));
        code.push(bne(S0, ZERO, -4 * (body.len() as i32 + 1)));
        code.extend([addi(A0, ZERO, 0), addi(A7, ZERO, 93), ECALL]);
        let instructions = 6 + u64::from(rounds) * (body.len() as u64 + 2) + 2;
        Program { name, code, instructions }
    }

    /// Dependent and independent arithmetic, as in address and immediate computations.
    fn alu(rounds: u32) -> Self {
        let body = [
            add(A1, A1, A5),
            r(0x33, 4, 0, A2, A2, A1),
            i(0x13, 1, A3, A1, 7),
            i(0x13, 5, A4, A2, 9),
            r(0x33, 0, 0x20, A1, A4, A3),
            i(0x13, 7, T0, A1, 0x7f),
            r(0x33, 6, 0, T1, T0, A2),
            addi(A5, A5, 13),
        ];
        Program::new("alu", rounds, &body)
    }

    /// Loads and stores of all widths, address arithmetic between them.
    fn load_store(rounds: u32) -> Self {
        let body = [
            ld(A1, A0, 0),
            add(A1, A1, A5),
            sd(A1, A0, 8),
            lw(A2, A0, 16),
            r(0x33, 4, 0, A3, A2, A1),
            sw(A3, A0, 24),
            i(0x03, 4, T0, A0, 33),
            s(0, A0, T0, 40),
        ];
        Program::new("load-store", rounds, &body)
    }

    fn bytes(&self) -> Vec<u8> {
        bytes(&self.code)
    }
}

/// Runs `harts` harts in turns of `turn` instructions until `instructions` have retired in all; gives million per
/// second.
fn ours(program: &Program, harts: usize, turn: u64) -> f64 {
    let code = program.bytes();
    let mut bus = RegionBus::new(&code);
    let mut text = Text::new(CODE, code.len() as u64);
    let mut all = vec![Hart::new(CODE); harts];
    let target = program.instructions;
    let mut retired = 0;
    let began = Instant::now();
    if harts == 1 {
        let stop = all[0].run(&mut text, &mut bus, &Limits { instructions: turn, cycles: u64::MAX, gap_cycles: 1 });
        assert_eq!(stop, Stop::Ecall, "the benchmark program did not end with its exit call");
        retired = all[0].instret;
        assert_eq!(retired, target);
    } else {
        while retired < target {
            for hart in &mut all {
                let limits = Limits { instructions: turn, cycles: u64::MAX, gap_cycles: 1 };
                let stop = hart.run(&mut text, &mut bus, &limits);
                assert_eq!(stop, Stop::Instructions, "a hart left its loop");
                retired += turn;
            }
        }
    }
    retired as f64 / began.elapsed().as_secs_f64() / 1e6
}

/// The same, one [`Hart::burst`] a turn: an instruction and up to `ahead` plain ones.
fn bursts(program: &Program, harts: usize, ahead: u32) -> f64 {
    let code = program.bytes();
    let mut bus = RegionBus::new(&code);
    let mut text = Text::new(CODE, code.len() as u64);
    let mut all = vec![Hart::new(CODE); harts];
    let mut retired = 0;
    let began = Instant::now();
    while retired < program.instructions {
        for hart in &mut all {
            let (step, ahead) = hart.burst(&mut text, &mut bus, ahead, 64);
            assert!(matches!(step, Step::Retired(_)), "a hart left its loop");
            retired += 1 + u64::from(ahead.count);
        }
    }
    retired as f64 / began.elapsed().as_secs_f64() / 1e6
}

type CkbCore = DefaultCoreMachine<u64, FlatMemory<u64>>;

fn ckb_machine(program: &Program) -> DefaultMachine<CkbCore> {
    let core = CkbCore::new_with_memory(ISA_IMC | ISA_A | ISA_B, VERSION2, u64::MAX, RISCV_MAX_MEMORY);
    // One cycle an instruction: the least that counts them.
    let mut machine = DefaultMachineBuilder::new(core).instruction_cycle_func(Box::new(|_| 1)).build();
    let code = Bytes::from(program.bytes());
    machine.memory_mut().store_bytes(CODE, &code).expect("the code fits in memory");
    machine.update_pc(CODE);
    machine.commit_pc();
    machine
}

fn ckb_interpreter(program: &Program) -> f64 {
    let mut machine = ckb_machine(program);
    let began = Instant::now();
    let exit = machine.run().expect("the program runs");
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!((exit, machine.cycles()), (0, program.instructions + 1));
    program.instructions as f64 / seconds / 1e6
}

fn ckb_trace(program: &Program) -> f64 {
    let mut machine = TraceMachine::new(ckb_machine(program));
    let began = Instant::now();
    let exit = DefaultMachineRunner::run(&mut machine).expect("the program runs");
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!((exit, machine.machine.cycles()), (0, program.instructions + 1));
    program.instructions as f64 / seconds / 1e6
}

struct Figure {
    executor: String,
    program: &'static str,
    mips: f64,
    ratio: f64,
}

fn main() -> ExitCode {
    let mut json = false;
    let mut rounds = 6_000_000;
    let mut repeats = 5;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            "--quick" => (rounds, repeats) = (300_000, 2),
            // What cargo passes to every benchmark.
            "--bench" => {}
            other => {
                eprintln!("unknown argument {other}; known are --json and --quick");
                return ExitCode::from(2);
            }
        }
    }

    let mut figures = Vec::new();
    for make in [Program::alu, Program::load_store] {
        let program = make(rounds);
        let slow = make(rounds / 4);
        let best = |run: &dyn Fn() -> f64| (0..repeats).map(|_| run()).fold(0.0, f64::max);
        let reference = best(&|| ckb_interpreter(&slow));
        let mut add = |executor: String, mips: f64| {
            figures.push(Figure { executor, program: program.name, mips, ratio: mips / reference });
        };
        add("ckb-vm 0.24 interpreter".into(), reference);
        add("ckb-vm 0.24 trace".into(), best(&|| ckb_trace(&slow)));
        add("emu-hart, 1 hart".into(), best(&|| ours(&program, 1, u64::MAX)));
        for (harts, turn) in [(16, 1), (16, 32), (16, 256), (256, 1), (256, 32), (256, 256)] {
            let name = format!("emu-hart, {harts} harts, {turn} per turn");
            add(name, best(&|| ours(&program, harts, turn)));
        }
        for harts in [16, 256] {
            add(format!("emu-hart, {harts} harts, stepped"), best(&|| bursts(&program, harts, 0)));
            add(format!("emu-hart, {harts} harts, bursts"), best(&|| bursts(&program, harts, 63)));
        }
    }

    if json {
        let rows: Vec<String> = figures
            .iter()
            .map(|f| {
                format!(
                    "  {{\"executor\": \"{}\", \"program\": \"{}\", \"mips\": {:.1}, \"ratio_to_ckb_vm_interpreter\": \
                     {:.2}}}",
                    f.executor, f.program, f.mips, f.ratio
                )
            })
            .collect();
        println!("[\n{}\n]", rows.join(",\n"));
    } else {
        println!("measured: million instructions per second of wall time, one thread, best of {repeats}");
        println!("{:<34} {:<11} {:>8} {:>8}", "executor", "program", "MIPS", "ratio");
        for f in &figures {
            println!("{:<34} {:<11} {:>8.1} {:>7.2}x", f.executor, f.program, f.mips, f.ratio);
        }
    }
    ExitCode::SUCCESS
}
