//! Probes of a card: the stack of a thread, loads that are not aligned, long runs. Nothing of them is published, and
//! some end the process: that is what they find.

use crate::arch;

/// Lines of the memory that is loaded from.
#[repr(align(64))]
struct Lines([u64; 16]);

/// Stores a zero to each 64th byte of the `bytes` bytes below the stack pointer, the highest first. Nothing of the
/// thread lies there, and behind its stack there is a guard, memory of others, or nothing.
#[inline(never)]
pub fn store_below_stack(bytes: u64) {
    // SAFETY: below the stack pointer there is no variable of this thread. Of what lies beyond the stack the card
    // decides; a process that asks for this is good for nothing else.
    unsafe { arch::store_below_stack(bytes) }
}

/// Cycles that `loads` loads of a 64-bit word take which begins `offset` bytes (modulo 64) behind the begin of a line.
/// Three instructions a load: load, add, branch.
#[inline(never)]
#[must_use]
pub fn load_cycles(offset: u64, loads: u64) -> u64 {
    let lines = Lines([0; 16]);
    let at = lines.0.as_ptr() as u64 + offset % 64;
    let begun = arch::cycles();
    if loads > 0 {
        // SAFETY: the word ends 71 bytes behind the begin of 128.
        unsafe { arch::load_again(at, loads) };
    }
    arch::cycles().wrapping_sub(begun)
}

/// Executes until `ns` nanoseconds of device time have passed; returns how many have.
#[inline(never)]
#[must_use]
pub fn spin(ns: u64) -> u64 {
    let begun = arch::time();
    loop {
        let passed = arch::time().wrapping_sub(begun);
        if passed >= ns {
            return passed;
        }
    }
}
