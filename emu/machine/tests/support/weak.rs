//! Programs on weak memory: more encodings, two handlers side by side, windows and queues.

use emu_machine::nic::{Access, CqAttr, CqTarget, MkeyAttr, QpAttr, QpModify, QpState, QueueMemory, Space, Transport};
use emu_machine::{Config, MemoryModel, Race, World};
use flexcast_image::testing::{TestElf, section};

use super::*;

pub const DATA: u64 = 0x8000_0000;
pub const S0: u32 = 8;
pub const I: u32 = 8;
pub const O: u32 = 4;
pub const R: u32 = 2;
pub const W: u32 = 1;

pub fn fence(predecessor: u32, successor: u32) -> u32 {
    predecessor << 24 | successor << 20 | 0x0F
}

/// `beq a, b, offset`, `offset` in bytes.
pub fn beq(a: u32, b: u32, offset: i32) -> u32 {
    let o = offset.cast_unsigned();
    (o >> 12 & 1) << 31 | (o >> 5 & 0x3F) << 25 | b << 20 | a << 15 | (o >> 1 & 0xF) << 8 | (o >> 11 & 1) << 7 | 0x63
}

/// `amoadd.d rd, value, (addr)` with the bits aq and rl.
pub fn amoadd(rd: u32, value: u32, addr: u32, aq: u32, rl: u32) -> u32 {
    aq << 26 | rl << 25 | value << 20 | addr << 15 | 3 << 12 | rd << 7 | 0x2F
}

pub const RESCHEDULE: [u32; 2] = [0x0010_0893, ECALL];

pub fn config(seed: u64) -> Config {
    Config { cards: 1, heap_bytes: 1 << 20, memory: MemoryModel::weak(seed), detect_races: true, ..Config::default() }
}

/// An image with two event handlers, the RPC `ping`, and a page of data.
pub fn two_handlers(one: &[u32], two: &[u32]) -> Vec<u8> {
    let unpack = [addi(T0, A1, 0), ld(A0, A0, 0), 0x0002_8067];
    // ping(thread): activate it and the next one.
    let ping = [addi(A3, A0, 0), addi(A7, 0, 11), ECALL, addi(A0, A3, 1), ECALL, RET];
    let functions: [(&'static str, &[u32]); 4] =
        [("handler", one), ("second", two), ("ping", &ping), ("ping__unpack", &unpack)];
    let mut elf = TestElf::image(&functions);
    elf.sections.push(section(".data", 1, 3, DATA, vec![0; 4096]));
    elf.segments.push((DATA, 4096, 6, elf.sections.len() - 1));
    elf.bytes()
}

pub fn word(world: &mut World, process: u32, addr: u64) -> u64 {
    let mut bytes = [0; 8];
    world.peek_memory(0, process, addr, &mut bytes).expect("memory of the process");
    u64::from_le_bytes(bytes)
}

pub fn code(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

/// Bytes of host memory at an address.
pub fn host_word(world: &World, addr: u64) -> u64 {
    let mut bytes = [0; 8];
    world.host.read(addr, &mut bytes).expect("registered");
    u64::from_le_bytes(bytes)
}

/// Three lines of host memory with key and window; (window, key, host address) lie where [`open_window`] reads them.
pub fn show_host(world: &mut World, process: u32) -> u64 {
    let start = world.host.allocate(3);
    let card = world.card(0).unwrap();
    let pd = card.nic.alloc_pd().unwrap();
    let attr = MkeyAttr { pd, space: Space::Host, start, len: 192, access: Access::LOCAL_WRITE, offset: 0 };
    let key = card.nic.create_mkey(attr).unwrap();
    let window = world.create_window(0, process, pd).unwrap();
    let words = [u64::from(window), u64::from(key), start];
    world.write_memory(0, process, DATA, &words.map(u64::to_le_bytes).concat()).unwrap();
    start
}

/// Makes both handlers of [`two_handlers`], with `DATA` as their argument; gives the first one's thread, the other is
/// the next.
pub fn make_handlers(world: &mut World, process: u32) -> u64 {
    let threads = ["handler", "second"].map(|name| {
        let entry = world.card(0).unwrap().process(process).unwrap().image.symbol(name).unwrap();
        let thread = world.create_thread(0, process, entry, DATA, 0, None).unwrap();
        world.run_event_handler(0, thread, 0).unwrap();
        u64::from(thread)
    });
    assert_eq!(threads[1], threads[0] + 1);
    threads[0]
}

/// Configures the window; then a0 is the window address of the buffer.
pub fn open_window() -> Vec<u32> {
    code(&[
        &[lui(S0, 0x40000), slli(S0, S0, 1)],
        &[addi(A0, 0, 0), ld(A1, S0, 0), ld(A2, S0, 8), addi(A7, 0, 7), ECALL],
        &[ld(A0, S0, 16), addi(A1, 0, 1), slli(A1, A1, 63), add(A0, A0, A1)],
    ])
}

pub const RING: u64 = 0x1_0000_1000;

/// A queue pair with its rings on the heap; gives its number. The completion ring is at `RING + 2048`.
pub fn queue_pair(world: &mut World, process: u32) -> u32 {
    assert!(world.heap_alloc(0, process, 1 << 16).unwrap() < RING);
    world.fill_memory(0, process, RING + 2048, 1024, 0xFF).unwrap();
    let at = |addr: u64| QueueMemory { space: Space::Dpa(process), addr };
    let card = world.card(0).unwrap();
    let pd = card.nic.alloc_pd().unwrap();
    let cq = CqAttr {
        ring: at(RING + 2048),
        log_depth: 4,
        doorbell_record: at(RING + 4096),
        target: CqTarget::None,
        overrun_ignore: true,
        always_armed: false,
        armed_at_creation: false,
        uar: 1,
    };
    let cqn = card.nic.create_cq(cq).unwrap();
    let qpn = card
        .nic
        .create_qp(QpAttr {
            transport: Transport::Ud,
            pd,
            send_cq: cqn,
            recv_cq: cqn,
            rq: at(RING + 1024),
            log_rq_depth: 4,
            log_rq_stride: 4,
            sq: at(RING),
            log_sq_depth: 4,
            no_sq: false,
            no_rq: false,
            srq: None,
            doorbell_record: at(RING + 4160),
            user_index: 0,
            uar: 1,
        })
        .unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let modify = QpModify { next_state: Some(state), qkey: Some(1), sq_psn: Some(0), ..QpModify::default() };
        world.nic_call(0, |nic, fx| nic.modify_qp(0, qpn, &modify, fx)).unwrap().unwrap();
    }
    qpn
}

/// Makes a queue pair, and puts at `DATA` what a program needs to ring for a NOP: outbox, send ring, the two words of
/// the entry, and that of the doorbell.
pub fn offer_nop(world: &mut World, process: u32) {
    let qpn = queue_pair(world, process);
    let outbox = world.create_outbox(0, process).unwrap();
    let bytes = |words: [u32; 2]| u64::from_le_bytes(words.map(u32::to_be_bytes).concat().try_into().unwrap());
    let (head, flags) = (bytes([0, qpn << 8 | 1]), bytes([8, 0]));
    let words = [u64::from(outbox), RING, head, flags, u64::from(qpn) << 32 | 1];
    world.write_memory(0, process, DATA, &words.map(u64::to_le_bytes).concat()).unwrap();
}

/// A NOP is written and rung for. Gives the opcode of its completion, and the races.
pub fn nop(seed: u64, between: &[u32], after: &[u32]) -> (u8, Vec<Race>) {
    let program = code(&[
        &[addi(S0, A0, 0), ld(A0, S0, 0), addi(A7, 0, 6), ECALL],
        &[ld(T0, S0, 8), ld(A1, S0, 16), sd(A1, T0, 0), ld(A1, S0, 24), sd(A1, T0, 8)],
        between,
        &[ld(A2, TP, 8), ld(A1, S0, 32), sd(A1, A2, 0x1C0)],
        after,
        &[RET],
    ]);
    let (mut world, process) = boot(&image(&[RET], &program), config(seed));
    offer_nop(&mut world, process);
    ping(&mut world, process, DATA).unwrap();
    while world.step() {}
    let mut cqe = [0; 64];
    world.peek_memory(0, process, RING + 2048, &mut cqe).unwrap();
    (cqe[63] >> 4, world.take_races())
}
