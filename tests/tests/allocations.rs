//! Allocations of an operation on the host: none, once a communicator has done two of its kind.
//!
//! The emulated cards live in the same process and thread, and allocate. So what counts is decided in two ways. Only
//! calls of a communicator are watched; what the machine does between them is not. And of what is allocated in such a
//! call only that counts whose innermost caller among this project's crates is one of the host's: what the emulator's
//! functions allocate, behind the C interfaces of verbs and FlexIO (a posted request, a key, a command), would be
//! allocated by other libraries on a real machine, or by none.
//!
//! A program of its own: the allocator is that of the whole process.
#![allow(unsafe_code)] // A global allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use emu_config::Machine;
use emu_provider::emulated;
use flexcast::bootstrap::{StoreConfig, TcpStore};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Allgather, Allreduce, Alltoall, Blocks, Buffer, ChainMapping, Communicator, Config, Endpoint, Firmware, Gather,
    Pending, Reduce, ReduceScatter, Report, Request, Scatter, Selection, Test, Transport, UdpOptions,
};
use flexcast_tests::image_bytes;
use object::{Object as _, SymbolMap, SymbolMapName};

const FRAMES: usize = 64;

/// Threads that begin now are watched: the library's own.
static NEW_THREADS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the running code is a call of the library, or a thread of it.
    static WATCHED: Cell<bool> = Cell::new(NEW_THREADS.load(Ordering::Relaxed));
}

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Callers of allocations, innermost first, and how often they were seen.
static SEEN: Mutex<BTreeMap<[usize; FRAMES], u64>> = Mutex::new(BTreeMap::new());

struct Watching;

impl Watching {
    fn note() {
        // What the note itself allocates is not watched.
        if WATCHED.try_with(|watched| watched.replace(false)) != Ok(true) {
            return;
        }
        let (mut callers, mut at) = ([0; FRAMES], 0);
        backtrace::trace(|frame| {
            callers[at] = frame.ip() as usize;
            at += 1;
            at < FRAMES
        });
        *SEEN.lock().expect("not poisoned").entry(callers).or_default() += 1;
        WATCHED.set(true);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::note();
        // SAFETY: by the caller.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// The functions of this program by its symbol table, which a build has with and without debug information. (Line
/// tables name functions without their crates, so a resolver that prefers debug information cannot distinguish
/// the crates.)
struct Functions {
    /// Where the program lies in memory.
    mapped: Range<u64>,
    symbols: SymbolMap<SymbolMapName<'static>>,
}

impl Functions {
    fn of_this_program() -> Self {
        let path = std::env::current_exe().expect("the program has a path");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let name = path.to_string_lossy().into_owned();
        let mut ranges = maps.lines().filter(|line| line.ends_with(&name)).map(|line| {
            let (start, rest) = line.split_once('-').expect("a range of addresses");
            let end = rest.split_once(' ').expect("permissions").0;
            [start, end].map(|address| u64::from_str_radix(address, 16).expect("an address"))
        });
        let [start, first_end] = ranges.next().expect("the program is mapped");
        let end = ranges.next_back().map_or(first_end, |[_, end]| end);
        // The program has one table until it ends.
        let bytes: &'static [u8] = std::fs::read(&path).expect("the program can be read").leak();
        Self { mapped: start..end, symbols: object::File::parse(bytes).expect("an ELF").symbol_map() }
    }

    /// The function that holds an instruction of this program, such as `flexcast::api::post`.
    fn at(&self, ip: usize) -> Option<String> {
        let ip = Some(ip as u64).filter(|ip| self.mapped.contains(ip))?;
        let symbol = self.symbols.containing(ip - self.mapped.start)?;
        Some(format!("{:#}", rustc_demangle::demangle(symbol.name())))
    }
}

static FUNCTIONS: LazyLock<Functions> = LazyLock::new(Functions::of_this_program);

/// Runs a call of the library.
fn watched<R>(call: impl FnOnce() -> R) -> R {
    WATCHED.set(true);
    let result = call();
    WATCHED.set(false);
    result
}

/// Allocations of the host's crates and of the emulator since the last call, and where the former were.
fn taken() -> (u64, u64, Vec<String>) {
    const HOST: [&str; 6] =
        ["flexcast::", "flexcast_proto::", "flexio::", "flexcast_abi::", "verbs_sys::", "flexio_sys::"];
    let (mut host, mut emulator, mut places) = (0, 0, Vec::new());
    for (callers, times) in std::mem::take(&mut *SEEN.lock().expect("not poisoned")) {
        let names: Vec<String> =
            callers.into_iter().take_while(|ip| *ip != 0).filter_map(|ip| FUNCTIONS.at(ip)).collect();
        let is_host = |name: &&String| HOST.iter().any(|of| name.contains(of));
        let project = names.iter().find(|name| is_host(name) || name.contains("emu_"));
        let Some(project) = project else {
            // Threads of other tests begin, too.
            assert!(NEW_THREADS.load(Ordering::Relaxed), "nobody of this project has allocated: {names:#?}");
            continue;
        };
        if project.contains("emu_") {
            emulator += times;
        } else {
            host += times;
            places.push(format!(
                "{times} x {}",
                names.iter().filter(is_host).take(4).cloned().collect::<Vec<_>>().join(" < ")
            ));
        }
    }
    (host, emulator, places)
}

const BYTES: usize = 50_000;

/// The buffers of a rank.
struct Buffers {
    send: Buffer,
    gathered: Buffer,
    broadcast: Buffer,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Allgather,
    Allgatherv,
    Broadcast,
}

/// Chunks of an operation that were recovered, or were only late, and whether some had to be asked for: none of that is
/// the steady state.
fn disturbance(report: &Report) -> u64 {
    report.recovered_chunks + report.late_chunks + u64::from(report.phases.in_ps().cut_off_ps.is_some())
}

/// One operation of three ranks, whose calls are watched; the chunks that were lost and recovered. `relax` lets time
/// pass.
fn operate(relax: &dyn Fn(), communicators: &[Communicator], buffers: &mut [Option<Buffers>], kind: Kind) -> u64 {
    let mut recovered = 0;
    let mut requests: Vec<Option<Request>> = Vec::new();
    let mut rest = Vec::new();
    for (communicator, slot) in communicators.iter().zip(buffers.iter_mut()) {
        let Buffers { send, gathered, broadcast } = slot.take().expect("they come back");
        let (request, kept) = match kind {
            Kind::Allgather => (watched(|| communicator.allgather(send, gathered)), (None, None, Some(broadcast))),
            Kind::Allgatherv => {
                let counts = [send.len() as u64; 3];
                (
                    watched(|| communicator.post(Allgather::counts(&counts).buffers(send, gathered))),
                    (None, None, Some(broadcast)),
                )
            }
            Kind::Broadcast => (watched(|| communicator.broadcast(broadcast, 1)), (Some(send), Some(gathered), None)),
        };
        requests.push(Some(request.expect("accepted")));
        rest.push(kept);
    }
    while requests.iter().any(Option::is_some) {
        for (rank, communicator) in communicators.iter().enumerate() {
            let Some(request) = requests[rank].take() else {
                watched(|| communicator.progress()).expect("progress");
                continue;
            };
            match watched(|| request.test()).expect("success") {
                Test::Pending(request) => requests[rank] = Some(request),
                Test::Done(done) => {
                    recovered += disturbance(&done.report);
                    let (send, gathered, broadcast) = std::mem::take(&mut rest[rank]);
                    let (send, gathered, broadcast) = match kind {
                        Kind::Allgather | Kind::Allgatherv => (done.send, Some(done.receive), broadcast),
                        Kind::Broadcast => (send, gathered, Some(done.receive)),
                    };
                    let whole = |buffer: Option<Buffer>| buffer.expect("it comes back");
                    buffers[rank] =
                        Some(Buffers { send: whole(send), gathered: whole(gathered), broadcast: whole(broadcast) });
                }
            }
        }
        relax();
    }
    recovered
}

/// Buffers for operations of so many bytes on each rank.
fn buffers(cards: &[Endpoint], bytes: usize) -> Vec<Option<Buffers>> {
    let of_card = |card: &Endpoint| {
        let buffer = |len| card.buffer(len).expect("a buffer");
        Some(Buffers { send: buffer(bytes), gathered: buffer(cards.len() * bytes), broadcast: buffer(bytes) })
    };
    cards.iter().map(of_card).collect()
}

#[test]
fn operations_allocate_nothing_once_their_kind_has_been_done_twice() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    const RANKS: usize = 3;
    for transport in [Transport::Ud, Transport::UcMulticast, Transport::UcUnicast] {
        let machine = Machine::default().config_of(RANKS).expect("a switch");
        let provider = emulated(emu_machine::Config { uc_multicast: true, ..machine }).expect("a machine");
        let elf = image_bytes("allgather");
        let open = |number| {
            let firmware = Firmware { name: "allgather", elf: &elf };
            Endpoint::open(&provider, &format!("mlx5_{number}"), firmware).expect("the card opens")
        };
        let cards: Vec<Endpoint> = (0..RANKS).map(open).collect();
        let config = Config::default().algorithm(Selection::Multicast).transport(transport);
        let made = |(rank, card)| Pending::new(card, rank, RANKS as u32, config.clone()).expect("its part is made");
        let pending: Vec<Pending> = (0..).zip(&cards).map(made).collect();
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        let communicators: Vec<Communicator> =
            pending.into_iter().map(|pending| pending.connect(&infos).expect("connected")).collect();
        let mut buffers = buffers(&cards, BYTES);
        let relax = || provider.relax().relax();
        let mut all = || {
            for kind in [Kind::Allgather, Kind::Allgatherv, Kind::Broadcast] {
                let recovered = operate(&relax, &communicators, &mut buffers, kind);
                assert_eq!(recovered, 0, "recovery is not the steady state");
            }
        };
        (0..2).for_each(|_| all());
        let (host, emulator, _) = taken();
        assert!(
            host > 0 && emulator > 0,
            "{transport:?}: room is made at first, and the watch sees it: {host}, {emulator}"
        );
        (0..10).for_each(|_| all());
        let (host, emulator, places) = taken();
        assert!(emulator > 0, "{transport:?}: the watch sees the emulator, which allocates for what is posted");
        assert_eq!(host, 0, "{transport:?}: {places:#?}");
    }
}

/// Communicators of ranks over the loopback interface, and their cards.
fn over_ethernet_by(
    options: &UdpOptions,
    ranks: u32,
    configured: fn(Config) -> Config,
) -> (Vec<Communicator>, Vec<Endpoint>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let mut listener = Some(listener);
    let start = |rank| {
        let (address, listener, options) = (address.clone(), listener.take(), options.clone());
        std::thread::spawn(move || {
            let config = StoreConfig::new(rank, ranks, &address);
            let store = match listener {
                Some(listener) => TcpStore::with_listener(listener, config),
                None => TcpStore::join(config),
            };
            let card = Endpoint::udp(&options.interface("lo")).expect("loopback");
            let config = configured(Config::for_endpoint(&card));
            (Communicator::create(&card, &mut store.expect("all come"), config).expect("connected"), card)
        })
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("a rank")).unzip()
}

#[test]
fn operations_over_ethernet_allocate_nothing_once_their_kind_has_been_done() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    multicast_and_eager_operations_allocate_nothing(&UdpOptions::default(), by_multicast);
    let in_chains = |config| by_multicast(config).chain_mapping(ChainMapping::Table(vec![0, 1, 0]));
    multicast_and_eager_operations_allocate_nothing(&UdpOptions::default(), in_chains);
}

#[test]
fn workers_of_subgroups_allocate_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    NEW_THREADS.store(true, Ordering::Relaxed);
    let separate = UdpOptions::default().ranks_per_computer(NonZeroU32::MIN).subgroups(3);
    multicast_and_eager_operations_allocate_nothing(&separate, by_multicast);
    NEW_THREADS.store(false, Ordering::Relaxed);
}

fn by_multicast(config: Config) -> Config {
    config.algorithm(Selection::Multicast)
}

/// Asserts that rounds of operations allocate nothing once there have been some. A round returns the chunks that were
/// lost and recovered.
fn assert_steady(what: &str, mut round: impl FnMut() -> u64) {
    const ROUNDS: u32 = 20;
    let mut before = (0..10).map(|_| round()).last().expect("ten rounds");
    let _ = taken();
    let mut counted = 0;
    for _ in 0..10 * ROUNDS {
        let recovered = round();
        let (host, _, places) = taken();
        // A computer with much else to do loses datagrams. Recovery is not the steady state, and neither is the round
        // after it, in which ranks report what they had lost.
        if recovered == 0 && before == 0 {
            assert_eq!(host, 0, "{what}: {places:#?}");
            counted += 1;
        }
        before = recovered;
        if counted == ROUNDS {
            return;
        }
    }
    panic!("{what}: only {counted} of {} rounds lost nothing", 10 * ROUNDS);
}

/// By multicast, and on the barrier.
fn multicast_and_eager_operations_allocate_nothing(options: &UdpOptions, configured: fn(Config) -> Config) {
    let (communicators, cards) = over_ethernet_by(options, 3, configured);
    for bytes in [200_000, 1000] {
        let mut buffers = buffers(&cards, bytes);
        let mut all = || {
            let both = [Kind::Allgather, Kind::Broadcast];
            both.into_iter().map(|kind| operate(&|| (), &communicators, &mut buffers, kind)).sum()
        };
        (0..10).for_each(|_| _ = all());
        let (host, _, _) = taken();
        assert!(host > 0, "{bytes} bytes: room is made at first, and the watch sees it");
        assert_steady(&format!("{bytes} bytes"), all);
        for which in Listed::ALLGATHERS {
            lists_allocate_nothing(&communicators, which, bytes);
        }
    }
}

/// Collectives by messages between pairs of ranks.
#[derive(Clone, Copy, Debug)]
enum Between {
    Allgather,
    Broadcast,
    Barrier,
    Allreduce,
    Reduce,
    Alltoall,
    Gather,
    Scatter,
}

const ALL: [Between; 8] = [
    Between::Allgather,
    Between::Broadcast,
    Between::Barrier,
    Between::Allreduce,
    Between::Reduce,
    Between::Alltoall,
    Between::Gather,
    Between::Scatter,
];

/// Posts a collective with buffers for the longest side of it, whose calls are watched.
fn post(communicator: &Communicator, which: Between, [one, all]: [Buffer; 2], rest: &mut Vec<Buffer>) -> Request {
    let sum = Reduction::new(Operator::Sum, DataType::F32).expect("numbers can be added");
    let root = communicator.rank() == 1;
    let request = match which {
        Between::Allgather => watched(|| communicator.allgather(one, all)),
        Between::Broadcast => {
            rest.push(all);
            watched(|| communicator.broadcast(one, 1))
        }
        Between::Barrier => {
            rest.extend([one, all]);
            watched(|| communicator.barrier())
        }
        Between::Allreduce => {
            rest.push(all);
            watched(|| communicator.post(Allreduce::new(sum).in_place(one)))
        }
        Between::Reduce => {
            let receive = communicator.endpoint().buffer(if root { one.len() } else { 0 }).expect("a buffer");
            rest.push(all);
            watched(|| communicator.post(Reduce::to(1, sum).buffers(one, receive)))
        }
        Between::Alltoall => {
            rest.push(one);
            watched(|| communicator.post(Alltoall::new().in_place(all)))
        }
        Between::Gather => {
            let receive = if root { all } else { communicator.endpoint().buffer(0).expect("a buffer") };
            watched(|| communicator.post(Gather::to(1).buffers(one, receive)))
        }
        Between::Scatter => {
            let send = if root { all } else { communicator.endpoint().buffer(0).expect("a buffer") };
            watched(|| communicator.post(Scatter::from(1).buffers(send, one)))
        }
    };
    request.expect("accepted")
}

#[test]
fn messages_between_ranks_over_ethernet_allocate_nothing_once_their_kind_has_been_done() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (communicators, cards) = over_ethernet_by(&UdpOptions::default(), 3, |config| config);
    for bytes in [64, 8000] {
        let run = |which| {
            let mut rest = Vec::new();
            let buffer = |card: &Endpoint, len| card.buffer(len).expect("a buffer");
            let requests = communicators
                .iter()
                .zip(&cards)
                .map(|(communicator, card)| {
                    let buffers = [buffer(card, bytes), buffer(card, communicators.len() * bytes)];
                    post(communicator, which, buffers, &mut rest)
                })
                .collect();
            complete(&communicators, requests)
        };
        for which in ALL {
            assert_steady(&format!("{which:?} of {bytes} bytes"), || run(which));
        }
    }
}

/// Completes an operation of all ranks, whose calls are watched; the chunks that were lost and recovered.
fn complete(communicators: &[Communicator], requests: Vec<Request>) -> u64 {
    let mut recovered = 0;
    let mut requests: Vec<Option<Request>> = requests.into_iter().map(Some).collect();
    while requests.iter().any(Option::is_some) {
        for (slot, communicator) in requests.iter_mut().zip(communicators) {
            let Some(request) = slot.take() else {
                watched(|| communicator.progress()).expect("progress");
                continue;
            };
            match watched(|| request.test()).expect("success") {
                Test::Pending(request) => *slot = Some(request),
                Test::Done(done) => recovered += disturbance(&done.report),
            }
        }
    }
    recovered
}

/// Collectives with a list of lengths, or also of displacements, and Reduce-Scatter, which makes a list of its equal
/// shares.
#[derive(Clone, Copy, Debug)]
enum Listed {
    Allgatherv,
    AllgathervInPlace,
    AllgathervDispls,
    AllgathervDisplsInPlace,
    Alltoallv,
    AlltoallvInPlace,
    Gatherv,
    GathervInPlace,
    Scatterv,
    ScattervInPlace,
    ReduceScatter,
    ReduceScatterv,
    ReduceScattervInPlace,
}

impl Listed {
    const ALLGATHERS: [Self; 4] =
        [Self::Allgatherv, Self::AllgathervInPlace, Self::AllgathervDispls, Self::AllgathervDisplsInPlace];

    const ALL: [Self; 13] = [
        Self::Allgatherv,
        Self::AllgathervInPlace,
        Self::AllgathervDispls,
        Self::AllgathervDisplsInPlace,
        Self::Alltoallv,
        Self::AlltoallvInPlace,
        Self::Gatherv,
        Self::GathervInPlace,
        Self::Scatterv,
        Self::ScattervInPlace,
        Self::ReduceScatter,
        Self::ReduceScatterv,
        Self::ReduceScattervInPlace,
    ];
}

/// Posts a collective with lists among three ranks, none of whose blocks is longer than `bytes`. The call is watched.
fn post_listed(communicator: &Communicator, which: Listed, bytes: usize) -> Request {
    const ROOT: u32 = 1;
    let sum = Reduction::new(Operator::Sum, DataType::F32).expect("numbers can be added");
    let buffer = |len: u64| communicator.endpoint().buffer(len as usize).expect("a buffer");
    let (own, is_root, bytes) = (communicator.rank() as usize, communicator.rank() == ROOT, bytes as u64);
    let counts = [bytes / 2, bytes, bytes / 4];
    let (one, all, total) = (counts[own], 3 * bytes, counts.iter().sum());
    // The blocks lie in the opposite order of ranks.
    let displacements = [2 * bytes, bytes, 0];
    let blocks = Blocks { counts: &counts, displs: &displacements };
    // Two ranks exchange as many bytes each way, so that it can be done in place.
    let exchanged = [0, 1, 2].map(|rank| bytes / (1 + (rank + own as u64) % 3));
    let exchanged = Blocks { counts: &exchanged, displs: &displacements };
    let at_root = if is_root { all } else { 0 };
    let (root_alone, others) = (buffer(at_root), buffer(one));
    let request = match which {
        Listed::Allgatherv => {
            let receive = buffer(total);
            watched(|| communicator.post(Allgather::counts(&counts).buffers(others, receive)))
        }
        Listed::AllgathervInPlace => {
            let receive = buffer(total);
            watched(|| communicator.post(Allgather::counts(&counts).in_place(receive)))
        }
        Listed::AllgathervDispls => {
            let receive = buffer(all);
            watched(|| communicator.post(Allgather::counts(&counts).displs(&displacements).buffers(others, receive)))
        }
        Listed::AllgathervDisplsInPlace => {
            let receive = buffer(all);
            watched(|| communicator.post(Allgather::counts(&counts).displs(&displacements).in_place(receive)))
        }
        Listed::Alltoallv => {
            let (send, receive) = (buffer(all), buffer(all));
            watched(|| communicator.post(Alltoall::blocks(exchanged, exchanged).buffers(send, receive)))
        }
        Listed::AlltoallvInPlace => {
            let receive = buffer(all);
            watched(|| communicator.post(Alltoall::blocks(exchanged, exchanged).in_place(receive)))
        }
        Listed::GathervInPlace if is_root => {
            watched(|| communicator.post(Gather::to(ROOT).blocks(blocks).in_place(root_alone)))
        }
        Listed::Gatherv | Listed::GathervInPlace => {
            watched(|| communicator.post(Gather::to(ROOT).blocks(blocks).buffers(others, root_alone)))
        }
        Listed::ScattervInPlace if is_root => {
            watched(|| communicator.post(Scatter::from(ROOT).blocks(blocks).in_place(root_alone)))
        }
        Listed::Scatterv | Listed::ScattervInPlace => {
            watched(|| communicator.post(Scatter::from(ROOT).blocks(blocks).buffers(root_alone, others)))
        }
        Listed::ReduceScatter => {
            let (send, receive) = (buffer(all), buffer(bytes));
            watched(|| communicator.post(ReduceScatter::new(sum).buffers(send, receive)))
        }
        Listed::ReduceScatterv => {
            let send = buffer(total);
            watched(|| communicator.post(ReduceScatter::new(sum).counts(&counts).buffers(send, others)))
        }
        Listed::ReduceScattervInPlace => {
            let contribution = buffer(total);
            watched(|| communicator.post(ReduceScatter::new(sum).counts(&counts).in_place(contribution)))
        }
    };
    request.expect("accepted")
}

/// Collectives with lists among three ranks allocate nothing once they have been done.
fn lists_allocate_nothing(communicators: &[Communicator], which: Listed, bytes: usize) {
    assert_steady(&format!("{which:?} of {bytes} bytes"), || {
        let post = |communicator| post_listed(communicator, which, bytes);
        // The second one waits for its turn.
        let both = [(); 2].map(|()| communicators.iter().map(post).collect());
        both.into_iter().map(|requests| complete(communicators, requests)).sum()
    });
}

#[test]
fn operations_with_lists_over_ethernet_allocate_nothing_once_their_kind_has_been_done() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let automatic = |config: Config| config;
    let around_the_ring = |config: Config| config.algorithm(Selection::Ring);
    let to_each_rank = |config: Config| config.algorithm(Selection::Linear);
    for configured in [automatic, around_the_ring, to_each_rank] {
        let (communicators, _cards) = over_ethernet_by(&UdpOptions::default(), 3, configured);
        for bytes in [64, 8000] {
            for which in Listed::ALL {
                lists_allocate_nothing(&communicators, which, bytes);
            }
        }
    }
}
