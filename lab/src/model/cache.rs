//! Communicators that fit the last-level cache of the DPA: bitmap, context and rings of each.
//!
//! The publication counts bitmap and context alone. The rings of its own 8192-deep queues are ten times as large.

/// Context of a communicator in DPA memory, as published; ours is smaller.
pub const CONTEXT_BYTES: u64 = 16 << 10;
/// Last-level cache of the DPA, as published.
pub const CACHE_BYTES: u64 = 1_500_000;

/// Communicators whose bitmaps, contexts and rings, of so many bytes each, fit.
#[must_use]
pub const fn communicators(cache_bytes: u64, bitmap_bytes: u64, ring_bytes: u64) -> u64 {
    cache_bytes / bitmap_bytes.saturating_add(ring_bytes).saturating_add(CONTEXT_BYTES)
}

/// Bytes of a completion queue's ring: entries of 64 bytes.
#[must_use]
pub const fn completion_ring_bytes(depth: u64) -> u64 {
    depth.saturating_mul(64)
}

/// Bytes of a receive ring: entries of 16 bytes.
#[must_use]
pub const fn receive_ring_bytes(depth: u64) -> u64 {
    depth.saturating_mul(16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bitmap::{bitmap_bytes, receive_bytes};

    #[test]
    fn eighteen_communicators_of_2_gib_or_two_of_16() {
        for (bits, gib, fit, fit_in_mib) in [(19, 2, 18, 19), (22, 16, 2, 2)] {
            assert_eq!(receive_bytes(bits, 4096), gib << 30);
            assert_eq!(communicators(CACHE_BYTES, bitmap_bytes(bits), 0), fit);
            assert_eq!(communicators(3 << 19, bitmap_bytes(bits), 0), fit_in_mib, "1.5 MiB");
        }
        assert_eq!(communicators(CACHE_BYTES, bitmap_bytes(23), 0), 1);
        assert_eq!(communicators(CACHE_BYTES, bitmap_bytes(24), 0), 0);
    }

    #[test]
    fn rings_of_the_published_depth_leave_room_for_two() {
        let rings = completion_ring_bytes(8192) + receive_ring_bytes(8192);
        assert_eq!((completion_ring_bytes(8192), receive_ring_bytes(8192)), (512 << 10, 128 << 10));
        assert_eq!(communicators(CACHE_BYTES, bitmap_bytes(19), rings), 2);
        assert!(16 * rings > 6 * CACHE_BYTES, "sixteen exceed the cache several times");
        assert_eq!(communicators(u64::MAX, u64::MAX, 1), 1, "nothing overflows");
    }
}
