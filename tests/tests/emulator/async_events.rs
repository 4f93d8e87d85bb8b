//! Failures that no completion reports, as a host program learns of them: queues of the host, and queues on DPA memory.

use emu_machine::Config;
use flexcast_tests::code::{self, *};
use flexcast_tests::world::{put, settle};
use flexio::{
    Access, AddressHandle, AsyncEvent, CompletionQueue, CqTarget, Device, DeviceBuffer, DpaCompletionQueue,
    DpaQueuePair, HostBuffer, MemoryKey, MemoryRegion, Outbox, ProtectionDomain, QueueDepths, QueuePair,
    QueuePairFailure, SendKind, SendRequest, Transport, UdKey,
};

const Q_KEY: u32 = 0x1111;

fn all(device: &Device) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| device.take_async_event().expect("an event, or none")).collect()
}

/// Sends datagrams from card 1 to queue pair `qpn` of card 0.
fn datagrams(receiver: &Device, qpn: u32, count: u64) {
    let client = receiver.provider().open("mlx5_1").expect("the second card");
    let pd = ProtectionDomain::new(&client).expect("a protection domain");
    let sends = CompletionQueue::new(&client, 16).expect("a completion queue");
    let host = QueuePair::builder(&pd, Transport::Ud, QueueDepths { send: 8, receive: 1 })
        .build(&sends, &sends)
        .expect("a queue pair");
    host.init(Access::empty(), Q_KEY).expect("INIT");
    host.activate(0).expect("RTS");
    let memory = HostBuffer::zeroed(64).expect("a buffer");
    let memory = MemoryRegion::register(&pd, memory, Access::empty()).expect("a key");
    let path = AddressHandle::new(&pd, receiver.port().gid).expect("a path");
    for id in 0..count {
        let kind = SendKind::Datagram { to: &path, qpn, q_key: Q_KEY };
        let local = Some(memory.slice(0, 64).expect("in range"));
        host.post_sends(&[SendRequest { id, kind, local, immediate: None, signaled: true }]).expect("posted");
    }
    settle();
    assert_eq!(all(&client), [], "the sender's card has nothing to report");
}

#[test]
fn an_overrun_on_dpa_memory_is_reported_by_number() {
    with_process(Config::default(), &image(&[RET], &[RET]), |process| {
        let device = process.device();
        let outbox = Outbox::new(process).expect("an outbox");
        let cq = DpaCompletionQueue::new(&outbox, 1, CqTarget::Polled).expect("a completion queue");
        let mut qp = DpaQueuePair::builder(Transport::Ud, flexio::DpaDepths::receive_only(3))
            .user_index(0x77)
            .build(&cq, &cq)
            .expect("a queue pair");
        qp.activate(UdKey { q_key: Q_KEY }).expect("RTS");
        let buffer = DeviceBuffer::zeroed(process, 8 * 256).expect("device memory");
        let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).expect("a key");
        post_receives(&qp, &key, buffer.addr(), 8);
        assert_eq!(all(device), [], "nothing has happened");
        datagrams(device, qp.number(), 4);
        let failure = QueuePairFailure::Fatal;
        assert_eq!(
            all(device),
            [
                AsyncEvent::CompletionQueue { number: cq.number() },
                AsyncEvent::QueuePair { number: qp.number(), failure }
            ]
        );
        assert_eq!(all(device), [], "each is reported once");
    });
}

/// Posts `count` receives of 256 bytes, by writing the ring and its doorbell record.
fn post_receives(qp: &DpaQueuePair, key: &MemoryKey, addr: flexio::DevAddr, count: u16) {
    use flexcast_hw::{DataSegment, QpDoorbellRecord};
    use zerocopy::IntoBytes as _;
    for index in 0..u64::from(count) {
        let segment = DataSegment::new(256, key.id(), addr.get() + 256 * index);
        put(qp.receive_ring().offset(16 * index), segment.as_bytes());
    }
    put(qp.doorbell_record(), QpDoorbellRecord { receive: u32::from(count).into(), send: 0.into() }.as_bytes());
}

#[test]
fn an_overrun_of_a_host_queue_is_reported_by_number() {
    let provider = code::cards(Config::default());
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let cq = CompletionQueue::new(&device, 1).expect("a completion queue");
    let qp = QueuePair::builder(&pd, Transport::Ud, QueueDepths { send: 8, receive: 8 })
        .build(&cq, &cq)
        .expect("a queue pair");
    qp.init(Access::empty(), Q_KEY).expect("INIT");
    qp.activate(0).expect("RTS");
    let memory = HostBuffer::zeroed(64).expect("a buffer");
    let memory = MemoryRegion::register(&pd, memory, Access::empty()).expect("a key");
    let path = AddressHandle::new(&pd, device.port().gid).expect("a path");
    for id in 0..6 {
        let kind = SendKind::Datagram { to: &path, qpn: qp.qpn(), q_key: Q_KEY };
        let local = Some(memory.slice(0, 64).expect("in range"));
        qp.post_sends(&[SendRequest { id, kind, local, immediate: None, signaled: true }]).expect("posted");
    }
    settle();
    let events = all(&device);
    assert!(matches!(events[0], AsyncEvent::CompletionQueue { .. }), "{events:?}");
    let failure = QueuePairFailure::Fatal;
    assert_eq!(events[1..], [AsyncEvent::QueuePair { number: qp.qpn(), failure }]);
    assert!(events[0].to_string().contains("make it deeper"), "{}", events[0]);
}
