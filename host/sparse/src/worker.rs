//! A worker: it sends the blocks of its array that are not zero, and gets the sums.

use flexcast_proto::sparse::{Answered, Parameters, Votes};
use flexio::{Access, Bound, Completion, CompletionQueue, HostBuffer, LocalSlice, MemoryRegion, ProtectionDomain};

use super::accelerator::Accelerator;
use super::aggregator::OWN_FAULT;
use super::arrangement::{Arrangement, Blocks, Portion};
use super::arrays::Array;
use super::connect_info::Own;
use super::link::{Link, Work, completions};
use super::ring::Ring;
use super::scan::{Scan, Turn};
use super::staged::Staged;
use super::{Call, Config, Error, Party, Patience, Result, Settings, Statistics};
use flexcast_rc::collect::collect;
use flexcast_rc::linger::Lingering;

/// Bytes that a worker polls at before it serves its connections again.
const SCAN_BYTES: usize = 1 << 20;

/// A worker's queue pairs that are not connected yet.
#[derive(Debug)]
pub struct PendingWorker<M = Ring>(Worker<M>, Own);

/// Whoever has an array. Its blocks travel from and to a [`Ring`] in the host's memory, or a buffer of an accelerator
/// ([`Staged`]).
#[derive(Debug)]
pub struct Worker<M = Ring> {
    settings: Settings,
    config: Config,
    /// By aggregator, and of each by shard. Before the memory that they use: dropped first.
    links: Vec<Link>,
    blocks: M,
    indices: Indices,
    completions: CompletionQueue,
    /// Longest array, in bytes.
    most_bytes: u64,
    running: Option<Running>,
    failed: bool,
    patience: Patience,
    /// When the last operation has ended; none while none has.
    ended_ps: Option<u64>,
    statistics: Statistics,
    /// Of a message that is being posted.
    pieces: Vec<LocalSlice>,
}

/// Registered memory for the indices that are sent and received behind blocks.
#[derive(Debug)]
struct Indices {
    region: MemoryRegion,
    bytes: u32,
}

/// An operation under way.
#[derive(Debug)]
struct Running {
    call: Call,
    /// By aggregator, and of each by shard.
    portions: Vec<Portion>,
    /// The portion whose turn it is.
    turn: usize,
    /// The array has been seen.
    is_started: bool,
}

impl Indices {
    fn new(pd: &ProtectionDomain, parameters: Parameters, links: usize) -> Result<Self> {
        let bytes = parameters.index_bytes();
        let memory = HostBuffer::zeroed(2 * bytes as usize * links)?;
        Ok(Self { region: MemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?, bytes })
    }

    /// Where those of a link's message, or of its answer, are.
    const fn offset(&self, link: usize, is_answer: bool) -> usize {
        (2 * link + is_answer as usize) * self.bytes as usize
    }

    fn piece(&self, link: usize, is_answer: bool) -> flexio::Result<LocalSlice> {
        self.region.slice(self.offset(link, is_answer) as u64, self.bytes)
    }
}

impl<M> PendingWorker<M> {
    /// Takes the connection information of all aggregators, in their order. Does not wait for anybody.
    ///
    /// # Errors
    /// [`Error::ConnectInfo`] where it is missing, damaged or of other settings; [`Error::Flexio`].
    pub fn connect(self, aggregators: &[impl AsRef<[u8]>]) -> Result<Worker<M>> {
        let Self(mut worker, own) = self;
        let Worker { settings, config, links, .. } = &mut worker;
        for (aggregator, links) in (0..).zip(links.chunks_mut(settings.shards_of_each as usize)) {
            let party = Party::Aggregator(aggregator);
            let missing = || Error::ConnectInfo { party, reason: "missing: give that of all aggregators".to_owned() };
            let info = aggregators.get(aggregator as usize).ok_or_else(missing)?;
            for (link, remote) in links.iter_mut().zip(own.remotes(info.as_ref(), party)?) {
                link.connect(&remote, config)?;
            }
        }
        Ok(worker)
    }
}

impl Worker {
    /// Ends the worker. Aggregators' cards still get answers for as long as they may ask again for the acknowledgements
    /// of the last sums.
    pub fn leave(self, lingering: &Lingering) {
        let Self { links, blocks, indices, completions, config, running: None, failed: false, ended_ps, .. } = self
        else {
            return;
        };
        let Some(ended_ps) = ended_ps else { return };
        let device = completions.device().clone();
        lingering.keep((links, blocks, indices, completions), &device, ended_ps, config.retry);
    }

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
        let blocks = || Ring::new(pd, settings.parameters, settings.links());
        Self::prepare_with(pd, settings, number, config, blocks)
    }

    /// Takes what has come, polls at a part of the array, and sends what may be sent. Does not wait; between two calls
    /// the caller lets the card make progress ([`flexio::Relax`]). The array is the same in all calls of an operation,
    /// and nobody else changes it. Returns whether anything has happened.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Connection`], [`Error::Protocol`], [`Error::Ended`], each naming whose fault it is;
    /// [`Error::Flexio`]; an array of another length. From then on [`Error::Failed`]: the array is part old and part
    /// new.
    pub fn progress(&mut self, array: &mut impl Array) -> Result<bool> {
        self.progress_with(array)
    }

    /// The same for a caller that bounds operations itself.
    ///
    /// # Errors
    /// As [`Worker::progress`], but [`Error::Timeout`].
    pub fn advance(&mut self, array: &mut impl Array) -> Result<bool> {
        self.advance_with(array)
    }
}

impl<D: Accelerator> Worker<Staged<D>> {
    /// Makes the queue pairs of worker `number` on the card that knows the accelerator's buffer, and what aggregators
    /// need to know of it. Arrays may be as long as the buffer.
    ///
    /// # Errors
    /// No such worker; more blocks per message than the card takes pieces of memory, less one for indices; a buffer
    /// shorter than a block; [`Error::Flexio`].
    pub fn staged(
        accelerator: D,
        settings: Settings,
        number: u32,
        config: Config,
    ) -> Result<(PendingWorker<Staged<D>>, Vec<u8>)> {
        let pd = accelerator.staging().pd().clone();
        let blocks = || Staged::new(accelerator, settings.parameters);
        Self::prepare_with(&pd, settings, number, config, blocks)
    }

    /// Takes what has come, moves the accelerator's work on, and sends what may be sent. Does not wait; between two
    /// calls the caller lets the card make progress ([`flexio::Relax`]). The array is the same in all calls of an
    /// operation, and nobody else uses it until that is over. Returns whether anything has happened.
    ///
    /// # Errors
    /// As [`Worker::progress`] of a ring; [`Error::Accelerator`], [`Error::AcceleratorTimeout`]. From then on
    /// [`Error::Failed`]: the array is as it was, unless the accelerator failed to copy sums to it.
    pub fn progress(&mut self, array: &mut D::Array) -> Result<bool> {
        self.progress_with(array)
    }

    /// The same for a caller that bounds operations itself.
    ///
    /// # Errors
    /// As [`Worker::progress`], but those of a bound.
    pub fn advance(&mut self, array: &mut D::Array) -> Result<bool> {
        self.advance_with(array)
    }

    /// The accelerator.
    #[must_use]
    pub const fn accelerator(&self) -> &D {
        self.blocks.accelerator()
    }
}

impl<M> Worker<M> {
    fn prepare_with(
        pd: &ProtectionDomain,
        settings: Settings,
        number: u32,
        config: Config,
        blocks: impl FnOnce() -> Result<M>,
    ) -> Result<(PendingWorker<M>, Vec<u8>)>
    where
        M: Blocks,
    {
        let workers = settings.parameters.workers();
        if number >= workers {
            let limit = format!("below {workers}, as there are so many");
            return Err(Error::OutOfRange { what: "the worker's number", value: number.into(), limit });
        }
        let (count, blocks) = (settings.links(), blocks()?);
        let completions = CompletionQueue::new(pd.device(), completions(count))?;
        let pieces = blocks.most_pieces() + 1;
        let links =
            (0..count).map(|link| Link::new(pd, &completions, link, pieces)).collect::<flexio::Result<Vec<_>>>()?;
        let indices = Indices::new(pd, settings.parameters, count as usize)?;
        let own = Own::new(Party::Worker(number), settings, pd.device(), links.iter().map(Link::qpn))?;
        let info = own.encode();
        let block_memory_bytes = blocks.memory_bytes();
        let memory_bytes = block_memory_bytes + indices.region.len() as u64;
        let statistics = Statistics { block_memory_bytes, memory_bytes, ..Statistics::default() };
        let worker = Self {
            settings,
            config,
            links,
            most_bytes: blocks.most_bytes(),
            blocks,
            indices,
            completions,
            running: None,
            failed: false,
            patience: Patience::default(),
            ended_ps: None,
            statistics,
            pieces: Vec::new(),
        };
        Ok((PendingWorker(worker, own), info))
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
        if call.bytes > self.most_bytes {
            let limit =
                format!("at most {}, the bytes of the accelerator's buffer: make a longer one", self.most_bytes);
            return Err(Error::OutOfRange { what: "the array's length", value: call.bytes, limit });
        }
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
        self.running = Some(Running { call, portions, turn: 0, is_started: false });
        Ok(())
    }

    fn progress_with<A: ?Sized>(&mut self, array: &mut A) -> Result<bool>
    where
        M: Arrangement<A>,
    {
        if self.advance_with(array)? || self.running.is_none() {
            return Ok(true);
        }
        let now_ps = self.now_ps();
        let Some((waited_us, polls)) = self.patience.overdue(now_ps, self.config.bound) else { return Ok(false) };
        let error = match self.awaited() {
            _ if self.blocks.is_busy() => Error::AcceleratorTimeout { waited_us, polls },
            Some(aggregator) => Error::Timeout { party: Party::Aggregator(aggregator), waited_us, polls },
            None => return Ok(false),
        };
        self.failed = true;
        Err(error)
    }

    fn advance_with<A: ?Sized>(&mut self, array: &mut A) -> Result<bool>
    where
        M: Arrangement<A>,
    {
        if self.failed {
            return Err(Error::Failed);
        }
        let Some(running) = &self.running else { return Ok(false) };
        let bytes = self.blocks.array_bytes(array);
        if bytes < running.call.bytes {
            let limit = format!("{}, as the operation has so many", running.call.bytes);
            return Err(Error::OutOfRange { what: "the array's length", value: bytes, limit });
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

    /// Takes completions; returns whether there were any.
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
        let Self {
            settings: Settings { parameters, shards_of_each, .. }, running, indices: memory, statistics, ..
        } = self;
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
        memory.region.read(memory.offset(link, true), indices)?;
        let next = Votes::from_bytes(*parameters, indices).map_err(|error| refused(error.to_string()))?;
        let answered = worker.answer(message.iteration, sums, &next).map_err(|error| refused(error.to_string()))?;
        if answered == Answered::Old {
            return Err(refused("an answer for the second time".to_owned()));
        }
        statistics.blocks += u64::from(sums);
        Ok(())
    }

    /// Goes on with the shards as far as nothing of aggregators is needed, for a while. Returns whether anything moved.
    fn drive<A: ?Sized>(&mut self, array: &mut A) -> Result<bool>
    where
        M: Arrangement<A>,
    {
        let now_ps = self.now_ps();
        let Self { running: Some(running), blocks, indices, links, statistics, pieces, .. } = self else {
            return Ok(false);
        };
        if !std::mem::replace(&mut running.is_started, true) {
            blocks.start(array, &running.portions)?;
        }
        let (count, mut moved, mut left, mut idle) = (running.portions.len(), blocks.poll()?, SCAN_BYTES, 0);
        while left > 0 && idle < count {
            let number = running.turn;
            let portion = &mut running.portions[number];
            running.turn = (number + 1) % count;
            let Some(link) = links.get_mut(portion.link) else { break };
            let is_ready = if portion.is_held {
                true
            } else {
                let turn = blocks.turn(array, number, portion, &mut left)?;
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
                statistics.sent_bytes +=
                    send(portion, link, blocks, indices, (pieces, &mut statistics.most_pieces), now_ps)?;
                statistics.sent_messages += 1;
                moved = true;
            }
        }
        if !moved {
            links.iter_mut().try_for_each(|link| link.poll_silence(now_ps))?;
        }
        let is_summed = running.portions.iter().all(|portion| portion.scan.worker.is_complete());
        if is_summed && blocks.finish(array, &running.portions)? {
            (self.running, self.ended_ps) = (None, Some(now_ps));
            self.statistics.operations += 1;
        }
        Ok(moved)
    }
}

/// Posts the receive of the answer to a portion's message, and sends the message. Returns its bytes.
fn send<A: ?Sized, M: Arrangement<A>>(
    portion: &Portion,
    link: &mut Link,
    blocks: &M,
    indices: &Indices,
    (pieces, most_pieces): (&mut Vec<LocalSlice>, &mut u64),
    now_ps: u64,
) -> Result<u64> {
    let Some(message) = portion.scan.worker.message() else { return Ok(0) };
    let votes = message.votes.to_bytes();
    indices.region.write(indices.offset(portion.link, false), &votes[..indices.bytes as usize])?;
    pieces.clear();
    blocks.received(portion, &message, pieces)?;
    pieces.push(indices.piece(portion.link, true)?);
    link.receive(pieces)?;
    *most_pieces = (*most_pieces).max(pieces.len() as u64);
    pieces.clear();
    blocks.sent(portion, &message, pieces)?;
    pieces.push(indices.piece(portion.link, false)?);
    link.send(pieces, message.displacement.bits(), false, now_ps)?;
    *most_pieces = (*most_pieces).max(pieces.len() as u64);
    Ok(pieces.iter().map(|piece| u64::from(piece.len)).sum())
}
