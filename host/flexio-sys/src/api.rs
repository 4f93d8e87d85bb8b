//! The table of functions through which host code talks to libflexio.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;

use libc::{FILE, pthread_t};
use verbs_sys::{LoadError, Loader, ibv_context, ibv_pd, mlx5dv_devx_obj};

use crate::bindings::*;

unsafe extern "C" {
    fn flexcast_pack_u64(argbuf: *mut c_void, arguments: *mut __va_list_tag);
}

/// The pack function to register for an RPC with one 64-bit argument: reads a `u64` from the argument list and stores
/// it in the first eight bytes of the argument buffer (register with `argbuf_size` 8).
pub const fn pack_u64() -> unsafe extern "C" fn(*mut c_void, *mut __va_list_tag) {
    flexcast_pack_u64
}

/// A key for registering an RPC: the library reads the address only and never calls it, so any address that is
/// unique while the application lives will do (the address of the caller's own record of the function, say).
#[must_use]
pub fn stub_key(unique: NonNull<c_void>) -> flexio_func_t {
    // SAFETY: a function pointer must not be null, and is not; nobody calls this one.
    Some(unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(unique.as_ptr()) })
}

macro_rules! flexio_api {
    (
        called: $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(; $dots:tt)?) -> $ret:ty;)*
        others: $(fn $other:ident($($other_arg:ident: $other_ty:ty),*) -> $other_ret:ty;)*
    ) => {
        /// Pointers to the exported C functions, under their C names. Those that the crate `flexio` calls are there;
        /// the others are `None` where the library is of a release without them.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // the names are those of the vendor's reference
        pub struct FlexioApi {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($arg: $ty,)* $($dots)?) -> $ret,)*
            $(pub $other: Option<unsafe extern "C" fn($($other_arg: $other_ty),*) -> $other_ret>,)*
        }

        impl FlexioApi {
            fn from_library(library: &Loader) -> Result<Self, LoadError> {
                // SAFETY: the types are those of the prototypes in include/libflexio/flexio.h.
                unsafe {
                    Ok(FlexioApi {
                        $($name: library
                            .function(stringify!($name))
                            .map_err(|error| error.since(since(stringify!($name))))?,)*
                        $($other: library.function(stringify!($other)).ok(),)*
                    })
                }
            }
        }
    };
}

flexio_api! {
    called:
    fn flexio_app_create(fattr: *mut flexio_app_attr, app: *mut *mut flexio_app) -> flexio_status;
    fn flexio_app_destroy(app: *mut flexio_app) -> flexio_status;
    fn flexio_func_register(
        app: *mut flexio_app, dev_func_name: *const c_char, out_func: *mut flexio_func_t
    ) -> flexio_status;
    fn flexio_func_pup_register(
        app: *mut flexio_app, dev_func_name: *const c_char, dev_unpack_func_name: *const c_char,
        host_stub_func_addr: flexio_func_t, argbuf_size: usize, host_pack_func: flexio_func_arg_pack_fn_t
    ) -> flexio_status;
    fn flexio_process_create(
        ibv_ctx: *mut ibv_context, app: *mut flexio_app, process_attr: *const flexio_process_attr,
        process: *mut *mut flexio_process
    ) -> flexio_status;
    fn flexio_process_destroy(process: *mut flexio_process) -> flexio_status;
    /// Variadic: the arguments after `func_ret` go to the pack function registered with the stub.
    fn flexio_process_call(
        process: *mut flexio_process, host_stub_func: flexio_func_t, func_ret: *mut u64; ...
    ) -> flexio_status;
    fn flexio_process_mem_info_get(
        process: *const flexio_process, info: *mut flexio_heap_mem_info
    ) -> flexio_status;
    fn flexio_process_get_uar(process: *mut flexio_process) -> *mut flexio_uar;
    fn flexio_process_get_dumem_id(process: *mut flexio_process) -> u32;
    fn flexio_err_status_get(process: *mut flexio_process) -> flexio_err_status;
    fn flexio_buf_dev_alloc(
        process: *mut flexio_process, buff_bsize: usize, dest_daddr_p: *mut flexio_uintptr_t
    ) -> flexio_status;
    fn flexio_buf_dev_free(process: *mut flexio_process, daddr: flexio_uintptr_t) -> flexio_status;
    fn flexio_host2dev_memcpy(
        process: *mut flexio_process, src_haddr: *mut c_void, buff_bsize: usize, dest_daddr: flexio_uintptr_t
    ) -> flexio_status;
    fn flexio_buf_dev_memset(
        process: *mut flexio_process, value: c_int, buff_bsize: usize, dest_daddr: flexio_uintptr_t
    ) -> flexio_status;
    fn flexio_device_mkey_create(
        process: *mut flexio_process, fattr: *mut flexio_mkey_attr, mkey: *mut *mut flexio_mkey
    ) -> flexio_status;
    fn flexio_device_mkey_destroy(mkey: *mut flexio_mkey) -> flexio_status;
    fn flexio_mkey_get_id(mkey: *mut flexio_mkey) -> u32;
    fn flexio_cq_create(
        process: *mut flexio_process, ibv_ctx: *mut ibv_context, fattr: *const flexio_cq_attr, cq: *mut *mut flexio_cq
    ) -> flexio_status;
    fn flexio_cq_destroy(cq: *mut flexio_cq) -> flexio_status;
    fn flexio_cq_get_cq_num(cq: *mut flexio_cq) -> u32;
    fn flexio_qp_create(
        process: *mut flexio_process, ibv_ctx: *mut ibv_context, fattr: *mut flexio_qp_attr, qp_ptr: *mut *mut flexio_qp
    ) -> flexio_status;
    fn flexio_qp_modify(
        qp: *mut flexio_qp, fattr: *mut flexio_qp_attr, mask: *mut flexio_qp_attr_opt_param_mask
    ) -> flexio_status;
    fn flexio_qp_destroy(qp: *mut flexio_qp) -> flexio_status;
    fn flexio_qp_get_qp_num(qp: *mut flexio_qp) -> u32;
    fn flexio_event_handler_create(
        process: *mut flexio_process, fattr: *mut flexio_event_handler_attr,
        event_handler_ptr: *mut *mut flexio_event_handler
    ) -> flexio_status;
    fn flexio_event_handler_run(event_handler: *mut flexio_event_handler, user_arg: u64) -> flexio_status;
    fn flexio_event_handler_destroy(event_handler: *mut flexio_event_handler) -> flexio_status;
    fn flexio_event_handler_get_thread(event_handler: *mut flexio_event_handler) -> *mut flexio_thread;
    fn flexio_event_handler_get_id(event_handler: *mut flexio_event_handler) -> u32;
    fn flexio_window_create(
        process: *mut flexio_process, pd: *mut ibv_pd, window: *mut *mut flexio_window
    ) -> flexio_status;
    fn flexio_window_destroy(window: *mut flexio_window) -> flexio_status;
    fn flexio_window_get_id(window: *mut flexio_window) -> u32;
    fn flexio_outbox_create(
        process: *mut flexio_process, fattr: *mut flexio_outbox_attr, outbox: *mut *mut flexio_outbox
    ) -> flexio_status;
    fn flexio_outbox_destroy(outbox: *mut flexio_outbox) -> flexio_status;
    fn flexio_outbox_get_id(outbox: *mut flexio_outbox) -> u32;
    fn flexio_outbox_get_uar(outbox: *mut flexio_outbox) -> *mut flexio_uar;
    fn flexio_uar_get_id(uar: *mut flexio_uar) -> u32;
    fn flexio_msg_stream_create(
        process: *mut flexio_process, stream_fattr: *mut flexio_msg_stream_attr_t, out: *mut FILE,
        ppthread: *mut pthread_t, stream: *mut *mut flexio_msg_stream
    ) -> flexio_status;
    fn flexio_msg_stream_destroy(stream: *mut flexio_msg_stream) -> flexio_status;
    fn flexio_msg_stream_flush(stream: *mut flexio_msg_stream) -> flexio_status;

    others:
    fn flexio_version_set(version: u64) -> flexio_status;
    fn flexio_app_get_list(app_list: *mut *mut *mut flexio_app, num_apps: *mut u32) -> flexio_status;
    fn flexio_app_list_free(apps_list: *mut *mut flexio_app) -> flexio_status;
    fn flexio_app_get_name(app: *mut flexio_app) -> *const c_char;
    fn flexio_app_get_elf_size(app: *mut flexio_app) -> usize;
    fn flexio_app_get_elf(app: *mut flexio_app, elf: *mut u64, bufsz: usize) -> flexio_status;
    fn flexio_func_get_register_info(
        app: *mut flexio_app, host_stub_func_addr: flexio_func_t, pup: *mut u32, dev_func_name: *mut c_char,
        dev_unpack_func_name: *mut c_char, func_name_size: usize, argbuf_size: *mut usize,
        host_pack_func: *mut flexio_func_arg_pack_fn_t, dev_func_addr: *mut flexio_uintptr_t,
        dev_unpack_func_addr: *mut flexio_uintptr_t
    ) -> flexio_status;
    fn flexio_process_error_handler_set(
        process: *mut flexio_process, error_handler: flexio_func_t
    ) -> flexio_status;
    fn flexio_process_get_pd(process: *mut flexio_process) -> *mut ibv_pd;
    fn flexio_process_udbg_token_get(process: *mut flexio_process) -> u64;
    fn flexio_err_handler_fd(process: *mut flexio_process) -> c_int;
    fn flexio_coredump_create(process: *mut flexio_process, outfile: *const c_char) -> flexio_status;
    fn flexio_crash_data(process: *mut flexio_process, outfile: *const c_char) -> flexio_status;
    fn flexio_copy_from_host(
        process: *mut flexio_process, src_haddr: *mut c_void, buff_bsize: usize, dest_daddr_p: *mut flexio_uintptr_t
    ) -> flexio_status;
    fn flexio_log_lvl_set(lvl: flexio_log_lvl_t) -> flexio_log_lvl_t;
    fn flexio_cq_query_moderation(
        cq: *mut flexio_cq, max_count: *mut u16, period: *mut u16, mode: *mut u16
    ) -> flexio_status;
    fn flexio_cq_modify_moderation(cq: *mut flexio_cq, max_count: u16, period: u16, mode: u16) -> flexio_status;
    fn flexio_rq_create(
        process: *mut flexio_process, ibv_ctx: *mut ibv_context, cq_num: u32, fattr: *const flexio_wq_attr,
        flexio_rq_ptr: *mut *mut flexio_rq
    ) -> flexio_status;
    fn flexio_rq_set_err_state(rq: *mut flexio_rq) -> flexio_status;
    fn flexio_rq_destroy(flexio_rq: *mut flexio_rq) -> flexio_status;
    fn flexio_rq_get_wq_num(rq: *mut flexio_rq) -> u32;
    fn flexio_rq_get_tir(rq: *mut flexio_rq) -> *mut mlx5dv_devx_obj;
    fn flexio_sq_create(
        process: *mut flexio_process, ibv_ctx: *mut ibv_context, cq_num: u32, fattr: *const flexio_wq_attr,
        flexio_sq_ptr: *mut *mut flexio_sq
    ) -> flexio_status;
    fn flexio_sq_destroy(flexio_sq: *mut flexio_sq) -> flexio_status;
    fn flexio_sq_get_wq_num(sq: *mut flexio_sq) -> u32;
    fn flexio_rmp_create(
        process: *mut flexio_process, ibv_ctx: *mut ibv_context, fattr: *const flexio_wq_attr,
        flexio_rmp_ptr: *mut *mut flexio_rmp
    ) -> flexio_status;
    fn flexio_rmp_destroy(rmp: *mut flexio_rmp) -> flexio_status;
    fn flexio_rmp_get_wq_num(rmp: *mut flexio_rmp) -> u32;
    fn flexio_qp_state_get(qp: *mut flexio_qp) -> flexio_qp_state;
    fn flexio_event_handler_get_obj_id(event_handler: *mut flexio_event_handler) -> u32;
    fn flexio_uar_create(process: *mut flexio_process, uar: *mut *mut flexio_uar) -> flexio_status;
    fn flexio_uar_destroy(uar: *mut flexio_uar) -> flexio_status;
    fn flexio_uar_extend(
        in_uar: *mut flexio_uar, to_extend: *mut ibv_context, extended: *mut *mut flexio_uar
    ) -> flexio_status;
    fn flexio_uar_get_extended_id(uar: *mut flexio_uar) -> u32;
    fn flexio_cmdq_create(
        process: *mut flexio_process, fattr: *mut flexio_cmdq_attr, cmdq: *mut *mut flexio_cmdq
    ) -> flexio_status;
    fn flexio_cmdq_task_add(cmdq: *mut flexio_cmdq, host_func: flexio_func_t, arg: u64) -> flexio_status;
    fn flexio_cmdq_state_running(cmdq: *mut flexio_cmdq) -> flexio_status;
    fn flexio_cmdq_is_empty(cmdq: *mut flexio_cmdq) -> c_int;
    fn flexio_cmdq_destroy(cmdq: *mut flexio_cmdq) -> flexio_status;
    fn flexio_msg_stream_get_id(stream: *mut flexio_msg_stream) -> c_int;
    fn flexio_msg_stream_level_set(
        stream: *mut flexio_msg_stream, level: flexio_msg_dev_level
    ) -> flexio_status;
    fn flexio_log_dev_init(
        process: *mut flexio_process, log_fattr: *mut flexio_msg_stream_attr_t, out: *mut FILE,
        ppthread: *mut pthread_t
    ) -> flexio_status;
    fn flexio_log_dev_flush(process: *mut flexio_process) -> flexio_status;
    fn flexio_log_dev_destroy(process: *mut flexio_process) -> flexio_status;
}

/// Fills the table from the installed `libflexio.so`; the second one if that is the emulator's.
///
/// # Errors
/// [`LoadError`] names the library or the function that is missing.
pub fn load() -> Result<(FlexioApi, Option<EmulatorApi>), LoadError> {
    const NAMES: [&str; 3] = ["libflexio.so", "libflexio.so.2", "/opt/mellanox/flexio/lib/libflexio.so"];
    tables(&Loader::open(&NAMES, INSTALL)?)
}

/// The same from `libflexio.so` in a folder, such as the emulator's.
///
/// # Errors
/// As [`load`].
pub fn load_from(folder: &std::path::Path) -> Result<(FlexioApi, Option<EmulatorApi>), LoadError> {
    tables(&Loader::open_in(folder, &["libflexio.so", "libflexio.so.2"], INSTALL)?)
}

/// The first release with a function that the crate `flexio` calls (API references 1.5 to 2.7).
fn since(function: &str) -> &'static str {
    match function {
        "flexio_process_mem_info_get" | "flexio_err_status_get" => "2.2",
        _ if function.starts_with("flexio_msg_stream_") => "2.2",
        _ => "2.0",
    }
}

/// `FLEXIO_VER(24, 4, 0)`, which is DOCA 2.7: the release whose structures the bindings have.
const RELEASE: u64 = 24 << 24 | 4 << 16;

/// What only 3.x has. The members of its structures are in another order.
const OF_3: [&str; 3] = ["flexio_buf_dev_memalign", "flexio_app_extract_symbol", "flexio_resources_create"];

fn tables(library: &Loader) -> Result<(FlexioApi, Option<EmulatorApi>), LoadError> {
    let emulator = EmulatorApi::from_library(library);
    // Bindings of the installed headers fit the installed library. The emulator's has the structures of 2.7.
    if cfg!(not(feature = "sdk")) && emulator.is_none() {
        let found = OF_3.into_iter().find(|name| library.has(name));
        if let Some(name) = found {
            return Err(library.of_another_release(format!("3.x (it has {name})"), BINDINGS));
        }
    }
    let api = FlexioApi::from_library(library)?;
    if let Some(flexio_version_set) = api.flexio_version_set.filter(|_| emulator.is_none()) {
        // SAFETY: takes a number; it is the first call.
        if unsafe { flexio_version_set(RELEASE) } != FLEXIO_STATUS_SUCCESS {
            return Err(library.of_another_release("a release that no longer knows programs of 24.4", BINDINGS));
        }
    }
    Ok((api, emulator))
}

const BINDINGS: &str = "2.7 (FlexIO 24.4)";

/// What the emulator's `libflexio.so` exports beyond the vendor's interface (`flexcast_emu.h`), under the C names.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the header says what they do
pub struct EmulatorApi {
    pub flexcast_emu_relax: unsafe extern "C" fn() -> bool,
    pub flexcast_emu_now_ps: unsafe extern "C" fn() -> u64,
    pub flexcast_emu_is_bridged: unsafe extern "C" fn() -> bool,
}

impl EmulatorApi {
    fn from_library(library: &Loader) -> Option<Self> {
        // SAFETY: the types are those of the prototypes in flexcast_emu.h; names with this prefix are the emulator's.
        unsafe {
            Some(EmulatorApi {
                flexcast_emu_relax: library.function("flexcast_emu_relax").ok()?,
                flexcast_emu_now_ps: library.function("flexcast_emu_now_ps").ok()?,
                flexcast_emu_is_bridged: library.function("flexcast_emu_is_bridged").ok()?,
            })
        }
    }
}

const INSTALL: &str = "install DOCA with the FlexIO SDK (package flexio-sdk) on the machine that holds the card";
