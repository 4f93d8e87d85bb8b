//! The thread context that the DPA runtime keeps behind register `tp` (FlexIO device headers before 24.10, confirmed by
//! the debug information of libsnap-rdma's device programs). Little-endian.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Context of one DPA thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct ThreadContext {
    /// Layout version.
    pub version: u32,
    /// Outbox selected last.
    pub outbox_config_id: u16,
    /// Window selected last.
    pub window_config_id: u16,
    /// Device address of the mapped outbox page.
    pub outbox_base: u64,
    /// Device address of the window aperture.
    pub window_base: u64,
    /// Device address of the word that holds the window's memory key.
    pub window_config_base: u64,
    /// Free for the runtime library.
    pub metadata_parameter: u64,
    /// Error number of the last failed library call.
    pub errno: u32,
    /// Padding to a multiple of eight.
    pub padding: [u8; 4],
}

const _: () = {
    assert!(core::mem::size_of::<ThreadContext>() == 0x30);
    assert!(core::mem::offset_of!(ThreadContext, outbox_base) == 0x08);
    assert!(core::mem::offset_of!(ThreadContext, window_base) == 0x10);
    assert!(core::mem::offset_of!(ThreadContext, window_config_base) == 0x18);
    assert!(core::mem::offset_of!(ThreadContext, errno) == 0x28);
};
