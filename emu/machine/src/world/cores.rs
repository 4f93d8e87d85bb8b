//! Turns of the cores of a card under a timing model.

use super::World;
use super::ready::Near;
use super::schedule::QUANTUM_CYCLES;
use crate::card::Card;
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::timed::{CORES_TURN, Pause, Surroundings, Timed};

/// Cycles that the cores run at a time at least, if nothing else is due.
const LEAST_QUANTUM_CYCLES: u64 = 64;

impl World {
    /// A thread goes on at a cycle: its next instruction is to be executed then.
    pub(crate) fn resume(&mut self, cycles: u64, card: usize, id: u32) {
        let Card { processes, owners, cores, .. } = &mut self.cards[card];
        let Some(process) = owners.get(&id).and_then(|process| processes.get(process)) else { return };
        let Some(thread) = process.threads.get(&id) else { return };
        let Some(timed) = cores.timed.as_deref_mut() else {
            return self.ready.insert((cycles, card, id), Near::new(thread, process));
        };
        timed.resume(thread, cycles);
        self.schedule_cores(cycles, card);
    }

    /// The cores of a card have something to do at a cycle.
    fn schedule_cores(&mut self, cycles: u64, card: usize) {
        let Some(timed) = self.cards[card].cores.timed.as_deref_mut() else { return };
        if let Some(turn) = timed.turn {
            if turn <= cycles {
                return;
            }
            self.ready.remove((turn, card, CORES_TURN));
        }
        timed.turn = Some(cycles);
        self.ready.insert((cycles, card, CORES_TURN), Near::default());
    }

    /// Runs the cores of a card until something that they may see is due or a thread needs the world.
    pub(crate) fn run_cores(&mut self, at_cycles: u64, card_index: usize) {
        self.ready.run((at_cycles, card_index, CORES_TURN));
        self.now_ps = self.now_ps.max(cycles_to_ps(at_cycles));
        let horizon = self.horizon(card_index);
        let mut quantum = QUANTUM_CYCLES;
        if let Some(timed) = self.cards[card_index].cores.timed.as_deref_mut() {
            timed.turn = None;
            // What the card does for a doorbell of one core, other cores have not run past yet.
            quantum = quantum.min(ps_to_cycles(timed.model().doorbell_visible_ps).max(LEAST_QUANTUM_CYCLES));
        }
        let end = (at_cycles + quantum).min(horizon.max(at_cycles + 1));
        if let Some((id, pause)) = self.issue_until(end, card_index) {
            let cycles = self.cards[card_index].thread(id).map_or(end, |thread| thread.hart.cycles);
            match pause {
                Pause::Outbox(store) => {
                    self.resume(cycles, card_index, id);
                    self.outbox(cycles_to_ps(cycles), card_index, id, store);
                }
                Pause::Stop(stop, detail) => self.stopped(card_index, id, stop, detail),
                Pause::Watchdog => self.overran(card_index, id),
            }
        }
        if let Some(next) = self.cards[card_index].cores.timed.as_deref().and_then(Timed::next_at) {
            self.schedule_cores(next, card_index);
        }
    }

    fn issue_until(&mut self, end: u64, index: usize) -> Option<(u32, Pause)> {
        let Card { nic, processes, cores, .. } = &mut self.cards[index];
        let timed = cores.timed.as_deref_mut()?;
        let (host, images, most_ahead) = (&self.host, &mut self.images, self.config.most_ahead);
        timed.issue_until(end, Surroundings { card: index, nic, processes, host, images, most_ahead })
    }
}
