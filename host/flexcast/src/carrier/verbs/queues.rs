//! Queue pairs of a rank for datagrams: one receives from the group, one sends to it, and one is for acknowledgements.

use std::collections::BTreeMap;

use flexio::{
    Access, AddressHandle, Completion, CompletionQueue, Gid, HostBuffer, InlineRequest, LocalSlice, MemoryRegion,
    MulticastGroup, MulticastMembership, Path, ProtectionDomain, QueueDepths, QueuePair, SendKind, SendRequest,
    Transport,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Result;
use crate::op::config::{Config, GRH_BYTES};

/// Acknowledgements under way. One for which there is no room is left out: the next says more.
const ACK_SENDS: u32 = 32;
/// Receives for acknowledgements: for each rank, and at least and at most.
const ACK_RECEIVES: [u32; 3] = [8, 64, 8192];
/// Bytes of a receive for an acknowledgement, its routing header included.
const ACK_SLOT_BYTES: u32 = 64;
const _: () = assert!(GRH_BYTES as usize + size_of::<Acknowledgement>() <= ACK_SLOT_BYTES as usize);

const KIND_DATA: u64 = 1 << 56;
const KIND_ACK: u64 = 2 << 56;
const KIND_ACK_RECEIVE: u64 = 3 << 56;
const KINDS: u64 = 0xFF << 56;

/// What a receiver sends a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Acknowledgement {
    pub(super) collective_id: U32,
    /// Who sends it.
    pub(super) rank: U32,
    /// Chunks of the root's block that it has seen.
    pub(super) chunks: U32,
    /// 1: nothing of it waits in its ring, and nothing has come for a while.
    pub(super) idle: U32,
}

/// How a rank's acknowledgements are reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub(super) gid: Gid,
    pub(super) qpn: u32,
}

/// A run of chunks that are sent one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'r> {
    /// Where they lie, and how many bytes.
    pub(super) from: &'r MemoryRegion,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) chunk_bytes: u32,
    /// Immediate of the first; that of each other is one more.
    pub(super) immediate: u32,
}

/// What has happened on the queue pairs that send.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Acknowledged(Acknowledgement),
    /// A queue pair has failed: a work completion status.
    Failed(u32),
}

/// The queue pairs of a rank.
#[derive(Debug)]
pub(super) struct Queues {
    /// Ends before the queue pair, and that before its memory.
    membership: Option<MulticastMembership>,
    receiver: QueuePair,
    /// Sends to the group; none before it is known which ranks share the card.
    sender: Option<QueuePair>,
    /// Sends and takes acknowledgements.
    own: QueuePair,
    receive_cq: CompletionQueue,
    own_cq: CompletionQueue,
    group: Option<(AddressHandle, u32)>,
    /// Ways to roots, made when they are first needed.
    roots: BTreeMap<u32, (AddressHandle, u32)>,
    q_key: u32,
    path: Path,
    /// The staging slots, and behind them those of acknowledgements.
    staging: MemoryRegion,
    slots: u32,
    slot_bytes: u32,
    ack_receives: u32,
    send_depth: u64,
    send_batch: u32,
    /// Datagrams to the group that have been posted, and that the card is done with, since the beginning.
    posted: u64,
    completed: u64,
    acks: u32,
    /// What has just completed; kept for its room.
    done: Vec<Completion>,
}

impl Queues {
    /// Queue pairs in state RESET, which are in no group.
    pub(super) fn new(pd: &ProtectionDomain, ranks: u32, config: &Config) -> Result<Self> {
        let device = pd.device();
        // Nothing that fits a packet is too long for a slot: that would break the queue pair.
        let slot_bytes = (GRH_BYTES + device.port().mtu_bytes()).next_multiple_of(64);
        let [each, least, most] = ACK_RECEIVES;
        let ack_receives = ranks.saturating_mul(each).clamp(least, most);
        let slots = config.slots;
        let ack_bytes = ack_receives as usize * ACK_SLOT_BYTES as usize;
        let memory = HostBuffer::zeroed(slots as usize * slot_bytes as usize + ack_bytes)?;
        let staging = MemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?;
        let receive_cq = CompletionQueue::new(device, slots)?;
        let sends = config.send_depth + ACK_SENDS;
        let own_cq = CompletionQueue::new(device, sends + ack_receives)?;
        // A queue has one entry at least.
        let depths = QueueDepths { send: 1, receive: slots };
        let receiver = QueuePair::builder(pd, Transport::Ud, depths).build(&receive_cq, &receive_cq)?;
        let depths = QueueDepths { send: ACK_SENDS, receive: ack_receives };
        let inline_bytes = size_of::<Acknowledgement>() as u32;
        let own = QueuePair::builder(pd, Transport::Ud, depths).inline(inline_bytes).build(&own_cq, &own_cq)?;
        Ok(Self {
            membership: None,
            receiver,
            sender: None,
            own,
            receive_cq,
            own_cq,
            group: None,
            roots: BTreeMap::new(),
            q_key: 0,
            path: Path::of_class(config.data_class),
            staging,
            slots,
            slot_bytes,
            ack_receives,
            send_depth: config.send_depth.into(),
            send_batch: config.send_batch,
            posted: 0,
            completed: 0,
            acks: 0,
            done: Vec::with_capacity(64),
        })
    }

    /// Number of the queue pair that takes acknowledgements.
    pub(super) fn qpn(&self) -> u32 {
        self.own.qpn()
    }

    /// Bytes of the staging slots.
    pub(super) fn staging_bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Posts all receives, and joins the group. `alone`: no other rank is on the card, so that nothing that it sends
    /// need come back to it.
    pub(super) fn join(&mut self, group: MulticastGroup, q_key: u32, alone: bool) -> Result<()> {
        self.q_key = q_key;
        let depths = QueueDepths { send: self.send_depth as u32, receive: 0 };
        let (pd, cq) = (self.staging.pd(), &self.own_cq);
        let sender = QueuePair::builder(pd, Transport::Ud, depths).block_multicast_loopback(alone).build(cq, cq)?;
        for queue_pair in [&self.receiver, &sender, &self.own] {
            queue_pair.init(Access::LOCAL_WRITE, q_key)?;
        }
        let slots = (0..self.slots).map(|slot| (u64::from(slot), self.slot(slot)));
        self.receiver.post_receives(slots)?;
        self.own.post_receives((0..self.ack_receives).map(|slot| self.ack_receive(slot)))?;
        for queue_pair in [&self.receiver, &sender, &self.own] {
            queue_pair.activate(0)?;
        }
        self.sender = Some(sender);
        self.group = Some((AddressHandle::along(self.staging.pd(), group.gid(), self.path)?, group.endpoint(0).qpn));
        self.membership = Some(MulticastMembership::attach_host(&self.receiver, group)?);
        Ok(())
    }

    fn slot(&self, slot: u32) -> LocalSlice {
        let addr = self.staging.addr().offset(u64::from(slot) * u64::from(self.slot_bytes));
        LocalSlice { addr, len: self.slot_bytes, lkey: self.staging.lkey() }
    }

    fn ack_offset(&self, slot: u32) -> u64 {
        self.staging_bytes() + u64::from(slot) * u64::from(ACK_SLOT_BYTES)
    }

    fn ack_receive(&self, slot: u32) -> (u64, LocalSlice) {
        let addr = self.staging.addr().offset(self.ack_offset(slot));
        let into = LocalSlice { addr, len: ACK_SLOT_BYTES, lkey: self.staging.lkey() };
        (KIND_ACK_RECEIVE | u64::from(slot), into)
    }

    /// Hands datagrams of the group that have come to `take`, at most 32; the id of each completion is its slot, to be
    /// given back by [`Queues::post_again`]. Returns how many there were.
    pub(super) fn poll_group(&mut self, take: impl FnMut(Completion)) -> Result<usize> {
        Ok(self.receive_cq.poll_each(take)?)
    }

    /// Posts the receives of slots again.
    pub(super) fn post_again(&mut self, slots: &mut Vec<u32>) -> Result<()> {
        let receives = slots.iter().map(|slot| (u64::from(*slot), self.slot(*slot)));
        self.receiver.post_receives(receives)?;
        slots.clear();
        Ok(())
    }

    /// Copies the chunk of `len` bytes in a slot to its place.
    pub(super) fn copy(&self, slot: u32, len: usize, to: &MemoryRegion, offset: usize) -> Result<()> {
        let at = slot as usize * self.slot_bytes as usize + GRH_BYTES as usize;
        Ok(to.copy_from(offset, &self.staging, at, len)?)
    }

    /// Takes what has happened to sends and acknowledgements. Returns whether there was anything.
    pub(super) fn poll_own(&mut self, mut notify: impl FnMut(Event)) -> Result<bool> {
        let mut any = false;
        let mut done = std::mem::take(&mut self.done);
        loop {
            done.clear();
            self.own_cq.poll_each(|completion| done.push(completion))?;
            if done.is_empty() {
                self.done = done;
                return Ok(any);
            }
            any = true;
            for completion in &done {
                if completion.status != 0 {
                    notify(Event::Failed(completion.status));
                    continue;
                }
                match completion.id & KINDS {
                    KIND_DATA => self.completed = completion.id & !KINDS,
                    KIND_ACK => self.acks -= 1,
                    _ => {
                        let slot = completion.id as u32;
                        let mut acknowledgement = [0; size_of::<Acknowledgement>()];
                        let len = completion.byte_len as usize;
                        if len == GRH_BYTES as usize + acknowledgement.len() {
                            self.staging
                                .read(self.ack_offset(slot) as usize + GRH_BYTES as usize, &mut acknowledgement)?;
                            notify(Event::Acknowledged(zerocopy::transmute!(acknowledgement)));
                        }
                        self.own.post_receives([self.ack_receive(slot)])?;
                    }
                }
            }
        }
    }

    /// Datagrams to the group that may be posted now.
    pub(super) fn room(&self) -> u32 {
        self.send_depth.saturating_sub(self.posted - self.completed) as u32
    }

    /// Datagrams to the group that have been posted since the beginning.
    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Of these, datagrams that the card is done with: it does not read their bytes any more.
    pub(super) const fn completed(&self) -> u64 {
        self.completed
    }

    /// Chunks that are posted at once.
    pub(super) const fn send_batch(&self) -> u32 {
        self.send_batch
    }

    /// Multicasts the chunks of a run, no more than there is [`Queues::room`], with one completion for all.
    pub(super) fn multicast(&mut self, run: &Run<'_>) -> Result<()> {
        let (Some(sender), Some((to, qpn))) = (&self.sender, &self.group) else { return Ok(()) };
        let kind = SendKind::Datagram { to, qpn: *qpn, q_key: self.q_key };
        let chunk_bytes = u64::from(run.chunk_bytes);
        let count = run.bytes.div_ceil(chunk_bytes);
        // Both ends lie inside, and so does what is between.
        let first = run.from.slice(run.offset, 0)?;
        run.from.slice(run.offset.saturating_add(run.bytes), 0)?;
        let id = KIND_DATA | (self.posted + count);
        sender.post_sends((0..count).map(|at| {
            let len = (run.bytes - at * chunk_bytes).min(chunk_bytes) as u32;
            let local = LocalSlice { addr: first.addr.offset(at * chunk_bytes), len, lkey: first.lkey };
            let immediate = Some(run.immediate + at as u32);
            SendRequest { id, kind, local: Some(local), immediate, signaled: at + 1 == count }
        }))?;
        self.posted += count;
        Ok(())
    }

    /// Multicasts a datagram of no bytes.
    pub(super) fn multicast_end(&mut self, immediate: u32) -> Result<()> {
        let (Some(sender), Some((to, qpn))) = (&self.sender, &self.group) else { return Ok(()) };
        let kind = SendKind::Datagram { to, qpn: *qpn, q_key: self.q_key };
        let id = KIND_DATA | (self.posted + 1);
        sender.post_send(&SendRequest { id, kind, local: None, immediate: Some(immediate), signaled: true })?;
        self.posted += 1;
        Ok(())
    }

    /// Acknowledges to a root how far its block has come, if there is room.
    pub(super) fn acknowledge(&mut self, rank: u32, root: Root, acknowledgement: Acknowledgement) -> Result<()> {
        if self.acks == ACK_SENDS {
            return Ok(());
        }
        if !self.roots.contains_key(&rank) {
            let way = AddressHandle::along(self.staging.pd(), root.gid, self.path)?;
            self.roots.insert(rank, (way, root.qpn));
        }
        let Some((to, qpn)) = self.roots.get(&rank) else { return Ok(()) };
        let kind = SendKind::Datagram { to, qpn: *qpn, q_key: self.q_key };
        let bytes = acknowledgement.as_bytes();
        self.own.post_inline([InlineRequest { id: KIND_ACK, kind, bytes, immediate: None, signaled: true }])?;
        self.acks += 1;
        Ok(())
    }
}
