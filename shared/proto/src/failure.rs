//! Failure of an operation: failed rank, detecting rank, and cause.

use thiserror::Error;

mod code;

pub use code::FailureCode;

/// Why an operation has failed. The ring passes it on, so that all ranks name the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{}", Description(self))]
pub struct Failure {
    /// The rank at fault; the own rank if it is this one's worker, user or clock.
    pub failed_rank: u32,
    /// The rank that noticed.
    pub detecting_rank: u32,
    /// What happened.
    pub cause: Cause,
}

/// What has happened to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The failed rank was waited for in vain.
    Silent(WaitedFor),
    /// Its user cancelled the operation.
    Cancelled,
    /// It called another operation, or the same one with other arguments than the detecting rank.
    Disagrees,
    /// Its worker on the card failed, or something else that only it uses.
    Device(FailureCode),
    /// The connection from the detecting rank to it broke.
    Connection(FailureCode),
    /// An aggregator that is no rank failed the detecting rank, which stands for the failed rank. The code is its
    /// number among those that ranks were given.
    #[cfg(feature = "aggregators")]
    Aggregator(u16),
    /// Its contribution to a sum has a number that has no place in the fixed-point numbers that all ranks add. Its own
    /// error says which.
    #[cfg(feature = "aggregators")]
    Contribution,
}

impl Cause {
    /// The cause as one number: its kind in bits 7:0, what was waited for in bits 15:8, its code in bits 31:16.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        match self {
            Self::Silent(waited_for) => 1 | (waited_for as u32) << 8,
            Self::Cancelled => 2,
            Self::Disagrees => 3,
            Self::Device(code) => 4 | (code.to_raw() as u32) << 16,
            Self::Connection(code) => 5 | (code.to_raw() as u32) << 16,
            #[cfg(feature = "aggregators")]
            Self::Aggregator(number) => 6 | (number as u32) << 16,
            #[cfg(feature = "aggregators")]
            Self::Contribution => 7,
        }
    }

    /// The cause of a number; the number itself when it names none.
    ///
    /// # Errors
    /// The number.
    pub const fn from_bits(bits: u32) -> Result<Self, u32> {
        let number = (bits >> 16) as u16;
        let cause = match bits as u8 {
            1 => match WaitedFor::from_raw((bits >> 8) as u8) {
                Ok(waited_for) => Self::Silent(waited_for),
                Err(_) => return Err(bits),
            },
            2 => Self::Cancelled,
            3 => Self::Disagrees,
            kind @ 4..=5 => match FailureCode::from_raw(number) {
                Ok(code) if kind == 4 => Self::Device(code),
                Ok(code) => Self::Connection(code),
                Err(_) => return Err(bits),
            },
            #[cfg(feature = "aggregators")]
            6 => Self::Aggregator(number),
            #[cfg(feature = "aggregators")]
            7 => Self::Contribution,
            _ => return Err(bits),
        };
        if cause.to_bits() == bits { Ok(cause) } else { Err(bits) }
    }
}

/// What a rank can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WaitedFor {
    /// A barrier signal.
    Barrier = 1,
    /// The activation by the predecessor.
    Activation = 2,
    /// The end of the own multicast.
    OwnSend = 3,
    /// An acknowledgement, or the own read after it.
    Block = 4,
    /// The right neighbour's final message.
    Final = 5,
}

impl WaitedFor {
    /// What a code stands for; the code itself when it stands for nothing.
    ///
    /// # Errors
    /// The code.
    pub const fn from_raw(raw: u8) -> Result<Self, u8> {
        match raw {
            1 => Ok(Self::Barrier),
            2 => Ok(Self::Activation),
            3 => Ok(Self::OwnSend),
            4 => Ok(Self::Block),
            5 => Ok(Self::Final),
            other => Err(other),
        }
    }
}

impl core::fmt::Display for WaitedFor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            WaitedFor::Barrier => "its barrier signal",
            WaitedFor::Activation => "its activation of the next sender",
            WaitedFor::OwnSend => "the end of its multicast",
            WaitedFor::Block => "a block that was asked for",
            WaitedFor::Final => "its final message",
        })
    }
}

struct Description<'a>(&'a Failure);

impl core::fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Failure { failed_rank, detecting_rank, cause } = self.0;
        match cause {
            Cause::Silent(waited_for) if failed_rank == detecting_rank => write!(
                f,
                "rank {failed_rank} did not finish {}: check its card and its faults, or allow more time",
                match waited_for {
                    WaitedFor::OwnSend => "its multicast",
                    WaitedFor::Block => "its reads and copies",
                    _ => "its part",
                }
            ),
            Cause::Silent(waited_for) => write!(
                f,
                "rank {failed_rank} was silent while rank {detecting_rank} waited for it: {waited_for}; see whether \
                 rank {failed_rank} is alive and has called the operation, or allow more time"
            ),
            Cause::Cancelled => {
                write!(f, "rank {failed_rank} cancelled the operation: all ranks must make a new communicator to go on")
            }
            Cause::Disagrees => write!(
                f,
                "rank {failed_rank} called another operation than rank {detecting_rank}, or the same one with other \
                 arguments: compare their calls"
            ),
            Cause::Device(code) => {
                write!(f, "the worker of rank {failed_rank} failed: {code}; see its log and its card")
            }
            Cause::Connection(code) => write!(
                f,
                "the connection from rank {detecting_rank} to rank {failed_rank} broke: {code}; see whether rank \
                 {failed_rank} is alive, and the link between them"
            ),
            #[cfg(feature = "aggregators")]
            Cause::Aggregator(number) => write!(
                f,
                "aggregator {number}, counted from 0, failed rank {detecting_rank}: see whether it runs, its log, and \
                 the network"
            ),
            #[cfg(feature = "aggregators")]
            Cause::Contribution => write!(
                f,
                "rank {failed_rank} contributed a number beyond the bound of fixed-point sums (sparse_fixed_point), \
                 infinite or not a number: its error says which; raise the bound on all ranks, or leave it out"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    #[test]
    fn codes_are_what_they_are() {
        let all = [
            (1, WaitedFor::Barrier),
            (2, WaitedFor::Activation),
            (3, WaitedFor::OwnSend),
            (4, WaitedFor::Block),
            (5, WaitedFor::Final),
        ];
        for (raw, waited_for) in all {
            assert_eq!((waited_for as u8, WaitedFor::from_raw(raw)), (raw, Ok(waited_for)));
        }
        assert!((6..=255).chain([0]).all(|raw| WaitedFor::from_raw(raw) == Err(raw)));
    }

    #[test]
    fn a_cause_is_its_number() {
        for cause in [
            Cause::Silent(WaitedFor::Barrier),
            Cause::Silent(WaitedFor::Final),
            Cause::Cancelled,
            Cause::Disagrees,
            Cause::Device(FailureCode::NotStarted),
            Cause::Connection(FailureCode::RetriesExceeded),
            Cause::Aggregator(3),
            Cause::Contribution,
        ] {
            assert_eq!(Cause::from_bits(cause.to_bits()), Ok(cause));
        }
        for bits in [0, 1, 8, 0x107, 0x1_0007, 0x106, 0x601, 0x102, 0x1_0003, 0x104, 4, 0xFFFF_0004, 0x2001_0104] {
            assert_eq!(Cause::from_bits(bits), Err(bits), "{bits:#x}");
        }
    }

    #[test]
    fn texts_name_ranks_and_the_next_step() {
        for (failed_rank, cause, text) in [
            (
                4,
                Cause::Silent(WaitedFor::Final),
                "rank 4 was silent while rank 2 waited for it: its final message; see whether rank 4 is alive and has \
                 called the operation, or allow more time",
            ),
            (
                2,
                Cause::Silent(WaitedFor::OwnSend),
                "rank 2 did not finish its multicast: check its card and its faults, or allow more time",
            ),
            (4, Cause::Cancelled, "rank 4 cancelled the operation: all ranks must make a new communicator to go on"),
            (
                4,
                Cause::Disagrees,
                "rank 4 called another operation than rank 2, or the same one with other arguments: compare their calls",
            ),
            (
                4,
                Cause::Device(FailureCode::ProgressThreadSilent),
                "the worker of rank 4 failed: progress thread did not answer; see its log and its card",
            ),
            (
                4,
                Cause::Connection(FailureCode::RetriesExceeded),
                "the connection from rank 2 to rank 4 broke: retries exceeded; see whether rank 4 is alive, and the \
                 link between them",
            ),
            (
                4,
                Cause::Connection(FailureCode::ConnectionReset),
                "the connection from rank 2 to rank 4 broke: connection reset; see whether rank 4 is alive, and the \
                 link between them",
            ),
            (
                2,
                Cause::Aggregator(1),
                "aggregator 1, counted from 0, failed rank 2: see whether it runs, its log, and the network",
            ),
            (
                4,
                Cause::Contribution,
                "rank 4 contributed a number beyond the bound of fixed-point sums (sparse_fixed_point), infinite or \
                 not a number: its error says which; raise the bound on all ranks, or leave it out",
            ),
        ] {
            assert_eq!(Failure { failed_rank, detecting_rank: 2, cause }.to_string(), text);
        }
    }
}
