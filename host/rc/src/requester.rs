//! The requesting end of a reliable connection that does not wait for the card's timeout.
//!
//! InfiniBand allows a responder one NAK per gap. If that NAK is lost, everything behind the gap is dropped in silence
//! until the requester's timeout, which is milliseconds where a round trip is microseconds. So a requester here first
//! probes a peer that is silent, by a Read of nothing: the peer's card sees by its number that a packet before it is
//! missing, and asks for it at once; so does the own card when the answer comes and one before it has not. If that does
//! not help, the requester restarts its own end: the queue pair is emptied through ERR and RESET, begins again with the
//! number of the oldest packet that is not acknowledged, and the same requests are posted again in the same order. The
//! responder sees what it would have seen after a timeout: packets that it has executed are duplicates, and the next
//! one closes the gap. It takes no note of it.
//!
//! A peer from which its owner waits for something, while nothing of this end is under way, shows nothing either when
//! its process has ended. So such a peer is probed, too, now and then ([`KEEP_ALIVE_PS`]): a card that has forgotten
//! the queue pair does not answer, and the connection breaks.
//!
//! That is possible because this end receives nothing: requests of the peer come on a queue pair of their own, which is
//! never restarted.

use std::collections::VecDeque;

use flexio::{Access, Connection, InlineRequest, LocalSlice, Path, QueuePair, RemoteQp, Retry, SendKind, SendRequest};

/// Completion status of a request that was flushed (`IBV_WC_WR_FLUSH_ERR`).
const FLUSHED: u32 = 5;
/// Packet numbers have 24 bits.
const PSN_MASK: u32 = 0xFF_FFFF;
/// A peer is probed that has been silent for twice as long as it has been lately at most, within these bounds: a probe
/// does no harm but that it takes a packet.
const PROBE_PS: [u64; 2] = [8_000_000, 25_000_000];
/// Where losses are expected, after five quarters of that, but not before so long: the acknowledgement of a message
/// that is alone takes about 3 us.
const HASTY_PROBE_PS: u64 = 4_000_000;
/// The connection restarts if a probe has brought nothing for four times the usual silence, within these bounds, and
/// again after twice as long as before each time, but not before what is under way has had time on the [`Wire`]. A
/// network that is full delays acknowledgements, too, and what is sent again makes it no emptier.
const RESTART_PS: [u64; 2] = [25_000_000, 500_000_000];
/// What a silence usually is at most, before anything is known.
const FIRST_PS: u64 = 16_000_000;
/// Probes and restarts of one silence. Behind them there is the card's own timeout.
const MOST_TRIES: u32 = 4;

/// How long a connection is still before a peer is probed from which its owner waits for something, although nothing of
/// this end is under way.
pub const KEEP_ALIVE_PS: u64 = 500_000_000_000;

/// Probes that may be among the requests of one requester, for which its send queue has room.
pub const PROBES: u32 = 2;
/// Bytes of a message that go with its entry, and with them to the card in one access: a BlueFlame register takes
/// entries of 256 bytes, of which 20 are not data.
pub const INLINE_BYTES: usize = 236;
// One packet on the shortest MTU.
const _: () = assert!(INLINE_BYTES <= 256);

/// What a request does. The memory that it names stays as it is until the request is over.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Sends bytes of a memory region.
    Send(LocalSlice),
    /// Sends the next bytes of [`Requester::send_short`].
    SendShort,
    /// Writes to the peer's memory. An immediate takes a receive there.
    Write {
        /// What is written; none: nothing.
        local: Option<LocalSlice>,
        /// Where to, in the peer's memory.
        remote_addr: u64,
        /// Key of that memory.
        rkey: u32,
        /// Immediate, which consumes a receive.
        immediate: Option<u32>,
    },
    /// Reads the peer's memory.
    Read {
        /// Where to.
        local: LocalSlice,
        /// What is read, in the peer's memory.
        remote_addr: u64,
        /// Key of that memory.
        rkey: u32,
    },
    /// Reads nothing.
    Probe,
}

/// A message whose bytes go with its entry.
#[derive(Clone, Copy, Debug)]
struct Short {
    len: u8,
    bytes: [u8; INLINE_BYTES],
}

impl Short {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Request {
    /// Bytes that it sends, writes or reads, but for those of a short message.
    pub fn bytes(&self) -> u32 {
        match self {
            Self::Send(local) | Self::Read { local, .. } | Self::Write { local: Some(local), .. } => local.len,
            Self::SendShort | Self::Write { local: None, .. } | Self::Probe => 0,
        }
    }

    /// Packet numbers that it takes: one for each packet of a message, or of the answer to a read.
    fn packets(&self, mtu_bytes: u32) -> u32 {
        // The shortest MTU holds a message that goes with its entry.
        self.bytes().div_ceil(mtu_bytes).max(1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    id: u64,
    request: Request,
}

/// What the completion of a request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request is over.
    Done,
    /// Nothing for the owner: a probe, or a request that is posted again.
    Nothing,
    /// The connection is broken: a work completion status.
    Broken(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// In ERR until so many requests have completed.
    Emptying(usize),
    Broken,
}

/// When the slowest link would have carried all that a rank has posted on its connections, at the earliest.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    gbit_per_s: u64,
    busy_ps: u64,
}

impl Wire {
    /// An idle one. A rate of 0 is unknown, and taken for 10 Gbit/s.
    pub const fn new(gbit_per_s: u64) -> Self {
        Self { gbit_per_s: if gbit_per_s == 0 { 10 } else { gbit_per_s }, busy_ps: 0 }
    }

    /// Bytes are posted.
    pub fn post(&mut self, bytes: u64, now_ps: u64) {
        let takes_ps = bytes.saturating_mul(8000) / self.gbit_per_s;
        self.busy_ps = self.busy_ps.max(now_ps).saturating_add(takes_ps);
    }
}

/// One end of a connection: requests go out here, and none come in.
#[derive(Debug)]
pub struct Requester {
    queue_pair: QueuePair,
    peer: Option<(RemoteQp, Path, Retry)>,
    mtu_bytes: u32,
    /// Requests that are not over, oldest first.
    pending: VecDeque<Pending>,
    /// The messages among them whose bytes go with their entries.
    short: VecDeque<Short>,
    /// Number of the first packet of the oldest.
    psn: u32,
    state: State,
    /// Whether it may restart.
    may_restart: bool,
    restarts: u32,
    silence: Silence,
}

/// For how long a peer has been silent, and what has been tried.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// When something is tried next.
    at_ps: u64,
    tries: u32,
    /// When something was tried last.
    tried_ps: u64,
    /// When an acknowledgement began to be awaited, or the last one came.
    since_ps: u64,
    longest_ps: u64,
    /// What silences have lately been at most, without a probe.
    usual_ps: u64,
    /// Losses are expected: a probe in vain is less likely than one that helps.
    expects_losses: bool,
}

impl Silence {
    const NONE: Self = Self {
        at_ps: u64::MAX,
        tries: 0,
        tried_ps: 0,
        since_ps: 0,
        longest_ps: 0,
        usual_ps: FIRST_PS,
        expects_losses: false,
    };

    /// From now on an acknowledgement is awaited.
    fn begin(&mut self, now_ps: u64) {
        (self.since_ps, self.tries, self.at_ps) = (now_ps, 0, now_ps.saturating_add(self.patience_ps()));
    }

    /// How long a peer may be silent before it is probed.
    fn patience_ps(&self) -> u64 {
        if self.expects_losses {
            return (self.usual_ps + self.usual_ps / 4).clamp(HASTY_PROBE_PS, PROBE_PS[1]);
        }
        self.usual_ps.saturating_mul(2).clamp(PROBE_PS[0], PROBE_PS[1])
    }

    /// Something is acknowledged.
    fn end(&mut self, now_ps: u64) {
        let silence_ps = now_ps.saturating_sub(self.since_ps);
        self.longest_ps = self.longest_ps.max(silence_ps);
        if self.tries == 0 {
            self.usual_ps = silence_ps.max(self.usual_ps - self.usual_ps / 16);
        } else if self.tries > 1 && now_ps.saturating_sub(self.tried_ps) > self.usual_ps.saturating_mul(2) {
            // The restart has not brought the answer: there was no loss.
            self.usual_ps = silence_ps.min(RESTART_PS[1]).max(self.usual_ps);
        }
        self.begin(now_ps);
    }

    /// When something is to be tried next; none when everything has been. A probe does no harm while the wire is busy;
    /// a restart waits for twice as long as it takes.
    fn next_ps(&self, wire: &Wire) -> Option<u64> {
        let busy_ps = wire.busy_ps.saturating_add(wire.busy_ps.saturating_sub(self.since_ps));
        let at_ps = if self.tries == 0 { self.at_ps } else { self.at_ps.max(busy_ps) };
        (self.tries < MOST_TRIES).then_some(at_ps)
    }

    fn tried(&mut self, now_ps: u64) {
        let restart_ps = self.usual_ps.saturating_mul(4).clamp(RESTART_PS[0], RESTART_PS[1]);
        self.tried_ps = now_ps;
        self.at_ps = now_ps.saturating_add(restart_ps << self.tries);
        self.tries += 1;
    }

    /// The longest there was since this was last asked for.
    const fn take_longest_ps(&mut self) -> u64 {
        std::mem::replace(&mut self.longest_ps, 0)
    }
}

impl Requester {
    /// The end at a queue pair (RC) in state RESET with room for [`PROBES`] more requests than its owner posts.
    /// `may_restart`: otherwise it only probes.
    ///
    /// # Errors
    /// [`flexio::Error::Verbs`].
    pub fn new(queue_pair: QueuePair, mtu_bytes: u32, may_restart: bool) -> flexio::Result<Self> {
        queue_pair.init(Access::LOCAL_WRITE, 0)?;
        Ok(Self {
            queue_pair,
            peer: None,
            mtu_bytes,
            pending: VecDeque::new(),
            short: VecDeque::new(),
            psn: 0,
            state: State::Up,
            may_restart,
            restarts: 0,
            silence: Silence::NONE,
        })
    }

    /// Number of its queue pair.
    pub fn qpn(&self) -> u32 {
        self.queue_pair.qpn()
    }

    /// Connects to the peer's answering end, which expects packet 0 first.
    pub fn connect(&mut self, peer: &RemoteQp, path: Path, retry: Retry) -> flexio::Result<()> {
        self.peer = Some((*peer, path, retry));
        self.queue_pair.connect(&Connection::to(*peer).first_psn(self.psn).path(path).retry(retry))
    }

    /// Posts a request whose completion comes with `id`, in order behind all others.
    pub fn post(&mut self, id: u64, request: Request, now_ps: u64) -> flexio::Result<()> {
        self.push(Pending { id, request }, None, now_ps)
    }

    /// [`Requester::post`] of a message whose bytes, [`INLINE_BYTES`] at most, go with its entry: the card need not
    /// read them, nor, as it is alone, the entry. They are the caller's again at once.
    pub fn send_short(&mut self, id: u64, bytes: &[u8], now_ps: u64) -> flexio::Result<()> {
        let mut short = Short { len: bytes.len() as u8, bytes: [0; INLINE_BYTES] };
        short.bytes[..bytes.len()].copy_from_slice(bytes);
        self.push(Pending { id, request: Request::SendShort }, Some(short), now_ps)
    }

    fn push(&mut self, pending: Pending, short: Option<Short>, now_ps: u64) -> flexio::Result<()> {
        if self.pending.is_empty() {
            self.silence.begin(now_ps);
        }
        if self.state == State::Up {
            post(&self.queue_pair, pending, short.as_ref())?;
        }
        self.pending.push_back(pending);
        self.short.extend(short);
        Ok(())
    }

    /// Whether losses are expected: then a silent peer is probed sooner.
    pub const fn expect_losses(&mut self, expected: bool) {
        self.silence.expects_losses = expected;
    }

    /// Whether all that was posted is over.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// When [`Requester::poll_silence`] has something to do.
    pub fn silence_ps(&self, wire: &Wire) -> Option<u64> {
        let waits = !self.pending.is_empty() && self.state == State::Up;
        self.silence.next_ps(wire).filter(|_| waits)
    }

    /// When [`Requester::keep_alive`] has something to do, if its owner has waited for the peer since `since_ps`.
    pub fn keep_alive_ps(&self, since_ps: u64) -> Option<u64> {
        let is_still = self.pending.is_empty() && self.state == State::Up;
        is_still.then(|| self.silence.since_ps.max(since_ps).saturating_add(KEEP_ALIVE_PS))
    }

    /// Probes a peer for which its owner has waited since `since_ps`, if the connection has been still for long.
    /// `probe` comes back with the completion of the probe.
    pub fn keep_alive(&mut self, probe: u64, since_ps: u64, now_ps: u64) -> flexio::Result<()> {
        match self.keep_alive_ps(since_ps) {
            Some(at_ps) if now_ps >= at_ps => self.post(probe, Request::Probe, now_ps),
            _ => Ok(()),
        }
    }

    /// Whether it is between two connections: what it has been given is not with the card until [`Requester::complete`]
    /// has been called for what was flushed.
    pub const fn is_restarting(&self) -> bool {
        matches!(self.state, State::Emptying(_))
    }

    /// Probes a peer that has not acknowledged anything for long, or begins to restart. `probe` comes back with the
    /// completion of a probe.
    pub fn poll_silence(&mut self, probe: u64, wire: &mut Wire, now_ps: u64) -> flexio::Result<()> {
        if self.silence_ps(wire).is_none_or(|at_ps| now_ps < at_ps) {
            return Ok(());
        }
        let probes = self.pending.iter().filter(|pending| matches!(pending.request, Request::Probe)).count();
        if self.silence.tries == 0 || !self.may_restart {
            if probes < PROBES as usize {
                self.post(probe, Request::Probe, now_ps)?;
            }
        } else {
            tracing::debug!(
                qpn = self.qpn(),
                requests = self.pending.len(),
                "a peer is silent: the connection restarts"
            );
            self.state = State::Emptying(self.pending.len());
            self.queue_pair.fail()?;
            self.restarts += 1;
            wire.post(self.pending.iter().map(|pending| u64::from(pending.request.bytes())).sum(), now_ps);
        }
        self.silence.tried(now_ps);
        Ok(())
    }

    /// The longest time without an acknowledgement that was awaited, since this was last asked for, in picoseconds.
    pub const fn take_silence_ps(&mut self) -> u64 {
        self.silence.take_longest_ps()
    }

    /// How often it has restarted since this was last asked for.
    pub const fn take_restarts(&mut self) -> u32 {
        std::mem::replace(&mut self.restarts, 0)
    }

    /// Takes the completion of a request.
    pub fn complete(&mut self, status: u32, now_ps: u64) -> flexio::Result<Outcome> {
        let mut outcome = Outcome::Nothing;
        match (status, self.state) {
            (_, State::Broken) => return Ok(outcome),
            (0, _) => {
                let Some(Pending { request, .. }) = self.pending.pop_front() else { return Ok(outcome) };
                self.psn = self.psn.wrapping_add(request.packets(self.mtu_bytes)) & PSN_MASK;
                self.silence.end(now_ps);
                match request {
                    Request::Probe => {}
                    Request::SendShort => {
                        self.short.pop_front();
                        outcome = Outcome::Done;
                    }
                    _ => outcome = Outcome::Done,
                }
            }
            (FLUSHED, State::Emptying(_)) => {}
            (status, _) => {
                self.state = State::Broken;
                return Ok(Outcome::Broken(status));
            }
        }
        if let State::Emptying(left) = &mut self.state {
            *left -= 1;
            if *left == 0 {
                self.restart()?;
            }
        }
        Ok(outcome)
    }

    /// Connects again and posts again what is not over.
    fn restart(&mut self) -> flexio::Result<()> {
        let Some((peer, path, retry)) = &self.peer else { return Ok(()) };
        self.queue_pair.reset()?;
        self.queue_pair.init(Access::LOCAL_WRITE, 0)?;
        self.queue_pair.connect(&Connection::to(*peer).first_psn(self.psn).path(*path).retry(*retry))?;
        self.state = State::Up;
        let mut short = self.short.iter();
        for pending in &self.pending {
            let bytes = matches!(pending.request, Request::SendShort).then(|| short.next()).flatten();
            post(&self.queue_pair, *pending, bytes)?;
        }
        Ok(())
    }
}

fn post(queue_pair: &QueuePair, pending: Pending, short: Option<&Short>) -> flexio::Result<()> {
    let Pending { id, request } = pending;
    let signaled = true;
    let (kind, local, immediate) = match request {
        Request::SendShort => {
            let (kind, bytes) = (SendKind::Send, short.map_or(&[][..], Short::bytes));
            return queue_pair.post_inline([InlineRequest { id, kind, bytes, immediate: None, signaled }]);
        }
        Request::Send(local) => (SendKind::Send, Some(local), None),
        Request::Write { local, remote_addr, rkey, immediate } => {
            (SendKind::Write { remote_addr, rkey }, local, immediate)
        }
        Request::Read { local, remote_addr, rkey } => (SendKind::Read { remote_addr, rkey }, Some(local), None),
        Request::Probe => (SendKind::Read { remote_addr: 0, rkey: 0 }, None, None),
    };
    queue_pair.post_send(&SendRequest { id, kind, local, immediate, signaled })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Wire = Wire::new(200);

    #[test]
    fn a_silent_peer_is_tried_at_growing_distances_and_not_for_ever() {
        let mut silence = Silence::NONE;
        assert_eq!(silence.next_ps(&IDLE), Some(u64::MAX));
        silence.begin(1000);
        for after_ps in [PROBE_PS[1], 4 * FIRST_PS, 8 * FIRST_PS, 16 * FIRST_PS] {
            assert_eq!(silence.next_ps(&IDLE), Some(1000 + after_ps));
            silence.tried(1000);
        }
        assert_eq!(silence.next_ps(&IDLE), None);
        silence.end(2000);
        let busy = Wire { busy_ps: 10 * RESTART_PS[1], ..IDLE };
        assert_eq!(silence.next_ps(&busy), Some(2000 + PROBE_PS[1]), "a probe does no harm");
        silence.tried(2000);
        assert_eq!(silence.next_ps(&busy), Some(20 * RESTART_PS[1] - 2000));
        silence.end(3000);
        assert_eq!(silence.next_ps(&IDLE), Some(3000 + PROBE_PS[1]));
        silence.begin(u64::MAX);
        assert_eq!(silence.next_ps(&IDLE), Some(u64::MAX));
    }

    #[test]
    fn a_peer_that_is_usually_quick_is_probed_sooner() {
        let mut silence = Silence::NONE;
        let patience_ps = |silence: &Silence| silence.at_ps - silence.since_ps;
        let mut now_ps = 0;
        for _ in 0..100 {
            silence.begin(now_ps);
            now_ps += 5_000_000;
            silence.end(now_ps);
        }
        assert_eq!(patience_ps(&silence), 10_000_000);
        silence.end(now_ps + 6_000_000);
        assert_eq!(patience_ps(&silence), 12_000_000);
        silence.tried(now_ps);
        assert_eq!(silence.at_ps - now_ps, 25_000_000, "four times 6 us, and not less");
        silence.end(now_ps + 30_000_000);
        assert_eq!(patience_ps(&silence), 12_000_000, "one that a probe has ended does not count");
        silence.tried(now_ps);
        silence.tried(now_ps + 60_000_000);
        silence.end(now_ps + 65_000_000);
        assert_eq!(patience_ps(&silence), 12_000_000, "nor one that a restart has ended");
        silence.tried(now_ps);
        silence.tried(now_ps + 80_000_000);
        silence.end(now_ps + 135_000_000);
        assert_eq!(
            (patience_ps(&silence), silence.usual_ps),
            (25_000_000, 70_000_000),
            "one that goes on after a restart does"
        );
        (0..200).for_each(|_| silence.end(silence.since_ps));
        assert_eq!(patience_ps(&silence), 8_000_000);
    }

    #[test]
    fn the_longest_silence_is_taken_once() {
        let mut silence = Silence::NONE;
        silence.begin(5000);
        silence.end(5700);
        // What is tried meanwhile does not shorten it.
        silence.tried(6000);
        silence.end(7000);
        silence.begin(9000);
        silence.end(9001);
        assert_eq!((silence.take_longest_ps(), silence.take_longest_ps()), (1300, 0));
    }

    #[test]
    fn a_wire_is_busy_for_as_long_as_its_bytes_take() {
        let mut wire = Wire::new(200);
        wire.post(7 << 20, 1000);
        assert_eq!(wire.busy_ps, 1000 + 293_601_280);
        wire.post(1250, 5000);
        assert_eq!(wire.busy_ps, 1000 + 293_601_280 + 50_000, "behind the others");
        wire.post(1250, 900_000_000);
        assert_eq!(wire.busy_ps, 900_050_000);
        assert_eq!(Wire::new(0).gbit_per_s, 10);
    }

    #[test]
    fn a_request_takes_a_number_for_each_packet() {
        let local = |len| LocalSlice { addr: flexio::HostAddr(0), len, lkey: 0 };
        let read = |len| Request::Read { local: local(len), remote_addr: 0, rkey: 0 };
        let counts = [read(0), read(1), read(1024), read(1025), Request::Probe, Request::Send(local(4096))];
        assert_eq!(counts.map(|request| request.packets(1024)), [1, 1, 1, 2, 1, 4]);
        let write = |local| Request::Write { local, remote_addr: 0, rkey: 0, immediate: None };
        assert_eq!([write(None), write(Some(local(3000)))].map(|request| request.packets(1024)), [1, 3]);
    }
}
