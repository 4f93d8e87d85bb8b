//! Queue pairs of the host.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use verbs_sys as sys;

use crate::device::{Device, ProtectionDomain, non_null, verbs_ok, warn_unless_ok};
use crate::dpa_qp::RemoteQp;
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::path::{Path, Retry};
use crate::posting::Scratch;
use crate::raw::Raw;
use crate::verbs::CompletionQueue;

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

/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
const BLOCK_SELF_MULTICAST_LOOPBACK: u32 = 1 << 1;

fn same_card(pd: &ProtectionDomain, queues: [&CompletionQueue; 2]) -> Result<()> {
    if queues.iter().any(|cq| cq.device().context() != pd.device().context()) {
        return Err(Error::Foreign { what: "completion queue", parent: "device" });
    }
    Ok(())
}

impl QueuePair {
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::Foreign`] when a queue belongs to another card than the domain.
    pub fn new(
        pd: &ProtectionDomain,
        transport: Transport,
        send_cq: &CompletionQueue,
        receive_cq: &CompletionQueue,
        depths: QueueDepths,
    ) -> Result<Self> {
        Self::with_inline(pd, transport, send_cq, receive_cq, depths, 0)
    }

    /// [`QueuePair::new`] for a queue pair that takes up to `max_inline_bytes` bytes in a send entry itself; see
    /// [`QueuePair::post_inline`].
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub fn with_inline(
        pd: &ProtectionDomain,
        transport: Transport,
        send_cq: &CompletionQueue,
        receive_cq: &CompletionQueue,
        depths: QueueDepths,
        max_inline_bytes: u32,
    ) -> Result<Self> {
        Self::create(pd, transport, [send_cq, receive_cq], depths, (max_inline_bytes, 1))
    }

    /// [`QueuePair::new`] for a queue pair whose messages may lie in up to `pieces` pieces of memory; see
    /// [`QueuePair::post_gather`] and [`QueuePair::post_scatter`].
    ///
    /// # Errors
    /// As [`QueuePair::new`]; cards take 30 pieces at most, some fewer.
    pub fn with_lists(
        pd: &ProtectionDomain,
        transport: Transport,
        send_cq: &CompletionQueue,
        receive_cq: &CompletionQueue,
        depths: QueueDepths,
        pieces: u32,
    ) -> Result<Self> {
        Self::create(pd, transport, [send_cq, receive_cq], depths, (0, pieces))
    }

    fn create(
        pd: &ProtectionDomain,
        transport: Transport,
        [send_cq, receive_cq]: [&CompletionQueue; 2],
        depths: QueueDepths,
        (max_inline_bytes, pieces): (u32, u32),
    ) -> Result<Self> {
        same_card(pd, [send_cq, receive_cq])?;
        let mut attr = sys::ibv_qp_init_attr {
            send_cq: send_cq.raw(),
            recv_cq: receive_cq.raw(),
            cap: sys::ibv_qp_cap {
                max_send_wr: depths.send,
                max_recv_wr: depths.receive,
                max_send_sge: pieces,
                max_recv_sge: pieces,
                max_inline_data: max_inline_bytes,
            },
            qp_type: match transport {
                Transport::Rc => sys::IBV_QPT_RC,
                Transport::Uc => sys::IBV_QPT_UC,
                Transport::Ud => sys::IBV_QPT_UD,
            },
            ..Default::default()
        };
        // SAFETY: domain and completion queues are live and outlive the queue pair, which holds a count of each.
        let raw = unsafe { (pd.device().provider().verbs().ibv_create_qp)(pd.raw(), &raw mut attr) };
        let raw = non_null("ibv_create_qp", raw, || format!("{transport:?}, {depths:?}"))?;
        Ok(Self::of(pd, raw, transport, [send_cq, receive_cq]))
    }

    /// [`QueuePair::new`] for datagrams to groups that do not come back to members on its own card. Where card or
    /// library cannot keep them from it, they do.
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub fn without_echo(pd: &ProtectionDomain, cq: &CompletionQueue, depths: QueueDepths) -> Result<Self> {
        same_card(pd, [cq, cq])?;
        let mut attr = sys::ibv_qp_init_attr_ex {
            send_cq: cq.raw(),
            recv_cq: cq.raw(),
            cap: sys::ibv_qp_cap {
                max_send_wr: depths.send,
                max_recv_wr: depths.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::IBV_QPT_UD,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_CREATE_FLAGS,
            pd: pd.raw(),
            create_flags: BLOCK_SELF_MULTICAST_LOOPBACK,
            ..Default::default()
        };
        let call = pd.device().provider().verbs();
        // SAFETY: context, domain and completion queue are live and outlive the queue pair, which holds a count of
        // each.
        let raw = unsafe { sys::inline::create_qp_ex(pd.device().context(), &raw mut attr) };
        drop(call);
        match raw.and_then(NonNull::new) {
            Some(raw) => Ok(Self::of(pd, Raw::new(raw), Transport::Ud, [cq, cq])),
            None => {
                tracing::debug!("the card sends datagrams to groups to its own members, too");
                Self::new(pd, Transport::Ud, cq, cq, depths)
            }
        }
    }

    /// A reliable queue pair in state RESET whose sends may bind keys over other keys, to one entry each, and free
    /// them; see [`binding`](crate::binding).
    pub(crate) fn that_binds(pd: &ProtectionDomain, cq: &CompletionQueue, sends: u32) -> Result<Self> {
        /// Inline bytes of a list of one entry: 4 less than the entry, as the provider counts.
        const INLINE_BYTES: u32 = 12;
        same_card(pd, [cq, cq])?;
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

    /// INIT to RTS, connected to `remote` (RC, UC). Own packets are numbered from `first_psn`.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn connect(&self, remote: &RemoteQp, first_psn: u32) -> Result<()> {
        self.connect_along(remote, first_psn, Path::default())
    }

    /// [`QueuePair::connect`] with a choice of path.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for the path.
    pub fn connect_along(&self, remote: &RemoteQp, first_psn: u32, path: Path) -> Result<()> {
        self.connect_with(remote, first_psn, path, Retry::default())
    }

    /// [`QueuePair::connect_along`] with a choice of timeout with the peer (RC).
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for path or timeout.
    pub fn connect_with(&self, remote: &RemoteQp, first_psn: u32, path: Path, retry: Retry) -> Result<()> {
        path.check()?;
        retry.check()?;
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
        // SAFETY: created in `new` and destroyed only here.
        let errno = unsafe { (self.pd.device().provider().verbs().ibv_destroy_qp)(self.raw.as_ptr()) };
        warn_unless_ok("ibv_destroy_qp", errno);
    }
}
