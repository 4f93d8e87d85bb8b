//! A panic of the firmware is reported with source file and line wherever a program or a user learns that the DPA
//! process has died.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use emu_machine::Config;
use flexcast::{Endpoint, Firmware};
use flexcast_tests::code::{cards, with_process};
use flexcast_tests::examples::{allgather, compile, compiler};
use flexcast_tests::tree::{copied_tree, xtask};
use flexcast_tests::{assert_mentions, chain, image_bytes};
use flexio::{Affinity, Bound, DeviceBuffer, Error, ErrorState, EventHandler};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// Entries that panic; the comment at the end of a line names it.
const SOURCE: &str = r#"//! Image `panics`.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![deny(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::PingPongContext;
    use dpa::shared::in_register;

    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        let table = [argument; 4];
        table[in_register(5) as usize] // bring-up
    }

    #[dpa::rpc]
    fn index(argument: u64) -> u64 {
        let table = [1, 2, in_register(3), 4];
        table[argument as usize] // index
    }

    #[dpa::rpc]
    fn message(argument: u64) -> u64 {
        if argument > 3 {
            panic!("no slot is free"); // message
        }
        argument
    }

    #[dpa::rpc]
    fn overflow(argument: u64) -> u64 {
        (in_register(1 << 63) as i64 / argument as i64) as u64 // overflow
    }

    #[dpa::rpc]
    fn wake(activation_id: u64) -> u64 {
        dpa::entry::activate(activation_id as u32);
        0
    }

    #[dpa::event_handler]
    fn handler(context: &mut PingPongContext) -> Next {
        let none: Option<u32> = (in_register(0) == 1).then_some(context.outbox_id);
        match none {
            Some(_) => Next::Reschedule,
            None => unreachable!(), // handler
        }
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {}
"#;

/// Line of [`SOURCE`] with the comment `mark`.
fn line(mark: &str) -> usize {
    SOURCE.lines().position(|line| line.ends_with(&format!("// {mark}"))).expect("a mark") + 1
}

fn place(mark: &str) -> String {
    format!("panicked at images/panics/src/main.rs:{}", line(mark))
}

/// The image, built once in a copy of the tree.
fn image() -> &'static (tempfile::TempDir, PathBuf) {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let tree = copied_tree();
        let created = xtask(tree.path(), &["new", "panics"]);
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        std::fs::write(tree.path().join("device/images/panics/src/main.rs"), SOURCE).expect("written");
        let manifest = tree.path().join("device/images/panics/image.toml");
        let entries = std::fs::read_to_string(&manifest)
            .expect("the template's")
            .replace("event_handlers = []", "event_handlers = [\"handler\"]")
            .replace("\"measure\"", "\"index\", \"message\", \"overflow\", \"wake\"");
        std::fs::write(manifest, entries).expect("written");
        let built = xtask(tree.path(), &["build", "panics"]);
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let elf = tree.path().join("target/device/emu/panics.elf");
        (tree, elf)
    })
}

fn elf() -> Vec<u8> {
    std::fs::read(&image().1).expect("the image")
}

/// Checks what is reported of a panic, by every way to ask.
#[track_caller]
fn assert_panic_reported(error: &Error, place: &str) {
    let Error::DeviceFault { state: ErrorState::User, panic: Some(panic), record } = error else { panic!("{error}") };
    assert_eq!(panic.to_string(), place);
    assert!(record.contains(place), "{record}");
    assert_mentions(error, &[&format!("error raised by the image, which {place}\n"), "0x81", "rust_begin_unwind"]);
    // The registers, once.
    assert_eq!(chain(error).matches(" sp 0").count(), 1, "{error}");
}

#[test]
fn a_panic_in_a_call_names_its_place() {
    let (index, overflow) = (place("index"), format!("{}: attempt to divide with overflow", place("overflow")));
    let message = format!("{}: no slot is free", place("message"));
    for (entry, argument, place) in [("index", 4, index), ("message", 7, message), ("overflow", u64::MAX, overflow)] {
        with_process(Config::default(), &elf(), |process| {
            assert_eq!(process.panic_place().expect("a dump"), None, "it lives");
        });
        with_process(Config::default(), &elf(), |process| {
            let error = process.call_by_name(entry, argument).expect_err("a panic");
            assert_panic_reported(&error, &place);
            assert_panic_reported(&process.check().expect_err("it stays dead"), &place);
            assert_panic_reported(&process.call_by_name("wake", 1).expect_err("it stays dead"), &place);
        });
    }
}

#[test]
fn a_panic_in_an_event_handler_names_its_place() {
    with_process(Config::default(), &elf(), |process| {
        let context = DeviceBuffer::zeroed(process, 256).expect("memory");
        let handler = EventHandler::new(process, "handler", 0, Affinity::Unit(17)).expect("an event handler");
        handler.run(context.addr().get()).expect("released");
        // The handler may die before the call that woke it is back: both report the same.
        let error = process.call_by_name("wake", u64::from(handler.id())).and_then(|_| {
            let bound = Bound::millis(100).with_polls(10_000_000);
            let provider = process.device().provider();
            provider.wait(bound, "the handler", || process.check().map(|()| None::<()>))
        });
        let place = format!("{}: internal error: entered unreachable code", place("handler"));
        assert_panic_reported(&error.expect_err("the handler panics"), &place);
    });
}

/// With weak memory stores wait in a buffer, and the record's must not be lost with their thread.
#[test]
fn the_record_is_there_with_weak_memory_too() {
    let config = Config { memory: emu_machine::MemoryModel::weak(7), ..Config::default() };
    with_process(config, &elf(), |process| {
        assert_panic_reported(&process.call_by_name("index", 9).expect_err("a panic"), &place("index"));
    });
}

#[test]
fn other_errors_of_the_firmware_have_no_place() {
    let elf = image_bytes("reference");
    with_process(Config::default(), &elf, |process| {
        // A context at address 0: the firmware ends the process by itself, without a panic.
        let error = process.call_by_name("prepare", 0).expect_err("no context");
        let Error::DeviceFault { state: ErrorState::User, panic, .. } = &error else { panic!("{error}") };
        assert!(panic.is_none() && !error.to_string().contains("panicked"), "{error}");
    });
}

#[test]
fn the_collective_library_reports_it() {
    let provider = cards(Config::default());
    let error = Endpoint::open(&provider, "mlx5_0", Firmware { name: "panics", elf: &elf() }).map(drop);
    assert_mentions(&error.expect_err("bring-up panics"), &[&place("bring-up")]);
}

#[test]
fn the_command_line_tool_reports_it_and_prints_the_registers_once() {
    let dumps = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(&allgather(true).tool);
    let output = command.arg("run").arg(&image().1).arg("--core-dir").arg(dumps.path()).output().expect("it starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && said.contains(&format!("which {}", place("bring-up"))), "{said}");
    assert_eq!(said.matches(" sp 0").count(), 1, "{said}");
    // In the report, and in the dump, whose note is the report.
    let report = std::fs::read_to_string(dumps.path().join("mlx5_0.001.crash")).expect("a report");
    assert!(report.contains(&place("bring-up")), "{report}");
    let core = std::fs::read(dumps.path().join("mlx5_0.001.core")).expect("a dump");
    let header = object::elf::FileHeader64::<object::LittleEndian>::parse(&*core).expect("an ELF file");
    let programs = header.program_headers(object::LittleEndian, &*core).expect("program headers");
    let mut notes = programs.iter().find_map(|header| header.notes(object::LittleEndian, &*core).ok()?).expect("notes");
    let mut found = false;
    while let Some(note) = notes.next().expect("a note") {
        found |= note.name() == b"FLEXCAST" && String::from_utf8_lossy(note.desc()).contains(&place("bring-up"));
    }
    assert!(found, "the note does not contain it");
}

#[test]
fn a_program_in_c_is_reported() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(compiler, "open", folder.path());
    let output = Command::new(program).arg(&image().1).arg(&allgather(true).libraries).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    // FLEXCAST_ERROR_DEVICE_FAULT.
    assert!(said.starts_with("121: the firmware has stopped: "), "{said}");
    assert!(said.contains(&format!("which {}", place("bring-up"))), "{said}");
}
