//! Queue pairs in DPA memory.
//!
//! FlexIO makes reliable connected queue pairs only. UC and UD ones are made by the card's own commands (DevX), with
//! ring and doorbell record named as offsets in the memory object that covers the process's heap.

mod builder;

use std::sync::Arc;

use flexcast_hw::DataSegment;
use flexio_sys as sys;
use verbs_sys::mlx5dv_devx_obj;
use zerocopy::IntoBytes as _;

use crate::addr::DevAddr;
use crate::connection::{Connection, RemoteQp};
use crate::device::{Gid, Mac};
use crate::dpa_cq::{DpaCompletionQueue, check_log_depth, device_memory};
use crate::dpa_memory::DeviceBuffer;
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::path::{Path, Retry};
use crate::prm::{self, Mailbox, RemotePath, ServiceType};
use crate::process::{Process, warn_unless_destroyed};
use crate::raw;
use crate::window::Outbox;

pub use builder::DpaQueuePairBuilder;

/// Bytes of a receive entry with one scatter element.
const RECEIVE_ENTRY_BYTES: u64 = 16;
/// Bytes of a basic block of a send ring.
const SEND_BLOCK_BYTES: u64 = 64;
/// Bytes a receive ring takes at least, so that the send ring behind it is aligned.
const MIN_RECEIVE_RING_BYTES: u64 = 64;

/// An entry that ends before it begins: the key is the one that no memory has (`MLX5_INVALID_LKEY`).
const EMPTY_RECEIVE: DataSegment = DataSegment::new(0, 0x100, 0);

/// The queue key of a UD queue pair, and the numbering of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdKey {
    /// Key a datagram must carry; with the top bit set only privileged senders can use it.
    pub q_key: u32,
}

/// Depths of a DPA queue pair as powers of two; `None` for a queue it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DpaDepths {
    /// log2 of 64-byte basic blocks.
    pub log_send: Option<u8>,
    /// log2 of 16-byte receive entries.
    pub log_receive: Option<u8>,
}

impl DpaDepths {
    /// Of a queue pair that only sends.
    #[must_use]
    pub const fn send_only(log_send: u8) -> Self {
        Self { log_send: Some(log_send), log_receive: None }
    }

    /// Of a queue pair that only receives.
    #[must_use]
    pub const fn receive_only(log_receive: u8) -> Self {
        Self { log_send: None, log_receive: Some(log_receive) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Raw {
    /// Made by FlexIO.
    FlexIo(raw::Raw<sys::flexio_qp>, Choices),
    /// Made by command.
    DevX(raw::Raw<mlx5dv_devx_obj>, ServiceType),
}

/// What the maker of a queue pair has chosen besides depths and queues.
#[derive(Clone, Copy, Debug)]
struct Choices {
    access: Access,
    user_index: u32,
}

/// A queue pair whose rings and doorbell record lie in DPA memory, until this, its memberships and its group keys are
/// gone.
#[derive(Debug)]
pub struct DpaQueuePair {
    pub(crate) inner: Arc<Inner>,
}

/// The object of the library and its memory.
#[derive(Debug)]
pub(crate) struct Inner {
    outbox: Outbox,
    raw: Raw,
    number: u32,
    depths: DpaDepths,
    rings: DeviceBuffer,
    send_offset: u64,
    doorbell_record: DeviceBuffer,
    /// Of sends and of receives.
    queues: [DpaCompletionQueue; 2],
}

impl Inner {
    pub(crate) fn process(&self) -> &Process {
        self.outbox.process()
    }
}

impl DpaQueuePair {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Its depths.
    #[must_use]
    pub fn depths(&self) -> DpaDepths {
        self.inner.depths
    }

    /// Address of the receive ring.
    #[must_use]
    pub fn receive_ring(&self) -> DevAddr {
        self.inner.rings.addr()
    }

    /// Address of the send ring.
    #[must_use]
    pub fn send_ring(&self) -> DevAddr {
        self.inner.rings.addr().offset(self.inner.send_offset)
    }

    /// Address of the doorbell record of both queues.
    #[must_use]
    pub fn doorbell_record(&self) -> DevAddr {
        self.inner.doorbell_record.addr()
    }

    /// How a peer reaches this queue pair.
    #[must_use]
    pub fn endpoint(&self, first_psn: u32) -> RemoteQp {
        let device = self.process().device();
        RemoteQp { qpn: self.number(), gid: device.port().gid, mac: device.info().mac, first_psn }
    }

    /// Posts `count` receives that take no bytes: what RDMA Writes with immediate consume. The first ones of the queue,
    /// posted while it is in RESET; later ones are the firmware's business.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more than the queue holds, [`Error::FlexIo`].
    pub fn post_empty_receives(&self, count: u32) -> Result<()> {
        let depth = self.inner.depths.log_receive.map_or(0, |log| 1_u32 << log);
        if count > depth {
            return Err(Error::OutOfRange {
                what: "number of receives posted at once",
                value: u64::from(count),
                limit: format!("at most {depth}, the depth of the receive queue"),
            });
        }
        let entries = vec![EMPTY_RECEIVE; count as usize];
        self.inner.rings.write(0, entries.as_bytes())?;
        // The record wraps at 16 bits; the deepest queue has 2^15 entries.
        self.inner.doorbell_record.write(0, &count.to_be_bytes())
    }

    fn process(&self) -> &Process {
        self.inner.process()
    }

    /// RESET to RTS, connected (RC, UC). FlexIO's own queue pairs have neither traffic class nor timeout of their
    /// choice: [`DpaQueuePairBuilder::by_command`] gives one of the card's.
    ///
    /// # Errors
    /// [`Error::FlexIo`] or [`Error::Command`]; [`Error::OutOfRange`] for path or timeout, or a UD queue pair;
    /// [`Error::Conflict`] for another path or timeout than the default one of a queue pair made by FlexIO.
    pub fn connect(&mut self, connection: &Connection) -> Result<()> {
        connection.check()?;
        let &Connection { remote, first_psn, path, retry } = connection;
        let port = *self.process().device().port();
        // Packets to the own port need the card's loopback path.
        let loopback = remote.gid == port.gid;
        let number = self.number();
        match self.inner.raw {
            Raw::FlexIo(..) if path != Path::default() => Err(made_by_flexio("path", format!("{path:?}"))),
            Raw::FlexIo(..) if retry != Retry::default() => Err(made_by_flexio("retry", format!("{retry:?}"))),
            Raw::FlexIo(raw, choices) => {
                let Inner { outbox, depths, queues, .. } = &*self.inner;
                let (process, memory) = (outbox.process(), [self.receive_ring(), self.doorbell_record()]);
                // FlexIO has each transition repeat what the queue pair was made from.
                let mut attr = attributes(outbox, *depths, queues, memory, choices);
                let mut mac = remote.mac.0;
                attr.remote_qp_num = remote.qpn;
                attr.gid_table_index = port.gid_index;
                attr.fl = u8::from(loopback);
                attr.dest_mac = mac.as_mut_ptr();
                attr.rgid_or_rip = verbs_sys::ibv_gid { raw: remote.gid.0 };
                attr.min_rnr_nak_timer = 1;
                attr.path_mtu = u32::from(port.mtu_code);
                attr.retry_count = 7;
                attr.vhca_port_num = port.number;
                attr.next_rcv_psn = remote.first_psn;
                attr.next_send_psn = first_psn;
                attr.udp_sport = 0xC000;
                attr.grh = 1;
                attr.log_rra_max = 3;
                attr.log_sra_max = 3;
                for (state, name) in [
                    (sys::FLEXIO_QP_STATE_INIT, "INIT"),
                    (sys::FLEXIO_QP_STATE_RTR, "RTR"),
                    (sys::FLEXIO_QP_STATE_RTS, "RTS"),
                ] {
                    attr.next_state = state;
                    let mut mask = sys::flexio_qp_attr_opt_param_mask { qp_access_mask: true, min_rnr_nak_timer: true };
                    // SAFETY: the queue pair is live; `attr` and the MAC it points at live through the call.
                    let status =
                        unsafe { (process.api().flexio_qp_modify)(raw.as_ptr(), &raw mut attr, &raw mut mask) };
                    process.ok("flexio_qp_modify", status, || format!("queue pair {number:#x} to {name}"))?;
                }
                Ok(())
            }
            Raw::DevX(raw, service @ (ServiceType::Rc | ServiceType::Uc)) => {
                let RemoteQp { qpn, gid: Gid(gid), mac: Mac(mac), first_psn: expected } = remote;
                let remote = RemotePath { qpn, gid, mac, first_psn: expected, path, loopback };
                let rtr = prm::init2rtr(service, number, port.mtu_code, port.number, port.gid_index, Some(&remote));
                self.modify(raw, "RST2INIT_QP", &prm::rst2init(service, number, 0, port.number))?;
                self.modify(raw, "INIT2RTR_QP", &rtr)?;
                let retry = (service == ServiceType::Rc).then_some(retry);
                self.modify(raw, "RTR2RTS_QP", &prm::rtr2rts(service, number, first_psn, retry))
            }
            Raw::DevX(_, ServiceType::Ud) => Err(Error::OutOfRange {
                what: "peer of a UD queue pair",
                value: u64::from(remote.qpn),
                limit: "none: use `DpaQueuePair::activate`".to_owned(),
            }),
        }
    }

    /// RESET to RTS without a peer (UD).
    ///
    /// # Errors
    /// [`Error::Command`]; [`Error::OutOfRange`] for a connected queue pair.
    pub fn activate(&mut self, key: UdKey) -> Result<()> {
        let Raw::DevX(raw, ServiceType::Ud) = self.inner.raw else {
            return Err(Error::OutOfRange {
                what: "queue key of a connected queue pair",
                value: u64::from(key.q_key),
                limit: "none: use `DpaQueuePair::connect`".to_owned(),
            });
        };
        let port = *self.process().device().port();
        let (service, number) = (ServiceType::Ud, self.number());
        let rtr = prm::init2rtr(service, number, port.mtu_code, port.number, port.gid_index, None);
        self.modify(raw, "RST2INIT_QP", &prm::rst2init(service, number, key.q_key, port.number))?;
        self.modify(raw, "INIT2RTR_QP", &rtr)?;
        self.modify(raw, "RTR2RTS_QP", &prm::rtr2rts(service, number, 0, None))
    }

    fn modify(
        &self,
        raw: raw::Raw<mlx5dv_devx_obj>,
        name: &'static str,
        command: &Mailbox<{ prm::QP_COMMAND_BYTES }>,
    ) -> Result<()> {
        let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
        // SAFETY: the object is live; both mailboxes have the lengths passed.
        let errno = unsafe {
            (self.process().device().provider().verbs().mlx5dv_devx_obj_modify)(
                raw.as_ptr(),
                command.as_bytes().as_ptr().cast(),
                prm::QP_COMMAND_BYTES,
                answer.as_mut_bytes().as_mut_ptr().cast(),
                prm::QP_ANSWER_BYTES,
            )
        };
        if errno == 0 && answer.get(prm::OUT_STATUS) == 0 {
            return Ok(());
        }
        Err(refused(name, &answer, &format!("queue pair {:#x}", self.number())))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.raw {
            Raw::FlexIo(raw, _) => {
                // SAFETY: created in `builder` and destroyed only here; rings and queues go afterwards.
                let status = unsafe { (self.process().api().flexio_qp_destroy)(raw.as_ptr()) };
                warn_unless_destroyed("queue pair", status);
            }
            Raw::DevX(raw, _) => {
                let verbs = self.process().device().provider().verbs();
                // SAFETY: created in `builder` and destroyed only here; rings and queues go afterwards.
                let errno = unsafe { (verbs.mlx5dv_devx_obj_destroy)(raw.as_ptr()) };
                crate::device::warn_unless_ok("mlx5dv_devx_obj_destroy", errno);
            }
        }
    }
}

fn made_by_flexio(option: &'static str, value: String) -> Error {
    Error::Conflict {
        option,
        value: value.into(),
        of: "a connection of a queue pair made by FlexIO",
        limit: "the default one, as FlexIO's attributes have no other: leave it out, or make the queue pair with \
                `by_command`",
    }
}

/// What FlexIO makes a reliable queue pair from: `queues` of sends and of receives, `memory` of its rings and of its
/// doorbell record.
fn attributes(
    outbox: &Outbox,
    depths: DpaDepths,
    queues: &[DpaCompletionQueue; 2],
    memory: [DevAddr; 2],
    choices: Choices,
) -> sys::flexio_qp_attr {
    let [rings, doorbell_record] = memory.map(device_memory);
    sys::flexio_qp_attr {
        transport_type: sys::FLEXIO_QPC_ST_RC,
        uar_id: outbox.uar_id(),
        user_index: choices.user_index,
        qp_access_mask: (choices.access - Access::LOCAL_WRITE).bits() as i32,
        pd: outbox.process().pd().raw().cast(),
        log_sq_depth: i32::from(depths.log_send.unwrap_or(0)),
        no_sq: i32::from(depths.log_send.is_none()),
        sq_cqn: queues[0].number(),
        log_rq_depth: i32::from(depths.log_receive.unwrap_or(0)),
        rq_type: match depths.log_receive {
            Some(_) => sys::FLEXIO_QP_QPC_RQ_TYPE_REGULAR as i32,
            None => sys::FLEXIO_QP_QPC_RQ_TYPE_ZERO_SIZE_RQ as i32,
        },
        rq_cqn: queues[1].number(),
        qp_wq_buff_qmem: rings,
        qp_wq_dbr_qmem: doorbell_record,
        ..Default::default()
    }
}

/// Ring memory of a queue pair: receive ring first, send ring behind it.
struct Rings {
    buffer: DeviceBuffer,
    send_offset: u64,
    doorbell_record: DeviceBuffer,
}

impl Rings {
    fn allocate(process: &Process, depths: DpaDepths) -> Result<Self> {
        let receive_bytes = match depths.log_receive {
            Some(log) => {
                check_log_depth("log2 of the depth of a receive queue", log)?;
                (RECEIVE_ENTRY_BYTES << log).max(MIN_RECEIVE_RING_BYTES)
            }
            None => 0,
        };
        let send_bytes = match depths.log_send {
            Some(log) => {
                check_log_depth("log2 of the depth of a send queue", log)?;
                SEND_BLOCK_BYTES << log
            }
            None => 0,
        };
        Ok(Self {
            buffer: DeviceBuffer::zeroed(process, receive_bytes + send_bytes)?,
            send_offset: receive_bytes,
            doorbell_record: DeviceBuffer::zeroed(process, 8)?,
        })
    }
}

pub(crate) fn refused<const N: usize>(command: &'static str, answer: &Mailbox<N>, detail: &str) -> Error {
    Error::Command {
        command,
        status: answer.get(prm::OUT_STATUS),
        syndrome: answer.get(prm::OUT_SYNDROME),
        detail: format!("{detail}; {}", std::io::Error::last_os_error()),
    }
}
