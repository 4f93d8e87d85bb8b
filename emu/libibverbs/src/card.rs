//! Requests of the library to a card in this process, or in another one that has it.
//!
//! Each call is a [`Request`], which [`execute::execute`] carries out on the machine. In a process
//! with a machine that is a call; one that uses the cards of another process (`[attach]` of its description) sends it
//! there, where [`session`] carries it out. Memory of queues and buffers is the program's in either case: the card
//! reaches it where it is. What is not in [`Request`] is not to be had from another process;
//! [`MachineError::Elsewhere`](emu_machine::MachineError::Elsewhere) says so.

pub(crate) mod caller;
pub(crate) mod command;
pub(crate) mod events;
pub(crate) mod execute;
pub(crate) mod info;
pub(crate) mod refusal;
pub(crate) mod remote;
pub(crate) mod request;
pub(crate) mod session;

use emu_machine::FunctionId;
use emu_machine::nic::QpState;

use crate::errno::Result;
use crate::fork;
use crate::machine::{is_elsewhere, with_world};
use caller::Caller;
use request::{Answer, Request};

/// Has a request of a function's program carried out.
///
/// # Errors
/// What the card refuses; the process that has the card is gone.
pub(crate) fn call(id: FunctionId, request: Request) -> Result<Answer> {
    match emu_bridge::attached()? {
        None => with_world(|world| execute::execute(world, &mut Caller::here(id), request))?,
        Some(link) => remote::call(link, id, request),
    }
}

/// The same, where nothing comes back.
///
/// # Errors
/// As [`call`].
pub(crate) fn done(id: FunctionId, request: Request) -> Result<()> {
    call(id, request).map(drop)
}

/// Rings a send queue, once `store` has written its doorbell record. `pushed`: the last entry comes along.
///
/// # Errors
/// There is no machine.
pub(crate) fn ring(id: FunctionId, qpn: u32, counter: u16, pushed: bool, store: impl FnOnce()) -> Result<()> {
    if let Some(link) = emu_bridge::attached()? {
        store();
        return remote::send(link, id, Request::Ring { qpn, counter, pushed });
    }
    Ok(with_world(|world| {
        store();
        if pushed { world.push_sq(id.card, qpn, counter) } else { world.ring_sq(id.card, qpn, counter) }
    })??)
}

/// Arms a completion queue at a consumer index.
///
/// # Errors
/// There is no machine.
pub(crate) fn arm(id: FunctionId, cqn: u32, index: u32, solicited_only: bool) -> Result<()> {
    let request = Request::Arm { cqn, index, solicited_only };
    match emu_bridge::attached()? {
        None => done(id, request),
        Some(link) => remote::send(link, id, request),
    }
}

/// Stores a receive counter, which the card reads by itself.
///
/// # Errors
/// There is no machine.
pub(crate) fn store_receives(id: FunctionId, record: u64, store: impl FnOnce()) -> Result<()> {
    if is_elsewhere()? {
        remote::publish(store);
        return Ok(());
    }
    Ok(with_world(|world| {
        store();
        world.doorbell_record_stored(id, record);
    })?)
}

/// Loads from, or stores to, memory that the card accesses as well.
///
/// # Errors
/// There is no machine.
pub(crate) fn access_shared<R>(f: impl FnOnce() -> R) -> Result<R> {
    if is_elsewhere()? {
        return Ok(remote::publish(f));
    }
    Ok(with_world(|_| f())?)
}

/// The state of a queue pair. Of one at another process's card it is what this process has last made of it, `last`: who
/// posts would wait for an answer otherwise, and a queue pair that has failed takes work requests like one that has
/// not.
///
/// # Errors
/// No such queue pair.
pub(crate) fn queue_pair_state(id: FunctionId, qpn: u32, last: impl FnOnce() -> QpState) -> Result<QpState> {
    if is_elsewhere()? {
        return Ok(last());
    }
    crate::machine::on_nic(id.card, |nic| nic.query_qp(qpn)).map(|query| query.state)
}

/// Virtual time of the calling thread's machine, in picoseconds.
#[must_use]
pub fn now_ps() -> u64 {
    if fork::is_child() {
        return 0;
    }
    match emu_bridge::attached() {
        Ok(Some(link)) => remote::now_ps(link),
        _ => with_world(|world| world.now_ps()).unwrap_or(0),
    }
}
