//! Groups that a service process has declined: each of its ranks is told so, also those that tell of the group later.

use std::collections::{BTreeMap, BTreeSet};

use flexcast_proto::service::wire::Refused;

/// By number of the group.
#[derive(Debug, Default)]
pub(super) struct Declined {
    groups: BTreeMap<u32, Group>,
}

#[derive(Debug)]
struct Group {
    communicator: u64,
    refused: Refused,
    /// Ranks of this process.
    ranks: usize,
    told: BTreeSet<u32>,
}

impl Declined {
    /// A group is declined, as these ranks are told.
    pub(super) fn add(
        &mut self,
        number: u32,
        communicator: u64,
        refused: Refused,
        ranks: usize,
        told: impl Iterator<Item = u32>,
        most: u32,
    ) {
        self.groups.insert(number, Group { communicator, refused, ranks, told: told.collect() });
        while self.groups.len() > most as usize {
            self.groups.pop_first();
        }
    }

    /// What a rank is told that tells of a group; nothing if the group is not declined, or all ranks know and tell of it once more.
    pub(super) fn tell(&mut self, number: u32, communicator: u64, rank: u32) -> Option<Refused> {
        let group = self.groups.get_mut(&number)?;
        if group.communicator != communicator || group.told.len() >= group.ranks || !group.told.insert(rank) {
            self.groups.remove(&number);
            return None;
        }
        Some(group.refused)
    }

    /// Whether a group is declined, so that nothing that is said of it matters.
    pub(super) fn has(&self, number: u32, communicator: u64) -> bool {
        self.groups.get(&number).is_some_and(|group| group.communicator == communicator)
    }
}
