//! An operation as its queue pairs see it: where its buffers are, what is announced of them, and where messages go.

use flexcast_proto::p2p::{Memory, Operation, Transfer};
use flexcast_proto::{RankInfo, RankSet};
use flexio::{HostAddr, LocalSlice};

use super::Error;
use super::announcement::{Announcement, OperationDescriptor};
use super::buffer::{Buffer, place};
use super::executor::Executor;
use crate::op::collective::Places;

/// One of the own buffers.
#[derive(Clone, Copy, Debug)]
struct Window {
    addr: u64,
    lkey: u32,
}

/// What peers write to, from the address that is announced to them on.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// The receive buffer, divided alike on all ranks.
    Whole,
    /// A block for each peer, or for the only one.
    Blocks,
    /// Temporary memory and the result behind it, divided as the shape of the reduction says.
    Reduction,
}

/// The next write of a message.
#[derive(Debug)]
pub(super) struct Piece {
    /// What is written; none if it is empty.
    pub(super) local: Option<LocalSlice>,
    /// Its length in bytes.
    pub(super) len: u64,
    /// Where it goes, from what the peer has announced on.
    pub(super) remote: u64,
    /// Bytes of the message behind it.
    pub(super) behind: u64,
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) descriptor: OperationDescriptor,
    /// Who sends to this rank, and whom it sends to.
    sources: RankSet,
    targets: RankSet,
    /// By the order of [`Memory`].
    windows: [Window; 3],
    /// Of what peers write to.
    rkey: u32,
    target: Target,
}

/// The block of a buffer that is a peer's, where it begins and its length: buffers of ranks that have only one peer
/// have only one block. Nothing if no message goes that way.
fn block_at(places: &Places, peer: u32, is_message: bool) -> (u64, u64) {
    let at = if places.count() == 1 { 0 } else { peer };
    if is_message { places.place(at) } else { (0, 0) }
}

impl Posting {
    /// `buffers`: by the order of [`Memory`].
    pub(super) fn new(descriptor: OperationDescriptor, executor: &Executor, buffers: [Buffer<'_>; 3]) -> Self {
        let (schedule, bound) = (executor.schedule(), executor.bound());
        let target = match bound.operation {
            Operation::Allgather(_) | Operation::Broadcast { .. } | Operation::Barrier => Target::Whole,
            _ if bound.shape.is_some() => Target::Reduction,
            _ => Target::Blocks,
        };
        let windows = buffers.map(|buffer| Window { addr: buffer.address(), lkey: buffer.region.lkey() });
        let rkey = buffers[Memory::Receive as usize].region.rkey();
        Self { descriptor, sources: schedule.sources(), targets: schedule.targets(), windows, rkey, target }
    }

    /// Number of the operation.
    pub(super) fn number(&self) -> u32 {
        self.descriptor.operation.get()
    }

    /// Whether a peer is to be notified of the operation: one that writes here, and of a communicator's call also one
    /// that is written to, which may be at another, in which it expects nothing.
    pub(super) fn announces_to(&self, peer: u32) -> bool {
        self.sources.contains(peer) || (self.descriptor.is_call() && self.targets.contains(peer))
    }

    /// What is announced to a peer.
    pub(super) fn announcement(&self, executor: &Executor, peer: u32) -> Announcement {
        let addr_of = |memory: Memory| self.windows[memory as usize].addr;
        let (descriptor, addr) = match self.target {
            Target::Whole => (self.descriptor, addr_of(Memory::Receive)),
            Target::Blocks => {
                let places = executor.places(Memory::Receive);
                let (start, bytes) = block_at(places, peer, self.sources.contains(peer));
                (self.descriptor.of_pair(bytes), addr_of(Memory::Receive) + start)
            }
            Target::Reduction => (self.descriptor, addr_of(Memory::Temporary)),
        };
        Announcement { descriptor, rkey: self.rkey.into(), addr: addr.into() }
    }

    /// What a peer must have announced.
    pub(super) fn expected(&self, executor: &Executor, peer: u32) -> OperationDescriptor {
        match self.target {
            Target::Whole | Target::Reduction => self.descriptor,
            Target::Blocks => {
                let (_, bytes) = block_at(executor.places(Memory::Send), peer, self.targets.contains(peer));
                self.descriptor.of_pair(bytes)
            }
        }
    }

    /// The next bytes of a message to write, `done` bytes in: at most `most`, as far as they lie together.
    pub(super) fn piece(&self, executor: &Executor, transfer: &Transfer, done: u64, most: u32) -> Result<Piece, Error> {
        let (memory, run) = executor.run(transfer.source, done);
        let len = (run.len() as u64).min(most.into());
        let remote = match (self.target, &executor.bound().shape) {
            (Target::Whole, _) => executor.run(transfer.target, done).1.start as u64,
            (Target::Reduction, Some(shape)) => {
                let theirs = shape.layout(RankInfo::new(transfer.to, executor.schedule().place().ranks())?)?;
                place(&theirs, transfer.target).start - theirs.send.total_bytes() + done
            }
            (Target::Blocks | Target::Reduction, _) => done,
        };
        let Window { addr, lkey } = self.windows[memory as usize];
        let local = (len != 0).then_some(LocalSlice { addr: HostAddr(addr + run.start as u64), len: len as u32, lkey });
        Ok(Piece { local, len, remote, behind: executor.bytes(transfer.source) - done - len })
    }
}
