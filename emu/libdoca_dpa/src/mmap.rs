//! Memory maps: ranges of memory, and keys of them.

use core::ffi::c_void;
use std::sync::{Arc, Mutex};

use doca_sys::*;
use emu_libdoca::Dev;
use emu_libdoca::failure::{Failure, Result, bad_state, invalid, put, run};
use emu_libibverbs::handle::{self, Object};
use emu_libibverbs::region::Region;
use emu_machine::nic::{Access, MkeyAttr};

use crate::context::process;
use crate::event::description;
use crate::process::{Process, lock, world};

/// What begins the description of a map for peers.
const MAGIC: u64 = u64::from_le_bytes(*b"flexmap1");
/// Rights of the emulated card's PCI side, which is the Arm cores'.
const PCI: u32 = DOCA_ACCESS_FLAG_PCI_READ_ONLY | DOCA_ACCESS_FLAG_PCI_READ_WRITE;

/// The memory of a map.
#[derive(Clone)]
enum Memory {
    None,
    /// Of the program, for these devices.
    Host {
        addr: u64,
        len: u64,
    },
    Dpa {
        process: Arc<Process>,
        addr: u64,
        len: u64,
    },
    /// Of a peer.
    Remote {
        addr: u64,
        len: u64,
        key: u32,
    },
}

/// A key of a map.
enum Key {
    Host(Region),
    Dpa(Arc<Process>, u32),
}

struct Started {
    /// By device.
    keys: Vec<(Arc<Dev>, Key)>,
    /// Descriptions that were asked for, by key.
    exports: Vec<(u32, Box<[u8]>)>,
}

struct State {
    permissions: u32,
    memory: Memory,
    devices: Vec<Arc<Dev>>,
    started: Option<Started>,
}

struct Mmap(Mutex<State>);

impl Object for Mmap {
    const KIND: &'static str = "memory map";
    type C = doca_mmap;
    fn c_address(&self) -> *mut doca_mmap {
        (self as *const Self).cast_mut().cast()
    }
}

impl Key {
    fn number(&self) -> u32 {
        match self {
            Key::Host(region) => region.key,
            Key::Dpa(_, key) => *key,
        }
    }

    fn destroy(&self) -> Result<()> {
        match self {
            Key::Host(region) => Ok(region.deregister()?),
            Key::Dpa(process, key) => {
                world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.destroy_mkey(*key)?))
            }
        }
    }
}

/// Rights of a memory key, or of a connection.
pub(crate) fn rights(permissions: u32) -> Result<Access> {
    let known = [
        (DOCA_ACCESS_FLAG_LOCAL_READ_WRITE, Access::LOCAL_WRITE),
        (DOCA_ACCESS_FLAG_RDMA_READ, Access::REMOTE_READ),
        (DOCA_ACCESS_FLAG_RDMA_WRITE, Access::REMOTE_WRITE),
        (DOCA_ACCESS_FLAG_RDMA_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let all = known.iter().fold(PCI | DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING, |all, (flag, _)| all | flag);
    if permissions & !all != 0 {
        return Err(invalid(format!("permissions {permissions:#x}: those of enum doca_access_flag are, {all:#x}")));
    }
    let granted = known.iter().filter(|(flag, _)| permissions & flag != 0);
    let access = granted.fold(Access::empty(), |access, (_, right)| access | *right);
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(invalid("peers may write, but the local device may not: LOCAL_READ_WRITE is needed as well"));
    }
    Ok(access)
}

fn publish(mmap: *mut *mut doca_mmap, memory: Memory, devices: Vec<Arc<Dev>>) -> Result<()> {
    if mmap.is_null() {
        return Err(invalid("mmap is null"));
    }
    let object = Arc::new(Mmap(Mutex::new(State { permissions: 0, memory, devices, started: None })));
    // SAFETY: not null, and writable as the caller promises.
    unsafe { put(mmap, "mmap", handle::publish(&object)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_create(mmap: *mut *mut doca_mmap) -> doca_error_t {
    run("doca_mmap_create", || publish(mmap, Memory::None, Vec::new()))
}

fn stop(state: &mut State) -> Result<()> {
    let Some(started) = state.started.take() else { return Ok(()) };
    started.keys.iter().try_for_each(|(_, key)| key.destroy())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_destroy(mmap: *mut doca_mmap) -> doca_error_t {
    run("doca_mmap_destroy", || {
        stop(&mut lock(&handle::get::<Mmap>(mmap)?.0))?;
        Ok(handle::retire::<Mmap>(mmap).map(drop)?)
    })
}

/// Changes a map that has not started.
fn configure(mmap: *mut doca_mmap, f: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
    let mmap = handle::get::<Mmap>(mmap)?;
    let mut state = lock(&mmap.0);
    if state.started.is_some() {
        return Err(bad_state("the memory map is started"));
    }
    if matches!(state.memory, Memory::Remote { .. }) {
        return Err(bad_state("the memory map is a peer's"));
    }
    f(&mut state)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_start(mmap: *mut doca_mmap) -> doca_error_t {
    run("doca_mmap_start", || {
        configure(mmap, |state| {
            let access = rights(state.permissions)?;
            let mut keys = Vec::new();
            match &state.memory {
                Memory::Host { addr, len } => {
                    if state.devices.is_empty() {
                        return Err(bad_state("the memory map has no device: call doca_mmap_add_dev first"));
                    }
                    for dev in &state.devices {
                        let register = || Ok(Region::register(dev.info.id, dev.domain()?, *addr, *len, access)?);
                        match register() {
                            Ok(region) => keys.push((Arc::clone(dev), Key::Host(region))),
                            Err(failure) => {
                                keys.iter().try_for_each(|(_, key): &(_, Key)| key.destroy())?;
                                return Err(failure);
                            }
                        }
                    }
                }
                Memory::Dpa { process, addr, len } => {
                    let space = process.queue_memory(*addr).space;
                    let attr = MkeyAttr { pd: process.pd, space, start: *addr, len: *len, access, offset: 0 };
                    let key = world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.create_mkey(attr)?))?;
                    keys.push((Arc::clone(&process.dev), Key::Dpa(Arc::clone(process), key)));
                }
                Memory::None | Memory::Remote { .. } => {
                    return Err(bad_state("the memory map has no memory: call doca_mmap_set_memrange first"));
                }
            }
            state.started = Some(Started { keys, exports: Vec::new() });
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_stop(mmap: *mut doca_mmap) -> doca_error_t {
    run("doca_mmap_stop", || {
        let mmap = handle::get::<Mmap>(mmap)?;
        let mut state = lock(&mmap.0);
        if state.started.is_none() {
            return Err(bad_state("the memory map is not started"));
        }
        stop(&mut state)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_add_dev(mmap: *mut doca_mmap, dev: *mut doca_dev) -> doca_error_t {
    run("doca_mmap_add_dev", || {
        configure(mmap, |state| {
            let dev = handle::get::<Dev>(dev)?;
            if state.devices.iter().any(|other| Arc::ptr_eq(other, &dev)) {
                return Err(Failure(DOCA_ERROR_IN_USE, "the memory map has this device already".to_owned()));
            }
            state.devices.push(dev);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_set_permissions(mmap: *mut doca_mmap, access_mask: u32) -> doca_error_t {
    run("doca_mmap_set_permissions", || {
        configure(mmap, |state| {
            rights(access_mask)?;
            state.permissions = access_mask;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_set_memrange(
    mmap: *mut doca_mmap,
    addr: *mut c_void,
    len: usize,
) -> doca_error_t {
    run("doca_mmap_set_memrange", || {
        configure(mmap, |state| {
            if addr.is_null() || len == 0 {
                return Err(invalid(format!("{len} bytes at {addr:p} are no memory")));
            }
            state.memory = Memory::Host { addr: addr as u64, len: len as u64 };
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_get_memrange(
    mmap: *const doca_mmap,
    addr: *mut *mut c_void,
    len: *mut usize,
) -> doca_error_t {
    run("doca_mmap_get_memrange", || {
        let memory = lock(&handle::get::<Mmap>(mmap)?.0).memory.clone();
        let (found, bytes) = match memory {
            Memory::None => return Err(bad_state("the memory map has no memory")),
            Memory::Host { addr, len } | Memory::Dpa { addr, len, .. } | Memory::Remote { addr, len, .. } => {
                (addr, len)
            }
        };
        // SAFETY: null, or writable as the caller promises.
        unsafe {
            put(addr, "addr", std::ptr::without_provenance_mut(found as usize))?;
            put(len, "len", bytes as usize)
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_set_dpa_memrange(
    mmap: *mut doca_mmap,
    dpa: *mut doca_dpa,
    dpa_addr: u64,
    len: usize,
) -> doca_error_t {
    run("doca_mmap_set_dpa_memrange", || {
        configure(mmap, |state| {
            let process = process(dpa)?;
            let bytes = len as u64;
            let is_inside = world(|world| {
                let memory = &world.card(process.card)?.process(process.id)?.memory;
                Ok::<_, Failure>(len > 0 && memory.bytes(dpa_addr, len).is_some())
            })?;
            if !is_inside {
                return Err(invalid(format!("{len} bytes at {dpa_addr:#x} are not memory of the DPA context")));
            }
            state.memory = Memory::Dpa { process, addr: dpa_addr, len: bytes };
            Ok(())
        })
    })
}

/// The key of a map for a device.
fn key_for(state: &State, dev: *const doca_dev) -> Result<u32> {
    let dev = handle::get::<Dev>(dev)?;
    if let Memory::Remote { key, .. } = state.memory {
        return Ok(key);
    }
    let started = state.started.as_ref().ok_or_else(|| bad_state("the memory map is not started"))?;
    let found = started.keys.iter().find(|(own, _)| own.info.id == dev.info.id);
    let (_, key) = found.ok_or_else(|| invalid("the memory map is not for this device"))?;
    Ok(key.number())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_dev_get_dpa_handle(
    mmap: *mut doca_mmap,
    dev: *const doca_dev,
    dpa_mmap_handle: *mut doca_dpa_dev_mmap_t,
) -> doca_error_t {
    run("doca_mmap_dev_get_dpa_handle", || {
        let key = key_for(&lock(&handle::get::<Mmap>(mmap)?.0), dev)?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(dpa_mmap_handle, "dpa_mmap_handle", key) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_export_rdma(
    mmap: *mut doca_mmap,
    dev: *const doca_dev,
    export_desc: *mut *const c_void,
    export_desc_len: *mut usize,
) -> doca_error_t {
    run("doca_mmap_export_rdma", || {
        let mmap = handle::get::<Mmap>(mmap)?;
        let mut state = lock(&mmap.0);
        let key = key_for(&state, dev)?;
        let remote = DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_ATOMIC;
        if state.permissions & remote == 0 {
            let reason = "its permissions leave nothing to peers: DOCA_ACCESS_FLAG_RDMA_* do".to_owned();
            return Err(Failure(DOCA_ERROR_NOT_PERMITTED, reason));
        }
        let (addr, len) = match state.memory {
            Memory::Host { addr, len } | Memory::Dpa { addr, len, .. } => (addr, len),
            Memory::None | Memory::Remote { .. } => return Err(bad_state("the memory map is a peer's")),
        };
        let started = state.started.as_mut().ok_or_else(|| bad_state("the memory map is not started"))?;
        if !started.exports.iter().any(|(own, _)| *own == key) {
            let words = [MAGIC, addr, len, u64::from(key)];
            started.exports.push((key, words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        }
        for (own, bytes) in &started.exports {
            if *own == key {
                // SAFETY: null, or writable as the caller promises.
                unsafe {
                    put(export_desc, "export_desc", bytes.as_ptr().cast())?;
                    put(export_desc_len, "export_desc_len", bytes.len())?;
                }
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_mmap_create_from_export(
    _user_data: *const doca_data,
    export_desc: *const c_void,
    export_desc_len: usize,
    dev: *mut doca_dev,
    mmap: *mut *mut doca_mmap,
) -> doca_error_t {
    run("doca_mmap_create_from_export", || {
        let dev = handle::get::<Dev>(dev)?;
        // SAFETY: null, or readable as the caller promises.
        let [_, addr, len, key] = unsafe { description(MAGIC, export_desc.cast(), export_desc_len) }?;
        publish(mmap, Memory::Remote { addr, len, key: key as u32 }, vec![dev])
    })
}
