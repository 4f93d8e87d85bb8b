//! Errors of encoding and decoding messages of service processes.

use thiserror::Error;

use super::fields::{HEADER_BYTES, MAGIC, MAX_BYTES, VERSION};

/// Bytes that are no message of a service process, or a message that has no bytes. Whoever gets such bytes ends the
/// connection: it is not to be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Fewer or more bytes than the message has.
    #[error("service message of {found} bytes instead of {expected}")]
    Length {
        /// Bytes that came.
        found: usize,
        /// Bytes of such a message; at least, if its kind is not known yet.
        expected: usize,
    },
    /// A length that no message has.
    #[error("service message announces {found} bytes: a message has {HEADER_BYTES} to {MAX_BYTES}")]
    Announced {
        /// What came.
        found: u16,
    },
    /// Something else altogether.
    #[error(
        "service message begins with {found:02x?} instead of {MAGIC:02x?}: whatever sent it is neither a rank nor a \
         service process of this library"
    )]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another version.
    #[error(
        "service message of version {found}, but this side speaks version {VERSION}: run the same release of daemons \
         and programs"
    )]
    Version {
        /// What came.
        found: u8,
    },
    /// No such kind of message, operation or cause.
    #[error("{field} {found} in a service message: codes run from 1 to {last}")]
    Code {
        /// What it would be.
        field: &'static str,
        /// What came.
        found: u8,
        /// The last code there is.
        last: u8,
    },
    /// A number out of its range.
    #[error("{field} {found} in a service message: it is {least} to {most}")]
    Number {
        /// What it counts or names.
        field: &'static str,
        /// What came.
        found: u64,
        /// The least that there is.
        least: u64,
        /// The most that there is.
        most: u64,
    },
    /// Flags that cannot be numbered by collectives.
    #[error("{bytes} bytes of completion flags: give 8 times a power of two, up to 2^31 flags")]
    Flags {
        /// Length of the memory.
        bytes: u64,
    },
    /// Memory that ends beyond the address space.
    #[error("{bytes} bytes at {address:#x} end beyond 2^64: check the address and the length")]
    Region {
        /// First byte.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A group or a collective in a message that is of none.
    #[error("service message of kind {kind} with group {group} and collective {collective}: what it is not about is 0")]
    Context {
        /// Kind of the message.
        kind: u8,
        /// What was given.
        group: u32,
        /// What was given.
        collective: u32,
    },
    /// A part of a list that has another number of entries than its place asks for.
    #[error("part {index} of a list has {found} entries instead of {expected}")]
    Entries {
        /// Number of the part.
        index: u16,
        /// Entries that came.
        found: usize,
        /// Entries that such a part has.
        expected: usize,
    },
    /// A byte that says nothing is not what it must be, which is mostly zero.
    #[error("byte {offset} of a service message is {found:#04x} instead of {expected:#04x}")]
    Stray {
        /// Its offset.
        offset: usize,
        /// What it is.
        found: u8,
        /// What it has to be.
        expected: u8,
    },
    /// The name of a limit or a buffer that no refusal of this crate has.
    #[error("a refusal names {name:?}, which has no code in service messages")]
    Name {
        /// The name.
        name: &'static str,
    },
}
