//! More than two machines, each joined to all others over real sockets.

#[allow(dead_code, unreachable_pub)]
#[path = "../../machine/tests/support/wire.rs"]
mod wire;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use emu_bridge::{Bridge, PeerConfig, Wire, WireCounters};
use emu_machine::fabric::Topology;
use emu_machine::nic::{Gid, QpModify, Transport};
use emu_machine::{Config, Wiring, World};
use wire::{Endpoint, To, pattern, read};

/// Longest that anything here may take.
const BOUND: Duration = Duration::from_secs(60);

/// A machine, and its bridge.
struct Side {
    world: World,
    bridge: Bridge,
}

impl Side {
    fn counters(&self) -> WireCounters {
        self.bridge.counters().wire
    }
}

/// Machines of `cards` cards each, all joined to one another. One card is at a cable, several at a switch.
struct Mesh {
    sides: Vec<Side>,
    cards: usize,
}

impl Mesh {
    fn new(machines: usize, cards: usize) -> Self {
        let sockets: Vec<UdpSocket> = (0..machines).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let side = |(rank, socket): (usize, UdpSocket)| {
            let wiring = match cards {
                1 => Wiring::default(),
                _ => Wiring::network(Topology::named(&format!("switch-{}", cards + 1)).unwrap()),
            };
            let config = Config { cards, first_card: rank * cards, wiring, ..Config::default() };
            let mut world = World::new(config).unwrap();
            world.open_outside().unwrap();
            let others = (0..machines).filter(|&other| other != rank);
            let peers: Vec<PeerConfig> = others
                .map(|other| PeerConfig { address: addresses[other], cards: Some(cards * other..cards * (other + 1)) })
                .collect();
            peers.iter().filter_map(|other| other.cards.clone()).flatten().for_each(|card| world.place_outside(card));
            let wire = Wire::over(socket, peers, rank as u32 + 1).unwrap();
            Side { world, bridge: Bridge::new(wire) }
        };
        Self { sides: sockets.into_iter().enumerate().map(side).collect(), cards }
    }

    fn ranks(&self) -> usize {
        self.sides.len() * self.cards
    }

    /// The world in which a card is, and its number there.
    fn of(&mut self, card: usize) -> (&mut World, usize) {
        (&mut self.sides[card / self.cards].world, card % self.cards)
    }

    /// A queue pair for every card.
    fn ends(&mut self, transport: Transport) -> Vec<Endpoint> {
        let ranks = self.ranks();
        let end = |card: usize| {
            let (world, here) = self.of(card);
            Endpoint::new(world, here, transport)
        };
        (0..ranks).map(end).collect()
    }

    fn connect(&mut self, end: &Endpoint, card: usize, to: usize, qpn: u32) {
        let (world, here) = self.of(card);
        end.connect(world, 0, (to, qpn));
        // With a retransmission timeout that suits the wall clock: 67 ms instead of 67 us.
        let retransmission = QpModify { timeout: Some(14), ..QpModify::default() };
        let now_ps = world.now_ps();
        world.nic_call(here, |nic, fx| nic.modify_qp(now_ps, end.qpn, &retransmission, fx)).unwrap().unwrap();
    }

    /// Runs all until `done`.
    fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            let counters = || self.sides.iter().map(Side::counters).collect::<Vec<_>>();
            assert!(begun.elapsed() < BOUND, "{:?}", counters());
            for side in &mut self.sides {
                side.bridge.poll(&mut side.world);
            }
        }
    }

    /// Runs for a while in which nothing more should come.
    fn rest(&mut self) {
        let begun = Instant::now();
        self.run(|_| begun.elapsed() > Duration::from_millis(30));
    }
}

fn group(number: u8) -> Gid {
    Gid::from_ipv4([239, 9, 9, number])
}

/// Every card sends datagrams to a group that all cards but the last are members of.
fn multicast(machines: usize, cards: usize) {
    const BYTES: u32 = 3_000;
    const EACH: usize = 20;
    let mut mesh = Mesh::new(machines, cards);
    let mut ends = mesh.ends(Transport::Ud);
    let ranks = ends.len();
    for (card, end) in ends.iter_mut().enumerate() {
        mesh.connect(end, card, card, 0);
        let (world, here) = mesh.of(card);
        end.receive(world, 250);
        if card + 1 < ranks {
            world.card(here).unwrap().nic.attach_multicast(end.qpn, group(1)).unwrap();
        }
    }
    for _ in 0..EACH {
        for (card, end) in ends.iter_mut().enumerate() {
            let (world, _) = mesh.of(card);
            end.source(world, 0, &pattern(BYTES as usize, card as u8));
            end.send(world, 0, Some(To::Group(group(1))), (0, BYTES));
        }
    }
    let mut arrived = vec![0; ranks];
    mesh.run(|mesh| {
        for (card, end) in ends.iter_mut().enumerate() {
            arrived[card] += end.arrived(mesh.of(card).0).len();
        }
        arrived[..ranks - 1].iter().all(|&count| count >= EACH * ranks)
    });
    mesh.rest();
    for (card, end) in ends.iter_mut().enumerate() {
        let world = mesh.of(card).0;
        arrived[card] += end.arrived(world).len();
        if card + 1 == ranks {
            assert_eq!(arrived[card], 0, "not a member");
            continue;
        }
        assert_eq!(arrived[card], EACH * ranks, "each once, the own ones inside the card");
        let mut senders = vec![0; ranks];
        for slot in 0..arrived[card] as u64 {
            let bytes = end.received(world, slot, BYTES as usize);
            let sender = (0..ranks).find(|&sender| bytes == pattern(BYTES as usize, sender as u8));
            senders[sender.expect("as it was sent")] += 1;
        }
        assert_eq!(senders, vec![EACH; ranks]);
    }
    for side in &mesh.sides {
        let counters = side.counters();
        assert_eq!(counters.sent, (EACH * cards * (machines - 1)) as u64, "to each peer once: {counters:?}");
        assert_eq!((counters.unrouted, counters.foreign, counters.written_off), (0, 0, 0), "{counters:?}");
    }
}

#[test]
fn groups_reach_members_in_every_machine() {
    multicast(3, 1);
    multicast(4, 1);
}

#[test]
fn machines_of_several_cards_are_joined_at_their_switches() {
    multicast(2, 3);
    multicast(3, 2);
}

/// Between any two cards, both ways, at once.
#[test]
fn every_pair_of_cards_has_its_connection() {
    for (machines, cards) in [(4, 1), (3, 2)] {
        const BYTES: u32 = 6_000;
        let mut mesh = Mesh::new(machines, cards);
        let ranks = mesh.ranks();
        // `ends[from][to]`; the diagonal is unused.
        let mut columns: Vec<Vec<Endpoint>> = (0..ranks).map(|_| mesh.ends(Transport::Rc)).collect();
        let mut ends: Vec<Vec<Endpoint>> = (0..ranks).map(|_| Vec::new()).collect();
        for column in &mut columns {
            for (from, end) in column.drain(..).enumerate() {
                ends[from].push(end);
            }
        }
        let numbers: Vec<Vec<u32>> = ends.iter().map(|row| row.iter().map(|end| end.qpn).collect()).collect();
        let targets: Vec<Vec<(u64, u32)>> = ends.iter().map(|row| row.iter().map(Endpoint::target).collect()).collect();
        let pairs: Vec<(usize, usize)> =
            (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))).filter(|(from, to)| from != to).collect();
        for &(from, to) in &pairs {
            mesh.connect(&ends[from][to], from, to, numbers[to][from]);
        }
        let text = |from: usize, to: usize| pattern(BYTES as usize, (from * ranks + to) as u8);
        for &(from, to) in &pairs {
            let (world, _) = mesh.of(from);
            ends[from][to].source(world, 0, &text(from, to));
            ends[from][to].write(world, targets[to][from], None, (0, BYTES));
        }
        let mut left = pairs.clone();
        mesh.run(|mesh| {
            left.retain(|&(from, to)| {
                let done = ends[from][to].sent(mesh.of(from).0);
                assert!(done.iter().all(|done| done.opcode == 0), "{from} to {to}: {done:?}");
                done.is_empty()
            });
            left.is_empty()
        });
        for &(from, to) in &pairs {
            let (address, _) = targets[to][from];
            assert!(read(mesh.of(to).0, address, BYTES as usize) == text(from, to), "{from} to {to}");
        }
    }
}

/// A frame for a card that nobody has is counted, and goes nowhere.
#[test]
fn cards_that_nobody_has_are_not_reached() {
    let mut mesh = Mesh::new(3, 1);
    let mut ends = mesh.ends(Transport::Ud);
    mesh.connect(&ends[0], 0, 0, 0);
    let (world, _) = mesh.of(0);
    ends[0].send(world, 0, Some(To::Peer(77, 5)), (0, 100));
    mesh.run(|mesh| mesh.sides[0].counters().unrouted > 0);
    mesh.rest();
    assert!(mesh.sides.iter().all(|side| side.counters().sent == 0 && side.counters().received == 0));
}

/// Machines that are not there yet, or no more, hold nobody up for long, and the others go on among themselves.
#[test]
fn a_missing_machine_is_given_up() {
    let mut mesh = Mesh::new(3, 1);
    let mut ends = mesh.ends(Transport::Ud);
    for (card, end) in ends.iter_mut().enumerate() {
        mesh.connect(end, card, card, 0);
        let (world, _) = mesh.of(card);
        end.receive(world, 250);
        world.card(0).unwrap().nic.attach_multicast(end.qpn, group(2)).unwrap();
    }
    // Machine 2 is never run.
    let mut absent = mesh.sides.pop().unwrap();
    let begun = Instant::now();
    for _ in 0..100 {
        let (world, _) = mesh.of(0);
        ends[0].send(world, 0, Some(To::Group(group(2))), (0, 1_000));
    }
    let mut arrived = 0;
    mesh.run(|mesh| {
        arrived += ends[1].arrived(mesh.of(1).0).len();
        arrived == 100
    });
    mesh.run(|mesh| mesh.sides[0].counters().sent == 200);
    assert!(begun.elapsed() > Duration::from_millis(200), "it is waited for at first");
    assert!(mesh.sides[0].counters().written_off > 0, "{:?}", mesh.sides[0].counters());
    // It comes late, and finds what the system has kept for it.
    absent.bridge.poll(&mut absent.world);
    assert!(absent.counters().received > 0);
}
