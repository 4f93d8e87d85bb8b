//! Panics of this library end the process. In images of Rust the crate `dpa` has the handler.

/// Error code of a panic, as in `dpa`.
const PANIC: u8 = 0x81;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    crate::symbols::flexio_dev_error(PANIC)
}
