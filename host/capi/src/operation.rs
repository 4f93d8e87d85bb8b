//! Broadcast and Allgather, posted by one call.

use std::ffi::{c_int, c_void};

use crate::call::Call;
use crate::communicator::flexcast_comm;
use crate::fault::call;
use crate::request::{begin, flexcast_request};
use crate::status::flexcast_status;

/// `bytes` bytes of `buffer` from rank `root` to all ranks: read on the root, written elsewhere.
///
/// For this and the other operations: all ranks call the same operations of a communicator in the same order with the
/// same arguments. The function returns at once. Until the request is over the memory stays allocated, is registered,
/// and is touched by nobody else. It may be freed after flexcast_buffer_invalidate().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_broadcast(
    comm: *mut flexcast_comm,
    buffer: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |_| Call::broadcast(buffer, bytes, root);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// `bytes` bytes of `send` from every rank to every rank: `receive` has size times as many, in the order of ranks.
/// `send` may be FLEXCAST_IN_PLACE: then the own bytes are in their place in `receive` already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_allgather(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| Call::allgather(place, send, receive, bytes);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// `counts[r]` bytes from every rank r to every rank: `receive` has their sum, one rank's after another's. `counts` has
/// an entry for each rank, is alike on all, and is not used after the call. `send` has `counts[rank]` bytes, or is
/// FLEXCAST_IN_PLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_allgatherv(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    counts: *const usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| {
        // SAFETY: null, or an entry for each rank by the header.
        unsafe { Call::allgatherv(place, send, receive, counts, None) }
    };
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// `counts[r]` bytes from every rank r to every rank, to `displacements[r]` bytes behind the start of `receive`, which
/// has `receive_bytes`. Blocks must not overlap; what belongs to none stays as it is. Both lists have an entry for each
/// rank, are alike on all, and are not used after the call. `send` as for flexcast_allgatherv().
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
    let make = |place| {
        // SAFETY: null, or an entry for each rank by the header.
        unsafe { Call::allgatherv(place, send, receive, counts, Some((receive_bytes, displacements))) }
    };
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}
