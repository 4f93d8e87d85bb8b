//! `flexcast emu run`: exit codes are the program's own.

use std::process::{Command, Output};

/// An ELF with one segment of code at 0x10000, which is all a bare program needs.
fn elf(code: &[u32]) -> Vec<u8> {
    const BASE: u64 = 0x1_0000;
    const HEADERS: u64 = 64 + 56;
    let len = code.len() as u64 * 4;
    let mut out = Vec::new();
    out.extend_from_slice(&[0x7F, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&2u16.to_le_bytes()); // executable
    out.extend_from_slice(&243u16.to_le_bytes()); // RISC-V
    out.extend_from_slice(&1u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&1u32.to_le_bytes()); // compressed instructions, soft float
    for half in [64u16, 56, 1, 64, 0, 0] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    out.extend_from_slice(&1u32.to_le_bytes()); // load
    out.extend_from_slice(&5u32.to_le_bytes()); // read, execute
    for word in [0, BASE, BASE, HEADERS + len, HEADERS + len, 0x1000] {
        out.extend_from_slice(&u64::to_le_bytes(word));
    }
    out.extend(code.iter().flat_map(|insn| insn.to_le_bytes()));
    out
}

const LI_A7_EXIT: u32 = 0x05D0_0893;
const ECALL: u32 = 0x0000_0073;

fn li_a0(value: u32) -> u32 {
    value << 20 | 0x0513
}

fn run(code: &[u32], extra: &[&str]) -> Output {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), elf(code)).expect("writable");
    let path = file.path().to_string_lossy().into_owned();
    let mut args = vec!["emu", "run"];
    args.extend_from_slice(extra);
    args.push(&path);
    Command::new(env!("CARGO_BIN_EXE_flexcast")).args(args).output().expect("the tool starts")
}

#[test]
fn the_exit_code_is_the_programs() {
    for code in [0, 7, 255] {
        let output = run(&[li_a0(code), LI_A7_EXIT, ECALL], &[]);
        assert_eq!(output.status.code(), Some(code as i32), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn arguments_arrive() {
    // Exit with argc, the first word on the stack: ld a0, 0(sp).
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), elf(&[0x0001_3503, LI_A7_EXIT, ECALL])).expect("writable");
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["emu", "run", &file.path().to_string_lossy(), "one", "--two"])
        .output()
        .expect("the tool starts");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_endless_program_is_stopped() {
    let output = run(&[0x0000_006F], &["--limit", "1000"]);
    assert_eq!(output.status.code(), Some(124));
    assert!(String::from_utf8_lossy(&output.stderr).contains("1000 instructions"));
}

#[test]
fn a_fault_is_told_with_its_address() {
    let output = run(&[li_a0(1), 0], &[]);
    assert_eq!(output.status.code(), Some(132));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("0x1007c"), "the second instruction: {text}");
}

#[test]
fn a_trace_has_a_line_per_instruction() {
    let output = run(&[li_a0(0), LI_A7_EXIT, ECALL], &["--trace"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().count(), 3, "{text}");
}
