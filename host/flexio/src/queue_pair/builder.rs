//! Creation of queue pairs of the host.

use std::ptr::NonNull;

use verbs_sys as sys;

use super::{NO_GROUPS, QueueDepths, QueuePair, Transport, check_same_card};
use crate::device::{ProtectionDomain, non_null};
use crate::error::{Error, Result};
use crate::raw::Raw;
use crate::verbs::CompletionQueue;

/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
const BLOCK_SELF_MULTICAST_LOOPBACK: u32 = 1 << 1;

/// A queue pair to be; [`QueuePair::builder`] starts one.
///
/// ```no_run
/// use flexio::{CompletionQueue, ProtectionDomain, QueueDepths, QueuePair, Transport};
///
/// fn reliable(pd: &ProtectionDomain, cq: &CompletionQueue) -> flexio::Result<QueuePair> {
///     let depths = QueueDepths { send: 64, receive: 64 };
///     QueuePair::builder(pd, Transport::Rc, depths).inline(64).lists(2).build(cq, cq)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct QueuePairBuilder<'p> {
    pd: &'p ProtectionDomain,
    transport: Transport,
    depths: QueueDepths,
    max_inline_bytes: u32,
    pieces: u32,
    block_multicast_loopback: bool,
}

impl QueuePair {
    /// Starts a queue pair whose messages lie in one piece of memory each.
    pub const fn builder(pd: &ProtectionDomain, transport: Transport, depths: QueueDepths) -> QueuePairBuilder<'_> {
        QueuePairBuilder { pd, transport, depths, max_inline_bytes: 0, pieces: 1, block_multicast_loopback: false }
    }
}

impl<'p> QueuePairBuilder<'p> {
    /// Most bytes that a send entry holds itself; see [`QueuePair::post_inline`]. Default 0; cards have a limit, such
    /// as 956.
    pub const fn inline(self, max_bytes: u32) -> Self {
        Self { max_inline_bytes: max_bytes, ..self }
    }

    /// Most pieces of memory of a message, at least 1; see [`QueuePair::post_gather`] and
    /// [`QueuePair::post_scatter`]. Default 1; cards take 30 at most, some fewer.
    pub const fn lists(self, pieces: u32) -> Self {
        Self { pieces, ..self }
    }

    /// With `true`, datagrams to multicast groups do not come back to members on the own card (transport UD only).
    /// Where card or library cannot keep them from it, they do. Default `false`.
    pub const fn block_multicast_loopback(self, block: bool) -> Self {
        Self { block_multicast_loopback: block, ..self }
    }

    /// Creates the queue pair, in state RESET.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::Foreign`] when a queue belongs to another card than the domain;
    /// [`Error::OutOfRange`] for no pieces; [`Error::Conflict`] for options that the transport does not have.
    pub fn build(self, send_cq: &CompletionQueue, receive_cq: &CompletionQueue) -> Result<QueuePair> {
        check_same_card(self.pd, [send_cq, receive_cq])?;
        if self.pieces == 0 {
            return Err(Error::OutOfRange {
                what: "number of pieces of a message",
                value: 0,
                limit: "at least 1".to_owned(),
            });
        }
        if !self.block_multicast_loopback {
            return self.plain([send_cq, receive_cq]);
        }
        if self.transport != Transport::Ud {
            return Err(Error::Conflict {
                option: "block_multicast_loopback",
                value: "true".into(),
                of: self.transport.described(),
                limit: NO_GROUPS,
            });
        }
        let built = self.extended([send_cq, receive_cq]);
        built.map_or_else(
            || {
                tracing::debug!("the card sends datagrams to groups to its own members, too");
                self.plain([send_cq, receive_cq])
            },
            Ok,
        )
    }

    const fn capacities(&self) -> sys::ibv_qp_cap {
        sys::ibv_qp_cap {
            max_send_wr: self.depths.send,
            max_recv_wr: self.depths.receive,
            max_send_sge: self.pieces,
            max_recv_sge: self.pieces,
            max_inline_data: self.max_inline_bytes,
        }
    }

    fn plain(&self, [send_cq, receive_cq]: [&CompletionQueue; 2]) -> Result<QueuePair> {
        let &Self { pd, transport, depths, .. } = self;
        let mut attr = sys::ibv_qp_init_attr {
            send_cq: send_cq.raw(),
            recv_cq: receive_cq.raw(),
            cap: self.capacities(),
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
        Ok(QueuePair::of(pd, raw, transport, [send_cq, receive_cq]))
    }

    /// One for datagrams that do not come back; none where card or library has no such.
    fn extended(&self, [send_cq, receive_cq]: [&CompletionQueue; 2]) -> Option<QueuePair> {
        let pd = self.pd;
        let mut attr = sys::ibv_qp_init_attr_ex {
            send_cq: send_cq.raw(),
            recv_cq: receive_cq.raw(),
            cap: self.capacities(),
            qp_type: sys::IBV_QPT_UD,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_CREATE_FLAGS,
            pd: pd.raw(),
            create_flags: BLOCK_SELF_MULTICAST_LOOPBACK,
            ..Default::default()
        };
        let call = pd.device().provider().verbs();
        // SAFETY: context, domain and completion queues are live and outlive the queue pair, which holds a count of
        // each.
        let raw = unsafe { sys::inline::create_qp_ex(pd.device().context(), &raw mut attr) };
        drop(call);
        let raw = Raw::new(raw.and_then(NonNull::new)?);
        Some(QueuePair::of(pd, raw, Transport::Ud, [send_cq, receive_cq]))
    }
}
