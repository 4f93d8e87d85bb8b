//! Device commands that ask: capabilities of the device, and the contexts of objects.

use emu_machine::nic::{Access, CqTarget, MAX_RD_ATOMIC, QpState, Transport};
use emu_machine::{FunctionId, World, layout};

use crate::card::info::{LOCAL_ACK_DELAY, MAX_MESSAGE_BYTES};
use crate::card::refusal::{Kind, Refusal, answer, refuse, syndrome};
use crate::devx_alias::query_alias;
use crate::prm::{self, Input, caps, command};

type Result<T> = std::result::Result<T, Refusal>;

/// The answer as far as it has the first `needed` bytes, which are all that the command returns.
fn room(answer: &mut [u8], needed: usize) -> Result<&mut [u8]> {
    if answer.len() < needed {
        let text = format!("an answer of {} bytes; it takes at least {needed}", answer.len());
        return refuse(answer::BAD_OUTPUT_LEN, syndrome::LENGTH, text);
    }
    Ok(answer)
}

/// QUERY_HCA_CAP. What is not filled in is 0: the device does not have it. Of a structure as much is returned as the
/// answer has room for.
pub(crate) fn capabilities(world: &mut World, owner: FunctionId, input: Input<'_>, answer: &mut [u8]) -> Result<()> {
    // Current and greatest values are the same.
    let kind = input.get(prm::OP_MOD) >> 1;
    let out = &mut room(answer, caps::STRUCTURE + caps::LEAST_BYTES)?[caps::STRUCTURE..];
    let log = |value: u64| 63 - value.max(1).leading_zeros();
    match kind {
        caps::GENERAL => {
            let vhca = world.vhca(owner)?;
            for (field, value) in [
                (caps::HCA_CAP_2, 1),
                (caps::VHCA_ID, vhca.into()),
                // As create_qp and create_cq of the network card bound them.
                (caps::LOG_MAX_QP_SIZE, 15),
                (caps::LOG_MAX_QP, 23),
                (caps::LOG_MAX_CQ_SIZE, 22),
                (caps::LOG_MAX_CQ, 23),
                (caps::LOG_MAX_MKEY, 23),
                (caps::LOG_MAX_RA_REQ_QP, log(MAX_RD_ATOMIC.into())),
                (caps::LOG_MAX_RA_RES_QP, log(MAX_RD_ATOMIC.into())),
                (caps::LOCAL_CA_ACK_DELAY, LOCAL_ACK_DELAY.into()),
                (caps::PORT_TYPE, caps::PORT_TYPE_ETHERNET),
                (caps::NUM_PORTS, 1),
                (caps::LOG_MAX_MSG, log(MAX_MESSAGE_BYTES.into())),
                (caps::CQE_VERSION, 1),
                (caps::CQ_OVERRUN_IGNORE, 1),
                (caps::BLOCK_LB_MC, 1),
                (caps::SERVICES, 0b111),
            ] {
                prm::put(out, field, value);
            }
        }
        caps::GENERAL_2 => prm::put(out, caps::CROSS_VHCA, caps::CROSS_VHCA_MKEY),
        caps::DPA => {
            let heap_bytes = world.config().heap_bytes;
            let units = log(layout::EXECUTION_UNITS as u64);
            for (field, value) in [
                (caps::SINGLE_HART, 1),
                (caps::LOG_MAX_MEMORY_BLOCKS, log(heap_bytes / layout::PAGE)),
                (caps::LOG_MAX_MEMORY, log(heap_bytes)),
                (caps::LOG_MAX_THREADS_PER_PROCESS, units),
                (caps::LOG_MAX_PROCESSES, units),
                (caps::MEMORY_BLOCK_BYTES, layout::PAGE as u32),
                (caps::LOG_MAX_THREADS, units),
                (caps::LOG_MAX_OUTBOXES, 8),
                (caps::LOG_MAX_WINDOWS, 8),
            ] {
                prm::put(out, field, value);
            }
        }
        _ => {
            let text = format!(
                "capabilities of kind {kind:#x} are not emulated; there are those of the device and of its DPA"
            );
            return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
        }
    }
    Ok(())
}

/// Fills in the answer to a query of an object.
pub(crate) fn object(
    world: &mut World,
    card: usize,
    (kind, number): (Kind, u32),
    input: Input<'_>,
    answer: &mut [u8],
) -> Result<()> {
    match (input.get(prm::OPCODE), kind) {
        (command::QUERY_QP, Kind::Qp(_)) => queue_pair(world, card, number, answer),
        (command::QUERY_CQ, Kind::Cq) => completion_queue(world, card, number, answer),
        (command::QUERY_MKEY, Kind::Mkey) => memory_key(world, card, number, answer),
        (command::QUERY_GENERAL_OBJECT, Kind::Alias { vhca, index }) => {
            query_alias(vhca, index, room(answer, prm::object::BYTES)?);
            Ok(())
        }
        (command::QUERY_QP | command::QUERY_CQ | command::QUERY_MKEY | command::QUERY_GENERAL_OBJECT, _) => refuse(
            answer::BAD_RES,
            syndrome::OBJECT,
            format!("the object is {kind:?}, not what the command asks about"),
        ),
        _ => crate::card::refusal::unsupported(input),
    }
}

/// State of a queue pair as commands number it.
fn state(state: QpState) -> u32 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Err => 6,
    }
}

/// Service type of a queue pair as commands number it.
pub(crate) fn service(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => 0,
        Transport::Uc => 1,
        Transport::Ud => 2,
        // MLX5_QP_ST_RAW_ETHERTYPE of Linux.
        Transport::Ethernet => 10,
    }
}

fn queue_pair(world: &mut World, card: usize, number: u32, answer: &mut [u8]) -> Result<()> {
    use prm::{path as ads, qp as field};
    const MIGRATED: u32 = 3;
    const ZERO_SIZE: u32 = 3;
    let query = world.card(card)?.nic.query_qp(number)?;
    let (attr, path) = (query.attr, query.path);
    let context = &mut room(answer, field::CONTEXT + field::CONTEXT_BYTES)?[field::CONTEXT..];
    let flag = |(offset, bit): (usize, u32)| prm::Field(offset, bit, 1);
    let log = |count: u8| u32::from(count.checked_ilog2().unwrap_or(0) as u8);
    for (at, value) in [
        (field::STATE, state(query.state)),
        (field::SERVICE, service(attr.transport)),
        (field::PATH_MIGRATION, MIGRATED),
        (flag(field::BLOCK_MULTICAST_LOOPBACK), path.block_multicast_loopback.into()),
        (field::PD, attr.pd),
        (field::MTU, path.path_mtu.code().into()),
        (field::LOG_RQ_SIZE, attr.log_rq_depth.into()),
        (field::LOG_RQ_STRIDE, attr.log_rq_stride.saturating_sub(4).into()),
        (flag(field::NO_SQ), attr.no_sq.into()),
        (field::LOG_SQ_SIZE, attr.log_sq_depth.into()),
        (field::UAR_PAGE, attr.uar),
        (field::USER_INDEX, attr.user_index),
        (field::REMOTE_QPN, path.dest_qpn),
        (field::LOG_SRA_MAX, log(path.max_rd_atomic)),
        (field::RETRY_COUNT, path.retry_cnt.into()),
        (field::RNR_RETRY, path.rnr_retry.into()),
        (field::NEXT_SEND_PSN, query.sq_psn),
        (field::CQN_SND, attr.send_cq),
        (field::LOG_RRA_MAX, log(path.max_dest_rd_atomic)),
        (flag(field::REMOTE_READ), path.access.contains(Access::REMOTE_READ).into()),
        (flag(field::REMOTE_WRITE), path.access.contains(Access::REMOTE_WRITE).into()),
        (flag(field::REMOTE_ATOMIC), path.access.contains(Access::REMOTE_ATOMIC).into()),
        (field::MIN_RNR_NAK, path.min_rnr_timer.into()),
        (field::NEXT_RCV_PSN, query.rq_psn),
        (field::CQN_RCV, attr.recv_cq),
        (field::Q_KEY, path.qkey),
        (field::RQ_TYPE, if attr.no_rq { ZERO_SIZE } else { 0 }),
    ] {
        prm::put(context, at, value);
    }
    let Some(primary) = context.get_mut(field::PATH..) else { return Ok(()) };
    for (at, value) in [
        (flag(ads::FORCE_LOOPBACK), path.force_loopback.into()),
        (ads::PKEY_INDEX, path.pkey_index.into()),
        (ads::ACK_TIMEOUT, path.timeout.into()),
        (ads::SOURCE_INDEX, path.sgid_index.into()),
        (ads::HOP_LIMIT, path.hop_limit.into()),
        (ads::TRAFFIC_CLASS, path.traffic_class.into()),
        (ads::FLOW_LABEL, path.flow_label),
        (ads::UDP_SPORT, path.udp_sport.into()),
        (ads::PORT, path.port.into()),
    ] {
        prm::put(primary, at, value);
    }
    for (at, bytes) in [(ads::RGID, &path.rgid.0[..]), (ads::RMAC, &path.dmac[..])] {
        if let Some(out) = primary.get_mut(at..at + bytes.len()) {
            out.copy_from_slice(bytes);
        }
    }
    Ok(())
}

fn completion_queue(world: &mut World, card: usize, number: u32, answer: &mut [u8]) -> Result<()> {
    use prm::cq as field;
    const OVERFLOW: u32 = 0x9;
    let nic = &world.card(card)?.nic;
    let failed = nic.cq_failed(number)?;
    let Some(&attr) = nic.query_cq(number) else {
        return refuse(answer::BAD_RES, syndrome::OBJECT, "the completion queue is gone");
    };
    let context = &mut room(answer, field::CONTEXT + field::CONTEXT_BYTES)?[field::CONTEXT..];
    let flag = |(offset, bit): (usize, u32)| prm::Field(offset, bit, 1);
    let thread = match attr.target {
        CqTarget::DpaThread(thread) => Some(thread),
        CqTarget::None | CqTarget::Channel(_) => None,
    };
    for (at, value) in [
        (field::STATUS, if failed { OVERFLOW } else { 0 }),
        (flag(field::EXT_ELEMENT), thread.is_some().into()),
        (flag(field::OVERRUN_IGNORE), attr.overrun_ignore.into()),
        (flag(field::ALWAYS_ARMED), attr.always_armed.into()),
        (field::LOG_SIZE, attr.log_depth.into()),
        (field::UAR_PAGE, attr.uar),
        (field::ELEMENT, thread.unwrap_or(0)),
    ] {
        prm::put(context, at, value);
    }
    Ok(())
}

fn memory_key(world: &mut World, card: usize, number: u32, answer: &mut [u8]) -> Result<()> {
    use prm::mkey as field;
    const PAGES: u32 = 1;
    const ANY_QP: u32 = 0xFF_FFFF;
    let Some(attr) = world.card(card)?.nic.query_mkey(number).copied() else {
        let text = "the range of a key over other keys is set by work requests, not reported by command";
        return refuse(answer::BAD_RES_STATE, syndrome::OBJECT, text);
    };
    let context = &mut room(answer, field::CONTEXT + field::CONTEXT_BYTES)?[field::CONTEXT..];
    let flag = |(offset, bit): (usize, u32)| prm::Field(offset, bit, 1);
    for (at, value) in [
        (flag(field::LOCAL_WRITE), attr.access.contains(Access::LOCAL_WRITE).into()),
        (flag(field::REMOTE_READ), attr.access.contains(Access::REMOTE_READ).into()),
        (flag(field::REMOTE_WRITE), attr.access.contains(Access::REMOTE_WRITE).into()),
        (flag(field::ATOMIC), attr.access.contains(Access::REMOTE_ATOMIC).into()),
        (field::ACCESS_MODE, PAGES),
        (field::QPN, ANY_QP),
        (field::TAG, number & 0xFF),
        (field::PD, attr.pd),
    ] {
        prm::put(context, at, value);
    }
    for (at, value) in [(field::START, attr.start), (field::LENGTH, attr.len)] {
        if let Some(out) = context.get_mut(at..at + 8) {
            out.copy_from_slice(&value.to_be_bytes());
        }
    }
    Ok(())
}
