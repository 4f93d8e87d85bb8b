//! Expansion of the entry macros: calls into typed functions, entry records, the ABI note.

use crate::{abi, error, fatal, sys};

/// How an event handler ends its activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Sleep until the next event; the handler then starts from the top.
    Reschedule,
    /// Never run again.
    Finish,
    /// Run again at once: there is more work, but others get their turn first.
    Retrigger,
}

/// Kind of an entry, as stored in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Started by events.
    EventHandler = 1,
    /// Called by the host.
    Rpc = 2,
}

/// An entry record in section `.flexcast.entries`: 40 bytes, layout fixed.
#[derive(Debug)]
#[repr(C)]
pub struct Record {
    function: *const (),
    unpack: *const (),
    name: *const u8,
    name_len: u32,
    kind: u32,
    argument_hash: u64,
}

// SAFETY: constant data; the pointers are addresses for the host's eyes.
unsafe impl Sync for Record {}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Record>() == 40);

impl Record {
    /// Record of an event handler.
    #[must_use]
    pub const fn event(name: &'static str, entry: extern "C" fn(u64) -> !, argument_hash: u64) -> Self {
        Self {
            function: entry as *const (),
            unpack: core::ptr::null(),
            name: name.as_ptr(),
            name_len: name.len() as u32,
            kind: Kind::EventHandler as u32,
            argument_hash,
        }
    }

    /// Record of an RPC.
    #[must_use]
    pub const fn rpc(
        name: &'static str,
        entry: extern "C" fn(u64) -> u64,
        unpack: extern "C" fn(u64, extern "C" fn(u64) -> u64) -> u64,
        argument_hash: u64,
    ) -> Self {
        Self {
            function: entry as *const (),
            unpack: unpack as *const (),
            name: name.as_ptr(),
            name_len: name.len() as u32,
            kind: Kind::Rpc as u32,
            argument_hash,
        }
    }
}

/// The note in section `.note.flexcast`: 24 bytes, layout fixed.
#[derive(Debug)]
#[repr(C)]
pub struct AbiNote {
    magic: [u8; 8],
    abi_version: u32,
    abi_min_version: u32,
    abi_hash: u64,
}

const _: () = assert!(size_of::<AbiNote>() == 24);

#[used]
#[cfg_attr(target_arch = "riscv64", unsafe(link_section = ".note.flexcast"))]
static NOTE: AbiNote = AbiNote {
    magic: *b"FLXCAST\0",
    abi_version: abi::ABI_VERSION,
    abi_min_version: abi::ABI_MIN_VERSION,
    abi_hash: abi::ABI_HASH,
};

/// The context at `address`, or the end of the process: a handler without its context has nobody to report to.
///
/// # Safety
/// If not 0, `address` is that of a `T` which the host has written for the running entry, and which nobody else writes
/// before it ends.
#[inline(always)]
unsafe fn context<'a, T>(address: u64) -> &'a mut T {
    let pointer = address as *mut T;
    if pointer.is_null() || !pointer.is_aligned() {
        fatal(error::BAD_ARGUMENT);
    }
    // SAFETY: by contract; aligned.
    unsafe { &mut *pointer }
}

/// Body of an event handler's symbol.
///
/// # Safety
/// The host compared the layout hash of the entry's record with its own, and gives as argument the device address of
/// such a structure, which it leaves to this entry: what it rewrites meanwhile lies behind [`crate::HostLine`]s.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn event<T: abi::Layout>(argument: u64, handler: fn(&mut T) -> Next) -> ! {
    // SAFETY: by contract.
    match handler(unsafe { context(argument) }) {
        Next::Reschedule => sys::reschedule(),
        Next::Finish => sys::finish(),
        Next::Retrigger => sys::retrigger(),
    }
}

/// Body of an RPC's symbol whose argument is a structure.
///
/// # Safety
/// As for [`event`].
#[doc(hidden)]
#[inline(always)]
pub unsafe fn rpc_with<T: abi::Layout>(argument: u64, function: fn(&T) -> u64) -> u64 {
    // SAFETY: by contract.
    function(unsafe { context(argument) })
}

/// Body of an RPC's symbol whose argument is a structure that it may change.
///
/// # Safety
/// As for [`event`].
#[doc(hidden)]
#[inline(always)]
pub unsafe fn rpc_with_mut<T: abi::Layout>(argument: u64, function: fn(&mut T) -> u64) -> u64 {
    // SAFETY: by contract.
    function(unsafe { context(argument) })
}

/// Body of an RPC's unpack symbol: the buffer holds the one argument.
///
/// # Safety
/// If not 0, `buffer` is the address of the argument buffer that the runtime passes: a number in it is valid for reads.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn unpack(buffer: u64, function: extern "C" fn(u64) -> u64) -> u64 {
    let buffer = buffer as *const u64;
    if buffer.is_null() || !buffer.is_aligned() {
        fatal(error::BAD_ARGUMENT);
    }
    // SAFETY: by contract; the host's pack function filled it with one u64.
    function(unsafe { buffer.read() })
}

/// Wakes the event handler of this process with this activation id, as if an event had come. There is no answer.
pub fn activate(activation_id: u32) {
    sys::activate(activation_id);
}
