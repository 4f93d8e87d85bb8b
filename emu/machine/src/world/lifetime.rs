//! Memory, keys and windows that go while something on the card uses them: a card says nothing, and writes over what
//! comes there next.

use emu_nic::Space;

use super::World;
use crate::dpa::thread::ThreadState;
use crate::error::MachineError;
use crate::observe::diagnosis::{Gone, Symptom};

impl World {
    /// Reports that an allocation is about to go in which something of a queue lies; `false` if nothing does.
    pub(crate) fn explain_freed(&mut self, card: usize, process: u32, addr: u64) -> Result<bool, MachineError> {
        let on = self.card(card)?;
        let size = on.process(process)?.heap.size_at(addr);
        let Some((part, number)) = on.nic.queue_in(Space::Dpa(process), &(addr..addr + size)) else { return Ok(false) };
        self.diagnose_gone(card, process, Gone::Memory { addr, part, number });
        Ok(true)
    }

    /// Lets go of freed memory whose queues have been destroyed.
    pub(crate) fn release_held(&mut self, card: usize, process: u32) -> Result<(), MachineError> {
        let on = self.card(card)?;
        for (addr, size) in on.process(process)?.heap.held() {
            if on.nic.queue_in(Space::Dpa(process), &(addr..addr + size)).is_none() {
                on.process_mut(process)?.heap.release(addr);
            }
        }
        Ok(())
    }

    /// Reports that a memory key is about to be destroyed which an entry names that is posted on a queue pair of the
    /// DPA and not complete.
    pub fn explain_key_end(&mut self, card: usize, key: u32) {
        let mut found = None;
        if self.cards.get(card).is_some_and(|card| !card.processes.is_empty()) {
            self.nic_event(self.now_ps, card, |nic, dma, _| {
                // No access of the card's own.
                dma.watch = None;
                dma.timed = None;
                found = nic.posted_with_key(key, dma);
            });
        }
        let Some(entry) = found else { return };
        if let Some((process, _)) = self.owner_of_qp(card, entry.qpn) {
            self.diagnose_gone(card, process, Gone::Key { key, entry });
        }
    }

    /// Reports that a window has gone which a thread has configured that may run again.
    pub(crate) fn explain_window_end(&mut self, card: usize, process: u32, window: u32) {
        let Some(of) = self.cards.get(card).and_then(|card| card.processes.get(&process)) else { return };
        let uses = |configured: &Option<(u32, u32)>| configured.is_some_and(|(id, _)| id == window);
        let may_run = of.threads.values().filter(|thread| thread.state != ThreadState::Finished);
        let mut users = may_run.filter(|thread| thread.port.windows.iter().any(uses)).map(|thread| thread.id);
        let user = users.next();
        drop(users);
        if let Some(thread) = user {
            self.diagnose(card, (process, Some(thread)), Symptom::Gone(Gone::Window { window }));
        }
    }

    /// Of a process that runs: what a dead one used is used no more.
    fn diagnose_gone(&mut self, card: usize, process: u32, gone: Gone) {
        let runs = self.cards[card].processes.get(&process).is_some_and(|process| process.stopped().is_none());
        if runs {
            let qpn = match gone {
                Gone::Key { entry, .. } => Some(entry.qpn),
                Gone::Memory { .. } | Gone::Window { .. } => None,
            };
            let owner = qpn.and_then(|qpn| self.owner_of_qp(card, qpn)).unwrap_or((process, None));
            self.diagnose(card, owner, Symptom::Gone(gone));
        }
    }
}
