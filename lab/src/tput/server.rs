//! The receiving side: an image on the DPA, its workers and everything they need.

use std::mem::{offset_of, size_of};

use flexcast_abi::{
    ABI_HASH, ABI_VERSION, CompletionFlag, DeviceAddress, FLAG_MAGIC, GroupContext, Operation, ProgressLine,
    QueueDescriptor, Staging, Statistics, Transport as AbiTransport, WorkerContext, WorkerReport, WorkerStatus,
    bring_up_answer,
};
use flexio::{
    AbiExpectation, Access, Affinity, Application, Bound, CqTarget, Device, DeviceBuffer, DpaCompletionQueue,
    DpaDepths, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion, Outbox, Process, ProtectionDomain,
    Provider, RemoteQp, UdKey, Window,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::TputError;
use super::plan::{Plan, Transport};
use crate::accesses::Range;

/// Bytes of the routing header area in front of a UD payload.
const GRH_BYTES: u64 = 40;
/// Completions after which an activation ends by itself, so that watchdogs and other handlers are served.
const QUOTA: u32 = 4096;
/// Queue key of the UD queue pairs; the top bit is clear, so that any sender may use it.
pub const Q_KEY: u32 = 0x0F1E_CA57;
/// What a fresh user buffer is filled with, so that a byte never written shows.
const UNWRITTEN: u8 = 0xA5;
/// Longest wait for workers to take over an operation or a report request, which takes them microseconds.
const CONTROL_BOUND: Bound = Bound::millis(100).with_looks(200_000_000);

/// How a worker is reached by senders.
#[derive(Clone, Copy, Debug)]
pub struct WorkerEndpoint {
    /// Its queue pair.
    pub qp: RemoteQp,
    /// Queue key (UD).
    pub q_key: u32,
    /// Where its share begins in the user buffer (UC).
    pub remote_addr: u64,
    /// Key of the user buffer (UC).
    pub rkey: u32,
}

/// What a worker has published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Receives posted since set-up: the credit of its sender.
    pub receives_posted: u64,
    /// Chunks of the operation not yet received, as of the worker's last pause.
    pub remaining: u64,
}

/// One worker, with the objects its lifetime does not depend on left to the frame that owns them.
struct Worker<'a> {
    context: &'a DeviceBuffer,
    handler: &'a EventHandler,
    endpoint: WorkerEndpoint,
    /// Offset of its report in the shared host memory.
    report: usize,
    /// Offset of its bitmap copy.
    bitmap: usize,
    bitmap_bytes: usize,
    reports_asked: u64,
}

/// A provisioned receiver.
pub struct Server<'a> {
    plan: &'a Plan,
    provider: &'a Provider,
    process: &'a Process,
    shared: &'a MemoryRegion,
    user: &'a MemoryRegion,
    queue_pairs: Vec<DpaQueuePair>,
    workers: Vec<Worker<'a>>,
    sequence: u64,
    operations: Vec<Operation>,
    ranges: Vec<Range>,
}

/// Where things lie in the host memory that workers write through their window.
struct SharedLayout {
    bitmap_words: Vec<u64>,
    bitmaps: Vec<usize>,
    bytes: usize,
}

impl SharedLayout {
    fn new(plan: &Plan) -> Self {
        let bitmap_words: Vec<u64> = plan.shares.iter().map(|share| share.chunks.div_ceil(64).max(1)).collect();
        let mut next = Self::report(plan.shares.len());
        let mut bitmaps = Vec::new();
        for words in &bitmap_words {
            bitmaps.push(next);
            next += (*words as usize * 8).next_multiple_of(64);
        }
        Self { bitmap_words, bitmaps, bytes: next }
    }

    /// The completion flag comes first, in a line of its own; then the reports.
    const fn report(worker: usize) -> usize {
        size_of::<CompletionFlag>() + worker * size_of::<WorkerReport>()
    }
}

/// Loads `elf` on `device`, provisions the plan's workers, and calls `body` with them.
///
/// Everything lives in this function's frame, in the order in which the hardware wants it torn down again.
///
/// # Errors
/// [`TputError`] of any step, or of `body`.
pub fn serve<R>(
    device: &Device,
    name: &str,
    elf: &[u8],
    plan: &Plan,
    body: impl FnOnce(&mut Server<'_>) -> Result<R, TputError>,
) -> Result<R, TputError> {
    let provider = device.provider();
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(provider, name, elf, Some(abi))?;
    let pd = ProtectionDomain::new(device)?;
    let layout = SharedLayout::new(plan);
    let shared =
        MemoryRegion::register(&pd, HostBuffer::zeroed(layout.bytes)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let user = HostBuffer::zeroed(usize::try_from(plan.bytes).unwrap_or(usize::MAX))?;
    let user = MemoryRegion::register(&pd, user, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let process = Process::new(&application, &pd)?;
    bring_up(&process)?;

    let window = Window::new(&process)?;
    let outbox = Outbox::new(&process)?;
    let group = DeviceBuffer::from_bytes(&process, GroupContext::default().as_bytes())?;
    let count = plan.shares.len();
    let contexts = buffers(count, |_| DeviceBuffer::zeroed(&process, size_of::<WorkerContext>() as u64))?;
    let bitmaps = buffers(count, |i| DeviceBuffer::zeroed(&process, layout.bitmap_words[i] * 8))?;
    let entry = match plan.params.transport {
        Transport::Uc => "uc_receive",
        Transport::Ud => "ud_receive",
    };
    let mut handlers = Vec::new();
    for (index, context) in contexts.iter().enumerate() {
        let unit = Affinity::Unit(plan.params.first_unit + index as u32);
        handlers.push(EventHandler::new(&process, entry, context.addr().get(), unit)?);
    }
    let log_ring = plan.params.ring.ilog2() as u8;
    let receive_cqs = completion_queues(&outbox, &handlers, log_ring)?;
    let copies = match plan.params.transport {
        Transport::Uc => None,
        Transport::Ud => Some(completion_queues(&outbox, &handlers, log_ring)?),
    };
    let staging = match plan.params.transport {
        Transport::Uc => Vec::new(),
        Transport::Ud => {
            let bytes = stride(plan) * u64::from(plan.params.ring);
            buffers(count, |_| DeviceBuffer::zeroed(&process, bytes))?
        }
    };
    let mut staging_keys = Vec::new();
    for buffer in &staging {
        staging_keys.push(MemoryKey::new(buffer, Access::LOCAL_WRITE)?);
    }
    let mut loopbacks = Vec::new();
    for cq in copies.iter().flatten() {
        let depths = DpaDepths { log_send: Some(log_ring), log_receive: None };
        let mut qp = DpaQueuePair::reliable(cq, cq, depths, Access::REMOTE_WRITE, 0)?;
        let own = qp.endpoint(0);
        qp.connect(&own, 0)?;
        loopbacks.push(qp);
    }
    let mut queue_pairs = Vec::new();
    let transport = match plan.params.transport {
        Transport::Uc => flexio::Transport::Uc,
        Transport::Ud => flexio::Transport::Ud,
    };
    for cq in &receive_cqs {
        queue_pairs.push(DpaQueuePair::receiver(transport, cq, log_ring, 0)?);
    }

    let (mut workers, mut ranges) = (Vec::new(), Vec::new());
    for index in 0..count {
        let share = &plan.shares[index];
        let context = worker_context(&Parts {
            plan,
            index,
            outbox_id: outbox.id(),
            window_id: window.id(),
            shared: &shared,
            layout: &layout,
            receive_cq: &receive_cqs[index],
            queue_pair: &queue_pairs[index],
            copies: copies.as_ref().map(|cqs| (&cqs[index], &loopbacks[index])),
            staging: staging_keys.get(index),
            bitmap: &bitmaps[index],
            group: &group,
        });
        ranges.extend(worker_ranges(&context, contexts[index].addr().get(), &bitmaps[index]));
        contexts[index].write(0, context.as_bytes())?;
        let code = process.call("prepare", contexts[index].addr().get())?;
        if code != 0 {
            return Err(TputError::Context { worker: index, code });
        }
        workers.push(Worker {
            context: &contexts[index],
            handler: &handlers[index],
            endpoint: WorkerEndpoint {
                qp: queue_pairs[index].endpoint(0),
                q_key: Q_KEY,
                remote_addr: user.addr().get() + share.offset,
                rkey: user.rkey(),
            },
            report: SharedLayout::report(index),
            bitmap: layout.bitmaps[index],
            bitmap_bytes: layout.bitmap_words[index] as usize * 8,
            reports_asked: 0,
        });
    }
    let mut server = Server {
        plan,
        provider,
        process: &process,
        shared: &shared,
        user: &user,
        queue_pairs,
        workers,
        sequence: 0,
        operations: vec![Operation::default(); count],
        ranges,
    };
    body(&mut server)
}

fn buffers(
    count: usize,
    mut make: impl FnMut(usize) -> flexio::Result<DeviceBuffer>,
) -> flexio::Result<Vec<DeviceBuffer>> {
    (0..count).map(&mut make).collect()
}

fn completion_queues(
    outbox: &Outbox,
    handlers: &[EventHandler],
    log_depth: u8,
) -> flexio::Result<Vec<DpaCompletionQueue>> {
    handlers.iter().map(|handler| DpaCompletionQueue::new(outbox, log_depth, CqTarget::Thread(handler))).collect()
}

/// Calls the image's bring-up RPC and checks its answer, which only code built with this ABI gives.
///
/// # Errors
/// [`TputError::BringUp`], or the failure of the call.
pub fn bring_up(process: &Process) -> Result<u64, TputError> {
    let argument = 0x0123_4567_89AB_CDEF;
    let answer = process.call("bring_up", argument)?;
    let expected = bring_up_answer(argument);
    if answer == expected { Ok(answer) } else { Err(TputError::BringUp { argument, answer, expected }) }
}

/// Bytes from staging slot to staging slot: header area and chunk, in whole cache lines.
fn stride(plan: &Plan) -> u64 {
    (plan.params.chunk_bytes + GRH_BYTES).next_multiple_of(64)
}

struct Parts<'a> {
    plan: &'a Plan,
    index: usize,
    outbox_id: u32,
    window_id: u32,
    shared: &'a MemoryRegion,
    layout: &'a SharedLayout,
    receive_cq: &'a DpaCompletionQueue,
    queue_pair: &'a DpaQueuePair,
    copies: Option<(&'a DpaCompletionQueue, &'a DpaQueuePair)>,
    staging: Option<&'a MemoryKey>,
    bitmap: &'a DeviceBuffer,
    group: &'a DeviceBuffer,
}

fn device_address(addr: flexio::DevAddr) -> DeviceAddress {
    DeviceAddress::new(addr.get())
}

fn cq_descriptor(cq: &DpaCompletionQueue) -> QueueDescriptor {
    QueueDescriptor {
        ring: device_address(cq.ring()),
        doorbell_record: device_address(cq.doorbell_record()),
        number: cq.number(),
        log_depth: u32::from(cq.log_depth()),
        ..Default::default()
    }
}

fn worker_context(parts: &Parts<'_>) -> WorkerContext {
    let Parts { plan, index, shared, layout, .. } = *parts;
    let params = &plan.params;
    let host = |offset: usize| shared.addr().get() + offset as u64;
    let log_ring = params.ring.ilog2();
    let qp = |qp: &DpaQueuePair, ring: flexio::DevAddr| QueueDescriptor {
        ring: device_address(ring),
        doorbell_record: device_address(qp.doorbell_record()),
        number: qp.number(),
        log_depth: log_ring,
        ..Default::default()
    };
    WorkerContext {
        abi_hash: ABI_HASH,
        abi_version: ABI_VERSION,
        worker: index as u32,
        workers: plan.shares.len() as u32,
        transport: match params.transport {
            Transport::Uc => AbiTransport::Uc as u32,
            Transport::Ud => AbiTransport::Ud as u32,
        },
        batch: params.batch,
        quota: QUOTA,
        psn_bits: params.psn_bits,
        user_index: 0,
        outbox_id: parts.outbox_id,
        window_id: parts.window_id,
        window_mkey: shared.lkey(),
        bitmap_words: layout.bitmap_words[index] as u32,
        receive_cq: cq_descriptor(parts.receive_cq),
        receive_queue: qp(parts.queue_pair, parts.queue_pair.receive_ring()),
        send_cq: parts.copies.map(|(cq, _)| cq_descriptor(cq)).unwrap_or_default(),
        send_queue: parts.copies.map(|(_, copy)| qp(copy, copy.send_ring())).unwrap_or_default(),
        staging: parts.staging.map_or_else(Staging::default, |key| Staging {
            address: key.buffer().addr().get(),
            stride: stride(plan) as u32,
            lkey: key.id(),
        }),
        bitmap: device_address(parts.bitmap.addr()),
        group: device_address(parts.group.addr()),
        flag_host: host(0),
        report_host: host(SharedLayout::report(index)),
        bitmap_host: host(layout.bitmaps[index]),
        ..Default::default()
    }
}

/// What a worker has in DPA memory.
fn worker_ranges(context: &WorkerContext, addr: u64, bitmap: &DeviceBuffer) -> Vec<Range> {
    const CQE_BYTES: u64 = 64;
    const RECEIVE_BYTES: u64 = 16;
    const SEND_BYTES: u64 = 64;
    const RECORD_BYTES: u64 = 8;
    let mut ranges = vec![
        Range { name: "context", addr, len: size_of::<WorkerContext>() as u64 },
        Range { name: "bitmap", addr: bitmap.addr().get(), len: bitmap.len() },
    ];
    for (queue, entry_bytes) in [
        (&context.receive_cq, CQE_BYTES),
        (&context.send_cq, CQE_BYTES),
        (&context.receive_queue, RECEIVE_BYTES),
        (&context.send_queue, SEND_BYTES),
    ] {
        // A queue that there is not has no address.
        ranges.extend([
            Range { name: "rings", addr: queue.ring.get(), len: entry_bytes << queue.log_depth },
            Range { name: "rings", addr: queue.doorbell_record.get(), len: RECORD_BYTES },
        ]);
    }
    ranges.retain(|range| range.addr != 0);
    ranges
}

impl Server<'_> {
    /// What the workers have in DPA memory: contexts, bitmaps, rings and doorbell records.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// How senders reach each worker.
    #[must_use]
    pub fn endpoints(&self) -> Vec<WorkerEndpoint> {
        self.workers.iter().map(|worker| worker.endpoint).collect()
    }

    /// Brings the queue pairs to RTS, connected to `peers` (UC; ignored for UD), and lets the workers run.
    ///
    /// # Errors
    /// [`TputError::Flexio`].
    pub fn connect(&mut self, peers: &[RemoteQp]) -> Result<(), TputError> {
        for (qp, peer) in self.queue_pairs.iter_mut().zip(peers) {
            match self.plan.params.transport {
                Transport::Uc => qp.connect(peer, 0)?,
                Transport::Ud => qp.activate(UdKey { q_key: Q_KEY })?,
            }
        }
        for worker in &self.workers {
            worker.handler.run(worker.context.addr().get())?;
        }
        Ok(())
    }

    /// Gives all workers the next operation and waits until they are armed: bitmaps clear, receives posted.
    ///
    /// # Errors
    /// [`TputError`] of a worker, or a timeout.
    pub fn arm(&mut self, collective_id: u32) -> Result<(), TputError> {
        self.user.fill(UNWRITTEN);
        self.sequence += 1;
        for index in 0..self.workers.len() {
            let share = &self.plan.shares[index];
            self.operations[index] = Operation {
                sequence: self.sequence,
                destination: self.workers[index].endpoint.remote_addr,
                rkey: self.workers[index].endpoint.rkey,
                collective_id,
                chunks: share.chunks as u32,
                chunk_bytes: self.plan.params.chunk_bytes as u32,
                last_chunk_bytes: share.last_chunk_bytes as u32,
                report_request: self.workers[index].reports_asked,
                sequence_check: self.sequence,
                ..Default::default()
            };
            self.publish(index)?;
        }
        let sequence = self.sequence;
        self.wait_for_workers("to be armed", offset_of!(ProgressLine, sequence), |_| sequence)?;
        // A worker shows the sequence of an operation that it refuses, too.
        self.check()
    }

    /// Writes a worker's operation line and wakes it.
    fn publish(&self, index: usize) -> Result<(), TputError> {
        let at = offset_of!(WorkerContext, operation) as u64;
        self.workers[index].context.write(at, self.operations[index].as_bytes())?;
        self.process.call("kick", self.kick_argument(index))?;
        Ok(())
    }

    /// What the RPC `kick` wants: the id by which the runtime activates the worker's thread.
    fn kick_argument(&self, index: usize) -> u64 {
        u64::from(self.workers[index].handler.id())
    }

    /// Waits until a field of every worker's progress line has the value wanted of it.
    fn wait_for_workers(&self, what: &str, field: usize, wanted: impl Fn(usize) -> u64) -> Result<(), TputError> {
        for index in 0..self.workers.len() {
            let at = self.workers[index].report + field;
            let mut looks = 0u32;
            let waited = self.provider.wait(CONTROL_BOUND, &format!("worker {index} {what}"), || {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(256) {
                    self.process.check()?;
                }
                Ok((self.shared.read_u64(at)? == wanted(index)).then_some(()))
            });
            if waited.is_err() {
                // A worker that has failed says why; a dead process leaves a record. Both beat a timeout.
                self.check()?;
            }
            waited?;
        }
        Ok(())
    }

    fn check_worker(&self, index: usize) -> Result<(), TputError> {
        let word = self.shared.read_u64(self.workers[index].report + offset_of!(ProgressLine, status))?;
        let (status, detail) = (word as u32, (word >> 32) as u32);
        match WorkerStatus::from_raw(status) {
            Ok(known) if !known.is_error() => Ok(()),
            _ => Err(TputError::Worker { worker: index, status, detail }),
        }
    }

    /// An error if the process has died, a worker has failed, or the card has given up a queue.
    ///
    /// # Errors
    /// [`TputError::Flexio`] with the crash record, [`TputError::Worker`], [`TputError::Card`].
    pub fn check(&self) -> Result<(), TputError> {
        self.process.check()?;
        (0..self.workers.len()).try_for_each(|index| self.check_worker(index))?;
        match self.process.device().take_async_event()? {
            Some(event) => Err(TputError::Card { event }),
            None => Ok(()),
        }
    }

    /// What a worker has published.
    ///
    /// # Errors
    /// [`TputError::Flexio`] never in practice: the line lies in this object's memory.
    pub fn progress(&self, index: usize) -> Result<Progress, TputError> {
        let read = |field: usize| self.shared.read_u64(self.workers[index].report + field);
        Ok(Progress {
            receives_posted: read(offset_of!(ProgressLine, receives_posted))?,
            remaining: read(offset_of!(ProgressLine, remaining))?,
        })
    }

    /// Whether the completion flag shows the current operation.
    ///
    /// # Errors
    /// As [`Server::progress`].
    pub fn completed(&self) -> Result<bool, TputError> {
        Ok(self.is_flagged()?)
    }

    fn is_flagged(&self) -> Result<bool, flexio::Error> {
        Ok(self.shared.read_u64(offset_of!(CompletionFlag, value))? == FLAG_MAGIC + self.sequence)
    }

    /// Waits for the completion flag, for as long as workers have for an answer.
    ///
    /// # Errors
    /// A timeout.
    pub fn wait_for_flag(&self) -> Result<(), TputError> {
        let mut looks = 0_u32;
        Ok(self.provider.wait(CONTROL_BOUND, "the completion flag", || {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(256) {
                self.process.check()?;
            }
            Ok(self.is_flagged()?.then_some(()))
        })?)
    }

    /// Has all workers bring statistics and bitmaps up to date, and returns them.
    ///
    /// # Errors
    /// [`TputError`] of a worker, or a timeout.
    pub fn report(&mut self) -> Result<Vec<(Statistics, Vec<u64>)>, TputError> {
        for index in 0..self.workers.len() {
            self.workers[index].reports_asked += 1;
            self.operations[index].report_request = self.workers[index].reports_asked;
            self.publish(index)?;
        }
        let wanted: Vec<u64> = self.workers.iter().map(|worker| worker.reports_asked).collect();
        self.wait_for_workers("to report", offset_of!(ProgressLine, reported), |index| wanted[index])?;
        let mut reports = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            let mut raw = [0; size_of::<Statistics>()];
            self.shared.read(worker.report + offset_of!(WorkerReport, statistics), &mut raw)?;
            let mut bits = vec![0; worker.bitmap_bytes];
            self.shared.read(worker.bitmap, &mut bits)?;
            let (words, _) = bits.as_chunks::<8>();
            let bitmap: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let statistics = Statistics::read_from_bytes(&raw).unwrap_or_default();
            let chunks = self.plan.shares[index].chunks;
            let missing = chunks - bitmap.iter().map(|word| u64::from(word.count_ones())).sum::<u64>().min(chunks);
            let remaining = self.progress(index)?.remaining;
            if missing != remaining {
                return Err(TputError::Inconsistent { worker: index, remaining, missing });
            }
            reports.push((statistics, bitmap));
        }
        Ok(reports)
    }

    /// Copies bytes of the user buffer out.
    ///
    /// # Errors
    /// [`TputError::Flexio`] for a range outside it.
    pub fn read_user(&self, offset: u64, out: &mut [u8]) -> Result<(), TputError> {
        Ok(self.user.read(offset as usize, out)?)
    }

    /// The plan it was provisioned for.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// The provider, for its clock.
    #[must_use]
    pub fn provider(&self) -> &Provider {
        self.provider
    }
}
