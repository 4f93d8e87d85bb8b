//! DevX: commands of the device's programming interface, as mailboxes.
//!
//! This is how queue pairs that FlexIO does not offer (UD and UC on DPA memory) are made. A refused command gives
//! EREMOTEIO, and the answer holds a status of the programming interface and one of [`syndrome`]'s values.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use emu_machine::nic::{
    Access, CqAttr, CqTarget, Gid, MkeyAttr, Mtu, NicError, QpAttr, QpModify, QpState, QueueMemory, Transport,
};
use emu_machine::{MachineError, World, with_world};
use verbs_sys::*;

use crate::device::Context;
use crate::errno::{Errno, Result, pointer, status};
use crate::handle::{self, Object};
use crate::prm::{self, Input, command};
use crate::umem;

/// Status byte of an answer, as the Linux driver names them.
mod answer {
    pub(super) const BAD_OP: u8 = 0x2;
    pub(super) const BAD_PARAM: u8 = 0x3;
    pub(super) const BAD_RES: u8 = 0x5;
    pub(super) const RES_BUSY: u8 = 0x6;
    pub(super) const BAD_RES_STATE: u8 = 0x9;
    pub(super) const NO_RES: u8 = 0xF;
    pub(super) const BAD_INPUT_LEN: u8 = 0x50;
}

/// Syndromes of this emulator: what in the command was refused.
mod syndrome {
    pub(super) const UNSUPPORTED_COMMAND: u32 = 0xF1EC_0001;
    pub(super) const LENGTH: u32 = 0xF1EC_0002;
    pub(super) const OBJECT: u32 = 0xF1EC_0003;
    pub(super) const UMEM: u32 = 0xF1EC_0010;
    pub(super) const UMEM_RANGE: u32 = 0xF1EC_0011;
    pub(super) const UNSUPPORTED_FIELD: u32 = 0xF1EC_0012;
    pub(super) const THREAD: u32 = 0xF1EC_0013;
    pub(super) const SERVICE: u32 = 0xF1EC_0014;
    pub(super) const CARD: u32 = 0xF1EC_0020;
}

struct Refusal {
    status: u8,
    syndrome: u32,
    reason: String,
}

fn refuse<T>(status: u8, syndrome: u32, reason: impl Into<String>) -> std::result::Result<T, Refusal> {
    Err(Refusal { status, syndrome, reason: reason.into() })
}

impl From<NicError> for Refusal {
    fn from(error: NicError) -> Self {
        let status = match error {
            NicError::UnknownPd { .. }
            | NicError::UnknownCq { .. }
            | NicError::UnknownQp { .. }
            | NicError::UnknownMkey { .. } => answer::BAD_RES,
            NicError::PdInUse { .. } | NicError::CqInUse { .. } => answer::RES_BUSY,
            NicError::TooManyKeys { .. } | NicError::TooManyQueues { .. } => answer::NO_RES,
            NicError::Transition { .. } => answer::BAD_RES_STATE,
            _ => answer::BAD_PARAM,
        };
        Refusal { status, syndrome: syndrome::CARD, reason: error.to_string() }
    }
}

impl From<MachineError> for Refusal {
    fn from(error: MachineError) -> Self {
        Refusal { status: answer::BAD_RES, syndrome: syndrome::CARD, reason: error.to_string() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Qp(Transport),
    Cq,
    Mkey,
}

struct DevxObject {
    card: usize,
    kind: Kind,
    number: u32,
}

impl Object for DevxObject {
    const KIND: &'static str = "DevX object";
    type C = mlx5dv_devx_obj;
    fn c_address(&self) -> *mut mlx5dv_devx_obj {
        (self as *const Self).cast_mut().cast()
    }
}

/// Carries a command out: fills the answer, and says EREMOTEIO when it was refused.
///
/// # Safety
/// `input` must be readable for `inlen` bytes and `out` writable for `outlen`, unless null.
unsafe fn carry_out<T>(
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
    execute: impl FnOnce(Input<'_>, &mut [u8]) -> std::result::Result<T, Refusal>,
) -> Result<T> {
    if input.is_null() || out.is_null() || outlen < prm::SHORT_BYTES {
        return Err(Errno::invalid(format!("a command needs an input, and an output of 16 bytes, not {outlen}")));
    }
    // SAFETY: not null; the caller vouches for the length.
    let command = Input(unsafe { core::slice::from_raw_parts(input.cast::<u8>(), inlen) });
    let mut answer = vec![0; outlen];
    let result = if inlen < prm::SHORT_BYTES {
        refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, format!("a command of {inlen} bytes"))
    } else {
        execute(command, &mut answer)
    };
    let result = result.map_err(|refusal| {
        prm::put(&mut answer, prm::OUT_STATUS, refusal.status.into());
        prm::put(&mut answer, prm::OUT_SYNDROME, refusal.syndrome);
        let opcode = command.get(prm::OPCODE);
        Errno::new(
            libc::EREMOTEIO,
            format!(
                "command {opcode:#x} refused with status {:#x}, syndrome {:#x}: {}",
                refusal.status, refusal.syndrome, refusal.reason
            ),
        )
    });
    // SAFETY: the caller vouches for the length; the source is a vector of that length.
    unsafe { core::ptr::copy_nonoverlapping(answer.as_ptr(), out.cast::<u8>(), outlen) };
    result
}

fn full_length(input: Input<'_>) -> std::result::Result<(), Refusal> {
    if input.0.len() < prm::CONTEXT_COMMAND_BYTES {
        let text = format!("{} bytes; the command has {}", input.0.len(), prm::CONTEXT_COMMAND_BYTES);
        return refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, text);
    }
    Ok(())
}

fn unsupported<T>(input: Input<'_>) -> std::result::Result<T, Refusal> {
    let opcode = input.get(prm::OPCODE);
    let text = match opcode {
        command::ATTACH_TO_MCG | command::DETACH_FROM_MCG => "multicast groups are not emulated".to_owned(),
        _ => format!("command {opcode:#x} is not emulated here"),
    };
    refuse(answer::BAD_OP, syndrome::UNSUPPORTED_COMMAND, text)
}

/// Memory a command names by object id and offset.
fn memory(
    card: usize,
    what: &str,
    valid: bool,
    id: u32,
    offset: u64,
    len: u64,
) -> std::result::Result<QueueMemory, Refusal> {
    let umem = umem::find(id).filter(|umem| valid && umem.card == card);
    let Some(umem) = umem else {
        let text = format!("the {what} names memory object {id} (valid bit {valid}), which this card does not have");
        return refuse(answer::BAD_RES, syndrome::UMEM, text);
    };
    match umem.at(offset, len) {
        Some(memory) => Ok(memory),
        None => refuse(
            answer::BAD_PARAM,
            syndrome::UMEM_RANGE,
            format!(
                "{len} bytes at offset {offset:#x} for the {what} are outside memory object {id} of {} bytes",
                umem.len
            ),
        ),
    }
}

fn create_cq(world: &mut World, card: usize, input: Input<'_>) -> std::result::Result<(Kind, u32), Refusal> {
    use prm::cq as field;
    full_length(input)?;
    let context = input.at(field::CONTEXT);
    let flag = |(offset, bit): (usize, u32)| context.flag(offset, bit);
    for (name, set) in [
        ("a CQE size other than 64 bytes", context.get(field::CQE_SIZE) != 0),
        ("collapsing", flag(field::COLLAPSED)),
        ("compression", flag(field::COMPRESSION)),
    ] {
        if set {
            return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, format!("{name} is not emulated"));
        }
    }
    let target = match (flag(field::EXT_ELEMENT), context.get(field::EXT_ELEMENT_TYPE)) {
        (false, _) => CqTarget::None,
        (true, 0) => {
            let thread = context.get(field::ELEMENT);
            if world.card(card)?.thread(thread).is_err() {
                let text = format!("thread {thread} does not exist");
                return refuse(answer::BAD_RES, syndrome::THREAD, text);
            }
            CqTarget::DpaThread(thread)
        }
        (true, other) => {
            let text = format!("element type {other}: threads (0) are emulated");
            return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
        }
    };
    let log_depth = context.get8(field::LOG_SIZE);
    let valid = input.flag(field::UMEM_VALID.0, field::UMEM_VALID.1);
    let ring_id = input.get(field::UMEM_ID);
    let ring = memory(card, "ring", valid, ring_id, input.u64(field::UMEM_OFFSET), 64 << log_depth)?;
    let record_id = context.get(field::DBR_UMEM_ID);
    let offset = context.u64(field::DBR_ADDR);
    let record = memory(card, "doorbell record", flag(field::DBR_UMEM_VALID), record_id, offset, 8)?;
    let attr = CqAttr {
        ring,
        log_depth,
        doorbell_record: record,
        target,
        overrun_ignore: flag(field::OVERRUN_IGNORE),
        always_armed: flag(field::ALWAYS_ARMED),
        armed_at_creation: false,
        uar: context.get(field::UAR_PAGE),
    };
    Ok((Kind::Cq, world.card(card)?.nic.create_cq(attr)?))
}

fn create_qp(world: &mut World, card: usize, input: Input<'_>) -> std::result::Result<(Kind, u32), Refusal> {
    use prm::qp as field;
    const SHARED: u32 = 1;
    const ZERO_SIZE: u32 = 3;
    full_length(input)?;
    let context = input.at(field::CONTEXT);
    let transport = match context.get(field::SERVICE) {
        0 => Transport::Rc,
        1 => Transport::Uc,
        2 => Transport::Ud,
        other => {
            let text = format!("service type {other}: RC (0), UC (1) and UD (2) are emulated");
            return refuse(answer::BAD_PARAM, syndrome::SERVICE, text);
        }
    };
    let rq_type = context.get(field::RQ_TYPE);
    if rq_type == SHARED {
        let text = "shared receive queues are not emulated";
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let no_rq = rq_type == ZERO_SIZE;
    let no_sq = context.flag(field::NO_SQ.0, field::NO_SQ.1);
    let log_rq_depth = context.get8(field::LOG_RQ_SIZE);
    let log_rq_stride = context.get8(field::LOG_RQ_STRIDE) + 4;
    let log_sq_depth = context.get8(field::LOG_SQ_SIZE);
    let receive_bytes = if no_rq { 0 } else { (1_u64 << log_rq_depth << log_rq_stride).max(64) };
    let send_bytes = if no_sq { 0 } else { 64 << log_sq_depth };
    let valid = input.flag(field::UMEM_VALID.0, field::UMEM_VALID.1);
    let ring_id = input.get(field::UMEM_ID);
    let ring_bytes = receive_bytes + send_bytes;
    let rq = memory(card, "ring", valid, ring_id, input.u64(field::UMEM_OFFSET), ring_bytes)?;
    let sq = QueueMemory { addr: rq.addr + receive_bytes, ..rq };
    let valid = context.flag(field::DBR_UMEM_VALID.0, field::DBR_UMEM_VALID.1);
    let record_id = context.get(field::DBR_UMEM_ID);
    let record = memory(card, "doorbell record", valid, record_id, context.u64(field::DBR_ADDR), 8)?;
    let attr = QpAttr {
        transport,
        pd: context.get(field::PD),
        send_cq: context.get(field::CQN_SND),
        recv_cq: context.get(field::CQN_RCV),
        rq,
        log_rq_depth,
        log_rq_stride,
        sq,
        log_sq_depth,
        no_sq,
        no_rq,
        doorbell_record: record,
        user_index: context.get(field::USER_INDEX),
        uar: context.get(field::UAR_PAGE),
    };
    Ok((Kind::Qp(transport), world.card(card)?.nic.create_qp(attr)?))
}

fn create_mkey(world: &mut World, card: usize, input: Input<'_>) -> std::result::Result<(Kind, u32), Refusal> {
    use prm::mkey as field;
    const ANY_QP: u32 = 0xFF_FFFF;
    full_length(input)?;
    let context = input.at(field::CONTEXT);
    let flag = |(offset, bit): (usize, u32)| context.flag(offset, bit);
    if context.get(field::QPN) != ANY_QP {
        let text = "keys for one queue pair are not emulated; the queue pair number must be 0xffffff";
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let (start, len) = (context.u64(field::START), context.u64(field::LENGTH));
    let valid = input.flag(field::UMEM_VALID.0, field::UMEM_VALID.1);
    let id = input.get(field::UMEM_ID);
    let memory = memory(card, "key", valid, id, input.u64(field::UMEM_OFFSET), len)?;
    if memory.addr != start {
        let text = format!("the key starts at {start:#x} but its memory at {:#x}: keys do not translate", memory.addr);
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, flag(field::LOCAL_WRITE));
    access.set(Access::REMOTE_WRITE, flag(field::REMOTE_WRITE));
    access.set(Access::REMOTE_READ, flag(field::REMOTE_READ));
    access.set(Access::REMOTE_ATOMIC, flag(field::ATOMIC));
    let attr = MkeyAttr { pd: context.get(field::PD), space: memory.space, start, len, access };
    // The command chooses the key's tag. The card counts the tag of a slot up whenever its key is destroyed, and uses
    // free slots in turn, so making and destroying keys arrives at any tag.
    let nic = &mut world.card(card)?.nic;
    let tag = context.get(field::TAG);
    let first = nic.create_mkey(attr)?;
    let mut key = first;
    while key & 0xFF != tag {
        nic.destroy_mkey(key)?;
        key = nic.create_mkey(attr)?;
        if key == first {
            return refuse(answer::NO_RES, syndrome::CARD, format!("no free key has tag {tag:#x}"));
        }
    }
    Ok((Kind::Mkey, key))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_create(
    context: *mut ibv_context,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> *mut mlx5dv_devx_obj {
    pointer("mlx5dv_devx_obj_create", || {
        let card = handle::get::<Context>(context)?.card;
        let create = |input: Input<'_>, answer: &mut [u8]| {
            let (kind, number) = with_world(|world| match input.get(prm::OPCODE) {
                command::CREATE_CQ => create_cq(world, card, input),
                command::CREATE_QP => create_qp(world, card, input),
                command::CREATE_MKEY => create_mkey(world, card, input),
                _ => unsupported(input),
            })??;
            let shown = if kind == Kind::Mkey { number >> 8 } else { number };
            prm::put(answer, prm::NUMBER, shown);
            Ok((kind, number))
        };
        // SAFETY: the caller vouches for both buffers.
        let (kind, number) = unsafe { carry_out(input, inlen, out, outlen, create) }?;
        Ok(handle::publish(&Arc::new(DevxObject { card, kind, number })))
    })
}

/// The attributes of a transition command.
fn transition(object: &DevxObject, input: Input<'_>) -> std::result::Result<QpModify, Refusal> {
    use prm::{path as ads, qp as field};
    const MIGRATED: u32 = 3;
    let Kind::Qp(transport) = object.kind else {
        return refuse(answer::BAD_RES, syndrome::OBJECT, "the object is not a queue pair");
    };
    if input.get(prm::NUMBER) != object.number {
        let text =
            format!("the command names queue pair {:#x}, the object is {:#x}", input.get(prm::NUMBER), object.number);
        return refuse(answer::BAD_RES, syndrome::OBJECT, text);
    }
    let opcode = input.get(prm::OPCODE);
    match opcode {
        command::TO_ERROR_QP => return Ok(QpModify { next_state: Some(QpState::Err), ..Default::default() }),
        command::TO_RESET_QP => return Ok(QpModify { next_state: Some(QpState::Reset), ..Default::default() }),
        command::RST2INIT_QP | command::INIT2RTR_QP | command::RTR2RTS_QP => full_length(input)?,
        _ => return unsupported(input),
    }
    let context = input.at(field::CONTEXT);
    let path = context.at(field::PATH);
    let flag = |(offset, bit): (usize, u32)| context.flag(offset, bit);
    let service = match transport {
        Transport::Rc => 0,
        Transport::Uc => 1,
        Transport::Ud => 2,
    };
    if context.get(field::SERVICE) != service || context.get(field::PATH_MIGRATION) != MIGRATED {
        let text = format!("the context must repeat service type {service} and path migration state {MIGRATED}");
        return refuse(answer::BAD_PARAM, syndrome::SERVICE, text);
    }
    let connected = transport != Transport::Ud;
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::REMOTE_WRITE, flag(field::REMOTE_WRITE));
    access.set(Access::REMOTE_READ, flag(field::REMOTE_READ));
    access.set(Access::REMOTE_ATOMIC, flag(field::REMOTE_ATOMIC));
    let modify = match opcode {
        command::RST2INIT_QP => QpModify {
            next_state: Some(QpState::Init),
            access: connected.then_some(access),
            qkey: (!connected).then(|| context.get(field::Q_KEY)),
            pkey_index: Some(path.get(ads::PKEY_INDEX) as u16),
            port: Some(path.get8(ads::PORT)),
            ..Default::default()
        },
        command::INIT2RTR_QP if connected => {
            let code = context.get8(field::MTU);
            let Some(mtu) = Mtu::from_code(code) else {
                return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, format!("MTU code {code}"));
            };
            let sport = path.get(ads::UDP_SPORT) as u16;
            QpModify {
                next_state: Some(QpState::Rtr),
                access: Some(access),
                path_mtu: Some(mtu),
                dest_qpn: Some(context.get(field::REMOTE_QPN)),
                rq_psn: Some(context.get(field::NEXT_RCV_PSN)),
                rgid: Some(Gid(path.bytes(ads::RGID))),
                dmac: Some(path.bytes(ads::RMAC)),
                sgid_index: Some(path.get8(ads::SOURCE_INDEX)),
                udp_sport: (sport != 0).then_some(sport),
                min_rnr_timer: Some(context.get8(field::MIN_RNR_NAK)),
                force_loopback: Some(path.flag(ads::FORCE_LOOPBACK.0, ads::FORCE_LOOPBACK.1)),
                ..Default::default()
            }
        }
        command::INIT2RTR_QP => QpModify { next_state: Some(QpState::Rtr), ..Default::default() },
        _ => QpModify {
            next_state: Some(QpState::Rts),
            sq_psn: Some(context.get(field::NEXT_SEND_PSN)),
            retry_cnt: Some(context.get8(field::RETRY_COUNT)),
            rnr_retry: Some(context.get8(field::RNR_RETRY)),
            timeout: Some(path.get8(ads::ACK_TIMEOUT)),
            max_rd_atomic: Some(1 << context.get(field::LOG_SRA_MAX)),
            ..Default::default()
        },
    };
    Ok(modify)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_modify(
    obj: *mut mlx5dv_devx_obj,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> c_int {
    status("mlx5dv_devx_obj_modify", || {
        let object = handle::get::<DevxObject>(obj)?;
        let modify = |input: Input<'_>, _: &mut [u8]| {
            let modify = transition(&object, input)?;
            with_world(|world| {
                let now_ps = world.now_ps();
                world.nic_call(object.card, |nic, effects| nic.modify_qp(now_ps, object.number, &modify, effects))
            })???;
            Ok(())
        };
        // SAFETY: the caller vouches for both buffers.
        unsafe { carry_out(input, inlen, out, outlen, modify) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_query(
    obj: *mut mlx5dv_devx_obj,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> c_int {
    status("mlx5dv_devx_obj_query", || {
        let object = handle::get::<DevxObject>(obj)?;
        let query = |input: Input<'_>, answer: &mut [u8]| {
            if input.get(prm::OPCODE) != command::QUERY_QP {
                return unsupported(input);
            }
            let Kind::Qp(_) = object.kind else {
                return refuse(answer::BAD_RES, syndrome::OBJECT, "the object is not a queue pair");
            };
            let query = with_world(|world| world.card(object.card).map(|card| card.nic.query_qp(object.number)))???;
            let Some(context) = answer.get_mut(prm::qp::CONTEXT..) else { return Ok(()) };
            let (state, service) = (query.state, query.attr.transport);
            let state = match state {
                QpState::Reset => 0,
                QpState::Init => 1,
                QpState::Rtr => 2,
                QpState::Rts => 3,
                QpState::Err => 6,
            };
            let service = match service {
                Transport::Rc => 0,
                Transport::Uc => 1,
                Transport::Ud => 2,
            };
            prm::put(context, prm::qp::STATE, state);
            prm::put(context, prm::qp::SERVICE, service);
            prm::put(context, prm::qp::PD, query.attr.pd);
            prm::put(context, prm::qp::MTU, query.path.path_mtu.code().into());
            prm::put(context, prm::qp::REMOTE_QPN, query.path.dest_qpn);
            prm::put(context, prm::qp::NEXT_SEND_PSN, query.sq_psn);
            prm::put(context, prm::qp::NEXT_RCV_PSN, query.rq_psn);
            prm::put(context, prm::qp::Q_KEY, query.path.qkey);
            Ok(())
        };
        // SAFETY: the caller vouches for both buffers.
        unsafe { carry_out(input, inlen, out, outlen, query) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_destroy(obj: *mut mlx5dv_devx_obj) -> c_int {
    status("mlx5dv_devx_obj_destroy", || {
        let object = handle::get::<DevxObject>(obj)?;
        with_world(|world| {
            let nic = &mut world.card(object.card)?.nic;
            match object.kind {
                Kind::Qp(_) => nic.destroy_qp(object.number),
                Kind::Cq => nic.destroy_cq(object.number),
                Kind::Mkey => nic.destroy_mkey(object.number),
            }
            .map_err(Errno::from)
        })??;
        handle::retire::<DevxObject>(obj)?;
        Ok(())
    })
}

/// Commands without an object: none is emulated, and each is refused as such.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_general_cmd(
    context: *mut ibv_context,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> c_int {
    status("mlx5dv_devx_general_cmd", || {
        handle::get::<Context>(context)?;
        // SAFETY: the caller vouches for both buffers.
        unsafe { carry_out(input, inlen, out, outlen, |input, _| unsupported(input)) }
    })
}
