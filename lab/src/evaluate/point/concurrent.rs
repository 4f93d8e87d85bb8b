//! Runs of concurrent Allgather and Reduce-Scatter, on the fabric alone.

use emu_machine::fabric::Topology;
use serde::Serialize;

use super::text;
use crate::concurrent;
use crate::evaluate::row::{Kind, Row};
use crate::evaluate::spec::ConcurrentSweep;

/// Parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConcurrentPoint {
    /// Ranks.
    pub ranks: u32,
    /// Bytes of each rank's share.
    pub bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Topology by name.
    pub topology: String,
}

impl ConcurrentPoint {
    /// All runs of a sweep.
    #[must_use]
    pub fn all(sweep: &ConcurrentSweep) -> Vec<Self> {
        let ConcurrentSweep { bytes, chunk_bytes, .. } = *sweep;
        let of = |&ranks: &u32| {
            let topology = sweep.topology.clone().unwrap_or_else(|| format!("switch-{}", ranks.max(2)));
            Self { ranks, bytes, chunk_bytes, topology }
        };
        sweep.ranks.iter().map(of).collect()
    }

    fn chunks(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.ranks) * (self.bytes / self.chunk_bytes.max(1))
    }

    pub(super) fn weight(&self) -> u64 {
        self.chunks() / 8
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // All chunks wait at their hosts at first.
        (64 << 20) + 256 * self.chunks()
    }

    pub(super) fn command(&self) -> String {
        "flexcast report --only concurrent".to_owned()
    }

    /// The columns that say what is run.
    fn parameters(&self, source: &str, topology: &str) -> Row {
        Row::new(Kind::Emulated, source).with("ranks", self.ranks).with("topology", topology).with("bytes", self.bytes)
    }

    pub(super) fn asked(&self) -> Row {
        self.parameters("", &self.topology)
    }

    pub(super) fn run(&self) -> Result<Row, String> {
        let topology = Topology::named(&self.topology).map_err(text)?;
        let found = concurrent::run(&topology, self.ranks as usize, self.bytes, self.chunk_bytes).map_err(text)?;
        Ok(self
            .parameters("none: the fabric alone, hosts send as fast as their links", topology.name())
            .with("ring_card_mib", found.rings_sent_bytes as f64 / f64::from(1 << 20))
            .with("offloaded_card_mib", found.offloaded_sent_bytes as f64 / f64::from(1 << 20))
            .with("ring_us", found.rings_ps as f64 / 1e6)
            .with("offloaded_us", found.offloaded_ps as f64 / 1e6)
            .with("speedup", found.speedup()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_emulated_and_what_cannot_be_is_reported() {
        let sweep = ConcurrentSweep { ranks: vec![2, 4], bytes: 65536, chunk_bytes: 4096, topology: None };
        let points = ConcurrentPoint::all(&sweep);
        let row = points[1].run().unwrap();
        assert_eq!((row.kind, row.get("topology")), (Kind::Emulated, Some(&"switch-4".into())));
        assert!(row.number("speedup").is_some_and(|speedup| (speedup / 1.5 - 1.0).abs() < 0.05), "{row:?}");
        assert!(points[0].weight() < points[1].weight());
        for wrong in [
            ConcurrentPoint { ranks: 1, ..points[0].clone() },
            ConcurrentPoint { chunk_bytes: 0, ..points[0].clone() },
            ConcurrentPoint { topology: "switch".to_owned(), ..points[0].clone() },
        ] {
            assert!(wrong.run().is_err(), "{wrong:?}");
        }
    }
}
