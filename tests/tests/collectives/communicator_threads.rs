//! Communicators on several threads: posting, waiting, progress threads and futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use flexcast::{Communicator, Config, Endpoint, Error, Failed, Outcome, Overheads, Request, Test, ThreadOptions};
use flexcast_tests::assert_mentions;
use flexcast_tests::communicators::{self, Under, check, connect, drive, gather, gathers, with_cards};

const BYTES: usize = 5000;
/// Longest that any test here may take on a busy computer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a program keeps in one structure.
struct Rank {
    card: Endpoint,
    communicator: Communicator,
    request: Option<Request>,
}

/// Compiles only if it may go to another thread and be shared.
fn goes_and_is_shared<T: Send + Sync + 'static>(value: T) -> T {
    value
}

/// Virtual time goes on while a thread is not run: bounds that are longer than any of these tests.
fn config() -> Config {
    let overheads = Overheads { cutoff_slack: Duration::from_secs(1), ..communicators::config().overheads };
    let long = Duration::from_secs(1000);
    communicators::config().barrier_timeout(long).recovery_timeout(long).overheads(overheads)
}

fn with_threads() -> Config {
    config().progress_thread(Some(ThreadOptions::default()))
}

/// Wakes a thread that runs a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on the calling thread, which sleeps between two polls; also how often it was polled.
fn block_on(future: impl Future<Output = Outcome>) -> (Outcome, u32) {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (begun, mut polls) = (Instant::now(), 0);
    loop {
        polls += 1;
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (outcome, polls);
        }
        thread::park_timeout(PATIENCE);
        assert!(begun.elapsed() < PATIENCE, "nobody wakes the future");
    }
}

#[test]
fn a_structure_of_card_and_communicator_waits_on_another_thread() {
    with_cards(2, |_, cards| {
        let ranks = connect(cards.iter(), &config()).into_iter().zip(cards).map(|(communicator, card)| {
            let request = Some(gather(&communicator, 3, BYTES));
            Rank { card: card.clone(), communicator, request }
        });
        let threads: Vec<_> = ranks
            .map(|mut rank| {
                thread::spawn(move || {
                    let request = rank.request.take().expect("posted");
                    check(&request.wait().expect("success"), 3, 2, BYTES);
                    rank
                })
            })
            .collect();
        let ranks: Vec<Rank> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(ranks[1].communicator.rank(), 1);
        assert_eq!(ranks[1].card.device().map(|device| device.info().name.as_str()), Some("mlx5_1"));
        let _: Rank = goes_and_is_shared(ranks).remove(0);
    });
}

#[test]
fn a_card_may_be_dropped_while_a_communicator_lives() {
    let communicators = {
        let mut made = Vec::new();
        // Provider, firmware and cards go with this.
        with_cards(2, |_, cards| made = connect(cards.iter(), &config()));
        made
    };
    let provider = communicators[0].endpoint().device().expect("an RDMA device").provider().clone();
    gathers(&provider, &communicators, 4, BYTES);
    drop(communicators);
    assert_eq!(provider.devices().expect("a list").len(), 2, "the provider outlives them");
}

/// Operations run in the order in which they were posted, which threads of one rank do not agree on: the other rank's
/// order decides which is which, and so the contributions do not depend on the thread.
#[test]
fn two_threads_post_and_wait_on_one_communicator() {
    const EACH: usize = 6;
    with_cards(2, |_, cards| {
        let communicators = connect(cards.iter(), &config());
        thread::scope(|scope| {
            for communicator in &communicators {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..EACH {
                            let request = gather(communicator, 9, BYTES);
                            check(&request.wait().expect("success"), 9, 2, BYTES);
                        }
                    });
                }
            }
        });
        assert!(communicators.iter().all(Communicator::is_idle));
    });
}

#[test]
fn a_progress_thread_ends_operations_that_nobody_waits_for() {
    with_cards(2, |_, cards| {
        let communicators = connect(cards.iter(), &with_threads());
        let requests: Vec<Request> = communicators.iter().map(|communicator| gather(communicator, 1, BYTES)).collect();
        let begun = Instant::now();
        for (communicator, request) in communicators.iter().zip(&requests) {
            while !communicator.is_done(request) {
                assert!(begun.elapsed() < PATIENCE, "no progress");
                thread::sleep(Duration::from_micros(100));
            }
        }
        for request in requests {
            check(&request.wait().expect("success"), 1, 2, BYTES);
        }
    });
}

#[test]
fn progress_threads_and_waits_go_together() {
    with_cards(3, |provider, cards| {
        let communicators = connect(cards.iter(), &with_threads());
        thread::scope(|scope| {
            for communicator in &communicators {
                scope.spawn(move || {
                    for round in 0..8 {
                        let request = gather(communicator, round, BYTES);
                        check(&request.wait().expect("success"), round, 3, BYTES);
                    }
                });
            }
            // And so do calls that only move the protocol on.
            for _ in 0..100 {
                for communicator in &communicators {
                    communicator.progress().expect("progress");
                }
                provider.relax().relax();
            }
        });
        // All from one thread.
        gathers(provider, &communicators, 77, BYTES);
    });
}

#[test]
fn a_progress_thread_that_cannot_run_where_it_should_is_refused() {
    with_cards(1, |_, cards| {
        for cpu in [1023, u32::MAX] {
            let config = config().progress_thread(Some(ThreadOptions::on_cpu(cpu)));
            let pending = flexcast::Pending::new(&cards[0], 0, 1, config).expect("its part is made");
            let info = pending.connect_info();
            let error = pending.connect(&[info]).map(drop).expect_err("no such processor");
            assert!(matches!(error, Error::ProgressThread { cpu: Some(of), .. } if of == cpu), "{error}");
            assert_mentions(&error, &[&cpu.to_string(), "choose a processor"]);
        }
    });
}

#[test]
fn requests_are_futures_that_progress_threads_end() {
    with_cards(2, |_, cards| {
        let communicators = connect(cards.iter(), &with_threads());
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            for communicator in &communicators {
                let sender = sender.clone();
                scope.spawn(move || {
                    for round in 0..4 {
                        let (outcome, polls) = block_on(gather(communicator, round, BYTES));
                        check(&outcome.expect("success"), round, 2, BYTES);
                        sender.send(polls).expect("received");
                    }
                });
            }
        });
        drop(sender);
        // A future that is polled without having been woken would be polled far more often.
        let polls: Vec<u32> = receiver.iter().collect();
        assert!(polls.len() == 8 && polls.iter().all(|polls| *polls <= 3), "{polls:?}");
    });
}

#[test]
fn a_future_ends_by_whoever_makes_progress() {
    with_cards(2, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        let requests: Vec<Request> = communicators.iter().map(|communicator| gather(communicator, 2, BYTES)).collect();
        let woken = Arc::new(AtomicU32::new(0));
        struct Count(Arc<AtomicU32>);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let waker = Waker::from(Arc::new(Count(Arc::clone(&woken))));
        let mut futures: Vec<_> = requests.into_iter().map(Box::pin).collect();
        for future in &mut futures {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        while woken.load(Ordering::Relaxed) < 2 {
            communicators.iter().for_each(|communicator| _ = communicator.progress().expect("progress"));
            provider.relax().relax();
        }
        for future in &mut futures {
            let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) else {
                panic!("woken too early");
            };
            check(&outcome.expect("success"), 2, 2, BYTES);
            // Once more: over, and nothing hangs.
            let Poll::Ready(Err(over)) = future.as_mut().poll(&mut Context::from_waker(&waker)) else {
                panic!("reported twice");
            };
            assert_mentions(&over.error, &["is over", "again"]);
        }
        assert_eq!(woken.load(Ordering::Relaxed), 2, "each is woken once");
    });
}

#[test]
fn a_future_dropped_while_its_operation_runs_leaves_it_running() {
    with_cards(2, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        {
            let mut request = gather(&communicators[0], 6, BYTES);
            let mut first = pin!(poll_fn(|context| pin!(&mut request).poll(context)));
            assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        // The other rank gets all bytes all the same, and the next operation works.
        let request = gather(&communicators[1], 6, BYTES);
        let mut all = [Under::new(&communicators[1], request)];
        drive(provider, &mut all, |_, _| _ = communicators[0].progress().expect("progress"));
        check(all[0].done.as_ref().expect("driven to its end").as_ref().expect("success"), 6, 2, BYTES);
        gathers(provider, &communicators, 7, BYTES);
    });
}

#[test]
fn a_request_is_waited_for_once() {
    with_cards(1, |_, cards| {
        let communicators = connect(cards.iter(), &config());
        let mut request = communicators[0].broadcast(cards[0].buffer(8).expect("a buffer"), 0).expect("accepted");
        loop {
            if let Poll::Ready(outcome) = pin!(&mut request).poll(&mut Context::from_waker(Waker::noop())) {
                assert_eq!(outcome.expect("success").receive.len(), 8);
                break;
            }
            cards[0].device().expect("an RDMA device").provider().relax().relax();
        }
        // Its end has been reported: a wait for it ends at once, with the reason.
        let failed: Box<Failed> = request.wait().expect_err("over");
        assert!(matches!(failed.error, Error::RequestOver { request: 1 }), "{failed}");
        assert!(failed.receive.is_none() && failed.send.is_none());
        assert_mentions(&failed.error, &["request 1", "over"]);
    });
}

#[test]
fn a_communicator_dropped_with_requests_is_there_for_them() {
    with_cards(2, |_, cards| {
        let requests: Vec<Request> = {
            let communicators = connect(cards.iter(), &with_threads());
            communicators.iter().map(|communicator| gather(communicator, 8, BYTES)).collect()
        };
        for request in requests {
            let (outcome, _) = block_on(request);
            check(&outcome.expect("success"), 8, 2, BYTES);
        }
    });
}

#[test]
fn a_test_gives_an_operation_back_that_is_not_over() {
    with_cards(2, |_, cards| {
        let communicators = connect(cards.iter(), &config());
        let request = gather(&communicators[0], 1, BYTES);
        let Test::Pending(request) = request.test().expect("under way") else {
            panic!("the other rank has not posted")
        };
        assert!(!communicators[0].is_done(&request) && !communicators[1].is_done(&request));
    });
}
