//! Ranks with service processes on the Arm cores of emulated cards, and what they exchange.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};

use emu_machine::{FunctionId, MachineError};
use emu_provider::Emulated;
use flexcast_proto::service::wire::{Endpoint, Group, NO_CORE, Place};
use flexcast_proto::service::{
    Blocks, ContextId, Datatype, Limits, LocalCopies, Locality, Region, SharedList, Topology,
};
use flexcast_service::{Agent, AgentCounts, AgentLimits, Client, LocalCopy, MemoryId, PeerId};
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

use super::ServiceError;
use super::staged::{Buffers, StagedPlan};

pub(super) const GROUP: u32 = 7;
/// Blocks that the shared list of a card has room for.
const LIST: u64 = 1 << 20;
/// Polls in which nothing happens before something counts as hanging.
const MOST_POLLS: u32 = 2_000_000;
/// Polls of the service processes for each of the hosts' programs, where these do nothing but wait.
const HOST_POLLS: u32 = 64;

/// Ranks, hosts and service processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Hosts, with a card each.
    pub hosts: u32,
    /// Ranks on each.
    pub ranks_per_host: u32,
    /// Service processes on each card; no more than ranks.
    pub processes_per_host: u32,
}

impl Shape {
    /// All ranks.
    #[must_use]
    pub const fn ranks(self) -> u32 {
        self.hosts * self.ranks_per_host
    }
}

/// What ranks exchange: bytes of each block, made up from who has it, for whom it is, and the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of a block.
    pub bytes: u64,
    /// Blocks have 0 to 6 times as many bytes, by who has them and for whom they are.
    pub varies: bool,
}

impl Load {
    /// Bytes that `source` has for `target` in an Alltoallv.
    #[must_use]
    pub fn between(self, source: u32, target: u32) -> u64 {
        if self.varies { u64::from((source * 5 + target * 3) % 7) * self.bytes } else { self.bytes }
    }

    /// Bytes of a rank's block in an Allgatherv.
    #[must_use]
    pub fn of(self, source: u32) -> u64 {
        if self.varies { u64::from(source % 4) * self.bytes + 3 } else { self.bytes }
    }
}

/// What ranks call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceOp {
    /// A block from each to each.
    Alltoallv,
    /// A block of each to all.
    Allgatherv,
    /// The root's message to all, through memory of the cards.
    Broadcast,
    /// A block of each to all, all of one length, through memory of the cards.
    Allgather,
}

impl ServiceOp {
    /// Whether the data goes through memory of the cards.
    #[must_use]
    pub const fn is_staged(self) -> bool {
        matches!(self, Self::Broadcast | Self::Allgather)
    }
}

impl std::fmt::Display for ServiceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Alltoallv => "Ialltoallv",
            Self::Allgatherv => "Iallgatherv",
            Self::Broadcast => "Ibcast",
            Self::Allgather => "Iallgather",
        })
    }
}

/// The program of one rank, with a send and a receive buffer.
#[derive(Debug)]
pub struct Rank {
    /// Its connection to its service process.
    pub client: Client,
    host: u32,
    pub(super) send: MemoryId,
    receive: MemoryId,
    /// By group: buffers of staged collectives.
    pub(super) staged: Vec<Buffers>,
    pub(super) is_dead: bool,
}

/// All ranks and service processes, on one emulated machine.
#[derive(Debug)]
pub struct World {
    pub(super) shape: Shape,
    pub(super) load: Load,
    pub(super) plan: Option<StagedPlan>,
    /// Who copies blocks of an Allgatherv inside a host; first the hosts.
    pub local_copies: LocalCopies,
    pub(super) machine: Emulated,
    /// The service processes, host by host; none that are gone.
    pub agents: Vec<Option<Agent>>,
    /// By service process: the connections that others have to it.
    known: Vec<Vec<(usize, PeerId)>>,
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// By rank: its service process, and the connection that this one has to it.
    served: Vec<(usize, PeerId)>,
    pub(super) places: Vec<Place>,
    pub(super) topology: Topology,
    most_active_reads: u32,
    polls: u32,
    /// Polls of the service processes for each of the hosts' programs.
    host_polls: u32,
}

pub(super) fn content(source: u32, target: u32, turn: u32, len: u64) -> impl Iterator<Item = u8> {
    let start = u64::from(source) * 31 + u64::from(target) * 17 + u64::from(turn) * 101;
    (0..len).map(move |at| (at * 7 + start) as u8)
}

/// Displacements of blocks that lie one behind the other.
pub(super) fn places(counts: &[u64]) -> Vec<u64> {
    let mut end = 0;
    let next = |count: &u64| {
        end += count;
        end - count
    };
    counts.iter().map(next).collect()
}

pub(super) const fn blocks<'b>(region: Region, counts: &'b [u64], displs: &'b [u64]) -> Blocks<'b> {
    let datatype = Datatype { size_bytes: 1, extent_bytes: 1 };
    Blocks { address: region.address, key: region.key, datatype, counts, displs }
}

pub(super) fn memory(pd: &ProtectionDomain, bytes: u64) -> Result<MemoryRegion, ServiceError> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Ok(MemoryRegion::register(pd, HostBuffer::zeroed(bytes.max(1) as usize)?, access)?)
}

/// Lets time pass until a service process has answered for all keys that a program has offered.
pub(super) fn await_keys(machine: &Emulated, agent: &mut Agent, client: &mut Client) -> Result<(), ServiceError> {
    let mut polls = 0;
    while client.awaits_keys() {
        polls += 1;
        if polls > MOST_POLLS {
            return Err(ServiceError::Hangs { what: "aliases of keys", polls });
        }
        if !agent.progress()? && !client.progress()? {
            machine.provider.relax().relax();
        }
    }
    Ok(())
}

/// Endpoint of a service process, by its number.
fn endpoint(process: u32) -> Endpoint {
    Endpoint { address: Ipv6Addr::LOCALHOST, port: 4000 + process as u16 }
}

impl World {
    /// Starts service processes and ranks on a machine that has a card for each host, with a second function; returns
    /// when all ranks have joined their group.
    ///
    /// # Errors
    /// The machine or a service process refuses.
    pub fn new(machine: Emulated, shape: Shape, load: Load, limits: Limits) -> Result<Self, ServiceError> {
        Self::with(machine, shape, load, limits, None)
    }

    /// The same with staged collectives, and then with no others.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn with(
        machine: Emulated,
        shape: Shape,
        load: Load,
        limits: Limits,
        plan: Option<StagedPlan>,
    ) -> Result<Self, ServiceError> {
        Self::with_keys(machine, shape, load, limits, plan, 0)
    }

    /// The same, and each program has so many keys to bind to its memory.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn with_keys(
        machine: Emulated,
        shape: Shape,
        load: Load,
        limits: Limits,
        plan: Option<StagedPlan>,
        keys: u16,
    ) -> Result<Self, ServiceError> {
        // A process serves one rank at least.
        let processes_per_host = shape.processes_per_host.min(shape.ranks_per_host);
        let shape = Shape { processes_per_host, ..shape };
        let domain =
            |name: &str| -> Result<_, ServiceError> { Ok(ProtectionDomain::new(&machine.provider.open(name)?)?) };
        let mut agents = Vec::new();
        for host in 0..shape.hosts {
            let list = Arc::new(Mutex::new(SharedList::new(LIST)));
            for process in 0..shape.processes_per_host {
                let pd = domain(&format!("mlx5_{host}_arm"))?;
                let number = host * shape.processes_per_host + process;
                let limits = AgentLimits { machine: limits, ..AgentLimits::default() };
                let limits = plan.map_or(limits, |plan| plan.limits(number, limits));
                let endpoint = endpoint(number);
                agents.push(Agent::new(&pd, endpoint, Arc::clone(&list), limits)?);
            }
        }
        let mut known = vec![Vec::new(); agents.len()];
        for one in 0..agents.len() {
            for other in one + 1..agents.len() {
                let (to_other, end) = agents[one].open_process(endpoint(other as u32))?;
                let (to_one, far) = agents[other].open_process(endpoint(one as u32))?;
                agents[one].connect(to_other, far)?;
                agents[other].connect(to_one, end)?;
                known[other].push((one, to_other));
                known[one].push((other, to_one));
            }
        }
        let is_strided = plan.is_some_and(|plan| plan.is_strided);
        let host_of = |rank: u32| if is_strided { rank % shape.hosts } else { rank / shape.ranks_per_host };
        let locality = |rank: u32| Locality { host: host_of(rank), socket: 0 };
        let localities: Vec<Locality> = (0..shape.ranks()).map(locality).collect();
        let topology = Topology::new(&localities, shape.processes_per_host)?;
        let process_of = |rank: u32| topology.process_of(rank).unwrap_or(0);
        let place = |(rank, locality): (u32, &Locality)| Place {
            locality: *locality,
            core: NO_CORE,
            process: endpoint(process_of(rank)),
        };
        let places: Vec<Place> = (0..).zip(&localities).map(place).collect();
        let (mut ranks, mut served) = (Vec::new(), Vec::new());
        for rank in 0..shape.ranks() {
            let host = host_of(rank);
            let pd = domain(&format!("mlx5_{host}"))?;
            let (mut client, end) = Client::open(&pd)?;
            let process = process_of(rank) as usize;
            let (peer, far) = agents[process].open_program()?;
            agents[process].connect(peer, end)?;
            client.connect(far)?;
            client.offer_keys(keys)?;
            await_keys(&machine, &mut agents[process], &mut client)?;
            let all = 0..shape.ranks();
            let most = |other| load.between(rank, other).max(load.between(other, rank)).max(load.of(other));
            let most: u64 = if plan.is_some() { 0 } else { all.map(most).sum() };
            let send = client.share(memory(&pd, most)?)?;
            let receive = client.share(memory(&pd, most)?)?;
            client.join(&Group::new(GROUP, 0x77, rank, shape.processes_per_host, &places)?)?;
            let mut staged = Vec::new();
            if plan.is_some() {
                staged.push(Buffers::new(&mut client, &pd, GROUP, rank, shape.ranks(), load.bytes)?);
            }
            ranks.push(Rank { client, host, send, receive, staged, is_dead: false });
            served.push((process, peer));
        }
        let (most_active_reads, polls) = (0, 0);
        let agents = agents.into_iter().map(Some).collect();
        let mut world = Self {
            shape,
            load,
            plan,
            local_copies: LocalCopies::Host,
            machine,
            agents,
            known,
            ranks,
            served,
            places,
            topology,
            most_active_reads,
            polls,
            host_polls: HOST_POLLS,
        };
        world.drive("all ranks join", |world| {
            for (rank, state) in (0..).zip(&mut world.ranks) {
                let staged = state.staged.iter().flat_map(Buffers::memories);
                for memory in [state.send, state.receive].into_iter().chain(staged) {
                    if state.client.key(memory)?.is_none() {
                        return Ok(false);
                    }
                }
                if !state.client.has_joined(GROUP, rank)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(world)
    }

    /// From now on hosts poll whenever service processes do: they have a part in the collectives. A poll of an idle
    /// machine takes up to a microsecond, so that with fewer polls every step of theirs would come up to `HOST_POLLS`
    /// microseconds late.
    pub fn let_hosts_poll_always(&mut self) {
        self.host_polls = 1;
    }

    /// The time of the machine, in picoseconds.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.machine.provider.relax().now_ps()
    }

    /// Lets virtual time go on, and the service processes with it; the hosts do nothing.
    ///
    /// # Errors
    /// A service process has failed.
    pub fn let_pass(&mut self) -> Result<bool, ServiceError> {
        let mut any = false;
        for agent in self.agents.iter_mut().flatten() {
            any |= agent.progress()?;
            self.most_active_reads = self.most_active_reads.max(agent.active_reads());
        }
        if !any {
            self.machine.provider.relax().relax();
        }
        Ok(any)
    }

    /// Lets the programs of the hosts handle their messages, and copy blocks between ranks of a host; whether there
    /// was anything.
    fn hosts(&mut self) -> Result<bool, ServiceError> {
        let mut any = false;
        for number in 0..self.ranks.len() {
            if self.ranks[number].is_dead {
                continue;
            }
            any |= self.ranks[number].client.progress()?;
            while let Some(copy) = self.ranks[number].client.next_copy() {
                any = true;
                self.copy(number, &copy)?;
            }
        }
        Ok(any)
    }

    fn copy(&mut self, number: usize, copy: &LocalCopy) -> Result<(), ServiceError> {
        let holder = &self.ranks[copy.holder as usize];
        let regions = [holder.send, holder.receive].map(|memory| holder.client.region(memory));
        let has = |region: &&MemoryRegion| {
            let start = region.addr().get();
            (start..start + region.len() as u64).contains(&copy.from.address)
        };
        let region = regions.into_iter().find(has).filter(|_| holder.host == self.ranks[number].host);
        let region = region.ok_or(ServiceError::Elsewhere { holder: copy.holder, address: copy.from.address })?;
        let mut bytes = vec![0; copy.from.bytes as usize];
        region.read((copy.from.address - region.addr().get()) as usize, &mut bytes)?;
        let counts: Vec<u64> = (0..self.shape.ranks()).map(|rank| self.load.of(rank)).collect();
        let place = places(&counts)[copy.source as usize] as usize;
        let own = &mut self.ranks[number];
        own.client.region(own.receive).write(place, &bytes)?;
        match own.client.copied(copy) {
            // Nobody wants to know any more.
            Err(flexcast_service::Error::Gone) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Lets all go on until something is over.
    ///
    /// # Errors
    /// A service process or a rank has failed; [`ServiceError::Hangs`].
    pub fn drive(
        &mut self,
        what: &'static str,
        mut is_over: impl FnMut(&mut Self) -> Result<bool, ServiceError>,
    ) -> Result<(), ServiceError> {
        let mut in_vain = 0;
        loop {
            let is_turn = self.polls.is_multiple_of(self.host_polls);
            self.polls = self.polls.wrapping_add(1);
            let mut any = self.let_pass()?;
            if is_turn {
                any |= self.hosts()?;
                if is_over(self)? {
                    return Ok(());
                }
            }
            in_vain = if any { 0 } else { in_vain + 1 };
            if in_vain > MOST_POLLS {
                return Err(ServiceError::Hangs { what, polls: MOST_POLLS });
            }
        }
    }

    fn key(&self, rank: u32, memory: impl Fn(&Rank) -> MemoryId) -> Result<Region, ServiceError> {
        let state = &self.ranks[rank as usize];
        let order = flexcast_service::Error::Order {
            what: "a call with memory that is not shared yet",
            next: "wait for `key`",
        };
        Ok(state.client.key(memory(state))?.ok_or(order)?)
    }

    /// Bytes that a rank sends, or is to receive.
    fn lengths(&self, op: ServiceOp, rank: u32) -> (Vec<u64>, Vec<u64>) {
        let all = 0..self.shape.ranks();
        match op {
            ServiceOp::Alltoallv => {
                all.map(|other| (self.load.between(rank, other), self.load.between(other, rank))).unzip()
            }
            ServiceOp::Allgatherv => (vec![self.load.of(rank)], all.map(|other| self.load.of(other)).collect()),
            ServiceOp::Broadcast | ServiceOp::Allgather => (Vec::new(), Vec::new()),
        }
    }

    /// Writes what a rank sends in a turn, and calls.
    ///
    /// # Errors
    /// Its service process is gone.
    pub fn call(&mut self, op: ServiceOp, rank: u32, turn: u32) -> Result<ContextId, ServiceError> {
        let (to, from) = self.lengths(op, rank);
        let (to_displs, from_displs) = (places(&to), places(&from));
        let data: Vec<u8> = (0..).zip(&to).flat_map(|(other, len)| content(rank, other, turn, *len)).collect();
        let (send, receive) = (self.key(rank, |rank| rank.send)?, self.key(rank, |rank| rank.receive)?);
        let Rank { client, send: own, receive: gathered, .. } = &mut self.ranks[rank as usize];
        client.region(*own).write(0, &data)?;
        client.region(*gathered).fill(0xA5);
        let receive = blocks(receive, &from, &from_displs);
        Ok(match op {
            ServiceOp::Alltoallv => client.alltoallv(GROUP, rank, &blocks(send, &to, &to_displs), &receive)?,
            ServiceOp::Allgatherv => {
                let send = Region { bytes: to[0], ..send };
                client.allgatherv(GROUP, rank, Some(send), &receive, self.local_copies)?
            }
            ServiceOp::Broadcast | ServiceOp::Allgather => {
                let reason = "goes through memory of the cards: `post` it".to_owned();
                return Err(ServiceError::Option { what: "a staged collective", reason });
            }
        })
    }

    /// A rank takes its send and receive buffers back, and shares others of the same lengths; returns once its service
    /// process can use them.
    ///
    /// # Errors
    /// As [`World::drive`].
    pub fn share_anew(&mut self, rank: u32) -> Result<(), ServiceError> {
        let state = &mut self.ranks[rank as usize];
        let old = [state.send, state.receive];
        old.iter().try_for_each(|memory| state.client.take_back(*memory))?;
        let mut back = Vec::new();
        self.drive("memory comes back", |world| {
            let client = &mut world.ranks[rank as usize].client;
            back.extend(old.iter().filter_map(|memory| client.taken_back(*memory)));
            Ok(back.len() == old.len())
        })?;
        let state = &mut self.ranks[rank as usize];
        let pd = state.client.pd().clone();
        let lengths: Vec<u64> = back.iter().map(|region| region.len() as u64).collect();
        // One that is as long stays, so that the new one has other addresses.
        let most = lengths.into_iter().max().unwrap_or(1);
        state.send = state.client.share(memory(&pd, most)?)?;
        state.receive = state.client.share(memory(&pd, most)?)?;
        self.drive("memory is shared", |world| {
            let state = &world.ranks[rank as usize];
            Ok(state.client.key(state.send)?.is_some() && state.client.key(state.receive)?.is_some())
        })
    }

    /// Send and receive buffer of a rank.
    #[must_use]
    pub fn memory(&self, rank: u32) -> [MemoryId; 2] {
        let state = &self.ranks[rank as usize];
        [state.send, state.receive]
    }

    /// Whether a rank has got every byte of a turn.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn is_right(&self, op: ServiceOp, rank: u32, turn: u32) -> Result<bool, ServiceError> {
        if op.is_staged() {
            return self.is_right_in(0, op, rank, turn);
        }
        let (_, from) = self.lengths(op, rank);
        let target = if op == ServiceOp::Alltoallv { rank } else { 0 };
        let expected: Vec<u8> = (0..).zip(&from).flat_map(|(other, len)| content(other, target, turn, *len)).collect();
        let state = &self.ranks[rank as usize];
        let mut found = vec![0; expected.len()];
        state.client.region(state.receive).read(0, &mut found)?;
        Ok(found == expected)
    }

    /// Whether all flags are there: read in the ranks' memory, without a call that does anything.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn are_flagged(&self, contexts: &[ContextId]) -> Result<bool, ServiceError> {
        for ((rank, state), context) in (0..).zip(&self.ranks).zip(contexts) {
            if !state.client.is_flagged(*context, rank)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all ranks have ended a collective well.
    ///
    /// # Errors
    /// It has failed.
    pub fn end_all(&mut self, contexts: &[ContextId]) -> Result<(), ServiceError> {
        self.drive("a collective", |world| {
            for ((rank, state), context) in (0..).zip(&mut world.ranks).zip(contexts) {
                if !state.client.end(*context, rank)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// All ranks leave their group.
    ///
    /// # Errors
    /// A service process is gone.
    pub fn leave(&mut self) -> Result<(), ServiceError> {
        for (rank, state) in (0..).zip(&mut self.ranks) {
            state.client.leave(GROUP, rank)?;
        }
        self.drive("all ranks leave", |world| {
            Ok((0..).zip(&world.ranks).all(|(rank, state)| state.client.has_left(GROUP, rank)))
        })
    }

    /// Another program of its host says that it is a rank that has joined already.
    ///
    /// # Errors
    /// [`ServiceError::Service`] with the refusal, as it should be.
    pub fn join_again(&mut self, rank: u32) -> Result<(), ServiceError> {
        let (process, host) = (self.served[rank as usize].0, self.ranks[rank as usize].host);
        let pd = ProtectionDomain::new(&self.machine.provider.open(&format!("mlx5_{host}"))?)?;
        let (mut client, end) = Client::open(&pd)?;
        let Some(agent) = &mut self.agents[process] else { return Ok(()) };
        let (peer, far) = agent.open_program()?;
        agent.connect(peer, end)?;
        client.connect(far)?;
        client.join(&Group::new(GROUP, 0x77, rank, self.shape.processes_per_host, &self.places)?)?;
        self.drive("the other program is answered", |_| {
            client.progress()?;
            Ok(client.has_joined(GROUP, rank)?)
        })
    }

    /// The program of a rank is gone, and its service process sees it.
    pub fn lose(&mut self, rank: u32) {
        let (process, peer) = self.served[rank as usize];
        self.ranks[rank as usize].is_dead = true;
        if let Some(agent) = &mut self.agents[process] {
            agent.lose(peer);
        }
    }

    /// A service process is gone, and all others and its ranks see it.
    pub fn lose_process(&mut self, process: usize) {
        self.agents[process] = None;
        for (other, peer) in &self.known[process] {
            if let Some(agent) = &mut self.agents[*other] {
                agent.lose(*peer);
            }
        }
        for (rank, _) in self.ranks.iter_mut().zip(&self.served).filter(|(_, (of, _))| *of == process) {
            rank.client.lose();
        }
    }

    /// Whether a rank's program is gone.
    #[must_use]
    pub fn is_dead(&self, rank: u32) -> bool {
        self.ranks[rank as usize].is_dead
    }

    /// The service process of a rank.
    #[must_use]
    pub fn process_of(&self, rank: u32) -> usize {
        self.served[rank as usize].0
    }

    /// What all service processes have done together.
    #[must_use]
    pub fn counts(&self) -> AgentCounts {
        self.agents.iter().flatten().map(Agent::counts).fold(AgentCounts::default(), |sum, one| sum + one)
    }

    /// Most Reads that any service process has had under way.
    #[must_use]
    pub const fn most_active_reads(&self) -> u32 {
        self.most_active_reads
    }

    /// Calls of the hosts' programs that say something to a service process.
    #[must_use]
    pub fn host_calls(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.client.calls()).sum()
    }

    /// Bytes that the cards have moved to and from the memory of their Arm cores.
    ///
    /// # Errors
    /// The machine has no Arm cores.
    pub fn arm_bytes(&self) -> Result<u64, MachineError> {
        (0..self.shape.hosts as usize).map(|card| self.arm_bytes_of(card)).sum()
    }

    fn arm_bytes_of(&self, card: usize) -> Result<u64, MachineError> {
        let traffic = self.machine.machine.with(|world| world.arm_traffic(card))?;
        Ok(traffic.read_bytes + traffic.written_bytes)
    }

    /// Bytes of frames that all cards have sent into the network.
    ///
    /// # Errors
    /// The machine has fewer cards.
    pub fn sent_bytes(&self) -> Result<u64, MachineError> {
        (0..self.shape.hosts as usize).map(|card| self.sent_bytes_of(card)).sum()
    }

    /// The same of one card.
    ///
    /// # Errors
    /// The machine has no such card.
    pub fn sent_bytes_of(&self, card: usize) -> Result<u64, MachineError> {
        self.machine.machine.with(|world| Ok(world.card(card)?.nic.counters().tx_bytes))
    }

    /// Control operations of a card's Arm function so far.
    ///
    /// # Errors
    /// The machine has no such card.
    pub fn arm_commands(&self, card: usize) -> Result<u64, MachineError> {
        self.machine.machine.with(|world| world.command_count(FunctionId::arm(card)))
    }
}
