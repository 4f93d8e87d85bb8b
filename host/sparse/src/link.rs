//! One queue pair between a worker and an aggregator, for one shard.

use flexio::{
    Access, CompletionQueue, Connection, GatherRequest, LocalSlice, Path, ProtectionDomain, QueueDepths, QueuePair,
    SendKind, Transport,
};

use super::Config;
use super::connect_info::Remote;

/// Sends that may be under way. One at a time waits for an answer, but acknowledgements of the ones before it may be
/// late.
const SEND_DEPTH: u32 = 8;
/// Every so many sends one completes visibly, so that a full queue has one that does.
const SIGNALED: u32 = SEND_DEPTH / 2;
/// Receives: of one message at a time.
const RECEIVE_DEPTH: u32 = 2;

/// A peer that has been silent for so long is probed, by a Read of nothing: its card sees by the packet's number that
/// one before it is missing, and asks for it ([`requester`](flexcast_rc::requester) does the same). The next probes
/// come after four times as long each.
const PROBE_PS: u64 = 25_000_000;
/// Probes of one silence. Behind them there is the card's own timeout.
const MOST_PROBES: u32 = 3;

/// What a completion is of: comes back in its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Receive,
    /// So many sends are over.
    Sends(u32),
}

impl Work {
    const fn id(self, link: u32) -> u64 {
        let code: u64 = match self {
            Self::Receive => 0,
            Self::Sends(count) => count as u64,
        };
        code << 32 | link as u64
    }

    /// What an id says: link and work.
    pub(super) const fn of(id: u64) -> (usize, Self) {
        let work = match (id >> 32) as u32 {
            0 => Self::Receive,
            count => Self::Sends(count),
        };
        (id as u32 as usize, work)
    }
}

/// Entries that a completion queue for so many links needs.
pub(super) const fn completions(links: u32) -> u32 {
    links.saturating_mul(SEND_DEPTH + RECEIVE_DEPTH)
}

#[derive(Debug)]
pub(super) struct Link {
    queue_pair: QueuePair,
    number: u32,
    /// Sends whose completion has not been seen.
    under_way: u32,
    /// The last of them that no signal will report.
    unsignaled: u32,
    received_bytes: u64,
    /// When the peer is probed next; none while nothing shows that something is missing.
    probe_ps: Option<u64>,
    probes: u32,
}

impl Link {
    /// For messages in up to so many pieces of memory.
    pub(super) fn new(
        pd: &ProtectionDomain,
        completions: &CompletionQueue,
        number: u32,
        pieces: u32,
    ) -> flexio::Result<Self> {
        let depths = QueueDepths { send: SEND_DEPTH, receive: RECEIVE_DEPTH };
        let queue_pair = QueuePair::builder(pd, Transport::Rc, depths).lists(pieces).build(completions, completions)?;
        queue_pair.init(Access::LOCAL_WRITE | Access::REMOTE_READ, 0)?;
        Ok(Self { queue_pair, number, under_way: 0, unsignaled: 0, received_bytes: 0, probe_ps: None, probes: 0 })
    }

    pub(super) fn qpn(&self) -> u32 {
        self.queue_pair.qpn()
    }

    /// Connects; receives may have been posted.
    pub(super) fn connect(&mut self, remote: &Remote, config: &Config) -> flexio::Result<()> {
        self.queue_pair.connect(
            &Connection::to(remote.queue_pair)
                .first_psn(remote.first_psn)
                .path(Path::of_class(config.class))
                .retry(config.retry),
        )
    }

    /// Posts the receive of a message.
    pub(super) fn receive(&self, pieces: &[LocalSlice]) -> flexio::Result<()> {
        self.queue_pair.post_scatter(Work::Receive.id(self.number), pieces)
    }

    /// A message has come.
    pub(super) const fn received(&mut self, bytes: u32) {
        self.received_bytes += bytes as u64;
        // What was sent before has come, or there would be no answer.
        self.probe_ps = None;
    }

    /// Bytes of messages that have come.
    pub(super) const fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Whether there is room for a message.
    pub(super) const fn has_room(&self) -> bool {
        self.under_way < SEND_DEPTH
    }

    /// Whether the peer has acknowledged everything, as far as has been asked for.
    pub(super) const fn is_drained(&self) -> bool {
        self.under_way == self.unsignaled
    }

    /// Sends a message, for which there is room. `last`: its completion is asked for.
    pub(super) fn send(
        &mut self,
        pieces: &[LocalSlice],
        immediate: u32,
        last: bool,
        now_ps: u64,
    ) -> flexio::Result<()> {
        let covered = self.unsignaled + 1;
        let signaled = last || covered == SIGNALED;
        self.queue_pair.post_gather(&GatherRequest {
            id: Work::Sends(covered).id(self.number),
            kind: SendKind::Send,
            pieces,
            immediate: Some(immediate),
            signaled,
        })?;
        self.under_way += 1;
        self.unsignaled = if signaled { 0 } else { covered };
        (self.probe_ps, self.probes) = (Some(now_ps.saturating_add(PROBE_PS)), 0);
        Ok(())
    }

    /// So many sends are over.
    pub(super) const fn sent(&mut self, count: u32) {
        self.under_way = self.under_way.saturating_sub(count);
        if self.under_way == 0 {
            self.probe_ps = None;
        }
    }

    /// When the peer is to be probed.
    pub(super) fn probe_ps(&self) -> Option<u64> {
        self.probe_ps.filter(|_| self.has_room() && self.probes < MOST_PROBES)
    }

    /// Probes a peer that has been silent for too long.
    pub(super) fn poll_silence(&mut self, now_ps: u64) -> flexio::Result<()> {
        if self.probe_ps().is_none_or(|at_ps| now_ps < at_ps) {
            return Ok(());
        }
        // When it is over, so is all that was sent before it.
        self.queue_pair.post_gather(&GatherRequest {
            id: Work::Sends(self.unsignaled + 1).id(self.number),
            kind: SendKind::Read { remote_addr: 0, rkey: 0 },
            pieces: &[],
            immediate: None,
            signaled: true,
        })?;
        (self.under_way, self.unsignaled) = (self.under_way + 1, 0);
        self.probes += 1;
        self.probe_ps = Some(now_ps.saturating_add(PROBE_PS << (2 * self.probes)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_what_they_are_of() {
        for (work, link) in [(Work::Receive, 0), (Work::Sends(1), u32::MAX), (Work::Sends(SIGNALED), 7)] {
            assert_eq!(Work::of(work.id(link)), (link as usize, work));
        }
    }
}
