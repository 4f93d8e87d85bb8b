//! Workers of a sparse AllReduce over reliable connections, for tests of whoever aggregates: each sends what [`Worker`] says and no more. Blocks are
//! copied to and from registered memory.

use flexcast_proto::sparse::{Parameters, Shard, Shards, Step, Worker, split};
use flexio::{
    Access, Bound, CompletionQueue, Device, HostBuffer, MemoryRegion, Path, ProtectionDomain, Provider, QueueDepths,
    QueuePair, RemoteQp, Retry, SendKind, SendRequest, Transport,
};

/// Which completions are of sends.
const SENT: u64 = 1 << 32;

/// A worker: a queue pair for each shard.
pub struct TestWorker {
    parameters: Parameters,
    completions: CompletionQueue,
    lanes: Vec<Lane>,
    device: Device,
}

struct Lane {
    queue_pair: QueuePair,
    /// The message that is sent, and behind it the one that is received.
    memory: MemoryRegion,
    worker: Option<(Worker, Shard)>,
    /// What the slots of the ring hold.
    ring: Vec<u8>,
    messages: u64,
}

impl TestWorker {
    /// Queue pairs on `device` for so many shards.
    #[must_use]
    pub fn new(device: &Device, parameters: Parameters, shards: u32) -> Self {
        let pd = ProtectionDomain::new(device).expect("a protection domain");
        let completions = CompletionQueue::new(device, shards * 16).expect("a completion queue");
        let lane = |_| {
            let depths = QueueDepths { send: 8, receive: 8 };
            let queue_pair =
                QueuePair::new(&pd, Transport::Rc, &completions, &completions, depths).expect("a queue pair");
            queue_pair.init(Access::LOCAL_WRITE, 0).expect("INIT");
            let bytes = 2 * parameters.spot_bytes() as usize;
            let memory = HostBuffer::zeroed(bytes).expect("memory");
            let memory = MemoryRegion::register(&pd, memory, Access::LOCAL_WRITE).expect("a key");
            Lane { queue_pair, memory, worker: None, ring: vec![0; parameters.ring_bytes() as usize], messages: 0 }
        };
        let lanes = (0..shards).map(lane).collect();
        Self { parameters, completions, lanes, device: device.clone() }
    }

    /// How its queue pairs are reached, by shard.
    #[must_use]
    pub fn endpoints(&self) -> Vec<RemoteQp> {
        let (gid, mac) = (self.device.port().gid, self.device.info().mac);
        self.lanes.iter().map(|lane| RemoteQp { qpn: lane.queue_pair.qpn(), gid, mac, first_psn: 0 }).collect()
    }

    /// Connects to an aggregator's queue pairs.
    pub fn connect(&self, remotes: &[RemoteQp]) {
        let retry = Retry { timeout_exponent: 11, count: 7 };
        for (lane, remote) in self.lanes.iter().zip(remotes) {
            lane.queue_pair.connect_with(remote, 0, Path::default(), retry).expect("RTS");
        }
    }

    /// Begins an operation on an array.
    pub fn begin(&mut self, array: &[u8]) {
        let shards = Shards::new(array.len() as u64, self.parameters, 1, self.lanes.len() as u32, 1).expect("shards");
        for (lane, shard) in self.lanes.iter_mut().zip(shards.iter()) {
            lane.worker = Some((Worker::new(self.parameters, shard.blocks()).expect("a worker"), shard));
        }
    }

    /// Sends what is to be sent, and takes what has come; whether all shards are complete.
    ///
    /// # Errors
    /// A completion with an error, or an answer that cannot be.
    pub fn progress(&mut self, array: &mut [u8]) -> Result<bool, String> {
        let parameters = self.parameters;
        for completion in self.completions.poll().map_err(|error| error.to_string())? {
            self.completions.check(&completion, "a message").map_err(|error| error.to_string())?;
            if completion.id & SENT == 0 {
                self.lanes[completion.id as usize].take(parameters, completion.byte_len)?;
            }
        }
        let mut complete = true;
        for (number, lane) in (0..).zip(&mut self.lanes) {
            complete &= lane.step(parameters, number, array)?;
        }
        Ok(complete)
    }

    /// Sends bytes that are no message, or one at a wrong time, on the connection of a shard. What is answered is received, and not looked at.
    pub fn send_raw(&mut self, shard: usize, bytes: &[u8], immediate: Option<u32>) {
        let spot = self.parameters.spot_bytes();
        let lane = &mut self.lanes[shard];
        let into = lane.memory.slice(u64::from(spot), spot).expect("inside");
        lane.queue_pair.post_receive(shard as u64, into).expect("room in the receive queue");
        lane.send(shard as u64, bytes, immediate);
    }

    /// Messages sent on the connection of a shard.
    #[must_use]
    pub fn messages(&self, shard: usize) -> u64 {
        self.lanes[shard].messages
    }
}

impl Lane {
    fn take(&mut self, parameters: Parameters, bytes: u32) -> Result<(), String> {
        let (worker, _) = self.worker.as_mut().ok_or("an answer before an operation")?;
        let sums = bytes.saturating_sub(parameters.index_bytes()) / parameters.block_bytes();
        let mut answer = vec![0; bytes as usize];
        self.memory.read(parameters.spot_bytes() as usize, &mut answer).map_err(|error| error.to_string())?;
        let (_, next) = split(parameters, &answer, sums).map_err(|error| error.to_string())?;
        let iteration = worker.iteration();
        worker.answer(iteration, sums, &next).map(drop).map_err(|error| error.to_string())
    }

    /// Does what is due; whether the shard is complete.
    fn step(&mut self, parameters: Parameters, number: u64, array: &mut [u8]) -> Result<bool, String> {
        let block_bytes = parameters.block_bytes() as usize;
        let slot = |slot: u32| slot as usize * block_bytes..(slot as usize + 1) * block_bytes;
        loop {
            let Some((worker, shard)) = &mut self.worker else { return Ok(true) };
            match worker.poll() {
                Step::Store { block, position, .. } => {
                    let place = place(shard, block, array.len());
                    let at = parameters.spot_bytes() as usize + position as usize * block_bytes;
                    self.memory.read(at, &mut array[place]).map_err(|error| error.to_string())?;
                }
                Step::Scan { from, slot: into } => {
                    let found = (from..shard.blocks())
                        .find(|block| array[place(shard, *block, array.len())].iter().any(|byte| *byte != 0));
                    if let Some(block) = found {
                        let bytes = &array[place(shard, block, array.len())];
                        let into = &mut self.ring[slot(into)];
                        into.fill(0);
                        into[..bytes.len()].copy_from_slice(bytes);
                    }
                    worker.found(found).map_err(|error| error.to_string())?;
                }
                Step::Send => {
                    let message = worker.message().ok_or("no message")?;
                    let mut bytes: Vec<u8> =
                        message.send.iter().flat_map(|from| self.ring[slot(from)].to_vec()).collect();
                    bytes.extend_from_slice(&message.votes.to_bytes()[..parameters.index_bytes() as usize]);
                    let spot = u64::from(parameters.spot_bytes());
                    let into = self.memory.slice(spot, parameters.spot_bytes()).map_err(|error| error.to_string())?;
                    self.queue_pair.post_receive(number, into).map_err(|error| error.to_string())?;
                    self.send(number, &bytes, Some(message.displacement.bits()));
                }
                Step::Wait => return Ok(false),
                Step::Complete => return Ok(true),
            }
        }
    }

    fn send(&mut self, number: u64, bytes: &[u8], immediate: Option<u32>) {
        self.memory.write(0, bytes).expect("inside");
        let local = (!bytes.is_empty()).then(|| self.memory.slice(0, bytes.len() as u32).expect("inside"));
        let request = SendRequest { id: SENT | number, kind: SendKind::Send, local, immediate, signaled: true };
        self.queue_pair.post_send(&request).expect("room in the send queue");
        self.messages += 1;
    }
}

/// Where a block of a shard lies in an array.
fn place(shard: &Shard, block: u32, len: usize) -> std::ops::Range<usize> {
    let bytes = shard.block(block);
    bytes.start as usize..(bytes.end as usize).min(len)
}

/// An operation of all workers, from the first message to the last answer; its span in picoseconds of virtual time.
///
/// # Errors
/// As [`TestWorker::progress`]; or nothing has come for `bound`.
pub fn operate(
    provider: &Provider,
    workers: &mut [TestWorker],
    arrays: &mut [Vec<u8>],
    bound: Bound,
) -> Result<u64, String> {
    let begin_ps = provider.relax().now_ps();
    for (worker, array) in workers.iter_mut().zip(arrays.iter()) {
        worker.begin(array);
    }
    let mut refusal = None;
    let done = provider.wait(bound, "a sparse AllReduce", || {
        let mut complete = true;
        for (worker, array) in workers.iter_mut().zip(arrays.iter_mut()) {
            match worker.progress(array) {
                Ok(done) => complete &= done,
                Err(error) => refusal = Some(error),
            }
        }
        Ok((complete || refusal.is_some()).then_some(()))
    });
    match refusal {
        Some(error) => Err(error),
        None => done.map(|()| provider.relax().now_ps() - begin_ps).map_err(|error| error.to_string()),
    }
}
