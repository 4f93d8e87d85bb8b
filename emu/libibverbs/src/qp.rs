//! Queue pairs of the host.

use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_machine::nic::{Access, Gid, Mtu, QpAttr, QpModify, QpQuery, QpState, Transport};
use verbs_sys::*;

use crate::acknowledged::Acknowledged;
use crate::address::{self, AV_BYTES};
use crate::card;
use crate::card::request::Request;
use crate::cq::Cq;
use crate::device::{self, Context, MAX_SGE, check_port};
use crate::errno::{Errno, Result, input, out, pointer, status};
use crate::extended::{self, Batches};
use crate::failures;
use crate::handle::{self, CStruct, Object};
use crate::indirect;
use crate::machine::begin_command;
use crate::memory::QueueBuffer;
use crate::pd::Pd;
use crate::segments::{BLOCK_BYTES, SEGMENT_BYTES};
use crate::srq::Srq;

/// Most inline bytes of a send.
pub(crate) const MAX_INLINE_BYTES: u32 = 512;
/// Deepest ring: entries of a receive ring, or 64-byte blocks of a send ring.
const MAX_DEPTH: u32 = 1 << 15;

/// Blocks of a request that binds a memory window.
const WINDOW_BLOCKS: u32 = 3;

/// The structures behind a queue pair's address: that of the extended interface, and that of direct verbs.
#[repr(C)]
struct Interface {
    verbs: ibv_qp_ex,
    direct: mlx5dv_qp_ex,
}

pub(crate) struct Qp {
    /// Begins with what every queue pair has; see [`Qp::extended`] for the rest.
    public: CStruct<Interface>,
    /// Operations of the extended interface, if the queue pair was made with it.
    pub(crate) send_ops: Option<u64>,
    /// The card forgets it at each reset and is given it again.
    block_multicast_loopback: bool,
    pub(crate) batches: Batches,
    /// It binds keys over other keys.
    pub(crate) mr_lists: bool,
    pub(crate) number: u32,
    pub(crate) transport: Transport,
    pub(crate) shape: Shape,
    pub(crate) signal_all: bool,
    pub(crate) buffer: QueueBuffer,
    pd: Arc<Pd>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    /// The queue that its receives are taken from.
    pub(crate) srq: Option<Arc<Srq>>,
    inner: Mutex<Rings>,
    events: Acknowledged,
    qp_context: usize,
}

/// Sizes and places of the rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cap: ibv_qp_cap,
    /// log2 of receives; `None` without a receive ring.
    pub(crate) log_receives: Option<u8>,
    pub(crate) log_stride: u8,
    /// log2 of 64-byte blocks; `None` without a send ring.
    pub(crate) log_blocks: Option<u8>,
    pub(crate) send_offset: usize,
    pub(crate) record_offset: usize,
}

/// A send that was posted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Send {
    /// Its request id.
    pub(crate) id: u64,
    pub(crate) blocks: u32,
    pub(crate) binds_window: bool,
}

/// Where the software is in its rings.
pub(crate) struct Rings {
    /// Blocks posted and retired, modulo 2^32.
    pub(crate) send_head: u32,
    pub(crate) send_tail: u32,
    /// Per block: the entry that starts there.
    pub(crate) sends: Vec<Send>,
    pub(crate) receive_head: u32,
    pub(crate) receive_tail: u32,
    pub(crate) receives: Vec<u64>,
    /// The state that this process has brought the queue pair into last.
    state: QpState,
}

impl Object for Qp {
    const KIND: &'static str = "queue pair";
    type C = ibv_qp;
    fn c_address(&self) -> *mut ibv_qp {
        self.public.get().cast()
    }
}

impl failures::Source for Qp {
    fn take(&self, event: &mut ibv_async_event) -> bool {
        event.element.qp = self.c_address();
        self.events.take()
    }
}

impl Qp {
    /// The number in the public structure that `field` finds.
    fn shown(&self, field: impl FnOnce(*mut ibv_qp) -> *mut u32) -> &AtomicU32 {
        // SAFETY: a field of the structure, which lives as long as `self` and is aligned. This library accesses it as
        // an atomic alone, and programs read it.
        unsafe { AtomicU32::from_ptr(field(self.c_address())) }
    }

    pub(crate) fn acknowledge_event(&self) -> Result<()> {
        // SAFETY: only the address of a field is taken.
        let shown = self.shown(|public| unsafe { &raw mut (*public).events_completed });
        self.events.acknowledge(1, shown)
    }

    /// Shows the program the state.
    fn show_state(&self, state: ibv_qp_state) {
        // SAFETY: only the address of a field is taken.
        self.shown(|public| unsafe { &raw mut (*public).state }).store(state, Ordering::Relaxed);
    }

    /// The extended interface, if the queue pair was made with it.
    pub(crate) fn extended(&self) -> Option<*mut ibv_qp_ex> {
        self.send_ops.map(|_| self.public.get().cast())
    }

    /// The interface of direct verbs.
    pub(crate) fn direct(&self) -> *mut mlx5dv_qp_ex {
        // SAFETY: only the address of a field is taken.
        unsafe { &raw mut (*self.public.get()).direct }
    }

    /// The extended interface of the queue pair with this interface of direct verbs: the caller must check the
    /// address, since there may be none.
    pub(crate) fn around(direct: *mut mlx5dv_qp_ex) -> *mut ibv_qp_ex {
        direct.wrapping_byte_sub(core::mem::offset_of!(Interface, direct)).cast()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Rings> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The send whose entry starts at block `counter`; it and all before it are done.
    pub(crate) fn retire_send(&self, counter: u16) -> Send {
        let mut rings = self.lock();
        let mask = rings.sends.len().wrapping_sub(1);
        let Some(&send) = rings.sends.get(usize::from(counter) & mask) else { return Send::default() };
        // The tail is behind by less than the ring, which has at most 2^15 blocks: 16 bits determine where it goes.
        let ahead = counter.wrapping_sub(rings.send_tail as u16);
        rings.send_tail = rings.send_tail.wrapping_add(u32::from(ahead) + send.blocks);
        send
    }

    /// The request id of the receive at `counter`.
    pub(crate) fn retire_receive(&self, counter: u16) -> u64 {
        if let Some(srq) = &self.srq {
            return srq.retire(counter);
        }
        let mut rings = self.lock();
        let mask = rings.receives.len().wrapping_sub(1);
        let Some(&id) = rings.receives.get(usize::from(counter) & mask) else { return 0 };
        rings.receive_tail = rings.receive_tail.wrapping_add(1);
        id
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }

    pub(crate) fn state(&self) -> Result<QpState> {
        card::queue_pair_state(self.context().id(), self.number, || self.lock().state)
    }

    fn query(&self) -> Result<QpQuery> {
        card::call(self.context().id(), Request::QueryQp { qpn: self.number })?.queue_pair()
    }

    fn forget_completions(&self) -> Result<()> {
        self.send_cq.forget(self.number)?;
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.forget(self.number)?;
        }
        Ok(())
    }

    /// Where the doorbell record lies: receive counter, send counter.
    pub(crate) fn record_address(&self) -> *mut u8 {
        self.buffer.at(self.shape.record_offset)
    }
}

fn log2_at_least(value: u32) -> u8 {
    value.next_power_of_two().trailing_zeros() as u8
}

impl Shape {
    fn new(cap: &ibv_qp_cap, transport: Transport, mr_lists: bool) -> Result<Shape> {
        for (name, value, limit) in [
            ("max_send_wr", cap.max_send_wr, MAX_DEPTH),
            ("max_recv_wr", cap.max_recv_wr, MAX_DEPTH),
            ("max_send_sge", cap.max_send_sge, MAX_SGE),
            ("max_recv_sge", cap.max_recv_sge, MAX_SGE),
            ("max_inline_data", cap.max_inline_data, MAX_INLINE_BYTES),
        ] {
            if value > limit {
                return Err(Errno::invalid(format!("{name} is {value}, but may be at most {limit}")));
            }
        }
        let max_send_sge = cap.max_send_sge.max(1);
        let max_recv_sge = cap.max_recv_sge.max(1);
        let head = SEGMENT_BYTES + if transport == Transport::Ud { AV_BYTES } else { SEGMENT_BYTES };
        let gather = max_send_sge as usize * SEGMENT_BYTES;
        let inline = (4 + cap.max_inline_data as usize).next_multiple_of(SEGMENT_BYTES);
        // A list of keys takes the room of inline data, in whole blocks behind two others.
        let list = if mr_lists { 2 * BLOCK_BYTES + inline.next_multiple_of(BLOCK_BYTES) } else { 0 };
        let blocks = (head + gather.max(inline)).max(list).div_ceil(BLOCK_BYTES) as u32;
        // A binding of a memory window fits into an empty ring.
        let least = if transport == Transport::Ud { 1 } else { WINDOW_BLOCKS };
        let log_blocks = (cap.max_send_wr > 0).then(|| log2_at_least((cap.max_send_wr * blocks).max(least)));
        if log_blocks.is_some_and(|log| 1 << log > MAX_DEPTH) {
            return Err(Errno::invalid(format!(
                "{} sends of {blocks} blocks each: a send ring has at most {MAX_DEPTH} blocks",
                cap.max_send_wr
            )));
        }
        let log_receives = (cap.max_recv_wr > 0).then(|| log2_at_least(cap.max_recv_wr));
        let log_stride = log2_at_least(max_recv_sge * SEGMENT_BYTES as u32);
        let receive_bytes = log_receives.map_or(0, |log| 1_usize << log << log_stride);
        let send_offset = receive_bytes.next_multiple_of(BLOCK_BYTES);
        let send_bytes = log_blocks.map_or(0, |log| BLOCK_BYTES << log);
        let cap = ibv_qp_cap {
            max_send_wr: log_blocks.map_or(0, |log| (1 << log) / blocks),
            max_recv_wr: log_receives.map_or(0, |log| 1 << log),
            max_send_sge,
            max_recv_sge,
            max_inline_data: cap.max_inline_data,
        };
        Ok(Shape { cap, log_receives, log_stride, log_blocks, send_offset, record_offset: send_offset + send_bytes })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer("ibv_create_qp", || {
        let pd = handle::get::<Pd>(pd)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let attr = unsafe { init_attr.as_mut() }.ok_or_else(|| Errno::invalid("qp_init_attr is null"))?;
        Ok(handle::publish(&create(pd, attr, Extras::default())?))
    })
}

/// The transport service of a queue pair type.
pub(crate) fn transport(qp_type: ibv_qp_type) -> Result<Transport> {
    Ok(match qp_type {
        IBV_QPT_RC => Transport::Rc,
        IBV_QPT_UC => Transport::Uc,
        IBV_QPT_UD => Transport::Ud,
        other => return Err(Errno::unsupported(format!("queue pair type {other}: RC, UC and UD are emulated"))),
    })
}

/// What only `ibv_create_qp_ex` and `mlx5dv_create_qp` ask for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extras {
    /// Operations of the extended interface, if it is wanted.
    pub(crate) send_ops: Option<u64>,
    /// Packets to a group do not come back to the card.
    pub(crate) block_multicast_loopback: bool,
    /// It binds keys over other keys.
    pub(crate) mr_lists: bool,
    /// It is that of the port's general services.
    pub(crate) gsi: bool,
}

/// Makes a queue pair, without publishing it.
pub(crate) fn create(pd: Arc<Pd>, attr: &mut ibv_qp_init_attr, extras: Extras) -> Result<Arc<Qp>> {
    let Extras { send_ops, block_multicast_loopback, mr_lists, gsi } = extras;
    let transport = transport(attr.qp_type)?;
    let srq = if attr.srq.is_null() { None } else { Some(handle::get::<Srq>(attr.srq)?) };
    if srq.is_some() && transport == Transport::Uc {
        return Err(Errno::invalid("a UC queue pair has receives of its own: RC and UD may share some"));
    }
    let send_cq = handle::get::<Cq>(attr.send_cq)?;
    let recv_cq = handle::get::<Cq>(attr.recv_cq)?;
    let id = pd.context.id();
    if send_cq.context.id() != id || recv_cq.context.id() != id {
        return Err(Errno::invalid(
            "protection domain and completion queues are on different cards, or functions of one",
        ));
    }
    if srq.as_ref().is_some_and(|srq| srq.pd.context.id() != id) {
        return Err(Errno::invalid("the shared receive queue is on another card, or of another function of this one"));
    }
    if srq.is_some() {
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    }
    let shape = Shape::new(&attr.cap, transport, mr_lists)?;
    let buffer = QueueBuffer::new(id, shape.record_offset + BLOCK_BYTES)?;
    let nic_attr = QpAttr {
        transport,
        pd: pd.number,
        send_cq: send_cq.number,
        recv_cq: recv_cq.number,
        rq: buffer.place(0),
        log_rq_depth: shape.log_receives.unwrap_or(0),
        log_rq_stride: shape.log_stride,
        sq: buffer.place(shape.send_offset),
        log_sq_depth: shape.log_blocks.unwrap_or(0),
        no_sq: shape.log_blocks.is_none(),
        no_rq: shape.log_receives.is_none(),
        srq: srq.as_ref().map(|srq| srq.number),
        doorbell_record: buffer.place(shape.record_offset),
        user_index: 0,
        uar: 0,
    };
    begin_command(id)?;
    let request = if gsi { Request::CreateGsiQp { attr: nic_attr } } else { Request::CreateQp { attr: nic_attr } };
    let number = card::call(id, request)?.number()?;
    attr.cap = shape.cap;
    let qp_base = ibv_qp {
        context: pd.context.c_address(),
        qp_context: attr.qp_context,
        pd: pd.c_address(),
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: number,
        qp_num: number,
        state: IBV_QPS_RESET,
        qp_type: attr.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let rings = Rings {
        send_head: 0,
        send_tail: 0,
        sends: vec![Send::default(); shape.log_blocks.map_or(0, |log| 1 << log)],
        receive_head: 0,
        receive_tail: 0,
        receives: vec![0; shape.log_receives.map_or(0, |log| 1 << log)],
        state: QpState::Reset,
    };
    let qp = Arc::new(Qp {
        public: CStruct::new(Interface { verbs: extended::interface(qp_base), direct: indirect::interface() }),
        send_ops,
        block_multicast_loopback,
        batches: Batches::default(),
        mr_lists,
        number,
        transport,
        shape,
        signal_all: attr.sq_sig_all != 0,
        buffer,
        pd,
        send_cq,
        recv_cq,
        srq,
        inner: Mutex::new(rings),
        events: Acknowledged::default(),
        qp_context: attr.qp_context as usize,
    });
    for cq in [&qp.send_cq, &qp.recv_cq] {
        cq.lock().queue_pairs.insert(number, Arc::downgrade(&qp));
    }
    failures::watch(qp.context(), qp.record_address() as u64, &qp);
    Ok(qp)
}

/// Waits until the program has acknowledged the events of the queue pair that it has taken.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    const CALL: &str = "ibv_destroy_qp";
    status(CALL, || {
        let queue_pair = handle::get::<Qp>(qp)?;
        begin_command(queue_pair.context().id())?;
        card::done(queue_pair.context().id(), Request::DestroyQp { qpn: queue_pair.number })?;
        queue_pair.forget_completions()?;
        for cq in [&queue_pair.send_cq, &queue_pair.recv_cq] {
            cq.lock().queue_pairs.remove(&queue_pair.number);
        }
        queue_pair.events.close(CALL, &format!("queue pair {:#x} (ibv_ack_async_event)", queue_pair.number));
        handle::retire::<Qp>(qp)?;
        Ok(())
    })
}

/// Attributes this library passes on; the rest must not be asked for.
const KNOWN_ATTRIBUTES: u32 = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_DEST_QPN;

fn qp_state(state: ibv_qp_state) -> Result<QpState> {
    Ok(match state {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_ERR => QpState::Err,
        other => {
            return Err(Errno::unsupported(format!("queue pair state {other}: RESET, INIT, RTR, RTS and ERR are")));
        }
    })
}

fn ibv_state(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Err => IBV_QPS_ERR,
    }
}

fn modification(qp: &Qp, attr: &ibv_qp_attr, mask: u32) -> Result<QpModify> {
    if mask & !KNOWN_ATTRIBUTES != 0 {
        return Err(Errno::unsupported(format!("attributes {:#x} are not emulated", mask & !KNOWN_ATTRIBUTES)));
    }
    fn given<T>(mask: u32, flag: u32, value: T) -> Option<T> {
        (mask & flag != 0).then_some(value)
    }
    let mut modify = QpModify {
        qkey: given(mask, IBV_QP_QKEY, attr.qkey),
        pkey_index: given(mask, IBV_QP_PKEY_INDEX, attr.pkey_index),
        port: given(mask, IBV_QP_PORT, attr.port_num),
        dest_qpn: given(mask, IBV_QP_DEST_QPN, attr.dest_qp_num),
        rq_psn: given(mask, IBV_QP_RQ_PSN, attr.rq_psn & 0xFF_FFFF),
        sq_psn: given(mask, IBV_QP_SQ_PSN, attr.sq_psn & 0xFF_FFFF),
        retry_cnt: given(mask, IBV_QP_RETRY_CNT, attr.retry_cnt),
        rnr_retry: given(mask, IBV_QP_RNR_RETRY, attr.rnr_retry),
        min_rnr_timer: given(mask, IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer),
        timeout: given(mask, IBV_QP_TIMEOUT, attr.timeout),
        max_rd_atomic: given(mask, IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
        max_dest_rd_atomic: given(mask, IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        ..Default::default()
    };
    if mask & IBV_QP_STATE != 0 {
        modify.next_state = Some(qp_state(attr.qp_state)?);
        if modify.next_state == Some(QpState::Init) {
            modify.block_multicast_loopback = Some(qp.block_multicast_loopback);
        }
    }
    if mask & IBV_QP_CUR_STATE != 0 {
        let state = qp.state()?;
        if attr.cur_qp_state != ibv_state(state) {
            let believed = attr.cur_qp_state;
            return Err(Errno::invalid(format!("cur_qp_state is {believed}, but the queue pair is in {state}")));
        }
    }
    if mask & IBV_QP_ACCESS_FLAGS != 0 {
        let rights = Access::from_bits(attr.qp_access_flags)
            .ok_or_else(|| Errno::unsupported(format!("access flags {:#x} of a queue pair", attr.qp_access_flags)))?;
        modify.access = Some(rights);
    }
    if mask & IBV_QP_PATH_MTU != 0 {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
        modify.path_mtu = Some(mtu.ok_or_else(|| Errno::invalid(format!("path MTU code {}", attr.path_mtu)))?);
    }
    if mask & IBV_QP_AV != 0 {
        check_port(attr.ah_attr.port_num.into())?;
        let path = address::path(&attr.ah_attr, &device::gids(qp.pd.context.id())?)?;
        modify.rgid = Some(path.gid);
        modify.dmac = Some(path.mac);
        modify.sgid_index = Some(path.sgid_index);
        modify.traffic_class = Some(path.traffic_class);
        modify.hop_limit = Some(path.hop_limit);
        modify.flow_label = Some(path.flow_label);
    }
    Ok(modify)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
    status("ibv_modify_qp", || {
        let queue_pair = handle::get::<Qp>(qp)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "attr") }?;
        let modify = modification(&queue_pair, attr, attr_mask.cast_unsigned())?;
        begin_command(queue_pair.context().id())?;
        let request = Request::ModifyQp { qpn: queue_pair.number, modify: Box::new(modify) };
        card::done(queue_pair.context().id(), request)?;
        if let Some(state) = modify.next_state {
            queue_pair.lock().state = state;
            if state == QpState::Reset {
                queue_pair.forget_completions()?;
                let mut rings = queue_pair.lock();
                (rings.send_head, rings.send_tail) = (0, 0);
                (rings.receive_head, rings.receive_tail) = (0, 0);
                queue_pair.buffer.store(queue_pair.shape.record_offset, &[0; 8])?;
            }
            queue_pair.show_state(ibv_state(state));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    status("ibv_query_qp", || {
        let queue_pair = handle::get::<Qp>(qp)?;
        let query = queue_pair.query()?;
        let (path, state) = (query.path, ibv_state(query.state));
        let answer = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: path.path_mtu.code().into(),
            path_mig_state: IBV_MIG_MIGRATED,
            qkey: path.qkey,
            rq_psn: query.rq_psn,
            sq_psn: query.sq_psn,
            dest_qp_num: path.dest_qpn,
            qp_access_flags: path.access.bits(),
            cap: queue_pair.shape.cap,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: path.rgid.0 },
                    sgid_index: path.sgid_index,
                    flow_label: path.flow_label,
                    hop_limit: path.hop_limit,
                    traffic_class: path.traffic_class,
                },
                is_global: u8::from(path.rgid != Gid::default()),
                port_num: path.port,
                ..Default::default()
            },
            pkey_index: path.pkey_index,
            max_rd_atomic: path.max_rd_atomic,
            max_dest_rd_atomic: path.max_dest_rd_atomic,
            min_rnr_timer: path.min_rnr_timer,
            port_num: path.port,
            timeout: path.timeout,
            retry_cnt: path.retry_cnt,
            rnr_retry: path.rnr_retry,
            ..Default::default()
        };
        let qp_type = match queue_pair.transport {
            Transport::Rc => IBV_QPT_RC,
            Transport::Uc => IBV_QPT_UC,
            Transport::Ud => IBV_QPT_UD,
            Transport::Ethernet => IBV_QPT_RAW_PACKET,
        };
        let init = ibv_qp_init_attr {
            qp_context: queue_pair.qp_context as *mut _,
            send_cq: queue_pair.send_cq.c_address(),
            recv_cq: queue_pair.recv_cq.c_address(),
            srq: queue_pair.srq.as_ref().map_or(core::ptr::null_mut(), |srq| srq.c_address()),
            cap: queue_pair.shape.cap,
            qp_type,
            sq_sig_all: c_int::from(queue_pair.signal_all),
        };
        // SAFETY: the manual page asks for two writable structures.
        unsafe {
            out(attr, "attr")?.write(answer);
            out(init_attr, "init_attr")?.write(init);
        }
        queue_pair.show_state(state);
        debug_assert_eq!(query.attr.pd, queue_pair.pd.number);
        Ok(())
    })
}
