//! Link of reliable connections: messages go by RDMA Writes to addresses that their receivers have announced.

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Schedule, Transfer};
use flexio::{Completion, CompletionQueue, MemoryRegion};

use super::buffer::Regions;
use super::connection::{Connection, Immediate, Work};
use super::executor::{Executor, Link, LinkEvent, Taken};
use super::posting::Posting;
use super::{Config, Error, Statistics};
use flexcast_rc::collect::collect;
use flexcast_rc::requester::{Outcome, Wire};

/// The connections of a rank, and the operation that goes over them.
#[derive(Debug)]
pub(super) struct QueuePairs {
    pub(super) place: RankInfo,
    pub(super) config: Config,
    /// By peer, ascending. Before the memory that they use: dropped first.
    pub(super) connections: Vec<Connection>,
    pub(super) slots: MemoryRegion,
    pub(super) completions: CompletionQueue,
    /// The slowest of all ranks' links.
    pub(super) wire: Wire,
    /// The operation under way.
    pub(super) posting: Option<Posting>,
    /// Number of the next one.
    pub(super) next: u32,
    /// Of the last completion, and how often the queue was polled in vain since.
    pub(super) progress_ps: u64,
    pub(super) polls: u64,
    /// Whether this rank reports a stall in its next Allgather, and whether any rank has in the last one.
    pub(super) reports_stall: bool,
    pub(super) has_stalled: bool,
    pub(super) statistics: Statistics,
    /// Messages by connection, for checks.
    counts: Vec<u32>,
}

impl QueuePairs {
    pub(super) fn new(
        place: RankInfo,
        (config, wire): (Config, Wire),
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
            completions,
            wire,
            posting: None,
            next: 0,
            progress_ps: 0,
            polls: 0,
            reports_stall: false,
            has_stalled: false,
            statistics: Statistics::default(),
        }
    }

    pub(super) fn now_ps(&self) -> u64 {
        self.completions.device().provider().relax().now_ps()
    }

    /// Checks that there is a connection and enough receives for each message of a schedule.
    pub(super) fn check(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let Self { connections, counts, .. } = self;
        let sources = schedule.receives().map(|arrival| arrival.from);
        check_messages(connections, counts, sources, |connection| connection.accepts())?;
        let targets = schedule.sends().map(|transfer| transfer.to);
        check_messages(connections, counts, targets, |connection| connection.peer_accepts())
    }

    /// Takes an operation that begins.
    pub(super) fn begin(&mut self, posting: Posting, executor: &Executor, now_ps: u64) {
        (self.progress_ps, self.polls) = (now_ps, 0);
        self.has_stalled = executor.schedule().is_allgather() && std::mem::take(&mut self.reports_stall);
        let announces = |connection: &&mut Connection| posting.announces_to(connection.peer());
        self.connections.iter_mut().filter(announces).for_each(Connection::expect_messages);
        self.posting = Some(posting);
        self.next = self.next.wrapping_add(1);
    }

    /// The operation is over.
    pub(super) fn finish(&mut self) {
        let Some(posting) = self.posting.take() else { return };
        self.connections.iter_mut().for_each(|connection| connection.finish(&posting));
        self.statistics.operations += 1;
    }

    /// The rank that owes the first thing that is missing, and what.
    pub(super) fn awaited(&self, executor: &Executor) -> Option<(u32, &'static str)> {
        let owing = |connection: &Connection| connection.owes().map(|what| (connection.peer(), what));
        let message = || executor.awaited().map(|peer| (peer, "a message"));
        self.connections.iter().find_map(owing).or_else(message)
    }

    /// The connection to the rank that owes the first thing that is missing.
    pub(super) fn awaited_connection(&self, executor: &Executor) -> Option<usize> {
        let (rank, _) = self.awaited(executor)?;
        self.connections.binary_search_by_key(&rank, Connection::peer).ok()
    }

    /// Probes or restarts connections to peers that have not acknowledged anything for long, and probes the one that is
    /// waited for.
    pub(super) fn poll_silence(&mut self, executor: &Executor) -> Result<(), Error> {
        let now_ps = self.now_ps();
        self.connections.iter_mut().try_for_each(|connection| connection.poll_silence(&mut self.wire, now_ps))?;
        match self.awaited_connection(executor) {
            // Others may have ended their part, and be gone.
            Some(at) => self.connections[at].keep_alive(self.progress_ps, now_ps),
            None => Ok(()),
        }
    }

    /// Takes a completion. Whether it is one of an operation's: an answer to a probe shows that the peer's card is
    /// alive, not that its program does anything.
    fn handle(
        &mut self,
        completion: &Completion,
        now_ps: u64,
        notify: &mut dyn FnMut(LinkEvent) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let (index, work) = Work::of(completion.id);
        let Some(connection) = self.connections.get_mut(index) else { return Ok(false) };
        let peer = connection.peer();
        let is_answered = matches!(work, Work::Announcement { .. } | Work::Message);
        let outcome = if is_answered { Outcome::Done } else { connection.complete(work, completion.status, now_ps)? };
        if outcome == Outcome::Nothing {
            return Ok(false);
        }
        self.completions
            .check(completion, "a work request of a point-to-point collective")
            .map_err(|source| Error::Connection { peer, source })?;
        let is_idle = self.posting.is_none();
        let refused = |reason: &str| Error::Protocol { peer, reason: reason.to_owned() };
        match work {
            Work::Announce | Work::Greet | Work::Probe(_) | Work::Write { last: false } => {}
            Work::Announcement { slot } => {
                connection.note_received(now_ps);
                let number = self.posting.as_ref().map_or(self.next, Posting::number);
                connection.handle_announcement(slot, completion.byte_len, number, &self.slots)?;
            }
            Work::Write { last: true } | Work::Message if is_idle => {
                return Err(refused("a message between two operations"));
            }
            Work::Write { last: true } => notify(LinkEvent::Sent(1))?,
            Work::Message => {
                connection.note_received(now_ps);
                let immediate = completion.immediate.ok_or_else(|| refused("a message without an immediate"))?;
                let Immediate { tag, has_stalled } = Immediate::decode(immediate);
                notify(LinkEvent::Arrived { from: peer, tag })?;
                self.has_stalled |= has_stalled;
                connection.receive_message()?;
            }
        }
        Ok(true)
    }
}

impl Link<Regions<'_>> for QueuePairs {
    fn operation(&self) -> u32 {
        self.posting.as_ref().map_or(self.next, Posting::number)
    }

    fn take(&mut self, transfer: &Transfer, _: &Executor, _: &Regions<'_>) -> Result<Taken, Error> {
        let index = self.connections.binary_search_by_key(&transfer.to, Connection::peer);
        let missing = Error::NotConnected { peer: transfer.to, messages: 1, limit: 0 };
        let is_taken = self.connections[index.map_err(|_| missing)?].take(*transfer);
        Ok(if is_taken { Taken::Waits } else { Taken::No })
    }

    fn flush(&mut self, executor: &Executor, _: &Regions<'_>) -> Result<bool, Error> {
        let now_ps = self.now_ps();
        let Some(posting) = &self.posting else { return Ok(false) };
        for connection in &mut self.connections {
            connection.check(posting, executor)?;
            self.statistics.announcements += u64::from(connection.announce(posting, executor, now_ps)?);
            let posted = connection.write(posting, executor, self.has_stalled, now_ps)?;
            self.statistics.messages += posted.messages;
            self.statistics.data_bytes += posted.bytes;
            self.wire.post(posted.bytes, now_ps);
        }
        // What goes on is what completes.
        Ok(false)
    }

    fn poll(&mut self, notify: &mut dyn FnMut(LinkEvent) -> Result<(), Error>) -> Result<bool, Error> {
        let completions = self.completions.clone();
        let now_ps = self.now_ps();
        let mut moved = false;
        collect(&completions, |completion| {
            moved |= self.handle(completion, now_ps, notify)?;
            Ok::<(), Error>(())
        })?;
        if moved {
            (self.progress_ps, self.polls) = (now_ps, 0);
        }
        Ok(moved)
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
