//! Errors of encoding and decoding packets.

use crate::address::Gid;
use crate::packet::{Extension, Operation};
use crate::transport::Transport;

/// Why a packet cannot be written as a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// An IPv4 destination needs an IPv4 source.
    #[error("a packet from {from} to the IPv4 address {to}: give an IPv4-mapped source identifier")]
    MixedNetworks {
        /// Source.
        from: Gid,
        /// Destination.
        to: Gid,
    },
    /// A field does not fit its bits.
    #[error("{field} is {value:#x}, but may be at most {max:#x}")]
    FieldRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Largest value.
        max: u64,
    },
    /// The architecture has no such packet.
    #[error(
        "there is no {transport} opcode for {operation:?} with first {first}, last {last}, immediate {immediate}, \
         invalidate {invalidate}: choose a combination of the opcode table"
    )]
    NoOpcode {
        /// Transport service.
        transport: Transport,
        /// Operation.
        operation: Operation,
        /// First packet of its message.
        first: bool,
        /// Last packet of its message.
        last: bool,
        /// It has an immediate.
        immediate: bool,
        /// It has a key to invalidate.
        invalidate: bool,
    },
    /// The extended header is not that of the opcode.
    #[error("opcode {opcode:#04x} does not go with {extension:?}: it needs {needs}")]
    WrongExtension {
        /// The opcode.
        opcode: u8,
        /// What the packet has.
        extension: Extension,
        /// What it should have.
        needs: &'static str,
    },
    /// The opcode carries no payload.
    #[error("opcode {opcode:#04x} carries no payload, but the packet has {bytes} bytes")]
    Payload {
        /// The opcode.
        opcode: u8,
        /// Bytes of payload.
        bytes: usize,
    },
    /// Only the acknowledgement header has a message number.
    #[error("opcode {opcode:#04x} has no acknowledgement header, so message number {value:#x} must be 0")]
    MessageNumber {
        /// The opcode.
        opcode: u8,
        /// The message number.
        value: u32,
    },
}

/// Why a frame is no packet that the card understands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame ends within a header.
    #[error("the {header} needs {needed} bytes, but only {bytes} are left")]
    Truncated {
        /// The header.
        header: &'static str,
        /// Bytes that are there.
        bytes: usize,
        /// Bytes that it needs.
        needed: usize,
    },
    /// Neither IPv4 nor IPv6; also a VLAN tag.
    #[error("the EtherType is {value:#06x}, but must be 0x0800 (IPv4) or 0x86dd (IPv6), untagged")]
    EtherType {
        /// The EtherType.
        value: u16,
    },
    /// A field that has one right value has another.
    #[error("{field} is {value:#x}, but must be {expected:#x}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The value it must have.
        expected: u64,
    },
    /// A length field or the frame itself is too short or too long.
    #[error("{field} is {value} bytes, but must be from {min} to {max}")]
    Length {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
    /// An IPv4 address where only an IPv6 one can be.
    #[error("the destination {destination} of an IPv6 header is an IPv4 address: send it over IPv4")]
    MappedDestination {
        /// The destination.
        destination: Gid,
    },
    /// The invariant check sequence is wrong: the packet was corrupted on the way.
    #[error("the invariant check sequence is {value:#010x}, but the packet's is {expected:#010x}")]
    Icrc {
        /// What stands in the frame.
        value: u32,
        /// What its bytes give.
        expected: u32,
    },
    /// The opcode is reserved, or of a service that the card does not have.
    #[error("opcode {opcode:#04x} is not one of RC, UC or UD that the card knows")]
    Opcode {
        /// The opcode.
        opcode: u8,
    },
    /// More padding than payload.
    #[error("the pad count is {pad}, but only {bytes} bytes of payload and padding are there")]
    PadCount {
        /// Pad count, 0 to 3.
        pad: usize,
        /// Bytes between the headers and the check sequence.
        bytes: usize,
    },
    /// Payload behind an opcode that has none.
    #[error("opcode {opcode:#04x} carries no payload, but {bytes} bytes follow its headers")]
    Payload {
        /// The opcode.
        opcode: u8,
        /// Bytes between the headers and the check sequence.
        bytes: usize,
    },
    /// The syndrome of an acknowledgement header is reserved, or not possible for this opcode.
    #[error("syndrome {syndrome:#04x} is reserved or not one that opcode {opcode:#04x} may carry")]
    Syndrome {
        /// The opcode.
        opcode: u8,
        /// The syndrome.
        syndrome: u8,
    },
}
