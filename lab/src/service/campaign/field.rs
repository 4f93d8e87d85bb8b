//! Service processes of all cards, which outlive the jobs that they serve.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_proto::service::SharedList;
use flexcast_proto::service::wire::Endpoint;
use flexcast_service::{Agent, AgentLimits, AgentStatus, PeerId};
use flexio::ProtectionDomain;

use super::super::ServiceError;
use super::case::Case;

/// Blocks that the shared list of a card has room for.
const LIST: u64 = 1 << 20;

/// The service processes.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) machine: Emulated,
    pub(super) agents: Vec<Option<Agent>>,
    per_host: usize,
    limits: AgentLimits,
    lists: Vec<Arc<Mutex<SharedList>>>,
    /// By process and another one: the first one's connection to the second.
    known: BTreeMap<(usize, usize), PeerId>,
    /// Until when a process does nothing.
    pub(super) stalled: BTreeMap<usize, u64>,
}

/// Where a service process listens.
pub(super) fn endpoint(process: usize) -> Endpoint {
    Endpoint { address: Ipv6Addr::LOCALHOST, port: 4000 + process as u16 }
}

impl Field {
    /// All processes of a case, connected to one another.
    pub(super) fn new(case: &Case, staging_bytes: u64) -> Result<Self, ServiceError> {
        let config = Machine {
            arm_functions: true,
            loss_ppm: (case.loss_ppm > 0).then_some(case.loss_ppm),
            seed: Some(case.seed | 1),
            ..Machine::default()
        };
        let mut config = config.config_of(case.shape.hosts.max(2) as usize)?;
        config.heap_bytes = 1 << 20;
        // Most of the time passes while a card waits for an acknowledgement that is lost.
        config.host_idle_ps = 20_000_000;
        let machine = Emulated::new(config)?;
        let per_host = case.shape.processes_per_host as usize;
        let limits = AgentLimits {
            machine: case.limits,
            bound_keys: case.most_bound_keys,
            staging: Some(case.staging),
            staging_bytes,
            ..AgentLimits::default()
        };
        let list = || Arc::new(Mutex::new(SharedList::new(LIST)));
        let lists = (0..case.shape.hosts).map(|_| list()).collect();
        let agents = (0..case.shape.hosts as usize * per_host).map(|_| None).collect();
        let (known, stalled) = (BTreeMap::new(), BTreeMap::new());
        let mut field = Self { machine, agents, per_host, limits, lists, known, stalled };
        field.replace()?;
        Ok(field)
    }

    /// Starts each process that is not there, and connects it to the others.
    pub(super) fn replace(&mut self) -> Result<(), ServiceError> {
        // The list is memory of the processes of a card: it is gone with the last of them.
        for (list, agents) in self.lists.iter_mut().zip(self.agents.chunks(self.per_host)) {
            if agents.iter().all(Option::is_none) {
                *list = Arc::new(Mutex::new(SharedList::new(LIST)));
            }
        }
        for process in 0..self.agents.len() {
            if self.agents[process].is_some() {
                continue;
            }
            let host = process / self.per_host;
            let pd = ProtectionDomain::new(&self.machine.provider.open(&format!("mlx5_{host}_arm"))?)?;
            let mut agent = Agent::new(&pd, endpoint(process), Arc::clone(&self.lists[host]), self.limits)?;
            for (number, other) in self.agents.iter_mut().enumerate() {
                let Some(other) = other else { continue };
                let (to_other, end) = agent.open_process(endpoint(number))?;
                let (to_one, far) = other.open_process(endpoint(process))?;
                agent.connect(to_other, far)?;
                other.connect(to_one, end)?;
                self.known.insert((process, number), to_other);
                self.known.insert((number, process), to_one);
            }
            self.agents[process] = Some(agent);
        }
        Ok(())
    }

    /// The time of the machine, in picoseconds.
    pub(super) fn now_ps(&self) -> u64 {
        self.machine.provider.relax().now_ps()
    }

    /// Lets the processes go on, or time where they have nothing to do; whether they had.
    pub(super) fn go_on(&mut self) -> Result<bool, ServiceError> {
        let mut any = false;
        let now_ps = self.now_ps();
        self.stalled.retain(|_, until_ps| *until_ps > now_ps);
        for (number, agent) in self.agents.iter_mut().enumerate() {
            if let Some(agent) = agent.as_mut().filter(|_| !self.stalled.contains_key(&number)) {
                any |= agent.progress()?;
            }
        }
        if !any {
            self.machine.provider.relax().relax();
        }
        Ok(any)
    }

    /// A process learns that another one is gone.
    pub(super) fn notice(&mut self, of: usize, dead: usize) {
        if let (Some(agent), Some(peer)) = (&mut self.agents[of], self.known.get(&(of, dead))) {
            agent.lose(*peer);
        }
    }

    /// What a process that serves nobody must not have, if one has it.
    pub(super) fn leak(&self) -> Option<String> {
        let there = self.agents.iter().flatten().count() as u64;
        let others = there.saturating_sub(1);
        let idle = AgentStatus { processes: others, queue_pairs: others, ..AgentStatus::default() };
        for (number, agent) in self.agents.iter().enumerate() {
            let Some(agent) = agent else { continue };
            let (state, staging_bytes) = (agent.status(), agent.staging_bytes());
            if state != idle || staging_bytes > 0 {
                return Some(format!(
                    "service process {number} still has {state:?} and {staging_bytes} bytes of staging memory, \
                     expected {idle:?} and none"
                ));
            }
        }
        let blocks = |list: &Arc<Mutex<SharedList>>| list.lock().unwrap_or_else(PoisonError::into_inner).len();
        let cards = self.lists.iter().zip(self.agents.chunks(self.per_host));
        let living = cards.filter(|(_, agents)| agents.iter().any(Option::is_some));
        let left: Vec<_> = living.map(|(list, _)| blocks(list)).collect();
        left.iter().any(|blocks| *blocks > 0).then(|| format!("blocks on the shared lists of the cards: {left:?}"))
    }
}
