//! Queue pairs in device memory. As on hardware, this interface makes RC ones only.

use core::ffi::c_int;
use std::sync::Arc;

use emu_libibverbs::handle::{self, Object};
use emu_libibverbs::resolve_mac;
use emu_machine::nic::{Access, Gid, Mtu, QpAttr, QpModify, QpState, QueueMemory, Transport};
use flexio_sys::*;
use verbs_sys::ibv_context;

use crate::process::{Process, attribute, number_of, world};
use crate::status::{Failure, Result, failed, out, status, value};

/// log2 of a receive entry: one 16-byte segment.
const LOG_RECEIVE_STRIDE: u8 = 4;
/// Deepest ring, log2.
const MAX_LOG_DEPTH: c_int = 15;

pub(crate) struct Qp {
    process: Arc<Process>,
    number: u32,
}

impl Object for Qp {
    const KIND: &'static str = "queue pair";
    type C = flexio_qp;
    fn c_address(&self) -> *mut flexio_qp {
        (self as *const Self).cast_mut().cast()
    }
}

fn log_depth(name: &str, value: c_int) -> Result<u8> {
    if (0..=MAX_LOG_DEPTH).contains(&value) {
        Ok(value as u8)
    } else {
        Err(failed(format!("{name} is {value}: 0 to {MAX_LOG_DEPTH} are possible")))
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_qp_create(
    process: *mut flexio_process,
    ibv_ctx: *mut ibv_context,
    fattr: *mut flexio_qp_attr,
    qp_ptr: *mut *mut flexio_qp,
) -> flexio_status {
    status("flexio_qp_create", || {
        let process = handle::get::<Process>(process)?;
        process.check_context(ibv_ctx)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, qp) = unsafe { (attribute(fattr)?, out(qp_ptr, "qp_ptr")?) };
        if attr.transport_type != FLEXIO_QPC_ST_RC {
            return Err(failed(format!(
                "transport type {}: FlexIO makes RC queue pairs only; make UD and UC ones with mlx5dv_devx_obj_create \
                 (CREATE_QP on the process's DUMEM)",
                attr.transport_type
            )));
        }
        let no_rq = match attr.rq_type.cast_unsigned() {
            FLEXIO_QP_QPC_RQ_TYPE_REGULAR => false,
            FLEXIO_QP_QPC_RQ_TYPE_ZERO_SIZE_RQ => true,
            other => return Err(failed(format!("rq_type {other}: shared receive queues are not emulated"))),
        };
        let no_sq = attr.no_sq != 0;
        let log_rq_depth = if no_rq { 0 } else { log_depth("log_rq_depth", attr.log_rq_depth)? };
        let log_sq_depth = if no_sq { 0 } else { log_depth("log_sq_depth", attr.log_sq_depth)? };
        // The send ring starts on the first 64-byte block behind the receive ring.
        let receive_bytes = if no_rq { 0 } else { (1_u64 << log_rq_depth << LOG_RECEIVE_STRIDE).max(64) };
        let send_bytes = if no_sq { 0 } else { 64 << log_sq_depth };
        let pd = process.domain(attr.pd)?;
        let rq = process.queue_memory("qp_wq_buff_qmem", &attr.qp_wq_buff_qmem, receive_bytes + send_bytes)?;
        let doorbell_record = process.queue_memory("qp_wq_dbr_qmem", &attr.qp_wq_dbr_qmem, 8)?;
        let nic_attr = QpAttr {
            transport: Transport::Rc,
            pd: pd.number,
            send_cq: if no_sq { attr.rq_cqn } else { attr.sq_cqn },
            recv_cq: if no_rq { attr.sq_cqn } else { attr.rq_cqn },
            rq,
            log_rq_depth,
            log_rq_stride: LOG_RECEIVE_STRIDE,
            sq: QueueMemory { addr: rq.addr + receive_bytes, ..rq },
            log_sq_depth,
            no_sq,
            no_rq,
            srq: None,
            doorbell_record,
            user_index: attr.user_index,
            uar: attr.uar_id,
        };
        let number = world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.create_qp(nic_attr)?))?;
        qp.write(handle::publish(&Arc::new(Qp { process, number })));
        Ok(())
    })
}

fn access(attr: &flexio_qp_attr) -> Result<Access> {
    Access::from_bits(attr.qp_access_mask.cast_unsigned()).ok_or_else(|| {
        failed(format!("qp_access_mask {:#x}: IBV_ACCESS_LOCAL_WRITE and REMOTE_* are", attr.qp_access_mask))
    })
}

/// The attributes that the transition to `next_state` reads.
///
/// # Safety
/// `attr.dest_mac` must be null or point at six bytes.
unsafe fn modification(attr: &flexio_qp_attr) -> Result<QpModify> {
    let modify = match attr.next_state {
        FLEXIO_QP_STATE_RST => QpModify { next_state: Some(QpState::Reset), ..Default::default() },
        FLEXIO_QP_STATE_ERR => QpModify { next_state: Some(QpState::Err), ..Default::default() },
        FLEXIO_QP_STATE_INIT => QpModify {
            next_state: Some(QpState::Init),
            access: Some(access(attr)?),
            port: Some(attr.vhca_port_num),
            ..Default::default()
        },
        FLEXIO_QP_STATE_RTR => {
            let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
            // SAFETY: any 16 bytes are a GID.
            let gid = Gid(unsafe { attr.rgid_or_rip.raw });
            let loopback = attr.fl != 0;
            // SAFETY: null, or six bytes as the caller vouches.
            let mac = match unsafe { attr.dest_mac.cast::<[u8; 6]>().as_ref() } {
                Some(&mac) => mac,
                None if loopback => [0; 6],
                None => resolve_mac(gid)?,
            };
            let timer = u8::try_from(attr.min_rnr_nak_timer).map_err(|_| {
                failed(format!("min_rnr_nak_timer is {}: 0 to 31 are possible", attr.min_rnr_nak_timer))
            })?;
            QpModify {
                next_state: Some(QpState::Rtr),
                access: Some(access(attr)?),
                path_mtu: Some(mtu.ok_or_else(|| failed(format!("path_mtu code {}: 1 to 5 are", attr.path_mtu)))?),
                dest_qpn: Some(attr.remote_qp_num),
                rq_psn: Some(attr.next_rcv_psn),
                rgid: Some(gid),
                dmac: Some(mac),
                sgid_index: Some(attr.gid_table_index),
                udp_sport: (attr.udp_sport != 0).then_some(attr.udp_sport),
                min_rnr_timer: Some(timer),
                max_dest_rd_atomic: Some(1_u8.checked_shl(attr.log_rra_max.into()).unwrap_or(u8::MAX)),
                force_loopback: Some(loopback),
                ..Default::default()
            }
        }
        FLEXIO_QP_STATE_RTS => QpModify {
            next_state: Some(QpState::Rts),
            sq_psn: Some(attr.next_send_psn),
            retry_cnt: Some(attr.retry_count),
            // The interface has no such attribute: a peer without a receive fails the queue pair at once.
            rnr_retry: Some(0),
            max_rd_atomic: Some(1_u8.checked_shl(attr.log_sra_max.into()).unwrap_or(u8::MAX)),
            ..Default::default()
        },
        other => {
            return Err(failed(format!("next_state {other}: RST (0), INIT (1), RTR (2), RTS (3) and ERR (6) are")));
        }
    };
    Ok(modify)
}

/// The mask of optional attributes is not read: attributes of a transition are always taken.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_qp_modify(
    qp: *mut flexio_qp,
    fattr: *mut flexio_qp_attr,
    _mask: *mut flexio_qp_attr_opt_param_mask,
) -> flexio_status {
    status("flexio_qp_modify", || {
        let qp = handle::get::<Qp>(qp)?;
        // SAFETY: null, or initialised as the interface asks, with a MAC address of six bytes.
        let modify = unsafe { modification(attribute(fattr)?) }?;
        world(|world| {
            let now_ps = world.now_ps();
            let call =
                world.nic_call(qp.process.card, |nic, effects| nic.modify_qp(now_ps, qp.number, &modify, effects));
            Ok::<_, Failure>(call??)
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_qp_destroy(qp: *mut flexio_qp) -> flexio_status {
    status("flexio_qp_destroy", || {
        let object = handle::get::<Qp>(qp)?;
        world(|world| Ok::<_, Failure>(world.card(object.process.card)?.nic.destroy_qp(object.number)?))?;
        handle::retire::<Qp>(qp)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_qp_get_qp_num(qp: *mut flexio_qp) -> u32 {
    number_of::<Qp>("flexio_qp_get_qp_num", qp, |qp| qp.number)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_qp_state_get(qp: *mut flexio_qp) -> flexio_qp_state {
    value("flexio_qp_state_get", FLEXIO_QP_STATE_ERR, || {
        let qp = handle::get::<Qp>(qp)?;
        let query = world(|world| Ok::<_, Failure>(world.card(qp.process.card)?.nic.query_qp(qp.number)?))?;
        Ok(match query.state {
            QpState::Reset => FLEXIO_QP_STATE_RST,
            QpState::Init => FLEXIO_QP_STATE_INIT,
            QpState::Rtr => FLEXIO_QP_STATE_RTR,
            QpState::Rts => FLEXIO_QP_STATE_RTS,
            QpState::Err => FLEXIO_QP_STATE_ERR,
        })
    })
}
