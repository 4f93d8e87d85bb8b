//! The card of this process, used by another one: what that makes here, what is refused, and what is left when it is
//! gone.
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks)] // C functions of the library, called as their manual pages ask

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::support::{Host, errno};
use emu_bridge::share_counters;
use emu_machine::with_world;
use verbs_sys::*;

/// Longest wait for another process.
const BOUND: Duration = Duration::from_secs(60);
/// Whose socket: set for the processes that a test starts.
const SOCKET: &str = "FLEXCAST_TEST_SOCKET";

/// A process of this program that runs one of its tests, on a machine.
fn process(test: &str, machine: &str, socket: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("shared::{test}"), "--ignored", "--nocapture", "--test-threads", "1"]);
    command.env("FLEXCAST_MACHINE", format!("toml:{machine}")).env(SOCKET, socket).stdin(Stdio::piped());
    command
}

/// Runs a test as a process that has a card and shares it, with at most two others; what all of them print.
fn run_with_card(test: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card.sock");
    let machine = format!("cards = 1\n[share]\nsocket = {socket:?}\nclients = 2\n");
    let output = process(test, &machine, socket.to_str().unwrap()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    text
}

/// Starts the other process, which runs a test; what it prints, and itself.
fn attach(test: &str) -> (impl Iterator<Item = String>, std::process::Child) {
    let socket = std::env::var(SOCKET).unwrap();
    let machine = format!("[attach]\nsocket = {socket:?}\n");
    let mut child = process(test, &machine, &socket).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (lines.filter_map(|line| line.split_once("= ").map(|(_, said)| said.to_owned())), child)
}

/// What the card and the machine have.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    processes: usize,
    pairs: usize,
    registrations: usize,
}

fn counts() -> Counts {
    with_world(|world| Counts {
        processes: world.host_process_count(),
        pairs: world.card(0).unwrap().nic.queue_pairs(0).count(),
        registrations: (0..8).filter_map(|number| Some(world.host_process(number)?.registrations())).sum(),
    })
    .unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < BOUND, "{what} within {BOUND:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says what it has made, and waits to be killed.
#[test]
#[ignore = "a process that another test starts: cargo test -p emu-libibverbs shared::"]
fn makes_one_of_each() {
    let host = Host::open(0);
    let mut bytes = [0_u8; 4096];
    let mr = host.mr(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
    let cq = host.cq(8);
    let qp = host.qp(IBV_QPT_RC, cq);
    host.init(qp);
    unsafe {
        let umem = (host.api.mlx5dv_devx_umem_reg)(host.context, bytes.as_mut_ptr().cast(), 4096, 0);
        assert!(!umem.is_null());
        // A member of a group, and a key over other keys.
        let ud = host.qp(IBV_QPT_UD, cq);
        host.init(ud);
        assert_eq!((host.api.ibv_attach_mcast)(ud, &ibv_gid { raw: [0xFF; 16] }, 0), 0);
        let mut attr =
            mlx5dv_mkey_init_attr { pd: host.pd, create_flags: MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, max_entries: 4 };
        assert!(!(host.api.mlx5dv_create_mkey)(&mut attr).is_null());
        println!("= {} {} {}", (*host.pd).handle, (*mr).lkey, (*cq).handle);
    }
    std::thread::sleep(BOUND);
}

#[test]
#[ignore = "a process that another test starts: cargo test -p emu-libibverbs shared::"]
fn has_a_card_of_which_others_make_something() {
    let host = Host::open(0);
    let own = host.qp(IBV_QPT_RC, host.cq(8));
    let before = counts();
    assert_eq!(before, Counts { processes: 0, pairs: 1, registrations: 0 });
    for round in 1..=2 {
        let (mut says, mut child) = attach("makes_one_of_each");
        let made: Vec<u32> = says.next().unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
        let [pd, key, cqn] = made[..] else { panic!("{made:?}") };
        // Region, two queue pairs, completion queue and what commands name.
        assert_eq!(counts(), Counts { processes: 1, pairs: 3, registrations: 5 }, "round {round}");
        let exist = || {
            with_world(|world| {
                let nic = &world.card(0).unwrap().nic;
                [nic.vhca_of_pd(pd).is_ok(), nic.query_mkey(key).is_some(), nic.query_cq(cqn).is_some()]
            })
            .unwrap()
        };
        assert_eq!(exist(), [true; 3]);
        child.kill().unwrap();
        child.wait().unwrap();
        until("all of it is taken back", || counts() == before);
        assert_eq!(exist(), [false; 3]);
        until("it has ended", || share_counters().ended == round);
        assert_eq!(share_counters().welcomed, round);
    }
    host.init(own);
}

#[test]
fn what_a_killed_process_has_made_is_taken_back() {
    run_with_card("has_a_card_of_which_others_make_something");
}

/// What is not to be had of another process's card.
#[test]
#[ignore = "a process that another test starts: cargo test -p emu-libibverbs shared::"]
fn asks_for_what_is_not_to_be_had() {
    let host = Host::open(0);
    let cq = host.cq(8);
    unsafe {
        let ud = host.qp(IBV_QPT_UD, cq);
        host.init(ud);
        let group = ibv_gid { raw: [0xFF; 16] };
        assert_eq!((host.api.ibv_attach_mcast)(ud, &group, 0), 0);
        assert_eq!((host.api.ibv_destroy_qp)(ud), libc::EBUSY, "it is a member");
        assert_eq!((host.api.ibv_detach_mcast)(ud, &group, 0), 0);
        let mut event = std::mem::zeroed();
        assert_eq!((host.api.ibv_get_async_event)(host.context, &mut event), -1);
        assert_eq!(errno(), libc::EOPNOTSUPP);
        let mut attr =
            mlx5dv_mkey_init_attr { pd: host.pd, create_flags: MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, max_entries: 4 };
        let mkey = (host.api.mlx5dv_create_mkey)(&mut attr);
        assert!(!mkey.is_null());
        assert_eq!((host.api.mlx5dv_destroy_mkey)(mkey), 0);
        // Objects are busy as those of a card of one's own are.
        assert_eq!((host.api.ibv_destroy_cq)(cq), libc::EBUSY);
        assert_eq!((host.api.ibv_destroy_qp)(ud), 0);
        assert_eq!((host.api.ibv_destroy_cq)(cq), 0);
        // Memory that is not there can be registered, and is a failure when it is used; an empty range cannot.
        assert!((host.api.ibv_reg_mr)(host.pd, null_mut(), 4096, 0).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!((host.api.ibv_dealloc_pd)(host.pd), 0);
        assert_eq!((host.api.ibv_close_device)(host.context), 0);
    }
    println!("= refused");
    std::thread::sleep(BOUND);
}

#[test]
#[ignore = "a process that another test starts: cargo test -p emu-libibverbs shared::"]
fn has_a_card_of_which_others_ask_too_much() {
    let _host = Host::open(0);
    let (mut says, mut first) = attach("asks_for_what_is_not_to_be_had");
    assert_eq!(says.next().as_deref(), Some("refused"));
    // Two are allowed.
    let (mut says, mut second) = attach("makes_one_of_each");
    assert!(says.next().is_some());
    let (mut says, mut third) = attach("makes_one_of_each");
    assert_eq!(says.next(), None, "it has no card");
    assert!(!third.wait().unwrap().success());
    assert_eq!(share_counters().too_many, 1);
    for child in [&mut first, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn what_is_not_to_be_had_is_refused_and_as_many_as_allowed_are_let_in() {
    run_with_card("has_a_card_of_which_others_ask_too_much");
}

/// Sleeps until it is notified of a completion, which never comes.
#[test]
#[ignore = "a process that another test starts: cargo test -p emu-libibverbs shared::"]
fn waits_for_an_event() {
    let host = Host::open(0);
    unsafe {
        let channel = (host.api.ibv_create_comp_channel)(host.context);
        assert!(!channel.is_null());
        let cq = (host.api.ibv_create_cq)(host.context, 8, null_mut(), channel, 0);
        assert!(!cq.is_null());
        assert_eq!(inline::req_notify_cq(cq, 0), 0);
        println!("= waits");
        let (mut of, mut context) = (null_mut(), null_mut());
        assert_eq!((host.api.ibv_get_cq_event)(channel, &mut of, &mut context), -1);
        eprintln!("the wait ended with errno {}", errno());
    }
}

#[test]
#[ignore = "a process that another test starts: cargo test -p emu-libibverbs shared::"]
fn has_a_card_and_ends_while_another_waits() {
    let _host = Host::open(0);
    let (mut says, _) = attach("waits_for_an_event");
    assert_eq!(says.next().as_deref(), Some("waits"));
}

/// Both print to the same end of a pipe, so that the test has read what the other says when it is gone as well.
#[test]
fn nobody_waits_for_events_of_a_card_that_is_gone() {
    let text = run_with_card("has_a_card_and_ends_while_another_waits");
    assert!(text.contains(&format!("the wait ended with errno {}", libc::EIO)), "{text}");
}
