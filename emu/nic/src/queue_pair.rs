//! The card's own record of a queue pair, and its changes of state.

pub(crate) mod receive_queue;
mod rings;
pub(crate) mod send_queue;

use crate::access::Access;
use crate::address::{Address, Gid};
use crate::error::NicError;
use crate::packet::Network;
use crate::psn::MASK_24;
use crate::qp::{MAX_RD_ATOMIC, Mtu, QpAttr, QpModify, QpPath, QpQuery, QpState};
use crate::transport::Transport;
use crate::wire::entropy_port;
use receive_queue::{ReceiveQueue, Share};
use send_queue::SendQueue;

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: u32,
    pub(crate) attr: QpAttr,
    /// Index of its virtual HCA, which is that of its protection domain.
    pub(crate) function: u16,
    pub(crate) state: QpState,
    /// How often it has been reset: distinguishes what is in flight for this life from what was for an earlier one.
    pub(crate) life: u32,
    pub(crate) path: QpPath,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    /// Which of the required attributes have been given since RESET.
    given: Given,
}

#[derive(Clone, Copy, Debug, Default)]
struct Given {
    access: bool,
    qkey: bool,
    path_mtu: bool,
    dest_qpn: bool,
    udp_sport: bool,
    rgid: bool,
    rq_psn: bool,
    sq_psn: bool,
}

fn default_path(port_mtu: Mtu) -> QpPath {
    QpPath {
        access: Access::empty(),
        qkey: 0,
        pkey_index: 0,
        port: 1,
        path_mtu: port_mtu,
        dest_qpn: 0,
        rgid: Gid::default(),
        dmac: [0; 6],
        sgid_index: 0,
        udp_sport: Network::default().udp_source_port,
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        retry_cnt: 7,
        rnr_retry: 0,
        min_rnr_timer: 1,
        timeout: 14,
        max_rd_atomic: 1,
        max_dest_rd_atomic: MAX_RD_ATOMIC,
        force_loopback: false,
        block_multicast_loopback: false,
    }
}

impl QueuePair {
    pub(crate) fn new(qpn: u32, attr: QpAttr, function: u16, port_mtu: Mtu) -> Self {
        Self {
            qpn,
            attr,
            function,
            state: QpState::Reset,
            life: 0,
            path: default_path(port_mtu),
            sq: SendQueue::default(),
            rq: ReceiveQueue { shared: attr.srq.map(|queue| Share { queue, own: None }), ..ReceiveQueue::default() },
            given: Given::default(),
        }
    }

    /// The other end of a connection.
    pub(crate) fn peer(&self) -> Address {
        Address { mac: self.path.dmac, gid: self.path.rgid }
    }

    pub(crate) fn query(&self) -> QpQuery {
        QpQuery {
            attr: self.attr,
            state: self.state,
            resets: self.life,
            path: self.path,
            sq_psn: self.sq.next_psn,
            rq_psn: self.rq.expected_psn,
            rq_counter: self.rq.consumer,
            sq_counter: self.sq.retired,
            rnr_drops: self.rq.rnr_drops,
            qkey_drops: self.rq.qkey_drops,
        }
    }

    /// Applies the attributes and enters the state, or changes nothing.
    pub(crate) fn modify(
        &mut self,
        modify: &QpModify,
        port_mtu: Mtu,
        gids: usize,
        pkeys: usize,
    ) -> Result<(), NicError> {
        let to = modify.next_state.unwrap_or(self.state);
        use QpState::{Err as Failed, Init, Reset, Rtr, Rts};
        let possible = modify.next_state.is_none()
            || matches!(
                (self.state, to),
                (_, Reset | Failed) | (Reset | Init, Init) | (Init, Rtr) | (Rtr, Rts) | (Rts, Rts)
            );
        if !possible {
            return Err(NicError::Transition { qpn: self.qpn, from: self.state, to });
        }
        self.check_ranges(modify, port_mtu, gids, pkeys)?;
        let given = self.given.with(modify);
        if modify.next_state.is_some() {
            given.check(self, to, modify.force_loopback.unwrap_or(self.path.force_loopback))?;
        }
        if to == Reset {
            self.reset(port_mtu);
            return Ok(());
        }
        if modify.next_state == Some(Failed) {
            // A failure of the queue pair's own still answers its peer; a command does not.
            self.rq.responses.clear();
        }
        self.given = given;
        self.apply(modify);
        self.state = to;
        Ok(())
    }

    fn reset(&mut self, port_mtu: Mtu) {
        let fresh = Self::new(self.qpn, self.attr, self.function, port_mtu);
        let sq = &self.sq;
        // Timers of the card outlive the queue pair's state, and CQEs stay in order.
        let in_flight = SendQueue {
            queued: sq.queued,
            epoch: sq.epoch.wrapping_add(1),
            deadline_timer: sq.deadline_timer,
            last_cqe_ps: sq.last_cqe_ps,
            ..SendQueue::default()
        };
        let ReceiveQueue { last_cqe_ps, rnr_drops, qkey_drops, .. } = self.rq;
        let shared = self.rq.shared.map(|share| Share { own: None, ..share });
        let rq = ReceiveQueue { shared, last_cqe_ps, rnr_drops, qkey_drops, ..ReceiveQueue::default() };
        *self = Self { life: self.life.wrapping_add(1), sq: in_flight, rq, ..fresh };
    }

    fn check_ranges(&self, modify: &QpModify, port_mtu: Mtu, gids: usize, pkeys: usize) -> Result<(), NicError> {
        if let Some(pd) = modify.pd.filter(|&pd| pd != self.attr.pd) {
            return Err(NicError::PdChange { qpn: self.qpn, owner: self.attr.pd, pd });
        }
        if let Some(port) = modify.port.filter(|&port| port != 1) {
            return Err(NicError::NoPort { qpn: self.qpn, port });
        }
        let limits = [
            ("dest_qpn", modify.dest_qpn.map(u64::from), u64::from(MASK_24)),
            ("rq_psn", modify.rq_psn.map(u64::from), u64::from(MASK_24)),
            ("sq_psn", modify.sq_psn.map(u64::from), u64::from(MASK_24)),
            ("path_mtu", modify.path_mtu.map(|mtu| u64::from(mtu.code())), u64::from(port_mtu.code())),
            ("sgid_index", modify.sgid_index.map(u64::from), gids.saturating_sub(1) as u64),
            ("pkey_index", modify.pkey_index.map(u64::from), pkeys.saturating_sub(1) as u64),
            ("flow_label", modify.flow_label.map(u64::from), 0xF_FFFF),
            ("retry_cnt", modify.retry_cnt.map(u64::from), 7),
            ("rnr_retry", modify.rnr_retry.map(u64::from), 7),
            ("min_rnr_timer", modify.min_rnr_timer.map(u64::from), 31),
            ("timeout", modify.timeout.map(u64::from), 31),
            ("max_rd_atomic", modify.max_rd_atomic.map(u64::from), u64::from(MAX_RD_ATOMIC)),
            ("max_dest_rd_atomic", modify.max_dest_rd_atomic.map(u64::from), u64::from(MAX_RD_ATOMIC)),
        ];
        for (attribute, value, max) in limits {
            if let Some(value) = value.filter(|&value| value > max) {
                return Err(NicError::AttributeRange { qpn: self.qpn, attribute, value, max });
            }
        }
        Ok(())
    }

    fn apply(&mut self, modify: &QpModify) {
        fn set<T: Copy>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        let path = &mut self.path;
        set(&mut path.access, modify.access);
        set(&mut path.qkey, modify.qkey);
        set(&mut path.pkey_index, modify.pkey_index);
        set(&mut path.port, modify.port);
        set(&mut path.path_mtu, modify.path_mtu);
        set(&mut path.dest_qpn, modify.dest_qpn);
        set(&mut path.rgid, modify.rgid);
        set(&mut path.dmac, modify.dmac);
        set(&mut path.sgid_index, modify.sgid_index);
        set(&mut path.udp_sport, modify.udp_sport);
        if !self.given.udp_sport
            && let Some(dest_qpn) = modify.dest_qpn
        {
            path.udp_sport = entropy_port(self.qpn, dest_qpn);
        }
        set(&mut path.traffic_class, modify.traffic_class);
        set(&mut path.hop_limit, modify.hop_limit);
        set(&mut path.flow_label, modify.flow_label);
        set(&mut path.retry_cnt, modify.retry_cnt);
        set(&mut path.rnr_retry, modify.rnr_retry);
        set(&mut path.min_rnr_timer, modify.min_rnr_timer);
        set(&mut path.timeout, modify.timeout);
        set(&mut path.max_rd_atomic, modify.max_rd_atomic);
        set(&mut path.max_dest_rd_atomic, modify.max_dest_rd_atomic);
        set(&mut path.force_loopback, modify.force_loopback);
        set(&mut path.block_multicast_loopback, modify.block_multicast_loopback);
        // A running queue has its own place in the sequence.
        if matches!(self.state, QpState::Reset | QpState::Init) {
            set(&mut self.rq.expected_psn, modify.rq_psn);
        }
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            set(&mut self.sq.next_psn, modify.sq_psn);
            set(&mut self.sq.unacknowledged, modify.sq_psn);
        }
        self.sq.retries_left = self.path.retry_cnt;
        self.sq.rnr_retries_left = self.path.rnr_retry;
    }
}

impl Given {
    fn with(self, modify: &QpModify) -> Self {
        Self {
            access: self.access || modify.access.is_some(),
            qkey: self.qkey || modify.qkey.is_some(),
            path_mtu: self.path_mtu || modify.path_mtu.is_some(),
            dest_qpn: self.dest_qpn || modify.dest_qpn.is_some(),
            udp_sport: self.udp_sport || modify.udp_sport.is_some(),
            rgid: self.rgid || modify.rgid.is_some(),
            rq_psn: self.rq_psn || modify.rq_psn.is_some(),
            sq_psn: self.sq_psn || modify.sq_psn.is_some(),
        }
    }

    fn check(self, qp: &QueuePair, to: QpState, force_loopback: bool) -> Result<(), NicError> {
        let connected = matches!(qp.attr.transport, Transport::Rc | Transport::Uc);
        let needed: &[(bool, &'static str)] = match to {
            QpState::Init if connected => &[(self.access, "access")],
            QpState::Init if qp.attr.transport == Transport::Ud => &[(self.qkey, "qkey")],
            QpState::Rtr if connected => &[
                (self.path_mtu, "path_mtu"),
                (self.dest_qpn, "dest_qpn"),
                (self.rq_psn, "rq_psn"),
                (self.rgid || force_loopback, "rgid"),
            ],
            QpState::Rts if qp.attr.transport != Transport::Ethernet => &[(self.sq_psn, "sq_psn")],
            _ => &[],
        };
        match needed.iter().find(|(given, _)| !given) {
            Some(&(_, attribute)) => {
                Err(NicError::MissingAttribute { qpn: qp.qpn, transport: qp.attr.transport, to, attribute })
            }
            None => Ok(()),
        }
    }
}
