//! Queues and memory keys used wrongly: typed errors or error completions, counted drops, and nothing hangs.

use emu_machine::Config;
use emu_machine::nic::{AsyncEvent, Counters, FailureCause, QpState};
use flexcast_hw::wqe::FLAG_SIGNALLED;
use flexcast_hw::{
    ControlSegment, Cqe, CqeOpcode, DataSegment, ErrorCqe, QpDoorbellRecord, RemoteAddressSegment, Syndrome, WqeOpcode,
    WriteWqe, outbox,
};
use flexcast_tests::assert_mentions;
use flexcast_tests::code::{self, *};
use flexcast_tests::harness::skipped;
use flexcast_tests::world::{doorbell_program, get, put, ring, settle, world};
use flexio::{
    Access, AddressHandle, Bound, CompletionQueue, Connection, CqTarget, DeviceBuffer, DpaCompletionQueue, DpaDepths,
    DpaQueuePair, DpaQueuePairBuilder, Error, HostBuffer, LocalSlice, MemoryKey, MemoryRegion, Outbox, Process,
    ProtectionDomain, Provider, QueueDepths, QueuePair, SendKind, SendRequest, Transport, UdKey,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

const Q_KEY: u32 = 0x1111;
const REGION_BYTES: u32 = 4096;
/// `IBV_WC_LOC_PROT_ERR`, `IBV_WC_WR_FLUSH_ERR` and `IBV_WC_REM_ACCESS_ERR`.
const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const BOUND: Bound = Bound::millis(1).with_polls(1_000_000);

/// One card's end of a connection.
struct End<'a> {
    pd: &'a ProtectionDomain,
    sends: &'a CompletionQueue,
    receives: &'a CompletionQueue,
    qp: &'a QueuePair,
    memory: &'a MemoryRegion,
}

impl End<'_> {
    fn provider(&self) -> &Provider {
        self.pd.device().provider()
    }

    fn send(&self, kind: SendKind<'_>, local: LocalSlice) -> flexio::Result<()> {
        self.qp.post_sends(&[SendRequest { id: 1, kind, local: Some(local), immediate: None, signaled: true }])
    }

    fn write(&self, local: LocalSlice, remote_addr: u64, rkey: u32) -> flexio::Result<()> {
        self.send(SendKind::Write { remote_addr, rkey }, local)
    }

    fn sent(&self) -> flexio::Result<()> {
        self.sends.wait(BOUND, "a send").map(drop)
    }

    fn received(&self) -> flexio::Result<()> {
        self.receives.wait(BOUND, "a receive").map(drop)
    }

    fn whole(&self) -> LocalSlice {
        self.memory.slice(0, REGION_BYTES).expect("in range")
    }
}

/// Two new cards with a queue pair each, ready to send to one another.
fn pair(transport: Transport, cq_depth: u32, body: impl FnOnce(&End<'_>, &End<'_>)) {
    let provider = code::cards(Config::default());
    let devices = ["mlx5_0", "mlx5_1"].map(|name| provider.open(name).expect("a card"));
    let pds = devices.each_ref().map(|device| ProtectionDomain::new(device).expect("a protection domain"));
    let cqs = devices
        .each_ref()
        .map(|device| [cq_depth, 16].map(|depth| CompletionQueue::new(device, depth).expect("a completion queue")));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memories = pds.each_ref().map(|pd| {
        let buffer = HostBuffer::zeroed(REGION_BYTES as usize).expect("a buffer");
        MemoryRegion::register(pd, buffer, access).expect("a memory region")
    });
    let qps = [0, 1].map(|i| {
        let depths = QueueDepths { send: 4, receive: 4 };
        let qp = QueuePair::builder(&pds[i], transport, depths).build(&cqs[i][0], &cqs[i][1]).expect("a queue pair");
        qp.init(access, Q_KEY).expect("INIT");
        qp
    });
    for i in [0, 1] {
        let peer = flexio::RemoteQp {
            qpn: qps[1 - i].qpn(),
            gid: devices[1 - i].port().gid,
            mac: devices[1 - i].info().mac,
            first_psn: 0,
        };
        match transport {
            Transport::Ud => qps[i].activate(0).expect("RTS"),
            Transport::Rc | Transport::Uc => qps[i].connect(&Connection::to(peer)).expect("RTS"),
        }
    }
    let end =
        |i: usize| End { pd: &pds[i], sends: &cqs[i][0], receives: &cqs[i][1], qp: &qps[i], memory: &memories[i] };
    body(&end(0), &end(1));
}

fn counters(card: usize) -> Counters {
    world(|world| *world.card(card).expect("a card").nic.counters())
}

#[track_caller]
fn fails(result: flexio::Result<()>, wanted: u32, qpn: u32) {
    match result.expect_err("an error completion") {
        Error::Completion { status, qpn: of, .. } => assert_eq!((status, of), (wanted, qpn)),
        other => panic!("not an error completion: {other}"),
    }
}

#[test]
fn local_key_out_of_range() {
    let spoilt: [fn(&mut LocalSlice); 3] = [|s| s.len += 1, |s| s.addr.0 -= 1, |s| s.addr.0 += u64::from(REGION_BYTES)];
    for spoil in spoilt {
        pair(Transport::Rc, 16, |a, b| {
            let mut local = a.whole();
            spoil(&mut local);
            a.write(local, b.memory.addr().get(), b.memory.rkey()).expect("posted");
            fails(a.sent(), LOCAL_PROTECTION, a.qp.qpn());
            // What is posted afterwards is flushed, not lost silently.
            a.write(a.whole(), b.memory.addr().get(), b.memory.rkey()).expect("posted");
            fails(a.sent(), FLUSHED, a.qp.qpn());
        });
    }
}

#[test]
fn a_copy_between_regions_stays_in_range() {
    pair(Transport::Rc, 16, |a, b| {
        let bytes: Vec<u8> = (0..=255).collect();
        a.memory.write(0, &bytes).expect("in range");
        b.memory.copy_from(4000, a.memory, 160, 96).expect("the last bytes");
        let mut copied = [0; 96];
        b.memory.read(4000, &mut copied).expect("in range");
        assert_eq!(copied[..], bytes[160..]);
        a.memory.copy_from(1, a.memory, 0, 256).expect("ranges that overlap");
        let mut moved = [0; 257];
        a.memory.read(0, &mut moved).expect("in range");
        assert_eq!((moved[0], &moved[1..]), (0, &bytes[..]));
        for (offset, start) in [(4000, 0), (0, 4000), (usize::MAX, 0), (0, usize::MAX)] {
            let error = b.memory.copy_from(offset, a.memory, start, 97).expect_err("one byte too many");
            assert!(matches!(error, Error::RegionRange { len: 97, region_len: 4096, .. }), "{error}");
        }
    });
}

#[test]
fn the_library_refuses_a_slice_out_of_range() {
    pair(Transport::Rc, 16, |a, _| {
        let error = a.memory.slice(4000, 97).expect_err("one byte too many");
        assert!(matches!(error, Error::RegionRange { offset: 4000, len: 97, region_len: 4096, .. }), "{error}");
        assert_mentions(&error, &["97 bytes at offset 4000", "4096 bytes"]);
        assert!(a.memory.slice(u64::MAX, 2).is_err());
        assert!(a.memory.read(4096, &mut [0]).is_err());
        assert!(a.memory.write(usize::MAX, &[0, 0]).is_err());
    });
}

#[test]
fn local_key_of_another_domain() {
    pair(Transport::Rc, 16, |a, b| {
        let other = ProtectionDomain::new(a.pd.device()).expect("a protection domain");
        let foreign = MemoryRegion::register(&other, HostBuffer::zeroed(64).expect("a buffer"), Access::LOCAL_WRITE)
            .expect("a key");
        a.write(foreign.slice(0, 64).expect("in range"), b.memory.addr().get(), b.memory.rkey()).expect("posted");
        fails(a.sent(), LOCAL_PROTECTION, a.qp.qpn());
    });
}

#[test]
fn remote_key_out_of_range() {
    pair(Transport::Rc, 16, |a, b| {
        a.memory.fill(0xFF);
        a.write(a.whole(), b.memory.addr().get() + 1, b.memory.rkey()).expect("posted");
        fails(a.sent(), REMOTE_ACCESS, a.qp.qpn());
        let mut untouched = [0xAA; 4096];
        b.memory.read(0, &mut untouched).expect("in range");
        assert_eq!(untouched, [0; 4096], "nothing was written");
    });
}

#[test]
fn remote_key_of_another_domain() {
    pair(Transport::Rc, 16, |a, b| {
        let other = ProtectionDomain::new(b.pd.device()).expect("a protection domain");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let foreign = MemoryRegion::register(&other, HostBuffer::zeroed(64).expect("a buffer"), access).expect("a key");
        a.write(a.memory.slice(0, 64).expect("in range"), foreign.addr().get(), foreign.rkey()).expect("posted");
        fails(a.sent(), REMOTE_ACCESS, a.qp.qpn());
    });
}

#[test]
fn key_that_is_gone() {
    pair(Transport::Rc, 16, |a, b| {
        let buffer = HostBuffer::zeroed(64).expect("a buffer");
        let gone = MemoryRegion::register(a.pd, buffer, Access::LOCAL_WRITE).expect("a key");
        let local = gone.slice(0, 64).expect("in range");
        let _buffer = gone.into_buffer();
        a.write(local, b.memory.addr().get(), b.memory.rkey()).expect("posted");
        fails(a.sent(), LOCAL_PROTECTION, a.qp.qpn());
    });
}

/// An unreliable write that its target refuses is dropped there, and counted: the sender cannot know.
#[test]
fn unreliable_write_without_rights() {
    pair(Transport::Uc, 16, |a, b| {
        a.memory.fill(0xFF);
        a.write(a.whole(), b.memory.addr().get() + 64, b.memory.rkey()).expect("posted");
        a.sent().expect("it has left");
        settle();
        assert_eq!(counters(1).access_drops, 1);
        assert_eq!(b.memory.read_u64(4088).expect("in range"), 0, "nothing was written");
    });
}

#[test]
fn completion_queue_overrun() {
    // The queue has 2 entries; 4 sends complete and nobody polls.
    pair(Transport::Rc, 1, |a, b| {
        for _ in 0..4 {
            a.write(a.whole(), b.memory.addr().get(), b.memory.rkey()).expect("posted");
        }
        settle();
        assert_eq!(counters(0).cq_overruns, 1);
        // What had been completed before is still there, then the failure is reported, every time.
        assert_eq!(a.sends.poll().expect("what is there").len(), 2);
        for _ in 0..2 {
            let error = a.sends.poll().expect_err("the queue has failed");
            assert!(matches!(error, Error::Verbs { call: "ibv_poll_cq", .. }), "{error}");
            assert_mentions(&error, &["overrun"]);
        }
        // So does a wait, at once instead of at its bound.
        let before = a.provider().relax().now_ps();
        assert!(matches!(a.sent(), Err(Error::Verbs { .. })));
        assert!(a.provider().relax().now_ps() - before < 1_000_000);
    });
}

#[test]
fn receive_ring_empty_datagram() {
    pair(Transport::Ud, 16, |a, b| {
        let path = AddressHandle::new(a.pd, b.pd.device().port().gid).expect("a path");
        let kind = SendKind::Datagram { to: &path, qpn: b.qp.qpn(), q_key: Q_KEY };
        let local = a.memory.slice(0, 64).expect("in range");
        a.send(kind, local).expect("posted");
        a.sent().expect("it has left");
        let error = b.received().expect_err("nothing was posted to receive it");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert_mentions(&error, &["a receive", "the bound is 1000 us"]);
        assert_eq!(counters(1).rnr_drops, 1);
        // The next one finds a receive: nothing is stuck.
        b.qp.post_receive(9, b.whole()).expect("posted");
        a.send(kind, local).expect("posted");
        assert_eq!(b.receives.wait(BOUND, "a datagram").expect("it arrives")[0].byte_len, 64 + 40);
    });
}

/// A reliable sender waits for a receive; the host's own bound ends its wait, and nothing is lost meanwhile.
#[test]
fn receive_ring_empty_reliable() {
    pair(Transport::Rc, 16, |a, b| {
        a.memory.write(0, b"patience").expect("in range");
        a.send(SendKind::Send, a.memory.slice(0, 8).expect("in range")).expect("posted");
        let error = a.sent().expect_err("nobody receives");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(counters(1).rnr_naks > 0);
        b.qp.post_receive(9, b.whole()).expect("posted");
        b.received().expect("it arrives");
        let mut bytes = [0; 8];
        b.memory.read(0, &mut bytes).expect("in range");
        assert_eq!(&bytes, b"patience");
    });
}

/// More requests than the ring has entries are refused where they are posted, and those before them are sent.
#[test]
fn send_ring_full() {
    pair(Transport::Rc, 64, |a, b| {
        let kind = SendKind::Write { remote_addr: b.memory.addr().get(), rkey: b.memory.rkey() };
        let request = SendRequest { id: 1, kind, local: Some(a.whole()), immediate: None, signaled: true };
        let error = a.qp.post_sends(&vec![request; 40]).expect_err("the ring holds fewer");
        let Error::Verbs { call: "ibv_post_send", detail, .. } = &error else { panic!("{error}") };
        let posted: usize = detail.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        assert!((4..40).contains(&posted), "{detail}");
        settle();
        let mut done = 0;
        while done < posted {
            done += a.sends.wait(BOUND, "the sends").expect("those that were posted").len();
        }
        assert_eq!(done, posted);
    });
}

fn state(qpn: u32) -> QpState {
    world(|world| world.card(0).expect("a card").nic.query_qp(qpn)).expect("a queue pair").state
}

fn async_events() -> Vec<(usize, AsyncEvent)> {
    world(|world| std::iter::from_fn(|| world.take_async_event()).collect())
}

const LOG_RING: u8 = 2;

/// A queue pair on DPA memory that is connected to itself, and its completion queue.
fn with_loopback(body: impl FnOnce(&Process, &Outbox, &DpaCompletionQueue, &DpaQueuePair)) {
    with_process(Config::default(), &doorbell_program(), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 4, CqTarget::Polled).expect("a completion queue");
        let depths = DpaDepths { log_send: Some(LOG_RING), log_receive: Some(LOG_RING) };
        let mut qp = DpaQueuePair::builder(Transport::Rc, depths)
            .access(Access::REMOTE_WRITE)
            .user_index(0x5A)
            .build(&cq, &cq)
            .expect("a queue pair");
        let own = qp.endpoint(0);
        qp.connect(&Connection::to(own)).expect("RTS");
        body(process, &outbox, &cq, &qp);
    });
}

#[test]
fn doorbell_beyond_the_ring() {
    with_loopback(|process, outbox, cq, qp| {
        // One receive is posted: it must come back flushed, not disappear.
        put(qp.receive_ring(), DataSegment::new(64, 0x100, 0).as_bytes());
        put(qp.doorbell_record(), QpDoorbellRecord { receive: 1.into(), send: 0.into() }.as_bytes());
        ring(process, outbox, outbox::SQ_DOORBELL, outbox::sq_doorbell_value(qp.number(), 5));
        let depth = 1 << LOG_RING;
        let cause = FailureCause::BadDoorbell { is_send: true, producer_index: 5, consumer_index: 0, depth };
        assert_eq!(async_events(), [(0, AsyncEvent::QpFatal { qpn: qp.number(), cause })]);
        assert_eq!((state(qp.number()), counters(0).bad_doorbells), (QpState::Err, 1));
        let entry = ErrorCqe::read_from_bytes(&get::<64>(cq.ring())).expect("64 bytes");
        assert_eq!(entry.op_own >> 4, CqeOpcode::ResponderError as u8);
        assert_eq!(entry.syndrome, Syndrome::Flushed as u8);
        assert_eq!(entry.opcode_qpn.get(), qp.number());
        process.check().expect("the process lives: its queue has failed, not its code");
    });
}

#[test]
fn doorbell_of_a_queue_that_is_not() {
    with_loopback(|process, outbox, _, qp| {
        ring(process, outbox, outbox::SQ_DOORBELL, outbox::sq_doorbell_value(0xAB_CDEF, 1));
        ring(process, outbox, outbox::CQ_DOORBELL, outbox::cq_arm_value(0xAB_CDEE, 1));
        let unknown = |number| (0, AsyncEvent::UnknownQueue { number });
        assert_eq!(async_events(), [unknown(0xAB_CDEF), unknown(0xAB_CDEE)]);
        assert_eq!((counters(0).bad_doorbells, state(qp.number())), (2, QpState::Rts));
        process.check().expect("the process lives");
    });
}

/// The device's own loopback copy with a key that does not allow it: an error entry in its completion queue.
#[test]
fn device_key_out_of_range_or_of_another_domain() {
    with_loopback(|process, outbox, cq, qp| {
        let buffer = DeviceBuffer::zeroed(process, 64).expect("device memory");
        let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).expect("a key");
        let user = HostBuffer::zeroed(64).expect("a buffer");
        let user =
            MemoryRegion::register(process.pd(), user, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("a key");
        let mut slot = 0_u16;
        let mut copy = |len: u32, lkey: u32, signal: u8| {
            let wqe = WriteWqe {
                control: ControlSegment::new(slot, WqeOpcode::Write, qp.number(), WriteWqe::SEGMENTS, signal),
                remote: RemoteAddressSegment {
                    address: user.addr().get().into(),
                    rkey: user.rkey().into(),
                    reserved: [0; 4],
                },
                data: DataSegment::new(len, lkey, buffer.addr().get()),
                padding: [0; 16],
            };
            put(qp.send_ring().offset(64 * u64::from(slot)), wqe.as_bytes());
            slot += 1;
            ring(process, outbox, outbox::SQ_DOORBELL, outbox::sq_doorbell_value(qp.number(), slot));
        };
        copy(64, key.id(), FLAG_SIGNALLED);
        let good = Cqe::read_from_bytes(&get::<64>(cq.ring())).expect("64 bytes");
        assert_eq!((good.opcode(), good.wqe_counter.get()), (Ok(CqeOpcode::Requester), 0));
        // Not signalled: a failure is reported all the same.
        copy(65, key.id(), 0);
        let bad = ErrorCqe::read_from_bytes(&get::<64>(cq.ring().offset(64))).expect("64 bytes");
        assert_eq!(bad.op_own >> 4, CqeOpcode::RequesterError as u8);
        assert_eq!((bad.syndrome, bad.wqe_counter.get()), (Syndrome::LocalProtection as u8, 1));
        assert_eq!(state(qp.number()), QpState::Err);
    });
    with_loopback(|process, outbox, cq, qp| {
        let other = ProtectionDomain::new(process.device()).expect("a protection domain");
        let foreign = MemoryRegion::register(&other, HostBuffer::zeroed(64).expect("a buffer"), Access::LOCAL_WRITE)
            .expect("a key");
        let wqe = WriteWqe {
            control: ControlSegment::new(0, WqeOpcode::Write, qp.number(), WriteWqe::SEGMENTS, FLAG_SIGNALLED),
            remote: RemoteAddressSegment::default(),
            data: DataSegment::new(64, foreign.lkey(), foreign.addr().get()),
            padding: [0; 16],
        };
        put(qp.send_ring(), wqe.as_bytes());
        ring(process, outbox, outbox::SQ_DOORBELL, outbox::sq_doorbell_value(qp.number(), 1));
        let bad = ErrorCqe::read_from_bytes(&get::<64>(cq.ring())).expect("64 bytes");
        assert_eq!(bad.syndrome, Syndrome::LocalProtection as u8);
        assert_eq!(bad.opcode_qpn.get(), u32::from(WqeOpcode::Write as u8) << 24 | qp.number());
    });
}

/// A receiver on DPA memory whose firmware never consumes: the queue fails at its third completion, the first two stay.
#[test]
fn device_completion_queue_overrun_and_empty_receive_ring() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 1, CqTarget::Polled).expect("a completion queue");
        let mut qp = DpaQueuePair::builder(Transport::Ud, DpaDepths::receive_only(3))
            .user_index(0x77)
            .build(&cq, &cq)
            .expect("a queue pair");
        qp.activate(UdKey { q_key: Q_KEY }).expect("RTS");
        let buffer = DeviceBuffer::zeroed(process, 8 * 256).expect("device memory");
        let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).expect("a key");

        let client = process.device().provider().open("mlx5_1").expect("the second card");
        let pd = ProtectionDomain::new(&client).expect("a protection domain");
        let sends = CompletionQueue::new(&client, 16).expect("a completion queue");
        let host = QueuePair::builder(&pd, Transport::Ud, QueueDepths { send: 8, receive: 1 })
            .build(&sends, &sends)
            .expect("a queue pair");
        host.init(Access::empty(), Q_KEY).expect("INIT");
        host.activate(0).expect("RTS");
        let memory =
            MemoryRegion::register(&pd, HostBuffer::zeroed(64).expect("a buffer"), Access::empty()).expect("a key");
        let path = AddressHandle::new(&pd, process.device().port().gid).expect("a path");
        let send = |immediate: u32| {
            let kind = SendKind::Datagram { to: &path, qpn: qp.number(), q_key: Q_KEY };
            let local = Some(memory.slice(0, 64).expect("in range"));
            host.post_sends(&[SendRequest { id: 1, kind, local, immediate: Some(immediate), signaled: true }])
                .expect("posted");
            sends.wait(BOUND, "a datagram to leave").expect("it leaves");
            settle();
        };
        // Nothing is posted yet: dropped and counted, no completion.
        send(100);
        assert_eq!((counters(0).rnr_drops, counters(0).cqes), (1, 0));
        for index in 0..8 {
            let segment = DataSegment::new(256, key.id(), buffer.addr().get() + 256 * index);
            put(qp.receive_ring().offset(16 * index), segment.as_bytes());
        }
        put(qp.doorbell_record(), QpDoorbellRecord { receive: 8.into(), send: 0.into() }.as_bytes());
        for immediate in 0..4 {
            send(immediate);
        }
        for index in 0..2_u32 {
            let entry = Cqe::read_from_bytes(&get::<64>(cq.ring().offset(64 * u64::from(index)))).expect("64 bytes");
            assert_eq!(entry.opcode(), Ok(CqeOpcode::SendImmediate));
            assert_eq!((entry.immediate.get(), entry.byte_count.get()), (index, 104));
        }
        assert_eq!(counters(0).cq_overruns, 1);
        let events = async_events();
        let cause = FailureCause::Overrun { consumer_index: 0, depth: 2 };
        let overrun = AsyncEvent::CqError { cqn: cq.number(), cause };
        assert!(events.contains(&(0, overrun)), "{events:?}");
        assert_eq!(state(qp.number()), QpState::Err, "its queue pair cannot report anything to anybody any more");
        process.check().expect("the process lives");
    });
}

#[test]
fn unknown_device() {
    let provider = code::cards(Config::default());
    let error = provider.open("mlx5_9").expect_err("there are two");
    let Error::UnknownDevice { name, present } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), &present[..]), ("mlx5_9", &["mlx5_0".to_owned(), "mlx5_1".to_owned()][..]));
    assert_mentions(&error, &["no device `mlx5_9`", "mlx5_0, mlx5_1"]);
    // A card that one configuration lacks.
    let provider = code::cards(Config { cards: 1, ..Config::default() });
    assert_mentions(
        &provider.open("mlx5_1").expect_err("there is one"),
        &["no device `mlx5_1`", "this provider has mlx5_0"],
    );
}

#[test]
fn system_provider_without_doca() {
    match Provider::system() {
        Ok(_) => skipped("DOCA is installed"),
        Err(error) => {
            assert!(matches!(error, Error::NotInstalled { .. }), "{error}");
            assert_mentions(
                &error,
                &["DOCA not installed", "libflexio.so", "install the DOCA host packages", "LD_LIBRARY_PATH"],
            );
        }
    }
}

#[test]
fn sizes_out_of_range() {
    #[track_caller]
    fn out_of_range<T: std::fmt::Debug>(result: flexio::Result<T>, wanted: u64, words: &[&str]) {
        let error = result.expect_err("out of range");
        let Error::OutOfRange { value, .. } = &error else { panic!("{error}") };
        assert_eq!(*value, wanted, "{error}");
        assert_mentions(&error, words);
    }
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 4, CqTarget::Polled).expect("a completion queue");
        out_of_range(DpaCompletionQueue::new(&outbox, 16, CqTarget::Polled), 16, &["completion queue", "at most 15"]);
        let receiver = |log, index| {
            DpaQueuePair::builder(Transport::Ud, DpaDepths::receive_only(log)).user_index(index).build(&cq, &cq)
        };
        out_of_range(receiver(16, 0), 16, &["receive queue", "at most 15"]);
        out_of_range(receiver(4, 1 << 24), 1 << 24, &["user index", "24 bits"]);
        let conflict = |builder: DpaQueuePairBuilder, words: &[&str]| {
            let error = builder.build(&cq, &cq).expect_err("a conflict");
            assert!(matches!(error, Error::Conflict { .. }), "{error}");
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        };
        let reliable = DpaQueuePair::builder(Transport::Rc, DpaDepths::receive_only(4));
        conflict(
            reliable.block_multicast_loopback(true),
            &["transport RC", "is true", "must be false", "Transport::Ud"],
        );
        conflict(reliable.by_command().access(Access::REMOTE_WRITE), &["made by command", "REMOTE_WRITE", "left out"]);
        let unreliable = DpaQueuePair::builder(Transport::Uc, DpaDepths::receive_only(4));
        conflict(unreliable.access(Access::empty()), &["`access`", "transport UC", "rights are fixed"]);
        conflict(unreliable.block_multicast_loopback(true), &["transport UC", "must be false"]);
        let sender = DpaQueuePair::builder(Transport::Rc, DpaDepths::send_only(16));
        out_of_range(sender.build(&cq, &cq), 16, &["send queue", "at most 15"]);
        out_of_range(HostBuffer::zeroed(0), 0, &["host buffer", "1 to"]);
        out_of_range(DeviceBuffer::zeroed(process, 0), 0, &["device buffer", "at least 1"]);
        out_of_range(CompletionQueue::new(process.device(), u32::MAX), u64::from(u32::MAX), &["at most 2147483647"]);

        // The heap: what does not fit is refused with what is left, and what fits still does.
        let error = DeviceBuffer::zeroed(process, 1 << 40).expect_err("larger than the heap");
        assert!(matches!(error, Error::FlexIo { call: "flexio_buf_dev_alloc", .. }), "{error}");
        assert_mentions(&error, &["1099511627776 bytes", "HeapInfo"]);
        let buffer = DeviceBuffer::zeroed(process, 64).expect("it fits");
        let error = buffer.write(60, &[0; 5]).expect_err("one byte too many");
        assert!(matches!(error, Error::DeviceRange { offset: 60, len: 5, buffer_len: 64, .. }), "{error}");
    });
}

#[test]
fn objects_of_another_process_or_card() {
    let provider = code::cards(Config::default());
    let elf = image(&[RET], &[RET]);
    let application = flexio::Application::load(&provider, "tiny", &elf, None).expect("a valid image");
    let devices = ["mlx5_0", "mlx5_1"].map(|name| provider.open(name).expect("a card"));
    let pd = ProtectionDomain::new(&devices[0]).expect("a protection domain");
    let processes = [0, 1].map(|_| Process::new(&application, &pd).expect("a process"));
    let outboxes = processes.each_ref().map(|process| Outbox::new(process).expect("an outbox"));
    let handler = flexio::EventHandler::new(&processes[0], "handler", 0, flexio::Affinity::Any).expect("a handler");
    let foreign = DpaCompletionQueue::new(&outboxes[1], 4, CqTarget::Thread(&handler)).expect_err("another process");
    assert!(matches!(foreign, Error::Foreign { what: "event handler", parent: "process" }), "{foreign}");
    assert_mentions(&foreign, &["event handler belongs to another process", "create both from one"]);
    let cqs = outboxes.each_ref().map(|outbox| DpaCompletionQueue::new(outbox, 4, CqTarget::Polled).expect("a queue"));
    let depths = DpaDepths { log_send: Some(2), log_receive: Some(2) };
    let foreign = DpaQueuePair::builder(Transport::Rc, depths)
        .access(Access::empty())
        .build(&cqs[0], &cqs[1])
        .expect_err("another process");
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    let cq = CompletionQueue::new(&devices[1], 4).expect("a completion queue");
    let depths = QueueDepths { send: 1, receive: 1 };
    let foreign = QueuePair::builder(&pd, Transport::Rc, depths).build(&cq, &cq).expect_err("another card");
    assert!(matches!(foreign, Error::Foreign { what: "completion queue", parent: "device" }), "{foreign}");

    // One execution unit, one thread.
    let unit = flexio::Affinity::Unit(9);
    let _first = flexio::EventHandler::new(&processes[0], "handler", 0, unit).expect("a free unit");
    // Calls are executed elsewhere while a handler has their unit.
    processes[0].call_by_name("ping", 0).expect("the call returns");
    let _zeroth = flexio::EventHandler::new(&processes[0], "handler", 0, flexio::Affinity::Unit(0)).expect("free, too");
    processes[0].call_by_name("ping", 0).expect("the call returns");
    for unit in [unit, flexio::Affinity::Unit(0), flexio::Affinity::Unit(255), flexio::Affinity::Group(1)] {
        let error = flexio::EventHandler::new(&processes[1], "handler", 0, unit).expect_err("not to be had");
        assert!(matches!(error, Error::FlexIo { call: "flexio_event_handler_create", .. }), "{error}");
        assert_mentions(&error, &[&format!("{unit:?}")]);
    }
}
