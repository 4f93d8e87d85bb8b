//! Groups of ranks.

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use flexcast_rust::Communicator;
use nix::sys::eventfd::EventFd;

use crate::bootstrap::{Bootstrap, flexcast_bootstrap};
use crate::config::{self, flexcast_config, number_of};
use crate::creation::Creation;
use crate::endpoint::{EndpointSlot, EndpointUse, OpenEndpoint, flexcast_endpoint};
use crate::event;
use crate::fault::{Fault, call};
use crate::handle::{self, Code, Kind};
use crate::memory::{count, out};
use crate::status::flexcast_status::{self, *};

/// Ranks that broadcast and gather among one another. Made by flexcast_comm_create() or flexcast_comm_split().
pub struct flexcast_comm {
    _opaque: [u8; 0],
}

/// Colour of a rank that is in none of the communicators that flexcast_comm_split() makes.
pub const FLEXCAST_UNDEFINED: i32 = -1;

/// Memory of failed operations that the card could not be made to let go.
struct Held {
    endpoint: EndpointUse,
    claims: Vec<u64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.endpoint.endpoint().claims.release(&self.claims);
    }
}

/// How far a communicator is.
enum Stage {
    /// Of a split the part, if this rank is in one.
    Making(Arc<Creation<Option<Communicator>>>),
    Failed(Fault),
    /// The rank is in no part.
    Outside,
    Ready(Ready),
    Freed,
}

struct Ready {
    // Dropped before what it reaches.
    communicator: Communicator,
    /// Its control, and why it is not the one of its parameters, if so.
    control: (u32, Option<CString>),
}

impl Ready {
    fn new(communicator: Communicator) -> Self {
        let report = communicator.control();
        let reason = report.reason.as_ref().map(|reason| CString::new(reason.replace('\0', " ")).unwrap_or_default());
        let control = (number_of(report.control), reason);
        let (rank, ranks) = (communicator.rank(), communicator.size());
        tracing::info!(
            rank,
            ranks,
            control = report.control.name(),
            reason = report.reason.as_deref(),
            "communicator is ready"
        );
        Self { communicator, control }
    }
}

/// A communicator, and what it stands on.
pub(crate) struct Group {
    stage: RwLock<Stage>,
    endpoint: Arc<OpenEndpoint>,
    /// The handle of the endpoint.
    endpoint_handle: usize,
    /// What flexcast_init() has made with it, and others have made by it.
    bootstrap: Option<Arc<Bootstrap>>,
    /// Whether the endpoint is closed with it.
    owns_endpoint: bool,
    /// None once it is freed: requests may outlive it.
    held: Mutex<Option<Held>>,
    /// Operations that are not over.
    under_way: AtomicU32,
    /// Counts operations that have ended, if somebody asked for it.
    ended: OnceLock<EventFd>,
}

impl Kind for Group {
    type Handle = flexcast_comm;
    const CODE: Code = Code::Communicator;
}

impl Group {
    fn new(stage: Stage, endpoint: EndpointUse, endpoint_handle: *mut flexcast_endpoint) -> Self {
        let open = Arc::clone(endpoint.endpoint());
        let held = Mutex::new(Some(Held { endpoint, claims: Vec::new() }));
        Self {
            stage: RwLock::new(stage),
            endpoint: open,
            endpoint_handle: endpoint_handle.addr(),
            bootstrap: None,
            owns_endpoint: false,
            held,
            under_way: AtomicU32::new(0),
            ended: OnceLock::new(),
        }
    }

    /// A part of this one.
    fn part(&self, stage: Stage, endpoint: EndpointUse) -> Arc<Self> {
        let bootstrap = self.bootstrap.clone();
        Arc::new(Self { bootstrap, ..Self::new(stage, endpoint, self.endpoint_handle()) })
    }

    fn endpoint_handle(&self) -> *mut flexcast_endpoint {
        std::ptr::without_provenance_mut(self.endpoint_handle)
    }

    pub(crate) fn endpoint(&self) -> &Arc<OpenEndpoint> {
        &self.endpoint
    }

    /// An operation begins: until it has ended the communicator stays.
    pub(crate) fn begin(&self) -> Result<Communicator, Fault> {
        let stage = self.read()?;
        let communicator = Self::ready(&stage)?.communicator.clone();
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Ok(communicator)
    }

    /// One could not be begun.
    pub(crate) fn begun_in_vain(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// An operation is over. Its memory is the program's again, unless the card may still reach it.
    pub(crate) fn end(&self, claims: &[u64], held: bool) {
        if held {
            self.held().iter_mut().for_each(|kept| kept.claims.extend(claims));
        } else {
            self.endpoint().claims.release(claims);
        }
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        // Nothing of it is ever half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever was to be notified of the end of an operation was notified.
    pub(crate) fn count(&self) {
        if let Some(ended) = self.ended.get() {
            event::count(ended);
        }
    }

    /// Whether the ends of operations are counted.
    pub(crate) fn is_watched(&self) -> bool {
        self.ended.get().is_some()
    }

    fn read(&self) -> Result<std::sync::RwLockReadGuard<'_, Stage>, Fault> {
        self.stage.read().map_err(|_| poisoned())
    }

    fn ready(stage: &Stage) -> Result<&Ready, Fault> {
        match stage {
            Stage::Ready(ready) => Ok(ready),
            Stage::Making(_) => {
                let text = "the communicator is being made: call flexcast_comm_test() until it is ready";
                Err(Fault::new(FLEXCAST_ERROR_BUSY, text))
            }
            Stage::Failed(fault) => Err(fault.clone()),
            Stage::Outside => Err(Fault::new(
                FLEXCAST_ERROR_ARGUMENT,
                "this rank is in none of the parts: it can only free the handle",
            )),
            Stage::Freed => Err(Fault::new(FLEXCAST_ERROR_HANDLE, "the communicator was freed")),
        }
    }

    /// Uses the communicator.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&Communicator) -> Result<R, Fault>) -> Result<R, Fault> {
        // A clone: what is called may call back.
        let communicator = Self::ready(&*self.read()?)?.communicator.clone();
        body(&communicator)
    }

    /// The own rank, and how many there are.
    pub(crate) fn place(&self) -> Result<(u32, u32), Fault> {
        self.with(|communicator| Ok((communicator.rank(), communicator.size())))
    }

    /// Goes on with making it; whether it is ready.
    fn test(&self) -> Result<bool, Fault> {
        let creation = match &*self.read()? {
            Stage::Making(creation) => Arc::clone(creation),
            Stage::Failed(fault) => return Err(fault.clone()),
            Stage::Ready(_) | Stage::Outside | Stage::Freed => return Ok(true),
        };
        // Outside of the lock: functions of the program may call back.
        let Some(made) = creation.poll(Duration::ZERO) else { return Ok(false) };
        let (stage, failed) = match made {
            Ok(Some(communicator)) => (Stage::Ready(Ready::new(communicator)), Ok(true)),
            Ok(None) => (Stage::Outside, Ok(true)),
            Err(fault) => (Stage::Failed(fault.clone()), Err(fault)),
        };
        let mut now = self.stage.write().map_err(|_| poisoned())?;
        if matches!(*now, Stage::Making(_)) {
            *now = stage;
        }
        failed
    }

    /// Gives the communicator up, unless operations use it.
    fn free(&self) -> Result<(), Fault> {
        let taken = {
            let mut stage = self.stage.write().map_err(|_| poisoned())?;
            let others = self.endpoint.users().saturating_sub(1);
            if self.owns_endpoint && others > 0 {
                let text = format!(
                    "the endpoint is closed with this communicator of flexcast_init(), and has {others} others: free \
                     them first"
                );
                return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
            }
            let under_way = self.under_way.load(Ordering::Relaxed);
            if under_way > 0 {
                let text = format!(
                    "{under_way} operations of the communicator are not over: wait for their requests, or cancel and \
                     wait"
                );
                return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
            }
            if let Stage::Making(creation) = &*stage {
                creation.abandon();
            }
            std::mem::replace(&mut *stage, Stage::Freed)
        };
        // Outside of the lock: a progress thread ends, which may be in a callback.
        drop(taken);
        drop(self.held().take());
        if self.owns_endpoint {
            // Who has closed it before has freed the handle.
            let _ = handle::remove::<EndpointSlot>(self.endpoint_handle());
        }
        Ok(())
    }
}

/// The communicator of flexcast_init().
pub(crate) struct World;

impl World {
    /// Its handle, once it is made.
    pub(crate) fn handle(
        endpoint: Arc<EndpointSlot>,
        bootstrap: Arc<Bootstrap>,
        made: Option<Communicator>,
        used: EndpointUse,
    ) -> Result<*mut flexcast_comm, Fault> {
        let endpoint_handle = handle::insert(endpoint)?;
        let group = Group::new(made_of(made), used, endpoint_handle);
        handle::insert(Arc::new(Group { bootstrap: Some(bootstrap), owns_endpoint: true, ..group }))
            .inspect_err(|_| drop(handle::remove::<EndpointSlot>(endpoint_handle)))
    }
}

fn made_of(made: Option<Communicator>) -> Stage {
    made.map_or(Stage::Outside, |communicator| Stage::Ready(Ready::new(communicator)))
}

fn poisoned() -> Fault {
    Fault::new(FLEXCAST_ERROR_INTERNAL, "the communicator cannot be used any more: a call of it panicked")
}

/// What is being made, and the use of the endpoint for it.
type Making = (Creation<Option<Communicator>>, EndpointUse);

/// Begins to make a communicator.
///
/// # Safety
/// `config` is null or a configuration of the caller, as long as it says.
pub(crate) unsafe fn create(
    endpoint: &Arc<OpenEndpoint>,
    bootstrap: &Arc<Bootstrap>,
    config: *const flexcast_config,
) -> Result<Making, Fault> {
    // SAFETY: by this function's contract.
    let config = unsafe { config::read(config, endpoint.endpoint()) }?;
    let mut in_use = bootstrap.take()?;
    // Both the thread and the handle use the endpoint.
    let (used, by_thread) = (EndpointUse::new(endpoint), EndpointUse::new(endpoint));
    let creation = Creation::start(bootstrap.gatherer(), move || {
        let made = Communicator::create(by_thread.endpoint().endpoint(), in_use.exchange()?, config)?;
        drop((in_use, by_thread));
        Ok(Some(made))
    })?;
    Ok((creation, used))
}

/// The same by handles.
///
/// # Safety
/// As for [`create`].
unsafe fn create_by(
    endpoint: *mut flexcast_endpoint,
    bootstrap: *mut flexcast_bootstrap,
    config: *const flexcast_config,
) -> Result<Making, Fault> {
    let endpoint = handle::get::<EndpointSlot>(endpoint)?.open()?;
    // SAFETY: by this function's contract.
    unsafe { create(&endpoint, &handle::get::<Bootstrap>(bootstrap)?, config) }
}

/// Begins to part the ranks of a communicator.
fn split(group: &Arc<Group>, bootstrap: *mut flexcast_bootstrap, color: c_int, key: i64) -> Result<Making, Fault> {
    let bootstrap = match &group.bootstrap {
        Some(own) if bootstrap.is_null() => Arc::clone(own),
        _ => handle::get::<Bootstrap>(bootstrap)?,
    };
    let colour = if color == FLEXCAST_UNDEFINED { None } else { Some(count(color, "color")?) };
    let whole = group.with(|communicator| Ok(communicator.clone()))?;
    let mut in_use = bootstrap.take()?;
    let (used, by_thread) = (EndpointUse::new(&group.endpoint), EndpointUse::new(&group.endpoint));
    let creation = Creation::start(bootstrap.gatherer(), move || {
        let made = whole.split(in_use.exchange()?, colour, key)?;
        drop((in_use, whole, by_thread));
        Ok(made)
    })?;
    Ok((creation, used))
}

/// Makes a communicator of all ranks of a bootstrap. All of them call it, with the same configuration (NULL: the
/// defaults, and what variables say). It blocks as long as the bootstrap's exchanges do. A rank that fails is named by
/// all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_create(
    endpoint: *mut flexcast_endpoint,
    bootstrap: *mut flexcast_bootstrap,
    config: *const flexcast_config,
    comm: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(comm, "comm") }?;
        // SAFETY: as the header asks of the caller.
        let (creation, used) = unsafe { create_by(endpoint, bootstrap, config) }?;
        let stage = made_of(creation.wait()?);
        place.put(handle::insert(Arc::new(Group::new(stage, used, endpoint)))?);
        Ok(())
    })
}

/// The same without blocking: `comm` becomes a handle at once, which flexcast_comm_test() and flexcast_comm_free() take
/// until the communicator is ready. The configuration need not stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_create_begin(
    endpoint: *mut flexcast_endpoint,
    bootstrap: *mut flexcast_bootstrap,
    config: *const flexcast_config,
    comm: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(comm, "comm") }?;
        // SAFETY: as the header asks of the caller.
        let (creation, used) = unsafe { create_by(endpoint, bootstrap, config) }?;
        place.put(handle::insert(Arc::new(Group::new(Stage::Making(Arc::new(creation)), used, endpoint)))?);
        Ok(())
    })
}

/// Parts the ranks of a communicator, as MPI_Comm_split does: those of one colour (0 or more) become a communicator, in
/// the order of their keys and then of their ranks. A rank of colour FLEXCAST_UNDEFINED gets NULL and FLEXCAST_OK. All
/// ranks call it, with the bootstrap that the communicator was made with; NULL for one of flexcast_init(), and its
/// parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_split(
    comm: *mut flexcast_comm,
    bootstrap: *mut flexcast_bootstrap,
    color: c_int,
    key: i64,
    part: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(part, "part") }?;
        let group = handle::get::<Group>(comm)?;
        let (creation, endpoint) = split(&group, bootstrap, color, key)?;
        let handle = match creation.wait()? {
            Some(communicator) => handle::insert(group.part(Stage::Ready(Ready::new(communicator)), endpoint))?,
            None => std::ptr::null_mut(),
        };
        place.put(handle);
        Ok(())
    })
}

/// The same without blocking, as flexcast_comm_create_begin(). A rank of colour FLEXCAST_UNDEFINED gets a handle, too,
/// which it tests until it is ready, and frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_split_begin(
    comm: *mut flexcast_comm,
    bootstrap: *mut flexcast_bootstrap,
    color: c_int,
    key: i64,
    part: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(part, "part") }?;
        let group = handle::get::<Group>(comm)?;
        let (creation, endpoint) = split(&group, bootstrap, color, key)?;
        place.put(handle::insert(group.part(Stage::Making(Arc::new(creation)), endpoint))?);
        Ok(())
    })
}

/// Whether a communicator is ready (`ready` becomes 1) or still being made (0); goes on with making it. If it could not
/// be made the status says why, now and later; then it is only to be freed. To be called by all ranks until it is
/// ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_test(comm: *mut flexcast_comm, ready: *mut c_int) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(ready, "ready") }?;
        place.put(0);
        place.put(handle::get::<Group>(comm)?.test()?.into());
        Ok(())
    })
}

/// Frees a communicator; the others need not be asked. Its progress thread, if it has one, has ended when this returns,
/// unless it is the one that calls. Refused (FLEXCAST_ERROR_BUSY) while an operation is under way: wait for it, or
/// cancel it and wait. One of flexcast_init() closes its endpoint, and is refused while the endpoint has others. One
/// that is being made is given up: then the bootstrap can only be freed, too, and the others learn it by their own
/// bounds. Until the library's attempt has ended, at most the bootstrap's timeout later, to free the bootstrap and to
/// close the endpoint are refused (FLEXCAST_ERROR_BUSY): try again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_free(comm: *mut flexcast_comm) -> flexcast_status {
    call(|| {
        handle::get::<Group>(comm)?.free()?;
        handle::remove::<Group>(comm).map(drop)
    })
}

/// The own rank, and how many there are. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_rank(
    comm: *mut flexcast_comm,
    rank: *mut c_int,
    size: *mut c_int,
) -> flexcast_status {
    call(|| {
        let group = handle::get::<Group>(comm)?;
        let (own, all) = group.place()?;
        for (place, value) in [(rank, own), (size, all)].into_iter().filter(|(place, _)| !place.is_null()) {
            // SAFETY: not null, so a place for an int.
            unsafe { out(place, "rank") }?.put(value as c_int);
        }
        Ok(())
    })
}

/// The endpoint of a communicator, as flexcast_comm_create() got it or flexcast_init() has opened it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_endpoint(
    comm: *mut flexcast_comm,
    endpoint: *mut *mut flexcast_endpoint,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(endpoint, "endpoint") }?;
        place.put(handle::get::<Group>(comm)?.endpoint_handle());
        Ok(())
    })
}

/// Which control carries the operations of a communicator, one of FLEXCAST_CONTROL_*, alike on all ranks. `reason` (may
/// be NULL) becomes NULL where it is the one of the configuration; else a text that says which rank has no service
/// process, and why not. The text stays until the communicator is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_control(
    comm: *mut flexcast_comm,
    control: *mut u32,
    reason: *mut *const c_char,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a number.
        let place = unsafe { out(control, "control") }?;
        let group = handle::get::<Group>(comm)?;
        let stage = group.read()?;
        let (number, why) = &Group::ready(&stage)?.control;
        place.put(*number);
        if !reason.is_null() {
            // SAFETY: not null, so a place for a pointer.
            unsafe { out(reason, "reason") }?.put(why.as_ref().map_or(std::ptr::null(), |text| text.as_ptr()));
        }
        Ok(())
    })
}

/// Moves the operations of a communicator on as far as they go now, without blocking. `moved` (may be NULL) becomes 1
/// if anything happened, else 0. What the card does needs no such call; neighbours may need it even when no operation
/// of this rank is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_progress(comm: *mut flexcast_comm, moved: *mut c_int) -> flexcast_status {
    call(|| {
        let any = handle::get::<Group>(comm)?.with(|communicator| Ok(communicator.progress()?))?;
        if !moved.is_null() {
            // SAFETY: not null, so a place for an int.
            unsafe { out(moved, "moved") }?.put(any.into());
        }
        Ok(())
    })
}

/// Ends all operations of a communicator as failures, on all ranks; it can only be freed afterwards. To be followed by
/// tests or waits: the memory is in use until they say that the operations are over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_cancel(comm: *mut flexcast_comm) -> flexcast_status {
    call(|| {
        handle::get::<Group>(comm)?.with(|communicator| {
            communicator.cancel();
            Ok(())
        })
    })
}

/// A descriptor to sleep on (poll, epoll): an eventfd that counts operations of the communicator that have ended since
/// it was last read, of those posted after this call; their callbacks have returned. The library's: it is not to be
/// closed, and is gone with the communicator. FLEXCAST_NOT_SUPPORTED without a progress thread (`progress_thread` in
/// flexcast_config), since nothing would end while the program sleeps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_event_fd(comm: *mut flexcast_comm, descriptor: *mut c_int) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(descriptor, "descriptor") }?;
        let group = handle::get::<Group>(comm)?;
        if group.with(|communicator| Ok(communicator.config().progress_thread.is_none()))? {
            let text =
                "nothing moves the communicator on while the program sleeps: set progress_thread in its configuration";
            return Err(Fault::new(FLEXCAST_NOT_SUPPORTED, text));
        }
        place.put(event::descriptor(&group.ended)?);
        Ok(())
    })
}
