//! Management datagrams of connection management: InfiniBand specification, volume 1, 12.6 (messages) and 13.4.2 (the
//! header). 256 bytes each, numbers in network order. What the emulator never asks for (end-to-end contexts, alternate
//! paths, redirection) is zero when sent and ignored when received.

/// Bytes of every datagram.
pub const MAD_BYTES: usize = 256;

/// Private data of each message in bytes.
pub mod private {
    /// REQ, the header of the IP service (A11) included.
    pub const REQ: usize = 92;
    /// REP.
    pub const REP: usize = 196;
    /// REJ.
    pub const REJ: usize = 148;
    /// RTU and DREP.
    pub const RTU: usize = 224;
    /// DREQ.
    pub const DREQ: usize = 220;
    /// MRA.
    pub const MRA: usize = 222;
    /// SIDR_REQ, the header of the IP service included.
    pub const SIDR_REQ: usize = 216;
    /// SIDR_REP.
    pub const SIDR_REP: usize = 136;
}

/// Values of the header.
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// Which message was rejected or acknowledged for the time being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// None of them.
    Other,
}

impl About {
    fn code(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Req,
            1 => Self::Rep,
            _ => Self::Other,
        }
    }
}

/// Reasons of a REJ that the emulator gives (12.6.7.2).
pub mod reason {
    /// No room for another connection.
    pub const NO_RESOURCES: u16 = 3;
    /// The sender has given up.
    pub const TIMEOUT: u16 = 4;
    /// No connection has the number.
    pub const INVALID_COMM_ID: u16 = 6;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The transport is not one that is spoken here.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The program has refused.
    pub const CONSUMER_DEFINED: u16 = 28;
}

/// Status of a SIDR_REP (12.11.2).
pub mod sidr_status {
    /// Here is the queue pair.
    pub const VALID: u8 = 0;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u8 = 1;
    /// The program has refused.
    pub const REJECTED: u8 = 2;
}

/// A request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// Whom it is for.
    pub service_id: u64,
    /// GUID of the sender's card.
    pub ca_guid: u64,
    /// The sender's queue pair, 24 bits.
    pub qpn: u32,
    /// Reads and atomics that it will serve at a time.
    pub responder_resources: u8,
    /// Reads and atomics that it will have outstanding.
    pub initiator_depth: u8,
    /// In what time the receiver should answer: code, 4.096 us times 2 to this power.
    pub remote_response_timeout: u8,
    /// Transport service: 0 for RC.
    pub transport: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// First PSN that it will send, 24 bits.
    pub psn: u32,
    /// In what time the sender will answer: code.
    pub local_response_timeout: u8,
    /// How often the receiver shall repeat a request without acknowledgement, 0 to 7.
    pub retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// Code of the path MTU, 1 to 5.
    pub mtu: u8,
    /// How often the receiver shall repeat what found no receive, 0 to 7.
    pub rnr_retry_count: u8,
    /// How often messages are repeated, 0 to 15.
    pub max_retries: u8,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// Identifier of the sender.
    pub local_gid: [u8; 16],
    /// Identifier of the receiver.
    pub remote_gid: [u8; 16],
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Code of the time after which a packet without acknowledgement is repeated.
    pub ack_timeout: u8,
    /// Private data.
    pub private: [u8; private::REQ],
}

/// A request is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's number of the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The sender's queue pair, 24 bits.
    pub qpn: u32,
    /// First PSN that it will send, 24 bits.
    pub psn: u32,
    /// Reads and atomics that it will serve at a time.
    pub responder_resources: u8,
    /// Reads and atomics that it will have outstanding.
    pub initiator_depth: u8,
    /// Code of the time that its acknowledgements take.
    pub ack_delay: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// How often the receiver shall repeat what found no receive, 0 to 7.
    pub rnr_retry_count: u8,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's card.
    pub ca_guid: u64,
    /// Private data.
    pub private: [u8; private::REP],
}

/// A message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "every one is a datagram of 256 bytes")]
pub enum Message {
    /// Request for a connection.
    Req(Req),
    /// The receiver is at it.
    Mra {
        /// The sender's number of the connection.
        local_id: u32,
        /// The receiver's.
        remote_id: u32,
        /// Which message it is about.
        about: About,
        /// How much longer it takes: code.
        service_timeout: u8,
    },
    /// Refused.
    Rej {
        /// The sender's number of the connection, or 0.
        local_id: u32,
        /// The receiver's, or 0.
        remote_id: u32,
        /// Which message is refused.
        about: About,
        /// Why: see [`reason`].
        reason: u16,
        /// Private data.
        private: [u8; private::REJ],
    },
    /// Accepted.
    Rep(Rep),
    /// Ready to use.
    Rtu {
        /// The sender's number of the connection.
        local_id: u32,
        /// The receiver's.
        remote_id: u32,
    },
    /// Request to disconnect.
    Dreq {
        /// The sender's number of the connection.
        local_id: u32,
        /// The receiver's.
        remote_id: u32,
        /// The receiver's queue pair.
        remote_qpn: u32,
    },
    /// Answer to that.
    Drep {
        /// The sender's number of the connection.
        local_id: u32,
        /// The receiver's.
        remote_id: u32,
    },
    /// Request for a queue pair of a datagram service.
    SidrReq {
        /// The sender's number of the request.
        request_id: u32,
        /// Partition.
        pkey: u16,
        /// Whom it is for.
        service_id: u64,
        /// Private data.
        private: [u8; private::SIDR_REQ],
    },
    /// Answer to that.
    SidrRep {
        /// The receiver's number of the request.
        request_id: u32,
        /// See [`sidr_status`].
        status: u8,
        /// The queue pair, 24 bits.
        qpn: u32,
        /// Whom the request was for.
        service_id: u64,
        /// Its Q_Key.
        qkey: u32,
        /// Private data.
        private: [u8; private::SIDR_REP],
    },
}

/// Attribute ids.
const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// A datagram: a message in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction: an answer has that of its request.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMad {
    /// Another length.
    #[error("{0} bytes: a management datagram has {MAD_BYTES}")]
    Length(usize),
    /// Another class, version or method.
    #[error(
        "version {base}, class {class:#x} of version {version}, method {method:#x}: \
         connection management is 1, 0x7, 2, 0x3"
    )]
    Class {
        /// Base version.
        base: u8,
        /// Management class.
        class: u8,
        /// Its version.
        version: u8,
        /// Method.
        method: u8,
    },
    /// A message that is not known here.
    #[error("attribute {0:#x}: REQ (0x10) to SIDR_REP (0x18) are known")]
    Attribute(u16),
}

/// Where the fields of a datagram are put.
struct Writer<'a>(&'a mut [u8; MAD_BYTES]);

impl Writer<'_> {
    fn bytes(&mut self, at: usize, value: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, &value.to_be_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_be_bytes());
    }
}

/// Where they are taken from.
struct Reader<'a>(&'a [u8; MAD_BYTES]);

impl Reader<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        core::array::from_fn(|i| self.0[at + i])
    }

    fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }
}

impl Message {
    fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => REQ,
            Self::Mra { .. } => MRA,
            Self::Rej { .. } => REJ,
            Self::Rep(_) => REP,
            Self::Rtu { .. } => RTU,
            Self::Dreq { .. } => DREQ,
            Self::Drep { .. } => DREP,
            Self::SidrReq { .. } => SIDR_REQ,
            Self::SidrRep { .. } => SIDR_REP,
        }
    }
}

/// The local identifier that stands for "none" where a path is routed.
const LID_PERMISSIVE: u16 = 0xFFFF;

impl Mad {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        let mut to = Writer(&mut bytes);
        to.u8(0, BASE_VERSION);
        to.u8(1, CLASS);
        to.u8(2, CLASS_VERSION);
        to.u8(3, METHOD_SEND);
        to.u64(8, self.transaction);
        to.u16(16, self.message.attribute());
        match &self.message {
            Message::Req(req) => req.encode(&mut to),
            Message::Rep(rep) => rep.encode(&mut to),
            Message::Mra { local_id, remote_id, about, service_timeout } => {
                to.u32(24, *local_id);
                to.u32(28, *remote_id);
                to.u8(32, about.code() << 6);
                to.u8(33, service_timeout << 3);
            }
            Message::Rej { local_id, remote_id, about, reason, private } => {
                to.u32(24, *local_id);
                to.u32(28, *remote_id);
                to.u8(32, about.code() << 6);
                to.u16(34, *reason);
                to.bytes(108, private);
            }
            Message::Rtu { local_id, remote_id } | Message::Drep { local_id, remote_id } => {
                to.u32(24, *local_id);
                to.u32(28, *remote_id);
            }
            Message::Dreq { local_id, remote_id, remote_qpn } => {
                to.u32(24, *local_id);
                to.u32(28, *remote_id);
                to.u32(32, remote_qpn << 8);
            }
            Message::SidrReq { request_id, pkey, service_id, private } => {
                to.u32(24, *request_id);
                to.u16(28, *pkey);
                to.u64(32, *service_id);
                to.bytes(40, private);
            }
            Message::SidrRep { request_id, status, qpn, service_id, qkey, private } => {
                to.u32(24, *request_id);
                to.u8(28, *status);
                to.u32(32, qpn << 8);
                to.u64(36, *service_id);
                to.u32(44, *qkey);
                to.bytes(120, private);
            }
        }
        bytes
    }

    /// The datagram in these bytes.
    ///
    /// # Errors
    /// They are no message of connection management.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMad> {
        let bytes: &[u8; MAD_BYTES] = bytes.try_into().map_err(|_| BadMad::Length(bytes.len()))?;
        let from = Reader(bytes);
        let (base, class, version, method) = (from.u8(0), from.u8(1), from.u8(2), from.u8(3));
        if (base, class, version, method) != (BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND) {
            return Err(BadMad::Class { base, class, version, method });
        }
        let (local_id, remote_id) = (from.u32(24), from.u32(28));
        let about = About::from_code(from.u8(32) >> 6);
        let message = match from.u16(16) {
            REQ => Message::Req(Req::decode(&from)),
            MRA => Message::Mra { local_id, remote_id, about, service_timeout: from.u8(33) >> 3 },
            REJ => {
                let (reason, private) = (from.u16(34), from.bytes(108));
                Message::Rej { local_id, remote_id, about, reason, private }
            }
            REP => Message::Rep(Rep::decode(&from)),
            RTU => Message::Rtu { local_id, remote_id },
            DREQ => Message::Dreq { local_id, remote_id, remote_qpn: from.u32(32) >> 8 },
            DREP => Message::Drep { local_id, remote_id },
            SIDR_REQ => Message::SidrReq {
                request_id: local_id,
                pkey: from.u16(28),
                service_id: from.u64(32),
                private: from.bytes(40),
            },
            SIDR_REP => Message::SidrRep {
                request_id: local_id,
                status: from.u8(28),
                qpn: from.u32(32) >> 8,
                service_id: from.u64(36),
                qkey: from.u32(44),
                private: from.bytes(120),
            },
            other => return Err(BadMad::Attribute(other)),
        };
        Ok(Self { transaction: from.u64(8), message })
    }
}

impl Req {
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(24, self.local_id);
        to.u64(32, self.service_id);
        to.u64(40, self.ca_guid);
        to.u32(56, self.qpn << 8 | u32::from(self.responder_resources));
        to.u32(60, self.initiator_depth.into());
        let service = self.remote_response_timeout << 3 | (self.transport & 3) << 1 | u8::from(self.flow_control);
        to.u32(64, service.into());
        let times = self.local_response_timeout << 3 | self.retry_count & 7;
        to.u32(68, self.psn << 8 | u32::from(times));
        to.u16(72, self.pkey);
        to.u8(74, self.mtu << 4 | self.rnr_retry_count & 7);
        to.u8(75, self.max_retries << 4 | u8::from(self.srq) << 3);
        to.u16(76, LID_PERMISSIVE);
        to.u16(78, LID_PERMISSIVE);
        to.bytes(80, &self.local_gid);
        to.bytes(96, &self.remote_gid);
        to.u8(116, self.traffic_class);
        to.u8(117, self.hop_limit);
        to.u8(119, self.ack_timeout << 3);
        to.bytes(164, &self.private);
    }

    fn decode(from: &Reader<'_>) -> Self {
        let (service, times) = (from.u8(67), from.u8(71));
        Self {
            local_id: from.u32(24),
            service_id: from.u64(32),
            ca_guid: from.u64(40),
            qpn: from.u32(56) >> 8,
            responder_resources: from.u8(59),
            initiator_depth: from.u8(63),
            remote_response_timeout: service >> 3,
            transport: service >> 1 & 3,
            flow_control: service & 1 != 0,
            psn: from.u32(68) >> 8,
            local_response_timeout: times >> 3,
            retry_count: times & 7,
            pkey: from.u16(72),
            mtu: from.u8(74) >> 4,
            rnr_retry_count: from.u8(74) & 7,
            max_retries: from.u8(75) >> 4,
            srq: from.u8(75) & 8 != 0,
            local_gid: from.bytes(80),
            remote_gid: from.bytes(96),
            traffic_class: from.u8(116),
            hop_limit: from.u8(117),
            ack_timeout: from.u8(119) >> 3,
            private: from.bytes(164),
        }
    }
}

impl Rep {
    fn encode(&self, to: &mut Writer<'_>) {
        to.u32(24, self.local_id);
        to.u32(28, self.remote_id);
        to.u32(36, self.qpn << 8);
        to.u32(44, self.psn << 8);
        to.u8(48, self.responder_resources);
        to.u8(49, self.initiator_depth);
        to.u8(50, self.ack_delay << 3 | u8::from(self.flow_control));
        to.u8(51, self.rnr_retry_count << 5 | u8::from(self.srq) << 4);
        to.u64(52, self.ca_guid);
        to.bytes(60, &self.private);
    }

    fn decode(from: &Reader<'_>) -> Self {
        Self {
            local_id: from.u32(24),
            remote_id: from.u32(28),
            qpn: from.u32(36) >> 8,
            psn: from.u32(44) >> 8,
            responder_resources: from.u8(48),
            initiator_depth: from.u8(49),
            ack_delay: from.u8(50) >> 3,
            flow_control: from.u8(50) & 1 != 0,
            rnr_retry_count: from.u8(51) >> 5,
            srq: from.u8(51) & 0x10 != 0,
            ca_guid: from.u64(52),
            private: from.bytes(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn req() -> Req {
        Req {
            local_id: 0x0102_0304,
            service_id: 0x0106_1234,
            ca_guid: 0x0011_22FF_FE33_4455,
            qpn: 0xAB_CDEF,
            responder_resources: 16,
            initiator_depth: 8,
            remote_response_timeout: 20,
            transport: 0,
            flow_control: true,
            psn: 0x12_3456,
            local_response_timeout: 19,
            retry_count: 7,
            pkey: 0xFFFF,
            mtu: 5,
            rnr_retry_count: 6,
            max_retries: 15,
            srq: true,
            local_gid: [1; 16],
            remote_gid: [2; 16],
            traffic_class: 0x20,
            hop_limit: 64,
            ack_timeout: 18,
            private: [9; private::REQ],
        }
    }

    /// One of each.
    fn messages() -> Vec<Message> {
        let (local_id, remote_id) = (0x0A0B_0C0D, 0x0102_0304);
        vec![
            Message::Req(req()),
            Message::Mra { local_id, remote_id, about: About::Rep, service_timeout: 24 },
            Message::Rej { local_id, remote_id, about: About::Other, reason: 28, private: [3; private::REJ] },
            Message::Rep(Rep {
                local_id,
                remote_id,
                qpn: 0x12_3456,
                psn: 0xFF_FFFF,
                responder_resources: 4,
                initiator_depth: 5,
                ack_delay: 16,
                flow_control: true,
                rnr_retry_count: 7,
                srq: false,
                ca_guid: 77,
                private: [4; private::REP],
            }),
            Message::Rtu { local_id, remote_id },
            Message::Dreq { local_id, remote_id, remote_qpn: 0x12_3456 },
            Message::Drep { local_id, remote_id },
            Message::SidrReq { request_id: 5, pkey: 0xFFFF, service_id: 0x0111_0007, private: [6; private::SIDR_REQ] },
            Message::SidrRep {
                request_id: 5,
                status: 2,
                qpn: 0x11_2233,
                service_id: 0x0111_0007,
                qkey: 0x0123_4567,
                private: [8; private::SIDR_REP],
            },
        ]
    }

    #[test]
    fn messages_come_back_as_they_went() {
        for message in messages() {
            let mad = Mad { transaction: 0x1122_3344_5566_7788, message };
            assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
        }
    }

    /// Places of fields as the specification's tables have them: table 99 and others of 12.6.
    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes = Mad { transaction: 1, message: Message::Req(req()) }.encode();
        assert_eq!(bytes[..4], [1, 7, 2, 3]);
        assert_eq!(bytes[16..18], [0, 0x10]);
        let data = &bytes[24..];
        assert_eq!(data[8..16], 0x0106_1234_u64.to_be_bytes());
        assert_eq!(data[32..36], [0xAB, 0xCD, 0xEF, 16]);
        assert_eq!(data[39], 8);
        assert_eq!(data[43], 20 << 3 | 1);
        assert_eq!(data[44..48], [0x12, 0x34, 0x56, 19 << 3 | 7]);
        assert_eq!(data[50..52], [5 << 4 | 6, 15 << 4 | 8]);
        assert_eq!((data[56], data[72], data[95]), (1, 2, 18 << 3));
        assert_eq!((data[139], data[140]), (0, 9), "the private data are the last 92 bytes");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(Mad::decode(&[0; 255]), Err(BadMad::Length(255)));
        let good = Mad { transaction: 0, message: Message::Rtu { local_id: 1, remote_id: 2 } }.encode();
        for (at, wrong) in [(0, 2), (1, 4), (2, 1), (3, 1)] {
            let mut bytes = good;
            bytes[at] = wrong;
            assert!(matches!(Mad::decode(&bytes), Err(BadMad::Class { .. })), "byte {at}");
        }
        let mut bytes = good;
        bytes[17] = 0x19;
        assert_eq!(Mad::decode(&bytes), Err(BadMad::Attribute(0x19)));
    }
}
