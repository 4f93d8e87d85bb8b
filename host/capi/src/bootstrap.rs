//! Bootstrap: exchanges by TCP, environment, or functions of the program.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flexcast_rust::Error;
use flexcast_rust::bootstrap::{CallbackExchange, Exchange, Secret, StoreConfig, StoreError, TcpStore};

use crate::creation::Gatherer;
use crate::fault::{Fault, call, lock, own};
use crate::gather::{Blocking, Gather, NonBlocking, Store};
use crate::handle::{self, Code, Kind};
use crate::memory::{User, count, out, sized, text};
use crate::status::flexcast_status::{self, *};

/// The ranks of a job before they are connected. Made by one of the flexcast_bootstrap_...() functions.
pub struct flexcast_bootstrap {
    _opaque: [u8; 0],
}

/// Gathers: gets `bytes` bytes at `mine`, as many on all ranks, and fills `all`, size times as long, with those of
/// every rank in the order of ranks, as MPI_Allgather does with MPI_BYTE. `user` is what flexcast_bootstrap_callback()
/// got. Returns 0, or anything else for a failure: then all ranks' should fail, rather than wait for ever. It must
/// return: neither longjmp nor an exception may leave it.
pub type flexcast_exchange =
    Option<unsafe extern "C" fn(user: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void) -> c_int>;

/// Functions that gather without blocking, as UCC's out-of-band Allgather does. To be zeroed, and given its size. All
/// of them are called on threads that are in flexcast_comm_create(), flexcast_comm_split(), flexcast_comm_test() or
/// flexcast_comm_free() of this bootstrap's communicators, by one thread at a time. They must return: neither longjmp
/// nor an exception may leave them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_allgather_functions {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// Begins to gather `bytes` bytes at `mine`, as many on all ranks, into `all`, which is as many times as long as
    /// there are ranks, in their order. Both stay until `free`. 0, and a handle of the program's in `handle`; or
    /// anything else for a failure.
    pub start: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            mine: *const c_void,
            all: *mut c_void,
            bytes: usize,
            handle: *mut *mut c_void,
        ) -> c_int,
    >,
    /// 0: over; 1: not yet; anything else: failed.
    pub test: Option<unsafe extern "C" fn(user: *mut c_void, handle: *mut c_void) -> c_int>,
    /// A handle is not used any more, over or not; may be NULL.
    pub free: Option<unsafe extern "C" fn(user: *mut c_void, handle: *mut c_void) -> c_int>,
    /// Given to all of them.
    pub user: *mut c_void,
    /// Longest that one takes, in milliseconds; 0: a minute.
    pub timeout_ms: u64,
}

/// Functions of a key-value store that all ranks share, such as the store of a PyTorch process group. To be zeroed, and
/// given its size. Called as those of flexcast_allgather_functions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_store_functions {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// Sets a key, which nobody has set, to `bytes` bytes. 0, or anything else for a failure.
    pub set: Option<
        unsafe extern "C" fn(user: *mut c_void, key: *const c_char, value: *const c_void, bytes: usize) -> c_int,
    >,
    /// Gets what a key was set to, `bytes` bytes. 0: it is there; 1: not yet, to be asked for again; anything else: a
    /// failure, such as another length.
    pub get:
        Option<unsafe extern "C" fn(user: *mut c_void, key: *const c_char, value: *mut c_void, bytes: usize) -> c_int>,
    /// Given to both.
    pub user: *mut c_void,
    /// Begins all keys; NULL: "flexcast". Alike on all ranks, and another one for every bootstrap of the same store.
    /// Copied.
    pub prefix: *const c_char,
    /// Longest that one exchange takes, in milliseconds; 0: a minute.
    pub timeout_ms: u64,
}

/// What ranks meet by.
pub(crate) struct Bootstrap {
    rank: u32,
    ranks: u32,
    /// None while something is made by it.
    exchange: Mutex<Option<Box<dyn Exchange + Send>>>,
    /// Functions of the program that it goes by.
    gatherer: Option<Arc<Gatherer>>,
}

impl Kind for Bootstrap {
    type Handle = flexcast_bootstrap;
    const CODE: Code = Code::Bootstrap;
}

/// The use of a bootstrap's exchange, which is given back.
pub(crate) struct InUse {
    bootstrap: Arc<Bootstrap>,
    exchange: Option<Box<dyn Exchange + Send>>,
}

impl InUse {
    pub(crate) fn exchange(&mut self) -> Result<&mut dyn Exchange, Fault> {
        match &mut self.exchange {
            Some(exchange) => Ok(&mut **exchange),
            None => Err(Fault::new(FLEXCAST_ERROR_INTERNAL, "a mistake of this library: the exchange is lost")),
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Ok(mut exchange) = lock(&self.bootstrap.exchange) {
            *exchange = self.exchange.take();
        }
    }
}

impl Bootstrap {
    pub(crate) fn new(exchange: Box<dyn Exchange + Send>) -> Self {
        let (rank, ranks) = (exchange.rank(), exchange.size());
        Self { rank, ranks, exchange: Mutex::new(Some(exchange)), gatherer: None }
    }

    /// One whose exchanges go by functions of the program.
    fn by(gather: impl Gather + 'static, rank: u32, ranks: u32, timeout: Duration) -> Result<Self, Fault> {
        let gatherer = Arc::new(Gatherer::new(Box::new(gather), timeout));
        let desk = Arc::clone(&gatherer.desk);
        let gather = move |mine: &[u8], all: &mut [u8]| {
            all.copy_from_slice(&desk.gather(mine)?);
            Ok(())
        };
        let exchange = CallbackExchange::new(rank, ranks, gather).map_err(Error::from)?;
        Ok(Self { gatherer: Some(gatherer), ..Self::new(Box::new(exchange)) })
    }

    /// Ranks that the environment names.
    pub(crate) fn environment() -> Result<Arc<Self>, Fault> {
        join(TcpStore::from_env())
    }

    /// Ranks that exchange by a function of the program.
    pub(crate) fn callback(
        exchange: flexcast_exchange,
        user: *mut c_void,
        rank: c_int,
        size: c_int,
    ) -> Result<Arc<Self>, Fault> {
        let (rank, ranks) = (count(rank, "rank")?, count(size, "size")?);
        let gather = exchange.ok_or_else(|| Fault::null("exchange"))?;
        let gather = Blocking { function: gather, user: User(user), ranks: ranks as usize, gathered: None };
        // The function has its own bounds, and returns only when it is over.
        Ok(Arc::new(Self::by(gather, rank, ranks, Duration::MAX)?))
    }

    /// Functions of the program that it goes by.
    pub(crate) fn gatherer(&self) -> Option<Arc<Gatherer>> {
        self.gatherer.clone()
    }

    /// Takes the exchange, unless something is being made by it.
    pub(crate) fn take(self: &Arc<Self>) -> Result<InUse, Fault> {
        let text = "the bootstrap is in use: a communicator is being made by it; wait for that (one that was given \
            up ends within the timeout), or return from the callback first";
        let exchange = lock(&self.exchange)?.take().ok_or_else(|| Fault::new(FLEXCAST_ERROR_BUSY, text))?;
        Ok(InUse { bootstrap: Arc::clone(self), exchange: Some(exchange) })
    }
}

/// The time that a program gives in milliseconds.
fn timeout(ms: u64) -> Duration {
    if ms == 0 { StoreConfig::TIMEOUT } else { Duration::from_millis(ms) }
}

/// Ranks that exchange by a function of the program; `user` is given to it. It is called on threads that are in
/// flexcast_comm_create(), flexcast_comm_split() or flexcast_comm_test() of this bootstrap's communicators, by one
/// thread at a time.
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
        place.put(handle::insert(Bootstrap::callback(exchange, user, rank, size)?)?);
        Ok(())
    })
}

/// Ranks that exchange by an Allgather of the program that does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_allgather(
    functions: *const flexcast_allgather_functions,
    rank: c_int,
    size: c_int,
    bootstrap: *mut *mut flexcast_bootstrap,
) -> flexcast_status {
    call(|| {
        own()?;
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(bootstrap, "bootstrap") }?;
        let (rank, ranks) = (count(rank, "rank")?, count(size, "size")?);
        let bytes = size_of::<flexcast_allgather_functions>();
        let user = std::ptr::null_mut();
        let none =
            flexcast_allgather_functions { size: bytes, start: None, test: None, free: None, user, timeout_ms: 0 };
        if functions.is_null() {
            return Err(Fault::null("functions"));
        }
        // SAFETY: not null; the structure begins with its size.
        let functions = unsafe { sized(functions, none, "functions") }?;
        let gather = NonBlocking {
            start: functions.start.ok_or_else(|| Fault::null("start"))?,
            test: functions.test.ok_or_else(|| Fault::null("test"))?,
            free: functions.free,
            user: User(functions.user),
            ranks: ranks as usize,
            under_way: None,
        };
        let made = Bootstrap::by(gather, rank, ranks, timeout(functions.timeout_ms))?;
        place.put(handle::insert(Arc::new(made))?);
        Ok(())
    })
}

/// Ranks that exchange by a key-value store of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_store(
    functions: *const flexcast_store_functions,
    rank: c_int,
    size: c_int,
    bootstrap: *mut *mut flexcast_bootstrap,
) -> flexcast_status {
    call(|| {
        own()?;
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(bootstrap, "bootstrap") }?;
        let (rank, ranks) = (count(rank, "rank")?, count(size, "size")?);
        let bytes = size_of::<flexcast_store_functions>();
        let (user, prefix) = (std::ptr::null_mut(), std::ptr::null());
        let none = flexcast_store_functions { size: bytes, set: None, get: None, user, prefix, timeout_ms: 0 };
        if functions.is_null() {
            return Err(Fault::null("functions"));
        }
        // SAFETY: not null; the structure begins with its size.
        let functions = unsafe { sized(functions, none, "functions") }?;
        // SAFETY: null or a C string, for the duration of the call.
        let prefix = unsafe { text(functions.prefix, "prefix") }?.unwrap_or("flexcast").to_owned();
        let gather = Store {
            set: functions.set.ok_or_else(|| Fault::null("set"))?,
            get: functions.get.ok_or_else(|| Fault::null("get"))?,
            user: User(functions.user),
            prefix,
            rank: rank as usize,
            ranks: ranks as usize,
            number: 0,
            bytes: 0,
            all: Vec::new(),
            missing: VecDeque::new(),
        };
        let made = Bootstrap::by(gather, rank, ranks, timeout(functions.timeout_ms))?;
        place.put(handle::insert(Arc::new(made))?);
        Ok(())
    })
}

/// Ranks that meet over TCP: rank 0 listens at `address` ("host:port"), the others connect. `job` distinguishes jobs
/// that meet at one port by mistake; may be NULL. Waits for all ranks, and in every exchange, `timeout_ms` milliseconds
/// and a few seconds at most; 0: a minute. `secret` is a string of 32 to 4096 bytes that was drawn at random, as
/// `head -c 32 /dev/urandom | base64` does, the same on all ranks: only they come together, and what they exchange is
/// encrypted. NULL: what the file says that the variable FLEXCAST_SECRET_FILE names, or FLEXCAST_SECRET, or else none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_tcp(
    address: *const c_char,
    job: *const c_char,
    secret: *const c_char,
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
        let secret = if secret.is_null() {
            Secret::from_env()
        } else {
            // SAFETY: not null, and a C string for the duration of the call.
            Secret::new(unsafe { CStr::from_ptr(secret) }.to_bytes()).map(Some)
        };
        let secret = secret.map_err(|error| Fault::new(FLEXCAST_ERROR_ARGUMENT, error.to_string()))?;
        let config =
            StoreConfig { job: job.to_owned(), timeout: timeout(timeout_ms), ..StoreConfig::new(rank, size, address) };
        place.put(handle::insert(join(TcpStore::join(config.secret(secret)))?)?);
        Ok(())
    })
}

/// The same with what the environment says: FLEXCAST_RANK, FLEXCAST_SIZE, FLEXCAST_STORE ("host:port"), FLEXCAST_JOB
/// (may be absent), and FLEXCAST_SECRET_FILE or FLEXCAST_SECRET (may be absent).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_environment(bootstrap: *mut *mut flexcast_bootstrap) -> flexcast_status {
    call(|| {
        own()?;
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(bootstrap, "bootstrap") }?;
        place.put(handle::insert(Bootstrap::environment()?)?);
        Ok(())
    })
}

fn join(store: Result<TcpStore, StoreError>) -> Result<Arc<Bootstrap>, Fault> {
    let store = store.map_err(|error| Fault::new(FLEXCAST_ERROR_EXCHANGE, error.to_string()))?;
    Ok(Arc::new(Bootstrap::new(Box::new(store))))
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
        for (place, value) in
            [(rank, bootstrap.rank), (size, bootstrap.ranks)].into_iter().filter(|(place, _)| !place.is_null())
        {
            // SAFETY: not null, so a place for an int.
            unsafe { out(place, "rank") }?.put(value as c_int);
        }
        Ok(())
    })
}

/// Ends it; communicators that it has made stay. Refused (FLEXCAST_ERROR_BUSY) while one is being made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_bootstrap_free(bootstrap: *mut flexcast_bootstrap) -> flexcast_status {
    call(|| {
        drop(handle::get::<Bootstrap>(bootstrap)?.take()?);
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
            let tcp =
                |address, place| flexcast_bootstrap_tcp(address, std::ptr::null(), std::ptr::null(), 0, 2, 100, place);
            let mut other = std::ptr::null_mut();
            assert_eq!(tcp(std::ptr::null(), &raw mut other), FLEXCAST_ERROR_NULL);
            assert_eq!(tcp(c"nowhere".as_ptr(), &raw mut other), FLEXCAST_ERROR_EXCHANGE);
            assert_eq!(tcp(c"\xff:1".as_ptr(), &raw mut other), FLEXCAST_ERROR_ARGUMENT);
            let address = c"127.0.0.1:1".as_ptr();
            let mut with = |secret: &CStr, size| {
                flexcast_bootstrap_tcp(address, std::ptr::null(), secret.as_ptr(), 0, size, 100, &raw mut other)
            };
            assert_eq!(with(c"swordfish", 1), FLEXCAST_ERROR_ARGUMENT);
            assert_eq!(with(c"", 1), FLEXCAST_ERROR_ARGUMENT);
            assert_eq!(with(c"0123456789abcdef0123456789abcdef", 1), FLEXCAST_OK);
            assert_eq!(flexcast_bootstrap_free(other), FLEXCAST_OK);
            other = std::ptr::null_mut();
            assert!(other.is_null(), "nothing was made");
            let (mut rank, mut size) = (0, 0);
            assert_eq!(flexcast_bootstrap_rank(handle, &raw mut rank, &raw mut size), FLEXCAST_OK);
            assert_eq!((rank, size), (3, 4));
            let taken = handle::get::<Bootstrap>(handle).unwrap();
            let mut exchange = taken.take().unwrap();
            assert_eq!(flexcast_bootstrap_free(handle), FLEXCAST_ERROR_BUSY, "something is made by it");
            let creation = crate::creation::Creation::start(taken.gatherer(), move || {
                Ok(exchange.exchange()?.exchange("x", b"mine").unwrap_err().to_string())
            });
            let failed = creation.unwrap().wait().unwrap();
            assert!(failed.contains("it returned 42"), "{failed}");
            assert_eq!(flexcast_bootstrap_free(handle), FLEXCAST_OK);
            assert_eq!(flexcast_bootstrap_free(handle), FLEXCAST_ERROR_HANDLE);
        }
    }
}
