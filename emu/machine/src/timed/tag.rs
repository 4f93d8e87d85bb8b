//! Tags of addresses: caches are those of a card, addresses those of a process.

/// Makes the addresses of a process different from those of others; no device address is as long.
pub(crate) const fn tag(process: u32) -> u64 {
    (process as u64) << 40
}

/// The address in its process.
pub(crate) const fn untagged(addr: u64) -> u64 {
    addr & (tag(1) - 1)
}
