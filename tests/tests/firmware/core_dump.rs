//! Core dumps of DPA processes, as gdb reads them.

use std::path::{Path, PathBuf};
use std::process::Command;

use emu_machine::{Config, CrashRecord, World};
use emu_observe::{Files, core_dump};
use flexcast_tests::harness::skipped;
use flexcast_tests::{image_bytes, image_path};
use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// What a handler is given for a context: no memory of its process.
const NOWHERE: u64 = 0x40;

/// Loads `allgather` with two event handlers and wakes the second, whose context is nowhere: it dies in the firmware.
fn crashed(folder: &Path) -> (World, u32, CrashRecord) {
    let mut world = World::new(Config { cards: 1, ..Config::default() }).expect("a valid configuration");
    world.observe(u64::MAX, Box::new(Files::new(None, Some(folder.to_owned()))));
    let process = world.create_process(0, &image_bytes("allgather")).expect("the image loads");
    world.card(0).unwrap().process_mut(process).unwrap().label = "allgather".to_owned();
    let symbol = |world: &mut World, name: &str| {
        world.card(0).unwrap().process(process).unwrap().image.symbol(name).unwrap_or_else(|| panic!("no {name}"))
    };
    let entry = symbol(&mut world, "uc_receive");
    let heap = world.heap_alloc(0, process, 100).expect("heap");
    world.write_memory(0, process, heap, b"a marker in the heap").expect("written");
    let threads: Vec<u32> = (0..2)
        .map(|unit| {
            let thread = world.create_thread(0, process, entry, NOWHERE, 0, Some(17 + unit)).expect("a thread");
            world.run_event_handler(0, thread, 0).expect("released");
            thread
        })
        .collect();
    let (activate, unpack) = (symbol(&mut world, "activate"), symbol(&mut world, "activate__unpack"));
    let arguments = world.heap_alloc(0, process, 8).expect("heap");
    world.write_memory(0, process, arguments, &u64::from(threads[1]).to_le_bytes()).expect("written");
    // The handler may die before the call returns.
    drop(world.process_call(0, process, activate, unpack, arguments));
    while world.step() {}
    let record = world.card(0).unwrap().process(process).unwrap().crash().expect("it died").clone();
    assert_eq!((record.thread, record.eu), (threads[1], 18));
    (world, process, record)
}

fn core(folder: &Path) -> PathBuf {
    folder.join("mlx5_0.001.core")
}

/// The image and its dump in gdb; `None` where it is not installed.
fn gdb(core: &Path, commands: &[&str]) -> Option<String> {
    let mut gdb = Command::new("gdb-multiarch");
    gdb.args(["-nx", "-batch"]).arg(image_path("allgather")).arg(core);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    let Ok(output) = gdb.output() else {
        skipped("gdb-multiarch is not installed (Debian: gdb-multiarch)");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_crash_leaves_a_dump_that_gdb_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, _, record) = crashed(folder.path());
    let report = std::fs::read_to_string(folder.path().join("mlx5_0.001.crash")).expect("a report");
    assert_eq!(report, record.to_string());
    let commands =
        ["info threads", "backtrace", "info registers", "x/s 0x100000000", "x/2i $pc", "thread apply all backtrace"];
    let Some(text) = gdb(&core(folder.path()), &commands) else { return };
    let has = |part: &str| assert!(text.contains(part), "no {part:?} in:\n{text}");
    has("Program terminated with signal SIGSEGV");
    // The thread that died comes first and is the current one; its frames have names, from the place of the fault up to
    // the entry point.
    for thread in 1..=3 {
        has(&format!("LWP {thread}"));
    }
    has(&format!("* 1    LWP {}", record.thread));
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert!(frames[0].starts_with("#0 ") && frames[0].contains("receive ("), "{frames:?}");
    assert!(frames.iter().any(|frame| frame.contains("uc_receive")), "{frames:?}");
    assert!(!text.contains("may not match"), "{text}");
    // A handler that waits is shown where it will start.
    assert!(
        frames.iter().any(|frame| frame.starts_with("#0 ") && frame.contains("__event_handler_uc_receive")),
        "{frames:?}"
    );
    has("a marker in the heap");
    for (name, value) in [("pc", record.pc), ("sp", record.registers[2]), ("tp", record.registers[4])] {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("a register");
        assert!(line.contains(&format!("{value:#x}")), "{name} is {value:#x}: {line}");
    }
}

#[test]
fn a_dump_holds_the_memory_of_the_process_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut world, process, record) = crashed(folder.path());
    let bytes = std::fs::read(core(folder.path())).expect("the dump");
    let header = elf::FileHeader64::<object::LittleEndian>::parse(&*bytes).expect("an ELF file");
    assert_eq!(header.e_type(object::LittleEndian), elf::ET_CORE);
    assert_eq!(header.e_machine(object::LittleEndian), elf::EM_RISCV);
    let programs = header.program_headers(object::LittleEndian, &*bytes).expect("program headers");
    let mut loaded = 0;
    for program in programs.iter().filter(|program| program.p_type(object::LittleEndian) == elf::PT_LOAD) {
        let addr = program.p_vaddr(object::LittleEndian);
        let data = program.data(object::LittleEndian, &*bytes).expect("bytes");
        let mut memory = vec![0; data.len()];
        world.peek_memory(0, process, addr, &mut memory).expect("memory of the process");
        assert_eq!(data, memory, "at {addr:#x}");
        loaded += data.len();
    }
    // Three stacks and contexts, the segments, and of 256 MiB of heap what was allocated.
    assert!((3 * 0x5000..0x10_0000).contains(&loaded), "{loaded:#x} bytes");
    // One status note for each thread, the dead one's first, and the report.
    let notes = programs.iter().find(|program| program.p_type(object::LittleEndian) == elf::PT_NOTE).expect("notes");
    let mut notes = notes.notes(object::LittleEndian, &*bytes).expect("notes").expect("notes");
    let (mut threads, mut report) = (Vec::new(), None);
    while let Some(note) = notes.next().expect("a note") {
        match (note.name(), note.n_type(object::LittleEndian)) {
            (b"CORE", elf::NT_PRSTATUS) => {
                threads.push(u32::from_le_bytes(note.desc()[32..36].try_into().expect("four bytes")));
            }
            (b"FLEXCAST", _) => report = Some(String::from_utf8_lossy(note.desc()).into_owned()),
            _ => {}
        }
    }
    let others = (1..=3).filter(|&thread| thread != record.thread);
    assert_eq!(threads, [record.thread].into_iter().chain(others).collect::<Vec<_>>());
    assert_eq!(report, Some(record.to_string()));
}

#[test]
fn a_healthy_process_can_be_dumped_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = World::new(Config { cards: 1, ..Config::default() }).expect("a valid configuration");
    let process = world.create_process(0, &image_bytes("allgather")).expect("the image loads");
    let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("ud_receive").unwrap();
    world.create_thread(0, process, entry, 0, 0, None).expect("a thread");
    let path = folder.path().join("healthy.core");
    let process = world.card(0).unwrap().process(process).unwrap();
    core_dump::write_file(process, None, &path).expect("written");
    if let Some(text) = gdb(&path, &["info threads", "info files"]) {
        assert!(text.contains("LWP 1") && text.contains("allgather"), "{text}");
        assert!(!text.contains("Program terminated"), "{text}");
    }
    let nowhere = folder.path().join("no/such/folder");
    assert!(core_dump::write_file(process, None, &nowhere).is_err());
}
