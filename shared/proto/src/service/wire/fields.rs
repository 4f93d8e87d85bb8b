//! Header, memory regions and numbers in messages of service processes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use crate::ranks::MAX_RANKS;
use crate::service::message::{ContextId, Region};

/// Version of this format. Any change of it is another version, and the two sides of a connection refuse each other's
/// messages. The header keeps its layout in all versions, so that the refusal names both.
pub const VERSION: u8 = 3;
/// Bytes of the longest message: the largest packet of InfiniBand and RoCE, and a page. So a message is one packet, and
/// a receiver can post buffers of one size for all kinds.
pub const MAX_BYTES: usize = 4096;
/// Bytes of the header that all messages have.
pub const HEADER_BYTES: usize = size_of::<Header>();

pub(super) const MAGIC: [u8; 4] = *b"FXSP";
/// Bytes of the longest message without the entries of lists.
const FIXED_BYTES: usize = 128;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 4],
    version: u8,
    pub(super) kind: u8,
    length: U16,
    group: U32,
    collective: U32,
}

const _: () = assert!(HEADER_BYTES == 16 && MAX_BYTES <= u16::MAX as usize);

impl Header {
    pub(super) const fn context(&self) -> ContextId {
        ContextId { group: self.group.get(), collective: self.collective.get() }
    }
}

/// Header and rest of a message that is there whole.
pub(super) fn split(bytes: &[u8]) -> Result<(Header, &[u8]), FormatError> {
    let too_short = FormatError::Length { found: bytes.len(), expected: HEADER_BYTES };
    let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| too_short)?;
    if header.magic != MAGIC {
        return Err(FormatError::Magic { found: header.magic });
    }
    if header.version != VERSION {
        return Err(FormatError::Version { found: header.version });
    }
    let found = header.length.get();
    if !(HEADER_BYTES..=MAX_BYTES).contains(&usize::from(found)) {
        return Err(FormatError::Announced { found });
    }
    Ok((header, rest))
}

/// Bytes of the message that begins here, [`HEADER_BYTES`] to [`MAX_BYTES`], where a connection is a stream. At least
/// [`HEADER_BYTES`] must be there.
///
/// # Errors
/// They are too few, of another version, of a length that no message has, or nothing of this library.
pub fn length_of(bytes: &[u8]) -> Result<usize, FormatError> {
    Ok(usize::from(split(bytes)?.0.length.get()))
}

/// Header and body of a message without the entries of its list.
pub(super) struct Fixed {
    bytes: [u8; FIXED_BYTES],
    length: usize,
}

impl Fixed {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; FIXED_BYTES], length: HEADER_BYTES }
    }

    /// Appends a structure.
    pub(super) fn put<T: IntoBytes + Immutable>(&mut self, from: &T) {
        let fits = from.write_to_prefix(self.bytes.get_mut(self.length..).unwrap_or_default());
        debug_assert!(fits.is_ok(), "{} bytes behind {}", size_of::<T>(), self.length);
        self.length += size_of::<T>();
    }

    /// Writes the header of a message that goes on with `entries` bytes of a list.
    pub(super) fn head(&mut self, kind: u8, context: ContextId, entries: usize) -> Result<(), FormatError> {
        let length = self.length + entries;
        let too_long = FormatError::Length { found: length, expected: MAX_BYTES };
        let length = u16::try_from(length).ok().filter(|length| usize::from(*length) <= MAX_BYTES).ok_or(too_long)?;
        let ContextId { group, collective } = context;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            kind,
            length: length.into(),
            group: group.into(),
            collective: collective.into(),
        };
        let fits = header.write_to_prefix(&mut self.bytes);
        debug_assert!(fits.is_ok());
        Ok(())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

/// Reads a structure that is the whole body of a message.
pub(super) fn get<T: FromBytes>(rest: &[u8]) -> Result<T, FormatError> {
    let (found, expected) = (HEADER_BYTES + rest.len(), HEADER_BYTES + size_of::<T>());
    T::read_from_bytes(rest).map_err(|_| FormatError::Length { found, expected })
}

/// Reads a structure and the entries of a list behind it.
pub(super) fn get_list<T: FromBytes, E: FromBytes + Immutable + KnownLayout + Unaligned>(
    rest: &[u8],
) -> Result<(T, &[E]), FormatError> {
    let (found, fixed) = (HEADER_BYTES + rest.len(), HEADER_BYTES + size_of::<T>());
    let (head, entries) = T::read_from_prefix(rest).map_err(|_| FormatError::Length { found, expected: fixed })?;
    // The next larger length that a list has.
    let expected = fixed + entries.len().next_multiple_of(size_of::<E>());
    let entries = <[E]>::ref_from_bytes(entries).map_err(|_| FormatError::Length { found, expected })?;
    Ok((head, entries))
}

/// Memory of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawRegion {
    address: U64,
    bytes: U64,
    key: U32,
}

impl RawRegion {
    pub(super) const NONE: Self = Self { address: U64::ZERO, bytes: U64::ZERO, key: U32::ZERO };

    pub(super) fn new(region: Region) -> Result<Self, FormatError> {
        let Region { address, key, bytes } = region;
        address.checked_add(bytes).ok_or(FormatError::Region { address, bytes })?;
        Ok(Self { address: address.into(), bytes: bytes.into(), key: key.into() })
    }

    pub(super) const fn region(self) -> Region {
        Region { address: self.address.get(), key: self.key.get(), bytes: self.bytes.get() }
    }
}

/// A number that is `least` to `most`.
pub(super) fn within(field: &'static str, found: u64, least: u64, most: u64) -> Result<(), FormatError> {
    if (least..=most).contains(&found) { Ok(()) } else { Err(FormatError::Number { field, found, least, most }) }
}

/// A rank, a host or a service process. No group has more of any than [`MAX_RANKS`]; the machines know how many their
/// group has.
pub(super) fn number(field: &'static str, found: u32) -> Result<U32, FormatError> {
    within(field, found.into(), 0, u64::from(MAX_RANKS) - 1)?;
    Ok(found.into())
}
