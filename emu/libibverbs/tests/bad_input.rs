//! Wrong handles, attributes and keys: an error, never a crash.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use crate::support::*;
use verbs_sys::*;

#[test]
fn devices_are_listed_by_name_and_nothing_else_is_a_device() {
    two_cards();
    let api = emu_libibverbs::api();
    unsafe {
        let mut count = 0;
        let list = (api.ibv_get_device_list)(&mut count);
        assert_eq!(count, 2);
        let names: Vec<_> = (0..2).map(|i| CStr::from_ptr((api.ibv_get_device_name)(*list.add(i)))).collect();
        assert_eq!(names, [c"mlx5_0", c"mlx5_1"]);
        assert!((*list.add(2)).is_null());
        assert_ne!((api.ibv_get_device_guid)(*list), (api.ibv_get_device_guid)(*list.add(1)));
        assert!((api.mlx5dv_is_supported)(*list));
        (api.ibv_free_device_list)(list);
        (api.ibv_free_device_list)(list);
        (api.ibv_free_device_list)(null_mut());
        let mut fake = ibv_device::default();
        // Nobody has memory there: it is asked of the kernel.
        let wild = std::ptr::without_provenance_mut(0x10);
        for device in [null_mut(), &raw mut fake, wild] {
            assert!((api.ibv_open_device)(device).is_null());
            assert_eq!(errno(), libc::EINVAL);
            assert!(!(api.mlx5dv_is_supported)(device));
        }
        assert!((api.ibv_get_device_name)(null_mut()).is_null());
    }
}

/// Pages of memory of its own, given back at the end.
struct Pages(*mut u8);

const PAGE: usize = 4096;

impl Pages {
    /// Three, of which the last has other rights.
    fn new(rights_of_last: i32) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        unsafe {
            let start = libc::mmap(null_mut(), 3 * PAGE, rights, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(2 * PAGE), PAGE, rights_of_last), 0);
            Self(start.cast())
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
    }
}

/// A real card's pages cannot be pinned then; here the process would end once the card reads them.
#[test]
fn memory_that_is_not_there_is_not_registered() {
    let host = &two_cards()[0];
    let api = host.api;
    let registers = |start: *mut u8, bytes: usize, access: u32| unsafe {
        let mr = (api.ibv_reg_mr)(host.pd, start.cast(), bytes, access as i32);
        let refused = if mr.is_null() { errno() } else { 0 };
        let umem = (api.mlx5dv_devx_umem_reg)(host.context, start.cast(), bytes, access);
        assert_eq!(if umem.is_null() { errno() } else { 0 }, refused, "memory of DevX");
        assert!(mr.is_null() || (api.ibv_dereg_mr)(mr) == 0);
        assert!(umem.is_null() || (api.mlx5dv_devx_umem_dereg)(umem) == 0);
        refused
    };
    let (none, read, all) = (libc::PROT_NONE, libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let write = IBV_ACCESS_LOCAL_WRITE;
    for (rights, read_only, writable) in [(none, libc::EFAULT, libc::EFAULT), (read, 0, libc::EFAULT), (all, 0, 0)] {
        let pages = Pages::new(rights);
        unsafe { pages.0.add(PAGE).write(7) };
        // To the middle of the last page, and from there.
        for start in [pages.0.wrapping_add(9), pages.0.wrapping_add(2 * PAGE + 1)] {
            let bytes = pages.0 as usize + 2 * PAGE + 100 - start as usize;
            assert_eq!(registers(start, bytes, 0), read_only, "rights {rights}");
            assert_eq!(registers(start, bytes, write), writable, "rights {rights}");
        }
        assert_eq!(registers(pages.0, 2 * PAGE, write), 0);
        assert_eq!(unsafe { pages.0.add(PAGE).read() }, 7);
    }
    let pages = Pages::new(all);
    unsafe { libc::munmap(pages.0.add(PAGE).cast(), PAGE) };
    assert_eq!(registers(pages.0, 3 * PAGE, 0), libc::EFAULT, "a hole in the middle");
    assert_eq!(registers(pages.0, PAGE + 1, 0), libc::EFAULT, "one byte too many");
    assert_eq!(registers(pages.0.wrapping_add(PAGE - 1), 1, write), 0);
    assert_eq!(registers(std::ptr::without_provenance_mut(0x10), 64, 0), libc::EFAULT);
}

/// rdma-core reads the structure, whoever has made it.
#[test]
fn a_copy_of_a_device_is_that_device() {
    two_cards();
    let api = emu_libibverbs::api();
    unsafe {
        let list = (api.ibv_get_device_list)(null_mut());
        let listed = *list.add(1);
        let mut copy = *listed;
        // What lies behind the end of the name means nothing.
        copy.name[63] = b'x' as _;
        let own = CStr::from_ptr((api.ibv_get_device_name)(&raw mut copy));
        assert_eq!((own, own.as_ptr()), (c"mlx5_1", copy.name.as_ptr()), "the name is that of the copy");
        assert_eq!((api.ibv_get_device_guid)(&raw mut copy), (api.ibv_get_device_guid)(listed));
        assert!((api.mlx5dv_is_supported)(&raw mut copy));
        let context = (api.ibv_open_device)(&raw mut copy);
        assert_eq!((*context).device, listed);
        assert_eq!((api.ibv_close_device)(context), 0);
        // No device has this name.
        copy.name[5] = b'7' as _;
        assert_eq!(CStr::from_ptr((api.ibv_get_device_name)(&raw mut copy)), c"mlx5_7");
        assert!((api.ibv_open_device)(&raw mut copy).is_null());
        assert_eq!(errno(), libc::EINVAL);
        (api.ibv_free_device_list)(list);
    }
}

#[test]
fn memory_of_other_devices_is_refused() {
    let [host, _other] = two_cards();
    unsafe {
        assert!((host.api.ibv_reg_dmabuf_mr)(host.pd, 0, 4096, 0x1000, 0, 0).is_null());
    }
    assert_eq!(errno(), libc::EOPNOTSUPP);
}

#[test]
fn one_card_is_one_device() {
    emu_machine::configure(emu_machine::Config { cards: 1, ..Default::default() }).unwrap();
    let api = emu_libibverbs::api();
    let mut count = 0;
    unsafe {
        let list = (api.ibv_get_device_list)(&mut count);
        assert_eq!(count, 1);
        assert!((*list.add(1)).is_null());
        (api.ibv_free_device_list)(list);
    }
}

#[test]
fn null_and_foreign_handles_are_refused_everywhere() {
    let [host, _other] = two_cards();
    let api = &host.api;
    let cq = host.cq(4);
    let qp = host.qp(IBV_QPT_RC, cq);
    let mut attr = init_attr(IBV_QPT_RC, cq);
    let mut qp_attr = ibv_qp_attr::default();
    let mut ah_attr = path(host.gid());
    let mut wc = ibv_wc::default();
    let mut byte = 0_u8;
    unsafe {
        // A queue pair's address where another kind belongs, null, and plain memory.
        for wrong in [null_mut::<u8>(), qp.cast(), &raw mut byte] {
            assert!((api.ibv_alloc_pd)(wrong.cast()).is_null());
            assert_eq!((api.ibv_dealloc_pd)(wrong.cast()), libc::EINVAL);
            assert!((api.ibv_reg_mr)(wrong.cast(), (&raw mut byte).cast(), 1, 0).is_null());
            assert_eq!((api.ibv_dereg_mr)(wrong.cast()), libc::EINVAL);
            assert!((api.ibv_create_cq)(wrong.cast(), 4, null_mut(), null_mut(), 0).is_null());
            assert_eq!((api.ibv_destroy_cq)(wrong.cast()), libc::EINVAL);
            assert!((api.ibv_create_qp)(wrong.cast(), &mut attr).is_null());
            assert!((api.ibv_create_ah)(wrong.cast(), &mut ah_attr).is_null());
            assert_eq!((api.ibv_destroy_ah)(wrong.cast()), libc::EINVAL);
            assert_eq!((api.ibv_close_device)(wrong.cast()), libc::EINVAL);
            assert_eq!((api.mlx5dv_devx_obj_destroy)(wrong.cast()), libc::EINVAL);
            assert_eq!((api.mlx5dv_devx_umem_dereg)(wrong.cast()), libc::EINVAL);
            assert_eq!((api.ibv_query_device)(wrong.cast(), null_mut()), libc::EINVAL);
        }
        let cq_op = (*host.context).ops.poll_cq.unwrap();
        assert_eq!(cq_op(null_mut(), 1, &mut wc), -1);
        assert_eq!(cq_op(cq, 1, null_mut()), -1);
        assert_eq!(cq_op(cq, -1, &mut wc), -1);
        assert_eq!((api.ibv_modify_qp)(qp, null_mut(), 0), libc::EINVAL);
        assert_eq!((api.ibv_modify_qp)(null_mut(), &mut qp_attr, 0), libc::EINVAL);
        assert!((api.ibv_create_qp)(host.pd, null_mut()).is_null());
        // Destroyed handles.
        assert_eq!((api.ibv_destroy_qp)(qp), 0);
        assert_eq!((api.ibv_destroy_qp)(qp), libc::EINVAL);
        assert_eq!((api.ibv_query_qp)(qp, &mut qp_attr, 0, &mut attr), libc::EINVAL);
    }
}

#[test]
fn attributes_out_of_range_are_refused() {
    let [host, other] = two_cards();
    let api = &host.api;
    let cq = host.cq(4);
    let mut byte = 0_u8;
    unsafe {
        for depth in [0, -1, i32::MAX] {
            assert!((api.ibv_create_cq)(host.context, depth, null_mut(), null_mut(), 0).is_null(), "{depth}");
        }
        let changes: [fn(&mut ibv_qp_init_attr); 5] = [
            |a| a.cap.max_send_wr = 1 << 16,
            |a| a.cap.max_send_sge = 31,
            |a| a.cap.max_inline_data = 4096,
            |a| a.qp_type = IBV_QPT_RAW_PACKET,
            |a| a.srq = std::ptr::dangling_mut(),
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut attr = init_attr(IBV_QPT_RC, cq);
            change(&mut attr);
            assert!((api.ibv_create_qp)(host.pd, &mut attr).is_null(), "change {index}");
        }
        // The other card's completion queue.
        assert!((api.ibv_create_qp)(host.pd, &mut init_attr(IBV_QPT_RC, other.cq(4))).is_null());
        let pointer = (&raw mut byte).cast();
        assert!((api.ibv_reg_mr)(host.pd, pointer, 0, 0).is_null());
        assert!((api.ibv_reg_mr)(host.pd, null_mut(), 1, 0).is_null());
        assert!((api.ibv_reg_mr)(host.pd, pointer, usize::MAX, 0).is_null());
        assert!((api.ibv_reg_mr)(host.pd, pointer, 1, IBV_ACCESS_REMOTE_WRITE as i32).is_null());
        assert!((api.ibv_reg_mr)(host.pd, pointer, 1, 1 << 12).is_null());
        let everything = (api.ibv_reg_mr)(host.pd, null_mut(), usize::MAX, IBV_ACCESS_ON_DEMAND as i32);
        assert!(everything.is_null());
        let mut port = ibv_port_attr::default();
        assert_eq!(inline::query_port(api, host.context, 2, &mut port), libc::EINVAL);
        assert_eq!(inline::query_port(api, host.context, 1, &mut port), 0);
        assert_eq!((port.state, u32::from(port.link_layer)), (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET));
        let mut gid = ibv_gid { raw: [0; 16] };
        assert_ne!((api.ibv_query_gid)(host.context, 1, port.gid_tbl_len, &mut gid), 0);
        let mut unknown = path(ibv_gid { raw: [0x20; 16] });
        assert!((api.ibv_create_ah)(host.pd, &mut unknown).is_null());
        assert_eq!(errno(), libc::EHOSTUNREACH);
        let mut local = path(host.gid());
        local.is_global = 0;
        assert!((api.ibv_create_ah)(host.pd, &mut local).is_null());
    }
    // States in the wrong order, missing attributes, and requests in the wrong state.
    let qp = host.qp(IBV_QPT_RC, cq);
    let rts = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
    assert_eq!(host.modify(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN), libc::EINVAL);
    let init = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..Default::default() };
    assert_eq!(host.modify(qp, &init, IBV_QP_STATE | IBV_QP_PORT), libc::EINVAL, "no access flags");
    assert_eq!(host.modify(qp, &init, IBV_QP_STATE | IBV_QP_ALT_PATH), libc::EOPNOTSUPP);
    assert_eq!(host.post_recv(qp, 1, vec![]), libc::EINVAL, "still in RESET");
    host.init(qp);
    let mut wr = send(1, IBV_WR_SEND, &mut []);
    assert_eq!(host.post_send(qp, &mut wr), libc::EINVAL, "not in RTS");
}

#[test]
fn keys_of_another_domain_and_ranges_outside_fail_as_completions() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let mut bytes = vec![0; 64];
    let mut target = vec![0; 64];
    let peer = hosts[1].mr(&mut target, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    // A key of another protection domain on the same card.
    let foreign = unsafe {
        let pd = (hosts[0].api.ibv_alloc_pd)(hosts[0].context);
        (hosts[0].api.ibv_reg_mr)(pd, bytes.as_mut_ptr().cast(), 64, 0)
    };
    let mut gather = [sge(&bytes, unsafe { (*foreign).lkey })];
    let mut wr = send(1, IBV_WR_RDMA_WRITE, &mut gather);
    wr.wr.rdma.remote_addr = target.as_ptr() as u64;
    unsafe { wr.wr.rdma.rkey = (*peer).rkey };
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    let failed = hosts[0].completion(cqs[0]);
    assert_eq!((failed.wr_id, failed.status), (1, IBV_WC_LOC_PROT_ERR));
    // The queue pair is in the error state now; what follows is flushed.
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_WR_FLUSH_ERR);
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    assert_eq!(unsafe { (hosts[0].api.ibv_query_qp)(qps[0], &mut attr, 0, &mut init) }, 0);
    assert_eq!(attr.qp_state, IBV_QPS_ERR);

    // A range past the end of the peer's key.
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let local = hosts[0].mr(&mut bytes, 0);
    let peer = hosts[1].mr(&mut target, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    let mut gather = [sge(&bytes, unsafe { (*local).lkey })];
    let mut wr = send(1, IBV_WR_RDMA_WRITE, &mut gather);
    wr.wr.rdma.remote_addr = target.as_ptr() as u64 + 1;
    unsafe { wr.wr.rdma.rkey = (*peer).rkey };
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn reset_forgets_what_was_posted() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let mut bytes = vec![0; 64];
    let lkey = unsafe { (*hosts[0].mr(&mut bytes, IBV_ACCESS_LOCAL_WRITE)).lkey };
    for id in 0..8 {
        assert_eq!(hosts[0].post_recv(qps[0], id, vec![sge(&bytes, lkey)]), 0);
    }
    let failed = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(hosts[0].modify(qps[0], &failed, IBV_QP_STATE), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_WR_FLUSH_ERR);
    while emu_libibverbs::relax() {}
    let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
    assert_eq!(hosts[0].modify(qps[0], &reset, IBV_QP_STATE), 0);
    assert!(hosts[0].try_completion(cqs[0]).is_none(), "completions of before the reset are gone");
    hosts[0].init(qps[0]);
    for id in 0..8 {
        assert_eq!(hosts[0].post_recv(qps[0], id, vec![sge(&bytes, lkey)]), 0);
    }
}

#[test]
fn device_commands_with_bad_fields_leave_status_and_syndrome() {
    let [host, _] = two_cards();
    let api = &host.api;
    let mut command = [0_u8; 272];
    let mut answer = [0_u8; 16];
    let create = |command: &[u8], answer: &mut [u8]| unsafe {
        let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
        (api.mlx5dv_devx_obj_create)(host.context, input, command.len(), out, answer.len())
    };
    unsafe {
        let out = answer.as_mut_ptr().cast();
        assert!((api.mlx5dv_devx_obj_create)(host.context, null(), 272, out, 16).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!((api.mlx5dv_devx_obj_create)(host.context, command.as_ptr().cast(), 272, out, 8).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    // (opcode, length, status)
    for (opcode, length, status) in [
        (0x999_u16, 272, 0x2),
        (0x806, 16, 0x50), // ATTACH_TO_MCG too short
        (0x806, 32, 0x5),  // no such queue pair
        (0x500, 64, 0x50), // CREATE_QP too short
        (0x500, 272, 0x5), // no such memory object
        (0x400, 272, 0x5),
        (0x200, 272, 0x3), // CREATE_MKEY for one queue pair
        (0x500, 2, 0x50),
    ] {
        command[..2].copy_from_slice(&opcode.to_be_bytes());
        assert!(create(&command[..length], &mut answer).is_null(), "{opcode:#x}");
        assert_eq!(errno(), libc::EREMOTEIO);
        assert_eq!(answer[0], status, "{opcode:#x}");
        assert_ne!(answer[4..8], [0; 4], "{opcode:#x}");
    }
}

#[test]
fn keys_made_by_command_have_the_tag_asked_for() {
    let [host, _] = two_cards();
    let api = &host.api;
    let mut bytes = vec![0_u8; 4096];
    unsafe {
        let umem = (api.mlx5dv_devx_umem_reg)(host.context, bytes.as_mut_ptr().cast(), 4096, IBV_ACCESS_LOCAL_WRITE);
        assert!(!umem.is_null());
        let mut object = mlx5dv_obj::default();
        let mut pd = mlx5dv_pd::default();
        (object.pd.in_, object.pd.out) = (host.pd, &mut pd);
        assert_eq!((api.mlx5dv_init_obj)(&mut object, u64::from(MLX5DV_OBJ_PD)), 0);
        for tag in [0x00_u8, 0x7F, 0xFF] {
            let mut command = [0_u8; 272];
            command[..2].copy_from_slice(&0x200_u16.to_be_bytes());
            command[0xC] = 0x40; // memory object valid
            command[0x12] = 0x08; // local write: bit 20
            command[0x14..0x17].fill(0xFF); // any queue pair
            command[0x17] = tag;
            command[0x1C..0x20].copy_from_slice(&pd.pdn.to_be_bytes());
            command[0x20..0x28].copy_from_slice(&(bytes.as_ptr() as u64).to_be_bytes());
            command[0x28..0x30].copy_from_slice(&4096_u64.to_be_bytes());
            command[0x64..0x68].copy_from_slice(&(*umem).umem_id.to_be_bytes());
            let mut answer = [0_u8; 16];
            let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
            let object = (api.mlx5dv_devx_obj_create)(host.context, input, 272, out, 16);
            assert!(!object.is_null(), "{answer:x?}");
            let index = u32::from_be_bytes([0, answer[9], answer[10], answer[11]]);
            let key = index << 8 | u32::from(tag);
            let attr = emu_machine::with_world(|w| w.card(0).unwrap().nic.query_mkey(key).copied()).unwrap().unwrap();
            assert_eq!((attr.start, attr.len), (bytes.as_ptr() as u64, 4096));
            assert!(attr.access.contains(emu_machine::nic::Access::LOCAL_WRITE));
            assert_eq!((api.mlx5dv_devx_obj_destroy)(object), 0);
            assert_eq!((api.mlx5dv_devx_obj_destroy)(object), libc::EINVAL);
        }
        assert_eq!((api.mlx5dv_devx_umem_dereg)(umem), 0);
    }
}
