//! Symbols that only programs in C use, and those for what the emulated DPA does not have: these fail and set `errno`.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::rtos;
use crate::symbols::{ERRNO_UNSUPPORTED, FAILED, context, set_errno};

/// Where the runtime puts the thread's name, behind the thread context.
const NAME_OFFSET: usize = 0x40;

fn unsupported() -> u32 {
    set_errno(ERRNO_UNSUPPORTED);
    FAILED
}

/// Suspends a continuable handler, which triggers itself; in any other without effect.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_yield_and_retrigger() {
    rtos::call(rtos::YIELD_AND_RETRIGGER, [0; 4]);
}

/// The name of this thread, ending in a NUL: `EH_<process>_<thread>`.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_get_current_thread_name() -> *const c_char {
    // Behind the context, in the page that the runtime maps for it.
    context().cast::<u8>().wrapping_add(NAME_OFFSET).cast()
}

/// Copying from host memory: refused, as by the vendor's library.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_multi_window_copy_from_host(
    _entity: u32,
    _to: *mut c_void,
    _host_address: u64,
    _bytes: u32,
) -> u32 {
    unsupported()
}

/// Table of congestion control: there is none, which is address 0.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_get_pcc_table_base(_vhca: u16) -> u64 {
    unsupported();
    0
}

/// Doorbell of another function's queue: refused, an emulated card shows one function to its DPA.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_cross_device_ring_db(_device_id: u32, _qpn: u32, _producer: u32) -> u32 {
    unsupported()
}

static COUNTER_VALUES: AtomicPtr<u32> = AtomicPtr::new(null_mut());
static COUNTER_IDS: AtomicPtr<u32> = AtomicPtr::new(null_mut());
static COUNTERS: AtomicU32 = AtomicU32::new(0);

/// A counter that no card has: the runtime ends the process because none is configured.
const NO_COUNTER: u64 = u64::MAX;

/// Says which counters [`flexio_dev_nic_counters_sample`] stores, and where; for all threads of the process. Ends the
/// process for a counter that the card has not, and for an address that is not the process's.
///
/// # Safety
/// `values` and `ids` stay valid for `count` words until the next call of this function; `values` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_dev_nic_counters_config(values: *mut u32, ids: *mut u32, count: u32) {
    COUNTERS.store(0, Ordering::Release);
    for at in 0..count as usize {
        // SAFETY: the caller vouches for `count` words behind both; an address that is none is a fault of this process.
        let id = unsafe {
            values.add(at).write_volatile(0);
            ids.add(at).read_volatile()
        };
        rtos::call(rtos::NIC_COUNTER, [u64::from(id), 0, 0, 0]);
    }
    COUNTER_VALUES.store(values, Ordering::Relaxed);
    COUNTER_IDS.store(ids, Ordering::Relaxed);
    COUNTERS.store(count, Ordering::Release);
}

/// Stores the low 32 bits of each configured counter. Ends the process if none is configured.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_dev_nic_counters_sample() {
    let count = COUNTERS.load(Ordering::Acquire) as usize;
    let (values, ids) = (COUNTER_VALUES.load(Ordering::Relaxed), COUNTER_IDS.load(Ordering::Relaxed));
    if count == 0 {
        rtos::call(rtos::NIC_COUNTER, [NO_COUNTER, 0, 0, 0]);
    }
    for at in 0..count {
        // SAFETY: the configuring call vouches for `count` words behind both.
        let id = unsafe { ids.add(at).read() };
        let value = rtos::call(rtos::NIC_COUNTER, [u64::from(id), 0, 0, 0]);
        // SAFETY: as above.
        unsafe { values.add(at).write(value as u32) };
    }
}
