//! Workers of a sparse AllReduce over reliable connections, for tests of aggregators on a DPA: each sends what
//! [`Worker`] says and no more. Blocks are copied to and from registered memory. Every function panics where something
//! is not to be had.
#![allow(clippy::missing_panics_doc)]

use emu_machine::Config;
use flexcast::{AggregatorCard, AggregatorElement, AggregatorOptions, DpaAggregator, Firmware};
use flexcast_abi::SparseThreadState;
use flexcast_proto::sparse::{Parameters, Shard, Shards, Step, Worker, split};
use flexio::{
    Access, Bound, CompletionQueue, Connection, Device, HostBuffer, MemoryRegion, ProtectionDomain, Provider,
    QueueDepths, QueuePair, RemoteQp, Retry, SendKind, SendRequest, Transport,
};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use zerocopy::FromBytes as _;

use crate::image_bytes;

/// Longest wait of a test.
pub const BOUND: Bound = Bound::millis(20).with_polls(2_000_000);
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
                QueuePair::builder(&pd, Transport::Rc, depths).build(&completions, &completions).expect("a queue pair");
            queue_pair.init(Access::LOCAL_WRITE, 0).expect("INIT");
            let bytes = 2 * parameters.slot_bytes() as usize;
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
            lane.queue_pair.connect(&Connection::to(*remote).retry(retry)).expect("RTS");
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

    /// Sends bytes that are no message, or one at a wrong time, on the connection of a shard. What is answered is
    /// received, and not read.
    pub fn send_raw(&mut self, shard: usize, bytes: &[u8], immediate: Option<u32>) {
        let slot_bytes = self.parameters.slot_bytes();
        let lane = &mut self.lanes[shard];
        let into = lane.memory.slice(u64::from(slot_bytes), slot_bytes).expect("inside");
        lane.queue_pair.post_receive(shard as u64, into).expect("room in the receive queue");
        lane.send(shard as u64, bytes, immediate);
    }

    /// What has come of the answers to [`TestWorker::send_raw`]: shard, bytes and immediate of each.
    pub fn take_raw(&mut self) -> Vec<(u64, u32, Option<u32>)> {
        let all = self.completions.poll().expect("a queue");
        let answers = all.iter().filter(|completion| completion.id & SENT == 0);
        answers.map(|completion| (completion.id, completion.byte_len, completion.immediate)).collect()
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
        self.memory.read(parameters.slot_bytes() as usize, &mut answer).map_err(|error| error.to_string())?;
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
                    let at = parameters.slot_bytes() as usize + position as usize * block_bytes;
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
                    let offset = u64::from(parameters.slot_bytes());
                    let into = self.memory.slice(offset, parameters.slot_bytes()).map_err(|error| error.to_string())?;
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

/// An aggregator on card 0 and workers on the others.
pub struct Bench {
    /// On card 0.
    pub aggregator: DpaAggregator,
    /// On the other cards.
    pub workers: Vec<TestWorker>,
    /// The machine.
    pub provider: Provider,
}

impl Bench {
    /// Loads image `sparse` and connects.
    #[must_use]
    pub fn new(machine: Config, parameters: Parameters, options: &AggregatorOptions) -> Self {
        let workers = parameters.workers();
        let provider = emu_provider::emulated(machine).expect("a provider");
        let names = provider.devices().expect("cards");
        let elf = image_bytes("sparse");
        let firmware = Firmware { name: "sparse", elf: &elf };
        let card = AggregatorCard::open(&provider, &names[0].name, firmware).expect("the image runs");
        let prepared = card.prepare(parameters, options).expect("it fits");
        let workers: Vec<TestWorker> = (1..=workers as usize)
            .map(|card| provider.open(&names[card].name).expect("a card"))
            .map(|device| TestWorker::new(&device, parameters, options.shards()))
            .collect();
        for (worker, number) in workers.iter().zip(0..) {
            worker.connect(&prepared.queue_pairs(number).collect::<Vec<_>>());
        }
        let endpoints: Vec<_> = workers.iter().map(TestWorker::endpoints).collect();
        let aggregator = prepared.connect(&endpoints).expect("connected");
        Self { aggregator, workers, provider }
    }

    /// An operation; every worker's array must be the sum. Its span in picoseconds of virtual time.
    pub fn sum(&mut self, arrays: &[Vec<u8>], element: AggregatorElement) -> u64 {
        let expected = sum(arrays, element);
        let mut arrays = arrays.to_vec();
        let done = operate(&self.provider, &mut self.workers, &mut arrays, BOUND);
        let failure = self.aggregator.failure().expect("the firmware runs");
        assert_eq!((done.as_ref().err(), failure), (None, None));
        for (worker, array) in arrays.iter().enumerate() {
            assert!(*array == expected, "worker {worker} of {}: {} bytes", arrays.len(), array.len());
        }
        done.unwrap_or_default()
    }

    /// State of an aggregator's thread, as it lies in DPA memory.
    #[must_use]
    pub fn state(&self, thread: usize) -> SparseThreadState {
        let at = self.aggregator.thread_state(thread).expect("a thread");
        let bytes: [u8; size_of::<SparseThreadState>()] = crate::world::get(at);
        SparseThreadState::read_from_bytes(&bytes).expect("as many bytes")
    }
}

/// The sum, element by element.
#[must_use]
pub fn sum(arrays: &[Vec<u8>], element: AggregatorElement) -> Vec<u8> {
    let mut total = arrays[0].clone();
    for array in &arrays[1..] {
        match element {
            AggregatorElement::I32 => {
                for (sum, more) in total.as_chunks_mut().0.iter_mut().zip(array.as_chunks().0) {
                    *sum = i32::from_le_bytes(*sum).wrapping_add(i32::from_le_bytes(*more)).to_le_bytes();
                }
            }
            AggregatorElement::I64 => {
                for (sum, more) in total.as_chunks_mut().0.iter_mut().zip(array.as_chunks().0) {
                    *sum = i64::from_le_bytes(*sum).wrapping_add(i64::from_le_bytes(*more)).to_le_bytes();
                }
            }
        }
    }
    total
}

/// Arrays of `bytes` bytes in which each block is zero with a probability of `zeros` per cent.
pub fn arrays(rng: &mut ChaCha8Rng, (workers, block): (u32, u32), bytes: usize, zeros: u32) -> Vec<Vec<u8>> {
    let array = |rng: &mut ChaCha8Rng| {
        let mut array = vec![0; bytes];
        for block in array.chunks_mut(block as usize) {
            if rng.random_range(0..100) >= zeros {
                rng.fill(block);
            }
        }
        array
    };
    (0..workers).map(|_| array(rng)).collect()
}
