//! Wide draws of one seed in four: larger groups and blocks, warm-up, skew, other trees, timing models, cards driven
//! from their Arm cores, pacing, links that go down for a while, and faults inside the tree.
//!
//! All of it comes from a sequence of its own, so that the other seeds are what they were without it.

use emu_machine::fabric::{FatTree, Fault, FaultEvent, FaultScript, LinkConfig, Node, Topology};
use emu_machine::timing::Parameters;
use emu_machine::{Config as MachineConfig, DrivenFrom, MemoryModel};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::random::{PS_PER_US, fault, pick};
use crate::sim::params::SimParams;
use crate::sim::skew::PostSkew;

/// Makes another sequence of a seed.
const WIDE_SEED: u64 = 0x51DE_CA5E;
/// Longest that a link is down: two tries of a reliable connection, of the eight that it has.
const MOST_DOWN_US: u64 = 2_000;
/// Ports of the switches of small trees.
const RADIX: u32 = 16;

/// The draws of one seed.
#[derive(Debug)]
pub(super) struct Wide {
    random: ChaCha8Rng,
}

impl Wide {
    /// For one seed in four.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ WIDE_SEED);
        random.random_ratio(1, 4).then_some(Self { random })
    }

    /// Widens the operations. Everything that follows from ranks and bytes is still to be drawn.
    pub(super) fn operations(&mut self, params: &mut SimParams) {
        let random = &mut self.random;
        match random.random_range(0..4) {
            0 => {
                params.ranks = random.random_range(18..=48);
                params.root = random.random_range(0..params.ranks);
                params.bytes = params.bytes.min(8_192);
            }
            1 => {
                params.ranks = params.ranks.min(8);
                params.root %= params.ranks;
                params.bytes = random.random_range(40_000..300_000);
            }
            _ => {}
        }
        params.warm_up = random.random_range(0..=2);
        params.skew = PostSkew::of_us(pick(random, &[0, 0, 3, 20, 150]));
    }

    /// Widens the configuration. Where the transport is drawn afterwards, pacing is for datagrams alone.
    pub(super) fn configuration(&mut self, params: &mut SimParams) {
        let random = &mut self.random;
        let pacing = pick(random, &[None, None, Some(10), Some(40), Some(100)]);
        // Queues of many ranks may fill more than the card's cache.
        params.config = params.config.clone().pacing_gbit_per_s(pacing).cache_bytes(8_000_000);
        if random.random_ratio(1, 3) {
            // As many as the library takes by itself.
            params.config.chains = 0;
        }
    }

    /// A tree for so many cards in half of the cases: of two levels, with as many links up as down or a third of them.
    pub(super) fn topology(&mut self, cards: usize) -> Option<Topology> {
        if !self.random.random_ratio(1, 2) {
            return None;
        }
        let oversubscription = pick(&mut self.random, &[1, 3]);
        let least = (cards as u32).div_ceil(RADIX / 2);
        let leaves = self.random.random_range(least..=least + 3);
        let tree = FatTree { levels: 2, radix: RADIX, hosts: cards.max(2), oversubscription, leaves: Some(leaves) };
        tree.build("small-tree", LinkConfig::default()).ok()
    }

    /// Links that go down and come back, and faults between switches.
    pub(super) fn faults(&mut self, topology: &Topology, cards: usize, script: &mut FaultScript) {
        let random = &mut self.random;
        if random.random_ratio(1, 3) {
            let node = topology.hosts()[random.random_range(0..cards)].clone();
            let at_ps = random.random_range(0..10_000) * PS_PER_US;
            let down = FaultEvent { link: None, node: Some(node), ..FaultEvent::everywhere(Fault::Down) };
            script.faults.push(down.during(at_ps, at_ps + random.random_range(1..=MOST_DOWN_US) * PS_PER_US));
        }
        let is_host = |node: Node| matches!(node, Node::Host(_));
        let inner: Vec<&str> = topology
            .cables()
            .iter()
            .filter(|cable| !is_host(cable.a.node) && !is_host(cable.b.node))
            .map(|cable| cable.name.as_str())
            .collect();
        if !inner.is_empty() && random.random_ratio(1, 2) {
            let link = pick(random, &inner);
            let event = FaultEvent::on(link, fault(random));
            script.faults.push(event);
        }
    }

    /// Widens the machine.
    pub(super) fn machine(&mut self, machine: &mut MachineConfig) {
        let random = &mut self.random;
        machine.driven_from = pick(random, &DrivenFrom::ALL);
        // A timing model has strong memory, and no detection of races.
        if machine.memory == MemoryModel::Strong && !machine.detect_races && random.random_ratio(1, 3) {
            machine.timing = Some(Parameters::m2());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::random::Case;

    #[test]
    fn one_seed_in_four_is_wide_and_everything_comes_up() {
        let wide: Vec<Case> = (0..2000).filter(|seed| Wide::of(*seed).is_some()).map(Case::new).collect();
        assert!((400..600).contains(&wide.len()), "{}", wide.len());
        let comes_up = |what: &str, is: &dyn Fn(&Case) -> bool| {
            let count = wide.iter().filter(|case| is(case)).count();
            assert!((10..wide.len() - 10).contains(&count), "{what}: {count} of {} seeds", wide.len());
        };
        comes_up("many ranks", &|case| case.params.ranks > 17);
        comes_up("long blocks", &|case| case.params.bytes > 40_000);
        comes_up("warm-up", &|case| case.params.warm_up > 0);
        comes_up("skew", &|case| case.params.skew.skew_us > 0);
        comes_up("pacing", &|case| case.params.config.pacing_gbit_per_s.is_some());
        comes_up("chains by the library", &|case| case.params.config.chains == 0);
        comes_up("Arm cores", &|case| case.machine.driven_from == DrivenFrom::Arm);
        comes_up("a timing model", &|case| case.machine.timing.is_some());
        comes_up("a link that flaps", &|case| {
            case.faults.iter().any(|fault| fault.contains("Down") && fault.contains("until_ps: Some"))
        });
        comes_up("a fault between switches", &|case| {
            case.faults.iter().any(|fault| fault.contains("leaf") && fault.contains("spine"))
        });
    }

    #[test]
    fn every_number_of_cards_has_a_small_tree() {
        let drawn = (0..4000).filter_map(|seed| {
            let mut wide = Wide::of(seed)?;
            wide.topology(1 + seed as usize % 48).map(|tree| (1 + seed as usize % 48, tree))
        });
        let trees: Vec<(usize, Topology)> = drawn.collect();
        assert!(trees.len() > 400, "half of a quarter of the seeds: {}", trees.len());
        assert!(trees.iter().all(|(cards, tree)| tree.hosts().len() == (*cards).max(2)));
    }
}
