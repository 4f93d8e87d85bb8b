//! Layout hashes, computed by the compiler.

/// A type with a defined layout in memory shared by host and device.
pub trait Layout {
    /// Hash over name, size and fields (name, type, offset, hash of the type).
    const HASH: u64;
}

/// 64-bit FNV-1a (Fowler, Noll, Vo), usable in constants.
#[derive(Clone, Copy, Debug)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self::new()
    }
}

impl Fnv {
    /// The empty hash.
    #[must_use]
    pub const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    /// Adds bytes, then a separator so that ("ab","c") and ("a","bc") differ.
    #[must_use]
    pub const fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self.0;
        let mut i = 0;
        while i < bytes.len() {
            // White space in `stringify!` output is not stable between compilers.
            if bytes[i] != b' ' {
                hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01B3);
            }
            i += 1;
        }
        Self((hash ^ 0xFF).wrapping_mul(0x0000_0100_0000_01B3))
    }

    /// Adds a number.
    #[must_use]
    pub const fn u64(self, value: u64) -> Self {
        let mut hash = self.0;
        let bytes = value.to_le_bytes();
        let mut i = 0;
        while i < 8 {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01B3);
            i += 1;
        }
        Self(hash)
    }

    /// The hash.
    #[must_use]
    pub const fn finish(self) -> u64 {
        self.0
    }
}

macro_rules! primitive {
    ($($ty:ty),*) => {$(
        impl Layout for $ty {
            const HASH: u64 = Fnv::new().bytes(stringify!($ty).as_bytes()).finish();
        }
    )*};
}
primitive!(u8, u16, u32, u64);

impl Layout for crate::DeviceAddress {
    const HASH: u64 = Fnv::new().bytes(b"DeviceAddress").finish();
}

impl<T: Layout, const N: usize> Layout for [T; N] {
    const HASH: u64 = Fnv::new().bytes(b"array").u64(N as u64).u64(T::HASH).finish();
}

/// Defines a `repr(C)` structure with its zerocopy implementations, its [`Layout`] and an assertion of its size.
macro_rules! abi_struct {
    (
        $(#[doc = $doc:literal])*
        #[size = $size:literal, align = $align:literal]
        pub struct $name:ident {
            $( $(#[doc = $field_doc:literal])* pub $field:ident : $ty:ty, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[cfg_attr(feature = "host", derive(zerocopy::FromBytes, Default))]
        #[repr(C, align($align))]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $ty, )*
        }

        const _: () = assert!(core::mem::size_of::<$name>() == $size);

        impl $crate::Layout for $name {
            const HASH: u64 = $crate::Fnv::new()
                .bytes(stringify!($name).as_bytes())
                .u64($size)
                .u64($align)
                $(
                    .bytes(stringify!($field).as_bytes())
                    .bytes(stringify!($ty).as_bytes())
                    .u64(core::mem::offset_of!($name, $field) as u64)
                    .u64(<$ty as $crate::Layout>::HASH)
                )*
                .finish();
        }
    };
}
pub(crate) use abi_struct;

/// Gives an enumeration with codes in `u32` the list of its values, in the order of their codes, and the way back from a code.
macro_rules! abi_codes {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident {
            $( $(#[doc = $value_doc:literal])* $value:ident = $code:literal, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $( $(#[doc = $value_doc])* $value = $code, )*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$( Self::$value, )*];

            /// The value of a code; the code itself when it names none.
            pub const fn from_raw(raw: u32) -> Result<Self, u32> {
                match raw {
                    $( $code => Ok(Self::$value), )*
                    other => Err(other),
                }
            }
        }
    };
}
pub(crate) use abi_codes;
