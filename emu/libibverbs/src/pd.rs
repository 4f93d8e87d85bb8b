//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use emu_machine::nic::Access;
use verbs_sys::*;

use crate::device::Context;
use crate::errno::{Errno, Result, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::region::{self, Region};

/// A protection domain.
pub struct Pd {
    public: CStruct<ibv_pd>,
    /// The device it is on.
    pub context: Arc<Context>,
    /// The card's number of it.
    pub number: u32,
}

impl Object for Pd {
    const KIND: &'static str = "protection domain";
    type C = ibv_pd;
    fn c_address(&self) -> *mut ibv_pd {
        self.public.get()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer("ibv_alloc_pd", || {
        let context = handle::get::<Context>(context)?;
        Ok(handle::publish(&Pd::alloc(&context)?))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status("ibv_dealloc_pd", || {
        let object = handle::get::<Pd>(pd)?;
        // This call and the set of live handles hold it as well.
        let users = Arc::strong_count(&object).saturating_sub(2);
        if users > 0 {
            let reason = format!("objects of the protection domain still exist ({users}): destroy them first");
            return Err(Errno::new(libc::EBUSY, reason));
        }
        object.dealloc()?;
        handle::retire::<Pd>(pd)?;
        Ok(())
    })
}

impl Pd {
    /// Allocates a domain on an open device, without publishing it.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Pd>> {
        let number = region::alloc_domain(context.id())?;
        let public = ibv_pd { context: context.c_address(), handle: number };
        Ok(Arc::new(Pd { public: CStruct::new(public), context: Arc::clone(context), number }))
    }

    /// Frees the card's domain.
    ///
    /// # Errors
    /// EBUSY while memory keys or queue pairs use it.
    pub fn dealloc(&self) -> Result<()> {
        region::free_domain(self.context.id(), self.number)
    }
}

struct Mr {
    public: CStruct<ibv_mr>,
    /// Held so that the domain is not deallocated first.
    _pd: Arc<Pd>,
    region: Region,
}

impl Object for Mr {
    const KIND: &'static str = "memory region";
    type C = ibv_mr;
    fn c_address(&self) -> *mut ibv_mr {
        self.public.get()
    }
}

/// Flags that only help the real card's performance.
const IGNORED_ACCESS: u32 = IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB;

/// The rights of `ibv_access_flags`, for memory keys.
pub fn access_rights(flags: u32) -> Result<Access> {
    let flags = flags & !IGNORED_ACCESS;
    let access = Access::from_bits(flags)
        .ok_or_else(|| Errno::unsupported(format!("access flags {flags:#x}: local write and remote ones are known")))?;
    let remote_change = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if remote_change && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::invalid("remote write access needs local write access as well"));
    }
    Ok(access)
}

fn register(pd: *mut ibv_pd, addr: *mut c_void, bytes: usize, access: u32) -> Result<*mut ibv_mr> {
    let pd = handle::get::<Pd>(pd)?;
    let access = access_rights(access)?;
    // The caller keeps the range mapped until `ibv_dereg_mr`, and leaves it to the card, as the manual page asks.
    let region = Region::register(pd.context.id(), pd.number, addr as u64, bytes as u64, access)?;
    let key = region.key;
    let public = ibv_mr {
        context: pd.context.c_address(),
        pd: pd.c_address(),
        addr,
        length: bytes,
        handle: key,
        lkey: key,
        rkey: key,
    };
    Ok(handle::publish(&Arc::new(Mr { public: CStruct::new(public), _pd: pd, region })))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr", || register(pd, addr, length, access.cast_unsigned()))
}

fn register_at(pd: *mut ibv_pd, addr: *mut c_void, bytes: usize, iova: u64, access: u32) -> Result<*mut ibv_mr> {
    if iova != addr as u64 {
        return Err(Errno::unsupported(format!("iova {iova:#x} differs from the address {addr:p}")));
    }
    register(pd, addr, bytes, access)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr_iova2", || register_at(pd, addr, length, iova, access))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr_iova", || register_at(pd, addr, length, iova, access.cast_unsigned()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_dmabuf_mr", || Err(Errno::unsupported("memory of other devices is not emulated")))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status("ibv_dereg_mr", || {
        handle::get::<Mr>(mr)?.region.deregister()?;
        handle::retire::<Mr>(mr)?;
        Ok(())
    })
}
