//! Device addresses as a capability.

use zerocopy::{Immutable, IntoBytes, KnownLayout};

/// Virtual address in the memory of the DPA process that runs the firmware; 0 means none.
///
/// Firmware may dereference it. That is why it can only be made with the feature `host`: on the device, safe code obtains one
/// solely by reading a context, which the host filled with addresses of memory it allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes, Default))]
#[repr(transparent)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// The address of memory that stays allocated, and is left alone by the host, as long as the firmware may use it.
    ///
    /// Firmware may write there. Where it runs in the same program, in tests, the number comes from a mutable place (`&raw mut`,
    /// `as_mut_ptr`) or from atomics: what only a shared reference leads to must not be written, whoever does it.
    #[cfg(feature = "host")]
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

    /// Whether the address is a multiple of `bytes`.
    #[inline]
    #[must_use]
    pub const fn is_aligned_to(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }

    /// Whether there is no address.
    #[inline(always)]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}
