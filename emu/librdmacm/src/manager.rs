//! Manager: connects the state machine with the cards and the program's identifiers. It has one lock, and a thread that
//! takes datagrams and lets time pass.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};
use std::time::Duration;

use emu_libibverbs::errno::{Errno, Result};
use emu_libibverbs::{fork, handle, is_bridged, now_ps, relax};

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::{Channel, Param, Pending, Way};
use crate::device::{self, Device};
use crate::gsi::Gsi;
use crate::id::{Id, Stage};
use crate::protocol::agent::{Action, Agent, ConnId, Event, ListenerId, Refused, Request, Wanted};
use crate::protocol::service::{Service, Space};

/// Ports that are given where none is asked for, as Linux has them.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// The thread checks the time at least so often.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
const PS_PER_MS: u64 = 1_000_000_000;

/// Who has a port.
#[derive(Debug)]
struct Binding {
    address: IpAddr,
    reuse: bool,
    owner: usize,
}

/// Everything behind the lock.
pub(crate) struct Manager {
    pub(crate) agent: Agent,
    devices: &'static [Device],
    /// Queue pair 1 of each card, once there is a first user.
    gsis: Vec<Gsi>,
    conns: BTreeMap<ConnId, Weak<Id>>,
    listeners: BTreeMap<ListenerId, Weak<Id>>,
    bound: BTreeMap<Service, Vec<Binding>>,
    next_port: u16,
    seed: u64,
    wake: Option<OwnedFd>,
}

static MANAGER: OnceLock<Mutex<Manager>> = OnceLock::new();
/// Where the thread waits in a machine that does not move by itself.
static CHANGED: Condvar = Condvar::new();

/// The manager.
///
/// # Errors
/// There is no machine.
pub(crate) fn lock() -> Result<MutexGuard<'static, Manager>> {
    let devices = device::devices()?;
    let manager = MANAGER.get_or_init(|| {
        // A machine that does not move by itself does the same thing every time.
        let seed = if is_bridged() { emu_bridge::process_number() } else { 1 };
        Mutex::new(Manager {
            agent: Agent::new(seed),
            devices,
            gsis: Vec::new(),
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            bound: BTreeMap::new(),
            next_port: *EPHEMERAL.start() + (seed % EPHEMERAL.len() as u64) as u16,
            seed,
            wake: None,
        })
    });
    Ok(manager.lock().unwrap_or_else(PoisonError::into_inner))
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Self {
        let value = match refused {
            Refused::Gone | Refused::State(_) => libc::EINVAL,
            Refused::InUse => libc::EADDRINUSE,
            Refused::TooMany => libc::ENOMEM,
        };
        Errno::new(value, refused.to_string())
    }
}

impl Manager {
    /// Opens queue pair 1 of all cards, and starts the thread, at the first need.
    ///
    /// # Errors
    /// The cards are another process's, or the calling thread has a machine of its own.
    pub(crate) fn start(&mut self) -> Result<()> {
        if !self.gsis.is_empty() {
            return Ok(());
        }
        if emu_machine::has_own() {
            return Err(Errno::unsupported(
                "this thread has a machine of its own: connection management is for the machine of the process",
            ));
        }
        if emu_bridge::attached()?.is_some() {
            return Err(Errno::unsupported(
                "the cards are another process's, and so is their connection management: run the program with cards of \
                 its own (emu exec without --attach)",
            ));
        }
        let gsis = self.devices.iter().enumerate().map(|(port, device)| Gsi::open(port, device));
        let gsis = gsis.collect::<Result<Vec<_>>>()?;
        // SAFETY: makes a new descriptor.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(Errno::new(libc::EMFILE, "no descriptor for connection management"));
        }
        let started = std::thread::Builder::new().name("flexcast-rdmacm".to_owned()).spawn(keep_going);
        started.map_err(|error| Errno::new(libc::EAGAIN, format!("no thread for connection management: {error}")))?;
        // SAFETY: a descriptor that nobody else has.
        self.wake = Some(unsafe { OwnedFd::from_raw_fd(wake) });
        self.gsis = gsis;
        if is_bridged() {
            WAKE.store(wake, Ordering::Relaxed);
            end_at_exit();
        }
        Ok(())
    }

    /// A number that differs from call to call, of 24 bits.
    pub(crate) fn number(&mut self) -> u32 {
        // The step of SplitMix64 (public domain), whose upper bits are mixed well.
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.seed ^ self.seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 40) as u32 & 0xFF_FFFF
    }

    /// Does what the state machine asks for, and wakes the thread for what follows.
    pub(crate) fn act(&mut self) {
        while let Some(action) = self.agent.take_action() {
            match action {
                Action::Send { path, bytes } => {
                    let (Some(gsi), Some(device)) = (self.gsis.get_mut(path.port), self.devices.get(path.port)) else {
                        continue;
                    };
                    if let Err(error) = gsi.send(device, &path, &bytes) {
                        tracing::debug!(reason = error.reason, "a datagram of connection management is lost");
                    }
                }
                Action::Report { conn, event } => self.deliver(conn, event),
            }
        }
        CHANGED.notify_all();
        if let Some(wake) = &self.wake {
            let one = 1_u64;
            // SAFETY: the descriptor is open, and eight bytes are read.
            unsafe { libc::write(wake.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// An identifier has a connection.
    pub(crate) fn attach(&mut self, conn: ConnId, id: &Arc<Id>) {
        self.conns.insert(conn, Arc::downgrade(id));
        id.lock().conn = Some(conn);
    }

    fn deliver(&mut self, conn: ConnId, event: Event) {
        if let Event::Request(request) = event {
            self.asked(conn, *request);
            return;
        }
        let Some(id) = self.conns.get(&conn).and_then(Weak::upgrade) else { return };
        let datagrams = id.space == Space::Udp;
        let (kind, status, param) = match event {
            Event::Request(_) => return,
            Event::Accepted { terms, private } => {
                id.lock().theirs = Some(terms);
                (RDMA_CM_EVENT_CONNECT_RESPONSE, 0, Param::Connection { terms, private })
            }
            Event::Established => (RDMA_CM_EVENT_ESTABLISHED, 0, Param::Nothing),
            Event::Rejected { reason, private } => {
                let terms = Default::default();
                (RDMA_CM_EVENT_REJECTED, reason.into(), Param::Connection { terms, private })
            }
            Event::Unreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT, Param::Nothing),
            Event::Disconnected => (RDMA_CM_EVENT_DISCONNECTED, 0, Param::Nothing),
            Event::TimeWaitOver => (RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Param::Nothing),
            Event::Found { qpn, qkey, private } => {
                let ah = id.lock().remote.map(|remote| remote.address);
                match ah.map(|remote| id.way_to(remote)) {
                    Some(Ok(ah)) => {
                        (RDMA_CM_EVENT_ESTABLISHED, 0, Param::Datagrams { ah: Way(ah), qpn, qkey, private })
                    }
                    _ => (RDMA_CM_EVENT_UNREACHABLE, -libc::EHOSTUNREACH, Param::Nothing),
                }
            }
            Event::NotFound { status, private } => {
                let ah = Way(Default::default());
                let param = Param::Datagrams { ah, qpn: 0, qkey: 0, private };
                (RDMA_CM_EVENT_UNREACHABLE, status.into(), param)
            }
        };
        let over = matches!(kind, RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_TIMEWAIT_EXIT);
        if over || datagrams {
            self.conns.remove(&conn);
        }
        id.report(kind, status, param);
    }

    /// Somebody asks: a new identifier is made for it, which reports where the asked one does.
    fn asked(&mut self, conn: ConnId, request: Request) {
        let listener = self.listeners.get(&request.listener).and_then(Weak::upgrade);
        let (Some(listener), Some(device)) = (listener, self.devices.get(request.path.port)) else {
            return self.agent.forget(conn, now_ps());
        };
        let (channel, local_port) = {
            let inner = listener.lock();
            (Arc::clone(&inner.channel), inner.local.map_or(0, |local| local.port))
        };
        let context = listener.seen(|public| public.context);
        let id = Id::make(Arc::clone(&channel), false, context, listener.space);
        {
            let (theirs, mut inner) = (terms_of(&request), id.lock());
            inner.stage = Stage::Connected;
            inner.local = Some(Endpoint { address: request.path.local, port: local_port });
            inner.remote = Some(Endpoint { address: request.path.remote, port: request.port });
            inner.theirs = theirs;
            let asking = listener.lock();
            (inner.traffic_class, inner.ack_timeout) = (asking.traffic_class, asking.ack_timeout);
        }
        id.use_device(request.path.port, device);
        id.show_addresses();
        id.show_route(device);
        self.attach(conn, &id);
        let private = request.private;
        let param = match request.wanted {
            // What the one asks to have outstanding is what the other may be asked to serve.
            Wanted::Connection(terms) => {
                let (responder_resources, initiator_depth) = (terms.initiator_depth, terms.responder_resources);
                let terms = crate::protocol::agent::Terms { responder_resources, initiator_depth, ..terms };
                Param::Connection { terms, private }
            }
            Wanted::Datagrams => Param::Datagrams { ah: Way(Default::default()), qpn: 0, qkey: 0, private },
        };
        let (kind, listener) = (RDMA_CM_EVENT_CONNECT_REQUEST, Some(listener));
        channel.events.push(Pending { id, listener, kind, status: 0, param });
    }

    /// Takes the datagrams that have come. Returns whether there were some.
    fn turn(&mut self) -> bool {
        let mut came = false;
        for gsi in &self.gsis {
            loop {
                let taken = gsi.take();
                if taken.is_empty() {
                    break;
                }
                came = true;
                let now_ps = now_ps();
                taken.iter().for_each(|(path, bytes)| self.agent.receive(*path, bytes, now_ps));
            }
        }
        came
    }

    fn settle(&mut self) {
        self.agent.tick(now_ps());
        self.act();
    }
}

fn terms_of(request: &Request) -> Option<crate::protocol::agent::Terms> {
    match request.wanted {
        Wanted::Connection(terms) => Some(terms),
        Wanted::Datagrams => None,
    }
}

/// Ports.
impl Manager {
    /// Gives an identifier a port: the one asked for, or a free one.
    ///
    /// # Errors
    /// EADDRINUSE.
    pub(crate) fn bind(&mut self, id: &Arc<Id>, wanted: Endpoint, reuse: bool) -> Result<u16> {
        let port = if wanted.port == 0 { self.free_port(id, wanted.address)? } else { wanted.port };
        let service = id.service(port);
        let there = self.bound.entry(service).or_default();
        let clash = |other: &&Binding| {
            let overlap =
                other.address == wanted.address || other.address.is_unspecified() || wanted.address.is_unspecified();
            overlap && !(reuse && other.reuse)
        };
        if let Some(other) = there.iter().find(clash) {
            let (space, at) = (if id.space == Space::Tcp { "TCP" } else { "UDP" }, other.address);
            let reason = format!(
                "port {port} of {space} is taken at {at}: choose another, or 0 for a free one; \
                 RDMA_OPTION_ID_REUSEADDR \
                 on both lets two have it"
            );
            return Err(Errno::new(libc::EADDRINUSE, reason));
        }
        there.push(Binding { address: wanted.address, reuse, owner: Arc::as_ptr(id) as usize });
        Ok(port)
    }

    fn free_port(&mut self, id: &Arc<Id>, address: IpAddr) -> Result<u16> {
        for _ in EPHEMERAL {
            let port = self.next_port;
            self.next_port = if port >= *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            let taken = self.bound.get(&id.service(port)).is_some_and(|there| {
                there
                    .iter()
                    .any(|other| other.address == address || other.address.is_unspecified() || address.is_unspecified())
            });
            if !taken {
                return Ok(port);
            }
        }
        let (first, last) = (EPHEMERAL.start(), EPHEMERAL.end());
        Err(Errno::new(libc::EADDRNOTAVAIL, format!("all ports from {first} to {last} are taken: destroy identifiers")))
    }

    fn unbind(&mut self, id: &Arc<Id>, port: u16) {
        let (service, owner) = (id.service(port), Arc::as_ptr(id) as usize);
        if let Some(there) = self.bound.get_mut(&service) {
            there.retain(|other| other.owner != owner);
            if there.is_empty() {
                self.bound.remove(&service);
            }
        }
    }

    /// Has an identifier take requests.
    ///
    /// # Errors
    /// EADDRINUSE.
    pub(crate) fn listen(&mut self, id: &Arc<Id>, local: Endpoint, backlog: usize) -> Result<()> {
        let port = id.lock().port;
        let at = port.filter(|_| !local.address.is_unspecified()).map(|port| (port, local.address));
        let listener = self.agent.listen(id.service(local.port), at, backlog)?;
        self.listeners.insert(listener, Arc::downgrade(id));
        id.lock().listener = Some(listener);
        Ok(())
    }
}

/// The program learns of a request.
pub(crate) fn request_taken(id: &Id) {
    if let (Ok(mut manager), Some(conn)) = (lock(), id.lock().conn) {
        manager.agent.taken(conn);
    }
}

/// An identifier is done with. Returns those of requests that its program has not taken.
pub(crate) fn release(id: &Arc<Id>) -> Vec<Arc<Id>> {
    let Ok(mut manager) = lock() else { return Vec::new() };
    let (channel, conn, listener, local, owns_port) = {
        let mut inner = id.lock();
        (Arc::clone(&inner.channel), inner.conn.take(), inner.listener.take(), inner.local, inner.owns_port)
    };
    if let Some(listener) = listener {
        manager.agent.unlisten(listener);
        manager.listeners.remove(&listener);
    }
    if let Some(conn) = conn {
        manager.conns.remove(&conn);
        manager.agent.forget(conn, now_ps());
    }
    if let Some(local) = local.filter(|_| owns_port) {
        manager.unbind(id, local.port);
    }
    let of_this = |pending: &Pending| {
        Arc::ptr_eq(&pending.id, id) || pending.listener.as_ref().is_some_and(|listener| Arc::ptr_eq(listener, id))
    };
    let dropped = channel.events.retain(|pending| !of_this(pending));
    manager.act();
    dropped.into_iter().filter(|pending| !Arc::ptr_eq(&pending.id, id)).map(|pending| pending.id).collect()
}

/// Has an identifier report to another channel, where its events that wait go, too. Returns the old one, and whether
/// calls waited for it.
pub(crate) fn redirect(id: &Arc<Id>, to: &Arc<Channel>, waits: bool) -> (Arc<Channel>, bool) {
    // While nothing is reported.
    let _manager = lock();
    let (from, waited) = {
        let mut inner = id.lock();
        (std::mem::replace(&mut inner.channel, Arc::clone(to)), std::mem::replace(&mut inner.waits, waits))
    };
    from.users.fetch_sub(1, Ordering::Relaxed);
    to.users.fetch_add(1, Ordering::Relaxed);
    let of_this = |pending: &Pending| {
        Arc::ptr_eq(&pending.id, id) || pending.listener.as_ref().is_some_and(|listener| Arc::ptr_eq(listener, id))
    };
    from.events.retain(|pending| !of_this(pending)).into_iter().for_each(|pending| to.events.push(pending));
    (from, waited)
}

/// The thread: it lives as long as the process, and leaves signals to the program's threads.
fn keep_going() {
    // SAFETY: a set of signals that the call fills, for this thread alone.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut());
    }
    let go_on = if is_bridged() { serve_driven } else { serve_calm };
    loop {
        if fork::is_child() || ENDING.load(Ordering::Acquire) || go_on().is_err() {
            break;
        }
    }
    let _ = end_all();
    ENDED.store(true, Ordering::Release);
}

/// A round in a machine that moves by itself: sleeps until a datagram comes, or until something is due.
fn serve_driven() -> Result<()> {
    let mut manager = lock()?;
    // Armed first, and taken then: what comes in between is found.
    manager.gsis.iter().for_each(Gsi::arm);
    manager.turn();
    manager.settle();
    let wake = manager.wake.iter().map(|wake| wake.as_raw_fd());
    let descriptors = wake.chain(manager.gsis.iter().map(Gsi::fd));
    let mut polls: Vec<_> = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let due_ms = manager.agent.due_ps().map(|due_ps| due_ps.saturating_sub(now_ps()).div_ceil(PS_PER_MS));
    let longest_ms = LONGEST_SLEEP.as_millis() as u64;
    let sleep_ms = due_ms.map_or(longest_ms, |due_ms| due_ms.clamp(1, longest_ms)) as i32;
    // What `act` has just written there is old.
    drain(&manager);
    drop(manager);
    // SAFETY: as many structures as are said.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, sleep_ms) };
    Ok(())
}

fn drain(manager: &Manager) {
    if let Some(wake) = &manager.wake {
        let mut count = 0_u64;
        // SAFETY: the descriptor is open and does not block; eight bytes are written.
        unsafe { libc::read(wake.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

/// A round in a machine that moves only when it is let: it is, while messages wait for an answer of another card.
fn serve_calm() -> Result<()> {
    const NAP: Duration = Duration::from_millis(1);
    let mut manager = lock()?;
    let came = manager.turn();
    manager.settle();
    if came {
        return Ok(());
    }
    if !manager.agent.awaits_network() {
        drop(CHANGED.wait_timeout(manager, LONGEST_SLEEP));
        return Ok(());
    }
    if manager.agent.awaits_program() {
        // Time must not run away from a program that is to answer.
        drop(manager);
        relax();
        std::thread::sleep(NAP);
        return Ok(());
    }
    let due_ps = manager.agent.due_ps();
    drop(manager);
    if !relax()
        && let Some(due_ps) = due_ps
    {
        emu_bridge::with_world(|world| {
            let left_ps = due_ps.saturating_sub(world.now_ps());
            world.run_until(left_ps, |_| false)
        })?;
    }
    Ok(())
}

/// The process ends, and the thread is to end its connections.
static ENDING: AtomicBool = AtomicBool::new(false);
/// It has.
static ENDED: AtomicBool = AtomicBool::new(false);
/// What wakes the thread, for a process that ends.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// Longest that a process which ends waits for the thread: a second.
const LEAVING_NAPS: u32 = 10_000;
const LEAVING_NAP: Duration = Duration::from_micros(100);

/// Has all connections ended when the process ends, as the kernel does it for one that is gone.
fn end_at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: the library is never unloaded (`xtask/src/emu_libs.rs`), so the handler is there when the process ends.
    // It runs before that of libibverbs, which was registered before and has the cards send what is left.
    ONCE.call_once(|| _ = unsafe { libc::atexit(at_exit) });
}

/// The thread that ends the process has no machine any more: what belongs to a thread is gone before its handlers run.
extern "C" fn at_exit() {
    if fork::is_child() {
        return;
    }
    ENDING.store(true, Ordering::Release);
    let one = 1_u64;
    // SAFETY: the descriptor is never closed, and eight bytes are read.
    unsafe { libc::write(WAKE.load(Ordering::Relaxed), (&raw const one).cast(), 8) };
    for _ in 0..LEAVING_NAPS {
        if ENDED.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(LEAVING_NAP);
    }
}

fn end_all() -> Result<()> {
    let mut manager = lock()?;
    for conn in manager.agent.alive() {
        manager.agent.forget(conn, now_ps());
    }
    manager.act();
    Ok(())
}

/// The identifier behind a handle, for calls that change its connection.
pub(crate) fn with_conn<R>(
    id: *mut rdma_cm_id,
    f: impl FnOnce(&mut Manager, &Arc<Id>, ConnId) -> Result<R>,
) -> Result<R> {
    let id = handle::get::<Id>(id)?;
    let mut manager = lock()?;
    let conn = id.lock().conn;
    let conn = conn.ok_or_else(|| Errno::invalid("the identifier has no connection, and none is asked for"))?;
    let result = f(&mut manager, &id, conn)?;
    manager.act();
    Ok(result)
}
