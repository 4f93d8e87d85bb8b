//! States of the queue pairs of identifiers, from their connections.

use core::ffi::c_int;
use std::sync::Arc;

use emu_libibverbs::errno::{Errno, Result};
use emu_libibverbs::{calls, now_ps};
use emu_machine::nic::MAX_RD_ATOMIC;
use verbs_sys::*;

use crate::abi::*;
use crate::channel::Pending;
use crate::id::Id;
use crate::manager;
use crate::protocol::service::Space;

/// How long a peer without a receive waits before it tries again: 0.64 ms. Linux takes the longest time, 655 ms (0).
const MIN_RNR_TIMER: u8 = 12;
/// The attributes that bring the queue pair of an identifier into a state.
pub(crate) fn attributes(id: &Id, state: ibv_qp_state) -> Result<(ibv_qp_attr, u32)> {
    let (_, device) = id.device()?;
    let mut attr = ibv_qp_attr { qp_state: state, port_num: 1, ..Default::default() };
    if id.space == Space::Udp {
        attr.qkey = RDMA_UDP_QKEY;
        return Ok(match state {
            IBV_QPS_INIT => (attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            IBV_QPS_RTS => (attr, IBV_QP_STATE | IBV_QP_SQ_PSN),
            _ => (attr, IBV_QP_STATE),
        });
    }
    let (own, theirs) = {
        let inner = id.lock();
        (inner.own, inner.theirs)
    };
    match state {
        IBV_QPS_INIT => {
            // Before it is known who may do what, nobody may.
            attr.qp_access_flags = match theirs {
                Some(theirs) if theirs.initiator_depth > 0 => {
                    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
                }
                Some(_) => IBV_ACCESS_REMOTE_WRITE,
                None => 0,
            };
            Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        }
        IBV_QPS_RTR | IBV_QPS_RTS => {
            let theirs = theirs.ok_or_else(|| {
                Errno::invalid("the other end's queue pair is not known before it has asked or answered")
            })?;
            if state == IBV_QPS_RTS {
                (attr.sq_psn, attr.rnr_retry) = (own.psn, theirs.rnr_retry_count);
                attr.max_rd_atomic = own.initiator_depth.min(theirs.responder_resources);
                // Who has asked has said how often, and who is asked keeps to that.
                let asked = if theirs.mtu == 0 { own } else { theirs };
                (attr.timeout, attr.retry_cnt) = (asked.ack_timeout, asked.retry_count);
                if let Some(ack_timeout) = id.lock().ack_timeout {
                    attr.timeout = ack_timeout;
                }
                let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
                return Ok((attr, mask | IBV_QP_MAX_QP_RD_ATOMIC));
            }
            let remote = id.path()?.remote;
            attr.ah_attr = id.way_to(remote)?;
            // Of an answer no MTU is known: it is that of the request.
            let mtu = if theirs.mtu == 0 { device.mtu_code } else { theirs.mtu.min(device.mtu_code) };
            attr.path_mtu = mtu.into();
            (attr.dest_qp_num, attr.rq_psn) = (theirs.qpn, theirs.psn);
            attr.max_dest_rd_atomic = own.responder_resources.max(theirs.initiator_depth.min(MAX_RD_ATOMIC));
            attr.min_rnr_timer = MIN_RNR_TIMER;
            let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            Ok((attr, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        }
        IBV_QPS_ERR | IBV_QPS_RESET => Ok((attr, IBV_QP_STATE)),
        other => {
            Err(Errno::invalid(format!("queue pair state {other}: INIT, RTR, RTS, ERR and RESET have attributes")))
        }
    }
}

/// Brings the program's queue pair into a state.
pub(crate) fn bring(id: &Id, qp: *mut ibv_qp, state: ibv_qp_state) -> Result<()> {
    let (mut attr, mask) = attributes(id, state)?;
    // SAFETY: the program's queue pair, whose handle is checked, and an initialised structure.
    match unsafe { (calls().ibv_modify_qp)(qp, &raw mut attr, mask as c_int) } {
        0 => Ok(()),
        value => Err(Errno::new(value, "the queue pair cannot be brought into the next state")),
    }
}

/// Brings the queue pair of an identifier to where it receives and sends, once both ends are known.
pub(crate) fn make_ready(id: &Id) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    // What the other end may do is known by now.
    [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS].into_iter().try_for_each(|state| bring(id, qp, state))
}

/// The other end has accepted. With a queue pair the connection is established before the program learns of it.
pub(crate) fn accepted(pending: &mut Pending) {
    let id = &pending.id;
    if id.qp().is_null() {
        return;
    }
    let made = make_ready(id);
    let Ok(mut manager) = manager::lock() else { return };
    let Some(conn) = id.lock().conn else { return };
    let established = made.and_then(|()| Ok(manager.agent.establish(conn)?));
    pending.kind = RDMA_CM_EVENT_ESTABLISHED;
    if let Err(error) = established {
        emu_libibverbs::log::refused("rdma_connect", &error.reason, false);
        (pending.kind, pending.status) = (RDMA_CM_EVENT_CONNECT_ERROR, -error.value);
        id.lock().failed = true;
        let _ = manager.agent.reject(conn, &[], now_ps());
    }
    manager.act();
}

/// What is posted to the queue pair of a connection that has not come about is flushed.
pub(crate) fn flush(id: &Arc<Id>) {
    let qp = id.qp();
    if !qp.is_null() && id.space == Space::Tcp {
        let _ = bring(id, qp, IBV_QPS_ERR);
    }
}
