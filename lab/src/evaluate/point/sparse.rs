//! Runs of simulated sparse AllReduces, and of rings on the same ports.

use serde::Serialize;

use super::text;
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::{SparseSweep, SumsBy};
use crate::sparse::{
    ArraysIn, Host, Layout, PatternName, RingKind, SparseParams, SparseReport, fusion, ring, simulate,
};

const MIB: f64 = 1048576.0;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SparsePoint {
    host: Host,
    arrays: ArraysIn,
    by: SumsBy,
    workers: u32,
    aggregators: Layout,
    mib: u64,
    sparsity_percent: f64,
    pattern: PatternName,
    block_bytes: u32,
    blocks_per_message: u32,
    coroutines: u32,
    dca: bool,
}

impl SparsePoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &SparseSweep) -> Vec<Self> {
        let first = Self {
            host: sweep.host,
            arrays: ArraysIn::Host,
            by: SumsBy::Sparse,
            workers: 0,
            aggregators: Layout::Cpu,
            mib: 0,
            sparsity_percent: 0.0,
            pattern: PatternName::Identical,
            block_bytes: 0,
            blocks_per_message: 0,
            coroutines: 0,
            dca: true,
        };
        let all = vec![first];
        let all = vary(&all, &sweep.arrays, |point, arrays| Self { arrays, ..point });
        let all = vary(&all, &sweep.by, |point, by| Self { by, ..point });
        let all = vary(&all, &sweep.workers, |point, workers| Self { workers, ..point });
        let all = vary(&all, &sweep.mib, |point, mib| Self { mib, ..point });
        let all = vary(&all, &sweep.aggregators, |point, aggregators| Self { aggregators, ..point });
        let all = vary(&all, &sweep.pattern, |point, pattern| Self { pattern, ..point });
        let all = vary(&all, &sweep.sparsity_percent, |point, sparsity_percent| Self { sparsity_percent, ..point });
        let all = vary(&all, &sweep.block_bytes, |point, block_bytes| Self { block_bytes, ..point });
        let all =
            vary(&all, &sweep.blocks_per_message, |point, blocks_per_message| Self { blocks_per_message, ..point });
        let all = vary(&all, &sweep.coroutines, |point, coroutines| Self { coroutines, ..point });
        let all = vary(&all, &sweep.dca, |point, dca| Self { dca, ..point });
        let mut points: Vec<Self> = Vec::new();
        for point in all {
            if point.has_aggregators() || !points.iter().any(|other| other.is_same_ring(&point)) {
                points.push(point);
            }
        }
        points
    }

    fn has_aggregators(&self) -> bool {
        matches!(self.by, SumsBy::Sparse | SumsBy::Fusion)
    }

    /// A ring knows neither aggregators nor zeros.
    fn is_same_ring(&self, other: &Self) -> bool {
        (self.by, self.arrays, self.workers, self.mib) == (other.by, other.arrays, other.workers, other.mib)
    }

    fn params(&self) -> SparseParams {
        let base = SparseParams::new(self.host, self.workers, self.aggregators, self.mib << 20);
        SparseParams {
            arrays: self.arrays,
            sparsity: self.sparsity_percent / 100.0,
            pattern: self.pattern,
            block_bytes: self.block_bytes,
            blocks_per_message: self.blocks_per_message,
            coroutines: self.coroutines,
            dca: self.dca,
            ..base
        }
    }

    pub(super) fn weight(&self) -> u64 {
        let message = u64::from(self.block_bytes) * u64::from(self.blocks_per_message);
        (self.mib << 20) / message.max(1) * u64::from(self.workers)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let machines = u64::from(self.workers) * u64::from(self.workers) * 8 * u64::from(self.coroutines);
        (32 << 20) + 2048 * machines
    }

    pub(super) fn command(&self) -> String {
        "flexcast report --only sparse-dense,sparse-zeros,sparse-aggregators,sparse-tuning,sparse-memory".to_owned()
    }

    pub(super) fn asked(&self) -> Row {
        let row = Row::new(Kind::Emulated, &format!("sparse AllReduce, {}", self.host))
            .with("by", self.by.to_string().as_str())
            .with("host", self.host.to_string().as_str())
            .with("arrays", self.arrays.to_string().as_str())
            .with("workers", self.workers)
            .with("mib", self.mib);
        if !self.has_aggregators() {
            return row;
        }
        row.with("aggregators", self.aggregators.to_string().as_str())
            .with("pattern", self.pattern.to_string().as_str())
            .with("sparsity_percent", self.sparsity_percent)
            .with("block_bytes", self.block_bytes)
            .with("blocks_per_message", self.blocks_per_message)
            .with("coroutines", self.coroutines)
            .with("dca", if self.dca { "on" } else { "off" })
    }

    pub(super) fn run(&self) -> Result<Row, String> {
        let params = self.params();
        let kind = match self.by {
            SumsBy::Sparse => return Ok(self.row(&simulate(&params).map_err(text)?)),
            SumsBy::Fusion => return Ok(self.row(&fusion(&params).map_err(text)?)),
            SumsBy::Ring => RingKind::Pipelined,
            SumsBy::RingStepwise => RingKind::Stepwise,
        };
        let found = ring(kind, &params.machine, self.arrays, (self.workers, params.bytes));
        Ok(self
            .asked()
            .with("time_us", found.time_ps as f64 / 1e6)
            .with("effective_gbit_s", params.bytes as f64 * 8000.0 / found.time_ps.max(1) as f64)
            .with("wire_mib", found.wire_bytes as f64 / MIB))
    }

    fn row(&self, found: &SparseReport) -> Row {
        let counts = found.counts;
        let blocks = (counts.blocks_sent * u64::from(self.block_bytes)).max(1);
        let row = self
            .asked()
            .with("time_us", found.time_ps as f64 / 1e6)
            .with("effective_gbit_s", found.effective_gbit_s())
            .with("network_bound_us", found.bounds.network_ps as f64 / 1e6)
            .with("memory_bound_us", found.bounds.memory_ps as f64 / 1e6)
            .with("over_bound", found.over_bound())
            .with("union_blocks", counts.union_blocks)
            .with("iterations", counts.iterations)
            .with("messages", counts.messages)
            .with("wire_mib", counts.wire_bytes as f64 / MIB)
            .with("aggregator_memory_mib", counts.aggregator_memory_bytes as f64 / MIB)
            .with("beyond_cache_per_byte", counts.aggregator_memory_bytes as f64 / blocks as f64);
        match self.params().spots_over_cache() {
            Some(part) => row.with("spots_over_cache", part),
            None => row,
        }
    }
}

/// Each of these points with each of some values.
fn vary<T: Copy>(
    points: &[SparsePoint],
    values: &[T],
    with: impl Fn(SparsePoint, T) -> SparsePoint,
) -> Vec<SparsePoint> {
    points.iter().flat_map(|point| values.iter().map(|value| with(point.clone(), *value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_runs_once_and_rows_have_their_columns() {
        let sweep: SparseSweep = toml::from_str(
            r#"
            by = ["sparse", "ring"]
            workers = [2]
            mib = [1]
            aggregators = ["cpu", "mixed"]
            sparsity_percent = [0.0, 75.0]
            "#,
        )
        .unwrap();
        let points = SparsePoint::all(&sweep);
        assert_eq!(points.len(), 5);
        let rows: Vec<Row> = points.iter().map(|point| point.run().unwrap()).collect();
        assert_eq!(rows[0].number("union_blocks"), Some(1024.0));
        assert!(rows[0].number("over_bound").unwrap() >= 1.0);
        assert_eq!((rows[4].get("by"), rows[4].get("aggregators")), (Some(&"ring".into()), None));
        assert!(rows[4].number("time_us").unwrap() > 0.0);
    }
}
