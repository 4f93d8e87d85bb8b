//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_machine::nic::Access;
use verbs_sys::*;

use crate::device::Context;
use crate::dm::Dm;
use crate::errno::{Errno, Result, input, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::region::{self, Region};
use crate::segments::segments;

/// A protection domain.
pub struct Pd {
    public: CStruct<ibv_pd>,
    /// The device it is on.
    pub context: Arc<Context>,
    /// The card's number of it.
    pub number: u32,
    /// What a parent domain holds: the protection domain whose number it has, and a thread domain.
    parent: Option<(Arc<Pd>, Option<Arc<Td>>)>,
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
        if object.parent.is_none() {
            object.dealloc()?;
        }
        handle::retire::<Pd>(pd)?;
        Ok(())
    })
}

impl Pd {
    /// Allocates a domain on an open device, without publishing it.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Pd>> {
        let number = region::alloc_domain(context.id())?;
        let public = ibv_pd { context: context.c_address(), handle: number };
        Ok(Arc::new(Pd { public: CStruct::new(public), context: Arc::clone(context), number, parent: None }))
    }

    /// Frees the card's domain.
    ///
    /// # Errors
    /// EBUSY while memory keys or queue pairs use it.
    pub fn dealloc(&self) -> Result<()> {
        region::free_domain(self.context.id(), self.number)
    }
}

/// A thread domain. It has no effect: every object may be used by every thread.
pub(crate) struct Td {
    public: CStruct<ibv_td>,
    context: Arc<Context>,
}

impl Object for Td {
    const KIND: &'static str = "thread domain";
    type C = ibv_td;
    fn c_address(&self) -> *mut ibv_td {
        self.public.get()
    }
}

pub(crate) unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer("ibv_alloc_td", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: null, or initialised as the manual page asks.
        let comp_mask = unsafe { input(attr, "init_attr") }?.comp_mask;
        if comp_mask != 0 {
            return Err(Errno::unsupported(format!("comp_mask {comp_mask:#x} of ibv_td_init_attr: no bit is known")));
        }
        let public = CStruct::new(ibv_td { context: context.c_address() });
        Ok(handle::publish(&Arc::new(Td { public, context })))
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status("ibv_dealloc_td", || {
        let object = handle::get::<Td>(td)?;
        // This call and the set of live handles hold it as well.
        if Arc::strong_count(&object) > 2 {
            return Err(Errno::new(libc::EBUSY, "a parent domain has the thread domain: deallocate that first"));
        }
        handle::retire::<Td>(td)?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer("ibv_alloc_parent_domain", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "attr") }?;
        let pd = handle::get::<Pd>(attr.pd)?;
        let td = if attr.td.is_null() { None } else { Some(handle::get::<Td>(attr.td)?) };
        let of_td = td.as_ref().map_or(&context, |td| &td.context);
        if !Arc::ptr_eq(&pd.context, &context) || !Arc::ptr_eq(of_td, &context) {
            return Err(Errno::invalid("protection domain or thread domain belong to another device context"));
        }
        // The context is for the allocators alone.
        if attr.comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
            return Err(Errno::unsupported(format!(
                "comp_mask {:#x} of ibv_parent_domain_init_attr: queues are in memory that this library allocates, and \
                 not in that of allocators ({IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS:#x})",
                attr.comp_mask
            )));
        }
        let number = pd.number;
        let public = CStruct::new(ibv_pd { context: context.c_address(), handle: number });
        Ok(handle::publish(&Arc::new(Pd { public, context, number, parent: Some((pd, td)) })))
    })
}

struct Mr {
    public: CStruct<ibv_mr>,
    inner: Mutex<Registered>,
}

struct Registered {
    region: Region,
    access: Access,
    /// Held so that the domain is not deallocated first, and the memory on the card not freed.
    pd: Arc<Pd>,
    dm: Option<Arc<Dm>>,
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
    let access = Access::from_bits(flags).ok_or_else(|| {
        Errno::unsupported(format!("access flags {flags:#x}: local write, remote ones and window binding are known"))
    })?;
    let remote_change = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if remote_change && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::invalid("remote write access needs local write access as well"));
    }
    Ok(access)
}

/// The rights that a memory window gives to peers.
pub(crate) fn window_rights(flags: u32) -> Result<Access> {
    const POSSIBLE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    // The right to write locally says nothing of peers, and is taken as mlx5 takes it: for no right at all.
    if flags & !(POSSIBLE | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED) != 0 {
        return Err(Errno::invalid(format!("mw_access_flags {flags:#x}: remote rights ({POSSIBLE:#x}) are possible")));
    }
    Ok(Access::from_bits_truncate(flags & POSSIBLE))
}

/// The key of a live region.
pub(crate) fn key_of(mr: *mut ibv_mr) -> Result<u32> {
    Ok(handle::get::<Mr>(mr)?.lock().region.key)
}

/// Registers memory; `iova` is its address under the key, unless the flags ask for 0.
fn register(pd: *mut ibv_pd, addr: *mut c_void, bytes: usize, iova: u64, access: u32) -> Result<*mut ibv_mr> {
    let pd = handle::get::<Pd>(pd)?;
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    let on_demand = access & IBV_ACCESS_ON_DEMAND != 0;
    if on_demand && addr.is_null() && bytes == usize::MAX {
        return Err(Errno::unsupported(
            "a region of the whole address space (implicit on-demand paging) is not emulated",
        ));
    }
    let rights = access_rights(access & !IBV_ACCESS_ZERO_BASED & !IBV_ACCESS_ON_DEMAND)?;
    // The caller keeps the range mapped until `ibv_dereg_mr`, and leaves it to the card, as the manual page asks.
    let region =
        Region::register_at(pd.context.id(), pd.number, (addr as u64, bytes as u64), iova, (rights, on_demand))?;
    Ok(publish(Registered { region, access: rights, pd, dm: None }, addr, bytes))
}

/// Pages are fetched when the card needs them, and not before.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status("ibv_advise_mr", || {
        handle::get::<Pd>(pd)?;
        if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(Errno::invalid(format!("advice {advice} with flags {flags:#x}: 0 to 2 are known, and flag 1")));
        }
        // SAFETY: null, or as many initialised entries as the caller says.
        unsafe { segments(list, count.cast_signed(), u32::MAX) }.map(drop)
    })
}

fn publish(registered: Registered, addr: *mut c_void, bytes: usize) -> *mut ibv_mr {
    let (pd, key) = (&registered.pd, registered.region.key);
    let public = ibv_mr {
        context: pd.context.c_address(),
        pd: pd.c_address(),
        addr,
        length: bytes,
        handle: key,
        lkey: key,
        rkey: key,
    };
    handle::publish(&Arc::new(Mr { public: CStruct::new(public), inner: Mutex::new(registered) }))
}

/// A key over memory on the card. Its addresses begin with 0, as those of mlx5's provider do.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer("ibv_reg_dm_mr", || {
        let (pd, dm) = (handle::get::<Pd>(pd)?, handle::get::<Dm>(dm)?);
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Errno::invalid(format!(
                "access flags {access:#x}: keys of memory on the card begin with address 0, so \
                 IBV_ACCESS_ZERO_BASED ({IBV_ACCESS_ZERO_BASED:#x}) is needed"
            )));
        }
        let access = access_rights(access & !IBV_ACCESS_ZERO_BASED)?;
        let addr = dm.range(offset, length)?;
        let region = Region::register_at(pd.context.id(), pd.number, (addr, length as u64), 0, (access, false))?;
        Ok(publish(Registered { region, access, pd, dm: Some(dm) }, core::ptr::null_mut(), length))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr", || register(pd, addr, length, addr as u64, access.cast_unsigned()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr_iova2", || register(pd, addr, length, iova, access))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr_iova", || register(pd, addr, length, iova, access.cast_unsigned()))
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
        handle::get::<Mr>(mr)?.lock().region.deregister()?;
        handle::retire::<Mr>(mr)?;
        Ok(())
    })
}

impl Mr {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a region another range, protection domain or rights. It keeps its key: what is under way by that finds what
/// the region has become.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const KNOWN: u32 = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let failed = status("ibv_rereg_mr", || {
        let object = handle::get::<Mr>(mr)?;
        let flags = flags.cast_unsigned();
        if flags & !KNOWN != 0 || flags & KNOWN == 0 {
            return Err(Errno::invalid(format!("flags {flags:#x}: some of {KNOWN:#x} are needed")));
        }
        let mut inner = object.lock();
        if inner.dm.is_some() {
            return Err(Errno::unsupported("a key of memory on the card keeps what it has: register another one"));
        }
        let new_pd = if flags & IBV_REREG_MR_CHANGE_PD == 0 { Arc::clone(&inner.pd) } else { handle::get::<Pd>(pd)? };
        if !Arc::ptr_eq(&new_pd.context, &inner.pd.context) {
            return Err(Errno::invalid("the protection domain belongs to another device context"));
        }
        let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
        let range = moves.then_some((addr as u64, length as u64));
        let changes = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
        let rights = if changes { access_rights(access.cast_unsigned())? } else { inner.access };
        inner.region.change(new_pd.number, range, rights)?;
        inner.access = rights;
        let public = object.public.get();
        // SAFETY: fields of the structure, which lives as long as the object. By the C contract nobody reads them
        // during this call.
        unsafe {
            (&raw mut (*public).pd).write(new_pd.c_address());
            if moves {
                (&raw mut (*public).addr).write(addr);
                (&raw mut (*public).length).write(length);
            }
        }
        inner.pd = new_pd;
        Ok(())
    });
    // The region is as before.
    if failed == 0 { 0 } else { IBV_REREG_MR_ERR_INPUT }
}
