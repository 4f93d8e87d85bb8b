use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::carrier::udp::datagram::Secret;
use crate::error::Error;

const TIMEOUT: Duration = Duration::from_secs(10);
const SUBGROUPS: usize = 2;

fn listener() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

fn sockets() -> Vec<std::net::UdpSocket> {
    (0..SUBGROUPS).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect()
}

fn handshakes(ranks: usize) -> Vec<Handshake> {
    let listeners: Vec<u64> = (0..ranks).map(|_| listener()).collect();
    let member = |(listener, rank): (&u64, u32)| Member::new(rank, *listener).unwrap();
    let members: Vec<Member> = listeners.iter().zip(3..).map(member).collect();
    let of = |(own, listener): (usize, &u64)| Handshake {
        wake_up: WakeUp::new(*listener).unwrap(),
        members: members.clone(),
        own,
        has_all: true,
        subgroups: SUBGROUPS,
        communicator: 5,
        secret: Secret([1, 2, 3, 4]),
        timeout: TIMEOUT,
    };
    listeners.iter().enumerate().map(of).collect()
}

/// The fan-outs of ranks after their handshakes.
fn fanouts(ranks: usize) -> Vec<Fanout> {
    let threads: Vec<_> =
        handshakes(ranks).into_iter().map(|handshake| std::thread::spawn(|| handshake.run(|| Ok(sockets())))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap().unwrap().unwrap().0).collect()
}

/// What there is to read: the ring, and each datagram.
fn read(fanout: &Fanout) -> Vec<(usize, Vec<u8>)> {
    let mut came = Vec::new();
    fanout.read(usize::MAX, |fanout, record| {
        for (at, len) in record.datagrams() {
            let mut datagram = vec![0; len];
            fanout.copy(record, at, &mut datagram);
            came.push((record.ring, datagram));
        }
    });
    came
}

fn write(fanout: &Fanout, datagrams: &[u8], each: usize) -> bool {
    fanout.write(datagrams.len(), each, |ring| ring.put(datagrams))
}

fn pumped(fanout: &Fanout, datagrams: &[u8], each: usize) -> bool {
    fanout.has_come(0);
    fanout.pump(0).unwrap().write(datagrams, each)
}

#[test]
fn what_one_writes_comes_to_those_who_read() {
    let ranks = fanouts(3);
    // Nobody reads: what is written is for nobody.
    assert!(write(&ranks[0], b"lost", 4));
    ranks.iter().for_each(Fanout::join);
    assert!(write(&ranks[0], b"onetwo3", 3));
    assert!(pumped(&ranks[1], b"from the network", 16));
    let expected =
        vec![(0, b"one".to_vec()), (0, b"two".to_vec()), (0, b"3".to_vec()), (3, b"from the network".to_vec())];
    assert!(ranks[2].is_ready());
    assert_eq!(read(&ranks[2]), expected);
    assert!(!ranks[2].is_ready());
    assert_eq!(read(&ranks[0]), expected[3..]);
    ranks[1].leave();
    assert!(read(&ranks[1]).is_empty() && !ranks[1].is_ready());
    ranks[1].join();
    assert!(read(&ranks[1]).is_empty());
}

#[test]
fn a_writer_waits_for_the_slowest_reader_and_for_none_that_has_left() {
    let ranks = fanouts(3);
    ranks.iter().for_each(Fanout::join);
    let run = vec![7; 60_000];
    let count = (0..100).take_while(|_| write(&ranks[0], &run, 1000)).count();
    assert_eq!(count, RING_BYTES / (run.len() + HEAD_BYTES));
    assert!(!ranks[0].has_room(run.len()));
    assert_eq!(read(&ranks[1]).len(), count * 60);
    assert!(!write(&ranks[0], &run, 1000), "rank 2 has not read");
    ranks[2].leave();
    assert!(write(&ranks[0], &run, 1000));
    // The network's ring fills up, too, and its room comes back.
    ranks[2].join();
    while pumped(&ranks[0], &run, 1000) {}
    assert!(!ranks[0].has_network_room(0, 1, run.len()));
    ranks.iter().for_each(|rank| drop(read(rank)));
    assert!(ranks[0].has_network_room(0, 1, run.len()));
}

#[test]
fn one_has_the_socket_and_reads_again_for_the_others() {
    let ranks = fanouts(2);
    assert!(ranks[0].pump(0).is_none(), "nothing has come");
    ranks[0].has_come(0);
    let pump = ranks[0].pump(0).unwrap();
    // The other one is notified of a datagram, and cannot have the socket.
    ranks[1].has_come(0);
    assert!(ranks[1].pump(0).is_none());
    drop(pump);
    drop(ranks[0].pump(0).expect("something has come meanwhile"));
    assert!(ranks[1].pump(0).is_none());
    ranks[0].has_come(0);
    ranks[0].pump(0).unwrap().is_not_done();
    assert!(ranks[1].pump(0).is_some(), "something is left");
}

#[test]
fn whoever_sleeps_is_woken_once() {
    let ranks = fanouts(2);
    let is_woken = |fanout: &Fanout| {
        let mut fds =
            [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(fanout.wake_up().unwrap()), nix::poll::PollFlags::POLLIN)];
        let any = nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() > 0;
        fanout.wake_up().unwrap().drain();
        any
    };
    ranks.iter().for_each(Fanout::join);
    assert!(!ranks[1].arm());
    assert!(!is_woken(&ranks[1]));
    write(&ranks[0], b"x", 1);
    assert!(is_woken(&ranks[1]));
    write(&ranks[0], b"x", 1);
    assert!(!is_woken(&ranks[1]) && ranks[1].arm());
    read(&ranks[1]);
    assert!(!ranks[1].arm());
    ranks[1].disarm();
    write(&ranks[0], b"x", 1);
    assert!(!is_woken(&ranks[1]));
}

#[test]
fn words_that_cannot_be_lose_datagrams_and_nothing_else() {
    let ranks = fanouts(2);
    ranks.iter().for_each(Fanout::join);
    for tail in [1, 7, 8, 9, 4096, RING_BYTES as u64, RING_BYTES as u64 + 1, u64::MAX, 1 << 63] {
        ranks[0].word(Word::Tail(0)).store(tail, Ordering::Release);
        for _ in 0..3 {
            ranks[1].memory.write(0, tail, &[0xFF; 64]);
            let came = read(&ranks[1]);
            assert!(came.iter().map(|(_, datagram)| datagram.len()).sum::<usize>() <= RING_BYTES);
        }
        assert!(!ranks[1].is_ready(), "{tail}");
    }
    for head in [1, RING_BYTES as u64 + 9, 1 << 63] {
        ranks[1].word(Word::Head(0, 1)).store(head.wrapping_mul(3), Ordering::Release);
        write(&ranks[0], &[1; 100], 10);
    }
    // Somebody holds the lock for ever.
    ranks[0].word(Word::Lock(0)).store(99, Ordering::Release);
    ranks[0].has_come(0);
    assert!(ranks[0].pump(0).is_none());
}

#[test]
fn where_one_cannot_share_nobody_does_and_who_is_silent_is_named() {
    let mut all = handshakes(3);
    let third = all.pop().unwrap();
    let others: Vec<_> =
        all.into_iter().map(|handshake| std::thread::spawn(|| handshake.run(|| Ok(sockets())))).collect();
    // It is handed the memory, and cannot use it.
    let deadline = Instant::now() + TIMEOUT;
    third.refuse(deadline).unwrap();
    for other in others {
        assert!(other.join().unwrap().unwrap().is_none());
    }
    // The lowest has no socket.
    let threads: Vec<_> = handshakes(2)
        .into_iter()
        .map(|handshake| std::thread::spawn(|| handshake.run(|| Err(Error::Peer { rank: 0, reason: String::new() }))))
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap().unwrap().is_none()));
    // One does not come.
    for absent in 0..2 {
        let mut all = handshakes(2);
        let gone = all.remove(absent);
        let mut here = all.remove(0);
        here.timeout = Duration::from_millis(50);
        let text = here.run(|| Ok(sockets())).map(drop).unwrap_err().to_string();
        assert!(text.contains(&format!("rank {}", 3 + absent)) && text.contains("FLEXCAST_SHM=0"), "{text}");
        drop(gone);
    }
    // A message under another key is dropped.
    let mut all = handshakes(2);
    all[1].secret = Secret([9; 4]);
    all.iter_mut().for_each(|handshake| handshake.timeout = Duration::from_millis(50));
    let threads: Vec<_> =
        all.into_iter().map(|handshake| std::thread::spawn(|| handshake.run(|| Ok(sockets())))).collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap().is_err()));
}

#[test]
fn records_come_whole_and_in_order_to_threads_that_sleep() {
    const RECORDS: u64 = 20_000;
    let ranks = fanouts(3);
    ranks.iter().for_each(Fanout::join);
    let content = |number: u64, at: usize| (number.wrapping_mul(0x9E37_79B9).wrapping_add(at as u64) >> 3) as u8;
    std::thread::scope(|scope| {
        let writer = &ranks[0];
        scope.spawn(move || {
            for number in 0..RECORDS {
                let len = 1 + (number * 7919 % 3000) as usize;
                let bytes: Vec<u8> =
                    number.to_le_bytes().into_iter().chain((0..len).map(|at| content(number, at))).collect();
                while !write(writer, &bytes, bytes.len()) {
                    std::thread::yield_now();
                }
            }
        });
        for reader in &ranks[1..] {
            scope.spawn(move || {
                let until = Instant::now() + Duration::from_secs(60);
                let mut next = 0;
                while next < RECORDS {
                    assert!(Instant::now() < until, "{next} records came");
                    for (ring, datagram) in read(reader) {
                        let number = u64::from_le_bytes(datagram[..8].try_into().unwrap());
                        assert_eq!((ring, number), (0, next));
                        assert!(datagram[8..].iter().enumerate().all(|(at, byte)| *byte == content(number, at)));
                        next += 1;
                    }
                    if next < RECORDS && !reader.arm() {
                        let mut fds = [nix::poll::PollFd::new(
                            std::os::fd::AsFd::as_fd(reader.wake_up().unwrap()),
                            nix::poll::PollFlags::POLLIN,
                        )];
                        let woken = nix::poll::poll(&mut fds, nix::poll::PollTimeout::from(20_000u16)).unwrap();
                        assert!(woken > 0, "{next} records came, and nobody woke the reader");
                        reader.wake_up().unwrap().drain();
                    }
                    reader.disarm();
                }
            });
        }
    });
}

proptest! {
    /// However records are cut and however far one reader is ahead of another: each reads all that was written since it
    /// joined, in order.
    #[test]
    fn each_reader_gets_all(steps in prop::collection::vec((0..4usize, 1..70_000usize, 1..9000usize), 1..80)) {
        let ranks = fanouts(2);
        ranks.iter().for_each(Fanout::join);
        let mut expected = [Vec::new(), Vec::new()];
        let mut number = 0u8;
        for (what, bytes, each) in steps {
            match what {
                0 | 1 => {
                    number = number.wrapping_add(1);
                    let datagrams = vec![number; bytes];
                    if write(&ranks[0], &datagrams, each) {
                        expected[1].extend(datagrams.chunks(each).map(|datagram| (0, datagram.to_vec())));
                    }
                }
                2 => {
                    number = number.wrapping_add(1);
                    let datagrams = vec![number; bytes];
                    if pumped(&ranks[1], &datagrams, each) {
                        expected.iter_mut().for_each(|expected| expected.extend(datagrams.chunks(each).map(|datagram| (2, datagram.to_vec()))));
                    }
                }
                _ => {
                    let reader = bytes % 2;
                    let mut came = read(&ranks[reader]);
                    // Rings are read one after the other.
                    came.sort_by_key(|(ring, _)| *ring);
                    expected[reader].sort_by_key(|(ring, _)| *ring);
                    prop_assert_eq!(&came, &std::mem::take(&mut expected[reader]));
                }
            }
        }
    }
}
