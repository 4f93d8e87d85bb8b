//! Device faults as typed errors of the host, with the crash record: thread, program counter, symbol, cause, registers.

use emu_machine::{Config, layout};
use flexcast_tests::code::{self, *};
use flexcast_tests::{assert_mentions, chain};
use flexio::{
    Access, Affinity, Bound, Error, ErrorState, EventHandler, HostBuffer, MemoryRegion, Process, ProtectionDomain,
    Window,
};

/// The code of `ping` behind a marker in a3, which the record must show.
fn marked(code: &[u32]) -> Vec<u32> {
    let mut marked = vec![addi(reg::A3, 0, 77)];
    marked.extend_from_slice(code);
    marked
}

/// Calls `ping`, which must crash at its last instruction, and checks the record.
#[track_caller]
fn crashes(process: &Process, ping: &[u32], argument: u64, cause: &[&str]) {
    let error = process.call_by_name("ping", argument).expect_err("a crash");
    let Error::DeviceFault { state: ErrorState::Fatal, record, panic: None } = &error else {
        panic!("not a crash: {error}")
    };
    assert_mentions(&error, cause);
    let place = format!("ping+{:#x}", 4 * (ping.len() - 1));
    for word in
        ["thread ", "execution unit 0", "pc  ", &place, "a3 000000000000004d", "retired ", "sp 00000000c0005000"]
    {
        assert!(record.contains(word), "{word:?} is not in:\n{record}");
    }
    // Every register is there, by name.
    for name in ["zero", "ra", "gp", "tp", "t6", "s11", "a7"] {
        assert!(record.contains(&format!(" {name} ")), "{name} is not in:\n{record}");
    }
    // A dead process stays dead, and says why again.
    assert_eq!(process.error_state(), ErrorState::Fatal);
    let again = process.call_by_name("ping", argument).expect_err("a dead process");
    assert!(matches!(again, Error::DeviceFault { .. }), "{again}");
    assert_mentions(&process.check().expect_err("a dead process"), cause);
}

#[track_caller]
fn ping_crashes(ping: &[u32], argument: u64, cause: &[&str]) {
    let ping = marked(ping);
    with_process(Config::default(), &image(&[RET], &ping), |process| crashes(process, &ping, argument, cause));
}

#[test]
fn illegal_instruction() {
    ping_crashes(&[ILLEGAL], 0, &["illegal instruction", "0x00000000ffffffff"]);
}

/// In memory it is carried out, as public programs rely on; at the card's registers and where nothing is it is not.
#[test]
fn misaligned_access() {
    let ping = marked(&[addi(reg::A1, 0, 0x123), sd(reg::A1, reg::A0, 3), ld(reg::A0, reg::A0, 2), RET]);
    with_process(Config::default(), &image(&[RET], &ping), |process| {
        assert_eq!(process.call_by_name("ping", DATA).expect("it returns"), 0x12300);
    });
    ping_crashes(&[ld(reg::A1, reg::A0, 1)], layout::OUTBOXES, &["misaligned"]);
    ping_crashes(&[ld(reg::A1, reg::A0, 1)], 0, &["misaligned", "0x0000000000000001"]);
    ping_crashes(&[amo_misaligned()], DATA + 1, &["misaligned"]);
    // Across the end of memory: what is missing is named, and where.
    let across = ["no memory at this address (a misaligned access of 8 bytes at 0x80000ffc)", "0x0000000080001000"];
    ping_crashes(&[ld(reg::A1, reg::A0, 0)], DATA + 4092, &[&["load access fault"][..], &across].concat());
    ping_crashes(&[sd(reg::A1, reg::A0, 0)], DATA + 4092, &[&["store or atomic access fault"][..], &across].concat());
    // The last byte of all.
    ping_crashes(&[addi(reg::A2, 0, -1), ld(reg::A1, reg::A2, 0)], 0, &["window entity 1 has no memory key"]);
}

/// `amoadd.w a1, a1, (a0)` behind an odd address.
fn amo_misaligned() -> u32 {
    0x00B5_25AF
}

#[test]
fn unmapped_access() {
    ping_crashes(&[ld(reg::A1, reg::A0, 8)], 0, &["no memory at this address", "0x0000000000000008"]);
    ping_crashes(&[sd(reg::A1, reg::A0, 0)], DATA + 4096, &["no memory at this address", "0x0000000080001000"]);
    // The guard page below the stack of execution unit 0, where an overflow lands.
    ping_crashes(
        &[sd(reg::A1, reg::A0, 0)],
        layout::THREADS + 0xFF8,
        &["stack overflow: 8 bytes below the 16384 that a thread's stack has", "0x00000000c0000ff8"],
    );
}

#[test]
fn store_into_code() {
    ping_crashes(&[sd(reg::A1, reg::A0, 0)], 0x4000_0000, &["read-only", "0x0000000040000000"]);
}

#[test]
fn jump_into_data() {
    let code = marked(&[call_register(reg::A0)]);
    with_process(Config::default(), &image(&[RET], &code), |process| {
        let error = process.call_by_name("ping", DATA).expect_err("a crash");
        // The register ra shows where the jump came from.
        assert_mentions(
            &error,
            &["instruction access fault", "0x0000000080000000", "ra 000000004000000c", "a3 000000000000004d"],
        );
    });
}

#[test]
fn unknown_runtime_call() {
    ping_crashes(&rtos(99), 0, &["unknown RTOS call 99"]);
}

#[test]
fn window_without_a_key() {
    let address = layout::WINDOW_0 + 0x10;
    ping_crashes(&[ld(reg::A1, reg::A0, 0)], address, &["window entity 0 has no memory key", "window_config"]);
    let address = layout::WINDOW_1;
    ping_crashes(&[sd(reg::A1, reg::A0, 0)], address, &["window entity 1 has no memory key", "window_config"]);
}

/// `ping(block)`: window_config(0, block[0], block[1]), then a load (or store) at block[2].
fn through_window(store: bool) -> Vec<u32> {
    let mut code = vec![
        addi(reg::S0, reg::A0, 0),
        addi(reg::A0, 0, 0),
        ld(reg::A1, reg::S0, 0),
        ld(reg::A2, reg::S0, 8),
        ld(reg::T1, reg::S0, 16),
    ];
    code.extend(rtos(layout::call::WINDOW_CONFIG));
    code.push(if store { sd(reg::A3, reg::T1, 0) } else { ld(reg::A4, reg::T1, 0) });
    marked(&code)
}

/// Runs [`through_window`] at `offset` of 64 registered bytes, whose key has these rights.
#[track_caller]
fn window_access(store: bool, foreign: bool, access: Access, offset: i64, cause: Option<&[&str]>) {
    let mut code = through_window(store);
    let crash_at = code.clone();
    code.push(RET);
    with_process(Config::default(), &image(&[RET], &code), |process| {
        let other = ProtectionDomain::new(process.device()).expect("a protection domain");
        let window = Window::new(process).expect("a window");
        let pd = if foreign { &other } else { process.pd() };
        let buffer = HostBuffer::zeroed(64).expect("a buffer");
        let memory = MemoryRegion::register(pd, buffer, access).expect("a memory region");
        let target = (layout::WINDOW_0 + memory.addr().get()).wrapping_add_signed(offset);
        let mut block = Vec::new();
        for word in [u64::from(window.id()), u64::from(memory.lkey()), target] {
            block.extend_from_slice(&word.to_le_bytes());
        }
        let block = flexio::DeviceBuffer::from_bytes(process, &block).expect("a device buffer");
        let argument = block.addr().get();
        match cause {
            Some(cause) => {
                crashes(process, &crash_at, argument, cause);
                assert_eq!(memory.read_u64(0).expect("in range"), 0, "nothing was written");
            }
            None => {
                process.call_by_name("ping", argument).expect("an allowed access");
                let written = if store { 77 } else { 0 };
                assert_eq!(memory.read_u64(offset as usize).expect("in range"), written);
            }
        }
    });
}

#[test]
fn window_with_a_wrong_key() {
    let write = Access::LOCAL_WRITE;
    window_access(true, false, write, 56, None);
    window_access(false, false, Access::empty(), 0, None);
    window_access(true, false, write, 64, Some(&["window 0", "outside memory key", "covers 64 bytes"]));
    window_access(false, false, write, -8, Some(&["window 0", "outside memory key", "covers 64 bytes"]));
    window_access(
        true,
        true,
        write,
        0,
        Some(&["belongs to protection domain", "create key and queue in the same one"]),
    );
    window_access(true, false, Access::empty(), 0, Some(&["window 0", "memory key", "LOCAL_WRITE"]));
}

#[test]
fn window_with_a_key_that_never_was() {
    let mut code = through_window(false);
    let crash_at = code.clone();
    code.push(RET);
    with_process(Config::default(), &image(&[RET], &code), |process| {
        let window = Window::new(process).expect("a window");
        let mut block = Vec::new();
        for word in [u64::from(window.id()), 0x00DE_AD00, layout::WINDOW_0] {
            block.extend_from_slice(&word.to_le_bytes());
        }
        let block = flexio::DeviceBuffer::from_bytes(process, &block).expect("a device buffer");
        crashes(process, &crash_at, block.addr().get(), &["0xdead00 does not exist", "window 0"]);
    });
}

/// Triggers `handler` on unit 17 and waits for what becomes of it.
fn trigger(config: Config, handler: &[u32]) -> (u32, Error) {
    // ping(thread): event_handler_activate(thread).
    let mut activate = rtos(layout::call::EVENT_HANDLER_ACTIVATE).to_vec();
    activate.push(RET);
    with_process(config, &image(handler, &activate), |process| {
        let handler = EventHandler::new(process, "handler", 5, Affinity::Unit(17)).expect("an event handler");
        handler.run(5).expect("released");
        // The handler may die before the call that woke it is back: both report the same.
        if let Err(error) = process.call_by_name("ping", u64::from(handler.id())) {
            return (handler.id(), error);
        }
        let provider = process.device().provider();
        let bound = Bound::millis(100).with_polls(10_000_000);
        let waited = provider.wait(bound, "the handler", || process.check().map(|()| None::<()>));
        (handler.id(), waited.expect_err("the handler must fail"))
    })
}

#[test]
fn a_handler_that_crashes_is_named() {
    let (id, error) = trigger(Config::default(), &[addi(reg::A3, 0, 77), ILLEGAL]);
    assert!(matches!(error, Error::DeviceFault { state: ErrorState::Fatal, .. }), "{error}");
    let thread = format!("{id} on execution unit 17");
    assert_mentions(
        &error,
        &["illegal instruction", "handler+0x4", &thread, "a0 0000000000000005", "a3 000000000000004d"],
    );
}

#[test]
fn a_handler_that_returns_is_named() {
    let (_, error) = trigger(Config::default(), &[RET]);
    assert_mentions(&error, &["the event handler returned", "reschedule"]);
}

#[test]
fn an_endless_handler_meets_its_watchdog() {
    let ms = 1_000_000_000;
    let (id, error) =
        trigger(Config { handler_watchdog_ps: 2 * ms, ..Config::default() }, &[addi(reg::A3, 0, 77), SPIN]);
    assert!(matches!(error, Error::DeviceFault { state: ErrorState::Fatal, .. }), "{error}");
    let thread = format!("{id} on execution unit 17");
    assert_mentions(
        &error,
        &["watchdog: the event handler ran for more than 2 ms", "handler+0x4", &thread, "a3 000000000000004d"],
    );
}

#[test]
fn an_endless_call_meets_its_watchdog() {
    let ms = 1_000_000_000;
    let config = Config { rpc_watchdog_ps: 3 * ms, ..Config::default() };
    with_process(config, &image(&[RET], &[SPIN]), |process| {
        let before = process.device().provider().relax().now_ps();
        let error = process.call_by_name("ping", 0).expect_err("the watchdog");
        assert_mentions(&error, &["watchdog: the call ran for more than 3 ms", "ping+0x0"]);
        let took = process.device().provider().relax().now_ps() - before;
        assert!((3 * ms..4 * ms).contains(&took), "{took} ps");
    });
}

#[test]
fn an_error_of_the_firmware_is_distinguished_from_a_crash() {
    let mut code = vec![addi(reg::A0, 0, 0x85)];
    code.extend(rtos(layout::call::ERROR));
    with_process(Config::default(), &image(&[RET], &code), |process| {
        let error = process.call_by_name("ping", 0).expect_err("a user error");
        assert!(matches!(error, Error::DeviceFault { state: ErrorState::User, .. }), "{error}");
        assert_mentions(&error, &["error raised by the image", "0x85"]);
    });
}

/// A crash of one process stops that one alone, and its objects can be destroyed.
#[test]
fn a_crash_stays_in_its_process() {
    let provider = code::cards(Config::default());
    let elf = image(&[RET], &[ld(reg::A0, reg::A0, 0), RET]);
    let application = flexio::Application::load(&provider, "tiny", &elf, None).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let healthy = Process::new(&application, &pd).expect("a process");
    {
        let doomed = Process::new(&application, &pd).expect("a process");
        let buffer = flexio::DeviceBuffer::zeroed(&doomed, 64).expect("memory");
        let error = doomed.call_by_name("ping", 0).expect_err("address 0");
        assert!(chain(&error).contains("no memory"), "{error}");
        assert!(flexio::DeviceBuffer::zeroed(&doomed, 0).is_err());
        drop(buffer);
    }
    assert_eq!(healthy.call_by_name("ping", DATA).expect("the other process lives"), 0);
    healthy.check().expect("no error here");
}
