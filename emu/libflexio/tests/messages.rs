//! Message streams: what the firmware prints arrives in a C file.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ptr::null_mut;

use crate::support::*;
use flexio_sys::*;

const OK: flexio_status = FLEXIO_STATUS_SUCCESS;
const FAILED: flexio_status = FLEXIO_STATUS_FAILED;

const TEXT: &[u8] = b"one line from the device\n";

/// `ping(level)` sends [`TEXT`] to stream `stream` at that level and returns the status.
fn printing_image(stream: i32) -> Vec<u8> {
    let ping = [
        addi(A1, A0, 0),
        addi(A0, 0, stream),
        lui(A2, 0x40000),
        slli(A2, A2, 1),
        addi(A3, 0, TEXT.len() as i32),
        addi(A7, 0, MSG),
        ECALL,
        RET,
    ];
    image(&[RET], &ping, TEXT)
}

fn create(
    host: &Host,
    process: *mut flexio_process,
    attr: &mut flexio_msg_stream_attr_t,
    file: *mut libc::FILE,
) -> (flexio_status, *mut flexio_msg_stream) {
    let mut stream = null_mut();
    let status = unsafe { (host.api.flexio_msg_stream_create)(process, attr, file, null_mut(), &mut stream) };
    (status, stream)
}

#[test]
fn messages_arrive_up_to_the_level_of_the_stream() {
    let host = Host::small(&printing_image(1));
    let api = &host.api;
    let process = host.process();
    let files = [CFile::new(), CFile::new()];
    let streams = files.each_ref().map(|file| {
        let (status, stream) = create(&host, process, &mut stream_attr(FLEXIO_MSG_DEV_WARN), file.0);
        assert_eq!(status, OK);
        stream
    });
    unsafe {
        assert_eq!(streams.map(|stream| (api.flexio_msg_stream_get_id.expect("emulated"))(stream)), [0, 1]);
        assert_eq!(host.call(process, FLEXIO_MSG_DEV_INFO.into()).0, OK);
        assert_eq!((api.flexio_msg_stream_flush)(streams[1]), OK);
        assert_eq!(files[1].text(), "", "INFO is above WARN");
        assert_eq!(host.call(process, FLEXIO_MSG_DEV_ERROR.into()), (OK, 0));
        let line = std::str::from_utf8(TEXT).unwrap();
        assert_eq!(files[1].text(), line, "a call prints what has come");
        assert_eq!((api.flexio_msg_stream_level_set.expect("emulated"))(streams[1], FLEXIO_MSG_DEV_INFO as u8), OK);
        assert_eq!(host.call(process, FLEXIO_MSG_DEV_INFO.into()), (OK, 0));
        assert_eq!((api.flexio_msg_stream_flush)(streams[1]), OK);
        assert_eq!(files[1].text(), line.repeat(2));
        assert_eq!(files[0].text(), "", "the other stream");

        for level in [FLEXIO_MSG_DEV_ALWAYS_PRINT, FLEXIO_MSG_DEV_DEBUG + 1, 255] {
            assert_eq!(
                (api.flexio_msg_stream_level_set.expect("emulated"))(streams[1], level as u8),
                FAILED,
                "{level}"
            );
        }
        let level = FLEXIO_MSG_DEV_INFO as u8;
        assert_eq!(
            (api.flexio_msg_stream_level_set.expect("emulated"))(streams[0], level),
            FAILED,
            "the default stream"
        );
        assert_eq!((api.flexio_process_destroy)(process), FAILED, "it has streams");
        for stream in streams {
            assert_eq!((api.flexio_msg_stream_destroy)(stream), OK);
            assert_eq!((api.flexio_msg_stream_destroy)(stream), FAILED);
            assert_eq!((api.flexio_msg_stream_get_id.expect("emulated"))(stream), -1);
        }
        assert_eq!(host.call(process, FLEXIO_MSG_DEV_ERROR.into()), (OK, 1), "the firmware sees that it is closed");
        assert_eq!(files[1].text(), line.repeat(2));
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
}

#[test]
fn the_words_before_a_crash_are_printed() {
    // Sends, then faults.
    let ping = [
        addi(A0, 0, 0),
        addi(A1, 0, FLEXIO_MSG_DEV_ALWAYS_PRINT as i32),
        lui(A2, 0x40000),
        slli(A2, A2, 1),
        addi(A3, 0, TEXT.len() as i32),
        addi(A7, 0, MSG),
        ECALL,
        ILLEGAL,
    ];
    let host = Host::small(&image(&[RET], &ping, TEXT));
    let process = host.process();
    let file = CFile::new();
    let (status, stream) = create(&host, process, &mut stream_attr(FLEXIO_MSG_DEV_ERROR), file.0);
    assert_eq!(status, OK);
    assert_eq!(host.call(process, 0).0, FLEXIO_STATUS_FATAL_ERR);
    assert_eq!(file.text().as_bytes(), TEXT);
    assert_eq!(unsafe { (host.api.flexio_msg_stream_destroy)(stream) }, OK);
}

#[test]
fn the_deprecated_log_is_a_stream() {
    let host = Host::small(&printing_image(0));
    let api = &host.api;
    let process = host.process();
    let file = CFile::new();
    unsafe {
        assert_eq!((api.flexio_log_dev_flush.expect("emulated"))(process), FAILED, "not open");
        assert_eq!((api.flexio_log_dev_destroy.expect("emulated"))(process), FAILED);
        let mut attr = stream_attr(FLEXIO_MSG_DEV_INFO);
        let mut thread = std::mem::zeroed();
        assert_eq!((api.flexio_log_dev_init.expect("emulated"))(process, &mut attr, file.0, &mut thread), OK);
        assert_eq!(thread, libc::pthread_self());
        assert_eq!(
            (api.flexio_log_dev_init.expect("emulated"))(process, &mut attr, file.0, null_mut()),
            FAILED,
            "open already"
        );
        assert_eq!(host.call(process, FLEXIO_MSG_DEV_INFO.into()), (OK, 0));
        assert_eq!((api.flexio_log_dev_flush.expect("emulated"))(process), OK);
        assert_eq!(file.text().as_bytes(), TEXT);
        assert_eq!((api.flexio_log_dev_destroy.expect("emulated"))(process), OK);
        assert_eq!((api.flexio_log_dev_flush.expect("emulated"))(process), FAILED);
        assert_eq!((api.flexio_process_destroy)(process), OK);
    }
}

#[test]
fn attributes_of_a_stream_are_checked() {
    let host = Host::small(&plain_image());
    let process = host.process();
    let file = CFile::new();
    let good = || stream_attr(FLEXIO_MSG_DEV_INFO);
    let long = std::ffi::CString::new("n".repeat(33)).unwrap();
    for (what, mut attr) in [
        ("a short buffer", flexio_msg_stream_attr_t { data_bsize: 1024, ..good() }),
        ("no power of two", flexio_msg_stream_attr_t { data_bsize: 3000, ..good() }),
        ("a level", flexio_msg_stream_attr_t { level: 6, ..good() }),
        ("the tracer", flexio_msg_stream_attr_t { sync_mode: FLEXIO_LOG_DEV_SYNC_MODE_TRACER, ..good() }),
        ("a long name", flexio_msg_stream_attr_t { stream_name: long.as_ptr().cast_mut(), ..good() }),
    ] {
        assert_eq!(create(&host, process, &mut attr, file.0), (FAILED, null_mut()), "{what}");
    }
    assert_eq!(create(&host, process, &mut good(), null_mut()), (FAILED, null_mut()), "no file");
    let streams: Vec<_> = (0..255).map(|_| create(&host, process, &mut good(), file.0)).collect();
    assert!(streams.iter().all(|&(status, _)| status == OK));
    assert_eq!(create(&host, process, &mut good(), file.0).0, FAILED, "255 are all");
    for (_, stream) in streams {
        assert_eq!(unsafe { (host.api.flexio_msg_stream_destroy)(stream) }, OK);
    }
    assert_eq!(unsafe { (host.api.flexio_process_destroy)(process) }, OK);
}

/// Which messages a stream prints that was made with a level: of level 0 nothing is a message, and a stream of level 0
/// is one of INFO.
#[test]
fn each_level_of_a_stream_lets_its_messages_through() {
    let host = Host::small(&printing_image(0));
    let api = &host.api;
    let process = host.process();
    let lines = |level: u8| {
        let file = CFile::new();
        let mut attr = flexio_msg_stream_attr_t { level, ..stream_attr(FLEXIO_MSG_DEV_INFO) };
        let (status, stream) = create(&host, process, &mut attr, file.0);
        assert_eq!(status, OK, "level {level}");
        let printed = (0..=7).chain([255]).filter(|of| {
            let before = file.text().len();
            assert_eq!(host.call(process, *of), (OK, 0), "a message that nobody prints is no failure");
            file.text().len() > before
        });
        let printed: Vec<u64> = printed.collect();
        assert_eq!(unsafe { (api.flexio_msg_stream_destroy)(stream) }, OK);
        printed
    };
    let info: Vec<u64> = (1..=FLEXIO_MSG_DEV_INFO.into()).collect();
    assert_eq!(lines(FLEXIO_MSG_DEV_NO_PRINT as u8), info, "a zeroed structure");
    for level in 1..=FLEXIO_MSG_DEV_DEBUG as u8 {
        assert_eq!(lines(level), (1..=level.into()).collect::<Vec<u64>>(), "level {level}");
    }
    for level in [FLEXIO_MSG_DEV_DEBUG as u8 + 1, 128, 255] {
        let mut attr = flexio_msg_stream_attr_t { level, ..stream_attr(FLEXIO_MSG_DEV_INFO) };
        assert_eq!(create(&host, process, &mut attr, CFile::new().0), (FAILED, null_mut()), "level {level}");
    }
}
