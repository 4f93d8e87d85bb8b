//! The world behind the C ABIs, which pass no handle for it.
//!
//! A thread of the host that calls [`configure`] gets a world of its own: tests run side by side, each with its
//! machine. Whoever has the [`Machine`] can take it to other threads: a provider enters its machine around each call.
//! Threads that never do share one world, which is what a C program expects. It is made at first use, with the defaults
//! or by the maker given to [`make_shared_with`], and a [`Driver`] may keep it going.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::config::Config;
use crate::error::MachineError;
use crate::world::World;

/// Keeps the shared world going by itself, so that time passes whether or not the program calls. It knows the wall
/// clock and what the world's outer end is joined to; the world knows neither. Its calls come under the lock that the
/// world is behind.
pub trait Driver: fmt::Debug + Send {
    /// Before a call on the world: what is due by now has happened when it returns.
    fn before(&mut self, world: &mut World);

    /// After a call, which may have made something due.
    fn after(&mut self, world: &mut World);

    /// A polling thread found nothing: lets the world run. What is returned is waited for without the lock.
    fn relax(&mut self, world: &mut World) -> Option<Box<dyn FnOnce() + Send>>;

    /// The program has asked to be notified of completions: it will sleep, and not poll only.
    fn will_sleep(&mut self);

    /// Whether nothing is on its way out, so that the process may end without others missing anything.
    fn is_quiet(&self, world: &World) -> bool;
}

/// The shared world and, if it has one, its driver.
#[derive(Debug)]
pub struct Shared {
    /// The world.
    pub world: World,
    /// What keeps it going; without one it moves inside calls only.
    pub driver: Option<Box<dyn Driver>>,
}

/// Makes the shared world. An error is reported to every call that needs the world.
pub type Maker = fn() -> Result<Shared, MachineError>;

/// Takes the events of the shared world to their receivers; called without the lock.
pub type EventHook = fn();

enum State {
    New,
    Ready(Box<Shared>),
    /// What the maker said.
    Failed(String),
}

/// A world that somebody owns: calls of the C functions reach it on the thread that made it, and on every thread
/// between [`Machine::enter`] and [`Machine::leave`]. A clone is the same machine.
#[derive(Clone, Debug)]
pub struct Machine(Arc<Mutex<World>>);

impl Machine {
    /// A new machine in virtual time 0.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn new(config: Config) -> Result<Self, MachineError> {
        Ok(Self(Arc::new(Mutex::new(World::new(config)?))))
    }

    /// Makes this the machine of the calling thread from now on. Handles into the one before are answered with errors
    /// on this thread, unless it enters their machine.
    pub fn attach(&self) {
        let before = OWN.with(|own| own.borrow_mut().replace(self.clone()));
        drop(before);
    }

    /// Calls `f` with the world. Calls of several threads follow one another.
    ///
    /// # Panics
    /// Inside another such call of the thread.
    pub fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let entered = self.enter();
        let result = OWN.with(|own| {
            let _inside = own.borrow_mut();
            f(&mut self.lock())
        });
        if entered {
            Self::leave();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // A panic inside the machine is reported by the caller that saw it; the others may still tear down.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this the calling thread's machine until [`Machine::leave`]. Returns `false` if it was so before: then
    /// there is nothing to leave.
    #[must_use]
    pub fn enter(&self) -> bool {
        OWN.with(|own| {
            let mut own = own.borrow_mut();
            if own.as_ref().is_some_and(|own| Arc::ptr_eq(&own.0, &self.0)) {
                return false;
            }
            let before = own.replace(self.clone());
            LEFT.with(|left| left.borrow_mut().push(before));
            true
        })
    }

    /// Gives the calling thread back the machine that it had before the last [`Machine::enter`] that returned `true`.
    pub fn leave() {
        let before = LEFT.with(|left| left.borrow_mut().pop());
        // Dropped outside the cell: the last count of a machine ends it.
        let left = before.and_then(|before| OWN.with(|own| std::mem::replace(&mut *own.borrow_mut(), before)));
        drop(left);
    }
}

thread_local! {
    static OWN: RefCell<Option<Machine>> = const { RefCell::new(None) };
    /// Machines to which the thread returns.
    static LEFT: RefCell<Vec<Option<Machine>>> = const { RefCell::new(Vec::new()) };
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

static SHARED: Mutex<State> = Mutex::new(State::New);
static MAKER: OnceLock<Maker> = OnceLock::new();
static HOOK: OnceLock<EventHook> = OnceLock::new();

fn shared() -> MutexGuard<'static, State> {
    // A panic inside the machine is reported by the caller that saw it; the others may still tear down.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says how the shared world is made. The first caller decides; after the world's first use it is too late.
pub fn make_shared_with(maker: Maker) {
    MAKER.get_or_init(|| maker);
}

/// Says who is notified when the driven shared world has events for the host. The first caller decides.
pub fn on_events(hook: EventHook) {
    HOOK.get_or_init(|| hook);
}

/// Gives the calling thread a new world of its own. Handles into the one it had before are answered with errors on this
/// thread, unless it enters their machine.
///
/// # Errors
/// A configuration that the machine refuses.
pub fn configure(config: Config) -> Result<Machine, MachineError> {
    let machine = Machine::new(config)?;
    machine.attach();
    Ok(machine)
}

fn ready(state: &mut State) -> Result<&mut Shared, MachineError> {
    if let State::New = state {
        let maker = MAKER.get().copied().unwrap_or(|| {
            let world = World::new(Config::default())?;
            Ok(Shared { world, driver: None })
        });
        *state = maker().map_or_else(|error| State::Failed(error.to_string()), |shared| State::Ready(Box::new(shared)));
    }
    match state {
        State::Ready(shared) => Ok(shared),
        State::Failed(reason) => Err(MachineError::NotMade(reason.clone())),
        State::New => Err(MachineError::Cards(0)),
    }
}

/// Calls `f` with the calling thread's world, or else the shared one, made at first use.
///
/// # Errors
/// The shared world cannot be made.
pub fn with_world<R>(f: impl FnOnce(&mut World) -> R) -> Result<R, MachineError> {
    OWN.with(|own| {
        if let Some(machine) = &*own.borrow_mut() {
            return Ok(f(&mut machine.lock()));
        }
        let mut state = shared();
        let Shared { world, driver } = &mut *ready(&mut state)?;
        let Some(driver) = driver else { return Ok(f(world)) };
        driver.before(world);
        let result = f(world);
        driver.after(world);
        let events = world.has_events();
        drop(state);
        if events {
            deliver_events();
        }
        Ok(result)
    })
}

/// Has the events taken. The receivers read the world themselves, which must not come here again.
fn deliver_events() {
    if let Some(hook) = HOOK.get()
        && !IN_HOOK.replace(true)
    {
        hook();
        IN_HOOK.set(false);
    }
}

/// Lets the calling thread's machine run between two polls of a host: see [`World::relax`]. A driven machine
/// runs as far as its driver lets it, and the call may wait a little for what comes next. `false` when nothing is due
/// until the host acts; something may always happen in a driven machine.
///
/// # Errors
/// The shared world cannot be made.
pub fn relax() -> Result<bool, MachineError> {
    OWN.with(|own| {
        if let Some(machine) = &*own.borrow_mut() {
            return Ok(machine.lock().relax());
        }
        let mut state = shared();
        let Shared { world, driver } = &mut *ready(&mut state)?;
        let Some(driver) = driver else { return Ok(world.relax()) };
        let wait = driver.relax(world);
        let events = world.has_events();
        drop(state);
        if events {
            deliver_events();
        } else if let Some(wait) = wait {
            wait();
        }
        Ok(true)
    })
}

/// Lets the shared world run once more for a process that is about to end: unlike [`relax`] it neither makes a world
/// nor waits for another thread that has it. Returns `None` if the process may end: the world is quiet, or moves inside
/// calls only. What is returned otherwise is waited for without the lock.
#[must_use]
pub fn run_out() -> Option<Box<dyn FnOnce() + Send>> {
    let mut state = match SHARED.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Some(Box::new(std::thread::yield_now)),
    };
    let State::Ready(shared) = &mut *state else { return None };
    let Shared { world, driver } = &mut **shared;
    let driver = driver.as_mut()?;
    let wait = driver.relax(world);
    (!driver.is_quiet(world)).then(|| wait.unwrap_or_else(|| Box::new(|| {})))
}

/// Calls `f` with the shared world if there is one, in a process that is about to end: makes none, and waits for
/// nobody. `false`: another thread has it now, and `f` was not called.
pub fn peek(f: impl FnOnce(&World)) -> bool {
    let state = match SHARED.try_lock() {
        Ok(state) => state,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    if let State::Ready(shared) = &*state {
        f(&shared.world);
    }
    true
}

/// Says that the program will sleep until it is notified of something: a driven machine then relies on nobody's
/// polling.
///
/// # Errors
/// The shared world cannot be made.
pub fn will_sleep() -> Result<(), MachineError> {
    OWN.with(|own| {
        if own.borrow().is_none()
            && let Some(driver) = &mut ready(&mut shared())?.driver
        {
            driver.will_sleep();
        }
        Ok(())
    })
}

/// Whether the calling thread has a machine of its own, and so no part in the shared one.
#[must_use]
pub fn has_own() -> bool {
    OWN.with(|own| own.borrow().is_some())
}

/// Whether the calling thread's machine is a driven one: it moves by itself, so a thread may sleep until it is
/// notified.
///
/// # Errors
/// The shared world cannot be made.
pub fn is_driven() -> Result<bool, MachineError> {
    OWN.with(|own| match own.borrow().as_ref() {
        Some(_) => Ok(false),
        None => Ok(ready(&mut shared())?.driver.is_some()),
    })
}
