//! Completion queue entries, 64 bytes (mlx5 CQE layout of rdma-core; big-endian).

use crate::cq::CQE_BYTES;
use crate::ethernet::{Parsed, complete_sum};
use crate::grh::RoutingHeader;

/// CQE opcodes.
pub mod opcode {
    /// A send-queue WQE completed.
    pub const REQUESTER: u8 = 0;
    /// A Write with immediate arrived.
    pub const RESPONDER_WRITE_IMMEDIATE: u8 = 1;
    /// A Send arrived.
    pub const RESPONDER_SEND: u8 = 2;
    /// A Send with immediate arrived.
    pub const RESPONDER_SEND_IMMEDIATE: u8 = 3;
    /// A Send arrived that invalidated a memory key.
    pub const RESPONDER_SEND_INVALIDATE: u8 = 4;
    /// A send-queue WQE failed.
    pub const REQUESTER_ERROR: u8 = 13;
    /// A receive failed.
    pub const RESPONDER_ERROR: u8 = 14;
}

/// Syndromes of error CQEs.
pub mod syndrome {
    /// Message longer than allowed, or than the receive.
    pub const LOCAL_LENGTH: u8 = 0x01;
    /// The WQE cannot be executed.
    pub const LOCAL_QP_OPERATION: u8 = 0x02;
    /// A local memory key does not allow the access.
    pub const LOCAL_PROTECTION: u8 = 0x04;
    /// Not executed: the queue pair is in the error state.
    pub const FLUSHED: u8 = 0x05;
    /// A memory window cannot be bound so.
    pub const WINDOW_BIND: u8 = 0x06;
    /// The answer of the peer was malformed.
    pub const BAD_RESPONSE: u8 = 0x10;
    /// The peer found the request malformed, or longer than its receive.
    pub const REMOTE_INVALID_REQUEST: u8 = 0x12;
    /// The peer does not allow the access.
    pub const REMOTE_ACCESS: u8 = 0x13;
    /// The peer failed for a reason of its own.
    pub const REMOTE_OPERATION: u8 = 0x14;
    /// Nothing was received from the peer, too often.
    pub const RETRY_EXCEEDED: u8 = 0x15;
    /// The peer had no receive, too often.
    pub const RNR_RETRY_EXCEEDED: u8 = 0x16;
}

/// Vendor syndromes of error CQEs: what exactly failed. NVIDIA publishes no list of them.
///
/// The values below 0xE0 and [`FLUSHED`](vendor::FLUSHED) are those that users' logs of ConnectX cards show with the
/// [`syndrome`]. The others name a check of this emulator, which a card reports by values that nobody has published: a
/// card was seen with 0x51 and 0x52 with [`LOCAL_PROTECTION`](syndrome::LOCAL_PROTECTION).
pub mod vendor {
    /// The peer does not answer (with [`RETRY_EXCEEDED`](super::syndrome::RETRY_EXCEEDED)).
    pub const NO_ANSWER: u8 = 0x81;
    /// The peer has no receive (with [`RNR_RETRY_EXCEEDED`](super::syndrome::RNR_RETRY_EXCEEDED)).
    pub const NO_RECEIVE: u8 = 0x87;
    /// The peer's memory key refuses the access (with [`REMOTE_ACCESS`](super::syndrome::REMOTE_ACCESS)).
    pub const REMOTE_ACCESS: u8 = 0x88;
    /// The peer failed (with [`REMOTE_OPERATION`](super::syndrome::REMOTE_OPERATION)).
    pub const REMOTE_OPERATION: u8 = 0x89;
    /// The peer refuses the request (with [`REMOTE_INVALID_REQUEST`](super::syndrome::REMOTE_INVALID_REQUEST)).
    pub const REMOTE_INVALID_REQUEST: u8 = 0x8A;
    /// The message is longer than the receive.
    pub const RECEIVE_LENGTH: u8 = 0x8E;
    /// Not executed (with [`FLUSHED`](super::syndrome::FLUSHED)).
    pub const FLUSHED: u8 = 0xF9;
    /// No such memory key.
    pub const KEY_UNKNOWN: u8 = 0xE0;
    /// The key belongs to another protection domain.
    pub const KEY_PD: u8 = 0xE1;
    /// The range is not inside the key's.
    pub const KEY_RANGE: u8 = 0xE2;
    /// The key lacks a right.
    pub const KEY_RIGHTS: u8 = 0xE3;
    /// The key is a UMR key that is free, or must be free and is not.
    pub const KEY_FREE: u8 = 0xE5;
    /// The key is an alias of one that is not shared any more.
    pub const KEY_REVOKED: u8 = 0xE6;
    /// The key is behind too many others.
    pub const KEY_DEPTH: u8 = 0xE7;
    /// The key allows the access, but there is no memory behind it.
    pub const NO_MEMORY: u8 = 0xE4;
    /// The opcode is unknown, or not one of this transport.
    pub const OPCODE: u8 = 0xE8;
    /// The size field does not fit the WQE's segments or reaches past the producer index.
    pub const SIZE: u8 = 0xE9;
    /// The queue pair number of the control segment is not that of the queue.
    pub const QPN: u8 = 0xEA;
    /// The address vector is compact, or names a source that the card does not have.
    pub const ADDRESS: u8 = 0xEB;
    /// More bytes than a message or datagram may have, fewer than an atomic operation has, or no length of a frame.
    pub const LENGTH: u8 = 0xEC;
    /// A read or atomic request, but the queue pair may have none outstanding.
    pub const READ_DEPTH: u8 = 0xED;
    /// A UMR of a kind that is not emulated: a list elsewhere in memory, an offset into it, or a key for one queue
    /// pair.
    pub const UMR: u8 = 0xEF;
}

/// A CQE, its owner bit 0.
pub(crate) type Cqe = [u8; CQE_BYTES];

fn put16(cqe: &mut Cqe, at: usize, value: u16) {
    cqe[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn put32(cqe: &mut Cqe, at: usize, value: u32) {
    cqe[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Puts the time in: 8 bytes at 0x30, in nanoseconds of virtual time.
pub(crate) fn stamp(cqe: &mut Cqe, now_ps: u64) {
    // An error CQE has its syndromes in the last two bytes of the field.
    if cqe[0x3F] >> 4 < opcode::REQUESTER_ERROR {
        cqe[0x30..0x38].copy_from_slice(&(now_ps / 1_000).to_be_bytes());
    }
}

/// A send-queue WQE is done.
pub(crate) fn requester(qpn: u32, user_index: u32, wqe_opcode: u8, index: u16, byte_count: u32) -> Cqe {
    let mut cqe = [0; CQE_BYTES];
    put32(&mut cqe, 0x20, user_index & 0xFF_FFFF);
    put32(&mut cqe, 0x2C, byte_count);
    put32(&mut cqe, 0x38, u32::from(wqe_opcode) << 24 | qpn);
    put16(&mut cqe, 0x3C, index);
    cqe[0x3F] = opcode::REQUESTER << 4;
    cqe
}

/// What a responder CQE reports.
pub(crate) struct Receipt {
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    pub(crate) user_index: u32,
    pub(crate) source_qpn: u32,
    pub(crate) has_grh: bool,
    pub(crate) routing_header: RoutingHeader,
    pub(crate) immediate: [u8; 4],
    pub(crate) byte_count: u32,
    pub(crate) index: u16,
    pub(crate) solicited: bool,
}

/// A receive is done.
pub(crate) fn responder(receipt: &Receipt) -> Cqe {
    let mut cqe = [0; CQE_BYTES];
    // Where InfiniBand has the service level, RoCE has the kind of routing header.
    let routing = receipt.routing_header as u32;
    put32(&mut cqe, 0x18, u32::from(receipt.has_grh) << 28 | routing << 24 | receipt.source_qpn);
    put32(&mut cqe, 0x20, receipt.user_index & 0xFF_FFFF);
    cqe[0x24..0x28].copy_from_slice(&receipt.immediate);
    put32(&mut cqe, 0x2C, receipt.byte_count);
    put32(&mut cqe, 0x38, receipt.qpn);
    put16(&mut cqe, 0x3C, receipt.index);
    cqe[0x3F] = receipt.opcode << 4 | u8::from(receipt.solicited) << 1;
    cqe
}

/// An Ethernet frame has arrived, in receive `index` of queue `qpn` with `user_index`.
///
/// Layout: `mlx5_cqe64` of Linux `mlx5/device.h`. Byte 0x1C has a bit for each layer whose checksum is right, 0x1D the
/// kinds of headers and whether a VLAN tag was there, 0x14 the sum from the network header on.
pub(crate) fn frame(bytes: &[u8], found: &Parsed, (qpn, user_index): (u32, u32), index: u16, byte_count: u32) -> Cqe {
    const LAYER_2_OK: u8 = 1;
    let layer_3 = found.layer_3.map_or((0, 0), |layer| (if layer.is_ipv4 { 2 } else { 1 }, u8::from(layer.is_right)));
    let layer_4 = found.layer_4.map_or((0, 0), |layer| {
        let acknowledges = found.fields[0x13] & 0x10 != 0;
        let kind = match (layer.is_tcp, acknowledges) {
            (false, _) => 2,
            (true, false) => 1,
            (true, true) if layer.payload_bytes == 0 => 3,
            (true, true) => 4,
        };
        (kind, u8::from(layer.is_right))
    });
    let mut cqe = [0; CQE_BYTES];
    put16(&mut cqe, 0x14, complete_sum(bytes, found));
    cqe[0x1C] = LAYER_2_OK | layer_3.1 << 1 | layer_4.1 << 2;
    cqe[0x1D] = layer_4.0 << 4 | layer_3.0 << 2 | u8::from(found.vlan.is_some());
    put16(&mut cqe, 0x1E, found.vlan.unwrap_or(0));
    put32(&mut cqe, 0x20, user_index & 0xFF_FFFF);
    put32(&mut cqe, 0x2C, byte_count);
    put32(&mut cqe, 0x38, qpn);
    put16(&mut cqe, 0x3C, index);
    cqe[0x3F] = opcode::RESPONDER_SEND << 4;
    cqe
}

/// Which side of a queue pair an error CQE is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requester { wqe_opcode: u8 },
    Responder,
}

/// A WQE failed.
pub(crate) fn error(side: Side, qpn: u32, user_index: u32, index: u16, syndrome: u8, vendor_syndrome: u8) -> Cqe {
    let mut cqe = [0; CQE_BYTES];
    let (opcode, wqe_opcode) = match side {
        Side::Requester { wqe_opcode } => (opcode::REQUESTER_ERROR, wqe_opcode),
        Side::Responder => (opcode::RESPONDER_ERROR, 0),
    };
    put32(&mut cqe, 0x20, user_index & 0xFF_FFFF);
    cqe[0x36] = vendor_syndrome;
    cqe[0x37] = syndrome;
    put32(&mut cqe, 0x38, u32::from(wqe_opcode) << 24 | qpn);
    put16(&mut cqe, 0x3C, index);
    cqe[0x3F] = opcode << 4;
    cqe
}
