//! Addresses in DPA memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Virtual address in the memory of the DPA process that runs the firmware; 0 means none.
///
/// A number that leads nowhere by itself. The host makes of it what firmware may follow: see [`crate::memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// The address with this number.
    ///
    /// Where firmware runs in the same program as its host, in tests, the number of memory that it writes comes from a
    /// mutable place (`&raw mut`, `as_mut_ptr`) or from atomics: what only a shared reference leads to must not be
    /// written, whoever does it.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The address as a number; 0 means none.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}
