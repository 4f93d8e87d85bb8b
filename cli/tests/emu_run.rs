//! `flexcast emu run`: exit codes are the program's own.

use std::process::{Command, Output};

const BASE: u64 = 0x1_0000;
const HEADERS: u64 = 64 + 56;
/// Address of the first instruction.
const START: u64 = BASE + HEADERS;

/// An ELF with one segment at 0x10000, code and 16 words of data behind it, which is all a bare program needs. The
/// symbols have distances from the first word of data in bytes.
fn elf_with(code: &[u32], symbols: &[(&str, u64)]) -> Vec<u8> {
    let data = START + code.len() as u64 * 4;
    let len = HEADERS + code.len() as u64 * 4 + 64;
    let mut names = vec![0_u8];
    let mut table = vec![0_u8; 24];
    for (name, distance) in symbols {
        table.extend(u32::to_le_bytes(names.len() as u32));
        // A global label in an absolute section.
        table.extend([0x10, 0, 0xf1, 0xff]);
        table.extend(u64::to_le_bytes(data.wrapping_add(*distance)));
        table.extend(u64::to_le_bytes(0));
        names.extend(name.bytes().chain([0]));
    }
    let (table_at, names_at) = (len, len + table.len() as u64);
    let sections_at = (names_at + names.len() as u64).next_multiple_of(8);
    let mut out = Vec::new();
    out.extend_from_slice(&[0x7F, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&2u16.to_le_bytes()); // executable
    out.extend_from_slice(&243u16.to_le_bytes()); // RISC-V
    out.extend_from_slice(&1u32.to_le_bytes());
    for word in [START, 64, sections_at] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&1u32.to_le_bytes()); // compressed instructions, soft float
    for half in [64u16, 56, 1, 64, 3, 2] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    out.extend_from_slice(&1u32.to_le_bytes()); // load
    out.extend_from_slice(&7u32.to_le_bytes()); // read, write, execute
    for word in [0, BASE, BASE, len, len, 0x1000] {
        out.extend_from_slice(&u64::to_le_bytes(word));
    }
    out.extend(code.iter().flat_map(|insn| insn.to_le_bytes()));
    out.extend([0; 64]);
    out.extend(&table);
    out.extend(&names);
    out.resize(sections_at as usize, 0);
    out.extend([0; 64]);
    // Symbols, with the names in section 2; the first symbol is local. Then the names.
    for (kind, at, size, link, info, entry) in
        [(2_u32, table_at, table.len() as u64, 2_u32, 1_u32, 24_u64), (3, names_at, names.len() as u64, 0, 0, 0)]
    {
        out.extend([0_u32, kind].iter().flat_map(|word| word.to_le_bytes()));
        out.extend([0, 0, at, size].iter().flat_map(|word: &u64| word.to_le_bytes()));
        out.extend([link, info].iter().flat_map(|word| word.to_le_bytes()));
        out.extend([8, entry].iter().flat_map(|word| word.to_le_bytes()));
    }
    out
}

fn elf(code: &[u32]) -> Vec<u8> {
    elf_with(code, &[])
}

const LI_A7_EXIT: u32 = 0x05D0_0893;
const ECALL: u32 = 0x0000_0073;

fn li_a0(value: u32) -> u32 {
    value << 20 | 0x0513
}

fn run(code: &[u32], extra: &[&str]) -> Output {
    run_elf(&elf(code), extra)
}

fn run_elf(elf: &[u8], extra: &[&str]) -> Output {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), elf).expect("writable");
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
fn a_fault_is_reported_with_its_address() {
    let output = run(&[li_a0(1), 0], &[]);
    assert_eq!(output.status.code(), Some(132));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("0x1007c"), "the second instruction: {text}");
}

#[test]
fn a_trace_has_a_line_per_instruction() {
    let output = run(&[li_a0(0), LI_A7_EXIT, ECALL], &["--trace"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().filter(|line| line.starts_with("0x")).count(), 3, "{text}");
}

#[test]
fn instructions_and_speed_are_reported() {
    let output = run(&[li_a0(0), LI_A7_EXIT, ECALL], &[]);
    let text = error(&output);
    assert!(text.starts_with("3 instructions retired in ") && text.trim().ends_with(" MIPS (measured)"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An instruction between others, which ends with code 7 if it is executed.
fn around(insn: u32) -> [u32; 4] {
    [insn, li_a0(7), LI_A7_EXIT, ECALL]
}

const MUL: u32 = 0x02c5_8533;
const SH1ADD: u32 = 0x20c5_a533;
const GREV: u32 = 0x68c5_d533;
const CRC32_B: u32 = 0x6105_9513;

#[test]
fn what_the_toolchain_of_the_emulated_card_names_is_executed_and_no_more() {
    for insn in [MUL, GREV, CRC32_B] {
        let output = run(&around(insn), &[]);
        assert_eq!(output.status.code(), Some(7), "{insn:#x}: {}", error(&output));
    }
    let output = run(&around(SH1ADD), &[]);
    assert_eq!(output.status.code(), Some(132));
    let expected = "error: illegal instruction at pc 0x10078, value 0x20c5a533: `sh1add a0, a1, a2` is of the \
        extension Zba, which rv64imac_zicsr_zifencei_zbb_zbs_zbp_zbr lacks";
    assert!(error(&output).contains(expected), "{}", error(&output));
}

#[test]
fn the_instruction_set_is_an_option_or_a_toolchain_file() {
    let toolchain = |name: &str| format!("{}/../toolchains/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    for (options, insn, code) in [
        (vec!["--isa", "rv64im"], MUL, 7),
        (vec!["--isa", "rv64i2p1_m2p0_zmmul1p0"], MUL, 7),
        (vec!["--isa", "RV64IM"], MUL, 7),
        (vec!["--isa", "rv64i"], MUL, 132),
        (vec!["--isa", "rv64i_zba"], SH1ADD, 7),
        (vec!["--isa", "rv64imac_zba"], GREV, 132),
        (vec!["--toolchain", &toolchain("cx8")], SH1ADD, 7),
        (vec!["--toolchain", &toolchain("cx8")], GREV, 7),
        (vec!["--toolchain", &toolchain("bf3")], SH1ADD, 132),
        (vec!["--toolchain", &toolchain("emu")], CRC32_B, 7),
    ] {
        let output = run(&around(insn), &options);
        assert_eq!(output.status.code(), Some(code), "{options:?}, {insn:#x}: {}", error(&output));
    }
    let text = error(&run(&around(MUL), &["--isa", "rv64i"]));
    assert!(text.contains("`mul a0, a1, a2` is of the extension M, which rv64i lacks"), "{text}");
}

#[test]
fn instruction_sets_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.to_string_lossy().into_owned()
    };
    let (no_key, no_toml) = (file("a.toml", "description = \"x\""), file("b.toml", "isa: rv64i"));
    let unknown = file("c.toml", "isa = \"rv64imafd\"");
    for (options, parts) in [
        (["--isa", "rv32i"], &["--isa", "does not start with rv64"][..]),
        (["--isa", "rv64gc"], &["`rv64gc`", "`g` is not known", "rv64imac_zicsr_zifencei_zba"]),
        (["--isa", "rv64ima_zfoo"], &["`zfoo` is not known"]),
        (["--isa", "rv64 imac"], &["` ` is not known"]),
        (["--isa", "rv64m"], &["the base `i` is missing"]),
        (["--isa", ""], &["does not start with rv64"]),
        (["--toolchain", "no/such.toml"], &["toolchain file `no/such.toml` cannot be read"]),
        (["--toolchain", &no_key], &["needs a key `isa`", "missing field"]),
        (["--toolchain", &no_toml], &["needs a key `isa`"]),
        (["--toolchain", &unknown], &["c.toml", "`f` is not known"]),
    ] {
        let output = run(&around(MUL), &options);
        let text = error(&output);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{options:?}: {text} lacks one of {parts:?}");
    }
}

#[test]
fn a_control_register_that_is_not_there_traps() {
    // csrr a0, medeleg; csrw mvendorid, zero; csrr a0, mscratch
    for (insn, code) in [(0x3020_2573, 132), (0xf110_1073, 132), (0x3400_2573, 7)] {
        let output = run(&around(insn), &[]);
        assert_eq!(output.status.code(), Some(code), "{insn:#x}: {}", error(&output));
        assert_eq!(error(&output).contains("no such register, or it is read-only"), code == 132, "{}", error(&output));
    }
}

/// Stores -2 to the second word of data, and ends.
fn stores() -> [u32; 6] {
    // auipc a1, 0; li a0, -2; sw a0, 28(a1); li a0, 0
    [0x0000_0597, 0xffe0_0513, 0x00a5_ae23, li_a0(0), LI_A7_EXIT, ECALL]
}

#[test]
fn a_signature_is_the_memory_between_two_symbols_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("signature");
    let path = path.to_str().expect("text");
    let elf = elf_with(&stores(), &[("begin_signature", 0), ("end_signature", 12), ("second", 4), ("third", 8)]);
    let output = run_elf(&elf, &["--signature", path]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    assert_eq!(std::fs::read_to_string(path).expect("a file"), "00000000\nfffffffe\n00000000\n");
    let options = ["--signature", path, "--signature-from", "second", "--signature-to", "third"];
    assert_eq!(run_elf(&elf, &options).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(path).expect("a file"), "fffffffe\n");

    // A program that does not end has none, and what an earlier one has left is not taken for it.
    let endless = elf_with(&[0x0000_006F], &[("begin_signature", 0), ("end_signature", 12)]);
    let output = run_elf(&endless, &["--limit", "1000", "--signature", path]);
    assert_eq!(output.status.code(), Some(124));
    assert!(error(&output).contains("has not ended by itself"), "{}", error(&output));
    assert_eq!(std::fs::read_to_string(path).expect("a file"), "");
}

#[test]
fn signatures_that_cannot_be_are_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("signature");
    let path = path.to_str().expect("text");
    // Far beyond the program, its heap and its stack.
    let far = 1 << 40;
    let symbols = [("begin_signature", 8), ("end_signature", 16), ("before", 4), ("odd", 11), ("far", far)];
    let elf = elf_with(&stores(), &symbols);
    for (options, parts) in [
        (vec!["--signature", "/no/such/folder/file"], &["`/no/such/folder/file` cannot be written"][..]),
        (vec!["--signature", path, "--signature-from", "nowhere"], &["no symbol `nowhere`", "--signature-from"]),
        (vec!["--signature", path, "--signature-to", "nowhere"], &["no symbol `nowhere`", "--signature-to"]),
        (vec!["--signature", path, "--signature-to", "before"], &["the signature is empty", "`before`"]),
        (vec!["--signature", path, "--signature-to", "begin_signature"], &["the signature is empty"]),
        (vec!["--signature", path, "--signature-to", "odd"], &["3 bytes", "align `odd`"]),
        (vec!["--signature", path, "--signature-to", "far"], &["not all in the program's memory"]),
    ] {
        let output = run_elf(&elf, &options);
        let text = error(&output);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{options:?}: {text} lacks one of {parts:?}");
        assert!(!text.contains("retired"), "nothing has run: {text}");
    }
    // The program itself is not overwritten.
    let program = folder.path().join("program.elf");
    std::fs::write(&program, &elf).expect("writable");
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args(["emu", "run", "--signature"])
        .args([&program, &program])
        .output()
        .expect("the tool starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("is the program itself"), "{}", error(&output));
    assert!(std::fs::read(&program).expect("a file") == elf);
    // Symbols without a signature are a mistake of the command line.
    assert_eq!(run_elf(&elf, &["--signature-from", "before"]).status.code(), Some(2));
}

#[test]
fn what_is_no_program_is_refused() {
    for (bytes, part) in [(&b"#!/bin/sh\n"[..], "ELF"), (&[][..], "ELF"), (&elf(&[ECALL])[..70], "cannot be run")] {
        let output = run_elf(bytes, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", error(&output));
        assert!(error(&output).contains(part), "{}", error(&output));
    }
}

#[test]
fn the_exit_codes_are_in_the_help() {
    let help = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(["emu", "run", "--help"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(["Exit codes:", "0-255", "124", "132"].iter().all(|part| text.contains(part)), "{text}");
}
