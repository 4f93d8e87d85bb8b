//! Memory on the card (`ibv_alloc_dm`): here it is memory of this process, which only the card and this library reach.
//! Its accesses take the time of accesses to host memory.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use emu_machine::FunctionId;
use verbs_sys::*;

use crate::card;
use crate::device::{Context, MAX_DM_BYTES};
use crate::errno::{Errno, Result, input, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::memory::QueueBuffer;

/// Copies are of whole words, as through mlx5's window.
const WORD_BYTES: u64 = 4;

pub(crate) struct Dm {
    public: CStruct<ibv_dm>,
    /// Keeps the address in `public.context` valid.
    context: Arc<Context>,
    buffer: QueueBuffer,
    bytes: u64,
}

impl Object for Dm {
    const KIND: &'static str = "memory on the card";
    type C = ibv_dm;
    fn c_address(&self) -> *mut ibv_dm {
        self.public.get()
    }
}

/// Bytes in use, by function.
static IN_USE: Mutex<BTreeMap<FunctionId, u64>> = Mutex::new(BTreeMap::new());

impl Drop for Dm {
    fn drop(&mut self) {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = in_use.get_mut(&self.context.id()) {
            *bytes = bytes.saturating_sub(self.bytes);
        }
    }
}

impl Dm {
    /// The address of part of it.
    pub(crate) fn range(&self, offset: u64, bytes: usize) -> Result<u64> {
        let end = offset.checked_add(bytes as u64).filter(|&end| bytes > 0 && end <= self.bytes);
        end.map(|_| self.buffer.addr() + offset).ok_or_else(|| {
            Errno::invalid(format!("{bytes} bytes at offset {offset}: the memory on the card has {} bytes", self.bytes))
        })
    }

    /// The same, of a copy.
    fn words(&self, offset: u64, bytes: usize) -> Result<usize> {
        if !offset.is_multiple_of(WORD_BYTES) || !(bytes as u64).is_multiple_of(WORD_BYTES) {
            return Err(Errno::new(
                libc::EFAULT,
                format!("{bytes} bytes at offset {offset}: both must be multiples of {WORD_BYTES}"),
            ));
        }
        self.range(offset, bytes).map(|_| offset as usize).map_err(|error| Errno::new(libc::EFAULT, error.reason))
    }
}

pub(crate) unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    pointer("ibv_alloc_dm", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "attr") }?;
        if attr.comp_mask != 0 || attr.log_align_req > 12 {
            return Err(Errno::invalid(format!(
                "comp_mask {:#x}, log_align_req {}: no bit is known, and 12 (4 KiB) is the most",
                attr.comp_mask, attr.log_align_req
            )));
        }
        let bytes = attr.length as u64;
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let used = in_use.entry(context.id()).or_default();
        if bytes == 0 || bytes > MAX_DM_BYTES - *used {
            return Err(Errno::new(
                libc::ENOMEM,
                format!("{bytes} bytes on the card: {} of its {MAX_DM_BYTES} are free", MAX_DM_BYTES - *used),
            ));
        }
        let buffer = QueueBuffer::new(context.id(), attr.length)?;
        *used += bytes;
        drop(in_use);
        let public = ibv_dm {
            context: context.c_address(),
            memcpy_to_dm: Some(copy_to),
            memcpy_from_dm: Some(copy_from),
            ..Default::default()
        };
        Ok(handle::publish(&Arc::new(Dm { public: CStruct::new(public), context, buffer, bytes })))
    })
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status("ibv_free_dm", || {
        let object = handle::get::<Dm>(dm)?;
        // This call and the set of live handles hold it as well.
        let keys = Arc::strong_count(&object).saturating_sub(2);
        if keys > 0 {
            return Err(Errno::new(
                libc::EBUSY,
                format!("{keys} keys of the memory still exist: deregister them first"),
            ));
        }
        handle::retire::<Dm>(dm)?;
        Ok(())
    })
}

unsafe extern "C" fn copy_to(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    status("ibv_memcpy_to_dm", || {
        let dm = handle::get::<Dm>(dm)?;
        let at = dm.words(offset, length)?;
        // SAFETY: null, or readable for `length` bytes as the manual page asks.
        let bytes = unsafe { core::slice::from_raw_parts(input(from.cast::<u8>(), "host_addr")?, length) };
        dm.buffer.store(at, bytes)
    })
}

unsafe extern "C" fn copy_from(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    status("ibv_memcpy_from_dm", || {
        let dm = handle::get::<Dm>(dm)?;
        let at = dm.words(offset, length)?;
        if to.is_null() {
            return Err(Errno::invalid("host_addr is null"));
        }
        // SAFETY: writable for `length` bytes as the manual page asks; the source is inside the buffer, which no Rust
        // reference reaches, and the card does not write it under the machine's lock.
        card::access_shared(|| unsafe { core::ptr::copy_nonoverlapping(dm.buffer.at(at), to.cast::<u8>(), length) })
    })
}
