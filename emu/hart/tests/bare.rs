//! Whole bare-metal programs: exit conventions, traps, system calls, arguments, trace.

use emu_hart::bare::{self, BareError, Board, Options, Outcome, Program, Report, Streams};
use emu_hart::{Cause, Fault, Isa};
use flexcast_isa::Extension;

use crate::asm;
use asm::*;

const BASE: u64 = 0x8000_0000;
const TOHOST: u64 = BASE + 0x1000;
const MSTATUS: u32 = 0x300;
const MTVEC: u32 = 0x305;
const MSCRATCH: u32 = 0x340;
const MEPC: u32 = 0x341;
const MCAUSE: u32 = 0x342;
const MTVAL: u32 = 0x343;

struct Run {
    report: Report,
    out: String,
    err: String,
    trace: String,
}

fn run_with(code: &[u32], arguments: &[&str], options: &Options, traced: bool) -> Run {
    let code = bytes(code);
    let program = Program {
        segments: vec![(BASE, &code, 0x1000), (TOHOST, &[], 0x1000)],
        entry: BASE,
        tohost: Some(TOHOST),
        arguments: arguments.iter().map(ToString::to_string).collect(),
        dump: Some((TOHOST, 16)),
    };
    let (mut out, mut err, mut trace) = (Vec::new(), Vec::new(), Vec::new());
    let mut streams = Streams { out: &mut out, err: &mut err, trace: if traced { Some(&mut trace) } else { None } };
    let report = bare::run(&program, options, &mut streams).expect("the program can be laid out");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { report, out: text(out), err: text(err), trace: text(trace) }
}

fn run(code: &[u32]) -> Run {
    run_with(code, &[], &Options::default(), false)
}

/// `rd` = the address `distance` bytes after this instruction.
fn here(rd: u32, distance: i32) -> [u32; 2] {
    [auipc(rd, 0), addi(rd, rd, distance)]
}

fn exit_with(register: u32) -> [u32; 3] {
    [addi(A0, register, 0), addi(A7, ZERO, 93), ECALL]
}

#[test]
fn exit_call_ends_the_run_with_its_code() {
    let run = run(&[addi(A0, ZERO, 42), addi(A7, ZERO, 93), ECALL]);
    assert_eq!(run.report.outcome, Outcome::Exit(42));
    assert_eq!((run.report.instret, run.report.cycles), (3, 3));
}

#[test]
fn tohost_reports_success_failure_and_host_requests() {
    for (value, outcome) in
        [(1, Outcome::Exit(0)), (3, Outcome::Exit(1)), (1337, Outcome::Exit(668)), (64, Outcome::HostRequest(64))]
    {
        let run = run(&[addi(A0, ZERO, value), auipc(A1, 1), sw(ZERO, A1, -4), sw(A0, A1, -4), jal(ZERO, 0)]);
        assert_eq!(run.report.outcome, outcome);
        assert_eq!(run.report.instret, 4);
    }
}

#[test]
fn the_limit_ends_a_program_that_loops_traps_or_sleeps() {
    let options = Options { instructions: 1000, ..Options::default() };
    let run = run_with(&[jal(ZERO, 0)], &[], &options, false);
    assert_eq!((run.report.outcome, run.report.instret), (Outcome::Limit, 1000));
    let run = run_with(&[WFI, jal(ZERO, -4)], &[], &options, false);
    assert_eq!((run.report.outcome, run.report.instret), (Outcome::Limit, 1000));
    // A handler that is not there: each attempt to enter it is a trap.
    let run = run_with(&[addi(A0, ZERO, 0x100), csr(1, ZERO, MTVEC, A0), ECALL], &[], &options, false);
    assert_eq!((run.report.outcome, run.report.instret), (Outcome::Limit, 2));
}

#[test]
fn output_goes_to_its_stream() {
    let mut code = here(A1, 4 * 12).to_vec();
    code.extend([
        addi(A0, ZERO, 1),
        addi(A2, ZERO, 4),
        addi(A7, ZERO, 64),
        ECALL,
        addi(S0, A0, 0),
        addi(A0, ZERO, 2),
        addi(A2, ZERO, 2),
        ECALL,
        addi(A7, ZERO, 93),
        ECALL,
    ]);
    code.push(u32::from_le_bytes(*b"hey\n"));
    let run = run(&code);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("hey\n", "he"));
    assert_eq!(run.report.hart.x[S0 as usize], 4);
    assert_eq!(run.report.outcome, Outcome::Exit(2));
}

#[test]
fn system_calls_that_fail_return_their_error_number() {
    let result = |fd, addr: u32, number| {
        let code = [
            addi(A0, ZERO, fd),
            addi(A1, addr, 0),
            addi(A2, ZERO, 8),
            addi(A7, ZERO, number),
            ECALL,
            addi(S0, A0, 0),
            addi(A7, ZERO, 93),
            ECALL,
        ];
        run(&code).report.hart.x[S0 as usize] as i64
    };
    assert_eq!(result(3, SP, 64), -9);
    assert_eq!(result(1, ZERO, 64), -14);
    assert_eq!(result(1, SP, 999), -38);
}

#[test]
fn brk_moves_within_the_heap() {
    let mut code = vec![addi(A0, ZERO, 0), addi(A7, ZERO, 214), ECALL, addi(S0, A0, 0)];
    code.extend([addi(A0, S0, 64), ECALL, addi(S1, A0, 0), sd(A7, S0, 56), ld(A3, S0, 56)]);
    code.extend([addi(A0, ZERO, 5), ECALL, addi(A4, A0, 0)]);
    code.extend(exit_with(ZERO));
    let run = run(&code);
    let x = run.report.hart.x;
    assert_eq!(run.report.outcome, Outcome::Exit(0));
    assert_eq!(x[S0 as usize], BASE + 0x2000);
    assert_eq!(x[S1 as usize], BASE + 0x2000 + 64);
    assert_eq!(x[A3 as usize], 214);
    assert_eq!(x[A4 as usize], BASE + 0x2000 + 64, "a refused brk returns where it stands");
}

#[test]
fn arguments_lie_on_the_stack_as_linux_lays_them() {
    let mut code = vec![ld(S0, SP, 0), ld(A1, SP, 16), ld(S1, SP, 24), addi(A0, ZERO, 1), addi(A2, ZERO, 5)];
    code.extend([addi(A7, ZERO, 64), ECALL]);
    code.extend(exit_with(S0));
    let run = run_with(&code, &["prog", "hello"], &Options::default(), false);
    assert_eq!(run.out, "hello");
    assert_eq!(run.report.outcome, Outcome::Exit(2));
    assert_eq!(run.report.hart.x[S1 as usize], 0);
    assert_eq!(run.report.hart.x[SP as usize] % 16, 0);

    let run = run_with(&code[..1], &[], &Options { instructions: 1, ..Options::default() }, false);
    assert_eq!((run.report.outcome, run.report.hart.x[S0 as usize]), (Outcome::Limit, 0));
}

/// Sets a handler that notes cause, trap value and address, skips the instruction, and returns; then runs `body`.
fn trapping(body: &[u32]) -> Report {
    // handler: s0 = cause, s1 = tval, a5 = pc of the trap
    let handler = [
        csr(2, S0, MCAUSE, 0),
        csr(2, S1, MTVAL, 0),
        csr(2, A5, MEPC, 0),
        addi(T2, A5, 4),
        csr(1, ZERO, MEPC, T2),
        MRET,
    ];
    let mut code = here(T0, 16).to_vec();
    code.push(csr(1, ZERO, MTVEC, T0));
    code.push(jal(ZERO, 4 + 4 * handler.len() as i32));
    code.extend(handler);
    code.extend_from_slice(body);
    // The handler catches the exit call too, so the end is written to tohost.
    code.extend(here(A1, 0));
    let at = 4 * (code.len() as i32 - 2);
    code.extend([lui(A2, 1), add(A1, A1, A2), addi(A0, ZERO, 1), sd(A0, A1, -at)]);
    let run = run(&code);
    assert_eq!(run.report.outcome, Outcome::Exit(0));
    run.report
}

#[test]
fn traps_go_to_the_programs_handler_with_cause_value_and_address() {
    let at = BASE + 4 * (4 + 6);
    let misaligned = u64::from(Cause::LoadMisaligned as u8);
    for (insn, cause, tval) in [
        (ECALL, 11, 0),
        (EBREAK, 3, at),
        (0xffff_ffff, 2, 0xffff_ffff),
        (lw(A0, ZERO, 1), misaligned, 1),
        (lw(A0, ZERO, 0), 5, 0),
        (sw(A0, ZERO, 0), 7, 0),
        (sw(A0, ZERO, 2), 6, 2),
        (csr(1, A0, 0xc00, A1), 2, u64::from(csr(1, A0, 0xc00, A1))),
    ] {
        let x = trapping(&[insn]).hart.x;
        assert_eq!((x[S0 as usize], x[S1 as usize], x[A5 as usize]), (cause, tval, at), "{insn:#010x}");
    }
}

#[test]
fn user_mode_is_entered_by_mret_and_left_by_a_trap() {
    let mut body = here(T0, 20).to_vec();
    body.extend([csr(1, ZERO, MEPC, T0), csr(1, ZERO, MSTATUS, ZERO), MRET]);
    // In user mode: ecall has its own cause, and the handler returns here.
    body.push(ECALL);
    let x = trapping(&body).hart.x;
    assert_eq!(x[S0 as usize], 8);

    // mret outside machine mode is illegal, and so is what belongs to that mode.
    for illegal in [MRET, csr(2, A3, MSTATUS, 0), csr(1, ZERO, MSCRATCH, A3), csr(2, A3, 0xf14, 0)] {
        *body.last_mut().unwrap() = illegal;
        let x = trapping(&body).hart.x;
        assert_eq!((x[S0 as usize], x[S1 as usize]), (2, u64::from(illegal)));
    }
}

/// Reads, and writes, every control and status register there is a number for.
#[test]
fn a_register_that_is_not_there_traps_and_one_that_is_reads_and_writes() {
    // Of a hart with machine mode and user mode, and no event counters: RISC-V privileged architecture 1.12, table of
    // registers.
    let mut there: Vec<u32> = vec![0xc00, 0xc01, 0xc02, 0xf11, 0xf12, 0xf13, 0xf14, 0xf15];
    there.extend([0x300, 0x301, 0x304, 0x305, 0x306, 0x30a, 0x320, 0x340, 0x341, 0x342, 0x343, 0x344, 0xb00, 0xb02]);
    there.extend((0x323..0x340).chain(0xb03..0xb20));
    for number in 0..4096 {
        let (reads, writes) = (csr(2, A3, number, 0), csr(1, A3, number, A4));
        for (insn, is_legal) in [(reads, true), (writes, number >> 10 != 3)] {
            let is_legal = is_legal && there.contains(&number);
            let code = [insn, addi(A7, ZERO, 93), addi(A0, ZERO, 7), ECALL];
            let run = run_with(&code, &[], &Options { heap_bytes: 0, stack_bytes: 64, ..Options::default() }, false);
            let expected = if is_legal {
                Outcome::Exit(7)
            } else {
                Outcome::Fault { pc: BASE, fault: Fault::illegal_instruction(insn) }
            };
            assert_eq!(run.report.outcome, expected, "{number:#x}, {insn:#010x}");
        }
    }
}

#[test]
fn fields_hold_what_the_hart_has() {
    let all = |number| {
        let mut code = vec![addi(A1, ZERO, -1), csr(1, ZERO, number, A1), csr(2, S0, number, 0)];
        code.extend(exit_with(ZERO));
        run(&code).report.hart.x[S0 as usize]
    };
    // Interrupt enables, previous privilege, privilege of accesses; user mode is 64 bits wide; no floating point, no
    // supervisor.
    assert_eq!(all(MSTATUS), 1 << 3 | 1 << 7 | 3 << 11 | 1 << 17 | 2 << 32);
    assert_eq!(all(0x306), 7, "the counters are always readable from user mode");
    for number in [0x30a, 0x320, 0x323, 0x344, 0xb03] {
        assert_eq!(all(number), 0, "{number:#x}");
    }
    // Without the compressed instructions their letter is not there.
    let mut code = vec![csr(2, S0, 0x301, 0)];
    code.extend(exit_with(ZERO));
    let isa = Isa::BLUEFIELD_3.without(Extension::C);
    let x = run_with(&code, &[], &Options { isa, ..Options::default() }, false).report.hart.x;
    assert_eq!(x[S0 as usize], 2 << 62 | 1 << 20 | 1 << 12 | 1 << 8 | 1);
}

#[test]
fn instructions_of_other_extensions_trap_and_those_of_the_set_do_not() {
    let cases: [(u32, Extension); 4] = [
        (r(0x33, 2, 0x10, A0, A1, A2), Extension::Zba), // sh1add
        (r(0x33, 5, 0x34, A0, A1, A2), Extension::Zbp), // grev
        (i(0x13, 1, A0, A1, 0x610), Extension::Zbr),    // crc32.b
        (r(0x33, 0, 0x01, A0, A1, A2), Extension::M),   // mul
    ];
    for (insn, extension) in cases {
        let code = [insn, addi(A0, ZERO, 7), addi(A7, ZERO, 93), ECALL];
        let outcome = |isa| run_with(&code, &[], &Options { isa, ..Options::default() }, false).report.outcome;
        assert_eq!(outcome(Isa::ALL), Outcome::Exit(7));
        let illegal = Outcome::Fault { pc: BASE, fault: Fault::illegal_instruction(insn) };
        assert_eq!(outcome(Isa::ALL.without(extension)), illegal);
        // By default the hart is the emulated DPA's.
        let of_dpa = if extension == Extension::Zba { illegal } else { Outcome::Exit(7) };
        assert_eq!(run(&code).report.outcome, of_dpa);
    }
}

#[test]
fn memory_is_dumped_as_the_program_left_it() {
    let mut code = vec![addi(A0, ZERO, -2), auipc(A1, 1), sw(A0, A1, 4)];
    code.extend(exit_with(ZERO));
    let dump = run(&code).report.dump;
    assert_eq!(dump, [0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    for (base, len) in [(TOHOST + 0xff8, 0x1_0000_0000), (8, 8), (u64::MAX - 3, 8)] {
        let segments = vec![(BASE, &[0x73, 0, 0, 0][..], 0x1000), (TOHOST, &[], 0x1000)];
        let program = Program { segments, entry: BASE, dump: Some((base, len)), ..Program::default() };
        let mut streams = Streams { out: &mut Vec::new(), err: &mut Vec::new(), trace: None };
        let error = bare::run(&program, &Options::default(), &mut streams).expect_err("refused").to_string();
        assert!(error.contains(&format!("{base:#x}")), "{error}");
    }
}

#[test]
fn machine_registers_hold_what_is_written() {
    let mut code = vec![
        addi(A1, ZERO, 0b1100),
        csr(1, ZERO, MSCRATCH, A1),  // write
        csr(6, A2, MSCRATCH, 0b11),  // set by immediate
        csr(7, A3, MSCRATCH, 0b100), // clear by immediate
        csr(2, A4, MSCRATCH, 0),
        csr(2, A5, 0xf14, 0), // mhartid
        csr(2, S1, 0x301, 0), // misa
        addi(T0, ZERO, 1000),
        csr(1, ZERO, 0xb02, T0), // minstret
        csr(2, T1, 0xb02, 0),
        csr(2, T2, 0xc02, 0),    // instret, which shows the same counter
        csr(1, ZERO, 0xb00, T0), // mcycle
        csr(2, A0, 0xc00, 0),    // cycle
        addi(S0, A0, 0),
    ];
    code.extend(exit_with(ZERO));
    let x = run(&code).report.hart.x;
    assert_eq!([x[A2 as usize], x[A3 as usize], x[A4 as usize]], [0b1100, 0b1111, 0b1011]);
    assert_eq!((x[A5 as usize], x[T1 as usize]), (0, 1000));
    assert_eq!((x[T2 as usize], x[S0 as usize]), (1001, 1000));
    assert_eq!(x[S1 as usize] >> 62, 2);
    for letter in "acimu".bytes() {
        assert_eq!(x[S1 as usize] >> (letter - b'a') & 1, 1);
    }
    // mhartid is read-only.
    let refused = csr(1, ZERO, 0xf14, A1);
    let outcome = Outcome::Fault { pc: BASE, fault: Fault::illegal_instruction(refused) };
    assert_eq!(run(&[refused]).report.outcome, outcome);
}

#[test]
fn a_fault_without_a_handler_ends_the_run() {
    let run = run(&[NOP, ld(A0, ZERO, 8)]);
    assert_eq!(run.report.outcome, Outcome::Fault { pc: BASE + 4, fault: Fault::load_access(8) });
    assert_eq!(run.report.instret, 1);
}

#[test]
fn the_trace_names_each_instruction_and_what_it_wrote() {
    let code = [addi(A0, ZERO, 5), sw(A0, SP, 0), addi(A0, A0, 0), addi(A7, ZERO, 93), ECALL];
    let run = run_with(&code, &[], &Options::default(), true);
    let expected = format!(
        "0x0000000080000000 {:08x} x10=0x0000000000000005\n\
         0x0000000080000004 {:08x}\n\
         0x0000000080000008 {:08x} x10=0x0000000000000005\n\
         0x000000008000000c {:08x} x17=0x000000000000005d\n\
         0x0000000080000010 00000073 (Ecall)\n",
        code[0], code[1], code[2], code[3]
    );
    assert_eq!(run.trace, expected);
}

#[test]
fn programs_that_cannot_be_laid_out_are_refused() {
    let run = |segments: Vec<(u64, &[u8], u64)>, options: &Options, arguments: Vec<String>| {
        let program = Program { segments, entry: BASE, arguments, ..Program::default() };
        let mut streams = Streams { out: &mut Vec::new(), err: &mut Vec::new(), trace: None };
        bare::run(&program, options, &mut streams).expect_err("must be refused")
    };
    let options = Options::default();
    assert!(matches!(run(vec![], &options, vec![]), BareError::NoSegments { entry: BASE }));
    assert!(matches!(run(vec![(BASE, &[], 0)], &options, vec![]), BareError::NoSegments { .. }));
    assert!(matches!(
        run(vec![(BASE, &[0; 8], 4)], &options, vec![]),
        BareError::SegmentTooShort { bytes: 8, len: 4, .. }
    ));
    assert!(matches!(run(vec![(u64::MAX - 3, &[], 8)], &options, vec![]), BareError::SegmentWraps { len: 8, .. }));
    let overlapping = run(vec![(BASE + 8, &[], 8), (BASE, &[], 9)], &options, vec![]);
    assert!(matches!(overlapping, BareError::SegmentsOverlap { first: BASE, second } if second == BASE + 8));
    assert!(matches!(run(vec![(BASE, &[], 1 << 60)], &options, vec![]), BareError::TooLarge { .. }));
    // Segments at both ends of the address space.
    let ends: Vec<(u64, &[u8], u64)> = vec![(0, &[], 16), (u64::MAX - 16, &[], 16)];
    assert!(matches!(run(ends, &options, vec![]), BareError::NoRoomForStack { .. }));
    let small = Options { stack_bytes: 64, ..options };
    let refused = run(vec![(BASE, &[], 16)], &small, vec!["a".repeat(100)]);
    assert!(matches!(refused, BareError::ArgumentsTooLong { available: 64, .. }));
    assert!(refused.to_string().contains("raise its size"), "{refused}");
}

#[test]
fn a_stream_that_fails_is_reported() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let code = bytes(&[addi(A0, ZERO, 1), addi(A1, SP, 0), addi(A2, ZERO, 4), addi(A7, ZERO, 64), ECALL]);
    let program = Program { segments: vec![(BASE, &code, 32)], entry: BASE, ..Program::default() };
    let mut streams = Streams { out: &mut Full, err: &mut Vec::new(), trace: None };
    let refused = bare::run(&program, &Options::default(), &mut streams);
    assert!(matches!(refused, Err(BareError::Stream { stream: "output", .. })));
}

#[test]
fn a_stack_below_the_program_serves_where_none_fits_above() {
    let base = u64::MAX - 0xffff;
    let code = bytes(&[sd(A7, SP, 0), addi(A0, ZERO, 3), addi(A7, ZERO, 93), ECALL]);
    let program = Program { segments: vec![(base, &code, 0x1_0000 - 1)], entry: base, ..Program::default() };
    let mut streams = Streams { out: &mut Vec::new(), err: &mut Vec::new(), trace: None };
    let report = bare::run(&program, &Options::default(), &mut streams).unwrap();
    assert_eq!(report.outcome, Outcome::Exit(3));
    assert!(report.hart.x[SP as usize] < base);
}

#[test]
fn the_virt_machine_has_a_serial_port_and_a_power_switch() {
    let options = Options { board: Board::Virt, ..Options::default() };
    let mut code = vec![lui(A1, 0x10000)];
    for byte in b"ok" {
        code.extend([i(0x03, 4, A0, A1, 5), addi(A0, ZERO, i32::from(*byte)), s(0, A1, A0, 0)]); // lbu, addi, sb
    }
    code.extend([lui(A1, 0x100), lui(A0, 0x73), addi(A0, A0, 0x333), sw(A0, A1, 0), jal(ZERO, 0)]);
    let run = run_with(&code, &[], &options, false);
    // 0x73333: failed, code 7.
    assert_eq!((run.report.outcome, run.out.as_str()), (Outcome::Exit(7), "ok"));
    assert_eq!(run.report.instret, 11, "the switch ends the run at once");

    // The end of its RAM is a fault, and so is a program that is linked elsewhere.
    let run = run_with(&[auipc(A1, 0x8000), lw(A0, A1, 0)], &[], &options, false);
    assert!(matches!(run.report.outcome, Outcome::Fault { .. }), "{:?}", run.report.outcome);
    let program = Program { segments: vec![(0x1000, &[0x13, 0, 0, 0], 4)], entry: 0x1000, ..Program::default() };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let error = bare::run(&program, &options, &mut Streams { out: &mut out, err: &mut err, trace: None })
        .expect_err("a program outside the RAM")
        .to_string();
    assert!(error.contains("0x1000") && error.contains("0x80000000") && error.contains("link it there"), "{error}");
}
