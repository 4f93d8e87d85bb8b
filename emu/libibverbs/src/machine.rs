//! The calling thread's machine, as the calls of the C ABI use it.

pub(crate) use emu_bridge::with_world;
use emu_machine::nic::{Nic, NicError};
use emu_machine::{FunctionId, World};

use crate::errno::{Errno, Result};
use crate::fork;

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

/// Whether the cards are another process's.
///
/// # Errors
/// That process is not there.
pub(crate) fn is_elsewhere() -> Result<bool> {
    Ok(emu_bridge::attached()?.is_some())
}

/// A control operation of a function begins: it is counted, and its time passes.
///
/// # Errors
/// There is no machine, or no such function.
pub(crate) fn begin_command(id: FunctionId) -> Result<()> {
    if is_elsewhere()? {
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

/// Lets the calling thread's machine run between two polls of a host; `false` when nothing is due until the
/// host acts.
pub fn relax() -> bool {
    !fork::is_child() && emu_bridge::relax().unwrap_or(false)
}

/// Whether the calling thread's machine moves by itself, at most as fast as the wall clock.
pub fn is_bridged() -> bool {
    !fork::is_child() && emu_bridge::is_driven().unwrap_or(false)
}
