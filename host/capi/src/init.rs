//! The communicator of all ranks of a job, with the endpoint and the bootstrap that it needs, made by one call.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::asked::Asked;
use crate::bootstrap::{Bootstrap, flexcast_exchange};
use crate::communicator::{World, create, flexcast_comm};
use crate::config::flexcast_config;
use crate::endpoint::{EndpointSlot, flexcast_endpoint_options};
use crate::fault::{call, own};
use crate::memory::{out, sized};
use crate::status::flexcast_status;

/// What flexcast_init() may be given. To be zeroed, and given its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_init_options {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// The endpoint; NULL: what the variables say.
    pub endpoint: *const flexcast_endpoint_options,
    /// Parameters of the communicator; NULL: the defaults, and what the variables say.
    pub config: *const flexcast_config,
    /// How ranks exchange, as for flexcast_bootstrap_callback(); NULL: as flexcast_bootstrap_environment().
    pub exchange: flexcast_exchange,
    /// Given to `exchange`.
    pub user: *mut c_void,
    /// The own rank, if there is an `exchange`.
    pub rank: c_int,
    /// How many ranks there are, if there is an `exchange`.
    pub ranks: c_int,
}

const NOTHING: flexcast_init_options = flexcast_init_options {
    size: size_of::<flexcast_init_options>(),
    endpoint: std::ptr::null(),
    config: std::ptr::null(),
    exchange: None,
    user: std::ptr::null_mut(),
    rank: 0,
    ranks: 0,
};

/// Opens the endpoint, meets the other ranks, and makes the communicator of all of them: flexcast_endpoint_open(),
/// flexcast_bootstrap_environment() and flexcast_comm_create() in one. `options` may be NULL. flexcast_comm_free() of
/// this communicator closes the endpoint, too; flexcast_comm_endpoint() gives it, for flexcast_buffer_invalidate() and
/// others. flexcast_comm_split() takes NULL as its bootstrap. A process that opens its endpoint itself, or makes more
/// than one communicator of all ranks, calls the three functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_init(
    options: *const flexcast_init_options,
    comm: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(comm, "comm") }?;
        // SAFETY: null, or a structure that begins with its size.
        let given = unsafe { sized(options, NOTHING, "options") }?;
        // SAFETY: as the header asks of the caller.
        let asked = unsafe { Asked::read(given.endpoint, |name| std::env::var_os(name)) }?;
        own()?;
        let endpoint = Arc::new(asked.open()?);
        let bootstrap = match given.exchange {
            Some(_) => Bootstrap::callback(given.exchange, given.user, given.rank, given.ranks)?,
            None => Bootstrap::environment()?,
        };
        // SAFETY: as the header asks of the caller.
        let (creation, used) = unsafe { create(&endpoint, &bootstrap, given.config) }?;
        let made = creation.wait()?;
        place.put(World::handle(EndpointSlot::of(endpoint), bootstrap, made, used)?);
        Ok(())
    })
}
