//! Fetching what multicast has lost: the ring, piece by piece.
//!
//! While multicast goes on, a rank asks its left neighbour for the pieces ([`crate::pieces`]) of which it knows that
//! they are lost; after its cutoff for all others that are incomplete. The neighbour acknowledges pieces as soon as it
//! holds them itself, and the rank reads the missing runs. A neighbour that lacks a piece asks its own left. The chain
//! for a piece ends at the rank that contributed it, at the latest: at most P - 1 hops.
//!
//! The published rule waits until the neighbour holds *everything*. For Broadcast, where the root does, it ends; for
//! Allgather it hangs whenever every rank misses something. `tests/published_rule.rs` counts those cases.

use thiserror::Error;

use crate::pieces::{PieceSet, Pieces};
use crate::ranks::{RankInfo, RankSet};

/// What recovery wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recover {
    /// Ask the left neighbour for these pieces, which it has not been asked for.
    Fetch {
        /// The left neighbour.
        to: u32,
        /// The pieces.
        pieces: PieceSet,
        /// Whether multicast is over for this rank: it asks for nothing more.
        last: bool,
    },
    /// Notify the right neighbour that it may read pieces here.
    Acknowledge {
        /// The right neighbour.
        to: u32,
        /// The pieces.
        pieces: PieceSet,
    },
    /// Read the missing runs of pieces from the left neighbour, and call [`Recovery::read`] after each piece.
    Read {
        /// The left neighbour.
        from: u32,
        /// The pieces.
        pieces: PieceSet,
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
    /// A fetch behind the last one.
    #[error("a second last fetch from rank {from}")]
    SecondFetch {
        /// Who sent it.
        from: u32,
    },
    /// A piece is asked for once.
    #[error("fetch from rank {from} of piece {piece}, which it waits for already")]
    AskedTwice {
        /// Who sent it.
        from: u32,
        /// The piece.
        piece: u32,
    },
    /// A piece that the operation does not have.
    #[error("fetch from rank {from} of piece {piece}, which the operation does not have")]
    UnknownPiece {
        /// Who sent it.
        from: u32,
        /// The piece.
        piece: u32,
    },
    /// A piece that was not asked for, or was acknowledged before.
    #[error("acknowledgement of piece {piece} from rank {from}: it is not awaited")]
    NotAwaited {
        /// Who sent it.
        from: u32,
        /// The piece.
        piece: u32,
    },
}

/// One rank's recovery in one operation.
///
/// A piece counts as held only when all of it lies in the user buffer: chunks on their way from staging do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recovery {
    place: RankInfo,
    pieces: Pieces,
    all: PieceSet,
    delivered: PieceSet,
    /// Pieces asked of the left neighbour and not acknowledged.
    awaited: PieceSet,
    /// Pieces that are acknowledged and to be read.
    to_read: PieceSet,
    /// Pieces that are being read.
    reading: PieceSet,
    /// Pieces the right neighbour waits for.
    wanted: PieceSet,
    fetch_due: bool,
    fetched: bool,
    served: bool,
}

impl Recovery {
    /// Recovery of an operation with these pieces. The rank's own block counts as missing, too, until it is delivered:
    /// it may be served from the receive buffer alone.
    #[must_use]
    pub fn new(place: RankInfo, pieces: Pieces) -> Self {
        Self {
            place,
            pieces,
            all: pieces.all(),
            delivered: PieceSet::EMPTY,
            awaited: PieceSet::EMPTY,
            to_read: PieceSet::EMPTY,
            reading: PieceSet::EMPTY,
            wanted: PieceSet::EMPTY,
            fetch_due: false,
            fetched: false,
            served: false,
        }
    }

    /// [`Recovery::new`] in place, for the next operation: what is as it was is not written anew, since firmware pays
    /// for every store.
    pub(crate) fn restart(&mut self, roots: &RankSet, each: u32) {
        if !self.pieces.are_of(roots, each) {
            self.pieces = Pieces::new(*roots, each);
            self.all = self.pieces.all();
        }
        let Self { delivered, awaited, to_read, reading, wanted, .. } = self;
        for set in [delivered, awaited, to_read, reading, wanted] {
            set.clear();
        }
        (self.fetch_due, self.fetched, self.served) = (false, false, false);
    }

    /// Pieces that are not all here.
    #[must_use]
    pub fn missing(&self) -> PieceSet {
        self.all.without(&self.delivered)
    }

    /// Whether every piece is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // What is placed is a piece.
        self.delivered.len() == self.all.len()
    }

    /// Whether reads are under way. Until they are over, also those that multicast has made needless, the left
    /// neighbour must keep its buffer: they would put what it holds afterwards over what is right.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// The read of a piece is over; the piece is complete in the user buffer.
    pub fn read(&mut self, piece: u32) {
        self.reading.remove(piece);
        // As `delivered` does with whole sets, for each of which firmware pays.
        if self.all.contains(piece) {
            self.delivered.insert(piece);
        }
        self.to_read.remove(piece);
    }

    /// A rank's block is complete in the user buffer: copied, if it is the own one, or received. One that there is not
    /// is ignored.
    pub fn delivered_block(&mut self, rank: u32) {
        let pieces = self.pieces.range(rank);
        self.delivered.insert_range(pieces.clone());
        if !self.to_read.is_empty() {
            self.to_read.remove_range(pieces);
        }
    }

    /// Pieces are complete in the user buffer. Others than the operation's are ignored.
    pub fn delivered(&mut self, pieces: &PieceSet) {
        self.delivered.insert_common(&self.all, pieces);
        self.to_read.remove_all(pieces);
    }

    /// All pieces but these are complete in the user buffer.
    pub fn delivered_all_but(&mut self, incomplete: &PieceSet) {
        let complete = self.all.without(incomplete);
        self.delivered(&complete);
    }

    /// Everything is complete in the user buffer.
    pub fn delivered_all(&mut self) {
        self.delivered = self.all;
        self.to_read = PieceSet::EMPTY;
    }

    /// Multicast brings nothing more of pieces: the left neighbour is to be asked for these. `last`: nor does it of
    /// others, which have come and may not be in their place yet. After the cutoff that changes nothing.
    pub fn lost(&mut self, pieces: &PieceSet, last: bool) -> Option<Recover> {
        if self.fetched {
            return None;
        }
        self.fetched = last;
        let pieces = self.fetchable().and(pieces);
        self.fetch(pieces, last)
    }

    fn fetch(&mut self, pieces: PieceSet, last: bool) -> Option<Recover> {
        self.awaited.insert_common(&pieces, &pieces);
        (!pieces.is_empty()).then(|| Recover::Fetch { to: self.place.left(), pieces, last })
    }

    /// The time for multicast is over: whatever is missing now is asked for. A second call changes nothing.
    pub fn cut_off(&mut self) {
        let own = self.pieces.of(self.place.rank());
        if !self.fetched && !self.all.without_all([&self.delivered, &own]).is_empty() {
            self.fetched = true;
            self.fetch_due = true;
        }
    }

    /// Missing pieces of others that have not been asked for.
    fn fetchable(&self) -> PieceSet {
        let own = self.pieces.of(self.place.rank());
        self.all.without_all([&self.delivered, &own, &self.awaited, &self.to_read, &self.reading])
    }

    /// Whether the left neighbour has been asked for all that multicast has not brought.
    #[must_use]
    pub const fn has_fetched(&self) -> bool {
        self.fetched
    }

    /// Whether the right neighbour has asked for all that multicast has not brought it.
    #[must_use]
    pub const fn was_asked(&self) -> bool {
        self.served
    }

    /// The right neighbour asks for pieces, and after the `last` time for no others.
    ///
    /// # Errors
    /// Somebody else asks, it asks after the last time, for what it has asked for, or for pieces that there are not;
    /// then nothing changes.
    pub fn handle_fetch(&mut self, from: u32, pieces: &PieceSet, last: bool) -> Result<(), RecoveryError> {
        let right = self.place.right();
        if from != right {
            return Err(RecoveryError::NotRight { from, right });
        }
        if self.served {
            return Err(RecoveryError::SecondFetch { from });
        }
        if let Some(piece) = pieces.first_beyond(&self.all) {
            return Err(RecoveryError::UnknownPiece { from, piece });
        }
        if let Some(piece) = pieces.first_common(&self.wanted) {
            return Err(RecoveryError::AskedTwice { from, piece });
        }
        self.served = last;
        self.wanted.insert_common(pieces, pieces);
        Ok(())
    }

    /// The left neighbour holds pieces that were asked for.
    ///
    /// # Errors
    /// Somebody else says so, or a piece is not awaited; then nothing changes.
    pub fn handle_acknowledgement(&mut self, from: u32, pieces: &PieceSet) -> Result<(), RecoveryError> {
        let left = self.place.left();
        if from != left {
            return Err(RecoveryError::NotLeft { from, left });
        }
        if let Some(piece) = pieces.first_beyond(&self.awaited) {
            return Err(RecoveryError::NotAwaited { from, piece });
        }
        self.awaited.remove_all(pieces);
        self.to_read.insert_common(pieces, pieces);
        self.to_read.remove_all(&self.delivered);
        Ok(())
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Recover> {
        if self.fetch_due {
            self.fetch_due = false;
            // What has come since the cutoff need not be fetched.
            let pieces = self.fetchable();
            if let Some(fetch) = self.fetch(pieces, true) {
                return Some(fetch);
            }
        }
        if self.wanted.first_common(&self.delivered).is_some() {
            let pieces = self.wanted.and(&self.delivered);
            self.wanted.remove_all(&pieces);
            return Some(Recover::Acknowledge { to: self.place.right(), pieces });
        }
        if self.to_read.is_empty() {
            return None;
        }
        let pieces = core::mem::replace(&mut self.to_read, PieceSet::EMPTY);
        self.reading.insert_common(&pieces, &pieces);
        Some(Recover::Read { from: self.place.left(), pieces })
    }

    /// Whether the right neighbour may still read here.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Who is being waited for: the left neighbour, if it was asked and owes something.
    #[must_use]
    pub fn waiting_for(&self) -> Option<u32> {
        (!self.awaited.is_empty() && self.awaited.first_beyond(&self.delivered).is_some()).then(|| self.place.left())
    }
}
