//! Addresses that cannot be mixed up: host memory, DPA memory.

use std::fmt;

/// A virtual address of this host process, as a network card sees it through a memory key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct HostAddr(pub u64);

/// A virtual address of a DPA process: heap, code or data, never dereferenceable by the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevAddr(pub u64);

macro_rules! address {
    ($name:ident) => {
        impl $name {
            /// The bare number, for a context block or a work request.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The address `bytes` further on.
            ///
            /// # Panics
            /// When the sum leaves the 64-bit address space, which no live allocation reaches.
            #[must_use]
            pub const fn offset(self, bytes: u64) -> Self {
                match self.0.checked_add(bytes) {
                    Some(sum) => Self(sum),
                    None => panic!("address overflow"),
                }
            }

            /// Whether the address is a multiple of `bytes` (a power of two).
            #[must_use]
            pub const fn is_aligned_to(self, bytes: u64) -> bool {
                self.0 & (bytes - 1) == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address!(HostAddr);
address!(DevAddr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_alignment() {
        let base = DevAddr(0x1_0000_0000);
        assert_eq!(base.offset(40), DevAddr(0x1_0000_0028));
        assert!(base.is_aligned_to(4096));
        assert!(!base.offset(40).is_aligned_to(64));
        assert_eq!(HostAddr(0x7f00).to_string(), "0x7f00");
    }
}
