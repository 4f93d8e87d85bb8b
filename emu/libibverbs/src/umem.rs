//! Memory that DevX commands may name: registered host memory and the memory of DPA processes.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_machine::FunctionId;
use emu_machine::nic::{QueueMemory, Space};
use verbs_sys::*;

use crate::card;
use crate::card::request::Request;
use crate::device::Context;
use crate::errno::{Errno, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::machine::begin_command;

/// A range of memory behind an id.
#[derive(Clone, Copy, Debug)]
pub struct Umem {
    /// The function it was registered through.
    pub owner: FunctionId,
    /// The memory.
    pub space: Space,
    /// Address of its first byte.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

impl Umem {
    /// The place of `len` bytes at an offset, if they lie inside.
    #[must_use]
    pub fn at(&self, offset: u64, len: u64) -> Option<QueueMemory> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| QueueMemory { space: self.space, addr: self.base + offset })
    }
}

static UMEMS: Mutex<BTreeMap<u32, Umem>> = Mutex::new(BTreeMap::new());
/// UAR pages and memory objects are numbered from here on; 0 is what a forgotten field holds.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);
static NEXT_UAR: AtomicU32 = AtomicU32::new(1);

fn umems() -> MutexGuard<'static, BTreeMap<u32, Umem>> {
    UMEMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers memory and gives its id.
pub fn insert(umem: Umem) -> u32 {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    umems().insert(id, umem);
    id
}

/// The memory behind an id.
#[must_use]
pub fn find(id: u32) -> Option<Umem> {
    umems().get(&id).copied()
}

/// Forgets an id. Queues made from it keep their memory.
pub fn remove(id: u32) {
    umems().remove(&id);
}

/// Numbers a new UAR page.
pub fn new_uar_page() -> u32 {
    NEXT_UAR.fetch_add(1, Ordering::Relaxed)
}

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
        crate::pd::access_rights(access)?;
        let (base, len) = (addr as u64, size as u64);
        if addr.is_null() || len == 0 || base.checked_add(len).is_none() {
            return Err(Errno::invalid(format!("{len} bytes at {base:#x} cannot be registered")));
        }
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
    /// What programs may store doorbells into. Nobody looks: a store cannot be noticed, so host queues ring by call.
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
