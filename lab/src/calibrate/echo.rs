//! Hold-out V-12: DPA-Store's datagram echo.

use emu_machine::timing::Parameters;
use flexcast_abi::calibration::KernelContext;
use flexcast_abi::{DeviceAddress, Queue};
use flexio::{
    Access, AddressHandle, CompletionQueue, CqTarget, Device, DeviceBuffer, DpaCompletionQueue, DpaDepths,
    DpaQueuePair, HostBuffer, MemoryKey, MemoryRegion, ProtectionDomain, QueueDepths, QueuePair, SendKind, SendRequest,
    Transport, UdAddress, UdKey,
};
use zerocopy::IntoBytes as _;

use super::CalibrateError;
use super::fixture::{Fixture, LINE_BYTES, check, compact, cq_memory, devices, lost, provider, span_ns, with_bench};
use crate::tput::run::ImageFile;

/// log2 of the receives of a worker.
const LOG_RING: u8 = 6;
/// Datagrams on their way to a worker and back.
const IN_FLIGHT: u64 = 32;
/// Datagrams posted at once; the last is signalled.
const BATCH: u64 = 8;
/// Queue key of all queue pairs; the top bit is clear, so that any sender may use it.
const Q_KEY: u32 = 0x0EC0_0EC0;
/// Bytes of a datagram.
const BYTES: u32 = 64;
/// Bytes of a receive buffer: routing header and datagram, whole lines.
const BUFFER_BYTES: u32 = 128;
/// In an id: a receive.
const RECEIVE: u64 = 1 << 63;
/// Without a sign of progress for so long, something is wrong.
const QUIET_PS: u64 = 2_000_000_000;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) threads: u32,
    /// Of each worker: a multiple of [`BATCH`].
    pub(super) datagrams: u64,
}

/// The client's side.
struct Client<'a> {
    completions: &'a CompletionQueue,
    memory: &'a MemoryRegion,
    path: AddressHandle,
    queue_pairs: Vec<QueuePair>,
}

impl Client<'_> {
    fn post_receive(&self, worker: usize) -> Result<(), CalibrateError> {
        // Nobody reads the answers: all land in one buffer.
        let into = self.memory.slice(u64::from(BUFFER_BYTES), BUFFER_BYTES)?;
        Ok(self.queue_pairs[worker].post_receive(RECEIVE | worker as u64, into)?)
    }

    fn post(&self, worker: usize, qpn: u32, count: u64) -> Result<(), CalibrateError> {
        let local = self.memory.slice(0, BYTES)?;
        let requests: Vec<SendRequest<'_>> = (1..=count)
            .map(|number| SendRequest {
                id: worker as u64,
                kind: SendKind::Datagram { to: &self.path, qpn, q_key: Q_KEY },
                local: Some(local),
                immediate: None,
                signaled: number == count,
            })
            .collect();
        Ok(self.queue_pairs[worker].post_sends(&requests)?)
    }
}

impl Echo {
    /// Datagrams per second that are answered.
    pub(super) fn per_s(&self, image: &ImageFile, parameters: &Parameters) -> Result<f64, CalibrateError> {
        let provider = provider(parameters, 2)?;
        let cards = devices(&provider)?;
        with_bench(&cards[0], image, self.threads as usize, LINE_BYTES, |fixture| self.serve(fixture, &cards[1]))
    }

    fn serve(&self, fixture: &Fixture<'_>, client: &Device) -> Result<f64, CalibrateError> {
        let threads = self.threads as usize;
        let pd = ProtectionDomain::new(client)?;
        let bytes = 2 * BUFFER_BYTES as usize;
        let memory = MemoryRegion::register(&pd, HostBuffer::zeroed(bytes)?, Access::LOCAL_WRITE)?;
        let depth = (self.threads * 2 * IN_FLIGHT as u32).next_power_of_two();
        let completions = CompletionQueue::new(client, depth)?;
        let mut queue_pairs = Vec::new();
        for _ in 0..threads {
            let depths = QueueDepths { send: 2 * IN_FLIGHT as u32, receive: 2 * IN_FLIGHT as u32 };
            let qp = QueuePair::builder(&pd, Transport::Ud, depths).build(&completions, &completions)?;
            qp.init(Access::empty(), Q_KEY)?;
            qp.activate(0)?;
            queue_pairs.push(qp);
        }

        let per_worker = u64::from(BUFFER_BYTES) << LOG_RING;
        let buffers = DeviceBuffer::zeroed(fixture.process, per_worker * u64::from(self.threads))?;
        let key = MemoryKey::new(&buffers, Access::LOCAL_WRITE)?;
        let (contexts, handlers) = fixture.slots("echo", compact)?;
        let (mut receive_cqs, mut send_cqs) = (Vec::new(), Vec::new());
        for handler in &handlers {
            receive_cqs.push(DpaCompletionQueue::new(fixture.outbox, LOG_RING, CqTarget::Thread(handler))?);
            send_cqs.push(DpaCompletionQueue::new(fixture.outbox, LOG_RING, CqTarget::Thread(handler))?);
        }
        let mut workers = Vec::new();
        for (send_cq, receive_cq) in send_cqs.iter().zip(&receive_cqs) {
            let depths = DpaDepths { log_send: Some(LOG_RING + 1), log_receive: Some(LOG_RING) };
            let mut qp = DpaQueuePair::builder(Transport::Ud, depths).build(send_cq, receive_cq)?;
            qp.activate(UdKey { q_key: Q_KEY })?;
            workers.push(qp);
        }
        let server = fixture.process.device();
        for (worker, buffer) in contexts.iter().enumerate() {
            let qp = &workers[worker];
            let record = DeviceAddress::new(qp.doorbell_record().get());
            let (receives, sends) =
                (DeviceAddress::new(qp.receive_ring().get()), DeviceAddress::new(qp.send_ring().get()));
            let (gid, mac) = (client.port().gid, client.info().mac);
            let address = UdAddress::new(server, gid, mac, queue_pairs[worker].qpn(), Q_KEY)?;
            let mut context = KernelContext {
                count: self.datagrams,
                lkey: key.id(),
                buffers: buffers.addr().get() + worker as u64 * per_worker,
                buffer_bytes: BUFFER_BYTES,
                receive_cq: cq_memory(&receive_cqs[worker]),
                receive_queue: Queue::new(receives, record, qp.number(), u32::from(LOG_RING)),
                send_cq: cq_memory(&send_cqs[worker]),
                send_queue: Queue::new(sends, record, qp.number(), u32::from(LOG_RING) + 1),
                ..fixture.context(worker)
            };
            context.address_vector.as_mut_bytes().copy_from_slice(&address.to_bytes());
            fixture.prepare("echo", worker, buffer, &context)?;
        }
        let path = AddressHandle::new(&pd, server.port().gid)?;
        let client = Client { completions: &completions, memory: &memory, path, queue_pairs };
        for worker in 0..threads {
            for _ in 0..IN_FLIGHT {
                client.post_receive(worker)?;
            }
        }
        fixture.start(&handlers, &contexts)?;
        let numbers: Vec<u32> = workers.iter().map(DpaQueuePair::number).collect();
        self.exchange(fixture, &client, &numbers)?;
        let results = fixture.results("echo")?;
        check("echo", &results)?;
        Ok((self.datagrams * u64::from(self.threads)) as f64 / (span_ns(&results) as f64 * 1e-9))
    }

    /// Sends until every worker has answered all.
    fn exchange(&self, fixture: &Fixture<'_>, client: &Client<'_>, numbers: &[u32]) -> Result<(), CalibrateError> {
        let clock = fixture.process.device().provider().relax();
        let mut posted = vec![0u64; numbers.len()];
        let mut answered = vec![0u64; numbers.len()];
        let mut moved_ps = clock.now_ps();
        loop {
            let done = client.completions.poll()?;
            for completion in &done {
                client.completions.check(completion, "a datagram")?;
                if completion.id & RECEIVE != 0 {
                    let worker = (completion.id & !RECEIVE) as usize;
                    answered[worker] += 1;
                    client.post_receive(worker)?;
                }
            }
            let mut moved = !done.is_empty();
            for (worker, &qpn) in numbers.iter().enumerate() {
                let count = BATCH.min(self.datagrams - posted[worker]);
                if count > 0 && posted[worker] - answered[worker] + count <= IN_FLIGHT {
                    client.post(worker, qpn, count)?;
                    posted[worker] += count;
                    moved = true;
                }
            }
            if answered.iter().all(|count| *count == self.datagrams) {
                return Ok(());
            }
            let now_ps = clock.now_ps();
            if moved {
                moved_ps = now_ps;
            } else if now_ps - moved_ps > QUIET_PS {
                fixture.process.check()?;
                let wanted = self.datagrams * numbers.len() as u64;
                let quiet_us = (now_ps - moved_ps) / 1_000_000;
                let done = answered.iter().sum();
                return Err(CalibrateError::Stalled {
                    kernel: "echo".to_owned(),
                    quiet_us,
                    done,
                    wanted,
                    lost: lost()?,
                });
            }
            clock.relax();
        }
    }
}
