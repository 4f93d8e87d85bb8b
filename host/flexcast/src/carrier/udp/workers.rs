//! Threads that send and receive for a rank: one for each subgroup but the first.
//!
//! A worker takes datagrams from its subgroup's socket to the subgroup's ring in the fan-out, their tags checked, and
//! gives runs of datagrams their tags and to the system. The thread that moves the communicator on does the same for
//! the first subgroup, and all else: it takes chunks from the rings to their places, and fills the runs. Runs go to a
//! worker and come back empty, so nothing is allocated; neither side waits for the other.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::datagram::{Codec, Refused};
use super::fanout::Fanout;
use super::pump::{has_room, pump};
use super::sockets::{Lane, RUN_BYTES, Sent, Sockets};
use super::waiter::SocketWaiter;
use crate::engine::datapath::Waiter as _;
use crate::error::{Error, Result};
use flexcast_mesh::nodes::{self, Nodes};

/// Runs of data that a worker has at a time.
const DATA_RUNS: usize = 4;
/// Runs beyond those for what ends a block.
const END_RUNS: usize = 4;
/// Polls in vain before a worker sleeps.
const YIELDS: u32 = 20;
/// Longest sleep, in milliseconds, of a worker that nobody has to wake: its socket takes no more, or another rank of
/// this computer has it.
const SHORT_MS: u16 = 1;
/// Longest sleep of one that is woken, in milliseconds.
const LONG_MS: u16 = 1000;

const GROUP: u64 = 0;
const WAKE_UP: u64 = 1;

/// Datagrams, one behind the other.
#[derive(Debug)]
struct Run {
    bytes: Vec<u8>,
    /// Bytes of each; the last may be shorter.
    datagram_bytes: usize,
}

/// What a worker and its communicator share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// The worker sleeps: whoever has something for it wakes it.
    asleep: AtomicBool,
    /// The communicator waits for a run to come back.
    wants: AtomicBool,
    wake_up: EventFd,
    foreign: AtomicU64,
    forged: AtomicU64,
    fault: Mutex<Option<Error>>,
}

impl Shared {
    /// Wakes the worker if it sleeps; asked after there is something for it.
    fn rouse(&self) {
        // Against `Body::sleep`: either it sees what there is, or it is seen here to sleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // It fails only when its counter is full: then it wakes already.
            let _ = self.wake_up.write(1);
        }
    }
}

/// The communicator's side of a worker.
#[derive(Debug)]
struct Worker {
    subgroup: usize,
    shared: Arc<Shared>,
    outward: SyncSender<Run>,
    back: Receiver<Run>,
    free: Vec<Run>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    /// A free run, if more than `kept` are.
    fn take(&mut self, kept: usize) -> Option<Run> {
        self.free.extend(self.back.try_iter());
        if self.free.len() > kept { self.free.pop() } else { None }
    }
}

/// The workers of a communicator. They end with it.
#[derive(Debug, Default)]
pub(super) struct Workers {
    all: Vec<Worker>,
    fanout: Option<Arc<Fanout>>,
}

impl Workers {
    /// Starts one for each subgroup of the sockets but the first, near the card that has an address of this computer.
    /// `checks`: they check tags of what comes.
    ///
    /// # Errors
    /// The system gives no descriptor or no thread.
    pub(super) fn start(
        sockets: &Sockets,
        fanout: &Arc<Fanout>,
        (codec, checks): (Codec, bool),
        waiter: &SocketWaiter,
        near: IpAddr,
    ) -> Result<Self> {
        let failed = |source| Error::Socket {
            what: "thread of a subgroup".to_owned(),
            source,
            next: "see the limits of open files and of processes (`ulimit -n -u`), or lower FLEXCAST_SUBGROUPS",
        };
        // Those that have begun end where a later one cannot.
        let mut workers = Self { all: Vec::new(), fanout: Some(Arc::clone(fanout)) };
        for (subgroup, lane) in sockets.other_lanes() {
            let worker = worker((subgroup, lane), fanout, (codec, checks), waiter, near);
            workers.all.push(worker.map_err(failed)?);
        }
        Ok(workers)
    }

    /// Subgroups that have one.
    pub(super) const fn count(&self) -> usize {
        self.all.len()
    }

    /// The rings have room that may have been waited for.
    pub(super) fn resume(&self) {
        let Some(fanout) = &self.fanout else { return };
        for worker in self.all.iter().filter(|worker| fanout.is_pending(worker.subgroup)) {
            worker.shared.rouse();
        }
    }

    /// Hands a run to the worker of a subgroup, which `fill` fills with datagrams of `datagram_bytes` each, the last
    /// may be shorter, without tags. `is_end`: it ends a block.
    ///
    /// # Errors
    /// What has ended the worker.
    pub(super) fn send(
        &mut self,
        subgroup: usize,
        (datagram_bytes, is_end): (usize, bool),
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Sent> {
        let Some(worker) = self.all.get_mut(subgroup.wrapping_sub(1)) else { return Ok(Sent::Lost) };
        let kept = if is_end { 0 } else { END_RUNS };
        let mut run = worker.take(kept);
        if run.is_none() {
            worker.shared.wants.store(true, Ordering::Relaxed);
            // Against `Body::send`: either the run is back, or whoever brings it back sees that it is waited for.
            fence(Ordering::SeqCst);
            run = worker.take(kept);
        }
        let Some(mut run) = run else { return Ok(Sent::Full) };
        run.bytes.clear();
        run.datagram_bytes = datagram_bytes;
        fill(&mut run.bytes);
        // There is room for all runs. It fails only where the worker has ended, which has recorded why.
        let is_gone = worker.outward.try_send(run).is_err();
        worker.shared.rouse();
        if is_gone { Err(self.take_fault().unwrap_or_else(ended)) } else { Ok(Sent::All) }
    }

    /// What has ended a worker.
    pub(super) fn take_fault(&self) -> Option<Error> {
        let of = |worker: &Worker| worker.shared.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.all.iter().find_map(of)
    }

    /// Datagrams that have been refused: foreign ones, and forged ones.
    pub(super) fn refused(&self) -> (u64, u64) {
        self.all.iter().fold((0, 0), |(foreign, forged), Worker { shared, .. }| {
            (foreign + shared.foreign.load(Ordering::Relaxed), forged + shared.forged.load(Ordering::Relaxed))
        })
    }
}

fn ended() -> Error {
    let source = std::io::ErrorKind::BrokenPipe.into();
    Error::Socket { what: "thread of a subgroup, which has ended".to_owned(), source, next: "make a new communicator" }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &self.all {
            worker.shared.stop.store(true, Ordering::Relaxed);
            worker.shared.rouse();
        }
        for handle in self.all.iter_mut().filter_map(|worker| worker.handle.take()) {
            let _ = handle.join();
        }
    }
}

/// Starts a worker.
fn worker(
    (subgroup, lane): (usize, Lane),
    fanout: &Arc<Fanout>,
    (codec, checks): (Codec, bool),
    waiter: &SocketWaiter,
    near: IpAddr,
) -> std::io::Result<Worker> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let wake_up = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    epoll.add(&wake_up, EpollEvent::new(EpollFlags::EPOLLIN, WAKE_UP))?;
    // Other ranks of this computer may wait for the same socket.
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET | EpollFlags::EPOLLEXCLUSIVE;
    epoll.add(lane.descriptor(), EpollEvent::new(flags, GROUP))?;
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        asleep: AtomicBool::new(false),
        wants: AtomicBool::new(false),
        wake_up,
        foreign: AtomicU64::new(0),
        forged: AtomicU64::new(0),
        fault: Mutex::new(None),
    });
    let (outward, inbox) = sync_channel(DATA_RUNS + END_RUNS);
    let (returns, back) = sync_channel(DATA_RUNS + END_RUNS);
    let run = |_| Run { bytes: Vec::with_capacity(RUN_BYTES), datagram_bytes: 1 };
    let free = (0..DATA_RUNS + END_RUNS).map(run).collect();
    let body = Body {
        shared: Arc::clone(&shared),
        fanout: Arc::clone(fanout),
        subgroup,
        lane,
        codec,
        checks,
        inbox,
        returns,
        sending: None,
        is_full: false,
        epoll,
        waiter: waiter.clone(),
    };
    let name = format!("flexcast-sub{subgroup}");
    let work = move || {
        Nodes::of_this_thread().bind_this_thread(subgroup - 1, nodes::of_address(near));
        body.work();
    };
    let handle = Some(thread::Builder::new().name(name).spawn(work)?);
    Ok(Worker { subgroup, shared, outward, back, free, handle })
}

/// The worker's side.
struct Body {
    shared: Arc<Shared>,
    fanout: Arc<Fanout>,
    subgroup: usize,
    lane: Lane,
    codec: Codec,
    checks: bool,
    inbox: Receiver<Run>,
    returns: SyncSender<Run>,
    /// On its way to the system, with its tags, and the bytes that the system has.
    sending: Option<(Run, usize)>,
    /// The ring had no room at the last try.
    is_full: bool,
    epoll: Epoll,
    /// Wakes whoever moves the communicator on.
    waiter: SocketWaiter,
}

impl Body {
    fn work(mut self) {
        let mut in_vain = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let moved = self.turn();
            let slept = match moved {
                Ok(true) => {
                    in_vain = 0;
                    continue;
                }
                Ok(false) if in_vain < YIELDS => {
                    in_vain += 1;
                    thread::yield_now();
                    self.poll(EpollTimeout::ZERO)
                }
                Ok(false) => self.sleep(),
                Err(error) => Err(error),
            };
            if let Err(error) = slept {
                *self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                self.waiter.wake();
                return;
            }
        }
    }

    /// Sends and receives what can be now; whether there was anything.
    fn turn(&mut self) -> Result<bool> {
        let sent = self.send()?;
        let Shared { foreign, forged, .. } = &*self.shared;
        let codec = self.checks.then_some(&self.codec);
        let pumped = pump((&self.fanout, self.subgroup), &mut self.lane, codec, |refused| {
            let count = match refused {
                Refused::Foreign => foreign,
                Refused::Forged => forged,
            };
            count.fetch_add(1, Ordering::Relaxed);
        })?;
        self.is_full = pumped.is_full;
        if pumped.any && self.fanout.is_to_be_woken() {
            self.waiter.wake();
        }
        Ok(sent | pumped.any)
    }

    /// Takes the next run, if there is none on its way, and gives it its tags.
    fn next(&mut self) {
        if self.sending.is_none()
            && let Ok(mut run) = self.inbox.try_recv()
        {
            run.bytes.chunks_mut(run.datagram_bytes).for_each(|datagram| self.codec.seal(datagram));
            self.sending = Some((run, 0));
        }
    }

    /// Gives the system what it takes. Returns whether it has taken anything.
    fn send(&mut self) -> Result<bool> {
        let mut any = false;
        loop {
            self.next();
            let Some((run, at)) = &mut self.sending else { return Ok(any) };
            let most = self.lane.run_of(run.datagram_bytes) * run.datagram_bytes;
            let end = run.bytes.len().min(at.saturating_add(most));
            match self.lane.multicast(&run.bytes[*at..end], run.datagram_bytes)? {
                Sent::All | Sent::Lost => *at = end,
                Sent::Single => {}
                Sent::Full => return Ok(any),
            }
            any = true;
            if *at == run.bytes.len()
                && let Some((run, _)) = self.sending.take()
            {
                // There is room for all runs.
                let _ = self.returns.try_send(run);
                // Against `Workers::send`.
                fence(Ordering::SeqCst);
                if self.shared.wants.load(Ordering::Relaxed) && self.shared.wants.swap(false, Ordering::Relaxed) {
                    self.waiter.wake();
                }
            }
        }
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) -> Result<()> {
        self.shared.asleep.store(true, Ordering::Relaxed);
        // Against `Shared::rouse`.
        fence(Ordering::SeqCst);
        let waits_to_send = self.sending.is_some();
        self.next();
        let has_work = !waits_to_send && self.sending.is_some()
            || self.is_full && has_room(&self.fanout, self.subgroup)
            || self.shared.stop.load(Ordering::Relaxed);
        let slept = if has_work {
            Ok(())
        } else {
            // What has room and has not been taken, another rank takes, as long as it lives.
            let waits_for_rank = !self.is_full && self.fanout.is_pending(self.subgroup);
            let millis = if waits_to_send || waits_for_rank { SHORT_MS } else { LONG_MS };
            self.poll(EpollTimeout::from(millis))
        };
        self.shared.asleep.store(false, Ordering::Relaxed);
        slept
    }

    /// Waits for the socket or the wake-up, at most so long.
    fn poll(&self, timeout: EpollTimeout) -> Result<()> {
        let mut events = [EpollEvent::empty(); 2];
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => {
                return Err(Error::Socket {
                    what: "epoll".to_owned(),
                    source: errno.into(),
                    next: "make a new communicator",
                });
            }
        };
        for event in &events[..count] {
            if event.data() == GROUP {
                self.fanout.has_come(self.subgroup);
            } else {
                let _ = self.shared.wake_up.read();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::carrier::udp::datagram::{HEADER_BYTES, Kind, Secret};
    use crate::carrier::udp::interface::{Interface, UdpOptions};

    const SECRET: Secret = Secret([1, 2, 3, 4]);
    const CHUNK_BYTES: usize = 1000;
    const LONG: Duration = Duration::from_secs(20);

    /// A rank that receives what it sends.
    fn alone(port: u16) -> (Workers, Arc<Fanout>, Codec, SocketWaiter) {
        let interface = Interface::open(&UdpOptions::default().interface("lo").port(port).subgroups(2)).unwrap();
        let group = interface.group(u64::from(port) << 32);
        let members = Sockets::members(&interface, group, 2, true).unwrap();
        let own = Sockets::own(&interface).unwrap();
        let sockets = Sockets::new(&interface, own, (members, group), true).unwrap();
        let fanout = Arc::new(Fanout::alone(2).unwrap());
        let codec = Codec::new(7, 3, Some(SECRET));
        let waiter = SocketWaiter::new().unwrap();
        let workers = Workers::start(&sockets, &fanout, (codec, true), &waiter, IpAddr::from([127, 0, 0, 1])).unwrap();
        waiter.add_fanout(Arc::clone(&fanout));
        fanout.join();
        (workers, fanout, codec, waiter)
    }

    /// What has come: sequence numbers of datagrams with right tags.
    fn came(fanout: &Fanout, codec: &Codec) -> Vec<u32> {
        let mut psns = Vec::new();
        fanout.read(usize::MAX, |fanout, record| {
            for (at, len) in record.datagrams() {
                let mut bytes = vec![0; len];
                fanout.copy(record, at, &mut bytes);
                if let Ok(datagram) = codec.decode(&bytes)
                    && let Kind::Data { psn } = datagram.kind
                {
                    assert!(
                        datagram.chunk.len() == CHUNK_BYTES && datagram.chunk.iter().all(|byte| *byte == psn as u8)
                    );
                    psns.push(psn);
                }
            }
        });
        psns
    }

    fn send(workers: &mut Workers, codec: &Codec, psns: std::ops::Range<u32>) -> Sent {
        let fill = |run: &mut Vec<u8>| {
            for psn in psns {
                run.extend_from_slice(&codec.untagged(1, Kind::Data { psn }));
                run.extend_from_slice(&[psn as u8; CHUNK_BYTES]);
            }
        };
        workers.send(1, (HEADER_BYTES + CHUNK_BYTES, false), fill).unwrap()
    }

    #[test]
    fn runs_go_out_in_order_with_their_tags_and_come_back_empty() {
        const RUNS: u32 = 300;
        let (mut workers, fanout, codec, waiter) = alone(17_240);
        assert_eq!(workers.count(), 1);
        let until = Instant::now() + LONG;
        let (mut sent, mut next) = (0, 0);
        while next < 8 * RUNS {
            assert!(Instant::now() < until, "{sent} runs sent, {next} datagrams came");
            // No more is under way than the shortest buffer holds.
            if sent < RUNS && 8 * sent < next + 32 {
                match send(&mut workers, &codec, 8 * sent..8 * sent + 8) {
                    Sent::All => sent += 1,
                    Sent::Full => thread::yield_now(),
                    other => panic!("{other:?}"),
                }
            } else {
                waiter.wait(Duration::from_millis(100));
                waiter.poll(&mut Vec::new()).unwrap();
            }
            for psn in came(&fanout, &codec) {
                assert_eq!(psn, next);
                next += 1;
            }
            workers.resume();
        }
        assert_eq!(workers.refused(), (0, 0));
        assert!(workers.take_fault().is_none());
        // What nobody is there for is no fault.
        assert_eq!(workers.send(2, (1, false), |_| ()).unwrap(), Sent::Lost);
    }

    #[test]
    fn a_worker_takes_no_more_than_its_ring_holds_and_goes_on_when_there_is_room() {
        const TURNS: u32 = 20;
        let (mut workers, fanout, codec, waiter) = alone(17_242);
        let until = Instant::now() + LONG / 2;
        for turn in 0..TURNS {
            // Something else has filled the ring.
            while has_room(&fanout, 1) {
                fanout.has_come(1);
                if let Some(pump) = fanout.pump(1) {
                    assert!(pump.write(&[0; 8000], 8000));
                }
            }
            assert_eq!(send(&mut workers, &codec, turn..turn + 1), Sent::All);
            while !fanout.is_pending(1) {
                assert!(Instant::now() < until, "turn {turn}: the worker has not seen that something came");
                thread::yield_now();
            }
            // Long enough for it to sleep, mostly.
            thread::sleep(Duration::from_millis(1));
            assert!(!has_room(&fanout, 1));
            let mut psns = Vec::new();
            while psns.is_empty() {
                // Without being woken it would sleep a second each turn.
                assert!(Instant::now() < until, "turn {turn}: nothing came");
                psns.extend(came(&fanout, &codec));
                workers.resume();
                waiter.wait(Duration::from_millis(1));
                waiter.poll(&mut Vec::new()).unwrap();
            }
            assert_eq!(psns, [turn]);
        }
    }
}
