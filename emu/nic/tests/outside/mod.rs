//! A reliable connection between a card and a peer that is not one: the peer is a script, and the line between them
//! does to one packet, or to two, what a network may do.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod requester;
pub mod responder;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use emu_nic::*;

use crate::common::{GIDS, MACS, World};

/// First PSN of both directions: the sequence wraps within every test.
pub const FIRST_PSN: u32 = 0xFF_FFFE;
/// Path MTU of all connections here.
pub const MTU: usize = 256;
/// Number of the peer's queue pair.
pub const PEER_QPN: u32 = 0x77;

const LATENCY_PS: u64 = 1_000_000;

pub fn add(psn: u32, count: u32) -> u32 {
    (psn + count) & 0xFF_FFFF
}

/// How far `psn` is from `base`: negative behind it.
pub fn ahead(psn: u32, base: u32) -> i32 {
    ((psn.wrapping_sub(base) << 8) as i32) >> 8
}

pub fn packets(len: usize) -> u32 {
    len.div_ceil(MTU).max(1) as u32
}

/// A packet from the peer to the card's queue pair.
pub fn to_card(qpn: u32, operation: Operation, psn: u32) -> Packet {
    Packet {
        source: Address { mac: MACS[1], gid: GIDS[1] },
        destination: Address { mac: MACS[0], gid: GIDS[0] },
        network: Network::default(),
        pkey: DEFAULT_PKEY,
        transport: Transport::Rc,
        operation,
        first: true,
        last: true,
        solicited: false,
        ack_request: false,
        destination_qpn: qpn,
        psn,
        immediate: None,
        invalidate: None,
        message_number: 0,
        extension: Extension::None,
        payload: Arc::default(),
        damage: None,
    }
}

/// What happens on the line, by numbers of packets: those of both directions are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Lose(usize),
    /// It comes twice.
    Double(usize),
    /// It comes again when others have come.
    Repeat(usize),
    /// The first comes behind the second.
    Swap(usize, usize),
}

impl Fault {
    /// Everything arrives: no timer is needed to get on.
    pub fn loses_nothing(self) -> bool {
        matches!(self, Self::None | Self::Double(_) | Self::Repeat(_))
    }
}

/// A peer: what it sends when something arrives, and when nothing does any more.
pub trait Peer {
    fn take(&mut self, packet: &Packet) -> Vec<Packet>;
    fn idle(&mut self) -> Vec<Packet>;
}

/// Whether the card sent it, and the packet.
pub type Sent = (bool, Packet);

struct Line {
    fault: Fault,
    /// On their way, by time and number.
    arrivals: BTreeMap<(u64, usize), Sent>,
    held: Option<Sent>,
    log: Vec<Sent>,
    number: usize,
}

impl Line {
    fn arrive(&mut self, at_ps: u64, sent: Sent) {
        self.number += 1;
        self.arrivals.insert((at_ps, self.number), sent);
    }

    fn send(&mut self, now_ps: u64, sent: Sent) {
        let (number, at_ps) = (self.log.len(), now_ps + LATENCY_PS);
        self.log.push(sent.clone());
        match self.fault {
            Fault::Lose(lost) if lost == number => return,
            Fault::Swap(first, _) if first == number => {
                self.held = Some(sent);
                return;
            }
            Fault::Double(twice) if twice == number => self.arrive(at_ps, sent.clone()),
            Fault::Repeat(twice) if twice == number => self.arrive(at_ps + 2 * LATENCY_PS + 1, sent.clone()),
            _ => {}
        }
        self.arrive(at_ps, sent);
        if matches!(self.fault, Fault::Swap(_, second) if second == number)
            && let Some(held) = self.held.take()
        {
            self.arrive(at_ps, held);
        }
    }
}

/// Runs card 0 of the world against a peer until nothing more happens; gives what both have sent.
pub fn run(world: &mut World, peer: &mut impl Peer, fault: Fault) -> Vec<Sent> {
    let captured = Rc::new(RefCell::new(VecDeque::new()));
    let sink = Rc::clone(&captured);
    world.censor = Some(Box::new(move |_, packet| {
        sink.borrow_mut().push_back(packet.clone());
        true
    }));
    let mut line = Line { fault, arrivals: BTreeMap::new(), held: None, log: Vec::new(), number: 0 };
    for _ in 0..100_000 {
        let arrival = line.arrivals.first_key_value().map(|(key, _)| *key);
        match (world.next_ps(), arrival) {
            (event, Some((at_ps, _))) if event.is_none_or(|event_ps| at_ps <= event_ps) => {
                let Some((_, (of_card, packet))) = line.arrivals.pop_first() else { continue };
                world.run_until(at_ps);
                if of_card {
                    for answer in peer.take(&packet) {
                        line.send(at_ps, (false, answer));
                    }
                } else {
                    world.act(0, |nic, mem, now, fx| nic.handle_packet(now, packet, mem, fx));
                }
            }
            (Some(_), _) => {
                world.step();
            }
            (None, _) => match line.held.take() {
                Some(held) => line.arrive(world.now_ps, held),
                None => {
                    let more = peer.idle();
                    if more.is_empty() {
                        return line.log;
                    }
                    for packet in more {
                        line.send(world.now_ps, (false, packet));
                    }
                }
            },
        }
        while let Some(packet) = captured.borrow_mut().pop_front() {
            line.send(world.now_ps, (true, packet));
        }
    }
    panic!("card and peer do not come to rest");
}

/// All single faults of an exchange that takes these packets when nothing goes wrong; only packets of one direction
/// change places.
pub fn faults(clean: &[Sent]) -> Vec<Fault> {
    let count = clean.len();
    let single = (0..count).flat_map(|at| [Fault::Lose(at), Fault::Double(at), Fault::Repeat(at)]);
    let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
    let swaps = pairs.filter(|(first, second)| clean[*first].0 == clean[*second].0);
    single.chain(swaps.map(|(first, second)| Fault::Swap(first, second))).collect()
}
