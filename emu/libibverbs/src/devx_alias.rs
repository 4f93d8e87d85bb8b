//! Device commands about memory keys of other virtual HCAs: sharing one, making an alias of it, asking what an alias
//! is.
//!
//! Layouts: Linux `mlx5_ifc.h`; that the first dword of the metadata is the protection domain, and that the alias has
//! tag 0, as public programs for cross-GVMI memory keys use them.

use emu_machine::World;
use emu_machine::nic::{AliasAttr, GroupKey};

use crate::card::caller::{Caller, Class};
use crate::card::refusal::{Kind, Refusal, answer, refuse, syndrome};
use crate::devx_create::{own_domain, own_queue_pair, tagged};
use crate::prm::{self, Input, allow, group_key, object};

type Result<T> = std::result::Result<T, Refusal>;

fn long_enough(input: Input<'_>, bytes: usize) -> Result<()> {
    if input.0.len() < bytes {
        let text = format!("{} bytes; the command has {bytes}", input.0.len());
        return refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, text);
    }
    Ok(())
}

fn no_key<T>(index: u32, owner: impl std::fmt::Display) -> Result<T> {
    refuse(answer::BAD_RES, syndrome::OBJECT, format!("there is no memory key of index {index:#x} of {owner}"))
}

/// ALLOW_OTHER_VHCA_ACCESS of a memory key: who knows the access key may make aliases of it. Another access key takes
/// the first one's place, and its aliases are dead.
pub(crate) fn allow_access(world: &mut World, caller: &Caller<'_>, input: Input<'_>) -> Result<()> {
    let owner = caller.id;
    long_enough(input, allow::BYTES)?;
    let kind = input.get(allow::TYPE);
    if kind != object::MKEY {
        let text = format!("objects of type {kind:#x} are not shared; memory keys ({:#x}) are", object::MKEY);
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    let (vhca, index) = (world.vhca(owner)?, input.get(allow::ID));
    let nic = &mut world.card(owner.card)?.nic;
    let key = nic.mkey_of_index_on(vhca, index).filter(|key| caller.has(Class::Key, *key));
    let Some(key) = key else { return no_key(index, owner) };
    Ok(nic.share_mkey(key, input.bytes(allow::ACCESS_KEY))?)
}

/// CREATE_GENERAL_OBJECT: an alias of a memory key, or a group key; other objects have calls of their own.
pub(crate) fn create_general(world: &mut World, caller: &Caller<'_>, input: Input<'_>) -> Result<(Kind, u32)> {
    let owner = caller.id;
    let kind = input.get(object::TYPE);
    if kind == group_key::TYPE {
        return create_group_key(world, caller, input);
    }
    if kind != object::MKEY {
        let instead = match kind {
            0x28 | 0xFF13 => "; the heap of a process comes with flexio_process_create",
            0x2A => "; flexio_process_create makes processes",
            0x2B => "; flexio_event_handler_create makes threads",
            0x2D => "; flexio_outbox_create makes outboxes",
            0x39 => "; flexio_window_create makes windows",
            0x4A | 0xFF11 => "; flexio_uar_create makes UARs",
            _ => "",
        };
        let text = format!("general objects of type {kind:#x} are not made by command here{instead}");
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    if !input.flag(object::ALIAS.0, object::ALIAS.1) {
        let text = "a memory key as general object must be an alias; CREATE_MKEY makes keys";
        return refuse(answer::BAD_PARAM, syndrome::UNSUPPORTED_FIELD, text);
    }
    long_enough(input, object::BYTES)?;
    let context = input.at(object::CONTEXT);
    let index = context.get(object::TARGET);
    let pd = own_domain(world, caller, context.get(object::PD))?;
    let target_vhca = context.get(object::VHCA) as u16;
    let nic = &mut world.card(owner.card)?.nic;
    nic.port_addresses(target_vhca)?;
    let Some(target) = nic.mkey_of_index_on(target_vhca, index) else {
        return no_key(index, format_args!("virtual HCA {target_vhca:#x}"));
    };
    let attr = AliasAttr { pd, target_vhca, target, token: context.bytes(object::ACCESS_KEY) };
    // Programs make the key of the object's number alone.
    let (_, number) = tagged(world, owner.card, 0, |nic| nic.create_alias_mkey(attr))?;
    Ok((Kind::Alias { vhca: attr.target_vhca, index }, number))
}

/// A group key at a member; see [`group_key`].
fn create_group_key(world: &mut World, caller: &Caller<'_>, input: Input<'_>) -> Result<(Kind, u32)> {
    long_enough(input, group_key::BYTES)?;
    let key = input.get(group_key::KEY);
    let entry = GroupKey { key, local_key: input.get(group_key::LOCAL_KEY), base: input.u64(group_key::BASE) };
    let qpn = input.get(group_key::QPN);
    own_queue_pair(world, caller, qpn)?;
    world.card(caller.id.card)?.nic.map_group_key(qpn, entry)?;
    Ok((Kind::GroupKey(key), qpn))
}

/// QUERY_GENERAL_OBJECT of an alias.
pub(crate) fn query_alias(vhca: u16, index: u32, answer: &mut [u8]) {
    let Some(context) = answer.get_mut(object::CONTEXT..) else { return };
    prm::put(context, object::VHCA, vhca.into());
    prm::put(context, object::TARGET, index);
}
