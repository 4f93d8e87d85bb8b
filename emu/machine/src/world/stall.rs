//! Execution units that stand still for a while, as when the card's own services take them.

use crate::dpa::layout::USER_EUS;
use crate::error::MachineError;
use crate::time::ps_to_cycles;
use crate::world::World;
use crate::world::ready::Near;

impl World {
    /// The threads that are on execution unit `unit` of a card now execute nothing until `until_ps`: one that runs goes
    /// on then, one that is started before starts then. Nothing is lost, and watchdogs count on. A later call can only
    /// make it longer.
    ///
    /// # Errors
    /// No such card, or a unit that event handlers cannot have.
    pub fn stall_unit(&mut self, card: usize, unit: u32, until_ps: u64) -> Result<(), MachineError> {
        if !USER_EUS.contains(&unit) {
            return Err(MachineError::ExecutionUnit {
                eu: unit,
                why: "none of an event handler",
                first: *USER_EUS.start(),
                last: *USER_EUS.end(),
            });
        }
        let until_cycles = ps_to_cycles(until_ps);
        let mut moved = Vec::new();
        for process in self.card(card)?.processes.values_mut() {
            for thread in process.threads.values_mut() {
                // A start takes the later of its own time and the thread's.
                if thread.port.eu == unit && thread.hart.cycles < until_cycles {
                    moved.push((thread.hart.cycles, thread.id));
                    thread.hart.cycles = until_cycles;
                }
            }
        }
        for (cycles, id) in moved {
            if self.ready.remove((cycles, card, id)) {
                self.ready.insert((until_cycles, card, id), Near::default());
            }
        }
        Ok(())
    }
}
