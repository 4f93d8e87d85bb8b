//! Attacks on connections between ranks: by whoever has the network between them, and by strangers.

use std::collections::VecDeque;
use std::io::Read as _;

use flexcast_proto::session::{CHALLENGE_BYTES, HELLO_BYTES, PROOF_BYTES, VERDICT_BYTES};
use zerocopy::FromBytes as _;

use super::*;
use crate::strangers::MOST_OF_ADDRESS;

/// One direction of a connection that goes through the attacker: how many bytes of the handshake are to come, and what
/// has come behind them.
#[derive(Default)]
struct Way {
    handshake: usize,
    passed: Vec<u8>,
    frames: Vec<u8>,
}

/// Somebody in between who passes the handshake on, and keeps the frames until there are so many.
struct Attacker {
    listener: TcpListener,
    target: std::net::SocketAddr,
    ends: Option<[TcpStream; 2]>,
    /// From whoever dials, and back.
    ways: [Way; 2],
    /// Connections that it closes before it passes one on.
    refuses: u32,
}

impl Attacker {
    fn new(target: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let ways = [HELLO_BYTES + PROOF_BYTES, CHALLENGE_BYTES + VERDICT_BYTES]
            .map(|handshake| Way { handshake, ..Way::default() });
        Self { listener, target, ends: None, ways, refuses: 0 }
    }

    fn turn(&mut self) {
        if let Ok((near, _)) = self.listener.accept() {
            if self.refuses > 0 {
                self.refuses -= 1;
                return;
            }
            let far = TcpStream::connect(self.target).unwrap();
            self.ends = Some([near, far].map(|stream| {
                stream.set_nonblocking(true).unwrap();
                stream
            }));
        }
        let Some(ends) = &mut self.ends else { return };
        for (from, way) in self.ways.iter_mut().enumerate() {
            let mut room = [0; 1 << 16];
            while let Ok(bytes @ 1..) = ends[from].read(&mut room) {
                let (handshake, frames) = room[..bytes].split_at(way.handshake.min(bytes));
                way.handshake -= handshake.len();
                ends[1 - from].write_all(handshake).unwrap();
                way.passed.extend_from_slice(handshake);
                way.frames.extend_from_slice(frames);
            }
        }
    }

    /// The frames that whoever dials has sent, if there are so many.
    fn frames(&self, count: usize) -> Option<Vec<Vec<u8>>> {
        let (mut rest, mut frames) = (&self.ways[0].frames[..], Vec::new());
        while let Ok((frame, _)) = Frame::read_from_prefix(rest) {
            let (whole, behind) = rest.split_at_checked(FRAME_BYTES + frame.len.get() as usize)?;
            frames.push(whole.to_vec());
            rest = behind;
        }
        (frames.len() == count).then_some(frames)
    }

    fn inject(&mut self, bytes: &[u8]) {
        let [_, far] = self.ends.as_mut().unwrap();
        far.set_nonblocking(false).unwrap();
        far.write_all(bytes).unwrap();
        far.set_nonblocking(true).unwrap();
    }
}

/// What an attacker makes of the frames that it has.
type Change = Box<dyn FnOnce(&[Vec<u8>], &Attacker) -> Vec<u8>>;

/// Rank 1, which says a few things, and rank 0, which receives them through an attacker who makes something else of the
/// frames. What rank 0 receives, and with which code and reason it breaks, if it does.
fn tampered(change: impl FnOnce(&[Vec<u8>], &Attacker) -> Vec<u8>) -> (Vec<String>, Option<(u16, Option<Fault>)>) {
    let all = listeners();
    let mut attacker = Attacker::new(all[0].local_addr().unwrap());
    let mut meshes = [0, 1].map(|own| Mesh::of(connect(own, &all), Vec::new()));
    meshes[1].connect.addresses[0] = attacker.listener.local_addr().unwrap();
    let source = Mouth((0..20_000).map(content).collect());
    meshes[1].say(0, 1, b"first", &[]);
    meshes[1].say(0, 1, b"second", b"with data");
    meshes[1].transfer(0, head(1, 20_000), PART, &source);
    let mut inbox = [Recorder::new(1, 20_000), Recorder::new(1, 0)];
    let until = Instant::now() + BOUND;
    let mut change = Some(change);
    let mut settled = None;
    let mut broken = None;
    while settled.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(50)) {
        assert!(Instant::now() < until, "nothing comes of it: {:?}", inbox[0].received);
        meshes[1].flush(&source);
        turn(&mut meshes, &mut inbox);
        attacker.turn();
        if let Some(frames) = attacker.frames(3).filter(|_| change.is_some()) {
            let bytes = change.take().unwrap()(&frames, &attacker);
            attacker.inject(&bytes);
            if bytes.len() < 20_000 {
                // It has cut something off, and the connection with it.
                attacker.ends = None;
            }
        }
        let mesh = &mut meshes[0];
        mesh.take_broken(|rank, code| broken = Some((rank, code)));
        if (broken.is_some() || inbox[0].received.len() == 3) && settled.is_none() {
            settled = Some(Instant::now());
        }
    }
    let broken = broken.map(|(rank, code)| {
        assert_eq!(rank, 1);
        (code, meshes[0].fault(1))
    });
    let [recorder, _] = inbox;
    if recorder.received.len() == 3 {
        assert!(recorder.all() == source.0);
    }
    (recorder.received, broken)
}

#[test]
fn what_is_passed_on_unchanged_is_received() {
    let (received, broken) = tampered(|frames, _| frames.concat());
    assert_eq!((received.len(), broken), (3, None), "{received:?}");
}

#[test]
fn bytes_that_the_peer_has_not_sent_in_this_place_end_the_connection_by_name() {
    let flip = |frame: usize, at: usize| {
        move |frames: &[Vec<u8>], _: &Attacker| {
            let mut frames = frames.to_vec();
            frames[frame][at] ^= 1;
            frames.concat()
        }
    };
    let (right, _) = tampered(|frames, _| frames.concat());
    // How many of the three are received before.
    let cases: Vec<(&str, usize, Change)> = vec![
        ("the length", 0, Box::new(flip(0, 0))),
        ("the length, so that more is waited for", 2, Box::new(flip(2, 2))),
        ("the kind", 1, Box::new(flip(1, 4))),
        ("the operation", 1, Box::new(flip(1, 8))),
        ("a tag", 1, Box::new(flip(1, 13))),
        ("the other tag", 1, Box::new(flip(1, 21))),
        ("a control message", 1, Box::new(flip(1, FRAME_BYTES + 2))),
        ("what a fragment is of", 2, Box::new(flip(2, FRAME_BYTES + 1))),
        ("the first byte of a fragment", 2, Box::new(flip(2, FRAME_BYTES + HEAD_BYTES))),
        ("its last byte", 2, Box::new(flip(2, FRAME_BYTES + HEAD_BYTES + 19_999))),
        ("two frames in the other order", 0, Box::new(|frames, _| [&frames[1][..], &frames[0], &frames[2]].concat())),
        ("one twice", 1, Box::new(|frames, _| [&frames[0][..], &frames[0], &frames[1], &frames[2]].concat())),
        ("one left out", 1, Box::new(|frames, _| [&frames[0][..], &frames[2]].concat())),
        (
            "one without a tag put in",
            1,
            Box::new(|frames, _| [&frames[0][..], &frame(MESSAGE, 1, b"inserted"), &frames[1], &frames[2]].concat()),
        ),
        (
            "what the receiver has sent itself",
            0,
            Box::new(|frames, attacker| [&attacker.ways[1].passed[..], &frames.concat()].concat()),
        ),
    ];
    for (what, count, change) in cases {
        let (received, broken) = tampered(change);
        assert_eq!(received, right[..count], "{what}");
        let (code, fault) = broken.unwrap_or_else(|| panic!("{what}: nobody notices"));
        let Fault { address, reason } = fault.unwrap_or_else(|| panic!("{what}: no reason for {code}"));
        assert_eq!(code, peer::NONSENSE, "{what}");
        assert!(
            reason.contains("bytes that the peer has not sent") && address.starts_with("127.0.0.1:"),
            "{what}: {reason}"
        );
    }
}

#[test]
fn a_connection_that_is_cut_is_broken_after_what_has_come() {
    let (received, broken) = tampered(|frames, _| frames.concat()[..frames[0].len() + 9].to_vec());
    assert_eq!(received.len(), 1, "{received:?}");
    let (code, fault) = broken.unwrap();
    assert_eq!((i32::from(code), fault), (nix::libc::ECONNRESET, None));
}

#[test]
fn a_copy_of_a_greeting_has_no_effect_before_or_after_the_original() {
    let all = listeners();
    let port = all[0].local_addr().unwrap();
    let mut attacker = Attacker::new(port);
    let mut meshes = [0, 1].map(|own| Mesh::of(connect(own, &all), Vec::new()));
    meshes[1].connect.addresses[0] = attacker.listener.local_addr().unwrap();
    meshes[1].say(0, 1, b"original", &[]);
    let mut inbox = [Recorder::new(1, 0), Recorder::new(1, 0)];
    let until = Instant::now() + BOUND;
    let frames = loop {
        assert!(Instant::now() < until);
        turn(&mut meshes, &mut inbox);
        attacker.turn();
        if let Some(frames) = attacker.frames(1) {
            break frames;
        }
    };
    // All that the rank has said, and something else behind it, on two connections: one is received before its own
    // frames are, one after them.
    let mut forged = [&attacker.ways[0].passed[..], &frames.concat()].concat();
    *forged.last_mut().unwrap() ^= 0xff;
    let copy = || {
        let mut copy = TcpStream::connect(port).unwrap();
        copy.write_all(&forged).unwrap();
        copy
    };
    let _before = copy();
    (0..20).for_each(|_| turn(&mut meshes, &mut inbox));
    attacker.inject(&frames.concat());
    while inbox[0].received.is_empty() {
        assert!(Instant::now() < until);
        turn(&mut meshes, &mut inbox);
    }
    let _after = copy();
    for _ in 0..20 {
        turn(&mut meshes, &mut inbox);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        inbox[0].received.len() == 1 && inbox[0].received[0].contains(&format!("{:?}", b"original")),
        "{:?}",
        inbox[0].received
    );
    meshes[0].take_broken(|rank, code| panic!("rank {rank} breaks with {code}"));
    assert_eq!(meshes[0].peers.len(), 1);
}

#[test]
fn a_rank_that_proves_itself_twice_fails_with_both_addresses() {
    let all = listeners();
    let mut meshes = [0, 1, 1].map(|own| Mesh::of(connect(own, &all), Vec::new()));
    let mut inbox = [0; 3].map(|_| Recorder::new(1, 0));
    let mut broken = [None; 3];
    for rank in [1, 2] {
        meshes[rank].say(0, 1, b"hello", &[]);
        let until = Instant::now() + BOUND;
        while (inbox[0].received.is_empty() || (rank == 2 && broken[2].is_none())) && Instant::now() < until {
            turn(&mut meshes, &mut inbox);
            for (mesh, broken) in meshes.iter_mut().zip(&mut broken) {
                mesh.take_broken(|rank, code| *broken = Some((rank, code)));
            }
        }
    }
    assert_eq!((inbox[0].received.len(), broken[0]), (1, Some((1, peer::NONSENSE))), "{:?}", inbox[0].received);
    let Fault { address, reason } = meshes[0].fault(1).unwrap();
    let addresses = reason.matches("127.0.0.1:").count() + address.matches("127.0.0.1:").count();
    assert!(reason.contains("as rank 1") && addresses == 2 && !reason.contains(&address), "{address}: {reason}");
    let Fault { reason, .. } = meshes[2].fault(0).unwrap();
    assert!(reason.contains("connected already"), "{reason}");
}

#[test]
fn a_dial_that_is_dropped_is_repeated_and_loses_nothing() {
    let all = listeners();
    let mut attacker = Attacker::new(all[0].local_addr().unwrap());
    attacker.refuses = 3;
    let mut meshes = [0, 1].map(|own| Mesh::of(connect(own, &all), Vec::new()));
    meshes[1].connect.addresses[0] = attacker.listener.local_addr().unwrap();
    meshes[1].say(0, 1, b"hello", &[]);
    let mut inbox = [Recorder::new(1, 0), Recorder::new(1, 0)];
    let until = Instant::now() + BOUND;
    while inbox[0].received.is_empty() && Instant::now() < until {
        turn(&mut meshes, &mut inbox);
        attacker.turn();
        if let Some(frames) = attacker.frames(1) {
            attacker.ways[0].frames.clear();
            attacker.inject(&frames.concat());
        }
    }
    assert_eq!((attacker.refuses, inbox[0].received.len()), (0, 1));
    // Without end, it fails in time with what has happened.
    let mut attacker = Attacker::new(all[0].local_addr().unwrap());
    attacker.refuses = u32::MAX;
    let mut mesh = Mesh::of(Connect { timeout: Duration::from_millis(100), ..connect(2, &all) }, Vec::new());
    mesh.connect.addresses[0] = attacker.listener.local_addr().unwrap();
    mesh.say(0, 1, b"hello", &[]);
    let mut broken = None;
    while broken.is_none() && Instant::now() < until {
        mesh.flush(&());
        attacker.turn();
        mesh.take_broken(|rank, code| broken = Some((rank, code)));
    }
    let Fault { reason, address } = mesh.fault(0).unwrap();
    assert!(broken.is_some() && reason.contains("was not taken (it closes the connection"), "{address}: {reason}");
}

#[test]
fn strangers_make_room_for_one_another_and_never_keep_a_rank_out() {
    let all = listeners();
    let port = all[0].local_addr().unwrap();
    let mut meshes = [0, 1, 2].map(|own| Mesh::of(connect(own, &all), Vec::new()));
    let mut inbox = [0; 3].map(|_| Recorder::new(1, 0));
    // One rank is connected before, one comes in the midst of them.
    meshes[1].say(0, 1, b"before", &[]);
    let mut silent = VecDeque::new();
    let until = Instant::now() + BOUND;
    let mut rounds = 0;
    while rounds < 10 || inbox[0].received.len() < 2 {
        assert!(Instant::now() < until, "{:?}", inbox[0].received);
        if !inbox[0].received.is_empty() {
            silent.extend((0..80).map(|_| TcpStream::connect(port).unwrap()));
            silent.drain(..silent.len().saturating_sub(400));
            rounds += 1;
            if rounds == 5 {
                meshes[2].say(0, 1, b"between", &[]);
            }
        }
        turn(&mut meshes, &mut inbox);
        assert!(meshes[0].strangers.count() <= MOST_OF_ADDRESS);
        std::thread::sleep(Duration::from_millis(2));
    }
    // Both are ranks still.
    for rank in [1, 2] {
        meshes[rank].say(0, 1, b"after", &[]);
    }
    while inbox[0].received.len() < 4 && Instant::now() < until {
        turn(&mut meshes, &mut inbox);
    }
    assert_eq!(inbox[0].received.len(), 4, "{:?}", inbox[0].received);
    meshes[0].take_broken(|rank, code| panic!("rank {rank} breaks with {code}"));
}
