//! Direct verbs for memory keys over other keys: making one, and posting the UMR work request that binds it to a list.
//!
//! Behaviour: rdma-core's mlx5 provider and its manual pages mlx5dv_create_mkey(3), mlx5dv_create_qp(3) and
//! mlx5dv_wr_mr_list(3). A bound key is addressed from 0: its list's first byte has address 0 under it.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use emu_machine::nic::Access;
use verbs_sys::*;

use crate::card::{self, request::Request};
use crate::device::Context;
use crate::errno::{Errno, Result, pointer, status};
use crate::extended;
use crate::handle::{self, CStruct, Object};
use crate::machine::begin_command;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::segments::segments;
use crate::umr::{GROUP, Umr};

/// A key over other keys.
pub(crate) struct Mkey {
    public: CStruct<mlx5dv_mkey>,
    pd: Arc<Pd>,
    key: u32,
    max_entries: u16,
}

impl Object for Mkey {
    const KIND: &'static str = "key over other keys";
    type C = mlx5dv_mkey;
    fn c_address(&self) -> *mut mlx5dv_mkey {
        self.public.get()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_create_mkey(attr: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey {
    pointer("mlx5dv_create_mkey", || {
        // SAFETY: null, or initialised and writable as the manual page asks.
        let attr = unsafe { attr.as_mut() }.ok_or_else(|| Errno::invalid("mkey_init_attr is null"))?;
        if attr.create_flags != MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT {
            return Err(Errno::unsupported(format!(
                "create_flags {:#x}: keys over other keys ({MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT:#x}) are emulated",
                attr.create_flags
            )));
        }
        let pd = handle::get::<Pd>(attr.pd)?;
        let max_entries = attr.max_entries.checked_next_multiple_of(GROUP as u16);
        let max_entries = max_entries.filter(|&entries| entries > 0).ok_or_else(|| {
            let limit = u16::MAX - u16::MAX % GROUP as u16;
            Errno::invalid(format!("max_entries is {}: from 1 to {limit} are possible", attr.max_entries))
        })?;
        begin_command(pd.context.id())?;
        let request = Request::CreateUmrKey { pd: pd.number, max_entries: max_entries.into() };
        let key = card::call(pd.context.id(), request)?.number()?;
        attr.max_entries = max_entries;
        let public = CStruct::new(mlx5dv_mkey { lkey: key, rkey: key });
        Ok(handle::publish(&Arc::new(Mkey { public, pd, key, max_entries })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int {
    status("mlx5dv_destroy_mkey", || {
        let object = handle::get::<Mkey>(mkey)?;
        begin_command(object.pd.context.id())?;
        card::call(object.pd.context.id(), Request::DestroyUmrKey { key: object.key })?;
        handle::retire::<Mkey>(mkey)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_create_qp(
    context: *mut ibv_context,
    qp_attr: *mut ibv_qp_init_attr_ex,
    direct_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    pointer("mlx5dv_create_qp", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let attr = unsafe { qp_attr.as_mut() }.ok_or_else(|| Errno::invalid("qp_attr is null"))?;
        // SAFETY: null, or initialised as the manual page asks.
        let direct = unsafe { direct_attr.as_ref() }.copied().unwrap_or_default();
        if direct.comp_mask & !u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) != 0 {
            return Err(Errno::unsupported(format!(
                "comp_mask {:#x} of mlx5_qp_attr: send_ops_flags ({MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS:#x}) is \
                 known",
                direct.comp_mask
            )));
        }
        let ops = if direct.comp_mask == 0 { 0 } else { direct.send_ops_flags };
        if ops & !u64::from(MLX5DV_QP_EX_WITH_MR_LIST) != 0 || (ops != 0 && attr.qp_type != IBV_QPT_RC) {
            return Err(Errno::unsupported(format!(
                "send_ops_flags {ops:#x} of mlx5_qp_attr: lists of keys ({MLX5DV_QP_EX_WITH_MR_LIST:#x}) are emulated, \
                 on RC queue pairs"
            )));
        }
        Ok(handle::publish(&extended::make(&context, attr, ops != 0)?))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    pointer("mlx5dv_qp_ex_from_ibv_qp_ex", || Ok(handle::get::<Qp>(qp.cast())?.direct()))
}

/// A call that is not emulated, of whose arguments the first alone is read: the batch fails.
macro_rules! slot {
    ($call:literal $reason:expr) => {{
        unsafe extern "C" fn refuse(direct: *mut mlx5dv_qp_ex) {
            extended::refuse($call, Qp::around(direct), $reason);
        }
        Some(refuse)
    }};
}
/// The calls of direct verbs on a queue pair. All slots are filled: programs call through them without a check.
pub(crate) fn interface() -> mlx5dv_qp_ex {
    mlx5dv_qp_ex {
        comp_mask: 0,
        wr_set_dc_addr: Some(wr_set_dc_addr),
        wr_mr_interleaved: Some(wr_mr_interleaved),
        wr_mr_list: Some(wr_mr_list),
        wr_mkey_configure: slot!("mlx5dv_wr_mkey_configure" SIGNED_KEYS),
        wr_set_mkey_access_flags: slot!("mlx5dv_wr_set_mkey_access_flags" SIGNED_KEYS),
        wr_set_mkey_layout_list: slot!("mlx5dv_wr_set_mkey_layout_list" SIGNED_KEYS),
        wr_set_mkey_layout_interleaved: slot!("mlx5dv_wr_set_mkey_layout_interleaved" SIGNED_KEYS),
        wr_set_mkey_sig_block: slot!("mlx5dv_wr_set_mkey_sig_block" SIGNED_KEYS),
        wr_raw_wqe: slot!("mlx5dv_wr_raw_wqe" "work queue entries of a program's own are not emulated"),
        wr_set_dc_addr_stream: slot!("mlx5dv_wr_set_dc_addr_stream" DYNAMIC),
        wr_memcpy: slot!("mlx5dv_wr_memcpy" "copies by the card are not emulated: connect a queue pair with itself"),
        wr_set_mkey_crypto: slot!("mlx5dv_wr_set_mkey_crypto" "inline encryption is not emulated"),
    }
}

const DYNAMIC: &str = "dynamically connected queue pairs are not emulated";
const SIGNED_KEYS: &str =
    "keys with signatures, and changes of a key in steps, are not emulated: use `mlx5dv_wr_mr_list`";

unsafe extern "C" fn wr_set_dc_addr(direct: *mut mlx5dv_qp_ex, _: *mut ibv_ah, _: u32, _: u64) {
    extended::refuse("mlx5dv_wr_set_dc_addr", Qp::around(direct), DYNAMIC);
}

unsafe extern "C" fn wr_mr_interleaved(
    direct: *mut mlx5dv_qp_ex,
    _: *mut mlx5dv_mkey,
    _: u32,
    _: u32,
    _: u16,
    _: *mut c_void,
) {
    let reason = "keys over pieces of other keys in turn are not emulated";
    extended::refuse("mlx5dv_wr_mr_interleaved", Qp::around(direct), reason);
}

/// Checks a list as the provider does, and makes the request.
///
/// # Safety
/// `list` must point at `count` initialised entries, unless null.
unsafe fn request(qp: &Qp, flags: u32, mkey: *mut mlx5dv_mkey, access: u32, list: (*mut ibv_sge, u16)) -> Result<Umr> {
    if !qp.mr_lists {
        return Err(Errno::unsupported(format!(
            "mlx5dv_wr_mr_list: the queue pair was not made for it: name MLX5DV_QP_EX_WITH_MR_LIST \
             ({MLX5DV_QP_EX_WITH_MR_LIST:#x}) in send_ops_flags of mlx5dv_qp_init_attr"
        )));
    }
    if flags & IBV_SEND_INLINE == 0 {
        return Err(Errno::unsupported("a list of keys is posted with IBV_SEND_INLINE in wr_flags"));
    }
    let mkey = handle::get::<Mkey>(mkey)?;
    let access = Access::from_bits(access).ok_or_else(|| Errno::invalid(format!("access flags {access:#x}")))?;
    let inline = (qp.shape.cap.max_inline_data + 4) / 16;
    let limit = inline.min(mkey.max_entries.into());
    let (list, count) = list;
    if u32::from(count) > limit {
        return Err(Errno::new(
            libc::ENOMEM,
            format!(
                "a list of {count} entries: at most {limit}, for the key has room for {} and the queue pair's \
                 max_inline_data of {} for {inline}",
                mkey.max_entries, qp.shape.cap.max_inline_data
            ),
        ));
    }
    // SAFETY: as this function's.
    let list = unsafe { segments(list, c_int::from(count), limit) }?;
    Ok(Umr::of_list(mkey.key, access, list))
}

unsafe extern "C" fn wr_mr_list(
    direct: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access: u32,
    count: u16,
    list: *mut ibv_sge,
) {
    let qp = Qp::around(direct);
    // SAFETY: the manual page asks for a list of as many entries.
    extended::add_umr("mlx5dv_wr_mr_list", qp, |qp, flags| unsafe { request(qp, flags, mkey, access, (list, count)) });
}
