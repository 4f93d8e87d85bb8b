//! Alltoall: from the blocks of one buffer to those of another.

use flexcast_proto::p2p::{Alltoall, Blocks, Operation, Schedule, Start};

use super::announcement::OperationDescriptor;
use super::operation::{Buffer, Division, Pieces, Placed, Running};
use super::{Error, Group};

impl Group {
    /// Starts an Alltoall of equal blocks: block b of rank a's `send` comes to be block a of rank b's `receive`. Both
    /// have P · `block_bytes`, and lie apart.
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

    /// The same for blocks of any length: the one for rank r ends at `send_ends[r]` of `send`, where the next begins,
    /// the one from rank r at `receive_ends[r]` of `receive`. What a rank has for another is as long as that expects.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Flexio`] for buffers that are too short,
    /// [`Error::Blocks`] for ends that go back, [`Error::OutOfRange`] unless there is one for each rank or the own
    /// block has two lengths. Lengths that differ between two ranks are found when they meet: [`Error::Mismatch`].
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
        let sends = Blocks::unequal(send_ends)?;
        let descriptor = OperationDescriptor::new(self.next(), operation, None, &sends);
        let (send, receive) = (Placed::of_ends(send, send_ends)?, Placed::of_ends(receive, receive_ends)?);
        self.check_own(&send, own, &receive, own)?;
        self.exchange(schedule, descriptor, send, receive, true)
    }

    /// Refuses an own block that has two lengths.
    pub(super) fn check_own(&self, send: &Placed<'_>, from: u32, receive: &Placed<'_>, to: u32) -> Result<(), Error> {
        let (len, expected) = (send.block(from).1, receive.block(to).1);
        if len != expected {
            let limit = format!("{expected}, as the receive buffer has for it");
            return Err(Error::OutOfRange { what: "the length of the own block", value: len, limit });
        }
        Ok(())
    }

    /// Begins an exchange of blocks. `copies`: the own block is not in its place.
    pub(super) fn exchange(
        &mut self,
        schedule: Schedule,
        descriptor: OperationDescriptor,
        send: Placed<'_>,
        receive: Placed<'_>,
        copies: bool,
    ) -> Result<(), Error> {
        send.buffer.check(send.places.end())?;
        receive.buffer.check(receive.places.end())?;
        if let Some(Start { from, to }) = schedule.start().filter(|_| copies) {
            let ((from, len), (to, room)) = (send.block(from.first), receive.block(to.first));
            send.buffer.copy(from, len.min(room), &receive.buffer, to, self.scratch())?;
        }
        let running = Running::exchange(schedule, descriptor, send, receive);
        // Of the division only the part of two ranks is the same on both.
        self.begin(running, Division { pieces: Pieces::Even(Blocks::EMPTY), segments: 1 })
    }
}
