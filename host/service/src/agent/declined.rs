//! Groups that a service process has declined: each of its ranks is notified, also those that describe the group later.

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
    notified: BTreeSet<u32>,
}

impl Declined {
    /// A group is declined, of which these ranks are notified.
    pub(super) fn add(
        &mut self,
        number: u32,
        communicator: u64,
        refused: Refused,
        ranks: usize,
        notified: impl Iterator<Item = u32>,
        most: u32,
    ) {
        self.groups.insert(number, Group { communicator, refused, ranks, notified: notified.collect() });
        while self.groups.len() > most as usize {
            self.groups.pop_first();
        }
    }

    /// The refusal for a rank that describes a group; nothing if the group is not declined, or all ranks know and
    /// describe it once more.
    pub(super) fn notify(&mut self, number: u32, communicator: u64, rank: u32) -> Option<Refused> {
        let group = self.groups.get_mut(&number)?;
        if group.communicator != communicator || group.notified.len() >= group.ranks || !group.notified.insert(rank) {
            self.groups.remove(&number);
            return None;
        }
        Some(group.refused)
    }

    /// Whether a group is declined, so that nothing that is said of it matters. Once all ranks know, what is said may
    /// be of their next attempt, whose messages can reach others before this process.
    pub(super) fn has(&self, number: u32, communicator: u64) -> bool {
        let is_it = |group: &Group| group.communicator == communicator && group.notified.len() < group.ranks;
        self.groups.get(&number).is_some_and(is_it)
    }
}

#[cfg(test)]
mod tests {
    use flexcast_proto::service::wire::GroupError;

    use super::*;

    #[test]
    fn what_is_said_matters_again_once_all_ranks_know() {
        let mut declined = Declined::default();
        let refused = Refused::Group(GroupError::Unreachable { process: 1 });
        declined.add(7, 1, refused, 2, std::iter::once(4), 8);
        assert!(declined.has(7, 1) && !declined.has(7, 2));
        assert_eq!(declined.notify(7, 1, 5), Some(refused));
        // Others may have begun anew before a rank here does.
        assert!(!declined.has(7, 1));
        assert_eq!(declined.notify(7, 1, 4), None);
    }
}
