//! Collectives with their arguments, posted at once, or prepared and started again and again.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::call::Call;
use crate::communicator::{Group, flexcast_comm};
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::{User, out, sized};
use crate::request::{Callback, Operation, flexcast_request};
use crate::status::flexcast_status::{self, *};

/// Ends on no rank before all ranks have posted it.
pub const FLEXCAST_OPERATION_BARRIER: u32 = 1;
/// `count` bytes of `receive` from rank `root` to all ranks: read on the root, written elsewhere.
pub const FLEXCAST_OPERATION_BROADCAST: u32 = 2;
/// `count` bytes of `send` from every rank to every rank: `receive` has size times as many, in the order of ranks.
pub const FLEXCAST_OPERATION_ALLGATHER: u32 = 3;
/// `receive_counts[r]` bytes of `send` from every rank r to every rank, where they are received at
/// `receive_displacements[r]`. Both lists are alike on all ranks; `count` is not used.
pub const FLEXCAST_OPERATION_ALLGATHERV: u32 = 4;
/// The reduction of `count` elements of every rank, element by element, to all ranks.
pub const FLEXCAST_OPERATION_ALLREDUCE: u32 = 5;
/// The same to rank `root` alone; elsewhere `receive` is not used.
pub const FLEXCAST_OPERATION_REDUCE: u32 = 6;
/// The reduction of size times `count` elements of every rank, of which each rank gets `count`: the r-th part goes to
/// rank r. In place the contribution is in `receive`, whose beginning gets the result.
pub const FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK: u32 = 7;
/// The same with `receive_counts[r]` elements for rank r, alike on all ranks.
pub const FLEXCAST_OPERATION_REDUCE_SCATTER: u32 = 8;
/// `count` bytes of every rank to every rank: the r-th part of `send` to rank r, where it becomes the part of this rank
/// in `receive`. Both have size times `count` bytes. In place `receive` has what is sent, too.
pub const FLEXCAST_OPERATION_ALLTOALL: u32 = 9;
/// `send_counts[r]` bytes at `send_displacements[r]` to rank r, and `receive_counts[r]` bytes of rank r to
/// `receive_displacements[r]`. The two ranks of a block give one length. In place the lists of `send` are not used.
pub const FLEXCAST_OPERATION_ALLTOALLV: u32 = 10;
/// `count` bytes of `send` of every rank to rank `root`, in the order of ranks: its `receive` has size times as many.
/// Elsewhere `receive` is not used. In place on the root alone.
pub const FLEXCAST_OPERATION_GATHER: u32 = 11;
/// `count` bytes of this rank, and on the root `receive_counts[r]` bytes of rank r to `receive_displacements[r]`.
pub const FLEXCAST_OPERATION_GATHERV: u32 = 12;
/// The r-th part of the `send` of rank `root`, of `count` bytes, to `receive` of rank r. Elsewhere `send` is not used.
/// In place on the root alone: its block stays in `send`.
pub const FLEXCAST_OPERATION_SCATTER: u32 = 13;
/// `count` bytes for this rank, and on the root `send_counts[r]` bytes at `send_displacements[r]` for rank r.
pub const FLEXCAST_OPERATION_SCATTERV: u32 = 14;
/// FLEXCAST_OPERATION_ALLREDUCE for contributions of which much is zero: blocks of `block_bytes` that are zero are
/// neither sent nor summed, and nobody has to say where they are. A block is zero if all of its bits are, so that -0.0
/// and NaN travel. `reduction` is FLEXCAST_SUM, _MIN, _MAX, _LOGICAL_OR, _LOGICAL_XOR, _BIT_OR or _BIT_XOR; for minimum
/// and maximum a block that is zero is one that the rank does not have. Over a network interface, sums whose arrays are
/// short or have had few zeros may go as those of FLEXCAST_OPERATION_ALLREDUCE, where that is expected to be faster:
/// there -0.0 of one rank and 0.0 of the others are 0.0. `send` may lie in memory that can only be read, and neither
/// pointer need be aligned to its elements.
///
/// With `reproducible` in flexcast_config blocks are added in the order of ranks; otherwise in the order in which they
/// come, so that sums of floating-point numbers of more than two ranks may differ from call to call in their last bits.
/// After a failure `receive` is part old and part new.
pub const FLEXCAST_OPERATION_SPARSE_ALLREDUCE: u32 = 15;

/// Flag: in place, as with FLEXCAST_IN_PLACE for `send` (of a Scatter for `receive`), which is not used then.
pub const FLEXCAST_FLAG_IN_PLACE: u32 = 1;
/// Flag: who posts waits at once, by flexcast_wait() or flexcast_wait_for(). The progress thread is not woken for it,
/// and takes it on milliseconds late if nobody waits.
pub const FLEXCAST_FLAG_AWAITED: u32 = 2;
/// All flags.
const FLAGS: u32 = FLEXCAST_FLAG_IN_PLACE | FLEXCAST_FLAG_AWAITED;

/// Is called once for every post, when the operation is over, by whichever thread finds that out: a progress thread of
/// the library, or one of the program's in flexcast_post(), flexcast_test(), flexcast_wait() or flexcast_progress().
/// `user` is the operation's, `request` its handle, `status` how it ended; flexcast_last_error() has the text. A test
/// of another thread may report the end before it is called. It may use the library, post and free `request` among
/// others, but not wait, which is refused; neither longjmp nor an exception may leave it. An operation that ends while
/// a callback runs on the thread is called back when that has returned.
pub type flexcast_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, request: *mut flexcast_request, status: flexcast_status)>;

/// A collective with its arguments, for flexcast_post() and flexcast_prepare(). To be begun by
/// flexcast_collective_of(), or zeroed and given its size; then it gets what its operation needs. Other fields are not
/// used.
///
/// All ranks post the same operations of a communicator in the same order with the same arguments. Lists have an entry
/// for each rank, in bytes, of reductions in elements, and are copied. Displacements count in bytes from the start of
/// the buffer; NULL: blocks lie one after another. Blocks that are received must not overlap, and bytes between them
/// stay as they are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_collective {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// One of FLEXCAST_OPERATION_*.
    pub operation: u32,
    /// 0, or FLEXCAST_FLAG_... added up.
    pub flags: u32,
    /// What is sent, in memory of the host, or FLEXCAST_IN_PLACE.
    pub send: *const c_void,
    /// Where it is received, in memory of the host; of a Scatter, FLEXCAST_IN_PLACE on the root.
    pub receive: *mut c_void,
    /// Bytes; of reductions, elements.
    pub count: usize,
    /// Lengths of the blocks in `send`.
    pub send_counts: *const usize,
    /// Where they begin; may be NULL.
    pub send_displacements: *const usize,
    /// Lengths of the blocks in `receive`.
    pub receive_counts: *const usize,
    /// Where they begin; may be NULL.
    pub receive_displacements: *const usize,
    /// Element of reductions: FLEXCAST_FLOAT and the like.
    pub data_type: u32,
    /// Operator of reductions: FLEXCAST_SUM and the like. One that is not defined for the type is not supported.
    pub reduction: u32,
    /// Root of those that have one.
    pub root: c_int,
    /// 0.
    pub reserved: u32,
    /// Called at the end; may be NULL.
    pub callback: flexcast_callback,
    /// Given to it.
    pub user: *mut c_void,
    /// Of a sparse AllReduce, alike on all ranks: bytes of a block, a multiple of 4 and of an element, 256 to 16384.
    /// 0: 1024.
    pub block_bytes: u32,
    /// The same: most blocks of one message, 1 to 32. 0: 32.
    pub blocks_per_message: u32,
}

/// No operation.
pub(crate) const NOTHING: flexcast_collective = flexcast_collective {
    size: size_of::<flexcast_collective>(),
    operation: 0,
    flags: 0,
    send: std::ptr::null(),
    receive: std::ptr::null_mut(),
    count: 0,
    send_counts: std::ptr::null(),
    send_displacements: std::ptr::null(),
    receive_counts: std::ptr::null(),
    receive_displacements: std::ptr::null(),
    data_type: 0,
    reduction: 0,
    root: 0,
    reserved: 0,
    callback: None,
    user: std::ptr::null_mut(),
    block_bytes: 0,
    blocks_per_message: 0,
};

/// An operation that is not posted, and its handle.
///
/// # Safety
/// `collective` as the header says.
unsafe fn made(
    comm: *mut flexcast_comm,
    collective: *const flexcast_collective,
    stays: bool,
) -> Result<(Arc<Operation>, *mut flexcast_request), Fault> {
    let group = handle::get::<Group>(comm)?;
    if collective.is_null() {
        return Err(Fault::null("collective"));
    }
    // SAFETY: not null; the structure begins with its size.
    let given = unsafe { sized(collective, NOTHING, "collective") }?;
    if given.flags & !FLAGS != 0 || given.reserved != 0 {
        let text = format!(
            "flags are {:#x} and reserved is {}: must be 0, or FLEXCAST_FLAG_IN_PLACE ({FLEXCAST_FLAG_IN_PLACE}) and \
             FLEXCAST_FLAG_AWAITED ({FLEXCAST_FLAG_AWAITED}) added up, and 0; begin with flexcast_collective_of()",
            given.flags, given.reserved
        );
        return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
    }
    // SAFETY: lists as the header asks of the caller.
    let call = unsafe { Call::read(&given, group.place()?) }?;
    group.with(|communicator| call.check_supported(communicator))?;
    let callback = given.callback.map(|function| Callback { function, user: User(given.user) });
    let awaited = given.flags & FLEXCAST_FLAG_AWAITED != 0;
    Operation::new(group, call, awaited, stays, callback)
}

/// Posts a collective, and returns at once. `request` becomes its request, before a callback is called; NULL after a
/// refusal. It is freed by the flexcast_wait() or flexcast_test() that reports its end.
///
/// From here until the operation is over the memory is the library's: it stays allocated, is registered, and is touched
/// by nobody else. Afterwards it may be freed once flexcast_buffer_invalidate() was called.
///
/// FLEXCAST_NOT_SUPPORTED if the library does not carry the operation: no error, nothing is posted, and alike on all
/// ranks that give the same operation, lengths and reduction, so that all of them can use their own. Lengths that ranks
/// need not know of one another (Alltoallv, Gatherv, Scatterv) do not matter.
///
/// From any thread; two threads that post to one communicator at a time need an order of their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_post(
    comm: *mut flexcast_comm,
    collective: *const flexcast_collective,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(request, "request") }?;
        // SAFETY: as the header asks of the caller.
        let (operation, handle) =
            unsafe { made(comm, collective, false) }.inspect_err(|_| place.put(std::ptr::null_mut()))?;
        // A callback may ask for it before this returns.
        place.put(handle);
        // SAFETY: as the header asks of the caller.
        unsafe { operation.post() }.inspect_err(|_| {
            place.put(std::ptr::null_mut());
            let _ = handle::remove::<Operation>(handle);
        })
    })
}

/// Makes the request of a collective without posting it. flexcast_start() posts it, again and again, and
/// flexcast_request_free() frees it. Refused as by flexcast_post().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_prepare(
    comm: *mut flexcast_comm,
    collective: *const flexcast_collective,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(request, "request") }?;
        place.put(std::ptr::null_mut());
        // SAFETY: as the header asks of the caller.
        place.put(unsafe { made(comm, collective, true) }?.1);
        Ok(())
    })
}

/// Posts an operation that flexcast_prepare() has made, as flexcast_post() does. FLEXCAST_ERROR_BUSY while it is under
/// way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_start(request: *mut flexcast_request) -> flexcast_status {
    call(|| {
        let operation = handle::get::<Operation>(request)?;
        // SAFETY: as the header asks of whoever made it.
        unsafe { operation.post() }
    })
}
