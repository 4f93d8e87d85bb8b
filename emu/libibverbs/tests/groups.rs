//! Multicast through verbs, and through device commands.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use crate::support::*;
use verbs_sys::*;

const WRITE: u32 = IBV_ACCESS_LOCAL_WRITE;

fn group() -> ibv_gid {
    let mut raw = [0; 16];
    (raw[0], raw[1], raw[15]) = (0xFF, 0x0E, 5);
    ibv_gid { raw }
}

fn send_to_group(host: &Host, qp: *mut ibv_qp, source: &[u8], lkey: u32) {
    let mut attr = path(group());
    let ah = unsafe { (host.api.ibv_create_ah)(host.pd, &mut attr) };
    assert!(!ah.is_null());
    let mut gather = [sge(source, lkey)];
    let mut wr = send(1, IBV_WR_SEND, &mut gather);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = 0xFF_FFFF;
    wr.wr.ud.remote_qkey = 0x1234;
    assert_eq!(host.post_send(qp, &mut wr), 0);
    while emu_libibverbs::relax() {}
    assert_eq!(unsafe { (host.api.ibv_destroy_ah)(ah) }, 0);
}

#[test]
fn attached_queue_pairs_get_a_copy_each() {
    let (hosts, qps, cqs) = connected(IBV_QPT_UD);
    let second_cq = hosts[1].cq(16);
    let second = hosts[1].qp(IBV_QPT_UD, second_cq);
    hosts[1].init(second);
    hosts[1].connect(second, None);
    let mut source = vec![0x5A; 100];
    let mut target = vec![0; 1024];
    let lkey = unsafe { (*hosts[0].mr(&mut source, 0)).lkey };
    let into = unsafe { (*hosts[1].mr(&mut target, WRITE)).lkey };
    for (qp, half) in [(qps[1], &target[..512]), (second, &target[512..])] {
        assert_eq!(hosts[1].post_recv(qp, 1, vec![sge(half, into)]), 0);
        assert_eq!(unsafe { (hosts[1].api.ibv_attach_mcast)(qp, &group(), 0) }, 0);
    }
    send_to_group(&hosts[0], qps[0], &source, lkey);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_SUCCESS);
    for cq in [cqs[1], second_cq] {
        let got = hosts[1].completion(cq);
        assert_eq!((got.byte_len, got.wc_flags & IBV_WC_GRH), (140, IBV_WC_GRH));
    }
    let bytes = std::hint::black_box(&target);
    for half in bytes.chunks(512) {
        assert_eq!(half[24..40], unsafe { group().raw }, "the group is the destination in the routing header");
        assert_eq!(half[40..140], [0x5A; 100]);
    }
    unsafe {
        let api = &hosts[1].api;
        assert_eq!((api.ibv_destroy_qp)(second), libc::EBUSY, "it is a member");
        assert_eq!((api.ibv_detach_mcast)(second, &group(), 0), 0);
        assert_eq!((api.ibv_detach_mcast)(second, &group(), 0), libc::EINVAL, "it is none any more");
        assert_eq!((api.ibv_destroy_qp)(second), 0);
        assert_eq!((api.ibv_attach_mcast)(qps[1], &hosts[0].gid(), 0), libc::EINVAL, "no group");
        assert_eq!((api.ibv_attach_mcast)(qps[1], std::ptr::null(), 0), libc::EINVAL);
    }
}

#[test]
fn connected_queue_pairs_do_not_join() {
    let (hosts, qps, _) = connected(IBV_QPT_RC);
    assert_eq!(unsafe { (hosts[0].api.ibv_attach_mcast)(qps[0], &group(), 0) }, libc::EINVAL);
}

#[test]
fn a_device_command_attaches_and_destroying_its_object_detaches() {
    let (hosts, qps, cqs) = connected(IBV_QPT_UD);
    let api = &hosts[1].api;
    let mut source = vec![1; 10];
    let mut target = vec![0; 256];
    let lkey = unsafe { (*hosts[0].mr(&mut source, 0)).lkey };
    let into = unsafe { (*hosts[1].mr(&mut target, WRITE)).lkey };
    for id in 0..2 {
        assert_eq!(hosts[1].post_recv(qps[1], id, vec![sge(&target, into)]), 0);
    }
    let mut command = [0_u8; 32];
    let mut answer = [0_u8; 16];
    command[..2].copy_from_slice(&0x806_u16.to_be_bytes());
    command[8..12].copy_from_slice(&unsafe { (*qps[1]).qp_num }.to_be_bytes());
    command[16..32].copy_from_slice(&unsafe { group().raw });
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let object = unsafe { (api.mlx5dv_devx_obj_create)(hosts[1].context, input, 32, out, 16) };
    assert!(!object.is_null(), "{answer:x?}");
    send_to_group(&hosts[0], qps[0], &source, lkey);
    assert_eq!(hosts[1].completion(cqs[1]).byte_len, 50);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_SUCCESS);
    assert_eq!(unsafe { (api.mlx5dv_devx_obj_destroy)(object) }, 0);
    send_to_group(&hosts[0], qps[0], &source, lkey);
    assert!(hosts[1].try_completion(cqs[1]).is_none());
    let drops = emu_machine::with_world(|world| world.card(1).unwrap().nic.counters().multicast_drops).unwrap();
    assert_eq!(drops, 1);
    // Detaching by a command of its own is not how the driver does it.
    command[..2].copy_from_slice(&0x807_u16.to_be_bytes());
    let refused = unsafe {
        let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
        (api.mlx5dv_devx_general_cmd)(hosts[1].context, input, 32, out, 16)
    };
    assert_eq!((refused, answer[0]), (libc::EREMOTEIO, 2));
}

/// Found by the fuzz target `devx`: the second object of one membership could not be destroyed any more.
#[test]
fn a_membership_is_that_of_one_object() {
    let (hosts, qps, _) = connected(IBV_QPT_UD);
    let api = &hosts[1].api;
    let mut command = [0_u8; 32];
    let mut answer = [0_u8; 16];
    command[..2].copy_from_slice(&0x806_u16.to_be_bytes());
    command[8..12].copy_from_slice(&unsafe { (*qps[1]).qp_num }.to_be_bytes());
    command[16..32].copy_from_slice(&unsafe { group().raw });
    let attach = |answer: &mut [u8; 16]| unsafe {
        (api.mlx5dv_devx_obj_create)(hosts[1].context, command.as_ptr().cast(), 32, answer.as_mut_ptr().cast(), 16)
    };
    let object = attach(&mut answer);
    assert!(!object.is_null(), "{answer:x?}");
    assert!(attach(&mut answer).is_null());
    assert_eq!((errno(), answer[0]), (libc::EREMOTEIO, 9));
    unsafe {
        assert_eq!((api.mlx5dv_devx_obj_destroy)(object), 0);
        // The other way in and out, while the object is there.
        let object = attach(&mut answer);
        assert!(!object.is_null(), "{answer:x?}");
        assert_eq!((api.ibv_detach_mcast)(qps[1], &group(), 0), 0);
        assert_eq!((api.mlx5dv_devx_obj_destroy)(object), 0);
        assert_eq!((api.ibv_destroy_qp)(qps[1]), 0);
    }
}

/// A member that sends gets its own packet back, unless it was made not to; flags of other meaning are refused.
#[test]
fn a_queue_pair_may_keep_its_packets_from_coming_back() {
    let hosts = two_cards();
    let host = &hosts[0];
    let mut source = vec![7; 20];
    let mut target = vec![0; 256];
    let lkey = unsafe { (*host.mr(&mut source, 0)).lkey };
    let into = unsafe { (*host.mr(&mut target, WRITE)).lkey };
    let verbs = host.context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
    let create = unsafe { (*verbs).create_qp_ex }.expect("the extended interface");
    for (flags, copies) in [(0, 1), (1 << 1, 0)] {
        let cq = host.cq(16);
        let cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: IBV_QPT_UD,
            sq_sig_all: 1,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
            pd: host.pd,
            create_flags: flags,
            ..Default::default()
        };
        let qp = unsafe { create(host.context, &mut attr) };
        assert!(!qp.is_null());
        host.init(qp);
        host.connect(qp, None);
        assert_eq!(host.post_recv(qp, 9, vec![sge(&target, into)]), 0);
        assert_eq!(unsafe { (host.api.ibv_attach_mcast)(qp, &group(), 0) }, 0);
        send_to_group(host, qp, &source, lkey);
        let done: Vec<u32> =
            std::iter::from_fn(|| host.try_completion(cq)).map(|completion| completion.opcode).collect();
        let received = done.iter().filter(|opcode| **opcode & IBV_WC_RECV != 0).count();
        assert_eq!((done.len(), received), (1 + copies, copies), "flags {flags}");
        assert_eq!(unsafe { (host.api.ibv_detach_mcast)(qp, &group(), 0) }, 0);
        attr.create_flags = 1 << 8;
        assert!(unsafe { create(host.context, &mut attr) }.is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
}
