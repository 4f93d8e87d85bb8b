//! Calls of include/flexcast_emu.h: virtual time, for programs in C.

use std::panic::{AssertUnwindSafe, catch_unwind};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn flexcast_emu_relax() -> bool {
    // A panic must not reach the caller's frames; that nothing is due ends its loop.
    catch_unwind(AssertUnwindSafe(emu_libibverbs::relax)).unwrap_or(false)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn flexcast_emu_is_bridged() -> bool {
    catch_unwind(AssertUnwindSafe(emu_libibverbs::is_bridged)).unwrap_or(false)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn flexcast_emu_now_ps() -> u64 {
    emu_libibverbs::now_ps()
}
