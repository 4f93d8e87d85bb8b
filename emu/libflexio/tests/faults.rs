//! Firmware that faults, hangs or gives up, and images and memory that are not what they should be.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ffi::CString;
use std::path::PathBuf;
use std::ptr::null_mut;

use crate::support::*;
use emu_machine::Config;
use emu_machine::time::PS_PER_US;
use flexio_sys::*;

const OK: flexio_status = FLEXIO_STATUS_SUCCESS;
const FAILED: flexio_status = FLEXIO_STATUS_FAILED;
const FATAL: flexio_status = FLEXIO_STATUS_FATAL_ERR;

/// The crash record of a process, and the file's name.
fn crash_data(host: &Host, process: *mut flexio_process, test: &str) -> (String, PathBuf) {
    let base = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    let name = CString::new(base.to_str().unwrap()).unwrap();
    assert_eq!(unsafe { (host.api.flexio_crash_data.expect("emulated"))(process, name.as_ptr()) }, OK);
    let start = format!("{}.", base.file_name().unwrap().to_str().unwrap());
    let mut files = std::fs::read_dir(base.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
    let path = files.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&start)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (text, path)
}

fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    assert!(ready >= 0);
    ready == 1
}

#[test]
fn a_faulting_call_kills_the_process_and_leaves_a_crash_record() {
    for (name, code, cause) in [
        ("illegal", vec![addi(A3, 0, 77), ILLEGAL], "illegal instruction"),
        ("null", vec![addi(A3, 0, 77), ld(A0, 0, 8)], "no memory at this address"),
        ("misaligned", vec![addi(A3, 0, 77), ld(A0, 0, 9)], "misaligned"),
        ("window", vec![addi(A3, 0, 77), addi(A2, 0, -1), slli(A2, A2, 63), ld(A0, A2, 16)], "no memory key"),
        ("rtos", vec![addi(A3, 0, 77), addi(A7, 0, 99), ECALL], "unknown RTOS call 99"),
    ] {
        let host = Host::small(&image(&[RET], &code, &[]));
        let api = &host.api;
        let process = host.process();
        unsafe {
            let fd = (api.flexio_err_handler_fd.expect("emulated"))(process);
            assert!(fd >= 0 && !readable(fd));
            assert_eq!((api.flexio_err_handler_fd.expect("emulated"))(process), fd, "one descriptor per process");
            assert_eq!((api.flexio_err_status_get)(process), FLEXIO_DEV_NO_ERROR);
            assert_eq!(
                (api.flexio_crash_data.expect("emulated"))(process, c"early".as_ptr()),
                FAILED,
                "nothing has crashed"
            );
            assert_eq!(host.call(process, 1), (FATAL, 0), "{name}: no answer is written");
            assert_eq!((api.flexio_err_status_get)(process), FLEXIO_DEV_FATAL_ERROR);
            assert!(readable(fd), "{name}: the death is signalled");
            let (record, path) = crash_data(&host, process, name);
            for part in [cause, "ping+", "a3 000000000000004d", "execution unit"] {
                assert!(record.contains(part), "{name}: {part:?} is not in\n{record}");
            }
            assert!(path.to_str().unwrap().ends_with(".001.crash"), "{}", path.display());
            let nowhere = c"/no-such-directory/crash".as_ptr();
            assert_eq!((api.flexio_crash_data.expect("emulated"))(process, nowhere), FAILED);

            // A dead process refuses work, still frees, and goes.
            assert_eq!(host.call(process, 1), (FATAL, 0));
            let mut attr = flexio_event_handler_attr { host_stub_func: host.handler, ..Default::default() };
            let mut handler = null_mut();
            assert_eq!((api.flexio_event_handler_create)(process, &mut attr, &mut handler), FATAL);
            assert_eq!(host.heap(process).allocated, 0, "{name}: the argument buffer is given back");
            assert_eq!((api.flexio_process_destroy)(process), OK);
            let next = host.process();
            assert_eq!((api.flexio_err_status_get)(next), FLEXIO_DEV_NO_ERROR, "{name}: the next one is healthy");
        }
    }
}

#[test]
fn firmware_that_gives_up_is_a_user_error() {
    let host = Host::small(&image(&[RET], &[addi(A0, 0, 0x85), addi(A7, 0, ERROR), ECALL], &[]));
    let process = host.process();
    assert_eq!(host.call(process, 1), (FATAL, 0));
    assert_eq!(unsafe { (host.api.flexio_err_status_get)(process) }, FLEXIO_DEV_USER_ERROR);
}

#[test]
fn an_endless_call_comes_back_by_the_watchdog() {
    let config = Config { rpc_watchdog_ps: 50 * PS_PER_US, heap_bytes: 1 << 16, ..Config::default() };
    let host = Host::new(config, &image(&[RET], &[SPIN], &[]));
    let process = host.process();
    assert_eq!(host.call(process, 1), (FATAL, 0));
    assert!((50 * PS_PER_US..60 * PS_PER_US).contains(&emu_libibverbs::now_ps()), "{}", emu_libibverbs::now_ps());
    assert_eq!(unsafe { (host.api.flexio_err_status_get)(process) }, FLEXIO_DEV_FATAL_ERROR);
    let (record, _) = crash_data(&host, process, "endless-call");
    assert!(record.contains("watchdog"), "{record}");
}

#[test]
fn an_endless_event_handler_ends_by_the_watchdog() {
    // ping(handler): event_handler_activate(handler).
    let elf = image(&[SPIN], &[addi(A7, 0, ACTIVATE), ECALL, RET], &[]);
    let config = Config { handler_watchdog_ps: 70 * PS_PER_US, heap_bytes: 1 << 16, ..Config::default() };
    let host = Host::new(config, &elf);
    let api = &host.api;
    let process = host.process();
    let handler = host.event_handler(process);
    unsafe {
        assert_eq!((api.flexio_event_handler_run)(handler, 0), OK);
        let id = (api.flexio_event_handler_get_id)(handler);
        assert_eq!((api.flexio_event_handler_get_obj_id.expect("emulated"))(handler), id);
        assert_eq!(host.call(process, id.into()), (OK, 0));
        let fd = (api.flexio_err_handler_fd.expect("emulated"))(process);
        assert!(!readable(fd), "it only spins yet");
        host.settle();
        assert_eq!((api.flexio_err_status_get)(process), FLEXIO_DEV_FATAL_ERROR);
        assert!(readable(fd));
        let (record, _) = crash_data(&host, process, "endless-handler");
        assert!(record.contains("watchdog") && record.contains("handler+0x0"), "{record}");
        assert!(emu_libibverbs::now_ps() < 80 * PS_PER_US);
        // Objects of a dead process are destroyed as usual.
        assert_eq!((api.flexio_event_handler_destroy)(handler), OK);
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
}

#[test]
fn an_event_handler_gets_the_argument_of_its_release() {
    // *argument = 0x55; reschedule. ping(handler): activate. The RPC then reads what the handler wrote.
    let handler = [addi(A1, 0, 0x55), sd(A1, A0, 0), addi(A7, 0, RESCHEDULE), ECALL];
    let ping = [addi(A7, 0, ACTIVATE), ECALL, lui(T0, 0x40000), slli(T0, T0, 1), ld(A0, T0, 0), RET];
    let host = Host::small(&image(&handler, &ping, &[]));
    let process = host.process();
    let handler = host.event_handler(process);
    unsafe {
        let id = (host.api.flexio_event_handler_get_id)(handler);
        assert_eq!(host.call(process, id.into()), (OK, 0), "not released yet");
        assert_eq!((host.api.flexio_event_handler_run)(handler, DATA), OK);
        host.settle();
        assert_eq!(host.call(process, id.into()), (OK, 0x55));
    }
}

#[test]
fn what_is_no_device_image_is_refused() {
    emu_machine::configure(Config { cards: 1, ..Config::default() }).unwrap();
    let api = emu_libflexio::api();
    let good = plain_image();
    let with = |at: usize, byte: u8| {
        let mut elf = good.clone();
        elf[at] = byte;
        elf
    };
    for (what, elf) in [
        ("text", b"this is no ELF, whatever it says".to_vec()),
        ("one byte", vec![0x7F]),
        ("32-bit", with(4, 1)),
        ("big-endian", with(5, 2)),
        ("an x86-64 one", with(18, 62)),
        ("half of one", good[..good.len() / 2].to_vec()),
        ("a header", good[..64].to_vec()),
    ] {
        let (status, app) = create_app(&api, c"bad", &elf);
        assert_eq!((status, app), (FAILED, null_mut()), "{what}");
    }
    assert_eq!(create_app(&api, c"", &good).0, FAILED, "no name");
    assert_eq!(create_app(&api, &CString::new("n".repeat(257)).unwrap(), &good).0, FAILED, "too long a name");
    let (status, app) = create_app(&api, &CString::new("n".repeat(256)).unwrap(), &good);
    assert_eq!(status, OK);
    unsafe {
        let mut key = None;
        for name in [c"no_such_function", c"Handler", c""] {
            assert_eq!((api.flexio_func_register)(app, name.as_ptr(), &mut key), FAILED, "{name:?}");
        }
        assert!(key.is_none());
        assert_eq!((api.flexio_app_destroy)(app), OK);
    }
}

#[test]
fn keys_and_queues_stay_inside_the_memory_of_the_process() {
    let host = Host::small(&plain_image());
    let api = &host.api;
    let process = host.process();
    let heap = host.heap(process);
    let end = heap.base_addr + heap.size as u64;
    unsafe {
        let key = |daddr, len, access| {
            let mut attr = flexio_mkey_attr { pd: host.pd, daddr, len, access };
            let mut mkey = null_mut();
            let status = (api.flexio_device_mkey_create)(process, &mut attr, &mut mkey);
            assert_eq!(status == OK, !mkey.is_null());
            (status, mkey)
        };
        for (daddr, len) in
            [(end - 64, 65), (end, 1), (0, 64), (heap.base_addr, usize::MAX), (u64::MAX, 1), (u64::MAX, 2), (0x1000, 8)]
        {
            assert_eq!(key(daddr, len, 1).0, FAILED, "{len} bytes at {daddr:#x}");
        }
        assert_eq!(key(end - 64, 64, 1 << 30).0, FAILED, "unknown rights");
        assert_eq!(key(end - 64, 64, 2).0, FAILED, "remote write without local write");
        let (status, mkey) = key(end - 64, 64, 1 | 2 | 4);
        assert_eq!(status, OK);
        assert_ne!((api.flexio_mkey_get_id)(mkey), u32::MAX);
        assert_eq!((api.flexio_device_mkey_destroy)(mkey), OK);
        assert_eq!((api.flexio_device_mkey_destroy)(mkey), FAILED);

        let good = host.cq_attr(process);
        let refused = |what: &str, attr: flexio_cq_attr| {
            let mut cq = null_mut();
            assert_eq!((api.flexio_cq_create)(process, null_mut(), &attr, &mut cq), FAILED, "{what}");
            assert!(cq.is_null());
        };
        refused("the ring ends outside", flexio_cq_attr { cq_ring_qmem: device_memory(end - 64), ..good });
        refused("the record is outside", flexio_cq_attr { cq_dbr_daddr: end, ..good });
        refused("no ring", flexio_cq_attr { cq_ring_qmem: device_memory(0), ..good });
        let unknown = flexio_qmem { memtype: FLEXIO_MEMTYPE_HOST, umem_id: 0xABCD, ..Default::default() };
        refused("no such user memory", flexio_cq_attr { cq_ring_qmem: unknown, ..good });
        refused("no such memory", flexio_cq_attr { cq_ring_qmem: flexio_qmem { memtype: 9, ..unknown }, ..good });
        refused("too deep", flexio_cq_attr { log_cq_depth: 23, ..good });
        refused("deeper than a shift", flexio_cq_attr { log_cq_depth: 255, ..good });
        refused("compression", flexio_cq_attr { cqe_comp_type: FLEXIO_CQE_COMP_BASIC, ..good });
        refused("collapsed", flexio_cq_attr { cc: true, ..good });
        let equeue = flexio_cq_attr { element_type: FLEXIO_CQ_ELEMENT_TYPE_EXT_EQ as u8, ..good };
        refused("events to a queue", equeue);
        host.cq(process, &good);
    }
}

#[test]
fn the_heap_ends_where_its_figures_say() {
    let host = Host::small(&plain_image());
    let api = &host.api;
    let process = host.process();
    unsafe {
        let alloc = |bytes| {
            let mut daddr = 0;
            let status = (api.flexio_buf_dev_alloc)(process, bytes, &mut daddr);
            (status, daddr)
        };
        let (status, first) = alloc(100);
        assert_eq!(status, OK);
        assert_eq!((host.heap(process).requested, host.heap(process).allocated), (100, 128), "whole lines");
        let (status, rest) = alloc((1 << 16) - 128);
        assert_eq!(status, OK);
        assert_eq!(alloc(1), (FAILED, 0));
        assert_eq!(alloc(usize::MAX), (FAILED, 0));
        let mut bytes = [0_u8; 16];
        let source = bytes.as_mut_ptr().cast();
        let mut daddr = 0;
        assert_eq!((api.flexio_copy_from_host.expect("emulated"))(process, source, 16, &mut daddr), FAILED);
        assert_eq!(host.call(process, 1).0, FAILED, "an argument buffer needs heap as well");
        assert_eq!((api.flexio_buf_dev_free)(process, first), OK);
        assert_eq!((api.flexio_buf_dev_free)(process, first), FAILED, "freed already");
        assert_eq!(host.call(process, 1), (OK, 6));
        assert_eq!((api.flexio_buf_dev_free)(process, rest), OK);
        assert_eq!((api.flexio_buf_dev_free)(process, 0), OK, "null is accepted");
        assert_eq!(host.heap(process).allocated, 0);

        // Copies that do not fit into the memory, or come from nowhere.
        let heap = host.heap(process);
        let end = heap.base_addr + heap.size as u64;
        assert_eq!((api.flexio_host2dev_memcpy)(process, source, 16, end - 16), OK);
        assert_eq!((api.flexio_host2dev_memcpy)(process, source, 16, end - 15), FAILED);
        assert_eq!((api.flexio_host2dev_memcpy)(process, null_mut(), 16, heap.base_addr), FAILED);
        assert_eq!((api.flexio_host2dev_memcpy)(process, source, usize::MAX, heap.base_addr), FAILED);
        assert_eq!((api.flexio_buf_dev_memset)(process, 1, 17, end - 16), FAILED);
        assert_eq!((api.flexio_buf_dev_memset)(process, 1, usize::MAX, heap.base_addr), FAILED);
    }
}

/// A program that polls its memory calls nothing that could report the death; the descriptor does.
#[test]
fn a_death_is_signalled_without_a_call_of_flexio() {
    let mut slow = vec![addi(A3, A3, 1); 400];
    slow.push(ILLEGAL);
    let host = Host::small(&image(&slow, &[addi(A7, 0, ACTIVATE), ECALL, RET], &[]));
    let api = &host.api;
    let process = host.process();
    let handler = host.event_handler(process);
    unsafe {
        assert_eq!((api.flexio_event_handler_run)(handler, 0), OK);
        let fd = (api.flexio_err_handler_fd.expect("emulated"))(process);
        let id = (api.flexio_event_handler_get_id)(handler);
        assert_eq!(host.call(process, id.into()), (OK, 0));
        assert!(!readable(fd), "it runs");
        host.settle();
        assert!(readable(fd), "it has died, and nobody has asked");
        assert_eq!((api.flexio_err_status_get)(process), FLEXIO_DEV_FATAL_ERROR);
        assert_eq!((api.flexio_event_handler_destroy)(handler), OK);
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
    // Who asks later than that learns it, too.
    let host = Host::small(&image(&[RET], &[ILLEGAL], &[]));
    let process = host.process();
    assert_eq!(host.call(process, 1), (FATAL, 0));
    assert!(readable(unsafe { (host.api.flexio_err_handler_fd.expect("emulated"))(process) }));
}

/// A command queue with so many workers, which runs at once, and a task of `ping` in it.
fn command_queue(host: &Host, process: *mut flexio_process) -> *mut flexio_cmdq {
    let api = &host.api;
    let mut attr = flexio_cmdq_attr { workers: 1, batch_size: 1, state: FLEXIO_CMDQ_STATE_RUNNING };
    let mut cmdq = null_mut();
    unsafe {
        assert_eq!((api.flexio_cmdq_create.expect("emulated"))(process, &mut attr, &mut cmdq), OK);
        assert_eq!((api.flexio_cmdq_task_add.expect("emulated"))(cmdq, host.ping, 5), OK);
    }
    cmdq
}

#[test]
fn a_command_queue_whose_task_has_died_is_not_empty() {
    let host = Host::small(&image(&[RET], &[ILLEGAL], &[]));
    let (api, process) = (&host.api, host.process());
    let cmdq = command_queue(&host, process);
    unsafe {
        for _ in 0..3 {
            assert_eq!((api.flexio_cmdq_is_empty.expect("emulated"))(cmdq), 0, "its task was not performed");
        }
        assert_eq!((api.flexio_err_status_get)(process), FLEXIO_DEV_FATAL_ERROR);
        assert_eq!((api.flexio_cmdq_task_add.expect("emulated"))(cmdq, host.ping, 5), FATAL);
        assert_eq!((api.flexio_cmdq_destroy.expect("emulated"))(cmdq), OK);
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
}

#[test]
fn a_task_that_does_not_end_is_reported() {
    let config = Config { heap_bytes: 1 << 16, stuck_ps: 2_000_000_000, ..Config::default() };
    let host = Host::new(config, &image(&[RET], &[SPIN], &[]));
    let (api, process) = (&host.api, host.process());
    let cmdq = command_queue(&host, process);
    let diagnoses = || emu_machine::with_world(|world| world.snapshot().diagnoses).unwrap();
    // Each takes a millisecond of card time.
    let found = (0..10).find_map(|_| {
        assert_eq!(unsafe { (api.flexio_cmdq_is_empty.expect("emulated"))(cmdq) }, 0);
        diagnoses().first().cloned()
    });
    let text = found.expect("a diagnosis").to_string();
    for part in ["thread 1 (ping)", "has run for 2 ms of card time", "(ping+0x0)", "a task of a command queue ends"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    unsafe {
        assert_eq!((api.flexio_cmdq_destroy.expect("emulated"))(cmdq), OK);
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
}
