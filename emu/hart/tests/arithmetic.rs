//! Register-to-register semantics against values worked out by hand or by an independent definition.

use emu_hart::Stop;
use proptest::prelude::*;

use crate::{asm, bus};
use asm::*;
use bus::Fixture;

/// Executes one instruction that reads `a1`, `a2` and writes `a0`.
fn eval(insn: u32, a: u64, b: u64) -> u64 {
    let mut fixture = Fixture::new(&[insn, ECALL]);
    fixture.hart.x[11] = a;
    fixture.hart.x[12] = b;
    assert_eq!(fixture.go(), Stop::Ecall, "{insn:#010x}");
    assert_eq!((fixture.hart.instret, fixture.hart.cycles), (1, 1));
    fixture.hart.x[10]
}

fn op(funct3: u32, funct7: u32) -> u32 {
    r(0x33, funct3, funct7, A0, A1, A2)
}

fn op32(funct3: u32, funct7: u32) -> u32 {
    r(0x3b, funct3, funct7, A0, A1, A2)
}

fn unary(imm: i32) -> u32 {
    i(0x13, 1, A0, A1, imm)
}

const MIN: u64 = i64::MIN as u64;
const MAX: u64 = i64::MAX as u64;
const ONES: u64 = u64::MAX;
/// The least word, sign-extended.
const MIN_W: u64 = i32::MIN as i64 as u64;

#[test]
fn division_corner_cases() {
    let (div, divu, rem, remu) = (op(4, 1), op(5, 1), op(6, 1), op(7, 1));
    assert_eq!(eval(div, 7, 0), ONES);
    assert_eq!(eval(divu, 7, 0), ONES);
    assert_eq!(eval(rem, MIN, 0), MIN);
    assert_eq!(eval(remu, ONES, 0), ONES);
    assert_eq!(eval(div, MIN, ONES), MIN);
    assert_eq!(eval(rem, MIN, ONES), 0);
    assert_eq!(eval(divu, MIN, ONES), 0);
    assert_eq!(eval(remu, MIN, ONES), MIN);
    // Towards zero; the remainder has the sign of the dividend.
    assert_eq!(eval(div, -7i64 as u64, 2), -3i64 as u64);
    assert_eq!(eval(rem, -7i64 as u64, 2), ONES);
    assert_eq!(eval(rem, 7, -2i64 as u64), 1);
}

#[test]
fn word_division_corner_cases() {
    let (div, divu, rem, remu) = (op32(4, 1), op32(5, 1), op32(6, 1), op32(7, 1));
    // The divisor's low word is zero though the register is not.
    let zero_word = 0xffff_ffff_0000_0000;
    assert_eq!(eval(div, 7, zero_word), ONES);
    assert_eq!(eval(divu, 7, zero_word), ONES);
    assert_eq!(eval(rem, 0x8000_0000, zero_word), MIN_W);
    assert_eq!(eval(remu, 0x8000_0000, zero_word), MIN_W);
    assert_eq!(eval(div, 0x8000_0000, 0xffff_ffff), MIN_W);
    assert_eq!(eval(rem, 0x8000_0000, 0xffff_ffff), 0);
    assert_eq!(eval(divu, 0xffff_fffe, 1), -2i64 as u64);
    assert_eq!(eval(remu, 0xffff_fffe, 0xffff_ffff), -2i64 as u64);
}

#[test]
fn high_products() {
    let (mulh, mulhsu, mulhu) = (op(1, 1), op(2, 1), op(3, 1));
    assert_eq!(eval(mulh, MIN, MIN), 1 << 62);
    assert_eq!(eval(mulh, ONES, ONES), 0);
    assert_eq!(eval(mulh, MIN, 1), ONES);
    assert_eq!(eval(mulhu, ONES, ONES), ONES - 1);
    assert_eq!(eval(mulhu, MIN, 2), 1);
    assert_eq!(eval(mulhsu, ONES, ONES), ONES);
    assert_eq!(eval(mulhsu, MIN, ONES), MIN);
    assert_eq!(eval(mulhsu, 1, ONES), 0);
    assert_eq!(eval(op(0, 1), ONES, 3), -3i64 as u64);
    assert_eq!(eval(op32(0, 1), 0x1_0001, 0x8000), MIN_W + 0x8000);
}

#[test]
fn word_forms_sign_extend_and_ignore_the_upper_half() {
    let upper = 0xdead_beef_0000_0000;
    assert_eq!(eval(op32(0, 0), upper | 0x7fff_ffff, 1), MIN_W);
    assert_eq!(eval(op32(0, 0x20), upper, 1), ONES);
    assert_eq!(eval(i(0x1b, 0, A0, A1, -1), upper, 0), ONES);
    assert_eq!(eval(i(0x1b, 0, A0, A1, 0), 0x8000_0000, 0), MIN_W);
    assert_eq!(eval(i(0x1b, 1, A0, A1, 31), 1, 0), MIN_W);
    assert_eq!(eval(i(0x1b, 5, A0, A1, 0), upper | 0x8000_0000, 0), MIN_W);
    assert_eq!(eval(i(0x1b, 5, A0, A1, 31), upper | 0x8000_0000, 0), 1);
    assert_eq!(eval(i(0x1b, 5, A0, A1, 0x400 | 31), 0x8000_0000, 0), ONES);
}

#[test]
fn shifts_take_six_or_five_bits_of_the_amount() {
    assert_eq!(eval(op(1, 0), 3, 64 + 63), MIN);
    assert_eq!(eval(op(5, 0), MIN, 64 + 63), 1);
    assert_eq!(eval(op(5, 0x20), MIN, 64 + 63), ONES);
    assert_eq!(eval(op32(1, 0), 1, 32 + 31), MIN_W);
    assert_eq!(eval(op32(5, 0), 0x8000_0000, 32 + 31), 1);
    assert_eq!(eval(op32(5, 0x20), 0x8000_0000, 32 + 31), ONES);
    assert_eq!(eval(i(0x13, 1, A0, A1, 63), 1, 0), MIN);
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x400 | 63), MIN, 0), ONES);
}

#[test]
fn comparisons() {
    assert_eq!(eval(op(2, 0), MIN, MAX), 1);
    assert_eq!(eval(op(3, 0), MIN, MAX), 0);
    assert_eq!(eval(i(0x13, 2, A0, A1, -1), MIN, 0), 1);
    // sltiu compares with the sign-extended immediate as an unsigned number.
    assert_eq!(eval(i(0x13, 3, A0, A1, -1), ONES - 1, 0), 1);
    assert_eq!(eval(i(0x13, 3, A0, A1, -1), ONES, 0), 0);
}

#[test]
fn counting_of_zero_and_full_operands() {
    let (clz, ctz, cpop, sext_b, sext_h) = (unary(0x600), unary(0x601), unary(0x602), unary(0x604), unary(0x605));
    let word = |imm| i(0x1b, 1, A0, A1, imm);
    let (clzw, ctzw, cpopw) = (word(0x600), word(0x601), word(0x602));
    assert_eq!([eval(clz, 0, 0), eval(ctz, 0, 0), eval(cpop, 0, 0)], [64, 64, 0]);
    assert_eq!([eval(clz, ONES, 0), eval(ctz, ONES, 0), eval(cpop, ONES, 0)], [0, 0, 64]);
    assert_eq!([eval(clz, 1, 0), eval(ctz, MIN, 0)], [63, 63]);
    let upper = 0xffff_ffff_0000_0000;
    assert_eq!([eval(clzw, upper, 0), eval(ctzw, upper, 0), eval(cpopw, upper, 0)], [32, 32, 0]);
    // A word whose low half is zero.
    assert_eq!([eval(ctzw, 0x0001_0000, 0), eval(ctzw, 0x8000_0000, 0)], [16, 31]);
    assert_eq!([eval(clzw, 0x8000_0000, 0), eval(cpopw, ONES, 0)], [0, 32]);
    assert_eq!([eval(sext_b, 0x80, 0), eval(sext_b, 0x17f, 0)], [-128i64 as u64, 0x7f]);
    assert_eq!([eval(sext_h, 0x8000, 0), eval(sext_h, 0x1_7fff, 0)], [-32768i64 as u64, 0x7fff]);
    assert_eq!(eval(r(0x3b, 4, 4, A0, A1, 0), 0xdead_8001, 0), 0x8001);
}

#[test]
fn byte_operations() {
    let orc_b = i(0x13, 5, A0, A1, 0x287);
    let rev8 = i(0x13, 5, A0, A1, 0x6b8);
    assert_eq!(eval(orc_b, 0x0100_8000_0000_7f00, 0), 0xff00_ff00_0000_ff00);
    assert_eq!(eval(rev8, 0x0102_0304_0506_0708, 0), 0x0807_0605_0403_0201);
}

#[test]
fn logic_with_negation_and_extremes() {
    assert_eq!(eval(op(7, 0x20), 0b1100, 0b1010), 0b0100);
    assert_eq!(eval(op(6, 0x20), 0b1100, 0b1010), !0b0010);
    assert_eq!(eval(op(4, 0x20), 0b1100, 0b1010), !0b0110);
    assert_eq!(eval(op(4, 5), MIN, MAX), MIN);
    assert_eq!(eval(op(5, 5), MIN, MAX), MAX);
    assert_eq!(eval(op(6, 5), MIN, MAX), MAX);
    assert_eq!(eval(op(7, 5), MIN, MAX), MIN);
}

#[test]
fn rotations() {
    assert_eq!(eval(op(1, 0x30), MIN | 1, 64 + 1), 3);
    assert_eq!(eval(op(5, 0x30), 3, 64 + 1), MIN | 1);
    assert_eq!(eval(op(1, 0x30), 0x1234, 0), 0x1234);
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x600 | 63), 1, 0), 2);
    assert_eq!(eval(op32(1, 0x30), 0x8000_0001, 32 + 1), 3);
    assert_eq!(eval(op32(5, 0x30), 0xffff_ffff_0000_0003, 32 + 1), MIN_W + 1);
    assert_eq!(eval(i(0x1b, 5, A0, A1, 0x600 | 31), 0x4000_0000, 0), MIN_W);
}

proptest! {
    // Failures are printed with their input; a file of them would have no place among integration tests.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Single-bit instructions, register and immediate form, against their definition.
    #[test]
    fn single_bits(a: u64, amount: u64) {
        let bit = 1u64 << (amount % 64);
        let shamt = (amount % 64) as i32;
        let expected = [
            (0x24, 1, 0x480, a & !bit),
            (0x24, 5, 0x480, u64::from(a & bit != 0)),
            (0x34, 1, 0x680, a ^ bit),
            (0x14, 1, 0x280, a | bit),
        ];
        for (funct7, funct3, imm, value) in expected {
            prop_assert_eq!(eval(op(funct3, funct7), a, amount), value);
            prop_assert_eq!(eval(i(0x13, funct3, A0, A1, imm | shamt), a, 0), value);
        }
    }

    #[test]
    fn plain_arithmetic(a: u64, b: u64) {
        prop_assert_eq!(eval(op(0, 0), a, b), a.wrapping_add(b));
        prop_assert_eq!(eval(op(0, 0x20), a, b), a.wrapping_sub(b));
        prop_assert_eq!(eval(op(0, 1), a, b), a.wrapping_mul(b));
        prop_assert_eq!(eval(op32(0, 0), a, b), (a as i32).wrapping_add(b as i32) as i64 as u64);
        prop_assert_eq!(eval(op32(0, 0x20), a, b), (a as i32).wrapping_sub(b as i32) as i64 as u64);
        prop_assert_eq!(eval(op(1, 0x30), a, b), a.rotate_left((b % 64) as u32));
        prop_assert_eq!(eval(op(5, 0x30), a, b), a.rotate_right((b % 64) as u32));
    }
}

#[test]
fn x0_stays_zero_whatever_is_written_to_it() {
    for insn in
        [addi(0, A1, 5), op(0, 0) & !(31 << 7), lui(0, 5), auipc(0, 5), ld(0, A1, 0), amo(0, 3, 0, A1, A2), jal(0, 4)]
    {
        let mut fixture = Fixture::new(&[insn, addi(A0, 0, 7), ECALL]);
        fixture.hart.x[11] = bus::DATA;
        fixture.bus.set_word(bus::DATA, 99);
        fixture.hart.x[0] = 3;
        assert_eq!(fixture.go(), Stop::Ecall);
        assert_eq!((fixture.hart.x[0], fixture.hart.x[10]), (0, 7), "{insn:#010x}");
    }
}

#[test]
fn upper_immediates() {
    let mut fixture = Fixture::new(&[lui(A0, 0x80000), auipc(A1, 0xfffff), auipc(A2, 1), ECALL]);
    assert_eq!(fixture.go(), Stop::Ecall);
    assert_eq!(fixture.hart.x[10], MIN_W);
    assert_eq!(fixture.hart.x[11], bus::CODE + 4 - 0x1000);
    assert_eq!(fixture.hart.x[12], bus::CODE + 8 + 0x1000);
}
