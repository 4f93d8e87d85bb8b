//! Mapping of ranks to chains, which multicast side by side.

use flexcast_proto::{MAX_RANKS, chains, digest, turn_in};

use crate::error::{Error, Result};
use crate::op::config::Config;

/// Which rank of an Allgather is in which chain. The ranks of a chain multicast one after another, chains side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainMapping {
    /// Ranks that follow one another are in one chain.
    #[default]
    Contiguous,
    /// The rack of each rank, any numbers: of a rack at most one rank multicasts at a time. As many chains as
    /// [`Config::chains`] says and at most one for each rack; one for each where it is 0. A communicator keeps the
    /// [`ChainMapping::Table`] that this comes to.
    PerRack(Vec<u32>),
    /// The chain of each rank, numbered from 0: at most 1024 of them. [`Config::chains`] is 0, or one more than the
    /// largest.
    Table(Vec<u32>),
}

impl ChainMapping {
    /// The same for some of the ranks, in their new order. Chains that lose all their ranks stay, without any.
    pub(crate) fn of(&self, members: &[u32]) -> Self {
        let pick = |list: &[u32]| members.iter().filter_map(|rank| list.get(*rank as usize).copied()).collect();
        match self {
            Self::Contiguous => Self::Contiguous,
            Self::PerRack(racks) => Self::PerRack(pick(racks)),
            Self::Table(table) => Self::Table(pick(table)),
        }
    }

    /// The ranks before and behind a rank in its chain, where that is not a chain of contiguous ranks.
    pub(crate) fn neighbours(&self, rank: u32) -> impl Iterator<Item = u32> {
        let turn = match self {
            Self::Table(table) => turn_in(table, rank),
            Self::Contiguous | Self::PerRack(_) => None,
        };
        turn.into_iter().flat_map(|turn| [turn.predecessor, turn.successor]).flatten()
    }

    /// A number that differs where mappings do: ranks must agree.
    pub(crate) fn digest(&self) -> u64 {
        let (kind, list): (u64, &[u32]) = match self {
            Self::Contiguous => return 0,
            Self::PerRack(racks) => (1, racks),
            Self::Table(table) => (2, table),
        };
        digest([kind].into_iter().chain(list.iter().map(|entry| u64::from(*entry))))
    }

    /// Checks that it is one for so many ranks.
    pub(crate) fn check(&self, ranks: u32, configured: u32) -> Result<()> {
        let refuse = |value: u64, limit: String| Err(Error::Config { what: "chain_mapping", value, limit });
        let (Self::PerRack(list) | Self::Table(list)) = self else { return Ok(()) };
        if list.len() != ranks as usize {
            return refuse(list.len() as u64, format!("a list with an entry for each of {ranks} ranks"));
        }
        let Self::Table(table) = self else { return Ok(()) };
        let used = table_chains(table);
        if used > MAX_RANKS {
            return refuse(u64::from(used) - 1, format!("chains from 0 to {}", MAX_RANKS - 1));
        }
        if configured != 0 && configured != used {
            return refuse(used.into(), format!("a table of {configured} chains, as `chains` says, or `chains` 0"));
        }
        Ok(())
    }
}

impl Config {
    /// The same with racks made into chains: connections are made for those.
    pub(crate) fn with_table(mut self) -> Self {
        if let ChainMapping::PerRack(racks) = &self.chain_mapping {
            let mut table = vec![0; racks.len()];
            let most = if self.chains == 0 { racks.len() as u32 } else { self.chains };
            // Checked before; without chains there is nothing to map.
            if chains::per_rack(&mut table, racks, most).is_ok() {
                (self.chain_mapping, self.chains) = (ChainMapping::Table(table), 0);
            }
        }
        self
    }
}

/// Chains that a table names.
pub(crate) fn table_chains(table: &[u32]) -> u32 {
    table.iter().max().map_or(1, |last| last.saturating_add(1))
}
