//! Packet sequence numbers, and how messages are cut into packets.

/// PSNs and queue numbers have 24 bits.
pub(crate) const MASK_24: u32 = 0xFF_FFFF;

/// How far `psn` is ahead of `base`; `None` if it lies behind.
pub(crate) fn psn_ahead(psn: u32, base: u32) -> Option<u32> {
    let ahead = psn.wrapping_sub(base) & MASK_24;
    (ahead < 1 << 23).then_some(ahead)
}

pub(crate) fn psn_add(psn: u32, count: u32) -> u32 {
    psn.wrapping_add(count) & MASK_24
}

/// Offset and length of a packet's part of a message.
pub(crate) fn part(packet: u32, mtu: u32, len: u32) -> (u32, u32) {
    let offset = packet.saturating_mul(mtu).min(len);
    (offset, mtu.min(len - offset))
}

/// Packets of a message; an empty one has one.
pub(crate) fn packets(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}
