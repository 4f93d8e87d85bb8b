//! Extended completion queues (rdma-core since 13): completions are read field by field, between `ibv_start_poll` and
//! `ibv_end_poll`, by one thread at a time.

use core::ffi::{c_int, c_uint};
use std::sync::{Arc, PoisonError};
use std::thread;

use verbs_sys::*;

use crate::card;
use crate::cq::{self, Completion, Cq};
use crate::device::Context;
use crate::errno::{Errno, Result, input, pointer, status};
use crate::handle;

/// What a queue can be asked for; everything else of a completion is not emulated.
const READABLE: u32 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let made = pointer("ibv_create_cq_ex", || {
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "cq_attr") }?;
        let others = attr.wc_flags & !u64::from(READABLE);
        if others != 0 {
            return Err(Errno::unsupported(format!(
                "wc_flags {others:#x}: VLAN tags, flow tags, tag matching and the time of day of completions are not \
                 emulated; {READABLE:#x} are"
            )));
        }
        if attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
            return Err(Errno::unsupported(format!(
                "comp_mask {:#x}: of it flags ({IBV_CQ_INIT_ATTR_MASK_FLAGS:#x}) are emulated",
                attr.comp_mask
            )));
        }
        let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
        if flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(Errno::unsupported(format!(
                "flags {flags:#x}: of them IBV_CREATE_CQ_ATTR_SINGLE_THREADED \
                 ({IBV_CREATE_CQ_ATTR_SINGLE_THREADED:#x}) is emulated"
            )));
        }
        Ok(handle::publish(&cq::create(context, attr, operations())?))
    });
    made.cast()
}

/// The operations of an extended queue. Slots of what cannot be asked for stay empty, as in the real library.
fn operations() -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        ..Default::default()
    }
}

fn queue(cq: *mut ibv_cq_ex) -> Result<Arc<Cq>> {
    Ok(handle::get::<Cq>(cq.cast())?)
}

/// A call that polls: 0, ENOENT where there is no completion, which is no failure, or an errno value.
fn polled(call: &'static str, f: impl FnOnce() -> Result<bool>) -> c_int {
    let mut found = true;
    let failed = status(call, || {
        found = f()?;
        Ok(())
    });
    if failed == 0 && !found { libc::ENOENT } else { failed }
}

/// Takes the next completion, if there is one, for the thread that polls.
fn step(queue: &Cq) -> Result<bool> {
    let mut next = None;
    queue.poll(1, |completion| next = Some(completion))?;
    let Some(completion): Option<Completion> = next else { return Ok(false) };
    let public = queue.public.get();
    // SAFETY: fields of the structure, which lives as long as the queue. By the interface the program reads them
    // between the start and the end of polling alone, in the thread that polls, which is this one.
    unsafe {
        (&raw mut (*public).status).write(completion.wc.status);
        (&raw mut (*public).wr_id).write(completion.wc.wr_id);
    }
    *queue.polling.lock() = Some((thread::current().id(), completion));
    Ok(true)
}

fn release(queue: &Cq) {
    *queue.polling.lock() = None;
    queue.polling.ended.notify_one();
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    polled("ibv_start_poll", || {
        let queue = queue(cq)?;
        // SAFETY: null, or initialised as the manual page asks.
        let mask = unsafe { input(attr, "attr") }?.comp_mask;
        if mask != 0 {
            return Err(Errno::invalid(format!("comp_mask {mask:#x}: no bit is known")));
        }
        let own = thread::current().id();
        let mut state = queue.polling.lock();
        loop {
            match &*state {
                None => break,
                Some((thread, _)) if *thread == own => {
                    return Err(Errno::invalid("this thread polls the queue already: call ibv_end_poll first"));
                }
                Some(_) => state = queue.polling.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
        *state = Some((own, Completion::default()));
        drop(state);
        let found = step(&queue);
        if !matches!(found, Ok(true)) {
            release(&queue);
        }
        found
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    polled("ibv_next_poll", || {
        let queue = queue(cq)?;
        current(&queue)?;
        step(&queue)
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    status("ibv_end_poll", || {
        let queue = queue(cq)?;
        current(&queue)?;
        release(&queue);
        Ok(())
    });
}

/// The completion that this thread stands at.
fn current(queue: &Cq) -> Result<Completion> {
    match &*queue.polling.lock() {
        Some((thread, completion)) if *thread == thread::current().id() => Ok(*completion),
        _ => Err(Errno::invalid("this thread does not poll the queue: call ibv_start_poll first")),
    }
}

/// A field of the completion that this thread stands at; 0 where it stands at none.
fn read<T: Default>(call: &'static str, cq: *mut ibv_cq_ex, field: impl FnOnce(&ibv_wc) -> T) -> T {
    read_whole(call, cq, |completion| field(&completion.wc))
}

fn read_whole<T: Default>(call: &'static str, cq: *mut ibv_cq_ex, field: impl FnOnce(&Completion) -> T) -> T {
    let mut value = T::default();
    status(call, || {
        value = field(&current(&*queue(cq)?)?);
        Ok(())
    });
    value
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    read("ibv_wc_read_opcode", cq, |wc| wc.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    read("ibv_wc_read_vendor_err", cq, |wc| wc.vendor_err)
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    read("ibv_wc_read_byte_len", cq, |wc| wc.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: both members of the union are a number of 32 bits.
    read("ibv_wc_read_imm_data", cq, |wc| unsafe { wc.__bindgen_anon_1.imm_data })
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    read("ibv_wc_read_qp_num", cq, |wc| wc.qp_num)
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    read("ibv_wc_read_src_qp", cq, |wc| wc.src_qp)
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    read("ibv_wc_read_wc_flags", cq, |wc| wc.wc_flags)
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    read("ibv_wc_read_slid", cq, |wc| wc.slid.into())
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    read("ibv_wc_read_sl", cq, |wc| wc.sl)
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 {
    read("ibv_wc_read_dlid_path_bits", cq, |wc| wc.dlid_path_bits)
}

/// Ticks of the card's clock, which are nanoseconds of virtual time.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    read_whole("ibv_wc_read_completion_ts", cq, |completion| completion.ticks)
}

pub(crate) unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    status("ibv_query_rt_values_ex", || {
        handle::get::<Context>(context)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let values = unsafe { values.as_mut() }.ok_or_else(|| Errno::invalid("values is null"))?;
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // Ticks, all of them in this member, as mlx5's provider gives them.
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: (card::now_ps() / 1_000) as i64 };
        }
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        Ok(())
    })
}
