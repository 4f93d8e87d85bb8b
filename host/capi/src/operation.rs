//! Collective operations on memory of the program.

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use flexcast_rust::{Buffer, Communicator, Failed, Request};

use crate::bootstrap::count;
use crate::communicator::{Group, flexcast_comm};
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::{Out, out};
use crate::request::{Operation, flexcast_request};
use crate::status::flexcast_status::{self, *};

/// Where FLEXCAST_IN_PLACE points; see the header.
pub(crate) const IN_PLACE: usize = usize::MAX;

/// Memory that an operation reads or writes.
pub(crate) struct Memory {
    pub(crate) start: *const c_void,
    pub(crate) bytes: usize,
}

pub(crate) type Posted = Result<Request, Box<Failed>>;

/// Begins an operation on memory of the program.
///
/// # Safety
/// `send` is readable, `receive` writable memory of the program, for as long as the header says.
pub(crate) unsafe fn begin(
    group: &Rc<Group>,
    send: Option<Memory>,
    receive: Memory,
    post: impl FnOnce(&Communicator, Option<Buffer>, Buffer) -> Posted,
) -> Result<Rc<Operation>, Fault> {
    let card = group.card();
    let mut claims = vec![card.claim(receive.start, receive.bytes, true, "receive")?];
    let claim_and_post = || {
        if let Some(send) = &send {
            claims.push(card.claim(send.start, send.bytes, false, "send")?);
        }
        group.with(|communicator| {
            let memory = card.memory();
            // SAFETY: the caller vouches for the memory; no other operation writes it, as `claim` has seen.
            let receive = unsafe { memory.buffer(receive.start.cast_mut().cast(), receive.bytes) }?;
            // SAFETY: the same, and it is given as a send buffer.
            let send = send.map(|send| unsafe { memory.source(send.start.cast(), send.bytes) }).transpose()?;
            post(communicator, send, receive).map_err(|refused| Fault::from(&refused.error))
        })
    };
    match claim_and_post() {
        Ok(request) => Ok(Operation::new(Rc::clone(group), request, claims)),
        Err(fault) => {
            card.release(&claims);
            Err(fault)
        }
    }
}

/// `bytes` bytes of `buffer` from rank `root` to all ranks: read on the root, written elsewhere.
///
/// For this and the other operations: all ranks call the same operations of a communicator in the same order with the same arguments.
/// The function returns at once. Until the request is over the memory stays allocated, is registered, and is touched by nobody else. It
/// may be freed after flexcast_buffer_invalidate().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_broadcast(
    comm: *mut flexcast_comm,
    buffer: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(request, "request") }?;
        let group = handle::get::<Group>(comm)?;
        let root = count(root, "root")?;
        let memory = Memory { start: buffer, bytes };
        // SAFETY: as the header asks of the caller.
        let operation = unsafe { begin(&group, None, memory, |group, _, buffer| group.broadcast(buffer, root)) }?;
        place.put(handle::insert(operation)?);
        Ok(())
    })
}

/// `bytes` bytes of `send` from every rank to every rank: `receive` has size times as many, in the order of ranks. `send` may be
/// FLEXCAST_IN_PLACE: then the own bytes are in their place in `receive` already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_allgather(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(request, "request") }?;
        let group = handle::get::<Group>(comm)?;
        let ranks = group.with(|communicator| Ok(communicator.size()))?;
        let Some(all) = bytes.checked_mul(ranks as usize) else {
            let text = format!("allgather: {bytes} bytes from {ranks} ranks are more than the address space");
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        };
        // SAFETY: as the header asks of the caller.
        unsafe {
            gather(
                &group,
                send,
                bytes,
                Memory { start: receive, bytes: all },
                &place,
                |group, send, receive| match send {
                    Some(send) => group.allgather(send, receive),
                    None => group.allgather_in_place(receive),
                },
            )
        }
    })
}

/// `counts[r]` bytes from every rank r to every rank: `receive` has their sum, one rank's after another's. `counts` has an entry for each
/// rank, is alike on all, and is not used after the call. `send` has `counts[rank]` bytes, or is FLEXCAST_IN_PLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_allgatherv(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    counts: *const usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { gather_blocks(comm, send, receive, None, counts, request) })
}

/// `counts[r]` bytes from every rank r to every rank, to `displacements[r]` bytes behind the start of `receive`, which has `receive_bytes`.
/// Blocks must not overlap; what belongs to none stays as it is. Both lists have an entry for each rank, are alike on all, and are not used
/// after the call. `send` as for flexcast_allgatherv().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_allgatherv_displaced(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    receive_bytes: usize,
    counts: *const usize,
    displacements: *const usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { gather_blocks(comm, send, receive, Some((receive_bytes, displacements)), counts, request) })
}

/// Begins an Allgather of blocks of `counts`: one after another, or in a receive buffer of so many bytes where the list says.
///
/// # Safety
/// As the header says of flexcast_allgatherv() and flexcast_allgatherv_displaced().
unsafe fn gather_blocks(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    displaced: Option<(usize, *const usize)>,
    counts: *const usize,
    request: *mut *mut flexcast_request,
) -> Result<(), Fault> {
    // SAFETY: null or a place for a handle.
    let place = unsafe { out(request, "request") }?;
    let group = handle::get::<Group>(comm)?;
    // SAFETY: null, or an entry for each rank by the header.
    let (own, counts) = unsafe { entries(&group, counts, "counts") }?;
    let (bytes, displacements) = match displaced {
        // SAFETY: the same.
        Some((bytes, list)) => (bytes, Some(unsafe { entries(&group, list, "displacements") }?.1)),
        None => {
            let all = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
            let Some(all) = all.and_then(|all| usize::try_from(all).ok()) else {
                let text = "allgatherv: the counts are more than the address space";
                return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
            };
            (all, None)
        }
    };
    // SAFETY: as the header asks of the caller.
    unsafe {
        gather(&group, send, own, Memory { start: receive, bytes }, &place, |group, send, receive| {
            match (send, &displacements) {
                (Some(send), None) => group.allgatherv(send, receive, &counts),
                (None, None) => group.allgatherv_in_place(receive, &counts),
                (Some(send), Some(at)) => group.allgatherv_displs(send, receive, &counts, at),
                (None, Some(at)) => group.allgatherv_displs_in_place(receive, &counts, at),
            }
        })
    }
}

/// Begins an Allgather of any kind with a contribution of `own` bytes, and gives out its handle. `post` has no send buffer if that is in
/// place.
///
/// # Safety
/// See [`begin`].
unsafe fn gather(
    group: &Rc<Group>,
    send: *const c_void,
    own: usize,
    receive: Memory,
    place: &Out<*mut flexcast_request>,
    post: impl FnOnce(&Communicator, Option<Buffer>, Buffer) -> Posted,
) -> Result<(), Fault> {
    let send = (send.addr() != IN_PLACE).then_some(Memory { start: send, bytes: own });
    // SAFETY: by this function's contract.
    let operation = unsafe { begin(group, send, receive, post) }?;
    place.put(handle::insert(operation)?);
    Ok(())
}

/// A list with an entry for each rank: that of the own rank, and all.
///
/// # Safety
/// Null, or readable for as many entries as the group has ranks.
pub(crate) unsafe fn entries(group: &Group, list: *const usize, what: &str) -> Result<(usize, Vec<u64>), Fault> {
    if list.is_null() {
        return Err(Fault::null(what));
    }
    let (own, ranks) = group.with(|communicator| Ok((communicator.rank() as usize, communicator.size() as usize)))?;
    // SAFETY: not null, and an entry for each rank by this function's contract.
    let all: Vec<usize> = (0..ranks).map(|rank| unsafe { list.add(rank).read_unaligned() }).collect();
    Ok((all[own], all.into_iter().map(|entry| entry as u64).collect()))
}
