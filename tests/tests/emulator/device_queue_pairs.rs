//! Queue pairs in DPA memory that send: datagrams to groups, memberships, traffic classes, and the connection by which
//! a host wakes the DPA of its own card.

use std::net::Ipv4Addr;

use emu_machine::{Config, MemoryModel, World, layout};
use flexcast_hw::wqe::FLAG_SIGNALLED;
use flexcast_hw::{ControlSegment, Cqe, CqeOpcode, DataSegment, QpDoorbellRecord, WqeOpcode, outbox};
use flexcast_tests::assert_mentions;
use flexcast_tests::code::{self, *};
use flexcast_tests::world::{doorbell_program, get, put, ring, settle, world};
use flexio::{
    Access, AddressHandle, Affinity, Application, Bound, CompletionQueue, Connection, CqTarget, Device, DeviceBuffer,
    DpaCompletionQueue, DpaDepths, DpaQueuePair, Error, EventHandler, Gid, GroupKey, HostBuffer, InlineRequest, Mac,
    MemoryKey, MemoryRegion, MulticastGroup, MulticastMembership, Outbox, Path, Process, ProtectionDomain, QueueDepths,
    QueuePair, RemoteQp, Retry, SendKind, SendRequest, Transport, UD_ADDRESS_BYTES, UdAddress, UdKey,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

const Q_KEY: u32 = 0x1111;
const CLASS: u8 = 0xA4;
const BOUND: Bound = Bound::millis(1).with_polls(1_000_000);
/// Bytes of the routing header in front of a datagram's payload; its last 20 are the IPv4 header.
const GRH_BYTES: usize = 40;
const TOS_BYTE: usize = 21;

fn entry(cq: &DpaCompletionQueue, index: u64) -> Cqe {
    Cqe::read_from_bytes(&get::<64>(cq.ring().offset(64 * index))).expect("64 bytes")
}

/// A UD queue pair on the DPA of card 0 that sends.
struct Sender<'a> {
    process: &'a Process,
    outbox: &'a Outbox,
    qp: &'a DpaQueuePair,
    cq: &'a DpaCompletionQueue,
    key: &'a MemoryKey,
    next: std::cell::Cell<u64>,
}

impl Sender<'_> {
    /// Sends the first `len` bytes of its buffer; the datagram has left when this returns. An entry has five segments
    /// and so takes two blocks.
    fn send(&self, to: &UdAddress, len: u32, immediate: u32) {
        let index = 2 * self.next.get();
        let mut control =
            ControlSegment::new(index as u16, WqeOpcode::SendImmediate, self.qp.number(), 5, FLAG_SIGNALLED);
        control.immediate = immediate.into();
        let data = DataSegment::new(len, self.key.id(), self.key.buffer().addr().get());
        let mut bytes = [0; 80];
        bytes[..16].copy_from_slice(control.as_bytes());
        bytes[16..64].copy_from_slice(&to.to_bytes());
        bytes[64..].copy_from_slice(data.as_bytes());
        put(self.qp.send_ring().offset(64 * index), &bytes);
        let value = outbox::sq_doorbell_value(self.qp.number(), (index + 2) as u16);
        ring(self.process, self.outbox, outbox::SQ_DOORBELL, value);
        let done = entry(self.cq, self.next.get());
        assert_eq!((done.opcode(), done.wqe_counter.get()), (Ok(CqeOpcode::Requester), index as u16));
        self.next.set(self.next.get() + 1);
    }
}

/// Calls `body` with a sender on card 0, whose buffer holds `payload`, and card 1.
fn with_sender(block_loopback: bool, payload: &[u8], body: impl FnOnce(&Sender<'_>, &Device)) {
    with_process(Config::default(), &doorbell_program(), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 4, CqTarget::Polled).expect("a completion queue");
        let unused = DpaCompletionQueue::new(&outbox, 1, CqTarget::Polled).expect("a completion queue");
        let depths = DpaDepths { log_send: Some(4), log_receive: None };
        let mut qp = DpaQueuePair::builder(Transport::Ud, depths)
            .block_multicast_loopback(block_loopback)
            .user_index(0x33)
            .build(&cq, &unused)
            .expect("a queue pair");
        qp.activate(UdKey { q_key: Q_KEY }).expect("RTS");
        let buffer = DeviceBuffer::from_bytes(process, payload).expect("device memory");
        let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).expect("a key");
        let other = process.device().provider().open("mlx5_1").expect("the second card");
        let next = std::cell::Cell::new(0);
        body(&Sender { process, outbox: &outbox, qp: &qp, cq: &cq, key: &key, next }, &other);
    });
}

/// A UD queue pair of a host, with eight receives of 512 bytes.
fn with_listener(card: &Device, body: impl FnOnce(&QueuePair, &CompletionQueue, &MemoryRegion)) {
    let pd = ProtectionDomain::new(card).expect("a protection domain");
    let cq = CompletionQueue::new(card, 16).expect("a completion queue");
    let depths = QueueDepths { send: 1, receive: 8 };
    let qp = QueuePair::builder(&pd, Transport::Ud, depths).build(&cq, &cq).expect("a queue pair");
    qp.init(Access::empty(), Q_KEY).expect("INIT");
    qp.activate(0).expect("RTS");
    let buffer = HostBuffer::zeroed(8 * 512).expect("a buffer");
    let memory = MemoryRegion::register(&pd, buffer, Access::LOCAL_WRITE).expect("a memory region");
    for slot in 0..8 {
        qp.post_receive(slot, memory.slice(512 * slot, 512).expect("in range")).expect("posted");
    }
    body(&qp, &cq, &memory);
}

fn group() -> MulticastGroup {
    MulticastGroup::ipv4(Ipv4Addr::new(239, 200, 1, 2)).expect("a group")
}

#[test]
fn firmware_sends_to_a_group_and_members_of_hosts_receive() {
    let text = b"one datagram for all members";
    with_sender(true, text, |sender, other| {
        with_listener(other, |qp, cq, memory| {
            let to = UdAddress::group(sender.process.device(), group(), Q_KEY);
            let len = text.len() as u32;
            sender.send(&to, len, 1);
            settle();
            assert_eq!(cq.poll().expect("a live queue"), [], "not a member yet");
            let membership = MulticastMembership::attach_host(qp, group()).expect("a membership");
            assert_eq!(membership.group(), group());
            sender.send(&to.along(Path::of_class(CLASS)).expect("a path"), len, 0xFEED);
            let done = cq.wait(BOUND, "the datagram").expect("it comes");
            assert_eq!((done.len(), done[0].immediate), (1, Some(0xFEED)));
            assert_eq!(done[0].byte_len as usize, GRH_BYTES + text.len());
            let mut bytes = vec![0; done[0].byte_len as usize];
            memory.read(512 * done[0].id as usize, &mut bytes).expect("in range");
            assert_eq!(&bytes[GRH_BYTES..], text);
            assert_eq!(bytes[TOS_BYTE], CLASS, "the traffic class of the address vector, in the IP header");
            assert_eq!(bytes[36..40], [239, 200, 1, 2], "to the group");
            drop(membership);
            sender.send(&to, len, 3);
            assert_eq!(cq.poll().expect("a live queue"), [], "it has left the group");
        });
    });
}

#[test]
fn firmware_sends_to_one_queue_pair() {
    with_sender(false, b"for you alone", |sender, other| {
        with_listener(other, |qp, cq, _| {
            let (gid, mac) = (other.port().gid, other.info().mac);
            let to = UdAddress::new(sender.process.device(), gid, mac, qp.qpn(), Q_KEY).expect("an address");
            sender.send(&to, 13, 7);
            let done = cq.wait(BOUND, "the datagram").expect("it comes");
            assert_eq!((done[0].immediate, done[0].byte_len), (Some(7), 40 + 13));
            // Another key than the receiver's: dropped there.
            let to = UdAddress::new(sender.process.device(), gid, mac, qp.qpn(), Q_KEY + 1).expect("an address");
            sender.send(&to, 13, 8);
            assert_eq!(cq.poll().expect("a live queue"), []);
            let drops = world(|world| world.card(1).expect("a card").nic.counters().qkey_drops);
            assert_eq!(drops, 1);
        });
        let error = UdAddress::new(other, Gid::default(), Mac::default(), 1 << 24, 0).expect_err("25 bits");
        assert_mentions(&error, &["queue pair number is 16777216", "24 bits"]);
        assert_eq!(UD_ADDRESS_BYTES, 48);
    });
}

/// What a card sends to a group comes back to its own members, or not, as the queue pair says.
#[test]
fn loopback_of_multicast_is_blocked_at_the_queue_pair() {
    for block in [false, true] {
        with_sender(block, b"to the group", |sender, _| {
            let receives = DpaCompletionQueue::new(sender.outbox, 4, CqTarget::Polled).expect("a completion queue");
            let mut member = DpaQueuePair::builder(Transport::Ud, DpaDepths::receive_only(2))
                .user_index(0x44)
                .build(&receives, &receives)
                .expect("a queue pair");
            member.activate(UdKey { q_key: Q_KEY }).expect("RTS");
            let staging = DeviceBuffer::zeroed(sender.process, 256).expect("device memory");
            let key = MemoryKey::new(&staging, Access::LOCAL_WRITE).expect("a key");
            put(member.receive_ring(), DataSegment::new(256, key.id(), staging.addr().get()).as_bytes());
            put(member.doorbell_record(), QpDoorbellRecord { receive: 1.into(), send: 0.into() }.as_bytes());
            let membership = MulticastMembership::attach(&member, group()).expect("a membership");
            let twice = MulticastMembership::attach(&member, group()).expect_err("it is a member");
            assert!(matches!(twice, Error::Command { command: "ATTACH_TO_MCG", .. }), "{twice}");

            let to = UdAddress::group(sender.process.device(), group(), Q_KEY);
            sender.send(&to, 12, 5);
            let came = entry(&receives, 0);
            if block {
                assert_eq!(came, Cqe::INITIAL, "nothing comes back");
            } else {
                assert_eq!((came.opcode(), came.immediate.get()), (Ok(CqeOpcode::SendImmediate), 5));
                assert_eq!(get::<12>(staging.addr().offset(40)), *b"to the group");
            }
            drop(membership);
            drop(MulticastMembership::attach(&member, group()).expect("again, once it has left"));
        });
    }
}

#[test]
fn only_datagram_queue_pairs_join_groups() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 4, CqTarget::Polled).expect("a completion queue");
        let depths = DpaDepths { log_send: Some(4), log_receive: Some(4) };
        let connected = DpaQueuePair::builder(Transport::Uc, depths).build(&cq, &cq).expect("a queue pair");
        let error = MulticastMembership::attach(&connected, group()).expect_err("it is connected");
        assert_mentions(&error, &["ATTACH_TO_MCG", "239.200.1.2", &format!("{:#x}", connected.number())]);
        let none = DpaDepths { log_send: None, log_receive: None };
        let error = DpaQueuePair::builder(Transport::Ud, none).build(&cq, &cq).expect_err("no queue");
        assert_mentions(&error, &["at least one of send and receive queue"]);
        let error = connected.post_empty_receives(17).expect_err("16 fit");
        assert_mentions(&error, &["17", "at most 16"]);
    });
}

/// The rings of a queue pair made by command lie where the library says, and its path is the one that was asked for.
#[test]
fn queue_pairs_with_both_queues_are_laid_out_as_reported() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cqs = [3, 4].map(|log| DpaCompletionQueue::new(&outbox, log, CqTarget::Polled).expect("a queue"));
        let depths = DpaDepths { log_send: Some(5), log_receive: Some(3) };
        let mut qp = DpaQueuePair::builder(Transport::Uc, depths)
            .user_index(0x77)
            .build(&cqs[0], &cqs[1])
            .expect("a queue pair");
        let query = |qpn| world(|world| world.card(0).expect("a card").nic.query_qp(qpn)).expect("a queue pair");
        let attr = query(qp.number()).attr;
        assert_eq!((attr.rq.addr, attr.sq.addr), (qp.receive_ring().get(), qp.send_ring().get()));
        assert_eq!((attr.log_rq_depth, attr.log_sq_depth, attr.no_rq, attr.no_sq), (3, 5, false, false));
        assert_eq!((attr.send_cq, attr.recv_cq), (cqs[0].number(), cqs[1].number()));
        let peer = RemoteQp { qpn: 5, gid: Gid([7; 16]), mac: Mac([2; 6]), first_psn: 1 };
        let path = Path { traffic_class: CLASS, service_level: 3, flow_label: 0x12345, hop_limit: 7 };
        qp.connect(&Connection::to(peer).first_psn(2).path(path)).expect("RTS");
        let got = query(qp.number()).path;
        assert_eq!((got.traffic_class, got.flow_label, got.hop_limit), (CLASS, 0x12345, 7));

        // FlexIO's own queue pairs have one class.
        let mut qp = DpaQueuePair::builder(Transport::Rc, depths)
            .access(Access::empty())
            .build(&cqs[0], &cqs[1])
            .expect("a queue pair");
        let error = qp.connect(&Connection::to(peer).first_psn(2).path(path)).expect_err("another path");
        assert_mentions(&error, &["`path`", "traffic_class: 164", "the default one", "by_command"]);
        let retry = Retry { timeout_exponent: 20, count: 7 };
        let error = qp.connect(&Connection::to(peer).retry(retry)).expect_err("another timeout");
        assert!(error.to_string().starts_with("`retry` of a connection of a queue pair made by FlexIO is "), "{error}");
    });
}

#[test]
fn hosts_choose_the_traffic_class() {
    let provider = code::cards(Config::default());
    let devices = ["mlx5_0", "mlx5_1"].map(|name| provider.open(name).expect("a card"));
    with_listener(&devices[1], |listener, cq, memory| {
        let pd = ProtectionDomain::new(&devices[0]).expect("a protection domain");
        let sends = CompletionQueue::new(&devices[0], 16).expect("a completion queue");
        let depths = QueueDepths { send: 4, receive: 1 };
        let qp = QueuePair::builder(&pd, Transport::Ud, depths).inline(64).build(&sends, &sends).expect("a queue pair");
        let error = QueuePair::builder(&pd, Transport::Rc, depths).block_multicast_loopback(true).build(&sends, &sends);
        assert!(error.is_err_and(|error| error.to_string().ends_with("leave it out, or use `Transport::Ud`")));
        let error = QueuePair::builder(&pd, Transport::Rc, depths).lists(0).build(&sends, &sends);
        assert!(
            error.is_err_and(|error| error.to_string() == "number of pieces of a message is 0: must be at least 1")
        );
        qp.init(Access::empty(), Q_KEY).expect("INIT");
        qp.activate(0).expect("RTS");
        let path = Path::of_class(CLASS);
        let to = AddressHandle::along(&pd, devices[1].port().gid, path).expect("a path");
        let kind = SendKind::Datagram { to: &to, qpn: listener.qpn(), q_key: Q_KEY };
        let mut bytes = *b"carried";
        qp.post_inline([InlineRequest { id: 1, kind, bytes: &bytes, immediate: None, signaled: true }])
            .expect("posted");
        // The entry has its own copy.
        bytes.fill(0);
        let done = cq.wait(BOUND, "the datagram").expect("it comes");
        let mut got = [0; 47];
        memory.read(512 * done[0].id as usize, &mut got).expect("in range");
        assert_eq!((&got[40..], got[TOS_BYTE]), (&b"carried"[..], CLASS));
        let long = [0; 65];
        let error = qp
            .post_inline([InlineRequest { id: 2, kind, bytes: &long, immediate: None, signaled: true }])
            .expect_err("65 bytes");
        assert!(matches!(error, Error::Verbs { call: "ibv_post_send", .. }), "{error}");
        let error = AddressHandle::along(&pd, devices[1].port().gid, Path { service_level: 16, ..path });
        assert_mentions(&error.expect_err("a wide level"), &["service level", "16", "at most 15"]);

        // Connected queue pairs, on both sides of their connection.
        let rc = QueuePair::builder(&pd, Transport::Rc, depths).build(&sends, &sends).expect("a queue pair");
        rc.init(Access::empty(), 0).expect("INIT");
        let peer = RemoteQp { qpn: 9, gid: devices[1].port().gid, mac: devices[1].info().mac, first_psn: 0 };
        rc.connect(&Connection::to(peer).path(path)).expect("RTS");
        let query = world(|world| world.card(0).expect("a card").nic.query_qp(rc.qpn())).expect("a queue pair");
        assert_eq!(query.path.traffic_class, CLASS);
    });
}

/// `fence rw, rw`.
const FENCE: u32 = 0x0330_000F;

/// The host writes two lines into DPA memory over a connection that goes round inside its card, and a Write with
/// immediate behind them wakes the thread, which finds both lines. In no order of a weak memory is it otherwise.
fn woken_by_the_host(memory: MemoryModel) {
    // The handler copies the first and the last word of each line behind them.
    let mut handler = vec![FENCE];
    for (from, to) in [(0, 128), (56, 136), (64, 144), (120, 152)] {
        handler.extend([ld(reg::A1, reg::A0, from), sd(reg::A1, reg::A0, to)]);
    }
    handler.push(FENCE);
    handler.extend(rtos(layout::call::RESCHEDULE));
    let elf = image(&handler, &[RET]);
    let config = Config { memory, detect_races: true, cards: 1, ..Config::default() };
    let provider = code::cards(config);
    let application = Application::load(&provider, "tiny", &elf, None).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let outbox = Outbox::new(&process).expect("an outbox");
    let lines = DeviceBuffer::zeroed(&process, 256).expect("device memory");
    let key = MemoryKey::new(&lines, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("a key");
    let woken = EventHandler::new(&process, "handler", lines.addr().get(), Affinity::Unit(1)).expect("a handler");
    let receives = DpaCompletionQueue::new(&outbox, 4, CqTarget::Thread(&woken)).expect("a completion queue");
    let sends = DpaCompletionQueue::new(&outbox, 1, CqTarget::Polled).expect("a completion queue");
    let depths = DpaDepths { log_send: None, log_receive: Some(4) };
    let mut control = DpaQueuePair::builder(Transport::Rc, depths)
        .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
        .user_index(0x21)
        .build(&sends, &receives)
        .expect("a queue pair");
    control.post_empty_receives(16).expect("posted");

    let done = CompletionQueue::new(&device, 16).expect("a completion queue");
    let depths = QueueDepths { send: 8, receive: 1 };
    let host = QueuePair::builder(&pd, Transport::Rc, depths).inline(64).build(&done, &done).expect("a queue pair");
    host.init(Access::empty(), 0).expect("INIT");
    let own = RemoteQp { qpn: host.qpn(), gid: device.port().gid, mac: device.info().mac, first_psn: 0x10 };
    control.connect(&Connection::to(own).first_psn(0x20)).expect("RTS");
    host.connect(&Connection::to(control.endpoint(0x20)).first_psn(0x10)).expect("RTS");
    woken.run(lines.addr().get()).expect("it runs");
    settle();

    let word = |n: u64| 0x1111_2222_0000_0000 + n;
    let text: Vec<u8> = (0..16).flat_map(|n| word(n).to_le_bytes()).collect();
    let write = |offset: u64| SendKind::Write { remote_addr: lines.addr().get() + offset, rkey: key.id() };
    let quiet = |id, kind, bytes| InlineRequest { id, kind, bytes, immediate: None, signaled: false };
    host.post_inline([
        quiet(1, write(0), &text[..64]),
        quiet(2, write(64), &text[64..]),
        InlineRequest { immediate: Some(0xC0DE), signaled: true, ..quiet(3, write(0), &[]) },
    ])
    .expect("posted");
    assert_eq!(done.wait(BOUND, "the writes").expect("they arrive")[0].id, 3);
    settle();
    let completion = entry(&receives, 0);
    assert_eq!((completion.opcode(), completion.byte_count.get()), (Ok(CqeOpcode::WriteImmediate), 0));
    assert_eq!((completion.immediate.get(), completion.user_index.get()), (0xC0DE, 0x21));
    let seen = get::<32>(lines.addr().offset(128));
    let words: Vec<u64> = seen.chunks(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))).collect();
    assert_eq!(words, [word(0), word(7), word(8), word(15)], "{memory:?}");
    assert_eq!(world(World::take_races), [], "{memory:?}");
    process.check().expect("the process lives");
}

#[test]
fn a_host_wakes_the_dpa_of_its_own_card_by_rdma() {
    woken_by_the_host(MemoryModel::Strong);
    for seed in 0..20 {
        woken_by_the_host(MemoryModel::weak(seed));
    }
}

/// Hypothetical: a Write to a group goes straight into the user's buffer, at the place that the group key stands for.
#[test]
fn multicast_writes_need_no_copy_where_the_emulator_allows_them() {
    const KEY: u32 = 0x77;
    let received = |allowed: bool, body: &dyn Fn(&DpaQueuePair, &MemoryRegion, &DpaCompletionQueue)| {
        let config = Config { uc_multicast: allowed, ..Config::default() };
        with_process(config, &image(&[RET], &[RET]), |process| {
            let outbox = Outbox::new(process).expect("an outbox");
            let cq = DpaCompletionQueue::new(&outbox, 4, CqTarget::Polled).expect("a completion queue");
            let mut member = DpaQueuePair::builder(Transport::Uc, DpaDepths::receive_only(4))
                .user_index(0x55)
                .build(&cq, &cq)
                .expect("a queue pair");
            member.post_empty_receives(16).expect("posted");
            member.connect(&Connection::to(group().endpoint(0))).expect("RTS");
            let user = HostBuffer::zeroed(64 << 10).expect("a buffer");
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let user = MemoryRegion::register(process.pd(), user, access).expect("a memory region");
            body(&member, &user, &cq);
        });
    };
    received(true, &|member, user, cq| {
        let _membership = MulticastMembership::attach(member, group()).expect("a membership");
        let key = GroupKey::new(member, KEY, user, 4096).expect("a group key");
        assert_eq!(key.key(), KEY);
        let twice = GroupKey::new(member, KEY, user, 0).expect_err("it stands for something");
        assert_mentions(&twice, &["CREATE_GENERAL_OBJECT", "group key 0x77"]);

        let provider = user.pd().device().provider();
        let card = provider.open("mlx5_1").expect("the second card");
        let pd = ProtectionDomain::new(&card).expect("a protection domain");
        let sends = CompletionQueue::new(&card, 16).expect("a completion queue");
        let depths = QueueDepths { send: 4, receive: 1 };
        let root = QueuePair::builder(&pd, Transport::Uc, depths).build(&sends, &sends).expect("a queue pair");
        root.init(Access::empty(), 0).expect("INIT");
        root.connect(&Connection::to(group().endpoint(0)).first_psn(7)).expect("RTS");
        let text: Vec<u8> = (0..20_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let source = HostBuffer::from_bytes(&text).expect("a buffer");
        let source = MemoryRegion::register(&pd, source, Access::empty()).expect("a memory region");
        let write = |immediate: u32| {
            let kind = SendKind::Write { remote_addr: 1000, rkey: KEY };
            let local = Some(source.slice(0, 20_000).expect("in range"));
            root.post_sends(&[SendRequest { id: 1, kind, local, immediate: Some(immediate), signaled: true }])
                .expect("posted");
            sends.wait(BOUND, "the write").expect("it has left");
            settle();
        };
        write(0xAB);
        let came = entry(cq, 0);
        assert_eq!((came.opcode(), came.immediate.get()), (Ok(CqeOpcode::WriteImmediate), 0xAB));
        assert_eq!((came.byte_count.get(), came.user_index.get()), (20_000, 0x55));
        let mut got = vec![0; 20_000];
        user.read(4096 + 1000, &mut got).expect("in range");
        assert!(got == text);
        // Released: late packets find no key.
        drop(key);
        write(0xAC);
        assert_eq!(entry(cq, 1), Cqe::INITIAL);
        // One for each packet: the first is refused, the others continue nothing.
        let counters = world(|world| *world.card(0).expect("a card").nic.counters());
        assert_eq!((counters.access_drops, counters.uc_gap_drops), (1, 4));
    });
    received(false, &|member, user, _| {
        assert!(MulticastMembership::attach(member, group()).is_err(), "as on a card");
        assert!(GroupKey::new(member, KEY, user, 0).is_err());
    });
}

/// A key without the right stops the host's write: the queue pairs fail, the memory stays as it is.
#[test]
fn device_memory_is_written_by_its_key_alone() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 4, CqTarget::Polled).expect("a completion queue");
        let buffer = DeviceBuffer::zeroed(process, 64).expect("device memory");
        let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).expect("a key");
        let depths = DpaDepths { log_send: None, log_receive: Some(2) };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut control =
            DpaQueuePair::builder(Transport::Rc, depths).access(access).build(&cq, &cq).expect("a queue pair");
        let done = CompletionQueue::new(process.device(), 16).expect("a completion queue");
        let depths = QueueDepths { send: 2, receive: 1 };
        let host = QueuePair::builder(process.pd(), Transport::Rc, depths).build(&done, &done).expect("a queue pair");
        host.init(Access::empty(), 0).expect("INIT");
        let (gid, mac) = (process.device().port().gid, process.device().info().mac);
        control.connect(&Connection::to(RemoteQp { qpn: host.qpn(), gid, mac, first_psn: 0 })).expect("RTS");
        host.connect(&Connection::to(control.endpoint(0))).expect("RTS");
        let source = HostBuffer::from_bytes(&[0xAA; 64]).expect("a buffer");
        let source = MemoryRegion::register(process.pd(), source, Access::empty()).expect("a memory region");
        host.post_sends(&[SendRequest {
            id: 1,
            kind: SendKind::Write { remote_addr: buffer.addr().get(), rkey: key.id() },
            local: Some(source.slice(0, 64).expect("in range")),
            immediate: None,
            signaled: true,
        }])
        .expect("posted");
        let error = done.wait(BOUND, "the write").expect_err("no right");
        assert_mentions(&error, &["the write completed in error"]);
        assert_eq!(get::<64>(buffer.addr()), [0; 64]);
    });
}
