//! The receiving side on the card: lanes, one per subgroup, and the DPA threads that serve them.

use std::mem::{offset_of, size_of};

use flexcast_abi::{
    ABI_HASH, ABI_VERSION, CompletionFlag, ContextFault, DeviceAddress, FLAG_MAGIC, GroupContext, LaneThread,
    OPERATION_CLOSED, Operation, Placement, ProgressLine, QueueDescriptor, RunRow, Staging, Statistics, Transport,
    WorkerContext, WorkerReport, WorkerStatus,
};
use flexcast_proto::{RootRow, lane};
use flexio::{
    Access, Affinity, CqTarget, DevAddr, DeviceBuffer, DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler,
    MemoryKey, MemoryRegion, MulticastGroup, MulticastMembership, UdKey,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::card::Card;
use crate::config::{Config, Derived};
use crate::error::{Error, Result};
use crate::plan::{Missing, Plan};
use crate::tower::Tower;
use crate::wake::{DeviceRange, Line, Wake};

const CONTEXT_BYTES: u64 = size_of::<WorkerContext>() as u64;
const ROW_BYTES: u64 = size_of::<RunRow>() as u64;

/// Where things lie in the host memory that the workers write through their windows, and from which lines are written to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    lanes: usize,
    bitmap_bytes: usize,
    row_bytes: usize,
}

/// What the host writes for a lane: operation and placement; and the operation again when it closes it.
const LINE_BYTES: usize = size_of::<Operation>() + size_of::<Placement>();

impl Shared {
    pub(crate) fn new(config: &Config, derived: &Derived, ranks: u32) -> Self {
        let bitmap_bytes = 8 * (derived.bitmap_words + derived.edge_words) as usize;
        let row_bytes = ranks as usize * ROW_BYTES as usize;
        Self {
            lanes: config.subgroups as usize,
            bitmap_bytes: bitmap_bytes.next_multiple_of(64),
            row_bytes: row_bytes.next_multiple_of(64),
        }
    }

    const fn flag(self) -> usize {
        0
    }

    const fn report(self, lane: usize) -> usize {
        self.flag() + size_of::<CompletionFlag>() + lane * size_of::<WorkerReport>()
    }

    const fn bitmap(self, lane: usize) -> usize {
        self.report(self.lanes) + lane * self.bitmap_bytes
    }

    const fn line(self, lane: usize) -> usize {
        self.bitmap(self.lanes) + lane * LINE_BYTES
    }

    const fn closing(self, lane: usize) -> usize {
        self.line(self.lanes) + lane * size_of::<Operation>()
    }

    const fn rows(self, lane: usize) -> usize {
        self.closing(self.lanes) + lane * self.row_bytes
    }

    pub(crate) const fn bytes(self) -> usize {
        self.rows(self.lanes)
    }
}

/// One subgroup's receiver.
#[derive(Debug)]
struct Lane {
    thread: usize,
    /// Its [`WorkerContext`].
    context: DevAddr,
    rows: DevAddr,
    /// Its operation as last written.
    operation: Operation,
    chunks: u64,
}

#[derive(Debug)]
struct Thread<'c> {
    handler: &'c EventHandler<'c>,
    wake: Wake<'c>,
    /// Its [`LaneThread`], and behind it the contexts and rows of its lanes.
    memory: &'c MemoryKey<'c>,
}

/// The receiving side of a communicator.
#[derive(Debug)]
pub(crate) struct Receive<'c> {
    threads: Vec<Thread<'c>>,
    /// By subgroup.
    lanes: Vec<Lane>,
    /// Until they are connected.
    queue_pairs: Vec<DpaQueuePair<'c>>,
    host: &'c MemoryRegion<'c>,
    shared: Shared,
    sequence: u64,
    reports: u64,
    table: Vec<RootRow>,
}

fn device(addr: DevAddr) -> DeviceAddress {
    DeviceAddress::new(addr.get())
}

pub(crate) fn cq_descriptor(cq: &DpaCompletionQueue<'_>) -> QueueDescriptor {
    QueueDescriptor {
        ring: device(cq.ring()),
        doorbell_record: device(cq.doorbell_record()),
        number: cq.number(),
        log_depth: u32::from(cq.log_depth()),
        ..Default::default()
    }
}

pub(crate) fn receive_descriptor(qp: &DpaQueuePair<'_>) -> QueueDescriptor {
    QueueDescriptor {
        ring: device(qp.receive_ring()),
        doorbell_record: device(qp.doorbell_record()),
        number: qp.number(),
        log_depth: u32::from(qp.depths().log_receive.unwrap_or(0)),
        ..Default::default()
    }
}

pub(crate) fn send_descriptor(qp: &DpaQueuePair<'_>) -> QueueDescriptor {
    QueueDescriptor {
        ring: device(qp.send_ring()),
        doorbell_record: device(qp.doorbell_record()),
        number: qp.number(),
        log_depth: u32::from(qp.depths().log_send.unwrap_or(0)),
        ..Default::default()
    }
}

/// Turns the answer of a `prepare` RPC into a result.
pub(crate) fn accepted(what: &'static str, answer: u64) -> Result<()> {
    if answer == 0 {
        return Ok(());
    }
    let (number, code) = ((answer >> 32) as u32, answer as u32);
    let name = ContextFault::from_raw(code).map_or_else(|_| "unknown".to_owned(), |fault| format!("{fault:?}"));
    Err(Error::Context { what, number, code: code.into(), name })
}

/// Which of `threads` threads serves subgroup `index` of `subgroups`: contiguous runs.
pub(crate) fn thread_of(index: u32, subgroups: u32, threads: u32) -> u32 {
    (u64::from(index) * u64::from(threads) / u64::from(subgroups)) as u32
}

impl<'c> Receive<'c> {
    /// Makes queues, threads and contexts; queue pairs are not yet in their groups.
    pub(crate) fn new(
        card: &'c Card<'_>,
        tower: &mut Tower<'c>,
        config: &Config,
        derived: &Derived,
        ranks: u32,
        units: &[u32],
        host: &'c MemoryRegion<'c>,
    ) -> Result<Self> {
        let process = card.process();
        let shared = Shared::new(config, derived, ranks);
        let address = |offset: usize| host.addr().get() + offset as u64;
        let group = tower.keep(DeviceBuffer::from_bytes(process, GroupContext::default().as_bytes())?);
        let log_slots = config.slots.ilog2() as u8;
        let row_bytes = shared.row_bytes as u64;
        let (mut threads, mut lanes, mut queue_pairs) = (Vec::new(), Vec::new(), Vec::new());
        for (thread, unit) in units.iter().enumerate() {
            let subgroups: Vec<u32> = (0..config.subgroups)
                .filter(|index| thread_of(*index, config.subgroups, units.len() as u32) == thread as u32)
                .collect();
            let count = subgroups.len() as u64;
            let contexts_at = size_of::<LaneThread>() as u64;
            let rows_at = contexts_at + count * CONTEXT_BYTES;
            let memory = tower.keep(DeviceBuffer::zeroed(process, rows_at + count * row_bytes)?);
            let key = tower.keep(MemoryKey::new(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?);
            let argument = memory.addr();
            let handler = tower.keep(EventHandler::new(process, "ud_lanes", argument.get(), Affinity::Unit(*unit))?);
            let (wake, woken) = Wake::new(card, tower, handler)?;
            for (at, subgroup) in (0..).zip(&subgroups) {
                let lane = *subgroup as usize;
                let receive_cq =
                    tower.keep(DpaCompletionQueue::new(card.outbox(), log_slots, CqTarget::Thread(handler))?);
                let copy_cq = tower.keep(DpaCompletionQueue::new(card.outbox(), log_slots, CqTarget::Thread(handler))?);
                let depths = DpaDepths { log_send: Some(log_slots), log_receive: None };
                let mut copies = DpaQueuePair::reliable(copy_cq, copy_cq, depths, Access::REMOTE_WRITE, 0)?;
                let own = copies.endpoint(0);
                copies.connect(&own, 0)?;
                let copies = tower.keep(copies);
                let receiver = DpaQueuePair::receiver(flexio::Transport::Ud, receive_cq, log_slots, 0)?;
                let slots = u64::from(config.slots) * u64::from(derived.slot_bytes);
                let staging = tower.keep(DeviceBuffer::zeroed(process, slots)?);
                let staging_key = tower.keep(MemoryKey::new(staging, Access::LOCAL_WRITE)?);
                let bitmap_bytes = 8 * u64::from(derived.bitmap_words + derived.edge_words);
                let bitmap = tower.keep(DeviceBuffer::zeroed(process, bitmap_bytes)?);
                let context = WorkerContext {
                    abi_hash: ABI_HASH,
                    abi_version: ABI_VERSION,
                    worker: *subgroup,
                    workers: config.subgroups,
                    transport: Transport::Ud as u32,
                    batch: config.receive_batch,
                    quota: config.quota,
                    psn_bits: derived.layout.psn_bits(),
                    bitmap_words: derived.bitmap_words,
                    edge_words: derived.edge_words,
                    rows_capacity: ranks,
                    receive_cq: cq_descriptor(receive_cq),
                    receive_queue: receive_descriptor(&receiver),
                    send_cq: cq_descriptor(copy_cq),
                    send_queue: send_descriptor(copies),
                    staging: Staging {
                        address: staging.addr().get(),
                        stride: derived.slot_bytes,
                        lkey: staging_key.id(),
                    },
                    bitmap: device(bitmap.addr()),
                    group: device(group.addr()),
                    flag_host: address(shared.flag()),
                    report_host: address(shared.report(lane)),
                    bitmap_host: address(shared.bitmap(lane)),
                    ..Default::default()
                };
                memory.write(contexts_at + at * CONTEXT_BYTES, context.as_bytes())?;
                queue_pairs.push(receiver);
                lanes.push(Lane {
                    thread,
                    context: memory.addr().offset(contexts_at + at * CONTEXT_BYTES),
                    rows: memory.addr().offset(rows_at + at * row_bytes),
                    operation: Operation::default(),
                    chunks: 0,
                });
            }
            let context = LaneThread {
                abi_hash: ABI_HASH,
                abi_version: ABI_VERSION,
                transport: Transport::Ud as u32,
                lanes: subgroups.len() as u32,
                quota: config.quota,
                outbox_id: card.outbox().id(),
                window_id: card.window().id(),
                window_mkey: host.lkey(),
                thread: thread as u32,
                contexts: device(memory.addr().offset(contexts_at)),
                control_cq: cq_descriptor(woken.cq),
                control_queue: receive_descriptor(woken.qp),
                ..Default::default()
            };
            memory.write(0, context.as_bytes())?;
            accepted("receive thread", process.call("prepare_lanes", argument.get())?)?;
            threads.push(Thread { handler, wake, memory: key });
        }
        let table = Vec::new();
        Ok(Self { threads, lanes, queue_pairs, host, shared, sequence: 0, reports: 0, table })
    }

    /// Joins the groups, one per subgroup, and lets the threads run.
    pub(crate) fn connect(
        &mut self,
        card: &'c Card<'_>,
        tower: &mut Tower<'c>,
        q_key: u32,
        group: impl Fn(u32) -> Result<MulticastGroup>,
    ) -> Result<()> {
        for (subgroup, mut qp) in (0..).zip(std::mem::take(&mut self.queue_pairs)) {
            qp.activate(UdKey { q_key })?;
            let qp = tower.keep(qp);
            let membership = MulticastMembership::attach(qp, group(subgroup)?)?;
            tower.keep(membership);
        }
        for thread in &self.threads {
            thread.handler.run(thread.memory.buffer().addr().get())?;
            card.kick(thread.handler)?;
        }
        Ok(())
    }

    /// Whether the threads can be told of something new.
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        for thread in &mut self.threads {
            if !thread.wake.is_free()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives the lanes an operation that receives into `region`. Only when [`Receive::is_free`].
    pub(crate) fn arm(
        &mut self,
        plan: &Plan,
        own: u32,
        region: &MemoryRegion<'_>,
        collective_id: u32,
        chunk_bytes: u32,
    ) -> Result<()> {
        self.sequence += 1;
        for index in 0..self.lanes.len() {
            let subgroup = index as u32;
            let space = plan.space(subgroup, &mut self.table)?;
            let (own_first, own_chunks) = plan.psns(own, &space);
            let chunks = space.chunks();
            let first = plan.root_ranks().next().unwrap_or(0);
            let share = plan.share(first, subgroup);
            let start = region.addr().get();
            let lane = &mut self.lanes[index];
            lane.chunks = chunks;
            lane.operation = Operation {
                sequence: self.sequence,
                destination: start + share.offset,
                rkey: region.rkey(),
                collective_id,
                chunks: chunks as u32,
                chunk_bytes,
                last_chunk_bytes: share.last_chunk_bytes.max(1),
                flags: 0,
                report_request: self.reports,
                sequence_check: self.sequence,
                ..Default::default()
            };
            let mut placement =
                Placement { own_first: own_first as u32, own_chunks: own_chunks as u32, ..Default::default() };
            if chunks > 0 {
                placement.roots = plan.root_ranks().count() as u32;
                if plan.is_equal() {
                    placement.run_chunks = share.chunks as u32;
                    let run_bytes = share.chunks * u64::from(chunk_bytes);
                    placement.run_gap = plan.block(first).bytes.wrapping_sub(run_bytes);
                } else {
                    placement.rows = device(lane.rows);
                    let at = self.shared.rows(index);
                    for (row, root) in (0usize..).zip(plan.root_ranks()) {
                        let (first_psn, chunks) = plan.psns(root, &space);
                        let share = plan.share(root, subgroup);
                        let row_bytes = RunRow {
                            destination: start + plan.block(root).offset + share.offset,
                            first_psn: first_psn as u32,
                            chunks: chunks as u32,
                            last_chunk_bytes: share.last_chunk_bytes,
                            ..Default::default()
                        };
                        self.host.write(at + row * ROW_BYTES as usize, row_bytes.as_bytes())?;
                    }
                }
            }
            let at = self.shared.line(index);
            self.host.write(at, lane.operation.as_bytes())?;
            self.host.write(at + size_of::<Operation>(), placement.as_bytes())?;
        }
        let rows = if plan.is_equal() { 0 } else { plan.root_ranks().count() as u64 * ROW_BYTES };
        let line = offset_of!(WorkerContext, operation) as u64;
        const {
            assert!(
                offset_of!(WorkerContext, placement) == offset_of!(WorkerContext, operation) + size_of::<Operation>()
            )
        };
        self.tell(|shared, index, lane| {
            let table = (rows > 0 && lane.chunks > 0).then_some((shared.rows(index), rows as usize, lane.rows));
            let operation = (shared.line(index), LINE_BYTES, lane.context.offset(line));
            [table, Some(operation)]
        })
    }

    /// Closes the operation: lanes accept nothing more, finish their copies and report. Only when [`Receive::is_free`].
    pub(crate) fn close(&mut self) -> Result<()> {
        self.reports += 1;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.operation.flags = OPERATION_CLOSED;
            lane.operation.report_request = self.reports;
            self.host.write(self.shared.closing(index), lane.operation.as_bytes())?;
        }
        let line = offset_of!(WorkerContext, operation) as u64;
        self.tell(|shared, index, lane| {
            [None, Some((shared.closing(index), size_of::<Operation>(), lane.context.offset(line)))]
        })
    }

    /// Writes lines (offset in host memory, length, where to) to all lanes and wakes their threads.
    fn tell(&mut self, lines: impl Fn(Shared, usize, &Lane) -> [Option<(usize, usize, DevAddr)>; 2]) -> Result<()> {
        let (host, shared) = (self.host, self.shared);
        for (number, thread) in self.threads.iter_mut().enumerate() {
            let mut batch = Vec::with_capacity(2 * self.lanes.len());
            for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.thread == number) {
                for (offset, len, to) in lines(shared, index, lane).into_iter().flatten() {
                    let from = host.slice(offset as u64, len as u32)?;
                    batch.push(Line { from, to: DeviceRange { address: to.get(), rkey: thread.memory.id() } });
                }
            }
            thread.wake.send(batch.into_iter())?;
        }
        Ok(())
    }

    fn progress(&self, lane: usize, field: usize) -> Result<u64> {
        Ok(self.host.read_u64(self.shared.report(lane) + offset_of!(WorkerReport, progress) + field)?)
    }

    /// A lane that has failed, with its status and detail; `None` while all is well.
    pub(crate) fn failure(&self) -> Result<Option<(u32, WorkerStatus, u32)>> {
        for lane in 0..self.lanes.len() {
            let word = self.progress(lane, offset_of!(ProgressLine, status))?;
            let (status, detail) = (word as u32, (word >> 32) as u32);
            if let Ok(status) = WorkerStatus::from_raw(status)
                && status.is_error()
            {
                return Ok(Some((lane as u32, status, detail)));
            }
        }
        Ok(None)
    }

    fn all(&self, field: usize, value: u64) -> Result<bool> {
        for lane in 0..self.lanes.len() {
            if self.progress(lane, field)? != value {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all lanes have taken the operation over: bitmaps are clear and receives posted.
    pub(crate) fn is_armed(&self) -> Result<bool> {
        self.all(offset_of!(ProgressLine, sequence), self.sequence)
    }

    /// Whether all chunks are in the user's buffer.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        Ok(self.host.read_u64(self.shared.flag())? == FLAG_MAGIC + self.sequence)
    }

    /// Whether all lanes have answered that they are closed.
    pub(crate) fn is_closed(&self) -> Result<bool> {
        self.all(offset_of!(ProgressLine, reported), self.reports)
    }

    /// What is missing, once [`Receive::is_closed`]. The own rank's positions count as there.
    pub(crate) fn missing(&mut self, plan: &Plan, derived: &Derived) -> Result<Missing> {
        let mut missing = Missing::default();
        let mut bytes = vec![0; 8 * (derived.bitmap_words + derived.edge_words) as usize];
        for index in 0..self.lanes.len() {
            let space = plan.space(index as u32, &mut self.table)?;
            self.host.read(self.shared.bitmap(index), &mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let (bitmap, edges) = words.split_at(derived.bitmap_words as usize);
            for (_, run) in lane::missing(&space, bitmap, edges) {
                for psn in run.first..run.first + run.count {
                    if let Some((root, place)) = plan.place(psn, &space) {
                        missing.add(root, &place);
                    }
                }
            }
        }
        missing.sort();
        Ok(missing)
    }

    /// Chunks of closed or foreign operations that were discarded, as of the lanes' last report.
    pub(crate) fn late_chunks(&self) -> Result<u64> {
        Ok(self.statistics()?.wrong_id)
    }

    /// Counters of all lanes together, as of their last report.
    pub(crate) fn statistics(&self) -> Result<Statistics> {
        let mut sum = Statistics::default();
        for lane in 0..self.lanes.len() {
            let mut bytes = [0; size_of::<Statistics>()];
            self.host.read(self.shared.report(lane) + offset_of!(WorkerReport, statistics), &mut bytes)?;
            let one = Statistics::read_from_bytes(&bytes).unwrap_or_default();
            sum.cqes += one.cqes;
            sum.accepted += one.accepted;
            sum.duplicates += one.duplicates;
            sum.out_of_range += one.out_of_range;
            sum.wrong_id += one.wrong_id;
            sum.wrong_length += one.wrong_length;
            sum.unexpected_opcode += one.unexpected_opcode;
            sum.error_cqes += one.error_cqes;
            sum.activations += one.activations;
            sum.copy_cqes += one.copy_cqes;
            sum.instructions += one.instructions;
            sum.cycles += one.cycles;
            sum.loop_cqes += one.loop_cqes;
            sum.loop_instructions += one.loop_instructions;
            sum.loop_cycles += one.loop_cycles;
            sum.longest_activation_cycles = sum.longest_activation_cycles.max(one.longest_activation_cycles);
        }
        Ok(sum)
    }
}
