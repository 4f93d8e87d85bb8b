//! Inboxes of the ranks of this process.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use flexcast_proto::{RankInfo, Summary};

use crate::engine::datapath::Waiter;
use crate::error::{Error, Result};

/// Most bytes that wait in all inboxes of a communicator before messages wait with their senders.
const MOST_BYTES: usize = 64 << 20;
/// Begins connection information.
const MAGIC: &[u8; 8] = b"fclocal1";

/// What one rank sends another.
#[derive(Debug)]
pub(super) enum Packet {
    /// Of the protocol.
    Message { from: u32, bytes: Vec<u8> },
    /// A root's block.
    Block { from: u32, number: u32, bytes: Arc<[u8]> },
    /// Of a point-to-point collective.
    Transfer { from: u32, number: u32, summary: Summary, tag: u32, bytes: Vec<u8> },
    /// The rank has dropped its communicator.
    Gone { from: u32 },
}

impl Packet {
    fn len(&self) -> usize {
        match self {
            Self::Message { bytes, .. } | Self::Transfer { bytes, .. } => bytes.len(),
            Self::Block { bytes, .. } => bytes.len(),
            Self::Gone { .. } => 0,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Packets for each rank.
    packets: Vec<VecDeque<Packet>>,
    /// Bytes of them all.
    bytes: usize,
    /// Ranks that have been woken.
    woken: Vec<bool>,
}

/// All inboxes of a communicator.
#[derive(Debug, Default)]
struct Job {
    state: Mutex<State>,
    changed: Condvar,
}

/// The communicators of this process.
static JOBS: LazyLock<Mutex<HashMap<u64, Weak<Job>>>> = LazyLock::new(Mutex::default);
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
static PROPOSALS: AtomicU64 = AtomicU64::new(1);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time since this carrier was first used, in picoseconds.
pub(super) fn now_ps() -> u64 {
    u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000)
}

/// What a rank would call the communicator: a number that no other of this process has had.
pub(super) fn proposal() -> u64 {
    PROPOSALS.fetch_add(1, Ordering::Relaxed)
}

/// What the others must know of a rank: this process, its place, and what it would call the communicator.
pub(super) fn connect_info(place: RankInfo, proposal: u64) -> Vec<u8> {
    let words = [std::process::id(), place.rank(), place.ranks()].map(u32::to_le_bytes);
    [MAGIC.as_slice(), words.as_flattened(), &proposal.to_le_bytes()].concat()
}

/// The communicator's number, by the connection information of all ranks.
///
/// # Errors
/// [`Error::Peer`] names a rank that has another kind of endpoint, is of another process, or has another number.
pub(super) fn communicator(place: RankInfo, own_proposal: u64, infos: &[Vec<u8>]) -> Result<u64> {
    let peer = |rank, reason: String| Err(Error::Peer { rank, reason });
    if infos.len() != place.ranks() as usize {
        let reason = format!(
            "got {} blocks of connection information for {} ranks: give one per rank",
            infos.len(),
            place.ranks()
        );
        return peer(place.rank(), reason);
    }
    let mut first = 0;
    for (rank, bytes) in (0..).zip(infos) {
        let Some((words, proposal)) = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_last_chunk::<8>()) else {
            return peer(
                rank,
                "has an endpoint of another kind: give all ranks the same, or `Endpoint::loopback()`".to_owned(),
            );
        };
        let own = [std::process::id(), rank, place.ranks()].map(u32::to_le_bytes);
        if words != own.as_flattened() {
            let reason = "is of another process, or has another number or number of ranks: memory of one process is \
                          for its own threads";
            return peer(rank, reason.to_owned());
        }
        if rank == place.rank() && u64::from_le_bytes(*proposal) != own_proposal {
            let reason = "is not what this rank has given: each communicator exchanges its own connection information";
            return peer(rank, reason.to_owned());
        }
        if rank == 0 {
            first = u64::from_le_bytes(*proposal);
        }
    }
    Ok(first)
}

/// The inbox of a rank.
pub(super) fn join(communicator: u64, place: RankInfo) -> Inbox {
    let mut jobs = locked(&JOBS);
    jobs.retain(|_, job| job.strong_count() > 0);
    let job = jobs.get(&communicator).and_then(Weak::upgrade).unwrap_or_else(|| {
        let ranks = place.ranks() as usize;
        let packets = std::iter::repeat_with(VecDeque::new).take(ranks).collect();
        let state = State { packets, bytes: 0, woken: vec![false; ranks] };
        let job = Arc::new(Job { state: Mutex::new(state), changed: Condvar::new() });
        jobs.insert(communicator, Arc::downgrade(&job));
        job
    });
    Inbox { job, place }
}

/// What others have sent a rank, and how it sends to them.
#[derive(Debug)]
pub(super) struct Inbox {
    job: Arc<Job>,
    place: RankInfo,
}

impl Inbox {
    /// Takes everything that has come.
    pub(super) fn take(&self) -> VecDeque<Packet> {
        let mut state = locked(&self.job.state);
        let packets = std::mem::take(&mut state.packets[self.place.rank() as usize]);
        state.bytes -= packets.iter().map(Packet::len).sum::<usize>();
        packets
    }

    pub(super) fn send(&self, to: u32, packet: Packet) {
        let mut state = locked(&self.job.state);
        state.bytes += packet.len();
        if let Some(packets) = state.packets.get_mut(to as usize) {
            packets.push_back(packet);
        }
        drop(state);
        self.job.changed.notify_all();
    }

    /// Whether messages of point-to-point collectives may be sent.
    pub(super) fn has_room(&self) -> bool {
        locked(&self.job.state).bytes < MOST_BYTES
    }

    /// The rank drops its communicator.
    pub(super) fn leave(&self) {
        let own = self.place.rank();
        (0..self.place.ranks()).filter(|rank| *rank != own).for_each(|to| self.send(to, Packet::Gone { from: own }));
    }
}

impl Waiter for Inbox {
    fn wait(&self, most: Duration) {
        let own = self.place.rank() as usize;
        let is_idle = |state: &mut State| state.packets[own].is_empty() && !state.woken[own];
        let waited = self.job.changed.wait_timeout_while(locked(&self.job.state), most, is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.woken[own] = false;
    }

    fn wake(&self) {
        locked(&self.job.state).woken[self.place.rank() as usize] = true;
        self.job.changed.notify_all();
    }

    fn blocks(&self) -> bool {
        true
    }

    fn is_virtual(&self) -> bool {
        false
    }
}
