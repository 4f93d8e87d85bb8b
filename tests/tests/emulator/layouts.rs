//! The emulated card states its layouts with constants of its own, from the public sources, and the driver side
//! (`shared/hw`, the commands of `host/flexio`) states them again. This is where the two meet: constants side by side
//! where both have them, and bytes that one side writes and the other reads where not.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, size_of};

use emu_machine::{Config, layout, with_world};
use emu_nic::{
    Access, CqAttr, CqTarget, Dma, DmaFault, Effects, MkeyAttr, Mtu, Nic, NicConfig, NicTiming, QpAttr, QpModify,
    QpState, QueueMemory, Space, Timer, cqe_opcode, syndrome, wqe_opcode,
};
use flexcast_hw::wqe::{
    EXTENDED_ADDRESS, FLAG_FENCE, FLAG_ON_ERROR, FLAG_SIGNALLED, FLAG_SMALL_FENCE, FLAG_SOLICITED, INLINE_BIT, SendWqe,
};
use flexcast_hw::{
    ControlSegment, Cqe, CqeOpcode, DataSegment, DatagramSegment, ErrorCqe, GRH_BYTES, INVALID_LKEY, QpDoorbellRecord,
    RemoteAddressSegment, Syndrome, ThreadContext, WqeOpcode, WriteWqe, cqe, doorbell, outbox,
};
use flexcast_tests::code::{RET, image, with_process};
use flexio::{
    Connection, CqTarget as DpaCqTarget, DpaCompletionQueue, DpaDepths, DpaQueuePair, Outbox, RemoteQp, Transport,
    UdKey,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

#[test]
fn opcodes_of_work_queue_entries() {
    let both = [
        (wqe_opcode::NOP, WqeOpcode::Nop),
        (wqe_opcode::RDMA_WRITE, WqeOpcode::Write),
        (wqe_opcode::RDMA_WRITE_IMM, WqeOpcode::WriteImmediate),
        (wqe_opcode::SEND, WqeOpcode::Send),
        (wqe_opcode::SEND_IMM, WqeOpcode::SendImmediate),
        (wqe_opcode::RDMA_READ, WqeOpcode::Read),
    ];
    for (emulated, driver) in both {
        assert_eq!(emulated, driver as u8, "{driver:?}");
    }
}

#[test]
fn opcodes_and_syndromes_of_completions() {
    let both = [
        (cqe_opcode::REQUESTER, CqeOpcode::Requester),
        (cqe_opcode::RESPONDER_WRITE_IMMEDIATE, CqeOpcode::WriteImmediate),
        (cqe_opcode::RESPONDER_SEND, CqeOpcode::Send),
        (cqe_opcode::RESPONDER_SEND_IMMEDIATE, CqeOpcode::SendImmediate),
        (cqe_opcode::REQUESTER_ERROR, CqeOpcode::RequesterError),
        (cqe_opcode::RESPONDER_ERROR, CqeOpcode::ResponderError),
    ];
    for (emulated, driver) in both {
        assert_eq!(CqeOpcode::from_raw(emulated), Ok(driver));
    }
    let both = [
        (syndrome::LOCAL_LENGTH, Syndrome::LocalLength),
        (syndrome::LOCAL_QP_OPERATION, Syndrome::LocalQpOperation),
        (syndrome::LOCAL_PROTECTION, Syndrome::LocalProtection),
        (syndrome::FLUSHED, Syndrome::Flushed),
        (syndrome::BAD_RESPONSE, Syndrome::BadResponse),
        (syndrome::REMOTE_INVALID_REQUEST, Syndrome::RemoteInvalidRequest),
        (syndrome::REMOTE_ACCESS, Syndrome::RemoteAccess),
        (syndrome::REMOTE_OPERATION, Syndrome::RemoteOperation),
        (syndrome::RETRY_EXCEEDED, Syndrome::TransportRetry),
        (syndrome::RNR_RETRY_EXCEEDED, Syndrome::RnrRetry),
    ];
    for (emulated, driver) in both {
        assert_eq!(emulated, driver as u8, "{driver:?}");
    }
}

#[test]
fn outbox_registers() {
    let both = [
        (layout::outbox::CQ_DB, outbox::CQ_DOORBELL),
        (layout::outbox::SXD_DB, outbox::SQ_DOORBELL),
        (layout::outbox::RXT_DB, outbox::RXT_DOORBELL),
        (layout::PAGE, outbox::PAGE_BYTES),
    ];
    for (emulated, driver) in both {
        assert_eq!(emulated, driver);
    }
}

#[test]
fn thread_context() {
    use layout::context;
    let both = [
        (context::VERSION, offset_of!(ThreadContext, version)),
        (context::OUTBOX_ID, offset_of!(ThreadContext, outbox_config_id)),
        (context::WINDOW_ID, offset_of!(ThreadContext, window_config_id)),
        (context::OUTBOX_BASE, offset_of!(ThreadContext, outbox_base)),
        (context::WINDOW_BASE, offset_of!(ThreadContext, window_base)),
        (context::WINDOW_CONFIG_BASE, offset_of!(ThreadContext, window_config_base)),
        (context::METADATA, offset_of!(ThreadContext, metadata_parameter)),
        (context::ERRNO, offset_of!(ThreadContext, errno)),
    ];
    for (emulated, driver) in both {
        assert_eq!(emulated, driver as u64);
    }
}

/// The context as the machine fills it, read as the device reads it.
#[test]
fn thread_context_in_memory() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        process.call_by_name("ping", 0).expect("the call returns");
        let mut bytes = [0; size_of::<ThreadContext>()];
        let at = layout::THREADS + layout::CONTEXT_OFFSET;
        with_world(|world| {
            let id = *world.card(0).expect("a card").processes.keys().next().expect("a process");
            world.peek_memory(0, id, at, &mut bytes).expect("the context of execution unit 0");
        })
        .expect("this thread's machine");
        let context = ThreadContext::read_from_bytes(&bytes).expect("0x30 bytes");
        assert_eq!((context.version, context.errno), (1, 0));
        assert_eq!(context.window_base, layout::WINDOW_0);
        assert_eq!(context.window_config_base, layout::WINDOW_CONFIG);
    });
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xA];
const GID: emu_nic::Gid = emu_nic::Gid::from_ipv4([192, 0, 2, 77]);
const USER_INDEX: u32 = 0x00AB_CDEF;
const Q_KEY: u32 = 0x0F1E_CA57;
/// Where things lie in the only memory there is.
const SQ: u64 = 0x1000;
const RQ: u64 = 0x3000;
const QP_RECORD: u64 = 0x4000;
const SEND_CQ: u64 = 0x5000;
const RECEIVE_CQ: u64 = 0x6000;
const CQ_RECORDS: u64 = 0x7000;
const SOURCE: u64 = 0x8000;
const TARGET: u64 = 0xA000;
const MEMORY_BYTES: usize = 0x1_0000;
const LOG_DEPTH: u8 = 2;

struct Memory(Vec<u8>);

impl Memory {
    fn put(&mut self, addr: u64, bytes: &[u8]) {
        self.0[addr as usize..addr as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, addr: u64, len: usize) -> &[u8] {
        &self.0[addr as usize..addr as usize + len]
    }
}

impl Dma for Memory {
    fn read(&mut self, _: Space, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        out.copy_from_slice(self.get(addr, out.len()));
        Ok(())
    }
    fn write(&mut self, _: Space, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.put(addr, data);
        Ok(())
    }
}

/// A card whose one queue pair talks to itself. Everything in its memory is written and read with the driver's types.
struct Fixture {
    nic: Nic,
    memory: Memory,
    qpn: u32,
    key: u32,
    cqns: [u32; 2],
    now_ps: u64,
    due: BTreeMap<(u64, u64), Timer>,
    sequence: u64,
    posted: u16,
    events: BTreeSet<u32>,
    failures: usize,
}

impl Fixture {
    fn new(transport: emu_nic::Transport) -> Self {
        let mut nic = Nic::new(NicConfig {
            mac: MAC,
            gids: vec![GID.into()],
            port_mtu: Mtu::B4096,
            timing: NicTiming::default(),
            seed: 5,
        });
        let mut memory = Memory(vec![0; MEMORY_BYTES]);
        let at = |addr| QueueMemory { space: Space::Host, addr };
        let cqns = [SEND_CQ, RECEIVE_CQ].map(|ring| {
            memory.put(ring, [Cqe::INITIAL; 1 << LOG_DEPTH].as_bytes());
            let attr = CqAttr {
                ring: at(ring),
                log_depth: LOG_DEPTH,
                doorbell_record: at(CQ_RECORDS + if ring == SEND_CQ { 0 } else { 8 }),
                target: CqTarget::Channel(1),
                overrun_ignore: false,
                always_armed: false,
                armed_at_creation: false,
                uar: 0,
            };
            nic.create_cq(attr).expect("a completion queue")
        });
        let pd = nic.alloc_pd().expect("a protection domain");
        let attr = QpAttr {
            transport,
            pd,
            send_cq: cqns[0],
            recv_cq: cqns[1],
            rq: at(RQ),
            log_rq_depth: 3,
            log_rq_stride: 5,
            sq: at(SQ),
            log_sq_depth: 5,
            no_sq: false,
            no_rq: false,
            srq: None,
            doorbell_record: at(QP_RECORD),
            user_index: USER_INDEX,
            uar: 0,
        };
        let qpn = nic.create_qp(attr).expect("a queue pair");
        let access = Access::all();
        let attr = MkeyAttr { pd, space: Space::Host, start: SOURCE, len: 0x8000, access, offset: 0 };
        let key = nic.create_mkey(attr).expect("a memory key");
        let modify = QpModify {
            access: Some(access),
            qkey: Some(Q_KEY),
            path_mtu: Some(Mtu::B4096),
            dest_qpn: Some(qpn),
            rq_psn: Some(3),
            sq_psn: Some(3),
            rgid: Some(GID),
            dmac: Some(MAC),
            max_rd_atomic: Some(4),
            retry_cnt: Some(1),
            timeout: Some(1),
            ..QpModify::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let modify = QpModify { next_state: Some(state), ..modify };
            nic.modify_qp(0, qpn, &modify, &mut Effects::default()).expect("a transition");
        }
        for index in 0..0x100 {
            memory.put(SOURCE + index, &[index as u8 ^ 0x5A]);
        }
        let (due, events) = (BTreeMap::new(), BTreeSet::new());
        Fixture { nic, memory, qpn, key, cqns, now_ps: 0, due, sequence: 0, posted: 0, events, failures: 0 }
    }

    fn take(&mut self, effects: Effects) {
        for (at_ps, timer) in effects.timers {
            self.sequence += 1;
            self.due.insert((at_ps, self.sequence), timer);
        }
        assert!(effects.packets.is_empty(), "everything turns round inside the card");
        self.events.extend(effects.events.iter().map(|(_, event)| event.cqn));
        self.failures += effects.async_events.len();
    }

    /// Lets everything happen that is due.
    fn run(&mut self) {
        while let Some(((at_ps, _), timer)) = self.due.pop_first() {
            self.now_ps = at_ps;
            let mut effects = Effects::default();
            self.nic.handle_timer(at_ps, timer, &mut self.memory, &mut effects);
            self.take(effects);
        }
    }

    /// Puts an entry of whole segments into the send ring; returns its index.
    fn put(&mut self, wqe: &[u8]) -> u16 {
        let index = self.posted;
        self.memory.put(SQ + 64 * u64::from(index), wqe);
        self.posted += wqe.len().div_ceil(64) as u16;
        index
    }

    fn ring(&mut self) {
        let mut effects = Effects::default();
        self.nic.ring_sq(self.now_ps, self.qpn, self.posted, &mut effects);
        self.take(effects);
        self.run();
    }

    fn control(&self, opcode: WqeOpcode, segments: u8, flags: u8) -> ControlSegment {
        ControlSegment::new(self.posted, opcode, self.qpn, segments, flags)
    }

    /// Puts a receive of one segment at `TARGET` into entry `index`, and posts `index + 1` receives.
    fn receive(&mut self, index: u32, len: u32) {
        let segments = [DataSegment::new(len, self.key, TARGET), DataSegment::new(0, INVALID_LKEY, 0)];
        self.memory.put(RQ + 32 * u64::from(index), segments.as_bytes());
        let receive = doorbell::queue_counter(u64::from(index) + 1);
        let record = QpDoorbellRecord { receive: receive.into(), send: 0.into() };
        self.memory.put(QP_RECORD, record.as_bytes());
    }

    fn entry(&self, ring: u64, index: u64) -> Cqe {
        let slot = index & ((1 << LOG_DEPTH) - 1);
        Cqe::read_from_bytes(self.memory.get(ring + 64 * slot, 64)).expect("64 bytes")
    }

    fn error(&self, ring: u64, index: u64) -> ErrorCqe {
        ErrorCqe::read_from_bytes(self.entry(ring, index).as_bytes()).expect("64 bytes")
    }

    #[track_caller]
    fn arrived(&self, at: u64, len: usize) {
        assert_eq!(self.memory.get(at, len), self.memory.get(SOURCE, len));
    }
}

/// What a requester entry says, field by field.
#[track_caller]
fn requester(fixture: &Fixture, index: u64, opcode: WqeOpcode, wqe_index: u16) {
    let entry = fixture.entry(SEND_CQ, index);
    assert_eq!(entry.opcode(), Ok(CqeOpcode::Requester));
    assert_eq!(entry.op_own & 1, cqe::owner_of_pass(index, u32::from(LOG_DEPTH)));
    assert_eq!(entry.qpn(), fixture.qpn);
    assert_eq!(entry.sop_qpn.get() >> 24, opcode as u32);
    assert_eq!(entry.wqe_counter.get(), wqe_index);
    assert_eq!(entry.user_index.get(), USER_INDEX);
    assert!(entry.timestamp.get() <= fixture.now_ps / 1000 && entry.timestamp.get() > 0, "nanoseconds");
}

fn write_wqe(fixture: &Fixture, opcode: WqeOpcode, flags: u8, len: u32) -> WriteWqe {
    let mut control = fixture.control(opcode, WriteWqe::SEGMENTS, flags);
    control.immediate = 0xC0FF_EE01.into();
    WriteWqe {
        control,
        remote: RemoteAddressSegment { address: TARGET.into(), rkey: fixture.key.into(), reserved: [0; 4] },
        data: DataSegment::new(len, fixture.key, SOURCE),
        padding: [0xEE; 16],
    }
}

#[test]
fn write_is_parsed_and_completed() {
    for transport in [emu_nic::Transport::Rc, emu_nic::Transport::Uc] {
        let mut fixture = Fixture::new(transport);
        let wqe = write_wqe(&fixture, WqeOpcode::Write, FLAG_SIGNALLED, 100);
        let index = fixture.put(wqe.as_bytes());
        fixture.ring();
        fixture.arrived(TARGET, 100);
        assert_eq!(fixture.memory.get(TARGET + 100, 1), [0], "not a byte more");
        requester(&fixture, 0, WqeOpcode::Write, index);
        assert_eq!(fixture.entry(RECEIVE_CQ, 0), Cqe::INITIAL, "a plain write reports nothing to its target");
    }
}

#[test]
fn write_with_immediate_is_received() {
    let mut fixture = Fixture::new(emu_nic::Transport::Uc);
    fixture.receive(0, 64);
    let wqe = write_wqe(&fixture, WqeOpcode::WriteImmediate, FLAG_SIGNALLED | FLAG_SOLICITED, 256);
    fixture.put(wqe.as_bytes());
    fixture.ring();
    fixture.arrived(TARGET, 256);
    let entry = fixture.entry(RECEIVE_CQ, 0);
    assert_eq!(entry.opcode(), Ok(CqeOpcode::WriteImmediate));
    assert_eq!(entry.op_own, cqe::op_own(CqeOpcode::WriteImmediate, 0) | cqe::OP_OWN_SOLICITED);
    assert_eq!((entry.immediate.get(), entry.byte_count.get()), (0xC0FF_EE01, 256));
    assert_eq!((entry.user_index.get(), entry.qpn(), entry.wqe_counter.get()), (USER_INDEX, fixture.qpn, 0));
    assert_eq!(entry.as_bytes()[cqe::OP_OWN_OFFSET], entry.op_own);
}

#[test]
fn send_is_scattered_and_counted() {
    for (opcode, wanted) in [(WqeOpcode::Send, CqeOpcode::Send), (WqeOpcode::SendImmediate, CqeOpcode::SendImmediate)] {
        let mut fixture = Fixture::new(emu_nic::Transport::Rc);
        // The second of two receives: its index must come back.
        fixture.receive(0, 64);
        fixture.receive(1, 64);
        for _ in 0..2 {
            let mut control = fixture.control(opcode, SendWqe::SEGMENTS, FLAG_SIGNALLED);
            control.immediate = 7.into();
            let wqe = SendWqe { control, data: DataSegment::new(64, fixture.key, SOURCE), padding: [0xEE; 32] };
            fixture.put(wqe.as_bytes());
        }
        fixture.ring();
        fixture.arrived(TARGET, 64);
        let entry = fixture.entry(RECEIVE_CQ, 1);
        assert_eq!((entry.opcode(), entry.wqe_counter.get(), entry.byte_count.get()), (Ok(wanted), 1, 64));
        assert_eq!(entry.immediate.get(), if opcode == WqeOpcode::Send { 0 } else { 7 });
        requester(&fixture, 1, opcode, 1);
    }
}

#[test]
fn read_fetches() {
    let mut fixture = Fixture::new(emu_nic::Transport::Rc);
    let wqe = WriteWqe {
        control: fixture.control(WqeOpcode::Read, WriteWqe::SEGMENTS, FLAG_SIGNALLED),
        remote: RemoteAddressSegment { address: SOURCE.into(), rkey: fixture.key.into(), reserved: [0; 4] },
        data: DataSegment::new(64, fixture.key, TARGET),
        padding: [0; 16],
    };
    fixture.put(wqe.as_bytes());
    fixture.ring();
    fixture.arrived(TARGET, 64);
    requester(&fixture, 0, WqeOpcode::Read, 0);
}

/// A datagram with the extended address vector; the receiver finds header area, source and payload.
#[test]
fn datagram_is_addressed_and_received() {
    let mut fixture = Fixture::new(emu_nic::Transport::Ud);
    fixture.receive(0, 64 + GRH_BYTES);
    // Control, three segments of address, one of data: the entry takes two basic blocks.
    let mut control = fixture.control(WqeOpcode::SendImmediate, 5, FLAG_SIGNALLED);
    control.immediate = 0x0102_0304.into();
    let address = DatagramSegment {
        qkey: Q_KEY.into(),
        destination_qpn: (EXTENDED_ADDRESS | fixture.qpn).into(),
        remote_mac: MAC,
        hop_limit: 64,
        grh_gid_flow: (1 << 30).into(),
        remote_gid: GID.0,
        ..DatagramSegment::default()
    };
    let mut wqe = control.as_bytes().to_vec();
    wqe.extend_from_slice(address.as_bytes());
    wqe.extend_from_slice(DataSegment::new(64, fixture.key, SOURCE).as_bytes());
    assert_eq!(fixture.put(&wqe), 0);
    assert_eq!(fixture.posted, 2);
    fixture.ring();
    let entry = fixture.entry(RECEIVE_CQ, 0);
    assert_eq!(entry.opcode(), Ok(CqeOpcode::SendImmediate));
    assert_eq!((entry.immediate.get(), entry.byte_count.get()), (0x0102_0304, 64 + GRH_BYTES));
    assert_eq!((entry.source_qpn(), entry.flags_rqpn.get() >> 28 & 3), (fixture.qpn, 1));
    fixture.arrived(TARGET + u64::from(GRH_BYTES), 64);
    requester(&fixture, 0, WqeOpcode::SendImmediate, 0);
}

#[test]
fn inline_data_and_nop() {
    let mut fixture = Fixture::new(emu_nic::Transport::Rc);
    fixture.receive(0, 64);
    let mut wqe = fixture.control(WqeOpcode::Send, 2, FLAG_SIGNALLED).as_bytes().to_vec();
    wqe.extend_from_slice(&(INLINE_BIT | 12).to_be_bytes());
    wqe.extend_from_slice(b"twelve bytes");
    fixture.put(&wqe);
    let nop = fixture.control(WqeOpcode::Nop, 1, FLAG_SIGNALLED);
    let index = fixture.put(nop.as_bytes());
    fixture.ring();
    assert_eq!(fixture.memory.get(TARGET, 13), b"twelve bytes\0");
    requester(&fixture, 1, WqeOpcode::Nop, index);
}

#[test]
fn flags_choose_completions() {
    let mut fixture = Fixture::new(emu_nic::Transport::Rc);
    for flags in [FLAG_ON_ERROR, FLAG_SMALL_FENCE, FLAG_FENCE, FLAG_SIGNALLED | FLAG_FENCE] {
        let wqe = write_wqe(&fixture, WqeOpcode::Write, flags, 64);
        fixture.put(wqe.as_bytes());
    }
    fixture.ring();
    requester(&fixture, 0, WqeOpcode::Write, 3);
    assert_eq!(fixture.entry(SEND_CQ, 1), Cqe::INITIAL, "only the last was signalled");
    // A failure completes whatever its flags say.
    let mut wqe = write_wqe(&fixture, WqeOpcode::Write, FLAG_ON_ERROR, 64);
    wqe.data.lkey = 0xFFFF_FF00.into();
    let index = fixture.put(wqe.as_bytes());
    fixture.ring();
    let entry = fixture.error(SEND_CQ, 1);
    assert_eq!(entry.op_own, cqe::op_own(CqeOpcode::RequesterError, 0));
    assert_eq!(entry.syndrome, Syndrome::LocalProtection as u8);
    assert_eq!(entry.vendor_error_syndrome, emu_nic::vendor::KEY_UNKNOWN);
    assert_eq!(entry.opcode_qpn.get(), (WqeOpcode::Write as u32) << 24 | fixture.qpn);
    assert_eq!((entry.wqe_counter.get(), entry.user_index.get()), (index, USER_INDEX));
}

#[test]
fn a_receive_that_is_too_short_fails_and_flushes_the_send() {
    let mut fixture = Fixture::new(emu_nic::Transport::Rc);
    fixture.receive(0, 63);
    let control = fixture.control(WqeOpcode::Send, SendWqe::SEGMENTS, FLAG_SIGNALLED);
    let wqe = SendWqe { control, data: DataSegment::new(64, fixture.key, SOURCE), padding: [0; 32] };
    fixture.put(wqe.as_bytes());
    fixture.ring();
    let entry = fixture.error(RECEIVE_CQ, 0);
    assert_eq!((entry.op_own >> 4, entry.syndrome), (CqeOpcode::ResponderError as u8, Syndrome::LocalLength as u8));
    assert_eq!((entry.opcode_qpn.get(), entry.wqe_counter.get()), (fixture.qpn, 0));
    // The queue pair is its own peer: the failed receive has put it into the error state, which flushes the send.
    let entry = fixture.error(SEND_CQ, 0);
    assert_eq!((entry.op_own >> 4, entry.syndrome), (CqeOpcode::RequesterError as u8, Syndrome::Flushed as u8));
}

/// The ring's passes are distinguished by the owner bit, and the doorbell record makes room for the next.
#[test]
fn owner_bits_and_the_consumer_record() {
    let mut fixture = Fixture::new(emu_nic::Transport::Rc);
    let depth = 1_u64 << LOG_DEPTH;
    for index in 0..3 * depth {
        let record = flexcast_hw::CqDoorbellRecord { consumer: doorbell::cq_counter(index).into(), arm: 0.into() };
        fixture.memory.put(CQ_RECORDS, record.as_bytes());
        assert_ne!(
            fixture.entry(SEND_CQ, index).op_own & 1,
            cqe::owner_of_pass(index, u32::from(LOG_DEPTH)),
            "not yet"
        );
        let nop = fixture.control(WqeOpcode::Nop, 1, FLAG_SIGNALLED);
        fixture.put(nop.as_bytes());
        fixture.ring();
        requester(&fixture, index, WqeOpcode::Nop, index as u16);
    }
    assert_eq!(fixture.failures, 0);
    // Without room, the queue fails; the record says how far the consumer has come.
    for _ in 0..depth {
        let nop = fixture.control(WqeOpcode::Nop, 1, FLAG_SIGNALLED);
        fixture.put(nop.as_bytes());
    }
    fixture.ring();
    assert!(fixture.nic.cq_failed(fixture.cqns[0]).expect("the queue exists"));
}

/// An event comes for a completion beyond the consumer index of the arm doorbell, whose value both sides pack alike:
/// the machine splits what the driver joins (bits 23:0 and 55:32).
#[test]
fn arming() {
    let mut fixture = Fixture::new(emu_nic::Transport::Rc);
    let value = outbox::cq_arm_value(fixture.cqns[0], 1);
    let (cqn, consumer) = ((value & 0xFF_FFFF) as u32, (value >> 32 & 0xFF_FFFF) as u32);
    let mut effects = Effects::default();
    fixture.nic.arm_cq(0, cqn, consumer, &mut effects);
    fixture.take(effects);
    fixture.run();
    assert!(fixture.events.is_empty());
    let nop = fixture.control(WqeOpcode::Nop, 1, FLAG_SIGNALLED);
    fixture.put(nop.as_bytes());
    fixture.ring();
    assert_eq!(fixture.events, BTreeSet::from([fixture.cqns[0]]));
}

/// The commands of `host/flexio` (PRM layouts, written twice), read back from the emulated card.
#[test]
fn queue_pairs_made_by_command() {
    for transport in [Transport::Uc, Transport::Ud] {
        with_process(Config::default(), &image(&[RET], &[RET]), |process| {
            let outbox = Outbox::new(process).expect("an outbox");
            let cq = DpaCompletionQueue::new(&outbox, 5, DpaCqTarget::Polled).expect("a completion queue");
            let mut qp = DpaQueuePair::builder(transport, DpaDepths::receive_only(6))
                .user_index(USER_INDEX)
                .build(&cq, &cq)
                .expect("a queue pair");
            let qpn = qp.number();
            let query = || {
                with_world(|world| world.card(0).expect("a card").nic.query_qp(qpn))
                    .expect("a machine")
                    .expect("a queue pair")
            };
            let made = query();
            let id = with_world(|world| *world.card(0).expect("a card").processes.keys().next().expect("a process"))
                .expect("this thread's machine");
            let dpa = |addr: flexio::DevAddr| QueueMemory { space: Space::Dpa(id), addr: addr.get() };
            assert_eq!(made.state, QpState::Reset);
            assert_eq!(made.attr.pd, process.pd().number().unwrap());
            assert_eq!((made.attr.recv_cq, made.attr.user_index), (cq.number(), USER_INDEX));
            assert_eq!((made.attr.log_rq_depth, made.attr.log_rq_stride), (6, 4));
            assert_eq!((made.attr.no_sq, made.attr.no_rq, made.attr.uar), (true, false, outbox.uar_id()));
            assert_eq!(made.attr.rq, dpa(qp.receive_ring()));
            assert_eq!(made.attr.doorbell_record, dpa(qp.doorbell_record()));

            let gid = flexio::Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 99]);
            let mac = flexio::Mac([2, 4, 6, 8, 10, 12]);
            match transport {
                Transport::Ud => {
                    qp.activate(UdKey { q_key: Q_KEY }).expect("RTS");
                    assert_eq!(made.attr.transport, emu_nic::Transport::Ud);
                    assert_eq!(query().path.qkey, Q_KEY);
                }
                _ => {
                    let peer = RemoteQp { qpn: 0x12_3456, gid, mac, first_psn: 0xAB_CDEF };
                    qp.connect(&Connection::to(peer).first_psn(0x98_7654)).expect("RTS");
                    assert_eq!(made.attr.transport, emu_nic::Transport::Uc);
                    let made = query();
                    assert_eq!((made.path.dest_qpn, made.rq_psn, made.sq_psn), (0x12_3456, 0xAB_CDEF, 0x98_7654));
                    assert_eq!((made.path.rgid.0, made.path.dmac), (gid.0, mac.0));
                    assert_eq!((made.path.path_mtu, made.path.port), (Mtu::B4096, 1));
                    assert!(made.path.access.contains(Access::REMOTE_WRITE), "{:?}", made.path.access);
                }
            }
            assert_eq!(query().state, QpState::Rts);
        });
    }
}

/// Those that FlexIO makes: rings behind one another, as the library lays them.
#[test]
fn queue_pairs_made_by_flexio() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 5, DpaCqTarget::Polled).expect("a completion queue");
        let depths = DpaDepths { log_send: Some(4), log_receive: Some(3) };
        let qp = DpaQueuePair::builder(Transport::Rc, depths)
            .access(flexio::Access::REMOTE_WRITE)
            .user_index(0x11)
            .build(&cq, &cq)
            .expect("a queue pair");
        let attr = with_world(|world| world.card(0).expect("a card").nic.query_qp(qp.number()))
            .expect("this thread's machine")
            .expect("a queue pair")
            .attr;
        assert_eq!((attr.rq.addr, attr.sq.addr), (qp.receive_ring().get(), qp.send_ring().get()));
        assert_eq!((attr.log_rq_depth, attr.log_rq_stride, attr.log_sq_depth), (3, 4, 4));
        assert_eq!((attr.doorbell_record.addr, attr.user_index), (qp.doorbell_record().get(), 0x11));
        let ring = with_world(|world| *world.card(0).expect("a card").nic.query_cq(cq.number()).expect("a queue"))
            .expect("this thread's machine");
        assert_eq!((ring.ring.addr, ring.doorbell_record.addr), (cq.ring().get(), cq.doorbell_record().get()));
        assert_eq!(ring.log_depth, 5);
    });
}
