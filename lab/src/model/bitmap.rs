//! Capacity of a bitmap of a given size. One bit per chunk; the sequence number of a chunk takes p bits of the
//! immediate, and the rest distinguishes collectives.
//!
//! The publication gives a 64 KiB bitmap a receive buffer of 16 GB; with one bit per 4 KiB chunk it is 2 GiB.

/// Bytes of a bitmap for p-bit sequence numbers, p at most 32: 2^p / 8, at least one.
#[must_use]
pub const fn bitmap_bytes(psn_bits: u32) -> u64 {
    chunks(psn_bits).div_ceil(8)
}

const fn chunks(psn_bits: u32) -> u64 {
    1 << if psn_bits < 32 { psn_bits } else { 32 }
}

/// Largest receive buffer with p-bit sequence numbers: 2^p chunks.
#[must_use]
pub const fn receive_bytes(psn_bits: u32, chunk_bytes: u64) -> u64 {
    chunks(psn_bits).saturating_mul(chunk_bytes)
}

/// Collective ids that are left of the 32 bits.
#[must_use]
pub const fn collective_ids(psn_bits: u32) -> u64 {
    1 << (32 - if psn_bits < 32 { psn_bits } else { 32 })
}

/// Bits of the sequence number for a receive buffer: the smallest p with 2^p chunks; none above 32.
#[must_use]
pub const fn psn_bits(receive_bytes: u64, chunk_bytes: u64) -> Option<u32> {
    if chunk_bytes == 0 {
        return None;
    }
    let chunks = receive_bytes.div_ceil(chunk_bytes);
    let bits = if chunks < 2 { 0 } else { u64::BITS - (chunks - 1).leading_zeros() };
    if bits > 32 { None } else { Some(bits) }
}

/// Largest receive buffer that a bitmap of so many bytes tracks.
#[must_use]
pub const fn tracked_bytes(bitmap_bytes: u64, chunk_bytes: u64) -> u64 {
    bitmap_bytes.saturating_mul(8).saturating_mul(chunk_bytes)
}

/// Bytes of bitmap that a receive buffer uses.
#[must_use]
pub const fn used_bytes(receive_bytes: u64, chunk_bytes: u64) -> u64 {
    receive_bytes.div_ceil(if chunk_bytes == 0 { 1 } else { chunk_bytes }).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::near;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const CHUNK: u64 = 4 * KIB;

    #[test]
    fn the_corrected_table() {
        for (bits, ids, bitmap, receive) in [
            (16, 65_536, 8 * KIB, 256 * MIB),
            (18, 16_384, 32 * KIB, GIB),
            (19, 8_192, 64 * KIB, 2 * GIB),
            (20, 4_096, 128 * KIB, 4 * GIB),
            (21, 2_048, 256 * KIB, 8 * GIB),
            (22, 1_024, 512 * KIB, 16 * GIB),
            (23, 512, MIB, 32 * GIB),
            (24, 256, 2 * MIB, 64 * GIB),
            (25, 128, 4 * MIB, 128 * GIB),
            (26, 64, 8 * MIB, 256 * GIB),
            (32, 1, 512 * MIB, 16 << 40),
        ] {
            assert_eq!((collective_ids(bits), bitmap_bytes(bits), receive_bytes(bits, CHUNK)), (ids, bitmap, receive));
            assert_eq!(psn_bits(receive, CHUNK), Some(bits));
            assert_eq!((tracked_bytes(bitmap, CHUNK), used_bytes(receive, CHUNK)), (receive, bitmap));
        }
        // The memories of GPUs, and what they use of the bitmap.
        assert_eq!((psn_bits(80 * GIB, CHUNK), used_bytes(80 * GIB, CHUNK)), (Some(25), 5 * MIB / 2));
        assert_eq!((psn_bits(141 * GIB, CHUNK), used_bytes(141 * GIB, CHUNK)), (Some(26), 141 * MIB / 32));
        // 64 KiB track 16 GiB only with chunks of 32 KiB.
        assert_eq!(receive_bytes(19, 32 * KIB), 16 * GIB);
    }

    #[test]
    fn a_bitmap_that_fills_the_last_level_cache() {
        near(tracked_bytes(1_500_000, CHUNK) as f64, 49.2e9, 0.1e9);
        assert_eq!(tracked_bytes(3 * MIB / 2, CHUNK), 48 * GIB);
        near(48.0 * GIB as f64, 51.5e9, 0.1e9);
        assert_eq!(psn_bits(48 * GIB, CHUNK), Some(24), "which leaves 256 ids");
        assert!(bitmap_bytes(23) <= 1_500_000 && bitmap_bytes(24) > 3 * MIB / 2);
    }

    #[test]
    fn limits() {
        assert_eq!((psn_bits(0, CHUNK), psn_bits(1, CHUNK), psn_bits(CHUNK + 1, CHUNK)), (Some(0), Some(0), Some(1)));
        assert_eq!((psn_bits(1 << 45, CHUNK), psn_bits(9, 0)), (None, None));
        assert_eq!((bitmap_bytes(0), bitmap_bytes(99), collective_ids(99)), (1, 512 * MIB, 1));
        assert_eq!(tracked_bytes(u64::MAX, CHUNK), u64::MAX);
    }
}
