//! Second definition of what instructions compute: encodings as the architecture's tables show them, values by
//! definition and not by the operators that the interpreter uses. Control transfers are not here.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::sync::LazyLock;

use emu_hart::Cause;

use super::drafts;

/// What an instruction reads.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Values of the registers `rs1` and `rs2`.
    pub a: u64,
    pub b: u64,
    /// The instruction's bits and address.
    pub bits: u32,
    pub pc: u64,
}

impl Operands {
    fn imm(self) -> i64 {
        i64::from(self.bits as i32 >> 20)
    }

    fn upper(self) -> i64 {
        i64::from((self.bits & 0xffff_f000) as i32)
    }

    fn shamt(self) -> u64 {
        u64::from(self.bits >> 20) % 64
    }
}

pub struct Row {
    pub name: &'static str,
    pub extension: &'static str,
    pub mask: u32,
    pub bits: u32,
    pub value: Box<dyn Fn(Operands) -> u64 + Send + Sync>,
}

/// Mask and bits of a pattern of 32 zeroes, ones and dots, from bit 31 to bit 0; blanks do not count.
fn pattern(text: &str) -> (u32, u32) {
    let digits: Vec<char> = text.chars().filter(|digit| *digit != ' ').collect();
    assert_eq!(digits.len(), 32, "{text}");
    let number = |of: &dyn Fn(char) -> bool| digits.iter().fold(0, |word, &digit| word << 1 | u32::from(of(digit)));
    (number(&|digit| digit != '.'), number(&|digit| digit == '1'))
}

/// The rows whose encoding this is; more than one where a later extension took an instruction over from a draft.
pub fn rows_of(bits: u32) -> impl Iterator<Item = &'static Row> {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(rows);
    ROWS.iter().filter(move |row| bits & row.mask == row.bits)
}

/// Every instruction that only computes a value for `rd`.
fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = TABLE
        .iter()
        .map(|&(extension, name, encoding, value)| {
            let (mask, bits) = pattern(encoding);
            Row { name, extension, mask, bits, value: Box::new(value) }
        })
        .collect();
    // The drafts' definitions take two values; the immediate forms' second is the shift amount.
    for (name, bits, value) in drafts::register_forms() {
        let (bits, mask) = (bits & 0xfe00_707f, 0xfe00_707f);
        rows.push(Row { name, extension: "zbp", mask, bits, value: Box::new(move |o| value(o.a, o.b)) });
    }
    for (name, bits, amounts, value) in drafts::immediate_forms() {
        let mask = !((amounts - 1) << 20 | 0x000f_8f80);
        let amount = move |o: Operands| u64::from(o.bits >> 20) % u64::from(amounts);
        let value = Box::new(move |o: Operands| value(o.a, amount(o)));
        rows.push(Row { name, extension: "zbp", mask, bits: bits & mask, value });
    }
    for (name, bits, value) in drafts::checksum_forms() {
        let (bits, mask) = (bits & 0xfff0_707f, 0xfff0_707f);
        rows.push(Row { name, extension: "zbr", mask, bits, value: Box::new(move |o| value(o.a, o.b)) });
    }
    rows
}

/// The low 32 bits, sign-extended.
fn w(value: u64) -> u64 {
    (i64::from(value as u32) - if value >> 31 & 1 == 1 { 1 << 32 } else { 0 }) as u64
}

fn low(value: u64) -> u64 {
    value % (1 << 32)
}

/// Multiplication of any two signs.
fn product(a: i128, b: i128) -> [u64; 2] {
    let product = a.wrapping_mul(b);
    [product as u64, (product >> 64) as u64]
}

fn s(value: u64) -> i128 {
    i128::from(value as i64)
}

fn u(value: u64) -> i128 {
    i128::from(value)
}

/// Quotient and remainder as the architecture's table of semantics has them, for operands of `xlen` bits given as
/// numbers. The overflowing division needs no case: what does not fit is cut off by who takes it.
fn divided(a: i128, b: i128) -> [u64; 2] {
    if b == 0 { [u64::MAX, a as u64] } else { [(a / b) as u64, (a % b) as u64] }
}

fn sw(value: u64) -> i128 {
    s(w(value))
}

fn uw(value: u64) -> i128 {
    u(low(value))
}

fn shifted_left(a: u64, amount: u64) -> u64 {
    (0..amount).fold(a, |a, _| a.wrapping_add(a))
}

fn shifted_right(a: u64, amount: u64) -> u64 {
    (u128::from(a) / (1_u128 << amount)) as u64
}

fn shifted_right_signed(a: u64, amount: u64) -> u64 {
    s(a).div_euclid(1 << amount) as u64
}

fn rotated_right(a: u64, amount: u64, width: usize) -> u64 {
    let bits = drafts::bits_of(a, width);
    drafts::number(&(0..width).map(|i| bits[(i + amount as usize) % width]).collect::<Vec<_>>())
}

fn rotated_left(a: u64, amount: u64, width: usize) -> u64 {
    rotated_right(a, width as u64 - amount % width as u64, width)
}

fn leading_zeros(a: u64, width: usize) -> u64 {
    drafts::bits_of(a, width).iter().rev().take_while(|bit| !**bit).count() as u64
}

fn trailing_zeros(a: u64, width: usize) -> u64 {
    drafts::bits_of(a, width).iter().take_while(|bit| !**bit).count() as u64
}

fn ones(a: u64, width: usize) -> u64 {
    drafts::bits_of(a, width).iter().filter(|bit| **bit).count() as u64
}

/// Bit by bit.
fn logic(a: u64, b: u64, of: fn(bool, bool) -> bool) -> u64 {
    let (a, b) = (drafts::bits_of(a, 64), drafts::bits_of(b, 64));
    drafts::number(&a.into_iter().zip(b).map(|(a, b)| of(a, b)).collect::<Vec<_>>())
}

/// One bit of a number changed.
fn with_bit(a: u64, at: u64, of: fn(bool) -> bool) -> u64 {
    let mut bits = drafts::bits_of(a, 64);
    let bit = &mut bits[at as usize % 64];
    *bit = of(*bit);
    drafts::number(&bits)
}

fn bit(a: u64, at: u64) -> u64 {
    u64::from(drafts::bits_of(a, 64)[at as usize % 64])
}

fn of_bytes(a: u64, of: fn([u8; 8]) -> [u8; 8]) -> u64 {
    u64::from_le_bytes(of(a.to_le_bytes()))
}

/// Value and memory after a load, a store or an atomic on an aligned double word; `None` if there is no such
/// instruction.
pub fn accessed(bits: u32, addr: u64, b: u64, memory: u64) -> Option<Result<(Option<u64>, u64), Cause>> {
    let (opcode, funct3, funct5) = (bits & 0x7f, bits >> 12 & 7, bits >> 27);
    let exists = match opcode {
        0x03 => funct3 <= 6,
        0x23 => funct3 <= 3,
        _ => {
            let known = [0, 1, 2, 3, 4, 8, 12, 16, 20, 24, 28].contains(&funct5);
            matches!(funct3, 2 | 3) && known && (funct5 != 2 || bits >> 20 & 31 == 0)
        }
    };
    if !exists {
        return None;
    }
    let bytes = 1_u64 << (funct3 & 3);
    let loads = opcode == 0x03 || opcode == 0x2f && funct5 == 2;
    if !addr.is_multiple_of(bytes) {
        return Some(Err(if loads { Cause::LoadMisaligned } else { Cause::StoreMisaligned }));
    }
    let at = addr % 8 * 8;
    let part = u128::from(memory >> at) % (1 << (bytes * 8));
    let signed =
        |part: u128| if part >> (bytes * 8 - 1) == 1 { part as i128 - (1 << (bytes * 8)) } else { part as i128 };
    let replaced = |new: u128| {
        let mask = ((1_u128 << (bytes * 8)) - 1) << at;
        (u128::from(memory) & !mask | new << at & mask) as u64
    };
    let old = if opcode == 0x03 && funct3 >= 4 { part as u64 } else { signed(part) as u64 };
    if opcode == 0x03 {
        return Some(Ok((Some(old), memory)));
    }
    if opcode == 0x23 {
        return Some(Ok((None, replaced(u128::from(b)))));
    }
    let operand = u128::from(b) % (1 << (bytes * 8));
    let (less, less_unsigned) = (signed(part) < signed(operand), part < operand);
    let pick = |first: bool| if first { part } else { operand };
    let new = match funct5 {
        0 => part + operand,
        1 => operand,
        2 => part,
        // Nothing is reserved.
        3 => return Some(Ok((Some(1), memory))),
        4 => part ^ operand,
        8 => part | operand,
        12 => part & operand,
        16 => pick(less),
        20 => pick(!less),
        24 => pick(less_unsigned),
        _ => pick(!less_unsigned),
    };
    Some(Ok((Some(old), replaced(new))))
}

/// Extension, mnemonic, encoding, value.
type Line = (&'static str, &'static str, &'static str, fn(Operands) -> u64);

#[rustfmt::skip]
static TABLE: &[Line] = &[
    ("i", "lui",       "....... ..... ..... ... ..... 0110111", |o| o.upper() as u64),
    ("i", "auipc",     "....... ..... ..... ... ..... 0010111", |o| (u(o.pc) + i128::from(o.upper())) as u64),
    ("i", "addi",      "....... ..... ..... 000 ..... 0010011", |o| (u(o.a) + i128::from(o.imm())) as u64),
    ("i", "slti",      "....... ..... ..... 010 ..... 0010011", |o| if (o.a as i64) < o.imm() { 1 } else { 0 }),
    ("i", "sltiu",     "....... ..... ..... 011 ..... 0010011", |o| if o.a < o.imm() as u64 { 1 } else { 0 }),
    ("i", "xori",      "....... ..... ..... 100 ..... 0010011", |o| logic(o.a, o.imm() as u64, |a, b| a != b)),
    ("i", "ori",       "....... ..... ..... 110 ..... 0010011", |o| logic(o.a, o.imm() as u64, |a, b| a || b)),
    ("i", "andi",      "....... ..... ..... 111 ..... 0010011", |o| logic(o.a, o.imm() as u64, |a, b| a && b)),
    ("i", "slli",      "000000. ..... ..... 001 ..... 0010011", |o| shifted_left(o.a, o.shamt())),
    ("i", "srli",      "000000. ..... ..... 101 ..... 0010011", |o| shifted_right(o.a, o.shamt())),
    ("i", "srai",      "010000. ..... ..... 101 ..... 0010011", |o| shifted_right_signed(o.a, o.shamt())),
    ("i", "addiw",     "....... ..... ..... 000 ..... 0011011", |o| w((u(o.a) + i128::from(o.imm())) as u64)),
    ("i", "slliw",     "0000000 ..... ..... 001 ..... 0011011", |o| w(shifted_left(o.a, o.shamt()))),
    ("i", "srliw",     "0000000 ..... ..... 101 ..... 0011011", |o| w(shifted_right(low(o.a), o.shamt()))),
    ("i", "sraiw",     "0100000 ..... ..... 101 ..... 0011011", |o| shifted_right_signed(w(o.a), o.shamt())),
    ("i", "add",       "0000000 ..... ..... 000 ..... 0110011", |o| (u(o.a) + u(o.b)) as u64),
    ("i", "sub",       "0100000 ..... ..... 000 ..... 0110011", |o| (u(o.a) - u(o.b)) as u64),
    ("i", "sll",       "0000000 ..... ..... 001 ..... 0110011", |o| shifted_left(o.a, o.b % 64)),
    ("i", "slt",       "0000000 ..... ..... 010 ..... 0110011", |o| if s(o.a) < s(o.b) { 1 } else { 0 }),
    ("i", "sltu",      "0000000 ..... ..... 011 ..... 0110011", |o| if u(o.a) < u(o.b) { 1 } else { 0 }),
    ("i", "xor",       "0000000 ..... ..... 100 ..... 0110011", |o| logic(o.a, o.b, |a, b| a != b)),
    ("i", "srl",       "0000000 ..... ..... 101 ..... 0110011", |o| shifted_right(o.a, o.b % 64)),
    ("i", "sra",       "0100000 ..... ..... 101 ..... 0110011", |o| shifted_right_signed(o.a, o.b % 64)),
    ("i", "or",        "0000000 ..... ..... 110 ..... 0110011", |o| logic(o.a, o.b, |a, b| a || b)),
    ("i", "and",       "0000000 ..... ..... 111 ..... 0110011", |o| logic(o.a, o.b, |a, b| a && b)),
    ("i", "addw",      "0000000 ..... ..... 000 ..... 0111011", |o| w((u(o.a) + u(o.b)) as u64)),
    ("i", "subw",      "0100000 ..... ..... 000 ..... 0111011", |o| w((u(o.a) - u(o.b)) as u64)),
    ("i", "sllw",      "0000000 ..... ..... 001 ..... 0111011", |o| w(shifted_left(o.a, o.b % 32))),
    ("i", "srlw",      "0000000 ..... ..... 101 ..... 0111011", |o| w(shifted_right(low(o.a), o.b % 32))),
    ("i", "sraw",      "0100000 ..... ..... 101 ..... 0111011", |o| shifted_right_signed(w(o.a), o.b % 32)),

    ("m", "mul",       "0000001 ..... ..... 000 ..... 0110011", |o| product(s(o.a), s(o.b))[0]),
    ("m", "mulh",      "0000001 ..... ..... 001 ..... 0110011", |o| product(s(o.a), s(o.b))[1]),
    ("m", "mulhsu",    "0000001 ..... ..... 010 ..... 0110011", |o| product(s(o.a), u(o.b))[1]),
    ("m", "mulhu",     "0000001 ..... ..... 011 ..... 0110011", |o| product(u(o.a), u(o.b))[1]),
    ("m", "div",       "0000001 ..... ..... 100 ..... 0110011", |o| divided(s(o.a), s(o.b))[0]),
    ("m", "divu",      "0000001 ..... ..... 101 ..... 0110011", |o| divided(u(o.a), u(o.b))[0]),
    ("m", "rem",       "0000001 ..... ..... 110 ..... 0110011", |o| divided(s(o.a), s(o.b))[1]),
    ("m", "remu",      "0000001 ..... ..... 111 ..... 0110011", |o| divided(u(o.a), u(o.b))[1]),
    ("m", "mulw",      "0000001 ..... ..... 000 ..... 0111011", |o| w(product(sw(o.a), sw(o.b))[0])),
    ("m", "divw",      "0000001 ..... ..... 100 ..... 0111011", |o| w(divided(sw(o.a), sw(o.b))[0])),
    ("m", "divuw",     "0000001 ..... ..... 101 ..... 0111011", |o| w(divided(uw(o.a), uw(o.b))[0])),
    ("m", "remw",      "0000001 ..... ..... 110 ..... 0111011", |o| w(divided(sw(o.a), sw(o.b))[1])),
    ("m", "remuw",     "0000001 ..... ..... 111 ..... 0111011", |o| w(divided(uw(o.a), uw(o.b))[1])),

    ("zba", "sh1add",    "0010000 ..... ..... 010 ..... 0110011", |o| (2 * u(o.a) + u(o.b)) as u64),
    ("zba", "sh2add",    "0010000 ..... ..... 100 ..... 0110011", |o| (4 * u(o.a) + u(o.b)) as u64),
    ("zba", "sh3add",    "0010000 ..... ..... 110 ..... 0110011", |o| (8 * u(o.a) + u(o.b)) as u64),
    ("zba", "add.uw",    "0000100 ..... ..... 000 ..... 0111011", |o| (uw(o.a) + u(o.b)) as u64),
    ("zba", "sh1add.uw", "0010000 ..... ..... 010 ..... 0111011", |o| (2 * uw(o.a) + u(o.b)) as u64),
    ("zba", "sh2add.uw", "0010000 ..... ..... 100 ..... 0111011", |o| (4 * uw(o.a) + u(o.b)) as u64),
    ("zba", "sh3add.uw", "0010000 ..... ..... 110 ..... 0111011", |o| (8 * uw(o.a) + u(o.b)) as u64),
    ("zba", "slli.uw",   "000010. ..... ..... 001 ..... 0011011", |o| shifted_left(low(o.a), o.shamt())),

    ("zbb", "andn",      "0100000 ..... ..... 111 ..... 0110011", |o| logic(o.a, o.b, |a, b| a && !b)),
    ("zbb", "orn",       "0100000 ..... ..... 110 ..... 0110011", |o| logic(o.a, o.b, |a, b| a || !b)),
    ("zbb", "xnor",      "0100000 ..... ..... 100 ..... 0110011", |o| logic(o.a, o.b, |a, b| a == b)),
    ("zbb", "min",       "0000101 ..... ..... 100 ..... 0110011", |o| if s(o.a) < s(o.b) { o.a } else { o.b }),
    ("zbb", "minu",      "0000101 ..... ..... 101 ..... 0110011", |o| if u(o.a) < u(o.b) { o.a } else { o.b }),
    ("zbb", "max",       "0000101 ..... ..... 110 ..... 0110011", |o| if s(o.a) < s(o.b) { o.b } else { o.a }),
    ("zbb", "maxu",      "0000101 ..... ..... 111 ..... 0110011", |o| if u(o.a) < u(o.b) { o.b } else { o.a }),
    ("zbb", "rol",       "0110000 ..... ..... 001 ..... 0110011", |o| rotated_left(o.a, o.b % 64, 64)),
    ("zbb", "ror",       "0110000 ..... ..... 101 ..... 0110011", |o| rotated_right(o.a, o.b % 64, 64)),
    ("zbb", "rolw",      "0110000 ..... ..... 001 ..... 0111011", |o| w(rotated_left(o.a, o.b % 32, 32))),
    ("zbb", "rorw",      "0110000 ..... ..... 101 ..... 0111011", |o| w(rotated_right(o.a, o.b % 32, 32))),
    ("zbb", "rori",      "011000. ..... ..... 101 ..... 0010011", |o| rotated_right(o.a, o.shamt(), 64)),
    ("zbb", "roriw",     "0110000 ..... ..... 101 ..... 0011011", |o| w(rotated_right(o.a, o.shamt(), 32))),
    ("zbb", "clz",       "0110000 00000 ..... 001 ..... 0010011", |o| leading_zeros(o.a, 64)),
    ("zbb", "ctz",       "0110000 00001 ..... 001 ..... 0010011", |o| trailing_zeros(o.a, 64)),
    ("zbb", "cpop",      "0110000 00010 ..... 001 ..... 0010011", |o| ones(o.a, 64)),
    ("zbb", "clzw",      "0110000 00000 ..... 001 ..... 0011011", |o| leading_zeros(o.a, 32)),
    ("zbb", "ctzw",      "0110000 00001 ..... 001 ..... 0011011", |o| trailing_zeros(o.a, 32)),
    ("zbb", "cpopw",     "0110000 00010 ..... 001 ..... 0011011", |o| ones(o.a, 32)),
    ("zbb", "sext.b",    "0110000 00100 ..... 001 ..... 0010011", |o| shifted_right_signed(shifted_left(o.a, 56), 56)),
    ("zbb", "sext.h",    "0110000 00101 ..... 001 ..... 0010011", |o| shifted_right_signed(shifted_left(o.a, 48), 48)),
    ("zbb", "zext.h",    "0000100 00000 ..... 100 ..... 0111011", |o| o.a % (1 << 16)),
    ("zbb", "orc.b",     "0010100 00111 ..... 101 ..... 0010011", |o| of_bytes(o.a, |a| a.map(|a| if a == 0 { 0 } else { 255 }))),
    ("zbb", "rev8",      "0110101 11000 ..... 101 ..... 0010011", |o| of_bytes(o.a, |mut a| { a.reverse(); a })),

    ("zbs", "bclr",      "0100100 ..... ..... 001 ..... 0110011", |o| with_bit(o.a, o.b, |_| false)),
    ("zbs", "bext",      "0100100 ..... ..... 101 ..... 0110011", |o| bit(o.a, o.b)),
    ("zbs", "binv",      "0110100 ..... ..... 001 ..... 0110011", |o| with_bit(o.a, o.b, |bit| !bit)),
    ("zbs", "bset",      "0010100 ..... ..... 001 ..... 0110011", |o| with_bit(o.a, o.b, |_| true)),
    ("zbs", "bclri",     "010010. ..... ..... 001 ..... 0010011", |o| with_bit(o.a, o.shamt(), |_| false)),
    ("zbs", "bexti",     "010010. ..... ..... 101 ..... 0010011", |o| bit(o.a, o.shamt())),
    ("zbs", "binvi",     "011010. ..... ..... 001 ..... 0010011", |o| with_bit(o.a, o.shamt(), |bit| !bit)),
    ("zbs", "bseti",     "001010. ..... ..... 001 ..... 0010011", |o| with_bit(o.a, o.shamt(), |_| true)),

    // The draft Zbp has these of Zbb, and in `grevi` and `gorci` what became `rev8` and `orc.b`, in `packw` `zext.h`.
    ("zbp", "andn",      "0100000 ..... ..... 111 ..... 0110011", |o| logic(o.a, o.b, |a, b| a && !b)),
    ("zbp", "orn",       "0100000 ..... ..... 110 ..... 0110011", |o| logic(o.a, o.b, |a, b| a || !b)),
    ("zbp", "xnor",      "0100000 ..... ..... 100 ..... 0110011", |o| logic(o.a, o.b, |a, b| a == b)),
    ("zbp", "rol",       "0110000 ..... ..... 001 ..... 0110011", |o| rotated_left(o.a, o.b % 64, 64)),
    ("zbp", "ror",       "0110000 ..... ..... 101 ..... 0110011", |o| rotated_right(o.a, o.b % 64, 64)),
    ("zbp", "rolw",      "0110000 ..... ..... 001 ..... 0111011", |o| w(rotated_left(o.a, o.b % 32, 32))),
    ("zbp", "rorw",      "0110000 ..... ..... 101 ..... 0111011", |o| w(rotated_right(o.a, o.b % 32, 32))),
    ("zbp", "rori",      "011000. ..... ..... 101 ..... 0010011", |o| rotated_right(o.a, o.shamt(), 64)),
    ("zbp", "roriw",     "0110000 ..... ..... 101 ..... 0011011", |o| w(rotated_right(o.a, o.shamt(), 32))),
];
