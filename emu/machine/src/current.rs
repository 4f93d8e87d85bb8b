//! The world behind the C ABIs, which pass no handle for it.
//!
//! A thread of the host that calls [`configure`] gets a world of its own: tests run side by side, each with its machine.
//! Threads that never do share one default world, which is what a C program expects.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::error::MachineError;
use crate::world::World;

thread_local! {
    static OWN: RefCell<Option<World>> = const { RefCell::new(None) };
}

static SHARED: Mutex<Option<World>> = Mutex::new(None);

fn shared() -> MutexGuard<'static, Option<World>> {
    // A panic inside the machine is reported by the caller that saw it; the others may still tear down.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the calling thread a new world of its own. Handles into the one it had before are stale and answered with errors.
pub fn configure(config: Config) -> Result<(), MachineError> {
    let world = World::new(config)?;
    OWN.with(|own| *own.borrow_mut() = Some(world));
    Ok(())
}

/// Calls `f` with the calling thread's world, or else the shared one (made with the defaults at first use).
///
/// # Errors
/// The default configuration cannot be built (never, unless its constants are broken).
pub fn with_world<R>(f: impl FnOnce(&mut World) -> R) -> Result<R, MachineError> {
    OWN.with(|own| {
        if let Some(world) = own.borrow_mut().as_mut() {
            return Ok(f(world));
        }
        let mut shared = shared();
        if shared.is_none() {
            *shared = Some(World::new(Config::default())?);
        }
        match shared.as_mut() {
            Some(world) => Ok(f(world)),
            None => Err(MachineError::Cards(0)),
        }
    })
}
