//! Commands for completion queues and queue pairs. They take effect at once and take no time.

use super::Nic;
use crate::address::GSI_QPN;
use crate::cq::{Cq, CqAttr, CqProgress, Moderation};
use crate::effects::{Effects, Work};
use crate::error::NicError;
use crate::memory::QueueMemory;
use crate::progress::NotReady;
use crate::qp::{QpAttr, QpModify, QpQuery, QpState};
use crate::queue_pair::QueuePair;
use crate::queue_pair::receive_queue::Share;
use crate::shared_receives::{ReceiveOrder, SharedReceives, SrqAttr, SrqProgress};
use crate::transport::Transport;

fn check_log(name: &'static str, value: u8, min: u8, max: u8) -> Result<(), NicError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(NicError::LogSize { name, value, min, max }) }
}

fn check_align(name: &'static str, addr: u64, align: u64) -> Result<(), NicError> {
    if addr.is_multiple_of(align) { Ok(()) } else { Err(NicError::Alignment { name, addr, align }) }
}

impl Nic {
    /// Makes a completion queue. The caller must have set the owner bits of its ring to 1.
    ///
    /// # Errors
    /// A size outside its limits, or memory that is not aligned.
    pub fn create_cq(&mut self, attr: CqAttr) -> Result<u32, NicError> {
        self.create_cq_on(self.vhca_id(), attr)
    }

    /// Makes a completion queue of a virtual HCA; [`create_cq`](Self::create_cq) makes one of the card's first.
    ///
    /// # Errors
    /// There is no such virtual HCA; or as [`create_cq`](Self::create_cq).
    pub fn create_cq_on(&mut self, vhca: u16, attr: CqAttr) -> Result<u32, NicError> {
        self.datapath.keys.index_of_vhca(vhca)?;
        check_log("log_depth of a completion queue", attr.log_depth, 0, 22)?;
        check_align("completion queue ring", attr.ring.addr, 64)?;
        check_align("completion queue doorbell record", attr.doorbell_record.addr, 8)?;
        self.datapath.completions.queues.insert(|_| Cq::new(attr, vhca))
    }

    /// How a completion queue was made, if it exists.
    #[must_use]
    pub fn query_cq(&self, cqn: u32) -> Option<&CqAttr> {
        self.datapath.completions.queues.get(cqn).map(|cq| &cq.attr)
    }

    /// How far a completion queue has come, if it exists.
    #[must_use]
    pub fn cq_progress(&self, cqn: u32) -> Option<CqProgress> {
        self.datapath.completions.queues.get(cqn).map(Cq::progress)
    }

    /// Numbers of the completion queues that satisfy `test`, in ascending order.
    pub fn completion_queues(&self, test: impl Fn(&CqAttr) -> bool) -> Vec<u32> {
        self.datapath.completions.queues.numbers(|cq| test(&cq.attr))
    }

    /// How long a queue pair has had no receive for its peer's message; `None` if it has, or none was needed.
    #[must_use]
    pub fn not_ready(&self, qpn: u32) -> Option<NotReady> {
        self.qps.get(qpn)?.rq.not_ready
    }

    /// The UAR through which a queue pair may be rung, if it exists.
    #[must_use]
    pub fn qp_uar(&self, qpn: u32) -> Option<u32> {
        self.qps.get(qpn).map(|qp| qp.attr.uar)
    }

    /// Whether a completion queue has failed and takes no more CQEs.
    ///
    /// # Errors
    /// It does not exist.
    pub fn cq_failed(&self, cqn: u32) -> Result<bool, NicError> {
        self.datapath.completions.queues.get(cqn).map(Cq::failed).ok_or(NicError::UnknownCq { cqn })
    }

    /// Gives a completion queue another ring: CQEs go there from now on. The caller has set the owner bits of the new
    /// ring to 1, and moves the CQEs that it has not consumed to where they belong by their indices. The new ring must
    /// have room for them.
    ///
    /// # Errors
    /// It does not exist, a size outside its limits, or memory that is not aligned.
    pub fn resize_cq(&mut self, cqn: u32, ring: QueueMemory, log_depth: u8) -> Result<(), NicError> {
        check_log("log_depth of a completion queue", log_depth, 0, 22)?;
        check_align("completion queue ring", ring.addr, 64)?;
        let cq = self.datapath.completions.queues.get_mut(cqn).ok_or(NicError::UnknownCq { cqn })?;
        (cq.attr.ring, cq.attr.log_depth) = (ring, log_depth);
        Ok(())
    }

    /// Changes when a completion queue raises its event, from its next completion on.
    ///
    /// # Errors
    /// It does not exist.
    pub fn moderate_cq(&mut self, cqn: u32, moderation: Moderation) -> Result<(), NicError> {
        let cq = self.datapath.completions.queues.get_mut(cqn).ok_or(NicError::UnknownCq { cqn })?;
        cq.moderation = moderation;
        Ok(())
    }

    /// Destroys a completion queue. CQEs on their way to it are lost.
    ///
    /// # Errors
    /// It does not exist, or a queue pair completes into it.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), NicError> {
        let users = self.datapath.completions.queues.get(cqn).ok_or(NicError::UnknownCq { cqn })?.users;
        if users > 0 {
            return Err(NicError::CqInUse { cqn, users });
        }
        self.datapath.completions.queues.take(cqn);
        Ok(())
    }

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// A size outside its limits, memory that is not aligned, or a protection domain or completion queue that is not
    /// there, or is of another virtual HCA than the other.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<u32, NicError> {
        self.create_qp_numbered(attr, None)
    }

    /// Makes the queue pair of the port's general services ([`GSI_QPN`]), through which connection managers talk.
    ///
    /// # Errors
    /// There is one, or it is not UD; or as [`create_qp`](Self::create_qp).
    pub fn create_gsi_qp(&mut self, attr: QpAttr) -> Result<u32, NicError> {
        if attr.transport != Transport::Ud {
            return Err(NicError::GsiTransport { transport: attr.transport });
        }
        self.create_qp_numbered(attr, Some(GSI_QPN))
    }

    fn create_qp_numbered(&mut self, attr: QpAttr, number: Option<u32>) -> Result<u32, NicError> {
        if !attr.no_rq {
            check_log("log_rq_depth", attr.log_rq_depth, 0, 15)?;
            check_log("log_rq_stride", attr.log_rq_stride, 4, 10)?;
            check_align("receive ring", attr.rq.addr, 16)?;
        }
        if !attr.no_sq {
            check_log("log_sq_depth", attr.log_sq_depth, 0, 15)?;
            check_align("send ring", attr.sq.addr, 64)?;
        }
        check_align("queue pair doorbell record", attr.doorbell_record.addr, 8)?;
        if let Some(srqn) = attr.srq {
            let pd = self.datapath.shared.get(srqn).ok_or(NicError::UnknownSrq { srqn })?.attr.pd;
            if self.datapath.keys.vhca(pd)? != self.datapath.keys.vhca(attr.pd)? || !attr.no_rq {
                return Err(NicError::SrqOfOther { srqn, no_rq: attr.no_rq });
            }
        }
        let known = |cqn| self.datapath.completions.queues.get(cqn).ok_or(NicError::UnknownCq { cqn });
        let queues = [(attr.send_cq, known(attr.send_cq)?.vhca), (attr.recv_cq, known(attr.recv_cq)?.vhca)];
        let pd_vhca = self.datapath.keys.vhca(attr.pd)?;
        if let Some(&(cqn, vhca)) = queues.iter().find(|(_, vhca)| *vhca != pd_vhca) {
            return Err(NicError::CqOfOther { cqn, vhca, pd: attr.pd, pd_vhca });
        }
        let function = self.datapath.keys.index_of_vhca(pd_vhca)?;
        self.datapath.keys.use_pd(attr.pd)?;
        let port_mtu = self.config.port_mtu;
        let make = |qpn| QueuePair::new(qpn, attr, function, port_mtu);
        let qpn = match number {
            None => self.qps.insert(make),
            Some(number) => self.qps.insert_at(number, make),
        };
        if qpn.is_err() {
            self.datapath.keys.release_pd(attr.pd);
            return qpn;
        }
        for cqn in [attr.send_cq, attr.recv_cq] {
            if let Some(cq) = self.datapath.completions.queues.get_mut(cqn) {
                cq.users += 1;
            }
        }
        if let Some(shared) = attr.srq.and_then(|srqn| self.datapath.shared.get_mut(srqn)) {
            shared.users += 1;
        }
        self.datapath.state_changes += 1;
        qpn
    }

    /// Has two queue pairs, made with the same receive ring and doorbell record, take receives from it by turns, and
    /// further ones with them. Nothing may have been posted before.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn share_receives(&mut self, qpn: u32, other: u32) -> Result<(), NicError> {
        let first = self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?;
        self.qps.get(other).ok_or(NicError::UnknownQp { qpn: other })?;
        let shared = first.rq.shared;
        let queue = match shared {
            Some(share) => share.queue,
            None => {
                let QpAttr { pd, rq, log_rq_depth, log_rq_stride, doorbell_record, .. } = first.attr;
                let (log_depth, log_stride, order) = (log_rq_depth, log_rq_stride, ReceiveOrder::Ring);
                let attr = SrqAttr { pd, ring: rq, log_depth, log_stride, doorbell_record, order };
                self.datapath.keys.use_pd(pd)?;
                self.datapath.shared.insert(|_| SharedReceives::new(attr, true))?
            }
        };
        let newcomers = if shared.is_some() { &[other][..] } else { &[qpn, other] };
        for newcomer in newcomers {
            if let Some(qp) = self.qps.get_mut(*newcomer) {
                qp.rq.shared = Some(Share { queue, own: None });
            }
        }
        if let Some(shared) = self.datapath.shared.get_mut(queue) {
            shared.users += newcomers.len() as u32;
        }
        Ok(())
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// A size outside its limits, memory that is not aligned, or a protection domain that is not there.
    pub fn create_srq(&mut self, attr: SrqAttr) -> Result<u32, NicError> {
        let least_stride = if attr.order == ReceiveOrder::List { 5 } else { 4 };
        check_log("log_depth of a shared receive queue", attr.log_depth, 0, 15)?;
        check_log("log_stride of a shared receive queue", attr.log_stride, least_stride, 10)?;
        check_align("shared receive ring", attr.ring.addr, 16)?;
        check_align("shared receive queue doorbell record", attr.doorbell_record.addr, 4)?;
        self.datapath.keys.use_pd(attr.pd)?;
        let srqn = self.datapath.shared.insert(|_| SharedReceives::new(attr, false));
        if srqn.is_err() {
            self.datapath.keys.release_pd(attr.pd);
        }
        srqn
    }

    /// Asks for an event, once, when fewer than `limit` receives are left of a shared receive queue, or are now; 0 asks
    /// for none.
    ///
    /// # Errors
    /// It does not exist.
    pub fn arm_srq(&mut self, now_ps: u64, srqn: u32, limit: u16, fx: &mut Effects) -> Result<(), NicError> {
        self.datapath.shared.get_mut(srqn).ok_or(NicError::UnknownSrq { srqn })?.arm(limit);
        fx.timer(now_ps, Work::Limit { srqn });
        Ok(())
    }

    /// How far a shared receive queue has come.
    ///
    /// # Errors
    /// It does not exist.
    pub fn query_srq(&self, srqn: u32) -> Result<SrqProgress, NicError> {
        Ok(self.datapath.shared.get(srqn).ok_or(NicError::UnknownSrq { srqn })?.progress())
    }

    /// Destroys a shared receive queue. What is posted is forgotten.
    ///
    /// # Errors
    /// It does not exist, or queue pairs take receives from it.
    pub fn destroy_srq(&mut self, srqn: u32) -> Result<(), NicError> {
        let users = self.datapath.shared.get(srqn).ok_or(NicError::UnknownSrq { srqn })?.users;
        if users > 0 {
            return Err(NicError::SrqInUse { srqn, users });
        }
        self.take_srq(srqn);
        Ok(())
    }

    fn take_srq(&mut self, srqn: u32) {
        if let Some(shared) = self.datapath.shared.take(srqn) {
            self.datapath.keys.release_pd(shared.attr.pd);
        }
    }

    /// A queue pair that took receives from a shared queue is gone.
    fn leave_srq(&mut self, srqn: u32) {
        let Some(shared) = self.datapath.shared.get_mut(srqn) else { return };
        shared.users = shared.users.saturating_sub(1);
        if shared.temporary && shared.users == 0 {
            self.take_srq(srqn);
        }
    }

    /// Changes attributes of a queue pair, and its state. On an error nothing has changed.
    ///
    /// Entering ERR flushes what is posted; receives that are posted later are not seen, because a receive queue has no
    /// doorbell. Entering RESET forgets all attributes and counters, and with them the doorbells and CQEs that are on
    /// their way: what was posted before neither happens nor completes afterwards.
    ///
    /// # Errors
    /// No such queue pair, no such transition, or an attribute missing or outside its limits.
    pub fn modify_qp(&mut self, now_ps: u64, qpn: u32, modify: &QpModify, fx: &mut Effects) -> Result<(), NicError> {
        let qp = self.qps.get_mut(qpn).ok_or(NicError::UnknownQp { qpn })?;
        let gids = self.datapath.port.identity.addresses(qp.function).map_or(0, |addresses| addresses.gids.len());
        qp.modify(modify, self.config.port_mtu, gids, self.datapath.port.identity.pkeys().len())?;
        self.datapath.state_changes += 1;
        if modify.next_state == Some(QpState::Err) {
            fx.timer(now_ps, Work::Flush { qpn });
        }
        Ok(())
    }

    /// What is known of a queue pair.
    ///
    /// # Errors
    /// It does not exist.
    pub fn query_qp(&self, qpn: u32) -> Result<QpQuery, NicError> {
        Ok(self.qp(qpn)?.query())
    }

    /// Numbers of the queue pairs there are, from `from` on in ascending order. A later one has a higher number, and
    /// none is given twice: to learn of new ones, ask from behind the last known.
    pub fn queue_pairs(&self, from: u32) -> impl Iterator<Item = u32> + '_ {
        self.qps.numbers_from(from)
    }

    /// How often queue pairs have been made, destroyed, or changed their state: while this stays, so do
    /// [`Nic::queue_pairs`] and the states that [`Nic::query_qp`] reports.
    #[must_use]
    pub fn queue_pair_changes(&self) -> u64 {
        self.datapath.state_changes
    }

    /// Destroys a queue pair. Nothing is flushed; CQEs that are on their way still arrive.
    ///
    /// # Errors
    /// It does not exist, is a member of multicast groups, or steering rules lead to it.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), NicError> {
        let groups = self.datapath.groups.groups_of(qpn);
        if groups > 0 {
            return Err(NicError::QpAttached { qpn, groups });
        }
        let flows = self.datapath.steering.users(qpn);
        if flows > 0 {
            return Err(NicError::QpSteered { qpn, flows });
        }
        let qp = self.qps.take(qpn).ok_or(NicError::UnknownQp { qpn })?;
        self.datapath.state_changes += 1;
        self.responder.forget(qpn);
        if let Some(share) = qp.rq.shared {
            self.leave_srq(share.queue);
        }
        self.datapath.keys.release_pd(qp.attr.pd);
        for cqn in [qp.attr.send_cq, qp.attr.recv_cq] {
            if let Some(cq) = self.datapath.completions.queues.get_mut(cqn) {
                cq.users = cq.users.saturating_sub(1);
            }
        }
        Ok(())
    }

    fn qp(&self, qpn: u32) -> Result<&QueuePair, NicError> {
        self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })
    }
}
