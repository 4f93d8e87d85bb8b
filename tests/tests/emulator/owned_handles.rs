//! Objects of the host library: each keeps what it was made from, may be dropped in any order, and works on every
//! thread.

use std::sync::Arc;
use std::thread;

use emu_machine::Config;
use flexcast_tests::code::{self, RET, addi, image, reg};
use flexcast_tests::world::world;
use flexio::{
    Access, Affinity, Application, Bound, CompletionQueue, Connection, CqTarget, DeviceBuffer, DpaCompletionQueue,
    DpaDepths, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion, MulticastGroup, MulticastMembership,
    Outbox, Process, ProtectionDomain, Provider, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
    UdKey, Window,
};

const BOUND: Bound = Bound::millis(1).with_polls(1_000_000);
const REGION_BYTES: usize = 4096;

/// An image whose RPC `ping` returns its argument and one more.
fn successor() -> Vec<u8> {
    image(&[RET], &[addi(reg::A0, reg::A0, 1), RET])
}

/// One object of every kind on a card, in no order.
fn everything(provider: &Provider) -> Vec<Box<dyn Send>> {
    let application = Application::load(provider, "successor", &successor(), None).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let (window, outbox) = (Window::new(&process).expect("a window"), Outbox::new(&process).expect("an outbox"));
    let handler = EventHandler::new(&process, "handler", 0, Affinity::Any).expect("a handler");
    let target = CqTarget::Thread(&handler);
    let device_cq = DpaCompletionQueue::new(&outbox, 4, target).expect("a completion queue of the DPA");
    let mut datagrams = DpaQueuePair::builder(Transport::Ud, DpaDepths::receive_only(4))
        .build(&device_cq, &device_cq)
        .expect("a queue pair of the DPA");
    datagrams.activate(UdKey { q_key: 7 }).expect("RTS");
    let group = MulticastGroup::ipv4("239.1.2.3".parse().expect("an address")).expect("a group");
    let membership = MulticastMembership::attach(&datagrams, group).expect("a member");
    let depths = DpaDepths { log_send: Some(4), log_receive: None };
    let reliable = DpaQueuePair::builder(Transport::Rc, depths)
        .access(Access::REMOTE_WRITE)
        .build(&device_cq, &device_cq)
        .expect("RC");
    let buffer = DeviceBuffer::zeroed(&process, 64).expect("device memory");
    let key = MemoryKey::new(&buffer, Access::LOCAL_WRITE).expect("a key");
    let cq = CompletionQueue::new(&device, 4).expect("a completion queue");
    let depths = QueueDepths { send: 1, receive: 1 };
    let qp = QueuePair::builder(&pd, Transport::Ud, depths).build(&cq, &cq).expect("a queue pair");
    qp.init(Access::LOCAL_WRITE, 7).expect("INIT");
    let host_membership = MulticastMembership::attach_host(&qp, group).expect("a member");
    let memory = HostBuffer::zeroed(REGION_BYTES).expect("memory");
    let region = MemoryRegion::register(&pd, memory, Access::LOCAL_WRITE).expect("a region");
    let (first, second) = region.split_at(64).expect("two parts");
    vec![
        Box::new(application),
        Box::new(device),
        Box::new(pd),
        Box::new(process),
        Box::new(window),
        Box::new(outbox),
        Box::new(handler),
        Box::new(device_cq),
        Box::new(datagrams),
        Box::new(membership),
        Box::new(reliable),
        Box::new(buffer),
        Box::new(key),
        Box::new(cq),
        Box::new(qp),
        Box::new(host_membership),
        Box::new(first),
        Box::new(second),
    ]
}

/// What is left on the first card: processes and queue pairs.
fn left() -> (usize, usize) {
    world(|world| {
        let card = world.card(0).expect("a card");
        (card.processes.len(), card.nic.queue_pairs(0).count())
    })
}

/// The emulated libraries refuse to destroy what is in use, so that a wrong order leaves something behind.
#[test]
fn objects_may_be_dropped_in_any_order() {
    let provider = code::cards(Config::default());
    let before = left();
    let count = everything(&provider).len();
    assert_eq!(left(), before, "dropped from the first to the last");
    for first in 0..count {
        // Each is the first to go once, and its neighbours go before or after it.
        for backwards in [false, true] {
            let mut objects = everything(&provider);
            assert_ne!(left(), before);
            objects.rotate_left(first);
            if backwards {
                objects.reverse();
            }
            while !objects.is_empty() {
                drop(objects.remove(0));
            }
            assert_eq!(left(), before, "object {first} first, backwards: {backwards}");
        }
    }
}

#[test]
fn an_object_works_when_all_handles_of_what_it_was_made_from_are_gone() {
    let process = {
        let provider = code::cards(Config::default());
        let application = Application::load(&provider, "successor", &successor(), None).expect("a valid image");
        let device = provider.open("mlx5_0").expect("the first card");
        Process::new(&application, &ProtectionDomain::new(&device).expect("a protection domain")).expect("a process")
    };
    assert_eq!(process.call_by_name("ping", 41).expect("the call returns"), 42);
}

/// Two cards with connected queue pairs, and memory of each.
struct Pair {
    ends: [(QueuePair, CompletionQueue, MemoryRegion); 2],
}

fn pair(provider: &Provider) -> Pair {
    let make = |name: &str| {
        let device = provider.open(name).expect("a card");
        let pd = ProtectionDomain::new(&device).expect("a protection domain");
        let cq = CompletionQueue::new(&device, 64).expect("a completion queue");
        let depths = QueueDepths { send: 64, receive: 1 };
        let qp = QueuePair::builder(&pd, Transport::Rc, depths).build(&cq, &cq).expect("a queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        qp.init(access, 0).expect("INIT");
        let memory = HostBuffer::zeroed(REGION_BYTES).expect("memory");
        let region = MemoryRegion::register(&pd, memory, access).expect("a region");
        let own = RemoteQp { qpn: qp.qpn(), gid: device.port().gid, mac: device.info().mac, first_psn: 0 };
        (own, (qp, cq, region))
    };
    let ends = ["mlx5_0", "mlx5_1"].map(make);
    ends[0].1.0.connect(&Connection::to(ends[1].0)).expect("RTS");
    ends[1].1.0.connect(&Connection::to(ends[0].0)).expect("RTS");
    Pair { ends: ends.map(|(_, end)| end) }
}

fn write(pair: &Pair, id: u64, offset: u64) {
    let [(qp, _, from), (_, _, to)] = &pair.ends;
    let kind = SendKind::Write { remote_addr: to.addr().get() + offset, rkey: to.rkey() };
    let local = Some(from.slice(offset, 8).expect("in range"));
    qp.post_send(&SendRequest { id, kind, local, immediate: None, signaled: true }).expect("posted");
}

#[test]
fn a_machine_follows_its_objects_to_another_thread() {
    let provider = code::cards(Config::default());
    let pair = pair(&provider);
    pair.ends[0].2.write(0, b"elsewhere").expect("in range");
    let pair = thread::spawn(move || {
        // This thread has a machine of its own, which must not be the one that is reached.
        let other = code::cards(Config { cards: 1, ..Config::default() });
        assert_eq!(other.devices().expect("a list").len(), 1);
        write(&pair, 5, 0);
        let done = pair.ends[0].1.wait(BOUND, "the write").expect("it arrives");
        assert_eq!(done[0].id, 5);
        assert_eq!(provider.devices().expect("a list").len(), 2);
        assert_eq!(other.devices().expect("a list").len(), 1, "the thread has its own machine again");
        pair
    })
    .join()
    .expect("no panic");
    let mut read = [0; 8];
    pair.ends[1].2.read(0, &mut read).expect("in range");
    assert_eq!(&read, b"elsewher");
}

/// Of objects that may be shared two threads use one at a time.
#[test]
fn two_threads_post_to_one_queue_pair_and_poll_one_completion_queue() {
    const WRITES: u64 = 24;
    let provider = code::cards(Config::default());
    let Pair { ends: [(qp, cq, from), (_far_qp, _far_cq, to)] } = pair(&provider);
    let (remote, rkey) = (to.addr().get(), to.rkey());
    let local = from.slice(0, 8).expect("in range");
    let (qp, cq) = (Arc::new(qp), Arc::new(cq));
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (qp, cq, provider) = (Arc::clone(&qp), Arc::clone(&cq), provider.clone());
            thread::spawn(move || {
                let mut seen = Vec::new();
                for number in 0..WRITES {
                    let id = thread * WRITES + number;
                    let kind = SendKind::Write { remote_addr: remote, rkey };
                    let request = SendRequest { id, kind, local: Some(local), immediate: None, signaled: true };
                    qp.post_send(&request).expect("posted");
                    provider.relax().relax();
                    seen.extend(cq.poll().expect("the queue is whole"));
                }
                seen
            })
        })
        .collect();
    let mut seen: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
    while seen.len() < 2 * WRITES as usize {
        seen.extend(cq.wait(BOUND, "the rest").expect("they arrive"));
    }
    assert!(seen.iter().all(|completion| completion.status == 0));
    let mut ids: Vec<u64> = seen.iter().map(|completion| completion.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..2 * WRITES).collect::<Vec<_>>(), "each completion has reached one of the threads");
}

#[test]
fn threads_call_one_process_one_after_another() {
    let provider = code::cards(Config::default());
    let application = Application::load(&provider, "successor", &successor(), None).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let threads = [10, 20].map(|start| {
        let process = process.clone();
        thread::spawn(move || {
            for argument in start..start + 5 {
                assert_eq!(process.call_by_name("ping", argument).expect("the call returns"), argument + 1);
                let buffer = DeviceBuffer::from_bytes(&process, &argument.to_le_bytes()).expect("device memory");
                assert_eq!(buffer.len(), 8);
            }
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn a_buffer_comes_back_when_no_view_of_it_is_left() {
    let provider = code::cards(Config::default());
    let pd = ProtectionDomain::new(&provider.open("mlx5_0").expect("a card")).expect("a protection domain");
    let region = |bytes: &[u8]| {
        let buffer = HostBuffer::from_bytes(bytes).expect("memory");
        MemoryRegion::register(&pd, buffer, Access::LOCAL_WRITE).expect("a region")
    };
    let whole = region(b"bytes");
    whole.write(1, b"i").expect("in range");
    assert_eq!(whole.into_buffer().expect("its own").as_slice(), b"bites");
    let (first, second) = region(b"two parts").split_at(3).expect("two parts");
    assert_eq!((first.len(), second.len(), first.lkey()), (3, 6, second.lkey()));
    assert!(first.into_buffer().is_none(), "the second part is left");
    let mut rest = [0; 6];
    second.read(0, &mut rest).expect("in range");
    assert_eq!(&rest, b" parts");
    for at in [0, 9, 10] {
        let error = region(b"two parts").split_at(at).expect_err("an empty part").to_string();
        assert!(error.contains(&at.to_string()), "{error}");
    }
}

#[test]
fn renewed_memory_is_out_of_reach_for_whoever_has_the_old_key() {
    /// `IBV_WC_REM_ACCESS_ERR`.
    const REMOTE_ACCESS: u32 = 10;
    let provider = code::cards(Config::default());
    let mut pair = pair(&provider);
    let old = pair.ends[1].2.rkey();
    pair.ends[0].2.write(0, b"first...").expect("in range");
    write(&pair, 1, 0);
    pair.ends[0].1.wait(BOUND, "the write").expect("it arrives");
    pair.ends[1].2.renew().expect("new keys");
    assert_ne!(pair.ends[1].2.rkey(), old);
    let mut read = [0; 8];
    pair.ends[1].2.read(0, &mut read).expect("in range");
    assert_eq!(&read, b"first...", "the bytes stay");
    write(&pair, 2, 0);
    pair.ends[0].1.wait(BOUND, "the write").expect("the new key is good");
    let [(qp, cq, from), (_, _, to)] = &pair.ends;
    let kind = SendKind::Write { remote_addr: to.addr().get(), rkey: old };
    let local = Some(from.slice(0, 8).expect("in range"));
    qp.post_send(&SendRequest { id: 3, kind, local, immediate: None, signaled: true }).expect("posted");
    let error = cq.wait(BOUND, "the write").expect_err("the old key is gone");
    assert!(matches!(error, flexio::Error::Completion { status: REMOTE_ACCESS, .. }), "{error}");
    // Keys of parts are those of others, too.
    let [_, (_, _, region)] = pair.ends;
    let (mut first, _second) = region.split_at(64).expect("two parts");
    let error = first.renew().expect_err("a part").to_string();
    assert!(error.contains("registering the whole anew"), "{error}");
}
