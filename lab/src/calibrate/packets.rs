//! Hold-outs V-9 and V-10: SDR-RDMA's receive workers. Two cards send, since one sends fewer packets per second than
//! were received; a switch joins them to the receiver.

use emu_machine::timing::Parameters;
use flexcast_abi::calibration::{KernelContext, MessageRow};
use flexcast_abi::{DeviceAddress, Queue, SharedBitmapMemory, TableMemory};
use flexio::{
    Access, CompletionQueue, Connection, CqTarget, Device, DeviceBuffer, DpaCompletionQueue, DpaQueuePair, HostBuffer,
    MemoryRegion, ProtectionDomain, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
};
use zerocopy::IntoBytes as _;

use super::CalibrateError;
use super::fixture::{
    Fixture, LINE_BYTES, check, compact, cq_memory, devices, lost, provider, span_ns, spread, with_bench,
};
use crate::tput::run::ImageFile;

/// Cards that send.
const SENDERS: usize = 2;
/// log2 of the receives of a worker.
const LOG_RING: u8 = 9;
/// Packets posted at once; the last is signalled.
const BATCH: u64 = 32;
/// Packets in flight to a worker: less than it has receives, since it posts the last of a chunk after telling of it.
const IN_FLIGHT: u64 = (1 << LOG_RING) - 64;
/// Packets in flight to all workers together: the receiving card has room for 16 384 that wait for its receive engine.
const ALL_IN_FLIGHT: u64 = 12_288;
/// Bits of the immediate that number packets; those above name the message.
const PACKET_BITS: u32 = 22;
/// Without a sign of progress for so long, something is wrong.
const QUIET_PS: u64 = 2_000_000_000;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packets {
    pub(super) threads: u32,
    /// Of each worker: a multiple of 64.
    pub(super) packets: u64,
    /// log2 of the packets of a bitmap chunk, 0 to 6.
    pub(super) log_chunk: u32,
    /// Over all cores, not one core after the other.
    pub(super) spread: bool,
}

/// What is on its way to one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    posted: u64,
    /// Sends known to be complete.
    sent: u64,
    /// Packets of chunks that the worker has reported complete.
    reported: u64,
}

/// One sending card.
struct Sender<'a> {
    completions: &'a CompletionQueue,
    source: &'a MemoryRegion,
    /// Of the workers that are this sender's.
    queue_pairs: Vec<QueuePair>,
}

impl Packets {
    const fn words(&self) -> u64 {
        self.packets / 64 + 1
    }

    /// Packets in flight to each worker.
    fn in_flight(&self) -> u64 {
        IN_FLIGHT.min(ALL_IN_FLIGHT / u64::from(self.threads))
    }

    /// Bytes of a worker's chunk bitmap in host memory, whole lines.
    const fn chunk_bytes(&self) -> u64 {
        (self.words() * 8).next_multiple_of(LINE_BYTES)
    }

    /// Packets per second that all workers receive together.
    pub(super) fn per_s(&self, image: &ImageFile, parameters: &Parameters) -> Result<f64, CalibrateError> {
        let provider = provider(parameters, 1 + SENDERS)?;
        let cards = devices(&provider)?;
        let threads = self.threads as usize;
        let payload = u64::from(self.threads) * LINE_BYTES;
        let host_bytes = payload + u64::from(self.threads) * self.chunk_bytes();
        with_bench(&cards[0], image, threads, host_bytes, |fixture| self.serve(fixture, &cards[1..]))
    }

    fn serve(&self, fixture: &Fixture<'_>, senders: &[Device]) -> Result<f64, CalibrateError> {
        let bits = DeviceBuffer::zeroed(fixture.process, u64::from(self.threads) * self.words() * 8)?;
        let rows: Vec<MessageRow> = (0..u64::from(self.threads))
            .map(|worker| MessageRow { first_word: worker * self.words(), log_chunk: self.log_chunk, reserved: 0 })
            .collect();
        let messages = DeviceBuffer::from_bytes(fixture.process, rows.as_bytes())?;
        let (contexts, handlers) = fixture.slots("packets", if self.spread { spread } else { compact })?;
        let mut cqs = Vec::new();
        for handler in &handlers {
            cqs.push(DpaCompletionQueue::new(fixture.outbox, LOG_RING, CqTarget::Thread(handler))?);
        }
        let mut receivers = Vec::new();
        for cq in &cqs {
            receivers
                .push(DpaQueuePair::builder(Transport::Uc, flexio::DpaDepths::receive_only(LOG_RING)).build(cq, cq)?);
        }
        for (worker, buffer) in contexts.iter().enumerate() {
            let qp = &receivers[worker];
            let context = KernelContext {
                count: self.packets,
                packet_bits: SharedBitmapMemory::new(
                    DeviceAddress::new(bits.addr().get()),
                    self.threads * self.words() as u32,
                ),
                messages: TableMemory::new(DeviceAddress::new(messages.addr().get()), self.threads),
                chunk_bits_host: fixture.host()
                    + u64::from(self.threads) * LINE_BYTES
                    + worker as u64 * self.chunk_bytes(),
                receive_cq: cq_memory(&cqs[worker]),
                receive_queue: Queue::new(
                    DeviceAddress::new(qp.receive_ring().get()),
                    DeviceAddress::new(qp.doorbell_record().get()),
                    qp.number(),
                    u32::from(LOG_RING),
                ),
                ..fixture.context(worker)
            };
            fixture.prepare("packets", worker, buffer, &context)?;
        }

        let mut domains = Vec::new();
        for device in senders {
            domains.push(ProtectionDomain::new(device)?);
        }
        let (mut sources, mut completions) = (Vec::new(), Vec::new());
        for (domain, device) in domains.iter().zip(senders) {
            sources.push(MemoryRegion::register(domain, HostBuffer::zeroed(LINE_BYTES as usize)?, Access::empty())?);
            let per_flow = (IN_FLIGHT / BATCH + 1) as u32;
            completions.push(CompletionQueue::new(device, (self.threads * per_flow).next_power_of_two().max(64))?);
        }
        let mut flows: Vec<Sender<'_>> = Vec::new();
        for (source, completions) in sources.iter().zip(&completions) {
            flows.push(Sender { completions, source, queue_pairs: Vec::new() });
        }
        for (worker, receiver) in receivers.iter_mut().enumerate() {
            let of = worker % SENDERS;
            let depths = QueueDepths { send: 1 << LOG_RING, receive: 1 };
            let queue = &completions[of];
            let qp = QueuePair::builder(&domains[of], Transport::Uc, depths).build(queue, queue)?;
            qp.init(Access::empty(), 0)?;
            let (gid, mac) = (senders[of].port().gid, senders[of].info().mac);
            receiver.connect(&Connection::to(RemoteQp { qpn: qp.qpn(), gid, mac, first_psn: 0 }))?;
            qp.connect(&Connection::to(receiver.endpoint(0)))?;
            flows[of].queue_pairs.push(qp);
        }
        fixture.start(&handlers, &contexts)?;
        self.send(fixture, &flows)?;
        let results = fixture.results("packets")?;
        check("packets", &results)?;
        Ok((self.packets * u64::from(self.threads)) as f64 / (span_ns(&results) as f64 * 1e-9))
    }

    /// Keeps as many packets on their way to each worker as it has receives for, until all have reported their last
    /// chunk.
    fn send(&self, fixture: &Fixture<'_>, senders: &[Sender<'_>]) -> Result<(), CalibrateError> {
        let clock = fixture.process.device().provider().relax();
        let mut flows = vec![Flow::default(); self.threads as usize];
        let wanted = self.packets * u64::from(self.threads);
        let mut moved_ps = clock.now_ps();
        loop {
            let mut moved = false;
            for sender in senders {
                let done = sender.completions.poll()?;
                for completion in &done {
                    sender.completions.check(completion, "packets")?;
                    let flow = &mut flows[(completion.id >> 32) as usize];
                    flow.sent = flow.sent.max(completion.id & 0xFFFF_FFFF);
                }
            }
            for (worker, flow) in flows.iter_mut().enumerate() {
                moved |= self.read_bitmap(fixture, worker, flow)?;
                let sender = &senders[worker % SENDERS];
                let room =
                    (self.in_flight() - (flow.posted - flow.reported)).min((1 << LOG_RING) - (flow.posted - flow.sent));
                let count = BATCH.min(self.packets - flow.posted);
                if count > 0 && room >= count {
                    self.post(fixture, sender, worker, flow.posted, count)?;
                    flow.posted += count;
                    moved = true;
                }
            }
            if flows.iter().all(|flow| flow.reported == self.packets) {
                return Ok(());
            }
            let now_ps = clock.now_ps();
            if moved {
                moved_ps = now_ps;
            } else if now_ps - moved_ps > QUIET_PS {
                fixture.process.check()?;
                let done = flows.iter().map(|flow| flow.reported).sum();
                let quiet_us = (now_ps - moved_ps) / 1_000_000;
                return Err(CalibrateError::Stalled {
                    kernel: "packets".to_owned(),
                    quiet_us,
                    done,
                    wanted,
                    lost: lost()?,
                });
            }
            clock.relax();
        }
    }

    /// Reads a worker's chunk bitmap, which fills in order; true if there is more than before.
    fn read_bitmap(&self, fixture: &Fixture<'_>, worker: usize, flow: &mut Flow) -> Result<bool, CalibrateError> {
        let before = flow.reported;
        let at = Fixture::host_offset(self.threads as usize)
            + self.threads as usize * LINE_BYTES as usize
            + worker * self.chunk_bytes() as usize;
        loop {
            let chunks = flow.reported >> self.log_chunk;
            let word = fixture.shared.read_u64(at + (chunks / 64) as usize * 8)?;
            let full = (chunks / 64 * 64 + u64::from(word.trailing_ones())) << self.log_chunk;
            if full <= flow.reported || flow.reported >= self.packets {
                return Ok(flow.reported > before);
            }
            flow.reported = full.min(self.packets);
        }
    }

    fn post(
        &self,
        fixture: &Fixture<'_>,
        sender: &Sender<'_>,
        worker: usize,
        first: u64,
        count: u64,
    ) -> Result<(), CalibrateError> {
        let local = sender.source.slice(0, LINE_BYTES as u32)?;
        let remote_addr = fixture.host() + worker as u64 * LINE_BYTES;
        let requests: Vec<SendRequest<'_>> = (first..first + count)
            .map(|packet| SendRequest {
                id: (worker as u64) << 32 | (first + count),
                kind: SendKind::Write { remote_addr, rkey: fixture.shared.rkey() },
                local: Some(local),
                immediate: Some((worker as u32) << PACKET_BITS | packet as u32),
                signaled: packet + 1 == first + count,
            })
            .collect();
        Ok(sender.queue_pairs[worker / SENDERS].post_sends(&requests)?)
    }
}
