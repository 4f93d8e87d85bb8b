//! Runs of sparse AllReduces whose aggregators are DPAs: what they move beyond their L2.

use emu_config::Timing;
use emu_machine::timing::Model;
use serde::Serialize;

use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::DpaSumsSweep;
use crate::images::Images;
use crate::sim::params::Operation;
use crate::sim::sparse::{self, SparseArgs, SparseSimReport};
use crate::sim::spec::SimSpec;

/// A run: what `flexcast sim` is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DpaSumsPoint {
    /// What.
    pub spec: SimSpec,
}

const KIB: f64 = 1024.0;
/// Operations before the one that is counted: with six messages of each shard, all entries of all queues have been used
/// then.
const WARM_UP: u32 = 4;

impl DpaSumsPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &DpaSumsSweep) -> Vec<Self> {
        let mut points = Vec::new();
        for &workers in &sweep.workers {
            for &shards in &sweep.shards {
                for &width in &sweep.blocks_per_message {
                    points.push(Self::of((workers, shards, width), sweep.messages));
                }
            }
        }
        points
    }

    /// Dense arrays of so many messages of each shard.
    fn of((workers, shards, width): (u32, u32, u32), messages: u32) -> Self {
        let block = flexcast_proto::sparse::DEFAULT_BLOCK_BYTES;
        let bytes = [shards, width, messages, block].map(u64::from).iter().product::<u64>() * u64::from(workers);
        let aggregators = "dpa".parse().ok();
        let sparse = SparseArgs {
            aggregators,
            sparsity: Some(0.0),
            blocks_per_message: Some(width),
            shards: Some(shards),
            // The runs examine slots for which the cache has no room.
            dpa_cache: Some(u64::MAX),
            ..SparseArgs::default()
        };
        let op = Operation::SparseAllreduce;
        Self {
            spec: SimSpec { ranks: workers, op, bytes, sparse, warm_up: WARM_UP, iterations: 1, ..SimSpec::default() },
        }
    }

    /// The same under a timing model.
    fn timed(&self, timing: &Timing) -> SimSpec {
        let mut spec = self.spec.clone();
        spec.machine.model.clone_from(&timing.model);
        spec.machine.set.clone_from(&timing.set);
        spec
    }

    pub(super) fn weight(&self) -> u64 {
        // A block of 1 KiB is some hundred instructions; a chunk of 4 KiB, the unit of others, some thirty.
        2 * u64::from(self.spec.ranks) * (self.spec.bytes >> 10) * 16
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.spec.ranks) * ((16 << 20) + 3 * self.spec.bytes)
    }

    pub(super) fn command(&self, timing: &Timing) -> String {
        self.timed(timing).command()
    }

    pub(super) fn asked(&self) -> Row {
        self.parameters("")
    }

    fn parameters(&self, model: &str) -> Row {
        let SimSpec { ranks, bytes, sparse, .. } = &self.spec;
        Row::new(Kind::Emulated, model)
            .with("by", "dpa")
            .with("workers", *ranks)
            .with("bytes", *bytes)
            .with("shards_of_each", sparse.shards.unwrap_or_default())
            .with("blocks_per_message", sparse.blocks_per_message.unwrap_or_default())
    }

    pub(super) fn run(&self, images: &Images, timing: &Timing) -> Result<Row, String> {
        let (params, machine) = self.timed(timing).sparse().map_err(|error| error.to_string())?;
        let config = machine.config_of(params.cards()).map_err(|error| error.to_string())?;
        let cache_bytes = match &config.timing {
            Some(parameters) => Some(Model::new(parameters).map_err(|error| error.to_string())?.l2.0),
            None => None,
        };
        let provider = emu_provider::emulated(config).map_err(|error| error.to_string())?;
        let image = images.read("sparse").map_err(|error| error.to_string())?;
        let report = sparse::run(&provider, Some(&image), &params, &mut |_| {}).map_err(|error| error.to_string())?;
        if !report.is_right() {
            return Err(format!("wrong sums or numbers of messages: {report}"));
        }
        Ok(self.row(&report, cache_bytes))
    }

    fn row(&self, report: &SparseSimReport, cache_bytes: Option<u64>) -> Row {
        let (spots, came) = (report.aggregator_memory_bytes.unwrap_or_default(), report.contributed_blocks);
        let row = self
            .parameters(&report.model)
            .with("time_us", report.virtual_time_us)
            .with("spots_kib", spots as f64 / KIB)
            .with("blocks_mib", (came * u64::from(report.block_bytes)) as f64 / (KIB * KIB));
        match (report.beyond_l2_per_byte(), &report.accesses, cache_bytes) {
            (Some(part), Some(accesses), Some(cache_bytes)) => row
                .with("spots_over_cache", spots as f64 / cache_bytes as f64)
                .with("beyond_cache_mib", accesses.all.bytes_beyond_l2() as f64 / (KIB * KIB))
                .with("beyond_cache_per_byte", part),
            // Without a timing model there are no caches.
            _ => row,
        }
    }
}
