//! Ranks that are connected, and the operation that they are at.

use std::ops::Range;
use std::time::Duration;

use flexcast_proto::p2p::{Memory, Part};
use flexcast_proto::{RankInfo, Summary};
use flexio::{Access, CompletionQueue, HostBuffer, MemoryRegion, ProtectionDomain};

use super::announcement::OperationDescriptor;
use super::bound::Bound;
use super::buffer::{Buffer, Operands, Regions, no_buffers};
use super::connection::Connection;
use super::executor::{Executor, Link as _};
use super::posting::Posting;
use super::queue_pairs::QueuePairs;
use super::{Config, Error};
use crate::op::buffer::zeroes;
use crate::op::lists::ListPool;
use flexcast_rc::linger::Lingering;
use flexcast_rc::requester::Wire;

/// What a group has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Operations completed.
    pub operations: u64,
    /// Messages written.
    pub messages: u64,
    /// Their bytes.
    pub data_bytes: u64,
    /// Announcements sent, of [`ANNOUNCEMENT_BYTES`](super::ANNOUNCEMENT_BYTES) each: all control traffic there is.
    pub announcements: u64,
    /// Time between start and completion of operations, by the provider's clock.
    pub busy: Duration,
}

/// One rank of a connected group.
#[derive(Debug)]
pub struct Group {
    link: QueuePairs,
    executor: Option<Executor>,
    pub(super) lists: ListPool,
    pd: ProtectionDomain,
    /// Memory of reductions. The last one is in use: contribution, temporary memory, result. Shorter ones from before
    /// are kept, at most as much again: what a peer repeats, because an answer was lost, goes to where it went.
    work: Vec<MemoryRegion>,
    /// Where the buffers of the reduction under way begin in it, by the order of [`Memory`]; none of another operation.
    offsets: Option<[u64; 3]>,
    /// Where the last reduction's result is.
    result: Range<usize>,
    operands: Operands,
    failed: bool,
    started_ps: u64,
}

impl Group {
    pub(super) fn new(
        place: RankInfo,
        of: (Config, Wire),
        pd: ProtectionDomain,
        completions: CompletionQueue,
        connections: Vec<Connection>,
        slots: MemoryRegion,
    ) -> Self {
        Self {
            link: QueuePairs::new(place, of, completions, connections, slots),
            executor: None,
            lists: ListPool::new(place.ranks()),
            pd,
            work: Vec::new(),
            offsets: None,
            result: 0..0,
            operands: Operands::default(),
            failed: false,
            started_ps: 0,
        }
    }

    /// The own place.
    #[must_use]
    pub fn place(&self) -> RankInfo {
        self.link.place
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.link.statistics
    }

    /// Whether no operation is under way: the last one is complete, and its buffers are the caller's.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.executor.is_none()
    }

    /// Ends the group; its peers' cards still get answers for as long as they may ask again for them, if they have sent
    /// something lately.
    pub(crate) fn leave(self, lingering: &Lingering) {
        let Self { link, executor: None, failed: false, .. } = self else { return };
        let QueuePairs { connections, slots, completions, config, .. } = link;
        let Some(received_ps) = connections.iter().filter_map(Connection::received_ps).max() else { return };
        let device = completions.device().clone();
        let answerers: Vec<_> = connections.into_iter().flat_map(Connection::into_answerers).collect();
        lingering.keep((answerers, slots, completions), &device, received_ps, config.retry);
    }

    /// Reports to all ranks in the next Allgather that connections of this rank have stalled. It is a bit of each
    /// message, which is set once it was set in one that the sender has received. Every rank needs the block of every
    /// other one: whoever has them all has received the report of any rank.
    pub(crate) const fn report_stall(&mut self) {
        self.link.reports_stall = true;
    }

    /// Whether any rank has reported a stall in the last Allgather, which is complete: alike on all ranks.
    pub(crate) const fn has_stalled(&self) -> bool {
        self.link.has_stalled
    }

    /// The longest time that a peer has not acknowledged anything, since this was last asked for.
    pub(crate) fn take_silence(&mut self) -> Duration {
        let longest_ps = self.link.connections.iter_mut().map(Connection::take_silence_ps).max();
        Duration::from_nanos(longest_ps.unwrap_or(0) / 1000)
    }

    /// How often connections have restarted, since this was last asked for.
    pub(crate) fn take_restarts(&mut self) -> u32 {
        self.link.connections.iter_mut().map(Connection::take_restarts).sum()
    }

    /// Starts a communicator's call, whose blocks may lie anywhere in the buffers: that of the contribution, and that
    /// of the result. `copies`: the own block is not in its place. A reduction is made in memory of the group, and its
    /// contribution is not needed after the call.
    ///
    /// # Errors
    /// As [`Group::alltoall`].
    pub(crate) fn call(
        &mut self,
        executor: Executor,
        summary: &Summary,
        buffers: [Buffer<'_>; 2],
        copies: bool,
    ) -> Result<(), Error> {
        let descriptor = OperationDescriptor::of_call(self.link.next, summary);
        self.begin(executor, descriptor, Some(buffers), copies)
    }

    /// Starts an operation whose messages say nothing of a communicator's call. The own block has one length.
    ///
    /// # Errors
    /// As [`Group::alltoall`].
    pub(crate) fn start(&mut self, bound: Bound, buffers: Option<[Buffer<'_>; 2]>, copies: bool) -> Result<(), Error> {
        let executor = Executor::new(bound, self.place())?;
        if let Some(start) = executor.schedule().start().filter(|_| copies) {
            let [own, expected] = [Part::send(start.from), Part::receive(start.to)].map(|part| executor.bytes(part));
            if own != expected {
                let limit = format!("{expected}, as the receive buffer has for it");
                return Err(Error::OutOfRange { what: "the length of the own block", value: own, limit });
            }
        }
        let descriptor = OperationDescriptor::of_bound(self.link.next, executor.bound());
        self.begin(executor, descriptor, buffers, copies)
    }

    /// Begins an operation, if it may begin now. Without buffers it has no bytes.
    fn begin(
        &mut self,
        executor: Executor,
        descriptor: OperationDescriptor,
        buffers: Option<[Buffer<'_>; 2]>,
        copies: bool,
    ) -> Result<(), Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        if self.executor.is_some() {
            return Err(Error::Busy { operation: self.link.next.wrapping_sub(1) });
        }
        self.link.check(executor.schedule())?;
        let end = |memory| executor.places(memory).end();
        let bytes = [Memory::Send, Memory::Temporary, Memory::Receive].map(end);
        // Writes of no bytes read and write nowhere; any memory will do.
        let any = Buffer { region: &self.link.slots, offset: 0 };
        let [send, receive] = buffers.unwrap_or([any; 2]);
        send.check(bytes[0])?;
        let reduces = executor.bound().shape.is_some();
        let own = if reduces {
            let offsets = [0, bytes[0], bytes[0].saturating_add(bytes[1])];
            let result = offsets[2] as usize..offsets[2].saturating_add(bytes[2]) as usize;
            provide(&mut self.work, &self.pd, result.end.max(1))?;
            (self.offsets, self.result) = (Some(offsets), result);
            let own = of_work(&self.work, self.offsets).ok_or_else(no_buffers)?;
            own[0].copy_from(0, &send, 0, bytes[0] as usize)?;
            own
        } else {
            receive.check(bytes[2])?;
            self.offsets = None;
            [send, receive, receive]
        };
        if copies || reduces {
            executor.copy_own(&mut Regions { buffers: Some(own), operands: &mut self.operands })?;
        }
        let posting = Posting::new(descriptor, &executor, own);
        self.launch(executor, posting)
    }

    /// Begins what has been checked.
    fn launch(&mut self, executor: Executor, posting: Posting) -> Result<(), Error> {
        self.started_ps = self.link.now_ps();
        self.link.begin(posting, &executor, self.started_ps);
        self.executor = Some(executor);
        let result = self.drive();
        self.failed |= result.is_err();
        result
    }

    /// What the last reduction has given this rank; nothing before the first one, or while one is under way.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn result(&self) -> Result<Vec<u8>, Error> {
        let (Some(work), true) = (self.work.last(), self.is_complete()) else { return Ok(Vec::new()) };
        let mut bytes = zeroes(self.result.len())?;
        work.read(self.result.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies what the last reduction has given this rank to the beginning of a buffer; nothing as with
    /// [`Group::result`].
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub(crate) fn copy_result(&self, to: &Buffer<'_>) -> Result<(), Error> {
        let Some(region) = self.work.last() else { return Ok(()) };
        to.copy_from(0, &Buffer { region, offset: 0 }, self.result.start, self.result.len())
    }

    /// Exchanges the greetings that otherwise go with the first operation, for those who measure one. To be called on
    /// all ranks, once all have connected, until it returns true; between two calls the caller lets the card make
    /// progress.
    ///
    /// # Errors
    /// As [`Group::progress`]; [`Error::Timeout`] if a peer's greeting does not come within the bound.
    pub fn greet(&mut self) -> Result<bool, Error> {
        let (now_ps, link) = (self.link.now_ps(), &mut self.link);
        if self.executor.is_none() && link.polls == 0 {
            link.progress_ps = now_ps;
        }
        link.connections.iter_mut().try_for_each(|connection| connection.greet(now_ps))?;
        let moved = self.advance()?;
        let silent = self.link.connections.iter().find(|connection| !connection.has_greeted());
        let Some(peer) = silent.map(Connection::peer) else { return Ok(true) };
        if !moved {
            self.give_up_late((peer, "the greeting"))?;
        }
        Ok(false)
    }

    /// Takes what has completed and posts what may be posted. Does not wait; between two calls the caller lets the card
    /// make progress ([`flexio::Relax`]).
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Connection`], [`Error::Mismatch`], [`Error::Protocol`], [`Error::Message`], each
    /// naming the peer; [`Error::Flexio`]. From then on [`Error::Failed`].
    pub fn progress(&mut self) -> Result<(), Error> {
        if self.advance()? || self.is_complete() {
            return Ok(());
        }
        let awaited = self.awaited().unwrap_or((self.place().rank(), "the end"));
        self.give_up_late(awaited)
    }

    /// Counts a poll in vain, and fails if there was no progress within the bound. The rank owes something: what.
    fn give_up_late(&mut self, (peer, what): (u32, &'static str)) -> Result<(), Error> {
        let link = &mut self.link;
        link.polls += 1;
        let (waited_ps, polls) = (link.now_ps().saturating_sub(link.progress_ps), link.polls);
        let bound = link.config.bound;
        if u128::from(waited_ps) < bound.span.as_nanos() * 1000 && polls < bound.polls {
            return Ok(());
        }
        self.failed = true;
        let operation = link.posting.as_ref().map_or(0, Posting::number);
        Err(Error::Timeout { operation, peer, what, waited_us: waited_ps / 1_000_000, polls })
    }

    /// The same for a caller that bounds operations itself. Returns whether anything has happened.
    ///
    /// # Errors
    /// As [`Group::progress`], but [`Error::Timeout`].
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        let result = self.poll().and_then(|moved| match (moved, &self.executor) {
            (true, _) => self.drive().map(|()| true),
            (false, Some(executor)) => self.link.poll_silence(executor).map(|()| false),
            (false, None) => Ok(false),
        });
        self.failed |= result.is_err();
        result
    }

    /// Takes completions. Whether the operation has moved on.
    fn poll(&mut self) -> Result<bool, Error> {
        let Self { link, executor, work, offsets, operands, .. } = self;
        let Some(executor) = executor else { return link.poll(&mut |_| Ok(())) };
        let buffers = of_work(work, *offsets);
        executor.poll(link, &mut Regions { buffers, operands })
    }

    /// Posts what may be posted, and ends the operation when it is complete.
    fn drive(&mut self) -> Result<(), Error> {
        let Self { link, executor: Some(executor), operands, .. } = self else { return Ok(()) };
        executor.drive(link, &mut Regions { buffers: None, operands })?;
        if executor.is_complete() {
            self.executor = None;
            self.link.finish();
            let took_ps = self.link.now_ps().saturating_sub(self.started_ps);
            self.link.statistics.busy += Duration::from_nanos(took_ps / 1000);
        }
        Ok(())
    }

    /// The rank that owes the first thing that is missing, and what; none while no operation is under way.
    pub(crate) fn awaited(&self) -> Option<(u32, &'static str)> {
        self.link.awaited(self.executor.as_ref()?)
    }

    /// When a silent peer is to be probed, in picoseconds of the provider's clock: [`Group::progress`] is to be called
    /// then, even if nothing has come until then. None while no operation is under way, or nothing of it.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        let Self { link, executor: Some(executor), .. } = self else { return None };
        let silent_ps = link.connections.iter().filter_map(|connection| connection.silence_ps(&link.wire));
        let awaited = link.awaited_connection(executor).map(|at| &link.connections[at]);
        silent_ps.chain(awaited.and_then(|connection| connection.keep_alive_ps(link.progress_ps))).min()
    }
}

/// Makes memory for a reduction, unless there is enough.
fn provide(work: &mut Vec<MemoryRegion>, pd: &ProtectionDomain, len: usize) -> Result<(), Error> {
    let had = work.last().map_or(0, MemoryRegion::len);
    if had < len {
        let memory = HostBuffer::zeroed(len.max(had.saturating_mul(2)))?;
        work.push(MemoryRegion::register(pd, memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?);
    }
    Ok(())
}

/// The buffers of a reduction in the group's memory, one behind the other; none of another operation.
fn of_work(work: &[MemoryRegion], offsets: Option<[u64; 3]>) -> Option<[Buffer<'_>; 3]> {
    let (region, offsets) = (work.last()?, offsets?);
    Some(offsets.map(|offset| Buffer { region, offset }))
}
