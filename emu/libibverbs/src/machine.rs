//! The calling thread's machine, as the calls of the C ABI use it.

use emu_machine::nic::{Nic, NicError};
use emu_machine::{FunctionId, MachineError, World};

use crate::card;

use crate::errno::{Errno, Result};
use crate::fork;

/// As [`emu_bridge::with_world`]. Where the machine's description says that others use its cards, it is this library that serves them.
///
/// # Errors
/// As there.
pub(crate) fn with_world<R>(f: impl FnOnce(&mut World) -> R) -> std::result::Result<R, MachineError> {
    emu_bridge::serve_with(card::session::begin);
    emu_bridge::with_world(f)
}

/// Calls `f` with the machine; what the machine, a card or `f` refuses is one error.
///
/// # Errors
/// There is no machine, or those of `f`.
pub(crate) fn on_machine<R, E>(f: impl FnOnce(&mut World) -> std::result::Result<R, E>) -> Result<R>
where
    Errno: From<E>,
{
    Ok(with_world(f)??)
}

/// A control operation of a function begins: it is counted, and its time passes.
///
/// # Errors
/// There is no machine, or no such function.
pub(crate) fn begin_command(id: FunctionId) -> Result<()> {
    if card::is_elsewhere()? {
        // The process that has the card counts what comes to it.
        return Ok(());
    }
    on_machine(|world| world.begin_command(id))
}

/// Calls `f` with the network card of a card.
///
/// # Errors
/// There is no machine or no such card, or those of `f`.
pub(crate) fn on_nic<R>(card: usize, f: impl FnOnce(&mut Nic) -> std::result::Result<R, NicError>) -> Result<R> {
    on_machine(|world| Ok::<_, Errno>(f(&mut world.card(card)?.nic)?))
}

/// Lets the calling thread's machine run between two looks of a polling host; `false` when nothing is due until the host
/// acts.
pub fn relax() -> bool {
    !fork::is_child() && emu_bridge::relax().unwrap_or(false)
}

/// Whether the calling thread's machine moves by itself, at most as fast as the wall clock.
pub fn is_bridged() -> bool {
    !fork::is_child() && emu_bridge::is_driven().unwrap_or(false)
}

/// Virtual time of the calling thread's machine, in picoseconds.
#[must_use]
pub fn now_ps() -> u64 {
    if fork::is_child() {
        return 0;
    }
    match emu_bridge::attached() {
        Ok(Some(link)) => card::remote::now_ps(link),
        _ => with_world(|world| world.now_ps()).unwrap_or(0),
    }
}
