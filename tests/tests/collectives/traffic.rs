//! Traffic of collectives without multicast on the fat tree of 188 hosts: counters of all switch ports equal the cost
//! model, byte for byte, and their ratios to multicast are the published ones.

use std::time::Instant;

use emu_machine::fabric::{NetworkTotals, Topology};
use emu_machine::{Config, NetworkConfig, Wiring};
use flexcast::p2p::algorithm::{Allgather, Blocks, Broadcast, Operation};
use flexcast::p2p::{self, ANNOUNCEMENT_BYTES, Buffer, Error};
use flexcast_lab::model::fabric::{FatTree, Placement};
use flexcast_lab::model::traffic::{announcements, multicast, point_to_point};
use flexcast_tests::harness::is_long;
use flexcast_tests::ranks::{Ranks, bytes_of, network_totals, with_ranks};

const RANKS: u32 = 188;

fn tree() -> FatTree {
    FatTree::new(RANKS, 12, 1).expect("a tree")
}

/// 188 cards on the tree, their ranks placed.
fn machine(placement: Placement) -> Config {
    let hosts = tree().hosts(placement).into_iter().map(|host| host as usize).collect();
    let network = NetworkConfig { hosts, ..NetworkConfig::new(Topology::named("fat-tree-188").expect("a preset")) };
    Config { cards: RANKS as usize, wiring: Wiring::Network(Box::new(network)), ..Config::default() }
}

fn since(before: &NetworkTotals) -> [u64; 2] {
    let now = network_totals();
    [
        now.switches.payload_bytes() - before.switches.payload_bytes(),
        now.hosts.tx_payload_bytes - before.hosts.tx_payload_bytes,
    ]
}

/// Runs `start` on all ranks and gives payload bytes at the switches' ports, without announcements: exactly what the
/// model says.
fn measure(
    ranks: &mut Ranks<'_>,
    placement: Placement,
    operation: Operation,
    blocks: &Blocks<'_>,
    start: impl FnOnce(&mut Ranks<'_>) -> Result<(), Error>,
) -> Result<u64, Error> {
    ranks.greet()?;
    let before = network_totals();
    start(ranks)?;
    ranks.finish()?;
    let [ports, sent] = since(&before);
    let data = point_to_point(tree(), placement, operation, blocks).expect("a schedule");
    let control = announcements(tree(), placement, operation, ANNOUNCEMENT_BYTES.into()).expect("a schedule");
    assert_eq!(sent, data.sent_bytes + control.sent_bytes, "{operation:?}: sent by cards");
    assert_eq!(ports, data.port_bytes + control.port_bytes, "{operation:?}: received and sent by switches");
    Ok(ports - control.port_bytes)
}

/// An Allgather of 188 contributions, as a multiple of 188 multicasts.
fn allgather(algorithm: Allgather, placement: Placement, len: usize) -> f64 {
    let operation = Operation::Allgather(algorithm);
    let blocks = Blocks::equal(len as u64, RANKS).and_then(|blocks| algorithm.blocks(blocks)).expect("blocks");
    let own = |rank: usize| -> Vec<u8> { (0..len).map(|index| (rank * 7 + index) as u8).collect() };
    let bytes = with_ranks(machine(placement), &[operation], p2p::Config::default(), |ranks| {
        let mut regions = Vec::new();
        for rank in 0..RANKS as usize {
            let region = ranks.memory(rank, len * RANKS as usize, &[])?;
            region.write(rank * len, &own(rank))?;
            regions.push(region);
        }
        let bytes = measure(ranks, placement, operation, &blocks, |ranks| {
            ranks.groups.iter_mut().zip(&regions).try_for_each(|(group, region)| {
                group.allgather(algorithm, Blocks::equal(len as u64, RANKS)?, None, Buffer { region, offset: 0 })
            })
        })?;
        let expected: Vec<u8> = (0..RANKS as usize).flat_map(own).collect();
        for (rank, region) in regions.iter().enumerate() {
            assert!(bytes_of(region, expected.len()) == expected, "{algorithm:?}: rank {rank}");
        }
        Ok(bytes)
    });
    bytes.expect("the Allgather completes") as f64
        / (u64::from(RANKS) * multicast(tree(), len as u64).port_bytes) as f64
}

#[test]
fn a_ring_of_188_loads_switches_as_the_model_says() {
    let started = Instant::now();
    assert_eq!(format!("{:.3}", allgather(Allgather::Ring, Placement::Contiguous, 4096)), "1.989");
    if is_long() {
        assert_eq!(format!("{:.2}", allgather(Allgather::Ring, Placement::Strided, 4096)), "5.29");
    }
    eprintln!("rings of {RANKS} ranks: {:?} (measured)", started.elapsed());
}

#[test]
fn other_allgathers_of_188_load_switches_as_the_model_says() {
    let started = Instant::now();
    let pipelined = Allgather::PipelinedRing { segments: 2 };
    assert_eq!(format!("{:.3}", allgather(pipelined, Placement::Contiguous, 4096)), "1.989");
    eprintln!("a pipelined ring of {RANKS} ranks: {:?} (measured)", started.elapsed());
    for algorithm in [Allgather::RecursiveDoubling, Allgather::Bruck] {
        let started = Instant::now();
        let placements = [Placement::Strided, Placement::Contiguous];
        for placement in placements.into_iter().take(if is_long() { 2 } else { 1 }) {
            let ratio = allgather(algorithm, placement, 1000);
            assert!(ratio > 2.0, "{algorithm:?}, {placement:?}: {ratio}");
        }
        eprintln!("{algorithm:?} of {RANKS} ranks: {:?} (measured)", started.elapsed());
    }
}

#[test]
fn broadcasts_to_188_load_switches_as_the_model_says() {
    // About 64 KiB, in equal shares.
    let (bytes, segment) = (348 * u64::from(RANKS), 16_384);
    let message: Vec<u8> = (0..bytes).map(|index| (index * 31 / 7) as u8).collect();
    let started = Instant::now();
    let all = [
        (Broadcast::ScatterAllgather, "2.06"),
        (Broadcast::BINOMIAL, "2.20"),
        (Broadcast::Heap, "5.01"),
        (Broadcast::Chain, "1.97"),
        (Broadcast::Knomial { radix: 4 }, "2.31"),
        (Broadcast::InOrder, "2.31"),
    ];
    for (algorithm, published) in all.into_iter().take(if is_long() { 6 } else { 3 }) {
        let blocks = algorithm.blocks(bytes, segment, RANKS).expect("segments");
        let operation = Operation::Broadcast { algorithm, root: 0, blocks: blocks.count() };
        let ports = with_ranks(machine(Placement::Contiguous), &[operation], p2p::Config::default(), |ranks| {
            let regions = (0..RANKS as usize)
                .map(|rank| ranks.memory(rank, bytes as usize, if rank == 0 { &message } else { &[] }))
                .collect::<Result<Vec<_>, Error>>()?;
            let ports = measure(ranks, Placement::Contiguous, operation, &blocks, |ranks| {
                ranks.groups.iter_mut().zip(&regions).try_for_each(|(group, region)| {
                    group.broadcast(algorithm, 0, bytes, segment, Buffer { region, offset: 0 })
                })
            })?;
            for (rank, region) in regions.iter().enumerate() {
                assert!(bytes_of(region, message.len()) == message, "{algorithm:?}: rank {rank}");
            }
            Ok(ports)
        })
        .expect("the Broadcast completes");
        let ratio = ports as f64 / multicast(tree(), bytes).port_bytes as f64;
        assert_eq!(format!("{ratio:.2}"), published, "{algorithm:?}");
    }
    eprintln!("Broadcasts to {RANKS} ranks: {:?} (measured)", started.elapsed());
}
