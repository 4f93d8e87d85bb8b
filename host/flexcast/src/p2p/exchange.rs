//! Alltoall: from the blocks of one buffer to those of another.

use flexcast_proto::p2p::{Alltoall, Blocks, Operation};

use super::announcement::OperationDescriptor;
use super::operation::{Buffer, Division, Pieces, Running};
use super::{Error, Group};

impl Group {
    /// Starts an Alltoall of equal blocks: block b of rank a's `send` comes to be block a of rank b's `receive`. Both have P ·
    /// `block_bytes`, and lie apart.
    ///
    /// # Errors
    /// As [`Group::alltoallv`].
    pub fn alltoall(
        &mut self,
        algorithm: Alltoall,
        block_bytes: u64,
        send: Buffer<'_>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let blocks = Blocks::equal(block_bytes, self.place().ranks())?;
        let ends: Vec<u64> = (0..blocks.count()).map(|block| blocks.block(block).end).collect();
        self.alltoallv(algorithm, &ends, &ends, send, receive)
    }

    /// The same for blocks of any length: the one for rank r ends at `send_ends[r]` of `send`, where the next begins, the one from rank r
    /// at `receive_ends[r]` of `receive`. What a rank has for another is as long as that expects.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Flexio`] for buffers that are too short, [`Error::Blocks`] for
    /// ends that go back, [`Error::OutOfRange`] unless there is one for each rank or the own block has two lengths. Lengths that differ
    /// between two ranks are found when they meet: [`Error::Mismatch`].
    pub fn alltoallv(
        &mut self,
        algorithm: Alltoall,
        send_ends: &[u64],
        receive_ends: &[u64],
        send: Buffer<'_>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let (own, ranks) = (self.place().rank(), self.place().ranks());
        for ends in [send_ends, receive_ends] {
            if ends.len() != ranks as usize {
                let limit = format!("{ranks}, one for each rank");
                return Err(Error::OutOfRange { what: "the number of blocks", value: ends.len() as u64, limit });
            }
        }
        let operation = Operation::Alltoall(algorithm);
        let schedule = self.schedule(operation)?;
        let (sends, receives) = (Blocks::unequal(send_ends)?, Blocks::unequal(receive_ends)?);
        send.check(sends.total_bytes())?;
        receive.check(receives.total_bytes())?;
        let (from, to) = (sends.block(own), receives.block(own));
        let [len, expected] = [&from, &to].map(|range| range.end - range.start);
        if len != expected {
            let limit = format!("{expected}, as the receive buffer has for it");
            return Err(Error::OutOfRange { what: "the length of the own block", value: len, limit });
        }
        send.copy(from.start, len, &receive, to.start, self.scratch())?;
        let descriptor = OperationDescriptor::new(self.next(), operation, None, &sends);
        let running = Running::exchange(schedule, descriptor, &send, &receive, receive_ends.to_vec());
        self.begin(running, Division { pieces: Pieces::Ends(send_ends.to_vec()), segments: 1 })
    }
}
