//! Changes of completion queues: their size, and when they raise events.

use core::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use verbs_sys::*;

use crate::card;
use crate::card::request::Request;
use crate::cq::{Cq, Ring, log_depth};
use crate::errno::{Errno, Result, input, status};
use crate::failures;
use crate::handle;
use crate::machine::{self, begin_command};

/// Time that the command takes.
const COMMAND_PS: u64 = 20_000_000;

impl Cq {
    /// Gives the queue another ring, with the entries that it has. A thread that polls waits meanwhile.
    fn resize(&self, entries: u32) -> Result<u8> {
        let log_depth = log_depth(entries)?;
        let id = self.context.id();
        // The command takes a card some microseconds: what was posted before it has completed, mostly.
        let end_ps = card::now_ps() + COMMAND_PS;
        while card::now_ps() < end_ps && machine::relax() {}
        let mut inner = self.lock();
        let old = self.entries(&inner, inner.index, self.depth(&inner))?;
        if old.len() > 1 << log_depth {
            return Err(Errno::invalid(format!("the queue has {} entries, more than {entries}: poll some", old.len())));
        }
        let ring = Ring::new(id, log_depth)?;
        begin_command(id)?;
        let request = Request::ResizeCq { cqn: self.number, ring: ring.addr(), log_depth };
        card::done(id, request)?;
        // Nothing comes into the old ring from here on: what has come since it was read above is there, too.
        let old = self.entries(&inner, inner.index, self.depth(&inner))?;
        card::access_shared(|| ring.put(inner.index, &old))?;
        inner.later = Some(ring);
        Ok(log_depth)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status("ibv_resize_cq", || {
        let queue = handle::get::<Cq>(cq)?;
        let log_depth = queue.resize(u32::try_from(cqe).unwrap_or(0))?;
        // SAFETY: a field of the structure, which lives as long as the queue and is aligned. This library accesses it
        // as an atomic alone from when the queue is published on, and programs read it.
        let shown = unsafe { AtomicI32::from_ptr(&raw mut (*queue.public.get()).cqe) };
        shown.store((1 << log_depth) - 1, Ordering::Relaxed);
        failures::watch(&queue.context, queue.ring_addr(), &queue);
        Ok(())
    })
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
