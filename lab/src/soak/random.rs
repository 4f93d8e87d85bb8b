//! Simulations by seed: everything about them is drawn from one number, so that one that fails can be run again.

use std::time::Duration;

use emu_machine::fabric::{Direction, Fault, FaultEvent, FaultScript, Routing, Topology};
use emu_machine::{Config as MachineConfig, MemoryModel, NetworkConfig, Wiring};
use flexcast::p2p::algorithm::Broadcast;
use flexcast::{Config, Control, ThreadPlacement, Transport};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::side::{self, Trouble};
use super::wide::Wide;
use crate::sim::algorithm::{Algorithm, AlgorithmName, Parameters};
use crate::sim::params::{HostFault, Operation, REDUCTION, SimParams};

pub(super) const PS_PER_US: u64 = 1_000_000;
/// First unit that a communicator on a card of its own takes.
pub(super) const FIRST_UNIT: u32 = 1;
/// Longest that a case may take in wall time: twice what the slowest of 20,000 took on a busy computer (seed 91005810:
/// 766 s, measured).
const WALL_LIMIT: Duration = Duration::from_secs(1800);
/// Makes another sequence of a seed.
const EAGER_SEED: u64 = 0xEA6E_12DA;

/// What must come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// Every rank has every byte.
    Right,
    /// Each live rank has every byte, or has failed and says why.
    RightOrFailed,
    /// Every live rank has failed and says why.
    Failed,
}

/// A simulation drawn from a seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// The ranks and what they do.
    pub params: SimParams,
    /// The machine.
    pub machine: MachineConfig,
    /// What must come out.
    pub expected: Expected,
    /// What must come out of communicators other than the first.
    pub expected_further: Expected,
    /// What goes wrong, where that is drawn by kinds.
    pub troubles: Vec<Trouble>,
    /// What is wrong with the network, in words.
    pub faults: Vec<String>,
}

pub(super) fn pick<T: Copy>(random: &mut ChaCha8Rng, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let ranks = random.random_range(2..=17);
        let ranks_per_card = if random.random_ratio(1, 6) { random.random_range(2..=3) } else { 1 };
        let operation = pick(
            &mut random,
            &[Operation::Broadcast, Operation::Allgather, Operation::Allgather, Operation::Allgatherv],
        );
        let subgroups = random.random_range(1..=4);
        let chunk_bytes = pick(&mut random, &[64, 256, 1024, 4096]);
        let bytes = match random.random_range(0..6) {
            0 => 0,
            1 => 1,
            2 => u64::from(chunk_bytes),
            3 => u64::from(chunk_bytes) + 1,
            4 => pick(&mut random, &[7, 61, 127, 1009, 4093, 10_007]),
            _ => random.random_range(0..40_000),
        };
        // Rings too shallow for what is under way lose datagrams for want of a receive: that is one of the faults.
        let slots = pick(&mut random, &[16, 32, 128]);
        let mut params = SimParams {
            ranks,
            ranks_per_card,
            operation,
            algorithm: Algorithm::Multicast,
            bytes,
            root: random.random_range(0..ranks),
            warm_up: 0,
            iterations: random.random_range(1..=3),
            seed,
            wall_limit: Some(WALL_LIMIT),
            ..SimParams::default()
        };
        let mut wide = Wide::of(seed);
        if let Some(wide) = &mut wide {
            wide.operations(&mut params);
        }
        let ranks = params.ranks;
        params.config = Config::default()
            .subgroups(subgroups)
            .receive_threads(random.random_range(1..=subgroups))
            .send_threads(random.random_range(1..=subgroups))
            .placement(pick(&mut random, &[ThreadPlacement::Compact, ThreadPlacement::Spread]))
            .chunk_bytes(chunk_bytes)
            .slots(slots)
            .receive_batch(pick(&mut random, &[2, 4, 8]))
            .send_batch(pick(&mut random, &[2, 4, 16]))
            .send_depth(32)
            .budget(pick(&mut random, &[1, 16, 4096]))
            .chains(random.random_range(1..=ranks))
            .lookahead_chunks(pick(&mut random, &[Some(0), None, Some(1), Some(5)]))
            .max_receive_bytes(params.receive_bytes().max(1))
            .barrier_timeout(Duration::from_micros(20_000))
            .recovery_timeout(Duration::from_micros(50_000))
            .retry_exponent(8)
            .packet_lifetime(Duration::from_micros(100));
        // Drawn separately, so that all else of a seed stays as it was before there were eager operations.
        let mut eager_random = ChaCha8Rng::seed_from_u64(seed ^ EAGER_SEED);
        params.config.eager_bytes = pick(&mut eager_random, &[0, 0, 0, 16 << 10]);
        if let Some(wide) = &mut wide {
            wide.configuration(&mut params);
        }
        let mut expected = Expected::Right;
        let cards = params.cards();
        let hosts = cards.max(2);
        let topology = match random.random_range(0..3) {
            0 => Topology::named("fat-tree-188"),
            _ => Topology::named(&format!("switch-{hosts}")),
        };
        // Both names are known.
        let topology = topology.unwrap_or_else(|_| unreachable!("topologies of these names exist"));
        let other = wide.as_mut().and_then(|wide| wide.topology(cards));
        let topology = other.unwrap_or(topology);
        let mut script = FaultScript { seed, ..FaultScript::default() };
        for _ in 0..random.random_range(0..4) {
            let fault = fault(&mut random);
            if random.random_ratio(1, 3) {
                let names = topology.hosts();
                let event = FaultEvent {
                    link: None,
                    node: Some(names[random.random_range(0..cards)].clone()),
                    direction: Direction::Both,
                    ..FaultEvent::everywhere(fault)
                };
                script.faults.push(event);
            } else {
                script.faults.extend(FaultEvent::towards_hosts(&topology, fault));
            }
        }
        let after_ps = random.random_range(0..200) * PS_PER_US;
        let rank = random.random_range(0..ranks);
        match random.random_range(0..12) {
            0 => {
                params.host_faults.push(HostFault::Dead { rank, after_ps });
                expected = Expected::RightOrFailed;
            }
            1 => {
                let card = (rank / ranks_per_card) as usize;
                let event = FaultEvent {
                    // The first operation begins after a millisecond of setting up.
                    at_ps: random.random_range(0..10_000) * PS_PER_US,
                    link: None,
                    node: Some(topology.hosts()[card].clone()),
                    ..FaultEvent::everywhere(Fault::Down)
                };
                script.faults.push(event);
                expected = Expected::RightOrFailed;
            }
            2 => {
                params.host_faults.push(HostFault::Cancel { rank, after_ps });
                expected = Expected::RightOrFailed;
            }
            3 => {
                params.host_faults.push(HostFault::Disagree { rank });
                expected = Expected::Failed;
            }
            4 | 5 => {
                let unit = FIRST_UNIT + random.random_range(0..params.config.receive_threads);
                let for_ps = random.random_range(1..5_000) * PS_PER_US;
                params.host_faults.push(HostFault::Stall { rank, unit, after_ps, for_ps });
            }
            _ => {}
        }
        if let Some(wide) = &mut wide {
            wide.faults(&topology, cards, &mut script);
        }
        let weak = random.random_ratio(1, 8);
        let detect_races = random.random_ratio(1, 4);
        let transport =
            pick(&mut random, &[Transport::Ud, Transport::Ud, Transport::UcMulticast, Transport::UcUnicast]);
        params.config.transport = transport;
        if transport.is_zero_copy() {
            // The rate of a sender is in the addresses of its datagrams.
            params.config.pacing_gbit_per_s = None;
        }
        if transport.is_zero_copy() && random.random_ratio(1, 2) {
            // Messages of several packets.
            params.config.chunk_bytes = pick(&mut random, &[8192, 16 << 10, 64 << 10]);
        }
        // Drawn last: a seed's case is otherwise the same wherever the protocol runs.
        if random.random_ratio(1, 2) && transport != Transport::UcUnicast {
            params.config.control = Control::Device;
        }
        // Still later, so that the other seeds are what they were without this.
        if random.random_ratio(1, 8) {
            // Nothing but the network happens to these: the DPA has no part in them.
            if !params.host_faults.is_empty() {
                expected = Expected::Right;
            }
            without_multicast(&mut random, &mut params);
        }
        let faults = script.faults.iter().map(|event| format!("{event:?}")).collect();
        let mut machine = MachineConfig {
            cards,
            memory: if weak { MemoryModel::weak(seed) } else { MemoryModel::Strong },
            // The plain ring brings shares again that the scatter still sends on: the same bytes, but two accesses
            // without order.
            detect_races: detect_races && !writes_again(params.algorithm),
            uc_multicast: params.needs_uc_multicast(),
            // What happens to a rank that waits for a dead one does not need a poll every microsecond.
            host_idle_ps: 5 * PS_PER_US,
            wiring: Wiring::Network(Box::new(NetworkConfig { topology, faults: script, hosts: Vec::new() })),
            ..MachineConfig::default()
        };
        if let Some(wide) = &mut wide {
            wide.machine(&mut machine);
        }
        let expected_further = Expected::Right;
        let mut case = Self { seed, params, machine, expected, expected_further, troubles: Vec::new(), faults };
        side::draw(&mut case);
        case
    }

    /// Whether nothing happens to ranks, cards and workers, frames of a flow arrive once and in their order unless they
    /// are lost, and no other communicator's data holds them up on the same cards: then what is fetched has been lost.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        let orderly = |event: &FaultEvent| {
            matches!(
                event.fault,
                Fault::Drop { .. }
                    | Fault::Burst { .. }
                    | Fault::BitErrors { .. }
                    | Fault::Frames { .. }
                    | Fault::Delay { jitter_ps: 0, .. }
            )
        };
        self.params.algorithm == Algorithm::Multicast
            && self.params.host_faults.is_empty()
            && !self.params.side.has_several()
            && match &self.machine.wiring {
                Wiring::Cable(_) => true,
                Wiring::Network(network) => {
                    network.topology.switching().routing == Routing::Ecmp && network.faults.faults.iter().all(orderly)
                }
            }
    }
}

/// Whether ranks get bytes again that they may still be sending.
const fn writes_again(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Broadcast { algorithm: Broadcast::ScatterAllgather, .. })
}

/// Turns a case into one of a collective over reliable connections, with any of their algorithms.
fn without_multicast(random: &mut ChaCha8Rng, params: &mut SimParams) {
    use AlgorithmName as Name;
    let (operation, name) = pick(
        random,
        &[
            (Operation::Alltoall, Name::Pairwise),
            (Operation::Alltoall, Name::Ring),
            (Operation::Alltoall, Name::Linear),
            (Operation::ReduceScatter, Name::Ring),
            (Operation::ReduceScatter, Name::Ring),
            (Operation::Allreduce, Name::Ring),
            (Operation::Allreduce, Name::Tree),
            (Operation::Allgather, Name::Ring),
            (Operation::Allgather, Name::PipelinedRing),
            (Operation::Allgatherv, Name::Linear),
            (Operation::Allgatherv, Name::RecursiveDoubling),
            (Operation::Allgatherv, Name::Bruck),
            (Operation::Broadcast, Name::KNomial),
            (Operation::Broadcast, Name::Binomial),
            (Operation::Broadcast, Name::Heap),
            (Operation::Broadcast, Name::InOrder),
            (Operation::Broadcast, Name::Chain),
            (Operation::Broadcast, Name::ScatterAllgather),
        ],
    );
    params.operation = operation;
    // Each name above is of its operation, and has the parameters that there are without being given any.
    params.algorithm = Algorithm::new(operation, Some(name), Parameters::default())
        .unwrap_or_else(|_| unreachable!("algorithms of these names exist"));
    params.host_faults.clear();
    if operation.reduces() {
        params.bytes -= params.bytes % u64::from(REDUCTION.element_bytes());
    }
}

pub(super) fn fault(random: &mut ChaCha8Rng) -> Fault {
    let ppm = pick(random, &[500, 5_000, 30_000]);
    match random.random_range(0..7) {
        0 => Fault::Drop { ppm },
        // On a quiet link a run of eight frames is all the tries that a control message has.
        1 => Fault::Burst { ppm: ppm / 5, frames: random.random_range(1..=3) },
        2 => Fault::Duplicate { ppm },
        3 => Fault::Reorder { ppm, behind: random.random_range(1..=20) },
        4 => Fault::Delay {
            extra_ps: random.random_range(0..20) * PS_PER_US,
            jitter_ps: random.random_range(0..20) * PS_PER_US,
        },
        5 => Fault::Corrupt { ppm },
        _ => Fault::BitErrors { rate: f64::from(ppm) * 1e-12 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_case() {
        for seed in 0..200 {
            let case = Case::new(seed);
            assert_eq!(case, Case::new(seed));
            case.params.check().unwrap();
        }
    }

    #[test]
    fn one_case_in_eight_is_without_multicast_and_all_their_algorithms_come_up() {
        let drawn = (0..800).map(Case::new).filter(|case| case.params.algorithm != Algorithm::Multicast);
        let names: Vec<_> = drawn.map(|case| (case.params.operation.name(), case.params.algorithm.name())).collect();
        assert!((70..130).contains(&names.len()), "{}", names.len());
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 17, "{names:?}");
    }
}
