//! Allocations of an operation on the host: none, once a communicator has done two of its kind (MC-18).
//!
//! The emulated cards live in the same process and thread, and allocate. So what counts is decided in two ways. Only calls of a
//! communicator are watched; what the machine does between them is not. And of what is allocated in such a call only that counts whose
//! innermost caller among this project's crates is one of the host's: what the emulator's functions allocate, behind the C interfaces of
//! verbs and FlexIO (a posted request, a key, a command), would be allocated by other libraries on a real machine, or by none.
#![allow(unsafe_code)] // A global allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::net::TcpListener;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use emu_config::Machine;
use emu_provider::emulated;
use flexcast::bootstrap::{StoreConfig, TcpStore};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Buffer, Card, Communicator, Config, Firmware, Pending, Request, Selection, Test, Transport, UdpOptions,
};
use flexcast_tests::image_bytes;

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
        let mut names: Vec<String> = Vec::new();
        for ip in callers.into_iter().take_while(|ip| *ip != 0) {
            backtrace::resolve(ip as *mut c_void, |symbol| {
                names.extend(symbol.name().map(|name| format!("{name:#}")));
            });
        }
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
    Broadcast,
}

/// One operation of all ranks, whose calls are watched. `relax` lets time pass.
fn operate(relax: &dyn Fn(), communicators: &[Communicator], buffers: &mut [Option<Buffers>], kind: Kind) {
    let mut requests: Vec<Option<Request>> = Vec::new();
    let mut rest = Vec::new();
    for (communicator, slot) in communicators.iter().zip(buffers.iter_mut()) {
        let Buffers { send, gathered, broadcast } = slot.take().expect("they come back");
        let (request, kept) = match kind {
            Kind::Allgather => (watched(|| communicator.allgather(send, gathered)), (None, None, Some(broadcast))),
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
            match watched(|| communicator.test(request)).expect("success") {
                Test::Pending(request) => requests[rank] = Some(request),
                Test::Done(done) => {
                    assert_eq!(done.report.recovered_chunks, 0, "recovery is not the steady state");
                    let (send, gathered, broadcast) = std::mem::take(&mut rest[rank]);
                    let (send, gathered, broadcast) = match kind {
                        Kind::Allgather => (done.send, Some(done.receive), broadcast),
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
}

/// Buffers for operations of so many bytes on each rank.
fn buffers(cards: &[Card], bytes: usize) -> Vec<Option<Buffers>> {
    let of_card = |card: &Card| {
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
            Card::open(&provider, &format!("mlx5_{number}"), firmware).expect("the card opens")
        };
        let cards: Vec<Card> = (0..RANKS).map(open).collect();
        let config = Config::default().algorithm(Selection::Multicast).transport(transport);
        let made = |(rank, card)| Pending::new(card, rank, RANKS as u32, config.clone()).expect("its part is made");
        let pending: Vec<Pending> = (0..).zip(&cards).map(made).collect();
        let endpoints: Vec<Vec<u8>> = pending.iter().map(Pending::endpoint).collect();
        let communicators: Vec<Communicator> =
            pending.into_iter().map(|pending| pending.connect(&endpoints).expect("connected")).collect();
        let mut buffers = buffers(&cards, BYTES);
        let relax = || provider.relax().relax();
        let mut both =
            || [Kind::Allgather, Kind::Broadcast].map(|kind| operate(&relax, &communicators, &mut buffers, kind));
        (0..2).for_each(|_| _ = both());
        let (host, emulator, _) = taken();
        assert!(
            host > 0 && emulator > 0,
            "{transport:?}: room is made at first, and the watch sees it: {host}, {emulator}"
        );
        (0..10).for_each(|_| _ = both());
        let (host, emulator, places) = taken();
        assert!(emulator > 0, "{transport:?}: the watch sees the emulator, which allocates for what is posted");
        assert_eq!(host, 0, "{transport:?}: {places:#?}");
    }
}

/// Communicators of ranks over the loopback interface, and their cards.
fn over_ethernet_by(options: &UdpOptions, ranks: u32, selection: Selection) -> (Vec<Communicator>, Vec<Card>) {
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
            let card = Card::udp(&options.interface("lo")).expect("loopback");
            let config = Config::for_card(&card).algorithm(selection);
            (Communicator::create(&card, &mut store.expect("all come"), config).expect("connected"), card)
        })
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("a rank")).unzip()
}

#[test]
fn operations_over_ethernet_allocate_nothing_once_their_kind_has_been_done() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    multicast_and_eager_operations_allocate_nothing(&UdpOptions::default());
}

#[test]
fn workers_of_subgroups_allocate_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    NEW_THREADS.store(true, Ordering::Relaxed);
    let apart = UdpOptions::default().ranks_per_computer(NonZeroU32::MIN).subgroups(3);
    multicast_and_eager_operations_allocate_nothing(&apart);
    NEW_THREADS.store(false, Ordering::Relaxed);
}

/// By multicast, and on the barrier.
fn multicast_and_eager_operations_allocate_nothing(options: &UdpOptions) {
    let (communicators, cards) = over_ethernet_by(options, 3, Selection::Multicast);
    for bytes in [200_000, 1000] {
        let mut buffers = buffers(&cards, bytes);
        let mut all =
            || [Kind::Allgather, Kind::Broadcast].map(|kind| operate(&|| (), &communicators, &mut buffers, kind));
        (0..10).for_each(|_| _ = all());
        let (host, _, _) = taken();
        assert!(host > 0, "{bytes} bytes: room is made at first, and the watch sees it");
        (0..20).for_each(|_| _ = all());
        let (host, _, places) = taken();
        assert_eq!(host, 0, "{bytes} bytes: {places:#?}");
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
            watched(|| communicator.all_reduce_in_place(one, sum))
        }
        Between::Reduce => {
            let receive = communicator.card().buffer(if root { one.len() } else { 0 }).expect("a buffer");
            rest.push(all);
            watched(|| communicator.reduce(one, receive, 1, sum))
        }
        Between::Alltoall => {
            rest.push(one);
            watched(|| communicator.all_to_all_in_place(all))
        }
        Between::Gather => {
            let receive = if root { all } else { communicator.card().buffer(0).expect("a buffer") };
            watched(|| communicator.gather(one, receive, 1))
        }
        Between::Scatter => {
            let send = if root { all } else { communicator.card().buffer(0).expect("a buffer") };
            watched(|| communicator.scatter(send, one, 1))
        }
    };
    request.expect("accepted")
}

#[test]
fn messages_between_ranks_over_ethernet_allocate_nothing_once_their_kind_has_been_done() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (communicators, cards) = over_ethernet_by(&UdpOptions::default(), 3, Selection::Automatic);
    for bytes in [64, 8000] {
        let run = |which| {
            let mut rest = Vec::new();
            let buffer = |card: &Card, len| card.buffer(len).expect("a buffer");
            let mut requests: Vec<Option<Request>> = communicators
                .iter()
                .zip(&cards)
                .map(|(communicator, card)| {
                    let buffers = [buffer(card, bytes), buffer(card, communicators.len() * bytes)];
                    Some(post(communicator, which, buffers, &mut rest))
                })
                .collect();
            while requests.iter().any(Option::is_some) {
                for (slot, communicator) in requests.iter_mut().zip(&communicators) {
                    let Some(request) = slot.take() else {
                        watched(|| communicator.progress()).expect("progress");
                        continue;
                    };
                    if let Test::Pending(request) = watched(|| communicator.test(request)).expect("success") {
                        *slot = Some(request);
                    }
                }
            }
        };
        for which in ALL {
            (0..10).for_each(|_| run(which));
            let _ = taken();
            (0..20).for_each(|_| run(which));
            let (host, _, places) = taken();
            assert_eq!(host, 0, "{which:?} of {bytes} bytes: {places:#?}");
        }
    }
}
