//! The runtime library: symbols of `libflexio_dev` (device version 24.10 and later), linked from the vendor's library
//! on a card and from `rt-emu` on the emulated DPA. Thin safe wrappers; everything typed lives in the modules above
//! this one.

#[cfg(target_arch = "riscv64")]
pub(crate) use device::*;
#[cfg(not(target_arch = "riscv64"))]
pub use host::outbox_register;
#[cfg(not(target_arch = "riscv64"))]
pub(crate) use host::*;

#[cfg(target_arch = "riscv64")]
mod device {
    #[cfg(feature = "log")]
    use core::ffi::{c_char, c_int};

    use crate::hw::ThreadContext;

    unsafe extern "C" {
        safe fn flexio_dev_thread_reschedule() -> !;
        safe fn flexio_dev_thread_finish() -> !;
        safe fn flexio_dev_thread_retrigger() -> !;
        safe fn flexio_dev_error(code: u8) -> !;
        safe fn flexio_dev_event_handler_activate(activation_id: u32);
        safe fn flexio_dev_multi_window_config(entity: u32, id: u16, mkey: u32) -> u32;
        fn flexio_dev_get_thread_ctx(out: *mut *mut ThreadContext) -> i32;
        fn flexio_dev_outbox_config(context: *mut ThreadContext, id: u16) -> u32;
        fn flexio_dev_get_thread_id(context: *mut ThreadContext) -> u32;
        fn flexio_dev_get_thread_local_storage(context: *mut ThreadContext) -> u64;
        fn flexio_dev_multi_window_ptr_acquire(entity: u32, host_address: u64, device_address: *mut u64) -> u32;
    }
    #[cfg(feature = "log")]
    unsafe extern "C" {
        fn flexio_dev_puts(context: *mut ThreadContext, text: *const c_char) -> c_int;
    }

    pub(crate) fn reschedule() -> ! {
        flexio_dev_thread_reschedule()
    }

    pub(crate) fn finish() -> ! {
        flexio_dev_thread_finish()
    }

    pub(crate) fn retrigger() -> ! {
        flexio_dev_thread_retrigger()
    }

    pub(crate) fn error(code: u8) -> ! {
        flexio_dev_error(code)
    }

    pub(crate) fn activate(activation_id: u32) {
        flexio_dev_event_handler_activate(activation_id);
    }

    pub(crate) fn thread_context() -> *mut ThreadContext {
        let mut context = core::ptr::null_mut();
        // SAFETY: a local may be written; the call only reads tp.
        unsafe { flexio_dev_get_thread_ctx(&raw mut context) };
        context
    }

    pub(crate) fn thread_id(context: *mut ThreadContext) -> u32 {
        // SAFETY: the context comes from `thread_context`.
        unsafe { flexio_dev_get_thread_id(context) }
    }

    pub(crate) fn thread_local_storage(context: *mut ThreadContext) -> u64 {
        // SAFETY: the context comes from `thread_context`.
        unsafe { flexio_dev_get_thread_local_storage(context) }
    }

    pub(crate) fn outbox_config(context: *mut ThreadContext, id: u16) -> u32 {
        // SAFETY: the context comes from `thread_context`.
        unsafe { flexio_dev_outbox_config(context, id) }
    }

    pub(crate) fn window_config(entity: u32, id: u16, mkey: u32) -> u32 {
        flexio_dev_multi_window_config(entity, id, mkey)
    }

    pub(crate) fn window_pointer(entity: u32, host_address: u64) -> Option<u64> {
        let mut address = 0;
        // SAFETY: a local may be written.
        let status = unsafe { flexio_dev_multi_window_ptr_acquire(entity, host_address, &raw mut address) };
        (status == 0).then_some(address)
    }

    /// Sends a NUL-terminated text to message stream 0, level INFO.
    #[cfg(feature = "log")]
    pub(crate) fn message(text: &core::ffi::CStr) {
        // SAFETY: the text is NUL-terminated; the context comes from `thread_context`.
        unsafe { flexio_dev_puts(thread_context(), text.as_ptr()) };
    }
}

#[cfg(not(target_arch = "riscv64"))]
#[path = "sys_host.rs"]
mod host;
