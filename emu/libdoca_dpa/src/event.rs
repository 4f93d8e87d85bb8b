//! Sync events.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doca_sys::*;
use emu_libdoca::Dev;
use emu_libdoca::failure::{Failure, Result, bad_state, invalid, put, run, unsupported};
use emu_libibverbs::handle::{self, Object};
use emu_machine::MachineError;
use emu_machine::nic::{Access, MkeyAttr};

use crate::context::process;
use crate::launch;
use crate::layout;
use crate::process::{Process, lock, world};

/// Wall-clock time after which a wait ends in which nothing happens.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Wall-clock time after which such a wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(3);
/// Wall-clock time between two polls while nothing is due on the card.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Virtual time after which other threads of the program may have the machine.
const TURN_PS: u64 = 1_000_000_000;
/// What begins the description of an event for peers.
const MAGIC: u64 = u64::from_le_bytes(*b"flexsyn1");

/// An event.
pub(crate) struct Event(Mutex<State>);

#[derive(Default)]
struct State {
    /// Somebody publishes it; somebody waits for it.
    is_published: bool,
    is_subscribed: bool,
    /// The host is one of those that wait.
    is_for_host: bool,
    is_for_peers: bool,
    /// The DPA that it is on.
    process: Option<Arc<Process>>,
    /// Held so that the devices stay open.
    devices: Vec<Arc<Dev>>,
    /// Where the number is, once the event has started.
    address: Option<u64>,
    /// Key and description for peers.
    export: Option<(u32, Box<[u8]>)>,
}

impl Object for Event {
    const KIND: &'static str = "sync event";
    type C = doca_sync_event;
    fn c_address(&self) -> *mut doca_sync_event {
        (self as *const Self).cast_mut().cast()
    }
}

impl Event {
    /// The process whose memory has the number, and its address there.
    fn place(&self) -> Result<(Arc<Process>, u64)> {
        let state = lock(&self.0);
        match (&state.process, state.address) {
            (Some(process), Some(address)) => Ok((Arc::clone(process), address)),
            _ => Err(bad_state("the sync event is not started: call doca_sync_event_start first")),
        }
    }

    pub(crate) fn value(&self) -> Result<u64> {
        let (process, address) = self.place()?;
        let mut bytes = [0; 8];
        process.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Its address for a kernel of a process.
    pub(crate) fn address_for(&self, process: &Process) -> Result<u64> {
        let (own, address) = self.place()?;
        if (own.card, own.id) != (process.card, process.id) {
            return Err(invalid("the sync event is on another DPA context"));
        }
        Ok(address)
    }

    /// Replaces the number by what `f` makes of it, and gives the old one.
    fn change(&self, f: impl FnOnce(u64) -> u64) -> Result<u64> {
        let (process, address) = self.place()?;
        let old = world(|world| {
            let mut bytes = [0; 8];
            world.peek_memory(process.card, process.id, address, &mut bytes)?;
            let old = u64::from_le_bytes(bytes);
            world.write_memory(process.card, process.id, address, &f(old).to_le_bytes())?;
            Ok::<_, MachineError>(old)
        })?;
        launch::progress(&process)?;
        Ok(old)
    }

    /// Reports a wait in which nothing happens.
    fn report(&self, call: &str, value: u64) {
        let why = if lock(&self.0).is_for_host {
            ""
        } else {
            "; the host is no subscriber of this event: are publisher and subscriber exchanged?"
        };
        let (since, end) = (REPORT_AFTER.as_secs(), IDLE_TIMEOUT.as_secs());
        tracing::warn!(
            "{call}: the number is {value}, and nothing has happened on the card for {since} s; the wait ends after \
             {end} s{why}"
        );
    }

    fn wait(&self, call: &str, until: impl Fn(u64) -> bool) -> Result<()> {
        let (process, address) = self.place()?;
        let mut is_reported = false;
        let mut idle: Option<(Instant, u64)> = None;
        // The bridge drives a machine that follows the wall clock.
        let is_driven = emu_libibverbs::is_bridged();
        loop {
            launch::progress(&process)?;
            let (card, id) = (process.card, process.id);
            let (value, moved) = world(|world| {
                let end_ps = world.now_ps().saturating_add(TURN_PS);
                let mut moved = false;
                loop {
                    let mut bytes = [0; 8];
                    world.peek_memory(card, id, address, &mut bytes)?;
                    let value = u64::from_le_bytes(bytes);
                    if until(value) || is_driven || world.now_ps() >= end_ps || !world.step() {
                        return Ok::<_, MachineError>((value, moved));
                    }
                    moved = true;
                }
            })?;
            process.print()?;
            if until(value) {
                return Ok(());
            }
            process.check()?;
            if moved {
                idle = None;
                // Another thread of the program may want the machine.
                std::thread::yield_now();
                continue;
            }
            let (since, old) = *idle.get_or_insert_with(|| (Instant::now(), value));
            if !is_reported && since.elapsed() > REPORT_AFTER {
                self.report(call, value);
                is_reported = true;
            }
            if old != value {
                idle = None;
            } else if since.elapsed() > IDLE_TIMEOUT {
                let seconds = IDLE_TIMEOUT.as_secs();
                let reason = format!("the number is still {value}, and nothing has happened for {seconds} s");
                return Err(Failure(DOCA_ERROR_TIME_OUT, reason));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_create(event: *mut *mut doca_sync_event) -> doca_error_t {
    run("doca_sync_event_create", || {
        if event.is_null() {
            return Err(invalid("event is null"));
        }
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(event, "event", handle::publish(&Arc::new(Event(Mutex::default())))) }
    })
}

/// Ends what a started event has on the card.
fn stop(event: &Event) -> Result<()> {
    let mut state = lock(&event.0);
    let (Some(process), Some(address)) = (state.process.clone(), state.address) else { return Ok(()) };
    if let Some((key, _)) = state.export.take() {
        world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.destroy_mkey(key)?))?;
    }
    process.free(address)?;
    state.address = None;
    Ok(())
}

/// Refuses an event that launches have.
fn check_unused(event: &Arc<Event>) -> Result<()> {
    let process = lock(&event.0).process.clone();
    process.map_or(Ok(()), |process| launch::forget_finished(&process))?;
    // This call and the set of live handles hold it as well, unless another thread destroys it now.
    let users = Arc::strong_count(event).saturating_sub(2);
    if users > 0 {
        let reason = format!("kernels that were launched with it have not ended, or another thread calls ({users})");
        return Err(Failure(DOCA_ERROR_IN_USE, reason));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_destroy(event: *mut doca_sync_event) -> doca_error_t {
    run("doca_sync_event_destroy", || {
        let object = handle::get::<Event>(event)?;
        check_unused(&object)?;
        stop(&object)?;
        Ok(handle::retire::<Event>(event).map(drop)?)
    })
}

/// Changes an event that has not started.
fn configure(event: *mut doca_sync_event, f: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
    let event = handle::get::<Event>(event)?;
    let mut state = lock(&event.0);
    if state.address.is_some() {
        return Err(bad_state("the sync event is started"));
    }
    f(&mut state)
}

/// Adds a DPA to an event.
fn add_dpa(state: &mut State, dpa: *const doca_dpa) -> Result<()> {
    let process = process(dpa)?;
    match &state.process {
        Some(other) if (other.card, other.id) != (process.card, process.id) => {
            Err(unsupported("a sync event of two DPA contexts is not emulated"))
        }
        _ => {
            state.process = Some(process);
            Ok(())
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_add_publisher_location_cpu(
    event: *mut doca_sync_event,
    dev: *mut doca_dev,
) -> doca_error_t {
    run("doca_sync_event_add_publisher_location_cpu", || {
        configure(event, |state| {
            state.devices.push(handle::get::<Dev>(dev)?);
            state.is_published = true;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_add_publisher_location_dpa(
    event: *mut doca_sync_event,
    dpa: *mut doca_dpa,
) -> doca_error_t {
    run("doca_sync_event_add_publisher_location_dpa", || {
        configure(event, |state| {
            add_dpa(state, dpa)?;
            state.is_published = true;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_add_publisher_location_remote_net(
    event: *mut doca_sync_event,
) -> doca_error_t {
    run("doca_sync_event_add_publisher_location_remote_net", || {
        configure(event, |state| {
            (state.is_published, state.is_for_peers) = (true, true);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_add_subscriber_location_cpu(
    event: *mut doca_sync_event,
    dev: *mut doca_dev,
) -> doca_error_t {
    run("doca_sync_event_add_subscriber_location_cpu", || {
        configure(event, |state| {
            state.devices.push(handle::get::<Dev>(dev)?);
            (state.is_subscribed, state.is_for_host) = (true, true);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_add_subscriber_location_dpa(
    event: *mut doca_sync_event,
    dpa: *mut doca_dpa,
) -> doca_error_t {
    run("doca_sync_event_add_subscriber_location_dpa", || {
        configure(event, |state| {
            add_dpa(state, dpa)?;
            state.is_subscribed = true;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_start(event: *mut doca_sync_event) -> doca_error_t {
    run("doca_sync_event_start", || {
        configure(event, |state| {
            if !state.is_published || !state.is_subscribed {
                return Err(bad_state("it needs a publisher and a subscriber: add their locations first"));
            }
            let Some(process) = &state.process else {
                return Err(unsupported("a sync event without a DPA is not emulated: publisher or subscriber is one"));
            };
            state.address = Some(process.place(&[0; 8])?);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_stop(event: *mut doca_sync_event) -> doca_error_t {
    run("doca_sync_event_stop", || {
        let event = handle::get::<Event>(event)?;
        event.place()?;
        check_unused(&event)?;
        stop(&event)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_get_dpa_handle(
    event: *mut doca_sync_event,
    dpa: *mut doca_dpa,
    dev_se_handle: *mut doca_dpa_dev_sync_event_t,
) -> doca_error_t {
    run("doca_sync_event_get_dpa_handle", || {
        let address = handle::get::<Event>(event)?.address_for(&*process(dpa)?)?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(dev_se_handle, "dev_se_handle", address) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_get(event: *mut doca_sync_event, value: *mut u64) -> doca_error_t {
    run("doca_sync_event_get", || {
        let found = handle::get::<Event>(event)?.value()?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(value, "value", found) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_update_set(event: *mut doca_sync_event, value: u64) -> doca_error_t {
    run("doca_sync_event_update_set", || handle::get::<Event>(event)?.change(|_| value).map(drop))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_update_add(
    event: *mut doca_sync_event,
    value: u64,
    fetched: *mut u64,
) -> doca_error_t {
    run("doca_sync_event_update_add", || {
        if fetched.is_null() {
            return Err(invalid("fetched is null"));
        }
        let old = handle::get::<Event>(event)?.change(|old| old.wrapping_add(value))?;
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(fetched, "fetched", old) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_wait_gt(
    event: *mut doca_sync_event,
    value: u64,
    mask: u64,
) -> doca_error_t {
    let call = "doca_sync_event_wait_gt";
    run(call, || handle::get::<Event>(event)?.wait(call, |found| found & mask > value))
}

/// Every wait leaves the processor to others.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_wait_gt_yield(
    event: *mut doca_sync_event,
    value: u64,
    mask: u64,
) -> doca_error_t {
    let call = "doca_sync_event_wait_gt_yield";
    run(call, || handle::get::<Event>(event)?.wait(call, |found| found & mask > value))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_export_to_remote_net(
    event: *mut doca_sync_event,
    data: *mut *const u8,
    sz: *mut usize,
) -> doca_error_t {
    run("doca_sync_event_export_to_remote_net", || {
        let event = handle::get::<Event>(event)?;
        let (process, address) = event.place()?;
        let mut state = lock(&event.0);
        if !state.is_for_peers {
            return Err(bad_state("no peer is a publisher: add the location remote_net before the start"));
        }
        if state.export.is_none() {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let space = process.queue_memory(address).space;
            let attr = MkeyAttr { pd: process.pd, space, start: address, len: 8, access, offset: 0 };
            let key = world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.create_mkey(attr)?))?;
            let words = [MAGIC, address, u64::from(key)];
            state.export = Some((key, words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        }
        let (_, bytes) = state.export.as_ref().ok_or_else(|| bad_state("it is not exported"))?;
        // SAFETY: null, or writable as the caller promises.
        unsafe {
            put(data, "data", bytes.as_ptr())?;
            put(sz, "sz", bytes.len())
        }
    })
}

/// A peer's event.
struct RemoteEvent {
    address: u64,
    key: u32,
    /// Held so that the device stays open.
    _dev: Arc<Dev>,
    /// Where a process has it for its kernels.
    placed: Mutex<Option<(Arc<Process>, u64)>>,
}

impl Object for RemoteEvent {
    const KIND: &'static str = "sync event of a peer";
    type C = doca_sync_event_remote_net;
    fn c_address(&self) -> *mut doca_sync_event_remote_net {
        (self as *const Self).cast_mut().cast()
    }
}

/// Reads the words of a description that begins with `magic`.
///
/// # Safety
/// `data` must be null or readable for `bytes`.
pub(crate) unsafe fn description<const N: usize>(magic: u64, data: *const u8, bytes: usize) -> Result<[u64; N]> {
    if data.is_null() || bytes != 8 * N {
        return Err(invalid(format!("the description is null, or has {bytes} bytes instead of {}", 8 * N)));
    }
    // SAFETY: not null, and as long as the caller vouches.
    let data = unsafe { core::slice::from_raw_parts(data, bytes) };
    let (words, _) = data.as_chunks::<8>();
    let found = core::array::from_fn(|at| u64::from_le_bytes(words[at]));
    if found[0] != magic {
        return Err(invalid("this is no description of that kind"));
    }
    Ok(found)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_remote_net_create_from_export(
    dev: *mut doca_dev,
    data: *const u8,
    sz: usize,
    event: *mut *mut doca_sync_event_remote_net,
) -> doca_error_t {
    run("doca_sync_event_remote_net_create_from_export", || {
        let dev = handle::get::<Dev>(dev)?;
        // SAFETY: null, or readable as the caller promises.
        let [_, address, key] = unsafe { description(MAGIC, data, sz) }?;
        if event.is_null() {
            return Err(invalid("event is null"));
        }
        let object = RemoteEvent { address, key: key as u32, _dev: dev, placed: Mutex::default() };
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(event, "event", handle::publish(&Arc::new(object))) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_remote_net_destroy(
    event: *mut doca_sync_event_remote_net,
) -> doca_error_t {
    run("doca_sync_event_remote_net_destroy", || {
        let object = handle::retire::<RemoteEvent>(event)?;
        let placed = lock(&object.placed).take();
        placed.map_or(Ok(()), |(process, address)| process.free(address))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_sync_event_remote_net_get_dpa_handle(
    event: *mut doca_sync_event_remote_net,
    dpa: *mut doca_dpa,
    dev_se_remote_net_handle: *mut doca_dpa_dev_sync_event_remote_net_t,
) -> doca_error_t {
    run("doca_sync_event_remote_net_get_dpa_handle", || {
        let event = handle::get::<RemoteEvent>(event)?;
        let process = process(dpa)?;
        let mut placed = lock(&event.placed);
        let address = match &*placed {
            Some((own, address)) if (own.card, own.id) == (process.card, process.id) => *address,
            Some(_) => return Err(unsupported("a peer's sync event on two DPA contexts is not emulated")),
            None => {
                let address = process.place(&layout::remote_event(event.address, event.key))?;
                *placed = Some((process, address));
                address
            }
        };
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(dev_se_remote_net_handle, "dev_se_remote_net_handle", address) }
    })
}
