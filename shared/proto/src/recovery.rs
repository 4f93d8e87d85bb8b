//! Fetching what multicast has lost: the ring, block by block.
//!
//! A rank that misses chunks after its cutoff asks its left neighbour once, for all of its incomplete blocks. The neighbour
//! acknowledges each block as soon as it holds that block itself, and the rank reads the missing runs. A neighbour that lacks a
//! block asks its own left. The chain for a block ends at the rank that contributed it, at the latest: at most P - 1 hops.
//!
//! The published rule waits until the neighbour holds *everything*. For Broadcast, where the root does, it ends; for Allgather it
//! hangs whenever every rank misses something. `tests/published_rule.rs` counts those cases.

use thiserror::Error;

use crate::ranks::{RankInfo, RankSet};

/// What recovery wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recover {
    /// Ask the left neighbour for these blocks. Once per operation.
    Fetch {
        /// The left neighbour.
        to: u32,
        /// Numbers of the blocks, which are those of their contributors.
        blocks: RankSet,
    },
    /// Tell the right neighbour that it may read a block here.
    Acknowledge {
        /// The right neighbour.
        to: u32,
        /// The block.
        block: u32,
    },
    /// Read the missing runs of a block from the left neighbour, then call [`Recovery::read`].
    Read {
        /// The left neighbour.
        from: u32,
        /// The block.
        block: u32,
    },
}

/// A message of recovery that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecoveryError {
    /// Only the right neighbour fetches here.
    #[error("fetch from rank {from}: only the right neighbour, rank {right}, is served")]
    NotRight {
        /// Who sent it.
        from: u32,
        /// Who may.
        right: u32,
    },
    /// Only the left neighbour serves here.
    #[error("acknowledgement from rank {from}: only the left neighbour, rank {left}, was asked")]
    NotLeft {
        /// Who sent it.
        from: u32,
        /// Who may.
        left: u32,
    },
    /// There is one fetch per operation.
    #[error("a second fetch from rank {from}")]
    SecondFetch {
        /// Who sent it.
        from: u32,
    },
    /// A block that the operation does not have.
    #[error("fetch from rank {from} of block {block}, which the operation does not have")]
    UnknownBlock {
        /// Who sent it.
        from: u32,
        /// The block.
        block: u32,
    },
    /// A block that was not asked for, or was acknowledged before.
    #[error("acknowledgement of block {block} from rank {from}: it is not awaited")]
    NotAwaited {
        /// Who sent it.
        from: u32,
        /// The block.
        block: u32,
    },
}

/// One rank's recovery in one operation. Blocks have the numbers of the ranks that contribute them; Broadcast has one.
///
/// A block counts as held only when all of it lies in the user buffer: chunks on their way from staging do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recovery {
    place: RankInfo,
    blocks: RankSet,
    delivered: RankSet,
    /// Blocks asked of the left neighbour and not acknowledged.
    awaited: RankSet,
    /// Blocks that are acknowledged and to be read.
    to_read: RankSet,
    /// Blocks that are being read.
    reading: RankSet,
    /// Blocks the right neighbour waits for.
    wanted: RankSet,
    fetch_due: bool,
    fetched: bool,
    served: bool,
}

impl Recovery {
    /// Recovery of an operation with these blocks. The rank's own counts as missing, too, until it is [`Recovery::delivered`]: it may be
    /// served from the receive buffer alone.
    #[must_use]
    pub fn new(place: RankInfo, blocks: RankSet) -> Self {
        Self {
            place,
            blocks,
            delivered: RankSet::EMPTY,
            awaited: RankSet::EMPTY,
            to_read: RankSet::EMPTY,
            reading: RankSet::EMPTY,
            wanted: RankSet::EMPTY,
            fetch_due: false,
            fetched: false,
            served: false,
        }
    }

    /// Blocks that are not all here.
    #[must_use]
    pub fn missing(&self) -> RankSet {
        self.blocks.without(&self.delivered)
    }

    /// Whether every block is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // What is placed is a block.
        self.delivered.len() == self.blocks.len()
    }

    /// Whether reads are under way. Until they are over, also those that multicast has made needless, the left neighbour must keep
    /// its buffer: they would put what it holds afterwards over what is right.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// The read of a block is over; the block is complete in the user buffer.
    pub fn read(&mut self, block: u32) {
        self.reading.remove(block);
        self.delivered(block);
    }

    /// A block is complete in the user buffer: copied, if it is the own one, or received. Others are ignored.
    pub fn delivered(&mut self, block: u32) {
        if self.blocks.contains(block) {
            self.delivered.insert(block);
            self.to_read.remove(block);
        }
    }

    /// Every block is complete in the user buffer.
    pub fn delivered_all(&mut self) {
        self.delivered = self.blocks;
        self.to_read = RankSet::EMPTY;
    }

    /// The time for multicast is over: whatever is missing now is asked for. A second call changes nothing.
    pub fn cut_off(&mut self) {
        if !self.fetched && !self.fetchable().is_empty() {
            self.fetched = true;
            self.fetch_due = true;
        }
    }

    /// Missing blocks of others.
    fn fetchable(&self) -> RankSet {
        self.missing().without(&RankSet::of(self.place.rank()))
    }

    /// Whether the left neighbour has been asked.
    #[must_use]
    pub const fn has_fetched(&self) -> bool {
        self.fetched
    }

    /// The right neighbour asks for blocks.
    ///
    /// # Errors
    /// Somebody else asks, it asks again, or for blocks that there are not; then nothing changes.
    pub fn handle_fetch(&mut self, from: u32, blocks: &RankSet) -> Result<(), RecoveryError> {
        let right = self.place.right();
        if from != right {
            return Err(RecoveryError::NotRight { from, right });
        }
        if self.served {
            return Err(RecoveryError::SecondFetch { from });
        }
        if let Some(block) = blocks.without(&self.blocks).first() {
            return Err(RecoveryError::UnknownBlock { from, block });
        }
        self.served = true;
        self.wanted = *blocks;
        Ok(())
    }

    /// The left neighbour holds a block that was asked for.
    ///
    /// # Errors
    /// Somebody else says so, or the block is not awaited.
    pub fn handle_acknowledgement(&mut self, from: u32, block: u32) -> Result<(), RecoveryError> {
        let left = self.place.left();
        if from != left {
            return Err(RecoveryError::NotLeft { from, left });
        }
        if !self.awaited.remove(block) {
            return Err(RecoveryError::NotAwaited { from, block });
        }
        if !self.delivered.contains(block) {
            self.to_read.insert(block);
        }
        Ok(())
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Recover> {
        if self.fetch_due {
            self.fetch_due = false;
            // What has come since the cutoff need not be fetched.
            self.awaited = self.fetchable();
            if !self.awaited.is_empty() {
                return Some(Recover::Fetch { to: self.place.left(), blocks: self.awaited });
            }
        }
        if !self.wanted.is_empty()
            && let Some(block) = self.wanted.and(&self.delivered).first()
        {
            self.wanted.remove(block);
            return Some(Recover::Acknowledge { to: self.place.right(), block });
        }
        let block = self.to_read.first()?;
        self.to_read.remove(block);
        self.reading.insert(block);
        Some(Recover::Read { from: self.place.left(), block })
    }

    /// Whether the right neighbour may still read here.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Who is being waited for: the left neighbour, if it was asked and owes something.
    #[must_use]
    pub fn waiting_for(&self) -> Option<u32> {
        (!self.awaited.is_empty() && !self.awaited.without(&self.delivered).is_empty()).then(|| self.place.left())
    }
}
