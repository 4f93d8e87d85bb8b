//! Two machines joined by a bridge, with something in between that loses, damages and invents datagrams.

#[allow(dead_code, unreachable_pub)]
#[path = "../../machine/tests/support/wire.rs"]
mod wire;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use emu_bridge::{Bridge, Wire};
use emu_machine::nic::{QpModify, Transport};
use emu_machine::{Config, Driver as _, LinkConfig, Wiring, World};
use nix::sys::socket::{setsockopt, sockopt};
use wire::{Endpoint, SOURCE, pattern, read};

/// Longest that anything here may take.
const BOUND: Duration = Duration::from_secs(60);
const HEADER_BYTES: usize = 52;

fn localhost() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    // What is in between must hold what an end may send ahead.
    setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).unwrap();
    socket
}

/// A machine of one card, and its bridge.
struct Side {
    world: World,
    bridge: Bridge,
    address: SocketAddr,
}

impl Side {
    fn new(card: usize, drop_ppm: u32, peer: SocketAddr) -> Self {
        let link = LinkConfig { drop_ppm, seed: card as u64 + 1, ..LinkConfig::default() };
        let config = Config { cards: 1, first_card: card, wiring: Wiring::Cable(link), ..Config::default() };
        let mut world = World::new(config).unwrap();
        world.open_outside().unwrap();
        let wire = Wire::new("127.0.0.1:0".parse().unwrap(), peer, card as u32 + 1).unwrap();
        let address = wire.socket().local_addr().unwrap();
        Self { world, bridge: Bridge::new(wire), address }
    }

    fn poll(&mut self) {
        self.bridge.poll(&mut self.world);
    }
}

/// Towards the other side's queue pair, with a retransmission timeout that suits the wall clock: 67 ms instead of 67
/// us.
fn connect(side: &mut Side, end: &Endpoint, card: usize, qpn: u32) {
    end.connect(&mut side.world, 0, (card, qpn));
    let retransmission = QpModify { timeout: Some(14), ..QpModify::default() };
    let now_ps = side.world.now_ps();
    side.world.nic_call(0, |nic, fx| nic.modify_qp(now_ps, end.qpn, &retransmission, fx)).unwrap().unwrap();
}

/// Two machines, and what is between them: a socket towards each.
struct Pair {
    sides: [Side; 2],
    between: [UdpSocket; 2],
    ends: [Endpoint; 2],
}

impl Pair {
    fn new(transport: Transport, drop_ppm: u32) -> Self {
        let between = [localhost(), localhost()];
        let mut card = 0;
        let mut sides = between.each_ref().map(|socket| {
            card += 1;
            Side::new(card - 1, drop_ppm, socket.local_addr().unwrap())
        });
        let ends = sides.each_mut().map(|side| Endpoint::new(&mut side.world, 0, transport));
        for (here, there) in [(0, 1), (1, 0)] {
            connect(&mut sides[here], &ends[here], there, ends[there].qpn);
        }
        Self { sides, between, ends }
    }

    /// Carries datagrams over; `meddle` makes of each what arrives.
    fn carry(&mut self, meddle: &mut impl FnMut(&[u8]) -> Vec<Vec<u8>>) {
        let mut buffer = [0; 10_000];
        for (from, to) in [(0, 1), (1, 0)] {
            while let Ok((bytes, _)) = self.between[from].recv_from(&mut buffer) {
                for datagram in meddle(&buffer[..bytes]) {
                    self.between[to].send_to(&datagram, self.sides[to].address).unwrap();
                }
            }
        }
    }

    /// Runs both until `done`.
    fn run(&mut self, mut meddle: impl FnMut(&[u8]) -> Vec<Vec<u8>>, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < BOUND, "{:?}", self.sides.each_ref().map(|side| side.bridge.counters()));
            self.sides.iter_mut().for_each(Side::poll);
            self.carry(&mut meddle);
        }
    }

    /// Card 0 writes to card 1, `messages` of 6000 bytes each, and what arrives is compared.
    fn write_and_compare(&mut self, messages: u64, meddle: impl FnMut(&[u8]) -> Vec<Vec<u8>>) {
        const LEN: u64 = 6_000;
        let data = pattern((LEN * messages) as usize, 3);
        self.ends[0].source(&self.sides[0].world, 0, &data);
        let (addr, key) = self.ends[1].target();
        for message in 0..messages {
            let part = (LEN * message, LEN as u32);
            self.ends[0].write(&mut self.sides[0].world, (addr + LEN * message, key), None, part);
        }
        let mut sent = 0;
        self.run(meddle, |pair| {
            let done = pair.ends[0].sent(&pair.sides[0].world);
            let failed = done.iter().find(|done| done.opcode >= 13);
            assert!(failed.is_none(), "{failed:?} {:?}", pair.sides.each_ref().map(|side| side.bridge.counters()));
            sent += done.len() as u64;
            sent == messages
        });
        assert!(LEN * messages <= SOURCE && read(&self.sides[1].world, addr, data.len()) == data);
    }
}

fn pass(datagram: &[u8]) -> Vec<Vec<u8>> {
    vec![datagram.to_vec()]
}

#[test]
fn what_is_written_on_one_machine_is_read_on_the_other() {
    let mut pair = Pair::new(Transport::Rc, 0);
    pair.write_and_compare(100, pass);
    let [here, there] = pair.sides.each_ref().map(|side| side.bridge.counters().wire);
    assert_eq!((there.received, here.received), (here.sent, there.sent));
    assert_eq!((here.sent, here.written_off, here.unsent), (600, 0, 0), "no frame was lost or sent twice");
    assert_eq!((there.corrupt, there.malformed, there.strange, there.foreign), (0, 0, 0, 0));
}

#[test]
fn frames_that_the_link_or_the_network_loses_are_sent_again() {
    let mut pair = Pair::new(Transport::Rc, 10_000);
    let mut count = 0_u32;
    pair.write_and_compare(20, |datagram| {
        count += 1;
        if count.is_multiple_of(23) { vec![] } else { pass(datagram) }
    });
    assert!(count >= 23 && pair.sides[0].bridge.counters().wire.sent > 120, "something was lost");
}

#[test]
fn damaged_frames_are_counted_and_the_card_does_not_see_them() {
    let mut pair = Pair::new(Transport::Rc, 0);
    let mut count = 0_usize;
    let mut damaged = 0;
    pair.write_and_compare(50, |datagram| {
        count += 1;
        let mut datagram = datagram.to_vec();
        if count.is_multiple_of(20) && datagram.len() > HEADER_BYTES + 100 {
            // Behind the headers, where only the check sequence can show it.
            let at = HEADER_BYTES + 90 + count % (datagram.len() - HEADER_BYTES - 90);
            datagram[at] ^= 1 << (count % 8);
            damaged += 1;
        }
        vec![datagram]
    });
    let counters = pair.sides[1].bridge.counters().wire;
    assert!(damaged > 0 && counters.corrupt == damaged, "{damaged} damaged: {counters:?}");
}

/// Every byte of a datagram changed in turn: nothing panics, and what is wrong is counted.
#[test]
fn nonsense_is_counted_and_dropped() {
    let mut pair = Pair::new(Transport::Rc, 0);
    let mut seen = Vec::new();
    pair.write_and_compare(1, |datagram| {
        if datagram.len() > HEADER_BYTES {
            seen = datagram.to_vec();
        }
        pass(datagram)
    });
    let Pair { sides: [mut side, _], between: [socket, stranger], .. } = pair;
    let before = side.bridge.counters().wire;
    let mut send = |bytes: &[u8]| {
        socket.send_to(bytes, side.address).unwrap();
        side.poll();
        side.bridge.counters().wire
    };
    // The frame of an acknowledgement, without the zeros that fill it up.
    let frame_bytes = 14 + 20 + 8 + 12 + 4 + 4;
    for at in HEADER_BYTES..HEADER_BYTES + frame_bytes {
        let mut damaged = seen.clone();
        damaged[at] ^= 0x11;
        send(&damaged);
    }
    let after = send(&seen);
    assert!(after.corrupt > before.corrupt && after.malformed > before.malformed, "{after:?}");
    for strange in [&b""[..], b"FXB1", &[0; 5_000], &seen[..seen.len() - 1], &vec![0xAA; 20_000], &seen[1..]] {
        let counted = send(strange).strange;
        assert!(counted > 0);
    }
    assert_eq!(send(&[]).strange, before.strange + 7);
    stranger.send_to(&seen, side.address).unwrap();
    side.poll();
    assert_eq!(side.bridge.counters().wire.foreign, before.foreign + 1);
}

#[test]
fn without_a_peer_the_machine_waits_a_little_and_then_sends_into_the_void() {
    let nobody = localhost();
    let mut side = Side::new(0, 0, nobody.local_addr().unwrap());
    let mut end = Endpoint::new(&mut side.world, 0, Transport::Uc);
    connect(&mut side, &end, 1, 0x1234);
    let (addr, key) = end.target();
    for _ in 0..20 {
        end.write(&mut side.world, (addr, key), None, (0, 100_000));
    }
    let begun = Instant::now();
    let mut most = 0;
    while side.bridge.counters().wire.sent < 1_960 {
        assert!(begun.elapsed() < BOUND, "{:?}", side.bridge.counters());
        side.poll();
        most = most.max(side.world.departures());
    }
    let counters = side.bridge.counters();
    assert!(begun.elapsed() > Duration::from_millis(200), "at first a peer is waited for: {counters:?}");
    assert!(counters.wire.written_off > 0 && counters.behind_ps > 100_000_000_000, "{counters:?}");
    // While it waits the machine stands still: of 2000 frames a few are on their way.
    assert!(most < 300, "{most} packets");
    while end.sent(&side.world).len() < 20 {
        assert!(begun.elapsed() < BOUND);
        side.poll();
    }
}

#[test]
fn a_peer_that_starts_again_is_known_again() {
    let mut pair = Pair::new(Transport::Rc, 0);
    pair.write_and_compare(20, pass);
    // Another process takes the place of machine 1: same address for its peer, another epoch.
    let peer = pair.between[1].local_addr().unwrap();
    pair.sides[1] = Side::new(1, 0, peer);
    let wire = Wire::new("127.0.0.1:0".parse().unwrap(), peer, 77).unwrap();
    pair.sides[1].address = wire.socket().local_addr().unwrap();
    pair.sides[1].bridge = Bridge::new(wire);
    pair.ends = pair.sides.each_mut().map(|side| Endpoint::new(&mut side.world, 0, Transport::Rc));
    for (here, there) in [(0, 1), (1, 0)] {
        let qpn = pair.ends[there].qpn;
        connect(&mut pair.sides[here], &pair.ends[here], there, qpn);
    }
    pair.write_and_compare(20, pass);
    assert_eq!(pair.sides[0].bridge.counters().wire.written_off, 0);
}

/// Machine 0 has a frame with machine 1, which is not run for a while. Timers of 67 us give up after half a
/// millisecond.
fn write_to_one_that_is_not_run(wall: Duration, peer_timeout: Duration) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(Transport::Rc, 0);
    for (here, there) in [(0, 1), (1, 0)] {
        let qpn = pair.ends[there].qpn;
        let short_timeout = QpModify { timeout: Some(4), ..QpModify::default() };
        let side = &mut pair.sides[here];
        let (now_ps, own) = (side.world.now_ps(), pair.ends[here].qpn);
        side.world.nic_call(0, |nic, fx| nic.modify_qp(now_ps, own, &short_timeout, fx)).unwrap().unwrap();
        assert_ne!(qpn, 0);
    }
    let peer = pair.between[0].local_addr().unwrap();
    let wire = Wire::new("127.0.0.1:0".parse().unwrap(), peer, 7).unwrap().with_peer_timeout(peer_timeout);
    pair.sides[0].address = wire.socket().local_addr().unwrap();
    pair.sides[0].bridge = Bridge::new(wire);
    // They know of each other.
    let greeted = Instant::now();
    pair.run(pass, |_| greeted.elapsed() > Duration::from_millis(30));
    let data = pattern(6_000, 9);
    pair.ends[0].source(&pair.sides[0].world, 0, &data);
    let (addr, key) = pair.ends[1].target();
    pair.ends[0].write(&mut pair.sides[0].world, (addr, key), None, (0, 6_000));
    let begun = Instant::now();
    while begun.elapsed() < wall {
        pair.sides[0].poll();
        pair.carry(&mut pass);
    }
    (pair, data)
}

#[test]
fn time_stands_still_while_a_frame_is_with_a_machine_that_is_not_run() {
    let (mut pair, data) = write_to_one_that_is_not_run(Duration::from_millis(300), Duration::from_secs(60));
    let before_ps = pair.sides[0].world.now_ps();
    assert!(pair.ends[0].sent(&pair.sides[0].world).is_empty(), "no error, and no answer");
    pair.sides[0].poll();
    assert_eq!(pair.sides[0].world.now_ps(), before_ps);
    let mut done = Vec::new();
    pair.run(pass, |pair| {
        done.extend(pair.ends[0].sent(&pair.sides[0].world));
        !done.is_empty()
    });
    assert!(done[0].opcode < 13, "{done:?}");
    let (addr, _) = pair.ends[1].target();
    assert!(read(&pair.sides[1].world, addr, 6_000) == data);
    assert_eq!(pair.sides[0].bridge.counters().wire.written_off, 0);
}

#[test]
fn a_machine_that_is_not_run_for_too_long_is_given_up_and_what_waits_for_it_fails() {
    let (mut pair, _) = write_to_one_that_is_not_run(Duration::from_millis(10), Duration::from_millis(100));
    let begun = Instant::now();
    let mut done = Vec::new();
    while done.is_empty() {
        assert!(begun.elapsed() < BOUND, "{:?}", pair.sides[0].bridge.counters());
        pair.sides[0].poll();
        pair.carry(&mut pass);
        done.extend(pair.ends[0].sent(&pair.sides[0].world));
    }
    assert!(done[0].opcode >= 13, "{done:?}");
    assert!(pair.sides[0].bridge.counters().wire.written_off > 0);
}

#[test]
fn virtual_time_follows_the_wall_clock_and_never_overtakes_it() {
    let before = Instant::now();
    let peer = localhost();
    let mut side = Side::new(0, 0, peer.local_addr().unwrap());
    let mut last_ps = 0;
    while before.elapsed() < Duration::from_millis(30) {
        side.bridge.before(&mut side.world);
        side.bridge.after(&mut side.world);
        let now_ps = side.world.now_ps();
        assert!(u128::from(now_ps) <= before.elapsed().as_nanos() * 1_000 && now_ps >= last_ps);
        last_ps = now_ps;
    }
    assert!(last_ps > 1_000_000, "it moves: {last_ps} ps");
    // Nobody polled for a long time: that time is not made up for.
    std::thread::sleep(Duration::from_millis(120));
    side.poll();
    assert!(u128::from(side.world.now_ps()) < before.elapsed().as_nanos() * 1_000 - 30_000_000_000);
    // Polling an idle machine sleeps a little instead of burning time.
    if let Some(sleep) = side.bridge.relax(&mut side.world) {
        sleep();
    }
    // A call that ran ahead waits for the wall clock.
    let ahead_ps = side.world.now_ps() + 1_000_000_000_000_000;
    side.world.advance(ahead_ps, 1);
    side.poll();
    assert_eq!(side.world.now_ps(), ahead_ps);
}
