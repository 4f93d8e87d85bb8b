//! Gather and Scatter: between the root's buffer of blocks and the others' single ones.

use flexcast_proto::p2p::{Blocks, Operation, Span, Start};

use super::announcement::OperationDescriptor;
use super::operation::{Buffer, Placed};
use super::{Error, Group};

/// What the other side's buffer is on a rank that has none.
const NONE: &[u64] = &[0];

impl Group {
    /// Starts a Gather of equal contributions: rank r's `block_bytes` bytes at `contribution` come to lie at r ·
    /// `block_bytes` of the root's `receive`, which has P · `block_bytes`. The others need none.
    ///
    /// # Errors
    /// As [`Group::gatherv`].
    pub fn gather(
        &mut self,
        root: u32,
        block_bytes: u64,
        contribution: Buffer<'_>,
        receive: Option<Buffer<'_>>,
    ) -> Result<(), Error> {
        let ends = equal(block_bytes, self.place().ranks())?;
        self.gatherv(root, block_bytes, contribution, receive.map(|receive| (receive, ends.as_slice())))
    }

    /// The same for contributions of any length: this rank's has `own_bytes`; that of rank r ends at `ends[r]` in the
    /// root's receive buffer, where the next begins.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Schedule`] for a root that is no rank,
    /// [`Error::Flexio`] for buffers that are too short, [`Error::Blocks`] for ends that go back, [`Error::OutOfRange`]
    /// if there is not one for each rank, no receive buffer at the root, or the own block has two lengths. Lengths that
    /// differ between two ranks are found when they meet: [`Error::Mismatch`].
    pub fn gatherv(
        &mut self,
        root: u32,
        own_bytes: u64,
        contribution: Buffer<'_>,
        receive: Option<(Buffer<'_>, &[u64])>,
    ) -> Result<(), Error> {
        // Where there is no receive buffer, nobody writes.
        let (receive, ends) = self.at_root(root, receive, "receive")?.unwrap_or((contribution, NONE));
        self.direct(Operation::Gather { root }, (contribution, &[own_bytes]), (receive, ends))
    }

    /// Starts a Scatter of equal blocks: the `block_bytes` bytes at r · `block_bytes` of the root's `send`, which has P
    /// · `block_bytes`, come to rank r's `receive`. The others need no `send`.
    ///
    /// # Errors
    /// As [`Group::scatterv`].
    pub fn scatter(
        &mut self,
        root: u32,
        block_bytes: u64,
        send: Option<Buffer<'_>>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let ends = equal(block_bytes, self.place().ranks())?;
        self.scatterv(root, send.map(|send| (send, ends.as_slice())), block_bytes, receive)
    }

    /// The same for blocks of any length: the one for rank r ends at `ends[r]` in the root's send buffer, where the
    /// next begins; this rank's has `own_bytes`.
    ///
    /// # Errors
    /// As [`Group::gatherv`].
    pub fn scatterv(
        &mut self,
        root: u32,
        send: Option<(Buffer<'_>, &[u64])>,
        own_bytes: u64,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let send = self.at_root(root, send, "send")?.unwrap_or((receive, NONE));
        self.direct(Operation::Scatter { root }, send, (receive, &[own_bytes]))
    }

    /// The buffer of all blocks, if this is the root.
    fn at_root<'b, 'e>(
        &self,
        root: u32,
        buffer: Option<(Buffer<'b>, &'e [u64])>,
        which: &str,
    ) -> Result<Option<(Buffer<'b>, &'e [u64])>, Error> {
        let ranks = self.place().ranks();
        match buffer {
            _ if root != self.place().rank() => Ok(None),
            Some((_, ends)) if ends.len() != ranks as usize => {
                let limit = format!("{ranks}, one for each rank");
                Err(Error::OutOfRange { what: "the number of blocks", value: ends.len() as u64, limit })
            }
            None => {
                let limit = format!("1: the root has a {which} buffer");
                Err(Error::OutOfRange { what: "the number of buffers", value: 0, limit })
            }
            buffer => Ok(buffer),
        }
    }

    fn direct(
        &mut self,
        operation: Operation,
        (send, send_ends): (Buffer<'_>, &[u64]),
        (receive, receive_ends): (Buffer<'_>, &[u64]),
    ) -> Result<(), Error> {
        let schedule = self.schedule(operation)?;
        let (send, receive) = (Placed::of_ends(send, send_ends)?, Placed::of_ends(receive, receive_ends)?);
        if let Some(Start { from, to }) = schedule.start() {
            self.check_own(&send, from.first, &receive, to.first)?;
        }
        let descriptor = OperationDescriptor::new(self.next(), operation, None, &Blocks::EMPTY);
        self.exchange(schedule, descriptor, send, receive, true)
    }
}

/// Where blocks of one length end.
fn equal(block_bytes: u64, ranks: u32) -> Result<Vec<u64>, Error> {
    let blocks = Blocks::equal(block_bytes, ranks)?;
    Ok((0..ranks).map(|rank| blocks.bytes(Span { first: 0, count: rank + 1 })).collect())
}
