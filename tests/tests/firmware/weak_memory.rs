//! The images on weak memory, under the race detector: every seed must deliver every byte, report so only when it is
//! true, and leave memory alone that belongs to the card.
//!
//! `cargo xtask mutants` runs these tests (those named `image_…`) on images with one fence less, found through the
//! variable `FLEXCAST_IMAGES`: for each of them one must fail.

use emu_config::Machine;
use emu_machine::{Config, MemoryModel, with_world};
use emu_provider::{emulated, lossy};
use flexcast::{AggregatorElement, AggregatorOptions, Control, Transport};
use flexcast_abi::memory::QueueKind;
use flexcast_abi::{ABI_HASH, DeviceAddress, PingPongContext, Queue};
use flexcast_lab::reference;
use flexcast_lab::tput::TputError;
use flexcast_lab::tput::plan::Params;
use flexcast_lab::tput::run::{Cards, made_up_bytes};
use flexcast_proto::sparse::Parameters;
use flexcast_tests::harness::is_long;
use flexcast_tests::run::{reference, tput_on};
use flexcast_tests::sparse::{BOUND, Bench, arrays};
use flexcast_tests::{chain, image_bytes as image};
use flexio::{
    Access, Affinity, Application, Bound, CompletionQueue, Connection, CqTarget, DevAddr, DeviceBuffer,
    DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion, Outbox, Process,
    ProtectionDomain, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest,
};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes as _;

/// Seeds per case, in long tests twice as many; `FLEXCAST_WEAK_SEEDS` asks for another number.
const SEEDS: u64 = 3;
const CHUNK_BYTES: u32 = 1024;
/// Chunks enough to go round a ring several times; the last one is short.
const BYTES: u64 = 300 * CHUNK_BYTES as u64 + 640;
/// Receives of each subgroup: fewer than chunks.
const SLOTS: u32 = 128;
/// Operations per run: the second one finds what the first has left.
const OPERATIONS: u32 = 2;
const TRANSPORTS: [Transport; 2] = [Transport::UcUnicast, Transport::Ud];

fn seeds() -> u64 {
    std::env::var("FLEXCAST_WEAK_SEEDS")
        .map_or(if is_long() { 2 * SEEDS } else { SEEDS }, |text| text.parse().expect("a number of seeds"))
}

fn watched(memory: MemoryModel) -> Config {
    Config { memory, detect_races: true, ..lossy(0, 1) }
}

fn no_races() -> Result<(), String> {
    let races = with_world(|world| world.take_races()).expect("this thread's machine");
    races.first().map_or(Ok(()), |race| Err(format!("{} races, the first: {race}", races.len())))
}

/// Broadcasts on a new machine, watched for races, whose receiver compares every byte at the very moment of the report;
/// gives the mean span.
fn broadcast(memory: MemoryModel, params: Params, bytes: u64) -> Result<f64, String> {
    let report = tput_on(watched(memory), params, bytes).map_err(|error| chain(&error))?.report;
    no_races()?;
    let odd = [report.device.out_of_range, report.device.wrong_length, report.device.wrong_id, report.device.errors];
    if !report.digest_ok || odd != [0; 4] {
        return Err(format!("every byte: {}; out of range, length, id, errors: {odd:?}", report.digest_ok));
    }
    Ok(report.operation_us)
}

/// Every seed of every shape of run.
fn broadcasts(transport: Transport) {
    for (threads, batch) in [(1, 2), (1, 32), (4, 2), (4, 32)] {
        let params = Params { transport, batch, slots: SLOTS, chunk_bytes: CHUNK_BYTES, ..Params::default() };
        let params = Params { iterations: OPERATIONS, ..params.with_threads(threads) };
        let case = |seed: &str| format!("{}, {threads} threads, batch {batch}, {seed}", transport.name());
        let run = |memory| broadcast(memory, params, BYTES);
        let strong_us = run(MemoryModel::Strong).unwrap_or_else(|error| panic!("{}: {error}", case("strong memory")));
        for seed in 1..=seeds() {
            let case = case(&format!("seed {seed}"));
            let weak_us = run(MemoryModel::weak(seed)).unwrap_or_else(|error| panic!("{case}: {error}"));
            // Fences cost the same; what is seen late costs a little.
            assert!(weak_us < 2.0 * strong_us, "{case}: {weak_us} us instead of {strong_us}");
        }
    }
}

#[test]
fn image_allgather_broadcasts_uc() {
    broadcasts(Transport::UcUnicast);
}

#[test]
fn image_allgather_broadcasts_ud() {
    broadcasts(Transport::Ud);
}

/// Long chunks, of which many are on their way to the user buffer when the last one has come.
#[test]
fn image_allgather_waits_for_its_copies() {
    let params = Params { transport: Transport::Ud, batch: 32, slots: 64, iterations: OPERATIONS, ..Params::default() };
    for seed in 0..=seeds() {
        let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
        broadcast(memory, params.with_threads(1), 63 * 4096)
            .unwrap_or_else(|error| panic!("63 long chunks, seed {seed}: {error}"));
    }
}

/// Workers that finish at the same moment: none may be behind the flag that the last of them writes.
#[test]
fn image_allgather_reports_everything_before_the_flag() {
    for transport in TRANSPORTS {
        for control in [Control::Host, Control::Device] {
            if control == Control::Device && transport == Transport::UcUnicast {
                continue;
            }
            let params =
                Params { transport, control, batch: 2, slots: 16, chunk_bytes: CHUNK_BYTES, ..Params::default() };
            let params = Params { iterations: 6, ..params.with_threads(8) };
            for seed in 1..=4 * seeds() {
                broadcast(MemoryModel::weak(seed), params, 8 * u64::from(CHUNK_BYTES))
                    .unwrap_or_else(|error| panic!("{}, one chunk each, seed {seed}: {error}", transport.name()));
            }
        }
    }
}

/// One operation on the heels of another: a worker may see the new number before the rest of the line.
#[test]
fn image_allgather_takes_operations_whole() {
    for transport in TRANSPORTS {
        let params = Params { transport, batch: 2, slots: 16, chunk_bytes: CHUNK_BYTES, ..Params::default() };
        let params = Params { iterations: 24, ..params.with_threads(1) };
        for seed in 0..=2 * seeds() {
            let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
            broadcast(memory, params, 8 * u64::from(CHUNK_BYTES))
                .unwrap_or_else(|error| panic!("{}, 24 operations, seed {seed}: {error}", transport.name()));
        }
    }
}

/// The published kernels have no read fence behind the owner bit: on a memory that reorders they go wrong sooner or
/// later, on one that does not they never do.
#[test]
fn the_published_kernels_need_a_memory_that_does_not_reorder() {
    for transport in [reference::Transport::Uc, reference::Transport::Ud] {
        let name = reference::transport::name;
        let run = |memory| {
            let params = reference::Params { transport, iterations: OPERATIONS, ..reference::Params::default() };
            let ran = reference(Config { memory, ..lossy(0, 1) }, image("reference"), params, 600 * 4096);
            ran.map(drop)
        };
        run(MemoryModel::Strong).unwrap_or_else(|error| panic!("{}: {}", name(transport), chain(&error)));
        let wrong = (1..=20).filter(|&seed| run(MemoryModel::weak(seed)).is_err()).count();
        println!("{}: {wrong} of 20 seeds go wrong on weak memory", name(transport));
        assert!(wrong > 0, "{}", name(transport));
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
    let mut device_qp = DpaQueuePair::builder(flexio::Transport::Rc, depths)
        .access(Access::LOCAL_WRITE)
        .build(&send_cq, &receive_cq)?;

    let pd = ProtectionDomain::new(&cards.client)?;
    let bytes = 2 * BURST * BUFFER_BYTES as usize;
    let memory = MemoryRegion::register(&pd, HostBuffer::zeroed(bytes)?, Access::LOCAL_WRITE)?;
    let completions = CompletionQueue::new(&cards.client, 64)?;
    let depths = QueueDepths { send: 16, receive: 16 };
    let host_qp = QueuePair::builder(&pd, flexio::Transport::Rc, depths).build(&completions, &completions)?;
    host_qp.init(Access::LOCAL_WRITE, 0)?;
    let (gid, mac) = (cards.client.port().gid, cards.client.info().mac);
    device_qp.connect(&Connection::to(RemoteQp { qpn: host_qp.qpn(), gid, mac, first_psn: 0 }))?;
    host_qp.connect(&Connection::to(device_qp.endpoint(0)))?;
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
    assert_eq!(process.call_by_name("prepare", context.addr().get())?, 0, "the context is refused");
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
    // What is not visible yet when the first message comes. The host needs a while to send it: stores may need longer.
    let slow = |seed| (1000 + seed, 1, MemoryModel::Weak { seed, longest_delay_cycles: 400_000 });
    let strong = std::iter::once((0, 8, MemoryModel::Strong));
    let weak = (1..=2 * seeds()).map(|seed| (seed, 8, MemoryModel::weak(seed)));
    for (seed, count, memory) in strong.chain(weak).chain((0..40 * seeds()).map(slow)) {
        // A wrong answer panics: the seed is known from here.
        eprintln!("pingpong, seed {seed}");
        bursts(memory, count).unwrap_or_else(|error| panic!("pingpong, seed {seed}: {}", chain(&error)));
        no_races().unwrap_or_else(|error| panic!("pingpong, seed {seed}: {error}"));
    }
}

/// Two shards in a thread, operations in a row; a message of an iteration comes into the slot of the one before.
#[test]
fn image_sparse() {
    let parameters = Parameters::new(2, 256, 4, 8).expect("parameters");
    for seed in 0..=4 * seeds() {
        let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
        let machine = Machine::default().config_of(3).expect("a machine");
        let config = Config { memory, detect_races: true, ..machine };
        eprintln!("sparse, seed {seed}");
        let mut bench = Bench::new(config, parameters, &AggregatorOptions::default());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for element in [AggregatorElement::I32, AggregatorElement::I64, AggregatorElement::I32] {
            bench.aggregator.set_element(element).expect("written");
            bench.sum(&arrays(&mut rng, (2, 256), 10_000, 30), element);
        }
        flexcast_tests::world::settle();
        bench.aggregator.ask().expect("asked");
        let aggregator = &bench.aggregator;
        let standing = bench.provider.wait(BOUND, "an answer", || Ok(aggregator.standing().expect("it runs")));
        let standing = standing.unwrap_or_else(|error| panic!("sparse, seed {seed}: {error}"));
        assert_eq!((standing.awaited, standing.is_answered), (None, true), "sparse, seed {seed}");
        // An answer's slot is written to again once all workers have sent the message that follows the answer, without
        // polling the completion of its send: if a card repeats it because of a late acknowledgement, the worker's
        // card drops the repeat by its packet numbers.
        let races = with_world(|world| world.take_races()).expect("this thread's machine");
        let other = races.iter().find(|race| !race.to_string().contains("was posted to read: "));
        assert!(other.is_none(), "sparse, seed {seed}: {}", other.expect("a race"));
    }
}

/// A shard that ends: the host reads the report, and both workers learn whose fault it is, the one that comes later,
/// too.
#[test]
fn image_sparse_reports_why_a_shard_has_stopped() {
    let parameters = Parameters::new(2, 256, 4, 8).expect("parameters");
    let message = |blocks: usize, first: u32| {
        let indices = [first, u32::MAX, u32::MAX, u32::MAX].map(u32::to_le_bytes);
        [vec![1; blocks * 256], indices.concat()].concat()
    };
    for seed in 0..=seeds() {
        let memory = if seed == 0 { MemoryModel::Strong } else { MemoryModel::weak(seed) };
        let machine = Machine::default().config_of(3).expect("a machine");
        let mut bench = Bench::new(Config { memory, ..machine }, parameters, &AggregatorOptions::default());
        for worker in &mut bench.workers {
            worker.send_raw(0, &message(0, 0), Some(0));
        }
        flexcast_tests::world::settle();
        bench.workers[1].send_raw(0, &message(2, u32::MAX), Some(0));
        let failure = bench.provider.wait(BOUND, "a report", || Ok(bench.aggregator.failure().expect("it runs")));
        let failure = failure.unwrap_or_else(|error| panic!("sparse, seed {seed}: {error}"));
        assert_eq!((failure.worker, failure.found, failure.limit), (1, 528, 272), "seed {seed}: {failure}");
        bench.workers[0].send_raw(0, &message(1, u32::MAX), Some(0));
        flexcast_tests::world::settle();
        for worker in &mut bench.workers {
            assert_eq!(worker.take_raw(), [(0, 16, Some(0)), (0, 0, Some(2))], "sparse, seed {seed}");
        }
    }
}

/// The seed is all that a weak run depends on.
#[test]
fn a_seed_gives_the_same_run() {
    let params = Params { slots: SLOTS, ..Params::default() }.with_threads(2);
    let trace = |seed| {
        broadcast(MemoryModel::weak(seed), params, BYTES).expect("a run");
        with_world(|world| (world.trace_hash(), world.trace_events(), world.now_ps())).expect("this thread's machine")
    };
    let first = trace(1);
    assert_eq!(trace(1), first);
    assert_ne!(trace(2).0, first.0);
}
