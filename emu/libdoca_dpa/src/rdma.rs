//! RDMA contexts whose datapath is on the DPA: queue pairs in its memory, one per connection.

use core::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock};

use doca_sys::*;
use emu_libdoca::failure::{Failure, Result, bad_state, invalid, put, run, unsupported};
use emu_libdoca::{Dev, DevInfo};
use emu_libibverbs::handle::{self, Object};
use emu_libibverbs::{gids, mac};
use emu_machine::nic::{Access, Gid, GidEntry, MkeyAttr, Mtu, QpAttr, QpModify, QpState, Transport};

use crate::completion::Completion;
use crate::context::process;
use crate::event::description;
use crate::layout;
use crate::mmap::rights;
use crate::process::{Process, lock, world};

/// What begins the description of a connection for its peer.
const MAGIC: u64 = u64::from_le_bytes(*b"flexrdm1");
/// Most sends, and most receives, of a connection.
const MAX_ENTRIES: u32 = 1 << 15;
/// Most connections of a context.
const MAX_CONNECTIONS: u16 = 1024;
/// log2 of a receive entry: one 16-byte segment.
const LOG_RECEIVE_STRIDE: u8 = 4;
/// Bytes of a send entry.
const SEND_BYTES: u64 = 64;
/// A peer that has no receive is asked again for ever, after the least time there is: it posts receives when it likes.
const RETRY_FOR_EVER: u8 = 7;
const MIN_RNR_TIMER: u8 = 1;

/// A context.
struct Rdma {
    /// Address of what the program sees as a context of any library.
    ctx: OnceLock<usize>,
    dev: Arc<Dev>,
    state: Mutex<State>,
}

struct State {
    access: Access,
    gid_index: u32,
    mtu: Mtu,
    sends: u32,
    receives: u32,
    max_connections: u16,
    process: Option<Arc<Process>>,
    completion: Option<Arc<Completion>>,
    started: Option<Started>,
}

/// What a started context has on the card.
struct Started {
    process: Arc<Process>,
    /// Rings and doorbell record.
    memory: u64,
    /// What kernels name it by.
    handle: u64,
    scratch_key: u32,
    queue_pairs: Vec<u32>,
    connections: Vec<Arc<Connection>>,
}

impl Object for Rdma {
    const KIND: &'static str = "RDMA context";
    type C = doca_rdma;
    fn c_address(&self) -> *mut doca_rdma {
        (self as *const Self).cast_mut().cast()
    }
}

impl Rdma {
    fn ctx(&self) -> *mut doca_ctx {
        std::ptr::without_provenance_mut(self.ctx.get().copied().unwrap_or(0))
    }
}

/// The same as a context of any library, under an address of its own.
struct AsCtx(Arc<Rdma>);

impl Object for AsCtx {
    const KIND: &'static str = "context";
    type C = doca_ctx;
    fn c_address(&self) -> *mut doca_ctx {
        (self as *const Self).cast_mut().cast()
    }
}

/// A connection of a context.
struct Connection {
    id: u32,
    number: u32,
    /// Address of the context, which it belongs to.
    owner: usize,
    details: Box<[u8]>,
    is_connected: Mutex<bool>,
}

impl Object for Connection {
    const KIND: &'static str = "RDMA connection";
    type C = doca_rdma_connection;
    fn c_address(&self) -> *mut doca_rdma_connection {
        (self as *const Self).cast_mut().cast()
    }
}

fn is_supported(call: &str, devinfo: *const doca_devinfo) -> doca_error_t {
    run(call, || Ok(handle::get::<DevInfo>(devinfo).map(drop)?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_cap_task_send_is_supported(devinfo: *const doca_devinfo) -> doca_error_t {
    is_supported("doca_rdma_cap_task_send_is_supported", devinfo)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_cap_task_receive_is_supported(devinfo: *const doca_devinfo) -> doca_error_t {
    is_supported("doca_rdma_cap_task_receive_is_supported", devinfo)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_create(dev: *mut doca_dev, rdma: *mut *mut doca_rdma) -> doca_error_t {
    run("doca_rdma_create", || {
        let dev = handle::get::<Dev>(dev)?;
        if rdma.is_null() {
            return Err(invalid("rdma is null"));
        }
        let state = State {
            access: Access::empty(),
            gid_index: 0,
            mtu: Mtu::B1024,
            sends: 128,
            receives: 128,
            max_connections: 1,
            process: None,
            completion: None,
            started: None,
        };
        let object = Arc::new(Rdma { ctx: OnceLock::new(), dev, state: Mutex::new(state) });
        object.ctx.get_or_init(|| handle::publish(&Arc::new(AsCtx(Arc::clone(&object)))) as usize);
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(rdma, "rdma", handle::publish(&object)) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_destroy(rdma: *mut doca_rdma) -> doca_error_t {
    run("doca_rdma_destroy", || {
        let object = handle::get::<Rdma>(rdma)?;
        if lock(&object.state).started.is_some() {
            return Err(Failure(DOCA_ERROR_IN_USE, "the context is started: call doca_ctx_stop first".to_owned()));
        }
        handle::retire::<AsCtx>(object.ctx())?;
        Ok(handle::retire::<Rdma>(rdma).map(drop)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_as_ctx(rdma: *mut doca_rdma) -> *mut doca_ctx {
    let mut ctx = core::ptr::null_mut();
    run("doca_rdma_as_ctx", || {
        ctx = handle::get::<Rdma>(rdma)?.ctx();
        Ok(())
    });
    ctx
}

/// Changes a context that has not started.
fn configure(rdma: &Rdma, f: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
    let mut state = lock(&rdma.state);
    if state.started.is_some() {
        return Err(bad_state("the context is started"));
    }
    f(&mut state)
}

fn change(call: &str, rdma: *mut doca_rdma, f: impl FnOnce(&mut State) -> Result<()>) -> doca_error_t {
    run(call, || configure(&*handle::get::<Rdma>(rdma)?, f))
}

/// A size from 1 on.
fn size(name: &str, value: u32, most: u32) -> Result<u32> {
    if value == 0 || value > most {
        return Err(invalid(format!("{name} is {value}: 1 to {most} are possible")));
    }
    Ok(value)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_transport_type(
    rdma: *mut doca_rdma,
    transport_type: doca_rdma_transport_type,
) -> doca_error_t {
    change("doca_rdma_set_transport_type", rdma, |_| match transport_type {
        DOCA_RDMA_TRANSPORT_TYPE_RC => Ok(()),
        DOCA_RDMA_TRANSPORT_TYPE_DC => Err(unsupported("dynamically connected transport is not emulated: RC is")),
        other => Err(invalid(format!("transport type {other}: RC (0) and DC (1) exist"))),
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_permissions(rdma: *mut doca_rdma, permissions: u32) -> doca_error_t {
    change("doca_rdma_set_permissions", rdma, |state| {
        state.access = rights(permissions)?;
        Ok(())
    })
}

/// Packets on Ethernet have one whatever is asked.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_grh_enabled(rdma: *mut doca_rdma, _grh_enabled: u8) -> doca_error_t {
    change("doca_rdma_set_grh_enabled", rdma, |_| Ok(()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_gid_index(rdma: *mut doca_rdma, gid_index: u32) -> doca_error_t {
    change("doca_rdma_set_gid_index", rdma, |state| {
        state.gid_index = gid_index;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_mtu(rdma: *mut doca_rdma, mtu: doca_mtu_size) -> doca_error_t {
    change("doca_rdma_set_mtu", rdma, |state| {
        let code = u8::try_from(mtu).ok().and_then(|code| Mtu::from_code(code + 1));
        state.mtu =
            code.ok_or_else(|| invalid(format!("mtu {mtu}: DOCA_MTU_SIZE_256_BYTES (0) to _4K_BYTES (4) are")))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_send_queue_size(
    rdma: *mut doca_rdma,
    send_queue_size: u32,
) -> doca_error_t {
    change("doca_rdma_set_send_queue_size", rdma, |state| {
        state.sends = size("send_queue_size", send_queue_size, MAX_ENTRIES)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_recv_queue_size(
    rdma: *mut doca_rdma,
    recv_queue_size: u32,
) -> doca_error_t {
    change("doca_rdma_set_recv_queue_size", rdma, |state| {
        state.receives = size("recv_queue_size", recv_queue_size, MAX_ENTRIES)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_task_receive_set_dst_buf_list_len(
    rdma: *mut doca_rdma,
    dst_buf_list_len: u32,
) -> doca_error_t {
    change("doca_rdma_task_receive_set_dst_buf_list_len", rdma, |_| match dst_buf_list_len {
        1 => Ok(()),
        other => Err(unsupported(format!("receives of {other} buffers are not emulated: of 1 they are"))),
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_set_max_num_connections(
    rdma: *mut doca_rdma,
    max_num_connections: u16,
) -> doca_error_t {
    change("doca_rdma_set_max_num_connections", rdma, |state| {
        let count = u32::from(max_num_connections);
        state.max_connections = size("max_num_connections", count, MAX_CONNECTIONS.into())? as u16;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_dpa_completion_attach(
    rdma: *mut doca_rdma,
    dpa_comp: *mut doca_dpa_completion,
) -> doca_error_t {
    change("doca_rdma_dpa_completion_attach", rdma, |state| {
        state.completion = Some(handle::get::<Completion>(dpa_comp)?);
        Ok(())
    })
}

/// A context by the handle that contexts of all libraries have.
fn of_ctx(ctx: *const doca_ctx) -> Result<Arc<Rdma>> {
    Ok(Arc::clone(&handle::get::<AsCtx>(ctx)?.0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_ctx_set_datapath_on_dpa(
    ctx: *mut doca_ctx,
    dpa_dev: *mut doca_dpa,
) -> doca_error_t {
    run("doca_ctx_set_datapath_on_dpa", || {
        let rdma = of_ctx(ctx)?;
        let process = process(dpa_dev)?;
        if process.dev.info.id != rdma.dev.info.id {
            return Err(invalid("the DPA context is on another device than the RDMA context"));
        }
        configure(&rdma, |state| {
            state.process = Some(process);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_ctx_get_state(ctx: *const doca_ctx, state: *mut doca_ctx_states) -> doca_error_t {
    run("doca_ctx_get_state", || {
        let is_started = lock(&of_ctx(ctx)?.state).started.is_some();
        let found = if is_started { DOCA_CTX_STATE_RUNNING } else { DOCA_CTX_STATE_IDLE };
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(state, "state", found) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_ctx_start(ctx: *mut doca_ctx) -> doca_error_t {
    run("doca_ctx_start", || {
        let rdma = of_ctx(ctx)?;
        configure(&rdma, |state| {
            let found = gids(rdma.dev.info.id)?.len();
            if state.gid_index as usize >= found {
                return Err(invalid(format!("gid_index is {}: the port has {found}", state.gid_index)));
            }
            state.started = Some(start(state)?);
            Ok(())
        })
    })
}

/// Makes the queue pairs of a context, in state INIT, and what kernels know it by.
fn start(state: &State) -> Result<Started> {
    let process = state.process.clone().ok_or_else(|| {
        unsupported("an RDMA context is emulated with its datapath on the DPA: call doca_ctx_set_datapath_on_dpa first")
    })?;
    let completion = state
        .completion
        .clone()
        .ok_or_else(|| bad_state("it completes nowhere: call doca_rdma_dpa_completion_attach first"))?;
    if (completion.process.card, completion.process.id) != (process.card, process.id) {
        return Err(invalid("the completion context is of another DPA context"));
    }
    let cqn = completion.number()?;
    let (log_sends, log_receives) =
        (state.sends.next_power_of_two().ilog2() as u8, state.receives.next_power_of_two().ilog2() as u8);
    let count = u64::from(state.max_connections);
    // Doorbell record and scratch memory first, then the receives of all connections, then the sends of each.
    let receive_bytes = (1_u64 << log_receives << LOG_RECEIVE_STRIDE).max(64);
    let send_bytes = SEND_BYTES << log_sends;
    let (receives, sends) = (64, 64 + receive_bytes);
    let (card, id, pd) = (process.card, process.id, process.pd);
    let memory = world(|world| {
        let memory = world.heap_alloc(card, id, sends + count * send_bytes)?;
        world.fill_memory(card, id, memory, sends, 0).map(|()| memory)
    })?;
    let place = |offset: u64| process.queue_memory(memory + offset);
    let (access, user_access) = (Access::LOCAL_WRITE, state.access);
    let (scratch_key, queue_pairs) = world(|world| {
        let nic = &mut world.card(card)?.nic;
        let scratch = MkeyAttr { pd, space: place(8).space, start: place(8).addr, len: 8, access, offset: 0 };
        let scratch_key = nic.create_mkey(scratch)?;
        let mut queue_pairs = Vec::new();
        for connection in 0..count {
            let attr = QpAttr {
                transport: Transport::Rc,
                pd,
                send_cq: cqn,
                recv_cq: cqn,
                rq: place(receives),
                log_rq_depth: log_receives,
                log_rq_stride: LOG_RECEIVE_STRIDE,
                sq: place(sends + connection * send_bytes),
                log_sq_depth: log_sends,
                no_sq: false,
                no_rq: false,
                srq: None,
                doorbell_record: place(0),
                user_index: connection as u32,
                uar: process.uar,
            };
            queue_pairs.push(nic.create_qp(attr)?);
        }
        if let Some((first, others)) = queue_pairs.split_first() {
            others.iter().try_for_each(|other| nic.share_receives(*first, *other))?;
        }
        Ok::<_, Failure>((scratch_key, queue_pairs))
    })?;
    let init =
        QpModify { next_state: Some(QpState::Init), access: Some(user_access), port: Some(1), ..Default::default() };
    queue_pairs.iter().try_for_each(|number| modify(&process, *number, &init))?;
    let connections: Vec<_> = (0..)
        .zip(&queue_pairs)
        .map(|(at, &number)| layout::Connection {
            ring: place(sends + at * send_bytes).addr,
            number,
            log_depth: log_sends,
        })
        .collect();
    let content = layout::Rdma {
        ring: place(receives).addr,
        record: place(0).addr,
        log_depth: log_receives,
        scratch: place(8).addr,
        scratch_key,
    };
    let handle = process.place(&content.bytes(&connections))?;
    Ok(Started { process, memory, handle, scratch_key, queue_pairs, connections: Vec::new() })
}

fn modify(process: &Process, number: u32, modify: &QpModify) -> Result<()> {
    world(|world| {
        let now_ps = world.now_ps();
        let call = world.nic_call(process.card, |nic, effects| nic.modify_qp(now_ps, number, modify, effects));
        Ok::<_, Failure>(call??)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_ctx_stop(ctx: *mut doca_ctx) -> doca_error_t {
    run("doca_ctx_stop", || {
        let rdma = of_ctx(ctx)?;
        let started = lock(&rdma.state).started.take().ok_or_else(|| bad_state("the context is not started"))?;
        let Started { process, memory, handle: own, scratch_key, queue_pairs, connections, .. } = started;
        for connection in connections {
            handle::retire::<Connection>(connection.c_address())?;
        }
        world(|world| {
            let nic = &mut world.card(process.card)?.nic;
            queue_pairs.iter().try_for_each(|number| nic.destroy_qp(*number))?;
            Ok::<_, Failure>(nic.destroy_mkey(scratch_key)?)
        })?;
        process.free(own)?;
        process.free(memory)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_get_dpa_handle(
    rdma: *mut doca_rdma,
    dpa_rdma: *mut doca_dpa_dev_rdma_t,
) -> doca_error_t {
    run("doca_rdma_get_dpa_handle", || {
        let rdma = handle::get::<Rdma>(rdma)?;
        let state = lock(&rdma.state);
        let started = state.started.as_ref().ok_or_else(not_started)?;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(dpa_rdma, "dpa_rdma", started.handle) }
    })
}

fn not_started() -> Failure {
    bad_state("the context is not started: call doca_ctx_start first")
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_export(
    rdma: *mut doca_rdma,
    local_rdma_conn_details: *mut *const c_void,
    local_rdma_conn_details_size: *mut usize,
    rdma_connection: *mut *mut doca_rdma_connection,
) -> doca_error_t {
    run("doca_rdma_export", || {
        let object = handle::get::<Rdma>(rdma)?;
        let mut state = lock(&object.state);
        let gid_index = state.gid_index as usize;
        let started = state.started.as_mut().ok_or_else(not_started)?;
        let id = started.connections.len();
        let Some(&number) = started.queue_pairs.get(id) else {
            let reason = format!("all {id} connections are exported: doca_rdma_set_max_num_connections allows more");
            return Err(Failure(DOCA_ERROR_FULL, reason));
        };
        if rdma_connection.is_null() {
            return Err(invalid("rdma_connection is null"));
        }
        let function = object.dev.info.id;
        let GidEntry { gid: Gid(gid), .. } = gids(function)?[gid_index];
        let [a, b, c, d, e, f] = mac(function)?;
        let (high, low) = gid.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(core::array::from_fn(|at| bytes[at]));
        let words = [MAGIC, u64::from(number), word(high), word(low), u64::from_le_bytes([a, b, c, d, e, f, 0, 0])];
        let details: Box<[u8]> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let connection = Arc::new(Connection {
            id: id as u32,
            number,
            owner: rdma as usize,
            details,
            is_connected: Mutex::default(),
        });
        // SAFETY: null, or writable as the caller promises.
        unsafe {
            put(local_rdma_conn_details, "local_rdma_conn_details", connection.details.as_ptr().cast())?;
            put(local_rdma_conn_details_size, "local_rdma_conn_details_size", connection.details.len())?;
            put(rdma_connection, "rdma_connection", handle::publish(&connection))?;
        }
        started.connections.push(connection);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_connect(
    rdma: *mut doca_rdma,
    remote_rdma_conn_details: *const c_void,
    remote_rdma_conn_details_size: usize,
    rdma_connection: *mut doca_rdma_connection,
) -> doca_error_t {
    run("doca_rdma_connect", || {
        let object = handle::get::<Rdma>(rdma)?;
        let connection = handle::get::<Connection>(rdma_connection)?;
        // SAFETY: null, or readable as the caller promises.
        let [_, peer, high, low, mac] =
            unsafe { description(MAGIC, remote_rdma_conn_details.cast(), remote_rdma_conn_details_size) }?;
        let state = lock(&object.state);
        let started = state.started.as_ref().ok_or_else(not_started)?;
        if connection.owner != rdma as usize {
            return Err(invalid("the connection is of another RDMA context"));
        }
        let mut is_connected = lock(&connection.is_connected);
        if *is_connected {
            return Err(bad_state("the connection is connected already"));
        }
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&high.to_le_bytes());
        gid[8..].copy_from_slice(&low.to_le_bytes());
        let is_own = gids(object.dev.info.id)?.iter().any(|entry| entry.gid == Gid(gid));
        let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
        let ready = QpModify {
            next_state: Some(QpState::Rtr),
            path_mtu: Some(state.mtu),
            dest_qpn: Some(peer as u32),
            rq_psn: Some(0),
            rgid: Some(Gid(gid)),
            dmac: Some([a, b, c, d, e, f]),
            sgid_index: Some(state.gid_index as u8),
            min_rnr_timer: Some(MIN_RNR_TIMER),
            max_dest_rd_atomic: Some(16),
            force_loopback: Some(is_own),
            ..Default::default()
        };
        let send = QpModify {
            next_state: Some(QpState::Rts),
            sq_psn: Some(0),
            retry_cnt: Some(7),
            rnr_retry: Some(RETRY_FOR_EVER),
            max_rd_atomic: Some(16),
            ..Default::default()
        };
        let process = &started.process;
        modify(process, connection.number, &ready)?;
        modify(process, connection.number, &send)?;
        process.write(started.handle + layout::Rdma::is_connected(connection.id), &1_u32.to_le_bytes())?;
        *is_connected = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_rdma_connection_get_id(
    rdma_connection: *const doca_rdma_connection,
    connection_id: *mut u32,
) -> doca_error_t {
    run("doca_rdma_connection_get_id", || {
        let id = handle::get::<Connection>(rdma_connection)?.id;
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(connection_id, "connection_id", id) }
    })
}
