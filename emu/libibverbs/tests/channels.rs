//! Waiting for completion events: what the fuzz target `api` asks of it.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ptr::{null_mut, without_provenance_mut};

use crate::support::*;
use emu_machine::Config;
use verbs_sys::*;

/// A connected RC pair of which the sender's completions raise events; the peer has no receives, and is asked for ever.
fn asking_for_ever() -> (Host, *mut ibv_comp_channel, *mut ibv_cq) {
    emu_machine::configure(Config { heap_bytes: 4096, host_idle_ps: 1_000_000_000, ..Config::default() }).unwrap();
    let [host, peer] = [0, 1].map(Host::open);
    let channel = unsafe { (host.api.ibv_create_comp_channel)(host.context) };
    let cq = unsafe { (host.api.ibv_create_cq)(host.context, 4, without_provenance_mut(7), channel, 0) };
    assert!(!cq.is_null());
    let qps = [host.qp(IBV_QPT_RC, cq), peer.qp(IBV_QPT_RC, peer.cq(4))];
    let numbers = qps.map(|qp| unsafe { (*qp).qp_num });
    host.init(qps[0]);
    peer.init(qps[1]);
    host.connect(qps[0], Some((numbers[1], peer.gid())));
    peer.connect(qps[1], Some((numbers[0], host.gid())));
    assert_eq!(unsafe { inline::req_notify_cq(cq, 0) }, 0);
    assert_eq!(host.post_send(qps[0], &mut send(1, IBV_WR_SEND, &mut [])), 0);
    (host, channel, cq)
}

#[test]
fn an_event_that_never_comes_is_waited_for_within_a_bound() {
    let (host, channel, _) = asking_for_ever();
    let (mut cq, mut context) = (null_mut(), null_mut());
    let got = unsafe { (host.api.ibv_get_cq_event)(channel, &mut cq, &mut context) };
    assert_eq!((got, errno()), (-1, libc::EAGAIN));
    assert!(emu_libibverbs::now_ps() > 120_000_000_000_000);
    assert!(emu_libibverbs::relax(), "there is always something left to do");
}

#[test]
fn an_event_is_not_lost_where_it_cannot_be_stored() {
    let (host, channel, cq) = asking_for_ever();
    // Retries end by command, which flushes.
    let qp = host.qp(IBV_QPT_RC, cq);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(host.modify(qp, &attr, IBV_QP_STATE), 0);
    let nobody = &mut send(2, IBV_WR_SEND, &mut []);
    assert_eq!(host.post_send(qp, nobody), 0);
    let (mut event_cq, mut context) = (null_mut(), null_mut());
    for (to, with) in [(null_mut(), &raw mut context), (&raw mut event_cq, null_mut())] {
        assert_eq!(unsafe { (host.api.ibv_get_cq_event)(channel, to, with) }, -1);
        assert_eq!(errno(), libc::EINVAL);
    }
    assert_eq!(unsafe { (host.api.ibv_get_cq_event)(channel, &mut event_cq, &mut context) }, 0);
    assert_eq!((event_cq, context.addr()), (cq, 7));
    unsafe { (host.api.ibv_ack_cq_events)(cq, 1) };
}

/// A completion queue with a channel, of which the program has taken an event.
fn with_an_event(host: &Host) -> (*mut ibv_comp_channel, *mut ibv_cq) {
    let channel = unsafe { (host.api.ibv_create_comp_channel)(host.context) };
    let cq = unsafe { (host.api.ibv_create_cq)(host.context, 4, null_mut(), channel, 0) };
    assert_eq!(unsafe { (*channel).refcnt }, 1);
    let qp = host.qp(IBV_QPT_RC, cq);
    host.init(qp);
    assert_eq!(host.post_recv(qp, 1, vec![]), 0);
    assert_eq!(unsafe { inline::req_notify_cq(cq, 0) }, 0);
    // A flush: one completion, one event.
    let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(host.modify(qp, &attr, IBV_QP_STATE), 0);
    let (mut of, mut context) = (null_mut(), null_mut());
    assert_eq!(unsafe { (host.api.ibv_get_cq_event)(channel, &mut of, &mut context) }, 0);
    assert_eq!(of, cq);
    assert_eq!(unsafe { (host.api.ibv_destroy_cq)(cq) }, libc::EBUSY, "a queue pair uses it: no wait");
    assert_eq!(unsafe { (host.api.ibv_destroy_qp)(qp) }, 0);
    (channel, cq)
}

#[test]
fn a_completion_queue_is_destroyed_after_the_last_acknowledgement() {
    let [host, _peer] = two_cards();
    let (channel, cq) = with_an_event(&host);
    assert_eq!(unsafe { (host.api.ibv_destroy_comp_channel)(channel) }, libc::EBUSY, "the queue uses it");
    let acknowledged = std::sync::atomic::AtomicBool::new(false);
    let (number, ack) = (cq.expose_provenance(), host.api.ibv_ack_cq_events);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Long enough for the other thread to be in the call; a slow one finds the queue there all the same.
            std::thread::sleep(std::time::Duration::from_millis(200));
            acknowledged.store(true, std::sync::atomic::Ordering::SeqCst);
            unsafe { ack(std::ptr::with_exposed_provenance_mut(number), 1) };
        });
        assert_eq!(unsafe { (host.api.ibv_destroy_cq)(cq) }, 0);
        assert!(acknowledged.load(std::sync::atomic::Ordering::SeqCst), "it waits for the acknowledgement");
    });
    assert_eq!(unsafe { (*channel).refcnt }, 0);
    assert_eq!(unsafe { (host.api.ibv_destroy_cq)(cq) }, libc::EINVAL, "it is gone");
    assert_eq!(unsafe { (host.api.ibv_destroy_comp_channel)(channel) }, 0);
}

/// Two threads acknowledge at once: none is lost, so that the queue can go.
#[test]
fn threads_acknowledge_events_of_one_queue_at_once() {
    const EACH: u32 = 20_000;
    let [host, _peer] = two_cards();
    let cq = host.cq(4);
    let (number, ack) = (cq.expose_provenance(), host.api.ibv_ack_cq_events);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                let cq = std::ptr::with_exposed_provenance_mut(number);
                (0..EACH).for_each(|_| unsafe { ack(cq, 1) });
            });
        }
    });
    assert_eq!(unsafe { (*cq).comp_events_completed }, 2 * EACH);
    // More than were taken: rdma-core would wait for ever.
    assert_eq!(unsafe { (host.api.ibv_destroy_cq)(cq) }, 0);
}

/// Two hosts of one process poll in turn: they stand for hosts that poll at the same time, so no time passes until one
/// polls again.
#[test]
fn time_passes_for_who_polls_again_and_not_for_each_host() {
    let (host, _, cq) = asking_for_ever();
    let others: Vec<_> = (0..50).map(|_| host.cq(4)).collect();
    let mut wc = ibv_wc::default();
    let mut poll = |cq| unsafe { inline::poll_cq(cq, 1, &mut wc) };
    let begun_ps = emu_libibverbs::now_ps();
    assert_eq!(others.iter().map(|other| poll(*other)).sum::<i32>() + poll(cq), 0);
    assert_eq!(emu_libibverbs::now_ps(), begun_ps);
    for _ in 0..10 {
        let before_ps = emu_libibverbs::now_ps();
        assert_eq!(poll(cq), 0);
        assert!(emu_libibverbs::now_ps() > before_ps, "a queue that is waited for");
    }
    // Who lets time pass by itself does not have it pass twice.
    assert!(emu_libibverbs::relax());
    let begun_ps = emu_libibverbs::now_ps();
    assert_eq!((poll(others[0]), poll(cq)), (0, 0));
    assert_eq!(emu_libibverbs::now_ps(), begun_ps);
}
