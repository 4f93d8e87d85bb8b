//! Arbitrary bytes as a device image.
//!
//! Parsing ends in a typed error or an image; of an image everything is read, it is verified, disassembled, loaded into
//! a process, and what it offers to the host is called. Checked beyond "no panic": parsing is a function of the bytes;
//! what the process holds at an address is what the image says; a process that crashed says why; and the card takes
//! another process afterwards.

use std::collections::BTreeMap;

use emu_machine::{Config, World};
use flexcast_image::callgraph::CallGraph;
use flexcast_image::testing::{TestElf, section};
use flexcast_image::verify::{DeclaredStack, Policy, Vendor, verify};
use flexcast_image::{EntryKind, Image, disasm, loops};
use flexcast_isa::Isa;

use crate::machine::{self, RET};

/// Instructions that are listed and searched for loops; longer functions say no more.
const LISTED_BYTES: u64 = 4096;
/// Bytes of one segment that are compared.
const COMPARED_BYTES: usize = 4096;

/// Handles one input.
pub fn run(data: &[u8]) {
    let bare = Image::parse_bare(data);
    let image = Image::parse(data);
    let Ok(image) = image else {
        // A program without symbols is the one difference.
        if let Ok(bare) = &bare {
            assert!(bare.symbols().is_empty(), "only the lack of symbols distinguishes the two");
            read(bare);
        }
        return;
    };
    assert!(bare.is_ok(), "what has symbols is accepted by both");
    read(&image);
    load(data, &image);
}

/// Everything that an image can be asked.
fn read(image: &Image) {
    let policy = Policy {
        isa: Isa::parse("rv64imac_zbb_zbs").expect("a known ISA"),
        abi: Some((3, 0xABCD)),
        stack_bytes: 16 << 10,
        private_prefixes: vec!["/home/".to_owned()],
        sections: vec![".text".to_owned(), ".data".to_owned()],
        declared_stacks: BTreeMap::from([(
            "start".to_owned(),
            DeclaredStack { bytes: 4096, reason: "a reason".to_owned() },
        )]),
        vendor: Vendor::default(),
    };
    let report = verify(image, &policy);
    let (passed, failed, unknown) = report.counts();
    assert_eq!(passed + failed + unknown, report.checks.len());
    assert_eq!(report.passed(), failed == 0);
    assert!(!report.to_string().is_empty());

    for segment in image.segments() {
        assert!(segment.bytes.len() as u64 <= segment.mem_size);
        assert!(segment.contains(segment.vaddr) && !segment.contains(segment.end()));
    }
    for pair in image.segments().windows(2) {
        assert!(pair[0].end() <= pair[1].vaddr, "segments do not overlap");
    }
    for symbol in image.symbols() {
        let _ = (symbol.demangled(), image.symbol(&symbol.name));
        if let Some((_, offset)) = image.symbolize(symbol.addr) {
            assert!(offset <= symbol.addr);
        }
        let end = symbol.addr.saturating_add(symbol.size.min(LISTED_BYTES));
        let _ = (loops::loops(image, symbol.addr, end), disasm::listing(image, symbol.addr, end));
    }
    for entry in image.entries() {
        assert!(image.entry_of_kind(&entry.name, entry.kind).is_ok());
        assert_eq!(entry.kind == EntryKind::Rpc, entry.unpack != 0);
    }
    let graph = CallGraph::of(image);
    for entry in image.entries() {
        let _ = (graph.stack_bound(entry.addr), graph.unknown_below(entry.addr), graph.reachable(entry.addr));
        let _ = graph.path(entry.addr, |function| function.name.contains("panic"));
    }
    let _ = (image.arch(), image.compiler(), image.entry(), image.flags(), image.is_position_independent());
    assert_eq!(image.expect_served().is_ok(), image.unserved().iter().all(|part| part.to_string().is_empty()));
    let _ = (image.dynamic_headers(), image.expect_abi(3, 0xABCD), image.entry_named("no such entry"));
}

/// Loads the image and calls it.
fn load(data: &[u8], image: &Image) {
    let config = Config { cards: 1, heap_bytes: 4096, rpc_watchdog_ps: 20_000_000, ..Config::default() };
    let mut world = World::new(config).expect("a card");
    let Ok(process) = world.create_process(0, data) else { return };
    for segment in image.segments() {
        let mut bytes = vec![0; segment.bytes.len().min(COMPARED_BYTES)];
        world.peek_memory(0, process, segment.vaddr, &mut bytes).expect("a loaded segment");
        assert_eq!(bytes, segment.bytes[..bytes.len()]);
        if segment.mem_size > segment.bytes.len() as u64 {
            let mut zero = [1];
            world.peek_memory(0, process, segment.end() - 1, &mut zero).expect("a loaded segment");
            assert_eq!(zero, [0], "what the file does not hold is zero");
        }
    }
    for entry in image.entries().iter().filter(|entry| entry.kind == EntryKind::Rpc).take(4) {
        match world.process_call(0, process, entry.addr, entry.unpack, 0) {
            Ok(_) => {}
            Err(_) => {
                let process = world.card(0).and_then(|card| card.process(process)).expect("it was not destroyed");
                assert!(process.stopped().is_some(), "a call that does not come back says why");
                break;
            }
        }
    }
    world.destroy_process(0, process).expect("a live process");
    machine::assert_calls(&mut world, 0);
}

/// Small images of every shape that the parser distinguishes.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let ping = [0x0055_0513, RET]; // addi a0, a0, 5
    let unpack = [0x0005_8293, 0x0005_3503, 0x0002_8067]; // mv t0, a1; ld a0, 0(a0); jr t0
    let whole = || {
        let mut elf = TestElf::image(&[("handler", &[0x0010_0893, 0x73]), ("ping", &ping), ("ping__unpack", &unpack)]);
        elf.sections.push(section(".data", 1, 3, 0x8000_0000, vec![1, 2, 3, 4, 5, 6, 7, 8]));
        elf.segments.push((0x8000_0000, 64, 6, elf.sections.len() - 1));
        elf
    };
    let mut loops = whole();
    // Two nested loops and a call.
    let code: [u32; 6] = [0xFF01_0113, 0xFFF5_0513, 0xFE05_1EE3, 0xFFF5_8593, 0xFE05_9AE3, RET];
    loops.section_mut(".text").bytes[..24].copy_from_slice(code.map(u32::to_le_bytes).as_flattened());
    let mut stripped = whole();
    stripped.symbols.clear();
    let mut mangled = whole();
    mangled.symbols.push(("_RNvCs1_4core9panicking", 0x4000_0000, 8, 2, 1));
    mangled.symbols.push(("undefined", 0, 0, 0, 0));
    let mut plain = whole();
    plain.sections.retain(|section| section.name != ".riscv.attributes");
    plain.segments.pop();
    let mut commented = whole();
    commented.sections.push(section(".comment", 1, 0x30, 0, b"\0rustc version 1.95.0 (x)\0".to_vec()));
    commented.sections.push(section(".rela.text", 4, 0, 0, vec![0; 24]));
    vec![
        ("whole", whole().bytes()),
        ("loops", loops.bytes()),
        ("stripped", stripped.bytes()),
        ("mangled", mangled.bytes()),
        ("plain", plain.bytes()),
        ("commented", commented.bytes()),
        ("cut", whole().bytes()[..200].to_vec()),
        ("script", b"#!/bin/sh\n".to_vec()),
    ]
}
