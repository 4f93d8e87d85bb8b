//! Shared receive queues: receives that several queue pairs take from one queue.
//!
//! Entries form a linked list, as mlx5's provider keeps it: those that are free follow one another from `head` to
//! `tail`, and what completes is put behind `tail`. The last free entry is never posted, so that the card always finds
//! the one behind the last posted.

use core::ffi::c_int;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_machine::nic::ReceiveOrder;
use verbs_sys::*;

use crate::acknowledged::Acknowledged;
use crate::card;
use crate::card::request::{NewSrq, Request};
use crate::device::{Context, MAX_SGE, MAX_SHARED_RECEIVES};
use crate::errno::{Errno, Result, input, out, pointer, status};
use crate::failures;
use crate::handle::{self, CStruct, Object};
use crate::machine::begin_command;
use crate::memory::QueueBuffer;
use crate::pd::Pd;
use crate::segments::{SEGMENT_BYTES, receive_entry, segments};

/// Shortest entry: the link, and one segment.
const LEAST_STRIDE: u32 = 2 * SEGMENT_BYTES as u32;
/// Where an entry names the next one, as 16 bits.
const NEXT: usize = 2;

pub(crate) struct Srq {
    public: CStruct<ibv_srq>,
    pub(crate) number: u32,
    pub(crate) pd: Arc<Pd>,
    max_sge: u32,
    log_depth: u8,
    log_stride: u8,
    /// The ring, and behind it the doorbell record.
    buffer: QueueBuffer,
    list: Mutex<List>,
    events: Acknowledged,
}

struct List {
    /// The free entries: the first, and the last.
    head: u16,
    tail: u16,
    /// Receives posted, modulo 2^16.
    posted: u16,
    /// Request ids, by entry.
    ids: Vec<u64>,
}

impl Object for Srq {
    const KIND: &'static str = "shared receive queue";
    type C = ibv_srq;
    fn c_address(&self) -> *mut ibv_srq {
        self.public.get()
    }
}

impl failures::Source for Srq {
    fn take(&self, event: &mut ibv_async_event) -> bool {
        event.element.srq = self.c_address();
        self.events.take()
    }
}

impl Srq {
    fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acknowledge_event(&self) -> Result<()> {
        // SAFETY: a field of the structure, which lives as long as `self` and is aligned. This library accesses it as
        // an atomic alone, and programs read it.
        let shown = unsafe { AtomicU32::from_ptr(&raw mut (*self.public.get()).events_completed) };
        self.events.acknowledge(1, shown)
    }

    fn receives(&self) -> u32 {
        (1 << self.log_depth) - 1
    }

    fn record_offset(&self) -> usize {
        1 << self.log_depth << self.log_stride
    }

    fn link(&self, entry: u16) -> usize {
        (usize::from(entry) << self.log_stride) + NEXT
    }

    fn next(&self, entry: u16) -> u16 {
        u16::from_be_bytes(self.buffer.read(self.link(entry)))
    }

    /// The request id of the receive at an entry, which is free from now on.
    pub(crate) fn retire(&self, entry: u16) -> u64 {
        let mut list = self.lock();
        let Some(&id) = list.ids.get(usize::from(entry)) else { return 0 };
        // The card reads the link of the last free entry only after that has been posted.
        self.buffer.write(self.link(list.tail), &entry.to_be_bytes());
        list.tail = entry;
        id
    }

    /// Posts one receive into the list, without the doorbell record.
    ///
    /// # Safety
    /// The request's scatter list must be readable.
    unsafe fn post(&self, list: &mut List, request: &ibv_recv_wr) -> Result<()> {
        // SAFETY: as this function's.
        let scatter = unsafe { segments(request.sg_list, request.num_sge, self.max_sge) }?;
        if list.head == list.tail {
            let receives = self.receives();
            return Err(Errno::new(libc::ENOMEM, format!("all {receives} shared receives are in use: poll for some")));
        }
        let entry = list.head;
        list.head = self.next(entry);
        let bytes = receive_entry(scatter, (1 << self.log_stride) - SEGMENT_BYTES);
        self.buffer.write((usize::from(entry) << self.log_stride) + SEGMENT_BYTES, &bytes);
        list.ids[usize::from(entry)] = request.wr_id;
        list.posted = list.posted.wrapping_add(1);
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer("ibv_create_srq", || {
        let pd = handle::get::<Pd>(pd)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let init = unsafe { init_attr.as_mut() }.ok_or_else(|| Errno::invalid("srq_init_attr is null"))?;
        let srq = create(pd, init.srq_context, &mut init.attr)?;
        Ok(handle::publish(&srq))
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init_attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer("ibv_create_srq_ex", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let init = unsafe { init_attr.as_mut() }.ok_or_else(|| Errno::invalid("srq_init_attr_ex is null"))?;
        let given = |bit: u32| init.comp_mask & bit != 0;
        let kind = if given(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
        if kind != IBV_SRQT_BASIC {
            return Err(Errno::unsupported(format!(
                "shared receive queue type {kind}: basic ones ({IBV_SRQT_BASIC}) are emulated, those of XRC and tag \
                 matching are not"
            )));
        }
        if !given(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Errno::invalid("comp_mask of srq_init_attr_ex does not name a protection domain"));
        }
        let pd = handle::get::<Pd>(init.pd)?;
        if !Arc::ptr_eq(&pd.context, &context) {
            return Err(Errno::invalid("the protection domain belongs to another device context"));
        }
        let srq = create(pd, init.srq_context, &mut init.attr)?;
        Ok(handle::publish(&srq))
    })
}

/// Makes a shared receive queue, without publishing it.
fn create(pd: Arc<Pd>, srq_context: *mut core::ffi::c_void, attr: &mut ibv_srq_attr) -> Result<Arc<Srq>> {
    for (name, value, limit) in [("max_wr", attr.max_wr, MAX_SHARED_RECEIVES), ("max_sge", attr.max_sge, MAX_SGE)] {
        if value > limit {
            return Err(Errno::invalid(format!("{name} is {value}, but may be at most {limit}")));
        }
    }
    let depth = (attr.max_wr + 1).next_power_of_two();
    let stride = ((attr.max_sge + 1) * SEGMENT_BYTES as u32).max(LEAST_STRIDE).next_power_of_two();
    let (log_depth, log_stride) = (depth.trailing_zeros() as u8, stride.trailing_zeros() as u8);
    let id = pd.context.id();
    let ring_bytes = 1_usize << log_depth << log_stride;
    let buffer = QueueBuffer::new(id, ring_bytes + 64)?;
    for entry in 0..depth as usize {
        let next = ((entry + 1) & (depth as usize - 1)) as u16;
        buffer.write((entry << log_stride) + NEXT, &next.to_be_bytes());
    }
    let (ring, record) = (buffer.place(0).addr, buffer.place(ring_bytes).addr);
    begin_command(id)?;
    let new = NewSrq { pd: pd.number, ring, log_depth, log_stride, record, order: ReceiveOrder::List };
    let number = card::call(id, Request::CreateSrq(new))?.number()?;
    (attr.max_wr, attr.max_sge) = (depth - 1, stride / SEGMENT_BYTES as u32 - 1);
    let public = ibv_srq {
        context: pd.context.c_address(),
        srq_context,
        pd: pd.c_address(),
        handle: number,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let list = List { head: 0, tail: (depth - 1) as u16, posted: 0, ids: vec![0; depth as usize] };
    let srq = Arc::new(Srq {
        public: CStruct::new(public),
        number,
        pd,
        max_sge: attr.max_sge,
        log_depth,
        log_stride,
        buffer,
        list: Mutex::new(list),
        events: Acknowledged::default(),
    });
    failures::watch(srq.context(), srq.buffer.addr(), &srq);
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, attr_mask: c_int) -> c_int {
    status("ibv_modify_srq", || {
        let srq = handle::get::<Srq>(srq)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "srq_attr") }?;
        let mask = attr_mask.cast_unsigned();
        if mask & !IBV_SRQ_LIMIT != 0 {
            return Err(Errno::invalid(format!(
                "srq_attr_mask {mask:#x}: of a queue of this card the limit ({IBV_SRQ_LIMIT:#x}) can change, and its \
                 size cannot"
            )));
        }
        if mask & IBV_SRQ_LIMIT == 0 {
            return Ok(());
        }
        if attr.srq_limit > srq.receives() {
            let (limit, receives) = (attr.srq_limit, srq.receives());
            return Err(Errno::invalid(format!("srq_limit is {limit}, but the queue holds {receives} receives")));
        }
        card::done(srq.context().id(), Request::ArmSrq { srqn: srq.number, limit: attr.srq_limit as u16 })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    status("ibv_query_srq", || {
        let srq = handle::get::<Srq>(srq)?;
        let srq_limit = card::call(srq.context().id(), Request::SrqLimit { srqn: srq.number })?.number()?;
        let answer = ibv_srq_attr { max_wr: srq.receives(), max_sge: srq.max_sge, srq_limit };
        // SAFETY: the manual page asks for a writable structure.
        unsafe { out(attr, "srq_attr") }?.write(answer);
        Ok(())
    })
}

/// Waits until the program has acknowledged the events of the queue that it has taken.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    const CALL: &str = "ibv_destroy_srq";
    status(CALL, || {
        let shared = handle::get::<Srq>(srq)?;
        begin_command(shared.context().id())?;
        card::done(shared.context().id(), Request::DestroySrq { srqn: shared.number })?;
        shared.events.close(CALL, &format!("shared receive queue {:#x} (ibv_ack_async_event)", shared.number));
        handle::retire::<Srq>(srq)?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    status("ibv_get_srq_num", || {
        let srq = handle::get::<Srq>(srq)?;
        // SAFETY: the manual page asks for a writable number.
        unsafe { out(srq_num, "srq_num") }?.write(srq.number);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = wr;
    let result = status("ibv_post_srq_recv", || {
        let srq = handle::get::<Srq>(srq)?;
        let mut list = srq.lock();
        let before = list.posted;
        let mut posted = Ok(());
        // SAFETY: the manual page asks for a well-formed list; null ends it.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above, with everything the request points at.
            posted = unsafe { srq.post(&mut list, request) };
            if posted.is_err() {
                break;
            }
            next = request.next;
        }
        if list.posted != before {
            // The record is all that the card reads: a receive queue has no doorbell.
            let (record, counter) = (srq.record_offset(), u32::from(list.posted).to_be_bytes());
            let addr = srq.buffer.addr() + record as u64;
            card::store_receives(srq.context().id(), addr, || srq.buffer.write(record, &counter))?;
        }
        posted
    });
    if result != 0 && !bad_wr.is_null() {
        // SAFETY: not null, and writable as the manual page asks.
        unsafe { bad_wr.write(next) };
    }
    result
}
