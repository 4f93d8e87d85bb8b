//! Memory windows: parts of regions, under keys that work requests bind and invalidate.
//!
//! Type 1 is bound by `ibv_bind_mw`, which chooses the key; type 2 by a work request with the key that the program has
//! chosen, and for the queue pair that it was posted to (type 2B of the InfiniBand specification, as mlx5's).

use core::ffi::c_int;
use std::sync::Arc;

use verbs_sys::*;

use crate::card::{self, request::Request};
use crate::errno::{Errno, Result, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::machine::begin_command;
use crate::pd::{self, Pd};
use crate::umr::{Binding, Umr};

pub(crate) struct Window {
    public: CStruct<ibv_mw>,
    pd: Arc<Pd>,
    key: u32,
    kind: u32,
}

impl Object for Window {
    const KIND: &'static str = "memory window";
    type C = ibv_mw;
    fn c_address(&self) -> *mut ibv_mw {
        self.public.get()
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    pointer("ibv_alloc_mw", || {
        let pd = handle::get::<Pd>(pd)?;
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(Errno::unsupported(format!("memory window type {kind}: 1 and 2 are emulated")));
        }
        begin_command(pd.context.id())?;
        let key = card::call(pd.context.id(), Request::CreateWindow { pd: pd.number })?.number()?;
        let public =
            ibv_mw { context: pd.context.c_address(), pd: pd.c_address(), rkey: key, handle: key >> 8, type_: kind };
        Ok(handle::publish(&Arc::new(Window { public: CStruct::new(public), pd, key, kind })))
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status("ibv_dealloc_mw", || {
        let window = handle::get::<Window>(mw)?;
        begin_command(window.pd.context.id())?;
        // Bindings have changed the tag: the index is what the window has for life.
        card::done(window.pd.context.id(), Request::DestroyWindow { key: window.key })?;
        handle::retire::<Window>(mw)?;
        Ok(())
    })
}

/// The UMR work request that binds a window of type 2 for queue pair `qpn`, or one of type 1, under a key.
pub(crate) fn request(qpn: u32, mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<Umr> {
    let window = handle::get::<Window>(mw)?;
    if rkey >> 8 != window.key >> 8 {
        let key = window.key;
        return Err(Errno::invalid(format!(
            "rkey {rkey:#x}: of the window's key {key:#x} the lowest 8 bits may change"
        )));
    }
    let rights = pd::window_rights(info.mw_access_flags)?;
    let len = u32::try_from(info.length).map_err(|_| {
        Errno::unsupported(format!("a window of {} bytes: at most {} are possible", info.length, u32::MAX))
    })?;
    let is_second = window.kind == IBV_MW_TYPE_2;
    if len == 0 && is_second {
        return Err(Errno::invalid("a window of type 2 has at least a byte: invalidate it with IBV_WR_LOCAL_INV"));
    }
    let lkey = if len > 0 { pd::key_of(info.mr)? } else { 0 };
    let is_zero_based = info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0;
    Ok(Umr::of_window(
        rkey,
        &Binding {
            part: (len, lkey, info.addr),
            rights,
            start: if is_zero_based { 0 } else { info.addr },
            queue: is_second.then_some(qpn),
        },
    ))
}

/// The key that a window of type 1 is to be bound under next, and where the program sees its key.
pub(crate) fn next_key(mw: *mut ibv_mw) -> Result<(u32, *mut u32)> {
    let window = handle::get::<Window>(mw)?;
    if window.kind != IBV_MW_TYPE_1 {
        return Err(Errno::invalid("a window of type 2 is bound by a work request (IBV_WR_BIND_MW)"));
    }
    // SAFETY: a field of the structure, which lives as long as the window.
    let shown = unsafe { &raw mut (*window.public.get()).rkey };
    // SAFETY: as above. By the C contract one call at a time binds a window.
    let key = unsafe { shown.read() };
    Ok((key & 0xFFFF_FF00 | key.wrapping_add(1) & 0xFF, shown))
}
