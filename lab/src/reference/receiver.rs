//! The receiving side: image `reference` on the DPA, its workers and everything they need.

use std::mem::{offset_of, size_of};

use flexcast_abi::reference::{PREPARE, ReferenceContext, ReferenceIteration, ReferenceReport, ReferenceStatus};
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, BitmapMemory, CompletionFlag, CompletionQueueMemory, DeviceAddress, FLAG_MAGIC,
    GroupContext, HostLine, Layout as _, Queue, Shared, Staging, Transport,
};
use flexio::{
    AbiExpectation, Access, Affinity, Application, Connection, CqTarget, Device, DeviceBuffer, DpaCompletionQueue,
    DpaDepths, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion, Outbox, Process, ProtectionDomain,
    RemoteQp, UdKey, Window,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::plan::Plan;
use crate::accesses::Range;
use crate::tput::TputError;
use crate::tput::run::ImageFile;
use crate::tput::run::bring_up;

/// Bytes of the routing header area in front of a UD payload.
const GRH_BYTES: u64 = 40;
/// Queue key of the UD queue pairs; the top bit is clear, so that any sender may use it.
pub(super) const Q_KEY: u32 = 0x0F1E_2D3C;
/// What fills the user buffer before an iteration.
const UNWRITTEN: u8 = 0xA5;

/// How senders reach a worker.
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

struct Worker<'a> {
    context: &'a DeviceBuffer,
    iteration: &'a DeviceBuffer,
    handler: &'a EventHandler,
    endpoint: WorkerEndpoint,
    chunks: u32,
}

/// A provisioned receiver.
pub struct Receiver<'a> {
    plan: &'a Plan,
    process: &'a Process,
    shared: &'a MemoryRegion,
    user: &'a MemoryRegion,
    queue_pairs: Vec<DpaQueuePair>,
    workers: Vec<Worker<'a>>,
    sequence: u64,
    ranges: Vec<Range>,
}

/// Offset of a worker's report in the host memory that all share; the completion flag comes first.
const fn report_at(worker: usize) -> usize {
    size_of::<CompletionFlag>().next_multiple_of(64) + worker * size_of::<ReferenceReport>()
}

/// Loads the image on `device`, provisions the plan's workers, and calls `body` with them.
///
/// Everything lives in this function's frame, in the order in which the hardware wants it torn down again.
///
/// # Errors
/// [`TputError`] of any step, or of `body`.
pub fn serve<R>(
    device: &Device,
    image: &ImageFile,
    plan: &Plan,
    body: impl FnOnce(&mut Receiver<'_>) -> Result<R, TputError>,
) -> Result<R, TputError> {
    let provider = device.provider();
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(provider, &image.name, &image.elf, Some(abi))?;
    let pd = ProtectionDomain::new(device)?;
    let count = plan.shares.len();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let shared = MemoryRegion::register(&pd, HostBuffer::zeroed(report_at(count))?, access)?;
    let user = HostBuffer::zeroed(usize::try_from(plan.bytes).unwrap_or(usize::MAX))?;
    let user = MemoryRegion::register(&pd, user, access)?;
    let process = Process::new(&application, &pd)?;
    bring_up(&process)?;

    let window = Window::new(&process)?;
    let outbox = Outbox::new(&process)?;
    let group = DeviceBuffer::from_bytes(&process, GroupContext::default().as_bytes())?;
    let buffers = |bytes: &dyn Fn(usize) -> u64| {
        (0..count).map(|worker| DeviceBuffer::zeroed(&process, bytes(worker))).collect::<flexio::Result<Vec<_>>>()
    };
    let bitmap_words = |worker: usize| plan.shares[worker].chunks.div_ceil(64);
    let contexts = buffers(&|_| size_of::<ReferenceContext>() as u64)?;
    let iterations = buffers(&|_| size_of::<ReferenceIteration>() as u64)?;
    let bitmaps = buffers(&|worker| 8 * bitmap_words(worker))?;
    let is_staged = plan.params.transport == Transport::Ud;
    let stride = (plan.params.chunk_bytes + GRH_BYTES).next_multiple_of(64);
    let staging = if is_staged { buffers(&|_| stride * plan.ring)? } else { Vec::new() };
    let keys = staging.iter().map(|buffer| MemoryKey::new(buffer, Access::LOCAL_WRITE));
    let keys = keys.collect::<flexio::Result<Vec<_>>>()?;
    let entry = if is_staged { "ud_receive" } else { "uc_receive" };
    let handlers = contexts.iter().zip(plan.params.first_unit..);
    let handlers = handlers
        .map(|(context, unit)| EventHandler::new(&process, entry, context.addr().get(), Affinity::Unit(unit)))
        .collect::<flexio::Result<Vec<_>>>()?;
    let log_ring = plan.ring.ilog2() as u8;
    let queues = || {
        let targets = handlers.iter().map(CqTarget::Thread);
        targets.map(|target| DpaCompletionQueue::new(&outbox, log_ring, target)).collect::<flexio::Result<Vec<_>>>()
    };
    let receive_cqs = queues()?;
    let copy_cqs = if is_staged { queues()? } else { Vec::new() };
    let mut loopbacks = Vec::new();
    for cq in &copy_cqs {
        let depths = DpaDepths { log_send: Some(log_ring), log_receive: None };
        let mut qp = DpaQueuePair::builder(flexio::Transport::Rc, depths).access(Access::REMOTE_WRITE).build(cq, cq)?;
        let own = qp.endpoint(0);
        qp.connect(&Connection::to(own))?;
        loopbacks.push(qp);
    }
    let transport = if is_staged { flexio::Transport::Ud } else { flexio::Transport::Uc };
    let queue_pairs =
        receive_cqs.iter().map(|cq| DpaQueuePair::builder(transport, DpaDepths::receive_only(log_ring)).build(cq, cq));
    let queue_pairs = queue_pairs.collect::<flexio::Result<Vec<_>>>()?;

    let (mut workers, mut ranges) = (Vec::new(), Vec::new());
    for (index, share) in plan.shares.iter().enumerate() {
        let queue_pair = &queue_pairs[index];
        let mut context = ReferenceContext {
            layout_hash: ReferenceContext::HASH,
            transport: plan.params.transport as u32,
            workers: count as u32,
            outbox_id: outbox.id(),
            window_id: window.id(),
            window_mkey: shared.lkey(),
            receive_cq: completion_queue(&receive_cqs[index]),
            receive_queue: Queue::new(
                address(queue_pair.receive_ring()),
                address(queue_pair.doorbell_record()),
                queue_pair.number(),
                log_ring.into(),
            ),
            bitmap: BitmapMemory::new(address(bitmaps[index].addr()), bitmap_words(index) as u32),
            group: Shared::new(address(group.addr())),
            iteration: HostLine::new(address(iterations[index].addr())),
            flag_host: shared.addr().get(),
            report_host: shared.addr().get() + report_at(index) as u64,
            ..Default::default()
        };
        if is_staged {
            let loopback = &loopbacks[index];
            context.copy_cq = completion_queue(&copy_cqs[index]);
            let (ring, record) = (address(loopback.send_ring()), address(loopback.doorbell_record()));
            context.copy_queue = Queue::new(ring, record, loopback.number(), log_ring.into());
            let slots = staging[index].addr().get();
            context.staging = Staging { address: slots, stride: stride as u32, lkey: keys[index].id() };
        }
        ranges.extend(memory_of(&context, contexts[index].addr().get()));
        let prepared = process.call(&PREPARE, contexts[index].write_context(0, &context)?)?;
        prepared.map_err(|refusal| TputError::Context { worker: index, code: refusal.code.into() })?;
        workers.push(Worker {
            context: &contexts[index],
            iteration: &iterations[index],
            handler: &handlers[index],
            endpoint: WorkerEndpoint {
                qp: queue_pair.endpoint(0),
                q_key: Q_KEY,
                remote_addr: user.addr().get() + share.offset,
                rkey: user.rkey(),
            },
            chunks: share.chunks as u32,
        });
    }
    let mut receiver =
        Receiver { plan, process: &process, shared: &shared, user: &user, queue_pairs, workers, sequence: 0, ranges };
    body(&mut receiver)
}

fn address(addr: flexio::DevAddr) -> DeviceAddress {
    DeviceAddress::new(addr.get())
}

fn completion_queue(cq: &DpaCompletionQueue) -> CompletionQueueMemory {
    Queue::new(address(cq.ring()), address(cq.doorbell_record()), cq.number(), u32::from(cq.log_depth()))
}

/// What a worker has in DPA memory.
fn memory_of(context: &ReferenceContext, addr: u64) -> Vec<Range> {
    let mut ranges = vec![
        Range { name: "context", addr, len: size_of::<ReferenceContext>() as u64 },
        Range { name: "bitmap", addr: context.bitmap.address(), len: 8 * u64::from(context.bitmap.count()) },
    ];
    for (ring, bytes, record) in [
        (context.receive_cq.ring(), context.receive_cq.ring_bytes(), context.receive_cq.doorbell_record()),
        (context.copy_cq.ring(), context.copy_cq.ring_bytes(), context.copy_cq.doorbell_record()),
        (context.receive_queue.ring(), context.receive_queue.ring_bytes(), context.receive_queue.doorbell_record()),
        (context.copy_queue.ring(), context.copy_queue.ring_bytes(), context.copy_queue.doorbell_record()),
    ] {
        // A queue that there is not has no address.
        ranges.extend([Range { name: "rings", addr: ring, len: bytes }, Range { name: "rings", addr: record, len: 8 }]);
    }
    ranges.retain(|range| range.addr != 0);
    ranges
}

impl Receiver<'_> {
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
                Transport::Uc => qp.connect(&Connection::to(*peer))?,
                Transport::Ud => qp.activate(UdKey { q_key: Q_KEY })?,
            }
        }
        for worker in &self.workers {
            worker.handler.run(worker.context.addr().get())?;
        }
        Ok(())
    }

    /// Gives all workers the next iteration. Their threads sleep, and begin with the first chunk.
    ///
    /// # Errors
    /// [`TputError::Flexio`].
    pub fn begin(&mut self) -> Result<(), TputError> {
        self.user.fill(UNWRITTEN);
        self.sequence += 1;
        for worker in &self.workers {
            let iteration = ReferenceIteration {
                sequence: self.sequence,
                destination: worker.endpoint.remote_addr,
                rkey: worker.endpoint.rkey,
                chunks: worker.chunks,
                chunk_bytes: self.plan.params.chunk_bytes as u32,
                counted: self.plan.params.counted.into(),
                ..Default::default()
            };
            worker.iteration.write(0, iteration.as_bytes())?;
        }
        Ok(())
    }

    /// Whether the completion flag shows the iteration.
    ///
    /// # Errors
    /// [`TputError::Flexio`] never in practice: the flag lies in this object's memory.
    pub fn is_complete(&self) -> Result<bool, TputError> {
        Ok(self.shared.read_u64(offset_of!(CompletionFlag, value))? == FLAG_MAGIC + self.sequence)
    }

    /// An error if the process has died, or a worker has ended the iteration without all its chunks.
    ///
    /// # Errors
    /// [`TputError::Flexio`] with the crash record, [`TputError::Kernel`].
    pub fn check(&self) -> Result<(), TputError> {
        self.process.check()?;
        for worker in 0..self.workers.len() {
            let at = report_at(worker);
            if self.shared.read_u64(at + offset_of!(ReferenceReport, sequence))? == self.sequence {
                let word = self.shared.read_u64(at + offset_of!(ReferenceReport, status))?;
                let (status, detail) = (word as u32, (word >> 32) as u32);
                if ReferenceStatus::from_raw(status) != Ok(ReferenceStatus::Complete) {
                    return Err(TputError::Kernel { worker, status, detail });
                }
            }
        }
        Ok(())
    }

    /// What all workers have reported of the iteration that is complete.
    ///
    /// # Errors
    /// As [`Receiver::check`].
    pub fn reports(&self) -> Result<Vec<ReferenceReport>, TputError> {
        self.check()?;
        let mut reports = Vec::new();
        for worker in 0..self.workers.len() {
            let mut raw = [0; size_of::<ReferenceReport>()];
            self.shared.read(report_at(worker), &mut raw)?;
            reports.push(ReferenceReport::read_from_bytes(&raw).unwrap_or_default());
        }
        Ok(reports)
    }

    /// Copies the user buffer out.
    ///
    /// # Errors
    /// [`TputError::Flexio`] for a length that it has not.
    pub fn read_user(&self, out: &mut [u8]) -> Result<(), TputError> {
        Ok(self.user.read(0, out)?)
    }
}
