//! N ranks on N emulated cards, all in the calling thread, connected for collectives without multicast.

use emu_machine::fabric::NetworkTotals;
use emu_machine::{Config, with_world};
use emu_provider::emulated;
use flexcast::p2p::algorithm::Operation;
use flexcast::p2p::{self, Connections, Error, Group};
use flexcast_proto::RankInfo;
use flexio::{Access, CompletionQueue, Device, HostBuffer, MemoryRegion, ProtectionDomain, Provider};

/// Connected ranks.
pub struct Ranks<'a> {
    /// Where they live.
    pub provider: &'a Provider,
    /// One for each rank, in order.
    pub groups: Vec<Group>,
    domains: &'a [ProtectionDomain],
}

/// Makes a machine with one card for each rank and connects ranks for `operations`; `body` does the rest.
///
/// # Errors
/// Those of the set-up and of `body`.
///
/// # Panics
/// The emulated machine cannot be made.
pub fn with_ranks<R>(
    machine: Config,
    operations: &[Operation],
    config: p2p::Config,
    body: impl FnOnce(&mut Ranks<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let ranks = machine.cards as u32;
    let provider = emulated(machine).expect("a valid configuration");
    let devices: Vec<Device> =
        (0..ranks).map(|rank| provider.open(&format!("mlx5_{rank}"))).collect::<Result<_, _>>()?;
    let domains: Vec<ProtectionDomain> = devices.iter().map(ProtectionDomain::new).collect::<Result<_, _>>()?;
    let connections: Vec<Connections> = (0..ranks)
        .map(|rank| Connections::new(RankInfo::new(rank, ranks).expect("few ranks"), operations, config))
        .collect::<Result<_, _>>()?;
    let queues: Vec<CompletionQueue> = devices
        .iter()
        .zip(&connections)
        .map(|(device, connections)| CompletionQueue::new(device, connections.completions()))
        .collect::<Result<_, _>>()?;
    let (mut pending, mut infos) = (Vec::new(), Vec::new());
    for ((connections, pd), queue) in connections.iter().zip(&domains).zip(&queues) {
        let (prepared, info) = connections.prepare(pd, queue)?;
        pending.push(prepared);
        infos.push(info);
    }
    let groups = pending.into_iter().map(|pending| pending.connect(&infos)).collect::<Result<Vec<_>, Error>>()?;
    body(&mut Ranks { provider: &provider, groups, domains: &domains })
}

impl<'a> Ranks<'a> {
    /// Memory of a rank that peers may write, with these bytes at its start and at least one byte.
    ///
    /// # Errors
    /// It cannot be registered.
    pub fn memory(&self, rank: usize, len: usize, bytes: &[u8]) -> Result<MemoryRegion, Error> {
        let mut buffer = HostBuffer::zeroed(len.max(1))?;
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        Ok(MemoryRegion::register(&self.domains[rank], buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?)
    }

    /// The protection domain of a rank.
    #[must_use]
    pub fn domain(&self, rank: usize) -> &'a ProtectionDomain {
        &self.domains[rank]
    }

    /// Lets all ranks greet one another, which otherwise goes with the first operation.
    ///
    /// # Errors
    /// The first failure.
    pub fn greet(&mut self) -> Result<(), Error> {
        let mut is_over = false;
        while !is_over {
            is_over = true;
            for group in &mut self.groups {
                is_over &= group.greet()?;
            }
            self.provider.relax().relax();
        }
        Ok(())
    }

    /// Lets all ranks that have started something finish it.
    ///
    /// # Errors
    /// The first failure.
    pub fn finish(&mut self) -> Result<(), Error> {
        while self.groups.iter().any(|group| !group.is_complete()) {
            for group in &mut self.groups {
                group.progress()?;
            }
            self.provider.relax().relax();
        }
        Ok(())
    }

    /// What each rank's operation ends with, driven until all have ended.
    pub fn outcomes(&mut self) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Option<Result<(), Error>>> = self.groups.iter().map(|_| None).collect();
        while outcomes.iter().any(Option::is_none) {
            for (group, outcome) in self.groups.iter_mut().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
                *outcome = match group.progress() {
                    Err(error) => Some(Err(error)),
                    Ok(()) => group.is_complete().then_some(Ok(())),
                };
            }
            self.provider.relax().relax();
        }
        outcomes.into_iter().flatten().collect()
    }
}

/// The bytes of a region, read out.
///
/// # Panics
/// `len` is longer than the region.
#[must_use]
pub fn bytes_of(region: &MemoryRegion, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(0, &mut bytes).expect("inside the region");
    bytes
}

/// What the ports of the calling thread's network have seen.
///
/// # Panics
/// The cards are joined by a cable.
#[must_use]
pub fn network_totals() -> NetworkTotals {
    with_world(|world| world.network().map(|network| network.totals())).ok().flatten().expect("a network")
}
