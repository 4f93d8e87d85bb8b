//! Arbitrary instructions as the firmware of a card.
//!
//! A process whose RPC and whose event handler begin with a prologue that puts useful values into registers (see
//! [`PROLOGUE`]) and go on with the input. It runs on strong or weak memory, with or without the detector of races.
//! Checked: calls end, in a value or a crash record that says why; host memory outside the window's key is as it was;
//! what the firmware makes the host keep is bounded; the same input gives the same trace; and the card runs another
//! process afterwards.
//!
//! The first byte holds flags, the second the seed of the memory model, the third where the event handler begins; then
//! come the instructions.

use std::cell::RefCell;

use emu_machine::nic::{
    Access, CqAttr, CqTarget, MkeyAttr, Mtu, QpAttr, QpModify, QpState, QueueMemory, Space, Transport,
};
use emu_machine::{Config, MemoryModel, ProcessStatus, World};
use flexcast_image::testing::{TEXT, TestElf, section};

use crate::guard::Pages;
use crate::input::Input;
use crate::machine;

/// What the first byte holds.
pub mod flag {
    /// Stores become visible late and out of order.
    pub const WEAK: u8 = 1;
    /// Races are detected.
    pub const RACES: u8 = 2;
    /// The code may be stored to.
    pub const WRITABLE: u8 = 4;
    /// The event handler is triggered before the call as well.
    pub const EARLY: u8 = 8;
}

/// Address of the page that registers point into.
const DATA: u64 = 0x8000_0000;
const MAX_CODE_BYTES: usize = 1024;
/// Host memory behind the window's key, with as much on both sides that is not.
const SHARED_BYTES: usize = 4096;
/// Virtual time that the machine runs after the call: twice a watchdog.
const AFTER_PS: u64 = 40_000_000;
const WATCHDOG_PS: u64 = 20_000_000;
/// Instructions within the watchdogs and the time after, and what the card does for them.
const MAX_STEPS: usize = 200_000;

/// `mv s0, a0; ld s1..s11, 0..80(s0)`, then the calls that select the outbox and bind the window. The registers hold:
/// s0 the data page; s1 the outbox page; s2 the window onto the shared memory; s3 the value that arms the completion
/// queue; s4 that which rings the send queue; s5 the completion ring; s6 the send ring; s7 the doorbell record; s8 the
/// window's key; s9 the event handler's thread; s10 the number of the window; s11 that of the outbox.
pub const PROLOGUE: [u32; 19] = [
    0x0005_0413, // mv s0, a0
    ld(9, 0),
    ld(18, 8),
    ld(19, 16),
    ld(20, 24),
    ld(21, 32),
    ld(22, 40),
    ld(23, 48),
    ld(24, 56),
    ld(25, 64),
    ld(26, 72),
    ld(27, 80),
    0x000D_8513, // mv a0, s11
    li(17, 6),
    ECALL,
    li(10, 0),
    0x000D_0593, // mv a1, s10
    0x000C_0613, // mv a2, s8
    li(17, 7),
];
const ECALL: u32 = 0x73;
const FENCE: u32 = 0x0FF0_000F;

/// `ld rd, offset(s0)`.
const fn ld(rd: u32, offset: u32) -> u32 {
    offset << 20 | 8 << 15 | 3 << 12 | rd << 7 | 0x03
}

/// `li rd, value`.
const fn li(rd: u32, value: u32) -> u32 {
    value << 20 | rd << 7 | 0x13
}

/// `sd value, offset(base)`.
const fn sd(value: u32, base: u32, offset: u32) -> u32 {
    (offset >> 5) << 25 | value << 20 | base << 15 | 3 << 12 | (offset & 31) << 7 | 0x23
}

thread_local! {
    /// At one address for all runs, so that a run can be compared with its repetition.
    static SHARED: RefCell<Pages> = RefCell::new(Pages::new(3 * SHARED_BYTES));
}

/// Handles one input.
pub fn run(data: &[u8]) {
    SHARED.with_borrow_mut(|shared| {
        let first = once(data, shared);
        let second = once(data, shared);
        assert_eq!(first, second, "the same input gives the same run");
    });
}

/// What a run must repeat: the trace, the time, the answer and the end.
type Outcome = (u64, u64, Option<u64>, String);

fn once(data: &[u8], shared: &mut Pages) -> Outcome {
    let mut input = Input::new(data);
    let (flags, seed, entry) = (input.u8(), input.u8(), input.u8());
    let mut code = input.bytes(MAX_CODE_BYTES).to_vec();
    // What runs behind the end is an illegal instruction.
    code.resize(code.len().next_multiple_of(4) + 4, 0);
    let memory = if flags & flag::WEAK != 0 { MemoryModel::weak(seed.into()) } else { MemoryModel::Strong };
    let config = Config {
        cards: 1,
        heap_bytes: 4096,
        handler_watchdog_ps: WATCHDOG_PS,
        rpc_watchdog_ps: WATCHDOG_PS,
        memory,
        detect_races: flags & flag::RACES != 0,
        ..Config::default()
    };
    shared.fill(0xC5);
    let mut world = World::new(config).expect("a card");
    shared.register(&mut world);

    let prologue: Vec<u8> = PROLOGUE.iter().chain(&[ECALL]).flat_map(|word| word.to_le_bytes()).collect();
    // The handler's prologue jumps over the call's and over as much of the input as the third byte says.
    let body = 2 * prologue.len() as u64 + 4;
    let target = body + (u64::from(entry) * 2).min(code.len() as u64 - 2);
    let from = prologue.len() as u64;
    let jump = jal(target - from);
    let text = [&prologue[..], &jump.to_le_bytes(), &prologue[..], &code[..]].concat();
    let (process, arguments) = boot(&mut world, &text, flags & flag::WRITABLE != 0, shared);

    let call = TEXT + from + 4;
    if flags & flag::EARLY != 0 {
        ring(&mut world, arguments.qpn);
    }
    let answer = world.process_call(0, process, 0, call, DATA);
    ring(&mut world, arguments.qpn);
    let end_ps = world.now_ps() + AFTER_PS;
    let ended = (0..MAX_STEPS).any(|_| !world.step() || world.now_ps() > end_ps);
    assert!(ended, "more than {MAX_STEPS} things happen within {AFTER_PS} ps");

    let card = world.card(0).expect("a card");
    let state = card.process(process).expect("it was not destroyed");
    assert!(answer.is_ok() || state.stopped().is_some(), "a call that fails says why: {answer:?}");
    let end = match &state.status {
        ProcessStatus::Crashed(record) | ProcessStatus::UserError(_, record) => {
            assert_eq!(record.registers[0], 0, "x0 is zero");
            assert!(!record.cause.is_empty() && record.to_string().contains("retired"));
            record.to_string()
        }
        other => format!("{other:?}"),
    };
    let outcome = (world.trace_hash(), world.now_ps(), answer.ok(), end);

    let (before, behind) = (shared.read(0, SHARED_BYTES), shared.read(2 * SHARED_BYTES, SHARED_BYTES));
    assert!(before.iter().chain(&behind).all(|&byte| byte == 0xC5), "memory without a key is as it was");
    world.destroy_process(0, process).expect("it is there");
    machine::assert_calls(&mut world, 0);
    outcome
}

/// `j offset`.
fn jal(offset: u64) -> u32 {
    let offset = offset as u32;
    (offset >> 20 & 1) << 31
        | (offset >> 1 & 0x3FF) << 21
        | (offset >> 11 & 1) << 20
        | (offset >> 12 & 0xFF) << 12
        | 0x6F
}

struct Arguments {
    qpn: u32,
}

/// A process of the code with an event handler, a completion queue that triggers it, a queue pair to itself, a window
/// and an outbox, and their numbers in the data page.
fn boot(world: &mut World, text: &[u8], writable: bool, shared: &Pages) -> (u32, Arguments) {
    let mut elf = TestElf::image(&[("call", &[machine::RET])]);
    elf.section_mut(".text").bytes = text.to_vec();
    elf.segments[0] = (TEXT, text.len() as u64, if writable { 7 } else { 5 }, 0);
    elf.section_mut(".rodata").addr += 0x1000;
    // The code may be longer than the test image expects.
    for segment in &mut elf.segments[1..] {
        segment.0 += 0x1_0000;
    }
    elf.sections.push(section(".data", 1, 3, DATA, vec![0; 4096]));
    elf.segments.push((DATA, 4096, 6, elf.sections.len() - 1));
    elf.section_mut(".flexcast.entries").bytes.clear();
    let process = world.create_process(0, &elf.bytes()).expect("a loadable image");
    let heap = |world: &mut World, bytes: u64| world.heap_alloc(0, process, bytes).expect("room in the heap");
    let thread = world.create_thread(0, process, TEXT, DATA, 0x7715, None).expect("a thread");
    let outbox = world.create_outbox(0, process).expect("an outbox");
    let [ring, record, cq_record] = [64 << 2, 8, 8].map(|bytes| heap(world, bytes));
    let send_ring = heap(world, 64 << 1);
    let space = Space::Dpa(process);
    let memory = |addr| QueueMemory { space, addr };
    for entry in 0..4 {
        world.write_memory(0, process, ring + entry * 64 + 63, &[0xF1]).expect("heap");
    }
    let host = shared.addr() + SHARED_BYTES as u64;
    let nic = &mut world.card(0).expect("a card").nic;
    let address = nic.address();
    let pd = nic.alloc_pd().expect("a domain");
    let access = Access::all();
    let key = MkeyAttr { pd, space: Space::Host, start: host, len: SHARED_BYTES as u64, access, offset: 0 };
    let key = nic.create_mkey(key).expect("a key");
    let cqn = nic
        .create_cq(CqAttr {
            ring: memory(ring),
            log_depth: 2,
            doorbell_record: memory(cq_record),
            target: CqTarget::DpaThread(thread),
            overrun_ignore: true,
            always_armed: false,
            armed_at_creation: true,
            uar: 1,
        })
        .expect("a completion queue");
    let qpn = nic
        .create_qp(QpAttr {
            transport: Transport::Rc,
            pd,
            send_cq: cqn,
            recv_cq: cqn,
            rq: memory(send_ring),
            log_rq_depth: 0,
            log_rq_stride: 4,
            sq: memory(send_ring),
            log_sq_depth: 1,
            no_sq: false,
            no_rq: true,
            srq: None,
            doorbell_record: memory(record),
            user_index: 0,
            uar: 1,
        })
        .expect("a queue pair");
    let path = QpModify {
        access: Some(access),
        path_mtu: Some(Mtu::B256),
        dest_qpn: Some(qpn),
        rq_psn: Some(0),
        sq_psn: Some(0),
        rgid: Some(address.gid),
        dmac: Some(address.mac),
        force_loopback: Some(true),
        timeout: Some(1),
        retry_cnt: Some(1),
        ..QpModify::default()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let modify = QpModify { next_state: Some(state), ..path };
        world.nic_call(0, |nic, fx| nic.modify_qp(0, qpn, &modify, fx)).expect("a card").expect("a transition");
    }
    // Two NOPs, signalled.
    for index in 0..2 {
        let mut nop = [0; 64];
        nop[2] = index;
        nop[4..8].copy_from_slice(&(qpn << 8 | 1).to_be_bytes());
        nop[11] = 2 << 2;
        world.write_memory(0, process, send_ring + u64::from(index) * 64, &nop).expect("heap");
    }
    world.create_stream(0, process, 5).expect("a stream");
    let window = world.create_window(0, process, pd).expect("a window");
    let outbox_page = 0xD000_0000 + u64::from(outbox) * 0x1000;
    let values = [
        outbox_page,
        0x8000_0000_0000_0000 + host,
        u64::from(cqn),
        u64::from(qpn) << 32 | 1,
        ring,
        send_ring,
        record,
        key.into(),
        thread.into(),
        window.into(),
        outbox.into(),
    ];
    let page: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    world.write_memory(0, process, DATA, &page).expect("writable data");
    world.run_event_handler(0, thread, 0).expect("a thread");
    (process, Arguments { qpn })
}

/// The host rings the queue pair of the firmware: a completion triggers the event handler.
fn ring(world: &mut World, qpn: u32) {
    world.ring_sq(0, qpn, 2).expect("a card");
}

/// What firmware does, a few instructions each.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    const S0: u32 = 8;
    const S1: u32 = 9;
    const S2: u32 = 18;
    const S3: u32 = 19;
    const S4: u32 = 20;
    const RESCHEDULE: [u32; 2] = [li(17, 1), ECALL];
    // The handler ends in order, behind the call's code.
    let program = |flags: u8, code: &[u32]| {
        let mut bytes = vec![flags, 1, 2 * code.len() as u8];
        bytes.extend(code.iter().chain(&RESCHEDULE).flat_map(|word| word.to_le_bytes()));
        bytes
    };
    let call = |number: u32| program(0, &[li(10, 1), li(11, 0), li(12, 0), li(17, number), ECALL, machine::RET]);
    let window = [sd(S0, S2, 0), FENCE, 0x0009_3503, machine::RET]; // ld a0, 0(s2)
    let doorbells = [sd(S4, S1, 0x1C0), sd(S3, S1, 0x100), sd(S3, S1, 0x280), machine::RET];
    // addi a0, sp, -16; sd; ld; amoadd.d a0, s0, (a0)
    let memory = [0xFF01_0513, sd(S0, 10, 0), 0x0005_3583, 0x0085_352F, machine::RET];
    let compressed = [0x4505_4501, 0x8082_952A]; // c.li a0, 0; c.li a0, 1; c.add a0, a0, a0; c.ret
    let reserve = [0x1004_352F, 0x1884_35AF, machine::RET]; // lr.d a0, (s0); sc.d a1, s0, (s0)
    let message = [li(10, 0), li(11, 1), 0x0004_0613, li(13, 16), li(17, 9), ECALL, machine::RET]; // mv a2, s0
    let activate = [0x000C_8513, li(17, 11), ECALL, machine::RET]; // mv a0, s9
    let modify = [0x0000_0297, sd(S0, 5, 20), 0x0000_100F, machine::RET]; // auipc t0, 0; sd; fence.i
    let mut seeds = vec![
        ("return", program(0, &[machine::RET])),
        ("handler", program(flag::EARLY, &[machine::RET])),
        ("window", program(0, &window)),
        ("window-weak", program(flag::WEAK | flag::RACES, &window)),
        ("doorbells", program(0, &doorbells)),
        ("doorbells-weak", program(flag::WEAK | flag::RACES, &doorbells)),
        ("memory", program(flag::RACES, &memory)),
        ("compressed", program(0, &compressed)),
        ("reserve", program(flag::WEAK, &reserve)),
        ("message", program(0, &message)),
        ("activate", program(0, &activate)),
        ("retrigger", [&[0, 1, 2][..], &[machine::RET, li(17, 3), ECALL].map(u32::to_le_bytes).concat()].concat()),
        ("modify", program(flag::WRITABLE, &modify)),
        ("spin", program(0, &[0x6F])),
        ("illegal", program(0, &[0xFFFF_FFFF])),
        ("counters", program(0, &[0xC000_2573, 0xC010_25F3, 0xC020_2673, machine::RET])),
    ];
    const CALLS: [&str; 8] = ["call-1", "call-2", "call-4", "call-5", "call-8", "call-10", "call-12", "call-13"];
    seeds.extend(CALLS.map(|name| (name, call(name[5..].parse().unwrap_or(1)))));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds do what their names say; otherwise the fuzzer starts from crashes.
    #[test]
    fn seeds_reach_what_they_are_for() {
        let mut shared = Pages::new(3 * SHARED_BYTES);
        for (name, bytes) in seeds() {
            let (_, _, answer, end) = once(&bytes, &mut shared);
            let expected = match name {
                "modify" | "illegal" => "illegal instruction",
                "spin" => "watchdog",
                "call-1" | "call-2" => "it must return",
                "call-4" => "Finished",
                "call-10" => "reported error",
                _ => "Healthy",
            };
            assert!(end.contains(expected), "{name}: {end}");
            // The call stores into the handler.
            assert_eq!(answer.is_some(), expected == "Healthy" || name == "modify", "{name}: {answer:?}");
            let value = match name {
                "window" | "window-weak" | "memory" => DATA,
                "compressed" | "call-12" => 2,
                _ => continue,
            };
            assert_eq!(answer, Some(value), "{name}");
        }
    }
}
