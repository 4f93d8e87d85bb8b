//! RV64 with the counters readable from user mode.

use core::arch::asm;

macro_rules! fence {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        pub(crate) fn $name() {
            // SAFETY: a fence changes no register and no memory; as an opaque block it also keeps the compiler from moving accesses.
            unsafe { asm!($instruction, options(nostack, preserves_flags)) };
        }
    };
}

fence!(fence_r_r, "fence r, r");
fence!(fence_w_w, "fence w, w");
fence!(fence_rw_rw, "fence rw, rw");
fence!(fence_ow_ow, "fence ow, ow");

macro_rules! counter {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        pub(crate) fn $name() -> u64 {
            let value;
            // SAFETY: reads a user-mode counter.
            unsafe { asm!($instruction, out(reg) value, options(nostack, preserves_flags)) };
            value
        }
    };
}

counter!(cycles, "rdcycle {}");
counter!(instructions, "rdinstret {}");
counter!(time, "rdtime {}");

/// The same value, of which the compiler knows nothing more. Costs no instruction.
#[inline(always)]
pub(crate) fn opaque(value: u64) -> u64 {
    let out;
    // SAFETY: an empty block; input and output share a register.
    unsafe { asm!("/* {} */", inlateout(reg) value => out, options(pure, nomem, nostack, preserves_flags)) };
    out
}
