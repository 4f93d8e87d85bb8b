//! Calls that programs import and that are not emulated: each fails with `EOPNOTSUPP` and says why. Their arguments are
//! not read, so they are declared without: see `emu/libibverbs/src/refused.rs`.

use core::ffi::{c_int, c_long};

use emu_libibverbs::errno::{Errno, number};

macro_rules! minus {
    ($reason:literal: $($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> c_int {
            number(stringify!($name), || Err(Errno::unsupported($reason)))
        }
    )*};
}

macro_rules! minus_bytes {
    ($reason:literal: $($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> c_long {
            c_long::from(number(stringify!($name), || Err(Errno::unsupported($reason))))
        }
    )*};
}

minus! {
    "enhanced connection establishment has options of vendors, and the emulated cards have none":
    rdma_get_remote_ece, rdma_reject_ece, rdma_set_local_ece
}

minus! {
    "rsockets are not emulated: use the calls of rdma_cma.h, or sockets":
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, riounmap, rlisten, rpoll,
    rselect, rsetsockopt, rshutdown, rsocket
}

minus_bytes! {
    "rsockets are not emulated: use the calls of rdma_cma.h, or sockets":
    riomap, riowrite, rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev
}
