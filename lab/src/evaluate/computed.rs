//! Rows of closed forms: [`crate::model`], tabulated.

use crate::model::fabric::{FatTree, Placement};
use crate::model::{bitmap, concurrent, rate, sparse, traffic};
use clap::ValueEnum as _;
use flexcast::p2p::algorithm::{Allgather, Operation};
use flexcast_proto::p2p::Blocks;

use super::row::{Kind, Row};
use super::spec::{Computed, Handler};
use crate::sim::algorithm::{Algorithm, AlgorithmName, Parameters};
use crate::sim::params::Operation as Collective;

/// The rows of a closed form.
///
/// # Errors
/// Parameters for which there is none.
pub fn rows(form: &Computed) -> Result<Vec<Row>, String> {
    match form {
        Computed::AllgatherTraffic { ranks, radix } => allgather_traffic(ranks, *radix),
        Computed::PortTraffic { ranks, leaves, bytes, algorithms } => port_traffic(*ranks, *leaves, *bytes, algorithms),
        Computed::Concurrent { ranks, bytes, gbit_per_s } => {
            Ok(ranks.iter().map(|&ranks| both(ranks, *bytes, *gbit_per_s)).collect())
        }
        Computed::Bitmap { psn_bits, chunk_bytes } => Ok(psn_bits
            .iter()
            .map(|&bits| {
                Row::new(Kind::Computed, "one bit per chunk")
                    .with("psn_bits", bits)
                    .with("collective_ids", bitmap::collective_ids(bits))
                    .with("bitmap_kib", bitmap::bitmap_bytes(bits) as f64 / 1024.0)
                    .with("receive_gib", bitmap::receive_bytes(bits, *chunk_bytes) as f64 / f64::from(1 << 30))
            })
            .collect()),
        Computed::SparseBounds { workers, mib, sparsity_percent, gbit_per_s, memory_gb_per_s } => {
            let each = |&workers: &u32| {
                sparsity_percent
                    .iter()
                    .flat_map(move |&percent| sparse_bounds(workers, mib << 20, percent, *gbit_per_s, *memory_gb_per_s))
            };
            Ok(workers.iter().flat_map(each).collect())
        }
        Computed::ThreadsForLink { gbit_per_s, chunk_bytes, handlers } => Ok(gbit_per_s
            .iter()
            .flat_map(|&gbit| handlers.iter().map(move |handler| threads(gbit, *chunk_bytes, handler)))
            .collect()),
    }
}

fn threads(gbit_per_s: u32, chunk_bytes: u64, handler: &Handler) -> Row {
    let chunks = rate::chunks_per_s(gbit_per_s.into(), chunk_bytes);
    Row::new(Kind::Computed, "threads × clock ÷ cycles, published costs")
        .with("transport", handler.transport.as_str())
        .with("link_gbit_s", gbit_per_s)
        .with("chunks_m_s", chunks / 1e6)
        .with("threads_by_latency", rate::threads_by_cycles(chunks, handler.cycles))
        .with("cores_by_issue", chunks / rate::core_completions_per_s(handler.instructions))
}

fn sparse_bounds(workers: u32, bytes: u64, sparsity_percent: f64, gbit_per_s: f64, memory_gb_per_s: f64) -> [Row; 3] {
    let sparsity = sparsity_percent / 100.0;
    let independent = sparse::independent_union(sparsity, workers);
    let row = |by: &str, pattern: &str, seconds: f64| {
        Row::new(Kind::Computed, "bytes ÷ rate")
            .with("by", by)
            .with("workers", workers)
            .with("mib", bytes >> 20)
            .with("pattern", pattern)
            .with("sparsity_percent", sparsity_percent)
            .with("time_us", seconds * 1e6)
    };
    [
        row("network bound", "identical", sparse::network_bound_s(bytes, 1.0 - sparsity, gbit_per_s)),
        row("network bound", "independent", sparse::network_bound_s(bytes, independent, gbit_per_s)),
        row("memory bound", "any", sparse::memory_bound_s(bytes, memory_gb_per_s * 1e9)),
    ]
}

fn both(ranks: u32, bytes: u64, gbit_per_s: u64) -> Row {
    let rings = concurrent::ring(bytes, ranks).and(concurrent::ring(bytes, ranks));
    let network =
        concurrent::multicast_allgather(bytes, ranks).and(concurrent::in_network_reduce_scatter(bytes, ranks));
    let (ring_ps, network_ps) = (rings.time_ps(gbit_per_s), network.time_ps(gbit_per_s));
    Row::new(Kind::Computed, "bytes through each card ÷ its rate")
        .with("ranks", ranks)
        .with("ring_card_mib", rings.sent as f64 / f64::from(1 << 20))
        .with("offloaded_card_mib", network.sent as f64 / f64::from(1 << 20))
        .with("ring_us", ring_ps as f64 / 1e6)
        .with("offloaded_us", network_ps as f64 / 1e6)
        .with("speedup", ring_ps as f64 / network_ps.max(1) as f64)
        .with("two_less_two_over_p", concurrent::speedup(ranks))
}

fn allgather_traffic(ranks: &[u32], radix: u32) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for &count in ranks {
        let tree = FatTree::smallest(radix, count).map_err(|error| error.to_string())?;
        let multicast = traffic::multicast_allgather_links(tree) as f64;
        let blocks = Blocks::equal(1, count).map_err(|error| error.to_string())?;
        for (name, algorithm) in [
            ("ring", Allgather::Ring),
            ("linear", Allgather::Linear),
            ("recursive-doubling", Allgather::RecursiveDoubling),
        ] {
            let operation = Operation::Allgather(algorithm);
            let carried = traffic::point_to_point(tree, Placement::Contiguous, operation, &blocks)
                .map_err(|error| error.to_string())?;
            rows.push(
                Row::new(Kind::Computed, "messages followed along their paths")
                    .with("algorithm", name)
                    .with("ranks", count)
                    .with("links", carried.link_bytes)
                    .with("over_multicast", carried.link_bytes as f64 / multicast),
            );
        }
    }
    Ok(rows)
}

fn port_traffic(ranks: u32, leaves: u32, bytes: u64, algorithms: &[String]) -> Result<Vec<Row>, String> {
    let tree = FatTree::new(ranks, leaves, 1).map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    for name in algorithms {
        let known = AlgorithmName::from_str(name, false).map_err(|_| format!("no algorithm is called {name:?}"))?;
        // Each name is of a Broadcast or of an Allgather.
        let algorithm = [Collective::Broadcast, Collective::Allgather]
            .into_iter()
            .find_map(|operation| Algorithm::new(operation, Some(known), Parameters::default()).ok())
            .ok_or_else(|| format!("{name:?} is neither a Broadcast nor an Allgather"))?;
        let schedule = algorithm.schedule(0, bytes, ranks).map_err(|error| error.to_string())?;
        let one = traffic::multicast(tree, bytes).port_bytes;
        let (operation, carried, base) = match schedule {
            None => continue,
            Some(schedule @ Operation::Broadcast { algorithm, .. }) => {
                let segment = crate::sim::algorithm::DEFAULT_SEGMENT_BYTES;
                let blocks = algorithm.blocks(bytes, segment, ranks).map_err(|error| error.to_string())?;
                ("broadcast", traffic::point_to_point(tree, Placement::Contiguous, schedule, &blocks), one)
            }
            Some(schedule) => {
                let blocks = Blocks::equal(bytes, ranks).map_err(|error| error.to_string())?;
                let base = one * u64::from(ranks);
                ("allgather", traffic::point_to_point(tree, Placement::Contiguous, schedule, &blocks), base)
            }
        };
        let carried = carried.map_err(|error| error.to_string())?;
        rows.push(
            Row::new(Kind::Computed, "messages followed along their paths")
                .with("operation", operation)
                .with("algorithm", name.as_str())
                .with("ranks", ranks)
                .with("bytes", bytes)
                .with("switch_bytes", carried.port_bytes)
                .with("over_multicast", carried.port_bytes as f64 / base as f64),
        );
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(rows: &[Row], filter: &str, column: &str) -> f64 {
        let filter = filter.parse().unwrap();
        rows.iter().find(|row| row.fits(&filter)).and_then(|row| row.number(column)).unwrap()
    }

    #[test]
    fn published_check_values() {
        let traffic = rows(&Computed::AllgatherTraffic { ranks: vec![2, 1024], radix: 32 }).unwrap();
        assert!((value(&traffic, "ranks = 1024\nalgorithm = \"ring\"", "over_multicast") - 1.998).abs() < 0.0005);
        assert!((value(&traffic, "ranks = 1024\nalgorithm = \"linear\"", "over_multicast") - 5.126).abs() < 0.0005);
        let both = rows(&Computed::Concurrent { ranks: vec![16], bytes: 8 << 20, gbit_per_s: 200 }).unwrap();
        assert!((value(&both, "ranks = 16", "speedup") - 1.875).abs() < 1e-6);
        let bitmaps = rows(&Computed::Bitmap { psn_bits: vec![19], chunk_bytes: 4096 }).unwrap();
        assert_eq!((value(&bitmaps, "", "bitmap_kib"), value(&bitmaps, "", "receive_gib")), (64.0, 2.0));
        let names = ["chain", "ring", "heap"].map(str::to_owned).to_vec();
        let ports =
            rows(&Computed::PortTraffic { ranks: 188, leaves: 12, bytes: 188 * 64, algorithms: names }).unwrap();
        assert!((value(&ports, "algorithm = \"ring\"", "over_multicast") - 1.989).abs() < 0.0005);
        assert!((value(&ports, "algorithm = \"heap\"", "over_multicast") - 5.01).abs() < 0.005);
        let handlers = vec![Handler { transport: "uc".to_owned(), cycles: 598.0, instructions: 66.0 }];
        let links =
            rows(&Computed::ThreadsForLink { gbit_per_s: vec![200, 1600], chunk_bytes: 4096, handlers }).unwrap();
        assert!((value(&links, "link_gbit_s = 1600", "threads_by_latency") - 16.2).abs() < 0.05);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(rows(&Computed::AllgatherTraffic { ranks: vec![0], radix: 32 }).is_err());
        let form = Computed::PortTraffic { ranks: 8, leaves: 2, bytes: 64, algorithms: vec!["rign".to_owned()] };
        assert!(rows(&form).unwrap_err().contains("rign"));
    }
}
