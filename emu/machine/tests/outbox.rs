//! Outbox registers and calls for what the emulated card does not have: none is ignored in silence.

use crate::support;
use emu_machine::layout::{call, outbox};
use emu_machine::{Config, ProcessStatus, World};
use support::*;

fn one_card() -> Config {
    Config { cards: 1, ..Config::default() }
}

/// `ping(offset)`: selects outbox 0, then accesses `offset` of its page by the given instruction on `0(t0)`.
fn access(instruction: u32) -> Vec<u32> {
    vec![
        addi(A4, A0, 0),
        addi(A0, 0, 0),
        addi(A7, 0, call::OUTBOX_CONFIG as i32),
        ECALL,
        ld(T0, TP, 8),
        add(T0, T0, A4),
        instruction,
        RET,
    ]
}

fn run(code: &[u32], argument: u64) -> (World, u32, Result<u64, emu_machine::MachineError>) {
    let (mut world, process) = boot(&image(&[RET], code), one_card());
    assert_eq!(world.create_outbox(0, process).expect("an outbox"), 0);
    let result = ping(&mut world, process, argument);
    (world, process, result)
}

#[test]
fn a_store_to_a_register_that_does_nothing_here_ends_the_process_and_names_it() {
    let named = outbox::REFUSED.iter().map(|&(offset, name, _)| (offset, name));
    for (offset, name) in named.chain([(0x1C8, "0x1c8"), (0x104, "0x104")]) {
        // 0x104 is misaligned for a double word: the hart itself refuses.
        let name = if offset == 0x104 { "misaligned" } else { name };
        let (mut world, process, result) = run(&access(sd(A4, T0, 0)), offset);
        let error = result.expect_err("the process ends").to_string();
        let process = world.card(0).unwrap().process(process).unwrap();
        assert!(matches!(process.status, ProcessStatus::Crashed(_)), "{name}");
        let record = process.crash().expect("a record").to_string();
        assert!(record.contains(name), "{name} is not in {record}");
        assert!(!error.is_empty());
    }
}

#[test]
fn a_doorbell_of_a_thread_without_an_outbox_is_explained() {
    let code = [ld(T0, TP, 8), add(T0, T0, A0), sd(A0, T0, 0), RET];
    let (mut world, process, result) = run(&code, outbox::SXD_DB);
    result.expect_err("the process ends");
    let record = world.card(0).unwrap().process(process).unwrap().crash().expect("a record").summary();
    for part in ["outbox register SXD_DB if the thread had an outbox", "call flexio_dev_outbox_config", "(ping"] {
        assert!(record.contains(part), "{part} is not in {record}");
    }
}

#[test]
fn narrow_stores_to_the_outbox_fault() {
    // sw a4, 0(t0)
    let (mut world, process, result) = run(&access(A4 << 20 | T0 << 15 | 2 << 12 | 0x23), outbox::CQ_DB);
    result.expect_err("the process ends");
    let record = world.card(0).unwrap().process(process).unwrap().crash().expect("a record").to_string();
    assert!(record.contains("the outbox takes 8-byte stores, not 4"), "{record}");
}

#[test]
fn a_trigger_of_a_queue_that_has_no_thread_ends_the_process() {
    let (mut world, process, result) = run(&access(sd(A4, T0, 0)), outbox::RXT_DB);
    result.expect_err("the process ends");
    let record = world.card(0).unwrap().process(process).unwrap().crash().expect("a record").to_string();
    assert!(record.contains("RXT_DB: there is no completion queue 0x280 with a thread"), "{record}");
}

#[test]
fn queues_of_another_uar_are_not_rung() {
    use emu_nic::{CqAttr, CqTarget, QueueMemory, Space};
    // ping(cqn): CQ_DB of queue `cqn` at consumer index 0.
    let code = [
        addi(A4, A0, 0),
        addi(A0, 0, 0),
        addi(A7, 0, call::OUTBOX_CONFIG as i32),
        ECALL,
        ld(T0, TP, 8),
        sd(A4, T0, outbox::CQ_DB as i32),
        RET,
    ];
    for (bound, fine) in [(None, true), (Some(5), true), (Some(6), false)] {
        let (mut world, process) = boot(&image(&[RET], &code), one_card());
        let id = world.create_outbox(0, process).expect("an outbox");
        if let Some(uar) = bound {
            world.bind_outbox(0, process, id, uar).expect("it exists");
        }
        let addr = world.heap_alloc(0, process, 8192).expect("memory");
        let ring = QueueMemory { space: Space::Dpa(process), addr };
        let attr = CqAttr {
            ring,
            log_depth: 4,
            doorbell_record: QueueMemory { addr: addr + 4096, ..ring },
            target: CqTarget::None,
            overrun_ignore: false,
            always_armed: false,
            armed_at_creation: false,
            uar: 5,
        };
        let cqn = world.card(0).unwrap().nic.create_cq(attr).expect("a queue");
        let result = ping(&mut world, process, u64::from(cqn));
        assert_eq!(result.is_ok(), fine, "{bound:?}");
        if !fine {
            let record = world.card(0).unwrap().process(process).unwrap().crash().expect("a record").to_string();
            let reason = format!("outbox 0 of UAR 6: completion queue {cqn:#x} was made with UAR 5");
            assert!(record.contains(&reason), "{record}");
        }
        world.bind_outbox(0, process, 9, 1).expect_err("no such outbox");
    }
}

#[test]
fn only_the_idle_register_can_be_read() {
    let code = access(ld(A0, T0, 0));
    assert_eq!(run(&code, outbox::UCTL).2.expect("readable"), 0);
    for offset in [0x040, outbox::CQ_DB, 0xFC0] {
        let (mut world, process, result) = run(&code, offset);
        result.expect_err("not readable");
        let record = world.card(0).unwrap().process(process).unwrap().crash().expect("a record").to_string();
        assert!(record.contains(&format!("outbox offset {offset:#x} cannot be read here")), "{record}");
    }
}

/// `ping(x)`: the runtime call of this number with argument `x`.
fn calls(number: u64) -> [u32; 3] {
    [addi(A7, 0, number as i32), ECALL, RET]
}

#[test]
fn activating_what_is_no_event_handler_fails() {
    let (mut world, process, result) = run(&calls(call::EVENT_HANDLER_ACTIVATE), 77);
    assert_eq!(result.expect("an answer"), 1);
    // The thread of the call itself has a number too, and is no event handler.
    let own = *world.card(0).unwrap().process(process).unwrap().threads.keys().next().expect("the call's thread");
    assert_eq!(ping(&mut world, process, u64::from(own)).expect("an answer"), 1);
    assert_eq!(ping(&mut world, process, 1 << 32).expect("an answer"), 1);
}

#[test]
fn counters_of_the_port_are_read_and_others_refused() {
    for counter in [call::COUNTER_RX_BYTES, call::COUNTER_TX_BYTES] {
        assert_eq!(run(&calls(call::NIC_COUNTER), counter).2.expect("an answer"), 0, "{counter:#x}");
    }
    for (counter, reason) in [(0x11, "no counter 0x11"), (0, "no counter 0x0"), (call::COUNTER_NONE, "before")] {
        let (mut world, process, result) = run(&calls(call::NIC_COUNTER), counter);
        result.expect_err("the process ends");
        let record = world.card(0).unwrap().process(process).unwrap().crash().expect("a record").to_string();
        assert!(record.contains(reason), "{reason} is not in {record}");
    }
}

#[test]
fn a_doorbell_region_of_another_function_is_refused() {
    assert_eq!(run(&calls(call::OUTBOX_CONFIG_UAR_EXTENSION), 0).2.expect("an answer"), 1);
}

#[test]
fn a_thread_knows_its_name() {
    let code = [ld(A0, TP, 0x40), RET];
    let (mut world, process, result) = run(&code, 0);
    let own = *world.card(0).unwrap().process(process).unwrap().threads.keys().next().expect("the call's thread");
    let name = format!("EH_{process:x}_{own:x}");
    let bytes = result.expect("an answer").to_le_bytes();
    assert_eq!(&bytes[..name.len().min(8)], &name.as_bytes()[..name.len().min(8)]);
}
