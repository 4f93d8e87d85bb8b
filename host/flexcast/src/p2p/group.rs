//! Ranks that are connected, and what they are at.

use std::time::Duration;

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Allgather, Blocks, Broadcast, Operation, Schedule, Transfer};
use flexio::{Completion, CompletionQueue, MemoryRegion, ProtectionDomain};

use super::announcement::OperationDescriptor;
use super::collect::collect;
use super::connection::{Connection, Immediate, Work};
use super::linger::Lingering;
use super::operation::{Buffer, Division, Pieces, Running};
use super::reduce::Reducing;
use super::{Config, Error};
use flexcast_rc::requester::{Outcome, Wire};

/// Bytes copied at a time from a contribution to its place.
const COPY_BYTES: usize = 1 << 16;

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
    place: RankInfo,
    config: Config,
    /// By peer, ascending. Before the memory that they use: dropped first.
    connections: Vec<Connection>,
    slots: MemoryRegion,
    pub(super) reducing: Reducing,
    pub(super) pd: ProtectionDomain,
    completions: CompletionQueue,
    /// The slowest of all ranks' links.
    wire: Wire,
    division: Division,
    running: Option<Running>,
    /// A message that its connection had no room for.
    held: Option<Transfer>,
    next: u32,
    failed: bool,
    started_ps: u64,
    /// Of the last completion, and how often was looked since.
    progress_ps: u64,
    looks: u64,
    statistics: Statistics,
    /// What this rank tells in its next Allgather, and what any rank has told in the last one.
    tells: bool,
    told: bool,
    /// Messages by connection, for checks; contributions on their way to their places.
    counts: Vec<u32>,
    pub(super) scratch: Vec<u8>,
}

/// Memory for copies, of the length that it should have.
pub(super) fn sized(scratch: &mut Vec<u8>) -> &mut [u8] {
    scratch.resize(COPY_BYTES, 0);
    scratch
}

impl Group {
    pub(super) fn new(
        place: RankInfo,
        (config, wire): (Config, Wire),
        pd: ProtectionDomain,
        completions: CompletionQueue,
        connections: Vec<Connection>,
        slots: MemoryRegion,
    ) -> Self {
        Self {
            place,
            config,
            counts: vec![0; connections.len()],
            connections,
            slots,
            reducing: Reducing::default(),
            pd,
            completions,
            wire,
            division: Division { pieces: Pieces::Ends(Vec::new()), segments: 1 },
            running: None,
            held: None,
            next: 0,
            failed: false,
            started_ps: 0,
            progress_ps: 0,
            looks: 0,
            statistics: Statistics::default(),
            tells: false,
            told: false,
            scratch: Vec::new(),
        }
    }

    /// The own place.
    #[must_use]
    pub fn place(&self) -> RankInfo {
        self.place
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Whether no operation is under way: the last one is complete, and its buffers are the caller's.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.running.is_none()
    }

    /// Ends the group; its peers' cards still get answers for as long as they may ask again for them, if they have sent
    /// something lately.
    pub(crate) fn leave(self, lingering: &Lingering) {
        let Self { connections, slots, completions, config, running: None, failed: false, .. } = self else { return };
        let Some(heard_ps) = connections.iter().filter_map(Connection::heard_ps).max() else { return };
        let device = completions.device().clone();
        let answerers: Vec<_> = connections.into_iter().flat_map(Connection::into_answerers).collect();
        lingering.keep((answerers, slots, completions), &device, heard_ps, config.retry);
    }

    /// Tells all ranks something in the next Allgather, by a bit of each message: what a message carries on is what its
    /// sender has heard. Every rank needs the block of every other one, so whoever has them all has heard what any rank
    /// told.
    pub(crate) const fn tell(&mut self) {
        self.tells = true;
    }

    /// Whether any rank has told something in the last Allgather, which is complete: alike on all ranks.
    pub(crate) const fn is_told(&self) -> bool {
        self.told
    }

    /// The longest time that a peer has not acknowledged anything, since this was last asked for.
    pub(crate) fn take_silence(&mut self) -> Duration {
        let longest_ps = self.connections.iter_mut().map(Connection::take_silence_ps).max();
        Duration::from_nanos(longest_ps.unwrap_or(0) / 1000)
    }

    /// How often connections have restarted, since this was last asked for.
    pub(crate) fn take_restarts(&mut self) -> u32 {
        self.connections.iter_mut().map(Connection::take_restarts).sum()
    }

    /// Starts an Allgather of equal contributions: rank r's `block_bytes` bytes come to lie at r · `block_bytes` of
    /// every rank's `receive`, which has P · `block_bytes`. Without a `contribution` the own one is there already;
    /// otherwise it is copied first.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Flexio`] for buffers that are too short.
    pub fn allgather(
        &mut self,
        algorithm: Allgather,
        block_bytes: u64,
        contribution: Option<Buffer<'_>>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let pieces = Pieces::Even(Blocks::equal(block_bytes, self.place.ranks())?);
        let division = Division { pieces, segments: algorithm.segments() };
        self.start(Operation::Allgather(algorithm), division, contribution, receive)
    }

    /// The same for contributions of any length: that of rank r ends at `ends[r]` in the receive buffer, where the next
    /// begins.
    ///
    /// # Errors
    /// As [`Group::allgather`]; [`Error::Blocks`] for ends that go back, [`Error::OutOfRange`] unless there is one for
    /// each rank.
    pub fn allgatherv(
        &mut self,
        algorithm: Allgather,
        ends: &[u64],
        contribution: Option<Buffer<'_>>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let ranks = self.place.ranks();
        if ends.len() != ranks as usize {
            let limit = format!("{ranks}, one for each rank");
            return Err(Error::OutOfRange { what: "the number of contributions", value: ends.len() as u64, limit });
        }
        // The memory of an earlier one is used again.
        let mut kept = match &mut self.division.pieces {
            Pieces::Ends(kept) if self.running.is_none() => std::mem::take(kept),
            _ => Vec::new(),
        };
        kept.clear();
        kept.extend_from_slice(ends);
        let division = Division { pieces: Pieces::Ends(kept), segments: algorithm.segments() };
        self.start(Operation::Allgather(algorithm), division, contribution, receive)
    }

    /// Starts a Broadcast of the root's `bytes` bytes at `buffer` to the same place of all others. On trees they go in
    /// segments of `segment_bytes`.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`], [`Error::Schedule`] for a root or radix that cannot
    /// be, [`Error::Blocks`] for empty segments or too many, [`Error::Flexio`] for a buffer that is too short.
    pub fn broadcast(
        &mut self,
        algorithm: Broadcast,
        root: u32,
        bytes: u64,
        segment_bytes: u64,
        buffer: Buffer<'_>,
    ) -> Result<(), Error> {
        let blocks = algorithm.blocks(bytes, segment_bytes, self.place.ranks())?;
        let operation = Operation::Broadcast { algorithm, root, blocks: blocks.count() };
        self.start(operation, Division { pieces: Pieces::Even(blocks), segments: 1 }, None, buffer)
    }

    /// Starts a Barrier: it is complete on no rank before all have called this. Nothing is written to any buffer.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`], [`Error::NotConnected`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        let schedule = self.schedule(Operation::Barrier)?;
        let descriptor = OperationDescriptor::new(self.next, Operation::Barrier, None, &Blocks::EMPTY);
        // Writes of no bytes read and write nowhere; any memory will do.
        let running = Running::new(schedule, descriptor, &Buffer { region: &self.slots, offset: 0 });
        self.begin(running, Division { pieces: Pieces::Even(Blocks::EMPTY), segments: 1 })
    }

    fn start(
        &mut self,
        operation: Operation,
        division: Division,
        contribution: Option<Buffer<'_>>,
        receive: Buffer<'_>,
    ) -> Result<(), Error> {
        let schedule = self.schedule(operation)?;
        let blocks = division.blocks()?;
        receive.check(blocks.total_bytes())?;
        if let Some(contribution) = contribution {
            let own = division.pieces()?.block(self.place.rank());
            let len = own.end - own.start;
            contribution.check(len)?;
            contribution.copy(0, len, &receive, own.start, self.scratch())?;
        }
        let running = Running::new(schedule, OperationDescriptor::new(self.next, operation, None, &blocks), &receive);
        self.begin(running, division)
    }

    /// Memory for copies.
    pub(super) fn scratch(&mut self) -> &mut [u8] {
        sized(&mut self.scratch)
    }

    /// Number of the next operation.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The schedule of an operation that may begin now.
    pub(super) fn schedule(&mut self, operation: Operation) -> Result<Schedule, Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        if let Some(running) = &self.running {
            return Err(Error::Busy { operation: running.number() });
        }
        let schedule = Schedule::new(operation, self.place)?;
        self.check_connections(&schedule)?;
        Ok(schedule)
    }

    /// Begins what has been checked.
    pub(super) fn begin(&mut self, running: Running, division: Division) -> Result<(), Error> {
        self.division = division;
        let now_ps = self.now_ps();
        (self.started_ps, self.progress_ps, self.looks) = (now_ps, now_ps, 0);
        self.next = self.next.wrapping_add(1);
        self.told = running.schedule.is_allgather() && std::mem::take(&mut self.tells);
        for connection in &mut self.connections {
            if running.announces_to(connection.peer()) {
                connection.expect_messages();
            }
        }
        self.running = Some(running);
        let result = self.drive();
        self.failed |= result.is_err();
        result
    }

    /// Checks that there is a connection and enough receives for each message of a schedule.
    fn check_connections(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let Self { connections, counts, .. } = self;
        let sources = schedule.receives().map(|arrival| arrival.from);
        check_messages(connections, counts, sources, |connection| connection.accepts())?;
        let targets = schedule.sends().map(|transfer| transfer.to);
        check_messages(connections, counts, targets, |connection| connection.peer_accepts())
    }

    /// Exchanges the greetings that otherwise go with the first operation, for those who measure one. To be called on
    /// all ranks, once all have connected, until it returns true; between two calls the caller lets the card make
    /// progress.
    ///
    /// # Errors
    /// As [`Group::progress`]; [`Error::Timeout`] if a peer's greeting does not come within the bound.
    pub fn greet(&mut self) -> Result<bool, Error> {
        let now_ps = self.now_ps();
        if self.running.is_none() && self.looks == 0 {
            self.progress_ps = now_ps;
        }
        self.connections.iter_mut().try_for_each(|connection| connection.greet(now_ps))?;
        let moved = self.advance()?;
        let Some(silent) = self.connections.iter().find(|connection| !connection.has_greeted()) else {
            return Ok(true);
        };
        let peer = silent.peer();
        if !moved {
            let operation = self.running.as_ref().map_or(0, |running| running.number());
            self.give_up_late(operation, (peer, "the greeting"))?;
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
        if self.advance()? {
            return Ok(());
        }
        self.check_time()
    }

    /// The same for a caller that bounds operations itself. Tells whether anything has happened.
    ///
    /// # Errors
    /// As [`Group::progress`], but [`Error::Timeout`].
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        let result = self.collect();
        let result = result
            .and_then(|seen| if seen { self.drive().map(|()| true) } else { self.poll_silence().map(|()| false) });
        self.failed |= result.is_err();
        result
    }

    /// The rank that owes the first thing that is missing, and what; none while no operation is under way.
    pub(crate) fn awaited(&self) -> Option<(u32, &'static str)> {
        let running = self.running.as_ref()?;
        let owing = |connection: &Connection| connection.owes().map(|what| (connection.peer(), what));
        let message = || running.schedule.waiting_for().map(|peer| (peer, "a message"));
        self.connections.iter().find_map(owing).or_else(message)
    }

    /// The connection to the rank that owes the first thing that is missing.
    fn awaited_connection(&self) -> Option<usize> {
        let (rank, _) = self.awaited()?;
        self.connections.binary_search_by_key(&rank, Connection::peer).ok()
    }

    /// Probes or restarts connections to peers that have not acknowledged anything for long, and probes the one that is
    /// waited for.
    fn poll_silence(&mut self) -> Result<(), Error> {
        if self.running.is_none() {
            return Ok(());
        }
        let now_ps = self.now_ps();
        self.connections.iter_mut().try_for_each(|connection| connection.poll_silence(&mut self.wire, now_ps))?;
        match self.awaited_connection() {
            // Others may have ended their part, and be gone.
            Some(at) => self.connections[at].keep_alive(self.progress_ps, now_ps),
            None => Ok(()),
        }
    }

    /// When a silent peer is to be probed, in picoseconds of the provider's clock: [`Group::progress`] is to be called
    /// then, even if nothing has come until then. None while no operation is under way, or nothing of it.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        self.running.as_ref()?;
        let silent_ps = self.connections.iter().filter_map(|connection| connection.silence_ps(&self.wire));
        let awaited = self.awaited_connection().map(|at| &self.connections[at]);
        silent_ps.chain(awaited.and_then(|connection| connection.keep_alive_ps(self.progress_ps))).min()
    }

    /// Takes completions. Whether the operation has moved on: an answer to a probe shows that the peer's card is alive,
    /// not that its program does anything.
    fn collect(&mut self) -> Result<bool, Error> {
        let completions = self.completions.clone();
        let now_ps = self.now_ps();
        let mut moved = false;
        collect(&completions, |completion| {
            moved |= self.handle(completion, now_ps)?;
            Ok::<(), Error>(())
        })?;
        if moved {
            (self.progress_ps, self.looks) = (now_ps, 0);
        }
        Ok(moved)
    }

    /// Takes a completion. Whether it is one of the operation's.
    fn handle(&mut self, completion: &Completion, now_ps: u64) -> Result<bool, Error> {
        let (index, work) = Work::of(completion.id);
        let Some(connection) = self.connections.get_mut(index) else { return Ok(false) };
        let peer = connection.peer();
        let is_answered = matches!(work, Work::Announcement { .. } | Work::Message);
        let outcome = if is_answered { Outcome::Done } else { connection.complete(work, completion.status, now_ps)? };
        if outcome == Outcome::Nothing {
            return Ok(false);
        }
        self.completions
            .check(completion, "a baseline collective's work request")
            .map_err(|source| Error::Connection { peer, source })?;
        let running = self.running.as_mut();
        let idle = || Error::Protocol { peer, reason: "a message between two operations".to_owned() };
        match work {
            Work::Announce | Work::Greet | Work::Probe(_) => {}
            Work::Announcement { slot } => {
                connection.hear(now_ps);
                let at = running.map_or(self.next, |running| running.number());
                connection.handle_announcement(slot, completion.byte_len, at, &self.slots)?;
            }
            Work::Write { last } => {
                if last {
                    let running = running.ok_or_else(idle)?;
                    let operation = running.number();
                    running.schedule.sent().map_err(|source| Error::Message { operation, source })?;
                }
            }
            Work::Message => {
                connection.hear(now_ps);
                let running = running.ok_or_else(idle)?;
                let immediate = completion
                    .immediate
                    .ok_or_else(|| Error::Protocol { peer, reason: "a message without an immediate".to_owned() })?;
                let Immediate { tag, told } = Immediate::decode(immediate);
                let operation = running.number();
                running.schedule.arrived(peer, tag).map_err(|source| Error::Message { operation, source })?;
                self.told |= told;
                self.reducing.combine(running)?;
                connection.receive_message()?;
            }
        }
        Ok(true)
    }

    /// Posts what may be posted, and ends the operation when it is complete.
    fn drive(&mut self) -> Result<(), Error> {
        let now_ps = self.now_ps();
        let Some(running) = &mut self.running else { return Ok(()) };
        while let Some(transfer) = self.held.take().or_else(|| running.schedule.poll()) {
            let index = self.connections.binary_search_by_key(&transfer.to, Connection::peer);
            let missing = Error::NotConnected { peer: transfer.to, messages: 1, limit: 0 };
            let connection = &mut self.connections[index.map_err(|_| missing)?];
            if !connection.take(transfer) {
                self.held = Some(transfer);
                break;
            }
        }
        let blocks = self.division.blocks()?;
        for connection in &mut self.connections {
            connection.check(running, self.place.ranks())?;
            self.statistics.announcements += u64::from(connection.announce(running, now_ps)?);
            let posted = connection.write(running, &blocks, self.told, now_ps)?;
            self.statistics.messages += posted.messages;
            self.statistics.data_bytes += posted.bytes;
            self.wire.post(posted.bytes, now_ps);
        }
        if running.schedule.is_complete() {
            for connection in &mut self.connections {
                connection.finish(running);
            }
            self.running = None;
            self.statistics.operations += 1;
            self.statistics.busy += Duration::from_nanos(self.now_ps().saturating_sub(self.started_ps) / 1000);
        }
        Ok(())
    }

    fn now_ps(&self) -> u64 {
        self.completions.device().provider().relax().now_ps()
    }

    /// Ends an operation that has waited for too long.
    fn check_time(&mut self) -> Result<(), Error> {
        let Some(running) = &self.running else { return Ok(()) };
        let operation = running.number();
        let awaited = self.awaited().unwrap_or((self.place.rank(), "the end"));
        self.give_up_late(operation, awaited)
    }

    /// Counts a look in vain, and fails if there was no progress within the bound. `awaited`: the rank that owes
    /// something, and what.
    fn give_up_late(&mut self, operation: u32, (peer, what): (u32, &'static str)) -> Result<(), Error> {
        self.looks += 1;
        let waited_ps = self.now_ps().saturating_sub(self.progress_ps);
        if u128::from(waited_ps) < self.config.bound.span.as_nanos() * 1000 && self.looks < self.config.bound.looks {
            return Ok(());
        }
        self.failed = true;
        Err(Error::Timeout { operation, peer, what, waited_us: waited_ps / 1_000_000, looks: self.looks })
    }
}

/// Counts messages by their peers and compares with a limit of the connection.
fn check_messages(
    connections: &[Connection],
    counts: &mut [u32],
    peers: impl Iterator<Item = u32>,
    limit: impl Fn(&Connection) -> u32,
) -> Result<(), Error> {
    counts.fill(0);
    for peer in peers {
        let Ok(index) = connections.binary_search_by_key(&peer, Connection::peer) else {
            return Err(Error::NotConnected { peer, messages: 1, limit: 0 });
        };
        counts[index] += 1;
        let (messages, limit) = (counts[index], limit(&connections[index]));
        if messages > limit {
            return Err(Error::NotConnected { peer, messages, limit });
        }
    }
    Ok(())
}
