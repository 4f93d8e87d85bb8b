//! Collectives by messages between pairs of ranks, posted by one call.

use std::ffi::{c_int, c_void};

use crate::call::Call;
use crate::communicator::flexcast_comm;
use crate::fault::call;
use crate::reduction::reduction;
use crate::request::{begin, begin_supported, flexcast_request};
use crate::status::flexcast_status;

/// Nobody's request is over before all ranks have called this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_barrier(
    comm: *mut flexcast_comm,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |_| Ok(Call::barrier());
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The reduction of `count` elements of every rank, element by element, to all ranks: from `send` to `receive`. `send`
/// may be FLEXCAST_IN_PLACE: then `receive` has the contribution.
///
/// `data_type` and `op`, for this and the other reductions: FLEXCAST_FLOAT and the like, FLEXCAST_SUM and the like; an
/// operator that is not defined for a type is refused. Results do not depend on when ranks call; see `reproducible` in
/// flexcast_config.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_allreduce(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: u32,
    op: u32,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |_| Call::allreduce(send, receive, count, reduction(data_type, op)?);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The same as flexcast_allreduce() for contributions of which much is zero: blocks of 1 KiB (another length: by
/// flexcast_init()) that are zero are neither sent nor summed, and nobody has to say where they are. A block is zero if
/// all of its bits are, so that -0.0 and NaN travel. `op` is FLEXCAST_SUM, _MIN, _MAX, _LOGICAL_OR, _LOGICAL_XOR,
/// _BIT_OR or _BIT_XOR; for minimum and maximum a block that is zero is one that the rank does not have. Carried where
/// flexcast_allreduce() is. Over a network interface, sums whose arrays are short or have had few zeros may go as
/// flexcast_allreduce() makes them, where that is expected to be faster: there -0.0 of one rank and 0.0 of the others
/// are 0.0. `send` may lie in memory that can only be read, and neither pointer need be aligned to its elements.
///
/// With `reproducible` in flexcast_config blocks are added in the order of ranks; otherwise in the order in which they
/// come, so that sums of floating-point numbers of more than two ranks may differ from call to call in their last bits.
/// After a failure `receive` is part old and part new.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_sparse_allreduce(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: u32,
    op: u32,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |_| Call::sparse_allreduce((send, receive), count, reduction(data_type, op)?, (0, 0));
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin_supported(comm, request, make) })
}

/// The same as flexcast_allreduce(), to rank `root` alone. Elsewhere `receive` is not used; `send` may be
/// FLEXCAST_IN_PLACE on the root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_reduce(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: u32,
    op: u32,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| Call::reduce(place, send, receive, count, reduction(data_type, op)?, root);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The reduction of size times `count` elements of every rank, of which each rank gets `count`: the r-th part goes to
/// rank r. `send` may be FLEXCAST_IN_PLACE: then `receive` has the contribution, and its beginning gets the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_reduce_scatter_block(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: u32,
    op: u32,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| Call::reduce_scatter_block(place, send, receive, count, reduction(data_type, op)?);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The same with `counts[r]` elements for rank r. `counts` has an entry for each rank, is alike on all, and is not used
/// after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_reduce_scatter(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    counts: *const usize,
    data_type: u32,
    op: u32,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| {
        let reduction = reduction(data_type, op)?;
        // SAFETY: null, or an entry for each rank by the header.
        unsafe { Call::reduce_scatter(place, send, receive, counts, reduction) }
    };
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// `bytes` bytes of every rank to every rank: the r-th part of `send` to rank r, where it becomes the part of this rank
/// in `receive`. Both have size times `bytes`. `send` may be FLEXCAST_IN_PLACE: then `receive` has what is sent, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_alltoall(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| Call::alltoall(place, send, receive, bytes);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The same with blocks of any length, in bytes, at any place: `send_counts[r]` bytes at `send_displacements[r]` behind
/// the start of `send` to rank r, and `receive_counts[r]` bytes from rank r to `receive_displacements[r]`. The two
/// ranks of a block give one length. Lists have an entry for each rank and are not used after the call; those of `send`
/// are not used at all if that is FLEXCAST_IN_PLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_alltoallv(
    comm: *mut flexcast_comm,
    send: *const c_void,
    send_counts: *const usize,
    send_displacements: *const usize,
    receive: *mut c_void,
    receive_counts: *const usize,
    receive_displacements: *const usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| {
        let (from, to) = ((send, send_counts, send_displacements), (receive, receive_counts, receive_displacements));
        // SAFETY: null, or an entry for each rank by the header.
        unsafe { Call::alltoallv(place, from, to) }
    };
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// `bytes` bytes of `send` of every rank to rank `root`, in the order of ranks: its `receive` has size times as many.
/// Elsewhere `receive` is not used. On the root `send` may be FLEXCAST_IN_PLACE: then its block is in its place in
/// `receive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_gather(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| Call::gather(place, send, receive, bytes, root);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The same with `bytes` bytes of this rank, `counts[r]` of rank r, and `displacements[r]` bytes behind the start of
/// the root's `receive`. The lists are the root's, in bytes, with an entry for each rank; elsewhere they and `receive`
/// are not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_gatherv(
    comm: *mut flexcast_comm,
    send: *const c_void,
    bytes: usize,
    receive: *mut c_void,
    counts: *const usize,
    displacements: *const usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| {
        // SAFETY: null, or an entry for each rank by the header.
        unsafe { Call::gatherv(place, (send, bytes), (receive, counts, displacements), root) }
    };
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The r-th part of the `send` of rank `root`, of `bytes` bytes, to `receive` of rank r. Elsewhere `send` is not used.
/// On the root `receive` may be FLEXCAST_IN_PLACE: then its block stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_scatter(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| Call::scatter(place, send, receive, bytes, root);
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}

/// The same with `counts[r]` bytes at `displacements[r]` behind the start of the root's `send` for rank r, which
/// receives `bytes`. The lists are the root's, with an entry for each rank; elsewhere they and `send` are not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_scatterv(
    comm: *mut flexcast_comm,
    send: *const c_void,
    counts: *const usize,
    displacements: *const usize,
    receive: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    let make = |place| {
        // SAFETY: null, or an entry for each rank by the header.
        unsafe { Call::scatterv(place, (send, counts, displacements), (receive, bytes), root) }
    };
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { begin(comm, request, make) })
}
