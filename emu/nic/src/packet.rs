//! RoCEv2 packets, as far as the card needs them: the fields of their headers, not their bytes.

use std::sync::Arc;

use emu_fabric::Frame;

use crate::address::{Address, RoceVersion};
use crate::transport::Transport;

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
    /// The answer to an atomic request: what the memory held before.
    AtomicAcknowledge,
    /// An atomic compare-and-swap request.
    CompareSwap,
    /// An atomic fetch-and-add request.
    FetchAdd,
}

impl Operation {
    /// Whether the packet asks something of a responder; the others answer a requester.
    #[must_use]
    pub fn is_request(self) -> bool {
        match self {
            Self::Send | Self::Write | Self::ReadRequest | Self::CompareSwap | Self::FetchAdd => true,
            Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge => false,
        }
    }

    /// Whether the packet asks for something out of memory. The answer is the acknowledgement: another one, also if the
    /// request asks for it, would say that the bytes have been brought when they may have been lost (InfiniBand
    /// specification, volume 1, 9.7.5).
    pub(crate) fn is_fetch(self) -> bool {
        matches!(self, Self::ReadRequest | Self::CompareSwap | Self::FetchAdd)
    }
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

    /// What a syndrome field says; `None` for the reserved codes. The credit count of a positive acknowledgement is
    /// ignored: this card does no end-to-end flow control.
    #[must_use]
    pub fn from_syndrome(syndrome: u8) -> Option<Self> {
        match syndrome {
            0x00..=0x1F => Some(Self::Positive),
            0x20..=0x3F => Some(Self::ReceiverNotReady { timer: syndrome & 0x1F }),
            0x60 => Some(Self::SequenceError),
            0x61 => Some(Self::InvalidRequest),
            0x62 => Some(Self::RemoteAccess),
            0x63 => Some(Self::RemoteOperation),
            _ => None,
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
    /// Remote memory and operands of an atomic request (AtomicETH, in this order; big-endian).
    Atomic {
        /// First of the eight bytes.
        address: u64,
        /// Memory key.
        rkey: u32,
        /// What to store if the comparison holds, or what to add.
        swap_or_add: u64,
        /// What to compare with; of no meaning to a fetch-and-add.
        compare: u64,
    },
    /// Answer to an atomic request: a positive acknowledgement (AETH), then the old value (AtomicAckETH).
    AtomicAcknowledge {
        /// What the memory held before.
        original: u64,
    },
}

/// The fields of the network and UDP headers that a sender chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// How the packet is packed.
    pub version: RoceVersion,
    /// Traffic class: the whole octet, with the ECN bits in bits 1:0.
    pub traffic_class: u8,
    /// Hop limit (IPv4: time to live).
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; IPv4 has none.
    pub flow_label: u32,
    /// IPv4 identification; IPv6 has none. Cards of ours send 0, others count (the invariant check sequence covers it).
    pub identification: u16,
    /// IPv4 "don't fragment"; IPv6 has none. Cards of ours set it.
    pub dont_fragment: bool,
    /// UDP source port.
    pub udp_source_port: u16,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            version: RoceVersion::V2,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            identification: 0,
            dont_fragment: true,
            udp_source_port: 0xC000,
        }
    }
}

/// The priority of a traffic class: the class selector in its upper three bits, which switches and cards that trust the
/// DSCP map to priorities by default (RFC 2474; `mlnx_qos`).
pub(crate) const fn priority(traffic_class: u8) -> u8 {
    traffic_class >> 5
}

/// Zeroed payload memory, to be filled before it is shared.
pub(crate) fn payload(len: u32) -> Arc<[u8]> {
    std::iter::repeat_n(0, len as usize).collect()
}

/// The default partition key: every port is a full member.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

/// One packet. Cloning it (for multicast) shares the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sender.
    pub source: Address,
    /// Receiver, or group of receivers.
    pub destination: Address,
    /// Fields of the network and UDP headers.
    pub network: Network,
    /// Partition key.
    pub pkey: u16,
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
    /// Memory key that the receiver is to invalidate (IETH), in the last packet of a Send; never together with an
    /// immediate.
    pub invalidate: Option<u32>,
    /// Requests that the responder has completed, 24 bits: the MSN of an acknowledgement header, 0 without one.
    pub message_number: u32,
    /// Extended header.
    pub extension: Extension,
    /// Payload; of raw Ethernet the whole frame, from its destination address on, without check sequence.
    pub payload: Arc<[u8]>,
    /// A bit behind the headers has been flipped on the way, chosen by this number: the check sequence is
    /// wrong, and the receiving card drops the packet. `None` in what a card sends.
    pub damage: Option<u64>,
}

/// Ethernet preamble, start delimiter and gap: on the wire, but in no byte counter.
pub const PREAMBLE_AND_GAP_BYTES: u64 = 20;
/// Ethernet header and frame check sequence.
const ETHERNET_BYTES: u64 = 18;
/// Ethernet frame check sequence: counted in a frame, but not part of the bytes that a queue sends or receives.
pub const FCS_BYTES: u64 = 4;
/// Shortest Ethernet frame with them; shorter ones are padded.
const MIN_FRAME_BYTES: u64 = 64;
const IPV4_BYTES: u64 = 20;
const IPV6_BYTES: u64 = 40;
const GRH_BYTES: u64 = 40;
const UDP_BYTES: u64 = 8;
/// Base transport header, invariant check sequence.
const TRANSPORT_BYTES: u64 = 12 + 4;

impl Packet {
    /// Bytes of the Ethernet frame, without preamble and gap.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        if self.transport == Transport::Ethernet {
            return (self.payload.len() as u64 + FCS_BYTES).max(MIN_FRAME_BYTES);
        }
        let network = match self.network.version {
            RoceVersion::V1 => GRH_BYTES,
            RoceVersion::V2 if self.destination.gid.ipv4().is_some() => IPV4_BYTES + UDP_BYTES,
            RoceVersion::V2 => IPV6_BYTES + UDP_BYTES,
        };
        let extension = match self.extension {
            Extension::None => 0,
            Extension::Datagram { .. } => 8,
            Extension::Remote { .. } => 16,
            Extension::Acknowledge(_) => 4,
            Extension::Atomic { .. } => 28,
            Extension::AtomicAcknowledge { .. } => 12,
        };
        let immediate = if self.immediate.is_some() || self.invalidate.is_some() { 4 } else { 0 };
        // The payload is padded to four bytes.
        let payload = (self.payload.len() as u64).next_multiple_of(4);
        (ETHERNET_BYTES + network + TRANSPORT_BYTES + extension + immediate + payload).max(MIN_FRAME_BYTES)
    }

    /// The opcode field of the base transport header; 0 in a frame that has none.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        let service = match self.transport {
            Transport::Rc => 0x00,
            Transport::Uc => 0x20,
            Transport::Ud => 0x60,
            Transport::Ethernet => return 0,
        };
        let immediate = self.immediate.is_some();
        if self.operation == Operation::Send && self.last && self.invalidate.is_some() {
            return service | if self.first { 0x17 } else { 0x16 };
        }
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
            (Operation::AtomicAcknowledge, ..) => 18,
            (Operation::CompareSwap, ..) => 19,
            (Operation::FetchAdd, ..) => 20,
        };
        service | operation
    }
}

impl Frame for Packet {
    fn wire_bytes(&self) -> u64 {
        self.frame_bytes() + PREAMBLE_AND_GAP_BYTES
    }
}
