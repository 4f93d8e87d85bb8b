//! Rights of memory keys, and why an access is refused.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::memory::Space;

/// How many keys an access may pass through on its way to memory.
pub(crate) const MAX_DEPTH: u32 = 4;

bitflags::bitflags! {
    /// What a memory key, or a queue pair as responder, allows. Values of `enum ibv_access_flags`. Local reads are
    /// always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The card may scatter receives and read responses into the memory.
        const LOCAL_WRITE = 1;
        /// A peer may write.
        const REMOTE_WRITE = 2;
        /// A peer may read.
        const REMOTE_READ = 4;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const WINDOW_BIND = 16;
    }
}

impl Serialize for Access {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Access {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u32::deserialize(deserializer)?;
        Self::from_bits(bits).ok_or_else(|| de::Error::custom(format_args!("rights {bits:#x}, but at most 0x1f")))
    }
}

/// What a memory key gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkeyAttr {
    /// Protection domain that may use the key.
    pub pd: u32,
    /// The memory.
    pub space: Space,
    /// Address of the first byte under the key.
    pub start: u64,
    /// Bytes; `start + len` must not exceed 2^64.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// How far the memory is behind the addresses of the key, modulo 2^64.
    pub offset: u64,
}

impl MkeyAttr {
    /// Where its memory lies: the first byte, and how many.
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        (self.start.wrapping_add(self.offset), self.len)
    }
}

/// Why a memory key does not allow an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// No such key, or it has been destroyed.
    #[error("memory key {key:#x} does not exist: it was never created, or destroyed since")]
    Unknown {
        /// The key.
        key: u32,
    },
    /// The key belongs to another protection domain.
    #[error("memory key {key:#x} belongs to protection domain {owner}, not {pd}: create key and queue in the same one")]
    ProtectionDomain {
        /// The key.
        key: u32,
        /// Its protection domain.
        owner: u32,
        /// That of the queue pair or window.
        pd: u32,
    },
    /// The range is not inside the key's.
    #[error("{len} bytes at {addr:#x} are outside memory key {key:#x}, which covers {key_len} bytes at {key_start:#x}")]
    Range {
        /// The key.
        key: u32,
        /// First byte of the access.
        addr: u64,
        /// Bytes of the access.
        len: u64,
        /// First byte of the key.
        key_start: u64,
        /// Bytes of the key.
        key_len: u64,
    },
    /// The key lacks a right.
    #[error("memory key {key:#x} does not allow {needed:?}, only {granted:?}: create it with that right")]
    Rights {
        /// The key.
        key: u32,
        /// What the access needs.
        needed: Access,
        /// What the key grants.
        granted: Access,
    },
    /// The key is a UMR key that no UMR has bound, or one that was invalidated.
    #[error("memory key {key:#x} is free: bind it with a UMR work request first")]
    Free {
        /// The key.
        key: u32,
    },
    /// The key is an alias, and its target has been destroyed or is no longer shared with the token of the alias.
    #[error(
        "memory key {key:#x} is an alias of {target:#x}, which is not shared any more: share it and make a new alias"
    )]
    Revoked {
        /// The alias.
        key: u32,
        /// What it stood for.
        target: u32,
    },
    /// Keys refer to keys too often.
    #[error("memory key {key:#x} is behind more than {MAX_DEPTH} other keys: bind keys to ordinary ones")]
    Depth {
        /// The key.
        key: u32,
    },
    /// The bytes lie in more than one place, and the caller can only use one.
    #[error(
        "{len} bytes at {addr:#x} of memory key {key:#x} are not one range of memory: use a key made by registration"
    )]
    Scattered {
        /// The key.
        key: u32,
        /// First byte of the access.
        addr: u64,
        /// Bytes of the access.
        len: u64,
    },
}

impl KeyFault {
    /// Vendor syndrome of an error CQE caused by this.
    pub(crate) fn vendor_syndrome(self) -> u8 {
        use crate::cqe::vendor;
        match self {
            Self::Unknown { .. } => vendor::KEY_UNKNOWN,
            Self::ProtectionDomain { .. } => vendor::KEY_PD,
            Self::Range { .. } => vendor::KEY_RANGE,
            Self::Rights { .. } => vendor::KEY_RIGHTS,
            Self::Free { .. } => vendor::KEY_FREE,
            Self::Revoked { .. } => vendor::KEY_REVOKED,
            Self::Depth { .. } | Self::Scattered { .. } => vendor::KEY_DEPTH,
        }
    }
}
