//! A minimal assembler, so that the tests and the benchmark need no cross compiler.
#![allow(dead_code, unreachable_pub, reason = "each test and the benchmark use a part")]

pub const ZERO: u32 = 0;
pub const RA: u32 = 1;
pub const SP: u32 = 2;
pub const T0: u32 = 5;
pub const T1: u32 = 6;
pub const T2: u32 = 7;
pub const S0: u32 = 8;
pub const S1: u32 = 9;
pub const A0: u32 = 10;
pub const A1: u32 = 11;
pub const A2: u32 = 12;
pub const A3: u32 = 13;
pub const A4: u32 = 14;
pub const A5: u32 = 15;
pub const A7: u32 = 17;

pub const ECALL: u32 = 0x0000_0073;
pub const EBREAK: u32 = 0x0010_0073;
pub const MRET: u32 = 0x3020_0073;
pub const WFI: u32 = 0x1050_0073;
pub const FENCE_I: u32 = 0x0000_100f;
pub const NOP: u32 = 0x0000_0013;

pub const fn r(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

pub const fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    (imm as u32 & 0xfff) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

pub const fn s(funct3: u32, rs1: u32, rs2: u32, imm: i32) -> u32 {
    let imm = imm as u32;
    (imm >> 5 & 127) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | (imm & 31) << 7 | 0x23
}

pub const fn b(funct3: u32, rs1: u32, rs2: u32, distance: i32) -> u32 {
    let d = distance as u32;
    (d >> 12 & 1) << 31
        | (d >> 5 & 63) << 25
        | rs2 << 20
        | rs1 << 15
        | funct3 << 12
        | (d >> 1 & 15) << 8
        | (d >> 11 & 1) << 7
        | 0x63
}

pub const fn jal(rd: u32, distance: i32) -> u32 {
    let d = distance as u32;
    (d >> 20 & 1) << 31 | (d >> 1 & 1023) << 21 | (d >> 11 & 1) << 20 | (d >> 12 & 255) << 12 | rd << 7 | 0x6f
}

pub const fn jalr(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x67, 0, rd, rs1, imm)
}

pub const fn lui(rd: u32, imm20: u32) -> u32 {
    imm20 << 12 | rd << 7 | 0x37
}

pub const fn auipc(rd: u32, imm20: u32) -> u32 {
    imm20 << 12 | rd << 7 | 0x17
}

pub const fn addi(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x13, 0, rd, rs1, imm)
}

pub const fn add(rd: u32, rs1: u32, rs2: u32) -> u32 {
    r(0x33, 0, 0, rd, rs1, rs2)
}

pub const fn ld(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x03, 3, rd, rs1, imm)
}

pub const fn lw(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x03, 2, rd, rs1, imm)
}

pub const fn sd(rs2: u32, rs1: u32, imm: i32) -> u32 {
    s(3, rs1, rs2, imm)
}

pub const fn sw(rs2: u32, rs1: u32, imm: i32) -> u32 {
    s(2, rs1, rs2, imm)
}

pub const fn bne(rs1: u32, rs2: u32, distance: i32) -> u32 {
    b(1, rs1, rs2, distance)
}

/// `csrrw` (1), `csrrs` (2), `csrrc` (3), or 4 more for the immediate forms.
pub const fn csr(funct3: u32, rd: u32, csr: u32, rs1: u32) -> u32 {
    csr << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | 0x73
}

/// An atomic instruction; `funct3` 2 for words, 3 for double words.
pub const fn amo(funct5: u32, funct3: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    r(0x2f, funct3, funct5 << 2, rd, rs1, rs2)
}

/// `lui` and `addiw` that put any 32-bit value, sign-extended, into `rd`.
pub fn li32(rd: u32, value: i32) -> [u32; 2] {
    let upper = (value as u32).wrapping_add(0x800) >> 12;
    [lui(rd, upper), i(0x1b, 0, rd, rd, value)]
}

pub fn bytes(code: &[u32]) -> Vec<u8> {
    code.iter().flat_map(|word| word.to_le_bytes()).collect()
}
