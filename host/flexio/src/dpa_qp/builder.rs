//! Creation of queue pairs in DPA memory: by FlexIO, or by the card's command CREATE_QP.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Choices, DpaDepths, DpaQueuePair, Inner, Raw, Rings, attributes, refused};
use crate::addr::DevAddr;
use crate::dpa_cq::DpaCompletionQueue;
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::prm::{self, Mailbox, RingsQp, ServiceType};
use crate::process::{Process, handle, number};
use crate::queue_pair::{NO_GROUPS, Transport};
use crate::raw;

/// A queue pair to be; [`DpaQueuePair::builder`] starts one.
///
/// ```no_run
/// use flexio::{Access, DpaCompletionQueue, DpaDepths, DpaQueuePair, Transport};
///
/// fn datagrams(cq: &DpaCompletionQueue) -> flexio::Result<DpaQueuePair> {
///     DpaQueuePair::builder(Transport::Ud, DpaDepths::receive_only(6)).user_index(7).build(cq, cq)
/// }
///
/// fn copies(cq: &DpaCompletionQueue) -> flexio::Result<DpaQueuePair> {
///     DpaQueuePair::builder(Transport::Rc, DpaDepths::send_only(6)).access(Access::REMOTE_WRITE).build(cq, cq)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct DpaQueuePairBuilder {
    transport: Transport,
    depths: DpaDepths,
    access: Option<Access>,
    user_index: u32,
    by_command: bool,
    block_multicast_loopback: bool,
}

impl DpaQueuePair {
    /// Starts a queue pair of the process whose completion queues it gets.
    pub const fn builder(transport: Transport, depths: DpaDepths) -> DpaQueuePairBuilder {
        DpaQueuePairBuilder {
            transport,
            depths,
            access: None,
            user_index: 0,
            by_command: false,
            block_multicast_loopback: false,
        }
    }
}

impl DpaQueuePairBuilder {
    /// What the peer may do, for a queue pair that FlexIO makes: RC without [`Self::by_command`]. Default: nothing.
    /// Those made by command have fixed rights.
    pub const fn access(self, access: Access) -> Self {
        Self { access: Some(access), ..self }
    }

    /// Number that comes back in every completion, 24 bits. Default 0.
    pub const fn user_index(self, user_index: u32) -> Self {
        Self { user_index, ..self }
    }

    /// Has the card make an RC queue pair by its own command. FlexIO's attributes have neither traffic class nor
    /// timeout, which [`DpaQueuePair::connect`] then takes. UC and UD queue pairs are always made so.
    pub const fn by_command(self) -> Self {
        Self { by_command: true, ..self }
    }

    /// With `true`, what it sends to a group does not come back to members on the same card, itself included
    /// (transport UD). Default `false`.
    ///
    /// UC has it for queue pairs that send to a group (hypothetical).
    pub const fn block_multicast_loopback(self, block: bool) -> Self {
        Self { block_multicast_loopback: block, ..self }
    }

    /// Creates the queue pair, in state RESET. [`DpaQueuePair::connect`] (RC, UC) or [`DpaQueuePair::activate`] (UD)
    /// makes it ready. Send entries of UD carry a [`UdAddress`](crate::UdAddress) each.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for depths or user index, [`Error::Foreign`] for queues of another process,
    /// [`Error::Conflict`] for options that do not go together, [`Error::FlexIo`] or [`Error::Command`] when the card
    /// refuses.
    pub fn build(self, send_cq: &DpaCompletionQueue, receive_cq: &DpaCompletionQueue) -> Result<DpaQueuePair> {
        self.check()?;
        let process = send_cq.outbox().process();
        if !process.is_same(receive_cq.outbox().process()) {
            return Err(Error::Foreign { what: "receive completion queue", parent: "process" });
        }
        let rings = Rings::allocate(process, self.depths)?;
        let queues = [send_cq.clone(), receive_cq.clone()];
        match (self.transport, self.by_command) {
            (Transport::Rc, false) => self.by_flexio(process, rings, queues),
            (Transport::Rc, true) => self.create_qp(ServiceType::Rc, process, rings, queues),
            (Transport::Uc, _) => self.create_qp(ServiceType::Uc, process, rings, queues),
            (Transport::Ud, _) => self.create_qp(ServiceType::Ud, process, rings, queues),
        }
    }

    fn check(&self) -> Result<()> {
        let &Self { transport, depths, .. } = self;
        if depths.log_send.is_none() && depths.log_receive.is_none() {
            return Err(Error::OutOfRange {
                what: "queues of a queue pair",
                value: 0,
                limit: "at least one of send and receive queue".to_owned(),
            });
        }
        if self.user_index > 0x00FF_FFFF {
            return Err(Error::OutOfRange {
                what: "user index of a queue pair",
                value: u64::from(self.user_index),
                limit: "at most 24 bits".to_owned(),
            });
        }
        if let Some(access) = self.access.filter(|_| transport != Transport::Rc || self.by_command) {
            return Err(Error::Conflict {
                option: "access",
                value: format!("{access:?}").into(),
                of: if transport == Transport::Rc { "a queue pair made by command" } else { transport.described() },
                limit: "left out, as its rights are fixed; only `Transport::Rc` without `by_command` has a choice",
            });
        }
        let sends_to_groups = match transport {
            Transport::Ud => true,
            Transport::Uc => depths.log_receive.is_none(),
            Transport::Rc => false,
        };
        if self.block_multicast_loopback && !sends_to_groups {
            return Err(Error::Conflict {
                option: "block_multicast_loopback",
                value: "true".into(),
                of: transport.described(),
                limit: NO_GROUPS,
            });
        }
        Ok(())
    }

    fn by_flexio(self, process: &Process, rings: Rings, queues: [DpaCompletionQueue; 2]) -> Result<DpaQueuePair> {
        let (outbox, depths) = (queues[0].outbox().clone(), self.depths);
        let choices = Choices { access: self.access.unwrap_or(Access::empty()), user_index: self.user_index };
        let memory = [rings.buffer.addr(), rings.doorbell_record.addr()];
        let mut attr = attributes(&outbox, depths, &queues, memory, choices);
        let mut raw = std::ptr::null_mut();
        // SAFETY: process, domain, completion queues and ring memory are live and outlive the queue pair: it owns them
        // or holds a count. A null context means the process's own.
        let status = unsafe {
            (process.api().flexio_qp_create)(process.raw(), std::ptr::null_mut(), &raw mut attr, &raw mut raw)
        };
        process.ok("flexio_qp_create", status, || format!("RC, {depths:?}"))?;
        let raw = handle("flexio_qp_create", raw)?;
        let Rings { buffer, send_offset, doorbell_record } = rings;
        let mut inner = Inner {
            outbox,
            raw: Raw::FlexIo(raw, choices),
            number: 0,
            depths,
            rings: buffer,
            send_offset,
            doorbell_record,
            queues,
        };
        // SAFETY: the queue pair is live.
        inner.number = number("flexio_qp_get_qp_num", unsafe { (process.api().flexio_qp_get_qp_num)(raw.as_ptr()) })?;
        Ok(DpaQueuePair { inner: Arc::new(inner) })
    }

    fn create_qp(
        self,
        service: ServiceType,
        process: &Process,
        rings: Rings,
        queues: [DpaCompletionQueue; 2],
    ) -> Result<DpaQueuePair> {
        let Self { depths, user_index, block_multicast_loopback, .. } = self;
        let [send, receive] = &queues;
        let Rings { buffer, send_offset, doorbell_record } = rings;
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
            user_index,
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
        let raw =
            NonNull::new(raw).ok_or_else(|| refused("CREATE_QP", &answer, &format!("{service:?}, {depths:?}")))?;
        let inner = Inner {
            outbox: send.outbox().clone(),
            raw: Raw::DevX(raw::Raw::new(raw), service),
            number: answer.get(prm::OUT_QPN),
            depths,
            rings: buffer,
            send_offset,
            doorbell_record,
            queues,
        };
        Ok(DpaQueuePair { inner: Arc::new(inner) })
    }
}
