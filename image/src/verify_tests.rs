use std::collections::BTreeMap;

use flexcast_isa::Isa;

use crate::Image;
use crate::callgraph::CallGraph;
use crate::testing::{FUNC, RODATA, TEXT, TestElf, attributes, section};
use crate::verify::{DeclaredStack, Outcome, Policy, Report, Vendor, verify};

pub(crate) const C_RET: u32 = 0x8082;
/// `addi sp, sp, -64`
pub(crate) const FRAME_64: u32 = 0xfc01_0113;
/// `c.addi16sp sp, -496`
const C_FRAME_496: u32 = 0x7141;
/// `jalr ra, 0(a0)`, compressed
pub(crate) const C_JALR_A0: u32 = 0x9502;
/// `addi sp, sp, 64`
const UNFRAME_64: u32 = 0x0401_0113;

/// `jal ra, offset` for small offsets.
pub(crate) fn call(offset: i32) -> u32 {
    let imm = offset as u32;
    (imm >> 20 & 1) << 31 | (imm >> 1 & 0x3ff) << 21 | (imm >> 11 & 1) << 20 | (imm >> 12 & 0xff) << 12 | 0xef
}

pub(crate) fn policy() -> Policy {
    Policy {
        isa: Isa::parse("rv64imac_zicsr_zbb_zbs").expect("isa"),
        abi: Some((3, 0xabcd)),
        stack_bytes: 16384,
        private_prefixes: vec!["/home/".into(), "/".into(), String::new()],
        sections: [".text", ".rodata", ".flexcast.entries", ".note.flexcast"].map(String::from).to_vec(),
        declared_stacks: BTreeMap::new(),
        vendor: Vendor::default(),
    }
}

pub(crate) fn good() -> TestElf {
    TestElf::image(&[
        ("handler", &[FRAME_64, call(10), UNFRAME_64, C_RET]),
        ("ping", &[C_RET]),
        ("ping__unpack", &[C_RET]),
    ])
}

pub(crate) fn report(elf: &TestElf) -> Report {
    verify(&Image::parse(&elf.bytes()).expect("parses"), &policy())
}

/// The findings of the check `name`, which must fail alone.
pub(crate) fn failure(elf: &TestElf, name: &str) -> String {
    failure_under(elf, name, &policy())
}

pub(crate) fn failure_under(elf: &TestElf, name: &str, policy: &Policy) -> String {
    let report = verify(&Image::parse(&elf.bytes()).expect("parses"), policy);
    assert_eq!(report.counts().1, 1, "exactly one failure:\n{report}");
    findings(&report, name)
}

/// The findings of the check `name`, which must fail; others may fail as well.
pub(crate) fn findings(report: &Report, name: &str) -> String {
    assert!(!report.passed());
    match report.check(name) {
        Some(Outcome::Failed(lines)) => lines.join("\n"),
        other => panic!("{name} is {other:?}\n{report}"),
    }
}

pub(crate) fn passed(elf: &TestElf, name: &str, policy: &Policy) -> String {
    let report = verify(&Image::parse(&elf.bytes()).expect("parses"), policy);
    assert!(report.passed(), "{report}");
    match report.check(name) {
        Some(Outcome::Passed(text)) => text.clone(),
        other => panic!("{name} is {other:?}\n{report}"),
    }
}

fn unknown(elf: &TestElf, name: &str) -> String {
    let report = report(elf);
    assert!(report.passed(), "{report}");
    match report.check(name) {
        Some(Outcome::Unknown(lines)) => lines.join("\n"),
        other => panic!("{name} is {other:?}\n{report}"),
    }
}

#[test]
fn a_good_image_passes_every_check() {
    let report = report(&good());
    // No linker has made this one, so it has no build id.
    assert_eq!(report.counts(), (14, 0, 1), "{report}");
    assert!(unknown(&good(), "build id").contains("--build-id"));
    assert!(report.to_string().contains("handler, ping"), "{report}");
}

#[test]
fn a_foreign_isa_attribute_fails() {
    let mut elf = good();
    elf.section_mut(".riscv.attributes").bytes = attributes("rv64i2p1_m2p0_f2p2_d2p2_zba1p0");
    let text = failure(&elf, "ISA attribute");
    for name in ["`f`", "`d`", "`zba`"] {
        assert!(text.contains(name), "{text}");
    }
    elf.section_mut(".riscv.attributes").bytes = attributes("rv32imac");
    assert!(failure(&elf, "ISA attribute").contains("rv32imac"));
    elf.sections.retain(|section| section.name != ".riscv.attributes");
    assert!(unknown(&elf, "ISA attribute").contains("no .riscv.attributes"));
}

#[test]
fn instructions_outside_the_isa_are_named_with_their_place() {
    for (word, what) in [
        (0x02b5_7553, "D instruction `floating point, double`"),
        (0x00b5_7553, "F instruction `floating point, single`"),
        (0x2008, "D instruction `fld`"),
        (0x20b5_2533, "ZBA instruction `sh1add a0, a0, a1`"),
        (0x68c5_d533, "ZBP instruction `grev a0, a1, a2`"),
        (0x6105_9513, "ZBR instruction `crc32.b a0, a1`"),
        (0x0000_100f, "ZIFENCEI instruction `fence.i`"),
        (0x0000_000b, "CUSTOM instruction `custom-0`"),
        (0x3020_0073, "PRIVILEGED instruction `mret`"),
        (0xffff_ffff, "ffffffff is no instruction"),
        (0x9c41, "9c41 is no instruction"),
    ] {
        let elf = TestElf::image(&[("handler", &[word, C_RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
        let text = failure(&elf, "instructions");
        assert!(text.contains(what) && text.contains("handler+0x0") && text.contains("0x40000000"), "{text}");
    }
}

#[test]
fn drafts_pass_on_a_target_that_has_them() {
    let code = [0x68c5_d533, 0x6105_9513, C_RET];
    let elf = TestElf::image(&[("handler", &code), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    let image = Image::parse(&elf.bytes()).expect("parses");
    let isa = Isa::parse("rv64imac_zicsr_zbb_zbs_zbp_zbr").expect("isa");
    let report = verify(&image, &Policy { isa, ..policy() });
    assert!(matches!(report.check("instructions"), Some(Outcome::Passed(_))), "{report}");
}

#[test]
fn what_a_later_extension_took_over_passes_on_a_target_with_the_draft_alone() {
    // andn a0, a1, a2; rev8 a0, a1
    let code = [0x40c5_f533, 0x6b85_d513, C_RET];
    let elf = TestElf::image(&[("handler", &code), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    let image = Image::parse(&elf.bytes()).expect("parses");
    for (isa, passes) in [("rv64imac_zbp", true), ("rv64imac_zbb", true), ("rv64imac_zba_zbr", false)] {
        let isa = Isa::parse(isa).expect("isa");
        let report = verify(&image, &Policy { isa, ..policy() });
        assert_eq!(matches!(report.check("instructions"), Some(Outcome::Passed(_))), passes, "{isa}: {report}");
    }
}

#[test]
fn parts_of_extensions_are_within_them() {
    let mut elf = good();
    let arch = "rv64i2p1_m2p0_a2p1_c2p0_zicsr2p0_zicntr2p0_zihintpause2p0_zmmul1p0_zaamo1p0_zalrsc1p0_zca1p0";
    elf.section_mut(".riscv.attributes").bytes = attributes(arch);
    let report = verify(&Image::parse(&elf.bytes()).expect("parses"), &policy());
    assert!(matches!(report.check("ISA attribute"), Some(Outcome::Passed(_))), "{report}");
}

#[test]
fn a_target_without_compression_refuses_compressed_code() {
    let image = Image::parse(&good().bytes()).expect("parses");
    let isa = Isa::parse("rv64ima_zbb_zbs").expect("isa");
    let report = verify(&image, &Policy { isa, ..policy() });
    let Some(Outcome::Failed(lines)) = report.check("instructions") else { panic!("{report}") };
    assert!(lines[0].contains("compressed instruction ret"), "{lines:?}");
}

/// Where the entry of the one global undefined symbol is in the file: its type and binding, no section, no address.
fn undefined_symbol(bytes: &[u8]) -> usize {
    let header = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    let sections = header(40);
    let tables = (0..bytes.len()).map(|index| sections + 64 * index);
    let symtab = tables.into_iter().find(|at| bytes[at + 4] == 2).expect("a symbol table");
    let (offset, size) = (header(symtab + 24), header(symtab + 32));
    let last = offset + size - 24;
    assert_eq!(bytes[last + 4..last + 16], [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    last
}

#[test]
fn undefined_symbols_fail() {
    let mut elf = good();
    elf.symbols.push(("flexio_dev_msg", 0, 0, 0, 0));
    assert_eq!(failure(&elf, "undefined symbols"), "flexio_dev_msg");
    // A weak one may stay undefined.
    let mut bytes = elf.bytes();
    let symbol = undefined_symbol(&bytes);
    bytes[symbol + 4] = 0x20;
    let report = verify(&Image::parse(&bytes).expect("parses"), &policy());
    assert!(report.passed(), "{report}");
}

#[test]
fn relocations_fail() {
    let mut elf = good();
    elf.sections.push(section(".rela.text", 4, 0, 0, vec![0; 24]));
    elf.sections.last_mut().expect("pushed").entry_size = 24;
    assert!(failure(&elf, "relocations").contains("24 bytes of relocations are left in .rela.text"));
}

#[test]
fn dynamic_program_headers_fail() {
    let mut bytes = good().bytes();
    // The last program header (the note) becomes PT_DYNAMIC.
    bytes[64 + 3 * 56] = 2;
    let report = verify(&Image::parse(&bytes).expect("parses"), &policy());
    let Some(Outcome::Failed(lines)) = report.check("relocations") else { panic!("{report}") };
    assert!(lines[0].contains("PT_DYNAMIC"), "{lines:?}");
}

#[test]
fn a_writable_executable_segment_fails() {
    let mut elf = good();
    elf.segments[0].2 = 7;
    assert!(failure(&elf, "write xor execute").contains("0x40000000"));
}

#[test]
fn entries_must_exist_and_lie_in_code() {
    let mut elf = good();
    elf.section_mut(".flexcast.entries").bytes.clear();
    assert!(failure(&elf, "entries").contains("no entry"));
    let mut elf = good();
    elf.section_mut(".flexcast.entries").bytes[..8].copy_from_slice(&RODATA.to_le_bytes());
    let broken = report(&elf);
    let Some(Outcome::Failed(lines)) = broken.check("entries") else { panic!("{broken}") };
    assert!(lines[0].contains("`handler` at 0x40001000 is not in executable memory"), "{lines:?}");
    assert!(lines[1].contains("its entry record says"), "{lines:?}");
    let mut elf = good();
    elf.section_mut(".flexcast.entries").bytes[48..56].copy_from_slice(&RODATA.to_le_bytes());
    let broken = report(&elf);
    assert!(findings(&broken, "entries").contains("unpack function of `ping`"), "{broken}");
    assert!(findings(&broken, "stack").contains("ping (unpack): no function symbol"), "{broken}");
    let mut elf = good();
    elf.symbols[1].0 = "pong";
    assert!(failure(&elf, "entries").contains("no symbol `ping`"));
}

#[test]
fn the_abi_must_match() {
    let image = Image::parse(&good().bytes()).expect("parses");
    let outcome = |abi| verify(&image, &Policy { abi, ..policy() }).check("ABI note").cloned();
    assert!(matches!(outcome(Some((3, 1))), Some(Outcome::Failed(lines)) if lines[0].contains("0x000000000000abcd")));
    assert!(matches!(outcome(Some((9, 1))), Some(Outcome::Failed(_))));
    assert!(matches!(outcome(None), Some(Outcome::Passed(_))));
    let mut elf = good();
    elf.section_mut(".note.flexcast").bytes.clear();
    assert!(failure(&elf, "ABI note").contains("no ABI note"));
}

#[test]
fn the_stack_of_a_chain_adds_up() {
    let elf = TestElf::image(&[
        ("handler", &[FRAME_64, call(6), C_RET]),
        // Starts 10 bytes behind `handler`.
        ("ping", &[C_FRAME_496, C_RET]),
        ("ping__unpack", &[C_RET]),
    ]);
    let image = Image::parse(&elf.bytes()).expect("parses");
    let graph = CallGraph::of(&image);
    let bound = graph.stack_bound(TEXT).expect("function");
    assert_eq!((bound.bytes, bound.deepest.join(" "), bound.unknown), (560, "handler ping".into(), vec![]));
    let tight = verify(&image, &Policy { stack_bytes: 559, ..policy() });
    let Some(Outcome::Failed(lines)) = tight.check("stack") else { panic!("{tight}") };
    assert_eq!(lines, &["handler takes 560 of 559 bytes: handler → ping"]);
}

#[test]
fn a_frame_of_constant_size_beyond_the_immediate_is_known() {
    // lui t0, 1; addiw t0, t0, -96; sub sp, sp, t0
    let code = [0x0000_12b7, 0xfa02_829b, 0x4051_0133, C_RET];
    let elf = TestElf::image(&[("handler", &code), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    let graph = CallGraph::of(&Image::parse(&elf.bytes()).expect("parses"));
    assert_eq!(graph.stack_bound(TEXT).expect("function").bytes, 4000);
    // sub sp, sp, a0
    let elf = TestElf::image(&[("handler", &[0x40a1_0133, C_RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    assert!(failure(&elf, "stack").contains("frame of computed size in handler at 0x40000000"));
}

#[test]
fn what_a_register_calls_fails_as_it_may_take_any_stack_and_panic() {
    let elf =
        TestElf::image(&[("handler", &[FRAME_64, C_JALR_A0, C_RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    let report = report(&elf);
    assert_eq!(report.counts().1, 2, "{report}");
    let text = findings(&report, "stack");
    assert!(text.starts_with("handler: at least 64 bytes, call through a register in handler at 0x40000004"), "{text}");
    assert!(text.contains("[stack.handler] with bytes and reason"), "{text}");
    let text = findings(&report, "no panic in event handlers");
    assert_eq!(text, "handler: call through a register in handler at 0x40000004");
    // jr a0, in an RPC, which may panic
    let elf = TestElf::image(&[("handler", &[C_RET]), ("ping", &[0x8502]), ("ping__unpack", &[C_RET])]);
    assert!(failure(&elf, "stack").contains("ping: at least 0 bytes, jump through a register"));
}

/// A policy with a bound that a person answers for.
fn declared(entry: &str, bytes: u64) -> Policy {
    let declared = DeclaredStack { bytes, reason: "at most two rounds".to_owned() };
    Policy { declared_stacks: BTreeMap::from([(entry.to_owned(), declared)]), ..policy() }
}

#[test]
fn recursion_fails_unless_a_bound_is_declared_that_can_hold() {
    let elf =
        TestElf::image(&[("handler", &[FRAME_64, call(-4), C_RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    assert!(failure(&elf, "stack").contains("recursion: handler calls handler"));
    let text = passed(&elf, "stack", &declared("handler", 128));
    assert!(text.contains("handler 128 B as declared (at most two rounds)"), "{text}");
    let under = |policy| failure_under(&elf, "stack", &policy);
    assert_eq!(under(declared("handler", 63)), "handler is declared to take 63 bytes and takes at least 64");
    assert_eq!(under(declared("handler", 16385)), "handler is declared to take 16385 of 16384 bytes");
    assert!(under(declared("ping", 64)).contains("recursion"), "that of another entry");
    assert!(under(declared("gone", 64)).contains("[stack.gone], and the image no such entry"));
    // Where the instructions give a bound, it is used.
    let text = passed(&good(), "stack", &declared("handler", 5000));
    assert!(text.contains("handler 64 B,"), "{text}");
}

#[test]
fn an_unpack_function_calls_its_entry() {
    // The unpack function takes 64 bytes and calls a0; `ping` takes 496.
    let elf = TestElf::image(&[
        ("handler", &[C_RET]),
        ("ping", &[C_FRAME_496, C_RET]),
        ("ping__unpack", &[FRAME_64, C_JALR_A0, C_RET]),
    ]);
    let image = Image::parse(&elf.bytes()).expect("parses");
    let report = verify(&image, &policy());
    let Some(Outcome::Passed(text)) = report.check("stack") else { panic!("{report}") };
    assert!(text.contains("ping (unpack) 560 B"), "{text}");
}

#[test]
fn an_aligned_frame_is_bounded() {
    // andi sp, sp, -128
    let code = [FRAME_64, 0xf801_7113, C_RET];
    let elf = TestElf::image(&[("handler", &code), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
    let bound = CallGraph::of(&Image::parse(&elf.bytes()).expect("parses")).stack_bound(TEXT).expect("function");
    assert_eq!((bound.bytes, bound.unknown), (64 + 112, vec![]));
}

#[test]
fn a_far_call_by_register_pair_is_followed() {
    // auipc ra, 0; jalr ra, 10(ra): calls TEXT + 10.
    let elf = TestElf::image(&[
        ("handler", &[0x0000_0097, 0x00a0_80e7, C_RET]),
        ("ping", &[C_FRAME_496, C_RET]),
        ("ping__unpack", &[C_RET]),
    ]);
    let graph = CallGraph::of(&Image::parse(&elf.bytes()).expect("parses"));
    let bound = graph.stack_bound(TEXT).expect("function");
    assert_eq!((bound.bytes, bound.unknown), (496, vec![]));
}

#[test]
fn a_panic_path_fails_in_handlers_only() {
    let panic = "_ZN4core9panicking9panic_fmt17h0123456789abcdefE";
    let elf = TestElf::image(&[
        ("handler", &[call(6), C_RET]),
        (panic, &[C_RET]),
        ("ping", &[C_RET]),
        ("ping__unpack", &[C_RET]),
    ]);
    assert_eq!(failure(&elf, "no panic in event handlers"), "handler → core::panicking::panic_fmt");
    // A jump instead of a call is a path too: `j 4` of two bytes after which the function ends.
    let elf = TestElf::image(&[
        ("handler", &[0x0040_006f]),
        (panic, &[C_RET]),
        ("ping", &[C_RET]),
        ("ping__unpack", &[C_RET]),
    ]);
    assert!(failure(&elf, "no panic in event handlers").contains("panicking"));
    let elf =
        TestElf::image(&[("handler", &[C_RET]), ("ping", &[call(4)]), (panic, &[C_RET]), ("ping__unpack", &[C_RET])]);
    assert!(report(&elf).passed());
}

#[test]
fn a_private_path_fails() {
    let mut elf = good();
    elf.sections.push(section(".debug_str", 1, 0, 0, b"core\0/home/ada/flexcast/src/main.rs\0".to_vec()));
    assert_eq!(failure(&elf, "private paths"), "/home/ada/flexcast/src/main.rs in section .debug_str");
    elf.sections.last_mut().expect("pushed").flags = 0x800;
    assert!(failure(&elf, "private paths").contains("compressed"));
}

#[test]
fn assembly_labels_are_functions_too() {
    let mut elf = good();
    // `ping` loses its size and type, as a label in assembly has none.
    elf.symbols[1] = ("ping", elf.symbols[1].1, 0, 0, 1);
    elf.symbols.push((".Lloop", TEXT + 4, 0, 0, 1));
    elf.symbols.push(("alias", TEXT, 0, FUNC, 1));
    let graph = CallGraph::of(&Image::parse(&elf.bytes()).expect("parses"));
    let names: Vec<&str> = graph.functions().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["handler", "ping", "ping__unpack"]);
}
