//! Admission of operations: what a datapath can carry, as is known without it.

use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::stream::Stream;
use crate::plan::Plan;

/// What a datapath takes on.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    /// Memory is to be registered with a card, or else with none.
    pub(crate) registered: bool,
    /// Collectives other than Broadcast and Allgather, or why it takes none.
    pub(crate) collectives: std::result::Result<(), &'static str>,
    /// What carries the chunks of an operation.
    pub(crate) streams: Vec<Stream>,
    /// Bits of a chunk's number.
    pub(crate) psn_bits: u32,
    /// Chunks of a stream, at most.
    pub(crate) most_chunks: u64,
}

impl Admission {
    /// Whether memory can be used by operations.
    pub(crate) fn takes(&self, buffer: &Buffer) -> bool {
        buffer.is_registered() == self.registered
    }

    /// Refuses collectives that it does not carry.
    pub(crate) fn check_collective(&self, operation: &'static str) -> Result<()> {
        self.collectives.map_err(|reason| Error::Argument { operation, reason: reason.to_owned() })
    }

    /// Refuses operations with more chunks than there are numbers for.
    pub(crate) fn check(&self, plan: &Plan) -> Result<()> {
        for stream in &self.streams {
            let chunks = plan.chunks_of(*stream)?;
            if chunks > self.most_chunks {
                return Err(Error::TooManyChunks { chunks, psn_bits: self.psn_bits, limit: self.most_chunks });
            }
        }
        Ok(())
    }
}
