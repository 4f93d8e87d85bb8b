//! Refusals of calls and groups, and failures, in messages of service processes.

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::{number, within};
use super::group::GroupError;
use crate::service::call::CallError;
use crate::service::error::{Cause, FailedParty, Failure, Refusal};
use crate::service::message::{LocalCopies, Operation};
use crate::service::staged::message::{StagedCause, StagedFailure, StagedRefusal};
use crate::service::topology::TopologyError;

/// Why a service process does not take a call or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The machine of Alltoallv and Allgatherv refuses it.
    #[error(transparent)]
    Process(Refusal),
    /// The machine of staged collectives refuses it.
    #[error(transparent)]
    Staged(StagedRefusal),
    /// Counts, displacements or datatypes cannot be.
    #[error(transparent)]
    Call(CallError),
    /// Ranks and hosts cannot be.
    #[error(transparent)]
    Topology(TopologyError),
    /// The ranks of the group do not agree.
    #[error(transparent)]
    Group(GroupError),
    /// A call names memory of another program by a bound key.
    #[error("the call names memory of another program, by alias {key:#x}: name memory that this one has shared")]
    NotShared {
        /// The alias.
        key: u32,
    },
}

impl Refused {
    /// Whether the same can be offered again and be taken, after a completion.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Process(Refusal::Collectives { .. }) | Self::Staged(StagedRefusal::Collectives { .. }))
    }
}

/// Names of limits, buffers and lists in refusals. The code of a name is its place in this list, from 1; 0 is no name.
const NAMES: [&str; 13] = [
    "active_reads",
    "groups",
    "collectives",
    "staging_bytes",
    "segments",
    "transfers",
    "send",
    "receive",
    "flag",
    "shared",
    "counts",
    "displacements",
    "announcements",
];

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawRefused {
    code: u8,
    name: u8,
    reserved: U16,
    small: [U32; 3],
    large: [U64; 2],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawFailure {
    failed_rank: u8,
    cause: u8,
    code: U16,
    number: U32,
    detecting_rank: U32,
    reserved: U32,
    found: U64,
    expected: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawStagedFailure {
    failed_rank: u8,
    cause: u8,
    code: U16,
    number: U32,
}

const _: () = assert!(size_of::<RawRefused>() == 32 && size_of::<RawFailure>() == 32);

const LAST_REFUSED: u8 = 34;

impl RawRefused {
    pub(super) fn new(refused: Refused) -> Result<Self, FormatError> {
        let name = |name: &'static str| {
            let place = NAMES.iter().position(|known| *known == name).ok_or(FormatError::Name { name })?;
            Ok(place as u8 + 1)
        };
        let (code, name, small, large) = match refused {
            Refused::Process(refusal) => match refusal {
                Refusal::Limit { name: limit, value } => (1, name(limit)?, [value, 0, 0], [0; 2]),
                Refusal::Groups { groups, limit } => (2, 0, [groups, limit, 0], [0; 2]),
                Refusal::Announcements { announcements, limit } => (3, 0, [0; 3], [announcements, limit]),
                Refusal::GroupTwice { group } => (4, 0, [group, 0, 0], [0; 2]),
                Refusal::NoGroup { group } => (5, 0, [group, 0, 0], [0; 2]),
                Refusal::Process { process, processes } => (6, 0, [process, processes, 0], [0; 2]),
                Refusal::NotServed { rank, process } => (7, 0, [rank, process, 0], [0; 2]),
                Refusal::Collectives { group, collective, oldest, limit } => {
                    (8, 0, [group, collective, oldest], [limit.into(), 0])
                }
                Refusal::CalledTwice { rank, group, collective } => (9, 0, [rank, group, collective], [0; 2]),
                Refusal::Blocks { found, ranks } => (10, 0, [ranks, 0, 0], [found as u64, 0]),
            },
            Refused::Staged(refusal) => match refusal {
                StagedRefusal::Limit { name: limit, value, least } => (11, name(limit)?, [0; 3], [value, least]),
                StagedRefusal::Process { process, processes } => (12, 0, [process, processes, 0], [0; 2]),
                StagedRefusal::Collectives { collective, oldest, limit } => {
                    (13, 0, [collective, oldest, limit], [0; 2])
                }
                StagedRefusal::Rank { rank, ranks } => (14, 0, [rank, ranks, 0], [0; 2]),
                StagedRefusal::Buffer { name: buffer, rank, found, expected } => {
                    (15, name(buffer)?, [rank, 0, 0], [found, expected])
                }
                // Later than the codes that follow: these stay what they are.
                StagedRefusal::Exhausted { asked, held, limit } => {
                    let [high, low] = [(asked >> 32) as u32, asked as u32];
                    (31, 0, [low, high, 0], [held, limit])
                }
                StagedRefusal::NoStaging { group } => (32, 0, [group, 0, 0], [0; 2]),
            },
            Refused::Call(error) => match error {
                CallError::Length { name: list, found, ranks } => (16, name(list)?, [ranks, 0, 0], [found as u64, 0]),
                CallError::Extent { size_bytes, extent_bytes } => (17, 0, [0; 3], [size_bytes, extent_bytes]),
                CallError::TooLarge { rank } => (18, 0, [rank, 0, 0], [0; 2]),
                CallError::InPlace => (19, 0, [0; 3], [0; 2]),
                CallError::Rank { rank, ranks } => (20, 0, [rank, ranks, 0], [0; 2]),
                CallError::Overlap { first, second } => (LAST_REFUSED, 0, [first, second, 0], [0; 2]),
            },
            Refused::Topology(error) => match error {
                TopologyError::Ranks { ranks } => (21, 0, [0; 3], [ranks as u64, 0]),
                TopologyError::Processes { processes } => (22, 0, [processes, 0, 0], [0; 2]),
                TopologyError::Host { rank, host, ranks } => (23, 0, [rank, host, ranks], [0; 2]),
                TopologyError::NoRank { host, hosts } => (24, 0, [host, hosts, 0], [0; 2]),
            },
            Refused::Group(error) => match error {
                GroupError::Differs { rank } => (25, 0, [rank, 0, 0], [0; 2]),
                GroupError::Endpoint { rank, process } => (26, 0, [rank, process, 0], [0; 2]),
                GroupError::SameEndpoint { process, other } => (27, 0, [process, other, 0], [0; 2]),
                GroupError::Elsewhere { rank, process } => (28, 0, [rank, process, 0], [0; 2]),
                GroupError::Staging { process } => (29, 0, [process, 0, 0], [0; 2]),
                GroupError::Unreachable { process } => (30, 0, [process, 0, 0], [0; 2]),
            },
            Refused::NotShared { key } => (33, 0, [key, 0, 0], [0; 2]),
        };
        Ok(Self { code, name, reserved: U16::ZERO, small: small.map(U32::new), large: large.map(U64::new) })
    }

    pub(super) fn refused(self) -> Result<Refused, FormatError> {
        let [a, b, c] = self.small.map(U32::get);
        let [found, expected] = self.large.map(U64::get);
        let name = || {
            let place = usize::from(self.name).checked_sub(1);
            let last = NAMES.len() as u8;
            let unknown = FormatError::Code { field: "name in a refusal", found: self.name, last };
            place.and_then(|place| NAMES.get(place)).copied().ok_or(unknown)
        };
        let size = || {
            within("count", found, 0, usize::MAX as u64)?;
            Ok(found as usize)
        };
        let process = Refused::Process;
        Ok(match self.code {
            1 => process(Refusal::Limit { name: name()?, value: a }),
            2 => process(Refusal::Groups { groups: a, limit: b }),
            3 => process(Refusal::Announcements { announcements: found, limit: expected }),
            4 => process(Refusal::GroupTwice { group: a }),
            5 => process(Refusal::NoGroup { group: a }),
            6 => process(Refusal::Process { process: a, processes: b }),
            7 => process(Refusal::NotServed { rank: a, process: b }),
            8 => {
                within("limit", found, 0, u32::MAX.into())?;
                process(Refusal::Collectives { group: a, collective: b, oldest: c, limit: found as u32 })
            }
            9 => process(Refusal::CalledTwice { rank: a, group: b, collective: c }),
            10 => process(Refusal::Blocks { found: size()?, ranks: a }),
            11 => Refused::Staged(StagedRefusal::Limit { name: name()?, value: found, least: expected }),
            12 => Refused::Staged(StagedRefusal::Process { process: a, processes: b }),
            13 => Refused::Staged(StagedRefusal::Collectives { collective: a, oldest: b, limit: c }),
            14 => Refused::Staged(StagedRefusal::Rank { rank: a, ranks: b }),
            15 => Refused::Staged(StagedRefusal::Buffer { name: name()?, rank: a, found, expected }),
            16 => Refused::Call(CallError::Length { name: name()?, found: size()?, ranks: a }),
            17 => Refused::Call(CallError::Extent { size_bytes: found, extent_bytes: expected }),
            18 => Refused::Call(CallError::TooLarge { rank: a }),
            19 => Refused::Call(CallError::InPlace),
            20 => Refused::Call(CallError::Rank { rank: a, ranks: b }),
            21 => Refused::Topology(TopologyError::Ranks { ranks: size()? }),
            22 => Refused::Topology(TopologyError::Processes { processes: a }),
            23 => Refused::Topology(TopologyError::Host { rank: a, host: b, ranks: c }),
            24 => Refused::Topology(TopologyError::NoRank { host: a, hosts: b }),
            25 => Refused::Group(GroupError::Differs { rank: a }),
            26 => Refused::Group(GroupError::Endpoint { rank: a, process: b }),
            27 => Refused::Group(GroupError::SameEndpoint { process: a, other: b }),
            28 => Refused::Group(GroupError::Elsewhere { rank: a, process: b }),
            29 => Refused::Group(GroupError::Staging { process: a }),
            30 => Refused::Group(GroupError::Unreachable { process: a }),
            31 => {
                let asked = u64::from(b) << 32 | u64::from(a);
                Refused::Staged(StagedRefusal::Exhausted { asked, held: found, limit: expected })
            }
            32 => Refused::Staged(StagedRefusal::NoStaging { group: a }),
            33 => Refused::NotShared { key: a },
            LAST_REFUSED => Refused::Call(CallError::Overlap { first: a, second: b }),
            found => return Err(FormatError::Code { field: "refusal", found, last: LAST_REFUSED }),
        })
    }
}

const RANK: u8 = 1;
const PROCESS: u8 = 2;

fn failed_rank_codes(failed_rank: FailedParty) -> Result<(u8, U32), FormatError> {
    Ok(match failed_rank {
        FailedParty::Rank(rank) => (RANK, number("rank", rank)?),
        FailedParty::Process(process) => (PROCESS, number("process", process)?),
    })
}

const fn failed_rank(code: u8, number: U32) -> Result<FailedParty, FormatError> {
    match code {
        RANK => Ok(FailedParty::Rank(number.get())),
        PROCESS => Ok(FailedParty::Process(number.get())),
        found => Err(FormatError::Code { field: "failed_rank", found, last: PROCESS }),
    }
}

const ALLTOALLV: u64 = 1;
const ALLGATHERV: u64 = 2;
const ALLGATHERV_BY_CARD: u64 = 3;

const fn operation_code(operation: Operation) -> u64 {
    match operation {
        Operation::Alltoallv => ALLTOALLV,
        Operation::Allgatherv(LocalCopies::Host) => ALLGATHERV,
        Operation::Allgatherv(LocalCopies::Card) => ALLGATHERV_BY_CARD,
    }
}

fn operation(code: U64) -> Result<Operation, FormatError> {
    within("operation", code.get(), ALLTOALLV, ALLGATHERV_BY_CARD)?;
    Ok(match code.get() {
        ALLTOALLV => Operation::Alltoallv,
        ALLGATHERV => Operation::Allgatherv(LocalCopies::Host),
        _ => Operation::Allgatherv(LocalCopies::Card),
    })
}

const DIED: u8 = 1;
const READ: u8 = 2;
const BYTES: u8 = 3;
const OPERATION: u8 = 4;

impl RawFailure {
    pub(super) fn new(failure: Failure) -> Result<Self, FormatError> {
        let (failed_rank, number_) = failed_rank_codes(failure.failed_rank)?;
        let (cause, code, detecting_rank, found, expected) = match failure.cause {
            Cause::Died => (DIED, 0, U32::ZERO, 0, 0),
            Cause::Read(code) => (READ, code, U32::ZERO, 0, 0),
            Cause::Bytes { detecting_rank, found, expected } => {
                (BYTES, 0, number("detecting_rank", detecting_rank)?, found, expected)
            }
            Cause::Operation { found, expected } => {
                (OPERATION, 0, U32::ZERO, operation_code(found), operation_code(expected))
            }
        };
        Ok(Self {
            failed_rank,
            cause,
            code: code.into(),
            number: number_,
            detecting_rank,
            reserved: U32::ZERO,
            found: found.into(),
            expected: expected.into(),
        })
    }

    pub(super) fn failure(self) -> Result<Failure, FormatError> {
        let cause = match self.cause {
            DIED => Cause::Died,
            READ => Cause::Read(self.code.get()),
            BYTES => {
                let (detecting_rank, found, expected) =
                    (self.detecting_rank.get(), self.found.get(), self.expected.get());
                Cause::Bytes { detecting_rank, found, expected }
            }
            OPERATION => Cause::Operation { found: operation(self.found)?, expected: operation(self.expected)? },
            found => return Err(FormatError::Code { field: "cause", found, last: OPERATION }),
        };
        Ok(Failure { failed_rank: failed_rank(self.failed_rank, self.number)?, cause })
    }
}

const TRANSFER: u8 = 2;
const DISAGREES: u8 = 3;

impl RawStagedFailure {
    pub(super) fn new(failure: StagedFailure) -> Result<Self, FormatError> {
        let (failed_rank, number) = failed_rank_codes(failure.failed_rank)?;
        let (cause, code) = match failure.cause {
            StagedCause::Died => (DIED, 0),
            StagedCause::Transfer(code) => (TRANSFER, code),
            StagedCause::Disagrees => (DISAGREES, 0),
        };
        Ok(Self { failed_rank, cause, code: code.into(), number })
    }

    pub(super) const fn failure(self) -> Result<StagedFailure, FormatError> {
        let cause = match self.cause {
            DIED => StagedCause::Died,
            TRANSFER => StagedCause::Transfer(self.code.get()),
            DISAGREES => StagedCause::Disagrees,
            found => return Err(FormatError::Code { field: "cause", found, last: DISAGREES }),
        };
        match failed_rank(self.failed_rank, self.number) {
            Ok(failed_rank) => Ok(StagedFailure { failed_rank, cause }),
            Err(error) => Err(error),
        }
    }
}
