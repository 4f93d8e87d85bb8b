//! The decoder compared with LLVM's: the same words are instructions, and they read alike.
//!
//! LLVM 14 knows the drafts Zbp and Zbr (`llvm-mc`, Debian package `llvm`); without it the comparison is skipped and
//! says so.

#[allow(dead_code, unreachable_pub)] // Not every program needs all, and in none others do.
#[path = "../../../tests/src/harness.rs"]
mod harness;

use std::collections::HashMap;
use std::io::{BufWriter, Write as _};
use std::process::{Command, Stdio};

use flexcast_isa::{Extension, Instruction, Isa, Mnemonic};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use harness::skipped;

/// `grev a0, a1, a2`, by which an LLVM shows that it knows the drafts.
const OF_A_DRAFT: u32 = 0x68c5_d533;

/// Every half word that is an instruction of its own, and every word by opcode, `funct3` and the upper twelve bits,
/// with registers drawn at random.
fn encodings() -> Vec<u32> {
    let halves = (0..=u32::from(u16::MAX)).filter(|half| half & 3 != 3);
    let mut runner = TestRunner::default();
    let mut register = || any::<u32>().new_tree(&mut runner).expect("a number").current() & 31;
    let mut words = Vec::new();
    for opcode in (3..128).step_by(4) {
        for rest in 0..8 << 12 {
            words.push((rest >> 3) << 20 | register() << 15 | (rest & 7) << 12 | register() << 7 | opcode);
        }
    }
    halves.chain(words).chain([OF_A_DRAFT]).collect()
}

/// What LLVM makes of each: its text; not there if it is no instruction. `None` where LLVM is not installed, or does
/// not know the drafts.
fn disassembled(encodings: &[u32]) -> Option<HashMap<u32, String>> {
    const PROGRAMS: [&str; 2] = ["llvm-mc", "llvm-mc-14"];
    const FEATURES: &str = "--mattr=+m,+a,+c,+zba,+zbb,+zbs,+experimental-zbp,+experimental-zbr";
    let mut children = PROGRAMS.iter().filter_map(|name| {
        let mut command = Command::new(name);
        command.args(["--disassemble", "--arch=riscv64", "--show-encoding", FEATURES]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    });
    let Some(mut child) = children.next() else {
        skipped("llvm-mc is not installed (Debian: llvm)");
        return None;
    };
    let mut input = BufWriter::new(child.stdin.take().expect("a pipe"));
    let lines: Vec<String> = encodings
        .iter()
        .map(|bits| {
            let bytes = &bits.to_le_bytes()[..if bits & 3 == 3 { 4 } else { 2 }];
            bytes.iter().map(|byte| format!("{byte:#04x} ")).collect()
        })
        .collect();
    let writer = std::thread::spawn(move || {
        // A pipe that breaks is seen at the other end.
        let _ = lines.iter().try_for_each(|line| writeln!(input, "{line}"));
    });
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it has written");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let found: HashMap<u32, String> = text
        .lines()
        .filter_map(|line| {
            let (text, encoding) = line.split_once("# encoding: [")?;
            let bits = encoding.strip_suffix(']')?.split(',').rev().fold(0, |bits, byte| {
                bits << 8 | u32::from_str_radix(byte.trim_start_matches("0x"), 16).expect("a byte")
            });
            Some((bits, text.trim().replace('\t', " ")))
        })
        .collect();
    if !found.contains_key(&OF_A_DRAFT) {
        skipped("llvm-mc does not know the drafts Zbp and Zbr (version 14 does)");
        return None;
    }
    Some(found)
}

/// Our text as llvm-mc writes it: targets as distances, upper immediates and numbers of registers in decimal.
fn text(instruction: &Instruction) -> String {
    let text = instruction.to_string();
    let word = instruction.word();
    let (ours, theirs) = match (instruction.flow().target(), instruction.extension(), instruction.mnemonic()) {
        (Some(to), ..) => (to, to.wrapping_sub(instruction.addr()).cast_signed()),
        (_, Extension::Zicsr, _) => (u64::from(word >> 20), i64::from(word >> 20)),
        (.., Mnemonic::Lui | Mnemonic::Auipc) => (u64::from(word >> 12), i64::from(word >> 12)),
        _ => return text,
    };
    text.replacen(&format!("{ours:#x}"), &theirs.to_string(), 1)
}

/// Why it is right that LLVM 14 has other words for instructions.
fn other_encodings(instruction: &Instruction) -> Option<&'static str> {
    match instruction.extension() {
        Extension::F | Extension::D | Extension::V => Some("it takes some (fmv.x.w) without the extension"),
        Extension::Custom => Some("vendors' own"),
        Extension::Privileged => Some("of no set"),
        _ if matches!(instruction.mnemonic(), Mnemonic::Fence | Mnemonic::FenceI) => {
            Some("reserved fields of fences are ignored by processors (ISA manual, Memory Ordering Instructions)")
        }
        // `c.lui` of zero.
        _ if instruction.bits() & 0xf07f == 0x6001 => {
            Some("reserved (ISA manual, Integer Register-Immediate Operations)")
        }
        _ if instruction.word() & 0x707f == 0x73 => Some("privileged instructions that no hart has"),
        _ => None,
    }
}

/// Why it is right that LLVM 14 writes it otherwise.
fn other_text(instruction: &Instruction, theirs: &str) -> Option<&'static str> {
    let is_hint = theirs.starts_with("c.");
    match instruction.mnemonic() {
        _ if is_hint && instruction.is_compressed() => Some("hints by their own names; here what they stand for"),
        Mnemonic::Andi if instruction.immediate() == 255 => Some("later versions write zext.b"),
        Mnemonic::Grevi | Mnemonic::Gorci | Mnemonic::Shfli | Mnemonic::Unshfli if !theirs.contains("i ") => {
            Some("aliases for single amounts, gone with the drafts")
        }
        Mnemonic::Fence if theirs.contains("unknown") => Some("later versions write 0 for a fence of nothing"),
        _ if instruction.extension() == Extension::Zicsr => {
            let number = (instruction.word() >> 20).to_string();
            let count = |text: &str| text.split([' ', ',']).filter(|part| *part == number).count();
            (count(theirs) < count(&text(instruction))).then_some("registers by name")
        }
        _ => None,
    }
}

#[test]
fn the_same_words_are_instructions_and_read_alike() {
    let encodings = encodings();
    let Some(theirs) = disassembled(&encodings) else { return };
    let (mut alike, mut differences) = (0, Vec::new());
    for bits in encodings {
        let instruction = Instruction::new(0x1000, bits);
        let ours = Isa::ALL.includes(&instruction).then(|| text(&instruction));
        let theirs = theirs.get(&bits);
        let excuse = match (&ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => other_text(&instruction, theirs),
            (Some(_), None) | (None, Some(_)) => other_encodings(&instruction),
            (Some(_), Some(_)) => {
                alike += 1;
                continue;
            }
            (None, None) => continue,
        };
        if excuse.is_none() {
            differences.push(format!("{}: {ours:?}, LLVM: {theirs:?}", instruction.hex()));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(alike > 200_000, "{alike} are instructions of both");
}
