//! The queue pair of a port's general services, which the kernel has to itself on a real host: the emulator's
//! connection manager makes it.

use verbs_sys::*;

use crate::errno::{Errno, Result};
use crate::handle;
use crate::pd::Pd;
use crate::qp::{self, Extras};

/// Makes queue pair 1 of the port of a domain's card: UD, as `attr` says else.
///
/// # Errors
/// EBUSY: it exists. EOPNOTSUPP: the card is another process's. Or as `ibv_create_qp`.
pub fn create_gsi(pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp> {
    let pd = handle::get::<Pd>(pd)?;
    if attr.qp_type != IBV_QPT_UD {
        return Err(Errno::invalid(format!("queue pair type {} for general services: UD is needed", attr.qp_type)));
    }
    Ok(handle::publish(&qp::create(pd, attr, Extras { gsi: true, ..Extras::default() })?))
}
