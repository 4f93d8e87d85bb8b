//! DPA threads and cores that keep up with a link. A DPA core issues one instruction per cycle; its threads take turns.
//!
//! Published for one thread: 598 cycles and 66 instructions per completion with UC, 1084 and 113 with UD. The published
//! throughputs (11.9 and 5.2 GiB/s) do not follow from those cycles (11.5 and 6.3), so threads are given by either.

/// Clock of the DPA in Hz.
pub const DPA_HZ: f64 = 1.8e9;

/// Chunks per second at a line rate.
#[must_use]
pub fn chunks_per_s(gbit_per_s: f64, chunk_bytes: u64) -> f64 {
    gbit_per_s * 1e9 / 8.0 / chunk_bytes as f64
}

/// Cycles between two chunks.
#[must_use]
pub fn cycles_per_chunk(gbit_per_s: f64, chunk_bytes: u64) -> f64 {
    DPA_HZ / chunks_per_s(gbit_per_s, chunk_bytes)
}

/// Threads for a line rate, by the cycles of one completion; to be rounded up.
#[must_use]
pub fn threads_by_cycles(chunks_per_s: f64, cycles_per_completion: f64) -> f64 {
    chunks_per_s * cycles_per_completion / DPA_HZ
}

/// Threads for a line rate, by the throughput of one in GiB/s.
#[must_use]
pub fn threads_by_throughput(gbit_per_s: f64, thread_gib_per_s: f64) -> f64 {
    gbit_per_s * 1e9 / 8.0 / (thread_gib_per_s * f64::from(1 << 30))
}

/// Throughput of one thread in GiB/s, by the cycles of one completion.
#[must_use]
pub fn thread_gib_per_s(cycles_per_completion: f64, chunk_bytes: u64) -> f64 {
    DPA_HZ / cycles_per_completion * chunk_bytes as f64 / f64::from(1 << 30)
}

/// Completions per second that a core can issue the instructions of, however many threads it runs.
#[must_use]
pub fn core_completions_per_s(instructions_per_completion: f64) -> f64 {
    DPA_HZ / instructions_per_completion
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::near;

    #[test]
    fn threads_for_200_gbit_per_s() {
        let rate = chunks_per_s(200.0, 4096);
        near(rate, 6.10e6, 0.005e6);
        near(cycles_per_chunk(200.0, 4096), 295.0, 0.5);
        near(threads_by_cycles(rate, 598.0), 2.0, 0.05);
        near(threads_by_cycles(rate, 1084.0), 3.7, 0.05);
        near(threads_by_throughput(200.0, 5.2), 4.5, 0.05);
        near(thread_gib_per_s(598.0, 4096), 11.48, 0.005);
        near(thread_gib_per_s(1084.0, 4096), 6.33, 0.005);
    }

    #[test]
    fn threads_for_the_chunk_rate_of_1600_gbit_per_s() {
        let rate = chunks_per_s(1600.0, 4096);
        near(rate, 48.83e6, 0.005e6);
        near(threads_by_cycles(rate, 1084.0).ceil(), 30.0, 0.0);
        near(threads_by_cycles(rate, 598.0).ceil(), 17.0, 0.0);
        near(rate / core_completions_per_s(113.0), 3.1, 0.05);
        near(rate / core_completions_per_s(66.0), 1.8, 0.05);
    }
}
