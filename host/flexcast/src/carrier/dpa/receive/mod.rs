//! The receiving side on the card: receive contexts, one per stream, and the DPA threads that serve them.

mod layout;
mod operation;
mod report;

use std::mem::size_of;
use std::ops::Range;

use flexcast_abi::receive_thread::PREPARE_RECEIVE;
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, BitmapMemory, CompletionQueueMemory, ContextMemory, DeviceAddress, GroupContext, HostLine,
    Operation, Placement, ReceiveContext, ReceiveThread, ReceiveView, SendQueueMemory, Shared as SharedLine, Staging,
    TableMemory,
};
use flexcast_proto::{RankInfo, RootRow};
use flexio::{
    Access, Connection, CqTarget, DevAddr, DeviceBuffer, DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler,
    GroupKey, MemoryKey, MemoryRegion, MulticastGroup, MulticastMembership, Path, UdKey,
};
use zerocopy::IntoBytes as _;

pub(crate) use layout::{Shared, accepted, cq_memory, receive_memory, send_memory};

use crate::carrier::connect_info::ConnectInfo;
use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::mailbox::{Mailbox, MailboxTarget};
use crate::carrier::dpa::targets::Targets;
use crate::error::{Error, Result};
use crate::op::config::{Config, Derived};
use crate::op::stream::{self, Stream, Transport, thread_of};
use layout::device;

const CONTEXT_BYTES: u64 = size_of::<ReceiveContext>() as u64;
/// What the host writes for an operation of a receive context: operation and placement.
const LINES_BYTES: u64 = (size_of::<Operation>() + size_of::<Placement>()) as u64;

/// One stream's receiver.
#[derive(Debug)]
struct Context {
    stream: Stream,
    thread: usize,
    /// Its operation and placement.
    lines: DevAddr,
    rows: DevAddr,
    /// Its operation as last written.
    operation: Operation,
    placement: Placement,
    chunks: u64,
    /// What a progress thread sees of it.
    view: ReceiveView,
    _copier: Option<Copier>,
    _bitmap: DeviceBuffer,
}

/// What copies from the staging slots (UD).
#[derive(Debug)]
struct Copier {
    _qp: DpaQueuePair,
    _staging: MemoryKey,
}

#[derive(Debug)]
struct Thread {
    mailbox: Mailbox,
    /// Of `mailbox`.
    _target: MailboxTarget,
    handler: EventHandler,
    /// Its [`ReceiveThread`], and behind it the contexts, lines and rows of its receive contexts.
    memory: MemoryKey,
}

/// The receiving side of a communicator.
#[derive(Debug)]
pub(crate) struct Receive {
    /// What the group keys of the operation under way stand for (UC multicast): the receive buffer.
    keys: Vec<GroupKey>,
    threads: Vec<Thread>,
    /// In their groups.
    memberships: Vec<MulticastMembership>,
    /// By number of their streams. They go before the staging memory, whose key their posted receives name.
    queue_pairs: Vec<DpaQueuePair>,
    /// By number of their streams.
    contexts: Vec<Context>,
    /// Where this rank and others want their bytes (UC unicast).
    targets: Option<Targets>,
    /// Senders write by group keys (UC multicast).
    by_group_keys: bool,
    host: MemoryRegion,
    _group: DeviceBuffer,
    shared: Shared,
    sequence: u64,
    reports: u64,
    /// The receive contexts report on the operation by themselves.
    reporting: bool,
    /// Reports of each receive context when they had taken the operation over: what they reported before is of another
    /// one.
    reported_before: Vec<u64>,
    /// Room for what is read of a report.
    words: Vec<u64>,
    table: Vec<RootRow>,
}

/// What queues and memory of a receive context need.
struct Maker<'m> {
    card: &'m DpaCard,
    config: &'m Config,
    derived: &'m Derived,
    handler: &'m EventHandler,
    log_slots: u8,
}

impl Maker<'_> {
    fn cq(&self) -> Result<DpaCompletionQueue> {
        let target = CqTarget::Thread(self.handler);
        Ok(DpaCompletionQueue::new(self.card.outbox(), self.log_slots, target)?)
    }

    /// The queue pair that receives, and its part of the context.
    fn receiver(&self) -> Result<(DpaQueuePair, ReceiveContext)> {
        let transport = match self.config.transport {
            Transport::Ud => flexio::Transport::Ud,
            Transport::UcMulticast | Transport::UcUnicast => flexio::Transport::Uc,
        };
        let cq = self.cq()?;
        let receiver = DpaQueuePair::builder(transport, DpaDepths::receive_only(self.log_slots)).build(&cq, &cq)?;
        let (receive_cq, receive_queue) = (cq_memory(&cq), receive_memory(&receiver));
        let context = ReceiveContext { receive_cq, receive_queue, ..Default::default() };
        Ok((receiver, context))
    }

    /// Staging slots and the queue pair that copies from them (UD).
    fn copier(&self) -> Result<(CompletionQueueMemory, SendQueueMemory, Staging, Option<Copier>)> {
        if self.config.transport.is_zero_copy() {
            return Ok(Default::default());
        }
        let cq = self.cq()?;
        let depths = DpaDepths { log_send: Some(self.log_slots), log_receive: None };
        let mut copies =
            DpaQueuePair::builder(flexio::Transport::Rc, depths).access(Access::REMOTE_WRITE).build(&cq, &cq)?;
        let own = copies.endpoint(0);
        copies.connect(&Connection::to(own))?;
        let stride = self.derived.slot_bytes;
        let bytes = u64::from(self.config.slots) * u64::from(stride);
        let staging = DeviceBuffer::zeroed(self.card.process(), bytes)?;
        let key = MemoryKey::new(&staging, Access::LOCAL_WRITE)?;
        let staging = Staging { address: staging.addr().get(), stride, lkey: key.id() };
        let (cq, queue) = (cq_memory(&cq), send_memory(&copies));
        Ok((cq, queue, staging, Some(Copier { _qp: copies, _staging: key })))
    }
}

impl Receive {
    /// Makes queues, threads and contexts; queue pairs are not yet in their groups, or connected. Receive contexts
    /// notify a progress thread by `signals`.
    pub(crate) fn new(
        card: &DpaCard,
        config: &Config,
        derived: &Derived,
        place: RankInfo,
        (units, places): (&TakenUnits, Range<usize>),
        (host, signals): (MemoryRegion, Option<DeviceAddress>),
    ) -> Result<Self> {
        let process = card.process();
        let shared = Shared::new(derived, place.ranks());
        let address = |offset: usize| host.addr().get() + offset as u64;
        let group = DeviceBuffer::from_bytes(process, GroupContext::default().as_bytes())?;
        let log_slots = config.slots.ilog2() as u8;
        let row_bytes = shared.row_bytes as u64;
        let transport = config.transport.of_firmware();
        let symbol = if config.transport.is_zero_copy() { "uc_receive" } else { "ud_receive" };
        let (mut threads, mut contexts, mut queue_pairs) = (Vec::new(), Vec::new(), Vec::new());
        for (thread, unit) in places.clone().enumerate() {
            let serves = |index| thread_of(index, derived.streams, places.len() as u32) == thread as u32;
            let streams: Vec<(u32, Stream)> = (0u32..)
                .zip(stream::received(config.transport, config.subgroups, place))
                .filter(|(index, _)| serves(*index))
                .collect();
            let count = streams.len() as u64;
            let contexts_at = size_of::<ReceiveThread>() as u64;
            let lines_at = contexts_at + count * CONTEXT_BYTES;
            let rows_at = lines_at + count * LINES_BYTES;
            let memory = DeviceBuffer::zeroed(process, rows_at + count * row_bytes)?;
            let key = MemoryKey::new(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
            let argument = memory.addr();
            let handler = units.handler(unit, process, symbol, argument.get())?;
            // Rows and line of each receive context.
            let (mailbox, mailbox_target) = Mailbox::new(card, &handler, 2 * streams.len())?;
            let maker = Maker { card, config, derived, handler: &handler, log_slots };
            for (at, (index, stream)) in (0..).zip(&streams) {
                let context = *index as usize;
                let (receiver, queues) = maker.receiver()?;
                let (send_cq, send_queue, staging, copier) = maker.copier()?;
                let bitmap_bytes = 8 * u64::from(derived.bitmap_words + derived.tail_words);
                let bitmap = DeviceBuffer::zeroed(process, bitmap_bytes)?;
                let (lines, rows) =
                    (memory.addr().offset(lines_at + at * LINES_BYTES), memory.addr().offset(rows_at + at * row_bytes));
                let tails = bitmap.addr().offset(8 * u64::from(derived.bitmap_words));
                let view = ReceiveView {
                    bitmap: BitmapMemory::new(device(bitmap.addr()), derived.bitmap_words),
                    tails: BitmapMemory::new(device(tails), derived.tail_words),
                    rows: TableMemory::new(device(rows), place.ranks()),
                    operation: HostLine::new(device(lines)),
                    placement: HostLine::new(device(lines.offset(size_of::<Operation>() as u64))),
                    ..Default::default()
                };
                let context = ReceiveContext {
                    abi_hash: ABI_HASH,
                    abi_version: ABI_VERSION,
                    worker: *index,
                    workers: derived.streams,
                    transport: transport as u32,
                    batch: config.receive_batch,
                    budget: config.budget,
                    psn_bits: derived.layout.psn_bits(),
                    send_cq,
                    send_queue,
                    staging,
                    bitmap: view.bitmap,
                    tails: view.tails,
                    rows: view.rows,
                    group: SharedLine::new(device(group.addr())),
                    signals: SharedLine::new(signals.unwrap_or_default()),
                    operation: view.operation,
                    placement: view.placement,
                    flag_host: address(shared.flag()),
                    report_host: address(shared.report(context)),
                    bitmap_host: address(shared.bitmap(context, false)),
                    ..queues
                };
                memory.write(contexts_at + at * CONTEXT_BYTES, context.as_bytes())?;
                queue_pairs.push(receiver);
                contexts.push(Context {
                    stream: *stream,
                    thread,
                    lines,
                    rows,
                    operation: Operation::default(),
                    placement: Placement::default(),
                    chunks: 0,
                    view,
                    _copier: copier,
                    _bitmap: bitmap,
                });
            }
            let context = ReceiveThread {
                abi_hash: ABI_HASH,
                abi_version: ABI_VERSION,
                transport: transport as u32,
                budget: config.budget,
                outbox_id: card.outbox().id(),
                window_id: card.window().id(),
                window_mkey: host.lkey(),
                thread: thread as u32,
                contexts: ContextMemory::new(device(memory.addr().offset(contexts_at)), streams.len() as u32),
                control_cq: cq_memory(&mailbox_target.cq),
                control_queue: receive_memory(&mailbox_target.qp),
                ..Default::default()
            };
            let context = memory.write_context(0, &context)?;
            accepted("receive thread", process.call(&PREPARE_RECEIVE, context)?)?;
            threads.push(Thread { mailbox, _target: mailbox_target, handler, memory: key });
        }
        if let (Transport::UcMulticast, Some(member)) = (config.transport, queue_pairs.first()) {
            offers_group_keys(member, &host)?;
        }
        let targets = match config.transport {
            Transport::UcUnicast => Some(Targets::new(card, place)?),
            Transport::Ud | Transport::UcMulticast => None,
        };
        Ok(Self {
            keys: Vec::with_capacity(contexts.len()),
            memberships: Vec::with_capacity(contexts.len()),
            queue_pairs,
            threads,
            contexts,
            targets,
            by_group_keys: config.transport == Transport::UcMulticast,
            host,
            _group: group,
            shared,
            sequence: 0,
            reports: 0,
            reporting: false,
            reported_before: Vec::new(),
            words: Vec::with_capacity((derived.bitmap_words + derived.tail_words) as usize),
            table: Vec::new(),
        })
    }

    /// Streams of single ranks, each with the queue pair that receives it; none of groups.
    pub(crate) fn unicast(&self) -> impl Iterator<Item = (u32, Stream)> {
        let single =
            |(qp, context): (&DpaQueuePair, &Context)| context.stream.peer.map(|_| (qp.number(), context.stream));
        self.queue_pairs.iter().zip(&self.contexts).filter_map(single)
    }

    /// The receive contexts, as a progress thread sees them.
    pub(crate) fn views(&self) -> impl Iterator<Item = ReceiveView> {
        self.contexts.iter().map(|context| context.view)
    }

    /// Where this rank and others want their bytes (UC unicast).
    pub(crate) fn targets(&self) -> Option<&Targets> {
        self.targets.as_ref()
    }

    /// A rank that cannot be notified any more where this one wants its bytes, with the status of the work completion;
    /// returned once.
    pub(crate) fn take_broken(&mut self) -> Result<Option<(u32, u32)>> {
        self.targets.as_mut().map_or(Ok(None), Targets::take_broken)
    }

    /// Joins the groups, one per subgroup, or connects to the ranks that send; and lets the threads run.
    pub(crate) fn connect(
        &mut self,
        card: &DpaCard,
        (own, all): (u32, &[ConnectInfo]),
        q_key: u32,
        group: impl Fn(u32) -> Result<MulticastGroup>,
        config: &Config,
    ) -> Result<()> {
        if let Some(targets) = &mut self.targets {
            targets.connect(all, config)?;
        }
        let path = Path { traffic_class: config.data_class, ..Path::default() };
        for (context, qp) in self.contexts.iter().zip(&mut self.queue_pairs) {
            let Stream { subgroup, peer } = context.stream;
            match (peer, config.transport) {
                (Some(peer), _) => {
                    let sender = all[peer as usize].stream(own, subgroup)?.sender;
                    qp.connect(&Connection::to(all[peer as usize].remote(sender)).path(path))?;
                    continue;
                }
                (None, Transport::Ud) => qp.activate(UdKey { q_key })?,
                (None, _) => qp.connect(&Connection::to(group(subgroup)?.endpoint(0)).path(path))?,
            }
            self.memberships.push(MulticastMembership::attach(qp, group(subgroup)?)?);
        }
        for thread in &self.threads {
            thread.handler.run(thread.memory.buffer().addr().get())?;
            card.activate(&thread.handler)?;
        }
        Ok(())
    }
}

/// Tries whether the card lets a group key stand for memory.
fn offers_group_keys(member: &DpaQueuePair, memory: &MemoryRegion) -> Result<()> {
    match GroupKey::of_key(member, 0, memory.rkey(), memory.addr().get()) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(Error::Unsupported {
            what: "multicast of UC queue pairs with group keys (Transport::UcMulticast)",
            next: "take Transport::UcUnicast or Transport::Ud, or an emulated machine with uc_multicast",
            refusal,
        }),
    }
}
