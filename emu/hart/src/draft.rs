//! Draft bit manipulation: Zbp and Zbr as in version 0.93 of the RISC-V "B" extension's draft. BlueField-3's processor has
//! them and the vendor's compiler may emit them; rustc never does. What became part of Zbb (`rev8`, `orc.b`, `zext.h`, rotations,
//! logic with negation) is decoded with the rest.
//!
//! They are rare, so all of them share one kind of operation and are told apart when they are executed.

use crate::alu::sext;
use crate::isa::Isa;
use crate::op::Op;

/// An instruction of the drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draft {
    Grev,
    Gorc,
    Shfl,
    Unshfl,
    Pack,
    Packu,
    Packh,
    /// Parts of 1 << this many bits.
    Xperm(u32),
    Grevi,
    Gorci,
    Shfli,
    Unshfli,
    Grevw,
    Gorcw,
    Shflw,
    Unshflw,
    Packw,
    Packuw,
    Greviw,
    Gorciw,
    /// Polynomial and bits taken in.
    Crc32(u64, u32),
}

/// Polynomials, least significant bit first: CRC-32 of Ethernet, and Castagnoli's.
const ETHERNET: u64 = 0xEDB8_8320;
const CASTAGNOLI: u64 = 0x82F6_3B78;

fn lookup(bits: u32) -> Option<Draft> {
    let (funct3, funct7) = (bits >> 12 & 7, bits >> 25);
    Some(match (bits & 0x7f, funct7, funct3) {
        (0x33, 0x34, 5) => Draft::Grev,
        (0x33, 0x14, 5) => Draft::Gorc,
        (0x33, 0x04, 1) => Draft::Shfl,
        (0x33, 0x04, 5) => Draft::Unshfl,
        (0x33, 0x04, 4) => Draft::Pack,
        (0x33, 0x24, 4) => Draft::Packu,
        (0x33, 0x04, 7) => Draft::Packh,
        (0x33, 0x14, 2) => Draft::Xperm(2),
        (0x33, 0x14, 4) => Draft::Xperm(3),
        (0x33, 0x14, 6) => Draft::Xperm(4),
        (0x33, 0x14, 0) => Draft::Xperm(5),
        (0x3b, 0x34, 5) => Draft::Grevw,
        (0x3b, 0x14, 5) => Draft::Gorcw,
        (0x3b, 0x04, 1) => Draft::Shflw,
        (0x3b, 0x04, 5) => Draft::Unshflw,
        (0x3b, 0x04, 4) => Draft::Packw,
        (0x3b, 0x24, 4) => Draft::Packuw,
        (0x13, 0x34 | 0x35, 5) => Draft::Grevi,
        (0x13, 0x14 | 0x15, 5) => Draft::Gorci,
        (0x13, 0x04, 1) => Draft::Shfli,
        (0x13, 0x04, 5) => Draft::Unshfli,
        (0x1b, 0x34, 5) => Draft::Greviw,
        (0x1b, 0x14, 5) => Draft::Gorciw,
        (0x13, 0x30, 1) => {
            let (polynomial, size) = match bits >> 20 & 31 {
                size @ 0x10..=0x13 => (ETHERNET, size - 0x10),
                size @ 0x18..=0x1b => (CASTAGNOLI, size - 0x18),
                _ => return None,
            };
            Draft::Crc32(polynomial, 8 << size)
        }
        _ => return None,
    })
}

/// The draft that has these bits for an instruction.
pub(crate) fn extension(bits: u32) -> Option<Isa> {
    Some(match lookup(bits)? {
        Draft::Crc32(..) => Isa::ZBR,
        _ => Isa::ZBP,
    })
}

/// Executes one.
#[inline(never)]
pub(crate) fn execute(op: Op, x: &mut [u64; 32]) {
    x[op.rd as usize] = value(op.bits(), x[op.rs1 as usize], x[op.rs2 as usize]);
}

/// The value for `rd`. `b` is the second register's; the immediate forms take theirs from the bits.
fn value(bits: u32, a: u64, b: u64) -> u64 {
    let shamt = u64::from(bits >> 20 & 63);
    let (low_a, low_b) = (a as u32, b as u32);
    match lookup(bits) {
        Some(Draft::Grev) => grev(a, b),
        Some(Draft::Grevi) => grev(a, shamt),
        // With five bits of the amount, the halves of a double word never mix.
        Some(Draft::Grevw) => sext(grev(u64::from(low_a), b & 31) as u32),
        Some(Draft::Greviw) => sext(grev(u64::from(low_a), shamt & 31) as u32),
        Some(Draft::Gorc) => gorc(a, b),
        Some(Draft::Gorci) => gorc(a, shamt),
        Some(Draft::Gorcw) => sext(gorc(u64::from(low_a), b & 31) as u32),
        Some(Draft::Gorciw) => sext(gorc(u64::from(low_a), shamt & 31) as u32),
        Some(Draft::Shfl) => shfl(a, b),
        Some(Draft::Shfli) => shfl(a, shamt),
        Some(Draft::Shflw) => sext(shfl(u64::from(low_a), b & 15) as u32),
        Some(Draft::Unshfl) => unshfl(a, b),
        Some(Draft::Unshfli) => unshfl(a, shamt),
        Some(Draft::Unshflw) => sext(unshfl(u64::from(low_a), b & 15) as u32),
        Some(Draft::Pack) => u64::from(low_a) | b << 32,
        Some(Draft::Packu) => a >> 32 | b >> 32 << 32,
        Some(Draft::Packh) => a & 0xff | (b & 0xff) << 8,
        Some(Draft::Packw) => sext(low_a & 0xffff | low_b << 16),
        Some(Draft::Packuw) => sext(low_a >> 16 | low_b >> 16 << 16),
        Some(Draft::Xperm(log)) => xperm(a, b, log),
        Some(Draft::Crc32(polynomial, count)) => crc32(a, polynomial, count),
        // Only what `extension` knows is decoded as a draft.
        None => 0,
    }
}

/// Bits whose number has bit 0, 1, 2, 3, 4, 5 clear.
const CLEAR: [u64; 6] = [
    0x5555_5555_5555_5555,
    0x3333_3333_3333_3333,
    0x0f0f_0f0f_0f0f_0f0f,
    0x00ff_00ff_00ff_00ff,
    0x0000_ffff_0000_ffff,
    0x0000_0000_ffff_ffff,
];

/// Reverses at each level that a bit of the amount names.
fn grev(mut x: u64, amount: u64) -> u64 {
    for (level, clear) in CLEAR.iter().enumerate() {
        if amount >> level & 1 == 1 {
            x = (x & clear) << (1 << level) | (x >> (1 << level)) & clear;
        }
    }
    x
}

/// As [`grev`], with the disjunction of both orders.
fn gorc(mut x: u64, amount: u64) -> u64 {
    for (level, clear) in CLEAR.iter().enumerate() {
        if amount >> level & 1 == 1 {
            x |= (x & clear) << (1 << level) | (x >> (1 << level)) & clear;
        }
    }
    x
}

/// One stage of a shuffle: of every four groups of 1 << `level` bits the middle two change places.
fn stage(x: u64, level: u32) -> u64 {
    const SECOND: [u64; 5] = [
        0x2222_2222_2222_2222,
        0x0c0c_0c0c_0c0c_0c0c,
        0x00f0_00f0_00f0_00f0,
        0x0000_ff00_0000_ff00,
        0x0000_0000_ffff_0000,
    ];
    let (second, distance) = (SECOND[level as usize], 1 << level);
    let third = second << distance;
    x & !(second | third) | (x & second) << distance | (x & third) >> distance
}

fn shfl(x: u64, amount: u64) -> u64 {
    (0..5).rev().filter(|level| amount >> level & 1 == 1).fold(x, stage)
}

fn unshfl(x: u64, amount: u64) -> u64 {
    (0..5).filter(|level| amount >> level & 1 == 1).fold(x, stage)
}

/// Each part of `b` chooses a part of `a`; a number that names none gives zero.
fn xperm(a: u64, b: u64, log: u32) -> u64 {
    let size = 1 << log;
    let mask = (1_u64 << size) - 1;
    (0..64).step_by(size).fold(0, |result, at| {
        let chosen = b >> at & mask;
        let part = if chosen < 64 >> log { a >> (chosen << log) & mask } else { 0 };
        result | part << at
    })
}

fn crc32(x: u64, polynomial: u64, count: u32) -> u64 {
    (0..count).fold(x, |x, _| x >> 1 ^ if x & 1 == 1 { polynomial } else { 0 })
}
