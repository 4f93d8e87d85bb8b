//! A worker: it sends the blocks of its array that are not zero, and gets the sums.

use std::ops::Range;

use flexcast_proto::sparse::{Answered, Parameters, Slots, Votes};
use flexio::{Access, Bound, Completion, CompletionQueue, HostBuffer, LocalSlice, MemoryRegion, ProtectionDomain};

use super::aggregator::OWN_FAULT;
use super::arrays::Array;
use super::endpoint::{decode, encode_probed, is_probed};
use super::link::{Link, PIECES, Work, completions};
use super::scan::{Places, Scan, Turn};
use super::{Call, Config, Error, Party, Patience, Result, Settings, Statistics};
use crate::p2p::collect::collect;

/// Bytes that a worker looks at before it serves its connections again.
const SCAN_BYTES: usize = 1 << 20;

/// A worker's queue pairs that are not connected yet.
#[derive(Debug)]
pub struct PendingWorker(Worker);

/// Whoever has an array.
#[derive(Debug)]
pub struct Worker {
    number: u32,
    settings: Settings,
    config: Config,
    /// By aggregator, and of each by shard. Before the memory that they use: dropped first.
    links: Vec<Link>,
    memory: Memory,
    completions: CompletionQueue,
    running: Option<Running>,
    failed: bool,
    patience: Patience,
    statistics: Statistics,
}

/// Registered memory of a worker: of each link a ring of 2d blocks (SA-30), and the indices that are sent and received behind blocks.
#[derive(Debug)]
struct Memory {
    rings: MemoryRegion,
    indices: MemoryRegion,
    parameters: Parameters,
}

/// An operation under way.
#[derive(Debug)]
struct Running {
    call: Call,
    /// By aggregator, and of each by shard.
    portions: Vec<Portion>,
    /// The portion whose turn it is.
    turn: usize,
}

/// One shard.
#[derive(Debug)]
struct Portion {
    scan: Scan,
    link: usize,
    /// A message is ready for which its link has no room.
    is_held: bool,
}

impl Memory {
    fn new(pd: &ProtectionDomain, parameters: Parameters, links: usize) -> Result<Self> {
        let register = |bytes: usize| MemoryRegion::register(pd, HostBuffer::zeroed(bytes)?, Access::LOCAL_WRITE);
        let rings = register((parameters.ring_bytes() as usize).saturating_mul(links))?;
        let indices = register(2 * parameters.index_bytes() as usize * links)?;
        Ok(Self { rings, indices, parameters })
    }

    fn slot(&self, link: usize, slot: u32) -> usize {
        link * self.parameters.ring_bytes() as usize + slot as usize * self.parameters.block_bytes() as usize
    }

    /// Where the indices of a link's message, or of its answer, are.
    const fn indices(&self, link: usize, is_answer: bool) -> usize {
        (2 * link + is_answer as usize) * self.parameters.index_bytes() as usize
    }

    /// The pieces of a message: slots of the ring, and the indices (SA-32).
    fn pieces(&self, link: usize, slots: Slots, is_answer: bool) -> Result<([LocalSlice; PIECES], usize)> {
        let indices = self.indices.slice(self.indices(link, is_answer) as u64, self.parameters.index_bytes())?;
        let (mut pieces, mut count) = ([indices; PIECES], 0);
        for range in slots.ranges().into_iter().filter(|range| !range.is_empty()) {
            let bytes = range.len() as u32 * self.parameters.block_bytes();
            pieces[count] = self.rings.slice(self.slot(link, range.start) as u64, bytes)?;
            count += 1;
        }
        pieces[count] = indices;
        Ok((pieces, count + 1))
    }
}

/// What the scan of a shard works on.
struct Ring<'r, A> {
    array: &'r mut A,
    memory: &'r Memory,
    link: usize,
}

fn bytes(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

impl<A: Array> Places for Ring<'_, A> {
    type Error = flexio::Error;

    fn store(&mut self, block: Range<u64>, slot: u32) -> flexio::Result<()> {
        let Self { array, memory, link } = self;
        array.store(bytes(&block), &memory.rings, memory.slot(*link, slot))
    }

    fn load(&mut self, block: Range<u64>, slot: u32) -> flexio::Result<bool> {
        let Self { array, memory, link } = self;
        let (range, at) = (bytes(&block), memory.slot(*link, slot));
        let (len, whole) = (range.len(), memory.parameters.block_bytes() as usize);
        if len < whole {
            // The array's last block may be short: it travels with zeros behind it.
            memory.rings.clear(at + len, whole - len)?;
        }
        array.load(range, &memory.rings, at)
    }

    fn skip(&mut self, zeros: Range<u64>) -> flexio::Result<()> {
        self.array.clear(bytes(&zeros))
    }

    fn found(&mut self, _: u32) {}
}

impl PendingWorker {
    /// Takes the endpoints of all aggregators, in their order. Does not wait for anybody.
    ///
    /// # Errors
    /// [`Error::Endpoint`] for one that is missing, damaged or of other settings; [`Error::Flexio`].
    pub fn connect(self, aggregators: &[impl AsRef<[u8]>]) -> Result<Worker> {
        let Self(mut worker) = self;
        let Worker { number, settings, config, links, .. } = &mut worker;
        for (aggregator, links) in (0..).zip(links.chunks_mut(settings.shards_of_each as usize)) {
            let party = Party::Aggregator(aggregator);
            let missing = || Error::Endpoint { party, reason: "missing: give those of all aggregators".to_owned() };
            let endpoint = aggregators.get(aggregator as usize).ok_or_else(missing)?;
            for (link, remote) in links.iter_mut().zip(decode(endpoint.as_ref(), party, settings, *number)?) {
                link.connect(&remote, is_probed(endpoint.as_ref()), config)?;
            }
        }
        Ok(worker)
    }
}

impl Worker {
    /// Makes the queue pairs and the memory of worker `number` on a card, and what aggregators need to know of it.
    ///
    /// # Errors
    /// No such worker; [`Error::Flexio`].
    pub fn prepare(
        pd: &ProtectionDomain,
        settings: Settings,
        number: u32,
        config: Config,
    ) -> Result<(PendingWorker, Vec<u8>)> {
        let workers = settings.parameters.workers();
        if number >= workers {
            let limit = format!("below {workers}, as there are so many");
            return Err(Error::OutOfRange { what: "the worker's number", value: number.into(), limit });
        }
        let count = settings.aggregators * settings.shards_of_each;
        let completions = CompletionQueue::new(pd.device(), completions(count))?;
        let links = (0..count).map(|link| Link::new(pd, &completions, link)).collect::<flexio::Result<Vec<_>>>()?;
        let memory = Memory::new(pd, settings.parameters, count as usize)?;
        let endpoint = encode_probed(Party::Worker(number), &settings, pd.device(), links.iter().map(Link::qpn));
        let block_memory_bytes = memory.rings.len() as u64;
        let memory_bytes = block_memory_bytes + memory.indices.len() as u64;
        let statistics = Statistics { block_memory_bytes, memory_bytes, ..Statistics::default() };
        let worker = Self {
            number,
            settings,
            config,
            links,
            memory,
            completions,
            running: None,
            failed: false,
            patience: Patience::default(),
            statistics,
        };
        Ok((PendingWorker(worker), endpoint))
    }

    /// Another longest time without any progress than [`Config::bound`].
    pub const fn set_bound(&mut self, bound: Bound) {
        self.config.bound = bound;
    }

    /// What has been done so far.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Bytes of messages of an aggregator that have come.
    #[must_use]
    pub fn received_from(&self, aggregator: u32) -> u64 {
        let each = self.settings.shards_of_each as usize;
        self.links.iter().skip(aggregator as usize * each).take(each).map(Link::received_bytes).sum()
    }

    /// Whether no operation is under way: all sums are in the array.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.running.is_none()
    }

    /// Starts an operation. Nothing is sent before [`Worker::progress`].
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`]; a call for which these connections are not.
    pub fn begin(&mut self, call: Call) -> Result<()> {
        if self.failed {
            return Err(Error::Failed);
        }
        if self.running.is_some() {
            return Err(Error::Busy);
        }
        let shards = self.settings.shards(&call)?;
        if call.bytes == 0 {
            self.statistics.operations += 1;
            return Ok(());
        }
        let (used, each) = (call.shards_of_each as usize, self.settings.shards_of_each as usize);
        let portion = |(number, shard)| {
            let scan = Scan::new(self.settings.parameters, shard)?;
            Ok::<_, Error>(Portion { scan, link: number / used * each + number % used, is_held: false })
        };
        let portions = shards.iter().enumerate().map(portion).collect::<Result<Vec<_>>>()?;
        self.patience.restart(self.now_ps());
        self.running = Some(Running { call, portions, turn: 0 });
        Ok(())
    }

    /// Takes what has come, looks at a part of the array, and sends what may be sent. Does not wait; between two calls the caller lets the card make progress
    /// ([`flexio::Relax`]). The array is the same in all calls of an operation, and nobody else changes it. Tells whether anything has happened.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Connection`], [`Error::Protocol`], [`Error::Ended`], each naming whose fault it is; [`Error::Flexio`]; an array of another length.
    /// From then on [`Error::Failed`]: the array is part old and part new.
    pub fn progress(&mut self, array: &mut impl Array) -> Result<bool> {
        if self.advance(array)? || self.running.is_none() {
            return Ok(true);
        }
        let (now_ps, awaited) = (self.now_ps(), self.awaited());
        let looked = self.patience.look(now_ps, self.config.bound, || awaited.map(Party::Aggregator));
        self.failed |= looked.is_err();
        looked.map(|()| false)
    }

    /// The same for a caller that bounds operations itself.
    ///
    /// # Errors
    /// As [`Worker::progress`], but [`Error::Timeout`].
    pub fn advance(&mut self, array: &mut impl Array) -> Result<bool> {
        if self.failed {
            return Err(Error::Failed);
        }
        let Some(running) = &self.running else { return Ok(false) };
        if array.bytes() < running.call.bytes {
            let limit = format!("{}, as the operation has so many", running.call.bytes);
            return Err(Error::OutOfRange { what: "the array's length", value: array.bytes(), limit });
        }
        let moved = self.collect().and_then(|seen| Ok(self.drive(array)? | seen));
        match &moved {
            Ok(true) => self.patience.restart(self.now_ps()),
            Ok(false) => {}
            Err(_) => self.failed = true,
        }
        moved
    }

    /// When [`Worker::advance`] has something to do although nothing comes, in picoseconds of the provider's clock.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        self.running.as_ref()?;
        self.links.iter().filter_map(Link::probe_ps).min()
    }

    /// The aggregator whose answer is waited for; none while none is.
    #[must_use]
    pub fn awaited(&self) -> Option<u32> {
        let running = self.running.as_ref()?;
        let waits = |portion: &&Portion| portion.scan.worker.message().is_some();
        let portion = running.portions.iter().find(waits)?;
        Some(portion.link as u32 / self.settings.shards_of_each)
    }

    fn now_ps(&self) -> u64 {
        self.completions.device().provider().relax().now_ps()
    }

    /// Takes completions; tells whether there were any.
    fn collect(&mut self) -> Result<bool> {
        let completions = self.completions.clone();
        collect(&completions, |completion| self.handle(completion))
    }

    fn handle(&mut self, completion: &Completion) -> Result<()> {
        let (number, work) = Work::of(completion.id);
        let aggregator = number as u32 / self.settings.shards_of_each;
        let party = Party::Aggregator(aggregator);
        self.completions
            .check(completion, "a message of a sparse AllReduce")
            .map_err(|source| Error::Connection { party, source })?;
        let Some(link) = self.links.get_mut(number) else { return Ok(()) };
        match work {
            Work::Sends(count) => link.sent(count),
            Work::Receive => {
                link.received(completion.byte_len);
                self.statistics.received_messages += 1;
                self.statistics.received_bytes += u64::from(completion.byte_len);
                let reason = match completion.immediate {
                    Some(0) => return self.answer(number, aggregator, completion.byte_len),
                    Some(OWN_FAULT) => return Err(Error::Ended { aggregator, worker: None }),
                    Some(code) if completion.byte_len == 0 => {
                        return Err(Error::Ended { aggregator, worker: Some(code - 1) });
                    }
                    Some(code) => format!("an answer with the immediate {code:#x}"),
                    None => "an answer without an immediate".to_owned(),
                };
                return Err(Error::Protocol { party, reason });
            }
        }
        Ok(())
    }

    /// An answer has come.
    fn answer(&mut self, link: usize, aggregator: u32, byte_len: u32) -> Result<()> {
        let Self { settings: Settings { parameters, shards_of_each, .. }, running, memory, statistics, .. } = self;
        let refused = |reason| Error::Protocol { party: Party::Aggregator(aggregator), reason };
        let portion = running.as_mut().and_then(|running| {
            let shard = link as u32 % *shards_of_each;
            let used = running.call.shards_of_each;
            running.portions.get_mut((aggregator * used + shard) as usize).filter(|_| shard < used)
        });
        let portion = portion.ok_or_else(|| refused("an answer to no message".to_owned()))?;
        let worker = &mut portion.scan.worker;
        let message = worker.message().ok_or_else(|| refused("an answer before the message".to_owned()))?;
        let (sums, expected) = (message.receive.len(), parameters.message_bytes(message.receive.len()));
        if byte_len != expected {
            return Err(refused(format!(
                "an answer of {byte_len} bytes, but iteration {} has {expected}",
                message.iteration
            )));
        }
        let mut indices = [0; Votes::MAX_BYTES];
        let indices = &mut indices[..parameters.index_bytes() as usize];
        memory.indices.read(memory.indices(link, true), indices)?;
        let next = Votes::from_bytes(*parameters, indices).map_err(|error| refused(error.to_string()))?;
        let answered = worker.answer(message.iteration, sums, &next).map_err(|error| refused(error.to_string()))?;
        if answered == Answered::Old {
            return Err(refused("an answer for the second time".to_owned()));
        }
        statistics.blocks += u64::from(sums);
        Ok(())
    }

    /// Goes on with the shards as far as nothing of aggregators is needed, for a while. Tells whether anything moved.
    fn drive(&mut self, array: &mut impl Array) -> Result<bool> {
        let now_ps = self.now_ps();
        let Self { running: Some(running), memory, links, statistics, .. } = self else { return Ok(false) };
        let (count, mut moved, mut left, mut idle) = (running.portions.len(), false, SCAN_BYTES, 0);
        while left > 0 && idle < count {
            let portion = &mut running.portions[running.turn];
            running.turn = (running.turn + 1) % count;
            let Some(link) = links.get_mut(portion.link) else { break };
            let is_ready = if portion.is_held {
                true
            } else {
                let turn = portion.scan.turn(&mut Ring { array, memory, link: portion.link }, &mut left)?;
                idle = if turn == Turn::Idle { idle + 1 } else { 0 };
                moved |= turn != Turn::Idle;
                turn == Turn::Send
            };
            if is_ready {
                portion.is_held = !link.has_room();
                if portion.is_held {
                    idle += 1;
                    continue;
                }
                statistics.sent_bytes += portion.send(link, memory, now_ps)?;
                statistics.sent_messages += 1;
                moved = true;
            }
        }
        if !moved {
            links.iter_mut().try_for_each(|link| link.poll_silence(now_ps))?;
        }
        if running.portions.iter().all(|portion| portion.scan.worker.is_complete()) {
            self.running = None;
            self.statistics.operations += 1;
        }
        Ok(moved)
    }
}

impl Portion {
    /// Posts the receive of the answer, and sends the message. Returns its bytes.
    fn send(&self, link: &mut Link, memory: &Memory, now_ps: u64) -> Result<u64> {
        let Some(message) = self.scan.worker.message() else { return Ok(0) };
        let votes = message.votes.to_bytes();
        memory.indices.write(memory.indices(self.link, false), &votes[..memory.parameters.index_bytes() as usize])?;
        let (pieces, count) = memory.pieces(self.link, message.receive, true)?;
        link.receive(&pieces[..count])?;
        let (pieces, count) = memory.pieces(self.link, message.send, false)?;
        link.send(&pieces[..count], message.displacement.bits(), false, now_ps)?;
        Ok(pieces[..count].iter().map(|piece| u64::from(piece.len)).sum())
    }
}
