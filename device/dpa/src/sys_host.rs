//! The runtime for unit tests on the host: a thread context and an outbox page per test thread; windows show host
//! memory as it is.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread_local;

use crate::hw::ThreadContext;

#[repr(align(64))]
struct Page(UnsafeCell<[u64; 512]>);

/// Threads of the program number themselves.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static OUTBOX: Page = const { Page(UnsafeCell::new([0; 512])) };
    static NUMBER: Cell<u32> = Cell::new(NUMBERS.fetch_add(1, Ordering::Relaxed));
    static CONTEXT: UnsafeCell<ThreadContext> = UnsafeCell::new(ThreadContext::default());
}

pub(crate) fn reschedule() -> ! {
    unreachable!("unit tests call handlers directly and check what they return")
}

pub(crate) fn finish() -> ! {
    unreachable!("unit tests call handlers directly and check what they return")
}

pub(crate) fn retrigger() -> ! {
    unreachable!("unit tests call handlers directly and check what they return")
}

pub(crate) fn error(code: u8) -> ! {
    panic!("the firmware ended its process with error {code:#x}")
}

pub(crate) fn activate(_activation_id: u32) {}

pub(crate) fn thread_context() -> *mut ThreadContext {
    let page = OUTBOX.with(|page| page.0.get()) as u64;
    CONTEXT.with(|context| {
        // SAFETY: the cell belongs to this thread and no reference to its content exists.
        unsafe { (*context.get()).outbox_base = page };
        context.get()
    })
}

pub(crate) fn thread_id(_context: *mut ThreadContext) -> u32 {
    NUMBER.with(Cell::get)
}

/// Gives the running test thread another number.
#[cfg(test)]
pub(crate) fn set_thread_id(number: u32) {
    NUMBER.with(|cell| cell.set(number));
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
///
/// # Panics
/// The page has no register at this offset.
#[must_use]
pub fn outbox_register(offset: u64) -> u64 {
    assert!(offset.is_multiple_of(8) && offset < size_of::<Page>() as u64, "no register at {offset:#x}");
    OUTBOX.with(|page| {
        // SAFETY: inside this thread's page; no reference to its content exists.
        unsafe { page.0.get().cast::<u64>().byte_add(offset as usize).read_volatile() }
    })
}
