//! Objects from creation to destruction, in order and out of order.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use crate::support::*;
use flexio_sys::*;

const OK: flexio_status = FLEXIO_STATUS_SUCCESS;
const FAILED: flexio_status = FLEXIO_STATUS_FAILED;

/// A queue pair of eight blocks and eight receives, whose rings are in one piece of memory.
fn rc_attr(cqn: u32, ring: u64, dbr: u64) -> flexio_qp_attr {
    flexio_qp_attr {
        transport_type: FLEXIO_QPC_ST_RC,
        log_sq_depth: 3,
        log_rq_depth: 3,
        sq_cqn: cqn,
        rq_cqn: cqn,
        qp_wq_buff_qmem: device_memory(ring),
        qp_wq_dbr_qmem: device_memory(dbr),
        ..Default::default()
    }
}

#[test]
fn an_application_answers_for_its_elf_and_its_functions() {
    let elf = plain_image();
    let host = Host::small(&elf);
    let api = &host.api;
    unsafe {
        assert_eq!(CStr::from_ptr((api.flexio_app_get_name.expect("emulated"))(host.app)), c"tiny");
        assert_eq!((api.flexio_app_get_elf_size.expect("emulated"))(host.app), elf.len());
        let mut copy = vec![0_u64; elf.len().div_ceil(8)];
        assert_eq!((api.flexio_app_get_elf.expect("emulated"))(host.app, copy.as_mut_ptr(), elf.len() - 1), FAILED);
        assert_eq!((api.flexio_app_get_elf.expect("emulated"))(host.app, copy.as_mut_ptr(), elf.len()), OK);
        let bytes: Vec<u8> = copy.iter().flat_map(|word| word.to_ne_bytes()).take(elf.len()).collect();
        assert_eq!(bytes, elf);

        let (mut list, mut count) = (null_mut(), 0);
        assert_eq!((api.flexio_app_get_list.expect("emulated"))(&mut list, &mut count), OK);
        // Applications of the other tests are listed as well: the list is the process's.
        let apps = std::slice::from_raw_parts(list, count as usize + 1);
        assert!(apps.contains(&host.app) && apps.last() == Some(&null_mut()));
        assert_eq!((api.flexio_app_list_free.expect("emulated"))(list), OK);
        assert_eq!((api.flexio_app_list_free.expect("emulated"))(list), FAILED);

        let (mut pup, mut argbuf_bytes, mut pack) = (7, 7, None);
        let (mut name, mut unpack_name) = ([1; 257], [1; 257]);
        let (mut addr, mut unpack) = (0, 0);
        let mut info = |func, room, name: *mut i8| {
            (api.flexio_func_get_register_info.expect("emulated"))(
                host.app,
                func,
                &mut pup,
                name.cast(),
                unpack_name.as_mut_ptr(),
                room,
                &mut argbuf_bytes,
                &mut pack,
                &mut addr,
                &mut unpack,
            )
        };
        assert_eq!(info(host.ping, 3, name.as_mut_ptr().cast()), FAILED, "the name does not fit");
        assert_eq!(info(None, 257, name.as_mut_ptr().cast()), FAILED);
        assert_eq!(info(host.ping, 257, name.as_mut_ptr().cast()), OK);
        assert_eq!(CStr::from_ptr(name.as_ptr()), c"ping");
        assert_eq!(CStr::from_ptr(unpack_name.as_ptr()), c"ping__unpack");
        assert_eq!((pup, argbuf_bytes, pack.is_some()), (1, 8, true));
        assert!(addr != 0 && unpack == addr + 8, "{addr:#x} {unpack:#x}");
        let mut info = |func| {
            (api.flexio_func_get_register_info.expect("emulated"))(
                host.app,
                func,
                &mut pup,
                null_mut(),
                null_mut(),
                0,
                &mut argbuf_bytes,
                &mut pack,
                &mut addr,
                &mut unpack,
            )
        };
        assert_eq!(info(host.handler), OK);
        assert_eq!((pup, argbuf_bytes, pack.is_some(), unpack), (0, 0, false, 0));
    }
}

#[test]
fn a_whole_life_from_application_to_device() {
    let host = Host::small(&plain_image());
    let api = &host.api;
    let process = host.process();
    unsafe {
        let fresh = host.heap(process);
        assert_eq!((fresh.size, fresh.requested, fresh.allocated), (1 << 16, 0, 0));
        assert!(!(api.flexio_process_get_pd.expect("emulated"))(process).is_null());
        assert_ne!((api.flexio_process_get_pd.expect("emulated"))(process), host.pd, "a domain of its own");
        assert_ne!((api.flexio_process_get_dumem_id)(process), u32::MAX);
        assert_eq!((api.flexio_process_udbg_token_get.expect("emulated"))(process), 0);
        assert_eq!(host.call(process, 37), (OK, 42));
        assert_eq!(host.call(process, u64::MAX), (OK, 4));
        assert_eq!(host.heap(process).allocated, 0, "argument buffers are given back");

        let handler = host.event_handler(process);
        let attr = flexio_cq_attr {
            element_type: FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD as u8,
            __bindgen_anon_1: flexio_cq_attr__bindgen_ty_1 { thread: (api.flexio_event_handler_get_thread)(handler) },
            ..host.cq_attr(process)
        };
        let cq = host.cq(process, &attr);
        assert_ne!((api.flexio_cq_get_cq_num)(cq), u32::MAX);
        let (mut count, mut period, mut mode) = (9, 9, 9);
        assert_eq!((api.flexio_cq_query_moderation.expect("emulated"))(cq, &mut count, &mut period, &mut mode), OK);
        assert_eq!((count, period, mode), (0, 0, 0));
        assert_eq!((api.flexio_cq_modify_moderation.expect("emulated"))(cq, 1, 0, 0), OK);
        assert_eq!((api.flexio_cq_modify_moderation.expect("emulated"))(cq, 16, 0, 0), FAILED);

        let (ring, dbr) = host.queue(process, (16 + 64) << 3);
        let number = (api.flexio_cq_get_cq_num)(cq);
        let mut qp_attr = rc_attr(number, ring, dbr);
        let mut qp = null_mut();
        assert_eq!((api.flexio_qp_create)(process, null_mut(), &mut qp_attr, &mut qp), OK);
        assert_ne!((api.flexio_qp_get_qp_num)(qp), u32::MAX);
        assert_eq!((api.flexio_qp_state_get.expect("emulated"))(qp), FLEXIO_QP_STATE_RST);
        qp_attr.next_state = FLEXIO_QP_STATE_RTS;
        assert_eq!((api.flexio_qp_modify)(qp, &mut qp_attr, null_mut()), FAILED, "states come in order");
        qp_attr.next_state = FLEXIO_QP_STATE_INIT;
        qp_attr.vhca_port_num = 1;
        assert_eq!((api.flexio_qp_modify)(qp, &mut qp_attr, null_mut()), OK);
        assert_eq!((api.flexio_qp_state_get.expect("emulated"))(qp), FLEXIO_QP_STATE_INIT);
        qp_attr.next_state = 77;
        assert_eq!((api.flexio_qp_modify)(qp, &mut qp_attr, null_mut()), FAILED);
        // At most 16 Reads in each direction, and those of the peer are what was said.
        (qp_attr.next_state, qp_attr.fl, qp_attr.path_mtu) = (FLEXIO_QP_STATE_RTR, 1, 3);
        for log in [5, 7, 8, 255] {
            qp_attr.log_rra_max = log;
            assert_eq!((api.flexio_qp_modify)(qp, &mut qp_attr, null_mut()), FAILED, "{log}");
        }
        qp_attr.log_rra_max = 3;
        assert_eq!((api.flexio_qp_modify)(qp, &mut qp_attr, null_mut()), OK);
        let qpn = (api.flexio_qp_get_qp_num)(qp);
        let query = emu_machine::with_world(|world| world.card(0).unwrap().nic.query_qp(qpn).unwrap()).unwrap();
        assert_eq!(query.path.max_dest_rd_atomic, 8);
        (qp_attr.next_state, qp_attr.log_sra_max) = (FLEXIO_QP_STATE_RTS, 5);
        assert_eq!((api.flexio_qp_modify)(qp, &mut qp_attr, null_mut()), FAILED);

        // What is needed is not destroyed before what needs it.
        assert_eq!((api.flexio_cq_destroy)(cq), FAILED, "a queue pair completes here");
        assert_eq!((api.flexio_event_handler_destroy)(handler), FAILED, "a completion queue is bound to it");
        assert_eq!((api.flexio_process_destroy)(process), FAILED);
        assert_eq!((api.flexio_app_destroy)(host.app), FAILED);
        assert_eq!(host.call(process, 1), (OK, 6), "a refused destruction changes nothing");
        assert_eq!((api.flexio_qp_destroy)(qp), OK);
        assert_eq!((api.flexio_cq_destroy)(cq), OK);
        assert_eq!((api.flexio_event_handler_destroy)(handler), OK);
        assert_eq!((api.flexio_process_destroy)(process), OK);
        assert_eq!((api.flexio_app_destroy)(host.app), OK);
        assert_eq!((host.verbs.ibv_dealloc_pd)(host.pd), 0);
        assert_eq!((host.verbs.ibv_close_device)(host.context), 0);
    }
}

#[test]
fn a_domain_outlives_the_windows_keys_and_processes_in_it() {
    let host = Host::small(&plain_image());
    let api = &host.api;
    let busy = || assert_eq!(unsafe { (host.verbs.ibv_dealloc_pd)(host.pd) }, libc::EBUSY);
    unsafe {
        let attr = flexio_process_attr { pd: host.pd, en_pcc: 0 };
        let mut process = null_mut();
        assert_eq!((api.flexio_process_create)(host.context, host.app, &attr, &mut process), OK);
        assert_eq!((api.flexio_process_get_pd.expect("emulated"))(process), host.pd);
        busy();
        assert_eq!((api.flexio_process_destroy)(process), OK);

        let process = host.process();
        let mut window = null_mut();
        assert_eq!((api.flexio_window_create)(process, null_mut(), &mut window), FAILED);
        assert_eq!((api.flexio_window_create)(process, host.pd, &mut window), OK);
        busy();
        assert_eq!((api.flexio_window_destroy)(window), OK);

        let mut daddr = 0;
        assert_eq!((api.flexio_buf_dev_alloc)(process, 64, &mut daddr), OK);
        let mut attr = flexio_mkey_attr { pd: host.pd, daddr, len: 64, access: 1 };
        let mut mkey = null_mut();
        assert_eq!((api.flexio_device_mkey_create)(process, &mut attr, &mut mkey), OK);
        busy();
        assert_eq!((api.flexio_device_mkey_destroy)(mkey), OK);
        assert_eq!((host.verbs.ibv_dealloc_pd)(host.pd), 0);

        // The process's own domain goes with it, unless somebody uses it.
        let own = (api.flexio_process_get_pd.expect("emulated"))(process);
        let mut bytes = [0_u8; 64];
        let mr = (host.verbs.ibv_reg_mr)(own, bytes.as_mut_ptr().cast(), 64, 1);
        assert!(!mr.is_null());
        assert_eq!((api.flexio_process_destroy)(process), FAILED);
        assert_eq!(host.call(process, 1), (OK, 6), "a refused destruction changes nothing");
        assert_eq!((host.verbs.ibv_dereg_mr)(mr), 0);
        assert_eq!((api.flexio_process_destroy)(process), OK);
        assert_eq!((host.verbs.ibv_dealloc_pd)(own), libc::EINVAL, "gone");
    }
}

#[test]
fn handles_are_distinguished_by_kind_and_life() {
    let host = Host::small(&plain_image());
    let api = &host.api;
    let process = host.process();
    unsafe {
        let (mut uar, mut outbox) = (null_mut(), null_mut());
        assert_eq!((api.flexio_uar_create.expect("emulated"))(process, &mut uar), OK);
        let mut attr = flexio_outbox_attr::default();
        assert_eq!((api.flexio_outbox_create)(process, &mut attr, &mut outbox), OK);
        assert_ne!((api.flexio_uar_get_id)(uar), (api.flexio_uar_get_id)((api.flexio_process_get_uar)(process)));
        assert_eq!((api.flexio_outbox_get_uar)(outbox), (api.flexio_process_get_uar)(process));
        // Live, but something else; inside something live; never anything.
        assert_eq!((api.flexio_outbox_destroy)(uar.cast()), FAILED);
        assert_eq!((api.flexio_uar_destroy.expect("emulated"))(outbox.cast()), FAILED);
        assert_eq!((api.flexio_uar_destroy.expect("emulated"))(uar.byte_add(1)), FAILED);
        assert_eq!((api.flexio_uar_destroy.expect("emulated"))(std::ptr::without_provenance_mut(usize::MAX)), FAILED);
        assert_eq!((api.flexio_process_destroy)(host.app.cast()), FAILED);
        assert_eq!((api.flexio_uar_destroy.expect("emulated"))(uar), OK);
        assert_eq!((api.flexio_uar_destroy.expect("emulated"))(uar), FAILED);
        assert_eq!((api.flexio_uar_get_id)(uar), u32::MAX);
        assert_eq!((api.flexio_outbox_destroy)(outbox), OK);
        assert_eq!((api.flexio_outbox_get_id)(outbox), u32::MAX);
        assert_eq!((api.flexio_process_destroy)(process), OK);
        assert_eq!(host.call(process, 1).0, FAILED);
        assert_eq!((api.flexio_err_status_get)(process), FLEXIO_DEV_FATAL_ERROR);

        // A thread of another process.
        let (one, two) = (host.process(), host.process());
        let handler = host.event_handler(one);
        let attr = flexio_cq_attr {
            element_type: FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD as u8,
            __bindgen_anon_1: flexio_cq_attr__bindgen_ty_1 { thread: (api.flexio_event_handler_get_thread)(handler) },
            ..host.cq_attr(two)
        };
        let mut cq = null_mut();
        assert_eq!((api.flexio_cq_create)(two, null_mut(), &attr, &mut cq), FAILED);
        assert!(cq.is_null());
    }
}

#[test]
fn an_argument_buffer_is_as_long_as_registered() {
    static KEYS: [u8; 3] = [0; 3];
    let host = Host::small(&plain_image());
    let process = host.process();
    let register = |index: usize, bytes, pack: flexio_func_arg_pack_fn_t| {
        let key = stub_key(std::ptr::NonNull::from(&KEYS[index]).cast());
        let (name, unpack) = (c"ping".as_ptr(), c"ping__unpack".as_ptr());
        (unsafe { (host.api.flexio_func_pup_register)(host.app, name, unpack, key, bytes, pack) }, key)
    };
    let mut answer = 0;
    // Sixty-four bytes, of which the pack function fills the first eight.
    let (status, key) = register(0, 64, Some(pack_u64()));
    assert_eq!(status, OK);
    assert_eq!(unsafe { (host.api.flexio_process_call)(process, key, &mut answer, 11_u64) }, OK);
    assert_eq!(answer, 16);
    // None; the function sees what the call before left in the heap.
    unsafe extern "C" fn pack_nothing(_: *mut core::ffi::c_void, _: *mut __va_list_tag) {}
    let (status, key) = register(1, 0, Some(pack_nothing));
    assert_eq!(status, OK);
    assert_eq!(unsafe { (host.api.flexio_process_call)(process, key, &mut answer) }, OK);
    assert_eq!(answer, 16);
    assert_eq!(register(2, (64 << 10) + 1, Some(pack_u64())).0, FAILED);
    assert_eq!(register(0, 8, Some(pack_u64())).0, FAILED, "the key is taken");
    for (name, unpack) in [(c"ping", null()), (c"", c"ping__unpack".as_ptr()), (c"ping", c"ping_unpack".as_ptr())] {
        let key = stub_key(std::ptr::NonNull::from(&KEYS[2]).cast());
        let pack = Some(pack_u64());
        let status = unsafe { (host.api.flexio_func_pup_register)(host.app, name.as_ptr(), unpack, key, 8, pack) };
        assert_eq!(status, FAILED, "{name:?}");
    }
}

/// What the machine has said, joined.
fn said() -> String {
    let diagnoses = emu_machine::with_world(|world| world.snapshot().diagnoses).unwrap();
    diagnoses.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn memory_that_a_queue_uses_is_nobodys_until_the_queue_is_destroyed() {
    let host = Host::small(&plain_image());
    let (api, process) = (&host.api, host.process());
    let attr = host.cq_attr(process);
    let cq = host.cq(process, &attr);
    let ring = unsafe { attr.cq_ring_qmem.__bindgen_anon_1.daddr };
    let alloc = |bytes: usize| {
        let mut at = 0;
        assert_eq!(unsafe { (api.flexio_buf_dev_alloc)(process, bytes, &mut at) }, OK);
        at
    };
    unsafe {
        assert_eq!(said(), "");
        for _ in 0..2 {
            let _ = (api.flexio_buf_dev_free)(process, ring);
        }
        let text = said();
        for part in [
            format!(
                "device memory at {ring:#x} has been freed with the ring of CQ {:#x}",
                (api.flexio_cq_get_cq_num)(cq)
            ),
            "destroy the queue first".to_owned(),
            "process 1 on card 0".to_owned(),
        ] {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
        assert_eq!(text.lines().count(), 1, "once: {text}");
        let other = alloc(64 << 3);
        assert_ne!(other, ring, "the card would write to it");
        assert_eq!((api.flexio_cq_destroy)(cq), OK);
        assert_eq!(alloc(64 << 3), ring, "now it is free");
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
}

#[test]
fn a_key_that_a_posted_receive_names_is_reported_when_it_is_destroyed() {
    let host = Host::small(&plain_image());
    let (api, process) = (&host.api, host.process());
    let cq = host.cq(process, &host.cq_attr(process));
    let number = unsafe { (api.flexio_cq_get_cq_num)(cq) };
    let (ring, dbr) = host.queue(process, (16 + 64) << 3);
    let (buffer, _) = host.queue(process, 4096);
    let pd = unsafe { (api.flexio_process_get_pd.expect("emulated"))(process) };
    let mut attr = rc_attr(number, ring, dbr);
    let (mut qp, mut keys) = (null_mut(), [null_mut(); 2]);
    unsafe {
        assert_eq!((api.flexio_qp_create)(process, host.context, &mut attr, &mut qp), OK);
        for key in &mut keys {
            let mut attr = flexio_mkey_attr { pd, daddr: buffer, len: 4096, access: 1 };
            assert_eq!((api.flexio_device_mkey_create)(process, &mut attr, key), OK);
        }
        let lkey = (api.flexio_mkey_get_id)(keys[0]);
        // The second receive names the first key.
        let entry = |lkey: u32| [&64_u32.to_be_bytes()[..], &lkey.to_be_bytes(), &buffer.to_be_bytes()].concat();
        let mut entries = [entry(0x1234), entry(lkey)].concat();
        let mut record = 2_u32.to_be_bytes();
        for (bytes, at) in [(&mut entries[..], ring), (&mut record[..], dbr)] {
            assert_eq!((api.flexio_host2dev_memcpy)(process, bytes.as_mut_ptr().cast(), bytes.len(), at), OK);
        }
        assert_eq!((api.flexio_device_mkey_destroy)(keys[1]), OK);
        assert_eq!(said(), "", "nothing names it");
        assert_eq!((api.flexio_device_mkey_destroy)(keys[0]), OK);
        let text = said();
        for part in
            [format!("memory key {lkey:#x} is being destroyed, and receive entry 1 of QP"), "names it".to_owned()]
        {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
    }
}
