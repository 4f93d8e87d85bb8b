//! The card: its objects, its commands, and where its inputs go.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::{Address, Gid};
use crate::counters::Counters;
use crate::cq::{Cq, CqAttr};
use crate::dataflow::Engines;
use crate::effects::{AsyncEvent, CqEvent, Effects, FailureCause, Timer, Work};
use crate::error::NicError;
use crate::failure::PendingCqe;
use crate::memory::{Dma, Space};
use crate::mkey::{Access, KeyFault, MkeyAttr, Protection};
use crate::note::Note;
use crate::packet::{DEFAULT_PKEY, Packet};
use crate::qp::{Mtu, QpAttr, QpModify, QpQuery, QpState};
use crate::queue_pair::QueuePair;
use crate::table::{Slots, Table};
use crate::timing::NicTiming;
use crate::uc_multicast::GroupKey;

/// Longest entry that can come with its doorbell: half of a BlueFlame register of 512 bytes, as mlx5's provider uses it.
pub const PUSHED_BYTES: usize = 256;

/// What a card is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Identifiers of the port; index 0 is the default one. At least one is needed to be reached.
    pub gids: Vec<Gid>,
    /// Largest path MTU, and the largest UD message.
    pub port_mtu: Mtu,
    /// Service times.
    pub timing: NicTiming,
    /// Decides where queue numbers start and which tag a memory key gets, so that two cards do not number alike.
    pub seed: u64,
}

/// An emulated card with one port.
#[derive(Debug)]
pub struct Nic {
    pub(crate) config: NicConfig,
    pub(crate) counters: Counters,
    /// What happened, for those who asked for it.
    pub(crate) notes: Option<Vec<(u64, Note)>>,
    pub(crate) protection: Protection,
    pub(crate) cqs: Table<Cq>,
    pub(crate) qps: Table<QueuePair>,
    /// How often a queue pair has come, gone or changed its state.
    pub(crate) qp_changes: u64,
    pub(crate) engines: Engines,
    pub(crate) pending_cqes: Slots<PendingCqe>,
    pub(crate) loopback: Slots<Packet>,
    /// Partition keys of the port; index 0 is the default one.
    pub(crate) pkeys: Vec<u16>,
    /// Members of each multicast group.
    pub(crate) groups: BTreeMap<Gid, BTreeSet<u32>>,
    pub(crate) group_changes: u64,
    /// UC queue pairs take part in multicast.
    pub(crate) uc_multicast: bool,
    /// By queue pair and key.
    pub(crate) group_keys: BTreeMap<(u32, u32), GroupKey>,
    pub(crate) first_vhca: u16,
    pub(crate) vhcas: u16,
}

/// Mixes a seed (splitmix64).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn check_log(name: &'static str, value: u8, min: u8, max: u8) -> Result<(), NicError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(NicError::LogSize { name, value, min, max }) }
}

fn check_align(name: &'static str, addr: u64, align: u64) -> Result<(), NicError> {
    if addr.is_multiple_of(align) { Ok(()) } else { Err(NicError::Alignment { name, addr, align }) }
}

/// Control plane: commands of the driver. They take effect at once and take no time.
impl Nic {
    /// A card.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        let mixed = mix(config.seed);
        // Far enough from 0 that a number taken for an index, or the reverse, hits nothing.
        let first_cqn = 0x400 + (mixed & 0x3FF) as u32;
        let first_qpn = 0x1000 + (mixed >> 16 & 0xFFF) as u32;
        Self {
            counters: Counters::default(),
            notes: None,
            protection: Protection::new((mixed >> 32) as u8),
            cqs: Table::new(first_cqn),
            qps: Table::new(first_qpn),
            qp_changes: 0,
            engines: Engines::default(),
            pending_cqes: Slots::new(),
            loopback: Slots::new(),
            pkeys: vec![DEFAULT_PKEY],
            groups: BTreeMap::new(),
            group_changes: 0,
            uc_multicast: false,
            group_keys: BTreeMap::new(),
            first_vhca: ((mixed >> 40) as u16 & 0xFF) << 8,
            vhcas: 1,
            config,
        }
    }

    /// How it was made.
    #[must_use]
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Address of the port, with its default identifier.
    #[must_use]
    pub fn address(&self) -> Address {
        Address { mac: self.config.mac, gid: self.config.gids.first().copied().unwrap_or_default() }
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Makes a protection domain of the card's first virtual HCA.
    ///
    /// # Errors
    /// None today; the signature leaves room for a limit.
    pub fn alloc_pd(&mut self) -> Result<u32, NicError> {
        Ok(self.protection.alloc_pd(self.first_vhca))
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// It does not exist, or is in use.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), NicError> {
        self.protection.dealloc_pd(pd)
    }

    /// Makes a memory key: index in bits 31:8, tag in bits 7:0. It serves as lkey and as rkey.
    ///
    /// # Errors
    /// The protection domain does not exist, the range is empty or passes 2^64, or there are too many keys.
    pub fn create_mkey(&mut self, attr: MkeyAttr) -> Result<u32, NicError> {
        self.protection.create(attr)
    }

    /// Destroys a memory key. The next key of the same index has another tag, so this one stays refused.
    ///
    /// # Errors
    /// It does not exist.
    pub fn destroy_mkey(&mut self, key: u32) -> Result<(), NicError> {
        self.protection.destroy(key)
    }

    /// What a memory key gives access to, if it exists and is neither a UMR key nor an alias.
    #[must_use]
    pub fn query_mkey(&self, key: u32) -> Option<&MkeyAttr> {
        self.protection.attr(key)
    }

    /// Checks an access as the card would, and says which memory it is in.
    ///
    /// # Errors
    /// The key does not exist, is of another protection domain, does not cover the range, or lacks a right; or the bytes
    /// lie at another address than `addr`, or in several places.
    pub fn check_access(&self, key: u32, pd: u32, addr: u64, len: u64, access: Access) -> Result<Space, KeyFault> {
        self.protection.check(key, pd, addr, len, access)
    }

    /// Makes a completion queue. The caller must have set the owner bits of its ring to 1.
    ///
    /// # Errors
    /// A size outside its limits, or memory that is not aligned.
    pub fn create_cq(&mut self, attr: CqAttr) -> Result<u32, NicError> {
        check_log("log_depth of a completion queue", attr.log_depth, 0, 22)?;
        check_align("completion queue ring", attr.ring.addr, 64)?;
        check_align("completion queue doorbell record", attr.doorbell_record.addr, 8)?;
        self.cqs.insert(|_| Cq::new(attr))
    }

    /// How a completion queue was made, if it exists.
    #[must_use]
    pub fn query_cq(&self, cqn: u32) -> Option<&CqAttr> {
        self.cqs.get(cqn).map(|cq| &cq.attr)
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
        self.cqs.get(cqn).map(Cq::failed).ok_or(NicError::UnknownCq { cqn })
    }

    /// Destroys a completion queue. CQEs on their way to it are lost.
    ///
    /// # Errors
    /// It does not exist, or a queue pair completes into it.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), NicError> {
        let users = self.cqs.get(cqn).ok_or(NicError::UnknownCq { cqn })?.users;
        if users > 0 {
            return Err(NicError::CqInUse { cqn, users });
        }
        self.cqs.take(cqn);
        Ok(())
    }

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// A size outside its limits, memory that is not aligned, or a protection domain or completion queue that is not
    /// there.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<u32, NicError> {
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
        for cqn in [attr.send_cq, attr.recv_cq] {
            self.cqs.get(cqn).ok_or(NicError::UnknownCq { cqn })?;
        }
        self.protection.use_pd(attr.pd)?;
        let port_mtu = self.config.port_mtu;
        let qpn = self.qps.insert(|qpn| QueuePair::new(qpn, attr, port_mtu));
        if qpn.is_err() {
            self.protection.release_pd(attr.pd);
            return qpn;
        }
        for cqn in [attr.send_cq, attr.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cqn) {
                cq.users += 1;
            }
        }
        self.qp_changes += 1;
        qpn
    }

    /// Changes attributes of a queue pair, and its state. On an error nothing has changed.
    ///
    /// Entering ERR flushes what is posted; receives that are posted later are not seen, because a receive queue has no
    /// doorbell. Entering RESET forgets all attributes and counters, and with them the doorbells and CQEs that are on their
    /// way: what was posted before neither happens nor completes afterwards.
    ///
    /// # Errors
    /// No such queue pair, no such transition, or an attribute missing or outside its limits.
    pub fn modify_qp(&mut self, now_ps: u64, qpn: u32, modify: &QpModify, fx: &mut Effects) -> Result<(), NicError> {
        let qp = self.qps.get_mut(qpn).ok_or(NicError::UnknownQp { qpn })?;
        qp.modify(modify, self.config.port_mtu, self.config.gids.len(), self.pkeys.len())?;
        self.qp_changes += 1;
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
        let qp = self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?;
        Ok(QpQuery {
            attr: qp.attr,
            state: qp.state,
            resets: qp.life,
            path: qp.path,
            sq_psn: qp.sq.next_psn,
            rq_psn: qp.rq.expected_psn,
            rq_counter: qp.rq.consumer,
            sq_counter: qp.sq.retired,
            rnr_drops: qp.rq.rnr_drops,
            qkey_drops: qp.rq.qkey_drops,
        })
    }

    /// Numbers of the queue pairs there are, from `from` on in ascending order. A later one has a higher number, and none is given
    /// twice: to learn of new ones, ask from behind the last known.
    pub fn queue_pairs(&self, from: u32) -> impl Iterator<Item = u32> + '_ {
        self.qps.numbers_from(from)
    }

    /// How often queue pairs have been made, destroyed, or changed their state: while this stays, so do [`Nic::queue_pairs`] and the
    /// states that [`Nic::query_qp`] tells.
    #[must_use]
    pub fn queue_pair_changes(&self) -> u64 {
        self.qp_changes
    }

    /// Destroys a queue pair. Nothing is flushed; CQEs that are on their way still arrive.
    ///
    /// # Errors
    /// It does not exist, or is a member of multicast groups.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), NicError> {
        let groups = self.groups_of(qpn);
        if groups > 0 {
            return Err(NicError::QpAttached { qpn, groups });
        }
        let qp = self.qps.take(qpn).ok_or(NicError::UnknownQp { qpn })?;
        self.qp_changes += 1;
        self.group_keys.retain(|&(of, _), _| of != qpn);
        self.protection.release_pd(qp.attr.pd);
        for cqn in [qp.attr.send_cq, qp.attr.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cqn) {
                cq.users = cq.users.saturating_sub(1);
            }
        }
        Ok(())
    }
}

/// Data plane: doorbells, packets and timers.
impl Nic {
    /// Software rings a send doorbell: WQE blocks before `producer_index` (modulo 2^16) are posted.
    ///
    /// The card acts `doorbell_visible_ps` later; the caller adds no latency of its own for that.
    pub fn ring_sq(&mut self, now_ps: u64, qpn: u32, producer_index: u16, fx: &mut Effects) {
        self.ring(now_ps, qpn, producer_index, false, fx);
    }

    /// Like [`ring_sq`](Self::ring_sq), but software has written the last entry before `producer_index` with the doorbell (BlueFlame):
    /// the card need not fetch it. It lies in the ring, too, and is at most [`PUSHED_BYTES`] long.
    pub fn push_sq(&mut self, now_ps: u64, qpn: u32, producer_index: u16, fx: &mut Effects) {
        self.ring(now_ps, qpn, producer_index, true, fx);
    }

    fn ring(&mut self, now_ps: u64, qpn: u32, producer_index: u16, pushed: bool, fx: &mut Effects) {
        self.note(now_ps, || Note::Doorbell { qpn, producer_index });
        let Some(qp) = self.qps.get(qpn) else {
            self.counters.bad_doorbells += 1;
            fx.async_events.push(AsyncEvent::UnknownQueue { number: qpn });
            return;
        };
        let doorbell = Work::Doorbell { qpn, producer_index, pushed, life: qp.life };
        fx.timer(now_ps + self.config.timing.doorbell_visible_ps, doorbell);
    }

    /// Software has consumed CQEs before `consumer_index` (24 bits) and wants one event for the next CQE; if that is in
    /// the ring already, the event is due at once. Acts `doorbell_visible_ps` later.
    pub fn arm_cq(&mut self, now_ps: u64, cqn: u32, consumer_index: u32, fx: &mut Effects) {
        self.arm(now_ps, cqn, consumer_index, false, fx);
    }

    /// Like [`arm_cq`](Self::arm_cq), but only a CQE with the solicited bit or an error counts, among those that are in the ring already
    /// as well, as long as the queue is not armed for every CQE.
    pub fn arm_cq_solicited(&mut self, now_ps: u64, cqn: u32, consumer_index: u32, fx: &mut Effects) {
        self.arm(now_ps, cqn, consumer_index, true, fx);
    }

    fn arm(&mut self, now_ps: u64, cqn: u32, consumer_index: u32, solicited_only: bool, fx: &mut Effects) {
        self.note(now_ps, || Note::Arm { cqn, consumer_index });
        if self.cqs.get(cqn).is_none() {
            self.counters.bad_doorbells += 1;
            fx.async_events.push(AsyncEvent::UnknownQueue { number: cqn });
            return;
        }
        let at_ps = now_ps + self.config.timing.doorbell_visible_ps;
        fx.timer(at_ps, Work::Arm { cqn, consumer_index, solicited_only });
    }

    /// A timer from [`Effects::timers`] is due.
    pub fn handle_timer(&mut self, now_ps: u64, timer: Timer, mem: &mut dyn Dma, fx: &mut Effects) {
        match timer.0 {
            Work::Doorbell { qpn, producer_index, pushed, life } => self.with_qp(qpn, |nic, qp| {
                if qp.life == life {
                    qp.sq.pushed = pushed.then_some(producer_index);
                    nic.doorbell(now_ps, qp, producer_index, mem, fx);
                } else {
                    nic.counters.ignored_doorbells += 1;
                }
            }),
            Work::Arm { cqn, consumer_index, solicited_only } => {
                let Some(cq) = self.cqs.get_mut(cqn) else { return };
                if cq.arm(consumer_index, solicited_only) {
                    let target = cq.attr.target;
                    self.raise(now_ps, CqEvent { cqn, target }, fx);
                }
            }
            Work::Send { lane } => self.send(now_ps, usize::from(lane), mem, fx),
            Work::Paced { qpn } => self.with_qp(qpn, |nic, qp| nic.unpark(now_ps, qp, fx)),
            Work::Receive => {
                if let Some(packet) = self.engines.receive.waiting.pop_front() {
                    self.receive(now_ps, &packet, mem, fx);
                    if !self.engines.receive.waiting.is_empty() {
                        fx.timer(self.engines.receive.busy_until_ps, Work::Receive);
                    }
                }
            }
            Work::Loopback { slot } => {
                if let Some(packet) = self.loopback.take(slot) {
                    self.note(now_ps, || Note::Arrived { packet: (&packet).into(), loopback: true });
                    self.route(now_ps, &packet, mem, fx);
                }
            }
            Work::Cqe { slot } => self.write_cqe(now_ps, slot, mem, fx),
            Work::Retransmit { qpn } => {
                self.with_qp(qpn, |nic, qp| nic.retransmit_timer(now_ps, qp, mem, fx));
            }
            Work::ReceiverReady { qpn, epoch } => {
                self.with_qp(qpn, |nic, qp| nic.receiver_ready(now_ps, qp, epoch, fx));
            }
            Work::Flush { qpn } => self.with_qp(qpn, |nic, qp| {
                if qp.state == QpState::Err {
                    nic.flush(now_ps, qp, mem, fx);
                }
            }),
        }
    }

    /// Runs `work` on a queue pair taken out of its table; nothing happens if it has been destroyed.
    pub(crate) fn with_qp(&mut self, qpn: u32, work: impl FnOnce(&mut Self, &mut QueuePair)) {
        if let Some(mut qp) = self.qps.take(qpn) {
            work(self, &mut qp);
            self.qps.put(qpn, qp);
        }
    }

    /// A completion queue has failed, and takes its queue pairs with it.
    pub(crate) fn fail_cq(&mut self, now_ps: u64, cqn: u32, cause: FailureCause, mem: &mut dyn Dma, fx: &mut Effects) {
        fx.async_events.push(AsyncEvent::CqError { cqn, cause });
        for qpn in self.qps.numbers(|qp| qp.attr.send_cq == cqn || qp.attr.recv_cq == cqn) {
            self.with_qp(qpn, |nic, qp| {
                nic.fail_qp(now_ps, qp, FailureCause::CompletionQueue { cqn }, mem, fx);
            });
        }
    }
}
