//! Draft bit manipulation: Zbp and Zbr as in version 0.93 of the RISC-V "B" extension's draft. BlueField-3's processor
//! has them and the vendor's compiler may emit them; rustc never does. What became part of Zbb (`rev8`, `orc.b`,
//! `zext.h`, rotations, logic with negation) is decoded with the rest.
//!
//! They are rare, so all of them share one kind of operation and are distinguished when they are executed: its `imm`
//! holds the mnemonic's number in bits 7:0 and the shift amount behind it.

use flexcast_isa::{Instruction, Mnemonic};

use crate::alu::sext;
use crate::op::Op;

/// Polynomials, least significant bit first: CRC-32 of Ethernet, and Castagnoli's.
const ETHERNET: u64 = 0xEDB8_8320;
const CASTAGNOLI: u64 = 0x82F6_3B78;

/// `imm` of the operation for a draft's instruction.
pub(crate) fn immediate(instruction: &Instruction) -> i32 {
    instruction.immediate() << 8 | instruction.mnemonic() as i32
}

/// Executes one.
#[inline(never)]
pub(crate) fn execute(op: Op, x: &mut [u64; 32]) {
    x[op.rd as usize] = value(op.imm, x[op.rs1 as usize], x[op.rs2 as usize]);
}

/// The value for `rd`. `b` is the second register's; the immediate forms take theirs from `imm`.
fn value(imm: i32, a: u64, b: u64) -> u64 {
    let shamt = u64::from((imm >> 8).cast_unsigned());
    let (low_a, low_b) = (a as u32, b as u32);
    match Mnemonic::ALL[(imm & 255) as usize] {
        Mnemonic::Grev => grev(a, b),
        Mnemonic::Grevi => grev(a, shamt),
        // With five bits of the amount, the halves of a double word never mix.
        Mnemonic::Grevw => sext(grev(u64::from(low_a), b & 31) as u32),
        Mnemonic::Greviw => sext(grev(u64::from(low_a), shamt) as u32),
        Mnemonic::Gorc => gorc(a, b),
        Mnemonic::Gorci => gorc(a, shamt),
        Mnemonic::Gorcw => sext(gorc(u64::from(low_a), b & 31) as u32),
        Mnemonic::Gorciw => sext(gorc(u64::from(low_a), shamt) as u32),
        Mnemonic::Shfl => shfl(a, b),
        Mnemonic::Shfli => shfl(a, shamt),
        Mnemonic::Shflw => sext(shfl(u64::from(low_a), b & 15) as u32),
        Mnemonic::Unshfl => unshfl(a, b),
        Mnemonic::Unshfli => unshfl(a, shamt),
        Mnemonic::Unshflw => sext(unshfl(u64::from(low_a), b & 15) as u32),
        Mnemonic::Pack => u64::from(low_a) | b << 32,
        Mnemonic::Packu => a >> 32 | b >> 32 << 32,
        Mnemonic::Packh => a & 0xff | (b & 0xff) << 8,
        Mnemonic::Packw => sext(low_a & 0xffff | low_b << 16),
        Mnemonic::Packuw => sext(low_a >> 16 | low_b >> 16 << 16),
        Mnemonic::XpermN => xperm(a, b, 2),
        Mnemonic::XpermB => xperm(a, b, 3),
        Mnemonic::XpermH => xperm(a, b, 4),
        Mnemonic::XpermW => xperm(a, b, 5),
        Mnemonic::Crc32B => crc32(a, ETHERNET, 8),
        Mnemonic::Crc32H => crc32(a, ETHERNET, 16),
        Mnemonic::Crc32W => crc32(a, ETHERNET, 32),
        Mnemonic::Crc32D => crc32(a, ETHERNET, 64),
        Mnemonic::Crc32cB => crc32(a, CASTAGNOLI, 8),
        Mnemonic::Crc32cH => crc32(a, CASTAGNOLI, 16),
        Mnemonic::Crc32cW => crc32(a, CASTAGNOLI, 32),
        Mnemonic::Crc32cD => crc32(a, CASTAGNOLI, 64),
        other => unreachable!("`{}` is not decoded to an instruction of the drafts", other.name()),
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

/// Each part of `b`, of 1 << `log` bits, chooses a part of `a`; a number that names none gives zero.
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
