//! Memory of the program that DevX commands may name, and UAR pages.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use emu_machine::FunctionId;
use emu_machine::nic::Access;
use verbs_sys::*;

use crate::card;
use crate::card::request::Request;
use crate::device::Context;
use crate::errno::{Errno, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::machine::begin_command;
use crate::umem::new_uar_page;

struct HostUmem {
    public: CStruct<mlx5dv_devx_umem>,
    id: u32,
    owner: FunctionId,
    addr: u64,
    bytes: u64,
}

impl Object for HostUmem {
    const KIND: &'static str = "user memory";
    type C = mlx5dv_devx_umem;
    fn c_address(&self) -> *mut mlx5dv_devx_umem {
        self.public.get()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_umem_reg(
    context: *mut ibv_context,
    addr: *mut c_void,
    size: usize,
    access: u32,
) -> *mut mlx5dv_devx_umem {
    pointer("mlx5dv_devx_umem_reg", || {
        let context = handle::get::<Context>(context)?;
        let access = crate::pd::access_rights(access)?;
        let (base, len) = (addr as u64, size as u64);
        if addr.is_null() || len == 0 || base.checked_add(len).is_none() {
            return Err(Errno::invalid(format!("{len} bytes at {base:#x} cannot be registered")));
        }
        crate::pinned::check(base, len, access.contains(Access::LOCAL_WRITE))?;
        let owner = context.id();
        begin_command(owner)?;
        // The caller keeps the range mapped until `mlx5dv_devx_umem_dereg`, and leaves it to the card.
        let id = card::call(owner, Request::RegisterUmem { addr: base, len })?.number()?;
        let public = CStruct::new(mlx5dv_devx_umem { umem_id: id });
        Ok(handle::publish(&Arc::new(HostUmem { public, id, owner, addr: base, bytes: len })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_umem_dereg(umem: *mut mlx5dv_devx_umem) -> c_int {
    status("mlx5dv_devx_umem_dereg", || {
        let umem = handle::retire::<HostUmem>(umem)?;
        begin_command(umem.owner)?;
        card::done(umem.owner, Request::DeregisterUmem { id: umem.id, addr: umem.addr, len: umem.bytes })
    })
}

struct Uar {
    public: CStruct<mlx5dv_devx_uar>,
    /// What programs may store doorbells into. Nothing reads it: a store cannot be noticed, so host queues ring by
    /// call.
    _page: CStruct<[u64; 512]>,
}

impl Object for Uar {
    const KIND: &'static str = "UAR page";
    type C = mlx5dv_devx_uar;
    fn c_address(&self) -> *mut mlx5dv_devx_uar {
        self.public.get()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_alloc_uar(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar {
    pointer("mlx5dv_devx_alloc_uar", || {
        handle::get::<Context>(context)?;
        if flags & !3 != 0 {
            return Err(Errno::unsupported(format!("UAR flags {flags:#x}")));
        }
        let uar = Arc::new(Uar {
            public: CStruct::new(mlx5dv_devx_uar { page_id: new_uar_page(), ..Default::default() }),
            _page: CStruct::new([0; 512]),
        });
        let page = uar._page.get().cast::<c_void>();
        // SAFETY: nobody else has the object yet.
        unsafe {
            (*uar.public.get()).base_addr = page;
            (*uar.public.get()).reg_addr = page.wrapping_byte_add(0x800);
        }
        Ok(handle::publish(&uar))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_devx_free_uar(uar: *mut mlx5dv_devx_uar) {
    status("mlx5dv_devx_free_uar", || Ok(handle::retire::<Uar>(uar).map(drop)?));
}
