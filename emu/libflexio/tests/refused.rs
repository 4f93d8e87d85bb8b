//! Every call for what an emulated card does not have answers an error, whatever it is given. docs/coverage.toml names
//! this file for each of them, and `cargo xtask coverage` searches for the call here.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ptr::{null, null_mut};

use crate::support::*;
use emu_machine::Config;
use flexio_sys::*;

const FAILED: flexio_status = FLEXIO_STATUS_FAILED;

#[test]
fn calls_for_shared_receive_queues_answer_an_error() {
    let host = Host::small(&plain_image());
    let process = host.process();
    let api = &host.api;
    let attr = flexio_wq_attr { log_wq_depth: 4, pd: host.pd, ..Default::default() };
    let mut rmp = null_mut();
    unsafe {
        assert_eq!((api.flexio_rmp_create.expect("emulated"))(process, host.context, &attr, &mut rmp), FAILED);
        assert!(rmp.is_null(), "nothing was made");
        assert_eq!((api.flexio_rmp_destroy.expect("emulated"))(rmp), FAILED);
        assert_eq!((api.flexio_rmp_get_wq_num.expect("emulated"))(rmp), u32::MAX);
    }
}

/// Handles that are none, and attributes that cannot be.
#[test]
fn queues_of_ethernet_and_commands_that_cannot_be_answer_an_error() {
    let host = Host::small(&plain_image());
    let process = host.process();
    let api = &host.api;
    let attr = flexio_wq_attr { log_wq_depth: 4, pd: host.pd, ..Default::default() };
    let deep = flexio_wq_attr { log_wq_depth: 16, ..attr };
    let (mut rq, mut sq, mut cmdq) = (null_mut(), null_mut(), null_mut());
    unsafe {
        // There is no memory at 0 for a ring.
        for attr in [&attr, &deep] {
            assert_eq!((api.flexio_rq_create.expect("emulated"))(process, host.context, 0, attr, &mut rq), FAILED);
            assert_eq!((api.flexio_sq_create.expect("emulated"))(process, host.context, 0, attr, &mut sq), FAILED);
        }
        assert!(rq.is_null() && sq.is_null(), "nothing was made");
        assert_eq!((api.flexio_rq_set_err_state.expect("emulated"))(rq), FAILED);
        assert_eq!((api.flexio_rq_get_wq_num.expect("emulated"))(rq), u32::MAX);
        assert_eq!((api.flexio_sq_get_wq_num.expect("emulated"))(sq), u32::MAX);
        assert!((api.flexio_rq_get_tir.expect("emulated"))(rq).is_null());
        for (workers, batch_size, state) in [(0, 1, 0), (-1, 1, 0), (1, 0, 0), (1, 1, 2), (1000, 1, 0)] {
            let mut attr = flexio_cmdq_attr { workers, batch_size, state };
            assert_eq!(
                (api.flexio_cmdq_create.expect("emulated"))(process, &mut attr, &mut cmdq),
                FAILED,
                "{workers} workers"
            );
        }
        assert!(cmdq.is_null());
        assert_eq!((api.flexio_cmdq_task_add.expect("emulated"))(cmdq, host.handler, 0), FAILED);
        assert_eq!((api.flexio_cmdq_state_running.expect("emulated"))(cmdq), FAILED);
        // Empty: whoever waits for that must not wait for ever.
        assert_eq!((api.flexio_cmdq_is_empty.expect("emulated"))(cmdq), 1);
        assert_eq!((api.flexio_cmdq_destroy.expect("emulated"))(cmdq), FAILED);
    }
}

#[test]
fn calls_for_other_functions_and_handlers_on_the_device_answer_an_error() {
    let host = Host::small(&plain_image());
    let process = host.process();
    let api = &host.api;
    unsafe {
        let uar = (api.flexio_process_get_uar)(process);
        let mut extended = null_mut();
        assert_eq!((api.flexio_uar_extend.expect("emulated"))(uar, host.context, &mut extended), FAILED);
        assert!(extended.is_null());
        assert_eq!((api.flexio_uar_get_extended_id.expect("emulated"))(uar), u32::MAX);
        assert_eq!((api.flexio_process_error_handler_set.expect("emulated"))(process, host.handler), FAILED);
        // 0: debugging is not permitted.
        assert_eq!((api.flexio_process_udbg_token_get.expect("emulated"))(process), 0);
    }
}

/// A process is the host function's here, and takes nothing that was made through the function of the Arm cores.
#[test]
fn processes_are_of_the_hosts_function() {
    let config = Config { heap_bytes: 1 << 16, arm_functions: true, ..Config::default() };
    let host = Host::new(config, &plain_image());
    let process = host.process();
    let api = &host.api;
    unsafe {
        let list = (host.verbs.ibv_get_device_list)(null_mut());
        let arm = (host.verbs.ibv_open_device)(*list.add(1));
        (host.verbs.ibv_free_device_list)(list);
        let arm_pd = (host.verbs.ibv_alloc_pd)(arm);
        assert!(!arm.is_null() && !arm_pd.is_null());
        let mut other = null_mut();
        assert_eq!((api.flexio_process_create)(arm, host.app, null(), &mut other), FAILED);
        let attr = flexio_process_attr { pd: arm_pd, ..Default::default() };
        assert_eq!((api.flexio_process_create)(host.context, host.app, &attr, &mut other), FAILED);
        assert!(other.is_null());
        let mut window = null_mut();
        assert_eq!((api.flexio_window_create)(process, arm_pd, &mut window), FAILED);
        let mut outbox = null_mut();
        let mut attr = flexio_outbox_attr { uar: (api.flexio_process_get_uar)(process), ..Default::default() };
        assert_eq!((api.flexio_outbox_create)(process, &mut attr, &mut outbox), FLEXIO_STATUS_SUCCESS);
    }
}

#[test]
fn attributes_that_are_not_emulated_answer_an_error() {
    let host = Host::small(&plain_image());
    let process = host.process();
    let api = &host.api;
    unsafe {
        let pcc = flexio_process_attr { en_pcc: 1, ..Default::default() };
        let mut other = null_mut();
        assert_eq!((api.flexio_process_create)(host.context, host.app, &pcc, &mut other), FAILED, "en_pcc");
        let mut outbox_attr = flexio_outbox_attr { en_pcc: 1, ..Default::default() };
        assert_eq!((api.flexio_outbox_create)(process, &mut outbox_attr, &mut null_mut()), FAILED, "en_pcc");
        type Change = fn(&mut flexio_cq_attr);
        let changes: [(&str, Change); 8] = [
            ("basic compression", |a| a.cqe_comp_type = FLEXIO_CQE_COMP_BASIC),
            ("enhanced compression", |a| a.cqe_comp_type = FLEXIO_CQE_COMP_ENH),
            ("collapsed", |a| a.cc = true),
            ("moderation by count", |a| a.cq_max_count = 2),
            ("moderation by time", |a| a.cq_period = 1),
            ("an event queue", |a| a.element_type = FLEXIO_CQ_ELEMENT_TYPE_EXT_EQ as u8),
            ("an emulated interrupt", |a| a.element_type = FLEXIO_CQ_ELEMENT_TYPE_DPA_MSIX_EMULATED_CQ as u8),
            ("the reserved type", |a| a.element_type = 1),
        ];
        for (name, change) in changes {
            let mut attr = host.cq_attr(process);
            change(&mut attr);
            let made = (api.flexio_cq_create)(process, host.context, &attr, &mut null_mut());
            assert_eq!(made, FAILED, "{name}");
        }
        let cq = host.cq(process, &host.cq_attr(process));
        assert_eq!((api.flexio_cq_modify_moderation.expect("emulated"))(cq, 2, 0, 0), FAILED);
        let transports = [
            FLEXIO_QPC_ST_UC,
            FLEXIO_QPC_ST_UD,
            FLEXIO_QPC_ST_XRC,
            FLEXIO_QPC_ST_IBL2,
            FLEXIO_QPC_ST_DCI,
            FLEXIO_QPC_ST_QP0,
            FLEXIO_QPC_ST_QP1,
            FLEXIO_QPC_ST_RAW_DATAGRAM,
            FLEXIO_QPC_ST_REG_UMR,
            FLEXIO_QPC_ST_DC_CNAK,
        ];
        for transport_type in transports {
            let mut attr = flexio_qp_attr { transport_type, ..Default::default() };
            let made = (api.flexio_qp_create)(process, null_mut(), &mut attr, &mut null_mut());
            assert_eq!(made, FAILED, "transport {transport_type}");
        }
        let mut attr = flexio_qp_attr { rq_type: 1, ..Default::default() };
        assert_eq!((api.flexio_qp_create)(process, null_mut(), &mut attr, &mut null_mut()), FAILED, "a shared queue");
        let affinity = flexio_affinity { type_: FLEXIO_AFFINITY_GROUP, id: 0 };
        let mut attr = flexio_event_handler_attr { host_stub_func: host.handler, affinity, ..Default::default() };
        assert_eq!((api.flexio_event_handler_create)(process, &mut attr, &mut null_mut()), FAILED, "a group");
        let mut attr = stream_attr(FLEXIO_MSG_DEV_INFO);
        attr.sync_mode = FLEXIO_LOG_DEV_SYNC_MODE_TRACER;
        let file = CFile::new();
        let made = (api.flexio_msg_stream_create)(process, &mut attr, file.0, null_mut(), &mut null_mut());
        assert_eq!(made, FAILED, "the tracer");
    }
}

#[test]
fn the_log_level_is_remembered() {
    let api = emu_libflexio::api();
    unsafe {
        let before = (api.flexio_log_lvl_set.expect("emulated"))(FLEXIO_LOG_LVL_DBG);
        assert_eq!((api.flexio_log_lvl_set.expect("emulated"))(before), FLEXIO_LOG_LVL_DBG);
    }
}
