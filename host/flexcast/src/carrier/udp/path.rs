//! Path MTU between the hosts of a communicator: probing (RFC 8899), and agreement on the longest packet that all paths
//! carry.
//!
//! A switch may carry shorter frames than the hosts send, and says nothing of those that it drops. So before ranks
//! connect, each sends packets of several lengths to the other ends of its connections on other hosts, which answer
//! them. The shortest length always passes; while it is answered and a longer one is not, that one is lost. The least
//! of what all ranks have found goes around in the rounds of a dissemination barrier. A second such barrier follows, so
//! that no rank connects before all others know the result. A thread answers until all that may ask have what they
//! need.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flexcast_proto::{RankInfo, RankSet};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{UdpSockRef, UdpSocketState};
use socket2::Socket;

use super::datagram::{Codec, HEADER_BYTES, Kind, PathMessage};
use super::interface::{LEAST_MTU_BYTES, UDP_BYTES};
use crate::error::{Error, Result};

/// Packets of this length pass every Ethernet: where no interface has a longer MTU nothing is probed.
pub(super) const PLAIN_MTU_BYTES: u32 = 1500;
/// Probes of a length that are lost, one behind the other, before it counts as too long.
const TRIES: u32 = 3;
/// The search ends when a packet that is so much longer than one that passes is lost.
const TOLERANCE_BYTES: u32 = 64;
/// Time after which a message that is not answered is sent again.
const REPEAT: Duration = Duration::from_millis(10);

/// Search for the longest packet that reaches a peer. Lengths are those of IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Search {
    /// The longest that has been answered, or passes anyway.
    passes: u32,
    /// The shortest that is lost.
    lost: u32,
    /// The one that is probed.
    size: u32,
    tries: u32,
    /// Probes that have been sent, and those before the first of this length.
    sent: u32,
    sent_before: u32,
}

impl Search {
    /// Among lengths up to `limit`.
    const fn new(limit: u32) -> Self {
        Self { passes: LEAST_MTU_BYTES, lost: limit + 1, size: limit, tries: 0, sent: 0, sent_before: 0 }
    }

    const fn is_over(&self) -> bool {
        self.size <= self.passes
    }

    /// The length to probe, if the search is not over, and the number of the probe. One of [`LEAST_MTU_BYTES`] is to be
    /// sent behind it, with the same number.
    fn probe(&mut self) -> Option<(u32, u32)> {
        if self.is_over() {
            return None;
        }
        self.sent += 1;
        Some((self.size, self.sent))
    }

    /// A probe of this length and number has been answered. Answers come in the order of the probes.
    fn answered(&mut self, size: u32, number: u32) {
        if self.is_over() {
            return;
        }
        if size == self.size {
            self.passes = size;
            self.next();
        } else if size == LEAST_MTU_BYTES && number > self.sent_before {
            self.tries += 1;
            if self.tries == TRIES {
                self.refused();
            }
        }
    }

    /// The length that is probed is too long.
    fn refused(&mut self) {
        self.lost = self.size;
        self.next();
    }

    fn next(&mut self) {
        let Self { passes, lost, .. } = *self;
        (self.tries, self.sent_before) = (0, self.sent);
        self.size = if lost - passes <= TOLERANCE_BYTES {
            passes
        } else if passes < PLAIN_MTU_BYTES && PLAIN_MTU_BYTES < lost {
            PLAIN_MTU_BYTES
        } else {
            passes + (lost - passes) / 2
        };
    }
}

/// The longest packet that all paths carry, and the rank that has found it; the least of several, and of the lowest
/// rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PathMtu {
    pub(super) bytes: u32,
    pub(super) rank: u32,
}

impl PathMtu {
    const RANK_BITS: u32 = 16;

    const fn word(self) -> u32 {
        self.bytes << Self::RANK_BITS | self.rank
    }

    const fn of_word(word: u32) -> Self {
        Self { bytes: word >> Self::RANK_BITS, rank: word & ((1 << Self::RANK_BITS) - 1) }
    }
}

/// A rank that probes, and answers others.
#[derive(Debug)]
struct Prober {
    place: RankInfo,
    codec: Codec,
    /// Sends packets that are not fragmented, and gets answers.
    socket: UdpSocket,
    /// Where each rank gets probes.
    peers: Vec<SocketAddr>,
    /// Ranks to whose probes others answer, and the longest packet that either end sends.
    others: Vec<(u32, u32)>,
    timeout: Duration,
    board: Board,
}

/// A rank's part in the probing of paths. Others are answered until it is dropped, or they need no answers.
#[derive(Debug)]
pub(crate) struct Probing(Arc<Prober>);

impl Probing {
    /// Begins to answer. `peers`: where each rank gets probes. `others`: the ranks to which this one connects and that
    /// are of other hosts, with the longest packets that either end sends.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        (place, codec): (RankInfo, Codec),
        socket: UdpSocket,
        (peers, others): (Vec<SocketAddr>, Vec<(u32, u32)>),
        timeout: Duration,
    ) -> Result<Self> {
        let prober = Arc::new(Prober { place, codec, socket, peers, others, timeout, board: Board::default() });
        let answering = Arc::clone(&prober);
        let started = thread::Builder::new().name("flexcast-path".to_owned()).spawn(move || answering.answer());
        started.map(|_| Self(prober)).map_err(|source| Error::Socket {
            what: "thread that answers probes".to_owned(),
            source,
            next: "see the limit of processes (`ulimit -u`)",
        })
    }

    /// Probes the paths; the longest packet that all carry, at most `own`, the interface's MTU, on any rank. `ready` is
    /// called when it is known, before any rank connects.
    ///
    /// # Errors
    /// A rank does not answer in time; what `ready` gives.
    pub(super) fn agree(&self, own: u32, ready: impl FnOnce(PathMtu) -> Result<()>) -> Result<PathMtu> {
        self.0.agree(own, ready)
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        let Prober { board, socket, peers, place, .. } = &*self.0;
        board.lock().is_over = true;
        // The thread waits for a datagram.
        if let Some(own) = peers.get(place.rank() as usize) {
            let _ = socket.send_to(&[], own);
        }
    }
}

/// What the thread that answers and the one that asks share.
#[derive(Debug, Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The own values of rounds, as far as they are known.
    values: Vec<u32>,
    /// Answers and values of others: rank, round, what it is.
    came: VecDeque<(u32, u32, PathMessage)>,
    /// Ranks that ask for nothing more.
    done: RankSet,
    /// So does this one.
    is_agreed: bool,
    /// Nobody is answered any more.
    is_over: bool,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most messages that wait to be handled; senders repeat others.
const MOST_CAME: usize = 1024;

/// A socket whose datagrams are not fragmented, and come one by one.
pub(super) fn unfragmented(socket: Socket) -> Result<UdpSocket> {
    let failed = |source| Error::Socket { what: "socket for probes".to_owned(), source, next: "try again" };
    // What it sets stays with the socket.
    UdpSocketState::new(UdpSockRef::from(&socket)).map_err(failed)?;
    let _ = setsockopt(&socket, sockopt::UdpGroSegment, &false);
    Ok(socket.into())
}

impl Prober {
    fn rounds(&self) -> u32 {
        u32::BITS - (self.place.ranks() - 1).leading_zeros()
    }

    /// Ranks that ask this one.
    fn askers(&self) -> RankSet {
        let of_rounds = (0..self.rounds()).map(|round| self.place.ahead(1 << round));
        of_rounds.chain(self.others.iter().map(|(rank, _)| *rank)).filter(|rank| *rank != self.place.rank()).collect()
    }

    /// Answers the probes and questions of others until they need no answers, or cannot wait for them any more.
    fn answer(&self) {
        let (mut room, askers) = (vec![0; 1 << 16], self.askers());
        // Others begin later, and wait as long.
        let until = Instant::now() + 2 * self.timeout;
        while Instant::now() < until {
            let state = self.board.lock();
            if state.is_over || (state.is_agreed && askers.without(&state.done).is_empty()) {
                return;
            }
            drop(state);
            let mut wanted = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut wanted, PollTimeout::from(100u8));
            while let Ok((len, from)) = self.socket.recv_from(&mut room) {
                let Ok(datagram) = self.codec.decode(room.get(..len).unwrap_or_default()) else { continue };
                let Kind::Path(message) = datagram.kind else { continue };
                self.take_message(from, (datagram.rank, datagram.operation), message);
            }
        }
    }

    /// Takes a message of a rank, in a round.
    fn take_message(&self, from: SocketAddr, (rank, round): (u32, u32), message: PathMessage) {
        match message {
            PathMessage::Probe { bytes } => _ = self.send(from, round, PathMessage::Answer { bytes }, 0),
            PathMessage::Ask => {
                let value = self.board.lock().values.get(round as usize).copied();
                value.into_iter().for_each(|value| _ = self.send(from, round, PathMessage::Value { value }, 0));
            }
            PathMessage::Done => _ = self.board.lock().done.insert(rank),
            PathMessage::Answer { .. } | PathMessage::Value { .. } => {
                let mut state = self.board.lock();
                if state.came.len() < MOST_CAME {
                    state.came.push_back((rank, round, message));
                }
                drop(state);
                self.board.changed.notify_one();
            }
        }
    }

    /// Sends a message, `padding` bytes longer than it need be. False: the system refuses so long a packet.
    fn send(&self, to: SocketAddr, round: u32, message: PathMessage, padding: usize) -> bool {
        let mut bytes = vec![0; HEADER_BYTES + padding];
        let chunk = vec![0; padding];
        self.codec.encode(round, Kind::Path(message), &chunk, &mut bytes);
        // What is lost otherwise is sent again.
        !self
            .socket
            .send_to(&bytes, to)
            .is_err_and(|error| error.raw_os_error() == Some(nix::errno::Errno::EMSGSIZE as i32))
    }

    fn agree(&self, own: u32, ready: impl FnOnce(PathMtu) -> Result<()>) -> Result<PathMtu> {
        let until = Instant::now() + self.timeout;
        let mut value = PathMtu { bytes: own.min(self.search(until)?), rank: self.place.rank() };
        let rounds = self.rounds();
        for round in 0..rounds {
            self.board.lock().values.push(value.word());
            let theirs = self.ask(self.place.behind(1 << round), round, until)?;
            value = value.min(PathMtu::of_word(theirs));
        }
        ready(value)?;
        for round in 0..rounds {
            self.board.lock().values.push(value.word());
            self.ask(self.place.behind(1 << round), rounds + round, until)?;
        }
        let asked = (0..rounds).map(|round| self.place.behind(1 << round));
        let asked: RankSet = asked.chain(self.others.iter().map(|(rank, _)| *rank)).collect();
        // One that is lost makes a rank answer longer than it need.
        for to in [asked; 2].iter().flat_map(RankSet::iter).filter_map(|rank| self.peers.get(rank as usize)) {
            self.send(*to, 0, PathMessage::Done, 0);
        }
        self.board.lock().is_agreed = true;
        Ok(value)
    }

    /// The longest packet that reaches all other ends.
    fn search(&self, until: Instant) -> Result<u32> {
        let mut searches: Vec<(u32, Search)> =
            self.others.iter().map(|(rank, limit)| (*rank, Search::new(*limit))).collect();
        let ip_bytes = |to: &SocketAddr| UDP_BYTES + if to.is_ipv4() { 20 } else { 40 } + HEADER_BYTES as u32;
        let padding = |to: &SocketAddr, bytes: u32| bytes.saturating_sub(ip_bytes(to)) as usize;
        let probe = |rank: u32, search: &mut Search| {
            let Some(to) = self.peers.get(rank as usize) else { return };
            while let Some((bytes, number)) = search.probe() {
                let message = PathMessage::Probe { bytes };
                if !self.send(*to, number, message, padding(to, bytes)) {
                    search.refused();
                    continue;
                }
                let bytes = LEAST_MTU_BYTES;
                self.send(*to, number, PathMessage::Probe { bytes }, padding(to, bytes));
                break;
            }
        };
        while let Some(missing) = searches.iter().find(|(_, search)| !search.is_over()).map(|(rank, _)| *rank) {
            if Instant::now() >= until {
                return Err(self.silent(missing));
            }
            searches.iter_mut().for_each(|(rank, search)| probe(*rank, search));
            let repeat = until.min(Instant::now() + REPEAT);
            while searches.iter().any(|(_, search)| !search.is_over()) {
                let Some((from, number, message)) = self.take(repeat) else { break };
                let PathMessage::Answer { bytes } = message else { continue };
                let Some((_, search)) = searches.iter_mut().find(|(rank, _)| *rank == from) else { continue };
                search.answered(bytes, number);
                if bytes == LEAST_MTU_BYTES {
                    // Without a wait: the path answers.
                    probe(from, search);
                }
            }
        }
        Ok(searches.iter().map(|(_, search)| search.passes).min().unwrap_or(u32::MAX))
    }

    /// The value of a rank in a round.
    fn ask(&self, rank: u32, round: u32, until: Instant) -> Result<u32> {
        loop {
            let to = self.peers.get(rank as usize).ok_or_else(|| self.silent(rank))?;
            self.send(*to, round, PathMessage::Ask, 0);
            let repeat = Instant::now() + REPEAT;
            while let Some(came) = self.take(repeat.min(until)) {
                if let (from, of, PathMessage::Value { value }) = came
                    && (from, of) == (rank, round)
                {
                    return Ok(value);
                }
            }
            if Instant::now() >= until {
                return Err(self.silent(rank));
            }
        }
    }

    /// The next message for the thread that asks; none by that time.
    fn take(&self, until: Instant) -> Option<(u32, u32, PathMessage)> {
        let left = until.saturating_duration_since(Instant::now());
        let state = self.board.lock();
        let waited = self.board.changed.wait_timeout_while(state, left, |state| state.came.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.came.pop_front()
    }

    fn silent(&self, rank: u32) -> Error {
        let at = self.peers.get(rank as usize).map_or_else(String::new, |address| format!(" at {address}"));
        let reason = format!(
            "does not answer UDP datagrams{at} within {:?}, by which the length of datagrams is found: allow UDP \
             between \
             the hosts, or set the MTU of their interfaces to {PLAIN_MTU_BYTES}, with which nothing is probed",
            self.timeout
        );
        Error::Peer { rank, reason }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::carrier::udp::datagram::Secret;

    /// What a search finds where packets of up to `mtu` bytes pass, and the probes that it takes.
    fn found(limit: u32, mtu: u32) -> (u32, u32) {
        let (mut search, mut probes) = (Search::new(limit), 0);
        while let Some((size, number)) = search.probe() {
            probes += 1;
            if size <= mtu {
                search.answered(size, number);
            }
            search.answered(LEAST_MTU_BYTES, number);
            assert!(probes < 100, "{search:?}");
        }
        (search.passes, probes)
    }

    #[test]
    fn a_search_finds_what_passes_and_no_more() {
        assert_eq!(found(9000, 9000), (9000, 1), "a path without fault takes one probe");
        assert_eq!(found(9000, 1500).0, 1500);
        for limit in [1501, 2000, 4200, 9000] {
            for mtu in (1280..limit).step_by(7) {
                let (passes, probes) = found(limit, mtu);
                assert!(passes <= mtu && mtu - passes < TOLERANCE_BYTES, "{limit} {mtu}: {passes}");
                assert!(probes <= 30, "{limit} {mtu}: {probes} probes");
            }
        }
    }

    #[test]
    fn a_length_counts_as_lost_only_while_shorter_packets_behind_it_are_answered() {
        let mut search = Search::new(9000);
        // The peer comes late: all but the first of many probes are repetitions.
        for number in 1..=20 {
            assert_eq!(search.probe(), Some((9000, number)));
        }
        (1..TRIES).for_each(|number| search.answered(LEAST_MTU_BYTES, number));
        assert_eq!(search.size, 9000);
        (3..=20).for_each(|number| search.answered(LEAST_MTU_BYTES, number));
        assert_eq!((search.size, search.tries), (PLAIN_MTU_BYTES, 0), "what was answered was sent before");
        assert_eq!(search.probe(), Some((PLAIN_MTU_BYTES, 21)));
        search.answered(PLAIN_MTU_BYTES, 21);
        assert_eq!(search.passes, PLAIN_MTU_BYTES);
        let mut search = Search::new(9000);
        let number = search.probe().unwrap().1;
        search.answered(9000, number);
        search.answered(LEAST_MTU_BYTES, number);
        assert_eq!((search.is_over(), search.passes), (true, 9000), "late answers change nothing");
    }

    #[test]
    fn the_least_value_counts_and_of_equals_the_lowest_rank() {
        let values = [(9000, 0), (1500, 1023), (1500, 7)].map(|(bytes, rank)| PathMtu { bytes, rank });
        assert!(values.iter().all(|value| PathMtu::of_word(value.word()) == *value));
        assert_eq!(values.iter().min(), Some(&values[2]));
    }

    fn probing(
        (rank, ranks): (u32, u32),
        socket: UdpSocket,
        paths: (Vec<SocketAddr>, Vec<(u32, u32)>),
        timeout: Duration,
    ) -> Probing {
        let codec = Codec::new(7, rank, Some(Secret([1, 2, 3, 4])));
        Probing::start((RankInfo::new(rank, ranks).unwrap(), codec), socket, paths, timeout).unwrap()
    }

    /// Ranks as threads over the loopback interface; each has found something on its own.
    #[test]
    fn ranks_of_any_number_agree_on_the_least() {
        for ranks in [2, 3, 5, 8] {
            let sockets: Vec<UdpSocket> = (0..ranks).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
            sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
            let peers: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
            let known = AtomicU32::new(0);
            let results: Vec<PathMtu> = thread::scope(|scope| {
                let of = |(rank, socket): (u32, UdpSocket)| {
                    let (known, peers) = (&known, peers.clone());
                    scope.spawn(move || {
                        let both: RankSet = [1, ranks - 1].iter().map(|ahead| (rank + ahead) % ranks).collect();
                        let others = both.iter().map(|rank| (rank, 9000)).collect();
                        let probing = probing((rank, ranks), socket, (peers, others), Duration::from_secs(20));
                        // They come one after the other.
                        thread::sleep(Duration::from_millis(30) * rank);
                        let ready = |_| {
                            known.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        };
                        let agreed = probing.agree(9000 - rank, ready).unwrap();
                        assert_eq!(known.load(Ordering::SeqCst), ranks, "before all know it");
                        (agreed, probing)
                    })
                };
                let threads: Vec<_> = (0..).zip(sockets).map(of).collect();
                let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                let is_over = || ends.iter().all(|(_, probing)| Arc::strong_count(&probing.0) == 1);
                let begun = Instant::now();
                while !is_over() && begun.elapsed() < Duration::from_secs(10) {
                    thread::sleep(Duration::from_millis(1));
                }
                assert!(is_over(), "a thread answers although nobody asks");
                ends.into_iter().map(|(agreed, _)| agreed).collect()
            });
            let expected = PathMtu { bytes: 9000 - (ranks - 1), rank: ranks - 1 };
            assert_eq!(results, vec![expected; ranks as usize]);
        }
    }

    #[test]
    fn a_rank_that_does_not_answer_is_named_with_what_helps() {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        sockets[0].set_nonblocking(true).unwrap();
        let peers = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
        let [own, _silent] = sockets;
        let probing = probing((0, 2), own, (peers.to_vec(), vec![(1, 9000)]), Duration::from_millis(50));
        let text = probing.agree(9000, |_| Ok(())).unwrap_err().to_string();
        assert!(text.contains("rank 1 does not answer") && text.contains("set the MTU"), "{text}");
    }
}
