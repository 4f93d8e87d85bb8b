//! The images on weak memory, under the race detector: every seed must deliver every byte, tell so only when it is true, and
//! leave memory alone that belongs to the card.
//!
//! `cargo xtask mutants` runs these tests (those named `image_…`) on images with one fence less, found through the variable
//! `FLEXCAST_IMAGES`: for each of them one must fail.

use emu_machine::{Config, MemoryModel, with_world};
use emu_provider::{emulated, lossy};
use flexcast_abi::memory::QueueKind;
use flexcast_abi::{ABI_HASH, DeviceAddress, PingPongContext, Queue, WorkerStatus};
use flexcast_lab::tput::TputError;
use flexcast_lab::tput::client::{self, Client, immediate};
use flexcast_lab::tput::plan::{Params, Plan, Transport};
use flexcast_lab::tput::run::{Cards, made_up_bytes};
use flexcast_lab::tput::server::{self, Q_KEY, Server};
use flexcast_tests::{chain, image_bytes as image};
use flexio::{
    Access, AddressHandle, Affinity, Application, Bound, CompletionQueue, CqTarget, DevAddr, DeviceBuffer,
    DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion, Outbox, Process,
    ProtectionDomain, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest,
};
use zerocopy::IntoBytes as _;

/// Seeds per case; `FLEXCAST_WEAK_SEEDS` asks for another number.
const SEEDS: u64 = 6;
const CHUNK_BYTES: u64 = 1024;
/// Syndrome of a requester's completion: flushed (rdma-core, `MLX5_CQE_SYNDROME_WR_FLUSH_ERR`). A loopback queue pair that, as
/// responder, refuses its own write is in the error state before, as requester, it learns why.
const FLUSHED: u32 = 0x05;
/// Chunks enough to go round the ring several times; the last one is short.
const BYTES: u64 = 300 * CHUNK_BYTES + 640;
const RING: u32 = 64;
/// Operations per run: the second one finds what the first has left.
const OPERATIONS: u32 = 2;
/// Nothing takes so long that works.
const STALLED_PS: u64 = 2_000_000_000;

fn seeds() -> u64 {
    std::env::var("FLEXCAST_WEAK_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number of seeds"))
}

/// One operation: sent, received, told complete, and compared at the very moment of being told. Gives how long it took.
fn operation(
    server: &mut Server<'_>,
    client: &mut Client<'_>,
    plan: &Plan,
    source: &[u8],
    id: u32,
) -> Result<u64, String> {
    let told = |error: TputError| chain(&error);
    server.arm(id).map_err(told)?;
    client.restart();
    let clock = server.provider().relax();
    let start_ps = clock.now_ps();
    let endpoints = server.endpoints();
    loop {
        client.reap().map_err(told)?;
        for (worker, endpoint) in endpoints.iter().enumerate() {
            let credit = server.progress(worker).map_err(told)?.receives_posted;
            client.post_batch(worker, endpoint, id, credit).map_err(told)?;
        }
        if server.completed().map_err(told)? {
            break;
        }
        if clock.now_ps() - start_ps > STALLED_PS {
            server.check().map_err(told)?;
            let posted = client.chunks_posted();
            let counted: Vec<_> = server.report().map_err(told)?.iter().map(|(statistics, _)| *statistics).collect();
            return Err(format!("operation {id}: stalled with {posted} of {} chunks sent: {counted:?}", plan.chunks));
        }
        clock.relax();
    }
    let span_ps = clock.now_ps() - start_ps;
    for worker in 0..endpoints.len() {
        let remaining = server.progress(worker).map_err(told)?.remaining;
        if remaining != 0 {
            return Err(format!(
                "operation {id}: complete was told while worker {worker} says {remaining} are missing"
            ));
        }
    }
    let mut received = vec![0; source.len()];
    server.read_user(0, &mut received).map_err(told)?;
    if let Some(at) = received.iter().zip(source).position(|(a, b)| a != b) {
        return Err(format!("operation {id}: complete was told with byte {at} not there"));
    }
    let reports = server.report().map_err(told)?;
    let runs = u64::from(id) + 1;
    for ((statistics, bitmap), share) in reports.iter().zip(&plan.shares) {
        let bits: u32 = bitmap.iter().map(|word| word.count_ones()).sum();
        if u64::from(bits) != share.chunks || statistics.accepted != runs * share.chunks {
            let (seen, chunks) = (statistics.accepted, runs * share.chunks);
            return Err(format!("operation {id}: report of {seen} chunks accepted, {bits} bits; {chunks} were sent"));
        }
    }
    Ok(span_ps)
}

/// Runs operations on a new machine; gives the longest span.
fn run(name: &str, memory: MemoryModel, params: Params, bytes: u64, operations: u32) -> Result<u64, String> {
    let plan = Plan::new(params, bytes).expect("a plan");
    let config = Config { memory, detect_races: true, ..lossy(0, 1) };
    let provider = emulated(config).expect("a valid configuration");
    let cards = Cards::open(&provider, None, None).expect("both cards");
    let source = made_up_bytes(bytes, 1).expect("memory");
    let elf = image(name);
    let mut outcome = Ok(0);
    server::serve(&cards.server, name, &elf, &plan, |server| {
        client::connect(&cards.client, &plan, &source, |client| {
            server.connect(&client.endpoints(&cards.client))?;
            client.connect(&server.endpoints())?;
            for id in 0..operations {
                let span_ps = operation(server, client, &plan, &source, id);
                outcome = outcome.clone().and_then(|longest| Ok(span_ps?.max(longest)));
                if outcome.is_err() {
                    break;
                }
            }
            Ok(())
        })
    })
    .map_err(|error| chain(&error))?;
    no_races().and(outcome)
}

fn no_races() -> Result<(), String> {
    let races = with_world(|world| world.take_races()).expect("this thread's machine");
    races.first().map_or(Ok(()), |race| Err(format!("{} races, the first: {race}", races.len())))
}

/// Every seed of every shape of run.
fn image_on_weak_memory(name: &str, transport: Transport) {
    for (threads, batch) in [(1, 1), (1, 32), (4, 1), (4, 32)] {
        let params = Params { transport, threads, batch, ring: RING, chunk_bytes: CHUNK_BYTES, ..Params::default() };
        let case = |seed: &str| format!("{name} {}, {threads} threads, batch {batch}, {seed}", transport.name());
        let run = |memory| run(name, memory, params, BYTES, OPERATIONS);
        let strong_ps = run(MemoryModel::Strong).unwrap_or_else(|error| panic!("{}: {error}", case("strong memory")));
        for seed in 1..=seeds() {
            let case = case(&format!("seed {seed}"));
            let weak_ps = run(MemoryModel::weak(seed)).unwrap_or_else(|error| panic!("{case}: {error}"));
            // Fences cost the same; what is seen late costs a little.
            assert!(weak_ps < 2 * strong_ps, "{case}: {weak_ps} ps instead of {strong_ps}");
        }
    }
}

#[test]
fn image_receive_uc() {
    image_on_weak_memory("receive", Transport::Uc);
}

#[test]
fn image_receive_ud() {
    image_on_weak_memory("receive", Transport::Ud);
}

#[test]
fn image_reference_uc() {
    image_on_weak_memory("reference", Transport::Uc);
}

#[test]
fn image_reference_ud() {
    image_on_weak_memory("reference", Transport::Ud);
}

/// Long chunks, of which many are on their way to the user buffer when the last one has come.
#[test]
fn image_receive_ud_waits_for_its_copies() {
    let params = Params { transport: Transport::Ud, batch: 32, ring: RING, chunk_bytes: 4096, ..Params::default() };
    for seed in 0..=seeds() {
        let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
        run("receive", memory, params, 63 * 4096, OPERATIONS)
            .unwrap_or_else(|error| panic!("receive ud, 63 long chunks, seed {seed}: {error}"));
    }
}

/// Workers that finish at the same moment: none may be behind the flag that the last of them writes.
#[test]
fn image_receive_tells_everything_before_the_flag() {
    for transport in [Transport::Uc, Transport::Ud] {
        let params =
            Params { transport, threads: 8, batch: 1, ring: 16, chunk_bytes: CHUNK_BYTES, ..Params::default() };
        for seed in 1..=8 * seeds() {
            run("receive", MemoryModel::weak(seed), params, 8 * CHUNK_BYTES, 6)
                .unwrap_or_else(|error| panic!("receive {}, one chunk each, seed {seed}: {error}", transport.name()));
        }
    }
}

/// Every second chunk comes once with half its length, before it comes whole: the ring then holds entries of chunks that were
/// right, and what is left of them must not be taken for those that are not.
fn odd_lengths(transport: Transport, batch: u32, memory: MemoryModel) -> Result<(), String> {
    let params = Params { transport, batch, ring: RING, chunk_bytes: CHUNK_BYTES, ..Params::default() };
    let plan = Plan::new(params, BYTES).expect("a plan");
    let provider = emulated(Config { memory, detect_races: true, ..lossy(0, 1) }).expect("a valid configuration");
    let cards = Cards::open(&provider, None, None).expect("both cards");
    let source = made_up_bytes(BYTES, 2).expect("memory");
    let mut outcome = Ok(());
    server::serve(&cards.server, "receive", &image("receive"), &plan, |server| {
        let pd = ProtectionDomain::new(&cards.client)?;
        let region = MemoryRegion::register(&pd, HostBuffer::from_bytes(&source)?, Access::empty())?;
        let completions = CompletionQueue::new(&cards.client, 2 * RING)?;
        let kind = if transport == Transport::Uc { flexio::Transport::Uc } else { flexio::Transport::Ud };
        let depths = QueueDepths { send: RING, receive: 1 };
        let qp = QueuePair::new(&pd, kind, &completions, &completions, depths)?;
        qp.init(Access::empty(), Q_KEY)?;
        let (gid, mac) = (cards.client.port().gid, cards.client.info().mac);
        server.connect(&[RemoteQp { qpn: qp.qpn(), gid, mac, first_psn: 0 }])?;
        let to = server.endpoints()[0];
        match transport {
            Transport::Uc => qp.connect(&to.qp, 0)?,
            Transport::Ud => qp.activate(0)?,
        }
        let path = AddressHandle::new(&pd, to.qp.gid)?;
        server.arm(0)?;
        let share = &plan.shares[0];
        let mut messages = Vec::new();
        for psn in 0..share.chunks {
            let len = share.chunk_len(psn, CHUNK_BYTES) as u32;
            messages.extend((psn % 2 == 1).then_some((psn, len / 2)));
            messages.push((psn, len));
        }
        let odd = (messages.len() as u64) - share.chunks;
        let clock = provider.relax();
        let (mut posted, mut sent) = (0, 0);
        while !server.completed()? && clock.now_ps() < 4 * STALLED_PS {
            sent += completions.poll()?.len() as u64;
            let credit = server.progress(0)?.receives_posted.min(sent + u64::from(RING));
            while posted < credit.min(messages.len() as u64) {
                let (psn, len) = messages[posted as usize];
                let offset = psn * CHUNK_BYTES;
                let kind = match transport {
                    Transport::Uc => SendKind::Write { remote_addr: to.remote_addr + offset, rkey: to.rkey },
                    Transport::Ud => SendKind::Datagram { to: &path, qpn: to.qp.qpn, q_key: to.q_key },
                };
                let local = Some(region.slice(offset, len)?);
                let immediate = Some(immediate(0, psn, plan.params.psn_bits));
                qp.post_sends(&[SendRequest { id: posted, kind, local, immediate, signaled: true }])?;
                posted += 1;
            }
            clock.relax();
        }
        let completed = server.completed()?;
        let mut received = vec![0; source.len()];
        server.read_user(0, &mut received)?;
        let statistics = server.report()?[0].0;
        if !completed || received != source || (statistics.wrong_length, statistics.duplicates) != (odd, 0) {
            let equal = received == source;
            outcome = Err(format!("complete: {completed}, equal: {equal}, {odd} chunks were odd: {statistics:?}"));
        }
        Ok(())
    })
    .map_err(|error| chain(&error))?;
    no_races().and(outcome)
}

#[test]
fn image_receive_refuses_odd_lengths() {
    for (transport, batch) in [(Transport::Uc, 1), (Transport::Uc, 32), (Transport::Ud, 1), (Transport::Ud, 32)] {
        for seed in 0..=seeds() {
            let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
            odd_lengths(transport, batch, memory)
                .unwrap_or_else(|error| panic!("receive {}, batch {batch}, seed {seed}: {error}", transport.name()));
        }
    }
}

/// Late chunks keep a worker busy while the host writes the next operation: it may see the new number before the rest.
fn operations_while_awake(transport: Transport, memory: MemoryModel) -> Result<(), String> {
    const CHUNKS: u64 = 8;
    let params = Params { transport, batch: 1, ring: RING, chunk_bytes: CHUNK_BYTES, ..Params::default() };
    let plan = Plan::new(params, CHUNKS * CHUNK_BYTES).expect("a plan");
    let provider = emulated(Config { memory, detect_races: true, ..lossy(0, 1) }).expect("a valid configuration");
    let cards = Cards::open(&provider, None, None).expect("both cards");
    let source = made_up_bytes(CHUNKS * CHUNK_BYTES, 4).expect("memory");
    let mut outcome = Ok(());
    server::serve(&cards.server, "receive", &image("receive"), &plan, |server| {
        client::connect(&cards.client, &plan, &source, |client| {
            server.connect(&client.endpoints(&cards.client))?;
            client.connect(&server.endpoints())?;
            let endpoint = server.endpoints()[0];
            for id in 0..24 {
                outcome = operation(server, client, &plan, &source, id).map(drop);
                if outcome.is_err() {
                    break;
                }
                client.restart();
                while !client.all_posted() {
                    client.reap()?;
                    client.post_batch(0, &endpoint, id, server.progress(0)?.receives_posted)?;
                    server.provider().relax().relax();
                }
                for _ in 0..id {
                    server.provider().relax().relax();
                }
            }
            Ok(())
        })
    })
    .map_err(|error| chain(&error))?;
    no_races().and(outcome)
}

#[test]
fn image_receive_takes_operations_whole() {
    for transport in [Transport::Uc, Transport::Ud] {
        for seed in 0..=4 * seeds() {
            let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
            operations_while_awake(transport, memory)
                .unwrap_or_else(|error| panic!("receive {}, late chunks, seed {seed}: {error}", transport.name()));
        }
    }
}

/// The key of the user buffer goes away before the first chunk comes: no copy is allowed any more, and the worker must say so
/// with the syndrome of that completion, not with what the entry held before.
fn refused_copy(name: &str, chunk_bytes: u64, memory: MemoryModel) -> Result<(), String> {
    let params = Params { transport: Transport::Ud, batch: 1, ring: RING, chunk_bytes, ..Params::default() };
    let plan = Plan::new(params, BYTES).expect("a plan");
    let provider = emulated(Config { memory, ..lossy(0, 1) }).expect("a valid configuration");
    let cards = Cards::open(&provider, None, None).expect("both cards");
    let source = made_up_bytes(BYTES, 3).expect("memory");
    let mut outcome = Err("the worker has not said that a copy failed".to_owned());
    server::serve(&cards.server, name, &image(name), &plan, |server| {
        client::connect(&cards.client, &plan, &source, |client| {
            server.connect(&client.endpoints(&cards.client))?;
            client.connect(&server.endpoints())?;
            server.arm(0)?;
            let endpoint = server.endpoints()[0];
            let revoked = with_world(|world| world.card(0).map(|card| card.nic.destroy_mkey(endpoint.rkey)));
            assert!(matches!(revoked, Ok(Ok(Ok(())))), "the key of the user buffer: {revoked:?}");
            let clock = server.provider().relax();
            while clock.now_ps() < STALLED_PS {
                // More chunks all the while keep the worker looking for completions.
                client.reap()?;
                client.post_batch(0, &endpoint, 0, server.progress(0)?.receives_posted)?;
                match server.check() {
                    // The card tells it, too.
                    Ok(()) | Err(TputError::Card { .. }) => clock.relax(),
                    Err(TputError::Worker { status, detail, .. }) => {
                        let told = (status, detail);
                        let expected = (WorkerStatus::CopyError as u32, FLUSHED);
                        outcome = if told == expected { Ok(()) } else { Err(format!("{told:?} was told")) };
                        break;
                    }
                    Err(other) => return Err(other),
                };
            }
            Ok(())
        })
    })
    .map_err(|error| chain(&error))?;
    outcome
}

#[test]
fn image_tells_why_a_copy_failed() {
    for name in ["receive", "reference"] {
        for seed in 0..=16 * seeds() {
            let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
            // Chunks of many lengths: the completion comes in every phase of the worker's loop.
            refused_copy(name, 64 * (1 + seed % 64), memory)
                .unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
        }
    }
}

const LOG_DEPTH: u8 = 4;
const BUFFER_BYTES: u32 = 4096;
/// Messages under way at once.
const BURST: usize = 12;

/// Bursts of messages to the image `pingpong`; every answer must equal its message.
fn bursts(memory: MemoryModel, count: u64) -> Result<(), TputError> {
    let provider = emulated(Config { memory, detect_races: true, ..lossy(0, 1) }).expect("a valid configuration");
    let cards = Cards::open(&provider, None, None)?;
    let application = Application::load(&provider, "pingpong", &image("pingpong"), None)?;
    let device_pd = ProtectionDomain::new(&cards.server)?;
    let process = Process::new(&application, &device_pd)?;
    let outbox = Outbox::new(&process)?;
    let buffers = DeviceBuffer::zeroed(&process, (1 << LOG_DEPTH) * u64::from(BUFFER_BYTES))?;
    let key = MemoryKey::new(&buffers, Access::LOCAL_WRITE)?;
    let context = DeviceBuffer::zeroed(&process, size_of::<PingPongContext>() as u64)?;
    let handler = EventHandler::new(&process, "pong", context.addr().get(), Affinity::Unit(1))?;
    let receive_cq = DpaCompletionQueue::new(&outbox, LOG_DEPTH, CqTarget::Thread(&handler))?;
    let send_cq = DpaCompletionQueue::new(&outbox, LOG_DEPTH, CqTarget::Thread(&handler))?;
    let depths = DpaDepths { log_send: Some(LOG_DEPTH), log_receive: Some(LOG_DEPTH) };
    let mut device_qp = DpaQueuePair::reliable(&send_cq, &receive_cq, depths, Access::LOCAL_WRITE, 0)?;

    let pd = ProtectionDomain::new(&cards.client)?;
    let bytes = 2 * BURST * BUFFER_BYTES as usize;
    let memory = MemoryRegion::register(&pd, HostBuffer::zeroed(bytes)?, Access::LOCAL_WRITE)?;
    let completions = CompletionQueue::new(&cards.client, 64)?;
    let depths = QueueDepths { send: 16, receive: 16 };
    let host_qp = QueuePair::new(&pd, flexio::Transport::Rc, &completions, &completions, depths)?;
    host_qp.init(Access::LOCAL_WRITE, 0)?;
    let (gid, mac) = (cards.client.port().gid, cards.client.info().mac);
    device_qp.connect(&RemoteQp { qpn: host_qp.qpn(), gid, mac, first_psn: 0 }, 0)?;
    host_qp.connect(&device_qp.endpoint(0), 0)?;
    fn queue<K: QueueKind>(ring: DevAddr, record: DevAddr, number: u32) -> Queue<K> {
        Queue::new(DeviceAddress::new(ring.get()), DeviceAddress::new(record.get()), number, u32::from(LOG_DEPTH))
    }
    let wanted = PingPongContext {
        abi_hash: ABI_HASH,
        outbox_id: outbox.id(),
        lkey: key.id(),
        buffers: buffers.addr().get(),
        buffer_bytes: BUFFER_BYTES,
        receive_cq: queue(receive_cq.ring(), receive_cq.doorbell_record(), receive_cq.number()),
        receive_queue: queue(device_qp.receive_ring(), device_qp.doorbell_record(), device_qp.number()),
        send_cq: queue(send_cq.ring(), send_cq.doorbell_record(), send_cq.number()),
        send_queue: queue(device_qp.send_ring(), device_qp.doorbell_record(), device_qp.number()),
        ..Default::default()
    };
    context.write(0, wanted.as_bytes())?;
    assert_eq!(process.call("prepare", context.addr().get())?, 0, "the context is refused");
    handler.run(context.addr().get())?;
    for burst in 0..count {
        let text =
            |n: usize| made_up_bytes(1 + (331 * n as u64 + 97 * burst) % 4000, 100 * burst + n as u64).expect("memory");
        let place = |n: usize| n * BUFFER_BYTES as usize;
        for n in 0..BURST {
            memory.write(place(n), &text(n))?;
            memory.write(place(BURST + n), &vec![0; BUFFER_BYTES as usize])?;
            host_qp.post_receive(n as u64, memory.slice(place(BURST + n) as u64, BUFFER_BYTES)?)?;
        }
        for n in 0..BURST {
            let local = Some(memory.slice(place(n) as u64, text(n).len() as u32)?);
            let request = SendRequest { id: 99, kind: SendKind::Send, local, immediate: None, signaled: true };
            host_qp.post_sends(&[request])?;
        }
        let mut answers = 0;
        while answers < BURST {
            let done = completions.wait(Bound::millis(10), "the answers to a burst");
            if done.is_err() {
                process.check()?;
            }
            for completion in done? {
                completions.check(&completion, "a ping or its answer")?;
                if completion.id == 99 {
                    continue;
                }
                let n = completion.id as usize;
                let mut answer = vec![0; completion.byte_len as usize];
                memory.read(place(BURST + n), &mut answer)?;
                assert!(answer == text(n), "burst {burst}: answer {n} of {} bytes differs", answer.len());
                answers += 1;
            }
        }
    }
    Ok(())
}

#[test]
fn image_pingpong() {
    // What is not visible yet when the first message comes: rarely enough, so that one burst must do.
    for (seed, count) in (0..=2 * seeds()).map(|seed| (seed, 8)).chain((0..60 * seeds()).map(|seed| (1000 + seed, 1))) {
        let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
        // A wrong answer panics: the seed is known from here.
        eprintln!("pingpong, seed {seed}");
        bursts(memory, count).unwrap_or_else(|error| panic!("pingpong, seed {seed}: {}", chain(&error)));
        no_races().unwrap_or_else(|error| panic!("pingpong, seed {seed}: {error}"));
    }
}

/// The seed is all that a weak run depends on.
#[test]
fn a_seed_gives_the_same_run() {
    let params = Params { transport: Transport::Ud, threads: 2, ring: RING, ..Params::default() };
    let trace = |seed| {
        run("receive", MemoryModel::weak(seed), params, BYTES, 1).expect("a run");
        with_world(|world| (world.trace_hash(), world.trace_events(), world.now_ps())).expect("this thread's machine")
    };
    let first = trace(1);
    assert_eq!(trace(1), first);
    assert_ne!(trace(2).0, first.0);
}
