//! Endpoints: identifiers that are made of what `rdma_getaddrinfo` finds, with a queue pair, and calls that wait.

use core::ffi::c_int;
use std::sync::Arc;

use emu_libibverbs::errno::{Errno, Result, input, number, out};
use emu_libibverbs::handle::{self, Object as _};
use verbs_sys::*;

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::Channel;
use crate::events;
use crate::id::{Id, Passive};
use crate::identifiers;
use crate::queue_pair;
use crate::resolve;

/// Makes the endpoint; the caller destroys it if that fails halfway.
unsafe fn set_up(
    id: &Arc<Id>,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    if res.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: `rdma_getaddrinfo` has made it.
        resolve::bind(id, unsafe { Endpoint::read(res.ai_src_addr, "ai_src_addr") }?)?;
        if let Some(attr) = qp_init_attr {
            let qp_type = id.seen(|public| public.qp_type);
            id.lock().passive = Some(Passive { pd: pd as usize, attr: ibv_qp_init_attr { qp_type, ..*attr } });
        }
        return Ok(());
    }
    // SAFETY: `rdma_getaddrinfo` has made them.
    let (source, remote) = unsafe {
        let source =
            (!res.ai_src_addr.is_null()).then(|| Endpoint::read(res.ai_src_addr, "ai_src_addr")).transpose()?;
        (source, Endpoint::read(res.ai_dst_addr, "ai_dst_addr")?)
    };
    if res.ai_route_len != 0 {
        return Err(Errno::unsupported("ai_route is a path of InfiniBand: the cards are of Ethernet"));
    }
    resolve::resolve_address(id, source, remote)?;
    resolve::resolve_route(id)?;
    if let Some(attr) = qp_init_attr {
        attr.qp_type = id.seen(|public| public.qp_type);
        queue_pair::create_plain(id, pd, attr)?;
    }
    if res.ai_connect_len != 0 && !res.ai_connect.is_null() {
        // SAFETY: the structure says how long it is.
        let data = unsafe { core::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.lock().connect_data = data.to_vec();
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_ep", || {
        // SAFETY: as the manual page asks.
        let (id, res, attr) = unsafe { (out(id, "id")?, input(res, "res")?, qp_init_attr.as_mut()) };
        let space = identifiers::space(res.ai_port_space.cast_unsigned())?;
        let made = identifiers::create(core::ptr::null_mut(), core::ptr::null_mut(), space)?;
        let fits = made.seen(|public| res.ai_qp_type == 0 || res.ai_qp_type.cast_unsigned() == public.qp_type);
        let ready = if fits {
            // SAFETY: as above.
            unsafe { set_up(&made, res, pd, attr) }
        } else {
            Err(Errno::unsupported(format!(
                "ai_qp_type {}: identifiers of RDMA_PS_TCP are RC ({IBV_QPT_RC}), those of RDMA_PS_UDP \
                 UD ({IBV_QPT_UD})",
                res.ai_qp_type
            )))
        };
        if let Err(error) = ready {
            let _ = take_down(&made);
            return Err(error);
        }
        id.write(made.c_address());
        Ok(0)
    })
}

fn take_down(id: &Arc<Id>) -> Result<()> {
    if !id.qp().is_null() {
        queue_pair::destroy(id)?;
    }
    if id.seen(|public| !public.srq.is_null()) {
        queue_pair::destroy_srq(id)?;
    }
    identifiers::destroy("rdma_destroy_ep", id.c_address())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    number("rdma_destroy_ep", || {
        take_down(&handle::get::<Id>(id)?)?;
        Ok(0)
    });
}

/// Waits for the next request of a listening endpoint. The new identifier has a queue pair, if the endpoint was made
/// with attributes for one, and its calls wait, too.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    number("rdma_get_request", || {
        let listen = handle::get::<Id>(listen)?;
        // SAFETY: the manual page asks for a writable place.
        let id = unsafe { out(id, "id") }?;
        let channel = {
            let inner = listen.lock();
            inner.waits.then(|| Arc::clone(&inner.channel))
        };
        let channel = channel.ok_or_else(|| {
            Errno::invalid("the identifier reports to a channel of the program's: take the request from there")
        })?;
        events::acknowledge_kept(&listen)?;
        let event = events::next(&channel)?;
        // SAFETY: an event that was just published.
        let (kind, status, asked) = unsafe { ((*event).event, (*event).status, (*event).id) };
        let result = if status != 0 {
            Err(Errno::new(status.abs(), format!("an event with status {status}")))
        } else if kind != RDMA_CM_EVENT_CONNECT_REQUEST {
            Err(Errno::invalid(format!("event {kind} in the place of a request")))
        } else {
            handle::get::<Id>(asked).map_err(Errno::from).and_then(|asked| {
                identifiers::migrate(&asked, Channel::open()?, true)?;
                let passive = listen.lock().passive.as_ref().map(|passive| (passive.pd, passive.attr));
                if let Some((pd, mut attr)) = passive {
                    queue_pair::create_plain(&asked, pd as *mut ibv_pd, &mut attr)?;
                }
                Ok(asked)
            })
        };
        match result {
            Ok(asked) => {
                asked.show(|public| public.event = event);
                id.write(asked.c_address());
                Ok(0)
            }
            Err(error) => {
                // The next call acknowledges it.
                listen.show(|public| public.event = event);
                Err(error)
            }
        }
    })
}
