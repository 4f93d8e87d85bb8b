//! RV64 with the counters readable from user mode.

use core::arch::asm;

macro_rules! fence {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        pub(crate) fn $name() {
            // SAFETY: a fence changes no register and no memory; as an opaque block it also keeps the compiler from
            // moving accesses.
            unsafe { asm!($instruction, options(nostack, preserves_flags)) };
        }
    };
}

fence!(fence_r_r, "fence r, r");
fence!(fence_w_w, "fence w, w");
fence!(fence_rw_rw, "fence rw, rw");
fence!(fence_ow_ow, "fence ow, ow");
fence!(fence_ir_ir, "fence ir, ir");

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

/// [`opaque`] that stays where it is: hoisted out of an outer loop, a constant would take a register all the way, or be
/// spilled.
#[inline(always)]
pub(crate) fn opaque_here(value: u64) -> u64 {
    let out;
    // SAFETY: an empty block; input and output share a register.
    unsafe { asm!("/* {} */", inlateout(reg) value => out, options(nomem, nostack, preserves_flags)) };
    out
}

/// Follows `loads` pointers from `at`: a load, an add and a branch for each.
///
/// # Safety
/// `loads` is not 0, and each pointer on the way may be loaded from.
#[inline(always)]
pub(crate) unsafe fn chase(at: u64, loads: u64) -> u64 {
    let mut pointer = at;
    // SAFETY: by contract; nothing is stored.
    unsafe {
        asm!(
            "2: ld {pointer}, 0({pointer})",
            "addi {left}, {left}, -1",
            "bnez {left}, 2b",
            pointer = inout(reg) pointer,
            left = inout(reg) loads => _,
            options(nostack)
        );
    }
    pointer
}

/// Loads the 64-bit word at `at` so often: a load, an add and a branch for each.
///
/// # Safety
/// `loads` is not 0, and the word may be loaded.
#[inline(always)]
pub(crate) unsafe fn load_again(at: u64, loads: u64) {
    // SAFETY: by contract; nothing is stored.
    unsafe {
        asm!(
            "2: ld {word}, 0({at})",
            "addi {left}, {left}, -1",
            "bnez {left}, 2b",
            word = out(reg) _,
            at = in(reg) at,
            left = inout(reg) loads => _,
            options(nostack)
        );
    }
}

/// Stores a zero to each 64th byte of so many bytes below the stack pointer, downwards.
///
/// # Safety
/// Nobody needs what is there.
#[inline(always)]
pub(crate) unsafe fn store_below_stack(bytes: u64) {
    // SAFETY: by contract; the stack pointer stays where it is.
    unsafe {
        asm!(
            "mv {at}, sp",
            "sub {end}, sp, {bytes}",
            "2: bgeu {end}, {at}, 3f",
            "addi {at}, {at}, -64",
            "sd zero, 0({at})",
            "j 2b",
            "3:",
            at = out(reg) _,
            end = out(reg) _,
            bytes = in(reg) bytes,
        );
    }
}

/// Loads the 64-bit words from `at` to `end`: a load, an add and a branch for each.
///
/// # Safety
/// There is at least one word, and all may be loaded.
#[inline(always)]
pub(crate) unsafe fn read_words(at: u64, end: u64) {
    // SAFETY: by contract; nothing is stored.
    unsafe {
        asm!(
            "2: ld {word}, 0({at})",
            "addi {at}, {at}, 8",
            "bne {at}, {end}, 2b",
            word = out(reg) _,
            at = inout(reg) at => _,
            end = in(reg) end,
            options(nostack)
        );
    }
}

/// Stores zeros to the lines of 64 bytes from `at` to `end`: eight stores, an add and a branch for each.
///
/// # Safety
/// There is at least one line, and all are the caller's to store to.
#[inline(always)]
pub(crate) unsafe fn write_lines(at: u64, end: u64) {
    // SAFETY: by contract.
    unsafe {
        asm!(
            "2: sd zero, 0({at})",
            "sd zero, 8({at})",
            "sd zero, 16({at})",
            "sd zero, 24({at})",
            "sd zero, 32({at})",
            "sd zero, 40({at})",
            "sd zero, 48({at})",
            "sd zero, 56({at})",
            "addi {at}, {at}, 64",
            "bne {at}, {end}, 2b",
            at = inout(reg) at => _,
            end = in(reg) end,
            options(nostack)
        );
    }
}
