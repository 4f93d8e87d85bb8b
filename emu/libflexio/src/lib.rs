//! The host C ABI of libflexio (2.7 generation), over the emulated cards.
//!
//! Programs written for FlexIO run on it unmodified: Rust hosts take the functions from [`api`], C programs link the
//! shared library (README.md). Every handle is checked against the set of live ones, so a null, foreign or destroyed
//! one gives `FLEXIO_STATUS_FAILED`. Failures are explained on stderr, as the vendor's library does. A panic inside the
//! emulator becomes `FLEXIO_STATUS_FATAL_ERR` and never reaches the caller's frames.
//!
//! What the emulated card does not have (shared receive queues, moderation, other virtual functions) fails and says
//! so.
// A C ABI passes raw pointers.
#![allow(unsafe_code)]

mod app;
pub mod call;
mod clock;
mod cmdq;
mod cq;
mod ethernet;
mod mkey;
mod observe;
mod process;
mod qp;
mod status;
mod stream;
mod thread;
mod unsupported;
mod version;
mod window;

pub use app::{App, Function, Rpc};
use flexio_sys::FlexioApi;
pub use observe::{attach, before_destroy};
pub use status::Failure;

/// The emulator's functions, under their C names.
#[must_use]
pub fn api() -> FlexioApi {
    use {
        app::*, call::*, cmdq::*, cq::*, ethernet::*, mkey::*, observe::*, process::*, qp::*, status::*, stream::*,
        thread::*, unsupported::*, version::*, window::*,
    };
    emu_libibverbs::log::leave_to_host();
    FlexioApi {
        flexio_version_set: Some(flexio_version_set),
        flexio_app_create,
        flexio_app_destroy,
        flexio_app_get_list: Some(flexio_app_get_list),
        flexio_app_list_free: Some(flexio_app_list_free),
        flexio_app_get_name: Some(flexio_app_get_name),
        flexio_app_get_elf_size: Some(flexio_app_get_elf_size),
        flexio_app_get_elf: Some(flexio_app_get_elf),
        flexio_func_register,
        flexio_func_pup_register,
        flexio_func_get_register_info: Some(flexio_func_get_register_info),
        flexio_process_create,
        flexio_process_destroy,
        flexio_process_call,
        flexio_process_error_handler_set: Some(flexio_process_error_handler_set),
        flexio_process_mem_info_get,
        flexio_process_get_uar,
        flexio_process_get_pd: Some(flexio_process_get_pd),
        flexio_process_get_dumem_id,
        flexio_process_udbg_token_get: Some(flexio_process_udbg_token_get),
        flexio_err_handler_fd: Some(flexio_err_handler_fd),
        flexio_err_status_get,
        flexio_coredump_create: Some(flexio_coredump_create),
        flexio_crash_data: Some(flexio_crash_data),
        flexio_buf_dev_alloc,
        flexio_buf_dev_free,
        flexio_host2dev_memcpy,
        flexio_buf_dev_memset,
        flexio_copy_from_host: Some(flexio_copy_from_host),
        flexio_device_mkey_create,
        flexio_device_mkey_destroy,
        flexio_mkey_get_id,
        flexio_log_lvl_set: Some(flexio_log_lvl_set),
        flexio_cq_create,
        flexio_cq_destroy,
        flexio_cq_get_cq_num,
        flexio_cq_query_moderation: Some(flexio_cq_query_moderation),
        flexio_cq_modify_moderation: Some(flexio_cq_modify_moderation),
        flexio_rq_create: Some(flexio_rq_create),
        flexio_rq_set_err_state: Some(flexio_rq_set_err_state),
        flexio_rq_destroy: Some(flexio_rq_destroy),
        flexio_rq_get_wq_num: Some(flexio_rq_get_wq_num),
        flexio_rq_get_tir: Some(flexio_rq_get_tir),
        flexio_sq_create: Some(flexio_sq_create),
        flexio_sq_destroy: Some(flexio_sq_destroy),
        flexio_sq_get_wq_num: Some(flexio_sq_get_wq_num),
        flexio_rmp_create: Some(flexio_rmp_create),
        flexio_rmp_destroy: Some(flexio_rmp_destroy),
        flexio_rmp_get_wq_num: Some(flexio_rmp_get_wq_num),
        flexio_qp_create,
        flexio_qp_modify,
        flexio_qp_destroy,
        flexio_qp_get_qp_num,
        flexio_qp_state_get: Some(flexio_qp_state_get),
        flexio_event_handler_create,
        flexio_event_handler_run,
        flexio_event_handler_destroy,
        flexio_event_handler_get_thread,
        flexio_event_handler_get_id,
        flexio_event_handler_get_obj_id: Some(flexio_event_handler_get_obj_id),
        flexio_window_create,
        flexio_window_destroy,
        flexio_window_get_id,
        flexio_outbox_create,
        flexio_outbox_destroy,
        flexio_outbox_get_id,
        flexio_outbox_get_uar,
        flexio_uar_create: Some(flexio_uar_create),
        flexio_uar_destroy: Some(flexio_uar_destroy),
        flexio_uar_get_id,
        flexio_uar_extend: Some(flexio_uar_extend),
        flexio_uar_get_extended_id: Some(flexio_uar_get_extended_id),
        flexio_cmdq_create: Some(flexio_cmdq_create),
        flexio_cmdq_task_add: Some(flexio_cmdq_task_add),
        flexio_cmdq_state_running: Some(flexio_cmdq_state_running),
        flexio_cmdq_is_empty: Some(flexio_cmdq_is_empty),
        flexio_cmdq_destroy: Some(flexio_cmdq_destroy),
        flexio_msg_stream_create,
        flexio_msg_stream_destroy,
        flexio_msg_stream_flush,
        flexio_msg_stream_get_id: Some(flexio_msg_stream_get_id),
        flexio_msg_stream_level_set: Some(flexio_msg_stream_level_set),
        flexio_log_dev_init: Some(flexio_log_dev_init),
        flexio_log_dev_flush: Some(flexio_log_dev_flush),
        flexio_log_dev_destroy: Some(flexio_log_dev_destroy),
    }
}
