//! Changes of completion queues: their size, and when they raise events.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use verbs_sys::*;

use crate::card;
use crate::card::request::Request;
use crate::cq::{Cq, Ring, log_depth};
use crate::errno::{Errno, Result, input, status};
use crate::failures;
use crate::handle;
use crate::machine::{self, begin_command};

/// Time that the command takes, and most steps of the machine in it.
const COMMAND_PS: u64 = 20_000_000;
const COMMAND_STEPS: usize = 1000;

/// Gives a queue another ring, with the entries that it has. A thread that polls waits meanwhile.
fn resize(queue: &Arc<Cq>, entries: u32) -> Result<()> {
    let log_depth = log_depth(entries)?;
    let id = queue.context.id();
    // Work that was posted before completes during the command, as on a card: then it is known whether there is room.
    let end_ps = card::now_ps() + COMMAND_PS;
    for _ in 0..COMMAND_STEPS {
        if card::now_ps() >= end_ps || !machine::relax() {
            break;
        }
    }
    let mut inner = queue.lock();
    let old = queue.entries(&inner, inner.index, queue.depth(&inner))?;
    if old.len() > 1 << log_depth {
        return Err(Errno::invalid(format!("the queue has {} entries, more than {entries}: poll some", old.len())));
    }
    let ring = Ring::new(id, log_depth)?;
    begin_command(id)?;
    failures::watch(&queue.context, ring.addr(), queue);
    card::done(id, Request::ResizeCq { cqn: queue.number, ring: ring.addr(), log_depth })?;
    // Nothing comes into the old ring from here on: what has come since it was read above is there, too.
    let old = queue.entries(&inner, inner.index, queue.depth(&inner))?;
    card::access_shared(|| ring.put(inner.index, &old))?;
    inner.later = Some(ring);
    // SAFETY: a field of the structure, which lives as long as the queue and is aligned. This library accesses it as an
    // atomic alone from when the queue is published on, and programs read it.
    let shown = unsafe { AtomicI32::from_ptr(&raw mut (*queue.public.get()).cqe) };
    shown.store((1 << log_depth) - 1, Ordering::Relaxed);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status("ibv_resize_cq", || resize(&handle::get::<Cq>(cq)?, u32::try_from(cqe).unwrap_or(0)))
}

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    status("ibv_modify_cq", || {
        let queue = handle::get::<Cq>(cq)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "attr") }?;
        if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
            return Err(Errno::invalid(format!(
                "attr_mask {:#x}: moderation ({IBV_CQ_ATTR_MODERATE:#x}) can change",
                attr.attr_mask
            )));
        }
        let ibv_moderate_cq { cq_count: count, cq_period: period_us } = attr.moderate;
        card::done(queue.context.id(), Request::ModerateCq { cqn: queue.number, count, period_us })
    })
}
