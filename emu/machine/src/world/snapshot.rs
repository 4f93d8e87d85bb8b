//! The state of the machine now.

use super::World;
use crate::dpa::statistics::Executed;
use crate::observe::race::Races;
use crate::observe::snapshot::{CardSnapshot, ProcessSnapshot, Snapshot};

impl World {
    /// What the threads of a card have executed, calls of the host included, those that were destroyed excluded;
    /// nothing where there is no such card. A thread that runs is counted as far as it has come, up to 512 cycles ahead
    /// of [`World::now_ps`].
    #[must_use]
    pub fn executed(&self, card: usize) -> Executed {
        let processes = self.cards.get(card).into_iter().flat_map(|card| card.processes.values());
        let threads = processes.flat_map(|process| process.threads.values());
        threads.map(Executed::of).fold(Executed::default(), |all, one| Executed {
            instructions: all.instructions + one.instructions,
            cycles: all.cycles + one.cycles,
        })
    }

    /// The state now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let card = |index: usize| {
            let card = &self.cards[index];
            let mut processes: Vec<_> = card.gone.iter().cloned().collect();
            processes.extend(card.processes.values().map(|process| ProcessSnapshot::of(process, false)));
            processes.sort_by_key(|process| process.id);
            CardSnapshot { index, processes, counters: *card.nic.counters(), port: self.port_counters(index) }
        };
        Snapshot {
            model: self.config.model_name().to_owned(),
            now_ps: self.now_ps,
            cards: (0..self.cards.len()).map(card).collect(),
            diagnoses: self.probes.diagnoses.clone(),
            races: self.watch.as_ref().and_then(|watch| watch.races.as_ref()).map(Races::snapshot),
        }
    }
}
