//! A case, carried out on an emulated card.

use std::net::Ipv4Addr;

use emu_machine::{Config, MemoryModel, World};
use flexcast_abi::memory::QueueKind;
use flexcast_abi::receive_thread::PREPARE_RECEIVE;
use flexcast_abi::rpc::{ACTIVATE, BRING_UP};
use flexcast_abi::send::PREPARE_SEND;
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, Activation, BitmapMemory, CompletionFlag, CompletionQueueMemory, ContextMemory,
    DeviceAddress, FLAG_MAGIC, GroupContext, HostLine, OPERATION_CLOSED, Operation, Placement, Queue, ReceiveContext,
    ReceiveReport, ReceiveThread, SendContext, SendOperation, SendReport, SendRun, SendStatus, SendThread, Shared,
    Staging, TableMemory, Transport,
};
use flexcast_tests::code;
use flexcast_tests::world::{get_into, settle, step_until, world};
use flexio::{
    AbiExpectation, Access, Affinity, Application, CompletionQueue, Connection, CqTarget, DevAddr, DeviceBuffer,
    DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler, HostBuffer, InlineRequest, MemoryKey, MemoryRegion,
    MulticastGroup, MulticastMembership, Outbox, Process, ProtectionDomain, QueueDepths, QueuePair, RemoteQp, SendKind,
    UdAddress, UdKey, Window,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::case::{BATCH, CHUNK, COLLECTIVE, Case, LOG_RING, Outcome, PSN_BITS, Q_KEY, STRIDE, elf};

/// A structure in the memory of the only process.
fn peek<T: zerocopy::FromBytes>(at: DevAddr) -> T {
    let mut bytes = vec![0; size_of::<T>()];
    get_into(at, &mut bytes);
    T::read_from_bytes(&bytes).expect("its size")
}

fn address(addr: DevAddr) -> DeviceAddress {
    DeviceAddress::new(addr.get())
}

fn of_cq(cq: &DpaCompletionQueue) -> CompletionQueueMemory {
    Queue::new(address(cq.ring()), address(cq.doorbell_record()), cq.number(), u32::from(cq.log_depth()))
}

fn of_qp<K: QueueKind>(qp: &DpaQueuePair, ring: DevAddr, log_depth: Option<u8>) -> Queue<K> {
    let log_depth = u32::from(log_depth.expect("a queue"));
    Queue::new(address(ring), address(qp.doorbell_record()), qp.number(), log_depth)
}

/// The host's end of a control connection.
struct Control {
    host: QueuePair,
    contexts: DevAddr,
    key: u32,
}

impl Control {
    /// Writes lines, of 64 bytes each, and wakes the thread.
    fn send(&self, lines: &[(u64, &[u8])]) {
        let kind = |offset: u64| SendKind::Write { remote_addr: self.contexts.get() + offset, rkey: self.key };
        let quiet = |offset, bytes| InlineRequest { id: 0, kind: kind(offset), bytes, immediate: None, signaled: true };
        let mut requests: Vec<InlineRequest<'_>> = lines.iter().map(|(offset, bytes)| quiet(*offset, *bytes)).collect();
        requests.push(InlineRequest { immediate: Some(0), ..quiet(lines[0].0, &[]) });
        self.host.post_inline(requests).expect("posted");
    }
}

// Offsets in the device memory of all contexts.
const SEND_THREAD: u64 = 256;
const SEND_CONTEXT: u64 = 1024;
/// Operation and run of the send worker; operation and placement of the receive context.
const SEND_LINES: u64 = 1536;
const CONTEXT_LINES: u64 = 1792;
/// The same of receive contexts that nobody writes operations for.
const IDLE_LINES: u64 = 1920;
const CONTEXTS: u64 = 2048;
const CONTEXT_BYTES: u64 = size_of::<ReceiveContext>() as u64;

/// Makes the card, the receive contexts and the senders, carries the case out, and checks every byte.
pub(crate) fn run(case: &Case) -> Outcome {
    let config = Config { memory: case.memory, detect_races: true, cards: 1, ..Config::default() };
    let provider = code::cards(config);
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(&provider, "allgather", &elf(), Some(abi)).expect("valid");
    let device = provider.open("mlx5_0").expect("the card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    assert_eq!(process.call(&BRING_UP, 5).expect("it answers"), flexcast_abi::bring_up_answer(5));
    let outbox = Outbox::new(&process).expect("an outbox");
    let window = Window::new(&process).expect("a window");

    let total = case.offset(case.bytes.len());
    let payload: Vec<u8> = (0..total).map(|at| (at * 31 + at / 251 + 1) as u8).collect();
    let local = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let host =
        |len: usize| MemoryRegion::register(&pd, HostBuffer::zeroed(len).expect("memory"), local).expect("a key");
    let (source, user, shared) = (host(total as usize + 64), host(total as usize + 64), host(1 << 16));
    source.write(0, &payload).expect("in range");

    let contexts = DeviceBuffer::zeroed(&process, CONTEXTS + CONTEXT_BYTES * 64).expect("device memory");
    let contexts_key = MemoryKey::new(&contexts, local).expect("a key");
    let receive_thread = EventHandler::new(
        &process,
        if case.transport == Transport::Ud { "ud_receive" } else { "uc_receive" },
        contexts.addr().get(),
        Affinity::Unit(1),
    )
    .expect("a handler");
    let send_thread =
        EventHandler::new(&process, "send_blocks", contexts.addr().get() + SEND_THREAD, Affinity::Unit(2))
            .expect("one");
    let cq = |log, handler| DpaCompletionQueue::new(&outbox, log, CqTarget::Thread(handler)).expect("a queue");
    let receives = cq(LOG_RING, &receive_thread);
    let copies = cq(LOG_RING, &receive_thread);
    let sends = cq(LOG_RING, &send_thread);
    let controls = [cq(4, &receive_thread), cq(4, &send_thread)];
    let unused = DpaCompletionQueue::new(&outbox, 1, CqTarget::Polled).expect("a queue");

    // Data.
    let send_depths = |log| DpaDepths { log_send: Some(log), log_receive: None };
    let group = MulticastGroup::ipv4(Ipv4Addr::new(239, 1, 2, 3)).expect("a group");
    let (mut receiver, sender) = match case.transport {
        Transport::Ud => {
            let mut sender = DpaQueuePair::builder(flexio::Transport::Ud, send_depths(11))
                .build(&sends, &unused)
                .expect("a queue pair");
            sender.activate(UdKey { q_key: Q_KEY }).expect("RTS");
            (
                DpaQueuePair::builder(flexio::Transport::Ud, DpaDepths::receive_only(LOG_RING))
                    .build(&receives, &receives)
                    .expect("a queue pair"),
                sender,
            )
        }
        Transport::Uc => {
            let mut sender = DpaQueuePair::builder(flexio::Transport::Uc, send_depths(10))
                .build(&sends, &unused)
                .expect("a queue pair");
            let mut receiver = DpaQueuePair::builder(flexio::Transport::Uc, DpaDepths::receive_only(LOG_RING))
                .build(&receives, &receives)
                .expect("one");
            receiver.connect(&Connection::to(sender.endpoint(0))).expect("RTS");
            sender.connect(&Connection::to(receiver.endpoint(0))).expect("RTS");
            (receiver, sender)
        }
    };
    if case.transport == Transport::Ud {
        receiver.activate(UdKey { q_key: Q_KEY }).expect("RTS");
    }
    let _member =
        (case.transport == Transport::Ud).then(|| MulticastMembership::attach(&receiver, group).expect("joined"));
    let mut copier = DpaQueuePair::builder(flexio::Transport::Rc, send_depths(LOG_RING))
        .access(Access::REMOTE_WRITE)
        .build(&copies, &copies)
        .expect("one");
    let own = copier.endpoint(0);
    copier.connect(&Connection::to(own)).expect("RTS");
    let staging = DeviceBuffer::zeroed(&process, STRIDE << LOG_RING).expect("device memory");
    let staging_key = MemoryKey::new(&staging, Access::LOCAL_WRITE).expect("a key");

    // Control.
    let done = CompletionQueue::new(&device, 1024).expect("a queue");
    let mut ends = Vec::new();
    let mut control_ends = Vec::new();
    for control in &controls {
        let depths = DpaDepths { log_send: None, log_receive: Some(4) };
        let mut end = DpaQueuePair::builder(flexio::Transport::Rc, depths)
            .access(local)
            .build(&unused, control)
            .expect("a queue pair");
        let depths = QueueDepths { send: 64, receive: 1 };
        let host = QueuePair::builder(&pd, flexio::Transport::Rc, depths)
            .inline(128)
            .build(&done, &done)
            .expect("a queue pair");
        host.init(Access::empty(), 0).expect("INIT");
        let peer = RemoteQp { qpn: host.qpn(), gid: device.port().gid, mac: device.info().mac, first_psn: 0 };
        end.connect(&Connection::to(peer)).expect("RTS");
        host.connect(&Connection::to(end.endpoint(0))).expect("RTS");
        ends.push(end);
        control_ends.push(Control { host, contexts: contexts.addr(), key: contexts_key.id() });
    }

    // Contexts.
    let bitmap_words = case.chunks().div_ceil(64).max(1);
    let words = DeviceBuffer::zeroed(&process, u64::from(bitmap_words + 1) * 8).expect("device memory");
    let group_context = DeviceBuffer::from_bytes(&process, GroupContext::default().as_bytes()).expect("device memory");
    let rows = case.rows(user.addr().get());
    let table = DeviceBuffer::from_bytes(&process, rows.as_bytes()).expect("device memory");
    let report_at = size_of::<CompletionFlag>();
    let send_report_at = report_at + size_of::<ReceiveReport>();
    let words_at = send_report_at + size_of::<SendReport>();
    let idle_at = words_at + 4096;
    let at = |offset: usize| shared.addr().get() + offset as u64;
    let context = ReceiveContext {
        abi_hash: ABI_HASH,
        abi_version: ABI_VERSION,
        workers: 1,
        transport: case.transport as u32,
        batch: case.batch,
        budget: if case.hurry.is_some() { BATCH } else { 1 << 20 },
        psn_bits: PSN_BITS,
        receive_cq: of_cq(&receives),
        receive_queue: of_qp(&receiver, receiver.receive_ring(), Some(LOG_RING)),
        send_cq: of_cq(&copies),
        send_queue: of_qp(&copier, copier.send_ring(), Some(LOG_RING)),
        staging: Staging { address: staging.addr().get(), stride: STRIDE as u32, lkey: staging_key.id() },
        bitmap: BitmapMemory::new(address(words.addr()), bitmap_words),
        tails: BitmapMemory::new(address(words.addr().offset(u64::from(bitmap_words) * 8)), 1),
        rows: TableMemory::new(address(table.addr()), rows.len() as u32),
        group: Shared::new(address(group_context.addr())),
        operation: HostLine::new(address(contexts.addr().offset(CONTEXT_LINES))),
        placement: HostLine::new(address(contexts.addr().offset(CONTEXT_LINES + 64))),
        flag_host: at(0),
        report_host: at(report_at),
        bitmap_host: at(words_at),
        ..Default::default()
    };
    contexts.write(CONTEXTS, context.as_bytes()).expect("in range");
    // Idle receive contexts have queues of their own; nobody sends to them.
    let mut idle = Vec::new();
    for number in 0..case.idle_contexts {
        let idle_cq = cq(2, &receive_thread);
        let ring = DeviceBuffer::zeroed(&process, 256).expect("device memory");
        let context = ReceiveContext {
            batch: 2,
            receive_cq: of_cq(&idle_cq),
            receive_queue: Queue::new(address(ring.addr()), address(ring.addr().offset(64)), 0, 2),
            send_queue: of_qp(&copier, copier.send_ring(), Some(2)),
            bitmap: BitmapMemory::new(address(ring.addr().offset(128)), 1),
            tails: BitmapMemory::new(address(ring.addr().offset(136)), 1),
            operation: HostLine::new(address(contexts.addr().offset(IDLE_LINES))),
            placement: HostLine::new(address(contexts.addr().offset(IDLE_LINES + 64))),
            report_host: at(idle_at + number as usize * 256),
            bitmap_host: 0,
            ..context
        };
        contexts.write(CONTEXTS + CONTEXT_BYTES * (1 + u64::from(number)), context.as_bytes()).expect("in range");
        idle.push((idle_cq, ring));
    }
    let thread = ReceiveThread {
        abi_hash: ABI_HASH,
        abi_version: ABI_VERSION,
        transport: case.transport as u32,
        budget: 4096,
        outbox_id: outbox.id(),
        window_id: window.id(),
        window_mkey: shared.lkey(),
        contexts: ContextMemory::new(address(contexts.addr().offset(CONTEXTS)), 1 + case.idle_contexts),
        control_cq: of_cq(&controls[0]),
        control_queue: of_qp(&ends[0], ends[0].receive_ring(), Some(4)),
        ..Default::default()
    };
    contexts.write(0, thread.as_bytes()).expect("in range");
    let vector = UdAddress::group(&device, group, Q_KEY).to_bytes();
    let send_context = SendContext {
        send_queue: of_qp(&sender, sender.send_ring(), sender.depths().log_send),
        send_cq: of_cq(&sends),
        run: HostLine::new(address(contexts.addr().offset(SEND_LINES + 64))),
        address_vector: std::array::from_fn(|word| {
            u64::from_le_bytes(vector[word * 8..][..8].try_into().expect("eight"))
        }),
        ..Default::default()
    };
    contexts.write(SEND_CONTEXT, send_context.as_bytes()).expect("in range");
    let send = SendThread {
        abi_hash: ABI_HASH,
        abi_version: ABI_VERSION,
        transport: case.transport as u32,
        batch: BATCH,
        budget: 4096,
        psn_bits: PSN_BITS,
        outbox_id: outbox.id(),
        window_id: window.id(),
        window_mkey: shared.lkey(),
        contexts: ContextMemory::new(address(contexts.addr().offset(SEND_CONTEXT)), 1),
        operation: HostLine::new(address(contexts.addr().offset(SEND_LINES))),
        report_host: at(send_report_at),
        control_cq: of_cq(&controls[1]),
        control_queue: of_qp(&ends[1], ends[1].receive_ring(), Some(4)),
        ..Default::default()
    };
    contexts.write(SEND_THREAD, send.as_bytes()).expect("in range");
    // No time passes between the call that prepares and the thread's first run.
    let start = |handler: &EventHandler, offset: u64| {
        handler.run(contexts.addr().get() + offset).expect("it runs");
        assert_eq!(process.call(&ACTIVATE, handler.id()).expect("it answers"), Activation::Woken);
    };
    assert_eq!(process.call(&PREPARE_RECEIVE, contexts.context_at(0).expect("in range")).expect("it answers"), Ok(()));
    if !case.saturated {
        start(&receive_thread, 0);
    }
    let context = contexts.context_at(SEND_THREAD).expect("in range");
    assert_eq!(process.call(&PREPARE_SEND, context).expect("it answers"), Ok(()));
    start(&send_thread, SEND_THREAD);
    settle();

    // The operation.
    let own = case.own.map_or((0, 0), |own| (case.first_psn(own), case.chunks_of(own)));
    let mut placement =
        Placement { roots: rows.len() as u32, own_first: own.0, own_chunks: own.1, ..Default::default() };
    if !case.by_rows {
        placement.run_chunks = case.chunks_of(0);
        placement.run_gap = (case.bytes[0] + case.pad).wrapping_sub(u64::from(placement.run_chunks * CHUNK));
    }
    let mut operation = Operation {
        sequence: 1,
        destination: user.addr().get(),
        rkey: user.rkey(),
        collective_id: COLLECTIVE,
        chunks: case.chunks(),
        chunk_bytes: CHUNK,
        last_chunk_bytes: case.last_of(0),
        sequence_check: 1,
        ..Default::default()
    };
    let line = CONTEXT_LINES;
    control_ends[0].send(&[(line + 64, placement.as_bytes()), (line, operation.as_bytes())]);
    settle();
    let read = |offset: usize, bytes: &mut [u8]| shared.read(offset, bytes).expect("in range");
    let report = || {
        let mut bytes = [0; size_of::<ReceiveReport>()];
        read(report_at, &mut bytes);
        ReceiveReport::read_from_bytes(&bytes).expect("a report")
    };
    let send_report = || {
        let mut bytes = [0; size_of::<SendReport>()];
        read(send_report_at, &mut bytes);
        SendReport::read_from_bytes(&bytes).expect("a report")
    };
    if !case.saturated {
        assert_eq!(report().progress.sequence, 1, "armed by way of the control queue");
    }

    // The roots, one after the other.
    let mut sequence = 0;
    'roots: for root in (0..case.bytes.len()).filter(|root| !case.silent.contains(root) && case.own != Some(*root)) {
        for (first, chunks, last_chunk_bytes) in case.parts(root) {
            sequence += 1;
            let at = case.offset(root) + u64::from(first * CHUNK);
            let run = SendRun {
                source: source.addr().get() + at,
                remote_address: user.addr().get() + at,
                first_psn: case.first_psn(root) + first,
                chunks,
                last_chunk_bytes,
                rkey: user.rkey(),
                ..Default::default()
            };
            let operation = SendOperation {
                sequence,
                chunk_bytes: CHUNK,
                collective_id: COLLECTIVE,
                lkey: source.lkey(),
                sequence_check: sequence,
                ..Default::default()
            };
            let (line, run_line) = (SEND_LINES, SEND_LINES + 64);
            control_ends[1].send(&[(run_line, run.as_bytes()), (line, operation.as_bytes())]);
            if case.hurry.is_some() && root + 1 == case.bytes.len() {
                break 'roots;
            }
            step_until("the part is sent", || send_report().finished == sequence);
            let _ = done.poll().expect("a live queue");
        }
        if case.memory == MemoryModel::Strong {
            let state = peek::<SendContext>(contexts.addr().offset(SEND_CONTEXT)).state;
            assert_eq!(state.completed, state.produced, "sends are under way");
        }
        // The source is the caller's again: nothing may read it any more.
        source.write(case.offset(root) as usize, &vec![0xEE; case.bytes[root] as usize]).expect("in range");
        settle();
        let sent = send_report();
        assert_eq!((sent.announced, sent.finished), (sequence, sequence), "{sent:?}");
        assert_eq!(SendStatus::from_raw(sent.status), Ok(SendStatus::Finished), "{sent:?}");
    }
    if case.saturated {
        start(&receive_thread, 0);
        settle();
    }
    let flag = shared.read_u64(0).expect("in range");

    // The cutoff, whether or not anything is missing.
    operation.flags = OPERATION_CLOSED;
    operation.report_request = 1;
    if let Some(chunks) = case.hurry {
        let credit = (1 << LOG_RING) + u64::from(case.first_psn(case.bytes.len() - 1)) + chunks;
        step_until("chunks of the last root", || report().progress.receives_posted >= credit);
    }
    control_ends[0].send(&[(line, operation.as_bytes())]);
    step_until("the cutoff is answered", || report().progress.reported == 1);
    assert_eq!(report().progress.outstanding, 0, "copies are under way");

    let mut words = vec![0u64; bitmap_words as usize + 1];
    read(words_at, words.as_mut_bytes());
    let mut expected = vec![0; total as usize];
    for root in (0..case.bytes.len()).filter(|root| !case.silent.contains(root) && case.own != Some(*root)) {
        let first = case.offset(root) as usize;
        let part = first..first + case.bytes[root] as usize;
        expected[part.clone()].copy_from_slice(&payload[part]);
    }
    let mut got = vec![0; total as usize];
    user.read(0, &mut got).expect("in range");
    settle();
    let mut settled_words = vec![0u64; words.len()];
    read(words_at, settled_words.as_mut_bytes());
    assert_eq!(words, settled_words, "{:?}: the answer came before the bitmap was whole", case.memory);
    if case.transport == Transport::Ud {
        let mut later = vec![0; total as usize];
        user.read(0, &mut later).expect("in range");
        assert!(got == later, "written after the answer");
    }
    if case.hurry.is_some() {
        // Of the root that still sent only those chunks are there whose bits say so.
        let (last, words) = (case.bytes.len() - 1, &words);
        for chunk in 0..case.chunks_of(last) {
            let psn = case.first_psn(last) + chunk;
            let at = (case.offset(last) + u64::from(chunk * CHUNK)) as usize;
            let bits =
                if case.transport == Transport::Ud { got[at..][..CHUNK as usize] != [0; CHUNK as usize] } else { true };
            let there = words[psn as usize / 64] >> (psn % 64) & 1 == 1;
            assert!(bits || !there, "chunk {chunk} is reported to be there");
            if !there {
                expected[at..][..CHUNK as usize].copy_from_slice(&got[at..][..CHUNK as usize]);
                assert!(case.transport == Transport::Uc || !bits, "chunk {chunk} is reported to be missing");
            }
        }
    }
    let thread_state = || peek::<ReceiveThread>(contexts.addr()).state;
    let before = thread_state();
    assert_eq!(process.call(&ACTIVATE, receive_thread.id()).expect("it answers"), Activation::Woken);
    settle();
    let after = thread_state();
    assert_eq!(after.activations, before.activations + 1);
    assert_eq!(world(World::take_races), [], "{:?}", case.memory);
    process.check().expect("the process lives");
    Outcome {
        report: report(),
        send: send_report(),
        complete: flag == FLAG_MAGIC + 1,
        in_vain: after.instructions - before.instructions,
        right_bytes: got == expected,
        words,
    }
}
