//! Total time of the overlap benchmark: compute for as long as the pure operation takes, while it runs.
//!
//! With an overlap o of 1 the operation costs nothing in addition to the computation; without, the total is twice the
//! pure latency.

/// Total time with offload over that of the host, which overlaps nothing: (L_offload / L_host) · (2 - o) / 2.
#[must_use]
pub fn total_ratio(latency_ratio: f64, overlap: f64) -> f64 {
    latency_ratio * (2.0 - overlap) / 2.0
}

/// The ratio of pure latencies behind a ratio of totals.
#[must_use]
pub fn latency_ratio(total_ratio: f64, overlap: f64) -> f64 {
    total_ratio * 2.0 / (2.0 - overlap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::near;

    #[test]
    fn published_savings_imply_latencies() {
        for (overlap, saved, implied) in [(1.0, 0.43, 1.14), (0.62, 0.38, 0.90), (1.0, 0.54, 0.92)] {
            let ratio = latency_ratio(1.0 - saved, overlap);
            near(ratio, implied, 0.005);
            near(total_ratio(ratio, overlap), 1.0 - saved, 1e-12);
        }
        near(total_ratio(1.0, 1.0), 0.5, 0.0);
        near(total_ratio(1.0, 0.0), 1.0, 0.0);
    }
}
