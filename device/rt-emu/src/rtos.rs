//! System calls of the emulated DPA runtime: number in `a7`, arguments in `a0`..`a3`, result in `a0`.

use core::arch::asm;

pub(crate) const RESCHEDULE: u64 = 1;
pub(crate) const FINISH: u64 = 2;
pub(crate) const RETRIGGER: u64 = 3;
pub(crate) const PROCESS_FINISH: u64 = 4;
pub(crate) const YIELD: u64 = 5;
pub(crate) const OUTBOX_CONFIG: u64 = 6;
pub(crate) const WINDOW_CONFIG: u64 = 7;
pub(crate) const WINDOW_MKEY_CONFIG: u64 = 8;
pub(crate) const MESSAGE: u64 = 9;
pub(crate) const ERROR: u64 = 10;
pub(crate) const EVENT_HANDLER_ACTIVATE: u64 = 11;
pub(crate) const THREAD_ID: u64 = 12;
pub(crate) const THREAD_LOCAL_STORAGE: u64 = 13;
pub(crate) const OUTBOX_CONFIG_UAR_EXTENSION: u64 = 14;
pub(crate) const NIC_COUNTER: u64 = 15;
pub(crate) const YIELD_AND_RETRIGGER: u64 = 16;

/// Calls the runtime.
#[inline(always)]
pub(crate) fn call(number: u64, a: [u64; 4]) -> u64 {
    let result;
    // SAFETY: an `ecall` of the emulated runtime preserves every register but a0 and may read or write only memory that
    // the call names, which the callers of this function vouch for.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") a[0] => result,
            in("a1") a[1],
            in("a2") a[2],
            in("a3") a[3],
            in("a7") number,
            options(nostack),
        );
    }
    result
}

/// Calls the runtime and does not come back.
#[inline(always)]
pub(crate) fn leave(number: u64, argument: u64) -> ! {
    // SAFETY: these calls end the activation, the thread or the process; the runtime never resumes behind them.
    unsafe {
        asm!("ecall", "unimp", in("a0") argument, in("a7") number, options(nostack, noreturn));
    }
}
