//! Asynchronous events: which, for what, and how the descriptor's flags decide about waiting.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use crate::support::*;
use verbs_sys::*;

fn set_nonblocking(host: &Host) {
    let fd = unsafe { (*host.context).async_fd };
    assert!(fd >= 0);
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

fn take(host: &Host) -> Option<ibv_async_event> {
    let mut event = ibv_async_event::default();
    match unsafe { (host.api.ibv_get_async_event)(host.context, &mut event) } {
        0 => Some(event),
        failed => {
            assert_eq!((failed, errno()), (-1, libc::EAGAIN));
            None
        }
    }
}

/// Whether the descriptor of asynchronous events is readable.
fn readable(host: &Host) -> bool {
    let mut poll = libc::pollfd { fd: unsafe { (*host.context).async_fd }, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn an_overrun_completion_queue_is_reported_with_its_queue_pairs() {
    let hosts = two_cards();
    let host = &hosts[0];
    let cq = host.cq(3);
    let qp = host.qp(IBV_QPT_UC, cq);
    host.init(qp);
    host.connect(qp, Some((unsafe { (*qp).qp_num }, host.gid())));
    assert!(take(host).is_none(), "nothing has happened");
    set_nonblocking(host);
    for id in 0..6 {
        let mut nothing = [];
        assert_eq!(host.post_send(qp, &mut send(id, IBV_WR_SEND, &mut nothing)), 0);
    }
    while emu_libibverbs::relax() {}
    let mut first = take(host).expect("the completion queue");
    assert_eq!((first.event_type, unsafe { first.element.cq }), (IBV_EVENT_CQ_ERR, cq));
    assert!(readable(host), "another one waits");
    let mut second = take(host).expect("its queue pair");
    assert_eq!((second.event_type, unsafe { second.element.qp }), (IBV_EVENT_QP_FATAL, qp));
    assert!(!readable(host));
    assert!(take(host).is_none());
    unsafe {
        (host.api.ibv_ack_async_event)(&mut first);
        (host.api.ibv_ack_async_event)(&mut second);
        assert_eq!(((*cq).async_events_completed, (*qp).events_completed), (1, 1));
        let text = std::ffi::CStr::from_ptr((host.api.ibv_event_type_str)(first.event_type));
        assert_eq!(text, c"completion queue error");
    }
}

#[test]
fn refused_accesses_of_a_peer_are_reported_to_the_responder() {
    for (spoil, expected, completion) in
        [(1_u32, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR), (0, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR)]
    {
        let (hosts, qps, cqs) = connected(IBV_QPT_RC);
        let attr =
            ibv_qp_attr { qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC, ..Default::default() };
        assert_eq!(hosts[1].modify(qps[1], &attr, IBV_QP_ACCESS_FLAGS), 0);
        let mut bytes = vec![0; 64];
        let mut there = vec![0; 64];
        let lkey = unsafe { (*hosts[0].mr(&mut bytes, IBV_ACCESS_LOCAL_WRITE)).lkey };
        let all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        let rkey = unsafe { (*hosts[1].mr(&mut there, all)).rkey };
        let mut gather = [sge(&bytes[..8], lkey)];
        let mut wr = send(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut gather);
        wr.wr.atomic.remote_addr = there.as_ptr() as u64 + u64::from(1 - spoil) * 4;
        wr.wr.atomic.rkey = rkey + spoil;
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        // Waiting lets the machine run.
        let mut event = take(&hosts[1]).expect("an event");
        assert_eq!((event.event_type, unsafe { event.element.qp }), (expected, qps[1]));
        unsafe { (hosts[1].api.ibv_ack_async_event)(&mut event) };
        assert_eq!(hosts[0].completion(cqs[0]).status, completion);
        assert!(take(&hosts[0]).is_none(), "the requester has a completion, and no event");
    }
}

#[test]
fn events_of_destroyed_objects_are_not_reported() {
    let hosts = two_cards();
    let host = &hosts[0];
    set_nonblocking(host);
    let cq = host.cq(1);
    let qp = host.qp(IBV_QPT_UC, cq);
    host.init(qp);
    host.connect(qp, Some((unsafe { (*qp).qp_num }, host.gid())));
    for id in 0..3 {
        let mut nothing = [];
        assert_eq!(host.post_send(qp, &mut send(id, IBV_WR_SEND, &mut nothing)), 0);
    }
    while emu_libibverbs::relax() {}
    let first = take(host).expect("the completion queue");
    assert_eq!(first.event_type, IBV_EVENT_CQ_ERR);
    assert_eq!(unsafe { (host.api.ibv_destroy_qp)(qp) }, 0);
    assert!(take(host).is_none(), "the queue pair's event went with it");
}

#[test]
fn queues_are_destroyed_after_their_asynchronous_events_are_acknowledged() {
    let hosts = two_cards();
    let host = &hosts[0];
    let cq = host.cq(1);
    let qp = host.qp(IBV_QPT_UC, cq);
    host.init(qp);
    host.connect(qp, Some((unsafe { (*qp).qp_num }, host.gid())));
    for id in 0..3 {
        let mut nothing = [];
        assert_eq!(host.post_send(qp, &mut send(id, IBV_WR_SEND, &mut nothing)), 0);
    }
    while emu_libibverbs::relax() {}
    let events = [take(host).expect("the completion queue"), take(host).expect("its queue pair")];
    let kinds = events.map(|event| event.event_type);
    assert_eq!(kinds, [IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL]);
    struct Event(ibv_async_event);
    unsafe impl Send for Event {}
    let [of_cq, of_qp] = events.map(Event);
    let acknowledged = std::sync::atomic::AtomicU32::new(0);
    let destroyed_after = |event: Event, number: u32, destroy: &dyn Fn() -> i32| {
        let (ack, acknowledged) = (host.api.ibv_ack_async_event, &acknowledged);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let Event(mut event) = { event };
                std::thread::sleep(std::time::Duration::from_millis(100));
                acknowledged.store(number, std::sync::atomic::Ordering::SeqCst);
                unsafe { ack(&mut event) };
            });
            assert_eq!(destroy(), 0);
            assert_eq!(acknowledged.load(std::sync::atomic::Ordering::SeqCst), number, "it waits");
        });
    };
    destroyed_after(of_qp, 1, &|| unsafe { (host.api.ibv_destroy_qp)(qp) });
    destroyed_after(of_cq, 2, &|| unsafe { (host.api.ibv_destroy_cq)(cq) });
}

#[test]
fn bad_handles_are_errors() {
    let [host, _] = two_cards();
    let mut event = ibv_async_event::default();
    unsafe {
        assert_eq!((host.api.ibv_get_async_event)(std::ptr::null_mut(), &mut event), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!((host.api.ibv_get_async_event)(host.context, std::ptr::null_mut()), -1);
        assert_eq!(errno(), libc::EINVAL);
        // Nothing to acknowledge: logged, and harmless.
        (host.api.ibv_ack_async_event)(std::ptr::null_mut());
        (host.api.ibv_ack_async_event)(&mut event);
    }
}
