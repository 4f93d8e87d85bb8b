//! Queue pairs that FlexIO does not make: UC, UD, and RC with a choice of path and timeout, by CREATE_QP.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{DpaDepths, DpaQueuePair, Inner, Raw, Rings, refused, user_index_checked};
use crate::addr::DevAddr;
use crate::dpa_cq::DpaCompletionQueue;
use crate::error::{Error, Result};
use crate::prm::{self, Mailbox, RingsQp, ServiceType};
use crate::queue_pair::Transport;
use crate::raw;

/// Where completions go.
#[derive(Clone, Copy)]
struct Queues<'a> {
    send: &'a DpaCompletionQueue,
    receive: &'a DpaCompletionQueue,
}

impl DpaQueuePair {
    /// A receive-only UC or UD queue pair in state RESET. `user_index` (24 bits) comes back in every completion.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for depth, index or an RC transport; [`Error::Command`] when the card refuses.
    pub fn receiver(
        transport: Transport,
        receive_cq: &DpaCompletionQueue,
        log_receive: u8,
        user_index: u32,
    ) -> Result<Self> {
        let service = match transport {
            Transport::Uc => ServiceType::Uc,
            Transport::Ud => ServiceType::Ud,
            Transport::Rc => {
                return Err(Error::OutOfRange {
                    what: "transport of a receive-only queue pair",
                    value: 0,
                    limit: "UC or UD; use `DpaQueuePair::reliable` for RC".to_owned(),
                });
            }
        };
        let depths = DpaDepths { log_send: None, log_receive: Some(log_receive) };
        made(service, Queues { send: receive_cq, receive: receive_cq }, depths, false, user_index)
    }

    /// A UD queue pair in state RESET; [`DpaQueuePair::activate`] makes it ready. Its send entries carry a
    /// [`crate::UdAddress`] each. With `block_multicast_loopback` what it sends to a group does not come back to
    /// members on the same card, itself included. `user_index` (24 bits) comes back in every completion.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for depths or index, [`Error::Foreign`] for queues of another process, [`Error::Command`]
    /// when the card refuses.
    pub fn datagram(
        send_cq: &DpaCompletionQueue,
        receive_cq: &DpaCompletionQueue,
        depths: DpaDepths,
        block_multicast_loopback: bool,
        user_index: u32,
    ) -> Result<Self> {
        let queues = Queues { send: send_cq, receive: receive_cq };
        made(ServiceType::Ud, queues, depths, block_multicast_loopback, user_index)
    }

    /// An RC queue pair in state RESET, made by command: with FlexIO's own ([`DpaQueuePair::reliable`]) neither traffic
    /// class nor timeout can be chosen. `user_index` (24 bits) comes back in every completion.
    ///
    /// # Errors
    /// As [`DpaQueuePair::datagram`].
    pub fn reliable_by_command(
        send_cq: &DpaCompletionQueue,
        receive_cq: &DpaCompletionQueue,
        depths: DpaDepths,
        user_index: u32,
    ) -> Result<Self> {
        made(ServiceType::Rc, Queues { send: send_cq, receive: receive_cq }, depths, false, user_index)
    }

    /// A UC queue pair in state RESET; [`DpaQueuePair::connect`] makes it ready.
    ///
    /// # Errors
    /// As [`DpaQueuePair::datagram`].
    pub fn unreliable(
        send_cq: &DpaCompletionQueue,
        receive_cq: &DpaCompletionQueue,
        depths: DpaDepths,
        user_index: u32,
    ) -> Result<Self> {
        made(ServiceType::Uc, Queues { send: send_cq, receive: receive_cq }, depths, false, user_index)
    }

    /// A UC queue pair in state RESET that only sends, to a group ([`crate::MulticastGroup::endpoint`]): hypothetical,
    /// see [`crate::GroupKey`]. `block_multicast_loopback` as for [`DpaQueuePair::datagram`].
    ///
    /// # Errors
    /// As [`DpaQueuePair::datagram`].
    #[doc(hidden)]
    pub fn group_writer(send_cq: &DpaCompletionQueue, log_send: u8, block_multicast_loopback: bool) -> Result<Self> {
        let depths = DpaDepths { log_send: Some(log_send), log_receive: None };
        made(ServiceType::Uc, Queues { send: send_cq, receive: send_cq }, depths, block_multicast_loopback, 0)
    }
}

fn made(
    service: ServiceType,
    queues: Queues<'_>,
    depths: DpaDepths,
    block_multicast_loopback: bool,
    user_index: u32,
) -> Result<DpaQueuePair> {
    let Queues { send, receive } = queues;
    let outbox = receive.outbox();
    let process = outbox.process();
    if !send.outbox().process().is_same(process) {
        return Err(Error::Foreign { what: "send completion queue", parent: "process" });
    }
    if depths.log_send.is_none() && depths.log_receive.is_none() {
        return Err(Error::OutOfRange {
            what: "queues of a queue pair",
            value: 0,
            limit: "at least one of send and receive queue".to_owned(),
        });
    }
    let Rings { buffer, send_offset, doorbell_record } = Rings::allocate(process, depths)?;
    let heap = process.heap()?;
    let offset = |addr: DevAddr| {
        addr.get().checked_sub(heap.base.get()).ok_or(Error::DeviceRange {
            offset: 0,
            len: 8,
            buffer: addr,
            buffer_len: 0,
        })
    };
    let command = prm::create_qp(&RingsQp {
        service,
        pd_number: process.pd().number()?,
        uar_page: send.outbox().uar_id(),
        user_index: user_index_checked(user_index)?,
        send_cqn: send.number(),
        recv_cqn: receive.number(),
        log_rq_depth: depths.log_receive,
        log_sq_depth: depths.log_send,
        block_multicast_loopback,
        dumem_id: process.dumem_id(),
        ring_offset: offset(buffer.addr())?,
        doorbell_record_offset: offset(doorbell_record.addr())?,
    });
    let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
    let device = process.device();
    // SAFETY: the context is open; both mailboxes have the lengths passed.
    let raw = unsafe {
        (device.provider().verbs().mlx5dv_devx_obj_create)(
            device.context(),
            command.as_bytes().as_ptr().cast(),
            prm::QP_COMMAND_BYTES,
            answer.as_mut_bytes().as_mut_ptr().cast(),
            prm::QP_ANSWER_BYTES,
        )
    };
    let raw = NonNull::new(raw).ok_or_else(|| refused("CREATE_QP", &answer, &format!("{service:?}, {depths:?}")))?;
    let inner = Inner {
        outbox: send.outbox().clone(),
        raw: Raw::DevX(raw::Raw::new(raw), service),
        number: answer.get(prm::OUT_QPN),
        depths,
        rings: buffer,
        send_offset,
        doorbell_record,
        queues: [send.clone(), receive.clone()],
    };
    Ok(DpaQueuePair { inner: Arc::new(inner) })
}
