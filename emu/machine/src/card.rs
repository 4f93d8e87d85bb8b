//! One BlueField-3: its network card, its execution units and the processes on them.

mod cores;
mod dma;

pub(crate) use dma::CardDma;

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use emu_nic::{CqTarget, Nic};

use crate::dpa::layout::{EXECUTION_UNITS, USER_EUS};
use crate::dpa::process::Process;
use crate::dpa::thread::Thread;
use crate::error::MachineError;
use crate::function::ArmSide;
use crate::near;
use crate::observe::snapshot::ProcessSnapshot;
use crate::timed::Timed;
use cores::Cores;

/// The execution unit of calls (RPCs), unless a handler has asked for it: public programs bind handlers to unit 0 and
/// up. Then calls are executed by [`OTHER_RPC_EU`]. Which units a card reserves is not published.
pub const RPC_EU: u32 = 0;
/// The unit of calls while a handler has [`RPC_EU`].
pub(crate) const OTHER_RPC_EU: u32 = 255;

/// A card with everything on it.
#[derive(Debug)]
pub struct Card {
    /// The network card: protection domains, memory keys, queues.
    pub nic: Nic,
    /// Control operations so far, of the host's function and of that of the Arm cores.
    pub(crate) commands: [u64; 2],
    /// Its Arm cores' function and memory, if the machine has them.
    pub(crate) arm: Option<ArmSide>,
    /// Processes by id.
    pub processes: BTreeMap<u32, Process>,
    /// Execution units that may be asked for.
    units: RangeInclusive<u32>,
    /// Thread on each execution unit.
    pub(crate) eus: Vec<Option<u32>>,
    /// What executes its threads.
    pub(crate) cores: Cores,
    /// Thread id to process id.
    pub(crate) owners: BTreeMap<u32, u32>,
    /// Processes that were destroyed last.
    pub(crate) gone: VecDeque<ProcessSnapshot>,
    pub(crate) next_process: u32,
    pub(crate) next_thread: u32,
}

impl Card {
    pub(crate) fn new(nic: Nic, units: RangeInclusive<u32>, arm: Option<ArmSide>, timed: Option<Timed>) -> Self {
        Card {
            nic,
            units,
            commands: [0; 2],
            arm,
            processes: BTreeMap::new(),
            eus: vec![None; EXECUTION_UNITS],
            cores: Cores::new(timed),
            owners: BTreeMap::new(),
            gone: VecDeque::new(),
            next_process: 1,
            next_thread: 1,
        }
    }

    /// Brings near what a turn of one of its threads begins with.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let fields = [
            std::ptr::from_ref(&self.processes).addr(),
            std::ptr::from_ref(&self.cores).addr(),
            std::ptr::from_ref(&self.owners).addr(),
        ];
        fields.into_iter().for_each(near::line);
    }

    /// Brings near what an event of its network card begins with.
    #[inline]
    pub(crate) fn prefetch_nic(&self) {
        near::object::<Nic>(std::ptr::from_ref(&self.nic).addr());
    }

    /// A live process.
    pub fn process(&self, id: u32) -> Result<&Process, MachineError> {
        self.processes.get(&id).ok_or(MachineError::NoProcess(id))
    }

    /// A live process, to change it.
    pub fn process_mut(&mut self, id: u32) -> Result<&mut Process, MachineError> {
        self.processes.get_mut(&id).ok_or(MachineError::NoProcess(id))
    }

    /// A process that still runs.
    pub fn healthy(&mut self, id: u32) -> Result<&mut Process, MachineError> {
        let process = self.process_mut(id)?;
        match process.stopped() {
            None => Ok(process),
            Some(reason) => Err(MachineError::ProcessStopped { process: id, reason }),
        }
    }

    /// A thread by its id.
    pub fn thread(&self, id: u32) -> Result<&Thread, MachineError> {
        let process = self.owners.get(&id).ok_or(MachineError::NoThread(id))?;
        self.process(*process)?.threads.get(&id).ok_or(MachineError::NoThread(id))
    }

    pub(crate) fn thread_mut(&mut self, id: u32) -> Result<&mut Thread, MachineError> {
        let process = *self.owners.get(&id).ok_or(MachineError::NoThread(id))?;
        self.process_mut(process)?.threads.get_mut(&id).ok_or(MachineError::NoThread(id))
    }

    /// The execution unit of calls.
    pub(crate) fn rpc_eu(&self) -> u32 {
        if self.eus[RPC_EU as usize].is_some() { OTHER_RPC_EU } else { RPC_EU }
    }

    /// Completion queues that start a thread.
    pub(crate) fn queues_of(&self, thread: u32) -> Vec<u32> {
        self.nic.completion_queues(|attr| attr.target == CqTarget::DpaThread(thread))
    }

    /// Picks the execution unit of a new event handler.
    pub(crate) fn pick_eu(&self, wanted: Option<u32>) -> Result<u32, MachineError> {
        let (first, last) = (*self.units.start(), *self.units.end());
        let refused = |eu, why| Err(MachineError::ExecutionUnit { eu, why, first, last });
        match wanted {
            Some(eu) if !USER_EUS.contains(&eu) => refused(eu, "reserved or absent"),
            Some(eu) if !self.units.contains(&eu) => refused(eu, "not of this partition"),
            Some(eu) if self.eus[eu as usize].is_some() => refused(eu, "taken by another thread"),
            Some(eu) => Ok(eu),
            // The unit of calls last: the vendor's own samples keep off it, too.
            None => {
                let (calls, others): (Vec<u32>, Vec<u32>) = self.units.clone().partition(|eu| *eu == RPC_EU);
                let mut free = others.into_iter().chain(calls).filter(|eu| self.eus[*eu as usize].is_none());
                free.next().ok_or(MachineError::NoFreeExecutionUnit { units: self.units.clone().count() })
            }
        }
    }

    /// Accesses of the threads by the level that served them; `None` with the simple cost model, which has no levels.
    #[must_use]
    pub fn access_counts(&self) -> Option<emu_timing::Counts> {
        self.cores.timed.as_deref().map(Timed::counts)
    }

    /// The same by the names of [`Card::label_range`], in the order in which they came up; nothing with the simple cost
    /// model.
    pub fn labelled_access_counts(&self) -> impl Iterator<Item = (&str, emu_timing::Counts)> {
        self.cores.timed.as_deref().into_iter().flat_map(Timed::labelled)
    }

    /// Counts accesses to `len` bytes at `addr` of a process's memory under a name from now on, too; several ranges may
    /// have one. False, and nothing changes, with the simple cost model, without such a process, and for an empty range
    /// or one that shares addresses with another of the process.
    pub fn label_range(&mut self, process: u32, addr: u64, len: u64, name: &str) -> bool {
        // Above are no device addresses, but other processes.
        let fits = addr.checked_add(len).is_some_and(|end| end <= 1 << 40) && self.processes.contains_key(&process);
        fits && self.cores.timed.as_deref_mut().is_some_and(|timed| timed.label(process, addr, len, name))
    }

    /// Instructions that each core has issued; `None` with the simple cost model.
    #[must_use]
    pub fn issues(&self) -> Option<Vec<u64>> {
        self.cores.timed.as_deref().map(Timed::issues)
    }
}
