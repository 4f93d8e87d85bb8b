//! A device program in C against the headers and the library of `device/rt-emu`: what they offer does what the
//! hardware's formats ask for, and what the emulated DPA does not have is refused. Without a RISC-V compiler these
//! tests are skipped, and say so on stderr.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use emu_machine::{Config, MachineError, World};
use flexcast_tests::harness::installed;
use flexcast_tests::libs::libraries;
use flexcast_tests::workspace_root;

const COMPILER: &str = "riscv64-unknown-elf-gcc";

/// The program, built once; `None` without a compiler.
fn program() -> Option<&'static Vec<u8>> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    installed(COMPILER, "gcc-riscv64-unknown-elf").then(|| BUILT.get_or_init(|| build("c_device", &[])).as_ref())?
}

/// Builds `tests/c/NAME.c` with some macros defined; `None` without a compiler.
pub(crate) fn build(name: &str, defined: &[&str]) -> Option<Vec<u8>> {
    if !installed(COMPILER, "gcc-riscv64-unknown-elf") {
        return None;
    }
    let root = workspace_root();
    let run = |command: &mut Command| {
        let output = command.current_dir(&root).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{}.elf", defined.concat()));
    let flags = [
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-implicit-fallthrough",
        "-DFLEXIO_DEV_ALLOW_EXPERIMENTAL_API",
    ];
    let target =
        ["-march=rv64imac_zicsr_zifencei_zbb_zbs", "-mabi=lp64", "-mcmodel=medany", "-ffreestanding", "-nostdlib"];
    let mut compiler = Command::new(COMPILER);
    compiler.args(flags).args(target).args(["-I", "device/rt-emu/include/libflexio-dev", "-T", "linker/emu-c.ld"]);
    compiler.args(defined.iter().map(|name| format!("-D{name}"))).arg(format!("tests/c/{name}.c"));
    run(compiler.arg("-o").arg(&out).arg("-L").arg(libraries()).arg("-lflexio_dev"));
    Some(std::fs::read(&out).expect("the program"))
}

/// A card that runs the program; `None` without a compiler.
fn boot() -> Option<(World, u32)> {
    let elf = program()?;
    let mut world = World::new(Config { cards: 1, ..Config::default() }).expect("a valid configuration");
    let process = world.create_process(0, elf).expect("a valid image");
    assert_eq!(world.create_outbox(0, process).expect("an outbox"), 0);
    Some((world, process))
}

/// Calls an RPC of the program.
fn call(world: &mut World, process: u32, name: &str, argument: u64) -> Result<u64, MachineError> {
    let image = &world.card(0)?.process(process)?.image;
    let symbol = |name: &str| image.symbol(name).expect("a symbol of c_device.c");
    let (function, unpack) = (symbol(name), symbol(&format!("{name}__unpack")));
    let arguments = world.heap_alloc(0, process, 8)?;
    world.write_memory(0, process, arguments, &argument.to_le_bytes())?;
    world.process_call(0, process, function, unpack, arguments)
}

/// The crash record of a call that ends the process.
fn record(name: &str, argument: u64) -> Option<String> {
    let (mut world, process) = boot()?;
    let error = call(&mut world, process, name, argument).expect_err("the process ends");
    assert!(matches!(error, MachineError::Crashed(_)), "{error}");
    let process = world.card(0).expect("a card").process(process).expect("a process");
    Some(process.crash().expect("a record").to_string())
}

/// A call that answers 0, or the line of c_device.c that did not hold.
fn holds(name: &str, argument: u64) {
    if let Some((mut world, process)) = boot() {
        assert_eq!(call(&mut world, process, name, argument).expect("an answer"), 0, "a line of c_device.c");
    }
}

#[test]
fn calls_for_what_is_not_there_fail_and_set_errno() {
    holds("refused", 0);
}

#[test]
fn doorbells_of_what_is_not_there_end_the_process_and_are_named() {
    const REGISTERS: [&str; 9] =
        ["EQ_DB_NO_REARM", "EMU_CAP", "EMU_CAP_TRIGGER", "CC_DB", "RXT_DB", "RXT_DB", "CC_DB", "CC_DB_MSB", "EMU_CAP"];
    for (which, register) in REGISTERS.iter().enumerate() {
        let Some(record) = record("ends", which as u64) else { return };
        assert!(record.contains(register), "{register} is not in:\n{record}");
    }
}

#[test]
fn entries_have_the_bytes_of_the_hardware() {
    holds("entries", 0);
}

#[test]
fn answers_are_those_of_the_headers() {
    let Some((mut world, process)) = boot() else { return };
    assert_eq!(world.create_window(0, process, 1).expect("a window"), 0);
    // The thread of calls exists from the first one on.
    assert_eq!(call(&mut world, process, "fences", 0).expect("an answer"), 0);
    let threads = &world.card(0).expect("a card").process(process).expect("a process").threads;
    let thread = u64::from(*threads.keys().next().expect("the thread of calls"));
    assert_eq!(call(&mut world, process, "answers", thread).expect("an answer"), 0, "a line of c_device.c");
}

#[test]
fn fences_and_counters() {
    holds("fences", 0);
}

#[test]
fn a_process_ends_by_itself_or_with_an_error() {
    let Some((mut world, process)) = boot() else { return };
    let Some((mut other, _)) = boot() else { return };
    call(&mut world, process, "finishes", 0).expect_err("no answer");
    call(&mut other, process, "finishes", 1).expect_err("no answer");
    let status = |world: &mut World| {
        let process = world.card(0).expect("a card").process(process).expect("a process");
        format!("{:?}", process.status)
    };
    assert_eq!([status(&mut world), status(&mut other)], ["Finished", "Finished"]);
    let Some((mut world, _)) = boot() else { return };
    call(&mut world, process, "finishes", 0x81).expect_err("no answer");
    assert!(status(&mut world).starts_with("UserError(129"), "{}", status(&mut world));
}

#[test]
fn counters_of_the_port_are_sampled() {
    holds("counters", 0);
}

#[test]
fn counters_that_are_not_there_end_the_process() {
    for (which, reason) in [
        (1, "no counter 0x11: the card has 0x10 (bytes received at port 0) and 0x20 (bytes sent from it)"),
        (2, "flexio_dev_nic_counters_config"),
        (3, "flexio_dev_nic_counters_config"),
        (4, "flexio_dev_nic_counters_sample before flexio_dev_nic_counters_config"),
    ] {
        let Some(record) = record("counters", which) else { return };
        assert!(record.contains(reason), "{reason} is not in:\n{record}");
    }
}

#[test]
fn an_error_that_is_not_the_users_is_reported_as_that() {
    let Some(record) = record("finishes", 0x7F) else { return };
    let cause = "error 0x7f, which is not the user's (0x80 to 0xff): the process ends with 0x42";
    assert!(record.contains(cause), "{record}");
}

#[test]
fn a_thread_reports_its_name() {
    let Some((mut world, process)) = boot() else { return };
    let mut letter = |at| call(&mut world, process, "name", at).expect("an answer") as u8;
    let name: Vec<u8> = (0..32).map(&mut letter).take_while(|&letter| letter != 0).collect();
    let name = String::from_utf8(name).expect("a text");
    assert!(name.starts_with(&format!("EH_{process:x}_")) && name.len() > 5, "{name}");
}

#[test]
fn a_call_may_not_end_as_an_event_handler_does() {
    for which in 0..4 {
        let Some(record) = record("leaves", which) else { return };
        assert!(record.contains("ended by reschedule, finish or retrigger; it must return"), "{record}");
    }
}

#[test]
fn a_continuable_handler_goes_on_behind_a_yield_and_any_other_is_not_stopped_by_one() {
    let Some((mut world, process)) = boot() else { return };
    let entry = world.card(0).and_then(|card| card.process(process)).expect("a process").image.symbol("continues");
    for (continuable, sums) in [(true, [1, 111, 112, 222]), (false, [111, 222, 333, 444])] {
        let sum = world.heap_alloc(0, process, 8).expect("memory");
        world.write_memory(0, process, sum, &[0; 8]).expect("memory");
        let thread = world.create_thread(0, process, entry.expect("a handler"), sum, 0, None).expect("a thread");
        if continuable {
            world.make_continuable(0, thread).expect("a thread");
        }
        world.run_event_handler(0, thread, 0).expect("a handler");
        for expected in sums {
            assert_eq!(call(&mut world, process, "wake", u64::from(thread)).expect("an answer"), 0);
            world.advance(world.now_ps() + 1_000_000_000, 1_000_000);
            let mut bytes = [0; 8];
            world.peek_memory(0, process, sum, &mut bytes).expect("memory");
            assert_eq!(u64::from_le_bytes(bytes), expected, "continuable: {continuable}");
        }
    }
}

#[test]
fn data_is_there_within_reach_of_the_global_pointer_and_beyond() {
    let Some(elf) = build("data", &[]) else { return };
    let mut world = World::new(Config { cards: 1, ..Config::default() }).expect("a valid configuration");
    let process = world.create_process(0, &elf).expect("a valid image");
    assert_eq!(call(&mut world, process, "check", 0).expect("an answer"), 0, "bits of data.c");
}

#[test]
fn what_needs_start_up_code_is_refused_by_name() {
    for (defined, parts) in [
        ("THREAD_LOCAL", ["thread-local variables", "of_each_thread", "flexio_dev_get_thread_local_storage"]),
        ("CONSTRUCTOR", ["constructors in .init_array", "construct", "call them from an RPC"]),
        ("DESTRUCTOR", ["destructors in .fini_array", "destruct", "call them from an RPC"]),
    ] {
        let Some(elf) = build("data", &[defined]) else { return };
        let mut world = World::new(Config { cards: 1, ..Config::default() }).expect("a valid configuration");
        let error = world.create_process(0, &elf).expect_err("it needs start-up code");
        let MachineError::Image(error) = error else { panic!("{error}") };
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{defined}: {text}");
    }
}
