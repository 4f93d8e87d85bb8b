//! The drafts Zbp and Zbr (0.93) by their definitions, bit by bit.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use super::asm::*;

/// The bits of a number, least significant first.
pub fn bits_of(x: u64, count: usize) -> Vec<bool> {
    (0..count).map(|at| x >> at & 1 == 1).collect()
}

pub fn number(bits: &[bool]) -> u64 {
    bits.iter().enumerate().map(|(at, &bit)| u64::from(bit) << at).sum()
}

pub fn sign_extended(x: u64) -> u64 {
    x as u32 as i32 as i64 as u64
}

/// Bit i comes from bit i ^ amount.
pub fn grev(x: u64, amount: u64, width: usize) -> u64 {
    let (bits, amount) = (bits_of(x, width), amount as usize % width);
    number(&(0..width).map(|i| bits[i ^ amount]).collect::<Vec<_>>())
}

/// Bit i is set if any bit i ^ k is, for every k whose bits are among those of the amount.
pub fn gorc(x: u64, amount: u64, width: usize) -> u64 {
    let (bits, amount) = (bits_of(x, width), amount as usize % width);
    let reached = |i: usize| (0..width).filter(|k| k & !amount == 0).any(|k| bits[i ^ k]);
    number(&(0..width).map(reached).collect::<Vec<_>>())
}

/// A shuffle permutes the bits of bit numbers: stage k exchanges bits k and k + 1 of them.
pub fn shuffled(x: u64, stages: &[u32], width: usize) -> u64 {
    let mut result = vec![false; width];
    for (from, bit) in bits_of(x, width).into_iter().enumerate() {
        let mut to = from;
        for &stage in stages {
            let differ = (to >> stage ^ to >> (stage + 1)) & 1;
            to ^= differ << stage | differ << (stage + 1);
        }
        result[to] = bit;
    }
    number(&result)
}

pub fn stages(amount: u64, width: usize) -> Vec<u32> {
    let levels = width.ilog2() - 1;
    (0..levels).filter(|level| amount >> level & 1 == 1).collect()
}

pub fn shfl(x: u64, amount: u64, width: usize) -> u64 {
    let mut stages = stages(amount, width);
    stages.reverse();
    shuffled(x, &stages, width)
}

pub fn unshfl(x: u64, amount: u64, width: usize) -> u64 {
    shuffled(x, &stages(amount, width), width)
}

/// Parts of `size` bits, least significant first.
pub fn parts(x: u64, size: usize) -> Vec<u64> {
    (0..64 / size).map(|at| number(&bits_of(x, 64)[at * size..(at + 1) * size])).collect()
}

pub fn joined(parts: &[u64], size: usize) -> u64 {
    parts.iter().enumerate().fold(0, |x, (at, part)| x | part << (at * size))
}

pub fn xperm(a: u64, b: u64, size: usize) -> u64 {
    let table = parts(a, size);
    let chosen = |at: &u64| usize::try_from(*at).ok().and_then(|at| table.get(at)).copied().unwrap_or(0);
    joined(&parts(b, size).iter().map(chosen).collect::<Vec<_>>(), size)
}

/// Division of polynomials over GF(2), one bit at a time, on a vector of bits.
pub fn crc(x: u64, polynomial: u64, count: usize) -> u64 {
    let mut bits = bits_of(x, 64);
    for _ in 0..count {
        let out = bits[0];
        bits.rotate_left(1);
        bits[63] = false;
        for (bit, taps) in bits.iter_mut().zip(bits_of(polynomial, 64)) {
            *bit ^= out && taps;
        }
    }
    number(&bits)
}

pub type Definition = fn(u64, u64) -> u64;

/// Mnemonic, encoding with rd = a0, rs1 = a1, rs2 = a2, and definition.
pub fn register_forms() -> Vec<(&'static str, u32, Definition)> {
    let op = |funct7, funct3| r(0x33, funct3, funct7, A0, A1, A2);
    let op32 = |funct7, funct3| r(0x3b, funct3, funct7, A0, A1, A2);
    vec![
        ("grev", op(0x34, 5), |a, b| grev(a, b, 64)),
        ("gorc", op(0x14, 5), |a, b| gorc(a, b, 64)),
        ("shfl", op(0x04, 1), |a, b| shfl(a, b, 64)),
        ("unshfl", op(0x04, 5), |a, b| unshfl(a, b, 64)),
        ("pack", op(0x04, 4), |a, b| joined(&[parts(a, 32)[0], parts(b, 32)[0]], 32)),
        ("packu", op(0x24, 4), |a, b| joined(&[parts(a, 32)[1], parts(b, 32)[1]], 32)),
        ("packh", op(0x04, 7), |a, b| joined(&[parts(a, 8)[0], parts(b, 8)[0]], 8)),
        ("xperm.n", op(0x14, 2), |a, b| xperm(a, b, 4)),
        ("xperm.b", op(0x14, 4), |a, b| xperm(a, b, 8)),
        ("xperm.h", op(0x14, 6), |a, b| xperm(a, b, 16)),
        ("xperm.w", op(0x14, 0), |a, b| xperm(a, b, 32)),
        ("grevw", op32(0x34, 5), |a, b| sign_extended(grev(a, b, 32))),
        ("gorcw", op32(0x14, 5), |a, b| sign_extended(gorc(a, b, 32))),
        ("shflw", op32(0x04, 1), |a, b| sign_extended(shfl(a, b, 32))),
        ("unshflw", op32(0x04, 5), |a, b| sign_extended(unshfl(a, b, 32))),
        ("packw", op32(0x04, 4), |a, b| sign_extended(joined(&[parts(a, 16)[0], parts(b, 16)[0]], 16))),
        ("packuw", op32(0x24, 4), |a, b| sign_extended(joined(&[parts(a, 16)[1], parts(b, 16)[1]], 16))),
    ]
}

/// Mnemonic, encoding with rd = a0, rs1 = a1 and a shift amount of zero, amounts, and definition.
pub fn immediate_forms() -> Vec<(&'static str, u32, u32, Definition)> {
    vec![
        ("grevi", i(0x13, 5, A0, A1, 0x680), 64, |a, b| grev(a, b, 64)),
        ("gorci", i(0x13, 5, A0, A1, 0x280), 64, |a, b| gorc(a, b, 64)),
        ("shfli", i(0x13, 1, A0, A1, 0x080), 32, |a, b| shfl(a, b, 64)),
        ("unshfli", i(0x13, 5, A0, A1, 0x080), 32, |a, b| unshfl(a, b, 64)),
        ("greviw", i(0x1b, 5, A0, A1, 0x680), 32, |a, b| sign_extended(grev(a, b, 32))),
        ("gorciw", i(0x1b, 5, A0, A1, 0x280), 32, |a, b| sign_extended(gorc(a, b, 32))),
    ]
}

pub fn checksum_forms() -> Vec<(&'static str, u32, Definition)> {
    const ETHERNET: u64 = 0xEDB8_8320;
    const CASTAGNOLI: u64 = 0x82F6_3B78;
    let unary = |imm| i(0x13, 1, A0, A1, imm);
    vec![
        ("crc32.b", unary(0x610), |a, _| crc(a, ETHERNET, 8)),
        ("crc32.h", unary(0x611), |a, _| crc(a, ETHERNET, 16)),
        ("crc32.w", unary(0x612), |a, _| crc(a, ETHERNET, 32)),
        ("crc32.d", unary(0x613), |a, _| crc(a, ETHERNET, 64)),
        ("crc32c.b", unary(0x618), |a, _| crc(a, CASTAGNOLI, 8)),
        ("crc32c.h", unary(0x619), |a, _| crc(a, CASTAGNOLI, 16)),
        ("crc32c.w", unary(0x61A), |a, _| crc(a, CASTAGNOLI, 32)),
        ("crc32c.d", unary(0x61B), |a, _| crc(a, CASTAGNOLI, 64)),
    ]
}
