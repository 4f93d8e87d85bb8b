//! Hashing that is the same on every machine.

/// Spreads every bit of `x` over the whole result (the finaliser of SplitMix64, public domain).
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Two values into one.
pub(crate) const fn mix2(a: u64, b: u64) -> u64 {
    mix(mix(a) ^ b)
}

/// A number below `n` (not 0) from a hash.
pub(crate) const fn below(hash: u64, n: usize) -> usize {
    (((hash as u128) * (n as u128)) >> 64) as usize
}
