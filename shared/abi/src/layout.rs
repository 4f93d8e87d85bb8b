//! Layout hashes, computed by the compiler.
// One trait is unsafe to implement by hand; nothing here is executed.
#![allow(unsafe_code)]

use crate::memory::{HostLine, Queue, QueueKind, Region, RegionKind, Shared};

/// A type with a defined layout in memory that host and device share: what RPCs and event handlers may take, and what
/// contexts are made of.
///
/// `#[derive(Layout)]` implements it for structures of one's own. Both sides compile the same definition, and the image
/// records the hash of each entry's argument: if one side is older than the other, the host learns so before anything
/// runs.
///
/// ```
/// use flexcast_abi::{HostLine, Layout};
/// use zerocopy::{Immutable, IntoBytes};
///
/// /// Numbers to add up.
/// #[derive(Layout, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Job {
///     /// Where they lie in host memory.
///     numbers: u64,
///     /// How many there are.
///     count: u32,
///     /// Zero.
///     reserved: u32,
///     /// Answer; written by the firmware.
///     sum: u64,
///     /// What the host rewrites while the firmware runs is elsewhere.
///     limit: HostLine<u64>,
/// }
///
/// // Another order is another layout, although name, size and types are the same.
/// mod newer {
///     # use flexcast_abi::{HostLine, Layout};
///     #[derive(Layout)]
///     #[repr(C)]
///     pub struct Job {
///         pub numbers: u64,
///         pub reserved: u32,
///         pub count: u32,
///         pub sum: u64,
///         pub limit: HostLine<u64>,
///     }
/// }
/// assert_ne!(Job::HASH, newer::Job::HASH);
/// ```
///
/// # Safety
/// `HASH` depends on all that makes a value of the type out of bytes: whoever writes the bytes of a type with this hash
/// writes a valid value of this type. Firmware that takes two layouts for one would find memory where the host wrote
/// numbers.
pub unsafe trait Layout {
    /// Hash over name, size, alignment and fields (name, offset, hash of the type).
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
        // SAFETY: every pattern of its bits is a value.
        unsafe impl Layout for $ty {
            const HASH: u64 = Fnv::new().bytes(stringify!($ty).as_bytes()).finish();
        }
    )*};
}
primitive!(u8, u16, u32, u64, i8, i16, i32, i64);

// SAFETY: a number.
unsafe impl Layout for crate::DeviceAddress {
    const HASH: u64 = Fnv::new().bytes(b"DeviceAddress").finish();
}

// SAFETY: its elements and nothing else.
unsafe impl<T: Layout, const N: usize> Layout for [T; N] {
    const HASH: u64 = Fnv::new().bytes(b"array").u64(N as u64).u64(T::HASH).finish();
}

// SAFETY: of one layout whatever the kind, which is in the hash.
unsafe impl<K: QueueKind> Layout for Queue<K> {
    const HASH: u64 = Fnv::new().bytes(b"Queue").bytes(K::NAME.as_bytes()).finish();
}

// SAFETY: the same; what the elements are is in the hash, too.
unsafe impl<K: RegionKind> Layout for Region<K> {
    const HASH: u64 = Fnv::new().bytes(b"Region").bytes(K::NAME.as_bytes()).u64(K::ELEMENT).finish();
}

// SAFETY: an address; what it leads to is in the hash.
unsafe impl<T: Layout> Layout for HostLine<T> {
    const HASH: u64 = Fnv::new().bytes(b"HostLine").u64(T::HASH).finish();
}

// SAFETY: as above.
unsafe impl<T: Layout> Layout for Shared<T> {
    const HASH: u64 = Fnv::new().bytes(b"Shared").u64(T::HASH).finish();
}

/// Defines a `repr(C)` structure with its zerocopy implementations, its [`Layout`] and an assertion of its size.
///
/// With `memory` it leads to memory (see [`crate::memory`]): on the device it can neither be made nor copied. Without,
/// it is plain bytes.
macro_rules! abi_struct {
    (
        $(#[doc = $doc:literal])*
        #[size = $size:literal, align = $align:literal]
        $($item:tt)*
    ) => {
        $crate::layout::abi_struct! {
            @ $size, $align,
            [
                #[derive(Clone, Copy, Default, zerocopy::FromBytes)]
                $(#[doc = $doc])*
            ]
            $($item)*
        }
    };
    (
        $(#[doc = $doc:literal])*
        #[size = $size:literal, align = $align:literal, memory]
        $($item:tt)*
    ) => {
        $crate::layout::abi_struct! {
            @ $size, $align,
            [
                #[cfg_attr(feature = "host", derive(Clone, Copy, Default, zerocopy::FromBytes))]
                $(#[doc = $doc])*
            ]
            $($item)*
        }
    };
    (
        @ $size:literal, $align:literal,
        [$($attributes:tt)*]
        pub struct $name:ident {
            $( $(#[doc = $field_doc:literal])* pub $field:ident : $ty:ty, )*
        }
    ) => {
        #[derive(
            Debug, PartialEq, Eq, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, flexcast_abi_macros::Layout
        )]
        $($attributes)*
        #[repr(C, align($align))]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $ty, )*
        }

        const _: () = assert!(size_of::<$name>() == $size);
    };
}
pub(crate) use abi_struct;

/// Gives an enumeration with codes in `u32` the list of its values, in the order of their codes, and the way back from
/// a code.
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
