//! Memory of a card as its network card sees it.

use std::collections::BTreeMap;

use emu_nic::{Dma, DmaFault, Space};

use crate::dpa::process::Process;
use crate::dpa::thread::ThreadState;
use crate::function::ArmSide;
use crate::host_memory::HostMemory;
use crate::host_process::HostProcess;
use crate::observe::race::{Agent, Range};
use crate::observe::watch::Watch;
use crate::timed::Timed;

/// The memories of a card as its network card sees them.
pub(crate) struct CardDma<'a> {
    pub(crate) host: &'a HostMemory,
    /// Other processes of the host.
    pub(crate) others: &'a BTreeMap<u32, HostProcess>,
    /// Its Arm cores with their memory, if the machine has them.
    pub(crate) arm: Option<&'a ArmSide>,
    pub(crate) processes: &'a mut BTreeMap<u32, Process>,
    pub(crate) watch: Option<&'a mut Watch>,
    pub(crate) timed: Option<&'a mut Timed>,
    /// Index of the card.
    pub(crate) card: usize,
    pub(crate) at_ps: u64,
}

impl CardDma<'_> {
    /// The network card has read or written memory that may hold doorbell records.
    #[cold]
    fn touch(&mut self, space: Space, addr: u64, len: usize) {
        if let Some(races) = self.watch.as_deref_mut().and_then(|watch| watch.races.as_mut()) {
            races.records.touch(Range { card: self.card, space, addr, len: len as u64 }, self.at_ps);
        }
    }

    /// Another process of the host, unless it is gone.
    fn other(&self, number: u32, addr: u64, len: usize) -> Result<&HostProcess, DmaFault> {
        self.others.get(&number).ok_or(DmaFault { addr, len: len as u64 })
    }

    #[cold]
    fn observe(&mut self, space: Space, addr: u64, data: &[u8]) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        let agent = Agent::Card { qpn: None, entry: None };
        match space {
            Space::Host | Space::HostProcess(_) | Space::Arm => {
                if let Some(races) = &mut watch.races {
                    let range = Range { card: self.card, space, addr, len: data.len() as u64 };
                    races.written(range, &agent, self.at_ps);
                }
            }
            Space::Dpa(id) => {
                if let Some(process) = self.processes.get(&id) {
                    watch.will_write((self.card, id), &process.memory, (addr, data.len()), &agent, self.at_ps);
                }
            }
        }
        // A completion gives memory back only once it is there.
        if let Some(races) = &mut watch.races {
            races.card_wrote(self.card, space, addr, data);
        }
    }
}

impl Dma for CardDma<'_> {
    fn read(&mut self, space: Space, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        if self.watch.is_some() {
            self.touch(space, addr, out.len());
        }
        match space {
            Space::Host => self.host.read(addr, out),
            Space::HostProcess(number) => self.other(number, addr, out.len())?.read(addr, out),
            Space::Arm => self.arm.ok_or(DmaFault { addr, len: out.len() as u64 })?.read(addr, out),
            Space::Dpa(id) => match self.processes.get_mut(&id) {
                Some(process) => {
                    if let Some(timed) = self.timed.as_deref_mut() {
                        timed.before_access(id, addr, out.len() as u64, &mut process.memory);
                    }
                    process.memory.dma_read(addr, out)
                }
                None => Err(DmaFault { addr, len: out.len() as u64 }),
            },
        }
    }

    fn write(&mut self, space: Space, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        if self.watch.is_some() {
            self.observe(space, addr, data);
            self.touch(space, addr, data.len());
        }
        match space {
            Space::Host => self.host.write_by(self.card, addr, data),
            Space::HostProcess(number) => self.other(number, addr, data.len())?.write(addr, data),
            Space::Arm => self.arm.ok_or(DmaFault { addr, len: data.len() as u64 })?.write(addr, data),
            Space::Dpa(id) => match self.processes.get_mut(&id) {
                Some(process) => {
                    if let Some(timed) = self.timed.as_deref_mut() {
                        timed.before_access(id, addr, data.len() as u64, &mut process.memory);
                    }
                    process.memory.dma_write(addr, data)?;
                    if let Some(timed) = self.timed.as_deref_mut() {
                        timed.written_by_card(id, addr, data.len() as u64);
                    }
                    // The card's writes are coherent with the threads' loads: stale copies of the lines are dropped,
                    // and reservations on them are lost.
                    if self.timed.as_deref().is_none_or(Timed::has_reserved) {
                        for thread in process.threads.values_mut() {
                            if thread.state == ThreadState::Running {
                                thread.l1.invalidate(addr, data.len() as u64);
                                thread.hart.break_reservation(addr, data.len() as u64);
                            }
                        }
                    }
                    Ok(())
                }
                None => Err(DmaFault { addr, len: data.len() as u64 }),
            },
        }
    }
}
