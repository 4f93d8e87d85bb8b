//! Notes of what happens inside the card, for a timeline. Off unless asked for; they change nothing.

use crate::cq::CqTarget;
use crate::cqe::Cqe;
use crate::packet::{Operation, Packet};
use crate::transport::Transport;

/// What identifies a packet on its way from one card to another, and what a reader wants to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketNote {
    /// Ethernet address of the sender.
    pub source: [u8; 6],
    /// Ethernet address of the receiver, or of a multicast group: queue pair number and sequence numbers are the same
    /// in all groups.
    pub destination: [u8; 6],
    /// Queue pair at the receiver.
    pub destination_qpn: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// Opcode field of the base transport header.
    pub opcode: u8,
    /// Transport service.
    pub transport: Transport,
    /// What it does.
    pub operation: Operation,
    /// Bytes of the Ethernet frame, without preamble and gap.
    pub frame_bytes: u64,
    /// Immediate, if there is one: four opaque bytes.
    pub immediate: Option<[u8; 4]>,
}

/// What a completion queue entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqeNote {
    /// The completion queue.
    pub cqn: u32,
    /// The queue pair whose work is complete.
    pub qpn: u32,
    /// Opcode of the entry; see [`cqe_opcode`](crate::cqe_opcode).
    pub opcode: u8,
    /// Syndrome of an error entry, 0 otherwise; see [`syndrome`](crate::syndrome).
    pub syndrome: u8,
    /// Index of the completed work queue entry, modulo 2^16.
    pub wqe_counter: u16,
    /// Bytes of the message.
    pub byte_count: u32,
    /// Owner bit as written.
    pub owner: u8,
}

/// Something that happened inside the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Software rang a send doorbell; the card sees it later.
    Doorbell {
        /// The queue pair.
        qpn: u32,
        /// Producer index, in 64-byte blocks.
        producer_index: u16,
    },
    /// Software armed a completion queue; the card sees it later.
    Arm {
        /// The completion queue.
        cqn: u32,
        /// Consumer index, 24 bits.
        consumer_index: u32,
    },
    /// A packet left, through the port or round inside the card.
    Sent {
        /// The packet.
        packet: PacketNote,
        /// When its last bit leaves, in picoseconds.
        until_ps: u64,
        /// It turns round inside the card.
        loopback: bool,
    },
    /// A packet arrived, at the port or having turned round.
    Arrived {
        /// The packet.
        packet: PacketNote,
        /// It turned round inside the card.
        loopback: bool,
    },
    /// A packet was dropped, or refused, or had been seen before.
    Dropped {
        /// The packet.
        packet: PacketNote,
        /// The counter that counted it, by its name in [`Counters`](crate::Counters).
        reason: &'static str,
    },
    /// A packet was the last of a message that takes a receive; its CQE follows, the CQEs of one queue pair in this
    /// order.
    Completed {
        /// The receiving queue pair.
        qpn: u32,
        /// The packet.
        packet: PacketNote,
    },
    /// A CQE was written.
    Cqe(CqeNote),
    /// A completion event was raised.
    Event {
        /// The completion queue.
        cqn: u32,
        /// Who is notified.
        target: CqTarget,
    },
}

impl From<&Packet> for PacketNote {
    fn from(packet: &Packet) -> Self {
        Self {
            source: packet.source.mac,
            destination: packet.destination.mac,
            destination_qpn: packet.destination_qpn,
            psn: packet.psn,
            opcode: packet.opcode(),
            transport: packet.transport,
            operation: packet.operation,
            frame_bytes: packet.frame_bytes(),
            immediate: packet.immediate,
        }
    }
}

impl CqeNote {
    pub(crate) fn new(cqn: u32, cqe: &Cqe, error: bool, owner: u8) -> Self {
        let word = |at: usize| u32::from_be_bytes([cqe[at], cqe[at + 1], cqe[at + 2], cqe[at + 3]]);
        Self {
            cqn,
            qpn: word(0x38) & 0xFF_FFFF,
            opcode: cqe[0x3F] >> 4,
            syndrome: if error { cqe[0x37] } else { 0 },
            wqe_counter: u16::from_be_bytes([cqe[0x3C], cqe[0x3D]]),
            byte_count: word(0x2C),
            owner,
        }
    }
}
