//! Calls, event handlers, RTOS calls and crash records of the emulated DPA, on hand-assembled images.

use super::machine as one_card;
use crate::support::*;
use emu_machine::time::PS_PER_US;
use emu_machine::{Config, Isa, MachineError, ProcessStatus, ThreadState, World};

const RESCHEDULE: u32 = 1;

/// Triggers a handler the way another handler would: through an activation call made by the RPC.
fn trigger(world: &mut World, process: u32, thread: u32) {
    assert_eq!(ping(world, process, u64::from(thread)).unwrap(), 0);
}

#[test]
fn a_call_returns_its_value_and_takes_virtual_time() {
    let (mut world, process) = boot(&image(&[RET], &[addi(A0, A0, 5), RET]), one_card());
    let before = world.now_ps();
    assert_eq!(ping(&mut world, process, 37).unwrap(), 42);
    assert_eq!(ping(&mut world, process, u64::MAX).unwrap(), 4);
    assert!(world.now_ps() > before);
}

#[test]
fn drafts_of_bit_manipulation_run() {
    // pack a0, a0, a0; crc32.w a0, a0 (Zbp, Zbr 0.93)
    let code = [0x08a5_4533, 0x6125_1513, RET];
    let (mut world, process) = boot(&image(&[RET], &code), one_card());
    assert_eq!(ping(&mut world, process, 0).unwrap(), 0);
    // Four bytes of zeros behind a one: the 32-bit word of the table of CRC-32 for 1, stepped; the upper word moves
    // down.
    let mut expected = 0x0000_0001_0000_0001_u64;
    for _ in 0..32 {
        expected = expected >> 1 ^ if expected & 1 == 1 { 0xEDB8_8320 } else { 0 };
    }
    assert_eq!(ping(&mut world, process, 1).unwrap(), expected);
}

#[test]
fn address_generation_runs_on_a_processor_that_has_it_and_is_named_on_one_that_lacks_it() {
    // sh3add a0, a0, a0
    const SH3ADD: u32 = 0x20a5_6533;
    let (mut world, process) = boot(&image(&[RET], &[SH3ADD, RET]), Config { isa: Isa::CONNECTX_8, ..one_card() });
    assert_eq!(ping(&mut world, process, 5).unwrap(), 45);

    let (mut world, process) = boot(&image(&[RET], &[SH3ADD, RET]), one_card());
    let error = ping(&mut world, process, 5).unwrap_err().to_string();
    let what = "illegal instruction: `sh3add a0, a0, a0` is of the extension Zba, \
                which rv64imac_zicsr_zifencei_zbb_zbs_zbp_zbr lacks";
    assert!(error.contains(what), "{error}");
}

#[test]
fn a_control_register_that_is_not_there_is_an_illegal_instruction() {
    // csrr a0, mstatus; csrw cycle, a0
    for code in [0x3000_2573, 0xc005_1073] {
        let (mut world, process) = boot(&image(&[RET], &[code, RET]), one_card());
        let error = ping(&mut world, process, 5).unwrap_err().to_string();
        assert!(error.contains("illegal instruction: `csr") && error.contains("no such register"), "{error}");
    }
}

#[test]
fn the_same_calls_give_the_same_trace_three_times() {
    let run = || {
        let (mut world, process) = boot(&image(&[RET], &[addi(A0, A0, 5), RET]), one_card());
        for n in 0..10 {
            ping(&mut world, process, n).unwrap();
        }
        (world.trace_hash(), world.trace_events(), world.now_ps())
    };
    let first = run();
    // At least start and return of every call.
    assert!(first.1 >= 20, "{} events", first.1);
    assert_eq!(run(), first);
    assert_eq!(run(), first);
}

#[test]
fn a_handler_runs_once_per_trigger_and_keeps_nothing_in_registers() {
    // *0x80000000 += 1; a1 must be zero at each start; reschedule.
    let handler = [
        lui(T0, 0x40000),
        slli(T0, T0, 1),
        ld(A2, T0, 0),
        addi(A2, A2, 1),
        add(A2, A2, A1),
        sd(A2, T0, 0),
        addi(A1, 0, 100),
        addi(A7, 0, RESCHEDULE as i32),
        ECALL,
    ];
    // ping(thread): event_handler_activate(thread).
    let activate = [addi(A7, 0, 11), ECALL, RET];
    let (mut world, process) = boot(&image(&handler, &activate), one_card());
    let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
    let thread = world.create_thread(0, process, entry, 0, 0, None).unwrap();
    // A trigger before the release is remembered; many of them are one.
    trigger(&mut world, process, thread);
    trigger(&mut world, process, thread);
    assert_eq!(world.card(0).unwrap().thread(thread).unwrap().state, ThreadState::Created);
    world.run_event_handler(0, thread, 0).unwrap();
    while world.step() {}
    for _ in 0..3 {
        trigger(&mut world, process, thread);
        while world.step() {}
    }
    let mut count = [0; 8];
    world.peek_memory(0, process, 0x8000_0000, &mut count).unwrap();
    assert_eq!(u64::from_le_bytes(count), 4);
    let thread = world.card(0).unwrap().thread(thread).unwrap();
    assert_eq!((thread.activations, thread.state), (4, ThreadState::Waiting));
    assert_eq!(thread.hart.instret, 4 * handler.len() as u64, "retired instructions are exact");
}

#[test]
fn a_crash_record_names_thread_place_cause_and_registers() {
    for (code, cause, value) in [
        (vec![addi(A3, 0, 77), ILLEGAL], "illegal instruction", 0xFFFF_FFFF),
        // The outbox: nothing there is read, whether it is aligned or not.
        (vec![addi(A3, 0, 77), ld(A0, 0, 9)], "misaligned", 9),
        (vec![addi(A3, 0, 77), ld(A0, 0, 8)], "no memory at this address", 8),
        (vec![addi(A3, 0, 77), sd(A0, RA, 8)], "no memory at this address", 0xE000_0008),
        (
            vec![addi(A3, 0, 77), addi(A4, 0, -1), slli(A4, A4, 63), ld(A0, A4, 16)],
            "no memory key",
            0x8000_0000_0000_0010,
        ),
        (vec![addi(A3, 0, 77), addi(A7, 0, 99), ECALL], "unknown RTOS call 99", 99),
        (vec![addi(A3, 0, 77), addi(A7, 0, RESCHEDULE as i32), ECALL], "it must return", 1),
    ] {
        let (mut world, process) = boot(&image(&[RET], &code), one_card());
        let error = ping(&mut world, process, 0).unwrap_err();
        assert!(matches!(error, MachineError::Crashed(_)), "{error}");
        assert!(error.to_string().contains(cause), "{error} lacks {cause}");
        let process_ref = world.card(0).unwrap().process(process).unwrap();
        let record = process_ref.crash().expect("a crash record");
        assert_eq!((record.value, record.registers[13], record.eu), (value, 77, 0), "{record}");
        assert_eq!(record.symbol.as_ref().map(|s| s.0.as_str()), Some("ping"), "{record}");
        assert_eq!(record.symbol.as_ref().map(|s| s.1), Some(4 * (code.len() as u64 - 1)));
        assert!(record.to_string().contains("a3 000000000000004d"), "{record}");
        // A dead process refuses further work and says why.
        let again = ping(&mut world, process, 0).unwrap_err();
        assert!(matches!(&again, MachineError::ProcessStopped { reason, .. } if reason.contains(cause)), "{again}");
    }
}

#[test]
fn endless_code_is_ended_by_the_watchdog() {
    let config = Config { rpc_watchdog_ps: 50 * PS_PER_US, ..one_card() };
    let (mut world, process) = boot(&image(&[RET], &[SPIN]), config);
    let error = ping(&mut world, process, 0).unwrap_err().to_string();
    assert!(error.contains("watchdog") && error.contains("call"), "{error}");
    assert!(world.now_ps() >= 50 * PS_PER_US && world.now_ps() < 60 * PS_PER_US, "{}", world.now_ps());
}

#[test]
fn a_handler_that_returns_is_an_error() {
    let (mut world, process) = boot(&image(&[RET], &[addi(A7, 0, 11), ECALL, RET]), one_card());
    let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
    let thread = world.create_thread(0, process, entry, 0, 0, Some(17)).unwrap();
    world.run_event_handler(0, thread, 0).unwrap();
    // The handler may die before the call that woke it is back.
    let _ = ping(&mut world, process, u64::from(thread));
    while world.step() {}
    let process = world.card(0).unwrap().process(process).unwrap();
    let record = process.crash().expect("a crash record");
    assert!(record.cause.contains("the event handler returned"), "{record}");
    assert_eq!((record.thread, record.eu), (thread, 17));
}

#[test]
fn a_user_error_ends_the_process_with_its_code() {
    let (mut world, process) = boot(&image(&[RET], &[addi(A0, 0, 0x85), addi(A7, 0, 10), ECALL]), one_card());
    assert!(ping(&mut world, process, 0).is_err());
    let process = world.card(0).unwrap().process(process).unwrap();
    assert!(matches!(process.status, ProcessStatus::UserError(0x85, _)), "{:?}", process.stopped());
}

#[test]
fn messages_pass_by_level_and_are_bounded() {
    // ping(len): msg(stream 0, level 3, 0x80000000, len)
    let send = [
        addi(A3, A0, 0),
        addi(A0, 0, 0),
        addi(A1, 0, 3),
        lui(A2, 0x40000),
        slli(A2, A2, 1),
        addi(A7, 0, 9),
        ECALL,
        RET,
    ];
    let (mut world, process) = boot(&image(&[RET], &send), one_card());
    assert_eq!(ping(&mut world, process, 3).unwrap(), 1, "no stream yet");
    let stream = world.create_stream(0, process, 4).unwrap();
    world.write_memory(0, process, 0x8000_0000, b"abc").unwrap();
    assert_eq!(ping(&mut world, process, 3).unwrap(), 0);
    assert_eq!(ping(&mut world, process, 512).unwrap(), 1, "longer than a message");
    world.set_stream_level(0, process, stream, 2).unwrap();
    assert_eq!(ping(&mut world, process, 3).unwrap(), 0, "filtered, not refused");
    assert_eq!(world.take_stream_messages(0, process, stream).unwrap(), vec![b"abc".to_vec()]);
}

#[test]
fn a_partition_has_its_units_and_no_others() {
    let config = Config { units: 32..=33, ..one_card() };
    let (mut world, process) = boot(&image(&[RET], &[RET]), config);
    let text = world.create_thread(0, process, 0, 0, 0, Some(1)).unwrap_err().to_string();
    assert!(text.contains("unit 1 is not of this partition; units 32 to 33"), "{text}");
    for _ in 0..2 {
        world.create_thread(0, process, 0, 0, 0, None).unwrap();
    }
    let text = world.create_thread(0, process, 0, 0, 0, None).unwrap_err().to_string();
    assert!(text.contains("all 2 execution units have a thread"), "{text}");
    assert_eq!(ping(&mut world, process, 7).unwrap(), 7, "calls have a unit of their own");
    #[allow(clippy::reversed_empty_ranges)]
    for units in [3..=2, 0..=255] {
        let refused = World::new(Config { units, ..one_card() }).map(drop).unwrap_err().to_string();
        assert!(refused.contains("a partition is a range of units 0 to 254"), "{refused}");
    }
}

#[test]
fn control_errors_name_what_is_wrong() {
    assert!(matches!(World::new(Config { cards: 3, ..Config::default() }), Err(MachineError::Cards(3))));
    let (mut world, process) = boot(&image(&[RET], &[RET]), one_card());
    assert!(matches!(world.create_process(0, b"not an ELF"), Err(MachineError::Image(_))));
    assert!(matches!(world.card(1), Err(MachineError::NoCard { index: 1, cards: 1 })));
    assert!(matches!(
        world.create_thread(0, process, 0, 0, 0, Some(255)),
        Err(MachineError::ExecutionUnit { eu: 255, .. })
    ));
    world.create_thread(0, process, 0, 0, 0, Some(3)).unwrap();
    assert!(matches!(
        world.create_thread(0, process, 0, 0, 0, Some(3)),
        Err(MachineError::ExecutionUnit { eu: 3, why: "taken by another thread", .. })
    ));
    for _ in 0..254 {
        world.create_thread(0, process, 0, 0, 0, None).unwrap();
    }
    assert!(matches!(
        world.create_thread(0, process, 0, 0, 0, None),
        Err(MachineError::NoFreeExecutionUnit { units: 255 })
    ));
    assert!(matches!(world.heap_alloc(0, process, 1 << 40), Err(MachineError::HeapFull { .. })));
    assert!(matches!(world.write_memory(0, process, 64, &[0]), Err(MachineError::BadDeviceRange { addr: 64, .. })));
    assert!(matches!(world.destroy_window(0, process, 9), Err(MachineError::NoObject { what: "window", id: 9, .. })));
    world.destroy_process(0, process).unwrap();
    assert!(matches!(world.destroy_process(0, process), Err(MachineError::NoProcess(_))));
}
