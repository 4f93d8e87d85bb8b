//! Orders of threads at a communicator, tried by a checker: `cargo xtask test --long` runs them, and
//! `cargo test -p flexcast --features interleavings --lib interleavings`.
//!
//! No wait here ends by time: a wake-up that is lost leaves threads asleep for ever, which the checker reports.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use flexcast_proto::RankInfo;
use shuttle::thread;

use super::staged::{NOW_PS, Staged};
use super::{Core, Posted, Task, Turns};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::sync::Arc;

/// Orders that are tried of each test.
const ORDERS: usize = 3000;
/// Longer than the checker's threads live.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

fn turns() -> Arc<Turns> {
    let core = Core::new(RankInfo::new(0, 1).unwrap(), 1, Config::default());
    // It ends one operation each time that it is moved on.
    Arc::new(Turns::new(Box::new(Staged::new(core, || Ok(1)))))
}

fn posted() -> Posted<Task> {
    let receive = Buffer::of_host(0).unwrap();
    Posted { request: 0, plan: Task::Collective(Collective::Barrier), send: None, receive, posted_ps: NOW_PS }
}

/// Moves the communicator on until so many operations have ended.
fn drive(turns: &Turns, operations: u32) {
    let mut ended = 0;
    while ended < operations {
        ended += u32::from(turns.with(|datapath| datapath.progress().unwrap()));
        thread::yield_now();
    }
}

/// Tries orders at random, and those in which few switches matter.
fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), ORDERS);
    shuttle::check_pct(test, ORDERS, 3);
}

#[test]
fn what_is_posted_at_the_same_time_is_taken_on() {
    check(|| {
        let turns = turns();
        let known = turns.with(|datapath| datapath.core().requests.clone());
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let turns = Arc::clone(&turns);
                thread::spawn(move || turns.post(posted()).unwrap())
            })
            .collect();
        let mut requests: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        requests.sort_unstable();
        assert_eq!(requests, [1, 2, 3], "each has a number of its own");
        // Nobody polls: it has all been taken on by the posts themselves.
        assert!(!known.has_posted());
        drive(&turns, 3);
        assert!((1..=3).all(|request| known.is_done(request)));
    });
}

#[test]
fn callers_that_sleep_wake_when_their_operations_end() {
    check(|| {
        let turns = turns();
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let turns = Arc::clone(&turns);
                thread::spawn(move || {
                    let request = turns.post(posted()).unwrap();
                    let requests = turns.with(|datapath| datapath.core().requests.clone());
                    while requests.take_done(request).is_none() {
                        requests.sleep(Some(request), FOR_EVER);
                    }
                })
            })
            .collect();
        drive(&turns, 2);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

/// Counts how often it is woken.
#[derive(Default)]
struct Counting(AtomicU32);

impl Wake for Counting {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_future_that_is_pending_is_woken_once_and_ends_with_the_next_poll() {
    check(|| {
        let turns = turns();
        let poller = {
            let turns = Arc::clone(&turns);
            thread::spawn(move || {
                let request = turns.post(posted()).unwrap();
                let requests = turns.with(|datapath| datapath.core().requests.clone());
                let counting = std::sync::Arc::new(Counting::default());
                let waker = Waker::from(std::sync::Arc::clone(&counting));
                if requests.poll_done(request, &waker).is_pending() {
                    while counting.0.load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                    assert!(matches!(requests.poll_done(request, &waker), Poll::Ready(Ok(_))), "it was woken");
                }
                counting.0.load(Ordering::SeqCst)
            })
        };
        drive(&turns, 1);
        assert!(poller.join().unwrap() <= 1);
    });
}

#[test]
fn an_operation_that_nobody_asks_for_keeps_nothing() {
    check(|| {
        let turns = turns();
        let caller = {
            let turns = Arc::clone(&turns);
            thread::spawn(move || {
                let request = turns.post(posted()).unwrap();
                let requests = turns.with(|datapath| datapath.core().requests.clone());
                requests.abandon(request);
                request
            })
        };
        drive(&turns, 1);
        let request = caller.join().unwrap();
        turns.with(|datapath| assert!(!datapath.core().requests.is_done(request)));
    });
}
