//! Multicast among the service processes of a group: a queue pair that sends datagrams to the group's address, one that
//! receives them, and a ring of receives. What is lost, or finds no receive, is read over reliable queue pairs by who
//! misses it.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use flexio::{
    Access, AddressHandle, Completion, CompletionQueue, HostAddr, HostBuffer, LocalSlice, MemoryRegion, MulticastGroup,
    MulticastMembership, ProtectionDomain, QueueDepths, QueuePair, SendKind, SendRequest, Transport,
};

use crate::error::Result;

/// Bytes of the routing header before each datagram that is received (InfiniBand specification, volume 1, 8.3).
const GRH_BYTES: u32 = 40;
/// Datagrams on their way to the group.
const SENDS: u32 = 256;
/// Datagrams with one completion.
const BATCH: u32 = 32;

/// What becomes of a chunk that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is copied or of no use: its receive can be posted again.
    Over,
    /// It is not due yet.
    Early,
}

/// A chunk in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    slot: u32,
    /// Its payload.
    pub(crate) bytes: u32,
    pub(crate) immediate: u32,
    /// The queue pair that has sent it.
    pub(crate) source_qpn: u32,
}

/// A run of chunks that is to be sent.
#[derive(Debug)]
struct Sending {
    token: u64,
    from: u64,
    lkey: u32,
    bytes: u64,
    immediate: u32,
}

/// Queue pairs and receives of a process for the multicast of one group.
#[derive(Debug)]
pub(crate) struct Datagrams {
    /// Ends before its queue pair.
    membership: MulticastMembership,
    sender: QueuePair,
    receiver: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    way: AddressHandle,
    ring: MemoryRegion,
    slot_bytes: u32,
    slots: u32,
    q_key: u32,
    chunk_bytes: u32,
    waiting: VecDeque<Sending>,
    /// Batches on their way: how many datagrams, and the run that ends with them.
    under_way: VecDeque<(u32, Option<u64>)>,
    posted: u32,
    /// Chunks that are not due yet.
    early: VecDeque<Chunk>,
    /// The sender has failed: nothing is sent any more.
    has_failed: bool,
}

/// Mixes numbers of a group, so that those of different jobs have addresses and queue keys of their own.
const fn mixed(communicator: u64, group: u32) -> u64 {
    (communicator ^ (group as u64) << 40).wrapping_add(0x6A09_E667_F3BC_C909).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Multicast address and queue key of a group. Addresses of different groups may coincide; then the card
/// distinguishes them by the queue key, and what comes is taken from the queue pairs of the group alone.
fn address(communicator: u64, group: u32) -> Result<(MulticastGroup, u32)> {
    let mixed = mixed(communicator, group);
    let [_, a, b, c] = ((mixed >> 32) as u32 ^ mixed as u32).to_be_bytes();
    // Of 239.128.0.0/9: the other half is that of the hosts' communicators over UDP.
    Ok((MulticastGroup::ipv4(Ipv4Addr::new(239, a | 0x80, b, c))?, (mixed >> 33) as u32))
}

impl Datagrams {
    /// Bytes of a chunk: what the port takes in one packet.
    pub(crate) fn chunk_bytes(pd: &ProtectionDomain) -> u32 {
        pd.device().port().mtu_bytes()
    }

    /// Memory of a ring.
    fn ring_bytes(pd: &ProtectionDomain, slots: u32) -> u64 {
        u64::from(slots) * u64::from(Self::slot_bytes(pd))
    }

    fn slot_bytes(pd: &ProtectionDomain) -> u32 {
        (GRH_BYTES + Self::chunk_bytes(pd)).next_multiple_of(64)
    }

    /// Joins the multicast of a group, with so many receives. `alone`: no other process of the group is on the card.
    ///
    /// # Errors
    /// The card has no multicast.
    pub(crate) fn open(
        pd: &ProtectionDomain,
        (communicator, group): (u64, u32),
        slots: u32,
        alone: bool,
    ) -> Result<Self> {
        let (group, q_key) = address(communicator, group)?;
        let (sends, receives) = (CompletionQueue::new(pd.device(), SENDS)?, CompletionQueue::new(pd.device(), slots)?);
        let depths = QueueDepths { send: SENDS, receive: 0 };
        let sender = QueuePair::builder(pd, Transport::Ud, depths).block_multicast_loopback(alone);
        let sender = sender.build(&sends, &sends)?;
        let depths = QueueDepths { send: 1, receive: slots };
        let receiver = QueuePair::builder(pd, Transport::Ud, depths).build(&receives, &receives)?;
        let ring = HostBuffer::zeroed(Self::ring_bytes(pd, slots) as usize)?;
        let ring = MemoryRegion::register(pd, ring, Access::LOCAL_WRITE)?;
        let slot_bytes = Self::slot_bytes(pd);
        sender.init(Access::LOCAL_WRITE, q_key)?;
        receiver.init(Access::LOCAL_WRITE, q_key)?;
        receiver.post_receives((0..slots).map(|slot| (u64::from(slot), place(&ring, slot, slot_bytes))))?;
        sender.activate(0)?;
        receiver.activate(0)?;
        let way = AddressHandle::new(pd, group.gid())?;
        let membership = MulticastMembership::attach_host(&receiver, group)?;
        let (waiting, under_way, early) = Default::default();
        Ok(Self {
            membership,
            sender,
            receiver,
            sends,
            receives,
            way,
            ring,
            slot_bytes,
            slots,
            q_key,
            chunk_bytes: Self::chunk_bytes(pd),
            waiting,
            under_way,
            posted: 0,
            early,
            has_failed: false,
        })
    }

    /// Number of the queue pair that sends.
    pub(crate) fn qpn(&self) -> u32 {
        self.sender.qpn()
    }

    /// Memory of its ring.
    pub(crate) const fn memory_bytes(&self) -> u64 {
        self.slots as u64 * self.slot_bytes as u64
    }

    /// Sends memory that `lkey` names in chunks; [`Datagrams::poll`] reports the end with `token`. The first chunk has
    /// this immediate, each other one more.
    pub(crate) fn send(&mut self, token: u64, (from, lkey): (u64, u32), bytes: u64, immediate: u32) {
        self.waiting.push_back(Sending { token, from, lkey, bytes, immediate });
        self.post();
    }

    fn post(&mut self) {
        let chunk_bytes = u64::from(self.chunk_bytes);
        while !self.has_failed
            && self.posted + BATCH <= SENDS
            && let Some(run) = self.waiting.front_mut()
        {
            let count = run.bytes.div_ceil(chunk_bytes).min(BATCH.into());
            let bytes = run.bytes.min(count * chunk_bytes);
            let kind =
                SendKind::Datagram { to: &self.way, qpn: self.membership.group().endpoint(0).qpn, q_key: self.q_key };
            let (from, lkey, immediate) = (run.from, run.lkey, run.immediate);
            let posted = self.sender.post_sends((0..count).map(|at| {
                let len = (bytes - at * chunk_bytes).min(chunk_bytes) as u32;
                let local = Some(LocalSlice { addr: HostAddr(from + at * chunk_bytes), len, lkey });
                let immediate = Some(immediate + at as u32);
                SendRequest { id: 0, kind, local, immediate, signaled: at + 1 == count }
            }));
            if let Err(error) = posted {
                tracing::warn!(%error, "a multicast cannot be sent: the others read what they miss");
                self.has_failed = true;
                break;
            }
            self.posted += count as u32;
            (run.from, run.bytes, run.immediate) = (from + bytes, run.bytes - bytes, immediate + count as u32);
            let token = if run.bytes == 0 { self.waiting.pop_front().map(|run| run.token) } else { None };
            self.under_way.push_back((count as u32, token));
        }
    }

    /// Reports which runs are over, and hands chunks that have come to `take`, with the ring. `again`: those that came
    /// early, too. Returns whether there was anything.
    ///
    /// # Errors
    /// The card has failed.
    pub(crate) fn poll(
        &mut self,
        again: bool,
        over: &mut Vec<u64>,
        mut take: impl FnMut(&Chunk, (&MemoryRegion, usize)) -> Result<Fate>,
    ) -> Result<bool> {
        let mut done: Vec<Completion> = Vec::new();
        self.sends.poll_each(|completion| done.push(completion))?;
        let mut any = !done.is_empty();
        for completion in done.drain(..) {
            let Some((count, token)) = self.under_way.pop_front() else { continue };
            self.posted -= count;
            over.extend(token);
            if completion.status != 0 && !self.has_failed {
                tracing::warn!(
                    status = completion.status,
                    "the queue pair of a multicast has failed: the others read what they miss"
                );
                self.has_failed = true;
            }
        }
        self.post();
        if self.has_failed {
            over.extend(self.under_way.drain(..).filter_map(|(_, token)| token));
            over.extend(self.waiting.drain(..).map(|run| run.token));
        }
        any |= !over.is_empty();
        self.receives.poll_each(|completion| done.push(completion))?;
        any |= !done.is_empty();
        let mut free = Vec::new();
        let mut chunks: VecDeque<Chunk> = if again { std::mem::take(&mut self.early) } else { VecDeque::new() };
        for completion in done {
            let slot = completion.id as u32;
            match (completion.status, completion.immediate, completion.byte_len.checked_sub(GRH_BYTES)) {
                (0, Some(immediate), Some(bytes)) => {
                    chunks.push_back(Chunk { slot, bytes, immediate, source_qpn: completion.source_qpn });
                }
                (0, ..) => free.push(slot),
                // The queue pair has failed: nothing comes any more.
                _ => {}
            }
        }
        for chunk in chunks {
            let at = chunk.slot as usize * self.slot_bytes as usize + GRH_BYTES as usize;
            match take(&chunk, (&self.ring, at))? {
                // One that was early may be the last that something waits for.
                Fate::Over => {
                    any = true;
                    free.push(chunk.slot);
                }
                Fate::Early => self.early.push_back(chunk),
            }
        }
        // Others need receives, too.
        while self.early.len() > self.slots as usize / 2 {
            free.extend(self.early.pop_front().map(|chunk| chunk.slot));
        }
        let posted = self
            .receiver
            .post_receives(free.into_iter().map(|slot| (u64::from(slot), place(&self.ring, slot, self.slot_bytes))));
        if let Err(error) = posted {
            tracing::warn!(%error, "receives of a multicast cannot be posted: what they miss is read");
        }
        Ok(any)
    }
}

fn place(ring: &MemoryRegion, slot: u32, slot_bytes: u32) -> LocalSlice {
    let addr = ring.addr().offset(u64::from(slot) * u64::from(slot_bytes));
    LocalSlice { addr, len: slot_bytes, lkey: ring.lkey() }
}
