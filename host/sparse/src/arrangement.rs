//! Arrangements of a worker's blocks in registered memory, and how they get there from its array.

use flexcast_proto::sparse::Contribution;
use flexio::LocalSlice;

use super::Result;
use super::scan::{Scan, Turn};

/// One shard.
#[derive(Debug)]
pub(super) struct Portion {
    pub(super) scan: Scan,
    pub(super) link: usize,
    /// A message is ready for which its link has no room.
    pub(super) is_held: bool,
}

/// Registered memory for a worker's blocks.
pub(super) trait Blocks {
    /// Pieces of memory that the blocks of a message are in, at most.
    fn most_pieces(&self) -> u32;

    /// Bytes of memory.
    fn memory_bytes(&self) -> u64;

    /// Longest array that there is room for, in bytes.
    fn most_bytes(&self) -> u64;

    /// Adds the pieces with the blocks of a portion's message.
    ///
    /// # Errors
    /// They are not in this memory.
    fn sent(&self, portion: &Portion, message: &Contribution, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()>;

    /// Adds the pieces that receive the sums of its answer.
    ///
    /// # Errors
    /// As [`Blocks::sent`].
    fn received(&self, portion: &Portion, message: &Contribution, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()>;

    /// Whether work is under way that neither this processor nor a card does.
    fn is_busy(&self) -> bool;

    /// Checks whether such work is over. Returns whether some is.
    ///
    /// # Errors
    /// It failed.
    fn poll(&mut self) -> Result<bool>;
}

/// The same for arrays of a type.
pub(super) trait Arrangement<A: ?Sized>: Blocks {
    /// Bytes of an array.
    fn array_bytes(&self, array: &A) -> u64;

    /// An operation starts.
    ///
    /// # Errors
    /// The array cannot be reached.
    fn start(&mut self, array: &A, portions: &[Portion]) -> Result<()>;

    /// Goes on with a portion, which has this number, until a message is ready, or something is awaited, or `left`
    /// bytes have been scanned.
    ///
    /// # Errors
    /// As [`Arrangement::start`].
    fn turn(&mut self, array: &mut A, number: usize, portion: &mut Portion, left: &mut usize) -> Result<Turn>;

    /// All sums have come. Returns whether they are in the array; is called until they are.
    ///
    /// # Errors
    /// As [`Arrangement::start`].
    fn finish(&mut self, array: &mut A, portions: &[Portion]) -> Result<bool>;
}
