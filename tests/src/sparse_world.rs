//! Workers and aggregators of sparse AllReduces on one emulated machine, driven to the end of an operation, whatever
//! that is.

use emu_machine::fabric::{FaultEvent, FaultScript, Topology};
use emu_machine::{Config as MachineConfig, NetworkConfig, Wiring};
use emu_provider::emulated;
use flexcast::p2p::reference;
use flexcast::p2p::sparse::{
    Aggregator, Arrays, Call, Config, Error, Order, Party, Settings, Staged, Statistics, Worker,
};
use flexcast::reduce::Reduction;
use flexio::{ProtectionDomain, Provider};

use crate::device_memory::{Device, DeviceArrays, DeviceMemory, Traffic};

/// Polls of all at most, so that no test hangs.
pub const MOST_POLLS: usize = 20_000_000;

/// A machine with so many cards at one switch.
///
/// # Panics
/// There is no such machine.
#[must_use]
pub fn on(cards: usize, faults: Vec<FaultEvent>) -> MachineConfig {
    let topology = Topology::named(&format!("switch-{cards}")).expect("a preset");
    let network = NetworkConfig { faults: FaultScript { seed: 5, faults }, ..NetworkConfig::new(topology) };
    MachineConfig { cards, wiring: Wiring::Network(Box::new(network)), ..MachineConfig::default() }
}

/// Workers on the first cards, aggregators on the others.
pub struct World {
    /// Of the machine.
    pub provider: Provider,
    /// What all have agreed on.
    pub settings: Settings,
    /// By number.
    pub workers: Vec<Worker>,
    /// Whose arrays are in the memory of accelerators: their numbers follow.
    pub staged: Vec<Worker<Staged<Device>>>,
    /// By number.
    pub aggregators: Vec<Aggregator>,
}

/// The last workers of a world: their arrays are in the memory of accelerators.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnDevices {
    /// How many they are.
    pub workers: u32,
    /// Bytes of the buffer of each.
    pub bytes: usize,
    /// Polls after which their programs are over.
    pub polls: u32,
}

/// What became of an operation.
pub struct Ends {
    /// Of each worker.
    pub workers: Vec<Result<(), Error>>,
    /// Of each aggregator.
    pub aggregators: Vec<Result<(), Error>>,
    /// Of each worker, whatever is in it.
    pub arrays: Vec<Vec<u8>>,
    /// Of workers with accelerators: what these have done with their arrays.
    pub traffic: Vec<Traffic>,
}

impl World {
    /// A machine with faults, and all connections.
    ///
    /// # Panics
    /// Connections cannot be made.
    #[must_use]
    pub fn new(settings: Settings, faults: Vec<FaultEvent>, config: Config) -> Self {
        Self::with_devices(settings, faults, config, OnDevices::default())
    }

    /// The same with accelerators.
    ///
    /// # Panics
    /// As [`World::new`].
    #[must_use]
    pub fn with_devices(settings: Settings, faults: Vec<FaultEvent>, config: Config, devices: OnDevices) -> Self {
        Self::with_altered_infos(settings, faults, config, devices, |_| {})
    }

    /// The same, where aggregators are given other connection information of the workers than these have announced.
    ///
    /// # Panics
    /// As [`World::new`].
    #[must_use]
    pub fn with_altered_infos(
        settings: Settings,
        faults: Vec<FaultEvent>,
        config: Config,
        devices: OnDevices,
        change: impl FnOnce(&mut [Vec<u8>]),
    ) -> Self {
        let (workers, aggregators) = (settings.parameters().workers(), settings.aggregators());
        let provider = emulated(on((workers + aggregators) as usize, faults)).expect("a machine");
        let domain = |card: u32| {
            ProtectionDomain::new(&provider.open(&format!("mlx5_{card}")).expect("a card")).expect("a domain")
        };
        let first = workers - devices.workers;
        let prepared = (0..first).map(|own| Worker::prepare(&domain(own), settings, own, config).expect("prepared"));
        let (ours, mut announced): (Vec<_>, Vec<_>) = prepared.unzip();
        let prepared = (first..workers).map(|own| {
            let device = Device::new(&domain(own), devices.bytes, devices.polls);
            Worker::staged(device, settings, own, config).expect("prepared")
        });
        let (staged, of_staged): (Vec<_>, Vec<_>) = prepared.unzip();
        announced.extend(of_staged);
        change(&mut announced);
        let prepared = (0..aggregators)
            .map(|own| Aggregator::prepare(&domain(workers + own), settings, own, config).expect("prepared"));
        let (theirs, answers): (Vec<_>, Vec<_>) = prepared.unzip();
        let workers = ours.into_iter().map(|pending| pending.connect(&answers).expect("connected")).collect();
        let aggregators = theirs.into_iter().map(|pending| pending.connect(&announced).expect("connected")).collect();
        let staged = staged.into_iter().map(|pending| pending.connect(&answers).expect("connected")).collect();
        Self { provider, settings, workers, staged, aggregators }
    }

    /// An operation with all shards, in the order of arrival.
    #[must_use]
    pub fn call(&self, bytes: usize, reduction: Reduction) -> Call {
        let shards_of_each = self.settings.shards_of_each();
        Call { bytes: bytes as u64, shards_of_each, reduction, order: Order::Arrival }
    }

    /// Drives an operation to its end, whatever that is. Without a send array the contribution is in place. Whoever is
    /// dead calls nothing.
    ///
    /// # Panics
    /// It has no end.
    pub fn end(&mut self, call: Call, contributions: &[Vec<u8>], in_place: bool, dead: Option<Party>) -> Ends {
        self.end_with_death(call, contributions, in_place, dead.map(|party| (party, 0)))
    }

    /// The same, where somebody calls nothing any more after so many polls.
    ///
    /// # Panics
    /// As [`World::end`].
    pub fn end_with_death(
        &mut self,
        call: Call,
        contributions: &[Vec<u8>],
        in_place: bool,
        death: Option<(Party, usize)>,
    ) -> Ends {
        let dead = death.filter(|(_, after)| *after == 0).map(|(party, _)| party);
        let Self { provider, workers, staged, aggregators, .. } = self;
        let fresh =
            |contribution: &Vec<u8>| if in_place { contribution.clone() } else { vec![0xa5; contribution.len()] };
        let mut arrays: Vec<Vec<u8>> = contributions.iter().map(fresh).collect();
        let on_devices = |(send, receive): (&Vec<u8>, &Vec<u8>)| DeviceArrays {
            send: (!in_place).then(|| DeviceMemory::new(send)),
            receive: DeviceMemory::new(receive),
        };
        let first = workers.len();
        let mut device_arrays: Vec<DeviceArrays> =
            contributions.iter().zip(&arrays).skip(first).map(on_devices).collect();
        let is_alive = |party| Some(party) != dead;
        let alive = |count: usize, party: fn(u32) -> Party| (0..count as u32).map(move |own| is_alive(party(own)));
        let mut ends: Vec<Option<Result<(), Error>>> = alive(first + staged.len(), Party::Worker)
            .map(|is_alive| (!is_alive).then_some(Err(Error::Failed)))
            .collect();
        let mut others: Vec<Option<Result<(), Error>>> = alive(aggregators.len(), Party::Aggregator)
            .map(|is_alive| (!is_alive).then_some(Err(Error::Failed)))
            .collect();
        for (aggregator, end) in aggregators.iter_mut().zip(&mut others).filter(|(_, end)| end.is_none()) {
            *end = aggregator.begin(call).err().map(Err);
        }
        for (worker, _) in workers.iter_mut().zip(&ends).filter(|(_, end)| end.is_none()) {
            worker.begin(call).expect("begun");
        }
        for (worker, _) in staged.iter_mut().zip(&ends[first..]).filter(|(_, end)| end.is_none()) {
            worker.begin(call).expect("begun");
        }
        for poll in 0..MOST_POLLS {
            if let Some((party, _)) = death.filter(|(_, after)| *after == poll) {
                let end = match party {
                    Party::Worker(own) => &mut ends[own as usize],
                    Party::Aggregator(own) => &mut others[own as usize],
                };
                end.get_or_insert(Err(Error::Failed));
            }
            for (((worker, end), receive), send) in
                workers.iter_mut().zip(&mut ends).zip(&mut arrays).zip(contributions)
            {
                if end.is_none() {
                    let send = (!in_place).then_some(&send[..]);
                    let moved = worker.progress(&mut Arrays { send, receive }).map(drop);
                    *end = (moved.is_err() || worker.is_complete()).then_some(moved);
                }
            }
            for ((worker, end), array) in staged.iter_mut().zip(&mut ends[first..]).zip(&mut device_arrays) {
                if end.is_none() {
                    let moved = worker.progress(array).map(drop);
                    *end = (moved.is_err() || worker.is_complete()).then_some(moved);
                }
            }
            for (aggregator, end) in aggregators.iter_mut().zip(&mut others).filter(|(_, end)| end.is_none()) {
                let moved = aggregator.progress().map(drop);
                *end = (moved.is_err() || aggregator.is_complete()).then_some(moved);
            }
            if ends.iter().chain(&others).all(Option::is_some) {
                let all = |ends: Vec<Option<_>>| ends.into_iter().flatten().collect();
                for (array, on_device) in arrays[first..].iter_mut().zip(&device_arrays) {
                    *array = on_device.receive.to_vec();
                }
                let traffic = device_arrays.iter().map(DeviceArrays::traffic).collect();
                return Ends { workers: all(ends), aggregators: all(others), arrays, traffic };
            }
            provider.relax().relax();
        }
        panic!("hangs");
    }

    /// An operation that goes well; every worker gets the reduction. What accelerators have done with arrays.
    ///
    /// # Panics
    /// It does not.
    pub fn gets(&mut self, call: Call, contributions: &[Vec<u8>], in_place: bool) -> Vec<Traffic> {
        let Ends { workers, aggregators, arrays, traffic } = self.end(call, contributions, in_place, None);
        workers.into_iter().chain(aggregators).for_each(|end| end.expect("success"));
        let expected = reference(call.reduction, contributions);
        for (worker, array) in arrays.iter().enumerate() {
            assert!(
                *array == expected,
                "worker {worker} of {}: {} bytes, {}",
                arrays.len(),
                call.bytes,
                call.reduction
            );
        }
        traffic
    }

    /// Of all workers, and of all aggregators.
    #[must_use]
    pub fn statistics(&self) -> (Vec<Statistics>, Vec<Statistics>) {
        (
            self.workers.iter().map(Worker::statistics).chain(self.staged.iter().map(Worker::statistics)).collect(),
            self.aggregators.iter().map(Aggregator::statistics).collect(),
        )
    }
}

/// Numbers that a seed gives, one after another.
pub fn draws(seed: u64) -> impl FnMut() -> u64 {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 8
    }
}

/// Contributions of which a block is zero with this probability, in percent. No byte makes a number of any type that is
/// none, or endless; sums of so few are exact in every type but for those of half precision, whose order of addition is
/// that of workers here.
#[must_use]
pub fn contributions(workers: u32, bytes: usize, (block_bytes, zeros): (u32, u64), seed: u64) -> Vec<Vec<u8>> {
    let mut draw = draws(seed);
    let mut array = |_| {
        let mut array = vec![0_u8; bytes];
        for block in array.chunks_mut(block_bytes as usize) {
            if draw() % 100 >= zeros {
                block.iter_mut().for_each(|byte| *byte = (draw() % 0x3c) as u8);
                block[0] |= 1;
            }
        }
        array
    };
    (0..workers).map(&mut array).collect()
}
