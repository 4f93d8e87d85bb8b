//! A ping to the `pingpong` image: a message from the host of one card, answered by the DPA of the other.

use flexcast_abi::memory::QueueKind;
use flexcast_abi::pingpong::PREPARE;
use flexcast_abi::{ABI_HASH, DeviceAddress, PingPongContext, Queue};
use flexio::{
    Access, Affinity, Bound, CompletionQueue, Connection, CqTarget, Device, DeviceBuffer, DpaCompletionQueue,
    DpaDepths, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion, Outbox, Process, ProtectionDomain,
    QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
};

use crate::tput::TputError;

/// log2 of the depth of each queue of the device.
const LOG_DEPTH: u8 = 4;
/// Bytes of a message buffer of the device.
const BUFFER_BYTES: u32 = 4096;
/// Longest wait for an answer, which takes microseconds.
const ANSWER_BOUND: Bound = Bound::millis(10).with_polls(50_000_000);

/// Ids of receives begin here; those of sends are below.
const ANSWERS: u64 = 2;

/// How a ping went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pong {
    /// Whether the answers equal the messages.
    pub equal: bool,
    /// From posting the message to its answer, by the provider's clock, in picoseconds; one per message, or
    /// per messages that were under way together.
    pub round_trips_ps: Vec<u64>,
}

/// Sends messages of the given texts to the image running in `process` and waits for each answer.
///
/// # Errors
/// A timeout, an error completion, or whatever provisioning can give.
pub fn ping(process: &Process, client: &Device, messages: &[&[u8]]) -> Result<Pong, TputError> {
    ping_by(process, client, "pong", messages, 1)
}

/// Most messages that are under way at once.
pub const MOST_IN_FLIGHT: usize = 8;

/// The same by one of the image's handlers that answer, with so many messages under way at once, at most
/// [`MOST_IN_FLIGHT`]: a round trip is that of all of them.
///
/// # Errors
/// As [`ping`].
pub fn ping_by(
    process: &Process,
    client: &Device,
    handler: &str,
    messages: &[&[u8]],
    in_flight: usize,
) -> Result<Pong, TputError> {
    let in_flight = in_flight.clamp(1, MOST_IN_FLIGHT);
    let outbox = Outbox::new(process)?;
    let depth = 1u64 << LOG_DEPTH;
    let buffers = DeviceBuffer::zeroed(process, depth * u64::from(BUFFER_BYTES))?;
    let key = MemoryKey::new(&buffers, Access::LOCAL_WRITE)?;
    let context = DeviceBuffer::zeroed(process, size_of::<PingPongContext>() as u64)?;
    let handler = EventHandler::new(process, handler, context.addr().get(), Affinity::Any)?;
    let receive_cq = DpaCompletionQueue::new(&outbox, LOG_DEPTH, CqTarget::Thread(&handler))?;
    let send_cq = DpaCompletionQueue::new(&outbox, LOG_DEPTH, CqTarget::Thread(&handler))?;
    let depths = DpaDepths { log_send: Some(LOG_DEPTH), log_receive: Some(LOG_DEPTH) };
    let mut device_qp =
        DpaQueuePair::builder(Transport::Rc, depths).access(Access::LOCAL_WRITE).build(&send_cq, &receive_cq)?;

    let pd = ProtectionDomain::new(client)?;
    // A message and its answer for each that is under way.
    let bytes = 2 * in_flight * BUFFER_BYTES as usize;
    let memory = MemoryRegion::register(&pd, HostBuffer::zeroed(bytes)?, Access::LOCAL_WRITE)?;
    let completions = CompletionQueue::new(client, 2 * MOST_IN_FLIGHT as u32)?;
    let host_depths = QueueDepths { send: MOST_IN_FLIGHT as u32, receive: MOST_IN_FLIGHT as u32 };
    let host_qp = QueuePair::builder(&pd, Transport::Rc, host_depths).build(&completions, &completions)?;
    host_qp.init(Access::LOCAL_WRITE, 0)?;
    let host = RemoteQp { qpn: host_qp.qpn(), gid: client.port().gid, mac: client.info().mac, first_psn: 0 };
    device_qp.connect(&Connection::to(host))?;
    host_qp.connect(&Connection::to(device_qp.endpoint(0)))?;

    fn queue<K: QueueKind>(ring: flexio::DevAddr, record: flexio::DevAddr, number: u32) -> Queue<K> {
        Queue::new(DeviceAddress::new(ring.get()), DeviceAddress::new(record.get()), number, u32::from(LOG_DEPTH))
    }
    let wanted = PingPongContext {
        abi_hash: ABI_HASH,
        outbox_id: outbox.id(),
        lkey: key.id(),
        buffers: buffers.addr().get(),
        buffer_bytes: BUFFER_BYTES,
        receive_cq: queue(receive_cq.ring(), receive_cq.doorbell_record(), receive_cq.number()),
        receive_queue: queue(device_qp.receive_ring(), device_qp.doorbell_record(), device_qp.number()),
        send_cq: queue(send_cq.ring(), send_cq.doorbell_record(), send_cq.number()),
        send_queue: queue(device_qp.send_ring(), device_qp.doorbell_record(), device_qp.number()),
        ..Default::default()
    };
    let prepared = process.call(&PREPARE, context.write_context(0, &wanted)?)?;
    prepared.map_err(|refusal| TputError::Context { worker: 0, code: refusal.code.into() })?;
    handler.run(context.addr().get())?;

    let mut pong = Pong { equal: true, round_trips_ps: Vec::new() };
    let relax = client.provider().relax();
    let message_at = |at: usize| 2 * at as u64 * u64::from(BUFFER_BYTES);
    let answer_at = |at: usize| message_at(at) + u64::from(BUFFER_BYTES);
    for together in messages.chunks(in_flight) {
        for (at, message) in together.iter().enumerate() {
            memory.write(message_at(at) as usize, message)?;
            memory.write(answer_at(at) as usize, &vec![0; message.len()])?;
            host_qp.post_receive(ANSWERS + at as u64, memory.slice(answer_at(at), BUFFER_BYTES)?)?;
        }
        let start_ps = relax.now_ps();
        let send = |(at, message): (usize, &&[u8])| {
            let local = Some(memory.slice(message_at(at), message.len() as u32)?);
            Ok(SendRequest { id: 1, kind: SendKind::Send, local, immediate: None, signaled: true })
        };
        host_qp.post_sends(&together.iter().enumerate().map(send).collect::<flexio::Result<Vec<_>>>()?)?;
        let mut answers = Vec::with_capacity(together.len());
        while answers.len() < together.len() {
            let done = completions.wait(ANSWER_BOUND, "the answer to a ping");
            if done.is_err() {
                process.check()?;
            }
            answers.extend(done?.into_iter().filter(|completion| completion.id >= ANSWERS));
        }
        pong.round_trips_ps.push(relax.now_ps() - start_ps);
        for (at, message) in together.iter().enumerate() {
            let mut answer = vec![0; message.len()];
            memory.read(answer_at(at) as usize, &mut answer)?;
            let completion = answers.iter().find(|answer| answer.id == ANSWERS + at as u64);
            let is_whole = completion.is_some_and(|completion| completion.byte_len == message.len() as u32);
            pong.equal &= answer == *message && is_whole;
        }
    }
    Ok(pong)
}
