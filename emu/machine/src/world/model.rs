//! Times that a timing model gives to what lies outside the cores.

use emu_timing::Model;

use super::World;
use crate::card::Card;

impl World {
    fn of_model(&self, value: impl FnOnce(&Model) -> u64) -> Option<u64> {
        self.cards.first()?.cores.timed.as_deref().map(|timed| value(timed.model()))
    }

    /// From an event on an armed completion queue to the first instruction of its thread.
    pub(crate) fn activate_ps(&self) -> u64 {
        self.of_model(|model| model.activate_ps).unwrap_or(self.config.cost.activate_ps)
    }

    /// From a call of the host to the first instruction of its function, and back.
    pub(crate) fn rpc_ps(&self) -> u64 {
        self.of_model(|model| model.rpc_ps).unwrap_or(0)
    }

    /// What an instruction costs that costs nothing else.
    pub(crate) fn gap_cycles(&self, card: usize) -> u64 {
        let Some(Card { cores, .. }) = self.cards.get(card) else { return 1 };
        match cores.timed.as_deref() {
            Some(timed) => timed.model().gap_millicycles.div_ceil(1000),
            None => self.config.cost.gap_cycles,
        }
    }
}
