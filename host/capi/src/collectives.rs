//! Collectives by messages between pairs of ranks.

use std::ffi::{c_int, c_void};

use flexcast_rust::reduce::{DataType, Operator, Reduction};
use flexcast_rust::{Blocks, Buffer, Communicator};

use crate::bootstrap::count;
use crate::communicator::{Group, flexcast_comm};
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::out;
use crate::operation::{IN_PLACE, Memory, Posted, begin, entries};
use crate::request::flexcast_request;
use crate::status::flexcast_status::{self, *};

/// Element `int8_t`; this and the other types are those of C, on the computer that the library was built for.
pub const FLEXCAST_INT8: u32 = 1;
/// Element `uint8_t`.
pub const FLEXCAST_UINT8: u32 = 2;
/// Element `int16_t`.
pub const FLEXCAST_INT16: u32 = 3;
/// Element `uint16_t`.
pub const FLEXCAST_UINT16: u32 = 4;
/// Element `int32_t`.
pub const FLEXCAST_INT32: u32 = 5;
/// Element `uint32_t`.
pub const FLEXCAST_UINT32: u32 = 6;
/// Element `int64_t`.
pub const FLEXCAST_INT64: u32 = 7;
/// Element `uint64_t`.
pub const FLEXCAST_UINT64: u32 = 8;
/// IEEE 754 binary16.
pub const FLEXCAST_FLOAT16: u32 = 9;
/// The upper half of a binary32.
pub const FLEXCAST_BFLOAT16: u32 = 10;
/// `float`.
pub const FLEXCAST_FLOAT: u32 = 11;
/// `double`.
pub const FLEXCAST_DOUBLE: u32 = 12;
/// `float _Complex`.
pub const FLEXCAST_FLOAT_COMPLEX: u32 = 13;
/// `double _Complex`.
pub const FLEXCAST_DOUBLE_COMPLEX: u32 = 14;
/// `_Bool`.
pub const FLEXCAST_BOOL: u32 = 15;
/// Eight bits without a meaning.
pub const FLEXCAST_BYTE: u32 = 16;
/// `struct { float value; int index; }`.
pub const FLEXCAST_FLOAT_INT: u32 = 17;
/// `struct { double value; int index; }`.
pub const FLEXCAST_DOUBLE_INT: u32 = 18;
/// `struct { long value; int index; }`.
pub const FLEXCAST_LONG_INT: u32 = 19;
/// `struct { int value; int index; }`.
pub const FLEXCAST_2INT: u32 = 20;
/// `struct { short value; int index; }`.
pub const FLEXCAST_SHORT_INT: u32 = 21;

/// Sum, for integers, which wrap, floating-point and complex numbers.
pub const FLEXCAST_SUM: u32 = 1;
/// Product, for the same types as FLEXCAST_SUM.
pub const FLEXCAST_PRODUCT: u32 = 2;
/// Least value, for integers and floating-point numbers.
pub const FLEXCAST_MIN: u32 = 3;
/// Largest value, for the same types as FLEXCAST_MIN.
pub const FLEXCAST_MAX: u32 = 4;
/// Logical and, for integers and truth values.
pub const FLEXCAST_LOGICAL_AND: u32 = 5;
/// Logical or, for the same types.
pub const FLEXCAST_LOGICAL_OR: u32 = 6;
/// Logical exclusive or, for the same types.
pub const FLEXCAST_LOGICAL_XOR: u32 = 7;
/// Bitwise and, for integers and bytes.
pub const FLEXCAST_BIT_AND: u32 = 8;
/// Bitwise or, for integers and bytes.
pub const FLEXCAST_BIT_OR: u32 = 9;
/// Bitwise exclusive or, for integers and bytes.
pub const FLEXCAST_BIT_XOR: u32 = 10;
/// For pairs of value and index: the pair of the least value, and of those the least index.
pub const FLEXCAST_MINLOC: u32 = 11;
/// The pair of the largest value, and of those the least index.
pub const FLEXCAST_MAXLOC: u32 = 12;

type Place = *mut *mut flexcast_request;

/// Begins an operation and gives out its handle. `make` tells its memory, to send and to receive, of the group; `post` posts it.
///
/// # Safety
/// See [`begin`]; `request` is null or a place for a handle.
unsafe fn start(
    comm: *mut flexcast_comm,
    request: Place,
    make: impl FnOnce(&Group) -> Result<(Option<Memory>, Memory), Fault>,
    post: impl FnOnce(&Communicator, Option<Buffer>, Buffer) -> Posted,
) -> Result<(), Fault> {
    // SAFETY: by this function's contract.
    let place = unsafe { out(request, "request") }?;
    let group = handle::get::<Group>(comm)?;
    let (send, receive) = make(&group)?;
    // SAFETY: the same.
    let operation = unsafe { begin(&group, send, receive, post) }?;
    place.put(handle::insert(operation)?);
    Ok(())
}

/// So many bytes at an address; none for FLEXCAST_IN_PLACE.
fn memory(start: *const c_void, bytes: usize) -> Option<Memory> {
    (start.addr() != IN_PLACE).then_some(Memory { start, bytes })
}

fn nothing() -> Memory {
    Memory { start: std::ptr::null(), bytes: 0 }
}

fn product(what: &str, one: usize, other: usize) -> Result<usize, Fault> {
    one.checked_mul(other).ok_or_else(|| {
        let text = format!("{what}: {one} times {other} bytes are more than the address space");
        Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
    })
}

fn reduction(data_type: u32, op: u32) -> Result<Reduction, Fault> {
    let wrong = |what: &str, code: u32, last: u32| {
        let text = format!("{what} is {code}: must be one of the codes 1 to {last} of flexcast.h");
        Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
    };
    let data_type = DataType::from_raw(data_type).map_err(|code| wrong("data_type", code, FLEXCAST_SHORT_INT))?;
    let operator = Operator::from_raw(op).map_err(|code| wrong("op", code, FLEXCAST_MAXLOC))?;
    Ok(Reduction::new(operator, data_type)?)
}

fn place_of(group: &Group) -> Result<(u32, u32), Fault> {
    group.with(|communicator| Ok((communicator.rank(), communicator.size())))
}

/// Nobody's request is over before all ranks have called this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_barrier(
    comm: *mut flexcast_comm,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { start(comm, request, |_| Ok((None, nothing())), |group, _, _| group.barrier()) })
}

/// The reduction of `count` elements of every rank, element by element, to all ranks: from `send` to `receive`. `send` may be FLEXCAST_IN_PLACE: then
/// `receive` has the contribution.
///
/// `data_type` and `op`, for this and the other reductions: FLEXCAST_FLOAT and the like, FLEXCAST_SUM and the like; an operator that is not defined
/// for a type is refused. Results do not depend on when ranks call; see `reproducible` in flexcast_config.
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
    call(|| {
        let reduction = reduction(data_type, op)?;
        let bytes = product("allreduce", count, reduction.element_bytes() as usize)?;
        let memories = |_: &Group| Ok((memory(send, bytes), Memory { start: receive, bytes }));
        let post = |group: &Communicator, send, receive| match send {
            Some(send) => group.all_reduce(send, receive, reduction),
            None => group.all_reduce_in_place(receive, reduction),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// The same to rank `root` alone. Elsewhere `receive` is not used; `send` may be FLEXCAST_IN_PLACE on the root.
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
    call(|| {
        let reduction = reduction(data_type, op)?;
        let bytes = product("reduce", count, reduction.element_bytes() as usize)?;
        let root = self::count(root, "root")?;
        let memories = |group: &Group| {
            let is_root = place_of(group)?.0 == root;
            let receive = if is_root { Memory { start: receive, bytes } } else { nothing() };
            Ok((memory(send, bytes), receive))
        };
        let post = |group: &Communicator, send, receive: Buffer| match send {
            Some(send) => group.reduce(send, receive, root, reduction),
            None => group.reduce_in_place(receive, root, reduction),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// The reduction of size times `count` elements of every rank, of which each rank gets `count`: the r-th part goes to rank r. `send` may be
/// FLEXCAST_IN_PLACE: then `receive` has the contribution, and its beginning gets the result.
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
    call(|| {
        let reduction = reduction(data_type, op)?;
        let ranks = place_of(&*handle::get::<Group>(comm)?)?.1;
        let share = product("reduce_scatter_block", count, reduction.element_bytes() as usize)?;
        // SAFETY: as the header asks of the caller.
        unsafe { scatter_reduced(comm, (send, receive), vec![share as u64; ranks as usize], reduction, request) }
    })
}

/// The same with `counts[r]` elements for rank r. `counts` has an entry for each rank, is alike on all, and is not used after the call.
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
    call(|| {
        let reduction = reduction(data_type, op)?;
        let group = handle::get::<Group>(comm)?;
        // SAFETY: null, or an entry for each rank by the header.
        let (_, counts) = unsafe { entries(&group, counts, "counts") }?;
        let element = reduction.element_bytes() as usize;
        let shares = counts.iter().map(|count| Ok(product("reduce_scatter", *count as usize, element)? as u64));
        let shares = shares.collect::<Result<Vec<u64>, Fault>>()?;
        // SAFETY: as the header asks of the caller.
        unsafe { scatter_reduced(comm, (send, receive), shares, reduction, request) }
    })
}

/// Begins a Reduce-Scatter with shares of so many bytes.
///
/// # Safety
/// As the header says of flexcast_reduce_scatter().
unsafe fn scatter_reduced(
    comm: *mut flexcast_comm,
    (send, receive): (*const c_void, *mut c_void),
    shares: Vec<u64>,
    reduction: Reduction,
    request: Place,
) -> Result<(), Fault> {
    let total = shares.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    let Some(total) = total.and_then(|total| usize::try_from(total).ok()) else {
        let text = "reduce_scatter: the counts are more than the address space";
        return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
    };
    let memories = |group: &Group| {
        let own = shares[place_of(group)?.0 as usize] as usize;
        let send = memory(send, total);
        let bytes = if send.is_some() { own } else { total };
        Ok((send, Memory { start: receive, bytes }))
    };
    let post = |group: &Communicator, send, receive| match send {
        Some(send) => group.reduce_scatterv(send, receive, &shares, reduction),
        None => group.reduce_scatterv_in_place(receive, &shares, reduction),
    };
    // SAFETY: by this function's contract.
    unsafe { start(comm, request, memories, post) }
}

/// `bytes` bytes of every rank to every rank: the r-th part of `send` to rank r, where it becomes the part of this rank in `receive`. Both have size
/// times `bytes`. `send` may be FLEXCAST_IN_PLACE: then `receive` has what is sent, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_alltoall(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        let memories = |group: &Group| {
            let all = product("alltoall", bytes, place_of(group)?.1 as usize)?;
            Ok((memory(send, all), Memory { start: receive, bytes: all }))
        };
        let post = |group: &Communicator, send, receive| match send {
            Some(send) => group.all_to_all(send, receive),
            None => group.all_to_all_in_place(receive),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// Lengths and places of each rank's block, and how far they reach.
struct Listed {
    counts: Vec<u64>,
    displacements: Vec<u64>,
    bytes: usize,
}

impl Listed {
    /// # Safety
    /// Both are null, or readable for as many entries as the group has ranks.
    unsafe fn read(
        group: &Group,
        counts: *const usize,
        displacements: *const usize,
        what: &str,
    ) -> Result<Self, Fault> {
        // SAFETY: by this function's contract.
        let (_, counts) = unsafe { entries(group, counts, &format!("{what}_counts")) }?;
        // SAFETY: the same.
        let (_, displacements) = unsafe { entries(group, displacements, &format!("{what}_displacements")) }?;
        let ends = counts.iter().zip(&displacements).map(|(bytes, at)| at.checked_add(*bytes));
        let end = ends.collect::<Option<Vec<u64>>>().map(|ends| ends.into_iter().max().unwrap_or(0));
        let Some(bytes) = end.and_then(|end| usize::try_from(end).ok()) else {
            let text = format!("{what}: a block ends beyond the address space");
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        };
        Ok(Self { counts, displacements, bytes })
    }

    const fn none() -> Self {
        Self { counts: Vec::new(), displacements: Vec::new(), bytes: 0 }
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks { counts: &self.counts, displacements: &self.displacements }
    }
}

/// The same with blocks of any length, in bytes, at any place: `send_counts[r]` bytes at `send_displacements[r]` behind the start of `send` to rank r,
/// and `receive_counts[r]` bytes from rank r to `receive_displacements[r]`. The two ranks of a block give one length. Lists have an entry for each
/// rank and are not used after the call; those of `send` are not used at all if that is FLEXCAST_IN_PLACE.
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
    call(|| {
        let group = handle::get::<Group>(comm)?;
        // SAFETY: null, or an entry for each rank by the header.
        let to = unsafe { Listed::read(&group, receive_counts, receive_displacements, "receive") }?;
        let from = match send.addr() {
            IN_PLACE => Listed::none(),
            // SAFETY: the same.
            _ => unsafe { Listed::read(&group, send_counts, send_displacements, "send") }?,
        };
        let memories = |_: &Group| Ok((memory(send, from.bytes), Memory { start: receive, bytes: to.bytes }));
        let post = |group: &Communicator, send, receive| match send {
            Some(send) => group.all_to_allv(send, receive, from.blocks(), to.blocks()),
            None => group.all_to_allv_in_place(receive, to.blocks()),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// `bytes` bytes of `send` of every rank to rank `root`, in the order of ranks: its `receive` has size times as many. Elsewhere `receive` is not used.
/// On the root `send` may be FLEXCAST_IN_PLACE: then its block is in its place in `receive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_gather(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        let root = count(root, "root")?;
        let memories = |group: &Group| {
            let (own, ranks) = place_of(group)?;
            let all = product("gather", bytes, ranks as usize)?;
            let receive = if own == root { Memory { start: receive, bytes: all } } else { nothing() };
            Ok((memory(send, bytes), receive))
        };
        let post = |group: &Communicator, send, receive| match send {
            Some(send) => group.gather(send, receive, root),
            None => group.gather_in_place(receive, root),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// The same with `bytes` bytes of this rank, `counts[r]` of rank r, and `displacements[r]` bytes behind the start of the root's `receive`. The lists
/// are the root's, in bytes, with an entry for each rank; elsewhere they and `receive` are not used.
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
    call(|| {
        let group = handle::get::<Group>(comm)?;
        let root = count(root, "root")?;
        let listed = if place_of(&group)?.0 == root {
            // SAFETY: null, or an entry for each rank by the header.
            unsafe { Listed::read(&group, counts, displacements, "receive") }?
        } else {
            Listed::none()
        };
        let memories = |_: &Group| Ok((memory(send, bytes), Memory { start: receive, bytes: listed.bytes }));
        let post = |group: &Communicator, send, receive| match send {
            Some(send) => group.gatherv(send, receive, listed.blocks(), root),
            None => group.gatherv_in_place(receive, listed.blocks(), root),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// The r-th part of the `send` of rank `root`, of `bytes` bytes, to `receive` of rank r. Elsewhere `send` is not used. On the root `receive` may be
/// FLEXCAST_IN_PLACE: then its block stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_scatter(
    comm: *mut flexcast_comm,
    send: *const c_void,
    receive: *mut c_void,
    bytes: usize,
    root: c_int,
    request: *mut *mut flexcast_request,
) -> flexcast_status {
    call(|| {
        let root = count(root, "root")?;
        let in_place = receive.addr() == IN_PLACE;
        let memories = |group: &Group| {
            let (own, ranks) = place_of(group)?;
            let all = if own == root { product("scatter", bytes, ranks as usize)? } else { 0 };
            Ok((Some(Memory { start: send, bytes: all }), memory(receive, bytes).unwrap_or_else(nothing)))
        };
        let post = |group: &Communicator, send: Option<Buffer>, receive| match send {
            Some(send) if in_place => group.scatter_in_place(send, root),
            Some(send) => group.scatter(send, receive, root),
            None => group.scatter_in_place(receive, root),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

/// The same with `counts[r]` bytes at `displacements[r]` behind the start of the root's `send` for rank r, which receives `bytes`. The lists are the
/// root's, with an entry for each rank; elsewhere they and `send` are not used.
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
    call(|| {
        let group = handle::get::<Group>(comm)?;
        let root = count(root, "root")?;
        let listed = if place_of(&group)?.0 == root {
            // SAFETY: null, or an entry for each rank by the header.
            unsafe { Listed::read(&group, counts, displacements, "send") }?
        } else {
            Listed::none()
        };
        let in_place = receive.addr() == IN_PLACE;
        let memories = |_: &Group| {
            let send = Memory { start: send, bytes: listed.bytes };
            Ok((Some(send), memory(receive, bytes).unwrap_or_else(nothing)))
        };
        let post = |group: &Communicator, send: Option<Buffer>, receive| match send {
            Some(send) if in_place => group.scatterv_in_place(send, listed.blocks(), root),
            Some(send) => group.scatterv(send, receive, listed.blocks(), root),
            None => group.scatterv_in_place(receive, listed.blocks(), root),
        };
        // SAFETY: as the header asks of the caller.
        unsafe { start(comm, request, memories, post) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_library_s() {
        let types = [
            (FLEXCAST_INT8, DataType::I8),
            (FLEXCAST_UINT8, DataType::U8),
            (FLEXCAST_INT16, DataType::I16),
            (FLEXCAST_UINT16, DataType::U16),
            (FLEXCAST_INT32, DataType::I32),
            (FLEXCAST_UINT32, DataType::U32),
            (FLEXCAST_INT64, DataType::I64),
            (FLEXCAST_UINT64, DataType::U64),
            (FLEXCAST_FLOAT16, DataType::F16),
            (FLEXCAST_BFLOAT16, DataType::BF16),
            (FLEXCAST_FLOAT, DataType::F32),
            (FLEXCAST_DOUBLE, DataType::F64),
            (FLEXCAST_FLOAT_COMPLEX, DataType::C64),
            (FLEXCAST_DOUBLE_COMPLEX, DataType::C128),
            (FLEXCAST_BOOL, DataType::Bool),
            (FLEXCAST_BYTE, DataType::Byte),
            (FLEXCAST_FLOAT_INT, DataType::FloatInt),
            (FLEXCAST_DOUBLE_INT, DataType::DoubleInt),
            (FLEXCAST_LONG_INT, DataType::LongInt),
            (FLEXCAST_2INT, DataType::TwoInt),
            (FLEXCAST_SHORT_INT, DataType::ShortInt),
        ];
        assert!(types.iter().map(|(code, data_type)| (*code, *data_type)).eq((1..).zip(DataType::ALL.iter().copied())));
        let operators = [
            (FLEXCAST_SUM, Operator::Sum),
            (FLEXCAST_PRODUCT, Operator::Product),
            (FLEXCAST_MIN, Operator::Min),
            (FLEXCAST_MAX, Operator::Max),
            (FLEXCAST_LOGICAL_AND, Operator::LogicalAnd),
            (FLEXCAST_LOGICAL_OR, Operator::LogicalOr),
            (FLEXCAST_LOGICAL_XOR, Operator::LogicalXor),
            (FLEXCAST_BIT_AND, Operator::BitAnd),
            (FLEXCAST_BIT_OR, Operator::BitOr),
            (FLEXCAST_BIT_XOR, Operator::BitXor),
            (FLEXCAST_MINLOC, Operator::MinLoc),
            (FLEXCAST_MAXLOC, Operator::MaxLoc),
        ];
        assert!(operators.iter().map(|(code, op)| (*code, *op)).eq((1..).zip(Operator::ALL.iter().copied())));
        let told = |fault: Fault, words: &str| assert!(fault.text.contains(words), "{}", fault.text);
        told(reduction(0, FLEXCAST_SUM).unwrap_err(), "data_type is 0");
        told(reduction(FLEXCAST_INT8, 13).unwrap_err(), "op is 13: must be one of the codes 1 to 12");
        told(reduction(FLEXCAST_FLOAT, FLEXCAST_BIT_OR).unwrap_err(), "not defined for f32");
        told(product("here", usize::MAX, 2).unwrap_err(), "more than the address space");
    }
}
