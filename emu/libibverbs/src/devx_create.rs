//! DevX commands that make objects.

use emu_machine::nic::{Access, CqAttr, CqTarget, Gid, MkeyAttr, Nic, NicError, QpAttr, QueueMemory, Transport};
use emu_machine::{Function, World};

use crate::card::caller::{Caller, Class};
use crate::card::refusal::{Kind, Refusal, answer, full_length, refuse, syndrome};
use crate::prm::{self, Input};
use crate::umem;

/// Memory a command names by object id and offset.
fn memory(
    caller: &Caller<'_>,
    what: &str,
    valid: bool,
    id: u32,
    offset: u64,
    len: u64,
) -> std::result::Result<QueueMemory, Refusal> {
    let umem = umem::find(id).filter(|umem| valid && caller.may_name(umem));
    let Some(umem) = umem else {
        let text =
            format!("the {what} names memory object {id} (valid bit {valid}), which {} does not have", caller.id);
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

/// The protection domain that a command names, which must be one of the function's own.
pub(crate) fn own_domain(world: &mut World, caller: &Caller<'_>, pd: u32) -> std::result::Result<u32, Refusal> {
    let owner = caller.id;
    let vhca = world.vhca(owner)?;
    if world.card(owner.card)?.nic.vhca_of_pd(pd) != Ok(vhca) || !caller.has(Class::Domain, pd) {
        let text = format!("there is no protection domain {pd} of {owner}: make one through the same device");
        return refuse(answer::BAD_RES, syndrome::OBJECT, text);
    }
    Ok(pd)
}

/// The queue pair that a command names must be one of the function's own.
pub(crate) fn own_queue_pair(world: &mut World, caller: &Caller<'_>, qpn: u32) -> std::result::Result<(), Refusal> {
    let owner = caller.id;
    let pd = world.card(owner.card)?.nic.query_qp(qpn)?.attr.pd;
    if own_domain(world, caller, pd).is_err() {
        let text = format!("there is no queue pair {qpn:#x} of {owner}: name one made through the same device");
        return refuse(answer::BAD_RES, syndrome::OBJECT, text);
    }
    Ok(())
}

pub(crate) fn create_cq(
    world: &mut World,
    caller: &Caller<'_>,
    input: Input<'_>,
) -> std::result::Result<(Kind, u32), Refusal> {
    let owner = caller.id;
    use prm::cq as field;
    full_length(input)?;
    let context = input.at(field::CONTEXT);
    let flag = |(offset, bit): (usize, u32)| context.flag(offset, bit);
    for (name, set) in [
        ("a CQE size other than 64 bytes", context.get(field::CQE_SIZE) != 0),
        ("collapsing", flag(field::COLLAPSED)),
        ("compression", flag(field::COMPRESSION)),
        ("moderation", context.get(field::PERIOD) > 0 || context.get(field::MAX_COUNT) > 1),
    ] {
        if set {
            return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, format!("{name} is not emulated"));
        }
    }
    let target = match (flag(field::EXT_ELEMENT), context.get(field::EXT_ELEMENT_TYPE)) {
        (false, _) => CqTarget::None,
        (true, 0) if owner.function != Function::Host => {
            let text = format!("threads are of the host's function here, the command is of {owner}");
            return refuse(answer::BAD_RES, syndrome::THREAD, text);
        }
        (true, 0) => {
            let thread = context.get(field::ELEMENT);
            if world.card(owner.card)?.thread(thread).is_err() {
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
    let ring = memory(caller, "ring", valid, ring_id, input.u64(field::UMEM_OFFSET), 64 << log_depth)?;
    let record_id = context.get(field::DBR_UMEM_ID);
    let offset = context.u64(field::DBR_ADDR);
    let record = memory(caller, "doorbell record", flag(field::DBR_UMEM_VALID), record_id, offset, 8)?;
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
    let vhca = world.vhca(owner)?;
    Ok((Kind::Cq, world.card(owner.card)?.nic.create_cq_on(vhca, attr)?))
}

pub(crate) fn create_qp(
    world: &mut World,
    caller: &Caller<'_>,
    input: Input<'_>,
) -> std::result::Result<(Kind, u32), Refusal> {
    let owner = caller.id;
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
    let rq = memory(caller, "ring", valid, ring_id, input.u64(field::UMEM_OFFSET), ring_bytes)?;
    let sq = QueueMemory { addr: rq.addr + receive_bytes, ..rq };
    let valid = context.flag(field::DBR_UMEM_VALID.0, field::DBR_UMEM_VALID.1);
    let record_id = context.get(field::DBR_UMEM_ID);
    let record = memory(caller, "doorbell record", valid, record_id, context.u64(field::DBR_ADDR), 8)?;
    let attr = QpAttr {
        transport,
        pd: own_domain(world, caller, context.get(field::PD))?,
        send_cq: context.get(field::CQN_SND),
        recv_cq: context.get(field::CQN_RCV),
        rq,
        log_rq_depth,
        log_rq_stride,
        sq,
        log_sq_depth,
        no_sq,
        no_rq,
        srq: None,
        doorbell_record: record,
        user_index: context.get(field::USER_INDEX),
        uar: context.get(field::UAR_PAGE),
    };
    Ok((Kind::Qp(transport), world.card(owner.card)?.nic.create_qp(attr)?))
}

pub(crate) fn create_mkey(
    world: &mut World,
    caller: &Caller<'_>,
    input: Input<'_>,
) -> std::result::Result<(Kind, u32), Refusal> {
    let owner = caller.id;
    use prm::mkey as field;
    const ANY_QP: u32 = 0xFF_FFFF;
    const LIST: u32 = 2;
    full_length(input)?;
    let context = input.at(field::CONTEXT);
    let flag = |(offset, bit): (usize, u32)| context.flag(offset, bit);
    if context.get(field::QPN) != ANY_QP {
        let text = "keys for one queue pair are not emulated; the queue pair number must be 0xffffff";
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let pd = own_domain(world, caller, context.get(field::PD))?;
    let tag = context.get(field::TAG);
    if context.get(field::ACCESS_MODE) == LIST {
        if !flag(field::UMR) || !flag(field::FREE) {
            let text = "a key over other keys must be free and allow UMR: its list comes by a work request";
            return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
        }
        let entries = context.get(field::TRANSLATIONS);
        return tagged(world, owner.card, tag, |nic| nic.create_umr_mkey(pd, entries));
    }
    let (start, len) = (context.u64(field::START), context.u64(field::LENGTH));
    let valid = input.flag(field::UMEM_VALID.0, field::UMEM_VALID.1);
    let id = input.get(field::UMEM_ID);
    let memory = memory(caller, "key", valid, id, input.u64(field::UMEM_OFFSET), len)?;
    if memory.addr != start {
        let text = format!("the key starts at {start:#x} but its memory at {:#x}: keys do not translate", memory.addr);
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, flag(field::LOCAL_WRITE));
    access.set(Access::REMOTE_WRITE, flag(field::REMOTE_WRITE));
    access.set(Access::REMOTE_READ, flag(field::REMOTE_READ));
    access.set(Access::REMOTE_ATOMIC, flag(field::ATOMIC));
    let attr = MkeyAttr { pd, space: memory.space, start, len, access, offset: 0 };
    tagged(world, owner.card, tag, |nic| nic.create_mkey(attr))
}

/// Makes a key with the tag that the command chooses. The card counts the tag of a slot up whenever its key is
/// destroyed, and uses free slots in turn, so making and destroying keys arrives at any tag.
pub(crate) fn tagged(
    world: &mut World,
    card: usize,
    tag: u32,
    create: impl Fn(&mut Nic) -> std::result::Result<u32, NicError>,
) -> std::result::Result<(Kind, u32), Refusal> {
    let nic = &mut world.card(card)?.nic;
    let first = create(nic)?;
    let mut key = first;
    while key & 0xFF != tag {
        nic.destroy_mkey(key)?;
        key = create(nic)?;
        if key == first {
            return refuse(answer::NO_RES, syndrome::CARD, format!("no free key has tag {tag:#x}"));
        }
    }
    Ok((Kind::Mkey, key))
}

pub(crate) fn attach(
    world: &mut World,
    caller: &Caller<'_>,
    input: Input<'_>,
) -> std::result::Result<(Kind, u32), Refusal> {
    let owner = caller.id;
    if input.0.len() < prm::group::BYTES {
        let text = format!("{} bytes; the command has {}", input.0.len(), prm::group::BYTES);
        return refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, text);
    }
    let (qpn, gid) = (input.get(prm::NUMBER), Gid(input.bytes(prm::group::GID)));
    own_queue_pair(world, caller, qpn)?;
    let nic = &mut world.card(owner.card)?.nic;
    if nic.is_member(qpn, &gid) {
        // The membership is that of one object, with which it ends.
        let text = format!("queue pair {qpn:#x} is a member of {gid} already");
        return refuse(answer::BAD_RES_STATE, syndrome::CARD, text);
    }
    nic.attach_multicast(qpn, gid)?;
    Ok((Kind::Group(gid), qpn))
}
