//! An aggregator on a processor: it adds what workers send, and sends the sums to all of them.

use std::collections::VecDeque;

use flexcast_proto::sparse::{self, Added, AggregatorLimits, Received};
use flexio::{Bound, Completion, CompletionQueue, HostWork, LocalSlice, ProtectionDomain};

use super::connect_info::Own;
use super::link::{Link, Work, completions};
use super::slots::Slots;
use super::sums::incoming;
use super::{Call, Config, Error, Party, Patience, Result, Settings, Statistics};
use flexcast_rc::collect::collect;
use flexcast_rc::linger::Lingering;

/// In place of a worker's number, in the immediate of an answer that ends the operation: the aggregator's own fault.
pub(super) const OWN_FAULT: u32 = u32::MAX;

/// An aggregator's queue pairs that are not connected yet.
#[derive(Debug)]
pub struct PendingAggregator(Aggregator, Own);

/// Whoever adds the blocks of its shards.
#[derive(Debug)]
pub struct Aggregator {
    number: u32,
    settings: Settings,
    config: Config,
    /// By worker, and of each by shard. Before the memory that they use: dropped first.
    links: Vec<Link>,
    /// By shard.
    slots: Vec<Slots>,
    completions: CompletionQueue,
    running: Option<Running>,
    /// Answers that are not with the card yet.
    unsent: VecDeque<Unsent>,
    failed: bool,
    patience: Patience,
    /// What a message takes the processor, and each of its blocks ([`flexio::Device::work_ps`]).
    message_ps: u64,
    block_ps: u64,
    /// Until when what has come takes the processor.
    busy_ps: u64,
    /// When the last operation has ended; none while none has.
    ended_ps: Option<u64>,
    statistics: Statistics,
}

/// An operation under way.
#[derive(Debug)]
struct Running {
    call: Call,
    /// By shard.
    sums: Vec<sparse::Aggregator>,
}

#[derive(Clone, Copy, Debug)]
struct Unsent {
    link: usize,
    answer: LocalSlice,
    last: bool,
    /// Not before.
    at_ps: u64,
}

impl PendingAggregator {
    /// Takes the connection information of all workers, in their order. Does not wait for anybody.
    ///
    /// # Errors
    /// [`Error::ConnectInfo`] where it is missing, damaged or of other settings; [`Error::Flexio`].
    pub fn connect(self, workers: &[impl AsRef<[u8]>]) -> Result<Aggregator> {
        let Self(mut aggregator, own) = self;
        let Aggregator { settings, config, links, slots, .. } = &mut aggregator;
        let each = settings.shards_of_each as usize;
        for worker in 0..settings.parameters.workers() {
            let party = Party::Worker(worker);
            let missing = || Error::ConnectInfo { party, reason: "missing: give that of all workers".to_owned() };
            let info = workers.get(worker as usize).ok_or_else(missing)?;
            let remotes = own.remotes(info.as_ref(), party)?;
            for ((shard, remote), slots) in remotes.iter().enumerate().zip(slots.iter_mut()) {
                let link = &mut links[worker as usize * each + shard];
                slots.post(worker, link)?;
                link.connect(remote, config)?;
            }
        }
        Ok(aggregator)
    }
}

impl Aggregator {
    /// Makes the queue pairs and the memory of aggregator `number` on a card, and what workers need to know of it.
    ///
    /// # Errors
    /// No such aggregator; [`Error::Flexio`].
    pub fn prepare(
        pd: &ProtectionDomain,
        settings: Settings,
        number: u32,
        config: Config,
    ) -> Result<(PendingAggregator, Vec<u8>)> {
        if number >= settings.aggregators {
            let limit = format!("below {}, as there are so many", settings.aggregators);
            return Err(Error::OutOfRange { what: "the aggregator's number", value: number.into(), limit });
        }
        let (parameters, each) = (settings.parameters, settings.shards_of_each);
        let count = parameters.workers() * each;
        let completions = CompletionQueue::new(pd.device(), completions(count))?;
        let links = (0..count).map(|link| Link::new(pd, &completions, link, 1)).collect::<flexio::Result<Vec<_>>>()?;
        let slots = Slots::all(pd, parameters, each)?;
        let own = Own::new(Party::Aggregator(number), settings, pd.device(), links.iter().map(Link::qpn))?;
        let info = own.encode();
        let memory_bytes = parameters.aggregator_bytes() * u64::from(each);
        let statistics = Statistics { block_memory_bytes: memory_bytes, memory_bytes, ..Statistics::default() };
        let aggregator = Self {
            number,
            settings,
            config,
            links,
            slots,
            completions,
            running: None,
            unsent: VecDeque::new(),
            failed: false,
            patience: Patience::default(),
            message_ps: pd.device().work_ps(HostWork::ReductionMessage),
            block_ps: pd.device().work_ps(HostWork::ReductionBlock),
            busy_ps: 0,
            ended_ps: None,
            statistics,
        };
        Ok((PendingAggregator(aggregator, own), info))
    }

    /// Ends the aggregator. Workers' cards still get answers for as long as they may ask again for the acknowledgements
    /// of their last messages.
    pub fn leave(self, lingering: &Lingering) {
        let Self { links, slots, completions, config, running: None, failed: false, ended_ps, .. } = self else {
            return;
        };
        let Some(ended_ps) = ended_ps else { return };
        let device = completions.device().clone();
        lingering.keep((links, slots, completions), &device, ended_ps, config.retry);
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

    /// Bytes of messages of a worker that have come.
    #[must_use]
    pub fn received_from(&self, worker: u32) -> u64 {
        let each = self.settings.shards_of_each as usize;
        self.links.iter().skip(worker as usize * each).take(each).map(Link::received_bytes).sum()
    }

    /// Whether no operation is under way: all workers have acknowledged the last answers.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.running.is_none()
    }

    /// Starts an operation. What workers have sent of it before is taken.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Failed`]; a call for which these connections are not; those of
    /// [`Aggregator::progress`].
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
        let now_ps = self.now_ps();
        self.patience.restart(now_ps);
        // Whoever drives this has bounds of its own.
        let limits = AggregatorLimits { iteration_ps: u64::MAX, linger_ps: 0 };
        let sum = |shard| {
            let shard = shards.number(self.number, 0, shard).and_then(|number| shards.get(number));
            let blocks = shard.map_or(0, |shard| shard.blocks());
            sparse::Aggregator::new(self.settings.parameters, blocks, call.order, limits, now_ps)
        };
        let sums = (0..call.shards_of_each).map(sum).collect::<std::result::Result<Vec<_>, _>>()?;
        self.running = Some(Running { call, sums });
        let (shards, workers) = (call.shards_of_each, self.settings.parameters.workers());
        let begun =
            (0..shards).try_for_each(|shard| (0..workers).try_for_each(|worker| self.take(shard, worker, now_ps)));
        let begun = begun.and_then(|()| self.flush(now_ps).map(drop));
        self.ended(begun)
    }

    /// Takes what has come and sends what may be sent. Does not wait; between two calls the caller lets the card make
    /// progress ([`flexio::Relax`]).
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Connection`], [`Error::Protocol`], each naming the worker; [`Error::Flexio`].
    /// Workers are notified. From then on [`Error::Failed`].
    pub fn progress(&mut self) -> Result<bool> {
        if self.advance()? || self.running.is_none() {
            return Ok(true);
        }
        let overdue = self.patience.overdue(self.now_ps(), self.config.bound);
        let ended = match overdue.zip(self.awaited()) {
            Some(((waited_us, polls), worker)) => {
                Err(Error::Timeout { party: Party::Worker(worker), waited_us, polls })
            }
            None => Ok(()),
        };
        self.ended(ended).map(|()| false)
    }

    /// The same for a caller that bounds operations itself. Returns whether anything has happened.
    ///
    /// # Errors
    /// As [`Aggregator::progress`], but [`Error::Timeout`].
    pub fn advance(&mut self) -> Result<bool> {
        if self.failed {
            return Err(Error::Failed);
        }
        if self.running.is_none() {
            return Ok(false);
        }
        let now_ps = self.now_ps();
        let moved = self.drive(now_ps);
        if matches!(moved, Ok(true)) {
            self.patience.restart(now_ps);
        }
        let mut any = false;
        let ended = moved.map(|moved| any = moved);
        self.ended(ended).map(|()| any)
    }

    /// When [`Aggregator::advance`] has something to do although nothing comes, in picoseconds of the provider's clock.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        self.running.as_ref()?;
        let now_ps = self.now_ps();
        let work_ps = self.unsent.front().map_or(self.busy_ps, |unsent| unsent.at_ps);
        let probes_ps = self.links.iter().filter_map(Link::probe_ps);
        probes_ps.chain(Some(work_ps).filter(|at_ps| *at_ps > now_ps)).min()
    }

    /// The worker that owes the first thing that is missing; none while nothing is.
    #[must_use]
    pub fn awaited(&self) -> Option<u32> {
        let running = self.running.as_ref()?;
        let missing = running.sums.iter().filter(|sum| !sum.is_complete()).find_map(sparse::Aggregator::missing);
        let each = self.settings.shards_of_each as usize;
        let undrained = || self.links.iter().position(|link| !link.is_drained()).map(|link| (link / each) as u32);
        missing.or_else(undrained)
    }

    fn now_ps(&self) -> u64 {
        self.completions.device().provider().relax().now_ps()
    }

    /// After a failure: notifies all workers.
    fn ended(&mut self, result: Result<()>) -> Result<()> {
        let Err(error) = &result else { return Ok(()) };
        self.failed = true;
        let failed_rank = match error {
            Error::Connection { party: Party::Worker(worker), .. }
            | Error::Protocol { party: Party::Worker(worker), .. }
            | Error::Timeout { party: Party::Worker(worker), .. } => *worker,
            _ => OWN_FAULT,
        };
        self.report(failed_rank);
        result
    }

    /// Reports to all workers that wait for an answer why there is none.
    fn report(&mut self, failed_rank: u32) {
        self.unsent.clear();
        let now_ps = self.now_ps();
        for link in self.links.iter_mut().filter(|link| link.has_room()) {
            if let Err(error) = link.send(&[], failed_rank.saturating_add(1), true, now_ps) {
                tracing::debug!(%error, "a failure cannot be reported to a worker");
            }
        }
    }

    fn drive(&mut self, now_ps: u64) -> Result<bool> {
        let mut moved = self.flush(now_ps)?;
        if now_ps >= self.busy_ps {
            let completions = self.completions.clone();
            moved |= collect(&completions, |completion| self.handle(completion, now_ps))?;
            moved |= self.flush(now_ps)?;
        }
        if !moved {
            self.links.iter_mut().try_for_each(|link| link.poll_silence(now_ps))?;
        }
        if let Some(Running { sums, .. }) = &self.running
            && sums.iter().all(sparse::Aggregator::is_complete)
            && self.unsent.is_empty()
            && self.links.iter().all(Link::is_drained)
        {
            (self.running, self.ended_ps) = (None, Some(now_ps));
            self.statistics.operations += 1;
            moved = true;
        }
        Ok(moved)
    }

    fn handle(&mut self, completion: &Completion, now_ps: u64) -> Result<()> {
        let (number, work) = Work::of(completion.id);
        let each = self.settings.shards_of_each;
        let (worker, shard) = (number as u32 / each, number as u32 % each);
        let party = Party::Worker(worker);
        self.completions
            .check(completion, "a message of a sparse AllReduce")
            .map_err(|source| Error::Connection { party, source })?;
        let (Some(link), Some(slots)) = (self.links.get_mut(number), self.slots.get_mut(shard as usize)) else {
            return Ok(());
        };
        match work {
            Work::Sends(count) => link.sent(count),
            Work::Receive => {
                let reason = || "a message without an immediate".to_owned();
                let displacement = completion.immediate.ok_or_else(|| Error::Protocol { party, reason: reason() })?;
                slots.arrived(worker, completion.byte_len, displacement);
                link.received(completion.byte_len);
                self.statistics.received_messages += 1;
                self.statistics.received_bytes += u64::from(completion.byte_len);
                self.take(shard, worker, now_ps)?;
            }
        }
        Ok(())
    }

    /// Adds the message in a receive slot, if there is one and it is of the operation under way.
    fn take(&mut self, shard: u32, worker: u32, now_ps: u64) -> Result<()> {
        let parameters = self.settings.parameters;
        let party = Party::Worker(worker);
        let Self { running, slots, .. } = self;
        let (Some(running), Some(slots)) = (running, slots.get(shard as usize)) else { return Ok(()) };
        // One of the next operation waits for it.
        let Some(sum) = running.sums.get_mut(shard as usize).filter(|sum| !sum.is_complete()) else { return Ok(()) };
        let Some((payload, displacement)) = slots.message(worker) else { return Ok(()) };
        let refused = |bytes| Error::Protocol {
            party,
            reason: format!(
                "a message of {bytes} bytes with displacement {displacement:#x}, which iteration {} cannot have: call \
                 the same on all",
                sum.summation().iteration()
            ),
        };
        let read = incoming(sum, payload, displacement, parameters).ok_or_else(|| refused(payload.len()))?;
        let handled = sum.handle_reliable(worker, &read, now_ps);
        match handled.map_err(|error| Error::Protocol { party, reason: error.to_string() })? {
            Received::Added(added) => self.added(shard, worker, &added, now_ps),
            Received::Held => self.add_held(shard, now_ps),
            Received::Waiting { .. } | Received::Again(_) | Received::Old => {
                Err(Error::Protocol { party, reason: "a message for the second time".to_owned() })
            }
        }
    }

    /// Adds the messages that wait in their slots, as far as it is their turn.
    fn add_held(&mut self, shard: u32, now_ps: u64) -> Result<()> {
        let parameters = self.settings.parameters;
        loop {
            let Self { running, slots, .. } = self;
            let Some(sum) = running.as_mut().and_then(|running| running.sums.get_mut(shard as usize)) else {
                return Ok(());
            };
            let Some(worker) = sum.next_rank() else { return Ok(()) };
            let party = Party::Worker(worker);
            let message = slots.get(shard as usize).and_then(|slots| slots.message(worker));
            let read = message.and_then(|(payload, bits)| incoming(sum, payload, bits, parameters));
            let gone = || Error::Protocol { party, reason: "a message that has changed since it came".to_owned() };
            let added = sum.add_held(worker, &read.ok_or_else(gone)?, now_ps);
            let added = added.map_err(|error| Error::Protocol { party, reason: error.to_string() })?;
            self.added(shard, worker, &added, now_ps)?;
        }
    }

    /// Carries out what a message does. Its slot receives again before anybody is answered.
    fn added(&mut self, shard: u32, worker: u32, added: &Added, now_ps: u64) -> Result<()> {
        let Self { settings: Settings { parameters, shards_of_each, .. }, running, slots, links, .. } = self;
        let each = *shards_of_each as usize;
        let (Some(running), Some(slots)) = (running, slots.get_mut(shard as usize)) else { return Ok(()) };
        slots.add(worker, &added.additions, parameters.block_bytes() as usize, running.call.reduction);
        if let Some(link) = links.get(worker as usize * each + shard as usize) {
            slots.post(worker, link)?;
        }
        let blocks = u64::from(added.additions.blocks());
        self.statistics.blocks += blocks;
        let takes_ps = self.message_ps + self.block_ps * blocks;
        self.busy_ps = self.busy_ps.max(now_ps) + takes_ps;
        let Some(answer) = &added.answer else { return Ok(()) };
        let (last, at_ps) = (answer.is_last(), self.busy_ps);
        let answer = slots.answer(answer, *parameters)?;
        let unsent = |worker| Unsent { link: worker * each + shard as usize, answer, last, at_ps };
        self.unsent.extend((0..parameters.workers() as usize).map(unsent));
        Ok(())
    }

    /// Posts answers. Returns whether it did.
    fn flush(&mut self, now_ps: u64) -> Result<bool> {
        let Self { unsent, links, statistics, settings, .. } = self;
        let mut moved = false;
        for _ in 0..unsent.len() {
            let Some(next) = unsent.pop_front() else { break };
            let Unsent { link: number, answer, last, at_ps } = next;
            // A worker that does not acknowledge holds nobody else up.
            let Some(link) = links.get_mut(number).filter(|link| at_ps <= now_ps && link.has_room()) else {
                unsent.push_back(next);
                continue;
            };
            let party = Party::Worker(number as u32 / settings.shards_of_each);
            let posted = link.send(&[answer], 0, last, now_ps);
            posted.map_err(|source| Error::Connection { party, source })?;
            statistics.sent_messages += 1;
            statistics.sent_bytes += u64::from(answer.len);
            moved = true;
        }
        Ok(moved)
    }
}
