//! Chains of ranks: which multicast side by side, and which one after another.

use flexcast_proto::{MAX_RANKS, Schedule, Turn, turn_in};

use crate::op::chain_mapping::{ChainMapping, table_chains};
use crate::op::config::Config;
use crate::plan::Plan;

/// The turns of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Chains, which all ranks compare.
    pub(crate) chains: u32,
    /// Ranks of the longest chain.
    pub(crate) steps: u32,
    /// The rank's turn; none for a rank that is no root.
    pub(crate) turn: Option<Turn>,
}

/// Who multicasts when in an operation, seen from a rank.
pub(crate) fn order(plan: &Plan, config: &Config, rank: u32) -> Order {
    let roots = plan.roots();
    let count = roots.len().max(1);
    let position = roots.position(rank);
    let automatic = || config.chains_for(count, plan.receive_bytes() / u64::from(count));
    let of_table = |table: &[u32], chains: u32| {
        // As many chains as a table may have: an operation that begins allocates nothing.
        let mut lengths = [0; MAX_RANKS as usize];
        table.iter().for_each(|chain| lengths[*chain as usize] += 1);
        let turn = position.and_then(|position| turn_in(table, position));
        Order { chains, steps: lengths.into_iter().max().unwrap_or(1), turn }
    };
    match &config.chain_mapping {
        ChainMapping::Table(table) if table.len() == count as usize && count > 1 => {
            of_table(table, table_chains(table))
        }
        // A Broadcast has one root, whatever the mapping says of the others.
        _ => {
            let schedule = Schedule::new(count, automatic()).ok();
            let chains = schedule.map_or(1, Schedule::chains);
            let turn = schedule.zip(position).and_then(|(schedule, position)| schedule.turn(position));
            Order { chains, steps: count.div_ceil(chains), turn }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Kind;

    fn plan(ranks: u32) -> Plan {
        Plan::new(Kind::Allgather { bytes: 100_000 }, 0, ranks, 4096, 2)
    }

    fn with(chain_mapping: ChainMapping, chains: u32) -> Config {
        Config { chain_mapping, chains, ..Config::default() }
    }

    #[test]
    fn racks_and_tables_give_turns() {
        let racks = with(ChainMapping::PerRack(vec![7, 7, 9, 9, 7, 9]), 4);
        let order_of = |config: &Config, rank| order(&plan(6), config, rank);
        // Two racks: two chains, whatever is configured, of three ranks each.
        let racks = racks.with_table();
        racks.derive(6, 4096).unwrap();
        assert_eq!(racks.chain_mapping.neighbours(1).collect::<Vec<_>>(), [0, 4]);
        let last = order_of(&racks, 4);
        let turn = Turn { chain: 0, step: 2, predecessor: Some(1), successor: None };
        assert_eq!((last.chains, last.steps, last.turn), (2, 3, Some(turn)));
        let table = with(ChainMapping::Table(vec![2, 0, 0, 0, 0, 2]), 0);
        let last = order_of(&table, 5);
        let turn = Turn { chain: 2, step: 1, predecessor: Some(0), successor: None };
        assert_eq!((last.chains, last.steps, last.turn), (3, 4, Some(turn)));
        let all = with(ChainMapping::PerRack(vec![3, 1, 2, 3]), 0).with_table();
        assert_eq!((all.chain_mapping, all.chains), (ChainMapping::Table(vec![0, 1, 2, 0]), 0), "one for each rack");
        let contiguous = order_of(&with(ChainMapping::Contiguous, 4), 5);
        assert_eq!((contiguous.chains, contiguous.steps), (4, 2));
        assert_eq!(contiguous.turn, Schedule::new(6, 4).unwrap().turn(5));
        // A Broadcast has one turn.
        let broadcast = Plan::new(Kind::Broadcast { root: 4, bytes: 9 }, 0, 6, 4096, 2);
        let at_root = order(&broadcast, &table, 4);
        assert_eq!((at_root.chains, at_root.steps, at_root.turn.map(|turn| turn.step)), (1, 1, Some(0)));
        assert_eq!(order(&broadcast, &table, 5).turn, None);
    }

    #[test]
    fn mappings_that_do_not_fit_are_named() {
        let refused = |mapping: ChainMapping, chains, words: &str| {
            let text = with(mapping, chains).derive(4, 4096).unwrap_err().to_string();
            assert!(text.contains("chain_mapping") && text.contains(words), "{text}");
        };
        refused(ChainMapping::PerRack(vec![0; 3]), 0, "is 3: must be a list with an entry for each of 4 ranks");
        refused(ChainMapping::Table(vec![0; 5]), 0, "each of 4 ranks");
        refused(ChainMapping::Table(vec![0, 0, 1024, 0]), 0, "is 1024: must be chains from 0 to 1023");
        refused(ChainMapping::Table(vec![0, 0, u32::MAX, 0]), 0, "chains from 0 to 1023");
        refused(ChainMapping::Table(vec![0, 1, 1, 0]), 3, "is 2: must be a table of 3 chains");
        with(ChainMapping::Table(vec![0, 1, 1, 0]), 2).derive(4, 4096).unwrap();
    }

    #[test]
    fn parts_keep_their_ranks_and_digests_differ() {
        let racks = ChainMapping::PerRack(vec![5, 6, 7, 8]);
        assert_eq!(racks.of(&[3, 1]), ChainMapping::PerRack(vec![8, 6]));
        let table = ChainMapping::Table(vec![5, 6, 7, 8]);
        assert_eq!(table.of(&[0]), ChainMapping::Table(vec![5]));
        let all = [ChainMapping::Contiguous.digest(), racks.digest(), table.digest(), racks.of(&[1, 0, 2, 3]).digest()];
        assert!((0..4).all(|at| all[..at].iter().all(|other| *other != all[at])), "{all:?}");
    }
}
