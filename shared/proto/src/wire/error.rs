//! Errors of decoding.

use thiserror::Error;

use super::{MAGIC, VERSION};

/// Bytes that are no control message for this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Too short or too long.
    #[error("control message of {found} bytes: this kind has {expected}")]
    Length {
        /// Bytes that came.
        found: usize,
        /// Bytes of such a message; at least, if its kind is not known yet.
        expected: usize,
    },
    /// Something else altogether.
    #[error(
        "control message begins with {found:02x?} instead of {MAGIC:02x?}: whatever sent it is no rank of this library"
    )]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another version.
    #[error(
        "control message of version {found}, but this rank speaks version {VERSION}: run the same release on all ranks"
    )]
    Version {
        /// What came.
        found: u8,
    },
    /// No such kind of message, operation or cause.
    #[error("{field} {found} in a control message: codes run from 1 to {last}")]
    Code {
        /// What it would be.
        field: &'static str,
        /// What came.
        found: u8,
        /// The last code there is.
        last: u8,
    },
    /// No such failure of a worker or a connection.
    #[error(
        "failure code {found:#06x} in a control message, which this release does not know: run the same release on all \
         ranks"
    )]
    Failure {
        /// What came.
        found: u16,
    },
    /// Meant for another communicator.
    #[error("control message of communicator {found:#x} on a connection of communicator {expected:#x}")]
    Communicator {
        /// Whose it is.
        found: u64,
        /// Whose connection it is.
        expected: u64,
    },
    /// A rank or a block that the communicator does not have.
    #[error("{field} {found} in a control message, but the communicator has {ranks} ranks")]
    Rank {
        /// Whose number it is.
        field: &'static str,
        /// What came.
        found: u32,
        /// Ranks of the communicator.
        ranks: u32,
    },
    /// A round that no barrier has.
    #[error("barrier round {found} in a control message, but {ranks} ranks have {rounds}")]
    Round {
        /// What came.
        found: u8,
        /// Ranks of the communicator.
        ranks: u32,
        /// Rounds of their barrier.
        rounds: u8,
    },
    /// More words than a set has.
    #[error("set of {found} words in a control message, but a set has at most {most}")]
    Words {
        /// What came.
        found: u32,
        /// Words of the largest set.
        most: u32,
    },
    /// A byte that says nothing is not what it must be, which is mostly zero.
    #[error("byte {offset} of a control message is {found:#04x} instead of {expected:#04x}")]
    Stray {
        /// Its offset.
        offset: usize,
        /// What it is.
        found: u8,
        /// What it has to be.
        expected: u8,
    },
}
