//! Opening of devices: the tables of calls that programs make through their context.

use core::ffi::c_int;
use std::sync::Arc;

use emu_machine::FunctionId;
use verbs_sys::*;

use crate::device::{self, Context, query_port_whole};
use crate::errno::{Errno, input, pointer, status};
use crate::failures::{self, Events};
use crate::handle::{self, CStruct, Object};
use crate::machine::{self, with_world};
use crate::{channel, cq, cq_changes, dm, extended, extended_cq, pd, post, refused, srq, window};

extern "C" fn report_races() {
    emu_bridge::report_races();
}

/// Has the number of races reported when the program ends, once.
fn report_races_at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the function only reads a counter and writes on stderr, neither of which ends with the program's own
    // handlers; a library that is unloaded runs its handlers before. Full tables leave out a line.
    ONCE.call_once(|| _ = unsafe { libc::atexit(report_races) });
}

/// Hands all events of the calling thread's machine to their channels and devices.
fn deliver_events() {
    for distribute in [channel::distribute, failures::distribute] {
        if let Err(error) = distribute() {
            tracing::debug!(reason = error.reason, "events could not be delivered");
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer("ibv_open_device", || {
        let device = device::find(device)?;
        let FunctionId { card, function } = device.id;
        if machine::is_elsewhere()? {
            crate::device::gids(device.id)?;
        } else if with_world(|world| world.vhca(device.id).map(|_| ()).map(|()| world.config().detect_races))?? {
            report_races_at_exit();
        }
        // SAFETY: integers, null pointers and empty function slots are valid all-zero.
        let mut public: verbs_context = unsafe { core::mem::zeroed() };
        public.query_port = Some(query_port_whole);
        public.query_device_ex = Some(extended::query_device_ex);
        public.create_qp_ex = Some(extended::create_qp_ex);
        public.create_srq_ex = Some(srq::create_srq_ex);
        public.get_srq_num = Some(srq::get_srq_num);
        public.advise_mr = Some(pd::advise_mr);
        public.alloc_td = Some(pd::alloc_td);
        public.dealloc_td = Some(pd::dealloc_td);
        public.alloc_parent_domain = Some(pd::alloc_parent_domain);
        public.alloc_dm = Some(dm::alloc_dm);
        public.free_dm = Some(dm::free_dm);
        public.reg_dm_mr = Some(pd::reg_dm_mr);
        public.modify_cq = Some(cq_changes::modify_cq);
        public.query_rt_values = Some(extended_cq::query_rt_values);
        public.create_cq_ex = Some(extended_cq::create_cq_ex);
        public.sz = size_of::<verbs_context>();
        refused::fill(&mut public);
        let context = &mut public.context;
        context.device = device.c_address();
        context.ops.poll_cq = Some(cq::poll_cq);
        context.ops.req_notify_cq = Some(cq::req_notify_cq);
        context.ops.post_send = Some(post::post_send);
        context.ops.post_recv = Some(post::post_recv);
        context.ops.alloc_mw = Some(window::alloc_mw);
        context.ops.bind_mw = Some(post::bind_mw);
        context.ops.dealloc_mw = Some(window::dealloc_mw);
        context.ops.post_srq_recv = Some(srq::post_srq_recv);
        context.ops._compat_query_device = Some(device::ibv_query_device);
        context.ops._compat_query_port = Some(device::ibv_query_port);
        let events = Events::new("asynchronous events")?;
        context.cmd_fd = -1;
        context.async_fd = events.fd();
        context.num_comp_vectors = 1;
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        context.abi_compat = usize::MAX as *mut _;
        let machine = failures::machine()?;
        let context = Arc::new(Context { public: CStruct::new(public), card, function, machine, events });
        failures::watch_context(&context);
        emu_machine::on_events(deliver_events);
        Ok(handle::publish(&context))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // Objects made from the context keep it alive, so its address stays valid in their `context` fields.
    status("ibv_close_device", || Ok(handle::retire::<Context>(context).map(drop)?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    let known = pointer("mlx5dv_open_device", || {
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "attr") }?;
        if attr.comp_mask != 0 || attr.flags & !MLX5DV_CONTEXT_FLAGS_DEVX != 0 {
            return Err(Errno::unsupported(format!(
                "context flags {:#x} with mask {:#x}: only DevX (1) is known",
                attr.flags, attr.comp_mask
            )));
        }
        Ok(device)
    });
    if known.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: as the caller vouched for this call.
    unsafe { ibv_open_device(known) }
}
