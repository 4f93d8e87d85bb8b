//! Every encoding of four bytes: what it writes when `rd` is `x0` (nothing) and when it is not (what the model says),
//! run, stepped, executed ahead of its issue, and traced.

use emu_hart::bare::{self, Options, Outcome, Program, Streams};
use emu_hart::{Cause, Fault, Isa, Stop};

use crate::{asm, bus, machine, model, random};
use asm::*;
use bus::{DATA, REGISTER};
use machine::{AT, COMPUTING, MODES, Machine, encodings, registers};
use model::{Operands, accessed, rows_of};
use random::Random;

#[test]
fn x0_stays_zero_whatever_is_executed() {
    let mut machine = Machine::new();
    let mut random = Random(1);
    let mut retired = [0_u64; 128];
    // All opcodes of four bytes; those of the system that read only.
    for bits in encodings((3..128).step_by(4), ZERO, A1).chain(encodings([0x73].into_iter(), ZERO, ZERO)) {
        let mut x = registers(&mut random);
        if matches!(bits & 0x7f, 0x03 | 0x23 | 0x2f) {
            x[A1 as usize] = DATA;
        }
        for mode in MODES {
            let Ok((after, _)) = machine.execute(bits, x, mode) else { continue };
            assert_eq!(after[0], 0, "{bits:#010x} ({mode:?}) writes x0");
            assert_eq!(after, x, "{bits:#010x} ({mode:?}) writes a register that it does not name");
            retired[(bits & 0x7f) as usize] += 1;
        }
    }
    // The walk has met instructions of every opcode there is.
    for opcode in [0x03, 0x0b, 0x0f, 0x13, 0x17, 0x1b, 0x23, 0x2b, 0x2f, 0x33, 0x37, 0x3b, 0x5b, 0x63, 0x67, 0x6f, 0x73]
    {
        assert!(retired[opcode] >= 3, "opcode {opcode:#04x}: {}", retired[opcode]);
    }
}

#[test]
fn every_encoding_computes_what_the_model_says() {
    let mut machine = Machine::new();
    let mut random = Random(2);
    let mut names = std::collections::BTreeSet::new();
    for encoding in encodings(COMPUTING.into_iter(), 0, 0) {
        let rows: Vec<_> = rows_of(encoding).collect();
        for _ in 0..4 {
            let mut x = registers(&mut random);
            // The destination is one of the sources now and then, and a source x0.
            let (rs1, rs2, other) = (random.register(), encoding >> 20 & 31, random.register());
            let rd = random.one_of([rs1, rs2, other]);
            let bits = encoding | rd << 7 | rs1 << 15;
            let value = |row: &model::Row| {
                let (a, b) = (x[rs1 as usize], x[rs2 as usize]);
                (row.value)(Operands { a, b, bits, pc: AT })
            };
            let values: Vec<u64> = rows.iter().map(|row| value(row)).collect();
            let results = MODES.map(|mode| machine.execute(bits, x, mode));
            let Some(expected) = values.first() else {
                let illegal = Err(Stop::Fault(Fault::new(Cause::IllegalInstruction, u64::from(bits))));
                assert_eq!(results, [illegal; 3], "{bits:#010x} is in no table");
                continue;
            };
            let name = rows[0].name;
            assert!(values.iter().all(|value| value == expected), "{name} is not what it was in the draft");
            let before = x;
            if rd != 0 {
                x[rd as usize] = *expected;
            }
            for (result, mode) in results.into_iter().zip(MODES) {
                assert_eq!(result, Ok((x, AT + 4)), "{name} ({bits:#010x}, {mode:?}) with {before:x?}");
            }
            names.extend(rows.iter().map(|row| row.name));
        }
    }
    assert!(names.len() >= 100 && machine.ahead > 100_000, "{} ahead, {names:?}", machine.ahead);
}

#[test]
fn every_access_reads_and_writes_what_the_model_says() {
    let mut machine = Machine::new();
    let mut random = Random(3);
    let mut counts = [0; 2];
    for encoding in encodings([0x03, 0x23, 0x2f].into_iter(), 0, A1) {
        let (opcode, rs2) = (encoding & 0x7f, encoding >> 20 & 31);
        let mut x = registers(&mut random);
        // A store's `rd` field is part of its distance.
        let other = random.register();
        let rd = if opcode == 0x23 { other } else { random.one_of([ZERO, A1, rs2, other]) };
        let bits = encoding | rd << 7;
        let distance = match opcode {
            0x03 => i64::from(bits as i32 >> 20),
            0x23 => i64::from((bits as i32 >> 25) << 5 | rd as i32),
            _ => 0,
        };
        let addr = DATA + random.operand() % 8;
        x[A1 as usize] = addr.wrapping_add_signed(-distance);
        let memory = random.operand();
        let expected = accessed(bits, addr, x[rs2 as usize], memory);
        for mode in MODES {
            machine.bus.set_word(DATA, memory);
            let result = machine.execute(bits, x, mode);
            let (registers, word) = match expected {
                None | Some(Err(_)) => {
                    let cause = expected.map_or(Cause::IllegalInstruction, |refused| refused.expect_err("a fault"));
                    let value = if expected.is_none() { u64::from(bits) } else { addr };
                    assert_eq!(result, Err(Stop::Fault(Fault::new(cause, value))), "{bits:#010x} ({mode:?})");
                    (x, memory)
                }
                Some(Ok((value, word))) => {
                    let mut after = x;
                    if let Some(value) = value.filter(|_| rd != 0) {
                        after[rd as usize] = value;
                    }
                    (after, word)
                }
            };
            if let Ok((after, pc)) = result {
                assert_eq!((after, pc), (registers, AT + 4), "{bits:#010x} ({mode:?}) with {x:x?}, {memory:#x}");
            }
            assert_eq!(machine.bus.word(DATA), word, "{bits:#010x} ({mode:?}) with {x:x?}, {memory:#x}");
            counts[usize::from(result.is_ok())] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 10_000) && machine.ahead > 10_000, "{counts:?}, {}", machine.ahead);
}

#[test]
fn every_transfer_goes_and_links_where_the_model_says() {
    let mut machine = Machine::new();
    let mut random = Random(4);
    for encoding in encodings([0x63, 0x67, 0x6f].into_iter(), 0, 0) {
        for _ in 0..3 {
            let mut x = registers(&mut random);
            let (rd, rs1, rs2) = (random.register(), random.register(), encoding >> 20 & 31);
            let bits = encoding | rd << 7 | rs1 << 15;
            if random.next() & 1 == 0 && rs1 != 0 {
                x[rs1 as usize] = x[rs2 as usize];
            }
            let (a, b) = (x[rs1 as usize], x[rs2 as usize]);
            let (opcode, funct3) = (bits & 0x7f, bits >> 12 & 7);
            let field = |from: u32, count: u32, to: u32| i64::from(bits >> from & ((1 << count) - 1)) << to;
            let sign = i64::from(bits as i32 >> 31);
            let next = AT + 4;
            let (links, to) = match (opcode, funct3) {
                (0x6f, _) => (true, Some((sign << 20 | field(12, 8, 12) | field(20, 1, 11) | field(21, 10, 1), AT))),
                (0x67, 0) => (true, Some((i64::from(bits as i32 >> 20), a))),
                (0x63, 0 | 1 | 4..8) => {
                    let taken = match funct3 {
                        0 => a == b,
                        1 => a != b,
                        4 => (a as i64) < b as i64,
                        5 => (a as i64) >= b as i64,
                        6 => a < b,
                        _ => a >= b,
                    };
                    let distance = sign << 12 | field(7, 1, 11) | field(25, 6, 5) | field(8, 4, 1);
                    (false, Some((if taken { distance } else { 4 }, AT)))
                }
                _ => (false, None),
            };
            for mode in MODES {
                let result = machine.execute(bits, x, mode);
                let Some((distance, from)) = to else {
                    let illegal = Stop::Fault(Fault::new(Cause::IllegalInstruction, u64::from(bits)));
                    assert_eq!(result, Err(illegal), "{bits:#010x} ({mode:?})");
                    continue;
                };
                let mut after = x;
                if links && rd != 0 {
                    after[rd as usize] = next;
                }
                let target = from.wrapping_add_signed(distance) & !1;
                assert_eq!(result, Ok((after, target)), "{bits:#010x} ({mode:?}) with {x:x?}");
            }
        }
    }
}

#[test]
fn every_access_to_a_control_register_is_what_the_model_says() {
    let mut machine = Machine::new();
    let mut random = Random(5);
    for round in 0..20_000 {
        let (rd, rs1, funct3) = (random.register(), random.register(), round % 8);
        let (x, old) = (registers(&mut random), random.operand());
        let operand = if funct3 >= 4 { u64::from(rs1) } else { x[rs1 as usize] };
        let exists = !matches!(funct3, 0 | 4);
        for (mode, number) in MODES.into_iter().flat_map(|mode| [(mode, REGISTER), (mode, REGISTER + 1)]) {
            let bits = csr(funct3, rd, u32::from(number), rs1);
            machine.bus.register = old;
            let result = machine.execute(bits, x, mode);
            let mut expected = Err(Stop::Fault(Fault::new(Cause::IllegalInstruction, u64::from(bits))));
            let mut new = old;
            if exists && number == REGISTER {
                let mut after = x;
                after[rd as usize] = if rd == 0 { 0 } else { old };
                expected = Ok((after, AT + 4));
                new = match funct3 % 4 {
                    1 => operand,
                    2 => old | operand,
                    _ => old & !operand,
                };
            }
            assert_eq!((result, machine.bus.register), (expected, new), "{bits:#010x} ({mode:?})");
        }
    }
}

#[test]
fn traced_programs_write_no_x0_either() {
    const BASE: u64 = 0x1_0000;
    // Every encoding that only computes, into x0, of operands that are not zero.
    let mut code: Vec<u32> = (1..32).flat_map(|register| li32(register, register as i32 * -0x0123_4567)).collect();
    code.extend(encodings(COMPUTING.into_iter(), ZERO, A1).filter(|bits| rows_of(*bits).next().is_some()).step_by(7));
    // Register forms without leaving one out: those of which one funct7 has 32 encodings.
    code.extend(
        encodings([0x33, 0x3b].into_iter(), ZERO, A1)
            .filter(|bits| bits >> 20 & 31 == A2 && rows_of(*bits).next().is_some()),
    );
    // x0 as the interpreter finds it.
    code.extend([r(0x33, 6, 0, A0, ZERO, ZERO), addi(A7, ZERO, 93), ECALL]);
    let code = bytes(&code);
    let program = Program { segments: vec![(BASE, &code, code.len() as u64)], entry: BASE, ..Program::default() };
    let mut reports = Vec::new();
    for traced in [false, true] {
        let (mut out, mut err, mut trace) = (Vec::new(), Vec::new(), Vec::new());
        let mut streams = Streams { out: &mut out, err: &mut err, trace: traced.then_some(&mut trace as _) };
        let options = Options { isa: Isa::ALL, ..Options::default() };
        let report = bare::run(&program, &options, &mut streams).expect("the program can be laid out");
        assert_eq!((report.outcome, report.hart.x[0]), (Outcome::Exit(0), 0), "traced: {traced}");
        let trace = String::from_utf8(trace).expect("text");
        assert!(!trace.contains(" x0="));
        assert_eq!(trace.lines().count() as u64, if traced { report.instret } else { 0 });
        reports.push(report);
    }
    assert_eq!(reports[0], reports[1]);
}
