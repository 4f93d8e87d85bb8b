//! The exported symbols.

use core::arch::{asm, global_asm};
use core::ffi::{c_char, c_int, c_void};

use flexcast_hw::ThreadContext;

use crate::format::Texts;
use crate::rtos;

/// `FLEXIO_DEV_STATUS_SUCCESS`.
const SUCCESS: u32 = 0;
/// `FLEXIO_DEV_STATUS_FAILED`.
pub(crate) const FAILED: u32 = 1;
/// Bit pattern of window entity 0; entity 1 adds [`ENTITY_STEP`].
const WINDOW_BASE: u64 = 0x8000_0000_0000_0000;
const ENTITY_STEP: u64 = 0x4000_0000_0000_0000;
/// Longest message of a stream.
const MESSAGE_BYTES: usize = 511;
/// Level of `flexio_dev_puts` and `flexio_dev_print`.
const LEVEL_INFO: u64 = 4;
/// Error numbers (`errno`) that this library sets.
const ERRNO_INVALID: u32 = 22;
/// What is asked for does not exist here.
pub(crate) const ERRNO_UNSUPPORTED: u32 = 95;

// No thread of a DPA process starts at the ELF entry point; one that does traps here.
global_asm!(
    ".section .text.init, \"ax\", @progbits",
    ".globl _start",
    "_start:",
    "unimp",
    // Variadic in C: the arguments in a3 to a7 are put below those that the caller left on the stack. A section of its
    // own, so that programs that print texts only do not carry the conversions.
    ".section .text.flexio_dev_msg, \"ax\", @progbits",
    ".globl flexio_dev_msg",
    ".type flexio_dev_msg, @function",
    "flexio_dev_msg:",
    "addi sp, sp, -48",
    "sd ra, 0(sp)",
    "sd a3, 8(sp)",
    "sd a4, 16(sp)",
    "sd a5, 24(sp)",
    "sd a6, 32(sp)",
    "sd a7, 40(sp)",
    "addi a3, sp, 8",
    "call {message}",
    "ld ra, 0(sp)",
    "addi sp, sp, 48",
    "ret",
    ".size flexio_dev_msg, . - flexio_dev_msg",
    ".text",
    message = sym flexcast_dev_vmsg,
);

pub(crate) fn context() -> *mut ThreadContext {
    let context;
    // SAFETY: reads a register; the runtime keeps the thread context in tp and compiled code never touches it.
    unsafe { asm!("mv {}, tp", out(reg) context, options(nomem, nostack, preserves_flags)) };
    context
}

pub(crate) fn set_errno(value: u32) {
    // SAFETY: tp points at this thread's context for the whole life of the thread; nobody else writes it.
    unsafe { (*context()).errno = value };
}

fn status(result: u64) -> u32 {
    if result == 0 {
        SUCCESS
    } else {
        set_errno(ERRNO_INVALID);
        FAILED
    }
}

/// Stores the thread context's address; returns 0, or -1 for a null pointer.
///
/// # Safety
/// `out` is null or points at a pointer that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_dev_get_thread_ctx(out: *mut *mut ThreadContext) -> c_int {
    if out.is_null() {
        return -1;
    }
    // SAFETY: not null, and writable by contract.
    unsafe { *out = context() };
    0
}

/// Ends the activation; the next trigger starts the handler from the top.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_thread_reschedule() -> ! {
    rtos::leave(rtos::RESCHEDULE, 0)
}

/// Deprecated name of [`flexio_dev_thread_reschedule`].
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_reschedule() -> ! {
    rtos::leave(rtos::RESCHEDULE, 0)
}

/// Ends the thread for good.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_thread_finish() -> ! {
    rtos::leave(rtos::FINISH, 0)
}

/// Deprecated name of [`flexio_dev_process_finish`].
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_finish() -> ! {
    rtos::leave(rtos::PROCESS_FINISH, 0)
}

/// Ends the activation and asks for another at once.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_thread_retrigger() -> ! {
    rtos::leave(rtos::RETRIGGER, 0)
}

/// Stops all threads of the process.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_process_finish() -> ! {
    rtos::leave(rtos::PROCESS_FINISH, 0)
}

/// Suspends a continuable handler until its next trigger; in any other without effect.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_yield(_context: *mut ThreadContext) {
    rtos::call(rtos::YIELD, [0; 4]);
}

/// Maps outbox `id` for this thread.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_outbox_config(_context: *mut ThreadContext, id: u16) -> u32 {
    status(rtos::call(rtos::OUTBOX_CONFIG, [u64::from(id), 0, 0, 0]))
}

/// The same without reporting errors.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_outbox_config_fast(_context: *mut ThreadContext, id: u16) {
    rtos::call(rtos::OUTBOX_CONFIG, [u64::from(id), 0, 0, 0]);
}

/// Selects another function's doorbell region; the emulated device has none and refuses.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_outbox_config_uar_extension(_context: *mut ThreadContext, device_id: u32) -> u32 {
    status(rtos::call(rtos::OUTBOX_CONFIG_UAR_EXTENSION, [u64::from(device_id), 0, 0, 0]))
}

/// Binds window `id` and memory key `mkey` to slot `entity` (0 or 1) of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_multi_window_config(entity: u32, id: u16, mkey: u32) -> u32 {
    status(rtos::call(rtos::WINDOW_CONFIG, [u64::from(entity), u64::from(id), u64::from(mkey), 0]))
}

/// Changes the memory key of slot `entity`.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_multi_window_mkey_config(entity: u32, mkey: u32) -> u32 {
    status(rtos::call(rtos::WINDOW_MKEY_CONFIG, [u64::from(entity), u64::from(mkey), 0, 0]))
}

/// Stores the device address under which slot `entity` shows host address `host_address`.
///
/// # Safety
/// `device_address` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_dev_multi_window_ptr_acquire(
    entity: u32,
    host_address: u64,
    device_address: *mut u64,
) -> u32 {
    if entity > 1 || device_address.is_null() || host_address >= ENTITY_STEP {
        set_errno(ERRNO_INVALID);
        return FAILED;
    }
    // SAFETY: not null, and writable by contract.
    unsafe { *device_address = WINDOW_BASE + u64::from(entity) * ENTITY_STEP + host_address };
    SUCCESS
}

/// Copies `bytes` bytes of device memory to host memory through slot `entity` and writes them back.
///
/// # Safety
/// `source` is valid for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_dev_multi_window_copy_to_host(
    entity: u32,
    host_address: u64,
    source: *const c_void,
    bytes: u32,
) -> u32 {
    let mut window = 0;
    // SAFETY: a local may be written.
    if unsafe { flexio_dev_multi_window_ptr_acquire(entity, host_address, &raw mut window) } != SUCCESS {
        return FAILED;
    }
    let source = source.cast::<u8>();
    for offset in 0..bytes as usize {
        // SAFETY: `source` is valid for `bytes` bytes by contract; the window faults by itself when the host range is
        // not mapped.
        unsafe { (window as *mut u8).add(offset).write_volatile(source.add(offset).read()) };
    }
    // SAFETY: a fence touches no memory of its own.
    unsafe { asm!("fence ow, ow", options(nostack, preserves_flags)) };
    SUCCESS
}

/// Number of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_get_thread_id(_context: *mut ThreadContext) -> u32 {
    rtos::call(rtos::THREAD_ID, [0; 4]) as u32
}

/// Value given as thread-local storage at the thread's creation.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_get_thread_local_storage(_context: *mut ThreadContext) -> u64 {
    rtos::call(rtos::THREAD_LOCAL_STORAGE, [0; 4])
}

/// Wakes the event handler with this activation id. There is no answer; one of no handler sets `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_event_handler_activate(activation_id: u32) {
    status(rtos::call(rtos::EVENT_HANDLER_ACTIVATE, [u64::from(activation_id), 0, 0, 0]));
}

/// Ends the process with user error `code` (128 to 255); with any other it ends with 0x42.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_error(code: u8) -> ! {
    rtos::leave(rtos::ERROR, u64::from(code))
}

/// Error number of the last failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_get_errno(_context: *mut ThreadContext) -> u64 {
    // SAFETY: tp points at this thread's context.
    u64::from(unsafe { (*context()).errno })
}

/// Forgets the error number.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_rst_errno(_context: *mut ThreadContext) {
    set_errno(0);
}

/// Returns and forgets the error number.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_get_and_rst_errno(context: *mut ThreadContext) -> u64 {
    let errno = flexio_dev_get_errno(context);
    set_errno(0);
    errno
}

/// Prints a text on stream 0.
///
/// # Safety
/// `text` is null or ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_dev_puts(_context: *mut ThreadContext, text: *const c_char) -> c_int {
    // SAFETY: by contract.
    unsafe { message(0, LEVEL_INFO, text) }
}

/// The texts of this process.
struct OwnMemory;

impl Texts for OwnMemory {
    fn byte(&self, address: u64) -> u8 {
        // SAFETY: `flexio_dev_msg` asks its callers for texts that end in a NUL; what does not is a fault of this
        // thread alone.
        unsafe { (address as *const u8).read() }
    }
}

/// `flexio_dev_msg` with its variadic arguments in memory.
///
/// # Safety
/// `format` is null or ends in a NUL, and `arguments` holds what it asks for.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexcast_dev_vmsg(
    stream: c_int,
    level: u8,
    format: *const c_char,
    arguments: *const u64,
) -> c_int {
    if format.is_null() {
        return -1;
    }
    let mut text = [0; MESSAGE_BYTES];
    let mut taken = 0;
    let len = crate::format::format(&mut text, &OwnMemory, format as u64, || {
        // SAFETY: by contract the format asks for no more than there is.
        let argument = unsafe { arguments.add(taken).read() };
        taken += 1;
        argument
    });
    let call = [stream as u64, u64::from(level), text.as_ptr() as u64, len as u64];
    if rtos::call(rtos::MESSAGE, call) == 0 { len as c_int } else { -1 }
}

/// # Safety
/// `text` ends in a NUL.
unsafe fn text_len(text: *const c_char) -> usize {
    let mut len = 0;
    // SAFETY: no NUL before `len`, so `len` is inside the text.
    while len < MESSAGE_BYTES && unsafe { *text.add(len) } != 0 {
        len += 1;
    }
    len
}

/// # Safety
/// `text` is null or ends in a NUL.
unsafe fn message(stream: u64, level: u64, text: *const c_char) -> c_int {
    if text.is_null() {
        return -1;
    }
    // SAFETY: by contract.
    let len = unsafe { text_len(text) };
    if rtos::call(rtos::MESSAGE, [stream, level, text as u64, len as u64]) == 0 { len as c_int } else { -1 }
}
