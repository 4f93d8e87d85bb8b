//! Remote procedure calls, in two halves around the pack function (src/c/call.c).

use core::ffi::c_void;
use std::sync::Arc;

use emu_libibverbs::handle;
use emu_machine::{MachineError, World};
use flexio_sys::*;

use crate::process::{Process, world};
use crate::status::{Result, failed, out, status};

unsafe extern "C" {
    pub(crate) fn flexio_process_call(
        process: *mut flexio_process,
        host_stub_func: flexio_func_t,
        func_ret: *mut u64,
        ...
    ) -> flexio_status;
}

/// What the C half carries between the two, `struct flexcast_emu_call` there.
#[repr(C)]
pub(crate) struct Call {
    /// A `Box<Vec<u64>>` begins here; C sees the address of the words.
    argbuf: *mut c_void,
    pack: flexio_func_arg_pack_fn_t,
    function: u64,
    unpack: u64,
}

/// The argument buffer, preceded by its length so that the second half can take it back.
#[must_use]
pub fn allocate(bytes: usize) -> *mut c_void {
    let words = 1 + bytes.div_ceil(8);
    let mut buffer = vec![0_u64; words].into_boxed_slice();
    buffer[0] = bytes as u64;
    Box::leak(buffer).as_mut_ptr().wrapping_add(1).cast()
}

/// Takes the bytes of a buffer back and frees it.
///
/// # Safety
/// `argbuf` must come from [`allocate`], and not be used again.
pub unsafe fn take(argbuf: *mut c_void) -> Vec<u8> {
    let first = argbuf.cast::<u64>().wrapping_sub(1);
    // SAFETY: `allocate` put the length there, and leaked exactly this slice.
    let (bytes, buffer) = unsafe {
        let bytes = *first as usize;
        (bytes, Box::from_raw(core::ptr::slice_from_raw_parts_mut(first, 1 + bytes.div_ceil(8))))
    };
    buffer[1..].iter().flat_map(|word| word.to_ne_bytes()).take(bytes).collect()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexcast_emu_call_begin(
    process: *mut flexio_process,
    stub: flexio_func_t,
    func_ret: *mut u64,
    call: *mut Call,
) -> flexio_status {
    status("flexio_process_call", || {
        let process = handle::get::<Process>(process)?;
        if func_ret.is_null() {
            return Err(failed("func_ret is null"));
        }
        let function = process.app.function(stub)?;
        let Some(rpc) = function.rpc else {
            return Err(failed(format!("{} was registered without a pack function; it is no RPC", function.name)));
        };
        world(|world| world.card(process.card)?.healthy(process.id).map(|_| ()))?;
        let argbuf = allocate(rpc.argbuf_bytes);
        // SAFETY: the C half passes its own structure.
        unsafe { out(call, "call") }?.write(Call {
            argbuf,
            pack: Some(rpc.pack),
            function: function.addr,
            unpack: rpc.unpack,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexcast_emu_call_finish(
    process: *mut flexio_process,
    func_ret: *mut u64,
    call: *mut Call,
) -> flexio_status {
    status("flexio_process_call", || {
        // SAFETY: the C half passes the structure that the first half filled, and does not use the buffer again.
        let (arguments, function, unpack) = unsafe { (take((*call).argbuf), (*call).function, (*call).unpack) };
        let process = handle::get::<Process>(process)?;
        let result = execute(&process, &arguments, function, unpack);
        process.after_progress()?;
        // SAFETY: checked by the first half.
        unsafe { func_ret.write(result?) };
        Ok(())
    })
}

fn execute(process: &Arc<Process>, arguments: &[u8], function: u64, unpack: u64) -> Result<u64> {
    world(|world| run(world, (process.card, process.id), arguments, function, unpack))
}

/// Runs a function of a process of a card, with arguments for its unpack function, and gives its result.
///
/// # Errors
/// The heap is full, or the call fails.
pub fn run(
    world: &mut World,
    (card, process): (usize, u32),
    arguments: &[u8],
    function: u64,
    unpack: u64,
) -> core::result::Result<u64, MachineError> {
    let argbuf = world.heap_alloc(card, process, arguments.len() as u64)?;
    world.write_memory(card, process, argbuf, arguments)?;
    let result = world.process_call(card, process, function, unpack, argbuf);
    world.heap_free(card, process, argbuf)?;
    result
}
