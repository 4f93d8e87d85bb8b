//! Cost of the tags of frames: an Alltoall between two ranks over TCP on the loopback interface, with tags and without,
//! in turn.
//!
//! `cargo bench -p flexcast --bench tags -- [--quick]`. Both ranks are threads of this process, without shared memory.
//! Each figure is a median of single operations, and the least and the largest of the rounds: on a shared computer the
//! rounds of one kind differ more than the two kinds do.

use std::net::TcpListener;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use flexcast::bootstrap::{StoreConfig, TcpStore};
use flexcast::{Buffer, Communicator, Config, Endpoint, Selection, UdpOptions};

const LENGTHS: [usize; 6] = [8, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 8 << 20];

/// Runs a program on both ranks, with tags or without.
fn run(unauthenticated: bool, program: impl Fn(&Communicator, u32) + Sync) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address").to_string();
    let first = Mutex::new(Some(listener));
    let options = UdpOptions::default().interface("lo").shared_memory(false).unauthenticated(unauthenticated);
    thread::scope(|scope| {
        for rank in 0..2 {
            let (address, first, options, program) = (&address, &first, &options, &program);
            scope.spawn(move || {
                let config = StoreConfig::new(rank, 2, address);
                let listener = first.lock().expect("a lock").take_if(|_| rank == 0);
                let store = match listener {
                    Some(listener) => TcpStore::with_listener(listener, config),
                    None => TcpStore::join(config),
                };
                let endpoint = Endpoint::udp(options).expect("the loopback interface");
                let config = Config::for_endpoint(&endpoint).algorithm(Selection::Linear);
                let communicator = Communicator::create(&endpoint, &mut store.expect("a store"), config);
                program(&communicator.expect("a communicator"), rank);
            });
        }
    });
}

/// The median time of an Alltoall with so many bytes for each rank, of rank 0.
fn median(unauthenticated: bool, bytes: usize, operations: usize) -> Duration {
    let times = Mutex::new(Vec::new());
    run(unauthenticated, |communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let buffer = || endpoint.buffer(2 * bytes).expect("memory");
        let mut buffers: Option<(Buffer, Buffer)> = Some((buffer(), buffer()));
        for _ in 0..operations {
            let (send, receive) = buffers.take().expect("they come back");
            let begun = Instant::now();
            let request = communicator.alltoall(send, receive).expect("buffers that fit");
            let done = request.wait().unwrap_or_else(|failed| panic!("{failed}"));
            if rank == 0 {
                times.lock().expect("a lock").push(begun.elapsed());
            }
            buffers = done.send.map(|send| (send, done.receive));
        }
    });
    let mut times = times.into_inner().expect("a lock");
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let rounds = if quick { 1 } else { 9 };
    println!(
        "measured: Alltoall of two ranks over TCP on loopback, us: median of {rounds} rounds' medians (least, largest)"
    );
    println!("{:>10} {:>28} {:>28} {:>8}", "bytes", "with tags", "without", "ratio");
    for bytes in LENGTHS {
        let operations = if quick { 20 } else { (64 << 20) / (bytes + (16 << 10)) }.clamp(20, 2000);
        let mut kinds = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (unauthenticated, times) in [false, true].into_iter().zip(&mut kinds) {
                times.push(median(unauthenticated, bytes, operations).as_secs_f64() * 1e6);
            }
        }
        let [with, without] = kinds.map(|mut times| {
            times.sort_unstable_by(f64::total_cmp);
            (times[times.len() / 2], times[0], times[times.len() - 1])
        });
        let text = |(middle, least, most): (f64, f64, f64)| format!("{middle:.1} ({least:.1}, {most:.1})");
        println!("{bytes:>10} {:>28} {:>28} {:>8.2}", text(with), text(without), with.0 / without.0);
    }
}
