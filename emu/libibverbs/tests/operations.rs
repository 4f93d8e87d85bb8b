//! Atomics, invalidation and what is not emulated, through the verbs calls alone.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ptr::{null, null_mut};

use crate::support::*;
use verbs_sys::*;

const ALL: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// A connected pair whose second queue pair allows atomics.
fn with_atomics() -> ([Host; 2], [*mut ibv_qp; 2], [*mut ibv_cq; 2]) {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let attr = ibv_qp_attr { qp_access_flags: ALL, ..Default::default() };
    assert_eq!(hosts[1].modify(qps[1], &attr, IBV_QP_ACCESS_FLAGS), 0);
    (hosts, qps, cqs)
}

#[test]
fn atomics_give_the_old_value_in_host_order() {
    let (hosts, qps, cqs) = with_atomics();
    let mut attr = ibv_device_attr::default();
    assert_eq!(unsafe { (hosts[0].api.ibv_query_device)(hosts[0].context, &mut attr) }, 0);
    assert_eq!(attr.atomic_cap, IBV_ATOMIC_HCA);
    let mut counter = 40_u64.to_ne_bytes().to_vec();
    let mut old = vec![0; 8];
    let remote = unsafe { (*hosts[1].mr(&mut counter, ALL)).rkey };
    let local = unsafe { (*hosts[0].mr(&mut old, IBV_ACCESS_LOCAL_WRITE)).lkey };
    // The buffers are the card's between posting and completion; they are read through raw pointers after that.
    let read = |bytes: *const u8| unsafe { bytes.cast::<u64>().read_unaligned() };
    for (opcode, compare_add, swap, expected_old, expected_new, kind) in [
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, 40, 42, IBV_WC_FETCH_ADD),
        (IBV_WR_ATOMIC_CMP_AND_SWP, 42, 7, 42, 7, IBV_WC_COMP_SWAP),
        (IBV_WR_ATOMIC_CMP_AND_SWP, 42, 9, 7, 7, IBV_WC_COMP_SWAP),
    ] {
        let mut gather = [sge(&old, local)];
        let mut wr = send(1, opcode, &mut gather);
        wr.wr.atomic.remote_addr = counter.as_ptr() as u64;
        wr.wr.atomic.compare_add = compare_add;
        wr.wr.atomic.swap = swap;
        wr.wr.atomic.rkey = remote;
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        let done = hosts[0].completion(cqs[0]);
        assert_eq!((done.status, done.opcode, done.byte_len), (IBV_WC_SUCCESS, kind, 8));
        assert_eq!((read(old.as_ptr()), read(counter.as_ptr())), (expected_old, expected_new));
    }
    let mut gather = [sge(&old, local)];
    let mut wr = send(2, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut gather);
    wr.send_flags |= IBV_SEND_INLINE;
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), libc::EINVAL, "there is nowhere to put the old value");
    let mut wr = send(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut gather);
    wr.wr.atomic.remote_addr = counter.as_ptr() as u64 + 4;
    wr.wr.atomic.rkey = remote;
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_REM_INV_REQ_ERR, "misaligned");
}

/// A UMR key of `host`, made by command, with the given room.
fn umr_key(host: &Host, entries: u32, change: impl Fn(&mut [u8; 272])) -> Result<u32, u8> {
    let mut object = mlx5dv_obj::default();
    let mut pd = mlx5dv_pd::default();
    (object.pd.in_, object.pd.out) = (host.pd, &mut pd);
    assert_eq!(unsafe { (host.api.mlx5dv_init_obj)(&mut object, u64::from(MLX5DV_OBJ_PD)) }, 0);
    let mut command = [0_u8; 272];
    command[..2].copy_from_slice(&0x200_u16.to_be_bytes());
    command[0x10] = 0x40; // free: bit 1
    command[0x12] = 0x80 | 0x02; // UMR: bit 16; access mode (bits 22, 23) 2: list of keys
    command[0x14..0x17].fill(0xFF); // any queue pair
    command[0x17] = 0x5A;
    command[0x1C..0x20].copy_from_slice(&pd.pdn.to_be_bytes());
    command[0x44..0x48].copy_from_slice(&entries.to_be_bytes());
    change(&mut command);
    let mut answer = [0_u8; 16];
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let object = unsafe { (host.api.mlx5dv_devx_obj_create)(host.context, input, 272, out, 16) };
    if object.is_null() {
        return Err(answer[0]);
    }
    Ok(u32::from_be_bytes([answer[9], answer[10], answer[11], 0x5A]))
}

#[test]
fn keys_over_keys_are_made_by_command_and_invalidated_by_requests() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let key = umr_key(&hosts[1], 4, |_| {}).expect("a key");
    assert_eq!(umr_key(&hosts[1], 0, |_| {}), Err(0x3), "no room");
    assert_eq!(umr_key(&hosts[1], 4, |command| command[0x10] = 0), Err(0x3), "not free");
    assert_eq!(umr_key(&hosts[1], 4, |command| command[0x12] = 2), Err(0x3), "without UMR");
    let mut bytes = vec![0; 64];
    let lkey = unsafe { (*hosts[1].mr(&mut bytes, ALL)).lkey };

    // Invalidating a key that is free fails the sender, with a completion that says so.
    let mut nothing = [];
    let mut wr = send(5, IBV_WR_LOCAL_INV, &mut nothing);
    wr.__bindgen_anon_1.invalidate_rkey = key;
    assert_eq!(hosts[1].post_send(qps[1], &mut wr), 0);
    assert_eq!(hosts[1].completion(cqs[1]).status, IBV_WC_LOC_QP_OP_ERR);

    // So does invalidating one of the peer's ordinary keys.
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let mut here = vec![1; 8];
    let from = unsafe { (*hosts[0].mr(&mut here, 0)).lkey };
    let ordinary = unsafe { (*hosts[1].mr(&mut bytes, ALL)).lkey };
    assert_eq!(hosts[1].post_recv(qps[1], 1, vec![sge(&bytes, ordinary)]), 0);
    let mut gather = [sge(&here, from)];
    let mut wr = send(6, IBV_WR_SEND_WITH_INV, &mut gather);
    wr.__bindgen_anon_1.invalidate_rkey = ordinary;
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_REM_ACCESS_ERR);
    let _ = lkey;
}

#[test]
fn an_invalidating_send_names_the_key_in_the_completion() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let key = umr_key(&hosts[1], 4, |_| {}).expect("a key");
    let mut here = vec![1; 8];
    let mut there = vec![0; 64];
    let from = unsafe { (*hosts[0].mr(&mut here, 0)).lkey };
    let into = unsafe { (*hosts[1].mr(&mut there, ALL)).lkey };
    // Bind it with a raw work queue entry, as a provider would.
    let mut dv = mlx5dv_qp::default();
    let mut object = mlx5dv_obj::default();
    (object.qp.in_, object.qp.out) = (qps[1], &mut dv);
    assert_eq!(unsafe { (hosts[1].api.mlx5dv_init_obj)(&mut object, u64::from(MLX5DV_OBJ_QP)) }, 0);
    let qpn = unsafe { (*qps[1]).qp_num };
    let mut wqe = [0_u8; 192];
    wqe[3] = 0x25;
    wqe[4..8].copy_from_slice(&(qpn << 8 | 12).to_be_bytes());
    wqe[12..16].copy_from_slice(&key.to_be_bytes());
    (wqe[16], wqe[21]) = (0x80, 4);
    wqe[24..32].copy_from_slice(&(1_u64 | 1 << 6 | 1 << 20 | 1 << 29).to_be_bytes());
    wqe[66] = 0x20; // remote write
    wqe[80..88].copy_from_slice(&0x1000_u64.to_be_bytes());
    wqe[88..96].copy_from_slice(&64_u64.to_be_bytes());
    wqe[128..132].copy_from_slice(&64_u32.to_be_bytes());
    wqe[132..136].copy_from_slice(&into.to_be_bytes());
    wqe[136..144].copy_from_slice(&(there.as_ptr() as u64).to_be_bytes());
    unsafe { std::ptr::copy_nonoverlapping(wqe.as_ptr(), dv.sq.buf.cast::<u8>(), wqe.len()) };
    emu_machine::with_world(|world| world.ring_sq(1, qpn, 3)).unwrap().unwrap();
    while emu_libibverbs::relax() {}
    assert_eq!(
        emu_machine::with_world(|world| world.card(1).unwrap().nic.query_umr_mkey(key).map(<[_]>::len)).unwrap(),
        Some(1)
    );
    assert_eq!(hosts[1].post_recv(qps[1], 1, vec![sge(&there, into)]), 0);
    let mut gather = [sge(&here, from)];
    let mut wr = send(6, IBV_WR_SEND_WITH_INV, &mut gather);
    wr.__bindgen_anon_1.invalidate_rkey = key;
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_SUCCESS);
    let got = hosts[1].completion(cqs[1]);
    assert_eq!((got.opcode, got.wc_flags & IBV_WC_WITH_INV), (IBV_WC_RECV, IBV_WC_WITH_INV));
    assert_eq!(unsafe { got.__bindgen_anon_1.invalidated_rkey }, key);
}

#[test]
fn what_is_not_emulated_says_so() {
    let (hosts, qps, _) = connected(IBV_QPT_RC);
    let mut nothing = [];
    assert_eq!(hosts[0].post_send(qps[0], &mut send(1, IBV_WR_BIND_MW, &mut nothing)), libc::EINVAL, "no window");
    assert_eq!(hosts[0].post_send(qps[0], &mut send(1, IBV_WR_TSO, &mut nothing)), libc::EINVAL);
}

/// A queue pair that is made for sends piece by piece, with room for `inline` bytes of inline data.
fn extended_attr(host: &Host, cq: *mut ibv_cq, inline: u32) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        cap: ibv_qp_cap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: inline },
        qp_type: IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: host.pd,
        send_ops_flags: IBV_QP_EX_WITH_SEND.into(),
        ..Default::default()
    }
}

/// A queue pair that binds keys over other keys, connected to itself, with room for `inline` bytes of inline data.
fn binding_qp(host: &Host, cq: *mut ibv_cq, inline: u32) -> *mut ibv_qp {
    let mut attr = extended_attr(host, cq, inline);
    let mut direct = mlx5dv_qp_init_attr {
        comp_mask: MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS.into(),
        send_ops_flags: MLX5DV_QP_EX_WITH_MR_LIST.into(),
        ..Default::default()
    };
    let qp = unsafe { (host.api.mlx5dv_create_qp)(host.context, &mut attr, &mut direct) };
    assert!(!qp.is_null(), "{}", errno());
    host.init(qp);
    host.connect(qp, Some((unsafe { (*qp).qp_num }, host.gid())));
    qp
}

/// Binds a key over other keys to a list; errno of the completing call.
fn bind(host: &Host, qp: *mut ibv_qp, key: *mut mlx5dv_mkey, access: u32, flags: u32, list: &mut [ibv_sge]) -> i32 {
    unsafe {
        let extended = (host.api.ibv_qp_to_qp_ex)(qp);
        let direct = (host.api.mlx5dv_qp_ex_from_ibv_qp_ex)(extended);
        assert!(!direct.is_null());
        assert!(inline::wr_start(extended));
        (*extended).wr_id = 77;
        (*extended).wr_flags = flags;
        assert!(inline::wr_mr_list(direct, key, access, list.as_mut_ptr(), list.len() as u16));
        inline::wr_complete(extended)
    }
}

/// Programs call through the slots without a check, so each has a function. What the queue pair was not made for fails
/// the batch, and nothing of it is posted.
#[test]
fn an_operation_that_a_queue_pair_was_not_made_for_fails_its_batch() {
    let [host, _] = two_cards();
    let cq = host.cq(8);
    let qp = binding_qp(&host, cq, 64);
    unsafe {
        let extended = (host.api.ibv_qp_to_qp_ex)(qp);
        let direct = (host.api.mlx5dv_qp_ex_from_ibv_qp_ex)(extended);
        let table = &*extended;
        let calls: [(&str, &dyn Fn()); 8] = [
            ("ibv_wr_rdma_write", &|| table.wr_rdma_write.unwrap()(extended, 1, 2)),
            ("ibv_wr_rdma_read", &|| table.wr_rdma_read.unwrap()(extended, 1, 2)),
            ("ibv_wr_atomic_fetch_add", &|| table.wr_atomic_fetch_add.unwrap()(extended, 1, 2, 3)),
            ("ibv_wr_bind_mw", &|| table.wr_bind_mw.unwrap()(extended, null_mut(), 1, null())),
            ("ibv_wr_send_tso", &|| table.wr_send_tso.unwrap()(extended, null_mut(), 1, 2)),
            ("ibv_wr_set_ud_addr", &|| table.wr_set_ud_addr.unwrap()(extended, null_mut(), 1, 2)),
            ("mlx5dv_wr_memcpy", &|| (*direct).wr_memcpy.unwrap()(direct)),
            ("mlx5dv_wr_set_dc_addr", &|| (*direct).wr_set_dc_addr.unwrap()(direct, null_mut(), 1, 2)),
        ];
        for (name, call) in calls {
            assert!(inline::wr_start(extended));
            table.wr_send.unwrap()(extended);
            call();
            assert_eq!(inline::wr_complete(extended), libc::EOPNOTSUPP, "{name}");
            assert!(host.try_completion(cq).is_none(), "{name}: nothing of the batch is posted");
        }
        // A queue pair that was not made for lists of keys, but has the interface.
        let plain = (host.api.mlx5dv_create_qp)(host.context, &mut extended_attr(&host, cq, 64), null_mut());
        let extended = (host.api.ibv_qp_to_qp_ex)(plain);
        let direct = (host.api.mlx5dv_qp_ex_from_ibv_qp_ex)(extended);
        assert!(inline::wr_start(extended));
        assert!(inline::wr_mr_list(direct, null_mut(), 0, null_mut(), 0));
        assert_eq!(inline::wr_complete(extended), libc::EOPNOTSUPP);
    }
}

#[test]
fn lists_of_keys_are_bound_by_work_requests() {
    const FLAGS: u32 = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let host = &hosts[1];
    let cq = host.cq(8);
    let qp = binding_qp(host, cq, 64);
    let made = |flags: u32, entries: u16| unsafe {
        let mut attr = mlx5dv_mkey_init_attr { pd: host.pd, create_flags: flags, max_entries: entries };
        ((host.api.mlx5dv_create_mkey)(&mut attr), attr.max_entries)
    };
    assert_eq!((made(0, 1).0.is_null(), errno()), (true, libc::EOPNOTSUPP), "an ordinary key");
    for entries in [0, u16::MAX] {
        assert_eq!((made(1, entries).0.is_null(), errno()), (true, libc::EINVAL), "{entries} entries");
    }
    let (key, entries) = made(1, 3);
    assert_eq!(entries, 4);
    let mut bytes = vec![0_u8; 64];
    let lkey = unsafe { (*host.mr(&mut bytes, ALL)).lkey };
    // What is refused: nothing is posted.
    let mut many = [sge(&bytes[..1], lkey); 5];
    assert_eq!(bind(host, qp, key, ALL, IBV_SEND_SIGNALED, &mut many[..1]), libc::EOPNOTSUPP, "not inline");
    assert_eq!(bind(host, qp, key, ALL, FLAGS, &mut many), libc::ENOMEM, "more than the key has room for");
    assert_eq!(bind(host, qp, key, 1 << 20, FLAGS, &mut many[..1]), libc::EINVAL, "an access that is none");
    let short = binding_qp(host, cq, 30);
    assert_eq!(bind(host, short, key, ALL, FLAGS, &mut many[..3]), libc::ENOMEM, "more than goes inline");
    assert!(host.try_completion(cq).is_none());
    // The first byte of the list has address 0 under the key.
    let mut source: Vec<u8> = (1..=24).collect();
    let from = unsafe { (*hosts[0].mr(&mut source, 0)).lkey };
    let write = |addr: u64| {
        let mut gather = [sge(&source[..20], from)];
        let mut wr = send(9, IBV_WR_RDMA_WRITE, &mut gather);
        wr.wr.rdma.remote_addr = addr;
        unsafe { wr.wr.rdma.rkey = (*key).rkey };
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        hosts[0].completion(cqs[0]).status
    };
    let mut list = [sge(&bytes[40..50], lkey), sge(&bytes[8..16], lkey), sge(&bytes[30..34], lkey)];
    assert_eq!(bind(host, qp, key, ALL, FLAGS, &mut list), 0);
    let done = host.completion(cq);
    assert_eq!((done.wr_id, done.status, done.opcode), (77, IBV_WC_SUCCESS, IBV_WC_DRIVER1));
    assert_eq!(write(1), IBV_WC_SUCCESS);
    assert_eq!((&bytes[40..50], &bytes[8..16]), (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..], &source[9..17]));
    assert_eq!(&bytes[30..34], &[18, 19, 20, 0]);
    // Bound anew, it stands for other bytes; and the rights are those of the last binding.
    let mut list = [sge(&bytes[..32], lkey)];
    assert_eq!(bind(host, qp, key, IBV_ACCESS_LOCAL_WRITE, FLAGS, &mut list), 0);
    assert_eq!(host.completion(cq).status, IBV_WC_SUCCESS);
    assert_eq!(write(0), IBV_WC_REM_ACCESS_ERR);
    assert_eq!(unsafe { (host.api.mlx5dv_destroy_mkey)(key) }, 0);
    assert_eq!(unsafe { (host.api.mlx5dv_destroy_mkey)(key) }, libc::EINVAL);
    assert_eq!(bind(host, qp, key, ALL, FLAGS, &mut list), libc::EINVAL, "the key is gone");
}

#[test]
fn queue_pairs_of_direct_verbs_have_rules() {
    let [host, other] = two_cards();
    let cq = host.cq(8);
    let made = |qp_type: u32, mask: u64, ops: u32, context: *mut ibv_context| unsafe {
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap: ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            qp_type,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: host.pd,
            ..Default::default()
        };
        let mut direct = mlx5dv_qp_init_attr { comp_mask: mask, send_ops_flags: ops.into(), ..Default::default() };
        let qp = (host.api.mlx5dv_create_qp)(context, &mut attr, &mut direct);
        if qp.is_null() { errno() } else { (host.api.ibv_destroy_qp)(qp) }
    };
    let with_ops = u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS);
    assert_eq!(made(IBV_QPT_RC, with_ops, MLX5DV_QP_EX_WITH_MR_LIST, host.context), 0);
    assert_eq!(made(IBV_QPT_UC, 0, 0, host.context), 0, "as ibv_create_qp_ex makes it");
    for (name, qp_type, mask, ops) in [
        ("UC", IBV_QPT_UC, with_ops, MLX5DV_QP_EX_WITH_MR_LIST),
        ("interleaved", IBV_QPT_RC, with_ops, MLX5DV_QP_EX_WITH_MR_INTERLEAVED),
        ("raw entries", IBV_QPT_RC, with_ops, MLX5DV_QP_EX_WITH_RAW_WQE),
        ("DC", IBV_QPT_RC, MLX5DV_QP_INIT_ATTR_MASK_DC.into(), 0),
    ] {
        assert_eq!(made(qp_type, mask, ops, host.context), libc::EOPNOTSUPP, "{name}");
    }
    assert_eq!(made(IBV_QPT_RC, 0, 0, other.context), libc::EINVAL, "another card");
    unsafe {
        assert!((host.api.mlx5dv_create_qp)(host.context, std::ptr::null_mut(), std::ptr::null_mut()).is_null());
        assert!((host.api.mlx5dv_create_mkey)(std::ptr::null_mut()).is_null());
        assert!((host.api.mlx5dv_qp_ex_from_ibv_qp_ex)(std::ptr::null_mut()).is_null());
        assert_eq!((host.api.mlx5dv_destroy_mkey)(std::ptr::null_mut()), libc::EINVAL);
    }
}
