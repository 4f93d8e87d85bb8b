//! Side draws of one seed in four: several communicators, splits, places of the bytes, all topologies, queues at their
//! edges, timeouts, links of unequal rate, and troubles of which two may come at once.
//!
//! Shape, operation and transport are those that the seed has anyway. The network and what goes wrong are drawn anew
//! from a sequence of their own, so that the other seeds are what they were without this.

use std::time::Duration;

use emu_machine::fabric::{
    Direction, FatTree, Fault, FaultEvent, FaultScript, FlowControl, Forwarding, LinkConfig, Priorities, Rate, Routing,
    SwitchConfig, Topology,
};
use emu_machine::{NetworkConfig, Wiring};
use flexcast::Transport;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::random::{Case, Expected, FIRST_UNIT, PS_PER_US, fault, pick};
use crate::sim::algorithm::Algorithm;
use crate::sim::params::{HostFault, Operation, SimParams};
use crate::sim::side::Side;
use crate::sim::skew::PostSkew;

/// Makes another sequence of a seed.
const SIDE_SEED: u64 = 0x51DE_0B75;
/// Most ranks of all communicators together, so that a case takes seconds.
const MOST_SEATS: u32 = 64;
/// Bytes of a data packet at most.
const MTU_BYTES: u64 = 4096;
/// Longest that a link is down: less than the tries of a reliable connection take at the shortest timeout that is
/// drawn.
const MOST_DOWN_US: u64 = 2_000;

/// Whether a seed has side draws.
pub(super) fn has(seed: u64) -> bool {
    ChaCha8Rng::seed_from_u64(seed ^ SIDE_SEED).random_ratio(1, 4)
}

/// Redraws a case of such a seed. One without multicast stays as it is.
pub(super) fn draw(case: &mut Case) {
    if !has(case.seed) || case.params.algorithm != Algorithm::Multicast {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(case.seed ^ SIDE_SEED);
    random.set_stream(1);
    let random = &mut random;
    let params = &mut case.params;
    params.host_faults.clear();
    (case.expected, case.expected_further) = (Expected::Right, Expected::Right);
    operations(random, params);
    configuration(random, params);
    let (topology, switching) = network(random, params.cards());
    let topology = unequal(random, topology, params);
    // A buffer of no bytes is not drawn, nor a latency.
    let topology = topology.with_switching(switching).unwrap_or_else(|_| unreachable!("these switches can be"));
    let mut script = FaultScript { seed: case.seed, ..FaultScript::default() };
    let kinds = match random.random_range(0..3) {
        0 => vec![],
        1 => vec![pick(random, &Trouble::ALL)],
        _ => {
            let first = pick(random, &Trouble::ALL);
            let others: Vec<Trouble> = Trouble::ALL.into_iter().filter(|kind| *kind != first).collect();
            vec![first, pick(random, &others)]
        }
    };
    for kind in &kinds {
        kind.draw(random, &topology, case, &mut script);
    }
    case.troubles = kinds;
    case.faults = script.faults.iter().map(|event| format!("{event:?}")).collect();
    case.machine.wiring = Wiring::Network(Box::new(NetworkConfig { topology, faults: script, hosts: Vec::new() }));
}

/// Communicators, and places of the bytes.
fn operations(random: &mut ChaCha8Rng, params: &mut SimParams) {
    let gathers = params.operation != Operation::Broadcast;
    let split = (params.ranks >= 2 && random.random_ratio(1, 3)).then(|| random.random_range(1..=params.ranks / 2));
    params.side = Side {
        communicators: pick(random, &[1, 1, 2, 3]),
        split: split.map(|colours| colours.min(3)),
        in_place: gathers && random.random_ratio(1, 3),
        gap: pick(random, &[None, Some(0), Some(1), Some(64), Some(1000)])
            .filter(|_| params.operation == Operation::Allgatherv),
        user_memory: random.random_ratio(1, 3),
    };
    let most = (MOST_SEATS / params.ranks).max(1);
    params.side.communicators = params.side.communicators.min(most);
    if most == 1 {
        params.side.split = None;
    }
    params.warm_up = random.random_range(0..=2);
    params.skew = PostSkew::of_us(pick(random, &[0, 0, 5, 50, 1000]));
}

/// Queues at the edges of what is legal, and timeouts.
fn configuration(random: &mut ChaCha8Rng, params: &mut SimParams) {
    let mut config = params.config.clone().cache_bytes(1 << 30);
    if random.random_ratio(1, 2) {
        // The deepest rings take the memory of small groups of one subgroup alone.
        let is_small = params.ranks <= 4 && config.chunk_bytes <= 1024 && config.transport != Transport::UcUnicast;
        let slots = pick(random, if is_small { &[16, 32, 8192, 8192] } else { &[16, 32, 256] });
        let slots = if config.transport == Transport::UcUnicast { 16 } else { slots };
        let send_batch = pick(random, &[2, 16, 128]);
        let deep = if is_small { 8192 } else { 512 };
        config = config
            .slots(slots)
            .receive_batch(pick(random, &[2, slots / 2]))
            .send_batch(send_batch)
            .send_depth(pick(random, &[2 * send_batch, deep]))
            .budget(pick(random, &[1, 2, u32::MAX]));
        if slots == 8192 {
            config = config.subgroups(1).receive_threads(1).send_threads(1);
        }
    }
    let us = Duration::from_micros;
    // Patience with a connection fits in that with an operation.
    let (barrier_us, recovery_us, exponent) =
        pick(random, &[(20_000, 50_000, 8), (60_000, 50_000, 7), (100_000, 200_000, 9), (1_000_000, 1_000_000, 11)]);
    config.overheads.cutoff_slack = us(pick(random, &[500, 500, 200, 3000]));
    params.config = config
        .barrier_timeout(us(barrier_us))
        .recovery_timeout(us(recovery_us))
        .retry_exponent(exponent)
        .packet_lifetime(us(pick(random, &[100, 1000])))
        .max_receive_bytes(params.most_receive_bytes().max(1));
}

/// A topology for so many cards, and how its switches behave.
fn network(random: &mut ChaCha8Rng, cards: usize) -> (Topology, SwitchConfig) {
    let hosts = cards.max(2);
    let link = LinkConfig::default();
    let tree = |levels, radix, oversubscription, more: u32| {
        let least = (hosts as u32).div_ceil(radix / 2);
        let tree = FatTree { levels, radix, hosts, oversubscription, leaves: Some(least + more) };
        tree.build("small-tree", link)
    };
    let topology = match random.random_range(0..12) {
        0 => Topology::named("fat-tree-1024"),
        1 | 2 => Topology::named("fat-tree-188"),
        3..=5 => tree(2, 16, pick(random, &[1, 3]), random.random_range(0..=3)),
        6..=8 => tree(3, 16, pick(random, &[1, 3]), random.random_range(0..=3)),
        _ if hosts == 2 => Topology::back_to_back(link),
        _ => Topology::one_switch(hosts, link),
    };
    let topology = topology.unwrap_or_else(|error| unreachable!("{hosts} hosts: {error}"));
    let mut switching = SwitchConfig {
        forwarding: pick(random, &[Forwarding::CutThrough, Forwarding::CutThrough, Forwarding::StoreAndForward]),
        priorities: pick(random, &[Priorities::Strict, Priorities::Strict, Priorities::Weighted, Priorities::Shared]),
        ..topology.switching()
    };
    if random.random_ratio(1, 8) {
        switching.routing = Routing::Adaptive;
    }
    if random.random_ratio(1, 8) {
        switching.flow_control = FlowControl::TailDrop;
        switching.buffer_bytes = pick(random, &[switching.buffer_bytes, 64 << 10]);
    }
    (topology, switching)
}

/// Slower links of one or two cards, in a third of the cases; then the communicator is given the slowest rate.
fn unequal(random: &mut ChaCha8Rng, topology: Topology, params: &mut SimParams) -> Topology {
    if !random.random_ratio(1, 3) {
        return topology;
    }
    let mut topology = topology;
    for _ in 0..random.random_range(1..=2) {
        let host = random.random_range(0..params.cards());
        let gbit_per_s = pick(random, &[25, 50, 100]);
        let config = topology.host_link(host).unwrap_or_default();
        if let Ok(rate) = Rate::from_gbps(gbit_per_s)
            && let Ok(slower) = topology.clone().with_host_link(host, LinkConfig { rate, ..config })
        {
            topology = slower;
        }
    }
    let rates = (0..params.cards()).filter_map(|host| Some(topology.host_link(host)?.rate.gbit_per_s()));
    params.config.link_gbit_per_s = rates.min().unwrap_or_default();
    topology
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// A card's frames are lost before a switch copies them: all ranks lack the same chunks.
    SameChunks,
    /// The last data frames of a card's operation are lost, on its way out or in.
    LastChunks,
    /// Frames of control messages and fetches are lost, and data.
    Repair,
    /// Any fault of the links of all cards.
    Links,
    /// A rank dies.
    DeadRank,
    /// A thread of a card stands still.
    StalledUnit,
    /// A link goes down and comes back.
    Flap,
    /// One rank's host polls seldom.
    SlowHost,
    /// A receive thread of one rank stands still again and again.
    SlowReceiver,
    /// A rank cancels, or calls something else.
    Call,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::SameChunks,
        Self::LastChunks,
        Self::Repair,
        Self::Links,
        Self::DeadRank,
        Self::StalledUnit,
        Self::Flap,
        Self::SlowHost,
        Self::SlowReceiver,
        Self::Call,
    ];

    fn draw(self, random: &mut ChaCha8Rng, topology: &Topology, case: &mut Case, script: &mut FaultScript) {
        let params = &mut case.params;
        let rank = random.random_range(0..params.ranks);
        let after_ps = random.random_range(0..300) * PS_PER_US;
        let unit = FIRST_UNIT + random.random_range(0..params.config.receive_threads);
        match self {
            Self::SameChunks => {
                let ppm = pick(random, &[5_000, 30_000, 200_000]);
                let lost = match random.random_range(0..2) {
                    0 => Fault::Drop { ppm },
                    _ => Fault::Burst { ppm: ppm / 4, frames: random.random_range(1..=4) },
                };
                script.faults.extend(from_card(topology, params, rank, lost));
            }
            Self::LastChunks => {
                let inwards = random.random_ratio(1, 2);
                let frames = data_frames(params, rank, inwards);
                let operation = u64::from(random.random_range(0..=params.warm_up));
                let count = random.random_range(1..=3).min(frames.max(1));
                let first = (operation + 1) * frames.max(1) - count;
                let out = from_card(topology, params, rank, Fault::Frames { priority: 0, first, count });
                script.faults.extend(out.into_iter().map(|event| if inwards { turned(event) } else { event }));
            }
            Self::Repair => {
                let data = Fault::Drop { ppm: 30_000 };
                script.faults.extend(FaultEvent::towards_hosts(topology, data));
                for _ in 0..random.random_range(1..=4) {
                    let first = random.random_range(0..80);
                    let lost = Fault::Frames { priority: 3, first, count: random.random_range(1..=3) };
                    let rank = random.random_range(0..params.ranks);
                    let out = from_card(topology, params, rank, lost);
                    let inwards = random.random_ratio(1, 2);
                    script.faults.extend(out.into_iter().map(|event| if inwards { turned(event) } else { event }));
                }
            }
            Self::Links => script.faults.extend(FaultEvent::towards_hosts(topology, fault(random))),
            Self::DeadRank => {
                params.host_faults.push(HostFault::Dead { rank, after_ps });
                (case.expected, case.expected_further) = (Expected::RightOrFailed, Expected::RightOrFailed);
            }
            Self::StalledUnit => {
                let for_ps = random.random_range(1..5_000) * PS_PER_US;
                params.host_faults.push(HostFault::Stall { rank, unit, after_ps, for_ps });
            }
            Self::Flap => {
                let at_ps = random.random_range(0..8_000) * PS_PER_US;
                let node = Some(topology.hosts()[params.card_of(rank)].clone());
                let down = FaultEvent { link: None, node, ..FaultEvent::everywhere(Fault::Down) };
                script.faults.push(down.during(at_ps, at_ps + random.random_range(1..=MOST_DOWN_US) * PS_PER_US));
            }
            Self::SlowHost => {
                let every_ps = random.random_range(5..300) * PS_PER_US;
                params.host_faults.push(HostFault::Slow { rank, every_ps });
            }
            Self::SlowReceiver => {
                for _ in 0..random.random_range(2..=4) {
                    let (after_ps, for_ps) = (random.random_range(0..400), random.random_range(20..300));
                    let (after_ps, for_ps) = (after_ps * PS_PER_US, for_ps * PS_PER_US);
                    params.host_faults.push(HostFault::Stall { rank, unit, after_ps, for_ps });
                }
            }
            Self::Call => {
                let is_dead = case.expected != Expected::Right;
                if random.random_ratio(1, 2) {
                    params.host_faults.push(HostFault::Cancel { rank, after_ps });
                    case.expected = Expected::RightOrFailed;
                } else {
                    params.host_faults.push(HostFault::Disagree { rank });
                    // In place it calls with all of its buffer, gaps as well: its own communicator has to have room for
                    // that.
                    let gaps = params.side.gap.filter(|_| params.side.in_place).unwrap_or_default();
                    params.config.max_receive_bytes += gaps * u64::from(params.ranks + 1);
                    // A rank that dies first never calls.
                    case.expected = if is_dead { Expected::RightOrFailed } else { Expected::Failed };
                }
            }
        }
    }
}

/// A fault of a rank's card's link in the direction from the card; of a cable between two cards none.
fn from_card(topology: &Topology, params: &SimParams, rank: u32, fault: Fault) -> Option<FaultEvent> {
    FaultEvent::from_host(topology, params.card_of(rank), fault)
}

/// The same in the other direction.
fn turned(event: FaultEvent) -> FaultEvent {
    let direction = match event.direction {
        Direction::Forward => Direction::Backward,
        Direction::Backward => Direction::Forward,
        Direction::Both => Direction::Both,
    };
    FaultEvent { direction, ..event }
}

/// Data frames of one operation of the first communicator on the link of a rank's card, at a transport that multicasts.
fn data_frames(params: &SimParams, rank: u32, inwards: bool) -> u64 {
    let packet = u64::from(params.config.chunk_bytes).min(MTU_BYTES);
    let own = params.card_of(rank);
    let blocks = (0..).zip(params.counts());
    let crosses = |rank: u32| (params.card_of(rank) == own) != inwards;
    blocks.filter(|(rank, _)| crosses(*rank)).map(|(_, bytes)| bytes.div_ceil(packet)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases() -> Vec<Case> {
        (0..2000).filter(|seed| has(*seed)).map(Case::new).collect()
    }

    #[test]
    fn one_seed_in_four_is_drawn_anew_and_everything_comes_up() {
        let cases = cases();
        assert!((400..600).contains(&cases.len()), "{}", cases.len());
        let comes_up = |what: &str, is: &dyn Fn(&Case) -> bool| {
            let count = cases.iter().filter(|case| is(case)).count();
            assert!((8..cases.len() - 8).contains(&count), "{what}: {count} of {} seeds", cases.len());
        };
        comes_up("communicators", &|case| case.params.side.communicators > 1);
        comes_up("a split", &|case| case.params.side.split.is_some());
        comes_up("in place", &|case| case.params.side.in_place);
        comes_up("displacements", &|case| case.params.side.gap.is_some());
        comes_up("user memory", &|case| case.params.side.user_memory);
        comes_up("the shallowest rings", &|case| case.params.config.slots == 16);
        comes_up("the deepest rings", &|case| case.params.config.slots == 8192);
        comes_up("the largest batches", &|case| case.params.config.send_batch == 128);
        comes_up("patience", &|case| case.params.config.retry_exponent == 11);
        comes_up("unequal rates", &|case| case.params.config.link_gbit_per_s > 0);
        comes_up("two troubles", &|case| case.troubles.len() == 2);
        comes_up("loss and a dead rank", &|case| case.troubles.contains(&Trouble::DeadRank) && !case.faults.is_empty());
        comes_up("nothing wrong", &|case| case.is_orderly());
        for trouble in Trouble::ALL {
            comes_up(&format!("{trouble:?}"), &|case| case.troubles.contains(&trouble));
        }
        let topology = |case: &Case| match &case.machine.wiring {
            Wiring::Network(network) => network.topology.name().to_owned(),
            Wiring::Cable(_) => String::new(),
        };
        for name in ["fat-tree-188", "fat-tree-1024", "small-tree", "switch-", "back-to-back"] {
            comes_up(name, &|case| topology(case).starts_with(name));
        }
    }

    #[test]
    fn what_is_drawn_is_legal() {
        for case in cases() {
            case.params.check().unwrap();
            // Once an Allgatherv of seven ranks without any bytes had too little, whose parts have some.
            let room = case.params.config.max_receive_bytes;
            if case.params.side.in_place
                && case.params.host_faults.iter().any(|fault| matches!(fault, HostFault::Disagree { .. }))
            {
                // Once a rank that calls something else had too little for its own buffer with its gaps.
                let gaps = case.params.side.gap.unwrap_or_default() * u64::from(case.params.ranks + 1);
                assert!(room >= case.params.most_receive_bytes() + gaps);
            }
            assert!(case.params.algorithm != Algorithm::Multicast || room >= case.params.most_receive_bytes());
            let Wiring::Network(network) = &case.machine.wiring else { panic!("a network") };
            network.faults.check(&network.topology).unwrap();
            assert!(network.topology.hosts().len() >= case.params.cards());
        }
    }

    /// Cases that tests name by their seeds.
    #[test]
    fn seeds_of_tests_are_what_they_were() {
        for seed in [2_016_217, 1_001_763, 2_001_630, 2_006_783, 2_012_728, 20_214, 355, 576, 1324] {
            assert!(!has(seed), "{seed}");
        }
    }
}
