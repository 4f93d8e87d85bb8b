//! The card's own record of a queue pair, and its changes of state.

use std::collections::{BTreeMap, VecDeque};

use crate::atomic::Atomic;
use crate::error::NicError;
use crate::mkey::Access;
use crate::packet::{Extension, Network};
use crate::qp::{MAX_RD_ATOMIC, Mtu, QpAttr, QpModify, QpPath, QpState, Transport};
use crate::repeat::Fetched;
use crate::requester::packets;
use crate::uc_multicast::{Sender, Sequence};
use crate::wire::entropy_port;
use crate::wqe::{Completion, DataSegment, Wqe, WqeFault};

/// PSNs and queue numbers have 24 bits.
pub(crate) const MASK_24: u32 = 0xFF_FFFF;

/// How far `psn` is ahead of `base`; `None` if it lies behind.
pub(crate) fn psn_ahead(psn: u32, base: u32) -> Option<u32> {
    let ahead = psn.wrapping_sub(base) & MASK_24;
    (ahead < 1 << 23).then_some(ahead)
}

pub(crate) fn psn_add(psn: u32, count: u32) -> u32 {
    psn.wrapping_add(count) & MASK_24
}

/// What kind of answer a sent WQE waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    Acknowledgement,
    /// Read responses or an atomic's answer, and where they go.
    Response(Vec<DataSegment>),
    /// Nothing: it has failed, and waits for the earlier ones to complete.
    Failed(WqeFault),
}

/// A send WQE that has been fetched and is not complete. RC only: the others complete when they are sent.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// Its first block's index in the ring, modulo 2^16.
    pub(crate) position: u16,
    pub(crate) blocks: u16,
    /// Index field of the control segment.
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) completion: Completion,
    pub(crate) first_psn: u32,
    /// PSNs it takes; none for a NOP or a failure.
    pub(crate) packets: u32,
    pub(crate) len: u32,
    pub(crate) awaited: Awaited,
}

/// The WQE being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Next packet of the message.
    pub(crate) packet: u32,
    pub(crate) packets: u32,
    pub(crate) first_psn: u32,
    /// Latency of the WQE's fetch, charged to its first packet.
    pub(crate) fetch_latency_ps: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// Index behind the last block that software has posted.
    pub(crate) producer: u16,
    /// Index of the next block to fetch.
    pub(crate) fetch: u16,
    /// Index behind an entry that came with its doorbell, and is fetched in no time.
    pub(crate) pushed: Option<u16>,
    /// Index of the oldest block that is not complete.
    pub(crate) retired: u16,
    /// In a send engine's queue, or waits until its rate lets it join.
    pub(crate) queued: bool,
    /// Its rate lets it send no earlier, once it has sent with a limit.
    pub(crate) paced_until_ps: Option<u64>,
    pub(crate) wqe: Wqe,
    pub(crate) sending: Option<Sending>,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Reads and atomics without an answer.
    pub(crate) reads: u32,
    /// Positions of outstanding WQEs that the card has executed by itself (UMR, invalidation): going back does not execute
    /// them again.
    pub(crate) executed: Vec<u16>,
    /// An error CQE has been written since RESET.
    pub(crate) error_reported: bool,
    /// PSN of the next WQE's first packet.
    pub(crate) next_psn: u32,
    /// Oldest PSN not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Packets of the next WQE that need not be sent again.
    pub(crate) skip: u32,
    /// A failed WQE waits for earlier ones; nothing more is fetched.
    pub(crate) stalled: bool,
    pub(crate) retries_left: u8,
    pub(crate) rnr_retries_left: u8,
    pub(crate) waits_for_receiver: bool,
    /// Distinguishes waits, so that the timer of an earlier one is harmless.
    pub(crate) epoch: u32,
    /// Where the last gap made us go back to; once is enough.
    pub(crate) went_back_to: Option<u32>,
    pub(crate) deadline_ps: u64,
    pub(crate) deadline_timer: bool,
    /// CQEs of one queue stay in order.
    pub(crate) last_cqe_ps: u64,
}

/// The message being received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inbound {
    Send { received: u64, capacity: u64 },
    Write { address: u64, rkey: u32, len: u32, received: u32 },
}

/// What an RC responder still has to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Response {
    Read {
        address: u64,
        rkey: u32,
        len: u32,
        packet: u32,
        first_psn: u32,
        /// Messages up to and with the Read, 24 bits.
        message_number: u32,
    },
    Answer {
        psn: u32,
        /// Messages up to this PSN.
        message_number: u32,
        extension: Extension,
        ready_ps: u64,
    },
    /// To be executed when the reads before it have been answered.
    Atomic(Atomic),
}

impl Response {
    /// PSN behind the request.
    pub(crate) fn end_psn(&self, mtu: u32) -> u32 {
        match self {
            Self::Read { first_psn, len, .. } => psn_add(*first_psn, packets(*len, mtu)),
            Self::Answer { psn, .. } | Self::Atomic(Atomic { psn, .. }) => psn_add(*psn, 1),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    /// Receive counter as last read from the doorbell record.
    pub(crate) producer: u16,
    /// Next receive to be consumed.
    pub(crate) consumer: u16,
    pub(crate) expected_psn: u32,
    /// Messages accepted, 24 bits. Answers tell those up to their own PSN: Reads among the accepted ones may still be unanswered.
    pub(crate) message_number: u32,
    /// A NAK is out; nothing but the expected PSN is of interest.
    pub(crate) nak_sent: bool,
    pub(crate) inbound: Option<Inbound>,
    /// Of a member of groups (UC): where it is in the packets of each sender.
    pub(crate) senders: BTreeMap<Sender, Sequence>,
    /// Segments of the receive that a Send is going into.
    pub(crate) segments: Vec<DataSegment>,
    pub(crate) responses: VecDeque<Response>,
    /// The latest Reads and atomics, oldest first: what a repeated request is answered with.
    pub(crate) fetched: VecDeque<Fetched>,
    /// Datagrams and messages that found no receive.
    pub(crate) rnr_drops: u64,
    /// Datagrams with a wrong Q_Key.
    pub(crate) qkey_drops: u64,
    /// Responses of one queue pair stay in order.
    pub(crate) last_response_ps: u64,
    pub(crate) last_cqe_ps: u64,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: u32,
    pub(crate) attr: QpAttr,
    pub(crate) state: QpState,
    /// How often it has been reset: tells what is in flight for this life from what was for an earlier one.
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
        rgid: crate::Gid::default(),
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
    pub(crate) fn new(qpn: u32, attr: QpAttr, port_mtu: Mtu) -> Self {
        Self {
            qpn,
            attr,
            state: QpState::Reset,
            life: 0,
            path: default_path(port_mtu),
            sq: SendQueue::default(),
            rq: ReceiveQueue::default(),
            given: Given::default(),
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
        let fresh = Self::new(self.qpn, self.attr, port_mtu);
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
        let rq = ReceiveQueue { last_cqe_ps, rnr_drops, qkey_drops, ..ReceiveQueue::default() };
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
        let connected = qp.attr.transport != Transport::Ud;
        let needed: &[(bool, &'static str)] = match to {
            QpState::Init if connected => &[(self.access, "access")],
            QpState::Init => &[(self.qkey, "qkey")],
            QpState::Rtr if connected => &[
                (self.path_mtu, "path_mtu"),
                (self.dest_qpn, "dest_qpn"),
                (self.rq_psn, "rq_psn"),
                (self.rgid || force_loopback, "rgid"),
            ],
            QpState::Rts => &[(self.sq_psn, "sq_psn")],
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
