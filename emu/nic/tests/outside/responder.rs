//! A responder as the architecture describes it, for one reliable connection.

use super::*;
use crate::common::pattern;

pub struct Responder {
    /// The card's queue pair.
    pub qpn: u32,
    /// What Reads and Atomics are about and Writes go to, from address 0 on, under any key.
    pub memory: Vec<u8>,
    /// Payload of Sends, in the order of their completion.
    pub received: Vec<Vec<u8>>,
    /// Reads are answered and acknowledged besides, which is wrong.
    pub acknowledges_reads: bool,
    expected: u32,
    message_number: u32,
    nak_sent: bool,
    inbound: Vec<u8>,
    target: usize,
    atomics: BTreeMap<u32, u64>,
}

impl Responder {
    pub fn new(qpn: u32) -> Self {
        Self {
            qpn,
            memory: pattern(16 * MTU, 3),
            received: Vec::new(),
            acknowledges_reads: false,
            expected: FIRST_PSN,
            message_number: 0,
            nak_sent: false,
            inbound: Vec::new(),
            target: 0,
            atomics: BTreeMap::new(),
        }
    }

    fn acknowledge(&self, psn: u32, acknowledgement: Acknowledgement) -> Packet {
        Packet {
            extension: Extension::Acknowledge(acknowledgement),
            message_number: self.message_number,
            ..to_card(self.qpn, Operation::Acknowledge, psn)
        }
    }

    fn responses(&self, psn: u32, address: u64, len: u32) -> Vec<Packet> {
        let bytes = &self.memory[address as usize..][..len as usize];
        let count = packets(bytes.len());
        let response = |number: u32| {
            let (first, last) = (number == 0, number + 1 == count);
            let marked = first || last;
            let rest = &bytes[number as usize * MTU..];
            Packet {
                first,
                last,
                extension: if marked { Extension::Acknowledge(Acknowledgement::Positive) } else { Extension::None },
                message_number: if marked { self.message_number } else { 0 },
                payload: Arc::from(&rest[..rest.len().min(MTU)]),
                ..to_card(self.qpn, Operation::ReadResponse, add(psn, number))
            }
        };
        let mut all: Vec<Packet> = (0..count).map(response).collect();
        if self.acknowledges_reads {
            all.push(self.acknowledge(psn, Acknowledgement::Positive));
        }
        all
    }

    fn original(&self, psn: u32, original: u64) -> Packet {
        Packet {
            extension: Extension::AtomicAcknowledge { original },
            message_number: self.message_number,
            ..to_card(self.qpn, Operation::AtomicAcknowledge, psn)
        }
    }

    fn execute(&mut self, packet: &Packet) -> Vec<Packet> {
        self.expected = add(packet.psn, 1);
        self.message_number += u32::from(packet.last);
        match (packet.operation, packet.extension) {
            (Operation::ReadRequest, Extension::Remote { address, len, .. }) => {
                self.expected = add(packet.psn, packets(len as usize));
                return self.responses(packet.psn, address, len);
            }
            (Operation::FetchAdd, Extension::Atomic { address, swap_or_add, .. }) => {
                let at = address as usize;
                let original = u64::from_le_bytes(self.memory[at..at + 8].try_into().expect("eight bytes"));
                self.memory[at..at + 8].copy_from_slice(&original.wrapping_add(swap_or_add).to_le_bytes());
                assert!(self.atomics.insert(packet.psn, original).is_none(), "executed twice");
                return vec![self.original(packet.psn, original)];
            }
            (Operation::Write, extension) => {
                if let Extension::Remote { address, .. } = extension {
                    self.target = address as usize;
                }
                self.memory[self.target..][..packet.payload.len()].copy_from_slice(&packet.payload);
                self.target += packet.payload.len();
            }
            (Operation::Send, _) => {
                self.inbound.extend_from_slice(&packet.payload);
                if packet.last {
                    self.received.push(std::mem::take(&mut self.inbound));
                }
            }
            other => panic!("{other:?}"),
        }
        if packet.ack_request { vec![self.acknowledge(packet.psn, Acknowledgement::Positive)] } else { Vec::new() }
    }

    /// A request that has been executed.
    fn repeat(&self, packet: &Packet) -> Vec<Packet> {
        match (packet.operation, packet.extension) {
            (Operation::ReadRequest, Extension::Remote { address, len, .. }) => {
                self.responses(packet.psn, address, len)
            }
            (Operation::FetchAdd, _) => vec![self.original(packet.psn, self.atomics[&packet.psn])],
            _ if packet.ack_request => vec![self.acknowledge(add(self.expected, 0xFF_FFFF), Acknowledgement::Positive)],
            _ => Vec::new(),
        }
    }
}

impl Peer for Responder {
    fn take(&mut self, packet: &Packet) -> Vec<Packet> {
        assert_eq!(packet.destination_qpn, PEER_QPN);
        match ahead(packet.psn, self.expected) {
            0 => {
                self.nak_sent = false;
                self.execute(packet)
            }
            1.. if self.nak_sent => Vec::new(),
            1.. => {
                self.nak_sent = true;
                vec![self.acknowledge(self.expected, Acknowledgement::SequenceError)]
            }
            _ => self.repeat(packet),
        }
    }

    fn idle(&mut self) -> Vec<Packet> {
        Vec::new()
    }
}
