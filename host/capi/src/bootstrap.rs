//! Bootstrap: exchanges by TCP, environment or callback.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::rc::Rc;
use std::time::Duration;

use flexcast_rust::Error;
use flexcast_rust::bootstrap::{CallbackExchange, Exchange, StoreConfig, StoreError, TcpStore};

use crate::fault::{Fault, call, own};
use crate::handle;
use crate::memory::{out, text};
use crate::status::flexcast_status::{self, *};

/// The ranks of a job before they are connected. Made by one of the flexcast_bootstrap_...() functions.
pub struct flexcast_bootstrap {
    _opaque: [u8; 0],
}

/// Gathers: gets `bytes` bytes at `mine`, as many on all ranks, and fills `all`, size times as long, with those of every rank in the order
/// of ranks, as MPI_Allgather does with MPI_BYTE. `user` is what flexcast_bootstrap_callback() got. Returns 0, or anything else for a failure:
/// then all ranks' should fail, rather than wait for ever. It must return: neither longjmp nor an exception may leave it.
pub type flexcast_exchange =
    Option<unsafe extern "C" fn(user: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void) -> c_int>;

pub(crate) struct Bootstrap {
    exchange: RefCell<Box<dyn Exchange>>,
}

impl Bootstrap {
    pub(crate) fn new(exchange: Box<dyn Exchange>) -> Self {
        Self { exchange: RefCell::new(exchange) }
    }

    /// Uses the exchange, unless this call comes from inside of it.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut dyn Exchange) -> Result<R, Fault>) -> Result<R, Fault> {
        let text = "the bootstrap is in use by the call from which its callback was made: return from it first";
        let mut exchange = self.exchange.try_borrow_mut().map_err(|_| Fault::new(FLEXCAST_ERROR_BUSY, text))?;
        body(&mut **exchange)
    }
}

/// A rank or a number of ranks as C has it.
pub(crate) fn count(value: c_int, what: &str) -> Result<u32, Fault> {
    u32::try_from(value)
        .map_err(|_| Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("{what} is {value}: must not be negative")))
}

/// Ranks that exchange by a function of the program; `user` is given to it. It is called from flexcast_comm_create() and
/// flexcast_comm_split() only, on their thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_callback(
    exchange: flexcast_exchange,
    user: *mut c_void,
    rank: c_int,
    size: c_int,
    bootstrap: *mut *mut flexcast_bootstrap,
) -> flexcast_status {
    call(|| {
        own()?;
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(bootstrap, "bootstrap") }?;
        let exchange = exchange.ok_or_else(|| Fault::null("exchange"))?;
        let gather = move |mine: &[u8], all: &mut [u8]| {
            // SAFETY: the function is the program's, `user` its own; the lengths are those that the type promises.
            let code = unsafe { exchange(user, mine.as_ptr().cast(), mine.len(), all.as_mut_ptr().cast()) };
            if code == 0 { Ok(()) } else { Err(format!("it returned {code}").into()) }
        };
        let exchange =
            CallbackExchange::new(count(rank, "rank")?, count(size, "size")?, gather).map_err(Error::from)?;
        place.put(handle::insert(Rc::new(Bootstrap::new(Box::new(exchange))))?);
        Ok(())
    })
}

/// Ranks that meet over TCP: rank 0 listens at `address` ("host:port"), the others connect. `job` tells jobs apart that meet at one port by
/// mistake; may be NULL. Waits for all ranks, and in every exchange, `timeout_ms` milliseconds and a few seconds at most; 0: a minute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_tcp(
    address: *const c_char,
    job: *const c_char,
    rank: c_int,
    size: c_int,
    timeout_ms: u64,
    bootstrap: *mut *mut flexcast_bootstrap,
) -> flexcast_status {
    call(|| {
        own()?;
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(bootstrap, "bootstrap") }?;
        let (rank, size) = (count(rank, "rank")?, count(size, "size")?);
        // SAFETY: null or a C string, for the duration of the call; the same below.
        let address = unsafe { text(address, "address") }?.ok_or_else(|| Fault::null("address"))?;
        // SAFETY: as above.
        let job = unsafe { text(job, "job") }?.unwrap_or_default();
        let timeout = if timeout_ms == 0 { StoreConfig::TIMEOUT } else { Duration::from_millis(timeout_ms) };
        let config = StoreConfig { job: job.to_owned(), timeout, ..StoreConfig::new(rank, size, address) };
        place.put(join(TcpStore::join(config))?);
        Ok(())
    })
}

/// The same with what the environment says: FLEXCAST_RANK, FLEXCAST_SIZE, FLEXCAST_STORE ("host:port") and FLEXCAST_JOB (may be absent).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_environment(bootstrap: *mut *mut flexcast_bootstrap) -> flexcast_status {
    call(|| {
        own()?;
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(bootstrap, "bootstrap") }?;
        place.put(join(TcpStore::from_env())?);
        Ok(())
    })
}

fn join(store: Result<TcpStore, StoreError>) -> Result<*mut flexcast_bootstrap, Fault> {
    let store = store.map_err(|error| Fault::new(FLEXCAST_ERROR_EXCHANGE, error.to_string()))?;
    handle::insert(Rc::new(Bootstrap::new(Box::new(store))))
}

/// Who the calling process is, and of how many. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_rank(
    bootstrap: *mut flexcast_bootstrap,
    rank: *mut c_int,
    size: *mut c_int,
) -> flexcast_status {
    call(|| {
        let bootstrap = handle::get::<Bootstrap>(bootstrap)?;
        let (own, all) = bootstrap.with(|exchange| Ok((exchange.rank(), exchange.size())))?;
        for (place, value) in [(rank, own), (size, all)].into_iter().filter(|(place, _)| !place.is_null()) {
            // SAFETY: not null, so a place for an int.
            unsafe { out(place, "rank") }?.put(value as c_int);
        }
        Ok(())
    })
}

/// Ends it; communicators that it has made stay. Refused (FLEXCAST_ERROR_BUSY) from inside its own callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_free(bootstrap: *mut flexcast_bootstrap) -> flexcast_status {
    call(|| {
        handle::get::<Bootstrap>(bootstrap)?.with(|_| Ok(()))?;
        handle::remove::<Bootstrap>(bootstrap).map(drop)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flexcast_rust::bootstrap::ExchangeError;

    /// The only rank.
    pub(crate) struct Alone;

    impl Exchange for Alone {
        fn rank(&self) -> u32 {
            0
        }
        fn size(&self) -> u32 {
            1
        }
        fn exchange(&mut self, _: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
            Ok(vec![contribution.to_vec()])
        }
    }

    unsafe extern "C" fn fails(_: *mut c_void, _: *const c_void, _: usize, _: *mut c_void) -> c_int {
        42
    }

    #[test]
    fn wrong_ranks_and_null_pointers_are_reported() {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle, a function of the right type, C strings.
        unsafe {
            let mut make = |rank, size| {
                flexcast_bootstrap_callback(Some(fails), std::ptr::null_mut(), rank, size, &raw mut handle)
            };
            assert_eq!(make(-1, 4), FLEXCAST_ERROR_ARGUMENT);
            assert_eq!(make(4, 4), FLEXCAST_ERROR_RANK);
            assert_eq!(make(0, 0), FLEXCAST_ERROR_RANK);
            assert_eq!(make(3, 4), FLEXCAST_OK);
            let null = std::ptr::null_mut();
            assert_eq!(flexcast_bootstrap_callback(None, null, 0, 1, &raw mut handle), FLEXCAST_ERROR_NULL);
            assert_eq!(flexcast_bootstrap_callback(Some(fails), null, 0, 1, std::ptr::null_mut()), FLEXCAST_ERROR_NULL);
            let tcp = |address, place| flexcast_bootstrap_tcp(address, std::ptr::null(), 0, 2, 100, place);
            let mut other = std::ptr::null_mut();
            assert_eq!(tcp(std::ptr::null(), &raw mut other), FLEXCAST_ERROR_NULL);
            assert_eq!(tcp(c"nowhere".as_ptr(), &raw mut other), FLEXCAST_ERROR_EXCHANGE);
            assert_eq!(tcp(c"\xff:1".as_ptr(), &raw mut other), FLEXCAST_ERROR_ARGUMENT);
            assert!(other.is_null(), "nothing was made");
            let (mut rank, mut size) = (0, 0);
            assert_eq!(flexcast_bootstrap_rank(handle, &raw mut rank, &raw mut size), FLEXCAST_OK);
            assert_eq!((rank, size), (3, 4));
            let failed = handle::get::<Bootstrap>(handle)
                .unwrap()
                .with(|exchange| Ok(exchange.exchange("x", b"mine").unwrap_err().to_string()));
            assert!(failed.unwrap().contains("it returned 42"));
            assert_eq!(flexcast_bootstrap_free(handle), FLEXCAST_OK);
            assert_eq!(flexcast_bootstrap_free(handle), FLEXCAST_ERROR_HANDLE);
        }
    }
}
