//! Calls, event handlers, RTOS calls and crash records with the simple cost model.

#[path = "suites/threads.rs"]
mod suite;

fn machine() -> emu_machine::Config {
    emu_machine::Config { cards: 1, ..Default::default() }
}
