//! The C extension: every instruction of two bytes is one of four bytes written shorter (RISC-V Unprivileged ISA,
//! chapter "C", RV64 columns).

use crate::table::opcode::{BRANCH, JAL, JALR, LOAD, LOAD_FP, LUI, OP, OP_32, OP_IMM, OP_IMM_32, STORE, STORE_FP};

const ZERO: u32 = 0;
const RA: u32 = 1;
const SP: u32 = 2;

/// `value[high:low]`, moved down to bit 0.
const fn field(value: u32, high: u32, low: u32) -> u32 {
    (value >> low) & ((1 << (high - low + 1)) - 1)
}

/// The low `bits` bits of `value` as a signed number.
const fn sign_extend(value: u32, bits: u32) -> u32 {
    let shift = 32 - bits;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}

const fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

const fn i_type(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: u32) -> u32 {
    (imm & 0xfff) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

const fn s_type(opcode: u32, funct3: u32, rs1: u32, rs2: u32, imm: u32) -> u32 {
    field(imm, 11, 5) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | field(imm, 4, 0) << 7 | opcode
}

const fn b_type(funct3: u32, rs1: u32, imm: u32) -> u32 {
    field(imm, 12, 12) << 31
        | field(imm, 10, 5) << 25
        | ZERO << 20
        | rs1 << 15
        | funct3 << 12
        | field(imm, 4, 1) << 8
        | field(imm, 11, 11) << 7
        | BRANCH
}

const fn j_type(rd: u32, imm: u32) -> u32 {
    field(imm, 20, 20) << 31
        | field(imm, 10, 1) << 21
        | field(imm, 11, 11) << 20
        | field(imm, 19, 12) << 12
        | rd << 7
        | JAL
}

/// The instruction of four bytes that `half` stands for; `None` if it is reserved, or of Zcb, Zcmp or Zcmt, which no
/// DPA has.
#[must_use]
pub fn expand(half: u16) -> Option<u32> {
    let c = u32::from(half);
    let funct3 = field(c, 15, 13);
    match c & 3 {
        0 => quadrant0(c, funct3),
        1 => quadrant1(c, funct3),
        2 => quadrant2(c, funct3),
        _ => None,
    }
}

fn quadrant0(c: u32, funct3: u32) -> Option<u32> {
    let low = 8 + field(c, 4, 2);
    let base = 8 + field(c, 9, 7);
    let word = field(c, 12, 10) << 3 | field(c, 6, 6) << 2 | field(c, 5, 5) << 6;
    let double = field(c, 12, 10) << 3 | field(c, 6, 5) << 6;
    match funct3 {
        // c.addi4spn; the immediate zero is reserved, and all zeroes is defined to be illegal
        0 => {
            let imm = field(c, 12, 11) << 4 | field(c, 10, 7) << 6 | field(c, 6, 6) << 2 | field(c, 5, 5) << 3;
            (imm != 0).then(|| i_type(OP_IMM, 0, low, SP, imm))
        }
        1 => Some(i_type(LOAD_FP, 3, low, base, double)),
        2 => Some(i_type(LOAD, 2, low, base, word)),
        3 => Some(i_type(LOAD, 3, low, base, double)),
        5 => Some(s_type(STORE_FP, 3, base, low, double)),
        6 => Some(s_type(STORE, 2, base, low, word)),
        7 => Some(s_type(STORE, 3, base, low, double)),
        _ => None,
    }
}

fn quadrant1(c: u32, funct3: u32) -> Option<u32> {
    let rd = field(c, 11, 7);
    let unsigned6 = field(c, 12, 12) << 5 | field(c, 6, 2);
    let imm6 = sign_extend(unsigned6, 6);
    match funct3 {
        // c.addi, c.nop
        0 => Some(i_type(OP_IMM, 0, rd, rd, imm6)),
        // c.addiw; rd = x0 is reserved
        1 => (rd != 0).then(|| i_type(OP_IMM_32, 0, rd, rd, imm6)),
        // c.li
        2 => Some(i_type(OP_IMM, 0, rd, ZERO, imm6)),
        3 if rd == SP => {
            let imm = field(c, 12, 12) << 9
                | field(c, 6, 6) << 4
                | field(c, 5, 5) << 6
                | field(c, 4, 3) << 7
                | field(c, 2, 2) << 5;
            // c.addi16sp
            (imm != 0).then(|| i_type(OP_IMM, 0, SP, SP, sign_extend(imm, 10)))
        }
        // c.lui
        3 => (unsigned6 != 0).then_some((imm6 << 12) | rd << 7 | LUI),
        4 => arithmetic(c, unsigned6, imm6),
        5 => Some(j_type(ZERO, jump_offset(c))),
        6 => Some(b_type(0, 8 + field(c, 9, 7), branch_offset(c))),
        _ => Some(b_type(1, 8 + field(c, 9, 7), branch_offset(c))),
    }
}

fn arithmetic(c: u32, unsigned6: u32, imm6: u32) -> Option<u32> {
    let rd = 8 + field(c, 9, 7);
    let rs2 = 8 + field(c, 4, 2);
    Some(match (field(c, 11, 10), field(c, 12, 12), field(c, 6, 5)) {
        (0, ..) => i_type(OP_IMM, 5, rd, rd, unsigned6),
        (1, ..) => i_type(OP_IMM, 5, rd, rd, 0x400 | unsigned6),
        (2, ..) => i_type(OP_IMM, 7, rd, rd, imm6),
        (3, 0, 0) => r_type(OP, 0, 0x20, rd, rd, rs2),
        (3, 0, 1) => r_type(OP, 4, 0, rd, rd, rs2),
        (3, 0, 2) => r_type(OP, 6, 0, rd, rd, rs2),
        (3, 0, 3) => r_type(OP, 7, 0, rd, rd, rs2),
        (3, 1, 0) => r_type(OP_32, 0, 0x20, rd, rd, rs2),
        (3, 1, 1) => r_type(OP_32, 0, 0, rd, rd, rs2),
        _ => return None,
    })
}

const fn jump_offset(c: u32) -> u32 {
    let imm = field(c, 12, 12) << 11
        | field(c, 11, 11) << 4
        | field(c, 10, 9) << 8
        | field(c, 8, 8) << 10
        | field(c, 7, 7) << 6
        | field(c, 6, 6) << 7
        | field(c, 5, 3) << 1
        | field(c, 2, 2) << 5;
    sign_extend(imm, 12)
}

const fn branch_offset(c: u32) -> u32 {
    let imm =
        field(c, 12, 12) << 8 | field(c, 11, 10) << 3 | field(c, 6, 5) << 6 | field(c, 4, 3) << 1 | field(c, 2, 2) << 5;
    sign_extend(imm, 9)
}

fn quadrant2(c: u32, funct3: u32) -> Option<u32> {
    let rd = field(c, 11, 7);
    let rs2 = field(c, 6, 2);
    let word = field(c, 12, 12) << 5 | field(c, 6, 4) << 2 | field(c, 3, 2) << 6;
    let double = field(c, 12, 12) << 5 | field(c, 6, 5) << 3 | field(c, 4, 2) << 6;
    let store_double = field(c, 12, 10) << 3 | field(c, 9, 7) << 6;
    match funct3 {
        // c.slli
        0 => Some(i_type(OP_IMM, 1, rd, rd, field(c, 12, 12) << 5 | rs2)),
        1 => Some(i_type(LOAD_FP, 3, rd, SP, double)),
        // c.lwsp and c.ldsp; rd = x0 is reserved
        2 => (rd != 0).then(|| i_type(LOAD, 2, rd, SP, word)),
        3 => (rd != 0).then(|| i_type(LOAD, 3, rd, SP, double)),
        4 => match (field(c, 12, 12), rd, rs2) {
            (0, 0, 0) => None,
            (0, _, 0) => Some(i_type(JALR, 0, ZERO, rd, 0)),
            (0, ..) => Some(r_type(OP, 0, 0, rd, ZERO, rs2)),
            (_, 0, 0) => Some(0x0010_0073),
            (_, _, 0) => Some(i_type(JALR, 0, RA, rd, 0)),
            _ => Some(r_type(OP, 0, 0, rd, rd, rs2)),
        },
        5 => Some(s_type(STORE_FP, 3, SP, rs2, store_double)),
        6 => Some(s_type(STORE, 2, SP, rs2, field(c, 12, 9) << 2 | field(c, 8, 7) << 6)),
        _ => Some(s_type(STORE, 3, SP, rs2, store_double)),
    }
}
