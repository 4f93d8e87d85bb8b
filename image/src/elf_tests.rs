use proptest::prelude::*;

use crate::testing::{FUNC, RODATA, TEXT, TestElf, note, record, section};
use crate::{EntryKind, Image, ImageError};

/// `ret`, compressed and not.
const C_RET: u32 = 0x8082;
const RET: u32 = 0x0000_8067;

fn good() -> TestElf {
    TestElf::image(&[("handler", &[RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])])
}

fn error(elf: &TestElf) -> ImageError {
    Image::parse(&elf.bytes()).expect_err("a broken image")
}

#[test]
fn a_good_image_is_read_in_full() {
    let image = Image::parse(&good().bytes()).expect("good image");
    assert_eq!(image.segments().len(), 4);
    let text = &image.segments()[0];
    assert_eq!((text.vaddr, text.mem_size, text.read, text.write, text.execute), (TEXT, 8, true, false, true));
    assert_eq!(text.bytes[..4], RET.to_le_bytes());
    assert_eq!(image.entry(), TEXT);
    assert_eq!(image.flags(), 1);
    assert_eq!(image.arch(), Some("rv64i2p1_m2p0_a2p1_c2p0_zbb1p0_zbs1p0"));
    let note = image.abi().expect("note");
    assert_eq!((note.version, note.min_version, note.hash), (3, 2, 0xabcd));
    let names: Vec<_> =
        image.entries().iter().map(|e| (e.name.as_str(), e.kind, e.addr, e.unpack, e.arg_hash)).collect();
    assert_eq!(
        names,
        [("handler", EntryKind::EventHandler, TEXT, 0, 7), ("ping", EntryKind::Rpc, TEXT + 4, TEXT + 6, 9)]
    );
    assert_eq!(image.symbol("ping"), Some(TEXT + 4));
    assert_eq!(image.symbol("pong"), None);
    assert_eq!(image.symbolize(TEXT + 2), Some(("handler".to_owned(), 2)));
    assert_eq!(image.symbolize(TEXT + 6), Some(("ping__unpack".to_owned(), 0)));
    assert_eq!(image.symbolize(0x10), None);
    assert_eq!(image.bytes_at(RODATA, 7), Some(&b"handler"[..]));
    assert_eq!(image.bytes_at(RODATA + 0x3f, 2), None);
}

#[test]
fn the_compiler_is_read_from_its_comment() {
    let mut elf = good();
    assert_eq!(Image::parse(&elf.bytes()).expect("good image").compiler(), None);
    let comment = b"Linker: LLD 22.1.2\0rustc version 1.95.0 (59807616e 2026-04-14)\0";
    elf.sections.push(section(".comment", 1, 0, 0, comment.to_vec()));
    assert_eq!(Image::parse(&elf.bytes()).expect("good image").compiler(), Some("1.95.0"));
}

#[test]
fn demangles_both_schemes() {
    let mut elf = good();
    elf.symbols[0].0 = "_ZN7receive4main17h0123456789abcdefE";
    elf.symbols[1].0 = "_RNvCskwGfYPst2Cb_7receive3run";
    let image = Image::parse(&elf.bytes()).expect("good image");
    assert_eq!(image.symbolize(TEXT), Some(("receive::main".to_owned(), 0)));
    assert_eq!(image.symbolize(TEXT + 5), Some(("receive::run".to_owned(), 1)));
}

#[test]
fn other_files_are_refused_by_name() {
    assert_eq!(Image::parse(b"#!/bin/sh").expect_err("a script"), ImageError::NotElf { start: b"#!/b".to_vec() });
    assert_eq!(Image::parse(b"").expect_err("nothing"), ImageError::NotElf { start: vec![] });
    let patch = |offset: usize, value: u8| {
        let mut bytes = good().bytes();
        bytes[offset] = value;
        Image::parse(&bytes).expect_err("a patched header")
    };
    assert_eq!(patch(4, 1), ImageError::Not64Bit { class: 1 });
    assert_eq!(patch(5, 2), ImageError::NotLittleEndian { encoding: 2 });
    assert_eq!(patch(18, 62), ImageError::WrongMachine { machine: 62, name: "x86-64" });
    assert_eq!(patch(16, 1), ImageError::NotExecutable { file_type: 1 });
}

#[test]
fn the_running_test_program_is_no_image() {
    let own = std::fs::read(std::env::current_exe().expect("own path")).expect("own bytes");
    assert!(matches!(Image::parse(&own), Err(ImageError::WrongMachine { .. })));
}

#[test]
fn hard_float_and_rve_flags_are_refused() {
    for (flags, word) in [(0x3, "hard-float"), (0x5, "hard-float"), (0x7, "hard-float"), (0x9, "RVE")] {
        let mut elf = good();
        elf.flags = flags;
        let text = error(&elf).to_string();
        assert!(text.contains(word) && text.contains(&format!("{flags:#x}")), "{text}");
    }
    let mut elf = good();
    elf.flags = 0;
    assert!(Image::parse(&elf.bytes()).is_ok(), "without compressed instructions");
}

#[test]
fn a_stripped_image_is_refused_but_runs_bare() {
    let mut elf = good();
    elf.symbols.clear();
    assert_eq!(error(&elf), ImageError::NoSymbols);
    assert!(Image::parse_bare(&elf.bytes()).is_ok());
}

#[test]
fn segments_must_make_sense() {
    let mut elf = good();
    elf.segments.clear();
    assert_eq!(error(&elf), ImageError::NoSegments);
    let broken = |change: fn(&mut TestElf), word: &str| {
        let mut elf = good();
        change(&mut elf);
        let text = error(&elf).to_string();
        assert!(text.contains(word), "{text}");
    };
    broken(|elf| elf.segments[0].1 = 4, "only 4 in memory");
    broken(|elf| elf.segments[0].0 = u64::MAX - 2, "exceeds the address space");
    broken(|elf| elf.segments[0].1 = 0x1001, "overlap");
}

#[test]
fn an_unknown_entry_lists_the_known_ones() {
    let image = Image::parse(&good().bytes()).expect("good image");
    let text = image.entry_named("uc_recieve").expect_err("misspelt").to_string();
    assert_eq!(text, "no entry `uc_recieve` in this image; it has: handler, ping");
    assert_eq!(image.entry_named("ping").expect("known").arg_hash, 9);
    let wrong = image.entry_of_kind("ping", EntryKind::EventHandler).expect_err("an RPC");
    assert_eq!(wrong.to_string(), "entry `ping` is an RPC, not an event handler");
}

#[test]
fn the_argument_of_an_entry_must_be_the_hosts() {
    let image = Image::parse(&good().bytes()).expect("good image");
    assert_eq!(image.expect_argument("ping", 9), Ok(()));
    let text = image.expect_argument("ping", 10).expect_err("another layout").to_string();
    assert!(
        text.contains("`ping` takes an argument of layout 0x0000000000000009, the host has 0x000000000000000a"),
        "{text}"
    );
    assert!(matches!(image.expect_argument("pong", 9), Err(ImageError::UnknownEntry { .. })));
}

#[test]
fn the_entry_table_is_checked() {
    let broken = |table: Vec<u8>, word: &str| {
        let mut elf = good();
        elf.section_mut(".flexcast.entries").bytes = table;
        elf.segments[2].1 = 4096;
        let text = error(&elf).to_string();
        assert!(text.contains(word), "{text}");
    };
    broken(vec![0; 41], "not a multiple of the 40-byte record");
    broken(record(TEXT, 0, RODATA, 0, 1, 0), "name of 0 bytes");
    broken(record(TEXT, 0, RODATA, u32::MAX, 1, 0), "name of 4294967295 bytes");
    broken(record(TEXT, 0, 0x10, 4, 1, 0), "outside the image");
    broken(record(TEXT, 0, u64::MAX, 4, 1, 0), "outside the image");
    broken(record(TEXT, 0, RODATA, 7, 3, 0), "kind 3 of `handler`");
    broken(record(TEXT, 0, RODATA, 7, 2, 0), "is an RPC with unpack function 0x0");
    broken(record(TEXT, 4, RODATA, 7, 1, 0), "is an event handler with unpack function 0x4");
    let twice = [record(TEXT, 0, RODATA, 7, 1, 0), record(TEXT, 0, RODATA, 7, 1, 0)].concat();
    broken(twice, "two entries are named `handler`");
    let mut elf = good();
    elf.section_mut(".rodata").bytes[0] = 0xff;
    assert!(error(&elf).to_string().contains("not UTF-8"));
}

#[test]
fn the_abi_note_is_checked() {
    let with = |bytes: Vec<u8>| {
        let mut elf = good();
        elf.section_mut(".note.flexcast").bytes = bytes;
        elf.segments[3].1 = 4096;
        Image::parse(&elf.bytes())
    };
    let image = with(Vec::new()).expect("the note is optional to the loader");
    assert_eq!(image.abi(), None);
    assert_eq!(image.expect_abi(3, 0xabcd), Err(ImageError::MissingAbiNote));
    let twice = [note(3, 2, 1), note(3, 2, 1)].concat();
    assert_eq!(with(twice).expect_err("two notes"), ImageError::DuplicateAbiNote { count: 2 });
    let text = with(vec![1; 23]).expect_err("short").to_string();
    assert!(text.contains("23 bytes instead of 24"), "{text}");
    assert!(matches!(with(vec![1; 24]), Err(ImageError::BadAbiNote { .. })));
    assert!(matches!(with(note(2, 3, 1)), Err(ImageError::BadAbiNote { .. })));
}

#[test]
fn the_abi_hash_and_version_must_meet_the_host() {
    let image = Image::parse(&good().bytes()).expect("good image");
    assert_eq!(image.expect_abi(3, 0xabcd), Ok(()));
    assert_eq!(image.expect_abi(2, 0x1234), Ok(()), "an older host that the image accepts has another hash");
    assert_eq!(image.expect_abi(3, 0xabce), Err(ImageError::AbiHash { found: 0xabcd, wanted: 0xabce }));
    for wanted in [1, 4] {
        assert_eq!(
            image.expect_abi(wanted, 0xabcd),
            Err(ImageError::AbiVersion { version: 3, min_version: 2, wanted })
        );
    }
}

#[test]
fn broken_attributes_are_an_error() {
    let mut elf = good();
    elf.section_mut(".riscv.attributes").bytes[1] = 0xff;
    assert!(matches!(Image::parse(&elf.bytes()), Err(ImageError::Malformed { .. })));
}

#[test]
fn unsized_labels_serve_where_no_function_covers() {
    let mut elf = good();
    elf.symbols = vec![("start", TEXT, 0, 0, 1), ("$x", TEXT + 2, 0, 0, 1), ("late", TEXT + 4, 2, FUNC, 1)];
    let image = Image::parse(&elf.bytes()).expect("good image");
    assert_eq!(image.symbolize(TEXT + 2), Some(("start".to_owned(), 2)));
    assert_eq!(image.symbolize(TEXT + 4), Some(("late".to_owned(), 0)));
}

#[test]
fn cut_at_every_length_is_an_error_and_never_a_panic() {
    let bytes = good().bytes();
    for length in 0..bytes.len() {
        let error = Image::parse(&bytes[..length]).expect_err("a cut image");
        assert!(
            matches!(error, ImageError::Truncated { .. }) || length < 4,
            "{length} of {} bytes: {error}",
            bytes.len()
        );
    }
}

#[test]
fn a_section_beyond_the_file_is_truncation() {
    let mut bytes = good().bytes();
    let table = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
    // sh_size of the first real section.
    bytes[table + 64 + 32..][..8].copy_from_slice(&0x10_0000_u64.to_le_bytes());
    let text = Image::parse(&bytes).expect_err("long section").to_string();
    assert!(text.starts_with("truncated: section .text"), "{text}");
}

#[test]
fn nobits_sections_take_no_file_bytes() {
    let mut elf = good();
    elf.sections.push(section(".bss", 8, 3, 0x8000_0000, vec![0; 64]));
    let image = Image::parse(&elf.bytes()).expect("good image");
    let bss = image.section(".bss").expect("section");
    assert_eq!((bss.size, bss.bytes.len(), bss.write), (64, 0, true));
}

proptest! {
    #[test]
    fn any_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Image::parse(&bytes);
        let header = good().bytes();
        let kept = bytes.len().min(64);
        bytes[..kept].copy_from_slice(&header[..kept]);
        let _ = Image::parse(&bytes);
    }

    #[test]
    fn any_change_of_a_good_image_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)
    ) {
        let mut bytes = good().bytes();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(image) = Image::parse(&bytes) {
            let _ = image.symbolize(TEXT + 1);
            let _ = image.expect_abi(3, 1);
        }
    }
}
