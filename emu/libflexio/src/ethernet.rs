//! Receive and send queues of raw Ethernet. What a receive queue gets, steering decides (`mlx5dv_dr_*`), which names it
//! by its TIR.

use std::sync::Arc;

use emu_libibverbs::Tir;
use emu_libibverbs::handle::{self, Object};
use emu_machine::FunctionId;
use emu_machine::nic::{QpAttr, QpModify, QpState, QueueMemory, Space, Transport};
use flexio_sys::*;
use verbs_sys::{ibv_context, mlx5dv_devx_obj};

use crate::process::{Process, attribute, number_of, world};
use crate::status::{Failure, Result, failed, out, pointer, status};

/// log2 of a receive entry if the attributes leave it to the library: one 16-byte segment.
const LOG_RECEIVE_STRIDE: u8 = 4;
/// log2 of the longest receive entry.
const MAX_LOG_STRIDE: u8 = 10;
/// log2 of the most entries of a ring.
const MAX_LOG_DEPTH: u8 = 15;
/// log2 of a send entry.
const LOG_BLOCK: u8 = 6;

pub(crate) struct Rq {
    process: Arc<Process>,
    number: u32,
    tir: Arc<Tir>,
}

impl Object for Rq {
    const KIND: &'static str = "receive queue";
    type C = flexio_rq;
    fn c_address(&self) -> *mut flexio_rq {
        (self as *const Self).cast_mut().cast()
    }
}

pub(crate) struct Sq {
    process: Arc<Process>,
    number: u32,
}

impl Object for Sq {
    const KIND: &'static str = "send queue";
    type C = flexio_sq;
    fn c_address(&self) -> *mut flexio_sq {
        (self as *const Self).cast_mut().cast()
    }
}

fn check_depth(depth: u8) -> Result<()> {
    if depth > MAX_LOG_DEPTH {
        return Err(failed(format!("log_wq_depth is {depth}: 0 to {MAX_LOG_DEPTH} are possible")));
    }
    Ok(())
}

/// Makes a queue of the card and brings it to a state.
fn create(process: &Process, attr: QpAttr, state: QpState) -> Result<u32> {
    world(|world| {
        let now_ps = world.now_ps();
        let number = world.card(process.card)?.nic.create_qp(attr)?;
        for next in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let modify = QpModify { next_state: Some(next), ..QpModify::default() };
            world.nic_call(process.card, |nic, effects| nic.modify_qp(now_ps, number, &modify, effects))??;
            if next == state {
                break;
            }
        }
        Ok::<_, Failure>(number)
    })
}

/// A queue with neither ring, of a completion queue.
fn bare(process: &Process, attr: &flexio_wq_attr, cq_num: u32) -> Result<QpAttr> {
    let nowhere = QueueMemory { space: Space::Host, addr: 0 };
    Ok(QpAttr {
        transport: Transport::Ethernet,
        pd: process.domain(attr.pd)?.number,
        send_cq: cq_num,
        recv_cq: cq_num,
        rq: nowhere,
        log_rq_depth: 0,
        log_rq_stride: LOG_RECEIVE_STRIDE,
        sq: nowhere,
        log_sq_depth: 0,
        no_sq: true,
        no_rq: true,
        srq: None,
        doorbell_record: nowhere,
        user_index: attr.user_index,
        uar: attr.uar_id,
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_create(
    process: *mut flexio_process,
    ibv_ctx: *mut ibv_context,
    cq_num: u32,
    fattr: *const flexio_wq_attr,
    flexio_rq_ptr: *mut *mut flexio_rq,
) -> flexio_status {
    status("flexio_rq_create", || {
        let process = handle::get::<Process>(process)?;
        process.check_context(ibv_ctx)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, rq) = unsafe { (attribute(fattr)?, out(flexio_rq_ptr, "flexio_rq_ptr")?) };
        check_depth(attr.log_wq_depth)?;
        let stride = if attr.log_wq_stride == 0 { LOG_RECEIVE_STRIDE } else { attr.log_wq_stride };
        if !(LOG_RECEIVE_STRIDE..=MAX_LOG_STRIDE).contains(&stride) {
            return Err(failed(format!(
                "log_wq_stride is {stride}: 0, which stands for 4, and {LOG_RECEIVE_STRIDE} to {MAX_LOG_STRIDE} are \
                 possible"
            )));
        }
        let bytes = 1_u64 << attr.log_wq_depth << stride;
        let ring = process.queue_memory("wq_ring_qmem", &attr.wq_ring_qmem, bytes)?;
        let doorbell_record = process.queue_memory("wq_dbr_qmem", &attr.wq_dbr_qmem, 8)?;
        let nic_attr = QpAttr {
            rq: ring,
            log_rq_depth: attr.log_wq_depth,
            log_rq_stride: stride,
            no_rq: false,
            doorbell_record,
            ..bare(&process, attr, cq_num)?
        };
        let number = create(&process, nic_attr, QpState::Rtr)?;
        let tir = Arc::new(Tir::new(FunctionId::host(process.card), number));
        handle::publish(&tir);
        rq.write(handle::publish(&Arc::new(Rq { process, number, tir })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_set_err_state(rq: *mut flexio_rq) -> flexio_status {
    status("flexio_rq_set_err_state", || {
        let rq = handle::get::<Rq>(rq)?;
        let modify = QpModify { next_state: Some(QpState::Err), ..QpModify::default() };
        world(|world| {
            let now_ps = world.now_ps();
            let call =
                world.nic_call(rq.process.card, |nic, effects| nic.modify_qp(now_ps, rq.number, &modify, effects));
            Ok::<_, Failure>(call??)
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_destroy(flexio_rq: *mut flexio_rq) -> flexio_status {
    status("flexio_rq_destroy", || {
        let rq = handle::get::<Rq>(flexio_rq)?;
        rq.tir.check_unused()?;
        world(|world| Ok::<_, Failure>(world.card(rq.process.card)?.nic.destroy_qp(rq.number)?))?;
        handle::retire::<Tir>(rq.tir.c_address())?;
        handle::retire::<Rq>(flexio_rq)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_get_wq_num(rq: *mut flexio_rq) -> u32 {
    number_of::<Rq>("flexio_rq_get_wq_num", rq, |rq| rq.number)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_rq_get_tir(rq: *mut flexio_rq) -> *mut mlx5dv_devx_obj {
    pointer("flexio_rq_get_tir", || Ok(handle::get::<Rq>(rq)?.tir.c_address()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_sq_create(
    process: *mut flexio_process,
    ibv_ctx: *mut ibv_context,
    cq_num: u32,
    fattr: *const flexio_wq_attr,
    flexio_sq_ptr: *mut *mut flexio_sq,
) -> flexio_status {
    status("flexio_sq_create", || {
        let process = handle::get::<Process>(process)?;
        process.check_context(ibv_ctx)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, sq) = unsafe { (attribute(fattr)?, out(flexio_sq_ptr, "flexio_sq_ptr")?) };
        check_depth(attr.log_wq_depth)?;
        let bytes = 1_u64 << attr.log_wq_depth << LOG_BLOCK;
        let ring = process.queue_memory("wq_ring_qmem", &attr.wq_ring_qmem, bytes)?;
        let nic_attr =
            QpAttr { sq: ring, log_sq_depth: attr.log_wq_depth, no_sq: false, ..bare(&process, attr, cq_num)? };
        let number = create(&process, nic_attr, QpState::Rts)?;
        sq.write(handle::publish(&Arc::new(Sq { process, number })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_sq_destroy(flexio_sq: *mut flexio_sq) -> flexio_status {
    status("flexio_sq_destroy", || {
        let sq = handle::get::<Sq>(flexio_sq)?;
        world(|world| Ok::<_, Failure>(world.card(sq.process.card)?.nic.destroy_qp(sq.number)?))?;
        handle::retire::<Sq>(flexio_sq)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_sq_get_wq_num(sq: *mut flexio_sq) -> u32 {
    number_of::<Sq>("flexio_sq_get_wq_num", sq, |sq| sq.number)
}
