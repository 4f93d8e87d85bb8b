//! Aggregators of sparse AllReduce on a card's DPA: threads of image `sparse`, and the host's control of them.
//!
//! Set-up has two phases that do not wait for anybody: [`AggregatorCard::prepare`] makes slots and queue pairs, whose
//! connection information the workers are given; [`PreparedAggregator::connect`] takes that of the workers and lets
//! the threads run. From then on they need no host: not between iterations, and not between operations. The element
//! type of the operations is written only where it changes ([`DpaAggregator::set_element`]).
//!
//! Slots lie in DPA memory: there the card writes what comes into the DPA's second-level cache, and a load takes a
//! thread a twentieth of what it would through a window to the host's memory.

mod failure;
mod options;

use std::mem::{offset_of, size_of};

use flexcast_abi::sparse::PREPARE;
use flexcast_abi::{
    ContextMemory, DeviceAddress, HostLine, Layout as _, SPARSE_LOOK_UNANSWERED, SPARSE_SENDS, SparseElement,
    SparseInstance, SparseOperation, SparsePeer, SparseReport, SparseThread, SparseThreadState, SpotMemory,
};
use flexcast_proto::sparse::Parameters;
use flexio::{
    Access, Affinity, Connection, CqTarget, DeviceBuffer, DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler,
    HostBuffer, MemoryKey, MemoryRegion, Path, Process, Provider, RemoteQp,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

pub use failure::AggregatorFailure;
pub use flexcast_abi::SparseElement as AggregatorElement;
pub use options::AggregatorOptions;

use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::receive::{accepted, cq_memory, receive_memory, send_memory};
use crate::carrier::endpoint::Firmware;
use crate::error::{Error, Result};
use flexcast_sparse::{Own, Party, Remote, Settings};

/// What errors say that an argument is of.
const WHAT: &str = "sparse AllReduce on the DPA";
/// Blocks are added in rounds of so many bytes.
const BLOCK_STEP: u32 = 128;
/// log2 of the receive entries of a worker, of which one is posted.
const LOG_RECEIVES: u8 = 1;
const REPORT_BYTES: usize = size_of::<SparseReport>();
const FIRST_PSN: u32 = 0;

/// A card whose DPA runs image `sparse`. A clone is the same card.
#[derive(Clone, Debug)]
pub struct AggregatorCard(DpaCard);

impl AggregatorCard {
    /// Opens the card `device` (such as `mlx5_0`) and starts `firmware`, image `sparse`, on its DPA. Other processes
    /// may run there, too.
    ///
    /// # Errors
    /// As [`Endpoint::open`](crate::Endpoint::open).
    pub fn open(provider: &Provider, device: &str, firmware: Firmware<'_>) -> Result<Self> {
        Ok(Self(DpaCard::open(provider, device, &firmware.load(provider)?)?))
    }

    /// A card on which image `sparse` runs.
    pub(crate) const fn of(card: DpaCard) -> Self {
        Self(card)
    }

    /// Makes threads, slots and queue pairs for the workers of `parameters`: a shard for each coroutine of each thread.
    ///
    /// # Errors
    /// [`Error::Argument`] or [`Error::Budget`]: slots that do not fit, blocks that the firmware does not take, no
    /// threads; [`Error::Context`]; [`Error::Flexio`].
    pub fn prepare(&self, parameters: Parameters, options: &AggregatorOptions) -> Result<PreparedAggregator> {
        let on = |place: usize, process: &Process, entry: &str, argument: u64| {
            Ok(EventHandler::new(process, entry, argument, Affinity::Unit(options.units[place]))?)
        };
        self.prepare_with(parameters, options, &on)
    }

    /// The same with threads that somebody else makes.
    fn prepare_with(
        &self,
        parameters: Parameters,
        options: &AggregatorOptions,
        handlers: Handlers<'_>,
    ) -> Result<PreparedAggregator> {
        options.check(parameters)?;
        let Self(card) = self;
        let process = card.process();
        let shards = options.shards();
        let reports = HostBuffer::zeroed(shards as usize * REPORT_BYTES)?;
        let reports = MemoryRegion::register(card.pd(), reports, Access::LOCAL_WRITE)?;
        let operation = SparseOperation { element: SparseElement::I32 as u64, ..Default::default() };
        let operation = DeviceBuffer::from_bytes(process, operation.as_bytes())?;
        let mut threads = Vec::with_capacity(options.units.len());
        for number in 0..options.units.len() as u32 {
            let maker = Maker { card, parameters, options, handlers, reports: &reports, operation: &operation };
            threads.push(maker.thread(number)?);
        }
        let (card, options) = (card.clone(), options.clone());
        let aggregator = DpaAggregator { threads, reports, operation, question: 0, card, parameters, options };
        Ok(PreparedAggregator { aggregator, own: None })
    }
}

impl AggregatorCard {
    /// [`AggregatorCard::prepare`] of aggregator `number` of those that [`Worker`](flexcast_sparse::Worker)s know by
    /// their connection information, and its own connection information.
    ///
    /// # Errors
    /// As [`AggregatorCard::prepare`]; threads and coroutines that do not give as many shards.
    pub fn prepare_for(
        &self,
        settings: &Settings,
        number: u32,
        options: &AggregatorOptions,
    ) -> Result<(PreparedAggregator, Vec<u8>)> {
        let prepared = self.prepare(settings.parameters(), options);
        self.introduce(settings, number, options, prepared)
    }

    /// The same on units that were taken of a card: `options` name as many.
    pub(crate) fn prepare_on(
        &self,
        settings: &Settings,
        number: u32,
        options: &AggregatorOptions,
        units: &TakenUnits,
    ) -> Result<(PreparedAggregator, Vec<u8>)> {
        let on = |place: usize, process: &Process, entry: &str, argument: u64| {
            units.handler(place, process, entry, argument)
        };
        let prepared = self.prepare_with(settings.parameters(), options, &on);
        self.introduce(settings, number, options, prepared)
    }

    fn introduce(
        &self,
        settings: &Settings,
        number: u32,
        options: &AggregatorOptions,
        prepared: Result<PreparedAggregator>,
    ) -> Result<(PreparedAggregator, Vec<u8>)> {
        if settings.shards_of_each() != options.shards() {
            let (wanted, shards) = (settings.shards_of_each(), options.shards());
            let reason = format!(
                "{shards} shards of {} threads, but each aggregator has {wanted}: threads times coroutines are its \
                 shards",
                options.units.len()
            );
            return Err(Error::Argument { operation: WHAT, reason });
        }
        let mut prepared = prepared?;
        let workers = 0..settings.parameters().workers();
        let qpns = workers.flat_map(|worker| prepared.queue_pairs(worker)).map(|remote| remote.qpn);
        // The card answers them by itself: the firmware has no part in it.
        let own = Own::new(Party::Aggregator(number), *settings, self.0.device(), qpns)?;
        let info = own.encode();
        prepared.own = Some(own);
        Ok((prepared, info))
    }
}

/// Makes the thread of a place: of a process, with its entry and argument.
type Handlers<'h> = &'h dyn Fn(usize, &Process, &str, u64) -> Result<EventHandler>;

/// What makes a thread.
struct Maker<'m> {
    card: &'m DpaCard,
    parameters: Parameters,
    options: &'m AggregatorOptions,
    handlers: Handlers<'m>,
    reports: &'m MemoryRegion,
    operation: &'m DeviceBuffer,
}

/// A thread and what belongs to it, in the order in which it ends.
#[derive(Debug)]
struct Thread {
    /// By coroutine, and of each by worker.
    queue_pairs: Vec<DpaQueuePair>,
    _cq: DpaCompletionQueue,
    _slots: MemoryKey,
    /// Its [`SparseThread`], then instances and workers.
    memory: DeviceBuffer,
    handler: EventHandler,
}

impl Maker<'_> {
    fn thread(&self, number: u32) -> Result<Thread> {
        let Self { card, parameters, options, .. } = *self;
        let process = card.process();
        let (workers, coroutines) = (parameters.workers(), options.coroutines);
        let peers = workers * coroutines;
        let instances_at = size_of::<SparseThread>() as u64;
        let peers_at = instances_at + u64::from(coroutines) * size_of::<SparseInstance>() as u64;
        let bytes = peers_at + u64::from(peers) * size_of::<SparsePeer>() as u64;
        let memory = DeviceBuffer::zeroed(process, bytes)?;
        let slot_bytes = slot_bytes(parameters);
        let instance_bytes = u64::from(slot_bytes) * (u64::from(workers) + 2);
        let slots = DeviceBuffer::zeroed(process, instance_bytes * u64::from(coroutines))?;
        let key = MemoryKey::new(&slots, Access::LOCAL_WRITE)?;
        let handler = (self.handlers)(number as usize, process, "sparse", memory.addr().get())?;
        let completions = completions(parameters, coroutines);
        let cq = DpaCompletionQueue::new(card.outbox(), completions.ilog2() as u8, CqTarget::Thread(&handler))?;
        let depths = DpaDepths { log_send: Some(SPARSE_SENDS.ilog2() as u8), log_receive: Some(LOG_RECEIVES) };
        let queue_pairs: Vec<DpaQueuePair> = (0..peers)
            .map(|peer| {
                Ok(DpaQueuePair::builder(flexio::Transport::Rc, depths)
                    .by_command()
                    .user_index(peer)
                    .build(&cq, &cq)?)
            })
            .collect::<Result<_>>()?;
        let at = |offset: u64| DeviceAddress::new(memory.addr().offset(offset).get());
        let instances: Vec<SparseInstance> = (0..coroutines)
            .map(|coroutine| SparseInstance {
                shard: number * coroutines + coroutine,
                workers,
                block_bytes: parameters.block_bytes(),
                blocks_per_message: parameters.blocks_per_message(),
                first_peer: coroutine * workers,
                spot_bytes: slot_bytes,
                first_spot: u64::from(coroutine) * instance_bytes,
                operation: HostLine::new(DeviceAddress::new(self.operation.addr().get())),
                ..Default::default()
            })
            .collect();
        let contexts: Vec<SparsePeer> = (0..)
            .zip(&queue_pairs)
            .map(|(peer, qp): (u32, _)| SparsePeer {
                receive_queue: receive_memory(qp),
                send_queue: send_memory(qp),
                instance: peer / workers,
                ..Default::default()
            })
            .collect();
        let report = u64::from(number * coroutines) * REPORT_BYTES as u64;
        let context = SparseThread {
            layout_hash: SparseThread::HASH,
            outbox_id: card.outbox().id(),
            window_id: card.window().id(),
            window_mkey: self.reports.lkey(),
            lkey: key.id(),
            budget: options.budget,
            thread: number,
            cq: cq_memory(&cq),
            instances: ContextMemory::new(at(instances_at), coroutines),
            peers: ContextMemory::new(at(peers_at), peers),
            spots: SpotMemory::new(DeviceAddress::new(slots.addr().get()), (slots.len() / 8) as u32),
            report_host: self.reports.addr().get() + report,
            ..Default::default()
        };
        memory.write(instances_at, instances.as_bytes())?;
        memory.write(peers_at, contexts.as_bytes())?;
        let context = memory.write_context(0, &context)?;
        accepted("aggregator thread", process.call(&PREPARE, context)?)?;
        Ok(Thread { queue_pairs, _cq: cq, _slots: key, memory, handler })
    }
}

/// Bytes from slot to slot.
const fn slot_bytes(parameters: Parameters) -> u32 {
    parameters.slot_bytes().next_multiple_of(64)
}

/// Entries of a thread's completion queue: of every send, of the receive of each worker and of one that is flushed.
const fn completions(parameters: Parameters, coroutines: u32) -> u64 {
    let peers = parameters.workers() as u64 * coroutines as u64;
    (peers * (SPARSE_SENDS + (1 << LOG_RECEIVES))).next_power_of_two()
}

/// An aggregator that is not connected yet.
#[derive(Debug)]
pub struct PreparedAggregator {
    aggregator: DpaAggregator,
    /// Its connection information, if it was prepared for workers that know it by that.
    own: Option<Own>,
}

impl PreparedAggregator {
    /// How a worker reaches its queue pairs, by shard; none of a worker beyond the last.
    pub fn queue_pairs(&self, worker: u32) -> impl Iterator<Item = RemoteQp> + '_ {
        let DpaAggregator { threads, parameters, .. } = &self.aggregator;
        let workers = parameters.workers();
        threads
            .iter()
            .flat_map(|thread| &thread.queue_pairs)
            .zip((0..workers).cycle())
            .filter(move |(_, of)| *of == worker)
            .map(|(qp, _)| qp.endpoint(FIRST_PSN))
    }

    /// Connects to the queue pairs of the workers, by worker and of each by shard, and lets the threads run. Does not
    /// wait for anybody.
    ///
    /// # Errors
    /// [`Error::Argument`] for a worker or a queue pair that is missing; [`Error::Flexio`].
    pub fn connect(self, workers: &[impl AsRef<[RemoteQp]>]) -> Result<DpaAggregator> {
        let all = |remotes: &[RemoteQp]| {
            remotes.iter().map(|remote| Remote { queue_pair: *remote, first_psn: FIRST_PSN }).collect()
        };
        self.connect_to(&workers.iter().map(|remotes| all(remotes.as_ref())).collect::<Vec<Vec<Remote>>>())
    }

    fn connect_to(self, workers: &[Vec<Remote>]) -> Result<DpaAggregator> {
        let Self { mut aggregator, .. } = self;
        let DpaAggregator { threads, parameters, options, card, .. } = &mut aggregator;
        let path = Path { traffic_class: options.class, ..Path::default() };
        let (count, shards) = (parameters.workers(), options.shards());
        let each = options.coroutines as usize;
        for (number, thread) in threads.iter_mut().enumerate() {
            for (place, qp) in thread.queue_pairs.iter_mut().enumerate() {
                let (worker, shard) = (place % count as usize, number * each + place / count as usize);
                let remote = workers.get(worker).and_then(|remotes| remotes.get(shard));
                let remote = remote.ok_or_else(|| Error::Argument {
                    operation: WHAT,
                    reason: format!(
                        "queue pair of worker {worker} for shard {shard} is missing: give those of all {count} workers \
                         for all {shards} shards"
                    ),
                })?;
                qp.connect(
                    &Connection::to(remote.queue_pair).first_psn(remote.first_psn).path(path).retry(options.retry),
                )?;
            }
        }
        for thread in threads {
            thread.handler.run(thread.memory.addr().get())?;
            card.activate(&thread.handler)?;
        }
        Ok(aggregator)
    }
}

impl PreparedAggregator {
    /// [`PreparedAggregator::connect`] by the connection information of all workers, in their order.
    ///
    /// # Errors
    /// As [`PreparedAggregator::connect`]; [`Error::Argument`] for connection information that is damaged or of other
    /// settings, and for an aggregator that has none itself ([`AggregatorCard::prepare_for`]).
    pub fn connect_for(self, workers: &[impl AsRef<[u8]>]) -> Result<DpaAggregator> {
        let refused = |reason| Error::Argument { operation: WHAT, reason };
        let own = self.own.as_ref();
        let own =
            own.ok_or_else(|| refused("it was prepared without connection information: use prepare_for".to_owned()))?;
        let remotes: Vec<Vec<Remote>> = (0..)
            .zip(workers)
            .map(|(worker, bytes)| own.remotes(bytes.as_ref(), Party::Worker(worker)))
            .collect::<Result<_, _>>()
            .map_err(|error| refused(error.to_string()))?;
        self.connect_to(&remotes)
    }
}

/// An aggregator on a card's DPA. It stops when this is dropped.
#[derive(Debug)]
pub struct DpaAggregator {
    threads: Vec<Thread>,
    reports: MemoryRegion,
    operation: DeviceBuffer,
    /// Number of the last question.
    question: u32,
    card: DpaCard,
    parameters: Parameters,
    options: AggregatorOptions,
}

/// How far an aggregator was when it was asked ([`DpaAggregator::ask`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregatorStanding {
    /// The worker whose message an operation under way waits for; none while none waits.
    pub awaited: Option<u32>,
    /// Whether all workers have acknowledged the answers of all operations. While one is under way some are not
    /// acknowledged, and it is false.
    pub is_answered: bool,
}

impl DpaAggregator {
    /// What the elements of the operations from the next one on are; at first they are 32-bit integers. To be called
    /// while no operation is under way: before this card's own worker votes, or, of a card that has no worker,
    /// before any does.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn set_element(&self, element: AggregatorElement) -> Result<()> {
        Ok(self.operation.write(offset_of!(SparseOperation, element) as u64, &(element as u64).to_le_bytes())?)
    }

    /// Asks how far its threads are; a library call for each. Does not wait: [`DpaAggregator::standing`] has the answer
    /// later. A thread that has just been busy may overlook the question: ask again.
    ///
    /// # Errors
    /// [`Error::Flexio`]; [`Error::Context`] where the runtime does not wake a thread.
    pub fn ask(&mut self) -> Result<()> {
        self.question = self.question.checked_add(1).unwrap_or(1);
        let question = u64::from(self.question).to_le_bytes();
        self.operation.write(offset_of!(SparseOperation, question) as u64, &question)?;
        self.threads.iter().try_for_each(|thread| self.card.activate(&thread.handler))
    }

    /// The answer to the last question; none before all threads have given it.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn standing(&self) -> Result<Option<AggregatorStanding>> {
        let mut standing = AggregatorStanding { awaited: None, is_answered: true };
        for number in 0..self.threads.len() {
            let shard = number * self.options.coroutines as usize;
            let answer = self.reports.read_u64(shard * REPORT_BYTES + offset_of!(SparseReport, look))?;
            if answer >> 32 != u64::from(self.question) {
                return Ok(None);
            }
            let worker = (answer & (SPARSE_LOOK_UNANSWERED - 1)) as u32;
            standing.awaited = standing.awaited.or(worker.checked_sub(1));
            standing.is_answered &= answer & SPARSE_LOOK_UNANSWERED == 0;
        }
        Ok(Some(standing))
    }

    /// Why a shard has stopped, if one has: the first. Workers of it wait in vain.
    ///
    /// # Errors
    /// [`Error::Flexio`], also for firmware that has ended.
    pub fn failure(&self) -> Result<Option<AggregatorFailure>> {
        for shard in 0..self.options.shards() {
            let at = shard as usize * REPORT_BYTES;
            if self.reports.read_u64(at)? == 0 {
                continue;
            }
            let mut bytes = [0; REPORT_BYTES];
            self.reports.read(at, &mut bytes)?;
            let report = SparseReport::read_from_bytes(&bytes).unwrap_or_default();
            return Ok(Some(AggregatorFailure::of(shard, &report)));
        }
        self.card.process().check()?;
        Ok(None)
    }

    pub(crate) fn provider(&self) -> Provider {
        self.card.device().provider().clone()
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.options.shards()
    }

    /// Sizes that it was made for.
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Where the state of a thread lies in DPA memory, for those who can read it there: emulated cards show what a
    /// thread has executed.
    #[doc(hidden)]
    #[must_use]
    pub fn thread_state(&self, thread: usize) -> Option<flexio::DevAddr> {
        let offset = std::mem::offset_of!(SparseThread, state) as u64;
        self.threads.get(thread).map(|thread| thread.memory.addr().offset(offset))
    }
}

const _: () = assert!(size_of::<SparseThreadState>() == 64);
