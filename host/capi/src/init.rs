//! Operations in steps: made, posted, waited for, posted again, freed.

use std::ffi::{c_int, c_void};

use crate::call::{Call, Place};
use crate::communicator::{Group, flexcast_comm};
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::{User, out, sized};
use crate::reduction::supported_reduction;
use crate::request::{Callback, Operation, flexcast_request};
use crate::status::flexcast_status::{self, *};

/// Operation as flexcast_barrier(); this and the others are what a function of their name posts.
pub const FLEXCAST_OPERATION_BARRIER: u32 = 1;
/// flexcast_broadcast(): the buffer is `receive`.
pub const FLEXCAST_OPERATION_BROADCAST: u32 = 2;
/// flexcast_allgather().
pub const FLEXCAST_OPERATION_ALLGATHER: u32 = 3;
/// flexcast_allgatherv(), with `receive_counts`; flexcast_allgatherv_displaced() with `receive_displacements` and
/// `receive_bytes`, too.
pub const FLEXCAST_OPERATION_ALLGATHERV: u32 = 4;
/// flexcast_allreduce().
pub const FLEXCAST_OPERATION_ALLREDUCE: u32 = 5;
/// flexcast_reduce().
pub const FLEXCAST_OPERATION_REDUCE: u32 = 6;
/// flexcast_reduce_scatter_block().
pub const FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK: u32 = 7;
/// flexcast_reduce_scatter(), with `receive_counts`, in elements.
pub const FLEXCAST_OPERATION_REDUCE_SCATTER: u32 = 8;
/// flexcast_alltoall().
pub const FLEXCAST_OPERATION_ALLTOALL: u32 = 9;
/// flexcast_alltoallv().
pub const FLEXCAST_OPERATION_ALLTOALLV: u32 = 10;
/// flexcast_gather().
pub const FLEXCAST_OPERATION_GATHER: u32 = 11;
/// flexcast_gatherv(), with `count` bytes of this rank and `receive_counts` of the root.
pub const FLEXCAST_OPERATION_GATHERV: u32 = 12;
/// flexcast_scatter().
pub const FLEXCAST_OPERATION_SCATTER: u32 = 13;
/// flexcast_scatterv(), with `count` bytes for this rank and `send_counts` of the root.
pub const FLEXCAST_OPERATION_SCATTERV: u32 = 14;
/// flexcast_sparse_allreduce(), with `block_bytes` and `blocks_per_message`.
pub const FLEXCAST_OPERATION_SPARSE_ALLREDUCE: u32 = 15;

/// Flag: the request may be posted again and again.
pub const FLEXCAST_PERSISTENT: u32 = 1;
/// Flag: who posts waits at once, by flexcast_wait() or flexcast_wait_for(). The progress thread is not woken for it,
/// and takes it on milliseconds late if nobody waits.
pub const FLEXCAST_AWAITED: u32 = 2;
/// All flags.
const FLAGS: u32 = FLEXCAST_PERSISTENT | FLEXCAST_AWAITED;

/// Is called once for every post, when the operation is over, by whichever thread finds that out: a progress thread of
/// the library, or one of the program's in flexcast_post(), flexcast_test(), flexcast_wait() or flexcast_progress().
/// `user` is the operation's, `request` its handle, `status` how it ended; flexcast_last_error() has the text. A test
/// of another thread may tell of the end before it is called. It may use the library, post and free `request` among
/// others, but not wait; neither longjmp nor an exception may leave it.
pub type flexcast_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, request: *mut flexcast_request, status: flexcast_status)>;

/// An operation, for flexcast_init(). To be zeroed, given its size, and then what the operation needs: arguments have
/// the meaning that they have for the function of the operation's name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_collective {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// One of FLEXCAST_OPERATION_*.
    pub operation: u32,
    /// 0, or FLEXCAST_PERSISTENT and FLEXCAST_AWAITED, added up.
    pub flags: u32,
    /// What is sent, in memory of the host, or FLEXCAST_IN_PLACE.
    pub send: *const c_void,
    /// Where it is received, in memory of the host; of a Scatter, FLEXCAST_IN_PLACE on the root.
    pub receive: *mut c_void,
    /// Bytes; of reductions, elements.
    pub count: usize,
    /// Lists have an entry for each rank, in bytes, and are copied.
    pub send_counts: *const usize,
    /// See `send_counts`.
    pub send_displacements: *const usize,
    /// See `send_counts`.
    pub receive_counts: *const usize,
    /// See `send_counts`.
    pub receive_displacements: *const usize,
    /// Length of `receive` of an Allgatherv with displacements.
    pub receive_bytes: usize,
    /// Element of reductions: FLEXCAST_FLOAT and the like.
    pub data_type: u32,
    /// Operator of reductions: FLEXCAST_SUM and the like.
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

const NOTHING: flexcast_collective = flexcast_collective {
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
    receive_bytes: 0,
    data_type: 0,
    reduction: 0,
    root: 0,
    reserved: 0,
    callback: None,
    user: std::ptr::null_mut(),
    block_bytes: 0,
    blocks_per_message: 0,
};

impl flexcast_collective {
    /// # Safety
    /// Lists are null or have an entry for each rank.
    unsafe fn call(&self, place: Place) -> Result<Call, Fault> {
        let Self { send, receive, count, root, .. } = *self;
        let reduction = || supported_reduction(self.data_type, self.reduction);
        let displaced =
            (!self.receive_displacements.is_null()).then_some((self.receive_bytes, self.receive_displacements));
        let from = (send, self.send_counts, self.send_displacements);
        let to = (receive, self.receive_counts, self.receive_displacements);
        match self.operation {
            FLEXCAST_OPERATION_BARRIER => Ok(Call::barrier()),
            FLEXCAST_OPERATION_BROADCAST => Call::broadcast(receive, count, root),
            FLEXCAST_OPERATION_ALLGATHER => Call::allgather(place, send, receive, count),
            FLEXCAST_OPERATION_ALLGATHERV => {
                // SAFETY: by this function's contract; the same below.
                unsafe { Call::allgatherv(place, send, receive, self.receive_counts, displaced) }
            }
            FLEXCAST_OPERATION_ALLREDUCE => Call::allreduce(send, receive, count, reduction()?),
            FLEXCAST_OPERATION_SPARSE_ALLREDUCE => {
                let sizes = (self.block_bytes, self.blocks_per_message);
                Call::sparse_allreduce((send, receive), count, reduction()?, sizes)
            }
            FLEXCAST_OPERATION_REDUCE => Call::reduce(place, send, receive, count, reduction()?, root),
            FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK => {
                Call::reduce_scatter_block(place, send, receive, count, reduction()?)
            }
            FLEXCAST_OPERATION_REDUCE_SCATTER => {
                // SAFETY: as above.
                unsafe { Call::reduce_scatter(place, send, receive, self.receive_counts, reduction()?) }
            }
            FLEXCAST_OPERATION_ALLTOALL => Call::alltoall(place, send, receive, count),
            // SAFETY: as above.
            FLEXCAST_OPERATION_ALLTOALLV => unsafe { Call::alltoallv(place, from, to) },
            FLEXCAST_OPERATION_GATHER => Call::gather(place, send, receive, count, root),
            // SAFETY: as above.
            FLEXCAST_OPERATION_GATHERV => unsafe { Call::gatherv(place, (send, count), to, root) },
            FLEXCAST_OPERATION_SCATTER => Call::scatter(place, send, receive, count, root),
            // SAFETY: as above.
            FLEXCAST_OPERATION_SCATTERV => unsafe { Call::scatterv(place, from, (receive, count), root) },
            other => {
                let text = format!(
                    "operation is {other}: must be one of FLEXCAST_OPERATION_*, 1 to \
                     {FLEXCAST_OPERATION_SPARSE_ALLREDUCE}"
                );
                Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text))
            }
        }
    }
}

/// Makes an operation without posting it. FLEXCAST_NOT_SUPPORTED if the library does not carry it: no error, and alike
/// on all ranks that give the same operation, lengths and reduction, so that all of them can use their own; lengths
/// that ranks need not know of one another (Alltoallv, Gatherv, Scatterv) do not matter. flexcast_post() posts it; it
/// is freed by flexcast_request_free().
///
/// From flexcast_post() until the request is over the memory is the library's, as for the functions that post at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_init(
    comm: *mut flexcast_comm,
    collective: *const flexcast_collective,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(request, "request") }?;
        let group = handle::get::<Group>(comm)?;
        if collective.is_null() {
            return Err(Fault::null("collective"));
        }
        // SAFETY: not null; the structure begins with its size.
        let collective = unsafe { sized(collective, NOTHING, "collective") }?;
        if collective.flags & !FLAGS != 0 {
            let text = format!(
                "flags are {:#x}: must be 0, or FLEXCAST_PERSISTENT ({FLEXCAST_PERSISTENT}) and FLEXCAST_AWAITED \
                 ({FLEXCAST_AWAITED}) added up",
                collective.flags
            );
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        }
        // SAFETY: as the header asks of the caller.
        let call = unsafe { collective.call(group.place()?) }?;
        group.with(|communicator| call.check_supported(communicator))?;
        let callback = collective.callback.map(|function| Callback { function, user: User(collective.user) });
        let (_, handle) = Operation::new(group, call, collective.flags, callback)?;
        place.put(handle);
        Ok(())
    })
}
