//! Small calls that programs import: names of codes, rates, forking.

use core::ffi::{c_char, c_int, c_uint, c_void};

use verbs_sys::*;

use crate::errno::{Errno, input, out, pointer, status};
use crate::handle;
use crate::qp::Qp;

fn text(text: &'static core::ffi::CStr) -> *const c_char {
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_wc_status_str(wc_status: ibv_wc_status) -> *const c_char {
    text(match wc_status {
        IBV_WC_SUCCESS => c"success",
        IBV_WC_LOC_LEN_ERR => c"local length error",
        IBV_WC_LOC_QP_OP_ERR => c"local queue pair operation error",
        IBV_WC_LOC_EEC_OP_ERR => c"local end-to-end context operation error",
        IBV_WC_LOC_PROT_ERR => c"local protection error",
        IBV_WC_WR_FLUSH_ERR => c"work request flushed",
        IBV_WC_MW_BIND_ERR => c"memory window bind error",
        IBV_WC_BAD_RESP_ERR => c"bad response",
        IBV_WC_LOC_ACCESS_ERR => c"local access error",
        IBV_WC_REM_INV_REQ_ERR => c"remote invalid request",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_REM_OP_ERR => c"remote operation error",
        IBV_WC_RETRY_EXC_ERR => c"transport retries exceeded",
        IBV_WC_RNR_RETRY_EXC_ERR => c"receiver-not-ready retries exceeded",
        IBV_WC_LOC_RDD_VIOL_ERR => c"local reliable datagram domain violation",
        IBV_WC_REM_INV_RD_REQ_ERR => c"remote invalid reliable datagram request",
        IBV_WC_REM_ABORT_ERR => c"remote aborted",
        IBV_WC_INV_EECN_ERR => c"invalid end-to-end context number",
        IBV_WC_INV_EEC_STATE_ERR => c"invalid end-to-end context state",
        IBV_WC_FATAL_ERR => c"fatal error",
        IBV_WC_RESP_TIMEOUT_ERR => c"response timeout",
        IBV_WC_GENERAL_ERR => c"general error",
        IBV_WC_TM_ERR => c"tag matching error",
        IBV_WC_TM_RNDV_INCOMPLETE => c"rendezvous incomplete",
        _ => c"unknown",
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    text(match state {
        IBV_PORT_NOP => c"no state change",
        IBV_PORT_DOWN => c"down",
        IBV_PORT_INIT => c"init",
        IBV_PORT_ARMED => c"armed",
        IBV_PORT_ACTIVE => c"active",
        IBV_PORT_ACTIVE_DEFER => c"active defer",
        _ => c"unknown",
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    text(match node_type {
        IBV_NODE_CA => c"channel adapter",
        IBV_NODE_SWITCH => c"switch",
        IBV_NODE_ROUTER => c"router",
        _ => c"unknown",
    })
}

/// Forking is harmless for the parent: nothing is pinned. The child is refused everything (`fork.rs`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// See [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    const FORK_UNNEEDED: c_int = 2;
    FORK_UNNEEDED
}

/// See [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// See [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Codes of link rates, with what they are in Mbit/s: the signalling rate of InfiniBand's lanes.
const RATES: [(u32, c_int); 23] = [
    (2, 2_500),
    (5, 5_000),
    (3, 10_000),
    (6, 20_000),
    (4, 30_000),
    (7, 40_000),
    (8, 60_000),
    (9, 80_000),
    (10, 120_000),
    (11, 14_062),
    (12, 56_250),
    (13, 112_500),
    (14, 168_750),
    (15, 25_781),
    (16, 103_125),
    (17, 206_250),
    (18, 309_375),
    (19, 28_125),
    (20, 53_125),
    (21, 425_000),
    (22, 637_500),
    (23, 850_000),
    (24, 1_275_000),
];

/// Multiples of 2.5 Gbit/s that have a code.
const MULTIPLES: [(u32, c_int); 15] = [
    (2, 1),
    (5, 2),
    (3, 4),
    (6, 8),
    (19, 11),
    (4, 12),
    (7, 16),
    (20, 20),
    (8, 24),
    (9, 32),
    (10, 48),
    (21, 160),
    (22, 240),
    (23, 320),
    (24, 480),
];

/// Code of the greatest rate; what an unknown rate becomes.
const RATE_MAX: u32 = 0;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|(code, _)| *code == rate).map_or(-1, |(_, mbps)| *mbps)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|(_, known)| *known == mbps).map_or(RATE_MAX, |(code, _)| *code)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    MULTIPLES.iter().find(|(code, _)| *code == rate).map_or(-1, |(_, multiple)| *multiple)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_uint {
    MULTIPLES.iter().find(|(_, known)| *known == multiple).map_or(RATE_MAX, |(code, _)| *code)
}

/// What queue pairs negotiate beyond the specification: the emulated cards have nothing of the kind.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status("ibv_query_ece", || {
        handle::get::<Qp>(qp)?;
        // SAFETY: null, or writable as the manual page asks.
        unsafe { out(ece, "ece") }?.write(ibv_ece::default());
        Ok(())
    })
}

/// See [`ibv_query_ece`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status("ibv_set_ece", || {
        handle::get::<Qp>(qp)?;
        // SAFETY: null, or initialised as the manual page asks.
        let ece = unsafe { input(ece, "ece") }?;
        if ece.comp_mask != 0 {
            return Err(Errno::invalid(format!("comp_mask {:#x}: no bit is known", ece.comp_mask)));
        }
        if ece.vendor_id != 0 || ece.options != 0 {
            return Err(Errno::unsupported("there is nothing to negotiate beyond the specification"));
        }
        Ok(())
    })
}

/// Whether the data of messages is written in order: not promised, as on the card.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

/// Only queue pairs of `ibv_create_qp_ex` that asked for send operations have the extended interface.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer("ibv_qp_to_qp_ex", || {
        let queue_pair = handle::get::<Qp>(qp)?;
        queue_pair.extended().ok_or_else(|| Errno::unsupported("the queue pair was made without send_ops_flags"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_there_and_back() {
        assert_eq!((ibv_rate_to_mbps(5), ibv_rate_to_mult(5)), (5_000, 2));
        for (code, mbps) in RATES {
            assert_eq!((ibv_rate_to_mbps(code), mbps_to_ibv_rate(mbps)), (mbps, code));
        }
        for (code, multiple) in MULTIPLES {
            assert_eq!((ibv_rate_to_mult(code), mult_to_ibv_rate(multiple)), (multiple, code));
        }
        assert_eq!(
            (ibv_rate_to_mbps(99), mbps_to_ibv_rate(1), ibv_rate_to_mult(99), mult_to_ibv_rate(3)),
            (-1, 0, -1, 0)
        );
    }
}
