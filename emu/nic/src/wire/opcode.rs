//! The opcode table (IBTA volume 1, table 38 "OpCode field").

use crate::packet::{Operation, Packet};
use crate::transport::Transport;

/// Extended headers of an opcode, except immediate and invalidation; datagrams have the datagram header before all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    None,
    /// RETH.
    Remote,
    /// AETH.
    Acknowledge,
    /// AtomicETH.
    Atomic,
    /// AETH and AtomicAckETH.
    AtomicAcknowledge,
}

/// Four bytes after the other headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    None,
    /// ImmDt.
    Immediate,
    /// IETH.
    Invalidate,
}

/// One row: the low five bits of an opcode and what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) code: u8,
    pub(super) operation: Operation,
    pub(super) first: bool,
    pub(super) last: bool,
    pub(super) tail: Tail,
    pub(super) header: Header,
    pub(super) payload: bool,
}

const fn row(code: u8, operation: Operation, place: (bool, bool), tail: Tail, header: Header, payload: bool) -> Kind {
    Kind { code, operation, first: place.0, last: place.1, tail, header, payload }
}

const FIRST: (bool, bool) = (true, false);
const MIDDLE: (bool, bool) = (false, false);
const LAST: (bool, bool) = (false, true);
const ONLY: (bool, bool) = (true, true);

const KINDS: [Kind; 23] = [
    row(0x00, Operation::Send, FIRST, Tail::None, Header::None, true),
    row(0x01, Operation::Send, MIDDLE, Tail::None, Header::None, true),
    row(0x02, Operation::Send, LAST, Tail::None, Header::None, true),
    row(0x03, Operation::Send, LAST, Tail::Immediate, Header::None, true),
    row(0x04, Operation::Send, ONLY, Tail::None, Header::None, true),
    row(0x05, Operation::Send, ONLY, Tail::Immediate, Header::None, true),
    row(0x06, Operation::Write, FIRST, Tail::None, Header::Remote, true),
    row(0x07, Operation::Write, MIDDLE, Tail::None, Header::None, true),
    row(0x08, Operation::Write, LAST, Tail::None, Header::None, true),
    row(0x09, Operation::Write, LAST, Tail::Immediate, Header::None, true),
    row(0x0A, Operation::Write, ONLY, Tail::None, Header::Remote, true),
    row(0x0B, Operation::Write, ONLY, Tail::Immediate, Header::Remote, true),
    row(0x0C, Operation::ReadRequest, ONLY, Tail::None, Header::Remote, false),
    row(0x0D, Operation::ReadResponse, FIRST, Tail::None, Header::Acknowledge, true),
    row(0x0E, Operation::ReadResponse, MIDDLE, Tail::None, Header::None, true),
    row(0x0F, Operation::ReadResponse, LAST, Tail::None, Header::Acknowledge, true),
    row(0x10, Operation::ReadResponse, ONLY, Tail::None, Header::Acknowledge, true),
    row(0x11, Operation::Acknowledge, ONLY, Tail::None, Header::Acknowledge, false),
    row(0x12, Operation::AtomicAcknowledge, ONLY, Tail::None, Header::AtomicAcknowledge, false),
    row(0x13, Operation::CompareSwap, ONLY, Tail::None, Header::Atomic, false),
    row(0x14, Operation::FetchAdd, ONLY, Tail::None, Header::Atomic, false),
    row(0x16, Operation::Send, LAST, Tail::Invalidate, Header::None, true),
    row(0x17, Operation::Send, ONLY, Tail::Invalidate, Header::None, true),
];

const SERVICE_MASK: u8 = 0xE0;

/// `None` of frames without a transport header.
fn service(transport: Transport) -> Option<u8> {
    match transport {
        Transport::Rc => Some(0x00),
        Transport::Uc => Some(0x20),
        Transport::Ud => Some(0x60),
        Transport::Ethernet => None,
    }
}

fn allowed(transport: Transport, code: u8) -> bool {
    match transport {
        Transport::Rc => true,
        Transport::Uc => code <= 0x0B,
        Transport::Ud => code == 0x04 || code == 0x05,
        Transport::Ethernet => false,
    }
}

/// What an opcode means.
pub(super) fn meaning(opcode: u8) -> Option<(Transport, &'static Kind)> {
    let transport = [Transport::Rc, Transport::Uc, Transport::Ud]
        .into_iter()
        .find(|&transport| service(transport) == Some(opcode & SERVICE_MASK))?;
    let kind = KINDS.iter().find(|kind| kind.code == opcode & !SERVICE_MASK)?;
    allowed(transport, kind.code).then_some((transport, kind))
}

/// The opcode of a packet.
pub(super) fn of(packet: &Packet) -> Option<(u8, &'static Kind)> {
    let tail = match (packet.immediate, packet.invalidate) {
        (None, None) => Tail::None,
        (Some(_), None) => Tail::Immediate,
        (None, Some(_)) => Tail::Invalidate,
        (Some(_), Some(_)) => return None,
    };
    let kind = KINDS.iter().find(|kind| {
        (kind.operation, kind.first, kind.last, kind.tail) == (packet.operation, packet.first, packet.last, tail)
    })?;
    let service = service(packet.transport).filter(|_| allowed(packet.transport, kind.code))?;
    Some((service | kind.code, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_and_meanings_are_one_to_one() {
        let known: Vec<u8> = (0..=255).filter(|&opcode| meaning(opcode).is_some()).collect();
        let expected: Vec<u8> = (0x00..=0x14).chain([0x16, 0x17]).chain(0x20..=0x2B).chain([0x64, 0x65]).collect();
        assert_eq!(known, expected);
        for (i, a) in KINDS.iter().enumerate() {
            for b in &KINDS[i + 1..] {
                assert_ne!((a.operation, a.first, a.last, a.tail), (b.operation, b.first, b.last, b.tail));
            }
        }
    }
}
