//! Attacks on the TCP connections of a job, by whoever reads or has the network, and by strangers: those between ranks,
//! and those to aggregators that are no ranks.
//!
//! The attacker learns where ranks listen, or takes their place, by what the ranks exchange when they meet. It does not
//! know the key, nor the secret of aggregators.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flexcast::bootstrap::{Exchange, ExchangeError, Secret};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Allreduce, Config, Error, Selection, SparseOptions};
use flexcast_aggregator::{Server, Settings};

use crate::faults::OnDrop;
use crate::group::{Group, block, check};
use crate::options;

/// Where connection information has the TCP port of its rank.
const TCP_PORT: Range<usize> = 52..56;
/// What whoever dials sends before its frames, and what it is answered: the lengths of what is sent at once.
struct Handshake {
    dials: [usize; 2],
    listens: [usize; 2],
}

/// Hello and proof; challenge and verdict.
const OF_RANKS: Handshake = Handshake { dials: [72, 32], listens: [64, 36] };
/// The same with a greeting before the hello, and an answer before the challenge.
const OF_AGGREGATORS: Handshake = Handshake { dials: [48 + 72, 32], listens: [8 + 64, 36] };

/// Bytes of a header; the first four are the length of what follows.
const HEADER: usize = 28;
const RANKS: u32 = 3;
const BYTES: usize = 4096;

/// An exchange that passes connection information on, and shows or changes the ports of other ranks.
pub(crate) struct Overheard<'e>(pub(crate) &'e mut dyn Exchange, pub(crate) &'e (dyn Fn(u32, u16) -> u16 + Sync));

impl Exchange for Overheard<'_> {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let own = self.rank();
        let mut all = self.0.exchange(tag, contribution)?;
        for (rank, info) in (0..).zip(&mut all).filter(|(rank, _)| *rank != own) {
            if let Some(port) = info.get_mut(TCP_PORT).filter(|_| is_connect_info(contribution)) {
                let before = u32::from_le_bytes(port.try_into().unwrap()) as u16;
                port.copy_from_slice(&u32::from((self.1)(rank, before)).to_le_bytes());
            }
        }
        Ok(all)
    }
}

fn is_connect_info(bytes: &[u8]) -> bool {
    bytes.starts_with(b"FXUD")
}

/// Messages between all pairs of ranks, every byte checked, or the error.
fn alltoall(communicator: &flexcast::Communicator, rank: u32) -> Result<(), Error> {
    let (endpoint, ranks) = (communicator.endpoint().clone(), communicator.size());
    let mut send = endpoint.buffer(ranks as usize * BYTES).unwrap();
    for other in 0..ranks {
        send.write(other as usize * BYTES, &block(rank * ranks + other, BYTES)).unwrap();
    }
    let receive = endpoint.buffer(ranks as usize * BYTES).unwrap();
    let request = communicator.alltoall(send, receive).map_err(|failed| failed.error)?;
    let done = request.wait().map_err(|failed| failed.error)?;
    (0..ranks).for_each(|other| check(&done.receive, other as usize * BYTES, &block(other * ranks + rank, BYTES)));
    Ok(())
}

fn configure(config: Config) -> Config {
    config.algorithm(Selection::Linear).barrier_timeout(Duration::from_secs(20))
}

/// A frame that comes to the attacker.
struct Passing<'p> {
    /// What whoever dials has said before its frames.
    handshake: &'p [u8],
    target: SocketAddr,
    number: usize,
}

/// Passes one connection on, and what one side has said frame by frame, through `change`: whoever dials, or with `back`
/// the other. Ends with the connection.
fn pass(
    near: TcpStream,
    (target, handshake, back): (SocketAddr, &Handshake, bool),
    change: impl Fn(Passing<'_>, Vec<u8>) -> Vec<Vec<u8>>,
) {
    let far = TcpStream::connect(target).unwrap();
    let (from, to, parts) = if back { (far, near, handshake.listens) } else { (near, far, handshake.dials) };
    std::thread::scope(|scope| {
        let (mut other, mut this) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        scope.spawn(move || {
            let _ = std::io::copy(&mut other, &mut this);
            let _ = this.shutdown(Shutdown::Write);
        });
        let (mut from, mut to) = (from, to);
        let mut run = || -> std::io::Result<()> {
            let mut handshake = Vec::new();
            for bytes in parts {
                let start = handshake.len();
                handshake.resize(start + bytes, 0);
                from.read_exact(&mut handshake[start..])?;
                to.write_all(&handshake[start..])?;
            }
            for number in 0.. {
                let mut frame = vec![0; HEADER];
                from.read_exact(&mut frame)?;
                let len = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
                frame.resize(HEADER + len, 0);
                from.read_exact(&mut frame[HEADER..])?;
                for frame in change(Passing { handshake: &handshake, target, number }, frame) {
                    to.write_all(&frame)?;
                }
            }
            Ok(())
        };
        let _ = run();
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// What an attacker makes of a frame.
trait Change: Fn(Passing<'_>, Vec<u8>) -> Vec<Vec<u8>> + Sync {}

impl<F: Fn(Passing<'_>, Vec<u8>) -> Vec<Vec<u8>> + Sync> Change for F {}

/// Passes connections on until `is_over`, and changes the frames of the first of them. `target`: where they go to,
/// which is known once somebody connects.
fn pass_all(
    proxy: &TcpListener,
    (target, handshake, back): (&(dyn Fn() -> SocketAddr + Sync), &Handshake, bool),
    is_over: &AtomicBool,
    change: &impl Change,
) {
    proxy.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            let Ok((near, _)) = proxy.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            near.set_nonblocking(false).unwrap();
            let to = (target(), handshake, back);
            let is_first = count == 0;
            count += 1;
            scope.spawn(move || {
                pass(near, to, |passing, frame| if is_first { change(passing, frame) } else { vec![frame] });
            });
        }
    });
}

/// The text of an error, marked if it names a connection.
fn text_of(ended: Result<(), Error>) -> String {
    match ended {
        Ok(()) => String::new(),
        Err(error) => {
            let is_named = matches!(error, Error::Connection { .. } | Error::Broken { connection: Some(_), .. });
            format!("{}{error}", if is_named { "named: " } else { "" })
        }
    }
}

/// Runs Alltoalls among ranks that reach rank 0 through an attacker, who changes the frames of the first of them. What
/// each rank's error says at the end.
fn tampered(change: impl Change) -> Vec<String> {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = proxy.local_addr().unwrap().port();
    let (target, texts) = (Mutex::new(None), Mutex::new(vec![String::new(); RANKS as usize]));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, target, change) = (&is_over, &target, &change);
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        let to = move || target.lock().unwrap().unwrap();
        scope.spawn(move || pass_all(&proxy, (&to, &OF_RANKS, false), is_over, change));
        let overhear = move |rank: u32, before: u16| {
            if rank > 0 {
                return before;
            }
            *target.lock().unwrap() = Some(SocketAddr::from(([127, 0, 0, 1], before)));
            port
        };
        Group::new(RANKS, options(), configure).run_overheard(&overhear, |communicator, rank| {
            let ended = (0..4).try_for_each(|_| alltoall(communicator, rank));
            texts.lock().unwrap()[rank as usize] = text_of(ended);
        });
    });
    texts.into_inner().unwrap()
}

/// A secret that is drawn as badly as a test may.
fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

fn aggregators(secret: Option<Secret>) -> Server {
    let settings = Settings { secret, ..Settings::default() };
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap()
}

/// Ranks that have these aggregators, and the secret that they share with them.
fn workers(aggregator: SocketAddr, secret: Option<Secret>) -> Group {
    let configure = move |config: Config| {
        configure(config).aggregators(vec![aggregator.to_string()]).aggregator_secret(secret.clone())
    };
    Group::new(RANKS, options(), configure)
}

/// A sparse AllReduce without zeros, every byte checked, or the error.
fn sum(communicator: &flexcast::Communicator, rank: u32) -> Result<(), Error> {
    let (endpoint, elements) = (communicator.endpoint().clone(), 20_000_u32);
    let of = |rank: u32| (1..=elements).map(move |at| at * (rank + 1));
    let mut send = endpoint.buffer(4 * elements as usize).unwrap();
    send.write(0, &of(rank).flat_map(u32::to_ne_bytes).collect::<Vec<_>>()).unwrap();
    let receive = endpoint.buffer(send.len()).unwrap();
    let sum = Reduction::of(Operator::Sum, DataType::U32).unwrap();
    let request = communicator.post(Allreduce::new(sum).sparse(SparseOptions::default()).buffers(send, receive));
    let done = request.and_then(|request| request.wait()).map_err(|failed| failed.error)?;
    let expected = (1..=elements).map(|at| at * (1..=communicator.size()).sum::<u32>());
    check(&done.receive, 0, &expected.flat_map(u32::to_ne_bytes).collect::<Vec<_>>());
    Ok(())
}

/// Sums by an aggregator that ranks reach through an attacker, who changes frames on the connection of one of them.
/// Where they reach it, and what each rank's error says at the end.
fn tampered_sums(secret: Option<Secret>, back: bool, change: impl Change) -> (String, Vec<String>) {
    let server = aggregators(secret.clone());
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, target) = (proxy.local_addr().unwrap(), server.address());
    let texts = Mutex::new(vec![String::new(); RANKS as usize]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, change) = (&is_over, &change);
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        scope.spawn(move || pass_all(&proxy, (&|| target, &OF_AGGREGATORS, back), is_over, change));
        workers(address, secret).run_once(false, |communicator, rank| {
            let ended = (0..4).try_for_each(|_| sum(communicator, rank));
            texts.lock().unwrap()[rank as usize] = text_of(ended);
        });
    });
    (address.to_string(), texts.into_inner().unwrap())
}

#[test]
fn a_connection_through_a_stranger_that_changes_nothing_is_as_good_as_any() {
    assert_eq!(tampered(|_, frame| vec![frame]), ["", "", ""]);
}

#[test]
fn frames_that_are_changed_repeated_or_swapped_fail_all_ranks_and_name_rank_and_address() {
    let flipped = |Passing { number, .. }: Passing<'_>, mut frame: Vec<u8>| {
        if number == 1 {
            *frame.last_mut().unwrap() ^= 1;
        }
        vec![frame]
    };
    let repeated = |Passing { number, .. }: Passing<'_>, frame: Vec<u8>| match number {
        1 => vec![frame.clone(), frame],
        _ => vec![frame],
    };
    let held = Mutex::new(Vec::new());
    let swapped = |Passing { number, .. }: Passing<'_>, frame: Vec<u8>| match number {
        1 => {
            *held.lock().unwrap() = frame;
            Vec::new()
        }
        2 => vec![frame, std::mem::take(&mut held.lock().unwrap())],
        _ => vec![frame],
    };
    for (what, texts) in
        [("flipped", tampered(flipped)), ("repeated", tampered(repeated)), ("swapped", tampered(swapped))]
    {
        assert!(texts.iter().all(|text| !text.is_empty()), "{what}: {texts:?}");
        let text = &texts[0];
        assert!(text.starts_with("named: "), "{what}: {text}");
        assert!(text.contains("the connection with rank ") && text.contains("127.0.0.1:"), "{what}: {text}");
        assert!(text.contains("bytes that the peer has not sent"), "{what}: {text}");
    }
}

#[test]
fn frames_of_aggregators_that_are_changed_fail_all_ranks_and_name_the_aggregator() {
    let flipped = |Passing { number, .. }: Passing<'_>, mut frame: Vec<u8>| {
        if number == 2 {
            *frame.last_mut().unwrap() ^= 1;
        }
        vec![frame]
    };
    let repeated = |Passing { number, .. }: Passing<'_>, frame: Vec<u8>| match number {
        2 => vec![frame.clone(), frame],
        _ => vec![frame],
    };
    let all = || Some(secret(b'x'));
    for (what, (address, texts)) in [
        ("flipped on the way there", tampered_sums(all(), false, flipped)),
        ("repeated on the way there", tampered_sums(all(), false, repeated)),
        ("flipped on the way back", tampered_sums(all(), true, flipped)),
        ("repeated on the way back", tampered_sums(all(), true, repeated)),
    ] {
        assert!(texts.iter().all(|text| text.contains(&format!("aggregator {address}"))), "{what}: {texts:?}");
        // On the way there the daemon finds it, and closes that connection: its rank may notify the others first.
        let words = ["bytes that the peer has not sent", "has gone in the midst of the operation"];
        let words = if what.ends_with("back") { &words[..1] } else { &words[..] };
        assert!(texts.iter().any(|text| words.iter().any(|word| text.contains(word))), "{what}: {texts:?}");
    }
    for back in [false, true] {
        assert_eq!(tampered_sums(all(), back, |_, frame| vec![frame]).1, ["", "", ""]);
        assert_eq!(tampered_sums(None, back, |_, frame| vec![frame]).1, ["", "", ""], "without a secret");
    }
}

#[test]
fn what_a_rank_has_said_to_an_aggregator_does_not_serve_whoever_says_it_again() {
    let copies = Mutex::new(Vec::new());
    let said = Mutex::new(Vec::new());
    let (_, texts) = tampered_sums(Some(secret(b'x')), false, |Passing { handshake, target, .. }, frame| {
        let mut said = said.lock().unwrap();
        said.extend_from_slice(&frame);
        if let Ok(mut copy) = TcpStream::connect(target) {
            let _ = copy.write_all(&[handshake, &said[..]].concat());
            copies.lock().unwrap().push(copy);
        }
        vec![frame]
    });
    assert_eq!(texts, ["", "", ""], "every byte is right");
    assert!(copies.into_inner().unwrap().len() >= 4);
}

#[test]
fn a_secret_of_one_side_alone_or_another_one_is_refused_by_name_and_at_once() {
    for (of_server, of_ranks, said) in [
        (Some(b'x'), None, "it has a secret and the rank has none"),
        (None, Some(b'x'), "the rank has a secret and it has none"),
        (Some(b'x'), Some(b'y'), "its secret is another one than the rank's"),
    ] {
        let server = aggregators(of_server.map(secret));
        let address = server.address();
        workers(address, of_ranks.map(secret)).run_once(true, |communicator, rank| {
            let start = Instant::now();
            let text = sum(communicator, rank).unwrap_err().to_string();
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            assert!(text.contains(&format!("aggregator {address}")), "{text}");
            // Ranks that first learn of the failure of another have no reason of their own.
            assert!(text.contains(said) && text.contains("FLEXCAST_SECRET_FILE") || text.contains("rank"), "{text}");
        });
        assert!(server.status().refused > 0 && server.status().connected == 0, "{:?}", server.status());
    }
}

#[test]
fn what_a_rank_has_said_does_not_serve_whoever_says_it_again() {
    // The attacker holds a frame back, and says all again on a connection of its own, with other bytes at the end: so
    // the copy is received first.
    let copies = Mutex::new(Vec::new());
    let said = Mutex::new(Vec::new());
    let texts = tampered(|Passing { handshake, target, .. }, frame| {
        let mut said = said.lock().unwrap();
        said.extend_from_slice(&frame);
        let mut forged = [handshake, &said[..]].concat();
        forged.iter_mut().rev().take(BYTES.min(frame.len())).for_each(|byte| *byte ^= 0xff);
        // At the end nobody listens any more.
        if let Ok(mut copy) = TcpStream::connect(target) {
            let _ = copy.write_all(&forged);
            std::thread::sleep(Duration::from_millis(5));
            copies.lock().unwrap().push(copy);
        }
        vec![frame]
    });
    assert_eq!(texts, ["", "", ""], "every byte is right");
    assert!(copies.into_inner().unwrap().len() >= 4);
}

/// Connects to all ports again and again, and says nothing.
fn connect_in_silence(ports: &Mutex<Vec<u16>>, is_over: &AtomicBool) {
    let mut silent = std::collections::VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        let all: Vec<u16> = ports.lock().unwrap().clone();
        for port in all {
            let more = (0..64).filter_map(|_| TcpStream::connect(("127.0.0.1", port)).ok());
            silent.extend(more);
        }
        silent.drain(..silent.len().saturating_sub(500));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn silent_connections_to_an_aggregator_do_not_end_a_job() {
    let server = aggregators(Some(secret(b'x')));
    let address = server.address();
    let (ports, is_over) = (Mutex::new(vec![address.port()]), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (ports, is_over) = (&ports, &is_over);
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        scope.spawn(move || connect_in_silence(ports, is_over));
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..3 {
            workers(address, Some(secret(b'x'))).run_once(true, |communicator, rank| {
                for _ in 0..20 {
                    sum(communicator, rank).unwrap_or_else(|error| panic!("{error}"));
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    assert!(server.status().accepted > 200 && server.status().refused == 0, "{:?}", server.status());
}

#[test]
fn silent_connections_do_not_end_a_job() {
    let (ports, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (ports, is_over) = (&ports, &is_over);
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        scope.spawn(move || connect_in_silence(ports, is_over));
        let overhear = move |_: u32, before: u16| {
            let mut ports = ports.lock().unwrap();
            if !ports.contains(&before) {
                ports.push(before);
            }
            before
        };
        // Of six ranks not all pairs are connected at first.
        Group::new(6, options(), configure).run_overheard(&overhear, |communicator, rank| {
            // Barriers for a while, and then connections that are made in the midst of it all.
            for _ in 0..100 {
                std::thread::sleep(Duration::from_millis(2));
                let done = communicator.barrier().unwrap().wait();
                done.map(drop).unwrap_or_else(|failed| panic!("{failed}"));
            }
            alltoall(communicator, rank).unwrap_or_else(|error| panic!("{error}"));
        });
    });
}
