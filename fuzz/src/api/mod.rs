//! Sequences of calls of verbs and FlexIO, as a C program may make them.
//!
//! Handles are live, destroyed, of another kind, null, or plain memory; numbers and flags are arbitrary; memory is as
//! long as the interface asks. Checked: what is destroyed is gone; a work request completes at most once and only if it
//! was posted; whatever was made can be destroyed again; no call writes outside its arguments; and the cards work
//! afterwards.
//!
//! An input is a row of operations: one byte that names a method of [`Api`] (see [`NAMES`]), then what that reads.

mod datapath;
mod device;
mod extended;
mod flexio;
mod handles;
mod queues;
mod seeds;
mod verbs;

use core::ptr::null_mut;
use std::collections::BTreeSet;

use flexio_sys::*;
use verbs_sys::*;

use crate::abi::{Program, image, step, with_program};
use crate::call;
use crate::input::Input;
use handles::{Handles, Kind};

pub use seeds::seeds;

const MAX_OPS: usize = 120;
/// Steps before destruction. A peer may be asked for ever, so that rest is not promised.
const MAX_STEPS: usize = 20_000;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;
type PostReceive = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32;
type Poll = unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32;
type Notify = unsafe extern "C" fn(*mut ibv_cq, i32) -> i32;

/// What `infiniband/verbs.h` finds in the table of a context.
#[derive(Clone, Copy)]
struct Inline {
    post_send: PostSend,
    post_recv: PostReceive,
    poll_cq: Poll,
    req_notify_cq: Notify,
}

/// What they find around it.
#[derive(Clone, Copy, Default)]
struct Tables {
    query_device_ex: Option<
        unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize) -> i32,
    >,
    create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
}

/// Requests that a call has taken.
struct PostedBefore(Vec<u64>);

/// The program's view of itself.
pub struct Api<'p> {
    program: &'p mut Program,
    inline: Inline,
    tables: Tables,
    handles: Handles,
    /// Queue pairs that were made with operations of the extended interface.
    extended: BTreeSet<usize>,
    /// Keys of functions, by application or not.
    keys: Vec<flexio_func_t>,
    /// Device addresses that were given out.
    addresses: Vec<u64>,
    /// Work requests that have not completed: queue pair's number, whether receives, request.
    posted: BTreeSet<(u32, bool, u64)>,
    next_request: u64,
    file: *mut libc::FILE,
}

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// Names of the operations; an operation's code is its place.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
        const OPERATIONS: &[fn(&mut Api<'_>, &mut Input<'_>)] = &[$(|api, input| api.$name(input)),*];
    };
}

operations! {
    // verbs.rs
    device_list, open_device, close_device, query_device, alloc_pd, dealloc_pd, reg_mr, dereg_mr, create_channel,
    destroy_channel, create_ah, destroy_ah, umem_reg, umem_dereg, alloc_uar, free_uar, async_event, strings,
    // queues.rs
    create_cq, destroy_cq, notify_cq, cq_event, create_qp, destroy_qp, modify_qp, connect_qp, query_qp, group, init_obj,
    // datapath.rs
    post_send, post_recv, poll_cq, let_pass,
    // extended.rs
    query_device_ex, create_qp_ex, batch,
    // flexio.rs
    app_create, app_destroy, app_query, func_register, pup_register, register_info, process_create, process_destroy,
    process_call, process_query, buf_alloc, buf_free, copy, fill,
    // device.rs
    mkey_create, mkey_destroy, flexio_cq_create,
    flexio_cq_destroy, flexio_qp_create, flexio_qp_modify, flexio_qp_destroy, handler_create, handler_run,
    handler_destroy, window_create, window_destroy, outbox_create, outbox_destroy, uar_create, uar_destroy,
    stream_create, stream_use, stream_destroy, log_device, absent,
}

/// Handles one input.
pub fn run(data: &[u8]) {
    with_program(|program| {
        let mut api = Api::open(program);
        api.operate(data);
        step(MAX_STEPS);
        api.close();
    });
}

impl<'p> Api<'p> {
    /// Opens both cards; makes a domain on each, and an application with a process on the first.
    fn open(program: &'p mut Program) -> Self {
        let verbs = program.verbs;
        let list = call!(verbs, ibv_get_device_list(null_mut()));
        let mut handles = Handles::default();
        let (mut inline, mut tables) = (None, Tables::default());
        for card in 0..2 {
            let device = list_entry(list, card);
            handles.add(Kind::Device, device, 0);
            let context = call!(verbs, ibv_open_device(device));
            (inline, tables) = (inline.or_else(|| inline_calls(context)), extended_calls(context));
            handles.add(Kind::Context, context, card as u32);
            let pd = call!(verbs, ibv_alloc_pd(context));
            assert!(!pd.is_null());
            handles.add(Kind::Pd, pd, card as u32);
        }
        call!(verbs, ibv_free_device_list(list));
        let file = {
            #[allow(unsafe_code, reason = "the C library's files")]
            // SAFETY: two terminated strings.
            unsafe {
                libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr())
            }
        };
        assert!(!file.is_null());
        let mut api = Api {
            program,
            inline: inline.expect("a context has its calls"),
            tables,
            handles,
            extended: BTreeSet::new(),
            keys: Vec::new(),
            addresses: Vec::new(),
            posted: BTreeSet::new(),
            next_request: 1,
            file,
        };
        api.create_application(&image());
        let names = [c"handler", c"ping", c"spin", c"say_handler"];
        for name in names {
            api.register_function(0, name.as_ptr());
        }
        api.create_process(api.handles.nth(Kind::Context, 0), api.handles.nth(Kind::App, 0), null_mut());
        api
    }

    fn operate(&mut self, data: &[u8]) {
        let mut input = Input::new(data);
        for _ in 0..MAX_OPS {
            if input.is_empty() {
                break;
            }
            self.program.begin_call();
            OPERATIONS[usize::from(input.u8()) % OPERATIONS.len()](self, &mut input);
        }
    }

    /// Destroys everything, newest first, as often as something goes.
    fn close(mut self) {
        loop {
            let live = self.handles.owned();
            let mut progress = false;
            for &(kind, address) in live.iter().rev() {
                self.program.begin_call();
                if self.destroy(kind, address) {
                    self.handles.retire(kind, address);
                    progress = true;
                }
            }
            let left = self.handles.owned();
            if left.is_empty() {
                break;
            }
            assert!(progress, "cannot be destroyed in any order: {left:x?}");
        }
        #[allow(unsafe_code, reason = "the C library's files")]
        // SAFETY: opened by `open`; the streams that printed to it are gone.
        unsafe {
            libc::fclose(self.file);
        }
    }

    /// Destroys an object, and says whether it is gone.
    fn destroy(&mut self, kind: Kind, address: usize) -> bool {
        let (verbs, flexio) = (self.program.verbs, self.program.flexio);
        let zero = |result: i32| result == 0;
        let ok = |status: flexio_status| status == FLEXIO_STATUS_SUCCESS;
        match kind {
            Kind::Context => zero(call!(verbs, ibv_close_device(address as *mut _))),
            Kind::Pd => zero(call!(verbs, ibv_dealloc_pd(address as *mut _))),
            Kind::Mr => zero(call!(verbs, ibv_dereg_mr(address as *mut _))),
            Kind::Channel => zero(call!(verbs, ibv_destroy_comp_channel(address as *mut _))),
            Kind::Cq => zero(call!(verbs, ibv_destroy_cq(address as *mut _))),
            Kind::Qp => self.destroy_queue_pair(address as *mut _),
            Kind::Ah => zero(call!(verbs, ibv_destroy_ah(address as *mut _))),
            Kind::Umem => zero(call!(verbs, mlx5dv_devx_umem_dereg(address as *mut _))),
            Kind::Uar => {
                call!(verbs, mlx5dv_devx_free_uar(address as *mut _));
                true
            }
            Kind::App => ok(call!(flexio, flexio_app_destroy(address as *mut _))),
            Kind::Process => ok(call!(flexio, flexio_process_destroy(address as *mut _))),
            Kind::Mkey => ok(call!(flexio, flexio_device_mkey_destroy(address as *mut _))),
            Kind::FlexioCq => ok(call!(flexio, flexio_cq_destroy(address as *mut _))),
            Kind::FlexioQp => ok(call!(flexio, flexio_qp_destroy(address as *mut _))),
            Kind::Handler => ok(call!(flexio, flexio_event_handler_destroy(address as *mut _))),
            Kind::Window => ok(call!(flexio, flexio_window_destroy(address as *mut _))),
            Kind::Outbox => ok(call!(flexio, flexio_outbox_destroy(address as *mut _))),
            Kind::FlexioUar => ok(call!(flexio, others flexio_uar_destroy(address as *mut _))),
            Kind::Stream => ok(call!(flexio, flexio_msg_stream_destroy(address as *mut _))),
            // Nobody destroys these.
            Kind::Device | Kind::Thread => true,
        }
    }

    /// An operation of the input that destroys: what is gone is refused from then on.
    fn destroy_picked(&mut self, kind: Kind, input: &mut Input<'_>) {
        let address = self.handles.pick::<u8>(kind, input, self.program) as usize;
        if self.handles.is_live(kind, address) {
            if self.destroy(kind, address) {
                self.handles.retire(kind, address);
                assert!(kind == Kind::Uar || !self.destroy(kind, address), "{kind:?} {address:#x} is gone");
            }
        } else {
            let gone = self.destroy(kind, address);
            assert!(!gone || kind == Kind::Uar, "{kind:?} {address:#x} is none");
        }
    }
}

fn list_entry(list: *mut *mut ibv_device, index: usize) -> *mut ibv_device {
    #[allow(unsafe_code, reason = "a C array")]
    // SAFETY: a list from `ibv_get_device_list` on a machine of two cards, before it is freed.
    unsafe {
        *list.add(index)
    }
}

fn inline_calls(context: *mut ibv_context) -> Option<Inline> {
    #[allow(unsafe_code, reason = "a C structure")]
    // SAFETY: a context that was opened just now.
    let ops = unsafe { (*context).ops };
    Some(Inline {
        post_send: ops.post_send?,
        post_recv: ops.post_recv?,
        poll_cq: ops.poll_cq?,
        req_notify_cq: ops.req_notify_cq?,
    })
}

fn extended_calls(context: *mut ibv_context) -> Tables {
    #[allow(unsafe_code, reason = "a C structure")]
    // SAFETY: a context that was opened just now; what is around it is there if the library says so.
    unsafe {
        inline::verbs_get_ctx(context).map_or(Tables::default(), |around| Tables {
            query_device_ex: (*around).query_device_ex,
            create_qp_ex: (*around).create_qp_ex,
        })
    }
}
