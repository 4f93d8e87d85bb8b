//! Attacks on the TCP connections of a job, by whoever reads or has the network, and by strangers.
//!
//! The attacker learns where ranks listen, or takes their place, by what the ranks exchange when they meet. It does not
//! know the key.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flexcast::bootstrap::{Exchange, ExchangeError};
use flexcast::{Config, Error, Selection};

use crate::faults::OnDrop;
use crate::group::{Group, block, check};
use crate::options;

/// Where an endpoint has the TCP port of its rank.
const TCP_PORT: Range<usize> = 52..56;
/// Bytes that whoever dials sends before its frames: first its hello, then its proof.
const HANDSHAKE: usize = HELLO + 32;
const HELLO: usize = 72;
/// Bytes of a header; the first four are the length of what follows.
const HEADER: usize = 28;
const RANKS: u32 = 3;
const BYTES: usize = 4096;

/// An exchange that passes endpoints on, and shows or changes the ports of other ranks.
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
        for (rank, endpoint) in (0..).zip(&mut all).filter(|(rank, _)| *rank != own) {
            if let Some(port) = endpoint.get_mut(TCP_PORT).filter(|_| endpoint_begins(contribution)) {
                let before = u32::from_le_bytes(port.try_into().unwrap()) as u16;
                port.copy_from_slice(&u32::from((self.1)(rank, before)).to_le_bytes());
            }
        }
        Ok(all)
    }
}

fn endpoint_begins(bytes: &[u8]) -> bool {
    bytes.starts_with(b"FXUD")
}

/// Messages between all pairs of ranks, every byte checked, or the error.
fn alltoall(communicator: &flexcast::Communicator, rank: u32) -> Result<(), Error> {
    let (card, ranks) = (communicator.card().clone(), communicator.size());
    let mut send = card.buffer(ranks as usize * BYTES).unwrap();
    for other in 0..ranks {
        send.write(other as usize * BYTES, &block(rank * ranks + other, BYTES)).unwrap();
    }
    let receive = card.buffer(ranks as usize * BYTES).unwrap();
    let request = communicator.all_to_all(send, receive).map_err(|failed| failed.error)?;
    let done = communicator.wait(request).map_err(|failed| failed.error)?;
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

/// Passes one connection on, and what whoever dials has said frame by frame, through `change`. Ends with the
/// connection.
fn pass(near: TcpStream, target: SocketAddr, change: impl Fn(Passing<'_>, Vec<u8>) -> Vec<Vec<u8>>) {
    let far = TcpStream::connect(target).unwrap();
    std::thread::scope(|scope| {
        let (mut from, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        scope.spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let (mut near, mut far) = (near, far);
        let mut run = || -> std::io::Result<()> {
            let mut handshake = [0; HANDSHAKE];
            for part in [0..HELLO, HELLO..HANDSHAKE] {
                near.read_exact(&mut handshake[part.clone()])?;
                far.write_all(&handshake[part])?;
            }
            for number in 0.. {
                let mut frame = vec![0; HEADER];
                near.read_exact(&mut frame)?;
                let len = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
                frame.resize(HEADER + len, 0);
                near.read_exact(&mut frame[HEADER..])?;
                for frame in change(Passing { handshake: &handshake, target, number }, frame) {
                    far.write_all(&frame)?;
                }
            }
            Ok(())
        };
        let _ = run();
        let _ = far.shutdown(Shutdown::Both);
    });
}

/// Runs Alltoalls among ranks that reach rank 0 through an attacker, who changes the frames of the first of them. What
/// each rank's error says at the end.
fn tampered(change: impl Fn(Passing<'_>, Vec<u8>) -> Vec<Vec<u8>> + Sync) -> Vec<String> {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let port = proxy.local_addr().unwrap().port();
    let (target, texts) = (Mutex::new(None), Mutex::new(vec![String::new(); RANKS as usize]));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, target, change) = (&is_over, &target, &change);
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        scope.spawn(move || {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let Ok((near, _)) = proxy.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                near.set_nonblocking(false).unwrap();
                let target = target.lock().unwrap().unwrap();
                let is_first = count == 0;
                count += 1;
                scope.spawn(move || {
                    pass(near, target, |passing, frame| if is_first { change(passing, frame) } else { vec![frame] });
                });
            }
        });
        let overhear = move |rank: u32, before: u16| {
            if rank > 0 {
                return before;
            }
            *target.lock().unwrap() = Some(SocketAddr::from(([127, 0, 0, 1], before)));
            port
        };
        Group::new(RANKS, options(), configure).run_overheard(&overhear, |communicator, rank| {
            let ended = (0..4).try_for_each(|_| alltoall(communicator, rank));
            texts.lock().unwrap()[rank as usize] = match ended {
                Ok(()) => String::new(),
                Err(error) => {
                    let is_named =
                        matches!(error, Error::Connection { .. } | Error::Broken { connection: Some(_), .. });
                    format!("{}{error}", if is_named { "named: " } else { "" })
                }
            };
        });
    });
    texts.into_inner().unwrap()
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
fn what_a_rank_has_said_does_not_serve_whoever_says_it_again() {
    // The attacker holds a frame back, and says all again on a connection of its own, with other bytes at the end: so
    // the copy is heard first.
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

#[test]
fn silent_connections_do_not_end_a_job() {
    let (ports, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (ports, is_over) = (&ports, &is_over);
        let _end = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        scope.spawn(move || {
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
        });
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
                let done = communicator.wait(communicator.barrier().unwrap());
                done.map(drop).unwrap_or_else(|failed| panic!("{failed}"));
            }
            alltoall(communicator, rank).unwrap_or_else(|error| panic!("{error}"));
        });
    });
}
