//! A requester as the architecture describes it, for one reliable connection. It believes what its peer reports: a Read
//! that is acknowledged is one that it takes for complete.

use super::*;
use crate::common::pattern;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    Write,
    Read,
    FetchAdd,
}

#[derive(Debug)]
pub struct Request {
    pub kind: Kind,
    pub len: usize,
    pub address: u64,
    pub first_psn: u32,
    /// What a Read or an atomic has brought.
    pub brought: Vec<u8>,
}

impl Request {
    fn packets(&self) -> u32 {
        if self.kind == Kind::FetchAdd { 1 } else { packets(self.len) }
    }

    fn end_psn(&self) -> u32 {
        add(self.first_psn, self.packets())
    }
}

pub struct Requester {
    /// The card's queue pair and key.
    pub qpn: u32,
    pub rkey: u32,
    pub requests: Vec<Request>,
    /// Reads ask for an acknowledgement.
    pub ack_reads: bool,
    /// What is missing of a Read is asked for, not the whole Read.
    pub asks_for_tails: bool,
    /// Oldest PSN of which nothing is known.
    awaited: u32,
    went_back_to: Option<u32>,
    /// How often everything was sent that was open: once to begin with, then by the timer.
    pub tries: u32,
}

impl Requester {
    /// Requests of these kinds, lengths and addresses, one behind the other.
    pub fn new(qpn: u32, rkey: u32, requests: &[(Kind, usize, u64)]) -> Self {
        let mut psn = FIRST_PSN;
        let request = |&(kind, len, address): &(Kind, usize, u64)| {
            let request = Request { kind, len, address, first_psn: psn, brought: Vec::new() };
            psn = request.end_psn();
            request
        };
        Self {
            qpn,
            rkey,
            requests: requests.iter().map(request).collect(),
            ack_reads: false,
            asks_for_tails: false,
            awaited: FIRST_PSN,
            went_back_to: None,
            tries: 0,
        }
    }

    pub fn done(&self) -> bool {
        self.requests.last().is_none_or(|last| self.awaited == last.end_psn())
    }

    /// The packets of a request from one PSN of it on.
    fn packets_of(&self, request: &Request, from: u32) -> Vec<Packet> {
        let skip = ahead(from, request.first_psn).max(0) as u32;
        let at = request.address + u64::from(skip) * MTU as u64;
        let (rkey, left) = (self.rkey, request.len - (skip as usize * MTU).min(request.len));
        match request.kind {
            Kind::Read => vec![Packet {
                ack_request: self.ack_reads,
                extension: Extension::Remote { address: at, rkey, len: left as u32 },
                ..to_card(self.qpn, Operation::ReadRequest, add(request.first_psn, skip))
            }],
            Kind::FetchAdd => vec![Packet {
                ack_request: true,
                extension: Extension::Atomic { address: request.address, rkey, swap_or_add: 1, compare: 0 },
                ..to_card(self.qpn, Operation::FetchAdd, request.first_psn)
            }],
            Kind::Send | Kind::Write => {
                let bytes = pattern(request.len, 90);
                let part = |number: u32| {
                    let (first, last) = (number == 0, number + 1 == request.packets());
                    let rest = &bytes[number as usize * MTU..];
                    let write = request.kind == Kind::Write;
                    let len = request.len as u32;
                    let remote = Extension::Remote { address: request.address, rkey, len };
                    Packet {
                        first,
                        last,
                        ack_request: last,
                        extension: if write && first { remote } else { Extension::None },
                        payload: Arc::from(&rest[..rest.len().min(MTU)]),
                        ..to_card(
                            self.qpn,
                            if write { Operation::Write } else { Operation::Send },
                            add(request.first_psn, number),
                        )
                    }
                };
                (skip..request.packets()).map(part).collect()
            }
        }
    }

    /// Everything from the oldest PSN on of which nothing is known.
    fn send_from_awaited(&self) -> Vec<Packet> {
        let open = self.requests.iter().filter(|request| ahead(request.end_psn(), self.awaited) > 0);
        let from = |request: &Request| {
            let whole = request.kind == Kind::Read && !self.asks_for_tails;
            if whole { request.first_psn } else { self.awaited }
        };
        open.flat_map(|request| self.packets_of(request, from(request))).collect()
    }

    fn go_back(&mut self) -> Vec<Packet> {
        if self.went_back_to == Some(self.awaited) {
            return Vec::new();
        }
        self.went_back_to = Some(self.awaited);
        self.send_from_awaited()
    }

    fn open(&mut self) -> Option<&mut Request> {
        let awaited = self.awaited;
        self.requests.iter_mut().find(|request| ahead(request.end_psn(), awaited) > 0)
    }

    /// Everything before `upto` has been executed; false if the bytes of a Read or an atomic are missing. One that an
    /// acknowledgement names by a PSN of its own is complete, as far as a requester can know that believes it.
    fn acknowledged(&mut self, upto: u32, by_name: bool) -> bool {
        while ahead(upto, self.awaited) > 0 {
            let Some(request) = self.open() else { return true };
            let (kind, end) = (request.kind, request.end_psn());
            match kind {
                Kind::Read | Kind::FetchAdd if by_name && ahead(upto, end) <= 0 => self.awaited = end,
                Kind::Read | Kind::FetchAdd => return false,
                Kind::Send | Kind::Write if ahead(upto, end) < 0 => self.awaited = upto,
                Kind::Send | Kind::Write => self.awaited = end,
            }
        }
        true
    }

    /// Messages up to and including a PSN, which is what an answer of this PSN counts.
    fn messages(&self, psn: u32) -> u32 {
        self.requests.iter().filter(|request| ahead(request.end_psn(), add(psn, 1)) <= 0).count() as u32
    }

    fn check_number(&self, packet: &Packet) {
        let (count, number) = (self.messages(packet.psn), packet.message_number);
        let early = packet.operation == Operation::ReadResponse && packet.first && !packet.last;
        let refused = matches!(packet.extension, Extension::Acknowledge(ack) if ack != Acknowledgement::Positive);
        let expected = if refused { self.messages(add(packet.psn, 0xFF_FFFF)) } else { count };
        assert!(number == expected || early && number == count + 1, "{number} messages, not {expected}: {packet:?}");
    }
}

impl Peer for Requester {
    fn take(&mut self, packet: &Packet) -> Vec<Packet> {
        assert_eq!(packet.destination_qpn, PEER_QPN);
        if packet.extension != Extension::None {
            self.check_number(packet);
        }
        let psn = packet.psn;
        if let (Operation::Acknowledge, Extension::Acknowledge(acknowledgement)) = (packet.operation, packet.extension)
        {
            return match acknowledgement {
                Acknowledgement::Positive if self.acknowledged(add(psn, 1), true) => Vec::new(),
                Acknowledgement::Positive => self.go_back(),
                Acknowledgement::SequenceError => {
                    if ahead(psn, self.awaited) < 0 {
                        return Vec::new();
                    }
                    self.acknowledged(psn, false);
                    self.go_back()
                }
                other => panic!("{other:?}"),
            };
        }
        // A response: everything before its request has been executed.
        if ahead(psn, self.awaited) < 0 {
            return Vec::new();
        }
        let first = self.requests.iter().find(|request| ahead(request.end_psn(), psn) > 0).map(|of| of.first_psn);
        if !self.acknowledged(first.expect("a response to a request"), false) || psn != self.awaited {
            return self.go_back();
        }
        self.awaited = add(psn, 1);
        let request = self.requests.iter_mut().find(|request| ahead(request.end_psn(), psn) > 0).expect("as before");
        match packet.extension {
            Extension::AtomicAcknowledge { original } => request.brought = original.to_le_bytes().to_vec(),
            _ => request.brought.extend_from_slice(&packet.payload),
        }
        Vec::new()
    }

    /// The timer: nothing is on its way any more.
    fn idle(&mut self) -> Vec<Packet> {
        if self.tries > 0 && self.done() {
            return Vec::new();
        }
        self.tries += 1;
        assert!(self.tries <= 8, "not answered: {:?}", self.requests);
        self.send_from_awaited()
    }
}
