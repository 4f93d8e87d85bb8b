//! Queue pairs of the host.

mod builder;

use std::sync::{Arc, Mutex};

use verbs_sys as sys;

use crate::connection::Connection;
use crate::device::{Device, ProtectionDomain, non_null, verbs_ok, warn_unless_ok};
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::path::Retry;
use crate::posting::Scratch;
use crate::raw::Raw;
use crate::verbs::CompletionQueue;

pub use builder::QueuePairBuilder;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connected.
    Rc,
    /// Unreliable connected: long messages, no acknowledgement.
    Uc,
    /// Unreliable datagram: one packet per message, no connection.
    Ud,
}

/// Limit of an option of datagrams, in [`Error::Conflict`].
pub(crate) const NO_GROUPS: &str =
    "false, as only datagrams go to multicast groups: leave it out, or use `Transport::Ud`";

impl Transport {
    /// A queue pair of this transport, in [`Error::Conflict`].
    pub(crate) const fn described(self) -> &'static str {
        match self {
            Self::Rc => "a queue pair of transport RC",
            Self::Uc => "a queue pair of transport UC",
            Self::Ud => "a queue pair of transport UD",
        }
    }
}

/// Depths of a host queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepths {
    /// Outstanding sends, at least 1.
    pub send: u32,
    /// Outstanding receives.
    pub receive: u32,
}

/// A queue pair of the host. Several threads may post; the requests of one call stay together.
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) inner: Arc<Inner>,
    transport: Transport,
    pub(crate) scratch: Mutex<Scratch>,
}

/// The object of the library. Memberships in multicast groups keep it, too.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pd: ProtectionDomain,
    raw: Raw<sys::ibv_qp>,
    number: u32,
    _queues: [CompletionQueue; 2],
}

impl Inner {
    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }
}

fn check_same_card(pd: &ProtectionDomain, queues: [&CompletionQueue; 2]) -> Result<()> {
    if queues.iter().any(|cq| cq.device().context() != pd.device().context()) {
        return Err(Error::Foreign { what: "completion queue", parent: "device" });
    }
    Ok(())
}

impl QueuePair {
    /// A reliable queue pair in state RESET whose sends may bind keys over other keys, to one entry each, and free
    /// them; see [`binding`](crate::binding).
    pub(crate) fn that_binds(pd: &ProtectionDomain, cq: &CompletionQueue, sends: u32) -> Result<Self> {
        /// Inline bytes of a list of one entry: 4 less than the entry, as the provider counts.
        const INLINE_BYTES: u32 = 12;
        check_same_card(pd, [cq, cq])?;
        let mut attr = sys::ibv_qp_init_attr_ex {
            send_cq: cq.raw(),
            recv_cq: cq.raw(),
            cap: sys::ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: INLINE_BYTES,
            },
            qp_type: sys::IBV_QPT_RC,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: pd.raw(),
            send_ops_flags: sys::IBV_QP_EX_WITH_LOCAL_INV.into(),
            ..Default::default()
        };
        let mut direct = sys::mlx5dv_qp_init_attr {
            comp_mask: sys::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS.into(),
            send_ops_flags: sys::MLX5DV_QP_EX_WITH_MR_LIST.into(),
            ..Default::default()
        };
        let verbs = pd.device().provider().verbs();
        // SAFETY: context, domain and completion queue are live and outlive the queue pair, which holds a count of
        // each; both structures are initialised.
        let raw = unsafe { (verbs.mlx5dv_create_qp)(pd.device().context(), &raw mut attr, &raw mut direct) };
        let raw = non_null("mlx5dv_create_qp", raw, || "a queue pair that binds keys".to_owned())?;
        drop(verbs);
        Ok(Self::of(pd, raw, Transport::Rc, [cq, cq]))
    }

    fn of(pd: &ProtectionDomain, raw: Raw<sys::ibv_qp>, transport: Transport, queues: [&CompletionQueue; 2]) -> Self {
        // SAFETY: the queue pair is live; the number never changes.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        let inner = Inner { pd: pd.clone(), raw, number, _queues: queues.map(Clone::clone) };
        Self { inner: Arc::new(inner), transport, scratch: Mutex::default() }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.inner.raw()
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.inner.number
    }

    pub(crate) fn device(&self) -> &Device {
        self.inner.pd.device()
    }

    fn modify(&self, to: &'static str, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: the queue pair is live and `attr` initialised.
        let errno = unsafe { (self.device().provider().verbs().ibv_modify_qp)(self.raw(), attr, mask as i32) };
        verbs_ok("ibv_modify_qp", errno, || format!("queue pair {:#x} to {to}", self.qpn()))
    }

    /// RESET to INIT, ready to take receives. `q_key` is for UD, `access` for RC and UC.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn init(&self, access: Access, q_key: u32) -> Result<()> {
        let port = self.device().port();
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            port_num: port.number,
            qkey: q_key,
            qp_access_flags: access.bits(),
            ..Default::default()
        };
        let of_transport = match self.transport {
            Transport::Ud => sys::IBV_QP_QKEY,
            Transport::Rc | Transport::Uc => sys::IBV_QP_ACCESS_FLAGS,
        };
        self.modify("INIT", &mut attr, sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | of_transport)
    }

    /// INIT to RTS, connected (RC, UC).
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for path or timeout.
    pub fn connect(&self, connection: &Connection) -> Result<()> {
        connection.check()?;
        let &Connection { remote, first_psn, path, retry } = connection;
        let port = self.device().port();
        let rc = self.transport == Transport::Rc;
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: u32::from(port.mtu_code),
            dest_qp_num: remote.qpn,
            rq_psn: remote.first_psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            ah_attr: path.attributes(port, remote.gid),
            ..Default::default()
        };
        let mut mask =
            sys::IBV_QP_STATE | sys::IBV_QP_AV | sys::IBV_QP_PATH_MTU | sys::IBV_QP_DEST_QPN | sys::IBV_QP_RQ_PSN;
        if rc {
            mask |= sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER;
        }
        self.modify("RTR", &mut attr, mask)?;
        self.ready_to_send(first_psn, retry)
    }

    /// Any state to ERR: what is posted completes in error, and what still comes from the peer is dropped.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn fail(&self) -> Result<()> {
        let mut attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
        self.modify("ERR", &mut attr, sys::IBV_QP_STATE)
    }

    /// Any state to RESET: queues are empty, and completions that have not been polled are gone.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn reset(&self) -> Result<()> {
        let mut attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RESET, ..Default::default() };
        self.modify("RESET", &mut attr, sys::IBV_QP_STATE)
    }

    /// INIT to RTS without a peer (UD).
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn activate(&self, first_psn: u32) -> Result<()> {
        let mut attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RTR, ..Default::default() };
        self.modify("RTR", &mut attr, sys::IBV_QP_STATE)?;
        self.ready_to_send(first_psn, Retry::default())
    }

    fn ready_to_send(&self, first_psn: u32, retry: Retry) -> Result<()> {
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            sq_psn: first_psn,
            timeout: retry.timeout_exponent,
            retry_cnt: retry.count,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..Default::default()
        };
        let mut mask = sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN;
        if self.transport == Transport::Rc {
            mask |= sys::IBV_QP_TIMEOUT | sys::IBV_QP_RETRY_CNT | sys::IBV_QP_RNR_RETRY | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify("RTS", &mut attr, mask)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: created by `QueuePairBuilder::build` or `that_binds`, and destroyed only here.
        let errno = unsafe { (self.pd.device().provider().verbs().ibv_destroy_qp)(self.raw.as_ptr()) };
        warn_unless_ok("ibv_destroy_qp", errno);
    }
}
