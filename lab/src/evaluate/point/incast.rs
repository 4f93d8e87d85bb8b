//! Runs of many sources with blocks for one host, on the fabric alone.

use serde::Serialize;

use super::text;
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::IncastSweep;
use crate::incast::{self, Incast};

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IncastPoint {
    sources: u32,
    bytes: u64,
    /// 0: all write.
    reads: u32,
}

impl IncastPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &IncastSweep) -> Vec<Self> {
        let mut points = Vec::new();
        for &sources in &sweep.sources {
            for &bytes in &sweep.bytes {
                points.extend(sweep.reads.iter().map(|&reads| Self { sources, bytes, reads }));
            }
        }
        points
    }

    pub(super) fn weight(&self) -> u64 {
        u64::from(self.sources) * (self.bytes >> 12)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (64 << 20) + 1024 * self.weight()
    }

    pub(super) fn command(&self) -> String {
        "flexcast report --only service-alltoallv".to_owned()
    }

    pub(super) fn asked(&self) -> Row {
        let way = if self.reads == 0 { "writes" } else { "reads" };
        Row::new(Kind::Emulated, "none: the fabric alone")
            .with("way", way)
            .with("sources", self.sources)
            .with("bytes", self.bytes)
            .with("active_reads", self.reads)
    }

    pub(super) fn run(&self) -> Result<Row, String> {
        let Self { sources, bytes, reads } = *self;
        let reads = (reads > 0).then_some(reads);
        let found = incast::run(&Incast { sources, bytes, reads }).map_err(text)?;
        Ok(self
            .asked()
            .with("blocks_us", found.blocks_ps as f64 / 1e6)
            .with("flow_us", found.flow_ps as f64 / 1e6)
            .with("flow_over_alone", found.flow_ps as f64 / found.flow_alone_ps as f64))
    }
}
