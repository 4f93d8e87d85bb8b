//! Control flow, memory, traps, atomics, counters, limits and changing code.

use emu_hart::{Bus as _, Cause, Fault, Hart, Isa, Limits, Stop, Text};
use flexcast_isa::Extension;
use proptest::prelude::*;

use crate::{asm, bus};
use asm::*;
use bus::{CODE, DATA, DOORBELL, Fixture, READ_ONLY, SIZE};

/// Runs into a fault and checks that the instruction at `at` has changed nothing.
fn faults(mut fixture: Fixture, at: u64, cause: Cause, tval: u64) {
    let retired = fixture.run(&Limits::instructions((at - CODE) / 4));
    assert!(at == CODE || retired == Stop::Instructions);
    let (hart, memory) = (fixture.hart.clone(), fixture.bus.memory.clone());
    assert_eq!(fixture.go(), Stop::Fault(Fault { cause, tval }));
    assert_eq!(fixture.hart, hart, "the faulting instruction changed the hart");
    assert_eq!(fixture.hart.pc, at);
    assert!(fixture.bus.memory == memory, "the faulting instruction changed memory");
}

#[test]
fn loads_extend_as_they_should() {
    let value = 0x8182_8384_8586_8788;
    let expected: [(u32, i32, u64); 8] = [
        (0, 0, 0xffff_ffff_ffff_ff88),
        (4, 1, 0x87),
        (1, 2, 0xffff_ffff_ffff_8586),
        (5, 6, 0x8182),
        (2, 4, 0xffff_ffff_8182_8384),
        (6, 4, 0x8182_8384),
        (3, 0, value),
        (3, -8, 0),
    ];
    for (funct3, offset, result) in expected {
        let mut fixture = Fixture::new(&[i(0x03, funct3, A0, A1, offset), ECALL]);
        fixture.bus.set_word(DATA, value);
        fixture.hart.x[11] = DATA;
        assert_eq!(fixture.go(), Stop::Ecall);
        assert_eq!(fixture.hart.x[10], result, "funct3 {funct3} offset {offset}");
    }
}

#[test]
fn stores_write_their_width_only() {
    for (funct3, offset, expected) in [
        (0, 1, 0xffff_ffff_ffff_88ffu64),
        (1, 2, 0xffff_ffff_8788_ffff),
        (2, 4, 0x8586_8788_ffff_ffff),
        (3, 0, 0x8182_8384_8586_8788),
    ] {
        let mut fixture = Fixture::new(&[s(funct3, A1, A2, offset), ECALL]);
        fixture.bus.set_word(DATA, u64::MAX);
        fixture.hart.x[11] = DATA;
        fixture.hart.x[12] = 0x8182_8384_8586_8788;
        assert_eq!(fixture.go(), Stop::Ecall);
        assert_eq!(fixture.bus.word(DATA), expected);
    }
}

#[test]
fn misaligned_accesses_fault_with_the_address() {
    for (funct3, bytes) in [(1, 2), (2, 4), (3, 8), (5, 2), (6, 4)] {
        for rd in [A0, ZERO] {
            for off in 1..bytes {
                let mut fixture = Fixture::new(&[i(0x03, funct3, rd, A1, off), ECALL]);
                fixture.hart.x[11] = DATA;
                faults(fixture, CODE, Cause::LoadMisaligned, DATA + off as u64);
            }
        }
    }
    for (funct3, bytes) in [(1, 2), (2, 4), (3, 8)] {
        for off in 1..bytes {
            let mut fixture = Fixture::new(&[s(funct3, A1, A2, off), ECALL]);
            fixture.hart.x[11] = DATA;
            faults(fixture, CODE, Cause::StoreMisaligned, DATA + off as u64);
        }
    }
    for (funct5, cause) in [(2, Cause::LoadMisaligned), (3, Cause::StoreMisaligned), (0, Cause::StoreMisaligned)] {
        for (funct3, off) in [(2, 2), (3, 4)] {
            let mut fixture = Fixture::new(&[amo(funct5, funct3, A0, A1, 0), ECALL]);
            fixture.hart.x[11] = DATA + off;
            faults(fixture, CODE, cause, DATA + off);
        }
    }
}

#[test]
fn absent_and_read_only_memory_faults() {
    let far = 0xffff_ffff_ffff_fff8;
    for (insn, addr, cause) in [
        (ld(A0, A1, 0), far, Cause::LoadAccess),
        (ld(ZERO, A1, 0), far, Cause::LoadAccess),
        (sd(A2, A1, 0), far, Cause::StoreAccess),
        (amo(2, 3, A0, A1, 0), far, Cause::LoadAccess),
        // The load of an atomic operation is allowed here, its store is not; and a fault of the load is a store fault.
        (amo(0, 3, A0, A1, A2), READ_ONLY, Cause::StoreAccess),
        (amo(0, 3, A0, A1, A2), far, Cause::StoreAccess),
    ] {
        let mut fixture = Fixture::new(&[NOP, insn, ECALL]);
        fixture.bus.load_cycles = 5;
        fixture.hart.x[10] = 77;
        fixture.hart.x[11] = addr;
        faults(fixture, CODE + 4, cause, addr);
    }
}

#[test]
fn illegal_instructions_report_their_bits() {
    for bits in [
        0xffff_ffffu32,
        0x0000_707f,           // no such opcode
        i(0x03, 7, A0, A1, 0), // load of funct3 7
        s(4, A1, A2, 0),
        b(2, A1, A2, 8),
        i(0x67, 1, A0, A1, 0),
        r(0x33, 1, 0x20, A0, A1, A2),
        i(0x13, 1, A0, A1, 0x603),
        i(0x1b, 1, A0, A1, 0x20),  // slliw by 32
        r(0x3b, 4, 4, A0, A1, A2), // zext.h with a second operand, which only Zbp has
        amo(2, 3, A0, A1, A2),     // load-reserved with a second operand
        amo(0, 4, A0, A1, A2),     // of neither width
        amo(5, 2, A0, A1, A2),
        r(0x3b, 2, 0x10, A0, A1, A2), // sh1add.uw: Zba is not there
        MRET,
        0x1020_0073,           // sret
        csr(2, A0, 0x300, 0),  // mstatus
        csr(1, A0, 0xc00, A1), // a write to a read-only counter
        csr(6, A0, 0xc02, 1),
        r(0x7b, 0, 0, A0, A1, A2), // the bus refuses custom-3
        r(0x53, 0, 0, A0, A1, A2), // floating point
    ] {
        let mut fixture = Fixture::new(&[NOP, bits]);
        fixture.text = fixture.text.with_isa(Isa::BLUEFIELD_3.without(Extension::Zbp));
        faults(fixture, CODE + 4, Cause::IllegalInstruction, u64::from(bits));
    }
    for half in [0u16, 0x2188, 0x9d4d] {
        let mut code = bytes(&[NOP]);
        code.extend(half.to_le_bytes());
        code.extend([1, 0]);
        faults(Fixture::of_bytes(&code), CODE + 4, Cause::IllegalInstruction, u64::from(half));
    }
}

#[test]
fn execution_outside_the_text_faults_at_the_target() {
    let mut fixture = Fixture::new(&[jalr(RA, A1, 1), ECALL]);
    fixture.hart.x[11] = 0x9_0000;
    assert_eq!(fixture.go(), Stop::Fault(Fault::instruction_access(0x9_0000)));
    // The jump itself has retired, with bit 0 of the target cleared.
    assert_eq!((fixture.hart.pc, fixture.hart.x[1], fixture.hart.instret), (0x9_0000, CODE + 4, 1));

    // Falling off the end, also by a four-byte instruction that begins in the last two bytes.
    let mut fixture = Fixture::new(&[NOP, NOP]);
    assert_eq!(fixture.go(), Stop::Fault(Fault::instruction_access(CODE + 8)));
    let mut fixture = Fixture::new(&[0x0013_0001, 0x0001_0000]);
    fixture.text = Text::new(CODE, 4);
    assert_eq!(fixture.go(), Stop::Fault(Fault::instruction_access(CODE + 6)));
    assert_eq!(fixture.hart.instret, 2);
}

#[test]
fn an_instruction_that_cannot_be_fetched_whole_faults() {
    // The text claims more than the memory holds.
    let mut fixture = Fixture::new(&[]);
    let last = SIZE as u64 - 2;
    fixture.text = Text::new(last, 4);
    fixture.bus.memory[last as usize] = 0x13;
    fixture.hart.pc = last;
    assert_eq!(fixture.go(), Stop::Fault(Fault::instruction_access(SIZE as u64)));
    assert_eq!((fixture.hart.pc, fixture.hart.instret), (last, 0));
}

#[test]
fn jumps_and_branches_across_ranges() {
    // Two ranges: everything from one to the other goes the slow way.
    let code = [jal(RA, 0x100), ECALL];
    let far = [b(0, ZERO, ZERO, -0xfc), NOP];
    let mut fixture = Fixture::new(&code);
    let at = CODE as usize + 0x100;
    fixture.bus.memory[at..at + 8].copy_from_slice(&bytes(&far));
    fixture.text.add(CODE + 0x100, 8);
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!((fixture.hart.pc, fixture.hart.x[1], fixture.hart.instret), (CODE + 4, CODE + 4, 2));

    // Not taken, in both lengths: goes on behind itself.
    let mut fixture = Fixture::new(&[b(1, ZERO, ZERO, -0x100), ECALL]);
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.pc, CODE + 4);
    // c.bnez a0, -0x100, then c.nop, then ecall
    let mut code = vec![0x01, 0xf1];
    code.extend([0x01, 0x00]);
    code.extend(bytes(&[ECALL]));
    let mut fixture = Fixture::of_bytes(&code);
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!((fixture.hart.pc, fixture.hart.instret), (CODE + 4, 2));
    let mut fixture = Fixture::of_bytes(&code);
    fixture.hart.x[10] = 1;
    assert_eq!(fixture.go(), Stop::Fault(Fault::instruction_access(CODE - 0x100)));
}

#[test]
fn every_branch_condition() {
    let values = [0, 1, u64::MAX, i64::MIN as u64, i64::MAX as u64];
    for a in values {
        for b_ in values {
            let (sa, sb) = (a as i64, b_ as i64);
            for (funct3, taken) in [(0, a == b_), (1, a != b_), (4, sa < sb), (5, sa >= sb), (6, a < b_), (7, a >= b_)]
            {
                // Near, and far (the target lies outside the text).
                for distance in [8, 0x400] {
                    let mut fixture = Fixture::new(&[b(funct3, A1, A2, distance), ECALL, EBREAK]);
                    fixture.hart.x[11] = a;
                    fixture.hart.x[12] = b_;
                    let expected = match (taken, distance) {
                        (false, _) => Stop::Ecall,
                        (true, 8) => Stop::Ebreak,
                        _ => Stop::Fault(Fault::instruction_access(CODE + 0x400)),
                    };
                    assert_eq!(fixture.go(), expected, "funct3 {funct3} of {a:#x}, {b_:#x}");
                }
            }
        }
    }
}

#[test]
fn link_registers_and_the_source_that_is_also_the_destination() {
    let mut fixture = Fixture::new(&[jalr(A0, A0, 0), ECALL, EBREAK]);
    fixture.hart.x[10] = CODE + 8;
    assert_eq!(fixture.go(), Stop::Ebreak);
    assert_eq!((fixture.hart.pc, fixture.hart.x[10]), (CODE + 8, CODE + 4));
    // c.jalr a1 links the address two bytes on.
    let mut code = vec![0x82, 0x95];
    code.extend([0x01, 0x00]);
    code.extend(bytes(&[ECALL, EBREAK]));
    let mut fixture = Fixture::of_bytes(&code);
    fixture.hart.x[11] = CODE + 8;
    assert_eq!(fixture.go(), Stop::Ebreak);
    assert_eq!(fixture.hart.x[1], CODE + 2);
}

#[test]
fn store_conditional_succeeds_once_and_only_on_its_own_reservation() {
    let lr = amo(2, 3, A0, A1, 0);
    let sc = amo(3, 3, A3, A1, A2);
    let mut fixture = Fixture::new(&[lr, sc, amo(3, 3, A4, A1, A2), ECALL]);
    fixture.bus.set_word(DATA, 5);
    fixture.hart.x[11] = DATA;
    fixture.hart.x[12] = 9;
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!((fixture.hart.x[10], fixture.hart.x[13], fixture.hart.x[14]), (5, 0, 1));
    assert_eq!(fixture.bus.word(DATA), 9);

    // Another address, another width, no reservation: fails, stores nothing, and ends the reservation.
    for code in [
        vec![lr, addi(A1, A1, 8), sc, ECALL],
        vec![lr, amo(3, 2, A3, A1, A2), ECALL],
        vec![sc, ECALL],
        vec![lr, addi(A1, A1, 8), sc, addi(A1, A1, -8), sc, ECALL],
    ] {
        let mut fixture = Fixture::new(&code);
        fixture.hart.x[11] = DATA;
        fixture.hart.x[12] = 9;
        assert_eq!(fixture.go(), Stop::Ecall);
        assert_eq!(fixture.hart.x[13], 1);
        assert_eq!((fixture.bus.word(DATA), fixture.bus.word(DATA + 8)), (0, 0));
        assert_eq!(fixture.hart.reservation(), None);
    }
}

#[test]
fn another_store_breaks_a_reservation_where_it_touches_it() {
    let run = |addr: u64, len: u64| {
        let mut fixture = Fixture::new(&[amo(2, 2, A0, A1, 0), amo(3, 2, A3, A1, A2), ECALL]);
        fixture.bus.set_word(DATA, 0x8000_0000);
        fixture.hart.x[11] = DATA + 4;
        assert_eq!(fixture.run(&Limits::instructions(1)), Stop::Instructions);
        assert_eq!(fixture.hart.reservation(), Some((DATA + 4, 4)));
        fixture.hart.break_reservation(addr, len);
        assert_eq!(fixture.go(), Stop::Ecall);
        fixture.hart.x[13]
    };
    assert_eq!(run(DATA + 4, 4), 1);
    assert_eq!(run(DATA + 7, 1), 1);
    assert_eq!(run(DATA, 8), 1);
    assert_eq!(run(DATA - 100, 1000), 1);
    assert_eq!(run(DATA, 4), 0);
    assert_eq!(run(DATA + 8, 8), 0);
    assert_eq!(run(DATA + 4, 0), 0);
    assert_eq!(run(u64::MAX, 1), 0);
}

#[test]
fn lr_w_and_amo_w_sign_extend_and_touch_one_word() {
    let neg = 0xffff_ffff_8000_0001u64;
    let cases: [(u32, u64, u64, u64); 9] = [
        (0x00, 0x8000_0001, 0x1_7fff_ffff, 0x0000_0000),
        (0x01, 0x8000_0001, 0x1_7fff_ffff, 0x7fff_ffff),
        (0x04, 0x8000_0001, 0xffff, 0x8000_fffe),
        (0x08, 0x8000_0001, 0xffff, 0x8000_ffff),
        (0x0c, 0x8000_0001, 0xffff, 0x0000_0001),
        (0x10, 0x8000_0001, 1, 0x8000_0001),
        (0x14, 0x8000_0001, 1, 1),
        (0x18, 0x8000_0001, 1, 1),
        (0x1c, 0x8000_0001, 1, 0x8000_0001),
    ];
    for (funct5, old, operand, new) in cases {
        let mut fixture = Fixture::new(&[amo(funct5, 2, A0, A1, A2), ECALL]);
        fixture.bus.set_word(DATA, 0xaaaa_aaaa_0000_0000 | old);
        fixture.hart.x[11] = DATA;
        fixture.hart.x[12] = operand;
        assert_eq!(fixture.go(), Stop::Ecall);
        assert_eq!(fixture.hart.x[10], neg, "funct5 {funct5:#x}");
        assert_eq!(fixture.bus.word(DATA), 0xaaaa_aaaa_0000_0000 | new, "funct5 {funct5:#x}");
    }
    let mut fixture = Fixture::new(&[amo(2, 2, A0, A1, 0), ECALL]);
    fixture.bus.set_word(DATA, 0x8000_0001);
    fixture.hart.x[11] = DATA;
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], neg);
}

#[test]
fn counters_show_what_was_before_the_instruction() {
    let mut fixture =
        Fixture::new(&[NOP, ld(A5, A1, 0), csr(2, A0, 0xc02, 0), csr(2, A2, 0xc00, 0), csr(2, A3, 0xc01, 0), ECALL]);
    fixture.bus.load_cycles = 40;
    fixture.hart.x[11] = DATA;
    assert_eq!(fixture.run(&Limits { instructions: 100, cycles: u64::MAX, gap_cycles: 3 }), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 2);
    assert_eq!(fixture.hart.x[12], 3 * 3 + 40);
    assert_eq!(fixture.hart.x[13], (4 * 3 + 40) * 1000);
    assert_eq!((fixture.hart.instret, fixture.hart.cycles), (5, 5 * 3 + 40));
    fixture.hart.complete_ecall(3);
    assert_eq!((fixture.hart.pc, fixture.hart.instret, fixture.hart.cycles), (CODE + 24, 6, 6 * 3 + 40));
}

#[test]
fn hooks_for_fences_custom_opcodes_and_wfi() {
    let fence = |pred: u32, succ: u32| pred << 24 | succ << 20 | 0x0f;
    let custom0 = r(0x0b, 0, 0, A0, A1, A2);
    let custom1 = r(0x2b, 0, 0, ZERO, A1, A2);
    let mut fixture = Fixture::new(&[fence(2, 3), fence(4, 8), custom0, custom1, WFI, ECALL]);
    assert_eq!(fixture.go(), Stop::Wfi);
    assert_eq!(fixture.bus.fences, [(2, 3), (4, 8)]);
    assert_eq!(fixture.bus.customs, [custom0, custom1]);
    assert_eq!((fixture.hart.x[0], fixture.hart.x[10]), (0, 0xc0de));
    assert_eq!((fixture.hart.pc, fixture.hart.instret, fixture.hart.cycles), (CODE + 20, 5, 5 + 2 * 7 + 2 * 11));
    assert_eq!(fixture.go(), Stop::Ecall);
}

#[test]
fn a_store_can_ask_the_hart_to_stop() {
    let mut fixture = Fixture::new(&[sd(A2, A1, 0), NOP, ECALL]);
    fixture.hart.x[11] = DOORBELL;
    assert_eq!(fixture.go(), Stop::Requested);
    assert_eq!((fixture.hart.pc, fixture.hart.instret), (CODE + 4, 1));
    fixture.bus.stop = false;
    assert_eq!(fixture.go(), Stop::Ecall);
}

#[test]
fn compressed_breakpoint_stops_at_itself() {
    let mut fixture = Fixture::of_bytes(&[0x01, 0x00, 0x02, 0x90, 0x01, 0x00]);
    assert_eq!(fixture.go(), Stop::Ebreak);
    assert_eq!((fixture.hart.pc, fixture.hart.instret), (CODE + 2, 1));
}

#[test]
fn stores_into_decoded_code_take_effect() {
    // The third instruction is executed, then overwritten by the hart itself, then executed again.
    let target = 2 * 4;
    let code = [
        addi(T0, ZERO, 2),
        addi(A0, A0, 0),
        addi(A0, A0, 1),
        sw(A2, A1, target),
        addi(T0, T0, -1),
        bne(T0, ZERO, -12),
        ECALL,
    ];
    let mut fixture = Fixture::new(&code);
    fixture.hart.x[11] = CODE;
    fixture.hart.x[12] = u64::from(addi(A0, A0, 100));
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 101);

    // Only the upper half of a four-byte instruction is overwritten, which lies in the next slot.
    let mut fixture = Fixture::new(&code);
    let half = s(1, A1, A2, target + 2);
    fixture.bus.memory[CODE as usize + 12..CODE as usize + 16].copy_from_slice(&half.to_le_bytes());
    fixture.hart.x[11] = CODE;
    fixture.hart.x[12] = u64::from(addi(A0, A0, 100) >> 16);
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 101);

    // An atomic operation stores too.
    let mut fixture = Fixture::new(&code);
    let swap = amo(1, 2, ZERO, A1, A2);
    fixture.bus.memory[CODE as usize + 12..CODE as usize + 16].copy_from_slice(&swap.to_le_bytes());
    fixture.hart.x[11] = CODE + target as u64;
    fixture.hart.x[12] = u64::from(addi(A0, A0, 100));
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 101);
}

#[test]
fn code_changed_from_outside_is_seen_after_fence_i_or_invalidation() {
    let code = [addi(A0, A0, 1), ECALL, FENCE_I, jal(ZERO, -12)];
    let patch = addi(A0, A0, 100).to_le_bytes();
    let mut fixture = Fixture::new(&code);
    assert_eq!(fixture.go(), Stop::Ecall);
    fixture.bus.memory[CODE as usize..CODE as usize + 4].copy_from_slice(&patch);
    fixture.hart.pc = CODE;
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 2, "the text is a cache: nothing has invalidated it yet");
    fixture.hart.pc = CODE + 8;
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 102);

    let mut fixture = Fixture::new(&code);
    assert_eq!(fixture.go(), Stop::Ecall);
    fixture.bus.memory[CODE as usize..CODE as usize + 4].copy_from_slice(&patch);
    fixture.text.invalidate(CODE + 3, 1);
    fixture.hart.pc = CODE;
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], 101);
}

#[test]
fn limits_that_are_already_reached_execute_nothing() {
    let mut fixture = Fixture::new(&[NOP, ECALL]);
    assert_eq!(fixture.run(&Limits::instructions(0)), Stop::Instructions);
    fixture.hart.cycles = 10;
    assert_eq!(fixture.run(&Limits { instructions: 5, cycles: 10, gap_cycles: 1 }), Stop::Cycles);
    assert_eq!((fixture.hart.pc, fixture.hart.instret), (CODE, 0));
    // A gap of zero counts as one: time passes.
    assert_eq!(fixture.run(&Limits { instructions: 5, cycles: 11, gap_cycles: 0 }), Stop::Cycles);
    assert_eq!((fixture.hart.instret, fixture.hart.cycles), (1, 11));
}

#[test]
fn the_cycle_limit_stops_after_the_instruction_that_reaches_it() {
    let mut fixture = Fixture::new(&[ld(A0, A1, 0), NOP, ECALL]);
    fixture.bus.load_cycles = 1000;
    fixture.hart.x[11] = DATA;
    assert_eq!(fixture.run(&Limits { instructions: 100, cycles: 500, gap_cycles: 2 }), Stop::Cycles);
    assert_eq!((fixture.hart.instret, fixture.hart.cycles), (1, 1002));
}

/// A loop with loads, stores, atomics and branches, for tests of interleaving.
fn busy_loop() -> Vec<u32> {
    vec![
        ld(A2, A1, 0),
        add(A2, A2, A3),
        sd(A2, A1, 8),
        amo(0, 3, A4, A1, A2),
        addi(A3, A3, 7),
        r(0x33, 4, 0, A5, A5, A4),
        bne(A3, ZERO, 8),
        EBREAK,
        jal(ZERO, -32),
    ]
}

proptest! {
    // Failures are printed with their input; a file of them would have no place among integration tests.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However a run is cut into pieces, the hart goes through the same states: cycles, counters and registers
    /// included.
    #[test]
    fn cutting_a_run_changes_nothing(
        cuts in prop::collection::vec((1u64..40, 1u64..300), 1..40),
        gap in 1u64..25,
        latency in 0u64..60,
    ) {
        let fixture = || {
            let mut fixture = Fixture::new(&busy_loop());
            fixture.hart.x[11] = DATA;
            fixture.bus.load_cycles = latency;
            fixture.bus.store_cycles = latency / 3;
            fixture
        };
        let mut pieces = fixture();
        let mut one_by_one = fixture();
        let mut total = 0;
        for (instructions, cycles) in cuts {
            let (retired, began) = (pieces.hart.instret, pieces.hart.cycles);
            let limits = Limits { instructions, cycles: began + cycles, gap_cycles: gap };
            let stop = pieces.run(&limits);
            let step = pieces.hart.instret - retired;
            total += step;
            // The reference stops at the first of the two limits, checked after each instruction.
            for _ in 0..instructions {
                prop_assert_eq!(one_by_one.run(&Limits { instructions: 1, cycles: u64::MAX, gap_cycles: gap }), Stop::Instructions);
                if one_by_one.hart.cycles >= began + cycles {
                    break;
                }
            }
            prop_assert_eq!(&pieces.hart, &one_by_one.hart);
            prop_assert_eq!(stop, if step == instructions { Stop::Instructions } else { Stop::Cycles });
        }
        let mut whole = fixture();
        whole.run(&Limits { instructions: total, cycles: u64::MAX, gap_cycles: gap });
        prop_assert_eq!(&pieces.hart, &whole.hart);
        prop_assert!(pieces.bus.memory == whole.bus.memory);
    }

    /// Arbitrary bytes as code, arbitrary registers: the interpreter ends orderly.
    #[test]
    fn arbitrary_code_never_panics(
        code in prop::collection::vec(any::<u8>(), 2..256),
        registers in prop::collection::vec(prop_oneof![any::<u64>(), 0..SIZE as u64, Just(DATA), Just(CODE)], 31),
    ) {
        let mut fixture = Fixture::of_bytes(&code);
        fixture.hart.x[1..].copy_from_slice(&registers);
        for _ in 0..8 {
            let stop = fixture.run(&Limits::instructions(500));
            prop_assert_eq!(fixture.hart.x[0], 0);
            match stop {
                Stop::Ecall => fixture.hart.complete_ecall(1),
                Stop::Requested => fixture.bus.stop = false,
                Stop::Wfi | Stop::Instructions => {}
                Stop::Cycles | Stop::Ebreak | Stop::Fault(_) => break,
            }
        }
    }

    /// The cached decoding never differs from decoding anew before each instruction, whatever the code stores over
    /// itself.
    #[test]
    fn the_cache_is_invisible(
        words in prop::collection::vec(any::<u64>(), 4),
        offsets in prop::collection::vec((0i32..48, 0u32..4), 6),
    ) {
        // Stores of arbitrary words over a loop that contains them.
        let mut code = vec![NOP, 0x0001_0001, NOP];
        for (index, &(offset, funct3)) in offsets.iter().enumerate() {
            code.push(s(funct3, A1, 12 + (index % 4) as u32, offset & !((1 << funct3) - 1)));
        }
        code.push(jal(ZERO, -4 * code.len() as i32));
        let mut cached = Fixture::new(&code);
        cached.hart.x[11] = CODE;
        for (register, word) in words.iter().enumerate() {
            cached.hart.x[12 + register] = *word;
        }
        let mut fresh = Fixture { hart: cached.hart.clone(), text: cached.text.clone(), bus: cached.bus.clone() };
        for _ in 0..64 {
            fresh.text.invalidate_all();
            let expected = fresh.run(&Limits::instructions(1));
            let stop = cached.run(&Limits::instructions(1));
            prop_assert_eq!(stop, expected);
            prop_assert_eq!(&cached.hart, &fresh.hart);
            if stop != Stop::Instructions {
                break;
            }
        }
    }
}

#[test]
fn two_harts_share_one_text() {
    let mut fixture = Fixture::new(&busy_loop());
    let mut other = Hart::new(CODE);
    fixture.hart.x[11] = DATA;
    other.x[11] = DATA + 0x100;
    for _ in 0..50 {
        fixture.run(&Limits::instructions(3));
        other.run(&mut fixture.text, &mut fixture.bus, &Limits::instructions(3));
    }
    assert_eq!(fixture.hart.x[12], other.x[12]);
    assert_eq!(fixture.hart.instret, 150);
    // The default of the time hook is the test bus's own.
    assert_eq!(fixture.bus.csr_time(2), 2000);
}
