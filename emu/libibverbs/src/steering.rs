//! Steering of Ethernet frames, as `mlx5dv_dr_*` of mlx5 direct verbs makes it: domains, tables, matchers, rules.
//!
//! Matchers compare fields of the outer headers. A rule sends its frames to the TIR of a receive queue, to another
//! table or to the port, or drops them. Transmit domains (`NIC_TX`, `FDB`) steer the frames of send queues; a frame
//! that matches no rule leaves by the port.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emu_machine::FunctionId;
use emu_machine::nic::{FlowAction, FlowDirection, FlowMatch, MATCH_BYTES, MatchFields, Nic};
use verbs_sys::*;

use crate::device::Context;
use crate::errno::{self, Errno, Result, pointer, status};
use crate::handle::{self, Object};
use crate::machine::{begin_command, is_elsewhere, on_machine, on_nic};

/// `struct mlx5dv_dr_domain` of C.
pub(crate) enum DrDomain {}
/// `struct mlx5dv_dr_table` of C.
pub(crate) enum DrTable {}
/// `struct mlx5dv_dr_matcher` of C.
pub(crate) enum DrMatcher {}
/// `struct mlx5dv_dr_rule` of C.
pub(crate) enum DrRule {}
/// `struct mlx5dv_dr_action` of C.
pub(crate) enum DrAction {}

/// `enum mlx5dv_dr_domain_type`.
const NIC_RX: u32 = 0;
const NIC_TX: u32 = 1;
const FDB: u32 = 2;
/// The e-switch port of the wire.
const UPLINK: u32 = 0xFFFF;
/// Groups of fields that a match may have: the outer headers, and those that say where a frame comes from.
const OUTER: u8 = 1;
const MISC: u8 = 2;
/// Bytes of a group of fields.
const GROUP_BYTES: usize = MATCH_BYTES;
/// Bytes of the field `source_port` of the second group: every frame of the emulated card has one source.
const SOURCE_PORT: std::ops::Range<usize> = 6..8;
/// Most actions that a rule may have.
const MOST_ACTIONS: usize = 32;

/// `struct mlx5dv_flow_match_parameters`: bytes of fields in the layout of the device, and as many bytes.
#[repr(C)]
pub(crate) struct MatchParameters {
    bytes: usize,
    fields: [u8; 0],
}

/// Shares of an object that others were made of: it cannot be destroyed while there are any.
type Users = Arc<()>;

fn check_unused(what: &str, users: &Users) -> Result<()> {
    match Arc::strong_count(users) - 1 {
        0 => Ok(()),
        count => Err(Errno::new(libc::EBUSY, format!("the {what} is used by {count} others: destroy them first"))),
    }
}

macro_rules! object {
    ($type:ident, $kind:literal, $c:ident) => {
        impl Object for $type {
            const KIND: &'static str = $kind;
            type C = $c;
            fn c_address(&self) -> *mut $c {
                (self as *const Self).cast_mut().cast()
            }
        }
    };
}

struct Domain {
    owner: FunctionId,
    direction: FlowDirection,
    is_fdb: bool,
    allows_duplicates: AtomicBool,
    users: Users,
}
object!(Domain, "steering domain", DrDomain);

struct Table {
    domain: Arc<Domain>,
    _share: Users,
    number: u32,
    is_root: bool,
    users: Users,
}
object!(Table, "steering table", DrTable);

struct Matcher {
    table: Arc<Table>,
    _share: Users,
    priority: u16,
    criteria: u8,
    mask: MatchFields,
    users: Users,
}
object!(Matcher, "steering matcher", DrMatcher);

struct Rule {
    owner: FunctionId,
    _share: Users,
    _actions: Vec<Users>,
    number: u32,
}
object!(Rule, "steering rule", DrRule);

struct Action {
    /// The function whose frames it may be for, if it matters.
    owner: Option<FunctionId>,
    /// The direction that it is for, if it matters.
    direction: Option<FlowDirection>,
    action: FlowAction,
    _share: Option<Users>,
    users: Users,
}
object!(Action, "steering action", DrAction);

/// The way to a receive queue: a TIR, which FlexIO makes with the queue.
#[derive(Debug)]
pub struct Tir {
    owner: FunctionId,
    queue: u32,
    users: Users,
}
object!(Tir, "TIR", mlx5dv_devx_obj);

impl Tir {
    /// That of a receive queue of a function.
    #[must_use]
    pub fn new(owner: FunctionId, queue: u32) -> Self {
        Self { owner, queue, users: Users::default() }
    }

    /// # Errors
    /// EBUSY: actions lead to it.
    pub fn check_unused(&self) -> Result<()> {
        check_unused("TIR", &self.users)
    }
}

/// Steering is of the process that has the card.
fn own_machine() -> Result<()> {
    if is_elsewhere()? {
        return Err(Errno::unsupported("the cards are those of another process: steer frames there"));
    }
    Ok(())
}

/// Makes or destroys something on the card, and has the machine notice.
fn changed<R>(owner: FunctionId, change: impl FnOnce(&mut Nic) -> Result<R>) -> Result<R> {
    on_machine(|world| {
        let changed = change(&mut world.card(owner.card)?.nic)?;
        world.steering_changed(owner.card);
        Ok::<_, Errno>(changed)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_domain_create(context: *mut ibv_context, kind: u32) -> *mut DrDomain {
    pointer("mlx5dv_dr_domain_create", || {
        own_machine()?;
        let owner = handle::get::<Context>(context)?.id();
        begin_command(owner)?;
        let direction = match kind {
            NIC_RX => FlowDirection::Receive,
            NIC_TX | FDB => FlowDirection::Transmit,
            other => {
                let text = format!("domain type {other}: NIC_RX ({NIC_RX}), NIC_TX ({NIC_TX}) and FDB ({FDB}) are");
                return Err(Errno::invalid(text));
            }
        };
        let domain = Domain {
            owner,
            direction,
            is_fdb: kind == FDB,
            allows_duplicates: AtomicBool::new(true),
            users: Users::default(),
        };
        Ok(handle::publish(&Arc::new(domain)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_domain_destroy(domain: *mut DrDomain) -> c_int {
    status("mlx5dv_dr_domain_destroy", || {
        check_unused("domain", &handle::get::<Domain>(domain)?.users)?;
        handle::retire::<Domain>(domain)?;
        Ok(())
    })
}

/// Rules hold from the moment they are made.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_domain_sync(domain: *mut DrDomain, _flags: u32) -> c_int {
    status("mlx5dv_dr_domain_sync", || handle::get::<Domain>(domain).map(drop).map_err(Errno::from))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_domain_allow_duplicate_rules(domain: *mut DrDomain, allow: bool) {
    errno::number("mlx5dv_dr_domain_allow_duplicate_rules", || {
        handle::get::<Domain>(domain)?.allows_duplicates.store(allow, Ordering::Relaxed);
        Ok(0)
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_table_create(domain: *mut DrDomain, level: u32) -> *mut DrTable {
    pointer("mlx5dv_dr_table_create", || {
        let domain = handle::get::<Domain>(domain)?;
        begin_command(domain.owner)?;
        let is_root = level == 0;
        let number = if is_root {
            Nic::root_flow_table(domain.direction)
        } else {
            on_nic(domain.owner.card, Nic::create_flow_table)?
        };
        let share = Arc::clone(&domain.users);
        Ok(handle::publish(&Arc::new(Table { domain, _share: share, number, is_root, users: Users::default() })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_table_destroy(table: *mut DrTable) -> c_int {
    status("mlx5dv_dr_table_destroy", || {
        let object = handle::get::<Table>(table)?;
        check_unused("table", &object.users)?;
        begin_command(object.domain.owner)?;
        if !object.is_root {
            on_nic(object.domain.owner.card, |nic| nic.destroy_flow_table(object.number))?;
        }
        handle::retire::<Table>(table)?;
        Ok(())
    })
}

/// The fields of a match.
///
/// # Safety
/// If not null, `parameters` must point at a structure with as many bytes behind it as it says.
unsafe fn fields(what: &str, parameters: *const MatchParameters, criteria: u8) -> Result<MatchFields> {
    let mut outer = [0; MATCH_BYTES];
    if parameters.is_null() {
        if criteria == 0 {
            return Ok(outer);
        }
        return Err(Errno::invalid(format!("the {what} is null")));
    }
    // SAFETY: not null; the caller vouches for the structure and the bytes behind it.
    let bytes = unsafe {
        let bytes = (*parameters).bytes;
        core::slice::from_raw_parts((&raw const (*parameters).fields).cast::<u8>(), bytes.min(16 * GROUP_BYTES))
    };
    if !bytes.len().is_multiple_of(4) {
        return Err(Errno::invalid(format!("the {what} has {} bytes: a multiple of 4 is needed", bytes.len())));
    }
    if criteria & OUTER != 0 {
        let len = bytes.len().min(MATCH_BYTES);
        outer[..len].copy_from_slice(&bytes[..len]);
    }
    let misc = bytes.get(GROUP_BYTES..).unwrap_or_default();
    let misc = &misc[..misc.len().min(GROUP_BYTES)];
    let other = misc.iter().enumerate().find(|(at, byte)| **byte != 0 && !SOURCE_PORT.contains(at));
    if criteria & MISC != 0
        && let Some((at, _)) = other
    {
        let text = format!("the {what} has fields beyond the outer headers (byte {}): these are not emulated", 64 + at);
        return Err(Errno::unsupported(text));
    }
    Ok(outer)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_matcher_create(
    table: *mut DrTable,
    priority: u16,
    criteria: u8,
    mask: *mut MatchParameters,
) -> *mut DrMatcher {
    pointer("mlx5dv_dr_matcher_create", || {
        let table = handle::get::<Table>(table)?;
        begin_command(table.domain.owner)?;
        if criteria & !(OUTER | MISC) != 0 {
            let text =
                format!("match_criteria_enable {criteria:#x}: outer headers (1) and source port (2) are emulated");
            return Err(Errno::unsupported(text));
        }
        // SAFETY: the caller vouches for the parameters.
        let mask = unsafe { fields("mask", mask, criteria) }?;
        let share = Arc::clone(&table.users);
        let matcher = Matcher { table, _share: share, priority, criteria, mask, users: Users::default() };
        Ok(handle::publish(&Arc::new(matcher)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_matcher_destroy(matcher: *mut DrMatcher) -> c_int {
    status("mlx5dv_dr_matcher_destroy", || {
        check_unused("matcher", &handle::get::<Matcher>(matcher)?.users)?;
        handle::retire::<Matcher>(matcher)?;
        Ok(())
    })
}

/// A hint of how many rules there will be: the emulated card needs none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_matcher_set_layout(
    matcher: *mut DrMatcher,
    _layout: *mut core::ffi::c_void,
) -> c_int {
    status("mlx5dv_dr_matcher_set_layout", || handle::get::<Matcher>(matcher).map(drop).map_err(Errno::from))
}

/// What the one action of a rule that decides does.
///
/// # Safety
/// If not null, `actions` must point at `count` pointers.
unsafe fn decision(matcher: &Matcher, actions: *const *mut DrAction, count: usize) -> Result<(FlowAction, Vec<Users>)> {
    if actions.is_null() || !(1..=MOST_ACTIONS).contains(&count) {
        return Err(Errno::invalid(format!("a rule with {count} actions: 1 to {MOST_ACTIONS} are possible")));
    }
    // SAFETY: not null; the caller vouches for the number.
    let actions = unsafe { core::slice::from_raw_parts(actions, count) };
    let actions = actions.iter().map(|action| Ok(handle::get::<Action>(*action)?)).collect::<Result<Vec<_>>>()?;
    let domain = &matcher.table.domain;
    for action in &actions {
        if action.owner.is_some_and(|owner| owner != domain.owner) {
            return Err(Errno::invalid("an action is of another device than the matcher"));
        }
        if action.direction.is_some_and(|direction| direction != domain.direction) {
            let text = "an action does not fit the domain: a TIR is for NIC_RX, a port for FDB, a table for its own";
            return Err(Errno::invalid(text));
        }
    }
    let [action] = &actions[..] else {
        return Err(Errno::unsupported(format!("a rule with {count} actions: one that decides is emulated")));
    };
    Ok((action.action, actions.iter().map(|action| Arc::clone(&action.users)).collect()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_rule_create(
    matcher: *mut DrMatcher,
    value: *mut MatchParameters,
    count: usize,
    actions: *mut *mut DrAction,
) -> *mut DrRule {
    pointer("mlx5dv_dr_rule_create", || {
        let matcher = handle::get::<Matcher>(matcher)?;
        let owner = matcher.table.domain.owner;
        begin_command(owner)?;
        // SAFETY: the caller vouches for parameters and actions.
        let (value, (action, actions)) =
            unsafe { (fields("value", value, matcher.criteria)?, decision(&matcher, actions, count)?) };
        let beyond = (0..MATCH_BYTES).find(|at| value[*at] & !matcher.mask[*at] != 0);
        if let Some(at) = beyond {
            let text =
                format!("the value has bits that the matcher's mask leaves out, in byte {at}: the card refuses it");
            return Err(Errno::invalid(text));
        }
        let matched = FlowMatch { mask: matcher.mask, value };
        let (table, priority) = (matcher.table.number, matcher.priority);
        let may_repeat = matcher.table.domain.allows_duplicates.load(Ordering::Relaxed);
        let number = changed(owner, |nic| {
            if !may_repeat && nic.has_flow(table, priority, &matched) {
                return Err(Errno::new(libc::EEXIST, "there is a rule of this match, and the domain takes no second"));
            }
            Ok(nic.create_flow(table, priority, matched, action)?)
        })?;
        let share = Arc::clone(&matcher.users);
        Ok(handle::publish(&Arc::new(Rule { owner, _share: share, _actions: actions, number })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_rule_destroy(rule: *mut DrRule) -> c_int {
    status("mlx5dv_dr_rule_destroy", || {
        let object = handle::get::<Rule>(rule)?;
        begin_command(object.owner)?;
        changed(object.owner, |nic| Ok(nic.destroy_flow(object.number)?))?;
        handle::retire::<Rule>(rule)?;
        Ok(())
    })
}

fn publish(
    owner: Option<FunctionId>,
    direction: Option<FlowDirection>,
    action: FlowAction,
    share: Option<&Users>,
) -> *mut DrAction {
    let share = share.map(Arc::clone);
    handle::publish(&Arc::new(Action { owner, direction, action, _share: share, users: Users::default() }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_action_create_dest_devx_tir(tir: *mut mlx5dv_devx_obj) -> *mut DrAction {
    pointer("mlx5dv_dr_action_create_dest_devx_tir", || {
        let tir = handle::get::<Tir>(tir)?;
        let action = FlowAction::Queue(tir.queue);
        Ok(publish(Some(tir.owner), Some(FlowDirection::Receive), action, Some(&tir.users)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_action_create_dest_table(table: *mut DrTable) -> *mut DrAction {
    pointer("mlx5dv_dr_action_create_dest_table", || {
        let table = handle::get::<Table>(table)?;
        if table.is_root {
            return Err(Errno::invalid("a rule does not lead back to the root table (level 0): make one of level 1"));
        }
        let domain = &table.domain;
        let action = FlowAction::Table(table.number);
        Ok(publish(Some(domain.owner), Some(domain.direction), action, Some(&table.users)))
    })
}

/// The port of an e-switch: of the emulated card the wire alone.
fn to_port(domain: *mut DrDomain, port: u32, wire: u32) -> Result<*mut DrAction> {
    let domain = handle::get::<Domain>(domain)?;
    if !domain.is_fdb {
        return Err(Errno::invalid("ports are destinations of the FDB domain"));
    }
    if port != wire {
        return Err(Errno::unsupported(format!(
            "port {port:#x}: the wire ({wire:#x}) is the only one that is emulated"
        )));
    }
    Ok(publish(Some(domain.owner), Some(domain.direction), FlowAction::Port, Some(&domain.users)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_action_create_dest_vport(domain: *mut DrDomain, vport: u32) -> *mut DrAction {
    pointer("mlx5dv_dr_action_create_dest_vport", || to_port(domain, vport, UPLINK))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_action_create_dest_ib_port(
    domain: *mut DrDomain,
    port: u32,
) -> *mut DrAction {
    pointer("mlx5dv_dr_action_create_dest_ib_port", || to_port(domain, port, 1))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlx5dv_dr_action_create_drop() -> *mut DrAction {
    pointer("mlx5dv_dr_action_create_drop", || {
        own_machine()?;
        Ok(publish(None, None, FlowAction::Drop, None))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_dr_action_destroy(action: *mut DrAction) -> c_int {
    status("mlx5dv_dr_action_destroy", || {
        check_unused("action", &handle::get::<Action>(action)?.users)?;
        handle::retire::<Action>(action)?;
        Ok(())
    })
}
