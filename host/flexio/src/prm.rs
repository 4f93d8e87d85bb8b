//! Command layouts for objects that FlexIO does not make itself: queue pairs of the UC and UD transports on DPA memory,
//! and their memberships in multicast groups.
//!
//! The layouts are those of the mlx5 programming interface as the Linux driver and rdma-core use them: big-endian
//! dwords, bit 0 is the most significant bit of its dword. Commands travel through `mlx5dv_devx_obj_create` and
//! `mlx5dv_devx_obj_modify`.

pub(crate) mod keys;

use crate::path::{Path, Retry};

/// One field: byte offset of its dword, first bit (0 = most significant), width in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field(usize, u32, u32);

impl Field {
    /// The same field of a structure embedded `base` bytes further on.
    const fn within(self, base: usize) -> Field {
        Field(self.0 + base, self.1, self.2)
    }
}

/// A command mailbox under construction, or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mailbox<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> Mailbox<N> {
    pub(crate) const fn zeroed() -> Self {
        Self { bytes: [0; N] }
    }

    fn command(opcode: u32) -> Self {
        let mut this = Self::zeroed();
        this.set(OPCODE, opcode);
        this
    }

    /// Stores `value`, which must fit: widths are checked where values enter this module.
    pub(crate) fn set(&mut self, field: Field, value: u32) {
        let Field(offset, bit, width) = field;
        let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
        debug_assert!(value & !mask == 0, "{value:#x} does not fit in {width} bits at {offset:#x}+{bit}");
        let shift = 32 - bit - width;
        let dword = self.dword(offset) & !(mask << shift) | (value & mask) << shift;
        self.bytes[offset..offset + 4].copy_from_slice(&dword.to_be_bytes());
    }

    pub(crate) fn get(&self, field: Field) -> u32 {
        let Field(offset, bit, width) = field;
        let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
        self.dword(offset) >> (32 - bit - width) & mask
    }

    fn set_u64(&mut self, offset: usize, value: u64) {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
    }

    fn set_bytes(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }

    fn dword(&self, offset: usize) -> u32 {
        let mut raw = [0; 4];
        raw.copy_from_slice(&self.bytes[offset..offset + 4]);
        u32::from_be_bytes(raw)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; N] {
        &self.bytes
    }

    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8; N] {
        &mut self.bytes
    }
}

const OPCODE: Field = Field(0x0, 0, 16);
/// Status byte of every answer; 0 is success.
pub(crate) const OUT_STATUS: Field = Field(0x0, 0, 8);
/// Firmware syndrome of a failed answer.
pub(crate) const OUT_SYNDROME: Field = Field(0x4, 0, 32);
/// Number of the queue pair in the answer to CREATE_QP.
pub(crate) const OUT_QPN: Field = Field(0x8, 8, 24);

const CREATE_QP: u32 = 0x500;
const RST2INIT_QP: u32 = 0x502;
const INIT2RTR_QP: u32 = 0x503;
const RTR2RTS_QP: u32 = 0x504;
const ATTACH_TO_MCG: u32 = 0x806;
const CREATE_GENERAL_OBJECT: u32 = 0xA00;

/// Bytes of CREATE_QP and of the three transition commands.
pub(crate) const QP_COMMAND_BYTES: usize = 272;
/// Bytes of their answers.
pub(crate) const QP_ANSWER_BYTES: usize = 16;
/// Where the queue-pair context lies in all four.
const QPC: usize = 0x18;
/// Where the primary address path lies in the queue-pair context.
const ADS: usize = QPC + 0x18;
const WQ_UMEM_OFFSET: usize = 0x100;
const WQ_UMEM_ID: Field = Field(0x108, 0, 32);
const WQ_UMEM_VALID: Field = Field(0x10C, 0, 1);
const MODIFY_QPN: Field = Field(0x8, 8, 24);
/// Bytes of ATTACH_TO_MCG, whose queue pair is at [`MODIFY_QPN`].
pub(crate) const GROUP_COMMAND_BYTES: usize = 32;
const GROUP_GID: usize = 0x10;
/// Bytes of CREATE_GENERAL_OBJECT for a group key: an extension of the emulator, described in its `prm.rs`.
pub(crate) const GROUP_KEY_COMMAND_BYTES: usize = 0x28;
const OBJECT_TYPE: Field = Field(0x4, 16, 16);
const GROUP_KEY_TYPE: u32 = 0xFC01;
const GROUP_KEY_QPN: Field = Field(0x10, 8, 24);
const GROUP_KEY: Field = Field(0x14, 0, 32);
const GROUP_KEY_LOCAL: Field = Field(0x18, 0, 32);
const GROUP_KEY_BASE: usize = 0x20;

const ST: Field = Field(0x0, 8, 8).within(QPC);
const PM_STATE: Field = Field(0x0, 19, 2).within(QPC);
const BLOCK_MULTICAST_LOOPBACK: Field = Field(0x4, 1, 1).within(QPC);
const PD: Field = Field(0x4, 8, 24).within(QPC);
const MTU: Field = Field(0x8, 0, 3).within(QPC);
const LOG_MSG_MAX: Field = Field(0x8, 3, 5).within(QPC);
const LOG_RQ_SIZE: Field = Field(0x8, 9, 4).within(QPC);
const LOG_RQ_STRIDE: Field = Field(0x8, 13, 3).within(QPC);
const NO_SQ: Field = Field(0x8, 16, 1).within(QPC);
const LOG_SQ_SIZE: Field = Field(0x8, 17, 4).within(QPC);
const UAR_PAGE: Field = Field(0xC, 8, 24).within(QPC);
const USER_INDEX: Field = Field(0x10, 8, 24).within(QPC);
const REMOTE_QPN: Field = Field(0x14, 8, 24).within(QPC);
const LOG_SRA_MAX: Field = Field(0x70, 8, 3).within(QPC);
const RETRY_COUNT: Field = Field(0x70, 13, 3).within(QPC);
const RNR_RETRY: Field = Field(0x70, 16, 3).within(QPC);
const NEXT_SEND_PSN: Field = Field(0x78, 8, 24).within(QPC);
const CQN_SND: Field = Field(0x7C, 8, 24).within(QPC);
const LOG_RRA_MAX: Field = Field(0x90, 8, 3).within(QPC);
const RRE: Field = Field(0x90, 16, 1).within(QPC);
const RWE: Field = Field(0x90, 17, 1).within(QPC);
const MIN_RNR_NAK: Field = Field(0x94, 3, 5).within(QPC);
const NEXT_RCV_PSN: Field = Field(0x94, 8, 24).within(QPC);
const CQN_RCV: Field = Field(0x9C, 8, 24).within(QPC);
const DBR_ADDR: usize = QPC + 0xA0;
const Q_KEY: Field = Field(0xA8, 0, 32).within(QPC);
const RQ_TYPE: Field = Field(0xAC, 5, 3).within(QPC);
const DBR_UMEM_VALID: Field = Field(0xD0, 3, 1).within(QPC);
const DBR_UMEM_ID: Field = Field(0xE4, 0, 32).within(QPC);

const ADS_GRH: Field = Field(0x4, 8, 1).within(ADS);
const ADS_LOOPBACK: Field = Field(0x0, 0, 1).within(ADS);
const ADS_ACK_TIMEOUT: Field = Field(0x8, 0, 5).within(ADS);
const ADS_SRC_ADDR_INDEX: Field = Field(0x8, 8, 8).within(ADS);
const ADS_HOP_LIMIT: Field = Field(0x8, 24, 8).within(ADS);
const ADS_TRAFFIC_CLASS: Field = Field(0xC, 4, 8).within(ADS);
const ADS_FLOW_LABEL: Field = Field(0xC, 12, 20).within(ADS);
const ADS_RGID: usize = ADS + 0x10;
const ADS_UDP_SPORT: Field = Field(0x20, 16, 16).within(ADS);
const ADS_SL: Field = Field(0x24, 4, 4).within(ADS);
const ADS_VHCA_PORT: Field = Field(0x24, 8, 8).within(ADS);
const ADS_RMAC_HIGH: Field = Field(0x24, 16, 16).within(ADS);
const ADS_RMAC_LOW: Field = Field(0x28, 0, 32).within(ADS);

/// Path-migration state "migrated", the only one a queue pair without an alternate path may have.
const PM_MIGRATED: u32 = 3;
/// log2 of the longest message (2 GiB), the transport's own limit minus one.
const LOG_MSG_MAX_BYTES: u32 = 30;
/// A datagram is one packet of at most 4 KiB, whatever the port's MTU (as the Linux driver has it).
const DATAGRAM_MTU_CODE: u32 = 5;
const LOG_DATAGRAM_MAX_BYTES: u32 = 12;
/// Receive queue type of a queue pair without one.
const ZERO_SIZE_RQ: u32 = 3;
/// log2 of the reads that a connection has under way, either way.
const LOG_READS: u32 = 3;
/// Code of 0.64 ms: how long a peer waits that finds no receive posted (InfiniBand specification, volume 1, 9.7.5.2.8).
const RNR_WAIT: u32 = 12;
/// It tries again without end.
const RNR_FOR_EVER: u32 = 7;
/// UDP source port of a queue pair whose flows need not be spread (low end of the range RoCEv2 reserves).
pub(crate) const UDP_SOURCE_PORT: u16 = 0xC000;
/// Number of the queue pair that stands for all members of a group.
pub(crate) const GROUP_QPN: u32 = 0xFF_FFFF;

/// Service type of the queue-pair context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceType {
    Rc = 0,
    Uc = 1,
    Ud = 2,
}

/// What CREATE_QP needs for a queue pair whose rings and doorbell record lie in DPA memory. The receive ring comes
/// first, the send ring behind it, on a 64-byte boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingsQp {
    pub(crate) service: ServiceType,
    pub(crate) pd_number: u32,
    pub(crate) uar_page: u32,
    pub(crate) user_index: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
    /// log2 of 16-byte receive entries; `None` without a receive queue.
    pub(crate) log_rq_depth: Option<u8>,
    /// log2 of 64-byte blocks; `None` without a send queue.
    pub(crate) log_sq_depth: Option<u8>,
    /// What the queue pair sends to a group does not come back to the card.
    pub(crate) block_multicast_loopback: bool,
    /// Id of the memory object that covers the DPA heap.
    pub(crate) dumem_id: u32,
    /// Offset of the rings in that object.
    pub(crate) ring_offset: u64,
    /// Offset of the doorbell record in that object.
    pub(crate) doorbell_record_offset: u64,
}

/// The peer of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemotePath {
    pub(crate) qpn: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) mac: [u8; 6],
    /// First PSN expected from the peer.
    pub(crate) first_psn: u32,
    pub(crate) path: Path,
    /// The peer is on the own card.
    pub(crate) loopback: bool,
}

pub(crate) fn create_qp(qp: &RingsQp) -> Mailbox<QP_COMMAND_BYTES> {
    let mut m = Mailbox::command(CREATE_QP);
    m.set(ST, qp.service as u32);
    m.set(PM_STATE, PM_MIGRATED);
    m.set(BLOCK_MULTICAST_LOOPBACK, u32::from(qp.block_multicast_loopback));
    m.set(PD, qp.pd_number);
    match qp.log_rq_depth {
        Some(log) => m.set(LOG_RQ_SIZE, u32::from(log)),
        None => m.set(RQ_TYPE, ZERO_SIZE_RQ),
    }
    // A stride of 16 bytes is code 0.
    m.set(LOG_RQ_STRIDE, 0);
    match qp.log_sq_depth {
        Some(log) => m.set(LOG_SQ_SIZE, u32::from(log)),
        None => m.set(NO_SQ, 1),
    }
    m.set(UAR_PAGE, qp.uar_page);
    m.set(USER_INDEX, qp.user_index);
    m.set(CQN_SND, qp.send_cqn);
    m.set(CQN_RCV, qp.recv_cqn);
    m.set_u64(DBR_ADDR, qp.doorbell_record_offset);
    m.set(DBR_UMEM_VALID, 1);
    m.set(DBR_UMEM_ID, qp.dumem_id);
    m.set_u64(WQ_UMEM_OFFSET, qp.ring_offset);
    m.set(WQ_UMEM_ID, qp.dumem_id);
    m.set(WQ_UMEM_VALID, 1);
    m
}

fn transition(opcode: u32, service: ServiceType, qpn: u32) -> Mailbox<QP_COMMAND_BYTES> {
    let mut m = Mailbox::command(opcode);
    m.set(MODIFY_QPN, qpn);
    m.set(ST, service as u32);
    m.set(PM_STATE, PM_MIGRATED);
    m
}

/// RESET to INIT. `q_key` is what a UD datagram must carry; UC has none. Whether loopback is blocked, the card knows
/// from CREATE_QP.
pub(crate) fn rst2init(service: ServiceType, qpn: u32, q_key: u32, port: u8) -> Mailbox<QP_COMMAND_BYTES> {
    let mut m = transition(RST2INIT_QP, service, qpn);
    m.set(ADS_VHCA_PORT, u32::from(port));
    match service {
        ServiceType::Ud => m.set(Q_KEY, q_key),
        ServiceType::Rc | ServiceType::Uc => m.set(RWE, 1),
    }
    m.set(RRE, u32::from(service == ServiceType::Rc));
    m
}

/// INIT to RTR. `mtu_code` as in verbs: 1 = 256 bytes … 5 = 4096 bytes. `remote` is for RC and UC.
pub(crate) fn init2rtr(
    service: ServiceType,
    qpn: u32,
    mtu_code: u8,
    port: u8,
    gid_index: u8,
    remote: Option<&RemotePath>,
) -> Mailbox<QP_COMMAND_BYTES> {
    let mut m = transition(INIT2RTR_QP, service, qpn);
    let (mtu_code, log_msg_max) = match service {
        ServiceType::Rc | ServiceType::Uc => (u32::from(mtu_code), LOG_MSG_MAX_BYTES),
        ServiceType::Ud => (DATAGRAM_MTU_CODE, LOG_DATAGRAM_MAX_BYTES),
    };
    m.set(MTU, mtu_code);
    m.set(LOG_MSG_MAX, log_msg_max);
    m.set(ADS_VHCA_PORT, u32::from(port));
    if let Some(remote) = remote {
        m.set(REMOTE_QPN, remote.qpn);
        m.set(NEXT_RCV_PSN, remote.first_psn);
        m.set(RWE, 1);
        if service == ServiceType::Rc {
            m.set(RRE, 1);
            m.set(LOG_RRA_MAX, LOG_READS);
            m.set(MIN_RNR_NAK, RNR_WAIT);
            m.set(ADS_LOOPBACK, u32::from(remote.loopback));
        }
        m.set(ADS_GRH, 1);
        m.set(ADS_SRC_ADDR_INDEX, u32::from(gid_index));
        m.set(ADS_HOP_LIMIT, u32::from(remote.path.hop_limit));
        m.set(ADS_TRAFFIC_CLASS, u32::from(remote.path.traffic_class));
        m.set(ADS_FLOW_LABEL, remote.path.flow_label);
        m.set(ADS_SL, u32::from(remote.path.service_level));
        // Members of a group distinguish the UC senders of one card by their port.
        let own = if remote.qpn == GROUP_QPN { qpn as u16 & 0x3FFF } else { 0 };
        m.set(ADS_UDP_SPORT, u32::from(UDP_SOURCE_PORT | own));
        m.set_bytes(ADS_RGID, &remote.gid);
        let [a, b, c, d, e, f] = remote.mac;
        m.set(ADS_RMAC_HIGH, u32::from(u16::from_be_bytes([a, b])));
        m.set(ADS_RMAC_LOW, u32::from_be_bytes([c, d, e, f]));
    }
    m
}

/// RTR to RTS. `retry` is for RC.
pub(crate) fn rtr2rts(
    service: ServiceType,
    qpn: u32,
    first_psn: u32,
    retry: Option<Retry>,
) -> Mailbox<QP_COMMAND_BYTES> {
    let mut m = transition(RTR2RTS_QP, service, qpn);
    m.set(NEXT_SEND_PSN, first_psn);
    if let Some(retry) = retry {
        m.set(ADS_ACK_TIMEOUT, u32::from(retry.timeout_exponent));
        m.set(RETRY_COUNT, u32::from(retry.count));
        m.set(RNR_RETRY, RNR_FOR_EVER);
        m.set(LOG_SRA_MAX, LOG_READS);
    }
    m
}

/// Makes a queue pair a member of a group; the membership ends with the object that the command makes.
pub(crate) fn attach_to_mcg(qpn: u32, gid: [u8; 16]) -> Mailbox<GROUP_COMMAND_BYTES> {
    let mut m = Mailbox::command(ATTACH_TO_MCG);
    m.set(MODIFY_QPN, qpn);
    m.set_bytes(GROUP_GID, &gid);
    m
}

/// What a group key stands for at a queue pair.
pub(crate) fn create_group_key(qpn: u32, key: u32, local_key: u32, base: u64) -> Mailbox<GROUP_KEY_COMMAND_BYTES> {
    let mut m = Mailbox::command(CREATE_GENERAL_OBJECT);
    m.set(OBJECT_TYPE, GROUP_KEY_TYPE);
    m.set(GROUP_KEY_QPN, qpn);
    m.set(GROUP_KEY, key);
    m.set(GROUP_KEY_LOCAL, local_key);
    m.set_u64(GROUP_KEY_BASE, base);
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    const UD: RingsQp = RingsQp {
        service: ServiceType::Ud,
        pd_number: 0x12_3456,
        uar_page: 0x77,
        user_index: 0xABCDE,
        send_cqn: 0x41,
        recv_cqn: 0x40,
        log_rq_depth: Some(9),
        log_sq_depth: None,
        block_multicast_loopback: false,
        dumem_id: 0xDEAD,
        ring_offset: 0x1_0000_2000,
        doorbell_record_offset: 0x1_0000_1040,
    };

    /// Offsets are checked against absolute bytes written out by hand from the command tables, not against the fields.
    #[test]
    fn create_qp_puts_each_value_at_its_byte() {
        let m = create_qp(&UD);
        let b = m.as_bytes();
        assert_eq!(b[0..2], [0x05, 0x00], "opcode");
        assert_eq!(b[0x19], 2, "service type is the second byte of the context");
        assert_eq!(b[0x1A] & 0x18, 0x18, "path migration state 3");
        assert_eq!(b[0x1C], 0, "multicast comes back");
        assert_eq!(b[0x1D..0x20], [0x12, 0x34, 0x56], "protection domain");
        assert_eq!(b[0x21] >> 3 & 0xF, 9, "log of the receive ring");
        assert_eq!(b[0x21] & 7, 0, "stride 16 bytes is code 0");
        assert_eq!(b[0x22] >> 7, 1, "no send queue");
        assert_eq!(b[0x25..0x28], [0, 0, 0x77], "UAR page");
        assert_eq!(b[0x29..0x2C], [0x0A, 0xBC, 0xDE], "user index");
        assert_eq!(b[0x95..0x98], [0, 0, 0x41], "send completion queue");
        assert_eq!(b[0xB5..0xB8], [0, 0, 0x40], "receive completion queue");
        assert_eq!(b[0xB8..0xC0], 0x1_0000_1040u64.to_be_bytes(), "doorbell record");
        assert_eq!(b[0xE8] & 0x10, 0x10, "doorbell record is in a memory object");
        assert_eq!(b[0xFC..0x100], 0xDEADu32.to_be_bytes(), "memory object of the doorbell record");
        assert_eq!(b[0x100..0x108], 0x1_0000_2000u64.to_be_bytes(), "ring");
        assert_eq!(b[0x108..0x10C], 0xDEADu32.to_be_bytes(), "memory object of the ring");
        assert_eq!(b[0x10C] & 0x80, 0x80, "ring is in a memory object");
        assert_eq!(b[0xC4] & 7, 0, "a receive queue of its own");
    }

    #[test]
    fn create_qp_states_which_queues_there_are() {
        let m = create_qp(&RingsQp { log_rq_depth: None, log_sq_depth: Some(7), block_multicast_loopback: true, ..UD });
        let b = m.as_bytes();
        assert_eq!(b[0x1C], 0x40, "multicast does not come back: bit 1");
        assert_eq!(b[0x21] >> 3 & 0xF, 0, "no receive ring");
        assert_eq!(b[0xC4] & 7, 3, "a receive queue of size 0");
        assert_eq!(b[0x22], 7 << 3, "log of the send ring, and no bit that says there is none");
    }

    #[test]
    fn a_membership_names_queue_pair_and_group() {
        let m = attach_to_mcg(0x12_3456, [9; 16]);
        let b = m.as_bytes();
        assert_eq!((b[0..2].to_vec(), b[9..0xC].to_vec()), (vec![0x08, 0x06], vec![0x12, 0x34, 0x56]));
        assert_eq!((b[0x10..0x20].to_vec(), b.len()), (vec![9; 16], 32));
    }

    #[test]
    fn transitions_carry_queue_key_and_path() {
        let init = rst2init(ServiceType::Ud, 0x99, 0x1111_1111, 1);
        assert_eq!(init.as_bytes()[0..2], [0x05, 0x02]);
        assert_eq!(init.as_bytes()[0x9..0xC], [0, 0, 0x99]);
        assert_eq!(init.as_bytes()[0xC0..0xC4], 0x1111_1111u32.to_be_bytes());
        assert_eq!(init.as_bytes()[0x30 + 0x25], 1, "port");

        const PATH: Path = Path { traffic_class: 0xA2, service_level: 5, flow_label: 0x1_2345, hop_limit: 9 };
        let remote = RemotePath {
            qpn: 0x55,
            gid: [7; 16],
            mac: [1, 2, 3, 4, 5, 6],
            first_psn: 0x10,
            path: PATH,
            loopback: false,
        };
        let rtr = init2rtr(ServiceType::Uc, 0x99, 5, 1, 3, Some(&remote));
        let b = rtr.as_bytes();
        assert_eq!(b[0..2], [0x05, 0x03]);
        assert_eq!(b[0x20] >> 5, 5, "MTU code");
        assert_eq!(b[0x20] & 0x1F, 30, "longest message");
        assert_eq!(b[0x2D..0x30], [0, 0, 0x55], "remote queue pair");
        assert_eq!(b[0x30 + 0x9], 3, "source GID index");
        assert_eq!(b[0x30 + 0xB], 9, "hop limit");
        assert_eq!(b[0x30 + 0xC..0x30 + 0x10], [0x0A, 0x21, 0x23, 0x45], "traffic class and flow label");
        assert_eq!(b[0x30 + 0x24], 5, "service level");
        assert_eq!(b[0x30 + 0x10..0x30 + 0x20], [7; 16], "remote GID");
        assert_eq!(b[0x30 + 0x22..0x30 + 0x24], [0xC0, 0x00], "UDP source port");
        assert_eq!(b[0x30 + 0x26..0x30 + 0x2C], [1, 2, 3, 4, 5, 6], "remote MAC");
        assert_eq!(b[0xA9] & 0x40, 0, "bit 17 lies in the third byte");
        assert_eq!(b[0xAA] & 0x40, 0x40, "remote writes allowed");
        assert_eq!(b[0xAD..0xB0], [0, 0, 0x10], "first PSN expected");

        let datagrams = init2rtr(ServiceType::Ud, 0x99, 3, 1, 0, None);
        assert_eq!(datagrams.as_bytes()[0x20], 5 << 5 | 12, "datagrams of up to 4 KiB");

        let rts = rtr2rts(ServiceType::Uc, 0x99, 0x20, None);
        assert_eq!(rts.as_bytes()[0..2], [0x05, 0x04]);
        assert_eq!(rts.as_bytes()[0x91..0x94], [0, 0, 0x20], "first PSN sent");
    }

    #[test]
    fn reliable_connections_carry_their_timeout() {
        let path = Path::default();
        let remote = RemotePath { qpn: 1, gid: [0; 16], mac: [0; 6], first_psn: 0, path, loopback: true };
        let rtr = init2rtr(ServiceType::Rc, 0x99, 5, 1, 3, Some(&remote));
        let b = rtr.as_bytes();
        assert_eq!((b[0x19], b[0x30] & 0x80), (0, 0x80), "service type RC, loopback");
        assert_eq!(
            (b[0xA9] >> 5, b[0xAC] & 0x1F),
            (3, 12),
            "reads taken, and the wait of a peer that finds no receive"
        );
        let rts = rtr2rts(ServiceType::Rc, 0x99, 0, Some(Retry { timeout_exponent: 11, count: 7 }));
        let b = rts.as_bytes();
        assert_eq!((b[0x38] >> 3, b[0x89] >> 5, b[0x89] & 7, b[0x8A] >> 5), (11, 3, 7, 7));
    }

    #[test]
    fn answers_are_read_back() {
        let mut out = Mailbox::<QP_ANSWER_BYTES>::zeroed();
        out.as_mut_bytes()[0] = 3;
        out.as_mut_bytes()[4..8].copy_from_slice(&0x1234u32.to_be_bytes());
        out.as_mut_bytes()[9..12].copy_from_slice(&[0xA, 0xB, 0xC]);
        assert_eq!(out.get(OUT_STATUS), 3);
        assert_eq!(out.get(OUT_SYNDROME), 0x1234);
        assert_eq!(out.get(OUT_QPN), 0x0A_0B0C);
    }
}
