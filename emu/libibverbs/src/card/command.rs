//! Device commands carried out on the machine.

use emu_machine::World;
use emu_machine::nic::{Access, Gid, Mtu, Nic, QpModify, QpState, Transport};

use crate::card::caller::Caller;
use crate::card::refusal::{Kind, Refusal, answer, full_length, refuse, syndrome, unsupported};
use crate::card::request::{DevxCall, Made};
use crate::devx_alias::{allow_access, create_general};
use crate::devx_create::{attach, create_cq, create_mkey, create_qp};
use crate::devx_query::{self, service};
use crate::errno::Errno;
use crate::prm::{self, Input, command};

/// Carries a command out on the machine.
pub(crate) fn execute(
    world: &mut World,
    caller: &mut Caller<'_>,
    call: DevxCall,
    input: &[u8],
    answer: &mut [u8],
) -> std::result::Result<Option<Made>, Refusal> {
    let (owner, input) = (caller.id, Input(input));
    if input.0.len() < prm::SHORT_BYTES || answer.len() < prm::SHORT_BYTES {
        return refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, "a mailbox is shorter than any command");
    }
    match call {
        DevxCall::Create => return create(world, caller, input, answer).map(Some),
        DevxCall::General => match input.get(prm::OPCODE) {
            command::QUERY_HCA_CAP => devx_query::capabilities(world, owner, input, answer)?,
            command::ALLOW_OTHER_VHCA_ACCESS => allow_access(world, caller, input)?,
            _ => return unsupported(input),
        },
        DevxCall::Query { kind, number } => {
            own(caller, kind, number)?;
            devx_query::object(world, owner.card, (kind, number), input, answer)?;
        }
        DevxCall::Modify { kind, number, block_multicast_loopback } => {
            own(caller, kind, number)?;
            modify(world, owner.card, (kind, number), block_multicast_loopback, input)?;
        }
    }
    Ok(None)
}

/// Another process may name what it has made; programs of this one have handles, which are checked before.
fn own(caller: &Caller<'_>, kind: Kind, number: u32) -> std::result::Result<(), Refusal> {
    let has = kind.class().map_or(caller.other.is_none(), |class| caller.has(class, number));
    if has {
        Ok(())
    } else {
        refuse(answer::BAD_RES, syndrome::OBJECT, format!("this process has no object {number:#x} of this kind"))
    }
}

/// What another process may make by command: keys and domains, which need no doorbell page and no thread.
fn check_elsewhere(caller: &Caller<'_>, input: Input<'_>) -> std::result::Result<(), Refusal> {
    let opcode = input.get(prm::OPCODE);
    let alias = opcode == command::CREATE_GENERAL_OBJECT && input.get(prm::object::TYPE) == prm::object::MKEY;
    if caller.other.is_none() || alias || matches!(opcode, command::CREATE_MKEY | command::ALLOC_PD) {
        return Ok(());
    }
    let text = format!(
        "command {opcode:#x} is not to be had of another process's card: keys, aliases of keys and domains are made \
         there"
    );
    refuse(answer::BAD_OP, syndrome::UNSUPPORTED_COMMAND, text)
}

fn create(
    world: &mut World,
    caller: &mut Caller<'_>,
    input: Input<'_>,
    answer: &mut [u8],
) -> std::result::Result<Made, Refusal> {
    let owner = caller.id;
    check_elsewhere(caller, input)?;
    caller.room(world).map_err(|Errno { reason, .. }| Refusal {
        status: answer::NO_RES,
        syndrome: syndrome::CARD,
        reason,
    })?;
    let (kind, number) = match input.get(prm::OPCODE) {
        command::CREATE_CQ => create_cq(world, caller, input)?,
        command::CREATE_QP => create_qp(world, caller, input)?,
        command::CREATE_MKEY => create_mkey(world, caller, input)?,
        command::ATTACH_TO_MCG => attach(world, caller, input)?,
        command::ALLOC_PD => {
            let vhca = world.vhca(owner)?;
            (Kind::Pd, world.card(owner.card)?.nic.alloc_pd_on(vhca)?)
        }
        command::CREATE_GENERAL_OBJECT => create_general(world, caller, input)?,
        _ => return unsupported(input),
    };
    if let Some(class) = kind.class() {
        caller.made(class, number);
    }
    match kind {
        Kind::Mkey => prm::put(answer, prm::NUMBER, number >> 8),
        Kind::Alias { .. } => prm::put(answer, prm::object::ID, number >> 8),
        Kind::Qp(_) | Kind::Cq | Kind::Pd => prm::put(answer, prm::NUMBER, number),
        Kind::GroupKey(key) => prm::put(answer, prm::object::ID, key),
        Kind::Group(_) => {}
    }
    let block_multicast_loopback = matches!(kind, Kind::Qp(_)) && blocks_multicast_loopback(input);
    Ok(Made { kind, number, block_multicast_loopback })
}

fn modify(
    world: &mut World,
    card: usize,
    (kind, number): (Kind, u32),
    block_multicast_loopback: bool,
    input: Input<'_>,
) -> std::result::Result<(), Refusal> {
    let modify = transition((kind, number), block_multicast_loopback, input)?;
    if modify.next_state.is_none() {
        let state = world.card(card)?.nic.query_qp(number)?.state;
        if state != QpState::Rts {
            return refuse(answer::BAD_RES_STATE, syndrome::OBJECT, format!("the queue pair is in {state}"));
        }
    }
    let now_ps = world.now_ps();
    let call = |nic: &mut Nic, effects: &mut _| nic.modify_qp(now_ps, number, &modify, effects);
    Ok(world.nic_call(card, call)??)
}

/// Whether the queue-pair context of a command has the bit: CREATE_QP's, as the Linux driver sets it, or RST2INIT's.
fn blocks_multicast_loopback(input: Input<'_>) -> bool {
    let (offset, bit) = prm::qp::BLOCK_MULTICAST_LOOPBACK;
    input.at(prm::qp::CONTEXT).flag(offset, bit)
}

/// The attributes of a transition command.
fn transition(
    (kind, number): (Kind, u32),
    block_multicast_loopback: bool,
    input: Input<'_>,
) -> std::result::Result<QpModify, Refusal> {
    use prm::{path as ads, qp as field};
    const MIGRATED: u32 = 3;
    let Kind::Qp(transport) = kind else {
        return refuse(answer::BAD_RES, syndrome::OBJECT, "the object is not a queue pair");
    };
    if input.get(prm::NUMBER) != number {
        let text = format!("the command names queue pair {:#x}, the object is {number:#x}", input.get(prm::NUMBER));
        return refuse(answer::BAD_RES, syndrome::OBJECT, text);
    }
    let opcode = input.get(prm::OPCODE);
    match opcode {
        command::TO_ERROR_QP => return Ok(QpModify { next_state: Some(QpState::Err), ..Default::default() }),
        command::TO_RESET_QP => return Ok(QpModify { next_state: Some(QpState::Reset), ..Default::default() }),
        command::RST2INIT_QP | command::INIT2RTR_QP | command::RTR2RTS_QP | command::RTS2RTS_QP => full_length(input)?,
        _ => return unsupported(input),
    }
    let context = input.at(field::CONTEXT);
    let path = context.at(field::PATH);
    let flag = |(offset, bit): (usize, u32)| context.flag(offset, bit);
    let service = service(transport);
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
            block_multicast_loopback: Some(block_multicast_loopback || blocks_multicast_loopback(input)),
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
                traffic_class: Some(path.get8(ads::TRAFFIC_CLASS)),
                hop_limit: Some(path.get8(ads::HOP_LIMIT)),
                flow_label: Some(path.get(ads::FLOW_LABEL)),
                max_dest_rd_atomic: Some(1 << context.get(field::LOG_RRA_MAX)),
                min_rnr_timer: Some(context.get8(field::MIN_RNR_NAK)),
                force_loopback: Some(path.flag(ads::FORCE_LOOPBACK.0, ads::FORCE_LOOPBACK.1)),
                ..Default::default()
            }
        }
        command::INIT2RTR_QP => QpModify { next_state: Some(QpState::Rtr), ..Default::default() },
        command::RTS2RTS_QP => optional(input.get(field::OPTIONAL), context, access)?,
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

/// The attributes that RTS2RTS changes, by its mask (`opt_param_mask` of the PRM).
fn optional(mask: u32, context: Input<'_>, access: Access) -> std::result::Result<QpModify, Refusal> {
    use prm::{path as ads, qp as field};
    const RIGHTS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
    const PKEY_INDEX: u32 = 1 << 4;
    const Q_KEY: u32 = 1 << 5;
    const RNR_TIMEOUT: u32 = 1 << 6;
    const RETRY_COUNT: u32 = 1 << 12;
    const RNR_RETRY: u32 = 1 << 13;
    const ACK_TIMEOUT: u32 = 1 << 14;
    let known = RIGHTS | PKEY_INDEX | Q_KEY | RNR_TIMEOUT | RETRY_COUNT | RNR_RETRY | ACK_TIMEOUT;
    if mask & !known != 0 || !matches!(mask & RIGHTS, 0 | RIGHTS) {
        let text = format!("optional attributes {mask:#x}: those of {known:#x} can change, the three rights together");
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let path = context.at(field::PATH);
    let asked = |bit: u32| mask & bit != 0;
    Ok(QpModify {
        access: asked(RIGHTS).then_some(access),
        pkey_index: asked(PKEY_INDEX).then(|| path.get(ads::PKEY_INDEX) as u16),
        qkey: asked(Q_KEY).then(|| context.get(field::Q_KEY)),
        min_rnr_timer: asked(RNR_TIMEOUT).then(|| context.get8(field::MIN_RNR_NAK)),
        retry_cnt: asked(RETRY_COUNT).then(|| context.get8(field::RETRY_COUNT)),
        rnr_retry: asked(RNR_RETRY).then(|| context.get8(field::RNR_RETRY)),
        timeout: asked(ACK_TIMEOUT).then(|| path.get8(ads::ACK_TIMEOUT)),
        ..Default::default()
    })
}
