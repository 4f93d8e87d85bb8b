//! Options of identifiers.

use core::ffi::{c_int, c_void};

use emu_libibverbs::errno::{Errno, Result, number};
use emu_libibverbs::handle;

use crate::abi::*;
use crate::id::{Id, Stage};

/// Largest code of a time.
const LAST_TIMEOUT: u8 = 31;

/// The value of an option.
///
/// # Safety
/// If not null, `optval` must point at `optlen` bytes.
unsafe fn value<T: Copy>(optval: *const c_void, optlen: usize, name: &str) -> Result<T> {
    if optval.is_null() || optlen != size_of::<T>() {
        return Err(Errno::invalid(format!("{name} has {} bytes: optlen is {optlen}", size_of::<T>())));
    }
    // SAFETY: not null, and as long as it must be; `T` is an integer.
    Ok(unsafe { optval.cast::<T>().read_unaligned() })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    number("rdma_set_option", || {
        let id = handle::get::<Id>(id)?;
        match (level, optname) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                // SAFETY: the manual page asks for so many bytes.
                id.lock().traffic_class = unsafe { value(optval, optlen, "RDMA_OPTION_ID_TOS") }?;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                // SAFETY: as above.
                let reuse: c_int = unsafe { value(optval, optlen, "RDMA_OPTION_ID_REUSEADDR") }?;
                let mut inner = id.lock();
                if inner.stage != Stage::Idle {
                    return Err(Errno::invalid("RDMA_OPTION_ID_REUSEADDR comes before the identifier has a port"));
                }
                inner.reuse = reuse != 0;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                // Ports of IPv4 and of IPv6 are distinct in any case.
                // SAFETY: as above.
                let _: c_int = unsafe { value(optval, optlen, "RDMA_OPTION_ID_AFONLY") }?;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                // SAFETY: as above.
                let timeout: u8 = unsafe { value(optval, optlen, "RDMA_OPTION_ID_ACK_TIMEOUT") }?;
                if timeout > LAST_TIMEOUT {
                    return Err(Errno::invalid(format!(
                        "RDMA_OPTION_ID_ACK_TIMEOUT is {timeout}: 0 to {LAST_TIMEOUT}"
                    )));
                }
                id.lock().ack_timeout = Some(timeout);
            }
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
                return Err(Errno::unsupported(
                    "RDMA_OPTION_IB_PATH is a path of InfiniBand: the cards are of Ethernet",
                ));
            }
            (level, optname) => {
                return Err(Errno::invalid(format!(
                    "option {optname} of level {level}: level 0 has 0 (type of service), 1 (reuse of addresses), 2 \
                     (address family) and 3 (acknowledgement timeout)"
                )));
            }
        }
        Ok(0)
    })
}
