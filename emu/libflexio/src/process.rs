//! Processes and their memory.

use core::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_bridge::with_world;
use emu_libibverbs::handle::{self, Object};
use emu_libibverbs::umem::{self, Umem};
use emu_libibverbs::{Context, Pd, device_name};
use emu_machine::nic::{QueueMemory, Space};
use emu_machine::{Function, FunctionId, ProcessStatus, World};
use emu_observe::{core_dump, new_file};
use flexio_sys::*;
use verbs_sys::{ibv_context, ibv_pd};

use crate::app::App;
use crate::observe;
use crate::status::{Result, failed, input, out, pointer, status, value};
use crate::stream::Sinks;
use crate::version;
use crate::window::Uar;

pub(crate) struct Process {
    pub(crate) card: usize,
    pub(crate) id: u32,
    pub(crate) app: Arc<App>,
    pub(crate) pd: Arc<Pd>,
    owns_pd: bool,
    pub(crate) uar: Arc<Uar>,
    dumem: u32,
    /// Where the messages of each stream are printed.
    pub(crate) sinks: Sinks,
    /// A thread prints them.
    pub(crate) has_printer: AtomicBool,
    /// The stream of the deprecated log calls.
    pub(crate) log: Mutex<Option<u32>>,
    /// Signalled when the process dies; made at first use.
    error_fd: Mutex<Option<Arc<OwnedFd>>>,
}

impl Object for Process {
    const KIND: &'static str = "process";
    type C = flexio_process;
    fn c_address(&self) -> *mut flexio_process {
        (self as *const Self).cast_mut().cast()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls into the machine.
pub(crate) fn world<T, E>(f: impl FnOnce(&mut World) -> std::result::Result<T, E>) -> Result<T>
where
    crate::status::Failure: From<E>,
{
    Ok(with_world(f)??)
}

impl Process {
    /// What a call that let virtual time pass does before it returns: prints messages.
    pub(crate) fn after_progress(&self) -> Result<()> {
        for sink in lock(&self.sinks).values() {
            sink.drain(self.card, self.id)?;
        }
        Ok(())
    }

    /// The descriptor that is readable once the process has died: the machine signals it when that happens, whoever
    /// drives it.
    fn error_fd(&self) -> Result<c_int> {
        let mut slot = lock(&self.error_fd);
        if let Some(fd) = &*slot {
            return Ok(fd.as_raw_fd());
        }
        // SAFETY: makes a new descriptor. It never blocks a writer: one signal is all it gets.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(failed("no descriptor left"));
        }
        // SAFETY: new, open, and nobody else's.
        let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let signalled = Arc::clone(&fd);
        let signal = Box::new(move || {
            let one = 1_u64;
            // SAFETY: the descriptor is open as long as this closure has it; eight bytes of a local are read.
            unsafe { libc::write(signalled.as_raw_fd(), (&raw const one).cast(), 8) };
        });
        world(|world| world.card(self.card)?.process_mut(self.id).map(|process| process.on_death(signal)))?;
        Ok(slot.insert(fd).as_raw_fd())
    }

    fn state(&self) -> Result<flexio_err_status> {
        world(|world| {
            world.card(self.card)?.process(self.id).map(|process| match process.status {
                ProcessStatus::Healthy | ProcessStatus::Finished => FLEXIO_DEV_NO_ERROR,
                ProcessStatus::Crashed(_) => FLEXIO_DEV_FATAL_ERROR,
                ProcessStatus::UserError(..) => FLEXIO_DEV_USER_ERROR,
            })
        })
    }

    /// Queue memory an attribute names: inside the process, or inside registered host memory.
    pub(crate) fn queue_memory(&self, what: &str, memory: &flexio_qmem, bytes: u64) -> Result<QueueMemory> {
        // SAFETY: both members of the union are the same 64-bit integer.
        let addr = unsafe { memory.__bindgen_anon_1.daddr };
        match memory.memtype {
            FLEXIO_MEMTYPE_DPA => self.device_memory(what, addr, bytes),
            FLEXIO_MEMTYPE_HOST => umem::find(memory.umem_id)
                .filter(|umem| umem.owner == FunctionId::host(self.card))
                .and_then(|umem| umem.at(addr, bytes))
                .ok_or_else(|| {
                    let id = memory.umem_id;
                    failed(format!(
                        "{what}: {bytes} bytes at offset {addr:#x} are not in user memory {id} of this card"
                    ))
                }),
            other => Err(failed(format!("{what}: memory type {other}: DPA (0) and host (1) exist"))),
        }
    }

    /// Memory of the process.
    pub(crate) fn device_memory(&self, what: &str, addr: u64, bytes: u64) -> Result<QueueMemory> {
        let inside = world(|world| {
            let memory = &world.card(self.card)?.process(self.id)?.memory;
            Ok::<_, emu_machine::MachineError>(
                usize::try_from(bytes).is_ok_and(|bytes| memory.bytes(addr, bytes).is_some()),
            )
        })?;
        if !inside {
            return Err(failed(format!("{what}: {bytes} bytes at {addr:#x} are not memory of the process")));
        }
        Ok(QueueMemory { space: Space::Dpa(self.id), addr })
    }

    /// The card a call is for: that of `context`, which must be the process's own if it is not null.
    pub(crate) fn check_context(&self, context: *mut ibv_context) -> Result<()> {
        if context.is_null() {
            return Ok(());
        }
        if handle::get::<Context>(context)?.id() != FunctionId::host(self.card) {
            return Err(failed(
                "the device context is that of another card; queues of other functions are not emulated",
            ));
        }
        Ok(())
    }

    /// The protection domain of a call: the process's own for null.
    pub(crate) fn domain(&self, pd: *mut ibv_pd) -> Result<Arc<Pd>> {
        if pd.is_null() {
            return Ok(Arc::clone(&self.pd));
        }
        let pd = handle::get::<Pd>(pd)?;
        if pd.context.id() != FunctionId::host(self.card) {
            return Err(failed("the protection domain is on another card than the process, or of another function"));
        }
        Ok(pd)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_create(
    ibv_ctx: *mut ibv_context,
    app: *mut flexio_app,
    process_attr: *const flexio_process_attr,
    process: *mut *mut flexio_process,
) -> flexio_status {
    status("flexio_process_create", || {
        let context = handle::get::<Context>(ibv_ctx)?;
        let app = handle::get::<App>(app)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, process) = unsafe { (process_attr.as_ref(), out(process, "process")?) };
        let given = attr.map_or(core::ptr::null_mut(), |attr| attr.pd);
        if attr.is_some_and(|attr| attr.en_pcc != 0) {
            return Err(failed("programmable congestion control is not emulated"));
        }
        let card = context.card;
        if context.function != Function::Host {
            let host = device_name(FunctionId::host(card));
            return Err(failed(format!("processes are made through the host's function here: open {host}")));
        }
        let pd = if given.is_null() { Pd::alloc(&context)? } else { handle::get::<Pd>(given)? };
        if pd.context.id() != context.id() {
            return Err(failed(
                "the protection domain is on another card than the device context, or of another function",
            ));
        }
        observe::attach()?;
        version::has_process();
        let created = world(|world| {
            let id = world.create_process(card, app.elf())?;
            world.card(card)?.process_mut(id)?.label = app.label();
            Ok::<_, emu_machine::MachineError>((id, world.heap_info(card, id)?))
        });
        let (id, heap) = match created {
            Ok(created) => created,
            Err(failure) => {
                if given.is_null() {
                    pd.dealloc()?;
                }
                return Err(failure);
            }
        };
        if given.is_null() {
            handle::publish(&pd);
        }
        let uar = Arc::new(Uar::new(None));
        handle::publish(&uar);
        // Threads have it without configuring one.
        world(|world| world.create_default_outbox(card, id, uar.id))?;
        let dumem = umem::insert(Umem { owner: context.id(), space: Space::Dpa(id), base: heap.base, len: heap.size });
        let object = Arc::new(Process {
            card,
            id,
            app,
            pd,
            owns_pd: given.is_null(),
            uar,
            dumem,
            sinks: Sinks::default(),
            has_printer: AtomicBool::new(false),
            log: Mutex::default(),
            error_fd: Mutex::default(),
        });
        process.write(handle::publish(&object));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_destroy(process: *mut flexio_process) -> flexio_status {
    status("flexio_process_destroy", || {
        if process.is_null() {
            return Ok(());
        }
        let object = handle::get::<Process>(process)?;
        // This call and the set of live handles hold it as well.
        let children = Arc::strong_count(&object).saturating_sub(2);
        if children > 0 {
            return Err(failed(format!("objects of the process still exist ({children}): destroy them first")));
        }
        // Held by the process and by the set of live handles.
        let users = Arc::strong_count(&object.pd).saturating_sub(2);
        if object.owns_pd && users > 0 {
            return Err(failed(format!("objects of the process's domain still exist ({users}): destroy them first")));
        }
        object.after_progress()?;
        observe::before_destroy()?;
        world(|world| world.destroy_process(object.card, object.id))?;
        handle::retire::<Process>(process)?;
        handle::retire::<Uar>(object.uar.c_address())?;
        umem::remove(object.dumem);
        if object.owns_pd {
            handle::retire::<Pd>(object.pd.c_address())?;
            object.pd.dealloc()?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_error_handler_set(
    process: *mut flexio_process,
    error_handler: flexio_func_t,
) -> flexio_status {
    status("flexio_process_error_handler_set", || {
        let function = handle::get::<Process>(process)?.app.function(error_handler)?;
        Err(failed(format!("error handlers on the device are not emulated; {} would never run", function.name)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_mem_info_get(
    process: *const flexio_process,
    info: *mut flexio_heap_mem_info,
) -> flexio_status {
    status("flexio_process_mem_info_get", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or writable as the interface asks.
        let info = unsafe { out(info, "info") }?;
        let heap = world(|world| world.heap_info(process.card, process.id))?;
        info.write(flexio_heap_mem_info {
            base_addr: heap.base,
            size: heap.size as usize,
            requested: heap.requested as usize,
            allocated: heap.allocated as usize,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_get_uar(process: *mut flexio_process) -> *mut flexio_uar {
    pointer("flexio_process_get_uar", || Ok(handle::get::<Process>(process)?.uar.c_address()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_get_pd(process: *mut flexio_process) -> *mut ibv_pd {
    pointer("flexio_process_get_pd", || Ok(handle::get::<Process>(process)?.pd.c_address()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_get_dumem_id(process: *mut flexio_process) -> u32 {
    value("flexio_process_get_dumem_id", u32::MAX, || Ok(handle::get::<Process>(process)?.dumem))
}

/// 0: debugging is not permitted, there being no debugger to attach.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_process_udbg_token_get(process: *mut flexio_process) -> u64 {
    value("flexio_process_udbg_token_get", 0, || handle::get::<Process>(process).map(|_| 0).map_err(Into::into))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_err_handler_fd(process: *mut flexio_process) -> c_int {
    value("flexio_err_handler_fd", -1, || {
        let process = handle::get::<Process>(process)?;
        let fd = process.error_fd()?;
        process.after_progress()?;
        Ok(fd)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_err_status_get(process: *mut flexio_process) -> flexio_err_status {
    value("flexio_err_status_get", FLEXIO_DEV_FATAL_ERROR, || {
        if process.is_null() {
            return Ok(FLEXIO_DEV_NO_ERROR);
        }
        let process = handle::get::<Process>(process)?;
        process.after_progress()?;
        process.state()
    })
}

/// Writes the crash record to `<outfile>.<process, three digits>.crash`; the name defaults to `flexio_dev`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_crash_data(
    process: *mut flexio_process,
    outfile: *const c_char,
) -> flexio_status {
    status("flexio_crash_data", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or a terminated string as the interface asks.
        let name = unsafe { observe::base_name(outfile) }?;
        let record = world(|world| {
            let process = world.card(process.card)?.process(process.id)?;
            Ok::<_, emu_machine::MachineError>(process.crash().map(ToString::to_string))
        })?;
        let record = record.ok_or_else(|| failed("the process has not crashed"))?;
        let path = core_dump::file_name(name, process.id, "crash");
        new_file::write(&path, record).map_err(|error| failed(format!("{} cannot be written: {error}", path.display())))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_buf_dev_alloc(
    process: *mut flexio_process,
    buff_bsize: usize,
    dest_daddr_p: *mut flexio_uintptr_t,
) -> flexio_status {
    status("flexio_buf_dev_alloc", || {
        // SAFETY: null, or writable as the interface asks.
        let daddr = unsafe { out(dest_daddr_p, "dest_daddr_p") }?;
        // A program that ignores the status finds no address.
        daddr.write(0);
        let process = handle::get::<Process>(process)?;
        daddr.write(world(|world| world.heap_alloc(process.card, process.id, buff_bsize as u64))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_buf_dev_free(
    process: *mut flexio_process,
    daddr: flexio_uintptr_t,
) -> flexio_status {
    status("flexio_buf_dev_free", || {
        let process = handle::get::<Process>(process)?;
        if daddr == 0 {
            return Ok(());
        }
        world(|world| world.heap_free(process.card, process.id, daddr))
    })
}

/// Host bytes a call copies from.
///
/// # Safety
/// If not null, `source` must be readable for `bytes`.
unsafe fn host_bytes<'a>(source: *const c_void, bytes: usize) -> Result<&'a [u8]> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if source.is_null() || isize::try_from(bytes).is_err() {
        return Err(failed(format!("{bytes} bytes at {source:p} cannot be copied")));
    }
    // SAFETY: not null; the caller vouches for the length.
    Ok(unsafe { core::slice::from_raw_parts(source.cast(), bytes) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_host2dev_memcpy(
    process: *mut flexio_process,
    src_haddr: *mut c_void,
    buff_bsize: usize,
    dest_daddr: flexio_uintptr_t,
) -> flexio_status {
    status("flexio_host2dev_memcpy", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: readable as the interface asks.
        let source = unsafe { host_bytes(src_haddr, buff_bsize) }?;
        world(|world| world.write_memory(process.card, process.id, dest_daddr, source))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_buf_dev_memset(
    process: *mut flexio_process,
    value: c_int,
    buff_bsize: usize,
    dest_daddr: flexio_uintptr_t,
) -> flexio_status {
    status("flexio_buf_dev_memset", || {
        let process = handle::get::<Process>(process)?;
        let bytes = buff_bsize as u64;
        // As in C: the value is converted to a byte.
        world(|world| world.fill_memory(process.card, process.id, dest_daddr, bytes, value as u8))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_copy_from_host(
    process: *mut flexio_process,
    src_haddr: *mut c_void,
    buff_bsize: usize,
    dest_daddr_p: *mut flexio_uintptr_t,
) -> flexio_status {
    status("flexio_copy_from_host", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: readable and writable as the interface asks.
        let (source, daddr) = unsafe { (host_bytes(src_haddr, buff_bsize)?, out(dest_daddr_p, "dest_daddr_p")?) };
        let addr = world(|world| {
            let addr = world.heap_alloc(process.card, process.id, source.len() as u64)?;
            world.write_memory(process.card, process.id, addr, source).map(|()| addr)
        })?;
        daddr.write(addr);
        Ok(())
    })
}

/// A getter of a number that is all ones on error.
pub(crate) fn number_of<T: Object>(call: &str, object: *const T::C, number: impl FnOnce(&T) -> u32) -> u32 {
    value(call, u32::MAX, || Ok(number(&*handle::get::<T>(object)?)))
}

/// A required attribute structure.
///
/// # Safety
/// As [`input`].
pub(crate) unsafe fn attribute<'a, T>(fattr: *const T) -> Result<&'a T> {
    // SAFETY: as this function's.
    unsafe { input(fattr, "fattr") }
}
