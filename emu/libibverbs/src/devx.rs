//! DevX: commands of the device's programming interface, as mailboxes.
//!
//! This is how queue pairs that FlexIO does not offer (UD and UC on DPA memory) are made. A refused command gives
//! EREMOTEIO, and the answer holds a status of the programming interface and one of [`syndrome`]'s values.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use emu_machine::FunctionId;
use verbs_sys::*;

use crate::card::caller::Caller;
use crate::card::refusal::{Kind, Refusal, answer, refuse, syndrome};
use crate::card::request::{Answer, DevxCall, Made, Request};
use crate::card::{self, command};
use crate::device::Context;
use crate::errno::{Errno, Result, pointer, status};
use crate::handle::{self, Object};
use crate::machine::{self, begin_command, with_world};
use crate::prm::{self, Input};

struct DevxObject {
    /// The function whose object it is.
    owner: FunctionId,
    kind: Kind,
    number: u32,
    /// Of a queue pair, as it was made: the card forgets it at each reset and is given it again.
    block_multicast_loopback: bool,
}

impl Object for DevxObject {
    const KIND: &'static str = "DevX object";
    type C = mlx5dv_devx_obj;
    fn c_address(&self) -> *mut mlx5dv_devx_obj {
        (self as *const Self).cast_mut().cast()
    }
}

/// Carries a command out: fills the answer, and says EREMOTEIO when it was refused.
///
/// # Safety
/// `input` must be readable for `inlen` bytes and `out` writable for `outlen`, unless null.
unsafe fn carry_out(
    owner: FunctionId,
    call: DevxCall,
    (input, inlen): (*const c_void, usize),
    (out, outlen): (*mut c_void, usize),
) -> Result<Option<Made>> {
    if input.is_null() || out.is_null() || outlen < prm::SHORT_BYTES {
        return Err(Errno::invalid(format!("a command needs an input, and an output of 16 bytes, not {outlen}")));
    }
    // SAFETY: not null; the caller vouches for the length.
    let mailbox = Input(unsafe { core::slice::from_raw_parts(input.cast::<u8>(), inlen) });
    let mut answer = vec![0; outlen];
    let result = if inlen < prm::SHORT_BYTES {
        refuse(answer::BAD_INPUT_LEN, syndrome::LENGTH, format!("a command of {inlen} bytes"))
    } else {
        carry(owner, call, mailbox, &mut answer)?
    };
    let result = result.map_err(|refusal| {
        prm::put(&mut answer, prm::OUT_STATUS, refusal.status.into());
        prm::put(&mut answer, prm::OUT_SYNDROME, refusal.syndrome);
        let opcode = mailbox.get(prm::OPCODE);
        Errno::new(
            libc::EREMOTEIO,
            format!(
                "command {opcode:#x} refused with status {:#x}, syndrome {:#x}: {}",
                refusal.status, refusal.syndrome, refusal.reason
            ),
        )
    });
    // SAFETY: the caller vouches for the length; the source is a vector of that length.
    unsafe { core::ptr::copy_nonoverlapping(answer.as_ptr(), out.cast::<u8>(), outlen) };
    result
}

/// Has a command carried out by the card, here or in another process.
///
/// # Errors
/// There is no machine, or the process with the card is gone. Within: what the card refuses.
fn carry(
    owner: FunctionId,
    call: DevxCall,
    input: Input<'_>,
    answer: &mut [u8],
) -> Result<std::result::Result<Option<Made>, Refusal>> {
    if !machine::is_elsewhere()? {
        return Ok(with_world(|world| command::execute(world, &mut Caller::here(owner), call, input.0, answer))?);
    }
    let request = Request::Devx { call, input: input.0.to_owned(), answer_bytes: answer.len() };
    match card::call(owner, request)? {
        Answer::Devx { answer: bytes, result } if bytes.len() == answer.len() => {
            answer.copy_from_slice(&bytes);
            Ok(result)
        }
        other => Err(other.unexpected()),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_create(
    context: *mut ibv_context,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> *mut mlx5dv_devx_obj {
    pointer("mlx5dv_devx_obj_create", || {
        let owner = handle::get::<Context>(context)?.id();
        begin_command(owner)?;
        // SAFETY: the caller vouches for both buffers.
        let made = unsafe { carry_out(owner, DevxCall::Create, (input, inlen), (out, outlen)) }?;
        let Made { kind, number, block_multicast_loopback } =
            made.ok_or_else(|| Errno::new(libc::EPROTO, "the card has made nothing"))?;
        Ok(handle::publish(&Arc::new(DevxObject { owner, kind, number, block_multicast_loopback })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_modify(
    obj: *mut mlx5dv_devx_obj,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> c_int {
    status("mlx5dv_devx_obj_modify", || {
        let object = handle::get::<DevxObject>(obj)?;
        begin_command(object.owner)?;
        let DevxObject { owner, kind, number, block_multicast_loopback } = *object;
        let call = DevxCall::Modify { kind, number, block_multicast_loopback };
        // SAFETY: the caller vouches for both buffers.
        unsafe { carry_out(owner, call, (input, inlen), (out, outlen)) }.map(drop)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_query(
    obj: *mut mlx5dv_devx_obj,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> c_int {
    status("mlx5dv_devx_obj_query", || {
        let object = handle::get::<DevxObject>(obj)?;
        begin_command(object.owner)?;
        let call = DevxCall::Query { kind: object.kind, number: object.number };
        // SAFETY: the caller vouches for both buffers.
        unsafe { carry_out(object.owner, call, (input, inlen), (out, outlen)) }.map(drop)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_obj_destroy(obj: *mut mlx5dv_devx_obj) -> c_int {
    status("mlx5dv_devx_obj_destroy", || {
        let object = handle::get::<DevxObject>(obj)?;
        begin_command(object.owner)?;
        card::done(object.owner, Request::DestroyDevx { kind: object.kind, number: object.number })?;
        handle::retire::<DevxObject>(obj)?;
        Ok(())
    })
}

/// Commands without an object.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_general_cmd(
    context: *mut ibv_context,
    input: *const c_void,
    inlen: usize,
    out: *mut c_void,
    outlen: usize,
) -> c_int {
    status("mlx5dv_devx_general_cmd", || {
        let owner = handle::get::<Context>(context)?.id();
        begin_command(owner)?;
        // SAFETY: the caller vouches for both buffers.
        unsafe { carry_out(owner, DevxCall::General, (input, inlen), (out, outlen)) }.map(drop)
    })
}
