//! Big-endian integers with the alignment of their native counterparts.
//!
//! `zerocopy::byteorder` types have alignment 1: on RISC-V the compiler then loads byte by byte. The queues are
//! aligned, so these keep the natural alignment and cost one load plus `rev8`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! big_endian {
    ($(#[$doc:meta])* $name:ident, $native:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(transparent)]
        pub struct $name($native);

        impl $name {
            /// The big-endian form of `value`.
            #[inline(always)]
            pub const fn new(value: $native) -> Self {
                Self(value.to_be())
            }

            /// The value in native byte order.
            #[inline(always)]
            pub const fn get(self) -> $native {
                <$native>::from_be(self.0)
            }

            /// The bytes as they lie in memory, read as a native integer (for comparisons that need no swap).
            #[inline(always)]
            pub const fn raw(self) -> $native {
                self.0
            }

            /// From a native integer that already holds the bytes in memory order.
            #[inline(always)]
            pub const fn from_raw(raw: $native) -> Self {
                Self(raw)
            }
        }

        impl From<$native> for $name {
            fn from(value: $native) -> Self {
                Self::new(value)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }
    };
}

big_endian!(
    /// 16-bit big-endian integer, 2-byte aligned.
    Be16,
    u16
);
big_endian!(
    /// 32-bit big-endian integer, 4-byte aligned.
    Be32,
    u32
);
big_endian!(
    /// 64-bit big-endian integer, 8-byte aligned.
    Be64,
    u64
);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn most_significant_byte_lies_first() {
        assert_eq!(Be16::new(0x0102).as_bytes(), [1, 2]);
        assert_eq!(Be32::new(0x0102_0304).as_bytes(), [1, 2, 3, 4]);
        assert_eq!(Be64::new(0x0102_0304_0506_0708).as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Be32::new(7).get(), 7);
        assert_eq!(Be32::from_raw(Be32::new(9).raw()), Be32::new(9));
    }
}
