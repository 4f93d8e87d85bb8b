//! A DPA process: an application running on a card.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use flexcast_abi::{Rpc, RpcAnswer, RpcArgument};
use flexcast_image::PanicPlace;
use flexio_sys as sys;

use crate::application::{Application, c_string};
use crate::device::{Device, ProtectionDomain};
use crate::error::{Error, ErrorState, Result, Status};
use crate::provider::Library;
use crate::raw::Raw;

/// A function of the library that writes a file about a process.
type Write = unsafe extern "C" fn(*mut sys::flexio_process, *const c_char) -> sys::flexio_status;

/// State of the process's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapInfo {
    /// Device address of its first byte.
    pub base: crate::DevAddr,
    /// Bytes it covers.
    pub size: u64,
    /// Bytes asked for by allocations.
    pub requested: u64,
    /// Bytes taken by allocations.
    pub allocated: u64,
}

/// A process on the DPA, until this, its clones and all that belongs to it are gone.
#[derive(Clone, Debug)]
pub struct Process(Arc<Running>);

#[derive(Debug)]
struct Running {
    application: Application,
    pd: ProtectionDomain,
    raw: Raw<sys::flexio_process>,
    /// Of a dead process, once it has been searched for: a dump may be large, and every call on a dead process asks.
    panic: OnceLock<Option<PanicPlace>>,
}

impl Process {
    /// Loads the application into a new process; queues and keys of the process belong to `pd`.
    ///
    /// # Errors
    /// [`Error::FlexIo`]; [`Error::Foreign`] when application and domain come from different providers.
    pub fn new(application: &Application, pd: &ProtectionDomain) -> Result<Self> {
        let device = pd.device();
        let provider = device.provider();
        if !provider.is_same(application.provider()) {
            return Err(Error::Foreign { what: "application", parent: "provider" });
        }
        let attr = sys::flexio_process_attr { pd: pd.raw().cast(), en_pcc: 0 };
        let mut raw = std::ptr::null_mut();
        // SAFETY: context, application and domain are live and outlive the process, which holds a count of each.
        let status = unsafe {
            (application.api().flexio_process_create)(
                device.context().cast(),
                application.raw(),
                &raw const attr,
                &raw mut raw,
            )
        };
        provider.flexio_ok("flexio_process_create", status, || {
            format!("{} on {}", application.name(), device.info().name)
        })?;
        let raw = handle("flexio_process_create", raw)?;
        Ok(Self(Arc::new(Running { application: application.clone(), pd: pd.clone(), raw, panic: OnceLock::new() })))
    }

    /// The card.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.pd().device()
    }

    /// The application.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.0.application
    }

    /// The protection domain of its queues and keys.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// The library's functions, for one call.
    pub(crate) fn api(&self) -> Library<'_, sys::FlexioApi> {
        self.application().api()
    }

    /// Whether both are one process.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn raw(&self) -> *mut sys::flexio_process {
        self.0.raw.as_ptr()
    }

    /// Turns a status into a result; where the process has died, the error is its crash record instead.
    pub(crate) fn ok(
        &self,
        call: &'static str,
        status: sys::flexio_status,
        detail: impl FnOnce() -> String,
    ) -> Result<()> {
        if status == sys::FLEXIO_STATUS_SUCCESS {
            return Ok(());
        }
        self.check()?;
        Err(Error::FlexIo { call, status: Status(status), detail: detail() })
    }

    /// Calls an RPC of the image and waits for its answer (the runtime ends it after 6 s).
    ///
    /// ```no_run
    /// use flexio::{Process, Rpc};
    ///
    /// /// Adds up the numbers below its argument.
    /// const ADD: Rpc<u32, u64> = Rpc::new("add");
    ///
    /// fn sum(process: &Process) -> flexio::Result<u64> {
    ///     process.call(&ADD, 1000)
    /// }
    /// ```
    ///
    /// Another type of argument does not compile:
    ///
    /// ```compile_fail,E0308
    /// # use flexio::{Process, Rpc};
    /// # const ADD: Rpc<u32, u64> = Rpc::new("add");
    /// fn sum(process: &Process) -> flexio::Result<u64> {
    ///     process.call(&ADD, 1000_u64)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Process::call_by_name`]; [`Error::Answer`] for a word that is none of the RPC's answers.
    pub fn call<Argument: RpcArgument, Answer: RpcAnswer>(
        &self,
        rpc: &Rpc<Argument, Answer>,
        argument: Argument,
    ) -> Result<Answer> {
        let word = self.call_by_name(rpc.name(), argument.to_word())?;
        Answer::from_word(word).ok_or(Error::Answer { entry: rpc.name(), word, limit: Answer::LIMIT })
    }

    /// Calls an RPC whose types this program does not know, such as one of an image in C, with a word, and waits for
    /// the word that it returns (the runtime ends it after 6 s).
    ///
    /// # Errors
    /// [`Error::Image`] for an unknown entry, [`Error::DeviceFault`] with the crash record, [`Error::FlexIo`].
    pub fn call_by_name(&self, entry: &str, argument: u64) -> Result<u64> {
        let stub = self.0.application.rpc(entry)?;
        let mut answer = 0;
        // SAFETY: the process is live, the key registered with a pack function for exactly one u64, which follows.
        let status = unsafe { (self.api().flexio_process_call)(self.raw(), stub, &raw mut answer, argument) };
        self.ok("flexio_process_call", status, || format!("{entry}({argument:#x})"))?;
        Ok(answer)
    }

    /// The process's error state.
    #[must_use]
    pub fn error_state(&self) -> ErrorState {
        // SAFETY: the process is live.
        let state = unsafe { (self.api().flexio_err_status_get)(self.raw()) };
        match state {
            sys::FLEXIO_DEV_NO_ERROR => ErrorState::None,
            sys::FLEXIO_DEV_USER_ERROR => ErrorState::User,
            _ => ErrorState::Fatal,
        }
    }

    /// The crash record of a dead process, as the library words it.
    ///
    /// # Errors
    /// [`Error::FlexIo`] where there is none, [`Error::Io`] when it cannot be read, [`Error::NoFunction`] with a
    /// library that writes none.
    pub fn crash_record(&self) -> Result<String> {
        let write = self.api().flexio_crash_data;
        self.written("flexio_crash_data", write, |path| Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned()))
    }

    /// Where the firmware of a dead process panicked; `None` if it did not, or the image keeps no record of it (one in
    /// C).
    ///
    /// The record is in memory of the process, which the library shows in a core dump alone.
    ///
    /// # Errors
    /// [`Error::FlexIo`] without a dump, [`Error::Io`] when it cannot be written or read, [`Error::NoFunction`] with a
    /// library that dumps nothing.
    pub fn panic_place(&self) -> Result<Option<PanicPlace>> {
        let image = self.0.application.image();
        if !image.records_panics() {
            return Ok(None);
        }
        if let Some(known) = self.0.panic.get() {
            return Ok(known.clone());
        }
        let dump = self.api().flexio_coredump_create;
        let found = self.written("flexio_coredump_create", dump, |path| {
            Ok(image.panic_place_in_core(std::fs::File::open(path)?))
        })?;
        Ok(self.0.panic.get_or_init(|| found).clone())
    }

    /// Lets the library write a file about the process, and reads it.
    fn written<T>(
        &self,
        call: &'static str,
        write: Option<Write>,
        read: impl FnOnce(&std::path::Path) -> std::io::Result<T>,
    ) -> Result<T> {
        let write = write.ok_or(Error::NoFunction { function: call })?;
        let io =
            |source| Error::Io { what: format!("the file of {call}, in the directory for temporary files"), source };
        let dir = tempfile::tempdir().map_err(io)?;
        let name = c_string("path of a file", &dir.path().join("dpa").to_string_lossy())?;
        let library = self.api();
        // SAFETY: the process is live and the name lives through the call.
        let status = unsafe { write(self.raw(), name.as_ptr()) };
        drop(library);
        self.device().provider().flexio_ok(call, status, String::new)?;
        // The library appends a running number and what kind of file it is.
        let file = std::fs::read_dir(dir.path())
            .map_err(io)?
            .next()
            .unwrap_or_else(|| Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the library has written none")));
        read(&file.map_err(io)?.path()).map_err(io)
    }

    /// An error with the crash record if the process has died.
    ///
    /// # Errors
    /// [`Error::DeviceFault`].
    pub fn check(&self) -> Result<()> {
        match self.error_state() {
            ErrorState::None => Ok(()),
            state => {
                let record = self.crash_record().unwrap_or_else(|error| format!("(no crash record: {error})"));
                // A panic ends the process by an error of its own; that its place cannot be found hides nothing else.
                let panic = match state {
                    ErrorState::User => self.panic_place().unwrap_or_else(|error| {
                        tracing::warn!(%error, "whether the firmware panicked is not known");
                        None
                    }),
                    _ => None,
                };
                Err(Error::DeviceFault { state, panic: panic.map(Box::new), record })
            }
        }
    }

    /// State of the heap.
    ///
    /// # Errors
    /// [`Error::FlexIo`].
    pub fn heap(&self) -> Result<HeapInfo> {
        let mut info = sys::flexio_heap_mem_info::default();
        // SAFETY: the process is live and `info` writable.
        let status = unsafe { (self.api().flexio_process_mem_info_get)(self.raw(), &raw mut info) };
        self.ok("flexio_process_mem_info_get", status, String::new)?;
        Ok(HeapInfo {
            base: crate::DevAddr(info.base_addr),
            size: info.size as u64,
            requested: info.requested as u64,
            allocated: info.allocated as u64,
        })
    }

    /// Id of the memory object that covers the heap, for commands that name queue memory.
    pub(crate) fn dumem_id(&self) -> u32 {
        // SAFETY: the process is live.
        unsafe { (self.api().flexio_process_get_dumem_id)(self.raw()) }
    }

    /// Id of the doorbell page from which the process's queues take doorbells.
    pub(crate) fn uar_id(&self) -> Result<u32> {
        // SAFETY: the process is live; it owns the page it returns.
        let uar = unsafe { (self.api().flexio_process_get_uar)(self.raw()) };
        let uar = handle("flexio_process_get_uar", uar)?;
        // SAFETY: a live page of a live process.
        number("flexio_uar_get_id", unsafe { (self.api().flexio_uar_get_id)(uar.as_ptr()) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: created in `new`; everything in it holds a count of this object, so nothing is left.
        let status = unsafe { (self.application.api().flexio_process_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("process", status);
    }
}

/// A handle that a successful call must have filled.
pub(crate) fn handle<T>(call: &'static str, raw: *mut T) -> Result<Raw<T>> {
    NonNull::new(raw).map(Raw::new).ok_or(Error::FlexIo {
        call,
        status: Status(sys::FLEXIO_STATUS_FAILED),
        detail: "it returned a null handle".to_owned(),
    })
}

/// An object number; the library returns all ones on error.
pub(crate) fn number(call: &'static str, value: u32) -> Result<u32> {
    if value == u32::MAX {
        return Err(Error::FlexIo {
            call,
            status: Status(sys::FLEXIO_STATUS_FAILED),
            detail: "it returned no number".to_owned(),
        });
    }
    Ok(value)
}

/// For destructors, which cannot return an error.
pub(crate) fn warn_unless_destroyed(what: &'static str, status: sys::flexio_status) {
    if status != sys::FLEXIO_STATUS_SUCCESS {
        tracing::warn!(what, status, "object could not be destroyed");
    }
}
