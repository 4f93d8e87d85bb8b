//! Memory that the host or another thread writes while the firmware runs.

/// A copy of `value`, loaded now: for structures in a context that the host rewrites. Whether the copy is whole is for the structure's own
/// check fields to say.
#[inline]
#[must_use]
pub fn snapshot<T: Copy>(value: &T) -> T {
    // SAFETY: a reference is valid for reads; volatile, because the host may have written since the last load.
    unsafe { core::ptr::from_ref(value).read_volatile() }
}

/// The same value, which the compiler then keeps in a register instead of building the constant again in every round of a loop.
#[inline(always)]
#[must_use]
pub fn in_register(value: u64) -> u64 {
    crate::arch::opaque(value)
}
