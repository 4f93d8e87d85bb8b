//! Tests of what start-up code or a dynamic linker would have to serve.

use crate::callgraph::Foreign;
use crate::testing::{FUNC, TEXT, TestElf, section};
use crate::verify::{Outcome, Policy, Vendor, verify};
use crate::verify_tests::{C_RET, findings, good, policy};
use crate::{Image, ImageError, Phase, Unserved};

const DATA: u64 = 0x8000_0000;
/// `SHF_WRITE | SHF_ALLOC`.
const WRITE_ALLOC: u64 = 3;
/// The same with `SHF_TLS`.
const WRITE_ALLOC_TLS: u64 = 0x403;
/// `SHT_PROGBITS`, `SHT_RELA`, `SHT_NOBITS`.
const PROGBITS: u32 = 1;
const RELA: u32 = 4;
const NOBITS: u32 = 8;
/// `SHT_INIT_ARRAY`, `SHT_FINI_ARRAY`, `SHT_PREINIT_ARRAY`.
const INIT_ARRAY: u32 = 14;
const FINI_ARRAY: u32 = 15;
const PREINIT_ARRAY: u32 = 16;
/// `STT_TLS`.
const TLS: u8 = 6;
/// Bytes of the header of an ELF file, and of a program header.
const HEADERS: [usize; 2] = [64, 56];

fn parse(elf: &TestElf) -> Image {
    Image::parse(&elf.bytes()).expect("parses")
}

/// A usable image with a further section of addresses.
fn with_list(name: &'static str, kind: u32, addresses: &[u64]) -> TestElf {
    let mut elf = good();
    let bytes = addresses.iter().flat_map(|addr| addr.to_le_bytes()).collect();
    elf.sections.push(section(name, kind, WRITE_ALLOC, DATA, bytes));
    elf
}

/// The one finding, from loaders and from `verify`, in the same words.
fn refusal(elf: &TestElf) -> String {
    let image = parse(elf);
    let Err(ImageError::Unserved { parts }) = image.expect_served() else { panic!("it is to be refused") };
    assert_eq!(parts.len(), 1, "{parts:?}");
    let text = ImageError::Unserved { parts }.to_string();
    assert_eq!(findings(&verify(&image, &policy()), "start-up code"), text);
    text
}

#[test]
fn an_image_that_needs_no_start_up_code_is_served() {
    assert_eq!(parse(&good()).unserved(), []);
    parse(&good()).expect_served().expect("served");
    // Empty lists, words that stand for no function, and bytes that are no whole word.
    for addresses in [&[][..], &[0, u64::MAX]] {
        assert_eq!(parse(&with_list(".init_array", INIT_ARRAY, addresses)).unserved(), []);
    }
    let mut elf = good();
    elf.sections.push(section(".init_array", INIT_ARRAY, WRITE_ALLOC, DATA, vec![1; 7]));
    elf.sections.push(section(".tdata", PROGBITS, WRITE_ALLOC_TLS, DATA + 8, vec![]));
    // Relocations that the linker has applied, and kept for whoever reads the file.
    elf.sections.push(section(".rela.text", RELA, 0, 0, vec![0; 24]));
    elf.sections.last_mut().expect("pushed").entry_size = 24;
    // `_start` of a bare program lies in such a section.
    elf.sections.push(section(".init", PROGBITS, 6, TEXT + 0x100, vec![0x82, 0x80]));
    assert_eq!(parse(&elf).unserved(), []);
}

#[test]
fn thread_local_variables_are_refused_by_name() {
    for (name, kind) in [(".tdata", PROGBITS), (".tbss", NOBITS)] {
        let mut elf = good();
        elf.sections.push(section(name, kind, WRITE_ALLOC_TLS, DATA, vec![0; 8]));
        let shndx = elf.sections.len() as u16;
        elf.symbols.push(("counter", 0, 4, TLS, shndx));
        elf.symbols.push(("errno", 4, 4, TLS, shndx));
        let text = refusal(&elf);
        for part in [
            &format!("thread-local variables in {name} (counter, errno)"),
            "`tp`",
            "flexio_dev_get_thread_local_storage",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}

#[test]
fn thread_local_variables_show_by_symbols_or_header_alone() {
    let mut elf = good();
    // A script may put them into a section of another name and kind.
    elf.symbols.push(("counter", 0, 4, TLS, 2));
    assert!(refusal(&elf).contains(".symtab (counter)"));
    // One that another file would have to define: the check of undefined symbols has it.
    let mut elf = good();
    elf.symbols.push(("counter", 0, 0, TLS, 0));
    assert_eq!(parse(&elf).unserved(), []);
    // The last program header (the note) becomes PT_TLS.
    let mut bytes = good().bytes();
    bytes[HEADERS[0] + 3 * HEADERS[1]] = 7;
    let image = Image::parse(&bytes).expect("parses");
    let expected = Unserved::ThreadLocal { section: "PT_TLS".into(), variables: vec![] };
    assert_eq!(image.unserved(), [expected]);
    assert!(image.expect_served().expect_err("refused").to_string().contains("PT_TLS (no name)"));
}

#[test]
fn the_address_of_a_thread_local_variable_names_no_code() {
    let mut elf = good();
    elf.symbols.push(("offset", TEXT, 0, TLS, 1));
    assert_eq!(parse(&elf).symbolize(TEXT), Some(("handler".to_owned(), 0)));
}

#[test]
fn constructors_and_destructors_are_refused_by_name() {
    let ping = parse(&good()).symbol("ping").expect("a function");
    for (name, kind, word) in [
        (".init_array", INIT_ARRAY, "constructors"),
        (".preinit_array", PREINIT_ARRAY, "constructors"),
        (".ctors", PROGBITS, "constructors"),
        (".ctors.65535", PROGBITS, "constructors"),
        (".init_array.00100", PROGBITS, "constructors"),
        (".fini_array", FINI_ARRAY, "destructors"),
        (".dtors", PROGBITS, "destructors"),
    ] {
        let text = refusal(&with_list(name, kind, &[u64::MAX, ping, ping - 2, 0]));
        let addresses = format!("{word} in {name} (ping, {:#x})", ping - 2);
        for part in [&addresses, "call them from an RPC", "-nostartfiles"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
    let elf = with_list(".init_array", INIT_ARRAY, &[ping]);
    let functions = vec![(ping, "ping".to_owned())];
    let expected = Unserved::Functions { section: ".init_array".into(), phase: Phase::Start, functions };
    assert_eq!(parse(&elf).unserved(), [expected]);
}

#[test]
fn relocations_and_headers_for_a_dynamic_linker_are_refused() {
    let mut elf = good();
    elf.sections.push(section(".rela.iplt", RELA, 2, TEXT + 0x100, vec![0; 48]));
    elf.sections.last_mut().expect("pushed").entry_size = 24;
    let text = parse(&elf).expect_served().expect_err("refused").to_string();
    assert!(text.contains("48 bytes of relocations in .rela.iplt") && text.contains("-static"), "{text}");
    for (kind, header) in [(2, "PT_DYNAMIC"), (3, "PT_INTERP")] {
        let mut bytes = good().bytes();
        bytes[HEADERS[0] + 3 * HEADERS[1]] = kind;
        let text = Image::parse(&bytes).expect("parses").expect_served().expect_err("refused").to_string();
        assert!(text.contains(header) && text.contains("-static"), "{text}");
    }
}

#[test]
fn all_that_is_unserved_is_said_at_once() {
    let mut elf = with_list(".init_array", INIT_ARRAY, &[TEXT]);
    elf.sections.push(section(".tdata", PROGBITS, WRITE_ALLOC_TLS, DATA + 8, vec![0; 8]));
    let text = parse(&elf).expect_served().expect_err("refused").to_string();
    assert!(text.contains("constructors in .init_array (handler)") && text.contains("; also "), "{text}");
    assert!(text.contains("thread-local variables in .tdata"), "{text}");
}

#[test]
fn what_the_vendor_brings_its_runtime_serves() {
    let code = [("handler", &[C_RET][..]), ("vendor", &[C_RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])];
    let mut elf = TestElf::image(&code);
    let list = |addr: u64| section(".init_array", INIT_ARRAY, WRITE_ALLOC, DATA, addr.to_le_bytes().to_vec());
    elf.sections.push(list(TEXT + 2));
    elf.sections.push(section(".tdata", PROGBITS, WRITE_ALLOC_TLS, DATA + 8, vec![0; 8]));
    let code = std::iter::once(TEXT + 2..TEXT + 4).collect();
    let vendor = Vendor {
        code: Foreign { code, stack_bytes: 64 },
        sections: vec![".init_array".into(), ".tdata".into()],
        ..Vendor::default()
    };
    let policy = Policy { vendor, ..policy() };
    let report = verify(&parse(&elf), &policy);
    assert_eq!(report.check("start-up code"), Some(&Outcome::Passed("none needed".into())), "{report}");
    elf.sections[5] = list(TEXT);
    let text = findings(&verify(&parse(&elf), &policy), "start-up code");
    assert!(text.starts_with("constructors in .init_array (handler)"), "{text}");
}

#[test]
fn a_common_symbol_is_undefined() {
    let mut elf = good();
    // SHN_COMMON: its "address" is an alignment.
    elf.symbols.push(("shared_counter", 8, 8, 1, 0xfff2));
    assert_eq!(parse(&elf).symbol("shared_counter"), None);
    assert_eq!(findings(&verify(&parse(&elf), &policy()), "undefined symbols"), "shared_counter");
    elf.symbols.last_mut().expect("pushed").4 = 1;
    elf.symbols.last_mut().expect("pushed").3 = FUNC;
    assert_eq!(parse(&elf).symbol("shared_counter"), Some(8));
}
