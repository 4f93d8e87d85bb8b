//! The sending side on the card: DPA threads that send the own block, to groups or to each rank.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use flexcast_abi::send::PREPARE_SEND;
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, ContextMemory, DeviceAddress, HostLine, OPERATION_CLOSED, OPERATION_DEFERRED, SendContext,
    SendOperation, SendReport, SendRun, SendStatus, SendThread, Shared as SharedLine,
};
use flexcast_proto::RankInfo;
use flexio::{
    Access, Connection, CqTarget, DeviceBuffer, DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler, MemoryKey,
    MemoryRegion, MulticastGroup, Path, UdAddress, UdKey,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::carrier::connect_info::ConnectInfo;
use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::mailbox::{DeviceRange, Mailbox, MailboxTarget};
use crate::carrier::dpa::receive::{accepted, cq_memory, receive_memory, send_memory};
use crate::carrier::dpa::targets::{Target, Targets};
use crate::error::Result;
use crate::op::config::{Config, Derived};
use crate::op::stream::{self, Stream, Transport, thread_of};
use crate::plan::Plan;
use crate::plan::chains::order;

const CONTEXT_BYTES: u64 = size_of::<SendContext>() as u64;
const CONTEXTS_AT: u64 = size_of::<SendThread>() as u64;
const OPERATION_BYTES: u64 = size_of::<SendOperation>() as u64;
const RUN_BYTES: u64 = size_of::<SendRun>() as u64;
const REPORT_BYTES: usize = size_of::<SendReport>().next_multiple_of(64);

/// Where things lie in the sending side's part of the shared host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    threads: usize,
}

impl Shared {
    pub(crate) const fn new(config: &Config) -> Self {
        Self { threads: config.send_threads as usize }
    }

    const fn report(self, thread: usize) -> usize {
        thread * REPORT_BYTES
    }

    pub(crate) const fn end(self) -> usize {
        self.report(self.threads)
    }
}

#[derive(Debug)]
struct Thread {
    mailbox: Mailbox,
    /// Of `mailbox`.
    _target: MailboxTarget,
    handler: EventHandler,
    memory: MemoryKey,
    /// What it sends, with the numbers of the streams.
    streams: Vec<(u32, Stream)>,
    operation: SendOperation,
}

/// Where a thread of so many send contexts has its operation; the run of each send context follows.
const fn operation_at(contexts: usize) -> u64 {
    CONTEXTS_AT + contexts as u64 * CONTEXT_BYTES
}

const fn run_at(contexts: usize, context: u64) -> u64 {
    operation_at(contexts) + OPERATION_BYTES + context * RUN_BYTES
}

impl Thread {
    /// Has the operation written, behind what else the message holds, and wakes the thread.
    fn write_operation(&mut self) -> Result<()> {
        let target = self.memory.buffer().addr().offset(operation_at(self.streams.len()));
        self.mailbox.write(self.operation.as_bytes(), DeviceRange { address: target.get(), rkey: self.memory.id() });
        self.mailbox.ring()
    }
}

/// The sending side of a communicator.
#[derive(Debug)]
pub(crate) struct Send {
    threads: Vec<Thread>,
    /// Completion queues, in the order of the threads' streams; and queue pairs to single ranks, until they are
    /// connected.
    queues: Vec<DpaCompletionQueue>,
    single: Vec<DpaQueuePair>,
    /// Those that are connected.
    connected: Vec<DpaQueuePair>,
    transport: Transport,
    host: MemoryRegion,
    shared: Shared,
    /// Operations this rank has sent in; each thread counts them.
    sequence: u64,
    /// The operation that the threads are prepared for.
    prepared: Option<u32>,
    closing: bool,
    /// What it multicasts comes back to the card, for other ranks there.
    comes_back: bool,
    table: Vec<flexcast_proto::RootRow>,
}

impl Send {
    pub(crate) fn new(
        card: &DpaCard,
        config: &Config,
        derived: &Derived,
        place: RankInfo,
        (units, places): (&TakenUnits, Range<usize>),
        (host, shared, signals): (MemoryRegion, Shared, Option<DeviceAddress>),
    ) -> Result<Self> {
        let process = card.process();
        let log_cq = config.send_depth.ilog2() as u8;
        let depths = DpaDepths { log_send: Some(log_cq), log_receive: None };
        let (mut threads, mut queues, mut single) = (Vec::new(), Vec::new(), Vec::new());
        for (number, unit) in places.clone().enumerate() {
            let serves = |index| thread_of(index, derived.streams, places.len() as u32) == number as u32;
            let mut streams: Vec<(u32, Stream)> = (0u32..)
                .zip(stream::sent(config.transport, config.subgroups, place))
                .filter(|(index, _)| serves(*index))
                .collect();
            if config.transport != Transport::UcUnicast {
                // Roots that multicast at the same time begin in different subgroups: bursts of all in one would
                // overrun its receives.
                let count = streams.len() as u64;
                streams.rotate_left((u64::from(place.rank()) * count / u64::from(place.ranks())) as usize);
            }
            let memory = DeviceBuffer::zeroed(process, run_at(streams.len(), streams.len() as u64))?;
            let key = MemoryKey::new(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
            let argument = memory.addr().get();
            let handler = units.handler(unit, process, "send_blocks", argument)?;
            // The run of each send context, and the operation.
            let (mailbox, mailbox_target) = Mailbox::new(card, &handler, streams.len() + 1)?;
            for _ in &streams {
                let cq = DpaCompletionQueue::new(card.outbox(), log_cq, CqTarget::Thread(&handler))?;
                if config.transport == Transport::UcUnicast {
                    single.push(DpaQueuePair::builder(flexio::Transport::Uc, depths).build(&cq, &cq)?);
                }
                queues.push(cq);
            }
            let address = |offset| DeviceAddress::new(memory.addr().offset(offset).get());
            let context = SendThread {
                abi_hash: ABI_HASH,
                abi_version: ABI_VERSION,
                transport: config.transport.of_firmware() as u32,
                batch: config.send_batch,
                budget: config.budget,
                psn_bits: derived.layout.psn_bits(),
                outbox_id: card.outbox().id(),
                window_id: card.window().id(),
                window_mkey: host.lkey(),
                thread: number as u32,
                contexts: ContextMemory::new(address(CONTEXTS_AT), streams.len() as u32),
                report_host: host.addr().get() + shared.report(number) as u64,
                signals: SharedLine::new(signals.unwrap_or_default()),
                operation: HostLine::new(address(operation_at(streams.len()))),
                control_cq: cq_memory(&mailbox_target.cq),
                control_queue: receive_memory(&mailbox_target.qp),
                ..Default::default()
            };
            memory.write(0, context.as_bytes())?;
            let operation = SendOperation::default();
            threads.push(Thread { mailbox, _target: mailbox_target, handler, memory: key, streams, operation });
        }
        let (transport, table) = (config.transport, Vec::new());
        Ok(Self {
            threads,
            queues,
            single,
            connected: Vec::new(),
            transport,
            host,
            shared,
            sequence: 0,
            prepared: None,
            closing: false,
            comes_back: false,
            table,
        })
    }

    /// Streams to single ranks, each with the number of the queue pair that sends it; none to groups.
    pub(crate) fn unicast(&self) -> impl Iterator<Item = (u32, Stream)> {
        let streams = self.threads.iter().flat_map(|thread| &thread.streams);
        self.single.iter().zip(streams).map(|(qp, (_, stream))| (qp.number(), *stream))
    }

    /// Makes the queue pairs that send to the groups, or connects those to single ranks, and lets the threads run. If
    /// no other rank is on this card, what it multicasts need not come back to it.
    pub(crate) fn connect(
        &mut self,
        card: &DpaCard,
        (own, all): (u32, &[ConnectInfo]),
        q_key: u32,
        group: impl Fn(u32) -> Result<MulticastGroup>,
        config: &Config,
    ) -> Result<()> {
        let alone = all.iter().filter(|info| info.gid == all[own as usize].gid).count() == 1;
        self.comes_back = !alone && self.transport != Transport::UcUnicast;
        let path = Path { traffic_class: config.data_class, ..Path::default() };
        let log_sends = config.send_depth.ilog2() as u8;
        // A datagram's entry takes two blocks.
        let datagrams = DpaDepths { log_send: Some(log_sends + 1), log_receive: None };
        let mut single = std::mem::take(&mut self.single).into_iter();
        let mut queues = self.queues.iter();
        for thread in &self.threads {
            let memory = thread.memory.buffer();
            for (at, ((_, stream), cq)) in (0..).zip(thread.streams.iter().zip(&mut queues)) {
                let run = memory.addr().offset(run_at(thread.streams.len(), at));
                let run = HostLine::new(DeviceAddress::new(run.get()));
                let mut context = SendContext { send_cq: cq_memory(cq), run, ..Default::default() };
                let qp = match (stream.peer.zip(single.next()), self.transport) {
                    (Some((peer, mut qp)), _) => {
                        let receiver = all[peer as usize].stream(own, stream.subgroup)?.receiver;
                        qp.connect(&Connection::to(all[peer as usize].remote(receiver)).path(path))?;
                        qp
                    }
                    (None, Transport::Ud) => {
                        let mut qp = DpaQueuePair::builder(flexio::Transport::Ud, datagrams)
                            .block_multicast_loopback(alone)
                            .build(cq, cq)?;
                        qp.activate(UdKey { q_key })?;
                        let address = UdAddress::group(card.device(), group(stream.subgroup)?, q_key).along(path)?;
                        let address = match config.pacing_mbit_per_s() {
                            Some(mbit_per_s) => address.paced(mbit_per_s)?,
                            None => address,
                        };
                        context.address_vector.as_mut_bytes().copy_from_slice(&address.to_bytes());
                        qp
                    }
                    (None, _) => {
                        let mut qp = DpaQueuePair::builder(flexio::Transport::Uc, DpaDepths::send_only(log_sends))
                            .block_multicast_loopback(alone)
                            .build(cq, cq)?;
                        qp.connect(&Connection::to(group(stream.subgroup)?.endpoint(0)).path(path))?;
                        qp
                    }
                };
                context.send_queue = send_memory(&qp);
                memory.write(CONTEXTS_AT + at * CONTEXT_BYTES, context.as_bytes())?;
                self.connected.push(qp);
            }
            accepted("send thread", card.process().call(&PREPARE_SEND, memory.context_at(0)?)?)?;
            thread.handler.run(memory.addr().get())?;
            card.activate(&thread.handler)?;
        }
        Ok(())
    }

    /// Whether cards write what this rank multicasts to where it lies in the own receive buffer, too: Writes that come
    /// back for other ranks of the card.
    pub(crate) fn writes_come_back(&self) -> bool {
        self.comes_back && self.transport == Transport::UcMulticast
    }

    /// Whether the threads can be notified of something new.
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        for thread in &mut self.threads {
            if !thread.mailbox.is_free()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Activation ids of the threads.
    pub(crate) fn activation_ids(&self) -> impl Iterator<Item = u32> {
        self.threads.iter().map(|thread| thread.handler.id())
    }

    /// Number of the last operation.
    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Has the threads prepare to send the own block from `source` (address and local key) in an operation, so that
    /// nothing but the word to go is left when its turn comes; if that never does, the next operation replaces this
    /// one. Not for streams to single ranks. Only when [`Send::is_free`], and no operation is under way.
    pub(crate) fn prepare(&mut self, plan: &Plan, source: (u64, u32), ids: (u32, u32), config: &Config) -> Result<()> {
        self.post(plan, source, ids, config, (None, OPERATION_DEFERRED))?;
        self.prepared = Some(ids.0);
        Ok(())
    }

    /// Has the own block sent from `source` (address and local key): at once, or, if it is `deferred`, when the
    /// progress thread says so. `operation` is its number, alike on all ranks. Only when [`Send::is_free`], and
    /// `targets` are known.
    pub(crate) fn start(
        &mut self,
        plan: &Plan,
        source: (u64, u32),
        (operation, collective_id): (u32, u32),
        config: &Config,
        targets: Option<&Targets>,
        deferred: bool,
    ) -> Result<()> {
        if self.prepared.take() == Some(operation) {
            for thread in &mut self.threads {
                thread.operation.flags = 0;
                thread.write_operation()?;
            }
            return Ok(());
        }
        let flags = if deferred { OPERATION_DEFERRED } else { 0 };
        self.post(plan, source, (operation, collective_id), config, (targets, flags))
    }

    fn post(
        &mut self,
        plan: &Plan,
        source: (u64, u32),
        (operation, collective_id): (u32, u32),
        config: &Config,
        (targets, flags): (Option<&Targets>, u32),
    ) -> Result<()> {
        self.sequence += 1;
        self.closing = false;
        self.write_runs(plan, source, operation, targets)?;
        // Each thread sends its part of the block, and the next root is activated when all have as little left as that.
        let lookahead_chunks =
            config.lookahead(order(plan, config, plan.own()).chains) / self.threads.len().max(1) as u32;
        for thread in &mut self.threads {
            thread.operation = SendOperation {
                sequence: self.sequence,
                chunk_bytes: config.chunk_bytes,
                collective_id,
                lkey: source.1,
                lookahead_chunks,
                flags,
                sequence_check: self.sequence,
                ..Default::default()
            };
            thread.write_operation()?;
        }
        Ok(())
    }

    /// Adds the run of each send context to the next message of its thread.
    fn write_runs(&mut self, plan: &Plan, source: (u64, u32), operation: u32, targets: Option<&Targets>) -> Result<()> {
        let own = plan.own();
        for thread in &mut self.threads {
            let memory = thread.memory.buffer().addr();
            for (at, (_, stream)) in (0u64..).zip(&thread.streams) {
                let (first_psn, mut chunks) = plan.sent_psns(*stream, &mut self.table)?;
                let share = plan.share(own, stream.subgroup);
                let offset = plan.block(own).offset + share.offset;
                // Under a group key offsets are addresses; datagrams have no target.
                let (mut remote_address, mut key) = (offset, operation);
                if let Some((targets, peer)) = targets.zip(stream.peer) {
                    match targets.of(peer, operation)? {
                        Target::Known { address, rkey } => (remote_address, key) = (address + offset, rkey),
                        // It has everything, or is this rank itself.
                        Target::Over | Target::Unknown => chunks = 0,
                    }
                }
                let run = SendRun {
                    source: source.0 + share.offset,
                    remote_address,
                    first_psn: first_psn as u32,
                    chunks: chunks as u32,
                    last_chunk_bytes: share.last_chunk_bytes,
                    rkey: key,
                    ..Default::default()
                };
                let target = memory.offset(run_at(thread.streams.len(), at));
                thread.mailbox.write(run.as_bytes(), DeviceRange { address: target.get(), rkey: thread.memory.id() });
            }
        }
        Ok(())
    }

    /// Stops posting; what is posted completes. Only when [`Send::is_free`].
    pub(crate) fn close(&mut self) -> Result<()> {
        self.closing = true;
        for thread in &mut self.threads {
            thread.operation.flags = OPERATION_CLOSED;
            thread.write_operation()?;
        }
        Ok(())
    }

    /// Whether the operation has been closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    fn all(&self, field: usize) -> Result<bool> {
        for number in 0..self.threads.len() {
            if self.host.read_u64(self.shared.report(number) + field)? != self.sequence {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether so little is left to post that the next root may begin.
    pub(crate) fn is_announced(&self) -> Result<bool> {
        self.all(offset_of!(SendReport, announced))
    }

    /// Whether the card is done with the operation's source.
    pub(crate) fn is_finished(&self) -> Result<bool> {
        self.all(offset_of!(SendReport, finished))
    }

    /// Chunks that all threads have posted since set-up, as of the end of their last activations.
    pub(crate) fn posted(&self) -> Result<u64> {
        let posted = |number| self.host.read_u64(self.shared.report(number) + offset_of!(SendReport, posted));
        (0..self.threads.len()).try_fold(0, |sum, number| Ok(sum + posted(number)?))
    }

    /// A thread that has failed, with its status and detail; `None` while all is well.
    pub(crate) fn failure(&self) -> Result<Option<(u32, SendStatus, u32)>> {
        for number in 0..self.threads.len() {
            let word = self.host.read_u64(self.shared.report(number) + offset_of!(SendReport, status))?;
            if let Ok(status) = SendStatus::from_raw(word as u32)
                && status.is_error()
            {
                return Ok(Some((number as u32, status, (word >> 32) as u32)));
            }
        }
        Ok(None)
    }

    /// Chunks posted, doorbells rung and instructions retired by all threads since set-up.
    pub(crate) fn report(&self) -> Result<SendReport> {
        let mut sum = SendReport::default();
        for number in 0..self.threads.len() {
            let mut bytes = [0; size_of::<SendReport>()];
            self.host.read(self.shared.report(number), &mut bytes)?;
            let one = SendReport::read_from_bytes(&bytes).unwrap_or_default();
            sum.posted += one.posted;
            sum.doorbells += one.doorbells;
            sum.activations += one.activations;
            sum.instructions += one.instructions;
            sum.loop_instructions += one.loop_instructions;
        }
        Ok(sum)
    }
}
