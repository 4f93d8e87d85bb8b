//! The runtime for unit tests on the host: a thread context and an outbox page per test thread; windows show host memory as it is.

use std::cell::UnsafeCell;
use std::thread_local;

use crate::hw::ThreadContext;

#[repr(align(64))]
struct Page(UnsafeCell<[u64; 512]>);

thread_local! {
    static OUTBOX: Page = const { Page(UnsafeCell::new([0; 512])) };
    static CONTEXT: UnsafeCell<ThreadContext> = UnsafeCell::new(ThreadContext::default());
}

pub(crate) fn reschedule() -> ! {
    unreachable!("unit tests call handlers directly and look at what they return")
}

pub(crate) fn finish() -> ! {
    unreachable!("unit tests call handlers directly and look at what they return")
}

pub(crate) fn retrigger() -> ! {
    unreachable!("unit tests call handlers directly and look at what they return")
}

pub(crate) fn error(code: u8) -> ! {
    panic!("the firmware ended its process with error {code:#x}")
}

pub(crate) fn activate(_activation_id: u32) -> u32 {
    0
}

pub(crate) fn thread_context() -> *mut ThreadContext {
    let page = OUTBOX.with(|page| page.0.get()) as u64;
    CONTEXT.with(|context| {
        // SAFETY: the cell belongs to this thread and no reference to its content exists.
        unsafe { (*context.get()).outbox_base = page };
        context.get()
    })
}

pub(crate) fn thread_id(_context: *mut ThreadContext) -> u32 {
    0
}

pub(crate) fn thread_local_storage(_context: *mut ThreadContext) -> u64 {
    0
}

pub(crate) fn outbox_config(context: *mut ThreadContext, id: u16) -> u32 {
    // SAFETY: the context is this thread's cell.
    unsafe { (*context).outbox_config_id = id };
    0
}

pub(crate) fn window_config(_entity: u32, _id: u16, _mkey: u32) -> u32 {
    0
}

pub(crate) fn window_pointer(_entity: u32, host_address: u64) -> Option<u64> {
    Some(host_address)
}

#[cfg(feature = "log")]
pub(crate) fn message(text: &core::ffi::CStr) {
    std::println!("{}", text.to_string_lossy());
}

/// The value stored last to an outbox register of this test thread; 0 if none was.
#[must_use]
pub fn outbox_register(offset: u64) -> u64 {
    OUTBOX.with(|page| {
        // SAFETY: this thread's page; no reference to its content exists.
        unsafe { page.0.get().cast::<u64>().byte_add(offset as usize).read_volatile() }
    })
}
