//! RoCEv2 packets, as far as the card needs them: the fields of their headers, not their bytes.

use std::sync::Arc;

use emu_fabric::Frame;

use crate::address::Address;
use crate::qp::Transport;

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Part of a Send.
    Send,
    /// Part of an RDMA Write.
    Write,
    /// An RDMA Read request.
    ReadRequest,
    /// Part of the answer to an RDMA Read request.
    ReadResponse,
    /// An acknowledgement, positive or negative.
    Acknowledge,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acknowledgement {
    /// Everything up to and including this PSN has arrived.
    Positive,
    /// This PSN found no receive; try again after the time with this 5-bit code.
    ReceiverNotReady {
        /// Code of the minimum RNR NAK timer.
        timer: u8,
    },
    /// This PSN was expected, but a later one came.
    SequenceError,
    /// The request with this PSN was malformed, or longer than the receive.
    InvalidRequest,
    /// The request with this PSN accessed memory that it may not.
    RemoteAccess,
    /// The responder failed at the request with this PSN for a reason of its own.
    RemoteOperation,
}

impl Acknowledgement {
    /// The syndrome field of the acknowledgement header.
    #[must_use]
    pub fn syndrome(self) -> u8 {
        match self {
            Self::Positive => 0x1F,
            Self::ReceiverNotReady { timer } => 0x20 | (timer & 0x1F),
            Self::SequenceError => 0x60,
            Self::InvalidRequest => 0x61,
            Self::RemoteAccess => 0x62,
            Self::RemoteOperation => 0x63,
        }
    }
}

/// The extended header that goes with the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    /// None.
    None,
    /// Datagram: the key and the sender.
    Datagram {
        /// Q_Key.
        qkey: u32,
        /// The sending queue pair.
        source_qpn: u32,
    },
    /// Remote memory, in the first packet of a Write and in a Read request.
    Remote {
        /// First byte.
        address: u64,
        /// Memory key.
        rkey: u32,
        /// Bytes of the whole message.
        len: u32,
    },
    /// Acknowledgement, also in the first and last packet of a Read response.
    Acknowledge(Acknowledgement),
}

/// One packet. Cloning it (for multicast) shares the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sender.
    pub source: Address,
    /// Receiver, or group of receivers.
    pub destination: Address,
    /// Transport service.
    pub transport: Transport,
    /// What it does.
    pub operation: Operation,
    /// First packet of its message.
    pub first: bool,
    /// Last packet of its message.
    pub last: bool,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// The sender asks for an acknowledgement.
    pub ack_request: bool,
    /// Queue pair at the receiver; `MULTICAST_QPN` if the destination is a group.
    pub destination_qpn: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// Immediate, in the last packet: four opaque bytes.
    pub immediate: Option<[u8; 4]>,
    /// Extended header.
    pub extension: Extension,
    /// Payload.
    pub payload: Arc<[u8]>,
}

/// Ethernet preamble, start delimiter and gap: on the wire, but in no byte counter.
const PREAMBLE_AND_GAP_BYTES: u64 = 20;
/// Ethernet header and frame check sequence.
const ETHERNET_BYTES: u64 = 18;
const IPV4_BYTES: u64 = 20;
const IPV6_BYTES: u64 = 40;
/// UDP header, base transport header, invariant check sequence.
const TRANSPORT_BYTES: u64 = 8 + 12 + 4;

impl Packet {
    /// Bytes of the Ethernet frame, without preamble and gap.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        let network = if self.destination.gid.ipv4().is_some() { IPV4_BYTES } else { IPV6_BYTES };
        let extension = match self.extension {
            Extension::None => 0,
            Extension::Datagram { .. } => 8,
            Extension::Remote { .. } => 16,
            Extension::Acknowledge(_) => 4,
        };
        let immediate = if self.immediate.is_some() { 4 } else { 0 };
        // The payload is padded to four bytes.
        let payload = (self.payload.len() as u64).next_multiple_of(4);
        ETHERNET_BYTES + network + TRANSPORT_BYTES + extension + immediate + payload
    }

    /// The opcode field of the base transport header.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        let service = match self.transport {
            Transport::Rc => 0x00,
            Transport::Uc => 0x20,
            Transport::Ud => 0x60,
        };
        let immediate = self.immediate.is_some();
        let operation = match (self.operation, self.first, self.last, immediate) {
            (Operation::Send, true, false, _) => 0,
            (Operation::Send, false, false, _) => 1,
            (Operation::Send, false, true, false) => 2,
            (Operation::Send, false, true, true) => 3,
            (Operation::Send, true, true, false) => 4,
            (Operation::Send, true, true, true) => 5,
            (Operation::Write, true, false, _) => 6,
            (Operation::Write, false, false, _) => 7,
            (Operation::Write, false, true, false) => 8,
            (Operation::Write, false, true, true) => 9,
            (Operation::Write, true, true, false) => 10,
            (Operation::Write, true, true, true) => 11,
            (Operation::ReadRequest, ..) => 12,
            (Operation::ReadResponse, true, false, _) => 13,
            (Operation::ReadResponse, false, false, _) => 14,
            (Operation::ReadResponse, false, true, _) => 15,
            (Operation::ReadResponse, true, true, _) => 16,
            (Operation::Acknowledge, ..) => 17,
        };
        service | operation
    }
}

impl Frame for Packet {
    fn wire_bytes(&self) -> u64 {
        self.frame_bytes() + PREAMBLE_AND_GAP_BYTES
    }
}
