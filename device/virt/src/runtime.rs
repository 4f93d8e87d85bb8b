//! The symbols of `libflexio_dev` that the datapath needs, for a single thread without a card: a window is plain
//! memory, the outbox is a page that nobody reads. Names and parameters as in `rt-emu`.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};

use flexcast_hw::ThreadContext;

use crate::board;

#[repr(align(4096))]
struct Page(UnsafeCell<[u8; 4096]>);

// SAFETY: one hart, no interrupts; accessed through raw pointers only.
unsafe impl Sync for Page {}

static OUTBOX: Page = Page(UnsafeCell::new([0; 4096]));
static HOST: Page = Page(UnsafeCell::new([0; 4096]));

struct Context(UnsafeCell<ThreadContext>);

// SAFETY: as for `Page`.
unsafe impl Sync for Context {}

static CONTEXT: Context = Context(UnsafeCell::new(ThreadContext {
    version: 1,
    outbox_config_id: 0,
    window_config_id: 0,
    outbox_base: 0,
    window_base: 0,
    window_config_base: 0,
    metadata_parameter: 0,
    errno: 0,
    padding: [0; 4],
}));

/// Address of lines that stand for host memory.
pub(crate) fn host_lines() -> u64 {
    HOST.0.get() as u64
}

/// Stores the address of the only context.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_dev_get_thread_ctx(out: *mut *mut ThreadContext) -> i32 {
    // SAFETY: by contract.
    unsafe { *out = CONTEXT.0.get() };
    0
}

/// Selects the only outbox.
///
/// # Safety
/// `context` is the only one.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_dev_outbox_config(context: *mut ThreadContext, _id: u16) -> u32 {
    // SAFETY: by contract; one hart.
    unsafe { (*context).outbox_base = OUTBOX.0.get() as u64 };
    0
}

#[unsafe(no_mangle)]
extern "C" fn flexio_dev_multi_window_config(_entity: u32, _id: u16, _mkey: u32) -> u32 {
    0
}

/// Host memory is device memory here.
///
/// # Safety
/// `device_address` may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_dev_multi_window_ptr_acquire(_entity: u32, host: u64, device_address: *mut u64) -> u32 {
    // SAFETY: by contract.
    unsafe { *device_address = host };
    0
}

#[unsafe(no_mangle)]
extern "C" fn flexio_dev_get_thread_id(_context: *mut ThreadContext) -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn flexio_dev_error(code: u8) -> ! {
    board::print("the firmware reported an error\n");
    board::exit(code)
}

/// There is no other thread to wake: refused.
#[unsafe(no_mangle)]
extern "C" fn flexio_dev_event_handler_activate(_activation_id: u32) -> u32 {
    1
}

/// Logs go nowhere: the scenarios print.
#[unsafe(no_mangle)]
extern "C" fn flexio_dev_puts(_context: *mut ThreadContext, _text: *const c_char) -> c_int {
    0
}
