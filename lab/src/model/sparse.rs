//! Sparse AllReduce through an aggregator that adds only blocks which some worker has.

/// Iterations: d blocks each, of the U that are not zero on every worker.
#[must_use]
pub const fn iterations(union_blocks: u64, blocks_per_iteration: u32) -> u64 {
    union_blocks.div_ceil(if blocks_per_iteration == 0 { 1 } else { blocks_per_iteration as u64 })
}

/// Part of the blocks that is not zero on some of n workers, when each has a part s of zeros independently: 1 - s^n.
/// With the same pattern on all it is 1 - s.
#[must_use]
pub fn independent_union(sparsity: f64, workers: u32) -> f64 {
    1.0 - sparsity.powf(f64::from(workers))
}

/// Least time in seconds that the network allows: the part of the array that crosses a link, at its rate. The part is 1
/// - s at every worker, and at the aggregator that of the union.
#[must_use]
pub fn network_bound_s(bytes: u64, part: f64, gbit_per_s: f64) -> f64 {
    bytes as f64 * 8.0 * part / (gbit_per_s * 1e9)
}

/// Least time in seconds that reading the array takes, whatever its zeros.
#[must_use]
pub fn memory_bound_s(bytes: u64, memory_bytes_per_s: f64) -> f64 {
    bytes as f64 / memory_bytes_per_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::near;

    #[test]
    fn published_bounds() {
        let dense = network_bound_s(128 << 20, 1.0, 100.0);
        near(dense, 10.74e-3, 0.005e-3);
        near(dense / network_bound_s(128 << 20, 0.25, 100.0), 4.0, 1e-12);
        near(independent_union(0.75, 6), 0.82, 0.005);
        near(independent_union(0.75, 1), 0.25, 1e-12);
        // Reading 128 MiB at 76.8 GB/s takes 1.75 ms: what no sparsity gets below.
        near(memory_bound_s(128 << 20, 76.8e9), 1.75e-3, 0.005e-3);
        assert_eq!((iterations(0, 16), iterations(16, 16), iterations(17, 16), iterations(3, 0)), (0, 1, 2, 3));
    }
}
