//! Shared list of a host: blocks that no local service process could serve when they came, to be claimed by one of
//! them.

use alloc::vec::Vec;

use thiserror::Error;

use super::message::{Announcement, ContextId};
use super::wire::Endpoint;

/// Blocks of all groups that wait for the first rank of their host, in memory that all service processes of a card
/// share. Each call is atomic: who implements it for several processes holds a lock, or does the same with atomic
/// instructions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedList {
    limit: u64,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    context: ContextId,
    announcement: Announcement,
    /// The service process that has put it there.
    by: Endpoint,
}

/// A block that the list does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// No room.
    #[error(
        "{limit} blocks are on the shared list: make it as long as the announcements that service processes of this \
         card admit"
    )]
    Full {
        /// The limit.
        limit: u64,
    },
    /// It is there already.
    #[error("the block of rank {source_rank} is on the shared list already")]
    Twice {
        /// Whose block it is.
        source_rank: u32,
    },
}

impl SharedList {
    /// A list of at most `limit` blocks. A group puts at most one block per remote rank and collective under way on it.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, entries: Vec::new() }
    }

    /// Puts a block on the list. `by`: the service process that does.
    ///
    /// # Errors
    /// The list is full, or has the block. It is as before.
    pub fn put(&mut self, context: ContextId, announcement: Announcement, by: Endpoint) -> Result<(), ListError> {
        let same = |entry: &Entry| entry.context == context && entry.announcement.source == announcement.source;
        if self.entries.iter().any(same) {
            return Err(ListError::Twice { source_rank: announcement.source });
        }
        if self.entries.len() as u64 >= self.limit {
            return Err(ListError::Full { limit: self.limit });
        }
        self.entries.push(Entry { context, announcement, by });
        Ok(())
    }

    /// Takes the oldest block of a collective from the list; it is the caller's alone.
    pub fn claim(&mut self, context: ContextId) -> Option<Announcement> {
        let index = self.entries.iter().position(|entry| entry.context == context)?;
        Some(self.entries.remove(index).announcement)
    }

    /// Takes all blocks of a group from the list: the group is removed, or has failed.
    pub fn remove_group(&mut self, group: u32) {
        self.entries.retain(|entry| entry.context.group != group);
    }

    /// Takes all blocks of a collective from the list: it has failed.
    pub fn remove(&mut self, context: ContextId) {
        self.entries.retain(|entry| entry.context != context);
    }

    /// Takes all blocks from the list that a service process has put there: it has died, and nobody else may know of
    /// their groups.
    pub fn remove_of(&mut self, process: Endpoint) {
        self.entries.retain(|entry| entry.by != process);
    }

    /// Blocks on the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::message::Region;
    use std::string::ToString as _;

    fn block(source: u32) -> Announcement {
        Announcement { source, region: Region { address: 0, key: 0, bytes: 1 } }
    }

    fn process(port: u16) -> Endpoint {
        Endpoint { address: core::net::Ipv6Addr::LOCALHOST, port }
    }

    #[test]
    fn a_block_is_claimed_once_and_by_its_own_collective() {
        let [one, other, third] = [(1, 7), (1, 8), (2, 7)].map(|(group, collective)| ContextId { group, collective });
        let mut list = SharedList::new(3);
        for (context, source) in [(one, 4), (other, 4), (one, 5)] {
            list.put(context, block(source), process(1)).unwrap();
        }
        assert_eq!(list.put(one, block(5), process(2)), Err(ListError::Twice { source_rank: 5 }));
        let full = list.put(third, block(0), process(1)).unwrap_err();
        assert!(full.to_string().starts_with("3 blocks are on the shared list"));
        assert_eq!((list.claim(third), list.claim(one)), (None, Some(block(4))));
        assert_eq!((list.claim(one), list.claim(one), list.len()), (Some(block(5)), None, 1));
        list.put(third, block(1), process(2)).unwrap();
        list.remove_group(1);
        assert_eq!((list.claim(other), list.claim(third)), (None, Some(block(1))));
        list.put(one, block(1), process(1)).unwrap();
        list.remove(one);
        assert!(list.is_empty());
        list.put(one, block(1), process(1)).unwrap();
        list.put(one, block(2), process(2)).unwrap();
        list.remove_of(process(1));
        assert_eq!((list.claim(one), list.claim(one)), (Some(block(2)), None));
    }
}
