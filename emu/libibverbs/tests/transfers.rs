//! Bytes between two cards, through the verbs calls alone.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use crate::support::*;
use emu_machine::{Agent, Config, RaceKind};
use verbs_sys::*;

const WRITE: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn reliable_sends_arrive_in_order_and_scattered() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let mut source = pattern(5000);
    let mut target = vec![0; 6000];
    let from = hosts[0].mr(&mut source, 0);
    let into = hosts[1].mr(&mut target, WRITE);
    let (lkey, rkey) = unsafe { ((*from).lkey, (*into).lkey) };
    // The first into two pieces, the second behind them; both gathered from two pieces.
    let pieces = vec![sge(&target[..100], rkey), sge(&target[100..5000], rkey)];
    assert_eq!(hosts[1].post_recv(qps[1], 1, pieces), 0);
    assert_eq!(hosts[1].post_recv(qps[1], 2, vec![sge(&target[5000..], rkey)]), 0);
    let mut first = [sge(&source[..4096], lkey), sge(&source[4096..], lkey)];
    let mut second = [sge(&source[..3], lkey)];
    let mut tail = send(11, IBV_WR_SEND_WITH_IMM, &mut second);
    tail.__bindgen_anon_1.imm_data = 0xA1B2_C3D4_u32.to_be();
    let mut head = send(10, IBV_WR_SEND, &mut first);
    head.next = &raw mut tail;
    head.send_flags = 0;
    assert_eq!(hosts[0].post_send(qps[0], &mut head), 0);

    let got = hosts[1].completion(cqs[1]);
    assert_eq!((got.wr_id, got.status, got.opcode, got.byte_len), (1, IBV_WC_SUCCESS, IBV_WC_RECV, 5000));
    let got = hosts[1].completion(cqs[1]);
    assert_eq!((got.wr_id, got.byte_len, got.wc_flags & IBV_WC_WITH_IMM), (2, 3, IBV_WC_WITH_IMM));
    assert_eq!(unsafe { got.__bindgen_anon_1.imm_data }, 0xA1B2_C3D4_u32.to_be());
    let done = hosts[0].completion(cqs[0]);
    assert_eq!((done.wr_id, done.status, done.opcode), (11, IBV_WC_SUCCESS, IBV_WC_SEND), "the first was unsignalled");
    assert_eq!(&target[..5000], &source[..]);
    assert_eq!(&target[5000..5003], &source[..3]);
    unsafe {
        assert_eq!((hosts[0].api.ibv_destroy_cq)(cqs[0]), libc::EBUSY, "a queue pair completes here");
        assert_eq!((hosts[0].api.ibv_dealloc_pd)(hosts[0].pd), libc::EBUSY, "the domain has a key and a queue pair");
        for (index, mr) in [from, into].into_iter().enumerate() {
            let api = &hosts[index].api;
            assert_eq!((api.ibv_dereg_mr)(mr), 0);
            assert_eq!((api.ibv_destroy_qp)(qps[index]), 0);
            assert_eq!((api.ibv_destroy_cq)(cqs[index]), 0);
            assert_eq!((api.ibv_dealloc_pd)(hosts[index].pd), 0);
            assert_eq!((api.ibv_close_device)(hosts[index].context), 0);
        }
    }
}

/// The host and the Arm cores of two cards: inside a card and across the cable, by the addresses of each function.
#[test]
fn functions_of_cards_exchange_data_by_their_own_addresses() {
    for [from, to] in [[0, 2], [2, 0], [2, 1], [0, 3], [2, 3]] {
        let [a, b, c, d] = four_functions();
        let mut all = [Some(a), Some(b), Some(c), Some(d)];
        let pair = [from, to].map(|index: usize| all[index].take().unwrap());
        let (hosts, qps, cqs) = connected_on(pair, IBV_QPT_RC);
        let (mut here, mut there) = (pattern(3000), vec![0; 3000]);
        let local = hosts[0].mr(&mut here, WRITE);
        let remote = hosts[1].mr(&mut there, WRITE);
        let mut gather = [sge(&here, unsafe { (*local).lkey })];
        let mut wr = send(5, IBV_WR_RDMA_WRITE, &mut gather);
        wr.wr.rdma.remote_addr = there.as_ptr() as u64;
        unsafe { wr.wr.rdma.rkey = (*remote).rkey };
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_SUCCESS, "{from} to {to}");
        assert!(here == there, "{from} to {to}");
        // What is registered at one function is no memory of another.
        let mut wrong = [sge(&here, unsafe { (*remote).lkey })];
        let mut wr = send(6, IBV_WR_SEND, &mut wrong);
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_LOC_PROT_ERR, "{from} to {to}");
    }
}

#[test]
fn writes_and_reads_reach_the_peers_memory() {
    for (qp_type, opcode) in
        [(IBV_QPT_RC, IBV_WR_RDMA_WRITE), (IBV_QPT_UC, IBV_WR_RDMA_WRITE), (IBV_QPT_RC, IBV_WR_RDMA_READ)]
    {
        let (hosts, qps, cqs) = connected(qp_type);
        let mut here = pattern(3000);
        let mut there: Vec<u8> = here.iter().map(|byte| !byte).collect();
        let expected = if opcode == IBV_WR_RDMA_READ { there.clone() } else { here.clone() };
        let local = hosts[0].mr(&mut here, WRITE);
        let remote = hosts[1].mr(&mut there, WRITE);
        let mut gather = [sge(&here, unsafe { (*local).lkey })];
        let mut wr = send(5, opcode, &mut gather);
        wr.wr.rdma.remote_addr = there.as_ptr() as u64;
        unsafe { wr.wr.rdma.rkey = (*remote).rkey };
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        let done = hosts[0].completion(cqs[0]);
        assert_eq!((done.wr_id, done.status), (5, IBV_WC_SUCCESS));
        let kind = if opcode == IBV_WR_RDMA_READ { IBV_WC_RDMA_READ } else { IBV_WC_RDMA_WRITE };
        assert_eq!(done.opcode, kind);
        // An unreliable write is done when it has left.
        while emu_libibverbs::relax() {}
        assert_eq!(here, expected);
        assert_eq!(there, expected);
    }
}

#[test]
fn datagrams_carry_a_routing_header_and_need_the_queue_key() {
    let (hosts, qps, cqs) = connected(IBV_QPT_UD);
    let mut source = pattern(1000);
    let mut target = vec![0; 2000];
    let from = hosts[0].mr(&mut source, 0);
    let into = hosts[1].mr(&mut target, WRITE);
    let mut attr = path(hosts[1].gid());
    let ah = unsafe { (hosts[0].api.ibv_create_ah)(hosts[0].pd, &mut attr) };
    assert!(!ah.is_null());
    assert_eq!(hosts[1].post_recv(qps[1], 3, vec![sge(&target, unsafe { (*into).lkey })]), 0);
    for (id, qkey) in [(1, 0x4321), (2, 0x1234)] {
        let mut gather = [sge(&source, unsafe { (*from).lkey })];
        let mut wr = send(id, IBV_WR_SEND, &mut gather);
        wr.wr.ud.ah = ah;
        unsafe {
            wr.wr.ud.remote_qpn = (*qps[1]).qp_num;
            wr.wr.ud.remote_qkey = qkey;
        }
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
        assert_eq!(hosts[0].completion(cqs[0]).wr_id, id);
    }
    let got = hosts[1].completion(cqs[1]);
    assert_eq!((got.status, got.byte_len, got.wc_flags & IBV_WC_GRH), (IBV_WC_SUCCESS, 1040, IBV_WC_GRH));
    assert_eq!(got.src_qp, unsafe { (*qps[0]).qp_num });
    assert_eq!(&target[40..1040], &source[..]);
    // Only one of the two arrived: the other had the wrong key.
    assert!(hosts[1].try_completion(cqs[1]).is_none());
    assert_eq!(unsafe { (hosts[0].api.ibv_destroy_ah)(ah) }, 0);
}

#[test]
fn inline_bytes_are_taken_at_once() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let mut target = vec![0; 64];
    let into = hosts[1].mr(&mut target, WRITE);
    hosts[1].post_recv(qps[1], 1, vec![sge(&target, unsafe { (*into).lkey })]);
    {
        let (one, two) = (pattern(30), vec![0xEE; 13]);
        let mut gather = [sge(&one, 0), sge(&two, 0)];
        let mut wr = send(1, IBV_WR_SEND, &mut gather);
        wr.send_flags |= IBV_SEND_INLINE;
        assert_eq!(hosts[0].post_send(qps[0], &mut wr), 0);
    }
    assert_eq!(hosts[1].completion(cqs[1]).byte_len, 43);
    assert_eq!(target[..30], pattern(30)[..]);
    assert_eq!(target[30..43], [0xEE; 13]);
    let long = pattern(61);
    let mut gather = [sge(&long, 0)];
    let mut wr = send(2, IBV_WR_SEND, &mut gather);
    wr.send_flags |= IBV_SEND_INLINE;
    assert_eq!(hosts[0].post_send(qps[0], &mut wr), libc::EINVAL);
    assert_eq!(hosts[0].completion(cqs[0]).wr_id, 1);
}

/// Alone and inline, an entry needs no fetch and its data no read; in a list it is fetched.
#[test]
fn a_single_inline_send_is_pushed() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let (mut source, mut target) = (pattern(40), vec![0; 64]);
    let from = unsafe { (*hosts[0].mr(&mut source, 0)).lkey };
    let into = unsafe { (*hosts[1].mr(&mut target, WRITE)).lkey };
    let now_ps = || emu_machine::with_world(|world| world.now_ps()).expect("a machine");
    let took_ps = |inline: bool, list: bool| {
        let start_ps = now_ps();
        let mut gathers = [[sge(&source, from)], [sge(&source, from)]];
        let [one, other] = &mut gathers;
        let (mut first, mut second) = (send(1, IBV_WR_SEND, one), send(2, IBV_WR_SEND, other));
        if inline {
            first.send_flags |= IBV_SEND_INLINE;
            second.send_flags |= IBV_SEND_INLINE;
        }
        if list {
            first.next = &raw mut second;
        }
        let count = 1 + u64::from(list);
        (0..count).for_each(|id| assert_eq!(hosts[1].post_recv(qps[1], id, vec![sge(&target, into)]), 0));
        assert_eq!(hosts[0].post_send(qps[0], &mut first), 0);
        hosts[1].completion(cqs[1]);
        let took_ps = now_ps() - start_ps;
        (1..count).for_each(|id| assert_eq!(hosts[1].completion(cqs[1]).wr_id, id));
        (0..count).for_each(|id| assert_eq!(hosts[0].completion(cqs[0]).wr_id, 1 + id));
        took_ps
    };
    let (pushed_ps, listed_ps, read_ps) = (took_ps(true, false), took_ps(true, true), took_ps(false, false));
    // Hosts poll every 50 ns.
    let reads = |more_ps: u64| (more_ps as f64 / 1_500_000.0 * 10.0).round() / 10.0;
    assert_eq!((reads(listed_ps - pushed_ps), reads(read_ps - pushed_ps)), (1.0, 2.0));
}

#[test]
fn rings_wrap_and_full_rings_are_refused() {
    let (hosts, qps, cqs) = connected(IBV_QPT_RC);
    let mut source = pattern(64);
    let mut target = vec![0; 64];
    let from = unsafe { (*hosts[0].mr(&mut source, 0)).lkey };
    let into = unsafe { (*hosts[1].mr(&mut target, WRITE)).lkey };
    for round in 0..50_u64 {
        for id in 0..8 {
            assert_eq!(hosts[1].post_recv(qps[1], round * 8 + id, vec![sge(&target, into)]), 0);
        }
        assert_eq!(hosts[1].post_recv(qps[1], 0, vec![sge(&target, into)]), libc::ENOMEM);
        let mut posted = 0;
        loop {
            let mut gather = [sge(&source, from)];
            match hosts[0].post_send(qps[0], &mut send(round * 8 + posted, IBV_WR_SEND, &mut gather)) {
                0 => posted += 1,
                error => {
                    assert_eq!(error, libc::ENOMEM);
                    break;
                }
            }
            if posted == 8 {
                break;
            }
        }
        assert_eq!(posted, 8);
        for id in 0..8 {
            assert_eq!(hosts[1].completion(cqs[1]).wr_id, round * 8 + id);
            assert_eq!(hosts[0].completion(cqs[0]).wr_id, round * 8 + id);
        }
    }
}

#[test]
fn events_wake_the_channel_once_per_arming() {
    let hosts = two_cards();
    let host = &hosts[0];
    unsafe {
        let channel = (host.api.ibv_create_comp_channel)(host.context);
        let mut user = 5_u32;
        let cq = (host.api.ibv_create_cq)(host.context, 8, (&raw mut user).cast(), channel, 0);
        let qp = host.qp(IBV_QPT_RC, cq);
        host.init(qp);
        host.connect(qp, Some(((*qp).qp_num, host.gid())));
        let mut bytes = pattern(8);
        let lkey = (*host.mr(&mut bytes, IBV_ACCESS_LOCAL_WRITE)).lkey;
        let mut got = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        assert_eq!((host.api.ibv_get_cq_event)(channel, &mut got, &mut context), -1, "nothing is armed or under way");
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!(inline::req_notify_cq(cq, 0), 0);
        host.post_recv(qp, 1, vec![sge(&bytes, lkey)]);
        let mut gather = [sge(&bytes, lkey)];
        assert_eq!(host.post_send(qp, &mut send(2, IBV_WR_SEND, &mut gather)), 0);
        assert_eq!((host.api.ibv_get_cq_event)(channel, &mut got, &mut context), 0);
        assert_eq!(got, cq);
        assert_eq!(context, (&raw mut user).cast());
        (host.api.ibv_ack_cq_events)(cq, 1);
        assert_eq!((host.api.ibv_get_cq_event)(channel, &mut got, &mut context), -1, "armed once, one event");
        let ids = [host.completion(cq).wr_id, host.completion(cq).wr_id];
        assert!(ids == [1, 2] || ids == [2, 1], "{ids:?}");
        assert_eq!((host.api.ibv_destroy_comp_channel)(channel), libc::EBUSY);
        assert_eq!((host.api.ibv_destroy_qp)(qp), 0);
        assert_eq!((host.api.ibv_destroy_cq)(cq), 0);
        assert_eq!((host.api.ibv_destroy_comp_channel)(channel), 0);
    }
}

/// What the program posts by verbs is handed to the card, for a machine that detects races.
#[test]
fn a_receive_into_what_a_send_still_reads_is_a_race() {
    let config = Config { detect_races: true, ..Config::default() };
    let (hosts, qps, cqs) = connected_on(two_cards_of(config), IBV_QPT_RC);
    let races = || emu_machine::with_world(|world| world.take_races()).unwrap();
    let mut bytes = pattern(512);
    let mut target = vec![0; 512];
    let lkey = unsafe { (*hosts[0].mr(&mut bytes, IBV_ACCESS_LOCAL_WRITE)).lkey };
    let far_key = unsafe { (*hosts[1].mr(&mut target, IBV_ACCESS_LOCAL_WRITE)).lkey };
    let part = |from: usize| vec![sge(&bytes[from..from + 128], lkey)];
    for id in 0..2 {
        assert_eq!(hosts[1].post_recv(qps[1], id, vec![sge(&target[..128], far_key)]), 0);
    }
    assert_eq!(hosts[0].post_send(qps[0], &mut send(1, IBV_WR_SEND, &mut part(0))), 0);
    assert_eq!(hosts[0].completion(cqs[0]).status, IBV_WC_SUCCESS);
    assert_eq!(hosts[0].post_recv(qps[0], 2, part(0)), 0);
    assert_eq!(races(), vec![], "that send is complete");
    assert_eq!(hosts[0].post_send(qps[0], &mut send(3, IBV_WR_SEND, &mut part(256))), 0);
    assert_eq!(hosts[0].post_recv(qps[0], 4, part(256)), 0);
    let found = races();
    let [race] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((race.kind, race.second.addr), (RaceKind::ReceiveOverSource, bytes[256..].as_ptr() as u64), "{race}");
    assert!(matches!(race.second.agent, Agent::Card { entry: Some(1), .. }), "{race}");
}
