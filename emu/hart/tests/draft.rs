//! Draft bit manipulation (Zbp, Zbr 0.93): results against definitions bit by bit, encodings against LLVM's assembler.
//!
//! Neither binutils nor the qemu-riscv64 of Debian 12 knows these drafts. LLVM 14 assembles them (`llvm-mc`, Debian
//! package `llvm`); without it that comparison is skipped and says so.

use std::io::Write as _;
use std::process::{Command, Stdio};

use emu_hart::{Hart, Isa, Limits, Stop, Text};
use flexcast_isa::Extension;
use proptest::prelude::*;

use crate::harness::skipped;
use crate::{asm, bus, drafts};
use asm::*;
use bus::{CODE, Fixture, TestBus};
use drafts::*;

/// A fixture whose hart has the drafts, as that of BlueField-3.
fn fixture(code: &[u32]) -> Fixture {
    let code = bytes(code);
    let text = Text::new(CODE, code.len() as u64);
    Fixture { hart: Hart::new(CODE), text, bus: TestBus::new(&code) }
}

/// Executes one instruction that reads `a1`, `a2` and writes `a0`.
fn eval(instruction: u32, a: u64, b: u64) -> u64 {
    let mut fixture = fixture(&[instruction, ECALL]);
    (fixture.hart.x[11], fixture.hart.x[12]) = (a, b);
    assert_eq!(fixture.go(), Stop::Ecall, "{instruction:#010x}");
    assert_eq!((fixture.hart.instret, fixture.hart.cycles), (1, 1));
    fixture.hart.x[10]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn register_forms_agree_with_their_definitions(a: u64, b: u64, small in 0_u64..64) {
        for (name, code, definition) in register_forms().into_iter().chain(checksum_forms()) {
            prop_assert_eq!(eval(code, a, b), definition(a, b), "{} {:#x} {:#x}", name, a, b);
            prop_assert_eq!(eval(code, a, small), definition(a, small), "{} {:#x} {:#x}", name, a, small);
            // Numbers of parts that exist.
            let few = b & 0x0707_0707_0707_0707;
            prop_assert_eq!(eval(code, a, few), definition(a, few), "{} {:#x} {:#x}", name, a, few);
        }
    }

    #[test]
    fn immediate_forms_agree_with_their_definitions(a: u64) {
        for (name, code, amounts, definition) in immediate_forms() {
            for amount in 0..amounts {
                let value = eval(code | amount << 20, a, 0);
                prop_assert_eq!(value, definition(a, u64::from(amount)), "{} {:#x} {}", name, a, amount);
            }
        }
    }

    #[test]
    fn shuffles_are_undone(a: u64, amount: u64) {
        let [shfl, unshfl] = [r(0x33, 1, 0x04, A0, A1, A2), r(0x33, 5, 0x04, A0, A1, A2)];
        prop_assert_eq!(eval(unshfl, eval(shfl, a, amount), amount), a);
    }
}

#[test]
fn checksums_are_the_published_ones() {
    let check = |code: u32| {
        !u64::from(
            b"123456789".iter().fold(u32::MAX, |sum, &byte| eval(code, u64::from(sum ^ u32::from(byte)), 0) as u32),
        ) as u32
    };
    // The check values of CRC-32/ISO-HDLC and CRC-32/ISCSI.
    assert_eq!(check(i(0x13, 1, A0, A1, 0x610)), 0xCBF4_3926);
    assert_eq!(check(i(0x13, 1, A0, A1, 0x618)), 0xE306_9283);
}

#[test]
fn known_values() {
    let word = 0x0123_4567_89AB_CDEF;
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x680 | 63), word, 0), word.reverse_bits(), "rev");
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x680 | 0x20), word, 0), word.rotate_left(32), "rev32");
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x280 | 63), 1 << 40, 0), u64::MAX, "orc");
    assert_eq!(eval(i(0x13, 1, A0, A1, 0x080 | 31), 0xFFFF_FFFF_0000_0000, 0), 0xAAAA_AAAA_AAAA_AAAA, "zip");
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x080 | 31), 0xAAAA_AAAA_AAAA_AAAA, 0), 0xFFFF_FFFF_0000_0000, "unzip");
    assert_eq!(eval(r(0x33, 4, 0x14, A0, A1, A2), word, 0x0001_0203_0405_0607), word.swap_bytes(), "xperm.b");
    assert_eq!(eval(r(0x33, 4, 0x04, A0, A1, 0), word, 0), word & 0xFFFF_FFFF, "zext.w");
}

#[test]
fn without_the_extensions_they_are_illegal_and_x0_stays_zero_with_it() {
    let registers = register_forms().into_iter().chain(checksum_forms()).map(|(name, code, _)| (name, code));
    let immediates = immediate_forms().into_iter().map(|(name, code, ..)| (name, code | 1 << 20));
    for (name, code) in registers.chain(immediates) {
        let mut plain = Fixture::new(&[code, ECALL]);
        plain.text = plain.text.with_isa(Isa::BLUEFIELD_3.without(Extension::Zbp).without(Extension::Zbr));
        assert!(matches!(plain.run(&Limits::instructions(5)), Stop::Fault(_)), "{name}");
        assert_eq!((plain.hart.pc, plain.hart.instret), (CODE, 0), "{name}");
        let mut fixture = fixture(&[code & !(31 << 7), ECALL]);
        (fixture.hart.x[11], fixture.hart.x[12]) = (u64::MAX, u64::MAX);
        assert_eq!(fixture.go(), Stop::Ecall, "{name}");
        assert_eq!((fixture.hart.x[0], fixture.hart.x[10]), (0, 0), "{name}");
    }
}

#[test]
fn neighbours_in_the_encoding_space_stay_illegal() {
    for (what, code) in [
        ("shfli with bit 25", i(0x13, 1, A0, A1, 0x0A0)),
        ("unshfli with bit 25", i(0x13, 5, A0, A1, 0x0A0)),
        ("greviw with bit 25", i(0x1b, 5, A0, A1, 0x6A0)),
        ("crc32 of a size that is none", i(0x13, 1, A0, A1, 0x614)),
        ("crc32c of a size that is none", i(0x13, 1, A0, A1, 0x61C)),
        ("bmatflip", i(0x13, 1, A0, A1, 0x603)),
        ("packhw", r(0x3b, 7, 0x04, A0, A1, A2)),
        ("sh1add", r(0x33, 2, 0x10, A0, A1, A2)),
        ("clmul", r(0x33, 1, 0x05, A0, A1, A2)),
    ] {
        assert!(matches!(fixture(&[code, ECALL]).run(&Limits::instructions(5)), Stop::Fault(_)), "{what}");
    }
    // What Zbb took over is decoded as before.
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x6b8), 0x0102_0304_0506_0708, 0), 0x0807_0605_0403_0201, "rev8");
    assert_eq!(eval(i(0x13, 5, A0, A1, 0x287), 0x0100, 0), 0xFF00, "orc.b");
    assert_eq!(eval(r(0x3b, 4, 0x04, A0, A1, 0), 0xDEAD_8001, 0), 0x8001, "zext.h");
}

/// Encodings by LLVM's assembler, one per line; `None` where it is not installed.
fn assembled(lines: &[String]) -> Option<Vec<u32>> {
    const ASSEMBLERS: [&str; 2] = ["llvm-mc", "llvm-mc-14"];
    let mut children = ASSEMBLERS.iter().filter_map(|name| {
        let features = "--mattr=+experimental-zbp,+experimental-zbr";
        let mut command = Command::new(name);
        command.args(["--arch=riscv64", features, "-show-encoding"]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()
    });
    let Some(mut child) = children.next() else {
        skipped("llvm-mc is not installed (Debian: llvm)");
        return None;
    };
    child.stdin.take().expect("a pipe").write_all(lines.join("\n").as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || complaints.contains("not a recognized feature") {
        skipped("llvm-mc does not know the drafts Zbp and Zbr (version 14 does)");
        return None;
    }
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let encodings = text.lines().filter_map(|line| line.split_once("encoding: [")?.1.strip_suffix(']'));
    let word = |encoding: &str| {
        let byte = |text: &str| u8::from_str_radix(text.trim_start_matches("0x"), 16).expect("a byte");
        let bytes: Vec<u8> = encoding.split(',').map(byte).collect();
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    };
    Some(encodings.map(word).collect())
}

#[test]
fn encodings_are_those_of_llvm() {
    let mut expected = Vec::new();
    let mut lines = Vec::new();
    for (name, code, _) in register_forms() {
        lines.push(format!("{name} a0, a1, a2"));
        expected.push(code);
    }
    for (name, code, _) in checksum_forms() {
        lines.push(format!("{name} a0, a1"));
        expected.push(code);
    }
    for (name, code, amounts, _) in immediate_forms() {
        for amount in 0..amounts {
            lines.push(format!("{name} a0, a1, {amount}"));
            expected.push(code | amount << 20);
        }
    }
    let Some(assembled) = assembled(&lines) else { return };
    assert_eq!(assembled.len(), lines.len());
    for ((line, code), theirs) in lines.iter().zip(&expected).zip(&assembled) {
        assert_eq!(code, theirs, "{line}: {code:#010x}, LLVM has {theirs:#010x}");
    }
}
