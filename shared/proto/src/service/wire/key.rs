//! Memory keys that a host lets its service process use (KEY-EXPORT, KEY-REVOKE).

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::{Fixed, RawRegion, within};
use crate::service::message::Region;

/// What may be done with memory by a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// It may be written by the card that has the key.
    pub local_write: bool,
    /// It may be written by RDMA Writes.
    pub remote_write: bool,
    /// It may be read by RDMA Reads.
    pub remote_read: bool,
    /// It may be changed by atomic operations.
    pub remote_atomic: bool,
}

/// Bits of [`Rights`], as verbs numbers them.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;
const ALL_RIGHTS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

impl Rights {
    fn bits(self) -> u32 {
        let Self { local_write, remote_write, remote_read, remote_atomic } = self;
        [
            (local_write, LOCAL_WRITE),
            (remote_write, REMOTE_WRITE),
            (remote_read, REMOTE_READ),
            (remote_atomic, REMOTE_ATOMIC),
        ]
        .into_iter()
        .map(|(is_set, bit)| u32::from(is_set) * bit)
        .sum()
    }

    const fn of_bits(bits: u32) -> Self {
        Self {
            local_write: bits & LOCAL_WRITE != 0,
            remote_write: bits & REMOTE_WRITE != 0,
            remote_read: bits & REMOTE_READ != 0,
            remote_atomic: bits & REMOTE_ATOMIC != 0,
        }
    }
}

/// What the card asks for whoever makes an alias of a key; a secret. Its `Debug` shows none of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessKey(pub [u8; 32]);

impl core::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("AccessKey(..)")
    }
}

/// What is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyForm {
    /// A key of memory: make an alias of it.
    #[default]
    Memory,
    /// A key that UMR will bind to memory, and that reaches nothing yet: make an alias of it. Its generation is 0, its
    /// region empty.
    Pool,
    /// A key of which there is an alias, now bound to memory: the alias stands for the region, with addresses from 0
    /// on. The generation counts the bindings of the key, from 1. There is an answer only where the binding is refused.
    Bound,
}

/// A key of a host: of which the service process is to make an alias on its own virtual card, or whose alias now stands
/// for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyExport {
    /// What is exported.
    pub form: KeyForm,
    /// The key and the memory that it reaches, by its address at the host.
    pub region: Region,
    /// What may be done with it.
    pub rights: Rights,
    /// Number of the virtual card (virtual HCA) that the key is of.
    pub virtual_hca: u16,
    /// Counted up each time that a key of this number is exported, so that what is said of an older one has no effect.
    pub generation: u32,
    /// What the card asks for; zeros of a key that is bound.
    pub access_key: AccessKey,
}

/// A key that has been exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyName {
    /// The key.
    pub key: u32,
    /// [`KeyExport::generation`].
    pub generation: u32,
}

/// Why there is no alias of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum KeyRefusal {
    /// A key of another card.
    #[error(
        "virtual HCA {virtual_hca} is not of the service process's card: take a service process of the card that has \
         the memory"
    )]
    OtherCard {
        /// Whose key it is.
        virtual_hca: u16,
    },
    /// There is no room.
    #[error("the service process has {limit} keys already: revoke one, or raise its limit")]
    Keys {
        /// Its limit.
        limit: u32,
    },
    /// A generation that is not larger than the one that is known.
    #[error("a key of generation {known} has been exported already: count generations up")]
    Generation {
        /// The last one.
        known: u32,
    },
    /// A key is bound that is not of the program's pool, or has no alias.
    #[error("key {key:#x} has no alias here: export it as a key of a pool before it is bound")]
    NotInPool {
        /// The key.
        key: u32,
    },
    /// A key is bound that the service process has not let go of.
    #[error("the key has binding {generation}, which has not been let go of: take that back first")]
    Bound {
        /// Number of that binding.
        generation: u32,
    },
    /// The card has refused. The number is the syndrome of its command interface.
    #[error("the card has refused an alias (syndrome {syndrome:#x}): allow access to the key before it is exported")]
    Card {
        /// Syndrome of the command.
        syndrome: u32,
    },
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawKeyExport {
    region: RawRegion,
    generation: U32,
    rights: U32,
    virtual_hca: U16,
    form: u8,
    reserved: u8,
    access_key: [u8; 32],
}

/// A key that is taken back.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawKeyRevoke {
    key: U32,
    generation: U32,
    is_idle: u8,
    reserved: [u8; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawKeyAnswer {
    key: U32,
    generation: U32,
    /// The alias, or what the refusal states.
    value: U32,
    /// 0 with an alias.
    code: u8,
    reserved: [u8; 3],
}

const _: () = assert!(size_of::<RawKeyExport>() == 64 && size_of::<U64>() * 2 == size_of::<RawKeyAnswer>());

const LAST_REFUSAL: u8 = 6;
/// Bound to memory.
const LAST_FORM: u8 = 2;

impl KeyExport {
    pub(super) fn put(&self, to: &mut Fixed) -> Result<(), FormatError> {
        let Self { form, region, rights, virtual_hca, generation, access_key } = *self;
        to.put(&RawKeyExport {
            region: RawRegion::new(region)?,
            generation: generation.into(),
            rights: rights.bits().into(),
            virtual_hca: virtual_hca.into(),
            form: form as u8,
            reserved: 0,
            access_key: access_key.0,
        });
        Ok(())
    }

    pub(super) fn get(raw: RawKeyExport) -> Result<Self, FormatError> {
        let RawKeyExport { region, generation, rights, virtual_hca, form, access_key, .. } = raw;
        within("rights", rights.get().into(), 0, ALL_RIGHTS.into())?;
        let form = match form {
            0 => KeyForm::Memory,
            1 => KeyForm::Pool,
            LAST_FORM => KeyForm::Bound,
            found => return Err(FormatError::Code { field: "form of a key", found, last: LAST_FORM }),
        };
        Ok(Self {
            form,
            region: region.region(),
            rights: Rights::of_bits(rights.get()),
            virtual_hca: virtual_hca.get(),
            generation: generation.get(),
            access_key: AccessKey(access_key),
        })
    }
}

impl KeyName {
    pub(super) fn put_revoke(self, is_idle: bool, to: &mut Fixed) {
        let [key, generation] = [self.key, self.generation].map(U32::new);
        to.put(&RawKeyRevoke { key, generation, is_idle: is_idle.into(), reserved: [0; 3] });
    }

    pub(super) fn get_revoke(raw: RawKeyRevoke) -> Result<(Self, bool), FormatError> {
        let RawKeyRevoke { key, generation, is_idle, .. } = raw;
        within("whether a key is idle", is_idle.into(), 0, 1)?;
        Ok((Self { key: key.get(), generation: generation.get() }, is_idle == 1))
    }

    pub(super) fn put(self, answer: Result<u32, KeyRefusal>, to: &mut Fixed) {
        let (code, value) = match answer {
            Ok(alias) => (0, alias),
            Err(KeyRefusal::OtherCard { virtual_hca }) => (1, virtual_hca.into()),
            Err(KeyRefusal::Keys { limit }) => (2, limit),
            Err(KeyRefusal::Generation { known }) => (3, known),
            Err(KeyRefusal::Card { syndrome }) => (4, syndrome),
            Err(KeyRefusal::NotInPool { key }) => (5, key),
            Err(KeyRefusal::Bound { generation }) => (LAST_REFUSAL, generation),
        };
        let Self { key, generation } = self;
        let [key, generation, value] = [key, generation, value].map(U32::new);
        to.put(&RawKeyAnswer { key, generation, value, code, reserved: [0; 3] });
    }

    pub(super) fn get(raw: RawKeyAnswer) -> Result<(Self, Result<u32, KeyRefusal>), FormatError> {
        let RawKeyAnswer { key, generation, value, code, .. } = raw;
        let value = value.get();
        let answer = match code {
            0 => Ok(value),
            1 => {
                within("virtual HCA", value.into(), 0, u16::MAX.into())?;
                Err(KeyRefusal::OtherCard { virtual_hca: value as u16 })
            }
            2 => Err(KeyRefusal::Keys { limit: value }),
            3 => Err(KeyRefusal::Generation { known: value }),
            4 => Err(KeyRefusal::Card { syndrome: value }),
            5 => Err(KeyRefusal::NotInPool { key: value }),
            LAST_REFUSAL => Err(KeyRefusal::Bound { generation: value }),
            found => return Err(FormatError::Code { field: "key refusal", found, last: LAST_REFUSAL }),
        };
        Ok((Self { key: key.get(), generation: generation.get() }, answer))
    }
}
