//! Attributes of queue pairs at their limits and beyond: what the device does not have is refused, and nothing of it
//! holds.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use crate::support::*;
use verbs_sys::*;

/// What a transition of an RC queue pair needs, and its mask.
fn transition(state: u32, peer: (u32, ibv_gid)) -> (ibv_qp_attr, u32) {
    let attr = ibv_qp_attr {
        qp_state: state,
        port_num: 1,
        qp_access_flags: IBV_ACCESS_REMOTE_READ,
        path_mtu: IBV_MTU_1024,
        dest_qp_num: peer.0,
        ah_attr: path(peer.1),
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        retry_cnt: 7,
        timeout: 14,
        ..Default::default()
    };
    let mask = match state {
        IBV_QPS_INIT => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QPS_RTR => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        _ => IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
    };
    (attr, mask | IBV_QP_STATE)
}

/// Sets an attribute; a value as wide as the field.
type Set = fn(&mut ibv_qp_attr, u32);

/// State to enter, attribute, how it is set, values that are taken, values that are not.
type Limit = (u32, &'static str, Set, &'static [u32], &'static [u32]);

const LIMITS: [Limit; 13] = [
    (IBV_QPS_INIT, "port_num", |attr, value| attr.port_num = value as u8, &[1], &[0, 2, 255]),
    (IBV_QPS_INIT, "pkey_index", |attr, value| attr.pkey_index = value as u16, &[0], &[1, 127, 0xFFFF]),
    (IBV_QPS_RTR, "max_dest_rd_atomic", |attr, value| attr.max_dest_rd_atomic = value as u8, &[0, 1, 16], &[17, 255]),
    (IBV_QPS_RTR, "min_rnr_timer", |attr, value| attr.min_rnr_timer = value as u8, &[0, 31], &[32, 255]),
    (IBV_QPS_RTR, "path_mtu", |attr, value| attr.path_mtu = value, &[1, 5], &[0, 6, 0xFF, 0x105]),
    (IBV_QPS_RTR, "dest_qp_num", |attr, value| attr.dest_qp_num = value, &[0xFF_FFFF], &[1 << 24, u32::MAX]),
    (IBV_QPS_RTR, "ah_attr.port_num", |attr, value| attr.ah_attr.port_num = value as u8, &[1], &[0, 2, 255]),
    (IBV_QPS_RTR, "ah_attr.is_global", |attr, value| attr.ah_attr.is_global = value as u8, &[1], &[0]),
    (IBV_QPS_RTR, "sgid_index", |attr, value| attr.ah_attr.grh.sgid_index = value as u8, &[0, 2], &[3, 4, 255]),
    (IBV_QPS_RTS, "max_rd_atomic", |attr, value| attr.max_rd_atomic = value as u8, &[0, 1, 16], &[17, 255]),
    (IBV_QPS_RTS, "retry_cnt", |attr, value| attr.retry_cnt = value as u8, &[0, 7], &[8, 255]),
    (IBV_QPS_RTS, "rnr_retry", |attr, value| attr.rnr_retry = value as u8, &[0, 7], &[8, 255]),
    (IBV_QPS_RTS, "timeout", |attr, value| attr.timeout = value as u8, &[0, 31], &[32, 255]),
];

#[test]
fn attributes_beyond_their_limits_are_refused_and_change_nothing() {
    let [host, other] = two_cards();
    let mut device = ibv_device_attr::default();
    assert_eq!(unsafe { (host.api.ibv_query_device)(host.context, &mut device) }, 0);
    assert_eq!((device.max_qp_rd_atom, device.max_qp_init_rd_atom), (16, 16), "what the limits below are");
    let (cq, peer) = (host.cq(16), (0x42, other.gid()));
    for (state, name, set, good, bad) in LIMITS {
        for (&value, result) in good.iter().map(|value| (value, 0)).chain(bad.iter().map(|value| (value, libc::EINVAL)))
        {
            let qp = host.qp(IBV_QPT_RC, cq);
            for step in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
                let (mut attr, mask) = transition(step, peer);
                if step == state {
                    let mut changed = attr;
                    set(&mut changed, value);
                    let before = unsafe { (*qp).state };
                    assert_eq!(host.modify(qp, &changed, mask), result, "{name} {value:#x}");
                    assert_eq!(unsafe { (*qp).state }, if result == 0 { state } else { before }, "{name} {value:#x}");
                    if result == 0 {
                        continue;
                    }
                }
                attr.qp_state = step;
                assert_eq!(host.modify(qp, &attr, mask), 0, "{name} {value:#x}: what is allowed still is");
            }
            assert_eq!(unsafe { (host.api.ibv_destroy_qp)(qp) }, 0);
        }
    }
}

#[test]
fn a_state_that_is_believed_must_be_the_state() {
    let [host, other] = two_cards();
    let qp = host.qp(IBV_QPT_RC, host.cq(16));
    let (mut attr, mask) = transition(IBV_QPS_INIT, (0x42, other.gid()));
    attr.cur_qp_state = IBV_QPS_RTR;
    assert_eq!(host.modify(qp, &attr, mask | IBV_QP_CUR_STATE), libc::EINVAL);
    attr.cur_qp_state = IBV_QPS_RESET;
    assert_eq!(host.modify(qp, &attr, mask | IBV_QP_CUR_STATE), 0);
}

/// PSNs have 24 bits; programs give random numbers of more, and the rest is ignored.
#[test]
fn of_a_psn_24_bits_count() {
    let [host, other] = two_cards();
    let qp = host.qp(IBV_QPT_RC, host.cq(16));
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut attr, mask) = transition(state, (0x42, other.gid()));
        (attr.rq_psn, attr.sq_psn) = (0xAB00_0007, 0xCD00_0008);
        assert_eq!(host.modify(qp, &attr, mask), 0);
    }
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    assert_eq!(unsafe { (host.api.ibv_query_qp)(qp, &mut attr, 0, &mut init) }, 0);
    assert_eq!((attr.rq_psn, attr.sq_psn), (7, 8));
}
