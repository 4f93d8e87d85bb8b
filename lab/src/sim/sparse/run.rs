//! Run of a simulated sparse AllReduce: make workers and aggregators, let them sum up, compare every sum.

use std::time::Instant;

use emu_machine::with_world;
use flexcast::p2p::reference;
use flexcast::p2p::sparse::{self, Aggregator, Arrays, Call, Config, Order, Settings, Worker};
use flexcast::{
    AggregatorCard, AggregatorOptions, Allreduce, Communicator, Done, DpaAggregator, Firmware, Pending,
    PreparedAggregator, Request, SparseOptions, Test,
};
use flexcast_proto::sparse::Shard;
use flexio::{HostWork, ProtectionDomain, Provider};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::options::{Aggregators, SparseSim};
use super::report::SparseSimReport;
use crate::accesses::Accesses;
use crate::sim::SimError;
use crate::sim::group::{Opening, at, open_cards};
use crate::sim::params::REDUCTION;
use crate::sim::traffic::Traffic;
use crate::sparse::{AggregatorKind, Host, Pattern};
use crate::tput::run::ImageFile;

/// Virtual time in which any operation ends.
const BOUND_PS: u64 = 60_000_000_000_000;

/// An error of a worker or an aggregator.
fn party(rank: u32) -> impl Fn(sparse::Error) -> SimError {
    move |source| SimError::Sparse { rank, source }
}

/// What each worker contributes: numbers where its pattern is not zero.
fn contributions(params: &SparseSim, pattern: &Pattern) -> Vec<Vec<u8>> {
    let of = |worker: u32| {
        let mut random = ChaCha8Rng::seed_from_u64(params.seed);
        random.set_stream(u64::from(worker) << 32 | 1);
        let mut array = vec![0; params.bytes as usize];
        for (block, bytes) in (0..).zip(array.chunks_mut(params.block_bytes as usize)) {
            if pattern.count(worker, block..block + 1) == 1 {
                random.fill(bytes);
                // Not zero by accident.
                bytes[0] |= 1;
            }
        }
        array
    };
    (0..params.workers).map(of).collect()
}

/// Counts of the closed form.
fn count(report: &mut SparseSimReport, pattern: &Pattern, shards: impl Iterator<Item = Shard>, d: u32) {
    let mut first = 0;
    for shard in shards {
        let next = first + u64::from(shard.blocks());
        let iterations = pattern.union(first..next).div_ceil(d.into());
        report.expected_messages += iterations + 1;
        report.iterations_of_longest_shard = report.iterations_of_longest_shard.max(iterations);
        report.shards += 1;
        first = next;
    }
    report.union_blocks = pattern.union(0..first);
}

/// Runs what `params` say on the calling thread's emulated machine, which `provider` reaches. `image`: only
/// communicators of the DPA need one. `ended` is called after each operation.
///
/// # Errors
/// [`SimError`]: what has gone wrong with an operation, too. Wrong sums are part of the report.
pub fn run(
    provider: &Provider,
    image: Option<&ImageFile>,
    params: &SparseSim,
    ended: &mut dyn FnMut(u32),
) -> Result<SparseSimReport, SimError> {
    let pattern = Pattern::new(params.pattern, params.workers, params.blocks(), params.sparsity, params.seed);
    let contributions = contributions(params, &pattern);
    let expected = reference(REDUCTION, &contributions);
    let model = with_world(|world| world.config().model_name().to_owned())?;
    let mut report = SparseSimReport::new(params, model);
    let mut group = match &params.aggregators {
        Aggregators::Ranks => Group::Ranks(Ranks::new(provider, image, params)?),
        Aggregators::Dpa => Group::Separate(Separate::on_dpas(provider, image, params)?),
        Aggregators::Separate(kinds) => Group::Separate(Separate::new(provider, params, kinds)?),
    };
    if params.bytes > 0 {
        let shards = group.shards(params)?;
        count(&mut report, &pattern, shards.into_iter(), params.blocks_per_message);
    }
    report.contributed_blocks = (0..params.workers).map(|worker| pattern.count(worker, 0..params.blocks())).sum();
    with_world(|world| world.settle())?;
    let (warm_up, iterations) = params.turns;
    for turn in 0..warm_up + iterations {
        let (before, started, start_ps) = (Traffic::now()?, Instant::now(), provider.relax().now_ps());
        let accesses = Accesses::now()?;
        let Operated { end_ps, arrays, messages } = group.operate(provider, &contributions)?;
        if turn >= warm_up {
            let took_us = (end_ps - start_ps) as f64 / 1e6;
            report.add(took_us, Traffic::now()? - before, started.elapsed().as_secs_f64());
            Accesses::add_since(&mut report.accesses, accesses.as_ref())?;
        }
        report.sums_ok &= arrays.iter().all(|array| *array == expected);
        report.messages = messages.first().copied().unwrap_or(0);
        report.messages_ok &= messages.iter().all(|messages| *messages == report.expected_messages);
        ended(turn + 1);
    }
    if let Group::Separate(separate) = &group {
        report.worker_memory_bytes = separate.workers.first().map(|worker| worker.statistics().block_memory_bytes);
        let on_dpa =
            |aggregator: &DpaAggregator| aggregator.parameters().aggregator_bytes() * u64::from(aggregator.shards());
        report.aggregator_memory_bytes = separate
            .aggregators
            .first()
            .map(|aggregator| aggregator.statistics().memory_bytes)
            .or_else(|| separate.on_dpa.first().map(on_dpa));
    }
    Ok(report)
}

/// Whoever takes part.
enum Group {
    Ranks(Ranks),
    Separate(Separate),
}

/// What came of an operation.
struct Operated {
    /// When the last worker had its sums.
    end_ps: u64,
    arrays: Vec<Vec<u8>>,
    /// Of each worker.
    messages: Vec<u64>,
}

/// Communicators, whose ranks add.
struct Ranks {
    all: Vec<Communicator>,
    options: SparseOptions,
}

/// Workers, and aggregators with cards of their own or on the DPA of the workers' cards.
struct Separate {
    settings: Settings,
    call: Call,
    workers: Vec<Worker>,
    aggregators: Vec<Aggregator>,
    on_dpa: Vec<DpaAggregator>,
}

impl Group {
    fn shards(&self, params: &SparseSim) -> Result<Vec<Shard>, SimError> {
        let (settings, call) = match self {
            Self::Separate(separate) => (separate.settings, separate.call),
            Self::Ranks(ranks) => {
                let each = ranks.options.shards_of_each(params.bytes, params.workers);
                let settings = SparseSim { shards_of_each: each, ..params.clone() }.settings().map_err(party(0))?;
                (settings, Separate::call(params, each))
            }
        };
        Ok(settings.shards(&call).map_err(party(0))?.iter().collect())
    }

    fn operate(&mut self, provider: &Provider, contributions: &[Vec<u8>]) -> Result<Operated, SimError> {
        match self {
            Self::Ranks(ranks) => ranks.operate(provider, contributions),
            Self::Separate(separate) => separate.operate(provider, contributions),
        }
    }
}

impl Ranks {
    fn new(provider: &Provider, image: Option<&ImageFile>, params: &SparseSim) -> Result<Self, SimError> {
        let count = params.workers as usize;
        let endpoints = match image {
            Some(ImageFile { name, elf }) => {
                let application = Firmware { name, elf }.load(provider).map_err(at(0))?;
                open_cards(provider, count, Opening::Firmware(&application))?
            }
            None => open_cards(provider, count, Opening::Verbs)?,
        };
        let config = flexcast::Config::default().reproducible(params.in_rank_order);
        let make = |(rank, endpoint)| Pending::new(endpoint, rank, params.workers, config.clone()).map_err(at(rank));
        let pending = (0..).zip(&endpoints).map(make).collect::<Result<Vec<_>, _>>()?;
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        let connect = |(rank, pending): (u32, Pending)| pending.connect(&infos).map_err(at(rank));
        let all = (0..).zip(pending).map(connect).collect::<Result<_, _>>()?;
        let SparseSim { block_bytes, blocks_per_message, .. } = *params;
        Ok(Self { all, options: SparseOptions { block_bytes, blocks_per_message } })
    }

    fn post(&self, rank: u32, array: &[u8]) -> Result<Request, SimError> {
        let communicator = &self.all[rank as usize];
        let mut buffer = communicator.endpoint().buffer(array.len()).map_err(at(rank))?;
        buffer.write(0, array).map_err(at(rank))?;
        let posted = communicator.post(Allreduce::new(REDUCTION).sparse(self.options).in_place(buffer));
        posted.map_err(|failed| at(rank)(failed.error))
    }

    fn operate(&self, provider: &Provider, contributions: &[Vec<u8>]) -> Result<Operated, SimError> {
        let post = |(rank, array): (u32, &Vec<u8>)| self.post(rank, array).map(Some);
        let mut requests = (0..).zip(contributions).map(post).collect::<Result<Vec<_>, _>>()?;
        let mut done: Vec<Option<Done>> = requests.iter().map(|_| None).collect();
        let start_ps = provider.relax().now_ps();
        while done.iter().any(Option::is_none) {
            for (rank, communicator) in (0..).zip(&self.all) {
                let index = rank as usize;
                let Some(request) = requests[index].take() else {
                    // Others may still need it.
                    communicator.progress().map_err(at(rank))?;
                    continue;
                };
                match request.test() {
                    Ok(Test::Pending(request)) => requests[index] = Some(request),
                    Ok(Test::Done(ended)) => done[index] = Some(ended),
                    Err(failed) => return Err(at(rank)(failed.error)),
                }
            }
            check_time(provider, start_ps, || done.iter().position(Option::is_none))?;
            if done.iter().any(Option::is_none) {
                provider.relax().relax();
            }
        }
        let end_ps = provider.relax().now_ps();
        let done: Vec<Done> = done.into_iter().flatten().collect();
        let messages = done.iter().map(|done| done.report.messages).collect();
        let read = |(rank, done): (u32, &Done)| done.receive.to_vec().map_err(at(rank));
        Ok(Operated { end_ps, arrays: (0..).zip(&done).map(read).collect::<Result<_, _>>()?, messages })
    }
}

/// Ends what takes too long.
fn check_time(provider: &Provider, start_ps: u64, open: impl FnOnce() -> Option<usize>) -> Result<(), SimError> {
    if provider.relax().now_ps() - start_ps <= BOUND_PS {
        return Ok(());
    }
    match open() {
        Some(rank) => {
            Err(SimError::Hang { rank: rank as u32, operation: "sparse-allreduce", bound_us: BOUND_PS / 1_000_000 })
        }
        None => Ok(()),
    }
}

/// What an aggregator takes for a message and each of its blocks, in picoseconds.
fn times(params: &SparseSim, kind: AggregatorKind) -> (u64, u64) {
    if !params.processor_times {
        return (0, 0);
    }
    let machine = Host::default().machine();
    let node = match kind {
        AggregatorKind::Cpu => machine.host,
        AggregatorKind::Arm => machine.arm,
    };
    // Whole nanoseconds.
    let block_ns = u64::from(params.block_bytes) * 1_000_000_000 / node.core_add_bytes_per_s;
    (node.message_ps / 1000 * 1000, block_ns * 1000)
}

/// Name of a card.
fn device(provider: &Provider, card: u32) -> Result<String, SimError> {
    let devices = provider.devices().map_err(|error| at(card)(error.into()))?;
    Ok(devices.get(card as usize).map_or_else(String::new, |device| device.name.clone()))
}

fn domain(provider: &Provider, card: u32) -> Result<ProtectionDomain, SimError> {
    let domain = provider.open(&device(provider, card)?).and_then(|device| ProtectionDomain::new(&device));
    domain.map_err(|error| at(card)(error.into()))
}

/// Workers that are not connected, and their connection information.
fn pending_workers(
    provider: &Provider,
    settings: Settings,
    workers: u32,
) -> Result<(Vec<sparse::PendingWorker>, Vec<Vec<u8>>), SimError> {
    let worker = |own| {
        let prepared = Worker::prepare(&domain(provider, own)?, settings, own, Config::default());
        prepared.map_err(party(own))
    };
    Ok((0..workers).map(worker).collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
}

impl Separate {
    const fn call(params: &SparseSim, shards_of_each: u32) -> Call {
        let order = if params.in_rank_order { Order::Rank } else { Order::Arrival };
        Call { bytes: params.bytes, shards_of_each, reduction: REDUCTION, order }
    }

    fn new(provider: &Provider, params: &SparseSim, kinds: &[AggregatorKind]) -> Result<Self, SimError> {
        let (settings, call) = Self::settings(params)?;
        let (ours, announced) = pending_workers(provider, settings, params.workers)?;
        let (mut theirs, mut answers) = (Vec::new(), Vec::new());
        for (own, kind) in (0..).zip(kinds) {
            let card = params.workers + own;
            let (message_ps, block_ps) = times(params, *kind);
            let work = move |_: &str, work| match work {
                HostWork::ReductionMessage => message_ps,
                HostWork::ReductionBlock => block_ps,
                _ => 0,
            };
            let domain = domain(&provider.with_work(work), card)?;
            let prepared = Aggregator::prepare(&domain, settings, own, Config::default());
            let (pending, info) = prepared.map_err(party(card))?;
            theirs.push(pending);
            answers.push(info);
        }
        let connect = |(own, pending): (u32, sparse::PendingWorker)| pending.connect(&answers).map_err(party(own));
        let workers = (0..).zip(ours).map(connect).collect::<Result<_, _>>()?;
        let connect =
            |(own, pending): (u32, sparse::PendingAggregator)| pending.connect(&announced).map_err(party(own));
        let aggregators = (params.workers..).zip(theirs).map(connect).collect::<Result<_, _>>()?;
        Ok(Self { settings, call, workers, aggregators, on_dpa: Vec::new() })
    }

    /// Each worker's card has an aggregator on its DPA, with a thread for each shard.
    fn on_dpas(provider: &Provider, image: Option<&ImageFile>, params: &SparseSim) -> Result<Self, SimError> {
        let missing = || SimError::Parameter {
            what: "--image",
            reason: "none, but the DPA runs image `sparse`: give that".to_owned(),
        };
        let ImageFile { name, elf } = image.ok_or_else(missing)?;
        let (settings, call) = Self::settings(params)?;
        let (ours, announced) = pending_workers(provider, settings, params.workers)?;
        let units = (1..=params.shards_of_each).collect();
        let default = AggregatorOptions::default();
        let cache_bytes = params.dpa_cache.unwrap_or(default.cache_bytes);
        let options = AggregatorOptions { units, coroutines: 1, cache_bytes, ..default };
        let (mut theirs, mut answers) = (Vec::new(), Vec::new());
        for own in 0..params.workers {
            let device = device(provider, own)?;
            let card = AggregatorCard::open(provider, &device, Firmware { name, elf }).map_err(at(own))?;
            let (pending, info) = card.prepare_for(&settings, own, &options).map_err(at(own))?;
            theirs.push(pending);
            answers.push(info);
        }
        let connect = |(own, pending): (u32, sparse::PendingWorker)| pending.connect(&answers).map_err(party(own));
        let workers = (0..).zip(ours).map(connect).collect::<Result<_, _>>()?;
        let connect = |(own, pending): (u32, PreparedAggregator)| pending.connect_for(&announced).map_err(at(own));
        let on_dpa = (0..).zip(theirs).map(connect).collect::<Result<_, _>>()?;
        Ok(Self { settings, call, workers, aggregators: Vec::new(), on_dpa })
    }

    fn settings(params: &SparseSim) -> Result<(Settings, Call), SimError> {
        let call = Self::call(params, params.shards_of_each);
        let settings = params.settings().and_then(|settings| settings.with_call(call)).map_err(party(0))?;
        Ok((settings, call))
    }

    /// An error for the first shard that has stopped on a DPA.
    fn check_dpas(&self) -> Result<(), SimError> {
        for (rank, aggregator) in (0..).zip(&self.on_dpa) {
            if let Some(failure) = aggregator.failure().map_err(at(rank))? {
                return Err(SimError::Dpa { rank, failure });
            }
        }
        Ok(())
    }

    fn operate(&mut self, provider: &Provider, contributions: &[Vec<u8>]) -> Result<Operated, SimError> {
        self.check_dpas()?;
        let Self { call, workers, aggregators, .. } = self;
        let mut arrays = contributions.to_vec();
        let before: Vec<u64> = workers.iter().map(|worker| worker.statistics().sent_messages).collect();
        let cards = workers.len() as u32;
        for (number, aggregator) in (cards..).zip(aggregators.iter_mut()) {
            aggregator.begin(*call).map_err(party(number))?;
        }
        for (number, worker) in (0..).zip(workers.iter_mut()) {
            worker.begin(*call).map_err(party(number))?;
        }
        let start_ps = provider.relax().now_ps();
        let mut end_ps = start_ps;
        loop {
            for ((number, worker), receive) in (0..).zip(workers.iter_mut()).zip(&mut arrays) {
                if !worker.is_complete() {
                    worker.progress(&mut Arrays { send: None, receive }).map_err(party(number))?;
                    end_ps = provider.relax().now_ps();
                }
            }
            for (number, aggregator) in (cards..).zip(aggregators.iter_mut()) {
                aggregator.progress().map_err(party(number))?;
            }
            let is_open = |worker: &Worker| !worker.is_complete();
            if !workers.iter().any(is_open) && aggregators.iter().all(Aggregator::is_complete) {
                break;
            }
            check_time(provider, start_ps, || workers.iter().position(is_open))?;
            provider.relax().relax();
        }
        let sent = |(worker, before): (&Worker, u64)| worker.statistics().sent_messages - before;
        let messages = workers.iter().zip(before).map(sent).collect();
        self.check_dpas()?;
        Ok(Operated { end_ps, arrays, messages })
    }
}
