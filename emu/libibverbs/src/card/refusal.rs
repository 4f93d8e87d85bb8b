//! Refusals of device commands, and the kinds of objects that they make.

use emu_machine::MachineError;
use emu_machine::nic::{Gid, NicError, Transport};
use serde::{Deserialize, Serialize};

use crate::card::caller::Class;
use crate::prm::{self, Input, command};

/// Status byte of an answer, as the Linux driver names them.
pub(crate) mod answer {
    pub(crate) const BAD_OP: u8 = 0x2;
    pub(crate) const BAD_PARAM: u8 = 0x3;
    pub(crate) const BAD_RES: u8 = 0x5;
    pub(crate) const RES_BUSY: u8 = 0x6;
    pub(crate) const BAD_RES_STATE: u8 = 0x9;
    pub(crate) const NO_RES: u8 = 0xF;
    pub(crate) const BAD_INPUT_LEN: u8 = 0x50;
    pub(crate) const BAD_OUTPUT_LEN: u8 = 0x51;
}

/// Syndromes of this emulator: what in the command was refused.
pub(crate) mod syndrome {
    pub(crate) const UNSUPPORTED_COMMAND: u32 = 0xF1EC_0001;
    pub(crate) const LENGTH: u32 = 0xF1EC_0002;
    pub(crate) const OBJECT: u32 = 0xF1EC_0003;
    pub(crate) const UMEM: u32 = 0xF1EC_0010;
    pub(crate) const UMEM_RANGE: u32 = 0xF1EC_0011;
    pub(crate) const UNSUPPORTED_FIELD: u32 = 0xF1EC_0012;
    pub(crate) const THREAD: u32 = 0xF1EC_0013;
    pub(crate) const SERVICE: u32 = 0xF1EC_0014;
    pub(crate) const CARD: u32 = 0xF1EC_0020;
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) status: u8,
    pub(crate) syndrome: u32,
    pub(crate) reason: String,
}

pub(crate) fn refuse<T>(status: u8, syndrome: u32, reason: impl Into<String>) -> std::result::Result<T, Refusal> {
    Err(Refusal { status, syndrome, reason: reason.into() })
}

impl From<NicError> for Refusal {
    fn from(error: NicError) -> Self {
        let status = match error {
            NicError::UnknownPd { .. }
            | NicError::UnknownCq { .. }
            | NicError::UnknownQp { .. }
            | NicError::UnknownMkey { .. } => answer::BAD_RES,
            NicError::PdInUse { .. } | NicError::CqInUse { .. } | NicError::QpAttached { .. } => answer::RES_BUSY,
            NicError::TooManyKeys { .. } | NicError::TooManyQueues { .. } => answer::NO_RES,
            NicError::Transition { .. } | NicError::NotAttached { .. } => answer::BAD_RES_STATE,
            _ => answer::BAD_PARAM,
        };
        Refusal { status, syndrome: syndrome::CARD, reason: error.to_string() }
    }
}

impl From<MachineError> for Refusal {
    fn from(error: MachineError) -> Self {
        Refusal { status: answer::BAD_RES, syndrome: syndrome::CARD, reason: error.to_string() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Qp(Transport),
    Cq,
    Mkey,
    /// A key that stands for the one of this index on another virtual HCA.
    Alias {
        vhca: u16,
        index: u32,
    },
    Pd,
    /// What a group key stands for at a queue pair, of which it has the number.
    GroupKey(u32),
    /// A membership; its number is that of the queue pair, as the real driver has it.
    Group(Gid),
}

impl Kind {
    /// The class of an object that the card has, and not what a queue pair is a member of.
    pub(crate) fn class(self) -> Option<Class> {
        match self {
            Self::Qp(_) => Some(Class::QueuePair),
            Self::Cq => Some(Class::CompletionQueue),
            Self::Mkey | Self::Alias { .. } => Some(Class::Key),
            Self::Pd => Some(Class::Domain),
            Self::GroupKey(_) | Self::Group(_) => None,
        }
    }
}

pub(crate) fn full_length(input: Input<'_>) -> std::result::Result<(), Refusal> {
    if input.0.len() < prm::CONTEXT_COMMAND_BYTES {
        let text = format!("{} bytes; the command has {}", input.0.len(), prm::CONTEXT_COMMAND_BYTES);
        return refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, text);
    }
    Ok(())
}

pub(crate) fn unsupported<T>(input: Input<'_>) -> std::result::Result<T, Refusal> {
    let opcode = input.get(prm::OPCODE);
    let text = match opcode {
        command::DETACH_FROM_MCG => "a membership ends when the object of its ATTACH_TO_MCG is destroyed".to_owned(),
        _ => format!("command {opcode:#x} is not emulated here"),
    };
    refuse(answer::BAD_OP, syndrome::UNSUPPORTED_COMMAND, text)
}
