//! Names and services to addresses. The results are memory of the C library, parts of which programs replace.

use core::ffi::{CStr, c_char, c_int};

use emu_libibverbs::errno::{Errno, Result, number, out};
use verbs_sys::*;

use crate::abi::*;
use crate::device;

/// Memory of the C library, zeroed.
fn allocate(bytes: usize) -> Result<*mut core::ffi::c_void> {
    // SAFETY: takes numbers alone.
    let at = unsafe { libc::calloc(1, bytes) };
    if at.is_null() { Err(Errno::new(libc::ENOMEM, format!("{bytes} bytes"))) } else { Ok(at) }
}

/// A copy of an address.
///
/// # Safety
/// `addr` must point at `len` bytes.
unsafe fn copy(addr: *const libc::sockaddr, len: libc::socklen_t) -> Result<*mut libc::sockaddr> {
    let to = allocate(len as usize)?;
    // SAFETY: both have so many bytes.
    unsafe { core::ptr::copy_nonoverlapping(addr.cast::<u8>(), to.cast::<u8>(), len as usize) };
    Ok(to.cast())
}

/// What is asked of the C library for hints.
fn asked(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: integers and null pointers are valid all-zero.
    let mut ai: libc::addrinfo = unsafe { core::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ai.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ai.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & RAI_FAMILY != 0 {
        ai.ai_family = hints.ai_family;
    }
    ai.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_UD => libc::SOCK_DGRAM,
        IBV_QPT_RC | IBV_QPT_UC => libc::SOCK_STREAM,
        _ if hints.ai_port_space.cast_unsigned() == RDMA_PS_UDP => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    ai.ai_protocol = if ai.ai_socktype == libc::SOCK_DGRAM { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP };
    ai
}

/// Fills the result from the first answer of the C library.
///
/// # Safety
/// `ai` must be one of its answers.
unsafe fn take(rai: &mut rdma_addrinfo, hints: &rdma_addrinfo, ai: &libc::addrinfo) -> Result<()> {
    let datagrams = ai.ai_socktype == libc::SOCK_DGRAM;
    rai.ai_qp_type = match hints.ai_qp_type {
        0 if datagrams => IBV_QPT_UD.cast_signed(),
        0 => IBV_QPT_RC.cast_signed(),
        given => given,
    };
    rai.ai_port_space = match hints.ai_port_space {
        0 if datagrams => RDMA_PS_UDP.cast_signed(),
        0 => RDMA_PS_TCP.cast_signed(),
        given => given,
    };
    rai.ai_family = ai.ai_family;
    // SAFETY: an answer of the C library says how long its address is.
    let addr = unsafe { copy(ai.ai_addr, ai.ai_addrlen) }?;
    if hints.ai_flags & RAI_PASSIVE != 0 {
        rai.ai_flags = RAI_PASSIVE;
        (rai.ai_src_addr, rai.ai_src_len) = (addr, ai.ai_addrlen);
    } else {
        (rai.ai_dst_addr, rai.ai_dst_len) = (addr, ai.ai_addrlen);
    }
    Ok(())
}

/// Fills the result; what is allocated for it is the caller's to free.
///
/// # Safety
/// As the manual page asks of the arguments.
unsafe fn fill(
    rai: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<c_int> {
    if node.is_null() && service.is_null() {
        rai.ai_flags = hints.ai_flags;
        (rai.ai_family, rai.ai_qp_type) = (hints.ai_family, hints.ai_qp_type);
        rai.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len != 0 {
            // SAFETY: the hints say how long it is.
            rai.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
            rai.ai_dst_len = hints.ai_dst_len;
        }
    } else {
        let (wanted, mut found) = (asked(hints), core::ptr::null_mut());
        // SAFETY: terminated strings or null, as the manual page asks, and a writable place.
        let status = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) };
        if status != 0 {
            // SAFETY: the C library has a text for each of its numbers.
            let text = unsafe { CStr::from_ptr(libc::gai_strerror(status)) }.to_string_lossy().into_owned();
            emu_libibverbs::log::refused("rdma_getaddrinfo", &text, false);
            return Ok(status);
        }
        // SAFETY: an answer of the C library, freed afterwards and not used.
        let taken = unsafe {
            let taken = take(rai, hints, &*found);
            libc::freeaddrinfo(found);
            taken
        };
        taken?;
    }
    if rai.ai_src_len == 0 && hints.ai_src_len != 0 {
        // SAFETY: the hints say how long it is.
        rai.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
        rai.ai_src_len = hints.ai_src_len;
    }
    Ok(0)
}

/// 0, -1 and `errno`, or a number of getaddrinfo(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    number("rdma_getaddrinfo", || {
        device::devices()?;
        // SAFETY: the manual page asks for a writable place.
        let res = unsafe { out(res, "res") }?;
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(Errno::invalid("node, service and hints are null"));
        }
        let nothing = allocate(size_of::<rdma_addrinfo>())?.cast::<rdma_addrinfo>();
        // SAFETY: zeroed memory of this size, which is valid; null, or initialised as the manual page asks.
        let (rai, none) = unsafe { (&mut *nothing, *nothing) };
        // SAFETY: null, or initialised as the manual page asks.
        let hints = unsafe { hints.as_ref() }.unwrap_or(&none);
        // SAFETY: as the manual page asks.
        match unsafe { fill(rai, node, service, hints) } {
            Ok(0) => {
                res.write(nothing);
                Ok(0)
            }
            other => {
                // SAFETY: made above, and given to nobody.
                unsafe { rdma_freeaddrinfo(nothing) };
                other
            }
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: the manual page asks for a result of `rdma_getaddrinfo`, all parts of which are memory of the C
        // library or null, also those that the program has replaced.
        unsafe {
            let this = next;
            next = (*this).ai_next;
            libc::free((*this).ai_connect);
            libc::free((*this).ai_route);
            libc::free((*this).ai_src_canonname.cast());
            libc::free((*this).ai_dst_canonname.cast());
            libc::free((*this).ai_src_addr.cast());
            libc::free((*this).ai_dst_addr.cast());
            libc::free(this.cast());
        }
    }
}
