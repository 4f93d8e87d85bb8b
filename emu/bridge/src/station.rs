//! Stations at the free end of a cable: a packet generator, a reflector, a capture that is played, and a tap device.

mod generator;
mod reflector;
mod replay;
// Requests to the system about network interfaces.
#[allow(unsafe_code)]
mod tap;

pub use generator::GeneratorReport;

use emu_config::Machine;
use emu_machine::{Station, World};

use crate::error::BridgeError;

/// The station of a description, if it has one.
pub(crate) fn of(machine: &Machine, world: &mut World) -> Result<Option<Box<dyn Station>>, BridgeError> {
    if let Some(table) = &machine.generator {
        let destination = world.card(0)?.nic.address().mac;
        return Ok(Some(Box::new(generator::Generator::new(table, destination)?)));
    }
    if let Some(table) = &machine.reflector {
        return Ok(Some(Box::new(reflector::Reflector::new(table))));
    }
    if let Some(table) = &machine.tap {
        return Ok(Some(Box::new(tap::Tap::open(table)?)));
    }
    let replay = machine.replay.as_ref().map(|table| replay::Replay::read(&table.capture));
    Ok(replay.transpose()?.map(|replay| Box::new(replay) as Box<dyn Station>))
}
