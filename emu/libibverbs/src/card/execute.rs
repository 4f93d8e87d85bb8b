//! Requests carried out on the machine.

use emu_machine::World;
use emu_machine::nic::{CqAttr, CqTarget, MkeyAttr, Moderation, QpAttr, SrqAttr};

use super::caller::{Caller, Class};
use super::refusal::Kind;
use super::request::{Answer, NewSrq, Request};
use super::{command, events, info};
use crate::errno::{Errno, Result};
use crate::umem::{self, Umem};

fn check_range(addr: u64, len: u64) -> Result<()> {
    if addr == 0 || len == 0 || addr.checked_add(len).is_none() {
        return Err(Errno::invalid(format!("{len} bytes at {addr:#x} cannot be registered")));
    }
    Ok(())
}

/// What a key of a range of memory covers.
fn region(world: &mut World, card: usize, key: u32) -> Result<MkeyAttr> {
    let attr = world.card(card)?.nic.query_mkey(key).copied();
    attr.ok_or_else(|| Errno::invalid(format!("memory key {key:#x} is not one of a range of memory")))
}

/// Carries a request out.
///
/// # Errors
/// What the card refuses, and what is another process's.
pub(crate) fn execute(world: &mut World, caller: &mut Caller<'_>, request: Request) -> Result<Answer> {
    let (id, card) = (caller.id, caller.id.card);
    Ok(match request {
        Request::Open { .. } => Answer::Cards(info::cards(world)?),
        Request::AllocPd => {
            caller.room(world)?;
            let vhca = world.vhca(id)?;
            let pd = world.card(card)?.nic.alloc_pd_on(vhca)?;
            Answer::Number(caller.made(Class::Domain, pd))
        }
        Request::DeallocPd { pd } => {
            caller.check(Class::Domain, pd)?;
            world.card(card)?.nic.dealloc_pd(pd)?;
            caller.gone(Class::Domain, pd);
            Answer::Done
        }
        Request::RegisterRegion { pd, addr, len, access, iova, on_demand } => {
            check_range(addr, len)?;
            caller.check(Class::Domain, pd)?;
            caller.room(world)?;
            let space = if on_demand { caller.pages(world) } else { caller.space() };
            let attr = MkeyAttr { pd, space, start: iova, len, access, offset: addr.wrapping_sub(iova) };
            let key = world.card(card)?.nic.create_mkey(attr)?;
            caller.register_in(world, space, (addr, len))?;
            Answer::Number(caller.made(Class::Key, key))
        }
        Request::ChangeRegion { key, pd, addr, len, access, iova } => {
            check_range(addr, len)?;
            caller.check(Class::Key, key)?;
            caller.check(Class::Domain, pd)?;
            let old = region(world, card, key)?;
            let attr = MkeyAttr { pd, space: old.space, start: iova, len, access, offset: addr.wrapping_sub(iova) };
            caller.register_in(world, old.space, (addr, len))?;
            if let Err(refused) = world.card(card)?.nic.change_mkey(key, attr) {
                caller.deregister_in(world, old.space, (addr, len))?;
                return Err(refused.into());
            }
            caller.deregister_in(world, old.space, old.memory())?;
            Answer::Done
        }
        Request::DeregisterRegion { key } => {
            caller.check(Class::Key, key)?;
            let old = region(world, card, key)?;
            world.explain_key_end(card, key);
            world.card(card)?.nic.destroy_mkey(key)?;
            caller.gone(Class::Key, key);
            caller.deregister_in(world, old.space, old.memory())?;
            Answer::Done
        }
        Request::RegisterMemory { addr, len } => {
            check_range(addr, len)?;
            caller.room(world)?;
            caller.register(world, addr, len)?;
            Answer::Done
        }
        Request::DeregisterMemory { addr, len } => {
            caller.deregister(world, addr, len)?;
            Answer::Done
        }
        Request::RegisterUmem { addr, len } => {
            check_range(addr, len)?;
            caller.room(world)?;
            caller.register(world, addr, len)?;
            let number = umem::insert(Umem { owner: id, space: caller.space(), base: addr, len });
            if let Some((_, owned)) = &mut caller.other {
                owned.umems.insert(number);
            }
            Answer::Number(number)
        }
        Request::DeregisterUmem { id, addr, len } => {
            if let Some((_, owned)) = &mut caller.other
                && !owned.umems.remove(&id)
            {
                return Err(Errno::invalid(format!("this process has no memory object {id}")));
            }
            umem::remove(id);
            caller.deregister(world, addr, len)?;
            Answer::Done
        }
        Request::CreateCq { ring, log_depth, record, channel } => {
            caller.room(world)?;
            let vhca = world.vhca(id)?;
            let channel = channel.map(|channel| caller.channel(channel)).transpose()?;
            let attr = CqAttr {
                ring: caller.place(ring),
                log_depth,
                doorbell_record: caller.place(record),
                target: channel.map_or(CqTarget::None, CqTarget::Channel),
                overrun_ignore: false,
                always_armed: false,
                armed_at_creation: false,
                uar: 0,
            };
            let cqn = world.card(card)?.nic.create_cq_on(vhca, attr)?;
            Answer::Number(caller.made(Class::CompletionQueue, cqn))
        }
        Request::DestroyCq { cqn } => {
            caller.check(Class::CompletionQueue, cqn)?;
            world.card(card)?.nic.destroy_cq(cqn)?;
            caller.gone(Class::CompletionQueue, cqn);
            Answer::Done
        }
        Request::ResizeCq { cqn, ring, log_depth } => {
            caller.check(Class::CompletionQueue, cqn)?;
            world.card(card)?.nic.resize_cq(cqn, caller.place(ring), log_depth)?;
            Answer::Done
        }
        Request::ModerateCq { cqn, count, period_us } => {
            caller.check(Class::CompletionQueue, cqn)?;
            world.card(card)?.nic.moderate_cq(cqn, Moderation { count, period_us })?;
            Answer::Done
        }
        Request::CqFailed { cqn } => {
            caller.check(Class::CompletionQueue, cqn)?;
            Answer::Flag(world.card(card)?.nic.cq_failed(cqn)?)
        }
        Request::CreateSrq(NewSrq { pd, ring, log_depth, log_stride, record, order }) => {
            caller.check(Class::Domain, pd)?;
            caller.room(world)?;
            let (ring, doorbell_record) = (caller.place(ring), caller.place(record));
            let attr = SrqAttr { pd, ring, log_depth, log_stride, doorbell_record, order };
            let srqn = world.card(card)?.nic.create_srq(attr)?;
            Answer::Number(caller.made(Class::SharedReceives, srqn))
        }
        Request::ArmSrq { srqn, limit } => {
            caller.check(Class::SharedReceives, srqn)?;
            let now_ps = world.now_ps();
            world.nic_call(card, |nic, fx| nic.arm_srq(now_ps, srqn, limit, fx))??;
            Answer::Done
        }
        Request::SrqLimit { srqn } => {
            caller.check(Class::SharedReceives, srqn)?;
            Answer::Number(world.card(card)?.nic.query_srq(srqn)?.limit.into())
        }
        Request::DestroySrq { srqn } => {
            caller.check(Class::SharedReceives, srqn)?;
            world.card(card)?.nic.destroy_srq(srqn)?;
            caller.gone(Class::SharedReceives, srqn);
            Answer::Done
        }
        Request::CreateQp { attr } => {
            caller.check(Class::Domain, attr.pd)?;
            caller.check(Class::CompletionQueue, attr.send_cq)?;
            caller.check(Class::CompletionQueue, attr.recv_cq)?;
            attr.srq.map_or(Ok(()), |srqn| caller.check(Class::SharedReceives, srqn))?;
            caller.room(world)?;
            let [rq, sq, doorbell_record] = [attr.rq, attr.sq, attr.doorbell_record].map(|at| caller.place(at.addr));
            let qpn = world.card(card)?.nic.create_qp(QpAttr { rq, sq, doorbell_record, ..attr })?;
            Answer::Number(caller.made(Class::QueuePair, qpn))
        }
        Request::CreateGsiQp { .. } if caller.other.is_some() => {
            return Err(Errno::unsupported(
                "the connection manager of a card is that of the process that has it: programs at its socket have none",
            ));
        }
        Request::CreateGsiQp { attr } => Answer::Number(world.card(card)?.nic.create_gsi_qp(attr)?),
        Request::ModifyQp { qpn, modify } => {
            caller.check(Class::QueuePair, qpn)?;
            let now_ps = world.now_ps();
            world.nic_call(card, |nic, fx| nic.modify_qp(now_ps, qpn, &modify, fx))??;
            Answer::Done
        }
        Request::QueryQp { qpn } => {
            caller.check(Class::QueuePair, qpn)?;
            Answer::QueuePair(Box::new(world.card(card)?.nic.query_qp(qpn)?))
        }
        Request::DestroyQp { qpn } => {
            caller.check(Class::QueuePair, qpn)?;
            world.card(card)?.nic.destroy_qp(qpn)?;
            caller.gone(Class::QueuePair, qpn);
            Answer::Done
        }
        Request::AttachMulticast { qpn, gid } => {
            caller.check(Class::QueuePair, qpn)?;
            world.card(card)?.nic.attach_multicast(qpn, gid)?;
            Answer::Done
        }
        Request::DetachMulticast { qpn, gid } => {
            caller.check(Class::QueuePair, qpn)?;
            world.card(card)?.nic.detach_multicast(qpn, gid)?;
            Answer::Done
        }
        Request::CreateUmrKey { pd, max_entries } => {
            caller.check(Class::Domain, pd)?;
            caller.room(world)?;
            let key = world.card(card)?.nic.create_umr_mkey(pd, max_entries)?;
            Answer::Number(caller.made(Class::Key, key))
        }
        Request::CreateWindow { pd } => {
            caller.check(Class::Domain, pd)?;
            caller.room(world)?;
            let key = world.card(card)?.nic.create_window(pd)?;
            Answer::Number(caller.made(Class::Key, key))
        }
        Request::DestroyWindow { key } => {
            caller.check(Class::Key, key)?;
            let nic = &mut world.card(card)?.nic;
            // Bindings have changed the tag.
            nic.destroy_mkey(nic.mkey_of_index(key >> 8).unwrap_or(key))?;
            caller.gone(Class::Key, key);
            Answer::Done
        }
        Request::DestroyUmrKey { key } => {
            caller.check(Class::Key, key)?;
            world.card(card)?.nic.destroy_mkey(key)?;
            caller.gone(Class::Key, key);
            Answer::Done
        }
        Request::ResolveMac { gid } => Answer::Mac(info::mac_of(world, gid)?),
        Request::Devx { call, input, answer_bytes } => {
            let mut answer = vec![0; answer_bytes];
            let result = command::execute(world, caller, call, &input, &mut answer);
            Answer::Devx { answer, result }
        }
        Request::DestroyDevx { kind, number } => {
            if let Some(class) = kind.class() {
                caller.check(class, number)?;
            } else if caller.other.is_some() {
                return Err(Errno::invalid("this process has no such object"));
            }
            destroy(world, card, kind, number)?;
            if let Some(class) = kind.class() {
                caller.gone(class, number);
            }
            Answer::Done
        }
        Request::Ring { qpn, counter, pushed } => {
            caller.check(Class::QueuePair, qpn)?;
            if pushed {
                world.push_sq(card, qpn, counter)?
            } else {
                world.ring_sq(card, qpn, counter)?
            };
            Answer::Done
        }
        Request::Arm { cqn, index, solicited_only } => {
            caller.check(Class::CompletionQueue, cqn)?;
            let now_ps = world.now_ps();
            world.nic_call(card, |nic, effects| {
                if solicited_only {
                    nic.arm_cq_solicited(now_ps, cqn, index, effects);
                } else {
                    nic.arm_cq(now_ps, cqn, index, effects);
                }
            })?;
            Answer::Done
        }
        Request::Now => Answer::TimePs(world.now_ps()),
        Request::TakeEvents => {
            let process = caller.other.as_ref().map(|(number, _)| *number);
            Answer::Events(process.map_or_else(Vec::new, |process| events::take(world, process)))
        }
    })
}

fn destroy(world: &mut World, card: usize, kind: Kind, number: u32) -> Result<()> {
    if matches!(kind, Kind::Mkey) {
        world.explain_key_end(card, number);
    }
    let nic = &mut world.card(card)?.nic;
    match kind {
        Kind::Qp(_) => nic.destroy_qp(number),
        Kind::Cq => nic.destroy_cq(number),
        Kind::Mkey | Kind::Alias { .. } => nic.destroy_mkey(number),
        Kind::Pd => nic.dealloc_pd(number),
        // With the queue pair its table has gone.
        Kind::GroupKey(key) => nic.unmap_group_key(number, key).or(Ok(())),
        // The queue pair may have left by `ibv_detach_mcast`.
        Kind::Group(gid) if !nic.is_member(number, &gid) => Ok(()),
        Kind::Group(gid) => nic.detach_multicast(number, gid),
    }
    .map_err(Errno::from)
}
